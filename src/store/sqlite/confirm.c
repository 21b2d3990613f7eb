/* Sets the time of the sqlite store when an operator confirms the wall clock. */
#include <assert.h>

#include "base/no_memory.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

/* Not before the beginning of time: the entry may be older than the time that the clock shows now. */
static int64_t moved_ms(int64_t ms, int64_t by_ms) { return ms + by_ms > 0 ? ms + by_ms : 0; }

/* When the time goes back, waiting and claimed entries keep their distance to it; otherwise they would wait for
 * years. */
static int move_entry(once_sqlite *q, once_hash id, int64_t by_ms, once_error *err)
{
    once_entry *entry;
    const int rc = once__live_load(&q->storage, id, &entry, err);
    if (rc != ONCE_OK || entry->state == ONCE_STATE_ABSENT || once_state_finished(entry->state)) return rc;
    if (entry->due_ms != ONCE_NEVER) entry->due_ms = moved_ms(entry->due_ms, by_ms);
    entry->seen_ms = moved_ms(entry->seen_ms, by_ms);
    entry->changed_ms = moved_ms(entry->changed_ms, by_ms);
    return once__live_save(&q->storage, entry, err);
}

typedef struct claim_ids {
    once_hash *ids;
    size_t n;
} claim_ids;

static bool note_id(void *user, const once_entry *entry, int64_t keep_ms)
{
    claim_ids *claims = user;
    (void)keep_ms;
    claims->ids[claims->n++] = entry->id;
    return true;
}

/* Claims that are records: they are written again with the commit. */
static int move_claims(once_sqlite *q, int64_t by_ms, once_error *err)
{
    claim_ids claims = {.ids = once_arena_alloc(&q->arena, (once__settled_claims(q->settled) + 1) * sizeof(once_hash))};
    if (!claims.ids) return once_no_memory(err, "in the sqlite store");
    int rc = once__live_each_claim(q, note_id, &claims, err);
    for (size_t i = 0; i < claims.n && rc == ONCE_OK; i++) rc = move_entry(q, claims.ids[i], by_ms, err);
    return rc;
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
    return rc == ONCE_OK ? move_claims(q, by_ms, err) : rc;
}

int once__sqlite_store_confirm_time(once_backend *store, once_error *err)
{
    once_sqlite *q = (once_sqlite *)store;
    if (!q->storage.in_tx || q->slots.n)
        return once_fail(err, ONCE_E_USAGE, "the time is set in a transaction of its own");
    const int64_t before_ms = q->storage.now_ms;
    q->storage.now_ms = once_clock_confirm(&q->storage.clock, store->env);
    q->wrote = true;
    const int64_t by_ms = q->storage.now_ms - before_ms;
    const int rc = by_ms < 0 ? move_entries(q, by_ms, err) : ONCE_OK;
    if (rc != ONCE_OK) q->storage.broken = true;
    return rc;
}
