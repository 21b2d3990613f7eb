/* The clock of a store: carried by the boot clock, leaning towards the wall clock, never going back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "testenv.h"

#define HOUR (INT64_C(3600) * 1000)
#define YEAR (INT64_C(365) * 24 * HOUR)

typedef struct fixture {
    test_env world;
    once_clock clock;
} fixture;

static fixture begin(void)
{
    fixture f = {0};
    test_env_init(&f.world, 1);
    return f;
}

static int64_t step(fixture *f)
{
    f->world.env.self = &f->world; /* the fixture was returned by value */
    return once_clock_step(&f->clock, &f->world.env);
}

static void the_first_step_believes_the_wall(void **state)
{
    (void)state;
    fixture f = begin();
    assert_int_equal(step(&f), TEST_EPOCH_MS);
    assert_int_equal(step(&f), TEST_EPOCH_MS); /* no time passed */
}

static void undisturbed_it_is_the_wall_clock(void **state)
{
    (void)state;
    fixture f = begin();
    step(&f);
    for (int64_t ms = 0; ms < 5000; ms = ms * 2 + 1) {
        test_env_pass(&f.world, ms);
        assert_int_equal(step(&f), f.world.wall_ms);
    }
}

/* A lease of 30 s that was given out just before the jump ends after 27.2 to 33.4 s of real time, whatever the wall
 * says. */
static int64_t real_length_of_a_lease(int64_t jump_ms)
{
    fixture f = begin();
    const int64_t until_ms = step(&f) + 30000;
    test_env_jump(&f.world, jump_ms);
    int64_t passed_ms = 0;
    while (step(&f) < until_ms) {
        assert_in_range(passed_ms, 0, 100000); /* eternal */
        test_env_pass(&f.world, 10);
        passed_ms += 10;
    }
    return passed_ms;
}

static void f19_wall_clock_jumps_end_no_lease_early_and_none_never(void **state)
{
    (void)state;
    assert_int_equal(real_length_of_a_lease(0), 30000);
    static const int64_t jumps[] = {YEAR, 100 * YEAR, HOUR, 29000, 31000, 1, -1, -HOUR, -YEAR, -40 * YEAR};
    for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++)
        assert_in_range(real_length_of_a_lease(jumps[i]), 27270, 33340);
}

static void f19_a_jump_seen_only_at_the_end_changes_nothing_either(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t start_ms = step(&f);
    test_env_pass(&f.world, 20000);
    test_env_jump(&f.world, YEAR);
    assert_int_equal(step(&f) - start_ms, 22000); /* at most 1.1 of what passed */
    test_env_pass(&f.world, 10000);
    test_env_jump(&f.world, -YEAR - HOUR);
    assert_int_equal(step(&f) - start_ms, 31000); /* at least 0.9 of what passed */
}

static void f19_after_a_jump_back_it_meets_the_wall_again(void **state)
{
    (void)state;
    fixture f = begin();
    step(&f);
    test_env_jump(&f.world, -HOUR);
    int64_t before_ms = step(&f);
    for (int i = 0; i < 10 * 60; i++) { /* an hour at 0.9 takes ten hours to catch up */
        test_env_pass(&f.world, 60 * 1000);
        const int64_t now_ms = step(&f);
        assert_true(now_ms - before_ms == 54000);
        before_ms = now_ms;
    }
    assert_int_equal(step(&f), f.world.wall_ms);
    test_env_pass(&f.world, 12345);
    assert_int_equal(step(&f), f.world.wall_ms);
}

static void f19_after_a_jump_forward_it_meets_the_wall_again(void **state)
{
    (void)state;
    fixture f = begin();
    step(&f);
    test_env_jump(&f.world, HOUR);
    for (int i = 0; i < 10 * 60; i++) {
        test_env_pass(&f.world, 60 * 1000);
        step(&f);
    }
    assert_int_equal(step(&f), f.world.wall_ms);
}

/* Tenths of a millisecond are kept, so many small steps lean as far as one large step. */
static void leaning_is_exact_in_small_steps(void **state)
{
    (void)state;
    fixture small = begin(), large = begin();
    const int64_t start_ms = step(&small);
    step(&large);
    test_env_jump(&small.world, YEAR);
    test_env_jump(&large.world, YEAR);
    for (int i = 0; i < 10000; i++) {
        test_env_pass(&small.world, 1);
        step(&small);
    }
    test_env_pass(&large.world, 10000);
    assert_int_equal(step(&small) - start_ms, 11000);
    assert_int_equal(step(&large) - start_ms, 11000);
}

static void it_never_goes_back(void **state)
{
    (void)state;
    fixture f = begin();
    uint64_t random = 7;
    int64_t before_ms = step(&f);
    for (int i = 0; i < 100000; i++) {
        const uint64_t choice = test_random(&random);
        switch (choice % 8) {
        case 0: test_env_jump(&f.world, (int64_t)(choice >> 20) % YEAR); break;
        case 1: test_env_jump(&f.world, -((int64_t)(choice >> 20) % YEAR)); break;
        case 2:
            if (choice % 1000 == 2) test_env_reboot(&f.world, (int64_t)(choice >> 40) % HOUR);
            break;
        default: test_env_pass(&f.world, (int64_t)(choice >> 40) % 1000); break;
        }
        const int64_t now_ms = step(&f);
        assert_true(now_ms >= before_ms);
        before_ms = now_ms;
    }
}

static void after_a_reboot_the_wall_is_believed_once(void **state)
{
    (void)state;
    fixture f = begin();
    step(&f);
    test_env_reboot(&f.world, 8 * HOUR);
    assert_int_equal(step(&f), f.world.wall_ms);
    test_env_jump(&f.world, YEAR);
    test_env_pass(&f.world, 1000);
    assert_int_equal(step(&f), TEST_EPOCH_MS + 8 * HOUR + 1100); /* and from then on it leans again */
}

static void after_a_reboot_a_wall_before_the_anchor_is_not_believed(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    test_env_reboot(&f.world, 0);
    test_env_jump(&f.world, -YEAR); /* the battery of the hardware clock is empty */
    assert_int_equal(step(&f), before_ms);
    test_env_pass(&f.world, 10000);
    assert_int_equal(step(&f), before_ms + 9000); /* and leases still end */
}

static void a_boot_clock_that_went_back_counts_as_a_reboot(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    f.world.boot_ms = 3; /* the same id: a restored virtual machine */
    f.world.wall_ms += 5000;
    assert_int_equal(step(&f), before_ms + 5000);
}

/* Two workers on one machine share the anchor through the store; their own wall clocks differ by ten minutes. */
static void f20_skewed_workers_agree_through_the_store(void **state)
{
    (void)state;
    fixture fast = begin(), slow = begin();
    const int64_t start_ms = step(&slow);
    fast.clock = slow.clock;
    test_env_jump(&fast.world, HOUR / 6);
    int64_t before_ms = start_ms;
    for (int i = 0; i < 1000; i++) {
        test_env_pass(&fast.world, 30);
        test_env_pass(&slow.world, 30);
        const int64_t fast_ms = step(&fast);
        slow.clock = fast.clock;
        const int64_t slow_ms = step(&slow);
        fast.clock = slow.clock;
        assert_true(fast_ms >= before_ms && slow_ms == fast_ms); /* no time passed between the two */
        before_ms = slow_ms;
    }
    assert_in_range(before_ms - start_ms, 27000, 33000);
}

#define DAY (24 * HOUR)

/* ---- a reboot with a clock that is far ahead ---- */

static void f85_after_a_reboot_a_wall_far_ahead_is_not_believed(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    test_env_reboot(&f.world, 0);
    test_env_jump(&f.world, 10 * YEAR);
    assert_int_equal(step(&f), before_ms);
    assert_true(f.clock.doubted);
    test_env_pass(&f.world, 10000);
    assert_int_equal(step(&f), before_ms + 10000); /* at the pace of the boot clock: it does not lean either */
    test_env_pass(&f.world, 40 * DAY);
    assert_int_equal(step(&f), before_ms + 10000 + 40 * DAY);
    test_env_reboot(&f.world, 1000); /* and not by trying again */
    assert_int_equal(step(&f), before_ms + 10000 + 40 * DAY);
    assert_true(f.clock.doubted);
}

static void f85_thirty_days_are_believed_and_a_moment_more_is_not(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    test_env_reboot(&f.world, 30 * DAY);
    assert_int_equal(step(&f), before_ms + 30 * DAY);
    assert_false(f.clock.doubted);
    test_env_reboot(&f.world, 30 * DAY + 1);
    assert_int_equal(step(&f), before_ms + 30 * DAY);
    assert_true(f.clock.doubted);
}

/* The time server is reached half a minute after the boot. */
static void f85_a_wall_that_is_set_right_is_believed(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    test_env_reboot(&f.world, 5 * DAY);
    test_env_jump(&f.world, 70 * YEAR);
    assert_int_equal(step(&f), before_ms);
    test_env_pass(&f.world, 30000);
    test_env_jump(&f.world, -70 * YEAR);
    assert_int_equal(step(&f), before_ms + 5 * DAY + 30000);
    assert_false(f.clock.doubted);
    test_env_jump(&f.world, 70 * YEAR); /* from then on it leans */
    test_env_pass(&f.world, 1000);
    assert_int_equal(step(&f), before_ms + 5 * DAY + 31100);
    assert_false(f.clock.doubted);
}

static void f85_confirmed_it_is_the_wall_clock_ahead_or_back(void **state)
{
    (void)state;
    fixture f = begin();
    const int64_t before_ms = step(&f);
    test_env_reboot(&f.world, 0);
    test_env_jump(&f.world, YEAR);
    step(&f);
    assert_int_equal(once_clock_confirm(&f.clock, &f.world.env), before_ms + YEAR);
    assert_false(f.clock.doubted);
    test_env_pass(&f.world, 500);
    assert_int_equal(step(&f), before_ms + YEAR + 500);
    test_env_jump(&f.world, -YEAR);
    assert_int_equal(once_clock_confirm(&f.clock, &f.world.env), before_ms + 500);
    test_env_pass(&f.world, 500);
    assert_int_equal(step(&f), before_ms + 1000);
}

/* The first clock that a store sees is the only one it can believe. */
static void f85_a_clock_that_began_in_1970_needs_a_word(void **state)
{
    (void)state;
    fixture f = begin();
    f.world.wall_ms = 1000;
    assert_int_equal(step(&f), 1000);
    test_env_reboot(&f.world, 1000);
    f.world.wall_ms = TEST_EPOCH_MS;
    assert_int_equal(step(&f), 1000);
    assert_true(f.clock.doubted);
    assert_int_equal(once_clock_confirm(&f.clock, &f.world.env), TEST_EPOCH_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_step_believes_the_wall),
        cmocka_unit_test(undisturbed_it_is_the_wall_clock),
        cmocka_unit_test(f19_wall_clock_jumps_end_no_lease_early_and_none_never),
        cmocka_unit_test(f19_a_jump_seen_only_at_the_end_changes_nothing_either),
        cmocka_unit_test(f19_after_a_jump_back_it_meets_the_wall_again),
        cmocka_unit_test(f19_after_a_jump_forward_it_meets_the_wall_again),
        cmocka_unit_test(leaning_is_exact_in_small_steps),
        cmocka_unit_test(it_never_goes_back),
        cmocka_unit_test(after_a_reboot_the_wall_is_believed_once),
        cmocka_unit_test(after_a_reboot_a_wall_before_the_anchor_is_not_believed),
        cmocka_unit_test(a_boot_clock_that_went_back_counts_as_a_reboot),
        cmocka_unit_test(f85_after_a_reboot_a_wall_far_ahead_is_not_believed),
        cmocka_unit_test(f85_thirty_days_are_believed_and_a_moment_more_is_not),
        cmocka_unit_test(f85_a_wall_that_is_set_right_is_believed),
        cmocka_unit_test(f85_confirmed_it_is_the_wall_clock_ahead_or_back),
        cmocka_unit_test(f85_a_clock_that_began_in_1970_needs_a_word),
        cmocka_unit_test(f20_skewed_workers_agree_through_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
