/* The sqlite store: a shelf for the engine in an SQLite file. Transactions, letters, facts, lists, opening and closing;
 * entries and lanes are in live.c, finished entries in settled.c, tables in schema.c.
 *
 * What is kept in memory between transactions (finished entries, the clock, which ids have rows) is a copy of the file.
 * begin asks SQLite whether another connection has written since (data_version) and then reads what changed; a
 * transaction of ours that fails makes us read everything anew. So several processes may share a file.
 *
 * On a borrowed connection (the caller's own) a transaction of ours is a savepoint: inside the caller's transaction it
 * is a part of that, outside it is one by itself. The caller may roll back what we wrote, and SQLite does not tell us.
 * So whatever is written there leaves a random mark with it (fact "borrowed.N", where N is one of 64 that the
 * connection picks for itself); when a transaction begins and the mark is not the one that memory was filled or written
 * with, nothing in memory is trusted any more. Two connections with the same N only make each other read more often. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "store/sqlite/columns.h"
#include "store/sqlite/schema.h"
#include "store/sqlite/sqlite.h"
#include "store/states.h"

#include "base/banned.h"

enum { BUSY_MS_DEFAULT = 10000 };

#define ENTRY_COLUMNS "n, " ENTRY_SUMMED ", sum = " ENTRY_SUM
#define ENTRY_BOUND                                                                                                    \
    "?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25,"  \
    " ?26, ?27, ?28, ?29, ?30, ?31"
#define LETTER_COLUMNS                                                                                                 \
    "id, entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers," \
    " body, sent_ms, place, point, history, sum = " LETTER_SUM ", count, last_ms, same"
#define IS_BEFORE "ord <= ?2 AND (ord < ?2 OR seen_ms < ?3 OR (seen_ms = ?3 AND id < ?4))" /* once__lane_before */
#define LETTER_BOUND "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21"
#define LETTER_AGAIN                                                                                                   \
    "entry, tenant, consumer, operation, key, kind, reason, attempt, failures, seen_ms, buried_ms, type, headers,"     \
    " body, sent_ms, ?2, ?3, same, history, ?4, ?5"
#define AUDIT_BOUND "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8"

/* What a row is at a time, as once_entry_state_at says it: claimed until its lease is over, then unknown (flag 4,
 * `hold`) or waiting. */
#define EXPIRES                                                                                                        \
    "state = 2 AND owned = 0 AND lane IS NULL AND flags & 40 = 0" /* once_entry_expires; flags silent and maybe */
#define LIVE_AT(now) "NOT (" EXPIRES " AND expires_ms <= " now ")"
#define STATE_AT(now)                                                                                                  \
    "CASE WHEN state = 1 AND due_ms <= " now " THEN CASE WHEN flags & 4 THEN 3 ELSE 2 END ELSE state END"

static const char *const statement_sql[SQL_STATEMENTS] = {
    [SQL_BEGIN_READ] = "BEGIN",
    [SQL_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",
    [SQL_DATA_VERSION] = "PRAGMA data_version",
    [SQL_HEAD_GET] = "SELECT clock_tenths, boot_ms, boot_id, generation, flushed, last_recent, last_run, doubted,"
                     " unsealed_recent, unsealed_run, runs_sum, entries_sum, lanes_sum, facts_sum,"
                     " letters_sum, audits_sum, sum,"
                     " (SELECT value FROM once_meta WHERE name = 'version') FROM once_store WHERE id = 1",
    [SQL_HEAD_SET] =
        "UPDATE once_store SET clock_tenths = ?1, boot_ms = ?2, boot_id = ?3, generation = ?4, flushed = ?5,"
        " last_recent = ?6, last_run = ?7, doubted = ?8, unsealed_recent = ?9, unsealed_run = ?10, runs_sum = ?11,"
        " entries_sum = ?12, lanes_sum = ?13, facts_sum = ?14, letters_sum = ?15, audits_sum = ?16, sum = ?17 WHERE id "
        "= 1",
    [SQL_ENTRY_GET] = "SELECT " ENTRY_COLUMNS " FROM once_entry WHERE id = ?1",
    [SQL_ENTRY_INSERT] =
        "INSERT INTO once_entry(n, " ENTRY_SUMMED ", sum) VALUES (?1, " ENTRY_BOUND ", " SUM_OF("e", ENTRY_BOUND) ")",
    /* Not the id, which never changes: to name it would rewrite a page of its index. */
    [SQL_ENTRY_UPDATE] =
        "UPDATE once_entry SET (state, owned, token, attempt, failures, fingerprint, lane, ord, gap_ms,"
        " remember_ms, flags, run, seen_ms, changed_ms, due_ms, expires_ms, keep_ms, tenant, consumer, operation,"
        " key, place, point, result, reason, who, worker, history, failing_ms, sum) = (?3, ?4, ?5, ?6, ?7, ?8, ?9, "
        "?10, ?11,"
        " ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31," SUM_OF(
            "e", ENTRY_BOUND) ") WHERE n = ?1",
    [SQL_ENTRY_DELETE] = "DELETE FROM once_entry WHERE n = ?1",
    [SQL_ENTRY_IDS] = "SELECT id FROM once_entry LIMIT ?1",
    [SQL_BODY_GET] =
        "SELECT type, headers, body, sent_ms, place, point, sum = " BODY_SUM " FROM once_body WHERE n = ?1",
    [SQL_BODY_PUT] = "INSERT OR REPLACE INTO once_body(" BODY_SUMMED
                     ", sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7," SUM_OF("b", "?1, ?2, ?3, ?4, ?5, ?6, ?7") ")",
    [SQL_BODY_DELETE] = "DELETE FROM once_body WHERE n = ?1",
    [SQL_LANE_GET] = "SELECT version, expires_ms, record, sum = " LANE_SUM " FROM once_lane WHERE id = ?1",
    [SQL_LANE_PUT] = "INSERT INTO once_lane(" LANE_SUMMED ", sum) VALUES (?1, ?2, ?3, ?4, " SUM_OF(
        "l", "?1, ?2, ?3, ?4") ") ON CONFLICT(id)"
                               " DO UPDATE SET version = excluded.version, expires_ms = excluded.expires_ms, record = "
                               "excluded.record, sum = excluded.sum",
    [SQL_LANE_UP] = "SELECT id, ord FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord, id",
    [SQL_LANE_DOWN] = "SELECT id, ord FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord DESC, id DESC",
    [SQL_LANE_HEAD] = "SELECT id, ord, seen_ms FROM once_entry WHERE lane = ?1 AND state < 4 ORDER BY ord, id",
    [SQL_LANE_FIRST] = "SELECT id, ord, seen_ms FROM (SELECT id, ord, seen_ms FROM once_entry WHERE lane = ?1 AND "
                       "state < 4 AND ord = ?2"
                       " ORDER BY id LIMIT ?3) ORDER BY seen_ms, id",
    [SQL_LANE_EQUALS] =
        "SELECT max(seen_ms) FROM (SELECT seen_ms FROM once_entry WHERE lane = ?1 AND state < 4 AND ord = ?2 LIMIT ?3)",
    [SQL_LANE_RUNNING] = "SELECT id, 0 FROM once_entry WHERE lane = ?1 AND state IN (1, 3)",
    [SQL_LANE_BEFORE] =
        "SELECT id FROM (SELECT id FROM once_entry WHERE lane = ?1 AND state < 4 AND " IS_BEFORE
        " ORDER BY ord, seen_ms, id LIMIT ?5)"
        " UNION SELECT id FROM (SELECT id FROM once_entry WHERE lane = ?1 AND state IN (1, 3) AND id <> ?4 LIMIT ?5)",
    [SQL_LANE_BEFORE_COUNT] =
        "SELECT count(*) FROM (SELECT 1 FROM once_entry WHERE lane = ?1 AND state < 4 AND " IS_BEFORE " LIMIT ?5)",
    [SQL_LANE_AFTER] = "SELECT id, expires_ms FROM once_lane WHERE id > ?1 ORDER BY id LIMIT ?2",
    [SQL_LANE_DELETE] = "DELETE FROM once_lane WHERE id = ?1",
    [SQL_DUE] = "SELECT id FROM once_entry WHERE consumer = ?1 AND owned = 1 AND state < 3 AND due_ms <= ?2"
                " ORDER BY due_ms, id LIMIT ?3",
    [SQL_BY_TOKEN] = "SELECT id FROM once_entry WHERE token >= ?1 AND token <= ?2 AND state = 1 AND consumer = ?3"
                     " ORDER BY token LIMIT ?4",
    /* By the index of what is claimed, which is little. */
    [SQL_LAPSED] = "SELECT id FROM once_entry INDEXED BY once_entry_token WHERE state = 1 AND +consumer = ?1 AND "
                   "due_ms <= ?2 AND flags & 4 LIMIT ?3",
    [SQL_LETTER_PUT] = "INSERT OR IGNORE INTO once_letter(" LETTER_SUMMED ", sum) VALUES (" LETTER_BOUND
                       ", " SUM_OF("d", LETTER_BOUND) ")",
    [SQL_LETTER_SAME] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE same = ?1",
    [SQL_LETTER_AGAIN] = "UPDATE once_letter SET place = ?2, point = ?3, count = ?4, last_ms = ?5, sum = " SUM_OF(
        "d", LETTER_AGAIN) " WHERE id = ?1",
    [SQL_LETTER_GET] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE id = ?1",
    [SQL_LETTER_DROP] = "DELETE FROM once_letter WHERE id = ?1",
    [SQL_LETTERS] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE consumer = ?1 AND id > ?2 ORDER BY id",
    [SQL_LETTERS_OF_KEY] = "SELECT " LETTER_COLUMNS " FROM once_letter WHERE key = ?2 AND +consumer = ?1 ORDER BY id",
    [SQL_AUDIT_PUT] =
        "INSERT INTO once_audit(" AUDIT_SUMMED ", sum) VALUES (" AUDIT_BOUND ", " SUM_OF("a", AUDIT_BOUND) ")",
    [SQL_AUDITS] = "SELECT " AUDIT_SUMMED ", sum = " AUDIT_SUM " FROM once_audit WHERE consumer = ?1 ORDER BY id",
    [SQL_STATS] = "SELECT " STATE_AT(
        "?2") " AS is_now, count(*), min(CASE WHEN owned = 1 OR (state = 1 AND due_ms > ?2) THEN due_ms END)"
              " FROM once_entry WHERE consumer = ?1 AND state < 4 AND " LIVE_AT("?2") " GROUP BY is_now",
    [SQL_STATS_LETTERS] = "SELECT count(*) FROM once_letter WHERE consumer = ?1",
    [SQL_LIST] = "SELECT " ENTRY_COLUMNS
                 " FROM once_entry WHERE consumer = ?1 AND " STATE_AT("?3") " = ?2 AND " LIVE_AT("?3") " ORDER BY n",
    [SQL_EXPIRED] = "SELECT id FROM once_entry WHERE " EXPIRES " AND expires_ms <= ?1 ORDER BY expires_ms LIMIT ?2",
    [SQL_FACT_GET] = "SELECT value, sum = " FACT_SUM " FROM once_fact WHERE name = ?1",
    [SQL_FACT_SET] = "UPDATE once_fact SET value = ?2, sum = " SUM_OF("f", "?1, ?2") " WHERE name = ?1",
    [SQL_FACT_ADD] = "INSERT INTO once_fact(" FACT_SUMMED ", sum) VALUES (?1, ?2, " SUM_OF("f", "?1, ?2") ")",
    [SQL_FACT_DELETE] = "DELETE FROM once_fact WHERE name = ?1",
    [SQL_FACTS] = "SELECT name, value, sum = " FACT_SUM " FROM once_fact WHERE substr(name, 1, length(?1)) = ?1",
};

/* What differs on a borrowed connection. SQL_ROLLBACK is followed by SQL_COMMIT there. */
static const char *const borrowed_sql[SQL_STATEMENTS] = {
    [SQL_BEGIN_READ] = "SAVEPOINT once_store",
    [SQL_BEGIN_WRITE] = "SAVEPOINT once_store",
    [SQL_COMMIT] = "RELEASE once_store",
    [SQL_ROLLBACK] = "ROLLBACK TO once_store",
};

/* ---- transactions ---- */

enum { HEAD_PRESENT = 11, HEAD_COLUMNS = HEAD_PRESENT + PRESENTS };

/* Over the secret, too: with the once_meta of another file every key would be a new one, and all of its own sums are
 * right. */
static int64_t head_sum(const once_sqlite *q, const int64_t columns[HEAD_COLUMNS])
{
    int64_t summed[HEAD_COLUMNS + 2];
    memcpy(summed, columns, HEAD_COLUMNS * sizeof *columns);
    summed[HEAD_COLUMNS] = (int64_t)q->shelf.store.secret.k0;
    summed[HEAD_COLUMNS + 1] = (int64_t)q->shelf.store.secret.k1;
    return (int64_t)once__sum('h', 1, 0, (once_bytes){(const char *)summed, sizeof summed});
}

/* A head of version 4 has no sum yet, and is read as it is while the tables are brought up to date. */
static bool head_is_whole(const once_sqlite *q, sqlite3_stmt *stmt)
{
    int64_t columns[HEAD_COLUMNS];
    for (int i = 0; i < HEAD_COLUMNS; i++) columns[i] = sqlite3_column_int64(stmt, i);
    return q->unsummed || (sqlite3_column_type(stmt, HEAD_COLUMNS) == SQLITE_INTEGER &&
                           sqlite3_column_int64(stmt, HEAD_COLUMNS) == head_sum(q, columns));
}

static int read_head(once_sqlite *q, once_settled_head *head, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_HEAD_GET];
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW && sqlite3_column_int64(stmt, HEAD_COLUMNS + 1) > ONCE_SQLITE_VERSION) {
        rc = once_fail(
            err, ONCE_E_NEWER,
            "file '%s': a newer once has brought its tables up to date (version %lld, this one knows %d); upgrade once",
            q->db->path, (long long)sqlite3_column_int64(stmt, HEAD_COLUMNS + 1), ONCE_SQLITE_VERSION);
    } else if (code == SQLITE_ROW && !head_is_whole(q, stmt)) {
        rc = once_fail(
            err, ONCE_E_CORRUPT,
            "file '%s': table once_store is damaged, or once_meta is that of another file; restore it from a backup",
            q->db->path);
    } else if (code == SQLITE_ROW) {
        q->stored_clock = (once_clock){.tenths = sqlite3_column_int64(stmt, 0),
                                       .boot_ms = sqlite3_column_int64(stmt, 1),
                                       .boot_id = (uint64_t)sqlite3_column_int64(stmt, 2),
                                       .doubted = sqlite3_column_int(stmt, 7) != 0};
        *head = (once_settled_head){.generation = sqlite3_column_int64(stmt, 3),
                                    .flushed = sqlite3_column_int64(stmt, 4),
                                    .last_recent = sqlite3_column_int64(stmt, 5),
                                    .last_run = sqlite3_column_int64(stmt, 6),
                                    .unsealed_recent = sqlite3_column_int64(stmt, 8),
                                    .unsealed_run = sqlite3_column_int64(stmt, 9),
                                    .runs_sum = (uint64_t)sqlite3_column_int64(stmt, 10),
                                    .unsummed = q->unsummed};
        for (int i = 0; i < PRESENTS; i++)
            q->present[i] = q->present_stored[i] = (uint64_t)sqlite3_column_int64(stmt, HEAD_PRESENT + i);
    } else if (code == SQLITE_DONE) {
        rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_store is empty; restore it from a backup",
                       q->db->path);
    } else {
        rc = once__sqlite_fail(q->db, code, err);
    }
    sqlite3_reset(stmt);
    return rc;
}

static int write_head(once_sqlite *q, once_error *err)
{
    const once_settled_head *head = once__settled_head(q->settled);
    sqlite3_stmt *stmt = q->sql[SQL_HEAD_SET];
    const int64_t columns[HEAD_COLUMNS] = {q->shelf.clock.tenths,
                                           q->shelf.clock.boot_ms,
                                           (int64_t)q->shelf.clock.boot_id,
                                           head->generation,
                                           head->flushed,
                                           head->last_recent,
                                           head->last_run,
                                           q->shelf.clock.doubted,
                                           head->unsealed_recent,
                                           head->unsealed_run,
                                           (int64_t)head->runs_sum,
                                           (int64_t)q->present[PRESENT_ENTRIES],
                                           (int64_t)q->present[PRESENT_LANES],
                                           (int64_t)q->present[PRESENT_FACTS],
                                           (int64_t)q->present[PRESENT_LETTERS],
                                           (int64_t)q->present[PRESENT_AUDITS]};
    for (int i = 0; i < HEAD_COLUMNS; i++) sqlite3_bind_int64(stmt, i + 1, columns[i]);
    sqlite3_bind_int64(stmt, HEAD_COLUMNS + 1, head_sum(q, columns));
    return once__sqlite_step(q->db, stmt, err);
}

/* Reads what others have changed since our last transaction. */
static int catch_up(once_sqlite *q, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_DATA_VERSION];
    const int code = sqlite3_step(stmt);
    const int64_t version = code == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_reset(stmt);
    if (code != SQLITE_ROW) return once__sqlite_fail(q->db, code, err);
    if (!q->fresh && version == q->data_version) return ONCE_OK;

    once_settled_head head;
    const once_clock known = q->stored_clock;
    q->fresh = true; /* until we are through */
    q->live.known = false;
    int rc = read_head(q, &head, err);
    /* Time that somebody else has kept is everybody's. Without that, time that we have seen is not taken back because
     * nothing was written then. */
    const once_clock *stored = &q->stored_clock;
    if (stored->tenths != known.tenths || stored->boot_ms != known.boot_ms || stored->boot_id != known.boot_id ||
        stored->doubted != known.doubted)
        q->shelf.clock = *stored;
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    if (rc != ONCE_OK) return rc;
    q->fresh = false;
    q->data_version = version;
    return ONCE_OK;
}

/* ---- writing a fact ---- */

/* An empty value deletes. */
static int put_fact(once_sqlite *q, const char *name, once_bytes value, once_error *err)
{
    int rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    sqlite3_stmt *stmt = q->sql[value.len ? SQL_FACT_SET : SQL_FACT_DELETE];
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    if (value.len) once__bind_bytes(stmt, 2, value);
    if (rc == ONCE_OK) rc = once__sqlite_step(q->db, stmt, err);
    const bool met = rc == ONCE_OK && sqlite3_changes64(q->db->handle) > 0;
    if (rc != ONCE_OK || met != !value.len) return rc; /* changed, or there was none to delete */
    if (value.len) {
        stmt = q->sql[SQL_FACT_ADD];
        sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
        once__bind_bytes(stmt, 2, value);
        rc = once__sqlite_step(q->db, stmt, err);
    }
    if (rc == ONCE_OK) once__present_change(q, PRESENT_FACTS, (once_bytes){name, strlen(name)}, !value.len);
    return rc;
}

/* ---- borrowed connections ---- */

/* Takes the write lock now, so that a claim is not decided on what another process is about to change. Writes nothing.
 */
static int lock_borrowed(once_sqlite *q, once_error *err)
{
    sqlite3_bind_text(q->sql[SQL_FACT_DELETE], 1, "", 0, SQLITE_STATIC);
    return once__sqlite_step(q->db, q->sql[SQL_FACT_DELETE], err);
}

static int read_mark(once_sqlite *q, uint64_t *out, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_FACT_GET];
    sqlite3_bind_text(stmt, 1, q->mark_name, -1, SQLITE_STATIC);
    const int code = sqlite3_step(stmt);
    *out = 0;
    if (code == SQLITE_ROW && sqlite3_column_bytes(stmt, 0) == sizeof *out)
        memcpy(out, sqlite3_column_blob(stmt, 0), sizeof *out);
    sqlite3_reset(stmt);
    return code == SQLITE_ROW || code == SQLITE_DONE ? ONCE_OK : once__sqlite_fail(q->db, code, err);
}

static int write_mark(once_sqlite *q, once_error *err)
{
    q->mark = once_env_random_u64(q->shelf.store.env);
    return put_fact(q, q->mark_name, (once_bytes){(const char *)&q->mark, sizeof q->mark}, err);
}

/* Has the caller kept what we wrote, and what we read after that? If that cannot be seen, memory is forgotten. */
static int check_mark(once_sqlite *q, once_error *err)
{
    uint64_t mark;
    int rc = read_mark(q, &mark, err);
    if (rc != ONCE_OK || mark == q->mark) return rc;
    once_names *names;
    rc = once__names_open(q->db, &names, err);
    if (rc != ONCE_OK) return rc;
    once__names_close(q->names);
    q->names = names;
    once__settled_distrust(q->settled);
    q->fresh = true;
    q->live.known = false;
    q->mark = mark;
    return ONCE_OK;
}

static void undo(once_sqlite *q)
{
    if (sqlite3_get_autocommit(q->db->handle)) return;
    sqlite3_step(q->sql[SQL_ROLLBACK]);
    sqlite3_reset(q->sql[SQL_ROLLBACK]);
    if (!q->db->borrowed) return;
    sqlite3_step(q->sql[SQL_COMMIT]); /* the savepoint itself */
    sqlite3_reset(q->sql[SQL_COMMIT]);
}

static void tx_over(once_sqlite *q, bool committed)
{
    if (!committed) {
        undo(q);
        if (q->settled_touched) {
            once__settled_distrust(q->settled);
            q->fresh = true;
        }
        if (q->rows_written) q->live.known = false;
        memcpy(q->present, q->present_stored, sizeof q->present);
    } else {
        memcpy(q->present_stored, q->present, sizeof q->present);
    }
    once__names_end(q->names, committed);
    once__live_clear(q);
    q->db->savepoints = 0;
    q->write = q->wrote = q->rows_written = q->settled_touched = false;
}

static int sqlite_begin(once_shelf *shelf, bool write, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    once__names_trim(q->names);
    int rc = once__sqlite_step(q->db, q->sql[write ? SQL_BEGIN_WRITE : SQL_BEGIN_READ], err);
    if (rc != ONCE_OK) return rc;
    q->write = write;
    if (q->db->borrowed && write) rc = lock_borrowed(q, err);
    if (q->db->borrowed && rc == ONCE_OK) rc = check_mark(q, err);
    if (rc == ONCE_OK) rc = catch_up(q, err);
    const bool moved = rc == ONCE_OK && once__sqlite_moved(q->db); /* before an effect runs in vain */
    if (rc != ONCE_OK || moved) {
        tx_over(q, false);
        return moved ? once__sqlite_say_moved(q->db, err) : rc;
    }
    q->changes_before = sqlite3_total_changes64(q->db->handle);
    return ONCE_OK;
}

static int commit_writes(once_sqlite *q, once_error *err)
{
    if (!q->write) return ONCE_OK;
    int rc = once__live_write_all(q, err);
    if (rc != ONCE_OK) return rc;
    if (!q->wrote && !q->settled_touched && sqlite3_total_changes64(q->db->handle) == q->changes_before) return ONCE_OK;
    q->wrote = true;
    if (q->db->borrowed) rc = write_mark(q, err);
    return rc == ONCE_OK ? write_head(q, err) : rc;
}

static int sqlite_commit(once_shelf *shelf, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    if (sqlite3_get_autocommit(q->db->handle)) {
        tx_over(q, false);
        return once_fail(err, ONCE_E_ABORTED, "file '%s': the database has rolled the transaction back", q->db->path);
    }
    int rc = commit_writes(q, err);
    if (rc == ONCE_OK) {
        const int code = sqlite3_step(q->sql[SQL_COMMIT]);
        if ((code & 0xff) == SQLITE_CONSTRAINT) /* a foreign key that is checked at the end */
            rc = once_fail(err, ONCE_E_MESSAGE, "%s", sqlite3_errmsg(q->db->handle));
        else if (code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
        sqlite3_reset(q->sql[SQL_COMMIT]);
    }
    if (rc == ONCE_OK && q->wrote) q->stored_clock = shelf->clock;
    tx_over(q, rc == ONCE_OK);
    return rc == ONCE_OK ? once__sqlite_unmoved(q->db, err)
                         : rc; /* committed where nobody will find it: not acknowledged */
}

static void sqlite_rollback(once_shelf *shelf) { tx_over(once__sqlite_of(shelf), false); }

/* Around what is asked outside of the engine's verbs: joins the caller's transaction, or is one by itself. */
static int ask_begin(once_sqlite *q, bool write, once_error *err)
{
    if (q->shelf.in_tx) return once__live_write_rows(q, err); /* what is asked must see what was saved */
    const int rc = sqlite_begin(&q->shelf, write, err);
    if (rc == ONCE_OK) q->shelf.now_ms = once_clock_step(&q->shelf.clock, q->shelf.store.env);
    return rc;
}

static int ask_end(once_sqlite *q, int rc, once_error *err)
{
    if (q->shelf.in_tx) {
        if (rc != ONCE_OK) q->shelf.broken = true;
        return rc;
    }
    if (rc == ONCE_OK) return sqlite_commit(&q->shelf, err);
    sqlite_rollback(&q->shelf);
    return rc;
}

/* ---- what take looks for ---- */

static int collect_ids(once_sqlite *q, sqlite3_stmt *stmt, once_hash *out, size_t *n, once_error *err)
{
    int code = SQLITE_DONE, rc = ONCE_OK;
    size_t count = 0;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (once__column_id(stmt, 0, &out[count])) count++;
        else
            rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_entry is damaged; restore it from a backup",
                           q->db->path);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    *n = count;
    return rc;
}

static int sqlite_due(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                      once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    const int rc = once__live_write_rows(q, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_DUE];
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, now_ms);
    sqlite3_bind_int64(stmt, 3, (int64_t)max);
    return collect_ids(q, stmt, out, n, err);
}

static int sqlite_by_token(once_shelf *shelf, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                           size_t *n, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    const int rc = once__live_write_rows(q, err);
    if (rc != ONCE_OK) return rc;
    unsigned char low[16], high[16];
    sqlite3_stmt *stmt = q->sql[SQL_BY_TOKEN];
    once__id_write((once_hash){token_a, 0}, low);
    once__id_write((once_hash){token_a, UINT64_MAX}, high);
    once__bind_id(stmt, 1, low);
    once__bind_id(stmt, 2, high);
    once__bind_bytes(stmt, 3, consumer);
    sqlite3_bind_int64(stmt, 4, (int64_t)max);
    return collect_ids(q, stmt, out, n, err);
}

static int sqlite_lapsed(once_shelf *shelf, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                         once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    sqlite3_stmt *stmt = q->sql[SQL_LAPSED];
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, now_ms);
    sqlite3_bind_int64(stmt, 3, (int64_t)max);
    return collect_ids(q, stmt, out, n, err);
}

/* ---- letters ---- */

static int read_letter(once_sqlite *q, sqlite3_stmt *stmt, once_arena *arena, once_letter *l, once_error *err)
{
    *l = (once_letter){.id = (uint64_t)sqlite3_column_int64(stmt, 0)};
    if (!sqlite3_column_int(stmt, 19) || !once__column_id(stmt, 1, &l->entry) || !once__column_id(stmt, 22, &l->same) ||
        !once__letter_kind_read(sqlite3_column_int64(stmt, 6), l))
        return once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_letter is damaged; restore it from a backup",
                         q->db->path);
    l->attempt = (uint32_t)sqlite3_column_int64(stmt, 8);
    l->failures = (uint32_t)sqlite3_column_int64(stmt, 9);
    l->seen_ms = sqlite3_column_int64(stmt, 10);
    l->buried_ms = sqlite3_column_int64(stmt, 11);
    l->count = (uint64_t)sqlite3_column_int64(stmt, 20);
    l->last_ms = sqlite3_column_int64(stmt, 21) ? sqlite3_column_int64(stmt, 21) : l->buried_ms;
    l->message.sent_ms = sqlite3_column_type(stmt, 15) == SQLITE_NULL ? ONCE_NO_TIME : sqlite3_column_int64(stmt, 15);
    once_bytes *const texts[] = {&l->scope.tenant,     &l->scope.consumer,   &l->scope.operation, &l->key,
                                 &l->reason,           &l->message.type,     &l->message.headers, &l->message.body,
                                 &l->message.at.place, &l->message.at.point, &l->history};
    static const int columns[] = {2, 3, 4, 5, 7, 12, 13, 14, 16, 17, 18};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (!once__column_copy(stmt, columns[i], arena, texts[i])) return once_no_memory(err, "in the sqlite store");
    return ONCE_OK;
}

/* Reads it first: a row that is damaged must not get a sum that fits. */
static int letter_again(once_sqlite *q, const unsigned char same[16], const once_letter *again, once_error *err)
{
    once_arena arena = {0};
    once_letter kept;
    sqlite3_stmt *stmt = q->sql[SQL_LETTER_SAME];
    once__bind_id(stmt, 1, same);
    const int code = sqlite3_step(stmt);
    int rc = code == SQLITE_ROW ? read_letter(q, stmt, &arena, &kept, err)
                                : once__sqlite_fail(q->db, code == SQLITE_DONE ? SQLITE_CORRUPT : code, err);
    sqlite3_reset(stmt);
    if (rc == ONCE_OK) {
        once__letter_again(&kept, again);
        stmt = q->sql[SQL_LETTER_AGAIN];
        sqlite3_bind_int64(stmt, 1, (int64_t)kept.id);
        once__bind_bytes(stmt, 2, kept.message.at.place);
        once__bind_bytes(stmt, 3, kept.message.at.point);
        sqlite3_bind_int64(stmt, 4, (int64_t)kept.count);
        sqlite3_bind_int64(stmt, 5, kept.last_ms);
        rc = once__sqlite_step(q->db, stmt, err);
    }
    once_arena_release(&arena);
    return rc;
}

static int sqlite_letter_put(once_shelf *shelf, const once_letter *l, once_hash unique, bool *fresh, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    if (q->db->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    sqlite3_stmt *stmt = q->sql[SQL_LETTER_PUT];
    unsigned char entry[16], same[16];
    once__id_write(l->entry, entry);
    once__id_write(unique, same);
    if (once_hash_is_zero(l->entry)) sqlite3_bind_null(stmt, 1);
    else once__bind_id(stmt, 1, entry);
    once__bind_bytes(stmt, 2, l->scope.tenant);
    once__bind_bytes(stmt, 3, l->scope.consumer);
    once__bind_bytes(stmt, 4, l->scope.operation);
    once__bind_bytes(stmt, 5, l->key);
    sqlite3_bind_int(stmt, 6, (int)once__letter_kind_write(l));
    once__bind_bytes(stmt, 7, l->reason);
    sqlite3_bind_int64(stmt, 8, l->attempt);
    sqlite3_bind_int64(stmt, 9, l->failures);
    sqlite3_bind_int64(stmt, 10, l->seen_ms);
    sqlite3_bind_int64(stmt, 11, l->buried_ms);
    once__bind_bytes(stmt, 12, l->message.type);
    once__bind_bytes(stmt, 13, l->message.headers);
    once__bind_bytes(stmt, 14, l->message.body);
    if (l->message.sent_ms == ONCE_NO_TIME) sqlite3_bind_null(stmt, 15);
    else sqlite3_bind_int64(stmt, 15, l->message.sent_ms);
    once__bind_bytes(stmt, 16, l->message.at.place);
    once__bind_bytes(stmt, 17, l->message.at.point);
    once__bind_id(stmt, 18, same);
    once__bind_bytes(stmt, 19, l->history);
    sqlite3_bind_int64(stmt, 20, (int64_t)l->count);
    sqlite3_bind_int64(stmt, 21, l->last_ms);
    const int rc = once__sqlite_step(q->db, stmt, err);
    if (rc != ONCE_OK) return rc;
    *fresh = sqlite3_changes64(q->db->handle) > 0;
    if (*fresh) once__present_change_row(q, PRESENT_LETTERS, sqlite3_last_insert_rowid(q->db->handle), false);
    q->wrote = true;
    return *fresh || !once_hash_is_zero(l->entry) ? ONCE_OK : letter_again(q, same, l, err);
}

static int sqlite_letter_get(once_shelf *shelf, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                             once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    sqlite3_stmt *stmt = q->sql[SQL_LETTER_GET];
    sqlite3_bind_int64(stmt, 1, (int64_t)id);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    *found = code == SQLITE_ROW;
    if (*found) rc = read_letter(q, stmt, arena, out, err);
    else if (code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc == ONCE_OK && !*found ? once__present_check(q, PRESENT_LETTERS, PRESENT_LIMIT, err) : rc;
}

static int sqlite_letter_drop(once_shelf *shelf, uint64_t id, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    sqlite3_bind_int64(q->sql[SQL_LETTER_DROP], 1, (int64_t)id);
    q->wrote = true;
    const int rc = once__sqlite_step(q->db, q->sql[SQL_LETTER_DROP], err);
    if (rc == ONCE_OK && sqlite3_changes64(q->db->handle) > 0)
        once__present_change_row(q, PRESENT_LETTERS, (int64_t)id, true);
    return rc;
}

/* What the statement finds; inside a transaction. */
static int show_letters(once_sqlite *q, sqlite3_stmt *stmt, once_letter_visit *visit, void *user, once_error *err)
{
    int rc = ONCE_OK, code = SQLITE_DONE;
    once_arena arena = {0};
    bool go_on = true;
    while (go_on && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_letter letter;
        once_arena_reset(&arena);
        rc = read_letter(q, stmt, &arena, &letter, err);
        if (rc == ONCE_OK) go_on = visit(user, &letter);
    }
    if (rc == ONCE_OK && go_on && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    once_arena_release(&arena);
    return rc == ONCE_OK && go_on ? once__present_check(q, PRESENT_LETTERS, PRESENT_LIMIT, err)
                                  : rc; /* those that are there were shown */
}

static int sqlite_letters(once_backend *store, once_bytes consumer, uint64_t after, once_letter_visit *visit,
                          void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    const int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    once__bind_bytes(q->sql[SQL_LETTERS], 1, consumer);
    sqlite3_bind_int64(q->sql[SQL_LETTERS], 2, (int64_t)after);
    return ask_end(q, show_letters(q, q->sql[SQL_LETTERS], visit, user, err), err);
}

static int sqlite_letters_of_key(once_backend *store, once_bytes consumer, once_bytes key, once_letter_visit *visit,
                                 void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    const int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    once__bind_bytes(q->sql[SQL_LETTERS_OF_KEY], 1, consumer);
    once__bind_bytes(q->sql[SQL_LETTERS_OF_KEY], 2, key);
    return ask_end(q, show_letters(q, q->sql[SQL_LETTERS_OF_KEY], visit, user, err), err);
}

/* ---- audit ---- */

static void bind_text(sqlite3_stmt *stmt, int at, once_bytes text)
{
    sqlite3_bind_text(stmt, at, text.len ? text.data : "", (int)text.len, SQLITE_STATIC);
}

static int sqlite_audit_put(once_shelf *shelf, const once_audit *audit, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    sqlite3_stmt *stmt = q->sql[SQL_AUDIT_PUT];
    sqlite3_bind_int64(stmt, 1, audit->time_ms);
    once__bind_bytes(stmt, 2, audit->consumer);
    bind_text(stmt, 3, audit->who);
    bind_text(stmt, 4, audit->what);
    once__bind_bytes(stmt, 5, audit->key);
    if (audit->letter) sqlite3_bind_int64(stmt, 6, (int64_t)audit->letter);
    else sqlite3_bind_null(stmt, 6);
    bind_text(stmt, 7, audit->note);
    once__bind_bytes(stmt, 8, audit->body);
    q->wrote = true;
    const int rc = once__sqlite_step(q->db, stmt, err);
    if (rc == ONCE_OK) once__present_change_row(q, PRESENT_AUDITS, sqlite3_last_insert_rowid(q->db->handle), false);
    return rc;
}

static int sqlite_audits(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, false, err), code = SQLITE_DONE;
    if (rc != ONCE_OK) return rc;
    once_arena arena = {0};
    sqlite3_stmt *stmt = q->sql[SQL_AUDITS];
    bool go_on = true;
    once__bind_bytes(stmt, 1, consumer);
    while (go_on && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_audit audit = {.time_ms = sqlite3_column_int64(stmt, 0),
                            .letter = (uint64_t)sqlite3_column_int64(stmt, 5)};
        once_arena_reset(&arena);
        if (!sqlite3_column_int(stmt, 8))
            rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_audit is damaged; restore it from a backup",
                           q->db->path);
        else if (!once__column_copy(stmt, 1, &arena, &audit.consumer) ||
                 !once__column_copy(stmt, 2, &arena, &audit.who) || !once__column_copy(stmt, 3, &arena, &audit.what) ||
                 !once__column_copy(stmt, 4, &arena, &audit.key) || !once__column_copy(stmt, 6, &arena, &audit.note) ||
                 !once__column_copy(stmt, 7, &arena, &audit.body))
            rc = once_no_memory(err, "in the sqlite store");
        else go_on = visit(user, &audit);
    }
    if (rc == ONCE_OK && go_on && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    once_arena_release(&arena);
    if (rc == ONCE_OK && go_on) rc = once__present_check(q, PRESENT_AUDITS, PRESENT_LIMIT, err);
    return ask_end(q, rc, err);
}

/* ---- lists and counts ---- */

typedef struct finished_list {
    once_sqlite *q;
    once_bytes consumer;
    once_state state;
    once_entry_visit *visit;
    void *user;
    int rc;
    once_error *err;
    bool over;
} finished_list;

static bool wanted(const finished_list *list, const once_entry *entry)
{
    return entry->state == list->state && !once_entry_expired(entry, list->q->shelf.now_ms) &&
           once_bytes_equal(entry->scope.consumer, list->consumer);
}

static bool show_finished(void *user, const once_record *record)
{
    finished_list *list = user;
    once_entry entry;
    bool newer;
    if (record->state != list->state) return true;
    list->rc = once__live_is_newer(list->q, record->id, &newer, list->err);
    if (list->rc == ONCE_OK && newer) return true;
    if (list->rc == ONCE_OK) list->rc = once__live_from_record(list->q, record, &entry, list->err);
    if (list->rc != ONCE_OK) return false;
    if (!wanted(list, &entry)) return true;
    list->over = !list->visit(list->user, &entry);
    return !list->over;
}

static int list_finished(once_sqlite *q, finished_list *list)
{
    for (size_t i = 0; i < q->n_dirty && !list->over; i++) /* settled in this very transaction */
        if (wanted(list, &q->dirty[i]->entry)) list->over = !list->visit(list->user, &q->dirty[i]->entry);
    if (list->over) return ONCE_OK;
    const int rc = once__settled_each(q->settled, q->shelf.now_ms, show_finished, list, list->err);
    return rc == ONCE_OK ? list->rc : rc;
}

static int list_rows(once_sqlite *q, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                     once_error *err)
{
    once_arena arena = {0};
    sqlite3_stmt *stmt = q->sql[SQL_LIST];
    int rc = ONCE_OK, code = SQLITE_DONE;
    bool go_on = true;
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int(stmt, 2, (int)state);
    sqlite3_bind_int64(stmt, 3, q->shelf.now_ms);
    while (go_on && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_entry entry;
        int64_t row, keep_ms;
        once_arena_reset(&arena);
        rc = once__live_read_row(q, stmt, &arena, &entry, &row, &keep_ms, err);
        once_entry_look(&entry, q->shelf.now_ms);
        if (rc == ONCE_OK) go_on = visit(user, &entry);
    }
    if (rc == ONCE_OK && go_on && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    once_arena_release(&arena);
    return rc;
}

static int sqlite_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                       once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    if (once_state_finished(state)) {
        finished_list list = {.q = q, .consumer = consumer, .state = state, .visit = visit, .user = user, .err = err};
        rc = list_finished(q, &list);
    } else {
        rc = list_rows(q, consumer, state, visit, user, err);
    }
    return ask_end(q, rc, err);
}

static int count_rows(once_sqlite *q, once_bytes consumer, once_stats *out, once_error *err)
{
    int64_t next_ms = ONCE_NEVER;
    sqlite3_stmt *stmt = q->sql[SQL_STATS];
    int code;
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, q->shelf.now_ms);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const uint64_t n = (uint64_t)sqlite3_column_int64(stmt, 1);
        const int state = sqlite3_column_int(stmt, 0);
        if (state == ONCE_STATE_UNKNOWN) out->unknown = n;
        if (state == ONCE_STATE_WAITING) out->waiting = n;
        if (state == ONCE_STATE_CLAIMED) out->claimed = n;
        if (state == ONCE_STATE_UNKNOWN || sqlite3_column_type(stmt, 2) == SQLITE_NULL) continue;
        if (sqlite3_column_int64(stmt, 2) < next_ms) next_ms = sqlite3_column_int64(stmt, 2);
    }
    sqlite3_reset(stmt);
    if (code != SQLITE_DONE) return once__sqlite_fail(q->db, code, err);
    if (next_ms != ONCE_NEVER) out->wait_ms = next_ms > q->shelf.now_ms ? next_ms - q->shelf.now_ms : 0;

    stmt = q->sql[SQL_STATS_LETTERS];
    once__bind_bytes(stmt, 1, consumer);
    code = sqlite3_step(stmt);
    if (code == SQLITE_ROW) out->dead = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return code == SQLITE_ROW ? ONCE_OK : once__sqlite_fail(q->db, code, err);
}

static int sqlite_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_stats){.wait_ms = ONCE_NEVER};
    rc = count_rows(q, consumer, out, err);
    return ask_end(q, rc, err);
}

/* ---- sweep ---- */

/* Lanes whose version has expired. They are few, so each call looks at the next `limit` of them and begins anew at the
 * end. */
static int sweep_lanes(once_sqlite *q, size_t limit, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_LANE_AFTER];
    unsigned char *expired = NULL;
    size_t n = 0, seen = 0, room = 0;
    int code = SQLITE_DONE, rc = ONCE_OK;
    unsigned char last[16] = {0};
    once__bind_id(stmt, 1, q->lane_cursor);
    sqlite3_bind_int64(stmt, 2, (int64_t)limit);
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const void *id = sqlite3_column_blob(stmt, 0);
        if (sqlite3_column_bytes(stmt, 0) != 16) continue;
        memcpy(last, id, 16);
        seen++;
        if (sqlite3_column_int64(stmt, 1) > q->shelf.now_ms) continue;
        if (n == room) {
            room = room ? room * 2 : 64;
            unsigned char *grown = realloc(expired, room * 16);
            if (!grown) rc = once_no_memory(err, "in the sqlite store");
            else expired = grown;
        }
        if (rc == ONCE_OK) memcpy(expired + 16 * n++, id, 16);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once__bind_id(q->sql[SQL_LANE_DELETE], 1, expired + 16 * i);
        rc = once__sqlite_step(q->db, q->sql[SQL_LANE_DELETE], err);
        once__present_change(q, PRESENT_LANES, (once_bytes){(const char *)expired + 16 * i, 16}, true);
        q->wrote = true;
    }
    memcpy(q->lane_cursor, last, 16);
    if (seen < limit) memset(q->lane_cursor, 0, 16);
    free(expired);
    return rc;
}

/* What waits without a body and has expired. */
static int sweep_waiting(once_sqlite *q, size_t limit, once_sweep_result *out, once_error *err)
{
    once_hash *ids = once_arena_alloc(&q->arena, limit * sizeof *ids);
    size_t n = 0;
    if (!ids) return once_no_memory(err, "in the sqlite store");
    sqlite3_bind_int64(q->sql[SQL_EXPIRED], 1, q->shelf.now_ms);
    sqlite3_bind_int64(q->sql[SQL_EXPIRED], 2, (int64_t)limit);
    const int rc = collect_ids(q, q->sql[SQL_EXPIRED], ids, &n, err);
    if (n == limit) out->more = true;
    return rc == ONCE_OK ? once__engine_drop(&q->shelf, ids, n, &out->dropped, err) : rc;
}

static int sqlite_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    if (q->shelf.in_tx) return once_fail(err, ONCE_E_USAGE, "sweep runs in a transaction of its own");
    int rc = ask_begin(q, true, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_sweep_result){0};
    q->settled_touched = true;
    rc = once__settled_sweep(q->settled, limit, q->shelf.now_ms, out, err);
    if (rc == ONCE_OK) rc = sweep_lanes(q, limit, err);
    if (rc == ONCE_OK) rc = sweep_waiting(q, limit, out, err);
    /* Nothing dropped: nothing to write, not even the time. */
    if (rc == ONCE_OK && q->n_dirty == 0 && sqlite3_total_changes64(q->db->handle) == q->changes_before)
        q->settled_touched = false;
    return ask_end(q, rc, err);
}

/* ---- facts ---- */

static int sqlite_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_FACT_GET];
    *out = (once_bytes){0};
    rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    if (rc != ONCE_OK) return ask_end(q, rc, err);
    sqlite3_bind_text(stmt, 1, name, -1, SQLITE_STATIC);
    const int code = sqlite3_step(stmt);
    if (code == SQLITE_ROW && !sqlite3_column_int(stmt, 1))
        rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': the fact '%s' is damaged; restore it from a backup",
                       q->db->path, name);
    else if (code == SQLITE_ROW)
        rc = once__column_copy(stmt, 0, arena, out) ? ONCE_OK : once_no_memory(err, "in the sqlite store");
    else if (code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return ask_end(q, rc, err);
}

static int sqlite_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, true, err);
    if (rc != ONCE_OK) return rc;
    q->wrote = true;
    rc = put_fact(q, name, value, err);
    return ask_end(q, rc, err);
}

static int sqlite_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    once_bytes there = {0};
    assert(q->shelf.in_tx);
    const int rc = least ? sqlite_fact_get(store, name, &there, &q->arena, err) : ONCE_OK;
    if (rc != ONCE_OK) return rc;
    if (!once__fact_may_follow(there, least)) {
        q->shelf.broken = true;
        return once__store_forgot(err);
    }
    return sqlite_fact_set(store, name, value, err);
}

static int sqlite_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_FACTS];
    rc = once__present_check(q, PRESENT_FACTS, INT64_MAX - 1, err);
    if (rc != ONCE_OK) return ask_end(q, rc, err);
    sqlite3_bind_text(stmt, 1, prefix, -1, SQLITE_STATIC);
    int code;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) != SQLITE_DONE) {
        const once_bytes name = {(const char *)sqlite3_column_text(stmt, 0), (size_t)sqlite3_column_bytes(stmt, 0)};
        if (code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
        else if (!sqlite3_column_int(stmt, 2))
            rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': the fact '%.*s' is damaged; restore it from a backup",
                           q->db->path, (int)name.len, name.data);
        else if (!visit(user, name, (once_bytes){sqlite3_column_blob(stmt, 1), (size_t)sqlite3_column_bytes(stmt, 1)}))
            break;
    }
    sqlite3_reset(stmt);
    return ask_end(q, rc, err);
}

/* ---- the time, set by an operator ---- */

/* Entries that wait or are claimed keep their distance to a time that goes back: they would wait for years otherwise.
 */
static int move_entry(once_sqlite *q, once_hash id, int64_t by_ms, once_error *err)
{
    once_entry *entry;
    const int rc = once__live_load(&q->shelf, id, &entry, err);
    if (rc != ONCE_OK || entry->state == ONCE_STATE_ABSENT || once_state_finished(entry->state)) return rc;
    if (entry->due_ms != ONCE_NEVER) entry->due_ms += by_ms;
    entry->seen_ms += by_ms;
    entry->changed_ms += by_ms;
    return once__live_save(&q->shelf, entry, err);
}

static int move_entries(once_sqlite *q, int64_t by_ms, once_error *err)
{
    enum { STEP = 1024 };
    once_hash ids[STEP];
    int64_t after = 0;
    size_t n = STEP;
    sqlite3_stmt *stmt;
    int rc = once__sqlite_prepare(q->db, "SELECT id, n FROM once_entry WHERE n > ?1 ORDER BY n LIMIT 1024", &stmt, err);
    while (rc == ONCE_OK && n == STEP) {
        int code;
        n = 0;
        sqlite3_bind_int64(stmt, 1, after);
        while ((code = sqlite3_step(stmt)) == SQLITE_ROW && once__column_id(stmt, 0, &ids[n])) {
            after = sqlite3_column_int64(stmt, 1);
            n++;
        }
        if (code == SQLITE_ROW)
            rc = once_fail(err, ONCE_E_CORRUPT, "file '%s': table once_entry is damaged; restore it from a backup",
                           q->db->path);
        else if (code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
        sqlite3_reset(stmt);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) rc = move_entry(q, ids[i], by_ms, err);
        if (rc == ONCE_OK) rc = once__live_write_rows(q, err);
        once__live_clear(q);
    }
    sqlite3_finalize(stmt);
    return rc;
}

static int sqlite_confirm_time(once_backend *store, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    if (!q->shelf.in_tx || q->slots.n)
        return once_fail(err, ONCE_E_USAGE, "the time is set in a transaction of its own");
    const int64_t before_ms = q->shelf.now_ms;
    q->shelf.now_ms = once_clock_confirm(&q->shelf.clock, store->env);
    q->wrote = true;
    const int64_t by_ms = q->shelf.now_ms - before_ms;
    const int rc = by_ms < 0 ? move_entries(q, by_ms, err) : ONCE_OK;
    if (rc != ONCE_OK) q->shelf.broken = true;
    return rc;
}

/* ---- everything, compared with its sums ---- */

typedef void damage_told(void *user, const char *text);

/* SQLite's own pages. */
static int verify_pages(once_sqlite *q, damage_told *damage, void *user, once_error *err)
{
    sqlite3_stmt *stmt;
    int code, rc = once__sqlite_prepare(q->db, "PRAGMA integrity_check(20)", &stmt, err);
    if (rc != ONCE_OK) return rc;
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(stmt, 0);
        if (text && strcmp(text, "ok") != 0) damage(user, text);
    }
    if (code != SQLITE_DONE) damage(user, sqlite3_errmsg(q->db->handle));
    sqlite3_finalize(stmt);
    return ONCE_OK;
}

static void verify_rows(once_sqlite *q, damage_told *damage, void *user)
{
    static const struct {
        const char *what, *where;
    } bad[] = {
        {"damaged", "once_entry WHERE sum IS NOT " ENTRY_SUM},
        {"damaged", "once_body WHERE sum IS NOT " BODY_SUM},
        {"damaged", "once_lane WHERE sum IS NOT " LANE_SUM},
        {"damaged", "once_letter WHERE sum IS NOT " LETTER_SUM},
        {"damaged", "once_fact WHERE sum IS NOT " FACT_SUM},
        {"damaged", "once_name WHERE sum IS NOT " NAME_SUM},
        {"damaged", "once_audit WHERE sum IS NOT " AUDIT_SUM},
        {"without its row in once_body", "once_entry WHERE owned = 1 AND n NOT IN (SELECT n FROM once_body)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char sql[1500], text[200];
        once_error why = {0};
        int64_t n = 0;
        snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", bad[i].where);
        if (once__sqlite_integer(q->db, sql, 0, &n, &why) != ONCE_OK) damage(user, why.text);
        snprintf(text, sizeof text, "table %.*s: %lld row%s %s", (int)strcspn(bad[i].where, " "), bad[i].where,
                 (long long)n, n == 1 ? " is" : "s are", bad[i].what);
        if (n) damage(user, text);
    }
}

typedef struct names_seen {
    once_sqlite *q;
    int rc;
    once_error *err;
} names_seen;

/* A record is whole only with the names that it refers to. */
static bool has_its_names(void *user, const once_record *record)
{
    names_seen *seen = user;
    once_entry entry;
    seen->rc = once__live_from_record(seen->q, record, &entry, seen->err);
    return seen->rc == ONCE_OK;
}

static int sqlite_verify(once_backend *store, damage_told *damage, void *user, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    once_error why = {0};
    int rc = ask_begin(q, false, &why); /* reads the head, what is recent, and the runs with their filters */
    if (rc == ONCE_E_CORRUPT) {
        damage(user, why.text);
        return ONCE_OK;
    }
    if (rc != ONCE_OK) return once_fail(err, rc, "%s", why.text);
    rc = verify_pages(q, damage, user, err);
    if (rc != ONCE_OK) return ask_end(q, rc, err);
    verify_rows(q, damage, user);
    for (int i = 0; i < PRESENTS; i++) {
        q->present_checked[i] = false;
        if (once__present_check(q, (enum once_present)i, INT64_MAX - 1, &why) != ONCE_OK) damage(user, why.text);
    }
    names_seen seen = {.q = q, .err = &why};
    if (once__settled_each(q->settled, INT64_MIN, has_its_names, &seen, &why) != ONCE_OK || seen.rc != ONCE_OK)
        damage(user, why.text);
    return ask_end(q, ONCE_OK, err);
}

/* ---- from version 1 to 2 ---- */

/* Finished entries were rows; they become records. */
static int move_finished(once_sqlite *q, once_error *err)
{
    sqlite3_stmt *stmt;
    once_arena arena = {0};
    int rc = once__sqlite_prepare(q->db, "SELECT " ENTRY_COLUMNS " FROM once_entry WHERE state > 4 ORDER BY changed_ms",
                                  &stmt, err);
    if (rc != ONCE_OK) return rc;
    int code = SQLITE_DONE;
    for (size_t n = 1; rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW; n++) {
        once_entry entry;
        once_record record;
        int64_t row, keep_ms;
        once_arena_reset(&arena);
        rc = once__live_read_row(q, stmt, &arena, &entry, &row, &keep_ms, err);
        if (rc == ONCE_OK) rc = once__live_to_record(q, &entry, 0, &record, err);
        if (rc == ONCE_OK) rc = once__settled_add(q->settled, &record, err);
        if (rc == ONCE_OK && n % 4096 == 0) rc = once__settled_commit(q->settled, q->shelf.now_ms, err);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_finalize(stmt);
    once_arena_release(&arena);
    if (rc == ONCE_OK) rc = once__settled_commit(q->settled, q->shelf.now_ms, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(migrate_between)) rc = once_fail(err, ONCE_E_IO, "failpoint migrate_between");
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, "DELETE FROM once_entry WHERE state > 4", err);
    return rc == ONCE_OK ? write_head(q, err) : rc; /* the sums follow */
}

static int migrate_1_to_2(once_sqlite *q, once_error *err)
{
    once_settled_head head;
    int rc = read_head(q, &head, err);
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    if (rc != ONCE_OK) return rc;
    q->shelf.clock = q->stored_clock;
    q->shelf.now_ms = once_clock_step(&q->shelf.clock, q->shelf.store.env);
    rc = move_finished(q, err);
    once__names_end(q->names, rc == ONCE_OK);
    return rc;
}

/* ---- open, close ---- */

static const once_shelf_ops sqlite_shelf = {
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .prefetch = once__live_prefetch,
    .load = once__live_load,
    .save = once__live_save,
    .lane = once__live_lane,
    .save_lane = once__live_save_lane,
    .lane_head = once__live_lane_head,
    .lane_equals = once__live_lane_equals,
    .lane_before = once__live_lane_before,
    .due = sqlite_due,
    .by_token = sqlite_by_token,
    .lapsed = sqlite_lapsed,
    .letter_put = sqlite_letter_put,
    .letter_get = sqlite_letter_get,
    .letter_drop = sqlite_letter_drop,
    .audit_put = sqlite_audit_put,
};

static void sqlite_close(once_backend *store)
{
    once_sqlite *q = (once_sqlite *)store;
    once__settled_close(q->settled);
    once__names_close(q->names);
    for (size_t i = 0; i < SQL_STATEMENTS; i++) sqlite3_finalize(q->sql[i]);
    if (q->db && q->db->borrowed) once__sum_unregister(q->db->handle);
    once__sqlite_close(q->db);
    once_arena_release(&q->arena);
    free(q->slots.at);
    free(q->lanes.at);
    free(q->dirty);
    free(q);
}

static int prepare_all(once_sqlite *q, const once_settled_limits *limits, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < SQL_STATEMENTS && rc == ONCE_OK; i++) {
        const bool other = q->db->borrowed && borrowed_sql[i];
        rc = once__sqlite_prepare(q->db, other ? borrowed_sql[i] : statement_sql[i], &q->sql[i], err);
    }
    if (rc == ONCE_OK) rc = once__settled_open(q->db, limits, &q->settled, err);
    if (rc == ONCE_OK) rc = once__names_open(q->db, &q->names, err);
    return rc;
}

/* Sums of what is there, for the tables that were just made or come from version 4. */
static int sum_up(once_sqlite *q, once_error *err)
{
    once_settled_head head;
    q->unsummed = true;
    int rc = read_head(q, &head, err);
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    q->shelf.clock = q->stored_clock;
    for (int i = 0; i < PRESENTS && rc == ONCE_OK; i++) {
        bool all;
        rc = once__present_count(q, (enum once_present)i, INT64_MAX - 1, &q->present[i], &all, err);
    }
    if (rc == ONCE_OK) rc = write_head(q, err);
    memcpy(q->present_stored, q->present, sizeof q->present);
    if (rc == ONCE_OK) rc = once__sqlite_sum_meta(q->db, err);
    q->unsummed = false;
    return rc;
}

int once__sqlite_store_edit(once_backend *store, const char *sql, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    int rc = once__sqlite_exec(q->db, "BEGIN IMMEDIATE", err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, sql, err);
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, once__sqlite_sum_rows(), err);
    if (rc == ONCE_OK) rc = sum_up(q, err);
    return once__sqlite_exec(q->db, rc == ONCE_OK ? "COMMIT" : "ROLLBACK", rc == ONCE_OK ? err : NULL) == ONCE_OK
               ? rc
               : ONCE_E_IO;
}

/* Everything that may make or change tables, in one transaction. */
static int make_ready(once_sqlite *q, const once_store_options *options, const once_settled_limits *limits,
                      once_error *err)
{
    int64_t version;
    bool ready;
    int rc = once__sqlite_is_ready(q->db, &ready, &q->shelf.store.secret, err);
    if (rc != ONCE_OK) return rc;
    if (ready && options->create && !options->readonly) once__sqlite_index_keys(q->db);
    if (ready) return prepare_all(q, limits, err);
    rc = once__sqlite_exec(q->db, options->readonly ? "BEGIN" : "BEGIN IMMEDIATE", err);
    if (rc != ONCE_OK) return rc;
    bool made = false;
    rc = once__sqlite_ready(q->db, q->shelf.store.env, options->create, options->readonly, &version, &made,
                            &q->shelf.store.secret, err);
    if (rc == ONCE_OK && made) rc = prepare_all(q, limits, err);
    if (rc == ONCE_OK && made) rc = sum_up(q, err);
    if (rc == ONCE_OK && version < ONCE_SQLITE_VERSION) {
        rc = once__sqlite_upgrade_tables(q->db, version, err);
        if (rc == ONCE_OK) rc = prepare_all(q, limits, err);
        q->unsummed = true;
        if (rc == ONCE_OK && version == 1) rc = migrate_1_to_2(q, err);
        if (rc == ONCE_OK) rc = sum_up(q, err);
        if (rc == ONCE_OK && ONCE_FAIL_AT(migrate_between)) rc = once_fail(err, ONCE_E_IO, "failpoint migrate_between");
    }
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, "COMMIT", err);
    if (rc != ONCE_OK && !sqlite3_get_autocommit(q->db->handle))
        sqlite3_exec(q->db->handle, "ROLLBACK", NULL, NULL, NULL);
    return rc == ONCE_OK && !q->settled ? prepare_all(q, limits, err) : rc;
}

static once_sqlite *new_store(const once_store_options *options)
{
    once_sqlite *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->shelf.store.ops = &once__store_sqlite;
    q->shelf.store.bits = ONCE_STORE_DURABLE | ONCE_STORE_SHARED | ONCE_STORE_TX | ONCE_STORE_OWNS | ONCE_STORE_LANES |
                          ONCE_STORE_LIST | ONCE_STORE_CLOCK;
    q->shelf.store.env = options->env ? options->env : once_env_real();
    q->shelf.shelf = &sqlite_shelf;
    once__store_sign(&q->shelf.store);
    q->fresh = true;
    return q;
}

int once__sqlite_store_borrow(sqlite3 *handle, const once_store_options *options, const once_settled_limits *limits,
                              once_backend **out, once_error *err)
{
    assert(sqlite3_get_autocommit(handle));
    once_sqlite *q = new_store(options);
    if (!q) return once_no_memory(err, "in the sqlite store");
    snprintf(q->mark_name, sizeof q->mark_name, "borrowed.%u",
             (unsigned)(once_env_random_u64(q->shelf.store.env) % 64));
    int rc = once__sqlite_borrow(handle, &q->db, err);
    if (rc == ONCE_OK && once__sum_register(handle) != SQLITE_OK)
        rc = once__sqlite_fail(q->db, sqlite3_extended_errcode(handle), err);
    if (rc == ONCE_OK) rc = make_ready(q, options, limits ? limits : &once__settled_defaults, err);
    if (rc != ONCE_OK) {
        sqlite_close(&q->shelf.store);
        return rc;
    }
    *out = &q->shelf.store;
    return ONCE_OK;
}

/* Bodies and results are nobody else's to read. SQLite gives its other files the mode of this one. When it is there
 * already, or cannot be made, SQLite is the one to say so. */
static int make_private(const once_env *env, const char *path, once_error *err)
{
    struct stat st;
    if (strcmp(path, ":memory:") == 0) return ONCE_OK;
    const int fd = env->open(env->self, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST && stat(path, &st) != 0 && errno == ENOENT)
        return once_fail(
            err, ONCE_E_CONFIG,
            "file '%s': is a symbolic link to nothing; name the file that is to be made, or remove the link", path);
    if (fd < 0) return ONCE_OK;
    (void)fchmod(fd, 0600); /* the umask may have taken even that */
    env->close(env->self, fd);
    return ONCE_OK;
}

int once__sqlite_store_open(const char *path, const once_store_options *options, const once_settled_limits *limits,
                            once_backend **out, once_error *err)
{
    const once_store_options none = {.size = sizeof none};
    if (!options) options = &none;
    if (!limits) limits = &once__settled_defaults;
    once_sqlite *q = new_store(options);
    if (!q) return once_no_memory(err, "in the sqlite store");

    const once_sqlite_options how = {.create = options->create,
                                     .readonly = options->readonly,
                                     .vfs = options->sqlite_vfs,
                                     .busy_ms = options->busy_ms ? options->busy_ms : BUSY_MS_DEFAULT};
    int rc = how.create && !how.readonly && !how.vfs ? make_private(q->shelf.store.env, path, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__sqlite_open(path, &how, &q->db, err);
    if (rc == ONCE_OK) once__sqlite_watch(q->db, options->patience);
    if (rc == ONCE_OK)
        rc = once__sqlite_settings(q->db, q->shelf.store.env, how.create && !how.readonly, how.busy_ms, err);
    if (rc == ONCE_OK && once__sum_register(q->db->handle) != SQLITE_OK)
        rc = once__sqlite_fail(q->db, SQLITE_NOMEM, err);
    if (rc == ONCE_OK) rc = make_ready(q, options, limits, err);
    if (rc != ONCE_OK) {
        sqlite_close(&q->shelf.store);
        return rc;
    }
    *out = &q->shelf.store;
    return ONCE_OK;
}

static int sqlite_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    return once__sqlite_store_open(rest, options, NULL, out, err);
}

static once_db *sqlite_db(once_backend *store) { return &((once_sqlite *)store)->db->db; }

const once_store_ops once__store_sqlite = {
    .scheme = "sqlite",
    .summary = "an SQLite file; the embedded default; SQL effects in the same file are atomic",
    .open = sqlite_open,
    .close = sqlite_close,
    .claim = once__engine_claim,
    .settle = once__engine_settle,
    .extend = once__engine_extend,
    .accept = once__engine_accept,
    .take = once__engine_take,
    .lapse = once__engine_lapse,
    .begin = once__engine_begin,
    .commit = once__engine_commit,
    .rollback = once__engine_rollback,
    .db = sqlite_db,
    .bury = once__engine_bury,
    .exhume = once__engine_exhume,
    .forget = once__engine_forget,
    .letter_get = once__engine_letter_get,
    .letter_drop = once__engine_letter_drop,
    .discard = once__engine_discard,
    .correct = once__engine_correct,
    .resolve = once__engine_resolve,
    .revive = once__engine_revive,
    .audit = once__engine_audit,
    .audits = sqlite_audits,
    .sweep = sqlite_sweep,
    .get = once__engine_get,
    .look = once__engine_look,
    .outlook = once__engine_outlook,
    .why = once__engine_why,
    .in_lane = once__engine_in_lane,
    .list = sqlite_list,
    .letters = sqlite_letters,
    .letters_of_key = sqlite_letters_of_key,
    .stats = sqlite_stats,
    .verify = sqlite_verify,
    .time = once__engine_time,
    .confirm_time = sqlite_confirm_time,
    .fact_get = sqlite_fact_get,
    .fact_set = sqlite_fact_set,
    .fact_count = sqlite_fact_count,
    .facts = sqlite_facts,
};
