/* When to try again: full jitter (a uniform delay below a bound that doubles), so that a thousand messages that failed
 * together do not come back together. */
#ifndef ONCE_CORE_RETRY_H
#define ONCE_CORE_RETRY_H

#include "base/env.h"
#include "core/spec.h"

/* The delay after the `failures`-th failure (1, 2...): uniform in [0, min(max, min * 2^(failures-1))], at least 1 ms. */
int64_t once_retry_delay_ms(const once_retry *retry, uint32_t failures, const once_env *env);

#endif
