/* What a dry run of a replay would leave of the keys so far, so that a later letter of the same key is judged by it. As
 * many as there are letters, so they are kept in a temporary file and not in memory: a hash table with room for `most`.
 * */
#ifndef ONCE_RUNTIME_REPLAY_PREVIEW_H
#define ONCE_RUNTIME_REPLAY_PREVIEW_H

#include "once/error.h"
#include "once/types.h"

typedef struct once_preview { /* a key that would be waiting */
    uint64_t id;              /* half of the entry's, which is a keyed hash, so half is enough; 0: there is none */
    uint64_t print;           /* half of the fingerprint; 0: it has none */
} once_preview;

typedef struct once_preview_table {
    int fd;
    uint64_t n, size; /* slots that are used; all of them, a power of two */
} once_preview_table;

/* In TMPDIR, or in /var/tmp; it has no name there and ends with the process. */
int once__preview_open(once_preview_table *table, uint64_t most, once_error *err);
void once__preview_close(once_preview_table *table);
/* *out with id 0: there is none. */
int once__preview_find(const once_preview_table *table, uint64_t id, once_preview *out, once_error *err);
/* Replaces what there is of this id. */
int once__preview_put(once_preview_table *table, const once_preview *what, once_error *err);

#endif
