/* The tables of the sqlite store: makes them, recognizes them, and brings old ones up to date. schema.c has the
 * layout. */
#ifndef ONCE_STORE_SQLITE_SCHEMA_H
#define ONCE_STORE_SQLITE_SCHEMA_H

#include "base/env.h"
#include "base/hash.h"
#include "db/sqlite/sqlite.h"

#define ONCE_SQLITE_APPLICATION_ID 0x6f6e6365 /* "once"; set only in files that the store made itself */
#define ONCE_SQLITE_VERSION 6
#define ONCE_SQLITE_SUMMED 5 /* the first version whose tables have sums */

/* The text that `once schema sqlite:` prints. */
const char *once__sqlite_schema(void);

/* Sets up our connection; with `create` it chooses WAL when the file is new. Not in a transaction. Waits for other
 * processes. */
int once__sqlite_settings(once_sqlite_db *db, const once_env *env, bool create, int busy_ms, once_error *err);

/* Makes an index that older stores lack; outside of a transaction. If it cannot be made now, the store works without
 * it. */
void once__sqlite_index_keys(once_sqlite_db *db);
/* Outside of a transaction: sets *ready when no table has to be made or changed, and then `secret`. Takes no lock that
 * a writer would have to give up, so that readers need not wait for a writer. */
int once__sqlite_is_ready(once_sqlite_db *db, bool *ready, once_secret *secret, once_error *err);

/* Inside a write transaction (or a read-only one, which makes nothing): makes the tables if there are none, and brings
 * them to version 1 at least. `version` is their version then; when it is older than ONCE_SQLITE_VERSION, store.c
 * takes them further. */
int once__sqlite_ready(once_sqlite_db *db, const once_env *env, bool create, bool readonly, int64_t *version,
                       bool *made, once_secret *secret, once_error *err);

/* Creates the tables that `version` (1 or later) does not have yet, and writes the new version to once_meta. */
int once__sqlite_upgrade_tables(once_sqlite_db *db, int64_t version, once_error *err);

/* The statements that give all rows with a column `sum` their sums. */
const char *once__sqlite_sum_rows(void);
/* Writes the sum over once_meta, which is verified when the file is opened. */
int once__sqlite_sum_meta(once_sqlite_db *db, once_error *err);

#endif
