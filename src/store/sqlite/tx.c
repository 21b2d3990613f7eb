/* Transactions of the sqlite store.
 *
 * Memory that is kept between transactions (finished entries, the clock, the ids with rows, claims) is a copy of the
 * file.
 * begin asks SQLite whether another connection has written since (data_version), and then reads what changed; after a
 * failed transaction of our own everything is read again. So several processes may share a file.
 *
 * On a borrowed connection (the caller's own) a transaction of ours is a savepoint: inside the caller's transaction it
 * is a part of that, otherwise it is a transaction of its own. The caller may roll back what the store wrote, and
 * SQLite does not report that. So each write there also writes a random mark (fact "borrowed.N", where N is one of 64
 * numbers that the connection picks). When a transaction begins and the mark is not the one that memory was filled or
 * written with, memory is discarded. Two connections with the same N only make each other read more often. */
#include <assert.h>
#include <string.h>

#include "store/sqlite/parts.h"
#include "store/sqlite/schema.h"

#include "base/banned.h"

/* ---- the row of once_store ---- */

enum { HEAD_PRESENT = 11, HEAD_COLUMNS = HEAD_PRESENT + PRESENTS };

/* The sum covers the secret, too: with the once_meta of another file every key would be new, although all sums of that
 * once_meta are right. */
static int64_t head_sum(const once_sqlite *q, const int64_t columns[HEAD_COLUMNS])
{
    int64_t summed[HEAD_COLUMNS + 2];
    memcpy(summed, columns, HEAD_COLUMNS * sizeof *columns);
    summed[HEAD_COLUMNS] = (int64_t)q->storage.store.secret.k0;
    summed[HEAD_COLUMNS + 1] = (int64_t)q->storage.store.secret.k1;
    return (int64_t)once__sum('h', 1, 0, (once_bytes){(const char *)summed, sizeof summed});
}

/* Whether the sum of the head is right. A head of version 4 has no sum yet, and is accepted while the tables are
 * brought up to date. */
static bool head_is_whole(const once_sqlite *q, sqlite3_stmt *stmt)
{
    int64_t columns[HEAD_COLUMNS];
    for (int i = 0; i < HEAD_COLUMNS; i++) columns[i] = sqlite3_column_int64(stmt, i);
    return q->unsummed || (sqlite3_column_type(stmt, HEAD_COLUMNS) == SQLITE_INTEGER &&
                           sqlite3_column_int64(stmt, HEAD_COLUMNS) == head_sum(q, columns));
}

int once__sqlite_store_read_head(once_sqlite *q, once_settled_head *head, once_error *err)
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

int once__sqlite_store_write_head(once_sqlite *q, once_error *err)
{
    assert(q->settled);
    const once_settled_head *head = once__settled_head(q->settled);
    sqlite3_stmt *stmt = q->sql[SQL_HEAD_SET];
    const int64_t columns[HEAD_COLUMNS] = {q->storage.clock.tenths,
                                           q->storage.clock.boot_ms,
                                           (int64_t)q->storage.clock.boot_id,
                                           head->generation,
                                           head->flushed,
                                           head->last_recent,
                                           head->last_run,
                                           q->storage.clock.doubted,
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

/* Reads what other connections have changed since our last transaction. */
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
    q->fresh = true; /* until this has succeeded */
    q->live.known = false;
    once__kept_clear(q);
    int rc = once__sqlite_store_read_head(q, &head, err);
    /* Time that another process has stored holds for all. Otherwise time that this process has seen does not go back,
     * although it was not written. */
    const once_clock *stored = &q->stored_clock;
    if (stored->tenths != known.tenths || stored->boot_ms != known.boot_ms || stored->boot_id != known.boot_id ||
        stored->doubted != known.doubted)
        q->storage.clock = *stored;
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    if (rc != ONCE_OK) return rc;
    q->fresh = false;
    q->data_version = version;
    return ONCE_OK;
}

/* ---- borrowed connections ---- */

/* Takes the write lock now, so that a claim is not decided on data that another process is about to change. Writes
 * nothing. */
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
    q->mark = once_env_random_u64(q->storage.store.env);
    return once__sqlite_store_put_fact(q, q->mark_name, (once_bytes){(const char *)&q->mark, sizeof q->mark}, err);
}

/* Checks that the caller has kept what the store wrote, and what it read after that. If that cannot be seen, memory is
 * discarded. */
static int check_mark(once_sqlite *q, once_error *err)
{
    uint64_t mark;
    int rc = read_mark(q, &mark, err);
    if (rc != ONCE_OK || mark == q->mark) return rc;
    once_names *names;
    rc = once__names_open(q->db, &names, err);
    if (rc != ONCE_OK) return rc;
    once__kept_clear(q); /* which points to names */
    once__names_close(q->names);
    q->names = names;
    once__settled_distrust(q->settled);
    q->fresh = true;
    q->live.known = false;
    q->mark = mark;
    return ONCE_OK;
}

/* ---- begin, commit, rollback ---- */

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
        once__kept_clear(q);
    } else {
        for (size_t i = 0; i < q->n_dirty; i++) once__kept_add(q, q->dirty[i]);
        memcpy(q->present_stored, q->present, sizeof q->present);
    }
    once__names_end(q->names, committed);
    once__live_clear(q);
    q->db->savepoints = 0;
    q->open = q->write = q->wrote = q->rows_written = q->settled_touched = false;
}

int once__sqlite_store_begin(once_storage *storage, bool write, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(!q->open);
    if (once__names_trim(q->names)) once__kept_clear(q);
    int rc = once__sqlite_step(q->db, q->sql[write ? SQL_BEGIN_WRITE : SQL_BEGIN_READ], err);
    if (rc != ONCE_OK) return rc;
    q->open = true;
    q->write = write;
    if (q->db->borrowed && write) rc = lock_borrowed(q, err);
    if (q->db->borrowed && rc == ONCE_OK) rc = check_mark(q, err);
    if (rc == ONCE_OK) rc = catch_up(q, err);
    const bool moved = rc == ONCE_OK && once__sqlite_moved(q->db); /* before an effect runs for nothing */
    if (rc != ONCE_OK || moved) {
        tx_over(q, false);
        return moved ? once__sqlite_say_moved(q->db, err) : rc;
    }
    q->changes_before = sqlite3_total_changes64(q->db->handle);
    return ONCE_OK;
}

static int commit_writes(once_sqlite *q, once_error *err)
{
    assert(q->open);
    if (!q->write) return ONCE_OK;
    int rc = once__live_write_all(q, err);
    if (rc != ONCE_OK) return rc;
    if (!q->wrote && !q->settled_touched && sqlite3_total_changes64(q->db->handle) == q->changes_before) return ONCE_OK;
    q->wrote = true;
    if (q->db->borrowed) rc = write_mark(q, err);
    return rc == ONCE_OK ? once__sqlite_store_write_head(q, err) : rc;
}

int once__sqlite_store_commit(once_storage *storage, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->write || q->n_dirty == 0);
    assert(q->open);
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
    if (rc == ONCE_OK && q->wrote) q->stored_clock = storage->clock;
    tx_over(q, rc == ONCE_OK);
    return rc == ONCE_OK ? once__sqlite_unmoved(q->db, err)
                         : rc; /* committed to a file that was moved away: not acknowledged */
}

void once__sqlite_store_rollback(once_storage *storage) { tx_over(once__sqlite_of(storage), false); }
