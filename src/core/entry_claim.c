/* claim and accept: the two verbs that a delivery comes in with.
 *
 * Both first ask for an answer (entry_answer.c) and then do what it says. A claim may start an attempt; accept only
 * makes sure that the store has the body. Repeated with the same token after a lost reply, both answer the same. */
#include "core/entry_rules.h"

#include <assert.h>

#include "base/banned.h"

/* The lane decides when it goes on, not its own due time. */
static bool lane_holds(const once_lane *lane, const once_entry *entry)
{
    return entry->due_ms == ONCE_NEVER || once__lane_waits_for_missing(lane, entry);
}

/* The content of the request takes the place of the one that waits here. It need not wait for the next retry of that
 * one, but it still waits for its lane. */
static int replace(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    assert(entry->state == ONCE_STATE_WAITING && entry->attempt > 0);
    assert(once__entry_has_same_place(entry, r));
    out->replaced = true;
    out->left_by = entry->run;
    once__entry_unexpire(entry);
    once__entry_move(entry, ONCE_STATE_WAITING, lane_holds(lane, entry) ? entry->due_ms : now_ms, now_ms);
    once__entry_reset_failures(entry);
    once__entry_detach(entry);
    entry->fixed = true;
    entry->token = r->token;
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    entry->at = r->at;
    if (!lane) entry->seen_ms = now_ms; /* in a lane seen_ms orders equal versions */
    entry->run = r->run;
    entry->remember_ms = r->remember_ms;
    entry->gap_ms = r->lane.gap_ms;
    entry->block = r->lane.block;
    entry->hold = r->hold;
    entry->lookup = r->lookup;
    entry->natural = r->natural;
    entry->reason = ONCE_BYTES("it took the place of other content that had no effect");
    return ONCE_ENTRY_CHANGED | ONCE_REPLACED;
}

/* A claim replaces the content only if it may run now. Otherwise it changes nothing: accept, which has the body, will.
 */
static int claim_replacing(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                           once_decision *out)
{
    if (lane_holds(lane, entry) || once__lane_answer_to_known(lane, entry) != ONCE_ANSWER_RUN) {
        once__entry_describe(entry, ONCE_ANSWER_LATER, now_ms, out);
        return ONCE_UNCHANGED;
    }
    const int changed = replace(entry, lane, r, now_ms, out);
    entry->gap = once__lane_was_waited_for(lane, entry);
    once__entry_start(entry, r->token, r->lease_ms, false, now_ms);
    once__entry_note_sent(entry, r, now_ms);
    once__entry_describe(entry, ONCE_ANSWER_RUN, now_ms, out);
    if (entry->gap) entry->reason = out->reason = once__lane_say_gap_over(lane, entry);
    return changed;
}

once_decision once_decision_unclaimed(const once_request *request)
{
    assert(request->unclaimed && request->natural && !request->hold && once_hash_is_zero(request->lane.id));
    return (once_decision){
        .answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1, .unclaimed = true, .old_key = request->old_key};
}

int once_entry_claim(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms, once_decision *out)
{
    assert(r->remember_ms > 0 && r->lease_ms > 0 && !once_hash_is_zero(r->token));
    *out = (once_decision){0};
    const bool again = !once_hash_is_zero(entry->token) && once_hash_equal(entry->token, r->token);

    if (once__entry_is_absent(entry, now_ms)) {
        const once_answer answer = once__entry_answer_to_new(lane, r, now_ms);
        if (answer == ONCE_ANSWER_STALE) return once__entry_begin_stale(entry, lane, r, now_ms, out);
        if (answer == ONCE_ANSWER_DUPLICATE) return once__entry_begin_already(entry, lane, r, now_ms, out);
        if (answer != ONCE_ANSWER_RUN) {
            out->answer = answer;
            if (answer == ONCE_ANSWER_CONFLICT) once__entry_refuse_by_lane(lane, r->scope, out);
            if (answer == ONCE_ANSWER_GAP) out->wait_ms = r->lane.gap_ms;
            if (answer == ONCE_ANSWER_LATER) out->wait_ms = ONCE_NEVER;
            return ONCE_UNCHANGED;
        }
        if (r->unclaimed) {
            assert(!lane);
            *out = once_decision_unclaimed(r);
            return ONCE_UNCHANGED;
        }
        once__entry_begin(entry, lane, r, now_ms);
        once__entry_start(entry, r->token, r->lease_ms, false, now_ms);
        once__entry_note_sent(entry, r, now_ms);
        once__entry_describe(entry, answer, now_ms, out);
        return ONCE_ENTRY_CHANGED;
    }

    /* The reply to this claim was lost: the same answer again. */
    if (again && entry->state == ONCE_STATE_CLAIMED) {
        entry->due_ms = once__later_than(now_ms, r->lease_ms);
        once__entry_describe(entry, ONCE_ANSWER_RUN, now_ms, out);
        if (entry->gap) out->given_up = once_lane_given_up_again(lane, entry);
        out->own = true;
        return ONCE_ENTRY_CHANGED;
    }
    if (again && entry->state == ONCE_STATE_STALE) {
        out->answer = ONCE_ANSWER_STALE;
        return ONCE_UNCHANGED;
    }

    if (once__entry_gives_way(entry, lane, r, now_ms)) return claim_replacing(entry, lane, r, now_ms, out);

    bool by_lane;
    once_answer answer = once__entry_answer_to_known(entry, lane, r, now_ms, &by_lane);
    if (answer == ONCE_ANSWER_CONFLICT && by_lane && entry->has_message)
        answer = ONCE_ANSWER_LATER; /* take makes a dead letter of the body that the entry has */
    out->own = again && (answer == ONCE_ANSWER_DUPLICATE || answer == ONCE_ANSWER_DEAD) && !by_lane;
    const bool claimed = entry->state == ONCE_STATE_CLAIMED;
    int changed = ONCE_UNCHANGED;
    if (answer == ONCE_ANSWER_GAP) {
        answer = once__lane_wait_or_give_up(entry, lane, now_ms);
        changed = ONCE_ENTRY_CHANGED | ONCE_LANE_CHANGED;
    }
    if (entry->state == ONCE_STATE_WAITING && !again && answer != ONCE_ANSWER_LATER && answer != ONCE_ANSWER_GAP &&
        by_lane)
        out->left_by = entry->run;
    if (answer == ONCE_ANSWER_STALE)
        return once__entry_become_stale(entry, lane, r->token, r->natural, r->remember_ms, r->sent_ms, now_ms, out);
    if (answer == ONCE_ANSWER_DUPLICATE && by_lane)
        return once__entry_become_already(entry, lane, r->remember_ms, r->sent_ms, now_ms, out);
    if (answer == ONCE_ANSWER_CONFLICT && by_lane) { /* without a body: this delivery becomes the dead letter */
        once__entry_refuse_by_lane(lane, r->scope, out);
        return once_entry_forget(entry, lane);
    }
    if (answer == ONCE_ANSWER_RUN) {
        if (changed || (claimed && entry->gap)) out->given_up = once_lane_given_up(lane, entry);
        entry->gap = once__lane_was_waited_for(lane, entry) || (claimed && entry->gap);
        once__entry_start(entry, r->token, r->lease_ms, claimed, now_ms);
        once__entry_note_sent(entry, r, now_ms);
        out->orphan = claimed;
        entry->hold = r->hold;
        entry->lookup = r->lookup;
        entry->natural = r->natural;
        changed |= ONCE_ENTRY_CHANGED;
        if (entry->gap) entry->reason = out->reason = once__lane_say_gap_over(lane, entry);
    } else if (answer == ONCE_ANSWER_UNKNOWN && claimed) {
        changed = once__entry_become_unknown(entry, now_ms, out);
    }
    once__entry_describe(entry, answer, now_ms, out);
    return changed;
}

/* The store takes the body of a new message. */
static int begin_waiting(once_entry *entry, once_lane *lane, const once_request *r, once_answer answer,
                         const once_message *message, int64_t now_ms, once_decision *out)
{
    assert(lane || answer == ONCE_ANSWER_RUN); /* only a lane makes a new message wait */
    int changed = ONCE_ENTRY_CHANGED;
    once__entry_begin(entry, lane, r, now_ms);
    once__entry_move(entry, ONCE_STATE_WAITING, answer == ONCE_ANSWER_RUN ? now_ms : ONCE_NEVER, now_ms);
    if (lane && lane->has_next && !lane->has_version && lane->expires_ms != ONCE_FOREVER) { /* it has just begun */
        lane->expires_ms = ONCE_FOREVER;
        changed |= ONCE_LANE_CHANGED;
    }
    if (answer == ONCE_ANSWER_GAP) {
        if (lane->tail < 0) once__lane_stop_waiting(lane); /* the wait of an entry that is gone */
        once__lane_wait_for_missing(entry, lane, now_ms);
        changed |= ONCE_LANE_CHANGED;
    }
    once__entry_attach(entry, message);
    out->answer = ONCE_ANSWER_WAITING;
    out->wait_ms = once__until(entry->due_ms, now_ms);
    return changed;
}

int once_entry_accept(once_entry *entry, once_lane *lane, const once_request *r, const once_message *message,
                      int64_t now_ms, once_decision *out)
{
    assert(message && r->remember_ms > 0 && !once_hash_is_zero(r->token));
    *out = (once_decision){0};

    if (once__entry_is_absent(entry, now_ms)) {
        const once_answer answer = once__entry_answer_to_new(lane, r, now_ms);
        switch (answer) {
        case ONCE_ANSWER_RUN:
        case ONCE_ANSWER_LATER:
        case ONCE_ANSWER_GAP: return begin_waiting(entry, lane, r, answer, message, now_ms, out);
        case ONCE_ANSWER_STALE: return once__entry_begin_stale(entry, lane, r, now_ms, out);
        case ONCE_ANSWER_DUPLICATE: return once__entry_begin_already(entry, lane, r, now_ms, out);
        case ONCE_ANSWER_CONFLICT: once__entry_refuse_by_lane(lane, r->scope, out); return ONCE_UNCHANGED;
        default: out->answer = answer; return ONCE_UNCHANGED;
        }
    }

    if (!once_hash_is_zero(entry->token) && once_hash_equal(entry->token, r->token)) { /* a lost reply, repeated */
        if (entry->state == ONCE_STATE_WAITING) { /* accepted, or settled by this claim: the store has the body */
            out->answer = ONCE_ANSWER_WAITING;
            out->wait_ms = once__until(entry->due_ms, now_ms);
            return ONCE_UNCHANGED;
        }
        if (entry->state == ONCE_STATE_STALE) {
            out->answer = ONCE_ANSWER_STALE;
            return ONCE_UNCHANGED;
        }
    }

    if (once__entry_gives_way(entry, lane, r, now_ms)) {
        const int replaced = replace(entry, lane, r, now_ms, out);
        once__entry_attach(entry, message);
        out->answer = ONCE_ANSWER_WAITING;
        out->wait_ms = once__until(entry->due_ms, now_ms);
        return replaced;
    }

    bool by_lane;
    once_answer answer = once__entry_answer_to_known(entry, lane, r, now_ms, &by_lane);
    int changed = ONCE_UNCHANGED;
    if (answer == ONCE_ANSWER_UNKNOWN && entry->state == ONCE_STATE_CLAIMED)
        changed = once__entry_become_unknown(entry, now_ms, out);
    if (once_state_unfinished(entry->state)) {
        /* Take finds out whether it is due, superseded, settled under another key or behind a gap. Here the store only
         * takes the body. */
        if (by_lane && answer != ONCE_ANSWER_LATER)
            answer = entry->state == ONCE_STATE_CLAIMED ? ONCE_ANSWER_BUSY : ONCE_ANSWER_LATER;
        if (answer != ONCE_ANSWER_CONFLICT && !entry->has_message) {
            once__entry_unexpire(entry);
            once__entry_attach(entry, message);
            if (entry->state == ONCE_STATE_UNKNOWN && once__entry_may_be_asked(entry)) entry->due_ms = now_ms;
            changed |= ONCE_ENTRY_CHANGED;
        }
    }
    once__entry_describe(entry, answer, now_ms, out);
    return changed;
}
