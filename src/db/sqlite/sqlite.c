/* SQLite behind db.h: connection, authorizer, statements, and what a result code means.
 *
 * Invariants
 *   - `db->user` is true only inside sqlite_prepare, sqlite_run and sqlite_script, and the authorizer trusts
 *     everything else.
 *   - A statement that failed has been reset, so it holds no lock and can be run again. */
#include "db/sqlite/sqlite.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/ascii.h"
#include "base/beside.h"
#include "base/errno_text.h"
#include "base/no_memory.h"

#include "base/banned.h"

typedef struct sqlite_stmt {
    once_stmt stmt;
    sqlite3_stmt *handle;
    bool reads;   /* rows that come back are counted */
    bool changes; /* INSERT, UPDATE, DELETE, REPLACE: rows changed are counted */
} sqlite_stmt;

static const once_db_ops sqlite_ops;

static once_sqlite_db *of(once_db *db) { return (once_sqlite_db *)db; }

/* ---- what a result code means ---- */

int once__sqlite_status(int code)
{
    if (code == SQLITE_IOERR_NOMEM) return ONCE_E_NOMEM;
    if (code == SQLITE_BUSY_RECOVERY || code == SQLITE_BUSY_SNAPSHOT) return ONCE_E_BUSY;
    switch (code & 0xff) {
    case SQLITE_OK: return ONCE_OK;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
    case SQLITE_SCHEMA:
    case SQLITE_INTERRUPT: return ONCE_E_BUSY;
    case SQLITE_ABORT: return ONCE_E_ABORTED;
    case SQLITE_NOMEM: return ONCE_E_NOMEM;
    case SQLITE_FULL: return ONCE_E_FULL;
    case SQLITE_READONLY: return ONCE_E_READONLY;
    case SQLITE_PERM:
    case SQLITE_AUTH: return ONCE_E_DENIED;
    case SQLITE_CANTOPEN: return ONCE_E_UNAVAILABLE;
    case SQLITE_CORRUPT: return ONCE_E_CORRUPT;
    case SQLITE_NOTADB: return ONCE_E_NOT_OURS;
    case SQLITE_IOERR: return ONCE_E_IO;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_ERROR: return ONCE_E_MESSAGE;
    default: return ONCE_E_BUG;
    }
}

/* What a person can do about a status, or NULL. */
static const char *advice(int status)
{
    switch (status) {
    case ONCE_E_FULL: return "free some space, or raise the limit";
    case ONCE_E_READONLY: return "make the file and its folder writable";
    case ONCE_E_DENIED: return "give this user access to the file and its folder";
    case ONCE_E_CORRUPT: return "restore it from a backup, or see https://sqlite.org/recovery.html";
    case ONCE_E_NOT_OURS: return "choose another file name";
    case ONCE_E_BUSY: return "another process holds it; try again";
    case ONCE_E_IO: return "check the disk before going on";
    default: return NULL;
    }
}

static bool says_full(int no) { return no == ENOSPC || no == EDQUOT || no == EFBIG; }

/* Why a write was refused: the one of these that says that there was no space, or 0. SQLite keeps it in the file, and
 * that of its journal is gone when it was rolled back; the connection has it of statements, but not of COMMIT. A file
 * that could not be opened is another one: what those that are open say is of an earlier failure then. */
static int why_no_space(sqlite3 *handle, bool opening)
{
    int files[2] = {0}, here = errno;
    sqlite3_file *journal = NULL;
    if (!opening) (void)sqlite3_file_control(handle, "main", SQLITE_FCNTL_LAST_ERRNO, &files[0]);
    if (!opening) (void)sqlite3_file_control(handle, "main", SQLITE_FCNTL_JOURNAL_POINTER, &journal);
    if (journal && journal->pMethods)
        (void)journal->pMethods->xFileControl(journal, SQLITE_FCNTL_LAST_ERRNO, &files[1]);
    const int found[] = {files[0], files[1], sqlite3_system_errno(handle), here};
    for (size_t i = 0; i < 2; i++)
        if (files[i] && !says_full(files[i])) return 0; /* broken after all: what was before does not count */
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (says_full(found[i])) return found[i];
    return 0;
}

/* SQLite has a code of its own for a full disk, and takes a quota or the limit of a file's size for a broken one; so it
 * does with any of them where it makes its other files. Only a write that was refused is meant: after a sync that
 * failed nobody knows what is on the disk. */
static int no_space(sqlite3 *handle, int code)
{
    if ((code & 0xff) == SQLITE_FULL) return ENOSPC;
    const bool opening = (code & 0xff) == SQLITE_CANTOPEN,
               writes = code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_SHMSIZE || opening;
    return writes && handle ? why_no_space(handle, opening) : 0;
}

static const char *what_is_full(int no)
{
    if (no == EDQUOT) return "no space left (its disk quota is used up)";
    return no == EFBIG ? "no space left (it or its -wal file may not become larger, see 'ulimit -f')" : "no space left";
}

/* The status of what just failed on the connection. */
static int status_of(sqlite3 *handle, int code)
{
    return no_space(handle, code) ? ONCE_E_FULL : once__sqlite_status(code);
}

static int fail_at(const char *path, sqlite3 *handle, int code, once_error *err)
{
    int status = status_of(handle, code);
    const char *what = code == SQLITE_NOMEM ? "out of memory" : sqlite3_errmsg(handle);
    if (status == ONCE_E_MESSAGE)
        status = ONCE_E_SCHEMA; /* a statement of ours: its tables are not as they should be */
    if (status == ONCE_E_NOT_OURS) what = "not an SQLite database";
    if (status == ONCE_E_READONLY) what = "read-only";
    if (status == ONCE_E_FULL) what = what_is_full(no_space(handle, code));
    const char *hint = advice(status);
    return once_fail(err, status, "file '%s': %s%s%s", path, what, hint ? "; " : "", hint ? hint : "");
}

int once__sqlite_fail(once_sqlite_db *db, int code, once_error *err)
{
    return fail_at(db->path, db->handle, code, err);
}

static once_fault_kind fault_kind(int status, int code, const char *message)
{
    if (code == SQLITE_CONSTRAINT_DATATYPE) return ONCE_FAULT_DATA;
    switch (code & 0xff) {
    case SQLITE_CONSTRAINT: return ONCE_FAULT_CONSTRAINT;
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_RANGE: return ONCE_FAULT_DATA;
    case SQLITE_ERROR:
        /* A table may vanish between prepare and run; everything else in this code is about values. */
        return strncmp(message, "no such ", 8) == 0 || strstr(message, " has no column ") ? ONCE_FAULT_PAUSE
                                                                                          : ONCE_FAULT_DATA;
    default: break;
    }
    switch (once_status_class(status)) {
    case ONCE_CLASS_RETRY: return (code & 0xff) == SQLITE_CANTOPEN ? ONCE_FAULT_PAUSE : ONCE_FAULT_RETRY;
    case ONCE_CLASS_PAUSE: return ONCE_FAULT_PAUSE;
    default: return ONCE_FAULT_FATAL;
    }
}

static int fault_status(once_fault_kind kind, int status)
{
    if (kind == ONCE_FAULT_CONSTRAINT || kind == ONCE_FAULT_DATA) return ONCE_E_MESSAGE;
    if (kind == ONCE_FAULT_PAUSE && once_status_class(status) != ONCE_CLASS_PAUSE) return ONCE_E_SCHEMA;
    return status;
}

/* "UNIQUE constraint failed: payments.id, payments.x" -> "payments.id,payments.x". */
static void constraint_name(int code, const char *message, char *out, size_t len)
{
    out[0] = '\0';
    if (code != SQLITE_CONSTRAINT_UNIQUE && code != SQLITE_CONSTRAINT_PRIMARYKEY && code != SQLITE_CONSTRAINT_ROWID &&
        code != SQLITE_CONSTRAINT_CHECK)
        return;
    const char *from = strstr(message, "failed: ");
    if (!from) return;
    from += strlen("failed: ");
    bool list = code != SQLITE_CONSTRAINT_CHECK;
    size_t n = 0;
    for (; *from && n + 1 < len; from++) {
        if (list && *from == ' ' && n && out[n - 1] == ',') continue;
        out[n++] = *from;
    }
    out[n] = '\0';
    /* An index over expressions has no columns: "index 'name'". */
    if (list && n > 8 && strncmp(out, "index '", 7) == 0 && out[n - 1] == '\'') {
        memmove(out, out + 7, n - 8);
        out[n - 8] = '\0';
    }
}

/* For the extended result codes that a user may list; empty for others. */
static const char *code_name(int code)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {
#define NAME(code) {code, #code}
        NAME(SQLITE_CONSTRAINT_CHECK),
        NAME(SQLITE_CONSTRAINT_FOREIGNKEY),
        NAME(SQLITE_CONSTRAINT_NOTNULL),
        NAME(SQLITE_CONSTRAINT_PRIMARYKEY),
        NAME(SQLITE_CONSTRAINT_ROWID),
        NAME(SQLITE_CONSTRAINT_TRIGGER),
        NAME(SQLITE_CONSTRAINT_UNIQUE),
        NAME(SQLITE_CONSTRAINT_DATATYPE),
        NAME(SQLITE_MISMATCH),
        NAME(SQLITE_TOOBIG),
        NAME(SQLITE_RANGE),
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) return names[i].name;
    return "";
}

/* A statement of the user that we ended ourselves. */
static int ended_fault(const once_sqlite_db *db, int code, once_fault *fault)
{
    if (fault) {
        *fault = (once_fault){.kind = db->ended, .code = code};
        snprintf(fault->text, sizeof fault->text, "%s",
                 db->ended == ONCE_FAULT_TIMEOUT ? "ended at its timeout" : "told to stop before it had ended");
    }
    return ONCE_E_ABORTED;
}

int once__sqlite_fault(once_sqlite_db *db, int code, once_fault *fault)
{
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended != ONCE_FAULT_NONE) return ended_fault(db, code, fault);
    const char *message = db->refused[0] ? db->refused : sqlite3_errmsg(db->handle);
    const int status = status_of(db->handle, code);
    const once_fault_kind kind = fault_kind(status, code, message);
    if (fault) {
        once_error why;
        *fault = (once_fault){.kind = kind, .code = code};
        if (status == ONCE_E_FULL)
            fail_at(db->path, db->handle, code, &why); /* which file, since the statement does not say it */
        snprintf(fault->text, sizeof fault->text, "%.299s", status == ONCE_E_FULL ? why.text : message);
        constraint_name(code, message, fault->constraint, sizeof fault->constraint);
        snprintf(fault->state, sizeof fault->state, "%s", code_name(code));
    }
    return fault_status(kind, status);
}

static int stmt_failed(sqlite_stmt *stmt, int code, once_fault *fault)
{
    once_sqlite_db *db = of(stmt->stmt.db);
    const int status = once__sqlite_fault(db, code, fault);
    sqlite3_reset(stmt->handle);
    if (fault) fault->aborted = sqlite3_get_autocommit(db->handle) != 0;
    return status;
}

/* ---- the authorizer ---- */

static bool is_ours(const char *name) { return name && sqlite3_strnicmp(name, "once_", 5) == 0; }

__attribute__((format(printf, 2, 3))) static int refuse(once_sqlite_db *db, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!db->refused[0]) vsnprintf(db->refused, sizeof db->refused, format, args);
    va_end(args);
    return SQLITE_DENY;
}

/* Questions that FTS and R-Tree ask of the file whose tables they are, in the middle of a statement of the user. They
 * change nothing. */
static bool is_asked_by_modules(const char *pragma)
{
    static const char *const asked[] = {"data_version", "page_size", "page_count"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (pragma && sqlite3_stricmp(pragma, asked[i]) == 0) return true;
    return false;
}

/* Whether it makes something that is in the connection only: what later messages write there is gone with it. */
static bool is_temporary(int action, const char *database)
{
    switch (action) {
    case SQLITE_CREATE_TEMP_TABLE:
    case SQLITE_CREATE_TEMP_VIEW:
    case SQLITE_CREATE_TEMP_INDEX:
    case SQLITE_CREATE_TEMP_TRIGGER: return true;
    case SQLITE_CREATE_TABLE: /* CREATE TABLE temp.x */
    case SQLITE_CREATE_VIEW:
    case SQLITE_CREATE_TRIGGER:
    case SQLITE_CREATE_INDEX:
    case SQLITE_CREATE_VTABLE: return database && sqlite3_stricmp(database, "temp") == 0;
    default: return false;
    }
}

static int authorize(void *self, int action, const char *a, const char *b, const char *database, const char *trigger)
{
    once_sqlite_db *db = self;
    (void)trigger;
    if (!db->user) return SQLITE_OK;
    if (is_temporary(action, database))
        return refuse(db, "temporary tables, views and triggers are not allowed in an effect: they end with the "
                          "connection, and hide others of their name; use a table of the file");
    switch (action) {
    case SQLITE_TRANSACTION: return refuse(db, "'%s' is not allowed in an effect; once commits for you", a);
    case SQLITE_SAVEPOINT: return refuse(db, "'%s' of a savepoint is not allowed in an effect; once sets its own", a);
    case SQLITE_ATTACH:
        return refuse(db, "'%s' is not allowed in an effect; use tables of the store's own file", "ATTACH");
    case SQLITE_DETACH: return refuse(db, "'%s' is not allowed in an effect", "DETACH");
    case SQLITE_PRAGMA:
        if (!b && is_asked_by_modules(a)) return SQLITE_OK;
        return refuse(db, "'PRAGMA %s' is not allowed in an effect; the settings are once's", a);
    case SQLITE_READ:
    case SQLITE_INSERT:
    case SQLITE_UPDATE:
    case SQLITE_DELETE:
    case SQLITE_CREATE_TABLE:
    case SQLITE_CREATE_VIEW:
    case SQLITE_CREATE_VTABLE:
    case SQLITE_DROP_TABLE:
    case SQLITE_DROP_VIEW:
    case SQLITE_ANALYZE:
        if (is_ours(a)) return refuse(db, "table '%s' belongs to once; use other names than 'once_...'", a);
        return SQLITE_OK;
    case SQLITE_CREATE_INDEX:
    case SQLITE_CREATE_TRIGGER:
    case SQLITE_DROP_INDEX:
    case SQLITE_DROP_TRIGGER:
    case SQLITE_ALTER_TABLE:
        if (is_ours(a) || is_ours(b))
            return refuse(db, "'%s' belongs to once; use other names than 'once_...'", is_ours(b) ? b : a);
        return SQLITE_OK;
    default: return SQLITE_OK;
    }
}

/* ---- connection ---- */

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
    if ((code & 0xff) != SQLITE_CANTOPEN || says_full(no)) return fail_at(path, handle, code, err);
    if (no == EACCES || no == EPERM || no == EROFS)
        return once_fail(err, no == EROFS ? ONCE_E_READONLY : ONCE_E_DENIED,
                         "file '%s': permission denied; give this user access to the file and its folder", path);
    if (no == EMFILE || no == ENFILE)
        return once_fail(err, ONCE_E_UNAVAILABLE, "file '%s': too many open files; raise the limit", path);
    if (no == EISDIR || (no == 0 && path[0] && path[strlen(path) - 1] == '/'))
        return once_fail(err, ONCE_E_CONFIG, "file '%s': is a folder; name a file in it", path);
    if (no == ENOENT && !options->create)
        return once_fail(err, ONCE_E_NO_STORE, "file '%s': does not exist; check the path, or let `once run` make it",
                         path);
    if ((no == ENOENT || no == ENOTDIR) && !has_folder(path))
        return once_fail(err, ONCE_E_CONFIG, "file '%s': its folder does not exist; make the folder first", path);
    if (no == ENOENT || no == ENOTDIR) /* as /proc says */
        return once_fail(err, ONCE_E_CONFIG,
                         "file '%s': its folder is there, but no file can be made in it; name another one", path);
    return once_fail(err, ONCE_E_UNAVAILABLE, "file '%s': cannot be opened; check the path and the permissions", path);
}

static int64_t mono_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits for a lock in short, uneven naps. SQLite's own handler naps for up to 100 ms, and then a process that commits
 * in a loop leaves it no chance: it lets the lock go for a moment only. */
static int on_busy(void *user, int tries)
{
    once_sqlite_db *db = user;
    const int64_t now_ns = mono_ns();
    if (tries == 0) db->busy_since_ns = now_ns;
    if (now_ns - db->busy_since_ns >= (int64_t)db->busy_ms * 1000000) return 0;
    if ((db->stop && atomic_load(db->stop)) || once_patience_over(&db->patience)) return 0;
    const long nap_us = 100 + (long)((now_ns / 64) % 900); /* uneven is enough; it need not be random */
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

/* What SQLite takes for a disk that is broken or away. It follows a link to the file itself, but none in place of those
 * beside it. */
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
                             "file '%s%s': is %s and no file; find out who put it there, and remove it", path,
                             beside[i], kind_of(st.st_mode));
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
    if (db) db->db.ops = &sqlite_ops;
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
                             NULL); /* no statement can damage the file, whatever gets past the authorizer */
    if (code == SQLITE_OK) code = sqlite3_set_authorizer(db->handle, authorize, db);
    if (code == SQLITE_OK && !options->readonly && sqlite3_db_readonly(db->handle, "main") == 1) code = SQLITE_READONLY;
    if (code != SQLITE_OK) {
        int status = fail_at(path, db->handle, code, err);
        once__sqlite_close(db);
        return status;
    }
    once__sqlite_note_place(db);
    *out = db;
    return ONCE_OK;
}

enum { STEPS_BETWEEN_LOOKS = 1000 }; /* of SQLite's machine: some ten microseconds */

/* Nonzero ends the statement. Statements of our own are bounded, and are let through. */
static int look_around(void *user)
{
    once_sqlite_db *db = user;
    if (!db->user) return 0;
    if (db->limit_ns && mono_ns() >= db->limit_ns) db->ended = ONCE_FAULT_TIMEOUT;
    else if (once_patience_over(&db->patience)) db->ended = ONCE_FAULT_STOPPED;
    return db->ended != ONCE_FAULT_NONE;
}

void once__sqlite_watch(once_sqlite_db *db, once_patience patience)
{
    assert(!db->borrowed && !db->stop);
    db->patience = patience;
    sqlite3_progress_handler(db->handle, STEPS_BETWEEN_LOOKS, look_around, db);
}

static void sqlite_limit(once_db *base, int64_t ms) { of(base)->limit_ns = ms ? mono_ns() + ms * 1000000 : 0; }

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
    db->db.ops = &sqlite_ops;
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
    int code = sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    return code == SQLITE_OK ? ONCE_OK : once__sqlite_fail(db, code, err);
}

int once__sqlite_exec(once_sqlite_db *db, const char *sql, once_error *err)
{
    int code = sqlite3_exec(db->handle, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? ONCE_OK : once__sqlite_fail(db, code, err);
}

int once__sqlite_step(once_sqlite_db *db, sqlite3_stmt *stmt, once_error *err)
{
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

/* ---- statements of the user ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/* Behind white space, comments and semicolons. */
static const char *skip_blank(const char *sql, const char *end)
{
    while (sql < end) {
        if (is_space(*sql) || *sql == ';') {
            sql++;
        } else if (end - sql >= 2 && sql[0] == '-' && sql[1] == '-') {
            while (sql < end && *sql != '\n') sql++;
        } else if (end - sql >= 2 && sql[0] == '/' && sql[1] == '*') {
            sql += 2;
            while (sql < end && !(end - sql >= 2 && sql[0] == '*' && sql[1] == '/')) sql++;
            sql = end - sql >= 2 ? sql + 2 : end;
        } else {
            break;
        }
    }
    return sql;
}

static bool starts_with_word(const char *sql, const char *end, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(end - sql) < len || sqlite3_strnicmp(sql, word, (int)len) != 0) return false;
    return (size_t)(end - sql) == len || !is_letter(sql[len]);
}

static int prepare_failed(once_sqlite_db *db, int code, once_error *err)
{
    const char *message = sqlite3_errmsg(db->handle);
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended == ONCE_FAULT_TIMEOUT)
        return once_fail(err, ONCE_E_CONFIG,
                         "a statement did not end within 'timeout'; make it shorter, or raise that");
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended == ONCE_FAULT_STOPPED)
        return once_fail(err, ONCE_E_ABORTED, "told to stop before it had ended");
    if (db->refused[0]) return once_fail(err, ONCE_E_CONFIG, "%s", db->refused);
    if ((code & 0xff) == SQLITE_ERROR &&
        (strncmp(message, "no such table", 13) == 0 || strncmp(message, "no such column", 14) == 0 ||
         strstr(message, " has no column named ")))
        return once_fail(err, ONCE_E_SCHEMA, "%s; create it in '%s' first", message, db->path);
    if ((code & 0xff) == SQLITE_ERROR || (code & 0xff) == SQLITE_AUTH || (code & 0xff) == SQLITE_TOOBIG)
        return once_fail(err, ONCE_E_CONFIG, "%s", message);
    return once__sqlite_fail(db, code, err);
}

static bool names_ours(const char *from, const char *to)
{
    for (const char *at = from; to - at >= 5; at++) {
        const bool begins = at == from || !(once_ascii_is_letter(at[-1]) || at[-1] == '_' ||
                                            (at[-1] >= '0' && at[-1] <= '9') || (unsigned char)at[-1] >= 0x80);
        if (begins && once_ascii_begins(at, (size_t)(to - at), "once_")) return true;
    }
    return false;
}

/* Prepares the first statement of [sql, end) under the authorizer. Sets `tail` behind it. `out` is NULL for nothing. */
static int prepare_user(once_sqlite_db *db, const char *sql, const char *end, unsigned flags, sqlite3_stmt **out,
                        const char **tail, once_error *err)
{
    const char *word = skip_blank(sql, end);
    *out = NULL;
    *tail = end;
    if (word == end) return ONCE_OK;
    if (memchr(word, '\0', (size_t)(end - word)))
        return once_fail(err, ONCE_E_CONFIG, "the statement contains a NUL byte");
    if (end - word > INT32_MAX) return once_fail(err, ONCE_E_CONFIG, "the statement is too long");
    if (starts_with_word(word, end, "VACUUM")) /* has no action code of its own */
        return once_fail(err, ONCE_E_CONFIG, "'VACUUM' is not allowed in an effect; run it while once is stopped");
    db->refused[0] = '\0';
    db->ended = ONCE_FAULT_NONE;
    db->user = true;
    int code = sqlite3_prepare_v3(db->handle, word, (int)(end - word), flags, out, tail);
    db->user = false;
    if (code == SQLITE_OK && starts_with_word(word, end, "ALTER") &&
        names_ours(word, *tail)) { /* the authorizer is not told the new name */
        sqlite3_finalize(*out);
        *out = NULL;
        return once_fail(err, ONCE_E_CONFIG, "names that begin with 'once_' belong to once; use others in ALTER TABLE");
    }
    return code == SQLITE_OK ? ONCE_OK : prepare_failed(db, code, err);
}

static int sqlite_prepare(once_db *base, once_bytes sql, once_stmt **out, once_error *err)
{
    once_sqlite_db *db = of(base);
    const char *end = sql.data + sql.len, *tail;
    sqlite3_stmt *handle;
    int status = prepare_user(db, sql.data, end, SQLITE_PREPARE_PERSISTENT, &handle, &tail, err);
    if (status != ONCE_OK) return status;
    if (!handle) return once_fail(err, ONCE_E_CONFIG, "the statement is empty");
    if (skip_blank(tail, end) != end) {
        sqlite3_finalize(handle);
        return once_fail(err, ONCE_E_CONFIG, "more than one statement; write each as an item of its own");
    }
    sqlite_stmt *stmt = calloc(1, sizeof *stmt);
    if (!stmt) {
        sqlite3_finalize(handle);
        return once_no_memory(err, "for a statement");
    }
    const char *word = skip_blank(sql.data, end);
    stmt->stmt.db = base;
    stmt->handle = handle;
    stmt->stmt.params = sqlite3_bind_parameter_count(handle);
    stmt->reads = sqlite3_stmt_readonly(handle) != 0;
    stmt->changes = !stmt->reads && (starts_with_word(word, end, "INSERT") || starts_with_word(word, end, "UPDATE") ||
                                     starts_with_word(word, end, "DELETE") || starts_with_word(word, end, "REPLACE") ||
                                     starts_with_word(word, end, "WITH"));
    *out = &stmt->stmt;
    return ONCE_OK;
}

static void sqlite_stmt_free(once_stmt *stmt)
{
    sqlite3_finalize(((sqlite_stmt *)stmt)->handle);
    free(stmt);
}

static int bind_value(sqlite3_stmt *stmt, int index, const once_value *value)
{
    switch (value->type) {
    case ONCE_VALUE_INTEGER: return sqlite3_bind_int64(stmt, index, value->integer);
    case ONCE_VALUE_NUMBER:
        return value->number.survives ? sqlite3_bind_double(stmt, index, value->number.real) : SQLITE_MISMATCH;
    case ONCE_VALUE_TEXT:
        return sqlite3_bind_text64(stmt, index, value->text.data ? value->text.data : "", value->text.len,
                                   SQLITE_STATIC, SQLITE_UTF8);
    case ONCE_VALUE_NULL: break;
    }
    return sqlite3_bind_null(stmt, index);
}

static int sqlite_run(once_stmt *base, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    sqlite_stmt *stmt = (sqlite_stmt *)base;
    once_sqlite_db *db = of(base->db);
    db->refused[0] = '\0';
    db->ended = ONCE_FAULT_NONE;
    for (size_t i = 0; i < n; i++) {
        int code = bind_value(stmt->handle, (int)i + 1, &values[i]);
        if (code != SQLITE_OK) return stmt_failed(stmt, code, fault);
    }
    int64_t returned = 0;
    const int64_t changes = sqlite3_total_changes64(db->handle);
    int code;
    db->user = true;
    while ((code = sqlite3_step(stmt->handle)) == SQLITE_ROW) returned++;
    db->user = false;
    if (code != SQLITE_DONE) {
        const int status = stmt_failed(stmt, code, fault);
        if (fault)
            fault->changed = sqlite3_total_changes64(db->handle) != changes; /* OR FAIL keeps what it did before */
        return status;
    }
    if (rows) *rows = stmt->reads ? returned : stmt->changes ? sqlite3_changes64(db->handle) : 0;
    code = sqlite3_reset(stmt->handle);
    return code == SQLITE_OK ? ONCE_OK : stmt_failed(stmt, code, fault);
}

static int sqlite_owes(once_db *base, once_fault *fault)
{
    once_sqlite_db *db = of(base);
    int owed = 0, highest = 0;
    if (sqlite3_db_status(db->handle, SQLITE_DBSTATUS_DEFERRED_FKS, &owed, &highest, 0) != SQLITE_OK || owed == 0)
        return ONCE_OK;
    *fault = (once_fault){.kind = ONCE_FAULT_CONSTRAINT, .code = SQLITE_CONSTRAINT_FOREIGNKEY, .changed = true};
    snprintf(fault->state, sizeof fault->state, "%s", code_name(fault->code));
    snprintf(fault->text, sizeof fault->text, "FOREIGN KEY constraint failed (deferred to the commit)");
    return ONCE_E_MESSAGE;
}

static int sqlite_savepoint(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    int status = db->mark ? ONCE_OK : once__sqlite_prepare(db, "SAVEPOINT once_message", &db->mark, err);
    if (status == ONCE_OK) status = once__sqlite_step(db, db->mark, err);
    if (status == ONCE_OK) db->savepoints++;
    return status;
}

static int sqlite_savepoint_release(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    assert(db->savepoints > 0);
    db->savepoints--;
    const int status = db->unmark ? ONCE_OK : once__sqlite_prepare(db, "RELEASE once_message", &db->unmark, err);
    return status == ONCE_OK ? once__sqlite_step(db, db->unmark, err) : status;
}

static int sqlite_savepoint_undo(once_db *base, once_error *err)
{
    once_sqlite_db *db = of(base);
    assert(db->savepoints > 0);
    db->savepoints--;
    return once__sqlite_exec(db, "ROLLBACK TO once_message; RELEASE once_message", err);
}

/* Only `look`: nothing is run, so that a statement may be about what one before it would have made. */
static int run_script(once_sqlite_db *db, once_bytes sql, bool look, once_error *err)
{
    const char *at = sql.data, *end = sql.data + sql.len;
    for (;;) {
        sqlite3_stmt *stmt;
        int status = prepare_user(db, at, end, 0, &stmt, &at, err);
        if (status != ONCE_OK) return status;
        if (!stmt) return ONCE_OK;
        int code = SQLITE_DONE;
        db->user = true;
        while (!look && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        }
        db->user = false;
        if (code != SQLITE_DONE) status = prepare_failed(db, code, err);
        if (code != SQLITE_DONE && (code & 0xff) == SQLITE_CONSTRAINT)
            status = once_fail(err, ONCE_E_CONFIG, "%s", sqlite3_errmsg(db->handle));
        sqlite3_finalize(stmt);
        if (status != ONCE_OK) return status;
    }
}

static int sqlite_script(once_db *base, once_bytes sql, once_error *err)
{
    once_sqlite_db *db = of(base);
    if (!sqlite3_get_autocommit(db->handle))
        return once_fail(err, ONCE_E_USAGE, "a script runs in a transaction of its own");
    int status = once__sqlite_exec(db, "BEGIN IMMEDIATE", err);
    if (status != ONCE_OK) return status;
    status = run_script(db, sql, false, err);
    if (status == ONCE_OK) status = once__sqlite_exec(db, "COMMIT", err);
    if (status != ONCE_OK && !sqlite3_get_autocommit(db->handle))
        sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static int sqlite_script_look(once_db *base, once_bytes sql, bool *needed, once_error *err)
{
    once_error why;
    const int status = run_script(of(base), sql, true, &why);
    *needed = status == ONCE_E_SCHEMA;
    return status == ONCE_OK || *needed ? ONCE_OK : once_fail(err, status, "%s", why.text);
}

static int sqlite_describe(once_db *base, char *out, size_t len, once_error *err)
{
    once_sqlite_db *db = of(base);
    static const char *const levels[] = {"off", "normal", "full", "extra"};
    sqlite3_stmt *stmt;
    char journal[20] = "";
    int64_t level = 0;
    int code = sqlite3_prepare_v2(db->handle, "PRAGMA journal_mode", -1, &stmt, NULL);
    if (code != SQLITE_OK) return once__sqlite_fail(db, code, err);
    if (sqlite3_step(stmt) == SQLITE_ROW)
        snprintf(journal, sizeof journal, "%s", (const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    int status = once__sqlite_integer(db, "PRAGMA synchronous", 0, &level, err);
    if (status != ONCE_OK) return status;
    snprintf(out, len, "journal_mode=%s synchronous=%s", journal, level >= 0 && level <= 3 ? levels[level] : "?");
    return ONCE_OK;
}

static const once_db_ops sqlite_ops = {
    .prepare = sqlite_prepare,
    .stmt_free = sqlite_stmt_free,
    .stmt_run = sqlite_run,
    .owes = sqlite_owes,
    .savepoint = sqlite_savepoint,
    .savepoint_release = sqlite_savepoint_release,
    .savepoint_undo = sqlite_savepoint_undo,
    .limit = sqlite_limit,
    .script = sqlite_script,
    .script_look = sqlite_script_look,
    .describe = sqlite_describe,
    .identity = once__sqlite_identity,
    .begin = once__sqlite_tx_begin,
    .commit = once__sqlite_tx_commit,
    .rollback = once__sqlite_tx_rollback,
    .close = once__sqlite_close_other,
};
