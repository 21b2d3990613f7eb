/* A consumer of the broker of tests. */
#include "testbroker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- a consumer: fetching --- */

static bool is_paused(const once_fetch *f, uint32_t number)
{
    for (size_t i = 0; i < f->n_paused; i++)
        if (f->paused[i] == number) return true;
    return false;
}

static held *next_of(test_stream *st, uint64_t from)
{
    for (size_t i = 0; i < st->n; i++)
        if (st->messages[i].state == WAITING && st->messages[i].offset >= from) return &st->messages[i];
    return NULL;
}

/* Of a message: behind it the stream goes on there. */
typedef struct test_resume {
    once_bytes name;
    uint64_t next;
} test_resume;

/* {"once:source": {...}, and the headers of the message. */
static once_bytes headers_of(const test_source *s, const test_stream *st, const held *m, once_arena *arena)
{
    if (!s->base.spec->source.named) return m->headers;
    char *text = once_arena_alloc(arena, m->headers.len + 120);
    if (!text) abort();
    const int len =
        snprintf(text, m->headers.len + 120, "{\"%s\":{\"stream\":\"%s\",\"offset\":%llu}%s%.*s", ONCE_SOURCE_MEMBER,
                 st->name, (unsigned long long)m->offset, m->headers.len > 2 ? "," : "}",
                 m->headers.len > 2 ? (int)m->headers.len - 1 : 0, m->headers.data + 1);
    return (once_bytes){text, (size_t)len};
}

static void add_item(test_source *s, once_batch *batch, uint32_t number, const test_stream *st, held *m)
{
    test_broker *b = s->broker;
    once_item *item = &batch->items[batch->n++];
    const size_t max = s->base.spec->message_max;
    const bool cut = max && m->body.len > max;
    char point[24];
    m->state = OUT;
    m->holder = s;
    m->tag = ++b->tags;
    m->out_ms = now_ms(b);
    m->until_ms = m->out_ms + b->o.expires_ms;
    m->times++;
    b->counts.handed_out++;
    *item = (once_item){.batch = batch,
                        .stream = number,
                        .delivery = single(b) ? m->tag : m->offset,
                        .message = {.sent_ms = b->o.bits & ONCE_SOURCE_TIMED ? m->sent_ms : ONCE_NO_TIME,
                                    .no_body = m->no_body,
                                    .cut_from = cut ? m->body.len : 0}};
    const int len = snprintf(point, sizeof point, "%llu",
                             (unsigned long long)(b->o.bits & ONCE_SOURCE_STABLE ? m->offset : m->tag));
    const once_bytes place = {st->name, strlen(st->name)};
    test_resume *resume = once_arena_new(&batch->arena, test_resume, 1);
    if (!resume) abort();
    *resume = (test_resume){.name = place, .next = m->offset + 1};
    item->resume = resume;
    if (!once_arena_copy(&batch->arena, (once_bytes){m->body.data, cut ? max : m->body.len}, &item->message.body) ||
        !once_arena_copy(&batch->arena, headers_of(s, st, m, &batch->arena), &item->message.headers) ||
        !once_arena_copy(&batch->arena, place, &item->message.at.place) ||
        !once_arena_copy(&batch->arena, (once_bytes){point, (size_t)len}, &item->message.at.point))
        abort();
}

static void tell(test_source *s, once_fetch *f)
{
    test_broker *b = s->broker;
    if (!assigns(b) && (b->o.bits & ONCE_SOURCE_EXPIRES) && !s->used[0]) { /* the one stream is there from the start */
        s->used[0] = true;
        f->news[f->n_news++] = (once_stream_news){.change = ONCE_STREAM_ASSIGNED, .expires_ms = b->o.expires_ms};
    }
    for (uint32_t i = 0; i < TEST_STREAMS; i++) {
        seat *at = &s->seats[i];
        once_stream_news news = {.stream = i};
        if (at->state == NEW) {
            at->state = OURS;
            news.change = ONCE_STREAM_ASSIGNED;
            news.expires_ms = b->o.bits & ONCE_SOURCE_EXPIRES ? b->o.expires_ms : 0;
        } else if (at->state == ASKED) {
            at->state = LEAVING;
            news.change = ONCE_STREAM_REVOKED;
            news.within_ms = b->streams[at->stream].until_ms - now_ms(b);
        } else if (at->state == TAKEN) {
            at->state = GONE;
            news.change = ONCE_STREAM_LOST;
        } else {
            continue;
        }
        f->news[f->n_news++] = news;
    }
}

/* One of each stream in turn. */
static void hand_out(test_source *s, once_fetch *f)
{
    test_broker *b = s->broker;
    for (size_t idle = 0; f->batch->n < f->max && idle < TEST_STREAMS; s->turn++) {
        const uint32_t number = (uint32_t)(s->turn % TEST_STREAMS);
        const seat *at = &s->seats[number];
        held *m = NULL;
        const bool told = at->sought || !(b->o.bits & ONCE_SOURCE_CURSOR);
        if (!is_paused(f, number) && told && (assigns(b) ? at->state == OURS : number == 0))
            m = next_of(&b->streams[assigns(b) ? at->stream : 0], at->from);
        idle = m ? 0 : idle + 1;
        if (m) add_item(s, f->batch, number, &b->streams[assigns(b) ? at->stream : 0], m);
    }
}

static bool is_over(const test_broker *b)
{
    if (!(b->o.bits & ONCE_SOURCE_FINITE)) return false;
    const bool again = b->o.bits & (ONCE_SOURCE_EXPIRES | ONCE_SOURCE_ASSIGNS); /* what is out may come back */
    for (unsigned i = 0; i < b->o.streams; i++)
        for (size_t k = 0; k < b->streams[i].n; k++)
            if (b->streams[i].messages[k].state == WAITING || (again && b->streams[i].messages[k].state == OUT))
                return false;
    return true;
}

/* True: something happened, or the time is over. */
static bool wait_for_news(test_broker *b, int64_t until_ms)
{
    const int64_t step_ms = real_ms() + 20 < until_ms ? real_ms() + 20 : until_ms; /* time that nobody moves */
    const struct timespec at = {.tv_sec = (time_t)(step_ms / 1000), .tv_nsec = (long)(step_ms % 1000) * 1000000};
    (void)pthread_cond_timedwait(&b->changed, &b->lock, &at);
    return real_ms() >= until_ms;
}

static int down(once_error *err) { return once_fail(err, ONCE_E_UNAVAILABLE, "the broker of the test is away"); }

static int fetch_some(test_source *s, once_fetch *f, once_error *err)
{
    test_broker *b = s->broker;
    const int64_t until_ms = real_ms() + b->o.block_ms;
    for (;;) {
        test__tick(b);
        if (b->down) return down(err);
        if (b->fail_fetches) {
            b->fail_fetches--;
            return down(err);
        }
        s->fetched_ms = now_ms(b);
        s->member = true;
        test__spread(b);
        tell(s, f);
        hand_out(s, f);
        f->at_end = is_over(b);
        if (f->batch->n || f->n_news || f->at_end || f->rest || f->max == 0 || s->woken) return ONCE_OK;
        if (wait_for_news(b, until_ms)) return ONCE_OK;
    }
}

/* Copies, of which the broker knows nothing. */
static void read_again(test_source *s, once_fetch *f)
{
    while (s->looks && f->batch->n < f->max && s->look_at < s->looks->n) {
        held copy = s->looks->messages[s->look_at++];
        add_item(s, f->batch, 0, s->looks, &copy);
        s->broker->counts.handed_out--;
    }
    f->at_end = f->batch->n == 0;
}

static int test_fetch(once_source *source, once_fetch *f, once_error *err)
{
    test_source *s = (test_source *)source;
    f->batch->n = f->n_news = 0;
    f->at_end = false;
    f->batch->items = once_arena_new(&f->batch->arena, once_item, f->max ? f->max : 1);
    f->news = once_arena_new(&f->batch->arena, once_stream_news, TEST_STREAMS);
    assert(f->batch->items && f->news);
    lock(s->broker);
    s->broker->counts.fetches++;
    int rc = ONCE_OK;
    if (s->purpose == ONCE_OPEN_RUN) rc = fetch_some(s, f, err);
    else read_again(s, f);
    s->woken = false;
    unlock(s->broker);
    return rc;
}

static void test_wake(once_source *source)
{
    test_source *s = (test_source *)source;
    WITH_LOCK(s->broker, s->woken = true);
}

/* --- a consumer: acks --- */

/* Whose stream it is by this number. NULL: not ours, any more. */
static test_stream *stream_of(test_source *s, uint32_t number)
{
    test_broker *b = s->broker;
    if (!assigns(b)) return number == 0 ? &b->streams[0] : NULL;
    const seat *at = number < TEST_STREAMS ? &s->seats[number] : NULL;
    const bool ours = at && at->state != FREE && at->state != TAKEN && at->state != GONE;
    return ours ? &b->streams[at->stream] : NULL;
}

static held *find(const test_source *s, const test_stream *st, uint64_t delivery)
{
    for (size_t i = 0; i < st->n; i++)
        if (single(s->broker) ? st->messages[i].tag == delivery && delivery : st->messages[i].offset == delivery)
            return &st->messages[i];
    return NULL;
}

static void set_acked(test_broker *b, held *m)
{
    b->counts.acked += m->state != ACKED;
    m->state = ACKED;
}

/* An ack of a stream that is lost may be on its way when the consumer hears of it: fetch and ack have threads of their
 * own. A release comes from the thread of the acks, so nothing comes behind it. */
static void not_ours(test_source *s, uint32_t number)
{
    test_broker *b = s->broker;
    const bool known = number < TEST_STREAMS && s->used[number];
    if (known && s->seats[number].state == FREE) b->counts.late_acks++;
    else if (!known) b->counts.wrong_acks++;
}

static once_receipt_answer ack_one(test_source *s, const once_receipt *d)
{
    test_broker *b = s->broker;
    test_stream *st = stream_of(s, d->stream);
    if (!st) {
        not_ours(s, d->stream);
        return ONCE_RECEIPT_GONE;
    }
    held *m = find(s, st, d->delivery);
    if (!m) {
        b->counts.wrong_acks += !single(b) || d->delivery == 0 || d->delivery > b->tags;
        return ONCE_RECEIPT_GONE;
    }
    if (m->state == WAITING || m->holder != s) return ONCE_RECEIPT_GONE;
    if (single(b)) {
        set_acked(b, m);
        return ONCE_RECEIPT_DONE;
    }
    for (held *each = st->messages; each <= m; each++) set_acked(b, each);
    return ONCE_RECEIPT_DONE;
}

static int test_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    test_source *s = (test_source *)source;
    test_broker *b = s->broker;
    int rc = ONCE_OK;
    lock(b);
    while (b->hold_acks) (void)pthread_cond_wait(&b->changed, &b->lock);
    test__tick(b);
    const bool fails = b->fail_acks > 0;
    for (size_t i = 0; i < n; i++) list[i].answer = ONCE_RECEIPT_OPEN;
    for (size_t i = 0; i < n && !b->down && !(fails && i >= b->fail_done); i++) list[i].answer = ack_one(s, &list[i]);
    if (b->down) rc = down(err);
    if (fails) {
        b->fail_acks--;
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "the broker of the test acked %zu of %zu", b->fail_done, n);
    }
    if (rc == ONCE_OK && b->lose_replies) {
        b->lose_replies--;
        for (size_t i = 0; i < n; i++) list[i].answer = ONCE_RECEIPT_OPEN;
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "the reply of the broker of the test was lost");
    }
    unlock(b);
    return rc;
}

static once_receipt_answer extend_one(test_source *s, const once_receipt *d)
{
    test_broker *b = s->broker;
    test_stream *st = stream_of(s, d->stream);
    held *m = st ? find(s, st, d->delivery) : NULL;
    if (!m || m->state != OUT || m->holder != s) return ONCE_RECEIPT_GONE;
    const int64_t last_ms = b->o.held_max_ms ? m->out_ms + b->o.held_max_ms : INT64_MAX;
    b->counts.extended++;
    m->until_ms = now_ms(b) + b->o.expires_ms;
    if (m->until_ms < last_ms) return ONCE_RECEIPT_DONE;
    m->until_ms = last_ms;
    return ONCE_RECEIPT_LAST;
}

static int test_extend(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    test_source *s = (test_source *)source;
    lock(s->broker);
    test__tick(s->broker);
    const int rc = s->broker->down ? down(err) : ONCE_OK;
    for (size_t i = 0; i < n; i++) list[i].answer = rc == ONCE_OK ? extend_one(s, &list[i]) : ONCE_RECEIPT_OPEN;
    unlock(s->broker);
    return rc;
}

static int test_release(once_source *source, uint32_t number, once_error *err)
{
    test_source *s = (test_source *)source;
    test_broker *b = s->broker;
    assert(number < TEST_STREAMS);
    lock(b);
    test__tick(b);
    const int rc = b->down ? down(err) : ONCE_OK;
    seat *at = &s->seats[number];
    if (rc == ONCE_OK && at->state != FREE) {
        b->counts.released++;
        if (at->state != GONE && at->state != TAKEN) test__take_away(b, at->stream);
        *at = (seat){.times = at->times};
        test__spread(b);
    }
    unlock(b);
    return rc;
}

/* --- a consumer: its cursors --- */

static int test_seek(once_source *source, uint32_t number, const once_facts *facts, once_error *err)
{
    test_source *s = (test_source *)source;
    test_broker *b = s->broker;
    once_arena arena = {0};
    once_bytes text = {0};
    lock(b);
    seat *at = &s->seats[number];
    test_stream *st = stream_of(s, number);
    const once_bytes name = st ? (once_bytes){st->name, strlen(st->name)} : (once_bytes){0};
    const uint64_t times = at->times;
    const bool refuses = st && st->refuses_seeks;
    unlock(b);
    if (refuses) return down(err);
    int rc = st && (b->o.bits & ONCE_SOURCE_CURSOR) ? facts->get(facts, "cursor", name, &text, &arena, err) : ONCE_OK;
    lock(b);
    if (rc == ONCE_OK && st && at->times == times && stream_of(s, number) == st) {
        at->from = 0;
        for (size_t i = 0; i < text.len; i++) at->from = at->from * 10 + (uint64_t)(text.data[i] - '0');
        at->sought = true;
        if (text.len) test__rewind(st, at->from);
    }
    unlock(b);
    once_arena_release(&arena);
    return rc;
}

static int test_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                     const once_item *const *last, size_t n_last, once_error *err)
{
    (void)source, (void)items, (void)n; /* its coordinates mean the same without anything that is kept */
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < n_last; i++) {
        const test_resume *resume = last[i]->resume;
        char text[24];
        const int len = snprintf(text, sizeof text, "%llu", (unsigned long long)resume->next);
        rc = facts->set(facts, "cursor", resume->name, (once_bytes){text, (size_t)len}, err);
    }
    return rc;
}

/* --- a consumer: the rest --- */

static int64_t test_lag(once_source *source, uint32_t number)
{
    test_source *s = (test_source *)source;
    int64_t n = 0;
    lock(s->broker);
    const test_stream *st = stream_of(s, number);
    for (size_t i = 0; st && i < st->n; i++) n += st->messages[i].state == WAITING;
    unlock(s->broker);
    return st ? n : -1;
}

static const char *test_stream_name(once_source *source, uint32_t number)
{
    test_source *s = (test_source *)source;
    lock(s->broker);
    const char *name =
        s->broker->streams[assigns(s->broker) && number < TEST_STREAMS ? s->seats[number].stream : 0].name;
    unlock(s->broker);
    return name;
}

static int64_t test_beat_ms(const once_source *source) { return ((const test_source *)source)->broker->o.beat_ms; }
static unsigned test_bits(const once_source *source) { return ((const test_source *)source)->broker->o.bits; }

static void test_close(once_source *source)
{
    test_source *s = (test_source *)source;
    test_broker *b = s->broker;
    lock(b);
    for (unsigned i = 0; i < b->o.streams; i++) {
        if (b->streams[i].owner == s) test__take_away(b, i);
        if (b->streams[i].not_to == s) b->streams[i].not_to = NULL;
        /* A queue waits until they run out; a broker that sees a connection end does not. */
        if ((b->o.bits & ONCE_SOURCE_REDELIVERS) && !(b->o.bits & ONCE_SOURCE_EXPIRES))
            test__put_back(&b->streams[i], s);
        for (size_t k = 0; k < b->streams[i].n; k++)
            if (b->streams[i].messages[k].holder == s) b->streams[i].messages[k].holder = NULL;
    }
    test_source **at = &b->consumers;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    test__spread(b);
    unlock(b);
    free(s);
}

static bool test_has(const once_source_spec *source, once_bytes place)
{
    const test_broker *b = source->own;
    for (unsigned i = 0; i < b->o.streams; i++)
        if (once_bytes_equal(place, (once_bytes){b->streams[i].name, strlen(b->streams[i].name)})) return true;
    return false;
}

static int test_look(once_source *source, once_coordinates at, const once_facts *facts, once_error *err)
{
    test_source *s = (test_source *)source;
    test_broker *b = s->broker;
    uint64_t offset = 0;
    (void)facts, (void)err;
    assert(s->purpose == ONCE_OPEN_LOOK);
    for (size_t i = 0; i < at.point.len; i++) offset = offset * 10 + (uint64_t)(at.point.data[i] - '0');
    lock(b);
    for (unsigned i = 0; i < b->o.streams; i++)
        if (once_bytes_equal(at.place, (once_bytes){b->streams[i].name, strlen(b->streams[i].name)}))
            s->looks = &b->streams[i];
    for (s->look_at = 0; s->looks && s->look_at < s->looks->n && s->looks->messages[s->look_at].offset < offset;)
        s->look_at++;
    unlock(b);
    return ONCE_OK;
}

static int test_ask(once_source *source, const once_facts *facts, once_source_report *report, void *user,
                    once_error *err)
{
    (void)facts;
    test_source *s = (test_source *)source;
    const test_broker_options *o = &s->broker->o;
    const char *why = o->asks_fail ? "not authorized" : NULL;
    assert(s->purpose == ONCE_OPEN_CHECK);
    if (s->broker->down || o->asks_down) return down(err);
    if (o->retention_ms)
        report(user, &(once_source_finding){.limit = ONCE_LIMIT_RETENTION,
                                            .value = o->retention_ms,
                                            .of = "topic 't'",
                                            .setting = "retention.ms",
                                            .text = why});
    if (o->deliveries_max)
        report(user, &(once_source_finding){.limit = ONCE_LIMIT_DELIVERIES,
                                            .value = o->deliveries_max,
                                            .of = "queue 't'",
                                            .setting = "maxReceiveCount",
                                            .text = why});
    unsigned members = 0;
    for (const test_source *each = s->broker->consumers; each; each = each->next) members += each->member;
    char text[60];
    (void)snprintf(text, sizeof text, "the group has %u member%s", members, members == 1 ? "" : "s");
    if (assigns(s->broker)) report(user, &(once_source_finding){.text = text});
    return ONCE_OK;
}

static int test_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                     once_source **out, once_error *err)
{
    (void)cancel;
    test_broker *b = (test_broker *)spec->source.own;
    lock(b);
    const int rc = b->down ? down(err) : ONCE_OK;
    if (rc == ONCE_OK) {
        test_source *s = calloc(1, sizeof *s);
        assert(s);
        s->base = (once_source){.ops = &test_source_ops, .spec = spec, .env = env};
        s->broker = b;
        s->purpose = purpose;
        s->member = purpose == ONCE_OPEN_RUN;
        s->fetched_ms = now_ms(b);
        s->next = b->consumers;
        b->consumers = s;
        test__spread(b);
        *out = &s->base;
    }
    unlock(b);
    return rc;
}

static void test_secrets(const once_source_spec *source, once_secret_visit *visit, void *user)
{
    const char *secret = ((const test_broker *)source->own)->o.secret;
    if (secret) visit(user, (once_bytes){secret, strlen(secret)}, false);
}

static void test_exposed(const once_source_spec *source, once_source_warning *warn, void *user)
{
    if (((const test_broker *)source->own)->o.secret) warn(user, "the broker of the test is not encrypted");
}

static const char *const test_names[] = {"stream", "offset", NULL};

const once_source_kind test_source_kind = {.name = "test",
                                           .unit = "messages",
                                           .names = test_names,
                                           .summary = "a broker in memory",
                                           .ops = &test_source_ops,
                                           .has = test_has,
                                           .secrets = test_secrets,
                                           .exposed = test_exposed};

const once_source_ops test_source_ops = {
    .open = test_open,
    .close = test_close,
    .bits = test_bits,
    .seek = test_seek,
    .keep = test_keep,
    .look = test_look,
    .ask = test_ask,
    .fetch = test_fetch,
    .ack = test_ack,
    .extend = test_extend,
    .release = test_release,
    .wake = test_wake,
    .lag = test_lag,
    .stream_name = test_stream_name,
    .beat_ms = test_beat_ms,
};

void test_source_use(test_broker *b, once_source_spec *source)
{
    *source = (once_source_spec){.kind = &test_source_kind,
                                 .own = b,
                                 .bits = b->o.bits,
                                 .name = ONCE_BYTES("test"),
                                 .bytes = source->bytes,
                                 .tombstones = source->tombstones,
                                 .line = source->line};
}
