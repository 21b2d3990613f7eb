/* A pipeline with its threads over the source of tests (testsource.h): acks beside a fetch that blocks, and streams. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/log.h"
#include "effect/exec.h"
#include "once/once.h"
#include "runtime/runtime.h"
#include "testsource.h"

#define PATIENCE_MS 60000 /* for what must happen, on a machine that has much to do */

typedef struct consumer {
    once_pipeline *pipeline;
    pthread_t thread;
    bool runs;
    int rc;
    once_summary summary;
    once_error err;
} consumer;

typedef struct fixture {
    char dir[64], yaml[100], db[100];
    test_broker *broker;
    consumer consumers[2];
    atomic_int calls; /* of the callback */
    atomic_int stuck; /* calls that wait until they may go on */
    atomic_bool go_on;
    once_env env; /* the real one, whose clock the test can move */
    _Atomic int64_t later_ms;
    FILE *log;
    char said[20000];
} fixture;

static int64_t boot_ms(void *self)
{
    fixture *f = self;
    return once_env_real()->boot_ms(NULL) + atomic_load(&f->later_ms);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-streams.XXXXXX", 25);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->yaml, sizeof f->yaml, "%s/p.yaml", f->dir);
    snprintf(f->db, sizeof f->db, "%s/s.db", f->dir);
    assert_null(once_env_real()->self); /* the other functions do without it */
    f->env = *once_env_real();
    f->env.self = f;
    f->env.boot_ms = boot_ms;
    f->log = tmpfile();
    assert_non_null(f->log);
    assert_true(once_log_open_fd(fileno(f->log), ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
    *state = f;
    return 0;
}

/* Whether a line of this event says this. */
static bool has_said(fixture *f, const char *event, const char *text)
{
    const ssize_t n = pread(fileno(f->log), f->said, sizeof f->said - 1, 0);
    f->said[n > 0 ? n : 0] = '\0';
    for (const char *at = f->said; (at = strstr(at, event)); at++) {
        const char *end = strchr(at, '\n'), *found = strstr(at, text);
        if (found && (!end || found < end)) return true;
    }
    return false;
}

static void stop(consumer *c)
{
    if (!c->runs) return;
    once_pipeline_stop(c->pipeline);
    pthread_join(c->thread, NULL);
    c->runs = false;
}

static int teardown(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"p.yaml", "s.db", "s.db-wal", "s.db-shm", "go", "begun"};
    atomic_store(&f->go_on, true);
    for (int i = 0; i < 2; i++) {
        stop(&f->consumers[i]);
        once_pipeline_free(f->consumers[i].pipeline);
    }
    if (f->broker) test_broker_free(f->broker);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    once_log_close();
    fclose(f->log);
    free(f);
    return 0;
}

/* --- running --- */

/* A body that says so waits for the test. */
static once_outcome call(void *user, const once_call *one, once_reply *reply)
{
    fixture *f = user;
    (void)reply;
    static const char word[] = "\"stuck\"";
    const once_bytes body = one->delivery->body;
    if (body.len >= sizeof word && memmem(body.data, body.len, word, sizeof word - 1)) {
        atomic_fetch_add(&f->stuck, 1);
        while (!atomic_load(&f->go_on)) usleep(2000);
    }
    atomic_fetch_add(&f->calls, 1);
    return ONCE_DONE;
}

static void *run(void *arg)
{
    consumer *c = arg;
    c->rc = once_pipeline_run(c->pipeline, NULL, &c->summary, &c->err);
    return NULL;
}

static void load(fixture *f, int which, const char *rest)
{
    consumer *c = &f->consumers[which];
    FILE *out = fopen(f->yaml, "w");
    assert_non_null(out);
    fprintf(out,
            "consumer: test\nstore: sqlite:%s\nsource: {file: {path: x, follow: true}}\nkey: \"${/id}\"\n"
            "batch: {max: 10}\nlease: 30s\n%s%s\n",
            f->db, strstr(rest, "retry:") ? "" : "retry: {attempts: 3, backoff: 1ms..5ms}\n", rest);
    fclose(out);
    once_error err;
    if (once_pipeline_load(f->yaml, NULL, NULL, &c->pipeline, &err) != ONCE_OK) fail_msg("%s", err.text);
    test_source_use(f->broker, &c->pipeline->spec->source);
    c->pipeline->env = &f->env;
    if (strstr(rest, "callback: call"))
        assert_int_equal(once_pipeline_callback(c->pipeline, "call", call, f, &err), ONCE_OK);
}

static void start(fixture *f, int which, const char *rest)
{
    consumer *c = &f->consumers[which];
    load(f, which, rest);
    c->runs = true;
    assert_int_equal(pthread_create(&c->thread, NULL, run, c), 0);
}

static void put(fixture *f, unsigned stream, int id, const char *lane)
{
    char body[80];
    const int len = snprintf(body, sizeof body, "{\"id\":%d,\"lane\":\"%s\"}", id, lane);
    test_broker_put(f->broker, stream, (once_bytes){body, (size_t)len}, (once_bytes){0});
}

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits for a condition, and fails when it does not come. */
#define UNTIL(condition)                                                                                               \
    for (const int64_t give_up_ms = now_ms() + PATIENCE_MS; !(condition); usleep(2000))                                \
        if (now_ms() > give_up_ms) fail_msg("%s did not come; %s", #condition, f->said)

static void expect_no_harm(fixture *f)
{
    const test_broker_counts counts = test_broker_count(f->broker);
    assert_int_equal(counts.late_acks, 0);
    assert_int_equal(counts.wrong_acks, 0);
    assert_int_equal(counts.overdue, 0);
}

#define CALL "workers: 4\nhandler: {callback: call}\n"

/* --- tests --- */

static void an_ack_does_not_wait_for_a_fetch_that_blocks(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options){
        .bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, .block_ms = 10 * PATIENCE_MS, .real_time = true});
    for (int i = 0; i < 50; i++) put(f, 0, i, "a");
    start(f, 0, CALL);
    UNTIL(test_broker_count(f->broker).acked == 50); /* nothing more comes, so a fetch blocks */
    put(f, 0, 50, "a");
    UNTIL(test_broker_count(f->broker).acked == 51);
    stop(&f->consumers[0]); /* wakes it */
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(f->consumers[0].summary.counts.done, 51);
    assert_int_equal(test_broker_count(f->broker).handed_out, 51);
    expect_no_harm(f);
}

static void a_fetch_does_not_wait_for_an_ack_that_blocks(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options){
        .bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, .block_ms = 100, .real_time = true});
    test_broker_hold_acks(f->broker, true);
    start(f, 0, CALL);
    for (int i = 0; i < 50; i++) {
        put(f, 0, i, "a");
        UNTIL(atomic_load(&f->calls) == i + 1);
    }
    assert_int_equal(test_broker_count(f->broker).acked, 0);
    test_broker_hold_acks(f->broker, false);
    UNTIL(test_broker_count(f->broker).acked == 50);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    expect_no_harm(f);
}

static void acks_and_fetches_that_fail_are_repeated(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(
        &(test_broker_options){.bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, .block_ms = 20, .real_time = true});
    test_broker_fail_fetches(f->broker, 2);
    test_broker_fail_acks(f->broker, 2, 0);
    test_broker_lose_ack_replies(f->broker, 1);
    for (int i = 0; i < 30; i++) put(f, 0, i, "a");
    start(f, 0, CALL);
    UNTIL(test_broker_count(f->broker).acked == 30);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(f->consumers[0].summary.counts.done, 30);
    expect_no_harm(f);
}

/* The cursor of each stream is in the store: a broker that has lost all acks hands out nothing twice. */
static void a_stream_goes_on_where_the_store_says(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options){.bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE |
                                                               ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_CURSOR,
                                                       .streams = 3,
                                                       .within_ms = PATIENCE_MS,
                                                       .block_ms = 20,
                                                       .real_time = true});
    for (int i = 0; i < 60; i++) put(f, (unsigned)i % 3, i, "a");
    start(f, 0, CALL);
    UNTIL(test_broker_count(f->broker).acked == 60);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    once_pipeline_free(f->consumers[0].pipeline);
    f->consumers[0].pipeline = NULL;
    test_broker_forget_acks(f->broker);
    for (int i = 60; i < 63; i++) put(f, (unsigned)i % 3, i, "a");
    start(f, 0, CALL);
    UNTIL(atomic_load(&f->calls) == 63);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(f->consumers[0].summary.counts.received, 3);
    assert_int_equal(test_broker_count(f->broker).handed_out, 63);
    expect_no_harm(f);
}

/* Its answer is the source's: the others go on, the log names the source, and the store is not suspected. */
static void a_stream_that_cannot_be_sought_is_a_failure_of_the_source(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options){.bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE |
                                                               ONCE_SOURCE_ASSIGNS | ONCE_SOURCE_CURSOR,
                                                       .streams = 2,
                                                       .within_ms = PATIENCE_MS,
                                                       .block_ms = 20,
                                                       .real_time = true});
    test_broker_refuse_seeks(f->broker, 0, true);
    for (int i = 0; i < 60; i++) put(f, (unsigned)i % 2, i, "a");
    start(f, 0, CALL);
    UNTIL(atomic_load(&f->calls) == 30 && has_said(f, "source_failed", "seek: the broker of the test is away"));
    test_broker_refuse_seeks(f->broker, 0, false);
    UNTIL(atomic_load(&f->calls) == 60 && has_said(f, "source_works", "seek: works again"));
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_false(has_said(f, "store_away", "") || has_said(f, "store_works", ""));
    expect_no_harm(f);
}

typedef struct seen {
    size_t n;
    int64_t left[2], paused_ms[2];
    uint64_t open[2];
    char state[2][12];
} seen;

static bool see(void *user, const once_stream_shown *stream)
{
    seen *all = user;
    assert_memory_equal(stream->name, "t-", 2);
    const int i = stream->name[2] - '0';
    assert_in_range(i, 0, 1);
    all->n++;
    all->left[i] = stream->left;
    all->open[i] = stream->open;
    all->paused_ms[i] = stream->paused_ms;
    snprintf(all->state[i], sizeof all->state[i], "%s", stream->state);
    return true;
}

static seen look(fixture *f)
{
    seen all = {0};
    once_error err;
    assert_int_equal(once_pipeline_streams(f->consumers[0].pipeline, see, &all, &err), ONCE_OK);
    return all;
}

#define ASSIGNS_TWO                                                                                                    \
    {                                                                                                                  \
        .bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS, .streams = 2,                       \
        .within_ms = PATIENCE_MS, .block_ms = 20, .real_time = true                                                    \
    }
#define CALL_LONG "workers: 4\nhandler: {callback: call, timeout: 1h, lease: 3h}\n"

/* One message holds up a stream; what is left is known of each, and together; and the log says which it is. */
static void streams_are_shown_and_logged_by_name(void **state)
{
    enum { MANY = 900, FEW = 5 };
    fixture *f = *state;
    once_snapshot now = {.size = sizeof now};
    once_error err;
    f->broker = test_broker_new(&(test_broker_options)ASSIGNS_TWO);
    put(f, 0, 0, "stuck");
    for (int i = 1; i < MANY; i++) put(f, 0, i, "a");
    for (int i = 0; i < FEW; i++) put(f, 1, MANY + i, "b");
    start(f, 0, CALL_LONG);
    UNTIL(look(f).paused_ms[0] > 0 && look(f).open[1] == 0 && /* and all but that one were called */
          atomic_load(&f->calls) == (int)look(f).open[0] - 1 + FEW && look(f).open[0] > 600);
    const seen all = look(f);
    assert_int_equal(all.n, 2);
    assert_int_equal(all.left[1], 0);
    assert_int_equal(all.paused_ms[1], 0);
    assert_true(all.left[0] > 0 && all.left[0] + (int64_t)all.open[0] == MANY);
    assert_string_equal(all.state[0], "assigned");
    assert_int_equal(once_pipeline_snapshot(f->consumers[0].pipeline, &now, &err), ONCE_OK);
    assert_int_equal(now.left, all.left[0]);
    assert_int_equal(now.streams, 2);
    assert_int_equal(now.streams_paused, 1);
    UNTIL(has_said(f, "stream_assigned", "'t-0'") && has_said(f, "stream_assigned", "'t-1'"));
    assert_false(has_said(f, "stream_stuck", ""));
    atomic_store(&f->later_ms, 61000);
    UNTIL(has_said(f, "stream_stuck", "'t-0' has been paused for"));
    atomic_store(&f->go_on, true);
    UNTIL(has_said(f, "stream_goes_on", "") && atomic_load(&f->calls) == MANY + FEW);
    test_broker_lose(f->broker, 1);
    UNTIL(has_said(f, "stream_lost", "'t-1'"));
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    UNTIL(has_said(f, "stream_released", "'t-0'"));
    assert_int_equal(look(f).n, 0);
    expect_no_harm(f);
}

static void a_stream_that_is_revoked_is_logged_and_released(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options)ASSIGNS_TWO);
    start(f, 0, CALL);
    UNTIL(look(f).n == 2);
    test_broker_revoke(f->broker, 0);
    UNTIL(has_said(f, "stream_revoked", "'t-0'") && has_said(f, "stream_released", "'t-0'"));
    UNTIL(look(f).n == 1);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    expect_no_harm(f);
}

typedef struct findings {
    char text[4000];
    size_t len;
    unsigned warnings;
} findings;

static void note(void *user, const char *topic, const char *text, bool warning)
{
    findings *all = user;
    if (strcmp(topic, "source") != 0 && strcmp(topic, "secret") != 0) return;
    all->warnings += warning;
    all->len +=
        (size_t)snprintf(all->text + all->len, sizeof all->text - all->len, "%s%s\n", warning ? "! " : "", text);
}

/* An error of the check is noted as "error: ...". */
static findings check(fixture *f, const char *rest)
{
    findings all = {0};
    once_error err;
    load(f, 0, rest);
    if (once_pipeline_check(f->consumers[0].pipeline, note, &all, &err) != ONCE_OK)
        all.len += (size_t)snprintf(all.text + all.len, sizeof all.text - all.len, "error: %s\n", err.text);
    once_pipeline_free(f->consumers[0].pipeline);
    f->consumers[0].pipeline = NULL;
    return all;
}

static void expect_text(const findings *all, const char *text)
{
    if (!strstr(all->text, text)) fail_msg("'%s' is not in: %s", text, all->text);
}

/* What the broker says is compared with the file, with both numbers and what to change; what it does not say is no
 * good news. It is asked by somebody who joins no group. */
static void check_compares_what_the_broker_says(void **state)
{
    fixture *f = *state;
    test_broker_options o = ASSIGNS_TWO;
    o.retention_ms = INT64_C(14) * 86400000;
    o.deliveries_max = 2;
    f->broker = test_broker_new(&o);
    findings all = check(f, "remember: 7d\n" CALL);
    expect_text(&all, "topic 't': retention.ms 14d\n");
    expect_text(&all, "! queue 't' gives a message up after 2 deliveries (maxReceiveCount), fewer than "
                      "'retry.attempts' (3, ");
    expect_text(&all, "p.yaml:7): a message that kills its worker each time");
    expect_text(&all, "the group has 0 members\n");
    assert_int_equal(all.warnings, 1);
    expect_text(&all, "error: ");
    expect_text(&all,
                "p.yaml:8: 'remember' (7d) is shorter than topic 't' keeps messages (14d, retention.ms): a message "
                "that is delivered after that time runs again; raise 'remember' to 14d");
    all = check(f, "remember: 30d\nretry: {attempts: 2}\n" CALL);
    assert_int_equal(all.warnings, 0);
    assert_null(strstr(all.text, "error: "));
    test_broker_free(f->broker);
    o.bits |= ONCE_SOURCE_TIMED;
    f->broker = test_broker_new(&o);
    all = check(f, "remember: 7d\nretry: {attempts: 2}\n" CALL);
    expect_text(&all, "that is delivered after that time becomes a dead letter, even if it was never handled;");
    assert_int_equal(test_broker_count(f->broker).handed_out, 0);
}

/* A message that is in work must still be there when its worker dies. */
static void check_refuses_a_topic_that_forgets_before_an_attempt_ends(void **state)
{
    fixture *f = *state;
    test_broker_options o = ASSIGNS_TWO;
    o.retention_ms = 40000;
    f->broker = test_broker_new(&o);
    findings all = check(f, "timeout: 20s\n" CALL);
    expect_text(&all, "p.yaml:6: topic 't' keeps messages for 40s (retention.ms), less than 'timeout' (20s, line 8) "
                      "and 'lease' (30s, line 6) together (50s): a message whose worker dies may be gone before it is "
                      "delivered again; raise retention.ms to 50s, or lower 'lease'\n");
    all = check(f, "timeout: 35s\n" CALL);
    expect_text(&all, "p.yaml:8: topic 't' keeps messages for 40s");
    expect_text(&all, "to 65s, or lower 'timeout'\n");
    all = check(f, "workers: 4\nhandler:\n  callback: call\n  lease: 1h\n");
    expect_text(&all, "p.yaml:11: topic 't' keeps messages for 40s (retention.ms), less than 'timeout' (10s by "
                      "default) and 'lease' (1h, line 11) together");
    all = check(f, "timeout: 10s\n" CALL);
    assert_null(strstr(all.text, "error: "));
}

/* What is retried is in the store. What is not read yet waits at the broker, when the store is full. */
static void check_warns_of_a_topic_that_forgets_before_retries_end(void **state)
{
    fixture *f = *state;
    test_broker_options o = ASSIGNS_TWO;
    o.retention_ms = 60000;
    f->broker = test_broker_new(&o);
    static const char told[] = "messages that wait for a retry, and dead letters, are in the store";
    findings all = check(f, "retry: {for: 1h}\n" CALL);
    expect_text(&all,
                "! topic 't' keeps messages for 1m (retention.ms), less than all retries may take ('retry': 61m, ");
    expect_text(&all, "p.yaml:7): if effects fail for that long and the store is full ('waiting_max'),");
    expect_text(&all, told);
    assert_null(strstr(all.text, "error: "));
    all = check(f, "retry: {for: 1h}\nwaiting_max: none\n" CALL);
    assert_int_equal(all.warnings, 0);
    test_broker_free(f->broker);
    o.retention_ms = ONCE_FOREVER;
    f->broker = test_broker_new(&o);
    all = check(f, "remember: forever\nretry: {for: 1h}\n" CALL);
    assert_int_equal(all.warnings, 0);
    assert_null(strstr(all.text, told));
}

/* Limits that are not known are not fine. */
static void check_fails_if_the_broker_does_not_answer(void **state)
{
    fixture *f = *state;
    test_broker_options o = ASSIGNS_TWO;
    once_error err;
    o.asks_down = true;
    f->broker = test_broker_new(&o);
    load(f, 0, CALL);
    findings all = {0};
    assert_int_equal(once_pipeline_check(f->consumers[0].pipeline, note, &all, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "p.yaml:"));
    assert_non_null(strstr(err.text, "the broker of the test is away"));
}

/* As those of effects: the process is not looked into, and what others may read is said. */
static void a_source_has_secrets_too(void **state)
{
    fixture *f = *state;
    char path[120], reference[130];
    test_broker_options o = ASSIGNS_TWO;
    snprintf(path, sizeof path, "%s/go", f->dir);
    snprintf(reference, sizeof reference, "file:%s", path);
    FILE *secret = fopen(path, "w");
    assert_non_null(secret);
    fputs("hush", secret);
    fclose(secret);
    assert_int_equal(chmod(path, 0644), 0);
    f->broker = test_broker_new(&o);
    load(f, 0, CALL);
    assert_false(once_pipeline_has_secrets(f->consumers[0].pipeline));
    once_pipeline_free(f->consumers[0].pipeline);
    test_broker_free(f->broker);
    o.secret = reference;
    f->broker = test_broker_new(&o);
    const findings all = check(f, CALL);
    expect_text(&all, "can be read by other users; run chmod go-r on it");
    expect_text(&all, "! the broker of the test is not encrypted");
    assert_null(strstr(all.text, "hush"));
    load(f, 0, CALL);
    assert_true(once_pipeline_has_secrets(f->consumers[0].pipeline));
}

/* Puts ${source:offset} of ${source:stream} into an argument: which names there are was asked of the file's source. */
static void use_names(consumer *c)
{
    const once_template *template;
    once_error err;
    c->pipeline->spec->source.named = true;
    const once_exec_spec *exec = c->pipeline->spec->handlers[0].own;
    assert_int_equal(exec->command.n, 6);
    assert_int_equal(
        once_template_parse(&c->pipeline->arena, ONCE_BYTES("${source:offset} of ${source:stream}"), &template, &err),
        ONCE_OK);
    ((const once_template **)exec->command.argv)[5] = template;
}

/* What the source knows of a message is kept with it: a retry from the store has the same in its arguments. */
static void names_of_the_source_are_the_same_on_a_retry(void **state)
{
    fixture *f = *state;
    char rest[700], out[100], text[100] = "";
    const test_broker_options o = ASSIGNS_TWO;
    snprintf(out, sizeof out, "%s/out", f->dir);
    snprintf(
        rest, sizeof rest,
        "ack: after_accept\nhandler: {exec: [sh, -c, 'echo \"$2\" >> %s; test -e $1 || { touch $1; exit 75; }', sh, "
        "%s/go, \"${/id}\"]}\n",
        out, f->dir);
    f->broker = test_broker_new(&o);
    put(f, 1, 7, "a");
    load(f, 0, rest);
    use_names(&f->consumers[0]);
    f->consumers[0].runs = true;
    assert_int_equal(pthread_create(&f->consumers[0].thread, NULL, run, &f->consumers[0]), 0);
    once_snapshot now = {.size = sizeof now};
    UNTIL(once_pipeline_snapshot(f->consumers[0].pipeline, &now, NULL) == ONCE_OK && now.counts.done == 1);
    stop(&f->consumers[0]);
    FILE *in = fopen(out, "r");
    assert_non_null(in);
    assert_true(fread(text, 1, sizeof text - 1, in) > 0);
    fclose(in);
    unlink(out);
    assert_string_equal(text, "1000 of t-1\n1000 of t-1\n");
}

static void check_says_what_the_broker_does_not_say(void **state)
{
    fixture *f = *state;
    test_broker_options o = ASSIGNS_TWO;
    o.retention_ms = 1;
    o.asks_fail = true;
    f->broker = test_broker_new(&o);
    const findings all = check(f, CALL);
    expect_text(&all, "! could not read retention.ms of topic 't': not authorized; it was not compared with "
                      "'remember', 'timeout', 'lease' and 'retry'\n");
    assert_int_equal(all.warnings, 1);
}

/* --- streams --- */

#define LOG (ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS)
#define QUEUE (ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_EXPIRES)
#define LANES "order: \"${/lane}\"\n"

static test_broker *log_of(unsigned streams, int64_t beat_ms)
{
    return test_broker_new(&(test_broker_options){.bits = LOG,
                                                  .streams = streams,
                                                  .within_ms = PATIENCE_MS / 2,
                                                  .beat_ms = beat_ms,
                                                  .block_ms = 20,
                                                  .real_time = true});
}

static void a_stuck_stream_holds_up_no_other(void **state)
{
    fixture *f = *state;
    f->broker = log_of(2, 0);
    for (int i = 0; i < 1000; i++) put(f, 0, i, "stuck"); /* of a stream 640 may be delivered and not acked */
    for (int i = 0; i < 1000; i++) put(f, 1, 10000 + i, i % 2 ? "a" : "b");
    start(f, 0, LANES CALL);
    UNTIL(test_broker_unacked(f->broker, 1) == 0);
    assert_int_equal(atomic_load(&f->stuck), 1); /* the others wait behind it */
    assert_int_equal(test_broker_unacked(f->broker, 0), 1000);
    put(f, 1, 20000, "c");
    UNTIL(test_broker_unacked(f->broker, 1) == 0);
    atomic_store(&f->go_on, true);
    UNTIL(test_broker_unacked(f->broker, 0) == 0);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(f->consumers[0].summary.counts.done, 2001);
    assert_int_equal(test_broker_count(f->broker).handed_out, 2001);
    expect_no_harm(f);
}

static void a_source_is_kept_awake_while_all_streams_are_stuck(void **state)
{
    fixture *f = *state;
    f->broker = log_of(2, 3000);
    for (int i = 0; i < 1500; i++) put(f, (unsigned)i % 2, i, "stuck");
    start(f, 0, LANES CALL);
    UNTIL(atomic_load(&f->stuck) == 1);
    const int64_t until_ms = now_ms() + 2 * 3000;
    UNTIL(now_ms() > until_ms && test_broker_count(f->broker).fetches); /* time passes in the broker, too */
    assert_int_equal(test_broker_count(f->broker).lost, 0);
    assert_true(test_broker_is_assigned(f->broker, 0) && test_broker_is_assigned(f->broker, 1));
    atomic_store(&f->go_on, true);
    UNTIL(test_broker_count(f->broker).acked == 1500);
    expect_no_harm(f);
}

/* --- streams that leave while commands run --- */

static void touch(const fixture *f, const char *name)
{
    char path[120];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fclose(out);
}

/* Each command adds a byte when it begins. */
static long begun(const fixture *f)
{
    char path[120];
    snprintf(path, sizeof path, "%s/begun", f->dir);
    FILE *in = fopen(path, "r");
    if (!in) return 0;
    (void)fseek(in, 0, SEEK_END);
    const long n = ftell(in);
    fclose(in);
    return n;
}

static void start_commands(fixture *f)
{
    char rest[400];
    snprintf(
        rest, sizeof rest,
        "workers: 2\nhandler: {exec: [sh, -c, \"printf x >>%s/begun; while [ ! -e %s/go ]; do sleep 0.02; done\"], "
        "timeout: 120s}\n",
        f->dir, f->dir);
    start(f, 0, rest);
}

static void leaves_while_commands_run(fixture *f, bool asked)
{
    f->broker = log_of(2, 0);
    for (int i = 0; i < 5; i++) put(f, 0, i, "a");
    start_commands(f);
    UNTIL(begun(f) == 2);
    if (asked) test_broker_revoke(f->broker, 0);
    else test_broker_lose(f->broker, 0);
    UNTIL(test_broker_count(f->broker).released == 1); /* nobody waits for the commands */
    assert_int_equal(test_broker_unacked(f->broker, 0), 5);
    put(f, 1, 100, "a"); /* the other stream goes on */
    touch(f, "go");
    UNTIL(test_broker_unacked(f->broker, 1) == 0);
    assert_int_equal(begun(f), 3); /* what had not begun did not begin */
    assert_int_equal(test_broker_count(f->broker).acked, 1);
    test_broker_rebalance(f->broker); /* the stream comes back */
    UNTIL(test_broker_unacked(f->broker, 0) == 0);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(begun(f), 6); /* each once */
    assert_int_equal(f->consumers[0].summary.counts.done, 6);
    expect_no_harm(f);
}

static void a_stream_is_revoked_while_commands_run(void **state) { leaves_while_commands_run(*state, true); }
static void a_stream_is_lost_while_commands_run(void **state) { leaves_while_commands_run(*state, false); }

static void who_stops_releases_its_streams(void **state)
{
    fixture *f = *state;
    f->broker = log_of(3, 0);
    for (int i = 0; i < 30; i++) put(f, (unsigned)i % 3, i, "a");
    start(f, 0, CALL);
    UNTIL(test_broker_count(f->broker).acked == 30);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(test_broker_count(f->broker).released, 3);
    expect_no_harm(f);
}

/* --- deliveries that run out --- */

static void deliveries_that_take_long_or_wait_are_extended(void **state)
{
    fixture *f = *state;
    f->broker =
        test_broker_new(&(test_broker_options){.bits = QUEUE, .expires_ms = 3000, .block_ms = 20, .real_time = true});
    for (int i = 0; i < 4; i++) put(f, 0, i, "stuck"); /* one is called, the others are parked */
    start(f, 0, LANES CALL);
    UNTIL(test_broker_count(f->broker).extended >= 4 * 5);
    assert_int_equal(atomic_load(&f->stuck), 1);
    atomic_store(&f->go_on, true);
    UNTIL(test_broker_count(f->broker).acked == 4);
    const test_broker_counts counts = test_broker_count(f->broker);
    assert_int_equal(counts.ran_out, 0);
    assert_int_equal(counts.handed_out, 4);
    expect_no_harm(f);
}

static void what_cannot_be_held_longer_goes_to_the_store(void **state)
{
    fixture *f = *state;
    f->broker = test_broker_new(&(test_broker_options){
        .bits = QUEUE, .expires_ms = 3000, .held_max_ms = 6000, .block_ms = 20, .real_time = true});
    for (int i = 0; i < 4; i++) put(f, 0, i, "stuck");
    start(f, 0, LANES CALL);
    UNTIL(atomic_load(&f->stuck) == 1);
    /* Those that are parked are acked, and the one that runs is not. */
    UNTIL(test_broker_acked(f->broker, 0, 1) && test_broker_acked(f->broker, 0, 2) &&
          test_broker_acked(f->broker, 0, 3));
    assert_false(test_broker_acked(f->broker, 0, 0));
    assert_int_equal(atomic_load(&f->calls), 0);
    atomic_store(&f->go_on, true);
    UNTIL(atomic_load(&f->calls) == 4 && test_broker_count(f->broker).acked == 4);
    stop(&f->consumers[0]);
    assert_int_equal(f->consumers[0].rc, ONCE_OK);
    assert_int_equal(atomic_load(&f->calls), 4);
    assert_int_equal(f->consumers[0].summary.counts.done, 4);
    expect_no_harm(f);
}

/* --- several consumers --- */

static int64_t ask(const fixture *f, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int64_t answer = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return answer;
}

static void streams_move_between_two_pipelines_and_each_message_has_one_effect(void **state)
{
    fixture *f = *state;
    static const char insert[] = "init: CREATE TABLE IF NOT EXISTS seen(id INTEGER)\n"
                                 "handler: {sql: \"INSERT INTO seen(id) VALUES (:id)\"}\n";
    f->broker = log_of(4, 0);
    int made = 0;
    start(f, 0, insert);
    start(f, 1, insert);
    for (unsigned round = 0; round < 30; round++) {
        for (int i = 0; i < 20; i++, made++) put(f, (unsigned)made % 4, made, "a");
        if (round % 3 == 0) UNTIL(test_broker_unacked(f->broker, round % 4) == 0);
        UNTIL(test_broker_is_assigned(f->broker, round % 4));
        if (round % 5 == 4) test_broker_lose(f->broker, round % 4);
        else test_broker_revoke(f->broker, round % 4);
        test_broker_rebalance(f->broker);
    }
    UNTIL(test_broker_count(f->broker).acked == (uint64_t)made);
    for (int i = 0; i < 2; i++) {
        stop(&f->consumers[i]);
        assert_int_equal(f->consumers[i].rc, ONCE_OK);
    }
    assert_int_equal(ask(f, "SELECT count(*) FROM seen"), made);
    assert_int_equal(ask(f, "SELECT count(DISTINCT id) FROM seen"), made);
    expect_no_harm(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_ack_does_not_wait_for_a_fetch_that_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fetch_does_not_wait_for_an_ack_that_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(acks_and_fetches_that_fail_are_repeated, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_goes_on_where_the_store_says, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_that_cannot_be_sought_is_a_failure_of_the_source, setup, teardown),
        cmocka_unit_test_setup_teardown(streams_are_shown_and_logged_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(check_compares_what_the_broker_says, setup, teardown),
        cmocka_unit_test_setup_teardown(check_refuses_a_topic_that_forgets_before_an_attempt_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(check_warns_of_a_topic_that_forgets_before_retries_end, setup, teardown),
        cmocka_unit_test_setup_teardown(check_fails_if_the_broker_does_not_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(check_says_what_the_broker_does_not_say, setup, teardown),
        cmocka_unit_test_setup_teardown(a_source_has_secrets_too, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_the_source_are_the_same_on_a_retry, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_that_is_revoked_is_logged_and_released, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stuck_stream_holds_up_no_other, setup, teardown),
        cmocka_unit_test_setup_teardown(a_source_is_kept_awake_while_all_streams_are_stuck, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_is_revoked_while_commands_run, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_is_lost_while_commands_run, setup, teardown),
        cmocka_unit_test_setup_teardown(who_stops_releases_its_streams, setup, teardown),
        cmocka_unit_test_setup_teardown(deliveries_that_take_long_or_wait_are_extended, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_held_longer_goes_to_the_store, setup, teardown),
        cmocka_unit_test_setup_teardown(streams_move_between_two_pipelines_and_each_message_has_one_effect, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
