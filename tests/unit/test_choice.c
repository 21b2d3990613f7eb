/* Choosing letters by their reason: how reasons are compared, and which letters a choice takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/choice.h"

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

/* From memory that ends where the text does, so that a look behind it is noticed. */
static void is_group(const char *reason, const char *expected)
{
    char group[ONCE_REASON_GROUP_MAX + 1];
    const size_t len = strlen(reason);
    char *copy = malloc(len + !len);
    assert_non_null(copy);
    memcpy(copy, reason, len);
    once_reason_group((once_bytes){copy, len}, group);
    free(copy);
    assert_string_equal(group, expected);
}

static void codes_stay_and_details_go(void **state)
{
    (void)state;
    is_group("exit status 7: HTTP 503 from 10.0.0.1:8080", "exit status 7: HTTP 503 from #:#");
    is_group("exit status 7", "exit status 7");
    is_group("SQLSTATE 23505: duplicate key 'a'", "SQLSTATE 23505: duplicate key ...");
    is_group("order 123456 of 12", "order # of 12");
    is_group("ORD00123 and utf8 and sha256", "ORD# and utf8 and sha256");
    is_group("550e8400-e29b-41d4-a716-446655440000", "#");
    is_group("deadbeef is a word, deadbee1 is none", "deadbeef is a word, # is none");
    is_group("2026-01-31T12:30:00.5Z, 2026-01-31 and 2026-01-31T", "#, # and #T");
    is_group("at 2026-01-31 12:30:00.125 UTC", "at # # UTC");
    is_group("text ends inside a value at byte 8", "text ends inside a value at byte #");
    is_group("1.5 of 2.25", "1.5 of 2.25");
    is_group("line 7, column 8, offset 9, position 10", "line #, column #, offset #, position #");
    is_group("deadbee1-- gone", "#-- gone");
}

static void quotes_are_values_and_apostrophes_are_not(void **state)
{
    (void)state;
    is_group("can't open 'x y'", "can't open ...");
    is_group("it's \"a 'b' c\"", "it's ...");
    is_group("no end of 'this", "no end of 'this");
    is_group("open 'it's' now", "open ... now");
    is_group("'", "'");
    is_group("''", "...");
}

static void whatever_it_is_it_is_plain_text(void **state)
{
    (void)state;
    is_group("", "(none)");
    is_group("a\x1b[2Jb\xff", "a?[2Jb?");
    is_group("key or version; the first one came from in.ndjson:7", "key or version");
    is_group("12.", "12.");
    is_group("10.0.0.", "10.0.0.");
    is_group("12:30:", "12:30:");
    is_group("1234", "#");
}

static void a_long_one_ends_with_a_whole_character(void **state)
{
    (void)state;
    char group[ONCE_REASON_GROUP_MAX + 1], text[400];
    for (size_t before = 0; before < 4; before++) {
        size_t len = before;
        memset(text, 'x', before);
        while (len + 3 <= sizeof text) {
            memcpy(text + len, "\xe2\x82\xac", 3);
            len += 3;
        }
        once_reason_group((once_bytes){text, len}, group);
        assert_int_equal(strlen(group), before + (ONCE_REASON_GROUP_MAX - before) / 3 * 3);
        assert_null(strchr(group, '?'));
    }
}

static void a_choice_is_of_everything_that_it_says(void **state)
{
    (void)state;
    const once_letter letter = {.scope = {.tenant = bytes("berlin"), .operation = bytes("charge")},
                                .reason = bytes("HTTP 503"),
                                .buried_ms = 10,
                                .message = {.type = bytes("pay")}};
    const once_choice all = {.since_ms = ONCE_NO_TIME, .until_ms = ONCE_NO_TIME};
    assert_true(once__choice_is_all(&all) && once__choice_has_letter(&all, &letter));
    const struct {
        once_bytes value;
        size_t at;
        bool fits;
    } rows[] = {
        {bytes("berlin"), offsetof(once_choice, tenant), true},
        {bytes("paris"), offsetof(once_choice, tenant), false},
        {bytes(""), offsetof(once_choice, tenant), false},
        {bytes("charge"), offsetof(once_choice, operation), true},
        {bytes("charg"), offsetof(once_choice, operation), false},
        {bytes("pay"), offsetof(once_choice, type), true},
        {bytes("p"), offsetof(once_choice, type), false},
        {bytes("TP 50"), offsetof(once_choice, reason), true},
        {bytes("TP 51"), offsetof(once_choice, reason), false},
        {bytes("HTTP 503"), offsetof(once_choice, group), true},
        {bytes("HTTP"), offsetof(once_choice, group), false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        once_choice choice = all;
        memcpy((char *)&choice + rows[i].at, &rows[i].value, sizeof(once_bytes));
        assert_false(once__choice_is_all(&choice));
        assert_int_equal(once__choice_has_letter(&choice, &letter), rows[i].fits);
    }
    const once_choice times[] = {{.since_ms = 11, .until_ms = ONCE_NO_TIME},
                                 {.since_ms = ONCE_NO_TIME, .until_ms = 10},
                                 {.since_ms = 10, .until_ms = 11}};
    for (size_t i = 0; i < 3; i++) assert_int_equal(once__choice_has_letter(&times[i], &letter), i == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_stay_and_details_go),
        cmocka_unit_test(quotes_are_values_and_apostrophes_are_not),
        cmocka_unit_test(whatever_it_is_it_is_plain_text),
        cmocka_unit_test(a_long_one_ends_with_a_whole_character),
        cmocka_unit_test(a_choice_is_of_everything_that_it_says),
    };
    return cmocka_run_group_tests_name("choice", tests, NULL, NULL);
}
