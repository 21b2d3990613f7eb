/* The PostgreSQL driver of db.h, and what the postgres store uses of it: the connection and statements of our own.
 *
 * Rounds. The connection is always in libpq's pipeline mode. Statements are sent, and a round ends with a Sync and
 * reads all results: BEGIN, locks and reads of a batch cost one round trip. Values are sent in binary form; a batch is
 * one array per column. However much is sent, neither side blocks the other: libpq reads while it cannot send.
 *
 * Presumed statements. Statements of effects may be left behind a Sync of their own, and not waited for
 * (once_db_presume). Their results are read before those of the next round. The Sync is needed so that a worker which
 * is stopped before its commit does not leave the server in the middle of a message: only between Syncs does the server
 * notice that the client is gone. If one of these statements has failed, the transaction is aborted, and a COMMIT that
 * was sent behind it is a rollback.
 *
 * One connection serves the store and the user's statements. That makes SQL effects atomic with outcomes.
 *
 * A lost connection stays lost until once__pg_connect, which the store calls when a transaction begins. Then all
 * statements, the user's as well, are prepared again. Behind a pooler the session is not ours alone: other clients get
 * it between two transactions (pooler.c). Then nothing is kept in it.
 *
 * Files: postgres.c (connection), wait.c (all waiting), round.c (sending and reading), params.c and reply.c (values),
 * status.c (errors), pooler.c, guard.c, tx.c (a connection of its own); for statements of the user words.c (checks),
 * prepare.c, user.c (running), fault.c and value.c (whose fault an error is).
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_DB_POSTGRES_POSTGRES_H
#define ONCE_DB_POSTGRES_POSTGRES_H

#include <libpq-fe.h>
#include <string.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/cancel.h"
#include "db/db.h"

enum { ONCE_PG_NAME = 64 }; /* size of the name of a schema, with its NUL */

typedef struct once_pg_stmt once_pg_stmt; /* of the user */

/* A statement of our own. Its name contains a hash of its text, so a prepared statement of this name is this one, even
 * if another process has prepared it. */
enum { PG_NAME_SIZE = 64 };
typedef struct once_pg_text {
    char name[PG_NAME_SIZE];
    char *sql;
    const char *shape; /* of its result, see once__pg_fits */
} once_pg_text;

/* What the result of a statement in the current round must look like. */
enum { PG_ROUND_MAX = 32 };
typedef struct once_pg_expected {
    const char *sql, *shape; /* shape NULL: anything */
    size_t most;             /* rows at most; 0: as the shape says */
} once_pg_expected;

/* Statements with a Sync behind them, and the shape of each result. */
typedef struct once_pg_part {
    size_t n; /* 0: there is none */
    once_pg_expected expected[PG_ROUND_MAX];
} once_pg_part;

/* Reads the second part of a round, by calling once__pg_later. */
typedef int once_pg_later(void *user, once_error *err);

typedef struct once_pg {
    once_db db;
    const once_env *env;
    PGconn *conn;  /* NULL: not connected */
    bool borrowed; /* the caller's connection: in pipeline mode only while we use it, never closed or reconnected */
    char *conninfo;
    char tables_in[ONCE_PG_NAME]; /* the schema of the store's tables; before it is known, the one in the URL, or
                                     empty */
    char where[160];              /* "postgres 'host/database'", for errors; has no secrets */
    once_cancel cancel;           /* asked while we wait for the server */
    int64_t answer_ms;            /* how long the server may be silent before we ask why (wait.c); 0: without limit */
    char session[120];            /* a condition that finds this session in pg_stat_activity; empty: behind a pooler it
                                     is not known yet */
    uint64_t connections;         /* number of connections so far: what was read from an older one may be outdated */
    int backend;                  /* the server process of this session */
    bool shared;                  /* behind a pooler: other clients use the session, too */
    bool found_out;               /* that was found late; it stays known after a reconnect */
    char *local;                  /* shared: the statement that every transaction begins with; NULL: none */
    size_t local_at;              /* the position of its result in the current round, + 1; 0: none */
    char *schema;                 /* the schema of the store's tables, quoted; NULL: not known yet */
    char silence[80];             /* why we stopped waiting; empty: we did not */
    bool asking;                  /* this is the second connection, which asks about the first */
    size_t unsent;                /* bytes that libpq has not sent yet, approximately */
    char application[72];         /* "once:CONSUMER", as the server shows it */
    once_pg_text *sql;            /* the store's statements; NULL before its tables exist */
    size_t n_sql;
    once_pg_stmt *users; /* all statements of the user, to be prepared again after a reconnect */
    unsigned next_user;
    once_buf values;        /* the values of the user's statement that is being sent, as texts ... */
    const char **texts;     /* ... and the beginning of each; NULL: SQL NULL. Bytes are where the message has them */
    int *lengths, *formats; /* of each: for bytes their number and 1, otherwise 0 and 0 */
    size_t texts_size;
    size_t pending;                          /* statements of this round whose results were not read */
    once_pg_expected expected[PG_ROUND_MAX]; /* the shapes of their results */
    bool synced;                             /* a Sync was sent behind them */
    once_pg_part head, later;                /* of a round in two parts */
    once_pg_later *read_later;               /* reads the second part ... */
    void *later_user;                        /* ... with this argument */
    size_t presumed_groups; /* the user's statements before them that are presumed to have succeeded, in groups; a
                             * Sync was sent behind each group */
    bool presumed;          /* the open transaction had such a group */
    bool asked;             /* something was sent since the last wait for an answer */
    uint64_t trips;         /* round trips so far: waits for an answer */
    bool unused;            /* our tables exist and have never been used */
    bool unreplicated;      /* a COMMIT returned without its standby; the caller of COMMIT looks at it */
    bool stale;             /* a table has changed under a prepared statement: a new connection is needed */
    bool temps;             /* effects make temporary tables: ONCE_PG_GUARD_TEMP */
    bool deferrable;        /* the database has constraints that are checked at commit */
    bool collided;       /* a statement failed because of another transaction: a deadlock, or a lock that took too long;
                        * the reader clears it */
    unsigned savepoints; /* open ones */
    bool effects;        /* statements of the user were sent in the open transaction */
    once_buf begun;      /* what guard.c noted when the transaction began: texts, each with its NUL */
    bool session_lock;   /* the session holds the advisory lock of the sweep */
    size_t failed_at;    /* the last failed round: the position of the statement that failed ... */
    char failed_state[6];    /* ... and its SQLSTATE; empty: the connection failed */
    struct once_pg_own *own; /* a connection that is not the store's (tx.c); NULL: the store's */
} once_pg;

/* ---- connection ---- */

/* `rest` is the URL behind "postgres:". Nothing is connected yet. */
int once__pg_new(const char *rest, const once_env *env, once_bytes consumer, once_cancel cancel, once_pg **out,
                 once_error *err);
/* Wraps a connection of the caller and leaves its settings alone. */
int once__pg_borrow(PGconn *conn, const once_env *env, once_pg **out, once_error *err);
/* Switches a borrowed connection to pipeline mode for us, and back for the caller. */
int once__pg_enter(once_pg *pg, once_error *err);
void once__pg_leave(once_pg *pg);
void once__pg_free(once_pg *pg); /* NULL is fine */
/* Connects unless there is a connection. Tries for wait_ms, with growing pauses; 0: tries once. */
int once__pg_connect(once_pg *pg, int64_t wait_ms, once_error *err);
/* Sets the store's statements; puts pg->schema before every table of ours (once_...) in them. */
int once__pg_statements(once_pg *pg, const char *const *sql, const char *const *shapes, size_t n, once_error *err);
int once__pg_prepare(
    once_pg *pg,
    once_error *err); /* prepares pg->sql and the user's statements, those that this session does not have yet */
bool once__pg_alive(const once_pg *pg);
void once__pg_drop(once_pg *pg); /* closes the connection; the server rolls back an open transaction */

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

enum { PG_TID_SIZE = 6 }; /* bytes of a ctid on the wire */

/* A column of a batch: an array to which values are appended. Its memory is kept from batch to batch. */
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
    bool failed; /* memory for an array ran out */
    const char *values[PG_PARAMS_MAX];
    int lengths[PG_PARAMS_MAX];
    unsigned char numbers[PG_PARAMS_MAX][16];
} once_pg_params;

void once__pg_param_int8(once_pg_params *params, int64_t value);
void once__pg_param_id(once_pg_params *params, once_hash id);
void once__pg_param_bytes(once_pg_params *params, once_bytes bytes); /* not copied */
void once__pg_param_null(once_pg_params *params);
void once__pg_param_array(once_pg_params *params, once_pg_array *array); /* not copied */

/* ---- results (reply.c) ---- */

/* A shape: '1' (one row), '?' (at most one) or '*', then a letter for each column: q, i, h (integers of 8, 4, 2
 * bytes), b (boolean), u (uuid), d (tid), y (bytea), t (anything, also in text form). A capital letter may be NULL.
 * '+' at the end: there may be more columns. "": no rows and no columns. once__pg_round checks all results before it
 * returns them. */
bool once__pg_fits(const PGresult *result, const char *shape, size_t most);
/* Sets the shape for the statement that was sent last. Texts and shapes must stay valid until the round has ended. */
void once__pg_must(once_pg *pg, const char *sql, const char *shape, size_t most);
int once__pg_misfit(once_pg *pg, const char *sql,
                    once_error *err); /* the result does not fit: names the statement, and closes the connection */
/* As once__pg_exec, for one statement with a result, which must have this shape. */
int once__pg_ask(once_pg *pg, const char *sql, const char *shape, PGresult **out, once_error *err);
const char *once__pg_text(const PGresult *result, int row, int column); /* in text form; NULL reads as empty */
int64_t once__pg_int(const PGresult *result, int row, int column);      /* int2, int4, int8, bool; NULL reads as 0 */
bool once__pg_null(const PGresult *result, int row, int column);
once_hash once__pg_id(const PGresult *result, int row, int column);     /* NULL reads as zero */
once_bytes once__pg_bytes(const PGresult *result, int row, int column); /* valid as long as the result */

/* ---- statements of our own ---- */

/* Sends statement `number` of pg->sql, without waiting. params may be NULL. */
int once__pg_send(once_pg *pg, unsigned number, const once_pg_params *params, once_error *err);
/* The same for a statement given as text, without parameters. */
int once__pg_send_text(once_pg *pg, const char *sql, once_error *err);
/* Ends the round and reads the results of the n statements that were sent. On failure all results are freed, and the
 * status is that of the first statement that failed. */
int once__pg_round(once_pg *pg, PGresult **results, size_t n, once_error *err);
/* A round in two parts: we wait only for the first, while the server works on the second. `split` ends the first part;
 * statements that are sent behind it are the second; `head` reads the n results of the first. The next read of anything
 * else, or once__pg_confirm, calls `read` before, which must call once__pg_later. A statement that fails in the second
 * part makes all later statements of the transaction fail, and its COMMIT. */
int once__pg_split(once_pg *pg, once_error *err);
int once__pg_head(once_pg *pg, PGresult **results, size_t n, once_pg_later *read, void *user, once_error *err);
/* Reads the n results of the second part; called once. Fails like once__pg_round. */
int once__pg_later(once_pg *pg, PGresult **results, size_t n, once_error *err);
void once__pg_clear(PGresult **results, size_t n);
/* Runs one statement, or several without results separated by `;`, outside of pipeline mode and of a transaction of the
 * store. */
int once__pg_exec(once_pg *pg, const char *sql, PGresult **out, once_error *err);
/* A transaction around such statements. `begin` rolls back when it fails. */
int once__pg_exec_begin(once_pg *pg, bool write, once_error *err);
int once__pg_exec_end(once_pg *pg, int rc,
                      once_error *err); /* COMMIT when rc is ONCE_OK, else ROLLBACK; returns the status of all */

/* ---- poolers (pooler.c) ---- */

int once__pg_greet(once_pg *pg,
                   once_error *err); /* a new connection: finds the server process, and whether there is a pooler */
/* Sends BEGIN (`sql`) as the first statement of a round, and behind it the settings that a shared session needs; *sent
 * counts the statements. */
int once__pg_begin_sql(once_pg *pg, const char *sql, size_t *sent, once_error *err);
/* `backend` has answered inside a transaction. ONCE_E_ABORTED: it is another server process than before, so there is a
 * pooler. */
int once__pg_same_session(once_pg *pg, int64_t backend, once_error *err);
/* Looks at a SQLSTATE: a prepared statement of ours is missing, or exists already, where there is a pooler. */
void once__pg_heed_state(once_pg *pg, const char *state);
int once__pg_learn_local(once_pg *pg, once_error *err); /* builds pg->local; again for each statement of the user */
/* Reads the result of pg->local. Fails when a statement of the user would use a temporary table of another client. */
int once__pg_told_local(once_pg *pg, const PGresult *result, once_error *err);
void once__pg_forget_session(
    once_pg *pg); /* a transaction has ended: behind a pooler another process may serve the next */
/* What to do about an error of a pooler that will not pass; NULL: it is another error. */
const char *once__pg_pooler_refuses(const char *text);

/* The status of an error, and the text "postgres 'x': what; what to do". result NULL: the connection failed. */
#define ONCE_PG_STANDBY                                                                                                \
    "this is a hot standby, where nothing can be written: a failover is under way, or the URL names the wrong "        \
    "server; connect to the primary;"                                                                                  \
    " target_session_attrs=read-write finds it"
int once__pg_fail(once_pg *pg, const PGresult *result, once_error *err);
/* Outside of a transaction: ONCE_E_DENIED, with the GRANTs that the user's statements lack. */
int once__pg_user_rights(once_pg *pg, once_error *err);
static inline bool once__pg_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}
int once__pg_status(const char *sqlstate); /* of a SQLSTATE; "" or NULL: the connection is lost */

/* ---- shared by the files here ---- */

struct once_pg_stmt {
    once_stmt stmt;
    once_pg_stmt *next;
    char name[PG_NAME_SIZE];
    char *sql;
    unsigned *types; /* of its parameters, as the server infers them */
    bool presumed;   /* it was sent, and its result was not read */
    unsigned names;  /* messages in a row that failed because of a name that they contain */
};

extern const once_db_ops once__pg_ops;
void once__pg_put_words(const once_pg *pg, const char *sql,
                        once_buf *out); /* the words of a statement as SQL literals: 'a', 'shop.b', ... */
/* The name of a prepared statement: "once_", `what`, and a hash of its text. */
void once__pg_name(char out[PG_NAME_SIZE], const char *what, const char *sql);
void once__pg_option(PGconn *conn, const char *name, char *out,
                     size_t size); /* an option of the connection, from whatever source */
/* Waiting (wait.c). A new connection, in blocking mode: */
int once__pg_dial(once_pg *pg, PGconn **out, once_error *err);
void once__pg_say_where(once_pg *pg, PGconn *conn);
/* Waits until PQgetResult will not block (to_read), or until everything is sent. False: pg->silence says why we stopped
 * waiting, and the connection must be dropped. A broken connection counts as something to read. */
bool once__pg_wait(once_pg *pg, bool to_read);
/* As PQexec. NULL: the connection failed, or we stopped waiting. */
PGresult *once__pg_simple(once_pg *pg, const char *sql);
PGresult *once__pg_result(once_pg *pg); /* as PQgetResult. NULL with pg->silence set: the connection is unusable */
/* Whose fault an error is (value.c). A statement and its values: */
typedef struct once_pg_given {
    const char *sql;
    const once_value *values;
    const unsigned *types;
    size_t n;
} once_pg_given;
typedef enum once_pg_blame {
    ONCE_PG_BLAME_NOBODY,  /* the SQLSTATE decides */
    ONCE_PG_BLAME_UNKNOWN, /* the SQLSTATE decides, but the server's text may show a value */
    ONCE_PG_BLAME_VALUE,   /* the message: a value cannot be read */
    ONCE_PG_BLAME_NAME     /* the message, unless many in a row fail like this: a value names something that does not
                             exist */
} once_pg_blame;
once_pg_blame once__pg_blame(const PGresult *result, const once_pg_given *given);
void once__pg_say_blame(const char *state, bool of_message, char *out,
                        size_t size); /* a text that has no words of the server */
int once__pg_fault(once_pg *pg, const PGresult *result,
                   once_fault *fault); /* for a statement of the user; result NULL: the connection failed */
int once__pg_next(once_pg *pg, PGresult **out,
                  once_error *err); /* the next result, which may be an error. Fails when the connection does */
int once__pg_sent(once_pg *pg, size_t bytes,
                  once_error *err);              /* counts a statement that was sent; pushes when many are queued */
int once__pg_push(once_pg *pg, once_error *err); /* writes what is queued to the socket, without waiting for answers */
int once__pg_sync(once_pg *pg, once_error *err);
int once__pg_synced(once_pg *pg, once_error *err); /* reads to the end of the round */
int once__pg_lost(once_pg *pg, once_error *err);   /* drops the connection and returns why it is unusable */
PGresult *once__pg_read(
    once_pg *pg); /* the next result or NULL of libpq; NULL also when the connection is lost, or we stopped waiting */
int once__pg_confirm(once_pg *pg, once_error *err); /* once_db_confirm */
/* Refuses SQL of the user that is not allowed, and names the word. `whole`: a script of several statements. */
int once__pg_look(once_bytes sql, bool whole, once_error *err);

/* ---- the guard of a transaction with effects (guard.c) ---- */

/* The settings of a session that decide what a statement of the next message means, or whether constraints are
 * checked. */
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
/* A temporary table hides a table of the same name; what the next message writes there ends with the session. Nearly
 * always a session has no temporary tables, and that is cheap to check: ONCE_PG_GUARD fails when there are some, unless
 * the last parameter says that temporary tables are found last. From then on ONCE_PG_GUARD_TEMP is used, which compares
 * names. */
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
/* Compares ONCE_PG_BEGUN with the parameters. Fails (22P02) with the differences, the most important ones first,
 * because texts are cut. */
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
                        once_error *err); /* notes ONCE_PG_BEGUN, which begins at that column */
void once__pg_guard_params(const once_pg *pg, once_pg_params *params); /* the parameters of a guard; not copied */
/* The status of an error of the guard, and a text. ONCE_E_SCHEMA: nothing was committed. ONCE_E_COMMIT_UNKNOWN: the
 * transaction was ended in the middle, so that is unknown. ONCE_E_ABORTED: there are temporary tables, and the other
 * guard must be used from now on. ONCE_OK: the error is not of the guard. */
int once__pg_guard_said(once_pg *pg, const char *state, const char *text, char *out, size_t size);

/* ---- a connection of its own (tx.c) ---- */

int once__pg_open(const char *rest, const once_db_options *options, once_db **out, once_error *err);
int once__pg_tx_begin(once_db *db, once_error *err);
int once__pg_tx_commit(once_db *db, bool *maybe, once_fault *fault);
void once__pg_tx_rollback(once_db *db);
int once__pg_identity(once_db *db, char *out, size_t len, once_error *err);
void once__pg_close_own(once_db *db);

#endif
