/* The Redis store from the inside. docs/redis.md explains why it is built this way.
 *
 * A transaction has three steps:
 *
 *   1. It reads what it needs. The commands of a round trip go out together, and few round trips are needed.
 *   2. The rules of core/entry.c decide, on working copies in memory.
 *   3. One Lua script (script.c) compares what was read with what the server has now. When nothing has changed it
 *      writes everything; otherwise it writes nothing, and the engine runs the transaction again.
 *
 * All keys of a store begin with {NAME}. So they are in one slot of a cluster, and one script can write all of them.
 *
 *   {NAME}head            hash: key_secret; format; letters: the number of the last dead letter; commits: a number that
 *                         every commit raises; upgrading: the change from an older format has not ended. `secret` is
 *                         ONCE_REDIS_NO_SECRET, which stops programs of format 1: they compare it in every transaction
 *   {NAME}e ID            string: an entry
 *   {NAME}l ID            string: a lane
 *   {NAME}o ID            sorted set: the unfinished entries of a lane (once_redis_member), all with score 0
 *   {NAME}i KIND CONSUMER sorted set: ids of open entries by due time; enum once_redis_index lists the kinds
 *   {NAME}w               set: consumers that have, or had, entries that wait without a body
 *   {NAME}c CONSUMER      sorted set: groups of claims without a body, by the number of claims that each still has. A
 *                         group is what one commit claimed with one due time: due_ms (8, big-endian), stamp (8)
 *   {NAME}g CONSUMER      hash: group -> ids of the entries that were claimed in it. Some may have left it since
 *   {NAME}L NUMBER        string: a dead letter
 *   {NAME}U               hash: what makes two dead letters the same one -> the number of the letter
 *   {NAME}d CONSUMER      sorted set: the numbers of the consumer's dead letters
 *   {NAME}n               hash: names that finished entries refer to (names.c)
 *   {NAME}f               hash: facts
 *   {NAME}a CONSUMER      list: audit records
 *   {NAME}turn            string that expires soon: a worker lost a race and goes first now (storage.c)
 *   {NAME}trial           only while a store is opened: commands are tried on it (script.c)
 *
 * ID is 16 bytes. record.h describes the values of strings and the members of lists and hashes. */
#ifndef ONCE_STORE_REDIS_REDIS_H
#define ONCE_STORE_REDIS_REDIS_H

#include "base/table.h"
#include "store/engine.h"
#include "store/lane_record.h"
#include "store/redis/link.h"
#include "store/redis/record.h"

/* The indexes of open entries. An entry is in one at most. */
enum once_redis_index {
    ONCE_REDIS_NOWHERE = 0,
    ONCE_REDIS_WAITING = 'W',      /* waiting, with a body: `take` looks here */
    ONCE_REDIS_WAITING_BARE = 'w', /* waiting, without a body; by the time at which it expires */
    ONCE_REDIS_CLAIMED = 'C',
    ONCE_REDIS_CLAIMED_BARE = 'c', /* claimed, without a body: in groups instead of an index, because many come and go
                                    * together and nobody takes them by time */
    ONCE_REDIS_UNKNOWN = 'u',      /* by the time at which the other side is asked about it, or at which the worker
                                    * that asks must have answered; or never */
    ONCE_REDIS_DEAD = 'x'
};

/* An entry that the transaction has read. */
typedef struct once_redis_slot {
    once_entry entry;  /* the working copy */
    once_bytes stored; /* the value as it was read; empty: absent */
    once_redis_finished names;
    bool dirty;
    bool assumed; /* not read: the commit compares it even when it does not write it (claim_cache.c) */
    /* its place in the indexes, as it was read */
    char index;
    once_bytes consumer;
    int64_t due_ms;
    /* its place in the lanes of this transaction */
    bool in_lane;
    once_hash lane;
    int64_t order, seen_ms;
} once_redis_slot;

/* The place of an entry in its lane: a member of the sorted set {NAME}o. All scores are 0, so the server sorts members
 * by their bytes. Numbers are big-endian:
 *
 *   order (8), 8 bytes 0xff, seen_ms (8), id (16)
 *   order (8), id (16)   as older programs wrote it. It sorts before the newer members of its order */
typedef struct once_redis_member {
    int64_t order;
    int64_t seen_ms; /* ONCE_REDIS_SEEN_BEFORE: an older program wrote the member */
    once_hash id;
} once_redis_member;

#define ONCE_REDIS_SEEN_BEFORE INT64_MIN
enum { ONCE_REDIS_MEMBER = 40, ONCE_REDIS_OLD_MEMBER = 24 };

/* A lane that the transaction has read. Of a long lane only both ends are read. */
typedef struct once_redis_lane {
    once_hash id;
    once_bytes stored;
    int64_t version, expires_ms; /* ONCE_LANE_NO_VERSION; 0: nothing is kept */
    once_bytes record;           /* lane_record.h */
    once_hash *claimed;          /* entries that occupy it (once_state_occupies) */
    size_t n_claimed, claimed_room;
    once_redis_member *known; /* sorted; `hidden` members were not read: they are between known[hole - 1] and
                               * known[hole] */
    size_t n_known, known_room, hole, hidden;
    struct once_redis_step {
        once_redis_member member;
        bool added;
    } * steps; /* the changes of this transaction, in order */
    size_t n_steps, steps_room;
    size_t window; /* how many members of each end were asked for */
    bool dirty;
} once_redis_lane;

/* A fact that was read or written in the transaction. */
typedef struct once_redis_fact {
    const char *name;
    bool read, written;
    once_bytes was, value;
} once_redis_fact;

/* A claim that this handle wrote. The server has it unchanged unless another worker has written it since. */
typedef struct once_redis_cached_claim {
    once_hash id;
    once_token token;
    once_bytes value; /* empty: no longer cached */
} once_redis_cached_claim;

/* A dead letter that the commit writes: a new one, or one whose delivery is counted again. */
typedef struct once_redis_letter {
    once_hash unique;
    once_letter letter;
    once_bytes stored; /* the value as it was read; empty: new */
} once_redis_letter;

typedef struct once_redis_name {
    uint64_t id;
    once_bytes value;
    bool written; /* the server has it */
} once_redis_name;

#define ONCE_REDIS_LIST(type)                                                                                          \
    struct {                                                                                                           \
        type *at;                                                                                                      \
        size_t n, room;                                                                                                \
    }

/* Values that the commit compares and writes: arguments of the script, by columns (script.c). */
typedef struct once_redis_values {
    once_buf keys, was, now, how;
    size_t n;
} once_redis_values;

/* The other parts of the script's keys and arguments, in the order of their keys. The script may touch only keys that
 * are declared in one of them (script.c). */
enum once_redis_part_kind {
    ONCE_REDIS_FIELDS, /* fields of hashes that are compared */
    ONCE_REDIS_NEW,    /* values of keys that must not exist */
    ONCE_REDIS_COMMANDS,
    ONCE_REDIS_REMOVALS, /* commands that may delete their key: they come last */
    ONCE_REDIS_DROPPED,  /* dead letters that are deleted */
    ONCE_REDIS_GROUPS,   /* groups that claims leave */
    ONCE_REDIS_LETTERS,  /* dead letters that are new */
    ONCE_REDIS_PARTS
};

typedef struct once_redis_part {
    once_buf keys, args;
    size_t n, n_keys, n_args;
} once_redis_part;

/* Fields of one hash that the commit compares, encoded as arguments. */
typedef struct once_redis_expected {
    once_buf names, values;
    size_t n;
} once_redis_expected;

typedef struct once_redis_audit {
    once_bytes consumer, value;
} once_redis_audit;

typedef struct once_redis_dropped {
    uint64_t id;
    once_hash unique;
    once_bytes consumer;
} once_redis_dropped;

/* A dead letter that was read before the engine asks for it; empty: there is none with this number. */
typedef struct once_redis_ahead {
    uint64_t id;
    once_bytes value;
} once_redis_ahead;

typedef struct once_redis {
    once_storage storage;
    once_redis_url url;
    once_redis_link *link;
    once_redis_pipe pipe;
    char prefix[ONCE_REDIS_NAME + 2]; /* "{NAME}" */
    char sha[41];                     /* of the commit script */
    unsigned connections;             /* the connection that `names` were read from */
    unsigned looked_at;               /* cluster: the connection on which all keys were found on one node */
    int64_t asked_ms;                 /* cluster: when the last transaction began or ended */
    once_redis_waiting waiting;
    unsigned counted_on;  /* the connection on which the number of a worker was compared */
    bool durable;         /* the server keeps what it acknowledges, as its settings say; read with every commit */
    char durability[200]; /* the same in words, for `once check` */
    int wait_ms;          /* how long a commit waits for replicas */
    int format;           /* of the stored values; an older one only in a handle that does not write */
    bool upgrading;       /* a change from an older format has begun and not ended */
    uint64_t commits;     /* the highest number of a commit that was read: a lower one means that commits were lost */
    uint64_t letters;     /* the number of the last dead letter when the transaction began */
    bool open, writes;    /* a transaction is open; it may write */
    bool conflict;        /* the last commit found that what it had read was changed */
    unsigned losses;      /* conflicts in a row */
    bool has_turn;
    bool mends; /* a repair is under way: what a lane has lost is no error */
#ifdef ONCE_TEST_BUILD
    bool test_clock; /* the test's clock decides; it is kept in the store, as embedded stores do */
    once_clock stored_clock;
    char sweep_from[24];
#endif

    /* the transaction */
    once_arena arena;
    ONCE_REDIS_LIST(once_redis_slot *) slots;
    once_table slot_map;
    ONCE_REDIS_LIST(once_redis_lane *) lanes;
    once_table lane_map;
    ONCE_REDIS_LIST(once_redis_fact) facts;
    ONCE_REDIS_LIST(once_redis_letter) puts;     /* dead letters that the commit writes */
    ONCE_REDIS_LIST(once_redis_dropped) dropped; /* dead letters that it deletes */
    once_table dropped_map, dropped_uniques;     /* their positions, by number and by what makes them unique */
    ONCE_REDIS_LIST(once_redis_audit) audits;
    ONCE_REDIS_LIST(once_redis_ahead) ahead;
    size_t ahead_at;
    uint64_t stamp; /* of everything that this transaction writes */
    bool assumed;   /* an entry was assumed instead of read */

    /* arguments of the commit script, encoded */
    once_redis_values values[2]; /* of keys that exist: small values, large values */
    once_redis_part parts[ONCE_REDIS_PARTS];
    once_redis_expected expected[2]; /* of "f" and "U" */
    once_redis_part *command;        /* the part in which the last command was begun ... */
    size_t owed;                     /* ... and how many of its arguments must still be put */
    once_buf value, key;             /* scratch: the value or key being written */

    ONCE_REDIS_LIST(once_redis_cached_claim) cached;
    size_t cached_live;    /* cached claims that still have a value */
    once_table cached_map; /* positions */
    once_arena cached_arena;
    unsigned new_batches; /* batches of claims in a row in which every key was new */

    ONCE_REDIS_LIST(once_redis_name) names;
    once_table name_map; /* positions */
    once_arena name_arena;
} once_redis;

#define ONCE_REDIS_ROOM(list) once__redis_grow(&(list).at, (list).n, &(list).room, sizeof *(list).at)
bool once__redis_grow(void *list_at, size_t n, size_t *room, size_t size);

static inline once_redis *once__redis_of(once_storage *storage) { return (once_redis *)storage; }
int once__redis_nomem(once_error *err);
int once__redis_damaged(const once_redis *r, const char *what, once_error *err);
int once__redis_damaged_key(const once_redis *r, once_bytes key,
                            once_error *err); /* the key has another type, or its value cannot be read */
int once__redis_damaged_id(const once_redis *r, const char *kind, once_hash id, once_error *err);
int once__redis_damaged_letter(const once_redis *r, uint64_t number, once_error *err);
int once__redis_conflict(once_redis *r, once_error *err);

/* --- keys --- */

/* The field `secret` of the head, which programs of format 1 compare in every transaction: with this value none of them
 * does anything in the store. It is as long as a secret, so that such a program reports the newer format when it
 * starts. */
#define ONCE_REDIS_NO_SECRET "format 2 or more"

enum { ONCE_REDIS_KEY = ONCE_REDIS_NAME + 40 };
/* Writes "{NAME}", kind and rest to `out`, and returns the length. */
size_t once__redis_key(const once_redis *r, const char *kind, const void *rest, size_t len, char out[ONCE_REDIS_KEY]);
size_t once__redis_id_key(const once_redis *r, const char *kind, once_hash id, char out[ONCE_REDIS_KEY]);
void once__redis_put_id_key(once_redis *r, const char *kind, once_hash id);              /* as an argument of r->pipe */
void once__redis_put_key(once_redis *r, const char *kind, const void *rest, size_t len); /* the rest may be long */
int once__redis_ask(once_redis *r, once_error *err); /* exchanges r->pipe, which only reads: it may be sent twice */

/* --- names (names.c) --- */

uint64_t once__redis_name_of(once_redis *r, once_bytes value); /* 0: out of memory */
const once_redis_name *once__redis_name_find(once_redis *r, uint64_t id);
bool once__redis_name_add(once_redis *r, uint64_t id, once_bytes value, bool written);
void once__redis_names_forget(once_redis *r);

/* --- entries and lanes of the transaction (load.c, lanes.c) --- */

/* Makes a slot without reading the entry: its value is assumed to be `value`; empty: that there is none. */
int once__redis_assume(once_redis *r, once_hash id, once_bytes value, once_error *err);
/* Reads everything that claiming, settling... these entries and lanes needs, in two or three round trips. */
int once__redis_prefetch(once_redis *r, const once_hash *ids, size_t n, const once_hash *lanes, size_t n_lanes,
                         bool heads, once_error *err);
int once__redis_slot(once_redis *r, once_hash id, once_redis_slot **out,
                     once_error *err); /* reads it unless it was read */
char once__redis_index_of(const once_entry *entry);
/* Reads an entry from its value, without making a slot. Its names may cost a round trip, which uses r->pipe. */
int once__redis_read_value(once_redis *r, once_bytes value, once_hash id, once_entry *out, once_arena *arena,
                           once_error *err);

int once__redis_lane(once_redis *r, once_hash id, once_redis_lane **out, once_error *err);
void once__redis_lane_ask(once_redis *r, once_hash id, size_t window); /* appends five commands to r->pipe */
int once__redis_lane_read(once_redis *r, once_hash id, size_t window, redisReply *const *replies, once_error *err);
bool once__redis_lane_known(once_redis *r, once_hash id);
/* The lane as the entry `except` sees it. */
int once__redis_lane_view(once_redis *r, once_redis_lane *lane, once_hash except, once_lane *out, once_error *err);
int once__redis_lane_first(once_redis *r, once_redis_lane *lane, once_hash *out, once_error *err);
int once__redis_lane_before(once_redis *r, once_redis_lane *lane, const once_entry *entry, size_t max, once_hash *out,
                            size_t *n, uint64_t *count, once_error *err);
int once__redis_lane_equals(once_redis *r, once_redis_lane *lane, int64_t order, int64_t *seen_ms, once_error *err);
/* For repairs. `mend`: the lane gets what the entry says about it (`lacks`: also its place, whatever was read). `drop`:
 * it loses a member. `vacate`: the entry no longer occupies it. `renew`: its record is written again. */
int once__redis_lane_mend(once_redis *r, const once_redis_slot *slot, bool lacks, once_error *err);
int once__redis_lane_drop(once_redis *r, once_hash id, once_redis_member member, once_error *err);
int once__redis_lane_vacate(once_redis *r, once_hash id, once_hash entry, once_error *err);
int once__redis_lane_renew(once_redis *r, once_hash id, once_error *err);
/* A slot was saved: updates its lanes. */
int once__redis_lane_follow(once_redis *r, once_redis_slot *slot, once_error *err);

/* --- letters (letters.c) --- */

int once__redis_letter_put(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh,
                           once_error *err);
int once__redis_letters_ahead(once_storage *storage, const uint64_t *ids, size_t n, once_error *err);
int once__redis_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                           once_error *err);
int once__redis_letter_drop(once_storage *storage, uint64_t id, once_error *err);

/* --- indexes and lanes that do not agree with entries (misplaced.c) --- */

/* An index, or the front of a lane, names an entry that does not belong there. ONCE_E_CORRUPT when that is damage.
 * Otherwise another worker has changed it: ONCE_OK for an index, a conflict for a lane. */
int once__redis_misplaced_in_index(once_redis *r, char index, once_bytes consumer, once_hash id, once_error *err);
int once__redis_misplaced_in_lane(once_redis *r, const once_redis_lane *lane, once_hash id, once_error *err);

/* The record of a lane says that it has entries, but its set has none (`lost`), or not this one (`lacks`). That
 * is ONCE_E_CORRUPT when it is damage; otherwise a conflict. */
int once__redis_lane_lost(once_redis *r, const once_redis_lane *lane, once_error *err);
int once__redis_lane_lacks(once_redis *r, const once_redis_lane *lane, const once_redis_slot *slot,
                           once_redis_member member, once_error *err);
/* Whether the record is one of a lane without entries: such a lane expires (left_ms, from PTTL), or has no record when
 * nothing is kept of it. */
bool once__redis_lane_is_empty(const once_redis *r, const once_redis_lane_record *record, int64_t left_ms);
/* The member as it is written now, and as older programs wrote it. */
void once__redis_member_write(once_redis_member member, unsigned char out[ONCE_REDIS_MEMBER],
                              unsigned char old[ONCE_REDIS_OLD_MEMBER]);
bool once__redis_member_read(once_bytes bytes, once_redis_member *out);

/* --- clusters (strays.c) --- */

void once__redis_was_asked(once_redis *r);           /* notes the time: a transaction began or ended */
bool once__redis_may_be_astray(const once_redis *r); /* look_for_strays must be called before anything is decided */
/* Fails when another node has keys of the store: an interrupted move of the slot left them there. */
int once__redis_look_for_strays(once_redis *r, once_error *err);
/* Begins r->pipe with a SCAN for a page of all keys of a kind; "": of all kinds. */
void once__redis_ask_scan(once_redis *r, const char *kind, const char cursor[24], size_t count);
bool once__redis_move_ends(
    once_redis *r); /* waits for the end of a move, up to the timeout; false: it has not ended, or is not known to */
bool once__redis_doubt(once_backend *store, char *out,
                       size_t size); /* the slot of the store is being moved, or its move was interrupted */

/* --- entries that need not be read (claim_cache.c) --- */

void once__redis_claim_cache_note(once_redis *r, const once_entry *entry,
                                  once_bytes value); /* the commit will give the entry this value */
once_bytes once__redis_claim_cache_value(once_redis *r, once_hash id, once_token token); /* empty: not cached */
void once__redis_claim_cache_clear(once_redis *r);                                       /* the notes may be wrong */
bool once__redis_claim_cache_new(const once_redis *r); /* claimed keys have been new for a while */
void once__redis_claim_cache_count(once_redis *r);     /* notes whether all keys of this batch were new */

/* --- commit (commit.c; commit.h is between its parts) --- */

/* Appends a command on the key {NAME} kind rest to the script: begins it; then exactly n arguments must be put. `undo`
 * is for commands that may delete their key: they run behind all others. */
void once__redis_do(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n);
void once__redis_undo(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n);
void once__redis_put(once_redis *r, const void *data, size_t len);
/* The commit is a conflict unless this field of the hash of facts ('f') or of uniques ('U') has this value. */
void once__redis_expect_field(once_redis *r, char hash_kind, const void *field, size_t field_len, once_bytes value);
int once__redis_apply(once_redis *r, once_error *err);
int once__redis_load_script(once_redis *r, once_error *err);
int once__redis_try_commands(once_redis *r, once_error *err); /* ONCE_E_DENIED: this user may not run all commands */
void once__redis_commit_each(once_redis *r, void (*visit)(once_buf *buf));
void once__redis_commit_clear(once_redis *r);

/* --- the rest (store.c, due.c, lists.c, stats.c, sweep.c...) --- */

extern const once_storage_ops once__redis_storage;
bool once__redis_test_clock(const once_redis *r);
void once__redis_pause(once_redis *r, int64_t max_ms);
/* The settings that say what the server keeps: ONCE_REDIS_SETTINGS commands, and their replies. Fails when the server
 * would evict entries, or was durable when the store was opened and no longer is. */
enum { ONCE_REDIS_SETTINGS = 5 };
void once__redis_ask_settings(once_redis_pipe *pipe);
int once__redis_read_settings(once_redis *r, redisReply *const *replies, bool *durable, once_error *err);
/* Fails unless the server has this store, with at least as many commits as were seen. `kept`: these commits count as
 * seen. A commit that not enough replicas have confirmed does not count: it was not reported to anybody, so losing it
 * with the primary is no loss. */
int once__redis_check_head(once_redis *r, once_bytes secret, uint64_t commits, bool kept, once_error *err);
int once__redis_replaced(once_redis *r, once_error *err);
int once__redis_head_number(const once_redis *r, once_bytes text, uint64_t *out,
                            once_error *err); /* reads a field of the head; 0: it is missing */

int once__redis_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                                  once_hash *out, size_t *n, once_error *err);
int once__redis_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err);
int once__redis_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                       size_t *n, once_error *err);
int once__redis_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                         size_t *n, once_error *err);
int once__redis_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                     once_entry_visit *visit, void *user, once_error *err);
/* Reads dead letters; their values are in the first reply of r->pipe. */
int once__redis_ask_letters(once_redis *r, const uint64_t *ids, size_t n, once_error *err);
int once__redis_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                        void *user, once_error *err);
int once__redis_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                       once_error *err);
int once__redis_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err);
int once__redis_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err);
int once__redis_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err);
int once__redis_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err);
int once__redis_fact_count(once_storage *storage, const char *name, uint64_t least, once_bytes value, once_error *err);
int once__redis_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err);
/* From format 1, which indexed entries that wait without a body by due time, and never dropped them. */
int once__redis_upgrade(once_redis *r, once_error *err);
int once__redis_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);

#endif
