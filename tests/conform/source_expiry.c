/* Deliveries that run out: they go to somebody else unless they are acked or extended in time. */
#include "source_conform.h"

/* Two consumers of one stream, or of streams that they share. */
static void begin(source_fixture *f, int messages)
{
    src_put(f, 0, messages);
    src_open(f, 0);
    src_fetch_until(f, 0, (size_t)messages);
}

static void what_is_not_acked_in_time_comes_again(source_fixture *f)
{
    begin(f, 6);
    src_quiet(f, 0);
    for (int n = 0; n < 3; n++) src_ack(f, src_find(f, 0, n));
    src_forget(f);
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 3);
    src_expect(f, 0, 3, 5);
    src_quiet(f, 0);
}

static void an_ack_that_comes_too_late_says_that_it_is_gone(source_fixture *f)
{
    begin(f, 1);
    const src_got late = f->got[0];
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 2);
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    src_ack(f, &f->got[1]); /* the new one is not touched by it */
    src_pass(f, src_expires_ms(f) + 1);
    src_quiet(f, 0);
}

static void one_that_came_too_late_does_not_spoil_the_others(source_fixture *f)
{
    begin(f, 4);
    assert_int_equal(src_extend(f, src_find(f, 0, 3)), ONCE_RECEIPT_DONE);
    src_pass(f, src_expires_ms(f) / 2);
    assert_int_equal(src_extend(f, src_find(f, 0, 3)), ONCE_RECEIPT_DONE);
    src_pass(f, src_expires_ms(f) / 2 + 1);
    const src_got late = *src_find(f, 0, 0), held = *src_find(f, 0, 3);
    src_fetch_until(f, 0, 7); /* the three others came again */
    once_receipt list[2] = {src_delivery(&late), src_delivery(&held)};
    once_source *s = f->consumers[0];
    src_ok(f, s->ops->ack(s, list, 2, &f->err));
    assert_int_equal(list[0].answer, ONCE_RECEIPT_GONE);
    assert_true(list[1].answer != ONCE_RECEIPT_GONE);
}

static void what_is_extended_stays_with_its_consumer(source_fixture *f)
{
    begin(f, 2);
    const src_got held = *src_find(f, 0, 0);
    const int64_t third_ms = src_expires_ms(f) / 3;
    for (int i = 0; i < 9; i++) {
        src_pass(f, third_ms);
        assert_int_equal(src_extend(f, &held), ONCE_RECEIPT_DONE);
    }
    src_forget(f);
    src_fetch_until(f, 0, 1);
    src_expect(f, 0, 1, 1); /* the other one was not extended */
    src_quiet(f, 0);
    once_receipt d = src_delivery(&held);
    once_source *s = f->consumers[0];
    src_ok(f, s->ops->ack(s, &d, 1, &f->err));
    assert_true(d.answer != ONCE_RECEIPT_GONE);
}

static void what_ran_out_cannot_be_extended(source_fixture *f)
{
    begin(f, 1);
    const src_got late = f->got[0];
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 2);
    assert_int_equal(src_extend(f, &late), ONCE_RECEIPT_GONE);
    assert_int_equal(src_extend(f, &f->got[1]), ONCE_RECEIPT_DONE);
}

/* It was settled while it was to be extended. Its number is nobody else's. */
static void what_is_gone_may_still_be_acked(source_fixture *f)
{
    begin(f, 1);
    const src_got late = f->got[0];
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 2);
    assert_int_equal(src_extend(f, &late), ONCE_RECEIPT_GONE);
    src_put(f, 0, 1);
    src_fetch_until(f, 0, 3);
    assert_int_equal(src_try_ack(f, 0, &late), ONCE_RECEIPT_GONE);
    src_forget(f);
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 2); /* neither of the others was acked by it */
}

static void the_last_extension_says_so(source_fixture *f)
{
    begin(f, 1);
    const src_got held = f->got[0];
    const int64_t third_ms = src_expires_ms(f) / 3;
    once_receipt_answer answer = ONCE_RECEIPT_DONE;
    int64_t passed_ms = 0;
    while (answer == ONCE_RECEIPT_DONE) {
        src_pass(f, third_ms);
        passed_ms += third_ms;
        assert_true(passed_ms <= f->driver->last_ms);
        answer = src_extend(f, &held);
    }
    assert_int_equal(answer, ONCE_RECEIPT_LAST);
    src_quiet(f, 0); /* it is still ours, for a while */
    src_ack(f, &held);
    src_pass(f, 2 * src_expires_ms(f));
    src_quiet(f, 0);
}

static void after_the_last_extension_it_goes_to_others(source_fixture *f)
{
    begin(f, 1);
    const src_got held = f->got[0];
    once_receipt_answer answer = ONCE_RECEIPT_DONE;
    for (int64_t passed_ms = 0; passed_ms < f->driver->last_ms && answer != ONCE_RECEIPT_LAST;) {
        src_pass(f, src_expires_ms(f) / 3);
        passed_ms += src_expires_ms(f) / 3;
        answer = src_extend(f, &held);
    }
    assert_int_equal(answer, ONCE_RECEIPT_LAST);
    src_pass(f, src_expires_ms(f) + 1);
    src_fetch_until(f, 0, 2);
    assert_int_equal(src_try_ack(f, 0, &held), ONCE_RECEIPT_GONE);
}

#define EXPIRES (ONCE_SOURCE_EXPIRES | ONCE_SOURCE_REDELIVERS)
#define EACH (EXPIRES | ONCE_SOURCE_SINGLE_ACKS) /* a delivery has a number of its own */

const source_test source_expiry[] = {
    SRC_TEST(what_is_not_acked_in_time_comes_again, EXPIRES),
    SRC_TEST(an_ack_that_comes_too_late_says_that_it_is_gone, EACH),
    SRC_TEST(one_that_came_too_late_does_not_spoil_the_others, EACH),
    SRC_TEST(what_is_extended_stays_with_its_consumer, EACH),
    SRC_TEST(what_ran_out_cannot_be_extended, EACH),
    SRC_TEST(what_is_gone_may_still_be_acked, EACH),
    SRC_TEST(the_last_extension_says_so, EACH | SRC_LAST),
    SRC_TEST(after_the_last_extension_it_goes_to_others, EACH | SRC_LAST),
    {0},
};
