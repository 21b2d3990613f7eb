/* When to try again: full jitter (a uniform delay below a bound that doubles), so that a thousand messages that failed
 * together do not come back together. And when not any more: a budget of failures, of time, or of both. */
#ifndef ONCE_CORE_RETRY_H
#define ONCE_CORE_RETRY_H

#include "base/env.h"
#include "core/spec.h"

/* The delay after the `failures`-th failure (1, 2...): uniform in [0, min(max, min * 2^(failures-1))], at least 1 ms.
 */
int64_t once_retry_delay_ms(const once_retry *retry, uint32_t failures, const once_env *env);

/* The same for a message with a budget. Of many messages some draw short delays again and again, would spend all their
 * tries in a quarter of the time, and die of an outage that the others outlive: so the last two delays before the end
 * make up for that, and a number of attempts lasts at least a third of the longest time that it can. `failing_for_ms`:
 * as the claim's decision has it. */
int64_t once_retry_pause_ms(const once_retry *retry, uint32_t failures, int64_t failing_for_ms, const once_env *env);

/* Whether the `failures`-th failure is the last one. `failing_for_ms`: as the claim's decision has it, measured by the
 * store. */
bool once_retry_is_spent(const once_retry *retry, uint32_t failures, int64_t failing_for_ms);

#endif
