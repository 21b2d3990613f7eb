/* The store executor: which action is next, and what follows from its result. */
#include "core/machine_impl.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define SWEEP_MS 60000    /* how often to drop expired entries */
#define SWEEP_MORE_MS 100 /* the same while there are more, unless the store asks for another pause */

static void end_if_possible(once_machine *machine)
{
    /* What is committed is acked, also if the store has failed since. If acks fail as well, they are not waited for. */
    const bool may_ack = machine->end.status == ONCE_OK || machine->acks.tries == 0;
    const bool acks_due = may_ack && once__machine_has_acks(machine);
    if (acks_due || once__machine_rest_to_fetch(machine) || machine->outside.flight.n) return;
    machine->acks.release_all = machine->o.source & ONCE_SOURCE_ASSIGNS; /* other consumers get them soon */
    const bool released = !machine->acks.release_all || machine->streams.live == 0;
    if (released && !machine->source.out && !machine->acks.out) machine->end.ended = true;
}

static once_action *renew(once_machine *machine)
{
    once_action *action = once__machine_emit(machine, ONCE_ACT_RENEW, 0);
    action->ended = machine->outside.unrecorded;
    return action;
}

/* After a stop: settle what came back, put back the rest, and end. */
static once_action *choose_last(once_machine *machine, int64_t now_ms)
{
    once__machine_release_unstarted(machine);
    if (!machine->store.gone) once__machine_put_back_held(machine);
    if (machine->work.next != NEXT_CHOOSE) return NULL;
    while (machine->store.gone && machine->outside.returned)
        once__machine_leave_unsettled(machine, machine->outside.returned);
    while (machine->store.gone && machine->outside.unwritten.n)
        once__machine_leave_unsettled(machine, machine->outside.unwritten.first);
    const bool rest = machine->o.accepts_at_stop && machine->ready.n;
    const bool due = once__machine_must_settle(machine, now_ms) || now_ms >= machine->outside.flight.extend_at_ms;
    if (!machine->store.gone && (due || rest)) once__machine_begin_work(machine, now_ms);
    else if (!machine->store.gone && machine->outside.flight.n && now_ms >= machine->store.renew_at_ms)
        return renew(machine);
    else end_if_possible(machine);
    return NULL;
}

static bool is_over(const once_item *item, int64_t now_ms)
{
    return item && now_ms - item->claimed_at_ms >= item->request.lease_ms;
}

/* Our own leases may be over, because the process was stopped or the store was away. Extend and settle them before a
 * take, which would take them over. */
static bool must_keep_first(const once_machine *machine, int64_t now_ms)
{
    return now_ms >= machine->outside.flight.extend_at_ms || is_over(machine->outside.returned, now_ms) ||
           is_over(machine->outside.unwritten.first, now_ms);
}

/* Everything but SEEK and COUNT. */
static once_action *choose_work(once_machine *machine, int64_t now_ms)
{
    const bool go = once__machine_must_settle(machine, now_ms) || now_ms >= machine->outside.flight.extend_at_ms ||
                    (once__machine_ready_can_go(machine, now_ms) && !machine->due.again);
    const bool take_due = now_ms >= once__machine_take_at_ms(machine, now_ms) &&
                          !(machine->due.took_last && go && !machine->due.takes_left) &&
                          !must_keep_first(machine, now_ms);
    const size_t max = take_due ? once__machine_take_max(machine, now_ms) : 0;
    if (max && once__machine_may_find(machine) && !machine->due.again && !machine->due.take_next) {
        once__machine_begin_find_due(machine);
        return NULL;
    }
    if (max) return once__machine_begin_take(machine, max, now_ms);
    if (now_ms >= machine->store.sweep_at_ms) return once__machine_emit(machine, ONCE_ACT_SWEEP, 0);
    if (now_ms >= machine->store.renew_at_ms) return renew(machine);
    if (go) {
        once__machine_begin_work(machine, now_ms);
        return NULL;
    }
    if (once__machine_may_be_over(machine) && !machine->source.out && now_ms >= machine->store.stats_at_ms)
        return once__machine_emit(machine, ONCE_ACT_STATS, 0);
    return NULL;
}

/* There is no work: begin some, or return another action. NULL and next != NEXT_CHOOSE: there is work now. NULL and
 * next == NEXT_CHOOSE: nothing to do. */
static once_action *choose(once_machine *machine, int64_t now_ms)
{
    assert(!machine->work.in_tx && machine->work.n == 0);
    machine->due.finding = false;
    if (machine->end.stopping) return choose_last(machine, now_ms);
    const bool keep_first = must_keep_first(machine, now_ms);
    if (once__machine_must_count(machine, now_ms) && !keep_first) return once__machine_begin_count(machine, now_ms);
    once_action *seek = machine->streams.seek_failed || keep_first ? NULL : once__machine_begin_seek(machine, now_ms);
    if (seek) return seek;
    machine->streams.seek_failed = false;
    if (ONCE_PLANTED(seek_blocks) && machine->streams.to_seek) return NULL;
    once_action *action = choose_work(machine, now_ms);
    return action || machine->work.next != NEXT_CHOOSE ? action : once__machine_begin_seek(machine, now_ms);
}

static void renewed(once_machine *machine, int64_t now_ms)
{
    machine->store.renew_at_ms = now_ms + machine->o.renew_ms;
}

static once_action *preclaim(once_machine *machine)
{
    assert(machine->work.n == 1 && !machine->work.in_tx);
    machine->caution.claim_first = false;
    machine->caution.preclaim = true;
    machine->work.list[0] = machine->work.items[0];
    return once__machine_emit(machine, ONCE_ACT_CLAIM, 1);
}

static once_action *begin(once_machine *machine, int64_t now_ms)
{
    once__machine_arrange(machine);
    machine->due.sought = false;
    machine->due.found_n = 0;
    machine->work.ran = false;
    machine->work.runs_alone = NULL;
    machine->work.asked_at_ms = now_ms;
    return once__machine_begin(machine);
}

/* Extends the leases of effects that are still in flight. The executor gets a copy of the list, because effects come
 * back meanwhile. */
static once_action *keep(once_machine *machine)
{
    size_t n = 0;
    for (size_t i = 0; i < machine->work.keeping_n; i++) {
        once_item *item = machine->work.keeping[i];
        if (item->place == ONCE_AT_FLIGHT && !item->lost) machine->work.keeping[n++] = item;
    }
    machine->work.keeping_n = n;
    if (n == 0) return NULL;
    memcpy(machine->work.list, machine->work.keeping, n * sizeof *machine->work.list);
    once_action *action = once__machine_emit(machine, ONCE_ACT_EXTEND, n);
    action->n_extend = n;
    return action;
}

static once_action *run(once_machine *machine)
{
    size_t n = once__machine_gather(machine, ONCE_STAGE_CLAIM, -1);
    for (size_t i = 0; i < n; i++) once__machine_decide(machine, machine->work.list[i]);
    n = once__machine_gather(machine, ONCE_STAGE_RUN, -1);
    if (n == 0) return NULL;
    once_action *action = once__machine_emit(machine, ONCE_ACT_RUN, n);
    machine->work.runs_alone =
        n == 1 && !machine->work.ran && !machine->work.list[0]->returned ? machine->work.list[0] : NULL;
    machine->work.ran = true;
    once__machine_note_started(machine, action->items, n);
    action->careful = machine->caution.careful_left > 0;
    action->blame = action->careful && machine->caution.rolled_back >= BLAME_AFTER &&
                    (machine->work.runs_alone || ONCE_PLANTED(all_blamed));
    return action;
}

static once_action *commit(once_machine *machine)
{
    assert(machine->work.in_tx);
    if (ONCE_PLANTED(ack_first)) once__machine_ack_work(machine);
    if (machine->work.n) memcpy(machine->work.list, machine->work.items, machine->work.n * sizeof *machine->work.list);
    once_action *action = once__machine_emit(machine, ONCE_ACT_COMMIT, machine->work.n);
    once__machine_find_last(machine);
    action->last = machine->work.last;
    action->n_last = machine->work.last_n;
    action->ended = machine->outside.unrecorded;
    for (size_t i = 0; i < machine->work.n; i++) {
        action->repeats += once__item_new_repeat_change(machine->work.items[i]);
        action->given_up += once__item_given_up(machine->work.items[i]);
    }
    return action;
}

once_action *once__machine_store_action(once_machine *machine, int64_t now_ms)
{
    if (machine->store.out || machine->end.ended) return NULL;
    /* After a failure pause, but never with an open transaction. */
    if (now_ms < machine->store.at_ms && machine->work.next != NEXT_ROLLBACK) return NULL;
    if (!machine->store.renew_at_ms) renewed(machine, now_ms); /* the worker's record was just written */
    for (;;) {
        size_t n = 0;
        once_action *action;
        switch (machine->work.next) {
        case NEXT_CHOOSE:
            action = choose(machine, now_ms);
            if (action || machine->work.next == NEXT_CHOOSE) return action;
            break;
        case NEXT_PRECLAIM: return preclaim(machine);
        case NEXT_ABSENT:
            action = once__machine_ask_absent(machine, now_ms);
            if (action) return action;
            machine->work.next = NEXT_BEGIN;
            break;
        case NEXT_BEGIN: return begin(machine, now_ms);
        case NEXT_KEEP:
            action = keep(machine);
            if (action) return action;
            machine->work.next = NEXT_FIND;
            break;
        case NEXT_FIND:
            if (once__machine_wants_find(machine)) return once__machine_begin_find(machine);
            machine->work.next = NEXT_ROUND;
            break;
        case NEXT_ROUND: once__machine_next_round(machine); break;
        case NEXT_CLAIM:
            n = once__machine_gather(machine, ONCE_STAGE_CLAIM, false);
            if (n) return once__machine_emit(machine, ONCE_ACT_CLAIM, n);
            machine->work.next = NEXT_EXTEND;
            break;
        case NEXT_EXTEND:
            n = once__machine_gather(machine, ONCE_STAGE_CLAIM, true);
            if (n) return once__machine_emit(machine, ONCE_ACT_EXTEND, n);
            machine->work.next = NEXT_RUN;
            break;
        case NEXT_RUN:
            if (once__machine_singly_leaves(machine)) {
                machine->work.next = NEXT_ROLLBACK;
                break;
            }
            action = run(machine);
            if (action) return action;
            machine->work.next = NEXT_SETTLE;
            break;
        case NEXT_SETTLE:
            n = once__machine_gather(machine, ONCE_STAGE_SETTLE, -1);
            if (n) return once__machine_emit(machine, ONCE_ACT_SETTLE, n);
            machine->work.next = NEXT_ACCEPT;
            break;
        case NEXT_SETTLE_AGAIN: return once__machine_emit(machine, ONCE_ACT_SETTLE, machine->work.again_n);
        case NEXT_ACCEPT:
            n = once__machine_gather(machine, ONCE_STAGE_ACCEPT, -1);
            if (n) return once__machine_emit(machine, ONCE_ACT_ACCEPT, n);
            machine->work.next = NEXT_ROUND;
            break;
        case NEXT_BURY:
            for (size_t i = 0; i < machine->work.n; i++)
                if (machine->work.items[i]->stage == ONCE_STAGE_BURY) machine->work.list[n++] = machine->work.items[i];
            if (n) return once__machine_emit(machine, ONCE_ACT_BURY, n);
            machine->work.next = NEXT_COMMIT;
            break;
        case NEXT_COMMIT: return commit(machine);
        case NEXT_ROLLBACK: return once__machine_emit(machine, ONCE_ACT_ROLLBACK, 0);
        }
    }
}

static void swept(once_machine *machine, const once_action *action, int64_t now_ms)
{
    const bool paced = action->wait_ms > 0 && !ONCE_PLANTED(sweep_rushes);
    machine->store.sweep_at_ms = now_ms + (!action->more ? SWEEP_MS : paced ? action->wait_ms : SWEEP_MORE_MS);
}

void once__machine_store_step(once_machine *machine, once_action *action, int64_t now_ms)
{
    if (action->kind == ONCE_ACT_BEGIN) machine->work.in_tx = action->status == ONCE_OK || action->tx_open;
    if (action->kind == ONCE_ACT_COMMIT) machine->work.in_tx = action->status != ONCE_OK && action->tx_open;
    if (action->kind == ONCE_ACT_ROLLBACK) machine->work.in_tx = false;
    if (action->kind == ONCE_ACT_COMMIT) once__machine_let_last_go(machine);
    if (action->kind == ONCE_ACT_SEEK) {
        once__machine_sought(machine, action, now_ms);
        return;
    }
    const bool tried = action->kind == ONCE_ACT_COMMIT && !action->tx_open;
    if (ONCE_PLANTED(commit_assumed) && tried) action->status = ONCE_OK;
    if (ONCE_PLANTED(presumption_kept) && tried && once__machine_disproved(machine, action)) action->status = ONCE_OK;
    if (action->kind == ONCE_ACT_FIND && action->status != ONCE_OK) once__machine_batch_put(machine, action->batch);
    if (once__machine_disproved(machine, action)) {
        once__machine_run_carefully(machine);
        return;
    }
    if (action->status != ONCE_OK) {
        once__machine_store_failed(machine, action, now_ms);
        return;
    }
    /* The store works. */
    machine->outside.unrecorded -= action->ended;
    if (!machine->work.in_tx && action->kind != ONCE_ACT_BEGIN && action->kind != ONCE_ACT_ROLLBACK)
        machine->store.tries = machine->caution.rolled_back = 0;
    switch (action->kind) {
    case ONCE_ACT_BEGIN: machine->work.next = NEXT_KEEP; break;
    case ONCE_ACT_ABSENT: once__machine_told_absent(machine); break;
    case ONCE_ACT_FIND: once__machine_found(machine, action); break;
    case ONCE_ACT_CLAIM:
        once__machine_note_claimed(machine, action->items, action->n);
        if (machine->caution.preclaim) once__machine_preclaimed(machine, action->items[0]);
        else machine->work.next = NEXT_EXTEND;
        break;
    case ONCE_ACT_EXTEND: once__machine_extended(machine, action); break;
    case ONCE_ACT_RUN: once__machine_have_run(machine, action, now_ms); break;
    case ONCE_ACT_SETTLE: once__machine_settled(machine, action); break;
    case ONCE_ACT_ACCEPT:
        for (size_t i = 0; i < action->n; i++) {
            once__machine_note_replaced(machine, action->items[i]);
            once__item_refused_or_over(action->items[i]);
        }
        machine->work.next = NEXT_ROUND;
        break;
    case ONCE_ACT_BURY: once__machine_buried(machine, action); break;
    case ONCE_ACT_COMMIT:
        if (action->renewed) renewed(machine, now_ms);
        once__machine_conclude(machine, now_ms);
        break;
    case ONCE_ACT_ROLLBACK:
        once__machine_unreserve_work(machine);
        once__machine_drop_found(machine);
        once__machine_drop_unwanted(machine);
        if (machine->store.gone) once__machine_drop_work(machine);
        else
            machine->work.next = !once__machine_has_work(machine) ? NEXT_CHOOSE
                                 : machine->caution.claim_first   ? NEXT_PRECLAIM
                                                                  : NEXT_BEGIN;
        break;
    case ONCE_ACT_TAKE: once__machine_took(machine, action, now_ms); break;
    case ONCE_ACT_STATS: once__machine_told_stats(machine, action, now_ms); break;
    case ONCE_ACT_COUNT: once__machine_counted(machine, action, now_ms); break;
    case ONCE_ACT_RENEW: renewed(machine, now_ms); break;
    case ONCE_ACT_SWEEP: swept(machine, action, now_ms); break;
    default: assert(false);
    }
}
