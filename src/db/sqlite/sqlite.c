/* An SQLite connection, our own or a borrowed one, and statements of our own on it. */
#include "db/sqlite/sqlite.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/beside.h"
#include "base/no_memory.h"
#include "db/sqlite/parts.h"

#include "base/banned.h"

static bool has_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    struct stat st;
    const bool has = folder && stat(folder, &st) == 0 && S_ISDIR(st.st_mode);
    free(folder);
    return has;
}

static int open_failed(const char *path, sqlite3 *handle, int code, const once_sqlite_options *options, once_error *err)
{
    int no = handle ? sqlite3_system_errno(handle) : 0;
    if (code == SQLITE_NOMEM || !handle) return once_fail(err, ONCE_E_NOMEM, "file '%s': out of memory", path);
    if ((code & 0xff) != SQLITE_CANTOPEN || once__sqlite_says_full(no))
        return once__sqlite_fail_at(path, handle, code, err);
    if (no == EACCES || no == EPERM || no == EROFS)
        return once_fail(err, no == EROFS ? ONCE_E_READONLY : ONCE_E_DENIED,
                         "file '%s': permission denied; give this user access to the file and its folder", path);
    if (no == EMFILE || no == ENFILE)
        return once_fail(err, ONCE_E_UNAVAILABLE, "file '%s': too many open files; raise the limit", path);
    if (no == EISDIR || (no == 0 && path[0] && path[strlen(path) - 1] == '/'))
        return once_fail(err, ONCE_E_CONFIG, "file '%s': is a folder; name a file in it", path);
    if (no == ENOENT && !options->create)
        return once_fail(err, ONCE_E_NO_STORE,
                         "file '%s': does not exist; check the path, or run `once run`, which creates it", path);
    if ((no == ENOENT || no == ENOTDIR) && !has_folder(path))
        return once_fail(err, ONCE_E_CONFIG, "file '%s': its folder does not exist; make the folder first", path);
    if (no == ENOENT || no == ENOTDIR) /* as /proc says */
        return once_fail(err, ONCE_E_CONFIG,
                         "file '%s': its folder exists, but no file can be created in it; use another folder", path);
    return once_fail(err, ONCE_E_UNAVAILABLE, "file '%s': cannot be opened; check the path and the permissions", path);
}

int64_t once__sqlite_mono_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits for a lock in short, uneven naps. SQLite's own handler naps for up to 100 ms, and never gets the lock while
 * another process commits in a loop: that releases it only for a moment. */
static int on_busy(void *user, int tries)
{
    once_sqlite_db *db = user;
    const int64_t now_ns = once__sqlite_mono_ns();
    if (tries == 0) db->busy_since_ns = now_ns;
    if (now_ns - db->busy_since_ns >= (int64_t)db->busy_ms * 1000000) return 0;
    if ((db->stop && atomic_load(db->stop)) || once_cancelled(&db->cancel)) return 0;
    const long nap_us = 100 + (long)((now_ns / 64) % 900); /* uneven is enough, it need not be random */
    nanosleep(&(struct timespec){.tv_nsec = nap_us * 1000}, NULL);
    return 1;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISLNK(mode)) return "a symbolic link";
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    return S_ISSOCK(mode) ? "a socket" : "a device";
}

/* Refuses what SQLite would report as a broken disk: paths that are no files. SQLite follows a link to the database
 * itself, but not to the files beside it. */
static int check_kinds(const char *path, once_error *err)
{
    static const char *const beside[] = {"-wal", "-shm", "-journal"};
    char whole[PATH_MAX], name[PATH_MAX + 16];
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return once_fail(err, ONCE_E_CONFIG, "file '%s': is %s and no file; name another one", path,
                         kind_of(st.st_mode));
    const char *base = realpath(path, whole) ? whole : path;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        (void)snprintf(name, sizeof name, "%s%s", base, beside[i]);
        if (lstat(name, &st) == 0 && !S_ISREG(st.st_mode))
            return once_fail(err, ONCE_E_CONFIG,
                             "file '%s%s': is %s and no file; find out what created it, and remove it", path, beside[i],
                             kind_of(st.st_mode));
    }
    return ONCE_OK;
}

int once__sqlite_open(const char *path, const once_sqlite_options *options, once_sqlite_db **out, once_error *err)
{
    assert(path && options && out);
    if (!path[0]) return once_fail(err, ONCE_E_CONFIG, "no file name; write sqlite:PATH");
    if (strcmp(path, ":memory:") == 0)
        return once_fail(err, ONCE_E_CONFIG, "file ':memory:' keeps nothing; use the store 'memory:' for that");
    const int wrong = check_kinds(path, err);
    if (wrong != ONCE_OK) return wrong;

    once_sqlite_db *db = calloc(1, sizeof *db);
    if (db) db->db.ops = &once__sqlite_ops;
    /* SQLite would read "file:..." as a URI with options. */
    char *name = sqlite3_mprintf("%s%s", strncmp(path, "file:", 5) == 0 ? "./" : "", path);
    if (db) db->path = strdup(path);
    if (!db || !name || !db->path) {
        sqlite3_free(name);
        once__sqlite_close(db);
        return once_fail(err, ONCE_E_NOMEM, "file '%s': out of memory", path);
    }
    int flags = options->readonly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
    if (options->create && !options->readonly) flags |= SQLITE_OPEN_CREATE;
    flags |= SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_EXRESCODE;

    once_database_opening();
    int code = sqlite3_open_v2(name, &db->handle, flags, options->vfs);
    once_database_opened();
    sqlite3_free(name);
    if (code != SQLITE_OK) {
        int status = open_failed(path, db->handle, code, options, err);
        once__sqlite_close(db);
        return status;
    }
    db->busy_ms = options->busy_ms;
    sqlite3_busy_handler(db->handle, on_busy, db);
    code = sqlite3_db_config(db->handle, SQLITE_DBCONFIG_DEFENSIVE, 1,
                             NULL); /* even a statement that gets past the authorizer cannot damage the file */
    if (code == SQLITE_OK) code = sqlite3_set_authorizer(db->handle, once__sqlite_authorize, db);
    if (code == SQLITE_OK && !options->readonly && sqlite3_db_readonly(db->handle, "main") == 1) code = SQLITE_READONLY;
    if (code != SQLITE_OK) {
        int status = once__sqlite_fail_at(path, db->handle, code, err);
        once__sqlite_close(db);
        return status;
    }
    once__sqlite_note_place(db);
    *out = db;
    return ONCE_OK;
}

enum { STEPS_BETWEEN_LOOKS = 1000 }; /* of SQLite's virtual machine: some ten microseconds */

/* The progress handler: nonzero ends the statement. Statements of our own are short, and are never ended. */
static int look_around(void *user)
{
    once_sqlite_db *db = user;
    if (!db->user) return 0;
    if (db->limit_ns && once__sqlite_mono_ns() >= db->limit_ns) db->ended = ONCE_FAULT_TIMEOUT;
    else if (once_cancelled(&db->cancel)) db->ended = ONCE_FAULT_STOPPED;
    return db->ended != ONCE_FAULT_NONE;
}

void once__sqlite_watch(once_sqlite_db *db, once_cancel cancel)
{
    assert(!db->borrowed && !db->stop);
    db->cancel = cancel;
    sqlite3_progress_handler(db->handle, STEPS_BETWEEN_LOOKS, look_around, db);
}

int once__sqlite_borrow(sqlite3 *handle, once_sqlite_db **out, once_error *err)
{
    assert(handle && out);
    const char *path = sqlite3_db_filename(handle, "main");
    once_sqlite_db *db = calloc(1, sizeof *db);
    if (db) db->path = strdup(path && path[0] ? path : ":memory:");
    if (!db || !db->path) {
        free(db);
        return once_no_memory(err, "for a connection");
    }
    db->db.ops = &once__sqlite_ops;
    db->handle = handle;
    db->borrowed = true;
    once__sqlite_note_place(db);
    *out = db;
    return ONCE_OK;
}

void once__sqlite_close(once_sqlite_db *db)
{
    if (!db) return;
    sqlite3_finalize(db->mark);
    sqlite3_finalize(db->unmark);
    if (!db->borrowed) sqlite3_close_v2(db->handle);
    free(db->place_path);
    free(db->rescued);
    free(db->path);
    free(db);
}

int once__sqlite_prepare(once_sqlite_db *db, const char *sql, sqlite3_stmt **out, once_error *err)
{
    assert(!db->user); /* the authorizer would check it */
    int code = sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    return code == SQLITE_OK ? ONCE_OK : once__sqlite_fail(db, code, err);
}

int once__sqlite_exec(once_sqlite_db *db, const char *sql, once_error *err)
{
    assert(!db->user);
    int code = sqlite3_exec(db->handle, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? ONCE_OK : once__sqlite_fail(db, code, err);
}

int once__sqlite_step(once_sqlite_db *db, sqlite3_stmt *stmt, once_error *err)
{
    assert(!db->user && sqlite3_db_handle(stmt) == db->handle);
    int code = sqlite3_step(stmt);
    int status = code == SQLITE_DONE || code == SQLITE_ROW ? ONCE_OK : once__sqlite_fail(db, code, err);
    sqlite3_reset(stmt);
    return status;
}

int once__sqlite_integer(once_sqlite_db *db, const char *sql, int64_t missing, int64_t *out, once_error *err)
{
    sqlite3_stmt *stmt;
    int code = sqlite3_prepare_v2(db->handle, sql, -1, &stmt, NULL);
    if (code != SQLITE_OK) return once__sqlite_fail(db, code, err);
    code = sqlite3_step(stmt);
    int status = ONCE_OK;
    if (code == SQLITE_ROW) *out = sqlite3_column_int64(stmt, 0);
    else if (code == SQLITE_DONE) *out = missing;
    else status = once__sqlite_fail(db, code, err);
    sqlite3_finalize(stmt);
    return status;
}
