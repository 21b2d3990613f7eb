/* Makes the two clients of librdkafka as the pipeline file says. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

/* A property with its value. */
typedef struct property {
    const char *name, *value;
} property;

/* What users may override in `config`. */
static const property defaults[] = {
    {"client.id", "once"},
    {"partition.assignment.strategy", "cooperative-sticky"},
    {"topic.metadata.refresh.interval.ms", "30000"}, /* new partitions are found so fast */
    {"queued.min.messages", "20000"},                /* of each partition: what is read ahead ... */
    {"queued.max.messages.kbytes", "2048"},          /* ... and no more than this, and one fetch */
    {"fetch.wait.max.ms", "100"},                    /* how long a broker waits for more before it answers nothing */
    {"reconnect.backoff.max.ms", "2000"},
    {"allow.auto.create.topics", "false"},
};
/* What they may not (kafka_config.c refuses them). */
static const property fixed[] = {
    {"enable.auto.commit", "false"},  {"enable.auto.offset.store", "false"}, {"auto.offset.reset", "error"},
    {"enable.partition.eof", "true"}, {"isolation.level", "read_committed"},
};
/* Properties of a member that a reader must not have, since it is in no group. */
static bool is_of_group(const char *name)
{
    return strncmp(name, "group.", 6) == 0 || strcmp(name, "session.timeout.ms") == 0 ||
           strcmp(name, "heartbeat.interval.ms") == 0 || strcmp(name, "max.poll.interval.ms") == 0 ||
           strcmp(name, "partition.assignment.strategy") == 0;
}

static int set(rd_kafka_conf_t *conf, const char *name, const char *value, once_error *err)
{
    char why[300] = "";
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) == RD_KAFKA_CONF_OK) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG, "%s", why);
}

static int set_all(rd_kafka_conf_t *conf, const property *list, size_t n, bool member, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (member || !is_of_group(list[i].name)) rc = set(conf, list[i].name, list[i].value, err);
    return rc;
}

/* librdkafka's texts about a wrong property may have its value, which may be a secret: they are shown without it. */
static int set_written(const kafka_source *k, rd_kafka_conf_t *conf, const once_written *w, bool member,
                       once_arena *arena, once_error *err)
{
    once_bytes name, value, text;
    int rc = once_value_read(k->base.spec->file, k->base.env, w, arena, &value, err);
    if (rc != ONCE_OK) return rc;
    if (!once_arena_copy(arena, w->name, &name) || !once_arena_copy(arena, value, &text))
        return once_no_memory(err, "for a property");
    if (!member && is_of_group(name.data)) return ONCE_OK;
    char why[300] = "";
    const rd_kafka_conf_res_t result = rd_kafka_conf_set(conf, name.data, text.data, why, sizeof why);
    if (result == RD_KAFKA_CONF_OK) return ONCE_OK;
    const once_bytes file = k->base.spec->file;
    if (result == RD_KAFKA_CONF_UNKNOWN)
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: 'config': librdkafka has no property '%s'; its CONFIGURATION.md has the list",
                         (int)file.len, file.data, w->line, name.data);
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: 'config': '%s': %s", (int)file.len, file.data, w->line, name.data,
                     once_is_reference(w->value) ? "librdkafka does not accept its value" : why);
}

static int set_brokers(const once_kafka_spec *kafka, rd_kafka_conf_t *conf, once_error *err)
{
    once_buf list;
    assert(kafka->n_brokers > 0);
    once_buf_init(&list, (size_t)1 << 20);
    for (size_t i = 0; i < kafka->n_brokers; i++) {
        if (i) once_buf_puts(&list, ",");
        once_buf_append(&list, kafka->brokers[i].data, kafka->brokers[i].len);
    }
    const int rc =
        list.failed ? once_no_memory(err, "for the brokers") : set(conf, "bootstrap.servers", list.data, err);
    once_buf_release(&list);
    return rc;
}

/* ${host} and ${env:NAME}; kafka_config.c has checked them. */
static int set_instance(const kafka_source *k, rd_kafka_conf_t *conf, once_error *err)
{
    const once_bytes text = k->kafka->instance, file = k->base.spec->file;
    struct utsname host;
    once_buf id;
    int rc = ONCE_OK;
    if (text.len == 0) return ONCE_OK;
    once_buf_init(&id, (size_t)1 << 16);
    for (size_t i = 0; i < text.len && rc == ONCE_OK; i++) {
        if (i + 2 >= text.len || memcmp(text.data + i, "${", 2) != 0) {
            once_buf_append(&id, text.data + i, 1);
            continue;
        }
        const char *end = memchr(text.data + i, '}', text.len - i);
        assert(end);
        if (memcmp(text.data + i, "${host}", 7) == 0) {
            once_buf_puts(&id, uname(&host) == 0 ? host.nodename : "?");
        } else {
            char name[256] = "";
            const size_t from = i + strlen("${env:"), len = (size_t)(end - text.data) - from;
            if (len < sizeof name) memcpy(name, text.data + from, len);
            const char *value = getenv(name);
            if (value && *value) once_buf_puts(&id, value);
            else
                rc = once_fail(err, ONCE_E_CONFIG, "%.*s:%d: variable '%s' is not set; 'instance' needs it",
                               (int)file.len, file.data, k->kafka->instance_line, name);
        }
        i = (size_t)(end - text.data);
    }
    if (rc == ONCE_OK && id.failed) rc = once_no_memory(err, "for the instance");
    if (rc == ONCE_OK) rc = set(conf, "group.instance.id", id.data, err);
    once_buf_release(&id);
    return rc;
}

/* Its lines are for those who debug librdkafka (`config: {debug: ...}`); what an operator must know comes as an error.
 */
static void write_log(const rd_kafka_t *client, int level, const char *facility, const char *text)
{
    (void)client, (void)level;
    once_log(ONCE_LOG_DEBUG, "kafka", "%s: %s", facility, text);
}

static int64_t number_of(const rd_kafka_conf_t *conf, const char *name)
{
    char text[32] = "";
    size_t size = sizeof text;
    const rd_kafka_conf_res_t got = rd_kafka_conf_get(conf, name, text, &size);
    assert(got == RD_KAFKA_CONF_OK);
    (void)got;
    return strtoll(text, NULL, 10);
}

static int make(kafka_source *k, bool member, rd_kafka_t **out, once_error *err)
{
    const once_kafka_spec *kafka = k->kafka;
    assert(k->group && k->group[0] && !*out);
    once_arena arena = {0};
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    int rc = set_all(conf, defaults, sizeof defaults / sizeof *defaults, member, err);
    for (size_t i = 0; i < kafka->n_config && rc == ONCE_OK; i++)
        rc = set_written(k, conf, &kafka->config[i], member, &arena, err);
    if (rc == ONCE_OK) rc = set_all(conf, fixed, sizeof fixed / sizeof *fixed, member, err);
    if (rc == ONCE_OK) rc = set_brokers(kafka, conf, err);
    if (rc == ONCE_OK && member) rc = set(conf, "group.id", k->group, err);
    if (rc == ONCE_OK && member) rc = set_instance(k, conf, err);
    once_arena_release(&arena);
    rd_kafka_conf_set_log_cb(conf, write_log);
    rd_kafka_conf_set_opaque(conf, k);
    if (kafka->n_token) {
        rd_kafka_conf_set_oauthbearer_token_refresh_cb(conf, once__kafka_refresh_token);
        rd_kafka_conf_enable_sasl_queue(conf, 1);
    }
    rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_REBALANCE | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_OFFSET_COMMIT);
    if (rc == ONCE_OK && member) {
        k->poll_max_ms = number_of(conf, "max.poll.interval.ms");
        k->refresh_ms = number_of(conf, "topic.metadata.refresh.interval.ms");
        if (k->refresh_ms <= 0) k->refresh_ms = 30000; /* it may be switched off */
        if (k->refresh_ms < 1000) k->refresh_ms = 1000;
        assert(k->poll_max_ms > 0);
    }
    char why[300] = "";
    *out = rc == ONCE_OK ? rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof why) : NULL;
    if (*out) { /* it owns conf; tokens are asked for in a thread of its own, since a command may take long */
        rd_kafka_error_t *error = kafka->n_token ? rd_kafka_sasl_background_callbacks_enable(*out) : NULL;
        if (error) rd_kafka_error_destroy(error); /* it has no SASL: nobody asks for a token */
        return ONCE_OK;
    }
    rd_kafka_conf_destroy(conf);
    if (rc != ONCE_OK) return rc;
    const once_bytes file = k->base.spec->file;
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: 'kafka': %s", (int)file.len, file.data, k->base.spec->source.line,
                     why);
}

int once__kafka_make_clients(kafka_source *k, once_error *err)
{
    int rc = make(k, false, &k->reader, err);
    if (rc == ONCE_OK && k->purpose != ONCE_OPEN_LOOK) rc = make(k, true, &k->member, err);
    return rc;
}
