/* What is logged about messages (message_log.c), and about claims that a run waits for (waiting.c). */
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
    once_item item = {.scope = {.tenant = {tenant, strlen(tenant)}, .consumer = ONCE_BYTES("the consumer")},
                      .decision.attempt = attempt};
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
    once_message_log_write(&log);
    once_message_log_write(&log); /* what was said is not said again */
    add(&log, ONCE_LOG_WARN, &whole, "it was rolled back");
    once_message_log_clear(&log);
    once_message_log_write(&log);
    const char *text = close_log(2), *first = strstr(text, "\"event\":"), *second = strchr(text, '\n') + 1;
    static const char start[] = "\"event\":\"dead\",\"at\":\"in.ndjson:7\",\"tenant\":\"ann\",\"key\":\"k1\","
                                "\"attempt\":3,\"idempotency_key\":\"";
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
    for (int i = 0; i < (1 << 20) / (11 + 300 + 1000);
         i++) { /* as much as is kept at a time: it does not count any more */
        add(&log, ONCE_LOG_WARN, &item, reason);
        once_message_log_clear(&log);
    }
    add(&log, ONCE_LOG_WARN, &item, reason);
    once_message_log_write(&log);
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
    once_message_log_write(&log);
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
    once_backend *store;
    once_executor executor;
    once_arena arena;
} scene;

#define RUN(n) ((uint64_t)(n) << 40) /* far from each other, as they are by chance */

static void claim(scene *s, uint64_t run, const char *key, const char *seen_by, const char *worker, int64_t lease_ms)
{
    static const once_scope scope = {.consumer = ONCE_BYTES("c")};
    static const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    const once_bytes bytes = {key, strlen(key)};
    const once_request request = {.scope = &scope,
                                  .key = bytes,
                                  .id = once_key_id(s->store->secret, &scope, bytes),
                                  .token = {1, run},
                                  .lane.gap_ms = -1,
                                  .lease_ms = lease_ms,
                                  .remember_ms = 1000000,
                                  .sent_ms = ONCE_NO_TIME,
                                  .run = run},
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
    once__log_waiting(&s->executor, &stats);
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
    static const char *const words[] = {", which is alive", ", which has not reported for a while", ", which is gone",
                                        ", which has ended or is gone"};
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
        snprintf(expected, sizeof expected,
                 "waiting for 3 messages that other workers have claimed; the next is key 'b' of bob@x:2%s: its claim "
                 "ends in 5s\"",
                 words[what]);
        const char *text = what_was_said(&s);
        if (!strstr(text, expected)) fail_msg("%s", text);
        assert_int_equal(lines_with(text, "\"level\":\"info\""), what == ALIVE);
        assert_int_equal(lines_with(text, "\"level\":\"warn\""), what != ALIVE);
        tear_down(&s);
    }
}

/* A finite run that has nothing else to do, with an unknown that will be looked up. Later waits are only told who asks
 * for it. */
static void the_log_says_that_a_run_waits_for_a_lookup(void **state)
{
    (void)state;
    scene s;
    set_up(&s);
    const once_stats soon = {.unknown = 1, .wait_ms = 999}, held = {.unknown = 1, .wait_ms = ONCE_NEVER},
                     more = {.unknown = 1, .waiting = 1, .wait_ms = 5000};
    once__log_waiting(&s.executor, &soon);
    once__log_waiting(&s.executor, &held);
    once__log_waiting(&s.executor, &more);
    assert_int_equal(s.executor.lookup_until_ns, 0);
    for (int64_t left_ms = 90000; left_ms > 0; left_ms -= 250) {
        const once_stats stats = {.unknown = 1, .wait_ms = left_ms};
        once__log_waiting(&s.executor, &stats);
        test_env_pass(&s.world, 250);
    }
    const once_stats again = {.unknown = 1, .wait_ms = 120000};
    once__log_waiting(&s.executor, &again);
    const char *text = close_log(2);
    assert_int_equal(lines_with(text, "waiting for a lookup, which asks in 1m30s "), 1);
    assert_int_equal(lines_with(text, "waiting for a lookup, which asks in 2m00s "), 1);
    assert_int_equal(lines_with(text, "\"level\":\"warn\""), 1);
    assert_int_equal(lines_with(text, "\"level\":\"info\""), 1);
    tear_down(&s);
}

static void f100_the_log_is_not_filled_with_waiting(void **state)
{
    (void)state;
    once_stats stats;
    scene s;
    set_up(&s);
    claim(&s, RUN(3), "a", "ann@x:1", "ann@x:1", 100000);
    assert_int_equal(s.store->ops->stats(s.store, ONCE_BYTES("c"), &stats, NULL), ONCE_OK);
    const once_stats soon = {.claimed = 1, .wait_ms = 999}, nobody = {.wait_ms = 5000},
                     never = {.claimed = 1, .wait_ms = ONCE_NEVER};
    once__log_waiting(&s.executor, &soon);
    once__log_waiting(&s.executor, &nobody);
    once__log_waiting(&s.executor, &never);
    assert_int_equal(s.executor.waiting_said_ns, 0);
    for (int i = 0; i < 31; i++) {
        once__log_waiting(&s.executor, &stats);
        test_env_pass(&s.world, 1000);
    }
    assert_int_equal(lines_with(close_log(4), "waiting for 1 message that other workers have claimed"),
                     4); /* every ten seconds */
    tear_down(&s);
}

/* ---- what a verb of the store did, and no answer came ---- */

static enum { ANSWERS, LOSES_REPLIES, IS_AWAY } store_does;
static once_store_ops troubled;
static const once_store_ops *real;

static int reply(int rc, once_error *err)
{
    return store_does == ANSWERS ? rc : once_fail(err, ONCE_E_UNAVAILABLE, "no answer");
}

static int troubled_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                         size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena,
                         once_error *err)
{
    return reply(store_does == IS_AWAY
                     ? ONCE_OK
                     : real->take(store, consumer, token, again, lease_ms, max, filter, out, n, arena, err),
                 err);
}

static int troubled_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                          size_t *n, once_arena *arena, once_error *err)
{
    return reply(store_does == IS_AWAY ? ONCE_OK : real->lapse(store, consumer, except_run, max, out, n, arena, err),
                 err);
}

static int troubled_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                          once_arena *arena, once_error *err)
{
    return reply(store_does == IS_AWAY ? ONCE_OK : real->claim(store, requests, n, out, arena, err), err);
}

static int troubled_commit(once_backend *store, once_error *err)
{
    if (store_does != IS_AWAY) return reply(real->commit(store, err), err);
    real->rollback(store);
    return reply(ONCE_OK, err);
}

static int troubled_get(once_backend *store, once_hash id, once_entry *out, once_arena *arena, once_error *err)
{
    return reply(store_does == IS_AWAY ? ONCE_OK : real->get(store, id, out, arena, err), err);
}

static void trouble(scene *s)
{
    set_up(s);
    real = s->store->ops;
    troubled = *real;
    troubled.take = troubled_take;
    troubled.lapse = troubled_lapse;
    troubled.claim = troubled_claim;
    troubled.commit = troubled_commit;
    troubled.get = troubled_get;
    s->store->ops = &troubled;
    store_does = ANSWERS;
}

/* Somebody's claim of it, whose lease is over. */
static void orphan(scene *s, const char *key, bool with_body)
{
    static const once_scope scope = {.consumer = ONCE_BYTES("c")};
    static const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    const once_bytes bytes = {key, strlen(key)};
    const once_request request = {.scope = &scope,
                                  .key = bytes,
                                  .id = once_key_id(s->store->secret, &scope, bytes),
                                  .token = {1, RUN(3)},
                                  .lane.gap_ms = -1,
                                  .lease_ms = 1000,
                                  .remember_ms = 1000000,
                                  .sent_ms = ONCE_NO_TIME,
                                  .run = RUN(3),
                                  .hold = true},
                       *requests = &request;
    const once_message *messages = &message;
    once_decision d;
    if (with_body) assert_int_equal(real->accept(s->store, &requests, &messages, 1, &d, &s->arena, NULL), ONCE_OK);
    assert_int_equal(real->claim(s->store, &requests, 1, &d, &s->arena, NULL), ONCE_OK);
    assert_int_equal(d.answer, ONCE_ANSWER_RUN);
    test_env_pass(&s->world, 1500);
}

static int act(scene *s, once_action_kind kind, once_item *item)
{
    once_batch batch = {0};
    once_action action = {.kind = kind,
                          .items = &item,
                          .n = item ? 1 : 0,
                          .batch = &batch,
                          .max = 10,
                          .token = {9, 9},
                          .lease_ms = 5000,
                          .again = true};
    once_execute_store(&s->executor, &action);
    once_arena_release(&batch.arena);
    return action.status;
}

/* Each once, and nobody else says anything. */
static void assert_told(scene *s, const char *event, const char *const *keys, unsigned n)
{
    char expected[100];
    const char *text = close_log(n);
    for (unsigned i = 0; i < n; i++) {
        snprintf(expected, sizeof expected,
                 "\"event\":\"%s\",\"at\":\":\",\"key\":\"%s\",\"attempt\":1,\"idempotency_key\":\"", event, keys[i]);
        if (lines_with(text, expected) != 1) fail_msg("%s of %s: %s", event, keys[i], text);
    }
    assert_int_equal(lines_with(text, "\n"), n);
    s->store->ops = real;
    tear_down(s);
}

/* `look` is what finds it: RENEW looks for claims that are over, TAKE finds them among what is due. */
static void is_told_after_its_reply_was_lost(once_action_kind look, bool with_body)
{
    static const char *const keys[] = {"k"};
    scene s;
    trouble(&s);
    orphan(&s, keys[0], with_body);
    s.executor.lapsed_at_ns =
        look == ONCE_ACT_TAKE ? once_env_mono_ns(s.store->env) : 0; /* nobody has looked before take does */
    store_does = LOSES_REPLIES;
    (void)act(&s, look, NULL);
    store_does = IS_AWAY;
    for (int i = 0; i < 3; i++) (void)act(&s, look, NULL);
    assert_int_equal(lines_with(read_log(), "\n"), 0); /* nobody knows yet */
    store_does = ANSWERS;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(act(&s, look, NULL), ONCE_OK);
        test_env_pass(&s.world, 3000);
    }
    assert_told(&s, "unknown", keys, 1);
}

static void f99_f06_unknowns_are_told_although_the_reply_was_lost(void **state)
{
    (void)state;
    is_told_after_its_reply_was_lost(ONCE_ACT_RENEW, false);
    is_told_after_its_reply_was_lost(ONCE_ACT_RENEW, true);
    is_told_after_its_reply_was_lost(ONCE_ACT_TAKE, true);
}

static int not_done_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                          size_t *n, once_arena *arena, once_error *err)
{
    static const once_scope scope = {.consumer = ONCE_BYTES("c")};
    (void)consumer, (void)except_run, (void)max, (void)arena;
    out[0] = (once_taken){.scope = scope,
                          .request = {.key = ONCE_BYTES("k"),
                                      .id = once_key_id(store->secret, &scope, ONCE_BYTES("k")),
                                      .token = {1, RUN(3)}},
                          .decision = {.answer = ONCE_ANSWER_UNKNOWN, .lapsed = true, .lapsed_ms = 1, .attempt = 1}};
    *n = 1;
    return once_fail(err, ONCE_E_UNAVAILABLE, "no answer");
}

/* The commit did not happen: nobody says so, and whoever finds it next does; or another one had, and has said it. */
static void f99_what_was_not_written_is_not_told_of_twice(void **state)
{
    (void)state;
    for (int another = 0; another < 2; another++) {
        static const char *const keys[] = {"k"};
        once_taken lapsed[1];
        size_t n;
        scene s;
        trouble(&s);
        orphan(&s, keys[0], true);
        troubled.lapse = not_done_lapse;
        (void)act(&s, ONCE_ACT_RENEW, NULL);
        assert_int_equal(s.executor.unconfirmed.n, 1);
        troubled.lapse = troubled_lapse;
        if (another) assert_int_equal(real->lapse(s.store, ONCE_BYTES("c"), 0, 1, lapsed, &n, &s.arena, NULL), ONCE_OK);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(act(&s, ONCE_ACT_RENEW, NULL), ONCE_OK);
            test_env_pass(&s.world, 3000);
        }
        assert_told(&s, "unknown", keys, another ? 0 : 1);
    }
}

static void f99_what_nobody_can_ask_for_any_more_is_told(void **state)
{
    (void)state;
    static const char *const keys[] = {"k", "l"};
    scene s;
    trouble(&s);
    orphan(&s, keys[0], false);
    orphan(&s, keys[1], true);
    store_does = LOSES_REPLIES;
    (void)act(&s, ONCE_ACT_RENEW, NULL);
    store_does = IS_AWAY;
    (void)act(&s, ONCE_ACT_RENEW, NULL);
    assert_int_equal(lines_with(read_log(), "\n"), 0);
    once_executor_release(&s.executor); /* the run has given up */
    once_executor_init(&s.executor, s.store, ONCE_BYTES("c"), NULL, NULL);
    assert_told(&s, "unknown", keys, 2);
}

static once_item delivered(scene *s, const char *key, once_batch *batch)
{
    once_item item = {.batch = batch, .scope = {.consumer = ONCE_BYTES("c")}, .message.sent_ms = ONCE_NO_TIME};
    item.request = (once_request){.key = {key, strlen(key)},
                                  .token = {1, RUN(5)},
                                  .lane.gap_ms = -1,
                                  .lease_ms = 1000,
                                  .remember_ms = 1000000,
                                  .sent_ms = ONCE_NO_TIME,
                                  .run = RUN(5),
                                  .hold = true};
    item.request.id = once_key_id(s->store->secret, &item.scope, item.request.key);
    return item;
}

/* After an unclean end messages are claimed one by one, outside of a transaction. */
static void f99_f06_a_claim_by_itself_whose_reply_was_lost_tells(void **state)
{
    (void)state;
    static const char *const keys[] = {"k"};
    once_batch batch = {0};
    scene s;
    trouble(&s);
    orphan(&s, keys[0], false);
    s.executor.lapsed_at_ns = once_env_mono_ns(s.store->env);
    once_item item = delivered(&s, "k", &batch);
    item.request.scope = &item.scope;
    store_does = LOSES_REPLIES;
    assert_int_equal(act(&s, ONCE_ACT_CLAIM, &item), ONCE_E_UNAVAILABLE);
    store_does = ANSWERS;
    assert_int_equal(act(&s, ONCE_ACT_CLAIM, &item), ONCE_OK);
    assert_int_equal(item.decision.answer, ONCE_ANSWER_UNKNOWN);
    assert_int_equal(act(&s, ONCE_ACT_RENEW, NULL), ONCE_OK);
    assert_told(&s, "unknown", keys, 1);
}

/* A worker that was late settles as unknown what others have found to be so. */
static void f99_an_unknown_is_one_line_whoever_settles_it(void **state)
{
    (void)state;
    once_batch batch = {0};
    once_taken lapsed[1];
    size_t n = 0;
    scene s;
    trouble(&s);
    once_item item = delivered(&s, "k", &batch);
    item.request.scope = &item.scope;
    assert_int_equal(act(&s, ONCE_ACT_CLAIM, &item), ONCE_OK);
    test_env_pass(&s.world, 1500);
    assert_int_equal(real->lapse(s.store, ONCE_BYTES("c"), 0, 1, lapsed, &n, &s.arena, NULL), ONCE_OK);
    assert_int_equal(n, 1);
    item.outcome = ONCE_UNKNOWN;
    item.returned = item.started = item.maybe_done = true;
    item.commit_unknown = true; /* it was also in a commit that the store refused */
    assert_int_equal(act(&s, ONCE_ACT_BEGIN, NULL), ONCE_OK);
    assert_int_equal(act(&s, ONCE_ACT_SETTLE, &item), ONCE_OK);
    assert_true(item.granted);
    assert_int_equal(act(&s, ONCE_ACT_COMMIT, NULL), ONCE_OK);
    assert_told(&s, "unknown", NULL, 0);
}

/* What a run has settled in a commit of which no answer came, and which cannot be asked for because the run gives up.
 */
static void f99_f06_the_last_commit_of_a_run_is_told_of(void **state)
{
    (void)state;
    for (int later = 0; later < 2; later++) {
        static const char *const keys[] = {"k"};
        once_batch batch = {0};
        scene s;
        trouble(&s);
        once_item item = delivered(&s, "k", &batch);
        item.request.scope = &item.scope;
        assert_int_equal(act(&s, ONCE_ACT_CLAIM, &item), ONCE_OK);
        item.outcome = ONCE_UNKNOWN;
        item.returned = item.started = item.maybe_done = true;
        store_does = LOSES_REPLIES;
        assert_int_equal(act(&s, ONCE_ACT_BEGIN, NULL), ONCE_OK);
        assert_int_equal(act(&s, ONCE_ACT_SETTLE, &item), ONCE_OK);
        assert_int_equal(act(&s, ONCE_ACT_COMMIT, NULL), ONCE_E_UNAVAILABLE);
        store_does = later ? ANSWERS : IS_AWAY;
        item.commit_unknown = true;
        assert_int_equal(act(&s, ONCE_ACT_BEGIN, NULL), ONCE_OK);
        if (later) assert_int_equal(act(&s, ONCE_ACT_SETTLE, &item), ONCE_OK);
        assert_int_equal(act(&s, later ? ONCE_ACT_COMMIT : ONCE_ACT_ROLLBACK, NULL), ONCE_OK);
        once_executor_release(&s.executor);
        once_executor_init(&s.executor, s.store, ONCE_BYTES("c"), NULL, NULL);
        assert_told(&s, "unknown", keys, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f99_a_line_says_what_is_known_of_its_message),
        cmocka_unit_test(f99_long_text_is_cut),
        cmocka_unit_test(f99_of_too_much_text_the_lines_are_left),
        cmocka_unit_test(f100_the_log_says_for_whom_a_run_waits),
        cmocka_unit_test(the_log_says_that_a_run_waits_for_a_lookup),
        cmocka_unit_test(f100_the_log_is_not_filled_with_waiting),
        cmocka_unit_test(f99_f06_unknowns_are_told_although_the_reply_was_lost),
        cmocka_unit_test(f99_what_was_not_written_is_not_told_of_twice),
        cmocka_unit_test(f99_what_nobody_can_ask_for_any_more_is_told),
        cmocka_unit_test(f99_f06_a_claim_by_itself_whose_reply_was_lost_tells),
        cmocka_unit_test(f99_an_unknown_is_one_line_whoever_settles_it),
        cmocka_unit_test(f99_f06_the_last_commit_of_a_run_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
