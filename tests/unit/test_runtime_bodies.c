/* A pipeline whose messages have bodies of any bytes, or none: over the broker of tests, with a C function and with
 * SQL, also after a wait in the store. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/log.h"
#include "once/once.h"
#include "runtime/runtime.h"
#include "testsource.h"

#define PATIENCE_MS 60000

static const once_bytes bodies[] = {ONCE_BYTES("\0\xff\xfe"), ONCE_BYTES(""), {0}, ONCE_BYTES("{\"a\": 1}")};
enum { N = sizeof bodies / sizeof *bodies, NO_BODY = 2 };

typedef struct fixture {
    char dir[64], yaml[100], db[100];
    test_broker *broker;
    once_pipeline *pipeline;
    pthread_t thread;
    bool runs;
    once_summary summary;
    _Atomic uint32_t right, wrong, retried; /* calls */
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-bodies.XXXXXX", 24);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->yaml, sizeof f->yaml, "%s/p.yaml", f->dir);
    snprintf(f->db, sizeof f->db, "%s/s.db", f->dir);
    f->broker = test_broker_new(
        &(test_broker_options){.bits = ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, .block_ms = 50, .real_time = true});
    for (size_t i = 0; i < N; i++) test_broker_put(f->broker, 0, bodies[i], ONCE_BYTES("{\"h\":\"x\"}"));
    *state = f;
    return 0;
}

static void stop(fixture *f)
{
    if (!f->runs) return;
    once_pipeline_stop(f->pipeline);
    pthread_join(f->thread, NULL);
    f->runs = false;
}

static int teardown(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"p.yaml", "s.db", "s.db-wal", "s.db-shm"};
    stop(f);
    once_pipeline_free(f->pipeline);
    test_broker_free(f->broker);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

/* The first attempt at each fails, so that the second one has its message from the store. */
static once_outcome call(void *user, const once_call *one, once_reply *reply)
{
    fixture *f = user;
    (void)reply;
    const size_t i = (size_t)strtoul(one->delivery->point.data, NULL, 10) % N;
    const bool same = one->delivery->size == sizeof *one->delivery &&
                      once_bytes_equal(one->delivery->body, bodies[i]) && one->delivery->no_body == (i == NO_BODY);
    atomic_fetch_add(same ? &f->right : &f->wrong, 1);
    if (one->attempt > 1) return ONCE_DONE;
    atomic_fetch_add(&f->retried, 1);
    return ONCE_RETRY;
}

static void *run(void *arg)
{
    fixture *f = arg;
    (void)once_pipeline_run(f->pipeline, NULL, &f->summary, NULL);
    return NULL;
}

static void start(fixture *f, const char *of_all, const char *handler)
{
    FILE *out = fopen(f->yaml, "w");
    assert_non_null(out);
    fprintf(out,
            "consumer: test\nstore: sqlite:%s\nsource: {file: {path: x, follow: true}%s}\nkey: \"${coordinates}\"\n"
            "retry: {attempts: 3, backoff: 1ms..5ms}\ninit: CREATE TABLE IF NOT EXISTS t(k, body)\n%s\n",
            f->db, of_all, handler);
    fclose(out);
    once_error err;
    if (once_pipeline_load(f->yaml, NULL, NULL, &f->pipeline, &err) != ONCE_OK) fail_msg("%s", err.text);
    test_source_use(f->broker, &f->pipeline->spec->source);
    if (strstr(handler, "callback: call"))
        assert_int_equal(once_pipeline_callback(f->pipeline, "call", call, f, &err), ONCE_OK);
    f->runs = true;
    assert_int_equal(pthread_create(&f->thread, NULL, run, f), 0);
}

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static once_counts counts_now(fixture *f)
{
    once_snapshot now = {.size = sizeof now};
    assert_int_equal(once_pipeline_snapshot(f->pipeline, &now, NULL), ONCE_OK);
    return now.counts;
}

/* Until all are acked, and none waits in the store. */
static once_counts until_finished(fixture *f)
{
    const int64_t give_up_ms = now_ms() + PATIENCE_MS;
    for (;;) {
        const once_counts c = counts_now(f);
        if (c.acked == N && c.waiting == 0 && c.done + c.dead + c.skipped == N) return c;
        if (now_ms() > give_up_ms) fail_msg("it did not finish");
        usleep(2000);
    }
}

static void a_function_gets_every_byte_also_from_the_store(void **state)
{
    fixture *f = *state;
    start(f, ", body: bytes, tombstones: run", "handler: {callback: call}");
    const once_counts c = until_finished(f);
    assert_int_equal(c.done, N);
    assert_int_equal(atomic_load(&f->wrong), 0);
    assert_int_equal(atomic_load(&f->right), 2 * N);
    assert_int_equal(atomic_load(&f->retried), N);
}

static bool on_letter(void *user, const once_listed *item)
{
    assert_true(once_bytes_equal(item->reason, ONCE_BYTES("the message has no body")));
    assert_int_equal(item->body.len, 0);
    assert_true(memmem(item->headers.data, item->headers.len, "\"once:no_body\":true", 19) != NULL);
    ++*(int *)user;
    return true;
}

static void without_a_word_a_tombstone_is_a_dead_letter(void **state)
{
    fixture *f = *state;
    start(f, ", body: bytes", "handler: {callback: call}");
    const once_counts c = until_finished(f);
    assert_true(c.done == N - 1 && c.dead == 1 && c.skipped == 0);
    stop(f);
    int letters = 0;
    assert_int_equal(once_pipeline_list(f->pipeline, ONCE_LIST_DEAD, on_letter, &letters, NULL), ONCE_OK);
    assert_int_equal(letters, 1);
}

static void a_skipped_tombstone_leaves_nothing_but_a_count(void **state)
{
    fixture *f = *state;
    start(f, ", body: bytes, tombstones: skip", "handler: {callback: call}");
    const once_counts c = until_finished(f);
    assert_true(c.done == N - 1 && c.dead == 0 && c.skipped == 1);
    assert_int_equal(c.received, N);
}

static void sql_gets_blobs_and_null(void **state)
{
    fixture *f = *state;
    start(f, ", body: bytes, tombstones: run", "handler: {sql: [\"INSERT INTO t VALUES (:once_key, :once_body)\"]}");
    (void)until_finished(f);
    stop(f);
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(f->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT body FROM t ORDER BY k", -1, &stmt, NULL), SQLITE_OK);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        assert_int_equal(sqlite3_column_type(stmt, 0), i == NO_BODY ? SQLITE_NULL : SQLITE_BLOB);
        const once_bytes got = {sqlite3_column_blob(stmt, 0), (size_t)sqlite3_column_bytes(stmt, 0)};
        assert_true(once_bytes_equal(got, bodies[i]));
    }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_function_gets_every_byte_also_from_the_store),
        TEST(without_a_word_a_tombstone_is_a_dead_letter),
        TEST(a_skipped_tombstone_leaves_nothing_but_a_count),
        TEST(sql_gets_blobs_and_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
