/* Requests to SQS: signed, several at a time, each with a time limit (sqs.h).
 *
 * HTTP/1.1, so that each request that is out has a connection of its own, and one that hangs holds up no other.
 * Redirects are not followed, certificates are verified. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/sqs/sqs.h"

#include "base/banned.h"

#define CONNECT_MS 4000
#define ANSWER_MAX ((size_t)128 << 20) /* ten messages of 1 MiB, each byte escaped */
#define REQUEST_MAX ((size_t)1 << 20)
#define SKEW_S 60 /* a clock that differs more may be why a signature was refused */

int once__sqs_client_open(sqs_client *client, sqs_source *q, long connections, once_error *err)
{
    client->q = q;
    client->multi = curl_multi_init();
    if (!client->multi) return once_no_memory(err, "for connections");
    (void)curl_multi_setopt(client->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, connections);
    (void)curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, connections);
    return ONCE_OK;
}

void once__sqs_client_close(sqs_client *client)
{
    if (client->multi) (void)curl_multi_cleanup(client->multi);
    client->multi = NULL;
}

/* --- one request -------------------------------------------------------------------------------------------------- */

void once__sqs_new(sqs_call *call, const char *action)
{
    assert(!call->out);
    if (!call->body.max) once_buf_init(&call->body, REQUEST_MAX);
    if (!call->answer.max) once_buf_init(&call->answer, ANSWER_MAX);
    once_buf_clear(&call->body);
    call->action = action;
    call->tried_keys = call->tried_time = false;
}

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    sqs_call *call = user;
    if (once_buf_append(&call->answer, data, size * n)) return size * n;
    call->too_large = true;
    return 0;
}

static size_t take_header(char *data, size_t size, size_t n, void *user)
{
    static const char date[] = "date:";
    sqs_call *call = user;
    char text[64] = "";
    const size_t len = size * n;
    if (len > sizeof date && len < sizeof text && strncasecmp(data, date, sizeof date - 1) == 0) {
        memcpy(text, data + sizeof date - 1, len - (sizeof date - 1));
        const time_t then = curl_getdate(text, NULL);
        if (then > 0) call->date_s = then;
    }
    return len;
}

/* What is the same for all requests. */
static bool set_up(const sqs_client *client, sqs_call *call)
{
    if (call->easy) return true;
    call->easy = curl_easy_init();
    if (!call->easy) return false;
    const char *ca_file = once_aws_ca_file(client->q->credentials);
    CURLcode rc = curl_easy_setopt(call->easy, CURLOPT_URL, client->q->server);
#define SET(option, value)                                                                                             \
    if (rc == CURLE_OK) rc = curl_easy_setopt(call->easy, option, value)
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_PATH_AS_IS, 1L); /* what was signed is what is sent */
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_USERAGENT, "once/" ONCE_BUILD_VERSION);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_TCP_KEEPIDLE, 20L);
    SET(CURLOPT_TCP_KEEPINTVL, 10L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, call);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, call);
    SET(CURLOPT_PRIVATE, call);
    if (ca_file) SET(CURLOPT_CAINFO, ca_file);
#undef SET
    return rc == CURLE_OK;
}

static bool fail(sqs_call *call, sqs_fault fault, int status, const char *text)
{
    call->fault = fault;
    (void)once_fail(&call->error, status, "%s: %s", call->action, text);
    return false;
}

static int sign(sqs_source *q, sqs_call *call, const char ***headers, once_error *err)
{
    once_aws_keys keys;
    (void)snprintf(call->target, sizeof call->target, "X-Amz-Target: AmazonSQS.%s", call->action);
    const char *const own[] = {"Content-Type: application/x-amz-json-1.0", call->target, NULL};
    const once_aws_request request = {
        .method = "POST", .url = q->server, .headers = own, .body = once_buf_bytes(&call->body)};
    call->signed_s = once_env_wall_ms(q->base.env) / 1000 + atomic_load(&q->clock_s);
    int rc = once_aws_credentials_get(q->credentials, &call->arena, &keys, err);
    if (rc == ONCE_OK) call->key_id = keys.id;
    if (rc == ONCE_OK)
        rc = once_aws_sign(&request, &keys, q->region, "sqs", call->signed_s, &call->arena, headers, err);
    return rc;
}

/* The list that libcurl wants. "Expect:" keeps it from asking whether it may send the body. */
static bool set_headers(sqs_call *call, const char *const *headers)
{
    curl_slist_free_all(call->headers);
    call->headers = curl_slist_append(NULL, "Expect:");
    for (; call->headers && *headers; headers++) {
        struct curl_slist *more = curl_slist_append(call->headers, *headers);
        if (!more) {
            curl_slist_free_all(call->headers);
            call->headers = NULL;
        }
    }
    return call->headers;
}

/* A connection that was there when a request got no answer may be half open, as that of the request was. Each that is
 * tried costs the time limit of a request, so none of them is used again. libcurl counts whole seconds. */
static CURLcode avoid_broken(const sqs_client *client, CURL *easy)
{
    if (!client->broken_ns) return CURLE_OK;
    const long since_s = (long)((once__sqs_curl_ns(client->q) - client->broken_ns) / INT64_C(1000000000));
    const bool now = since_s < 2;
    const CURLcode rc = curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, now ? 1L : 0L);
    return rc == CURLE_OK ? curl_easy_setopt(easy, CURLOPT_MAXLIFETIME_CONN, now ? 0L : since_s - 1) : rc;
}

bool once__sqs_send(sqs_client *client, sqs_call *call, int64_t timeout_ms)
{
    assert(!call->out && timeout_ms > 0);
    const char **headers = NULL;
    once_error err;
    call->timeout_ms = timeout_ms;
    call->date_s = 0;
    call->too_large = false;
    once_buf_clear(&call->answer);
    once_arena_reset(&call->arena);
    if (call->body.failed || !set_up(client, call)) return fail(call, SQS_NO_ANSWER, ONCE_E_NOMEM, "out of memory");
    const int rc = sign(client->q, call, &headers, &err);
    if (rc != ONCE_OK) return fail(call, SQS_BAD_KEYS, rc, err.text);
    if (!set_headers(call, headers)) return fail(call, SQS_NO_ANSWER, ONCE_E_NOMEM, "out of memory");
    CURLcode set = curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE, (long)call->body.len);
    if (set == CURLE_OK) set = curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, call->body.data);
    if (set == CURLE_OK) set = curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers);
    if (set == CURLE_OK) set = curl_easy_setopt(call->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms);
    if (set == CURLE_OK) set = avoid_broken(client, call->easy);
    if (set != CURLE_OK || curl_multi_add_handle(client->multi, call->easy) != CURLM_OK)
        return fail(call, SQS_NO_ANSWER, ONCE_E_NOMEM, "libcurl does not take the request");
    call->out = true;
    return true;
}

void once__sqs_cancel(sqs_client *client, sqs_call *call)
{
    if (call->out) (void)curl_multi_remove_handle(client->multi, call->easy);
    call->out = false;
}

void once__sqs_call_release(sqs_client *client, sqs_call *call)
{
    once__sqs_cancel(client, call);
    if (call->easy) curl_easy_cleanup(call->easy);
    curl_slist_free_all(call->headers);
    once_buf_release(&call->body);
    once_buf_release(&call->answer);
    once_arena_release(&call->arena);
    *call = (sqs_call){0};
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

void once__sqs_turn(sqs_client *client, int64_t ms)
{
    int running;
    if (ms > 0) (void)curl_multi_poll(client->multi, NULL, 0, (int)ms, NULL);
    (void)curl_multi_perform(client->multi, &running);
}

static bool is_about_certificate(CURLcode result)
{
    return result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE ||
           result == CURLE_SSL_ISSUER_ERROR;
}

static void read_end(sqs_client *client, sqs_call *call, CURLcode result)
{
    long http = 0;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &http);
    if (result == CURLE_OK) {
        call->fault = once__sqs_read_fault(http, once_buf_bytes(&call->answer), call->action, &call->error);
        return;
    }
    call->fault = SQS_NO_ANSWER;
    if (result == CURLE_OPERATION_TIMEDOUT) client->broken_ns = once__sqs_curl_ns(client->q);
    (void)once_fail(&call->error, is_about_certificate(result) ? ONCE_E_DENIED : ONCE_E_UNAVAILABLE,
                    "%s: no answer from '%s': %s", call->action, client->q->server,
                    call->too_large ? "it is too large, or memory is out" : curl_easy_strerror(result));
}

/* What was refused for its keys or its time was not carried out: it may be sent again. */
static bool send_again(sqs_client *client, sqs_call *call)
{
    sqs_source *q = client->q;
    if (call->fault == SQS_BAD_KEYS && !call->tried_keys) {
        call->tried_keys = true;
        once_aws_credentials_refused(q->credentials, call->key_id);
        return once__sqs_send(client, call, call->timeout_ms);
    }
    const int64_t ahead_s = call->date_s - call->signed_s;
    if (call->fault != SQS_BAD_TIME || call->tried_time || !call->date_s || llabs(ahead_s) < SKEW_S) return false;
    call->tried_time = true;
    atomic_store(&q->clock_s, call->date_s - once_env_wall_ms(q->base.env) / 1000);
    return once__sqs_send(client, call, call->timeout_ms);
}

sqs_call *once__sqs_ended(sqs_client *client)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(client->multi, &left));) {
        sqs_call *call = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode result = m->data.result; /* the message is gone when the handle is removed */
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        assert(call && call->out);
        once__sqs_cancel(client, call);
        read_end(client, call, result);
        if (!send_again(client, call)) return call;
    }
    return NULL;
}

int once__sqs_ask(sqs_client *client, sqs_call *call, int64_t timeout_ms, once_error *err)
{
    if (once__sqs_send(client, call, timeout_ms))
        while (!once__sqs_ended(client) || call->out) {
            if (once__sqs_gives_up(client->q)) {
                once__sqs_cancel(client, call);
                (void)fail(call, SQS_NO_ANSWER, ONCE_E_UNAVAILABLE, "stopped while waiting for an answer");
                break;
            }
            once__sqs_turn(client, 100);
        }
    if (call->fault == SQS_FINE) return ONCE_OK;
    if (err) *err = call->error;
    return call->error.status;
}
