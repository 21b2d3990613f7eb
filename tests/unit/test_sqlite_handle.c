/* once_sqlite_handle in the caller's transaction, and the sqlite store on a borrowed connection whose owner commits and
 * rolls back as it likes while others write to the same file. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "lib/lib.h"
#include "once/once.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite.h"
#include "testenv.h"

typedef struct fixture {
    char dir[64], path[100];
    sqlite3 *db;
    once_scope scope;
    once_terms terms;
    once_error err;
    test_env world;
    uint64_t seed; /* of the model */
} fixture;

static void sql(sqlite3 *db, const char *text)
{
    char *why = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK) fail_msg("%s: %s", text, why);
}

static int64_t ask(sqlite3 *db, const char *text)
{
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int64_t answer = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return answer;
}

static sqlite3 *connect_to(const fixture *f)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

static void good(fixture *f, int rc)
{
    if (rc != ONCE_OK) fail_msg("%s: %s", once_status_name(rc), f->err.text);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-own.XXXXXX", 21);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/app.db", f->dir);
    f->scope = (once_scope){.consumer = ONCE_BYTES("payments")};
    f->terms = (once_terms){.size = sizeof f->terms, .backoff_min_ms = 1, .backoff_max_ms = 1, .attempts = 3};
    test_env_init(&f->world, 1);
    f->db = connect_to(f);
    sql(f->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"
               "CREATE TABLE payment(n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, cents INTEGER CHECK (cents > 0));"
               "INSERT INTO payment(n) VALUES (1000); DELETE FROM payment"); /* no row of ours has such a number */
    good(f, once_sqlite_prepare(f->db, &f->err));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"app.db", "app.db-wal", "app.db-shm", "app.db-journal"};
    once_sqlite_release(f->db);
    assert_int_equal(sqlite3_close(f->db), SQLITE_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

/* ---- a handler that writes a row ---- */

typedef struct app {
    once_outcome outcome;
    const char *instead; /* SQL to run instead */
    int calls;
    uint32_t attempt;
} app;

static once_outcome record_payment(void *user, const once_call *call, once_reply *reply)
{
    app *a = user;
    a->calls++;
    a->attempt = call->attempt;
    assert_non_null(call->db);
    char *statement = sqlite3_mprintf("INSERT INTO payment(id, cents) VALUES (%.*Q, 5)", (int)call->delivery->key.len,
                                      call->delivery->key.data);
    const int code = sqlite3_exec(call->db, a->instead ? a->instead : statement, NULL, NULL, NULL);
    sqlite3_free(statement);
    if (code != SQLITE_OK) return ONCE_DEAD;
    once_reply_result(reply, call->delivery->key);
    assert_int_equal(once_call_extend(call, 0, NULL), ONCE_OK);
    return a->outcome;
}

static once_delivery delivery(fixture *f, const char *key)
{
    return (once_delivery){
        .size = sizeof(once_delivery), .key = {key, strlen(key)}, .body = ONCE_BYTES("{}"), .terms = &f->terms};
}

static once_verdict handle(fixture *f, sqlite3 *db, const char *key, app *a)
{
    once_verdict v;
    const once_delivery d = delivery(f, key);
    good(f, once_sqlite_handle(db, &f->scope, &d, record_payment, a, &v, &f->err));
    return v;
}

static once_answer answer(fixture *f, sqlite3 *db, const char *key, app *a)
{
    once_verdict v = handle(f, db, key, a);
    const once_answer got = v.answer;
    if (got == ONCE_ANSWER_DUPLICATE) {
        assert_true(v.was_duplicate && v.ack);
        assert_int_equal(v.result.len, strlen(key));
        assert_memory_equal(v.result.data, key, v.result.len);
    }
    once_verdict_release(&v);
    return got;
}

#define PAYMENTS(db) ask(db, "SELECT count(*) FROM payment")

static void effect_and_outcome_commit_with_the_caller(void **state)
{
    fixture *f = *state;
    app a = {0};
    sql(f->db, "BEGIN IMMEDIATE");
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_DUPLICATE); /* sees itself */
    assert_int_equal(answer(f, f->db, "p2", &a), ONCE_ANSWER_RUN);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 1002); /* of the caller's table, not of ours */
    assert_false(sqlite3_get_autocommit(f->db));
    sql(f->db, "COMMIT");
    assert_int_equal(answer(f, f->db, "p2", &a), ONCE_ANSWER_DUPLICATE);
    assert_true(sqlite3_get_autocommit(f->db));

    sqlite3 *other = connect_to(f); /* a second consumer */
    good(f, once_sqlite_prepare(other, &f->err));
    assert_int_equal(answer(f, other, "p1", &a), ONCE_ANSWER_DUPLICATE);
    once_sqlite_release(other);
    sqlite3_close(other);

    once_store *store; /* and the store as everybody else sees it */
    char url[120];
    once_ticket ticket = {0};
    const once_delivery d = delivery(f, "p2");
    snprintf(url, sizeof url, "sqlite:%s", f->path);
    good(f, once_store_open(url, NULL, &store, &f->err));
    good(f, once_claim(store, &f->scope, &d, 1, &ticket, &f->err));
    assert_int_equal(ticket.answer, ONCE_ANSWER_DUPLICATE);
    once_ticket_release(&ticket, 1);
    once_store_close(store);
    assert_int_equal(PAYMENTS(f->db), 2);
    assert_int_equal(a.calls, 2);
}

static void f03_nothing_remains_after_the_callers_rollback(void **state)
{
    fixture *f = *state;
    app a = {0};
    for (int i = 0; i < 3; i++) {
        sql(f->db, "BEGIN IMMEDIATE");
        assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
        assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_DUPLICATE);
        assert_int_equal(a.attempt, 1);
        sql(f->db, "ROLLBACK");
    }
    sql(f->db, "BEGIN; SAVEPOINT mine");
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
    sql(f->db, "ROLLBACK TO mine");
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
    sql(f->db, "RELEASE mine; COMMIT");
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(PAYMENTS(f->db), 1);
}

static void without_a_transaction_it_is_one_by_itself(void **state)
{
    fixture *f = *state;
    app a = {0};
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
    assert_true(sqlite3_get_autocommit(f->db));
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(PAYMENTS(f->db), 1);
}

static void a_failure_is_undone_and_counted_in_the_callers_transaction(void **state)
{
    fixture *f = *state;
    app a = {.outcome = ONCE_RETRY};
    for (int i = 1; i <= 4; i++) {
        sql(f->db, "BEGIN IMMEDIATE; INSERT INTO payment(id, cents) VALUES ('the caller', 1)");
        once_verdict v = handle(f, f->db, "p1", &a);
        sql(f->db, "COMMIT");
        assert_int_equal(v.answer, i <= 3 ? ONCE_ANSWER_RUN : ONCE_ANSWER_DEAD);
        assert_int_equal(v.outcome, i < 3 ? ONCE_RETRY : ONCE_DEAD);
        assert_int_equal(v.ack, i >= 3);
        usleep(10000);
    }
    assert_int_equal(a.calls, 3);
    assert_int_equal(a.attempt, 3);
    assert_int_equal(PAYMENTS(f->db), 4);
    assert_int_equal(ask(f->db, "SELECT count(*) FROM payment WHERE id = 'p1'"), 0);
    assert_int_equal(ask(f->db, "SELECT count(*) FROM once_letter"), 1);

    app rejected = {.outcome = ONCE_REJECTED}; /* final: what it wrote is kept */
    once_verdict v = handle(f, f->db, "p2", &rejected);
    assert_int_equal(v.outcome, ONCE_REJECTED);
    once_verdict_release(&v);
    assert_int_equal(ask(f->db, "SELECT count(*) FROM payment WHERE id = 'p2'"), 1);
}

static void f26_conflict_in_the_callers_transaction(void **state)
{
    fixture *f = *state;
    app a = {0};
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_RUN);
    once_delivery d = delivery(f, "p1");
    once_verdict v;
    d.body = ONCE_BYTES("{\"other\": 1}");
    for (int i = 0; i < 2; i++) {
        sql(f->db, "BEGIN");
        good(f, once_sqlite_handle(f->db, &f->scope, &d, record_payment, &a, &v, &f->err));
        assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
        sql(f->db, i == 0 ? "ROLLBACK" : "COMMIT");
        assert_int_equal(ask(f->db, "SELECT count(*) FROM once_letter"), i);
    }
    assert_int_equal(a.calls, 1);
}

/* Replacing belongs to the caller's transaction, as all of it does. */
static void f26_a_corrected_delivery_in_the_callers_transaction(void **state)
{
    fixture *f = *state;
    app fails = {.outcome = ONCE_RETRY}, a = {0};
    assert_int_equal(answer(f, f->db, "p1", &fails), ONCE_ANSWER_RUN);
    once_delivery right = delivery(f, "p1");
    const once_delivery wrong = delivery(f, "p1");
    once_verdict v;
    right.body = ONCE_BYTES("{\"other\": 1}");
    for (int i = 0; i < 2; i++) {
        sql(f->db, "BEGIN");
        good(f, once_sqlite_handle(f->db, &f->scope, &right, record_payment, &a, &v, &f->err));
        assert_int_equal(v.answer, ONCE_ANSWER_RUN);
        assert_int_equal(v.outcome, ONCE_DONE);
        once_verdict_release(&v);
        assert_int_equal(a.attempt, 2);
        sql(f->db, i == 0 ? "ROLLBACK" : "COMMIT");
        assert_int_equal(ask(f->db, "SELECT count(*) FROM payment"), i);
    }
    good(f, once_sqlite_handle(f->db, &f->scope, &wrong, record_payment, &a, &v, &f->err));
    assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
    assert_int_equal(a.calls, 2);
    assert_int_equal(ask(f->db, "SELECT count(*) FROM once_letter"), 1);
}

static void the_last_rowid_is_of_the_callers_tables(void **state)
{
    fixture *f = *state;
    app done = {0}, dead = {.outcome = ONCE_DEAD}, nothing = {.instead = "SELECT 1"};
    once_verdict v;
    once_delivery conflict = delivery(f, "p1");
    conflict.body = ONCE_BYTES("{\"other\": 1}");
    assert_int_equal(answer(f, f->db, "p1", &done), ONCE_ANSWER_RUN);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 1001); /* by its handler */
    sql(f->db, "INSERT INTO payment(n, id, cents) VALUES (5000, 'the caller', 1)");
    assert_int_equal(answer(f, f->db, "p1", &done), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 5000);
    good(f, once_sqlite_handle(f->db, &f->scope, &conflict, record_payment, &done, &v, &f->err)); /* a letter of ours */
    assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
    once_verdict_release(&v);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 5000);
    assert_int_equal(answer(f, f->db, "p2", &nothing), ONCE_ANSWER_RUN);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 5000);
    assert_int_equal(answer(f, f->db, "p3", &dead), ONCE_ANSWER_RUN);
    assert_int_equal(ask(f->db, "SELECT count(*) FROM once_letter"), 2);
    assert_int_equal(sqlite3_last_insert_rowid(f->db), 5001); /* undone, and still what SQLite says */
}

static once_outcome handle_inside(void *user, const once_call *call, once_reply *reply)
{
    once_verdict v;
    (void)reply;
    *(int *)user = once_sqlite_handle(call->db, call->scope, call->delivery, handle_inside, user, &v, NULL);
    return ONCE_DONE;
}

static void wrong_use_is_refused(void **state)
{
    fixture *f = *state;
    app a = {0};
    once_verdict v;
    once_delivery d = delivery(f, "p1");
    sqlite3 *other = connect_to(f);
    assert_int_equal(once_sqlite_handle(other, &f->scope, &d, record_payment, &a, &v, &f->err), ONCE_E_USAGE);
    sql(other, "BEGIN");
    assert_int_equal(once_sqlite_prepare(other, &f->err), ONCE_E_USAGE);
    sql(other, "ROLLBACK");
    once_sqlite_release(other);
    once_sqlite_release(NULL);
    sqlite3_close(other);
    good(f, once_sqlite_prepare(f->db, &f->err)); /* a second time: nothing */

    int inside = 0;
    good(f, once_sqlite_handle(f->db, &f->scope, &d, handle_inside, &inside, &v, &f->err));
    assert_int_equal(inside, ONCE_E_USAGE);

    static const char *const endings[] = {"ROLLBACK", "INSERT OR ROLLBACK INTO payment(id, cents) VALUES ('x', -1)"};
    for (size_t i = 0; i < 2; i++) {
        d = delivery(f, "ends");
        a.instead = endings[i];
        sql(f->db, "BEGIN IMMEDIATE; INSERT INTO payment(id, cents) VALUES ('the caller', 1)");
        assert_int_equal(once_sqlite_handle(f->db, &f->scope, &d, record_payment, &a, &v, &f->err), ONCE_E_ABORTED);
        assert_true(sqlite3_get_autocommit(f->db));
        a.instead = NULL;
    }
    assert_int_equal(PAYMENTS(f->db), 0);
    assert_int_equal(answer(f, f->db, "ends", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(f, f->db, "ends", &a), ONCE_ANSWER_DUPLICATE);
}

static void settings_of_the_connection_stay(void **state)
{
    fixture *f = *state;
    assert_int_equal(ask(f->db, "PRAGMA application_id"), 0);
    assert_int_equal(ask(f->db, "PRAGMA synchronous"), 0);
    assert_int_equal(ask(f->db, "PRAGMA foreign_keys"), 0);
    sqlite3 *memory;
    app a = {0};
    assert_int_equal(sqlite3_open(":memory:", &memory), SQLITE_OK);
    sql(memory, "CREATE TABLE payment(n INTEGER PRIMARY KEY, id TEXT, cents INTEGER)");
    good(f, once_sqlite_prepare(memory, &f->err));
    assert_int_equal(answer(f, memory, "p1", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(f, memory, "p1", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(sqlite3_close(memory), SQLITE_BUSY); /* says that something was forgotten */
    once_sqlite_release(memory);
    assert_int_equal(sqlite3_close(memory), SQLITE_OK);
}

static int count_steps(void *user) { return ++*(int *)user, 0; }
static int end_it(void *user) { return ++*(int *)user, 1; }

/* A connection has one progress handler, and this one is the caller's: also while we use it, and afterwards. */
static void f94_the_progress_handler_of_the_connection_stays(void **state)
{
    fixture *f = *state;
    int steps = 0, ends = 0;
    app a = {.outcome = ONCE_DONE,
             .instead = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO "
                        "payment(cents) SELECT max(i) FROM n"};
    sqlite3_progress_handler(f->db, 100, count_steps, &steps);
    assert_int_equal(answer(f, f->db, "a", &a), ONCE_ANSWER_RUN);
    assert_true(steps > 10);
    const int before = steps;
    assert_int_equal(
        ask(f->db,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT max(i) FROM n"),
        1000);
    assert_true(steps > before);
    sqlite3_progress_handler(f->db, 100, end_it, &ends); /* one that says no is the caller's answer, too */
    assert_int_equal(sqlite3_exec(f->db, a.instead, NULL, NULL, NULL), SQLITE_INTERRUPT);
    assert_true(ends > 0);
    sqlite3_progress_handler(f->db, 0, NULL, NULL);
    assert_int_equal(answer(f, f->db, "b", &a), ONCE_ANSWER_RUN);
}

static void a_snapshot_that_is_no_longer_true_is_busy(void **state)
{
    fixture *f = *state;
    app a = {0};
    once_verdict v;
    const once_delivery d = delivery(f, "p1");
    sqlite3 *other = connect_to(f);
    good(f, once_sqlite_prepare(other, &f->err));
    sql(f->db, "BEGIN; SELECT count(*) FROM payment");
    assert_int_equal(answer(f, other, "p1", &a), ONCE_ANSWER_RUN);
    assert_int_equal(once_sqlite_handle(f->db, &f->scope, &d, record_payment, &a, &v, &f->err), ONCE_E_BUSY);
    assert_false(sqlite3_get_autocommit(f->db)); /* the caller's transaction is as before */
    sql(f->db, "ROLLBACK");
    assert_int_equal(answer(f, f->db, "p1", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(a.calls, 1);
    once_sqlite_release(other);
    sqlite3_close(other);
}

static void f58_older_tables_are_migrated_and_newer_ones_refused(void **state)
{
    fixture *f = *state;
    sqlite3 *db;
    app a = {0};
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    char *script = NULL;
    size_t len = 0;
    FILE *file = fopen(ONCE_SOURCE_ROOT "/tests/fixtures/version-0.sql", "r");
    assert_non_null(file);
    assert_true(getdelim(&script, &len, '\0', file) > 0);
    fclose(file);
    sql(db, script);
    free(script);
    sql(db, "CREATE TABLE payment(n INTEGER PRIMARY KEY, id TEXT, cents INTEGER)");
    good(f, once_sqlite_prepare(db, &f->err));
    assert_int_equal(answer(f, db, "a new one", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(f, db, "a new one", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(ask(db, "SELECT value FROM once_meta WHERE name = 'version'"), ONCE_SQLITE_VERSION);
    once_sqlite_release(db);
    sql(db, "UPDATE once_meta SET value = 1000 WHERE name = 'version'");
    assert_int_equal(once_sqlite_prepare(db, &f->err), ONCE_E_NEWER);
    assert_true(sqlite3_get_autocommit(db));
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* nothing of ours was left on it */
}

/* ---- several at once ---- */

enum { KEYS = 30, CONSUMERS = 5 };

static void *consume(void *user)
{
    fixture *f = user;
    fixture mine = *f; /* an error of its own */
    app a = {0};
    sqlite3 *db = connect_to(f);
    if (once_sqlite_prepare(db, &mine.err) != ONCE_OK) abort();
    for (int i = 0; i < KEYS; i++) {
        char key[20];
        once_verdict v;
        snprintf(key, sizeof key, "p%d", i);
        const once_delivery d = delivery(&mine, key);
        if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) abort();
        if (once_sqlite_handle(db, &f->scope, &d, record_payment, &a, &v, &mine.err) != ONCE_OK) abort();
        const bool roll_back =
            i % 7 == 3 && v.answer == ONCE_ANSWER_RUN && a.calls % 2; /* some change their mind, and come again */
        if (roll_back) i--;
        if (sqlite3_exec(db, roll_back ? "ROLLBACK" : "COMMIT", NULL, NULL, NULL) != SQLITE_OK) abort();
        once_verdict_release(&v);
    }
    once_sqlite_release(db);
    sqlite3_close(db);
    return NULL;
}

static void f25_five_threads_with_connections_of_their_own(void **state)
{
    fixture *f = *state;
    pthread_t threads[CONSUMERS];
    for (int i = 0; i < CONSUMERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, consume, f), 0);
    for (int i = 0; i < CONSUMERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(PAYMENTS(f->db), KEYS);
    assert_int_equal(ask(f->db, "SELECT count(DISTINCT id) FROM payment"), KEYS);
}

/* Killed at a moment that nobody chose, again and again. */
static void f11_killed_anywhere_in_the_callers_transaction(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 15; round++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            consume(f);
            _exit(0);
        }
        int status;
        usleep((useconds_t)(round * 700));
        if (round < 14) kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (round == 14) assert_int_equal(status, 0);
    }
    assert_int_equal(PAYMENTS(f->db), KEYS);
    assert_int_equal(ask(f->db, "SELECT count(DISTINCT id) FROM payment"), KEYS);
}

/* ---- the store on a borrowed connection, against a model ---- */

enum { MODEL_KEYS = 400 };

static once_answer claim_and_settle(fixture *f, once_backend *store, int key, bool in_tx)
{
    char name[50], result[20];
    once_arena arena = {0};
    once_decision decision;
    bool applied = false;
    snprintf(name, sizeof name, "key %d of %llu", key,
             (unsigned long long)f->seed); /* each seed begins with keys that are new */
    snprintf(result, sizeof result, "result %d", key);
    const once_scope scope = {.consumer = ONCE_BYTES("c"),
                              .operation = key % 3 ? ONCE_BYTES("x") : (once_bytes){name, strlen(name)}};
    const once_request r = {.scope = &scope,
                            .key = {name, strlen(name)},
                            .id = once_key_id(store->secret, &scope, (once_bytes){name, strlen(name)}),
                            .token = once__token_new(&f->world.env),
                            .lane.gap_ms = -1,
                            .lease_ms = 1000,
                            .remember_ms = ONCE_FOREVER,
                            .sent_ms = ONCE_NO_TIME,
                            .at = {.place = {name, strlen(name)}}};
    const once_request *pointer = &r;
    const once_settlement s = {.request = &r, .outcome = ONCE_DONE, .result = {result, strlen(result)}};
    if (in_tx) good(f, store->ops->begin(store, &f->err));
    good(f, store->ops->claim(store, &pointer, 1, &decision, &arena, &f->err));
    if (decision.answer == ONCE_ANSWER_RUN) {
        good(f, store->ops->settle(store, &s, 1, &applied, &f->err));
        assert_true(applied);
    } else {
        assert_int_equal(decision.answer, ONCE_ANSWER_DUPLICATE);
        assert_int_equal(decision.result.len, strlen(result));
        assert_memory_equal(decision.result.data, result, strlen(result));
    }
    if (in_tx) good(f, store->ops->commit(store, &f->err));
    once_arena_release(&arena);
    return decision.answer;
}

typedef struct model {
    bool now[MODEL_KEYS], before[MODEL_KEYS], mark[MODEL_KEYS];
} model;

static void play(fixture *f, once_backend *store, uint64_t *random, bool *done, bool in_tx)
{
    const int key = (int)(test_random(random) % MODEL_KEYS);
    assert_int_equal(claim_and_settle(f, store, key, in_tx), done[key] ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_RUN);
    done[key] = true;
}

/* Two borrowed connections and one of our own take turns; the borrowed ones roll back as they like. */
static void borrowed_against_a_model(fixture *f, uint64_t seed)
{
    static const once_settled_limits tiny = {
        .recent_records = 16, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 1 << 16};
    const once_store_options options = {.size = sizeof options, .create = true, .env = &f->world.env};
    sqlite3 *db[2] = {connect_to(f), connect_to(f)};
    once_backend *stores[3];
    model m = {0};
    uint64_t random = seed;
    f->seed = seed;
    for (int i = 0; i < 2; i++) {
        sql(db[i], "PRAGMA synchronous = OFF");
        good(f, once__sqlite_store_borrow(db[i], &options, &tiny, &stores[i], &f->err));
    }
    good(f, once__sqlite_store_open(f->path, &options, &tiny, &stores[2], &f->err));
    for (int i = 0; i < 150; i++) {
        const size_t who = test_random(&random) % 3;
        test_env_pass(&f->world, (int64_t)(test_random(&random) % 3));
        if (who == 2 || test_random(&random) % 4 == 0) {
            play(f, stores[who], &random, m.now, test_random(&random) % 2);
            continue;
        }
        memcpy(m.before, m.now, sizeof m.now);
        sql(db[who], "BEGIN IMMEDIATE");
        for (uint64_t n = test_random(&random) % 20; n > 0; n--) {
            if (test_random(&random) % 4) {
                play(f, stores[who], &random, m.now, test_random(&random) % 2);
                continue;
            }
            memcpy(m.mark, m.now, sizeof m.now);
            sql(db[who], "SAVEPOINT mine");
            play(f, stores[who], &random, m.now, true);
            play(f, stores[who], &random, m.now, false);
            if (test_random(&random) % 2) {
                sql(db[who], "ROLLBACK TO mine");
                memcpy(m.now, m.mark, sizeof m.now);
            }
            sql(db[who], "RELEASE mine");
        }
        const bool commit = test_random(&random) % 2;
        sql(db[who], commit ? "COMMIT" : "ROLLBACK");
        if (!commit) memcpy(m.now, m.before, sizeof m.now);
    }
    for (int i = 0; i < 3; i++) once__store_close(stores[i]);
    for (int i = 0; i < 2; i++) assert_int_equal(sqlite3_close(db[i]), SQLITE_OK);
}

static void f57_borrowed_connections_that_roll_back_agree_with_a_model(void **state)
{
    fixture *f = *state;
    for (uint64_t seed = 1; seed <= 10; seed++) borrowed_against_a_model(f, seed);
    sql(f->db, "PRAGMA journal_mode = DELETE");
    for (uint64_t seed = 11; seed <= 20; seed++) borrowed_against_a_model(f, seed);
}

/* A claim that the store keeps in memory, although the caller has taken it back. */
static void f57_a_claim_that_the_caller_rolled_back_is_not_kept(void **state)
{
    fixture *f = *state;
    once_backend *store;
    once_arena arena = {0};
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    sqlite3 *db = connect_to(f);
    good(f, once__sqlite_store_borrow(db, &options, NULL, &store, &f->err));
    sql(db, "ATTACH ':memory:' AS other; CREATE TABLE other.once_rows(a); CREATE TEMP TABLE once_rows(a)");
    for (uint64_t rolled_back = 0; rolled_back < 2; rolled_back++) {
        const once_request r = {.scope = &f->scope,
                                .key = {"k", 1},
                                .id = {1 + rolled_back, 2},
                                .token = {3 + rolled_back, 1},
                                .lease_ms = 60000,
                                .remember_ms = 60000,
                                .sent_ms = ONCE_NO_TIME,
                                .run = 1,
                                .at = {{"p", 1}, {"q", 1}}},
                           *asked = &r;
        once_decision decision;
        bool applied;
        const once_settlement end = {.request = &r, .outcome = ONCE_DONE};
        sql(db, "BEGIN");
        good(f, store->ops->claim(store, &asked, 1, &decision, &arena, &f->err));
        assert_int_equal(decision.answer, ONCE_ANSWER_RUN);
        sql(db, rolled_back ? "ROLLBACK" : "COMMIT");
        good(f, store->ops->settle(store, &end, 1, &applied, &f->err));
        assert_int_equal(applied, !rolled_back);
    }
    once__store_close(store);
    once_arena_release(&arena);
    sqlite3_close(db);
}

/* The table through which the store writes rows is for the store alone, and goes with it. */
static void test_the_caller_sees_nothing_of_what_the_store_is_about_to_write(void **state)
{
    fixture *f = *state;
    once_backend *store;
    sqlite3_stmt *stmt;
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    sqlite3 *db = connect_to(f);
    good(f, once__sqlite_store_borrow(db, &options, NULL, &store, &f->err));
    assert_int_equal(ask(db, "SELECT count(*) FROM once_rows"), 0);
    assert_int_equal(ask(db, "SELECT count(*) FROM once_rows(4096)"), 0);
    assert_int_equal(ask(db, "SELECT count(*) FROM once_rows(x'0010000000000000')"), 0);
    once__store_close(store);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT * FROM once_rows", -1, &stmt, NULL), SQLITE_ERROR);
    sqlite3_close(db);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(effect_and_outcome_commit_with_the_caller),
        TEST(f03_nothing_remains_after_the_callers_rollback),
        TEST(without_a_transaction_it_is_one_by_itself),
        TEST(a_failure_is_undone_and_counted_in_the_callers_transaction),
        TEST(f26_conflict_in_the_callers_transaction),
        TEST(f26_a_corrected_delivery_in_the_callers_transaction),
        TEST(the_last_rowid_is_of_the_callers_tables),
        TEST(wrong_use_is_refused),
        TEST(settings_of_the_connection_stay),
        TEST(f94_the_progress_handler_of_the_connection_stays),
        TEST(a_snapshot_that_is_no_longer_true_is_busy),
        TEST(f58_older_tables_are_migrated_and_newer_ones_refused),
        TEST(f25_five_threads_with_connections_of_their_own),
        TEST(f11_killed_anywhere_in_the_callers_transaction),
        TEST(f57_borrowed_connections_that_roll_back_agree_with_a_model),
        TEST(f57_a_claim_that_the_caller_rolled_back_is_not_kept),
        TEST(test_the_caller_sees_nothing_of_what_the_store_is_about_to_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
