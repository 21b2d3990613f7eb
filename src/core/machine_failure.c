/* Failures: when to try again, when to give up, and which message is at fault. To find the effect that kills the
 * process, or makes the database hang up or roll back, fewer and fewer effects run together. */
#include "core/machine_impl.h"

#include <assert.h>

#include "base/duration.h"
#include "core/plant.h"
#include "core/policy.h"

#include "base/banned.h"

#define ROLLED_BACK_MS 20   /* the longest pause after a rollback: the other transactions have ended by then ... */
#define ROLLED_BACK_MANY 10 /* ... unless it happened so often in a row */
#define CAREFUL_BATCHES 16  /* after an effect failed, so many batches run with savepoints */
#define SUSPECT_AFTER 2     /* the server must hang up so often in a row during effects before one is suspected */
#define FINITE_TRIES 5      /* a finite source gives up after so many failures in a row, once its patience is over */

void once__machine_give_up(once_machine *machine, int status, const once_error *error)
{
    if (machine->end.status == ONCE_OK) {
        machine->end.status = status;
        machine->end.error = *error;
        machine->end.error.status = status;
    }
    machine->end.stopping = true;
}

/* The server may come back, and so may space on the disk. */
static bool may_pass(int status) { return once_status_class(status) == ONCE_CLASS_RETRY || status == ONCE_E_FULL; }

/* Why the run gives up, and what to do about it. */
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

/* Whether to try again after this failure, and when (*at_ms); otherwise the machine stops. `since_ms`: the first
 * failure in a row, from which patience counts. `longest_ms`: the longest pause. */
bool once__machine_worth_another_try(once_machine *machine, int status, const once_error *error, unsigned *tries,
                                     int64_t *at_ms, int64_t since_ms, int64_t now_ms, int64_t longest_ms)
{
    assert(status != ONCE_OK && longest_ms > 0);
    const once_class class = once_status_class(status);
    const bool few = ++*tries < FINITE_TRIES;
    const bool finite = machine->o.source & ONCE_SOURCE_FINITE;
    const bool passing = may_pass(status) && (!finite || few || now_ms - since_ms < machine->spec->patience_ms);
    const bool operator_acts = class == ONCE_CLASS_PAUSE && !finite;
    /* After a mere rollback the store works: effects in flight can be settled. Where the source has ended, only acks
     * are left, and nobody waits for a stop. */
    const bool may_drain = !machine->end.stopping || machine->end.drained || (status == ONCE_E_ABORTED && few);
    if (!may_drain || !(passing || operator_acts)) {
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

/* The longest pause after a failure of the store, so that claims of this run are not lost. */
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

/* While messages run one by one, nothing runs that was not claimed durably. The first item that would run goes back to
 * the queue, with all behind it, to be claimed durably and run alone. True: this pass must be rolled back. */
bool once__machine_singly_leaves(once_machine *machine)
{
    if (!machine->caution.look) return false;
    size_t keep = 0;
    while (keep < machine->work.n && !would_run(machine->work.items[keep])) keep++;
    if (keep == machine->work.n) return false;
    /* After a stop the pass only had to find out about a commit. These were not in it, so the source keeps them. */
    for (size_t i = keep; machine->end.stopping && i < machine->work.n; i++)
        if (would_run(machine->work.items[i])) machine->work.items[i]->commit_unknown = false;
    once__machine_unreserve_work(machine); /* before items leave the work */
    machine->caution.window = 1;
    /* It keeps its token, which after a commit whose result is unknown tells its own entry from others. */
    machine->caution.claim_first = machine->work.n == 1;
    if (machine->caution.claim_first) return true;
    once__machine_shorten_work(machine, keep);
    return true;
}

void once__machine_run_singly(once_machine *machine)
{
    machine->caution.left = machine->batch_max > SINGLY_LEAST ? machine->batch_max : SINGLY_LEAST;
    machine->caution.window = 1;
}

/* Its outcome is decided without running it again. */
static void set_outcome(once_item *item, once_outcome outcome, once_bytes reason)
{
    item->ended_tx = true;
    item->outcome = outcome;
    item->reason = reason;
    item->delay_ms = 0;
}

static bool last_chance(const once_item *item)
{
    const once_policy policy = once_policy_of(item->handler, NULL);
    return !item->hung_up && once_policy_is_last(&policy, item->first);
}

/* The server hung up on a transaction in which effects ran. One of them may have crashed it. So they run one by one
 * from now on, each claimed durably before, as after a crash of our own process. An effect that ran alone has failed;
 * if its commit did happen, the next pass finds that before it uses the outcome set here (ended_tx). */
static void suspect_effects(once_machine *machine, const once_action *action)
{
    const bool in_work = machine->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    if (action->status != ONCE_E_UNAVAILABLE || !in_work || !machine->work.ran) return;
    once_item *alone = machine->caution.left ? machine->work.runs_alone : NULL;
    if (alone && last_chance(alone)) {
        alone->hung_up = true; /* one more try: the server may just have been stopped at that moment */
    } else if (alone) {
        set_outcome(alone, ONCE_RETRY, ONCE_BYTES("the database hung up while its effect ran, and it ran alone"));
        machine->caution.accused = true;
        once__machine_run_singly(machine);
    } else if (++machine->caution.hung_up >= SUSPECT_AFTER || machine->caution.accused) {
        once__machine_run_singly(machine);
        machine->caution.look = true;
        bool first = true;
        /* Taken items go back to the store, except one, and are taken again one by one. */
        for (size_t i = 0; i < machine->work.n; i++) {
            once_item *item = machine->work.items[i];
            if (!item->held || item->returned || item->ended_tx || once__item_is_external(item)) continue;
            if (!first)
                set_outcome(item, ONCE_RELEASE, ONCE_BYTES("put back: the database hung up on a batch that it was in"));
            first = false;
        }
    }
}

/* The rollback happened at what is written with the outcome of an effect outside. That has happened and is not
 * repeated, so this is tried more often than an effect; then the message is left unknown. */
static void blame_then(const once_machine *machine, once_item *item)
{
    item->suspect = false;
    if (machine->store.tries + 1 < ROLLED_BACK_MANY || ONCE_PLANTED(then_unblamed))
        return; /* the pauses are short until then */
    set_outcome(item, ONCE_UNKNOWN,
                ONCE_BYTES("its effect has happened, and its 'then' was not written: the database rolled it back again "
                           "and again (a deadlock, or a limit of the server)"));
}

/* The message at whose statement the rollback happened will run without others. Those before it go on without it; those
 * behind it go back to the queue in order. */
static void set_apart(once_machine *machine)
{
    size_t at = 0;
    while (at < machine->work.n && !machine->work.items[at]->suspect) at++;
    if (at == machine->work.n) return;
    if (machine->work.items[at]->returned) {
        blame_then(machine, machine->work.items[at]);
        return;
    }
    if (machine->work.n == 1) return;
    machine->work.items[at]->suspect = false;
    machine->work.items[at]->apart = true;
    once__machine_unreserve_work(machine); /* before items leave the work */
    once__machine_shorten_work(machine, at ? at : 1);
}

/* The database itself rolled back (a deadlock, a timeout), and the store works. */
static bool is_rollback(int status) { return status == ONCE_E_ABORTED || status == ONCE_E_BUSY; }

/* Only a rollback after effects ran can be the fault of a message. */
static void count_rollback(once_machine *machine, const once_action *action)
{
    if (!is_rollback(action->status)) machine->caution.rolled_back = 0;
    else if (machine->work.n && machine->work.ran) machine->caution.rolled_back++;
    if (machine->caution.rolled_back < BLAME_AFTER || ONCE_PLANTED(nobody_blamed)) return;
    machine->caution.careful_left = CAREFUL_BATCHES;
    set_apart(machine);
}

/* A statement ended the transaction while effects ran in it: their changes may be committed, without their outcomes. So
 * none of them may run again before an operator has looked, and nothing else may run, because it would end the same
 * way. One more transaction records that. */
static bool leave_unknown(once_machine *machine, const once_action *action)
{
    bool any = false;
    for (size_t i = 0; action->status == ONCE_E_COMMIT_UNKNOWN && i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        const bool begun = item->started || item->stage == ONCE_STAGE_RUN;
        if (!begun || item->returned || item->ended_tx || once__item_is_external(item)) continue;
        set_outcome(item, item->handler->natural ? ONCE_RETRY : ONCE_UNKNOWN,
                    ONCE_BYTES("something ended the transaction that its effect ran in, and it is not known whether "
                               "that was committed"));
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
    const bool preclaim = machine->caution.preclaim; /* repeated with the same token, because it may have happened */
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
        machine->work.items[i]->commit_unknown = !machine->work.items[i]->decision.unclaimed;
    for (size_t i = machine->work.n; ONCE_PLANTED(start_first) && action->kind == ONCE_ACT_COMMIT && i > 0; i--)
        if (machine->work.items[i - 1]->stage == ONCE_STAGE_OUTSIDE)
            once__machine_put_in_flight(machine, machine->work.items[i - 1], machine->work.asked_at_ms),
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

/* An effect that was presumed done has failed, and nothing of the transaction is committed. A careful pass presumes
 * nothing. */
bool once__machine_disproved(const once_machine *machine, const once_action *action)
{
    const bool in_work = machine->work.in_tx || action->kind == ONCE_ACT_COMMIT;
    return in_work && machine->caution.careful_left == 0 && once_status_class(action->status) == ONCE_CLASS_MESSAGE;
}
