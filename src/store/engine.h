/* The engine: the verbs, for stores that keep entries themselves (src/store/engine/).
 *
 * A driver supplies a storage: it writes and finds entries, lanes, letters and facts inside one transaction. The engine
 * runs the rules of core/entry.h over it, so memory, sqlite, postgres and redis differ only in how they store things.
 *
 * Invariants. Inside a transaction load, lane, lane_head, list and stats see what the transaction has saved. `due`,
 * `lanes_waiting` and `by_token` need not: the engine calls take and sweep only outside of the caller's transactions,
 * and find before the transaction has saved anything.
 *
 * A storage has one transaction at a time. An engine verb that is called outside a transaction opens one, and ends
 * it. */
#ifndef ONCE_STORE_ENGINE_H
#define ONCE_STORE_ENGINE_H

#include "core/clock.h"
#include "store/store.h"

typedef struct once_storage once_storage;

/* How many unfinished entries of one order a storage reads at most, where reading more takes long and gains little: for
 * the time when the last one was seen, because the clock tells it as well; and for the first one of a settled version,
 * because such entries are only judged. */
#define ONCE_LANE_EQUALS 1000

/* The purpose of a batch of requests; a storage may lock, and write ahead, what the verb will most likely need. */
typedef enum once_purpose {
    ONCE_FOR_CLAIM,
    ONCE_FOR_ABSENT, /* only has_none follows */
    ONCE_FOR_ACCEPT,
    ONCE_FOR_SETTLE,
    ONCE_FOR_EXTEND,
    ONCE_FOR_OTHERS
} once_purpose;

/* One page of a list. */
typedef struct once_page {
    size_t max;      /* show so many at most; a storage that cannot continue behind them shows all at once ... */
    once_hash id;    /* ... behind this id, in an order of the storage's own; zero: from the beginning ... */
    uint64_t number; /* ... or, for items with numbers, behind this number; the storage moves both on */
    bool more;       /* set by the storage: it stopped at `max` */
} once_page;

/* The letters that a listing asks for. */
typedef struct once_letter_query {
    once_bytes consumer;
    once_bytes key;               /* with by_key: of this key only */
    bool by_key, heads, only_ids; /* the latter as once_store_ops.letter_heads says */
} once_letter_query;

/* One search of a take that has a filter (core/due_filter.h). */
typedef struct once_due_search {
    once_bytes operation; /* of the entries to find ... */
    bool others;          /* ... or, instead: find entries of no operation in `named` */
    once_bytes *named;
    size_t n_named;
    size_t max;         /* find so many */
    size_t read_max;    /* read so many entries at most, of any operation */
    once_due_mark from; /* begin behind this entry; the storage sets it to the last entry that it read */
    bool end;           /* set by the storage: no due entry is left behind `from` */
    size_t read;        /* set by the storage: how many entries it read */
} once_due_search;

/* The operations of a storage. All but begin run inside a transaction. */
typedef struct once_storage_ops {
    /* From here on the transaction owns what it loads: no one else changes it until commit. Loads the clock anchor. */
    int (*begin)(once_storage *storage, bool write, once_error *err);
    int (*commit)(once_storage *storage,
                  once_error *err); /* durable on ONCE_OK; on failure everything is rolled back */
    void (*rollback)(once_storage *storage);

    /* Each verb first announces its requests; n may be 0. This is a hint, except for a storage with its own clock: such
     * a storage has set now_ms when this returns. May be NULL. */
    int (*prefetch)(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                    once_error *err);
    /* A verb that was its own transaction has failed, for the `tries`-th time. True: nothing of it has happened, the
     * storage has paused, and the engine does it again. NULL: never. */
    bool (*again)(once_storage *storage, int rc, unsigned tries);
    /* The entry, or a blank one with state ABSENT. It stays valid and may be changed until the transaction ends; the
     * same id gives the same pointer. Its bytes belong to the storage. */
    int (*load)(once_storage *storage, once_hash id, once_entry **out, once_error *err);
    /* After prefetch: whether the id certainly has no entry. A message that runs without a claim (core/entry.h) then
     * loads none. False when that is not known. NULL: it never is. */
    bool (*has_none)(const once_storage *storage, once_hash id);
    /* Saves an entry from load that was changed. Bytes it points to are copied before the call returns. State ABSENT
     * deletes the entry. */
    int (*save)(once_storage *storage, once_entry *entry, once_error *err);

    /* The lane as the entry `except`, which is loaded, sees it; without what has expired. Its bytes belong to the
     * storage. */
    int (*lane)(once_storage *storage, once_hash lane, once_hash except, once_lane *out, once_error *err);
    /* Saves the stored part of a lane. Bytes it points to are copied before the call returns. */
    int (*save_lane)(once_storage *storage, once_hash lane, const once_lane *kept, once_error *err);
    /* Id of the unfinished entry with the lowest order, zero if there is none. Of entries with an equal order, the one
     * that was seen first; where their version is settled and they are very many, any one of them. */
    int (*lane_head)(once_storage *storage, once_hash lane, once_hash *out, once_error *err);
    /* When the last of the unfinished entries of this order was seen, 0 if there is none. Where there are many, some
     * may be left out; an entry that left in this transaction may count. */
    int (*lane_equals)(once_storage *storage, once_hash lane, int64_t order, int64_t *seen_ms, once_error *err);
    /* In a transaction that has saved nothing: ids of unfinished entries before this one in its lane, the first `max`
     * of them, and of other entries that occupy the lane, `max` at most; in any order. *count: how many are before it,
     * up to ONCE_BEFORE_COUNTED. */
    int (*lane_before)(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                       uint64_t *count, once_error *err);

    /* Ids of entries of the consumer, with a body, waiting, claimed or unknown, due at or before now, by due time then
     * id. */
    int (*due)(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
               once_error *err);
    /* The same for a search, in the same order: search->max ids at most. An entry that another worker has locked is
     * left out; `from` may pass it. */
    int (*due_of_operations)(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                             once_hash *out, size_t *n, once_error *err);
    /* In a transaction that holds these lanes: ids of their unfinished entries, lane by lane, by order then id; at most
     * `each` of a lane. A storage may leave out a lane that another worker occupies, or whose first entry is neither
     * claimed nor due. NULL: the storage has no `find`. */
    int (*lanes_waiting)(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                         once_hash *out, size_t *n, once_error *err);
    /* Ids of entries of the consumer whose token has this .a, by token: claimed ones, and unknown ones that have a due
     * time. */
    int (*by_token)(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out, size_t *n,
                    once_error *err);
    /* Ids of claimed entries of the consumer that say `hold`, with a body or without, due at or before now. The storage
     * may leave out entries that another transaction has locked, and may include entries that have changed since. */
    int (*lapsed)(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                  once_error *err);
    /* `unique` is the identity of the letter. When a letter with it exists, *fresh = false, and that letter is counted
     * (once__letter_again) unless it has an entry; nothing else is written. */
    int (*letter_put)(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh, once_error *err);
    /* The same for many letters with different identities, for a storage that can write them at once; otherwise NULL.
     * `fresh` NULL: the letters have entries, and may be written as late as commit, so bytes are copied before the call
     * returns. */
    int (*letters_put)(once_storage *storage, const once_letter *letters, const once_hash *uniques, size_t n,
                       bool *fresh, once_error *err);
    /* The caller will read these letters and the entries that died with them. For a storage that can read many at once;
     * otherwise NULL. */
    int (*letters_ahead)(once_storage *storage, const uint64_t *ids, size_t n, once_error *err);
    /* Fills `out` (bytes in `arena`, and `identity`), or sets *found = false. letter_drop drops the letter. */
    int (*letter_get)(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                      once_error *err);
    int (*letter_drop)(once_storage *storage, uint64_t id, once_error *err);
    int (*audit_put)(once_storage *storage, const once_audit *audit, once_error *err);

    /* The operations below may run in a read-only transaction. A visited item is valid until the visitor returns; false
     * from the visitor ends the page. */
    /* Entries of the consumer that are in this state now. The storage may show others as well; the engine leaves them
     * out. */
    int (*list)(once_storage *storage, once_bytes consumer, once_state state, once_page *page, once_entry_visit *visit,
                void *user, once_error *err);
    int (*letters)(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                   void *user, once_error *err); /* by id */
    int (*audits)(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                  once_error *err); /* in the order in which they were written */
    /* Adds to *out (once__stats_add). wait_ms is the time when the first entry is due; it begins as ONCE_NEVER. */
    int (*stats)(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err);
    int (*waiting_size)(once_storage *storage, once_bytes consumer, once_waiting_size *out,
                        once_error *err); /* adds to *out */

    int (*fact_get)(once_storage *storage, const char *name, once_bytes *out, once_arena *arena,
                    once_error *err); /* *out is empty at the call */
    int (*fact_set)(once_storage *storage, const char *name, once_bytes value, once_error *err);
    /* As once_store_ops.fact_count, for a storage whose commit compares the numbers; NULL: the engine reads the fact
     * and compares. */
    int (*fact_count)(once_storage *storage, const char *name, uint64_t least, once_bytes value, once_error *err);
    int (*facts)(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err);
} once_storage_ops;

/* Drivers embed this as the first member of their store. */
struct once_storage {
    once_backend store;
    const once_storage_ops *ops;
    bool own_clock;   /* a server's clock decides: prefetch sets now_ms, and `clock` is not used */
    once_clock clock; /* begin loads it, commit stores it */
    int64_t now_ms;   /* the time of this transaction */
    bool in_tx;       /* the caller opened the transaction with once__engine_begin */
    bool broken;      /* an engine verb failed inside the caller's transaction: commit is refused */
    bool listing;     /* the open transaction is that of a list: reads of its visitor join it */
};

/* A key as error texts show it: printable ASCII, other bytes as '?', shortened. */
#define ONCE_SHOWN_KEY 81
const char *once__shown_key(once_bytes key, char out[ONCE_SHOWN_KEY]);

/* Whether a search looks for entries of this operation. */
bool once__due_search_matches(const once_due_search *search, once_bytes operation);

/* Around each verb: the verb joins the caller's transaction, or gets one of its own. */
int once__verb_begin(once_storage *storage, bool write, once_error *err);
int once__verb_end(once_storage *storage, int rc, once_error *err);

int once__engine_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                       once_arena *arena, once_error *err);
int once__engine_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied,
                        once_error *err);
int once__engine_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours,
                        once_error *err);
int once__engine_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                        size_t n, once_decision *out, once_arena *arena, once_error *err);
int once__engine_absent(once_backend *store, const once_request *const *requests, size_t n, bool *out, once_error *err);
int once__engine_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                      size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena,
                      once_error *err);
int once__engine_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                       size_t *n, once_arena *arena, once_error *err);
int once__engine_find(once_backend *store, once_bytes consumer, const once_request *const *requests, size_t n, bool due,
                      size_t max, once_taken *out, size_t *n_out, bool *rest, once_arena *arena, once_error *err);
int once__engine_begin(once_backend *store, once_error *err);
int once__engine_commit(once_backend *store, once_error *err);
void once__engine_rollback(once_backend *store);
int once__engine_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err);
int once__engine_replay(once_backend *store, uint64_t letter, bool *found, once_error *err);
int once__engine_forget(once_backend *store, once_hash id, bool *found, once_error *err);
int once__engine_get(once_backend *store, once_hash id, once_entry *out, once_arena *arena, once_error *err);

int once__engine_letters_ahead(once_backend *store, const uint64_t *ids, size_t n, once_error *err);
int once__engine_letter_get(once_backend *store, uint64_t letter, once_letter *out, bool *found, once_arena *arena,
                            once_error *err);
int once__engine_letter_drop(once_backend *store, uint64_t letter, bool *found, once_error *err);
int once__engine_discard(once_backend *store, uint64_t letter, int64_t remember_ms, bool *found, once_error *err);
int once__engine_replay_with_body(once_backend *store, uint64_t letter, const once_request *request,
                                  const once_message *message, bool *done, once_error *err);
int once__engine_resolve(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                         once_error *err);
int once__engine_revive(once_backend *store, const once_request *request, const once_message *message, bool *done,
                        once_error *err);
int once__engine_time(once_backend *store, once_store_time *out, once_error *err);
int once__engine_audit(once_backend *store, const once_audit *audit, once_error *err);
int once__engine_look(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                      once_error *err);
int once__engine_outlook(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                         once_error *err);
int once__engine_explain_lane(once_backend *store, once_hash id, once_bytes *out, once_arena *arena, once_error *err);
int once__engine_in_lane(once_backend *store, once_hash id, size_t max, once_in_lane *out, once_arena *arena,
                         once_error *err);

int once__engine_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                      once_error *err);
int once__engine_letters(once_backend *store, once_bytes consumer, uint64_t after, once_letter_visit *visit, void *user,
                         once_error *err);
int once__engine_letter_heads(once_backend *store, once_bytes consumer, uint64_t after, bool only_ids,
                              once_letter_visit *visit, void *user, once_error *err);
int once__engine_letters_of_key(once_backend *store, once_bytes consumer, once_bytes key, once_letter_visit *visit,
                                void *user, once_error *err);
int once__engine_audits(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err);
int once__engine_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err);
int once__engine_waiting_size(once_backend *store, once_bytes consumer, once_waiting_size *out, once_error *err);
int once__engine_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err);
int once__engine_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err);
int once__engine_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err);
int once__engine_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err);

/* The part of once_store_ops that all stores with a storage share. */
#define ONCE_ENGINE_OPS                                                                                                \
    .claim = once__engine_claim, .settle = once__engine_settle, .extend = once__engine_extend,                         \
    .accept = once__engine_accept, .take = once__engine_take, .lapse = once__engine_lapse,                             \
    .begin = once__engine_begin, .commit = once__engine_commit, .rollback = once__engine_rollback,                     \
    .bury = once__engine_bury, .replay_letter = once__engine_replay, .forget = once__engine_forget,                    \
    .letter_get = once__engine_letter_get, .letter_drop = once__engine_letter_drop, .discard = once__engine_discard,   \
    .replay_with_body = once__engine_replay_with_body, .resolve = once__engine_resolve, .revive = once__engine_revive, \
    .audit = once__engine_audit, .audits = once__engine_audits, .get = once__engine_get, .look = once__engine_look,    \
    .outlook = once__engine_outlook, .explain_lane = once__engine_explain_lane, .in_lane = once__engine_in_lane,       \
    .list = once__engine_list, .letters = once__engine_letters, .stats = once__engine_stats,                           \
    .waiting_size = once__engine_waiting_size, .time = once__engine_time, .fact_get = once__engine_fact_get,           \
    .fact_count = once__engine_fact_count, .facts = once__engine_facts

/* For `stats` of a storage: adds `n` entries that are in this state now, the first of which is due at `due_ms`
 * (ONCE_NEVER: none is). */
void once__stats_add(once_stats *stats, once_state state, uint64_t n, int64_t due_ms);

/* Whether an entry of a lane, given by order, seen_ms and id, goes before `other`. */
bool once__lane_before(int64_t order, int64_t seen_ms, once_hash id, const once_entry *other);

/* For `sweep`, inside a transaction: drops those of the ids whose entries have expired and are not finished
 * (once_entry_expires). */
int once__engine_drop(once_storage *storage, const once_hash *ids, size_t n, uint64_t *dropped, once_error *err);

/* The identity of a letter without an entry: two letters with the same one are one letter. */
once_hash once__letter_identity(const once_backend *store, const once_letter *letter);

/* Deep copy into an arena; false when memory is out. */
bool once__entry_copy(once_arena *arena, const once_entry *from, once_entry *to);
bool once__letter_copy(once_arena *arena, const once_letter *from, once_letter *to);
bool once__audit_copy(once_arena *arena, const once_audit *from, once_audit *to);
/* The same letter has arrived once more: updates its count, its last time and its position. */
void once__letter_again(once_letter *kept, const once_letter *again);

#endif
