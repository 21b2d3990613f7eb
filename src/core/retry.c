#include "core/retry.h"

#include <assert.h>

#include "base/banned.h"

int64_t once_retry_delay_ms(const once_retry *retry, uint32_t failures, const once_env *env)
{
    assert(retry->min_ms > 0 && retry->max_ms >= retry->min_ms);
    int64_t bound = retry->min_ms;
    for (uint32_t i = 1; i < failures && bound < retry->max_ms; i++) bound = bound > retry->max_ms / 2 ? retry->max_ms : bound * 2;
    if (bound > retry->max_ms) bound = retry->max_ms;
    return 1 + (int64_t)(once_env_random_u64(env) % (uint64_t)bound);
}
