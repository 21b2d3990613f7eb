/* Inside the postgres store: its handle, and the entries of the open transaction. Each file of this folder has one
 * idea; live.h is between those that hold and write what a transaction is about.
 *
 * BEGIN is not sent when a transaction begins but with the first thing that is asked in it: `prefetch` locks and loads
 * all entries and lanes of a batch in one round trip. A transaction holds its entries as slots in an arena; `save` only
 * marks a slot, and what changed is written in the round trip of the COMMIT, a statement per table; letters and facts
 * with it, unless somebody asks for them before. SQL effects that were sent and not waited for (once_db_presume) share
 * that round trip.
 *
 * Locks. The row in once_entry is the lock of a key, the row in once_lane that of a lane. Keys that are not there yet
 * are inserted by `prefetch`: the unique index then makes a second worker wait. They are inserted in the form that they
 * most likely end in (settled, when the effect runs in this transaction), so that they need not be written twice;
 * commit changes or deletes those that ended otherwise. While every key of every batch is new, or one that this worker
 * has met before (seen.c), the others are looked for and new ones inserted, and nothing else is asked of once_entry.
 * The insert is not even waited for before effects are sent behind it, only before the COMMIT is. Should the guess be
 * wrong, a row is missing, or the insert fails and all behind it with it, and the batch begins anew and looks at all.
 *
 * There is one order, for everybody: the turn of a consumer, then what the user has named (both turns.c), then
 * lanes, then entries, lanes and entries sorted. A batch says at its beginning what it is about (`expect`), so that all
 * of its rounds together keep that order. Whoever wants an entry that waits in a lane has locked the lane before; so
 * the next one of a lane, found late, is free. `take` looks for what is due without a lock, locks the lanes of it and
 * then the entries, skips what is locked, and never waits; so does `find` inside of a batch, which else reads only from
 * lanes that it has. Rows of the user are locked as his effects come, and there batches may deadlock: PostgreSQL
 * notices, the transaction is repeated, and turns are taken.
 *
 * Everything is READ COMMITTED: a statement behind the locks sees what the lock's last holder committed. Only rows that
 * are themselves locked by a statement are seen fresh by it, so once_live is read by a statement behind the one that
 * locks. */
#ifndef ONCE_STORE_POSTGRES_POSTGRES_H
#define ONCE_STORE_POSTGRES_POSTGRES_H

#include "db/postgres/postgres.h"
#include "store/engine.h"
#include "base/table.h"
#include "store/name_table.h"
#include "store/postgres/detail.h"

/* Where the bytes of a slot's entry have already been copied to: pointers that need no second copy. */
enum {
    PG_OWN_KEY,
    PG_OWN_POINT,
    PG_OWN_RESULT,
    PG_OWN_REASON,
    PG_OWN_HISTORY,
    PG_OWN_TYPE,
    PG_OWN_HEADERS,
    PG_OWN_BODY,
    PG_OWN_BODY_POINT,
    PG_OWNS
};

typedef enum once_pg_row { PG_ROW_NONE, PG_ROW_LIVE, PG_ROW_FINISHED } once_pg_row;

typedef struct once_pg_slot once_pg_slot;
typedef struct once_pg_lane once_pg_lane;
struct once_pg_slot {
    once_entry entry; /* first: load gives this out and save gets it back */
    const char *own[PG_OWNS];
    once_pg_row row; /* what its row in once_entry is, as of now in this transaction */
    bool ahead;      /* that row was inserted by us, before it was known how the entry ends */
    bool seen;       /* it is to be, but we have met the key before: it is looked for instead */
    bool unlocked;   /* it was read without a lock: it is finished, and nothing of it is changed */
    bool live, body; /* there is a row in once_live, in once_body */
    bool body_same;  /* and the latter is this entry's body */
    bool dirty;
    bool asked;            /* loading it is under way ... */
    size_t at;             /* ... at this place of the round */
    int64_t ahead_kept_ms; /* ahead, and finished: what was written; the detail is empty otherwise */
    once_hash ahead_token, ahead_fingerprint;
    once_bytes ahead_detail;
    once_pg_lane *lane; /* whose list it is in; NULL: none */
    once_pg_slot *lane_next;
};

struct once_pg_lane {
    once_hash id;
    bool asked;                  /* in the round that is under way */
    bool made;                   /* and its row was made by it */
    bool locked, known, dirty;   /* known: the fields below are as in the tables, but for the entries that have slots */
    int64_t version, expires_ms; /* ONCE_LANE_NO_VERSION; 0: nothing is kept */
    once_bytes record;           /* lane_record.h */
    bool claimed, others;
    int64_t head, tail;
    once_hash head_id;
    int64_t head_ms;     /* when that was seen */
    once_pg_slot *first; /* slots of this lane */
};

/* Names as this process knows them (name_table.h), and what the server is to be asked about them. */
typedef struct once_pg_names {
    once_name_table known;
    once_name **unknown; /* whose number is to be asked for */
    size_t n_unknown, unknown_size;
    int32_t *missing; /* numbers whose text is to be asked for */
    size_t n_missing, missing_size;
    once_name **used; /* in the open transaction, in the order of their use ... */
    size_t n_used, used_size;
    size_t n_checked;  /* ... so many of which the server was asked about ... */
    size_t check_at;   /* ... by this statement of the round; SIZE_MAX: by none */
    once_name *newest; /* with the highest number that is known; NULL: none is */
    once_name *asked;  /* what `newest` was when the transaction asked about it */
    bool fresh;        /* rows were inserted in the open transaction */
    bool doubted;      /* they are not as the server has them */
} once_pg_names;

enum { PG_COLUMNS = 30 }; /* as many as the widest statement has; and one for names */

enum once_pg_statement {
    PG_NOW,
    PG_GUARD,
    PG_GUARD_TEMP,
    PG_TURN_TRY,
    PG_TURN,
    PG_LOCKS_TRY,
    PG_LOCKS,
    PG_TURNS_BEGIN,
    PG_PLAN,
    PG_PLAN_BATCH,
    PG_UNPLAN,
    PG_ENTRY_AHEAD,
    PG_ENTRY_NEW,
    PG_ENTRY_LOCK,
    PG_ENTRY_READ,
    PG_ENTRY_INSERT,
    PG_ENTRY_UPDATE,
    PG_ENTRY_DELETE,
    PG_LIVE_READ,
    PG_LIVE_LANES,
    PG_LIVE_PUT,
    PG_LIVE_DELETE,
    PG_BODY_PUT,
    PG_BODY_DELETE,
    PG_LANE_AHEAD,
    PG_LANE_LOCK,
    PG_LANE_LOCK_FREE,
    PG_LANE_READ,
    PG_LANE_EQUALS,
    PG_LANE_BEFORE,
    PG_LANE_KEY,
    PG_LANE_PUT,
    PG_NAME_FIND,
    PG_NAME_MAKE,
    PG_NAME_CHECK,
    PG_NAME_GET,
    PG_DUE,
    PG_DUE_WINDOW,
    PG_DUE_BEHIND,
    PG_LANE_WAITING,
    PG_BY_TOKEN,
    PG_LAPSED,
    PG_LETTERS_PUT,
    PG_LETTERS_COUNT,
    PG_LETTER_GET,
    PG_LETTERS_GET,
    PG_LETTERS_DROP,
    PG_LETTERS,
    PG_LETTER_HEADS,
    PG_LETTERS_OF_KEY,
    PG_AUDITS_PUT,
    PG_AUDITS,
    PG_STATS,
    PG_STATS_LETTERS,
    PG_WAITING_SIZE,
    PG_LIST_LIVE,
    PG_LIST_FINISHED,
    PG_FACT_GET,
    PG_FACTS,
    PG_FACTS_SET,
    PG_FACT_COUNT,
    PG_FACTS_DELETE,
    PG_SWEEP_LOCK,
    PG_SWEEP_LOCK_TX,
    PG_SWEEP_UNLOCK,
    PG_SWEEP_LOOK,
    PG_SWEEP,
    PG_SWEEP_WAITING,
    PG_SWEEP_LANES_LOOK,
    PG_SWEEP_LANES_LOCK,
    PG_SWEEP_LANES,
    PG_REPAIR_LOOK,
    PG_REPAIR,
    PG_STATEMENTS
};

/* The text of each, and the shape of what it answers (statements.c). */
extern const char *const once__pg_sql[PG_STATEMENTS], *const once__pg_shapes[PG_STATEMENTS];

typedef struct once_pg_fact once_pg_fact;
struct once_pg_fact {
    once_pg_fact *next;
    once_bytes name, value; /* empty: there is none */
    uint64_t least;         /* the number that the one in the table must have at least; 0: it does not matter */
};

enum { PG_LETTER_COLUMNS = 21, PG_AUDIT_COLUMNS = 8 };

/* A letter that was read before it was asked for. */
typedef struct once_pg_ahead {
    once_letter letter; /* id 0: it is not there, or it was dropped */
    uint64_t id;
} once_pg_ahead;

/* How far a sweep has come. A look for what has expired serves so many steps of so many rows. */
enum { PG_SWEEP_STEP = 4000, PG_SWEEP_LOOKS = 10 };
typedef struct once_pg_sweep {
    once_hash lane; /* where that of lanes goes on */
    int64_t from;   /* what expired before then (as the index counts time) is swept already, mostly */
    once_buf found; /* rows that had expired when they were looked for: PG_TID_SIZE bytes each ... */
    size_t at;      /* ... so many bytes of which are over */
    bool full;      /* there are more than these */
    bool useful;    /* some of these could be dropped */
} once_pg_sweep;

/* Keys that this worker has met lately (seen.c). */
typedef struct once_pg_seen {
    uint64_t *marks;
    size_t n, sets;
} once_pg_seen;

/* Batches in which every key was new, or one that we had met before (expect.c). */
typedef struct once_pg_news {
    unsigned streak; /* so many, one after the other */
    unsigned needed; /* from so many on that is expected of the next one; 0: none yet */
    bool expected;   /* of this one ... */
    size_t at;       /* ... and by this statement of the round it fails if that is wrong; SIZE_MAX: by none */
    unsigned waits;  /* so many more are waited for: one had met keys that are not finished, which costs a round trip */
    bool missed;     /* it was wrong the other way: a key that we had met was not there */
} once_pg_news;

/* Batches of a consumer after a deadlock (turns.c). */
typedef struct once_pg_turns {
    char *name;     /* of the fact that says until when; NULL: no consumer, no turns */
    int64_t key;    /* of the lock */
    size_t at;      /* which statement of the round waits for our turn, and the next one for `locks`; SIZE_MAX: none */
    unsigned tries; /* how often this batch has asked */
    bool crowded;   /* the last one had to wait */
    bool due;       /* a batch of ours has deadlocked, and nobody was told yet */
} once_pg_turns;

typedef struct once_postgres {
    once_storage storage;
    once_pg *pg;
    int64_t wait_ms;     /* how long to try to reconnect */
    uint64_t connection; /* that names and all else we know is from */
    once_pg_names names;
    once_pg_sweep sweep;
    once_pg_turns turns;
    once_pg_news news;
    once_pg_seen seen;

    /* the open transaction */
    bool open, write;
    bool batch;            /* it is one of a consumer, and takes its turn */
    const uint64_t *locks; /* of a batch: what it locks before all else; the caller's */
    size_t n_locks;
    bool begun;    /* BEGIN was sent */
    size_t now_at; /* where in the results of the round that began it the time is */
    bool nested;   /* borrowed, and inside a transaction of the caller: ours is a savepoint in it */
    once_arena arena;
    once_table slots, lanes;
    once_pg_slot **all; /* in the order of their loading */
    size_t n_all, all_size;
    once_pg_lane **lane_list;
    size_t n_lanes, lanes_size;
    once_hash head;                           /* of a lane, that was given out last */
    once_pg_array columns[PG_COLUMNS];        /* of what is being sent */
    once_pg_array letters[PG_LETTER_COLUMNS]; /* that commit has to write, if it has any */
    once_pg_array dropped;                    /* letters that it has to delete */
    once_pg_array audits[PG_AUDIT_COLUMNS];   /* that it has to write */
    once_pg_fact *facts;                      /* the same */
    once_pg_ahead *ahead;
    size_t n_ahead, ahead_at;
    size_t n_presumed; /* entries that are presumed to have been inserted (round.c) */
    size_t guard_at;   /* which of the statements of a commit compares what the transaction is; SIZE_MAX: none */
    size_t count_at; /* which of the statements of a commit is the one that may find a number too low; SIZE_MAX: none */
    once_buf detail;
} once_postgres;

/* Of a table that was empty when it was last vacuumed every plan seems to cost the same, and one that is made then is
 * kept while the table grows. So a body is looked for by its id alone, row by row, and only where there is one; and an
 * order by the id decides for the index that begins with it. */
#define ONCE_PG_LIVE_FULL                                                                                              \
    "l.id, l.token, l.fingerprint, l.lane, l.ord, l.gap_ms, l.remember_ms, l.run, l.seen_ms, l.changed_ms, l.due_ms,"  \
    " l.expires_ms, l.attempt, l.failures, l.state, l.marks, l.owned, l.tenant, l.consumer, l.operation, l.key, "      \
    "l.place,"                                                                                                         \
    " l.point, l.reason, l.who, l.worker, l.history, l.failing_ms, l.fields, b.sent_ms, b.type, b.headers, b.body, "   \
    "b.place,"                                                                                                         \
    " b.point"                                                                                                         \
    " FROM once_live l LEFT JOIN LATERAL (SELECT * FROM once_body WHERE once_body.id = l.id AND l.owned OFFSET 0) b "  \
    "ON true"

static inline once_postgres *once__pg_of(once_storage *storage) { return (once_postgres *)storage; }

/* BEGIN and what belongs to it, as the first statements of a round; *sent counts them, and `once__pg_begun` reads their
 * results. Nothing when it was sent before. */
enum { PG_BEGIN_RESULTS = 5 };
#define PG_BEGIN_WRITE "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
#define PG_BEGIN_READ                                                                                                  \
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" /* the rows of an entry are read by several statements, without  \
                                                         locks */
int once__pg_begin_send(once_postgres *q, size_t *sent, once_error *err);
void once__pg_begin_anew(once_postgres *q); /* nothing has happened, and nothing is known */
int once__pg_begin_read(once_postgres *q, PGresult *const *results, size_t n, once_error *err);
int64_t once__pg_test_now(const once_postgres *q, bool *set);            /* what tests say instead of the server */
void once__pg_param_now(const once_postgres *q, once_pg_params *params); /* the same, or NULL: the server knows */

/* Entries and lanes (slots.c, expect.c, find.c, lanes.c, write.c); all inside a transaction. */
int once__pg_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                      once_error *err);
int once__pg_expect(once_backend *store, const once_touch *touched, size_t n, bool finds, const uint64_t *locks,
                    size_t n_locks, once_error *err);
int once__pg_load(once_storage *storage, once_hash id, once_entry **out, once_error *err);
int once__pg_load_by_id(once_postgres *q, const once_hash *ids, size_t n,
                        once_error *err); /* entries that are not loaded yet, behind their lanes */
int once__pg_save(once_storage *storage, once_entry *entry, once_error *err);
int once__pg_lane(once_storage *storage, once_hash lane, once_hash except, once_lane *out, once_error *err);
int once__pg_save_lane(once_storage *storage, once_hash lane, const once_lane *kept, once_error *err);
int once__pg_lane_head(once_storage *storage, once_hash lane, once_hash *out, once_error *err);
int once__pg_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                         uint64_t *count, once_error *err);
int once__pg_lanes_waiting(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                           once_hash *out, size_t *n, once_error *err);
int once__pg_lane_equals(once_storage *storage, once_hash lane, int64_t order, int64_t *seen_ms, once_error *err);
/* Loads what was found (rows of an id and its lane, NULL: none), whose rows in once_entry and once_lane are `locked`
 * already or are locked now. What is in another lane by then, and that cannot be locked at once, is left out of ids. */
int once__pg_load_found(once_postgres *q, const PGresult *found, bool locked, once_hash *ids, size_t *n,
                        once_error *err);
/* Somebody is in the lane, and it has no row: ONCE_E_CORRUPT, by whose key. */
int once__pg_lane_gone(once_postgres *q, once_hash lane, once_error *err);
/* Sends everything that commit has to write; *sent counts the statements. */
int once__pg_write_send(once_postgres *q, size_t *sent, once_error *err);
void once__pg_live_clear(once_postgres *q); /* forgets the slots */
/* Reads an entry from a row of PG_LIVE_READ or PG_LIST_LIVE, or of PG_ENTRY_LOCK or PG_LIST_FINISHED; bytes in the
 * arena. */
int once__pg_read_live(once_postgres *q, const PGresult *result, int row, once_arena *arena, once_entry *out,
                       once_error *err);
int once__pg_read_finished(once_postgres *q, const PGresult *result, int row, once_arena *arena, once_entry *out,
                           once_pg_names_of *names, once_error *err);
int once__pg_name_finished(once_postgres *q, const once_pg_names_of *names, once_entry *entry, once_error *err);

/* Keys that were met (seen.c). What there is no memory for is not kept. */
bool once__pg_seen_has(const once_pg_seen *seen, once_hash id);
void once__pg_seen_soon(const once_pg_seen *seen, once_hash id); /* either will be asked of this one: memory is slow */
void once__pg_seen_add(once_pg_seen *seen, once_hash id);
void once__pg_seen_release(once_pg_seen *seen);
void once__pg_remember_seen(once_postgres *q); /* of the slots, those that have rows */

/* Turns (turns.c). */
int once__pg_turns_init(once_postgres *q, once_bytes consumer, once_error *err);
int once__pg_turns_tell(once_postgres *q,
                        once_error *err); /* between transactions: if one is due, that turns are taken from now on */
int once__pg_plan_send(once_postgres *q, once_error *err); /* PG_PLAN, before locks are taken */
int once__pg_turn_send(once_postgres *q, size_t *sent,
                       once_error *err); /* behind BEGIN: waits for our turn, if turns are taken now, and for `locks` */
bool once__pg_turn_missed(
    const once_postgres *q); /* the last round failed because others have these: again, after a pause */
void once__pg_turn_pause(const once_postgres *q);

/* Names. The first four: NULL when memory is out; number 0 until once__pg_names_resolve, which asks for all that are
 * unknown. Texts stay until the transaction ends. */
once_name *once__pg_name_scope(once_pg_names *names, const once_scope *scope);
once_name *once__pg_name_place(once_pg_names *names, once_bytes place);
once_name *once__pg_name_run(once_pg_names *names, uint64_t run);
once_name *once__pg_name_who(once_pg_names *names, once_bytes who);
int once__pg_names_resolve(once_postgres *q, once_error *err);
/* The texts of numbers: `want` first all that will be needed, then fetch, then get. NULL: there is none. */
bool once__pg_names_want(once_pg_names *names, int32_t number);
int once__pg_names_fetch(once_postgres *q, once_error *err);
const once_name *once__pg_names_get(const once_pg_names *names, int32_t number);
/* Numbers of an earlier transaction may not be what they were: the store was restored, or a failover has lost some.
 * Every transaction asks about the newest, together with the time: `confirm` gets the answer. Behind a pooler a
 * failover need not cost a connection, so there all that are used are compared by the server, in a round that is sent
 * anyway (*sent counts the statement); when they differ, the round fails. Either way it passes, ONCE_E_ABORTED, as they
 * are then asked for anew. */
int once__pg_names_confirm(once_postgres *q, once_bytes newest, once_error *err);
int once__pg_names_check_send(once_postgres *q, size_t *sent, once_error *err);
int once__pg_names_failed(once_postgres *q, int rc, once_error *err);
void once__pg_names_end(once_pg_names *names, bool committed);
void once__pg_names_clear(once_pg_names *names);

/* Whether each number stands for a name of its kind; all of them were fetched. (repair.c) */
bool once__pg_names_whole(const once_postgres *q, const once_pg_names_of *names);
int once__pg_verify(once_postgres *q, void (*damage)(void *user, const char *text), void *user,
                    once_error *err); /* verify.c */
int once__pg_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err);

/* A store on a connection of the caller, outside of any transaction of it; makes the tables that are missing. Closing
 * it leaves the connection open, and comes before that is closed. A transaction is then a savepoint inside the
 * caller's, or one by itself. The connection is in pipeline mode from begin to commit; once__pg_pause gives it to the
 * caller meanwhile. */
int once__pg_store_borrow(PGconn *conn, const once_store_options *options, once_backend **out, once_error *err);
void once__pg_pause(once_backend *store);
int once__pg_resume(once_backend *store, once_error *err);
void once__pg_abandon(once_backend *store); /* while paused: the transaction is gone, and there is nothing to undo */

/* Of test builds, which move time: what this returns is what the clock of the server says. NULL: its own clock. */
extern int64_t (*once__pg_test_clock)(const once_env *env);

#endif
