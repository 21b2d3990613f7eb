/* Between the broker of tests (testbroker.c) and its consumers (testsource.c). */
#ifndef ONCE_TESTS_TESTBROKER_H
#define ONCE_TESTS_TESTBROKER_H

#include <pthread.h>
#include <time.h>

#include "testsource.h"

typedef struct test_source test_source;

typedef struct held {
    once_bytes body, headers;
    bool no_body;
    int64_t sent_ms;
    uint64_t offset;
    enum { WAITING, OUT, ACKED } state;
    const test_source *holder; /* OUT, or ACKED by */
    uint64_t tag;              /* of its last delivery */
    int64_t out_ms, until_ms;
    uint64_t times;
} held;

typedef struct test_stream {
    char name[16];
    held *messages;
    size_t n, size;
    uint64_t next_offset;
    test_source *owner;        /* ASSIGNS */
    const test_source *not_to; /* it has just lost or left it: others first */
    bool leaves;               /* its owner must release it until */
    int64_t until_ms;
    bool alone; /* by hand, and there was nobody else */
    bool refuses_seeks;
} test_stream;

/* What a consumer has behind a number. */
typedef struct seat {
    enum { FREE, NEW, OURS, ASKED, LEAVING, TAKEN, GONE } state; /* ASKED, TAKEN: to leave, lost, and does not know */
    unsigned stream;
    bool sought; /* CURSOR: it has heard where it goes on, which is */
    uint64_t from;
    uint64_t times; /* that somebody had this seat */
} seat;

struct test_source {
    once_source base;
    test_broker *broker;
    seat seats[TEST_STREAMS];
    bool used[TEST_STREAMS]; /* a number that once was a stream */
    bool woken, member;
    once_source_purpose purpose;
    const test_stream *looks; /* LOOK: of which, from there on */
    size_t look_at;
    int64_t fetched_ms;
    size_t turn;
    test_source *next;
};

struct test_broker {
    test_broker_options o;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    test_stream streams[TEST_STREAMS];
    test_source *consumers;
    int64_t now_ms;
    uint64_t tags;
    bool down, hold_acks;
    unsigned fail_fetches, fail_acks, lose_replies;
    size_t fail_done;
    test_broker_counts counts;
};

static inline void lock(test_broker *b) { (void)pthread_mutex_lock(&b->lock); }

static inline void unlock(test_broker *b)
{
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static inline int64_t real_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int64_t now_ms(const test_broker *b) { return b->o.real_time ? real_ms() : b->now_ms; }
static inline bool assigns(const test_broker *b) { return b->o.bits & ONCE_SOURCE_ASSIGNS; }
static inline bool single(const test_broker *b) { return b->o.bits & ONCE_SOURCE_SINGLE_ACKS; }

#define WITH_LOCK(b, ...)                                                                                              \
    do {                                                                                                               \
        lock(b);                                                                                                       \
        __VA_ARGS__;                                                                                                   \
        unlock(b);                                                                                                     \
    } while (0)

void test__put_back(test_stream *st, const test_source *holder); /* NULL: whoever has it */
/* The stream is nobody's. Its owner hears of it, unless it knows that it must leave. */
void test__take_away(test_broker *b, unsigned stream);
void test__rewind(test_stream *st, uint64_t from); /* a log hands out again what was acked */
void test__spread(test_broker *b);                 /* streams among the consumers */
void test__tick(test_broker *b);                   /* what follows from the time */

#endif
