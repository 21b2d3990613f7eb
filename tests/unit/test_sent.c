/* When a message says that it was sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/sent.h"

static once_bytes text(const char *s) { return (once_bytes){s, strlen(s)}; }

static void reads(const char *s, once_time_unit unit, int64_t want_ms)
{
    once_error err = {0};
    int64_t ms = -1;
    if (once_sent_read(text(s), unit, &ms, &err) != ONCE_OK) fail_msg("'%s': %s", s, err.text);
    assert_int_equal(ms, want_ms);
}

static void refuses(const char *s, once_time_unit unit, const char *words)
{
    once_error err = {0};
    int64_t ms = -1;
    assert_int_equal(once_sent_read(text(s), unit, &ms, &err), ONCE_E_MESSAGE);
    assert_int_equal(ms, -1);
    if (!strstr(err.text, words)) fail_msg("'%s' is not in '%s'", words, err.text);
}

static void a_number_counts_its_unit(void **state)
{
    (void)state;
    reads("1700000000123", ONCE_UNIT_MS, 1700000000123);
    reads("1700000000", ONCE_UNIT_S, 1700000000000);
    reads("1700000000.5", ONCE_UNIT_S, 1700000000500);
    reads("1700000000.1239", ONCE_UNIT_S, 1700000000123);
    reads("1700000000123456", ONCE_UNIT_US, 1700000000123);
    reads("1700000000123456789", ONCE_UNIT_NS, 1700000000123);
    reads("1700000000123.75", ONCE_UNIT_MS, 1700000000123);
    reads("17e8", ONCE_UNIT_S, 1700000000000);
    reads("1.7E+9", ONCE_UNIT_S, 1700000000000);
    reads("17000000000e-1", ONCE_UNIT_S, 1700000000000);
    reads("-1.5", ONCE_UNIT_S, -1500);
    reads("0", ONCE_UNIT_NS, 0);
    reads("0e99999999999", ONCE_UNIT_S, 0);
    reads("1e-99999999999", ONCE_UNIT_S, 0);
    reads("000001700000000.000000000000000000000000001", ONCE_UNIT_S, 1700000000000);
}

static void rfc_3339_has_no_unit(void **state)
{
    (void)state;
    for (once_time_unit unit = 0; unit < ONCE_UNITS; unit++) reads("2023-11-14T22:13:20Z", unit, 1700000000000);
}

static void what_is_no_time_is_said(void **state)
{
    (void)state;
    static const char *const none[] = {"",   "-",    ".",   "1.",       ".5",         "1e",  "1e+", "+1", "1 ",
                                       " 1", "0x10", "1,5", "tomorrow", "2023-11-14", "nan", "inf", "--1"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        refuses(none[i], ONCE_UNIT_S, "is neither RFC 3339 nor a number of seconds since 1970");
    refuses("\x1b[2J", ONCE_UNIT_MS, "'?[2J'");
    refuses("0000-12-31T23:59:59Z", ONCE_UNIT_MS, "is not in the years 1 to 9999");
}

static void a_time_that_cannot_be_names_the_unit_that_was_meant(void **state)
{
    (void)state;
    refuses("1700000000000", ONCE_UNIT_S,
            "1700000000000 s, is not in the years 1 to 9999; as milliseconds it would be 2023-11-14T22:13:20.000Z: say "
            "'unit: ms'");
    refuses("1700000000000000", ONCE_UNIT_MS, "as microseconds it would be 2023-11-14T22:13:20.000Z: say 'unit: us'");
    refuses("1700000000000000000", ONCE_UNIT_MS, "as nanoseconds it would be 2023-11-14T22:13:20.000Z: say 'unit: ns'");
    refuses("1e400", ONCE_UNIT_S, "1e400 s, is not in the years 1 to 9999");
    refuses("99999999999999999999999999", ONCE_UNIT_NS, "is not in the years 1 to 9999");
    once_error err = {0};
    int64_t ms;
    assert_int_equal(once_sent_read_number(INT64_MAX, ONCE_UNIT_S, &ms, &err), ONCE_E_MESSAGE);
    assert_int_equal(once_sent_read_number(INT64_MIN, ONCE_UNIT_MS, &ms, &err), ONCE_E_MESSAGE);
    assert_int_equal(once_sent_read_number(1700000000, ONCE_UNIT_S, &ms, &err), ONCE_OK);
    assert_int_equal(ms, 1700000000000);
}

static void too_old(int64_t sent_ms, const char *raw, once_time_unit unit, const char *words)
{
    once_arena arena = {0};
    once_bytes out;
    assert_true(once_sent_too_old(sent_ms, text(raw), unit, 7 * 86400000, &arena, &out));
    char shown[500];
    snprintf(shown, sizeof shown, "%.*s", (int)out.len, out.data);
    assert_string_equal(shown, words);
    once_arena_release(&arena);
}

static void too_old_shows_the_time_that_was_read(void **state)
{
    (void)state;
    too_old(
        1700000000000, "1700000000000", ONCE_UNIT_MS,
        "too old: sent 2023-11-14T22:13:20.000Z, from 1700000000000 milliseconds, and messages are remembered for 7d");
    too_old(
        1700000000000, "2023-11-14T23:13:20+01:00", ONCE_UNIT_S,
        "too old: sent 2023-11-14T22:13:20.000Z, from '2023-11-14T23:13:20+01:00', and messages are remembered for 7d");
    too_old(1700000000000, "", ONCE_UNIT_MS,
            "too old: sent 2023-11-14T22:13:20.000Z, and messages are remembered for 7d");
    too_old(1700000000, "1700000000", ONCE_UNIT_MS,
            "too old: sent 1970-01-20T16:13:20.000Z, from 1700000000 milliseconds, and messages are remembered for 7d; "
            "as seconds "
            "it would be 2023-11-14T22:13:20.000Z: "
            "say 'unit: s' in 'time' if that is meant");
    too_old(0, "0", ONCE_UNIT_MS,
            "too old: sent 1970-01-01T00:00:00.000Z, from 0 milliseconds, and messages are remembered for 7d");
    too_old(-62135596800000, "-62135596800000", ONCE_UNIT_MS,
            "too old: sent 0001-01-01T00:00:00.000Z, from -62135596800000 milliseconds, and messages are remembered "
            "for 7d");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_counts_its_unit),
        cmocka_unit_test(rfc_3339_has_no_unit),
        cmocka_unit_test(what_is_no_time_is_said),
        cmocka_unit_test(a_time_that_cannot_be_names_the_unit_that_was_meant),
        cmocka_unit_test(too_old_shows_the_time_that_was_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
