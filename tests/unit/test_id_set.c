/* A set of ids, compared with an array of flags. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/id_set.h"

enum { IDS = 300, STEPS = 200000 };

/* Many of them have the same home, or one beside it. */
static once_hash id_of(unsigned i) { return (once_hash){i % 3 == 0 ? 63 : i / 7, i + 1}; }

static void it_is_what_was_put_and_not_taken(void **state)
{
    (void)state;
    once_id_set set = {0};
    bool in[IDS] = {false};
    uint32_t random = 12345;
    size_t n = 0;
    assert_false(once_id_set_remove(&set, id_of(1)));
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525u + 1013904223u;
        const unsigned i = (random >> 8) % IDS;
        const bool add = (random >> 28) < (step / (STEPS / 8) % 2 ? 5u : 11u); /* it grows and shrinks in turn */
        if (add) assert_int_equal(once_id_set_add(&set, id_of(i)), !in[i]);
        else assert_int_equal(once_id_set_remove(&set, id_of(i)), in[i]);
        n += add && !in[i];
        n -= !add && in[i];
        in[i] = add;
        assert_int_equal(set.ids.n, n);
    }
    for (unsigned i = 0; i < IDS; i++) assert_int_equal(once_id_set_remove(&set, id_of(i)), in[i]);
    assert_int_equal(set.ids.n, 0);
    once_id_set_release(&set);
}

static void zero_is_not_kept(void **state)
{
    (void)state;
    once_id_set set = {0};
    assert_true(once_id_set_add(&set, (once_hash){0}) && once_id_set_add(&set, (once_hash){0}));
    assert_false(once_id_set_remove(&set, (once_hash){0}));
    once_id_set_release(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_what_was_put_and_not_taken),
        cmocka_unit_test(zero_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
