/* The work: the messages of one transaction. Who may be in it, who waits for whom inside it (equal keys and lanes,
 * round by round), and how it is begun, shortened and dropped. */
#include "core/pipe.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define LOOK_AHEAD 64 /* so many more than there are free slots are looked at: duplicates need none */
#define LOCKS_MAX 256 /* names that a transaction locks: a server has room for a few thousand */

once_action *once__pipe_emit(once_pipe *pipe, once_action_kind kind, size_t n)
{
    pipe->store.action = (once_action){.kind = kind, .items = pipe->work.list, .n = n};
    pipe->store.out = true;
    return &pipe->store.action;
}

/* Items of the round at a stage; `held` -1: whichever. What is back was claimed durably, too. */
size_t once__pipe_gather(once_pipe *pipe, once_stage stage, int held)
{
    size_t n = 0;
    for (size_t i = 0; i < pipe->work.round_n; i++) {
        once_item *item = pipe->work.round[i];
        if (item->stage == stage && (held < 0 || (item->held || item->returned) == held)) pipe->work.list[n++] = item;
    }
    return n;
}

/* The last item with this id becomes `item`; returns the one before. */
static once_item *mark_last(once_pipe *pipe, once_hash id, once_item *item)
{
    size_t at = id.a & (pipe->work.marks_size - 1);
    while (pipe->work.marks[at].last && !once_hash_equal(pipe->work.marks[at].id, id))
        at = (at + 1) & (pipe->work.marks_size - 1);
    once_item *before = pipe->work.marks[at].last;
    pipe->work.marks[at] = (pipe_mark){id, item};
    return before;
}

/* What comes from the source and is only accepted: the store takes it, and the work is done from there. An inbox does
 * that with everything. A natural message of a lane, where its claim would be written, is too: nobody remembers it when
 * it is done, so the broker need not bring it again, and a claim of it without a body that nobody brings back would
 * hold its lane for ever. And told to stop, what was read from a source that does not give it again; and whatever has a
 * delivery that cannot be extended any more. */
static bool through_store(const once_pipe *pipe, const once_item *item)
{
    if (!item->ticket || once_hash_is_zero(item->request.id)) return false;
    const bool durable_claim = once__item_is_external(item) || pipe->caution.look;
    const bool begun = once__item_is_begun(item);
    if (((pipe->end.stopping && pipe->o.gives_once) || item->to_store) && !begun) return true;
    return pipe->spec->inbox || (item->request.natural && durable_claim && !once_hash_is_zero(item->request.lane.id));
}

/* Everything back to the start of the transaction; who waits for whom. */
void once__pipe_arrange(once_pipe *pipe)
{
    pipe->work.round_n = pipe->work.next_round_n = 0;
    pipe->work.had_lanes = false;
    memset(pipe->work.admitted, 0, pipe->spec->n_handlers * sizeof *pipe->work.admitted);
    memset(pipe->work.marks, 0, pipe->work.marks_size * sizeof *pipe->work.marks);
    for (size_t i = 0; i < pipe->work.n; i++) {
        once_item *item = pipe->work.items[i];
        const bool keyed = !once_hash_is_zero(item->request.id);
        if (item->returned) { /* nobody in the work waits for it: those that do wait outside, until it is over */
            if (once__item_has_then(item)) item->outcome = item->came_to, item->result = item->came_with;
            item->stage = once__item_has_then(item) ? ONCE_STAGE_CLAIM : ONCE_STAGE_SETTLE;
            item->next_of_key = item->next_of_lane = NULL;
            pipe->work.had_lanes |= !once_hash_is_zero(item->request.lane.id);
            pipe->work.next_round[pipe->work.next_round_n++] = item;
            continue;
        }
        item->stage = !keyed ? ONCE_STAGE_BURY : through_store(pipe, item) ? ONCE_STAGE_ACCEPT : ONCE_STAGE_CLAIM;
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
        once_item *leader = mark_last(pipe, item->request.id, item);
        if (leader) {
            leader->next_of_key = item;
            item->blockers++;
        }
        if (!once_hash_is_zero(item->request.lane.id)) {
            pipe->work.had_lanes = true;
            leader = mark_last(pipe, item->request.lane.id, item);
            if (leader) {
                leader->next_of_lane = item;
                item->blockers++;
            }
        }
        if (item->blockers == 0) pipe->work.next_round[pipe->work.next_round_n++] = item;
    }
}

static void unblock(once_pipe *pipe, once_item *follower)
{
    if (follower && --follower->blockers == 0) pipe->work.next_round[pipe->work.next_round_n++] = follower;
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
void once__pipe_shorten_work(once_pipe *pipe, size_t keep)
{
    while (pipe->work.n > keep) once__pipe_requeue(pipe, pipe->work.items[--pipe->work.n]);
}

/* As many as one transaction can lock the names of. */
void once__pipe_bound_locks(once_pipe *pipe)
{
    uint64_t set[2 * LOCKS_MAX] = {0};
    size_t locks = 0, fit = 0;
    while (fit < pipe->work.n && locks_fit(set, &locks, pipe->work.items[fit])) fit++;
    once__pipe_shorten_work(pipe, fit);
}

void once__pipe_start_work(once_pipe *pipe)
{
    const uint64_t random = once_env_random_u64(pipe->o.env);
    for (size_t i = 0; i < pipe->work.n; i++) {
        once_item *item = pipe->work.items[i];
        if (!item->held && !item->commit_unknown && !item->returned)
            item->request.token = once_token_of_run(pipe->o.run, random, i);
    }
    pipe->work.next = NEXT_BEGIN;
}

/* The transaction was rolled back: what it had claimed for effects outside will be claimed again, or not. */
void once__pipe_unreserve_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work.n; i++)
        if (pipe->work.items[i]->stage == ONCE_STAGE_FLY) {
            once_flight_unreserve(&pipe->outside.flight, pipe->work.items[i]);
            pipe->work.items[i]->stage = ONCE_STAGE_CLAIM;
        }
}

/* The store is gone: its outcome cannot be kept. */
void once__pipe_leave_unsettled(once_pipe *pipe, once_item *item)
{
    const bool tried = item->given && !item->decision.asks;
    pipe->end.unsettled += once__item_is_external(item) && tried;
    pipe->counts.attempts += item->returned && once__item_has_tried(item);
    once__pipe_leave_key_queue(pipe, item);
    once__pipe_move(pipe, item, ONCE_AT_OVER);
}

/* Nothing of the work is kept; forget it. What came from the source was not acked, what was taken comes back by its
 * lease. */
void once__pipe_drop_work(once_pipe *pipe)
{
    once__pipe_unreserve_work(pipe);
    for (size_t i = 0; i < pipe->work.n; i++) once__pipe_leave_unsettled(pipe, pipe->work.items[i]);
    pipe->work.n = 0;
    pipe->work.next = NEXT_CHOOSE;
}

/* The transaction that found them did not happen: they are where they were. Should that not be known, they are asked
 * for once more. */
void once__pipe_drop_found(once_pipe *pipe)
{
    size_t kept = 0;
    for (size_t i = 0; i < pipe->work.n; i++) {
        once_item *item = pipe->work.items[i];
        if (item->found && !item->commit_unknown) once__pipe_move(pipe, item, ONCE_AT_OVER);
        else pipe->work.items[kept++] = item;
    }
    pipe->work.n = kept;
    pipe->work.runs_alone = NULL;
}

/* A message that can only be claimed when a slot of its handler is free. */
static bool needs_slot(const once_pipe *pipe, const once_item *item)
{
    return !once_hash_is_zero(item->request.id) && once__item_is_external(item) && !item->held && !item->returned &&
           !through_store(pipe, item);
}

static bool has_slot(const once_pipe *pipe, const once_item *item, int64_t now_ms)
{
    return now_ms >= pipe->outside.at_ms && once_flight_free(&pipe->outside.flight, item->handler) > 0;
}

static bool must_wait(const once_pipe *pipe, const once_item *item)
{
    if (once_hash_is_zero(item->request.id) || pipe->spec->inbox || item->to_store) return false;
    return !item->joined && once_key_queue_in_use(&pipe->key_queue, item) && !ONCE_PLANTED(flight_forgotten);
}

static bool may_go(const once_pipe *pipe, const once_item *item, int64_t now_ms)
{
    return !needs_slot(pipe, item) || has_slot(pipe, item, now_ms) || must_wait(pipe, item);
}

/* How many of the stream could do something. Who is not known to need a slot that is not free can. */
size_t once__pipe_can_go(const once_pipe *pipe, const once_stream *stream, int64_t now_ms)
{
    size_t n = stream->ready.n;
    for (size_t h = 0; stream->full_n && h < pipe->spec->n_handlers; h++)
        if (stream->full[h].first && may_go(pipe, stream->full[h].first, now_ms)) n += stream->full[h].n;
    return n;
}

bool once__pipe_ready_can_go(const once_pipe *pipe, int64_t now_ms)
{
    if (pipe->ready.n == 0 || pipe->end.stopping) return false;
    if (pipe->ready.taken.first && may_go(pipe, pipe->ready.taken.first, now_ms)) return true;
    for (uint32_t i = 0; i < pipe->streams.n; i++)
        if (pipe->streams.at[i] && once__pipe_can_go(pipe, pipe->streams.at[i], now_ms)) return true;
    return false;
}

/* The work while it is filled from the queues. `admitted` of the work counts who needs a slot, by handler, and its
 * marks have the keys and lanes that are in it. */
typedef struct filling {
    size_t most; /* items of the work */
    bool closed; /* nobody else comes into it */
    int64_t now_ms;
} filling;

static bool is_filled(const once_pipe *pipe, const filling *f) { return f->closed || pipe->work.n >= f->most; }

/* Whether it may be looked at: not all that are will keep their slot. */
static bool admit_to_work(once_pipe *pipe, const once_item *item, const filling *f)
{
    if (!needs_slot(pipe, item)) return true;
    uint32_t *admitted = &pipe->work.admitted[item->handler - pipe->spec->handlers];
    const uint32_t free = once_flight_free(&pipe->outside.flight, item->handler);
    if (!has_slot(pipe, item, f->now_ms) || *admitted >= free + LOOK_AHEAD) return false;
    ++*admitted;
    return true;
}

static void mark_in_work(once_pipe *pipe, once_item *item)
{
    if (!pipe->outside.flight.slots || once_hash_is_zero(item->request.id)) return;
    (void)mark_last(pipe, item->request.id, item);
    if (!once_hash_is_zero(item->request.lane.id)) (void)mark_last(pipe, item->request.lane.id, item);
}

static bool is_in_work(const once_pipe *pipe, once_hash id)
{
    size_t at = id.a & (pipe->work.marks_size - 1);
    while (pipe->work.marks[at].last && !once_hash_equal(pipe->work.marks[at].id, id))
        at = (at + 1) & (pipe->work.marks_size - 1);
    return pipe->work.marks[at].last != NULL;
}

/* Its handler has no slot free: it lets others of its stream go first, but nobody of its key or lane, which stand
 * behind it from now on. False: it cannot, because one of them is in the work, and is before it. */
static bool wait_for_slot(once_pipe *pipe, once_item *item)
{
    const once_hash lane = item->request.lane.id;
    if (!item->from || ONCE_PLANTED(flight_forgotten)) return false; /* then it might stand behind one that flies */
    if (is_in_work(pipe, item->request.id) || (!once_hash_is_zero(lane) && is_in_work(pipe, lane))) return false;
    if (!item->joined) once_key_queue_join(&pipe->key_queue, item);
    assert(item->waits_for == 0);
    once__pipe_ready_take(pipe, item);
    item->full = true;
    once__pipe_ready_put(pipe, item, true);
    return true;
}

static void move_to_work(once_pipe *pipe, once_item *item)
{
    once__pipe_move(pipe, item, ONCE_AT_WORK);
    mark_in_work(pipe, item);
}

/* Up to `share` messages from a queue into the work, behind those that are there. Who is behind one that flies is
 * parked there. Returns how many went. */
static size_t fill_from(once_pipe *pipe, const once_queue *queue, size_t share, filling *f)
{
    size_t n = 0;
    for (once_item *first; n < share && !is_filled(pipe, f) && (first = queue->first);) {
        if (first->apart && pipe->work.n) break;
        if (must_wait(pipe, first)) {
            once__pipe_move(pipe, first, ONCE_AT_PARKED);
            continue;
        }
        if (!admit_to_work(pipe, first, f)) {
            if (!first->full && wait_for_slot(pipe, first)) continue;
            break;
        }
        f->closed = first->apart;
        move_to_work(pipe, first);
        n++;
    }
    return n;
}

/* Those that have waited for a slot came before the others of their handler. */
static size_t fill_from_stream(once_pipe *pipe, const once_stream *stream, size_t share, filling *f)
{
    size_t n = 0;
    for (size_t h = 0; stream->full_n && h < pipe->spec->n_handlers; h++)
        n += fill_from(pipe, &stream->full[h], share - n, f);
    return n + fill_from(pipe, &stream->ready, share - n, f);
}

/* Each stream has its turn, and a share; who cannot go is passed over. Who must be alone in the work is not, when it is
 * its turn: nobody goes before it until it is. */
static void fill_from_streams(once_pipe *pipe, filling *f)
{
    const pipe_streams *streams = &pipe->streams;
    size_t active = 0, went;
    for (uint32_t i = 0; i < streams->n; i++) active += streams->at[i] && streams->at[i]->at[ONCE_AT_READY];
    if (active == 0 || is_filled(pipe, f)) return;
    const size_t share = (f->most - pipe->work.n + active - 1) / active;
    const once_stream *next = streams->at[streams->turn % streams->n];
    if (next && next->ready.first && next->ready.first->apart && pipe->work.n) return;
    do {
        went = 0;
        for (uint32_t i = 0; i < streams->n && !is_filled(pipe, f); i++) {
            const once_stream *stream = streams->at[(streams->turn + i) % streams->n];
            if (stream && stream->at[ONCE_AT_READY]) went += fill_from_stream(pipe, stream, share, f);
            if (ONCE_PLANTED(stream_waits) && stream && stream->at[ONCE_AT_READY]) return;
        }
    } while (went);
    pipe->streams.turn = (streams->turn + 1) % streams->n;
}

static void work_from_ready(once_pipe *pipe, int64_t now_ms)
{
    const bool few = pipe->caution.look && pipe->caution.window < pipe->batch_max;
    filling f = {.most = pipe->batch_max, .now_ms = now_ms};
    if (few && pipe->work.n + pipe->caution.window < f.most) f.most = pipe->work.n + pipe->caution.window;
    memset(pipe->work.admitted, 0, pipe->spec->n_handlers * sizeof *pipe->work.admitted);
    if (pipe->outside.flight.slots) memset(pipe->work.marks, 0, pipe->work.marks_size * sizeof *pipe->work.marks);
    for (size_t i = 0; i < pipe->work.n; i++) mark_in_work(pipe, pipe->work.items[i]);
    (void)fill_from(pipe, &pipe->ready.taken, SIZE_MAX, &f);
    if (pipe->ready.taken.first && pipe->ready.taken.first->apart) return;
    fill_from_streams(pipe, &f);
}

/* What only goes into the store kills nobody. In an inbox that is all but what had been found there, and waits here to
 * be run by itself. */
static bool only_accepts(const once_pipe *pipe) { return pipe->spec->inbox && pipe->ready.taken.n == 0; }

void once__pipe_begin_work(once_pipe *pipe, int64_t now_ms)
{
    assert(pipe->work.n == 0);
    while (pipe->outside.back && pipe->work.n < pipe->batch_max)
        once__pipe_move(pipe, pipe->outside.back, ONCE_AT_WORK);
    if (ONCE_PLANTED(no_extension)) pipe->outside.flight.extend_at_ms = ONCE_NEVER;
    pipe->work.keeping_n = once_flight_extends(&pipe->outside.flight, now_ms, pipe->work.keeping, pipe->batch_max);
    pipe->caution.look = pipe->caution.left > 0 && !only_accepts(pipe);
    /* Nothing that may kill us is mixed with what came back. */
    const bool alone = pipe->caution.look && (pipe->work.n || pipe->work.keeping_n);
    /* Of a take that is not repeated nothing is known here. */
    const bool from_ready = pipe->end.stopping ? pipe->o.gives_once : !pipe->due.again;
    if (!alone && from_ready) work_from_ready(pipe, now_ms);
    pipe->due.took_last = false;
    if (pipe->work.n == 0 && pipe->work.keeping_n == 0) return;
    const bool single = pipe->work.n == 1;
    once__pipe_bound_locks(pipe);
    once__pipe_start_work(pipe);
    const bool one = pipe->caution.look && !alone && single && !once_hash_is_zero(pipe->work.items[0]->request.id) &&
                     !pipe->work.items[0]->first.asks;
    if (one && !once__item_is_external(pipe->work.items[0]) && !through_store(pipe, pipe->work.items[0]))
        pipe->work.next = NEXT_PRECLAIM;
}

static void put_back_from(once_pipe *pipe, const once_queue *queue)
{
    once_item *next;
    for (once_item *item = queue->first; item && pipe->work.n < pipe->batch_max; item = next) {
        next = item->next;
        if (item->held || (item->commit_unknown && !once__item_is_external(item)))
            once__pipe_move(pipe, item, ONCE_AT_WORK);
    }
}

/* What was taken from the store and waits here for a transaction without others goes back there. What was in a commit
 * of which no answer came is asked for, if its effect is the store's own: it may be done, and is counted then. */
void once__pipe_put_back_held(once_pipe *pipe)
{
    put_back_from(pipe, &pipe->ready.taken);
    for (uint32_t i = 0; i < pipe->streams.n; i++) {
        const once_stream *stream = pipe->streams.at[i];
        if (!stream) continue;
        for (size_t h = 0; h < pipe->spec->n_handlers; h++) put_back_from(pipe, &stream->full[h]);
        put_back_from(pipe, &stream->ready);
    }
    if (pipe->work.n) once__pipe_start_work(pipe);
}

static bool admit(once_pipe *pipe, const once_item *item)
{
    uint32_t *admitted = &pipe->work.admitted[item->handler - pipe->spec->handlers];
    if (*admitted >= once_flight_free(&pipe->outside.flight, item->handler) && !ONCE_PLANTED(overclaim)) return false;
    ++*admitted;
    return true;
}

/* The items of the last round are decided; whoever waited for them is next. */
void once__pipe_next_round(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work.round_n; i++) {
        /* Not over: they wait on, outside of this transaction. */
        if (pipe->work.round[i]->stage == ONCE_STAGE_FLY) continue;
        unblock(pipe, pipe->work.round[i]->next_of_key);
        unblock(pipe, pipe->work.round[i]->next_of_lane);
    }
    /* Whoever needs a slot and finds none waits for the next round: duplicates of this one leave theirs. */
    size_t left = 0;
    pipe->work.round_n = 0;
    for (size_t i = 0; i < pipe->work.next_round_n; i++) {
        once_item *item = pipe->work.next_round[i];
        const bool wait = needs_slot(pipe, item) && !admit(pipe, item);
        if (wait) pipe->work.next_round[left++] = item;
        else pipe->work.round[pipe->work.round_n++] = item;
    }
    pipe->work.next_round_n = left;
    if (pipe->outside.flight.slots)
        memset(pipe->work.admitted, 0, pipe->spec->n_handlers * sizeof *pipe->work.admitted);
    pipe->work.next = pipe->work.round_n ? NEXT_CLAIM : NEXT_BURY;
}

/* The executor has the list while effects come back, so it is a copy. */
once_action *once__pipe_begin(once_pipe *pipe)
{
    size_t n = 0;
    for (size_t i = 0; i < pipe->work.n; i++) pipe->work.about[n++] = pipe->work.items[i];
    for (size_t i = 0; i < pipe->work.keeping_n; i++) pipe->work.about[n++] = pipe->work.keeping[i];
    once_action *action = once__pipe_emit(pipe, ONCE_ACT_BEGIN, n);
    action->items = pipe->work.about;
    action->kept = pipe->work.keeping_n;
    action->due = pipe->due.finding;
    return action;
}
