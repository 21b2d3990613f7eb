/* Finds the server, and the queue on it: its URL and its visibility timeout. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/no_memory.h"
#include "source/sqs/sqs.h"

#include "base/banned.h"

/* --- the server --------------------------------------------------------------------------------------------------- */

/* The host of a URL, with its port. */
static once_bytes host_of(once_bytes url)
{
    const char *slashes = memmem(url.data, url.len, "//", 2);
    assert(slashes);
    const char *host = slashes + 2, *end = url.data + url.len;
    const char *slash = memchr(host, '/', (size_t)(end - host));
    return (once_bytes){host, (size_t)((slash ? slash : end) - host)};
}

static bool is_url(once_bytes text) { return memmem(text.data, text.len, "://", 3) != NULL; }

/* "eu-central-1" of sqs.eu-central-1.amazonaws.com, sqs-fips.eu-central-1.amazonaws.com, sqs.eu-central-1.api.aws,
 * eu-central-1.queue.amazonaws.com and vpce-1-2.sqs.eu-central-1.vpce.amazonaws.com; empty: the host is none of AWS. */
static once_bytes region_of(once_bytes host)
{
    static const once_bytes services[] = {ONCE_BYTES("sqs."), ONCE_BYTES("sqs-fips.")};
    static const once_bytes queue = ONCE_BYTES(".queue.amazonaws.com");
    const char *end = host.data + host.len;
    if (!memmem(host.data, host.len, ".amazonaws.com", 14) && !memmem(host.data, host.len, ".api.aws", 8))
        return (once_bytes){0};
    const char *old = memmem(host.data, host.len, queue.data, queue.len);
    if (old) return (once_bytes){host.data, (size_t)(old - host.data)};
    for (size_t i = 0; i < sizeof services / sizeof *services; i++) {
        const char *at = memmem(host.data, host.len, services[i].data, services[i].len);
        const char *from = at ? at + services[i].len : NULL;
        const char *dot = from ? memchr(from, '.', (size_t)(end - from)) : NULL;
        if (dot) return (once_bytes){from, (size_t)(dot - from)};
    }
    return (once_bytes){0};
}

static int find_region(sqs_source *q, once_error *err)
{
    const once_bytes file = q->base.spec->file, queue = q->sqs->queue;
    const char *set = once_aws_region(q->credentials);
    once_bytes region = q->sqs->region;
    if (!region.len && is_url(queue)) region = region_of(host_of(queue));
    if (!region.len && set) region = once_bytes_of(set);
    if (!region.len)
        return once_fail(
            err, ONCE_E_CONFIG,
            "%.*s:%d: 'sqs': no region is known to sign for; add 'region: eu-central-1', or set AWS_REGION",
            (int)file.len, file.data, q->base.spec->source.line);
    q->region = strndup(region.data, region.len);
    return q->region ? ONCE_OK : once_no_memory(err, "for the region");
}

static bool make_server(sqs_source *q, once_buf *out)
{
    const char *set = once_aws_endpoint("SQS");
    const once_bytes queue = q->sqs->queue,
                     given = q->sqs->endpoint.len ? q->sqs->endpoint : once_bytes_of(set ? set : "");
    const bool china = strncmp(q->region, "cn-", 3) == 0;
    if (given.len) {
        once_buf_append(out, given.data, given.len);
    } else if (is_url(queue)) {
        const once_bytes host = host_of(queue);
        once_buf_append(out, queue.data, (size_t)(host.data + host.len - queue.data));
    } else {
        once_buf_printf(out, "https://sqs.%s.amazonaws.com%s", q->region, china ? ".cn" : "");
    }
    if (!out->failed && out->len && out->data[out->len - 1] != '/') once_buf_puts(out, "/");
    return !out->failed;
}

/* What the pipeline file says was checked when it was read. */
static int check_environment(const sqs_source *q, once_error *err)
{
    const char *set = q->sqs->endpoint.len ? NULL : once_aws_endpoint("SQS");
    const once_bytes file = q->base.spec->file;
    if (!set || once_sqs_is_plain_url(once_bytes_of(set))) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG,
                     "%.*s:%d: 'sqs': the variable AWS_ENDPOINT_URL_SQS or AWS_ENDPOINT_URL must be a URL without a "
                     "password, as in 'http://localhost:9324'; correct it, or add 'endpoint'",
                     (int)file.len, file.data, q->base.spec->source.line);
}

int once__sqs_find_server(sqs_source *q, once_error *err)
{
    int rc = find_region(q, err);
    if (rc == ONCE_OK) rc = check_environment(q, err);
    if (rc != ONCE_OK) return rc;
    once_buf server;
    once_buf_init(&server, 4096);
    q->server = make_server(q, &server) ? strdup(server.data) : NULL;
    once_buf_release(&server);
    return q->server ? ONCE_OK : once_no_memory(err, "for the address of the server");
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

/* "123456789012/payments": the last two parts of the path. */
static char *place_of(const char *url)
{
    const char *end = url + strlen(url), *at = end;
    for (int slashes = 0; at > url; at--) {
        if (at[-1] != '/') continue;
        if (++slashes == 2 || at - url < 3 || at[-2] == '/') break;
    }
    return strndup(at, (size_t)(end - at));
}

static int ask_url(sqs_source *q, sqs_call *call, int64_t ms, once_error *err)
{
    const once_bytes queue = q->sqs->queue;
    once_json json;
    once_arena arena = {0};
    once_bytes url = {0};
    if (is_url(queue)) {
        q->url = strndup(queue.data, queue.len);
        return q->url ? ONCE_OK : once_no_memory(err, "for the queue");
    }
    once__sqs_new(call, "GetQueueUrl");
    once_buf_puts(&call->body, "{\"QueueName\":");
    once_buf_json(&call->body, queue);
    once_buf_puts(&call->body, "}");
    int rc = once__sqs_ask(&q->aside->client, call, ms, err);
    if (rc != ONCE_OK) return rc;
    once_json_init(&json);
    if (once_json_parse(&json, once_buf_bytes(&call->answer), NULL, NULL) == ONCE_OK &&
        once__sqs_text(&json, once_json_root(&json), "QueueUrl", &arena, &url) && is_url(url))
        q->url = strndup(url.data, url.len);
    else rc = once_fail(err, ONCE_E_UNAVAILABLE, "GetQueueUrl: the answer of '%s' cannot be used", q->server);
    once_json_release(&json);
    once_arena_release(&arena);
    return rc == ONCE_OK && !q->url ? once_no_memory(err, "for the queue") : rc;
}

static int64_t visibility_of(const sqs_call *call)
{
    once_json json;
    once_arena arena = {0};
    once_bytes text = {0};
    int64_t seconds = 0;
    once_json_init(&json);
    if (once_json_parse(&json, once_buf_bytes(&call->answer), NULL, NULL) == ONCE_OK)
        (void)once__sqs_text(&json, once_json_member(&json, once_json_root(&json), ONCE_BYTES("Attributes")),
                             "VisibilityTimeout", &arena, &text);
    for (size_t i = 0; i < text.len && i < 6 && text.data[i] >= '0' && text.data[i] <= '9'; i++)
        seconds = seconds * 10 + (text.data[i] - '0');
    once_json_release(&json);
    once_arena_release(&arena);
    return seconds > 0 && seconds * 1000 <= ONCE_SQS_HELD_MS ? seconds * 1000 : ONCE_SQS_VISIBILITY_MS;
}

/* The right to read the attributes of the queue is not needed to work on it. */
static int ask_visibility(sqs_source *q, sqs_call *call, int64_t *out, once_error *err)
{
    *out = q->sqs->visibility_ms ? q->sqs->visibility_ms : ONCE_SQS_VISIBILITY_MS;
    once__sqs_new(call, "GetQueueAttributes");
    once_buf_puts(&call->body, "{\"QueueUrl\":");
    once_buf_json(&call->body, once_bytes_of(q->url));
    once_buf_puts(&call->body, ",\"AttributeNames\":[\"VisibilityTimeout\"]}");
    const int rc = once__sqs_ask(&q->aside->client, call, ONCE_SQS_CALL_MS, err);
    if (rc == ONCE_OK && !q->sqs->visibility_ms) *out = visibility_of(call);
    if (rc == ONCE_OK || call->fault != SQS_REFUSED) return rc;
    once_log(ONCE_LOG_DEBUG, "sqs_not_asked", "%s", call->error.text);
    return ONCE_OK;
}

int once__sqs_find_url(sqs_source *q, int64_t ms, once_error *err)
{
    const int rc = q->url ? ONCE_OK : ask_url(q, &q->aside->calls[0], ms, err);
    if (rc == ONCE_OK && !q->place && !(q->place = place_of(q->url))) return once_no_memory(err, "for the queue");
    return rc;
}

int once__sqs_find_queue(sqs_source *q, once_error *err)
{
    int64_t visibility_ms = 0;
    int rc = once__sqs_find_url(q, ONCE_SQS_CALL_MS, err);
    if (rc == ONCE_OK) rc = ask_visibility(q, &q->aside->calls[0], &visibility_ms, err);
    if (rc == ONCE_OK) atomic_store(&q->visibility_ms, visibility_ms);
    return rc;
}
