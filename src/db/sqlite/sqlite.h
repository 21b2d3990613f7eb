/* The SQLite driver of db.h, and what the sqlite store uses of it: the connection and statements of our own.
 *
 * One connection serves the store and the user's statements. That makes SQL effects atomic with outcomes. An authorizer
 * is installed for the life of the connection. It allows everything to statements of our own, and checks those of the
 * user: a flag is set while a statement of the user is prepared or runs (SQLite may prepare a statement again while it
 * runs).
 *
 * Store verbs must not be called between once_db_savepoint and its release or undo: an undo would also undo what they
 * have written. `savepoints` lets the store refuse that.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_DB_SQLITE_SQLITE_H
#define ONCE_DB_SQLITE_SQLITE_H

#include <sqlite3.h>
#include <sys/types.h>

#include "base/cancel.h"
#include "db/db.h"

/* The identity of a file when it was opened (moved.c). */
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
    char refused[200];           /* why the authorizer has refused it */
    bool borrowed;               /* the caller's connection: not configured, no authorizer, never closed */
    unsigned savepoints;         /* open ones */
    int busy_ms;                 /* how long to wait for a lock ... */
    int64_t busy_since_ns;       /* ... and when the wait began */
    sqlite3_stmt *mark, *unmark; /* SAVEPOINT, RELEASE; made when first needed */
    char *place_path;            /* the absolute path of `place` */
    once_sqlite_place place, wal_place, shm_place;
    char *rescued;           /* the path of a copy, after the file was deleted */
    const atomic_bool *stop; /* not the store's connection (tx.c): true: give up. NULL: the store's */
    once_cancel cancel;      /* the store's: cancels waits for locks, and statements of the user */
    int64_t limit_ns;        /* CLOCK_MONOTONIC: when statements of the user must have ended; 0: no limit */
    once_fault_kind ended;   /* why we ended a statement: TIMEOUT, STOPPED; otherwise NONE */
} once_sqlite_db;

typedef struct once_sqlite_options {
    bool create, readonly;
    const char *vfs; /* NULL: SQLite's default */
    int busy_ms;
} once_sqlite_options;

/* Opens the file, and runs no statement: a file that is no database is noticed later. */
int once__sqlite_open(const char *path, const once_sqlite_options *options, once_sqlite_db **out, once_error *err);
/* Wraps a connection of the caller and leaves its settings alone. */
int once__sqlite_borrow(sqlite3 *handle, once_sqlite_db **out, once_error *err);
/* From now on statements of the user end at their limit (once_db_limit), or when `cancel` asks for it. Not on a
 * borrowed connection, whose progress handler is the caller's. */
void once__sqlite_watch(once_sqlite_db *db, once_cancel cancel);
void once__sqlite_close(
    once_sqlite_db *db); /* NULL is fine; rolls back an open transaction, unless the connection is borrowed */

/* Statements of our own. `sql` of exec may hold several. */
int once__sqlite_prepare(once_sqlite_db *db, const char *sql, sqlite3_stmt **out, once_error *err);
int once__sqlite_exec(once_sqlite_db *db, const char *sql, once_error *err);
/* Runs a prepared statement that returns no rows, and resets it. */
int once__sqlite_step(once_sqlite_db *db, sqlite3_stmt *stmt, once_error *err);
/* The first column of the first row as an integer; `missing` when there is no row. */
int once__sqlite_integer(once_sqlite_db *db, const char *sql, int64_t missing, int64_t *out, once_error *err);

/* The status of what just failed on this connection, with the text "file 'x': what; what to do". */
int once__sqlite_fail(once_sqlite_db *db, int code, once_error *err);
/* The status of an extended result code alone. Whether the disk is full may need the connection as well (fault.c). */
int once__sqlite_status(int code);
/* The fault that an extended result code of a statement of the user means, with the text of SQLite. */
int once__sqlite_fault(once_sqlite_db *db, int code, once_fault *fault);

/* ---- files that were moved or deleted (moved.c) ---- */

void once__sqlite_note_place(once_sqlite_db *db); /* notes the identity of the file when it is opened */
/* Whether the file, or its -wal or -shm file, was deleted, renamed or replaced. Call it inside a transaction or
 * directly after one: the connection has read, so that its -wal file exists. A database without a file never moves. */
bool once__sqlite_moved(once_sqlite_db *db);
/* ONCE_E_MOVED, with what to do. Outside of a transaction; keeps a copy of a store's file that was deleted. */
int once__sqlite_say_moved(once_sqlite_db *db, once_error *err);
int once__sqlite_unmoved(once_sqlite_db *db, once_error *err); /* both: ONCE_OK when it was not moved */

/* ---- a connection of its own (tx.c) ---- */

int once__sqlite_open_other(const char *path, const once_db_options *options, once_db **out, once_error *err);
int once__sqlite_tx_begin(once_db *db, once_error *err);
int once__sqlite_tx_commit(once_db *db, bool *maybe, once_fault *fault);
void once__sqlite_tx_rollback(once_db *db);
int once__sqlite_identity(once_db *db, char *out, size_t len, once_error *err);
void once__sqlite_close_other(once_db *db);

#endif
