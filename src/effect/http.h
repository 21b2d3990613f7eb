/* The field `http` of a handler: a request for each message.
 *
 *   http_effect.c   the effect: rules between its fields, inputs, and what people see
 *   http_config*.c  its part of the pipeline file
 *   http_text.c     texts that are made for each message
 *   http_answer.c   what an answer means: outcome, result, reason, Retry-After
 *   http/           the driver, with libcurl; in the module `http`
 *
 * Values of headers, `bearer`, `basic` and `proxy` may be secrets: no message shows one. */
#ifndef ONCE_EFFECT_HTTP_H
#define ONCE_EFFECT_HTTP_H

#include "base/json.h"
#include "base/value.h"
#include "core/spec.h"
#include "effect/http_text.h"

#define ONCE_HTTP_STATUSES 600               /* statuses are 100..599 */
#define ONCE_HTTP_PAUSE ONCE_OUTCOMES        /* a meaning beside the outcomes: the handler waits for an operator */
#define ONCE_HTTP_ABSENT ONCE_RETRY          /* of a lookup */
#define ONCE_HTTP_RETRY_AFTER_MAX_MS 3600000 /* a server cannot put a message off for longer */

typedef enum once_http_body {
    ONCE_HTTP_BODY_MESSAGE, /* as it is */
    ONCE_HTTP_BODY_NONE,
    ONCE_HTTP_BODY_TEXT, /* a template */
    ONCE_HTTP_BODY_JSON,
    ONCE_HTTP_BODY_FORM
} once_http_body;

typedef struct once_http_header {
    once_bytes name;
    once_http_text value; /* where `secret` is empty */
    once_written secret;  /* a reference */
} once_http_header;

typedef struct once_http_headers {
    const once_http_header *list;
    size_t n;
    bool typed; /* Content-Type is among them */
} once_http_headers;

/* A value of the answer's JSON body that must be one of several. */
typedef struct once_http_condition {
    once_pointer at;
    const once_bytes *values;
    size_t n;
} once_http_condition;

typedef struct once_http_conditions {
    const once_http_condition *list; /* all of them must be met; n 0: there is no condition */
    size_t n;
} once_http_conditions;

/* What statuses mean where it differs from the default. Meanings are outcomes, and ONCE_HTTP_PAUSE. */
typedef struct once_http_statuses {
    uint8_t exact[ONCE_HTTP_STATUSES], classes[ONCE_HTTP_STATUSES / 100]; /* 1 + the meaning; 0: not given */
} once_http_statuses;

/* What a request of the file has: the effect itself, and its lookup. */
typedef struct once_http_request {
    const char *method; /* "POST"; NULL: there is no such request */
    once_bytes written; /* the URL as it stands in the file */
    int line;
    once_http_text url, query; /* query: begins with '?' or '&' */
    bool tls;
    bool link_local; /* its host is written as such an address */
    bool loopback;
    size_t origin; /* bytes of `written`: scheme, host and port */
    once_http_headers headers;
    once_http_statuses statuses;
    once_http_conditions done_if, rejected_if, absent_if; /* absent_if: of a lookup */
    int64_t timeout_ms;                                   /* 0: not given */
} once_http_request;

typedef struct once_http_lookup {
    once_http_request request;
    once_lookup when;
} once_http_lookup;

typedef struct once_http_spec {
    once_http_request request;
    once_http_lookup lookup;
    once_http_body body_kind;
    once_http_text body; /* TEXT, JSON, FORM */
    once_written bearer, basic, proxy;
    const once_bytes *token_command; /* `bearer: {exec: [...]}`; its line is that of `bearer` */
    size_t n_token_command;
    once_bytes key_header;
    once_bytes ca, certificate, key; /* paths */
    int64_t connect_timeout_ms, idle_ms;
    uint32_t redirects, window;
    size_t response_max;
    bool http2;
} once_http_spec;

static inline const once_http_spec *once_http_of(const once_handler_spec *handler) { return handler->own; }

/* Whether the lookup goes to the same scheme, host and port, so that it may have the same credentials. */
bool once_http_same_origin(const once_http_request *x, const once_http_request *y);

/* What `prepare` makes of a message: the values of each text, in the order of the headers. */
typedef struct once_http_values {
    const once_bytes *url, *query, *const *headers;
} once_http_values;

typedef struct once_http_input {
    once_http_values request, lookup;
    const once_bytes *body;
    bool json; /* the message's body is JSON */
} once_http_input;

/* --- answers (http_answer.c) --- */

/* What a status of the effect means: an outcome, or ONCE_HTTP_PAUSE. */
int once_http_meaning(const once_http_statuses *statuses, long status);
/* What a status of a lookup means: DONE, RETRY (there is no record of it), ONCE_HTTP_PAUSE or UNKNOWN. */
int once_http_found(const once_http_statuses *statuses, long status);
/* Whether the file says what it means. */
bool once_http_listed(const once_http_statuses *statuses, long status);

/* Whether the body of an answer is JSON, and has what is asked for. True if nothing is. */
bool once_http_meets(const once_http_conditions *conditions, const once_json *body);

/* The value of a header Retry-After: seconds, or a date (RFC 9110), as milliseconds from `now_ms` (UTC). At most
 * ONCE_HTTP_RETRY_AFTER_MAX_MS. -1: it is neither. */
int64_t once_http_retry_after(once_bytes value, int64_t now_ms);

/* The stored result: {"status":201,"body":...}. A body that is not JSON is a string, and one that is not text is
 * "body_base64". What does not fit into `max` bytes, and a body that is not whole, is left out, and "truncated":true
 * says so. `json`: the parsed body, or NULL if it is no JSON. */
void once_http_result(once_buf *out, long status, once_bytes body, const once_json *json, bool whole, size_t max);

/* The part of a result that is the body, for `then`; empty if there was none, without data if it was not kept. */
once_bytes once_http_result_body(once_bytes result);

#endif
