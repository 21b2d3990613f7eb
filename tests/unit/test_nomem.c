/* f56: every nth allocation fails, one after another. A run then ends with an error or goes on, never with a crash, and
 * what was settled stays settled: at the end every message has had its effect once.
 *
 * The allocator is replaced in this program only. Sanitizers bring their own, so there the test is a plain run. */
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
#include "store/store.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPLACED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPLACED 0
#endif
#endif
#ifndef REPLACED
#define REPLACED 1
#endif

static atomic_long countdown = -1; /* fails when it reaches 0; negative: never */

#if REPLACED
static bool refused(void)
{
    if (atomic_load(&countdown) < 0) return false;
    return atomic_fetch_sub(&countdown, 1) == 0;
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size) { return refused() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return refused() ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return refused() ? NULL : __libc_realloc(old, size); }
#endif

#define MESSAGES 30

static char dir[64], yaml[100], data[100], db_path[100];

static int setup(void **state)
{
    (void)state;
    memcpy(dir, "/tmp/once-nomem.XXXXXX", 23);
    assert_non_null(mkdtemp(dir));
    snprintf(yaml, sizeof yaml, "%s/p.yaml", dir);
    snprintf(data, sizeof data, "%s/in.ndjson", dir);
    snprintf(db_path, sizeof db_path, "%s/s.db", dir);
    FILE *out = fopen(yaml, "w");
    fprintf(out,
            "consumer: test\nstore: sqlite:%s\nsource: {file: {path: %s}}\nkey: \"a:${/id}\"\nbatch: {max: 8}\nlease: "
            "20ms\n"
            "retry: {attempts: 1000, backoff: 1ms..2ms}\n"
            "init: CREATE TABLE IF NOT EXISTS seen(id TEXT, n INTEGER)\n"
            "handler: {sql: [\"INSERT INTO seen(id, n) VALUES (:id, :n)\", {do: \"UPDATE seen SET n = n + 1 WHERE id = "
            ":{/of?}\", rows: 0}]}\n",
            db_path, data);
    fclose(out);
    out = fopen(data, "w");
    for (int i = 0; i < MESSAGES; i++) fprintf(out, "{\"id\": \"m\\u0041%d\", \"n\": 1}\n", i);
    fprintf(out, "not json\n");
    fclose(out);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"p.yaml", "in.ndjson", "s.db", "s.db-wal", "s.db-shm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

static int run_with(long nth)
{
    once_pipeline *pipeline = NULL;
    once_summary summary;
    once_error err;
    atomic_store(&countdown, nth);
    int rc = once_pipeline_load(yaml, NULL, NULL, &pipeline, &err);
    if (rc == ONCE_OK) rc = once_pipeline_run(pipeline, NULL, &summary, &err);
    once_pipeline_free(pipeline);
    const bool spent = atomic_exchange(&countdown, -1) < 0;
    return rc == ONCE_OK && !spent ? 1 : rc; /* 1: nth was beyond the last allocation */
}

static int64_t ask(const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int64_t answer = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return answer;
}

static void f56_every_nth_allocation_fails(void **state)
{
    (void)state;
    long nth = 0, failures = 0;
    for (; REPLACED && nth < 40000; nth += 1 + nth / 40) {
        const int rc = run_with(nth);
        if (rc == 1) break;
        failures += rc != ONCE_OK;
    }
    assert_int_equal(run_with(-1) < 0, 0);
    assert_int_equal(ask("SELECT count(*) FROM seen"), MESSAGES);
    assert_int_equal(ask("SELECT count(DISTINCT id) FROM seen"), MESSAGES);
    if (REPLACED) assert_true(nth > 100 && failures > 20);
}

/* ---- the library around a handler ---- */

static once_outcome note(void *user, const once_call *call, once_reply *reply)
{
    /* The handler's own statement has memory: after a release the message would have to wait. */
    const long left = atomic_exchange(&countdown, -1);
    if (call->db) assert_int_equal(sqlite3_exec(call->db, "INSERT INTO seen VALUES (1)", NULL, NULL, NULL), SQLITE_OK);
    atomic_store(&countdown, left);
    ++*(int *)user;
    once_reply_result(reply, ONCE_BYTES("a result of a few bytes"));
    return ONCE_DONE;
}

static const once_scope scope = {.consumer = {"c", 1}};
static const once_delivery delivery = {.size = sizeof(once_delivery), .key = {"k", 1}, .body = {"{\"a\": [1, 2]}", 13}};

static int handle_with(sqlite3 *db, int *effects)
{
    once_verdict verdict;
    int rc = once_sqlite_prepare(db, NULL);
    if (rc != ONCE_OK) return rc;
    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) return ONCE_E_NOMEM;
    rc = once_sqlite_handle(db, &scope, &delivery, note, effects, &verdict, NULL);
    if (rc == ONCE_OK) once_verdict_release(&verdict);
    if (rc == ONCE_OK && sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK) rc = ONCE_E_NOMEM;
    if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

static void f56_every_nth_allocation_fails_in_the_callers_transaction(void **state)
{
    (void)state;
    bool beyond = !REPLACED;
    for (long nth = 0; !beyond && nth < 40000; nth += 1 + nth / 100) {
        sqlite3 *db;
        sqlite3_stmt *stmt;
        int effects = 0;
        assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, "CREATE TABLE seen(n)", NULL, NULL, NULL), SQLITE_OK);
        atomic_store(&countdown, nth);
        handle_with(db, &effects);
        beyond = atomic_exchange(&countdown, -1) >= 0;
        for (int i = 0; i < 2; i++) assert_int_equal(handle_with(db, &effects), ONCE_OK);
        assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM seen", -1, &stmt, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(stmt, 0), 1);
        sqlite3_finalize(stmt);
        once_sqlite_release(db);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    assert_true(beyond);
}

static void f56_every_nth_allocation_fails_around_a_handler(void **state)
{
    (void)state;
    bool beyond = !REPLACED;
    for (long nth = 0; !beyond && nth < 40000; nth++) {
        once_store *store;
        int effects = 0;
        assert_int_equal(once_store_open("memory:", NULL, &store, NULL), ONCE_OK);
        for (int i = 0; i < 3; i++) {
            once_verdict verdict;
            atomic_store(&countdown, i == 0 ? nth : -1);
            const int rc = once_handle(store, &scope, &delivery, note, &effects, &verdict, NULL);
            if (i == 0) beyond = atomic_exchange(&countdown, -1) >= 0;
            else assert_int_equal(rc, ONCE_OK);
            if (i == 2) assert_true(verdict.was_duplicate);
            if (rc == ONCE_OK) once_verdict_release(&verdict);
        }
        assert_int_equal(effects, 1);
        once_store_close(store);
    }
    assert_true(beyond);
}

/* ---- a list ---- */

enum { LISTED = 40 };

static bool count_shown(void *user, const once_entry *entry)
{
    (void)entry;
    ++*(unsigned *)user;
    return true;
}

static void accept_some(once_backend *store)
{
    static const char body[100000] = "{}"; /* more than an arena has left */
    const once_message message = {.body = {body, sizeof body}, .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_arena arena = {0};
    for (uint64_t i = 1; i <= LISTED; i++) {
        const once_request request = {.scope = &scope,
                                      .key = {"k", 1},
                                      .id = {i, i},
                                      .token = {i, i},
                                      .lane.gap_ms = -1,
                                      .lease_ms = 1000,
                                      .remember_ms = 1000000,
                                      .sent_ms = ONCE_NO_TIME},
                           *pointer = &request;
        once_decision decision;
        assert_int_equal(store->ops->accept(store, &pointer, &messages, 1, &decision, &arena, NULL), ONCE_OK);
    }
    once_arena_release(&arena);
}

/* It is whole, or says that it is not. */
static void f56_every_nth_allocation_fails_in_a_list(void **state)
{
    (void)state;
    const once_store_options options = {.size = sizeof options, .env = once_env_real(), .create = true};
    once_backend *store;
    bool beyond = !REPLACED;
    unsigned failures = 0;
    assert_int_equal(once__store_open("memory:", &options, &store, NULL), ONCE_OK);
    accept_some(store);
    for (long nth = 0; !beyond && nth < 40000; nth++) {
        unsigned shown = 0;
        atomic_store(&countdown, nth);
        const int rc = store->ops->list(store, scope.consumer, ONCE_STATE_WAITING, count_shown, &shown, NULL);
        beyond = atomic_exchange(&countdown, -1) >= 0;
        if (rc == ONCE_OK) assert_int_equal(shown, LISTED);
        else assert_int_equal(rc, ONCE_E_NOMEM);
        failures += rc != ONCE_OK;
    }
    assert_true(beyond && (failures > 1 || !REPLACED));
    once__store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(f56_every_nth_allocation_fails, setup, teardown),
        cmocka_unit_test(f56_every_nth_allocation_fails_in_the_callers_transaction),
        cmocka_unit_test(f56_every_nth_allocation_fails_around_a_handler),
        cmocka_unit_test(f56_every_nth_allocation_fails_in_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
