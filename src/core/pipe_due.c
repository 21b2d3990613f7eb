/* What waits in the store: taken when it is due (claimed durably, and worked on at once), or found by the very
 * transaction that runs it. */
#include "core/pipe.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define POLL_MS 1000        /* how often to look for what other processes left */
#define WAITING_POLL_MS 100 /* the same, while something of ours waits in the store */
#define END_POLL_MS 250     /* the same, when it is all that is left to wait for */
#define TAKES_IN_A_ROW 8    /* takes that find much, before what the source has brought; with lanes */

/* So many that were due have been handed out. */
void once__pipe_looked_for_due(once_pipe *pipe, size_t n, int64_t now_ms)
{
    /* Lanes that are behind come first: what the source brings meanwhile would only stand behind them. */
    if (!pipe->due.took_last) pipe->due.takes_left = TAKES_IN_A_ROW;
    pipe->due.takes_left = pipe->spec->order && !pipe->spec->inbox && pipe->due.takes_left && n >= pipe->batch_max / 64
                               ? pipe->due.takes_left - 1
                               : 0;
    pipe->due.took_last = true;
    /* There may be more. */
    pipe->due.at_ms = n ? now_ms : now_ms + (pipe->counts.waiting ? WAITING_POLL_MS : POLL_MS);
}

/* How many may be taken: what is taken starts at once. Of a take whose reply was lost all of it is asked for again, or
 * the rest of what is claimed already would be forgotten until its leases are over. Its slots are still free: nothing
 * new is claimed before. */
size_t once__pipe_take_max(const once_pipe *pipe, int64_t now_ms)
{
    if (pipe->due.again) return pipe->due.most;
    const size_t most = pipe->caution.left ? 1 : pipe->batch_max;
    if (!pipe->outside.flight.slots) return most;
    if (now_ms < pipe->outside.at_ms) return 0;
    const size_t free = once_flight_free_least(&pipe->outside.flight);
    return free < most ? free : most;
}

/* Instead of claiming it durably, which keeps others from its lane until it has run. */
bool once__pipe_may_find(const once_pipe *pipe)
{
    return pipe->due.finds && !pipe->end.stopping && !pipe->caution.left && pipe->caution.rolled_back == 0;
}

void once__pipe_begin_find_due(once_pipe *pipe)
{
    pipe->due.finding = true;
    pipe->caution.look = false;
    pipe->work.keeping_n = 0;
    once__pipe_start_work(pipe);
}

/* Not in a transaction that finds out about a message, or about a commit. */
bool once__pipe_wants_find(const once_pipe *pipe)
{
    /* Not where messages are only accepted. */
    const bool runs = pipe->due.finding || (pipe->work.had_lanes && (!pipe->spec->inbox || pipe->work.items[0]->held));
    if (pipe->due.sought || !once__pipe_may_find(pipe) || !runs) return false;
    for (size_t i = 0; i < pipe->work.n; i++)
        if (pipe->work.items[i]->commit_unknown || pipe->work.items[i]->apart || pipe->work.items[i]->verdict)
            return false;
    return true;
}

static int64_t longest_lease_ms(const once_spec *spec)
{
    int64_t lease_ms = 0;
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].lease_ms > lease_ms) lease_ms = spec->handlers[i].lease_ms;
    return lease_ms;
}

once_action *once__pipe_begin_find(once_pipe *pipe)
{
    once_batch *batch = once__pipe_batch_get(pipe);
    size_t n = 0;
    if (!batch) return NULL;
    for (size_t i = 0; i < pipe->work.n; i++)
        if (!once_hash_is_zero(pipe->work.items[i]->request.lane.id)) pipe->work.list[n++] = pipe->work.items[i];
    once_action *find = once__pipe_emit(pipe, ONCE_ACT_FIND, n);
    find->max = pipe->batch_max;
    find->batch = batch;
    find->due = pipe->due.finding;
    find->lease_ms = longest_lease_ms(pipe->spec);
    return find;
}

once_action *once__pipe_begin_take(once_pipe *pipe, size_t max, int64_t now_ms)
{
    if (!pipe->due.batch && !(pipe->due.batch = once__pipe_batch_get(pipe))) return NULL;
    pipe->due.take_next = false;
    if (!pipe->due.again || ONCE_PLANTED(take_forgotten))
        pipe->due.token = once_token_of_run(pipe->o.run, once_env_random_u64(pipe->o.env), 0);
    if (!pipe->due.again) pipe->due.asked_ms = now_ms; /* the reply that was lost may have begun the leases */
    once_action *take = once__pipe_emit(pipe, ONCE_ACT_TAKE, 0);
    take->max = pipe->due.most = max;
    take->batch = pipe->due.batch;
    take->token = pipe->due.token;
    take->again = pipe->due.again;
    take->lease_ms = longest_lease_ms(pipe->spec);
    return take;
}

/* Taking was claiming it durably. Only a repeat goes through a transaction, which counts it; and an unknown that must
 * not be asked about, which is put back. */
static bool may_depart_at_once(once_pipe *pipe, const once_item *item)
{
    if (item->decision.asks && once__pipe_question_ms(pipe, item) > 0) return false;
    return once__item_is_external(item) && item->input && !item->decision.unreported && !item->decision.gap_over &&
           !pipe->end.stopping;
}

void once__pipe_took(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    pipe->due.batch = NULL;
    pipe->due.again = false;
    once__pipe_looked_for_due(pipe, batch->n, now_ms);
    pipe->work.next = NEXT_CHOOSE;
    if (batch->n == 0) {
        once__pipe_batch_put(pipe, batch);
        return;
    }
    pipe->work.keeping_n = 0;
    pipe->caution.look = false;
    batch->open = batch->n;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        item->held = true;
        item->first = item->decision;
        item->resumed = item->request.run != pipe->o.run;
        /* Nobody said how its last attempt ended: it stays where it is, and a delivery counts it. */
        if (item->decision.answer == ONCE_ANSWER_UNKNOWN && !item->decision.asks) {
            once__pipe_move(pipe, item, ONCE_AT_OVER);
            continue;
        }
        if (item->decision.answer != ONCE_ANSWER_RUN &&
            !item->decision.asks) { /* its lane settled it, and the store has recorded that */
            once__pipe_count_origin(pipe, item, once__pipe_is_known_now(pipe, item));
            once__pipe_count_settled_by_lane(pipe, item);
            once__pipe_move(pipe, item, ONCE_AT_OVER);
            continue;
        }
        const int rc = once_intake_taken(&pipe->intake, item, &err);
        if (rc != ONCE_OK) once__pipe_give_up(pipe, rc, &err);
        item->request.run = pipe->o.run; /* if it waits again, it is one of ours */
        if (rc == ONCE_OK && may_depart_at_once(pipe, item)) {
            once_flight_reserve(&pipe->outside.flight, item);
            once__pipe_depart(pipe, item, pipe->due.asked_ms);
        } else {
            once__pipe_move(pipe, item, ONCE_AT_WORK);
        }
        once__pipe_note_claimed(pipe, &item, 1);
    }
    once__pipe_bound_locks(pipe);
    if (pipe->work.n) once__pipe_start_work(pipe);
    if (pipe->end.status != ONCE_OK) once__pipe_drop_work(pipe);
}

/* Behind what is claimed already, which is the head of its lane, and before what the source brings. */
static void add_found(once_pipe *pipe, once_batch *batch)
{
    once_item **work = pipe->work.about;
    size_t n = 0, before = pipe->work.n;
    for (size_t i = 0; i < batch->n; i++) once__pipe_move(pipe, &batch->items[i], ONCE_AT_WORK);
    for (size_t i = 0; i < before; i++)
        if (pipe->work.items[i]->held) work[n++] = pipe->work.items[i];
    for (size_t i = before; i < pipe->work.n; i++) work[n++] = pipe->work.items[i];
    for (size_t i = 0; i < before; i++)
        if (!pipe->work.items[i]->held) work[n++] = pipe->work.items[i];
    assert(n == pipe->work.n);
    memcpy(pipe->work.items, work, n * sizeof *work);
    once__pipe_arrange(pipe);
}

/* They are delivered once more, by the store, and claimed as such. */
void once__pipe_found(once_pipe *pipe, once_action *action)
{
    once_batch *batch = action->batch;
    const uint64_t random = once_env_random_u64(pipe->o.env);
    pipe->due.sought = true;
    pipe->due.found_n = batch->open = batch->n;
    pipe->due.take_next |= action->more;
    pipe->work.next = NEXT_ROUND;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        const int rc = once_intake_taken(&pipe->intake, item, &err);
        if (rc != ONCE_OK) once__pipe_give_up(pipe, rc, &err);
        item->found = true;
        item->resumed = item->request.run != pipe->o.run;
        item->request.run = pipe->o.run; /* if it waits again, it is one of ours */
        item->request.token = once_token_of_run(pipe->o.run, random, i);
    }
    if (pipe->end.status != ONCE_OK) pipe->work.next = NEXT_ROLLBACK;
    if (batch->n == 0 || pipe->end.status != ONCE_OK) once__pipe_batch_put(pipe, batch);
    else add_found(pipe, batch);
}

void once__pipe_told_stats(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    const bool nothing = action->waiting == 0 && action->claimed == 0 && action->unknown == 0;
    if (nothing || action->wait_ms == ONCE_NEVER) {
        pipe->end.stopping = true; /* a finite source at its end, and all that can be settled is */
        return;
    }
    const int64_t wait_ms = action->wait_ms < END_POLL_MS ? action->wait_ms + CLOCK_SLACK_MS : END_POLL_MS;
    pipe->due.at_ms = now_ms + wait_ms;
    pipe->store.stats_at_ms = now_ms + wait_ms + 1;
}
