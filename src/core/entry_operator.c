/* What operators decide: forget, replay, correct, discard, resolve, revive, and what a replay would meet. */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

int once_entry_forget(once_entry *entry, once_lane *lane)
{
    const int freed =
        once_state_unfinished(entry->state) ? once__entry_frees_lane(entry) : once__lane_unblock(entry, lane);
    entry->state = ONCE_STATE_ABSENT; /* not by once__entry_move: the entry ends, and nothing of it is kept */
    return ONCE_ENTRY_CHANGED | freed;
}

int once_entry_replay(once_entry *entry, once_lane *lane, int64_t now_ms, const once_message *message)
{
    if (entry->state != ONCE_STATE_DEAD) return ONCE_UNCHANGED;
    assert(message || entry->has_message); /* something must be there to run */
    once__entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
    once__entry_reset_failures(entry);
    entry->gap = false;
    entry->fixed = true; /* an operator chose this content */
    entry->run = 0;      /* no run counts it as waiting */
    entry->token = (once_token){0};
    once__entry_attach(entry, message);
    return ONCE_ENTRY_CHANGED | once__lane_unblock(entry, lane);
}

int once_entry_replay_with_body(once_entry *entry, once_lane *lane, const once_request *r, const once_message *message,
                                int64_t now_ms)
{
    if (!once__entry_has_same_place(entry, r)) return ONCE_UNCHANGED;
    const int changed = once_entry_replay(entry, lane, now_ms, message);
    if (!changed) return changed;
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    return changed;
}

int once_entry_discard(once_entry *entry, once_lane *lane, int64_t sent_ms, int64_t now_ms)
{
    if (entry->state != ONCE_STATE_DEAD) return ONCE_UNCHANGED;
    const bool never_came_in = entry->gap; /* it died of a gap: the versions it waited for may still come */
    once__entry_finish(entry, ONCE_STATE_REJECTED, entry->remember_ms, sent_ms, now_ms);
    entry->token = (once_token){0};
    const int unblocked = once__lane_unblock(entry, lane);
    return once__entry_leave(entry, never_came_in ? NULL : lane, entry->natural) | unblocked;
}

int once_entry_give_up(once_entry *entry, const once_request *r, int64_t now_ms)
{
    if (!once__entry_is_absent(entry, now_ms)) return ONCE_UNCHANGED;
    once__entry_begin(entry, NULL, r, now_ms);
    once__entry_finish(entry, ONCE_STATE_REJECTED, r->remember_ms, ONCE_NO_TIME, now_ms);
    entry->token = (once_token){0};
    entry->reason = ONCE_BYTES("its letter was discarded");
    return ONCE_ENTRY_CHANGED;
}

int once_entry_resolve(once_entry *entry, once_lane *lane, once_outcome outcome, once_bytes reason, int64_t now_ms)
{
    assert(outcome == ONCE_DONE || outcome == ONCE_RETRY || outcome == ONCE_DEAD);
    if (once_entry_state_at(entry, now_ms) != ONCE_STATE_UNKNOWN) return ONCE_UNCHANGED;
    if (outcome != ONCE_DONE && !entry->has_message)
        return ONCE_UNCHANGED; /* there is no body to run again or to keep in a dead letter */
    if (entry->state == ONCE_STATE_CLAIMED)
        once__entry_move(entry, ONCE_STATE_UNKNOWN, ONCE_NEVER, now_ms); /* its lease is over */
    entry->reason = reason;
    entry->gap = false;
    if (outcome != ONCE_DONE) entry->unreported = entry->maybe_done = true; /* the effect may still have happened */
    if (outcome == ONCE_DEAD) { /* the token stays: it tells this dead letter of the key from others */
        once__entry_move(entry, ONCE_STATE_DEAD, ONCE_NEVER, now_ms);
        return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry) | ONCE_LETTER_NEEDED |
               once__lane_after_death(entry, lane, now_ms);
    }
    entry->token = (once_token){0}; /* fences the worker that left it unknown */
    if (outcome == ONCE_RETRY) {
        once__entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
        if (!ONCE_PLANTED(resolve_spent))
            once__entry_reset_failures(entry); /* an operator asks for another try, as with a replay */
        entry->run = 0;
        return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry);
    }
    once__entry_finish(entry, ONCE_STATE_DONE, entry->remember_ms,
                       entry->has_message ? entry->message.sent_ms : ONCE_NO_TIME, now_ms);
    return once__entry_leave(entry, lane, entry->natural);
}

int once_entry_revive(once_entry *entry, const once_lane *lane, const once_request *r, const once_message *message,
                      int64_t now_ms)
{
    assert(message && r->remember_ms > 0);
    if (!once_state_finished(entry->state) || once_entry_expired(entry, now_ms)) return ONCE_UNCHANGED;
    once__entry_move(entry, ONCE_STATE_WAITING, now_ms, now_ms);
    entry->token = (once_token){0};
    once__entry_reset_failures(entry);
    entry->run = 0;
    entry->unreported = entry->maybe_done = entry->gap = false;
    entry->fixed = true; /* it has had its effect, and an operator chose this content */
    entry->result = (once_bytes){0};
    /* A store need not keep these of a finished entry, and the content may be another one now. */
    entry->fingerprint = r->fingerprint;
    entry->fields = r->fields;
    entry->scope = *r->scope;
    entry->key = r->key;
    entry->lane = r->lane.id;
    entry->versioned = r->lane.versioned;
    entry->gap_ms = r->lane.gap_ms;
    entry->order = !lane ? 0 : r->lane.versioned ? r->lane.version : once__lane_end(lane);
    entry->remember_ms = r->remember_ms;
    entry->hold = r->hold;
    entry->lookup = r->lookup;
    entry->natural = r->natural;
    entry->block = r->lane.block;
    once__entry_attach(entry, message);
    return ONCE_ENTRY_CHANGED;
}

/* A newer version that is running, or may have had its effect, makes this one stale when it settles. The lane does not
 * say which of its entries is claimed, so any newer one counts. */
static bool may_be_overtaken(const once_lane *lane, int64_t order) { return lane->claimed && lane->tail > order; }

void once_entry_outlook(const once_entry *entry, once_lane *lane, const once_request *r, once_decision *out)
{
    const bool dead = entry->state == ONCE_STATE_DEAD, versioned = dead ? entry->versioned : r->lane.versioned;
    const int64_t order = dead ? entry->order : r->lane.version;
    *out = (once_decision){.answer = ONCE_ANSWER_RUN};
    if (!lane || !versioned) return;
    const bool own =
        entry->state != ONCE_STATE_ABSENT && once_hash_equal(lane->by, entry->id); /* as lane_answer_to_known */
    switch (once__lane_answer(lane, false, own || (dead ? entry->natural : r->natural), true, order, -1)) {
    case ONCE_ANSWER_STALE:
        out->answer = ONCE_ANSWER_STALE;
        out->reason = once__lane_say_settled(lane, "");
        return;
    case ONCE_ANSWER_DUPLICATE:
        if (once__lane_judge_equal(lane, r->id, r->scope, r->fingerprint) == ONCE_ANSWER_CONFLICT) {
            once__entry_refuse_by_lane(lane, r->scope, out);
            return;
        }
        out->answer = ONCE_ANSWER_DUPLICATE;
        out->reason = once__lane_say_settled(lane, "");
        out->lane = true;
        return;
    default: break;
    }
    if (!may_be_overtaken(lane, order)) return;
    out->answer = ONCE_ANSWER_STALE;
    out->reason =
        ONCE_BYTES("a newer version of its lane is running, or its end is unknown; ask again when it has settled");
}
