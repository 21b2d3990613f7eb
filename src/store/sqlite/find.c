/* Entries that are looked for by their time or their token. */
#include <assert.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

int once__sqlite_store_collect_ids(once_sqlite *q, sqlite3_stmt *stmt, once_hash *out, size_t *n, once_error *err)
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

int once__sqlite_store_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                           size_t *n, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && max > 0);
    const int rc = once__live_write_rows(q, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_DUE];
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, now_ms);
    sqlite3_bind_int64(stmt, 3, (int64_t)max);
    return once__sqlite_store_collect_ids(q, stmt, out, n, err);
}

int once__sqlite_store_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max,
                                once_hash *out, size_t *n, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && max > 0);
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
    return once__sqlite_store_collect_ids(q, stmt, out, n, err);
}

int once__sqlite_store_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                              size_t *n, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && max > 0);
    sqlite3_stmt *stmt = q->sql[SQL_LAPSED];
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, now_ms);
    sqlite3_bind_int64(stmt, 3, (int64_t)max);
    return once__sqlite_store_collect_ids(q, stmt, out, n, err);
}
