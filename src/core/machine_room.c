/* Room in the store: how much may wait there (spec->waiting_max). At the bound fetching stops, until a tenth of it is
 * free again; the messages that wait are worked on meanwhile.
 *
 * Only the store can tell how much waits, because other workers may work for the same consumer. Asking costs time: it
 * counts. So it is asked when this run has used a part of the room, when our own sums reach the bound or have room
 * again, and now and then because of other workers, less often the longer an answer takes. A run that adds nothing does
 * not ask, unless the answer may let it fetch. */
#include "core/machine_impl.h"

#include "core/plant.h"

#include "base/banned.h"

#define ASK_MS 5000       /* how often to ask because of other workers ... */
#define ASK_FULL_MS 1000  /* ... and when there is no room ... */
#define ASK_SHARE 50      /* ... but asking takes at most one part in so many of the time ... */
#define ASK_MOST_MS 30000 /* ... and is never put off longer than this: a slow answer may mean that we were stopped */
#define ROOM_PARTS 4 /* ask when one part in so many of the room is used, so that several workers do not overfill it */

static bool bounded(const once_machine *machine)
{
    return machine->spec->waiting_max.messages || machine->spec->waiting_max.bytes;
}

/* Messages wait in the store in normal operation, and not only after a failure. */
static bool fills_store(const once_machine *machine) { return machine->spec->inbox || machine->spec->order; }

static bool reaches(once_waiting_size size, once_waiting_size most)
{
    return (most.messages && size.messages >= most.messages) || (most.bytes && size.bytes >= most.bytes);
}

static uint64_t low(uint64_t most) { return most - most / 10 - (most < 10); }

/* Enough is free for fetching to go on. */
static bool has_room_again(once_waiting_size size, once_waiting_size most)
{
    return (!most.messages || size.messages <= low(most.messages)) && (!most.bytes || size.bytes <= low(most.bytes));
}

/* This run has used a part of the room that there was. */
static bool used_a_part(uint64_t added, uint64_t now, uint64_t most)
{
    const uint64_t before = now > added ? now - added : 0;
    return most && added >= (most > before ? most - before : 0) / ROOM_PARTS;
}

/* Messages whose handler has no free slot. If the other side is down, all of them will wait in the store. */
static uint64_t without_slot(const once_machine *machine)
{
    uint64_t n = 0;
    for (size_t i = 0; i < machine->streams.n; i++)
        if (machine->streams.at[i]) n += machine->streams.at[i]->full_n;
    return n;
}

/* With those, as much waits as may, although the store itself has room. */
static bool slots_fill_it(const once_machine *machine)
{
    const uint64_t there = machine->room.there.messages, most = machine->spec->waiting_max.messages;
    if (!most || there >= most || there + machine->ready.n < most) return false; /* the usual case costs nothing */
    return there + without_slot(machine) >= most;
}

/* How long we may not fetch depends on what else waits in the store, and other workers may have worked on that since we
 * asked. */
static bool held_by_slots(const once_machine *machine)
{
    return machine->room.there.messages && slots_fill_it(machine);
}

bool once__machine_must_count(const once_machine *machine, int64_t now_ms)
{
    const machine_room *room = &machine->room;
    const once_waiting_size most = machine->spec->waiting_max;
    if (!bounded(machine) || machine->source.at_end) return false;
    if (!room->known) return fills_store(machine) || room->added.messages;
    if (room->full)
        return now_ms >= room->at_ms || has_room_again(room->there, most) || room->added.messages >= machine->batch_max;
    if (room->added.messages == 0) return now_ms >= room->at_ms && held_by_slots(machine);
    return reaches(room->there, most) || now_ms >= room->at_ms ||
           (room->added.messages >= machine->batch_max &&
            (used_a_part(room->added.messages, room->there.messages, most.messages) ||
             used_a_part(room->added.bytes, room->there.bytes, most.bytes)));
}

/* When to ask the store if nothing happens before. */
int64_t once__machine_count_at_ms(const once_machine *machine)
{
    const bool asks = bounded(machine) && machine->room.known && !machine->source.at_end;
    return asks && (machine->room.full || machine->room.added.messages || held_by_slots(machine)) ? machine->room.at_ms
                                                                                                  : ONCE_NEVER;
}

/* This run has nothing to do. With nothing in flight, what is parked stands behind what cannot be written. */
static bool is_idle(const once_machine *machine)
{
    return machine->ready.n == 0 && machine->outside.flight.n == 0 &&
           (machine->at[ONCE_AT_PARKED] == 0 || machine->outside.unwritten.n);
}

once_action *once__machine_begin_count(once_machine *machine, int64_t now_ms)
{
    machine->room.asked_ms = now_ms;
    once_action *count = once__machine_emit(machine, ONCE_ACT_COUNT, 0);
    count->due = machine->room.full && is_idle(machine);
    return count;
}

/* The store is full, and no waiting message can go on: each stands behind a message of its lane that is missing, or
 * that an operator must decide about. If some wait without their bodies (their worker died), only the source can
 * deliver them again, so fetching goes on. Otherwise an operator must act. A run with a finite source gives up when its
 * patience is over, as with a full disk; others wait. */
static void stuck(once_machine *machine, const once_action *action, int64_t now_ms)
{
    machine_room *room = &machine->room;
    once_error err;
    room->only_source = action->waiting > action->size.messages;
    if (room->only_source) return;
    if (!room->stuck) room->stuck_ms = now_ms;
    room->stuck = true;
    if (!(machine->o.source & ONCE_SOURCE_FINITE) || now_ms - room->stuck_ms < machine->spec->patience_ms) return;
    const int rc = once_fail(&err, ONCE_E_FULL,
                             "as many messages wait in the store as waiting_max allows (%llu), and none can go on "
                             "until an operator acts; 'once list --waiting' shows what they wait for",
                             (unsigned long long)room->there.messages);
    room->gave_up = machine->end.status == ONCE_OK;
    once__machine_give_up(machine, rc, &err);
}

void once__machine_counted(once_machine *machine, const once_action *action, int64_t now_ms)
{
    machine_room *room = &machine->room;
    const int64_t took_ms = now_ms - room->asked_ms;
    const once_waiting_size most = machine->spec->waiting_max;
    room->known = true;
    room->there = action->size;
    room->added = (once_waiting_size){0};
    room->full = room->full ? !has_room_again(room->there, most) : reaches(room->there, most);
    room->only_source = false;
    const bool idle = room->full && action->due && is_idle(machine);
    const bool is_stuck = idle && action->wait_ms == ONCE_NEVER;
    room->stuck &= is_stuck;
    if (is_stuck) stuck(machine, action, now_ms);
    else if (idle) (void)once__machine_waits_in_vain(machine, action, now_ms);
    const int64_t least_ms = room->full ? ASK_FULL_MS : ASK_MS, share_ms = took_ms * ASK_SHARE;
    room->at_ms = now_ms + (share_ms < least_ms ? least_ms : share_ms > ASK_MOST_MS ? ASK_MOST_MS : share_ms);
}

/* How many messages may be fetched. With an inbox all of them will wait in the store, and so will those in memory. */
size_t once__machine_room_to_fetch(const once_machine *machine)
{
    const once_waiting_size there = machine->room.there, most = machine->spec->waiting_max;
    if (!bounded(machine) || ONCE_PLANTED(bound_ignored)) return machine->batch_max;
    /* What comes may be the message that was missing: the store is asked before more comes. */
    if (machine->room.only_source && machine->room.added.messages == 0) return machine->batch_max;
    if (machine->room.full || (!machine->room.known && fills_store(machine)) || reaches(there, most)) return 0;
    if (slots_fill_it(machine)) return 0;
    if (!machine->spec->inbox || !most.messages) return machine->batch_max;
    const uint64_t room = most.messages - there.messages,
                   coming = machine->at[ONCE_AT_READY] + machine->at[ONCE_AT_PARKED] + machine->at[ONCE_AT_WORK];
    if (coming >= room) return 0;
    return room - coming < machine->batch_max ? (size_t)(room - coming) : machine->batch_max;
}

static void add(once_waiting_size *to, const once_item *item)
{
    to->messages++;
    to->bytes += item->message.body.len;
}

/* Its transaction is committed: counts whether it waits in the store now. */
void once__machine_note_waiting(once_machine *machine, const once_item *item, bool waits)
{
    machine_room *room = &machine->room;
    if (!bounded(machine)) return;
    const bool waited = !item->tag && !item->decision.asks; /* an unknown does not count as waiting */
    if (!waited && waits) {
        add(&room->there, item);
        add(&room->added, item);
    } else if (waited && !waits) {
        const uint64_t bytes = item->message.body.len;
        room->there.messages -= room->there.messages > 0;
        room->there.bytes -= bytes < room->there.bytes ? bytes : room->there.bytes;
    }
}

bool once_machine_full(const once_machine *machine, once_waiting_size *out, uint64_t *n_without_slot)
{
    const bool fetches = !machine->source.at_end && !machine->end.stopping;
    const bool full = machine->room.full || (fetches && slots_fill_it(machine));
    *out = machine->room.there;
    *n_without_slot = full ? without_slot(machine) : 0;
    return full;
}

bool once_machine_ended_at_bound(const once_machine *machine)
{
    return (machine->room.gave_up || machine->gate.gave_up) && !machine->store.gone && machine->end.unsettled == 0;
}
