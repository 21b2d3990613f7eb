/* A PostgreSQL database that is not the store's: a connection with transactions of its own.
 *
 * While it waits for the server (wait.c), it looks at `stop`; when it gives up, it asks the server to cancel the
 * statement. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

typedef struct once_pg_own {
    const atomic_bool *stop;
    once_cancel opening; /* cancels opening it */
} once_pg_own;

static once_pg *of(once_db *db) { return (once_pg *)db; }

/* ---- connection ---- */

static bool is_told_to_stop(void *user)
{
    const once_pg_own *own = user;
    return atomic_load(own->stop) || once_cancelled(&own->opening);
}

static int told_to_stop(const once_pg *pg, once_error *err)
{
    return once_fail(err, ONCE_E_ABORTED, "%s: stopped", pg->where);
}

int once__pg_open(const char *rest, const once_db_options *options, once_db **out, once_error *err)
{
    once_pg *pg;
    once_pg_own *own = calloc(1, sizeof *own);
    if (!own) return once_no_memory(err, "for PostgreSQL");
    own->stop = options->stop;
    own->opening = options->opening;
    int rc = once__pg_new(rest, options->env, options->consumer, (once_cancel){is_told_to_stop, own}, &pg, err);
    if (rc != ONCE_OK) {
        free(own);
        return rc;
    }
    if (pg->tables_in[0]) {
        once__pg_free(pg);
        free(own);
        return once_fail(
            err, ONCE_E_CONFIG,
            "'schema=' in a URL is where a store has its tables; for effects write ?options=-csearch_path%%3Dname");
    }
    pg->own = own;
    rc = once__pg_connect(pg, 0, err);
    own->opening = (once_cancel){0};
    if (rc == ONCE_OK) *out = &pg->db;
    else once__pg_close_own(&pg->db);
    return rc;
}

void once__pg_close_own(once_db *db)
{
    once_pg_own *own = of(db)->own;
    once__pg_free(of(db));
    free(own);
}

/* ---- transactions ---- */

static int begin(once_pg *pg, once_error *err)
{
    assert(pg->own);
    PGresult *results[3];
    size_t sent = 0;
    int rc = once__pg_begin_sql(pg, "BEGIN READ WRITE", &sent, err);
    if (rc == ONCE_OK)
        rc = once__pg_send_text(
            pg,
            "SELECT pg_backend_pid(), CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
            " THEN set_config('synchronous_commit', 'on', true) END, " ONCE_PG_BEGUN,
            err);
    if (rc == ONCE_OK) once__pg_must(pg, "SELECT pg_backend_pid(), ...", "1iTttttt", 0);
    sent += rc == ONCE_OK;
    if (rc == ONCE_OK) rc = once__pg_round(pg, results, sent, err);
    if (rc != ONCE_OK) {
        once__pg_tx_rollback(&pg->db);
        return rc;
    }
    rc = once__pg_same_session(pg, once__pg_int(results[sent - 1], 0, 0), err);
    if (rc == ONCE_OK) rc = once__pg_guard_keep(pg, results[sent - 1], 2, err);
    pg->effects = false;
    once__pg_clear(results, sent);
    if (rc != ONCE_OK) once__pg_drop(pg);
    return rc;
}

/* An idle connection may be lost without our notice. Then we reconnect and begin again: nothing was done yet. */
int once__pg_tx_begin(once_db *db, once_error *err)
{
    once_pg *pg = of(db);
    assert(pg->own && !pg->pending && !pg->savepoints);
    for (;;) {
        const bool was_there = once__pg_alive(pg) && !pg->stale;
        int rc = was_there ? ONCE_OK : once__pg_connect(pg, 0, err);
        if (rc == ONCE_OK && atomic_load(pg->own->stop)) rc = told_to_stop(pg, err);
        else if (rc == ONCE_OK) rc = begin(pg, err);
        if (rc == ONCE_OK || !was_there || once__pg_alive(pg) || atomic_load(pg->own->stop)) return rc;
    }
}

/* Whether an error in reply to COMMIT means that the transaction was rolled back: deferred checks (constraints,
 * triggers, conflicts with others), a cancelled statement, and a disk that is full before the commit is written (after
 * that the server panics). Any other error leaves it unknown: a server that is shutting down may have committed and
 * wait for a standby, 40003 itself means unknown, and a proxy may send anything. */
static bool says_rolled_back(const PGresult *result)
{
    static const char *const states[] = {"21",    "22",    "23",    "25",    "42",    "44",    "P0",
                                         "40000", "40001", "40002", "40P01", "53100", "55P03", "57014"};
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE),
               *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (!state || !severity || strcmp(severity, "ERROR") != 0)
        return false; /* FATAL, PANIC: the server process ended */
    if (strcmp(state, "25P03") == 0) return false;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strncmp(state, states[i], strlen(states[i])) == 0) return true;
    return false;
}

static int commit_answered(once_pg *pg, PGresult *result, bool *maybe, once_fault *fault)
{
    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        *maybe = !says_rolled_back(result);
        return once__pg_fault(pg, result, fault);
    }
    *maybe = pg->unreplicated;
    if (strcmp(PQcmdStatus(result), "COMMIT") == 0 && pg->unreplicated) {
        *fault = (once_fault){
            .kind = ONCE_FAULT_RETRY,
            .text = "the commit may not have reached its standby, because an operator cancelled the wait for it"};
        return ONCE_E_UNAVAILABLE;
    }
    if (strcmp(PQcmdStatus(result), "COMMIT") == 0) return ONCE_OK;
    *maybe |= strcmp(PQcmdStatus(result), "ROLLBACK") != 0; /* that is no answer to COMMIT */
    *fault = (once_fault){.kind = ONCE_FAULT_RETRY, .text = "the server rolled the transaction back"};
    if (*maybe) snprintf(fault->text, sizeof fault->text, "the answer to COMMIT is '%.40s'", PQcmdStatus(result));
    return ONCE_E_ABORTED;
}

static int guard_send(once_pg *pg)
{
    static const int text[PG_PARAMS_MAX];
    once_pg_params params = {0};
    once__pg_guard_params(pg, &params);
    const char *sql = pg->temps ? ONCE_PG_GUARD_TEMP : ONCE_PG_GUARD;
    if (!PQsendQueryParams(pg->conn, sql, params.n, NULL, params.values, params.lengths, text, 1))
        return ONCE_E_UNAVAILABLE;
    return once__pg_sent(pg, strlen(sql), NULL);
}

/* Reads the result of the guard. *changed: its status when it has failed, for whatever reason. Then the server has
 * skipped the COMMIT behind it. */
static int guard_gather(once_pg *pg, int *changed, once_fault *fault)
{
    PGresult *result = NULL;
    const int rc = once__pg_next(pg, &result, NULL);
    if (rc != ONCE_OK) return rc;
    if (PQresultStatus(result) == PGRES_COMMAND_OK ||
        (PQresultStatus(result) == PGRES_TUPLES_OK && !once__pg_fits(result, "1i", 0))) {
        PQclear(result);
        return once__pg_misfit(pg, "SELECT ... before COMMIT", NULL);
    }
    char said[sizeof fault->text];
    *changed = once__pg_guard_said(pg, PQresultErrorField(result, PG_DIAG_SQLSTATE),
                                   PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY), said, sizeof said);
    if (*changed != ONCE_OK) {
        *fault = (once_fault){.kind = *changed == ONCE_E_COMMIT_UNKNOWN ? ONCE_FAULT_FATAL
                                      : *changed == ONCE_E_ABORTED      ? ONCE_FAULT_RETRY
                                                                        : ONCE_FAULT_PAUSE};
        snprintf(fault->text, sizeof fault->text, "%s", said);
    } else if (PQresultStatus(result) != PGRES_TUPLES_OK) {
        *changed = once__pg_fault(pg, result, fault);
        if (*changed == ONCE_E_MESSAGE) { /* the guard is ours: no message is at fault */
            fault->kind = ONCE_FAULT_RETRY;
            *changed = ONCE_E_ABORTED;
        }
    }
    PQclear(result);
    return ONCE_OK;
}

int once__pg_tx_commit(once_db *db, bool *maybe, once_fault *fault)
{
    once_pg *pg = of(db);
    assert(pg->own && !pg->pending && !pg->savepoints);
    PGresult *result = NULL;
    const bool guarded = pg->effects;
    int changed = ONCE_OK;
    *maybe = false;
    if (!once__pg_alive(pg)) return once__pg_fault(pg, NULL, fault);
    *maybe = true;
    pg->unreplicated = false;
    int rc = guarded ? guard_send(pg) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__pg_send_text(pg, "COMMIT", NULL);
    if (rc == ONCE_OK) rc = once__pg_sync(pg, NULL);
    if (rc == ONCE_OK && guarded) rc = guard_gather(pg, &changed, fault);
    if (changed != ONCE_OK) *maybe = changed == ONCE_E_COMMIT_UNKNOWN;
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, NULL);
    if (rc != ONCE_OK) return changed != ONCE_OK ? changed : once__pg_fault(pg, NULL, fault);
    rc = changed != ONCE_OK ? changed : commit_answered(pg, result, maybe, fault);
    PQclear(result);
    if (changed == ONCE_E_COMMIT_UNKNOWN) once__pg_drop(pg); /* the state of the session is unknown */
    else
        (void)once__pg_synced(
            pg, NULL); /* the result was read; the next transaction notices a connection that is lost now */
    return rc;
}

void once__pg_tx_rollback(once_db *db)
{
    once_pg *pg = of(db);
    assert(pg->own);
    PGresult *result;
    pg->savepoints = 0; /* they have ended with the transaction */
    if (atomic_load(pg->own->stop)) once__pg_drop(pg);
    if (!once__pg_alive(pg) || PQtransactionStatus(pg->conn) == PQTRANS_IDLE) return;
    if (once__pg_send_text(pg, "ROLLBACK", NULL) != ONCE_OK || once__pg_round(pg, &result, 1, NULL) != ONCE_OK)
        once__pg_drop(pg);
    else PQclear(result);
}

/* ---- identity ---- */

int once__pg_identity(once_db *db, char *out, size_t len, once_error *err)
{
    PGresult *result;
    const int rc =
        once__pg_ask(of(db),
                     "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time()), oid FROM pg_catalog.pg_database"
                     " WHERE datname = pg_catalog.current_database()",
                     "1tt", &result, err);
    if (rc != ONCE_OK) return rc;
    snprintf(out, len, "postgres %s:%s", once__pg_text(result, 0, 0), once__pg_text(result, 0, 1));
    PQclear(result);
    return ONCE_OK;
}
