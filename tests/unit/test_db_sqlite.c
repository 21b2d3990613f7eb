/* db.h over SQLite: what a user's statement may do, and how its failures are classified. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "store/sqlite/sqlite.h"

static char folder[100];
static once_backend *store;
static once_db *db;

static int setup(void **state)
{
    (void)state;
    char path[200];
    once_error err = {0};
    snprintf(folder, sizeof folder, "/tmp/once-db-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/once.db", folder);
    const once_store_options options = {.size = sizeof options, .create = true};
    if (once__sqlite_store_open(path, &options, NULL, &store, &err) != ONCE_OK) return -1;
    db = store->ops->db(store);
    return once_db_script(
        db,
        ONCE_BYTES(
            "CREATE TABLE orders(id INTEGER PRIMARY KEY, status TEXT);"
            "CREATE TABLE payments(id TEXT PRIMARY KEY, x INTEGER, y INTEGER, amount INTEGER NOT NULL"
            " CONSTRAINT positive CHECK (amount > 0), UNIQUE(x, y));\n"
            "CREATE TABLE words(w TEXT); CREATE UNIQUE INDEX lower_w ON words(lower(w)); INSERT INTO words VALUES "
            "('a');"
            "CREATE TABLE lines(o INTEGER REFERENCES orders(id));"
            "CREATE TABLE late(o INTEGER REFERENCES orders(id) DEFERRABLE INITIALLY DEFERRED);"
            "CREATE TABLE tight(n INTEGER) STRICT;"
            "CREATE TABLE stop(n INTEGER PRIMARY KEY);"
            "CREATE TRIGGER stopper BEFORE INSERT ON stop WHEN new.n < 0 BEGIN SELECT RAISE(ABORT, 'too low'); END;"
            "INSERT INTO orders VALUES (1, 'new'), (2, 'new'); -- done"),
        &err);
}

static int teardown(void **state)
{
    (void)state;
    char command[200];
    once__store_close(store);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : -1;
}

static once_bytes bytes(const char *text) { return (once_bytes){text, strlen(text)}; }

static void refused(const char *sql, int status, const char *word)
{
    once_error err = {0};
    once_stmt *stmt = NULL;
    const int rc = once_db_prepare(db, bytes(sql), &stmt, &err);
    if (rc != status) fail_msg("%s: %s (%s)", sql, once_status_name(rc), err.text);
    if (!strstr(err.text, word)) fail_msg("%s: '%s' lacks '%s'", sql, err.text, word);
    assert_null(stmt);
}

static void f78_refused_statements(void **state)
{
    (void)state;
    static const char *const control[] = {"BEGIN",       "begin immediate", "COMMIT",        " -- hello\n COMMIT;",
                                          "/* x */ END", "ROLLBACK",        "ROLLBACK TO x", "SAVEPOINT x",
                                          "RELEASE x",   "EXPLAIN COMMIT"};
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        refused(control[i], ONCE_E_CONFIG, "not allowed in an effect");
    refused("COMMIT", ONCE_E_CONFIG, "'COMMIT' is not allowed in an effect; once commits for you");
    refused("ATTACH 'x.db' AS x", ONCE_E_CONFIG, "ATTACH");
    refused("DETACH main", ONCE_E_CONFIG, "DETACH");
    refused("PRAGMA synchronous = OFF", ONCE_E_CONFIG, "PRAGMA synchronous");
    refused("pragma journal_mode=delete", ONCE_E_CONFIG, "PRAGMA");
    refused("VACUUM", ONCE_E_CONFIG, "VACUUM");
    refused("vacuum into 'x.db'", ONCE_E_CONFIG, "VACUUM");
    refused("DELETE FROM once_entry", ONCE_E_CONFIG, "belongs to once");
    refused("SELECT * FROM ONCE_META", ONCE_E_CONFIG, "belongs to once");
    refused("SELECT value FROM (SELECT * FROM once_meta)", ONCE_E_CONFIG, "belongs to once");
    refused("UPDATE orders SET status = (SELECT max(id) FROM once_recent)", ONCE_E_CONFIG, "belongs to once");
    refused("INSERT INTO once_fact VALUES ('a', 'b')", ONCE_E_CONFIG, "belongs to once");
    refused("DROP TABLE once_store", ONCE_E_CONFIG, "belongs to once");
    refused("CREATE TABLE once_mine(n)", ONCE_E_CONFIG, "belongs to once");
    refused("CREATE INDEX i ON once_entry(id)", ONCE_E_CONFIG, "belongs to once");
    refused("ALTER TABLE once_entry ADD COLUMN x", ONCE_E_CONFIG, "belongs to once");
    refused("ALTER TABLE orders RENAME TO once_orders", ONCE_E_CONFIG, "belong to once");
    refused("ALTER TABLE orders RENAME TO \"Once_x\"", ONCE_E_CONFIG, "belong to once");
    refused("PRAGMA page_size = 512", ONCE_E_CONFIG, "PRAGMA page_size");
    refused("", ONCE_E_CONFIG, "empty");
    refused(" ; -- nothing", ONCE_E_CONFIG, "empty");
    refused("DELETE FROM orders; DELETE FROM payments", ONCE_E_CONFIG, "more than one statement");
    refused("DELETE FROM orders; COMMIT", ONCE_E_CONFIG, "more than one statement");
    refused("SELEC 1", ONCE_E_CONFIG, "syntax error");
    refused("DELETE FROM nowhere", ONCE_E_SCHEMA, "no such table: nowhere");
    refused("UPDATE orders SET nosuch = 1", ONCE_E_SCHEMA, "no such column: nosuch");
    refused("INSERT INTO orders(nosuch) VALUES (1)", ONCE_E_SCHEMA, "no column named nosuch");
    once_error err = {0};
    once_stmt *stmt;
    assert_int_equal(once_db_prepare(db, (once_bytes){"DELETE\0 FROM orders", 19}, &stmt, &err), ONCE_E_CONFIG);
}

/* A view or a trigger does not open a back door, nor does a script. */
static void f78_no_back_doors(void **state)
{
    (void)state;
    once_error err = {0};
    assert_int_equal(once_db_script(db, ONCE_BYTES("DELETE FROM orders; COMMIT"), &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "COMMIT"));
    assert_int_equal(once_db_script(db, ONCE_BYTES("CREATE VIEW v AS SELECT * FROM once_meta"), &err), ONCE_OK);
    refused("SELECT * FROM v", ONCE_E_CONFIG, "belongs to once");
    assert_int_equal(
        once_db_script(db, ONCE_BYTES("CREATE TRIGGER t AFTER UPDATE ON orders BEGIN DELETE FROM once_meta; END"),
                       &err),
        ONCE_OK);
    refused("UPDATE orders SET status = 'x'", ONCE_E_CONFIG, "belongs to once");
    assert_int_equal(once_db_script(db, ONCE_BYTES("DROP TRIGGER t; DROP VIEW v"), &err), ONCE_OK);
    /* The statement was fine when it was prepared; SQLite prepares it anew when the tables change. */
    once_stmt *stmt;
    once_fault fault;
    int64_t rows;
    assert_int_equal(once_db_prepare(db, ONCE_BYTES("UPDATE orders SET status = 'y' WHERE id = 1"), &stmt, &err),
                     ONCE_OK);
    assert_int_equal(
        once_db_script(db, ONCE_BYTES("CREATE TRIGGER t AFTER UPDATE ON orders BEGIN DELETE FROM once_meta; END"),
                       &err),
        ONCE_OK);
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_not_equal(once_stmt_run(stmt, NULL, 0, &rows, &fault), ONCE_OK);
    assert_int_equal(fault.kind, ONCE_FAULT_PAUSE);
    store->ops->rollback(store);
    once_stmt_free(stmt);
    once_bytes value;
    once_arena arena = {0};
    assert_int_equal(store->ops->fact_get(store, "x", &value, &arena, &err), ONCE_OK); /* the store is unharmed */
    once_arena_release(&arena);
    int defensive = 0;
    sqlite3_db_config(((once_sqlite_db *)db)->handle, SQLITE_DBCONFIG_DEFENSIVE, -1, &defensive);
    assert_int_equal(defensive, 1);
}

/* Runs one statement with the values in a transaction of its own. */
static int run(const char *sql, size_t n, const once_value *values, int64_t *rows, once_fault *fault)
{
    once_error err = {0};
    once_stmt *stmt;
    if (once_db_prepare(db, bytes(sql), &stmt, &err) != ONCE_OK) fail_msg("%s: %s", sql, err.text);
    assert_int_equal(once_stmt_params(stmt), n);
    if (sqlite3_get_autocommit(((once_sqlite_db *)db)->handle))
        assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    *fault = (once_fault){0};
    const int rc = once_stmt_run(stmt, values, n, rows, fault);
    once_stmt_free(stmt);
    return rc;
}

static void end(void)
{
    once_error err = {0};
    assert_int_equal(store->ops->commit(store, &err), ONCE_OK);
}

#define INT(n) ((once_value){.type = ONCE_VALUE_INTEGER, .integer = (n)})
#define TEXT(t) ((once_value){.type = ONCE_VALUE_TEXT, .text = ONCE_BYTES(t)})
#define NOTHING ((once_value){.type = ONCE_VALUE_NULL})
#define REAL(r) ((once_value){.type = ONCE_VALUE_NUMBER, .number = {.real = (r), .survives = true}})

#define INSERT_PAYMENT "INSERT INTO payments(id, x, y, amount) VALUES (?1, ?2, ?3, ?4)"

static void test_rows_and_values(void **state)
{
    (void)state;
    once_fault fault;
    int64_t rows;
    assert_int_equal(
        run(INSERT_PAYMENT, 4, (once_value[]){TEXT("p\xc3\xa9"), INT(INT64_MAX), NOTHING, REAL(1.5)}, &rows, &fault),
        ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(
        run("SELECT 1 FROM payments WHERE id = ?1 AND x = 9223372036854775807 AND y IS NULL AND amount = 1.5", 1,
            (once_value[]){TEXT("p\xc3\xa9")}, &rows, &fault),
        ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(run("UPDATE orders SET status = 'paid' WHERE id = ?1", 1, (once_value[]){INT(99)}, &rows, &fault),
                     ONCE_OK);
    assert_int_equal(rows, 0);
    assert_int_equal(run("UPDATE orders SET status = 'paid'", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 2);
    assert_int_equal(run("INSERT INTO orders VALUES (?1, '') RETURNING id", 1, (once_value[]){INT(5)}, &rows, &fault),
                     ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(
        run("WITH c AS (SELECT 5 AS n) DELETE FROM orders WHERE id IN (SELECT n FROM c)", 0, NULL, &rows, &fault),
        ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(run("CREATE TABLE other(n)", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);
    end();
}

#define BLOB(t) ((once_value){.type = ONCE_VALUE_BYTES, .text = ONCE_BYTES(t)})

static void test_bytes(void **state)
{
    (void)state;
    once_fault fault;
    int64_t rows;
    const once_value both[] = {BLOB("\0\xff{"), {.type = ONCE_VALUE_BYTES, .text = {0}}},
                     text = {.type = ONCE_VALUE_BYTES, .is_text = true, .text = ONCE_BYTES("{\"a\":1}")};
    assert_int_equal(run("SELECT 1 WHERE typeof(?1) = 'blob' AND hex(?1) = '00FF7B' AND typeof(?2) = 'blob' AND "
                         "length(?2) = 0",
                         2, both, &rows, &fault),
                     ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(run("SELECT 1 WHERE typeof(?1) = 'text' AND json_extract(?1, '$.a') = 1", 1, &text, &rows, &fault),
                     ONCE_OK);
    assert_int_equal(rows, 1);
    end();
}

static void faulty(const char *sql, size_t n, const once_value *values, once_fault_kind kind, int status,
                   const char *constraint)
{
    once_fault fault;
    int64_t rows;
    const int rc = run(sql, n, values, &rows, &fault);
    if (rc != status || fault.kind != kind)
        fail_msg("%s: %s, kind %d, code %d: %s", sql, once_status_name(rc), (int)fault.kind, fault.code, fault.text);
    assert_string_equal(fault.constraint, constraint);
    assert_true(fault.code != 0);
    assert_true(fault.text[0] != '\0');
    assert_false(fault.aborted);
}

static void test_faults(void **state)
{
    (void)state;
    once_fault fault;
    int64_t rows;
    assert_int_equal(run(INSERT_PAYMENT, 4, (once_value[]){TEXT("p1"), INT(1), INT(2), INT(3)}, &rows, &fault),
                     ONCE_OK);
    const once_fault_kind constraint = ONCE_FAULT_CONSTRAINT;
    faulty(INSERT_PAYMENT, 4, (once_value[]){TEXT("p1"), INT(8), INT(9), INT(3)}, constraint, ONCE_E_MESSAGE,
           "payments.id");
    faulty(INSERT_PAYMENT, 4, (once_value[]){TEXT("p2"), INT(1), INT(2), INT(3)}, constraint, ONCE_E_MESSAGE,
           "payments.x,payments.y");
    faulty("INSERT INTO words VALUES ('A')", 0, NULL, constraint, ONCE_E_MESSAGE, "lower_w");
    faulty(INSERT_PAYMENT, 4, (once_value[]){TEXT("p3"), INT(5), INT(6), INT(-3)}, constraint, ONCE_E_MESSAGE,
           "positive");
    faulty(INSERT_PAYMENT, 4, (once_value[]){TEXT("p4"), INT(5), INT(6), NOTHING}, constraint, ONCE_E_MESSAGE, "");
    faulty("INSERT INTO orders VALUES (1, '')", 0, NULL, constraint, ONCE_E_MESSAGE, "orders.id");
    faulty("INSERT INTO lines VALUES (99)", 0, NULL, constraint, ONCE_E_MESSAGE, "");
    faulty("INSERT INTO stop VALUES (-1)", 0, NULL, constraint, ONCE_E_MESSAGE, "");
    faulty("INSERT INTO tight VALUES (?1)", 1, (once_value[]){TEXT("abc")}, ONCE_FAULT_DATA, ONCE_E_MESSAGE, "");
    faulty("INSERT INTO orders VALUES (?1, '')", 1, (once_value[]){TEXT("abc")}, ONCE_FAULT_DATA, ONCE_E_MESSAGE, "");
    faulty("UPDATE orders SET status = abs(-9223372036854775807 - 1)", 0, NULL, ONCE_FAULT_DATA, ONCE_E_MESSAGE, "");
    /* None of them left anything behind, and the transaction is still good. */
    assert_int_equal(run("SELECT 1 FROM payments", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 1);
    end();
}

static void test_the_database_rolls_back(void **state)
{
    (void)state;
    once_fault fault;
    once_error err = {0};
    int64_t rows;
    assert_int_equal(run(INSERT_PAYMENT, 4, (once_value[]){TEXT("p1"), INT(1), INT(2), INT(3)}, &rows, &fault),
                     ONCE_OK);
    assert_int_equal(run("INSERT OR ROLLBACK INTO orders VALUES (1, '')", 0, NULL, &rows, &fault), ONCE_E_MESSAGE);
    assert_true(fault.aborted);
    assert_int_equal(store->ops->commit(store, &err), ONCE_E_ABORTED);
    assert_int_equal(run("SELECT 1 FROM payments", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);
    end();
}

static void test_a_deferred_foreign_key_fails_the_commit(void **state)
{
    (void)state;
    once_fault fault;
    once_error err = {0};
    int64_t rows;
    assert_int_equal(run("INSERT INTO late VALUES (99)", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(store->ops->commit(store, &err), ONCE_E_MESSAGE);
    assert_int_equal(run("SELECT 1 FROM late", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);
    end();
}

static void test_savepoints(void **state)
{
    (void)state;
    once_fault fault;
    once_error err = {0};
    int64_t rows;
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_equal(once_db_savepoint(db, &err), ONCE_OK);
    assert_int_equal(run("INSERT INTO orders VALUES (10, '')", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(once_db_savepoint_undo(db, &err), ONCE_OK);
    assert_int_equal(once_db_savepoint(db, &err), ONCE_OK);
    assert_int_equal(run("INSERT INTO orders VALUES (11, '')", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(once_db_savepoint_release(db, &err), ONCE_OK);
    assert_int_equal(once_db_savepoint(db, &err), ONCE_OK);
    const once_letter letter = {.reason = ONCE_BYTES("why"), .kind = ONCE_ANSWER_DEAD};
    bool fresh;
    assert_int_equal(store->ops->bury(store, &letter, 1, &fresh, &err),
                     ONCE_E_BUG); /* a verb inside would be undone unseen */
    store->ops->rollback(store);
    assert_int_equal(run("SELECT 1 FROM orders WHERE id > 9", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);
    end();
}

static void test_script(void **state)
{
    (void)state;
    once_error err = {0};
    once_fault fault;
    int64_t rows;
    assert_int_equal(
        once_db_script(db, ONCE_BYTES("INSERT INTO orders VALUES (20, ''); INSERT INTO orders VALUES (20, '')"), &err),
        ONCE_E_CONFIG);
    assert_int_equal(run("SELECT 1 FROM orders WHERE id = 20", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);                                                        /* all or nothing */
    assert_int_equal(once_db_script(db, ONCE_BYTES("SELECT 1"), &err), ONCE_E_USAGE); /* inside a transaction */
    end();
    assert_int_equal(once_db_script(db, ONCE_BYTES("  "), &err), ONCE_OK);
}

#define ENDLESS "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "

static bool told;
static bool is_told(void *user) { return (void)user, told; }

/* A statement that writes takes its transaction with it, one that reads does not; the connection can be used again. */
static void ends_as(once_fault_kind kind)
{
    once_error err = {0};
    once_fault fault;
    int64_t rows;
    assert_int_equal(run("INSERT INTO orders VALUES (30, '')", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(run(ENDLESS "SELECT max(i) FROM n", 0, NULL, &rows, &fault), ONCE_E_ABORTED);
    assert_int_equal(fault.kind, kind);
    assert_false(fault.aborted);
    assert_int_equal(run("SELECT 1 FROM orders WHERE id = 30", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 1);
    assert_int_equal(run(ENDLESS "INSERT INTO orders SELECT max(i), '' FROM n", 0, NULL, &rows, &fault),
                     ONCE_E_ABORTED);
    assert_int_equal(fault.kind, kind);
    assert_true(fault.aborted);
    assert_int_equal(store->ops->commit(store, &err), ONCE_E_ABORTED);
    once_db_limit(db, 0);
    told = false;
    assert_int_equal(run("SELECT 1 FROM orders WHERE id = 30", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 0);
    assert_int_equal(run("INSERT INTO orders VALUES (30, '')", 0, NULL, &rows, &fault), ONCE_OK);
    end();
}

static void f94_a_statement_is_ended_at_its_limit(void **state)
{
    (void)state;
    once_db_limit(db, 20);
    ends_as(ONCE_FAULT_TIMEOUT);
}

static void f94_a_statement_is_ended_when_nobody_waits_any_longer(void **state)
{
    (void)state;
    once__sqlite_watch((once_sqlite_db *)db, (once_cancel){is_told, NULL});
    told = true;
    ends_as(ONCE_FAULT_STOPPED);
}

/* However late it is: the limit is for statements of the user, and what we have to write is written. */
static void f94_our_own_statements_have_no_limit(void **state)
{
    (void)state;
    once_sqlite_db *file = (once_sqlite_db *)db;
    once_error err = {0};
    int64_t n;
    once__sqlite_watch(file, (once_cancel){is_told, NULL});
    once_db_limit(db, 1);
    usleep(2000);
    told = true;
    assert_int_equal(
        once__sqlite_integer(
            file,
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT max(i) FROM n", 0,
            &n, &err),
        ONCE_OK);
    assert_int_equal(n, 100000);
    told = false;
}

static void f94_a_script_is_ended_at_its_limit(void **state)
{
    (void)state;
    once_error err = {0};
    once_db_limit(db, 20);
    assert_int_equal(
        once_db_script(db, ONCE_BYTES("CREATE TABLE made(n);" ENDLESS "INSERT INTO made SELECT max(i) FROM n"), &err),
        ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "timeout"));
    once_db_limit(db, 0);
    assert_int_equal(once_db_script(db, ONCE_BYTES("CREATE TABLE made(n)"), &err),
                     ONCE_OK); /* nothing of it has stayed */
}

/* Without the lock: a script is needed when something that it makes is missing. */
static void f94_looking_at_a_script(void **state)
{
    (void)state;
    once_error err = {0};
    bool needed = true;
    assert_int_equal(once_db_script_look(db, ONCE_BYTES("CREATE TABLE IF NOT EXISTS orders(id); DELETE FROM orders;"),
                                         &needed, &err),
                     ONCE_OK);
    assert_false(needed);
    assert_int_equal(once_db_script_look(db,
                                         ONCE_BYTES("CREATE TABLE IF NOT EXISTS made(id); INSERT INTO made VALUES (1)"),
                                         &needed, &err),
                     ONCE_OK);
    assert_true(needed);
    assert_int_equal(once_db_script_look(db, ONCE_BYTES("CREATE TABEL made(id)"), &needed, &err), ONCE_E_CONFIG);
    assert_int_equal(once_db_script_look(db, ONCE_BYTES("DELETE FROM orders; COMMIT"), &needed, &err), ONCE_E_CONFIG);
    once_fault fault;
    int64_t rows;
    assert_int_equal(run("SELECT 1 FROM orders", 0, NULL, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 2);
    end();
}

static void test_a_table_that_vanishes_pauses(void **state)
{
    (void)state;
    once_error err = {0};
    once_stmt *stmt;
    once_fault fault;
    int64_t rows;
    assert_int_equal(once_db_prepare(db, ONCE_BYTES("INSERT INTO lines VALUES (1)"), &stmt, &err), ONCE_OK);
    assert_int_equal(once_db_script(db, ONCE_BYTES("DROP TABLE lines"), &err), ONCE_OK);
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_equal(once_stmt_run(stmt, NULL, 0, &rows, &fault), ONCE_E_SCHEMA);
    assert_int_equal(fault.kind, ONCE_FAULT_PAUSE);
    store->ops->rollback(store);
    once_stmt_free(stmt);
}

static void test_statuses(void **state)
{
    (void)state;
    static const struct {
        int code;
        once_class class;
    } table[] = {{SQLITE_OK, ONCE_CLASS_OK},
                 {SQLITE_BUSY, ONCE_CLASS_RETRY},
                 {SQLITE_BUSY_SNAPSHOT, ONCE_CLASS_RETRY},
                 {SQLITE_LOCKED, ONCE_CLASS_RETRY},
                 {SQLITE_NOMEM, ONCE_CLASS_RETRY},
                 {SQLITE_IOERR_NOMEM, ONCE_CLASS_RETRY},
                 {SQLITE_INTERRUPT, ONCE_CLASS_RETRY},
                 {SQLITE_FULL, ONCE_CLASS_PAUSE},
                 {SQLITE_READONLY_DBMOVED, ONCE_CLASS_PAUSE},
                 {SQLITE_PERM, ONCE_CLASS_PAUSE},
                 {SQLITE_AUTH, ONCE_CLASS_PAUSE},
                 {SQLITE_IOERR_FSYNC, ONCE_CLASS_FATAL},
                 {SQLITE_CORRUPT_INDEX, ONCE_CLASS_FATAL},
                 {SQLITE_NOTADB, ONCE_CLASS_FATAL},
                 {SQLITE_MISUSE, ONCE_CLASS_FATAL},
                 {SQLITE_CONSTRAINT_UNIQUE, ONCE_CLASS_MESSAGE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(once_status_class(once__sqlite_status(table[i].code)), table[i].class);
}

#define EACH(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(f78_refused_statements),
        EACH(f78_no_back_doors),
        EACH(test_rows_and_values),
        EACH(test_bytes),
        EACH(test_faults),
        EACH(test_the_database_rolls_back),
        EACH(test_a_deferred_foreign_key_fails_the_commit),
        EACH(test_savepoints),
        EACH(f94_a_statement_is_ended_at_its_limit),
        EACH(f94_a_statement_is_ended_when_nobody_waits_any_longer),
        EACH(f94_our_own_statements_have_no_limit),
        EACH(f94_a_script_is_ended_at_its_limit),
        EACH(f94_looking_at_a_script),
        EACH(test_script),
        EACH(test_a_table_that_vanishes_pauses),
        EACH(test_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
