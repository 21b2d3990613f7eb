/* A SQL database as effects and stores use it: connections, statements, values, faults. Drivers: sqlite, postgres
 * (drivers.c).
 *
 * There are two kinds of statements: those of once, and those of the user (effects). A statement of the user cannot end
 * the transaction, attach databases, change settings, or touch the tables of once (`once_...`). SQLite enforces that by
 * an authorizer; for PostgreSQL the words of a statement are checked, and a guard compares the transaction before it
 * commits.
 *
 * A run of effects, in short: once_db_begin, once_stmt_run for each statement, once_db_commit; or once_db_rollback.
 * Where once_db_sends, statements are sent without waiting, and share round trips.
 *
 * Thread rule: one thread at a time uses a connection and its statements. */
#ifndef ONCE_DB_DB_H
#define ONCE_DB_DB_H

#include <stdatomic.h>

#include "base/env.h"
#include "base/cancel.h"
#include "once/types.h"

typedef struct once_db once_db;
typedef struct once_stmt once_stmt;

typedef enum once_value_type {
    ONCE_VALUE_NULL,
    ONCE_VALUE_INTEGER, /* 64 bits */
    ONCE_VALUE_NUMBER,  /* any other number */
    ONCE_VALUE_TEXT,
    ONCE_VALUE_BYTES /* any bytes, kept exactly: a BLOB, a bytea */
} once_value_type;

/* A number of a message. The database gets `text` where it reads numbers as text (once_db_reads_numbers), otherwise
 * `real`, which may be used only when it `survives`. */
typedef struct once_number {
    once_bytes text; /* as written in JSON */
    double real;     /* the nearest double */
    bool survives;   /* printing the double gives the same decimal number */
} once_number;

/* A parameter of a statement. Text is not copied: it must stay valid until the statement has run. */
typedef struct once_value {
    once_value_type type;
    bool is_text; /* BYTES: they are text, and may be kept as text, too */
    union {
        int64_t integer;
        once_number number;
        once_bytes text; /* TEXT, BYTES */
    };
} once_value;

/* Why a statement failed: what that means for the message. */
typedef enum once_fault_kind {
    ONCE_FAULT_NONE,
    ONCE_FAULT_CONSTRAINT, /* unique, check, not null, foreign key, trigger RAISE(ABORT) */
    ONCE_FAULT_DATA,       /* values of this message do not fit (type mismatch, too big, overflow) */
    ONCE_FAULT_RETRY,      /* busy, locked, deadlock, serialization, connection, interrupted, memory */
    ONCE_FAULT_INTERNAL,   /* an error inside the statement; the database goes on. A failure of the message, which may
                              pass */
    ONCE_FAULT_TIMEOUT,    /* ended at the limit of once_db_limit; nothing of it has happened */
    ONCE_FAULT_STOPPED,    /* ended because the caller was asked to stop; nothing of it has happened */
    ONCE_FAULT_PAUSE,      /* no such table or column, permission, read-only, disk full: nothing works until an operator
                              acts */
    ONCE_FAULT_FATAL       /* corrupt, I/O error */
} once_fault_kind;

typedef struct once_fault {
    once_fault_kind kind;
    int code;       /* SQLite: extended result code; PostgreSQL: 0 */
    char state[40]; /* the code that a user may list: "SQLITE_CONSTRAINT_CHECK", or a SQLSTATE such as "23514"; else
                     * empty */
    bool aborted;   /* the database has rolled back the whole transaction */
    bool changed;   /* the transaction is not as it was before the statement: a part has stayed (INSERT OR FAIL), or the
                     * transaction is unusable until a savepoint or all of it is rolled back (PostgreSQL) */
    char constraint[128]; /* PostgreSQL: its name. SQLite: UNIQUE and PRIMARY KEY "table.column", several joined by ",";
                           * CHECK its name; else empty */
    char text[300];       /* for reasons and logs; never has values of the message */
} once_fault;

typedef struct once_db_ops once_db_ops;

/* Drivers embed these as the first member of their own structs. */
struct once_db {
    const once_db_ops *ops;
};
struct once_stmt {
    once_db *db;
    int params;
};

/* The functions of a driver. The contract of each is that of the function below with its name. */
struct once_db_ops {
    bool reads_numbers;
    int (*prepare)(once_db *db, once_bytes sql, once_stmt **out, once_error *err);
    void (*stmt_free)(once_stmt *stmt);
    int (*stmt_run)(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);
    int (*stmt_send)(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault); /* NULL: only stmt_run */
    int (*stmt_gather)(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);
    int (*mark_send)(once_db *db, bool release, once_error *err); /* NULL where stmt_send is NULL; so is mark_gather */
    int (*mark_gather)(once_db *db, once_error *err);
    void (*drop)(once_db *db);
    int (*presume)(once_db *db, once_error *err);
    int (*confirm)(once_db *db, once_error *err);
    bool (*may_defer)(once_db *db);
    int (*check_deferred)(once_db *db, once_fault *fault);
    int (*savepoint)(once_db *db, once_error *err);
    int (*savepoint_release)(once_db *db, once_error *err);
    int (*savepoint_undo)(once_db *db, once_error *err);
    void (*limit)(once_db *db, int64_t ms); /* NULL: the server's own settings limit statements */
    int (*script)(once_db *db, once_bytes sql, once_error *err);
    int (*script_look)(once_db *db, once_bytes sql, bool *needed,
                       once_error *err); /* NULL: the script is always needed */
    int (*describe)(once_db *db, char *out, size_t len, once_error *err);
    int (*identity)(once_db *db, char *out, size_t len, once_error *err);
    int (*rights)(once_db *db, once_error *err); /* NULL: there is nothing to check before statements run */
    int (*begin)(once_db *db, once_error *err);
    int (*commit)(once_db *db, bool *maybe, once_fault *fault);
    void (*rollback)(once_db *db);
    void (*close)(once_db *db);
};

/* Prepares a statement of the user with `?1`..`?n` parameters. Refuses: more than one statement, transaction control,
 * ATTACH/DETACH, PRAGMA, VACUUM, our tables, an empty statement; reads are allowed (their rows are counted and
 * dropped). A missing table or column is ONCE_E_SCHEMA; anything else that cannot be prepared is ONCE_E_CONFIG. */
int once_db_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err);
void once_stmt_free(once_stmt *stmt);
int once_stmt_params(const once_stmt *stmt);

/* Whether numbers reach the database as they are written, whatever their size. Otherwise they are sent as doubles, and
 * a number that does not survive that must not be given to a statement. */
bool once_db_reads_numbers(const once_db *db);

/* Runs the statement inside the open transaction. ONCE_OK: *rows were changed (SELECT: returned). Otherwise `fault`
 * says why, and the status is of the matching class. */
int once_stmt_run(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);

/* The same in two halves, so that many statements share a round trip. They run in the order of sending, and are
 * gathered in this order, with the same values. After a fault no later statement has run; once_db_drop gives up those
 * that were not gathered. Values must stay valid until then. Only where once_db_sends. A fault of `send` itself is
 * about the values, and nothing was sent. */
bool once_db_sends(const once_db *db);
int once_stmt_send(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault);
int once_stmt_gather(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);
void once_db_drop(once_db *db);

/* once_db_presume: what was sent is not gathered, and the transaction goes on as if all of it had succeeded. The next
 * call that asks the database, the commit at the latest, shares its round trip with them. If one of the statements has
 * failed, that call fails with ONCE_E_MESSAGE, and nothing can be committed; running the batch again with savepoints
 * finds the message at fault. (A fault that passes, or that stops everything, has its own status.) once_db_confirm asks
 * now. */
int once_db_presume(once_db *db, once_error *err);
int once_db_confirm(once_db *db, once_error *err);

/* A savepoint for each message, and its release, may be sent together with the statements. When a statement fails, the
 * messages before it stay; once_db_drop and then once_db_savepoint_undo undo what the failing message has done. */
int once_db_savepoint_send(once_db *db, once_error *err);
int once_db_savepoint_release_send(once_db *db, once_error *err);
int once_db_savepoint_gather(once_db *db, once_error *err); /* for each of both */

/* Checks now what is deferred to the commit (foreign keys, triggers). ONCE_OK: it will not make the commit fail.
 * Otherwise `fault` is that of the check, as in once_stmt_run. */
int once_db_check_deferred(once_db *db, once_fault *fault);
bool once_db_may_defer(once_db *db); /* whether the database may have deferred checks at all */

/* A savepoint around the statements of one message, when a batch is run message by message. */
int once_db_savepoint(once_db *db, once_error *err);
int once_db_savepoint_release(once_db *db, once_error *err);
int once_db_savepoint_undo(once_db *db, once_error *err); /* rolls back to it and releases it */

/* Limits the time that statements of the user may take from now on, all together; 0: no limit. A statement that runs
 * longer is ended as ONCE_FAULT_TIMEOUT. SQLite then rolls back the whole transaction if the statement had written. */
void once_db_limit(once_db *db, int64_t ms);

/* Runs a script of the user (`init:`): several statements in a transaction of their own, with the same restrictions. */
int once_db_script(once_db *db, once_bytes sql, once_error *err);
/* Whether the script must run before the statements of effects can be prepared. Finds mistakes in it. Locks and writes
 * nothing. */
int once_db_script_look(once_db *db, once_bytes sql, bool *needed, once_error *err);

/* Settings that `once check` shows: "journal_mode=wal synchronous=full". */
int once_db_describe(once_db *db, char *out, size_t len, once_error *err);

/* A text that is equal for two connections to the same database, and differs otherwise. */
int once_db_identity(once_db *db, char *out, size_t len, once_error *err);

/* Outside of a transaction: ONCE_E_DENIED when statements of the user lack a right; the text has the missing GRANTs. */
int once_db_rights(once_db *db, once_error *err);

/* ---- a connection of its own, for effects in a database that is not the store's ---- */

typedef struct once_db_options {
    const once_env *env;
    once_bytes consumer;     /* the server may show it as the name of the application; may be empty */
    int busy_ms;             /* SQLite: how long to wait for the lock of another connection */
    const atomic_bool *stop; /* when any thread sets it, statements and waits fail soon. Must outlive the connection */
    once_cancel opening;     /* cancels opening the connection */
} once_db_options;

/* Checks that this build can connect to the URL: ONCE_E_CONFIG or ONCE_E_UNSUPPORTED. The text shows only the scheme,
 * because the URL may contain a password. */
int once_db_check_url(once_bytes url, once_error *err);

/* A driver: linked in, or a part of kind "db" of a module. `rest` is the URL behind "scheme:". */
typedef struct once_db_driver {
    int (*open)(const char *rest, const once_db_options *options, once_db **out, once_error *err);
} once_db_driver;

/* Connects. Creates nothing in the database. */
int once_db_open(const char *url, const once_db_options *options, once_db **out, once_error *err);
void once_db_close(once_db *db); /* free its statements first; rolls back an open transaction. NULL is fine */

/* Begins a transaction whose commit is durable. Reconnects if the connection was lost; nothing else does. */
int once_db_begin(once_db *db, once_error *err);
/* Commits. After a failure, *maybe says whether the transaction may have been committed (the outcome is unknown);
 * otherwise nothing of it has happened. In both cases call once_db_rollback next. */
int once_db_commit(once_db *db, bool *maybe, once_fault *fault);
void once_db_rollback(once_db *db); /* also after a failure, and when the connection is gone */

#endif
