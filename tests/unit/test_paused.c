/* What a worker writes about its paused handlers, as others read it and as people see it (runtime/executor.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/executor.h"

static once_paused with(const char *text)
{
    once_paused paused = {.len = strlen(text)};
    assert_true(paused.len < sizeof paused.text);
    memcpy(paused.text, text, paused.len);
    return paused;
}

static void is(once_bytes found, const char *expected)
{
    assert_int_equal(found.len, strlen(expected));
    assert_memory_equal(found.data, expected, found.len);
}

static void each_line_is_a_handler(void **state)
{
    (void)state;
    const once_paused paused = with("1000 5000 2 breaker pay now\tno answer\n2000 0 0 pause *\t\n");
    const char *at = paused.text;
    once_paused_line line;
    assert_true(once__paused_next(&at, &line));
    assert_true(line.since_ms == 1000 && line.next_ms == 5000 && line.probes == 2);
    is(line.cause, "breaker");
    is(line.handler, "pay now");
    is(line.reason, "no answer");
    assert_true(once__paused_next(&at, &line));
    assert_int_equal(line.next_ms, 0);
    is(line.handler, "*");
    is(line.reason, "");
    assert_false(once__paused_next(&at, &line));
}

static void f93_whatever_else_the_store_has_ends_the_list(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n",
                                        "1000",
                                        "1000 5000 2 breaker pay\tno end",
                                        "1000 5000 2 breaker\n",
                                        "1000 5000 -2 breaker pay\tx\n",
                                        "1000 5000 breaker pay\tx\n",
                                        "x 5000 2 breaker pay\tx\n",
                                        "99999999999999999999 5000 2 breaker pay\tx\n",
                                        "1000 5000 2 breaker\npay\tx\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const once_paused paused = with(texts[i]);
        const char *at = paused.text;
        once_paused_line line;
        assert_false(once__paused_next(&at, &line));
        assert_ptr_equal(at, paused.text);
    }
}

static void people_see_how_long_and_when_next(void **state)
{
    (void)state;
    char text[200];
    const once_paused paused = with("1000 70000 2 breaker pay\tno answer\n2000 2500 0 pause *\tgone\n");
    once__paused_text(&paused, 66500, text, sizeof text);
    assert_string_equal(text, "paused: pay for 1m05s, next try in 4s (no answer), * for 1m04s, tried now (gone)");
    once__paused_text(&paused, 0, text, sizeof text); /* a clock that went back */
    assert_string_equal(text, "paused: pay for 0s, next try in 1m10s (no answer), * for 0s, next try in 3s (gone)");
    once__paused_text(&paused, ONCE_NO_TIME, text, sizeof text);
    assert_string_equal(text, "paused: pay (no answer), * (gone)");
    once__paused_text(&paused, ONCE_NO_TIME, text, 20);
    assert_string_equal(text, "paused: pay (no ans");
    const once_paused unmet = with("1000 0 2 breaker pay\tno answer\n");
    once__paused_text(&unmet, 66500, text, sizeof text);
    assert_string_equal(text, "paused: pay for 1m05s, tried with its next message (no answer)");
    once__paused_text(&(once_paused){0}, 1, text, sizeof text);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_line_is_a_handler),
        cmocka_unit_test(f93_whatever_else_the_store_has_ends_the_list),
        cmocka_unit_test(people_see_how_long_and_when_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
