/* Around a handler of your own: claim, call, settle.
 *
 * Each function takes one delivery, calls the handler if this delivery is the one that is to run, and writes the
 * outcome. The verdict says what became of the delivery, and whether to ack it.
 *
 * Guarantees, one function for each kind of effect
 *   once_handle           The effect is outside of the store: a gateway, a mail server. It is never lost, and every
 *                         attempt carries the same idempotency key. An attempt that ended without an outcome (crash,
 *                         lost lease) is not repeated but held as unknown. With once_terms.retry_unknown it is
 *                         repeated, call->maybe_done says so, and `repeats` in `once status` counts it.
 *   once_sqlite_handle    The effect is SQL on the caller's own SQLite connection. Claim, effect and outcome are part
 *                         of the caller's transaction: one effect for each key, at whatever moment a process crashes,
 *                         for as long as the key is remembered and the database keeps what it acknowledged.
 *   once_postgres_handle  The same on the caller's own PostgreSQL connection.
 *
 * Ack rule: ack the message when the function returned ONCE_OK and `verdict.ack` is true (in the caller's own
 * transaction: after that has committed). Otherwise leave it with the broker. The library never delivers a
 * message itself: a retry, and what an operator decided about an unknown, happen when the broker delivers the message
 * again.
 *
 * Thread rule: many threads may call once_handle on one store. No lock is held while a handler runs, and a handler may
 * call once_handle for other keys. once_sqlite_handle and once_postgres_handle: one thread at a time for a connection,
 * and not from inside a handler on the same connection.
 * Fork rule: neither stores nor connections survive fork.
 *
 * Ownership: the handler may read what `call` points to until it returns. The caller owns the verdict, and releases it
 * with once_verdict_release.
 *
 * Errors: on failure the verdict is untouched, and the outcome is not settled: do not ack. Class RETRY: let the broker
 * deliver it again. MESSAGE: the broker would deliver it again for ever; put it aside yourself (your own dead letter
 * queue), then ack it. FENCED: another worker has the key. PAUSE: an operator must act first. FATAL: stop.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/handle.h>
 *
 *     static once_outcome charge(void *user, const once_call *call, once_reply *reply)
 *     {
 *         int *charges = user;
 *         printf("attempt %u\n", (unsigned)call->attempt); // and give call->idempotency_key to the gateway
 *         ++*charges;
 *         return once_reply_result(reply, ONCE_BYTES("receipt 1")) == ONCE_OK ? ONCE_DONE : ONCE_UNKNOWN;
 *     }
 *
 *     int main(void)
 *     {
 *         const once_scope scope = {.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")};
 *         const once_delivery delivery = {
 *             .size = sizeof delivery, .key = ONCE_BYTES("p1"), .body = ONCE_BYTES("{\"cents\": 1200}")};
 *         once_store *store;
 *         once_error err;
 *         int charges = 0, rc = once_store_open("memory:", NULL, &store, &err);
 *         if (rc != ONCE_OK) return fprintf(stderr, "%s\n", err.text), 1;
 *         for (int i = 0; i < 2 && rc == ONCE_OK; i++) { // the broker delivers it twice
 *             once_verdict verdict;
 *             rc = once_handle(store, &scope, &delivery, charge, &charges, &verdict, &err);
 *             if (rc != ONCE_OK) break;
 *             printf("%s, %s: %.*s\n", once_answer_name(verdict.answer), verdict.ack ? "ack" : "deliver again",
 *                    (int)verdict.result.len, verdict.result.data);
 *             once_verdict_release(&verdict);
 *         }
 *         if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text);
 *         once_store_close(store);
 *         return rc == ONCE_OK && charges == 1 ? 0 : 1;
 *     }
 */
#ifndef ONCE_HANDLE_H
#define ONCE_HANDLE_H

#include "once/store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3;
struct pg_conn; /* PGconn of libpq */

/* What a handler gets. Valid until the handler returns. */
typedef struct once_call {
    const once_scope *scope;       /* the caller's */
    const once_delivery *delivery; /* the caller's */
    const char *idempotency_key;   /* 32 hexadecimal digits, the same for every attempt at this key */
    uint32_t attempt;              /* 1, 2, 3... */
    uint32_t failures;             /* attempts that failed before */
    bool maybe_done;    /* an earlier attempt may have had its effect: it ended without an outcome, or as unknown */
    struct sqlite3 *db; /* once_sqlite_handle: the caller's connection, inside its transaction; otherwise NULL */
    struct pg_conn *pg; /* once_postgres_handle: the same */
    void *internal;     /* private */
} once_call;

/* What a handler answers besides its outcome. Valid until the handler returns; for the functions below. */
typedef struct once_reply once_reply;

/* Sets the result that duplicates will get. Copied; a second call replaces the first. E_MESSAGE: it is longer than
 * result_max; an earlier result stays. E_NOMEM: no result is kept. */
ONCE_API int once_reply_result(once_reply *reply, once_bytes result);

/* Sets the reason for an outcome other than done, for operators; cut after 400 bytes. Never put a secret into it. */
ONCE_API void once_reply_reason(once_reply *reply, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* With ONCE_RETRY and ONCE_RELEASE: the next attempt begins after `delay_ms` instead of after the backoff, for
 * example because the other side sent Retry-After. With ONCE_UNKNOWN that is tried again: not before both. */
ONCE_API void once_reply_delay(once_reply *reply, int64_t delay_ms);

/* For a handler that takes long: sets its lease to end `lease_ms` from now (0: as long as the first one). ONCE_OK: the
 * claim is still yours. E_FENCED: it is not; stop. Others: those of the store; the lease is as it was. In the caller's
 * own transaction there is no lease, and this does nothing. */
ONCE_API int once_call_extend(const once_call *call, int64_t lease_ms, once_error *err);

/* A handler. What it returns is settled:
 *   done, already, rejected, stale   final; duplicates get the outcome and the result
 *   retry      one failure more is counted, and the next attempt begins after a backoff. When the budget is spent
 *              (once_terms.attempts, retry_for_ms) it is dead instead
 *   release    nothing happened: tried again after a pause that grows with the attempts, and no failure is counted
 *   unknown    the effect may have happened: held, or with retry_unknown as retry. A value that is not an outcome is
 *              unknown too
 *   dead       one dead letter, with the body
 * It must return: neither longjmp nor an exception may leave it. */
typedef once_outcome once_callback(void *user, const once_call *call, once_reply *reply);

/* What became of the delivery. */
typedef struct once_verdict {
    /* RUN: the handler was called now. DUPLICATE, DEAD, BUSY, LATER, UNKNOWN, CONFLICT, TOO_OLD: it was not. CONFLICT:
     * the key was used before with other content. If every attempt so far ended as retry or release, the new content
     * runs instead, once. */
    once_answer answer;
    /* RUN: how it was settled; a retry without budget left is dead. DUPLICATE: how the first one ended. Otherwise: dead
     * for DEAD, CONFLICT and TOO_OLD, unknown for UNKNOWN, release for BUSY and LATER. */
    once_outcome outcome;
    bool was_duplicate; /* answered from the store: `result` is what the first one left */
    bool ack;           /* nothing is left to do: ack it. CONFLICT and TOO_OLD left a dead letter */
    uint32_t attempt;   /* RUN: the number of this attempt */
    uint32_t failures;  /* RUN: attempts that failed before this one */
    int64_t wait_ms;    /* `ack` is false: how long the broker should wait before it delivers again; -1: not known */
    once_bytes result;  /* RUN, DUPLICATE: valid until once_verdict_release */
} once_verdict;

/* Frees the result and zeroes the verdict. NULL is accepted. */
ONCE_API void once_verdict_release(once_verdict *verdict);

/* Claims the key, calls `callback` with `user` if the claim answers RUN, and settles what it returned. On ONCE_OK `out`
 * has the verdict, and the caller releases it. A passing failure of the store is tried again for up to some seconds
 * before it is reported.
 *
 * On failure `out` is untouched. Leave the delivery with the broker, except after E_MESSAGE:
 *   E_USAGE     sizes, scope, negative times, fork. The handler was not called
 *   E_MESSAGE   an empty key, or a time that cannot be. The handler was not called. Put the message aside yourself
 *   E_FENCED    the lease ended during the call, and the claim is no longer ours. The effect may have happened
 *   others      the store failed, either before the call (no effect happened) or after it (it is not known whether the
 *               outcome was written). Either way the store may have the claim: the key is then busy until the lease
 *               ends, and unknown after that (or tried again, with retry_unknown) */
ONCE_API int once_handle(once_store *store, const once_scope *scope, const once_delivery *delivery,
                         once_callback *callback, void *user, once_verdict *out, once_error *err);

/* ---- in the caller's own transaction: SQLite ---- */

/* Prepares a connection: creates our tables (`once_...`) in its main database, or brings them up to date. It keeps
 * prepared statements and a part of the index in memory until once_sqlite_release. Settings of the connection (journal,
 * synchronous, busy timeout, authorizer) stay as the caller made them; they decide what is durable. A second call does
 * nothing. Errors: E_USAGE (inside a transaction), and those of once_store_open. */
ONCE_API int once_sqlite_prepare(struct sqlite3 *db, once_error *err);

/* Frees what once_sqlite_prepare made. Call it before sqlite3_close, which otherwise returns SQLITE_BUSY. A connection
 * that was never prepared is accepted, and so is NULL. */
ONCE_API void once_sqlite_release(struct sqlite3 *db);

/* As once_handle, but inside the transaction that is open on `db`. If none is open, the call is a transaction of its
 * own. On ONCE_OK, claim, effect and outcome are part of that transaction: commit it, then obey `out`. If it is rolled
 * back, also to a savepoint before the call, the verdict is void.
 *
 * The handler uses call->db, and must not end the transaction. What it wrote is kept for done, already, rejected and
 * stale, and undone for all other outcomes. A retry or a dead letter is part of the transaction, too: commit it, or the
 * failure is not counted.
 *
 * No other connection gets the key meanwhile, because the transaction holds SQLite's write lock from here on. Begin it
 * with BEGIN IMMEDIATE: a deferred transaction that has already read, and whose snapshot is old, cannot get that lock
 * (SQLITE_BUSY_SNAPSHOT), and fails here with E_BUSY.
 *
 * Cost: after a rollback the next call reads a part of the index again, a few milliseconds with thousands of recent
 * keys.
 *
 * On failure everything since the call began is undone, and the caller's transaction is as before, except after
 * E_ABORTED. Errors:
 *   E_USAGE     not prepared, or called from inside a handler on this connection
 *   E_BUSY      roll back and try again
 *   E_ABORTED   the handler or the database ended the whole transaction
 *   others      those of the store */
ONCE_API int once_sqlite_handle(struct sqlite3 *db, const once_scope *scope, const once_delivery *delivery,
                                once_callback *callback, void *user, once_verdict *out, once_error *err);

/* ---- in the caller's own transaction: PostgreSQL ---- */

/* Prepares a connection, as once_sqlite_prepare does. Our tables are created in the schema that search_path names
 * first. Names of prepared statements begin with once_; behind a pooler there are none. The connection must be outside
 * of a transaction, and must not be reset before once_postgres_release. After DISCARD ALL one call fails with
 * E_ABORTED. Errors: E_USAGE (no connection, or inside a transaction), E_UNSUPPORTED (this build has no libpq),
 * E_CONFIG (the module is missing), and those of once_store_open. */
ONCE_API int once_postgres_prepare(struct pg_conn *conn, once_error *err);

/* Frees what once_postgres_prepare made. Call it before PQfinish. NULL is accepted. */
ONCE_API void once_postgres_release(struct pg_conn *conn);

/* As once_handle, but inside the transaction that is open on `conn`. If none is open, the call is a transaction of its
 * own. On ONCE_OK, claim, effect and outcome are part of that transaction: commit it, then obey `out`. If it is rolled
 * back, the verdict is void.
 *
 * The handler uses call->pg with PQexec and its relatives, reads all results, and must not end the transaction. What it
 * wrote is kept for done, already, rejected and stale, and undone for all other outcomes. A savepoint surrounds the
 * handler, so a statement that fails in it (a unique constraint, say) does not cost the caller's transaction. After
 * such a failure the handler may return already, rejected, stale, retry or dead, and what it wrote is undone. done is
 * refused then, with E_MESSAGE.
 *
 * Another worker that claims the same key waits until the transaction ends.
 *
 * On failure everything since the call began is undone, and the caller's transaction is as before, except after
 * E_ABORTED and E_UNAVAILABLE. Errors:
 *   E_USAGE         not prepared, or called from inside a handler on this connection
 *   E_ABORTED       the handler ended the transaction, it had failed before, or there was a deadlock: roll back, try
 *                   again
 *   E_UNAVAILABLE   the connection was lost
 *   others          those of the store */
ONCE_API int once_postgres_handle(struct pg_conn *conn, const once_scope *scope, const once_delivery *delivery,
                                  once_callback *callback, void *user, once_verdict *out, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
