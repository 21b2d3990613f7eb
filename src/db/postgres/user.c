/* Running statements of the user on a PostgreSQL connection, with savepoints, deferred checks and scripts.
 *
 * Values are sent as text without a type, so that the server infers the type from the context: 12 fits an integer, a
 * numeric and a text column. A number is sent as it is written in the message where the type keeps that, like numeric
 * and text. For other types, above all integers, 1.0 and 1e3 are sent as 1 and 1000. Bytes are sent in binary form, and
 * only where the server expects bytes or text. */
#include "db/postgres/user.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/no_memory.h"

#include "base/banned.h"

enum { INTEGER_DIGITS = 40, VALUES_KEPT = 4 << 20, FIRST_USER_TYPE = 16384 };

static int bad_value(once_fault *fault, const char *text)
{
    if (fault) {
        *fault = (once_fault){.kind = ONCE_FAULT_DATA};
        snprintf(fault->state, sizeof fault->state, "22021");
        snprintf(fault->text, sizeof fault->text, "%s", text);
    }
    return ONCE_E_MESSAGE;
}

static int user_rights(once_db *db, once_error *err) { return once__pg_user_rights(once__pg_of(db), err); }

/* ---- running ---- */

/* Types that read any number as it is written. Not integers, nor domains, which may be integers. */
static bool reads_any_number(unsigned type)
{
    static const unsigned types[] = {PG_NUMERIC, PG_FLOAT4, PG_FLOAT8, PG_TEXT,
                                     PG_VARCHAR, PG_BPCHAR, PG_JSON,   PG_JSONB};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i] == type) return true;
    return false;
}

/* Where the type may be an integer, a whole number is sent without point and exponent. */
static void put_number(once_buf *to, once_bytes text, unsigned type)
{
    assert(text.len > 0);
    once_decimal d;
    const bool whole = !reads_any_number(type) &&
                       once_json_decimal((once_json_value){.type = ONCE_JSON_REAL, .raw = text}, &d) &&
                       d.exponent >= 0 && d.exponent < INTEGER_DIGITS;
    if (!whole) {
        once_buf_append(to, text.data, text.len);
        return;
    }
    if (d.negative) once_buf_puts(to, "-");
    if (d.head.len + d.tail.len == 0) once_buf_puts(to, "0");
    once_buf_append(to, d.head.data, d.head.len);
    once_buf_append(to, d.tail.data, d.tail.len);
    for (int64_t i = 0; i < d.exponent; i++) once_buf_puts(to, "0");
}

static int no_room(once_fault *fault)
{
    if (fault) *fault = (once_fault){.kind = ONCE_FAULT_RETRY, .text = "out of memory for the values of a statement"};
    return ONCE_E_NOMEM;
}

/* Text goes to a bytea in binary form, too: as text its backslashes would be escapes. */
static bool is_binary(const once_value *value, unsigned type)
{
    return value->type == ONCE_VALUE_BYTES && (!value->is_text || type == PG_BYTEA);
}

/* The binary form of these types is the bytes as they are. A type of the user may be a domain over one of them. */
static int check_bytes(unsigned type, once_fault *fault)
{
    if (type == PG_BYTEA || type == PG_TEXT || type == PG_VARCHAR || type == PG_BPCHAR || type >= FIRST_USER_TYPE)
        return ONCE_OK;
    if (fault) {
        *fault = (once_fault){.kind = ONCE_FAULT_PAUSE};
        snprintf(fault->text, sizeof fault->text,
                 "a body of bytes (:once_body) stands where the database expects another type (its OID is %u); use a "
                 "column of type bytea",
                 type);
    }
    return ONCE_E_SCHEMA;
}

static int put_value(once_buf *to, const once_value *value, unsigned type, once_fault *fault)
{
    if (is_binary(value, type)) return check_bytes(type, fault);
    switch (value->type) {
    case ONCE_VALUE_NULL: return ONCE_OK;
    case ONCE_VALUE_INTEGER: once_buf_printf(to, "%lld", (long long)value->integer); break;
    case ONCE_VALUE_NUMBER: put_number(to, value->number.text, type); break;
    case ONCE_VALUE_BYTES:
    case ONCE_VALUE_TEXT:
        if (value->text.len && memchr(value->text.data, '\0', value->text.len))
            return bad_value(fault, "a text with a NUL character, which PostgreSQL cannot keep");
        once_buf_append(to, value->text.data, value->text.len);
    }
    once_buf_append(to, "", 1);
    return ONCE_OK;
}

static bool make_room(once_pg *pg, size_t n)
{
    if (pg->values.capacity > VALUES_KEPT) once_buf_release(&pg->values);
    once_buf_clear(&pg->values);
    if (n <= pg->texts_size) return true;
    const char **texts = reallocarray(pg->texts, n, sizeof *texts);
    if (texts) pg->texts = texts;
    int *lengths = reallocarray(pg->lengths, n, sizeof *lengths);
    if (lengths) pg->lengths = lengths;
    int *formats = reallocarray(pg->formats, n, sizeof *formats);
    if (formats) pg->formats = formats;
    if (!texts || !lengths || !formats) return false;
    pg->texts_size = n;
    return true;
}

/* Fills pg->texts with texts that end with a NUL, as libpq needs them, and with bytes. `size`: of all of them. */
static int put_values(once_pg *pg, const once_value *values, const unsigned *types, size_t n, size_t *size,
                      once_fault *fault)
{
    if (!make_room(pg, n)) return no_room(fault);
    for (size_t i = 0; i < n; i++) {
        const int rc = put_value(&pg->values, &values[i], types[i], fault);
        if (rc != ONCE_OK) return rc;
    }
    if (pg->values.failed) return no_room(fault);
    const char *at = pg->values.data;
    *size = pg->values.len;
    for (size_t i = 0; i < n; i++) {
        const bool binary = is_binary(&values[i], types[i]);
        const once_bytes bytes = binary ? values[i].text : (once_bytes){0};
        assert(bytes.len <= INT32_MAX); /* message_max is less */
        pg->formats[i] = binary;
        pg->lengths[i] = (int)bytes.len;
        *size += bytes.len;
        if (binary) pg->texts[i] = bytes.len ? bytes.data : "";
        else pg->texts[i] = values[i].type == ONCE_VALUE_NULL ? NULL : at;
        if (pg->texts[i] && !binary) at += strlen(at) + 1;
    }
    return ONCE_OK;
}

static int user_send(once_stmt *base, const once_value *values, size_t n, once_fault *fault)
{
    once_pg_stmt *stmt = (once_pg_stmt *)base;
    once_pg *pg = once__pg_of(base->db);
    size_t size = 0;
    int rc = put_values(pg, values, stmt->types, n, &size, fault);
    if (rc != ONCE_OK) return rc;
    pg->effects = stmt->presumed = true;
    const bool sent =
        once__pg_alive(pg) &&
        (pg->shared ? PQsendQueryParams(pg->conn, stmt->sql, (int)n, NULL, pg->texts, pg->lengths, pg->formats, 1)
                    : PQsendQueryPrepared(pg->conn, stmt->name, (int)n, pg->texts, pg->lengths, pg->formats, 1));
    if (sent && once__pg_sent(pg, size + (pg->shared ? strlen(stmt->sql) : 0), NULL) == ONCE_OK) return ONCE_OK;
    rc = once__pg_fault(pg, NULL, fault);
    once__pg_drop(pg);
    return rc;
}

static int64_t rows_of(PGresult *result)
{
    const char *text = PQcmdTuples(result);
    return text[0] ? strtoll(text, NULL, 10) : 0;
}

/* Called when it is known whether all presumed statements have succeeded. */
static void end_presumed(once_pg *pg, bool succeeded)
{
    for (once_pg_stmt *stmt = pg->users; stmt; stmt = stmt->next) {
        if (stmt->presumed && succeeded) stmt->names = 0;
        stmt->presumed = false;
    }
}

static int user_gather(once_stmt *base, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    assert(n == 0 || values);
    once_pg_stmt *stmt = (once_pg_stmt *)base;
    once_pg *pg = once__pg_of(base->db);
    PGresult *result = NULL;
    int rc = ONCE_OK;
    if (!pg->synced) rc = once__pg_sync(pg, NULL);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, NULL);
    if (rc != ONCE_OK) return once__pg_fault(pg, NULL, fault);
    stmt->presumed = false;
    const ExecStatusType status = PQresultStatus(result);
    const bool answered = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
    if (answered) *rows = rows_of(result);
    else rc = once__pg_fault_given(pg, result, stmt, values, n, fault);
    if (answered) stmt->names = 0;
    else if (!PQresultErrorField(result, PG_DIAG_SQLSTATE))
        once__pg_drop(pg); /* an error without a SQLSTATE: the connection is not usable */
    PQclear(result);
    if (rc == ONCE_OK && pg->pending == 0 && once__pg_synced(pg, NULL) != ONCE_OK) rc = once__pg_fault(pg, NULL, fault);
    return rc;
}

static void user_drop(once_db *db)
{
    once_pg *pg = once__pg_of(db);
    end_presumed(pg, false);
    if (!once__pg_alive(pg) || (!pg->pending && !pg->synced)) return;
    if (!pg->synced && once__pg_sync(pg, NULL) != ONCE_OK) return;
    (void)once__pg_confirm(pg, NULL);
    (void)once__pg_synced(pg, NULL);
}

static int user_presume(once_db *db, once_error *err)
{
    once_pg *pg = once__pg_of(db);
    if (!pg->pending) return ONCE_OK;
    const int rc = once__pg_sync(pg, err);
    if (rc != ONCE_OK) return rc;
    pg->pending = 0;
    pg->synced = false;
    pg->presumed_groups++;
    pg->presumed = true;
    return ONCE_OK;
}

/* A presumed statement has failed. A fault that passes, or stops everything, keeps its status. Any other will be found
 * again by a run with savepoints, which knows the message. */
static int disproved(once_pg *pg, const PGresult *result, once_error *err)
{
    assert(pg->presumed);
    once_fault fault;
    const int rc = once__pg_fault(pg, result, &fault);
    const bool found_again = fault.kind == ONCE_FAULT_CONSTRAINT || fault.kind == ONCE_FAULT_DATA ||
                             fault.kind == ONCE_FAULT_INTERNAL || fault.kind == ONCE_FAULT_PAUSE;
    return once_fail(err, found_again ? ONCE_E_MESSAGE : rc, "%s: %s", pg->where, fault.text);
}

static int read_presumed(once_pg *pg, once_error *err)
{
    assert(pg->presumed_groups > 0);
    int rc = ONCE_OK;
    while (pg->presumed_groups) {
        PGresult *result = once__pg_read(pg);
        if (!result || !once__pg_alive(pg)) {
            PQclear(result);
            const int lost = once__pg_lost(pg, rc == ONCE_OK ? err : NULL);
            return rc == ONCE_OK ? lost : rc;
        }
        const ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_PIPELINE_SYNC) {
            pg->presumed_groups--;
        } else {
            if (rc == ONCE_OK && status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
                rc = disproved(pg, result, err);
            for (PGresult *rest; (rest = once__pg_read(pg));) PQclear(rest);
        }
        PQclear(result);
    }
    return rc;
}

int once__pg_confirm(once_pg *pg, once_error *err)
{
    int rc = pg->later.n ? pg->read_later(pg->later_user, err) : ONCE_OK;
    assert(!pg->later.n);
    if (!pg->presumed_groups) return rc;
    const int presumed = read_presumed(pg, rc == ONCE_OK ? err : NULL);
    if (rc == ONCE_OK) rc = presumed;
    end_presumed(pg, rc == ONCE_OK);
    return rc;
}

static int user_confirm(once_db *db, once_error *err) { return once__pg_confirm(once__pg_of(db), err); }

static int user_run(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    int64_t ignored;
    int rc = user_send(stmt, values, n, fault);
    if (rc == ONCE_OK) rc = user_gather(stmt, values, n, rows ? rows : &ignored, fault);
    user_drop(stmt->db);
    return rc;
}

/* ---- savepoints, deferred checks, scripts ---- */

/* Runs statements without results, in one round. */
static int say(once_pg *pg, const char *const *sql, size_t n, once_error *err)
{
    assert(n > 0);
    PGresult *results[4];
    int rc = ONCE_OK;
    assert(n <= 4);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) rc = once__pg_send_text(pg, sql[i], err);
    if (rc == ONCE_OK) rc = once__pg_round(pg, results, n, err);
    if (rc == ONCE_OK) once__pg_clear(results, n);
    return rc;
}

/* Lets the server check deferred constraints now. The savepoint takes SET CONSTRAINTS back, so they stay deferred. */
static int user_check_deferred(once_db *db, once_fault *fault)
{
    static const char *const sql[] = {"SAVEPOINT once_check", "SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK TO once_check",
                                      "RELEASE once_check"};
    once_pg *pg = once__pg_of(db);
    PGresult *result = NULL;
    if (!pg->deferrable) return ONCE_OK;
    int rc = ONCE_OK, found = ONCE_OK;
    for (size_t i = 0; i < 4 && rc == ONCE_OK; i++) rc = once__pg_send_text(pg, sql[i], NULL);
    if (rc == ONCE_OK) rc = once__pg_sync(pg, NULL);
    for (size_t i = 0; i < 4 && rc == ONCE_OK; i++) {
        rc = once__pg_next(pg, &result, NULL);
        if (rc == ONCE_OK && found == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
            found = once__pg_fault(pg, result, fault);
        PQclear(rc == ONCE_OK ? result : NULL);
    }
    if (rc == ONCE_OK) rc = once__pg_synced(pg, NULL);
    return found == ONCE_OK && rc != ONCE_OK ? once__pg_fault(pg, NULL, fault) : found;
}

static int user_savepoint(once_db *db, once_error *err)
{
    static const char *const sql[] = {"SAVEPOINT once_message"};
    const int rc = say(once__pg_of(db), sql, 1, err);
    if (rc == ONCE_OK) once__pg_of(db)->savepoints++;
    return rc;
}

static int user_savepoint_release(once_db *db, once_error *err)
{
    static const char *const sql[] = {"RELEASE once_message"};
    assert(once__pg_of(db)->savepoints > 0 || !once__pg_alive(once__pg_of(db)));
    if (once__pg_of(db)->savepoints) once__pg_of(db)->savepoints--;
    return say(once__pg_of(db), sql, 1, err);
}

static int user_savepoint_undo(once_db *db, once_error *err)
{
    static const char *const sql[] = {"ROLLBACK TO once_message", "RELEASE once_message"};
    if (once__pg_of(db)->savepoints) once__pg_of(db)->savepoints--;
    return say(once__pg_of(db), sql, 2, err);
}

static int user_mark_send(once_db *db, bool release, once_error *err)
{
    return once__pg_send_text(once__pg_of(db), release ? "RELEASE once_message" : "SAVEPOINT once_message", err);
}

static int user_mark_gather(once_db *db, once_error *err)
{
    once_pg *pg = once__pg_of(db);
    PGresult *result = NULL;
    int rc = pg->synced ? ONCE_OK : once__pg_sync(pg, err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, err);
    if (rc == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK) rc = once__pg_fail(pg, result, err);
    PQclear(result);
    return rc == ONCE_OK && pg->pending == 0 ? once__pg_synced(pg, err) : rc;
}

static bool user_may_defer(once_db *db) { return once__pg_of(db)->deferrable; }

/* Several processes may run the same script at once, and "IF NOT EXISTS" alone is not safe then: hence the lock. */
static int user_script(once_db *db, once_bytes sql, once_error *err)
{
    once_pg *pg = once__pg_of(db);
    int rc = once__pg_look(sql, true, err);
    if (rc == ONCE_OK) rc = once__pg_connect(pg, 0, err);
    if (rc != ONCE_OK) return rc;
    if (PQtransactionStatus(pg->conn) != PQTRANS_IDLE)
        return once_fail(err, ONCE_E_USAGE, "a script runs in a transaction of its own");
    char *text = strndup(sql.len ? sql.data : "", sql.len);
    if (!text) return once_no_memory(err, "for a statement");
    PGresult *result = NULL;
    rc = once__pg_exec_begin(pg, true, err);
    if (rc == ONCE_OK)
        rc = once__pg_exec(pg,
                           "SELECT pg_advisory_xact_lock(1869505383, (SELECT oid FROM pg_namespace WHERE nspname = "
                           "current_schema())::integer)",
                           NULL, err);
    if (rc == ONCE_OK && !PQexitPipelineMode(pg->conn)) rc = once__pg_fail(pg, NULL, err);
    if (rc == ONCE_OK) {
        result = once__pg_simple(pg, text);
        const ExecStatusType status = PQresultStatus(result);
        if (!result) {
            rc = once__pg_fail(pg, NULL, err);
            once__pg_drop(pg);
        } else if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY)
            rc = once__pg_prepare_failed(pg, result, err);
        if (rc != ONCE_OK && once_status_class(rc) == ONCE_CLASS_RETRY &&
            PQresultErrorField(result, PG_DIAG_SQLSTATE) &&
            strncmp(PQresultErrorField(result, PG_DIAG_SQLSTATE), "23", 2) == 0)
            rc = once_fail(err, ONCE_E_CONFIG, "%s", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
        PQclear(result);
        if (once__pg_alive(pg)) PQenterPipelineMode(pg->conn);
    }
    free(text);
    return once__pg_exec_end(pg, rc, err);
}

static int user_describe(once_db *db, char *out, size_t len, once_error *err)
{
    once_pg *pg = once__pg_of(db);
    PGresult *result = NULL;
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_ask(pg,
                      "SELECT split_part(current_setting('server_version'), ' ', 1), current_schema(), current_user,"
                      " current_setting('fsync'), pg_is_in_recovery()",
                      "1tTttt", &result, err);
    const char *current = rc == ONCE_OK ? once__pg_text(result, 0, 1) : "",
               *tables = pg->tables_in[0] ? pg->tables_in : current;
    const bool other = strcmp(current, tables) != 0; /* the store's tables are not in the current schema */
    if (rc == ONCE_OK)
        snprintf(out, len, "PostgreSQL %.20s schema=%.40s%s%.40s role=%.40s fsync=%s%s%s", once__pg_text(result, 0, 0),
                 tables, other ? " current_schema=" : "", other ? current : "", once__pg_text(result, 0, 2),
                 once__pg_text(result, 0, 3), once__pg_text(result, 0, 4)[0] == 't' ? " standby=yes" : "",
                 pg->shared ? " pooler=yes" : "");
    PQclear(result);
    return once__pg_exec_end(pg, rc, err);
}

const once_db_ops once__pg_ops = {
    .reads_numbers = true,
    .prepare = once__pg_user_prepare,
    .stmt_free = once__pg_user_free,
    .stmt_run = user_run,
    .stmt_send = user_send,
    .stmt_gather = user_gather,
    .mark_send = user_mark_send,
    .mark_gather = user_mark_gather,
    .drop = user_drop,
    .presume = user_presume,
    .confirm = user_confirm,
    .may_defer = user_may_defer,
    .check_deferred = user_check_deferred,
    .savepoint = user_savepoint,
    .savepoint_release = user_savepoint_release,
    .savepoint_undo = user_savepoint_undo,
    .script = user_script,
    .describe = user_describe,
    .identity = once__pg_identity,
    .rights = user_rights,
    .begin = once__pg_tx_begin,
    .commit = once__pg_tx_commit,
    .rollback = once__pg_tx_rollback,
    .close = once__pg_close_own,
};
