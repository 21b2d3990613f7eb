/* The PostgreSQL driver of db.h, and what the postgres store needs of it: the connection itself and statements of
 * our own.  The connection is always in libpq's pipeline mode. Statements are sent, and one round (a Sync) brings
 * all their results: so BEGIN, locks and reads of a batch cost one round trip. Values travel in binary form; a batch
 * is an array per column.  Statements of effects may be left behind a Sync of their own without waiting for it
 * (once_db_presume). Their results are read before those of the next round. The Sync is there so that a worker that
 * is stopped before its commit does not leave the server in the middle of a message: only between rounds does it
 * notice that nobody talks to it any more. When one of them failed, the transaction is aborted, and a COMMIT that
 * was sent behind them is a rollback.  However much is sent at a time, neither side waits for the other to read:
 * libpq takes in what comes while it cannot send.  One connection serves both the store and the user's statements,
 * which is what makes SQL effects atomic.  A connection that was lost stays so until once__pg_connect, which the
 * store calls when a transaction begins. All prepared statements, the user's too, are then prepared anew.  The
 * session behind a connection may not be ours alone: a pooler hands it to others between two transactions
 * (pooler.c). Then nothing is kept in it.  Thread rule: one thread at a time. */
#ifndef ONCE_DB_POSTGRES_POSTGRES_H
#define ONCE_DB_POSTGRES_POSTGRES_H

#include <libpq-fe.h>
#include <string.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/cancel.h"
#include "db/db.h"

enum { ONCE_PG_NAME = 64 }; /* of a schema, with its end */

typedef struct once_pg_stmt once_pg_stmt; /* of the user */

/* A statement of our own. Its name is made of its text, so that one of this name is this one, whoever prepared it. */
enum { PG_NAME_SIZE = 64 };
typedef struct once_pg_text {
    char name[PG_NAME_SIZE];
    char *sql;
    const char *shape; /* of its answer */
} once_pg_text;

/* What must be answered to a statement of the round that is under way. */
enum { PG_ROUND_MAX = 32 };
typedef struct once_pg_expected {
    const char *sql, *shape; /* shape NULL: anything */
    size_t most;             /* rows; 0: as the shape says */
} once_pg_expected;

/* Statements with a Sync behind them, and what must be answered to each. */
typedef struct once_pg_part {
    size_t n; /* 0: there is none */
    once_pg_expected expected[PG_ROUND_MAX];
} once_pg_part;

/* Reads the later part of a round, by once__pg_later. */
typedef int once_pg_later(void *user, once_error *err);

typedef struct once_pg {
    once_db db;
    const once_env *env;
    PGconn *conn;  /* NULL: not connected */
    bool borrowed; /* the caller's own: in pipeline mode only while we use it, not closed, and not connected anew */
    char *conninfo;
    char tables_in[ONCE_PG_NAME]; /* the schema of the store's tables, once it is settled; before that what the URL
                                     says, or empty */
    char where[160];              /* "postgres 'host/database'", for errors; no secrets */
    once_cancel cancel;           /* asked while the server is waited for */
    int64_t answer_ms;            /* so long it may be silent before we ask it why (wait.c); 0: for ever */
    char session[120]; /* a condition that finds this connection in pg_stat_activity; empty: a pooler has not said whom
                          it chose */
    uint64_t connections; /* that were made so far: what is known of one is not known of the next */
    int backend;          /* the server's process of this session */
    bool shared;          /* sessions are not ours alone: a pooler is in between */
    bool found_out;       /* which only showed later; not forgotten by a new connection */
    char *local;          /* shared: the statement that every transaction begins with; NULL: none */
    size_t local_at;      /* where its result is in the round that is under way, + 1; 0: nowhere */
    char *schema;         /* where the store's tables are, quoted; NULL: not known yet */
    char silence[80];     /* why we stopped waiting; empty: we did not */
    bool asking;          /* this is the second connection, that asks about the first */
    size_t unsent;        /* bytes that libpq keeps for us, more or less */
    char application[72]; /* "once:CONSUMER", as the server shows it */
    once_pg_text *sql;    /* the store's statements; NULL before its tables are there */
    size_t n_sql;
    once_pg_stmt *users; /* all of them, for preparing them anew */
    unsigned next_user;
    once_buf values;    /* of the user's statement that is being sent, as texts ... */
    const char **texts; /* ... and where each begins; NULL: none */
    size_t texts_size;
    size_t pending;                          /* statements sent whose results have not been read */
    once_pg_expected expected[PG_ROUND_MAX]; /* of these */
    bool synced;                             /* a Sync was sent behind them */
    once_pg_part head, later;                /* of a round in two parts */
    once_pg_later *read_later;               /* who reads the later one ... */
    void *later_user;                        /* ... and for whom */
    size_t
        rides; /* groups of the user's statements before them, each with a Sync, that are presumed to have succeeded */
    bool presumed;     /* there was such a group in the open transaction */
    bool asked;        /* something was sent since the last answer was waited for */
    uint64_t trips;    /* how often one was: round trips */
    bool unused;       /* our tables are there, and nothing is in them */
    bool unreplicated; /* a COMMIT did not wait for its standby; whoever sends one looks */
    bool stale;        /* a table has changed under a prepared statement: a new connection is needed */
    bool temps;        /* effects make temporary tables: ONCE_PG_GUARD_TEMP */
    bool deferrable;   /* the database has constraints that are checked at commit */
    bool collided; /* it has rolled something back because of others: a deadlock, a lock that was waited for too long;
                      whoever looks clears it */
    unsigned savepoints;     /* open ones */
    bool effects;            /* statements of the user were sent in the open transaction */
    once_buf begun;          /* what that was at its beginning (guard.c): texts, each with its end */
    bool session_lock;       /* the store's: this session holds an advisory lock, which ends with it */
    size_t failed_at;        /* the last round that failed: which statement ... */
    char failed_state[6];    /* ... and its SQLSTATE; empty: the connection did */
    struct once_pg_own *own; /* of a connection of its own (tx.c); NULL: the store's */
} once_pg;

/* ---- connection ---- */

/* `rest` is the URL behind "postgres:". Nothing is connected yet. */
int once__pg_new(const char *rest, const once_env *env, once_bytes consumer, once_cancel cancel, once_pg **out,
                 once_error *err);
/* Wraps a connection of the caller and leaves its settings alone. */
int once__pg_borrow(PGconn *conn, const once_env *env, once_pg **out, once_error *err);
/* A borrowed connection becomes ours for a while, and the caller's again. */
int once__pg_enter(once_pg *pg, once_error *err);
void once__pg_leave(once_pg *pg);
void once__pg_free(once_pg *pg); /* NULL is fine */
/* Makes sure that there is a connection. Tries for `wait_ms`, with growing pauses; 0: once. */
int once__pg_connect(once_pg *pg, int64_t wait_ms, once_error *err);
/* Makes the store's statements ready: all tables of ours in them (once_...) are those of pg->schema. */
int once__pg_statements(once_pg *pg, const char *const *sql, const char *const *shapes, size_t n, once_error *err);
int once__pg_prepare(
    once_pg *pg,
    once_error *err); /* all of pg->sql and of the user's statements, as far as this session does not have them */
bool once__pg_alive(const once_pg *pg);
void once__pg_drop(once_pg *pg); /* whatever was open there is rolled back by the server */

/* ---- values ---- */

enum { PG_BOOL = 16, PG_BYTEA = 17, PG_INT8 = 20, PG_INT2 = 21, PG_INT4 = 23, PG_TID = 27, PG_UUID = 2950 };
enum {
    PG_NUMERIC = 1700,
    PG_FLOAT4 = 700,
    PG_FLOAT8 = 701,
    PG_TEXT = 25,
    PG_VARCHAR = 1043,
    PG_BPCHAR = 1042,
    PG_JSON = 114,
    PG_JSONB = 3802
};

enum { PG_TID_SIZE = 6 }; /* where a row is, as it travels */

/* A column of a batch: appended to value by value, in memory of its own that is kept from batch to batch. */
typedef struct once_pg_array {
    once_buf buf;
    uint32_t n;
    bool has_null;
} once_pg_array;

void once__pg_array_init(once_pg_array *array);
void once__pg_array_release(once_pg_array *array);
void once__pg_array_begin(once_pg_array *array, uint32_t type);
void once__pg_put_int8(once_pg_array *array, int64_t value);
void once__pg_put_int4(once_pg_array *array, int32_t value);
void once__pg_put_int2(once_pg_array *array, int16_t value);
void once__pg_put_bool(once_pg_array *array, bool value);
void once__pg_put_id(once_pg_array *array, once_hash id);
void once__pg_put_tid(once_pg_array *array, const unsigned char tid[PG_TID_SIZE]);
void once__pg_put_bytes(once_pg_array *array, once_bytes bytes);
void once__pg_put_null(once_pg_array *array);

enum { PG_PARAMS_MAX = 32 };
typedef struct once_pg_params {
    int n;
    bool failed; /* an array ran out of memory */
    const char *values[PG_PARAMS_MAX];
    int lengths[PG_PARAMS_MAX];
    unsigned char numbers[PG_PARAMS_MAX][16];
} once_pg_params;

void once__pg_param_int8(once_pg_params *params, int64_t value);
void once__pg_param_id(once_pg_params *params, once_hash id);
void once__pg_param_bytes(once_pg_params *params, once_bytes bytes); /* not copied */
void once__pg_param_null(once_pg_params *params);
void once__pg_param_array(once_pg_params *params, once_pg_array *array); /* not copied */

/* ---- what is answered (reply.c) ---- */

/* A shape: '1' (one row), '?' (at most one) or '*', then a letter for each column: q, i, h (integers of 8, 4, 2
 * bytes), b (boolean), u (uuid), d (tid), y (bytea), t (anything, also in text form). A capital letter may be NULL.
 * '+' at the end: there may be more columns. "": no rows and no columns. once__pg_round looks at all answers before
 * anybody reads of them. */
bool once__pg_fits(const PGresult *result, const char *shape, size_t most);
/* Of the statement that was sent last. Texts and shapes must live until the round is over. */
void once__pg_must(once_pg *pg, const char *sql, const char *shape, size_t most);
int once__pg_misfit(once_pg *pg, const char *sql, once_error *err); /* names the statement, and ends the connection */
/* As once__pg_exec, for one statement with an answer. */
int once__pg_ask(once_pg *pg, const char *sql, const char *shape, PGresult **out, once_error *err);
const char *once__pg_text(const PGresult *result, int row, int column); /* in text form; NULL reads as empty */
int64_t once__pg_int(const PGresult *result, int row, int column);      /* int2, int4, int8, bool; NULL reads as 0 */
bool once__pg_null(const PGresult *result, int row, int column);
once_hash once__pg_id(const PGresult *result, int row, int column);     /* NULL reads as zero */
once_bytes once__pg_bytes(const PGresult *result, int row, int column); /* lives as long as the result */

/* ---- statements of our own ---- */

/* Sends statement `number` of pg->sql; nothing is waited for. params may be NULL. */
int once__pg_send(once_pg *pg, unsigned number, const once_pg_params *params, once_error *err);
/* The same for any one statement without parameters. */
int once__pg_send_text(once_pg *pg, const char *sql, once_error *err);
/* Ends the round and reads the results of all statements that were sent: exactly n. On failure all are freed, and
 * the status is that of the first one that failed. */
int once__pg_round(once_pg *pg, PGresult **results, size_t n, once_error *err);
/* A round in two parts, of which only the first one is waited for, while the server goes on with the second. `split`
 * ends the first part; what is sent behind it is the second, and `head` reads the n results of the first. Whoever reads
 * anything else after that has `read` called before, or once__pg_confirm does. A statement that fails in the second
 * part fails all that come after it in the transaction, and its COMMIT. */
int once__pg_split(once_pg *pg, once_error *err);
int once__pg_head(once_pg *pg, PGresult **results, size_t n, once_pg_later *read, void *user, once_error *err);
/* The n results of the second part, once. As once__pg_round. */
int once__pg_later(once_pg *pg, PGresult **results, size_t n, once_error *err);
void once__pg_clear(PGresult **results, size_t n);
/* One statement, or several without results (`;` between), not in pipeline mode and not in a transaction of the
 * store. */
int once__pg_exec(once_pg *pg, const char *sql, PGresult **out, once_error *err);
/* A transaction around such statements. A failed one is ended without reporting an outcome. */
int once__pg_exec_begin(once_pg *pg, bool write, once_error *err);
int once__pg_exec_end(once_pg *pg, int rc,
                      once_error *err); /* COMMIT when rc is ONCE_OK, else ROLLBACK; the status of it all */

/* ---- whose session it is (pooler.c) ---- */

int once__pg_greet(once_pg *pg, once_error *err); /* a new connection: who serves it, and are we alone there? */
/* BEGIN (`sql`) as the first statement of a round, and behind it what a shared session has to be told; *sent counts
 * them. */
int once__pg_begin_sql(once_pg *pg, const char *sql, size_t *sent, once_error *err);
/* Inside of a transaction `backend` has answered. ONCE_E_ABORTED: it is not the one that we know, so there is a
 * pooler. */
int once__pg_same_session(once_pg *pg, int64_t backend, once_error *err);
/* A SQLSTATE that says that a statement we prepared is not there, or one that we did not prepare is. */
void once__pg_heed_state(once_pg *pg, const char *state);
int once__pg_learn_local(once_pg *pg, once_error *err); /* anew: there is a statement of the user more */
/* The result of pg->local is there. Fails: a statement of the user would mean a temporary table of somebody else. */
int once__pg_told_local(once_pg *pg, const PGresult *result, once_error *err);
void once__pg_forget_session(once_pg *pg); /* a transaction has ended: whoever serves the next one is not known yet */
/* What a pooler says when it will never work; NULL: it is something else. */
const char *once__pg_pooler_refuses(const char *text);

/* The status that fits, and "postgres 'x': what; what to do". result may be NULL: the connection failed. */
#define ONCE_PG_STANDBY                                                                                                \
    "this is a hot standby, where nothing can be written: a failover is under way, or the URL names the wrong "        \
    "server; connect to the primary;"                                                                                  \
    " target_session_attrs=read-write finds it"
int once__pg_fail(once_pg *pg, const PGresult *result, once_error *err);
/* Outside of a transaction: ONCE_E_DENIED with the GRANTs that the user's statements lack. */
int once__pg_user_rights(once_pg *pg, once_error *err);
static inline bool once__pg_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}
int once__pg_status(const char *sqlstate); /* "" or NULL: the connection is gone */

/* ---- shared by the files here ---- */

struct once_pg_stmt {
    once_stmt stmt;
    once_pg_stmt *next;
    char name[PG_NAME_SIZE];
    char *sql;
    unsigned *types; /* of its parameters, as the server infers them */
    bool rides;      /* it is among those that are presumed to have succeeded */
    unsigned names;  /* messages in a row that failed because of a name that they gave */
};

extern const once_db_ops once__pg_ops;
void once__pg_put_words(const once_pg *pg, const char *sql,
                        once_buf *out); /* the words of a statement, as literals: 'a', 'shop.b', ... */
/* "once_", what it is, and a hash of all that the statement says. */
void once__pg_name(char out[PG_NAME_SIZE], const char *what, const char *sql);
void once__pg_option(PGconn *conn, const char *name, char *out,
                     size_t size); /* of the connection, as it is in the end */
/* Waiting (wait.c). A new connection, in blocking mode: */
int once__pg_dial(once_pg *pg, PGconn **out, once_error *err);
void once__pg_say_where(once_pg *pg, PGconn *conn);
/* Until PQgetResult will not block (to_read), or everything is sent. false: pg->silence says why we do not wait any
 * longer, and the connection must be dropped. A connection that is broken counts as something to read. */
bool once__pg_wait(once_pg *pg, bool to_read);
/* As PQexec. NULL: the connection failed, or we stopped waiting. */
PGresult *once__pg_simple(once_pg *pg, const char *sql);
PGresult *
once__pg_result(once_pg *pg); /* as PQgetResult. NULL with pg->silence: the connection cannot be used any more */
/* Whose fault an error is (value.c). What a statement was given: */
typedef struct once_pg_given {
    const char *sql;
    const once_value *values;
    const unsigned *types;
    size_t n;
} once_pg_given;
typedef enum once_pg_blame {
    ONCE_PG_BLAME_NOBODY, /* as its state says */
    ONCE_PG_BLAME_UNSURE, /* as its state says, but the server's text may show a value */
    ONCE_PG_BLAME_VALUE,  /* the message's: a value that cannot be read */
    ONCE_PG_BLAME_NAME    /* the message's, unless many do the same: a value that names what is not there, or what looks
                             like one */
} once_pg_blame;
once_pg_blame once__pg_blame(const PGresult *result, const once_pg_given *given);
void once__pg_say_blame(const char *state, bool of_message, char *out,
                        size_t size); /* without a word of the server's */
int once__pg_fault(once_pg *pg, const PGresult *result,
                   once_fault *fault); /* of a statement of the user; result NULL: the connection failed */
int once__pg_next(once_pg *pg, PGresult **out,
                  once_error *err); /* the next result; a failed one is one, too. Fails: the connection did */
int once__pg_sent(once_pg *pg, size_t bytes,
                  once_error *err);              /* a statement was; libpq does not pile up more than some of them */
int once__pg_push(once_pg *pg, once_error *err); /* what was sent so far goes out now; no answer is waited for */
int once__pg_sync(once_pg *pg, once_error *err);
int once__pg_synced(once_pg *pg, once_error *err); /* reads up to the end of the round */
int once__pg_lost(once_pg *pg, once_error *err);   /* the connection cannot be used any more */
PGresult *once__pg_read(
    once_pg *pg); /* the next thing that comes; NULL also when the connection is gone, or we stopped waiting */
int once__pg_confirm(once_pg *pg, once_error *err); /* what was presumed: once_db_confirm */
/* Refuses what is not allowed in the user's SQL, by name. With `whole`: a script of several statements. */
int once__pg_look(once_bytes sql, bool whole, once_error *err);

/* ---- what a transaction with effects is (guard.c) ---- */

/* Of all settings of a session those that say what a statement of the next message means, or whether its constraints
 * hold. */
/* SQL made of pieces: broken by hand. */
/* clang-format off */
#define ONCE_PG_SETTINGS(X)                                                                                           \
    X("client_encoding") ", " X("session_replication_role") ", " X("row_security") ", " X("DateStyle") ","             \
    " " X("IntervalStyle") ", " X("TimeZone") ", "                                                                     \
    X("standard_conforming_strings") ", " X("default_transaction_isolation") ", " X("default_text_search_config") ","  \
    " " X("lc_monetary") ", "                                                                                          \
    X("lc_numeric") ", " X("bytea_output") ", " X("extra_float_digits") ", " X("xmloption") ", " X("array_nulls") ","  \
    " " X("transform_null_equals")
#define ONCE_PG_SETTING_NAME(name) "'" name "'"
#define ONCE_PG_SETTING_IS(name) "pg_catalog.current_setting('" name "')"
#define ONCE_PG_BEGUN                                                                                                 \
    "current_user::pg_catalog.text, pg_catalog.current_setting('search_path'),"                                        \
    " pg_catalog.current_setting('synchronous_commit'),"                                                               \
    " extract(epoch FROM pg_catalog.now())::pg_catalog.text, pg_catalog.concat_ws(pg_catalog.chr(10),"                 \
    " " ONCE_PG_SETTINGS(ONCE_PG_SETTING_IS) ")"
#define ONCE_PG_WAS(what, is, was) "pg_catalog.concat(" what ", ' was ', pg_catalog.left(" was ", 60), ' and is ',"    \
    " pg_catalog.left(" is ", 60))"
#define ONCE_PG_DIFFERS(what, is, was) "CASE WHEN NOT pg_catalog.texteq(" is ", " was ")"                              \
    " THEN " ONCE_PG_WAS("'" what "'", is, was) " END"
#define ONCE_PG_OTHER_TX "it is another transaction"
/* Temporary tables that are found instead of others of their name: what the next message writes there ends with the
 * session. Nearly always a session has none, and that costs nothing to know: ONCE_PG_GUARD fails where it has some,
 * unless the last parameter says that their names come last. From then on it is ONCE_PG_GUARD_TEMP that is asked,
 * which looks for their names. */
#define ONCE_PG_TEMPS "temporary tables"
#define ONCE_PG_NO_TEMPS "pg_catalog.oideq(pg_catalog.pg_my_temp_schema(), 0)"
#define ONCE_PG_HIDES "a temporary table hides another one"
#define ONCE_PG_HIDDEN                                                                                                \
    "CASE WHEN " ONCE_PG_NO_TEMPS " THEN '' ELSE COALESCE((SELECT pg_catalog.string_agg(x.n, ', ') FROM"               \
    " (SELECT d.objid::pg_catalog.regclass::pg_catalog.text FROM pg_catalog.pg_depend d WHERE d.refclassid"            \
    " OPERATOR(pg_catalog.=)"                                                                                          \
    " 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.refobjid OPERATOR(pg_catalog.=)"                            \
    " pg_catalog.pg_my_temp_schema() AND d.classid"                                                                    \
    " OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass AND pg_catalog.pg_table_is_visible(d.objid))"  \
    " AS x(n) WHERE EXISTS"                                                                                            \
    " (SELECT FROM pg_catalog.unnest(pg_catalog.array_append(pg_catalog.current_schemas(false),"                       \
    " 'pg_catalog'::pg_catalog.name)) AS u(s)"                                                                         \
    " WHERE pg_catalog.to_regclass(pg_catalog.concat(pg_catalog.quote_ident(u.s), '.', x.n)) IS NOT NULL)), '') END"
/* Fails (22P02) with what differs from ONCE_PG_BEGUN, the parameters. What matters most is first, because texts are
 * cut. */
#define ONCE_PG_GUARD_OF(fine, says, hidden)                                                                          \
    "SELECT CASE WHEN pg_catalog.texteq(r, $1) AND pg_catalog.texteq(p, $2) AND pg_catalog.texteq(s, $3)"              \
    " AND pg_catalog.texteq(t, $4)"                                                                                    \
    " AND pg_catalog.texteq(o, $5) AND (" fine " OR pg_catalog.texteq($6, 'last')) THEN 0 ELSE"                       \
    " pg_catalog.concat('once(', pg_catalog.concat_ws(', ', CASE WHEN NOT pg_catalog.texteq(t, $4)"                    \
    " THEN '" ONCE_PG_OTHER_TX "' END,"                                                                                \
    " CASE WHEN NOT (" fine " OR pg_catalog.texteq($6, 'last')) THEN " says " END, "                                  \
    ONCE_PG_DIFFERS("role", "r", "$1") ", " ONCE_PG_DIFFERS("search_path", "p", "$2") ","                              \
    " " ONCE_PG_DIFFERS("synchronous_commit", "s", "$3") ","                                                           \
    " (SELECT pg_catalog.string_agg(" ONCE_PG_WAS("n", "i", "w") ", ', ') FROM ROWS FROM (pg_catalog.unnest(ARRAY["    \
    ONCE_PG_SETTINGS(ONCE_PG_SETTING_NAME) "]::pg_catalog.text[]), pg_catalog.unnest(pg_catalog.string_to_array($5,"   \
    " pg_catalog.chr(10))),"                                                                                           \
    " pg_catalog.unnest(pg_catalog.string_to_array(o, pg_catalog.chr(10)))) AS u(n, w, i)"                             \
    " WHERE NOT pg_catalog.texteq(w, i))),"                                                                            \
    " ')once')::pg_catalog.int4 END FROM (SELECT " ONCE_PG_BEGUN hidden ")"
#define ONCE_PG_GUARD ONCE_PG_GUARD_OF(ONCE_PG_NO_TEMPS, "'" ONCE_PG_TEMPS "'", "") " AS q(r, p, s, t, o)"
#define ONCE_PG_GUARD_TEMP                                                                                            \
    ONCE_PG_GUARD_OF("pg_catalog.texteq(h, '')", "pg_catalog.concat('" ONCE_PG_HIDES ": ', pg_catalog.left(h,"         \
    " 60))", ", " ONCE_PG_HIDDEN " OFFSET 0")                                                                          \
    " AS q(r, p, s, t, o, h)"
/* clang-format on */

int once__pg_guard_keep(once_pg *pg, const PGresult *result, int column,
                        once_error *err);                              /* ONCE_PG_BEGUN, from that column on */
void once__pg_guard_params(const once_pg *pg, once_pg_params *params); /* of either of them; not copied */
/* The status, when an error is that of ONCE_PG_GUARD, and what it says: ONCE_E_SCHEMA: nothing was committed.
 * ONCE_E_COMMIT_UNKNOWN: that is not known, because the transaction was ended in the middle. ONCE_E_ABORTED: it has
 * temporary tables, and must be asked otherwise from now on. ONCE_OK: it is another error. */
int once__pg_guard_said(once_pg *pg, const char *state, const char *text, char *out, size_t size);

/* ---- a connection of its own (tx.c) ---- */

int once__pg_open(const char *rest, const once_db_options *options, once_db **out, once_error *err);
int once__pg_tx_begin(once_db *db, once_error *err);
int once__pg_tx_commit(once_db *db, bool *maybe, once_fault *fault);
void once__pg_tx_rollback(once_db *db);
int once__pg_identity(once_db *db, char *out, size_t len, once_error *err);
void once__pg_close_own(once_db *db);

#endif
