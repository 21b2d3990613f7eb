/* What the end of an attempt means (core/policy.h). */
#include "core/policy.h"

#include <assert.h>
#include <stdio.h>

#include "core/conflict.h"
#include "core/plant.h"
#include "core/sent.h"

#include "base/banned.h"

/* ---- before an attempt ---- */

bool once_policy_is_spent(const once_policy *policy, const once_decision *d)
{
    assert(d->answer == ONCE_ANSWER_RUN);
    const once_retry *retry = policy->retry;
    if (!d->unreported || ONCE_PLANTED(no_budget)) return false;
    return d->failures >= retry->attempts || (d->orphan && once_retry_is_spent(retry, d->failures, d->failing_for_ms));
}

bool once_policy_is_last(const once_policy *policy, const once_decision *d)
{
    return once_retry_is_spent(policy->retry, d->failures + 1, d->failing_for_ms);
}

/* Why there is no further attempt. Says only what is known: after a lost reply, or under a smaller budget than before,
 * it is not known how the last attempt ended. */
static once_bytes reason_of_spent(const once_decision *d, once_arena *arena)
{
    enum { SHOWN = 600, ROOM = SHOWN + 160 };
    const once_bytes spent = ONCE_BYTES("not run again: its attempts are spent");
    if (d->before.len == 0)
        return d->orphan
                   ? ONCE_BYTES(
                         "every attempt ended without reporting an outcome: the process or its handler was killed")
                   : spent;
    char *text = once_arena_alloc(arena, ROOM);
    if (!text) return spent;
    const int n = snprintf(
        text, ROOM, "not run again: %s; said before: %.*s",
        d->orphan ? "its last attempt ended without reporting an outcome, the process or its handler was killed"
                  : "its attempts are spent",
        d->before.len < SHOWN ? (int)d->before.len : SHOWN, d->before.data);
    return (once_bytes){text, n < 0 ? 0 : (size_t)n < ROOM ? (size_t)n : ROOM - 1};
}

/* Keeps what is known about the attempt before, so that a replay is told. */
once_settlement once_policy_refuse(const once_policy *policy, const once_decision *d, once_bytes reason)
{
    assert(d->answer == ONCE_ANSWER_RUN);
    return (once_settlement){.outcome = ONCE_DEAD, .reason = reason, .maybe_done = policy->outside && d->unreported};
}

once_settlement once_policy_spend(const once_policy *policy, const once_decision *d, once_arena *arena)
{
    assert(once_policy_is_spent(policy, d));
    return once_policy_refuse(policy, d, reason_of_spent(d, arena));
}

/* ---- after an attempt ---- */

/* An effect that began and asks to be put back found the other side away. That is no failure, but the next try must not
 * come at once: the pauses grow with the attempts. */
static int64_t pause_of(const once_policy *policy, const once_decision *d, once_outcome outcome)
{
    if (outcome == ONCE_RETRY)
        return once_retry_pause_ms(policy->retry, d->failures + 1, d->failing_for_ms, policy->env);
    return ONCE_PLANTED(release_at_once) ? 0 : once_retry_delay_ms(policy->retry, d->attempt, policy->env);
}

void once_policy_judge(const once_policy *policy, const once_decision *d, once_settlement *s)
{
    assert(policy->retry && d->answer == ONCE_ANSWER_RUN);
    assert((unsigned)s->outcome < ONCE_OUTCOMES && s->delay_ms >= -1);
    const bool says_when = s->outcome == ONCE_RETRY || s->outcome == ONCE_RELEASE;
    const int64_t delay_ms = says_when ? s->delay_ms : -1, least_ms = s->outcome == ONCE_UNKNOWN ? s->delay_ms : 0;
    if (s->outcome == ONCE_UNKNOWN) {
        s->maybe_done = true; /* also if it is tried again or dies, so that the next attempt is told */
        if ((!policy->hold && !policy->lookup) || ONCE_PLANTED(hold_ignored)) s->outcome = ONCE_RETRY;
        if (ONCE_PLANTED(unknown_done)) s->outcome = ONCE_DONE;
    }
    if (s->outcome == ONCE_RETRY && once_policy_is_last(policy, d) && !ONCE_PLANTED(no_budget)) s->outcome = ONCE_DEAD;
    const bool waits = s->outcome == ONCE_RETRY || s->outcome == ONCE_RELEASE;
    s->delay_ms = !waits ? 0 : delay_ms >= 0 ? delay_ms : pause_of(policy, d, s->outcome);
    if (waits && s->delay_ms < least_ms) s->delay_ms = least_ms;
    if (s->outcome == ONCE_UNKNOWN && policy->lookup) s->delay_ms = policy->lookup->after_ms;
}

/* ---- an unknown that the other side can be asked about ---- */

int64_t once_policy_question_ms(const once_policy *policy, const once_decision *d)
{
    assert(d->asks && d->unknown_for_ms >= 0);
    if (!policy->lookup) return ONCE_NEVER;
    const int64_t left_ms = policy->lookup->after_ms - d->unknown_for_ms;
    return left_ms > 0 && !ONCE_PLANTED(lookup_early) ? left_ms : 0;
}

/* Questions are not counted, so no store has to keep their number. Each pause is about as long as the whole time before
 * it, up to the longest pause of the backoff, and at least as long as the other side asked for. The last question comes
 * at the end of the lookup's time. */
static int64_t ask_again_ms(const once_policy *policy, const once_decision *d, int64_t earliest_ms)
{
    const once_retry *retry = policy->retry;
    const int64_t so_far_ms = d->unknown_for_ms, left_ms = policy->lookup->for_ms - so_far_ms;
    int64_t bound_ms = so_far_ms > retry->min_ms ? so_far_ms : retry->min_ms;
    if (bound_ms > retry->max_ms) bound_ms = retry->max_ms;
    int64_t pause_ms = bound_ms / 2 + 1 + (int64_t)(once_env_random_u64(policy->env) % (uint64_t)bound_ms) / 2;
    if (pause_ms < earliest_ms) pause_ms = earliest_ms;
    return left_ms > 0 && pause_ms > left_ms ? left_ms : pause_ms;
}

static once_settlement nothing_found(const once_policy *policy, const once_decision *d, once_found found)
{
    const bool over = found.asked && d->unknown_for_ms >= policy->lookup->for_ms;
    return (once_settlement){.outcome = ONCE_UNKNOWN,
                             .maybe_done = true,
                             .delay_ms = over ? ONCE_NEVER : ask_again_ms(policy, d, found.asked ? found.delay_ms : 0)};
}

/* The attempt in question has failed. At best the other side says that it had no effect; and a worker that was only
 * stopped may still act when it goes on. So the next attempt is told that the effect may have happened, and counts as a
 * repeat. */
static once_settlement try_again(const once_policy *policy, const once_decision *d, int64_t delay_ms)
{
    if (once_policy_is_last(policy, d)) return (once_settlement){.outcome = ONCE_DEAD, .maybe_done = true};
    return (once_settlement){.outcome = ONCE_RETRY,
                             .maybe_done = true,
                             .delay_ms = delay_ms >= 0 ? delay_ms : pause_of(policy, d, ONCE_RETRY)};
}

once_settlement once_policy_answered(const once_policy *policy, const once_decision *d, once_found found)
{
    assert(d->asks && policy->retry && policy->lookup);
    assert((unsigned)found.outcome < ONCE_OUTCOMES && found.delay_ms >= -1);
    if (!found.asked || found.outcome == ONCE_RELEASE) found.outcome = ONCE_UNKNOWN;
    if (ONCE_PLANTED(lookup_guesses) && found.outcome == ONCE_UNKNOWN) found.outcome = ONCE_RETRY;
    if (ONCE_PLANTED(absent_done) && found.outcome == ONCE_RETRY) found.outcome = ONCE_DONE;
    if (found.outcome == ONCE_RETRY) return try_again(policy, d, found.delay_ms);
    if (found.outcome != ONCE_UNKNOWN)
        return (once_settlement){.outcome = found.outcome, .maybe_done = found.outcome == ONCE_DEAD};
    const once_settlement end = nothing_found(policy, d, found);
    return end.delay_ms == ONCE_NEVER && !policy->hold ? try_again(policy, d, -1) : end;
}

/* ---- in words ---- */

once_bytes once_policy_words(once_outcome outcome)
{
    if (outcome == ONCE_RETRY || outcome == ONCE_DEAD) return ONCE_BYTES("the handler failed");
    if (outcome == ONCE_UNKNOWN) return ONCE_BYTES("the effect may have happened");
    return (once_bytes){0};
}

once_bytes once_policy_refusal(const once_decision *d, const once_refused *what, once_secret secret, once_arena *arena)
{
    assert(once_answer_is_refusal(d->answer));
    const once_request *r = what->request;
    once_bytes reason;
    if (d->answer == ONCE_ANSWER_TOO_OLD)
        return once_sent_too_old(r->sent_ms, what->sent_text, what->sent_unit, r->remember_ms, arena, &reason)
                   ? reason
                   : ONCE_BYTES("too old: sent before the time that is remembered");
    if (d->lane) return d->reason;
    return once_conflict_reason(d, what->fingerprint, what->content, secret, arena, &reason)
               ? reason
               : ONCE_BYTES("conflict: the key was used before with other content");
}
