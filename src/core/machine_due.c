/* Messages that wait in the store. They are taken when they are due (claimed durably, and worked on at once), or found
 * by the same transaction that runs them. */
#include "core/machine_impl.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define POLL_MS 1000        /* how often to look for messages that other processes left */
#define WAITING_POLL_MS 100 /* the same, while messages of this run wait in the store */
#define END_POLL_MS 250     /* the same, at the end of a finite source, when nothing else is left to do */
#define TAKES_IN_A_ROW 8    /* with lanes: so many takes that find much go before messages of the source */

static int64_t poll_ms(const once_machine *machine) { return machine->counts.waiting ? WAITING_POLL_MS : POLL_MS; }

/* A look for due messages handed out `n`. */
void once__machine_looked_for_due(once_machine *machine, size_t n, int64_t now_ms)
{
    /* Messages that wait in their lanes come first: new ones of the source would only stand behind them. */
    if (!machine->due.took_last) machine->due.takes_left = TAKES_IN_A_ROW;
    machine->due.takes_left =
        machine->spec->order && !machine->spec->inbox && machine->due.takes_left && n >= machine->batch_max / 64
            ? machine->due.takes_left - 1
            : 0;
    machine->due.took_last = true;
    /* There may be more. */
    machine->due.at_ms = n ? now_ms : now_ms + poll_ms(machine);
}

/* The shares tell what is wanted at once; a look at all of them is due as before, or after a pause when this was one.
 */
static void took_with_filter(once_machine *machine, int64_t at_ms, int64_t now_ms)
{
    once_due_shares_took(&machine->due.shares);
    machine->due.at_ms = machine->due.all ? now_ms + poll_ms(machine) : at_ms;
}

static size_t most_to_take(const once_machine *machine) { return machine->caution.left ? 1 : machine->batch_max; }

/* So many may be taken without a filter; 0: some handlers must be left out, or it is not time for all of them. */
static size_t take_any_max(const once_machine *machine, int64_t now_ms)
{
    const size_t most = most_to_take(machine);
    const once_room room = once__machine_room(machine, now_ms);
    if (now_ms < machine->due.at_ms) return 0;
    const size_t any = once_due_shares_any(&room);
    return any < most ? any : most;
}

/* How many may be taken: as many as can start at once. A take whose reply was lost is asked for again in full, because
 * the rest of what it claimed would be out of reach until its leases end. Its slots are still free: nothing new is
 * claimed before. */
size_t once__machine_take_max(const once_machine *machine, int64_t now_ms)
{
    const once_room room = once__machine_room(machine, now_ms);
    if (machine->due.again) return machine->due.most;
    const size_t any = take_any_max(machine, now_ms);
    if (any || !machine->due.shares.filter.n) return any;
    return once_due_shares_room(&machine->due.shares, &room, now_ms >= machine->due.at_ms, most_to_take(machine));
}

/* When to take what is due; ONCE_NEVER: nothing of it could start. */
int64_t once__machine_take_at_ms(const once_machine *machine, int64_t now_ms)
{
    const once_room room = once__machine_room(machine, now_ms);
    const once_due_shares *shares = &machine->due.shares;
    if (machine->due.again) return now_ms;
    const size_t any = once_due_shares_any(&room);
    if (any == SIZE_MAX) return machine->due.at_ms;
    if (!shares->filter.n) return any ? machine->due.at_ms : ONCE_NEVER;
    if (once_due_shares_room(shares, &room, false, 1)) return now_ms;
    return once_due_shares_room(shares, &room, true, 1) ? machine->due.at_ms : ONCE_NEVER;
}

/* Whether a transaction may find due messages itself. A take claims durably, which keeps other workers from the lane
 * until the message has run. */
bool once__machine_may_find(const once_machine *machine)
{
    return machine->due.finds && !machine->end.stopping && !machine->caution.left &&
           machine->caution.rolled_back == 0 && once_gates_are_wide(&machine->gate.gates);
}

void once__machine_begin_find_due(once_machine *machine)
{
    machine->due.finding = true;
    machine->caution.look = false;
    machine->work.keeping_n = 0;
    once__machine_start_work(machine);
}

/* Whether this transaction looks for more messages. Not while a single suspected message runs alone, nor while a commit
 * whose reply was lost is being repeated. */
bool once__machine_wants_find(const once_machine *machine)
{
    /* Not if its messages are only accepted. */
    const bool runs =
        machine->due.finding || (machine->work.had_lanes && (!machine->spec->inbox || machine->work.items[0]->held));
    if (machine->due.sought || !once__machine_may_find(machine) || !runs) return false;
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->commit_unknown || machine->work.items[i]->apart || machine->work.items[i]->ended_tx)
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

once_action *once__machine_begin_find(once_machine *machine)
{
    once_batch *batch = once__machine_batch_get(machine);
    size_t n = 0;
    if (!batch) return NULL;
    for (size_t i = 0; i < machine->work.n; i++)
        if (!once_hash_is_zero(machine->work.items[i]->request.lane.id))
            machine->work.list[n++] = machine->work.items[i];
    once_action *find = once__machine_emit(machine, ONCE_ACT_FIND, n);
    find->max = machine->batch_max;
    find->batch = batch;
    find->due = machine->due.finding;
    find->lease_ms = longest_lease_ms(machine->spec);
    return find;
}

once_action *once__machine_begin_take(once_machine *machine, size_t max, int64_t now_ms)
{
    if (!machine->due.batch && !(machine->due.batch = once__machine_batch_get(machine))) return NULL;
    machine->due.take_next = false;
    if (!machine->due.again || ONCE_PLANTED(take_forgotten))
        machine->due.token = once_token_of_run(machine->o.run, once_env_random_u64(machine->o.env), 0);
    if (!machine->due.again) {
        machine->due.asked_ms = now_ms; /* else the leases began with the take before */
        machine->due.all = now_ms >= machine->due.at_ms;
        machine->due.filtered = take_any_max(machine, now_ms) == 0;
        const once_room room = once__machine_room(machine, now_ms);
        if (machine->due.filtered) (void)once_due_shares_filter(&machine->due.shares, &room, machine->due.all, max);
    }
    once_action *take = once__machine_emit(machine, ONCE_ACT_TAKE, 0);
    take->max = machine->due.most = max;
    take->batch = machine->due.batch;
    take->token = machine->due.token;
    take->again = machine->due.again;
    take->filter = machine->due.filtered ? &machine->due.shares.filter : NULL;
    take->lease_ms = longest_lease_ms(machine->spec);
    return take;
}

/* The take claimed it durably, so its effect may start. Exceptions that need a transaction first: a repeat, which must
 * be counted, and what is put back: an unknown that must not be asked about now, and messages of a handler that was
 * held up meanwhile. */
static bool may_start_at_once(once_machine *machine, const once_item *item)
{
    if (item->decision.asks && once__machine_question_ms(machine, item) > 0) return false;
    return once__item_is_external(item) && item->input && !item->decision.unreported && !item->decision.gap_over &&
           !machine->end.stopping && once__machine_may_begin(machine, item);
}

/* Which handlers the take, which was for all that is due, may have found messages of. */
static void note_looked(once_machine *machine)
{
    for (size_t i = 0; i < machine->spec->n_handlers; i++)
        if (!machine->due.filtered ||
            once_due_shares_searched(&machine->due.shares, machine->spec->handlers[i].operation))
            machine->gate.gates.at[i].looked_ms = machine->due.asked_ms;
}

void once__machine_took(once_machine *machine, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    machine->due.batch = NULL;
    machine->due.again = false;
    const int64_t at_ms = machine->due.at_ms;
    if (!machine->due.filtered || machine->due.all) note_looked(machine);
    once__machine_looked_for_due(machine, batch->n, now_ms);
    if (machine->due.filtered) took_with_filter(machine, at_ms, now_ms);
    else once_due_shares_took_any(&machine->due.shares, batch->n);
    machine->work.next = NEXT_CHOOSE;
    if (batch->n == 0) {
        once__machine_batch_put(machine, batch);
        return;
    }
    machine->work.keeping_n = 0;
    machine->caution.look = false;
    batch->open = batch->n;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        once__machine_hold(machine, item);
        item->resumed = item->request.run != machine->o.run;
        /* Its last attempt ended without reporting an outcome: it stays unknown; the next delivery of it is counted. */
        if (item->decision.answer == ONCE_ANSWER_UNKNOWN && !item->decision.asks) {
            once__machine_move(machine, item, ONCE_AT_OVER);
            continue;
        }
        if (item->decision.answer != ONCE_ANSWER_RUN &&
            !item->decision.asks) { /* its lane settled it, and the store has that recorded */
            once__machine_count_origin(machine, item, once__machine_is_known_now(machine, item));
            once__machine_count_settled_by_lane(machine, item);
            once__machine_move(machine, item, ONCE_AT_OVER);
            continue;
        }
        const int rc = once_intake_taken(&machine->intake, item, &err);
        if (rc != ONCE_OK) once__machine_give_up(machine, rc, &err);
        item->request.run = machine->o.run; /* if it waits again, it is one of ours */
        if (rc == ONCE_OK && may_start_at_once(machine, item)) {
            once__machine_begins(machine, item);
            once__machine_put_in_flight(machine, item, machine->due.asked_ms);
        } else {
            once__machine_move(machine, item, ONCE_AT_WORK);
        }
        once__machine_note_claimed(machine, &item, 1);
    }
    once__machine_bound_locks(machine);
    if (machine->work.n) once__machine_start_work(machine);
    if (machine->end.status != ONCE_OK) once__machine_drop_work(machine);
}

/* They go behind items that are already claimed, which are first in their lanes, and before those of the source. */
static void add_found(once_machine *machine, once_batch *batch)
{
    once_item **work = machine->work.about;
    size_t n = 0, before = machine->work.n;
    for (size_t i = 0; i < batch->n; i++) once__machine_move(machine, &batch->items[i], ONCE_AT_WORK);
    for (size_t i = 0; i < before; i++)
        if (machine->work.items[i]->held) work[n++] = machine->work.items[i];
    for (size_t i = before; i < machine->work.n; i++) work[n++] = machine->work.items[i];
    for (size_t i = 0; i < before; i++)
        if (!machine->work.items[i]->held) work[n++] = machine->work.items[i];
    assert(n == machine->work.n);
    memcpy(machine->work.items, work, n * sizeof *work);
    once__machine_arrange(machine);
}

/* The found messages join the work, and are claimed like deliveries. */
void once__machine_found(once_machine *machine, once_action *action)
{
    once_batch *batch = action->batch;
    const uint64_t random = once_env_random_u64(machine->o.env);
    assert(machine->work.in_tx && batch->n <= action->max);
    machine->due.sought = true;
    machine->due.found_n = batch->open = batch->n;
    machine->due.take_next |= action->more;
    machine->work.next = NEXT_ROUND;
    for (size_t i = 0; i < batch->n; i++) {
        once_error err;
        once_item *item = &batch->items[i];
        const int rc = once_intake_taken(&machine->intake, item, &err);
        if (rc != ONCE_OK) once__machine_give_up(machine, rc, &err);
        item->found = true;
        item->resumed = item->request.run != machine->o.run;
        item->request.run = machine->o.run; /* if it waits again, it is one of ours */
        item->request.token = once_token_of_run(machine->o.run, random, i);
    }
    if (machine->end.status != ONCE_OK) machine->work.next = NEXT_ROLLBACK;
    if (batch->n == 0 || machine->end.status != ONCE_OK) once__machine_batch_put(machine, batch);
    else add_found(machine, batch);
}

/* This run has nothing to do, and nothing comes: the source is at its end, or all that was read stands behind a message
 * of its lane that cannot be written (`then`), and no more is read. */
bool once__machine_may_be_over(const once_machine *machine)
{
    const bool finite = machine->o.source & ONCE_SOURCE_FINITE;
    const bool behind = finite && machine->outside.unwritten.n && machine->at[ONCE_AT_PARKED];
    return (machine->source.at_end || behind) && machine->ready.n == 0 && machine->outside.flight.n == 0;
}

void once__machine_told_stats(once_machine *machine, const once_action *action, int64_t now_ms)
{
    if (!machine->source.at_end) {
        if (!once__machine_waits_in_vain(machine, action, now_ms)) machine->store.stats_at_ms = now_ms + END_POLL_MS;
        return;
    }
    const bool nothing = action->waiting == 0 && action->claimed == 0 && action->unknown == 0;
    if (nothing || action->wait_ms == ONCE_NEVER) {
        machine->end.stopping = machine->end.drained = true; /* the source has ended, and all that can be settled is */
        return;
    }
    if (once__machine_waits_in_vain(machine, action, now_ms)) return;
    const int64_t wait_ms = action->wait_ms < END_POLL_MS ? action->wait_ms + CLOCK_SLACK_MS : END_POLL_MS;
    machine->due.at_ms = now_ms + wait_ms;
    /* What waits for a handler that is held up, or for its rate, is due all the time. */
    const bool wide = once_gates_are_wide(&machine->gate.gates);
    machine->store.stats_at_ms = now_ms + (wide ? wait_ms : END_POLL_MS) + 1;
}
