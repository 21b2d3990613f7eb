/* once_sqlite_handle: claim, effect and outcome inside the caller's transaction, on the caller's connection.
 *
 * A connection that was prepared has a store of ours on it. The store is found by the address of the connection, which
 * cannot be that of another one: our prepared statements keep SQLite from freeing it before once_sqlite_release. */
#include <sqlite3.h>

#include "lib/borrowed.h"
#include "store/sqlite/sqlite.h"

#include "base/banned.h"

static once_borrowed_list connections = {.lock = PTHREAD_MUTEX_INITIALIZER};

int once_sqlite_prepare(sqlite3 *db, once_error *err)
{
    if (!db) return once_fail(err, ONCE_E_USAGE, "no connection");
    if (once__borrowed_find(&connections, db, 0)) return ONCE_OK;
    if (!sqlite3_get_autocommit(db))
        return once_fail(err, ONCE_E_USAGE,
                         "a connection is made ready outside of transactions; commit or roll back first");
    const once_store_options options = {.size = sizeof options, .create = true};
    once_backend *store;
    const int rc = once__sqlite_store_borrow(db, &options, NULL, &store, err);
    return rc == ONCE_OK ? once__borrowed_add(&connections, db, 0, store, err) : rc;
}

void once_sqlite_release(sqlite3 *db) { once__borrowed_release(&connections, db); }

/* Runs the handler with a savepoint around it. */
static int run(once_borrowed *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    once_db *db = c->store->ops->db(c->store);
    int rc = once_db_savepoint(db, err);
    if (rc != ONCE_OK) return rc;
    once__work_call(work, callback, user, c->connection, NULL, NULL);
    c->rowid = sqlite3_last_insert_rowid(c->connection);
    if (sqlite3_get_autocommit(c->connection))
        return once_fail(err, ONCE_E_ABORTED, "the transaction was ended inside the handler, by it or by the database");
    rc = once_outcome_is_final(work->settlement.outcome) ? once_db_savepoint_release(db, err)
                                                         : once_db_savepoint_undo(db, err);
    return rc == ONCE_OK ? once__borrowed_settle(c, work, err) : rc;
}

int once_sqlite_handle(sqlite3 *db, const once_scope *scope, const once_delivery *delivery, once_callback *callback,
                       void *user, once_verdict *out, once_error *err)
{
    if (!db || !callback || !out)
        return once_fail(err, ONCE_E_USAGE,
                         "once_sqlite_handle needs a connection, a callback and a place for the verdict");
    once_borrowed *c = once__borrowed_find(&connections, db, 0);
    if (!c) return once_fail(err, ONCE_E_USAGE, "the connection is not ready; call once_sqlite_prepare first");
    if (c->running)
        return once_fail(err, ONCE_E_USAGE,
                         "once_sqlite_handle was called from inside a handler on the same connection");
    c->rowid = sqlite3_last_insert_rowid(db);
    const int rc = once__borrowed_handle(c, run, scope, delivery, callback, user, out, err);
    sqlite3_set_last_insert_rowid(db, c->rowid);
    return rc;
}
