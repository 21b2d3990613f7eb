/* From the functions of db.h to the driver of a connection. */
#include "db/db.h"

#include <assert.h>
#include <string.h>

#include "base/module.h"
#include "db/sqlite/sqlite.h"

#include "base/banned.h"

int once_db_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err)
{
    assert(db && out);
    return db->ops->prepare(db, sql, out, err);
}

void once_stmt_free(once_stmt *stmt)
{
    if (stmt) stmt->db->ops->stmt_free(stmt);
}

int once_stmt_params(const once_stmt *stmt) { return stmt->params; }

int once_stmt_run(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    assert(n == (size_t)stmt->params);
    return stmt->db->ops->stmt_run(stmt, values, n, rows, fault);
}

bool once_db_reads_numbers(const once_db *db) { return db->ops->reads_numbers; }

bool once_db_sends(const once_db *db) { return db->ops->stmt_send != NULL; }

int once_stmt_send(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault)
{
    assert(stmt->db->ops->stmt_send); /* once_db_sends */
    assert(n == (size_t)stmt->params);
    return stmt->db->ops->stmt_send(stmt, values, n, fault);
}

int once_stmt_gather(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    assert(n == (size_t)stmt->params && stmt->db->ops->stmt_gather);
    return stmt->db->ops->stmt_gather(stmt, values, n, rows, fault);
}

int once_db_savepoint_send(once_db *db, once_error *err) { return db->ops->mark_send(db, false, err); }
int once_db_savepoint_release_send(once_db *db, once_error *err) { return db->ops->mark_send(db, true, err); }
int once_db_savepoint_gather(once_db *db, once_error *err) { return db->ops->mark_gather(db, err); }

void once_db_drop(once_db *db) { db->ops->drop(db); }
int once_db_presume(once_db *db, once_error *err) { return db->ops->presume(db, err); }
int once_db_confirm(once_db *db, once_error *err) { return db->ops->confirm ? db->ops->confirm(db, err) : ONCE_OK; }

int once_db_owes(once_db *db, once_fault *fault) { return db->ops->owes(db, fault); }
bool once_db_may_owe(once_db *db) { return db->ops->defers ? db->ops->defers(db) : true; }

int once_db_savepoint(once_db *db, once_error *err) { return db->ops->savepoint(db, err); }
int once_db_savepoint_release(once_db *db, once_error *err) { return db->ops->savepoint_release(db, err); }
int once_db_savepoint_undo(once_db *db, once_error *err) { return db->ops->savepoint_undo(db, err); }

void once_db_limit(once_db *db, int64_t ms)
{
    assert(ms >= 0);
    if (db->ops->limit) db->ops->limit(db, ms);
}

int once_db_script_look(once_db *db, once_bytes sql, bool *needed, once_error *err)
{
    assert(needed);
    *needed = true;
    return db->ops->script_look ? db->ops->script_look(db, sql, needed, err) : ONCE_OK;
}

int once_db_script(once_db *db, once_bytes sql, once_error *err) { return db->ops->script(db, sql, err); }
int once_db_describe(once_db *db, char *out, size_t len, once_error *err)
{
    assert(out && len > 0);
    return db->ops->describe(db, out, len, err);
}
int once_db_identity(once_db *db, char *out, size_t len, once_error *err)
{
    assert(out && len > 0);
    return db->ops->identity(db, out, len, err);
}

int once_db_rights(once_db *db, once_error *err) { return db->ops->rights ? db->ops->rights(db, err) : ONCE_OK; }

int once_db_begin(once_db *db, once_error *err) { return db->ops->begin(db, err); }
int once_db_commit(once_db *db, bool *maybe, once_fault *fault) { return db->ops->commit(db, maybe, fault); }
void once_db_rollback(once_db *db) { db->ops->rollback(db); }

void once_db_close(once_db *db)
{
    if (db) db->ops->close(db);
}

/* ---- from a URL to a driver ---- */

static bool has_scheme(once_bytes url, const char *scheme)
{
    const size_t len = strlen(scheme);
    return url.len > len && memcmp(url.data, scheme, len) == 0 && url.data[len] == ':';
}

int once_db_check_url(once_bytes url, once_error *err)
{
    const char *colon = url.len ? memchr(url.data, ':', url.len) : NULL;
    if (!colon) return once_fail(err, ONCE_E_CONFIG, "not the URL of a database; write postgres://... or sqlite:PATH");
    if (memchr(url.data, '\0', url.len))
        return once_fail(err, ONCE_E_CONFIG, "the URL of a database has a NUL byte; remove it");
    if (has_scheme(url, "sqlite")) {
        if (colon + 1 == url.data + url.len || colon[1] == ':')
            return once_fail(err, ONCE_E_CONFIG, "'sqlite:' names no file; write sqlite:PATH");
        return ONCE_OK;
    }
    if (has_scheme(url, "postgres") || has_scheme(url, "postgresql")) {
#ifdef ONCE_WITH_POSTGRES
        return ONCE_OK;
#else
        return once_fail(err, ONCE_E_UNSUPPORTED, "'postgres:' is not in this build; use sqlite:PATH");
#endif
    }
    const size_t len = (size_t)(colon - url.data);
    return once_fail(err, ONCE_E_CONFIG, "no database '%.*s:' is known; write postgres://... or sqlite:PATH",
                     len < 20 ? (int)len : 20, url.data);
}

int once_db_open(const char *url, const once_db_options *options, once_db **out, once_error *err)
{
    assert(options && options->stop && out);
    const once_bytes bytes = {url, strlen(url)};
    const int rc = once_db_check_url(bytes, err);
    if (rc != ONCE_OK) return rc;
    const char *rest = strchr(url, ':') + 1;
    if (has_scheme(bytes, "sqlite")) return once__sqlite_open_other(rest, options, out, err);
    const void *part;
    const int got = once_module_part_get("postgres", "db", "postgres", &part, err);
    return got == ONCE_OK ? ((const once_db_driver *)part)->open(rest, options, out, err) : got;
}
