/* Requests over HTTP against a real server: what is sent, what each answer means, that nothing is sent twice, and what
 * is known when no answer comes (f60, f61, f69, f81). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#ifdef ONCE_WITH_HTTP
#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/policy.h"
#include "http_fixture.h"

/* --- what is sent --- */

static void a_request_has_what_the_file_says(void **state)
{
    fixture *f = *state;
    (void)setenv("ONCE_TEST_SECRET", "hush-hush", 1);
    open_handler(f, "{post: \"http://@/charges/${/id}?a=${/n}\", query: {\"b c\": \"x ${/id}&\", k: \"${key}\"}, "
                    "headers: {X-Order: \"no ${/n}\", X-Empty: \"${/empty}\", X-Secret: \"env:ONCE_TEST_SECRET\"}, "
                    "bearer: env:ONCE_TEST_SECRET, "
                    "body: {id: \"${/id}\", n: \"${/n}\", t: \"n=${/n}\", five: 5, text: \"5\", none: ~, list: "
                    "[true, \"${/o}\"], at: \"${attempt}\"}}");
    says(run(f, "{\"id\":\"a/\\u00e4 ?\\\"\",\"n\":1.50,\"empty\":\"\",\"o\":{\"x\":[1]}}"), ONCE_DONE, "");
    const char *request = test_http_request(&f->server, 0);
    has(request, "POST /charges/a%2F%C3%A4%20%3F%22?a=1.5&b%20c=x%20a%2F%C3%A4%20%3F%22%26&k=p%2F1 HTTP/1.1\r\n");
    has(request, "\r\nX-Order: no 1.5\r\nX-Empty:\r\n");
    has(request, "\r\nX-Secret: hush-hush\r\n");
    has(request, "\r\nAuthorization: Bearer hush-hush\r\n");
    has(request, "\r\nContent-Type: application/json\r\n");
    has(request, "\r\nOnce-Attempt: 3\r\n");
    has(request,
        "\r\n\r\n{\"id\":\"a/\\u00e4 ?\\\"\",\"n\":1.50,\"t\":\"n=1.5\",\"five\":5,\"text\":\"5\",\"none\":null,"
        "\"list\":[true,{\"x\":[1]}],\"at\":3}");
    once_outward key;
    char line[60];
    once_item_outward_key(&(once_keying){0}, &f->items[0], key);
    (void)snprintf(line, sizeof line, "\r\nIdempotency-Key: %s\r\n", key);
    has(request, line);
}

/* libcurl does not send lines that end in a colon; a value may end in one. */
static void a_value_may_end_in_a_colon(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 2; i++) {
        char http[200];
        (void)setenv("ONCE_TEST_SECRET", "  ", 1);
        (void)snprintf(
            http, sizeof http, "{post: \"http://@/\", headers: {%s}%s}",
            "X-Tenant: \"acme:\", X-List: \"a;\", X-None: \"\", X-Blank: \"${/b}\", X-Hush: env:ONCE_TEST_SECRET",
            i ? ", redirects: 1" : "");
        open_handler(f, http);
        says(run(f, "{\"id\":1,\"b\":\"  \"}"), ONCE_DONE, "");
        const char *request = test_http_request(&f->server, i);
        has(request, "\r\nX-Tenant: acme:\r\n");
        has(request, "\r\nX-List: a;\r\n");
        has(request, "\r\nX-None:\r\n");
        has(request, "\r\nX-Blank:\r\n"); /* and those of blanks alone */
        has(request, "\r\nX-Hush:\r\n");
        has_not(request, "Expect");
    }
}

static void a_body_is_the_message_unless_the_file_says_otherwise(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *http, *type, *end;
    } cases[] = {
        {"{post: \"http://@/\"}", "\r\nContent-Type: application/json\r\n", "\r\n\r\n{\"id\": \"a b&\"}"},
        {"{put: \"http://@/\", body: none}", "\r\nContent-Length: 0\r\n", "\r\n\r\n"},
        {"{patch: \"http://@/\", body: \"<${/id}>\"}", "\r\nContent-Type: text/plain; charset=utf-8\r\n",
         "\r\n\r\n<a b&>"},
        {"{post: \"http://@/\", form: {\"a&\": \"${/id}\", b: c d}}",
         "\r\nContent-Type: application/x-www-form-urlencoded\r\n", "\r\n\r\na%26=a%20b%26&b=c%20d"},
        {"{post: \"http://@/\", headers: {content-type: text/x}}", "\r\ncontent-type: text/x\r\n", "a b&\"}"},
        {"{delete: \"http://@/\"}", "DELETE / HTTP/1.1\r\n", "\r\n\r\n"},
        {"{get: \"http://@\"}", "GET / HTTP/1.1\r\n", "\r\n\r\n"},
        {"{post: \"http://@/\", key_header: X-Request-Id}", "\r\nX-Request-Id: ", "\r\n\r\n{\"id\": \"a b&\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_handler(f, cases[i].http);
        says(run(f, "{\"id\": \"a b&\"}"), ONCE_DONE, "");
        const char *request = test_http_request(&f->server, i);
        has(request, cases[i].type);
        assert_string_equal(request + strlen(request) - strlen(cases[i].end), cases[i].end);
        if (strstr(cases[i].http, "none") || strstr(cases[i].http, "delete")) has_not(request, "Content-Type");
        if (strstr(cases[i].http, "delete") || strstr(cases[i].http, "get")) has_not(request, "Content-Length");
    }
}

static void a_value_is_never_more_than_a_value(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *body, *why;
    } refused[] = {
        {"{\"id\":\"..\",\"h\":1}", "a step"},           {"{\"id\":\".\",\"h\":1}", "a step"},
        {"{\"id\":\"../x\",\"h\":1}", "a step"},         {"{\"id\":\"x/..\",\"h\":1}", "a step"},
        {"{\"id\":\"x\\\\..\\\\y\",\"h\":1}", "a step"}, {"{\"id\":\"\",\"h\":1}", "is empty"},
        {"{\"id\":1,\"h\":\"a\\r\\nX: y\"}", "control"}, {"{\"id\":1,\"h\":\"a\\nX: y\"}", "control"},
        {"{\"id\":1,\"h\":\"a\\u0000\"}", "control"},    {"{\"id\":1}", "missing field '/h'"},
    };
    open_handler(f, "{post: \"http://@/v1/${/id}\", headers: {X-H: \"${/h}\"}}");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        once_item *item = &f->items[0];
        if (prepare(f, item, refused[i].body) == ONCE_OK) {
            once_runner_start(f->runner, &item, 1);
            says(ended(f), ONCE_DEAD, refused[i].why);
            assert_false(item->started);
        } else {
            assert_int_equal(f->err.status, ONCE_E_MESSAGE);
            has(f->err.text, refused[i].why);
        }
    }
    assert_int_equal(test_http_count(&f->server), 0);
    says(run(f, "{\"id\":\"a?b#c/%2e%2e/..x\",\"h\":\"\\u00e4\"}") ? &f->items[0] : NULL, ONCE_DONE, "");
}

/* --- what answers mean --- */

static void f81_statuses_are_outcomes(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *head;
        once_outcome outcome;
        const char *reason;
    } cases[] = {
        {"200 OK", ONCE_DONE, ""},
        {"202 Accepted", ONCE_DONE, ""},
        {"204 No Content", ONCE_DONE, ""},
        {"301 Moved\r\nLocation: /x", ONCE_UNKNOWN, "status 301 (a redirect that is not followed)"},
        {"303 See\r\nLocation: /x", ONCE_UNKNOWN, "status 303"},
        {"307 Moved\r\nLocation: /x", ONCE_DEAD, "status 307"},
        {"308 Moved\r\nLocation: /x", ONCE_DEAD, "status 308"},
        {"400 Bad", ONCE_DEAD, "status 400: what it says"},
        {"404 No", ONCE_DEAD, "status 404"},
        {"408 No", ONCE_RETRY, "status 408"},
        {"409 No", ONCE_RETRY, "status 409"},
        {"418 Teapot", ONCE_ALREADY, "status 418"},
        {"422 No", ONCE_DEAD, "status 422 (a conflict"},
        {"425 No", ONCE_RETRY, "status 425"},
        {"429 No", ONCE_RETRY, "status 429"},
        {"451 No", ONCE_REJECTED, "status 451"},
        {"500 No", ONCE_UNKNOWN, "status 500: what it says"},
        {"501 No", ONCE_STALE, "status 501"},
        {"502 No", ONCE_UNKNOWN, "status 502"},
        {"503 No", ONCE_RETRY, "status 503"},
        {"504 No", ONCE_UNKNOWN, "status 504"},
        {"505 No", ONCE_RETRY, "status 505"},
        {"599 No", ONCE_RETRY, "status 599"},
        {"999 No", ONCE_UNKNOWN, "status 999"},
    };
    open_handler(f, "{post: \"http://@/\", already: [418], rejected: 451, stale: [501], retry: [5xx], unknown: [500, "
                    "502, 504]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, cases[i].head, cases[i].head[0] == '2' ? "" : "what it\r\nsays\n"),
                       TEST_HTTP_KEEP);
        const once_item *item = run(f, "{\"id\":1}");
        char reason[100];
        (void)snprintf(reason, sizeof reason, "%s", cases[i].reason);
        if (strstr(reason, "what it says")) strcpy(strstr(reason, "what it says"), "what it");
        says(item, cases[i].outcome, reason);
        assert_true(item->started);
        assert_int_equal(item->result.len > 0, cases[i].outcome <= ONCE_STALE);
    }
    test_http_will(&f->server, answer(&f->arena, "304 Not Modified", ""), TEST_HTTP_KEEP);
    const once_item *item = run(f, "{\"id\":1}");
    says(item, ONCE_UNKNOWN, "status 304"); /* it leads nowhere else */
    assert_null(memmem(item->failure.data, item->failure.len, "redirect", 8));
    assert_int_equal(test_http_connections(&f->server), 1); /* it is kept */
}

static void what_cannot_be_read_is_a_mistake_of_the_file(void **state)
{
    fixture *f = *state;
    (void)unsetenv("ONCE_TEST_SECRET");
    assert_int_equal(try_open(f, "{post: \"https://@/\", ca: /no/such/file}"), ONCE_E_CONFIG);
    has(f->err.text, "p.yaml:6: 'ca': cannot read '/no/such/file': ");
    assert_int_equal(try_open(f, "{post: \"https://@/\", certificate: /no/such/file}"), ONCE_E_CONFIG);
    assert_int_equal(try_open(f, "{post: \"https://@/\", bearer: env:ONCE_TEST_SECRET}"), ONCE_E_CONFIG);
    has(f->err.text, "p.yaml:6: ");
    (void)setenv("ONCE_TEST_SECRET", "hush\nhush", 1);
    assert_int_equal(try_open(f, "{post: \"https://@/\", headers: {A: env:ONCE_TEST_SECRET}}"), ONCE_E_CONFIG);
    has(f->err.text, "the value of 'A' has a control character");
    has_not(f->err.text, "hush");
    (void)setenv("ONCE_TEST_SECRET", "", 1);
    assert_int_equal(try_open(f, "{post: \"https://@/\", bearer: env:ONCE_TEST_SECRET}"), ONCE_E_CONFIG);
    has(f->err.text, "p.yaml:6: the value of 'bearer' is empty");
    assert_int_equal(try_open(f, "{post: \"https://@/\", basic: env:ONCE_TEST_SECRET}"), ONCE_E_CONFIG);
    has(f->err.text, "p.yaml:6: the value of 'basic' is empty");
}

static void refused_credentials_stop_the_handler(void **state)
{
    fixture *f = *state;
    (void)setenv("ONCE_TEST_SECRET", "hush-hush", 1);
    open_handler(f, "{post: \"http://@/\", bearer: env:ONCE_TEST_SECRET}");
    static const char *const heads[] = {"401 No", "403 No"};
    for (size_t i = 0; i < 2; i++) {
        test_http_will(&f->server, answer(&f->arena, heads[i], "bad token hush-hush, Bearer hush-hush, hush-hush"),
                       TEST_HTTP_KEEP);
        const once_item *item = run(f, "{\"id\":1}");
        says(item, ONCE_RELEASE, "(p.yaml:6): bad token ***, Bearer ***, ***"); /* no secret in a text */
        assert_int_equal(once_status_class(item->run_failure), ONCE_CLASS_PAUSE);
        assert_false(item->started);
    }
    (void)setenv("ONCE_TEST_SECRET", "ann:hush-hush", 1);
    open_handler(f, "{post: \"http://@/\", basic: env:ONCE_TEST_SECRET}");
    test_http_will(&f->server, answer(&f->arena, "401 No", "ann has no password hush-hush"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_RELEASE, "ann has no password ***");
    (void)setenv("ONCE_TEST_SECRET", "Bearer hush-hush", 1); /* the whole value of the header */
    open_handler(f, "{post: \"http://@/\", headers: {Authorization: env:ONCE_TEST_SECRET}}");
    test_http_will(&f->server, answer(&f->arena, "401 No", "Bearer hush-hush: hush-hush is over"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_RELEASE, ": ***: *** is over");
    has(test_http_request(&f->server, 3), "\r\nAuthorization: Bearer hush-hush\r\n");
}

/* Which statuses pause the handler is up to the file, of the request and of its lookup; so is what refuses for good. */
static void the_lists_of_pause_and_of_a_lookup_can_be_changed(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", pause: [423, 5xx], unknown: [500], dead: [403], lookup: {get: "
                    "\"http://@/${key}\", pause: [423, 5xx], rejected: [410, 403], absent: [409], done: [404]}}");
    static const struct {
        const char *head;
        once_outcome outcome, found; /* RELEASE: paused */
    } cases[] = {
        {"423 Locked", ONCE_RELEASE, ONCE_RELEASE},
        {"501 No", ONCE_RELEASE, ONCE_RELEASE},
        {"503 No", ONCE_RELEASE, ONCE_RELEASE},
        {"500 No", ONCE_UNKNOWN, ONCE_RELEASE}, /* an exact status goes before a class */
        {"401 No", ONCE_RELEASE, ONCE_RELEASE}, /* what no list names keeps its meaning */
        {"403 No", ONCE_DEAD, ONCE_REJECTED},   /* what another list names pauses nobody */
        {"410 Gone", ONCE_DEAD, ONCE_REJECTED},
        {"409 No", ONCE_RETRY, ONCE_RETRY},
        {"404 No", ONCE_DEAD, ONCE_DONE},
        {"422 No", ONCE_DEAD, ONCE_UNKNOWN},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const bool asks = i % 2;
        const once_outcome outcome = asks ? cases[i / 2].found : cases[i / 2].outcome;
        char reason[40];
        (void)snprintf(reason, sizeof reason, "status %.3s", cases[i / 2].head);
        test_http_will(&f->server, answer(&f->arena, cases[i / 2].head, "{\"why\":1}"), TEST_HTTP_KEEP);
        const once_item *item = asks ? ask(f) : run(f, "{\"id\":1}");
        says(item, outcome, outcome == ONCE_DONE ? "" : reason);
        assert_int_equal(item->started, outcome != ONCE_RELEASE);
        assert_int_equal(item->run_failure, outcome == ONCE_RELEASE ? ONCE_E_DENIED : ONCE_OK);
        char result[60];
        (void)snprintf(result, sizeof result, "{\"status\":%.3s,\"body\":{\"why\":1}}", cases[i / 2].head);
        has_result(item, outcome <= ONCE_STALE ? result : "");
    }
}

/* A secret may be a part of another one, and an answer may escape some of its bytes. */
static void no_part_of_a_secret_is_left(void **state)
{
    fixture *f = *state;
    token_command c;
    (void)setenv("ONCE_TEST_SECRET", "live", 1);
    (void)setenv("ONCE_TEST_LONGER", "sk_live_51H", 1);
    (void)setenv("ONCE_TEST_ODD", "a/b\\\\c\"d", 1); /* two backslashes */
    (void)setenv("ONCE_TEST_FOREIGN", "t&\u00e4\U0001f600", 1);
    make_command(&c, "echo of_sk_live_51H_too/x",
                 ", headers: {A: env:ONCE_TEST_SECRET, B: env:ONCE_TEST_LONGER, C: env:ONCE_TEST_ODD, D: "
                 "env:ONCE_TEST_FOREIGN}");
    open_handler(f, c.http);
    static const struct {
        const char *body, *shown;
    } cases[] = {
        {"key sk_live_51H is live", "key *** is ***"},
        {"token of_sk_live_51H_too/x", "token ***"},
        {"token of_sk_live_51H_too\\/x", "token ***"},
        {"odd a/b\\\\c\"d", "odd ***"},
        {"odd a/b\\\\\\\\c\\\"d.", "odd ***."},
        {"odd a\\/b\\\\\\\\c\\\"d, a\\/b\\\\\\\\c\\\"d", "odd ***, ***"},
        {"odd a\\/b", "odd a\\/b"},
        {"l\\u0069ve sk_l\\u0069ve_51H", "*** ***"},
        {"t&\u00e4\U0001f600 t\\u0026\\u00E4\\ud83d\\ude00.", "*** ***."},
        {"\\u0074&\u00e4\\ud83d", "\\u0074&\u00e4\\ud83d"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char reason[100];
        (void)snprintf(reason, sizeof reason, "status 400: %s", cases[i].shown);
        test_http_will(&f->server, answer(&f->arena, "400 No", cases[i].body), TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_DEAD, reason);
    }
    remove_command(&c);
}

/* A server that knows a secret can say it as often as an answer has room for. */
static void a_secret_may_be_said_a_million_times(void **state)
{
    fixture *f = *state;
    enum { LEN = 1 << 20 };
    static const char *const said[] = {"a/bc", "a\\/bc"};
    char *bytes = malloc(LEN + 100);
    (void)setenv("ONCE_TEST_SECRET", "a/bc", 1);
    open_handler(f, "{post: \"http://@/\", bearer: env:ONCE_TEST_SECRET, response_max: 2MiB}");
    for (size_t i = 0; i < 2; i++) {
        const size_t len = strlen(said[i]), n = LEN / len;
        char *at = bytes + sprintf(bytes, "HTTP/1.1 400 No\r\nContent-Length: %zu\r\n\r\n", n * len);
        for (size_t k = 0; k < n; k++) at = stpcpy(at, said[i]);
        test_http_will(&f->server, bytes, TEST_HTTP_KEEP);
        const clock_t before = clock();
        says(run(f, "{\"id\":1}"), ONCE_DEAD, "status 400: *********");
        assert_true((clock() - before) / CLOCKS_PER_SEC < 2); /* of milliseconds; a memmove for each takes far longer */
    }
    free(bytes);
}

static void f61_results_are_capped(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", response_max: 100B}");
    static const struct {
        const char *body, *result;
    } cases[] = {
        {"{\"charge\": [1]}", "{\"status\":201,\"body\":{\"charge\": [1]}}"},
        {"", "{\"status\":201}"},
        {"plain \"text\"", "{\"status\":201,\"body\":\"plain \\\"text\\\"\"}"},
        {"\xff\xfe", "{\"status\":201,\"body_base64\":\"//4=\"}"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789x",
         "{\"status\":201,\"truncated\":true}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, "201 Created", cases[i].body), TEST_HTTP_KEEP);
        const once_item *item = run(f, "{\"id\":1}");
        says(item, ONCE_DONE, "");
        has_result(item, cases[i].result);
    }
}

static void retry_after_is_honoured(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\"}");
    test_http_will(&f->server, answer(&f->arena, "503 No\r\nRetry-After: 7", ""), TEST_HTTP_KEEP);
    assert_int_equal(run(f, "{\"id\":1}")->delay_ms, 7000);
    test_http_will(&f->server, answer(&f->arena, "429 No\r\nretry-after: Fri, 31 Dec 9999 23:59:59 GMT", ""),
                   TEST_HTTP_KEEP);
    assert_int_equal(run(f, "{\"id\":1}")->delay_ms, ONCE_HTTP_RETRY_AFTER_MAX_MS);
    test_http_will(&f->server, answer(&f->arena, "503 No", ""), TEST_HTTP_KEEP);
    assert_int_equal(run(f, "{\"id\":1}")->delay_ms, -1);
}

/* Also where it may have happened: an unknown that is tried again, and a question that is put again. */
static void retry_after_of_an_unknown_and_of_a_lookup_is_honoured(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *head;
        int64_t delay_ms;
    } cases[] = {
        {"500 No\r\nRetry-After: 7", 7000},
        {"502 No\r\nRetry-After: 0", 0}, /* the policy sees to the least pause */
        {"504 No\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT", ONCE_HTTP_RETRY_AFTER_MAX_MS},
        {"500 No\r\nRetry-After: soon", -1},
        {"504 No", -1},
    };
    static const char *const of_lookup[] = {"429 No\r\nRetry-After: 7", "503 No\r\nRetry-After: 7",
                                            "202 Wait\r\nRetry-After: 7"};
    for (int i = 0; i < 2; i++) {
        open_handler(f, i ? "{post: \"http://@/\", lookup: {get: \"http://@/${key}\", done: [200], done_if: {/a: 1}}, "
                            "redirects: 1}"
                          : "{post: \"http://@/\", lookup: {get: \"http://@/${key}\", done: [200], done_if: {/a: "
                            "1}}}");
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            test_http_will(&f->server, answer(&f->arena, cases[k].head, ""), TEST_HTTP_KEEP);
            says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "status 50");
            assert_int_equal(f->items[0].delay_ms, cases[k].delay_ms);
            test_http_will(&f->server, answer(&f->arena, cases[k].head, ""), TEST_HTTP_KEEP);
            says(ask(f), ONCE_UNKNOWN, "status 50");
            assert_int_equal(f->items[0].delay_ms, cases[k].delay_ms);
        }
        for (size_t k = 0; k < sizeof of_lookup / sizeof *of_lookup; k++) {
            test_http_will(&f->server, answer(&f->arena, of_lookup[k], ""), TEST_HTTP_KEEP);
            says(ask(f), ONCE_UNKNOWN, "lookup: ");
            assert_int_equal(f->items[0].delay_ms, 7000);
        }
        test_http_will(&f->server, NULL, TEST_HTTP_RESET);
        says(ask(f), ONCE_UNKNOWN, "");
        assert_int_equal(f->items[0].delay_ms, -1);
    }
}

/* All attempts would be spent at once. */
static void f93_a_retry_after_is_no_reason_to_hurry(void **state)
{
    fixture *f = *state;
    static const char *const values[] = {"0", "Sun, 06 Nov 1994 08:49:37 GMT", "1"};
    open_handler(f, "{post: \"http://@/\"}");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char head[80];
        (void)snprintf(head, sizeof head, "503 No\r\nRetry-After: %s", values[i]);
        test_http_will(&f->server, answer(&f->arena, head, ""), TEST_HTTP_KEEP);
        once_item *item = &f->items[0];
        assert_int_equal(prepare(f, item, "{\"id\":1}"), ONCE_OK);
        item->decision.failures = 10; /* the next failure is the last but one: that pause makes up for short ones */
        item->decision.failing_for_ms = 0;
        once_runner_start(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        assert_int_equal(item->outcome, ONCE_RETRY);
        assert_true(item->delay_ms > 5000);
    }
}

/* How long the default budget of a message lasts while each of its calls ends in this way, in a time that is only
 * counted: each pause is what the policy makes of the answer. */
static int64_t budget_ms(fixture *f, const char *answered)
{
    const once_policy policy = once_policy_of(&f->spec->handlers[0], once_env_real());
    int64_t lasts_ms = 0;
    for (uint32_t failures = 0;; failures++) {
        once_item *item = &f->items[0];
        if (answered) test_http_will(&f->server, answered, TEST_HTTP_KEEP);
        assert_int_equal(prepare(f, item, "{\"id\":1}"), ONCE_OK);
        item->decision.failures = failures;
        item->decision.failing_for_ms = failures ? lasts_ms : -1;
        once_runner_start(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        once_settlement end = {.outcome = item->outcome, .delay_ms = item->delay_ms, .maybe_done = item->maybe_done};
        once_policy_judge(&policy, &item->decision, &end);
        if (end.outcome == ONCE_DEAD) {
            assert_int_equal(failures, 11); /* the twelfth is the last */
            return lasts_ms;
        }
        assert_int_equal(end.outcome, ONCE_RETRY);
        lasts_ms += end.delay_ms;
    }
}

/* With the default settings, also by what a server says about when to come again. */
static void f95_an_outage_of_a_minute_over_http_spends_no_budget(void **state)
{
    fixture *f = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char text[100];
    static const char *const heads[] = {"503 No", "503 No\r\nRetry-After: 0", "429 No\r\nRetry-After: 1",
                                        "500 No\r\nRetry-After: 0"};
    open_handler(f, "{post: \"http://@/\"}\n  unknown: retry");
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
            assert_true(budget_ms(f, answer(&f->arena, heads[i], "")) > 74000);
    const int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and nobody listens */
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(text, sizeof text, "{post: \"http://127.0.0.1:%d/\"}", ntohs(address.sin_port));
    open_handler(f, text);
    for (int round = 0; round < 10; round++) assert_true(budget_ms(f, NULL) > 74000);
    close(fd);
}

static void a_body_can_decide(void **state)
{
    fixture *f = *state;
    open_handler(f,
                 "{post: \"http://@/\", done_if: {/status: [ok, 1], /paid: true}, rejected_if: {/status: declined}}");
    static const struct {
        const char *body;
        once_outcome outcome;
    } cases[] = {
        {"{\"status\":\"ok\",\"paid\":true}", ONCE_DONE},
        {"{\"status\":1,\"paid\":true}", ONCE_DONE},
        {"{\"status\":\"ok\",\"paid\":false}", ONCE_UNKNOWN},
        {"{\"status\":\"no\",\"paid\":true}", ONCE_UNKNOWN},
        {"{\"status\":\"declined\"}", ONCE_REJECTED},
        {"not json", ONCE_UNKNOWN},
        {"", ONCE_UNKNOWN},
        {"{\"status\":[\"ok\"],\"paid\":true}", ONCE_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, "200 OK", cases[i].body), TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), cases[i].outcome, cases[i].outcome == ONCE_UNKNOWN ? "'done_if' is not met" : "");
    }
}

/* An answer in which a refusal cannot be looked for may be one. */
static void f81_an_answer_that_cannot_be_looked_at_is_not_done(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", response_max: 40B, rejected_if: {/status: declined}, lookup: {get: "
                    "\"http://@/${key}\", rejected_if: {/status: declined}}}");
    static const struct {
        const char *body;
        once_outcome outcome;
        const char *reason;
    } cases[] = {
        {"{\"status\":\"declined\"}", ONCE_REJECTED, "'rejected_if' is met"},
        {"{\"status\":\"ok\"}", ONCE_DONE, ""},
        {"{}", ONCE_DONE, ""},
        {"<html>declined</html>", ONCE_UNKNOWN, "status 200, but 'rejected_if' cannot be looked at"},
        {"", ONCE_UNKNOWN, "'rejected_if' cannot be looked at"},
        {"{\"note\":\"0123456789012345678901234567890123456789\",\"status\":\"declined\"}", ONCE_UNKNOWN,
         "'rejected_if' cannot be looked at"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int asks = 0; asks < 2; asks++) {
            test_http_will(&f->server, answer(&f->arena, "200 OK", cases[i].body), TEST_HTTP_KEEP);
            says(asks ? ask(f) : run(f, "{\"id\":1}"), cases[i].outcome, cases[i].reason);
        }
}

/* A 204 has no body: what is refused is not said so. */
static void f81_no_content_is_no_refusal(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", rejected_if: {/status: declined}}");
    test_http_will(&f->server, "HTTP/1.1 204 Done\r\n\r\n", TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    open_handler(f, "{post: \"http://@/\", done_if: {/status: ok}}");
    test_http_will(&f->server, "HTTP/1.1 204 Done\r\n\r\n", TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "'done_if' is not met");
}

/* What it says counts, and not what is left of it without the secrets. */
static void f81_an_answer_is_judged_before_secrets_are_taken_out(void **state)
{
    fixture *f = *state;
    (void)setenv("ONCE_TEST_SECRET", "1042", 1);
    open_handler(f, "{post: \"http://@/\", headers: {X-Tenant: env:ONCE_TEST_SECRET}, done_if: {/tenant: 1042}, "
                    "rejected_if: {/status: declined}}");
    test_http_will(&f->server, answer(&f->arena, "200 OK", "{\"tenant\":1042,\"status\":\"declined\"}"),
                   TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_REJECTED, "'rejected_if' is met: {\"tenant\":***,\"status\":\"declined\"}");
    has_result(&f->items[0], "{\"status\":200,\"body\":\"{\\\"tenant\\\":***,\\\"status\\\":\\\"declined\\\"}\"}");
    test_http_will(&f->server, answer(&f->arena, "200 OK", "{\"tenant\":1042,\"by\":\"1042\"}"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":2}"), ONCE_DONE, "");
    has_result(&f->items[0], "{\"status\":200,\"body\":\"{\\\"tenant\\\":***,\\\"by\\\":\\\"***\\\"}\"}");
}

static void conditions_are_about_whole_answers_and_refusals_go_first(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", response_max: 20B, done_if: {/ok: true}, rejected_if: {/code: 7}}");
    test_http_will(&f->server, answer(&f->arena, "200 OK", "{\"ok\":true}"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    test_http_will(&f->server, answer(&f->arena, "200 OK", "{\"ok\":true,\"code\":7}"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":2}"), ONCE_REJECTED, "'rejected_if' is met");
    test_http_will(
        &f->server, /* what fits of it is JSON, and all of it is not */
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{\"ok\":true}\r\na\r\n0123456789\r\n0\r\n\r\n",
        TEST_HTTP_CLOSE);
    says(run(f, "{\"id\":3}"), ONCE_UNKNOWN, "'done_if' is not met");
}

static void headers_without_end_are_no_answer(void **state)
{
    fixture *f = *state;
    const size_t n = 3000;
    char *text = once_arena_alloc(&f->arena, 100 + 100 * n), *at = stpcpy(text, "HTTP/1.1 200 OK\r\n");
    for (size_t i = 0; i < n; i++) at += sprintf(at, "X-%zu: %080zu\r\n", i, i);
    (void)stpcpy(at, "Content-Length: 0\r\n\r\n");
    static const char *const handlers[] = {"{post: \"http://@/\"}", "{post: \"http://@/\", redirects: 1}"};
    for (size_t i = 0; i < 2; i++) {
        open_handler(f, handlers[i]);
        test_http_will(&f->server, text, TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "no whole answer");
    }
}

/* --- no answer --- */

/* Requests that may be redirected go through libcurl; the others are sent by ourselves (effect/http/direct.c). */
#define LIBCURL ", redirects: 1"
static const char *const both[] = {"{post: \"http://@/\", timeout: 300ms}",
                                   "{post: \"http://@/\", timeout: 300ms" LIBCURL "}"};
static const char *const both_patient[] = {"{post: \"http://@/\"}", "{post: \"http://@/\"" LIBCURL "}"};

/* libcurl repeats a request when a connection that it had used before dies: each of them must reach the server once. */
static void f69_nothing_is_sent_twice_when_a_used_connection_dies(void **state)
{
    fixture *f = *state;
    static const char *const handlers[] = {
        "{post: \"http://@/\"}",
        "{put: \"http://@/\", body: none}",
        "{patch: \"http://@/\"}",
        "{delete: \"http://@/\"}",
        "{get: \"http://@/\"}",
        "{post: \"http://@/\"" LIBCURL "}",
        "{get: \"http://@/\"" LIBCURL "}",
        "{put: \"http://@/\", body: none" LIBCURL "}",
    };
    static const test_http_then ways[] = {TEST_HTTP_RESET, TEST_HTTP_CLOSE};
    for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
        for (size_t k = 0; k < 2; k++) {
            open_handler(f, handlers[i]);
            const size_t before = test_http_count(&f->server), connected = test_http_connections(&f->server);
            says(run(f, "{\"id\":1}"), ONCE_DONE, "");
            test_http_will(&f->server, NULL, ways[k]); /* it read the request, charges, and is gone */
            says(run(f, "{\"id\":2}"), ONCE_UNKNOWN, "");
            assert_int_equal(test_http_count(&f->server), before + 2);
            says(run(f, "{\"id\":3}"), ONCE_DONE, "");
            assert_int_equal(test_http_count(&f->server), before + 3);
            assert_in_range(test_http_connections(&f->server), connected + 2, connected + 3);
        }
}

/* What a server says unasked on a connection that is idle is the answer to nothing. */
static void f81_what_was_not_asked_for_is_no_answer(void **state)
{
    fixture *f = *state;
    once_item *none;
    for (int i = 0; i < 4; i++) {
        const bool waits = i % 2;
        open_handler(f, both_patient[i / 2]);
        const size_t before = test_http_count(&f->server);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        test_http_say(&f->server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        for (int k = 0; k < 3 && waits; k++) assert_int_equal(once_runner_wait(f->runner, 1, &none, 1), 0);
        test_http_will(&f->server, answer(&f->arena, "503 No", ""), TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_RETRY, "status 503"); /* its own answer */
        assert_int_equal(test_http_count(&f->server), before + 2);
    }
    test_http_greet(&f->server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); /* before the request */
    for (int i = 0; i < 2; i++) {
        open_handler(f, both_patient[i]);
        const once_item *item = run(f, "{\"id\":1}");
        if (item->outcome != ONCE_DONE) says(item, ONCE_RETRY, "nothing was sent"); /* unless it came too late */
    }
}

static void f69_a_reply_that_is_cut_anywhere_is_unknown(void **state)
{
    fixture *f = *state;
    const size_t whole = strlen(OK);
    for (size_t i = 0; i < 2; i++) {
        open_handler(f, both_patient[i]);
        for (size_t len = 0; len <= whole; len++) {
            once_bytes cut = {0};
            const bool close = len % 2 || len == whole;
            assert_true(once_arena_copy(&f->arena, (once_bytes){OK, len}, &cut));
            test_http_will(&f->server, len ? cut.data : NULL, close ? TEST_HTTP_CLOSE : TEST_HTTP_RESET);
            says(run(f, "{\"id\":1}"), len < whole ? ONCE_UNKNOWN : ONCE_DONE, "");
        }
        assert_int_equal(test_http_count(&f->server), (i + 1) * (whole + 1));
    }
}

/* A line that came in two parts, and memory for the first one or for both of them is out. A hole in it would make
 * another one of it: here, one that ends the answer. */
static void f69_a_reply_with_a_line_that_there_is_no_memory_for_is_unknown(void **state)
{
    fixture *f = *state;
    open_handler(f, both_patient[0]);
    for (size_t fits = 1; fits <= 3; fits++) {
        test_http_will(&f->server, "HTTP/1.1 200 OK\r\nX-", TEST_HTTP_KEEP);
        once_item *item = start(f, 0, "{\"id\":1}");
        http_call *call = item->driver;
        assert_non_null(call);
        const size_t max = call->rest.max;
        if (fits < 3) call->rest.max = fits;
        if (once_runner_wait(f->runner, fits == 1 ? 2000 : 200, &item, 1) == 0) {
            test_http_say(&f->server, "Content-Length: 0\r\nContent-Length: 2\r\n\r\nok");
            item = ended(f);
        }
        says(item, fits == 3 ? ONCE_DONE : ONCE_UNKNOWN, fits == 3 ? "" : "memory is out");
        call->rest.max = max;
    }
}

/* Trailers come through the same door as headers, when the answer is whole. */
static void an_answer_may_have_trailers(void **state)
{
#define TRAILERS(status)                                                                                               \
    "HTTP/1.1 " status "\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n"       \
    "Retry-After: 3000\r\n"
    fixture *f = *state;
    for (size_t i = 0; i < 2; i++) {
        open_handler(f, both_patient[i]);
        test_http_will(&f->server, TRAILERS("200 OK") "\r\n", TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        has_result(&f->items[0], "{\"status\":200,\"body\":\"hello\"}");
        test_http_will(&f->server, TRAILERS("200 OK"), TEST_HTTP_CLOSE);
        says(run(f, "{\"id\":2}"), ONCE_UNKNOWN, "no whole answer");
        test_http_will(&f->server, TRAILERS("503 Wait") "\r\n", TEST_HTTP_KEEP);
        says(run(f, "{\"id\":3}"), ONCE_RETRY, "status 503");
        assert_int_equal(f->items[0].delay_ms, 7000);
    }
#undef TRAILERS
}

static void what_was_not_sent_is_tried_again(void **state)
{
    fixture *f = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char text[200];
    const int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and nobody listens */
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(text, sizeof text, "{post: \"http://127.0.0.1:%d/\"}", ntohs(address.sin_port));
    open_handler(f, text);
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent");
    assert_false(f->items[0].started);

    assert_int_equal(listen(fd, 0), 0); /* it accepts nothing, and its queue is full soon */
    int filler[3];
    for (size_t i = 0; i < 3; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&address, sizeof address);
    }
    (void)snprintf(text, sizeof text, "{post: \"http://127.0.0.1:%d/\", connect_timeout: 50ms}",
                   ntohs(address.sin_port));
    open_handler(f, text);
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "no connection within 50ms");
    for (size_t i = 0; i < 3; i++) close(filler[i]);
    close(fd);

    test_http_greet(&f->server, "this is not TLS, and long enough to be seen as something else");
    open_handler(f, "{post: \"https://@/\"}");
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent");
    open_handler(f, "{post: \"http://" /* no name server is asked for a label of more than 63 bytes */
                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.invalid/\"}");
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent");
    assert_int_equal(test_http_count(&f->server), 0);
}

/* The server of a lookup is another one: neither gets what is for the other. */
static void the_known_addresses_of_effect_and_lookup_are_apart(void **state)
{
    fixture *f = *state;
    test_http other;
    char text[300];
    test_http_start(&other);
    (void)snprintf(
        text, sizeof text,
        "{post: \"http://@/\", lookup: {get: \"http://127.0.0.1:%d/${idempotency_key}\", done: [200], absent: [404]}}",
        other.port);
    open_handler(f, text);
    for (size_t i = 1; i <= 4; i++) {
        test_http_will(&f->server, answer(&f->arena, "200 OK" CLOSES, ""), TEST_HTTP_CLOSE);
        test_http_will(&other, answer(&f->arena, "200 OK" CLOSES, ""), TEST_HTTP_CLOSE);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        says(ask(f), ONCE_DONE, "");
        assert_int_equal(test_http_count(&f->server), i);
        assert_int_equal(test_http_count(&other), i);
    }
    test_http_stop(&other);
}

/* On a new connection, too, which we made ourselves. */
static void f81_what_a_server_says_first_is_no_answer(void **state)
{
    fixture *f = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[200];
    static const char unasked[] = "HTTP/1.1 408 Slow\r\nContent-Length: 0\r\n\r\n";
    const int listener = listen_at(&address, 16);
    (void)snprintf(text, sizeof text, "{post: \"http://127.0.0.1:%d/\"}", ntohs(address.sin_port));
    open_handler(f, text);
    answer_one(f, listener);
    (void)start(f, 0, "{\"id\":1}"); /* it connects, and the loop has not seen that */
    struct pollfd polled = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&polled, 1, PATIENCE_MS), 1);
    const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    assert_int_equal(write(fd, unasked, sizeof unasked - 1), sizeof unasked - 1);
    (void)usleep(20000);
    says(ended(f), ONCE_RETRY, "spoke before it was asked");
    char byte;
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT) > 0, 0);
    close(fd);
    close(listener);
}

/* It closes some of the connections while the next requests are made for them: these are sent on new ones. */
static void f69_requests_are_sent_on_connections_that_are_open(void **state)
{
    enum { CALLS = 8 };
    fixture *f = *state;
    once_item *items[CALLS];
    open_handler(f, "{post: \"http://@/\", window: 8}");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < CALLS; i++)
            test_http_will(&f->server, answer(&f->arena, "200 OK", "{}"), i % 2 ? TEST_HTTP_CLOSE : TEST_HTTP_KEEP);
        for (int i = 0; i < CALLS; i++) {
            items[i] = &f->items[i];
            assert_int_equal(prepare(f, items[i], "{\"id\":1}"), ONCE_OK);
        }
        once_runner_start(f->runner, items, CALLS);
        for (int i = 0; i < CALLS; i++) says(ended(f), ONCE_DONE, "");
        (void)usleep(20000); /* the ends of the connections come, and nobody has looked */
    }
    assert_int_equal(test_http_count(&f->server), 3 * CALLS);
}

static void f60_what_was_sent_and_not_answered_is_unknown(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 2; i++) {
        open_handler(f, both[i]);
        test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "no answer within 300ms");
        test_http_will(&f->server, "SSH-2.0-OpenSSH\r\n", TEST_HTTP_KEEP); /* no HTTP at all */
        says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "no whole answer");
        test_http_will(&f->server, "HTTP/1.1 100 Continue\r\n\r\n", TEST_HTTP_KEEP); /* and nothing after it */
        says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "no answer within");
        assert_int_equal(test_http_count(&f->server), 3 * (i + 1));
    }
}

/* Also for a call that was still connecting when the time of one before it was over. */
static void f60_every_call_has_its_time_limit(void **state)
{
    fixture *f = *state;
    open_handler(f, both[0]);
    test_http_will(&f->server, answer(&f->arena, "200 OK\r\nConnection: close", ""), TEST_HTTP_CLOSE);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    (void)usleep(310000);
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    says(run(f, "{\"id\":2}"), ONCE_UNKNOWN, "no answer within 300ms");
}

static void end_calls(fixture *f, const char *http)
{
    open_handler(f, http);
    once_item *item = start(f, 0, "{\"id\":1}"), *none = NULL; /* nothing is sent before the first turn of the loop */
    once_runner_kill(f->runner, &item, 1);
    says(ended(f), ONCE_RELEASE, "ended before it was sent");
    assert_false(item->started);
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    start(f, 0, "{\"id\":1}");
    while (test_http_count(&f->server) == 0) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
    once_runner_kill(f->runner, &item, 1);
    says(ended(f), ONCE_UNKNOWN, "ended before the answer came");
    start(f, 0, "{\"id\":1}"); /* one that is not finished when all ends */
    assert_int_equal(once_runner_wait(f->runner, 0, &none, 1), 0);
}

static void a_call_can_be_ended(void **state) { end_calls(*state, both_patient[0]); }

static void a_call_of_libcurl_can_be_ended(void **state) { end_calls(*state, both_patient[1]); }

static void link_local_addresses_must_be_written(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://0xa9fea9fe/latest\", timeout: 200ms}"); /* another way to write 169.254.169.254 */
    const once_item *item = run(f, "{\"id\":1}");
    says(item, ONCE_RELEASE, "link-local");
    assert_int_equal(item->run_failure, ONCE_E_DENIED);
    assert_false(once_http_of(&f->spec->handlers[0])->request.link_local);
    open_handler(f, "{post: \"http://169.254.169.254/latest\"}"); /* not called */
    assert_true(once_http_of(&f->spec->handlers[0])->request.link_local);
    open_handler(f, "{post: \"http://[fe80::1]:8080/\"}");
    assert_true(once_http_of(&f->spec->handlers[0])->request.link_local);
}

/* --- proxies --- */

static void a_proxy_comes_from_the_file_alone(void **state)
{
    fixture *f = *state;
    char proxy[60];
    (void)snprintf(proxy, sizeof proxy, "http://me:hush%%2dhush@127.0.0.1:%d", f->server.port);
    (void)setenv("ONCE_TEST_SECRET", proxy, 1);
    open_handler(f, "{post: \"http://pay.invalid/charges\", proxy: env:ONCE_TEST_SECRET}");
    test_http_will(&f->server, answer(&f->arena, "503 No", "me:hush-hush is not known"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "status 503: me:*** is not known");
    test_http_will(&f->server, answer(&f->arena, "503 No", "Basic bWU6aHVzaC1odXNo, hush%2dhush"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "status 503: Basic ***, ***");
    has(test_http_request(&f->server, 0), "POST http://pay.invalid/charges HTTP/1.1\r\n");
    has(test_http_request(&f->server, 0), "\r\nProxy-Authorization: Basic bWU6aHVzaC1odXNo\r\n");
    test_http_will(&f->server, NULL, TEST_HTTP_RESET); /* a used connection */
    says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "");
    assert_int_equal(test_http_count(&f->server), 3);

    open_handler(f, "{post: \"https://pay.invalid/charges\", proxy: env:ONCE_TEST_SECRET}");
    test_http_will(&f->server, answer(&f->arena, "407 No", ""), TEST_HTTP_CLOSE); /* the tunnel is refused */
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent");
    has(test_http_request(&f->server, 3), "CONNECT pay.invalid:443 HTTP/1.1\r\n");

    (void)setenv("http_proxy", proxy, 1);
    (void)setenv("ALL_PROXY", proxy, 1);
    open_handler(f, "{post: \"http://@/direct\"}");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    has(test_http_request(&f->server, 4), "POST /direct HTTP/1.1\r\n");
    (void)unsetenv("http_proxy");
    (void)unsetenv("ALL_PROXY");
}

/* What it may still say would be taken for the answer to the next request, or that would meet its end. */
static void f81_a_connection_that_may_have_more_to_say_is_not_used_again(void **state)
{
    fixture *f = *state;
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", /* the next one has begun */
        "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n0123456789012345678901234567890123456789", /* not all is read */
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n",
    };
    open_handler(f, "{post: \"http://@/\", response_max: 30B}");
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        test_http_will(&f->server, answers[i], TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        assert_int_equal(test_http_connections(&f->server), i + 1);
    }
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_connections(&f->server), sizeof answers / sizeof *answers + 1); /* this one is kept */
}

/* The same where libcurl reads the answers, which looks at a connection only before it sends on it. */
static void f81_libcurl_keeps_no_connection_that_may_have_more_to_say(void **state)
{
    fixture *f = *state;
    static const char *const answers[] = {
        "HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 304 No\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    open_handler(f, "{post: \"http://@/\", done: [304], redirects: 1}");
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        test_http_will(&f->server, answers[i], TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        assert_int_equal(test_http_connections(&f->server), i + 1);
    }
    test_http_will(&f->server, "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_connections(&f->server), sizeof answers / sizeof *answers + 1); /* this one is kept */
}

/* A length that is said in two ways: the first 98 bytes may be missing. */
static void f81_two_lengths_are_no_answer(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 2; i++) {
        open_handler(f, both[i]);
        test_http_will(&f->server, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Length: 2\r\n\r\nok",
                       TEST_HTTP_CLOSE);
        says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "no whole answer");
        test_http_will(&f->server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
                       TEST_HTTP_CLOSE);
        says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    }
}

static size_t count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t n = 0;
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

/* The lookup has another origin, and so another connection. All are closed with the handler. */
static void a_connection_leads_to_one_origin(void **state)
{
    fixture *f = *state;
    char text[200];
    const size_t before = count_descriptors();
    (void)snprintf(text, sizeof text, "{post: \"http://@/\", lookup: {get: \"http://localhost:%d/${key}\"}}",
                   f->server.port);
    open_handler(f, text);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    says(ask(f), ONCE_DONE, "");
    has(test_http_request(&f->server, 1), "\r\nHost: localhost:");
    assert_int_equal(test_http_connections(&f->server), 2);
    says(ask(f), ONCE_DONE, "");
    assert_int_equal(test_http_connections(&f->server), 2);
    once_runner_close(f->runner);
    f->runner = NULL;
    for (int i = 0; i < PATIENCE_MS && count_descriptors() != before; i++) (void)usleep(1000);
    assert_int_equal(count_descriptors(), before); /* the server has seen the end of each */
}

static void a_connection_that_was_idle_is_not_used_again(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\", idle: 0s}");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    once_item *none;
    for (int i = 0; i < 21; i++)
        assert_int_equal(once_runner_wait(f->runner, 50, &none, 1), 0); /* whole seconds count */
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_connections(&f->server), 2);
}

/* The server has long closed it, which a request would tell only when its outcome is unknown. */
static void a_connection_from_before_a_suspend_is_not_used_again(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\"}");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    asleep_ms = 3600000;
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    asleep_ms = 0;
    assert_int_equal(test_http_connections(&f->server), 2);
}

/* A name of 127.0.0.1. libcurl knows localhost without asking; most hosts have their own name in a file. */
static const char *name_of_this_host(char name[100])
{
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    bool fits = gethostname(name, 100) == 0 && getaddrinfo(name, NULL, &hints, &found) == 0 && found;
    if (fits) {
        const struct sockaddr_in *address = (const struct sockaddr_in *)(const void *)found->ai_addr;
        fits = address->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    }
    if (found) freeaddrinfo(found);
    return fits ? name : "localhost";
}

/* libcurl resolves in a thread, which tells the loop through a descriptor whose number is used again. */
static void hosts_have_names(void **state)
{
    fixture *f = *state;
    char text[200], name[100];
    (void)snprintf(text, sizeof text, "{post: \"http://%s:%d/\", timeout: 5s}", name_of_this_host(name),
                   f->server.port);
    for (int i = 0; i < 3; i++) {
        open_handler(f, text);
        for (int k = 0; k < 3; k++) {
            test_http_will(&f->server, OK, k == 1 ? TEST_HTTP_CLOSE : TEST_HTTP_KEEP);
            start(f, k, "{\"id\":1}");
        }
        for (int k = 0; k < 3; k++) says(ended(f), ONCE_DONE, "");
    }
}

/* That this process has no descriptor left is no message's fault. */
static void without_a_descriptor_nothing_is_blamed(void **state)
{
    fixture *f = *state;
    struct rlimit before, none;
    open_handler(f, "{post: \"http://@/\"}");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const once_item *item = run(f, "{\"id\":1}");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    says(item, ONCE_RELEASE, "no socket can be opened here");
    assert_int_equal(once_status_class(item->run_failure), ONCE_CLASS_RETRY);
    assert_false(item->started);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
}

/* One that hangs must not hold up the others, not even the first ones. */
static void a_call_that_stalls_holds_up_no_other(void **state)
{
    fixture *f = *state;
    open_handler(f, "{post: \"http://@/\"}");
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    for (int i = 0; i < 20; i++) start(f, i, "{\"id\":1}");
    for (int i = 0; i < 19; i++) says(ended(f), ONCE_DONE, "");
}

static void a_large_body_is_sent_whole(void **state)
{
    fixture *f = *state;
    enum { LEN = 6000000 }; /* more than the kernels at both ends take at once */
    char *body = malloc(LEN + 1);
    memset(body, 'x', LEN);
    memcpy(body, "{\"id\":\"", 7);
    strcpy(body + LEN - 2, "\"}");
    open_handler(f, "{post: \"http://@/\", body: \"<${/id}>\"}");
    says(run(f, body), ONCE_DONE, "");
    const char *request = test_http_request(&f->server, 0);
    has_not(request, "Expect:");
    assert_int_equal(strlen(strstr(request, "\r\n\r\n") + 4), LEN - 9 + 2);
    open_handler(f, "{post: \"http://@/${/id}\"}"); /* nobody would take it in a URL or a header */
    says(run(f, body), ONCE_DEAD, "the URL is longer than 64 KiB");
    open_handler(f, "{post: \"http://@/\", headers: {X-Id: \"${/id}\"}}");
    says(run(f, body), ONCE_DEAD, "header 'X-Id' is longer than 64 KiB");
    assert_int_equal(test_http_count(&f->server), 1);
    free(body);
}

/* A server that answers before it has read all of it knows only a part of what it was asked for. */
static void f81_an_answer_to_a_part_of_a_request_does_not_mean_done(void **state)
{
    fixture *f = *state;
    enum { LEN = 6000000 }; /* more than the kernels at both ends take at once */
    static const struct {
        const char *answer;
        once_outcome outcome;
        const char *reason;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", ONCE_UNKNOWN,
         "status 200, before the request was sent whole"},
        {"HTTP/1.0 208 Known\r\nContent-Length: 2\r\n\r\nok", ONCE_UNKNOWN, "before the request was sent whole"},
        {"HTTP/1.1 409 Known\r\nContent-Length: 2\r\n\r\nok", ONCE_UNKNOWN, "before the request was sent whole"},
        {"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno", ONCE_REJECTED, "status 413: no"},
        {"HTTP/1.1 415 What\r\nContent-Length: 2\r\n\r\nno", ONCE_DEAD, "status 415: no"},
    };
    char *body = malloc(LEN + 1);
    memset(body, ' ', LEN);
    strcpy(body + LEN - 8, "{\"id\":1}");
    for (size_t by_libcurl = 0; by_libcurl < 2; by_libcurl++) {
        open_handler(f, by_libcurl ? "{post: \"http://@/\", already: [208, 409], rejected: [413], redirects: 1}"
                                   : "{post: \"http://@/\", already: [208, 409], rejected: [413]}");
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            test_http_answer_early(&f->server, cases[i].answer);
            says(run(f, body), cases[i].outcome, cases[i].reason);
        }
    }
    assert_int_equal(test_http_count(&f->server), 0); /* none was whole */
    free(body);
}

/* The server, or the network, goes away while the request is being sent: it may have acted on what it has. */
static void f69_a_request_that_is_cut_while_it_is_sent_is_unknown_and_not_sent_again(void **state)
{
    fixture *f = *state;
    enum { LEN = 6000000 }; /* more than the kernels at both ends take at once */
    static const test_http_then ways[] = {TEST_HTTP_RESET, TEST_HTTP_CLOSE, TEST_HTTP_KEEP};
    char *body = malloc(LEN + 1);
    size_t cut = 0;
    memset(body, ' ', LEN);
    strcpy(body + LEN - 8, "{\"id\":1}");
    for (size_t i = 0; i < 2 * 2 * sizeof ways / sizeof *ways; i++) {
        const bool by_libcurl = i % 2, used = i / 2 % 2; /* libcurl repeats what dies on a connection that was used */
        const test_http_then how = ways[i / 4];
        open_handler(f, how == TEST_HTTP_KEEP ? both[by_libcurl] : both_patient[by_libcurl]);
        const size_t whole = test_http_count(&f->server), connected = test_http_connections(&f->server);
        if (used) says(run(f, "{\"id\":1}"), ONCE_DONE, "");
        test_http_cut(&f->server, how);
        says(run(f, body), ONCE_UNKNOWN, "");
        assert_true(f->items[0].started);
        once_item *none;
        for (int k = 0; k < 3; k++) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
        assert_int_equal(test_http_read_whole(&f->server), ++cut);
        assert_int_equal(test_http_count(&f->server), whole + used);
        const size_t spare = by_libcurl && used; /* libcurl connects to repeat it, and must not */
        assert_in_range(test_http_connections(&f->server), connected + 1, connected + 1 + spare);
        says(run(f, "{\"id\":1}"), ONCE_DONE, ""); /* nothing of it is left */
        assert_in_range(test_http_connections(&f->server), connected + 2, connected + 2 + spare);
    }
    free(body);
}

/* --- redirects --- */

static void redirects_are_followed_only_where_asked(void **state)
{
    fixture *f = *state;
    char elsewhere[100];
    open_handler(f, "{post: \"http://@/a\", redirects: 1}");
    test_http_will(&f->server, answer(&f->arena, "307 There\r\nLocation: /b?c=d", "not here"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_count(&f->server), 2);
    has(test_http_request(&f->server, 1), "POST /b?c=d HTTP/1.1\r\n");
    has(test_http_request(&f->server, 1), "\r\n\r\n{\"id\":1}");
    test_http_will(&f->server, answer(&f->arena, "308 There\r\nLocation: /b", ""), TEST_HTTP_KEEP);
    test_http_will(&f->server, answer(&f->arena, "308 There\r\nLocation: /c", ""), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DEAD, "status 308"); /* one too many */
    test_http_will(&f->server, answer(&f->arena, "302 Found\r\nLocation: /b", ""), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, "status 302"); /* a POST would become a GET */
    (void)snprintf(elsewhere, sizeof elsewhere, "307 There\r\nLocation: http://localhost:%d/", f->server.port);
    test_http_will(&f->server, answer(&f->arena, elsewhere, ""), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DEAD, "status 307"); /* another host */
    char name[100];                                      /* what stands in the file is a name before '@' */
    (void)snprintf(name, sizeof name, "307 There\r\nLocation: http://127.0.0.1:%d@127.0.0.1:%d/", f->server.port,
                   f->server.port);
    test_http_will(&f->server, answer(&f->arena, name, ""), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DEAD, "status 307");
    test_http_will(&f->server, answer(&f->arena, "307 There\r\nLocation: /b", ""), TEST_HTTP_KEEP);
    test_http_will(&f->server, NULL, TEST_HTTP_RESET);
    says(run(f, "{\"id\":1}"), ONCE_UNKNOWN, ""); /* the second request is not repeated either */
    assert_int_equal(test_http_count(&f->server), 9);
}

/* What the file says of a status goes before what is usual for it: nothing is sent again. */
static void a_status_that_is_listed_is_not_followed(void **state)
{
    fixture *f = *state;
    open_handler(f, "{get: \"http://@/a\", redirects: 1, unknown: [307, 302], already: [308], lookup: {get: "
                    "\"http://@/${key}\", absent: [303]}}");
    static const struct {
        const char *head;
        once_outcome outcome;
    } cases[] = {{"307 There\r\nLocation: /b", ONCE_UNKNOWN},
                 {"302 There\r\nLocation: /b", ONCE_UNKNOWN},
                 {"308 There\r\nLocation: /b", ONCE_ALREADY}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, cases[i].head, ""), TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), cases[i].outcome, "status 30");
        assert_int_equal(test_http_count(&f->server), i + 1);
    }
    test_http_will(&f->server, answer(&f->arena, "303 There\r\nLocation: /b", ""), TEST_HTTP_KEEP);
    says(ask(f), ONCE_RETRY, "status 303");
    assert_int_equal(test_http_count(&f->server), 4);
}

/* --- lookup --- */

static void a_lookup_asks_and_changes_nothing(void **state)
{
    fixture *f = *state;
    (void)setenv("ONCE_TEST_SECRET", "hush-hush", 1);
    open_handler(f, "{post: \"http://@/\", bearer: env:ONCE_TEST_SECRET, lookup: {get: "
                    "\"http://@/charges/${key}\", query: {k: \"${idempotency_key}\"}, absent: [404, 410], done_if: "
                    "{/state: done}, timeout: 100ms}}");
    static const struct {
        const char *head, *body;
        once_outcome outcome;
    } cases[] = {
        {"200 OK", "{\"state\":\"done\"}", ONCE_DONE},
        {"200 OK", "{\"state\":\"running\"}", ONCE_UNKNOWN},
        {"404 No", "", ONCE_RETRY},
        {"410 No", "", ONCE_RETRY},
        {"500 No", "", ONCE_UNKNOWN},
        {"409 No", "", ONCE_UNKNOWN},
        {"302 No\r\nLocation: /", "", ONCE_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, cases[i].head, cases[i].body), TEST_HTTP_KEEP);
        says(ask(f), cases[i].outcome, cases[i].outcome == ONCE_DONE ? "" : "lookup: GET http://127.0.0.1");
        assert_true(f->items[0].started);
        if (i == 0) has_result(&f->items[0], "{\"status\":200,\"body\":{\"state\":\"done\"}}");
    }
    const char *request = test_http_request(&f->server, 0);
    has(request, "GET /charges/p%2F1?k=");
    has(request, "\r\nAuthorization: Bearer hush-hush\r\n"); /* it goes to the same server */
    has_not(request, "Idempotency-Key");
    test_http_will(&f->server, answer(&f->arena, "401 No", ""), TEST_HTTP_KEEP);
    says(ask(f), ONCE_RELEASE, "lookup: ");
    assert_int_equal(f->items[0].run_failure, ONCE_E_DENIED);
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    says(ask(f), ONCE_UNKNOWN, "no answer within 100ms");
    test_http_will(&f->server, NULL, TEST_HTTP_RESET);
    says(ask(f), ONCE_UNKNOWN, "lookup: ");
    assert_true(f->items[0].started);
}

/* A wrong path answers 404, too. Taken for "absent", it would be a second effect for every unknown. */
static void f69_a_404_of_somebody_else_is_not_absent(void **state)
{
    fixture *f = *state;
    open_handler(
        f, "{post: \"http://@/\", lookup: {get: \"http://@/charges/${key}\", absent_if: {/error/code: [no_such_charge, "
           "gone]}}}");
    static const struct {
        const char *head, *body;
        once_outcome outcome;
        const char *reason;
    } cases[] = {
        {"404 No", "{\"error\":{\"code\":\"no_such_charge\"}}", ONCE_RETRY, "status 404"},
        {"404 No", "{\"error\":{\"code\":\"no_such_route\"}}", ONCE_UNKNOWN, "status 404, but 'absent_if' is not met"},
        {"404 No", "{\"error\":\"no_such_charge\"}", ONCE_UNKNOWN, "'absent_if' is not met"},
        {"404 No", "<html>Not Found</html>", ONCE_UNKNOWN, "'absent_if' is not met"},
        {"404 No", "", ONCE_UNKNOWN, "'absent_if' is not met"},
        {"200 OK", "{\"error\":{\"code\":\"no_such_charge\"}}", ONCE_DONE, ""}, /* it is only about `absent` */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_http_will(&f->server, answer(&f->arena, cases[i].head, cases[i].body), TEST_HTTP_KEEP);
        says(ask(f), cases[i].outcome, cases[i].reason);
    }
}

/* A question that could not be put is no "absent": the message would run a second time. */
static void f69_a_lookup_that_is_not_sent_finds_out_nothing(void **state)
{
    fixture *f = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    char text[200];
    const int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and nobody listens */
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(text, sizeof text, "{post: \"http://@/\", lookup: {get: \"http://127.0.0.1:%d/${/id}\"}}",
                   ntohs(address.sin_port));
    open_handler(f, text);
    says(ask(f), ONCE_UNKNOWN, "lookup: GET http://127.0.0.1");
    assert_true(f->items[0].started);
    assert_int_equal(listen(fd, 8), 0); /* it connects, and is ended before or after it is sent */
    once_item *item = &f->items[0];
    assert_int_equal(prepare(f, item, "{\"id\":1}"), ONCE_OK);
    item->decision = (once_decision){.answer = ONCE_ANSWER_UNKNOWN, .attempt = 1, .asks = true};
    once_runner_start(f->runner, &item, 1);
    once_runner_kill(f->runner, &item, 1);
    says(ended(f), ONCE_UNKNOWN, "lookup: ");
    close(fd);
}

/* --- a token from a command --- */

static void a_token_comes_from_a_command_and_is_renewed_at_401(void **state)
{
    fixture *f = *state;
    token_command c;
    make_command(&c, "cat is", "");
    write_file(c.token, "token-one\n");
    open_handler(f, c.http);
    assert_int_equal(times_run(&c), 0);
    for (int i = 0; i < 20; i++) start(f, i, "{\"id\":1}"); /* all of them wait for one command */
    for (int i = 0; i < 20; i++) says(ended(f), ONCE_DONE, "");
    assert_int_equal(times_run(&c), 1);
    has(test_http_request(&f->server, 19), "\r\nAuthorization: Bearer token-one\r\n");
    write_file(c.token, "token-two\n");
    test_http_will(&f->server, answer(&f->arena, "401 Expired", ""), TEST_HTTP_KEEP);
    test_http_will(&f->server, answer(&f->arena, "400 No", "token-one was better"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_DEAD, ": *** was better"); /* the one before is a secret, too */
    assert_int_equal(times_run(&c), 2);
    assert_int_equal(test_http_count(&f->server), 22);
    has(test_http_request(&f->server, 21), "\r\nAuthorization: Bearer token-two\r\n");
    test_http_will(&f->server, answer(&f->arena, "401 No", ""), TEST_HTTP_KEEP); /* the new one is refused, too */
    test_http_will(&f->server, answer(&f->arena, "401 No", "not token-two"), TEST_HTTP_KEEP);
    says(run(f, "{\"id\":1}"), ONCE_RELEASE, ": not ***");
    assert_int_equal(f->items[0].run_failure, ONCE_E_DENIED);
    assert_int_equal(test_http_count(&f->server), 24);
    remove_command(&c);
}

static void a_401_that_is_listed_asks_for_no_token(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *list;
        once_outcome outcome;
    } cases[] = {{", unknown: [401]", ONCE_UNKNOWN}, {", already: [401]", ONCE_ALREADY}};
    for (size_t i = 0; i < 2; i++) {
        token_command c;
        make_command(&c, "echo token", cases[i].list);
        open_handler(f, c.http);
        test_http_will(&f->server, answer(&f->arena, "401 Paid", ""), TEST_HTTP_KEEP);
        says(run(f, "{\"id\":1}"), cases[i].outcome, "status 401");
        assert_int_equal(test_http_count(&f->server), i + 1);
        remove_command(&c);
    }
}

/* The answer to a call that carries a token comes when the command runs again, or has failed. */
static void a_token_is_a_secret_while_calls_carry_it(void **state)
{
    fixture *f = *state;
    static const char late[] = "HTTP/1.1 400 No\r\nContent-Length: 18\r\n\r\ntoken-one is wrong";
    for (int fails = 0; fails < 2; fails++) {
        token_command c;
        once_item *none = NULL;
        make_command(&c, "[ -e is ] || exit 1; [ -e slow ] && sleep 1000; cat is", "");
        write_file(c.token, "token-one\n");
        open_handler(f, c.http);
        const size_t before = test_http_count(&f->server);
        test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
        start(f, 1, "{\"id\":1}"); /* it is answered late */
        while (test_http_count(&f->server) == before) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
        if (fails) {
            assert_int_equal(unlink(c.token), 0);
            test_http_will(&f->server, answer(&f->arena, "401 No" CLOSES, ""), TEST_HTTP_CLOSE);
            says(run(f, "{\"id\":2}"), ONCE_RELEASE, "ended with status 1");
        } else {
            char slow[120];
            snprintf(slow, sizeof slow, "%s/slow", c.folder);
            write_file(c.token, "token-two\n");
            test_http_will(&f->server, answer(&f->arena, "401 No" CLOSES, ""), TEST_HTTP_CLOSE);
            test_http_will(&f->server, answer(&f->arena, "200 OK" CLOSES, ""), TEST_HTTP_CLOSE);
            says(run(f, "{\"id\":2}"), ONCE_DONE, "");
            write_file(slow, "");
            test_http_will(&f->server, answer(&f->arena, "401 No" CLOSES, ""), TEST_HTTP_CLOSE);
            start(f, 2, "{\"id\":3}");
            while (times_run(&c) < 3) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
        }
        test_http_say(&f->server, late);
        const once_item *item = ended(f);
        assert_ptr_equal(item, &f->items[1]);
        says(item, ONCE_DEAD, "status 400: *** is wrong");
        remove_command(&c);
    }
}

/* Two tokens later, the answer to a call that carries the first one comes. */
static void a_token_is_a_secret_of_its_call(void **state)
{
    fixture *f = *state;
    token_command c;
    once_item *none = NULL;
    make_command(&c, "cat is", "");
    write_file(c.token, "token-one\n");
    open_handler(f, c.http);
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    start(f, 1, "{\"id\":1}"); /* it is answered late */
    while (test_http_count(&f->server) == 0) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
    for (int i = 0; i < 2; i++) {
        write_file(c.token, i ? "token-three\n" : "token-two\n");
        test_http_will(&f->server, answer(&f->arena, "401 No" CLOSES, ""), TEST_HTTP_CLOSE);
        test_http_will(&f->server, answer(&f->arena, "200 OK" CLOSES, ""), TEST_HTTP_CLOSE);
        says(run(f, "{\"id\":2}"), ONCE_DONE, "");
    }
    test_http_say(&f->server, "HTTP/1.1 400 No\r\nContent-Length: 18\r\n\r\ntoken-one is wrong");
    says(ended(f), ONCE_DEAD, "status 400: *** is wrong");
    remove_command(&c);
}

/* The server closes the connection while the call waits for a new token: nothing of it is lost. */
static void a_connection_may_end_while_a_call_waits_for_a_token(void **state)
{
    fixture *f = *state;
    token_command c;
    make_command(&c, "sleep 0.1; echo token", "");
    open_handler(f, c.http);
    test_http_will(&f->server, answer(&f->arena, "401 No", ""), TEST_HTTP_CLOSE);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_count(&f->server), 2);
    remove_command(&c);
}

static void a_token_that_cannot_be_had_stops_the_handler(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *script, *why;
    } cases[] = {
        {"echo vault password hush-hush >&2; exit 3",
         "the command of 'bearer' ended with status 3; run it by hand to see why"},
        {"true", "printed no token"},
        {"echo two words", "printed no token"},
        {"sleep 1000", "was killed after 300ms"},
        {"kill -9 $$", "was ended by a signal"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token_command c;
        make_command(&c, cases[i].script, strstr(cases[i].why, "300ms") ? ", timeout: 300ms" : "");
        open_handler(f, c.http);
        says(run(f, "{\"id\":1}"), ONCE_RELEASE, cases[i].why);
        assert_null(memmem(f->items[0].failure.data, f->items[0].failure.len, "hush", 4));
        assert_int_equal(once_status_class(f->items[0].run_failure), ONCE_CLASS_PAUSE);
        remove_command(&c);
    }
    assert_int_equal(test_http_connections(&f->server), 0);
    once_runner_close(f->runner);
    f->runner = NULL;
    assert_int_equal(try_open(f, "{post: \"http://@/\", bearer: {exec: [./no-such-command]}}"), ONCE_E_CONFIG);
    has(f->err.text, "p.yaml:6: 'bearer': ");
}

static void a_call_that_waits_for_a_token_can_be_ended(void **state)
{
    fixture *f = *state;
    token_command c;
    make_command(&c, "sleep 1000", "");
    open_handler(f, c.http);
    for (int i = 0; i < 3; i++) start(f, i, "{\"id\":1}");
    static const int order[] = {1, 2, 0};
    for (int i = 0; i < 3; i++) {
        once_item *item = &f->items[order[i]];
        once_runner_kill(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        says(item, ONCE_RELEASE, "ended before it was sent");
        assert_int_equal(item->run_failure, ONCE_OK);
    }
    start(f, 0, "{\"id\":1}"); /* it waits while all ends */
    remove_command(&c);
}

/* --- many --- */

/* The server answers nobody before it has the requests of all. */
static void many_calls(fixture *f, const char *http)
{
    enum { CALLS = 256 };
    once_item *none;
    open_handler(f, http);
    for (size_t round = 1; round <= 2; round++) {
        for (int i = 0; i < CALLS; i++) test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
        for (int i = 0; i < CALLS; i++) start(f, i, "{\"id\":1}");
        while (test_http_count(&f->server) < round * CALLS) /* one that waited for another ends at its timeout */
            assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
        test_http_say(&f->server, OK);
        for (int i = 0; i < CALLS; i++) says(ended(f), ONCE_DONE, "");
        assert_int_equal(test_http_connections(&f->server), CALLS);
    }
    assert_int_equal(test_http_count(&f->server), 2 * CALLS);
}

static void many_calls_are_in_flight_on_connections_that_are_kept(void **state)
{
    many_calls(*state, "{post: \"http://@/\", window: 256}");
}

static void many_calls_of_libcurl_are_in_flight_on_connections_that_are_kept(void **state)
{
    many_calls(*state, "{post: \"http://@/\", window: 256" LIBCURL "}");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_request_has_what_the_file_says),
        TEST(a_value_may_end_in_a_colon),
        TEST(a_body_is_the_message_unless_the_file_says_otherwise),
        TEST(a_value_is_never_more_than_a_value),
        TEST(f81_statuses_are_outcomes),
        TEST(what_cannot_be_read_is_a_mistake_of_the_file),
        TEST(refused_credentials_stop_the_handler),
        TEST(the_lists_of_pause_and_of_a_lookup_can_be_changed),
        TEST(no_part_of_a_secret_is_left),
        TEST(a_secret_may_be_said_a_million_times),
        TEST(f61_results_are_capped),
        TEST(retry_after_is_honoured),
        TEST(retry_after_of_an_unknown_and_of_a_lookup_is_honoured),
        TEST(f93_a_retry_after_is_no_reason_to_hurry),
        TEST(f95_an_outage_of_a_minute_over_http_spends_no_budget),
        TEST(a_body_can_decide),
        TEST(f69_nothing_is_sent_twice_when_a_used_connection_dies),
        TEST(f81_what_was_not_asked_for_is_no_answer),
        TEST(f69_a_reply_that_is_cut_anywhere_is_unknown),
        TEST(f81_an_answer_that_cannot_be_looked_at_is_not_done),
        TEST(f81_no_content_is_no_refusal),
        TEST(f81_an_answer_is_judged_before_secrets_are_taken_out),
        TEST(conditions_are_about_whole_answers_and_refusals_go_first),
        TEST(headers_without_end_are_no_answer),
        TEST(f69_a_reply_with_a_line_that_there_is_no_memory_for_is_unknown),
        TEST(an_answer_may_have_trailers),
        TEST(what_was_not_sent_is_tried_again),
        TEST(the_known_addresses_of_effect_and_lookup_are_apart),
        TEST(f81_what_a_server_says_first_is_no_answer),
        TEST(f69_requests_are_sent_on_connections_that_are_open),
        TEST(f60_what_was_sent_and_not_answered_is_unknown),
        TEST(f60_every_call_has_its_time_limit),
        TEST(a_call_can_be_ended),
        TEST(a_call_of_libcurl_can_be_ended),
        TEST(link_local_addresses_must_be_written),
        TEST(a_proxy_comes_from_the_file_alone),
        TEST(f81_a_connection_that_may_have_more_to_say_is_not_used_again),
        TEST(f81_libcurl_keeps_no_connection_that_may_have_more_to_say),
        TEST(f81_two_lengths_are_no_answer),
        TEST(a_connection_leads_to_one_origin),
        TEST(a_connection_that_was_idle_is_not_used_again),
        TEST(a_connection_from_before_a_suspend_is_not_used_again),
        TEST(hosts_have_names),
        TEST(without_a_descriptor_nothing_is_blamed),
        TEST(a_call_that_stalls_holds_up_no_other),
        TEST(a_large_body_is_sent_whole),
        TEST(f81_an_answer_to_a_part_of_a_request_does_not_mean_done),
        TEST(f69_a_request_that_is_cut_while_it_is_sent_is_unknown_and_not_sent_again),
        TEST(redirects_are_followed_only_where_asked),
        TEST(a_status_that_is_listed_is_not_followed),
        TEST(f69_a_lookup_that_is_not_sent_finds_out_nothing),
        TEST(a_lookup_asks_and_changes_nothing),
        TEST(f69_a_404_of_somebody_else_is_not_absent),
        TEST(a_token_comes_from_a_command_and_is_renewed_at_401),
        TEST(a_401_that_is_listed_asks_for_no_token),
        TEST(a_token_is_a_secret_while_calls_carry_it),
        TEST(a_token_is_a_secret_of_its_call),
        TEST(a_connection_may_end_while_a_call_waits_for_a_token),
        TEST(a_token_that_cannot_be_had_stops_the_handler),
        TEST(a_call_that_waits_for_a_token_can_be_ended),
        TEST(many_calls_are_in_flight_on_connections_that_are_kept),
        TEST(many_calls_of_libcurl_are_in_flight_on_connections_that_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
