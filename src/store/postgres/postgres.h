/* The postgres store from the inside: its handle, and the entries and lanes of the open transaction. docs/postgres.md
 * explains the design; schema.c has the tables, statements.c all SQL. live.h is between the files that hold and write
 * what a transaction has loaded.
 *
 * Round trips. BEGIN is not sent when a transaction begins, but together with its first question. `prefetch` locks and
 * loads all entries and lanes of a batch in one round trip. A transaction keeps its entries as slots in an arena;
 * `save` only marks a slot. What has changed is written in the round trip of the COMMIT, one statement per table. Dead
 * letters and facts are written there as well, unless they are read before. SQL effects that were sent and not waited
 * for (once_db_presume) share that round trip.
 *
 * Locks. The row in once_entry is the lock of a key; the row in once_lane is the lock of a lane.
 *   - Keys that do not exist yet are inserted by `prefetch`: the unique index then makes a second worker wait. They are
 *     inserted in the form that they most likely end in (settled, when the effect runs in this transaction), so that
 *     they need not be written twice. The commit changes or deletes those that ended otherwise.
 *   - While all keys of all batches are new, or were met by this worker before (seen.c), `prefetch` only inserts the
 *     new ones and reads the others. It does not even wait for the insert before effects are sent behind it, only
 *     before the COMMIT is sent. When this guess is wrong, a row is missing, or the insert fails, and with it
 *     everything behind it. The batch then begins again, and looks at all its keys.
 *
 * Order of locks. Everybody locks in one order, so batches do not deadlock on the tables of the store:
 *   1. the turn of a consumer (turns.c)
 *   2. the locks that the user has named for effects (turns.c)
 *   3. lanes, sorted
 *   4. entries, sorted
 * A batch says at its beginning what it will touch (`expect`), so that all its rounds together keep the order. To lock
 * an entry that waits in a lane, a worker locks the lane first. So the next entry of a locked lane is free, even when
 * it is found late. `take` finds due entries without a lock, locks their lanes and then the entries, skips what is
 * locked, and never waits. `find` inside a batch does the same for due entries; otherwise it reads only lanes that the
 * batch has locked. Rows of the user's tables are locked as effects touch them; there batches may deadlock. PostgreSQL
 * notices, the transaction is repeated, and batches take turns.
 *
 * Isolation is READ COMMITTED: a statement behind the locks sees what the last holder of the lock has committed. A
 * statement that itself waits for a lock sees only the locked rows in their newest version. So once_live is read by a
 * later statement than the one that locks.
 *
 * Guard. Effects may call functions that change the role or the search path. So every round that follows effects begins
 * with a statement that compares (db/postgres/guard.c). */
#ifndef ONCE_STORE_POSTGRES_POSTGRES_H
#define ONCE_STORE_POSTGRES_POSTGRES_H

#include "db/postgres/postgres.h"
#include "store/engine.h"
#include "base/table.h"
#include "store/name_table.h"
#include "store/postgres/detail.h"

/* Fields of an entry whose bytes `save` copies into the arena, unless they are there already. */
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
    once_entry entry; /* first: `load` returns it, and `save` gets it back */
    const char *own[PG_OWNS];
    once_pg_row row; /* its row in once_entry, as this transaction sees it now */
    bool ahead;      /* this transaction inserts the row, before it is known how the entry ends */
    bool seen;       /* this worker has met the key before: the row is looked for instead of inserted */
    bool unlocked;   /* read without a lock: it is finished, and must not be changed */
    bool live, body; /* it has a row in once_live, in once_body */
    bool body_same;  /* the row in once_body is the body of this entry */
    bool dirty;
    bool asked;            /* a round that loads it is under way ... */
    size_t at;             /* ... and it is at this position of the round */
    int64_t ahead_kept_ms; /* ahead, and inserted as finished: what was written. Otherwise the detail is empty */
    once_hash ahead_token, ahead_fingerprint;
    once_bytes ahead_detail;
    once_pg_lane *lane; /* the lane whose list it is in; NULL: none */
    once_pg_slot *lane_next;
};

struct once_pg_lane {
    once_hash id;
    bool asked;                  /* a round that loads it is under way ... */
    bool made;                   /* ... and has inserted its row */
    bool locked, known, dirty;   /* known: the fields below are those of the tables, without entries that have slots */
    int64_t version, expires_ms; /* ONCE_LANE_NO_VERSION: none; expires_ms 0: nothing is kept */
    once_bytes record;           /* lane_record.h */
    bool claimed, others;        /* another entry occupies it; there are unfinished entries without slots ... */
    int64_t head, tail;          /* ... with the lowest and the highest order */
    once_hash head_id;           /* the first of them ... */
    int64_t head_ms;             /* ... and when it was seen */
    once_pg_slot *first;         /* slots of this lane */
};

/* Names that this handle has read (name_table.h), and those that it must still ask the server for. */
typedef struct once_pg_names {
    once_name_table known;
    once_name **unknown; /* names whose numbers must be asked for */
    size_t n_unknown, unknown_size;
    int32_t *missing; /* numbers whose texts must be asked for */
    size_t n_missing, missing_size;
    once_name **used; /* names that the open transaction uses, in the order of first use ... */
    size_t n_used, used_size;
    size_t n_checked;  /* ... of which the server has compared so many ... */
    size_t check_at;   /* ... with this statement of the round; SIZE_MAX: none */
    once_name *newest; /* the known name with the highest number; NULL: none is known */
    once_name *asked;  /* what `newest` was when the transaction asked about it */
    bool fresh;        /* the open transaction has inserted names */
    bool doubted;      /* the server has other names: they must be read again */
} once_pg_names;

enum { PG_COLUMNS = 30 }; /* the arrays of the widest statement, and one for names */

enum once_pg_statement {
    PG_NOW,
    PG_GUARD,
    PG_GUARD_TEMP,
    PG_TURN_TRY,
    PG_TURN,
    PG_LOCKS_TRY,
    PG_LOCKS,
    PG_QUEUE,
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
    PG_DUE_AFTER,
    PG_LANE_WAITING,
    PG_BY_TOKEN,
    PG_LAPSED,
    PG_LETTERS_PUT,
    PG_LETTERS_COUNT,
    PG_LETTER_GET,
    PG_LETTERS_GET,
    PG_LETTERS_LEFT,
    PG_LETTERS_LOCK,
    PG_LETTERS_DROP,
    PG_LETTERS,
    PG_LETTER_HEADS,
    PG_LETTER_IDS,
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

/* The text of each statement, and the shape of its result (statements.c). */
extern const char *const once__pg_sql[PG_STATEMENTS], *const once__pg_shapes[PG_STATEMENTS];

typedef struct once_pg_fact once_pg_fact;
struct once_pg_fact {
    once_pg_fact *next;
    once_bytes name, value; /* value empty: the fact is deleted */
    uint64_t least;         /* the commit fails unless the number in the table is at least this; 0: any */
};

enum { PG_LETTER_COLUMNS = 21, PG_AUDIT_COLUMNS = 8 };

/* A dead letter that was read before the engine asks for it. */
typedef struct once_pg_ahead {
    once_letter letter; /* id 0: there is none, or it was dropped */
    uint64_t id;
    bool left; /* it was there when nobody else could remove it any more */
} once_pg_ahead;

/* The progress of a sweep. One search for expired rows serves PG_SWEEP_LOOKS steps of PG_SWEEP_STEP rows. */
enum { PG_SWEEP_STEP = 4000, PG_SWEEP_LOOKS = 10 };
typedef struct once_pg_sweep {
    once_hash lane; /* the sweep of lanes goes on behind this one */
    int64_t from;   /* the next search begins here (in units of the index): older rows are swept already, mostly */
    once_buf found; /* expired rows that the search found: PG_TID_SIZE bytes each ... */
    size_t at;      /* ... of which so many bytes are done */
    bool full;      /* the search found as many as it asked for: there may be more */
    bool useful;    /* some of these rows could be dropped */
} once_pg_sweep;

/* Keys that this worker has met recently (seen.c). */
typedef struct once_pg_seen {
    uint64_t *marks;
    size_t n, sets;
} once_pg_seen;

/* The guess that every key of a batch is new, or was met before (expect.c). */
typedef struct once_pg_guess {
    unsigned streak; /* batches in a row for which it was true */
    unsigned needed; /* the streak from which on it is made; 0: not set yet */
    bool expected;   /* it is made for this batch ... */
    size_t at;       /* ... and this statement of the round fails if it is wrong; SIZE_MAX: none */
    unsigned waits;  /* for so many more batches the insert is waited for: a batch had met keys that are not finished,
                      * which costs a round trip more */
    bool missed;     /* it was wrong in another way: a key that was met before is gone */
} once_pg_guess;

/* Batches of a consumer take turns after a deadlock (turns.c). */
typedef struct once_pg_turns {
    char *name;        /* the fact that says until when; NULL: no consumer, no turns */
    int64_t key;       /* the advisory lock of the consumer */
    bool needed;       /* effects run in this batch; the others need no turn */
    bool queues;       /* this batch waits for its turn and for `locks` in the server; otherwise it fails at once if
                        * another batch has them */
    size_t at, at_end; /* the statements of the round that ask for the turn and for `locks`; the same: none */
    int64_t queue_ms;  /* how long this batch queues before it tries its turn */
    unsigned crowded;  /* so many of the next batches queue at once, because one had to wait */
    bool due;          /* a batch has deadlocked, and the fact must still be written */
} once_pg_turns;

typedef struct once_postgres {
    once_storage storage;
    once_pg *pg;
    int64_t wait_ms;     /* how long to try to reconnect */
    uint64_t connection; /* the connection that names and all other knowledge are from */
    once_pg_names names;
    once_pg_sweep sweep;
    once_pg_turns turns;
    once_pg_guess guess;
    once_pg_seen seen;

    /* the open transaction */
    bool open, write;
    bool batch;            /* it is a batch of a consumer, which takes its turn */
    const uint64_t *locks; /* of a batch: the locks that its user has named; the caller's memory */
    size_t n_locks;
    bool begun;    /* BEGIN was sent */
    size_t now_at; /* the position of PG_NOW in the round that began it */
    bool nested;   /* on a borrowed connection, inside a transaction of the caller: ours is a savepoint in it */
    once_arena arena;
    once_table slots, lanes;
    once_pg_slot **all; /* in the order of their loading */
    size_t n_all, all_size;
    once_pg_lane **lane_list;
    size_t n_lanes, lanes_size;
    once_hash head;                           /* the first entry of a lane that `lane_head` has returned last */
    once_pg_array columns[PG_COLUMNS];        /* parameters of the statement that is being sent */
    once_pg_array letters[PG_LETTER_COLUMNS]; /* dead letters that the commit writes */
    once_pg_array dropped;                    /* dead letters that it deletes */
    once_pg_array audits[PG_AUDIT_COLUMNS];   /* audit records that it writes */
    once_pg_fact *facts;                      /* facts that it writes */
    once_pg_ahead *ahead;
    size_t n_ahead, ahead_at;
    size_t n_presumed; /* entries that are presumed to be inserted (round.c) */
    size_t guard_at;   /* the position of the guard in the round; SIZE_MAX: none */
    size_t count_at;   /* the position of PG_FACT_COUNT in the round of the commit; SIZE_MAX: none */
    once_buf detail;
} once_postgres;

/* For a table that was empty at its last vacuum all plans seem to cost the same, and the plan that is chosen then stays
 * while the table grows. So the SQL leaves no choice: a body is looked up by its id, row by row, and only where there
 * is one; and ORDER BY id selects the index that begins with it. */
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

/* `send` sends BEGIN and what belongs to it, as the first statements of a round, unless they were sent before; *sent
 * counts them. `read` reads their n results. `anew` rolls back and begins the transaction again. */
enum { PG_BEGIN_RESULTS = 6 };
#define PG_BEGIN_WRITE "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
#define PG_BEGIN_READ                                                                                                  \
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" /* several statements read the rows of an entry, without locks */
int once__pg_begin_send(once_postgres *q, size_t *sent, once_error *err);
void once__pg_begin_anew(once_postgres *q);
int once__pg_begin_read(once_postgres *q, PGresult *const *results, size_t n, once_error *err);
int64_t once__pg_test_now(const once_postgres *q, bool *set);            /* the clock of tests; *set false: none */
void once__pg_param_now(const once_postgres *q, once_pg_params *params); /* the same; NULL: the server's clock */

/* Entries and lanes (slots.c, expect.c, find.c, lanes.c, write.c); all inside a transaction. store/engine.h has the
 * contracts of those that are slots of once_storage_ops. */
int once__pg_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                      once_error *err);
int once__pg_expect(once_backend *store, const once_touch *touched, size_t n, bool finds, const uint64_t *locks,
                    size_t n_locks, once_error *err);
int once__pg_load(once_storage *storage, once_hash id, once_entry **out, once_error *err);
int once__pg_load_by_id(once_postgres *q, const once_hash *ids, size_t n,
                        once_error *err); /* loads entries, and their lanes before them */
int once__pg_save(once_storage *storage, once_entry *entry, once_error *err);
int once__pg_lane(once_storage *storage, once_hash lane, once_hash except, once_lane *out, once_error *err);
int once__pg_save_lane(once_storage *storage, once_hash lane, const once_lane *kept, once_error *err);
int once__pg_lane_head(once_storage *storage, once_hash lane, once_hash *out, once_error *err);
int once__pg_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                         uint64_t *count, once_error *err);
int once__pg_lanes_waiting(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                           once_hash *out, size_t *n, once_error *err);
int once__pg_lane_equals(once_storage *storage, once_hash lane, int64_t order, int64_t *seen_ms, once_error *err);
/* Loads the entries that a statement has found: rows of an id and its lane (NULL: none). `locked`: the statement has
 * locked their rows in once_entry and once_lane; otherwise they are locked now. Entries that are in another lane by
 * then, which another worker has locked, are left out of ids. */
int once__pg_load_found(once_postgres *q, const PGresult *found, bool locked, once_hash *ids, size_t *n,
                        once_error *err);
/* ONCE_E_CORRUPT: the lane has entries and no row. The text names the key of the first one. */
int once__pg_lane_gone(once_postgres *q, once_hash lane, once_error *err);
/* Sends everything that the commit must write; *sent counts the statements. */
int once__pg_write_send(once_postgres *q, size_t *sent, once_error *err);
void once__pg_live_clear(once_postgres *q); /* drops the slots and lanes */
/* Read an entry from a row of PG_LIVE_READ or PG_LIST_LIVE (`live`), of PG_ENTRY_LOCK or PG_LIST_FINISHED (`finished`).
 * Its bytes are copied into the arena. */
int once__pg_read_live(once_postgres *q, const PGresult *result, int row, once_arena *arena, once_entry *out,
                       once_error *err);
int once__pg_read_finished(once_postgres *q, const PGresult *result, int row, once_arena *arena, once_entry *out,
                           once_pg_names_of *names, once_error *err);
int once__pg_name_finished(once_postgres *q, const once_pg_names_of *names, once_entry *entry, once_error *err);

/* Keys that this worker has met (seen.c). Without memory fewer are kept. */
bool once__pg_seen_has(const once_pg_seen *seen, once_hash id);
void once__pg_seen_soon(const once_pg_seen *seen, once_hash id); /* prefetches its memory for one of the others */
void once__pg_seen_add(once_pg_seen *seen, once_hash id);
void once__pg_seen_release(once_pg_seen *seen);
void once__pg_remember_seen(once_postgres *q); /* adds all slots that have rows */

/* Turns (turns.c). */
int once__pg_turns_init(once_postgres *q, once_bytes consumer, once_error *err);
int once__pg_turns_tell(once_postgres *q,
                        once_error *err); /* between transactions: writes that turns are taken now, if that is due */
int once__pg_plan_send(once_postgres *q, once_error *err); /* sends PG_PLAN, before locks are taken */
/* For PG_NOW: how long a batch that queues waits for a lock; otherwise NULL. */
void once__pg_param_queue(const once_postgres *q, once_pg_params *params);
int once__pg_turn_send(once_postgres *q, size_t *sent,
                       once_error *err); /* behind BEGIN: takes the turn, if turns are taken now, and `locks` */
void once__pg_turn_plan(once_postgres *q,
                        bool effects);      /* before a batch: decides whether it needs a turn, and whether it queues */
void once__pg_turn_taken(once_postgres *q); /* the round with once__pg_turn_send has succeeded */
bool once__pg_turn_missed(const once_postgres *q); /* the last round failed because others have the turn, or `locks` */
void once__pg_turn_again(once_postgres *q);        /* after that: decides how to ask next */

/* Names (names.c). The first four return NULL when memory is out. A new name has number 0 until once__pg_names_resolve,
 * which asks the server for all of them. Texts are valid until the transaction ends. */
once_name *once__pg_name_scope(once_pg_names *names, const once_scope *scope);
once_name *once__pg_name_place(once_pg_names *names, once_bytes place);
once_name *once__pg_name_run(once_pg_names *names, uint64_t run);
once_name *once__pg_name_who(once_pg_names *names, once_bytes who);
int once__pg_names_resolve(once_postgres *q, once_error *err);
/* From numbers to texts: `want` all that will be needed, then `fetch`, then `get`. NULL: there is no such name. */
bool once__pg_names_want(once_pg_names *names, int32_t number);
int once__pg_names_fetch(once_postgres *q, once_error *err);
const once_name *once__pg_names_get(const once_pg_names *names, int32_t number);
/* Numbers from an earlier transaction may be wrong by now: the store was restored, or a failover has lost some names.
 * Every transaction asks for the newest one, together with the time; `confirm` compares the answer. Behind a pooler a
 * failover need not end the connection. So there the server compares all names that are used, in a round that is sent
 * anyway (`check_send`; *sent counts the statement), and the round fails when they differ (`failed` gives its status).
 * Either way the status is ONCE_E_ABORTED: the transaction is repeated, and the names are read again. */
int once__pg_names_confirm(once_postgres *q, once_bytes newest, once_error *err);
int once__pg_names_check_send(once_postgres *q, size_t *sent, once_error *err);
int once__pg_names_failed(once_postgres *q, int rc, once_error *err);
void once__pg_names_end(once_pg_names *names, bool committed);
void once__pg_names_clear(once_pg_names *names);

/* Whether each number is that of a name of its kind; all were fetched before (repair.c). */
bool once__pg_names_whole(const once_postgres *q, const once_pg_names_of *names);
int once__pg_verify(once_postgres *q, void (*damage)(void *user, const char *text), void *user,
                    once_error *err); /* verify.c */
int once__pg_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err);

/* Opens a store on a connection of the caller, which must not be in a transaction; creates missing tables. Close the
 * store before the connection; closing the store leaves the connection open. A transaction of the store is a savepoint
 * inside the caller's transaction, or one of its own when the caller has none. The connection is in pipeline mode from
 * begin to commit; between once__pg_pause and once__pg_resume the caller may use it. */
int once__pg_store_borrow(PGconn *conn, const once_store_options *options, once_backend **out, once_error *err);
void once__pg_pause(once_backend *store);
int once__pg_resume(once_backend *store, once_error *err);
void once__pg_abandon(once_backend *store); /* while paused: the transaction has ended, there is nothing to roll back */

/* Test builds only: replaces the clock of the server. NULL: its own clock. */
extern int64_t (*once__pg_test_clock)(const once_env *env);

#endif
