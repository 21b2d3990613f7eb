/* The fixture of the conformance suite for sources, and the program that runs its tables over one driver. */
#include "source_conform.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TESTS_MAX 80
#define ALL_BITS                                                                                                       \
    (ONCE_SOURCE_FINITE | ONCE_SOURCE_CURSOR | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS | \
     ONCE_SOURCE_EXPIRES | ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_TIMED)

int64_t src_real_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t src_patience_ms(const source_fixture *f) { return f->driver->patience_ms ? f->driver->patience_ms : 20000; }

void src_nap(void)
{
    const struct timespec little = {.tv_nsec = 1000000};
    (void)nanosleep(&little, NULL);
}

unsigned src_streams(const source_fixture *f) { return f->driver->bits & ONCE_SOURCE_ASSIGNS ? f->driver->streams : 1; }

/* What the driver's functions make possible. */
static unsigned bits_of(const source_driver *d)
{
    unsigned bits = d->bits;
    if (!(bits & ONCE_SOURCE_FINITE)) bits |= SRC_ENDLESS;
    if (!(bits & ONCE_SOURCE_SINGLE_ACKS)) bits |= SRC_WATERMARK;
    bits |= d->streams > 1 ? SRC_DIVIDES : SRC_SHARES;
    if (d->open_missing) bits |= SRC_MISSING;
    if (d->hole) bits |= SRC_HOLES;
    if (d->fail_fetch) bits |= SRC_FAILS;
    if (d->fail_ack) bits |= SRC_FAILS_ACKS;
    if (d->hold_acks) bits |= SRC_HOLDS_ACKS;
    if (d->lose) bits |= SRC_LOSES;
    if (d->last_ms) bits |= SRC_LAST;
    return bits;
}

bool src_has(const source_fixture *f, unsigned bits) { return (bits_of(f->driver) & bits) == bits; }

/* --- consumers --- */

void src_open(source_fixture *f, int consumer)
{
    assert_null(f->consumers[consumer]);
    src_ok(f, f->driver->open(f->world, ONCE_OPEN_RUN, &f->consumers[consumer], &f->err));
    once_source *s = f->consumers[consumer];
    assert_non_null(s);
    assert_int_equal(s->ops->bits(s) & ALL_BITS, f->driver->bits & ALL_BITS);
    memset(f->seats[consumer], 0, sizeof f->seats[consumer]);
    if (src_has(f, ONCE_SOURCE_ASSIGNS)) return;
    f->seats[consumer][0].state = SRC_OURS;
    if (s->ops->seek) src_ok(f, s->ops->seek(s, 0, &f->facts.base, &f->err));
}

void src_close(source_fixture *f, int consumer)
{
    f->consumers[consumer]->ops->close(f->consumers[consumer]);
    f->consumers[consumer] = NULL;
}

int64_t src_expires_ms(const source_fixture *f)
{
    for (int c = 0; c < SRC_CONSUMERS; c++)
        for (int i = 0; i < SRC_STREAMS; i++)
            if (f->seats[c][i].expires_ms) return f->seats[c][i].expires_ms;
    fail_msg("it was not said when deliveries run out");
    return 0;
}

void src_pass(source_fixture *f, int64_t ms) { f->driver->pass(f->world, ms); }

void src_reopen(source_fixture *f)
{
    const int64_t expires_ms = src_has(f, ONCE_SOURCE_EXPIRES) ? src_expires_ms(f) : 0;
    src_close(f, 0);
    if (expires_ms) src_pass(f, expires_ms + 1);
    f->before_reopen = f->n;
    src_open(f, 0);
}

/* --- messages --- */

void src_put_body(source_fixture *f, unsigned stream, once_bytes body)
{
    f->driver->put(f->world, stream, body, (once_bytes){0});
}

void src_put(source_fixture *f, unsigned stream, int n)
{
    char body[64];
    for (int i = 0; i < n; i++) {
        const int len = snprintf(body, sizeof body, "{\"stream\":%u,\"n\":%d}", stream, f->put[stream]++);
        src_put_body(f, stream, (once_bytes){body, (size_t)len});
    }
}

static int number_of(const once_message *m, unsigned stream)
{
    char body[64];
    unsigned said;
    int n;
    if (m->body.len >= sizeof body) return -1;
    memcpy(body, m->body.data, m->body.len);
    body[m->body.len] = '\0';
    if (sscanf(body, "{\"stream\":%u,\"n\":%d}", &said, &n) != 2) return -1;
    assert_int_equal(said, stream); /* it came from the stream that it was put into */
    return n;
}

static char *join(once_bytes a, const char *between, once_bytes b)
{
    const size_t len = strlen(between);
    char *out = malloc(a.len + len + b.len + 1);
    assert_non_null(out);
    if (a.len) memcpy(out, a.data, a.len);
    memcpy(out + a.len, between, len);
    if (b.len) memcpy(out + a.len + len, b.data, b.len);
    out[a.len + len + b.len] = '\0';
    return out;
}

static void write_down(source_fixture *f, int consumer, const once_batch *batch, const once_item *item)
{
    assert_ptr_equal(item->batch, batch);
    assert_true(item->stream < SRC_STREAMS);
    const src_seat *seat = &f->seats[consumer][item->stream];
    assert_int_equal(seat->state, SRC_OURS); /* it was assigned, and was neither revoked nor lost */
    for (size_t i = 0; i < f->n_paused; i++) assert_true(item->stream != f->paused[i]);
    const once_message *m = &item->message;
    assert_true(m->at.place.len > 0 && m->at.point.len > 0);
    if (f->n == f->size) {
        f->size = f->size ? 2 * f->size : 64;
        f->got = realloc(f->got, f->size * sizeof *f->got);
        assert_non_null(f->got);
    }
    f->got[f->n++] = (src_got){.consumer = consumer,
                               .stream = seat->stream,
                               .number = item->stream,
                               .delivery = item->delivery,
                               .n = number_of(m, seat->stream),
                               .item = (once_item *)item,
                               .message = *m,
                               .body = join(m->body, "", (once_bytes){0}),
                               .at = join(m->at.place, ":", m->at.point)};
}

static void forget(src_got *got)
{
    free(got->body);
    free(got->at);
}

void src_forget(source_fixture *f)
{
    for (size_t i = 0; i < f->n; i++) forget(&f->got[i]);
    f->n = f->before_reopen = 0;
}

/* --- news --- */

static unsigned stream_by_name(const source_fixture *f, const char *name)
{
    assert_non_null(name);
    for (unsigned i = 0; i < src_streams(f); i++)
        if (strcmp(f->driver->name_of(f->world, i), name) == 0) return i;
    fail_msg("there is no stream '%s'", name);
    return 0;
}

static void hear(source_fixture *f, int consumer, const once_stream_news *news)
{
    once_source *s = f->consumers[consumer];
    assert_true(news->stream < SRC_STREAMS);
    src_seat *seat = &f->seats[consumer][news->stream];
    if (!src_has(f, ONCE_SOURCE_ASSIGNS)) { /* how long deliveries of the one stream are ours */
        assert_int_equal(news->change, ONCE_STREAM_ASSIGNED);
        assert_true(news->stream == 0 && news->expires_ms > 0 && seat->expires_ms == 0);
        seat->expires_ms = news->expires_ms;
        return;
    }
    switch (news->change) {
    case ONCE_STREAM_ASSIGNED:
        assert_int_equal(seat->state, SRC_FREE);
        assert_int_equal(news->expires_ms > 0, src_has(f, ONCE_SOURCE_EXPIRES));
        *seat = (src_seat){.state = SRC_OURS,
                           .stream = stream_by_name(f, s->ops->stream_name(s, news->stream)),
                           .expires_ms = news->expires_ms};
        if (src_has(f, ONCE_SOURCE_CURSOR) && !f->no_seek)
            src_ok(f, s->ops->seek(s, news->stream, &f->facts.base, &f->err));
        break;
    case ONCE_STREAM_REVOKED:
        assert_int_equal(seat->state, SRC_OURS);
        assert_true(news->within_ms > 0);
        seat->state = SRC_REVOKED;
        seat->within_ms = news->within_ms;
        break;
    case ONCE_STREAM_LOST:
        assert_true(seat->state == SRC_OURS || seat->state == SRC_REVOKED);
        seat->state = SRC_LOST;
        break;
    }
}

/* --- fetching --- */

/* Batches live until the test ends, as they may. */
once_batch *src_batch(source_fixture *f)
{
    once_batch *batch = calloc(1, sizeof *batch);
    assert_non_null(batch);
    if (f->batches_n == f->batches_size) {
        f->batches_size = f->batches_size ? 2 * f->batches_size : 64;
        f->batches = realloc(f->batches, f->batches_size * sizeof *f->batches);
        assert_non_null(f->batches);
    }
    return f->batches[f->batches_n++] = batch;
}

int src_try_fetch(source_fixture *f, int consumer, size_t max)
{
    once_source *s = f->consumers[consumer];
    once_batch *batch = src_batch(f);
    once_fetch fetch = {.max = max, .batch = batch, .paused = f->paused, .n_paused = f->n_paused, .rest = f->rest};
    const int rc = s->ops->fetch(s, &fetch, &f->err);
    f->at_end = fetch.at_end;
    if (fetch.at_end) assert_true(src_has(f, ONCE_SOURCE_FINITE));
    if (rc != ONCE_OK) {
        assert_true(batch->n == 0 && fetch.n_news == 0 && !fetch.at_end);
        assert_true(f->err.status == rc && strlen(f->err.text) > 0);
        return rc;
    }
    assert_true(batch->n <= max);
    for (size_t i = 0; i < fetch.n_news; i++) hear(f, consumer, &fetch.news[i]);
    for (size_t i = 0; i < batch->n; i++) write_down(f, consumer, batch, &batch->items[i]);
    return rc;
}

/* In the order in which they were sent; deliveries of one message stay in theirs. */
static void sort_by_time(source_fixture *f)
{
    for (size_t i = f->before_reopen; i < f->n; i++) {
        const src_got got = f->got[i];
        size_t to = i;
        for (; to > f->before_reopen && f->got[to - 1].message.sent_ms > got.message.sent_ms; to--)
            f->got[to] = f->got[to - 1];
        f->got[to] = got;
    }
}

size_t src_fetch(source_fixture *f, int consumer, size_t max)
{
    const size_t before = f->n;
    src_ok(f, src_try_fetch(f, consumer, max));
    if (src_has(f, SRC_UNORDERED)) sort_by_time(f);
    return f->n - before;
}

void src_fetch_until(source_fixture *f, int consumer, size_t n)
{
    const int64_t until_ms = src_real_ms() + src_patience_ms(f);
    while (f->n < n) {
        (void)src_fetch(f, consumer, n - f->n < 7 ? n - f->n : 7);
        if (f->n < n && src_real_ms() > until_ms) fail_msg("of %zu messages %zu came", n, f->n);
        if (f->at_end && f->n < n) fail_msg("it ended after %zu messages of %zu", f->n, n);
    }
}

void src_wait_for(source_fixture *f, int consumer, bool (*is_so)(const source_fixture *f))
{
    const int64_t until_ms = src_real_ms() + src_patience_ms(f);
    while (!is_so(f)) {
        (void)src_fetch(f, consumer, 0);
        if (src_real_ms() > until_ms) fail_msg("what was waited for did not happen");
        src_nap();
    }
}

void src_quiet(source_fixture *f, int consumer)
{
    for (int i = 0; i < 3; i++)
        if (src_fetch(f, consumer, 10) != 0)
            fail_msg("message %d of stream %u came", f->got[f->n - 1].n, f->got[f->n - 1].stream);
}

/* --- what came --- */

const src_got *src_find(const source_fixture *f, unsigned stream, int n)
{
    for (size_t i = f->n; i > 0; i--)
        if (f->got[i - 1].stream == stream && f->got[i - 1].n == n) return &f->got[i - 1];
    fail_msg("message %d of stream %u did not come", n, stream);
    return NULL;
}

size_t src_count(const source_fixture *f, unsigned stream)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->got[i].stream == stream;
    return n;
}

void src_expect(const source_fixture *f, unsigned stream, int from, int upto)
{
    int next = from;
    for (size_t i = 0; i < f->n; i++) {
        if (f->got[i].stream != stream) continue;
        assert_int_equal(f->got[i].n, next);
        next++;
    }
    assert_int_equal(next, upto + 1);
}

/* --- acks --- */

once_receipt src_delivery(const src_got *got)
{
    return (once_receipt){.stream = got->number, .delivery = got->delivery};
}

once_receipt_answer src_try_ack(source_fixture *f, int consumer, const src_got *got)
{
    once_source *s = f->consumers[consumer];
    once_receipt d = src_delivery(got);
    src_ok(f, s->ops->ack(s, &d, 1, &f->err));
    assert_true(d.answer != ONCE_RECEIPT_LAST);
    return d.answer;
}

void src_ack(source_fixture *f, const src_got *got)
{
    const once_receipt_answer answer = src_try_ack(f, got->consumer, got);
    if (answer == ONCE_RECEIPT_GONE) fail_msg("message %d of stream %u is gone", got->n, got->stream);
}

once_receipt_answer src_extend(source_fixture *f, const src_got *got)
{
    once_source *s = f->consumers[got->consumer];
    once_receipt d = src_delivery(got);
    src_ok(f, s->ops->extend(s, &d, 1, &f->err));
    return d.answer == ONCE_RECEIPT_OPEN ? ONCE_RECEIPT_DONE : d.answer;
}

void src_keep(source_fixture *f)
{
    if (!src_has(f, ONCE_SOURCE_EXPIRES | ONCE_SOURCE_SINGLE_ACKS)) return;
    once_receipt *all = calloc(f->n + 1, sizeof *all);
    assert_non_null(all);
    for (int consumer = 0; consumer < SRC_CONSUMERS; consumer++) {
        once_source *s = f->consumers[consumer];
        size_t n = 0;
        for (size_t i = 0; i < f->n; i++)
            if (f->got[i].consumer == consumer) all[n++] = src_delivery(&f->got[i]);
        if (n) src_ok(f, s->ops->extend(s, all, n, &f->err));
    }
    free(all);
}

void src_release(source_fixture *f, int consumer, uint32_t number)
{
    once_source *s = f->consumers[consumer];
    src_ok(f, s->ops->release(s, number, &f->err));
    f->seats[consumer][number] = (src_seat){0};
}

/* --- running --- */

typedef struct start {
    const source_driver *driver;
    const source_test *test;
} start;

static int fixture_open(void **state)
{
    const start *from = *state;
    source_fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->driver = from->driver;
    f->test = from->test;
    src_facts_init(&f->facts);
    *state = f;
    f->world = f->driver->make(f->driver);
    assert_non_null(f->world);
    return 0;
}

static int fixture_close(void **state)
{
    source_fixture *f = *state;
    bool intact = true;
    for (int i = 0; i < SRC_CONSUMERS; i++)
        if (f->consumers[i]) src_close(f, i);
    for (size_t i = 0; i < f->n; i++) { /* what came is as it was, whatever was done since */
        const once_message *m = &f->got[i].message;
        intact &= m->body.len == 0 || memcmp(m->body.data, f->got[i].body, m->body.len) == 0;
        intact &= memcmp(m->at.place.data, f->got[i].at, m->at.place.len) == 0;
    }
    src_forget(f);
    for (size_t i = 0; i < f->batches_n; i++) {
        once_arena_release(&f->batches[i]->arena);
        free(f->batches[i]);
    }
    free(f->got);
    free(f->batches);
    free(f->before);
    f->driver->unmake(f->world);
    free(f);
    if (!intact) print_error("a message was changed after it had been handed out\n");
    return intact ? 0 : -1;
}

static void run_row(void **state)
{
    source_fixture *f = *state;
    f->test->run(f);
}

int source_conform_run(const source_driver *driver)
{
    const source_test *const tables[] = {source_delivery, source_acks,   source_expiry,
                                         source_streams,  source_cursor, source_looks};
    static struct CMUnitTest tests[TESTS_MAX];
    static start starts[TESTS_MAX];
    size_t n = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const source_test *test = tables[t]; test->name; test++) {
            if ((bits_of(driver) & test->bits) != test->bits) continue; /* a promise that it does not make */
            assert(n < TESTS_MAX);
            starts[n] = (start){driver, test};
            tests[n] = (struct CMUnitTest){test->name, run_row, fixture_open, fixture_close, &starts[n]};
            n++;
        }
    return _cmocka_run_group_tests(driver->name, tests, n, NULL, NULL);
}
