/* What failed: when to try again and when to give up, and whose fault it is. An effect that kills us, or has the
 * database hang up or roll back, is told from those beside it by running fewer and fewer together. */
#include "core/pipe.h"

#include "base/duration.h"
#include "core/plant.h"
#include "core/policy.h"

#include "base/banned.h"

#define ROLLED_BACK_MS 20   /* the longest pause after that, but when it goes on: others have ended meanwhile */
#define ROLLED_BACK_MANY 10 /* so often it has gone on */
#define CAREFUL_BATCHES 16  /* after an effect failed, so many batches keep their savepoints */
/* So often in a row a server has hung up on a work while its effects ran, until one of them is suspected. */
#define SUSPECT_AFTER 2
/* A finite source gives up after so many failures of the store in a row, when its patience is over, too. */
#define FINITE_TRIES 5

void once__pipe_give_up(once_pipe *pipe, int status, const once_error *error)
{
    if (pipe->end.status == ONCE_OK) {
        pipe->end.status = status;
        pipe->end.error = *error;
        pipe->end.error.status = status;
    }
    pipe->end.stopping = true;
}

/* A server may come back, and so may space on a disk. */
static bool may_pass(int status) { return once_status_class(status) == ONCE_CLASS_RETRY || status == ONCE_E_FULL; }

/* Why it is given up, and what to do about it. */
static void say_given_up(const once_pipe *pipe, int status, const once_error *error, once_error *out)
{
    char patience[ONCE_DURATION_TEXT];
    once_duration_format(pipe->spec->patience_ms, patience);
    if (status == ONCE_E_UNAVAILABLE)
        once_fail(out, status, "%.400s; gave up: run again when it is back, or raise 'patience' (%s)", error->text,
                  patience);
    if (status == ONCE_E_FULL)
        once_fail(out, status, "%.400s; gave up: run again when there is space, or raise 'patience' (%s)", error->text,
                  patience);
}

/* Whether to repeat after this failure; otherwise the pipeline was told to end. Sets when to go on. `since_ms`: the
 * first failure in a row, where patience counts. `longest_ms`: the longest pause. */
bool once__pipe_worth_another_try(once_pipe *pipe, int status, const once_error *error, unsigned *tries, int64_t *at_ms,
                                  int64_t since_ms, int64_t now_ms, int64_t longest_ms)
{
    const once_class class = once_status_class(status);
    const bool few = ++*tries < FINITE_TRIES;
    const bool finite = pipe->o.source & ONCE_SOURCE_FINITE;
    const bool passing = may_pass(status) && (!finite || few || now_ms - since_ms < pipe->spec->patience_ms);
    const bool somebody_acts = class == ONCE_CLASS_PAUSE && !finite;
    /* The store is there: what is in flight can be settled. */
    const bool may_drain = !pipe->end.stopping || (status == ONCE_E_ABORTED && few);
    if (!may_drain || !(passing || somebody_acts)) {
        once_error why = *error;
        if (may_drain && since_ms < now_ms) say_given_up(pipe, status, error, &why);
        once__pipe_give_up(pipe, status, &why);
        return false;
    }
    const once_retry pace = {.min_ms = longest_ms < 100 ? longest_ms : 100,
                             .max_ms = longest_ms < 10000 ? longest_ms : 10000};
    *at_ms = now_ms + once_retry_delay_ms(&pace, *tries, pipe->o.env);
    return true;
}

/* How long the store may be left alone after it failed, while we hold claims. */
static int64_t longest_pause_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t lease_ms = once_flight_shortest_ms(&pipe->outside.flight);
    for (size_t i = 0; i < pipe->work.n; i++)
        if (pipe->work.items[i]->held && pipe->work.items[i]->request.lease_ms < lease_ms)
            lease_ms = pipe->work.items[i]->request.lease_ms;
    return once_lease_pause_ms(lease_ms, now_ms - pipe->store.failing_since_ms);
}

static bool would_run(const once_item *item)
{
    return item->stage == ONCE_STAGE_CLAIM && !item->held && item->decision.answer == ONCE_ANSWER_RUN &&
           !once__item_is_external(item);
}

/* In a cautious pass nothing runs that was not claimed durably: what would run goes back to the queue with all behind
 * it, to be claimed durably and run alone. True: the pass must be left. */
bool once__pipe_cautious_leaves(once_pipe *pipe)
{
    if (!pipe->caution.look) return false;
    size_t keep = 0;
    while (keep < pipe->work.n && !would_run(pipe->work.items[keep])) keep++;
    if (keep == pipe->work.n) return false;
    /* Told to stop, the pass was only to find out what became of a commit: of these, nothing. They are the source's. */
    for (size_t i = keep; pipe->end.stopping && i < pipe->work.n; i++)
        if (would_run(pipe->work.items[i])) pipe->work.items[i]->commit_unknown = false;
    once__pipe_unreserve_work(pipe); /* before some of it leaves the work */
    pipe->caution.window = 1;
    /* It keeps its token: after a commit whose fate is not known that tells what is our own. */
    pipe->caution.claim_first = pipe->work.n == 1;
    if (pipe->caution.claim_first) return true;
    once__pipe_shorten_work(pipe, keep);
    return true;
}

void once__pipe_be_cautious(once_pipe *pipe)
{
    pipe->caution.left = pipe->batch_max > CAUTIOUS_LEAST ? pipe->batch_max : CAUTIOUS_LEAST;
    pipe->caution.window = 1;
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
    const once_policy policy = once_policy_of(item->handler, NULL);
    return !item->hung_up && once_policy_is_last(&policy, &item->first);
}

/* The server has hung up on a transaction in which effects ran: perhaps one of them made it, and a crash takes those of
 * others along. As after a death of our own they run one by one then, each claimed durably before. The one that was
 * alone has failed; should its commit have happened nevertheless, the next pass finds that before it heeds the
 * verdict. */
static void suspect_effects(once_pipe *pipe, const once_action *action)
{
    const bool in_work = pipe->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    if (action->status != ONCE_E_UNAVAILABLE || !in_work || !pipe->work.ran) return;
    once_item *alone = pipe->caution.left ? pipe->work.runs_alone : NULL;
    if (alone && last_chance(alone)) {
        alone->hung_up = true; /* a server that was stopped at that very moment must not cost a message its life */
    } else if (alone) {
        give_verdict(alone, ONCE_RETRY, ONCE_BYTES("the database hung up while its effect ran, and it ran alone"));
        pipe->caution.accused = true;
        once__pipe_be_cautious(pipe);
    } else if (++pipe->caution.hung_up >= SUSPECT_AFTER || pipe->caution.accused) {
        once__pipe_be_cautious(pipe);
        pipe->caution.look = true;
        bool first = true;
        /* What was taken goes back, but for one, and is taken again one by one. */
        for (size_t i = 0; i < pipe->work.n; i++) {
            once_item *item = pipe->work.items[i];
            if (!item->held || item->returned || item->verdict || once__item_is_external(item)) continue;
            if (!first)
                give_verdict(item, ONCE_RELEASE,
                             ONCE_BYTES("put back: the database hung up on a batch that it was in"));
            first = false;
        }
    }
}

/* The message at whose statement it happened goes on without others, those before it without it; those behind it keep
 * their order. */
static void set_apart(once_pipe *pipe)
{
    size_t at = 0;
    while (at < pipe->work.n && !pipe->work.items[at]->suspect) at++;
    if (at == pipe->work.n || pipe->work.n == 1 || pipe->work.items[at]->returned) return;
    pipe->work.items[at]->suspect = false;
    pipe->work.items[at]->apart = true;
    once__pipe_unreserve_work(pipe); /* before some of it leaves the work */
    once__pipe_shorten_work(pipe, at ? at : 1);
}

/* By the database itself, and the store is there: a deadlock, a timeout. */
static bool is_rollback(int status) { return status == ONCE_E_ABORTED || status == ONCE_E_BUSY; }

/* Before effects have run, it is nobody's. */
static void count_rollback(once_pipe *pipe, const once_action *action)
{
    if (!is_rollback(action->status)) pipe->caution.rolled_back = 0;
    else if (pipe->work.n && pipe->work.ran) pipe->caution.rolled_back++;
    if (pipe->caution.rolled_back < BLAME_AFTER || ONCE_PLANTED(nobody_blamed)) return;
    pipe->caution.careful_left = CAREFUL_BATCHES;
    set_apart(pipe);
}

/* Something has ended the transaction while effects ran in it: they may stay, without their outcomes. So none of them
 * may run again before a person has looked, and nothing else may run either, because it would end the same way. One
 * more transaction writes that down. */
static bool leave_unknown(once_pipe *pipe, const once_action *action)
{
    bool any = false;
    for (size_t i = 0; action->status == ONCE_E_COMMIT_UNKNOWN && i < pipe->work.n; i++) {
        once_item *item = pipe->work.items[i];
        const bool begun = item->started || item->stage == ONCE_STAGE_RUN;
        if (!begun || item->returned || item->verdict || once__item_is_external(item)) continue;
        give_verdict(item, item->handler->natural ? ONCE_RETRY : ONCE_UNKNOWN,
                     ONCE_BYTES("something has ended the transaction that its effect ran in, and it is not known "
                                "whether that was committed"));
        item->commit_unknown = any = true;
    }
    if (!any) return false;
    once__pipe_give_up(pipe, action->status, &action->error);
    if (pipe->work.in_tx) {
        pipe->work.next = NEXT_ROLLBACK;
    } else {
        once__pipe_unreserve_work(pipe);
        pipe->work.next = NEXT_BEGIN;
    }
    return true;
}

void once__pipe_store_failed(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (leave_unknown(pipe, action)) return;
    suspect_effects(pipe, action);
    count_rollback(pipe, action);
    if (pipe->store.tries == 0) pipe->store.failing_since_ms = now_ms;
    const bool soon = pipe->work.n && is_rollback(action->status) && pipe->store.tries < ROLLED_BACK_MANY;
    if (!once__pipe_worth_another_try(pipe, action->status, &action->error, &pipe->store.tries, &pipe->store.at_ms,
                                      pipe->store.failing_since_ms, now_ms,
                                      soon ? ROLLED_BACK_MS : longest_pause_ms(pipe, now_ms)))
        pipe->store.gone = true;
    const bool preclaim = pipe->caution.preclaim; /* repeated with the same token: it may have happened */
    pipe->caution.preclaim = false;
    if (action->kind == ONCE_ACT_TAKE) pipe->due.again = true;
    if (pipe->work.in_tx) {
        pipe->work.next = NEXT_ROLLBACK;
        return;
    }
    if (action->kind == ONCE_ACT_COMMIT && is_rollback(action->status)) once__pipe_drop_found(pipe);
    for (size_t i = 0; action->kind == ONCE_ACT_COMMIT && i < pipe->work.n; i++)
        pipe->work.items[i]->commit_unknown = true;
    for (size_t i = pipe->work.n; ONCE_PLANTED(start_first) && action->kind == ONCE_ACT_COMMIT && i > 0; i--)
        if (pipe->work.items[i - 1]->stage == ONCE_STAGE_FLY)
            once__pipe_depart(pipe, pipe->work.items[i - 1], pipe->work.asked_at_ms),
                pipe->work.items[i - 1] = pipe->work.items[--pipe->work.n];
    once__pipe_unreserve_work(pipe);
    once__pipe_drop_unwanted(pipe);
    if (pipe->store.gone) once__pipe_drop_work(pipe);
    else pipe->work.next = !once__pipe_has_work(pipe) ? NEXT_CHOOSE : preclaim ? NEXT_PRECLAIM : NEXT_BEGIN;
}

void once__pipe_run_carefully(once_pipe *pipe)
{
    pipe->caution.careful_left = CAREFUL_BATCHES;
    pipe->work.next = NEXT_ROLLBACK;
}

/* Effects that were presumed done were not, and nothing of the transaction is. A careful pass presumes nothing. */
bool once__pipe_disproved(const once_pipe *pipe, const once_action *action)
{
    const bool in_work = pipe->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    return in_work && pipe->caution.careful_left == 0 && once_status_class(action->status) == ONCE_CLASS_MESSAGE;
}
