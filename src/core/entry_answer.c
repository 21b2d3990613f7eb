/* What a delivery is answered before anything runs: by its entry, by its lane, and what is recorded when the lane
 * settles it without running it (stale, already). */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* A record of this message may have expired, so nothing says that it has not run. */
static bool is_too_old(const once_lane *lane, const once_request *r, int64_t now_ms)
{
    const bool remembered = !r->natural || (lane && r->lane.versioned); /* there is a record that can expire */
    /* An entry made at sent_ms has expired when now - remember reaches it, so that moment is already too old. */
    return remembered && r->sent_ms != ONCE_NO_TIME && r->remember_ms < now_ms &&
           r->sent_ms <= now_ms - r->remember_ms && !ONCE_PLANTED(too_old_runs);
}

/* What a message without an entry is answered. RUN: it may be claimed now. */
once_answer once__entry_answer_to_new(once_lane *lane, const once_request *r, int64_t now_ms)
{
    assert(!r->lane.versioned || r->lane.version >= 0);
    if (is_too_old(lane, r, now_ms)) return ONCE_ANSWER_TOO_OLD;
    if (!lane) return ONCE_ANSWER_RUN;
    once__lane_begin(lane, r);
    const once_answer answer =
        once__lane_answer(lane, true, r->natural, r->lane.versioned,
                          r->lane.versioned ? r->lane.version : once__lane_end(lane), r->lane.gap_ms);
    return answer == ONCE_ANSWER_DUPLICATE ? once__lane_judge_equal(lane, r->id, r->scope, r->fingerprint) : answer;
}

bool once__entry_has_same_place(const once_entry *entry, const once_request *r)
{
    return once_hash_equal(entry->lane, r->lane.id) && entry->versioned == r->lane.versioned &&
           (!entry->versioned || entry->order == r->lane.version);
}

static bool has_other_content(const once_entry *entry, const once_request *r)
{
    assert(!r->late || once_hash_is_zero(entry->fingerprint));
    return !once_hash_is_zero(entry->fingerprint) && !once_hash_is_zero(r->fingerprint) &&
           !once_hash_equal(entry->fingerprint, r->fingerprint) && !ONCE_PLANTED(conflict_ignored);
}

/* It was tried and had no effect, so other content may take its place. "Other content" in entry.h has the reasons. */
bool once__entry_gives_way(const once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms)
{
    if (entry->state != ONCE_STATE_WAITING || entry->attempt == 0 || !has_other_content(entry, r)) return false;
    if ((entry->unreported || entry->maybe_done) && !ONCE_PLANTED(maybe_replaced)) return false;
    if (entry->old_key) return false; /* an older version of once recorded only the last attempt */
    return (!entry->fixed || ONCE_PLANTED(takes_turns)) && once__entry_has_same_place(entry, r) &&
           !is_too_old(lane, r, now_ms);
}

/* What a delivery is answered by an entry that exists. Changes nothing. RUN: it may be claimed now. *by_lane: the
 * answer comes from the lane, and a take of this entry would get it, too. */
once_answer once__entry_answer_to_known(const once_entry *entry, const once_lane *lane, const once_request *r,
                                        int64_t now_ms, bool *by_lane)
{
    assert(!once__entry_is_absent(entry, now_ms));
    *by_lane = false;
    if (has_other_content(entry, r)) return ONCE_ANSWER_CONFLICT;
    if (once_state_finished(entry->state)) return ONCE_ANSWER_DUPLICATE;
    switch (entry->state) {
    case ONCE_STATE_DEAD: return ONCE_ANSWER_DEAD;
    case ONCE_STATE_UNKNOWN: return ONCE_ANSWER_UNKNOWN;
    case ONCE_STATE_CLAIMED:
        if (ONCE_PLANTED(seen_first)) return ONCE_ANSWER_DUPLICATE;
        if (entry->due_ms > now_ms) return ONCE_ANSWER_BUSY;
        if (entry->hold) return ONCE_ANSWER_UNKNOWN;
        break;
    default:
        assert(entry->state == ONCE_STATE_WAITING);
        if (entry->due_ms > now_ms) return ONCE_ANSWER_LATER;
    }
    *by_lane = true;
    return once__lane_answer_to_known(lane, entry);
}

static once_outcome outcome_of(once_state state)
{
    switch (state) {
    case ONCE_STATE_ALREADY: return ONCE_ALREADY;
    case ONCE_STATE_REJECTED: return ONCE_REJECTED;
    case ONCE_STATE_STALE: return ONCE_STALE;
    default: assert(state == ONCE_STATE_DONE); return ONCE_DONE;
    }
}

/* Fills what an answer says about the entry as it is now. */
void once__entry_describe(const once_entry *entry, once_answer answer, int64_t now_ms, once_decision *out)
{
    out->answer = answer;
    out->old_key = entry->old_key;
    switch (answer) {
    case ONCE_ANSWER_RUN:
        assert(entry->state == ONCE_STATE_CLAIMED && entry->attempt > 0);
        out->attempt = entry->attempt;
        out->failures = entry->failures;
        out->failing_for_ms = once__entry_failing_for(entry, now_ms);
        out->unreported = entry->unreported;
        out->maybe_done = entry->maybe_done;
        out->gap_over = entry->gap;
        if (entry->unreported && !entry->gap) out->before = entry->reason;
        break;
    case ONCE_ANSWER_DUPLICATE:
        out->outcome = once_state_finished(entry->state) ? outcome_of(entry->state) : ONCE_DONE;
        out->result = entry->result;
        break;
    case ONCE_ANSWER_BUSY:
    case ONCE_ANSWER_LATER:
    case ONCE_ANSWER_GAP: out->wait_ms = once__until(entry->due_ms, now_ms); break;
    default: break;
    }
}

/* The lane has a newer version. Records that. */
int once__entry_become_stale(once_entry *entry, once_lane *lane, once_token token, bool natural, int64_t remember_ms,
                             int64_t sent_ms, int64_t now_ms, once_decision *out)
{
    once__entry_finish(entry, ONCE_STATE_STALE, remember_ms, sent_ms, now_ms);
    entry->token = token;
    entry->reason = out->reason = once__lane_say_stale(lane, entry->order);
    out->answer = ONCE_ANSWER_STALE;
    return once__entry_leave(entry, NULL, natural);
}

/* The same for a new message. Nothing is kept of a natural one. */
int once__entry_begin_stale(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                            once_decision *out)
{
    if (r->natural) {
        out->answer = ONCE_ANSWER_STALE;
        out->reason = once__lane_say_stale(lane, r->lane.version);
        return ONCE_UNCHANGED;
    }
    once__entry_begin(entry, lane, r, now_ms);
    return once__entry_become_stale(entry, lane, r->token, false, r->remember_ms, r->sent_ms, now_ms, out);
}

/* Its version was settled under another key, with the same content. Records that, so that people can see why it did not
 * run. */
int once__entry_become_already(once_entry *entry, once_lane *lane, int64_t remember_ms, int64_t sent_ms, int64_t now_ms,
                               once_decision *out)
{
    assert(lane && lane->has_version && lane->version == entry->order);
    once__entry_finish(entry, ONCE_STATE_ALREADY, remember_ms, sent_ms, now_ms);
    /* The lane settled it, not a claim: the same token asking again is a duplicate again, not a lost reply. */
    entry->token = (once_token){0};
    const bool compared = !once_hash_is_zero(entry->fingerprint);
    entry->reason = out->reason = once__lane_say_settled(lane, compared ? "" : "; contents are not compared");
    out->answer = ONCE_ANSWER_DUPLICATE;
    out->outcome = ONCE_ALREADY;
    out->lane = true;
    return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry);
}

int once__entry_begin_already(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                              once_decision *out)
{
    once__entry_begin(entry, lane, r, now_ms);
    return once__entry_become_already(entry, lane, r->remember_ms, r->sent_ms, now_ms, out);
}

/* Its version was settled with other content. */
void once__entry_refuse_by_lane(once_lane *lane, const once_scope *scope, once_decision *out)
{
    out->answer = ONCE_ANSWER_CONFLICT;
    out->reason = once__lane_say_conflict(lane, scope);
    out->lane = true;
}
