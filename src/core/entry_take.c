/* take: hands out entries that are due, and records leases that ran out. */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

bool once_entry_may_be_taken(const once_entry *entry, int64_t now_ms)
{
    return once_state_unfinished(entry->state) && entry->due_ms <= now_ms && entry->has_message;
}

/* Claims an unknown entry to ask about it. It stays unknown, also when the worker that asks does not come back. The new
 * token fences all claims before. */
static int hand_out_question(once_entry *entry, once_token token, int64_t lease_ms, int64_t now_ms, once_decision *out)
{
    assert(entry->state == ONCE_STATE_UNKNOWN && !once_hash_is_zero(token) && lease_ms > 0);
    once__entry_describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
    out->asks = true;
    out->attempt = entry->attempt;
    out->failures = entry->failures;
    out->failing_for_ms = once__entry_failing_for(entry, now_ms);
    out->unknown_for_ms = now_ms > entry->changed_ms ? now_ms - entry->changed_ms : 0; /* server clocks can go back */
    out->before = entry->reason;
    entry->token = token;
    entry->due_ms = once__later_than(now_ms, lease_ms);
    return ONCE_ENTRY_CHANGED;
}

bool once_entry_question(const once_entry *entry, int64_t now_ms, once_decision *out)
{
    if (entry->state != ONCE_STATE_UNKNOWN || entry->due_ms == ONCE_NEVER) return false;
    once_entry copy = *entry; /* the claim itself stays as it is */
    *out = (once_decision){0};
    (void)hand_out_question(&copy, entry->token, 1, now_ms, out);
    return true;
}

int once_entry_take(once_entry *entry, once_lane *lane, once_token token, int64_t lease_ms, int64_t now_ms,
                    once_decision *out)
{
    *out = (once_decision){0};
    assert(once_entry_may_be_taken(entry, now_ms) && lease_ms > 0);
    assert(lane || once_hash_is_zero(entry->lane));
    if (entry->state == ONCE_STATE_UNKNOWN) return hand_out_question(entry, token, lease_ms, now_ms, out);

    const bool orphan = entry->state == ONCE_STATE_CLAIMED;
    if (orphan && entry->hold) {
        once__entry_describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
        return once__entry_become_unknown(entry, now_ms, out);
    }

    int changed = ONCE_ENTRY_CHANGED;
    once_answer answer = once__lane_answer_to_known(lane, entry);
    if (answer == ONCE_ANSWER_GAP) {
        answer = once__lane_wait_or_give_up(entry, lane, now_ms);
        changed |= ONCE_LANE_CHANGED;
    }
    switch (answer) {
    case ONCE_ANSWER_RUN:
        if ((changed & ONCE_LANE_CHANGED) || (orphan && entry->gap)) out->given_up = once_lane_given_up(lane, entry);
        entry->gap = once__lane_was_waited_for(lane, entry) || (orphan && entry->gap);
        once__entry_start(entry, token, ONCE_PLANTED(no_lease) ? 1 : lease_ms, orphan, now_ms);
        out->orphan = orphan;
        once__entry_describe(entry, answer, now_ms, out);
        if (entry->gap) entry->reason = out->reason = once__lane_say_gap_over(lane, entry);
        return changed;
    case ONCE_ANSWER_STALE:
        return once__entry_become_stale(entry, lane, token, entry->natural, entry->remember_ms, entry->message.sent_ms,
                                        now_ms, out);
    case ONCE_ANSWER_DUPLICATE:
        return once__entry_become_already(entry, lane, entry->remember_ms, entry->message.sent_ms, now_ms, out);
    case ONCE_ANSWER_CONFLICT:
        once__entry_refuse_by_lane(lane, &entry->scope, out);
        once__entry_move(entry, ONCE_STATE_DEAD, ONCE_NEVER, now_ms);
        entry->token = token;
        entry->gap = entry->block = false; /* it never ran, so it does not block its lane */
        entry->reason = out->reason;
        return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry) | ONCE_LETTER_NEEDED;
    case ONCE_ANSWER_GAP: break;
    default:
        assert(answer == ONCE_ANSWER_LATER);
        if (!orphan) entry->due_ms = ONCE_NEVER; /* until once_entry_wake */
    }
    once__entry_describe(entry, ONCE_ANSWER_LATER, now_ms, out);
    return changed;
}

int once_entry_lapse(once_entry *entry, int64_t now_ms, once_decision *out)
{
    *out = (once_decision){0};
    if (entry->state != ONCE_STATE_CLAIMED || !entry->hold || entry->due_ms > now_ms) return ONCE_UNCHANGED;
    once__entry_describe(entry, ONCE_ANSWER_UNKNOWN, now_ms, out);
    return once__entry_become_unknown(entry, now_ms, out);
}
