/* After the commit: counts each message of the work, and moves it on. It is over, its effect is in flight, or it goes
 * back to the queue because the transaction did not reach it.
 *
 * Invariant: a message is counted in one place at a time. When one that was counted as waiting or unknown goes on, that
 * count goes down. */
#include "core/machine_impl.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

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

void once__machine_count_settled_by_lane(once_machine *machine, const once_item *item)
{
    const once_answer answer = item->decision.answer;
    assert(answer == ONCE_ANSWER_STALE || answer == ONCE_ANSWER_DUPLICATE || answer == ONCE_ANSWER_CONFLICT);
    machine->counts.stale += answer == ONCE_ANSWER_STALE;
    machine->counts.duplicates += answer == ONCE_ANSWER_DUPLICATE;
    machine->counts.dead += answer == ONCE_ANSWER_CONFLICT;
    machine->counts.conflicts += answer == ONCE_ANSWER_CONFLICT;
}

/* The count that a message belongs to after its transaction. */
static uint64_t *count_of(once_machine *machine, once_item *item, bool buried, bool settled)
{
    once_counts *counts = &machine->counts;
    if (item->skipped) return &counts->skipped;
    if (buried) {
        if (!item->letter) return &counts->duplicates; /* its letter existed already, or was discarded */
        counts->conflicts += item->decision.answer == ONCE_ANSWER_CONFLICT;
        counts->too_old += item->decision.answer == ONCE_ANSWER_TOO_OLD;
        return &counts->dead;
    }
    if (settled && item->outcome == ONCE_UNKNOWN) (void)once_id_set_add(&machine->unknown, item->request.id);
    if (settled) return count_of_outcome(counts, item->outcome);
    switch (item->decision.answer) {
    case ONCE_ANSWER_DUPLICATE:
        return item->decision.own ? count_of_outcome(counts, item->decision.outcome) : &counts->duplicates;
    case ONCE_ANSWER_STALE: return &counts->stale;
    case ONCE_ANSWER_WAITING: return &counts->waiting;
    /* Each key whose outcome is unknown is counted once. */
    case ONCE_ANSWER_UNKNOWN:
        return once_id_set_add(&machine->unknown, item->request.id) ? &counts->unknown : &counts->duplicates;
    case ONCE_ANSWER_DEAD: return item->decision.own ? &counts->dead : &counts->duplicates;
    default: return &counts->duplicates;
    }
}

static void sooner(int64_t *at_ms, int64_t now_ms, int64_t wait_ms)
{
    if (wait_ms != ONCE_NEVER && now_ms + wait_ms + CLOCK_SLACK_MS < *at_ms) *at_ms = now_ms + wait_ms + CLOCK_SLACK_MS;
}

/* A key that was counted as unknown no longer is: an operator had it tried again. */
bool once__machine_is_known_now(once_machine *machine, const once_item *item)
{
    /* A mere redelivery changes nothing. */
    const bool goes_on = !item->tag || item->stage == ONCE_STAGE_SETTLE;
    if (!goes_on || !once_id_set_remove(&machine->unknown, item->request.id)) return false;
    machine->counts.unknown--;
    return true;
}

/* Counts where the message came from: the source, or the store, where this run or an earlier one had left it waiting.
 * */
void once__machine_count_origin(once_machine *machine, const once_item *item, bool known_now)
{
    if (item->tag) machine->counts.received++;
    else if (known_now) return;
    else if (!item->resumed && machine->counts.waiting) machine->counts.waiting--;
    else machine->counts.resumed++;
}

/* What is added to `repeats`. 1: this claim repeats an effect that may have happened. -1: such a claim is given back
 * without any effect. */
int once__item_repeat_change(const once_item *item)
{
    if (!item->decision.unreported || !once__item_is_external(item) || item->unclaimed) return 0;
    if (item->stage == ONCE_STAGE_OUTSIDE) return 1;
    return item->returned && item->outcome == ONCE_RELEASE ? -1 : 0;
}

/* The same, less what an earlier commit has counted. If the result of that commit is unknown, it may be counted twice,
 * but is never missed. */
int once__item_new_repeat_change(const once_item *item)
{
    const int n = ONCE_PLANTED(repeats_hidden) ? 0 : once__item_repeat_change(item);
    return (n > 0 && item->decision.own) || (n < 0 && item->commit_unknown) ? 0 : n;
}

/* Versions that were given up for it. Counted with its first settlement, so that none is missed if a run is killed. */
int64_t once__item_given_up(const once_item *item)
{
    return item->stage == ONCE_STAGE_SETTLE && !item->lost ? item->decision.given_up : 0;
}

static void count_over(once_machine *machine, once_item *item, int64_t now_ms)
{
    once_counts *counts = &machine->counts;
    const bool settled = item->stage == ONCE_STAGE_SETTLE, known_now = once__machine_is_known_now(machine, item);
    once__machine_count_origin(machine, item, known_now);
    /* This message goes on with the entry of an earlier delivery, which counts as the duplicate from now on. */
    if (known_now && item->tag) {
        counts->duplicates++;
    } else if (item->overtakes && counts->waiting) {
        counts->waiting--;
        counts->duplicates++;
    }
    uint64_t *where = count_of(machine, item, item->stage == ONCE_STAGE_BURY, settled);
    ++*where;
    once__machine_note_waiting(machine, item, where == &counts->waiting);
    if (settled && item->returned) once__machine_then_ended(machine, item, now_ms);
    else if (settled) once__machine_ended_inside(machine, item, now_ms);
    once__machine_note_progress(machine, item, now_ms);
    once__machine_note_settled(machine, item);
    counts->given_up += (uint64_t)once__item_given_up(item);
    /* It ran in a commit whose reply was lost. */
    const bool ran_before = item->decision.own && item->decision.answer != ONCE_ANSWER_RUN;
    counts->attempts += once__item_has_tried(item) || ran_before;
    const bool asked_later = item->outcome == ONCE_UNKNOWN && item->request.lookup;
    if (settled && (item->outcome == ONCE_RETRY || item->outcome == ONCE_RELEASE || asked_later))
        sooner(&machine->due.at_ms, now_ms, item->delay_ms);
    if (!settled && item->decision.answer == ONCE_ANSWER_WAITING)
        sooner(&machine->due.at_ms, now_ms, item->decision.wait_ms);
    counts->retries += settled && item->outcome == ONCE_RETRY;
    if (machine->caution.left && item->started) machine->caution.left--;
}

/* It was found in the store and nothing changed: there is nothing to count. */
static bool is_untouched(const once_item *item)
{
    const once_decision *d = &item->decision;
    if (!item->found || item->stage == ONCE_STAGE_SETTLE || d->answer == ONCE_ANSWER_STALE) return false;
    return !(d->answer == ONCE_ANSWER_DUPLICATE && (d->own || d->lane)) && !(d->answer == ONCE_ANSWER_DEAD && d->own);
}

/* Its effect ended after another worker had got its claim. */
static void give_away(once_machine *machine, once_item *item)
{
    machine->counts.fenced++;
    machine->counts.attempts += once__item_has_tried(item);
    once__machine_then_ended(machine, item, machine->now_ms);
    if (!once__item_is_unwanted(item) && item->tag) { /* its delivery is still ours: claim it as if it had just come */
        item->held = item->lost = item->returned = item->unclaimed = item->maybe_done = item->commit_unknown = false;
        once__item_forget_output(item);
        once__machine_move(machine, item, ONCE_AT_READY);
    } else {
        machine->source.open -= item->tag != 0;
        once__machine_leave_key_queue(machine, item);
        once__machine_move(machine, item, ONCE_AT_OVER);
    }
}

/* Its effect began without a claim, and nothing is kept of its outcome: it is over without a transaction. */
void once__machine_end_unrecorded(once_machine *machine, once_item *item, int64_t now_ms)
{
    assert(item->place == ONCE_AT_FLIGHT && once_item_leaves_nothing(item) && !once_spec_keeps_cursor(machine->spec));
    item->stage = ONCE_STAGE_SETTLE;
    machine->outside.unrecorded++;
    once__machine_end_delivery(machine, item);
    count_over(machine, item, now_ms);
    once__machine_leave_key_queue(machine, item);
    once_flight_unreserve(&machine->outside.flight, item);
    once__machine_move(machine, item, ONCE_AT_OVER);
}

/* A message that was waiting is now a conflict letter. */
void once__count_replaced(once_counts *counts, bool ours)
{
    if (ours && counts->waiting) counts->waiting--;
    else counts->resumed++;
    counts->dead++;
    counts->conflicts++;
}

/* How many waiting messages this commit replaced: those left by this run, and those left by others. */
static void gather_replaced(once_machine *machine, size_t out[2])
{
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (!item->replaces || once__item_is_left(item)) continue;
        out[!item->replaces_ours]++;
        item->replaces = false;
    }
}

void once__machine_conclude(once_machine *machine, int64_t now_ms)
{
    size_t replaced[2] = {0};
    gather_replaced(machine, replaced);
    once__machine_ack_work(machine);
    for (size_t i = 0; i < machine->work.keeping_n; i++)
        if (machine->work.keeping[i]->place == ONCE_AT_FLIGHT)
            once_flight_extended(&machine->outside.flight, machine->work.keeping[i], machine->work.asked_at_ms);
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->stage == ONCE_STAGE_OUTSIDE) {
            if (i + EXPECTED < machine->work.n)
                once_key_queue_expect(&machine->key_queue, machine->work.items[i + EXPECTED]);
            once__machine_put_in_flight(machine, machine->work.items[i], machine->work.asked_at_ms);
        }
    while (machine->work.n) { /* from the last on, so that items that go back to the queue keep their order */
        once_item *item = machine->work.items[--machine->work.n];
        if (item->stage == ONCE_STAGE_OUTSIDE) continue;
        if (once__item_is_left(item)) {
            if (item->returned) once__machine_keep_unwritten(machine, item, now_ms);
            else once__machine_requeue(machine, item);
            continue;
        }
        machine->counts.repeats -= once__item_repeat_change(item) < 0;
        if (item->lost) {
            give_away(machine, item);
        } else if (is_untouched(item)) {
            once__machine_move(machine, item, ONCE_AT_OVER);
        } else {
            count_over(machine, item, now_ms);
            once__machine_leave_key_queue(machine, item);
            once__machine_remember_farthest(machine, item);
            once__machine_move(machine, item, ONCE_AT_OVER);
        }
    }
    /* After all others: a replaced message may have been counted as waiting in this same transaction. */
    for (int other = 0; other < 2; other++)
        for (; replaced[other]; replaced[other]--) once__count_replaced(&machine->counts, !other);
    /* A settled message of a lane may have woken the next one: look for it now. */
    if (machine->work.had_lanes && (machine->counts.waiting || machine->counts.resumed)) machine->due.at_ms = now_ms;
    if (machine->caution.careful_left) machine->caution.careful_left--;
    if (machine->work.ran) machine->caution.hung_up = 0;
    if (machine->caution.left && machine->caution.look && machine->caution.window < machine->batch_max)
        machine->caution.window *= 2;
    once_gates_end_pass(&machine->gate.gates);
    once__machine_put_back_paused(machine);
    machine->work.keeping_n = 0;
    if (machine->due.finding) once__machine_looked_for_due(machine, machine->due.found_n, now_ms);
    machine->work.next = NEXT_CHOOSE;
}
