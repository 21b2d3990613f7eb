/* Transactions of the postgres store: begin, commit, rollback, and single questions.
 *
 * The server's clock decides: the time of a transaction is the time at which the server began it. BEGIN is sent with
 * the first question, a moment before locks are taken. A transaction that had to wait for a lock therefore sees a time
 * that is slightly in the past, when leases of others had not ended yet. That errs on the safe side. */
#include <assert.h>
#include <string.h>

#include "store/postgres/live.h"
#include "store/postgres/schema.h"

#include "base/banned.h"

enum { IDENTITY_ROWS = 3 }; /* rows of once_meta: format, version, secret */

/* ---- time ---- */

#ifdef ONCE_TEST_BUILD
int64_t (*once__pg_test_clock)(const once_env *env);

int64_t once__pg_test_now(const once_postgres *q, bool *set)
{
    *set = once__pg_test_clock != NULL;
    return *set ? once__pg_test_clock(q->storage.store.env) : 0;
}
#else
int64_t once__pg_test_now(const once_postgres *q, bool *set)
{
    (void)q;
    *set = false;
    return 0;
}
#endif

void once__pg_param_now(const once_postgres *q, once_pg_params *params)
{
    bool set;
    const int64_t now_ms = once__pg_test_now(q, &set);
    if (set) once__pg_param_int8(params, now_ms);
    else once__pg_param_null(params);
}

/* ---- transactions ---- */

static void undo(once_postgres *q)
{
    assert(q->begun);
    PGresult *results[2];
    const size_t n = q->nested ? 2 : 1;
    if (q->pg->pending || q->pg->synced || q->pg->head.n) { /* a round was sent in part, or not read */
        once__pg_drop(q->pg);
        return;
    }
    (void)once__pg_confirm(q->pg, NULL);
    int rc = once__pg_send_text(q->pg, q->nested ? "ROLLBACK TO once_store" : "ROLLBACK", NULL);
    if (rc == ONCE_OK && q->nested) rc = once__pg_send_text(q->pg, "RELEASE once_store", NULL);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, n, NULL);
    if (rc == ONCE_OK) once__pg_clear(results, n);
    else once__pg_drop(q->pg);
}

static void tx_over(once_postgres *q, bool committed)
{
    assert(q->open || !q->begun);
    if (q->begun && !committed && once__pg_alive(q->pg)) undo(q);
    if (q->open) once__pg_leave(q->pg);
    once__pg_names_end(&q->names, committed);
    if (!committed && q->batch && !q->pg->collided) q->guess.streak = 0; /* a lock says nothing about keys */
    once__pg_live_clear(q);
    if (q->batch && !committed && q->pg->collided) q->turns.due = true;
    q->pg->collided = q->batch = false;
    q->n_locks = 0;
    q->letters[0].n = q->dropped.n = q->audits[0].n = 0;
    q->n_ahead = 0;
    q->facts = NULL;
    once__pg_forget_session(q->pg);
    q->pg->savepoints = 0;
    q->pg->presumed = q->pg->effects = false;
    q->open = q->write = q->begun = q->nested = false;
}

void once__pg_begin_anew(once_postgres *q)
{
    assert(q->open && q->write);
    const bool batch = q->batch, due = q->turns.due;
    const size_t n_locks = q->n_locks;
    assert(!q->nested && !q->pg->borrowed);
    tx_over(q, false);
    q->n_locks = n_locks;
    q->open = q->write = true;
    q->batch = batch;
    q->turns.due = due;
}

/* A new connection may lead to another server, or to an older state of the store. So everything that was read from the
 * old one is dropped, and the identity of the store is compared. */
static int know_again(once_postgres *q, once_error *err)
{
    assert(!q->open);
    once_secret secret;
    if (q->connection == q->pg->connections) return ONCE_OK;
    once__pg_names_clear(&q->names);
    const int rc = once__pg_ready(q->pg, false, &secret, err);
    if (rc == ONCE_E_NO_STORE && q->pg->unused)
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%s: the tables of the store were emptied while it was in use; restore their contents: "
                         "without them every message is new",
                         q->pg->where);
    if (rc == ONCE_E_NO_STORE)
        return once_fail(err, ONCE_E_MISSING, "%s: the tables of the store are gone; restore them", q->pg->where);
    if (rc != ONCE_OK) return rc;
    if (memcmp(&secret, &q->storage.store.secret, sizeof secret) != 0)
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%s: this is another store than before, with another secret; restore the old one: here every "
                         "message is new",
                         q->pg->where);
    q->connection = q->pg->connections;
    return ONCE_OK;
}

int once__pg_begin(once_storage *storage, bool write, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(!q->open);
    int connected = once__pg_connect(q->pg, q->wait_ms, err);
    if (connected == ONCE_OK) connected = know_again(q, err);
    if (connected != ONCE_OK) return connected;
    if (q->pg->borrowed) {
        q->nested = PQtransactionStatus(q->pg->conn) == PQTRANS_INTRANS;
        once__pg_names_clear(&q->names); /* the caller may have rolled back the transaction that inserted them */
        const int rc = once__pg_enter(q->pg, err);
        if (rc != ONCE_OK) return rc;
    }
    q->open = true;
    q->write = write;
    return ONCE_OK;
}

int once__pg_begin_send(once_postgres *q, size_t *sent, once_error *err)
{
    assert(q->open);
    if (q->begun) return ONCE_OK;
    once_pg_params params = {0};
    bool set;
    const int64_t now_ms = once__pg_test_now(q, &set);
    if (set) once__pg_param_int8(&params, now_ms);
    else once__pg_param_null(&params);
    if (q->names.newest) once__pg_param_int8(&params, q->names.newest->number);
    else once__pg_param_null(&params);
    q->names.asked = q->names.newest;
    once__pg_param_bytes(&params, (once_bytes){(const char *)&q->storage.store.secret, sizeof q->storage.store.secret});
    once__pg_param_queue(q, &params);
    int rc;
    if (q->nested) {
        rc = once__pg_send_text(q->pg, "SAVEPOINT once_store", err);
        *sent += rc == ONCE_OK;
    } else {
        rc = once__pg_begin_sql(q->pg, q->write ? PG_BEGIN_WRITE : PG_BEGIN_READ, sent, err);
    }
    q->now_at = *sent;
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_NOW, &params, err);
    *sent += rc == ONCE_OK;
    if (rc == ONCE_OK && q->batch) rc = once__pg_turn_send(q, sent, err);
    q->begun = true;
    return rc;
}

/* Format, version or secret have changed. The next transaction compares them as after a reconnect, and reports what has
 * happened. */
static int doubt(once_postgres *q, once_error *err)
{
    if (q->pg->borrowed)
        return once_fail(err, ONCE_E_MOVED,
                         "%s: the identity of the store in once_meta (format, version, secret) has changed; "
                         "restart this process if that is intended",
                         q->pg->where);
    q->connection = q->pg->connections - 1;
    return once_fail(err, ONCE_E_ABORTED,
                     "%s: the identity of the store in once_meta has changed; the store is read again", q->pg->where);
}

int once__pg_begin_read(once_postgres *q, PGresult *const *results, size_t n, once_error *err)
{
    assert(n == 0 || (q->begun && q->now_at < n));
    if (n == 0) return ONCE_OK;
    const PGresult *said = results[q->now_at];
    q->storage.now_ms = once__pg_int(said, 0, 1);
    int rc = once__pg_same_session(q->pg, once__pg_int(said, 0, 2), err);
    if (rc == ONCE_OK && once__pg_int(said, 0, 4) != IDENTITY_ROWS) rc = doubt(q, err);
    if (rc == ONCE_OK) rc = once__pg_guard_keep(q->pg, said, 5, err);
    return rc == ONCE_OK ? once__pg_names_confirm(q, once__pg_bytes(said, 0, 3), err) : rc;
}

int once__pg_guard_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    q->guard_at = SIZE_MAX;
    if (!q->pg->effects || q->pg->borrowed) return ONCE_OK;
    once__pg_guard_params(q->pg, &params);
    q->guard_at = *sent;
    const int rc = once__pg_send(q->pg, q->pg->temps ? PG_GUARD_TEMP : PG_GUARD, &params, err);
    *sent += rc == ONCE_OK;
    return rc;
}

int once__pg_guard_failed(once_postgres *q, int rc, const once_error *why, once_error *err)
{
    assert(rc != ONCE_OK);
    once_pg *pg = q->pg;
    char said[400];
    const int changed = pg->failed_at == q->guard_at
                            ? once__pg_guard_said(pg, pg->failed_state, why->text, said, sizeof said)
                            : ONCE_OK;
    if (changed == ONCE_E_COMMIT_UNKNOWN) once__pg_drop(pg); /* the state of the session is unknown */
    return changed != ONCE_OK ? once_fail(err, changed, "%s: %s", pg->where, said)
                              : once_fail(err, rc, "%s", why->text);
}

/* A deferred constraint that fails at COMMIT is the fault of a message. So is every error of a statement that was only
 * presumed to succeed. */
static int commit_failed(once_postgres *q, int rc, size_t commit_at, const once_error *why, once_error *err)
{
    assert(rc != ONCE_OK);
    once_pg *pg = q->pg;
    if (pg->failed_at == q->guard_at) return once__pg_guard_failed(q, rc, why, err);
    once_fail(err, rc, "%s", why->text);
    if (pg->failed_at == q->count_at && strcmp(pg->failed_state, "22012") == 0) return once__store_forgot(err);
    const bool at_commit = pg->failed_state[0] && pg->failed_at == commit_at;
    const bool of_message =
        pg->presumed ? once__pg_status(pg->failed_state) == ONCE_E_MESSAGE : strncmp(pg->failed_state, "23", 2) == 0;
    if (!at_commit || !of_message) return rc;
    pg->deferrable = true; /* it may have been created after we looked for one */
    if (err) err->status = ONCE_E_MESSAGE;
    return ONCE_E_MESSAGE;
}

static int write_send(once_postgres *q, size_t *sent, once_error *err)
{
    assert(q->write || (!q->letters[0].n && !q->dropped.n && !q->audits[0].n && !q->facts));
    int rc = once__pg_write_send(q, sent, err);
    if (rc == ONCE_OK) rc = once__pg_dropped_send(q, sent, err);
    if (rc == ONCE_OK) rc = once__pg_audits_send(q, sent, err);
    if (rc == ONCE_OK && q->letters[0].n) {
        rc = once__pg_letters_send(q, PG_LETTERS_PUT, err);
        ++*sent;
    }
    return rc == ONCE_OK ? once__pg_facts_send(q, sent, err) : rc;
}

int once__pg_commit(once_storage *storage, once_error *err)
{
    enum { WRITES_MAX = 20 };
    once_postgres *q = once__pg_of(storage);
    assert(q->open);
    PGresult *results[WRITES_MAX + 1];
    size_t sent = 0;
    int rc = ONCE_OK;
    once_error why = {0};
    if (!q->begun) {
        tx_over(q, true);
        return ONCE_OK;
    }
    if (!once__pg_alive(q->pg)) rc = once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", q->pg->where);
    else if (PQtransactionStatus(q->pg->conn) == PQTRANS_INERROR)
        rc = once_fail(err, ONCE_E_ABORTED, "%s: a statement failed, and with it the transaction", q->pg->where);
    if (rc == ONCE_OK) rc = once__pg_presumed(q, err);
    if (rc == ONCE_OK) rc = write_send(q, &sent, err);
    assert(sent <= WRITES_MAX);
    if (rc == ONCE_OK && q->batch)
        once__pg_remember_seen(q); /* while the server works; a wrong entry only costs a guess */
    if (rc == ONCE_OK) rc = once__pg_send_text(q->pg, q->nested ? "RELEASE once_store" : "COMMIT", err);
    q->pg->unreplicated = false;
    if (rc == ONCE_OK) {
        rc = once__pg_round(q->pg, results, sent + 1, &why);
        if (rc != ONCE_OK) rc = once__pg_names_failed(q, commit_failed(q, rc, sent, &why, err), err);
        const char *tag = rc == ONCE_OK ? PQcmdStatus(results[sent]) : "";
        if (rc == ONCE_OK && strcmp(tag, "ROLLBACK") == 0)
            rc = once_fail(err, ONCE_E_ABORTED, "%s: the transaction had failed before", q->pg->where);
        else if (rc == ONCE_OK && strcmp(tag, q->nested ? "RELEASE" : "COMMIT") != 0)
            rc = once__pg_misfit(q->pg, "COMMIT", err);
        once__pg_clear(results, sent + 1);
    }
    tx_over(q, rc == ONCE_OK);
    if (rc == ONCE_OK && q->pg->unreplicated) /* a later commit that is replicated includes this one */
        rc = once_fail(err, ONCE_E_UNAVAILABLE,
                       "%s: a commit may not have reached its standby, because an operator cancelled the wait for it",
                       q->pg->where);
    return rc;
}

void once__pg_rollback(once_storage *storage) { tx_over(once__pg_of(storage), false); }

/* ---- questions ---- */

int once__pg_guarded_round(once_postgres *q, PGresult **results, size_t sent, once_error *err)
{
    once_error why = {0};
    const int rc = once__pg_round(q->pg, results, sent, &why);
    return rc == ONCE_OK ? ONCE_OK : once__pg_guard_failed(q, rc, &why, err);
}

int once__pg_answer(once_postgres *q, unsigned statement, const once_pg_params *params, PGresult **out, once_error *err)
{
    assert(!q->pg->pending); /* a round of its own */
    PGresult *results[2];
    size_t sent = 0;
    *out = NULL;
    int rc = once__pg_guard_send(q, &sent, err);
    SEND(once__pg_send(q->pg, statement, params, err));
    if (rc == ONCE_OK) rc = once__pg_guarded_round(q, results, sent, err);
    if (rc != ONCE_OK) return rc;
    *out = results[sent - 1];
    once__pg_clear(results, sent - 1);
    return ONCE_OK;
}

int once__pg_answer_by_index(once_postgres *q, unsigned statement, const once_pg_params *params, size_t most,
                             PGresult **out, once_error *err)
{
    assert(q->begun && !q->pg->pending); /* PG_PLAN is local to the transaction */
    PGresult *results[4];
    size_t sent = 0;
    *out = NULL;
    int rc = once__pg_guard_send(q, &sent, err);
    SEND(once__pg_send(q->pg, PG_PLAN, NULL, err));
    const size_t at = sent;
    SEND(once__pg_send(q->pg, statement, params, err));
    if (rc == ONCE_OK) once__pg_must(q->pg, q->pg->sql[statement].sql, q->pg->sql[statement].shape, most);
    SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err));
    if (rc == ONCE_OK) rc = once__pg_guarded_round(q, results, sent, err);
    if (rc != ONCE_OK) return rc;
    *out = results[at];
    results[at] = NULL;
    once__pg_clear(results, sent);
    return ONCE_OK;
}

int once__pg_tell(once_postgres *q, unsigned statement, const once_pg_params *params, once_error *err)
{
    PGresult *result;
    const int rc = once__pg_answer(q, statement, params, &result, err);
    PQclear(result);
    return rc;
}
