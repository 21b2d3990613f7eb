/* What keeps the source from working. Fetches fail with it until something works again: the clients of librdkafka try
 * again by themselves, and report an error only now and then. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

#define PROBE_MS 500
#define WARN_NS (60 * INT64_C(1000000000))

static bool passes(int status)
{
    const once_class class = once_status_class(status);
    return class == ONCE_CLASS_RETRY || class == ONCE_CLASS_PAUSE;
}

void once__kafka_note(kafka_source *k, rd_kafka_t *probe, const once_error *failure)
{
    assert(failure->status != ONCE_OK);
    if (k->failed != ONCE_OK && (!passes(k->failed) || k->failed == failure->status)) return;
    k->failed = failure->status;
    k->failure = *failure;
    k->probe = probe;
}

void once__kafka_warn(kafka_source *k, const char *event, const char *format, ...)
{
    const int64_t now_ns = once__kafka_now_ns(k);
    char text[sizeof((once_error *)0)->text];
    kafka_warned *oldest = &k->warned[0];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (size_t i = 0; i < ONCE_KAFKA_WARNED; i++) {
        kafka_warned *w = &k->warned[i];
        if (now_ns < w->again_ns && strncmp(w->text, text, sizeof w->text - 1) == 0) return;
        if (w->again_ns < oldest->again_ns) oldest = w;
    }
    (void)snprintf(oldest->text, sizeof oldest->text, "%.*s", (int)sizeof oldest->text - 1, text);
    oldest->again_ns = now_ns + WARN_NS;
    once_log(ONCE_LOG_WARN, event, "%s", text);
}

/* Other topics or partitions are read, as far as we know. */
static bool is_one_of_several(const kafka_source *k)
{
    if (k->kafka->n_topics > 1 || once_kafka_is_pattern(k->kafka->topics[0])) return true;
    for (uint32_t i = 0; i < k->n_partitions; i++)
        if (k->partitions[i]->state == KAFKA_READING && !k->partitions[i]->failing) return true;
    return false;
}

void once__kafka_note_part(kafka_source *k, const once_error *failure)
{
    assert(failure->status != ONCE_OK);
    if (passes(failure->status) && is_one_of_several(k)) once__kafka_warn(k, "kafka_topic_failed", "%s", failure->text);
    else once__kafka_note(k, NULL, failure);
}

bool once__kafka_has_ended(const kafka_source *k) { return k->failed != ONCE_OK && !passes(k->failed); }

void once__kafka_failure_over(kafka_source *k)
{
    if (!once__kafka_has_ended(k)) k->failed = ONCE_OK;
}

/* Whether the brokers answer the client, and let it read its topics. */
static bool answers(rd_kafka_t *client)
{
    const struct rd_kafka_metadata *about = NULL;
    if (rd_kafka_metadata(client, 0, NULL, &about, PROBE_MS) != RD_KAFKA_RESP_ERR_NO_ERROR) return false;
    bool ok = about->broker_cnt > 0;
    for (int i = 0; i < about->topic_cnt; i++) ok = ok && about->topics[i].err == RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_metadata_destroy(about);
    return ok;
}

int once__kafka_failing(kafka_source *k, once_error *err)
{
    if (k->failed != ONCE_OK && k->probe && answers(k->probe)) once__kafka_failure_over(k);
    if (k->failed != ONCE_OK && err) *err = k->failure;
    return k->failed;
}
