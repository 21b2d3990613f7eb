/* The letters that `once replay` moves in one transaction.
 *
 * Most of the time of a replay is spent by the server of the store, in the commit. Where transactions of two handles do
 * not wait for each other (ONCE_STORE_PARALLEL), a replay has two lots, each with a handle of its own: while one is
 * committed in a thread, the letters of the next are read and judged. Lots are committed in the order of their letters,
 * one after the other, so that none is committed behind one that failed.
 *
 * If both lots have the same key or lane, the server lets the second one wait for the first. In its commit the first
 * must not wait for anybody, who might wait for the second: so it has all of its locks before. That holds for letters
 * whose entry is there. A lot with another one (its key is new, or was forgotten) is committed alone, because a new
 * entry is inserted, and so locked, by the commit. */
#ifndef ONCE_RUNTIME_REPLAY_LOT_H
#define ONCE_RUNTIME_REPLAY_LOT_H

#include <pthread.h>

#include "once/operate.h"
#include "runtime/replay_preview.h"
#include "runtime/runtime.h"
#include "store/store.h"

enum { ONCE_LOT = 4096 }; /* letters at most */

typedef struct once_replay_lot {
    once_backend *store; /* NULL: this lot is not used */
    once_batch batch;    /* owns what belongs to its transaction, until it was reported */
    once_replayed results[ONCE_LOT];
    once_preview would[ONCE_LOT]; /* dry run: keys that they would put back; id 0: none */
    size_t n, bytes;
    uint64_t looked_at; /* letters that were looked at when it was full */
    bool alone;         /* must be committed before the next lot begins */
    /* the commit in a thread */
    pthread_t thread;
    bool has_thread;
    int rc;
    once_error err;
} once_replay_lot;

/* Empties the lot and begins its transaction. */
int once__lot_begin(once_replay_lot *lot, once_error *err);
/* Commits; with `beside` in a thread, to which the lot belongs until once__lot_committed. */
void once__lot_commit(once_replay_lot *lot, bool beside);
int once__lot_committed(once_replay_lot *lot, once_error *err); /* the status of the commit; waits for it */

#endif
