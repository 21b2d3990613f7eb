/* The work: the messages of one transaction. Who may be in it, who waits for whom inside it (equal keys and lanes,
 * round by round), and how it is begun, shortened and dropped. */
#include "core/machine_impl.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define LOOK_AHEAD 64 /* so many more than there are free slots are looked at: duplicates need none */
#define LOCKS_MAX 256 /* names that a transaction locks: a server has room for a few thousand */

once_action *once__machine_emit(once_machine *machine, once_action_kind kind, size_t n)
{
    machine->store.action = (once_action){.kind = kind, .items = machine->work.list, .n = n};
    machine->store.out = true;
    return &machine->store.action;
}

/* Items of the round at a stage; `held` -1: whichever. What is back was claimed durably, too. */
size_t once__machine_gather(once_machine *machine, once_stage stage, int held)
{
    size_t n = 0;
    for (size_t i = 0; i < machine->work.round_n; i++) {
        once_item *item = machine->work.round[i];
        if (item->stage == stage && (held < 0 || (item->held || item->returned) == held))
            machine->work.list[n++] = item;
    }
    return n;
}

/* The last item with this id becomes `item`; returns the one before. */
static once_item *mark_last(once_machine *machine, once_hash id, once_item *item)
{
    size_t at = id.a & (machine->work.marks_size - 1);
    while (machine->work.marks[at].last && !once_hash_equal(machine->work.marks[at].id, id))
        at = (at + 1) & (machine->work.marks_size - 1);
    once_item *before = machine->work.marks[at].last;
    machine->work.marks[at] = (pipe_mark){id, item};
    return before;
}

/* What comes from the source and is only accepted: the store takes it, and the work is done from there. An inbox does
 * that with everything. A natural message of a lane, where its claim would be written, is too: nobody remembers it when
 * it is done, so the broker need not bring it again, and a claim of it without a body that nobody brings back would
 * hold its lane for ever. And told to stop, what was read from a source that does not give it again; and whatever has a
 * delivery that cannot be extended any more. */
static bool through_store(const once_machine *machine, const once_item *item)
{
    if (!item->tag || once_hash_is_zero(item->request.id)) return false;
    const bool durable_claim = once__item_is_external(item) || machine->caution.look;
    const bool begun = once__item_is_begun(item);
    if (((machine->end.stopping && machine->o.gives_once) || item->to_store) && !begun) return true;
    return machine->spec->inbox ||
           (item->request.natural && durable_claim && !once_hash_is_zero(item->request.lane.id));
}

/* Everything back to the start of the transaction; who waits for whom. */
void once__machine_arrange(once_machine *machine)
{
    machine->work.round_n = machine->work.next_round_n = 0;
    machine->work.had_lanes = false;
    memset(machine->work.admitted, 0, machine->spec->n_handlers * sizeof *machine->work.admitted);
    memset(machine->work.marks, 0, machine->work.marks_size * sizeof *machine->work.marks);
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        const bool keyed = !once_hash_is_zero(item->request.id);
        if (item->returned) { /* nobody in the work waits for it: those that do wait outside, until it is over */
            if (once_item_has_then(item)) item->outcome = item->came_to, item->result = item->came_with;
            item->stage = !once_item_has_then(item)     ? ONCE_STAGE_SETTLE
                          : ONCE_PLANTED(then_unfenced) ? ONCE_STAGE_RUN
                                                        : ONCE_STAGE_CLAIM;
            item->next_of_key = item->next_of_lane = NULL;
            machine->work.had_lanes |= !once_hash_is_zero(item->request.lane.id);
            machine->work.next_round[machine->work.next_round_n++] = item;
            continue;
        }
        item->stage = !keyed ? ONCE_STAGE_BURY : through_store(machine, item) ? ONCE_STAGE_ACCEPT : ONCE_STAGE_CLAIM;
        item->decision = (once_decision){.answer = ONCE_ANSWER_DEAD};
        if (ONCE_PLANTED(new_tokens) && item->commit_unknown && !item->held) item->request.token.a += 2;
        item->result = item->failure = (once_bytes){0};
        item->started = false;
        once__item_forget_times(item);
        /* Then perhaps it has, and the entry does not show it any more. */
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

/* Whether the set, which is twice as large as it may become, has room for the names of the item; they are put into
 * it. */
static bool locks_fit(uint64_t *set, size_t *n, const once_item *item)
{
    enum { SET = 2 * LOCKS_MAX };
    /* Some may be there already, but a batch need not be as large as it can be. */
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

/* The last ones of the work go back to the queue, in front; `keep` stay. */
void once__machine_shorten_work(once_machine *machine, size_t keep)
{
    while (machine->work.n > keep) once__machine_requeue(machine, machine->work.items[--machine->work.n]);
}

/* As many as one transaction can lock the names of. */
void once__machine_bound_locks(once_machine *machine)
{
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

/* The transaction was rolled back: what it had claimed for effects outside will be claimed again, or not. */
void once__machine_unreserve_work(once_machine *machine)
{
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->stage == ONCE_STAGE_FLY) {
            once_flight_unreserve(&machine->outside.flight, machine->work.items[i]);
            machine->work.items[i]->stage = ONCE_STAGE_CLAIM;
        }
}

/* The store is gone: its outcome cannot be kept. */
void once__machine_leave_unsettled(once_machine *machine, once_item *item)
{
    const bool tried = item->given && !item->decision.asks;
    machine->end.unsettled += once__item_is_external(item) && tried;
    machine->counts.attempts += item->returned && once__item_has_tried(item);
    once__machine_leave_key_queue(machine, item);
    once__machine_move(machine, item, ONCE_AT_OVER);
}

/* Nothing of the work is kept; forget it. What came from the source was not acked, what was taken comes back by its
 * lease. */
void once__machine_drop_work(once_machine *machine)
{
    once__machine_unreserve_work(machine);
    for (size_t i = 0; i < machine->work.n; i++) once__machine_leave_unsettled(machine, machine->work.items[i]);
    machine->work.n = 0;
    machine->work.next = NEXT_CHOOSE;
}

/* The transaction that found them did not happen: they are where they were. Should that not be known, they are asked
 * for once more. */
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

/* A message that can only be claimed when a slot of its handler is free. */
static bool needs_slot(const once_machine *machine, const once_item *item)
{
    return !once_hash_is_zero(item->request.id) && once__item_is_external(item) && !item->held && !item->returned &&
           !through_store(machine, item);
}

static bool has_slot(const once_machine *machine, const once_item *item, int64_t now_ms)
{
    return now_ms >= machine->outside.at_ms && once_flight_free(&machine->outside.flight, item->handler) > 0;
}

static bool must_wait(const once_machine *machine, const once_item *item)
{
    if (once_hash_is_zero(item->request.id) || machine->spec->inbox) return false;
    if (item->to_store && !once__item_is_begun(item)) return false; /* it is only accepted */
    return !item->joined && once_key_queue_in_use(&machine->key_queue, item) && !ONCE_PLANTED(flight_forgotten);
}

static bool may_go(const once_machine *machine, const once_item *item, int64_t now_ms)
{
    return !needs_slot(machine, item) || has_slot(machine, item, now_ms) || must_wait(machine, item);
}

/* How many of the stream could do something. Who is not known to need a slot that is not free can. */
size_t once__machine_can_go(const once_machine *machine, const once_stream *stream, int64_t now_ms)
{
    size_t n = stream->ready.n;
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

/* The work while it is filled from the queues. `admitted` of the work counts who needs a slot, by handler, and its
 * marks have the keys and lanes that are in it. */
typedef struct filling {
    size_t most; /* items of the work */
    bool closed; /* nobody else comes into it */
    int64_t now_ms;
} filling;

static bool is_filled(const once_machine *machine, const filling *f) { return f->closed || machine->work.n >= f->most; }

/* Whether it may be looked at: not all that are will keep their slot. */
static bool admit_to_work(once_machine *machine, const once_item *item, const filling *f)
{
    if (!needs_slot(machine, item)) return true;
    uint32_t *admitted = &machine->work.admitted[item->handler - machine->spec->handlers];
    const uint32_t free = once_flight_free(&machine->outside.flight, item->handler);
    if (!has_slot(machine, item, f->now_ms) || *admitted >= free + LOOK_AHEAD) return false;
    ++*admitted;
    return true;
}

static void mark_in_work(once_machine *machine, once_item *item)
{
    if (!machine->outside.flight.slots || once_hash_is_zero(item->request.id)) return;
    (void)mark_last(machine, item->request.id, item);
    if (!once_hash_is_zero(item->request.lane.id)) (void)mark_last(machine, item->request.lane.id, item);
}

static bool is_in_work(const once_machine *machine, once_hash id)
{
    size_t at = id.a & (machine->work.marks_size - 1);
    while (machine->work.marks[at].last && !once_hash_equal(machine->work.marks[at].id, id))
        at = (at + 1) & (machine->work.marks_size - 1);
    return machine->work.marks[at].last != NULL;
}

/* Its handler has no slot free: it lets others of its stream go first, but nobody of its key or lane, which stand
 * behind it from now on. False: it cannot, because one of them is in the work, and is before it. */
static bool wait_for_slot(once_machine *machine, once_item *item)
{
    const once_hash lane = item->request.lane.id;
    if (!item->from || ONCE_PLANTED(flight_forgotten)) return false; /* then it might stand behind one that flies */
    if (is_in_work(machine, item->request.id) || (!once_hash_is_zero(lane) && is_in_work(machine, lane))) return false;
    if (!item->joined) once_key_queue_join(&machine->key_queue, item);
    assert(item->waits_for == 0);
    once__machine_ready_take(machine, item);
    item->full = true;
    once__machine_ready_put(machine, item, true);
    return true;
}

static void move_to_work(once_machine *machine, once_item *item)
{
    once__machine_move(machine, item, ONCE_AT_WORK);
    mark_in_work(machine, item);
}

/* Up to `share` messages from a queue into the work, behind those that are there. Who is behind one that flies is
 * parked there. Returns how many went. */
static size_t fill_from(once_machine *machine, const once_queue *queue, size_t share, filling *f)
{
    size_t n = 0;
    for (once_item *first; n < share && !is_filled(machine, f) && (first = queue->first);) {
        if (first->apart && machine->work.n) break;
        if (must_wait(machine, first)) {
            once__machine_move(machine, first, ONCE_AT_PARKED);
            continue;
        }
        if (!admit_to_work(machine, first, f)) {
            if (!first->full && wait_for_slot(machine, first)) continue;
            break;
        }
        f->closed = first->apart;
        move_to_work(machine, first);
        n++;
    }
    return n;
}

/* Those that have waited for a slot came before the others of their handler. */
static size_t fill_from_stream(once_machine *machine, const once_stream *stream, size_t share, filling *f)
{
    size_t n = 0;
    for (size_t h = 0; stream->full_n && h < machine->spec->n_handlers; h++)
        n += fill_from(machine, &stream->full[h], share - n, f);
    return n + fill_from(machine, &stream->ready, share - n, f);
}

/* Each stream has its turn, and a share; who cannot go is passed over. Who must be alone in the work is not, when it is
 * its turn: nobody goes before it until it is. */
static void fill_from_streams(once_machine *machine, filling *f)
{
    const pipe_streams *streams = &machine->streams;
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
    if (machine->outside.flight.slots)
        memset(machine->work.marks, 0, machine->work.marks_size * sizeof *machine->work.marks);
    for (size_t i = 0; i < machine->work.n; i++) mark_in_work(machine, machine->work.items[i]);
    (void)fill_from(machine, &machine->ready.taken, SIZE_MAX, &f);
    if (machine->ready.taken.first && machine->ready.taken.first->apart) return;
    fill_from_streams(machine, &f);
}

/* What only goes into the store kills nobody. In an inbox that is all but what had been found there, and waits here to
 * be run by itself. */
static bool only_accepts(const once_machine *machine) { return machine->spec->inbox && machine->ready.taken.n == 0; }

void once__machine_begin_work(once_machine *machine, int64_t now_ms)
{
    assert(machine->work.n == 0);
    while (machine->outside.back && machine->work.n < machine->batch_max)
        once__machine_move(machine, machine->outside.back, ONCE_AT_WORK);
    if (ONCE_PLANTED(no_extension)) machine->outside.flight.extend_at_ms = ONCE_NEVER;
    machine->work.keeping_n =
        once_flight_extends(&machine->outside.flight, now_ms, machine->work.keeping, machine->batch_max);
    machine->caution.look = machine->caution.left > 0 && !only_accepts(machine);
    /* Nothing that may kill us is mixed with what came back. */
    const bool alone = machine->caution.look && (machine->work.n || machine->work.keeping_n);
    /* Of a take that is not repeated nothing is known here. */
    const bool from_ready = machine->end.stopping ? machine->o.gives_once : !machine->due.again;
    if (!alone && from_ready) work_from_ready(machine, now_ms);
    machine->due.took_last = false;
    if (machine->work.n == 0 && machine->work.keeping_n == 0) return;
    const bool single = machine->work.n == 1;
    once__machine_bound_locks(machine);
    once__machine_start_work(machine);
    const bool one = machine->caution.look && !alone && single &&
                     !once_hash_is_zero(machine->work.items[0]->request.id) && !machine->work.items[0]->first.asks;
    if (one && !once__item_is_external(machine->work.items[0]) && !through_store(machine, machine->work.items[0]))
        machine->work.next = NEXT_PRECLAIM;
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

/* What was taken from the store and waits here for a transaction without others goes back there. What was in a commit
 * of which no answer came is asked for, if its effect is the store's own: it may be done, and is counted then. */
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
    if (*admitted >= once_flight_free(&machine->outside.flight, item->handler) && !ONCE_PLANTED(overclaim))
        return false;
    ++*admitted;
    return true;
}

/* The items of the last round are decided; whoever waited for them is next. */
void once__machine_next_round(once_machine *machine)
{
    for (size_t i = 0; i < machine->work.round_n; i++) {
        /* Not over: they wait on, outside of this transaction. */
        if (machine->work.round[i]->stage == ONCE_STAGE_FLY) continue;
        unblock(machine, machine->work.round[i]->next_of_key);
        unblock(machine, machine->work.round[i]->next_of_lane);
    }
    /* Whoever needs a slot and finds none waits for the next round: duplicates of this one leave theirs. */
    size_t left = 0;
    machine->work.round_n = 0;
    for (size_t i = 0; i < machine->work.next_round_n; i++) {
        once_item *item = machine->work.next_round[i];
        const bool wait = needs_slot(machine, item) && !admit(machine, item);
        if (wait) machine->work.next_round[left++] = item;
        else machine->work.round[machine->work.round_n++] = item;
    }
    machine->work.next_round_n = left;
    if (machine->outside.flight.slots)
        memset(machine->work.admitted, 0, machine->spec->n_handlers * sizeof *machine->work.admitted);
    machine->work.next = machine->work.round_n ? NEXT_CLAIM : NEXT_BURY;
}

/* The executor has the list while effects come back, so it is a copy. */
once_action *once__machine_begin(once_machine *machine)
{
    size_t n = 0;
    for (size_t i = 0; i < machine->work.n; i++) machine->work.about[n++] = machine->work.items[i];
    for (size_t i = 0; i < machine->work.keeping_n; i++) machine->work.about[n++] = machine->work.keeping[i];
    once_action *action = once__machine_emit(machine, ONCE_ACT_BEGIN, n);
    action->items = machine->work.about;
    action->kept = machine->work.keeping_n;
    action->due = machine->due.finding;
    return action;
}
