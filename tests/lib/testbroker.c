/* The broker of tests: who has which stream, what runs out, and what goes wrong. */
#include "testbroker.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- who has which stream --- */

static seat *seat_of(test_source *s, unsigned stream)
{
    for (size_t i = 0; i < TEST_STREAMS; i++)
        if (s->seats[i].state != FREE && s->seats[i].state != GONE && s->seats[i].state != TAKEN &&
            s->seats[i].stream == stream)
            return &s->seats[i];
    return NULL;
}

static void give(test_broker *b, unsigned stream, test_source *s)
{
    size_t i = 0;
    while (i < TEST_STREAMS && s->seats[i].state != FREE) i++;
    if (i == TEST_STREAMS) return; /* when it has released one */
    s->seats[i] = (seat){.state = NEW, .stream = stream, .times = s->seats[i].times + 1};
    s->used[i] = true;
    b->streams[stream].owner = s;
    b->streams[stream].leaves = b->streams[stream].alone = false;
    b->streams[stream].not_to = NULL;
}

void test__put_back(test_stream *st, const test_source *holder)
{
    for (size_t i = 0; i < st->n; i++)
        if (st->messages[i].state == OUT && (!holder || st->messages[i].holder == holder))
            st->messages[i].state = WAITING;
}

void test__take_away(test_broker *b, unsigned stream)
{
    test_source *s = b->streams[stream].owner;
    seat *at = seat_of(s, stream);
    assert(at);
    if (at->state == NEW) at->state = FREE;
    else at->state = at->state == LEAVING ? GONE : TAKEN;
    b->counts.lost += at->state == TAKEN;
    test__put_back(&b->streams[stream], s);
    b->streams[stream].owner = NULL;
    b->streams[stream].leaves = false;
    b->streams[stream].not_to = s;
}

static void ask_back(test_broker *b, unsigned stream)
{
    seat *at = seat_of(b->streams[stream].owner, stream);
    assert(at);
    if (at->state == NEW) {
        test__take_away(b, stream);
    } else if (at->state == OURS) {
        at->state = ASKED;
        b->streams[stream].leaves = true;
        b->streams[stream].until_ms = now_ms(b) + b->o.within_ms;
    }
}

static unsigned has(const test_broker *b, const test_source *s)
{
    unsigned n = 0;
    for (unsigned i = 0; i < b->o.streams; i++) n += b->streams[i].owner == s && !b->streams[i].leaves;
    return n;
}

static test_source *least(const test_broker *b, const test_source *but)
{
    test_source *found = NULL;
    for (test_source *s = b->consumers; s; s = s->next)
        if (s->member && s != but && (!found || has(b, s) < has(b, found))) found = s;
    return found;
}

void test__spread(test_broker *b)
{
    if (!assigns(b)) return;
    unsigned members = 0;
    for (const test_source *s = b->consumers; s; s = s->next) members += s->member;
    if (members == 0) return;
    const unsigned most = (b->o.streams + members - 1) / members;
    for (test_source *s = b->consumers; s; s = s->next)
        for (unsigned i = b->o.streams; i > 0 && has(b, s) > most; i--)
            if (b->streams[i - 1].owner == s && !b->streams[i - 1].leaves) ask_back(b, i - 1);
    for (unsigned i = 0; i < b->o.streams; i++) {
        test_stream *st = &b->streams[i];
        if (st->owner) continue;
        test_source *to = least(b, st->not_to);
        if (!to && !st->alone) to = least(b, NULL);
        if (to) give(b, i, to);
    }
}

/* --- time --- */

static void run_out(test_broker *b, test_stream *st)
{
    for (size_t i = 0; i < st->n; i++) {
        held *m = &st->messages[i];
        if (m->state != OUT || m->until_ms > now_ms(b)) continue;
        m->state = WAITING;
        b->counts.ran_out++;
    }
}

void test__tick(test_broker *b)
{
    for (unsigned i = 0; i < b->o.streams; i++) {
        test_stream *st = &b->streams[i];
        if (b->o.bits & ONCE_SOURCE_EXPIRES) run_out(b, st);
        if (!st->leaves || st->until_ms > now_ms(b)) continue;
        b->counts.overdue += seat_of(st->owner, i)->state == LEAVING;
        test__take_away(b, i);
    }
    for (test_source *s = b->consumers; s && b->o.beat_ms; s = s->next) {
        if (!s->member || now_ms(b) - s->fetched_ms <= b->o.beat_ms) continue;
        s->member = false;
        for (unsigned i = 0; i < b->o.streams; i++)
            if (b->streams[i].owner == s) test__take_away(b, i);
    }
    test__spread(b);
}

/* --- the broker --- */

test_broker *test_broker_new(const test_broker_options *options)
{
    test_broker *b = calloc(1, sizeof *b);
    assert(b && options->streams <= TEST_STREAMS);
    b->o = *options;
    if (!assigns(b)) b->o.streams = 1;
    assert(b->o.streams > 0);
    b->now_ms = 1000;
    for (unsigned i = 0; i < b->o.streams; i++) {
        (void)snprintf(b->streams[i].name, sizeof b->streams[i].name, "t-%u", i);
        b->streams[i].next_offset = 1000 * (uint64_t)i; /* so that one cannot be taken for another's */
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&b->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_mutex_init(&b->lock, NULL);
    return b;
}

void test_broker_free(test_broker *b)
{
    assert(!b->consumers);
    for (unsigned i = 0; i < b->o.streams; i++) {
        for (size_t k = 0; k < b->streams[i].n; k++) {
            free((char *)b->streams[i].messages[k].body.data);
            free((char *)b->streams[i].messages[k].headers.data);
        }
        free(b->streams[i].messages);
    }
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

static once_bytes copy(once_bytes from)
{
    char *data = malloc(from.len + 1);
    assert(data);
    if (from.len) memcpy(data, from.data, from.len);
    return (once_bytes){data, from.len};
}

void test_broker_put(test_broker *b, unsigned stream, once_bytes body, once_bytes headers)
{
    lock(b);
    assert(stream < b->o.streams);
    test_stream *st = &b->streams[stream];
    if (st->n == st->size) {
        st->size = st->size ? 2 * st->size : 64;
        st->messages = realloc(st->messages, st->size * sizeof *st->messages);
        assert(st->messages);
    }
    st->messages[st->n++] = (held){.body = copy(body),
                                   .no_body = !body.data,
                                   .sent_ms = now_ms(b),
                                   .headers = copy(headers),
                                   .offset = st->next_offset++};
    b->counts.put++;
    unlock(b);
}

void test_broker_hole(test_broker *b, unsigned stream) { WITH_LOCK(b, b->streams[stream].next_offset++); }
void test_broker_pass(test_broker *b, int64_t ms) { WITH_LOCK(b, b->now_ms += ms, test__tick(b)); }
void test__rewind(test_stream *st, uint64_t from)
{
    for (size_t i = 0; i < st->n; i++)
        if (st->messages[i].state == ACKED && st->messages[i].offset >= from) st->messages[i].state = WAITING;
}

void test_broker_forget_acks(test_broker *b)
{
    lock(b);
    for (unsigned i = 0; i < b->o.streams; i++) test__rewind(&b->streams[i], 0);
    unlock(b);
}

void test_broker_block(test_broker *b, int64_t ms) { WITH_LOCK(b, b->o.block_ms = ms); }
void test_broker_down(test_broker *b, bool down) { WITH_LOCK(b, b->down = down); }
void test_broker_fail_fetches(test_broker *b, unsigned calls) { WITH_LOCK(b, b->fail_fetches = calls); }
void test_broker_refuse_seeks(test_broker *b, unsigned stream, bool refuse)
{
    WITH_LOCK(b, b->streams[stream].refuses_seeks = refuse);
}
void test_broker_lose_ack_replies(test_broker *b, unsigned calls) { WITH_LOCK(b, b->lose_replies = calls); }
void test_broker_hold_acks(test_broker *b, bool hold) { WITH_LOCK(b, b->hold_acks = hold); }

void test_broker_fail_acks(test_broker *b, unsigned calls, size_t done)
{
    WITH_LOCK(b, b->fail_acks = calls, b->fail_done = done);
}

void test_broker_revoke(test_broker *b, unsigned stream)
{
    lock(b);
    assert(assigns(b) && b->streams[stream].owner);
    b->streams[stream].alone = true;
    ask_back(b, stream);
    unlock(b);
}

void test_broker_lose(test_broker *b, unsigned stream)
{
    lock(b);
    assert(assigns(b) && b->streams[stream].owner);
    b->streams[stream].alone = true;
    test__take_away(b, stream);
    test__spread(b);
    unlock(b);
}

void test_broker_rebalance(test_broker *b)
{
    lock(b);
    for (unsigned i = 0; i < b->o.streams; i++) b->streams[i].alone = false;
    test__spread(b);
    unlock(b);
}

test_broker_counts test_broker_count(test_broker *b)
{
    lock(b);
    test__tick(b);
    const test_broker_counts counts = b->counts;
    unlock(b);
    return counts;
}

uint64_t test_broker_times(test_broker *b, unsigned stream, size_t message)
{
    lock(b);
    assert(message < b->streams[stream].n);
    const uint64_t times = b->streams[stream].messages[message].times;
    unlock(b);
    return times;
}

bool test_broker_acked(test_broker *b, unsigned stream, size_t message)
{
    lock(b);
    assert(message < b->streams[stream].n);
    const bool acked = b->streams[stream].messages[message].state == ACKED;
    unlock(b);
    return acked;
}

size_t test_broker_unacked(test_broker *b, unsigned stream)
{
    size_t n = 0;
    lock(b);
    for (size_t i = 0; i < b->streams[stream].n; i++) n += b->streams[stream].messages[i].state != ACKED;
    unlock(b);
    return n;
}

bool test_broker_is_assigned(test_broker *b, unsigned stream)
{
    lock(b);
    const bool is = b->streams[stream].owner != NULL;
    unlock(b);
    return is;
}
