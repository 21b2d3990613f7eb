/* SQL in a database that is not the store's: what each end of a transaction means, and that nothing of a message stays
 * but with its COMMIT. Runs under tsan: each connection has a thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sqlite3.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "effect/effect.h"
#include "effect/runner.h"
#include "effect/sql_params.h"
#include "effect/sql_statements.h"
#include "postgres.h"
#include "vfs.h"

/* The URLs that this build can open. */
#ifdef ONCE_WITH_POSTGRES
#define KINDS "postgres://... or sqlite:PATH"
#else
#define KINDS "sqlite:PATH"
#endif

#define PATIENCE_MS 30000 /* for what must happen at once; reached only when something is wrong */
#define MAX_ITEMS 8
#define LONG "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO t(id) SELECT max(i) FROM n"
#define TABLES                                                                                                         \
    "CREATE TABLE t(id UNIQUE, k, key, attempt, CHECK (id <> 'bad'));"                                                 \
    "CREATE TABLE head(id PRIMARY KEY); CREATE TABLE line(head REFERENCES head DEFERRABLE INITIALLY DEFERRED)"

/* One pipeline with one handler, another database, and the messages that a test gives it. */
typedef struct fixture {
    char folder[64], file[100];
    sqlite3 *db; /* another one who uses it */
    once_arena arena;
    once_spec spec;
    once_handler_spec handler;
    once_sql_statement statements[4];
    once_sql_spec sql;
    once_runner *runner;
    once_item items[MAX_ITEMS];
    once_error err;
} fixture;

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static void says(fixture *f, const char *sql)
{
    char *why = NULL;
    if (sqlite3_exec(f->db, sql, NULL, NULL, &why) != SQLITE_OK) print_error("%s: %s\n", sql, why);
    assert_null(why);
}

static int count(fixture *f, const char *sql)
{
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(f->db, sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int n = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static int rows(fixture *f) { return count(f, "SELECT count(*) FROM t"); }

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    snprintf(f->folder, sizeof f->folder, "/tmp/once-sqlhand-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->file, sizeof f->file, "%s/other.db", f->folder);
    assert_int_equal(sqlite3_open(f->file, &f->db), SQLITE_OK);
    says(f, TABLES);
    char *url = once_arena_alloc(&f->arena, 120);
    snprintf(url, 120, "sqlite:%s", f->file);
    f->handler = (once_handler_spec){.type = bytes("book"),
                                     .operation = bytes("book"),
                                     .timeout_ms = PATIENCE_MS,
                                     .slots = MAX_ITEMS,
                                     .line = 7,
                                     .effect = &once__effect_sql,
                                     .bits = once__effect_sql.bits | ONCE_EFFECT_OUTSIDE,
                                     .own = &f->sql};
    f->sql = (once_sql_spec){.url = bytes(url), .url_line = 9, .does.at = f->statements};
    f->spec = (once_spec){.file = bytes("p.yaml"),
                          .consumer = bytes("books"),
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .result_max = 65536};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    char command[100];
    once_runner_close(f->runner);
    for (int i = 0; i < MAX_ITEMS; i++) free(f->items[i].output);
    sqlite3_close(f->db);
    once_arena_release(&f->arena);
    snprintf(command, sizeof command, "rm -rf %s", f->folder);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void statement(fixture *f, const char *sql)
{
    once_sql_statement *s = &f->statements[f->sql.does.n];
    assert_int_equal(once_sql_parse(&f->arena, bytes(sql), s, &f->err), ONCE_OK);
    s->line = 20 + (int)f->sql.does.n++;
}

static int try_open(fixture *f)
{
    const once_runner_options options = {.spec = &f->spec, .env = once_env_real()};
    return once_runner_open(&options, &f->runner, &f->err);
}

static void opened(fixture *f, const char *sql)
{
    statement(f, sql);
    const int rc = try_open(f);
    if (rc != ONCE_OK) print_error("%s\n", f->err.text);
    assert_int_equal(rc, ONCE_OK);
}

static once_item *start(fixture *f, int i, const char *body)
{
    once_item *item = &f->items[i];
    once_json json;
    *item = (once_item){.handler = &f->handler, .output = item->output};
    item->message = (once_message){.body = bytes(body)};
    item->scope = (once_scope){.consumer = f->spec.consumer, .operation = f->handler.operation};
    item->request =
        (once_request){.scope = &item->scope, .key = bytes("p-1"), .id = {0x0123456789abcdef, 0xfedcba9876543210}};
    item->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 3};
    once_json_init(&json);
    assert_int_equal(once_json_parse(&json, item->message.body, NULL, NULL), ONCE_OK);
    const once_parsed from = {.message = &item->message, .body = &json};
    assert_int_equal(once_effect_prepare(item->handler, &from, &f->arena, &item->input, &f->err), ONCE_OK);
    once_json_release(&json);
    once_runner_start(f->runner, &item, 1);
    return item;
}

static once_item *ended(fixture *f)
{
    once_item *item = NULL;
    assert_int_equal(once_runner_wait(f->runner, PATIENCE_MS, &item, 1), 1);
    return item;
}

static once_item *run(fixture *f, const char *body)
{
    once_item *item = start(f, 0, body);
    assert_ptr_equal(ended(f), item);
    return item;
}

static void is(const once_item *item, once_outcome outcome, const char *why)
{
    if (item->outcome != outcome || item->run_failure)
        print_error("outcome %d, trouble %d\n", item->outcome, item->run_failure);
    if (item->failure.len != strlen(why)) print_error("%.*s\n", (int)item->failure.len, item->failure.data);
    assert_int_equal(item->outcome, outcome);
    assert_int_equal(item->failure.len, strlen(why));
    if (why[0]) assert_memory_equal(item->failure.data, why, strlen(why));
    assert_int_equal(item->maybe_done, outcome == ONCE_UNKNOWN);
    assert_int_equal(item->run_failure, ONCE_OK);
}

static void could_not_start(const once_item *item, once_class class, const char *why)
{
    if (!memmem(item->failure.data, item->failure.len, why, strlen(why)))
        print_error("%.*s\n", (int)item->failure.len, item->failure.data);
    assert_non_null(memmem(item->failure.data, item->failure.len, why, strlen(why)));
    assert_int_equal(item->outcome, ONCE_RELEASE); /* no message is blamed, no failure is counted */
    assert_false(item->started);
    assert_int_equal(once_status_class(item->run_failure), class);
}

/* --- outcomes --- */

static void values_and_what_once_knows_are_bound(void **state)
{
    fixture *f = *state;
    opened(f, "INSERT INTO t(id, k, key, attempt) VALUES (:id, :once_idempotency_key, :once_key, :once_attempt)");
    const once_item *item = run(f, "{\"id\": \"a\"}");
    is(item, ONCE_DONE, "");
    assert_true(item->started);
    assert_int_equal(count(f, "SELECT count(*) FROM t WHERE id = 'a' AND k = '7f46acdc6b8881b5d61a48a071bd2330' AND "
                              "key = 'p-1' AND attempt = 3"),
                     1);
}

static void f26_an_answer_of_the_business_is_the_outcome(void **state)
{
    fixture *f = *state;
    f->sql.already = (const once_bytes[]){bytes("t.id")};
    f->sql.rejected = (const once_bytes[]){bytes("SQLITE_CONSTRAINT_CHECK")};
    f->sql.n_already = f->sql.n_rejected = 1;
    statement(f, "INSERT INTO head VALUES (:id)");
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    says(f, "INSERT INTO t(id) VALUES ('there')");
    is(run(f, "{\"id\": \"there\"}"), ONCE_ALREADY, "UNIQUE constraint failed: t.id");
    is(run(f, "{\"id\": \"bad\"}"), ONCE_REJECTED, "CHECK constraint failed: id <> 'bad'");
    assert_int_equal(count(f, "SELECT count(*) FROM head"), 0); /* the statement before went with it */
    f->sql.n_already = f->sql.n_rejected = 0;
    is(run(f, "{\"id\": \"there\"}"), ONCE_DEAD, "UNIQUE constraint failed: t.id");
    f->handler.retry.on = (const once_bytes[]){bytes("t.id")};
    f->handler.retry.n_on = 1;
    is(run(f, "{\"id\": \"there\"}"), ONCE_RETRY, "UNIQUE constraint failed: t.id");
    is(run(f, "{\"id\": \"new\"}"), ONCE_DONE, "");
    assert_int_equal(rows(f), 2);
}

/* What a list names is the whole name, code or state, and not how one begins. */
static void a_name_in_a_list_is_the_whole_name(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        once_fault fault;
        once_outcome outcome;
    } cases[] = {
        {"pay.id", {.constraint = "pay.id"}, ONCE_ALREADY},
        {"pay.id", {.constraint = "pay.idx"}, ONCE_DEAD},
        {"pay.idx", {.constraint = "pay.id"}, ONCE_DEAD},
        {"pay.id", {.constraint = "pay.id,pay.x"}, ONCE_DEAD},
        {"", {.constraint = ""}, ONCE_DEAD},
        {"2067", {.code = 2067}, ONCE_ALREADY},
        {"206", {.code = 2067}, ONCE_DEAD},
        {"2067", {.code = 206}, ONCE_DEAD},
        {"0", {.code = 0}, ONCE_DEAD},
        {"23505", {.state = "23505"}, ONCE_ALREADY},
        {"235", {.state = "23505"}, ONCE_DEAD},
        {"23505", {.state = "235"}, ONCE_DEAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_bytes said = bytes(cases[i].said);
        once_fault fault = cases[i].fault;
        once_outcome outcome;
        fault.kind = ONCE_FAULT_CONSTRAINT;
        once_sql_spec sql = {.already = &said, .n_already = 1};
        const once_handler_spec handler = {.own = &sql};
        assert_true(once_sql_judge(&handler, &fault, &outcome));
        if (outcome != cases[i].outcome)
            fail_msg("already: %s took case %zu for %s", cases[i].said, i, once_outcome_name(outcome));
        sql = (once_sql_spec){.rejected = &said, .n_rejected = 1};
        assert_true(once_sql_judge(&handler, &fault, &outcome));
        assert_int_equal(outcome, cases[i].outcome == ONCE_DEAD ? ONCE_DEAD : ONCE_REJECTED);
    }
}

static void rows_that_were_asked_for(void **state)
{
    fixture *f = *state;
    statement(f, "INSERT INTO t(id) VALUES (:id)");
    opened(f, "UPDATE head SET id = id WHERE id = :id");
    f->statements[1].rows = 1;
    f->statements[1].unmet = ONCE_STALE;
    is(run(f, "{\"id\": \"a\"}"), ONCE_STALE, "statement 2 changed or returned 0 rows, and 'rows' says 1");
    assert_int_equal(rows(f), 0);
}

static void f03_a_commit_that_is_refused_has_not_happened(void **state)
{
    fixture *f = *state;
    statement(f, "INSERT INTO t(id) VALUES (:id)");
    opened(f, "INSERT INTO line VALUES (:id)");
    is(run(f, "{\"id\": \"a\"}"), ONCE_DEAD, "FOREIGN KEY constraint failed");
    assert_int_equal(rows(f), 0);
    says(f, "INSERT INTO head VALUES ('a')");
    is(run(f, "{\"id\": \"a\"}"), ONCE_DONE, "");
}

static void connections_work_beside_each_other(void **state)
{
    fixture *f = *state;
    char body[40];
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MAX_ITEMS; i++) {
            snprintf(body, sizeof body, "{\"id\": %d}", round * MAX_ITEMS + i);
            start(f, i, strdupa(body));
        }
        for (int i = 0; i < MAX_ITEMS; i++) is(ended(f), ONCE_DONE, "");
    }
    assert_int_equal(rows(f), 3 * MAX_ITEMS);
}

/* --- ends from outside --- */

static void f60_rolled_back_at_its_timeout(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 50;
    statement(f, "INSERT INTO t(id) VALUES ('before')");
    opened(f, LONG);
    const once_item *item = run(f, "{}");
    is(item, ONCE_RETRY, "rolled back at its timeout of 50ms"); /* known not to have happened, and counted */
    assert_true(item->started);
    assert_int_equal(rows(f), 0);
    is(run(f, "{}"), ONCE_RETRY, "rolled back at its timeout of 50ms"); /* on the same connection */
}

/* A function that SQL may call: it goes on when the test lets it. */
static atomic_bool held, let_go;

static void hold_on(sqlite3_context *context, int n, sqlite3_value **values)
{
    (void)n, (void)values;
    atomic_store(&held, true);
    while (!atomic_load(&let_go)) usleep(1000);
    sqlite3_result_text(context, "held", -1, SQLITE_STATIC);
}

static int with_hold_on(sqlite3 *db, char **why, const void *api)
{
    (void)why, (void)api;
    return sqlite3_create_function(db, "hold_on", 0, SQLITE_UTF8, NULL, hold_on, NULL, NULL);
}

/* Its statements have all succeeded, and its deadline is over: COMMIT is not sent any more. */
static void f60_no_commit_is_sent_after_the_deadline(void **state)
{
    fixture *f = *state;
    once_item *item;
    atomic_store(&held, false);
    atomic_store(&let_go, false);
    assert_int_equal(sqlite3_auto_extension((void (*)(void))with_hold_on), SQLITE_OK);
    f->handler.timeout_ms = 50;
    opened(f, "INSERT INTO t(id) SELECT hold_on()");
    start(f, 0, "{}");
    while (!atomic_load(&held)) assert_int_equal(once_runner_wait(f->runner, 1, &item, 1), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(once_runner_wait(f->runner, 50, &item, 1), 0); /* the deadline passes */
    atomic_store(&let_go, true);
    is(ended(f), ONCE_RETRY, "rolled back at its timeout of 50ms");
    sqlite3_cancel_auto_extension((void (*)(void))with_hold_on);
    assert_int_equal(rows(f), 0);
}

static void f15_killed_it_is_rolled_back_and_put_back(void **state)
{
    fixture *f = *state;
    statement(f, "INSERT INTO t(id) VALUES ('before')");
    opened(f, LONG);
    for (int i = 0; i < 30; i++) { /* before it has a thread, or anywhere later */
        once_item *item = start(f, 0, "{}");
        usleep((useconds_t)i * 300);
        once_runner_kill(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        assert_int_equal(item->outcome, ONCE_RELEASE);
        assert_false(item->maybe_done);
        assert_int_equal(item->run_failure, ONCE_OK);
    }
    assert_int_equal(rows(f), 0);
}

static void closing_does_not_wait_for_a_statement(void **state)
{
    fixture *f = *state;
    opened(f, LONG);
    for (int i = 0; i < 4; i++) start(f, i, "{}");
    usleep(20000);
    once_runner_close(f->runner);
    f->runner = NULL;
    assert_int_equal(rows(f), 0);
}

static void f60_a_commit_that_readers_hold_up(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 50;
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    says(f, "BEGIN; SELECT count(*) FROM t"); /* not in WAL mode: a COMMIT waits for readers */
    const once_item *item;
    do item = run(f, "{\"id\": \"a\"}");
    while (item->outcome == ONCE_RELEASE); /* so slow a machine that the timeout came before BEGIN */
    /* The handler's timeout ends the wait, or SQLite's own, which is as long. */
    const bool by_sqlite = item->failure.len == strlen("database is locked");
    is(item, ONCE_RETRY, by_sqlite ? "database is locked" : "rolled back at its timeout of 50ms");
    says(f, "COMMIT");
    assert_int_equal(rows(f), 0);
    once_runner_close(f->runner);
    f->handler.timeout_ms = PATIENCE_MS;
    assert_int_equal(try_open(f), ONCE_OK);
    is(run(f, "{\"id\": \"a\"}"), ONCE_DONE, "");
    assert_int_equal(rows(f), 1);
}

/* --- the database is not there, or not as it should be --- */

static void a_lock_of_others_is_nobodys_fault(void **state)
{
    fixture *f = *state;
    f->handler.timeout_ms = 50;
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    says(f, "BEGIN IMMEDIATE");
    could_not_start(run(f, "{\"id\": \"a\"}"), ONCE_CLASS_RETRY, "p.yaml:9: file '");
    once_runner_close(f->runner);
    f->handler.timeout_ms = 10 * PATIENCE_MS;
    assert_int_equal(try_open(f), ONCE_OK);
    once_item *item = start(f, 0, "{\"id\": \"a\"}");
    usleep(10000);
    once_runner_kill(f->runner, &item, 1); /* also while it waits */
    assert_ptr_equal(ended(f), item);
    assert_int_equal(item->outcome, ONCE_RELEASE);
    assert_int_equal(item->run_failure, ONCE_OK);
    assert_false(item->started);
    says(f, "COMMIT");
    is(run(f, "{\"id\": \"a\"}"), ONCE_DONE, "");
}

static void a_table_that_vanishes_stops_everything(void **state)
{
    fixture *f = *state;
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    is(run(f, "{\"id\": \"a\"}"), ONCE_DONE, "");
    says(f, "ALTER TABLE t RENAME TO elsewhere");
    could_not_start(run(f, "{\"id\": \"b\"}"), ONCE_CLASS_PAUSE, "p.yaml:20: no such table: ");
    says(f, "ALTER TABLE elsewhere RENAME TO t");
    is(run(f, "{\"id\": \"b\"}"), ONCE_DONE, "");
}

static void refused(fixture *f, const char *url, int rc, const char *why)
{
    f->sql.url = bytes(url);
    assert_int_equal(try_open(f), rc);
    if (strcmp(f->err.text, why) != 0) print_error("%s\n", f->err.text);
    assert_string_equal(f->err.text, why);
}

static void mistakes_are_found_when_it_is_opened(void **state)
{
    fixture *f = *state;
    char expected[300], *url = once_arena_alloc(&f->arena, 200);
    const char *good = f->sql.url.data;
    statement(f, "INSERT INTO gone(id) VALUES (:id)");
    snprintf(expected, sizeof expected, "p.yaml:20: no such table: gone; create it in '%s' first", f->file);
    refused(f, good, ONCE_E_CONFIG, expected);
    snprintf(url, 200, "sqlite:%s/absent.db", f->folder);
    snprintf(
        expected, sizeof expected,
        "p.yaml:9: file '%s/absent.db': does not exist; once creates nothing in a database that is not the store's, "
        "create it first",
        f->folder);
    refused(f, url, ONCE_E_CONFIG, expected);
    assert_int_not_equal(access(url + 7, F_OK), 0);
    refused(f, "env:ONCE_TEST_NONE", ONCE_E_CONFIG,
            "p.yaml:9: variable 'ONCE_TEST_NONE' is not set; 'url' is read from it");
    refused(f, "file:/nowhere/url", ONCE_E_CONFIG,
            "p.yaml:9: cannot read file '/nowhere/url' for 'url': No such file or directory");
    setenv("ONCE_TEST_URL", "mysql://me:secret@host/db", 1);
    refused(f, "env:ONCE_TEST_URL", ONCE_E_CONFIG, "p.yaml:9: no database 'mysql:' is known; write " KINDS);
    setenv("ONCE_TEST_URL", "secret", 1);
    refused(f, "env:ONCE_TEST_URL", ONCE_E_CONFIG, "p.yaml:9: not the URL of a database; write " KINDS);
    f->sql.does.n = 0;
    statement(f, "INSERT INTO t(id) VALUES (:id)");
    setenv("ONCE_TEST_URL", good, 1);
    f->sql.url = bytes("env:ONCE_TEST_URL");
    assert_int_equal(try_open(f), ONCE_OK);
    is(run(f, "{\"id\": \"a\"}"), ONCE_DONE, "");
}

static void the_same_file_is_known_by_whatever_name(void **state)
{
    fixture *f = *state;
    char link[140], other[200], url[160], a[200], b[200], c[200];
    const atomic_bool stop = false;
    const once_db_options options = {.env = once_env_real(), .busy_ms = 100, .stop = &stop};
    once_db *db;
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    assert_int_equal(once_db_identity(once_runner_db(f->runner, &f->handler), a, sizeof a, &f->err), ONCE_OK);
    snprintf(link, sizeof link, "%s/link.db", f->folder);
    assert_int_equal(symlink(f->file, link), 0);
    snprintf(url, sizeof url, "sqlite:%s", link);
    assert_int_equal(once_db_open(url, &options, &db, &f->err), ONCE_OK);
    assert_int_equal(once_db_identity(db, b, sizeof b, &f->err), ONCE_OK);
    once_db_close(db);
    snprintf(other, sizeof other, "VACUUM INTO '%s/copy.db'", f->folder);
    says(f, other);
    snprintf(url, sizeof url, "sqlite:%s/copy.db", f->folder);
    assert_int_equal(once_db_open(url, &options, &db, &f->err), ONCE_OK);
    assert_int_equal(once_db_identity(db, c, sizeof c, &f->err), ONCE_OK);
    once_db_close(db);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
}

/* --- a disk that fails --- */

/* At whichever call the disk fails: only when COMMIT was sent the end is unknown, and what is known is true. */
static void f51_a_disk_that_fails_under_a_commit(void **state)
{
    fixture *f = *state;
    sqlite3_vfs *usual = sqlite3_vfs_find(NULL);
    bool unknown = false, known = false;
    test_vfs_register();
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    once_runner_close(
        f->runner); /* only whether the file is there is asked of the real file system; all else of the other one */
    f->runner = NULL;
    sqlite3_vfs_register(sqlite3_vfs_find(TEST_VFS_NAME), 1);
    sqlite3 *mine = f->db;
    for (long n = 1; n < 200; n++) {
        test_vfs_reset();
        assert_int_equal(sqlite3_open(f->file, &f->db), SQLITE_OK);
        says(f, TABLES);
        assert_int_equal(try_open(f), ONCE_OK);
        test_vfs_fail(TEST_VFS_IOERR, n);
        const once_item *item = run(f, "{\"id\": \"a\"}");
        const bool hit = test_vfs_hit();
        test_vfs_fail(TEST_VFS_NONE, 0);
        once_runner_close(f->runner);
        f->runner = NULL;
        const int found = rows(f);
        sqlite3_close(f->db);
        if (item->outcome == ONCE_DONE) assert_int_equal(found, 1);
        else if (item->outcome == ONCE_UNKNOWN) unknown = true;
        else assert_int_equal(found, 0);
        known |= hit && item->outcome != ONCE_UNKNOWN && item->outcome != ONCE_DONE;
        if (!hit) break;
    }
    sqlite3_vfs_register(usual, 1);
    f->db = mine;
    assert_true(unknown && known);
}

/* At whichever write there is no space: nothing has happened, that is known, and nobody is blamed. */
static void f52_no_space_for_a_transaction_is_nobodys_fault(void **state)
{
    fixture *f = *state;
    sqlite3_vfs *usual = sqlite3_vfs_find(NULL);
    size_t met = 0;
    test_vfs_register();
    opened(f, "INSERT INTO t(id) VALUES (:id)");
    once_runner_close(f->runner);
    f->runner = NULL;
    sqlite3_vfs_register(sqlite3_vfs_find(TEST_VFS_NAME), 1);
    sqlite3 *mine = f->db;
    for (long n = 1; n < 400; n++) {
        test_vfs_reset();
        assert_int_equal(sqlite3_open(f->file, &f->db), SQLITE_OK);
        says(f, TABLES);
        assert_int_equal(try_open(f), ONCE_OK);
        test_vfs_fail(n % 2 ? TEST_VFS_FULL : TEST_VFS_QUOTA, n / 2 + 1);
        const once_item *item = run(f, "{\"id\": \"a\"}");
        const bool hit = test_vfs_hit();
        test_vfs_fail(TEST_VFS_NONE, 0);
        if (item->outcome != ONCE_DONE) { /* the same connection, when there is space */
            met++;
            assert_int_equal(item->outcome, ONCE_RELEASE);
            assert_int_equal(item->run_failure, ONCE_E_FULL);
            assert_false(item->maybe_done);
            assert_int_equal(rows(f), 0);
            assert_int_equal(run(f, "{\"id\": \"a\"}")->outcome, ONCE_DONE);
        }
        assert_int_equal(rows(f), 1);
        once_runner_close(f->runner);
        f->runner = NULL;
        sqlite3_close(f->db);
        if (!hit) break;
    }
    sqlite3_vfs_register(usual, 1);
    f->db = mine;
    assert_true(met >= 4);
}

/* --- PostgreSQL, whose statements another thread has to end --- */

/* What waits for the server: a statement, or a COMMIT in which a trigger sleeps; and a COMMIT that a trigger answers
 * with an error. */
static void postgres(fixture *f, const char *sql, int64_t timeout_ms)
{
    static char url[300], schema[60];
    const char *why = NULL;
    if (!test_postgres_url(&why)) skip();
    snprintf(schema, sizeof schema, "sqlhand_%d", (int)getpid());
    test_postgres_make(schema, url, sizeof url);
    char tables[1200];
    snprintf(
        tables, sizeof tables,
        "SET search_path = %s; CREATE TABLE late(id text);"
        "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1000); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE "
        "FUNCTION nap();"
        "CREATE TABLE odd(state text);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no'' USING ERRCODE = "
        "NEW.state; END';"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON odd DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE "
        "FUNCTION refuse()",
        schema);
    test_postgres_run(tables);
    f->sql.url = bytes(url);
    f->handler.timeout_ms = timeout_ms;
    opened(f, sql);
}

static void leave_postgres(fixture *f)
{
    char schema[60];
    snprintf(schema, sizeof schema, "sqlhand_%d", (int)getpid());
    once_runner_close(f->runner); /* its locks are gone then, unless something still runs in the server */
    f->runner = NULL;
    test_postgres_unmake(schema);
}

static void f60_f15_a_statement_of_postgres_is_ended(void **state)
{
    fixture *f = *state;
    postgres(f, "SELECT pg_sleep(1000)", 100);
    is(run(f, "{}"), ONCE_RETRY, "rolled back at its timeout of 100ms");
    f->handler.timeout_ms = PATIENCE_MS;
    for (int i = 0; i < 8; i++) { /* while it connects, begins, or runs */
        once_item *item = start(f, 0, "{}");
        usleep((useconds_t)i * 4000);
        once_runner_kill(f->runner, &item, 1);
        assert_ptr_equal(ended(f), item);
        assert_int_equal(item->outcome, ONCE_RELEASE);
        assert_int_equal(item->run_failure, ONCE_OK);
    }
    leave_postgres(f);
}

static void f06_f15_a_commit_of_postgres_that_is_given_up_is_unknown(void **state)
{
    static const char unknown[] = "COMMIT was sent, and its outcome is not known: ";
    fixture *f = *state;
    postgres(f, "INSERT INTO late VALUES ('x')", 200);
    const int64_t began_ms = once_env_mono_ns(once_env_real()) / 1000000;
    const once_item *item = run(f, "{}");
    assert_int_equal(item->outcome, ONCE_UNKNOWN);
    assert_true(item->maybe_done && item->started);
    assert_memory_equal(item->failure.data, unknown, strlen(unknown));
    assert_true(once_env_mono_ns(once_env_real()) / 1000000 - began_ms >= 400); /* it was given its time once more */
    leave_postgres(f);
}

/* An error that answers COMMIT is a refusal where its state says so. What nobody listed is not taken for one. */
static void f81_an_answer_to_commit_that_nobody_listed_is_unknown(void **state)
{
    static const struct {
        const char *body;
        once_outcome outcome;
    } answers[] = {{"{\"state\": \"23514\"}", ONCE_DEAD},    {"{\"state\": \"P0001\"}", ONCE_DEAD},
                   {"{\"state\": \"40001\"}", ONCE_RETRY},   {"{\"state\": \"57014\"}", ONCE_RETRY},
                   {"{\"state\": \"40003\"}", ONCE_UNKNOWN}, {"{\"state\": \"08007\"}", ONCE_UNKNOWN},
                   {"{\"state\": \"57P01\"}", ONCE_UNKNOWN}, {"{\"state\": \"XX000\"}", ONCE_UNKNOWN},
                   {"{\"state\": \"58030\"}", ONCE_UNKNOWN}, {"{\"state\": \"ZZ042\"}", ONCE_UNKNOWN}};
    fixture *f = *state;
    postgres(f, "INSERT INTO odd VALUES (:state)", PATIENCE_MS);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const once_item *item = run(f, answers[i].body);
        if (item->outcome != answers[i].outcome || item->run_failure != ONCE_OK)
            fail_msg("%s: %s, trouble %d", answers[i].body, once_outcome_name(item->outcome), item->run_failure);
        assert_int_equal(item->maybe_done, answers[i].outcome == ONCE_UNKNOWN);
    }
    f->sql.rejected = (const once_bytes[]){bytes("ZZ042")}; /* the handler knows what its own trigger means */
    f->sql.n_rejected = 1;
    is(run(f, "{\"state\": \"ZZ042\"}"), ONCE_REJECTED, "no");
    leave_postgres(f);
}

/* The server's trouble, and nobody's outcome: it has rolled back, and the message waits until there is space. */
static void f52_a_full_disk_at_the_commit_of_postgres(void **state)
{
    fixture *f = *state;
    postgres(f, "INSERT INTO odd VALUES (:state)", PATIENCE_MS);
    const once_item *item = run(f, "{\"state\": \"53100\"}");
    assert_int_equal(item->outcome, ONCE_RELEASE);
    assert_int_equal(item->run_failure, ONCE_E_FULL);
    assert_false(item->maybe_done || item->started);
    leave_postgres(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(values_and_what_once_knows_are_bound),
        TEST(f26_an_answer_of_the_business_is_the_outcome),
        TEST(a_name_in_a_list_is_the_whole_name),
        TEST(rows_that_were_asked_for),
        TEST(f03_a_commit_that_is_refused_has_not_happened),
        TEST(connections_work_beside_each_other),
        TEST(f60_rolled_back_at_its_timeout),
        TEST(f60_no_commit_is_sent_after_the_deadline),
        TEST(f15_killed_it_is_rolled_back_and_put_back),
        TEST(closing_does_not_wait_for_a_statement),
        TEST(f60_a_commit_that_readers_hold_up),
        TEST(a_lock_of_others_is_nobodys_fault),
        TEST(a_table_that_vanishes_stops_everything),
        TEST(mistakes_are_found_when_it_is_opened),
        TEST(the_same_file_is_known_by_whatever_name),
        TEST(f51_a_disk_that_fails_under_a_commit),
        TEST(f52_no_space_for_a_transaction_is_nobodys_fault),
        TEST(f60_f15_a_statement_of_postgres_is_ended),
        TEST(f06_f15_a_commit_of_postgres_that_is_given_up_is_unknown),
        TEST(f81_an_answer_to_commit_that_nobody_listed_is_unknown),
        TEST(f52_a_full_disk_at_the_commit_of_postgres),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
