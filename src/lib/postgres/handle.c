/* once_postgres_handle: claim, effect and outcome inside the caller's transaction, on the caller's connection.
 *
 * A connection that was prepared has a store of ours on it. The store is found by the address of the connection and the
 * process of its server, so that a new connection at the address of one that was closed without a release is not taken
 * for the old one. */
#include "lib/postgres/handle.h"

#include <libpq-fe.h>

#include "lib/borrowed.h"
#include "store/postgres/postgres.h"

#include "base/banned.h"

static once_borrowed_list connections = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void release(PGconn *pg) { once__borrowed_release(&connections, pg); }

static int prepare(PGconn *pg, once_error *err)
{
    if (!pg || PQstatus(pg) != CONNECTION_OK) return once_fail(err, ONCE_E_USAGE, "no connection");
    if (once__borrowed_find(&connections, pg, PQbackendPID(pg))) return ONCE_OK;
    if (PQtransactionStatus(pg) != PQTRANS_IDLE)
        return once_fail(err, ONCE_E_USAGE,
                         "a connection is made ready outside of transactions; commit or roll back first");
    release(pg); /* of one that was closed and is forgotten */
    const once_store_options options = {.size = sizeof options, .create = true};
    once_backend *store;
    const int rc = once__pg_store_borrow(pg, &options, &store, err);
    return rc == ONCE_OK ? once__borrowed_add(&connections, pg, PQbackendPID(pg), store, err) : rc;
}

/* Reads the results that the handler has left. Ends a COPY that it has not finished; of a COPY FROM STDIN no rows
 * stay. */
static void read_left(PGconn *pg)
{
    for (PGresult *left; (left = PQgetResult(pg));) {
        const ExecStatusType status = PQresultStatus(left);
        PQclear(left);
        if (status == PGRES_COPY_IN || status == PGRES_COPY_BOTH) {
            if (PQputCopyEnd(pg, "the handler has not ended it") != 1) return;
        } else if (status == PGRES_COPY_OUT) {
            char *row;
            while (PQgetCopyData(pg, &row, 0) > 0) PQfreemem(row);
        }
    }
}

/* Runs the handler with a savepoint around it. */
static int run(once_borrowed *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    PGconn *pg = c->connection;
    once_db *db = c->store->ops->db(c->store);
    int rc = once_db_savepoint(db, err);
    if (rc != ONCE_OK) return rc;
    once__pg_pause(c->store);
    once__work_call(work, callback, user, NULL, pg, NULL);
    read_left(pg);
    const PGTransactionStatusType status = PQtransactionStatus(pg);
    if (status != PQTRANS_INTRANS && status != PQTRANS_INERROR) {
        once__pg_abandon(c->store);
        return once_fail(
            err, ONCE_E_ABORTED,
            "the transaction was ended inside the handler, or the connection was lost; roll back and try again");
    }
    rc = once__pg_resume(c->store, err);
    if (rc != ONCE_OK) return rc;
    const once_outcome outcome = work->settlement.outcome;
    const bool broken = status == PQTRANS_INERROR;
    rc = once_outcome_is_final(outcome) && !broken ? once_db_savepoint_release(db, err)
                                                   : once_db_savepoint_undo(db, err);
    if (rc != ONCE_OK) return rc;
    if (broken && outcome == ONCE_DONE)
        return once_fail(err, ONCE_E_MESSAGE,
                         "a statement of the handler failed, and it answered done; nothing of it was kept");
    return once__borrowed_settle(c, work, err);
}

static int handle(PGconn *pg, const once_scope *scope, const once_delivery *delivery, once_callback *callback,
                  void *user, once_verdict *out, once_error *err)
{
    if (!pg || !callback || !out)
        return once_fail(err, ONCE_E_USAGE,
                         "once_postgres_handle needs a connection, a callback and a place for the verdict");
    once_borrowed *c = once__borrowed_find(&connections, pg, PQbackendPID(pg));
    if (!c) return once_fail(err, ONCE_E_USAGE, "the connection is not ready; call once_postgres_prepare first");
    if (c->running)
        return once_fail(err, ONCE_E_USAGE,
                         "once_postgres_handle was called from inside a handler on the same connection");
    return once__borrowed_handle(c, run, scope, delivery, callback, user, out, err);
}

const once_pg_handle once__pg_handle = {.prepare = prepare, .release = release, .handle = handle};
