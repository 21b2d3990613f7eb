/* Effects outside of the store: they start when their claims are durable, must end before their leases do, and come
 * back with an outcome. */
#include "core/machine_impl.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* Effects that are begun with one action. The executor looks what has ended before it asks for the next ones: with all
 * of them at once, the store would wait for outcomes that are there already. */
#define STARTS 64
#define WRITE_MS 5000 /* how often to try a `then` that cannot be written; sooner where leases are short */

/* The claim is durable, or there is none: the effect may begin. */
void once__machine_put_in_flight(once_machine *machine, once_item *item, int64_t asked_at_ms)
{
    assert(once__item_is_external(item) && item->input);
    if (!item->joined) (void)once_key_queue_join_first(&machine->key_queue, item);
    item->commit_unknown = false; /* the result of its commit is known now */
    item->claimed_at_ms = asked_at_ms;
    item->unclaimed = item->decision.unclaimed;
    if (machine->outside.claims_left) machine->outside.claims_left--;
    once__machine_move(machine, item, ONCE_AT_FLIGHT);
    machine->counts.repeats += once__item_repeat_change(item) > 0;
}

/* It is back. Its outcome is settled in the next transaction, unless nothing is kept of it; with a cursor, which the
 * store keeps, there is always something to keep. */
static void come_back(once_machine *machine, once_item *item, int64_t now_ms)
{
    item->returned = true;
    item->came_to = item->outcome;
    item->came_with = item->result;
    item->came_why = item->failure;
    if (once_item_leaves_nothing(item) && item->run_failure == ONCE_OK && !once_spec_keeps_cursor(machine->spec))
        once__machine_end_unrecorded(machine, item, now_ms);
    else once__machine_move(machine, item, ONCE_AT_RETURNED);
}

/* It was claimed and has not begun: it is released, which counts no failure. */
static void release_unstarted(once_machine *machine, once_item *item, once_bytes why)
{
    assert(!item->given);
    const bool asks = item->decision.asks; /* then it stays unknown, as it was */
    item->outcome = asks ? ONCE_UNKNOWN : ONCE_RELEASE;
    item->maybe_done = asks;
    item->failure = asks ? item->decision.before : why;
    item->delay_ms = 0;
    once__machine_begins_not(machine, item);
    come_back(machine, item, machine->now_ms);
}

void once__machine_release_unstarted(once_machine *machine)
{
    once_item *next;
    for (once_item *item = machine->outside.flight.first; item; item = next) {
        next = item->next;
        if (!item->given) release_unstarted(machine, item, ONCE_BYTES("put back at shutdown"));
    }
}

/* Their handler was held up after they were claimed. */
void once__machine_put_back_paused(once_machine *machine)
{
    once_item *next;
    if (once_gates_are_wide(&machine->gate.gates)) return;
    for (once_item *item = machine->outside.flight.waiting ? machine->outside.flight.first : NULL; item; item = next) {
        next = item->next;
        if (!item->given && once__machine_must_not_begin(machine, item))
            release_unstarted(machine, item, ONCE_BYTES("put back: its handler is paused"));
    }
}

void once__machine_lose_in_flight(once_machine *machine, once_item *item)
{
    once_flight_lose(&machine->outside.flight, item);
    if (!item->given) release_unstarted(machine, item, ONCE_BYTES("put back: its claim was lost"));
}

/* --- back from their effects --- */

static bool may_write_again(const once_machine *machine, int64_t now_ms)
{
    return machine->outside.unwritten.n && (machine->end.stopping || now_ms >= machine->outside.unwritten_at_ms);
}

bool once__machine_must_settle(const once_machine *machine, int64_t now_ms)
{
    return machine->outside.returned || may_write_again(machine, now_ms);
}

void once__machine_settle_returned(once_machine *machine, int64_t now_ms)
{
    while (machine->outside.returned && machine->work.n < machine->batch_max)
        once__machine_move(machine, machine->outside.returned, ONCE_AT_WORK);
    while (may_write_again(machine, now_ms) && machine->work.n < machine->batch_max)
        once__machine_move(machine, machine->outside.unwritten.first, ONCE_AT_WORK);
}

/* Its effect has happened, and what belongs to it cannot be written until somebody acts. It keeps its claim, which each
 * try extends. Nothing else of its handler begins meanwhile, so that there are no more of these than slots. */
void once__machine_keep_unwritten(once_machine *machine, once_item *item, int64_t now_ms)
{
    const int64_t least_ms = item->request.lease_ms / 4, wait_ms = least_ms < WRITE_MS ? least_ms : WRITE_MS;
    if (machine->outside.unwritten.n == 0 || now_ms + wait_ms < machine->outside.unwritten_at_ms ||
        machine->outside.unwritten_at_ms <= now_ms)
        machine->outside.unwritten_at_ms = now_ms + wait_ms;
    item->claimed_at_ms = machine->work.asked_at_ms;
    item->unwritten = true;
    once__machine_then_ended(machine, item, now_ms);
    once__machine_move(machine, item, ONCE_AT_RETURNED);
}

static size_t find_ends(once_machine *machine, int64_t now_ms)
{
    const bool drained =
        machine->end.stopping && (machine->store.gone || now_ms - machine->end.stop_at_ms >= machine->spec->drain_ms);
    if (ONCE_PLANTED(no_kill)) return 0;
    return once_flight_ends(&machine->outside.flight, drained, now_ms, machine->outside.list,
                            machine->outside.flight.slots);
}

/* Functions of this process are only handed to a thread, which takes no time. */
static bool all_in_this_process(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i]) && (spec->handlers[i].bits & ONCE_EFFECT_ISOLATED)) return false;
    return true;
}

static size_t find_starts(once_machine *machine, int64_t now_ms)
{
    const size_t slots = machine->outside.flight.slots;
    if (machine->end.stopping) return 0;
    const size_t most = slots < STARTS || all_in_this_process(machine->spec) ? slots : STARTS;
    return once_flight_starts(&machine->outside.flight, now_ms, machine->outside.list, most);
}

/* KILL goes before START: there may always be something to start. No item is due for both: an effect is started only in
 * the first half of its lease and killed at four fifths of it. */
once_action *once__machine_effect_action(once_machine *machine, int64_t now_ms)
{
    if (machine->outside.out || machine->end.ended || machine->outside.flight.n == 0) return NULL;
    if (machine->end.stopping && machine->end.stop_at_ms == ONCE_NEVER) machine->end.stop_at_ms = now_ms;
    once_action_kind kind = ONCE_ACT_KILL;
    size_t n = find_ends(machine, now_ms);
    if (n == 0) {
        kind = ONCE_ACT_START;
        n = find_starts(machine, now_ms);
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

void once__machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms)
{
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        assert(item->place == ONCE_AT_FLIGHT && item->given);
        if (i + 2 * EXPECTED < n) once_item_expect(items[i + 2 * EXPECTED]);
        if (i + EXPECTED < n) once_key_queue_expect(&machine->key_queue, items[i + EXPECTED]);
        once__machine_blame(machine, item);
        /* An effect that was told to end, or never began, did not find the other side away: no pause is needed. Of a
         * handler that is held up the gate decides when it goes on. */
        const bool found_out = item->started && !item->told_to_end && item->run_failure == ONCE_OK;
        const once_outcome came_to = item->outcome;
        if (item->outcome == ONCE_RELEASE && item->delay_ms < 0 && !found_out) item->delay_ms = 0;
        if (ONCE_PLANTED(failure_dropped) && item->unclaimed) item->outcome = ONCE_DONE;
        if (!item->unclaimed) once__machine_judge(machine, item); /* otherwise when its entry is known */
        once__machine_ended_outside(machine, item, came_to, now_ms);
        come_back(machine, item, now_ms);
    }
    once__machine_put_back_paused(machine);
}
