/* pipeline.h tells the story. This file is in its order: batches, the source side, the work (one transaction), the
 * choice of what to do next. */
#include "core/pipeline.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/plant.h"
#include "core/retry.h"
#include "core/watermark.h"

#include "base/banned.h"

#define CAREFUL_BATCHES 16       /* after an effect failed, so many batches keep their savepoints */
#define CAUTIOUS_LEAST 64        /* after an unclean end, so many effects run one by one, or a whole batch if that is more */
#define FINITE_TRIES 5           /* a finite source gives up after so many failures of the store in a row */
#define POLL_MS 1000             /* how often to look for what other processes left */
#define WAITING_POLL_MS 100      /* the same, while something of ours waits in the store */
#define END_POLL_MS 250          /* the same, when it is all that is left to wait for */
#define SWEEP_MS 60000           /* how often to drop what has expired */
#define SWEEP_MORE_MS 100        /* the same, while there is more to drop */
#define CLOCK_SLACK_MS 2         /* the store's clock and ours need not tick together */

/* What the store executor should do next. */
typedef enum next_step {
    NEXT_CHOOSE, /* no work */
    NEXT_PRECLAIM, /* the one message of the work, durably */
    NEXT_BEGIN,  /* the work, from the start */
    NEXT_ROUND,
    NEXT_CLAIM,
    NEXT_EXTEND,
    NEXT_RUN,
    NEXT_SETTLE,
    NEXT_ACCEPT,
    NEXT_BURY,
    NEXT_COMMIT,
    NEXT_ROLLBACK
} next_step;

/* Last item of the work with this key or lane. */
typedef struct mark {
    once_hash id;
    once_item *last;
} mark;

struct once_pipe {
    once_pipe_options o;
    const once_spec *spec;
    once_intake intake;       /* for what is taken from the store; used in steps */
    once_intake fetch_intake; /* for what is fetched; the source executor uses it while a FETCH is out */
    once_counts counts;
    size_t batch_max;

    /* source side */
    once_action source;
    bool source_out, at_end;
    uint64_t next_ticket, acked;
    once_watermark watermark;
    int64_t source_at_ms;
    unsigned source_tries;
    once_batch *spare;
    once_item **ready; /* ring */
    size_t ready_first, ready_n, ready_size;

    /* store side */
    once_action store;
    bool store_out;
    next_step next;
    bool in_tx;
    once_item **work, **round, **next_round, **list;
    size_t work_n, round_n, next_round_n;
    mark *marks;
    size_t marks_size;
    bool had_lanes;
    unsigned careful_left;
    size_t cautious_left, cautious_window;
    bool cautious_look; /* in this work nothing may run that was not claimed durably */
    bool preclaim;      /* the claim that is out is such a durable one */
    bool claim_first;   /* after the rollback, such a claim */
    unsigned tries;
    int64_t store_at_ms, take_at_ms, stats_at_ms, sweep_at_ms;
    once_token take_token;
    bool take_again, took_last;
    once_batch *take_batch;

    bool stopping, ended;
    int status;
    once_error error;
};

const char *once_action_name(once_action_kind kind)
{
    static const char *const names[] = {"none", "begin",    "claim", "extend", "run",   "settle", "accept", "bury",
                                        "commit", "rollback", "take",  "stats",  "sweep", "fetch", "ack"};
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
    }
    return batch;
}

static void batch_put(once_pipe *pipe, once_batch *batch)
{
    once_arena_reset(&batch->arena);
    batch->items = NULL;
    batch->n = batch->open = 0;
    batch->taken_in = false;
    batch->next = pipe->spare;
    pipe->spare = batch;
}

static void item_over(once_pipe *pipe, once_item *item)
{
    assert(item->batch->open > 0);
    if (--item->batch->open == 0) batch_put(pipe, item->batch);
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

/* Whether to repeat after this failure; otherwise the pipeline was told to end. Sets when to go on. */
static bool worth_another_try(once_pipe *pipe, const once_action *failed, unsigned *tries, int64_t *at_ms, int64_t now_ms)
{
    const once_class class = once_status_class(failed->status);
    ++*tries;
    const bool passing = class == ONCE_CLASS_RETRY && (!pipe->o.finite || *tries < FINITE_TRIES);
    const bool somebody_acts = class == ONCE_CLASS_PAUSE && !pipe->o.finite;
    if (pipe->stopping || !(passing || somebody_acts)) {
        give_up(pipe, failed->status, &failed->error);
        return false;
    }
    static const once_retry pace = {.min_ms = 100, .max_ms = 10000};
    *at_ms = now_ms + once_retry_delay_ms(&pace, *tries, pipe->o.env);
    return true;
}

/* --- source side --- */

static void ready_push(once_pipe *pipe, once_item *item)
{
    assert(pipe->ready_n < pipe->ready_size);
    pipe->ready[(pipe->ready_first + pipe->ready_n++) % pipe->ready_size] = item;
}

static void ready_push_back(once_pipe *pipe, once_item *item) /* to the front, where it was */
{
    assert(pipe->ready_n < pipe->ready_size);
    pipe->ready_first = (pipe->ready_first + pipe->ready_size - 1) % pipe->ready_size;
    pipe->ready[pipe->ready_first] = item;
    pipe->ready_n++;
}

static once_item *ready_pop(once_pipe *pipe)
{
    assert(pipe->ready_n > 0);
    once_item *item = pipe->ready[pipe->ready_first];
    pipe->ready_first = (pipe->ready_first + 1) % pipe->ready_size;
    pipe->ready_n--;
    return item;
}

static uint64_t may_ack(const once_pipe *pipe)
{
    if (ONCE_PLANTED(ack_past_gap)) return pipe->next_ticket - 1;
    return pipe->watermark.upto;
}

once_action *once_pipe_source_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->source_out || pipe->ended) return NULL;
    pipe->source = (once_action){0};
    if (may_ack(pipe) > pipe->acked) {
        pipe->source.kind = ONCE_ACT_ACK;
        pipe->source.upto = may_ack(pipe);
    } else {
        const bool store_away = pipe->tries > 0; /* then nothing is fetched */
        if (pipe->at_end || pipe->stopping || store_away || now_ms < pipe->source_at_ms) return NULL;
        if (pipe->ready_n >= pipe->batch_max) return NULL;
        once_batch *batch = batch_get(pipe);
        if (!batch) return NULL;
        pipe->source.kind = ONCE_ACT_FETCH;
        pipe->source.max = pipe->batch_max;
        pipe->source.batch = batch;
        pipe->source.intake = &pipe->fetch_intake;
    }
    pipe->source_out = true;
    return &pipe->source;
}

static void fetched(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    batch->open = batch->n;
    if (action->status != ONCE_OK) {
        assert(batch->n == 0);
        batch_put(pipe, batch);
        worth_another_try(pipe, action, &pipe->source_tries, &pipe->source_at_ms, now_ms);
        return;
    }
    pipe->source_tries = 0;
    pipe->at_end = action->at_end;
    if (batch->n == 0 || pipe->stopping) {
        batch_put(pipe, batch);
        return;
    }
    once_error err;
    const int rc = batch->taken_in ? ONCE_OK : once_intake_batch(&pipe->fetch_intake, batch, &err);
    if (rc != ONCE_OK) { /* what was read cannot be read again by this run */
        batch_put(pipe, batch);
        give_up(pipe, rc, &err);
        return;
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->items[i].ticket = pipe->next_ticket++;
        ready_push(pipe, &batch->items[i]);
    }
}

static void acked(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action->status != ONCE_OK) {
        worth_another_try(pipe, action, &pipe->source_tries, &pipe->source_at_ms, now_ms);
        return;
    }
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

/* Everything back to the start of the transaction; who waits for whom. */
static void arrange(once_pipe *pipe)
{
    pipe->round_n = pipe->next_round_n = 0;
    pipe->had_lanes = false;
    memset(pipe->marks, 0, pipe->marks_size * sizeof *pipe->marks);
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        const bool keyed = !once_hash_is_zero(item->request.id);
        item->stage = !keyed ? ONCE_STAGE_BURY : pipe->spec->inbox && item->ticket ? ONCE_STAGE_ACCEPT : ONCE_STAGE_CLAIM;
        item->decision = (once_decision){.answer = ONCE_ANSWER_DEAD};
        if (ONCE_PLANTED(new_tokens) && item->unsure && !item->held) item->request.token.a += 2;
        item->result = item->failure = (once_bytes){0};
        item->started = false;
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

static void start_work(once_pipe *pipe, size_t n)
{
    once_token token;
    once_env_random(pipe->o.env, &token, sizeof token);
    pipe->work_n = n;
    for (size_t i = 0; i < n; i++)
        if (!pipe->work[i]->held && !pipe->work[i]->unsure) pipe->work[i]->request.token = (once_token){token.a | 1, token.b + i};
    pipe->next = NEXT_BEGIN;
}

/* Nothing of the work happened; forget it. What came from the source was not acked, what was taken comes back by its lease. */
static void drop_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work_n; i++) item_over(pipe, pipe->work[i]);
    pipe->work_n = 0;
    pipe->next = NEXT_CHOOSE;
}

static void lose(once_pipe *pipe, once_item *lost) /* its claim is somebody else's now */
{
    size_t kept = 0;
    for (size_t i = 0; i < pipe->work_n; i++)
        if (pipe->work[i] != lost) pipe->work[kept++] = pipe->work[i];
    assert(kept + 1 == pipe->work_n);
    pipe->work_n = kept;
    if (lost->ticket) { /* still the source's: asked again as if it had just come */
        lost->held = false;
        ready_push_back(pipe, lost);
    } else {
        item_over(pipe, lost);
    }
}

static void die(once_item *item, once_bytes reason)
{
    item->outcome = ONCE_DEAD;
    item->failure = reason;
    item->stage = ONCE_STAGE_SETTLE;
}

static void ran(once_pipe *pipe, once_item *item)
{
    item->started = true;
    item->stage = ONCE_STAGE_SETTLE;
    if (item->outcome != ONCE_RETRY) return;
    const once_retry *retry = &item->handler->retry;
    const uint32_t failures = item->decision.failures + 1;
    if (failures >= retry->attempts && !ONCE_PLANTED(no_budget)) item->outcome = ONCE_DEAD;
    else item->delay_ms = once_retry_delay_ms(retry, failures, pipe->o.env);
}

/* The item is ours. Is there a reason not to run it? */
static void decide_run(once_pipe *pipe, once_item *item)
{
    if (pipe->stopping && item->held) {
        item->outcome = ONCE_RELEASE;
        item->failure = ONCE_BYTES("put back at shutdown");
        item->delay_ms = 0;
        item->stage = ONCE_STAGE_SETTLE;
    } else if (!item->handler || !item->input) {
        die(item, item->reason);
    } else if (item->decision.silent && item->decision.failures >= item->handler->retry.attempts && !ONCE_PLANTED(no_budget)) {
        die(item, ONCE_BYTES("every attempt ended without a word: the process or its handler was killed"));
    } else if (item->decision.gap_over && pipe->spec->gap_dead) {
        die(item, ONCE_BYTES("an earlier version did not come in time"));
    } else if (item->verdict) {
        item->failure = item->reason;
        ran(pipe, item);
    } else {
        item->stage = ONCE_STAGE_RUN;
    }
}

/* Nothing is left to do, but for a letter where the message was refused. */
static void refused_or_over(once_item *item)
{
    const once_answer answer = item->decision.answer;
    item->stage = answer == ONCE_ANSWER_CONFLICT || answer == ONCE_ANSWER_TOO_OLD ? ONCE_STAGE_BURY : ONCE_STAGE_OVER;
    if (answer == ONCE_ANSWER_CONFLICT) item->reason = ONCE_BYTES("conflict: the key was used before with other content");
    if (answer == ONCE_ANSWER_TOO_OLD) item->reason = ONCE_BYTES("too old: sent before the time that is remembered");
}

static void decide(once_pipe *pipe, once_item *item)
{
    const bool before = item->overtakes && item->unsure; /* then perhaps it has, and the entry does not show it any more */
    item->overtakes = item->ticket && (item->decision.left_by == pipe->o.run || before);
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
        if (item->stage == ONCE_STAGE_CLAIM && !item->held && item->decision.answer == ONCE_ANSWER_RUN) break;
        keep++;
    }
    if (keep == pipe->work_n) return false;
    pipe->cautious_window = 1;
    pipe->claim_first = pipe->work_n == 1; /* it keeps its token: after a commit whose fate is not known that tells what is our own */
    if (pipe->claim_first) return true;
    for (size_t i = pipe->work_n; i > keep; i--) ready_push_back(pipe, pipe->work[i - 1]);
    pipe->work_n = keep;
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

/* Where a message stands after its transaction. */
static uint64_t *count_of(once_pipe *pipe, once_item *item, bool buried, bool settled)
{
    once_counts *counts = &pipe->counts;
    if (buried) {
        if (!item->letter) return &counts->duplicates; /* its letter was there already */
        counts->conflicts += item->decision.answer == ONCE_ANSWER_CONFLICT;
        counts->too_old += item->decision.answer == ONCE_ANSWER_TOO_OLD;
        return &counts->dead;
    }
    if (settled) return count_of_outcome(counts, item->outcome);
    switch (item->decision.answer) {
    case ONCE_ANSWER_DUPLICATE: return item->decision.own ? count_of_outcome(counts, item->decision.outcome) : &counts->duplicates;
    case ONCE_ANSWER_STALE: return &counts->stale;
    case ONCE_ANSWER_WAITING: return &counts->waiting;
    case ONCE_ANSWER_UNKNOWN: return &counts->unknown;
    case ONCE_ANSWER_DEAD: return item->decision.own ? &counts->dead : &counts->duplicates;
    default: return &counts->duplicates;
    }
}

static void sooner(int64_t *at_ms, int64_t now_ms, int64_t wait_ms)
{
    if (wait_ms != ONCE_NEVER && now_ms + wait_ms + CLOCK_SLACK_MS < *at_ms) *at_ms = now_ms + wait_ms + CLOCK_SLACK_MS;
}

/* Where the message comes from: the source, or the store, where it was waiting for us or for an earlier run. */
static void count_origin(once_pipe *pipe, const once_item *item)
{
    if (item->ticket) pipe->counts.received++;
    else if (!item->resumed && pipe->counts.waiting) pipe->counts.waiting--;
    else pipe->counts.resumed++;
}

static void ack_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        if (item->ticket && !item->acked) once_watermark_end(&pipe->watermark, item->ticket);
        item->acked = true;
    }
}

static void conclude(once_pipe *pipe, int64_t now_ms)
{
    ack_work(pipe);
    once_counts *counts = &pipe->counts;
    for (size_t i = 0; i < pipe->work_n; i++) {
        once_item *item = pipe->work[i];
        const bool settled = item->stage == ONCE_STAGE_SETTLE;
        count_origin(pipe, item);
        if (item->overtakes) { /* the one before stands no longer where it was counted: it is the duplicate now */
            counts->waiting--;
            counts->duplicates++;
        }
        ++*count_of(pipe, item, item->stage == ONCE_STAGE_BURY, settled);
        counts->attempts += item->started || item->decision.own;
        if (settled && (item->outcome == ONCE_RETRY || item->outcome == ONCE_RELEASE)) sooner(&pipe->take_at_ms, now_ms, item->delay_ms);
        if (!settled && item->decision.answer == ONCE_ANSWER_WAITING) sooner(&pipe->take_at_ms, now_ms, item->decision.wait_ms);
        counts->retries += settled && item->outcome == ONCE_RETRY;
        if (pipe->cautious_left && item->started) pipe->cautious_left--;
        item_over(pipe, item);
    }
    /* A settled message of a lane may have woken the next one, and that one may be ours to take. */
    if (pipe->had_lanes && (counts->waiting || counts->resumed)) pipe->take_at_ms = now_ms;
    if (pipe->careful_left) pipe->careful_left--;
    if (pipe->cautious_left && pipe->cautious_look && pipe->cautious_window < pipe->batch_max) pipe->cautious_window *= 2;
    pipe->work_n = 0;
    pipe->next = NEXT_CHOOSE;
}

/* --- what to do next --- */

static void end_if_possible(once_pipe *pipe)
{
    const bool acks_due = may_ack(pipe) > pipe->acked && pipe->status == ONCE_OK;
    if (!pipe->source_out && !acks_due) pipe->ended = true;
}

static void begin_ready(once_pipe *pipe)
{
    size_t n = pipe->ready_n < pipe->batch_max ? pipe->ready_n : pipe->batch_max;
    pipe->cautious_look = pipe->cautious_left > 0 && !pipe->spec->inbox; /* what only goes into the store kills nobody */
    if (pipe->cautious_look && n > pipe->cautious_window) n = pipe->cautious_window;
    for (size_t i = 0; i < n; i++) pipe->work[i] = ready_pop(pipe);
    pipe->took_last = false;
    start_work(pipe, n);
    if (pipe->cautious_look && n == 1 && !once_hash_is_zero(pipe->work[0]->request.id)) pipe->next = NEXT_PRECLAIM;
}

static once_action *begin_take(once_pipe *pipe)
{
    if (!pipe->take_batch && !(pipe->take_batch = batch_get(pipe))) return NULL;
    if (!pipe->take_again || ONCE_PLANTED(take_forgotten)) once_env_random(pipe->o.env, &pipe->take_token, sizeof pipe->take_token);
    pipe->take_token.a |= 1;
    once_action *take = emit(pipe, ONCE_ACT_TAKE, 0);
    take->max = pipe->cautious_left ? 1 : pipe->batch_max;
    take->batch = pipe->take_batch;
    take->token = pipe->take_token;
    take->again = pipe->take_again;
    for (size_t i = 0; i < pipe->spec->n_handlers; i++)
        if (pipe->spec->handlers[i].lease_ms > take->lease_ms) take->lease_ms = pipe->spec->handlers[i].lease_ms;
    return take;
}

/* No work: take some. NULL and next != CHOOSE: there is work now. NULL and next == CHOOSE: nothing to do. */
static once_action *choose(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->stopping) {
        end_if_possible(pipe);
        return NULL;
    }
    const bool take_due = now_ms >= pipe->take_at_ms;
    if (take_due && !(pipe->took_last && pipe->ready_n)) return begin_take(pipe);
    if (now_ms >= pipe->sweep_at_ms) return emit(pipe, ONCE_ACT_SWEEP, 0);
    if (pipe->ready_n) {
        begin_ready(pipe);
        return NULL;
    }
    if (pipe->at_end && !pipe->source_out && now_ms >= pipe->stats_at_ms) return emit(pipe, ONCE_ACT_STATS, 0);
    return NULL;
}

/* The message up to which everything will be over when the work is committed; NULL: there is a gap before it. */
static const once_item *last_without_gap(const once_pipe *pipe)
{
    const once_item *last = NULL;
    uint64_t n = 0;
    for (size_t i = 0; i < pipe->work_n; i++) {
        if (pipe->work[i]->ticket == 0) continue;
        if (!last || pipe->work[i]->ticket > last->ticket) last = pipe->work[i];
        n++;
    }
    return last && last->ticket - pipe->watermark.upto == n ? last : NULL;
}

/* The items of the last round are decided; whoever waited for them is next. */
static void next_round(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->round_n; i++) {
        unblock(pipe, pipe->round[i]->next_of_key);
        unblock(pipe, pipe->round[i]->next_of_lane);
    }
    once_item **swap = pipe->round;
    pipe->round = pipe->next_round;
    pipe->round_n = pipe->next_round_n;
    pipe->next_round = swap;
    pipe->next_round_n = 0;
    pipe->next = pipe->round_n ? NEXT_CLAIM : NEXT_BURY;
}

once_action *once_pipe_store_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->store_out || pipe->ended) return NULL;
    if (now_ms < pipe->store_at_ms && pipe->next != NEXT_ROLLBACK) return NULL; /* nobody waits with an open transaction */
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
        case NEXT_BEGIN: arrange(pipe); return emit(pipe, ONCE_ACT_BEGIN, 0);
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
                run->careful = pipe->careful_left > 0;
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
            return &pipe->store;
        case NEXT_ROLLBACK: return emit(pipe, ONCE_ACT_ROLLBACK, 0);
        }
    }
}

/* --- events of the store executor --- */

static void store_failed(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    worth_another_try(pipe, action, &pipe->tries, &pipe->store_at_ms, now_ms);
    const bool preclaim = pipe->preclaim; /* repeated with the same token: it may have happened */
    pipe->preclaim = false;
    for (size_t i = 0; action->kind == ONCE_ACT_COMMIT && i < pipe->work_n; i++) pipe->work[i]->unsure = true;
    if (action->kind == ONCE_ACT_TAKE) pipe->take_again = true;
    if (pipe->in_tx) pipe->next = NEXT_ROLLBACK;
    else if (pipe->work_n == 0) pipe->next = NEXT_CHOOSE;
    else if (pipe->status == ONCE_OK) pipe->next = preclaim ? NEXT_PRECLAIM : NEXT_BEGIN;
    else drop_work(pipe);
}

static void preclaimed(once_pipe *pipe, once_item *item)
{
    pipe->preclaim = false;
    item->held = item->decision.answer == ONCE_ANSWER_RUN;
    item->first = item->decision;
    pipe->next = NEXT_BEGIN;
}

/* The claims of held items are checked inside the transaction that their effects will run in. */
static void extended(once_pipe *pipe, once_action *action)
{
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
    pipe->careful_left = CAREFUL_BATCHES;
    pipe->next = NEXT_ROLLBACK;
}

static void settled(once_pipe *pipe, once_action *action)
{
    pipe->next = NEXT_ACCEPT;
    for (size_t i = 0; i < action->n; i++) {
        if (action->items[i]->yes) continue;
        lose(pipe, action->items[i]); /* fenced off: its effect must not be committed */
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

static void took(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    pipe->take_batch = NULL;
    pipe->take_again = false;
    pipe->took_last = true;
    pipe->next = NEXT_CHOOSE;
    if (batch->n == 0) {
        batch_put(pipe, batch);
        pipe->take_at_ms = now_ms + (pipe->counts.waiting ? WAITING_POLL_MS : POLL_MS);
        return;
    }
    pipe->take_at_ms = now_ms; /* there may be more */
    pipe->cautious_look = false;
    batch->open = batch->n;
    size_t n = 0;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        item->held = true;
        item->first = item->decision;
        item->resumed = item->request.run != pipe->o.run;
        if (item->decision.answer == ONCE_ANSWER_STALE) { /* the store has recorded it */
            count_origin(pipe, item);
            pipe->counts.stale++;
            item_over(pipe, item);
            continue;
        }
        pipe->work[n++] = item;
        const int rc = once_intake_taken(&pipe->intake, item, &err);
        if (rc != ONCE_OK) give_up(pipe, rc, &err);
        item->request.run = pipe->o.run; /* if it waits again, it is one of ours */
    }
    if (n) start_work(pipe, n);
    if (pipe->status != ONCE_OK) drop_work(pipe);
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

static void store_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action->kind == ONCE_ACT_COMMIT || action->kind == ONCE_ACT_ROLLBACK) pipe->in_tx = false;
    if (ONCE_PLANTED(commit_assumed) && action->kind == ONCE_ACT_COMMIT) action->status = ONCE_OK;
    if (action->status != ONCE_OK) {
        store_failed(pipe, action, now_ms);
        return;
    }
    if (!pipe->in_tx && action->kind != ONCE_ACT_BEGIN && action->kind != ONCE_ACT_ROLLBACK) pipe->tries = 0; /* the store is there */
    switch (action->kind) {
    case ONCE_ACT_BEGIN:
        pipe->in_tx = true;
        pipe->next = NEXT_ROUND;
        break;
    case ONCE_ACT_CLAIM:
        if (pipe->preclaim) preclaimed(pipe, action->items[0]);
        else pipe->next = NEXT_EXTEND;
        break;
    case ONCE_ACT_EXTEND: extended(pipe, action); break;
    case ONCE_ACT_RUN: have_run(pipe, action, now_ms); break;
    case ONCE_ACT_SETTLE: settled(pipe, action); break;
    case ONCE_ACT_ACCEPT:
        for (size_t i = 0; i < action->n; i++) refused_or_over(action->items[i]);
        pipe->next = NEXT_ROUND;
        break;
    case ONCE_ACT_BURY: buried(pipe, action); break;
    case ONCE_ACT_COMMIT: conclude(pipe, now_ms); break;
    case ONCE_ACT_ROLLBACK:
        if (pipe->status != ONCE_OK) drop_work(pipe);
        else pipe->next = pipe->work_n == 0 ? NEXT_CHOOSE : pipe->claim_first ? NEXT_PRECLAIM : NEXT_BEGIN;
        break;
    case ONCE_ACT_TAKE: took(pipe, action, now_ms); break;
    case ONCE_ACT_STATS: told_stats(pipe, action, now_ms); break;
    case ONCE_ACT_SWEEP: pipe->sweep_at_ms = now_ms + (action->more ? SWEEP_MORE_MS : SWEEP_MS); break;
    default: assert(false);
    }
}

void once_pipe_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action == &pipe->source) {
        assert(pipe->source_out);
        pipe->source_out = false;
        if (action->kind == ONCE_ACT_FETCH) fetched(pipe, action, now_ms);
        else acked(pipe, action, now_ms);
    } else {
        assert(action == &pipe->store && pipe->store_out);
        pipe->store_out = false;
        store_step(pipe, action, now_ms);
    }
}

void once_pipe_stop(once_pipe *pipe) { pipe->stopping = true; }

bool once_pipe_ended(const once_pipe *pipe) { return pipe->ended; }

int once_pipe_status(const once_pipe *pipe, once_error *err)
{
    if (pipe->status != ONCE_OK && err) *err = pipe->error;
    return pipe->status;
}

const once_counts *once_pipe_counts(const once_pipe *pipe) { return &pipe->counts; }

int64_t once_pipe_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t at_ms = pipe->take_at_ms;
    if (pipe->at_end && pipe->stats_at_ms < at_ms) at_ms = pipe->stats_at_ms;
    if (pipe->source_at_ms > now_ms && pipe->source_at_ms < at_ms) at_ms = pipe->source_at_ms;
    if (pipe->store_at_ms > now_ms) at_ms = pipe->store_at_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

/* --- life --- */

int once_pipe_new(const once_pipe_options *options, once_pipe **out, once_error *err)
{
    once_pipe *pipe = calloc(1, sizeof *pipe);
    if (!pipe) return once_fail(err, ONCE_E_NOMEM, "out of memory for a pipeline");
    pipe->o = *options;
    pipe->spec = options->spec;
    pipe->batch_max = options->spec->batch_max;
    pipe->next_ticket = 1;
    pipe->ready_size = 4 * pipe->batch_max;
    pipe->marks_size = 64;
    while (pipe->marks_size < 4 * pipe->batch_max) pipe->marks_size *= 2;
    if (options->unclean && !ONCE_PLANTED(no_caution)) pipe->cautious_left = pipe->batch_max > CAUTIOUS_LEAST ? pipe->batch_max : CAUTIOUS_LEAST;
    pipe->cautious_window = pipe->batch_max;
    once_intake_init(&pipe->intake, options->spec, options->secret, options->run, options->prepare);
    once_intake_init(&pipe->fetch_intake, options->spec, options->secret, options->run, options->prepare);

    const size_t pointer = sizeof(once_item *);
    pipe->ready = calloc(pipe->ready_size, pointer);
    pipe->work = calloc(pipe->batch_max, pointer);
    pipe->round = calloc(pipe->batch_max, pointer);
    pipe->next_round = calloc(pipe->batch_max, pointer);
    pipe->list = calloc(pipe->batch_max, pointer);
    pipe->marks = calloc(pipe->marks_size, sizeof *pipe->marks);
    const bool marked = once_watermark_init(&pipe->watermark, 5 * pipe->batch_max);
    if (!pipe->ready || !pipe->work || !pipe->round || !pipe->next_round || !pipe->list || !pipe->marks || !marked) {
        once_pipe_free(pipe);
        return once_fail(err, ONCE_E_NOMEM, "out of memory for a pipeline");
    }
    *out = pipe;
    return ONCE_OK;
}

static void batch_free(once_batch *batch)
{
    once_arena_release(&batch->arena);
    free(batch);
}

void once_pipe_free(once_pipe *pipe)
{
    if (!pipe) return;
    drop_work(pipe);
    while (pipe->ready_n) item_over(pipe, ready_pop(pipe));
    if (pipe->take_batch) batch_free(pipe->take_batch);
    if (pipe->source_out && pipe->source.kind == ONCE_ACT_FETCH) batch_free(pipe->source.batch);
    while (pipe->spare) {
        once_batch *batch = pipe->spare;
        pipe->spare = batch->next;
        batch_free(batch);
    }
    once_intake_release(&pipe->intake);
    once_intake_release(&pipe->fetch_intake);
    once_watermark_release(&pipe->watermark);
    free(pipe->ready);
    free(pipe->work);
    free(pipe->round);
    free(pipe->next_round);
    free(pipe->list);
    free(pipe->marks);
    free(pipe);
}
