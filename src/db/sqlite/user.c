/* Statements of the user: prepared under the authorizer, run, and ended at their limit.
 *
 * Invariants
 *   - `db->user` is true only inside sqlite_prepare, sqlite_run and sqlite_script. The authorizer allows everything
 *     else.
 *   - A statement that failed has been reset, so it holds no lock and can run again. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "db/sqlite/parts.h"

#include "base/banned.h"

typedef struct sqlite_stmt {
    once_stmt stmt;
    sqlite3_stmt *handle;
    bool reads;   /* returned rows are counted */
    bool changes; /* INSERT, UPDATE, DELETE, REPLACE: changed rows are counted */
} sqlite_stmt;

static once_sqlite_db *of(once_db *db) { return (once_sqlite_db *)db; }

static int stmt_failed(sqlite_stmt *stmt, int code, once_fault *fault)
{
    once_sqlite_db *db = of(stmt->stmt.db);
    const int status = once__sqlite_fault(db, code, fault);
    sqlite3_reset(stmt->handle);
    if (fault) fault->aborted = sqlite3_get_autocommit(db->handle) != 0;
    return status;
}

static void sqlite_limit(once_db *base, int64_t ms)
{
    assert(ms >= 0);
    of(base)->limit_ns = ms ? once__sqlite_mono_ns() + ms * 1000000 : 0;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/* Skips white space, comments and semicolons. */
static const char *skip_blank(const char *sql, const char *end)
{
    while (sql < end) {
        if (is_space(*sql) || *sql == ';') {
            sql++;
        } else if (end - sql >= 2 && sql[0] == '-' && sql[1] == '-') {
            while (sql < end && *sql != '\n') sql++;
        } else if (end - sql >= 2 && sql[0] == '/' && sql[1] == '*') {
            sql += 2;
            while (sql < end && !(end - sql >= 2 && sql[0] == '*' && sql[1] == '/')) sql++;
            sql = end - sql >= 2 ? sql + 2 : end;
        } else {
            break;
        }
    }
    return sql;
}

static bool starts_with_word(const char *sql, const char *end, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(end - sql) < len || sqlite3_strnicmp(sql, word, (int)len) != 0) return false;
    return (size_t)(end - sql) == len || !is_letter(sql[len]);
}

static int prepare_failed(once_sqlite_db *db, int code, once_error *err)
{
    const char *message = sqlite3_errmsg(db->handle);
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended == ONCE_FAULT_TIMEOUT)
        return once_fail(err, ONCE_E_CONFIG,
                         "a statement did not end within 'timeout'; make it shorter, or raise 'timeout'");
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended == ONCE_FAULT_STOPPED)
        return once_fail(err, ONCE_E_ABORTED, "the statement was interrupted, because the run is stopping");
    if (db->refused[0]) return once_fail(err, ONCE_E_CONFIG, "%s", db->refused);
    if ((code & 0xff) == SQLITE_ERROR &&
        (strncmp(message, "no such table", 13) == 0 || strncmp(message, "no such column", 14) == 0 ||
         strstr(message, " has no column named ")))
        return once_fail(err, ONCE_E_SCHEMA, "%s; create it in '%s' first", message, db->path);
    if ((code & 0xff) == SQLITE_ERROR || (code & 0xff) == SQLITE_AUTH || (code & 0xff) == SQLITE_TOOBIG)
        return once_fail(err, ONCE_E_CONFIG, "%s", message);
    return once__sqlite_fail(db, code, err);
}

static bool names_ours(const char *from, const char *to)
{
    for (const char *at = from; to - at >= 5; at++) {
        const bool begins = at == from || !(once_ascii_is_letter(at[-1]) || at[-1] == '_' ||
                                            (at[-1] >= '0' && at[-1] <= '9') || (unsigned char)at[-1] >= 0x80);
        if (begins && once_ascii_begins(at, (size_t)(to - at), "once_")) return true;
    }
    return false;
}

/* Prepares the first statement of [sql, end) under the authorizer, and sets `tail` behind it. *out NULL: there is
 * none. */
static int prepare_user(once_sqlite_db *db, const char *sql, const char *end, unsigned flags, sqlite3_stmt **out,
                        const char **tail, once_error *err)
{
    assert(sql <= end && !db->user);
    const char *word = skip_blank(sql, end);
    *out = NULL;
    *tail = end;
    if (word == end) return ONCE_OK;
    if (memchr(word, '\0', (size_t)(end - word)))
        return once_fail(err, ONCE_E_CONFIG, "the statement contains a NUL byte");
    if (end - word > INT32_MAX) return once_fail(err, ONCE_E_CONFIG, "the statement is too long");
    if (starts_with_word(word, end, "VACUUM")) /* the authorizer has no action code for it */
        return once_fail(err, ONCE_E_CONFIG, "'VACUUM' is not allowed in an effect; run it while once is stopped");
    db->refused[0] = '\0';
    db->ended = ONCE_FAULT_NONE;
    db->user = true;
    int code = sqlite3_prepare_v3(db->handle, word, (int)(end - word), flags, out, tail);
    db->user = false;
    if (code == SQLITE_OK && starts_with_word(word, end, "ALTER") &&
        names_ours(word, *tail)) { /* the authorizer does not get the new name */
        sqlite3_finalize(*out);
        *out = NULL;
        return once_fail(err, ONCE_E_CONFIG, "names that begin with 'once_' belong to once; use others in ALTER TABLE");
    }
    return code == SQLITE_OK ? ONCE_OK : prepare_failed(db, code, err);
}

static int sqlite_prepare(once_db *base, once_bytes sql, once_stmt **out, once_error *err)
{
    once_sqlite_db *db = of(base);
    const char *end = sql.data + sql.len, *tail;
    sqlite3_stmt *handle;
    int status = prepare_user(db, sql.data, end, SQLITE_PREPARE_PERSISTENT, &handle, &tail, err);
    if (status != ONCE_OK) return status;
    if (!handle) return once_fail(err, ONCE_E_CONFIG, "the statement is empty");
    if (skip_blank(tail, end) != end) {
        sqlite3_finalize(handle);
        return once_fail(err, ONCE_E_CONFIG, "more than one statement; write each as an item of its own");
    }
    sqlite_stmt *stmt = calloc(1, sizeof *stmt);
    if (!stmt) {
        sqlite3_finalize(handle);
        return once_no_memory(err, "for a statement");
    }
    const char *word = skip_blank(sql.data, end);
    stmt->stmt.db = base;
    stmt->handle = handle;
    stmt->stmt.params = sqlite3_bind_parameter_count(handle);
    stmt->reads = sqlite3_stmt_readonly(handle) != 0;
    stmt->changes = !stmt->reads && (starts_with_word(word, end, "INSERT") || starts_with_word(word, end, "UPDATE") ||
                                     starts_with_word(word, end, "DELETE") || starts_with_word(word, end, "REPLACE") ||
                                     starts_with_word(word, end, "WITH"));
    *out = &stmt->stmt;
    return ONCE_OK;
}

static void sqlite_stmt_free(once_stmt *stmt)
{
    sqlite3_finalize(((sqlite_stmt *)stmt)->handle);
    free(stmt);
}

static int bind_value(sqlite3_stmt *stmt, int index, const once_value *value)
{
    assert(index >= 1);
    switch (value->type) {
    case ONCE_VALUE_INTEGER: return sqlite3_bind_int64(stmt, index, value->integer);
    case ONCE_VALUE_NUMBER:
        return value->number.survives ? sqlite3_bind_double(stmt, index, value->number.real) : SQLITE_MISMATCH;
    case ONCE_VALUE_BYTES:
        if (!value->is_text) /* without an address it would be NULL */
            return sqlite3_bind_blob64(stmt, index, value->text.len ? value->text.data : "", value->text.len,
                                       SQLITE_STATIC);
        __attribute__((fallthrough));
    case ONCE_VALUE_TEXT:
        return sqlite3_bind_text64(stmt, index, value->text.data ? value->text.data : "", value->text.len,
                                   SQLITE_STATIC, SQLITE_UTF8);
    case ONCE_VALUE_NULL: break;
    }
    return sqlite3_bind_null(stmt, index);
}

static int sqlite_run(once_stmt *base, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    assert(!of(base->db)->user);
    sqlite_stmt *stmt = (sqlite_stmt *)base;
    once_sqlite_db *db = of(base->db);
    db->refused[0] = '\0';
    db->ended = ONCE_FAULT_NONE;
    for (size_t i = 0; i < n; i++) {
        int code = bind_value(stmt->handle, (int)i + 1, &values[i]);
        if (code != SQLITE_OK) return stmt_failed(stmt, code, fault);
    }
    int64_t returned = 0;
    const int64_t changes = sqlite3_total_changes64(db->handle);
    int code;
    db->user = true;
    while ((code = sqlite3_step(stmt->handle)) == SQLITE_ROW) returned++;
    db->user = false;
    if (code != SQLITE_DONE) {
        const int status = stmt_failed(stmt, code, fault);
        if (fault) fault->changed = sqlite3_total_changes64(db->handle) != changes; /* OR FAIL keeps earlier changes */
        return status;
    }
    if (rows) *rows = stmt->reads ? returned : stmt->changes ? sqlite3_changes64(db->handle) : 0;
    code = sqlite3_reset(stmt->handle);
    return code == SQLITE_OK ? ONCE_OK : stmt_failed(stmt, code, fault);
}

static int sqlite_check_deferred(once_db *base, once_fault *fault)
{
    once_sqlite_db *db = of(base);
    int unmet = 0, highest = 0;
    if (sqlite3_db_status(db->handle, SQLITE_DBSTATUS_DEFERRED_FKS, &unmet, &highest, 0) != SQLITE_OK || unmet == 0)
        return ONCE_OK;
    *fault = (once_fault){.kind = ONCE_FAULT_CONSTRAINT, .code = SQLITE_CONSTRAINT_FOREIGNKEY, .changed = true};
    snprintf(fault->state, sizeof fault->state, "%s", once__sqlite_code_name(fault->code));
    snprintf(fault->text, sizeof fault->text, "FOREIGN KEY constraint failed (deferred to the commit)");
    return ONCE_E_MESSAGE;
}

static int sqlite_savepoint(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    int status = db->mark ? ONCE_OK : once__sqlite_prepare(db, "SAVEPOINT once_message", &db->mark, err);
    if (status == ONCE_OK) status = once__sqlite_step(db, db->mark, err);
    if (status == ONCE_OK) db->savepoints++;
    return status;
}

static int sqlite_savepoint_release(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    assert(db->savepoints > 0);
    db->savepoints--;
    const int status = db->unmark ? ONCE_OK : once__sqlite_prepare(db, "RELEASE once_message", &db->unmark, err);
    return status == ONCE_OK ? once__sqlite_step(db, db->unmark, err) : status;
}

static int sqlite_savepoint_undo(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    assert(db->savepoints > 0);
    db->savepoints--;
    return once__sqlite_exec(db, "ROLLBACK TO once_message; RELEASE once_message", err);
}

/* `look`: nothing is run, so a statement may refer to a table that an earlier one would create. */
static int run_script(once_sqlite_db *db, once_bytes sql, bool look, once_error *err)
{
    assert(!db->user);
    const char *at = sql.data, *end = sql.data + sql.len;
    for (;;) {
        sqlite3_stmt *stmt;
        int status = prepare_user(db, at, end, 0, &stmt, &at, err);
        if (status != ONCE_OK) return status;
        if (!stmt) return ONCE_OK;
        int code = SQLITE_DONE;
        db->user = true;
        while (!look && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        }
        db->user = false;
        if (code != SQLITE_DONE) status = prepare_failed(db, code, err);
        if (code != SQLITE_DONE && (code & 0xff) == SQLITE_CONSTRAINT)
            status = once_fail(err, ONCE_E_CONFIG, "%s", sqlite3_errmsg(db->handle));
        sqlite3_finalize(stmt);
        if (status != ONCE_OK) return status;
    }
}

static int sqlite_script(once_db *base, once_bytes sql, once_error *err)
{
    once_sqlite_db *db = of(base);
    if (!sqlite3_get_autocommit(db->handle))
        return once_fail(err, ONCE_E_USAGE, "a script runs in a transaction of its own");
    int status = once__sqlite_exec(db, "BEGIN IMMEDIATE", err);
    if (status != ONCE_OK) return status;
    status = run_script(db, sql, false, err);
    if (status == ONCE_OK) status = once__sqlite_exec(db, "COMMIT", err);
    if (status != ONCE_OK && !sqlite3_get_autocommit(db->handle))
        sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static int sqlite_script_look(once_db *base, once_bytes sql, bool *needed, once_error *err)
{
    once_error why;
    const int status = run_script(of(base), sql, true, &why);
    *needed = status == ONCE_E_SCHEMA;
    return status == ONCE_OK || *needed ? ONCE_OK : once_fail(err, status, "%s", why.text);
}

static int sqlite_describe(once_db *base, char *out, size_t len, once_error *err)
{
    once_sqlite_db *db = of(base);
    static const char *const levels[] = {"off", "normal", "full", "extra"};
    sqlite3_stmt *stmt;
    char journal[20] = "";
    int64_t level = 0;
    int code = sqlite3_prepare_v2(db->handle, "PRAGMA journal_mode", -1, &stmt, NULL);
    if (code != SQLITE_OK) return once__sqlite_fail(db, code, err);
    if (sqlite3_step(stmt) == SQLITE_ROW)
        snprintf(journal, sizeof journal, "%s", (const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    int status = once__sqlite_integer(db, "PRAGMA synchronous", 0, &level, err);
    if (status != ONCE_OK) return status;
    snprintf(out, len, "journal_mode=%s synchronous=%s", journal, level >= 0 && level <= 3 ? levels[level] : "?");
    return ONCE_OK;
}

const once_db_ops once__sqlite_ops = {
    .prepare = sqlite_prepare,
    .stmt_free = sqlite_stmt_free,
    .stmt_run = sqlite_run,
    .check_deferred = sqlite_check_deferred,
    .savepoint = sqlite_savepoint,
    .savepoint_release = sqlite_savepoint_release,
    .savepoint_undo = sqlite_savepoint_undo,
    .limit = sqlite_limit,
    .script = sqlite_script,
    .script_look = sqlite_script_look,
    .describe = sqlite_describe,
    .identity = once__sqlite_identity,
    .begin = once__sqlite_tx_begin,
    .commit = once__sqlite_tx_commit,
    .rollback = once__sqlite_tx_rollback,
    .close = once__sqlite_close_other,
};
