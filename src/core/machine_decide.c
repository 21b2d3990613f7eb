/* What happens to one message in its transaction: what the store's answer means for it, and what the outcome of its
 * effect means. */
#include "core/machine_impl.h"

#include <assert.h>

#include "base/no_memory.h"
#include "core/plant.h"
#include "core/policy.h"

#include "base/banned.h"

/* Another worker has its claim. */
static void lose(once_machine *machine, once_item *lost)
{
    size_t kept = 0;
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i] != lost) machine->work.items[kept++] = machine->work.items[i];
    assert(kept + 1 == machine->work.n);
    machine->work.n = kept;
    machine->counts.fenced++;
    if (lost->tag) { /* its delivery is still ours: claim it as if it had just come */
        lost->held = false;
        once__machine_requeue(machine, lost);
    } else {
        once__machine_leave_key_queue(machine, lost);
        once__machine_move(machine, lost, ONCE_AT_OVER);
    }
}

/* It ends without an attempt. */
static void die(once_item *item, once_settlement end)
{
    item->outcome = end.outcome;
    item->failure = end.reason;
    item->maybe_done = end.maybe_done;
    item->stage = ONCE_STAGE_SETTLE;
}

/* For an unknown: how long until the other side may be asked; ONCE_NEVER: an operator decides. */
int64_t once__machine_question_ms(const once_machine *machine, const once_item *item)
{
    const once_policy policy = once_policy_of(item->handler, machine->o.env);
    return item->input ? once_policy_question_ms(&policy, &item->decision) : ONCE_NEVER;
}

void once__machine_judge(once_machine *machine, once_item *item)
{
    const once_policy policy = once_policy_of(item->handler, machine->o.env);
    once_settlement end = {.outcome = item->outcome, .delay_ms = item->delay_ms, .maybe_done = item->maybe_done};
    if (item->decision.asks)
        end = once_policy_answered(
            &policy, &item->decision,
            (once_found){.asked = item->started, .outcome = item->outcome, .delay_ms = item->delay_ms});
    else once_policy_judge(&policy, &item->decision, &end);
    item->outcome = end.outcome;
    item->delay_ms = end.delay_ms;
    item->maybe_done = end.maybe_done;
}

/* After the write that belongs to an effect outside (`then`): `outcome` is DONE if it was written, and then that of the
 * effect counts. Otherwise the effect has happened nevertheless, and never runs again because the write failed: the
 * entry is held, even where unknowns are tried again. A write that no message of its handler gets past waits until it
 * works, or until the run ends. The other side may be asked about it only if a lookup without an
 * answer holds it, too: the store does not record that the effect is done, so with `unknown: retry` it would run again
 * in the end. */
static void ran_then(once_machine *machine, once_item *item)
{
    item->result = item->came_with;
    if (item->run_failure != ONCE_OK && !machine->end.stopping) {
        item->stage = ONCE_STAGE_CLAIM; /* it is left (once__machine_keep_unwritten) */
        item->outcome = item->came_to;
        return;
    }
    item->stage = ONCE_STAGE_SETTLE;
    item->delay_ms = 0;
    if (ONCE_PLANTED(then_ignored)) item->outcome = ONCE_DONE;
    if (item->outcome == ONCE_DONE) {
        item->outcome = item->came_to;
        item->failure = item->came_why;
        return;
    }
    once_policy policy = once_policy_of(item->handler, machine->o.env);
    once_settlement end = {.outcome = ONCE_UNKNOWN, .delay_ms = -1, .maybe_done = true};
    const bool repeats = ONCE_PLANTED(then_repeats);
    const bool tried_again = !policy.hold && !repeats; /* a lookup without an answer would end in another try */
    policy.hold |= !repeats;
    if (item->decision.asks)
        end = once_policy_answered(&policy, &item->decision,
                                   (once_found){.asked = true, .outcome = ONCE_UNKNOWN, .delay_ms = -1});
    else once_policy_judge(&policy, &item->decision, &end);
    item->outcome = end.outcome;
    item->delay_ms = tried_again ? ONCE_NEVER : end.delay_ms;
    item->maybe_done = true;
    const bool planted = ONCE_PLANTED(lookup_guesses) || ONCE_PLANTED(hold_ignored) || ONCE_PLANTED(unknown_done);
    assert(item->outcome == ONCE_UNKNOWN || repeats || planted);
    (void)planted;
}

/* Its claim was lost, or, after a commit whose result is unknown, it is already settled; or the write has ended a
 * transaction before (ended_tx). This transaction does not settle it as done: if no other worker has it, it is
 * unknown. */
static void leave_unwritten(once_machine *machine, once_item *item)
{
    item->outcome = ONCE_UNKNOWN;
    item->failure =
        item->granted
            ? item->reason
            : ONCE_BYTES("its effect has happened, and its 'then' was not written: its claim was lost before");
    ran_then(machine, item);
}

/* After an effect in the store's database. A failure waits for the backoff; a release comes again at once. */
static void ran(once_machine *machine, once_item *item)
{
    if (item->returned) {
        ran_then(machine, item);
        return;
    }
    once__machine_blame(machine, item);
    item->started = item->run_failure == ONCE_OK;
    item->stage = ONCE_STAGE_SETTLE;
    item->delay_ms = item->outcome == ONCE_RELEASE ? 0 : -1;
    once__machine_judge(machine, item);
    if (item->outcome != ONCE_DEAD) once__machine_passes(machine, item);
    else (void)once__machine_spares(machine, item);
}

/* What could not be prepared from its body dies; if that happens to too many, the handler is at fault, and it waits. */
static void refuse(once_machine *machine, once_item *item, const once_policy *policy)
{
    die(item, once_policy_refuse(policy, &item->decision, item->reason));
    if (!item->handler || !once_handler_runs(item->handler)) return;
    once__machine_tries(machine, item);
    (void)once__machine_spares(machine, item);
}

/* Its handler was held up since it was taken or chosen. */
static void put_back(once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->failure = ONCE_BYTES("put back: its handler is paused");
    item->delay_ms = 0;
    item->stage = ONCE_STAGE_SETTLE;
}

/* The item is claimed. Is there a reason not to run it? */
static void decide_run(once_machine *machine, once_item *item)
{
    const bool external = once__item_is_external(item);
    const once_policy policy = once_policy_of(item->handler, machine->o.env);
    if (item->returned) { /* its effect ran without a claim, and failed: what the entry says counts, too */
        assert(item->unclaimed);
        once__machine_judge(machine, item);
        once__machine_judged_late(machine, item);
        item->stage = ONCE_STAGE_SETTLE;
        return;
    }
    if (item->decision.unclaimed) {
        item->commit_unknown = false; /* the store has nothing of it */
        /* It goes back to the queue, or is left to whoever has its stream now. */
        if (machine->end.stopping || once__item_is_unwanted(item)) return;
    }
    if (machine->end.stopping && (item->held || external) && !(item->ended_tx && item->outcome == ONCE_UNKNOWN)) {
        item->outcome = ONCE_RELEASE;
        item->failure = ONCE_BYTES("put back at shutdown");
        item->delay_ms = 0;
        item->stage = ONCE_STAGE_SETTLE;
    } else if (!item->handler || !item->input) {
        refuse(machine, item, &policy);
    } else if (once_policy_is_spent(&policy, &item->decision)) {
        die(item, once_policy_spend(&policy, &item->decision, &item->batch->arena));
    } else if (item->decision.gap_over && machine->spec->gap_dead) {
        die(item, once_policy_refuse(&policy, &item->decision, item->decision.reason));
    } else if (item->ended_tx) {
        item->failure = item->reason;
        ran(machine, item);
    } else if (!once__machine_may_begin(machine, item)) {
        put_back(item);
    } else {
        item->stage = external ? ONCE_STAGE_OUTSIDE : ONCE_STAGE_RUN;
        once__machine_begins(machine, item);
        if (!external) once__machine_passes(machine, item); /* as far as is known */
    }
}

/* An unknown that was taken, but must not be asked about now: it stays unknown, with its reason. */
static void put_back_question(once_machine *machine, once_item *item)
{
    assert(item->held && item->decision.answer == ONCE_ANSWER_UNKNOWN);
    item->outcome = ONCE_UNKNOWN;
    item->maybe_done = true;
    item->failure = item->decision.before;
    item->delay_ms = machine->end.stopping ? 0 : once__machine_question_ms(machine, item);
    item->stage = ONCE_STAGE_SETTLE;
}

/* Nothing is left to do, except a dead letter if the message was refused. */
void once__item_refused_or_over(once_item *item)
{
    const once_answer answer = item->decision.answer;
    item->stage = once_answer_is_refusal(answer) ? ONCE_STAGE_BURY : ONCE_STAGE_OVER;
}

void once__machine_note_replaced(const once_machine *machine, once_item *item)
{
    if (!item->decision.letter) return;
    item->replaces = true;
    item->replaces_ours = item->decision.left_by == machine->o.run;
}

void once__machine_decide(once_machine *machine, once_item *item)
{
    if (item->decision.asks) {
        put_back_question(machine, item);
        return;
    }
    /* After a commit whose result is unknown, the entry may no longer show what this message overtook. */
    const bool before = item->overtakes && item->commit_unknown;
    item->overtakes = item->tag && (item->decision.left_by == machine->o.run || before) && !item->decision.letter;
    once__machine_note_replaced(machine, item);
    if (item->ended_tx && item->outcome == ONCE_UNKNOWN && item->decision.answer != ONCE_ANSWER_RUN) {
        /* Its outcome was written before its effect ran, and the statement that ended the transaction committed it. So
         * the stored outcome proves nothing. */
        item->decision.answer = ONCE_ANSWER_DEAD;
        item->stage = ONCE_STAGE_BURY;
        return;
    }
    if (item->found && item->decision.answer != ONCE_ANSWER_RUN) {
        item->stage = ONCE_STAGE_OVER; /* the store has it */
        return;
    }
    switch (item->decision.answer) {
    case ONCE_ANSWER_RUN: decide_run(machine, item); break;
    case ONCE_ANSWER_BUSY:
    case ONCE_ANSWER_LATER:
    case ONCE_ANSWER_GAP:
    case ONCE_ANSWER_UNKNOWN: item->stage = ONCE_STAGE_ACCEPT; break;
    default: once__item_refused_or_over(item);
    }
}

static bool own(once_item *item, once_bytes *words)
{
    return words->len == 0 || once_arena_copy(&item->batch->arena, *words, words);
}

/* It has a durable claim, whose answer holds in every transaction from now on. */
void once__machine_hold(once_machine *machine, once_item *item)
{
    once_error err;
    once_decision *first = once_arena_alloc(&item->batch->arena, sizeof *first);
    item->held = first != NULL;
    item->first = first;
    if (!first) {
        once__machine_give_up(machine, once_no_memory(&err, "for a batch"), &err);
        return;
    }
    *first = item->decision;
    /* The executor frees its own bytes with the next transaction. */
    if (!own(item, &first->reason) || !own(item, &first->before)) first->reason = first->before = (once_bytes){0};
}

void once__machine_preclaimed(once_machine *machine, once_item *item)
{
    machine->caution.preclaim = false;
    if (item->decision.letter) { /* this claim is durable, so it counts now */
        once__count_replaced(&machine->counts, item->decision.left_by == machine->o.run);
        item->decision.letter = false;
        item->decision.left_by = 0;
    }
    if (item->decision.answer == ONCE_ANSWER_RUN) once__machine_hold(machine, item);
    once__machine_drop_unwanted(machine); /* if its stream was revoked meanwhile and it was not claimed */
    machine->work.next = once__machine_has_work(machine) ? NEXT_BEGIN : NEXT_CHOOSE;
}

/* The claims of held items are checked inside the transaction that their effects will run in. */
void once__machine_extended(once_machine *machine, once_action *action)
{
    if (machine->work.next == NEXT_KEEP) {
        for (size_t i = 0; i < action->n; i++)
            if (!action->items[i]->granted) once__machine_lose_in_flight(machine, action->items[i]);
        machine->work.next = NEXT_FIND;
        return;
    }
    machine->work.next = NEXT_RUN;
    for (size_t i = 0; i < action->n; i++) {
        once_item *item = action->items[i];
        if (item->returned) { /* its claim fences the write that belongs to its outcome */
            if (item->granted && !item->ended_tx) item->stage = ONCE_STAGE_RUN;
            else leave_unwritten(machine, item);
            continue;
        }
        if (item->granted) {
            item->decision = *item->first;
            continue;
        }
        if (item->commit_unknown)
            item->held = false; /* our own commit may have settled it: a claim with its token will tell */
        else lose(machine, item);
        machine->work.next = NEXT_ROLLBACK;
    }
}

void once__machine_have_run(once_machine *machine, once_action *action, int64_t now_ms)
{
    if (!action->failed) {
        for (size_t i = 0; i < action->n; i++) ran(machine, action->items[i]);
        machine->work.next = NEXT_SETTLE;
        return;
    }
    if (ONCE_PLANTED(split_forgets)) {
        for (size_t i = 0; i < action->n; i++) action->items[i]->outcome = ONCE_DONE, ran(machine, action->items[i]);
        once__machine_conclude(machine, now_ms);
    }
    once__machine_run_carefully(machine);
}

/* Settling it as it came back once more answers whether the last commit did so, and changes nothing: an entry whose
 * claim is still there was settled just now. */
static void settle_again(once_machine *machine, once_item *item)
{
    item->outcome = item->came_to;
    item->result = item->came_with;
    item->failure = item->came_why;
    item->delay_ms = 0;
    item->maybe_done = false;
    machine->work.list[machine->work.again_n++] = item; /* the list of the action, which has been read up to here */
}

void once__machine_settled(once_machine *machine, once_action *action)
{
    assert(action->items == machine->work.list);
    machine->work.next = NEXT_ACCEPT;
    machine->work.again_n = 0;
    for (size_t i = 0; i < action->n; i++) {
        once_item *item = action->items[i];
        if (item->returned && item->granted) item->lost = false; /* no other worker went on with it after all */
        if (item->granted) continue;
        if (once_item_may_be_settled(item)) {
            settle_again(machine, item);
            continue;
        }
        /* Its effect was outside, and cannot be rolled back. */
        item->lost = item->returned && !ONCE_PLANTED(fenced_acked);
        if (item->returned) continue;
        lose(machine, item); /* fenced: its effect must not be committed */
        machine->work.next = NEXT_ROLLBACK;
    }
    if (machine->work.again_n && machine->work.next == NEXT_ACCEPT) machine->work.next = NEXT_SETTLE_AGAIN;
}

void once__machine_buried(once_machine *machine, once_action *action)
{
    /* After a commit whose result is unknown, the letter in the store may be our own. */
    for (size_t i = 0; i < action->n; i++) {
        once_item *item = action->items[i];
        item->letter = item->granted || (item->commit_unknown && item->letter);
    }
    machine->work.next = NEXT_COMMIT;
}
