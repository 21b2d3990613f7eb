/* Which deliveries are over, against a list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/watermark.h"
#include "testenv.h"

static void it_stops_at_the_first_gap(void **state)
{
    (void)state;
    once_watermark mark;
    assert_true(once_watermark_init(&mark, 4));
    once_watermark_end(&mark, 2, 0);
    once_watermark_end(&mark, 4, 0);
    assert_int_equal(mark.upto, 0);
    once_watermark_end(&mark, 1, 0);
    assert_int_equal(mark.upto, 2);
    once_watermark_end(&mark, 3, 0);
    assert_int_equal(mark.upto, 4);
    once_watermark_release(&mark);
}

static void a_peek_changes_nothing(void **state)
{
    (void)state;
    once_watermark mark;
    assert_true(once_watermark_init(&mark, 4));
    once_watermark_end(&mark, 2, 0);
    once_watermark_peek(&mark, 1, true);
    once_watermark_peek(&mark, 4, true);
    assert_int_equal(once_watermark_peeked(&mark), 2);
    once_watermark_peek(&mark, 1, false);
    once_watermark_peek(&mark, 4, false);
    assert_int_equal(once_watermark_peeked(&mark), 0);
    assert_int_equal(mark.upto, 0);
    once_watermark_end(&mark, 1, 0);
    assert_int_equal(mark.upto, 2);
    once_watermark_release(&mark);
}

/* As many as may be outstanding, in any order, round and round the ring. */
static void any_order_ends_at_the_same_place(void **state)
{
    (void)state;
    enum { OUTSTANDING = 7, ALL = 5000 };
    static bool over[ALL + OUTSTANDING + 2];
    uint64_t random = 1, upto = 0;
    once_watermark mark;
    assert_true(once_watermark_init(&mark, OUTSTANDING));
    while (upto < ALL) {
        const uint64_t ticket = upto + 1 + test_random(&random) % OUTSTANDING;
        if (over[ticket]) continue;
        over[ticket] = true;
        once_watermark_end(&mark, ticket, 0);
        while (over[upto + 1]) upto++;
        assert_int_equal(mark.upto, upto);
    }
    once_watermark_release(&mark);
}

/* Also of one that waited behind a gap, and where the clock passes 32 bits of it. */
static void how_long_ago_one_ended_is_known_until_the_ring_comes_round(void **state)
{
    (void)state;
    const int64_t begin_ms = (INT64_C(1) << 32) - 10;
    once_watermark mark;
    assert_true(once_watermark_init(&mark, 4));
    once_watermark_end(&mark, 2, begin_ms);
    once_watermark_end(&mark, 1, begin_ms + 30);
    assert_int_equal(mark.upto, 2);
    assert_int_equal(once_watermark_age_ms(&mark, 1, begin_ms + 35), 5);
    assert_int_equal(once_watermark_age_ms(&mark, 2, begin_ms + 35), 35);
    once_watermark_release(&mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_stops_at_the_first_gap),
        cmocka_unit_test(a_peek_changes_nothing),
        cmocka_unit_test(any_order_ends_at_the_same_place),
        cmocka_unit_test(how_long_ago_one_ended_is_known_until_the_ring_comes_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
