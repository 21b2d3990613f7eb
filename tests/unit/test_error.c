/* Status codes with their names, texts and classes; errors that carry a text. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/no_memory.h"
#include "once/types.h"

static void every_status_has_a_name_a_text_and_a_class(void **state)
{
    (void)state;
#define ROW(name, value, class_, text)                                                                                 \
    assert_string_equal(once_status_name(value), #name);                                                               \
    assert_string_equal(once_status_text(value), text);                                                                \
    assert_int_equal(once_status_class(value), ONCE_CLASS_##class_);
    ONCE_STATUS_MAP(ROW)
#undef ROW
}

static void a_foreign_number_is_fatal(void **state)
{
    (void)state;
    assert_string_equal(once_status_name(12345), "?");
    assert_int_equal(once_status_class(12345), ONCE_CLASS_FATAL);
    assert_int_equal(once_status_class(INT_MIN), ONCE_CLASS_FATAL);
    assert_string_equal(once_status_text(1), "unknown status");
}

static void fail_fills_and_returns(void **state)
{
    (void)state;
    once_error err = {0};
    assert_int_equal(once_fail(&err, ONCE_E_BUSY, "cannot open '%s'; wait %d s", "a.db", 5), ONCE_E_BUSY);
    assert_int_equal(err.status, ONCE_E_BUSY);
    assert_string_equal(err.text, "cannot open 'a.db'; wait 5 s");
    assert_int_equal(once_fail(NULL, ONCE_E_IO, "nobody listens"), ONCE_E_IO);
}

static void fail_may_quote_its_own_text(void **state)
{
    (void)state;
    once_error err = {0};
    once_fail(&err, ONCE_E_IO, "disk gone");
    once_fail(&err, ONCE_E_UNAVAILABLE, "store 'x': %s", err.text);
    assert_string_equal(err.text, "store 'x': disk gone");
}

static void no_memory_says_what_for(void **state)
{
    (void)state;
    once_error err = {0};
    assert_int_equal(once_no_memory(&err, "for a line of '%s'", "in.ndjson"), ONCE_E_NOMEM);
    assert_int_equal(err.status, ONCE_E_NOMEM);
    assert_string_equal(err.text, "out of memory for a line of 'in.ndjson'");
    char name[2 * sizeof err.text];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    once_no_memory(&err, "for %s", name);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(once_no_memory(NULL, "for nobody"), ONCE_E_NOMEM);
}

static void bytes_are_equal_by_content(void **state)
{
    (void)state;
    const char text[] = "ab\0cab\0d";
    assert_true(once_bytes_equal((once_bytes){text, 3}, (once_bytes){text + 4, 3}));
    assert_false(once_bytes_equal((once_bytes){text, 4}, (once_bytes){text + 4, 4}));
    assert_false(once_bytes_equal((once_bytes){text, 2}, (once_bytes){text, 3}));
    assert_true(once_bytes_equal((once_bytes){0}, (once_bytes){text, 0}));
}

static void text_is_one_line(void **state)
{
    (void)state;
    once_error err = {0};
    once_fail(&err, ONCE_E_SCHEMA, "ERROR:  no table\nLINE 1: select\t1\r\n");
    assert_string_equal(err.text, "ERROR:  no table LINE 1: select 1");
    once_fail(&err, ONCE_E_CONFIG, "%s",
              "a\x1b[2J\x7f"
              "b\xc2\x9b"
              "31m\xc2\xa0\xc2z"); /* nothing that steers a terminal */
    assert_string_equal(err.text, "a [2J b 31m\xc2\xa0 z");
    once_fail(&err, ONCE_E_CONFIG, "%s",
              "pay \xe2\x80\xae"
              "001"
              "\xe2\x81\xa9 to \xe2\x80\x9c"
              "x\xe2\x80\x9d"); /* nor what turns a line around */
    assert_string_equal(err.text, "pay  001  to \xe2\x80\x9c"
                                  "x\xe2\x80\x9d");
}

static void long_text_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t lead = 0; lead < 4; lead++) { /* the cut falls on each byte of a character in turn */
        once_error err = {0};
        char text[1200];
        memset(text, 'x', lead);
        for (size_t i = lead; i + 3 <= sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 3);
        once_fail(&err, ONCE_E_MESSAGE, "%.*s", (int)sizeof text - 6, text);
        size_t len = strlen(err.text);
        assert_in_range(len, sizeof err.text - 4, sizeof err.text - 1);
        assert_int_equal((len - lead) % 3, 0);
    }
}

static void outcomes_have_their_names(void **state)
{
    (void)state;
    assert_string_equal(once_outcome_name(ONCE_DONE), "done");
    assert_string_equal(once_outcome_name(ONCE_DEAD), "dead");
#define ROW(name, text) assert_string_equal(once_outcome_name(ONCE_##name), text);
    ONCE_OUTCOME_MAP(ROW)
#undef ROW
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_a_text_and_a_class),
        cmocka_unit_test(a_foreign_number_is_fatal),
        cmocka_unit_test(fail_fills_and_returns),
        cmocka_unit_test(fail_may_quote_its_own_text),
        cmocka_unit_test(no_memory_says_what_for),
        cmocka_unit_test(bytes_are_equal_by_content),
        cmocka_unit_test(text_is_one_line),
        cmocka_unit_test(long_text_is_cut_between_characters),
        cmocka_unit_test(outcomes_have_their_names),
    };
    return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
