/* A pipeline with its threads, through the public headers; runs under ThreadSanitizer too (pthread). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "once/once.h"

#define MESSAGES 5000

typedef struct fixture {
    char dir[64], yaml[100], data[100], db[100];
    once_pipeline *pipeline;
} fixture;

static void write_external(fixture *f, const char *handler)
{
    FILE *out = fopen(f->yaml, "w");
    assert_non_null(out);
    fprintf(out,
            "consumer: test\nstore: sqlite:%s\nsource: {file: {path: %s}}\nkey: \"${/id}\"\norder: \"${/n}\"\nbatch: "
            "{max: 100}\n"
            "retry: {attempts: 3, backoff: 1ms..5ms}\nlease: 1s\n"
            /* in lanes of messages that all fail once, every other attempt fails */
            "handler: {%s, breaker: off}\n",
            f->db, f->data, handler);
    fclose(out);
}

static void write_pipeline(fixture *f, const char *more)
{
    FILE *out = fopen(f->yaml, "w");
    assert_non_null(out);
    fprintf(out,
            "consumer: test\nstore: sqlite:%s\nsource: {file: {path: %s%s}}\nkey: \"${/id}\"\nbatch: {max: 100}\n"
            "init: CREATE TABLE IF NOT EXISTS seen(id INTEGER, n INTEGER CHECK (n >= 0))\n"
            "handler: {sql: \"INSERT INTO seen(id, n) VALUES (:id, :n)\"}\n",
            f->db, f->data, more);
    fclose(out);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-runtime.XXXXXX", 25);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->yaml, sizeof f->yaml, "%s/p.yaml", f->dir);
    snprintf(f->data, sizeof f->data, "%s/in.ndjson", f->dir);
    snprintf(f->db, sizeof f->db, "%s/s.db", f->dir);
    write_pipeline(f, "");
    FILE *out = fopen(f->data, "w");
    for (int i = 0; i < MESSAGES; i++)
        fprintf(out, "{\"id\": %d, \"n\": %d}\n", i % (MESSAGES - 500), i % 50 == 49 ? -1 : i % 50);
    fclose(out);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"p.yaml", "in.ndjson", "s.db", "s.db-wal", "s.db-shm"};
    once_pipeline_free(f->pipeline);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

static int64_t ask(fixture *f, const char *sql)
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

static void load(fixture *f)
{
    once_error err;
    once_pipeline_free(f->pipeline);
    f->pipeline = NULL;
    if (once_pipeline_load(f->yaml, NULL, NULL, &f->pipeline, &err) != ONCE_OK) fail_msg("%s", err.text);
}

/* Where something secret is in memory: then no core is left. */
static void secrets_are_known_wherever_they_stand(void **state)
{
    static const struct {
        const char *store, *handler, *password; /* password: of PGPASSWORD */
        bool secret;
        const char *source; /* NULL: a file */
    } cases[] = {
        {"memory", "dead: x", NULL, false},
        {"memory", "dead: x", "hush", false},                 /* nobody asks for it */
        {"memory", "dead: x", NULL, true, "sqs: {queue: q}"}, /* it has credentials, wherever they come from */
        {"memory", "exec: [a], env: {A: b}", NULL, false},
        {"memory", "exec: [a], env: {A: \"env:B\"}", NULL, true},
        {"memory", "sql: {url: \"sqlite:x\", do: [SELECT 1]}", "hush", false},
        {"memory", "sql: {url: \"env:URL\", do: [SELECT 1]}", NULL, true},
        {"memory", "sql: {url: \"file:url\", do: [SELECT 1]}", NULL, true},
#ifdef ONCE_WITH_POSTGRES
        {"memory", "sql: {url: \"postgres://u@h/d\", do: [SELECT 1]}", NULL, false},
        {"memory", "sql: {url: \"postgres://u@h/d\", do: [SELECT 1]}", "hush", true},
        {"memory", "sql: {url: \"postgres://u:hush@h/d\", do: [SELECT 1]}", NULL, true},
        {"memory", "sql: {url: \"postgres://h/d?password=hush\", do: [SELECT 1]}", NULL, true},
        {"postgres://u@h/d", "dead: x", NULL, false},
        {"postgres://u@h/d", "dead: x", "hush", true},
        {"postgresql://u:hush@h/d", "dead: x", NULL, true},
        {"postgres://u@h/d?sslpassword=hush", "dead: x", NULL, true},
#endif
    };
    fixture *f = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *out = fopen(f->yaml, "w");
        fprintf(out, "consumer: c\nstore: %s\nsource: {%s}\nkey: \"${/id}\"\nhandler: {%s}\n", cases[i].store,
                cases[i].source ? cases[i].source : "file: {path: x}", cases[i].handler);
        fclose(out);
        if (cases[i].password) setenv("PGPASSWORD", cases[i].password, 1);
        else unsetenv("PGPASSWORD");
        once_pipeline_free(f->pipeline);
        f->pipeline = NULL;
        load(f);
        if (once_pipeline_has_secrets(f->pipeline) != cases[i].secret)
            fail_msg("%s, %s", cases[i].store, cases[i].handler);
    }
    unsetenv("PGPASSWORD");
}

static void expect_sum(const once_counts *c)
{
    assert_int_equal(c->received + c->resumed, c->done + c->already + c->rejected + c->stale + c->skipped +
                                                   c->duplicates + c->waiting + c->unknown + c->dead);
}

static void a_run_settles_everything_and_a_second_one_only_duplicates(void **state)
{
    fixture *f = *state;
    once_summary summary;
    once_error err;
    load(f);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
    expect_sum(&summary.counts);
    assert_int_equal(summary.counts.received, MESSAGES);
    assert_int_equal(summary.counts.dead, (MESSAGES - 500) / 50);
    assert_int_equal(summary.counts.duplicates, 500);
    assert_int_equal(summary.counts.acked, MESSAGES);
    assert_int_equal(ask(f, "SELECT count(*) FROM seen"), summary.counts.done);
    load(f);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
    assert_int_equal(summary.counts.duplicates, MESSAGES);
    assert_int_equal(ask(f, "SELECT count(*) - count(DISTINCT id) FROM seen"), 0);
}

static void *stop_soon(void *arg)
{
    usleep(3000);
    once_pipeline_stop(arg);
    return NULL;
}

static void f59_a_stop_from_another_thread_drains_and_loses_nothing(void **state)
{
    fixture *f = *state;
    once_summary summary;
    once_error err;
    uint64_t done = 0;
    for (int i = 0; i < 20; i++) {
        pthread_t stopper;
        load(f);
        assert_int_equal(pthread_create(&stopper, NULL, stop_soon, f->pipeline), 0);
        assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
        pthread_join(stopper, NULL);
        expect_sum(&summary.counts);
        assert_int_equal(summary.counts.acked, summary.counts.received);
        done += summary.counts.done;
        assert_int_equal(ask(f, "SELECT count(*) FROM seen"), done);
    }
    load(f);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
    assert_int_equal(ask(f, "SELECT count(*) FROM seen"), (MESSAGES - 500) / 50 * 49);
}

typedef struct watching {
    once_pipeline *pipeline;
    uint64_t calls, last;
} watching;

static void on_progress(void *user, const once_counts *counts, int64_t left, double seconds)
{
    watching *w = user;
    w->calls++;
    assert_true(counts->received >= w->last);
    assert_true(left >= 0 && seconds >= 0);
    w->last = counts->received;
    if (counts->received == MESSAGES) once_pipeline_stop(w->pipeline);
}

static void following_shows_progress_and_ends_when_told(void **state)
{
    fixture *f = *state;
    once_summary summary;
    once_error err;
    write_pipeline(f, ", follow: true");
    load(f);
    watching w = {.pipeline = f->pipeline};
    const once_run_options options = {.size = sizeof options, .progress = on_progress, .user = &w};
    assert_int_equal(once_pipeline_run(f->pipeline, &options, &summary, &err), ONCE_OK);
    assert_true(summary.stopped);
    assert_true(w.calls > 0);
    assert_int_equal(summary.counts.received, MESSAGES);
    expect_sum(&summary.counts);
}

/* Counts each effect of an id; some fail at first, and all of one lane (`n`) must not overlap. */
typedef struct shop {
    atomic_int effects[MESSAGES];
    atomic_int busy, most;
} shop;

static once_outcome serve(void *user, const once_call *call, once_reply *reply)
{
    shop *s = user;
    char key[12];
    snprintf(key, sizeof key, "%.*s", (int)call->delivery->key.len, call->delivery->key.data);
    const int id = atoi(key), busy = atomic_fetch_add(&s->busy, 1) + 1;
    for (int most = atomic_load(&s->most); busy > most && !atomic_compare_exchange_weak(&s->most, &most, busy);)
        continue;
    for (int i = 0; i < 600 && atomic_load(&s->most) < 2; i++)
        usleep(500); /* the first one waits for company, on a busy machine, too */
    if (id % 100 == 3) usleep(200);
    atomic_fetch_sub(&s->busy, 1);
    if (id % 10 == 7 && call->attempt == 1) {
        once_reply_reason(reply, "not yet");
        once_reply_delay(reply, 1);
        return ONCE_RETRY;
    }
    if (once_call_extend(call, 0, NULL) != ONCE_OK) return ONCE_UNKNOWN;
    atomic_fetch_add(&s->effects[id], 1);
    once_reply_result(reply, call->delivery->key);
    return ONCE_DONE;
}

static once_outcome note_key(void *user, const once_call *call, once_reply *reply)
{
    (void)reply;
    memcpy(user, call->idempotency_key, 33);
    return ONCE_DONE;
}

static void note_listed(void *user, const once_explanation *e) { memcpy(user, e->idempotency_key, 33); }

static void f82_a_program_may_bring_the_salt(void **state)
{
    fixture *f = *state;
    char given[33] = "", shown[33] = "";
    once_summary summary;
    once_error err;
    FILE *out = fopen(f->data, "w");
    fputs("{\"id\": \"p-1\", \"n\": 1}\n", out);
    fclose(out);
    write_external(f, "operation: charge, callback: serve");
    load(f);
    assert_int_equal(once_pipeline_idempotency_salt(f->pipeline, ONCE_BYTES("fifteen bytes.."), &err), ONCE_E_USAGE);
    assert_int_equal(once_pipeline_idempotency_salt(f->pipeline, ONCE_BYTES("0123456789abcdef"), &err), ONCE_OK);
    assert_true(once_pipeline_has_secrets(f->pipeline));
    assert_int_equal(once_pipeline_callback(f->pipeline, "serve", note_key, given, &err), ONCE_OK);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
    assert_int_equal(summary.counts.done, 1);
    assert_string_equal(given, "d15d3e0d2d04a0ac0efb4087e8be6028");
    assert_int_equal(once_pipeline_explain(f->pipeline, (once_bytes){0}, ONCE_BYTES("p-1"), note_listed, shown, &err),
                     ONCE_OK);
    assert_string_equal(shown, given);
    load(f); /* without it every key would be another one */
    assert_int_equal(once_pipeline_callback(f->pipeline, "serve", note_key, given, &err), ONCE_OK);
    assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_E_SCOPE);
}

static void callbacks_in_threads_have_one_effect_each(void **state)
{
    fixture *f = *state;
    static shop s;
    once_summary summary;
    once_error err;
    FILE *out = fopen(f->data, "w");
    for (int i = 0; i < 1500; i++) fprintf(out, "{\"id\": %d, \"n\": %d}\n", i % 1000, i % 200);
    fclose(out);
    write_external(f, "callback: serve");
    uint64_t done = 0;
    for (int i = 0; i < 6; i++) { /* the last one comes to its end */
        pthread_t stopper;
        load(f);
        assert_int_equal(once_pipeline_callback(f->pipeline, "serve", serve, &s, &err), ONCE_OK);
        assert_int_equal(once_pipeline_callback(f->pipeline, "serve", serve, &s, &err), ONCE_E_USAGE);
        assert_int_equal(once_pipeline_callback(f->pipeline, "other", serve, &s, &err), ONCE_E_USAGE);
        if (i < 5) assert_int_equal(pthread_create(&stopper, NULL, stop_soon, f->pipeline), 0);
        assert_int_equal(once_pipeline_run(f->pipeline, NULL, &summary, &err), ONCE_OK);
        if (i < 5) pthread_join(stopper, NULL);
        expect_sum(&summary.counts);
        done += summary.counts.done;
    }
    assert_int_equal(done, 1000);
    assert_int_equal(summary.store_dead + summary.store_unknown, 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(atomic_load(&s.effects[i]), 1);
    assert_in_range(atomic_load(&s.most), 2, 4); /* workers */
}

static void a_kept_process_beside_the_threads(void **state)
{
    fixture *f = *state;
    once_summary summary;
    once_error err;
    write_external(f,
                   "exec: [sed, -u, 's/^{\"id\":\\(\"[0-9]*\"\\).*/{\"id\":\\1,\"outcome\":\"done\"}/'], mode: stream");
    load(f);
    if (once_pipeline_run(f->pipeline, NULL, &summary, &err) != ONCE_OK) fail_msg("%s", err.text);
    expect_sum(&summary.counts);
    assert_int_equal(summary.counts.received, MESSAGES);
    assert_int_equal(summary.counts.done, MESSAGES - 500);
    assert_int_equal(summary.counts.duplicates + summary.counts.dead,
                     500); /* the same id with another n is a conflict */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(secrets_are_known_wherever_they_stand),
        TEST(a_run_settles_everything_and_a_second_one_only_duplicates),
        TEST(f59_a_stop_from_another_thread_drains_and_loses_nothing),
        TEST(following_shows_progress_and_ends_when_told),
        TEST(f82_a_program_may_bring_the_salt),
        TEST(callbacks_in_threads_have_one_effect_each),
        TEST(a_kept_process_beside_the_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
