/* The fields of the effect `http`, and of its `lookup` (http_config.h). */
#include "effect/http_config.h"

#include <assert.h>

#include "core/config_values.h"

#include "base/banned.h"

#define METHOD(field_name, what)                                                                                       \
    {                                                                                                                  \
        .name = field_name, .type = ONCE_CONFIG_CUSTOM, .read = once__http_config_url, .shape = "a URL",               \
        .example = "\"https://pay.example/charges/${/order_id}\"", .text = what                                        \
    }

#define STATUSES(field_name, usual, what)                                                                              \
    {                                                                                                                  \
        .name = field_name, .type = ONCE_CONFIG_CUSTOM, .read = once__http_config_statuses,                            \
        .shape = "list of statuses", .example = "[409, 5xx]", .standard_text = usual, .text = what                     \
    }

#define CONDITIONS(type_of, field_name, member, what)                                                                  \
    {                                                                                                                  \
        .name = field_name, .type = ONCE_CONFIG_CUSTOM, .read = once__http_config_conditions,                          \
        ONCE_CONFIG_AT(type_of, member), .shape = "map of pointers", .example = "{/status: [ok, accepted]}",           \
        .standard_text = "none", .text = what                                                                          \
    }

static const once_config_field lookup_fields[] = {
    {.name = "get",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = once__http_config_url,
     .shape = "a URL",
     .example = "\"https://pay.example/charges/${idempotency_key}\"",
     .text = "The URL that is asked, written as that of the request. It must change nothing."},
    {.name = "query",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_query,
     .shape = "map",
     .example = "{order: \"${/order_id}\"}",
     .standard_text = "none",
     .text = "As that of the request."},
    {.name = "headers",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_headers,
     .shape = "map",
     .example = "{Accept: application/json}",
     .standard_text = "none",
     .text = "As those of the request. `bearer` and `basic` are sent, too, if the lookup goes to the same scheme, host "
             "and port."},
    STATUSES("done", "`[2xx]`", "It happened. The answer is the result that duplicates get."),
    STATUSES("absent", "`[404]`",
             "It did not happen, and cannot happen later: the attempt counts as failed, and the message is tried "
             "again."),
    STATUSES("rejected", "none", "The other side refused it, for good."),
    STATUSES("pause", "`[401, 403]`", "The lookup is not allowed: an operator must act."),
    CONDITIONS(once_http_lookup, "done_if", request.done_if,
               "A status of `done` counts only if each pointer leads to one of its values in the JSON of the answer; "
               "otherwise nothing was found out."),
    CONDITIONS(once_http_lookup, "rejected_if", request.rejected_if, "The same for rejected; it is looked at first."),
    CONDITIONS(once_http_lookup, "absent_if", request.absent_if,
               "A status of `absent` counts only if each pointer leads to one of its values in the JSON of the answer; "
               "otherwise nothing was found out. A wrong path answers 404, too: with this it is no second effect."),
    {.name = "after",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_lookup, when.after_ms),
     .min = 0,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "10s",
     .standard_text = "the timeout of the request",
     .text = "How long to wait before the first question: the other side may still act on the request."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_lookup, when.for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "`1h`",
     .text = "How long it is asked again while nothing is found out. Then `unknown` decides."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_lookup, request.timeout_ms),
     .min = 1,
     .max = 86400000,
     .example = "5s",
     .standard_text = "that of the request",
     .text = "How long one question may take."},
};

static const once_config_section lookup_section = {
    .name = "'lookup' of 'http'",
    .title = "lookup of http",
    .text = "A request that asks what became of an attempt whose outcome is unknown. Every status that is in none of\n"
            "its lists, and every failure, means that nothing was found out: it is asked again, with growing pauses\n"
            "and not before the `Retry-After` of its answer.",
    .example = "http:\n"
               "  post: \"https://pay.example/charges\"\n"
               "  lookup:\n"
               "    get: \"https://pay.example/charges/${idempotency_key}\"\n"
               "    absent_if: {/error: no such charge}\n"
               "    after: 30s\n",
    .fields = lookup_fields,
    .n = sizeof lookup_fields / sizeof *lookup_fields,
};

static_assert(offsetof(once_http_lookup, request) == 0 && offsetof(once_http_spec, request) == 0,
              "readers of a request get the struct of either section");

static const once_config_field http_fields[] = {
    METHOD("post", "The URL of a POST. Scheme, host and port stand in the file; path and query may have placeholders, "
                   "whose values are percent-encoded."),
    METHOD("put", "The same for a PUT."),
    METHOD("patch", "The same for a PATCH."),
    METHOD("delete", "The same for a DELETE, which has no body."),
    METHOD("get", "The same for a GET, which has no body."),
    {.name = "query",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_query,
     .shape = "map",
     .example = "{currency: \"${/currency}\"}",
     .standard_text = "none",
     .text = "Added to the URL. Values are templates, and percent-encoded."},
    {.name = "headers",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_headers,
     .shape = "map",
     .example = "{X-Order: \"${/order_id}\", X-Api-Key: \"env:API_KEY\"}",
     .standard_text = "none",
     .text =
         "Values are templates, or references to secrets (`env:NAME`, `file:PATH`), which are read at the start and "
         "never shown. `Authorization`, `Cookie`, `X-Api-Key` and `X-Auth-Token` must be one or the other. A message "
         "whose value has a control character becomes a dead letter."},
    {.name = "bearer",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_bearer,
     ONCE_CONFIG_AT(once_http_spec, bearer),
     .shape = "a reference, or a command",
     .example = "env:TOKEN",
     .standard_text = "none",
     .text =
         "A token, sent as `Authorization: Bearer`: `env:NAME`, `file:PATH`, or `{exec: [./token]}`, a command that "
         "prints it. The command is run before the first call, and again when the server answers 401; its "
         "environment has `PATH` and `LANG` only."},
    {.name = "basic",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_secret,
     ONCE_CONFIG_AT(once_http_spec, basic),
     .shape = "a reference",
     .example = "file:credentials",
     .standard_text = "none",
     .text = "`user:password`, sent as `Authorization: Basic`: `env:NAME` or `file:PATH`."},
    {.name = "key_header",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_key_header,
     .shape = "name of a header",
     .example = "X-Request-Id",
     .standard_text = "`Idempotency-Key`",
     .text = "The header that carries the idempotency key."},
    {.name = "body",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_body,
     .shape = "`none`, a template, a map or a list",
     .example = "{order: \"${/order_id}\", cents: \"${/cents}\"}",
     .standard_text = "the message as it is",
     .text = "Of `post`, `put` and `patch`. A map or a list is sent as JSON, in which a text that is one placeholder "
             "becomes the value of the message itself, a number or an object, too. In any other text values are "
             "inserted as they are."},
    {.name = "form",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_form,
     .shape = "map",
     .example = "{amount: \"${/cents}\"}",
     .standard_text = "none",
     .text = "Instead of `body`: sent as `application/x-www-form-urlencoded`, values percent-encoded."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_spec, request.timeout_ms),
     .min = 1,
     .max = 86400000,
     .example = "10s",
     .standard_text = "the handler's `timeout`",
     .text = "How long the whole call may take; one that is sent again with a new token (`bearer`) has it again. The "
             "same as the handler's `timeout`; write one of them."},
    {.name = "connect_timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_spec, connect_timeout_ms),
     .min = 1,
     .max = 86400000,
     .example = "3s",
     .standard_text = "`3s`",
     .text = "How long connecting may take, TLS included. Nothing was sent then: the message is tried again."},
    {.name = "idle",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_http_spec, idle_ms),
     .min = 0,
     .max = 3600000,
     .example = "30s",
     .standard_text = "`2s`",
     .text = "A connection that was idle for longer is not used again, counted in whole seconds. It must be shorter "
             "than the time after which the server closes idle connections: a request that meets a closing "
             "connection is unknown."},
    {.name = "redirects",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_http_spec, redirects),
     .min = 0,
     .max = 10,
     .example = "1",
     .standard_text = "`0`",
     .text = "How many redirects are followed: 307 and 308, within the same scheme, host and port."},
    {.name = "proxy",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__http_config_proxy,
     .shape = "a URL or a reference",
     .example = "http://proxy.example:3128",
     .standard_text = "none; variables such as `HTTPS_PROXY` do not count",
     .text = "The proxy that requests go through. One with a password is a reference. The certificate of one over "
             "https:// is verified, with `ca` if there is one."},
    {.name = "ca",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_http_spec, ca),
     .min = 1,
     .max = ONCE_HTTP_PATHS_MAX,
     .example = "/etc/once/ca.pem",
     .standard_text = "those of the system",
     .text = "A file of certificates (PEM) that are trusted, instead of those of the system."},
    {.name = "certificate",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_http_spec, certificate),
     .min = 1,
     .max = ONCE_HTTP_PATHS_MAX,
     .example = "/etc/once/client.pem",
     .standard_text = "none",
     .text = "The client's certificate (PEM). The file may have its key, too."},
    {.name = "key",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_http_spec, key),
     .min = 1,
     .max = ONCE_HTTP_PATHS_MAX,
     .example = "/etc/once/client.key",
     .standard_text = "in the file of `certificate`",
     .text = "The private key of the client's certificate (PEM)."},
    {.name = "http2",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_http_spec, http2),
     .example = "false",
     .standard_text = "`true`",
     .text = "HTTP/2 is used over TLS if the server offers it."},
    {.name = "window",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_http_spec, window),
     .min = 1,
     .max = 4096,
     .example = "256",
     .standard_text = "`64`",
     .text = "How many calls may be in flight."},
    {.name = "response_max",
     .type = ONCE_CONFIG_SIZE,
     ONCE_CONFIG_AT(once_http_spec, response_max),
     .min = 1,
     .max = 64 << 20,
     .example = "1MiB",
     .standard_text = "`1MiB`",
     .text = "How much of an answer's body is read. Of a longer one the status counts, and the result has no body."},
    STATUSES("done", "`[2xx]`", "The effect happened."),
    STATUSES("already", "none", "It had happened before."),
    STATUSES("rejected", "none", "The business says no; not tried again."),
    STATUSES("stale", "none", "A newer message has been handled."),
    STATUSES("retry", "`[408, 409, 425, 429, 503]`",
             "Nothing happened; tried again after `retry.backoff`, and not before `Retry-After` (up to 1h)."),
    STATUSES("unknown", "every other",
             "It may have happened: `lookup` is asked, then `unknown` decides. It is not tried again before "
             "`Retry-After` either."),
    STATUSES("dead", "`[4xx, 307, 308]`", "It can never succeed: a dead letter."),
    STATUSES("pause", "`[401, 403]`", "Nothing happened, and an operator must act: the handler waits."),
    CONDITIONS(
        once_http_spec, "done_if", request.done_if,
        "For services that answer 200 to everything: a status of `done` counts only if each pointer leads to one "
        "of its values in the JSON of the answer. Otherwise the outcome is unknown."),
    CONDITIONS(once_http_spec, "rejected_if", request.rejected_if,
               "An answer with a status of `done` that meets it is rejected; it is looked at before `done_if`."),
    {.name = "lookup",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_http_spec, lookup),
     .section = &lookup_section,
     .example = "{get: \"https://pay.example/charges/${idempotency_key}\"}",
     .standard_text = "none",
     .text = "A request that asks what became of an attempt whose outcome is unknown, before `unknown` decides."},
};

const once_config_section once__http_section = {
    .name = "'http'",
    .title = "http",
    .text =
        "A request for each message; docs/http.md says what each answer means. Texts may have the placeholders of a\n"
        "key, and `${key}`, `${idempotency_key}` and `${attempt}`. Every request has the headers `Idempotency-Key` "
        "(32\n"
        "hexadecimal digits, the same for every attempt at a key) and `Once-Attempt` (1, 2, 3...).\n"
        "\n"
        "A list of statuses moves them: what no list names keeps its default. An exact status goes before a class\n"
        "(`5xx`).",
    .example = "http:\n"
               "  post: \"https://pay.example/charges\"\n"
               "  bearer: env:PAY_TOKEN\n"
               "  body: {order: \"${/order_id}\", cents: \"${/cents}\"}\n"
               "  rejected: [402]\n"
               "  lookup: {get: \"https://pay.example/charges/${idempotency_key}\"}\n",
    .fields = http_fields,
    .n = sizeof http_fields / sizeof *http_fields,
};
