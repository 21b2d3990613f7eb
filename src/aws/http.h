/* A small HTTP client: one call at a time over a connection that is kept, with libcurl.
 *
 * Redirects are not followed, certificates are verified, and only http and https are spoken. A call ends at its time
 * limit, whatever the server does. An answer that is cut off (shorter than its Content-Length, or a chunk missing) or
 * larger than its limit is an error.
 *
 * Thread rule: one thread at a time; once_aws_http_wake may be called from any thread. */
#ifndef ONCE_AWS_HTTP_H
#define ONCE_AWS_HTTP_H

#include "base/buf.h"
#include "base/cancel.h"
#include "once/types.h"

typedef struct once_aws_http once_aws_http;

typedef struct once_aws_http_options {
    const char *ca_file; /* certificates that are trusted; NULL: those of the system. Must outlive the client */
    bool direct;         /* never through a proxy of the environment (HTTPS_PROXY): for metadata servers */
} once_aws_http_options;

int once_aws_http_open(const once_aws_http_options *options, once_aws_http **out, once_error *err);
void once_aws_http_close(once_aws_http *http); /* NULL is allowed */

typedef struct once_aws_call {
    const char *method, *url;
    const char *const *headers; /* "Name: value"; a NULL ends the list; NULL: none. Host and Content-Length are added */
    once_bytes body;            /* sent if it is not empty, or the method is POST or PUT */
    int64_t connect_ms;         /* how long connecting may take */
    int64_t timeout_ms;         /* how long the whole call may take */
    once_cancel cancel;         /* asked several times a second, and after once_aws_http_wake */
} once_aws_call;

typedef struct once_aws_answer {
    long status;    /* of HTTP, 100 to 599 */
    int64_t date_s; /* the server's clock in seconds since 1970 (its header Date); 0: not given */
} once_aws_answer;

/* Makes a call. The body of the answer is put into `body`, which is cleared first and whose maximum is its limit.
 * ONCE_OK: the answer is whole, whatever its status. ONCE_E_UNAVAILABLE: no whole answer; the server may have got the
 * request. ONCE_E_DENIED: the certificate was not accepted. ONCE_E_CONFIG: the URL is not one. ONCE_E_NOMEM.
 * ONCE_E_BUSY: it was cancelled. Errors begin with the host of the URL, and have nothing else of the request. */
int once_aws_http_call(once_aws_http *http, const once_aws_call *call, once_buf *body, once_aws_answer *answer,
                       once_error *err);

/* Makes a call that is under way ask `cancel` at once. Thread rule: any thread, until close. */
void once_aws_http_wake(once_aws_http *http);

#endif
