/* What the end of an attempt means for its entry: whether an unknown is held or tried again, whether the retry budget
 * is spent, how long to wait, and the reason in words. There is one policy for all that run handlers: the pipeline
 * (core/machine_*.c) and the library around a handler (lib/handle.c).
 *
 * Invariants: times come from the store's clock (the decision). Every attempt that fails, or ends without reporting an
 * outcome, counts against the budget once. An unknown is never settled as done, except by an answer of the other side
 * or of an operator.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_POLICY_H
#define ONCE_CORE_POLICY_H

#include "core/entry.h"
#include "core/retry.h"

typedef struct once_policy {
    const once_retry *retry;   /* NULL: the handler is gone, there is no budget */
    bool hold;                 /* an unknown is held for an operator; otherwise it is tried again */
    const once_lookup *lookup; /* the other side is asked about an unknown before that; NULL: it cannot be asked */
    bool outside;        /* the effect is outside of the store: an attempt without a reported outcome may have had it */
    const once_env *env; /* randomness only */
} once_policy;

/* The policy of a handler. In the store's database an unknown means that something ended the transaction; another try
 * would meet it again, so it is always held. For a handler that is gone (NULL) it is not known where its effect was;
 * it counts as outside, and has no budget. */
static inline once_policy once_policy_of(const once_handler_spec *handler, const once_env *env)
{
    if (!handler) return (once_policy){.hold = true, .outside = true, .env = env};
    const bool outside = once_handler_external(handler);
    return (once_policy){.retry = &handler->retry,
                         .hold = handler->hold || !outside,
                         .lookup = once_handler_asks(handler) ? &handler->lookup : NULL,
                         .outside = outside,
                         .env = env};
}

/* The message will not run again without an operator: the outcome is final, or a dead letter. */
static inline bool once_outcome_is_decided(once_outcome outcome)
{
    return outcome != ONCE_RETRY && outcome != ONCE_RELEASE && outcome != ONCE_UNKNOWN;
}

/* The outcome is final and has a result; what the effect did stays. */
static inline bool once_outcome_is_final(once_outcome outcome) { return outcome <= ONCE_STALE; }

/* The message is refused, and becomes a dead letter that says why. */
static inline bool once_answer_is_refusal(once_answer answer)
{
    return answer == ONCE_ANSWER_CONFLICT || answer == ONCE_ANSWER_TOO_OLD;
}

/* ---- before an attempt ---- */

/* Whether the attempts before this claim have spent the budget. Attempts that settle are judged when they do
 * (once_policy_judge). Attempts that end without reporting an outcome are judged here, by the next claim: by their
 * number, or, if this claim counted one, by the time since the first failure. */
bool once_policy_is_spent(const once_policy *policy, const once_decision *decision);
/* The settlement instead of another attempt, without request and message. */
once_settlement once_policy_spend(const once_policy *policy, const once_decision *decision, once_arena *arena);
/* The same for a claim whose effect does not run for another reason. */
once_settlement once_policy_refuse(const once_policy *policy, const once_decision *decision, once_bytes reason);
/* Whether the budget is spent if the attempt of this claim fails. */
bool once_policy_is_last(const once_policy *policy, const once_decision *decision);

/* ---- after an attempt ---- */

/* From what an attempt reported to what is settled. In: the outcome; `maybe_done`: its effect may have happened;
 * delay_ms: the wait that a retry or a release asked for, and the least one of an unknown that is tried again; -1 if
 * the backoff decides. Out: the same fields. Other outcomes have no delay. */
void once_policy_judge(const once_policy *policy, const once_decision *decision, once_settlement *settlement);

/* ---- an unknown that the other side can be asked about (decision.asks) ---- */

/* How long to wait before the other side is asked; 0: ask now; ONCE_NEVER: it cannot be asked, an operator decides. */
int64_t once_policy_question_ms(const once_policy *policy, const once_decision *decision);
/* What the other side answered, as the outcome of the attempt in question. DONE, ALREADY, REJECTED, STALE, DEAD: the
 * attempt ended so, for good. RETRY: the other side has no record of it, and it cannot happen later. UNKNOWN,
 * RELEASE: nothing was found out this time. */
typedef struct once_found {
    bool asked; /* false: the question was not put; nothing was found out, and `outcome` does not count */
    once_outcome outcome;
    int64_t delay_ms; /* RETRY: when to try again. Nothing found out: ask again not before this, within the time of the
                       * lookup. -1: not given */
} once_found;
/* The settlement after that, without request, reason and message. A question is no attempt. RETRY and DEAD mean that
 * the attempt in question failed; so does the end of the lookup's time where an unknown is not held. */
once_settlement once_policy_answered(const once_policy *policy, const once_decision *decision, once_found found);

/* ---- in words ---- */

/* For an attempt that gave no reason. Empty: none is needed. */
once_bytes once_policy_words(once_outcome outcome);

/* What the reason of a refused message is made from. */
typedef struct once_refused {
    const once_request *request;
    const once_fingerprint_spec *fingerprint; /* what was compared; NULL: the whole content */
    once_bytes content;                       /* its body, or what was compared instead */
    once_bytes sent_text;                     /* the text that its time was read from; empty: the source gave it */
    once_time_unit sent_unit;
} once_refused;

/* The reason of its dead letter. In the arena, or static if memory is out. */
once_bytes once_policy_refusal(const once_decision *decision, const once_refused *what, once_secret secret,
                               once_arena *arena);

#endif
