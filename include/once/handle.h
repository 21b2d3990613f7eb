/* Around a handler of your own: claim, call, settle.
 *
 *     static once_outcome charge(void *user, const once_call *call, once_reply *reply)
 *     {
 *         ... call->idempotency_key goes to the gateway ...
 *         once_reply_result(reply, receipt);
 *         return ONCE_DONE;
 *     }
 *
 *     once_verdict verdict;
 *     int rc = once_handle(store, &scope, &delivery, charge, gateway, &verdict, &err);
 *     if (rc == ONCE_OK) {
 *         if (verdict.ack) ack(message); else redeliver(message, verdict.wait_ms);
 *         once_verdict_release(&verdict);
 *     }
 *
 * Kinds, with different promises
 *   once_handle         The effect is outside of the store (a gateway, a mail server): never lost, and every try
 *                       carries the same idempotency key. An attempt that ended without an outcome (crash, lost lease)
 *                       is not repeated but held as unknown; with once_terms.retry_unknown it is repeated, says so
 *                       (call->maybe_done), and is counted (`repeats` in `once status`).
 *   once_sqlite_handle  The effect is SQL on the caller's own SQLite connection: claim, effect and outcome are one part
 *                       of the caller's transaction. One effect for each key, whatever crashes, for as long as the
 *                       entry is remembered and the database keeps what it acknowledged.
 *   once_postgres_handle  The same on the caller's own PostgreSQL connection.
 *
 * Ack rule: `verdict.ack` is true when the outcome is durable (once_sqlite_handle: when the caller's transaction has
 * committed) and nothing is left to do. Otherwise leave the message with the broker: the library keeps failures and due
 * times, but does not deliver. What a person decides about an unknown shows at the next delivery. Never ack when a
 * function failed.
 *
 * Thread rule: once_handle may be called by many threads on one store; no lock is held while a handler runs, and a
 * handler may call once_handle for other keys. once_sqlite_handle: one thread at a time for a connection, as for SQLite
 * itself, and not from inside a handler on the same connection. Fork rule: as for stores and SQLite connections, none
 * survives. */
#ifndef ONCE_HANDLE_H
#define ONCE_HANDLE_H

#include "once/store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3;
struct pg_conn; /* PGconn of libpq */

/* What a handler is told. All of it is the library's until the handler returns. */
typedef struct once_call {
    const once_scope *scope;
    const once_delivery *delivery;
    const char *idempotency_key; /* 32 hexadecimal digits, the same for every attempt at this key */
    uint32_t attempt;            /* 1, 2, 3... */
    uint32_t failures;           /* attempts that failed before */
    bool maybe_done;    /* an earlier attempt may have had its effect: it ended without an outcome, or as unknown */
    struct sqlite3 *db; /* once_sqlite_handle: the caller's connection, inside its transaction; otherwise NULL */
    struct pg_conn *pg; /* once_postgres_handle: the same */
    void *internal;
} once_call;

/* What a handler answers besides its outcome; only for the functions below. */
typedef struct once_reply once_reply;

/* The result that duplicates will get. Copied; a second call replaces the first. E_MESSAGE: longer than result_max, and
 * nothing was kept; E_NOMEM. */
ONCE_API int once_reply_result(once_reply *reply, once_bytes result);
/* Why it was not done, in words, for people; cut after 400 bytes. Never put a secret into it. */
ONCE_API void once_reply_reason(once_reply *reply, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* With ONCE_RETRY and ONCE_RELEASE: not before so long (the other side said when), instead of the backoff. */
ONCE_API void once_reply_delay(once_reply *reply, int64_t delay_ms);

/* For a handler of once_handle that takes long: its lease ends lease_ms from now (0: as long as the first one).
 * E_FENCED: the claim is somebody else's by now; stop. In once_sqlite_handle there is no lease, and this does nothing.
 */
ONCE_API int once_call_extend(const once_call *call, int64_t lease_ms, once_error *err);

/* A handler. What it returns is settled:
 *   done, already, rejected, stale   final; duplicates get the outcome and the result
 *   retry      one failure more, tried again after a backoff; when once_terms.attempts are spent, dead
 *   release    nothing happened: tried again after a pause that grows with the attempts, no failure counted
 *   unknown    the effect may have happened: held, or with retry_unknown as retry. So is every value that is no outcome
 *   dead       one dead letter with the body
 * It must not unwind through the library (longjmp, exceptions). */
typedef once_outcome once_callback(void *user, const once_call *call, once_reply *reply);

/* What became of the delivery. */
typedef struct once_verdict {
    once_answer
        answer; /* RUN: the handler was called now; DUPLICATE, DEAD, BUSY, LATER, UNKNOWN, CONFLICT, TOO_OLD: not */
    once_outcome
        outcome; /* RUN: how it was settled (a retry with no budget left is dead); DUPLICATE: how it ended then; DEAD */
    bool was_duplicate; /* answered from the store: `result` is what the first one left */
    bool ack; /* nothing is left to do: ack it. CONFLICT and TOO_OLD left a dead letter. Other content is no conflict,
               * but runs, once, while every attempt at the key was released or retried */
    uint32_t attempt;  /* RUN */
    uint32_t failures; /* RUN: those before this attempt */
    int64_t wait_ms;   /* not ack: deliver it again after so long; -1: not known */
    once_bytes result; /* RUN, DUPLICATE: the verdict's, until once_verdict_release */
} once_verdict;

ONCE_API void once_verdict_release(once_verdict *verdict); /* frees the result, zeroes the verdict */

/* Claims, calls `callback` with `user` when the claim answers RUN, and settles. ONCE_OK: `out` says what became of it,
 * and is the caller's to release. A passing failure of the store is tried again for a moment before it is reported.
 *
 * When it fails, `out` is untouched and the delivery is the broker's:
 *   E_FENCED   the lease ran out during the call and somebody else has the key; the effect may have happened
 *   E_USAGE    sizes, scope, negative times, fork; E_MESSAGE: an empty key. Nothing was called
 *   others     the store failed. Before the call, there was no effect; after it, the outcome is not written. Either way
 *              the claim may be in the store: the key is then busy until its lease ends, and unknown after that (or
 *              tried
 *              again, with retry_unknown) */
ONCE_API int once_handle(once_store *store, const once_scope *scope, const once_delivery *delivery,
                         once_callback *callback, void *user, once_verdict *out, once_error *err);

/* ---- in the caller's own transaction ---- */

/* Makes this connection ready: creates our tables (`once_...`) in its main database or brings them up to date, and
 * keeps prepared statements and a part of the index in memory, until once_sqlite_release. Settings of the connection
 * (journal, synchronous, busy timeout, authorizer) are the caller's and stay; what is durable is what they make
 * durable. A second call does nothing. Not inside a transaction (E_USAGE). Other errors: those of once_store_open. */
ONCE_API int once_sqlite_prepare(struct sqlite3 *db, once_error *err);

/* Before sqlite3_close, which otherwise says SQLITE_BUSY. A connection that was never prepared, and NULL, are fine. */
ONCE_API void once_sqlite_release(struct sqlite3 *db);

/* As once_handle, but everything happens inside the transaction that is open on `db`; with none open, it is one by
 * itself.
 * ONCE_OK: claim, effect and outcome stand and fall with that transaction. Commit it, then obey `out`; a verdict of a
 * transaction that was rolled back (or rolled back to a savepoint before the call) never was.
 *
 * Cost: after a rollback the next call reads a part of the index again (a few milliseconds with thousands of recent
 * keys).
 *
 * Callback: uses call->db. What it wrote is kept for done, already, rejected and stale, and undone for all others; it
 * must not end the transaction. A retry or a dead letter is part of the transaction too: commit it, or the failure is
 * not counted. Nobody else gets the key meanwhile, because the transaction holds SQLite's write lock from here on;
 * begin it with BEGIN IMMEDIATE, so that it cannot fail here with E_BUSY because it has already read something that is
 * no longer true.
 *
 * On failure everything since the call began is undone, and the caller's transaction is as before, unless:
 *   E_ABORTED   the handler or the database ended the whole transaction
 * Others: E_USAGE (not prepared, called from inside a handler on this connection), E_BUSY (roll back and try again),
 * and those of the store. */
ONCE_API int once_sqlite_handle(struct sqlite3 *db, const once_scope *scope, const once_delivery *delivery,
                                once_callback *callback, void *user, once_verdict *out, once_error *err);

/* ---- the same on PostgreSQL ---- */

/* As once_sqlite_prepare: our tables are made in the schema that search_path names first, and statements are prepared
 * (names beginning with once_, unless a pooler is in between). The connection must be outside of a transaction, and may
 * not be reset before once_postgres_release. DISCARD ALL costs one E_ABORTED. E_UNSUPPORTED: this build has no libpq.
 * E_CONFIG: its module is missing.
 */
ONCE_API int once_postgres_prepare(struct pg_conn *conn, once_error *err);
ONCE_API void once_postgres_release(struct pg_conn *conn); /* before PQfinish */

/* As once_handle, but everything happens inside the transaction that is open on `conn`; with none open, it is one by
 * itself.
 * ONCE_OK: claim, effect and outcome stand and fall with that transaction. Commit it, then obey `out`.
 *
 * Callback: uses call->pg with PQexec and its kin, reads all results, and must not end the transaction. What it wrote
 * is kept for done, already, rejected and stale, and undone for all others. A statement that fails inside the handler
 * (a unique constraint, say) does not cost the caller's transaction: there is a savepoint around the handler. It may
 * then still answer already, rejected, stale, retry or dead, and what it wrote is undone; done would be a lie, and is
 * answered with E_MESSAGE. Nobody else gets the key before the transaction ends: another worker waits for it.
 *
 * On failure everything since the call began is undone, and the caller's transaction is as before, unless:
 *   E_ABORTED       the handler ended the whole transaction, or it had failed before; or a deadlock: roll back, and try
 *                   again
 *   E_UNAVAILABLE   the connection was lost */
ONCE_API int once_postgres_handle(struct pg_conn *conn, const once_scope *scope, const once_delivery *delivery,
                                  once_callback *callback, void *user, once_verdict *out, once_error *err);

#ifdef __cplusplus
}
#endif
#endif
