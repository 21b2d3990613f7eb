/* Buffers: growth, the exact maximum, failures that stick, JSON text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static void appends_grow_and_stay_terminated(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 100000);
    assert_null(buf.data);
    for (int i = 0; i < 10000; i++) {
        assert_true(once_buf_append(&buf, "abc", 3));
        assert_int_equal(buf.data[buf.len], '\0');
    }
    assert_int_equal(buf.len, 30000);
    assert_memory_equal(buf.data + 29997, "abc", 4);
    assert_true(once_buf_append(&buf, NULL, 0));
    once_buf_release(&buf);
    assert_null(buf.data);
    assert_true(once_buf_puts(&buf, "again")); /* usable after release, with its maximum */
    assert_int_equal(buf.max, 100000);
    once_buf_release(&buf);
}

static void the_maximum_is_exact_and_failure_sticks(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 5);
    assert_true(once_buf_puts(&buf, "12345"));
    assert_false(once_buf_puts(&buf, "6"));
    assert_true(buf.failed);
    assert_string_equal(buf.data, "12345");
    assert_false(once_buf_append(&buf, "", 0));
    assert_false(once_buf_printf(&buf, "%s", ""));
    assert_false(once_buf_reserve(&buf, 0));
    once_buf_clear(&buf);
    assert_false(buf.failed);
    assert_true(once_buf_puts(&buf, "54321"));
    once_buf_release(&buf);
}

static void a_failed_append_adds_nothing(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 8);
    once_buf_puts(&buf, "abc");
    assert_false(once_buf_printf(&buf, "%s", "123456"));
    assert_int_equal(buf.len, 3);
    assert_string_equal(buf.data, "abc");
    once_buf_release(&buf);
}

static void printf_of_every_length_around_the_capacity(void **state)
{
    (void)state;
    char text[201];
    memset(text, 'y', 200);
    text[200] = '\0';
    for (int len = 0; len <= 200; len++) {
        once_buf buf;
        once_buf_init(&buf, 400);
        once_buf_puts(&buf, "x");
        assert_true(once_buf_printf(&buf, "%.*s", len, text));
        assert_int_equal(buf.len, (size_t)len + 1);
        assert_int_equal(strlen(buf.data), (size_t)len + 1);
        once_buf_release(&buf);
    }
}

static void a_reserve_beyond_all_bounds_is_refused(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 100);
    once_buf_puts(&buf, "x");
    assert_false(once_buf_reserve(&buf, SIZE_MAX));
    once_buf_release(&buf);
}

static void assert_json(const char *text, size_t len, const char *expected)
{
    once_buf buf;
    once_buf_init(&buf, 1000);
    assert_true(once_buf_json(&buf, (once_bytes){text, len}));
    assert_string_equal(buf.data, expected);
    once_buf_release(&buf);
}
#define ASSERT_JSON(literal, expected) assert_json(literal, sizeof(literal) - 1, expected)

static void json_escapes(void **state)
{
    (void)state;
    assert_json(NULL, 0, "\"\"");
    ASSERT_JSON("plain", "\"plain\"");
    ASSERT_JSON("a\"b\\c/d", "\"a\\\"b\\\\c/d\"");
    ASSERT_JSON("\n\r\t\b\x1f\x7f", "\"\\n\\r\\t\\u0008\\u001f\\u007f\"");
    ASSERT_JSON("\xc2\x80\xc2\x9b\xc2\xa0", "\"\\u0080\\u009b\xc2\xa0\"");
    ASSERT_JSON("\xd8\x9c\xe2\x80\x8f\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6\xe2\x81\xa9",
                "\"\\u061c\\u200f\\u2028\\u202e\\u2066\\u2069\""); /* the direction of a line */
    ASSERT_JSON("\xd8\x9b\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xa5\xf0\x9f\x8d\x8e",
                "\"\xd8\x9b\xe2\x80\x90\xe2\x80\xaf\xe2\x81\xa5\xf0\x9f\x8d\x8e\"");
    ASSERT_JSON("a\0b", "\"a\\u0000b\"");
    ASSERT_JSON("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

#define U_FFFD "\xef\xbf\xbd"

static void json_replaces_what_is_not_utf8(void **state)
{
    (void)state;
    ASSERT_JSON("\xff", "\"" U_FFFD "\"");
    ASSERT_JSON("a\x80z", "\"a" U_FFFD "z\"");
    ASSERT_JSON("\xc0\xaf", "\"" U_FFFD U_FFFD "\"");                         /* overlong */
    ASSERT_JSON("\xe0\x80\xaf", "\"" U_FFFD U_FFFD U_FFFD "\"");              /* overlong */
    ASSERT_JSON("\xed\xa0\x80", "\"" U_FFFD U_FFFD U_FFFD "\"");              /* a surrogate */
    ASSERT_JSON("\xf4\x90\x80\x80z", "\"" U_FFFD U_FFFD U_FFFD U_FFFD "z\""); /* past U+10FFFF */
    ASSERT_JSON("\xe2\x82", "\"" U_FFFD "\"");                                /* broken off at the end */
    ASSERT_JSON("\xf0\x9f\x98\"", "\"" U_FFFD "\\\"\"");                      /* broken off by a quote, which is kept */
    ASSERT_JSON("\xe2\x82\xe2\x82\xac", "\"" U_FFFD "\xe2\x82\xac\"");
}

static void json_keeps_the_maximum(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 6);
    assert_true(once_buf_json(&buf, ONCE_BYTES("abcd")));
    once_buf_clear(&buf);
    assert_false(once_buf_json(&buf, ONCE_BYTES("abcde")));
    once_buf_clear(&buf);
    assert_false(once_buf_json(&buf, ONCE_BYTES("\n\n\n")));
    once_buf_release(&buf);
}

static void numbers_are_written_as_printf_writes_them(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {0, 1, 9, 10, 99, 100, 4294967295, 10000000000000000000u, UINT64_MAX};
    once_buf buf;
    char expected[40], room[ONCE_DIGITS];
    once_buf_init(&buf, 20);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const int len = snprintf(expected, sizeof expected, "%llu", (unsigned long long)numbers[i]);
        once_buf_clear(&buf);
        assert_true(once_buf_number(&buf, numbers[i]));
        assert_int_equal(buf.len, len);
        assert_string_equal(buf.data, expected);
        assert_string_equal(once_digits(numbers[i], room).data, expected);
    }
    assert_false(once_buf_number(&buf, 1)); /* the maximum */
    once_buf_release(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_grow_and_stay_terminated),
        cmocka_unit_test(the_maximum_is_exact_and_failure_sticks),
        cmocka_unit_test(a_failed_append_adds_nothing),
        cmocka_unit_test(printf_of_every_length_around_the_capacity),
        cmocka_unit_test(numbers_are_written_as_printf_writes_them),
        cmocka_unit_test(a_reserve_beyond_all_bounds_is_refused),
        cmocka_unit_test(json_escapes),
        cmocka_unit_test(json_replaces_what_is_not_utf8),
        cmocka_unit_test(json_keeps_the_maximum),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
