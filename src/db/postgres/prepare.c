/* Statements of the user before they run: parameter types that the server infers, and whether this role may run
 * them. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "db/postgres/user.h"

#include "base/banned.h"

int once__pg_prepare_failed(once_pg *pg, const PGresult *result, once_error *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE),
               *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (!state || !text) return once__pg_fail(pg, result, err);
    if (strcmp(state, "42P01") == 0 || strcmp(state, "42703") == 0 || strcmp(state, "42883") == 0 ||
        strncmp(state, "3F", 2) == 0)
        return once_fail(err, ONCE_E_SCHEMA, "%s; create it in the database first", text);
    if (strcmp(state, "42501") == 0 || strcmp(state, "42P05") == 0) return once__pg_fail(pg, result, err);
    if (strncmp(state, "42", 2) == 0 || strncmp(state, "22", 2) == 0) return once_fail(err, ONCE_E_CONFIG, "%s", text);
    return once__pg_fail(pg, result, err);
}

/* Whether the database has constraints or triggers that are checked at commit. */
static int look_for_deferrable(once_pg *pg, once_error *err)
{
    PGresult *result;
    const int rc = once__pg_ask(pg,
                                "SELECT EXISTS(SELECT FROM pg_catalog.pg_constraint WHERE condeferrable)"
                                " OR EXISTS(SELECT FROM pg_catalog.pg_trigger WHERE tgdeferrable)",
                                "1t", &result, err);
    if (rc != ONCE_OK) return rc;
    pg->deferrable = once__pg_text(result, 0, 0)[0] == 't';
    PQclear(result);
    return ONCE_OK;
}

static int keep_types(once_pg_stmt *stmt, const PGresult *described, once_error *err)
{
    const int n = PQnparams(described);
    if (stmt->types &&
        n != stmt->stmt.params) /* the server parses strings differently now (standard_conforming_strings) */
        return once_fail(err, ONCE_E_CONFIG,
                         "the database found %d parameters in a statement, and finds %d after a reconnect",
                         stmt->stmt.params, n);
    unsigned *types = calloc((size_t)n + 1, sizeof *types);
    if (!types) return once_no_memory(err, "for a statement");
    for (int i = 0; i < n; i++) types[i] = PQparamtype(described, i);
    free(stmt->types);
    stmt->types = types;
    stmt->stmt.params = n;
    return ONCE_OK;
}

static int prepare_as(once_pg *pg, const char *name, once_pg_stmt *stmt, once_error *err)
{
    assert(!pg->pending && !pg->synced && stmt->sql);
    PGresult *results[2] = {0};
    if (!once__pg_alive(pg) || !PQsendPrepare(pg->conn, name, stmt->sql, 0, NULL) ||
        !PQsendDescribePrepared(pg->conn, name))
        return once__pg_fail(pg, NULL, err);
    pg->pending += 2;
    int rc = once__pg_sync(pg, err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &results[0], err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &results[1], err);
    if (rc == ONCE_OK) rc = once__pg_synced(pg, err);
    if (rc == ONCE_OK && PQresultStatus(results[0]) != PGRES_COMMAND_OK)
        rc = once__pg_prepare_failed(pg, results[0], err);
    else if (rc == ONCE_OK && PQresultStatus(results[1]) != PGRES_COMMAND_OK)
        rc = once__pg_prepare_failed(pg, results[1], err);
    if (rc == ONCE_OK) rc = keep_types(stmt, results[1], err);
    once__pg_clear(results, 2);
    return rc;
}

/* In a shared session the statement is only described, without a name, inside a transaction. */
static int prepare_on_server(once_pg *pg, once_pg_stmt *stmt, once_error *err)
{
    if (!pg->shared) return prepare_as(pg, stmt->name, stmt, err);
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = prepare_as(pg, "", stmt, err);
    return once__pg_exec_end(pg, rc, err);
}

/* ---- rights ---- */

/* The GRANTs that this role lacks for the tables that the statement may use. It is a guess, only for the error text. */
static void guess_grants(once_pg *pg, const char *sql, char *out, size_t size)
{
    once_buf ask;
    PGresult *result = NULL;
    out[0] = '\0';
    once_buf_init(&ask, 1 << 20);
    once_buf_puts(&ask, "WITH word AS (SELECT DISTINCT w, to_regclass(w) AS oid FROM unnest(ARRAY[");
    once__pg_put_words(pg, sql, &ask);
    once_buf_puts(
        &ask,
        "]::text[]) AS w), verb AS (SELECT v FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS v WHERE"
        " EXISTS (SELECT FROM word WHERE upper(w) = v OR (v = 'SELECT' AND upper(w) IN ('WHERE', 'FROM', 'RETURNING', "
        "'CONFLICT')))),"
        " missing AS (SELECT oid, string_agg(v, ', ' ORDER BY v) AS what FROM word, verb WHERE oid IS NOT NULL"
        " AND NOT has_table_privilege(oid, v) GROUP BY oid)"
        " SELECT string_agg(format('GRANT %s ON %I.%I TO %I', what, n.nspname, c.relname, current_user), '; ') FROM "
        "missing JOIN pg_class c USING (oid)"
        " JOIN pg_namespace n ON n.oid = c.relnamespace");
    if (!ask.failed && once__pg_exec_begin(pg, false, NULL) == ONCE_OK) {
        const int rc = once__pg_ask(pg, ask.data, "1T", &result, NULL);
        if (rc == ONCE_OK) snprintf(out, size, "; let the owner run: %s", once__pg_text(result, 0, 0));
        if (rc == ONCE_OK && once__pg_null(result, 0, 0)) out[0] = '\0';
        (void)once__pg_exec_end(pg, rc, NULL);
    }
    PQclear(result);
    once_buf_release(&ask);
}

/* EXPLAIN of the statement: fails when the role lacks a right, and runs nothing. Statements that cannot be explained
 * are passed over. */
static int explain(once_pg *pg, const once_pg_stmt *stmt, PGresult **out, once_error *err)
{
    once_buf sql;
    const char **nothing = calloc((size_t)stmt->stmt.params + 1, sizeof *nothing);
    once_buf_init(&sql, strlen(stmt->sql) + 32);
    once_buf_printf(&sql, "EXPLAIN (COSTS off) %s",
                    stmt->sql); /* with brackets no word of the statement can be read as ANALYZE, which would run it */
    int rc = sql.failed || !nothing ? once_no_memory(err, "for a statement") : ONCE_OK;
    if (rc == ONCE_OK && !PQsendQueryParams(pg->conn, sql.data, stmt->stmt.params, NULL, nothing, NULL, NULL, 0))
        rc = once__pg_fail(pg, NULL, err);
    if (rc == ONCE_OK) {
        pg->pending++;
        rc = once__pg_sync(pg, err);
    }
    if (rc == ONCE_OK) rc = once__pg_next(pg, out, err);
    if (rc == ONCE_OK) rc = once__pg_synced(pg, err);
    once_buf_release(&sql);
    free(nothing);
    return rc;
}

/* ONCE_E_DENIED with the GRANTs that the statement lacks. */
static int look_for_rights(once_pg *pg, const once_pg_stmt *stmt, once_error *err)
{
    assert(!pg->pending && !pg->synced);
    char grants[300], text[200];
    PGresult *result = NULL;
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = explain(pg, stmt, &result, err);
    const char *state = rc == ONCE_OK ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const bool denied = state && strcmp(state, "42501") == 0;
    snprintf(text, sizeof text, "%s", denied ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : "");
    PQclear(result);
    (void)once__pg_exec_end(pg, denied ? ONCE_E_DENIED : ONCE_E_ABORTED, NULL); /* rolled back either way */
    if (!denied) return rc;
    guess_grants(pg, stmt->sql, grants, sizeof grants);
    return once_fail(err, ONCE_E_DENIED, "%s%s", text, grants);
}

int once__pg_user_rights(once_pg *pg, once_error *err)
{
    int rc = ONCE_OK;
    for (const once_pg_stmt *stmt = pg->users; stmt && rc == ONCE_OK; stmt = stmt->next)
        rc = look_for_rights(pg, stmt, err);
    return rc;
}

void once__pg_user_free(once_stmt *stmt)
{
    once_pg_stmt *mine = (once_pg_stmt *)stmt;
    once_pg_stmt **at = &once__pg_of(stmt->db)->users;
    while (*at && *at != mine) at = &(*at)->next;
    if (*at) *at = mine->next;
    free(mine->types);
    free(mine->sql);
    free(mine);
}

/* Whether it uses a temporary table that another client left in a shared session; transactions ask this from now on. */
static int look_for_left(once_pg *pg, once_error *err)
{
    int rc = once__pg_learn_local(pg, err);
    if (rc == ONCE_OK) rc = once__pg_exec_begin(pg, false, err);
    return rc == ONCE_OK ? once__pg_exec_end(pg, rc, err) : rc;
}

int once__pg_user_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err)
{
    once_pg *pg = once__pg_of(db);
    int rc = once__pg_look(sql, false, err);
    if (rc == ONCE_OK) rc = once__pg_connect(pg, 0, err);
    if (rc == ONCE_OK && !pg->users) rc = look_for_deferrable(pg, err);
    if (rc != ONCE_OK) return rc;
    once_buf text;
    once_buf_init(&text, 4 * sql.len + 64);
    once_pg_stmt *stmt = calloc(1, sizeof *stmt);
    if (!stmt || once__pg_number_params(sql, &text, err) != ONCE_OK || text.failed ||
        !(stmt->sql = strdup(text.data ? text.data : ""))) {
        once_buf_release(&text);
        free(stmt);
        return once_no_memory(err, "for a statement");
    }
    once_buf_release(&text);
    stmt->stmt.db = db;
    char number[16];
    snprintf(number, sizeof number, "u%u", pg->next_user++); /* two statements may have the same text */
    once__pg_name(stmt->name, number, stmt->sql);
    const bool known = pg->found_out;
    rc = prepare_on_server(pg, stmt, err);
    if (rc != ONCE_OK && pg->found_out && !known) {
        rc = once__pg_connect(pg, 0, err);
        if (rc == ONCE_OK) rc = prepare_on_server(pg, stmt, err);
    }
    if (rc == ONCE_OK) rc = look_for_rights(pg, stmt, err);
    stmt->next = pg->users;
    pg->users = stmt;
    if (rc == ONCE_OK && pg->shared) rc = look_for_left(pg, err);
    if (rc == ONCE_OK) *out = &stmt->stmt;
    else once__pg_user_free(&stmt->stmt);
    return rc;
}
