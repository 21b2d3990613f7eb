/* What failed: when to try again and when to give up, and whose fault it is. An effect that kills us, or has the
 * database hang up or roll back, is told from those beside it by running fewer and fewer together. */
#include "core/machine_impl.h"

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

void once__machine_give_up(once_machine *machine, int status, const once_error *error)
{
    if (machine->end.status == ONCE_OK) {
        machine->end.status = status;
        machine->end.error = *error;
        machine->end.error.status = status;
    }
    machine->end.stopping = true;
}

/* A server may come back, and so may space on a disk. */
static bool may_pass(int status) { return once_status_class(status) == ONCE_CLASS_RETRY || status == ONCE_E_FULL; }

/* Why it is given up, and what to do about it. */
static void say_given_up(const once_machine *machine, int status, const once_error *error, once_error *out)
{
    char patience[ONCE_DURATION_TEXT];
    once_duration_format(machine->spec->patience_ms, patience);
    if (status == ONCE_E_UNAVAILABLE)
        once_fail(out, status, "%.400s; gave up: run again when it is back, or raise 'patience' (%s)", error->text,
                  patience);
    if (status == ONCE_E_FULL)
        once_fail(out, status, "%.400s; gave up: run again when there is space, or raise 'patience' (%s)", error->text,
                  patience);
}

/* Whether to repeat after this failure; otherwise the pipeline was told to end. Sets when to go on. `since_ms`: the
 * first failure in a row, where patience counts. `longest_ms`: the longest pause. */
bool once__machine_worth_another_try(once_machine *machine, int status, const once_error *error, unsigned *tries,
                                     int64_t *at_ms, int64_t since_ms, int64_t now_ms, int64_t longest_ms)
{
    const once_class class = once_status_class(status);
    const bool few = ++*tries < FINITE_TRIES;
    const bool finite = machine->o.source & ONCE_SOURCE_FINITE;
    const bool passing = may_pass(status) && (!finite || few || now_ms - since_ms < machine->spec->patience_ms);
    const bool somebody_acts = class == ONCE_CLASS_PAUSE && !finite;
    /* The store is there: what is in flight can be settled. */
    const bool may_drain = !machine->end.stopping || (status == ONCE_E_ABORTED && few);
    if (!may_drain || !(passing || somebody_acts)) {
        once_error why = *error;
        if (may_drain && since_ms < now_ms) say_given_up(machine, status, error, &why);
        once__machine_give_up(machine, status, &why);
        return false;
    }
    const once_retry pace = {.min_ms = longest_ms < 100 ? longest_ms : 100,
                             .max_ms = longest_ms < 10000 ? longest_ms : 10000};
    *at_ms = now_ms + once_retry_delay_ms(&pace, *tries, machine->o.env);
    return true;
}

/* How long the store may be left alone after it failed, while we hold claims. */
static int64_t longest_pause_ms(const once_machine *machine, int64_t now_ms)
{
    int64_t lease_ms = once_flight_shortest_ms(&machine->outside.flight);
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->held && machine->work.items[i]->request.lease_ms < lease_ms)
            lease_ms = machine->work.items[i]->request.lease_ms;
    return once_lease_pause_ms(lease_ms, now_ms - machine->store.failing_since_ms);
}

static bool would_run(const once_item *item)
{
    return item->stage == ONCE_STAGE_CLAIM && !item->held && item->decision.answer == ONCE_ANSWER_RUN &&
           !once__item_is_external(item);
}

/* In a cautious pass nothing runs that was not claimed durably: what would run goes back to the queue with all behind
 * it, to be claimed durably and run alone. True: the pass must be left. */
bool once__machine_cautious_leaves(once_machine *machine)
{
    if (!machine->caution.look) return false;
    size_t keep = 0;
    while (keep < machine->work.n && !would_run(machine->work.items[keep])) keep++;
    if (keep == machine->work.n) return false;
    /* Told to stop, the pass was only to find out what became of a commit: of these, nothing. They are the source's. */
    for (size_t i = keep; machine->end.stopping && i < machine->work.n; i++)
        if (would_run(machine->work.items[i])) machine->work.items[i]->commit_unknown = false;
    once__machine_unreserve_work(machine); /* before some of it leaves the work */
    machine->caution.window = 1;
    /* It keeps its token: after a commit whose fate is not known that tells what is our own. */
    machine->caution.claim_first = machine->work.n == 1;
    if (machine->caution.claim_first) return true;
    once__machine_shorten_work(machine, keep);
    return true;
}

void once__machine_be_cautious(once_machine *machine)
{
    machine->caution.left = machine->batch_max > CAUTIOUS_LEAST ? machine->batch_max : CAUTIOUS_LEAST;
    machine->caution.window = 1;
}

static void give_verdict(once_item *item, once_outcome outcome, once_bytes reason)
{
    item->ended_tx = true;
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
 * ended_tx. */
static void suspect_effects(once_machine *machine, const once_action *action)
{
    const bool in_work = machine->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    if (action->status != ONCE_E_UNAVAILABLE || !in_work || !machine->work.ran) return;
    once_item *alone = machine->caution.left ? machine->work.runs_alone : NULL;
    if (alone && last_chance(alone)) {
        alone->hung_up = true; /* a server that was stopped at that very moment must not cost a message its life */
    } else if (alone) {
        give_verdict(alone, ONCE_RETRY, ONCE_BYTES("the database hung up while its effect ran, and it ran alone"));
        machine->caution.accused = true;
        once__machine_be_cautious(machine);
    } else if (++machine->caution.hung_up >= SUSPECT_AFTER || machine->caution.accused) {
        once__machine_be_cautious(machine);
        machine->caution.look = true;
        bool first = true;
        /* What was taken goes back, but for one, and is taken again one by one. */
        for (size_t i = 0; i < machine->work.n; i++) {
            once_item *item = machine->work.items[i];
            if (!item->held || item->returned || item->ended_tx || once__item_is_external(item)) continue;
            if (!first)
                give_verdict(item, ONCE_RELEASE,
                             ONCE_BYTES("put back: the database hung up on a batch that it was in"));
            first = false;
        }
    }
}

/* The message at whose statement it happened goes on without others, those before it without it; those behind it keep
 * their order. */
static void set_apart(once_machine *machine)
{
    size_t at = 0;
    while (at < machine->work.n && !machine->work.items[at]->suspect) at++;
    if (at == machine->work.n || machine->work.n == 1 || machine->work.items[at]->returned) return;
    machine->work.items[at]->suspect = false;
    machine->work.items[at]->apart = true;
    once__machine_unreserve_work(machine); /* before some of it leaves the work */
    once__machine_shorten_work(machine, at ? at : 1);
}

/* By the database itself, and the store is there: a deadlock, a timeout. */
static bool is_rollback(int status) { return status == ONCE_E_ABORTED || status == ONCE_E_BUSY; }

/* Before effects have run, it is nobody's. */
static void count_rollback(once_machine *machine, const once_action *action)
{
    if (!is_rollback(action->status)) machine->caution.rolled_back = 0;
    else if (machine->work.n && machine->work.ran) machine->caution.rolled_back++;
    if (machine->caution.rolled_back < BLAME_AFTER || ONCE_PLANTED(nobody_blamed)) return;
    machine->caution.careful_left = CAREFUL_BATCHES;
    set_apart(machine);
}

/* Something has ended the transaction while effects ran in it: they may stay, without their outcomes. So none of them
 * may run again before a person has looked, and nothing else may run either, because it would end the same way. One
 * more transaction writes that down. */
static bool leave_unknown(once_machine *machine, const once_action *action)
{
    bool any = false;
    for (size_t i = 0; action->status == ONCE_E_COMMIT_UNKNOWN && i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        const bool begun = item->started || item->stage == ONCE_STAGE_RUN;
        if (!begun || item->returned || item->ended_tx || once__item_is_external(item)) continue;
        give_verdict(item, item->handler->natural ? ONCE_RETRY : ONCE_UNKNOWN,
                     ONCE_BYTES("something has ended the transaction that its effect ran in, and it is not known "
                                "whether that was committed"));
        item->commit_unknown = any = true;
    }
    if (!any) return false;
    once__machine_give_up(machine, action->status, &action->error);
    if (machine->work.in_tx) {
        machine->work.next = NEXT_ROLLBACK;
    } else {
        once__machine_unreserve_work(machine);
        machine->work.next = NEXT_BEGIN;
    }
    return true;
}

void once__machine_store_failed(once_machine *machine, once_action *action, int64_t now_ms)
{
    if (leave_unknown(machine, action)) return;
    suspect_effects(machine, action);
    count_rollback(machine, action);
    if (machine->store.tries == 0) machine->store.failing_since_ms = now_ms;
    const bool soon = machine->work.n && is_rollback(action->status) && machine->store.tries < ROLLED_BACK_MANY;
    if (!once__machine_worth_another_try(machine, action->status, &action->error, &machine->store.tries,
                                         &machine->store.at_ms, machine->store.failing_since_ms, now_ms,
                                         soon ? ROLLED_BACK_MS : longest_pause_ms(machine, now_ms)))
        machine->store.gone = true;
    const bool preclaim = machine->caution.preclaim; /* repeated with the same token: it may have happened */
    machine->caution.preclaim = false;
    /* It may be claimed. Dropped with its stream, the claim would last until its lease ends, and cost a failure. */
    if (preclaim) machine->work.items[0]->commit_unknown = true;
    if (action->kind == ONCE_ACT_TAKE) machine->due.again = true;
    if (machine->work.in_tx) {
        machine->work.next = NEXT_ROLLBACK;
        return;
    }
    if (action->kind == ONCE_ACT_COMMIT && is_rollback(action->status)) once__machine_drop_found(machine);
    for (size_t i = 0; action->kind == ONCE_ACT_COMMIT && i < machine->work.n; i++)
        machine->work.items[i]->commit_unknown = true;
    for (size_t i = machine->work.n; ONCE_PLANTED(start_first) && action->kind == ONCE_ACT_COMMIT && i > 0; i--)
        if (machine->work.items[i - 1]->stage == ONCE_STAGE_FLY)
            once__machine_depart(machine, machine->work.items[i - 1], machine->work.asked_at_ms),
                machine->work.items[i - 1] = machine->work.items[--machine->work.n];
    once__machine_unreserve_work(machine);
    once__machine_drop_unwanted(machine);
    if (machine->store.gone) once__machine_drop_work(machine);
    else machine->work.next = !once__machine_has_work(machine) ? NEXT_CHOOSE : preclaim ? NEXT_PRECLAIM : NEXT_BEGIN;
}

void once__machine_run_carefully(once_machine *machine)
{
    machine->caution.careful_left = CAREFUL_BATCHES;
    machine->work.next = NEXT_ROLLBACK;
}

/* Effects that were presumed done were not, and nothing of the transaction is. A careful pass presumes nothing. */
bool once__machine_disproved(const once_machine *machine, const once_action *action)
{
    const bool in_work = machine->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    return in_work && machine->caution.careful_left == 0 && once_status_class(action->status) == ONCE_CLASS_MESSAGE;
}
