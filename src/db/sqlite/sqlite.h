/* The SQLite driver of db.h, and what the sqlite store needs of it: the connection itself and statements of our own.
 *
 * One connection serves both the store and the user's statements, which is what makes SQL effects atomic. An authorizer
 * is installed for the life of the connection and answers "yes" to us and looks closely at the user: it is switched on
 * by a flag while a user's statement is prepared or runs (SQLite may prepare a statement anew while it runs).
 *
 * Store verbs must not be called between once_db_savepoint and its release or undo: what they wrote would be undone
 * behind the store's back. `savepoints` lets the store refuse that.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_DB_SQLITE_SQLITE_H
#define ONCE_DB_SQLITE_SQLITE_H

#include <sqlite3.h>
#include <sys/types.h>

#include "base/cancel.h"
#include "db/db.h"

/* Which file it was when it was opened (moved.c). */
typedef struct once_sqlite_place {
    bool known;
    dev_t device;
    ino_t inode;
} once_sqlite_place;

typedef struct once_sqlite_db {
    once_db db;
    sqlite3 *handle;
    char *path;                  /* as the user wrote it, for errors */
    bool user;                   /* a statement of the user is being prepared or run */
    char refused[200];           /* why the authorizer said no to it */
    bool borrowed;               /* the caller's own: not configured by us, no authorizer, not closed */
    unsigned savepoints;         /* open ones */
    int busy_ms;                 /* how long to wait for a lock ... */
    int64_t busy_since_ns;       /* ... since the first try */
    sqlite3_stmt *mark, *unmark; /* SAVEPOINT, RELEASE; made when first needed */
    char *place_path;            /* where `place` was seen, from the root on */
    once_sqlite_place place, wal_place, shm_place;
    char *rescued;           /* it was deleted: where a copy is */
    const atomic_bool *stop; /* of a connection of its own (tx.c): true: give up. NULL: the store's */
    once_cancel cancel;      /* the store's: of whoever waits for a lock or for a statement of the user */
    int64_t limit_ns;        /* CLOCK_MONOTONIC: when a statement of the user must have ended; 0: there is no limit */
    once_fault_kind ended;   /* why we ended one: TIMEOUT, STOPPED; otherwise NONE */
} once_sqlite_db;

typedef struct once_sqlite_options {
    bool create, readonly;
    const char *vfs; /* NULL: SQLite's default */
    int busy_ms;
} once_sqlite_options;

/* Opens the file and nothing more: no statement has run, so a file that is no database is not noticed yet. */
int once__sqlite_open(const char *path, const once_sqlite_options *options, once_sqlite_db **out, once_error *err);
/* Wraps a connection of the caller and leaves its settings alone. */
int once__sqlite_borrow(sqlite3 *handle, once_sqlite_db **out, once_error *err);
/* From now on statements of the user are ended when they are over their limit (once_db_limit), or when the wait is
 * cancelled. Not on a borrowed connection, whose progress handler is the caller's. */
void once__sqlite_watch(once_sqlite_db *db, once_cancel cancel);
void once__sqlite_close(
    once_sqlite_db *db); /* NULL is fine; an open transaction is rolled back, unless the connection is borrowed */

/* Our own statements. `sql` may hold several for `exec`. */
int once__sqlite_prepare(once_sqlite_db *db, const char *sql, sqlite3_stmt **out, once_error *err);
int once__sqlite_exec(once_sqlite_db *db, const char *sql, once_error *err);
/* Runs a prepared statement that returns nothing to its end and resets it. */
int once__sqlite_step(once_sqlite_db *db, sqlite3_stmt *stmt, once_error *err);
/* The first column of the first row as an integer; `missing` when there is no row. */
int once__sqlite_integer(once_sqlite_db *db, const char *sql, int64_t missing, int64_t *out, once_error *err);

/* Says what just failed on this connection, as "file 'x': what; what to do", with the status that fits. */
int once__sqlite_fail(once_sqlite_db *db, int code, once_error *err);
/* The status for an extended result code, as far as it says it itself: whether there was no space, the connection may
 * know better. */
int once__sqlite_status(int code);
/* What an extended result code of a statement of the user means, with the connection's own words for it. */
int once__sqlite_fault(once_sqlite_db *db, int code, once_fault *fault);

/* ---- whether its files are still where they were (moved.c) ---- */

void once__sqlite_note_place(once_sqlite_db *db); /* when it is opened */
/* The file, or its -wal or -shm file, was deleted, renamed or replaced. Inside a transaction or directly behind one:
 * the connection has read, so that its -wal file is there. A database without a file never moves. */
bool once__sqlite_moved(once_sqlite_db *db);
/* ONCE_E_MOVED, with what to do. Outside of a transaction: of a store's file that was deleted a copy is kept. */
int once__sqlite_say_moved(once_sqlite_db *db, once_error *err);
int once__sqlite_unmoved(once_sqlite_db *db, once_error *err); /* both */

/* ---- a connection of its own (tx.c) ---- */

int once__sqlite_open_other(const char *path, const once_db_options *options, once_db **out, once_error *err);
int once__sqlite_tx_begin(once_db *db, once_error *err);
int once__sqlite_tx_commit(once_db *db, bool *maybe, once_fault *fault);
void once__sqlite_tx_rollback(once_db *db);
int once__sqlite_identity(once_db *db, char *out, size_t len, once_error *err);
void once__sqlite_close_other(once_db *db);

#endif
