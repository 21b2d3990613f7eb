/* once_postgres_handle: claim, effect and outcome inside the caller's transaction, on the caller's connection.
 *
 * A connection that was prepared has a store of ours on it. It is found again by its address and the process of its server,
 * so that one that was closed without a release is not taken for a new one at the same place. */
#include "base/no_memory.h"
#include "lib/lib.h"

#ifdef ONCE_WITH_POSTGRES

#include <libpq-fe.h>
#include <stdlib.h>

#include "store/postgres_store.h"

#include "base/banned.h"

typedef struct connection connection;
struct connection {
    PGconn *pg;
    int server; /* its process there */
    once_store *store;
    bool running; /* inside once_postgres_handle */
    connection *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static connection *connections; /* under the lock; what they point to belongs to the thread that uses the connection */

static connection *find(PGconn *pg)
{
    pthread_mutex_lock(&lock);
    connection *at = connections;
    while (at && (at->pg != pg || at->server != PQbackendPID(pg))) at = at->next;
    pthread_mutex_unlock(&lock);
    return at;
}

int once_postgres_prepare(PGconn *pg, once_error *err)
{
    if (!pg || PQstatus(pg) != CONNECTION_OK) return once_fail(err, ONCE_E_USAGE, "no connection");
    if (find(pg)) return ONCE_OK;
    if (PQtransactionStatus(pg) != PQTRANS_IDLE)
        return once_fail(err, ONCE_E_USAGE, "a connection is made ready outside of transactions; commit or roll back first");
    once_postgres_release(pg); /* of one that was closed and is forgotten */
    connection *made = calloc(1, sizeof *made);
    if (!made) return once_no_memory(err, "for a connection");
    const once_store_options options = {.size = sizeof options, .create = true};
    const int rc = once__pg_store_borrow(pg, &options, &made->store, err);
    if (rc != ONCE_OK) {
        free(made);
        return rc;
    }
    made->pg = pg;
    made->server = PQbackendPID(pg);
    pthread_mutex_lock(&lock);
    made->next = connections;
    connections = made;
    pthread_mutex_unlock(&lock);
    return ONCE_OK;
}

void once_postgres_release(PGconn *pg)
{
    pthread_mutex_lock(&lock);
    connection **at = &connections;
    while (*at && (*at)->pg != pg) at = &(*at)->next;
    connection *found = *at;
    if (found) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) return;
    once__store_close(found->store);
    free(found);
}

/* What the handler has not read. A COPY that it left in the middle ends here: of one into the database nothing stays. */
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

/* The handler, with a savepoint around what it does. */
static int run(connection *c, once_work *work, once_callback *callback, void *user, once_error *err)
{
    once_db *db = c->store->ops->db(c->store);
    bool applied;
    int rc = once_db_savepoint(db, err);
    if (rc != ONCE_OK) return rc;
    once__pg_pause(c->store);
    once__work_call(work, callback, user, NULL, c->pg, NULL);
    read_left(c->pg);
    const PGTransactionStatusType status = PQtransactionStatus(c->pg);
    if (status != PQTRANS_INTRANS && status != PQTRANS_INERROR) {
        once__pg_abandon(c->store);
        return once_fail(err, ONCE_E_ABORTED, "the transaction was ended inside the handler, or the connection was lost");
    }
    rc = once__pg_resume(c->store, err);
    if (rc != ONCE_OK) return rc;
    const once_outcome outcome = work->settlement.outcome;
    const bool broken = status == PQTRANS_INERROR;
    rc = once__keeps_effect(outcome) && !broken ? once_db_savepoint_release(db, err) : once_db_savepoint_undo(db, err);
    if (rc != ONCE_OK) return rc;
    if (broken && outcome == ONCE_DONE) return once_fail(err, ONCE_E_MESSAGE, "a statement of the handler failed, and it answered done; nothing of it was kept");
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
    int rc = c->store->ops->begin(c->store, err);
    if (rc != ONCE_OK) return rc;
    c->running = true;
    rc = decide(c, work, callback, user, err);
    if (rc == ONCE_OK) rc = c->store->ops->commit(c->store, err);
    else c->store->ops->rollback(c->store);
    c->running = false;
    return rc;
}

int once_postgres_handle(PGconn *pg, const once_scope *scope, const once_delivery *delivery, once_callback *callback, void *user,
                         once_verdict *out, once_error *err)
{
    if (!pg || !callback || !out)
        return once_fail(err, ONCE_E_USAGE, "once_postgres_handle needs a connection, a callback and a place for the verdict");
    connection *c = find(pg);
    if (!c) return once_fail(err, ONCE_E_USAGE, "the connection is not ready; call once_postgres_prepare first");
    if (c->running) return once_fail(err, ONCE_E_USAGE, "once_postgres_handle was called from inside a handler on the same connection");
    once_work work;
    int rc = once__work_begin(&work, c->store, scope, delivery, err);
    if (rc == ONCE_OK) work.plan.request.hold = false; /* an attempt that did not commit had no effect */
    if (rc == ONCE_OK) rc = handle(c, &work, callback, user, err);
    if (rc == ONCE_OK) rc = once__work_tell(&work, out, err);
    once__work_release(&work);
    return rc;
}

#else

#include "base/banned.h"

static int not_here(once_error *err) { return once_fail(err, ONCE_E_UNSUPPORTED, "PostgreSQL is not in this build"); }

int once_postgres_prepare(struct pg_conn *pg, once_error *err)
{
    (void)pg;
    return not_here(err);
}

void once_postgres_release(struct pg_conn *pg) { (void)pg; }

int once_postgres_handle(struct pg_conn *pg, const once_scope *scope, const once_delivery *delivery, once_callback *callback, void *user,
                         once_verdict *out, once_error *err)
{
    (void)pg, (void)scope, (void)delivery, (void)callback, (void)user, (void)out;
    return not_here(err);
}

#endif
