/* A store: what is known about keys, and the bare verbs on it, for those who run a loop of their own. Most programs
 * want once_handle (once/handle.h), which is claim, call and settle in one.
 *
 *     once_store *store;
 *     once_error err;
 *     if (once_store_open("sqlite:payments.db", NULL, &store, &err) != ONCE_OK) ...
 *     once_ticket ticket = {0};
 *     if (once_claim(store, &scope, &delivery, 1, &ticket, &err) == ONCE_OK && ticket.answer == ONCE_ANSWER_RUN) {
 *         const once_ending ending = {.outcome = charge() ? ONCE_DONE : ONCE_RETRY, .delay_ms = 1000};
 *         bool applied;
 *         once_settle(store, &ticket, &ending, 1, &applied, &err);
 *     }
 *     once_ticket_release(&ticket, 1);
 *     once_store_close(store);
 *
 * Guarantees
 *   - Of all claims of one key, in all threads and processes on a store, one answers RUN; the others do not until it is
 *     settled with retry or release, or its lease has run out.
 *   - What a verb reported with ONCE_OK is durable (`sqlite:`; `memory:` keeps nothing).
 *   - A verb is all or nothing for its whole batch. When it fails, either nothing of it happened or that is not known;
 *     repeating it with the same tickets is harmless and gives the answers of the first time.
 *   - settle and extend are fenced in the store: a claim that somebody else has taken over changes nothing any more.
 *   - Time is the store's: a wall clock that jumps ends no lease early.
 *
 * Caveats
 *   - A lease that runs out while the effect still works is not a lock: the effect must finish, or be extended, in
 *   time.
 *     What another claim gets then depends on once_terms.retry_unknown of the one that ran out.
 *   - A message without a known time (`sent_ms`) that comes back after `remember_ms` is new again.
 *   - Stores with many finished keys hold some memory for each handle; share a handle instead of opening many.
 *
 * Thread rule: a store may be shared by threads; its verbs take turns. A ticket belongs to one thread at a time.
 * Fork rule: no handle survives fork. In the child every function refuses it with ONCE_E_USAGE, and once_store_close
 * does nothing, so that it cannot harm the parent; open another one there. */
#ifndef ONCE_STORE_H
#define ONCE_STORE_H

#include "once/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct once_store once_store;

typedef struct once_open_options {
    size_t size;     /* sizeof(once_open_options) */
    bool must_exist; /* refuse a store that is not there yet, instead of making it */
    int busy_ms;     /* how long to wait for other processes; 0: 10 s */
} once_open_options;

/* Opens "sqlite:PATH", "postgres://...", "redis://..." or "memory:". `options` may be NULL. On success `*out` is the
 * caller's until once_store_close; otherwise it is untouched. Errors: E_USAGE (the URL, the options), E_UNSUPPORTED (a
 * store that is not in this build), E_CONFIG (no such folder or file; a server that could lose what it was given),
 * E_MISSING, E_BUSY, E_UNAVAILABLE, E_DENIED, E_READONLY, E_FULL, E_NOT_OURS, E_OTHER_STORE (the tables of one that was
 * emptied), E_NEWER, E_CORRUPT, E_IO, E_NOMEM. */
ONCE_API int once_store_open(const char *url, const once_open_options *options, once_store **out, once_error *err);

/* No thread may be inside a verb. NULL is fine. Tickets stay valid for release only. */
ONCE_API void once_store_close(once_store *store);

/* ---- what is asked ---- */

/* How a message is treated. A zeroed struct with its size means the defaults. The first two matter to claim; the others
 * to once_handle only, but for retry_unknown. */
typedef struct once_terms {
    size_t size;         /* sizeof(once_terms) */
    int64_t lease_ms;    /* the time an attempt has; 0: 30 s. Not renewed by itself: once_extend, once_call_extend */
    int64_t remember_ms; /* how long an outcome suppresses duplicates; 0: 7 days; ONCE_FOREVER */
    uint32_t attempts; /* failures that make a dead letter; 0: 12 (about two minutes of backoff), or, with retry_for_ms,
                          any number */
    int64_t backoff_min_ms,
        backoff_max_ms; /* before the next try: full jitter below a bound that doubles; 0: 200 ms, 1 min */
    size_t result_max;  /* bytes of a result; 0: 64 KiB */
    /* What an attempt means that ended without an outcome (its process died, its lease ran out) or as `unknown`. false:
     * the effect may have happened, so the key is held as unknown until a person decides (`once resolve`); nothing
     * happens twice. true: run it again under the same idempotency key, one failure more; right where the other side
     * honours that key or a repeat does no harm. once_sqlite_handle needs neither: such an attempt was rolled back. */
    bool retry_unknown;
    /* Where idempotency keys must not be guessable by those who know scope and key: at least 16 bytes that nobody else
     * knows, the same in every process and for ever, because another salt makes other keys. The caller's until the call
     * returns. Empty: none */
    once_bytes idempotency_salt;
    int64_t retry_for_ms; /* a failure is also the last one when the first is older than this; 0: the time does not
                             matter */
} once_terms;

/* One delivery of a message. Zero it, set `size` and `key`; the rest may stay empty. Bytes are the caller's and must
 * live until the call returns; nothing keeps a pointer to them. */
typedef struct once_delivery {
    size_t size;     /* sizeof(once_delivery) */
    once_bytes key;  /* what makes two deliveries the same: 1 byte or more, any bytes */
    once_bytes body; /* kept with dead letters and unknowns */
    once_bytes
        content; /* what must not change under the key; empty: the body. JSON is compared by its meaning (members in
                  * any order, numbers as decimals), anything else byte by byte. None at all: nothing is compared */
    bool any_content; /* compare nothing */
    int64_t sent_ms;  /* when it was sent, milliseconds UTC; 0 or ONCE_NO_TIME: not known. ONCE_E_MESSAGE outside of the
                         years 1 to 9999 */
    once_bytes type, headers; /* for people; headers: a JSON object as text */
    once_bytes place, point;  /* where it came from, the same on every delivery: "orders/3" "88123" */
    const once_terms *terms;  /* NULL: the defaults */
} once_delivery;

/* ---- what is answered ---- */

/* A claim in the caller's hand. Zero it before its first use. A verb that failed leaves in it what makes the repetition
 * harmless; once_ticket_release makes it zero again, which it must be before it is used for another delivery or another
 * attempt. */
typedef struct once_ticket {
    once_answer answer;
    once_outcome outcome;   /* DUPLICATE: how it ended */
    uint32_t attempt;       /* RUN: 1, 2, 3... a fence that can be shown to the outside */
    uint32_t failures;      /* RUN: attempts that failed before; compare it with your budget */
    int64_t failing_for_ms; /* RUN: how long ago the first of them failed, by the store's clock; -1: none has */
    bool maybe_done;   /* RUN: an earlier attempt may have had its effect: it ended without an outcome, or as unknown */
    int64_t wait_ms;   /* BUSY, LATER: asking again may help after so long; -1: not known */
    once_bytes result; /* DUPLICATE: the stored result; the ticket's, until once_ticket_release */
    char idempotency_key[33]; /* 32 hexadecimal digits, the same for every attempt at this key and whatever becomes of
                               * the store (docs/idempotency-keys.md): give it to the other side */
    /* private */
    uint64_t id[2], token[2];
    int64_t remember_ms, sent_ms, lease_ms;
} once_ticket;

/* How an attempt ended. */
typedef struct once_ending {
    once_outcome outcome;
    once_bytes result; /* done, already, rejected, stale: what duplicates get; at most result_max is up to the caller */
    once_bytes reason; /* in words, for all but done; shown to people */
    int64_t delay_ms;  /* retry, release: not before; >= 0 */
    const once_delivery *message; /* dead, unknown: the message to keep for a person; NULL: without its body */
} once_ending;

/* ---- the verbs; `n` of each, in the caller's order, as one transaction ---- */

/* Asks for the right to run the effects of deliveries[n], all of one scope (`consumer` must not be empty; an empty
 * operation means "handler"). tickets[n] are filled when ONCE_OK comes back.
 *
 *   RUN        run the effect within lease_ms, then settle           BUSY     somebody else does; ask again after
 *              wait_ms
 *   DUPLICATE  finished before; `outcome` and `result` say how       LATER    it failed and waits; ask again after
 *              wait_ms
 *   DEAD       a dead letter; ack                                    UNKNOWN  held until a person decides
 *   CONFLICT   the key was used before with other content            TOO_OLD  older than what is remembered
 *
 * Other content is RUN, once, while every attempt at the key was released or retried: nothing was done, and this takes
 * its place.
 *
 * Errors: E_USAGE (sizes, scope, negative times, fork), E_MESSAGE (an empty key), and those of the store: class RETRY
 * (call again with the same tickets), PAUSE or FATAL. */
ONCE_API int once_claim(once_store *store, const once_scope *scope, const once_delivery *deliveries, size_t n,
                        once_ticket *tickets, once_error *err);

/* Makes the leases end lease_ms from now. ours[i] is false when the claim is somebody else's by now: stop working on
 * it. A ticket that did not answer RUN is not ours. Errors: E_USAGE, and those of the store. */
ONCE_API int once_extend(once_store *store, const once_ticket *tickets, size_t n, int64_t lease_ms, bool *ours,
                         once_error *err);

/* Writes the outcomes. applied[i] is false when the claim is somebody else's by now: do not ack, do not repeat the
 * effect. A retry adds one to the failures; whether the budget is spent is the caller's to decide (then: dead, which
 * makes one dead letter). The message may be acked when this returned ONCE_OK, applied, with any outcome but retry,
 * release and unknown: those are left with the broker, which delivers them again. Errors: E_USAGE (also for a ticket
 * that did not answer RUN), and those of the store: class RETRY: the same call again. */
ONCE_API int once_settle(once_store *store, const once_ticket *tickets, const once_ending *endings, size_t n,
                         bool *applied, once_error *err);

/* Frees the results of the tickets and zeroes them. They may be zero. */
ONCE_API void once_ticket_release(once_ticket *tickets, size_t n);

#ifdef __cplusplus
}
#endif
#endif
