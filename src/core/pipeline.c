/* pipeline.h tells the story. This file is in its order: batches, the source side, the work (one transaction), the
 * choice of what to do next. */
#include "core/pipeline.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/no_memory.h"
#include "core/pipe.h"
#include "core/plant.h"
#include "core/retry.h"

#include "base/banned.h"

#define BLAME_AFTER 3            /* a work that was rolled back so often by the database itself looks for whose fault it is */
#define ROLLED_BACK_MS 20        /* the longest pause after that, but when it goes on: others have ended meanwhile */
#define ROLLED_BACK_MANY 10      /* so often it has gone on */
#define CAREFUL_BATCHES 16       /* after an effect failed, so many batches keep their savepoints */
#define SUSPECT_AFTER 2          /* so often in a row a server has hung up on a work while its effects ran, until one of them is suspected */
#define CAUTIOUS_LEAST 64        /* after an unclean end, so many effects run one by one, or a whole batch if that is more */
#define FINITE_TRIES 5           /* a finite source gives up after so many failures of the store in a row, when its patience is over, too */
#define POLL_MS 1000             /* how often to look for what other processes left */
#define WAITING_POLL_MS 100      /* the same, while something of ours waits in the store */
#define END_POLL_MS 250          /* the same, when it is all that is left to wait for */
#define SWEEP_MS 60000           /* how often to drop what has expired */
#define SWEEP_MORE_MS 100        /* the same, while there is more to drop and the store does not say when */
#define READY_BYTES (16u << 20)  /* of bodies that wait for their transaction; then nothing more is fetched */
#define HELD_BYTES (64u << 20)   /* the same of all batches whose messages are not over */
#define PARKED 2                 /* batches that may wait behind equal keys and lanes */
#define LOOK_AHEAD 64            /* so many more than there are free slots are looked at: duplicates need none */
#define TAKES_IN_A_ROW 8         /* takes that find much, before what the source has brought; with lanes */
#define LOCKS_MAX 256             /* names that a transaction locks: a server has room for a few thousand */
#define CLOCK_SLACK_MS 2         /* the store's clock and ours need not tick together */

const char *once_action_name(once_action_kind kind)
{
    static const char *const names[] = {"none", "begin", "find", "claim", "extend", "run",   "settle", "accept", "bury",
                                        "commit", "rollback", "take",  "stats",  "renew", "sweep", "fetch", "ack", "start", "kill"};
    assert((size_t)kind < sizeof names / sizeof *names);
    return names[kind];
}

/* --- batches --- */

static once_batch *batch_get(once_pipe *pipe)
{
    once_batch *batch = pipe->spare;
    if (batch) {
        pipe->spare = batch->next;
        batch->next = NULL;
    } else {
        batch = calloc(1, sizeof *batch);
        if (!batch) return NULL;
        batch->all = pipe->batches;
        pipe->batches = batch;
    }
    return batch;
}

static void batch_put(once_pipe *pipe, once_batch *batch)
{
    once_arena_reset(&batch->arena);
    assert(pipe->held_bytes >= batch->bytes);
    pipe->held_bytes -= batch->bytes;
    batch->items = NULL;
    batch->n = batch->open = batch->bytes = 0;
    batch->taken_in = false;
    batch->origin = NULL;
    batch->next = pipe->spare;
    pipe->spare = batch;
}

static void batch_let_go(once_pipe *pipe, once_batch *batch)
{
    assert(batch->open > 0);
    if (--batch->open == 0) batch_put(pipe, batch);
}

static void forget_output(once_item *item)
{
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
}

/* --- places --- */

/* What comes from the source is the last of the queue; what goes back to it was before all that is there. */
static void ready_put(once_pipe *pipe, once_item *item, bool last)
{
    assert(pipe->ready_n < pipe->ready_size);
    if (!last) pipe->ready_first = (pipe->ready_first + pipe->ready_size - 1) % pipe->ready_size;
    pipe->ready[(pipe->ready_first + (last ? pipe->ready_n : 0)) % pipe->ready_size] = item;
    pipe->ready_n++;
    pipe->ready_bytes += item->message.body.len;
}

static void ready_take(once_pipe *pipe, const once_item *item)
{
    assert(pipe->ready_n > 0 && pipe->ready[pipe->ready_first] == item);
    pipe->ready_first = (pipe->ready_first + 1) % pipe->ready_size;
    pipe->ready_n--;
    pipe->ready_bytes -= item->message.body.len;
}

static void back_put(once_pipe *pipe, once_item *item)
{
    item->returned = true;
    item->next_flying = NULL;
    if (pipe->back) pipe->back_last->next_flying = item;
    else pipe->back = item;
    pipe->back_last = item;
}

/* Who is claimed in the transaction that settles it may have its slot. */
static void back_take(once_pipe *pipe, const once_item *item)
{
    assert(pipe->back == item);
    pipe->back = item->next_flying;
    once_flight_unreserve(&pipe->flight, item);
}

static void work_put(once_pipe *pipe, once_item *item)
{
    assert(pipe->work_n < pipe->work_size);
    pipe->work[pipe->work_n++] = item;
}

#define TO(place) (1u << ONCE_AT_##place)

/* What may follow what. */
static const unsigned may_follow[ONCE_AT_PLACES] = {
    [ONCE_AT_NEW] = TO(READY) | TO(WORK) | TO(FLIGHT) | TO(OVER),
    [ONCE_AT_READY] = TO(PARKED) | TO(WORK),
    [ONCE_AT_PARKED] = TO(READY),
    [ONCE_AT_WORK] = TO(READY) | TO(FLIGHT) | TO(OVER),
    [ONCE_AT_FLIGHT] = TO(RETURNED),
    [ONCE_AT_RETURNED] = TO(WORK) | TO(OVER),
    [ONCE_AT_OVER] = 0,
};

static bool is_counted(once_item_place place) { return place != ONCE_AT_NEW && place != ONCE_AT_OVER; }

/* The one function that changes where an item is, and with it the list that it is in. Only the work is left by whoever ends or shortens
 * it, all at once. An item that is over must not be looked at any more: its memory goes with the last one of its batch. */
static void move(once_pipe *pipe, once_item *item, once_item_place to)
{
    const once_item_place from = item->place;
    assert(may_follow[from] & (1u << to));
    if (is_counted(from) && !(ONCE_PLANTED(parked_kept) && from == ONCE_AT_PARKED)) pipe->at[from]--;
    if (is_counted(to)) pipe->at[to]++;
    if (from == ONCE_AT_READY) ready_take(pipe, item);
    if (from == ONCE_AT_FLIGHT) once_flight_back(&pipe->flight, item);
    if (from == ONCE_AT_RETURNED) back_take(pipe, item);
    item->place = to;
    switch (to) {
    case ONCE_AT_READY: ready_put(pipe, item, from == ONCE_AT_NEW); break;
    case ONCE_AT_PARKED: once_waits_join(&pipe->waits, item); break;
    case ONCE_AT_WORK: work_put(pipe, item); break;
    case ONCE_AT_FLIGHT: once_flight_depart(&pipe->flight, item, item->claimed_at_ms); break;
    case ONCE_AT_RETURNED: back_put(pipe, item); break;
    default:
        assert(to == ONCE_AT_OVER && !item->joined);
        forget_output(item);
        batch_let_go(pipe, item->batch);
    }
}

/* --- giving up --- */

static void give_up(once_pipe *pipe, int status, const once_error *error)
{
    if (pipe->status == ONCE_OK) {
        pipe->status = status;
        pipe->error = *error;
        pipe->error.status = status;
    }
    pipe->stopping = true;
}

/* A server may come back, and so may space on a disk. */
static bool may_pass(int status) { return once_status_class(status) == ONCE_CLASS_RETRY || status == ONCE_E_FULL; }

/* Why it is given up, and what to do about it. */
static void say_given_up(const once_pipe *pipe, int status, const once_error *error, once_error *out)
{
    char patience[ONCE_DURATION_TEXT];
    once_duration_format(pipe->spec->patience_ms, patience);
    if (status == ONCE_E_UNAVAILABLE) once_fail(out, status, "%.400s; gave up: run again when it is back, or raise 'patience' (%s)", error->text, patience);
    if (status == ONCE_E_FULL) once_fail(out, status, "%.400s; gave up: run again when there is space, or raise 'patience' (%s)", error->text, patience);
}

/* Whether to repeat after this failure; otherwise the pipeline was told to end. Sets when to go on. `since_ms`: the first failure in a
 * row, where patience counts. `longest_ms`: the longest pause. */
static bool worth_another_try(once_pipe *pipe, int status, const once_error *error, unsigned *tries, int64_t *at_ms, int64_t since_ms,
                              int64_t now_ms, int64_t longest_ms)
{
    const once_class class = once_status_class(status);
    const bool few = ++*tries < FINITE_TRIES;
    const bool passing = may_pass(status) && (!pipe->o.finite || few || now_ms - since_ms < pipe->spec->patience_ms);
    const bool somebody_acts = class == ONCE_CLASS_PAUSE && !pipe->o.finite;
    const bool may_drain = !pipe->stopping || (status == ONCE_E_ABORTED && few); /* the store is there: what is in flight can be settled */
    if (!may_drain || !(passing || somebody_acts)) {
        once_error why = *error;
        if (may_drain && since_ms < now_ms) say_given_up(pipe, status, error, &why);
        give_up(pipe, status, &why);
        return false;
    }
    const once_retry pace = {.min_ms = longest_ms < 100 ? longest_ms : 100, .max_ms = longest_ms < 10000 ? longest_ms : 10000};
    *at_ms = now_ms + once_retry_delay_ms(&pace, *tries, pipe->o.env);
    return true;
}

/* How long the store may be left alone after it failed, while we hold claims. */
static int64_t longest_pause_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t lease_ms = once_flight_shortest_ms(&pipe->flight);
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->held && pipe->work[i]->request.lease_ms < lease_ms) lease_ms = pipe->work[i]->request.lease_ms;
    return once_lease_pause_ms(lease_ms, now_ms - pipe->failing_since_ms);
}

/* --- source side --- */

static uint64_t may_ack(const once_pipe *pipe)
{
    if (ONCE_PLANTED(ack_past_gap)) return pipe->next_ticket - 1;
    return pipe->watermark.upto;
}

/* Of what was fetched there is enough in memory. When none of it is left to be worked on, it is held for another reason (the cursor's),
 * and waiting would not help. */
static bool holds_enough(const once_pipe *pipe)
{
    if (pipe->ready_n >= pipe->batch_max || pipe->ready_bytes >= READY_BYTES || pipe->at[ONCE_AT_PARKED] >= PARKED * pipe->batch_max) return true;
    return pipe->held_bytes >= HELD_BYTES && pipe->ready_n + pipe->at[ONCE_AT_PARKED] + pipe->flight.n > 0;
}

/* Told to stop, and the source may have read what it cannot give to anybody else. */
static bool rest_to_fetch(const once_pipe *pipe) { return pipe->o.gives_once && !pipe->rested && !pipe->at_end && !pipe->store_gone; }

static once_action *source_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->source_out || pipe->ended) return NULL;
    pipe->source = (once_action){0};
    if (may_ack(pipe) > pipe->acked) {
        pipe->source.kind = ONCE_ACT_ACK;
        pipe->source.upto = may_ack(pipe);
    } else {
        const bool store_away = pipe->tries > 0; /* then nothing is fetched */
        if (pipe->stopping ? !rest_to_fetch(pipe) : pipe->at_end || store_away || now_ms < pipe->source_at_ms) return NULL;
        if (holds_enough(pipe)) return NULL;
        if (pipe->next_ticket - pipe->watermark.upto > (OUTSTANDING - 1) * pipe->batch_max) return NULL; /* one is very slow */
        once_batch *batch = batch_get(pipe);
        if (!batch) return NULL;
        pipe->source.kind = ONCE_ACT_FETCH;
        pipe->source.max = pipe->batch_max;
        pipe->source.batch = batch;
        pipe->source.intake = &pipe->fetch_intake;
        pipe->source.rest = pipe->stopping;
    }
    pipe->source_out = true;
    return &pipe->source;
}

static void source_failed(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    if (pipe->source_tries == 0) pipe->source_failing_since_ms = now_ms;
    worth_another_try(pipe, action->status, &action->error, &pipe->source_tries, &pipe->source_at_ms, pipe->source_failing_since_ms, now_ms,
                      ONCE_NEVER);
}

static void fetched(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    batch->open = batch->n;
    pipe->rested = action->rest && (batch->n == 0 || action->status != ONCE_OK);
    if (action->status != ONCE_OK) {
        assert(batch->n == 0);
        batch_put(pipe, batch);
        source_failed(pipe, action, now_ms);
        return;
    }
    pipe->source_tries = 0;
    pipe->at_end = action->at_end;
    if (batch->n == 0 || (pipe->stopping && (!pipe->o.gives_once || pipe->store_gone))) {
        pipe->dropped += batch->n;
        batch_put(pipe, batch);
        return;
    }
    once_error err;
    const int rc = batch->taken_in ? ONCE_OK : once_intake_batch(&pipe->fetch_intake, batch, &err);
    if (rc != ONCE_OK) { /* what was read cannot be read again by this run */
        pipe->dropped += batch->n;
        batch_put(pipe, batch);
        give_up(pipe, rc, &err);
        return;
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->bytes += batch->items[i].message.body.len;
        batch->items[i].ticket = pipe->next_ticket++;
        move(pipe, &batch->items[i], ONCE_AT_READY);
    }
    pipe->held_bytes += batch->bytes;
}

static void acked(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action->status != ONCE_OK) {
        source_failed(pipe, action, now_ms);
        return;
    }
    pipe->source_tries = 0;
    pipe->counts.acked += action->upto - pipe->acked;
    pipe->acked = action->upto;
}

/* --- the work: one transaction --- */

static once_action *emit(once_pipe *pipe, once_action_kind kind, size_t n)
{
    pipe->store = (once_action){.kind = kind, .items = pipe->list, .n = n};
    pipe->store_out = true;
    return &pipe->store;
}

/* Items of the round at a stage; `held` -1: whichever. */
static size_t gather(once_pipe *pipe, once_stage stage, int held)
{
    size_t n = 0;
    for (size_t i = 0; i < pipe->round_n; i++)
        if (pipe->round[i]->stage == stage && (held < 0 || pipe->round[i]->held == held)) pipe->list[n++] = pipe->round[i];
    return n;
}

/* The last item with this id becomes `item`; returns the one before. */
static once_item *mark_last(once_pipe *pipe, once_hash id, once_item *item)
{
    size_t at = id.a & (pipe->marks_size - 1);
    while (pipe->marks[at].last && !once_hash_equal(pipe->marks[at].id, id)) at = (at + 1) & (pipe->marks_size - 1);
    once_item *before = pipe->marks[at].last;
    pipe->marks[at] = (mark){id, item};
    return before;
}

static bool is_external(const once_item *item) { return item->handler && once_handler_external(item->handler); }

/* What comes from the source and is only accepted: the store takes it, and the work is done from there. An inbox does that with
 * everything. A natural message of a lane, where its claim would be written, is too: nobody remembers it when it is done, so the
 * broker need not bring it again, and a claim of it without a body that nobody brings back would hold its lane for ever. And told to stop,
 * what was read from a source that does not give it again. */
static bool through_store(const once_pipe *pipe, const once_item *item)
{
    if (!item->ticket || once_hash_is_zero(item->request.id)) return false;
    const bool durable_claim = is_external(item) || pipe->cautious_look;
    const bool begun = item->held || item->unsure || item->verdict;
    if (pipe->stopping && pipe->o.gives_once && !begun) return true;
    return pipe->spec->inbox || (item->request.natural && durable_claim && !once_hash_is_zero(item->request.lane.id));
}

/* Everything back to the start of the transaction; who waits for whom. */
static void arrange(once_pipe *pipe)
{
    pipe->round_n = pipe->next_round_n = 0;
    pipe->had_lanes = false;
    memset(pipe->admitted, 0, pipe->spec->n_handlers * sizeof *pipe->admitted);
    memset(pipe->marks, 0, pipe->marks_size * sizeof *pipe->marks);
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        const bool keyed = !once_hash_is_zero(item->request.id);
        if (item->returned) { /* nobody in the work waits for it: those that do wait outside, until it is over */
            item->stage = ONCE_STAGE_SETTLE;
            item->next_of_key = item->next_of_lane = NULL;
            pipe->had_lanes |= !once_hash_is_zero(item->request.lane.id);
            pipe->next_round[pipe->next_round_n++] = item;
            continue;
        }
        item->stage = !keyed ? ONCE_STAGE_BURY : through_store(pipe, item) ? ONCE_STAGE_ACCEPT : ONCE_STAGE_CLAIM;
        item->decision = (once_decision){.answer = ONCE_ANSWER_DEAD};
        if (ONCE_PLANTED(new_tokens) && item->unsure && !item->held) item->request.token.a += 2;
        item->result = item->failure = (once_bytes){0};
        item->started = false;
        item->replaces = item->replaces && item->unsure; /* then perhaps it has, and the entry does not show it any more */
        item->blockers = 0;
        item->next_of_key = item->next_of_lane = NULL;
        if (!keyed) continue;
        once_item *leader = mark_last(pipe, item->request.id, item);
        if (leader) {
            leader->next_of_key = item;
            item->blockers++;
        }
        if (!once_hash_is_zero(item->request.lane.id)) {
            pipe->had_lanes = true;
            leader = mark_last(pipe, item->request.lane.id, item);
            if (leader) {
                leader->next_of_lane = item;
                item->blockers++;
            }
        }
        if (item->blockers == 0) pipe->next_round[pipe->next_round_n++] = item;
    }
}

static void unblock(once_pipe *pipe, once_item *follower)
{
    if (follower && --follower->blockers == 0) pipe->next_round[pipe->next_round_n++] = follower;
}

/* Whether the set, which is twice as large as it may become, has room for the names of the item; they are put into it. */
static bool locks_fit(uint64_t *set, size_t *n, const once_item *item)
{
    enum { SET = 2 * LOCKS_MAX };
    if (*n + item->n_locks > LOCKS_MAX) return false; /* some may be there already, but a batch need not be as large as it can be */
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
static void shorten_work(once_pipe *pipe, size_t keep)
{
    while (pipe->work_n > keep) move(pipe, pipe->work[--pipe->work_n], ONCE_AT_READY);
}

/* As many as one transaction can lock the names of. */
static void bound_locks(once_pipe *pipe)
{
    uint64_t set[2 * LOCKS_MAX] = {0};
    size_t locks = 0, fit = 0;
    while (fit < pipe->work_n && locks_fit(set, &locks, pipe->work[fit])) fit++;
    shorten_work(pipe, fit);
}

static void start_work(once_pipe *pipe)
{
    const uint64_t random = once_env_random_u64(pipe->o.env);
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        if (!item->held && !item->unsure && !item->returned) item->request.token = once_token_of_run(pipe->o.run, random, i);
    }
    pipe->next = NEXT_BEGIN;
}

/* The transaction was rolled back: what it had claimed for effects outside will be claimed again, or not. */
static void unreserve_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->stage == ONCE_STAGE_FLY) {
            once_flight_unreserve(&pipe->flight, pipe->work[i]);
            pipe->work[i]->stage = ONCE_STAGE_CLAIM;
        }
}

/* It is over, or out of our hands: those that stood behind it are next. */
static void leave_waits(once_pipe *pipe, once_item *item)
{
    if (!item->joined) return;
    once_item *freed[2];
    const size_t n = once_waits_leave(&pipe->waits, item, freed);
    for (size_t i = n; i > 0; i--) move(pipe, freed[i - 1], ONCE_AT_READY);
}

/* The store is gone: its outcome cannot be kept. */
static void leave_unsettled(once_pipe *pipe, once_item *item)
{
    pipe->unsettled += is_external(item) && item->given;
    pipe->counts.attempts += item->returned && item->started;
    leave_waits(pipe, item);
    move(pipe, item, ONCE_AT_OVER);
}

/* Nothing of the work is kept; forget it. What came from the source was not acked, what was taken comes back by its lease. */
static void drop_work(once_pipe *pipe)
{
    unreserve_work(pipe);
    for (size_t i = 0; i < pipe->work_n; i++) leave_unsettled(pipe, pipe->work[i]);
    pipe->work_n = 0;
    pipe->next = NEXT_CHOOSE;
}

/* The transaction that found them did not happen: they are where they were. Should that not be known, they are asked for once more. */
static void drop_found(once_pipe *pipe)
{
    size_t kept = 0;
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        if (item->found && !item->unsure) move(pipe, item, ONCE_AT_OVER);
        else pipe->work[kept++] = item;
    }
    pipe->work_n = kept;
    pipe->runs_alone = NULL;
}

static void lose(once_pipe *pipe, once_item *lost) /* its claim is somebody else's now */
{
    size_t kept = 0;
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i] != lost) pipe->work[kept++] = pipe->work[i];
    assert(kept + 1 == pipe->work_n);
    pipe->work_n = kept;
    pipe->counts.fenced++;
    if (lost->ticket) { /* still the source's: asked again as if it had just come */
        lost->held = false;
        move(pipe, lost, ONCE_AT_READY);
    } else {
        leave_waits(pipe, lost);
        move(pipe, lost, ONCE_AT_OVER);
    }
}

static void die(once_item *item, once_bytes reason)
{
    item->outcome = ONCE_DEAD;
    item->failure = reason;
    item->maybe = is_external(item) && item->decision.silent; /* what is known of the attempt before stays known */
    item->stage = ONCE_STAGE_SETTLE;
}

/* What a failure means: another try after the backoff (or when the other side said), or the end of the budget. */
static void judge_failure(once_pipe *pipe, once_item *item, bool told_when)
{
    if (item->outcome != ONCE_RETRY) return;
    const once_retry *retry = &item->handler->retry;
    const uint32_t failures = item->decision.failures + 1;
    if (once_retry_is_spent(retry, failures, item->decision.failing_for_ms) && !ONCE_PLANTED(no_budget)) item->outcome = ONCE_DEAD;
    else if (!told_when) item->delay_ms = once_retry_pause_ms(retry, failures, item->decision.failing_for_ms, pipe->o.env);
}

/* An effect that began and asks to be put back found the other side away. That is no failure, but it must not be asked again at once:
 * the pauses grow with the attempts. One that was told to end, or never began, has not found out anything. */
static void pace_release(once_pipe *pipe, once_item *item, bool told_when)
{
    if (item->outcome != ONCE_RELEASE || !item->started || item->told_to_end || told_when || ONCE_PLANTED(release_at_once)) return;
    item->delay_ms = once_retry_delay_ms(&item->handler->retry, item->decision.attempt, pipe->o.env);
}

static void ran(once_pipe *pipe, once_item *item)
{
    item->started = true;
    item->stage = ONCE_STAGE_SETTLE;
    judge_failure(pipe, item, false);
}

/* The item is ours. Is there a reason not to run it? */
static void decide_run(once_pipe *pipe, once_item *item)
{
    const bool external = is_external(item);
    if (pipe->stopping && (item->held || external) && !(item->verdict && item->outcome == ONCE_UNKNOWN)) {
        item->outcome = ONCE_RELEASE;
        item->failure = ONCE_BYTES("put back at shutdown");
        item->delay_ms = 0;
        item->stage = ONCE_STAGE_SETTLE;
    } else if (!item->handler || !item->input) {
        die(item, item->reason);
    } else if (once_retry_is_spent_in_silence(&item->handler->retry, &item->decision) && !ONCE_PLANTED(no_budget)) {
        die(item, once_retry_silence(&item->decision, &item->batch->arena));
    } else if (item->decision.gap_over && pipe->spec->gap_dead) {
        die(item, item->decision.reason);
    } else if (item->verdict) {
        item->failure = item->reason;
        item->maybe |= item->outcome == ONCE_UNKNOWN;
        ran(pipe, item);
    } else if (external) {
        item->stage = ONCE_STAGE_FLY;
        once_flight_reserve(&pipe->flight, item);
    } else {
        item->stage = ONCE_STAGE_RUN;
    }
}

/* Nothing is left to do, but for a letter where the message was refused. */
static void refused_or_over(once_item *item)
{
    const once_answer answer = item->decision.answer;
    item->stage = answer == ONCE_ANSWER_CONFLICT || answer == ONCE_ANSWER_TOO_OLD ? ONCE_STAGE_BURY : ONCE_STAGE_OVER;
    if (answer == ONCE_ANSWER_CONFLICT)
        item->reason = item->decision.lane ? item->decision.reason : ONCE_BYTES("conflict: the key was used before with other content");
}

static void note_replaced(const once_pipe *pipe, once_item *item)
{
    if (!item->decision.letter) return;
    item->replaces = true;
    item->replaces_ours = item->decision.left_by == pipe->o.run;
}

static void decide(once_pipe *pipe, once_item *item)
{
    const bool before = item->overtakes && item->unsure; /* then perhaps it has, and the entry does not show it any more */
    item->overtakes = item->ticket && (item->decision.left_by == pipe->o.run || before) && !item->decision.letter;
    note_replaced(pipe, item);
    if (item->verdict && item->outcome == ONCE_UNKNOWN && item->decision.answer != ONCE_ANSWER_RUN) {
        /* Its outcome was written ahead, and committed by whoever ended the transaction: that it is there says nothing. */
        item->decision.answer = ONCE_ANSWER_DEAD;
        item->stage = ONCE_STAGE_BURY;
        return;
    }
    if (item->found && item->decision.answer != ONCE_ANSWER_RUN) {
        item->stage = ONCE_STAGE_OVER; /* the store has it */
        return;
    }
    switch (item->decision.answer) {
    case ONCE_ANSWER_RUN: decide_run(pipe, item); break;
    case ONCE_ANSWER_BUSY:
    case ONCE_ANSWER_LATER:
    case ONCE_ANSWER_GAP:
    case ONCE_ANSWER_UNKNOWN: item->stage = ONCE_STAGE_ACCEPT; break;
    default: refused_or_over(item);
    }
}

/* In a cautious pass nothing runs that was not claimed durably: what would run goes back to the queue with all behind it, to be
 * claimed durably and run alone. True: the pass must be left. */
static bool cautious_leaves(once_pipe *pipe)
{
    if (!pipe->cautious_look) return false;
    size_t keep = 0;
    while (keep < pipe->work_n) {
        const once_item *item = pipe->work[keep];
        if (item->stage == ONCE_STAGE_CLAIM && !item->held && item->decision.answer == ONCE_ANSWER_RUN && !is_external(item)) break;
        keep++;
    }
    if (keep == pipe->work_n) return false;
    unreserve_work(pipe); /* before some of it leaves the work */
    pipe->cautious_window = 1;
    pipe->claim_first = pipe->work_n == 1; /* it keeps its token: after a commit whose fate is not known that tells what is our own */
    if (pipe->claim_first) return true;
    shorten_work(pipe, keep);
    return true;
}

static uint64_t *count_of_outcome(once_counts *counts, once_outcome outcome)
{
    switch (outcome) {
    case ONCE_DONE: return &counts->done;
    case ONCE_ALREADY: return &counts->already;
    case ONCE_REJECTED: return &counts->rejected;
    case ONCE_STALE: return &counts->stale;
    case ONCE_RETRY:
    case ONCE_RELEASE: return &counts->waiting;
    case ONCE_UNKNOWN: return &counts->unknown;
    default: return &counts->dead;
    }
}

static void count_settled_by_lane(once_pipe *pipe, const once_item *item)
{
    const once_answer answer = item->decision.answer;
    assert(answer == ONCE_ANSWER_STALE || answer == ONCE_ANSWER_DUPLICATE || answer == ONCE_ANSWER_CONFLICT);
    pipe->counts.stale += answer == ONCE_ANSWER_STALE;
    pipe->counts.duplicates += answer == ONCE_ANSWER_DUPLICATE;
    pipe->counts.dead += answer == ONCE_ANSWER_CONFLICT;
    pipe->counts.conflicts += answer == ONCE_ANSWER_CONFLICT;
}

/* Where a message stands after its transaction. */
static uint64_t *count_of(once_pipe *pipe, once_item *item, bool buried, bool settled)
{
    once_counts *counts = &pipe->counts;
    if (buried) {
        if (!item->letter) return &counts->duplicates; /* its letter was there already, or was discarded */
        counts->conflicts += item->decision.answer == ONCE_ANSWER_CONFLICT;
        counts->too_old += item->decision.answer == ONCE_ANSWER_TOO_OLD;
        return &counts->dead;
    }
    if (settled && item->outcome == ONCE_UNKNOWN) (void)once_id_set_add(&pipe->unknown, item->request.id);
    if (settled) return count_of_outcome(counts, item->outcome);
    switch (item->decision.answer) {
    case ONCE_ANSWER_DUPLICATE: return item->decision.own ? count_of_outcome(counts, item->decision.outcome) : &counts->duplicates;
    case ONCE_ANSWER_STALE: return &counts->stale;
    case ONCE_ANSWER_WAITING: return &counts->waiting;
    case ONCE_ANSWER_UNKNOWN: return once_id_set_add(&pipe->unknown, item->request.id) ? &counts->unknown : &counts->duplicates; /* a key is unknown once */
    case ONCE_ANSWER_DEAD: return item->decision.own ? &counts->dead : &counts->duplicates;
    default: return &counts->duplicates;
    }
}

static void sooner(int64_t *at_ms, int64_t now_ms, int64_t wait_ms)
{
    if (wait_ms != ONCE_NEVER && now_ms + wait_ms + CLOCK_SLACK_MS < *at_ms) *at_ms = now_ms + wait_ms + CLOCK_SLACK_MS;
}

/* A key that was counted as unknown is so no longer: a person had it tried again. */
static bool is_known_now(once_pipe *pipe, const once_item *item)
{
    const bool goes_on = !item->ticket || item->stage == ONCE_STAGE_SETTLE; /* what was only delivered again changes nothing */
    if (!goes_on || !once_id_set_remove(&pipe->unknown, item->request.id)) return false;
    pipe->counts.unknown--;
    return true;
}

/* Where the message comes from: the source, or the store, where it was waiting for us or for an earlier run. */
static void count_origin(once_pipe *pipe, const once_item *item, bool known_now)
{
    if (item->ticket) pipe->counts.received++;
    else if (known_now) return;
    else if (!item->resumed && pipe->counts.waiting) pipe->counts.waiting--;
    else pipe->counts.resumed++;
}

/* The transaction did not come to it: no slot was free, or it stands behind one that flies now. */
static bool is_left(const once_item *item) { return item->stage == ONCE_STAGE_CLAIM || item->stage == ONCE_STAGE_ACCEPT; }

/* Whether the item ends with the transaction that it is in. */
static bool ends_here(const once_item *item) { return !is_left(item) && item->stage != ONCE_STAGE_FLY && !item->lost; }

static void ack_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        if (!item->ticket || item->acked || !ends_here(item)) continue;
        once_watermark_end(&pipe->watermark, item->ticket);
        item->acked = true;
        pipe->over++;
    }
}

/* A cursor is kept at the last one that is over, and that may be one whose transaction was long ago. */
static void remember_farthest(once_pipe *pipe, once_item *item)
{
    once_item *before = pipe->farthest;
    if (!pipe->spec->source.cursor || !item->ticket || (before && before->ticket > item->ticket)) return;
    item->batch->open++;
    pipe->farthest = item;
    if (before) batch_let_go(pipe, before->batch);
}

/* An effect that is claimed after one that may have happened, or gives that claim back and has had no effect. */
static int repeats(const once_item *item)
{
    if (!item->decision.silent || !is_external(item)) return 0;
    if (item->stage == ONCE_STAGE_FLY) return 1;
    return item->returned && item->outcome == ONCE_RELEASE ? -1 : 0;
}

/* The same, where a commit whose fate is not known may have counted it before: rather twice than not at all. */
static int new_repeats(const once_item *item)
{
    const int n = ONCE_PLANTED(repeats_hidden) ? 0 : repeats(item);
    return (n > 0 && item->decision.own) || (n < 0 && item->unsure) ? 0 : n;
}

/* Versions that were given up for it; counted with its first settlement, so that a run that is killed hides none. */
static int64_t given_up(const once_item *item)
{
    return item->stage == ONCE_STAGE_SETTLE && !item->lost ? item->decision.given_up : 0;
}

static void count_over(once_pipe *pipe, once_item *item, int64_t now_ms)
{
    once_counts *counts = &pipe->counts;
    const bool settled = item->stage == ONCE_STAGE_SETTLE, known_now = is_known_now(pipe, item);
    count_origin(pipe, item, known_now);
    /* The one before stands no longer where it was counted: it is the duplicate now. */
    if (known_now && item->ticket) {
        counts->duplicates++;
    } else if (item->overtakes && counts->waiting) {
        counts->waiting--;
        counts->duplicates++;
    }
    ++*count_of(pipe, item, item->stage == ONCE_STAGE_BURY, settled);
    counts->given_up += (uint64_t)given_up(item);
    const bool ran_before = item->decision.own && item->decision.answer != ONCE_ANSWER_RUN; /* in a commit whose reply was lost */
    counts->attempts += item->started || ran_before;
    if (settled && (item->outcome == ONCE_RETRY || item->outcome == ONCE_RELEASE)) sooner(&pipe->take_at_ms, now_ms, item->delay_ms);
    if (!settled && item->decision.answer == ONCE_ANSWER_WAITING) sooner(&pipe->take_at_ms, now_ms, item->decision.wait_ms);
    counts->retries += settled && item->outcome == ONCE_RETRY;
    if (pipe->cautious_left && item->started) pipe->cautious_left--;
}

/* What was found in the store and is there as it was is no business of ours. */
static bool is_untouched(const once_item *item)
{
    const once_decision *d = &item->decision;
    if (!item->found || item->stage == ONCE_STAGE_SETTLE || d->answer == ONCE_ANSWER_STALE) return false;
    return !(d->answer == ONCE_ANSWER_DUPLICATE && (d->own || d->lane)) && !(d->answer == ONCE_ANSWER_DEAD && d->own);
}

/* The claim is durable: the effect may begin. */
static void depart(once_pipe *pipe, once_item *item, int64_t asked_at_ms)
{
    if (!item->joined && !once_waits_in_use(&pipe->waits, item)) once_waits_join(&pipe->waits, item);
    item->unsure = false; /* its fate is known */
    item->claimed_at_ms = asked_at_ms;
    move(pipe, item, ONCE_AT_FLIGHT);
    pipe->counts.repeats += repeats(item) > 0;
}

/* Its effect ended, and its claim was somebody else's by then. */
static void give_away(once_pipe *pipe, once_item *item)
{
    pipe->counts.fenced++;
    pipe->counts.attempts += item->started;
    if (item->ticket) { /* still the source's: asked again as if it had just come */
        item->held = item->lost = item->returned = item->unsure = item->maybe = false;
        forget_output(item);
        move(pipe, item, ONCE_AT_READY);
    } else {
        leave_waits(pipe, item);
        move(pipe, item, ONCE_AT_OVER);
    }
}

/* A message that was waiting is the letter of a conflict now. */
static void count_replaced(once_counts *counts, bool ours)
{
    if (ours && counts->waiting) counts->waiting--;
    else counts->resumed++;
    counts->dead++;
    counts->conflicts++;
}

/* How many were replaced with this commit: of ours, and of others. */
static void gather_replaced(once_pipe *pipe, size_t out[2])
{
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        if (!item->replaces || is_left(item)) continue;
        out[!item->replaces_ours]++;
        item->replaces = false;
    }
}

/* So many that were due have been handed out. */
static void looked_for_due(once_pipe *pipe, size_t n, int64_t now_ms)
{
    /* Lanes that are behind come first: what the source brings meanwhile would only stand behind them. */
    if (!pipe->took_last) pipe->takes_left = TAKES_IN_A_ROW;
    pipe->takes_left = pipe->spec->order && !pipe->spec->inbox && pipe->takes_left && n >= pipe->batch_max / 64 ? pipe->takes_left - 1 : 0;
    pipe->took_last = true;
    pipe->take_at_ms = n ? now_ms : now_ms + (pipe->counts.waiting ? WAITING_POLL_MS : POLL_MS); /* there may be more */
}

static void conclude(once_pipe *pipe, int64_t now_ms)
{
    size_t replaced[2] = {0};
    gather_replaced(pipe, replaced);
    ack_work(pipe);
    for (size_t i = 0; i < pipe->keeping_n; i++)
        if (pipe->keeping[i]->place == ONCE_AT_FLIGHT) once_flight_extended(&pipe->flight, pipe->keeping[i], pipe->asked_at_ms);
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->stage == ONCE_STAGE_FLY) depart(pipe, pipe->work[i], pipe->asked_at_ms);
    while (pipe->work_n) { /* from the last on: what goes back to the queue keeps its order */
        once_item *item = pipe->work[--pipe->work_n];
        if (item->stage == ONCE_STAGE_FLY) continue;
        if (is_left(item)) {
            move(pipe, item, ONCE_AT_READY);
            continue;
        }
        pipe->counts.repeats -= repeats(item) < 0;
        if (item->lost) {
            give_away(pipe, item);
        } else if (is_untouched(item)) {
            move(pipe, item, ONCE_AT_OVER);
        } else {
            count_over(pipe, item, now_ms);
            leave_waits(pipe, item);
            remember_farthest(pipe, item);
            move(pipe, item, ONCE_AT_OVER);
        }
    }
    /* After all others: whom it replaced may have been left waiting in this very transaction. */
    for (int other = 0; other < 2; other++)
        for (; replaced[other]; replaced[other]--) count_replaced(&pipe->counts, !other);
    /* A settled message of a lane may have woken the next one, and that one may be ours to take. */
    if (pipe->had_lanes && (pipe->counts.waiting || pipe->counts.resumed)) pipe->take_at_ms = now_ms;
    if (pipe->careful_left) pipe->careful_left--;
    if (pipe->ran) pipe->hung_up = 0;
    if (pipe->cautious_left && pipe->cautious_look && pipe->cautious_window < pipe->batch_max) pipe->cautious_window *= 2;
    pipe->keeping_n = 0;
    if (pipe->find_due) looked_for_due(pipe, pipe->found_n, now_ms);
    pipe->next = NEXT_CHOOSE;
}

/* --- what to do next --- */

static void end_if_possible(once_pipe *pipe)
{
    const bool acks_due = may_ack(pipe) > pipe->acked && pipe->status == ONCE_OK;
    if (!pipe->source_out && !acks_due && !rest_to_fetch(pipe) && pipe->flight.n == 0) pipe->ended = true;
}

/* A message that can only be claimed when a slot of its handler is free. */
static bool needs_slot(const once_pipe *pipe, const once_item *item)
{
    return !once_hash_is_zero(item->request.id) && is_external(item) && !item->held && !item->returned && !through_store(pipe, item);
}

static bool has_slot(const once_pipe *pipe, const once_item *item, int64_t now_ms)
{
    return now_ms >= pipe->effect_at_ms && once_flight_free(&pipe->flight, item->handler) > 0;
}

static bool must_wait(const once_pipe *pipe, const once_item *item)
{
    if (once_hash_is_zero(item->request.id) || pipe->spec->inbox) return false;
    return !item->joined && once_waits_in_use(&pipe->waits, item) && !ONCE_PLANTED(flight_forgotten);
}

/* Whether the first message of the queue could do anything. */
static bool ready_can_go(const once_pipe *pipe, int64_t now_ms)
{
    if (pipe->ready_n == 0 || pipe->stopping) return false;
    const once_item *first = pipe->ready[pipe->ready_first];
    return !needs_slot(pipe, first) || has_slot(pipe, first, now_ms) || must_wait(pipe, first);
}

/* Messages from the queue into the work, behind those that are there. Who is behind one that flies is parked there. */
static void work_from_ready(once_pipe *pipe, int64_t now_ms)
{
    bool alone = false;
    size_t limit = pipe->cautious_look && pipe->cautious_window < pipe->batch_max ? pipe->cautious_window : pipe->batch_max;
    const size_t from = pipe->work_n, outside = pipe->flight.slots ? pipe->flight.slots - pipe->flight.n + LOOK_AHEAD : 0;
    size_t needing = 0;
    while (pipe->ready_n && pipe->work_n - from < limit && pipe->work_n < pipe->batch_max && !alone) {
        once_item *first = pipe->ready[pipe->ready_first];
        if (first->apart && pipe->work_n) break;
        if (must_wait(pipe, first)) {
            move(pipe, first, ONCE_AT_PARKED);
            continue;
        }
        if (needs_slot(pipe, first) && (now_ms < pipe->effect_at_ms || ++needing > outside)) break;
        alone = first->apart;
        move(pipe, first, ONCE_AT_WORK);
    }
}

/* What only goes into the store kills nobody. In an inbox that is all but what had been found there, and waits here to be run by itself. */
static bool only_accepts(const once_pipe *pipe)
{
    return pipe->spec->inbox && (pipe->ready_n == 0 || pipe->ready[pipe->ready_first]->ticket);
}

static void begin_work(once_pipe *pipe, int64_t now_ms)
{
    assert(pipe->work_n == 0);
    while (pipe->back && pipe->work_n < pipe->batch_max) move(pipe, pipe->back, ONCE_AT_WORK);
    if (ONCE_PLANTED(no_extension)) pipe->flight.extend_at_ms = ONCE_NEVER;
    pipe->keeping_n = once_flight_extends(&pipe->flight, now_ms, pipe->keeping, pipe->batch_max);
    pipe->cautious_look = pipe->cautious_left > 0 && !only_accepts(pipe);
    const bool alone = pipe->cautious_look && (pipe->work_n || pipe->keeping_n); /* nothing that may kill us is mixed with what came back */
    const bool from_ready = pipe->stopping ? pipe->o.gives_once : !pipe->take_again; /* of a take that is not repeated nothing is known here */
    if (!alone && from_ready) work_from_ready(pipe, now_ms);
    pipe->took_last = false;
    if (pipe->work_n == 0 && pipe->keeping_n == 0) return;
    const bool single = pipe->work_n == 1;
    bound_locks(pipe);
    start_work(pipe);
    const bool one = pipe->cautious_look && !alone && single && !once_hash_is_zero(pipe->work[0]->request.id);
    if (one && !is_external(pipe->work[0]) && !through_store(pipe, pipe->work[0])) pipe->next = NEXT_PRECLAIM;
}

/* How many may be taken: what is taken starts at once. Of a take whose reply was lost all of it is asked for again, or the rest of what is
 * claimed already would be forgotten until its leases are over. Its slots are still free: nothing new is claimed before. */
static size_t take_max(const once_pipe *pipe, int64_t now_ms)
{
    if (pipe->take_again) return pipe->take_most;
    const size_t most = pipe->cautious_left ? 1 : pipe->batch_max;
    if (!pipe->flight.slots) return most;
    if (now_ms < pipe->effect_at_ms) return 0;
    const size_t free = once_flight_free_least(&pipe->flight);
    return free < most ? free : most;
}

/* Instead of claiming it durably, which keeps others from its lane until it has run. */
static bool may_find(const once_pipe *pipe)
{
    return pipe->finds && !pipe->stopping && !pipe->cautious_left && pipe->rolled_back == 0;
}

static void begin_find_due(once_pipe *pipe)
{
    pipe->find_due = true;
    pipe->cautious_look = false;
    pipe->keeping_n = 0;
    start_work(pipe);
}

/* Not in a transaction that finds out about a message, or about a commit. */
static bool wants_find(const once_pipe *pipe)
{
    const bool runs = pipe->find_due || (pipe->had_lanes && (!pipe->spec->inbox || pipe->work[0]->held)); /* not where messages are only accepted */
    if (pipe->sought || !may_find(pipe) || !runs) return false;
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->unsure || pipe->work[i]->apart || pipe->work[i]->verdict) return false;
    return true;
}

static int64_t longest_lease_ms(const once_spec *spec)
{
    int64_t lease_ms = 0;
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].lease_ms > lease_ms) lease_ms = spec->handlers[i].lease_ms;
    return lease_ms;
}

static once_action *begin_find(once_pipe *pipe)
{
    once_batch *batch = batch_get(pipe);
    size_t n = 0;
    if (!batch) return NULL;
    for (size_t i = 0; i < pipe->work_n; i++)
        if (!once_hash_is_zero(pipe->work[i]->request.lane.id)) pipe->list[n++] = pipe->work[i];
    once_action *find = emit(pipe, ONCE_ACT_FIND, n);
    find->max = pipe->batch_max;
    find->batch = batch;
    find->due = pipe->find_due;
    find->lease_ms = longest_lease_ms(pipe->spec);
    return find;
}

static once_action *begin_take(once_pipe *pipe, size_t max, int64_t now_ms)
{
    if (!pipe->take_batch && !(pipe->take_batch = batch_get(pipe))) return NULL;
    pipe->take_next = false;
    if (!pipe->take_again || ONCE_PLANTED(take_forgotten))
        pipe->take_token = once_token_of_run(pipe->o.run, once_env_random_u64(pipe->o.env), 0);
    if (!pipe->take_again) pipe->take_asked_ms = now_ms; /* the reply that was lost may have begun the leases */
    once_action *take = emit(pipe, ONCE_ACT_TAKE, 0);
    take->max = pipe->take_most = max;
    take->batch = pipe->take_batch;
    take->token = pipe->take_token;
    take->again = pipe->take_again;
    take->lease_ms = longest_lease_ms(pipe->spec);
    return take;
}

/* It was claimed and has not begun: it goes back to the store without blame. */
static void recall_one(once_pipe *pipe, once_item *item)
{
    assert(!item->given);
    item->outcome = ONCE_RELEASE;
    item->failure = ONCE_BYTES("put back at shutdown");
    item->delay_ms = 0;
    move(pipe, item, ONCE_AT_RETURNED);
}

static void recall(once_pipe *pipe)
{
    once_item *next;
    for (once_item *item = pipe->flight.first; item; item = next) {
        next = item->next_flying;
        if (!item->given) recall_one(pipe, item);
    }
}

/* What was taken from the store and waits here for a transaction without others goes back there. What was in a commit of which no answer
 * came is asked for, if its effect is the store's own: it may be done, and is counted then. */
static void put_back_held(once_pipe *pipe)
{
    for (size_t left = pipe->ready_n; left; left--) {
        once_item *item = pipe->ready[pipe->ready_first];
        if (item->held || (item->unsure && !is_external(item))) {
            move(pipe, item, ONCE_AT_WORK);
        } else { /* once around */
            ready_take(pipe, item);
            ready_put(pipe, item, true);
        }
    }
    if (pipe->work_n) start_work(pipe);
}

static once_action *choose_last(once_pipe *pipe, int64_t now_ms)
{
    recall(pipe);
    if (!pipe->store_gone) put_back_held(pipe);
    if (pipe->next != NEXT_CHOOSE) return NULL;
    if (pipe->store_gone)
        while (pipe->back) leave_unsettled(pipe, pipe->back);
    const bool rest = pipe->o.gives_once && pipe->ready_n;
    if (!pipe->store_gone && (pipe->back || rest || now_ms >= pipe->flight.extend_at_ms)) begin_work(pipe, now_ms);
    else if (!pipe->store_gone && pipe->flight.n && now_ms >= pipe->renew_at_ms) return emit(pipe, ONCE_ACT_RENEW, 0);
    else end_if_possible(pipe);
    return NULL;
}

static bool is_over(const once_item *item, int64_t now_ms) { return item && now_ms - item->claimed_at_ms >= item->request.lease_ms; }

/* Our own leases may be over: we were stopped, or the store was away. They are extended and settled before anything is taken, which
 * would find them so. */
static bool must_keep_first(const once_pipe *pipe, int64_t now_ms)
{
    return now_ms >= pipe->flight.extend_at_ms || is_over(pipe->back, now_ms);
}

/* No work: take some. NULL and next != CHOOSE: there is work now. NULL and next == CHOOSE: nothing to do. */
static once_action *choose(once_pipe *pipe, int64_t now_ms)
{
    pipe->find_due = false;
    if (pipe->stopping) return choose_last(pipe, now_ms);
    const bool go = pipe->back || now_ms >= pipe->flight.extend_at_ms || (ready_can_go(pipe, now_ms) && !pipe->take_again);
    const bool take_due = now_ms >= pipe->take_at_ms && !(pipe->took_last && go && !pipe->takes_left) && !must_keep_first(pipe, now_ms);
    const size_t max = take_due ? take_max(pipe, now_ms) : 0;
    if (max && may_find(pipe) && !pipe->take_again && !pipe->take_next) {
        begin_find_due(pipe);
        return NULL;
    }
    if (max) return begin_take(pipe, max, now_ms);
    if (now_ms >= pipe->sweep_at_ms) return emit(pipe, ONCE_ACT_SWEEP, 0);
    if (now_ms >= pipe->renew_at_ms) return emit(pipe, ONCE_ACT_RENEW, 0);
    if (go) {
        begin_work(pipe, now_ms);
        return NULL;
    }
    const bool idle = pipe->at_end && !pipe->source_out && pipe->ready_n == 0 && pipe->flight.n == 0;
    if (idle && now_ms >= pipe->stats_at_ms) return emit(pipe, ONCE_ACT_STATS, 0);
    return NULL;
}

/* The message up to which everything will be over when the work is committed; NULL: there is none. Only a cursor asks. */
static const once_item *last_without_gap(once_pipe *pipe)
{
    if (!pipe->spec->source.cursor) return NULL;
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->ticket && ends_here(pipe->work[i])) once_watermark_peek(&pipe->watermark, pipe->work[i]->ticket, true);
    const uint64_t upto = once_watermark_peeked(&pipe->watermark);
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i]->ticket && ends_here(pipe->work[i])) once_watermark_peek(&pipe->watermark, pipe->work[i]->ticket, false);

    const once_item *last = pipe->farthest && pipe->farthest->ticket <= upto ? pipe->farthest : NULL;
    for (size_t i = 0; i < pipe->work_n; i++) {
        const once_item *item = pipe->work[i];
        if (item->ticket && item->ticket <= upto && ends_here(item) && (!last || item->ticket > last->ticket)) last = item;
    }
    return last;
}

static bool admit(once_pipe *pipe, const once_item *item)
{
    uint32_t *admitted = &pipe->admitted[item->handler - pipe->spec->handlers];
    if (*admitted >= once_flight_free(&pipe->flight, item->handler) && !ONCE_PLANTED(overclaim)) return false;
    ++*admitted;
    return true;
}

/* The items of the last round are decided; whoever waited for them is next. */
static void next_round(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->round_n; i++) {
        if (pipe->round[i]->stage == ONCE_STAGE_FLY) continue; /* not over: they wait on, outside of this transaction */
        unblock(pipe, pipe->round[i]->next_of_key);
        unblock(pipe, pipe->round[i]->next_of_lane);
    }
    /* Whoever needs a slot and finds none waits for the next round: duplicates of this one leave theirs. */
    size_t left = 0;
    pipe->round_n = 0;
    for (size_t i = 0; i < pipe->next_round_n; i++) {
        once_item *item = pipe->next_round[i];
        const bool wait = needs_slot(pipe, item) && !admit(pipe, item);
        if (wait) pipe->next_round[left++] = item;
        else pipe->round[pipe->round_n++] = item;
    }
    pipe->next_round_n = left;
    if (pipe->flight.slots) memset(pipe->admitted, 0, pipe->spec->n_handlers * sizeof *pipe->admitted);
    pipe->next = pipe->round_n ? NEXT_CLAIM : NEXT_BURY;
}

/* The executor has the list while effects come back, so it is a copy. */
static once_action *begin(once_pipe *pipe)
{
    size_t n = 0;
    for (size_t i = 0; i < pipe->work_n; i++) pipe->about[n++] = pipe->work[i];
    for (size_t i = 0; i < pipe->keeping_n; i++) pipe->about[n++] = pipe->keeping[i];
    once_action *action = emit(pipe, ONCE_ACT_BEGIN, n);
    action->items = pipe->about;
    action->kept = pipe->keeping_n;
    action->due = pipe->find_due;
    return action;
}

static void renewed(once_pipe *pipe, int64_t now_ms) { pipe->renew_at_ms = now_ms + pipe->o.renew_ms; }

static once_action *store_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->store_out || pipe->ended) return NULL;
    if (now_ms < pipe->store_at_ms && pipe->next != NEXT_ROLLBACK) return NULL; /* nobody waits with an open transaction */
    if (!pipe->renew_at_ms) renewed(pipe, now_ms); /* the record was just made */
    for (;;) {
        size_t n = 0;
        switch (pipe->next) {
        case NEXT_CHOOSE: {
            once_action *action = choose(pipe, now_ms);
            if (action || pipe->next == NEXT_CHOOSE) return action;
            break;
        }
        case NEXT_PRECLAIM:
            pipe->claim_first = false;
            pipe->list[0] = pipe->work[0];
            pipe->preclaim = true;
            return emit(pipe, ONCE_ACT_CLAIM, 1);
        case NEXT_BEGIN:
            arrange(pipe);
            pipe->sought = false;
            pipe->found_n = 0;
            pipe->ran = false;
            pipe->runs_alone = NULL;
            pipe->asked_at_ms = now_ms;
            return begin(pipe);
        case NEXT_KEEP:
            for (size_t i = 0; i < pipe->keeping_n; i++)
                if (pipe->keeping[i]->place == ONCE_AT_FLIGHT && !pipe->keeping[i]->lost) pipe->keeping[n++] = pipe->keeping[i];
            pipe->keeping_n = n;
            if (n) memcpy(pipe->list, pipe->keeping, n * sizeof *pipe->list); /* the executor has it while effects come back */
            if (n) {
                once_action *keep = emit(pipe, ONCE_ACT_EXTEND, n);
                keep->kept = n;
                return keep;
            }
            pipe->next = NEXT_FIND;
            break;
        case NEXT_FIND:
            if (wants_find(pipe)) return begin_find(pipe);
            pipe->next = NEXT_ROUND;
            break;
        case NEXT_ROUND: next_round(pipe); break;
        case NEXT_CLAIM:
            n = gather(pipe, ONCE_STAGE_CLAIM, false);
            if (n) return emit(pipe, ONCE_ACT_CLAIM, n);
            pipe->next = NEXT_EXTEND;
            break;
        case NEXT_EXTEND:
            n = gather(pipe, ONCE_STAGE_CLAIM, true);
            if (n) return emit(pipe, ONCE_ACT_EXTEND, n);
            pipe->next = NEXT_RUN;
            break;
        case NEXT_RUN: {
            if (cautious_leaves(pipe)) {
                pipe->next = NEXT_ROLLBACK;
                break;
            }
            n = gather(pipe, ONCE_STAGE_CLAIM, -1);
            for (size_t i = 0; i < n; i++) decide(pipe, pipe->list[i]);
            n = gather(pipe, ONCE_STAGE_RUN, -1);
            if (n) {
                once_action *run = emit(pipe, ONCE_ACT_RUN, n);
                pipe->runs_alone = n == 1 && !pipe->ran ? pipe->list[0] : NULL;
                pipe->ran = true;
                run->careful = pipe->careful_left > 0;
                run->blame = run->careful && pipe->rolled_back >= BLAME_AFTER && (pipe->runs_alone || ONCE_PLANTED(all_blamed));
                return run;
            }
            pipe->next = NEXT_SETTLE;
            break;
        }
        case NEXT_SETTLE:
            n = gather(pipe, ONCE_STAGE_SETTLE, -1);
            if (n) return emit(pipe, ONCE_ACT_SETTLE, n);
            pipe->next = NEXT_ACCEPT;
            break;
        case NEXT_ACCEPT:
            n = gather(pipe, ONCE_STAGE_ACCEPT, -1);
            if (n) return emit(pipe, ONCE_ACT_ACCEPT, n);
            pipe->next = NEXT_ROUND;
            break;
        case NEXT_BURY:
            for (size_t i = 0; i < pipe->work_n; i++)
                if (pipe->work[i]->stage == ONCE_STAGE_BURY) pipe->list[n++] = pipe->work[i];
            if (n) return emit(pipe, ONCE_ACT_BURY, n);
            pipe->next = NEXT_COMMIT;
            break;
        case NEXT_COMMIT:
            if (ONCE_PLANTED(ack_first)) ack_work(pipe);
            emit(pipe, ONCE_ACT_COMMIT, 0);
            pipe->store.last = last_without_gap(pipe);
            for (size_t i = 0; i < pipe->work_n; i++) {
                pipe->store.repeats += new_repeats(pipe->work[i]);
                pipe->store.given_up += given_up(pipe->work[i]);
            }
            return &pipe->store;
        case NEXT_ROLLBACK: return emit(pipe, ONCE_ACT_ROLLBACK, 0);
        }
    }
}

/* --- events of the store executor --- */

static bool has_work(const once_pipe *pipe) { return pipe->work_n || pipe->keeping_n; }

static void be_cautious(once_pipe *pipe)
{
    pipe->cautious_left = pipe->batch_max > CAUTIOUS_LEAST ? pipe->batch_max : CAUTIOUS_LEAST;
    pipe->cautious_window = 1;
}

static void give_verdict(once_item *item, once_outcome outcome, once_bytes reason)
{
    item->verdict = true;
    item->outcome = outcome;
    item->reason = reason;
    item->delay_ms = 0;
}

static bool last_chance(const once_item *item)
{
    return !item->hung_up && once_retry_is_spent(&item->handler->retry, item->first.failures + 1, item->first.failing_for_ms);
}

/* The server has hung up on a transaction in which effects ran: perhaps one of them made it, and a crash takes those of others along. As
 * after a death of our own they run one by one then, each claimed durably before. The one that was alone has failed; should its commit have
 * happened nevertheless, the next pass finds that before it heeds the verdict. */
static void suspect_effects(once_pipe *pipe, const once_action *action)
{
    const bool in_work = pipe->in_tx || action->kind == ONCE_ACT_COMMIT;
    if (action->status != ONCE_E_UNAVAILABLE || !in_work || !pipe->ran) return;
    once_item *alone = pipe->cautious_left ? pipe->runs_alone : NULL;
    if (alone && last_chance(alone)) {
        alone->hung_up = true; /* a server that was stopped at that very moment must not cost a message its life */
    } else if (alone) {
        give_verdict(alone, ONCE_RETRY, ONCE_BYTES("the database hung up while its effect ran, and it ran alone"));
        pipe->accused = true;
        be_cautious(pipe);
    } else if (++pipe->hung_up >= SUSPECT_AFTER || pipe->accused) {
        be_cautious(pipe);
        pipe->cautious_look = true;
        bool first = true;
        for (size_t i = 0; i < pipe->work_n; i++) { /* what was taken goes back, but for one, and is taken again one by one */
            once_item *item = pipe->work[i];
            if (!item->held || item->returned || item->verdict || is_external(item)) continue;
            if (!first) give_verdict(item, ONCE_RELEASE, ONCE_BYTES("put back: the database hung up on a batch that it was in"));
            first = false;
        }
    }
}

/* The message at whose statement it happened goes on without others, those before it without it; those behind it keep their order. */
static void set_apart(once_pipe *pipe)
{
    size_t at = 0;
    while (at < pipe->work_n && !pipe->work[at]->suspect) at++;
    if (at == pipe->work_n || pipe->work_n == 1) return;
    pipe->work[at]->suspect = false;
    pipe->work[at]->apart = true;
    unreserve_work(pipe); /* before some of it leaves the work */
    shorten_work(pipe, at ? at : 1);
}

/* By the database itself, and the store is there: a deadlock, a timeout. */
static bool is_rollback(int status) { return status == ONCE_E_ABORTED || status == ONCE_E_BUSY; }

/* Before effects have run, it is nobody's. */
static void count_rollback(once_pipe *pipe, const once_action *action)
{
    if (!is_rollback(action->status)) pipe->rolled_back = 0;
    else if (pipe->work_n && pipe->ran) pipe->rolled_back++;
    if (pipe->rolled_back < BLAME_AFTER || ONCE_PLANTED(nobody_blamed)) return;
    pipe->careful_left = CAREFUL_BATCHES;
    set_apart(pipe);
}

/* Something has ended the transaction while effects ran in it: they may stay, without their outcomes. So none of them may run again before a
 * person has looked, and nothing else may run either, because it would end the same way. One more transaction writes that down. */
static bool leave_unknown(once_pipe *pipe, const once_action *action)
{
    bool any = false;
    for (size_t i = 0; action->status == ONCE_E_UNSURE && i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        const bool begun = item->started || item->stage == ONCE_STAGE_RUN;
        if (!begun || item->returned || item->verdict || is_external(item)) continue;
        give_verdict(item, item->handler->natural ? ONCE_RETRY : ONCE_UNKNOWN,
                     ONCE_BYTES("something has ended the transaction that its effect ran in, and it is not known whether that was committed"));
        item->unsure = any = true;
    }
    if (!any) return false;
    give_up(pipe, action->status, &action->error);
    if (pipe->in_tx) {
        pipe->next = NEXT_ROLLBACK;
    } else {
        unreserve_work(pipe);
        pipe->next = NEXT_BEGIN;
    }
    return true;
}

static void store_failed(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (leave_unknown(pipe, action)) return;
    suspect_effects(pipe, action);
    count_rollback(pipe, action);
    if (pipe->tries == 0) pipe->failing_since_ms = now_ms;
    const bool soon = pipe->work_n && is_rollback(action->status) && pipe->tries < ROLLED_BACK_MANY;
    if (!worth_another_try(pipe, action->status, &action->error, &pipe->tries, &pipe->store_at_ms, pipe->failing_since_ms, now_ms,
                           soon ? ROLLED_BACK_MS : longest_pause_ms(pipe, now_ms)))
        pipe->store_gone = true;
    const bool preclaim = pipe->preclaim; /* repeated with the same token: it may have happened */
    pipe->preclaim = false;
    if (action->kind == ONCE_ACT_COMMIT && is_rollback(action->status)) drop_found(pipe);
    for (size_t i = 0; action->kind == ONCE_ACT_COMMIT && i < pipe->work_n; i++) pipe->work[i]->unsure = true;
    if (action->kind == ONCE_ACT_TAKE) pipe->take_again = true;
    if (pipe->in_tx) {
        pipe->next = NEXT_ROLLBACK;
        return;
    }
    for (size_t i = pipe->work_n; ONCE_PLANTED(start_first) && action->kind == ONCE_ACT_COMMIT && i > 0; i--)
        if (pipe->work[i - 1]->stage == ONCE_STAGE_FLY) depart(pipe, pipe->work[i - 1], pipe->asked_at_ms), pipe->work[i - 1] = pipe->work[--pipe->work_n];
    unreserve_work(pipe);
    if (pipe->store_gone) drop_work(pipe);
    else pipe->next = !has_work(pipe) ? NEXT_CHOOSE : preclaim ? NEXT_PRECLAIM : NEXT_BEGIN;
}

static bool own(once_item *item, once_bytes *words) { return words->len == 0 || once_arena_copy(&item->batch->arena, *words, words); }

static void preclaimed(once_pipe *pipe, once_item *item)
{
    pipe->preclaim = false;
    item->held = item->decision.answer == ONCE_ANSWER_RUN;
    if (item->decision.letter) { /* a fact already */
        count_replaced(&pipe->counts, item->decision.left_by == pipe->o.run);
        item->decision.letter = false;
        item->decision.left_by = 0;
    }
    item->first = item->decision;
    /* What the executor owns ends with the next transaction. */
    if (!own(item, &item->first.reason) || !own(item, &item->first.before)) item->first.reason = item->first.before = (once_bytes){0};
    pipe->next = NEXT_BEGIN;
}

static void lose_flying(once_pipe *pipe, once_item *item)
{
    once_flight_lose(&pipe->flight, item);
    if (!item->given) recall_one(pipe, item);
}

/* The claims of held items are checked inside the transaction that their effects will run in. */
static void extended(once_pipe *pipe, once_action *action)
{
    if (pipe->next == NEXT_KEEP) {
        for (size_t i = 0; i < action->n; i++)
            if (!action->items[i]->yes) lose_flying(pipe, action->items[i]);
        pipe->next = NEXT_FIND;
        return;
    }
    pipe->next = NEXT_RUN;
    for (size_t i = 0; i < action->n; i++) {
        once_item *item = action->items[i];
        if (item->yes) {
            item->decision = item->first;
            continue;
        }
        if (item->unsure) item->held = false; /* perhaps we settled it ourselves: a claim with its token tells */
        else lose(pipe, item);
        pipe->next = NEXT_ROLLBACK;
    }
}

static void run_carefully(once_pipe *pipe)
{
    pipe->careful_left = CAREFUL_BATCHES;
    pipe->next = NEXT_ROLLBACK;
}

static void have_run(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (!action->failed) {
        for (size_t i = 0; i < action->n; i++) ran(pipe, action->items[i]);
        pipe->next = NEXT_SETTLE;
        return;
    }
    if (ONCE_PLANTED(split_forgets)) {
        for (size_t i = 0; i < action->n; i++) action->items[i]->outcome = ONCE_DONE, ran(pipe, action->items[i]);
        conclude(pipe, now_ms);
    }
    run_carefully(pipe);
}

/* Effects that were presumed done were not, and nothing of the transaction is. A careful pass presumes nothing. */
static bool disproved(const once_pipe *pipe, const once_action *action)
{
    const bool in_work = pipe->in_tx || action->kind == ONCE_ACT_COMMIT;
    return in_work && pipe->careful_left == 0 && once_status_class(action->status) == ONCE_CLASS_MESSAGE;
}

static void settled(once_pipe *pipe, once_action *action)
{
    pipe->next = NEXT_ACCEPT;
    for (size_t i = 0; i < action->n; i++) {
        once_item *item = action->items[i];
        if (item->returned && item->yes) item->lost = false; /* nobody had gone on with it after all */
        if (item->yes) continue;
        item->lost = item->returned && !ONCE_PLANTED(fenced_acked); /* its effect was outside; what it did cannot be taken back */
        if (item->returned) continue;
        lose(pipe, item); /* fenced off: its effect must not be committed */
        pipe->next = NEXT_ROLLBACK;
    }
}

static void buried(once_pipe *pipe, once_action *action)
{
    for (size_t i = 0; i < action->n; i++) { /* after a commit whose fate is not known, what is there may be our own letter */
        once_item *item = action->items[i];
        item->letter = item->yes || (item->unsure && item->letter);
    }
    pipe->next = NEXT_COMMIT;
}

/* Taking was claiming it durably. Only a repeat goes through a transaction, which counts it. */
static bool may_depart_at_once(once_pipe *pipe, const once_item *item)
{
    return is_external(item) && item->input && !item->decision.silent && !item->decision.gap_over && !pipe->stopping;
}

static void took(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    pipe->take_batch = NULL;
    pipe->take_again = false;
    looked_for_due(pipe, batch->n, now_ms);
    pipe->next = NEXT_CHOOSE;
    if (batch->n == 0) {
        batch_put(pipe, batch);
        return;
    }
    pipe->keeping_n = 0;
    pipe->cautious_look = false;
    batch->open = batch->n;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        item->held = true;
        item->first = item->decision;
        item->resumed = item->request.run != pipe->o.run;
        if (item->decision.answer == ONCE_ANSWER_UNKNOWN) { /* nobody said how its last attempt ended: it stays where it is, and a delivery counts it */
            move(pipe, item, ONCE_AT_OVER);
            continue;
        }
        if (item->decision.answer != ONCE_ANSWER_RUN) { /* its lane settled it, and the store has recorded that */
            count_origin(pipe, item, is_known_now(pipe, item));
            count_settled_by_lane(pipe, item);
            move(pipe, item, ONCE_AT_OVER);
            continue;
        }
        const int rc = once_intake_taken(&pipe->intake, item, &err);
        if (rc != ONCE_OK) give_up(pipe, rc, &err);
        item->request.run = pipe->o.run; /* if it waits again, it is one of ours */
        if (rc == ONCE_OK && may_depart_at_once(pipe, item)) {
            once_flight_reserve(&pipe->flight, item);
            depart(pipe, item, pipe->take_asked_ms);
        } else {
            move(pipe, item, ONCE_AT_WORK);
        }
    }
    bound_locks(pipe);
    if (pipe->work_n) start_work(pipe);
    if (pipe->status != ONCE_OK) drop_work(pipe);
}

/* Behind what is claimed already, which is the head of its lane, and before what the source brings. */
static void add_found(once_pipe *pipe, once_batch *batch)
{
    once_item **work = pipe->about;
    size_t n = 0, before = pipe->work_n;
    for (size_t i = 0; i < batch->n; i++) move(pipe, &batch->items[i], ONCE_AT_WORK);
    for (size_t i = 0; i < before; i++)
        if (pipe->work[i]->held) work[n++] = pipe->work[i];
    for (size_t i = before; i < pipe->work_n; i++) work[n++] = pipe->work[i];
    for (size_t i = 0; i < before; i++)
        if (!pipe->work[i]->held) work[n++] = pipe->work[i];
    assert(n == pipe->work_n);
    memcpy(pipe->work, work, n * sizeof *work);
    arrange(pipe);
}

/* They are delivered once more, by the store, and claimed as such. */
static void found(once_pipe *pipe, once_action *action)
{
    once_batch *batch = action->batch;
    const uint64_t random = once_env_random_u64(pipe->o.env);
    pipe->sought = true;
    pipe->found_n = batch->open = batch->n;
    pipe->take_next |= action->more;
    pipe->next = NEXT_ROUND;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        const int rc = once_intake_taken(&pipe->intake, item, &err);
        if (rc != ONCE_OK) give_up(pipe, rc, &err);
        item->found = true;
        item->resumed = item->request.run != pipe->o.run;
        item->request.run = pipe->o.run; /* if it waits again, it is one of ours */
        item->request.token = once_token_of_run(pipe->o.run, random, i);
    }
    if (pipe->status != ONCE_OK) pipe->next = NEXT_ROLLBACK;
    if (batch->n == 0 || pipe->status != ONCE_OK) batch_put(pipe, batch);
    else add_found(pipe, batch);
}

static void told_stats(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    const bool nothing = action->waiting == 0 && action->claimed == 0;
    if (nothing || action->wait_ms == ONCE_NEVER) {
        pipe->stopping = true; /* a finite source at its end, and all that can be settled is */
        return;
    }
    const int64_t wait_ms = action->wait_ms < END_POLL_MS ? action->wait_ms + CLOCK_SLACK_MS : END_POLL_MS;
    pipe->take_at_ms = now_ms + wait_ms;
    pipe->stats_at_ms = now_ms + wait_ms + 1;
}

static void swept(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    const bool paced = action->wait_ms > 0 && !ONCE_PLANTED(sweep_rushes);
    pipe->sweep_at_ms = now_ms + (!action->more ? SWEEP_MS : paced ? action->wait_ms : SWEEP_MORE_MS);
}

static void store_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action->kind == ONCE_ACT_COMMIT || action->kind == ONCE_ACT_ROLLBACK) pipe->in_tx = false;
    if (ONCE_PLANTED(commit_assumed) && action->kind == ONCE_ACT_COMMIT) action->status = ONCE_OK;
    if (ONCE_PLANTED(presumption_kept) && action->kind == ONCE_ACT_COMMIT && disproved(pipe, action)) action->status = ONCE_OK;
    if (action->kind == ONCE_ACT_FIND && action->status != ONCE_OK) batch_put(pipe, action->batch);
    if (disproved(pipe, action)) {
        run_carefully(pipe);
        return;
    }
    if (action->status != ONCE_OK) {
        store_failed(pipe, action, now_ms);
        return;
    }
    if (!pipe->in_tx && action->kind != ONCE_ACT_BEGIN && action->kind != ONCE_ACT_ROLLBACK) pipe->tries = pipe->rolled_back = 0; /* the store is there */
    switch (action->kind) {
    case ONCE_ACT_BEGIN:
        pipe->in_tx = true;
        pipe->next = NEXT_KEEP;
        break;
    case ONCE_ACT_FIND: found(pipe, action); break;
    case ONCE_ACT_CLAIM:
        if (pipe->preclaim) preclaimed(pipe, action->items[0]);
        else pipe->next = NEXT_EXTEND;
        break;
    case ONCE_ACT_EXTEND: extended(pipe, action); break;
    case ONCE_ACT_RUN: have_run(pipe, action, now_ms); break;
    case ONCE_ACT_SETTLE: settled(pipe, action); break;
    case ONCE_ACT_ACCEPT:
        for (size_t i = 0; i < action->n; i++) {
            note_replaced(pipe, action->items[i]);
            refused_or_over(action->items[i]);
        }
        pipe->next = NEXT_ROUND;
        break;
    case ONCE_ACT_BURY: buried(pipe, action); break;
    case ONCE_ACT_COMMIT:
        if (action->renewed) renewed(pipe, now_ms);
        conclude(pipe, now_ms);
        break;
    case ONCE_ACT_ROLLBACK:
        unreserve_work(pipe);
        drop_found(pipe);
        if (pipe->store_gone) drop_work(pipe);
        else pipe->next = !has_work(pipe) ? NEXT_CHOOSE : pipe->claim_first ? NEXT_PRECLAIM : NEXT_BEGIN;
        break;
    case ONCE_ACT_TAKE: took(pipe, action, now_ms); break;
    case ONCE_ACT_STATS: told_stats(pipe, action, now_ms); break;
    case ONCE_ACT_RENEW: renewed(pipe, now_ms); break;
    case ONCE_ACT_SWEEP: swept(pipe, action, now_ms); break;
    default: assert(false);
    }
}

/* --- external effects --- */

static once_action *effect_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->effect_out || pipe->ended || pipe->flight.n == 0) return NULL;
    if (pipe->stopping && pipe->stop_at_ms == ONCE_NEVER) pipe->stop_at_ms = now_ms;
    once_action_kind kind = ONCE_ACT_START;
    size_t n = pipe->stopping ? 0 : once_flight_starts(&pipe->flight, now_ms, pipe->effect_list, pipe->flight.slots);
    if (n == 0) {
        const bool drained = pipe->stopping && (pipe->store_gone || now_ms - pipe->stop_at_ms >= pipe->spec->drain_ms);
        kind = ONCE_ACT_KILL;
        n = ONCE_PLANTED(no_kill) ? 0 : once_flight_ends(&pipe->flight, drained, now_ms, pipe->effect_list, pipe->flight.slots);
    }
    if (n == 0) return NULL;
    pipe->effect = (once_action){.kind = kind, .items = pipe->effect_list, .n = n};
    pipe->effect_out = true;
    return &pipe->effect;
}

int64_t once_pipe_effect_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t at_ms = pipe->flight.end_at_ms;
    if (pipe->stopping && pipe->flight.n) {
        const int64_t drained_ms = (pipe->stop_at_ms == ONCE_NEVER ? now_ms : pipe->stop_at_ms) + pipe->spec->drain_ms;
        if (drained_ms > now_ms && drained_ms < at_ms) at_ms = drained_ms;
    }
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

static void finished(once_pipe *pipe, once_item *const *items, size_t n, int64_t now_ms)
{
    const once_item *troubled = NULL;
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        const bool told_when = item->delay_ms >= 0 && (item->outcome == ONCE_RETRY || item->outcome == ONCE_RELEASE);
        if (!told_when) item->delay_ms = 0;
        item->maybe |= item->outcome == ONCE_UNKNOWN;
        if (ONCE_PLANTED(unknown_done) && item->outcome == ONCE_UNKNOWN) item->outcome = ONCE_DONE;
        if (ONCE_PLANTED(hold_ignored) && item->outcome == ONCE_UNKNOWN) item->outcome = ONCE_RETRY;
        if (item->outcome == ONCE_UNKNOWN && !item->handler->hold) item->outcome = ONCE_RETRY;
        judge_failure(pipe, item, told_when);
        pace_release(pipe, item, told_when);
        if (item->trouble != ONCE_OK) troubled = item;
        else pipe->effect_tries = 0;
        move(pipe, item, ONCE_AT_RETURNED);
    }
    if (!troubled) return;
    once_error error;
    once_fail(&error, troubled->trouble, "%.*s", (int)troubled->failure.len, troubled->failure.data ? troubled->failure.data : "");
    if (pipe->effect_tries == 0) pipe->effect_failing_since_ms = now_ms;
    worth_another_try(pipe, troubled->trouble, &error, &pipe->effect_tries, &pipe->effect_at_ms, pipe->effect_failing_since_ms, now_ms,
                      ONCE_NEVER);
}

void once_pipe_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action == &pipe->source) {
        assert(pipe->source_out);
        pipe->source_out = false;
        if (action->kind == ONCE_ACT_FETCH) fetched(pipe, action, now_ms);
        else acked(pipe, action, now_ms);
    } else if (action == &pipe->effect) {
        assert(pipe->effect_out);
        pipe->effect_out = false;
    } else {
        assert(action == &pipe->store && pipe->store_out);
        pipe->store_out = false;
        store_step(pipe, action, now_ms);
    }
    once__pipe_checked(pipe);
}

once_action *once_pipe_store_action(once_pipe *pipe, int64_t now_ms)
{
    once_action *action = store_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

once_action *once_pipe_source_action(once_pipe *pipe, int64_t now_ms)
{
    once_action *action = source_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

once_action *once_pipe_effect_action(once_pipe *pipe, int64_t now_ms)
{
    once_action *action = effect_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

void once_pipe_finished(once_pipe *pipe, once_item *const *items, size_t n, int64_t now_ms)
{
    finished(pipe, items, n, now_ms);
    once__pipe_checked(pipe);
}

void once_pipe_stop(once_pipe *pipe)
{
    pipe->stopping = true;
    pipe->store_at_ms = 0; /* what waits for the next try is tried now, for the last time */
}

bool once_pipe_ended(const once_pipe *pipe) { return pipe->ended; }

uint64_t once_pipe_unsettled(const once_pipe *pipe) { return pipe->unsettled; }

uint64_t once_pipe_dropped(const once_pipe *pipe) { return pipe->dropped + (pipe->next_ticket - 1 - pipe->over); }

int once_pipe_status(const once_pipe *pipe, once_error *err)
{
    if (pipe->status != ONCE_OK && err) *err = pipe->error;
    return pipe->status;
}

const once_counts *once_pipe_counts(const once_pipe *pipe) { return &pipe->counts; }

int64_t once_pipe_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t at_ms = ONCE_NEVER;
    if (!pipe->stopping && take_max(pipe, now_ms)) at_ms = pipe->take_at_ms;
    if (!pipe->stopping && pipe->at_end && pipe->flight.n == 0 && pipe->stats_at_ms < at_ms) at_ms = pipe->stats_at_ms;
    if (pipe->source_at_ms > now_ms && pipe->source_at_ms < at_ms) at_ms = pipe->source_at_ms;
    if (pipe->effect_at_ms > now_ms && pipe->effect_at_ms < at_ms) at_ms = pipe->effect_at_ms;
    if (pipe->flight.extend_at_ms < at_ms) at_ms = pipe->flight.extend_at_ms;
    if (pipe->renew_at_ms < at_ms) at_ms = pipe->renew_at_ms;
    if (pipe->store_at_ms > now_ms) at_ms = pipe->store_at_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

/* --- life --- */

static bool flight_new(once_pipe *pipe)
{
    if (!once_flight_init(&pipe->flight, pipe->spec)) return false;
    if (pipe->o.unclean && !ONCE_PLANTED(no_caution)) pipe->flight.alone_left = CAUTIOUS_LEAST;
    if (!pipe->flight.slots) return once_waits_init(&pipe->waits, 0);
    pipe->effect_list = calloc(pipe->flight.slots, sizeof *pipe->effect_list);
    return pipe->effect_list && once_waits_init(&pipe->waits, pipe->flight.slots + (PARKED + 3) * pipe->batch_max);
}

/* Effects of the store's own database, without names that a transaction locks before all else. */
static bool may_run_here(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i]) || spec->handlers[i].locks.n) return false;
    return true;
}

int once_pipe_new(const once_pipe_options *options, once_pipe **out, once_error *err)
{
    once_pipe *pipe = calloc(1, sizeof *pipe);
    if (!pipe) return once_no_memory(err, "for a pipeline");
    pipe->o = *options;
    pipe->spec = options->spec;
    pipe->batch_max = options->spec->batch_max;
    pipe->next_ticket = 1;
    pipe->stop_at_ms = ONCE_NEVER;
    if (!options->renew_ms) pipe->renew_at_ms = ONCE_NEVER;
    pipe->ready_size = 8 * pipe->batch_max;
    pipe->marks_size = 64;
    while (pipe->marks_size < 8 * pipe->batch_max) pipe->marks_size *= 2;
    pipe->finds = options->finds && options->spec->order && may_run_here(options->spec);
    if (options->unclean && !ONCE_PLANTED(no_caution)) be_cautious(pipe);
    pipe->cautious_window = pipe->batch_max;
    once_intake_init(&pipe->intake, options->spec, options->secret, options->run, options->prepare);
    once_intake_init(&pipe->fetch_intake, options->spec, options->secret, options->run, options->prepare);

    const size_t pointer = sizeof(once_item *);
    pipe->ready = calloc(pipe->ready_size, pointer);
    const size_t most = pipe->work_size = 2 * pipe->batch_max; /* as many as there are may be found behind them */
    pipe->work = calloc(most, pointer);
    pipe->round = calloc(most, pointer);
    pipe->next_round = calloc(most, pointer);
    pipe->list = calloc(most, pointer);
    pipe->about = calloc(most + pipe->batch_max, pointer);
    pipe->keeping = calloc(pipe->batch_max, pointer);
    pipe->marks = calloc(pipe->marks_size, sizeof *pipe->marks);
    pipe->admitted = calloc(options->spec->n_handlers + 1, sizeof *pipe->admitted);
    const bool memory = pipe->ready && pipe->work && pipe->round && pipe->next_round && pipe->list && pipe->about && pipe->keeping && pipe->marks && pipe->admitted;
    if (!memory || !once_watermark_init(&pipe->watermark, OUTSTANDING * pipe->batch_max) || !flight_new(pipe)) {
        once_pipe_free(pipe);
        return once_no_memory(err, "for a pipeline");
    }
    *out = pipe;
    return ONCE_OK;
}

static void batch_free(once_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) free(batch->items[i].output);
    once_arena_release(&batch->arena);
    free(batch);
}

void once_pipe_free(once_pipe *pipe)
{
    if (!pipe) return;
    while (pipe->batches) {
        once_batch *batch = pipe->batches;
        pipe->batches = batch->all;
        batch_free(batch);
    }
    once_intake_release(&pipe->intake);
    once_intake_release(&pipe->fetch_intake);
    once_watermark_release(&pipe->watermark);
    once_flight_release(&pipe->flight);
    once_waits_release(&pipe->waits);
    once_id_set_release(&pipe->unknown);
    free(pipe->ready);
    free(pipe->work);
    free(pipe->round);
    free(pipe->next_round);
    free(pipe->list);
    free(pipe->about);
    free(pipe->keeping);
    free(pipe->marks);
    free(pipe->admitted);
    free(pipe->effect_list);
    free(pipe);
}
