/* The tables of the sqlite store: making them, knowing them again, and bringing old ones up to date. */
#ifndef ONCE_STORE_SQLITE_SCHEMA_H
#define ONCE_STORE_SQLITE_SCHEMA_H

#include "base/env.h"
#include "base/hash.h"
#include "db/sqlite/sqlite.h"

#define ONCE_SQLITE_APPLICATION_ID 0x6f6e6365 /* "once"; set only in files that we made ourselves */
#define ONCE_SQLITE_VERSION 5

/* What `once schema sqlite:` prints. */
const char *once__sqlite_schema(void);

/* Settings of our connection; with `create` it asks for WAL when the file is new. Not in a transaction. Waits for other
 * processes. */
int once__sqlite_settings(once_sqlite_db *db, const once_env *env, bool create, int busy_ms, once_error *err);

/* Outside of a transaction: whether nothing has to be made or changed, and then the secret. Takes no lock that a writer
 * would have to give up, so that those who only read need not wait for one. */
/* An index that a store of before lacks; outside of a transaction. Who cannot make it now goes on without. */
void once__sqlite_index_keys(once_sqlite_db *db);
int once__sqlite_is_ready(once_sqlite_db *db, bool *ready, once_secret *secret, once_error *err);

/* Inside a write transaction (or a read-only one, then nothing is made): makes the tables if there are none and brings
 * them to version 1 at least. `version` is what they are then; older than ONCE_SQLITE_VERSION: sqlite.c takes them
 * further. */
int once__sqlite_ready(once_sqlite_db *db, const once_env *env, bool create, bool readonly, int64_t *version,
                       bool *made, once_secret *secret, once_error *err);

/* Creates the tables that `version` (1 or later) does not have yet, and says so in once_meta. */
int once__sqlite_upgrade_tables(once_sqlite_db *db, int64_t version, once_error *err);

/* The statements that give all rows of single columns their sums. */
const char *once__sqlite_sum_rows(void);
/* Writes the sum of what is in once_meta, which is verified when the file is opened. */
int once__sqlite_sum_meta(once_sqlite_db *db, once_error *err);

#endif
