/* The Kafka source against a real broker (ONCE_TEST_KAFKA=HOST:PORT), with the group's offsets and with cursors of the
 * store. Each test has a topic and a group of its own. */
#include "source_conform.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "testenv.h"

#ifdef ONCE_WITH_KAFKA
#include <librdkafka/rdkafka.h>

#include "source/kafka/kafka.h"

enum { PARTITIONS = 3, POLL_MAX_MS = 4000 };

/* --- faults of the way to the broker, which other tests use, too --- */

static uint16_t port; /* of the broker */
static atomic_bool is_cut, is_held;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sockets[256];
static size_t n_sockets;

static bool is_to_broker(const struct sockaddr *address)
{
    return address->sa_family == AF_INET && ntohs(((const struct sockaddr_in *)address)->sin_port) == port;
}

/* In place of the system's, also for librdkafka: while the way is cut, nobody is there. */
int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t len)
{
    static int (*real)(int, __CONST_SOCKADDR_ARG, socklen_t);
    pthread_mutex_lock(&lock);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "connect");
    const bool ours = is_to_broker(address.__sockaddr__), cut = ours && atomic_load(&is_cut);
    if (ours && !cut) sockets[n_sockets++ % (sizeof sockets / sizeof *sockets)] = fd;
    pthread_mutex_unlock(&lock);
    if (!cut) return real(fd, address, len);
    errno = ECONNREFUSED;
    return -1;
}

/* Ends the connections that there are; some of the numbers may belong to others meanwhile. */
static void cut_all(void)
{
    const size_t all = sizeof sockets / sizeof *sockets;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < (n_sockets < all ? n_sockets : all); i++) {
        struct sockaddr_in peer = {0};
        socklen_t len = sizeof peer;
        if (getpeername(sockets[i], (struct sockaddr *)&peer, &len) == 0 && is_to_broker((struct sockaddr *)&peer))
            (void)shutdown(sockets[i], SHUT_RDWR);
    }
    n_sockets = 0;
    pthread_mutex_unlock(&lock);
}

/* In place of librdkafka's: every ack goes through it. */
rd_kafka_resp_err_t
rd_kafka_commit_queue(rd_kafka_t *client, const rd_kafka_topic_partition_list_t *offsets, rd_kafka_queue_t *queue,
                      void (*on_commit)(rd_kafka_t *, rd_kafka_resp_err_t, rd_kafka_topic_partition_list_t *, void *),
                      void *opaque)
{
    static _Atomic(void *) real;
    if (!atomic_load(&real)) atomic_store(&real, dlsym(RTLD_NEXT, "rd_kafka_commit_queue"));
    while (atomic_load(&is_held)) once_env_sleep_ms(once_env_real(), 2);
    __typeof__(&rd_kafka_commit_queue) then;
    *(void **)&then = atomic_load(&real);
    return then(client, offsets, queue, on_commit, opaque);
}

/* --- a topic --- */

typedef struct kafka_world {
    once_source *consumer; /* the last one */
    char topic[64];
    char names[PARTITIONS][80];
    rd_kafka_t *producer;
    rd_kafka_topic_t *handle;
    bool in_transactions;
    once_spec spec;
    once_source_spec *source;
    once_kafka_spec kafka;
    once_bytes brokers, topics;
    once_written config[8];
} kafka_world;

static const char *brokers;

static rd_kafka_t *make_producer(const char *transactional_id)
{
    char why[300];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    assert_int_equal(rd_kafka_conf_set(conf, "bootstrap.servers", brokers, why, sizeof why), RD_KAFKA_CONF_OK);
    assert_int_equal(rd_kafka_conf_set(conf, "linger.ms", "0", why, sizeof why), RD_KAFKA_CONF_OK);
    assert_int_equal(rd_kafka_conf_set(conf, "message.max.bytes", "4000000", why, sizeof why), RD_KAFKA_CONF_OK);
    if (transactional_id)
        assert_int_equal(rd_kafka_conf_set(conf, "transactional.id", transactional_id, why, sizeof why),
                         RD_KAFKA_CONF_OK);
    rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
    assert_non_null(producer);
    return producer;
}

static void make_topic(kafka_world *w)
{
    char why[300];
    rd_kafka_NewTopic_t *topic = rd_kafka_NewTopic_new(w->topic, PARTITIONS, 1, why, sizeof why);
    assert_int_equal(rd_kafka_NewTopic_set_config(topic, "max.message.bytes", "4000000"), RD_KAFKA_RESP_ERR_NO_ERROR);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(w->producer);
    rd_kafka_CreateTopics(w->producer, &topic, 1, NULL, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, 20000);
    assert_non_null(event);
    size_t n;
    const rd_kafka_topic_result_t **results =
        rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &n);
    assert_int_equal(n, 1);
    assert_int_equal(rd_kafka_topic_result_error(results[0]), RD_KAFKA_RESP_ERR_NO_ERROR);
    rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_NewTopic_destroy(topic);
}

static void *make(const source_driver *driver)
{
    static unsigned count;
    kafka_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    (void)snprintf(w->topic, sizeof w->topic, "conform-%d-%ld-%u", (int)getpid(), (long)time(NULL), ++count);
    for (int i = 0; i < PARTITIONS; i++) (void)snprintf(w->names[i], sizeof w->names[i], "%s/%d", w->topic, i);
    w->producer = make_producer(NULL);
    make_topic(w);
    w->handle = rd_kafka_topic_new(w->producer, w->topic, NULL);
    w->brokers = (once_bytes){brokers, strlen(brokers)};
    w->topics = (once_bytes){w->topic, strlen(w->topic)};
    static const char *const properties[][2] = {
        {"session.timeout.ms", "3000"},      {"heartbeat.interval.ms", "200"},
        {"max.poll.interval.ms", "4000"},    {"topic.metadata.refresh.interval.ms", "1000"},
        {"reconnect.backoff.max.ms", "200"},
    };
    const size_t n = sizeof properties / sizeof *properties;
    for (size_t i = 0; i < n; i++)
        w->config[i] = (once_written){.name = {properties[i][0], strlen(properties[i][0])},
                                      .value = {properties[i][1], strlen(properties[i][1])}};
    w->kafka = (once_kafka_spec){.brokers = &w->brokers,
                                 .n_brokers = 1,
                                 .topics = &w->topics,
                                 .n_topics = 1,
                                 .joined = w->topics,
                                 .group = w->topics,
                                 .cursor = driver->bits & ONCE_SOURCE_CURSOR,
                                 .config = w->config,
                                 .n_config = n};
    w->spec = (once_spec){.file = ONCE_BYTES("conform.yaml"),
                          .message_max = SRC_MESSAGE_MAX,
                          .source = {.kind = &once__source_kafka, .own = &w->kafka}};
    once__source_kafka.conclude(&w->spec.source);
    w->spec.source.bits |= ONCE_SOURCE_STABLE;
    return w;
}

static void unmake(void *world)
{
    kafka_world *w = world;
    rd_kafka_topic_destroy(w->handle);
    rd_kafka_destroy(w->producer);
    free(w);
}

/* Sends one message and waits until the broker has it. */
static void send_one(rd_kafka_t *producer, const char *topic, unsigned partition, once_bytes body, once_bytes headers)
{
    rd_kafka_headers_t *list = rd_kafka_headers_new(1);
    char text[200], *at = text;
    assert_true(headers.len < sizeof text);
    memcpy(text, headers.data ? headers.data : "", headers.len);
    text[headers.len] = '\0';
    for (char *name; (name = strchr(at, '"'));) { /* {"NAME":"VALUE","NAME":"VALUE"}, without escapes */
        char *value = strstr(name, "\":\"") + 3, *end = strchr(value, '"');
        *strchr(++name, '"') = *end = '\0';
        assert_int_equal(rd_kafka_header_add(list, name, -1, value, -1), 0);
        at = end + 1;
    }
    assert_int_equal(rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION((int32_t)partition),
                                       RD_KAFKA_V_VALUE((void *)(uintptr_t)body.data, body.len),
                                       RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_HEADERS(list),
                                       RD_KAFKA_V_END),
                     RD_KAFKA_RESP_ERR_NO_ERROR);
    assert_int_equal(rd_kafka_flush(producer, 20000), RD_KAFKA_RESP_ERR_NO_ERROR);
}

static void put(void *world, unsigned stream, once_bytes body, once_bytes headers)
{
    kafka_world *w = world;
    send_one(w->producer, w->topic, stream, body, headers);
}

static int open_consumer(void *world, once_source_purpose purpose, once_source **out, once_error *err)
{
    kafka_world *w = world;
    const int rc = once_source_open(&w->spec, once_env_real(), purpose, (once_cancel){0}, out, err);
    if (rc == ONCE_OK && purpose == ONCE_OPEN_RUN) w->consumer = *out;
    return rc;
}

/* A topic may be made later, so one that is not there is no mistake for an open: the first fetches say it. */
static int open_missing(void *world, once_source **out, once_error *err)
{
    kafka_world *w = world;
    const once_bytes there = w->topics;
    w->topics = ONCE_BYTES("conform-not-there");
    once_source *source;
    int rc = open_consumer(world, ONCE_OPEN_RUN, &source, err);
    const int64_t until_ms = src_real_ms() + 20000;
    once_batch *batch = calloc(1, sizeof *batch);
    assert_non_null(batch);
    while (rc == ONCE_OK && src_real_ms() < until_ms)
        rc = source->ops->fetch(source, &(once_fetch){.max = 1, .batch = batch}, err);
    assert_true(rc == ONCE_OK || strstr(err->text, "conform-not-there"));
    once_arena_release(&batch->arena);
    free(batch);
    source->ops->close(source);
    w->topics = there;
    *out = NULL;
    return rc;
}

static void wait_for_answers(rd_kafka_t *client)
{
    const struct rd_kafka_metadata *about = NULL;
    while (rd_kafka_metadata(client, 0, NULL, &about, 1000) != RD_KAFKA_RESP_ERR_NO_ERROR) continue;
    rd_kafka_metadata_destroy(about);
}

static void fail_fetch(void *world, bool fails)
{
    const kafka_source *k = once__kafka(((kafka_world *)world)->consumer);
    atomic_store(&is_cut, fails);
    if (fails) cut_all();
    if (fails) return;
    wait_for_answers(k->reader);
    wait_for_answers(k->member);
}

static void hold_acks(void *world, bool hold)
{
    (void)world;
    atomic_store(&is_held, hold);
}

static const char *name_of(void *world, unsigned stream) { return ((kafka_world *)world)->names[stream]; }

static void pass(void *world, int64_t ms)
{
    (void)world;
    once_env_sleep_ms(once_env_real(), ms);
}

/* A transaction that is aborted leaves its message and a marker, which nobody is given. */
static void hole(void *world, unsigned stream)
{
    kafka_world *w = world;
    rd_kafka_t *producer = make_producer(w->topic);
    assert_null(rd_kafka_init_transactions(producer, 20000));
    assert_null(rd_kafka_begin_transaction(producer));
    send_one(producer, w->topic, stream, ONCE_BYTES("{}"), (once_bytes){0});
    assert_null(rd_kafka_abort_transaction(producer, 20000));
    rd_kafka_destroy(producer);
}

/* Who does not fetch for longer than max.poll.interval.ms is out of the group, with all of its partitions. */
static void lose(void *world, unsigned stream)
{
    (void)world, (void)stream;
    once_env_sleep_ms(once_env_real(), POLL_MAX_MS + 1500);
}

#define KEPT                                                                                                           \
    (SRC_HEADERS | SRC_TEXT | SRC_BINARY | SRC_EMPTY | SRC_NO_BODY | SRC_REMEMBERS | ONCE_SOURCE_REDELIVERS |          \
     ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_TIMED)

/* Not fail_ack: the acks of a partition are one offset, which is committed or not. No ack is done in part. */
static int run(const char *name, unsigned bits)
{
    const source_driver driver = {.name = name,
                                  .bits = bits,
                                  .streams = PARTITIONS,
                                  .make = make,
                                  .unmake = unmake,
                                  .put = put,
                                  .open = open_consumer,
                                  .name_of = name_of,
                                  .pass = pass,
                                  .open_missing = open_missing,
                                  .hole = hole,
                                  .fail_fetch = fail_fetch,
                                  .hold_acks = hold_acks,
                                  .lose = lose};
    return source_conform_run(&driver);
}

int main(void)
{
    brokers = getenv("ONCE_TEST_KAFKA");
    if (!brokers) {
        fprintf(stderr, "missing: ONCE_TEST_KAFKA=HOST:PORT of a broker\n");
        return 1;
    }
    const char *behind = strrchr(brokers, ':');
    port = behind ? (uint16_t)atoi(behind + 1) : 0;
    return run("kafka, the group's offsets", KEPT) + run("kafka, cursors of the store", KEPT | ONCE_SOURCE_CURSOR);
}
#else
int main(void)
{
    fprintf(stderr, "missing: librdkafka\n");
    return 1;
}
#endif
