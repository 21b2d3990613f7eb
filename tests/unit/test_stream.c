/* Kept handler processes (`mode: stream`), with real ones: this program itself (`test_stream handler ...`), the
 * programs of examples/stream, and Python for those that misbehave. Everything goes through once_runner_start and
 * once_runner_wait. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/log.h"
#include "effect/effect.h"
#include "effect/exec.h"
#include "effect/runner.h"
#include "effect/stream_line.h"

int example_main(void);
#define main example_main
#include "../../examples/stream/handler.c"
#undef main

#define MANY 64
#define PATIENCE_MS 20000 /* what must happen happens long before */

/* What every handler in Python begins with. */
#define PYTHON                                                                                                         \
    "import json, os, signal, subprocess, sys, time\n"                                                                 \
    "def say(m, outcome='done', **more): print(json.dumps({'id': m['id'], 'outcome': outcome, **more}), flush=True)\n" \
    "def hear(): return json.loads(sys.stdin.readline() or sys.exit(0))\n"                                             \
    "def note(name, text): open(name + '.new', 'w').write(str(text)); os.rename(name + '.new', name)\n"                \
    "def until(name):\n while not os.path.exists(name): time.sleep(0.005)\n"

typedef struct fixture {
    char dir[64], old[4096];
    once_arena arena;
    once_spec spec;
    once_handler_spec handler;
    once_exec_spec exec;
    once_runner *runner;
    once_item items[MANY];
    size_t back; /* items that came back, all told */
    int log;     /* read end, or -1 */
    once_error err;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    memcpy(f->dir, "/tmp/once-stream.XXXXXX", 24);
    assert_non_null(getcwd(f->old, sizeof f->old));
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(chdir(f->dir), 0); /* handlers leave their notes here */
    f->handler = (once_handler_spec){.type = ONCE_BYTES("*"),
                                     .operation = ONCE_BYTES("charge"),
                                     .effect = &once__effect_exec,
                                     .bits = once__effect_exec.bits,
                                     .own = &f->exec,
                                     .timeout_ms = PATIENCE_MS,
                                     .lease_ms = 2 * PATIENCE_MS,
                                     .slots = MANY,
                                     .hold = true,
                                     .line = 7};
    f->exec = (once_exec_spec){.mode = ONCE_EXEC_STREAM, .window = 16, .processes = 1};
    f->spec = (once_spec){.file = ONCE_BYTES("test.yaml"),
                          .consumer = ONCE_BYTES("payments"),
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .workers = 4,
                          .result_max = 1000,
                          .message_max = 64u << 20,
                          .batch_max = MANY};
    f->log = -1;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    once_runner_close(f->runner);
    once_log_close();
    if (f->log >= 0) close(f->log);
    for (size_t i = 0; i < MANY; i++) free(f->items[i].output);
    DIR *dir = opendir(f->dir);
    for (struct dirent *entry; dir && (entry = readdir(dir));) unlink(entry->d_name);
    closedir(dir);
    assert_int_equal(chdir(f->old), 0);
    rmdir(f->dir);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static void command(fixture *f, const char *const *argv, size_t n)
{
    const once_template **templates = once_arena_new(&f->arena, const once_template *, n);
    for (size_t i = 0; i < n; i++) {
        const once_bytes text = {argv[i], strlen(argv[i])};
        assert_int_equal(once_template_parse(&f->arena, text, &templates[i], &f->err), ONCE_OK);
    }
    f->exec.command.argv = templates;
    f->exec.command.n = n;
    const once_runner_options options = {.spec = &f->spec, .env = once_env_real()};
    f->err.text[0] = '\0';
    const int rc = once_runner_open(&options, &f->runner, &f->err);
    if (rc != ONCE_OK) fail_msg("%s", f->err.text);
}

static void python(fixture *f, const char *script) { command(f, (const char *const[]){"python3", "-c", script}, 3); }

/* This program as a handler: see handler_main. */
static void ourselves(fixture *f, const char *what)
{
    command(f, (const char *const[]){"/proc/self/exe", "handler", what}, 3);
}

static once_stream_body json_body = ONCE_STREAM_JSON;

static once_item *message(fixture *f, size_t i, const char *body)
{
    once_item *item = &f->items[i];
    free(item->output);
    *item = (once_item){.handler = &f->handler,
                        .message = {.body = {body, strlen(body)},
                                    .type = ONCE_BYTES("payment.requested"),
                                    .at = {ONCE_BYTES("in.ndjson"), ONCE_BYTES("12")},
                                    .sent_ms = ONCE_NO_TIME},
                        .scope = {.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")},
                        .request = {.key = ONCE_BYTES("k"), .id = {i, 0xabc}},
                        .input = &json_body,
                        .decision = {.answer = ONCE_ANSWER_RUN, .attempt = 1},
                        .outcome = ONCE_OUTCOMES};
    item->request.scope = &item->scope;
    return item;
}

static void start(fixture *f, size_t i, const char *body)
{
    once_item *item = message(f, i, body);
    once_runner_start(f->runner, &item, 1);
}

/* Messages [from, to) with an empty body, in one call. */
static void start_all(fixture *f, size_t from, size_t to)
{
    once_item *items[MANY];
    for (size_t i = from; i < to; i++) items[i - from] = message(f, i, "{}");
    once_runner_start(f->runner, items, to - from);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Until `n` more are back. */
static void wait_for(fixture *f, size_t n)
{
    once_item *out[MANY];
    const int64_t end = now_ms() + PATIENCE_MS;
    while (n > 0) {
        if (now_ms() > end) fail_msg("%zu messages did not come back", n);
        const size_t got = once_runner_wait(f->runner, 100, out, n);
        for (size_t i = 0; i < got; i++) assert_int_not_equal(out[i]->outcome, ONCE_OUTCOMES);
        f->back += got;
        n -= got;
    }
}

/* The loop runs until the handler has left that note. */
static void wait_for_note(fixture *f, const char *name)
{
    const int64_t end = now_ms() + PATIENCE_MS;
    once_item *out[1];
    while (access(name, F_OK) != 0) {
        if (now_ms() > end) fail_msg("no file '%s'", name);
        assert_int_equal(once_runner_wait(f->runner, 5, out, 1), 0);
    }
}

static void leave_note(const char *name)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fclose(file);
}

static long number_in(const char *name)
{
    char text[100] = "";
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    return strtol(text, NULL, 10);
}

/* Gone, or waiting for a parent to notice. */
static bool is_over(pid_t pid)
{
    char path[64], text[300] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *state = strrchr(text, ')');
    return n == 0 || (state && (state[2] == 'Z' || state[2] == 'X'));
}

static void assert_dies(long pid)
{
    const int64_t end = now_ms() + PATIENCE_MS;
    assert_true(pid > 1);
    while (!is_over((pid_t)pid)) {
        if (now_ms() > end) fail_msg("process %ld still runs", pid);
        usleep(2000);
    }
}

static void assert_result(const once_item *item, const char *text)
{
    if (item->outcome != ONCE_DONE)
        fail_msg("%s: %.*s", once_outcome_name(item->outcome), (int)item->failure.len, item->failure.data);
    assert_int_equal(item->result.len, strlen(text));
    if (item->result.len) assert_memory_equal(item->result.data, text, item->result.len);
}

static void assert_reason(const once_item *item, const char *part)
{
    char text[600];
    snprintf(text, sizeof text, "%.*s", (int)item->failure.len, item->failure.len ? item->failure.data : "");
    if (!strstr(text, part)) fail_msg("'%s' does not say '%s'", text, part);
}

static void assert_unknown(const once_item *item, const char *reason)
{
    assert_int_equal(item->outcome, ONCE_UNKNOWN);
    assert_true(item->maybe_done);
    assert_true(item->started);
    assert_int_equal(item->run_failure, ONCE_OK);
    assert_reason(item, reason);
}

static size_t count(const fixture *f, once_outcome outcome)
{
    size_t n = 0;
    for (size_t i = 0; i < MANY; i++) n += f->items[i].handler && f->items[i].outcome == outcome;
    return n;
}

/* --- what is said ------------------------------------------------------------------------------------------------- */

/* Readers end lines at a carriage return, too. */
static void a_message_is_one_line_whatever_ends_lines(void **state)
{
    fixture *f = *state;
    const once_item *item = message(f, 0, "{\r\"a\":\r\n[1,\n\r2]\n}");
    once_buf line;
    once_buf_init(&line, 4096);
    assert_true(once_stream_write(&line, 1, item, &(once_keying){0}));
    assert_null(memchr(line.data, '\r', line.len));
    assert_ptr_equal(memchr(line.data, '\n', line.len), line.data + line.len - 1);
    once_buf_release(&line);
}

static void a_message_and_its_reply(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "m = hear(); line = json.dumps(m, sort_keys=True); say(m, result=line); hear()");
    once_item *item = message(f, 0, "{\"a\": [1, \"x\\n\"],\r\n\"b\":\n2}");
    item->decision =
        (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 3, .failures = 2, .unreported = true, .maybe_done = true};
    item->request.key = ONCE_BYTES("order/1");
    item->request.id = (once_hash){UINT64_C(0x0123456789abcdef), 0xf};
    item->scope.tenant = ONCE_BYTES("acme");
    item->message.sent_ms = 1700000000000;
    once_runner_start(f->runner, &item, 1);
    wait_for(f, 1);
    assert_result(item,
                  "{\"at\": \"in.ndjson:12\", \"attempt\": 3, \"body\": {\"a\": [1, \"x\\n\"], \"b\": 2}, "
                  "\"consumer\": \"payments\", \"failures\": 2, \"id\": \"1\", "
                  "\"idempotency_key\": \"794cea050e7da185a825de29a7720969\", \"key\": \"order/1\", "
                  "\"maybe_done\": true, \"operation\": \"charge\", \"sent_ms\": 1700000000000, \"tenant\": \"acme\", "
                  "\"type\": \"payment.requested\"}");
    assert_true(item->started);
    assert_false(item->maybe_done);
    assert_int_equal(item->run_failure, ONCE_OK);
}

static void bytes_of_every_kind_in_a_key(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "while True: m = hear(); say(m, result=[m['key'], m['at'], m['sent_ms']])");
    once_item *item = message(f, 0, "{}");
    item->request.key = ONCE_BYTES("a\0b\x01\n\"\\\x7f\xc3\xa9|\xff|\xc3|\xed\xa0\x80|\xe2\x82|\xf0\x9f\x98\x80");
    item->message.at = (once_coordinates){ONCE_BYTES("f\"\n"), ONCE_BYTES("\xfe")};
    once_runner_start(f->runner, &item, 1);
    wait_for(f, 1);
    json_t *array = json_loadb(item->result.data, item->result.len, JSON_ALLOW_NUL, NULL);
    assert_non_null(array);
    const json_t *key = json_array_get(array, 0), *at = json_array_get(array, 1);
    static const char expected[] = "a\0b\x01\n\"\\\x7f\xc3\xa9|\xef\xbf\xbd|\xef\xbf\xbd|"
                                   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd|"
                                   "\xf0\x9f\x98\x80";
    assert_int_equal(json_string_length(key), sizeof expected - 1);
    assert_memory_equal(json_string_value(key), expected, sizeof expected - 1);
    assert_string_equal(json_string_value(at), "f\"\n:\xef\xbf\xbd");
    assert_true(json_is_null(json_array_get(array, 2)));
    json_decref(array);
}

static void every_outcome_can_be_said(void **state)
{
    fixture *f = *state;
    python(f, PYTHON
           "while True:\n m = hear()\n"
           " say(m, m['body']['say'], reason='because\\n' + 'x' * 500, result={'a': 1}, delay_ms=1500, more=[1])");
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        char body[60];
        snprintf(body, sizeof body, "{\"say\":\"%s\"}", once_outcome_name((once_outcome)i));
        start(f, (size_t)i, body);
        wait_for(f, 1);
        const once_item *item = &f->items[i];
        assert_int_equal(item->outcome, i);
        assert_int_equal(item->maybe_done, i == ONCE_UNKNOWN);
        assert_true(item->started);
        assert_int_equal(item->delay_ms, 1500); /* with which outcomes that counts is the policy's (core/policy.h) */
        assert_int_equal(item->result.len, i <= ONCE_STALE ? 8 : 0); /* {"a": 1} */
        assert_int_equal(item->failure.len, 400);
        assert_memory_equal(item->failure.data, "because?xxx", 11);
    }
}

static void results_are_texts_or_json(void **state)
{
    fixture *f = *state;
    python(f, PYTHON
           "while True: m = hear(); sys.stdout.write('{\"id\": \"%s\", \"outcome\": \"done\", \"result\": %s}\\r\\n' % "
           "(m['id'], m['body'])); sys.stdout.flush()");
    static const char *const cases[][2] = {
        {"\"\\\"a\\\\u00e9\\\\n\\\"\"", "a\xc3\xa9\n"},       {"\"\\\"\\\"\"", ""}, {"\"null\"", ""},
        {"\"[1, {\\\"b\\\": 2.50}]\"", "[1, {\"b\": 2.50}]"}, {"\"true\"", "true"}, {"\"1e400\"", "1e400"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(f, i, cases[i][0]);
        wait_for(f, 1);
        assert_result(&f->items[i], cases[i][1]);
    }
}

static void ids_may_be_numbers_or_strings(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "while True:\n m = hear()\n if int(m['id']) % 2: m['id'] = int(m['id'])\n say(m, result=m['id'])");
    start_all(f, 0, 4);
    wait_for(f, 4);
    for (size_t i = 0; i < 4; i++) assert_result(&f->items[i], (const char *const[]){"1", "2", "3", "4"}[i]);
}

static void a_huge_body_and_a_result_at_the_limit(void **state)
{
    fixture *f = *state;
    const size_t size = 8u << 20;
    char *body = malloc(size + 100);
    assert_non_null(body);
    memcpy(body, "{\n\"x\":\r\n\"", 9);
    memset(body + 9, 'y', size);
    memcpy(body + 9 + size, "\"}", 3);
    python(f, PYTHON
           "while True:\n m = hear(); b = m['body']\n say(m, result='r' * b['n'] if 'n' in b else str(len(b['x'])))");
    start(f, 0, body);
    start(f, 1, "{\"n\":1000}");
    start(f, 2, "{\"n\":1001}");
    wait_for(f, 3);
    assert_result(&f->items[0], "8388608");
    assert_int_equal(f->items[1].result.len, 1000);
    assert_result(&f->items[2], ""); /* done all the same */
    free(body);
}

/* --- windows and processes ---------------------------------------------------------------------------------------- */

static void replies_in_any_order(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "for m in reversed([hear() for _ in range(5)]): say(m, result=m['body'])\nhear()");
    for (size_t i = 0; i < 5; i++) start(f, i, (const char *const[]){"10", "11", "12", "13", "14"}[i]);
    wait_for(f, 5);
    for (size_t i = 0; i < 5; i++) assert_result(&f->items[i], (const char *const[]){"10", "11", "12", "13", "14"}[i]);
}

/* Answers all that is there at once, and says how many that were. What is written in one turn arrives at once, too. */
#define GATHER                                                                                                         \
    PYTHON "import select\n"                                                                                           \
           "while True:\n"                                                                                             \
           " text = os.read(0, 65536) or sys.exit(0)\n"                                                                \
           " while select.select([0], [], [], 0.05)[0]:\n"                                                             \
           "  more = os.read(0, 65536)\n"                                                                              \
           "  if not more: break\n"                                                                                    \
           "  text += more\n"                                                                                          \
           " all = [json.loads(x) for x in text.splitlines()]\n"                                                       \
           " if any(m['body'] == 'die' for m in all): os.kill(os.getpid(), 9)\n"                                       \
           " os.write(1, b''.join(b'{\"id\":%d,\"outcome\":\"done\",\"result\":%d}\\n' % (int(m['id']), len(all)) "    \
           "for m in all))\n"

static void no_more_than_the_window(void **state)
{
    fixture *f = *state;
    f->exec.window = 3;
    python(f, GATHER);
    start_all(f, 0, 6);
    wait_for(f, 6);
    for (size_t i = 0; i < 6; i++) assert_result(&f->items[i], "3");
}

static void messages_go_where_the_fewest_are(void **state)
{
    fixture *f = *state;
    f->exec.processes = 3;
    /* Nobody answers before it has two. */
    python(f, PYTHON "ms = [hear(), hear()]\nfor m in ms: say(m, result=os.getpid())\nhear()");
    start_all(f, 0, 6);
    wait_for(f, 6);
    for (size_t i = 0; i < 6; i++) {
        size_t same = 0;
        for (size_t j = 0; j < 6; j++)
            same += f->items[i].result.len == f->items[j].result.len &&
                    memcmp(f->items[i].result.data, f->items[j].result.data, f->items[j].result.len) == 0;
        assert_int_equal(same, 2);
    }
}

static void the_process_is_kept_and_started_late(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "note('born', 1)\nwhile True: m = hear(); say(m, result=os.getpid())");
    once_item *out[1];
    assert_int_equal(once_runner_wait(f->runner, 20, out, 1), 0);
    assert_int_not_equal(access("born", F_OK), 0);
    char first[20] = "";
    for (size_t i = 0; i < 3; i++) {
        start(f, i, "{}");
        wait_for(f, 1);
        if (i == 0) snprintf(first, sizeof first, "%.*s", (int)f->items[0].result.len, f->items[0].result.data);
        assert_result(&f->items[i], first);
    }
}

/* --- processes that end ------------------------------------------------------------------------------------------- */

static void replies_in_the_pipe_count_before_the_end(void **state)
{
    fixture *f = *state;
    python(f, PYTHON
           "ms = [hear(), hear(), hear()]\n"
           "os.write(1, b'{\"id\":2,\"outcome\":\"done\"}\\n{\"id\":1,\"outcome\":\"done\"}\\n{\"id\":3,\"outc')\n"
           "os.kill(os.getpid(), 9)");
    start_all(f, 0, 3);
    wait_for(f, 3);
    assert_result(&f->items[0], "");
    assert_result(&f->items[1], "");
    assert_unknown(&f->items[2], "the handler process ended by signal 9 before it replied");
}

/* More than one read takes, and the end is known at the same moment. */
static void all_replies_of_a_full_pipe_count_before_the_end(void **state)
{
    fixture *f = *state;
    f->exec.window = 32;
    python(f, PYTHON "import fcntl\nms = [hear() for _ in range(20)]\nfcntl.fcntl(1, 1031, 1 << 20)\n"
                     "note('pid', os.getpid())\nuntil('go')\nfor m in ms[:19]: say(m, padding='p' * "
                     "30000)\nos.kill(os.getpid(), 9)"); /* 1031: F_SETPIPE_SZ */
    start_all(f, 0, 20);
    wait_for_note(f, "pid");
    leave_note("go");
    assert_dies(number_in("pid"));
    wait_for(f, 20);
    assert_int_equal(count(f, ONCE_DONE), 19);
    assert_unknown(&f->items[19], "signal 9");
}

static void the_last_words_are_in_the_reason(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "hear(); sys.stderr.write('x' * 100000 + '\\nlast \\x1bwords\\n\\n'); sys.exit(3)");
    start(f, 0, "{}");
    wait_for(f, 1);
    assert_unknown(&f->items[0], "the handler process ended with exit status 3 before it replied: last ?words");
    assert_null(memmem(f->items[0].failure.data, f->items[0].failure.len, "xx", 2));
}

static void what_was_not_written_goes_to_the_next_process(void **state)
{
    fixture *f = *state;
    enum { N = 10, SIZE = 100000 };
    char *body = malloc(SIZE + 3);
    assert_non_null(body);
    memset(body, 'b', SIZE + 2);
    body[0] = body[SIZE + 1] = '"';
    body[SIZE + 2] = '\0';
    python(f, PYTHON "if not os.path.exists('first'): note('first', 1); os.read(0, 10); os._exit(1)\n"
                     "while True: m = hear(); say(m, result=len(m['body']))");
    once_item *items[N];
    for (size_t i = 0; i < N; i++) items[i] = message(f, i, body);
    once_runner_start(f->runner, items, N);
    wait_for(f, N);
    /* A pipe has 64 KiB: one message was begun, and with a larger pipe a few. */
    assert_true(count(f, ONCE_UNKNOWN) >= 1 && count(f, ONCE_UNKNOWN) < 4);
    assert_int_equal(count(f, ONCE_UNKNOWN) + count(f, ONCE_DONE), N);
    assert_unknown(&f->items[0], "exit status 1");
    assert_result(&f->items[N - 1], "100000");
    free(body);
}

/* Reads up to the end of a line and not a byte more. */
#define FIRST_LINE "line = b''\nwhile not line.endswith(b'\\n'): line += os.read(0, 1)\n"

static void what_nobody_has_read_goes_to_the_next_process(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "if os.path.exists('again'):\n while True: say(hear())\nnote('again', 1)\n" FIRST_LINE
                     "os.read(0, 1); os._exit(1)");
    start_all(f, 0, 6);
    wait_for(f, 6);
    assert_unknown(&f->items[0], "exit status 1");
    assert_unknown(&f->items[1], "exit status 1"); /* a byte of it is enough */
    for (size_t i = 2; i < 6; i++) assert_result(&f->items[i], "");
}

static void what_somebody_could_still_read_is_unknown(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "if os.path.exists('heir'):\n while True: say(hear())\n"
                     "note('heir', subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)\n" FIRST_LINE
                     "os._exit(1)");
    start_all(f, 0, 3);
    wait_for(f, 3);
    kill((pid_t)number_in("heir"), SIGKILL);
    for (size_t i = 0; i < 3; i++) assert_unknown(&f->items[i], "exit status 1");
}

static void a_program_that_does_not_work_is_a_failure_and_not_unknown(void **state)
{
    fixture *f = *state;
    python(f, "import nothing_of_that_name");
    start_all(f, 0, 3);
    wait_for(f, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(f->items[i].outcome, ONCE_RETRY);
        assert_true(f->items[i].started);
        assert_false(f->items[i].maybe_done);
        assert_reason(&f->items[i], "ended with exit status 1 before it replied: ModuleNotFoundError");
    }
}

static void queued_ones_survive_the_end(void **state)
{
    fixture *f = *state;
    f->exec.window = 2;
    python(f, PYTHON "hear()\nif not os.path.exists('first'): note('first', 1); hear(); os._exit(1)\n"
                     "say({'id': 1})\nwhile True: say(hear())");
    start_all(f, 0, 7);
    wait_for(f, 7);
    assert_unknown(&f->items[0], "exit status 1");
    assert_unknown(&f->items[1], "exit status 1");
    for (size_t i = 2; i < 7; i++) assert_result(&f->items[i], "");
}

static void one_that_kills_its_handler_does_it_alone_the_next_time(void **state)
{
    fixture *f = *state;
    f->exec.window = 8;
    python(f, GATHER);
    start(f, 0, "\"die\"");
    start_all(f, 1, 8);
    wait_for(f, 8);
    assert_int_equal(count(f, ONCE_UNKNOWN), 8);
    /* Again, the killer first and then in the middle; behind it, the window opens slowly. */
    start(f, 0, "\"die\"");
    start_all(f, 1, 4);
    start(f, 4, "\"die\"");
    start_all(f, 5, 30);
    wait_for(f, 30);
    assert_int_equal(count(f, ONCE_UNKNOWN), 2);
    assert_unknown(&f->items[0], "signal 9");
    assert_unknown(&f->items[4], "signal 9");
    for (size_t i = 1; i < 4; i++) assert_result(&f->items[i], "1");
    for (size_t i = 5; i < 13; i++) assert_result(&f->items[i], "1");
    for (size_t i = 13; i < 15; i++) assert_result(&f->items[i], "2");
    for (size_t i = 15; i < 19; i++) assert_result(&f->items[i], "4");
    for (size_t i = 19; i < 27; i++) assert_result(&f->items[i], "8");
    for (size_t i = 27; i < 30; i++) assert_result(&f->items[i], "3"); /* those that were left */
}

static void expect_log(fixture *f, const char *const *parts, size_t n)
{
    char text[4096] = "", *at = text;
    once_log_close();
    const ssize_t len = read(f->log, text, sizeof text - 1);
    assert_true(len > 0);
    for (size_t i = 0; i < n; i++) {
        char *end = strchr(at, '\n');
        if (!end) fail_msg("too few lines in the log: %s", text);
        *end = '\0';
        if (!strstr(at, "event=handler_ended") || !strstr(at, parts[i]))
            fail_msg("'%s' does not say '%s'", at, parts[i]);
        at = end + 1;
    }
    assert_string_equal(at, "");
}

static void open_log(fixture *f)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    f->log = fds[0];
    assert_true(once_log_open_fd(fds[1], ONCE_LOG_LOGFMT, ONCE_LOG_WARN));
}

static void a_process_that_ends_comes_back_later_and_later(void **state)
{
    fixture *f = *state;
    open_log(f);
    python(f,
           PYTHON "def number(name): return float(open(name).read())\n"
                  "if os.path.exists('ended') and time.monotonic() - number('ended') < number('pause'): os._exit(9)\n"
                  "while True:\n m = hear()\n if m['body'] == {}: say(m); continue\n"
                  " note('pause', m['body'])\n note('ended', time.monotonic())\n os._exit(5)");
    start(f, 0, "0.1");
    wait_for(f, 1);
    start(f, 1, "0.2");
    wait_for(f, 1);
    start(f, 2, "0.4");
    wait_for(f, 1);
    start(f, 3, "{}");
    wait_for(f, 1);
    start(f, 4, "0.1");
    wait_for(f, 1);
    start(f, 5, "{}");
    wait_for(f, 1);
    for (size_t i = 0; i < 6; i++) {
        if (i == 3 || i == 5) assert_result(&f->items[i], "");
        else assert_unknown(&f->items[i], "exit status 5");
    }
    expect_log(f,
               (const char *const[]){"started again after 100 ms", "started again after 200 ms",
                                     "started again after 400 ms", "started again after 100 ms"},
               4);
}

/* --- processes that misbehave ------------------------------------------------------------------------------------- */

typedef struct misdeed {
    const char *script, *reason;
} misdeed;

static const misdeed misdeeds[] = {
    {"print('hello')", "not a JSON object: unknown word at byte 1"},
    {"print('')", "not a JSON object"},
    {"print('[1]')", "not a JSON object"},
    {"print('{\"id\":1,\"outcome\":\"done\"} x')", "not a JSON object: more text"},
    {"os.write(1, b'{\"id\":1,\"outcome\":\"done\",\"result\":\"\\xff\"}\\n')", "invalid UTF-8"},
    {"say({'id': 99})", "a reply to an unknown id 99"},
    {"say({'id': 2}); say({'id': 2})", "a second reply to id 2"},
    {"say({'id': 0})", "a reply whose 'id' cannot be used"},
    {"say({'id': '01'})", "a reply whose 'id' cannot be used"},
    {"say({'id': 'x'})", "a reply whose 'id' cannot be used"},
    {"say({'id': 1.5})", "a reply whose 'id' cannot be used"},
    {"say({'id': None})", "a reply whose 'id' cannot be used"},
    {"say({'id': 99999999999999999999})", "a reply whose 'id' cannot be used"},
    {"print('{\"outcome\":\"done\"}')", "a reply without 'id'"},
    {"print('{\"id\":1}')", "a reply without 'outcome'"},
    {"say({'id': 1}, 1)", "a reply whose 'outcome' cannot be used"},
    {"say({'id': 1}, reason=1)", "a reply whose 'reason' cannot be used"},
    {"say({'id': 1}, 'retry', delay_ms=-1)", "a reply whose 'delay_ms' cannot be used"},
    {"say({'id': 1}, 'retry', delay_ms='1s')", "a reply whose 'delay_ms' cannot be used"},
    {"os.write(1, b'{\"id\":1,\"outcome\":\"done\",\"result\":\"' + b'x' * 71400); os.write(1, b'x' * 200 + b'\"}\\n')",
     "a line that is too long"}, /* only with its last bytes, which come together */
    {"sys.stdout.flush(); os.close(1)", "it closed its standard output"},
};

/* Two messages; what it says after the misdeed does not count, what it said before does. The process hangs and has a
 * child. */
static void f61_a_handler_that_breaks_the_protocol_ends(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < sizeof misdeeds / sizeof *misdeeds; i++) {
        char script[2000];
        const bool second = strstr(misdeeds[i].reason, "second");
        snprintf(script, sizeof script,
                 "%sa, b = hear(), hear()\n"
                 "note('child', subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid)\n%s\n%s\n"
                 "try: sys.stdout.flush(); say(a)\nexcept OSError: pass\ntime.sleep(1000)",
                 PYTHON, second ? "" : "say(b)", misdeeds[i].script);
        python(f, script);
        start_all(f, 0, 2);
        wait_for(f, 2);
        assert_unknown(&f->items[0], "the handler process broke the protocol: ");
        assert_reason(&f->items[0], misdeeds[i].reason);
        assert_result(&f->items[1], "");
        assert_dies(number_in("child"));
        once_runner_close(f->runner);
        f->runner = NULL;
    }
}

/* That message alone: the handler has said which one it means, and goes on. */
static void f81_a_word_that_is_no_outcome_is_unknown(void **state)
{
    fixture *f = *state;
    static const char *const words[] = {"finished", "DONE", "", "ok", "done "};
    const size_t n = sizeof words / sizeof *words;
    python(f, PYTHON "words = ['finished', 'DONE', '', 'ok', 'done ']\n"
                     "while True:\n m = hear()\n i = int(m['id']) - 1\n"
                     " say(m, words[i] if i < len(words) else 'done', result='r', reason='r', delay_ms=1)");
    start_all(f, 0, n + 1);
    wait_for(f, n + 1);
    for (size_t i = 0; i < n; i++) {
        assert_unknown(&f->items[i], "the handler replied with a word that is no outcome");
        assert_int_equal(f->items[i].result.len, 0);
    }
    assert_result(&f->items[n], "r");
}

static void f81_a_reply_can_put_a_message_back(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "say(hear(), 'release', reason='away'); say(hear(), 'release', delay_ms=1500); time.sleep(1000)");
    start_all(f, 0, 2);
    wait_for(f, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(f->items[i].outcome, ONCE_RELEASE);
        assert_true(f->items[i].started && !f->items[i].maybe_done);
        assert_int_equal(f->items[i].delay_ms, i ? 1500 : -1);
    }
    assert_reason(&f->items[0], "away");
}

static void no_reply_before_the_message_was_written(void **state)
{
    fixture *f = *state;
    const size_t size = 2u << 20;
    char *body = malloc(size + 3);
    assert_non_null(body);
    memset(body, 'b', size + 2);
    body[0] = body[size + 1] = '"';
    body[size + 2] = '\0';
    python(f, PYTHON "os.read(0, 10); say({'id': 1}); time.sleep(1000)");
    start(f, 0, body);
    wait_for(f, 1);
    assert_unknown(&f->items[0], "a reply to an unknown id 1");
    free(body);
}

/* No signal of ours, and nothing lost of what it did not take. */
static void a_closed_standard_input_ends_it_too(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "if os.path.exists('closed'):\n while True: say(hear())\nhear(); os.close(0); note('closed', 1); "
                     "time.sleep(1000)");
    start(f, 0, "{}");
    wait_for_note(f, "closed");
    start(f, 1, "{}");
    wait_for(f, 2);
    assert_unknown(&f->items[0], "the handler process broke the protocol: it closed its standard input");
    assert_result(&f->items[1], "");
}

static void f61_floods_are_cut_off(void **state)
{
    fixture *f = *state;
    /* A flood of stderr is harmless; one of stdout without an end of line is not, and is cut at the limit. */
    python(f, PYTHON "m = hear()\nfor _ in range(2000): os.write(2, b'e' * 10000)\nsay(m)\n"
                     "hear()\nwhile True: os.write(1, b'o' * 10000)");
    start(f, 0, "{}");
    wait_for(f, 1);
    assert_result(&f->items[0], "");
    start(f, 1, "{}");
    wait_for(f, 1);
    assert_unknown(&f->items[1], "a line that is too long");
}

static void f61_a_handler_that_forks_ends_with_its_children(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "hear()\nps = [subprocess.Popen(['sleep', '1000']) for _ in range(10)]\n"
                     "for i, p in enumerate(ps): note('child%d' % i, p.pid)\nos.kill(os.getpid(), 9)");
    start(f, 0, "{}");
    wait_for(f, 1);
    assert_unknown(&f->items[0], "signal 9");
    for (int i = 0; i < 10; i++) {
        char name[20];
        snprintf(name, sizeof name, "child%d", i);
        assert_dies(number_in(name));
    }
}

static void f60_a_handler_that_hangs_is_killed_with_its_group(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 1500;
    open_log(f);
    python(f, PYTHON "a = hear(); hear(); say(a)\nnote('child', subprocess.Popen(['sleep', '1000']).pid)\n"
                     "note('self', os.getpid())\ntime.sleep(1000)");
    start_all(f, 0, 3);
    wait_for(f, 1);
    const int64_t begin = now_ms();
    wait_for(f, 2);
    assert_true(now_ms() - begin >= 1400);
    assert_result(&f->items[0], "");
    assert_unknown(&f->items[1], "was killed: no reply to its oldest message for 1500 ms");
    assert_unknown(&f->items[2], "was killed: no reply to its oldest message for 1500 ms");
    assert_dies(number_in("self"));
    assert_dies(number_in("child"));
    expect_log(f, (const char *const[]){"no reply to its oldest message for 1500 ms; 2 unknown; "}, 1);
}

static void the_deadline_is_that_of_the_oldest(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 2500; /* for each, once it is the oldest; all together take longer */
    python(f, PYTHON "while True: m = hear(); time.sleep(0.5); say(m)");
    start_all(f, 0, 6);
    wait_for(f, 6);
    assert_int_equal(count(f, ONCE_DONE), 6);
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

static void kill_one(fixture *f, size_t i)
{
    once_item *item = &f->items[i];
    once_runner_kill(f->runner, &item, 1);
}

static void killed_in_flight_means_its_neighbours_too(void **state)
{
    fixture *f = *state;
    f->exec.window = 3;
    python(f, PYTHON "if os.path.exists('again'):\n while True: say(hear())\n"
                     "note('again', os.getpid()); [hear(), hear(), hear()]; note('got', 1); time.sleep(1000)");
    start_all(f, 0, 5);
    wait_for_note(f, "got");
    kill_one(f, 4); /* still queued */
    wait_for(f, 1);
    assert_int_equal(f->items[4].outcome, ONCE_RELEASE);
    assert_false(f->items[4].started);
    assert_false(f->items[4].maybe_done);
    kill_one(f, 1);
    wait_for(f, 4);
    for (size_t i = 0; i < 3; i++) assert_unknown(&f->items[i], "the handler process was killed before it replied");
    assert_result(&f->items[3], "");
    assert_dies(number_in("again"));
}

static void killed_before_it_was_read_means_that_it_had_not_begun(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "note('born', 1); time.sleep(1000)");
    start_all(f, 0, 2);
    wait_for_note(f, "born");
    kill_one(f, 0);
    wait_for(f, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(f->items[i].outcome, ONCE_RELEASE);
        assert_false(f->items[i].started);
        assert_false(f->items[i].maybe_done);
    }
}

static void killed_before_it_was_written_means_nothing_to_others(void **state)
{
    fixture *f = *state;
    enum { SIZE = 150000 };
    char *body = malloc(SIZE + 3);
    assert_non_null(body);
    memset(body, 'b', SIZE + 2);
    body[0] = body[SIZE + 1] = '"';
    body[SIZE + 2] = '\0';
    python(f, PYTHON "note('ready', 1)\nuntil('go')\nwhile True: m = hear(); say(m, result=m['id'])");
    once_item *items[4]; /* the first fills the pipe; the others have a line and wait for it, or wait for their line */
    for (size_t i = 0; i < 4; i++) items[i] = message(f, i, body);
    once_runner_start(f->runner, items, 4);
    wait_for_note(f, "ready");
    kill_one(f, 1);
    wait_for(f, 1);
    assert_int_equal(f->items[1].outcome, ONCE_RELEASE);
    assert_false(f->items[1].started);
    leave_note("go");
    wait_for(f, 3);
    assert_result(&f->items[0], "1");
    assert_result(&f->items[2], "2"); /* numbers in the order of sending */
    assert_result(&f->items[3], "3");
    free(body);
}

static void at_the_end_they_see_the_end_of_their_input(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "say(hear()); sys.stdin.read(); note('bye', 1)");
    start(f, 0, "{}");
    wait_for(f, 1);
    once_runner_close(f->runner);
    f->runner = NULL;
    assert_int_equal(number_in("bye"), 1);
}

static void f60_at_the_end_one_that_stays_is_killed(void **state)
{
    fixture *f = *state;
    python(f, PYTHON "note('child', subprocess.Popen(['sleep', '1000']).pid); note('self', os.getpid())\n"
                     "say(hear()); time.sleep(1000)");
    start(f, 0, "{}");
    wait_for(f, 1);
    const int64_t begin = now_ms();
    once_runner_close(f->runner);
    f->runner = NULL;
    assert_true(now_ms() - begin >= 900);
    assert_dies(number_in("self"));
    assert_dies(number_in("child"));
}

static void a_command_that_is_gone_pauses_everything(void **state)
{
    fixture *f = *state;
    char path[100];
    snprintf(path, sizeof path, "%s/handler", f->dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("#!/bin/sh\n", file);
    fclose(file);
    assert_int_equal(chmod(path, 0700), 0);
    command(f, (const char *const[]){path}, 1);
    unlink(path);
    start_all(f, 0, 3);
    wait_for(f, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(f->items[i].outcome, ONCE_RELEASE);
        assert_int_equal(once_status_class(f->items[i].run_failure), ONCE_CLASS_PAUSE);
        assert_false(f->items[i].started);
        assert_reason(&f->items[i], path);
    }
}

/* --- many --------------------------------------------------------------------------------------------------------- */

/* Every message comes back with its own result, whatever the interleaving; most of them at full speed. */
static void thousands_through_two_processes(void **state)
{
    fixture *f = *state;
    f->exec.processes = 2;
    f->exec.window = MANY / 2;
    ourselves(f, "shuffle");
    char bodies[MANY][24];
    size_t sent[MANY] = {0}, total = 0;
    once_item *out[MANY];
    for (size_t i = 0; i < MANY; i++) {
        snprintf(bodies[i], sizeof bodies[i], "\"%zu-0\"", i);
        start(f, i, bodies[i]);
    }
    const int64_t end = now_ms() + PATIENCE_MS;
    while (total < 20000) {
        if (now_ms() > end) fail_msg("only %zu came back", total);
        const size_t n = once_runner_wait(f->runner, 100, out, MANY);
        for (size_t k = 0; k < n; k++) {
            const size_t i = (size_t)(out[k] - f->items);
            char expected[24];
            snprintf(expected, sizeof expected, "%zu-%zu", i, sent[i]);
            assert_result(out[k], expected);
            total++;
            snprintf(bodies[i], sizeof bodies[i], "\"%zu-%zu\"", i, ++sent[i]);
            start(f, i, bodies[i]);
        }
    }
}

/* --- examples and the page ---------------------------------------------------------------------------------------- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("cannot read %s", path);
    once_buf text;
    once_buf_init(&text, 1u << 20);
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) assert_true(once_buf_append(&text, part, n));
    fclose(file);
    return text.data;
}

static void the_page_shows_the_examples_as_they_are(void **state)
{
    (void)state;
    char *page = read_text(ONCE_SOURCE_ROOT "/docs/stream.md");
    static const char *const names[] = {"handler.py", "handler.sh", "handler.c"};
    for (size_t i = 0; i < 3; i++) {
        char path[500];
        snprintf(path, sizeof path, "%s/examples/stream/%s", ONCE_SOURCE_ROOT, names[i]);
        char *example = read_text(path);
        if (!strstr(page, example)) fail_msg("docs/stream.md does not show %s", names[i]);
        free(example);
    }
    free(page);
}

static void the_examples_work(void **state)
{
    fixture *f = *state;
    command(f, (const char *const[]){"python3", ONCE_SOURCE_ROOT "/examples/stream/handler.py"}, 2);
    start(f, 0, "{\"amount\": 5}");
    start(f, 1, "{\"amount\": 5000}");
    start(f, 2, "{}");
    wait_for(f, 3);
    assert_result(&f->items[0], "{\"receipt\": \"r-19a221c9\"}");
    assert_int_equal(f->items[1].outcome, ONCE_REJECTED);
    assert_reason(&f->items[1], "over the limit");
    assert_int_equal(f->items[2].outcome, ONCE_DEAD);
    assert_reason(&f->items[2], "no field 'amount'");
    once_runner_close(f->runner);

    command(f, (const char *const[]){"/bin/sh", ONCE_SOURCE_ROOT "/examples/stream/handler.sh"}, 2);
    start(f, 0, "{\"a\": \"\\\\ \\n\"}");
    start(f, 1, "{\"a\":\n2}");
    wait_for(f, 2);
    assert_int_equal(count(f, ONCE_DONE), 2);
    char *journal = read_text("journal.ndjson");
    assert_non_null(strstr(journal, "\"body\":{\"a\": \"\\\\ \\n\"}}\n"));
    assert_non_null(strstr(journal, "\"body\":{\"a\": 2}}\n"));
    free(journal);
    once_runner_close(f->runner);
    mkdir("directory", 0700);
    const once_written variable = {.name = ONCE_BYTES("JOURNAL"), .value = ONCE_BYTES("directory")};
    f->exec.env = &variable;
    f->exec.n_env = 1;
    command(f, (const char *const[]){"/bin/sh", ONCE_SOURCE_ROOT "/examples/stream/handler.sh"}, 2);
    start(f, 0, "{}");
    wait_for(f, 1);
    assert_int_equal(f->items[0].outcome, ONCE_RETRY);
    assert_int_equal(f->items[0].delay_ms, 5000);
    once_runner_close(f->runner);
    f->exec.n_env = 0;
    rmdir("directory");

    ourselves(f, "example");
    start_all(f, 0, 2);
    wait_for(f, 2);
    assert_result(&f->items[0], "1");
    assert_result(&f->items[1], "2");
}

/* --- this program as a handler ------------------------------------------------------------------------------------ */

/* Replies to what it has read, newest first, with the body (a string) as the result. */
static int shuffle_main(void)
{
    static char in[1u << 16], out[1u << 16];
    size_t have = 0;
    for (ssize_t n; (n = read(0, in + have, sizeof in - have)) > 0;) {
        have += (size_t)n;
        const char *end = memrchr(in, '\n', have);
        if (!end) continue;
        const size_t used = (size_t)(end + 1 - in);
        size_t len = 0;
        for (size_t last = used; last > 0;) { /* in[last - 1] ends a line */
            const char *stop = in + last - 1, *before = memrchr(in, '\n', last - 1), *line = before ? before + 1 : in;
            const char *id = line + strlen("{\"id\":\""),
                       *body = (const char *)memrchr(line, ':', (size_t)(stop - line)) + 1;
            len += (size_t)snprintf(out + len, sizeof out - len, "{\"result\":%.*s,\"outcome\":\"done\",\"id\":%.*s}\n",
                                    (int)(stop - 1 - body), body, (int)strcspn(id, "\""), id);
            last = (size_t)(line - in);
        }
        if (write(1, out, len) != (ssize_t)len) return 1;
        have -= used;
        memmove(in, in + used, have);
    }
    return 0;
}

static int handler_main(const char *what) { return strcmp(what, "shuffle") == 0 ? shuffle_main() : example_main(); }

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "handler") == 0) return handler_main(argv[2]);
    const struct CMUnitTest tests[] = {
        CASE(a_message_is_one_line_whatever_ends_lines),
        CASE(a_message_and_its_reply),
        CASE(bytes_of_every_kind_in_a_key),
        CASE(every_outcome_can_be_said),
        CASE(results_are_texts_or_json),
        CASE(ids_may_be_numbers_or_strings),
        CASE(a_huge_body_and_a_result_at_the_limit),
        CASE(replies_in_any_order),
        CASE(no_more_than_the_window),
        CASE(messages_go_where_the_fewest_are),
        CASE(the_process_is_kept_and_started_late),
        CASE(replies_in_the_pipe_count_before_the_end),
        CASE(all_replies_of_a_full_pipe_count_before_the_end),
        CASE(the_last_words_are_in_the_reason),
        CASE(what_was_not_written_goes_to_the_next_process),
        CASE(what_nobody_has_read_goes_to_the_next_process),
        CASE(f81_a_word_that_is_no_outcome_is_unknown),
        CASE(f81_a_reply_can_put_a_message_back),
        CASE(what_somebody_could_still_read_is_unknown),
        CASE(a_program_that_does_not_work_is_a_failure_and_not_unknown),
        CASE(queued_ones_survive_the_end),
        CASE(one_that_kills_its_handler_does_it_alone_the_next_time),
        CASE(a_process_that_ends_comes_back_later_and_later),
        CASE(f61_a_handler_that_breaks_the_protocol_ends),
        CASE(no_reply_before_the_message_was_written),
        CASE(a_closed_standard_input_ends_it_too),
        CASE(f61_floods_are_cut_off),
        CASE(f61_a_handler_that_forks_ends_with_its_children),
        CASE(f60_a_handler_that_hangs_is_killed_with_its_group),
        CASE(the_deadline_is_that_of_the_oldest),
        CASE(killed_in_flight_means_its_neighbours_too),
        CASE(killed_before_it_was_read_means_that_it_had_not_begun),
        CASE(killed_before_it_was_written_means_nothing_to_others),
        CASE(at_the_end_they_see_the_end_of_their_input),
        CASE(f60_at_the_end_one_that_stays_is_killed),
        CASE(a_command_that_is_gone_pauses_everything),
        CASE(thousands_through_two_processes),
        cmocka_unit_test(the_page_shows_the_examples_as_they_are),
        CASE(the_examples_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
