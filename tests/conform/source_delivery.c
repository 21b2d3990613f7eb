/* Every source: messages come once per delivery, as they were put and in order, and a fetch does what it was asked. */
#include <pthread.h>
#include <stdlib.h>

#include "source_conform.h"

static void every_message_comes_once_and_in_order_in_its_stream(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 60);
    src_open(f, 0);
    for (unsigned n = 10; n <= 60; n += 10) {
        src_fetch_until(f, 0, n * src_streams(f));
        src_keep(f);
    }
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 0, 59);
    src_quiet(f, 0);
}

static void a_batch_has_no_more_than_it_may(source_fixture *f)
{
    src_put(f, 0, 20);
    src_open(f, 0);
    static const size_t sizes[] = {1, 1, 2, 3, 5, 1000};
    for (size_t i = 0; f->n < 20; i = (i + 1) % (sizeof sizes / sizeof *sizes))
        assert_true(src_fetch(f, 0, sizes[i]) <= sizes[i]); /* src_fetch asks as well */
    src_expect(f, 0, 0, 19);
}

static void nothing_comes_when_nothing_is_asked_for(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 3);
    src_open(f, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(src_fetch(f, 0, 0), 0);
        assert_false(f->at_end);
    }
    src_fetch_until(f, 0, 3 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 0, 2);
}

static void deliveries_are_told_apart(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 20);
    src_open(f, 0);
    src_fetch_until(f, 0, 20 * src_streams(f));
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(f->got[i].number == f->got[k].number && f->got[i].delivery == f->got[k].delivery);
}

static void each_message_has_coordinates_of_its_own(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 20);
    src_open(f, 0);
    src_fetch_until(f, 0, 20 * src_streams(f));
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < i; k++) assert_string_not_equal(f->got[i].at, f->got[k].at);
}

/* --- what is in a message --- */

static void expect_body(const source_fixture *f, size_t i, once_bytes body)
{
    assert_true(i < f->n);
    assert_int_equal(f->got[i].message.body.len, body.len);
    if (body.len) assert_memory_equal(f->got[i].message.body.data, body.data, body.len);
    assert_true(f->got[i].message.cut_from == 0);
}

static void bodies_come_as_they_were_put(source_fixture *f)
{
    static const once_bytes bodies[] = {
        ONCE_BYTES("{}"), ONCE_BYTES("{\"name\":\"Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x92\xb6 \xe6\x97\xa5\"}"),
        ONCE_BYTES("{\"text\":\"a\\nb\\u0000\\\"\\\\\"}"), ONCE_BYTES(" [1, 2 ,\t3] "), ONCE_BYTES("no JSON at all")};
    const size_t n = sizeof bodies / sizeof *bodies;
    for (size_t i = 0; i < n; i++) src_put_body(f, 0, bodies[i]);
    src_open(f, 0);
    src_fetch_until(f, 0, n);
    for (size_t i = 0; i < n; i++) expect_body(f, i, bodies[i]);
}

static char *long_body(size_t len)
{
    char *body = malloc(len);
    assert_non_null(body);
    for (size_t i = 0; i < len; i++) body[i] = (char)('a' + i % 23);
    body[0] = body[len - 1] = '"';
    return body;
}

static void a_body_may_be_as_long_as_allowed(source_fixture *f)
{
    char *body = long_body(SRC_MESSAGE_MAX);
    src_put_body(f, 0, ONCE_BYTES("1"));
    src_put_body(f, 0, (once_bytes){body, SRC_MESSAGE_MAX});
    src_put_body(f, 0, ONCE_BYTES("2"));
    src_open(f, 0);
    src_fetch_until(f, 0, 3);
    expect_body(f, 0, ONCE_BYTES("1"));
    expect_body(f, 1, (once_bytes){body, SRC_MESSAGE_MAX});
    expect_body(f, 2, ONCE_BYTES("2"));
    free(body);
}

static void a_body_that_is_too_long_is_cut_and_says_so(source_fixture *f)
{
    const size_t len = SRC_MESSAGE_MAX + 1;
    char *body = long_body(len);
    src_put_body(f, 0, (once_bytes){body, len});
    src_put_body(f, 0, ONCE_BYTES("2"));
    src_open(f, 0);
    src_fetch_until(f, 0, 2);
    const once_message *m = &f->got[0].message;
    assert_true(m->cut_from == len && m->body.len <= SRC_MESSAGE_MAX);
    assert_memory_equal(m->body.data, body, m->body.len);
    expect_body(f, 1, ONCE_BYTES("2"));
    free(body);
}

static void any_text_is_a_body(source_fixture *f)
{
    static const char text[] = " \t{no JSON\r\n\"'\\u0041</Body>&amp; \xc2\x80\xc3\xbc\xef\xbf\xbd\xf0\x9f\x98\x80\n";
    src_put_body(f, 0, ONCE_BYTES(text));
    src_open(f, 0);
    src_fetch_until(f, 0, 1);
    expect_body(f, 0, ONCE_BYTES(text));
}

static void any_bytes_are_a_body(source_fixture *f)
{
    char body[256];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (char)i;
    src_put_body(f, 0, (once_bytes){body, sizeof body});
    src_open(f, 0);
    src_fetch_until(f, 0, 1);
    expect_body(f, 0, (once_bytes){body, sizeof body});
}

static void a_body_may_be_empty(source_fixture *f)
{
    src_put_body(f, 0, ONCE_BYTES(""));
    src_put_body(f, 0, ONCE_BYTES("2"));
    src_open(f, 0);
    src_fetch_until(f, 0, 2);
    expect_body(f, 0, ONCE_BYTES(""));
    expect_body(f, 1, ONCE_BYTES("2"));
}

static void a_message_has_the_time_when_it_was_sent(source_fixture *f)
{
    src_put(f, 0, 2);
    src_open(f, 0);
    src_fetch_until(f, 0, 2);
    const int64_t first_ms = f->got[0].message.sent_ms;
    assert_true(first_ms != ONCE_NO_TIME && first_ms <= f->got[1].message.sent_ms);
    src_forget(f);
    src_reopen(f);
    src_fetch_until(f, 0, 2);
    assert_int_equal(f->got[0].message.sent_ms, first_ms);
}

static void no_body_is_not_an_empty_one(source_fixture *f)
{
    src_put_body(f, 0, ONCE_BYTES(""));
    src_put_body(f, 0, (once_bytes){0});
    src_open(f, 0);
    src_fetch_until(f, 0, 2);
    assert_true(f->got[0].message.body.len == 0 && !f->got[0].message.no_body);
    assert_true(f->got[1].message.body.len == 0 && f->got[1].message.no_body);
}

static void headers_come_with_their_message(source_fixture *f)
{
    static const once_bytes headers = ONCE_BYTES("{\"id\":\"7\",\"tenant\":\"\xc3\xa9t\xc3\xa9\"}");
    f->driver->put(f->world, 0, ONCE_BYTES("1"), headers);
    src_put_body(f, 0, ONCE_BYTES("2"));
    src_open(f, 0);
    src_fetch_until(f, 0, 2);
    assert_int_equal(f->got[0].message.headers.len, headers.len);
    assert_memory_equal(f->got[0].message.headers.data, headers.data, headers.len);
    assert_int_equal(f->got[1].message.headers.len, 0);
}

/* --- what a fetch is asked --- */

static uint32_t number_of(const source_fixture *f, unsigned stream)
{
    for (uint32_t i = 0; i < SRC_STREAMS; i++)
        if (f->seats[0][i].state == SRC_OURS && f->seats[0][i].stream == stream) return i;
    fail_msg("stream %u is not assigned", stream);
    return 0;
}

static bool all_assigned(const source_fixture *f)
{
    unsigned n = 0;
    for (int i = 0; i < SRC_STREAMS; i++) n += f->seats[0][i].state == SRC_OURS;
    return n == src_streams(f);
}

static void a_paused_stream_waits_and_others_do_not(source_fixture *f)
{
    const unsigned n = src_streams(f);
    for (unsigned s = 0; s < n; s++) src_put(f, s, 12);
    src_open(f, 0);
    src_wait_for(f, 0, all_assigned);
    f->paused[0] = number_of(f, 0);
    f->n_paused = 1;
    src_fetch_until(f, 0, 12 * (n - 1)); /* src_fetch asks that nothing of it comes */
    src_quiet(f, 0);
    assert_false(f->at_end);
    f->n_paused = 0;
    src_fetch_until(f, 0, 12 * n);
    for (unsigned s = 0; s < n; s++) src_expect(f, s, 0, 11);
}

static void a_stream_that_is_paused_on_its_way_goes_on_in_order(source_fixture *f)
{
    src_put(f, 0, 12);
    src_open(f, 0);
    src_fetch_until(f, 0, 5);
    f->paused[0] = f->got[0].number;
    f->n_paused = 1;
    src_quiet(f, 0);
    f->n_paused = 0;
    src_fetch_until(f, 0, 12);
    src_expect(f, 0, 0, 11);
}

static void the_rest_is_handed_out_without_waiting(source_fixture *f)
{
    if (f->driver->block) f->driver->block(f->world, 60000);
    src_put(f, 0, 10);
    src_open(f, 0);
    src_fetch_until(f, 0, 4);
    f->rest = true;
    const int64_t began_ms = src_real_ms();
    while (src_fetch(f, 0, 3) > 0) continue; /* some, or none */
    assert_true(src_real_ms() - began_ms < 20000);
    f->rest = false;
    src_fetch_until(f, 0, 10);
    src_expect(f, 0, 0, 9);
}

static void what_is_put_later_comes_later(source_fixture *f)
{
    src_open(f, 0);
    src_quiet(f, 0);
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 3);
    src_fetch_until(f, 0, 3 * src_streams(f));
    src_quiet(f, 0); /* src_fetch asks that the end is not said */
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 1);
    src_fetch_until(f, 0, 4 * src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 0, 3);
}

static void ack_all(source_fixture *f)
{
    for (size_t i = 0; i < f->n; i++) src_ack(f, &f->got[i]);
}

static void the_end_is_said_at_the_end_and_not_before(source_fixture *f)
{
    src_put(f, 0, 10);
    src_open(f, 0);
    for (int i = 0; i < 10; i++) {
        src_fetch_until(f, 0, (size_t)i + 1);
        if (f->at_end) assert_int_equal(i, 9);
    }
    ack_all(f); /* some only end when nothing can come back */
    while (!f->at_end) assert_int_equal(src_fetch(f, 0, 10), 0);
    assert_int_equal(src_fetch(f, 0, 10), 0);
    assert_true(f->at_end);
    src_expect(f, 0, 0, 9);
}

static void a_source_without_messages_ends(source_fixture *f)
{
    src_open(f, 0);
    while (!f->at_end) assert_int_equal(src_fetch(f, 0, 10), 0);
}

/* --- waking --- */

typedef struct fetching {
    source_fixture *f;
    once_fetch fetch;
    int rc;
    once_error err;
} fetching;

static void *fetch_in_thread(void *arg)
{
    fetching *in = arg;
    once_source *s = in->f->consumers[0];
    in->rc = s->ops->fetch(s, &in->fetch, &in->err);
    return NULL;
}

static void a_fetch_that_waits_is_woken(source_fixture *f)
{
    if (f->driver->block) f->driver->block(f->world, 60000);
    src_open(f, 0);
    src_wait_for(f, 0, all_assigned);
    fetching in = {.f = f, .fetch = {.max = 10, .batch = src_batch(f)}};
    pthread_t thread;
    const int64_t began_ms = src_real_ms();
    assert_int_equal(pthread_create(&thread, NULL, fetch_in_thread, &in), 0);
    f->consumers[0]->ops->wake(f->consumers[0]);
    pthread_join(thread, NULL);
    assert_int_equal(in.rc, ONCE_OK);
    assert_int_equal(in.fetch.batch->n, 0);
    assert_true(src_real_ms() - began_ms < 20000);
}

static void who_was_woken_misses_nothing(source_fixture *f)
{
    src_put(f, 0, 10);
    src_open(f, 0);
    while (f->n < 10) {
        f->consumers[0]->ops->wake(f->consumers[0]);
        (void)src_fetch(f, 0, 3);
        if (!f->at_end) (void)src_fetch(f, 0, 3);
    }
    src_expect(f, 0, 0, 9);
}

/* --- failures --- */

/* src_try_fetch asks that a fetch which failed has neither messages nor news, nor says the end. */
static void a_fetch_that_fails_leaves_nothing_half_done(source_fixture *f)
{
    src_put(f, 0, 10);
    src_open(f, 0);
    f->driver->fail_fetch(f->world, true);
    int rc = ONCE_OK;
    for (int i = 0; i < 1000 && rc == ONCE_OK; i++) { /* a pipe may be empty for a while, and then nothing is read */
        rc = src_try_fetch(f, 0, 4);
        assert_true(f->n == 0 && !f->at_end);
    }
    assert_int_not_equal(rc, ONCE_OK);
    f->driver->fail_fetch(f->world, false);
    src_fetch_until(f, 0, 3);
    f->driver->fail_fetch(f->world, true);
    for (size_t before = f->n; src_try_fetch(f, 0, 2) == ONCE_OK && f->n > before; before = f->n)
        continue; /* what was read before comes first */
    f->driver->fail_fetch(f->world, false);
    src_fetch_until(f, 0, 10);
    src_expect(f, 0, 0, 9);
}

static void what_is_not_there_is_said(source_fixture *f)
{
    once_source *source = NULL;
    const int rc = f->driver->open_missing(f->world, &source, &f->err);
    assert_int_not_equal(rc, ONCE_OK);
    assert_int_equal(f->err.status, rc);
    assert_true(strlen(f->err.text) > 0);
    assert_null(source);
}

/* --- what it says of itself --- */

static bool nothing_is_left(const source_fixture *f)
{
    once_source *source = f->consumers[0];
    for (unsigned s = 0; s < src_streams(f); s++)
        if (source->ops->lag(source, number_of(f, s)) > 0) return false;
    return true;
}

/* A broker may have to be asked for it. */
static void lag_falls_to_nothing(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 10);
    src_open(f, 0);
    src_fetch_until(f, 0, 10 * src_streams(f));
    ack_all(f);
    src_wait_for(f, 0, nothing_is_left);
}

static void streams_have_their_names(source_fixture *f)
{
    src_put(f, 0, 1);
    src_open(f, 0);
    src_wait_for(f, 0, all_assigned);
    once_source *source = f->consumers[0];
    for (unsigned s = 0; s < src_streams(f); s++)
        assert_string_equal(source->ops->stream_name(source, number_of(f, s)), f->driver->name_of(f->world, s));
}

const source_test source_delivery[] = {
    SRC_TEST(every_message_comes_once_and_in_order_in_its_stream, 0),
    SRC_TEST(a_batch_has_no_more_than_it_may, 0),
    SRC_TEST(nothing_comes_when_nothing_is_asked_for, 0),
    SRC_TEST(deliveries_are_told_apart, 0),
    SRC_TEST(each_message_has_coordinates_of_its_own, 0),
    SRC_TEST(bodies_come_as_they_were_put, 0),
    SRC_TEST(a_body_may_be_as_long_as_allowed, 0),
    SRC_TEST(a_body_that_is_too_long_is_cut_and_says_so, 0),
    SRC_TEST(any_text_is_a_body, SRC_TEXT),
    SRC_TEST(any_bytes_are_a_body, SRC_BINARY),
    SRC_TEST(a_body_may_be_empty, SRC_EMPTY),
    SRC_TEST(a_message_has_the_time_when_it_was_sent, ONCE_SOURCE_TIMED | ONCE_SOURCE_REDELIVERS),
    SRC_TEST(no_body_is_not_an_empty_one, SRC_NO_BODY),
    SRC_TEST(headers_come_with_their_message, SRC_HEADERS),
    SRC_TEST(a_paused_stream_waits_and_others_do_not, 0),
    SRC_TEST(a_stream_that_is_paused_on_its_way_goes_on_in_order, 0),
    SRC_TEST(the_rest_is_handed_out_without_waiting, 0),
    SRC_TEST(what_is_put_later_comes_later, SRC_ENDLESS),
    SRC_TEST(the_end_is_said_at_the_end_and_not_before, ONCE_SOURCE_FINITE),
    SRC_TEST(a_source_without_messages_ends, ONCE_SOURCE_FINITE),
    SRC_TEST(a_fetch_that_waits_is_woken, 0),
    SRC_TEST(who_was_woken_misses_nothing, 0),
    SRC_TEST(a_fetch_that_fails_leaves_nothing_half_done, SRC_FAILS),
    SRC_TEST(what_is_not_there_is_said, SRC_MISSING),
    SRC_TEST(lag_falls_to_nothing, 0),
    SRC_TEST(streams_have_their_names, ONCE_SOURCE_ASSIGNS),
    {0},
};
