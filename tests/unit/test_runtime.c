/* A pipeline with its threads, through the public headers; runs under ThreadSanitizer too (pthread). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
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
    for (int i = 0; i < MESSAGES; i++) fprintf(out, "{\"id\": %d, \"n\": %d}\n", i % (MESSAGES - 500), i % 50 == 49 ? -1 : 1);
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

static void expect_sum(const once_counts *c)
{
    assert_int_equal(c->received + c->resumed,
                     c->done + c->already + c->rejected + c->stale + c->duplicates + c->waiting + c->unknown + c->dead);
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_run_settles_everything_and_a_second_one_only_duplicates),
        TEST(f59_a_stop_from_another_thread_drains_and_loses_nothing),
        TEST(following_shows_progress_and_ends_when_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
