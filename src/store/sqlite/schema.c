/* Tables of the sqlite store, and their versions. The texts below are the layout: each table with its columns.
 *
 *   once_meta     name, value: format, version, secret, and a sum over them
 *   once_store    one row, written with every commit: the clock, the state of the records (settled.h), sums over the
 *                 ids of the other tables
 *   once_entry    unfinished and dead entries, except claims that are records; states and flag bits are those of
 *                 store/states.h
 *   once_body     bodies that the store owns, by the n of their entry
 *   once_lane     version, end and record (lane_record.h) of a lane
 *   once_letter, once_audit, once_fact           dead letters, operator actions, small named facts
 *   once_name     names that records refer to by number (store/name_table.h)
 *   once_recent, once_run, once_bucket, once_filter    finished entries, and claims, as records (settled.c, record.h)
 *
 *   version 0   all entries are rows of once_entry, with their bodies; the clock is in once_meta
 *   version 1   bodies are in once_body, so that a lease can be extended without writing the body again; once_head
 *   version 2   finished entries are no longer rows but records (settled.c); once_name
 *   version 3   once_audit
 *   version 4   who, worker and history; records have who and history (record.h)
 *   version 5   once_store replaces once_head, which stops older programs that still run; it holds whether the time is
 *               in doubt. Lanes have a record (lane_record.h); rows have sums (sum.h); entries have the time of their
 *               first failure; an entry that waits without a body expires; audits keep a body that was replaced. Older
 *               data stays as it is: rows of once_recent and runs up to the ids in once_store have no seals, and
 *               disappear by merging with time
 *   version 6   claims may be records of once_recent; the tables are as before
 *
 * A program reads the version again whenever another connection has written (tx.c). So from version 5 on it stops
 * with an error when a newer program has brought the tables up to date.
 *
 * Invariants. A file is ours when it has a table once_meta(name, value) with format = 'once'. A user's own database
 * gets our tables beside its own, and keeps its journal mode and application_id. Everything here runs in one
 * transaction: a crash leaves the old version or the new one, and a second process waits and then finds the work
 * done. */
#include "store/sqlite/schema.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/failpoint.h"
#include "store/sqlite/columns.h"
#include "store/sqlite/sum.h"
#include "store/states.h"

#include "base/banned.h"

#define TABLES_META                                                                                                    \
    "CREATE TABLE once_meta(        -- format, version, secret\n"                                                      \
    "  name TEXT PRIMARY KEY,\n"                                                                                       \
    "  value\n"                                                                                                        \
    ") WITHOUT ROWID;\n"

#define TABLES_SHARED                                                                                                  \
    "CREATE TABLE once_lane(        -- the highest version that settled in a lane\n"                                   \
    "  id BLOB PRIMARY KEY,\n"                                                                                         \
    "  version INTEGER NOT NULL,     -- -1: none\n"                                                                    \
    "  expires_ms INTEGER NOT NULL\n"                                                                                  \
    ") WITHOUT ROWID;\n"                                                                                               \
    "CREATE TABLE once_letter(      -- dead letters\n"                                                                 \
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,\n"                                                                        \
    "  same BLOB NOT NULL UNIQUE,\n"                                                                                   \
    "  entry BLOB,\n"                                                                                                  \
    "  tenant BLOB NOT NULL, consumer BLOB NOT NULL, operation BLOB NOT NULL, key BLOB NOT NULL,\n"                    \
    "  kind INTEGER NOT NULL, reason BLOB NOT NULL, attempt INTEGER NOT NULL, failures INTEGER NOT NULL,\n"            \
    "  seen_ms INTEGER NOT NULL, buried_ms INTEGER NOT NULL,\n"                                                        \
    "  type BLOB NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL, sent_ms INTEGER,\n"                              \
    "  place BLOB NOT NULL, point BLOB NOT NULL\n"                                                                     \
    ");\n"                                                                                                             \
    "CREATE INDEX once_letter_consumer ON once_letter(consumer, id);\n"                                                \
    "CREATE TABLE once_fact(        -- small named facts\n"                                                            \
    "  name TEXT PRIMARY KEY,\n"                                                                                       \
    "  value BLOB NOT NULL\n"                                                                                          \
    ") WITHOUT ROWID;\n"

#define TABLES_1                                                                                                       \
    "CREATE TABLE once_entry(       -- entries that are not finished, and dead ones\n"                                 \
    "  n INTEGER PRIMARY KEY,\n"                                                                                       \
    "  id BLOB NOT NULL UNIQUE,\n"                                                                                     \
    "  state INTEGER NOT NULL,       -- 1 claimed 2 waiting 3 unknown 4 dead\n"                                        \
    "  owned INTEGER NOT NULL,       -- 1: its body is in once_body\n"                                                 \
    "  token BLOB NOT NULL, attempt INTEGER NOT NULL, failures INTEGER NOT NULL, fingerprint BLOB NOT NULL,\n"         \
    "  lane BLOB, ord INTEGER NOT NULL, gap_ms INTEGER NOT NULL, remember_ms INTEGER NOT NULL,\n"                      \
    "  flags INTEGER NOT NULL,       -- 1 versioned 2 gap 4 hold 8 unreported 16 natural 32 maybe 64 new key 128 "     \
    "block "                                                                                                           \
    "256 fixed 512 lookup 1024 unknown, asked about when due\n"                                                        \
    "  run INTEGER NOT NULL,\n"                                                                                        \
    "  seen_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL, due_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,\n" \
    "  keep_ms INTEGER NOT NULL,     -- a finished record of this id may exist until then\n"                           \
    "  tenant BLOB NOT NULL, consumer BLOB NOT NULL, operation BLOB NOT NULL, key BLOB NOT NULL,\n"                    \
    "  place BLOB NOT NULL, point BLOB NOT NULL, result BLOB NOT NULL, reason BLOB NOT NULL\n"                         \
    ");\n"                                                                                                             \
    "CREATE INDEX once_entry_due ON once_entry(consumer, due_ms, id) WHERE owned = 1 AND state < 3;\n"                 \
    "CREATE INDEX once_entry_lane ON once_entry(lane, ord, id, state) WHERE lane IS NOT NULL AND state < 4;\n"         \
    "CREATE INDEX once_entry_running ON once_entry(lane, id) WHERE lane IS NOT NULL AND state = 1;\n"                  \
    "CREATE INDEX once_entry_token ON once_entry(token) WHERE state = 1;\n"                                            \
    "CREATE TABLE once_body(        -- bodies that the store owns\n"                                                   \
    "  n INTEGER PRIMARY KEY,        -- as in once_entry\n"                                                            \
    "  type BLOB NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL, sent_ms INTEGER,\n"                              \
    "  place BLOB NOT NULL, point BLOB NOT NULL\n"                                                                     \
    ");\n"

/* Until version 5, which replaces it with once_store. */
#define HEAD_1                                                                                                         \
    "CREATE TABLE once_head(        -- one row, written with every commit\n"                                           \
    "  id INTEGER PRIMARY KEY CHECK (id = 1),\n"                                                                       \
    "  clock_tenths INTEGER NOT NULL, boot_ms INTEGER NOT NULL, boot_id INTEGER NOT NULL,\n"                           \
    "  generation INTEGER NOT NULL, flushed INTEGER NOT NULL, last_recent INTEGER NOT NULL, last_run INTEGER NOT "     \
    "NULL\n"                                                                                                           \
    ");\n"

#define TABLES_2                                                                                                       \
    "CREATE TABLE once_name(        -- scopes, places and runs that finished entries refer to\n"                       \
    "  id INTEGER PRIMARY KEY,\n"                                                                                      \
    "  name BLOB NOT NULL UNIQUE\n"                                                                                    \
    ");\n"                                                                                                             \
    "CREATE TABLE once_recent(      -- finished entries, one row per commit\n"                                         \
    "  id INTEGER PRIMARY KEY,\n"                                                                                      \
    "  records BLOB NOT NULL,\n"                                                                                       \
    "  tails BLOB\n"                                                                                                   \
    ");\n"                                                                                                             \
    "CREATE TABLE once_run(         -- finished entries, sorted\n"                                                     \
    "  id INTEGER PRIMARY KEY,\n"                                                                                      \
    "  level INTEGER NOT NULL, state INTEGER NOT NULL, cursor INTEGER NOT NULL, records INTEGER NOT NULL,\n"           \
    "  min_keep_ms INTEGER NOT NULL, max_keep_ms INTEGER NOT NULL, created_ms INTEGER NOT NULL, swept_ms INTEGER NOT " \
    "NULL\n"                                                                                                           \
    ");\n"                                                                                                             \
    "CREATE TABLE once_bucket(      -- the records of the runs\n"                                                      \
    "  id INTEGER PRIMARY KEY,       -- run << 32 | bucket\n"                                                          \
    "  records BLOB NOT NULL,\n"                                                                                       \
    "  tails BLOB\n"                                                                                                   \
    ");\n"                                                                                                             \
    "CREATE TABLE once_filter(      -- what is surely not in a bucket\n"                                               \
    "  id INTEGER PRIMARY KEY,       -- run << 32 | bucket / 64\n"                                                     \
    "  blocks BLOB NOT NULL\n"                                                                                         \
    ");\n"

#define TABLES_3                                                                                                       \
    "CREATE TABLE once_audit(       -- what operators did\n"                                                           \
    "  id INTEGER PRIMARY KEY,\n"                                                                                      \
    "  time_ms INTEGER NOT NULL, consumer BLOB NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,\n"                     \
    "  key BLOB NOT NULL, letter INTEGER, note TEXT NOT NULL\n"                                                        \
    ");\n"

#define TABLES_4                                                                                                       \
    "ALTER TABLE once_entry ADD COLUMN who BLOB NOT NULL DEFAULT x'';      -- who saw it first\n"                      \
    "ALTER TABLE once_entry ADD COLUMN worker BLOB NOT NULL DEFAULT x'';   -- whose claim it is\n"                     \
    "ALTER TABLE once_entry ADD COLUMN history BLOB NOT NULL DEFAULT x'';  -- how its attempts ended\n"                \
    "ALTER TABLE once_letter ADD COLUMN history BLOB NOT NULL DEFAULT x'';\n"

/* once_head under another name, so that older programs that still run stop: each of their transactions reads or writes
 * once_head. */
#define STORE_5                                                                                                        \
    "CREATE TABLE once_store(       -- one row, written with every commit\n"                                           \
    "  id INTEGER PRIMARY KEY CHECK (id = 1),\n"                                                                       \
    "  clock_tenths INTEGER NOT NULL, boot_ms INTEGER NOT NULL, boot_id INTEGER NOT NULL,\n"                           \
    "  generation INTEGER NOT NULL, flushed INTEGER NOT NULL, last_recent INTEGER NOT NULL, last_run INTEGER NOT "     \
    "NULL,\n"                                                                                                          \
    "  doubted INTEGER NOT NULL DEFAULT 0,         -- 1: the wall clock was not believed\n"                            \
    "  unsealed_recent INTEGER NOT NULL DEFAULT 0, -- up to here they have no seals\n"                                 \
    "  unsealed_run INTEGER NOT NULL DEFAULT 0,\n"                                                                     \
    "  runs_sum INTEGER NOT NULL DEFAULT 0,        -- of all rows of once_run\n"                                       \
    "  entries_sum INTEGER NOT NULL DEFAULT 0,     -- of their ids: which rows there are\n"                            \
    "  lanes_sum INTEGER NOT NULL DEFAULT 0,\n"                                                                        \
    "  facts_sum INTEGER NOT NULL DEFAULT 0,\n"                                                                        \
    "  letters_sum INTEGER NOT NULL DEFAULT 0,\n"                                                                      \
    "  audits_sum INTEGER NOT NULL DEFAULT 0,\n"                                                                       \
    "  sum INTEGER                                 -- of this row\n"                                                   \
    ");\n"

#define FROM_HEAD                                                                                                      \
    "INSERT INTO once_store(id, clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run, "          \
    "unsealed_recent, unsealed_run)"                                                                                   \
    " SELECT id, clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run, last_recent, last_run "   \
    "FROM once_head;"                                                                                                  \
    "DROP TABLE once_head;"

#define TABLES_5                                                                                                       \
    "ALTER TABLE once_lane ADD COLUMN record BLOB NOT NULL DEFAULT x'';    -- who settled the version, what it waits " \
    "for\n"                                                                                                            \
    "ALTER TABLE once_entry ADD COLUMN failing_ms INTEGER NOT NULL DEFAULT 0;  -- its first failure; 0: none, or not " \
    "known\n"                                                                                                          \
    "ALTER TABLE once_name ADD COLUMN sum INTEGER;\n"                                                                  \
    "ALTER TABLE once_entry ADD COLUMN sum INTEGER;  -- of all columns but n\n"                                        \
    "ALTER TABLE once_body ADD COLUMN sum INTEGER;\n"                                                                  \
    "ALTER TABLE once_lane ADD COLUMN sum INTEGER;\n"                                                                  \
    "ALTER TABLE once_letter ADD COLUMN count INTEGER NOT NULL DEFAULT 1;  -- deliveries\n"                            \
    "ALTER TABLE once_letter ADD COLUMN last_ms INTEGER NOT NULL DEFAULT 0; -- of the last one; 0: as buried_ms\n"     \
    "ALTER TABLE once_letter ADD COLUMN sum INTEGER; -- of all columns but the id\n"                                   \
    "ALTER TABLE once_fact ADD COLUMN sum INTEGER;\n"                                                                  \
    "DROP INDEX once_entry_running; -- that did not fit what is asked for: who is claimed, or unknown\n"               \
    "CREATE INDEX once_entry_running ON once_entry(lane, id) WHERE lane IS NOT NULL AND state IN (1, 3);\n"            \
    "CREATE INDEX once_entry_expires ON once_entry(expires_ms) WHERE state = 2 AND owned = 0;  -- what a sweep looks " \
    "for\n"                                                                                                            \
    "ALTER TABLE once_audit ADD COLUMN body BLOB NOT NULL DEFAULT x'';          -- what was replaced\n"                \
    "ALTER TABLE once_audit ADD COLUMN sum INTEGER;  -- of all columns but the id\n"

/* Not a part of the version: letters are found without this index, too, and programs that do not use it keep it up to
 * date. */
#define LETTER_KEYS "CREATE INDEX once_letter_key ON once_letter(key);\n"

/* Sums for rows from before version 5. */
#define SUM_UP                                                                                                         \
    "UPDATE once_entry SET sum = " ENTRY_SUM "; UPDATE once_body SET sum = " BODY_SUM ";"                              \
    "UPDATE once_lane SET sum = " LANE_SUM "; UPDATE once_letter SET sum = " LETTER_SUM ";"                            \
    "UPDATE once_fact SET sum = " FACT_SUM "; UPDATE once_name SET sum = " NAME_SUM ";"                                \
    "UPDATE once_audit SET sum = " AUDIT_SUM

const char *once__sqlite_schema(void)
{
    return "-- Tables of a once store, version 6. `once` makes them by itself; nothing else may write to "
           "them.\n" TABLES_META TABLES_SHARED TABLES_1 TABLES_2 TABLES_3 TABLES_4 STORE_5 TABLES_5 LETTER_KEYS;
}

/* ---- settings ---- */

static int tables_in_file(once_sqlite_db *db, int64_t *n, once_error *err)
{
    return once__sqlite_integer(db, "SELECT count(*) FROM sqlite_schema", 0, n, err);
}

static int settings(once_sqlite_db *db, bool create, once_error *err)
{
    int64_t tables;
    int rc =
        once__sqlite_exec(db,
                          "PRAGMA cache_size = -49152; PRAGMA wal_autocheckpoint = 16384; PRAGMA secure_delete = FAST;"
                          "PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY",
                          err);
    if (rc == ONCE_OK) rc = tables_in_file(db, &tables, err); /* the first read of the file */
    if (rc == ONCE_OK && tables == 0 && create)
        rc =
            once__sqlite_exec(db, "PRAGMA page_size = 4096; PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = WAL", err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(db, "PRAGMA synchronous = FULL", err);
    return rc;
}

int once__sqlite_settings(once_sqlite_db *db, const once_env *env, bool create, int busy_ms, once_error *err)
{
    enum { PAUSE_MS = 10 };
    for (int waited_ms = 0;; waited_ms += PAUSE_MS) { /* SQLite itself does not wait when the journal mode changes */
        const int rc = settings(db, create, err);
        if (rc != ONCE_E_BUSY || waited_ms >= busy_ms) return rc;
        once_env_sleep_ms(env, PAUSE_MS);
    }
}

/* ---- what is there ---- */

static int not_ours(once_sqlite_db *db, once_error *err)
{
    return once_fail(err, ONCE_E_NOT_OURS, "file '%s': has a table 'once_meta' that is not ours; choose another file",
                     db->path);
}

/* Fails when once_meta has no row although other tables exist: a new secret there would make a second store. */
static int is_emptied(once_sqlite_db *db, once_error *err)
{
    int64_t n = 0;
    const int rc = once__sqlite_integer(db,
                                        "SELECT (SELECT count(*) FROM once_meta) = 0 AND count(*) = 2 FROM "
                                        "sqlite_schema WHERE name IN ('once_entry', 'once_fact')",
                                        0, &n, err);
    if (rc != ONCE_OK || !n) return rc;
    return once_fail(err, ONCE_E_OTHER_STORE,
                     "file '%s': the tables of the store were emptied: once_meta has no row; restore it from a backup, "
                     "or move it away to"
                     " begin a new store, in which every message is new",
                     db->path);
}

static int look(once_sqlite_db *db, int64_t *version, bool *found, once_error *err)
{
    int64_t n = 0;
    *found = false;
    int rc = once__sqlite_integer(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'once_meta'", 0, &n, err);
    if (rc != ONCE_OK || n == 0) return rc;
    rc = once__sqlite_integer(db, "SELECT group_concat(name, ',') = 'name,value' FROM pragma_table_info('once_meta')",
                              0, &n, err);
    if (rc != ONCE_OK) return rc;
    if (!n) return not_ours(db, err);
    rc = once__sqlite_integer(db, "SELECT value = 'once' FROM once_meta WHERE name = 'format'", 0, &n, err);
    if (rc == ONCE_OK && !n) rc = is_emptied(db, err);
    if (rc != ONCE_OK) return rc;
    if (!n) return not_ours(db, err);
    rc = once__sqlite_integer(db, "SELECT value FROM once_meta WHERE name = 'version' AND typeof(value) = 'integer'",
                              -1, version, err);
    if (rc != ONCE_OK) return rc;
    if (*version < 0)
        return once_fail(err, ONCE_E_CORRUPT, "file '%s': has no version; restore it from a backup", db->path);
    if (*version > ONCE_SQLITE_VERSION)
        return once_fail(err, ONCE_E_NEWER,
                         "file '%s': written by a newer once (tables of version %lld, this one knows %d); upgrade once",
                         db->path, (long long)*version, ONCE_SQLITE_VERSION);
    *found = true;
    return ONCE_OK;
}

/* The sum covers all rows of once_meta except the sum itself. The numbers in it are small, and have one form as
 * text. */
#define META_SUMMED                                                                                                    \
    "SELECT group_concat(name || '=' || hex(value), ';') FROM (SELECT name, value FROM once_meta WHERE name <> 'sum' " \
    "ORDER BY name)"

static int meta_sum(once_sqlite_db *db, int64_t *out, once_error *err)
{
    sqlite3_stmt *stmt;
    int rc = once__sqlite_prepare(db, META_SUMMED, &stmt, err);
    if (rc != ONCE_OK) return rc;
    const int code = sqlite3_step(stmt);
    if (code == SQLITE_ROW) {
        const void *text = sqlite3_column_blob(stmt, 0);
        *out = (int64_t)once__sum('m', 0, 0, (once_bytes){text, (size_t)sqlite3_column_bytes(stmt, 0)});
    } else {
        rc = once__sqlite_fail(db, code, err);
    }
    sqlite3_finalize(stmt);
    return rc;
}

const char *once__sqlite_sum_rows(void) { return SUM_UP; }

int once__sqlite_sum_meta(once_sqlite_db *db, once_error *err)
{
    int64_t sum;
    char sql[120];
    const int rc = meta_sum(db, &sum, err);
    if (rc != ONCE_OK) return rc;
    snprintf(sql, sizeof sql, "INSERT OR REPLACE INTO once_meta VALUES ('sum', %lld)", (long long)sum);
    return once__sqlite_exec(db, sql, err);
}

/* Checks the sum of once_meta. The secret is a part of every key: with another secret every message would look new. */
static int check_meta(once_sqlite_db *db, once_error *err)
{
    int64_t sum, n = 0;
    char sql[120];
    int rc = meta_sum(db, &sum, err);
    if (rc != ONCE_OK) return rc;
    snprintf(sql, sizeof sql, "SELECT value = %lld FROM once_meta WHERE name = 'sum'", (long long)sum);
    rc = once__sqlite_integer(db, sql, 0, &n, err);
    if (rc == ONCE_OK && !n)
        rc =
            once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_meta is damaged; restore it from a backup", db->path);
    return rc;
}

static int read_secret(once_sqlite_db *db, once_secret *secret, once_error *err)
{
    sqlite3_stmt *stmt;
    int rc = once__sqlite_prepare(db, "SELECT value FROM once_meta WHERE name = 'secret'", &stmt, err);
    if (rc != ONCE_OK) return rc;
    const int code = sqlite3_step(stmt);
    if (code == SQLITE_ROW && sqlite3_column_bytes(stmt, 0) == sizeof *secret)
        memcpy(secret, sqlite3_column_blob(stmt, 0), sizeof *secret);
    else if (code == SQLITE_ROW || code == SQLITE_DONE)
        rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': its secret is missing; restore it from a backup", db->path);
    else rc = once__sqlite_fail(db, code, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* ---- making it ---- */

static int set_version(once_sqlite_db *db, int version, once_error *err)
{
    char sql[100];
    snprintf(sql, sizeof sql, "UPDATE once_meta SET value = %d WHERE name = 'version'", version);
    return once__sqlite_exec(db, sql, err);
}

static int make(once_sqlite_db *db, const once_env *env, once_error *err)
{
    int64_t tables;
    char sql[200];
    unsigned char secret[sizeof(once_secret)];
    int rc = tables_in_file(db, &tables, err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(db, once__sqlite_schema(), err);
    snprintf(sql, sizeof sql,
             "INSERT INTO once_meta VALUES ('format', 'once'), ('version', %d);"
             "INSERT INTO once_store(id, clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run)"
             " VALUES (1, 0, 0, 0, 0, 0, 0, 0)",
             ONCE_SQLITE_VERSION);
    if (rc == ONCE_OK) rc = once__sqlite_exec(db, sql, err);
    if (rc != ONCE_OK) return rc;

    sqlite3_stmt *stmt;
    rc = once__sqlite_prepare(db, "INSERT INTO once_meta VALUES ('secret', ?1)", &stmt, err);
    if (rc != ONCE_OK) return rc;
    once_env_random(env, secret, sizeof secret);
    sqlite3_bind_blob(stmt, 1, secret, sizeof secret, SQLITE_STATIC);
    rc = once__sqlite_step(db, stmt, err);
    sqlite3_finalize(stmt);
    if (rc != ONCE_OK || tables || db->borrowed) return rc;
    snprintf(sql, sizeof sql, "PRAGMA application_id = %d",
             ONCE_SQLITE_APPLICATION_ID); /* the file was empty: all of it is ours */
    return once__sqlite_exec(db, sql, err);
}

/* ---- old versions ---- */

static int migrate_0_to_1(once_sqlite_db *db, once_error *err)
{
    int rc = once__sqlite_exec(db, "ALTER TABLE once_entry RENAME TO once_old;" TABLES_1 HEAD_1, err);
    if (rc != ONCE_OK) return rc;
    if (ONCE_FAIL_AT(migrate_between)) return once_fail(err, ONCE_E_IO, "failpoint migrate_between");
    return once__sqlite_exec(
        db,
        "INSERT INTO once_entry(id, state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms, "
        "remember_ms, flags,"
        " run, seen_ms, changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation, key, place, point, "
        "result, reason)"
        " SELECT id, state, body IS NOT NULL, token, attempt, failures, fingerprint, lane, ord, gap_ms, remember_ms,"
        " versioned + 2 * gap + 4 * hold, run, seen_ms, changed_ms, due_ms, expires_ms, 0, tenant, consumer, "
        "operation, key,"
        " place, point, result, reason FROM once_old;"
        "INSERT INTO once_body(n, type, headers, body, sent_ms, place, point)"
        " SELECT n, type, headers, body, sent_ms, old.place, old.point FROM once_old old JOIN once_entry USING (id)"
        " WHERE body IS NOT NULL;"
        "INSERT INTO once_head SELECT 1, 10 * value, 0, 1, 0, 0, 0, 0 FROM once_meta WHERE name = 'clock_ms';"
        "DELETE FROM once_meta WHERE name = 'clock_ms';"
        "DROP TABLE once_old",
        err);
}

/* Version 4 did not store that an earlier attempt may have had its effect, but the last ten attempts are in the
 * history. It also did not store when an entry that waits without a body expires. */
static int migrate_4_to_5(once_sqlite_db *db, once_error *err)
{
    return once__sqlite_exec(db,
                             "UPDATE once_entry SET flags = flags | 32 WHERE instr(history, CAST(' silent ' AS BLOB)) "
                             "OR instr(history, CAST(' unknown ' AS BLOB));"
                             "UPDATE once_entry SET expires_ms = CASE WHEN remember_ms < 9223372036854775807 - "
                             "changed_ms THEN changed_ms + remember_ms"
                             " ELSE 9223372036854775807 END WHERE state = 2 AND owned = 0 AND expires_ms = 0",
                             err);
}

int once__sqlite_upgrade_tables(once_sqlite_db *db, int64_t version, once_error *err)
{
    assert(version >= 1 && version < ONCE_SQLITE_VERSION);
    if (version >= ONCE_SQLITE_SUMMED) return set_version(db, ONCE_SQLITE_VERSION, err);
    int rc = version < 2 ? once__sqlite_exec(db, TABLES_2, err) : ONCE_OK;
    if (rc == ONCE_OK && version < 3) rc = once__sqlite_exec(db, TABLES_3, err);
    if (rc == ONCE_OK && version < 4) rc = once__sqlite_exec(db, TABLES_4, err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(db, STORE_5 FROM_HEAD TABLES_5 LETTER_KEYS, err);
    if (rc == ONCE_OK) rc = migrate_4_to_5(db, err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(db, SUM_UP, err);
    return rc == ONCE_OK ? set_version(db, ONCE_SQLITE_VERSION, err) : rc;
}

int once__sqlite_is_ready(once_sqlite_db *db, bool *ready, once_secret *secret, once_error *err)
{
    int64_t version = 0;
    bool found = false;
    int rc = look(db, &version, &found, err);
    *ready = rc == ONCE_OK && found && version == ONCE_SQLITE_VERSION;
    if (*ready) rc = check_meta(db, err);
    if (rc != ONCE_OK) *ready = false;
    return *ready ? read_secret(db, secret, err)
                  : rc; /* a store that is ready stays ready: these reads need no common moment */
}

void once__sqlite_index_keys(once_sqlite_db *db)
{
    int64_t there = 0;
    if (once__sqlite_integer(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'once_letter_key'", 0, &there,
                             NULL) == ONCE_OK &&
        !there)
        (void)once__sqlite_exec(db, LETTER_KEYS, NULL);
}

int once__sqlite_ready(once_sqlite_db *db, const once_env *env, bool create, bool readonly, int64_t *version,
                       bool *made, once_secret *secret, once_error *err)
{
    bool found;
    *made = false;
    int rc = look(db, version, &found, err);
    if (rc != ONCE_OK) return rc;
    if (!found && (!create || readonly))
        return once_fail(err, ONCE_E_NO_STORE, "file '%s': has no once tables yet; let `once run` make them", db->path);
    if (!found) {
        rc = make(db, env, err);
        *version = ONCE_SQLITE_VERSION;
        *made = true;
    } else if (*version < ONCE_SQLITE_VERSION && readonly) {
        return once_fail(err, ONCE_E_READONLY,
                         "file '%s': has tables of version %lld; open it once for writing to bring them up to date",
                         db->path, (long long)*version);
    } else if (*version == 0) {
        rc = migrate_0_to_1(db, err);
        if (rc == ONCE_OK) rc = set_version(db, 1, err);
        *version = 1;
    }
    if (rc == ONCE_OK && found && *version >= ONCE_SQLITE_SUMMED) rc = check_meta(db, err);
    return rc == ONCE_OK ? read_secret(db, secret, err) : rc;
}
