/* Fail points: which call fails, at which time, and how the process ends. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/failpoint.h"

static void arm(const char *spec)
{
    char why[200] = "";
    if (!once_failpoints_arm(spec, why, sizeof why)) fail_msg("%s", why);
}

static void refuses(const char *spec, const char *expected)
{
    char why[200] = "";
    assert_false(once_failpoints_arm(spec, why, sizeof why));
    if (!strstr(why, expected)) fail_msg("'%s' gave '%s'", spec, why);
    assert_false(once_failpoints_arm(spec, NULL, 0));
}

static void names_are_unique_and_listed(void **state)
{
    (void)state;
    for (int i = 0; i < ONCE_FAILPOINTS; i++) {
        assert_true(strlen(once_failpoint_where((once_failpoint)i)) > 0);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(once_failpoint_name((once_failpoint)i), once_failpoint_name((once_failpoint)k));
    }
    assert_string_equal(once_failpoint_name(ONCE_FP_ack_before), "ack_before");
}

static void unarmed_points_do_nothing(void **state)
{
    (void)state;
    arm(NULL);
    assert_false(once_failpoints_armed);
    assert_false(ONCE_FAIL_AT(commit_after));
    arm("");
    assert_false(once_failpoints_armed);
}

static void error_happens_once_and_at_the_nth_time(void **state)
{
    (void)state;
    arm("claim_after:error:3,ack_before:error");
    assert_true(once_failpoints_armed);
    assert_false(ONCE_FAIL_AT(claim_after));
    assert_false(ONCE_FAIL_AT(claim_after));
    assert_false(ONCE_FAIL_AT(claim_before));
    assert_true(ONCE_FAIL_AT(claim_after));
    assert_false(ONCE_FAIL_AT(claim_after));
    assert_true(ONCE_FAIL_AT(ack_before));
    assert_false(ONCE_FAIL_AT(ack_before));
    arm("claim_after:error"); /* counts begin anew */
    assert_true(ONCE_FAIL_AT(claim_after));
    assert_false(ONCE_FAIL_AT(ack_before));
    arm(NULL);
}

/* Which of the next 1000 times fail. */
static int count_failures(const char *spec, bool failed[1000])
{
    int n = 0;
    arm(spec);
    for (int i = 0; i < 1000; i++) n += failed[i] = ONCE_FAIL_AT(claim_after);
    arm(NULL);
    return n;
}

static void by_chance_as_often_as_said_and_in_one_way_for_a_seed(void **state)
{
    (void)state;
    bool first[1000], again[1000], other[1000];
    assert_in_range(count_failures("claim_after:error:30%", first), 240, 360);
    assert_in_range(count_failures("claim_after:error:30%", again), 240, 360);
    assert_memory_equal(first, again, sizeof first);
    assert_in_range(count_failures("claim_after:error:30%7", other), 240, 360);
    assert_memory_not_equal(first, other, sizeof first);
    assert_in_range(count_failures("claim_after:error:1%", other), 1, 30);
    assert_int_equal(count_failures("claim_after:error:100%", other), 1000);

    /* Two points fail at different times; a failure does not foretell the next one. */
    int both = 0, in_a_row = 0;
    arm("claim_after:error:30%,claim_before:error:30%");
    for (int i = 0; i < 1000; i++) {
        const bool after = ONCE_FAIL_AT(claim_after), before = ONCE_FAIL_AT(claim_before); /* both are reached */
        both += after && before;
    }
    for (int i = 1; i < 1000; i++) in_a_row += first[i - 1] && first[i];
    assert_in_range(both, 60, 120);
    assert_in_range(in_a_row, 60, 120);
    arm(NULL);
}

static void what_cannot_be_understood_is_named_and_changes_nothing(void **state)
{
    (void)state;
    arm("open_after:error");
    refuses("nowhere:kill", "no point is called 'nowhere'");
    refuses("ack_before", "not ''");
    refuses("ack_before:", "not ''");
    refuses("ack_before:explode", "not 'explode'");
    refuses("ack_before:kill:", "count from 1 or a share such as 30%, not ''");
    refuses("ack_before:kill:0", "count from 1 or a share such as 30%, not '0'");
    refuses("ack_before:kill:-1", "not '-1'");
    refuses("ack_before:kill:2x", "not '2x'");
    refuses("ack_before:kill:%", "or a share such as 30%, not '%'");
    refuses("ack_before:kill:0%", "not '0%'");
    refuses("ack_before:kill:101%", "not '101%'");
    refuses("ack_before:kill:30%x", "not '30%x'");
    refuses("ack_before:kill:30%1%", "not '30%1%'");
    refuses("ack_before:kill:99999999999999999999", "count from 1");
    refuses("ack_before:kill:1:2", "not '1:2'");
    refuses("ack_before:error,ack_before:kill:2", "only one rule per point");
    refuses("ack_before:error,", "no point is called ''");
    refuses(",ack_before:error", "no point is called ''");
    refuses("ack_befor:kill", "'ack_befor'");
    assert_true(ONCE_FAIL_AT(open_after)); /* the rules from before are still there */
    arm(NULL);
}

/* Reaches commit_before twice in a child; returns its wait status. `stopped` children are continued. */
static int status_of_child(const char *spec, bool *ret_stopped)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        if (!once_failpoints_arm(spec, NULL, 0)) _exit(50);
        if (ONCE_FAIL_AT(commit_before)) _exit(51);
        if (ONCE_FAIL_AT(commit_before)) _exit(52);
        _exit(0);
    }
    int status = 0;
    *ret_stopped = false;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        *ret_stopped = true;
        kill(child, SIGCONT);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    return status;
}

static void actions_end_the_process_as_they_say(void **state)
{
    (void)state;
    bool stopped;
    int status = status_of_child("commit_before:kill:2", &stopped);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);

    status = status_of_child("commit_before:abort", &stopped);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);

    status = status_of_child("commit_before:exit", &stopped);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 99);

    status = status_of_child("commit_before:error:2", &stopped);
    assert_int_equal(WEXITSTATUS(status), 52);

    status = status_of_child("commit_before:kill:3", &stopped); /* never reached */
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_false(stopped);

    status = status_of_child("commit_before:stop", &stopped);
    assert_true(stopped);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_listed),
        cmocka_unit_test(unarmed_points_do_nothing),
        cmocka_unit_test(error_happens_once_and_at_the_nth_time),
        cmocka_unit_test(by_chance_as_often_as_said_and_in_one_way_for_a_seed),
        cmocka_unit_test(what_cannot_be_understood_is_named_and_changes_nothing),
        cmocka_unit_test(actions_end_the_process_as_they_say),
    };
    return cmocka_run_group_tests_name("failpoint", tests, NULL, NULL);
}
