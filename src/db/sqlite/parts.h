/* Shared by the files of the SQLite driver. */
#ifndef ONCE_DB_SQLITE_PARTS_H
#define ONCE_DB_SQLITE_PARTS_H

#include "db/sqlite/sqlite.h"

extern const once_db_ops once__sqlite_ops; /* user.c */

int64_t once__sqlite_mono_ns(void);

/* The callback of sqlite3_set_authorizer; `self` is the connection (authorizer.c). */
int once__sqlite_authorize(void *self, int action, const char *a, const char *b, const char *database,
                           const char *trigger);

/* As once__sqlite_fail, for a connection that is not completely open (fault.c). */
int once__sqlite_fail_at(const char *path, sqlite3 *handle, int code, once_error *err);
bool once__sqlite_says_full(int no); /* an errno that means: no space */
/* The name of an extended result code that a user may list; empty for others. */
const char *once__sqlite_code_name(int code);

#endif
