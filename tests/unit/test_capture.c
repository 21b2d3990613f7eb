/* Commands whose output is read: it is whole, or an error; they end in time, with all that they started. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/capture.h"

static const once_cancel never;

static int run(const char *script, int64_t ms, const once_cancel *cancel, once_buf *out, once_error *err)
{
    char *argv[] = {"/bin/sh", "-c", (char *)(uintptr_t)script, NULL};
    once_buf_init(out, 2000);
    return once_capture(argv, once_env_real(), ms, cancel, out, err);
}

static int64_t now_ms(void) { return once_env_mono_ns(once_env_real()) / 1000000; }

static void gives_all_of_the_output(void **state)
{
    (void)state;
    once_buf out;
    once_error err;
    assert_int_equal(run("printf 'a\\n'; echo to nobody >&2; sleep 0.1; cat; printf b", 10000, &never, &out, &err),
                     ONCE_OK);
    assert_string_equal(out.data, "a\nb");
    once_buf_release(&out);
}

static void says_how_it_ended_and_nothing_of_its_arguments(void **state)
{
    (void)state;
    once_buf out;
    once_error err;
    assert_int_equal(run("echo s3cret; exit 7", 10000, &never, &out, &err), ONCE_E_UNAVAILABLE);
    assert_string_equal(err.text, "'/bin/sh' ended with exit status 7; run it by hand to see why");
    once_buf_release(&out);
    assert_int_equal(run("kill -9 $$", 10000, &never, &out, &err), ONCE_E_UNAVAILABLE);
    assert_string_equal(err.text, "'/bin/sh' ended with signal 9; run it by hand to see why");
    once_buf_release(&out);
    char *argv[] = {"/nonexistent/program", NULL};
    once_buf_init(&out, 10);
    assert_int_equal(once_capture(argv, once_env_real(), 1000, &never, &out, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "cannot run '/nonexistent/program'"));
    once_buf_release(&out);
}

static void ends_what_writes_too_much(void **state)
{
    (void)state;
    once_buf out;
    once_error err;
    assert_int_equal(run("yes", 60000, &never, &out, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "wrote more than"));
    once_buf_release(&out);
}

/* False also for a process that has ended, and that its parent has not asked for yet. */
static bool is_running(pid_t pid)
{
    char path[40], about[200] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    const bool there = file && fgets(about, sizeof about, file);
    if (file) fclose(file);
    return there && !strstr(about, ") Z ");
}

/* The child of the child keeps the pipe open; it is ended, too. */
static void ends_what_takes_too_long(void **state)
{
    (void)state;
    once_buf out;
    once_error err;
    const int64_t begin = now_ms();
    assert_int_equal(run("sleep 60 & echo $!; wait", 300, &never, &out, &err), ONCE_E_UNAVAILABLE);
    const pid_t child = (pid_t)strtol(out.data, NULL, 10);
    assert_true(child > 1);
    while (is_running(child) && now_ms() - begin < 10000) once_env_sleep_ms(once_env_real(), 1);
    assert_true(now_ms() - begin < 10000);
    once_buf_release(&out);
}

static bool is_over(void *user) { return now_ms() >= *(const int64_t *)user; }

static void ends_when_it_is_cancelled(void **state)
{
    (void)state;
    once_buf out;
    once_error err;
    const int64_t begin = now_ms();
    int64_t until = begin + 200;
    const once_cancel cancel = {is_over, &until};
    assert_int_equal(run("sleep 60", 60000, &cancel, &out, &err), ONCE_E_UNAVAILABLE);
    assert_true(now_ms() - begin < 10000);
    once_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_all_of_the_output),   cmocka_unit_test(says_how_it_ended_and_nothing_of_its_arguments),
        cmocka_unit_test(ends_what_writes_too_much), cmocka_unit_test(ends_what_takes_too_long),
        cmocka_unit_test(ends_when_it_is_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
