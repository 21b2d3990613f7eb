/* A SQL database, as effects and stores use it: connection, statements, values, faults. Drivers: sqlite, postgres.
 *
 * Two kinds of statements: our own, and the user's. The user's cannot end the transaction, attach databases, change
 * settings, or touch our tables (`once_...`): SQLite is asked by an authorizer; for PostgreSQL their words are looked
 * at.
 *
 * Thread rule: one thread at a time, as the store that the connection belongs to. */
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
    ONCE_VALUE_INTEGER, /* of 64 bits */
    ONCE_VALUE_NUMBER,  /* any other number */
    ONCE_VALUE_TEXT
} once_value_type;

/* A number of a message. Where the database reads text (once_db_reads_numbers), that is what it gets; otherwise the
 * double, which may only be used when it is as good. */
typedef struct once_number {
    once_bytes text; /* as written in JSON */
    double real;     /* the nearest */
    bool survives;   /* the double, printed, is that decimal again */
} once_number;

/* A bound parameter. Text is not copied: it must live until the statement was run. */
typedef struct once_value {
    once_value_type type;
    union {
        int64_t integer;
        once_number number;
        once_bytes text;
    };
} once_value;

/* Why a statement failed, in terms of what it means for the message. */
typedef enum once_fault_kind {
    ONCE_FAULT_NONE,
    ONCE_FAULT_CONSTRAINT, /* unique, check, not null, foreign key, trigger RAISE(ABORT) */
    ONCE_FAULT_DATA,       /* this message's values do not fit (type mismatch, too big, overflow) */
    ONCE_FAULT_RETRY,      /* busy, locked, deadlock, serialization, connection, interrupted, memory */
    ONCE_FAULT_INTERNAL,   /* an error inside of the statement, of which the database lives on: the message's failure,
                              which may pass */
    ONCE_FAULT_TIMEOUT,    /* ended at the limit of once_db_limit: nothing of it has happened */
    ONCE_FAULT_STOPPED,    /* ended because whoever waits was told to stop: nothing of it has happened */
    ONCE_FAULT_PAUSE, /* no such table or column, permission, read-only, disk full: nothing will work until somebody
                         acts */
    ONCE_FAULT_FATAL  /* corrupt, I/O error */
} once_fault_kind;

typedef struct once_fault {
    once_fault_kind kind;
    int code;       /* SQLite: extended result code; PostgreSQL: 0 */
    char state[40]; /* what a user may list: "SQLITE_CONSTRAINT_CHECK"; PostgreSQL: the SQLSTATE, as "23514"; else empty
                     */
    bool aborted;   /* the whole transaction was rolled back by the database itself */
    bool changed;   /* the transaction is not as it was before the statement: something has stayed (INSERT OR FAIL), or
                     * nothing more can be done in it before a savepoint or all of it is undone (PostgreSQL) */
    char constraint[128]; /* PostgreSQL: its name. SQLite: UNIQUE and PRIMARY KEY "table.column", several joined by ",";
                           * CHECK its name; else empty */
    char text[300];       /* in words, for reasons and logs; never values of the message */
} once_fault;

typedef struct once_db_ops once_db_ops;

/* Drivers embed these as the first member of their own. */
struct once_db {
    const once_db_ops *ops;
};
struct once_stmt {
    once_db *db;
    int params;
};

/* The contract of each slot is that of the function below with its name. */
struct once_db_ops {
    bool reads_numbers;
    int (*prepare)(once_db *db, once_bytes sql, once_stmt **out, once_error *err);
    void (*stmt_free)(once_stmt *stmt);
    int (*stmt_run)(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);
    int (*stmt_send)(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault); /* NULL: only stmt_run */
    int (*stmt_gather)(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);
    int (*mark_send)(once_db *db, bool release, once_error *err); /* NULL: where stmt_send is */
    int (*mark_gather)(once_db *db, once_error *err);
    void (*drop)(once_db *db);
    int (*presume)(once_db *db, once_error *err);
    int (*confirm)(once_db *db, once_error *err);
    bool (*defers)(once_db *db);
    int (*owes)(once_db *db, once_fault *fault);
    int (*savepoint)(once_db *db, once_error *err);
    int (*savepoint_release)(once_db *db, once_error *err);
    int (*savepoint_undo)(once_db *db, once_error *err);
    void (*limit)(once_db *db, int64_t ms); /* NULL: the server's own settings limit statements */
    int (*script)(once_db *db, once_bytes sql, once_error *err);
    int (*script_look)(once_db *db, once_bytes sql, bool *needed, once_error *err); /* NULL: it is always needed */
    int (*describe)(once_db *db, char *out, size_t len, once_error *err);
    int (*identity)(once_db *db, char *out, size_t len, once_error *err);
    int (*rights)(once_db *db, once_error *err); /* NULL: a file, whose rights are those of its statements */
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

/* Whether numbers get there as they are written, whatever their size; otherwise as a double, and one that does not
 * survive that must not be given to a statement. */
bool once_db_reads_numbers(const once_db *db);

/* Runs it inside the open transaction. ONCE_OK: `rows` were changed (for a SELECT: returned). Otherwise `fault` says
 * why and a status of the matching class is returned. */
int once_stmt_run(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault);

/* The same in two halves, so that many statements share a round trip: what was sent runs in that order, and is gathered
 * in that order. After a fault nothing behind it has run: once_db_drop gives up what was not gathered. Values must live
 * until then. Only where once_db_sends; a fault of `send` itself is about the values, and nothing was sent. */
bool once_db_sends(const once_db *db);
int once_stmt_send(once_stmt *stmt, const once_value *values, size_t n, once_fault *fault);
int once_stmt_gather(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows,
                     once_fault *fault); /* the values that were sent */
void once_db_drop(once_db *db);

/* What was sent need not be gathered: once_db_presume says so, and the transaction goes on as if all of it had
 * succeeded. Whatever asks the database next, the commit at the latest, shares its round trip and is told. When one of
 * the statements has failed, that fails with ONCE_E_MESSAGE, nothing can be committed any more, and a run with
 * savepoints finds out whose fault it was. (A fault that passes, or stops everything, is its own status.)
 * once_db_confirm asks now. */
int once_db_presume(once_db *db, once_error *err);
int once_db_confirm(once_db *db, once_error *err);

/* A savepoint around each message and its release may be sent with its statements. When one of those fails, the
 * messages before it stay, and once_db_savepoint_undo (behind once_db_drop) undoes what the failing one has done. */
int once_db_savepoint_send(once_db *db, once_error *err);
int once_db_savepoint_release_send(once_db *db, once_error *err);
int once_db_savepoint_gather(once_db *db, once_error *err); /* of either of them */

/* Checks now what is deferred to the commit (foreign keys, triggers). ONCE_OK: it would not make the commit fail.
 * Otherwise as once_stmt_run: what is owed may be the message's fault, and what else goes wrong meanwhile need not. */
int once_db_owes(once_db *db, once_fault *fault);
bool once_db_may_owe(once_db *db); /* whether anything in the database is checked that late */

/* Around one message's statements, when the batch is run carefully. */
int once_db_savepoint(once_db *db, once_error *err);
int once_db_savepoint_release(once_db *db, once_error *err);
int once_db_savepoint_undo(once_db *db, once_error *err); /* undoes and releases */

/* How long statements of the user may take from now on, all together; 0: as long as they like. What does not end by
 * then is ended, as ONCE_FAULT_TIMEOUT. SQLite rolls the whole transaction back when it had begun to write. */
void once_db_limit(once_db *db, int64_t ms);

/* A script of the user (`init:`): several statements, its own transaction, same authorizer. */
int once_db_script(once_db *db, once_bytes sql, once_error *err);
/* Whether it must be run before its statements can be understood. Nothing is locked or written. Mistakes in it are
 * found. */
int once_db_script_look(once_db *db, once_bytes sql, bool *needed, once_error *err);

/* The settings that matter to somebody who asks `once check`: "journal_mode=wal synchronous=full". */
int once_db_describe(once_db *db, char *out, size_t len, once_error *err);

/* Texts that are equal when two connections are to the same database, and differ otherwise. */
int once_db_identity(once_db *db, char *out, size_t len, once_error *err);

/* Outside of a transaction: ONCE_E_DENIED when its statements lack a right, with what the owner has to say. */
int once_db_rights(once_db *db, once_error *err);

/* ---- a connection of its own, for effects in a database that is not the store's ---- */

typedef struct once_db_options {
    const once_env *env;
    once_bytes consumer;     /* for whom it is opened, as the server may show it; may be empty */
    int busy_ms;             /* SQLite: how long to wait for the lock of another connection */
    const atomic_bool *stop; /* set to true by any thread: what runs or waits comes back soon, as a failure. It outlives
                                the connection */
    once_cancel opening;     /* of whoever opens it, until it is open */
} once_db_options;

/* Whether it is the URL of a database that this build can connect to: ONCE_E_CONFIG or ONCE_E_UNSUPPORTED. Shows no
 * more of it than its scheme, because there may be a password in it. */
int once_db_check_url(once_bytes url, once_error *err);

/* A part of a module, of kind "db". `rest` is the URL behind "scheme:". */
typedef struct once_db_driver {
    int (*open)(const char *rest, const once_db_options *options, once_db **out, once_error *err);
} once_db_driver;

/* Connects. Nothing is made in the database. */
int once_db_open(const char *url, const once_db_options *options, once_db **out, once_error *err);
void once_db_close(once_db *db); /* after its statements were freed; an open transaction is rolled back. NULL is fine */

/* A transaction whose commit is durable. A connection that was lost is made anew here, and only here. */
int once_db_begin(once_db *db, once_error *err);
/* ONCE_OK, or why not. *maybe: it was asked for, and nobody knows what became of it; otherwise nothing has happened.
 * Either way once_db_rollback comes next. */
int once_db_commit(once_db *db, bool *maybe, once_fault *fault);
void once_db_rollback(once_db *db); /* also after a failure, and when the connection is gone */

#endif
