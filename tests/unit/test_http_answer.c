/* Parts of the effect `http` that need no server: its fields in the file, texts, and what an answer means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "effect/effect.h"
#include "effect/http.h"
#include "runtime/config.h"

#define NOW_MS INT64_C(784111777000) /* Sun, 06 Nov 1994 08:49:37 GMT */
#define PAY "\"https://pay.example/charges\""

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

/* --- the file --- */

static int parse(once_arena *arena, const char *http, once_spec **spec, once_error *err)
{
    char text[2000];
    (void)snprintf(text, sizeof text,
                   "consumer: c\nstore: memory\nsource: {file: {path: m}}\nkey: \"${/id}\"\nhandler:\n  http: %s\n",
                   http);
    return once_config_parse("p.yaml", bytes(text), arena, NULL, NULL, spec, err);
}

static void f67_mistakes_are_refused_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *http, *why;
    } cases[] = {
        {"{}", "'http' has no URL; write 'post: \"https://...\"' in it"},
        {"{timeout: 1s}", "'http' has no URL"},
        {"{post: " PAY ", put: " PAY "}", "a request has one of 'get', 'post', 'put', 'patch' and 'delete'; keep one"},
        {"{post: pay.example}", "the URL must begin with https:// or http://"},
        {"{post: \"ftp://pay.example\"}", "the URL must begin with https:// or http://"},
        {"{post: \"https://${/host}/\"}", "must have its scheme, host and port in the file, not from a message"},
        {"{post: \"https://pay.${/x}.example/\"}", "must have its scheme, host and port in the file"},
        {"{post: \"https://pay.example:${/port}/\"}", "must have its scheme, host and port in the file"},
        {"{post: \"https://me:secret@pay.example/\"}", "must have no name or password; use 'basic'"},
        {"{post: \"https:///x\"}", "has no valid host"},
        {"{post: \"https://pay example/\"}", "has no valid host"},
        {"{post: \"https://[::1/\"}", "has no valid host"},
        {"{post: \"https://pay.example:0/\"}", "has no valid port"},
        {"{post: \"https://pay.example:99999/\"}", "has no valid port"},
        {"{post: \"https://pay.example/a b\"}", "has a character that must be written as %XX"},
        {"{post: \"https://pay.example/a#b\"}", "must have no fragment"},
        {"{post: \"https://pay.example#b\"}", "must have no fragment"},
        {"{post: \"https://pay.example/a/../b\"}", "has a step '.' or '..'"},
        {"{post: \"https://pay.example/a/%2e%2E/b\"}", "has a step '.' or '..'"},
        {"{post: \"https://pay.example/${/x\"}", "has no closing '}'"},
        {"{post: \"https://pay.example/${nonsense}\"}", "'${nonsense}' is not understood"},
        {"{post: \"https://pay.example/${nonsense}\"}", "; of the attempt there are ${key}, ${idempotency_key} and "
                                                        "${attempt}"},
        {"{post: " PAY ", headers: {Host: x}}", "'headers': 'Host' is set by once itself; remove it"},
        {"{post: " PAY ", headers: {content-length: 5}}", "is set by once itself"},
        {"{post: " PAY ", headers: {Idempotency-Key: x}}", "is set by once itself"},
        {"{post: " PAY ", headers: {Proxy-Authorization: hush}}",
         "'headers': 'Proxy-Authorization' is set by once itself; remove it, and write the proxy with its login as a "
         "reference: 'proxy: env:NAME'"},
        {"{post: " PAY ", headers: {Authorization: Bearer hush}}",
         "'headers': 'Authorization' must be a reference, not the secret itself; write 'Authorization: env:NAME' or "
         "'Authorization: file:PATH', with the whole value there, or 'bearer: env:NAME' beside 'headers'"},
        {"{post: " PAY ", headers: {authorization: \"Bearer env:hush\"}}", "'headers': 'authorization' must be a ref"},
        {"{post: " PAY ", headers: {Cookie: \"session=hush\"}}",
         "'headers': 'Cookie' must be a reference, not the secret itself; write 'Cookie: env:NAME' or 'Cookie: "
         "file:PATH', with the whole value there"},
        {"{post: " PAY ", headers: {x-api-key: hush}}", "'headers': 'x-api-key' must be a reference"},
        {"{post: " PAY ", headers: {X-Auth-Token: \"$${hush}\"}}", "'headers': 'X-Auth-Token' must be a reference"},
        {"{post: " PAY ", lookup: {get: \"https://pay.example/${key}\", headers: {Authorization: hush}}}",
         "'headers': 'Authorization' must be a reference"},
        {"{post: " PAY ", headers: {\"a b\": x}}", "'headers': 'a b' is no name of a header"},
        {"{post: " PAY ", headers: {\"a:\": x}}", "is no name of a header"},
        {"{post: " PAY ", headers: {A: x, a: y}}", "'headers': 'a' is there twice; keep one"},
        {"{post: " PAY ", headers: {A: \"x\\ny\"}}", "has a control character; a header is one line"},
        {"{post: " PAY ", headers: {A: [x]}}", "'headers': 'A' must be a text, not a list"},
        {"{post: " PAY ", headers: [x]}", "'headers' must be a map, not a list"},
        {"{post: " PAY ", headers: {A: \"env:\"}}", "'headers': 'A' refers to a variable"},
        {"{post: " PAY ", bearer: hush}", "'bearer' must be a reference, not the secret itself"},
        {"{post: " PAY ", bearer: {exec: ./token}}", "'bearer': 'exec' must be a list"},
        {"{post: " PAY ", bearer: {exec: [./token, \"${/x}\"]}}", "without placeholders"},
        {"{post: " PAY ", bearer: {cmd: [x]}}", "'bearer' must be a reference or a command"},
        {"{post: " PAY ", basic: \"me:hush\"}", "'basic' must be a reference, not the secret itself"},
        {"{post: " PAY ", basic: env:A, bearer: env:B}", "'basic' excludes 'bearer'; remove it"},
        {"{post: " PAY ", bearer: env:A, headers: {authorization: env:B}}",
         "'headers' has Authorization, and so has 'bearer'"},
        {"{post: " PAY
         ", basic: env:A, lookup: {get: \"https://pay.example/${key}\", headers: {Authorization: env:B}}}",
         "'headers' of 'lookup' has Authorization, and so has 'basic'; keep one"},
        {"{post: " PAY ", key_header: X-Key, headers: {x-key: x}}", "'headers' has the header of 'key_header'"},
        {"{post: " PAY ", key_header: Host}", "'key_header': 'Host' cannot carry the idempotency key"},
        {"{post: " PAY ", proxy: \"http://me:hush@proxy\"}", "one with a password must be a reference"},
        {"{post: " PAY ", proxy: \"socks5://proxy\"}", "'proxy' must be a URL that begins with http:// or https://"},
        {"{get: " PAY ", body: x}", "'body' is for 'post', 'put' and 'patch'; remove it"},
        {"{delete: " PAY ", form: {a: b}}", "'form' is for 'post', 'put' and 'patch'; remove it"},
        {"{post: " PAY ", body: x, form: {a: b}}", "'form' excludes 'body'; remove it"},
        {"{post: " PAY ", query: {\"${/x}\": y}}", "a name cannot be a template"},
        {"{post: " PAY ", key: k.pem}", "'key' needs 'certificate'; remove it"},
        {"{post: " PAY ", done: [abc]}", "'done': 'abc' is no status; write a number from 200 to 599, or a class"},
        {"{post: " PAY ", done: [199]}", "is no status"},
        {"{post: " PAY ", done: [600]}", "is no status"},
        {"{post: " PAY ", done: [2xy]}", "is no status"},
        {"{post: " PAY ", done: {200: x}}", "'done' must be a list of statuses, not a map"},
        {"{post: " PAY ", retry: [409], rejected: [409]}", "'rejected': 409 is in another list, too; keep it in one"},
        {"{post: " PAY ", retry: [5xx], unknown: [5xx]}", "'unknown': 5xx is in another list, too"},
        {"{post: " PAY ", done_if: {status: [ok]}}", "'done_if': "},
        {"{post: " PAY ", done_if: {/status: []}}", "'done_if': '/status' must be a list of values"},
        {"{post: " PAY ", done_if: {/status: [[a]]}}", "must be a list of values"},
        {"{post: " PAY ", done_if: [a]}", "'done_if' must be a map"},
        {"{post: " PAY ", lookup: {done: [200]}}", "missing field 'get' in 'lookup' of 'http'"},
        {"{post: " PAY ", lookup: {get: \"/x\"}}", "'get': the URL must begin with https://"},
        {"{post: " PAY ", lookup: {get: " PAY ", query: {a: b}, headers: {A: env:X}}}",
         "'lookup' asks the same for every message"},
        {"{post: " PAY ", body: {a: [{\"b${/id}\": 1}]}}",
         "'body': 'b${/id}' cannot be a template; only its value can"},
        {"{post: " PAY ", window: 0}", "'window' is 0"},
        {"{post: " PAY ", redirects: 11}", "'redirects' is 11"},
        {"{post: " PAY ", timeout: 1s}\n  timeout: 2s", "'timeout' is in the handler, too; remove it"},
        {"{post: " PAY ", tiemout: 1s}", "unknown field 'tiemout'; did you mean 'timeout'?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_arena arena = {0};
        once_spec *spec = NULL;
        once_error err = {0};
        const int rc = parse(&arena, cases[i].http, &spec, &err);
        if (rc != ONCE_E_CONFIG || !strstr(err.text, cases[i].why) || strncmp(err.text, "p.yaml:6: ", 10) != 0)
            fail_msg("%s\n%d: %s\nnot: %s", cases[i].http, rc, err.text, cases[i].why);
        if (strstr(err.text, "hush")) fail_msg("%s", err.text);
        once_arena_release(&arena);
    }
}

/* References, what a message brings, and names that say nothing of a secret. */
static void headers_that_may_stand_in_the_file(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "Authorization: env:A",
        "Cookie: file:a",
        "Authorization: \"${header:authorization}\"",
        "Authorization: \"Bearer ${/token}\"",
        "Cookie: \"order=${/id}\"",
        "X-Api-Key: \"\"",
        "X-Api-Key-Id: abc",
        "Accept: text/plain",
        "A: b}, bearer: env:A, lookup: {get: \"https://other.example/${key}\", headers: {Authorization: env:B}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        once_arena arena = {0};
        once_spec *spec = NULL;
        once_error err = {0};
        char http[200];
        (void)snprintf(http, sizeof http, "{post: " PAY ", headers: {%s}}", headers[i]);
        if (parse(&arena, http, &spec, &err) != ONCE_OK) fail_msg("%s: %s", headers[i], err.text);
        once_arena_release(&arena);
    }
}

static void fields_and_their_defaults(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_spec *spec = NULL;
    once_error err = {0};
    assert_int_equal(parse(&arena, "{post: " PAY "}", &spec, &err), ONCE_OK);
    const once_handler_spec *h = &spec->handlers[0];
    const once_http_spec *http = once_http_of(h);
    assert_int_equal(h->slots, 64);
    assert_int_equal(h->timeout_ms, 10000);
    assert_int_equal(http->connect_timeout_ms, 3000);
    assert_int_equal(http->redirects, 0);
    assert_true(http->http2 && http->request.tls && !http->request.loopback);
    assert_false(once_handler_asks(h));
    assert_true(h->hold);
    assert_int_equal(
        parse(&arena,
              "{put: \"http://localhost:8080/\", timeout: 4s, connect_timeout: 1s, window: 256, http2: false, "
              "redirects: 3, lookup: {get: \"http://localhost:8080/${key}\", for: 2h}}",
              &spec, &err),
        ONCE_OK);
    h = &spec->handlers[0];
    http = once_http_of(h);
    assert_int_equal(h->slots, 256);
    assert_int_equal(h->timeout_ms, 4000);
    assert_int_equal(h->lookup.after_ms, 4000); /* the timeout */
    assert_int_equal(h->lookup.for_ms, 7200000);
    assert_true(once_handler_asks(h) && http->request.loopback && !http->http2);
    assert_true(once_http_same_origin(&http->request, &http->lookup.request));
    once_arena_release(&arena);
}

/* --- texts --- */

static void steps_in_a_path_are_seen_however_they_are_written(void **state)
{
    (void)state;
    static const char *const steps[] = {"/..",     "/a/../b", "/.",         "/./x",    "/%2e%2E",   "/.%2e/x",
                                        "/a%2F..", "/..%2fb", "/a%5c..%5C", "\\..\\b", "/a/%2e?x=y"};
    static const char *const fine[] = {"",     "/",          "/a.b",     "/...",         "/a..b",
                                       "/..a", "/x?a=../..", "/%2e%2ex", "/a%252e%252e", "/.../x"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) assert_true(once_http_path_steps(bytes(steps[i])));
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) assert_false(once_http_path_steps(bytes(fine[i])));
}

/* --- answers --- */

static void retry_after_in_both_forms(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int64_t ms;
    } cases[] = {
        {"0", 0},
        {" 120 \r\n", 120000},
        {"3600", 3600000},
        {"86400", 3600000}, /* at most an hour */
        {"99999999999999999999999999", 3600000},
        {"Sun, 06 Nov 1994 08:50:37 GMT", 60000},
        {"Sun, 06 Nov 1994 08:49:37 GMT\r\n", 0},
        {"Sun, 06 Nov 1994 08:00:00 GMT", 0}, /* over */
        {"Mon, 07 Nov 1994 08:49:37 GMT", 3600000},
        {"Fri, 31 Dec 9999 23:59:59 GMT", 3600000},
        {"Thu, 29 Feb 1996 00:00:00 GMT", 3600000},
        {"", -1},
        {"99999999999999999999999999", ONCE_HTTP_RETRY_AFTER_MAX_MS},
        {"18446744073709552", ONCE_HTTP_RETRY_AFTER_MAX_MS}, /* 2^64 ms and a little */
        {"-1", -1},
        {"1.5", -1},
        {"1 s", -1},
        {"soon", -1},
        {"Sun, 06 Nov 1994 08:49:37", -1},
        {"Sun, 06 Nov 1994 08:49:37 UTC", -1},
        {"Sun, 06 Xxx 1994 08:49:37 GMT", -1},
        {"Sun, 32 Nov 1994 08:49:37 GMT", -1},
        {"Sun, 06 Nov 1994 25:49:37 GMT", -1},
        {"Sunday, 06-Nov-94 08:49:37 GMT", -1}, /* no server may send it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (once_http_retry_after(bytes(cases[i].value), NOW_MS) != cases[i].ms)
            fail_msg("%s: %lld", cases[i].value, (long long)once_http_retry_after(bytes(cases[i].value), NOW_MS));
    /* the calendar, day by day */
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t day_ms = 0;
    for (int year = 1970; year < 2105; year++)
        for (int month = 0; month < 12; month++) {
            const bool leap = month == 1 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for (int day = 1; day <= lengths[month] + leap; day++, day_ms += 86400000) {
                char text[40];
                (void)snprintf(text, sizeof text, "Sun, %02d %s %04d 00:00:07 GMT", day, months[month], year);
                assert_int_equal(once_http_retry_after(bytes(text), day_ms), 7000);
            }
        }
}

static void a_result_is_capped(void **state)
{
    (void)state;
    once_buf out;
    once_buf_init(&out, 1000);
    for (size_t max = 31; max < 60; max++) {
        once_buf_clear(&out);
        once_http_result(&out, 200, bytes("0123456789"), NULL, true, max);
        assert_true(out.len <= max);
        const bool fits = max >= strlen("{\"status\":200,\"body\":\"0123456789\"}");
        assert_string_equal(out.data,
                            fits ? "{\"status\":200,\"body\":\"0123456789\"}" : "{\"status\":200,\"truncated\":true}");
        const once_bytes body = once_http_result_body(once_buf_bytes(&out));
        assert_int_equal(body.len, fits ? 12 : 0);
    }
    once_buf_clear(&out);
    once_http_result(&out, 200, (once_bytes){"a\0b", 3}, NULL, true, 100);
    assert_string_equal(out.data, "{\"status\":200,\"body_base64\":\"YQBi\"}"); /* databases have no text with a NUL */
    once_buf_release(&out);
    static const char *const without[] = {"", "what a command printed ,\"body\":1}", "{\"status\":200,\"body\":1",
                                          "{\"status\":200,\"body_base64\":\"AA==\"}",
                                          "{\"status\":200,\"truncated\":true}"};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        assert_null(once_http_result_body(bytes(without[i])).data);
    const once_bytes none = once_http_result_body(bytes("{\"status\":204}"));
    assert_true(none.data && none.len == 0); /* an answer without a body is another thing than one that was not kept */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f67_mistakes_are_refused_with_their_line),
        cmocka_unit_test(headers_that_may_stand_in_the_file),
        cmocka_unit_test(fields_and_their_defaults),
        cmocka_unit_test(steps_in_a_path_are_seen_however_they_are_written),
        cmocka_unit_test(retry_after_in_both_forms),
        cmocka_unit_test(a_result_is_capped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
