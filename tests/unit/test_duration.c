/* Durations and times as text: what is read, what is refused, and how they are written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/duration.h"

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static int64_t duration(const char *text)
{
    int64_t ms = -7;
    once_error err = {0};
    if (once_duration_parse(bytes(text), &ms, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_int_equal(err.status, ONCE_OK);
    return ms;
}

static void refuses_duration(const char *text, const char *why)
{
    int64_t ms = -7;
    once_error err = {0};
    assert_int_equal(once_duration_parse(bytes(text), &ms, &err), ONCE_E_USAGE);
    assert_int_equal(ms, -7);
    if (!strstr(err.text, why)) fail_msg("'%s' gave '%s'", text, err.text);
    assert_int_equal(once_duration_parse(bytes(text), &ms, NULL), ONCE_E_USAGE);
}

static void f18_every_unit_becomes_milliseconds(void **state)
{
    (void)state;
    assert_int_equal(duration("200ms"), 200);
    assert_int_equal(duration("10s"), 10000);
    assert_int_equal(duration("5m"), 300000);
    assert_int_equal(duration("1h"), 3600000);
    assert_int_equal(duration("7d"), 604800000);
    assert_int_equal(duration("0s"), 0);
    assert_int_equal(duration("007s"), 7000);
    assert_int_equal(duration("forever"), ONCE_FOREVER);
}

static void f67_a_wrong_unit_is_named(void **state)
{
    (void)state;
    refuses_duration("", "duration is empty");
    refuses_duration("10", "duration '10' has no unit");
    refuses_duration("0", "has no unit");
    refuses_duration("10x", "unknown unit 'x'");
    refuses_duration("10 s", "unknown unit ' s'");
    refuses_duration("10S", "unknown unit 'S'");
    refuses_duration("1h30m", "unknown unit 'h30m'");
    refuses_duration("10msx", "unknown unit 'msx'");
    refuses_duration("1.5s", "not a whole number");
    refuses_duration("s", "'s' is not a duration");
    refuses_duration("+5s", "is not a duration");
    refuses_duration(" 5s", "is not a duration");
    refuses_duration("Forever", "is not a duration");
    refuses_duration("forevers", "is not a duration");
    int64_t ms;
    assert_int_equal(once_duration_parse((once_bytes){"5s\0", 3}, &ms, NULL), ONCE_E_USAGE);
    assert_int_equal(once_duration_parse((once_bytes){NULL, 0}, &ms, NULL), ONCE_E_USAGE);
    assert_int_equal(once_duration_parse((once_bytes){"5seconds", 2}, &ms, NULL), ONCE_OK); /* only its own bytes */
    assert_int_equal(ms, 5000);
}

static void f21_negative_and_too_long_are_refused(void **state)
{
    (void)state;
    refuses_duration("-1s", "duration '-1s' is negative");
    refuses_duration("-", "negative");
    assert_int_equal(duration("9223372036854775806ms"), INT64_MAX - 1);
    refuses_duration("9223372036854775807ms", "too long"); /* would read as forever */
    refuses_duration("9223372036854775808ms", "too long");
    refuses_duration("18446744073709551617ms", "too long");
    refuses_duration("99999999999999999999999999999999999999s", "too long");
    assert_int_equal(duration("106751991167d"), INT64_C(106751991167) * 86400000);
    refuses_duration("106751991168d", "too long");
}

static void durations_are_written_in_their_largest_unit(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "0ms",    "1ms", "999ms", "1001ms", "1s", "90s", "1m", "1h", "23h", "1d", "7d", "36h", "9223372036854775806ms",
        "forever"};
    char out[ONCE_DURATION_TEXT];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_string_equal(once_duration_format(duration(texts[i]), out), texts[i]);
    assert_string_equal(once_duration_format(60000, out), "1m");
    assert_string_equal(once_duration_format(86400000, out), "1d");
    assert_string_equal(once_duration_about(-5, out), "0s");
    assert_string_equal(once_duration_about(4999, out), "4s");
    assert_string_equal(once_duration_about(65000, out), "1m05s");
    assert_string_equal(once_duration_about(7260000, out), "2h01m");
}

static int64_t time_of(const char *text)
{
    int64_t ms = -7;
    once_error err = {0};
    if (once_time_parse(bytes(text), &ms, &err) != ONCE_OK) fail_msg("%s", err.text);
    return ms;
}

static void refuses_time(const char *text)
{
    int64_t ms = -7;
    once_error err = {0};
    if (once_time_parse(bytes(text), &ms, &err) != ONCE_E_USAGE) fail_msg("'%s' was taken", text);
    assert_int_equal(ms, -7);
    assert_non_null(strstr(err.text, text));
}

static void rfc3339_examples(void **state)
{
    (void)state;
    assert_int_equal(time_of("1970-01-01T00:00:00Z"), 0);
    assert_int_equal(time_of("1985-04-12T23:20:50.52Z"), INT64_C(482196050520));
    assert_int_equal(time_of("1996-12-19T16:39:57-08:00"), INT64_C(851042397000));
    assert_int_equal(time_of("1937-01-01T12:00:27.87+00:20"), INT64_C(-1041337172130));
    assert_int_equal(time_of("2000-02-29T00:00:00z"), INT64_C(951782400000));
    assert_int_equal(time_of("2000-02-29 00:00:00Z"), INT64_C(951782400000));
    assert_int_equal(time_of("2000-02-29t00:00:00-00:00"), INT64_C(951782400000));
    assert_int_equal(time_of("1990-12-31T23:59:60Z"), time_of("1991-01-01T00:00:00Z"));
    assert_int_equal(time_of("1969-12-31T23:59:59.9999999999Z"), -1);
    assert_int_equal(time_of("2026-01-31T12:00:00.001Z") - time_of("2026-01-31T12:00:00Z"), 1);
    assert_int_equal(time_of("0000-01-01T00:00:00Z"), INT64_C(-62167219200000));
    assert_int_equal(time_of("9999-12-31T23:59:59.999Z"), INT64_C(253402300799999));
}

static void epoch_milliseconds(void **state)
{
    (void)state;
    assert_int_equal(time_of("0"), 0);
    assert_int_equal(time_of("-1"), -1);
    assert_int_equal(time_of("1769860800000"), INT64_C(1769860800000));
    assert_int_equal(time_of("9223372036854775807"), INT64_MAX);
    refuses_time("9223372036854775808");
    refuses_time("-99999999999999999999");
}

static void what_is_not_a_time(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "-",
        "now",
        "+5",
        "1.5",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-1-31T12:00:00Z",
        "26-01-31T12:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00,5Z",
        "2026-01-31T12:00:00ZZ",
        "2026-01-31T12:00:00Z ",
        "2026-01-31T12:00:00+1:00",
        "2026-01-31T12:00:00+0100",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+01:60",
        "2026-01-31X12:00:00Z",
        "-026-01-31T12:00:00Z",
        " 2026-01-31T12:00:00Z",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) refuses_time(texts[i]);
    int64_t ms;
    assert_int_equal(once_time_parse((once_bytes){"2026-01-31T12:00:00\0", 20}, &ms, NULL), ONCE_E_USAGE);
    assert_int_equal(once_time_parse((once_bytes){NULL, 0}, &ms, NULL), ONCE_E_USAGE);
}

static void times_are_written_and_read_back(void **state)
{
    (void)state;
    char out[ONCE_TIME_TEXT];
    assert_string_equal(once_time_format(0, out), "1970-01-01T00:00:00.000Z");
    assert_string_equal(once_time_format(-1, out), "1969-12-31T23:59:59.999Z");
    assert_string_equal(once_time_format(INT64_C(951782400000), out), "2000-02-29T00:00:00.000Z");
    assert_string_equal(once_time_format(INT64_C(253402300800000), out), "253402300800000");
    assert_string_equal(once_time_format(INT64_MAX, out), "9223372036854775807");
    assert_string_equal(once_time_format(ONCE_NO_TIME, out), "-");
    const int64_t step_ms = INT64_C(82800777) * 997; /* some years, each time at another time of day */
    for (int64_t ms = INT64_C(-62167219200000); ms < INT64_C(253402300800000); ms += step_ms)
        assert_int_equal(time_of(once_time_format(ms, out)), ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f18_every_unit_becomes_milliseconds),
        cmocka_unit_test(f67_a_wrong_unit_is_named),
        cmocka_unit_test(f21_negative_and_too_long_are_refused),
        cmocka_unit_test(durations_are_written_in_their_largest_unit),
        cmocka_unit_test(rfc3339_examples),
        cmocka_unit_test(epoch_milliseconds),
        cmocka_unit_test(what_is_not_a_time),
        cmocka_unit_test(times_are_written_and_read_back),
    };
    return cmocka_run_group_tests_name("duration", tests, NULL, NULL);
}
