/* What the tests of the effect `http` share: a handler against a server that does what the test says. */
#ifndef ONCE_TESTS_HTTP_FIXTURE_H
#define ONCE_TESTS_HTTP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "effect/effect.h"
#include "effect/http.h"
#include "effect/http/client.h"
#include "effect/runner.h"
#include "runtime/config.h"
#include "testhttp.h"

#define PATIENCE_MS 30000
#define ITEMS 300
#define CLOSES "\r\nConnection: close" /* a client that is not told may send on a connection that is closed just now */
#define OK "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"id\":\"c1\"}"

typedef struct fixture {
    test_http server;
    once_arena arena;
    once_spec *spec;
    once_runner *runner;
    once_item items[ITEMS];
    once_json body;
    once_error err;
} fixture;

static inline once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static inline int set_up(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    assert_non_null(f);
    test_http_start(&f->server);
    once_json_init(&f->body);
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    once_runner_close(f->runner);
    test_http_stop(&f->server);
    for (int i = 0; i < ITEMS; i++) free(f->items[i].output);
    once_json_release(&f->body);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static int64_t asleep_ms; /* for so long the system was suspended */
static int64_t passed_ns; /* so much time has passed that nobody waited for */
static int64_t stands_ns; /* time stands still there; 0: it does not */

static inline int64_t boot_ms(void *self) { return once_env_real()->boot_ms(self) + asleep_ms; }
static inline int64_t mono_ns(void *self) { return stands_ns ? stands_ns : once_env_real()->mono_ns(self) + passed_ns; }

/* Reads the end of a pipeline file; '@' stands for the server. */
static inline int try_open_pipeline(fixture *f, const char *end)
{
    static once_env env;
    char text[4000], address[40];
    size_t len = (size_t)snprintf(text, sizeof text,
                                  "consumer: payments\nstore: memory\nsource: {file: {path: m.ndjson}}\n"
                                  "key: \"${/id}\"\n");
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", f->server.port);
    for (; *end; end++)
        len +=
            (size_t)snprintf(text + len, sizeof text - len, "%.*s", *end == '@' ? 40 : 1, *end == '@' ? address : end);
    const int rc = once_config_parse("p.yaml", bytes(text), &f->arena, NULL, NULL, &f->spec, &f->err);
    if (rc != ONCE_OK) return rc;
    env = *once_env_real();
    env.boot_ms = boot_ms;
    env.mono_ns = mono_ns;
    const once_runner_options options = {.spec = f->spec, .env = &env};
    return once_runner_open(&options, &f->runner, &f->err);
}

/* A pipeline with this handler. */
static inline int try_open(fixture *f, const char *http)
{
    char end[3500];
    assert_true(snprintf(end, sizeof end, "handler:\n  http: %s", http) < (int)sizeof end);
    return try_open_pipeline(f, end);
}

static inline void open_handler(fixture *f, const char *http)
{
    once_runner_close(f->runner);
    f->runner = NULL;
    if (try_open(f, http) != ONCE_OK) fail_msg("%s", f->err.text);
}

static inline int prepare_for(fixture *f, const once_handler_spec *handler, once_item *item, const char *body)
{
    void *output = item->output;
    *item = (once_item){.handler = handler, .output = output};
    item->message = (once_message){.body = bytes(body), .at = {bytes("m.ndjson"), bytes("1")}, .sent_ms = ONCE_NO_TIME};
    item->scope = (once_scope){.consumer = f->spec->consumer, .operation = handler->operation};
    item->request = (once_request){.scope = &item->scope, .key = bytes("p/1"), .id = {1, 2}};
    item->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 3};
    const bool json = once_json_parse(&f->body, item->message.body, NULL, NULL) == ONCE_OK;
    const once_parsed from = {.message = &item->message, .body = json ? &f->body : NULL};
    return once_effect_prepare(handler, &from, &f->arena, &item->input, &f->err);
}

static inline int prepare(fixture *f, once_item *item, const char *body)
{
    return prepare_for(f, &f->spec->handlers[0], item, body);
}

static inline once_item *start(fixture *f, int i, const char *body)
{
    once_item *item = &f->items[i];
    assert_int_equal(prepare(f, item, body), ONCE_OK);
    once_runner_start(f->runner, &item, 1);
    return item;
}

static inline once_item *ended(fixture *f)
{
    once_item *item = NULL;
    assert_int_equal(once_runner_wait(f->runner, PATIENCE_MS, &item, 1), 1);
    return item;
}

static inline once_item *run(fixture *f, const char *body)
{
    start(f, 0, body);
    return ended(f);
}

static inline once_item *ask(fixture *f)
{
    once_item *item = &f->items[0];
    assert_int_equal(prepare(f, item, "{\"id\":1}"), ONCE_OK);
    item->decision = (once_decision){.answer = ONCE_ANSWER_UNKNOWN, .attempt = 1, .asks = true};
    once_runner_start(f->runner, &item, 1);
    return ended(f);
}

static inline void says(const once_item *item, once_outcome outcome, const char *reason)
{
    char failure[500];
    (void)snprintf(failure, sizeof failure, "%.*s", (int)item->failure.len,
                   item->failure.data ? item->failure.data : "");
    if (item->outcome != outcome || !strstr(failure, reason))
        fail_msg("%s (run_failure %d): '%s', and not %s: '%s'", once_outcome_name(item->outcome), item->run_failure,
                 failure, once_outcome_name(outcome), reason);
    assert_int_equal(item->maybe_done, outcome == ONCE_UNKNOWN);
}

static inline void has_result(const once_item *item, const char *result)
{
    char text[1000];
    (void)snprintf(text, sizeof text, "%.*s", (int)item->result.len, item->result.data ? item->result.data : "");
    assert_string_equal(text, result);
}

static inline void has(const char *request, const char *part)
{
    if (!strstr(request, part)) fail_msg("no '%s' in:\n%s", part, request);
}

static inline void has_not(const char *request, const char *part)
{
    if (strstr(request, part)) fail_msg("'%s' in:\n%s", part, request);
}

static inline const char *answer(once_arena *arena, const char *head, const char *body)
{
    char *text = once_arena_alloc(arena, strlen(head) + strlen(body) + 100);
    (void)snprintf(text, strlen(head) + strlen(body) + 100, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", head,
                   strlen(body), body);
    return text;
}

/* Answers one call on a connection of its own, and closes that. */
static inline void answer_one(fixture *f, int listener)
{
    char request[1000];
    once_item *none;
    (void)start(f, 0, "{\"id\":1}");
    int fd = -1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0)
        assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
    while (read(fd, request, sizeof request) <= 0) assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_int_equal(write(fd, ok, sizeof ok - 1), sizeof ok - 1);
    close(fd);
    says(ended(f), ONCE_DONE, "");
}

static inline int listen_at(struct sockaddr_in *address, int backlog)
{
    const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    socklen_t len = sizeof *address;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, &len), 0);
    assert_int_equal(listen(fd, backlog), 0);
    return fd;
}

/* --- commands for tokens --- */

/* A command that prints the first line of a file, and notes that it was run. */
typedef struct token_command {
    char folder[64], script[100], token[100], runs[100], http[400];
} token_command;

static inline void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static inline size_t times_run(const token_command *c)
{
    FILE *file = fopen(c->runs, "r");
    size_t n = 0;
    for (int byte; file && (byte = fgetc(file)) != EOF;) n += byte == '\n';
    if (file) fclose(file);
    return n;
}

static inline void make_command(token_command *c, const char *script, const char *more)
{
    char text[400];
    snprintf(c->folder, sizeof c->folder, "/tmp/once-http-XXXXXX");
    assert_non_null(mkdtemp(c->folder));
    snprintf(c->script, sizeof c->script, "%s/token", c->folder);
    snprintf(c->token, sizeof c->token, "%s/is", c->folder);
    snprintf(c->runs, sizeof c->runs, "%s/runs", c->folder);
    snprintf(text, sizeof text, "#!/bin/sh\ncd %s || exit 1\necho >>runs\n%s\n", c->folder, script);
    write_file(c->script, text);
    assert_int_equal(chmod(c->script, 0700), 0);
    snprintf(c->http, sizeof c->http, "{post: \"http://@/\", bearer: {exec: [%s]}%s}", c->script, more);
}

static inline void remove_command(const token_command *c)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", c->folder);
    assert_int_equal(system(command), 0);
}

#endif
