/* What keeps the source from working. Fetches fail with it until something works again: the clients of librdkafka try
 * again by themselves, and report an error only now and then. */
#include <assert.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

#define PROBE_MS 500

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
