/* The work: the messages of one transaction. Which messages may be in it, which wait for each other inside it (equal
 * keys and lanes, round by round), and how it is begun, shortened and dropped. */
#include "core/machine_impl.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"
#include "core/print.h"

#include "base/banned.h"

#define LOOK_AHEAD 64 /* messages beyond the free slots that a work may have: duplicates need no slot */
#define LOCKS_MAX 256 /* names that one transaction may lock; a server has room for a few thousand */
#define UNASKED 16    /* works after one in which the store could not tell of any key that it has no entry */

once_action *once__machine_emit(once_machine *machine, once_action_kind kind, size_t n)
{
    assert(!machine->store.out && n <= machine->work.size + machine->batch_max);
    machine->store.action = (once_action){.kind = kind, .items = machine->work.list, .n = n};
    machine->store.out = true;
    return &machine->store.action;
}

/* Lists the items of the round at a stage. `held`: only those that were claimed durably before, only others, or with -1
 * all. */
size_t once__machine_gather(once_machine *machine, once_stage stage, int held)
{
    size_t n = 0;
    for (size_t i = 0; i < machine->work.round_n; i++) {
        once_item *item = machine->work.round[i];
        if (item->stage == stage && (held < 0 || once__item_has_claim(item) == held)) machine->work.list[n++] = item;
    }
    return n;
}

/* The table is too large to be zeroed for a work of a few items. */
static void empty_marks(once_machine *machine) { machine->work.marks_turn++; }

static bool is_marked(const once_machine *machine, const machine_mark *mark)
{
    return mark->turn == machine->work.marks_turn;
}

/* The mark of the id, or the free one where it would be. */
static machine_mark *mark_of(const once_machine *machine, once_hash id)
{
    size_t at = id.a & (machine->work.marks_size - 1);
    while (is_marked(machine, &machine->work.marks[at]) && !once_hash_equal(machine->work.marks[at].id, id))
        at = (at + 1) & (machine->work.marks_size - 1);
    return &machine->work.marks[at];
}

/* The mark of this item will be needed soon: it may not be in the caches of the CPU. */
static void expect_mark(const once_machine *machine, const once_item *item)
{
    __builtin_prefetch(&machine->work.marks[item->request.id.a & (machine->work.marks_size - 1)]);
}

/* Makes `item` the last one with this id; returns the one that was, or NULL. */
static once_item *mark_last(once_machine *machine, once_hash id, once_item *item)
{
    machine_mark *mark = mark_of(machine, id);
    once_item *before = is_marked(machine, mark) ? mark->last : NULL;
    *mark = (machine_mark){id, item, machine->work.marks_turn};
    return before;
}

/* Whether a message of the source is only accepted, and worked on from the store:
 *   - with an inbox, all of them;
 *   - after a stop, if its source will not deliver it again; and if its delivery cannot be extended again;
 *   - while its handler is held up (core/gate.h), and what its rate leaves waiting for long;
 *   - a natural message of a lane whose claim would be durable. Once it is done it leaves no entry, so the broker need
 *     not deliver it again; and a claim without a body would then block its lane for good. */
static bool through_store(const once_machine *machine, const once_item *item)
{
    if (!item->tag || once_hash_is_zero(item->request.id)) return false;
    const bool durable_claim = once__item_is_external(item) || machine->caution.look;
    const bool begun = once__item_is_begun(item);
    if (((machine->end.stopping && machine->o.accepts_at_stop) || item->to_store) && !begun) return true;
    const bool held_up = item->crowded || once__machine_is_held(machine, item);
    if (held_up && !begun && !machine->end.stopping) return true;
    return machine->spec->inbox ||
           (item->request.natural && durable_claim && !once_hash_is_zero(item->request.lane.id));
}

/* Whether its effect begins without a claim. */
static bool runs_unclaimed(const once_machine *machine, const once_item *item)
{
    return item->tag && item->input && item->request.natural && !item->request.hold &&
           once_handler_unclaimed(item->handler) && once_hash_is_zero(item->request.lane.id) &&
           machine->outside.claims_left == 0;
}

/* The stage of an item whose effect outside has ended. If it had no claim, a failure is claimed and settled now. */
static once_stage stage_of_returned(const once_item *item)
{
    if (item->unclaimed) return once_item_leaves_nothing(item) ? ONCE_STAGE_SETTLE : ONCE_STAGE_CLAIM;
    if (!once_item_has_then(item)) return ONCE_STAGE_SETTLE;
    if (ONCE_PLANTED(then_only_done) && item->came_to != ONCE_DONE) return ONCE_STAGE_SETTLE;
    return ONCE_PLANTED(then_unfenced) ? ONCE_STAGE_RUN : ONCE_STAGE_CLAIM;
}

/* Puts all items back to the start of the transaction, and finds which wait for each other. */
void once__machine_arrange(once_machine *machine)
{
    machine->work.round_n = machine->work.next_round_n = 0;
    machine->work.had_lanes = false;
    memset(machine->work.admitted, 0, machine->spec->n_handlers * sizeof *machine->work.admitted);
    empty_marks(machine);
    once_gates_begin_pass(&machine->gate.gates);
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        const bool keyed = !once_hash_is_zero(item->request.id);
        if (i + 2 * EXPECTED < machine->work.n) once_item_expect(machine->work.items[i + 2 * EXPECTED]);
        if (i + EXPECTED < machine->work.n) expect_mark(machine, machine->work.items[i + EXPECTED]);
        if (item->returned) { /* no item of the work waits for it: those are parked until it is over */
            if (once_item_has_then(item) || item->unclaimed) item->run_failure = ONCE_OK;
            if (once_item_has_then(item) || item->unclaimed)
                item->outcome = item->came_to, item->result = item->came_with, item->failure = item->came_why;
            item->stage = stage_of_returned(item);
            item->request.unclaimed = false;
            if (!once_item_leaves_nothing(item)) once_request_print(&item->request, machine->o.secret);
            item->next_of_key = item->next_of_lane = NULL;
            machine->work.had_lanes |= !once_hash_is_zero(item->request.lane.id);
            machine->work.next_round[machine->work.next_round_n++] = item;
            continue;
        }
        item->stage = item->skipped                  ? ONCE_STAGE_OVER
                      : !keyed                       ? ONCE_STAGE_BURY
                      : through_store(machine, item) ? ONCE_STAGE_ACCEPT
                                                     : ONCE_STAGE_CLAIM;
        item->request.unclaimed = runs_unclaimed(machine, item);
        if (item->stage != ONCE_STAGE_CLAIM || !item->request.unclaimed)
            once_request_print(&item->request, machine->o.secret);
        item->decision = (once_decision){.answer = ONCE_ANSWER_DEAD};
        if (ONCE_PLANTED(new_tokens) && item->commit_unknown && !item->held) item->request.token.a += 2;
        item->result = item->failure = (once_bytes){0};
        item->started = false;
        item->run_failure = ONCE_OK;
        once__item_forget_times(item);
        /* After a commit whose result is unknown, the entry may no longer show that it replaced another message. */
        item->replaces = item->replaces && item->commit_unknown;
        item->blockers = 0;
        item->next_of_key = item->next_of_lane = NULL;
        if (!keyed) continue;
        once_item *leader = mark_last(machine, item->request.id, item);
        if (leader) {
            leader->next_of_key = item;
            item->blockers++;
        }
        if (!once_hash_is_zero(item->request.lane.id)) {
            machine->work.had_lanes = true;
            leader = mark_last(machine, item->request.lane.id, item);
            if (leader) {
                leader->next_of_lane = item;
                item->blockers++;
            }
        }
        if (item->blockers == 0) machine->work.next_round[machine->work.next_round_n++] = item;
    }
}

static void unblock(once_machine *machine, once_item *follower)
{
    if (follower && --follower->blockers == 0) machine->work.next_round[machine->work.next_round_n++] = follower;
}

/* Adds the names of the item to the set, if there is room. The set has twice as many places as it may have names. */
static bool locks_fit(uint64_t *set, size_t *n, const once_item *item)
{
    enum { SET = 2 * LOCKS_MAX };
    /* Names that are already in the set are counted twice here; a batch need not be as large as possible. */
    if (*n + item->n_locks > LOCKS_MAX) return false;
    for (size_t i = 0; i < item->n_locks; i++) {
        const uint64_t lock = item->locks[i] | 1;
        size_t at = (lock >> 8) % SET;
        while (set[at] && set[at] != lock) at = (at + 1) % SET;
        *n += !set[at];
        set[at] = lock;
    }
    return true;
}

/* The last items of the work go back to the front of the queue; `keep` stay. */
void once__machine_shorten_work(once_machine *machine, size_t keep)
{
    while (machine->work.n > keep) once__machine_requeue(machine, machine->work.items[--machine->work.n]);
}

static bool has_locks(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].locks.n) return true;
    return false;
}

/* Shortens the work to as many items as one transaction can lock the names of. */
void once__machine_bound_locks(once_machine *machine)
{
    if (!has_locks(machine->spec)) return;
    uint64_t set[2 * LOCKS_MAX] = {0};
    size_t locks = 0, fit = 0;
    while (fit < machine->work.n && locks_fit(set, &locks, machine->work.items[fit])) fit++;
    once__machine_shorten_work(machine, fit);
}

void once__machine_start_work(once_machine *machine)
{
    const uint64_t random = once_env_random_u64(machine->o.env);
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (!item->held && !item->commit_unknown && !item->returned)
            item->request.token = once_token_of_run(machine->o.run, random, i);
    }
    machine->work.next = NEXT_BEGIN;
}

/* The transaction was rolled back: nothing of it has begun, and the slots of what it had claimed for effects outside
 * are free again. */
void once__machine_unreserve_work(once_machine *machine)
{
    once_gates_begin_pass(&machine->gate.gates);
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->stage == ONCE_STAGE_OUTSIDE) {
            once_flight_unreserve(&machine->outside.flight, machine->work.items[i]);
            once__machine_begins_not(machine, machine->work.items[i]);
            machine->work.items[i]->stage = ONCE_STAGE_CLAIM;
        }
}

/* The store was given up: the outcome cannot be settled. */
void once__machine_leave_unsettled(once_machine *machine, once_item *item)
{
    const bool tried = item->given && !item->decision.asks;
    machine->end.unsettled += once__item_is_external(item) && tried;
    machine->counts.attempts += item->returned && once__item_has_tried(item);
    once__machine_leave_key_queue(machine, item);
    once__machine_move(machine, item, ONCE_AT_OVER);
}

/* Forgets the work. Messages of the source were not acked; messages that were taken come back when their leases end. */
void once__machine_drop_work(once_machine *machine)
{
    once__machine_unreserve_work(machine);
    for (size_t i = 0; i < machine->work.n; i++) once__machine_leave_unsettled(machine, machine->work.items[i]);
    machine->work.n = 0;
    machine->work.next = NEXT_CHOOSE;
}

/* The transaction that found them was rolled back, so they still wait in the store. If the result of its commit is
 * unknown, they stay and are claimed again. */
void once__machine_drop_found(once_machine *machine)
{
    size_t kept = 0;
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (item->found && !item->commit_unknown) once__machine_move(machine, item, ONCE_AT_OVER);
        else machine->work.items[kept++] = item;
    }
    machine->work.n = kept;
    machine->work.runs_alone = NULL;
}

/* Its handler has slots, or a rate. */
static bool is_bounded(const once_item *item)
{
    return item->handler && (once_handler_external(item->handler) || item->handler->gate.rate.n);
}

/* Whether it can only be claimed when its handler has room: a free slot, and an open gate. */
static bool needs_room(const once_machine *machine, const once_item *item)
{
    return !once_hash_is_zero(item->request.id) && is_bounded(item) && !item->held && !item->returned &&
           !through_store(machine, item);
}

static size_t room_of(const once_machine *machine, const once_item *item, int64_t now_ms)
{
    const once_room room = once__machine_room(machine, now_ms);
    return once_room_of(&room, item->handler);
}

static bool must_wait(const once_machine *machine, const once_item *item)
{
    if (once_hash_is_zero(item->request.id) || machine->spec->inbox) return false;
    if (item->to_store && !once__item_is_begun(item)) return false; /* it is only accepted */
    return !item->joined && once_key_queue_in_use(&machine->key_queue, item) && !ONCE_PLANTED(flight_forgotten);
}

static bool may_go(const once_machine *machine, const once_item *item, int64_t now_ms)
{
    return !needs_room(machine, item) || room_of(machine, item, now_ms) || must_wait(machine, item);
}

/* With one handler, all messages that have a key need the same room: nobody waits in a list of its own for one. */
static bool has_one_handler(const once_machine *machine) { return machine->spec->n_handlers == 1; }

/* How many items of the stream could go into a work. An item counts unless it is known to need room that is not there.
 */
size_t once__machine_can_go(const once_machine *machine, const once_stream *stream, int64_t now_ms)
{
    const once_item *first = stream->ready.first;
    const bool held_up = first && has_one_handler(machine) && !may_go(machine, first, now_ms);
    size_t n = held_up ? stream->ready_keyless : stream->ready.n;
    for (size_t h = 0; stream->full_n && h < machine->spec->n_handlers; h++)
        if (stream->full[h].first && may_go(machine, stream->full[h].first, now_ms)) n += stream->full[h].n;
    return n;
}

bool once__machine_ready_can_go(const once_machine *machine, int64_t now_ms)
{
    if (machine->ready.n == 0 || machine->end.stopping) return false;
    if (machine->ready.taken.first && may_go(machine, machine->ready.taken.first, now_ms)) return true;
    for (uint32_t i = 0; i < machine->streams.n; i++)
        if (machine->streams.at[i] && once__machine_can_go(machine, machine->streams.at[i], now_ms)) return true;
    return false;
}

/* The work while it is filled from the queues. work.admitted counts the slots it needs, by handler; work.marks has the
 * keys and lanes in it. */
typedef struct filling {
    size_t most; /* the most items that it may have */
    bool closed; /* no other item may join */
    int64_t now_ms;
} filling;

static bool is_filled(const once_machine *machine, const filling *f) { return f->closed || machine->work.n >= f->most; }

/* Whether the item may join. More are admitted than there are free slots, because duplicates need none. */
static bool admit_to_work(once_machine *machine, const once_item *item, const filling *f)
{
    if (!needs_room(machine, item)) return true;
    uint32_t *admitted = &machine->work.admitted[item->handler - machine->spec->handlers];
    const size_t room = room_of(machine, item, f->now_ms);
    if (room == 0 || *admitted >= room + LOOK_AHEAD) return false;
    ++*admitted;
    return true;
}

/* Only wait_for_slot needs these marks. */
static void mark_in_work(once_machine *machine, once_item *item)
{
    if (!machine->gate.has_queues || has_one_handler(machine) || once_hash_is_zero(item->request.id)) return;
    (void)mark_last(machine, item->request.id, item);
    if (!once_hash_is_zero(item->request.lane.id)) (void)mark_last(machine, item->request.lane.id, item);
}

static bool is_in_work(const once_machine *machine, once_hash id) { return is_marked(machine, mark_of(machine, id)); }

/* Its handler has no room: it lets others of its stream go first, except those with its key or lane, which stand
 * behind it from now on. False: it cannot, because one of those is in the work already, before it. */
static bool wait_for_slot(once_machine *machine, once_item *item)
{
    const once_hash lane = item->request.lane.id;
    if (!item->from || has_one_handler(machine)) return false;
    if (ONCE_PLANTED(flight_forgotten)) return false; /* it might stand behind one in flight */
    if (is_in_work(machine, item->request.id) || (!once_hash_is_zero(lane) && is_in_work(machine, lane))) return false;
    if (!item->joined) once_key_queue_join(&machine->key_queue, item);
    assert(item->waits_for == 0);
    once__machine_ready_take(machine, item);
    item->full = true;
    once__machine_ready_put(machine, item, true);
    return true;
}

/* As many of its stream as begin within a second wait for the rate of its handler here. More would hold up the acks,
 * and in the end the fetching, of all handlers. */
static bool is_crowded(const once_machine *machine, const once_item *item)
{
    const once_rate *rate = &item->handler->gate.rate;
    if (rate->n == 0 || !item->from || has_one_handler(machine) || once__item_is_begun(item)) return false;
    const uint64_t second = 1000 * (uint64_t)rate->n / (uint64_t)rate->per_ms;
    return item->from->full[item->handler - machine->spec->handlers].n >=
           (second < machine->batch_max ? second : machine->batch_max);
}

static void move_to_work(once_machine *machine, once_item *item)
{
    once__machine_move(machine, item, ONCE_AT_WORK);
    mark_in_work(machine, item);
}

/* Those behind `item` that have no key, which need no slot. Returns how many went into the work. */
static size_t let_keyless_pass(once_machine *machine, once_item *item, const filling *f)
{
    const once_stream *stream = item->from;
    size_t n = 0;
    for (once_item *next; item && stream->ready_keyless && !is_filled(machine, f); item = next) {
        next = item->next;
        if (!once_hash_is_zero(item->request.id)) continue;
        move_to_work(machine, item);
        n++;
    }
    return n;
}

/* Moves up to `share` items of a queue to the end of the work, and parks those that must wait for one in flight.
 * Returns how many went into the work. */
static size_t fill_from(once_machine *machine, const once_queue *queue, size_t share, filling *f)
{
    size_t n = 0;
    for (once_item *first; n < share && !is_filled(machine, f) && (first = queue->first);) {
        if (first->apart && machine->work.n) break;
        if (first->next) once_key_queue_expect(&machine->key_queue, first->next);
        if (must_wait(machine, first)) {
            once__machine_move(machine, first, ONCE_AT_PARKED);
            continue;
        }
        if (!admit_to_work(machine, first, f)) {
            first->crowded = !first->full && is_crowded(machine, first);
            if (first->crowded || (!first->full && wait_for_slot(machine, first))) continue;
            if (first->from && !first->full) n += let_keyless_pass(machine, first, f);
            break;
        }
        f->closed = first->apart;
        move_to_work(machine, first);
        n++;
    }
    return n;
}

/* Items that waited for a slot go first: they came before the others of their handler. */
static size_t fill_from_stream(once_machine *machine, const once_stream *stream, size_t share, filling *f)
{
    size_t n = 0;
    for (size_t h = 0; stream->full_n && h < machine->spec->n_handlers; h++)
        n += fill_from(machine, &stream->full[h], share - n, f);
    return n + fill_from(machine, &stream->ready, share - n, f);
}

/* Each stream has its turn and its share; a stream that cannot go is passed over. Exception: when it is the turn of a
 * message that must be alone in its work, the work is not filled further, so that this message comes next. */
static void fill_from_streams(once_machine *machine, filling *f)
{
    const machine_streams *streams = &machine->streams;
    size_t active = 0, went;
    for (uint32_t i = 0; i < streams->n; i++) active += streams->at[i] && streams->at[i]->at[ONCE_AT_READY];
    if (active == 0 || is_filled(machine, f)) return;
    const size_t share = (f->most - machine->work.n + active - 1) / active;
    const once_stream *next = streams->at[streams->turn % streams->n];
    if (next && next->ready.first && next->ready.first->apart && machine->work.n) return;
    do {
        went = 0;
        for (uint32_t i = 0; i < streams->n && !is_filled(machine, f); i++) {
            const once_stream *stream = streams->at[(streams->turn + i) % streams->n];
            if (stream && stream->at[ONCE_AT_READY]) went += fill_from_stream(machine, stream, share, f);
            if (ONCE_PLANTED(stream_waits) && stream && stream->at[ONCE_AT_READY]) return;
        }
    } while (went);
    machine->streams.turn = (streams->turn + 1) % streams->n;
}

static void work_from_ready(once_machine *machine, int64_t now_ms)
{
    const bool few = machine->caution.look && machine->caution.window < machine->batch_max;
    filling f = {.most = machine->batch_max, .now_ms = now_ms};
    if (few && machine->work.n + machine->caution.window < f.most) f.most = machine->work.n + machine->caution.window;
    memset(machine->work.admitted, 0, machine->spec->n_handlers * sizeof *machine->work.admitted);
    empty_marks(machine);
    for (size_t i = 0; i < machine->work.n; i++) mark_in_work(machine, machine->work.items[i]);
    (void)fill_from(machine, &machine->ready.taken, SIZE_MAX, &f);
    if (machine->ready.taken.first && machine->ready.taken.first->apart) return;
    fill_from_streams(machine, &f);
}

/* Accepting a message cannot crash the process. With an inbox all messages of the source are only accepted; those taken
 * from the store run. */
static bool only_accepts(const once_machine *machine) { return machine->spec->inbox && machine->ready.taken.n == 0; }

/* Nothing of it is claimed or settled, unless the store has an entry of it. */
static bool needs_no_claim(const once_machine *machine, const once_item *item)
{
    return !item->returned && !item->skipped && !once__item_is_begun(item) && !once_hash_is_zero(item->request.id) &&
           runs_unclaimed(machine, item) && !through_store(machine, item);
}

/* Whether the store is asked first which messages of the work have no entry: these need no transaction. */
static bool asks_absent(once_machine *machine)
{
    if (!machine->o.tells_absent || !machine->work.n || machine->caution.look || machine->end.stopping ||
        !once_gates_are_wide(&machine->gate.gates))
        return false;
    if (machine->work.unasked == 0) return true;
    machine->work.unasked--;
    return false;
}

void once__machine_begin_work(once_machine *machine, int64_t now_ms)
{
    assert(machine->work.n == 0);
    once__machine_settle_returned(machine, now_ms);
    if (ONCE_PLANTED(no_extension)) machine->outside.flight.extend_at_ms = ONCE_NEVER;
    machine->work.keeping_n =
        once_flight_extends(&machine->outside.flight, now_ms, machine->work.keeping, machine->batch_max);
    machine->caution.look = machine->caution.left > 0 && !only_accepts(machine);
    /* An effect that may crash the process must not be mixed with outcomes that came back. */
    const bool alone = machine->caution.look && (machine->work.n || machine->work.keeping_n);
    /* A take whose reply was lost must be repeated first. */
    const bool from_ready = machine->end.stopping ? machine->o.accepts_at_stop : !machine->due.again;
    if (!alone && from_ready) work_from_ready(machine, now_ms);
    machine->due.took_last = false;
    if (machine->work.n == 0 && machine->work.keeping_n == 0) return;
    const bool single = machine->work.n == 1;
    once__machine_bound_locks(machine);
    once__machine_start_work(machine);
    const once_item *first = machine->work.n ? machine->work.items[0] : NULL;
    const bool one = machine->caution.look && !alone && single && !once_hash_is_zero(first->request.id) &&
                     !(first->held && first->first->asks);
    if (one && !once__item_is_external(first) && !through_store(machine, first)) machine->work.next = NEXT_PRECLAIM;
    if (asks_absent(machine)) machine->work.next = NEXT_ABSENT;
}

static void put_back_from(once_machine *machine, const once_queue *queue)
{
    once_item *next;
    for (once_item *item = queue->first; item && machine->work.n < machine->batch_max; item = next) {
        next = item->next;
        if (item->held || (item->commit_unknown && !once__item_is_external(item)))
            once__machine_move(machine, item, ONCE_AT_WORK);
    }
}

/* After a stop: items that were taken from the store go back to it. Items that were in a commit whose result is unknown
 * are claimed again, if their effect is in the store's database: they may be done, and are counted then. */
void once__machine_put_back_held(once_machine *machine)
{
    put_back_from(machine, &machine->ready.taken);
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = machine->streams.at[i];
        if (!stream) continue;
        for (size_t h = 0; h < machine->spec->n_handlers; h++) put_back_from(machine, &stream->full[h]);
        put_back_from(machine, &stream->ready);
    }
    if (machine->work.n) once__machine_start_work(machine);
}

static bool admit(once_machine *machine, const once_item *item)
{
    uint32_t *admitted = &machine->work.admitted[item->handler - machine->spec->handlers];
    if (*admitted >= room_of(machine, item, machine->now_ms) && !ONCE_PLANTED(overclaim)) return false;
    ++*admitted;
    return true;
}

/* The items of the last round are decided: those that waited for them are next. */
void once__machine_next_round(once_machine *machine)
{
    for (size_t i = 0; i < machine->work.round_n; i++) {
        /* It is not over, so its followers are not in the next round; they go back to the queue after the commit. */
        if (machine->work.round[i]->stage == ONCE_STAGE_OUTSIDE) continue;
        unblock(machine, machine->work.round[i]->next_of_key);
        unblock(machine, machine->work.round[i]->next_of_lane);
    }
    /* An item that needs room and finds none waits for the next round: duplicates in this one free theirs. If its
     * handler was held up since the work was begun, it goes back to the queue. */
    size_t left = 0;
    machine->work.round_n = 0;
    for (size_t i = 0; i < machine->work.next_round_n; i++) {
        once_item *item = machine->work.next_round[i];
        const bool claims = item->stage == ONCE_STAGE_CLAIM && !item->held && !item->returned;
        const bool wait = claims && is_bounded(item) && !admit(machine, item);
        if (wait) machine->work.next_round[left++] = item;
        else machine->work.round[machine->work.round_n++] = item;
    }
    machine->work.next_round_n = left;
    if (machine->gate.has_queues)
        memset(machine->work.admitted, 0, machine->spec->n_handlers * sizeof *machine->work.admitted);
    machine->work.next = machine->work.round_n ? NEXT_CLAIM : NEXT_BURY;
}

/* Of equal keys all are asked about, or none: one that is decided by a transaction must not pass one that has begun,
 * and what becomes of the first decides about the others. Returns how many are left in the list. */
static size_t leave_equals(once_machine *machine)
{
    size_t n = 0;
    empty_marks(machine);
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (!item->request.unclaimed && !once_hash_is_zero(item->request.id))
            (void)mark_last(machine, item->request.id, item);
    }
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (item->request.unclaimed && !is_in_work(machine, item->request.id)) machine->work.list[n++] = item;
    }
    return n;
}

/* NULL: too few may be without an entry; for these it is not worth while. */
once_action *once__machine_ask_absent(once_machine *machine, int64_t now_ms)
{
    size_t n = 0;
    machine->work.asked_at_ms = now_ms;
    machine->work.ran = false;
    machine->work.runs_alone = NULL;
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        item->granted = false;
        item->stage = ONCE_STAGE_CLAIM; /* until a transaction begins */
        item->request.unclaimed = needs_no_claim(machine, item);
        if (item->request.unclaimed) machine->work.list[n++] = item;
    }
    if (n < machine->work.n) n = leave_equals(machine);
    return n > 0 && 2 * n >= machine->work.n ? once__machine_emit(machine, ONCE_ACT_ABSENT, n) : NULL;
}

/* The store has no entry of it. False: it cannot begin now, because there is no slot, it is no longer ours, the run
 * stops, or another one with its key has just begun. */
static bool begin_unclaimed(once_machine *machine, once_item *item)
{
    if (machine->end.stopping || once__item_is_unwanted(item)) return false;
    if (!once__machine_may_begin(machine, item) || !room_of(machine, item, machine->now_ms)) return false;
    if (!item->joined && !once_key_queue_join_first(&machine->key_queue, item)) return false;
    item->decision = once_decision_unclaimed(&item->request);
    item->stage = ONCE_STAGE_OUTSIDE;
    item->replaces = item->overtakes = false;
    once__item_forget_times(item);
    once__machine_note_claimed(machine, &item, 1);
    once__machine_begins(machine, item);
    once__machine_put_in_flight(machine, item, machine->work.asked_at_ms);
    return true;
}

/* What has no entry begins, or goes back to the queue. The rest is for a transaction. */
void once__machine_told_absent(once_machine *machine)
{
    size_t kept = 0, back = 0;
    const size_t all = machine->work.n;
    once_gates_begin_pass(&machine->gate.gates);
    for (size_t i = 0; i < all; i++) {
        once_item *item = machine->work.items[i];
        if (i + EXPECTED < all) once_key_queue_expect(&machine->key_queue, machine->work.items[i + EXPECTED]);
        if (!item->granted) machine->work.items[kept++] = item;
        else if (!begin_unclaimed(machine, item)) machine->work.list[back++] = item;
    }
    machine->work.n = kept;
    if (kept == all) machine->work.unasked = UNASKED; /* as when the store has entries of another handler */
    while (back) once__machine_requeue(machine, machine->work.list[--back]); /* in their order */
    once_gates_end_pass(&machine->gate.gates);
    once__machine_drop_unwanted(machine);
    machine->work.next = once__machine_has_work(machine) ? NEXT_BEGIN : NEXT_CHOOSE;
}

/* The executor gets a copy of the list, because effects come back meanwhile. */
once_action *once__machine_begin(once_machine *machine)
{
    size_t n = 0;
    for (size_t i = 0; i < machine->work.n; i++) machine->work.about[n++] = machine->work.items[i];
    for (size_t i = 0; i < machine->work.keeping_n; i++) machine->work.about[n++] = machine->work.keeping[i];
    once_action *action = once__machine_emit(machine, ONCE_ACT_BEGIN, n);
    action->items = machine->work.about;
    action->n_extend = machine->work.keeping_n;
    action->due = machine->due.finding;
    return action;
}
