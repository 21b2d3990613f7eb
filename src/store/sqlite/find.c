/* Finds entries by due time or by token. */
#include <assert.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

int once__sqlite_store_collect_ids(once_sqlite *q, sqlite3_stmt *stmt, once_hash *out, size_t *n, once_error *err)
{
    int code = SQLITE_DONE, rc = ONCE_OK;
    size_t count = 0;
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (once__column_id(stmt, 0, &out[count])) count++;
        else rc = once__live_damaged(q, "table once_entry", err);
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

/* Reads the current row of the statement. */
static bool read_due(sqlite3_stmt *stmt, once_due_mark *mark, once_bytes *operation)
{
    operation->data = sqlite3_column_blob(stmt, 1);
    operation->len = (size_t)sqlite3_column_bytes(stmt, 1);
    mark->due_ms = sqlite3_column_int64(stmt, 2);
    return once__column_id(stmt, 0, &mark->id);
}

int once__sqlite_store_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms,
                                         once_due_search *search, once_hash *out, size_t *n, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && search->max > 0 && search->read_max > 0);
    *n = 0;
    int rc = once__live_write_rows(q, err), code = SQLITE_DONE;
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_DUE_AFTER];
    unsigned char from[16];
    once__id_write(search->from.id, from);
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, now_ms);
    sqlite3_bind_int64(stmt, 3, (int64_t)search->read_max);
    sqlite3_bind_int64(stmt, 4, search->from.due_ms);
    once__bind_id(stmt, 5, from);
    while (rc == ONCE_OK && *n < search->max && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_bytes operation;
        if (!read_due(stmt, &search->from, &operation)) rc = once__live_damaged(q, "table once_entry", err);
        else if (once__due_search_matches(search, operation)) out[(*n)++] = search->from.id;
        search->read++;
    }
    if (rc == ONCE_OK && code != SQLITE_DONE && code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    search->end = code == SQLITE_DONE && search->read < search->read_max;
    sqlite3_reset(stmt);
    return rc;
}

/* Only claims with a message, which take hands out: these are rows. */
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

/* The claims that are records (SQL_LAPSED finds the others). */
typedef struct lapsed_claims {
    once_bytes consumer;
    int64_t now_ms;
    once_hash *out;
    size_t *n, max;
} lapsed_claims;

static bool find_lapsed(void *user, const once_entry *entry, int64_t keep_ms)
{
    const lapsed_claims *found = user;
    (void)keep_ms;
    if (*found->n < found->max && entry->hold && entry->due_ms <= found->now_ms &&
        once_bytes_equal(entry->scope.consumer, found->consumer))
        found->out[(*found->n)++] = entry->id;
    return *found->n < found->max;
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
    const int rc = once__sqlite_store_collect_ids(q, stmt, out, n, err);
    lapsed_claims found = {consumer, now_ms, out, n, max};
    return rc == ONCE_OK ? once__live_each_claim(q, find_lapsed, &found, err) : rc;
}
