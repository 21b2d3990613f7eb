/* The Redis store from the inside. docs/redis.md says why it is built this way.
 *
 * A transaction reads what it needs (few round trips, everything pipelined), lets the rules of core/entry.h decide on
 * working copies, and applies all changes with one script, which first compares what was read with what is there:
 * everything is written, or nothing. What is written together is in one slot of a cluster, because all keys begin with
 * {NAME}:
 *
 *   {NAME}head           hash: key_secret, format, letters (the last letter's number), commits (how many there were, or
 *   more), upgrading;
 *                        `secret`, which programs of format 1 compare with every transaction, is another one
 *   {NAME}e ID           an entry                      {NAME}n      hash: names
 *   {NAME}l ID           a lane                        {NAME}f      hash: facts
 *   {NAME}o ID           sorted set of a lane's unfinished entries: order (8, big-endian) and id, all with score 0
 *   {NAME}L NUMBER       a letter                      {NAME}U      hash: what makes a letter the same one -> its
 *   number
 *   {NAME}i KIND CONSUMER sorted set of open entries by due time; the kinds are below
 *   {NAME}w              set of consumers that have, or had, entries waiting without a body
 *   {NAME}c CONSUMER     sorted set of groups of claims without a body, with how many are left of each; a group is what
 *   one
 *                        commit claimed with one due time: due (8, big-endian) and stamp (8)
 *   {NAME}g CONSUMER     hash: group -> ids of those that were claimed in it, of which some may have left it
 *   {NAME}d CONSUMER     sorted set of letters by number
 *   {NAME}a CONSUMER     list of audits
 *   {NAME}turn           somebody lost a race and goes first now
 *
 * ID is 16 bytes. Values are described in record.h. */
#ifndef ONCE_STORE_REDIS_REDIS_H
#define ONCE_STORE_REDIS_REDIS_H

#include "base/table.h"
#include "store/engine.h"
#include "store/lane_record.h"
#include "store/redis/link.h"
#include "store/redis/record.h"

/* Open entries by what somebody looks for. */
enum once_redis_index {
    ONCE_REDIS_NOWHERE = 0,
    ONCE_REDIS_WAITING = 'W',      /* with a body: for take */
    ONCE_REDIS_WAITING_BARE = 'w', /* without one; not by due time but by when it expires */
    ONCE_REDIS_CLAIMED = 'C',
    ONCE_REDIS_CLAIMED_BARE = 'c', /* in groups: many come and go together, and nobody takes them by time */
    ONCE_REDIS_UNKNOWN = 'u', /* by when the other side is asked about it, or who asks has to come back; or never */
    ONCE_REDIS_DEAD = 'x'
};

/* An entry in the transaction. */
typedef struct once_redis_slot {
    once_entry entry;  /* the working copy */
    once_bytes stored; /* the value as it was read; empty: absent */
    once_redis_finished names;
    bool dirty;
    bool assumed; /* not read: the commit compares it, written or not (claim_cache.c) */
    /* where the indexes have it, as it was read */
    char index;
    once_bytes consumer;
    int64_t due_ms;
    /* where the lanes of this transaction have it */
    bool in_lane;
    once_hash lane;
    int64_t order, seen_ms;
} once_redis_slot;

/* An entry in its lane, as a member of a sorted set that is read by its bytes (all numbers big-endian):
 *
 *   order (8), 8 bytes 0xff, seen_ms (8), id (16)
 *   order (8), id (16)                             written by an older once; it stands before the others of its order,
 *   which came later */
typedef struct once_redis_member {
    int64_t order;
    int64_t seen_ms; /* ONCE_REDIS_SEEN_BEFORE: written by an older once */
    once_hash id;
} once_redis_member;

#define ONCE_REDIS_SEEN_BEFORE INT64_MIN
enum { ONCE_REDIS_MEMBER = 40, ONCE_REDIS_OLD_MEMBER = 24 };

/* A lane in the transaction. Of a long one only both ends are known. */
typedef struct once_redis_lane {
    once_hash id;
    once_bytes stored;
    int64_t version, expires_ms; /* ONCE_LANE_NO_VERSION; 0: nothing is kept */
    once_bytes record;           /* lane_record.h */
    once_hash *claimed;          /* those that occupy it (once_state_occupies) */
    size_t n_claimed, claimed_room;
    once_redis_member *known; /* sorted; `hidden` others stand between known[hole - 1] and known[hole] */
    size_t n_known, known_room, hole, hidden;
    struct once_redis_step {
        once_redis_member member;
        bool added;
    } * steps; /* what this transaction changed, in order */
    size_t n_steps, steps_room;
    size_t window; /* how much of each end was asked for */
    bool dirty;
} once_redis_lane;

/* A fact that was read or written in the transaction. */
typedef struct once_redis_fact {
    const char *name;
    bool read, written;
    once_bytes was, value;
} once_redis_fact;

/* A claim that this handle wrote, as it is in the server unless somebody else came. */
typedef struct once_redis_cached_claim {
    once_hash id;
    once_token token;
    once_bytes value; /* empty: not any more */
} once_redis_cached_claim;

/* A letter that is new, or that has come again. */
typedef struct once_redis_letter {
    once_hash unique;
    once_letter letter;
    once_bytes stored; /* its value as it was read; empty: new */
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

/* Values that the commit compares and writes, by columns. */
typedef struct once_redis_values {
    once_buf keys, was, now, how;
    size_t n;
} once_redis_values;

/* The other parts of the script's arguments, in the order of their keys. Every key that is touched is one of the
 * script's keys (script.c). */
enum once_redis_part_kind {
    ONCE_REDIS_FIELDS, /* of hashes, that are compared */
    ONCE_REDIS_NEW,    /* values where none was */
    ONCE_REDIS_COMMANDS,
    ONCE_REDIS_REMOVALS, /* commands that may leave nothing of their key: they come last */
    ONCE_REDIS_DROPPED,  /* letters */
    ONCE_REDIS_GROUPS,   /* of claims, that some leave */
    ONCE_REDIS_LETTERS,
    ONCE_REDIS_PARTS
};

typedef struct once_redis_part {
    once_buf keys, args;
    size_t n, n_keys, n_args;
} once_redis_part;

/* Fields of a hash that the commit compares, encoded. */
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

/* A letter that was read before it was asked for; empty: it is not there. */
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
    unsigned connections;             /* as of the last use of names */
    unsigned looked_at;               /* the connection on which all keys were found to be on one node; in a cluster */
    int64_t asked_ms;                 /* when the store was asked last; in a cluster */
    once_redis_waiting waiting;
    unsigned counted_on;  /* the connection on which the number of a worker was compared */
    bool durable;         /* the server keeps what it acknowledges; told by its settings, with every commit */
    char durability[200]; /* in words */
    int wait_ms;          /* how long replicas may take */
    int format;           /* of the values; an older one only for who does not write */
    bool upgrading;       /* from an older format, and not to its end */
    uint64_t commits;     /* the number of the last one that we have seen: it never gets smaller */
    uint64_t letters;     /* the number of the last one when the transaction began */
    bool open, writes;    /* there is a transaction, and it may write */
    bool conflict;        /* the last commit met something that had changed */
    unsigned losses;      /* conflicts in a row */
    bool has_turn;
    bool mends; /* a repair: what a lane has lost is no error */
#ifdef ONCE_TEST_BUILD
    bool test_clock; /* the test's world is the clock, kept in the store as the embedded stores do */
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
    ONCE_REDIS_LIST(once_redis_letter) puts;     /* letters that the commit writes */
    ONCE_REDIS_LIST(once_redis_dropped) dropped; /* letters */
    once_table dropped_map, dropped_uniques;     /* of these: positions by number, and by what makes them unique */
    ONCE_REDIS_LIST(once_redis_audit) audits;
    ONCE_REDIS_LIST(once_redis_ahead) ahead;
    size_t ahead_at;
    uint64_t stamp; /* of everything that this transaction writes */
    bool assumed;   /* something was not read */

    /* arguments of the commit script, encoded */
    once_redis_values values[2]; /* that were there; the second ones are large */
    once_redis_part parts[ONCE_REDIS_PARTS];
    once_redis_expected expected[2]; /* of "f" and "U" */
    once_redis_part *command;        /* where the last command was begun ... */
    size_t owed;                     /* ... and how many of its arguments are still to come */
    once_buf value, key;             /* whatever is being written */

    ONCE_REDIS_LIST(once_redis_cached_claim) cached;
    size_t cached_live;    /* of these, not given up */
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
                            once_error *err); /* it is of another type, or cannot be read */
int once__redis_damaged_id(const once_redis *r, const char *kind, once_hash id, once_error *err);
int once__redis_damaged_letter(const once_redis *r, uint64_t number, once_error *err);
int once__redis_conflict(once_redis *r, once_error *err);

/* --- keys --- */

/* What programs of format 1 find where they look for the secret, with every transaction: none of them does anything in
 * this store. As long as a secret, so that one that starts says which format this is. */
#define ONCE_REDIS_NO_SECRET "format 2 or more"

enum { ONCE_REDIS_KEY = ONCE_REDIS_NAME + 40 };
/* "{NAME}" kind and bytes; the length of what stands in `out`. */
size_t once__redis_key(const once_redis *r, const char *kind, const void *rest, size_t len, char out[ONCE_REDIS_KEY]);
size_t once__redis_id_key(const once_redis *r, const char *kind, once_hash id, char out[ONCE_REDIS_KEY]);
void once__redis_put_id_key(once_redis *r, const char *kind, once_hash id);              /* an argument of r->pipe */
void once__redis_put_key(once_redis *r, const char *kind, const void *rest, size_t len); /* rest of any length */
int once__redis_ask(once_redis *r, once_error *err); /* exchanges r->pipe, which only asks: it may go out twice */

/* --- names (names.c) --- */

uint64_t once__redis_name_of(once_redis *r, once_bytes value); /* 0: out of memory */
const once_redis_name *once__redis_name_find(once_redis *r, uint64_t id);
bool once__redis_name_add(once_redis *r, uint64_t id, once_bytes value, bool written);
void once__redis_names_forget(once_redis *r);

/* --- entries and lanes of the transaction (load.c, lanes.c) --- */

/* An entry that is not read: `value`, or nothing at all, is assumed. */
int once__redis_assume(once_redis *r, once_hash id, once_bytes value, once_error *err);
/* Everything that claims, settlements... of these ids and lanes will look at, in two or three round trips. */
int once__redis_prefetch(once_redis *r, const once_hash *ids, size_t n, const once_hash *lanes, size_t n_lanes,
                         bool heads, once_error *err);
int once__redis_slot(once_redis *r, once_hash id, once_redis_slot **out, once_error *err); /* loads it when it must */
char once__redis_index_of(const once_entry *entry);
/* Reads an entry's value outside of the transaction's slots, with its names, which may cost a round trip; r->pipe is
 * used. */
int once__redis_read_value(once_redis *r, once_bytes value, once_hash id, once_entry *out, once_arena *arena,
                           once_error *err);

int once__redis_lane(once_redis *r, once_hash id, once_redis_lane **out, once_error *err);
void once__redis_lane_ask(once_redis *r, once_hash id, size_t window); /* five commands */
int once__redis_lane_read(once_redis *r, once_hash id, size_t window, redisReply *const *replies, once_error *err);
bool once__redis_lane_known(once_redis *r, once_hash id);
/* The lane as the entry `except` sees it. */
int once__redis_lane_view(once_redis *r, once_redis_lane *lane, once_hash except, once_lane *out, once_error *err);
int once__redis_lane_first(once_redis *r, once_redis_lane *lane, once_hash *out, once_error *err);
int once__redis_lane_before(once_redis *r, once_redis_lane *lane, const once_entry *entry, size_t max, once_hash *out,
                            size_t *n, uint64_t *count, once_error *err);
int once__redis_lane_equals(once_redis *r, once_redis_lane *lane, int64_t order, int64_t *seen_ms, once_error *err);
/* For repairs: the lane gets what its entry says of it (`lacks`: its place, too, whatever is read for it); it loses a
 * member, or who occupies it; it is written anew. */
int once__redis_lane_mend(once_redis *r, const once_redis_slot *slot, bool lacks, once_error *err);
int once__redis_lane_drop(once_redis *r, once_hash id, once_redis_member member, once_error *err);
int once__redis_lane_vacate(once_redis *r, once_hash id, once_hash entry, once_error *err);
int once__redis_lane_renew(once_redis *r, once_hash id, once_error *err);
/* The slot was saved: its lanes learn about it. */
int once__redis_lane_follow(once_redis *r, once_redis_slot *slot, once_error *err);

/* --- letters (letters.c) --- */

int once__redis_letter_put(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh,
                           once_error *err);
int once__redis_letters_ahead(once_storage *storage, const uint64_t *ids, size_t n, once_error *err);
int once__redis_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                           once_error *err);
int once__redis_letter_drop(once_storage *storage, uint64_t id, once_error *err);

/* --- what does not fit (misplaced.c) --- */

/* An index, or the front of a lane, names an entry that is something else. An error if that is damage; otherwise
 * somebody was quicker, which for a lane is a conflict. */
int once__redis_misplaced_in_index(once_redis *r, char index, once_bytes consumer, once_hash id, once_error *err);
int once__redis_misplaced_in_lane(once_redis *r, const once_redis_lane *lane, once_hash id, once_error *err);

/* A lane whose record says that somebody stands in it has lost all of its members, or this one, which an entry says is
 * there. An error if that is damage; otherwise a conflict. */
int once__redis_lane_lost(once_redis *r, const once_redis_lane *lane, once_error *err);
int once__redis_lane_lacks(once_redis *r, const once_redis_lane *lane, const once_redis_slot *slot,
                           once_redis_member member, once_error *err);
/* Whether a lane without members would have such a record: one that has none ends by itself (left_ms, by PTTL), and one
 * that keeps nothing is gone. */
bool once__redis_lane_is_empty(const once_redis *r, const once_redis_lane_record *record, int64_t left_ms);
/* The member as it is written today, and as an older once wrote it. */
void once__redis_member_write(once_redis_member member, unsigned char out[ONCE_REDIS_MEMBER],
                              unsigned char old[ONCE_REDIS_OLD_MEMBER]);
bool once__redis_member_read(once_bytes bytes, once_redis_member *out);

/* In a cluster: refused when another node has some of our keys. Called when we are connected anew, or keys were moving.
 */
void once__redis_was_asked(once_redis *r);           /* now, by a transaction that began or ended */
bool once__redis_may_be_astray(const once_redis *r); /* so that it must be looked for, when a transaction begins */
int once__redis_look_for_strays(once_redis *r, once_error *err);
/* Begins the pipe with the question for a page of all keys of a kind; "": of all kinds. */
void once__redis_ask_scan(once_redis *r, const char *kind, const char cursor[24], size_t count);
bool once__redis_move_ends(
    once_redis *r); /* waits for that, as long as for an answer; false: it goes on, or is not known to end */
bool once__redis_doubt(once_backend *store, char *out,
                       size_t size); /* whether our slot moves now, or was left in the middle of it */

/* --- what need not be read (claim_cache.c) --- */

void once__redis_claim_cache_note(once_redis *r, const once_entry *entry,
                                  once_bytes value); /* the entry is about to become that */
once_bytes once__redis_claim_cache_value(once_redis *r, once_hash id, once_token token); /* empty: read it */
void once__redis_claim_cache_clear(once_redis *r);     /* what was noted is perhaps not so */
bool once__redis_claim_cache_new(const once_redis *r); /* keys that are claimed are mostly new */
void once__redis_claim_cache_count(once_redis *r);     /* how it was in this batch of claims */

/* --- commit (commit.c; commit.h has what its parts say to each other) --- */

/* Appends a command for the key of that kind to what the script does: begin it, then put exactly n arguments. Commands
 * that may leave nothing of their key are undone things: they come behind the others. */
void once__redis_do(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n);
void once__redis_undo(once_redis *r, const char *command, const char *kind, once_bytes rest, size_t n);
void once__redis_put(once_redis *r, const void *data, size_t len);
/* The field of the hash of facts ('f') or of uniques ('U') must have that value. */
void once__redis_expect_field(once_redis *r, char hash_kind, const void *field, size_t field_len, once_bytes value);
int once__redis_apply(once_redis *r, once_error *err);
int once__redis_load_script(once_redis *r, once_error *err);
int once__redis_try_commands(once_redis *r, once_error *err); /* refused: one that commits need */
void once__redis_commit_each(once_redis *r, void (*visit)(once_buf *buf));
void once__redis_commit_clear(once_redis *r);

/* --- the rest (store.c, due.c, lists.c, stats.c, sweep.c...) --- */

extern const once_storage_ops once__redis_storage;
bool once__redis_test_clock(const once_redis *r);
void once__redis_pause(once_redis *r, int64_t max_ms);
/* What the server keeps, by its own settings: so many commands, and their replies. Refused: one that throws entries
 * away, and one that was durable when it was opened and is not any more. */
enum { ONCE_REDIS_SETTINGS = 5 };
void once__redis_ask_settings(once_redis_pipe *pipe);
int once__redis_read_settings(once_redis *r, redisReply *const *replies, bool *durable, once_error *err);
/* The server has this store, and everything that we saw in it. `kept`: these commits count as seen. Where replicas are
 * waited for, one that they may not have does not: its end with the primary is no loss, nobody was told of it. */
int once__redis_check_head(once_redis *r, once_bytes secret, uint64_t commits, bool kept, once_error *err);
int once__redis_replaced(once_redis *r, once_error *err);
int once__redis_head_number(const once_redis *r, once_bytes text, uint64_t *out,
                            once_error *err); /* a field of it; 0: it is not there */

int once__redis_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err);
int once__redis_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                       size_t *n, once_error *err);
int once__redis_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                         size_t *n, once_error *err);
int once__redis_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                     once_entry_visit *visit, void *user, once_error *err);
/* The values of letters, in the first reply of the pipe. */
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
/* From format 1, where what waits without a body was indexed by its due time and stayed for ever. */
int once__redis_upgrade(once_redis *r, once_error *err);
int once__redis_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err);

#endif
