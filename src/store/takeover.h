/* Taking over from workers that are gone.
 *
 * A worker that was killed leaves claims, and whoever comes next would wait for their leases. Where it is certain that
 * its process is gone (store/worker.h), and that everything it had begun for its messages has ended with it
 * (`contained`), these claims are ended: from then on they are leases that are over, and all that follows from that is
 * decided where it always is (core/entry.h): the attempt counts, it is unknown where that is to be held, dead when its
 * budget is spent, and the next claim fences the old one off.
 *
 * Which claims are whose is in their tokens. A claim that is somebody else's by the time it is to be ended has another
 * token, and stays. A commit of the dead one may still be on its way to a server and come after its claims were looked
 * for; so whoever was found to be gone is remembered, also when its record is dropped, and looked for again. */
#ifndef ONCE_STORE_TAKEOVER_H
#define ONCE_STORE_TAKEOVER_H

#include "store/worker.h"

#define ONCE_GONE_MAX 16 /* that are remembered: the last ones */

typedef struct once_gone_worker {
    uint64_t run;
    bool contained;
    size_t ended; /* claims, by the last once_take_over */
    char who[ONCE_WHO_MAX + 1];
} once_gone_worker;

typedef struct once_gone {
    once_gone_worker at[ONCE_GONE_MAX];
    size_t n; /* ever: the i-th is at i % ONCE_GONE_MAX */
} once_gone;

static inline size_t once_gone_count(const once_gone *gone)
{
    return gone->n < ONCE_GONE_MAX ? gone->n : ONCE_GONE_MAX;
}
/* Whose claim it is, if it is one of theirs; otherwise NULL. */
const once_gone_worker *once_gone_holder(const once_gone *gone, const once_entry *entry);

/* Reads who is gone, and changes nothing: for whoever looks. */
int once_gone_read(once_backend *store, once_bytes consumer, once_gone *out, once_error *err);
/* In words, what becomes of a claim whose worker is gone; empty where it is not known to be. */
once_bytes once_gone_says(const once_gone *gone, const once_entry *entry);

/* Outside of a transaction. Looks for workers that are gone, and ends the claims of those that are contained. When it
 * fails, some may have ended. It does as many workers at once as are remembered: begin with *from = 0, and call it
 * until it is 0 again. */
int once_take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *from,
                   once_error *err);

#endif
