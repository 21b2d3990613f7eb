/* The watermark of finished deliveries, compared with a list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/watermark.h"
#include "testenv.h"

/* Deliveries have numbers with holes. */
static void deliver(once_watermark *mark, size_t n)
{
    assert_true(once_watermark_reserve(mark, n));
    for (size_t i = 0; i < n; i++) (void)once_watermark_begin(mark, 10 * mark->next, NULL);
}

static void it_stops_at_the_first_gap(void **state)
{
    (void)state;
    once_watermark mark;
    once_watermark_init(&mark);
    deliver(&mark, 4);
    once_watermark_end(&mark, 2, 0);
    once_watermark_end(&mark, 4, 0);
    assert_int_equal(mark.upto, 0);
    once_watermark_end(&mark, 1, 0);
    assert_int_equal(mark.upto, 2);
    assert_int_equal(once_watermark_at(&mark, 2)->delivery, 20);
    once_watermark_end(&mark, 3, 0);
    assert_int_equal(mark.upto, 4);
    once_watermark_release(&mark);
}

static void a_peek_changes_nothing(void **state)
{
    (void)state;
    once_watermark mark;
    once_watermark_init(&mark);
    deliver(&mark, 4);
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

/* As many as may be outstanding, in any order, round and round the ring, which grows on its way. */
static void any_order_ends_at_the_same_place(void **state)
{
    (void)state;
    enum { ALL = 5000 };
    static bool over[ALL + 1000];
    uint64_t random = 1, upto = 0;
    size_t outstanding = 7;
    once_watermark mark;
    once_watermark_init(&mark);
    while (upto < ALL) {
        if (upto > ALL / 2) outstanding = 100;
        deliver(&mark, outstanding - (size_t)(mark.next - 1 - upto));
        const uint64_t tag = upto + 1 + test_random(&random) % outstanding;
        if (over[tag]) continue;
        over[tag] = true;
        once_watermark_end(&mark, tag, 0);
        while (over[upto + 1]) upto++;
        assert_int_equal(mark.upto, upto);
        if (upto) assert_int_equal(once_watermark_at(&mark, upto)->delivery, 10 * upto);
        if (upto > 3) once_watermark_forget(&mark, upto - 1 - test_random(&random) % 2 * (upto - 1 > mark.kept));
    }
    assert_in_range(mark.size, 100, 256);
    once_watermark_release(&mark);
}

/* Also of one that waited behind a gap. */
static void how_long_ago_one_ended_is_known_until_it_is_forgotten(void **state)
{
    (void)state;
    once_watermark mark;
    once_watermark_init(&mark);
    deliver(&mark, 2);
    once_watermark_end(&mark, 2, 100);
    once_watermark_end(&mark, 1, 130);
    assert_int_equal(mark.upto, 2);
    assert_int_equal(once_delivery_age_ms(once_watermark_at(&mark, 1), 135), 5);
    assert_int_equal(once_delivery_age_ms(once_watermark_at(&mark, 2), 135), 35);
    once_watermark_release(&mark);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_stops_at_the_first_gap),
        cmocka_unit_test(a_peek_changes_nothing),
        cmocka_unit_test(any_order_ends_at_the_same_place),
        cmocka_unit_test(how_long_ago_one_ended_is_known_until_it_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
