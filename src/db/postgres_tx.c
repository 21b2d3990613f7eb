/* A PostgreSQL database that is not the store's: transactions of their own on a connection of their own.
 *
 * libpq waits for the server without asking us. Whoever wants it to stop shuts the socket down, through a descriptor of ours,
 * because libpq's may be closed and used again by then. The server would still carry out what it was told; so what waited is
 * cancelled there by the thread that has waited for it. Not by the one that interrupts: cancelling connects once more, and may
 * take its time. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "db/postgres.h"

#include "base/banned.h"

typedef struct once_pg_own {
    const atomic_bool *stop;
    PGcancel *cancel; /* of the last connection; its thread's */
    pthread_mutex_t lock;
    int socket; /* with the lock; -1: none */
} once_pg_own;

static once_pg *of(once_db *db) { return (once_pg *)db; }

/* ---- connection ---- */

/* The socket that an interrupt shuts down; -1: none. */
static void publish(once_pg_own *own, int socket)
{
    pthread_mutex_lock(&own->lock);
    const int before = own->socket;
    own->socket = socket;
    pthread_mutex_unlock(&own->lock);
    if (before >= 0) close(before);
}

static int told_to_stop(const once_pg *pg, once_error *err) { return once_fail(err, ONCE_E_ABORTED, "%s: told to stop", pg->where); }

static int reconnect(once_pg *pg, once_error *err)
{
    once_pg_own *own = pg->own;
    publish(own, -1);
    PQfreeCancel(own->cancel);
    own->cancel = NULL;
    const int rc = once__pg_connect(pg, 0, err);
    if (rc != ONCE_OK) return rc;
    own->cancel = PQgetCancel(pg->conn); /* NULL, when memory is out: then nothing is cancelled */
    const int socket = fcntl(PQsocket(pg->conn), F_DUPFD_CLOEXEC, 3);
    if (socket < 0) {
        once__pg_drop(pg);
        return once_fail(err, ONCE_E_UNAVAILABLE, "%s: too many open files; raise the limit", pg->where);
    }
    publish(own, socket);
    return ONCE_OK;
}

int once__pg_open(const char *rest, const once_db_options *options, once_db **out, once_error *err)
{
    once_pg *pg;
    int rc = once__pg_new(rest, options->env, &pg, err);
    if (rc != ONCE_OK) return rc;
    pg->own = calloc(1, sizeof *pg->own);
    if (!pg->own) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_NOMEM, "out of memory for PostgreSQL");
    }
    pg->own->stop = options->stop;
    pg->own->socket = -1;
    pthread_mutex_init(&pg->own->lock, NULL);
    rc = reconnect(pg, err);
    if (rc == ONCE_OK) *out = &pg->db;
    else once__pg_close_own(&pg->db);
    return rc;
}

void once__pg_close_own(once_db *db)
{
    once_pg_own *own = of(db)->own;
    publish(own, -1);
    PQfreeCancel(own->cancel);
    pthread_mutex_destroy(&own->lock);
    free(own);
    once__pg_free(of(db));
}

/* ---- transactions ---- */

static int begin(once_pg *pg, once_error *err)
{
    PGresult *results[2];
    int rc = once__pg_send_text(pg, "BEGIN READ WRITE", err);
    if (rc == ONCE_OK)
        rc = once__pg_send_text(pg, "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') IN ('off', 'local')",
                                err);
    if (rc == ONCE_OK) rc = once__pg_round(pg, results, 2, err);
    if (rc == ONCE_OK) once__pg_clear(results, 2);
    return rc;
}

/* A connection that has been idle may have ended without our knowing: then it is made anew, because nothing was begun on it. */
int once__pg_tx_begin(once_db *db, once_error *err)
{
    once_pg *pg = of(db);
    for (;;) {
        const bool was_there = once__pg_alive(pg) && !pg->stale;
        int rc = was_there ? ONCE_OK : reconnect(pg, err);
        if (rc == ONCE_OK && atomic_load(pg->own->stop)) rc = told_to_stop(pg, err); /* before our socket could be found */
        else if (rc == ONCE_OK) rc = begin(pg, err);
        if (rc == ONCE_OK || !was_there || once__pg_alive(pg) || atomic_load(pg->own->stop)) return rc;
    }
}

/* The server has answered: it knows best. Not when it is shutting down: it may have committed, and wait for a standby. */
static int commit_answered(once_pg *pg, PGresult *result, bool *maybe, once_fault *fault)
{
    if (PQresultStatus(result) != PGRES_COMMAND_OK) {
        const int rc = once__pg_fault(pg, result, fault);
        *maybe = fault->aborted;
        return rc;
    }
    *maybe = false;
    if (strcmp(PQcmdStatus(result), "COMMIT") == 0) return ONCE_OK;
    *fault = (once_fault){.kind = ONCE_FAULT_RETRY, .text = "the server rolled the transaction back"};
    return ONCE_E_ABORTED;
}

int once__pg_tx_commit(once_db *db, bool *maybe, once_fault *fault)
{
    once_pg *pg = of(db);
    PGresult *result = NULL;
    *maybe = false;
    if (!once__pg_alive(pg)) return once__pg_fault(pg, NULL, fault);
    *maybe = true;
    int rc = once__pg_send_text(pg, "COMMIT", NULL);
    if (rc == ONCE_OK) rc = once__pg_sync(pg, NULL);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, NULL);
    if (rc != ONCE_OK) return once__pg_fault(pg, NULL, fault);
    rc = commit_answered(pg, result, maybe, fault);
    PQclear(result);
    (void)once__pg_synced(pg, NULL); /* the answer is there; a connection that is lost now is noticed by the next transaction */
    return rc;
}

void once__pg_tx_rollback(once_db *db)
{
    once_pg *pg = of(db);
    PGresult *result;
    char why[1];
    if (atomic_load(pg->own->stop)) {
        if (pg->own->cancel) PQcancel(pg->own->cancel, why, sizeof why);
        once__pg_drop(pg);
    }
    if (!once__pg_alive(pg) || PQtransactionStatus(pg->conn) == PQTRANS_IDLE) return;
    if (once__pg_send_text(pg, "ROLLBACK", NULL) != ONCE_OK || once__pg_round(pg, &result, 1, NULL) != ONCE_OK) once__pg_drop(pg);
    else PQclear(result);
}

void once__pg_interrupt(once_db *db)
{
    once_pg_own *own = of(db)->own;
    pthread_mutex_lock(&own->lock);
    if (own->socket >= 0) shutdown(own->socket, SHUT_RDWR);
    pthread_mutex_unlock(&own->lock);
}

/* ---- which one it is ---- */

int once__pg_identity(once_db *db, char *out, size_t len, once_error *err)
{
    PGresult *result;
    const int rc = once__pg_exec(of(db),
                                 "SELECT extract(epoch FROM pg_postmaster_start_time()), oid FROM pg_database WHERE datname = current_database()", &result,
                                 err);
    if (rc != ONCE_OK) return rc;
    snprintf(out, len, "postgres %s:%s", PQgetvalue(result, 0, 0), PQgetvalue(result, 0, 1));
    PQclear(result);
    return ONCE_OK;
}
