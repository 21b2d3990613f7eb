/* The source of tests (testsource.h) with all kinds of bits: a log with partitions, queues, a stream that ends. */
#include "source_conform.h"
#include "testsource.h"

#include <stdlib.h>

typedef struct broker_world {
    test_broker *broker;
    once_spec spec;
} broker_world;

static void *make(const source_driver *driver)
{
    broker_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->broker = test_broker_new(driver->own);
    w->spec.message_max = SRC_MESSAGE_MAX;
    test_source_use(w->broker, &w->spec.source);
    return w;
}

static void unmake(void *world)
{
    broker_world *w = world;
    test_broker_free(w->broker);
    free(w);
}

static void put(void *world, unsigned stream, once_bytes body, once_bytes headers)
{
    test_broker_put(((broker_world *)world)->broker, stream, body, headers);
}

static int open_consumer(void *world, once_source_purpose purpose, once_source **out, once_error *err)
{
    broker_world *w = world;
    return once_source_open(&w->spec, once_env_real(), purpose, (once_cancel){0}, out, err);
}

static int open_missing(void *world, once_source **out, once_error *err)
{
    test_broker_down(((broker_world *)world)->broker, true);
    return open_consumer(world, ONCE_OPEN_RUN, out, err);
}

static const char *name_of(void *world, unsigned stream)
{
    static const char *const names[] = {"t-0", "t-1", "t-2"};
    (void)world;
    return names[stream];
}

static void pass(void *world, int64_t ms) { test_broker_pass(((broker_world *)world)->broker, ms); }
static void block(void *world, int64_t ms) { test_broker_block(((broker_world *)world)->broker, ms); }
static void hole(void *world, unsigned stream) { test_broker_hole(((broker_world *)world)->broker, stream); }
static void fail_fetches(void *world, bool fails) { test_broker_fail_fetches(((broker_world *)world)->broker, fails); }
static void fail_ack(void *world, size_t done) { test_broker_fail_acks(((broker_world *)world)->broker, 1, done); }
static void hold_acks(void *world, bool hold) { test_broker_hold_acks(((broker_world *)world)->broker, hold); }
static void lose(void *world, unsigned stream) { test_broker_lose(((broker_world *)world)->broker, stream); }

#define ANY (SRC_HEADERS | SRC_TEXT | SRC_BINARY | SRC_EMPTY | SRC_NO_BODY)
#define KEPT (ANY | SRC_REMEMBERS | ONCE_SOURCE_REDELIVERS)

/* NAME, the bits, what else there is. */
#define BROKERS(X)                                                                                                     \
    X("a log with partitions", KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_TIMED, .beat_ms = 300000) \
    X("a log with partitions, whose cursors the store keeps",                                                          \
      KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_CURSOR, .beat_ms = 300000)                         \
    X("a log whose cursor the store keeps", KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_CURSOR, 0)                         \
    X("a queue whose deliveries run out", KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES,   \
      .expires_ms = 30000, .held_max_ms = 200000)                                                                      \
    X("a queue without stable coordinates", KEPT | ONCE_SOURCE_SINGLE_ACKS, 0)                                         \
    X("queues with every bit",                                                                                         \
      KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES | ONCE_SOURCE_ASSIGNS |                \
          ONCE_SOURCE_FINITE,                                                                                          \
      .expires_ms = 30000, .held_max_ms = 200000)                                                                      \
    X("groups whose deliveries run out",                                                                               \
      KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES | ONCE_SOURCE_ASSIGNS,                 \
      .expires_ms = 30000)                                                                                             \
    X("a log whose deliveries run out", KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_EXPIRES, .expires_ms = 30000)          \
    X("a stream that ends", KEPT | ONCE_SOURCE_STABLE | ONCE_SOURCE_FINITE, 0)                                         \
    X("a stream that is gone when it was read", ANY | ONCE_SOURCE_FINITE, 0)

#define BITS(bits) ((bits)&0xffffu)

int main(void)
{
    int failed = 0;
#define RUN(title, bits_, ...)                                                                                         \
    {                                                                                                                  \
        const test_broker_options options = {                                                                          \
            .bits = BITS(bits_), .streams = 3, .within_ms = 10000, .block_ms = 5, __VA_ARGS__};                        \
        const source_driver driver = {.name = title,                                                                   \
                                      .bits = bits_,                                                                   \
                                      .streams = 3,                                                                    \
                                      .own = &options,                                                                 \
                                      .make = make,                                                                    \
                                      .unmake = unmake,                                                                \
                                      .put = put,                                                                      \
                                      .open = open_consumer,                                                           \
                                      .open_missing = open_missing,                                                    \
                                      .name_of = name_of,                                                              \
                                      .pass = pass,                                                                    \
                                      .block = block,                                                                  \
                                      .hole = hole,                                                                    \
                                      .fail_fetch = fail_fetches,                                                      \
                                      .fail_ack = fail_ack,                                                            \
                                      .hold_acks = hold_acks,                                                          \
                                      .lose = options.bits & ONCE_SOURCE_ASSIGNS ? lose : NULL,                        \
                                      .last_ms = options.held_max_ms};                                                 \
        failed += source_conform_run(&driver);                                                                         \
    }
    BROKERS(RUN)
    return failed;
}
