/* External effects with real processes and threads: what a command gets, what its end means, and that nothing of it
 * outlives its message (f60, f61, f62, f80). Runs under tsan: callbacks have threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/call.h"
#include "effect/callback.h"
#include "effect/effect.h"
#include "effect/exec.h"
#include "effect/runner.h"
#include "effect/process.h"
#include "effect/sql.h"

#define PATIENCE_MS 30000 /* for what must happen at once; reached only when something is wrong */
#define MAX_ARGS 16
#define MAX_ITEMS 8

/* One pipeline with one handler, and the messages that a test gives it. */
typedef struct fixture {
    char folder[64];
    once_arena arena;
    once_spec spec;
    once_handler_spec handler;
    once_exec_spec exec;
    const once_template *argv[MAX_ARGS];
    once_runner_callback callback;
    once_runner *runner;
    once_item items[MAX_ITEMS];
    once_json body;
    once_error err;
} fixture;

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static const once_callback_spec charge_card = {.name = ONCE_BYTES("charge_card")};

static void effect_is(fixture *f, const once_effect_ops *effect, const void *own)
{
    f->handler.effect = effect;
    f->handler.bits = effect->bits;
    f->handler.own = own;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->folder, sizeof f->folder, "/tmp/once-runner-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    f->handler = (once_handler_spec){.type = bytes("charge"),
                                     .operation = bytes("charge"),
                                     .timeout_ms = PATIENCE_MS,
                                     .slots = MAX_ITEMS,
                                     .line = 7};
    f->spec = (once_spec){.file = bytes("p.yaml"),
                          .consumer = bytes("payments"),
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .result_max = 65536};
    f->exec.command.argv = f->argv;
    once_json_init(&f->body);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char command[100];
    once_runner_close(f->runner);
    for (int i = 0; i < MAX_ITEMS; i++) free(f->items[i].output);
    once_json_release(&f->body);
    once_arena_release(&f->arena);
    snprintf(command, sizeof command, "rm -rf %s", f->folder);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static char *in_folder(fixture *f, const char *name)
{
    char *path = once_arena_alloc(&f->arena, 200);
    snprintf(path, 200, "%s/%s", f->folder, name);
    return path;
}

static char *file_with(fixture *f, const char *name, const char *text, mode_t mode)
{
    char *path = in_folder(f, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void command(fixture *f, const char *const *argv)
{
    size_t n = 0;
    for (; argv[n]; n++)
        assert_int_equal(once_template_parse(&f->arena, bytes(argv[n]), &f->argv[n], &f->err), ONCE_OK);
    effect_is(f, &once__effect_exec, &f->exec);
    f->exec.command.n = n;
}

static int try_open(fixture *f)
{
    const once_runner_options options = {
        .spec = &f->spec, .env = once_env_real(), .callbacks = &f->callback, .n_callbacks = f->callback.name ? 1 : 0};
    return once_runner_open(&options, &f->runner, &f->err);
}

static void opened(fixture *f)
{
    const int rc = try_open(f);
    if (rc != ONCE_OK) print_error("%s\n", f->err.text);
    assert_int_equal(rc, ONCE_OK);
}

#define OPEN(f, ...)                                                                                                   \
    do {                                                                                                               \
        command(f, (const char *const[]){__VA_ARGS__, NULL});                                                          \
        opened(f);                                                                                                     \
    } while (0)

#define SHELL(f, script) OPEN(f, "/bin/sh", "-c", script)

static int prepare(fixture *f, once_item *item, once_bytes body)
{
    void *output = item->output;
    *item = (once_item){.handler = &f->handler, .output = output};
    item->message = (once_message){
        .body = body, .type = bytes("charge"), .at = {bytes("in.ndjson"), bytes("17")}, .sent_ms = 1700000000000};
    item->scope =
        (once_scope){.tenant = bytes("acme"), .consumer = f->spec.consumer, .operation = f->handler.operation};
    item->request =
        (once_request){.scope = &item->scope, .key = bytes("p-1"), .id = {0x0123456789abcdef, 0xfedcba9876543210}};
    item->decision =
        (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 3, .failures = 2, .unreported = true, .maybe_done = true};
    item->outcome = ONCE_OUTCOMES;
    const bool json = once_json_parse(&f->body, body, NULL, NULL) == ONCE_OK;
    const once_parsed from = {.message = &item->message, .body = json ? &f->body : NULL};
    return once_effect_prepare(item->handler, &from, &f->arena, &item->input, &f->err);
}

/* Once more, after the test changed the message. */
static int prepare_again(fixture *f, once_item *item, const once_json *headers)
{
    const once_parsed from = {.message = &item->message, .body = &f->body, .headers = headers};
    return once_effect_prepare(item->handler, &from, &f->arena, &item->input, &f->err);
}

/* A question about the message, whose outcome is unknown. */
static once_item *start_question(fixture *f, int i, once_bytes key)
{
    once_item *item = &f->items[i];
    assert_int_equal(prepare(f, item, bytes("{}")), ONCE_OK);
    item->decision = (once_decision){.answer = ONCE_ANSWER_UNKNOWN, .attempt = 1, .asks = true};
    item->request.key = key;
    once_runner_start(f->runner, &item, 1);
    return item;
}

static once_item *start(fixture *f, int i, once_bytes body)
{
    once_item *item = &f->items[i];
    assert_int_equal(prepare(f, item, body), ONCE_OK);
    once_runner_start(f->runner, &item, 1);
    return item;
}

/* The next that ends. */
static once_item *ended(fixture *f)
{
    once_item *item = NULL;
    assert_int_equal(once_runner_wait(f->runner, PATIENCE_MS, &item, 1), 1);
    assert_non_null(item);
    return item;
}

static once_item *run(fixture *f, once_bytes body)
{
    once_item *item = start(f, 0, body);
    assert_ptr_equal(ended(f), item);
    return item;
}

static void expect(const once_item *item, once_outcome outcome, const char *result, const char *failure)
{
    if (item->outcome != outcome)
        print_error("outcome %d, failure %.*s\n", item->outcome, (int)item->failure.len, item->failure.data);
    assert_int_equal(item->outcome, outcome);
    assert_int_equal(item->result.len, strlen(result));
    if (result[0]) assert_memory_equal(item->result.data, result, item->result.len);
    if (item->failure.len != strlen(failure))
        print_error("failure: %.*s\n", (int)item->failure.len, item->failure.data);
    assert_int_equal(item->failure.len, strlen(failure));
    if (failure[0]) assert_memory_equal(item->failure.data, failure, item->failure.len);
    assert_int_equal(item->maybe_done, outcome == ONCE_UNKNOWN);
    assert_int_equal(item->run_failure, ONCE_OK);
}

static char *read_text(const char *path)
{
    static char text[65536];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return text;
}

/* Waits until the file has a whole line with a number. */
static pid_t number_in(const char *path)
{
    for (int i = 0; i < PATIENCE_MS; i++) {
        const char *text = read_text(path);
        if (text && strchr(text, '\n')) return (pid_t)strtol(text, NULL, 10);
        usleep(1000);
    }
    fail_msg("nobody wrote %s", path);
    return 0;
}

static bool is_running(pid_t pid)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const char *text = read_text(path);
    const char *state = text ? strrchr(text, ')') : NULL;
    return state && state[2] != 'Z' && state[2] != 'X'; /* an orphan may wait for whoever collects orphans here */
}

static void dies(pid_t pid)
{
    assert_true(pid > 1);
    for (int i = 0; i < PATIENCE_MS && is_running(pid); i++) usleep(1000);
    assert_false(is_running(pid));
}

static int64_t now_ms(void) { return once_env_mono_ns(once_env_real()) / 1000000; }

/* ---- what goes in and out ---- */

static void the_body_goes_in_and_the_result_comes_out(void **state)
{
    fixture *f = *state;
    const size_t len = 3u << 20;
    f->spec.result_max = len;
    OPEN(f, "cat");
    char *body = malloc(len);
    assert_non_null(body);
    uint32_t seed = 1;
    for (size_t i = 0; i < len; i++) body[i] = (char)((seed = seed * 1664525 + 1013904223) >> 24);
    const once_item *item = run(f, (once_bytes){body, len});
    assert_int_equal(item->outcome, ONCE_DONE);
    assert_true(item->started);
    assert_int_equal(item->delay_ms, -1);
    assert_int_equal(item->result.len, len);
    assert_memory_equal(item->result.data, body, len);
    free(body);
    expect(run(f, bytes("")), ONCE_DONE, "", "");
    expect(run(f, bytes("{\"a\":1}")), ONCE_DONE, "{\"a\":1}", "");
}

static void ends_with(fixture *f, int status, once_outcome outcome)
{
    char body[20], reason[60];
    snprintf(body, sizeof body, "%d\n", status);
    snprintf(reason, sizeof reason, "exit status %d: card declined", status);
    expect(run(f, bytes(body)), outcome, outcome <= ONCE_STALE ? "result\n" : "", reason);
    assert_true(f->items[0].started);
    assert_int_equal(f->items[0].maybe_done, outcome == ONCE_UNKNOWN);
}

#define ENDS_AS_TOLD "read status; echo result; echo first >&2; echo 'card declined' >&2; exit $status"

/* Those of the table, and every other: only the command knows what it did before it ended so. */
static void f81_an_exit_status_that_nobody_listed_is_unknown(void **state)
{
    fixture *f = *state;
    static const once_outcome listed[256] = {[64] = ONCE_REJECTED, [65] = ONCE_DEAD,    [66] = ONCE_ALREADY,
                                             [67] = ONCE_STALE,    [69] = ONCE_RELEASE, [75] = ONCE_RETRY};
    SHELL(f, ENDS_AS_TOLD);
    for (int status = 1; status < 256; status++)
        ends_with(f, status, listed[status] == ONCE_DONE ? ONCE_UNKNOWN : listed[status]);
    expect(run(f, bytes("0\n")), ONCE_DONE, "result\n", "");
}

static void f81_exit_codes_can_be_changed(void **state)
{
    fixture *f = *state;
    once_outcome exits[256];
    for (int code = 0; code < 256; code++) exits[code] = once_exec_exit_usual(code);
    exits[1] = ONCE_RETRY;
    exits[7] = ONCE_RELEASE;
    exits[75] = ONCE_UNKNOWN;
    exits[255] = ONCE_DONE;
    f->exec.exits = exits;
    SHELL(f, ENDS_AS_TOLD);
    ends_with(f, 1, ONCE_RETRY);
    ends_with(f, 7, ONCE_RELEASE);
    ends_with(f, 75, ONCE_UNKNOWN);
    ends_with(f, 2, ONCE_UNKNOWN);
    ends_with(f, 64, ONCE_REJECTED);
    expect(run(f, bytes("255\n")), ONCE_DONE, "result\n", "");
    expect(run(f, bytes("0\n")), ONCE_DONE, "result\n", "");
}

static void a_reason_is_one_clean_line(void **state)
{
    fixture *f = *state;
    SHELL(f, "printf 'one\\ntwo\\033[1m\\tthree\\n\\n' >&2; exit 1");
    expect(run(f, bytes("")), ONCE_UNKNOWN, "", "exit status 1: two?[1m?three");
}

static void a_command_without_words_has_a_short_reason(void **state)
{
    fixture *f = *state;
    SHELL(f, "exit 3");
    expect(run(f, bytes("")), ONCE_UNKNOWN, "", "exit status 3");
}

static void many_run_at_a_time(void **state)
{
    fixture *f = *state;
    char *fifo = in_folder(f, "fifo"), script[300];
    assert_int_equal(mkfifo(fifo, 0600), 0);
    snprintf(script, sizeof script,
             "cat >/dev/null; if [ $ONCE_KEY = p-0 ]; then echo go >%s; else cat %s >/dev/null; fi", fifo, fifo);
    SHELL(f, script);
    once_item *both[2] = {&f->items[0], &f->items[1]}; /* each can end only while the other runs */
    assert_int_equal(prepare(f, both[0], bytes("a")), ONCE_OK);
    assert_int_equal(prepare(f, both[1], bytes("b")), ONCE_OK);
    both[0]->request.key = bytes("p-0");
    once_runner_start(f->runner, both, 2);
    const once_item *first = ended(f), *second = ended(f);
    assert_ptr_not_equal(first, second);
    expect(first, ONCE_DONE, "", "");
    expect(second, ONCE_DONE, "", "");
}

/* With the ordinary disposition of SIGPIPE, a write to a command that does not read would kill this test. */
static void nobody_is_obliged_to_read(void **state)
{
    fixture *f = *state;
    struct sigaction pipe_action;
    static char large[1 << 20];
    sigset_t pending;
    memset(large, 'x', sizeof large);
    sigaction(SIGPIPE, NULL, &pipe_action);
    assert_ptr_equal(pipe_action.sa_handler, SIG_DFL);
    SHELL(f, "exec <&-; sleep 0.05; echo ok");
    expect(run(f, (once_bytes){large, sizeof large}), ONCE_DONE, "ok\n", "");
    once_runner_close(f->runner);
    OPEN(f, "true");
    for (int i = 0; i < 20; i++) expect(run(f, (once_bytes){large, sizeof large}), ONCE_DONE, "", "");
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
}

static void a_write_to_nobody_leaves_the_signals_as_they_were(void **state)
{
    (void)state;
    int ends[2];
    sigset_t pipe_signal, before, pending;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    assert_int_equal(once_process_write(ends[1], "x", 1), -1);
    assert_int_equal(errno, EPIPE);
    /* one that was pending before us stays */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    assert_int_equal(once_process_write(ends[1], "x", 1), -1);
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGPIPE));
    pthread_kill(pthread_self(), SIGPIPE);
    assert_int_equal(once_process_write(ends[1], "x", 1), -1);
    sigpending(&pending);
    assert_true(sigismember(&pending, SIGPIPE));
    int got;
    sigwait(&pipe_signal, &got);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
}

/* ---- environment and arguments ---- */

static int compare_lines(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static char *sorted(fixture *f, once_bytes text)
{
    char *lines[64], *out = once_arena_zero(&f->arena, text.len + 2), *copy = once_arena_zero(&f->arena, text.len + 1);
    size_t n = 0, len = 0;
    memcpy(copy, text.data, text.len);
    for (char *at = copy, *line; (line = strsep(&at, "\n")) && n < 64;)
        if (*line) lines[n++] = line;
    qsort(lines, n, sizeof *lines, compare_lines);
    for (size_t i = 0; i < n; i++) len += (size_t)sprintf(out + len, "%s\n", lines[i]);
    return out;
}

static void the_environment_is_what_was_promised(void **state)
{
    fixture *f = *state;
    char reference[100];
    snprintf(reference, sizeof reference, "file:%s", file_with(f, "secret", "from a file\n", 0600));
    const once_written variables[] = {
        {bytes("PLAIN"), bytes("a b=c"), 11},
        {bytes("FROM_ENV"), bytes("env:ONCE_TEST_SECRET"), 12},
        {bytes("FROM_FILE"), bytes(reference), 13},
        {bytes("LANG"), bytes("C"), 14},
    };
    setenv("ONCE_TEST_SECRET", "from the environment", 1);
    f->exec.env = variables;
    f->exec.n_env = 4;
    OPEN(f, "env");
    setenv("ONCE_TEST_SECRET", "changed too late", 1);
    const once_item *item = run(f, bytes(""));
    assert_int_equal(item->outcome, ONCE_DONE);
    assert_string_equal(sorted(f, item->result), "FROM_ENV=from the environment\n"
                                                 "FROM_FILE=from a file\n"
                                                 "LANG=C\n"
                                                 "ONCE_ATTEMPT=3\n"
                                                 "ONCE_CONSUMER=payments\n"
                                                 "ONCE_COORDINATES=in.ndjson:17\n"
                                                 "ONCE_FAILURES=2\n"
                                                 "ONCE_IDEMPOTENCY_KEY=54d1735943fd61016dc15568d93ca037\n"
                                                 "ONCE_KEY=p-1\n"
                                                 "ONCE_MAYBE_DONE=1\n"
                                                 "ONCE_OPERATION=charge\n"
                                                 "ONCE_SENT_MS=1700000000000\n"
                                                 "ONCE_TENANT=acme\n"
                                                 "ONCE_TOMBSTONE=0\n"
                                                 "ONCE_TYPE=charge\n"
                                                 "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                                                 "PLAIN=a b=c\n");
    unsetenv("ONCE_TEST_SECRET");

    assert_int_equal(prepare(f, &f->items[0], bytes("")), ONCE_OK); /* what is not known is empty */
    f->items[0].message.sent_ms = ONCE_NO_TIME;
    f->items[0].scope.tenant = (once_bytes){0};
    f->items[0].decision = (once_decision){.attempt = 1};
    once_runner_start(f->runner, (once_item *[]){&f->items[0]}, 1);
    const char *text = sorted(f, ended(f)->result);
    assert_non_null(strstr(text, "ONCE_SENT_MS=\n"));
    assert_non_null(strstr(text, "ONCE_TENANT=\n"));
    assert_non_null(strstr(text, "ONCE_MAYBE_DONE=0\n"));
    assert_non_null(strstr(text, "ONCE_FAILURES=0\n"));
}

static void refused_variable(fixture *f, const char *name, const char *value, const char *expected)
{
    const once_written variable = {bytes(name), bytes(value), 12};
    f->exec.env = &variable;
    f->exec.n_env = 1;
    assert_int_equal(try_open(f), ONCE_E_CONFIG);
    assert_string_equal(f->err.text, expected);
    assert_null(f->runner);
}

static void what_is_missing_is_found_at_the_start(void **state)
{
    fixture *f = *state;
    char expected[200];
    command(f, (const char *const[]){"true", NULL});
    unsetenv("ONCE_TEST_NONE");
    refused_variable(f, "TOKEN", "env:ONCE_TEST_NONE",
                     "p.yaml:12: variable 'ONCE_TEST_NONE' is not set; 'TOKEN' is read from it");
    refused_variable(f, "TOKEN", "file:/nowhere/token",
                     "p.yaml:12: cannot read file '/nowhere/token' for 'TOKEN': No such file or directory");
    refused_variable(
        f, "ONCE_KEY", "x",
        "p.yaml:12: variable 'ONCE_KEY': once sets the variables that begin with ONCE_; choose another name");
    refused_variable(f, "A=B", "s3cret", "p.yaml:12: the name of a variable cannot be empty nor have '=' or NUL in it");
    const once_written nul = {bytes("TOKEN"), {"s3cret\0x", 8}, 12};
    f->exec.env = &nul;
    assert_int_equal(try_open(f), ONCE_E_CONFIG);
    assert_string_equal(
        f->err.text,
        "p.yaml:12: the value of 'TOKEN' has a NUL byte or is longer than 128 KiB"); /* and not the value */
    f->exec.n_env = 0;

    command(f, (const char *const[]){"no-such-command", NULL});
    assert_int_equal(try_open(f), ONCE_E_CONFIG);
    assert_string_equal(
        f->err.text,
        "p.yaml:7: command 'no-such-command' is not in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; "
        "install it, or write its path");
    const char *plain = file_with(f, "not-executable", "#!/bin/sh\n", 0644);
    command(f, (const char *const[]){plain, NULL});
    assert_int_equal(try_open(f), ONCE_E_CONFIG);
    snprintf(expected, sizeof expected, "p.yaml:7: cannot run command '%s': Permission denied", plain);
    assert_string_equal(f->err.text, expected);
    command(f, (const char *const[]){f->folder, NULL});
    assert_int_equal(try_open(f), ONCE_E_CONFIG);

    effect_is(f, &once__effect_callback, &charge_card);
    assert_int_equal(try_open(f), ONCE_E_CONFIG);
    assert_string_equal(
        f->err.text,
        "p.yaml:7: callback 'charge_card' is not registered; run it from a program that calls once_pipeline_callback");
    assert_true(once_runner_needed(&f->spec));
    effect_is(f, &once__effect_sql, &(once_sql_spec){0});
    assert_false(once_runner_needed(&f->spec));
}

static void arguments_are_never_read_by_a_shell(void **state)
{
    fixture *f = *state;
    OPEN(f, "printf", "%s|", "${/a}", "x=${/b}:${/a}", "$${/a}", "100%");
    expect(run(f, bytes("{\"a\":\"$(id); `id` \\\"'*\",\"b\":\"%3A\"}")), ONCE_DONE,
           "$(id); `id` \"'*|x=%3A:$(id); `id` \"'*|${/a}|100%|", "");
}

static void headers_can_be_arguments(void **state)
{
    fixture *f = *state;
    OPEN(f, "echo", "${header:region}");
    once_item *item = &f->items[0];
    assert_int_equal(prepare(f, item, bytes("{}")), ONCE_E_MESSAGE);
    assert_string_equal(f->err.text, "missing header 'region'");
    once_json headers;
    once_json_init(&headers);
    assert_int_equal(once_json_parse(&headers, bytes("{\"region\":\"e\\u0075\"}"), NULL, NULL), ONCE_OK);
    assert_int_equal(prepare_again(f, item, &headers), ONCE_OK);
    once_json_release(&headers);
    once_runner_start(f->runner, &item, 1);
    expect(ended(f), ONCE_DONE, "eu\n", "");
}

static void no_value_becomes_an_option(void **state)
{
    fixture *f = *state;
    static const char body[] = "{\"a\":\"-rf\",\"e\":\"\",\"n\":-1,\"z\":\"a\\u0000b\"}";
    static const struct {
        const char *argv[4];
        const char *reason; /* NULL: it is fine */
    } table[] = {
        {{"echo", "${/a}"}, "argument '${/a}' begins with '-' and would be taken for an option; put \"--\" before it"},
        {{"echo", "${/n}"}, "argument '${/n}' begins with '-' and would be taken for an option; put \"--\" before it"},
        {{"echo", "${/e}-${/e}"},
         "argument '${/e}-${/e}' begins with '-' and would be taken for an option; put \"--\" before it"},
        {{"echo", "${/a}", "--"},
         "argument '${/a}' begins with '-' and would be taken for an option; put \"--\" before it"},
        {{"echo", "--", "${/a}"}, NULL},
        {{"echo", "-${/a}"}, NULL},
        {{"echo", "--id=${/a}"}, NULL},
        {{"echo", "${/z}"}, "argument '${/z}' has a NUL byte"},
        {{"echo", "${/none}"}, "missing field '/none'"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        command(f, table[i].argv);
        assert_int_equal(prepare(f, &f->items[0], bytes(body)), table[i].reason ? ONCE_E_MESSAGE : ONCE_OK);
        if (table[i].reason) assert_string_equal(f->err.text, table[i].reason);
    }
    /* 128 KiB with its NUL is the kernel's limit */
    char *large = once_arena_alloc(&f->arena, (128 << 10) + 9);
    memset(large, 'x', (128 << 10) + 9);
    memcpy(large, "{\"a\":\"", 6);
    command(f, (const char *const[]){"echo", "${/a}", NULL});
    memcpy(large + 6 + (128 << 10), "\"}", 3);
    assert_int_equal(prepare(f, &f->items[0], bytes(large)), ONCE_E_MESSAGE);
    assert_string_equal(f->err.text, "argument '${/a}' is longer than 128 KiB");
    memcpy(large + 6 + (128 << 10) - 1, "\"}", 3);
    opened(f);
    const once_item *item = run(f, bytes(large));
    assert_int_equal(item->outcome, ONCE_DONE);
}

static void arguments_too_long_together_are_the_messages_fault(void **state)
{
    fixture *f = *state;
    char *large = once_arena_alloc(&f->arena, 120000 + 9);
    memset(large, 'x', 120000 + 9);
    memcpy(large, "{\"a\":\"", 6);
    memcpy(large + 120000, "\"}", 3);
    const char *argv[MAX_ARGS + 1] = {"/bin/true"};
    for (int i = 1; i < MAX_ARGS; i++) argv[i] = "${/a}";
    struct rlimit before, small;
    getrlimit(RLIMIT_STACK, &before);
    small = before;
    small.rlim_cur = 1 << 20; /* arguments and environment get a quarter of it */
    command(f, argv);
    opened(f);
    assert_int_equal(setrlimit(RLIMIT_STACK, &small), 0);
    const once_item *item = run(f, bytes(large));
    setrlimit(RLIMIT_STACK, &before);
    expect(item, ONCE_DEAD, "", "cannot run '/bin/true': Argument list too long");
    assert_false(item->started);
}

static void a_nul_byte_never_gets_into_the_environment(void **state)
{
    fixture *f = *state;
    OPEN(f, "true");
    once_item *item = &f->items[0];
    assert_int_equal(prepare(f, item, bytes("{}")), ONCE_OK);
    item->message.type = (once_bytes){"a\0b", 3};
    assert_int_equal(prepare_again(f, item, NULL), ONCE_E_MESSAGE);
    assert_string_equal(f->err.text, "the type has a NUL byte, which no variable of a command can carry");
    item->message.type = bytes("a");
    item->message.at.point = (once_bytes){"\0", 1};
    assert_int_equal(prepare_again(f, item, NULL), ONCE_E_MESSAGE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(prepare(f, item, bytes("{}")), ONCE_OK);
        *(i ? &item->request.key : &item->scope.tenant) = (once_bytes){"k\0", 2};
        once_runner_start(f->runner, &item, 1);
        expect(ended(f), ONCE_DEAD, "",
               "the key or the tenant has a NUL byte, which no variable of a command can carry");
        assert_false(item->started);
    }
}

/* ---- what a command inherits ---- */

static void f62_a_child_has_no_descriptor_but_its_own(void **state)
{
    fixture *f = *state;
    OPEN(f, "ls", "/proc/self/fd");
    const int low = open("/dev/null", O_RDONLY), high = fcntl(low, F_DUPFD, 500);
    assert_true(low > 2 && high >= 500);
    expect(run(f, bytes("")), ONCE_DONE, "0\n1\n2\n3\n", ""); /* 3: the folder that ls looks at */
    close(low);
    close(high);
}

static void a_child_begins_with_default_signals_and_its_own_group(void **state)
{
    fixture *f = *state;
    sigset_t some, before;
    OPEN(f, "cat", "/proc/self/status", "/proc/self/stat"); /* not a shell: that clears its mask itself */
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigaddset(&some, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &some, &before);
    void (*hup)(int) = signal(SIGHUP, SIG_IGN);
    const once_item *item = run(f, bytes(""));
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, &before, &now);
    struct sigaction ours;
    sigaction(SIGHUP, NULL, &ours);
    signal(SIGHUP, hup);
    assert_ptr_equal(ours.sa_handler, SIG_IGN); /* and nothing of this process was changed */
    assert_true(sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM) && !sigismember(&now, SIGINT));
    assert_int_equal(item->outcome, ONCE_DONE);
    char text[4096] = "";
    assert_true(item->result.len < sizeof text);
    memcpy(text, item->result.data, item->result.len);
    assert_non_null(strstr(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"));
    int pid = 0, group = 0;
    char *stat = strstr(text, " (cat) ");
    assert_non_null(stat);
    assert_int_equal(sscanf(stat, " (cat) %*c %*d %d", &group), 1);
    assert_int_equal(sscanf(strstr(text, "\nPid:"), "\nPid: %d", &pid), 1);
    assert_true(pid > 1);
    assert_int_equal(group, pid);
}

/* A program whose standard descriptors are closed: pipes must not take their place. */
static void closed_standard_descriptors_do_no_harm(void **state)
{
    fixture *f = *state;
    SHELL(f, "cat; echo reason >&2; ls /proc/self/fd | wc -l");
    const int copies[3] = {dup(0), dup(1), dup(2)};
    for (int i = 0; i < 3; i++) close(i);
    once_item *item = start(f, 0, bytes("body "));
    bool taken = false;
    for (int i = 0; i < 3; i++) taken |= fcntl(i, F_GETFD) >= 0;
    once_item *back = NULL;
    const size_t n = once_runner_wait(f->runner, PATIENCE_MS, &back, 1);
    for (int i = 0; i < 3; i++) {
        dup2(copies[i], i);
        close(copies[i]);
    }
    assert_int_equal(n, 1);
    assert_false(taken);
    expect(item, ONCE_DONE, "body 4\n", "");
}

static void a_child_dies_with_us(void **state)
{
    fixture *f = *state;
    char script[200];
    const char *note = in_folder(f, "pid");
    snprintf(script, sizeof script, "echo $$ >%s; exec sleep 1000", note);
    const pid_t us = fork();
    if (us == 0) {
        SHELL(f, script);
        start(f, 0, bytes(""));
        for (;;) pause();
    }
    assert_true(us > 0);
    const pid_t child = number_in(note);
    assert_true(is_running(child));
    kill(us, SIGKILL);
    assert_int_equal(waitpid(us, NULL, 0), us);
    dies(child);
}

/* ---- what goes wrong ---- */

static void f60_a_hanging_command_is_killed_with_its_children(void **state)
{
    fixture *f = *state;
    char script[300];
    const char *note = in_folder(f, "pid");
    snprintf(script, sizeof script,
             "trap '' TERM INT; sleep 1000 & echo $! >%s.new; mv %s.new %s; echo waiting >&2; wait; sleep 1000", note,
             note, note);
    f->handler.timeout_ms = 400;
    SHELL(f, script);
    const int64_t began_ms = now_ms();
    once_item *item = start(f, 0, bytes(""));
    const pid_t grandchild = number_in(note);
    assert_true(is_running(grandchild));
    assert_ptr_equal(ended(f), item);
    expect(item, ONCE_UNKNOWN, "", "killed at its deadline of 400ms: waiting");
    assert_true(item->started);
    assert_in_range(now_ms() - began_ms, 400, PATIENCE_MS - 1);
    dies(grandchild);
}

static void f60_the_end_of_the_command_decides_not_that_of_its_children(void **state)
{
    fixture *f = *state;
    SHELL(f, "sleep 1000 & echo $!"); /* it holds stdout and stderr open */
    const int64_t began_ms = now_ms();
    const once_item *item = run(f, bytes(""));
    assert_true(now_ms() - began_ms < PATIENCE_MS / 2);
    assert_int_equal(item->outcome, ONCE_DONE);
    assert_true(item->result.len > 1);
    char text[20] = "";
    memcpy(text, item->result.data, item->result.len < 19 ? item->result.len : 19);
    dies((pid_t)strtol(text, NULL, 10));
}

static void f61_a_flood_is_thrown_away(void **state)
{
    fixture *f = *state;
    int ends[2];
    char text[1000] = "";
    assert_int_equal(pipe(ends), 0);
    assert_true(once_log_open_fd(ends[1], ONCE_LOG_LOGFMT, ONCE_LOG_WARN));
    f->spec.result_max = 1000;
    SHELL(f, "yes | head -c 20000000; yes error | head -n 3000000 >&2; echo the end >&2; exit $(cat)");
    expect(run(f, bytes("0")), ONCE_DONE, "", "result longer than 1000 bytes; not kept");
    expect(run(f, bytes("64")), ONCE_REJECTED, "", "exit status 64: the end");
    expect(run(f, bytes("75")), ONCE_RETRY, "", "exit status 75: the end");
    once_log_close();
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    assert_non_null(strstr(text, "level=warn event=result_too_long msg=\"p.yaml:7: result longer than 1000 bytes; not "
                                 "kept; result_max allows more\""));
    once_runner_close(f->runner);
    SHELL(f, "yes | head -c 1000"); /* exactly as long as allowed */
    assert_int_equal(run(f, bytes(""))->result.len, 1000);
}

static void f61_floods_without_end_do_not_stop_others(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 700;
    f->spec.result_max = 1000;
    SHELL(f, "case $(cat) in flood) yes & yes error >&2 & wait;; leave) yes & exit 0;; *) echo fine;; esac");
    for (int i = 0; i < 3; i++) start(f, i, bytes("flood"));
    start(f, 3, bytes("leave")); /* goes, and its child floods on */
    start(f, 4, bytes("work"));
    for (int i = 0; i < 5; i++) {
        const once_item *item = ended(f);
        if (item == &f->items[4]) expect(item, ONCE_DONE, "fine\n", "");
        else if (item == &f->items[3]) assert_int_equal(item->outcome, ONCE_DONE);
        else expect(item, ONCE_UNKNOWN, "", "killed at its deadline of 700ms: error");
    }
}

static void f61_what_it_forked_ends_with_it(void **state)
{
    fixture *f = *state;
    SHELL(f, "for i in 1 2 3 4 5 6 7 8; do (sleep 1000; sleep 1000) & done; echo $$");
    const once_item *item = run(f, bytes(""));
    assert_int_equal(item->outcome, ONCE_DONE);
    char text[20] = "";
    memcpy(text, item->result.data, item->result.len < 19 ? item->result.len : 19);
    const pid_t group = (pid_t)strtol(text, NULL, 10);
    assert_true(group > 1);
    DIR *all = opendir("/proc");
    assert_non_null(all);
    for (struct dirent *entry; (entry = readdir(all));) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && getpgid(pid) == group) dies(pid);
    }
    closedir(all);
}

static void f80_a_command_that_kills_itself_is_unknown_each_time(void **state)
{
    fixture *f = *state;
    SHELL(f, "echo half >&1; kill -SEGV $$; sleep 1000");
    for (int i = 0; i < 5; i++) {
        expect(run(f, bytes("")), ONCE_UNKNOWN, "", "ended by signal 11");
        assert_true(f->items[0].started);
    }
}

static void killed_by_us_is_unknown(void **state)
{
    fixture *f = *state;
    char script[200];
    const char *note = in_folder(f, "pid");
    snprintf(script, sizeof script, "sleep 1000 & echo $! >%s.new; mv %s.new %s; wait", note, note, note);
    SHELL(f, script);
    once_item *item = start(f, 0, bytes(""));
    const pid_t grandchild = number_in(note);
    once_runner_kill(f->runner, &item, 1);
    assert_ptr_equal(ended(f), item);
    expect(item, ONCE_UNKNOWN, "", "killed before it had ended");
    dies(grandchild);
    once_runner_kill(f->runner, &item, 1); /* back already */
    assert_int_equal(once_runner_wait(f->runner, 0, &item, 1), 0);
}

static void what_runs_at_the_end_is_killed(void **state)
{
    fixture *f = *state;
    char script[200];
    const char *note = in_folder(f, "pid");
    snprintf(script, sizeof script, "echo $$ >%s.new; mv %s.new %s; exec sleep 1000", note, note, note);
    SHELL(f, script);
    start(f, 0, bytes(""));
    const pid_t child = number_in(note);
    once_runner_close(f->runner);
    f->runner = NULL;
    assert_int_equal(kill(child, 0), -1);
    assert_int_equal(errno, ESRCH);
}

/* It is told that the attempt may be done, also when no attempt before that one may be. What it cannot be asked about
 * because of the message is found out neither now nor later, and nothing is known of the attempt. */
static void a_lookup_is_asked_instead_of_the_command(void **state)
{
    static const char *const asks[] = {"/bin/sh", "-c", "test $ONCE_MAYBE_DONE = 1 && printf found"};
    fixture *f = *state;
    const once_template *argv[3];
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(once_template_parse(&f->arena, bytes(asks[i]), &argv[i], &f->err), ONCE_OK);
    f->exec.lookup.command = (once_exec_command){.argv = argv, .n = 3};
    command(f, (const char *const[]){"/bin/sh", "-c", "exit 7", NULL});
    f->handler.bits |= ONCE_EFFECT_ASKS;
    opened(f);
    once_item *item = start_question(f, 0, bytes("p-1"));
    assert_ptr_equal(ended(f), item);
    expect(item, ONCE_DONE, "found", "");
    assert_true(item->started);
    item = start_question(f, 0, (once_bytes){"p\0", 2});
    assert_ptr_equal(ended(f), item);
    assert_int_equal(item->outcome, ONCE_UNKNOWN);
    assert_true(item->started && item->maybe_done);
    assert_int_equal(item->run_failure, ONCE_OK);
}

static void a_command_that_is_gone_blames_nobody(void **state)
{
    fixture *f = *state;
    char expected[200];
    char *script = file_with(f, "work", "#!/bin/sh\necho ok\n", 0755);
    OPEN(f, script);
    expect(run(f, bytes("")), ONCE_DONE, "ok\n", "");
    for (int i = 0; i < 3; i++) {
        if (i == 0) chmod(script, 0644);
        if (i == 1) unlink(script);
        if (i == 2) file_with(f, "work", "#!/nowhere/sh\n", 0755);
        const once_item *item = run(f, bytes(""));
        assert_int_equal(item->outcome, ONCE_RELEASE);
        assert_false(item->started);
        assert_false(item->maybe_done);
        assert_int_equal(once_status_class(item->run_failure), ONCE_CLASS_PAUSE);
        snprintf(expected, sizeof expected, "cannot run '%s': %s", script,
                 i == 0 ? "Permission denied" : "No such file or directory");
        assert_int_equal(item->failure.len, strlen(expected));
        assert_memory_equal(item->failure.data, expected, item->failure.len);
    }
    file_with(f, "work", "#!/bin/sh\necho ok\n", 0755);
    expect(run(f, bytes("")), ONCE_DONE, "ok\n", "");
}

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void without_descriptors_it_is_tried_again(void **state)
{
    fixture *f = *state;
    OPEN(f, "echo", "ok");
    const int before = open_descriptors();
    struct rlimit limit, small;
    getrlimit(RLIMIT_NOFILE, &limit);
    int ends = 0;
    for (rlim_t left = 0; left < 12; left++) { /* at each place where one can be missing */
        rlim_t next = 0;
        for (rlim_t free_fds = 0; free_fds < left + 1; next++) free_fds += fcntl((int)next, F_GETFD) < 0;
        small = (struct rlimit){next - 1, limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        once_item *item = &f->items[0], *back = NULL;
        assert_int_equal(prepare(f, item, bytes("")), ONCE_OK);
        once_runner_start(f->runner, &item, 1);
        const size_t n = once_runner_wait(f->runner, PATIENCE_MS, &back, 1);
        setrlimit(RLIMIT_NOFILE, &limit);
        assert_int_equal(n, 1);
        if (item->outcome == ONCE_DONE) {
            ends++;
            continue;
        }
        assert_int_equal(item->outcome, ONCE_RELEASE);
        assert_int_equal(once_status_class(item->run_failure), ONCE_CLASS_RETRY);
        assert_false(item->started);
        assert_int_equal(open_descriptors(), before);
    }
    assert_in_range(ends, 1, 7);
    expect(run(f, bytes("")), ONCE_DONE, "ok\n", "");
    assert_int_equal(open_descriptors(), before);
}

/* A program may ignore SIGCHLD; the kernel then throws the status away. */
static void a_status_that_somebody_else_took_is_unknown(void **state)
{
    fixture *f = *state;
    OPEN(f, "true");
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    const once_item *item = run(f, bytes(""));
    signal(SIGCHLD, before);
    expect(item, ONCE_UNKNOWN, "", "its exit status was taken by another part of this program");
}

/* ---- the loop ---- */

static void *wake_soon(void *runner)
{
    usleep(20000);
    once_runner_wake(runner);
    return NULL;
}

static void waiting_ends_by_time_and_by_waking(void **state)
{
    fixture *f = *state;
    once_item *item;
    pthread_t thread;
    OPEN(f, "true");
    int64_t began_ms = now_ms();
    assert_int_equal(once_runner_wait(f->runner, 30, &item, 1), 0);
    assert_in_range(now_ms() - began_ms, 30, PATIENCE_MS);
    once_runner_wake(f->runner); /* before, and remembered */
    began_ms = now_ms();
    assert_int_equal(once_runner_wait(f->runner, ONCE_NEVER, &item, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, wake_soon, f->runner), 0);
    assert_int_equal(once_runner_wait(f->runner, ONCE_NEVER, &item, 1), 0);
    pthread_join(thread, NULL);
    assert_int_equal(once_runner_wait(f->runner, 0, &item, 1), 0);
}

static void failpoints_stand_before_and_after(void **state)
{
    fixture *f = *state;
    char why[100];
    OPEN(f, "echo", "ok");
    assert_true(once_failpoints_arm("effect_before:error", why, sizeof why));
    const once_item *item = run(f, bytes(""));
    assert_int_equal(item->outcome, ONCE_RELEASE);
    assert_int_equal(once_status_class(item->run_failure), ONCE_CLASS_RETRY);
    assert_false(item->started);
    assert_true(once_failpoints_arm("effect_after:error", why, sizeof why));
    expect(run(f, bytes("")), ONCE_UNKNOWN, "", "failpoint 'effect_after'");
    assert_true(once_failpoints_arm("", why, sizeof why));
    expect(run(f, bytes("")), ONCE_DONE, "ok\n", "");
}

/* ---- callbacks ---- */

typedef struct desk {                  /* what the callback does, and saw */
    atomic_int calls, inside, answers; /* answers: how many may go on */
    once_outcome outcome;
    bool until_fenced;
} desk;

static once_outcome at_desk(void *user, const once_call *call, once_reply *reply)
{
    desk *d = user;
    once_error err;
    atomic_fetch_add(&d->calls, 1);
    atomic_fetch_add(&d->inside, 1);
    assert_null(call->db);
    assert_string_equal(call->idempotency_key, "54d1735943fd61016dc15568d93ca037");
    assert_int_equal(call->attempt, 3);
    assert_int_equal(call->failures, 2);
    assert_true(call->maybe_done);
    assert_int_equal(call->scope->consumer.len, 8);
    assert_int_equal(call->delivery->size, sizeof(once_delivery));
    assert_memory_equal(call->delivery->key.data, "p-1", 3);
    assert_int_equal(call->delivery->point.len, 2);
    assert_int_equal(call->delivery->sent_ms, 1700000000000);
    if (d->until_fenced) {
        int rc;
        while ((rc = once_call_extend(call, 0, &err)) == ONCE_OK) usleep(1000);
        assert_int_equal(rc, ONCE_E_FENCED);
        once_reply_reason(reply, "told to stop");
    } else {
        const int rc = once_call_extend(call, 1000, &err);
        assert_true(rc == ONCE_OK || rc == ONCE_E_FENCED); /* it was killed just now */
        assert_int_equal(once_call_extend(call, -1, &err), ONCE_E_USAGE);
        while (atomic_load(&d->answers) <= 0) usleep(1000);
        atomic_fetch_sub(&d->answers, 1);
        assert_int_equal(once_reply_result(reply, call->delivery->body), ONCE_OK);
        if (d->outcome == ONCE_RETRY) {
            once_reply_reason(reply, "busy\n");
            once_reply_delay(reply, 1500);
        }
    }
    return d->outcome;
}

static void wait_inside(desk *d, int n)
{
    for (int i = 0; i < PATIENCE_MS && atomic_load(&d->inside) < n; i++) usleep(1000);
    assert_int_equal(atomic_load(&d->inside), n);
}

static void callback(fixture *f, desk *d)
{
    effect_is(f, &once__effect_callback, &charge_card);
    f->callback = (once_runner_callback){"charge_card", at_desk, d};
    opened(f);
}

static void a_callback_answers_for_itself(void **state)
{
    fixture *f = *state;
    desk d = {.answers = 100};
    callback(f, &d);
    const once_item *item = run(f, bytes("receipt"));
    expect(item, ONCE_DONE, "receipt", "");
    assert_true(item->started);
    assert_int_equal(item->delay_ms, -1);
    d.outcome = ONCE_RETRY;
    item = run(f, bytes(""));
    expect(item, ONCE_RETRY, "", "busy?");
    assert_int_equal(item->delay_ms, 1500);
    d.outcome = ONCE_RELEASE;
    item = run(f, bytes(""));
    expect(item, ONCE_RELEASE, "", "");
    assert_true(item->started);
    assert_int_equal(item->delay_ms, -1);
    d.outcome = ONCE_DEAD;
    expect(run(f, bytes("")), ONCE_DEAD, "", "the handler failed");
    d.outcome = ONCE_UNKNOWN;
    expect(run(f, bytes("")), ONCE_UNKNOWN, "", "the effect may have happened");
    d.outcome = (once_outcome)77;
    expect(run(f, bytes("")), ONCE_UNKNOWN, "", "the handler returned 77, which is not an outcome");
    assert_int_equal(d.calls, 6);
}

static void callbacks_run_beside_each_other_and_threads_are_used_again(void **state)
{
    fixture *f = *state;
    desk d = {0};
    callback(f, &d);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MAX_ITEMS; i++) start(f, i, bytes("x"));
        wait_inside(&d, (round + 1) * MAX_ITEMS); /* all at a time */
        atomic_fetch_add(&d.answers, MAX_ITEMS);
        for (int i = 0; i < MAX_ITEMS; i++) expect(ended(f), ONCE_DONE, "x", "");
    }
    DIR *tasks = opendir("/proc/self/task");
    int threads = -2; /* "." and ".." */
    while (readdir(tasks)) threads++;
    closedir(tasks);
    assert_in_range(threads, 1 + MAX_ITEMS, 2 + MAX_ITEMS); /* a sanitizer may have one */
}

/* The loop is told of several at a time, but at once when all that were queued have begun. */
static void an_outcome_does_not_wait_for_callbacks_that_take_long(void **state)
{
    fixture *f = *state;
    desk d = {.answers = 1};
    callback(f, &d);
    for (int i = 0; i < MAX_ITEMS; i++) start(f, i, bytes("x"));
    expect(ended(f), ONCE_DONE, "x", "");
    wait_inside(&d, MAX_ITEMS);
    for (int i = 1; i < MAX_ITEMS; i++) {
        atomic_fetch_add(&d.answers, 1);
        expect(ended(f), ONCE_DONE, "x", "");
    }
}

/* All items begin together. */
static void start_all(fixture *f)
{
    once_item *items[MAX_ITEMS];
    for (int i = 0; i < MAX_ITEMS; i++) {
        items[i] = &f->items[i];
        assert_int_equal(prepare(f, items[i], bytes("x")), ONCE_OK);
    }
    once_runner_start(f->runner, items, MAX_ITEMS);
}

/* After many that return at once, a thread takes several at a time. */
static void run_short_ones(fixture *f, desk *d)
{
    for (int round = 0; round < 50; round++) {
        atomic_store(&d->answers, MAX_ITEMS);
        start_all(f);
        for (int i = 0; i < MAX_ITEMS; i++) expect(ended(f), ONCE_DONE, "x", "");
    }
    assert_int_equal(atomic_load(&d->answers), 0);
    atomic_store(&d->inside, 0);
}

/* Those that one thread has taken do not wait behind one that takes long. */
static void callbacks_that_take_long_now_run_beside_each_other_as_well(void **state)
{
    fixture *f = *state;
    desk d = {0};
    callback(f, &d);
    for (int round = 0; round < 3; round++) {
        once_item *none;
        run_short_ones(f, &d);
        start_all(f);
        for (int i = 0; i < PATIENCE_MS && atomic_load(&d.inside) < MAX_ITEMS; i++)
            assert_int_equal(once_runner_wait(f->runner, 1, &none, 1), 0);
        assert_int_equal(atomic_load(&d.inside), MAX_ITEMS);
        atomic_fetch_add(&d.answers, MAX_ITEMS);
        for (int i = 0; i < MAX_ITEMS; i++) expect(ended(f), ONCE_DONE, "x", "");
    }
}

/* One that a thread has taken with others, and that has not begun, does not begin any more. */
static void a_callback_that_is_killed_before_it_begins_is_put_back(void **state)
{
    fixture *f = *state;
    desk d = {0};
    callback(f, &d);
    int put_back = 0;
    for (int round = 0; round < 10; round++) {
        run_short_ones(f, &d);
        const int calls = atomic_load(&d.calls);
        start_all(f);
        once_item *second = &f->items[1];
        while (atomic_load(&d.inside) < 1) usleep(100); /* the loop has not looked whether it takes long */
        once_runner_kill(f->runner, &second, 1);
        atomic_fetch_add(&d.answers, MAX_ITEMS);
        for (int i = 0; i < MAX_ITEMS; i++) {
            const once_item *item = ended(f);
            if (item->started) expect(item, ONCE_DONE, "x", "");
            else expect(item, ONCE_RELEASE, "", "");
            assert_true(item->started || item == second);
        }
        put_back += !second->started;
        assert_int_equal(atomic_load(&d.calls), calls + MAX_ITEMS - !second->started);
    }
    assert_in_range(put_back, 1, 10);
}

/* It has ended, and the next one of the same thread takes long. */
static void f60_an_outcome_does_not_wait_for_the_next_callback_of_its_thread(void **state)
{
    fixture *f = *state;
    desk d = {0};
    callback(f, &d);
    for (int round = 0; round < 10; round++) {
        once_item *back[MAX_ITEMS];
        run_short_ones(f, &d);
        atomic_store(&d.answers, 1); /* the first one returns at once, the others do not */
        start_all(f);
        size_t n = 0;
        for (int i = 0; i < 5000 && n == 0; i++) n = once_runner_wait(f->runner, 1, back, MAX_ITEMS);
        assert_int_equal(n, 1);
        atomic_fetch_add(&d.answers, MAX_ITEMS - 1);
        for (size_t i = n; i < MAX_ITEMS; i++) (void)ended(f);
    }
}

static void a_killed_callback_learns_it_when_it_asks(void **state)
{
    fixture *f = *state;
    desk d = {.until_fenced = true, .outcome = ONCE_DONE};
    callback(f, &d);
    once_item *item = start(f, 0, bytes(""));
    wait_inside(&d, 1);
    once_runner_kill(f->runner, &item, 1);
    assert_ptr_equal(ended(f), item);
    expect(item, ONCE_DONE, "", "told to stop"); /* what it says counts */
    once_runner_kill(f->runner, &item, 1);
    for (int i = 0; i < 50; i++) { /* killed at once: never called and put back, or called and told */
        const int calls = atomic_load(&d.calls);
        item = start(f, 0, bytes(""));
        once_runner_kill(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        if (item->started) expect(item, ONCE_DONE, "", "told to stop");
        else expect(item, ONCE_RELEASE, "", "");
        assert_int_equal(atomic_load(&d.calls), calls + item->started);
    }
    start(f, 0, bytes("")); /* and closing tells them, too, and waits for them */
    once_runner_close(f->runner);
    f->runner = NULL;
}

static void a_late_callback_is_logged_once_and_goes_on(void **state)
{
    fixture *f = *state;
    int ends[2];
    char text[1000] = "";
    once_item *item;
    desk d = {0};
    assert_int_equal(pipe(ends), 0);
    assert_true(once_log_open_fd(ends[1], ONCE_LOG_LOGFMT, ONCE_LOG_WARN));
    f->handler.timeout_ms = 20;
    callback(f, &d);
    start(f, 0, bytes("x"));
    assert_int_equal(once_runner_wait(f->runner, 100, &item, 1), 0);
    atomic_store(&d.answers, 1);
    expect(ended(f), ONCE_DONE, "x", "");
    once_log_close();
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    close(ends[0]);
    const char *line =
        "callback 'charge_card' runs longer than its timeout of 20ms; a thread cannot be killed, it goes on";
    const char *first = strstr(text, line);
    assert_non_null(first);
    assert_null(strstr(first + 1, line));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_body_goes_in_and_the_result_comes_out),
        TEST(f81_an_exit_status_that_nobody_listed_is_unknown),
        TEST(f81_exit_codes_can_be_changed),
        TEST(a_reason_is_one_clean_line),
        TEST(a_command_without_words_has_a_short_reason),
        TEST(many_run_at_a_time),
        TEST(nobody_is_obliged_to_read),
        TEST(a_write_to_nobody_leaves_the_signals_as_they_were),
        TEST(the_environment_is_what_was_promised),
        TEST(what_is_missing_is_found_at_the_start),
        TEST(arguments_are_never_read_by_a_shell),
        TEST(headers_can_be_arguments),
        TEST(no_value_becomes_an_option),
        TEST(arguments_too_long_together_are_the_messages_fault),
        TEST(a_nul_byte_never_gets_into_the_environment),
        TEST(f62_a_child_has_no_descriptor_but_its_own),
        TEST(a_child_begins_with_default_signals_and_its_own_group),
        TEST(closed_standard_descriptors_do_no_harm),
        TEST(a_child_dies_with_us),
        TEST(f60_a_hanging_command_is_killed_with_its_children),
        TEST(f60_the_end_of_the_command_decides_not_that_of_its_children),
        TEST(f61_a_flood_is_thrown_away),
        TEST(f61_floods_without_end_do_not_stop_others),
        TEST(f61_what_it_forked_ends_with_it),
        TEST(f80_a_command_that_kills_itself_is_unknown_each_time),
        TEST(killed_by_us_is_unknown),
        TEST(what_runs_at_the_end_is_killed),
        TEST(a_lookup_is_asked_instead_of_the_command),
        TEST(a_command_that_is_gone_blames_nobody),
        TEST(without_descriptors_it_is_tried_again),
        TEST(a_status_that_somebody_else_took_is_unknown),
        TEST(waiting_ends_by_time_and_by_waking),
        TEST(failpoints_stand_before_and_after),
        TEST(a_callback_answers_for_itself),
        TEST(callbacks_run_beside_each_other_and_threads_are_used_again),
        TEST(an_outcome_does_not_wait_for_callbacks_that_take_long),
        TEST(callbacks_that_take_long_now_run_beside_each_other_as_well),
        TEST(a_callback_that_is_killed_before_it_begins_is_put_back),
        TEST(f60_an_outcome_does_not_wait_for_the_next_callback_of_its_thread),
        TEST(a_killed_callback_learns_it_when_it_asks),
        TEST(a_late_callback_is_logged_once_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
