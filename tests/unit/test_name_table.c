/* Names in memory: each once, whatever way it came, as the text that is stored; and nothing of a text is trusted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "store/name_table.h"

static once_bytes text_of(const once_name *name) { return (once_bytes){name->text, name->len}; }

static void the_same_name_is_one(void **state)
{
    (void)state;
    once_name_table names = {0};
    const once_scope scope = {ONCE_BYTES("ann"), ONCE_BYTES("pay"), ONCE_BYTES("")};
    const once_scope other = {ONCE_BYTES("an"), ONCE_BYTES("npay"), ONCE_BYTES("")}; /* the same bytes in a row */
    const once_name *first = once__name_scope(&names, &scope), *second = once__name_scope(&names, &other);
    assert_ptr_not_equal(first, second);
    assert_ptr_equal(once__name_scope(&names, &scope), first);
    assert_ptr_equal(once__name_scope(&names, &other), second);
    assert_true(once_bytes_equal(second->scope.consumer, ONCE_BYTES("npay")));
    const once_name *place = once__name_place(&names, ONCE_BYTES("x")), *who = once__name_who(&names, ONCE_BYTES("x"));
    assert_ptr_not_equal(place, who);
    assert_ptr_equal(once__name_place(&names, ONCE_BYTES("x")), place);
    const once_name *run = once__name_run(&names, 7);
    assert_ptr_not_equal(once__name_run(&names, 8), run);
    assert_ptr_equal(once__name_run(&names, 7), run);
    assert_int_equal(names.n, 6);
    once__names_clear(&names);
    assert_int_equal(names.n, 0);
}

static void a_text_is_read_as_the_name_that_wrote_it(void **state)
{
    (void)state;
    once_name_table from = {0}, to = {0};
    const once_scope scope = {ONCE_BYTES(""), ONCE_BYTES("pay"), ONCE_BYTES("charge")};
    bool damaged;
    const once_name *read = once__name_read(&to, text_of(once__name_scope(&from, &scope)), &damaged);
    assert_false(damaged);
    assert_true(once_bytes_equal(read->scope.operation, scope.operation));
    assert_ptr_equal(once__name_scope(&to, &scope), read);
    assert_int_equal(once__name_read(&to, text_of(once__name_run(&from, UINT64_MAX)), &damaged)->run, UINT64_MAX);
    assert_true(once_bytes_equal(
        once__name_read(&to, text_of(once__name_place(&from, ONCE_BYTES("in.ndjson"))), &damaged)->bytes,
        ONCE_BYTES("in.ndjson")));
    once__names_clear(&from);
    once__names_clear(&to);
}

static void a_text_of_no_name_is_refused(void **state)
{
    (void)state;
    once_name_table names = {0};
    const once_bytes bad[] = {{0},
                              ONCE_BYTES("X"),
                              ONCE_BYTES("R1234567"),
                              ONCE_BYTES("R123456789"),
                              ONCE_BYTES("S\0\0\0\0\0\0\0\0\0\0\0"),
                              ONCE_BYTES("S\1\0\0\0\0\0\0\0\0\0\0\0"),
                              ONCE_BYTES("S\377\377\377\377\1\0\0\0\1\0\0\0x")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool damaged = false;
        assert_null(once__name_read(&names, bad[i], &damaged));
        assert_true(damaged);
    }
    assert_int_equal(names.n, 0);
}

static void a_number_leads_to_its_name(void **state)
{
    (void)state;
    once_name_table names = {0};
    once_name *run = once__name_run(&names, 1), *place = once__name_place(&names, ONCE_BYTES("p"));
    assert_null(once__name_numbered(&names, 3));
    assert_true(once__name_set_number(&names, run, 3));
    assert_true(once__name_set_number(&names, place, INT64_MIN));
    assert_ptr_equal(once__name_numbered(&names, 3), run);
    assert_ptr_equal(once__name_numbered(&names, INT64_MIN), place);
    assert_int_equal(run->number, 3);
    once__names_clear(&names);
    assert_null(once__name_numbered(&names, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_name_is_one),
        cmocka_unit_test(a_text_is_read_as_the_name_that_wrote_it),
        cmocka_unit_test(a_text_of_no_name_is_refused),
        cmocka_unit_test(a_number_leads_to_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
