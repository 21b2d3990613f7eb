/* An SQLite file that is not the store's: a connection with transactions of its own. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/errno_text.h"
#include "db/sqlite/sqlite.h"

#include "base/banned.h"

enum { STEPS_BETWEEN_LOOKS = 1000 }; /* of SQLite's virtual machine, between two looks at `stop` */

static once_sqlite_db *of(once_db *db) { return (once_sqlite_db *)db; }

static int is_stopped(void *user) { return atomic_load(((const once_sqlite_db *)user)->stop); }

/* Instead of sqlite3_interrupt, which ends the running statement, but not one that is about to run. */
static void heed_stop(once_sqlite_db *db, bool on)
{
    assert(db->stop);
    sqlite3_progress_handler(db->handle, STEPS_BETWEEN_LOOKS, on ? is_stopped : NULL, db);
}

int once__sqlite_open_other(const char *path, const once_db_options *options, once_db **out, once_error *err)
{
    assert(options->stop);
    const once_sqlite_options how = {.busy_ms = options->busy_ms};
    once_sqlite_db *db;
    struct stat file;
    int64_t tables;
    if (stat(path, &file) != 0 && errno == ENOENT)
        return once_fail(
            err, ONCE_E_CONFIG,
            "file '%s': does not exist; once creates nothing in a database that is not the store's, create it first",
            path);
    int rc = once__sqlite_open(path, &how, &db, err);
    if (rc != ONCE_OK) return rc;
    db->stop = options->stop;
    heed_stop(db, true);
    rc = once__sqlite_exec(db, "PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL", err);
    /* Reads the file for the first time. */
    if (rc == ONCE_OK) rc = once__sqlite_integer(db, "SELECT count(*) FROM sqlite_schema", 0, &tables, err);
    if (rc == ONCE_OK) *out = &db->db;
    else once__sqlite_close(db);
    return rc;
}

void once__sqlite_close_other(once_db *db) { once__sqlite_close(of(db)); }

int once__sqlite_tx_begin(once_db *db, once_error *err)
{
    assert(of(db)->stop && !of(db)->savepoints);
    of(db)->refused[0] = '\0';
    const int rc = once__sqlite_exec(of(db), "BEGIN IMMEDIATE", err);
    if (rc != ONCE_OK || !once__sqlite_moved(of(db))) return rc;
    once__sqlite_tx_rollback(db);
    return once__sqlite_say_moved(of(db), err);
}

/* A commit to a file that was moved or deleted: whether it will be found again is unknown. */
static int committed_elsewhere(once_sqlite_db *db, bool *maybe, once_fault *fault)
{
    assert(sqlite3_get_autocommit(db->handle));
    once_error why;
    const int rc = once__sqlite_unmoved(db, &why);
    if (rc == ONCE_OK) return rc;
    *maybe = true;
    *fault = (once_fault){.kind = ONCE_FAULT_FATAL};
    snprintf(fault->text, sizeof fault->text, "%.299s", why.text);
    return rc;
}

int once__sqlite_tx_commit(once_db *base, bool *maybe, once_fault *fault)
{
    once_sqlite_db *db = of(base);
    assert(db->stop && !db->savepoints);
    heed_stop(db, false); /* COMMIT is not interrupted */
    const int code = sqlite3_exec(db->handle, "COMMIT", NULL, NULL, NULL);
    heed_stop(db, true);
    *maybe = false;
    if (code == SQLITE_OK) return committed_elsewhere(db, maybe, fault);
    /* `refused` leaves the transaction as it was. A write without space comes before the commit record, and SQLite has
     * rolled back. After any other error (of the disk) the commit record may be in the file. */
    const int kind = code & 0xff, status = once__sqlite_fault(db, code, fault);
    const bool refused = kind == SQLITE_BUSY || kind == SQLITE_LOCKED || kind == SQLITE_CONSTRAINT;
    const bool full = status == ONCE_E_FULL && (kind == SQLITE_FULL || code == SQLITE_IOERR_WRITE);
    *maybe = !full && (!refused || sqlite3_get_autocommit(db->handle));
    return status;
}

void once__sqlite_tx_rollback(once_db *base)
{
    assert(of(base)->stop); /* not the store's connection */
    sqlite3 *handle = of(base)->handle;
    of(base)->savepoints = 0; /* they end with the transaction */
    if (!sqlite3_get_autocommit(handle)) sqlite3_exec(handle, "ROLLBACK", NULL, NULL, NULL);
}

int once__sqlite_identity(once_db *db, char *out, size_t len, once_error *err)
{
    const char *path = sqlite3_db_filename(of(db)->handle, "main");
    struct stat file;
    if (!path || stat(path, &file) != 0)
        return once_fail(err, ONCE_E_UNAVAILABLE, "file '%s': %s", of(db)->path, once_errno_text(errno));
    snprintf(out, len, "sqlite %llu:%llu", (unsigned long long)file.st_dev, (unsigned long long)file.st_ino);
    return ONCE_OK;
}
