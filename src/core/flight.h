/* External effects in flight: claimed, or allowed to run without a claim (core/entry.h), and not yet back with an
 * outcome. What follows about leases is for those that were claimed; the others have none.
 *
 * Each handler has a number of slots. The machine asks for a claim only when a slot is free, so that no lease runs
 * while a message queues. A lease is extended well before its end. Where that fails, the effect must end before the
 * lease does:
 *
 *   claimed |--- may start ---|
 *           |- extend after a third -|
 *           |------------------ must end after four fifths -------------------|          lease over
 *
 * Between a third and four fifths there is time for three tries to extend it, each with its reply and a pause before
 * the next one. A pause is at most a twentieth of the lease (ONCE_PAUSES_OF_LEASE):
 *
 *   3 (reply + lease / 20) <= lease (4/5 - 1/3)
 *
 * So a lease must last at least 9.5 replies. A store in our process answers within 20 ms, including the sync of its
 * disk. A server answers within 100 ms, including waits for its disk, its replicas and its other clients. Shorter
 * leases than follow from this are refused.
 *
 * All times count from the moment before the claim was asked for, on the clock of the machine; the store cannot have
 * counted from an earlier one. They only decide when to be careful; the store decides who owns the message.
 *
 * Invariants: `used` of a handler counts the items that have one of its slots, from the claim until their outcome is
 * about to be settled. The list has the items whose place is FLIGHT. `waiting` of them were not given to the executor,
 * and none of these is before `to_give`.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_FLIGHT_H
#define ONCE_CORE_FLIGHT_H

#include "core/gate.h"
#include "core/item.h"

enum { ONCE_PAUSES_OF_LEASE = 20 };
/* The shortest lease of an external effect: with a store in our process, and with a server. */
enum { ONCE_LEASE_LEAST_HERE_MS = 200, ONCE_LEASE_LEAST_SERVER_MS = 1000 };

typedef struct once_flight {
    const once_spec *spec;
    size_t slots;                    /* of all handlers together; 0: the pipeline has no external effects */
    uint32_t *used;                  /* slots in use, by handler; claims of the open transaction included */
    once_item *first, *last;         /* the items in flight */
    size_t n, waiting;               /* how many; how many of them were not given to the executor yet */
    once_item *to_give;              /* all items before it were given to the executor; NULL: all */
    int64_t extend_at_ms, end_at_ms; /* nothing to extend or to end before these times */
    size_t alone_left; /* after an unclean end: so many more callbacks run one at a time, so that the one that crashes
                        * the process is known */
} once_flight;

/* The longest pause after a failure of the store, when the shortest lease in use is `lease_ms` (ONCE_NEVER: none) and
 * the store has been failing for `failing_for_ms`. With a pause that is long against a lease, a healthy effect would be
 * killed because one commit lost a race. After two leases there is nothing left to save: ONCE_NEVER, any pause. */
int64_t once_lease_pause_ms(int64_t lease_ms, int64_t failing_for_ms);

bool once_flight_init(once_flight *flight, const once_spec *spec); /* false: out of memory */
void once_flight_release(once_flight *flight);

/* Free slots of a handler. */
uint32_t once_flight_free(const once_flight *flight, const once_handler_spec *handler);

/* What bounds how many messages may begin now. */
typedef struct once_room {
    const once_flight *flight;
    const once_gates *gates;
    int64_t now_ms;
} once_room;

/* How many messages of a handler may begin now: as many as it has free slots and as its gate lets through; SIZE_MAX:
 * any number. */
size_t once_room_of(const once_room *room, const once_handler_spec *handler);
/* The item takes, or gives back, a slot of its handler. */
void once_flight_reserve(once_flight *flight, const once_item *item);
void once_flight_unreserve(once_flight *flight, const once_item *item);

/* The claim is durable, or it needs none, and the item has its slot: the effect may start. */
void once_flight_add(once_flight *flight, once_item *item, int64_t claimed_at_ms);
void once_flight_extended(once_flight *flight, once_item *item, int64_t claimed_at_ms);
/* Another worker has its claim: the effect must end now. */
void once_flight_lose(once_flight *flight, once_item *item);
/* Its effect ended. The item keeps its slot until its outcome is about to be settled (unreserve). So if the process is
 * killed, never more attempts of a handler are without a reported outcome than it has slots; natural effects, of which
 * nothing is reported, apart. */
void once_flight_remove(once_flight *flight, once_item *item);

/* The shortest lease in flight; ONCE_NEVER: nothing is in flight. */
int64_t once_flight_shortest_ms(const once_flight *flight);

/* Which effects may start, whose leases are to be extended, and which effects must end now (each is named once; `all`:
 * all of them). Each fills `out` with up to `max` items and returns how many. */
size_t once_flight_starts(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_extends(once_flight *flight, int64_t now_ms, once_item **out, size_t max);
size_t once_flight_ends(once_flight *flight, bool all, int64_t now_ms, once_item **out, size_t max);

#endif
