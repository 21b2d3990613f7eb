/* External effects that are on their way: claimed, and not yet back with an outcome.
 *
 * Each handler has a number of slots; a claim is only asked for when one is free, so that no lease runs while a message queues.
 * A lease is kept by extending it well before its end. Where that does not succeed, the effect must end before the lease does:
 *
 *   claimed |--- may start ---|
 *           |- extend after a third -|
 *           |------------------ must end after four fifths -------------------|          lease over
 *
 * All measured from the moment before the claim was asked for, on the clock of the machine: the store cannot have counted from
 * an earlier one. This only decides when to be careful; who owns the message is decided by the store. */
#ifndef ONCE_CORE_FLIGHT_H
#define ONCE_CORE_FLIGHT_H

#include "core/item.h"

typedef struct once_flight {
    const once_spec *spec;
    size_t slots;              /* of all handlers together; 0: the pipeline has no external effects */
    uint32_t *used;            /* by handler: claims of the open transaction included */
    once_item *first, *last;   /* departed, not back */
    size_t n, waiting;         /* how many, and how many of them were not given to the executor yet */
    int64_t extend_at_ms, end_at_ms; /* before these nobody needs to look */
    size_t alone_left; /* after an unclean end: so many callbacks run one at a time, so that one that crashes us does so alone */
} once_flight;

bool once_flight_init(once_flight *flight, const once_spec *spec); /* false: out of memory */
void once_flight_release(once_flight *flight);

uint32_t once_flight_free(const once_flight *flight, const once_handler_spec *handler); /* slots */
size_t once_flight_free_least(const once_flight *flight); /* over all handlers with external effects */
void once_flight_reserve(once_flight *flight, const once_item *item);
void once_flight_unreserve(once_flight *flight, const once_item *item);

/* Its claim is durable; it has its slot. */
void once_flight_depart(once_flight *flight, once_item *item, int64_t claimed_at_ms);
void once_flight_extended(once_flight *flight, once_item *item, int64_t claimed_at_ms);
void once_flight_lose(once_flight *flight, once_item *item); /* its claim is somebody else's: it must end now */
/* Its effect is over. It keeps its slot until its outcome is about to be settled (unreserve): so there are never more attempts of a
 * handler whose end a kill could hide than it has slots. */
void once_flight_back(once_flight *flight, once_item *item);

/* Each fills `out` with up to `max` items and returns how many. */
size_t once_flight_starts(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_extends(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_ends(once_flight *flight, bool all, int64_t now_ms, once_item **out, size_t max); /* must end now; each once */

#endif
