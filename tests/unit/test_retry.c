/* When a failed message comes back: bounds that double, and jitter below them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/retry.h"
#include "testenv.h"

enum { DRAWS = 4000, PARTS = 8 };

/* Uniform in [1, bound]: each eighth has its share. */
static void is_spread_below(const once_retry *retry, uint32_t failures, int64_t bound)
{
    test_env world;
    int in_part[PARTS] = {0};
    test_env_init(&world, failures + 1);
    for (int i = 0; i < DRAWS; i++) {
        const int64_t delay_ms = once_retry_delay_ms(retry, failures, &world.env);
        assert_in_range(delay_ms, 1, bound);
        in_part[(delay_ms - 1) / (bound / PARTS + 1)]++;
    }
    for (int i = 0; i < PARTS; i++) assert_in_range(in_part[i], DRAWS / PARTS * 3 / 4, DRAWS / PARTS * 5 / 4);
}

static void those_that_fail_together_do_not_come_back_together(void **state)
{
    (void)state;
    const once_retry retry = {.attempts = 12, .min_ms = 800, .max_ms = 60000};
    is_spread_below(&retry, 1, 800);
    is_spread_below(&retry, 2, 1600);
    is_spread_below(&retry, 4, 6400);
    is_spread_below(&retry, 7, 51200);
    is_spread_below(&retry, 8, 60000);
    is_spread_below(&retry, 1000000, 60000);
}

static void bounds_at_their_ends(void **state)
{
    (void)state;
    test_env world;
    test_env_init(&world, 1);
    const once_retry shortest = {.attempts = 2, .min_ms = 1, .max_ms = 1}, longest = {.attempts = 100, .min_ms = 1, .max_ms = INT64_MAX / 4};
    for (int i = 0; i < 100; i++) assert_int_equal(once_retry_delay_ms(&shortest, 5, &world.env), 1);
    for (uint32_t failures = 1; failures < 200; failures++) assert_in_range(once_retry_delay_ms(&longest, failures, &world.env), 1, INT64_MAX / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_fail_together_do_not_come_back_together),
        cmocka_unit_test(bounds_at_their_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
