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
    const once_retry shortest = {.attempts = 2, .min_ms = 1, .max_ms = 1},
                     longest = {.attempts = 100, .min_ms = 1, .max_ms = INT64_MAX / 4};
    for (int i = 0; i < 100; i++) assert_int_equal(once_retry_delay_ms(&shortest, 5, &world.env), 1);
    for (uint32_t failures = 1; failures < 200; failures++)
        assert_in_range(once_retry_delay_ms(&longest, failures, &world.env), 1, INT64_MAX / 4);
}

/* How long a message that always fails goes on, from its first failure to its last. */
static int64_t budget_ms(const once_retry *retry, const once_env *env)
{
    int64_t elapsed_ms = 0;
    for (uint32_t failures = 1; !once_retry_is_spent(retry, failures, failures == 1 ? -1 : elapsed_ms); failures++)
        elapsed_ms += once_retry_pause_ms(retry, failures, failures == 1 ? -1 : elapsed_ms, env);
    return elapsed_ms;
}

/* With the default settings. Full jitter alone would have one message in 25 spend its twelve attempts within a minute.
 */
static void f95_an_outage_of_a_minute_spends_no_budget(void **state)
{
    (void)state;
    test_env world;
    test_env_init(&world, 1);
    const once_retry usual = {.attempts = 12, .min_ms = 200, .max_ms = 60000};
    int64_t sum = 0, longest = 0;
    for (int i = 0; i < 100000; i++) {
        const int64_t lasts_ms = budget_ms(&usual, &world.env);
        assert_true(lasts_ms > 74000);
        sum += lasts_ms;
        if (lasts_ms > longest) longest = lasts_ms;
    }
    assert_in_range(sum / 100000, 100000, 130000); /* about two minutes */
    assert_in_range(longest, 160000, 222200);      /* those who draw long delays may have them */
}

static void f95_a_budget_lasts_a_third_of_what_it_can(void **state)
{
    (void)state;
    test_env world;
    test_env_init(&world, 1);
    static const once_retry budgets[] = {{.attempts = 2, .min_ms = 300, .max_ms = 300},
                                         {.attempts = 3, .min_ms = 300, .max_ms = 3000},
                                         {.attempts = 100, .min_ms = 1, .max_ms = 5},
                                         {.attempts = 1000, .min_ms = 100, .max_ms = 86400000},
                                         {.attempts = 4, .min_ms = 1, .max_ms = INT64_MAX / 4}};
    static const int64_t least_ms[] = {100, 300, 160, INT64_C(28000000000), 2};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        for (int k = 0; k < 300; k++) assert_true(budget_ms(&budgets[i], &world.env) >= least_ms[i]);
    assert_int_equal(budget_ms(&(once_retry){.attempts = 1, .min_ms = 1, .max_ms = 1}, &world.env), 0);
}

static void f95_a_budget_by_time_ends_when_the_first_failure_is_old_enough(void **state)
{
    (void)state;
    const once_retry hour = {.attempts = ONCE_ANY_ATTEMPTS, .for_ms = 3600000, .min_ms = 200, .max_ms = 60000};
    assert_false(once_retry_is_spent(&hour, 1, -1));
    assert_false(once_retry_is_spent(&hour, 1000000, 3599999));
    assert_true(once_retry_is_spent(&hour, 2, 3600000));
    const once_retry both = {.attempts = 3, .for_ms = 1000, .min_ms = 1, .max_ms = 1};
    assert_false(once_retry_is_spent(&both, 2, 999));
    assert_true(once_retry_is_spent(&both, 3, 10));
    assert_true(once_retry_is_spent(&both, 2, 1000));
    test_env world;
    test_env_init(&world, 1);
    for (int i = 0; i < 1000; i++) assert_in_range(budget_ms(&hour, &world.env), 3600000, 3660000);
}

static void the_horizon_is_the_longest_time_that_all_retries_take(void **state)
{
    (void)state;
    const once_retry usual = {.attempts = 12, .min_ms = 200, .max_ms = 60000},
                     hour = {.attempts = ONCE_ANY_ATTEMPTS, .for_ms = 3600000, .min_ms = 200, .max_ms = 60000},
                     once = {.attempts = 1, .min_ms = 200, .max_ms = 60000},
                     longest = {.attempts = 100, .min_ms = 1, .max_ms = INT64_MAX / 4};
    assert_int_equal(once_retry_horizon_ms(&usual), 222200);
    assert_int_equal(once_retry_horizon_ms(&hour), 3660000);
    assert_int_equal(once_retry_horizon_ms(&once), 0);
    assert_true(once_retry_horizon_ms(&longest) == INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_fail_together_do_not_come_back_together),
        cmocka_unit_test(bounds_at_their_ends),
        cmocka_unit_test(f95_an_outage_of_a_minute_spends_no_budget),
        cmocka_unit_test(f95_a_budget_lasts_a_third_of_what_it_can),
        cmocka_unit_test(f95_a_budget_by_time_ends_when_the_first_failure_is_old_enough),
        cmocka_unit_test(the_horizon_is_the_longest_time_that_all_retries_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
