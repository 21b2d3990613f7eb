/* Effects outside of the store: they start when their claims are durable, must end before their leases do, and come
 * back with an outcome. */
#include "core/machine_impl.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* The claim is durable, or there is none: the effect may begin. */
void once__machine_put_in_flight(once_machine *machine, once_item *item, int64_t asked_at_ms)
{
    assert(once__item_is_external(item) && item->input);
    if (!item->joined && !once_key_queue_in_use(&machine->key_queue, item))
        once_key_queue_join(&machine->key_queue, item);
    item->commit_unknown = false; /* the result of its commit is known now */
    item->claimed_at_ms = asked_at_ms;
    item->unclaimed = item->decision.unclaimed;
    if (machine->outside.claims_left) machine->outside.claims_left--;
    once__machine_move(machine, item, ONCE_AT_FLIGHT);
    machine->counts.repeats += once__item_repeat_change(item) > 0;
}

/* It was claimed and has not begun: it is released, which counts no failure. */
static void release_unstarted(once_machine *machine, once_item *item)
{
    assert(!item->given);
    const bool asks = item->decision.asks; /* then it stays unknown, as it was */
    item->outcome = asks ? ONCE_UNKNOWN : ONCE_RELEASE;
    item->maybe_done = asks;
    item->failure = asks ? item->decision.before : ONCE_BYTES("put back at shutdown");
    item->delay_ms = 0;
    once__machine_move(machine, item, ONCE_AT_RETURNED);
}

void once__machine_release_unstarted(once_machine *machine)
{
    once_item *next;
    for (once_item *item = machine->outside.flight.first; item; item = next) {
        next = item->next;
        if (!item->given) release_unstarted(machine, item);
    }
}

void once__machine_lose_in_flight(once_machine *machine, once_item *item)
{
    once_flight_lose(&machine->outside.flight, item);
    if (!item->given) release_unstarted(machine, item);
}

/* START goes before KILL. An effect is started only in the first half of its lease and killed at four fifths of it, so
 * no item is due for both, and a KILL that waits for a START still has a fifth of the lease. */
once_action *once__machine_effect_action(once_machine *machine, int64_t now_ms)
{
    if (machine->outside.out || machine->end.ended || machine->outside.flight.n == 0) return NULL;
    if (machine->end.stopping && machine->end.stop_at_ms == ONCE_NEVER) machine->end.stop_at_ms = now_ms;
    once_action_kind kind = ONCE_ACT_START;
    size_t n = machine->end.stopping ? 0
                                     : once_flight_starts(&machine->outside.flight, now_ms, machine->outside.list,
                                                          machine->outside.flight.slots);
    if (n == 0) {
        const bool drained = machine->end.stopping &&
                             (machine->store.gone || now_ms - machine->end.stop_at_ms >= machine->spec->drain_ms);
        kind = ONCE_ACT_KILL;
        n = ONCE_PLANTED(no_kill) ? 0
                                  : once_flight_ends(&machine->outside.flight, drained, now_ms, machine->outside.list,
                                                     machine->outside.flight.slots);
    }
    if (n == 0) return NULL;
    if (kind == ONCE_ACT_START) once__machine_note_started(machine, machine->outside.list, n);
    machine->outside.action = (once_action){.kind = kind, .items = machine->outside.list, .n = n};
    machine->outside.out = true;
    return &machine->outside.action;
}

int64_t once_machine_effect_wait_ms(const once_machine *machine, int64_t now_ms)
{
    int64_t at_ms = machine->outside.flight.end_at_ms;
    if (machine->end.stopping && machine->outside.flight.n) {
        const int64_t drained_ms =
            (machine->end.stop_at_ms == ONCE_NEVER ? now_ms : machine->end.stop_at_ms) + machine->spec->drain_ms;
        if (drained_ms > now_ms && drained_ms < at_ms) at_ms = drained_ms;
    }
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

static bool may_pass(const once_item *item) { return once_status_class(item->run_failure) == ONCE_CLASS_RETRY; }

void once__machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms)
{
    const once_item *failed = NULL;
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        assert(item->place == ONCE_AT_FLIGHT && item->given);
        /* An effect that was told to end, or never began, did not find the other side away: no pause is needed. */
        const bool found_out = item->started && !item->told_to_end;
        if (item->outcome == ONCE_RELEASE && item->delay_ms < 0 && !found_out) item->delay_ms = 0;
        if (ONCE_PLANTED(failure_dropped) && item->unclaimed) item->outcome = ONCE_DONE;
        if (!item->unclaimed) once__machine_judge(machine, item); /* otherwise when its entry is known */
        if (item->run_failure == ONCE_OK) machine->outside.tries = 0;
        else if (!failed || may_pass(failed)) failed = item;
        once__machine_move(machine, item, ONCE_AT_RETURNED);
    }
    if (!failed) return;
    once_error error;
    once_fail(&error, failed->run_failure, "%.*s", (int)failed->failure.len,
              failed->failure.data ? failed->failure.data : "");
    if (machine->outside.tries == 0) machine->outside.failing_since_ms = now_ms;
    once__machine_worth_another_try(machine, failed->run_failure, &error, &machine->outside.tries,
                                    &machine->outside.at_ms, machine->outside.failing_since_ms, now_ms, ONCE_NEVER);
}
