/* External effects that are on their way: claimed, and not yet back with an outcome.
 *
 * Each handler has a number of slots; a claim is only asked for when one is free, so that no lease runs while a message
 * queues. A lease is kept by extending it well before its end. Where that does not succeed, the effect must end before
 * the lease does:
 *
 *   claimed |--- may start ---|
 *           |- extend after a third -|
 *           |------------------ must end after four fifths -------------------|          lease over
 *
 * Between a third and four fifths there is time for three tries to extend it, each with its reply and the pause before
 * the next one, which is at most a twentieth of the lease (ONCE_PAUSES_OF_LEASE):
 *
 *   3 (reply + lease / 20) <= lease (4/5 - 1/3)
 *
 * so that a lease must last 9.5 replies. A store in our process answers within 20 ms, a sync of its disk included; a
 * server within 100 ms, a wait for its disk, its replicas or its other clients included. Shorter leases than these are
 * refused.
 *
 * All measured from the moment before the claim was asked for, on the clock of the machine: the store cannot have
 * counted from an earlier one. This only decides when to be careful; who owns the message is decided by the store. */
#ifndef ONCE_CORE_FLIGHT_H
#define ONCE_CORE_FLIGHT_H

#include "core/item.h"

enum { ONCE_PAUSES_OF_LEASE = 20 };
enum { ONCE_LEASE_LEAST_HERE_MS = 200, ONCE_LEASE_LEAST_SERVER_MS = 1000 }; /* of an external effect */

typedef struct once_flight {
    const once_spec *spec;
    size_t slots;                    /* of all handlers together; 0: the pipeline has no external effects */
    uint32_t *used;                  /* by handler: claims of the open transaction included */
    once_item *first, *last;         /* departed, not back */
    size_t n, waiting;               /* how many, and how many of them were not given to the executor yet */
    int64_t extend_at_ms, end_at_ms; /* before these nobody needs to look */
    size_t alone_left; /* after an unclean end: so many callbacks run one at a time, so that one that crashes us does so
                          alone */
} once_flight;

/* The longest pause after a failure of the store, where the shortest lease that is held is `lease_ms` (ONCE_NEVER:
 * none) and the store has failed for `failing_for_ms`. A pause that is long against a lease would have a healthy effect
 * killed because a commit lost a race. After two leases there is nothing left to save: ONCE_NEVER, as long as you like.
 */
int64_t once_lease_pause_ms(int64_t lease_ms, int64_t failing_for_ms);

bool once_flight_init(once_flight *flight, const once_spec *spec); /* false: out of memory */
void once_flight_release(once_flight *flight);

uint32_t once_flight_free(const once_flight *flight, const once_handler_spec *handler); /* slots */
void once_flight_reserve(once_flight *flight, const once_item *item);
void once_flight_unreserve(once_flight *flight, const once_item *item);

/* Its claim is durable; it has its slot. */
void once_flight_depart(once_flight *flight, once_item *item, int64_t claimed_at_ms);
void once_flight_extended(once_flight *flight, once_item *item, int64_t claimed_at_ms);
void once_flight_lose(once_flight *flight, once_item *item); /* its claim is somebody else's: it must end now */
/* Its effect is over. It keeps its slot until its outcome is about to be settled (unreserve): so there are never more
 * attempts of a handler whose end a kill could hide than it has slots. */
void once_flight_back(once_flight *flight, once_item *item);

int64_t once_flight_shortest_ms(const once_flight *flight); /* lease of those that fly; ONCE_NEVER: none does */

/* Each fills `out` with up to `max` items and returns how many. */
size_t once_flight_starts(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_extends(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_ends(once_flight *flight, bool all, int64_t now_ms, once_item **out,
                        size_t max); /* must end now; each once */

#endif
