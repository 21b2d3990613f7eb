/* Waiting for missing versions of a lane (core/lane.h): how long, when they are given up, and what wakes the next one.
 */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

void once__lane_stop_waiting(once_lane *lane)
{
    lane->waits = false;
    lane->waited_ms = lane->counted_ms = 0;
}

/* A version that was given up came after all, before a newer one settled: the lane goes on from there, and waits again
 * for those after it. */
void once__lane_go_back(once_lane *lane, int64_t order)
{
    if (!once__lane_is_passed(lane, order)) return;
    lane->next = once__one_more(order);
    lane->lost_to = order - 1;
    lane->has_lost = lane->lost_to >= lane->lost_from;
    once__lane_stop_waiting(lane);
}

enum { GAP_LOOKS = 16, GAP_STEP_MIN_MS = 250, GAP_STEP_MAX_MS = 2000 };

static int64_t gap_step_ms(int64_t gap_ms)
{
    assert(gap_ms >= 0);
    const int64_t step_ms = gap_ms / GAP_LOOKS;
    return step_ms < GAP_STEP_MIN_MS ? GAP_STEP_MIN_MS : step_ms > GAP_STEP_MAX_MS ? GAP_STEP_MAX_MS : step_ms;
}

/* Counts the time since the last look, at most two steps: a live run looks after each step, so more time means that no
 * run was there. */
static void count_wait(once_lane *lane, int64_t gap_ms, int64_t now_ms)
{
    const int64_t most_ms = 2 * gap_step_ms(gap_ms), passed_ms = now_ms - lane->counted_ms;
    if (!lane->waits) lane->waited_ms = 0;
    else if (passed_ms > 0)
        lane->waited_ms += passed_ms < most_ms || ONCE_PLANTED(gap_while_down) ? passed_ms : most_ms;
    lane->waits = true;
    lane->counted_ms = now_ms;
    lane->expires_ms = ONCE_FOREVER; /* the lane must live until the wait is over; once_lane_rest ends this */
}

/* The entry is the lowest of its lane, and waits. It is due again after a step. */
void once__lane_wait_for_missing(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    count_wait(lane, entry->gap_ms, now_ms);
    const int64_t left_ms = entry->gap_ms > lane->waited_ms ? entry->gap_ms - lane->waited_ms : 0,
                  step_ms = gap_step_ms(entry->gap_ms);
    entry->gap = true;
    entry->due_ms = once__later_than(now_ms, left_ms < step_ms ? left_ms : step_ms);
}

static void give_up_missing(const once_entry *entry, once_lane *lane)
{
    int64_t next;
    once__lane_next(lane, &next);
    assert(next < entry->order); /* otherwise nothing is missing */
    lane->has_lost = true;
    lane->lost_from = next;
    lane->lost_to = entry->order - 1;
    lane->has_next = true;
    lane->next = entry->order;
    once__lane_stop_waiting(lane);
}

/* The entry is due, and a version before it is missing. GAP: it goes on waiting. */
once_answer once__lane_wait_or_give_up(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    once__lane_wait_for_missing(entry, lane, now_ms);
    if (lane->waited_ms < entry->gap_ms) return ONCE_ANSWER_GAP;
    give_up_missing(entry, lane);
    return ONCE_ANSWER_RUN;
}

int64_t once_lane_given_up(const once_lane *lane, const once_entry *entry)
{
    if (!once__lane_was_waited_for(lane, entry) || entry->attempt > 1) return 0;
    const int64_t before_last = lane->lost_to - lane->lost_from;
    return before_last < ONCE_GAP_COUNTED ? before_last + 1 : ONCE_GAP_COUNTED;
}

int64_t once_lane_given_up_again(const once_lane *lane, const once_entry *entry)
{
    once_entry before = *entry;
    /* It took over from the first attempt, which did not settle it and counts as a failure. After an operator's retry
     * there is no failure, and the first answer did not count either. */
    if (before.unreported && before.attempt == 2 && before.failures) before.attempt = 1;
    return once_lane_given_up(lane, &before);
}

bool once_lane_missing(const once_lane *lane, const once_entry *entry, int64_t *from, int64_t *to)
{
    if (entry->state != ONCE_STATE_WAITING || !entry->versioned || once__lane_blocks(lane, entry->order) ||
        !once__lane_next(lane, from))
        return false;
    if (once__lane_answer(lane, false, entry->natural, true, entry->order, once__entry_gap_of(entry)) !=
        ONCE_ANSWER_GAP)
        return false;
    *to = entry->order - 1;
    return true;
}

int once_entry_wake(once_entry *entry, once_lane *lane, int64_t now_ms)
{
    const bool waits = once__lane_waits_for_missing(lane, entry);
    if (entry->state != ONCE_STATE_WAITING || (entry->due_ms != ONCE_NEVER && !waits)) return ONCE_UNCHANGED;
    if (ONCE_PLANTED(no_wake)) return ONCE_UNCHANGED;
    switch (once__lane_answer(lane, false, entry->natural, entry->versioned, entry->order, once__entry_gap_of(entry))) {
    case ONCE_ANSWER_LATER: return ONCE_UNCHANGED;
    case ONCE_ANSWER_GAP:
        if (waits && entry->due_ms != ONCE_NEVER && lane->waits) return ONCE_UNCHANGED; /* its wait is running */
        once__lane_wait_for_missing(entry, lane, now_ms);
        return ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    default: break; /* it is next, or superseded: take finds out */
    }
    const int changed = lane->waits ? ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED : ONCE_ENTRY_CHANGED;
    once__lane_stop_waiting(lane);
    entry->gap = false;
    entry->due_ms = now_ms;
    return changed;
}
