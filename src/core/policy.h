/* What the end of an attempt means for its entry: whether an unknown is held or tried again, whether the budget is
 * spent, how long to wait, and in which words. The one policy of all who run handlers: the pipeline (core/machine_*.c)
 * and the library around a handler (lib/handle.c). */
#ifndef ONCE_CORE_POLICY_H
#define ONCE_CORE_POLICY_H

#include "core/entry.h"
#include "core/retry.h"

typedef struct once_policy {
    const once_retry *retry;
    bool hold;                 /* an unknown is kept for a person; otherwise tried again */
    const once_lookup *lookup; /* an unknown is asked about before either; NULL: nobody can be asked */
    bool outside;              /* of the store: an attempt that ended without an outcome may have had its effect */
    const once_env *env;       /* randomness only */
} once_policy;

/* Inside of the store an unknown means that something ended the transaction: another try would meet it again, so it is
 * always held. Of a handler that is gone (NULL) nobody knows where its effect was; it has no budget. */
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

/* Nothing more happens to the message by itself: the outcome is final, or a dead letter. */
static inline bool once_outcome_is_decided(once_outcome outcome)
{
    return outcome != ONCE_RETRY && outcome != ONCE_RELEASE && outcome != ONCE_UNKNOWN;
}

/* Final, and with a result; what the effect did stays. */
static inline bool once_outcome_is_final(once_outcome outcome) { return outcome <= ONCE_STALE; }

/* The message of this answer is refused, and a letter says why. */
static inline bool once_answer_is_refusal(once_answer answer)
{
    return answer == ONCE_ANSWER_CONFLICT || answer == ONCE_ANSWER_TOO_OLD;
}

/* ---- before an attempt ---- */

/* Whether the attempts before this claim that ended without an outcome were the last. Those that settle are judged when
 * they do; of those that never do, the claim that finds the last of them learns it: by their number, or, where this
 * very claim has counted one, by the time since the first. */
bool once_policy_is_spent(const once_policy *policy, const once_decision *decision);
/* What is settled then, instead of another attempt; without request and message. */
once_settlement once_policy_spend(const once_policy *policy, const once_decision *decision, once_arena *arena);
/* The same for a claim whose effect is not run for another reason. */
once_settlement once_policy_refuse(const once_policy *policy, const once_decision *decision, once_bytes reason);
/* Whether the attempt of this claim is the last one that may fail. */
bool once_policy_is_last(const once_policy *policy, const once_decision *decision);

/* ---- behind it ---- */

/* From what an attempt said to what is settled. In `settlement`: its outcome; `maybe`: its effect may have happened;
 * delay_ms: a retry or a release said when, otherwise -1 and the backoff decides. Other outcomes have no delay. */
void once_policy_judge(const once_policy *policy, const once_decision *decision, once_settlement *settlement);

/* ---- an unknown that the other side can be asked about (decision.asks) ---- */

/* How long to wait before it is asked; 0: it may be asked now; ONCE_NEVER: nobody can be asked any more, a person
 * decides. */
int64_t once_policy_question_ms(const once_policy *policy, const once_decision *decision);
/* What the other side says, as the outcome that the attempt in question has had. DONE, ALREADY, REJECTED, STALE, DEAD:
 * that is how it ended, for good. RETRY: it knows nothing of it, and it will not happen by itself. UNKNOWN, RELEASE:
 * this time nothing was found out. */
typedef struct once_found {
    bool asked; /* it was; otherwise nothing was found out, whatever `outcome` says, and it comes again */
    once_outcome outcome;
    int64_t delay_ms; /* RETRY: when to try again. Nothing found out: when to ask again at the earliest, within the time
                       * of the lookup. -1: not said */
} once_found;
/* What is settled after that; without request, reason and message. A question is no attempt: RETRY and DEAD end the one
 * that it was about, which has failed then; so does the end of the lookup's time where an unknown is not held. */
once_settlement once_policy_answered(const once_policy *policy, const once_decision *decision, once_found found);

/* ---- in words ---- */

/* Of an attempt that gave no reason. Empty: none is needed. */
once_bytes once_policy_words(once_outcome outcome);

/* What a refused message had, for the words about it. */
typedef struct once_refused {
    const once_request *request;
    const once_fingerprint_spec *fingerprint; /* what was compared; NULL: the whole content */
    once_bytes content;                       /* its body, or what was compared instead */
    once_bytes sent_text;                     /* what its time was read from; empty: a number of ours */
    once_time_unit sent_unit;
} once_refused;

/* Why: the reason of its letter. In the arena, or static where memory is out. */
once_bytes once_policy_refusal(const once_decision *decision, const once_refused *what, once_secret secret,
                               once_arena *arena);

#endif
