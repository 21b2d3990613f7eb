/* The functions of db.h that need a connection: each calls the slot of the connection's driver. drivers.c has those
 * that begin with a URL. */
#include "db/db.h"

#include <assert.h>

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

int once_db_check_deferred(once_db *db, once_fault *fault) { return db->ops->check_deferred(db, fault); }
bool once_db_may_defer(once_db *db) { return db->ops->may_defer ? db->ops->may_defer(db) : true; }

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
