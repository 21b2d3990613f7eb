/* A service with a PostgreSQL database of its own: effect, outcome and the service's own rows commit together.
 *
 *     cc postgres_transaction.c $(pkg-config --cflags --libs libonce libpq) -o postgres_transaction
 *     ./postgres_transaction postgresql://localhost/bank
 *
 * Run it a second time, several at once, or kill it anywhere: every deposit is booked once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libpq-fe.h>
#include <once/once.h>

static void must(PGconn *pg, const char *sql)
{
    PGresult *result = PQexec(pg, sql);
    const ExecStatusType status = PQresultStatus(result);
    PQclear(result);
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) return;
    fprintf(stderr, "%s: %s", sql, PQerrorMessage(pg));
    exit(1);
}

typedef struct deposit {
    const char *id, *account, *cents;
} deposit;

/* The handler: plain SQL on the caller's connection, inside the caller's transaction. It does not commit. */
static once_outcome book(void *user, const once_call *call, once_reply *reply)
{
    const deposit *d = user;
    const char *const values[] = {d->cents, d->account};
    PGresult *result =
        PQexecParams(call->pg, "UPDATE account SET cents = cents + $1 WHERE name = $2", 2, NULL, values, NULL, NULL, 0);
    const int fine = PQresultStatus(result) == PGRES_COMMAND_OK, none = strcmp(PQcmdTuples(result), "0") == 0;
    PQclear(result);
    /* Its writes are undone and the caller's transaction continues; the failure counts when the caller commits. */
    if (!fine) return ONCE_RETRY;
    if (none) {
        once_reply_reason(reply, "no account of that name");
        return ONCE_REJECTED; /* final: no delivery of it runs again */
    }
    once_reply_result(reply, ONCE_BYTES("booked"));
    return ONCE_DONE;
}

/* One delivery in one transaction. `roll_back`: as after an error in the service's later code. */
static void receive(PGconn *pg, deposit d, int roll_back)
{
    const once_scope scope = {.consumer = ONCE_BYTES("accounts"), .operation = ONCE_BYTES("deposit")};
    const once_delivery delivery = {.size = sizeof delivery, .key = {d.id, strlen(d.id)}};
    once_verdict verdict;
    once_error err;

    must(pg, "BEGIN");
    must(pg, "UPDATE service SET deliveries = deliveries + 1"); /* the service's own rows, in the same transaction */
    if (once_postgres_handle(pg, &scope, &delivery, book, &d, &verdict, &err) != ONCE_OK) {
        fprintf(stderr, "%s: %s\n", d.id, err.text);
        must(pg, "ROLLBACK");
        return; /* not acked: the broker delivers it again */
    }
    must(pg, roll_back ? "ROLLBACK" : "COMMIT");
    printf("%s: %s, %s%s\n", d.id, once_answer_name(verdict.answer), once_outcome_name(verdict.outcome),
           roll_back     ? ", rolled back"
           : verdict.ack ? ", acked"
                         : ""); /* ack after the commit, never before */
    once_verdict_release(&verdict);
}

static void show(PGconn *pg)
{
    PGresult *result = PQexec(pg, "SELECT name, cents FROM account ORDER BY name");
    for (int i = 0; i < PQntuples(result); i++)
        printf("%s has %s\n", PQgetvalue(result, i, 0), PQgetvalue(result, i, 1));
    PQclear(result);
}

int main(int argc, char **argv)
{
    once_error err;
    PGconn *pg = PQconnectdb(argc > 1 ? argv[1] : "");
    if (PQstatus(pg) != CONNECTION_OK) {
        fprintf(stderr, "%s", PQerrorMessage(pg));
        return 1;
    }
    must(pg, "SET client_min_messages = error");
    must(pg, "CREATE TABLE IF NOT EXISTS account(name text PRIMARY KEY, cents bigint NOT NULL);"
             "CREATE TABLE IF NOT EXISTS service(deliveries bigint NOT NULL);"
             "INSERT INTO account VALUES ('ann', 0), ('bob', 0) ON CONFLICT DO NOTHING;"
             "INSERT INTO service SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM service)");
    /* Creates the once_... tables in the schema that search_path names first. */
    if (once_postgres_prepare(pg, &err) != ONCE_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    receive(pg, (deposit){"d1", "ann", "100"}, 0);
    receive(pg, (deposit){"d2", "bob", "70"}, 1); /* rolled back: nothing is left of it */
    receive(pg, (deposit){"d1", "ann", "100"}, 0);
    receive(pg, (deposit){"d2", "bob", "70"}, 0); /* so this delivery books it */
    receive(pg, (deposit){"d3", "eve", "5"}, 0);
    receive(pg, (deposit){"d3", "eve", "5"}, 0);
    show(pg);
    once_postgres_release(pg); /* before PQfinish */
    PQfinish(pg);
    return 0;
}
