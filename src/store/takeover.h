/* Taking over the claims of workers that are gone.
 *
 * A worker that was killed leaves claims, and the next worker would have to wait for their leases. These claims are
 * ended at once where two conditions hold: the worker's process is certainly gone (store/worker.h), and everything that
 * it had begun for its messages has ended with it (`contained`). A claim that is ended has a lease that is over;
 * core/entry.h decides what follows, as for any such lease: the attempt counts, the entry is unknown where its consumer
 * says `hold`, it is dead when its budget is spent, and the next claim fences the old one.
 *
 * Invariants. The token of a claim tells which worker has it. A claim that another worker got in the meantime has
 * another token, and stays. A commit of the dead worker may still be on its way to a server, and arrive after its
 * claims were searched for; so a worker that was found gone is remembered, even when its record is dropped, and its
 * claims are searched for again. */
#ifndef ONCE_STORE_TAKEOVER_H
#define ONCE_STORE_TAKEOVER_H

#include "store/worker.h"

#define ONCE_GONE_MAX 16 /* how many workers are remembered: the last ones */

typedef struct once_gone_worker {
    uint64_t run;
    bool contained;
    size_t ended; /* claims that the last once_take_over ended */
    char who[ONCE_WHO_MAX + 1];
} once_gone_worker;

typedef struct once_gone {
    once_gone_worker at[ONCE_GONE_MAX];
    size_t n; /* how many were ever noted: the i-th is at i % ONCE_GONE_MAX */
} once_gone;

static inline size_t once_gone_count(const once_gone *gone)
{
    return gone->n < ONCE_GONE_MAX ? gone->n : ONCE_GONE_MAX;
}
/* The gone worker that has the claim; NULL: none of them. */
const once_gone_worker *once_gone_holder(const once_gone *gone, const once_entry *entry);

/* Reads which workers are gone, and changes nothing: for status displays. */
int once_gone_read(once_backend *store, once_bytes consumer, once_gone *out, once_error *err);
/* In words, what becomes of a claim whose worker is gone; empty when its worker is not among them. */
once_bytes once_gone_says(const once_gone *gone, const once_entry *entry);

/* Outside of a transaction. Searches for workers that are gone, and ends the claims of those that are contained. When
 * the call fails, some claims may have ended. One call handles as many workers as are remembered: begin with *from = 0,
 * and call again until *from is 0. */
int once_take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *from,
                   once_error *err);

#endif
