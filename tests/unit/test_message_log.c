/* What the log says of messages (message_log.c), and of claims that a run waits for (waiting.c). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/executor.h"
#include "runtime/message_log.h"
#include "testenv.h"

enum { SAID_MAX = 1 << 20 };

static char said[SAID_MAX];
static FILE *file;

static void open_log(void)
{
    file = tmpfile();
    assert_non_null(file);
    assert_true(once_log_open_fd(fileno(file), ONCE_LOG_JSON, ONCE_LOG_INFO));
}

static unsigned lines_with(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

static const char *read_log(void)
{
    const ssize_t n = pread(fileno(file), said, SAID_MAX - 1, 0);
    said[n > 0 ? n : 0] = '\0';
    return said;
}

/* All that was said, which is so many lines: closing does not wait long for them. */
static const char *close_log(unsigned lines)
{
    for (int i = 0; i < 2000 && lines_with(read_log(), "\n") < lines; i++) usleep(5000);
    once_log_close();
    read_log();
    fclose(file);
    return said;
}

/* ---- messages ---- */

static once_item item_of(const char *key, const char *tenant, uint32_t attempt)
{
    once_item item = {.scope = {.tenant = {tenant, strlen(tenant)}, .consumer = ONCE_BYTES("the consumer")}, .decision.attempt = attempt};
    item.message.at = (once_coordinates){ONCE_BYTES("in.ndjson"), ONCE_BYTES("7")};
    item.request.key = (once_bytes){key, strlen(key)};
    if (*key) item.request.id = (once_hash){1, 2};
    return item;
}

static void add(once_message_log *log, once_log_level level, const once_item *item, const char *reason)
{
    static const once_keying keying;
    once_message_log_add(log, level, "dead", item, (once_bytes){reason, strlen(reason)}, &keying);
}

static void f99_a_line_says_what_is_known_of_its_message(void **state)
{
    (void)state;
    once_message_log log;
    once_message_log_init(&log);
    open_log();
    const once_item whole = item_of("k1", "ann", 3), malformed = item_of("", "", 0);
    add(&log, ONCE_LOG_DEBUG, &whole, "nobody wants it");
    assert_int_equal(log.n, 0);
    add(&log, ONCE_LOG_WARN, &whole, "because");
    add(&log, ONCE_LOG_INFO, &malformed, "no JSON");
    once_message_log_say(&log);
    once_message_log_say(&log); /* what was said is not said again */
    add(&log, ONCE_LOG_WARN, &whole, "it was rolled back");
    once_message_log_forget(&log);
    once_message_log_say(&log);
    const char *text = close_log(2), *first = strstr(text, "\"event\":"), *second = strchr(text, '\n') + 1;
    static const char start[] = "\"event\":\"dead\",\"at\":\"in.ndjson:7\",\"tenant\":\"ann\",\"key\":\"k1\",\"attempt\":3,\"idempotency_key\":\"";
    assert_memory_equal(first, start, sizeof start - 1);
    assert_memory_equal(first + sizeof start - 1 + 32, "\",\"msg\":\"because\"}\n", 19);
    assert_non_null(strstr(second, "\"event\":\"dead\",\"at\":\"in.ndjson:7\",\"msg\":\"no JSON\"}\n"));
    assert_int_equal(lines_with(text, "\n"), 2);
    once_message_log_release(&log);
}

static void f99_long_text_is_cut(void **state)
{
    (void)state;
    once_message_log log;
    char key[400], reason[1200], expected[1100];
    memset(key, 'k', sizeof key);
    memset(reason, 'r', sizeof reason);
    key[sizeof key - 1] = reason[sizeof reason - 1] = '\0';
    once_message_log_init(&log);
    open_log();
    const once_item item = item_of(key, "", 1);
    for (int i = 0; i < (1 << 20) / (11 + 300 + 1000); i++) { /* as much as is kept at a time: it does not count any more */
        add(&log, ONCE_LOG_WARN, &item, reason);
        once_message_log_forget(&log);
    }
    add(&log, ONCE_LOG_WARN, &item, reason);
    once_message_log_say(&log);
    const char *text = close_log(1);
    snprintf(expected, sizeof expected, "\"key\":\"%.300s\"", key);
    assert_non_null(strstr(text, expected));
    snprintf(expected, sizeof expected, "\"msg\":\"%.1000s\"", reason);
    assert_non_null(strstr(text, expected));
    once_message_log_release(&log);
}

/* More text than is kept: what was gathered until then is said without words, and what comes then with them. */
static void f99_of_too_much_text_the_lines_are_left(void **state)
{
    (void)state;
    enum { REASON = 1000, KEY = 8, EACH = 11 + KEY + REASON, FIT = (1 << 20) / EACH, MORE = 5 };
    once_message_log log;
    char reason[REASON + 1];
    memset(reason, 'r', REASON);
    reason[REASON] = '\0';
    once_message_log_init(&log);
    open_log();
    for (int i = 0; i < FIT + 1 + MORE; i++) {
        char key[KEY + 1];
        snprintf(key, sizeof key, "%08d", i);
        const once_item item = item_of(key, "", 1);
        add(&log, ONCE_LOG_WARN, &item, reason);
    }
    once_message_log_say(&log);
    const char *text = close_log(FIT + 1 + MORE);
    assert_int_equal(lines_with(text, "\n"), FIT + 1 + MORE);
    assert_int_equal(lines_with(text, "\"key\":"), MORE);
    assert_int_equal(lines_with(text, "\"idempotency_key\":"), FIT + 1 + MORE);
    char last[40];
    snprintf(last, sizeof last, "\"key\":\"%08d\"", FIT + MORE);
    assert_non_null(strstr(text, last));
    once_message_log_release(&log);
}

/* ---- waiting ---- */

typedef struct scene {
    test_env world;
    once_store *store;
    once_executor executor;
    once_arena arena;
} scene;

#define RUN(n) ((uint64_t)(n) << 40) /* far from each other, as they are by chance */

static void claim(scene *s, uint64_t run, const char *key, const char *seen_by, const char *worker, int64_t lease_ms)
{
    static const once_scope scope = {.consumer = ONCE_BYTES("c")};
    static const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    const once_bytes bytes = {key, strlen(key)};
    const once_request request = {.scope = &scope, .key = bytes, .id = once_key_id(s->store->secret, &scope, bytes), .token = {1, run}, .lane.gap_ms = -1,
                                  .lease_ms = lease_ms, .remember_ms = 1000000, .sent_ms = ONCE_NO_TIME, .run = run},
                       *requests = &request;
    const once_message *messages = &message;
    once_decision d;
    snprintf(s->store->who, sizeof s->store->who, "%s", seen_by);
    assert_int_equal(s->store->ops->accept(s->store, &requests, &messages, 1, &d, &s->arena, NULL), ONCE_OK);
    snprintf(s->store->who, sizeof s->store->who, "%s", worker);
    assert_int_equal(s->store->ops->claim(s->store, &requests, 1, &d, &s->arena, NULL), ONCE_OK);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
}

static pid_t dead_process(void)
{
    const pid_t child = fork();
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return child;
}

static void begin_worker(scene *s, uint64_t run, pid_t pid)
{
    once_worker worker;
    bool died = false;
    once_worker_init(&worker, s->store, ONCE_BYTES("c"), run, 0);
    if (pid) worker.pid = (uint64_t)pid;
    assert_int_equal(once_worker_begin(&worker, s->store, &died, NULL), ONCE_OK);
}

static void set_up(scene *s)
{
    const once_store_options options = {.size = sizeof options, .env = &s->world.env, .create = true};
    *s = (scene){0};
    test_env_init(&s->world, 1);
    assert_int_equal(once__store_open("memory:", &options, &s->store, NULL), ONCE_OK);
    once_executor_init(&s->executor, s->store, ONCE_BYTES("c"), NULL, NULL);
    open_log();
}

static const char *what_was_said(scene *s)
{
    once_stats stats;
    assert_int_equal(s->store->ops->stats(s->store, ONCE_BYTES("c"), &stats, NULL), ONCE_OK);
    once__say_waiting(&s->executor, &stats);
    return close_log(1);
}

static void tear_down(scene *s)
{
    once_executor_release(&s->executor);
    once__store_close(s->store);
    once_arena_release(&s->arena);
}

/* The claim that ends first, whose it is, and what is known of that one. */
static void f100_the_log_says_for_whom_a_run_waits(void **state)
{
    (void)state;
    enum { ALIVE, LATE, GONE, UNKNOWN, CASES };
    static const char *const words[] = {", which is alive", ", which has not been heard of for a while", ", which is gone", ", which has ended or is gone"};
    for (int what = 0; what < CASES; what++) {
        scene s;
        char expected[200];
        set_up(&s);
        begin_worker(&s, RUN(1), 0); /* somebody else's record */
        if (what != UNKNOWN) begin_worker(&s, RUN(2), what == GONE ? dead_process() : 0);
        if (what == LATE) test_env_pass(&s.world, 31000);
        claim(&s, RUN(3), "a", "ann@x:1", "ann@x:1", 9000);
        claim(&s, RUN(2), "b", "ann@x:1", "bob@x:2", 5000);
        claim(&s, RUN(3), "c", "ann@x:1", "ann@x:1", 7000);
        snprintf(expected, sizeof expected, "waiting for 3 messages that other workers have claimed; the next is key 'b' of bob@x:2%s: its claim ends in 5s\"", words[what]);
        const char *text = what_was_said(&s);
        if (!strstr(text, expected)) fail_msg("%s", text);
        assert_int_equal(lines_with(text, "\"level\":\"info\""), what == ALIVE);
        assert_int_equal(lines_with(text, "\"level\":\"warn\""), what != ALIVE);
        tear_down(&s);
    }
}

static void f100_the_log_is_not_filled_with_waiting(void **state)
{
    (void)state;
    once_stats stats;
    scene s;
    set_up(&s);
    claim(&s, RUN(3), "a", "ann@x:1", "ann@x:1", 100000);
    assert_int_equal(s.store->ops->stats(s.store, ONCE_BYTES("c"), &stats, NULL), ONCE_OK);
    const once_stats soon = {.claimed = 1, .wait_ms = 999}, nobody = {.wait_ms = 5000}, never = {.claimed = 1, .wait_ms = ONCE_NEVER};
    once__say_waiting(&s.executor, &soon);
    once__say_waiting(&s.executor, &nobody);
    once__say_waiting(&s.executor, &never);
    assert_int_equal(s.executor.waiting_said_ns, 0);
    for (int i = 0; i < 31; i++) {
        once__say_waiting(&s.executor, &stats);
        test_env_pass(&s.world, 1000);
    }
    assert_int_equal(lines_with(close_log(4), "waiting for 1 message that other workers have claimed"), 4); /* every ten seconds */
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f99_a_line_says_what_is_known_of_its_message),
        cmocka_unit_test(f99_long_text_is_cut),
        cmocka_unit_test(f99_of_too_much_text_the_lines_are_left),
        cmocka_unit_test(f100_the_log_says_for_whom_a_run_waits),
        cmocka_unit_test(f100_the_log_is_not_filled_with_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
