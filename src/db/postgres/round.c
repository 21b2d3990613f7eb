/* Sending and reading in pipeline mode: statements are sent, and a round reads all their results.
 *
 * Invariants
 *   - `pending` counts the statements of this round that were sent and not read; between rounds it is 0.
 *   - Presumed statements (`presumed_groups`) were sent before the round, and are read before it.
 *   - The second part of a round in two parts was sent before both, and is read before both.
 *   - A failed round has been read to its Sync, so that the connection can be used again (for ROLLBACK); or the
 *     connection was dropped. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

enum { UNSENT_MAX = 64 << 10, SOME = 128 };

int once__pg_lost(once_pg *pg, once_error *err)
{
    const int rc = once__pg_fail(pg, NULL, err);
    once__pg_drop(pg);
    return once_status_class(rc) == ONCE_CLASS_RETRY ? rc : ONCE_E_UNAVAILABLE;
}

int once__pg_push(once_pg *pg, once_error *err)
{
    if (pg->borrowed) return ONCE_OK;
    pg->unsent = 0;
    return once__pg_wait(pg, false) && once__pg_alive(pg) ? ONCE_OK : once__pg_lost(pg, err);
}

/* The first statements of many are written to the socket early, so that the server works while others are built. */
int once__pg_sent(once_pg *pg, size_t bytes, once_error *err)
{
    pg->pending++;
    pg->unsent += bytes;
    return pg->unsent < UNSENT_MAX && pg->pending != SOME ? ONCE_OK : once__pg_push(pg, err);
}

int once__pg_send(once_pg *pg, unsigned number, const once_pg_params *params, once_error *err)
{
    static const int binary[PG_PARAMS_MAX] = {[0 ... PG_PARAMS_MAX - 1] = 1};
    assert(number < pg->n_sql && !pg->synced);
    if (params && params->failed) return once_no_memory(err, "for PostgreSQL");
    if (!once__pg_alive(pg)) return once__pg_fail(pg, NULL, err);
    const once_pg_text *text = &pg->sql[number];
    const int n = params ? params->n : 0;
    const char *const *values = params ? params->values : NULL;
    const int *lengths = params ? params->lengths : NULL;
    const bool sent = pg->shared ? PQsendQueryParams(pg->conn, text->sql, n, NULL, values, lengths, binary, 1)
                                 : PQsendQueryPrepared(pg->conn, text->name, n, values, lengths, binary, 1);
    if (!sent) return once__pg_fail(pg, NULL, err);
    size_t bytes = pg->shared ? strlen(text->sql) : 0;
    for (int i = 0; params && i < params->n; i++) bytes += (size_t)params->lengths[i];
    const int rc = once__pg_sent(pg, bytes, err);
    if (rc == ONCE_OK) once__pg_must(pg, text->sql, text->shape, 0);
    return rc;
}

int once__pg_send_text(once_pg *pg, const char *sql, once_error *err)
{
    assert(!pg->synced);
    if (!once__pg_alive(pg) || !PQsendQueryParams(pg->conn, sql, 0, NULL, NULL, NULL, NULL, 1))
        return once__pg_fail(pg, NULL, err);
    const int rc = once__pg_sent(pg, strlen(sql), err);
    if (rc == ONCE_OK) once__pg_must(pg, sql, NULL, 0);
    return rc;
}

int once__pg_sync(once_pg *pg, once_error *err)
{
    assert(!pg->synced);
    if (!once__pg_alive(pg) || !PQpipelineSync(pg->conn)) return once__pg_lost(pg, err);
    pg->synced = pg->asked = true;
    pg->unsent = 0;
    return ONCE_OK;
}

PGresult *once__pg_read(once_pg *pg)
{
    if (!once__pg_alive(pg) || !once__pg_wait(pg, true)) return NULL;
    pg->trips += pg->asked;
    pg->asked = false;
    return once__pg_result(pg);
}

int once__pg_next(once_pg *pg, PGresult **out, once_error *err)
{
    assert(pg->pending && pg->synced && !pg->presumed_groups && !pg->later.n); /* those are read first */
    PGresult *result = once__pg_read(pg);
    if (!result || !once__pg_alive(pg)) {
        if (result && PQstatus(pg->conn) != CONNECTION_OK) PQclear(result);
        return once__pg_lost(pg, err);
    }
    PGresult *rest;
    while ((rest = once__pg_read(pg))) PQclear(rest); /* a statement has one result, and a NULL behind it */
    if (pg->silence[0]) {
        PQclear(result);
        return once__pg_lost(pg, err);
    }
    pg->pending--;
    *out = result;
    return ONCE_OK;
}

int once__pg_synced(once_pg *pg, once_error *err)
{
    while (pg->pending) {
        PGresult *result;
        const int rc = once__pg_next(pg, &result, err);
        if (rc != ONCE_OK) return rc;
        PQclear(result);
    }
    if (!pg->synced) return ONCE_OK;
    PGresult *end = once__pg_read(pg);
    const bool fine = end && PQresultStatus(end) == PGRES_PIPELINE_SYNC;
    PQclear(end);
    if (!fine) return once__pg_lost(pg, err);
    pg->synced = false;
    return ONCE_OK;
}

void once__pg_clear(PGresult **results, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        PQclear(results[i]);
        results[i] = NULL;
    }
}

static bool is_answer(ExecStatusType status) { return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK; }

/* Reads the results of the round, behind which a Sync was sent. `rc`: the status of what was read before them. */
static int read_results(once_pg *pg, PGresult **results, size_t n, int rc, once_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const int read = once__pg_next(pg, &results[i], rc == ONCE_OK ? err : NULL);
        if (read != ONCE_OK) { /* the connection is lost */
            once__pg_clear(results, i);
            return rc == ONCE_OK ? read : rc;
        }
        const ExecStatusType status = PQresultStatus(results[i]);
        const once_pg_expected *expected = i < PG_ROUND_MAX ? &pg->expected[i] : NULL;
        if (rc == ONCE_OK && expected && is_answer(status) &&
            !once__pg_fits(results[i], expected->shape, expected->most)) {
            once__pg_clear(results, i + 1);
            return once__pg_misfit(pg, expected->sql, err);
        }
        if (i + 1 == pg->local_at) {
            const int told = once__pg_told_local(pg, results[i], rc == ONCE_OK ? err : NULL);
            if (rc == ONCE_OK) rc = told;
        }
        if (rc != ONCE_OK || is_answer(status)) continue;
        const char *state = PQresultErrorField(results[i], PG_DIAG_SQLSTATE);
        rc = once__pg_fail(pg, results[i], err);
        pg->failed_at = i;
        snprintf(pg->failed_state, sizeof pg->failed_state, "%s", state ? state : "");
    }
    const int end = once__pg_synced(pg, rc == ONCE_OK ? err : NULL);
    if (rc == ONCE_OK) rc = end;
    if (rc != ONCE_OK) once__pg_clear(results, n);
    return rc;
}

static void no_results(once_pg *pg, PGresult **results, size_t n)
{
    for (size_t i = 0; i < n; i++) results[i] = NULL;
    pg->failed_state[0] = '\0';
}

int once__pg_round(once_pg *pg, PGresult **results, size_t n, once_error *err)
{
    no_results(pg, results, n);
    if (n == 0) return ONCE_OK;
    assert(pg->pending == n || !once__pg_alive(pg));
    int rc = once__pg_sync(pg, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_confirm(pg, err);
    return pg->conn ? read_results(pg, results, n, rc, err) : rc;
}

static void set_aside(once_pg *pg, once_pg_part *part)
{
    assert(pg->synced && pg->pending <= PG_ROUND_MAX);
    part->n = pg->pending;
    memcpy(part->expected, pg->expected, sizeof part->expected);
    pg->pending = 0;
    pg->synced = false;
}

static void take_up(once_pg *pg, once_pg_part *part)
{
    assert(part->n > 0 && part->n <= PG_ROUND_MAX);
    pg->pending = part->n;
    pg->synced = true;
    memcpy(pg->expected, part->expected, sizeof pg->expected);
    part->n = 0;
}

int once__pg_split(once_pg *pg, once_error *err)
{
    assert(pg->pending && !pg->presumed_groups && !pg->head.n && !pg->later.n);
    const int rc = once__pg_sync(pg, err);
    if (rc == ONCE_OK) set_aside(pg, &pg->head);
    return rc;
}

int once__pg_head(once_pg *pg, PGresult **results, size_t n, once_pg_later *read, void *user, once_error *err)
{
    no_results(pg, results, n);
    assert((pg->pending && pg->head.n == n) || !once__pg_alive(pg));
    int rc = once__pg_sync(pg, err);
    if (rc != ONCE_OK) return rc;
    set_aside(pg, &pg->later);
    pg->read_later = read;
    pg->later_user = user;
    take_up(pg, &pg->head);
    const size_t later = pg->later.n;
    pg->later.n = 0; /* it is read later */
    rc = read_results(pg, results, n, ONCE_OK, err);
    if (pg->conn) pg->later.n = later;
    return rc;
}

/* Statements of another round may have been sent behind it; their state is saved and restored. This read is not counted
 * as a round trip: the server still works on those. */
int once__pg_later(once_pg *pg, PGresult **results, size_t n, once_error *err)
{
    assert(pg->later.n == n && !pg->head.n);
    const size_t groups = pg->presumed_groups, pending = pg->pending;
    const bool synced = pg->synced, asked = pg->asked;
    once_pg_expected expected[PG_ROUND_MAX];
    memcpy(expected, pg->expected, sizeof expected);
    no_results(pg, results, n);
    take_up(pg, &pg->later);
    pg->presumed_groups = 0;
    pg->asked = false;
    const int rc = read_results(pg, results, n, ONCE_OK, err);
    if (!pg->conn) return rc;
    pg->presumed_groups = groups;
    pg->pending = pending;
    pg->synced = synced;
    pg->asked = asked;
    memcpy(pg->expected, expected, sizeof expected);
    return rc;
}

int once__pg_exec(once_pg *pg, const char *sql, PGresult **out, once_error *err)
{
    assert(!pg->pending && !pg->synced && !pg->presumed_groups && !pg->later.n);
    if (out) *out = NULL;
    if (!once__pg_alive(pg) || !PQexitPipelineMode(pg->conn)) return once__pg_lost(pg, err);
    PGresult *result = once__pg_simple(pg, sql);
    if (!result) return once__pg_lost(pg, err);
    const ExecStatusType status = PQresultStatus(result);
    int rc = ONCE_OK;
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY)
        rc = once__pg_fail(pg, result, err);
    if (out && rc == ONCE_OK) *out = result;
    else PQclear(result);
    if (!once__pg_alive(pg)) {
        once__pg_drop(pg);
        return rc == ONCE_OK ? once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where) : rc;
    }
    if (!PQenterPipelineMode(pg->conn)) return once__pg_lost(pg, err);
    return rc;
}

int once__pg_exec_begin(once_pg *pg, bool write, once_error *err)
{
    assert(!pg->pending && !pg->synced);
    once_buf sql;
    PGresult *result = NULL;
    once_buf_init(&sql, 1 << 20);
    once_buf_printf(&sql, "BEGIN ISOLATION LEVEL READ COMMITTED READ %s;",
                    write ? "WRITE; SET LOCAL synchronous_commit = on" : "ONLY");
    once_buf_puts(&sql, pg->local ? pg->local : "SELECT '', pg_backend_pid()");
    int rc = sql.failed ? once_no_memory(err, "for PostgreSQL") : once__pg_ask(pg, sql.data, "1tt+", &result, err);
    once_buf_release(&sql);
    if (rc == ONCE_OK && pg->local) rc = once__pg_told_local(pg, result, err);
    if (rc == ONCE_OK) rc = once__pg_same_session(pg, strtol(once__pg_text(result, 0, 1), NULL, 10), err);
    PQclear(result);
    return rc == ONCE_OK ? rc : once__pg_exec_end(pg, rc, err);
}

int once__pg_exec_end(once_pg *pg, int rc, once_error *err)
{
    if (rc == ONCE_OK) rc = once__pg_exec(pg, "COMMIT", NULL, err);
    else if (once__pg_alive(pg) && PQtransactionStatus(pg->conn) != PQTRANS_IDLE)
        once__pg_exec(pg, "ROLLBACK", NULL, NULL);
    once__pg_forget_session(pg);
    return rc;
}
