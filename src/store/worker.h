/* Workers: the current runs of a consumer, as recorded in its store.
 *
 * A worker has a record, which is a fact of the store, from its begin to its end. The worker renews the record with
 * each commit that writes, and every ten seconds when it is idle. This record and the store's clock show whether the
 * worker is alive. When a worker has not renewed its record before the lease of the record ends, the worker died or
 * hangs. The record then stays, so that a worker that was only late can go on; other workers notice each death once
 * (`noticed`). A worker whose process on this host no longer exists is dead at once, and its record is dropped. The
 * record of any other dead worker is dropped after a day.
 *
 * Each renewal has a number. When the number went back, or the record is missing, the store lost something that it had
 * acknowledged: by a failover, by a restored backup, or because its tables were replaced. The transaction of the batch
 * finds that, and is not committed.
 *
 * The lease of a worker's record is at least as long as the leases of its claims. So when it is over, they are over,
 * too. */
#ifndef ONCE_STORE_WORKER_H
#define ONCE_STORE_WORKER_H

#include "store/store.h"

#define ONCE_WORKER_LEASE_MS 30000 /* at least */

typedef struct once_worker {
    uint64_t run; /* as in the requests of its messages */
    char who[ONCE_WHO_MAX + 1];
    uint64_t machine, pid, started; /* as once_process */
    bool contained; /* everything that it does for messages ends with its process: no command that it started can
                     * survive it. False in records of older versions, which do not have it */
    uint64_t done;  /* messages that it finished; not those that it put back */
    uint64_t rate;  /* of `done`: messages per second, lately */
    int64_t lease_ms;
    /* Times of the store's clock; once_worker_renew writes them. */
    int64_t begun_ms, seen_ms;

    bool gone;        /* its process no longer exists; set only in records that were read */
    bool says_paused; /* it has written which of its handlers are held up */

    uint64_t number, tried; /* numbers of the last renewal that was committed, and of the last one that was tried */
    char name[100];         /* of its fact */
} once_worker;

/* The handlers of a worker that are held up, as a text that runtime/paused.c makes and reads. */
typedef struct once_paused {
    uint64_t version; /* changes with the text; 0: none was ever held up */
    size_t n, len;    /* handlers; bytes */
    char text[2000];  /* ends with a zero */
} once_paused;

typedef enum once_worker_state {
    ONCE_WORKER_ALIVE,
    ONCE_WORKER_LATE, /* the lease of its record is over: the worker died, or hangs */
    ONCE_WORKER_GONE  /* its process on this host no longer exists */
} once_worker_state;

/* Fills in this process and `run`, a random number; the other fields are zero. */
void once_worker_init(once_worker *worker, const once_backend *store, once_bytes consumer, uint64_t run,
                      int64_t lease_ms);

/* Writes the worker's record. Sets *died when another worker died and no worker has noticed it before; never clears
 * *died, so that the call can be repeated. */
int once_worker_begin(once_worker *worker, once_backend *store, bool *died, once_error *err);
/* Renews the record, in the open transaction or in one of its own. The caller calls once_worker_kept after the commit
 * of that transaction. */
int once_worker_renew(once_worker *worker, once_backend *store, once_error *err);
static inline void once_worker_kept(once_worker *worker) { worker->number = worker->tried; }
int once_worker_end(const once_worker *worker, once_backend *store, once_error *err);

/* Writes which handlers of the worker are held up, in the open transaction; and reads it. It is a fact beside the
 * record, which older versions of once neither read nor drop. */
int once_worker_pauses(once_worker *worker, once_backend *store, const once_paused *paused, once_error *err);
int once_worker_paused(const once_worker *worker, once_backend *store, once_paused *out, once_error *err);

/* Visits the workers that have records, in the order in which they began. */
typedef bool once_worker_visit(void *user, const once_worker *worker, once_worker_state state);
int once_workers_each(once_backend *store, once_bytes consumer, once_worker_visit *visit, void *user, once_error *err);
/* Visits the workers except `self` whose processes certainly no longer exist. No clock is used. */
int once_workers_gone(once_backend *store, const once_worker *self, once_worker_visit *visit, void *user,
                      once_error *err);

#endif
