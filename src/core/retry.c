/* Delays between tries, and the retry budget (core/retry.h). */
#include "core/retry.h"

#include <assert.h>

#include "base/banned.h"

static int64_t bound_of(const once_retry *retry, uint32_t failures)
{
    assert(retry->min_ms > 0 && retry->max_ms >= retry->min_ms);
    int64_t bound = retry->min_ms;
    for (uint32_t i = 1; i < failures && bound < retry->max_ms; i++)
        bound = bound > retry->max_ms / 2 ? retry->max_ms : bound * 2;
    return bound > retry->max_ms ? retry->max_ms : bound;
}

/* Uniform in (least, bound]. */
static int64_t draw(int64_t least, int64_t bound, const once_env *env)
{
    assert(least >= 0 && least < bound);
    return least + 1 + (int64_t)(once_env_random_u64(env) % (uint64_t)(bound - least));
}

int64_t once_retry_delay_ms(const once_retry *retry, uint32_t failures, const once_env *env)
{
    return draw(0, bound_of(retry, failures), env);
}

/* The longest time that all pauses up to this one can take. */
static int64_t longest_so_far_ms(const once_retry *retry, uint32_t failures)
{
    int64_t sum = 0, bound = 0, rest;
    uint32_t i = 1;
    for (; i <= failures && bound < retry->max_ms; i++) {
        bound = bound_of(retry, i);
        if (__builtin_add_overflow(sum, bound, &sum)) return INT64_MAX;
    }
    if (__builtin_mul_overflow((int64_t)(failures + 1 - i), bound, &rest) || __builtin_add_overflow(sum, rest, &sum))
        return INT64_MAX;
    return sum;
}

int64_t once_retry_pause_ms(const once_retry *retry, uint32_t failures, int64_t failing_for_ms, const once_env *env)
{
    const int64_t bound = bound_of(retry, failures), elapsed_ms = failing_for_ms > 0 ? failing_for_ms : 0;
    const bool among_last = retry->attempts != ONCE_ANY_ATTEMPTS && failures + 2 >= retry->attempts;
    const int64_t lag_ms = among_last ? longest_so_far_ms(retry, failures) / 3 - elapsed_ms : 0;
    return draw(lag_ms <= 0 ? 0 : lag_ms < bound ? lag_ms : bound - 1, bound, env);
}

int64_t once_retry_horizon_ms(const once_retry *retry)
{
    assert(retry->attempts > 0);
    const int64_t attempts_ms = longest_so_far_ms(retry, retry->attempts - 1);
    int64_t until_ms = INT64_MAX;
    if (retry->for_ms > 0 && __builtin_add_overflow(retry->for_ms, retry->max_ms, &until_ms)) until_ms = INT64_MAX;
    return attempts_ms < until_ms ? attempts_ms : until_ms;
}

bool once_retry_is_spent(const once_retry *retry, uint32_t failures, int64_t failing_for_ms)
{
    assert(retry->attempts > 0);
    return failures >= retry->attempts || (retry->for_ms > 0 && failing_for_ms >= retry->for_ms);
}
