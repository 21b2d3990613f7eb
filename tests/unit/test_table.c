/* The hash table, compared with arrays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/table.h"

enum { IDS = 300, STEPS = 200000 };

/* Many of them have the same home, or one beside it; the zero id is among them. */
static once_hash id_of(size_t i) { return i % 3 == 0 ? (once_hash){i, i} : (once_hash){i / 7, i << 40}; }

static void it_has_what_was_put_and_not_removed(void **state)
{
    (void)state;
    once_table table = {0};
    int values[2 * IDS];
    const int *in[IDS] = {NULL};
    uint32_t random = 12345;
    size_t n = 0;
    assert_null(once_table_get(&table, id_of(1)));
    assert_null(once_table_remove(&table, id_of(1)));
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525u + 1013904223u;
        const size_t i = (random >> 8) % IDS;
        const bool put = (random >> 28) < (step / (STEPS / 8) % 2 ? 5u : 11u); /* it grows and shrinks in turn */
        int *value = &values[i + (random >> 27) % 2 * IDS];
        const bool swap = put && (in[i] || 2 * table.n < table.size) && random & 1;
        once_table_expect(&table, id_of(i));
        if (in[i] && random & 2) assert_ptr_equal(once_table_add(&table, id_of(i), value), in[i]); /* it stays */
        if (swap && !in[i] && random & 2) assert_null(once_table_add(&table, id_of(i), value));
        else if (swap) assert_ptr_equal(once_table_swap(&table, id_of(i), value), in[i]);
        else if (put) assert_true(once_table_put(&table, id_of(i), value)); /* also again, with another value */
        else assert_ptr_equal(once_table_remove(&table, id_of(i)), in[i]);
        n += put && !in[i];
        n -= !put && in[i];
        in[i] = put ? value : NULL;
        assert_int_equal(table.n, n);
        const size_t other = (random >> 4) % IDS;
        assert_ptr_equal(once_table_get(&table, id_of(other)), in[other]);
    }
    for (size_t i = 0; i < IDS; i++) assert_ptr_equal(once_table_get(&table, id_of(i)), in[i]);
    once_table_release(&table);
}

static void each_value_comes_once(void **state)
{
    (void)state;
    once_table table = {0};
    int counts[IDS] = {0}, *value;
    size_t at = 0;
    assert_null(once_table_next(&table, &at));
    for (size_t i = 0; i < IDS; i++) assert_true(once_table_put(&table, id_of(i), &counts[i]));
    for (at = 0; (value = once_table_next(&table, &at));) ++*value;
    for (size_t i = 0; i < IDS; i++) assert_int_equal(counts[i], 1);
    once_table_release(&table);
}

static void positions_begin_with_zero(void **state)
{
    (void)state;
    once_table table = {0};
    size_t at = 77;
    assert_false(once_table_position(&table, id_of(0), &at));
    assert_int_equal(at, 77);
    for (size_t i = 0; i < IDS; i++) assert_true(once_table_put_position(&table, id_of(i), i));
    for (size_t i = 0; i < IDS; i++) {
        assert_true(once_table_position(&table, id_of(i), &at));
        assert_int_equal(at, i);
    }
    assert_true(once_table_put_position(&table, id_of(5), 500));
    assert_true(once_table_position(&table, id_of(5), &at) && at == 500);
    assert_int_equal(table.n, IDS);
    once_table_release(&table);
}

/* What was asked for is there: nothing is allocated any more, so nothing can fail. */
static void reserved_room_stays_where_it_is(void **state)
{
    (void)state;
    once_table table = {0};
    assert_true(once_table_reserve(&table, IDS));
    const once_table_slot *before = table.at;
    for (size_t i = 0; i < IDS; i++) assert_true(once_table_put_position(&table, id_of(i), i));
    for (size_t i = 0; i < IDS; i++) assert_true(once_table_put_position(&table, id_of(i), i + 1));
    assert_true(once_table_reserve(&table, 1));
    assert_ptr_equal(table.at, before);
    assert_true(table.n * 2 <= table.size);
    once_table_release(&table);
}

static void cleared_it_is_empty_and_keeps_what_is_usual(void **state)
{
    (void)state;
    once_table table = {0};
    for (size_t i = 0; i < IDS; i++) assert_true(once_table_put_position(&table, id_of(i), i));
    const size_t size = table.size;
    once_table_clear(&table, size);
    assert_int_equal(table.n, 0);
    assert_int_equal(table.size, size);
    for (size_t i = 0; i < IDS; i++) assert_null(once_table_get(&table, id_of(i)));
    assert_true(once_table_put_position(&table, id_of(0), 0));
    once_table_clear(&table, size - 1);
    assert_int_equal(table.size, 0);
    assert_null(once_table_get(&table, id_of(0)));
    assert_true(once_table_put_position(&table, id_of(0), 0));
    once_table_release(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_what_was_put_and_not_removed),
        cmocka_unit_test(each_value_comes_once),
        cmocka_unit_test(positions_begin_with_zero),
        cmocka_unit_test(reserved_room_stays_where_it_is),
        cmocka_unit_test(cleared_it_is_empty_and_keeps_what_is_usual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
