/* The sweep of the sqlite store: drops expired lanes, entries and records, in bounded steps. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

/* Drops lanes whose version has expired. Lanes are few, so each call reads the next `limit` of them, and starts again
 * after the last. */
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
        if (sqlite3_column_int64(stmt, 1) > q->storage.now_ms) continue;
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

/* Drops expired entries that wait without a body. */
static int sweep_waiting(once_sqlite *q, size_t limit, once_sweep_result *out, once_error *err)
{
    once_hash *ids = once_arena_alloc(&q->arena, limit * sizeof *ids);
    size_t n = 0;
    if (!ids) return once_no_memory(err, "in the sqlite store");
    sqlite3_bind_int64(q->sql[SQL_EXPIRED], 1, q->storage.now_ms);
    sqlite3_bind_int64(q->sql[SQL_EXPIRED], 2, (int64_t)limit);
    const int rc = once__sqlite_store_collect_ids(q, q->sql[SQL_EXPIRED], ids, &n, err);
    if (n == limit) out->more = true;
    return rc == ONCE_OK ? once__engine_drop(&q->storage, ids, n, &out->dropped, err) : rc;
}

int once__sqlite_store_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    assert(limit > 0);
    if (q->storage.in_tx) return once_fail(err, ONCE_E_USAGE, "sweep runs in a transaction of its own");
    int rc = once__verb_begin(&q->storage, true, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_sweep_result){0};
    q->settled_touched = true;
    rc = once__settled_sweep(q->settled, limit, q->storage.now_ms, out, err);
    if (rc == ONCE_OK) rc = sweep_lanes(q, limit, err);
    if (rc == ONCE_OK) rc = sweep_waiting(q, limit, out, err);
    /* When nothing was dropped, nothing is written, not even the time. */
    if (rc == ONCE_OK && q->n_dirty == 0 && sqlite3_total_changes64(q->db->handle) == q->changes_before)
        q->settled_touched = false;
    return once__verb_end(&q->storage, rc, err);
}
