/* A store whose server may answer anything is used: nothing crashes, leaks or hangs; an error has words; and no key
 * runs twice while its lease lasts, unless the server lied in the right form. */
#ifndef ONCE_FUZZ_PLAY_H
#define ONCE_FUZZ_PLAY_H

#include <stdlib.h>

#include "store/store.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

enum { PLAY_KEYS = 3 };

typedef struct play {
    const once_env *env;
    bool (*lied)(void); /* whether a wrong answer may have been taken for right */
    once_backend *store;
    once_arena arena;
    once_scope scope;
    char keys[PLAY_KEYS][24]; /* of this play alone */
    uint64_t tokens;
    int64_t begun_ns;
    bool runs[PLAY_KEYS], told; /* granted and not settled; something failed since */
} play;

play play_of(const once_env *env, bool (*lied)(void));
bool play_is_late(const play *p); /* who waits for a turn that was lost waits as long as it lasts, which is right, and
                                     too long for a fuzzer */
bool play_note(play *p, int rc, once_error *err); /* whether it was ONCE_OK */
void play_store(play *p);

#endif
