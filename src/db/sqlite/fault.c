/* What a result code of SQLite means: a status, a fault of a statement of the user, and a text for both. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "db/sqlite/parts.h"

#include "base/banned.h"

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

/* What an operator can do about a status, or NULL. */
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

bool once__sqlite_says_full(int no) { return no == ENOSPC || no == EDQUOT || no == EFBIG; }

/* The errno of a refused write if it means that there was no space; otherwise 0. SQLite keeps it in the open file; that
 * of the journal is gone after a rollback; the connection has it for statements, but not for COMMIT. When a file could
 * not be opened, the errno of the open files is of an earlier failure. */
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
        if (files[i] && !once__sqlite_says_full(files[i])) return 0; /* another failure came after it */
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        if (once__sqlite_says_full(found[i])) return found[i];
    return 0;
}

/* SQLite has a code for a full disk, but reports a quota or a limit of the file size as an I/O error, and also a full
 * disk when it creates its other files. Only refused writes count: after a failed sync the state of the disk is
 * unknown. */
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

/* The status of the last failure on the connection. */
static int status_of(sqlite3 *handle, int code)
{
    return no_space(handle, code) ? ONCE_E_FULL : once__sqlite_status(code);
}

int once__sqlite_fail_at(const char *path, sqlite3 *handle, int code, once_error *err)
{
    int status = status_of(handle, code);
    const char *what = code == SQLITE_NOMEM ? "out of memory" : sqlite3_errmsg(handle);
    if (status == ONCE_E_MESSAGE) status = ONCE_E_SCHEMA; /* of a statement of ours: the tables have changed */
    if (status == ONCE_E_NOT_OURS) what = "not an SQLite database";
    if (status == ONCE_E_READONLY) what = "read-only";
    if (status == ONCE_E_FULL) what = what_is_full(no_space(handle, code));
    const char *hint = advice(status);
    return once_fail(err, status, "file '%s': %s%s%s", path, what, hint ? "; " : "", hint ? hint : "");
}

int once__sqlite_fail(once_sqlite_db *db, int code, once_error *err)
{
    return once__sqlite_fail_at(db->path, db->handle, code, err);
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
        /* A table may be dropped between prepare and run; everything else with this code is about values. */
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

const char *once__sqlite_code_name(int code)
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
    assert(db->ended == ONCE_FAULT_TIMEOUT || db->ended == ONCE_FAULT_STOPPED);
    if (fault) {
        *fault = (once_fault){.kind = db->ended, .code = code};
        snprintf(fault->text, sizeof fault->text, "%s",
                 db->ended == ONCE_FAULT_TIMEOUT ? "ended at its timeout" : "stopped before it had ended");
    }
    return ONCE_E_ABORTED;
}

int once__sqlite_fault(once_sqlite_db *db, int code, once_fault *fault)
{
    assert(code != SQLITE_OK);
    if ((code & 0xff) == SQLITE_INTERRUPT && db->ended != ONCE_FAULT_NONE) return ended_fault(db, code, fault);
    const char *message = db->refused[0] ? db->refused : sqlite3_errmsg(db->handle);
    const int status = status_of(db->handle, code);
    const once_fault_kind kind = fault_kind(status, code, message);
    if (fault) {
        once_error why;
        *fault = (once_fault){.kind = kind, .code = code};
        if (status == ONCE_E_FULL)
            once__sqlite_fail_at(db->path, db->handle, code,
                                 &why); /* with the name of the file, which the message of SQLite does not have */
        snprintf(fault->text, sizeof fault->text, "%.299s", status == ONCE_E_FULL ? why.text : message);
        constraint_name(code, message, fault->constraint, sizeof fault->constraint);
        snprintf(fault->state, sizeof fault->state, "%s", once__sqlite_code_name(code));
    }
    return fault_status(kind, status);
}
