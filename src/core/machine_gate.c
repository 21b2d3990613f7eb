/* Handlers that are held up (core/gate.h): what begins and how it ended is told to their gates, and a run that has
 * nothing else to do gives up when its patience is over. */
#include "core/machine_impl.h"

#include <assert.h>
#include <string.h>

#include "base/duration.h"
#include "core/plant.h"
#include "core/policy.h"
#include "core/retry.h"

#include "base/banned.h"

static once_gate *gate_of(const once_machine *machine, const once_item *item)
{
    return once_gate_of(&machine->gate.gates, item->handler);
}

static bool runs(const once_item *item) { return item->handler && once_handler_runs(item->handler); }

once_room once__machine_room(const once_machine *machine, int64_t now_ms)
{
    return (once_room){&machine->outside.flight, &machine->gate.gates, now_ms};
}

bool once__machine_is_held(const once_machine *machine, const once_item *item)
{
    return runs(item) && once_gate_is_held(gate_of(machine, item));
}

/* Its handler is not held, or this is the probe. */
bool once__machine_may_begin(const once_machine *machine, const once_item *item)
{
    const once_gate *gate = gate_of(machine, item);
    if (ONCE_PLANTED(held_taken)) return true;
    return !once_gate_is_held(gate) || once_gate_room(gate, machine->now_ms) > 0;
}

/* It is claimed, and its effect begins: now, or when that is committed. */
void once__machine_begins(once_machine *machine, once_item *item)
{
    once_gate *gate = gate_of(machine, item);
    if (once__item_is_external(item)) {
        once_flight_reserve(&machine->outside.flight, item);
        once_gate_begin(gate, item, machine->now_ms);
    } else {
        once_gate_begin_inside(gate, item, machine->now_ms);
    }
}

/* Nothing can be made of its body, so its effect does not begin. If its handler is held because of letters, this was
 * the probe; about other reasons it tells nothing. */
void once__machine_tries(once_machine *machine, once_item *item)
{
    once_gate *gate = gate_of(machine, item);
    if (gate->hold == ONCE_GATE_DEAD && once_gate_room(gate, machine->now_ms))
        once_gate_begin_inside(gate, item, machine->now_ms);
}

void once__machine_begins_not(once_machine *machine, const once_item *item)
{
    once_gate_undo(gate_of(machine, item), item);
}

/* Claimed for an effect outside, not begun, and its handler was held up since. */
bool once__machine_must_not_begin(const once_machine *machine, const once_item *item)
{
    const once_gate *gate = gate_of(machine, item);
    return once_gate_is_held(gate) && gate->probe != item && !ONCE_PLANTED(held_taken) && !ONCE_PLANTED(many_probes);
}

static once_bytes reason_of(const once_item *item)
{
    return item->failure.len ? item->failure : once_policy_words(ONCE_DEAD);
}

static void spare(once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->delay_ms = 0;
}

/* It would become a dead letter in this transaction. True: it waits instead, because its handler is at fault. */
bool once__machine_spares(once_machine *machine, once_item *item)
{
    assert(item->outcome == ONCE_DEAD && runs(item));
    if (!once_gate_try(gate_of(machine, item), reason_of(item))) return false;
    spare(item);
    item->run_failure = ONCE_E_MESSAGE;
    return true;
}

/* It has, or will have, another outcome than a dead letter in this transaction. */
void once__machine_passes(once_machine *machine, const once_item *item)
{
    (void)once_gate_try(gate_of(machine, item), (once_bytes){0});
}

static void tell(once_machine *machine, const once_item *item, once_ended how, int64_t now_ms)
{
    const once_class class = once_status_class(how.status);
    how.who = item;
    how.id = item->request.id.a;
    how.reason = reason_of(item);
    if (how.status == ONCE_OK || class == ONCE_CLASS_RETRY || class == ONCE_CLASS_PAUSE) {
        if (how.status != ONCE_OK && ONCE_PLANTED(pause_ignored)) how.status = ONCE_OK;
        once_gate_ended(gate_of(machine, item), &how, now_ms, machine->o.env);
        return;
    }
    once_error error; /* no handler can go on after this */
    once_fail(&error, how.status, "%.*s", (int)how.reason.len, how.reason.data ? how.reason.data : "");
    once__machine_give_up(machine, how.status, &error);
}

/* What the other side said to a question: that it has no record of the effect is an answer, too. */
static once_outcome answer_of(const once_item *item, once_outcome came_to)
{
    return item->decision.asks && came_to == ONCE_RETRY ? ONCE_DONE : came_to;
}

/* It ran without a claim and has failed: whether that was its last attempt is known when its entry is. */
static bool is_judged_late(const once_item *item, once_outcome came_to)
{
    return item->unclaimed && (came_to == ONCE_RETRY || came_to == ONCE_UNKNOWN);
}

/* The same, in the transaction that claims it. */
void once__machine_judged_late(once_machine *machine, once_item *item)
{
    if (!is_judged_late(item, item->came_to)) return;
    if (item->outcome != ONCE_DEAD) once__machine_passes(machine, item);
    else if (!item->maybe_done) (void)once__machine_spares(machine, item);
}

/* The other side refuses this message, and takes others: that is an attempt that failed. Otherwise it would pause its
 * handler whenever it is tried, and never end. */
void once__machine_blame(once_machine *machine, once_item *item)
{
    if (item->outcome != ONCE_RELEASE || item->run_failure != ONCE_E_DENIED) return;
    if (item->decision.asks || !once_gate_blames(gate_of(machine, item), item->request.id.a)) return;
    item->outcome = ONCE_RETRY;
    item->run_failure = ONCE_OK;
    item->delay_ms = -1;
}

/* It is unknown, and the other side cannot be asked. Those without a claim are tried again (is_judged_late). */
static bool is_left_to_operator(const once_item *item)
{
    return !item->unclaimed && item->outcome == ONCE_UNKNOWN && !item->decision.asks && !item->request.lookup;
}

/* `came_to`: what the effect said; item->outcome: what follows from it. */
void once__machine_ended_outside(once_machine *machine, once_item *item, once_outcome came_to, int64_t now_ms)
{
    assert(runs(item));
    /* A call that found nobody to answer it was not begun, and has failed nevertheless. */
    const bool said = !item->told_to_end && (item->started || came_to != ONCE_RELEASE);
    const bool dead = item->outcome == ONCE_DEAD && !item->decision.asks;
    if (item->run_failure == ONCE_OK && !said) {
        once__machine_begins_not(machine, item); /* it tells nothing about its handler */
        return;
    }
    const once_ended how = {.status = item->run_failure,
                            .outcome = answer_of(item, came_to),
                            .asked = item->decision.asks,
                            .dead = dead,
                            .held = is_left_to_operator(item),
                            .unjudged = is_judged_late(item, came_to)};
    tell(machine, item, how, now_ms);
    if (dead && !item->maybe_done && once_gate_spares(gate_of(machine, item), reason_of(item))) spare(item);
    const bool paused = item->run_failure != ONCE_OK && item->outcome == ONCE_RELEASE;
    if (paused && ONCE_PLANTED(pause_blames)) item->outcome = ONCE_RETRY;
}

/* Its transaction is committed. */
void once__machine_ended_inside(once_machine *machine, const once_item *item, int64_t now_ms)
{
    if (!runs(item)) return;
    const bool spared = item->run_failure == ONCE_E_MESSAGE;
    const bool refused = !item->input && item->outcome == ONCE_DEAD;
    if (spared || refused) tell(machine, item, (once_ended){.outcome = ONCE_DEAD, .dead = true}, now_ms);
    else if (item->run_failure != ONCE_OK)
        tell(machine, item, (once_ended){.status = item->run_failure, .outcome = ONCE_RELEASE}, now_ms);
    else if (item->started)
        tell(machine, item, (once_ended){.outcome = item->outcome, .dead = item->outcome == ONCE_DEAD}, now_ms);
}

/* The transaction with the outcome of an effect outside, and with its `then`, is committed. As long as the latter
 * cannot be written, this item is the probe: another effect would only be one more that nothing is written about. */
void once__machine_then_ended(once_machine *machine, const once_item *item, int64_t now_ms)
{
    once_gate *gate = gate_of(machine, item);
    if (item->unwritten && ONCE_PLANTED(then_unheld)) return;
    if (item->unwritten) {
        tell(machine, item, (once_ended){.status = item->run_failure, .outcome = ONCE_RELEASE}, now_ms);
        once_gate_keep_probe(gate, item, machine->outside.unwritten_at_ms);
    } else if (gate->probe == item && item->lost) {
        once_gate_forget(gate, item);
    } else if (gate->probe == item) {
        tell(machine, item, (once_ended){.outcome = item->outcome}, now_ms);
    } else if (is_judged_late(item, item->came_to) && !item->lost) {
        const bool dead = item->outcome == ONCE_DEAD || item->run_failure == ONCE_E_MESSAGE;
        const once_ended how = {.dead = dead, .reason = reason_of(item)};
        once_gate_judged(gate, &how, now_ms, machine->o.env);
    }
}

/* --- the end of a run with a finite source --- */

/* A message went on, or waits for something else than a handler that is held. */
void once__machine_note_progress(once_machine *machine, const once_item *item, int64_t now_ms)
{
    const bool waits = item->stage == ONCE_STAGE_SETTLE && !once_outcome_is_decided(item->outcome);
    if (!once__machine_is_held(machine, item)) machine->gate.progress_ms = now_ms;
    if (!runs(item) || !waits || item->delay_ms < 0 || item->delay_ms == ONCE_NEVER) return;
    once_gate *gate = gate_of(machine, item);
    const int64_t due_ms = now_ms + item->delay_ms + CLOCK_SLACK_MS;
    if (due_ms > gate->due_ms) gate->due_ms = due_ms;
}

/* It is held, and the store was asked for a message to probe it with, and had none that is due. */
static bool lacks_probe(const once_gate *gate, int64_t now_ms)
{
    return once_gate_is_held(gate) && once_gate_room(gate, now_ms) && gate->looked_ms >= gate->at_ms &&
           gate->looked_ms >= gate->due_ms;
}

/* How long it is waited for. Failures pass, so those behind a breaker have at least as long as their retries would have
 * had without it. Unknowns that are held are not tried again. */
static int64_t patience_ms(const once_machine *machine, const once_held_view *held)
{
    const int64_t retries_ms =
        held->hold == ONCE_GATE_BREAKER && !held->costly ? once_retry_horizon_ms(&held->handler->retry) : 0;
    return retries_ms > machine->spec->patience_ms ? retries_ms : machine->spec->patience_ms;
}

static const char *cause_of(once_gate_hold hold)
{
    if (hold == ONCE_GATE_BREAKER) return " by its breaker, because too many of its effects fail";
    return hold == ONCE_GATE_DEAD ? ", because too many of its messages would be dead letters for one reason" : "";
}

static const char *way_out_of(once_gate_hold hold)
{
    if (hold == ONCE_GATE_BREAKER) return ", or with 'breaker: off'";
    return hold == ONCE_GATE_DEAD ? ", or with 'dead_limit: off' if they should be" : "";
}

static void say_held(const once_machine *machine, const once_held_view *held, once_error *out)
{
    char patience[ONCE_DURATION_TEXT];
    const once_bytes name = held->handler->type.len ? held->handler->type : held->handler->operation;
    once_duration_format(machine->spec->patience_ms, patience);
    once_fail(out, ONCE_E_PAUSED,
              "handler '%.*s' is paused%s: %.*s; gave up: its messages wait in the store. Run again when that is "
              "fixed%s, or raise 'patience' (%s)",
              name.len < 100 ? (int)name.len : 100, name.data, cause_of(held->hold), (int)held->reason.len,
              held->reason.data, way_out_of(held->hold), patience);
}

static bool is_out_of_patience(const once_machine *machine, const once_held_view *held, int64_t now_ms)
{
    const int64_t since_ms = held->since_ms > machine->gate.progress_ms ? held->since_ms : machine->gate.progress_ms;
    return now_ms - since_ms >= patience_ms(machine, held);
}

/* It is not held, and its messages wait for their time, or for its rate. */
static bool may_go_on(const once_gate *gate, int64_t now_ms)
{
    return !once_gate_is_held(gate) && (now_ms < gate->due_ms || once_gate_room(gate, now_ms) == 0);
}

/* This run has nothing to do: the source is at its end, or no more may wait in the store. What waits there belongs to
 * handlers that are held. It ends when all of these are out of patience; one without a message that could try it does
 * not count. */
bool once__machine_waits_in_vain(once_machine *machine, const once_action *stats, int64_t now_ms)
{
    size_t at = 0;
    once_held_view held, vain = {0};
    const bool others = stats->claimed > machine->outside.unwritten.n; /* which wait for their handlers, too */
    if (!(machine->o.source & ONCE_SOURCE_FINITE) || others) return false;
    for (size_t i = 0; i < machine->spec->n_handlers; i++)
        if (may_go_on(&machine->gate.gates.at[i], now_ms)) return false;
    while (once_machine_next_held(machine, &at, &held)) {
        if (held.unmet) continue;
        if (!is_out_of_patience(machine, &held, now_ms)) return false;
        if (!vain.handler) vain = held;
    }
    if (!vain.handler) return false;
    once_error why;
    say_held(machine, &vain, &why);
    machine->gate.gave_up = machine->end.status == ONCE_OK;
    once__machine_give_up(machine, ONCE_E_PAUSED, &why);
    return true;
}

void once_machine_renew_soon(once_machine *machine, int64_t now_ms)
{
    if (machine->store.renew_at_ms != ONCE_NEVER && machine->store.renew_at_ms > now_ms)
        machine->store.renew_at_ms = now_ms;
}

bool once_machine_next_held(const once_machine *machine, size_t *at, once_held_view *out)
{
    while (*at < machine->spec->n_handlers) {
        const once_gate *gate = &machine->gate.gates.at[*at];
        const once_handler_spec *handler = &machine->spec->handlers[(*at)++];
        if (!once_gate_is_held(gate)) continue;
        *out = (once_held_view){.handler = handler,
                                .hold = gate->hold,
                                .reason = {gate->reason, strlen(gate->reason)},
                                .since_ms = gate->since_ms,
                                .next_ms = gate->at_ms,
                                .unmet = lacks_probe(gate, machine->now_ms),
                                .costly = gate->costly,
                                .probes = gate->probes};
        return true;
    }
    return false;
}
