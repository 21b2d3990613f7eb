/* settle and extend: the two verbs of a worker that has a claim. The token is the fence: an entry that was claimed
 * again since ignores both. */
#include "core/entry_rules.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

static once_state state_after(once_outcome outcome)
{
    switch (outcome) {
    case ONCE_DONE: return ONCE_STATE_DONE;
    case ONCE_ALREADY: return ONCE_STATE_ALREADY;
    case ONCE_REJECTED: return ONCE_STATE_REJECTED;
    case ONCE_STALE: return ONCE_STATE_STALE;
    case ONCE_RETRY:
    case ONCE_RELEASE: return ONCE_STATE_WAITING;
    case ONCE_UNKNOWN: return ONCE_STATE_UNKNOWN;
    default: assert(outcome == ONCE_DEAD); return ONCE_STATE_DEAD;
    }
}

/* The fence: the entry still has the token of this claim. */
static bool same_claim(const once_entry *entry, const once_request *r)
{
    return ONCE_PLANTED(no_fence) || once_hash_equal(entry->token, r->token);
}

/* Records what a settlement says about its attempt. A release says that there was none, so what is known of the attempt
 * before stays. */
static void note_attempt(once_entry *entry, const once_settlement *s, int64_t now_ms)
{
    const bool release = s->outcome == ONCE_RELEASE, retry = s->outcome == ONCE_RETRY, dead = s->outcome == ONCE_DEAD;
    if (retry || dead || (release && ONCE_PLANTED(release_forgets))) entry->unreported = s->maybe_done;
    if (retry || dead) entry->maybe_done |= s->maybe_done;
    if (retry && s->maybe_done && ONCE_PLANTED(unknown_free)) return;
    if (retry || (dead && s->failed) || (release && ONCE_PLANTED(release_blames)))
        once__entry_count_failure(entry, now_ms);
}

/* A dead entry that may have run did not die of a missing version. */
static bool may_have_run(const once_entry *entry, const once_settlement *s)
{
    return s->failed || s->maybe_done || entry->maybe_done || entry->failures;
}

int once_entry_settle(once_entry *entry, once_lane *lane, const once_settlement *s, int64_t now_ms, bool *applied)
{
    const once_request *r = s->request;
    const once_state to = state_after(s->outcome);
    assert(!once_hash_is_zero(r->token) && s->delay_ms >= 0);

    *applied = false;
    if (once__entry_is_absent(entry, now_ms)) {
        /* Either the reply to this settlement was lost, or another worker finished it; which one is not known. In both
         * cases there is nothing to do. */
        *applied = r->natural && once_state_finished(to);
        return ONCE_UNCHANGED;
    }
    if (!same_claim(entry, r)) return ONCE_UNCHANGED;
    if (entry->state != ONCE_STATE_CLAIMED && entry->state != ONCE_STATE_UNKNOWN) {
        *applied = entry->state == to; /* the reply was lost, and this is the same settlement again */
        return ONCE_UNCHANGED;
    }

    *applied = true;
    if (s->reason.len || !entry->gap || to != ONCE_STATE_DONE)
        entry->reason = s->reason; /* otherwise, done after a gap, the old reason stays: it names the gap */
    if (once_state_finished(to)) {
        once__entry_finish(entry, to, r->remember_ms, r->sent_ms, now_ms);
        entry->result = s->result;
        return once__entry_leave(entry, lane, r->natural);
    }

    once__entry_attach(entry, s->message);
    entry->run = r->run; /* the run that counts it as waiting now */
    note_attempt(entry, s, now_ms);
    if (to == ONCE_STATE_UNKNOWN || (to == ONCE_STATE_DEAD && may_have_run(entry, s))) entry->gap = false;
    if (to == ONCE_STATE_DEAD && entry->gap && lane && s->reason.len)
        entry->reason = once__lane_say_gap_death(lane, entry, s->reason);
    entry->lookup = r->lookup;
    const bool comes_again = to == ONCE_STATE_WAITING || (to == ONCE_STATE_UNKNOWN && once__entry_may_be_asked(entry));
    once__entry_move(entry, to, comes_again ? once__later_than(now_ms, s->delay_ms) : ONCE_NEVER, now_ms);
    if (once_entry_expires(entry))
        entry->expires_ms = once__later_than(now_ms, r->remember_ms); /* ONCE_FOREVER: never */
    const int died = to == ONCE_STATE_DEAD ? ONCE_LETTER_NEEDED | once__lane_after_death(entry, lane, now_ms) : 0;
    return ONCE_ENTRY_CHANGED | once__entry_frees_lane(entry) | died;
}

int once_entry_extend(once_entry *entry, const once_request *r, int64_t now_ms, bool *ours)
{
    assert(r->lease_ms >= 0);
    /* An attempt whose lease ran out with `hold` has lost its claim, although its token stays until a worker asks. */
    const bool asked = entry->state == ONCE_STATE_UNKNOWN && entry->due_ms != ONCE_NEVER;
    const bool attempted = entry->state == ONCE_STATE_CLAIMED || (asked && ONCE_PLANTED(lapsed_begins));
    *ours = (r->asks ? asked : attempted) && same_claim(entry, r);
    if (!*ours) return ONCE_UNCHANGED;
    entry->due_ms = once__later_than(now_ms, r->lease_ms);
    return ONCE_ENTRY_CHANGED;
}
