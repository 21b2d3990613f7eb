#include "kafka/broker.h"

#include <stdio.h>
#include <string.h>

#include "process.h"
#include "served.h"

#include "base/banned.h"

enum { ASK_MS = 30000, FLUSH_MS = 120000, POLL_EVERY = 1000 };

static served broker;

bool broker_start(void)
{
    if (!served_start(&broker, (const char *const[]){"python3", ONCE_SOURCE_ROOT "/tests/lib/kafka.py", "serve", NULL}))
        return false;
    broker.said[strcspn(broker.said, " ")] = '\0'; /* the file of its CA follows */
    return true;
}

const char *broker_address(void) { return broker.said; }

static rd_kafka_t *make_client(rd_kafka_type_t type, const char *const *properties, broker_told *told)
{
    char why[300] = "";
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (told) rd_kafka_conf_set_dr_msg_cb(conf, told);
    bool ok = rd_kafka_conf_set(conf, "bootstrap.servers", broker.said, why, sizeof why) == RD_KAFKA_CONF_OK;
    for (size_t i = 0; ok && properties[i]; i += 2)
        ok = rd_kafka_conf_set(conf, properties[i], properties[i + 1], why, sizeof why) == RD_KAFKA_CONF_OK;
    rd_kafka_t *client = ok ? rd_kafka_new(type, conf, why, sizeof why) : NULL;
    if (!client) bench_die(why);
    return client;
}

rd_kafka_t *broker_client(rd_kafka_type_t type, const char *const *properties)
{
    return make_client(type, properties, NULL);
}

rd_kafka_t *broker_producer(broker_told *told)
{
    return make_client(RD_KAFKA_PRODUCER, (const char *const[]){NULL}, told);
}

void broker_make_topic(rd_kafka_t *client, const char *topic)
{
    char why[300] = "no answer";
    size_t n = 0;
    rd_kafka_NewTopic_t *new = rd_kafka_NewTopic_new(topic, BROKER_PARTITIONS, 1, why, sizeof why);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(client);
    if (!new) bench_die(why);
    rd_kafka_CreateTopics(client, &new, 1, NULL, answers);
    rd_kafka_event_t *answer = rd_kafka_queue_poll(answers, ASK_MS);
    const rd_kafka_CreateTopics_result_t *made = answer ? rd_kafka_event_CreateTopics_result(answer) : NULL;
    const rd_kafka_topic_result_t **topics = made ? rd_kafka_CreateTopics_result_topics(made, &n) : NULL;
    if (n != 1 || rd_kafka_topic_result_error(topics[0])) bench_die("the topic cannot be made");
    rd_kafka_event_destroy(answer);
    rd_kafka_queue_destroy(answers);
    rd_kafka_NewTopic_destroy(new);
}

/* ---- filling ---- */

typedef struct filling {
    const char *topic;
    broker_write *write;
    const void *user;
    uint64_t messages;
    volatile uint64_t *done;
} filling;

static void fill(void *arg)
{
    const filling *f = arg;
    char body[BROKER_MESSAGE_MAX], key[24];
    rd_kafka_t *client =
        broker_client(RD_KAFKA_PRODUCER, (const char *const[]){"linger.ms", "20", "batch.num.messages", "10000", NULL});
    broker_make_topic(client, f->topic);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, f->topic, NULL);
    for (uint64_t i = 0; i < f->messages; i++) {
        const size_t len = f->write(f->user, i, body);
        const int key_len = snprintf(key, sizeof key, "%llu", (unsigned long long)i);
        while (rd_kafka_produce(topic, (int32_t)(i % BROKER_PARTITIONS), RD_KAFKA_MSG_F_COPY, body, len, key,
                                (size_t)key_len, NULL) != 0) {
            if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                bench_die(rd_kafka_err2str(rd_kafka_last_error()));
            rd_kafka_poll(client, 10);
        }
        if (i % POLL_EVERY == 0) rd_kafka_poll(client, 0);
        *f->done = i;
    }
    if (rd_kafka_flush(client, FLUSH_MS) != RD_KAFKA_RESP_ERR_NO_ERROR) bench_die("the topic cannot be filled");
    /* What was not delivered is missing in the topic: sizes are compared. */
    for (int32_t p = 0; p < BROKER_PARTITIONS; p++) {
        int64_t low, high;
        const uint64_t expected = (f->messages + BROKER_PARTITIONS - 1 - (uint64_t)p) / BROKER_PARTITIONS;
        if (rd_kafka_query_watermark_offsets(client, f->topic, p, &low, &high, ASK_MS) != RD_KAFKA_RESP_ERR_NO_ERROR ||
            low != 0 || (uint64_t)high != expected)
            bench_die("the topic does not have all messages");
    }
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(client);
}

void broker_fill(const char *topic, uint64_t messages, broker_write *write, const void *user)
{
    process_result result;
    volatile uint64_t *done = process_share(sizeof *done);
    filling f = {topic, write, user, messages, done};
    process_run("filling a topic", fill, &f, done, messages, &result);
}

/* ---- how far a group is ---- */

uint64_t broker_committed(rd_kafka_t *client, const char *topic)
{
    uint64_t sum = 0;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(BROKER_PARTITIONS);
    rd_kafka_topic_partition_list_add_range(list, topic, 0, BROKER_PARTITIONS - 1);
    if (rd_kafka_committed(client, list, ASK_MS) != RD_KAFKA_RESP_ERR_NO_ERROR)
        bench_die("the broker does not tell the group's offsets");
    for (int i = 0; i < list->cnt; i++)
        if (list->elems[i].offset > 0) sum += (uint64_t)list->elems[i].offset;
    rd_kafka_topic_partition_list_destroy(list);
    return sum;
}
