/* Acks: what was acked does not come again, what was not does, and neither waits for a fetch. */
#include <pthread.h>
#include <stdatomic.h>

#include "source_conform.h"

static void what_was_not_acked_comes_again_after_a_restart(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 8);
    src_open(f, 0);
    src_fetch_until(f, 0, 8 * src_streams(f));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 8 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 0, 7);
    src_quiet(f, 0);
}

static void what_was_handed_out_in_part_comes_again_whole(source_fixture *f)
{
    src_put(f, 0, 20);
    src_open(f, 0);
    src_fetch_until(f, 0, 9);
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 20);
    src_expect(f, 0, 0, 19);
}

static void coordinates_are_the_same_at_each_delivery(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 8);
    src_open(f, 0);
    src_fetch_until(f, 0, 8 * src_streams(f));
    const size_t first = f->n;
    src_reopen(f);
    src_fetch_until(f, 0, 2 * first);
    for (size_t i = 0; i < first; i++) {
        const src_got *again = src_find(f, f->got[i].stream, f->got[i].n);
        assert_true(again >= &f->got[first]);
        assert_string_equal(again->at, f->got[i].at);
    }
}

static void an_ack_is_of_everything_up_to_it(source_fixture *f)
{
    src_put(f, 0, 10);
    src_open(f, 0);
    src_fetch_until(f, 0, 10);
    src_ack(f, src_find(f, 0, 5));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 4);
    src_expect(f, 0, 6, 9);
    src_quiet(f, 0);
}

static void an_ack_is_of_one_delivery(source_fixture *f)
{
    static const int acked[] = {5, 2, 8};
    src_put(f, 0, 10);
    src_open(f, 0);
    src_fetch_until(f, 0, 10);
    once_receipt list[3];
    for (int i = 0; i < 3; i++) list[i] = src_delivery(src_find(f, 0, acked[i]));
    once_source *s = f->consumers[0];
    src_ok(f, s->ops->ack(s, list, 3, &f->err));
    for (int i = 0; i < 3; i++) assert_true(list[i].answer != ONCE_RECEIPT_GONE);
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 7);
    for (int n = 0; n < 10; n++)
        if (n != 2 && n != 5 && n != 8) (void)src_find(f, 0, n);
    src_quiet(f, 0);
}

static void an_ack_may_be_repeated(source_fixture *f)
{
    src_put(f, 0, 6);
    src_open(f, 0);
    src_fetch_until(f, 0, 6);
    src_ack(f, src_find(f, 0, 0));
    src_ack(f, src_find(f, 0, 1));
    (void)src_try_ack(f, 0, src_find(f, 0, 1)); /* its reply may have been lost; any answer will do */
    (void)src_try_ack(f, 0, src_find(f, 0, 0));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 4);
    src_expect(f, 0, 2, 5);
}

static void acks_of_one_stream_do_not_touch_another(source_fixture *f)
{
    src_put(f, 0, 6);
    src_put(f, 1, 6);
    src_open(f, 0);
    src_fetch_until(f, 0, 12);
    for (int n = 0; n < 6; n++) src_ack(f, src_find(f, 1, n));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 6);
    src_expect(f, 0, 0, 5);
    src_quiet(f, 0);
}

static void what_was_acked_goes_on_behind_it(source_fixture *f)
{
    src_put(f, 0, 6);
    src_open(f, 0);
    src_fetch_until(f, 0, 6);
    for (int n = 0; n < 6; n++) src_ack(f, src_find(f, 0, n));
    src_put(f, 0, 2);
    src_fetch_until(f, 0, 8);
    src_expect(f, 0, 0, 7);
    src_ack(f, src_find(f, 0, 6));
    src_ack(f, src_find(f, 0, 7));
    src_forget(f);
    src_reopen(f);
    src_quiet(f, 0);
    src_put(f, 0, 1);
    src_fetch_until(f, 0, 1);
    src_expect(f, 0, 8, 8);
}

static void messages_need_not_stand_side_by_side(source_fixture *f)
{
    src_put(f, 0, 2);
    f->driver->hole(f->world, 0);
    f->driver->hole(f->world, 0);
    src_put(f, 0, 2);
    f->driver->hole(f->world, 0);
    src_put(f, 0, 3);
    src_open(f, 0);
    src_fetch_until(f, 0, 7);
    src_expect(f, 0, 0, 6);
    for (int n = 0; n < 4; n++) src_ack(f, src_find(f, 0, n));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 3);
    src_expect(f, 0, 4, 6);
    for (int n = 4; n < 7; n++) src_ack(f, src_find(f, 0, n));
    f->driver->hole(f->world, 0);
    src_forget(f);
    src_reopen(f);
    src_quiet(f, 0);
}

static void an_ack_that_fails_in_part_says_what_was_done(source_fixture *f)
{
    src_put(f, 0, 6);
    src_open(f, 0);
    src_fetch_until(f, 0, 6);
    once_receipt list[6];
    for (int n = 0; n < 6; n++) list[n] = src_delivery(src_find(f, 0, n));
    once_source *s = f->consumers[0];
    f->driver->fail_ack(f->world, 2);
    assert_int_not_equal(s->ops->ack(s, list, 6, &f->err), ONCE_OK);
    assert_true(strlen(f->err.text) > 0);
    for (int n = 0; n < 6; n++) assert_int_equal(list[n].answer, n < 2 ? ONCE_RECEIPT_DONE : ONCE_RECEIPT_OPEN);
    src_ok(f, s->ops->ack(s, list + 2, 2, &f->err));
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 2);
    (void)src_find(f, 0, 4);
    (void)src_find(f, 0, 5);
    src_quiet(f, 0);
}

/* --- fetch and ack at the same time --- */

typedef struct other {
    source_fixture *f;
    once_receipt delivery;
    once_batch *batch;
    int rc;
    once_error err;
    atomic_bool over;
} other;

static void *fetch_in_thread(void *arg)
{
    other *o = arg;
    once_source *s = o->f->consumers[0];
    once_fetch fetch = {.max = 10, .batch = o->batch};
    o->rc = s->ops->fetch(s, &fetch, &o->err);
    atomic_store(&o->over, true);
    return NULL;
}

static void an_ack_does_not_wait_for_a_fetch(source_fixture *f)
{
    src_put(f, 0, 3);
    src_open(f, 0);
    src_fetch_until(f, 0, 3);
    if (f->driver->block) f->driver->block(f->world, 60000);
    other o = {.f = f, .batch = src_batch(f)};
    pthread_t thread;
    const int64_t began_ms = src_real_ms();
    assert_int_equal(pthread_create(&thread, NULL, fetch_in_thread, &o), 0);
    for (int n = 0; n < 3; n++) src_ack(f, src_find(f, 0, n));
    assert_true(src_real_ms() - began_ms < 20000);
    f->consumers[0]->ops->wake(f->consumers[0]);
    pthread_join(thread, NULL);
    assert_int_equal(o.rc, ONCE_OK);
    assert_int_equal(o.batch->n, 0);
}

static void *ack_in_thread(void *arg)
{
    other *o = arg;
    once_source *s = o->f->consumers[0];
    o->rc = s->ops->ack(s, &o->delivery, 1, &o->err);
    atomic_store(&o->over, true);
    return NULL;
}

static void a_fetch_does_not_wait_for_an_ack(source_fixture *f)
{
    src_put(f, 0, 3);
    src_open(f, 0);
    src_fetch_until(f, 0, 3);
    f->driver->hold_acks(f->world, true);
    other o = {.f = f, .delivery = src_delivery(src_find(f, 0, 0))};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ack_in_thread, &o), 0);
    src_put(f, 0, 4);
    src_fetch_until(f, 0, 7);
    assert_int_equal(src_fetch(f, 0, 0), 0);
    assert_false(atomic_load(&o.over));
    f->driver->hold_acks(f->world, false);
    pthread_join(thread, NULL);
    assert_int_equal(o.rc, ONCE_OK);
    src_expect(f, 0, 0, 6);
}

#define AGAIN ONCE_SOURCE_REDELIVERS
#define KEPT (ONCE_SOURCE_REDELIVERS | SRC_REMEMBERS)

const source_test source_acks[] = {
    SRC_TEST(what_was_not_acked_comes_again_after_a_restart, AGAIN),
    SRC_TEST(what_was_handed_out_in_part_comes_again_whole, AGAIN),
    SRC_TEST(coordinates_are_the_same_at_each_delivery, AGAIN | ONCE_SOURCE_STABLE),
    SRC_TEST(an_ack_is_of_everything_up_to_it, KEPT | SRC_WATERMARK),
    SRC_TEST(an_ack_is_of_one_delivery, KEPT | ONCE_SOURCE_SINGLE_ACKS),
    SRC_TEST(an_ack_may_be_repeated, KEPT),
    SRC_TEST(acks_of_one_stream_do_not_touch_another, KEPT | ONCE_SOURCE_ASSIGNS | SRC_DIVIDES),
    SRC_TEST(what_was_acked_goes_on_behind_it, KEPT | SRC_ENDLESS),
    SRC_TEST(messages_need_not_stand_side_by_side, KEPT | SRC_HOLES),
    SRC_TEST(an_ack_that_fails_in_part_says_what_was_done, KEPT | SRC_FAILS_ACKS),
    SRC_TEST(an_ack_does_not_wait_for_a_fetch, 0),
    SRC_TEST(a_fetch_does_not_wait_for_an_ack, SRC_HOLDS_ACKS | SRC_ENDLESS),
    {0},
};
