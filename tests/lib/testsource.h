/* A broker in memory, and the source that belongs to it, with every capability bit of source/source.h: streams that are
 * assigned and revoked, acks of one delivery or of everything up to it, deliveries that run out and can be extended up
 * to a maximum, offsets with holes, and failures when a test wants them.
 *
 * It is one broker for any number of consumers (sources), which share its streams. Its time is in the test's hand, or
 * the real one. It remembers what a consumer must not do, and did.
 *
 * Thread rule: any thread. A consumer keeps the thread rule of source/source.h. */
#ifndef ONCE_TESTS_TESTSOURCE_H
#define ONCE_TESTS_TESTSOURCE_H

#include "source/source.h"

#define TEST_STREAMS 8

typedef struct test_broker test_broker;

typedef struct test_broker_options {
    unsigned bits;       /* ONCE_SOURCE_... */
    unsigned streams;    /* "t-0", "t-1"...; without ASSIGNS there is one */
    int64_t expires_ms;  /* EXPIRES: for how long a delivery is its consumer's */
    int64_t held_max_ms; /* EXPIRES: for how long at most, however often it is extended; 0: for ever */
    int64_t within_ms;   /* ASSIGNS: how long a stream that is revoked is waited for */
    int64_t beat_ms;     /* a consumer that does not fetch for longer loses its streams; 0: that does not matter */
    int64_t block_ms;    /* how long a fetch waits for something to come, in real time */
    /* What it says when it is asked; 0: nothing. */
    int64_t retention_ms, deliveries_max;
    const char *secret; /* a value of its configuration, as it is written; NULL: none */
    bool asks_fail;     /* and that it may not say it */
    bool asks_down;     /* it does not answer what it is asked */
    bool real_time;     /* otherwise time passes by test_broker_pass */
} test_broker_options;

test_broker *test_broker_new(const test_broker_options *options);
void test_broker_free(test_broker *broker); /* all of its sources are closed */

void test_broker_put(test_broker *broker, unsigned stream, once_bytes body, once_bytes headers);
void test_broker_hole(test_broker *broker, unsigned stream); /* an offset that no message has */
void test_broker_pass(test_broker *broker, int64_t ms);
void test_broker_forget_acks(test_broker *broker);       /* it has lost them, and would hand out all again */
void test_broker_block(test_broker *broker, int64_t ms); /* how long fetches wait from now on */

/* A consumer is opened by the spec of a pipeline whose source is made this broker. */
void test_source_use(test_broker *broker, once_source_spec *source);
extern const once_source_kind test_source_kind;
extern const once_source_ops test_source_ops;

/* --- what goes wrong --- */

void test_broker_down(test_broker *broker, bool down); /* nothing can be opened, fetched, acked, extended, released */
void test_broker_fail_fetches(test_broker *broker, unsigned calls);
void test_broker_refuse_seeks(test_broker *broker, unsigned stream, bool refuse); /* its place is not known */
/* Of each list that many are done, and their answers say so. */
void test_broker_fail_acks(test_broker *broker, unsigned calls, size_t done);
void test_broker_lose_ack_replies(test_broker *broker, unsigned calls); /* all is done, and the call fails */
void test_broker_hold_acks(test_broker *broker, bool hold);             /* acks do not come back until they may */
void test_broker_revoke(test_broker *broker,
                        unsigned stream);                    /* for another consumer; it stays alone if there is none */
void test_broker_lose(test_broker *broker, unsigned stream); /* the same, without asking its consumer */
void test_broker_rebalance(test_broker *broker);             /* streams that were left alone are assigned again */

/* --- what happened --- */

typedef struct test_broker_counts {
    uint64_t put, handed_out, acked, extended, ran_out, fetches;
    uint64_t released, lost; /* streams */
    uint64_t late_acks;      /* acks of a stream that its consumer had released */
    uint64_t wrong_acks;     /* acks of what its consumer was never given */
    uint64_t overdue;        /* streams that were not released in time by a consumer that knew */
} test_broker_counts;

test_broker_counts test_broker_count(test_broker *broker);
/* Of one message, in the order in which they were put into their stream: how often it was handed out, whether it was
 * acked. */
uint64_t test_broker_times(test_broker *broker, unsigned stream, size_t message);
bool test_broker_acked(test_broker *broker, unsigned stream, size_t message);
size_t test_broker_unacked(test_broker *broker, unsigned stream);
bool test_broker_is_assigned(test_broker *broker, unsigned stream); /* to anybody */

#endif
