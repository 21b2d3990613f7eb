#include "kafka/callback.h"

#include <once/once.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>

#include "kafka/broker.h"
#include "process.h"

#include "base/banned.h"

enum { BATCH = 1024, LOOK_MS = 1, SNAPSHOT_MS = 5, ASK_MS = 10000 };

typedef struct figures {
    uint64_t done;
    double rate;
} figures;

typedef struct entrant {
    const char *topic, *config;
    uint64_t messages;
    figures *shared;
} entrant;

/* ---- the last three quarters ---- */

typedef struct stopwatch {
    uint64_t from;  /* so many were done when it began */
    double began_s; /* 0: it has not */
} stopwatch;

static void look(stopwatch *w, const entrant *e, uint64_t done)
{
    e->shared->done = done;
    if (w->began_s > 0 || done * 4 < e->messages) return;
    w->from = done;
    w->began_s = bench_now_s();
}

static void stop(const stopwatch *w, const entrant *e)
{
    if (w->from >= e->messages) bench_die("there are too few messages for a rate");
    e->shared->rate = (double)(e->messages - w->from) / (bench_now_s() - w->began_s);
}

/* ---- bare ---- */

static void drain(const entrant *e, rd_kafka_queue_t *const *queues)
{
    static rd_kafka_message_t *messages[BATCH];
    stopwatch watch = {0};
    uint64_t n = 0;
    for (int p = 0, empty = 0; n < e->messages; p = (p + 1) % BROKER_PARTITIONS) {
        /* When no queue has anything it waits, for a moment, for the one at hand. */
        const int wait_ms = empty >= BROKER_PARTITIONS ? LOOK_MS : 0;
        const ssize_t got = rd_kafka_consume_batch_queue(queues[p], wait_ms, messages, BATCH);
        empty = got > 0 ? 0 : empty + 1;
        for (ssize_t i = 0; i < got; i++) {
            if (messages[i]->err == RD_KAFKA_RESP_ERR_NO_ERROR) n++;
            rd_kafka_message_destroy(messages[i]);
        }
        look(&watch, e, n);
    }
    stop(&watch, e);
}

static void run_bare(void *arg)
{
    const entrant *e = arg;
    rd_kafka_queue_t *queues[BROKER_PARTITIONS];
    /* As in source/kafka/settings.c. */
    rd_kafka_t *client = broker_client(
        RD_KAFKA_CONSUMER,
        (const char *const[]){"queued.min.messages", "20000", "queued.max.messages.kbytes", "2048", "fetch.wait.max.ms",
                              "100", "enable.auto.commit", "false", "enable.auto.offset.store", "false",
                              "enable.partition.eof", "true", "isolation.level", "read_committed", NULL});
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, e->topic, NULL);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(client, 0, topic, &metadata, ASK_MS) != RD_KAFKA_RESP_ERR_NO_ERROR)
        bench_die("the broker does not know the topic");
    rd_kafka_metadata_destroy(metadata);
    for (int32_t p = 0; p < BROKER_PARTITIONS; p++) {
        queues[p] = rd_kafka_queue_new(client);
        if (rd_kafka_consume_start_queue(topic, p, RD_KAFKA_OFFSET_BEGINNING, queues[p]) != 0)
            bench_die("a partition cannot be read");
    }
    drain(e, queues);
    for (int32_t p = 0; p < BROKER_PARTITIONS; p++) {
        rd_kafka_consume_stop(topic, p);
        rd_kafka_queue_destroy(queues[p]);
    }
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(client);
}

static callback_figures figures_of(const entrant *e, const process_result *result)
{
    return (callback_figures){e->shared->rate, (result->user_s + result->system_s) * 1e6 / (double)e->messages};
}

callback_figures callback_bare(const char *topic, uint64_t messages)
{
    process_result result;
    entrant e = {.topic = topic, .messages = messages, .shared = process_share(sizeof(figures))};
    process_run("d: a consumer that does nothing", run_bare, &e, &e.shared->done, messages, &result);
    return figures_of(&e, &result);
}

/* ---- once ---- */

static atomic_uint_fast64_t calls;

static once_outcome count(void *user, const once_call *call, once_reply *reply)
{
    (void)user, (void)call, (void)reply;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    return ONCE_DONE;
}

static void say(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

static void run_once(void *arg)
{
    const entrant *e = arg;
    once_pipeline *pipeline;
    once_summary summary;
    once_error err;
    once_snapshot now = {.size = sizeof now};
    const once_run_options options = {.size = sizeof options, .new_store = true};
    if (once_pipeline_load(e->config, say, NULL, &pipeline, &err) != ONCE_OK) bench_die("the pipeline is wrong");
    if (once_pipeline_callback(pipeline, "count", count, NULL, &err) != ONCE_OK ||
        once_pipeline_start(pipeline, &options, &err) != ONCE_OK)
        bench_die(err.text);
    stopwatch watch = {0};
    do {
        poll(NULL, 0, SNAPSHOT_MS); /* it waits for the lock of the run */
        if (once_pipeline_snapshot(pipeline, &now, &err) != ONCE_OK) bench_die(err.text);
        look(&watch, e, now.counts.acked);
    } while (now.counts.acked < e->messages && now.state == ONCE_RUN_WORKING);
    stop(&watch, e);
    once_pipeline_stop(pipeline);
    if (once_pipeline_join(pipeline, &summary, &err) != ONCE_OK) bench_die(err.text);
    if (summary.counts.done != e->messages || calls != e->messages) bench_die("once did not call for every message");
    once_pipeline_free(pipeline);
}

callback_figures callback_once(const char *label, const char *config, uint64_t messages)
{
    process_result result;
    entrant e = {.config = config, .messages = messages, .shared = process_share(sizeof(figures))};
    process_run(label, run_once, &e, &e.shared->done, messages, &result);
    return figures_of(&e, &result);
}
