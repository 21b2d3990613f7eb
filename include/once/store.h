/* A store, with claim, extend and settle as single calls (the verbs). For programs that run a loop of their own. Most
 * programs want once_handle (once/handle.h), which does all three around one function.
 *
 * A store remembers keys: which are claimed, which are finished and how, which wait. A claim is the right to run the
 * effect of one key until its lease ends. Settling it writes how the attempt ended.
 *
 * Guarantees
 *   - Of all claims of one key, in all threads and processes that use the store, one answers RUN. No other does until
 *     that one is settled with retry or release, its lease has ended, the finished key has expired, or an operator has
 *     put it back.
 *   - What a verb reported with ONCE_OK is durable: it survives a crash of the process and of the host. `memory:`
 *     keeps nothing.
 *   - A verb is all or nothing for its whole batch. When it fails, none of it happened, or it is not known whether all
 *     of it happened. Repeating it with the same tickets is safe and gives the answers of the first time.
 *   - The store checks the token in settle and extend: after another worker has claimed the key, the old ticket changes
 *     nothing.
 *   - The store's clock decides. A wall clock that jumps ends no lease early.
 *
 * Caveats
 *   - A lease is not a lock. When it ends while the effect still runs, another worker may claim the key. If the
 *     first claim had once_terms.retry_unknown, the other worker's claim answers RUN, otherwise UNKNOWN. Finish in
 *     time, or extend the lease.
 *   - A message whose time is not known (`sent_ms`) and that comes back after `remember_ms` is a new one.
 *   - Each handle of a store with many finished keys takes some memory. Share a handle instead of opening many.
 *
 * Thread rule: threads may share a store; its verbs run one at a time. A ticket belongs to one thread at a time.
 * Fork rule: no handle survives fork. In the child every function refuses it with ONCE_E_USAGE, and once_store_close
 * does nothing, because closing the file there would drop the parent's locks. Open another handle in the child.
 *
 * Ownership: the caller owns the store from once_store_open to once_store_close, and the tickets with the results in
 * them until once_ticket_release. Bytes that the caller passes are read during the call; nothing keeps a pointer to
 * them.
 *
 * Errors (classes: once/error.h). USAGE: the call is wrong, nothing was done. RETRY: repeat the call with the same
 * tickets. PAUSE: an operator must act, then repeat it. FATAL: stop, and ack nothing of this batch.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/store.h>
 *
 *     static once_outcome charge(const once_ticket *ticket)
 *     {
 *         printf("attempt %u\n", (unsigned)ticket->attempt); // and give ticket->idempotency_key to the gateway
 *         return ONCE_DONE;
 *     }
 *
 *     int main(void)
 *     {
 *         const once_scope scope = {.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")};
 *         const once_delivery delivery = {
 *             .size = sizeof delivery, .key = ONCE_BYTES("p1"), .body = ONCE_BYTES("{\"cents\": 1200}")};
 *         once_store *store;
 *         once_ticket ticket = {0};
 *         once_error err;
 *         bool applied = false, ack = false;
 *         int rc = once_store_open("memory:", NULL, &store, &err);
 *         if (rc != ONCE_OK) return fprintf(stderr, "%s\n", err.text), 1;
 *         rc = once_claim(store, &scope, &delivery, 1, &ticket, &err);
 *         if (rc == ONCE_OK && ticket.answer == ONCE_ANSWER_RUN) {
 *             const once_ending ending = {.outcome = charge(&ticket), .delay_ms = 1000};
 *             rc = once_settle(store, &ticket, &ending, 1, &applied, &err);
 *             ack = applied && ending.outcome != ONCE_RETRY && ending.outcome != ONCE_RELEASE &&
 *                   ending.outcome != ONCE_UNKNOWN; // those three come again
 *         } else if (rc == ONCE_OK) {
 *             ack = ticket.answer == ONCE_ANSWER_DUPLICATE || ticket.answer == ONCE_ANSWER_DEAD;
 *         }
 *         if (rc != ONCE_OK) fprintf(stderr, "%s\n", err.text); // do not ack
 *         else printf(ack ? "ack\n" : "deliver again\n");
 *         once_ticket_release(&ticket, 1);
 *         once_store_close(store);
 *         return rc == ONCE_OK ? 0 : 1;
 *     }
 */
#ifndef ONCE_STORE_H
#define ONCE_STORE_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An open store. */
typedef struct once_store once_store;

/* How a store is opened. A zeroed struct with its size means the defaults. */
typedef struct once_open_options {
    size_t size;     /* sizeof(once_open_options) */
    bool must_exist; /* refuse a store that does not exist yet, instead of creating it */
    int busy_ms;     /* how long to wait for other processes; 0 means the default, 10 s */
} once_open_options;

/* Opens "sqlite:PATH", "postgres://...", "redis://..." or "memory:", and creates it where that is allowed. `options`
 * may be NULL. On success the caller owns `*out`; otherwise it is untouched. Errors:
 *   E_USAGE                           the URL or the options are wrong
 *   E_UNSUPPORTED                     this build has no such store
 *   E_CONFIG                          no such folder or file; or a server whose settings let it lose what it confirmed
 *   E_NO_STORE                        must_exist, and there is none
 *   E_BUSY, E_UNAVAILABLE, E_NOMEM    try again
 *   E_MISSING, E_DENIED, E_READONLY, E_FULL   an operator must act
 *   E_NOT_OURS, E_OTHER_STORE (its tables were emptied), E_NEWER, E_CORRUPT, E_IO   do not use this store */
ONCE_API int once_store_open(const char *url, const once_open_options *options, once_store **out, once_error *err);

/* Closes the store and frees the handle. No thread may be inside a verb. NULL is accepted. Tickets stay valid for
 * once_ticket_release only. */
ONCE_API void once_store_close(once_store *store);

/* ---- what the caller asks ---- */

/* How a message is treated. A zeroed struct with its size means the defaults. once_claim reads lease_ms, remember_ms,
 * retry_unknown and idempotency_salt; the other fields are for once_handle. */
typedef struct once_terms {
    size_t size; /* sizeof(once_terms) */
    /* How long an attempt has; 0: 30 s. Nothing renews it: see once_extend and once_call_extend. */
    int64_t lease_ms;
    int64_t remember_ms; /* how long an outcome suppresses duplicates; 0: 7 days; or ONCE_FOREVER */
    /* After this many failures the message becomes a dead letter. 0: 12 (about two minutes of backoff), or no limit if
     * retry_for_ms is set. */
    uint32_t attempts;
    /* The pause before the next attempt is random, below a bound that doubles from min to max. 0 means the
     * default: 200 ms and 1 min. */
    int64_t backoff_min_ms, backoff_max_ms;
    size_t result_max; /* the longest result in bytes, at most 1 GiB; 0: 64 KiB */
    /* What follows from an attempt that ended without reporting an outcome (its process died, its lease ended), or as
     * `unknown`. false: the effect may have happened, so the key is held as unknown until an operator decides (`once
     * resolve`); nothing happens twice. true: the effect runs again under the same idempotency key, and one failure
     * more is counted; right where the other side honours that key, or a repeat does no harm. With once_settle only
     * the first case counts: an outcome `unknown` is always held. (Do not settle with retry instead: that says that the
     * effect did not happen.) In the caller's own transaction (once_sqlite_handle, once_postgres_handle) an attempt
     * without an outcome was rolled back. */
    bool retry_unknown;
    /* Makes idempotency keys that cannot be guessed from scope and key. At least 16 bytes, secret, and the same in
     * every process and at all times: another salt makes other keys. Read during the call. Empty: none. */
    once_bytes idempotency_salt;
    /* When the first failure is longer ago than this, the next failure makes a dead letter, whatever `attempts` says.
     * 0: no time limit. */
    int64_t retry_for_ms;
} once_terms;

/* One delivery of a message. Zero it, set `size` and `key`; the rest may stay empty. */
typedef struct once_delivery {
    size_t size;     /* sizeof(once_delivery) */
    once_bytes key;  /* what makes two deliveries the same message; any bytes, at least one */
    once_bytes body; /* the message; kept with dead letters and unknowns */
    /* What must not change under the key; empty: the body. JSON is compared by its meaning (members in any order,
     * numbers as decimals), anything else byte by byte. When both are empty, nothing is compared. */
    once_bytes content;
    bool any_content; /* compare nothing */
    /* When it was sent, milliseconds UTC; 0 or ONCE_NO_TIME: not known. E_MESSAGE outside of the years 1 to 9999. */
    int64_t sent_ms;
    once_bytes type, headers; /* shown to operators; headers: a JSON object as text */
    /* Its coordinates: the stream, and the position in it; the same on every delivery: "orders/3" and "88123". */
    once_bytes place, point;
    const once_terms *terms; /* NULL: the defaults */
    bool no_body; /* callbacks of a pipeline with `tombstones: run`: the message has no body; elsewhere it is ignored */
} once_delivery;

/* ---- what the store answers ---- */

/* A claim. Zero it before its first use. When a verb fails, the ticket keeps what makes a repetition safe: repeat the
 * call with it. Before it is used for another delivery or another attempt, once_ticket_release must zero it. */
typedef struct once_ticket {
    once_answer answer;
    once_outcome outcome;   /* DUPLICATE: how the message ended */
    uint32_t attempt;       /* RUN: 1, 2, 3...; a fencing number that may be shown to the other side */
    uint32_t failures;      /* RUN: attempts that failed before; compare it with your budget */
    int64_t failing_for_ms; /* RUN: age of the first failure by the store's clock; -1: there is none */
    bool maybe_done;   /* RUN: an earlier attempt may have had its effect: it ended without an outcome, or as unknown */
    int64_t wait_ms;   /* BUSY, LATER: ask again after so long; -1: not known */
    once_bytes result; /* DUPLICATE: the stored result; valid until once_ticket_release */
    /* 32 hexadecimal digits; the same for every attempt at this key, also with another store
     * (docs/idempotency-keys.md). Give it to the other side. */
    char idempotency_key[33];
    /* private */
    uint64_t id[2], token[2];
    int64_t remember_ms, sent_ms, lease_ms;
} once_ticket;

/* How an attempt ended. Zero it, set `outcome`. */
typedef struct once_ending {
    once_outcome outcome;
    once_bytes result; /* done, already, rejected, stale: what duplicates get; result_max is not checked here */
    once_bytes reason; /* all but done: why, for operators; never a secret */
    int64_t delay_ms;  /* retry, release: the next attempt does not begin before this delay has passed; 0 or more */
    const once_delivery *message; /* dead, unknown: the message, kept for an operator; NULL: without its body */
} once_ending;

/* ---- the verbs: each works on `n` items, in the caller's order, as one transaction ---- */

/* Claims the keys of deliveries[n], all in one scope. `consumer` must not be empty; an empty operation means "handler".
 * On ONCE_OK tickets[n] have the answers:
 *
 *   RUN        the claim is yours: run the effect within lease_ms, then settle
 *   DUPLICATE  finished before; `outcome` and `result` say how: ack
 *   DEAD       it is a dead letter: ack
 *   BUSY       another worker is processing it: ask again after wait_ms
 *   LATER      it failed and waits: ask again after wait_ms
 *   UNKNOWN    held until an operator decides: leave it with the broker
 *   CONFLICT   the key was used before with other content: set it aside
 *   TOO_OLD    older than what is remembered: set it aside
 *
 * Other content answers RUN, once, if every attempt at the key so far was released or retried: nothing has happened
 * yet, and this message takes the place of the first.
 *
 * Errors: E_USAGE (sizes, scope, negative times, fork); E_MESSAGE (an empty key, a time that cannot be); those of the
 * store: class RETRY (call again with the same tickets), PAUSE or FATAL. */
ONCE_API int once_claim(once_store *store, const once_scope *scope, const once_delivery *deliveries, size_t n,
                        once_ticket *tickets, once_error *err);

/* Sets the leases to end `lease_ms` from now. On ONCE_OK ours[i] is true if you still hold the claim; false: another
 * worker may have it, stop working on it. A ticket that did not answer RUN is not yours. Errors: E_USAGE (also for a
 * lease of 0 or less), and those of the store; then `ours` is untouched. */
ONCE_API int once_extend(once_store *store, const once_ticket *tickets, size_t n, int64_t lease_ms, bool *ours,
                         once_error *err);

/* Writes the outcomes. On ONCE_OK applied[i] says whether the outcome was written; false: the claim is no longer yours,
 * so do not ack, and do not repeat the effect.
 *
 * Ack a message when this returned ONCE_OK, it was applied, and its outcome is neither retry, release nor unknown:
 * those three stay with the broker, which delivers them again. A retry adds one to the failures. Whether the budget is
 * spent is yours to decide; if it is, settle with dead, which makes one dead letter.
 *
 * Errors: E_USAGE (also for a ticket that did not answer RUN), and those of the store; then `applied` is untouched.
 * Class RETRY: make the same call again. */
ONCE_API int once_settle(once_store *store, const once_ticket *tickets, const once_ending *endings, size_t n,
                         bool *applied, once_error *err);

/* Frees the results in the tickets and zeroes the tickets. They may be zero already. NULL is accepted. */
ONCE_API void once_ticket_release(once_ticket *tickets, size_t n);

#ifdef __cplusplus
}
#endif
#endif
