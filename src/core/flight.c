/* Slots and leases of external effects (core/flight.h). */
#include "core/flight.h"

#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

bool once_flight_init(once_flight *flight, const once_spec *spec)
{
    *flight = (once_flight){.spec = spec, .extend_at_ms = ONCE_NEVER, .end_at_ms = ONCE_NEVER};
    for (size_t i = 0; i < spec->n_handlers; i++) flight->slots += spec->handlers[i].slots;
    flight->used = calloc(spec->n_handlers + 1, sizeof *flight->used);
    return flight->used != NULL;
}

void once_flight_release(once_flight *flight)
{
    free(flight->used);
    *flight = (once_flight){0};
}

/* --- slots --- */

static uint32_t *used_by(const once_flight *flight, const once_handler_spec *handler)
{
    assert(handler >= flight->spec->handlers && handler < flight->spec->handlers + flight->spec->n_handlers);
    return &flight->used[handler - flight->spec->handlers];
}

uint32_t once_flight_free(const once_flight *flight, const once_handler_spec *handler)
{
    const uint32_t used = *used_by(flight, handler);
    const bool alone = flight->alone_left && !(handler->bits & ONCE_EFFECT_ISOLATED); /* it could crash this process */
    const uint32_t slots = alone ? 1 : handler->slots;
    return used < slots ? slots - used : 0;
}

size_t once_room_of(const once_room *room, const once_handler_spec *handler)
{
    const once_gate *gate = once_gate_of(room->gates, handler);
    const size_t through = ONCE_PLANTED(held_taken) ? SIZE_MAX : once_gate_room(gate, room->now_ms);
    if (!once_handler_external(handler)) return through;
    const size_t free = once_flight_free(room->flight, handler);
    return through < free ? through : free;
}

void once_flight_reserve(once_flight *flight, const once_item *item) { ++*used_by(flight, item->handler); }

void once_flight_unreserve(once_flight *flight, const once_item *item)
{
    assert(*used_by(flight, item->handler) > 0);
    --*used_by(flight, item->handler);
}

/* --- leases --- */

static int64_t extend_at(const once_item *item)
{
    return item->unclaimed ? ONCE_NEVER : item->claimed_at_ms + item->request.lease_ms / 3;
}

static bool may_start(const once_item *item, int64_t now_ms)
{
    return item->unclaimed || now_ms <= item->claimed_at_ms + item->request.lease_ms / 2;
}

static int64_t end_at(const once_item *item)
{
    if (item->told_to_end || !item->given || item->unclaimed) return ONCE_NEVER;
    return item->lost ? INT64_MIN : item->claimed_at_ms + item->request.lease_ms / 5 * 4;
}

int64_t once_lease_pause_ms(int64_t lease_ms, int64_t failing_for_ms)
{
    assert(lease_ms > 0);
    if (lease_ms == ONCE_NEVER || failing_for_ms / 2 > lease_ms) return ONCE_NEVER;
    return lease_ms < ONCE_PAUSES_OF_LEASE ? 1 : lease_ms / ONCE_PAUSES_OF_LEASE;
}

int64_t once_flight_shortest_ms(const once_flight *flight)
{
    int64_t shortest_ms = ONCE_NEVER;
    for (const once_item *item = flight->first; item; item = item->next)
        if (!item->unclaimed && item->request.lease_ms < shortest_ms) shortest_ms = item->request.lease_ms;
    return shortest_ms;
}

static void sooner(int64_t *at_ms, int64_t other_ms)
{
    if (other_ms < *at_ms) *at_ms = other_ms;
}

static void look_again(once_flight *flight, const once_item *item)
{
    if (!item->lost) sooner(&flight->extend_at_ms, extend_at(item));
    sooner(&flight->end_at_ms, end_at(item));
}

void once_flight_add(once_flight *flight, once_item *item, int64_t claimed_at_ms)
{
    item->given = item->told_to_end = item->lost = false;
    item->started = item->maybe_done = false;
    item->run_failure = ONCE_OK;
    item->delay_ms = -1;
    item->claimed_at_ms = claimed_at_ms;
    item->prev = flight->last;
    item->next = NULL;
    if (flight->last) flight->last->next = item;
    else flight->first = item;
    if (!flight->to_give) flight->to_give = item;
    flight->last = item;
    flight->n++;
    flight->waiting++;
    look_again(flight, item);
}

void once_flight_extended(once_flight *flight, once_item *item, int64_t claimed_at_ms)
{
    item->claimed_at_ms = claimed_at_ms;
    look_again(flight, item);
}

void once_flight_lose(once_flight *flight, once_item *item)
{
    item->lost = true;
    look_again(flight, item);
}

void once_flight_remove(once_flight *flight, once_item *item)
{
    assert(item->prev || flight->first == item);
    if (flight->to_give == item) flight->to_give = item->next;
    if (item->prev) item->prev->next = item->next;
    else flight->first = item->next;
    if (item->next) item->next->prev = item->prev;
    else flight->last = item->prev;
    item->prev = item->next = NULL;
    flight->n--;
    if (!item->given) flight->waiting--;
    if (flight->alone_left) flight->alone_left--;
    if (flight->n == 0) flight->extend_at_ms = flight->end_at_ms = ONCE_NEVER;
}

size_t once_flight_starts(once_flight *flight, int64_t now_ms, once_item **out, size_t max)
{
    size_t n = 0;
    while (flight->to_give && flight->to_give->given) flight->to_give = flight->to_give->next;
    for (once_item *item = flight->to_give; item && n < max && flight->waiting; item = item->next) {
        if (item->given || item->lost || !may_start(item, now_ms))
            continue; /* a lease that has run for long is extended first */
        item->given = true;
        flight->waiting--;
        look_again(flight, item);
        out[n++] = item;
    }
    return n;
}

size_t once_flight_extends(once_flight *flight, int64_t now_ms, once_item **out, size_t max)
{
    size_t n = 0;
    if (now_ms < flight->extend_at_ms) return 0;
    int64_t next_ms = ONCE_NEVER;
    for (once_item *item = flight->first; item; item = item->next) {
        if (item->lost || item->unclaimed) continue;
        if (extend_at(item) <= now_ms && n < max) out[n++] = item;
        else sooner(&next_ms, extend_at(item));
    }
    flight->extend_at_ms = next_ms; /* of those that are asked for now, once_flight_extended tells */
    return n;
}

size_t once_flight_ends(once_flight *flight, bool all, int64_t now_ms, once_item **out, size_t max)
{
    size_t n = 0;
    if (now_ms < flight->end_at_ms && !all) return 0;
    int64_t next_ms = ONCE_NEVER;
    for (once_item *item = flight->first; item; item = item->next) {
        if (item->told_to_end || !item->given) continue;
        if ((all || end_at(item) <= now_ms) && n < max) {
            item->told_to_end = true;
            out[n++] = item;
        } else {
            sooner(&next_ms, end_at(item));
        }
    }
    flight->end_at_ms = next_ms;
    return n;
}
