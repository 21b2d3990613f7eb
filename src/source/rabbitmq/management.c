/* Asks the HTTP API of the management plugin (management.h), with libcurl. */
#include "source/rabbitmq/management.h"

#include <assert.h>
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define ANSWER_MAX ((size_t)4 << 20)

/* --- HTTP --------------------------------------------------------------------------------------------------------- */

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    return once_buf_append(user, data, size * n) ? size * n : 0;
}

/* "BASE/api/queues/VHOST/QUEUE". */
static bool write_url(const rabbitmq_source *r, CURL *curl, once_buf *out)
{
    char *vhost = curl_easy_escape(curl, r->address.url.path.data, (int)r->address.url.path.len);
    char *queue = curl_easy_escape(curl, r->queue, 0);
    once_buf_printf(out, "%s/api/queues/%s/%s", r->address.management, vhost ? vhost : "", queue ? queue : "");
    const bool ok = vhost && queue && !out->failed;
    curl_free(vhost);
    curl_free(queue);
    return ok;
}

static CURLcode perform(const rabbitmq_source *r, CURL *curl, const char *url, int64_t ms, once_buf *body)
{
    const rabbitmq_address *a = &r->address;
    bool ok = curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_USERNAME, a->management_user) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_PASSWORD, a->management_password) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)ms) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
              curl_easy_setopt(curl, CURLOPT_WRITEDATA, body) == CURLE_OK;
    if (ok && a->ca) ok = curl_easy_setopt(curl, CURLOPT_CAINFO, a->ca) == CURLE_OK;
    return ok ? curl_easy_perform(curl) : CURLE_FAILED_INIT;
}

static int judge(const rabbitmq_source *r, CURLcode code, long status, once_error *err)
{
    const char *base = r->address.management;
    if (code == CURLE_OUT_OF_MEMORY) return once_no_memory(err, "for an answer of '%s'", base);
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return once_fail(err, ONCE_E_DENIED, "'management': the certificate of '%s' is not accepted", base);
    if (code != CURLE_OK)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'management': no answer from '%s': %s", base,
                         curl_easy_strerror(code));
    if (status == 200) return ONCE_OK;
    if (status == 401 || status == 403)
        return once_fail(err, ONCE_E_DENIED,
                         "'management': '%s' does not let user '%s' look at the queue; give it the tag 'monitoring'",
                         base, r->address.management_user);
    if (status == 404)
        return once_fail(err, ONCE_E_MISSING, "'management': '%s' knows no queue '%s' in the virtual host '%s'", base,
                         r->queue, r->address.url.path.data);
    return once_fail(err, ONCE_E_UNAVAILABLE, "'management': '%s' answers with status %ld", base, status);
}

static int get(const rabbitmq_source *r, int64_t ms, once_buf *body, once_error *err)
{
    CURL *curl = curl_easy_init();
    once_buf url;
    long status = 0;
    if (!curl) return once_no_memory(err, "for a question to '%s'", r->address.management);
    once_buf_init(&url, (size_t)1 << 16);
    CURLcode code = write_url(r, curl, &url) ? perform(r, curl, url.data, ms, body) : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK) code = curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    once_buf_release(&url);
    curl_easy_cleanup(curl);
    return judge(r, code, status, err);
}

/* --- the answer --------------------------------------------------------------------------------------------------- */

typedef struct answer {
    const once_json *json;
    once_json_value root, arguments, policy;
} answer;

static once_json_value member(const answer *a, once_json_value in, const char *name)
{
    return once_json_member(a->json, in, once_bytes_of(name));
}

static int64_t number(const answer *a, once_json_value in, const char *name)
{
    int64_t value;
    return once_json_int64(member(a, in, name), &value) && value >= 0 ? value : -1;
}

static bool is_true(const answer *a, once_json_value in, const char *name)
{
    return member(a, in, name).type == ONCE_JSON_TRUE;
}

/* Of the arguments of the queue ("x-NAME") and of its policies the lower limit counts. */
static int64_t lowest(const answer *a, const char *name)
{
    char argument[64];
    (void)snprintf(argument, sizeof argument, "x-%s", name);
    const int64_t own = number(a, a->arguments, argument), policy = number(a, a->policy, name);
    return own < 0 || (policy >= 0 && policy < own) ? policy : own;
}

/* The argument of the queue counts, then its policies. */
static once_json_value setting(const answer *a, const char *name)
{
    char argument[64];
    (void)snprintf(argument, sizeof argument, "x-%s", name);
    const once_json_value own = member(a, a->arguments, argument);
    return own.type != ONCE_JSON_ABSENT ? own : member(a, a->policy, name);
}

static void read_queue(const answer *a, rabbitmq_queue *out)
{
    const once_json_value type = member(a, a->root, "type"), overflow = setting(a, "overflow");
    if (type.type == ONCE_JSON_STRING && type.raw.len < sizeof out->type)
        memcpy(out->type, type.raw.data, type.raw.len);
    out->durable = member(a, a->root, "durable").type != ONCE_JSON_FALSE;
    out->auto_delete = is_true(a, a->root, "auto_delete");
    out->single_active = is_true(a, a->arguments, "x-single-active-consumer");
    out->dead_letters = setting(a, "dead-letter-exchange").type == ONCE_JSON_STRING;
    out->drops = overflow.type != ONCE_JSON_STRING || once_json_string_is(overflow, ONCE_BYTES("drop-head"));
    out->ready = number(a, a->root, "messages_ready");
    out->unacked = number(a, a->root, "messages_unacknowledged");
    out->consumers = number(a, a->root, "consumers");
    out->ttl_ms = lowest(a, "message-ttl");
    out->expires_ms = lowest(a, "expires");
    out->max_messages = lowest(a, "max-length");
    out->max_bytes = lowest(a, "max-length-bytes");
    out->consumer_timeout_ms = lowest(a, "consumer-timeout");
    out->delivery_limit = number(a, a->root, "delivery_limit"); /* since RabbitMQ 4: the one that counts */
    if (out->delivery_limit < 0) out->delivery_limit = lowest(a, "delivery-limit");
}

int once__rabbitmq_queue(const rabbitmq_source *r, int64_t ms, rabbitmq_queue *out, once_error *err)
{
    assert(r->address.management);
    once_buf body;
    once_json json;
    *out = (rabbitmq_queue){0};
    once_buf_init(&body, ANSWER_MAX);
    once_json_init(&json);
    int rc = get(r, ms, &body, err);
    if (rc == ONCE_OK &&
        once_json_parse(&json, once_buf_bytes(&body), &(once_json_options){.object = true}, NULL) != ONCE_OK)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "'management': '%s' does not answer as RabbitMQ does",
                       r->address.management);
    if (rc == ONCE_OK) {
        answer a = {.json = &json, .root = once_json_root(&json)};
        a.arguments = member(&a, a.root, "arguments");
        a.policy = member(&a, a.root, "effective_policy_definition");
        read_queue(&a, out);
    }
    once_json_release(&json);
    once_buf_release(&body);
    return rc;
}
