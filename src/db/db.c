/* From the functions of db.h to the driver of a connection. */
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

bool once_db_sends(const once_db *db) { return db->ops->stmt_send != NULL; }

int once_stmt_send(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault)
{
    assert(n == (size_t)stmt->params);
    return stmt->db->ops->stmt_send(stmt, values, n, fault);
}

int once_stmt_gather(once_stmt *stmt, int64_t *rows, once_fault *fault) { return stmt->db->ops->stmt_gather(stmt, rows, fault); }

int once_db_savepoint_send(once_db *db, once_error *err) { return db->ops->mark_send(db, false, err); }
int once_db_savepoint_release_send(once_db *db, once_error *err) { return db->ops->mark_send(db, true, err); }
int once_db_savepoint_gather(once_db *db, once_error *err) { return db->ops->mark_gather(db, err); }

void once_db_drop(once_db *db) { db->ops->drop(db); }

bool once_db_owes(once_db *db, once_fault *fault) { return db->ops->owes(db, fault); }
bool once_db_may_owe(once_db *db) { return db->ops->defers ? db->ops->defers(db) : true; }

int once_db_savepoint(once_db *db, once_error *err) { return db->ops->savepoint(db, err); }
int once_db_savepoint_release(once_db *db, once_error *err) { return db->ops->savepoint_release(db, err); }
int once_db_savepoint_undo(once_db *db, once_error *err) { return db->ops->savepoint_undo(db, err); }

int once_db_script(once_db *db, once_bytes sql, once_error *err) { return db->ops->script(db, sql, err); }
int once_db_describe(once_db *db, char *out, size_t len, once_error *err) { return db->ops->describe(db, out, len, err); }
