/* The effect `http`: defaults and rules between its fields, what it makes of a message, and what people see of it. The
 * driver, which sends requests, is in http/. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "effect/effect.h"
#include "effect/http_config.h"

#include "base/banned.h"

/* --- its fields --- */

static const once_config_field fields[] = {
    {.name = "http",
     .type = ONCE_CONFIG_SECTION,
     .size = sizeof(once_http_spec),
     .section = &once__http_section,
     .example = "{post: \"https://pay.example/charges\"}",
     .text = "Effect: a request over HTTP or HTTPS. The status of the answer is the outcome."},
};

static const once_http_spec standard = {
    .connect_timeout_ms = 3000,
    .idle_ms = 2000,
    .window = 64,
    .response_max = 1 << 20,
    .http2 = true,
    .key_header = {"Idempotency-Key", 15},
    .lookup.when = {.after_ms = ONCE_LOOKUP_TIMEOUT, .for_ms = 3600000},
};

/* --- rules between them --- */

bool once_http_same_origin(const once_http_request *x, const once_http_request *y)
{
    return once_bytes_equal((once_bytes){x->written.data, x->origin}, (once_bytes){y->written.data, y->origin});
}

static bool has_body(const once_http_request *request)
{
    return request->method && strcmp(request->method, "GET") != 0 && strcmp(request->method, "DELETE") != 0;
}

static void exclude(once_config *config, const once_node *map, const char *field, bool wrong, const char *why)
{
    const once_node *found = once_node_member(map, field);
    if (found && wrong) once_config_wrong(config, ONCE_E_CONFIG, found->name_line, "'%s' %s; remove it", field, why);
}

/* Whether nothing in a request is from the message. */
static bool asks_the_same(const once_http_request *request)
{
    for (size_t i = 0; i < request->headers.n; i++)
        if (!once_http_text_is_literal(&request->headers.list[i].value)) return false;
    return once_http_text_is_literal(&request->url) && once_http_text_is_literal(&request->query);
}

/* A request with two of them is refused, or the server takes the wrong one. The lookup has those of the handler if it
 * goes to the same place. */
static void check_authorization(once_config *config, const once_node *map, const once_http_headers *headers,
                                const char *whose, int line)
{
    const char *other = once_node_member(map, "bearer") ? "bearer" : once_node_member(map, "basic") ? "basic" : NULL;
    for (size_t i = 0; other && i < headers->n; i++)
        if (once_ascii_is(headers->list[i].name.data, headers->list[i].name.len, "authorization"))
            once_config_wrong(config, ONCE_E_CONFIG, line, "%s has Authorization, and so has '%s'; keep one", whose,
                              other);
}

static void check(once_config *config, const once_node *handler_map, const once_handler_spec *handler)
{
    const once_http_spec *http = once_http_of(handler);
    const once_node *map = once_node_member(handler_map, "http");
    if (map->kind != ONCE_NODE_MAP) return; /* reported */
    if (!http->request.method && !once_node_member(map, "post") && !once_node_member(map, "put") &&
        !once_node_member(map, "patch") && !once_node_member(map, "delete") && !once_node_member(map, "get"))
        once_config_wrong(config, ONCE_E_CONFIG, map->line,
                          "'http' has no URL; write 'post: \"https://...\"' in it, or put, patch, delete or get");
    const once_node *workers = once_node_member(handler_map, "workers");
    if (workers)
        once_config_wrong(config, ONCE_E_CONFIG, workers->name_line,
                          "'workers' has no meaning with 'http': 'window' in it says how many calls are in flight; "
                          "remove it");
    exclude(config, map, "timeout", once_node_member(handler_map, "timeout"), "is in the handler, too");
    exclude(config, map, "form", once_node_member(map, "body"), "excludes 'body'");
    exclude(config, map, "body", http->request.method && !has_body(&http->request), "is for 'post', 'put' and 'patch'");
    exclude(config, map, "form", http->request.method && !has_body(&http->request), "is for 'post', 'put' and 'patch'");
    exclude(config, map, "basic", once_node_member(map, "bearer"), "excludes 'bearer'");
    exclude(config, map, "key", http->certificate.len == 0, "needs 'certificate'");
    if (http->lookup.request.method && asks_the_same(&http->lookup.request))
        once_config_wrong(
            config, ONCE_E_CONFIG, http->lookup.request.line,
            "'lookup' asks the same for every message, so the effect of one is taken for that of all; write "
            "${idempotency_key} or a field of the message into its URL");
    const once_node *headers = once_node_member(map, "headers");
    if (headers) check_authorization(config, map, &http->request.headers, "'headers'", headers->name_line);
    if (http->lookup.request.method && once_http_same_origin(&http->request, &http->lookup.request))
        check_authorization(config, map, &http->lookup.request.headers, "'headers' of 'lookup'",
                            http->lookup.request.line);
    for (size_t i = 0; i < http->request.headers.n; i++)
        if (once__http_same_header(http->request.headers.list[i].name, http->key_header))
            once_config_wrong(config, ONCE_E_CONFIG, headers->name_line,
                              "'headers' has the header of 'key_header'; remove it");
}

static void conclude(once_handler_spec *handler)
{
    const once_http_spec *http = once_http_of(handler);
    handler->slots = http->window;
    if (http->request.timeout_ms) handler->timeout_ms = http->request.timeout_ms;
    if (!http->lookup.request.method) return;
    handler->bits |= ONCE_EFFECT_ASKS;
    handler->lookup = http->lookup.when;
}

/* --- messages --- */

static int prepare_request(const once_http_request *request, const once_parsed *from, once_arena *arena,
                           once_http_values *out, once_error *err)
{
    const once_bytes **headers = once_arena_new(arena, const once_bytes *, request->headers.n);
    if (!headers) return once_no_memory(err, "for a message");
    int rc = once_http_text_values(&request->url, from, arena, &out->url, err);
    if (rc == ONCE_OK) rc = once_http_text_values(&request->query, from, arena, &out->query, err);
    for (size_t i = 0; i < request->headers.n && rc == ONCE_OK; i++)
        rc = once_http_text_values(&request->headers.list[i].value, from, arena, &headers[i], err);
    out->headers = headers;
    return rc;
}

static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    const once_http_spec *http = once_http_of(handler);
    once_http_input *made = once_arena_new(arena, once_http_input, 1);
    if (!made) return once_no_memory(err, "for a message");
    int rc = prepare_request(&http->request, from, arena, &made->request, err);
    if (rc == ONCE_OK) rc = once_http_text_values(&http->body, from, arena, &made->body, err);
    if (rc == ONCE_OK && once_handler_asks(handler)) {
        once_error why = {0};
        rc = prepare_request(&http->lookup.request, from, arena, &made->lookup, &why);
        if (rc != ONCE_OK) (void)once_fail(err, rc, "lookup: %s", why.text);
    }
    made->json = from->body;
    if (rc == ONCE_OK) *input = made;
    return rc;
}

/* --- for people --- */

static once_effect_shown describe(const once_handler_spec *handler)
{
    const once_http_request *request = &once_http_of(handler)->request;
    return (once_effect_shown){.what = request->method, .name = request->written};
}

static void visit_headers(const once_http_headers *headers, once_secret_visit *visit, void *user)
{
    for (size_t i = 0; i < headers->n; i++)
        if (headers->list[i].secret.value.len) visit(user, headers->list[i].secret.value, false);
}

static void secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user)
{
    const once_http_spec *http = once_http_of(handler);
    visit_headers(&http->request.headers, visit, user);
    visit_headers(&http->lookup.request.headers, visit, user);
    if (http->bearer.value.len) visit(user, http->bearer.value, false);
    if (http->basic.value.len) visit(user, http->basic.value, false);
    if (http->proxy.value.len) visit(user, http->proxy.value, true);
    const once_bytes key = http->key.len ? http->key : http->certificate;
    char file[ONCE_HTTP_PATHS_MAX + sizeof "file:"];
    if (key.len == 0) return;
    const int len = snprintf(file, sizeof file, "file:%.*s", (int)key.len, key.data);
    visit(user, (once_bytes){file, (size_t)len}, false);
}

static bool has_secret(const once_http_spec *http, const once_http_request *request)
{
    for (size_t i = 0; i < request->headers.n; i++)
        if (request->headers.list[i].secret.value.len) return true;
    return (http->bearer.value.len || http->n_token_command || http->basic.value.len) &&
           once_http_same_origin(&http->request, request);
}

static void expose_request(const once_http_spec *http, const once_http_request *request, const char *what,
                           once_effect_warning *warn, void *user)
{
    char text[300];
    if (!request->method || request->tls || request->loopback) return;
    (void)snprintf(text, sizeof text,
                   "%s goes over http://, so others in the network can read it%s and answer in place of the server; "
                   "write https://",
                   what, has_secret(http, request) ? ", the secret in its headers included," : "");
    warn(user, text);
}

/* 404 is what a wrong path answers, too, and a proxy that does not find its server. */
static bool takes_any_404_for_absent(const once_http_request *lookup)
{
    return lookup->absent_if.n == 0 && once_http_found(&lookup->statuses, 404) == ONCE_HTTP_ABSENT;
}

static void exposed(const once_handler_spec *handler, once_effect_warning *warn, void *user)
{
    const once_http_spec *http = once_http_of(handler);
    expose_request(http, &http->request, "the request", warn, user);
    expose_request(http, &http->lookup.request, "the lookup", warn, user);
    if (handler->hold && !once_handler_asks(handler))
        warn(user, "a call that ends without an answer, or with a status such as 500, 502 or 504, is held for 'once "
                   "resolve'; add 'lookup' to ask the server, or 'unknown: retry' if it honours the idempotency key");
    if (once_handler_asks(handler) && takes_any_404_for_absent(&http->lookup.request))
        warn(user, "the lookup takes every 404 for 'it did not happen', also that of a wrong path, and the message is "
                   "sent again; add 'absent_if' with what the server says in such an answer");
}

const once_effect_ops once__effect_http = {
    .name = "http",
    .summary = "a request over HTTP or HTTPS; fenced",
    .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE | ONCE_EFFECT_ISOLATED | ONCE_EFFECT_OUTLIVES,
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    .size = sizeof(once_http_spec),
    .standard = &standard,
    .conclude = conclude,
    .check = check,
    .prepare = prepare,
    .result = once_http_result_body,
    .module = "http",
    .describe = describe,
    .secrets = secrets,
    .exposed = exposed,
};
