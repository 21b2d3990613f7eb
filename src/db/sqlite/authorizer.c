/* What a statement of the user must not do. SQLite calls the authorizer for every statement that is prepared.
 * Statements of our own may do everything. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "db/sqlite/parts.h"

#include "base/banned.h"

static bool is_ours(const char *name) { return name && sqlite3_strnicmp(name, "once_", 5) == 0; }

__attribute__((format(printf, 2, 3))) static int refuse(once_sqlite_db *db, const char *format, ...)
{
    assert(db->user);
    va_list args;
    va_start(args, format);
    if (!db->refused[0]) vsnprintf(db->refused, sizeof db->refused, format, args);
    va_end(args);
    return SQLITE_DENY;
}

/* Pragmas that FTS and R-Tree run for their tables in the middle of a statement of the user. They change nothing. */
static bool is_asked_by_modules(const char *pragma)
{
    static const char *const asked[] = {"data_version", "page_size", "page_count"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (pragma && sqlite3_stricmp(pragma, asked[i]) == 0) return true;
    return false;
}

/* Whether it creates something temporary: what later messages write there ends with the connection. */
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

int once__sqlite_authorize(void *self, int action, const char *a, const char *b, const char *database,
                           const char *trigger)
{
    once_sqlite_db *db = self;
    assert(!db->borrowed); /* the caller's connection keeps its own authorizer */
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
        return refuse(db, "'PRAGMA %s' is not allowed in an effect; once controls the settings", a);
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
