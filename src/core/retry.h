/* When to try again: full jitter (a uniform delay below a bound that doubles), so that a thousand messages that failed
 * together do not come back together. And when to stop: a budget of failures, of time, or of both.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_RETRY_H
#define ONCE_CORE_RETRY_H

#include "base/env.h"
#include "core/spec.h"

/* The delay after the `failures`-th failure (1, 2...): uniform in [0, min(max, min * 2^(failures-1))], at least 1 ms.
 */
int64_t once_retry_delay_ms(const once_retry *retry, uint32_t failures, const once_env *env);

/* The same for a message with a budget. Of many messages some draw short delays again and again; they would spend all
 * their attempts in a quarter of the time, and die in an outage that the others survive. So the last two delays before
 * the end are longer where needed: a budget of attempts lasts at least a third of the longest time that it can last.
 * `failing_for_ms` is that of the claim's decision. */
int64_t once_retry_pause_ms(const once_retry *retry, uint32_t failures, int64_t failing_for_ms, const once_env *env);

/* Whether the `failures`-th failure spends the budget. `failing_for_ms` is that of the claim's decision, measured by
 * the store. */
bool once_retry_is_spent(const once_retry *retry, uint32_t failures, int64_t failing_for_ms);

/* How long all retries of a message may take: until the attempts or the time are used up, whichever comes first. */
int64_t once_retry_horizon_ms(const once_retry *retry);

#endif
