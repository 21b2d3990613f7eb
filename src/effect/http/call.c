/* One call (client.h): the request of a message, and what its answer, or the lack of one, means.
 *
 * Whatever is not certain is unknown: an answer counts only if it came whole. Only where libcurl did not get as far as
 * to send something is it certain that nothing happened. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/duration.h"
#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "core/retry.h"
#include "effect/http/client.h"

#include "base/banned.h"

#define HEAD_MAX ((size_t)256 << 10)      /* bytes of an answer's headers */
#define LINE_MAX_BYTES ((size_t)64 << 10) /* of a URL or a header that a message makes; no server takes more */
#define OWN_LINES 4                       /* key, attempt, type of the body, and one to spare */
#define SNIPPET 200                       /* bytes of an answer in a reason */
#define NAME_KEPT_S 60L                   /* the addresses of a host */

/* ---- the answer as it comes ---- */

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    http_call *call = user;
    if (once_buf_append(&call->answer, data, size * n)) return size * n;
    call->too_large = call->answer.len + size * n > call->answer.max;
    return 0;
}

/* Copies the value of the header if that is its name ("name:", in small letters) and there is room. */
static bool take_value(const char *name, const char *data, size_t len, char *out, size_t size)
{
    const size_t skip = strlen(name);
    if (len <= skip || len - skip >= size || !once_ascii_begins(data, len, name)) return false;
    memcpy(out, data + skip, len - skip);
    out[len - skip] = '\0';
    return true;
}

/* How long the body is, by the headers. False: they say it in two ways. libcurl believes the last one. */
static bool take_length(http_call *call, const char *data, size_t len)
{
    char text[sizeof call->length] = "";
    if (!take_value("content-length:", data, len, text, sizeof text)) return true;
    if (call->length[0] && strcmp(call->length, text) != 0) return false;
    memcpy(call->length, text, sizeof text);
    return true;
}

/* A 204 has no body, and a 304 none in chunks. What comes behind one that announces a body would be the answer to the
 * next request. */
static bool has_too_much(const http_call *call, const char *data, size_t len)
{
    const bool chunked = once_ascii_begins(data, len, "transfer-encoding:");
    return (call->status == 204 && (chunked || strtoll(call->length, NULL, 10) > 0)) ||
           (call->status == 304 && chunked);
}

static size_t take_header(char *data, size_t size, size_t n, void *user)
{
    http_call *call = user;
    const size_t len = size * n;
    call->head += len;
    if (call->head > HEAD_MAX) return 0;
    const bool status_line = once_ascii_begins(data, len, "http/");
    if (call->headed && !status_line) return len;      /* a trailer, behind the body: it says nothing */
    call->headed = data[0] == '\r' || data[0] == '\n'; /* an empty line ends the headers */
    if (status_line) {
        call->retry_after[0] = call->length[0] = '\0'; /* an interim answer says nothing */
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &call->status);
    }
    (void)take_value("retry-after:", data, len, call->retry_after, sizeof call->retry_after);
    if (!take_length(call, data, len)) return 0;
    if (has_too_much(call, data, len)) (void)curl_easy_setopt(call->easy, CURLOPT_FORBID_REUSE, 1L);
    return len;
}

/* ---- memory ---- */

http_call *once__http_call_new(http_driver *driver)
{
    const once_http_spec *http = driver->http;
    const size_t a = http->request.headers.n, b = http->lookup.request.headers.n;
    http_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->driver = driver;
    once_buf_init(&call->text, SIZE_MAX / 4);
    once_buf_init(&call->answer, http->response_max);
    once_buf_init(&call->out, SIZE_MAX / 4);
    once_buf_init(&call->rest, SIZE_MAX / 4);
    call->fd = -1;
    call->easy = curl_easy_init();
    call->lines = calloc((a > b ? a : b) + OWN_LINES, sizeof *call->lines);
    CURLcode rc = call->easy && call->lines ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    if (!rc) rc = curl_easy_setopt(call->easy, CURLOPT_WRITEFUNCTION, take_body);
    if (!rc) rc = curl_easy_setopt(call->easy, CURLOPT_WRITEDATA, call);
    if (!rc) rc = curl_easy_setopt(call->easy, CURLOPT_HEADERFUNCTION, take_header);
    if (!rc) rc = curl_easy_setopt(call->easy, CURLOPT_HEADERDATA, call);
    if (!rc) return call;
    once__http_call_free(call);
    return NULL;
}

void once__http_call_free(http_call *call)
{
    if (call->easy) curl_easy_cleanup(call->easy);
    once_buf_release(&call->text);
    once_buf_release(&call->answer);
    once_buf_release(&call->out);
    once_buf_release(&call->rest);
    free(call->lines);
    free(call);
}

/* ---- the request ---- */

static void end_line(http_call *call) { once_buf_append(&call->text, "", 1); }

static int put_url(http_call *call, const once_http_values *values, const once_http_facts *facts, once_error *err)
{
    const once_http_request *request = call->fixed->request;
    once_buf *text = &call->text;
    int rc = once_http_text_render(&request->url, values->url, facts, text, err);
    const size_t end = text->len;
    if (rc == ONCE_OK) rc = once_http_text_render(&request->query, values->query, facts, text, err);
    if (rc != ONCE_OK || text->failed) return rc;
    if (text->len > LINE_MAX_BYTES) return once_fail(err, ONCE_E_MESSAGE, "the URL is longer than 64 KiB");
    if (text->len > end && memchr(text->data, '?', end)) text->data[end] = '&';
    const once_bytes path = {text->data + request->origin, text->len - request->origin};
    if (once_http_path_steps(path))
        return once_fail(err, ONCE_E_MESSAGE, "a value makes a step '.' or '..' in the path of the URL");
    end_line(call);
    return ONCE_OK;
}

static int put_headers(http_call *call, const once_http_values *values, const once_http_facts *facts, size_t *n,
                       once_error *err)
{
    const once_http_headers *headers = &call->fixed->request->headers;
    once_buf *text = &call->text;
    for (size_t i = 0; i < headers->n; i++) {
        const once_http_header *header = &headers->list[i];
        if (header->secret.value.len) continue; /* it is fixed */
        const size_t at = text->len;
        once_buf_printf(text, "%.*s: ", (int)header->name.len, header->name.data);
        const size_t head = text->len;
        const int rc = once_http_text_render(&header->value, values->headers[i], facts, text, err);
        if (rc != ONCE_OK) return rc;
        if (text->len - at > LINE_MAX_BYTES)
            return once_fail(err, ONCE_E_MESSAGE, "header '%.*s' is longer than 64 KiB", (int)header->name.len,
                             header->name.data);
        if (once_http_blank((once_bytes){text->data + head, text->len - head}) && !text->failed) {
            /* libcurl's way to write a header without a value; one that is only blanks it would leave out */
            text->len = at;
            once_buf_printf(text, "%.*s;", (int)header->name.len, header->name.data);
        }
        end_line(call);
        ++*n;
    }
    return ONCE_OK;
}

bool once__http_has_body(const http_call *call)
{
    const char *method = call->fixed->request->method;
    return strcmp(method, "GET") != 0 && strcmp(method, "DELETE") != 0;
}

/* The type of a body that is the message itself, where the file names none. */
static const char *type_of_message(const http_call *call, const once_http_input *input)
{
    const once_http_spec *http = call->driver->http;
    if (http->request.headers.typed || !once__http_has_body(call)) return NULL;
    if (http->body_kind == ONCE_HTTP_BODY_NONE) return "Content-Type:"; /* otherwise libcurl names one */
    if (http->body_kind != ONCE_HTTP_BODY_MESSAGE) return NULL;
    return input->json ? "Content-Type: application/json" : "Content-Type: application/octet-stream";
}

static void put_own_headers(http_call *call, const once_http_input *input, const once_http_facts *facts, size_t *n)
{
    const once_bytes key_header = call->driver->http->key_header;
    const char *type = type_of_message(call, input);
    once_buf *text = &call->text;
    once_buf_append(text, key_header.data, key_header.len);
    once_buf_puts(text, ": ");
    once_buf_append(text, facts->idempotency_key.data, facts->idempotency_key.len + 1); /* with its NUL */
    once_buf_puts(text, "Once-Attempt: ");
    once_buf_append(text, facts->attempt.data, facts->attempt.len + 1);
    *n += 2;
    if (!type) return;
    once_buf_append(text, type, strlen(type) + 1);
    ++*n;
}

/* The lines of the text, as libcurl wants them. */
static void link_lines(http_call *call, size_t n)
{
    char *at = call->text.data + strlen(call->text.data) + 1;
    for (size_t i = 0; i < n; i++) {
        call->lines[i] = (struct curl_slist){at, i + 1 < n ? &call->lines[i + 1] : call->fixed->headers};
        at += strlen(at) + 1;
    }
}

#define SET(option, value)                                                                                             \
    if (rc == CURLE_OK) rc = curl_easy_setopt(call->easy, option, value)

/* Every option that differs between calls is set, so that nothing of an earlier one is left. */
static CURLcode set_request(http_call *call)
{
    CURLcode rc = CURLE_OK;
    SET(CURLOPT_CONNECT_ONLY, 0L);
    if (once__http_has_body(call)) {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body.len);
        SET(CURLOPT_POSTFIELDS, call->body.len ? call->body.data : "");
    } else {
        SET(CURLOPT_HTTPGET, 1L);
    }
    /* The first calls wait until it is known whether one connection will do for all. Without TLS it never will. */
    const bool http2 = call->driver->http->http2 && call->fixed->request->tls;
    SET(CURLOPT_HTTP_VERSION, (long)(http2 ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_1_1));
    SET(CURLOPT_PIPEWAIT, http2 ? 1L : 0L);
    SET(CURLOPT_FRESH_CONNECT, 0L);
    SET(CURLOPT_FORBID_REUSE, 0L);
    SET(CURLOPT_CUSTOMREQUEST, call->fixed->request->method);
    SET(CURLOPT_URL, call->text.data);
    SET(CURLOPT_HTTPHEADER, call->first_line);
    SET(CURLOPT_TIMEOUT_MS, (long)call->fixed->timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)call->driver->http->connect_timeout_ms);
    SET(CURLOPT_DNS_CACHE_TIMEOUT, NAME_KEPT_S);
    return rc;
}

CURLcode once__http_call_connects(http_call *call)
{
    CURLcode rc = CURLE_OK;
    const int64_t now_ms = once_runner_now_ms(call->driver->driver.runner);
    const int64_t left_ms = call->deadline_ms - now_ms, connect_ms = call->connect_by_ms - now_ms;
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_HTTPGET, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PIPEWAIT, 0L);
    SET(CURLOPT_CUSTOMREQUEST, NULL);
    SET(CURLOPT_URL, call->fixed->origin);
    SET(CURLOPT_HTTPHEADER, NULL);
    SET(CURLOPT_TIMEOUT_MS, (long)(left_ms > 0 ? left_ms : 1));
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(connect_ms > 0 ? connect_ms : 1));
    SET(CURLOPT_DNS_CACHE_TIMEOUT, once__http_peer_name_s(call));
    return rc;
}

/* What an earlier answer left. */
static void forget_answer(http_call *call)
{
    if (call->answer.capacity > HTTP_KEPT) once_buf_release(&call->answer);
    once_buf_clear(&call->answer);
    call->head = 0;
    call->begun = call->headed = call->too_large = call->unfit_address = false;
    call->no_socket = 0;
    call->stale = false;
    call->retry_after[0] = call->length[0] = call->error[0] = '\0';
    call->status = 0;
}

void once__http_call_take(http_call *call, once_item *item)
{
    call->item = item;
    call->asks = item->decision.asks;
    call->fixed = &call->driver->fixed[call->asks ? HTTP_LOOKUP : HTTP_EFFECT];
    call->redirects = 0;
    call->refreshed = call->reconnected = false;
}

static void put_token(http_call *call, size_t *n)
{
    if (!call->driver->token.file || !once__http_authorized(call->driver, call->fixed)) return;
    const once_bytes token = once__http_token_text(call);
    once_buf_puts(&call->text, "Authorization: Bearer ");
    call->token_at = call->text.len;
    call->token_len = token.len;
    once_buf_append(&call->text, token.data, token.len);
    end_line(call);
    ++*n;
}

/* URL and headers. */
static int put_head(http_call *call, const once_http_facts *facts, size_t *n, once_error *err)
{
    const once_http_input *input = call->item->input;
    const once_http_values *values = call->asks ? &input->lookup : &input->request;
    if (call->text.capacity > HTTP_KEPT) once_buf_release(&call->text);
    once_buf_clear(&call->text);
    call->token_len = 0;
    int rc = put_url(call, values, facts, err);
    if (rc == ONCE_OK) rc = put_headers(call, values, facts, n, err);
    if (rc != ONCE_OK) return rc;
    if (!call->asks) put_own_headers(call, input, facts, n); /* a server may answer a question by its key */
    put_token(call, n);
    return ONCE_OK;
}

int once__http_call_make(http_call *call, once_error *err)
{
    http_driver *driver = call->driver;
    const once_item *item = call->item;
    const once_http_input *input = item->input;
    once_outward key;
    char attempt[ONCE_DIGITS];
    once_item_outward_key(&once_runner_options_of(driver->driver.runner)->keying, item, key);
    const once_http_facts facts = {item->request.key, {key, strlen(key)}, once_digits(item->decision.attempt, attempt)};
    size_t n = 0;
    call->deadline_ms = once_runner_now_ms(driver->driver.runner) + call->fixed->timeout_ms;
    forget_answer(call);
    int rc = put_head(call, &facts, &n, err);
    const size_t body_at = call->text.len;
    if (rc == ONCE_OK && !call->asks)
        rc = once_http_text_render(&driver->http->body, input->body, &facts, &call->text, err);
    if (rc != ONCE_OK) return rc;
    if (call->text.failed) return once_no_memory(err, "for a request");
    link_lines(call, n);
    call->first_line = n ? call->lines : call->fixed->headers;
    const bool as_it_is = driver->http->body_kind == ONCE_HTTP_BODY_MESSAGE;
    const once_bytes made = {call->text.data + body_at, call->text.len - body_at};
    call->body = !once__http_has_body(call) ? (once_bytes){0} : as_it_is ? item->message.body : made;
    const bool fine = call->fixed->direct ? once__http_direct_make(call) : set_request(call) == CURLE_OK;
    return fine ? ONCE_OK : once_no_memory(err, "for a request");
}

/* ---- what became of it ---- */

/* The reason in words: what happened, then what the server or libcurl said, on one line and without secrets. */
static void explain(http_call *call, const char *what, char *said, size_t len, once_bytes result)
{
    const once_http_request *request = call->fixed->request;
    char text[600], shown[SNIPPET + 1] = "";
    len = said ? once__http_redact(call, said, len) : 0;
    while (len > 0 && once_ascii_is_space(said[len - 1])) len--;
    if (len > 0) (void)snprintf(shown, sizeof shown, "%.*s", len < SNIPPET ? (int)len : SNIPPET, said);
    const size_t origin = request->origin < 100 ? request->origin : 100;
    const int n = snprintf(text, sizeof text, "%s%s %.*s: %s%s%s", call->asks ? "lookup: " : "", request->method,
                           (int)origin, request->written.data, what, shown[0] ? ": " : "", shown);
    once_runner_output(call->driver->driver.runner, call->item, result,
                       (once_bytes){text, n < (int)sizeof text ? (size_t)n : sizeof text - 1});
}

/* The message is not to blame: nothing is started until an operator has acted, or it may work again. */
static void stop(http_call *call, int status, const char *what, char *said, size_t len)
{
    const once_spec *spec = once_runner_options_of(call->driver->driver.runner)->spec;
    char where[300];
    (void)snprintf(where, sizeof where, "%s (%.*s:%d)", what, spec->file.len < 150 ? (int)spec->file.len : 150,
                   spec->file.data, call->fixed->request->line);
    call->item->outcome = ONCE_RELEASE;
    call->item->run_failure = status;
    explain(call, where, said, len, (once_bytes){0});
}

void once__http_call_unsent(http_call *call, int status, const char *why)
{
    once_item *item = call->item;
    once_error said;
    if (once_status_class(status) != ONCE_CLASS_MESSAGE) {
        item->run_failure = status;
    } else { /* whether a question about this message can be put will not change: then nothing was found out */
        item->outcome = call->asks ? ONCE_UNKNOWN : ONCE_DEAD;
        item->started = item->maybe_done = call->asks;
    }
    (void)once_fail(&said, status, "%s%s", call->asks ? "lookup: " : "", why);
    const size_t len = once__http_redact(call, said.text, strlen(said.text));
    once_runner_output(call->driver->driver.runner, item, (once_bytes){0}, (once_bytes){said.text, len});
}

static bool needs_operator(CURLcode code)
{
    return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CIPHER ||
           code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_ISSUER_ERROR || code == CURLE_URL_MALFORMAT ||
           code == CURLE_SSL_PINNEDPUBKEYNOTMATCH;
}

/* Nothing was sent. A question that could not be put found out nothing, and is put again. */
static void judge_unsent(http_call *call, CURLcode code, bool killed)
{
    once_item *item = call->item;
    char what[120], limit[ONCE_DURATION_TEXT];
    const int64_t connect_ms = call->driver->http->connect_timeout_ms, whole_ms = call->fixed->timeout_ms;
    const size_t len = strlen(call->error);
    if (killed && !call->asks) {
        explain(call, "ended before it was sent", NULL, 0, (once_bytes){0});
        return; /* as one that was not begun: RELEASE */
    }
    if (code == CURLE_OUT_OF_MEMORY) {
        stop(call, ONCE_E_NOMEM, "out of memory", NULL, 0);
        return;
    }
    if (call->no_socket) { /* too many open files: the next call would end in the same way */
        char said[100];
        (void)snprintf(said, sizeof said, "%s", once_errno_text(call->no_socket));
        stop(call, ONCE_E_UNAVAILABLE, "no socket can be opened here", said, strlen(said));
        return;
    }
    if (call->unfit_address) {
        stop(call, ONCE_E_DENIED,
             "the host has a link-local address, which is only used if the URL has the address itself", NULL, 0);
        return;
    }
    if (needs_operator(code)) {
        stop(call, ONCE_E_DENIED, "nothing was sent", call->error, len);
        return;
    }
    item->outcome = call->asks ? ONCE_UNKNOWN : ONCE_RETRY;
    item->started = item->maybe_done = call->asks;
    if (code == CURLE_OPERATION_TIMEDOUT) {
        (void)snprintf(what, sizeof what, "no connection within %s",
                       once_duration_format(connect_ms < whole_ms ? connect_ms : whole_ms, limit));
        explain(call, what, NULL, 0, (once_bytes){0});
        return;
    }
    if (len == 0) (void)snprintf(call->error, sizeof call->error, "%s", curl_easy_strerror(code));
    explain(call, "nothing was sent", call->error, strlen(call->error), (once_bytes){0});
}

/* Something may have been sent, and no whole answer came. */
static void judge_unanswered(http_call *call, CURLcode code, bool killed)
{
    char what[120], limit[ONCE_DURATION_TEXT];
    call->item->outcome = ONCE_UNKNOWN;
    call->item->started = call->item->maybe_done = true;
    if (killed) {
        explain(call, "ended before the answer came", NULL, 0, (once_bytes){0});
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        (void)snprintf(what, sizeof what, "no answer within %s", once_duration_format(call->fixed->timeout_ms, limit));
        explain(call, what, NULL, 0, (once_bytes){0});
    } else if (code == CURLE_ABORTED_BY_CALLBACK || code == CURLE_GOT_NOTHING) {
        explain(call, "the connection was closed before an answer came", NULL, 0, (once_bytes){0});
    } else {
        if (!call->error[0]) (void)snprintf(call->error, sizeof call->error, "%s", curl_easy_strerror(code));
        explain(call, "no whole answer", call->error, strlen(call->error), (once_bytes){0});
    }
}

/* Whether only a part of the request was sent. libcurl stops sending when an answer has come that ends the connection,
 * or refuses. */
static bool is_cut(const http_call *call)
{
    curl_off_t sent = 0; /* of the body */
    if (call->fixed->direct) return once__http_direct_cut(call);
    return curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &sent) != CURLE_OK || (size_t)sent < call->body.len;
}

/* A server that has not read the whole request cannot have done what it asks for, nor know it. It can say no to it. */
static bool came_too_early(const http_call *call, int meaning)
{
    const bool says_no = !call->asks && (meaning == ONCE_REJECTED || meaning > ONCE_STALE);
    return !says_no && is_cut(call);
}

/* Sets the outcome of an answer that is whole, and says what is special about it. */
static const char *meaning_of(http_call *call, long status, int meaning, const once_json *json)
{
    const once_http_request *request = call->fixed->request;
    once_item *item = call->item;
    item->outcome = (once_outcome)meaning;
    if (came_too_early(call, meaning)) {
        item->outcome = ONCE_UNKNOWN;
        return ", before the request was sent whole";
    }
    if (call->asks && meaning == ONCE_HTTP_ABSENT && !once_http_meets(&request->absent_if, json)) {
        item->outcome = ONCE_UNKNOWN;
        return ", but 'absent_if' is not met";
    }
    if (meaning != ONCE_DONE) return "";
    if (request->rejected_if.n && once_http_meets(&request->rejected_if, json)) {
        item->outcome = ONCE_REJECTED;
        return ", and 'rejected_if' is met";
    }
    const bool met = once_http_meets(&request->done_if, json);
    const bool says_nothing = status == 204; /* it cannot have a body, and so no refusal in it */
    if (met && (json || says_nothing || request->rejected_if.n == 0)) return "";
    item->outcome = ONCE_UNKNOWN;
    return met ? ", but 'rejected_if' cannot be looked at" : ", but 'done_if' is not met";
}

static bool is_redirect(long status) { return (status >= 301 && status <= 303) || status == 307 || status == 308; }

/* What a status means beyond its number. */
static const char *note_of(const http_call *call, long status)
{
    if (call->asks) return "";
    if (status == 422 && call->item->outcome == ONCE_DEAD)
        return " (a conflict: the content cannot be accepted, or the key was used with other content)";
    if (is_redirect(status)) return " (a redirect that is not followed)";
    return "";
}

static int meaning_of_status(const http_call *call, long status)
{
    const once_http_statuses *statuses = &call->fixed->request->statuses;
    return call->asks ? once_http_found(statuses, status) : once_http_meaning(statuses, status);
}

/* The answer as JSON; NULL: it is none, or not whole. */
static const once_json *json_of(http_call *call)
{
    once_json *json = &call->driver->json;
    const once_bytes body = once_buf_bytes(&call->answer);
    return !call->too_large && body.len && once_json_parse(json, body, NULL, NULL) == ONCE_OK ? json : NULL;
}

/* Takes secrets out of the answer: some servers say them back. Returns what is JSON of the rest. */
static const once_json *redact_answer(http_call *call, const once_json *json)
{
    const size_t len = once__http_redact(call, call->answer.data, call->answer.len);
    if (len == call->answer.len) return json; /* a mask is shorter than what it hides */
    call->answer.len = len;
    return json_of(call);
}

/* How long the server asks us to wait. -1: it does not. */
static int64_t asked_wait(const http_call *call)
{
    const once_env *env = once_runner_options_of(call->driver->driver.runner)->env;
    return once_http_retry_after(once_bytes_of(call->retry_after), once_env_wall_ms(env));
}

/* What the server asks for is the least: a "0", or a date that is over by our clock, would spend all attempts at once.
 * -1: it asks for nothing. */
static int64_t wait_of_retry(const http_call *call)
{
    const once_effect_driver *driver = &call->driver->driver;
    const once_env *env = once_runner_options_of(driver->runner)->env;
    const once_decision *d = &call->item->decision;
    const int64_t asked_ms = asked_wait(call);
    if (asked_ms < 0) return asked_ms;
    const int64_t usual_ms = once_retry_pause_ms(&driver->handler->retry, d->failures + 1, d->failing_for_ms, env);
    return asked_ms > usual_ms ? asked_ms : usual_ms;
}

static void judge_answer(http_call *call, long status)
{
    http_driver *driver = call->driver;
    once_item *item = call->item;
    const int meaning = meaning_of_status(call, status);
    char what[200];
    if (meaning == ONCE_HTTP_PAUSE) {
        (void)snprintf(what, sizeof what, "status %ld", status);
        stop(call, ONCE_E_DENIED, what, call->answer.data, call->answer.len);
        return;
    }
    item->started = true;
    const once_json *json = json_of(call);
    const char *special =
        meaning_of(call, status, meaning, json); /* of what it says; then it is made fit to be shown */
    json = redact_answer(call, json);
    item->maybe_done = item->outcome == ONCE_UNKNOWN;
    if (item->outcome == ONCE_RETRY) item->delay_ms = wait_of_retry(call);
    if (item->outcome == ONCE_UNKNOWN) item->delay_ms = asked_wait(call); /* its usual pause is at least as long */
    once_buf_clear(&driver->result);
    if (item->outcome <= ONCE_STALE)
        once_http_result(&driver->result, status, once_buf_bytes(&call->answer), json, !call->too_large,
                         once_runner_options_of(driver->driver.runner)->spec->result_max);
    const once_bytes result = driver->result.failed ? (once_bytes){0} : once_buf_bytes(&driver->result);
    if (item->outcome == ONCE_DONE) {
        once_runner_output(driver->driver.runner, item, result, (once_bytes){0});
    } else {
        (void)snprintf(what, sizeof what, "status %ld%s%s", status, special, note_of(call, status));
        explain(call, what, call->answer.data, call->answer.len, result);
    }
    if (driver->result.failed) item->result_lost = true; /* there was one */
}

/* ---- redirects ---- */

/* 307 and 308 say that nothing was done, and that the same request is to go elsewhere. The others turn a POST into a
 * GET, or mean that it was done; they are followed for a GET alone. */
static bool asks_to_follow(const http_call *call, long status)
{
    if (call->redirects >= call->driver->http->redirects) return false;
    if (once_http_listed(&call->fixed->request->statuses, status)) return false; /* the file says what it means */
    if (status == 307 || status == 308) return true;
    return strcmp(call->fixed->request->method, "GET") == 0 && status >= 301 && status <= 303;
}

static bool is_same_origin(const http_call *call, const char *url)
{
    const once_http_request *request = call->fixed->request;
    const size_t len = strlen(url);
    return len >= request->origin && memcmp(url, request->written.data, request->origin) == 0 &&
           (len == request->origin || strchr("/?#", url[request->origin]));
}

/* True: the call goes on elsewhere, with what is left of its time. */
static bool follow(http_call *call, long status)
{
    char *url = NULL;
    const int64_t left_ms = call->deadline_ms - once_runner_now_ms(call->driver->driver.runner);
    if (!asks_to_follow(call, status) || left_ms <= 0) return false;
    if (curl_easy_getinfo(call->easy, CURLINFO_REDIRECT_URL, &url) != CURLE_OK || !url || !is_same_origin(call, url))
        return false;
    CURLcode rc = CURLE_OK;
    SET(CURLOPT_URL, url);
    SET(CURLOPT_TIMEOUT_MS, (long)left_ms);
    if (rc != CURLE_OK) return false;
    call->redirects++;
    forget_answer(call);
    return true;
}

/* A token may have expired: the command is asked for another one, once. A 401 means that nothing was done, unless the
 * file says otherwise. */
static bool renews(http_call *call, long status)
{
    if (status != 401 || meaning_of_status(call, status) != ONCE_HTTP_PAUSE) return false;
    if (call->refreshed || !call->driver->token.file || !once__http_authorized(call->driver, call->fixed)) return false;
    call->refreshed = true;
    return true;
}

/* The connection was not silent, and is closed now. Nothing was sent. */
static bool reconnects(http_call *call)
{
    if (!call->stale || call->begun || call->reconnected) return false;
    call->reconnected = true;
    forget_answer(call);
    return curl_easy_setopt(call->easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK;
}

http_verdict once__http_call_judge(http_call *call, CURLcode code, bool killed)
{
    long status = call->reply.status;
    if (!call->fixed->direct) (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    const bool answered = !killed && call->begun && call->headed && status >= 200 &&
                          (code == CURLE_OK || (code == CURLE_WRITE_ERROR && call->too_large)) &&
                          !ONCE_FAIL_AT(http_after);
    if (!killed && reconnects(call)) return HTTP_RECONNECTS;
    if (answered && !call->fixed->direct) once__http_note_version(call);
    if (answered && follow(call, status)) return HTTP_FOLLOWS;
    if (answered && renews(call, status)) return HTTP_RENEWS;
    if (answered) judge_answer(call, status);
    else if (call->begun) judge_unanswered(call, code, killed);
    else judge_unsent(call, code, killed);
    return HTTP_ENDED;
}
