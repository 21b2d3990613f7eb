/* The store interface. Five verbs work on batches of entries:
 *
 *   claim (requests[n])    -> decisions[n]   atomic per key; the caller's order is kept for equal keys in a batch
 *   settle(settlements[n]) -> applied[n]     false: fenced, another worker has the claim (once_entry_settle)
 *   extend(requests[n])    -> ours[n]        with a lease of 0 the claim ends now
 *   accept(requests[n])    -> decisions[n]   the store keeps the body; attaches it to a claimed entry
 *   take  (n)              -> up to n due entries, claimed, with bodies
 *
 * Other functions: lapse, find, transactions, letters, operators, facts.
 *
 * Promises every driver keeps
 *   - A verb is all or nothing: when it returns a status other than ONCE_OK, either nothing of it happened or it is not
 *     known whether it happened, and repeating it with the same tokens is harmless and gives the answer of the first
 *     time.
 *   - What a verb outside a transaction reported is durable (stores with DURABLE). Inside a transaction it is durable
 *     when commit returned ONCE_OK.
 *   - settle is fenced by the token, in the store.
 *   - Time is the store's: no decision uses a clock of the caller.
 *
 * Inside a transaction (TX) claims need not be written: an entry that is claimed and settled in one transaction is
 * written once, as settled. A transaction sees its own claims and settlements, so a key can be claimed again in a
 * second round.
 *
 * A handle is a once_backend, which a driver makes. Programs never see one: the public once_store (src/lib/lib.h) has a
 * backend and a lock around it.
 *
 * Thread rule: one thread at a time uses a backend; another thread opens its own. No backend survives fork. A
 * transaction belongs to its backend; there is at most one. */
#ifndef ONCE_STORE_STORE_H
#define ONCE_STORE_STORE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/env.h"
#include "base/cancel.h"
#include "core/due_filter.h"
#include "core/entry.h"
#include "core/spec.h"
#include "once/types.h"

typedef struct once_backend once_backend;
typedef struct once_db once_db;

/* Capabilities of a handle. They depend on its driver and on more, for example on the settings of a server. */
enum once_store_bits {
    ONCE_STORE_DURABLE = 1, /* survives the process and a power cut */
    ONCE_STORE_SHARED = 2,  /* many processes */
    ONCE_STORE_TX = 4,      /* begin, commit, rollback; SQL effects in it are atomic */
    ONCE_STORE_OWNS = 8,    /* may hold bodies */
    ONCE_STORE_LANES = 16,
    ONCE_STORE_LIST = 32,
    ONCE_STORE_CLOCK = 64,    /* the clock of the store decides leases, not the worker's */
    ONCE_STORE_PARALLEL = 128 /* transactions of several handles write at the same time; one waits for another only at
                                 a key or lane that both have. Not behind a pooler, which may have one session */
};

/* An entry that take, lapse or find returns. All its bytes live in the caller's arena. */
typedef struct once_taken {
    once_request request; /* scope, key, id, fingerprint, token, lane, run and at are set; the caller sets lease,
                           * remember, hold and natural */
    once_scope scope;     /* request.scope points to it */
    once_message message;
    once_decision decision; /* RUN, or WAITING from find: to be processed. STALE, DUPLICATE, CONFLICT (a letter) or
                             * UNKNOWN (`lapsed`): take or lapse has settled it, and the caller only counts it */
} once_taken;

/* A dead letter: a message that no worker will process, kept for an operator. The store writes it when an entry dies,
 * when other content replaces a waiting message, and in bury. Time never drops it. */
typedef struct once_letter {
    uint64_t id;     /* the store assigns it; 0 in a letter that is to be written */
    once_hash entry; /* zero: the letter has no entry (malformed, conflict, too old) */
    once_scope scope;
    once_bytes key; /* may be empty */
    once_message message;
    once_bytes reason;
    once_answer kind; /* DEAD, CONFLICT, TOO_OLD or CUT. Stored as a number: plus ONCE_LETTER_NEW_KEY unless old_key
                       * (so letters from before that bit read as old_key), plus ONCE_LETTER_MAYBE if maybe_done */
    uint32_t attempt, failures;
    int64_t seen_ms, buried_ms;
    uint64_t count;  /* without an entry: how many deliveries made this letter, repeated ones included; with an entry:
                      * 1. When the letter is written, 0 counts as 1 */
    int64_t last_ms; /* the time of the last of these deliveries; message.at is its position */
    once_bytes history; /* the history of the entry that died */
    bool old_key;       /* as once_entry.old_key: when the letter is replayed, its message keeps its old idempotency
                         * key */
    bool maybe_done;    /* as once_entry.maybe_done: an attempt may have had its effect. Letters of older versions lack
                      * this bit; their entries have it */
    /* Only of a CONFLICT letter that is to be written: the id of its key, and the fingerprint of its content. Zero: the
     * store uses `key` and the body instead. */
    once_hash key_id, fingerprint;
    /* Set by letter_get: what makes two letters the same one. For a letter without an entry this is also the id of the
     * entry that records that the letter was discarded. */
    once_hash identity;
} once_letter;

enum { ONCE_LETTER_NEW_KEY = 64, ONCE_LETTER_MAYBE = 128 };
_Static_assert((int)ONCE_ANSWERS <= (int)ONCE_LETTER_NEW_KEY, "kinds are below their marks");

static inline unsigned once__letter_kind_write(const once_letter *l)
{
    return (unsigned)l->kind + (l->old_key ? 0 : ONCE_LETTER_NEW_KEY) + (l->maybe_done ? ONCE_LETTER_MAYBE : 0);
}
static inline bool once__letter_kind_read(int64_t kept, once_letter *l)
{
    const int64_t kind = kept & ~(int64_t)(ONCE_LETTER_NEW_KEY | ONCE_LETTER_MAYBE);
    l->old_key = !(kept & ONCE_LETTER_NEW_KEY);
    l->maybe_done = kept & ONCE_LETTER_MAYBE;
    l->kind = (once_answer)kind;
    return kind < ONCE_ANSWERS && kept >= 0;
}

/* One operator action: what was done, and by whom. It is written in the transaction of the action, and never
 * dropped. */
typedef struct once_audit {
    int64_t time_ms; /* the store's time; set by the store */
    once_bytes consumer;
    once_bytes who;  /* "user@host:pid" */
    once_bytes what; /* "replay" (with "--force", "--body" or both), "discard", "resolve", "forget", "confirm-clock",
                        "repair" */
    once_bytes key;  /* may be empty */
    uint64_t letter; /* 0: none */
    once_bytes note;
    once_bytes body; /* the body that the action replaced; may be empty */
} once_audit;

/* Counts of one consumer, by the state of its entries now (once_entry_state_at). */
typedef struct once_stats {
    uint64_t waiting, claimed, unknown, dead; /* dead: letters */
    int64_t wait_ms; /* how long until the first entry is due: of the waiting ones with a body, the claimed ones, and
                      * the unknown ones that will be looked up. 0: one is due now. ONCE_NEVER: no entry will become
                      * due; only the source can redeliver a message that waits without a body */
} once_stats;

typedef struct once_sweep_result {
    uint64_t dropped;
    bool more;        /* call again: the step was bounded */
    bool busy;        /* nothing was done, because another process is sweeping and will finish */
    int64_t pause_ms; /* with more: pause so long before the next call and leave the store to others; 0: no pause is
                       * needed */
} once_sweep_result;

/* The current time of a store. */
typedef struct once_store_time {
    int64_t now_ms;
    bool doubted; /* after a reboot the wall clock was too far ahead to be believed (core/clock.h) */
} once_store_time;

typedef struct once_store_options {
    size_t size;         /* sizeof(once_store_options) */
    const once_env *env; /* NULL: the real one */
    bool create;         /* make what is missing; otherwise a missing store is an error */
    bool readonly;
    const char *sqlite_vfs; /* tests: the VFS to open the file with */
    int busy_ms;            /* how long to wait for other processes; 0: the default, 10 s */
    /* For a caller that retries failed calls at its own pace: a verb then tries once to reach a server that is
     * unreachable, and stops waiting for a server that does not answer when `cancel.asked` returns true. Either way the
     * verb fails with ONCE_E_UNAVAILABLE. */
    once_cancel cancel;
    once_bytes consumer; /* the consumer that opens the store, which a server may show; may be empty. Not copied */
} once_store_options;

/* What a transaction will do with a message. */
typedef enum once_touch_kind {
    ONCE_TOUCH_CLAIM, /* claim its key, and most likely settle it */
    ONCE_TOUCH_ACCEPT,
    ONCE_TOUCH_HELD, /* run the effect of a claim that is there in this transaction, and settle it */
    ONCE_TOUCH_KEEP, /* extend or settle a claim that is there; no effect runs */
    ONCE_TOUCH_LANE  /* its effect is outside, and perhaps no slot is free: only its lane is locked now */
} once_touch_kind;

typedef struct once_touch {
    const once_request *request;
    once_touch_kind kind;
} once_touch;

/* Where an entry stands in its lane. */
typedef struct once_in_lane {
    once_hash lane; /* zero: the entry has no lane, or has finished */
    bool versioned;
    int64_t version;
    bool gap; /* the entry waits for these versions, which have not arrived */
    int64_t missing_from, missing_to;
    const once_entry *before; /* of a waiting entry: the first entries that it waits for, as they are now: in front of
                               * it, being processed, or dead and blocking it */
    size_t n;
    uint64_t count; /* how many there are; ONCE_BEFORE_COUNTED: that many or more */
} once_in_lane;

#define ONCE_BEFORE_COUNTED 1000

typedef bool once_entry_visit(void *user, const once_entry *entry); /* false ends the listing */
typedef bool once_letter_visit(void *user, const once_letter *letter);
typedef bool once_audit_visit(void *user, const once_audit *audit);
typedef bool once_fact_visit(void *user, once_bytes name, once_bytes value);

#define ONCE_FACT_NAME (ONCE_NAME_MAX + 40) /* room for a word, the name of a consumer and the terminating zero */

typedef struct once_store_ops {
    const char *scheme; /* "sqlite" */
    uint32_t batch_max; /* the most messages of a transaction, for a server that does nothing else during one; 0: no
                         * bound */
    const char *(*schema)(void); /* the SQL that creates its tables; NULL: it needs none */

    /* `rest` is the URL behind "scheme:". */
    int (*open)(const char *rest, const once_store_options *options, once_backend **out, once_error *err);
    void (*close)(once_backend *store);

    /* The five verbs. Their results point into `arena`. */
    int (*claim)(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                 once_arena *arena, once_error *err);
    int (*settle)(once_backend *store, const once_settlement *settlements, size_t n, bool *applied, once_error *err);
    int (*extend)(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err);
    int (*accept)(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                  size_t n, once_decision *out, once_arena *arena, once_error *err);
    /* Whether each request, which asks to run without a claim (core/entry.h), finds no entry, so that a claim would
     * answer RUN and change nothing. False: it has one, or that is not known without a search; then it must be claimed.
     * NULL: this store never knows. */
    int (*absent)(once_backend *store, const once_request *const *requests, size_t n, bool *out, once_error *err);
    /* Claims due entries of the consumer: up to `max`, by due time; the i-th gets the token {token.a, token.b + i}.
     * With a filter it claims no more of an operation than its share has room for (core/due_filter.h); NULL: any.
     * `again` repeats a take whose reply was lost, with the same token, `max` and filter: it returns first the
     * entries that the lost take claimed. Entries that the lost take finished (STALE, DUPLICATE, CONFLICT, UNKNOWN) are
     * not reported again, so the caller's count of what waits would stay too high. For this reason *n is set on
     * failure, too: to the number of entries that may have been changed; 0: none. */
    int (*take)(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms, size_t max,
                once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena, once_error *err);

    /* Turns expired claims of entries with `hold` into unknowns: at most `max`, with a body or without, each reported
     * once (`lapsed`). Skips claims of the run `except_run`, which may still work on them. On failure *n is as for
     * take. Outside of transactions. */
    int (*lapse)(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out, size_t *n,
                 once_arena *arena, once_error *err);

    /* Lists, without claiming, the waiting entries that could run in this transaction: the entries of the requests'
     * lanes that can run now, or as soon as the requests themselves have run, in the order of their lane. With `due`
     * also the other due entries of the consumer, and those that wait behind them. The caller claims them in the same
     * transaction, as if they had been delivered again. *rest: something is due that only `take` can handle. NULL: this
     * store has no find. */
    int (*find)(once_backend *store, once_bytes consumer, const once_request *const *requests, size_t n, bool due,
                size_t max, once_taken *out, size_t *n_out, bool *rest, once_arena *arena, once_error *err);

    int (*begin)(once_backend *store, once_error *err);
    /* In a transaction, before all else: announces a batch of a consumer, and what the batch will touch. A store with
     * other writers locks all of it now, in one order for all batches (entries that the batch `finds` later are locked
     * without waiting): so batches do not deadlock on it, and wait for each other at most once. `locks` are the user's
     * names for what its effects will touch, sorted; the store locks them first. After a deadlock of effects the
     * batches of a consumer in which effects run take turns for a while. NULL: the store has no other writers during a
     * transaction. After a failure the caller rolls back. */
    int (*expect)(once_backend *store, const once_touch *touched, size_t n, bool finds, const uint64_t *locks,
                  size_t n_locks, once_error *err);
    int (*commit)(once_backend *store, once_error *err);
    void (*rollback)(once_backend *store);
    once_db *(*db)(once_backend *store); /* TX: the connection that atomic SQL effects use */
    /* One plain sentence for `once check`: what this server keeps, and what can be lost nevertheless. May be NULL. */
    void (*describe)(once_backend *store, char *out, size_t size);
    /* The same for a condition that may keep work from being done now, with what to do about it. False: there is none.
     * May be NULL. */
    bool (*doubt)(once_backend *store, char *out, size_t size);
    /* Outside of a transaction. Fails if the store could be opened but cannot be worked with now; the error says why,
     * and what to do. May be NULL. */
    int (*inspect)(once_backend *store, once_error *err);

    /* *fresh = false: the letter exists already and was counted, or it was discarded. */
    int (*bury)(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err);
    int (*replay_letter)(once_backend *store, uint64_t letter, bool *found, once_error *err);
    int (*forget)(once_backend *store, once_hash id, bool *found, once_error *err);

    /* In a transaction: the caller will read these letters, one after the other. A store that is a server reads them,
     * and the entries that died with them, in few round trips. NULL: reading ahead gains nothing. */
    int (*letters_ahead)(once_backend *store, const uint64_t *letters, size_t n, once_error *err);
    /* For operators; in a transaction together with `audit`. *found or *done = false: there is nothing that the
     * operation applies to. */
    int (*letter_get)(once_backend *store, uint64_t letter, once_letter *out, bool *found, once_arena *arena,
                      once_error *err);
    int (*letter_drop)(once_backend *store, uint64_t letter, bool *found, once_error *err);
    /* Drops the letter, and rejects the entry that died with it. A letter without an entry leaves a rejected entry
     * under its own identity, remembered for remember_ms: until then `bury` does not write the letter again. */
    int (*discard)(once_backend *store, uint64_t letter, int64_t remember_ms, bool *found, once_error *err);
    /* As replay_letter, but with another message of the same key; not done when that message would have another place
     * in its lane. Drops the letter. */
    int (*replay_with_body)(once_backend *store, uint64_t letter, const once_request *request,
                            const once_message *message, bool *done, once_error *err);
    int (*resolve)(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                   once_error *err);
    /* `--force`: puts a finished key back to waiting, with this message. */
    int (*revive)(once_backend *store, const once_request *request, const once_message *message, bool *done,
                  once_error *err);
    int (*audit)(once_backend *store, const once_audit *audit, once_error *err);
    int (*audits)(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err);

    int (*sweep)(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);

    /* The entry in the state that it has now (once_entry_look). */
    int (*get)(once_backend *store, once_hash id, once_entry *out, once_arena *arena,
               once_error *err); /* ABSENT if none */
    /* The decision that a delivery would get now. Writes nothing. */
    int (*look)(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                once_error *err);
    /* What the lane would decide about this message if its letter were replayed now (once_entry_outlook). Writes
     * nothing. Called in the transaction that replays the letter. */
    int (*outlook)(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                   once_error *err);
    /* A sentence for operators: what in its lane the entry waits for, or that the lane waits for the entry. Empty:
     * neither. */
    int (*explain_lane)(once_backend *store, once_hash id, once_bytes *out, once_arena *arena, once_error *err);
    /* The same as data, with the first `max` of the entries before it. Outside of transactions. */
    int (*in_lane)(once_backend *store, once_hash id, size_t max, once_in_lane *out, once_arena *arena,
                   once_error *err);
    int (*list)(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                once_error *err);
    /* Letters with ids above `after`, in their order. */
    int (*letters)(once_backend *store, once_bytes consumer, uint64_t after, once_letter_visit *visit, void *user,
                   once_error *err);
    /* The same for a caller that does not read the messages yet: headers, body and history may be empty, and with
     * `only_ids` everything but the id. A server then sends less. NULL: this gains nothing. */
    int (*letter_heads)(once_backend *store, once_bytes consumer, uint64_t after, bool only_ids,
                        once_letter_visit *visit, void *user, once_error *err);
    /* Letters of the consumer with this key, in any tenant and operation, in the form of `letter_heads`. NULL: the
     * store cannot find letters by key. */
    int (*letters_of_key)(once_backend *store, once_bytes consumer, once_bytes key, once_letter_visit *visit,
                          void *user, once_error *err);
    int (*stats)(once_backend *store, once_bytes consumer, once_stats *out, once_error *err);
    /* The size of the stored work: messages with their bodies that wait or are claimed. The store loads none of them,
     * but counts them, which takes time where there are many. A driver may count what it stores of a message beside its
     * body, too. Outside of transactions. */
    int (*waiting_size)(once_backend *store, once_bytes consumer, once_waiting_size *out, once_error *err);

    /* Reads everything and compares it with its checksums; calls `damage` with a text for each damaged part. NULL: the
     * store has nothing of its own to compare. */
    int (*verify)(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err);
    const char *verified; /* what `once check --deep` prints when it found no damage, if something could not be checked;
                           * NULL: the usual text */

    /* Repairs a bounded part of the store behind *after, a position that only the driver reads: restores lost parts
     * that can be derived from the remaining entries and lanes. Repaired entries suppress as before, and show which of
     * their parts are unknown. In a transaction, together with `audit`; ONCE_E_ABORTED: another process was quicker,
     * repeat the same part. NULL: the store cannot be repaired. */
    int (*repair)(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err);

    int (*time)(once_backend *store, once_store_time *out,
                once_error *err); /* the time of the open transaction, if there is one; writes nothing */
    /* An operator confirms the wall clock of this host: it becomes the time of the store, ahead of or behind the time
     * before. When the time goes back, leases and due times of unfinished entries keep their distance, and finished
     * entries are remembered longer. In a transaction, together with `audit`. NULL: a server's clock decides, or the
     * store keeps nothing. */
    int (*confirm_time)(once_backend *store, once_error *err);

    /* Small named facts: the key spec of a consumer, whether its last run ended cleanly. An empty value deletes. A name
     * is shorter than ONCE_FACT_NAME. */
    int (*fact_get)(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err);
    int (*fact_set)(once_backend *store, const char *name, once_bytes value, once_error *err);
    /* A fact with a number that only grows, inside a transaction: `value` begins with it (once__number_put). When the
     * stored number is below `least`, or when none is stored and least > 0, the store has lost what it had
     * acknowledged: then commit fails with ONCE_E_FORGOTTEN, and nothing of the transaction happens. */
    int (*fact_count)(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err);
    /* Facts whose names begin with `prefix`, in no order; outside of transactions. The visitor does not call the
     * store. */
    int (*facts)(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err);
} once_store_ops;

/* A handle of a store. Drivers embed this as their first member. */
struct once_backend {
    const once_store_ops *ops;
    unsigned bits; /* enum once_store_bits; set when it is opened */
    const once_env *env;
    once_secret secret;         /* keys identities and seeds fingerprints; made with the store */
    char who[ONCE_WHO_MAX + 1]; /* the process that has the handle; set by once__store_sign */
    void (*progress)(void *user,
                     uint64_t read); /* may be NULL; called now and then with how much a long reading (`verify`) has
                                      * read */
    void *progress_user;
};

/* "sqlite:payments.db". Refuses unknown schemes, and schemes that are not in this build, by name. */
int once__store_open(const char *url, const once_store_options *options, once_backend **out, once_error *err);
/* For drivers, when they make a handle: sets `who` to this process, in characters that fit in a line of text. */
void once__store_sign(once_backend *store);
/* The URL as logs and texts may show it: without its password. */
bool once__store_show(const char *url, once_buf *out);
/* How to write the stores of this build, for errors about a wrong URL. */
enum { ONCE_STORE_KINDS = 160 };
const char *once__store_kinds(char out[ONCE_STORE_KINDS]);

/* Properties of a scheme, which are there before its library is loaded. */
enum {
    ONCE_DRIVER_HERE = 1, /* the store is in our own process, or a file of this host: no server is asked */
    ONCE_DRIVER_FILE = 2, /* behind the colon is a path */
    ONCE_DRIVER_NEW = 4,  /* each open makes a new store, so there is nothing to remember of it */
    ONCE_DRIVER_ROLE = 8  /* the role that connects may decide where the store is */
};

/* A driver of this build: linked in, or a part of a module (base/module.h). */
typedef struct once_store_driver {
    const char *scheme;
    const char *summary; /* one line for `once version` and the docs */
    const char *module;  /* NULL: the driver has no library of its own, and is `ops` */
    const once_store_ops *ops;
    unsigned bits;
    const char *url; /* the whole URL if nothing follows the colon ("memory:"; "memory" is accepted, too); else NULL */
    const char *write;    /* how to write its URL, for errors about a wrong one; NULL: errors do not propose it */
    const char *alias;    /* another name of the scheme; may be NULL */
    const char *place;    /* another scheme that reaches the same store: "redis" for "rediss"; NULL: none */
    const char *password; /* the environment variable that its library reads a password from; may be NULL */
} once_store_driver;

const once_store_driver *once__store_drivers(size_t *n);
const once_store_driver *once__store_find(const char *scheme, size_t len); /* NULL: it is not in this build */
unsigned once__store_driver_bits(once_bytes url); /* or of a scheme; 0: it is not in this build */
/* All documented schemes, whether or not this build has them; NULL behind the last. */
const char *once__store_scheme(size_t i);
int once__store_load(const once_store_driver *driver, const once_store_ops **out, once_error *err);
/* Whether the letter was written for this entry, and not for an earlier entry with the same key that was forgotten
 * since. */
bool once__letter_is_of(const once_letter *letter, const once_entry *entry);

/* Numbers in facts: the highest byte first, so that bytes compare as numbers do. */
enum { ONCE_NUMBER_SIZE = 8 };
static inline void once__number_put(unsigned char out[ONCE_NUMBER_SIZE], uint64_t number)
{
    for (int i = 0; i < ONCE_NUMBER_SIZE; i++) out[i] = (unsigned char)(number >> (8 * (ONCE_NUMBER_SIZE - 1 - i)));
}
static inline uint64_t once__number_get(const void *from)
{
    const unsigned char *bytes = from;
    uint64_t number = 0;
    for (int i = 0; i < ONCE_NUMBER_SIZE; i++) number = number << 8 | bytes[i];
    return number;
}
/* For drivers: whether a fact with a number may replace the stored one. */
static inline bool once__fact_may_follow(once_bytes there, uint64_t least)
{
    return least == 0 || (there.len >= ONCE_NUMBER_SIZE && once__number_get(there.data) >= least);
}
int once__store_forgot(once_error *err); /* ONCE_E_FORGOTTEN, in words */

/* How often an effect outside of the store was started again after an attempt that may have had its effect: a number
 * for each consumer that is never dropped. `n`, which may be below 0, is added in the open transaction. */
int once_repeats_read(once_backend *store, once_bytes consumer, once_arena *arena, int64_t *out, once_error *err);
int once_repeats_add(once_backend *store, once_bytes consumer, int64_t n, once_arena *scratch, once_error *err);
/* The same for versions that did not arrive within gap.wait. */
int once_given_up_read(once_backend *store, once_bytes consumer, once_arena *arena, int64_t *out, once_error *err);
int once_given_up_add(once_backend *store, once_bytes consumer, int64_t n, once_arena *scratch, once_error *err);
/* Tells a store from another one that was made in its place: 16 hex digits derived from the store's secret, which they
 * do not reveal. */
#define ONCE_STORE_ID 17
void once__store_id(const once_backend *store, char out[ONCE_STORE_ID]);
void once__store_close(once_backend *store); /* NULL is fine; an open transaction is rolled back */

extern const once_store_ops once__store_memory;
extern const once_store_ops once__store_sqlite;
/* Of modules. */
extern const once_store_ops once__store_postgres;
extern const once_store_ops once__store_redis, once__store_rediss;

#endif
