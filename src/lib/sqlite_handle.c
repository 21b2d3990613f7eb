/* once_sqlite_handle: claim, effect and outcome inside the caller's transaction, on the caller's connection.
 *
 * A connection that was prepared has a store of ours on it. It is found again by its address, which cannot be that of
 * another connection: our prepared statements keep SQLite from freeing it before once_sqlite_release. */
#include <sqlite3.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "lib/lib.h"
#include "store/sqlite_store.h"

#include "base/banned.h"

typedef struct connection connection;
struct connection {
    sqlite3 *db;
    once_store *store;
    bool running; /* inside once_sqlite_handle */
    sqlite3_int64 rowid; /* of the last row that the caller or its handler inserted: what they will ask for, whatever we insert */
    connection *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static connection *connections; /* under the lock; what they point to belongs to the thread that uses the connection */

static connection *find(sqlite3 *db)
{
    pthread_mutex_lock(&lock);
    connection *at = connections;
    while (at && at->db != db) at = at->next;
    pthread_mutex_unlock(&lock);
    return at;
}

int once_sqlite_prepare(sqlite3 *db, once_error *err)
{
    if (!db) return once_fail(err, ONCE_E_USAGE, "no connection");
    if (find(db)) return ONCE_OK;
    if (!sqlite3_get_autocommit(db))
        return once_fail(err, ONCE_E_USAGE, "a connection is made ready outside of transactions; commit or roll back first");
    connection *made = calloc(1, sizeof *made);
    if (!made) return once_no_memory(err, "for a connection");
    const once_store_options options = {.size = sizeof options, .create = true};
    const int rc = once__sqlite_store_borrow(db, &options, NULL, &made->store, err);
    if (rc != ONCE_OK) {
        free(made);
        return rc;
    }
    made->db = db;
    pthread_mutex_lock(&lock);
    made->next = connections;
    connections = made;
    pthread_mutex_unlock(&lock);
    return ONCE_OK;
}

void once_sqlite_release(sqlite3 *db)
{
    pthread_mutex_lock(&lock);
    connection **at = &connections;
    while (*at && (*at)->db != db) at = &(*at)->next;
    connection *found = *at;
    if (found) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) return;
    once__store_close(found->store);
    free(found);
}

/* The handler, with a savepoint around what it does. */
static int run(connection *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    once_db *db = c->store->ops->db(c->store);
    bool applied;
    int rc = once_db_savepoint(db, err);
    if (rc != ONCE_OK) return rc;
    once__work_call(work, callback, user, c->db, NULL, NULL);
    c->rowid = sqlite3_last_insert_rowid(c->db);
    if (sqlite3_get_autocommit(c->db))
        return once_fail(err, ONCE_E_ABORTED, "the transaction was ended inside the handler, by it or by the database");
    rc = once__keeps_effect(work->settlement.outcome) ? once_db_savepoint_release(db, err) : once_db_savepoint_undo(db, err);
    if (rc != ONCE_OK) return rc;
    rc = c->store->ops->settle(c->store, &work->settlement, 1, &applied, err);
    if (rc == ONCE_OK && !applied) rc = once_fail(err, ONCE_E_BUG, "a claim was lost inside its transaction");
    return rc;
}

static int decide(connection *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    const once_request *request = &work->plan.request;
    once_letter letter;
    bool fresh;
    const int rc = c->store->ops->claim(c->store, &request, 1, &work->decision, &work->arena, err);
    if (rc != ONCE_OK) return rc;
    if (once__work_letter(work, &letter)) return c->store->ops->bury(c->store, &letter, 1, &fresh, err);
    if (work->decision.answer == ONCE_ANSWER_UNKNOWN) return once__work_attach(c->store, work, err);
    return work->decision.answer == ONCE_ANSWER_RUN ? run(c, work, callback, user, err) : ONCE_OK;
}

static int handle(connection *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    c->rowid = sqlite3_last_insert_rowid(c->db);
    int rc = c->store->ops->begin(c->store, err);
    if (rc != ONCE_OK) return rc;
    c->running = true;
    rc = decide(c, work, callback, user, err);
    if (rc == ONCE_OK) rc = c->store->ops->commit(c->store, err);
    else c->store->ops->rollback(c->store);
    sqlite3_set_last_insert_rowid(c->db, c->rowid);
    c->running = false;
    return rc;
}

int once_sqlite_handle(sqlite3 *db, const once_scope *scope, const once_delivery *delivery, once_callback *callback, void *user,
                       once_verdict *out, once_error *err)
{
    if (!db || !callback || !out) return once_fail(err, ONCE_E_USAGE, "once_sqlite_handle needs a connection, a callback and a place for the verdict");
    connection *c = find(db);
    if (!c) return once_fail(err, ONCE_E_USAGE, "the connection is not ready; call once_sqlite_prepare first");
    if (c->running) return once_fail(err, ONCE_E_USAGE, "once_sqlite_handle was called from inside a handler on the same connection");
    once_work work;
    int rc = once__work_begin(&work, c->store, scope, delivery, err);
    if (rc == ONCE_OK) work.plan.request.hold = false; /* an attempt that did not commit had no effect */
    if (rc == ONCE_OK) rc = handle(c, &work, callback, user, err);
    if (rc == ONCE_OK) rc = once__work_tell(&work, out, err);
    once__work_release(&work);
    return rc;
}
