/* A service with an SQLite database of its own: effect, outcome and the service's own rows commit together.
 *
 *     cc own_transaction.c $(pkg-config --cflags --libs libonce sqlite3) -o own_transaction
 *     ./own_transaction accounts.db
 *
 * Run it a second time, or kill it anywhere: every deposit is booked once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <once/once.h>
#include <sqlite3.h>

static void must(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK) return;
    fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
    exit(1);
}

typedef struct deposit {
    const char *id, *account;
    int cents;
} deposit;

/* The handler: plain SQL on the caller's connection, inside the caller's transaction. It does not commit. */
static once_outcome book(void *user, const once_call *call, once_reply *reply)
{
    const deposit *d = user;
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(call->db, "UPDATE account SET cents = cents + ?1 WHERE name = ?2", -1, &stmt, NULL) !=
        SQLITE_OK)
        return ONCE_RETRY;
    sqlite3_bind_int(stmt, 1, d->cents);
    sqlite3_bind_text(stmt, 2, d->account, -1, SQLITE_STATIC);
    const int code = sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    if (code != SQLITE_DONE) return ONCE_RETRY; /* its writes are undone; the failure counts when the caller commits */
    if (sqlite3_changes(call->db) == 0) {
        once_reply_reason(reply, "no account of that name");
        return ONCE_REJECTED; /* final: no delivery of it runs again */
    }
    once_reply_result(reply, ONCE_BYTES("booked"));
    return ONCE_DONE;
}

/* One delivery in one transaction. `roll_back`: as after an error in the service's later code. */
static void receive(sqlite3 *db, deposit d, int roll_back)
{
    const once_scope scope = {.consumer = ONCE_BYTES("accounts"), .operation = ONCE_BYTES("deposit")};
    const once_delivery delivery = {.size = sizeof delivery, .key = {d.id, strlen(d.id)}};
    once_verdict verdict;
    once_error err;

    /* Not plain BEGIN: a transaction that began by reading may not be able to write later (SQLITE_BUSY). */
    must(db, "BEGIN IMMEDIATE");
    must(db, "UPDATE service SET deliveries = deliveries + 1"); /* the service's own rows, in the same transaction */
    if (once_sqlite_handle(db, &scope, &delivery, book, &d, &verdict, &err) != ONCE_OK) {
        fprintf(stderr, "%s: %s\n", d.id, err.text);
        if (!sqlite3_get_autocommit(db)) must(db, "ROLLBACK");
        return; /* not acked: the broker delivers it again */
    }
    must(db, roll_back ? "ROLLBACK" : "COMMIT");
    printf("%s: %s, %s%s\n", d.id, once_answer_name(verdict.answer), once_outcome_name(verdict.outcome),
           roll_back     ? ", rolled back"
           : verdict.ack ? ", acked"
                         : ""); /* ack after the commit, never before */
    once_verdict_release(&verdict);
}

static int show(void *user, int n, char **values, char **names)
{
    (void)user;
    (void)n;
    (void)names;
    printf("%s has %s\n", values[0], values[1]);
    return 0;
}

int main(int argc, char **argv)
{
    sqlite3 *db;
    once_error err;
    if (sqlite3_open(argc > 1 ? argv[1] : ":memory:", &db) != SQLITE_OK) return 1;
    sqlite3_busy_timeout(db, 10000);
    /* The service chooses its settings; these make commits durable. */
    must(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
             "CREATE TABLE IF NOT EXISTS account(name TEXT PRIMARY KEY, cents INTEGER NOT NULL);"
             "CREATE TABLE IF NOT EXISTS service(deliveries INTEGER NOT NULL);"
             "INSERT OR IGNORE INTO account VALUES ('ann', 0), ('bob', 0);"
             "INSERT INTO service SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM service)");
    if (once_sqlite_prepare(db, &err) != ONCE_OK) { /* creates the once_... tables in this database */
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    receive(db, (deposit){"d1", "ann", 100}, 0);
    receive(db, (deposit){"d2", "bob", 70}, 1); /* rolled back: nothing is left of it */
    receive(db, (deposit){"d1", "ann", 100}, 0);
    receive(db, (deposit){"d2", "bob", 70}, 0); /* so this delivery books it */
    receive(db, (deposit){"d3", "eve", 5}, 0);
    receive(db, (deposit){"d3", "eve", 5}, 0);
    sqlite3_exec(db, "SELECT name, cents FROM account ORDER BY name", show, NULL, NULL);
    once_sqlite_release(db); /* before sqlite3_close */
    return sqlite3_close(db) == SQLITE_OK ? 0 : 1;
}
