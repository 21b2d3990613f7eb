/* The functions of core/machine.h: making, stepping, stopping and reading the machine. core/machine_impl.h has its
 * state and lists the other files with what each is about. */
#include "core/machine.h"

#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/machine_impl.h"
#include "core/plant.h"

#include "base/banned.h"

const char *once_action_name(once_action_kind kind)
{
    static const char *const names[] = {
        "none",    "begin",  "absent", "find",   "claim",    "extend", "run",
        "settle",  "accept", "bury",   "commit", "rollback", "take",   "stats",
        "count",   "renew",  "sweep",  "seek",   "fetch",    "ack",    "extend deliveries",
        "release", "start",  "kill"};
    assert((size_t)kind < sizeof names / sizeof *names);
    return names[kind];
}

void once_machine_step(once_machine *machine, once_action *action, int64_t now_ms)
{
    assert(!machine->end.ended || !machine->store.out);
    machine->now_ms = now_ms;
    if (action == &machine->source.action) {
        assert(machine->source.out);
        machine->source.out = false;
        once__machine_fetched(machine, action, now_ms);
    } else if (action == &machine->acks.action) {
        assert(machine->acks.out);
        machine->acks.out = false;
        once__machine_acked(machine, action, now_ms);
    } else if (action == &machine->outside.action) {
        assert(machine->outside.out);
        machine->outside.out = false;
    } else {
        assert(action == &machine->store.action && machine->store.out);
        machine->store.out = false;
        once__machine_store_step(machine, action, now_ms);
    }
    once__machine_checked(machine);
}

once_action *once_machine_store_action(once_machine *machine, int64_t now_ms)
{
    machine->now_ms = now_ms;
    once_action *action = once__machine_store_action(machine, now_ms);
    once__machine_checked(machine);
    return action;
}

once_action *once_machine_source_action(once_machine *machine, int64_t now_ms)
{
    machine->now_ms = now_ms;
    once_action *action = once__machine_source_action(machine, now_ms);
    once__machine_checked(machine);
    return action;
}

once_action *once_machine_ack_action(once_machine *machine, int64_t now_ms)
{
    machine->now_ms = now_ms;
    once_action *action = once__machine_ack_action(machine, now_ms);
    once__machine_checked(machine);
    return action;
}

once_action *once_machine_effect_action(once_machine *machine, int64_t now_ms)
{
    machine->now_ms = now_ms;
    once_action *action = once__machine_effect_action(machine, now_ms);
    once__machine_checked(machine);
    return action;
}

void once_machine_finished(once_machine *machine, once_item *const *items, size_t n, int64_t now_ms)
{
    machine->now_ms = now_ms;
    once__machine_finished(machine, items, n, now_ms);
    once__machine_checked(machine);
}

void once_machine_stop(once_machine *machine)
{
    machine->end.stopping = true;
    machine->end.drained = false;
    machine->store.at_ms = 0; /* the pause after a failure ends: try now, for the last time */
}

bool once_machine_ended(const once_machine *machine) { return machine->end.ended; }

uint64_t once_machine_unsettled(const once_machine *machine) { return machine->end.unsettled; }

uint64_t once_machine_unfinished(const once_machine *machine) { return machine->source.dropped + machine->source.open; }

uint64_t once_machine_gone(const once_machine *machine) { return machine->source.gone; }

int once_machine_status(const once_machine *machine, once_error *err)
{
    if (machine->end.status != ONCE_OK && err) *err = machine->end.error;
    return machine->end.status;
}

const once_counts *once_machine_counts(const once_machine *machine) { return &machine->counts; }

const once_timings *once_machine_timings(const once_machine *machine) { return &machine->timings; }

size_t once_machine_open(const once_machine *machine)
{
    size_t n = 0;
    for (int place = 0; place < ONCE_AT_PLACES; place++) n += machine->at[place];
    return n;
}

int64_t once_machine_wait_ms(const once_machine *machine, int64_t now_ms)
{
    int64_t at_ms = ONCE_NEVER;
    if (!machine->end.stopping) at_ms = once__machine_take_at_ms(machine, now_ms);
    if (!machine->end.stopping && once__machine_may_be_over(machine) && machine->store.stats_at_ms < at_ms)
        at_ms = machine->store.stats_at_ms;
    if (!machine->end.stopping && once__machine_count_at_ms(machine) < at_ms)
        at_ms = once__machine_count_at_ms(machine);
    if (!machine->end.stopping && once__machine_seek_at_ms(machine) < at_ms) at_ms = once__machine_seek_at_ms(machine);
    const int64_t gate_ms = once_gates_at_ms(&machine->gate.gates, now_ms);
    if (!machine->end.stopping && gate_ms < at_ms) at_ms = gate_ms;
    if (machine->outside.flight.extend_at_ms < at_ms) at_ms = machine->outside.flight.extend_at_ms;
    if (machine->outside.unwritten.n && machine->outside.unwritten_at_ms < at_ms)
        at_ms = machine->outside.unwritten_at_ms;
    if (machine->store.renew_at_ms < at_ms) at_ms = machine->store.renew_at_ms;
    /* After a failure the store executor gets nothing but ROLLBACK before store.at_ms. So the pause decides, even if
     * something above is due earlier: that has to wait for the end of the pause, too. */
    if (machine->store.at_ms > now_ms) at_ms = machine->store.at_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

int64_t once_machine_source_wait_ms(const once_machine *machine, int64_t now_ms)
{
    const int64_t source_ms = once__machine_source_at_ms(machine, now_ms),
                  ack_ms = once__machine_ack_at_ms(machine, now_ms);
    const int64_t at_ms = source_ms < ack_ms ? source_ms : ack_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

static bool flight_new(once_machine *machine)
{
    if (!once_flight_init(&machine->outside.flight, machine->spec)) return false;
    if (machine->o.unclean && !ONCE_PLANTED(no_caution)) {
        machine->outside.flight.alone_left = SINGLY_LEAST;
        machine->outside.claims_left = CLAIMED_LEAST * machine->batch_max;
    }
    if (!once_gates_init(&machine->gate.gates, machine->spec)) return false;
    if (!once_due_shares_init(&machine->due.shares, machine->spec)) return false;
    machine->gate.has_queues = machine->outside.flight.slots || machine->gate.gates.has_rates;
    if (!machine->gate.has_queues) return once_key_queue_init(&machine->key_queue, 0);
    machine->outside.list = calloc(machine->outside.flight.slots + 1, sizeof *machine->outside.list);
    return machine->outside.list && once_key_queue_init(&machine->key_queue, once__machine_ids(machine));
}

/* All effects run in the store's database, and none locks names, which a transaction must do first. */
static bool all_effects_inside(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i]) || spec->handlers[i].locks.n) return false;
    return true;
}

int once_machine_new(const once_machine_options *options, once_machine **out, once_error *err)
{
    /* A cursor covers all messages before it; with single acks there is no such place. */
    assert(!(options->source & ONCE_SOURCE_SINGLE_ACKS && once_spec_keeps_cursor(options->spec)));
    assert(options->spec->batch_max > 0 && options->prepare && options->env);
    once_machine *machine = calloc(1, sizeof *machine);
    if (!machine) return once_no_memory(err, "for a pipeline");
    machine->o = *options;
    machine->spec = options->spec;
    machine->batch_max = options->spec->batch_max;
    machine->end.stop_at_ms = ONCE_NEVER;
    if (!options->renew_ms) machine->store.renew_at_ms = ONCE_NEVER;
    machine->work.marks_size = 64;
    while (machine->work.marks_size < 8 * machine->batch_max) machine->work.marks_size *= 2;
    machine->due.finds = options->finds && options->spec->order && all_effects_inside(options->spec);
    if (options->unclean && !ONCE_PLANTED(no_caution)) once__machine_run_singly(machine);
    machine->caution.window = machine->batch_max;
    once_intake_init(&machine->intake, options->spec, options->secret, options->run, options->prepare);
    once_intake_init(&machine->fetch_intake, options->spec, options->secret, options->run, options->prepare);
    machine->fetch_intake.prints_late = true;

    const size_t pointer = sizeof(once_item *);
    const size_t most = machine->work.size = 2 * machine->batch_max; /* a batch, and as many that FIND may add */
    machine->work.items = calloc(most, pointer);
    machine->work.round = calloc(most, pointer);
    machine->work.next_round = calloc(most, pointer);
    machine->work.list = calloc(most, pointer);
    machine->work.about = calloc(most + machine->batch_max, pointer);
    machine->work.last = calloc(most, pointer);
    machine->work.keeping = calloc(machine->batch_max, pointer);
    machine->work.marks = calloc(machine->work.marks_size, sizeof *machine->work.marks);
    machine->work.admitted = calloc(options->spec->n_handlers + 1, sizeof *machine->work.admitted);
    const bool memory = machine->work.items && machine->work.last && machine->work.round && machine->work.next_round &&
                        machine->work.list && machine->work.about && machine->work.keeping && machine->work.marks &&
                        machine->work.admitted;
    const bool assigns = options->source & ONCE_SOURCE_ASSIGNS;
    if (!memory || !flight_new(machine) || (!assigns && !once__machine_stream_add(machine, 0))) {
        once_machine_free(machine);
        return once_no_memory(err, "for a pipeline");
    }
    *out = machine;
    return ONCE_OK;
}

void once_machine_free(once_machine *machine)
{
    if (!machine) return;
    while (machine->batches.all) {
        once_batch *batch = machine->batches.all;
        machine->batches.all = batch->all;
        once__batch_free(batch);
    }
    once_intake_release(&machine->intake);
    once_intake_release(&machine->fetch_intake);
    once_stream *releasing = machine->acks.releasing; /* another stream may have its number by now */
    if (releasing && machine->streams.at[releasing->number] != releasing) once_stream_free(releasing);
    for (uint32_t i = 0; i < machine->streams.n; i++) once_stream_free(machine->streams.at[i]);
    free(machine->streams.at);
    free(machine->streams.paused);
    once_flight_release(&machine->outside.flight);
    once_due_shares_release(&machine->due.shares);
    once_gates_release(&machine->gate.gates);
    once_key_queue_release(&machine->key_queue);
    once_id_set_release(&machine->unknown);
    free(machine->work.items);
    free(machine->work.round);
    free(machine->work.next_round);
    free(machine->work.list);
    free(machine->work.about);
    free(machine->work.last);
    free(machine->work.keeping);
    free(machine->work.marks);
    free(machine->work.admitted);
    free(machine->outside.list);
    free(machine);
}
