/* What the store executor does next, and what its answers lead to. */
#include "core/pipe.h"

#include <assert.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define SWEEP_MS 60000    /* how often to drop what has expired */
#define SWEEP_MORE_MS 100 /* the same, while there is more to drop and the store does not say when */

static void end_if_possible(once_pipe *pipe)
{
    const bool acks_due = pipe->end.status == ONCE_OK && once__pipe_has_acks(pipe);
    if (acks_due || once__pipe_rest_to_fetch(pipe) || pipe->outside.flight.n) return;
    pipe->acks.release_all = pipe->o.source & ONCE_SOURCE_ASSIGNS; /* so that others have them soon */
    const bool released = !pipe->acks.release_all || pipe->streams.live == 0;
    if (released && !pipe->source.out && !pipe->acks.out) pipe->end.ended = true;
}

static once_action *choose_last(once_pipe *pipe, int64_t now_ms)
{
    once__pipe_recall(pipe);
    if (!pipe->store.gone) once__pipe_put_back_held(pipe);
    if (pipe->work.next != NEXT_CHOOSE) return NULL;
    if (pipe->store.gone)
        while (pipe->outside.back) once__pipe_leave_unsettled(pipe, pipe->outside.back);
    const bool rest = pipe->o.gives_once && pipe->ready.n;
    if (!pipe->store.gone && (pipe->outside.back || rest || now_ms >= pipe->outside.flight.extend_at_ms))
        once__pipe_begin_work(pipe, now_ms);
    else if (!pipe->store.gone && pipe->outside.flight.n && now_ms >= pipe->store.renew_at_ms)
        return once__pipe_emit(pipe, ONCE_ACT_RENEW, 0);
    else end_if_possible(pipe);
    return NULL;
}

static bool is_over(const once_item *item, int64_t now_ms)
{
    return item && now_ms - item->claimed_at_ms >= item->request.lease_ms;
}

/* Our own leases may be over: we were stopped, or the store was away. They are extended and settled before anything is
 * taken, which would find them so. */
static bool must_keep_first(const once_pipe *pipe, int64_t now_ms)
{
    return now_ms >= pipe->outside.flight.extend_at_ms || is_over(pipe->outside.back, now_ms);
}

/* Not because of a stream that was assigned. */
static once_action *choose_work(once_pipe *pipe, int64_t now_ms)
{
    const bool go = pipe->outside.back || now_ms >= pipe->outside.flight.extend_at_ms ||
                    (once__pipe_ready_can_go(pipe, now_ms) && !pipe->due.again);
    const bool take_due = now_ms >= pipe->due.at_ms && !(pipe->due.took_last && go && !pipe->due.takes_left) &&
                          !must_keep_first(pipe, now_ms);
    const size_t max = take_due ? once__pipe_take_max(pipe, now_ms) : 0;
    if (max && once__pipe_may_find(pipe) && !pipe->due.again && !pipe->due.take_next) {
        once__pipe_begin_find_due(pipe);
        return NULL;
    }
    if (max) return once__pipe_begin_take(pipe, max, now_ms);
    if (now_ms >= pipe->store.sweep_at_ms) return once__pipe_emit(pipe, ONCE_ACT_SWEEP, 0);
    if (now_ms >= pipe->store.renew_at_ms) return once__pipe_emit(pipe, ONCE_ACT_RENEW, 0);
    if (go) {
        once__pipe_begin_work(pipe, now_ms);
        return NULL;
    }
    const bool idle = pipe->source.at_end && !pipe->source.out && pipe->ready.n == 0 && pipe->outside.flight.n == 0;
    if (idle && now_ms >= pipe->store.stats_at_ms) return once__pipe_emit(pipe, ONCE_ACT_STATS, 0);
    return NULL;
}

/* No work: take some. NULL and next != CHOOSE: there is work now. NULL and next == CHOOSE: nothing to do. */
static once_action *choose(once_pipe *pipe, int64_t now_ms)
{
    pipe->due.finding = false;
    if (pipe->end.stopping) return choose_last(pipe, now_ms);
    const bool keep_first = must_keep_first(pipe, now_ms);
    if (once__pipe_must_count(pipe, now_ms) && !keep_first) return once__pipe_begin_count(pipe, now_ms);
    once_action *seek = pipe->streams.seek_failed || keep_first ? NULL : once__pipe_begin_seek(pipe, now_ms);
    if (seek) return seek;
    pipe->streams.seek_failed = false;
    once_action *action = choose_work(pipe, now_ms);
    return action || pipe->work.next != NEXT_CHOOSE ? action : once__pipe_begin_seek(pipe, now_ms);
}

static void renewed(once_pipe *pipe, int64_t now_ms) { pipe->store.renew_at_ms = now_ms + pipe->o.renew_ms; }

static once_action *preclaim(once_pipe *pipe)
{
    pipe->caution.claim_first = false;
    pipe->caution.preclaim = true;
    pipe->work.list[0] = pipe->work.items[0];
    return once__pipe_emit(pipe, ONCE_ACT_CLAIM, 1);
}

static once_action *begin(once_pipe *pipe, int64_t now_ms)
{
    once__pipe_arrange(pipe);
    pipe->due.sought = false;
    pipe->due.found_n = 0;
    pipe->work.ran = false;
    pipe->work.runs_alone = NULL;
    pipe->work.asked_at_ms = now_ms;
    return once__pipe_begin(pipe);
}

/* The leases of those that are still away. The executor has a copy of the list, because effects come back meanwhile. */
static once_action *keep(once_pipe *pipe)
{
    size_t n = 0;
    for (size_t i = 0; i < pipe->work.keeping_n; i++) {
        once_item *item = pipe->work.keeping[i];
        if (item->place == ONCE_AT_FLIGHT && !item->lost) pipe->work.keeping[n++] = item;
    }
    pipe->work.keeping_n = n;
    if (n == 0) return NULL;
    memcpy(pipe->work.list, pipe->work.keeping, n * sizeof *pipe->work.list);
    once_action *action = once__pipe_emit(pipe, ONCE_ACT_EXTEND, n);
    action->kept = n;
    return action;
}

static once_action *run(once_pipe *pipe)
{
    size_t n = once__pipe_gather(pipe, ONCE_STAGE_CLAIM, -1);
    for (size_t i = 0; i < n; i++) once__pipe_decide(pipe, pipe->work.list[i]);
    n = once__pipe_gather(pipe, ONCE_STAGE_RUN, -1);
    if (n == 0) return NULL;
    once_action *action = once__pipe_emit(pipe, ONCE_ACT_RUN, n);
    pipe->work.runs_alone = n == 1 && !pipe->work.ran && !pipe->work.list[0]->returned ? pipe->work.list[0] : NULL;
    pipe->work.ran = true;
    once__pipe_note_started(pipe, action->items, n);
    action->careful = pipe->caution.careful_left > 0;
    action->blame = action->careful && pipe->caution.rolled_back >= BLAME_AFTER &&
                    (pipe->work.runs_alone || ONCE_PLANTED(all_blamed));
    return action;
}

static once_action *commit(once_pipe *pipe)
{
    if (ONCE_PLANTED(ack_first)) once__pipe_ack_work(pipe);
    if (pipe->work.n) memcpy(pipe->work.list, pipe->work.items, pipe->work.n * sizeof *pipe->work.list);
    once_action *action = once__pipe_emit(pipe, ONCE_ACT_COMMIT, pipe->work.n);
    once__pipe_find_last(pipe);
    action->last = pipe->work.last;
    action->n_last = pipe->work.last_n;
    for (size_t i = 0; i < pipe->work.n; i++) {
        action->repeats += once__item_new_repeats(pipe->work.items[i]);
        action->given_up += once__item_given_up(pipe->work.items[i]);
    }
    return action;
}

once_action *once__pipe_store_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->store.out || pipe->end.ended) return NULL;
    /* Nobody waits with an open transaction. */
    if (now_ms < pipe->store.at_ms && pipe->work.next != NEXT_ROLLBACK) return NULL;
    if (!pipe->store.renew_at_ms) renewed(pipe, now_ms); /* the record was just made */
    for (;;) {
        size_t n = 0;
        once_action *action;
        switch (pipe->work.next) {
        case NEXT_CHOOSE:
            action = choose(pipe, now_ms);
            if (action || pipe->work.next == NEXT_CHOOSE) return action;
            break;
        case NEXT_PRECLAIM: return preclaim(pipe);
        case NEXT_BEGIN: return begin(pipe, now_ms);
        case NEXT_KEEP:
            action = keep(pipe);
            if (action) return action;
            pipe->work.next = NEXT_FIND;
            break;
        case NEXT_FIND:
            if (once__pipe_wants_find(pipe)) return once__pipe_begin_find(pipe);
            pipe->work.next = NEXT_ROUND;
            break;
        case NEXT_ROUND: once__pipe_next_round(pipe); break;
        case NEXT_CLAIM:
            n = once__pipe_gather(pipe, ONCE_STAGE_CLAIM, false);
            if (n) return once__pipe_emit(pipe, ONCE_ACT_CLAIM, n);
            pipe->work.next = NEXT_EXTEND;
            break;
        case NEXT_EXTEND:
            n = once__pipe_gather(pipe, ONCE_STAGE_CLAIM, true);
            if (n) return once__pipe_emit(pipe, ONCE_ACT_EXTEND, n);
            pipe->work.next = NEXT_RUN;
            break;
        case NEXT_RUN:
            if (once__pipe_cautious_leaves(pipe)) {
                pipe->work.next = NEXT_ROLLBACK;
                break;
            }
            action = run(pipe);
            if (action) return action;
            pipe->work.next = NEXT_SETTLE;
            break;
        case NEXT_SETTLE:
            n = once__pipe_gather(pipe, ONCE_STAGE_SETTLE, -1);
            if (n) return once__pipe_emit(pipe, ONCE_ACT_SETTLE, n);
            pipe->work.next = NEXT_ACCEPT;
            break;
        case NEXT_ACCEPT:
            n = once__pipe_gather(pipe, ONCE_STAGE_ACCEPT, -1);
            if (n) return once__pipe_emit(pipe, ONCE_ACT_ACCEPT, n);
            pipe->work.next = NEXT_ROUND;
            break;
        case NEXT_BURY:
            for (size_t i = 0; i < pipe->work.n; i++)
                if (pipe->work.items[i]->stage == ONCE_STAGE_BURY) pipe->work.list[n++] = pipe->work.items[i];
            if (n) return once__pipe_emit(pipe, ONCE_ACT_BURY, n);
            pipe->work.next = NEXT_COMMIT;
            break;
        case NEXT_COMMIT: return commit(pipe);
        case NEXT_ROLLBACK: return once__pipe_emit(pipe, ONCE_ACT_ROLLBACK, 0);
        }
    }
}

static void swept(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    const bool paced = action->wait_ms > 0 && !ONCE_PLANTED(sweep_rushes);
    pipe->store.sweep_at_ms = now_ms + (!action->more ? SWEEP_MS : paced ? action->wait_ms : SWEEP_MORE_MS);
}

void once__pipe_store_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    if (action->kind == ONCE_ACT_BEGIN) pipe->work.in_tx = action->status == ONCE_OK || action->open;
    if (action->kind == ONCE_ACT_COMMIT) pipe->work.in_tx = action->status != ONCE_OK && action->open;
    if (action->kind == ONCE_ACT_ROLLBACK) pipe->work.in_tx = false;
    if (action->kind == ONCE_ACT_COMMIT) once__pipe_let_last_go(pipe);
    if (action->kind == ONCE_ACT_SEEK) {
        once__pipe_sought(pipe, action, now_ms);
        return;
    }
    const bool tried = action->kind == ONCE_ACT_COMMIT && !action->open;
    if (ONCE_PLANTED(commit_assumed) && tried) action->status = ONCE_OK;
    if (ONCE_PLANTED(presumption_kept) && tried && once__pipe_disproved(pipe, action)) action->status = ONCE_OK;
    if (action->kind == ONCE_ACT_FIND && action->status != ONCE_OK) once__pipe_batch_put(pipe, action->batch);
    if (once__pipe_disproved(pipe, action)) {
        once__pipe_run_carefully(pipe);
        return;
    }
    if (action->status != ONCE_OK) {
        once__pipe_store_failed(pipe, action, now_ms);
        return;
    }
    /* The store is there. */
    if (!pipe->work.in_tx && action->kind != ONCE_ACT_BEGIN && action->kind != ONCE_ACT_ROLLBACK)
        pipe->store.tries = pipe->caution.rolled_back = 0;
    switch (action->kind) {
    case ONCE_ACT_BEGIN: pipe->work.next = NEXT_KEEP; break;
    case ONCE_ACT_FIND: once__pipe_found(pipe, action); break;
    case ONCE_ACT_CLAIM:
        once__pipe_note_claimed(pipe, action->items, action->n);
        if (pipe->caution.preclaim) once__pipe_preclaimed(pipe, action->items[0]);
        else pipe->work.next = NEXT_EXTEND;
        break;
    case ONCE_ACT_EXTEND: once__pipe_extended(pipe, action); break;
    case ONCE_ACT_RUN: once__pipe_have_run(pipe, action, now_ms); break;
    case ONCE_ACT_SETTLE: once__pipe_settled(pipe, action); break;
    case ONCE_ACT_ACCEPT:
        for (size_t i = 0; i < action->n; i++) {
            once__pipe_note_replaced(pipe, action->items[i]);
            once__item_refused_or_over(action->items[i]);
        }
        pipe->work.next = NEXT_ROUND;
        break;
    case ONCE_ACT_BURY: once__pipe_buried(pipe, action); break;
    case ONCE_ACT_COMMIT:
        if (action->renewed) renewed(pipe, now_ms);
        once__pipe_conclude(pipe, now_ms);
        break;
    case ONCE_ACT_ROLLBACK:
        once__pipe_unreserve_work(pipe);
        once__pipe_drop_found(pipe);
        once__pipe_drop_unwanted(pipe);
        if (pipe->store.gone) once__pipe_drop_work(pipe);
        else
            pipe->work.next = !once__pipe_has_work(pipe)  ? NEXT_CHOOSE
                              : pipe->caution.claim_first ? NEXT_PRECLAIM
                                                          : NEXT_BEGIN;
        break;
    case ONCE_ACT_TAKE: once__pipe_took(pipe, action, now_ms); break;
    case ONCE_ACT_STATS: once__pipe_told_stats(pipe, action, now_ms); break;
    case ONCE_ACT_COUNT: once__pipe_counted(pipe, action, now_ms); break;
    case ONCE_ACT_RENEW: renewed(pipe, now_ms); break;
    case ONCE_ACT_SWEEP: swept(pipe, action, now_ms); break;
    default: assert(false);
    }
}
