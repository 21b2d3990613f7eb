/* The HTTP client (http.h): an easy handle of libcurl in a multi handle, because only the latter can be woken. */
#include "aws/http.h"

#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define ASK_MS 250 /* how often `cancel` is asked at least */
#define HOST_MAX 100

struct once_aws_http {
    CURL *easy;
    CURLM *multi;
};

/* One call. */
typedef struct exchange {
    const once_aws_call *call;
    once_buf *body;
    once_aws_answer *answer;
} exchange;

static pthread_once_t started = PTHREAD_ONCE_INIT;
static CURLcode start_result;

static void start_curl(void) { start_result = curl_global_init(CURL_GLOBAL_DEFAULT); }

/* A connection that the server has closed must not end the program, whatever it does with SIGPIPE: libcurl leaves that
 * to its callers, with CURLOPT_NOSIGNAL. */
typedef struct pipe_guard {
    sigset_t signal, before;
    bool was_pending;
} pipe_guard;

static void guard_pipe(pipe_guard *guard)
{
    sigset_t pending;
    (void)sigemptyset(&guard->signal);
    (void)sigaddset(&guard->signal, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &guard->signal, &guard->before);
    guard->was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

static void unguard_pipe(const pipe_guard *guard)
{
    const struct timespec at_once = {0};
    while (!guard->was_pending && sigtimedwait(&guard->signal, NULL, &at_once) < 0 && errno == EINTR) continue;
    (void)pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

/* What is the same for all calls. */
static bool set_up(CURL *easy, const once_aws_http_options *options)
{
    CURLcode rc = curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L); /* what was signed is what is sent */
    if (!rc && options->ca_file) rc = curl_easy_setopt(easy, CURLOPT_CAINFO, options->ca_file);
    if (!rc && options->direct) rc = curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    return rc == CURLE_OK;
}

int once_aws_http_open(const once_aws_http_options *options, once_aws_http **out, once_error *err)
{
    assert(options && out);
    (void)pthread_once(&started, start_curl);
    if (start_result != CURLE_OK)
        return once_fail(err, ONCE_E_UNAVAILABLE, "libcurl does not start: %s", curl_easy_strerror(start_result));
    once_aws_http *http = calloc(1, sizeof *http);
    if (!http) return once_no_memory(err, "for an HTTP client");
    http->easy = curl_easy_init();
    http->multi = curl_multi_init();
    if (!http->easy || !http->multi || !set_up(http->easy, options)) {
        once_aws_http_close(http);
        return once_no_memory(err, "for an HTTP client");
    }
    *out = http;
    return ONCE_OK;
}

void once_aws_http_close(once_aws_http *http)
{
    if (!http) return;
    pipe_guard guard;
    guard_pipe(&guard); /* TLS says goodbye */
    if (http->multi) (void)curl_multi_cleanup(http->multi);
    if (http->easy) curl_easy_cleanup(http->easy);
    unguard_pipe(&guard);
    free(http);
}

void once_aws_http_wake(once_aws_http *http)
{
    assert(http);
    (void)curl_multi_wakeup(http->multi);
}

/* --- the answer --------------------------------------------------------------------------------------------------- */

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    exchange *x = user;
    return once_buf_append(x->body, data, size * n) ? size * n : 0;
}

static size_t take_header(char *data, size_t size, size_t n, void *user)
{
    exchange *x = user;
    char text[64];
    const size_t len = size * n;
    if (len > 5 && len < sizeof text && once_ascii_begins(data, len, "date:")) {
        memcpy(text, data + 5, len - 5);
        text[len - 5] = '\0';
        const time_t date = curl_getdate(text, NULL);
        if (date > 0) x->answer->date_s = (int64_t)date;
    }
    return len;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static struct curl_slist *make_headers(const char *const *lines)
{
    /* libcurl would wait for "100 Continue" before it sends a large body, and name a type for it. */
    static const char *const not_sent[] = {"Expect:", "Accept:", "Content-Type:"};
    struct curl_slist *list = NULL;
    bool typed = false;
    for (size_t i = 0; lines && lines[i]; i++) {
        struct curl_slist *longer = curl_slist_append(list, lines[i]);
        if (!longer) goto no_memory;
        list = longer;
        typed = typed || once_ascii_begins(lines[i], strlen(lines[i]), "content-type:");
    }
    for (size_t i = 0; i < (typed ? 2 : 3); i++) {
        struct curl_slist *longer = curl_slist_append(list, not_sent[i]);
        if (!longer) goto no_memory;
        list = longer;
    }
    return list;
no_memory:
    curl_slist_free_all(list);
    return NULL;
}

/* Every option of a call is set, so that nothing of an earlier one is left. */
static CURLcode prepare(CURL *easy, exchange *x, const struct curl_slist *headers)
{
    const once_aws_call *call = x->call;
    const bool sends = call->body.len || strcmp(call->method, "POST") == 0 || strcmp(call->method, "PUT") == 0;
    CURLcode rc = curl_easy_setopt(easy, CURLOPT_URL, call->url);
    if (!rc) rc = curl_easy_setopt(easy, sends ? CURLOPT_POST : CURLOPT_HTTPGET, 1L);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->method);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->body.len);
    if (!rc && sends) rc = curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body.len ? call->body.data : "");
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)call->connect_ms);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    if (!rc) rc = curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
    return rc;
}

/* Until the transfer has ended. False: it was cancelled. */
static bool transfer(once_aws_http *http, const once_cancel *cancel, CURLcode *result)
{
    CURLMcode rc = curl_multi_add_handle(http->multi, http->easy);
    int running = 1, left;
    bool cancelled = false;
    *result = CURLE_OUT_OF_MEMORY; /* what a failure of the multi handle means */
    while (rc == CURLM_OK && running && !cancelled) {
        rc = curl_multi_perform(http->multi, &running);
        if (rc == CURLM_OK && running) rc = curl_multi_poll(http->multi, NULL, 0, ASK_MS, NULL);
        cancelled = running && once_cancelled(cancel);
    }
    for (CURLMsg *message; (message = curl_multi_info_read(http->multi, &left)) != NULL;)
        if (message->msg == CURLMSG_DONE) *result = message->data.result;
    (void)curl_multi_remove_handle(http->multi, http->easy);
    return !cancelled;
}

/* The host of a URL, for errors: what stands beside it may be secret. */
static void host_of(const char *url, char out[HOST_MAX + 1])
{
    const char *scheme = strstr(url, "://");
    const char *host = scheme ? scheme + 3 : url;
    size_t len = strcspn(host, "/?#");
    const char *user = memrchr(host, '@', len);
    if (user) {
        len -= (size_t)(user + 1 - host);
        host = user + 1;
    }
    if (len > HOST_MAX) len = HOST_MAX;
    memcpy(out, host, len);
    out[len] = '\0';
}

static int status_of(CURLcode result)
{
    switch (result) {
    case CURLE_OUT_OF_MEMORY: return ONCE_E_NOMEM;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_SSL_CACERT_BADFILE: return ONCE_E_CONFIG;
    case CURLE_PEER_FAILED_VERIFICATION: return ONCE_E_DENIED;
    default: return ONCE_E_UNAVAILABLE;
    }
}

static int fail(CURL *easy, const exchange *x, CURLcode result, once_error *err)
{
    char host[HOST_MAX + 1];
    curl_off_t connected = 0; /* after how many microseconds; 0: it was not */
    (void)curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
    host_of(x->call->url, host);
    if (result == CURLE_WRITE_ERROR && x->body->failed)
        return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the answer has more than %zu bytes", host, x->body->max);
    if (result == CURLE_OPERATION_TIMEDOUT)
        return once_fail(err, ONCE_E_UNAVAILABLE, "%s: no %s within %lld ms", host, connected ? "answer" : "connection",
                         (long long)(connected ? x->call->timeout_ms : x->call->connect_ms));
    return once_fail(err, status_of(result), "%s: %s", host, curl_easy_strerror(result));
}

int once_aws_http_call(once_aws_http *http, const once_aws_call *call, once_buf *body, once_aws_answer *answer,
                       once_error *err)
{
    assert(http && call && call->method && call->url && body && answer);
    assert(call->connect_ms > 0 && call->timeout_ms > 0);
    exchange x = {call, body, answer};
    once_buf_clear(body);
    *answer = (once_aws_answer){0};
    struct curl_slist *headers = make_headers(call->headers);
    if (!headers) return once_no_memory(err, "for a request");
    pipe_guard guard;
    guard_pipe(&guard);
    CURLcode result = prepare(http->easy, &x, headers);
    const bool whole = result != CURLE_OK || transfer(http, &call->cancel, &result);
    unguard_pipe(&guard);
    if (result == CURLE_OK) result = curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &answer->status);
    (void)curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    if (!whole) {
        char host[HOST_MAX + 1];
        host_of(call->url, host);
        return once_fail(err, ONCE_E_BUSY, "%s: the call was cancelled", host);
    }
    return result == CURLE_OK ? ONCE_OK : fail(http->easy, &x, result, err);
}
