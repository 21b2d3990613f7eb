/* Workers: the runs of a consumer that are going on, as their store knows them.
 *
 * A worker has a record, a fact of the store, from its begin to its end. It is renewed with each commit that writes,
 * and when nothing is to be done, every third of its lease: the store's clock and this record say whether somebody is
 * alive. A record that is not renewed until its lease is over is that of a worker that died, or that hangs: it stays,
 * so that one that was only late goes on as if nothing had been; others take notice of a death once (`noticed`). A
 * process of this machine that is not there any more is dead at once, and its record is dropped. So is any other dead
 * one after a day.
 *
 * Each renewal has a number. A number that went back, or a record that is gone, means that the store forgot what it had
 * acknowledged: a failover, a backup, other tables. That is found in the transaction of the batch, which then does not
 * happen.
 *
 * A worker's own lease is at least as long as those of its claims, so when it is over, so are they. */
#ifndef ONCE_STORE_WORKER_H
#define ONCE_STORE_WORKER_H

#include "store/store.h"

#define ONCE_WORKER_LEASE_MS 30000 /* at least */

typedef struct once_worker {
    uint64_t run; /* as in the requests of its messages */
    char who[ONCE_WHO_MAX + 1];
    uint64_t machine, pid, started; /* as once_process */
    bool contained; /* what it does for its messages ends with its process: no command that it started can live on. Not
                     * said by programs from before that was known */
    uint64_t done;  /* messages that it decided: not those that it put back */
    uint64_t rate;  /* of these, in a second, lately */
    int64_t lease_ms;
    /* by the store's clock; written by once_worker_renew */
    int64_t begun_ms, seen_ms;

    bool gone; /* its process is not there any more; only of those that were read */

    uint64_t number, tried; /* of the last renewal that is known to be kept, and of the last one */
    char name[100];         /* of its fact */
} once_worker;

typedef enum once_worker_state {
    ONCE_WORKER_ALIVE,
    ONCE_WORKER_LATE, /* its lease is over: it died, or hangs */
    ONCE_WORKER_GONE  /* a process of this machine that is not there any more */
} once_worker_state;

/* Who we are; the rest is zero. `run` is random. */
void once_worker_init(once_worker *worker, const once_backend *store, once_bytes consumer, uint64_t run,
                      int64_t lease_ms);

/* Makes its record. *died is set when another one died and nobody has noticed; it is never cleared, so that this can be
 * repeated. */
int once_worker_begin(once_worker *worker, once_backend *store, bool *died, once_error *err);
/* In the open transaction, or in one of its own. After a commit, once_worker_kept says that it was. */
int once_worker_renew(once_worker *worker, once_backend *store, once_error *err);
static inline void once_worker_kept(once_worker *worker) { worker->number = worker->tried; }
int once_worker_end(const once_worker *worker, once_backend *store, once_error *err);

/* Those that have records, by their begin. */
typedef bool once_worker_visit(void *user, const once_worker *worker, once_worker_state state);
int once_workers_each(once_backend *store, once_bytes consumer, once_worker_visit *visit, void *user, once_error *err);
/* Those but `self` of which it is certain that their process is gone; the clock is not asked. */
int once_workers_gone(once_backend *store, const once_worker *self, once_worker_visit *visit, void *user,
                      once_error *err);

#endif
