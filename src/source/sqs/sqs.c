/* The SQS source: its life, and what an open one does. sqs.h has the overview. */
#include "source/sqs/sqs.h"

#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define CONNECTIONS 16   /* of the ack thread */
#define RETURN_MS 3000   /* how long close tries to make messages visible again */
#define RECEIVERS_MAX 10 /* if the pipeline file does not say */

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void close_batcher(sqs_batcher *b)
{
    if (!b) return;
    for (size_t i = 0; i < ONCE_SQS_BATCHES; i++) once__sqs_call_release(&b->client, &b->calls[i]);
    once__sqs_client_close(&b->client);
    free(b);
}

static int open_batcher(sqs_source *q, sqs_batcher **out, once_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? once__sqs_client_open(&(*out)->client, q, CONNECTIONS, err) : once_no_memory(err, "for the source");
}

static void sqs_close(once_source *source)
{
    sqs_source *q = once__sqs(source);
    atomic_store(&q->closing, true); /* nobody waits for new credentials any more */
    once__sqs_end_polls(q);
    if (q->acks && q->purpose == ONCE_OPEN_RUN) once__sqs_return_all(q->acks, RETURN_MS);
    close_batcher(q->acks);
    close_batcher(q->aside);
    once__sqs_client_close(&q->polls);
    once_aws_credentials_close(q->credentials);
    once__sqs_deliveries_release(&q->deliveries);
    free(q->receivers);
    free(q->server);
    free(q->region);
    free(q->url);
    free(q->place);
    free(q);
    curl_global_cleanup();
}

static bool is_ending(void *user)
{
    const sqs_source *q = user;
    return atomic_load(&q->closing) || once_cancelled(&q->opening);
}

bool once__sqs_gives_up(sqs_source *q) { return atomic_load(&q->woken) || is_ending(q); }

static int open_credentials(sqs_source *q, once_error *err)
{
    const once_aws_options options = {
        .profile = q->sqs->profile, .region = q->sqs->region, .cancel = {.asked = is_ending, .user = q}};
    const int rc = once_aws_credentials_open(&options, q->base.env, &q->credentials, err);
    return rc == ONCE_OK ? once__sqs_find_server(q, err) : rc;
}

static int open_clients(sqs_source *q, once_error *err)
{
    const uint32_t wanted = (q->base.spec->batch_max + ONCE_SQS_TEN - 1) / ONCE_SQS_TEN;
    const uint32_t standard = wanted == 0 ? 1 : wanted < RECEIVERS_MAX ? wanted : RECEIVERS_MAX;
    const uint32_t n = q->sqs->receivers ? q->sqs->receivers : standard;
    q->receivers = calloc(n, sizeof *q->receivers);
    if (!q->receivers) return once_no_memory(err, "for the source");
    q->n_receivers = n;
    q->parallel = 1;
    int rc = open_batcher(q, &q->aside, err);
    if (rc == ONCE_OK) rc = open_batcher(q, &q->acks, err);
    if (rc == ONCE_OK) rc = once__sqs_client_open(&q->polls, q, (long)n + 1, err); /* and one to count */
    return rc;
}

/* A queue that does not exist, or that may not be read, is said at once. A server that is away is waited for, by
 * fetch. */
static int look_for_queue(sqs_source *q, once_error *err)
{
    once_error why;
    const int rc = once__sqs_find_queue(q, &why);
    if (rc == ONCE_OK) return rc;
    if (once_status_class(rc) == ONCE_CLASS_RETRY && !once_cancelled(&q->opening)) {
        once_log(ONCE_LOG_WARN, "sqs_not_reached", "%s", why.text);
        return ONCE_OK;
    }
    return once_fail(err, rc, "%s", why.text);
}

static int sqs_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                    once_source **out, once_error *err)
{
    assert(spec->source.own && spec->message_max > 0);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return once_no_memory(err, "for libcurl");
    sqs_source *q = calloc(1, sizeof *q);
    if (!q) {
        curl_global_cleanup();
        return once_no_memory(err, "for the source");
    }
    q->base = (once_source){.ops = &once__sqs_ops, .spec = spec, .env = env};
    q->sqs = once_sqs_of(&spec->source);
    q->purpose = purpose;
    q->opening = cancel;
    q->last = &q->first;
    once__sqs_deliveries_init(&q->deliveries);
    once__sqs_counting_init(&q->counting);
    int rc = open_credentials(q, err);
    if (rc == ONCE_OK) rc = open_clients(q, err);
    if (rc == ONCE_OK && purpose == ONCE_OPEN_RUN) rc = look_for_queue(q, err);
    q->opening = (once_cancel){0};
    if (rc == ONCE_OK) *out = &q->base;
    else sqs_close(&q->base);
    return rc;
}

/* --- acks --------------------------------------------------------------------------------------------------------- */

/* A call of the ack thread holds up the next one. So it may take a tenth of the time of a delivery, but one second at
 * least. */
static int64_t call_ms(const sqs_source *q)
{
    const int64_t tenth_ms = atomic_load(&q->visibility_ms) / 10;
    return tenth_ms < 1000 ? 1000 : tenth_ms < ONCE_SQS_CALL_MS ? tenth_ms : ONCE_SQS_CALL_MS;
}

static int sqs_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    sqs_source *q = once__sqs(source);
    return once__sqs_do(q->acks, SQS_DELETE, list, n, call_ms(q), err);
}

static int sqs_extend(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    sqs_source *q = once__sqs(source);
    return once__sqs_do(q->acks, SQS_EXTEND, list, n, call_ms(q), err);
}

/* --- what is known without the network ---------------------------------------------------------------------------- */

static unsigned sqs_bits(const once_source *source) { return source->spec->source.bits | ONCE_SOURCE_REDELIVERS; }

static void sqs_wake(once_source *source)
{
    sqs_source *q = once__sqs(source);
    atomic_store(&q->woken, true);
    (void)curl_multi_wakeup(q->polls.multi);
}

static const char *sqs_stream_name(once_source *source, uint32_t stream)
{
    const sqs_source *q = once__sqs(source);
    return stream == 0 ? q->sqs->name.data : NULL; /* a text of the pipeline file has a NUL behind it */
}

/* Messages that wait here must be extended in time. */
static int64_t sqs_beat_ms(const once_source *source)
{
    const int64_t visibility_ms = atomic_load(&((const sqs_source *)source)->visibility_ms);
    return visibility_ms ? visibility_ms / 6 : ONCE_SQS_VISIBILITY_MS / 6;
}

const once_source_ops once__sqs_ops = {
    .open = sqs_open,
    .close = sqs_close,
    .bits = sqs_bits,
    .ask = once__sqs_report,
    .backlog = once__sqs_backlog,
    .fetch = once__sqs_fetch,
    .ack = sqs_ack,
    .extend = sqs_extend,
    .wake = sqs_wake,
    .lag = once__sqs_lag,
    .lag_parts = once__sqs_lag_parts,
    .stream_name = sqs_stream_name,
    .beat_ms = sqs_beat_ms,
};
