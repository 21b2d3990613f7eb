/* Deliveries with single acks, compared with a list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/stream.h"
#include "testenv.h"

enum { MOST = 300 };

/* What there should be: deliveries in the order in which they came. */
typedef struct listed {
    uint64_t tag, delivery;
    bool over;
} listed;

static void assert_same(const once_deliveries *open, const listed *list, size_t n)
{
    uint64_t tag = open->first, before = 0;
    size_t over = 0;
    for (size_t i = 0; i < n; i++) {
        const once_open_delivery *d = once_deliveries_at(open, tag);
        assert_int_equal(tag, list[i].tag);
        assert_int_equal(d->state.delivery, list[i].delivery);
        assert_int_equal(d->state.over, list[i].over);
        assert_int_equal(d->before, before);
        over += list[i].over;
        before = tag;
        tag = d->after;
    }
    assert_int_equal(tag, 0);
    assert_int_equal(open->last, before);
    assert_int_equal(open->n, n);
    assert_int_equal(open->over, over);
}

/* The first one is never over; any of the others ends and is acked, and there is no more room than for those that are
 * there at a time. */
static void any_order_keeps_the_order_of_those_that_are_left(void **state)
{
    (void)state;
    once_deliveries open = {0};
    static listed list[MOST];
    uint64_t random = 1, delivered = 0;
    size_t n = 0;
    for (int step = 0; step < 20000; step++) {
        if (n < 2 || (n < MOST && test_random(&random) % 2)) {
            assert_true(once_deliveries_reserve(&open, 1));
            delivered += 10;
            list[n++] = (listed){once_deliveries_begin(&open, delivered, NULL), delivered, false};
            continue;
        }
        const size_t i = 1 + test_random(&random) % (n - 1);
        if (!list[i].over) {
            once_deliveries_end(&open, list[i].tag, 0);
            list[i].over = true;
        } else {
            once_deliveries_forget(&open, list[i].tag);
            n--;
            for (size_t k = i; k < n; k++) list[k] = list[k + 1];
        }
        if (step % 16 == 0) assert_same(&open, list, n);
    }
    assert_same(&open, list, n);
    assert_in_range(open.size, 16, 512);
    assert_int_equal(list[0].delivery, 10);
    once_deliveries_release(&open);
}

static void acks_wait_in_the_order_of_the_ends(void **state)
{
    (void)state;
    once_deliveries open = {0};
    uint64_t tags[3];
    assert_true(once_deliveries_reserve(&open, 3));
    for (size_t i = 0; i < 3; i++) tags[i] = once_deliveries_begin(&open, i, NULL);
    for (size_t i = 3; i > 0; i--) {
        once_deliveries_end(&open, tags[i - 1], 100);
        once_deliveries_list(&open, tags[i - 1]);
    }
    assert_int_equal(once_delivery_age_ms(&once_deliveries_at(&open, tags[1])->state, 135), 35);
    assert_int_equal(once_deliveries_unlist(&open), tags[2]);
    assert_int_equal(once_deliveries_unlist(&open), tags[1]);
    once_deliveries_list(&open, tags[2]); /* it is asked for again */
    assert_int_equal(once_deliveries_unlist(&open), tags[0]);
    assert_int_equal(once_deliveries_unlist(&open), tags[2]);
    assert_int_equal(once_deliveries_unlist(&open), 0);
    once_deliveries_release(&open);
}

static once_stream *a_stream(bool single)
{
    once_stream *stream = once_stream_new(0, single);
    assert_non_null(stream);
    assert_true(once_stream_reserve(stream, 3));
    for (uint64_t i = 1; i <= 3; i++) assert_int_equal(once_stream_begin(stream, 10 * i, NULL), i);
    return stream;
}

/* What is acked between two calls of a round of extending does not lead it astray, nor end it. */
static void a_round_goes_on_behind_what_was_acked(void **state)
{
    (void)state;
    for (int single = 0; single < 2; single++) {
        once_stream *stream = a_stream(single);
        stream->extend_from = 2;
        for (uint64_t i = 1; i <= 3; i++) {
            once_stream_end(stream, i, false, 0);
            const uint64_t tag = once_stream_next_ack(stream);
            assert_int_equal(tag, i);
            once_stream_acked(stream, tag);
            assert_true(stream->extend_from == (i < 3 ? (i == 1 ? 2 : 3) : ONCE_ROUND_END));
        }
        assert_true(once_stream_first(stream) == ONCE_ROUND_END);
        assert_true(once_stream_all_over(stream));
        once_stream_free(stream);
    }
}

/* An item that leaves its stream late does not take the tag of the one that has it now. */
static void a_tag_is_that_of_the_item_that_has_it_now(void **state)
{
    (void)state;
    once_stream *stream = a_stream(true);
    once_item late = {.tag = 2}, now = {.tag = 2};
    once_stream_end(stream, 2, true, 0);
    once_stream_forget(stream, &late);
    assert_int_equal(once_stream_outstanding(stream), 2);
    assert_false(once_stream_has_acks(stream));
    assert_int_equal(once_stream_begin(stream, 40, &now), 2);
    once_stream_forget(stream, &late);
    assert_ptr_equal(once_stream_at(stream, 2)->item, &now);
    once_stream_forget(stream, &now);
    assert_null(once_stream_at(stream, 2)->item);
    once_stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_keeps_the_order_of_those_that_are_left),
        cmocka_unit_test(acks_wait_in_the_order_of_the_ends),
        cmocka_unit_test(a_round_goes_on_behind_what_was_acked),
        cmocka_unit_test(a_tag_is_that_of_the_item_that_has_it_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
