/* Waiting for a store whose server is away: for how long, and what ends it. Time passes only by sleeping. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/runtime.h"
#include "testenv.h"

#define PATIENCE_MS 40000 /* much more than the longest pause */

typedef struct server {
    int status; /* of each attempt */
    unsigned tries, comes_back_at, stopped_at;
    once_pipeline *pipeline;
} server;

static int attempt(void *user, once_error *err)
{
    server *s = user;
    s->tries++;
    if (s->tries == s->stopped_at) atomic_store(&s->pipeline->stop, true);
    if (s->tries == s->comes_back_at) return ONCE_OK;
    return once_fail(err, s->status, "nobody is there");
}

static int persist(server *s, bool follow, int64_t *waited_ms, once_error *err)
{
    test_env world;
    once_spec spec = {.patience_ms = PATIENCE_MS, .source.bits = follow ? 0 : ONCE_SOURCE_FINITE};
    once_pipeline pipeline = {.spec = &spec};
    test_env_init(&world, 1);
    pipeline.env = &world.env;
    s->pipeline = &pipeline;
    const int64_t begun_ms = world.boot_ms;
    const int rc = once__retry_unavailable(&pipeline, attempt, s, err);
    *waited_ms = world.boot_ms - begun_ms;
    return rc;
}

static void f45_a_finite_source_waits_for_its_patience_and_no_longer(void **state)
{
    (void)state;
    server away = {.status = ONCE_E_UNAVAILABLE};
    int64_t waited_ms;
    once_error err;
    assert_int_equal(persist(&away, false, &waited_ms, &err), ONCE_E_UNAVAILABLE);
    assert_int_equal(waited_ms, PATIENCE_MS);
    assert_in_range(away.tries, 8, 60);
    assert_non_null(strstr(err.text, "raise 'patience' (40s)"));
}

static void f52_a_full_disk_is_waited_for_as_a_server_is(void **state)
{
    (void)state;
    server full = {.status = ONCE_E_FULL}, emptied = {.status = ONCE_E_FULL, .comes_back_at = 200};
    int64_t waited_ms;
    once_error err;
    assert_int_equal(persist(&full, false, &waited_ms, &err), ONCE_E_FULL);
    assert_int_equal(waited_ms, PATIENCE_MS);
    assert_non_null(strstr(err.text, "make room and run again, or raise 'patience' (40s)"));
    assert_int_equal(persist(&emptied, true, &waited_ms, NULL), ONCE_OK);
    assert_int_equal(emptied.tries, 200);
}

static void f45_an_endless_one_waits_until_it_is_there(void **state)
{
    (void)state;
    static const int statuses[] = {ONCE_E_UNAVAILABLE, ONCE_E_ABORTED};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        server away = {.status = statuses[i], .comes_back_at = 200};
        int64_t waited_ms;
        assert_int_equal(persist(&away, true, &waited_ms, NULL), ONCE_OK);
        assert_int_equal(away.tries, 200);
        assert_in_range(waited_ms, 4 * PATIENCE_MS, 200 * 10000);
    }
}

static void f46_a_stop_ends_it(void **state)
{
    (void)state;
    for (int follow = 0; follow < 2; follow++) {
        server away = {.status = ONCE_E_UNAVAILABLE, .stopped_at = 3};
        int64_t waited_ms;
        once_error err;
        assert_int_equal(persist(&away, follow, &waited_ms, &err), ONCE_E_UNAVAILABLE);
        assert_int_equal(away.tries, 3);
        assert_non_null(strstr(err.text, "stopped while waiting for it"));
    }
}

static void what_does_not_pass_by_itself_is_not_waited_for(void **state)
{
    (void)state;
    static const int statuses[] = {ONCE_E_DENIED, ONCE_E_NEWER, ONCE_E_CONFIG, ONCE_E_CORRUPT};
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        server broken = {.status = statuses[i]};
        int64_t waited_ms;
        once_error err;
        assert_int_equal(persist(&broken, i % 2, &waited_ms, &err), statuses[i]);
        assert_int_equal(broken.tries, 1);
        assert_int_equal(waited_ms, 0);
        assert_string_equal(err.text, "nobody is there");
    }
}

static void the_event_of_a_failure_says_which_it_is(void **state)
{
    (void)state;
    assert_string_equal(once__store_event(ONCE_E_FULL), "store_full");
    assert_string_equal(once__store_event(ONCE_E_UNAVAILABLE), "store_away");
    assert_string_equal(once__store_event(ONCE_E_DENIED), "store_failed");
    assert_string_equal(once__store_event(ONCE_E_ABORTED), "store_failed");
}

static void a_reason_that_changes_is_said_at_once(void **state)
{
    (void)state;
    once_log_throttle s = {0};
    int64_t now_ms = 1000;
    for (int i = 0; i < 100; i++) (void)once__throttle_allows(&s, "node 7000 is away", now_ms += 10);
    assert_false(once__throttle_allows(&s, "node 7001 is away", now_ms += 10)); /* a number makes no reason */
    assert_true(once__throttle_allows(&s, "permission denied", now_ms += 10));
    assert_false(once__throttle_allows(&s, "permission denied", now_ms += 10));
    int said = 0;
    for (int i = 0; i < 1000; i++)
        said += once__throttle_allows(&s, i % 2 ? "permission denied" : "node 7000 is away", now_ms += 20);
    assert_in_range(said, 2, 6); /* they come and go, in 20 s */
    now_ms += 5000;
    (void)once__throttle_allows(&s, "node 7000 is away", now_ms);
    assert_true(once__throttle_allows(&s, "permission denied", now_ms += 6000));
}

static void a_long_outage_is_told_once_a_minute(void **state)
{
    (void)state;
    once_log_throttle s = {0};
    int64_t now_ms = 0, last_ms = 0;
    for (int i = 0; i < 5000; i++) {
        now_ms += 10000;
        if (!once__throttle_allows(&s, "nobody is there", now_ms)) continue;
        assert_in_range(now_ms - last_ms, 1, 60000);
        last_ms = now_ms;
    }
    assert_true(now_ms - last_ms <= 60000);
    assert_in_range(s.times, 5000, 5000);
    s = (once_log_throttle){0}; /* quick ones: few lines */
    int said = 0;
    for (int i = 0; i < 50000; i++) said += once__throttle_allows(&s, "a deadlock", now_ms += 20);
    assert_in_range(said, 7, 40); /* in 1000 s */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f45_a_finite_source_waits_for_its_patience_and_no_longer),
        cmocka_unit_test(f52_a_full_disk_is_waited_for_as_a_server_is),
        cmocka_unit_test(f45_an_endless_one_waits_until_it_is_there),
        cmocka_unit_test(f46_a_stop_ends_it),
        cmocka_unit_test(what_does_not_pass_by_itself_is_not_waited_for),
        cmocka_unit_test(the_event_of_a_failure_says_which_it_is),
        cmocka_unit_test(a_reason_that_changes_is_said_at_once),
        cmocka_unit_test(a_long_outage_is_told_once_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
