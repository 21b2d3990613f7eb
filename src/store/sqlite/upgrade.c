/* The upgrade from version 1 to 2: rows of finished entries become records. schema.c has the other steps. */
#include "base/failpoint.h"
#include "store/sqlite/columns.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

/* Moves finished entries from rows to records. */
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
        if (rc == ONCE_OK && n % 4096 == 0) rc = once__settled_commit(q->settled, q->storage.now_ms, err);
    }
    if (rc == ONCE_OK && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_finalize(stmt);
    once_arena_release(&arena);
    if (rc == ONCE_OK) rc = once__settled_commit(q->settled, q->storage.now_ms, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(migrate_between)) rc = once_fail(err, ONCE_E_IO, "failpoint migrate_between");
    if (rc == ONCE_OK) rc = once__sqlite_exec(q->db, "DELETE FROM once_entry WHERE state > 4", err);
    return rc == ONCE_OK ? once__sqlite_store_write_head(q, err) : rc; /* the sums are written later */
}

int once__sqlite_store_migrate_1_to_2(once_sqlite *q, once_error *err)
{
    once_settled_head head;
    int rc = once__sqlite_store_read_head(q, &head, err);
    if (rc == ONCE_OK) rc = once__settled_refresh(q->settled, &head, err);
    if (rc != ONCE_OK) return rc;
    q->storage.clock = q->stored_clock;
    q->storage.now_ms = once_clock_step(&q->storage.clock, q->storage.store.env);
    rc = move_finished(q, err);
    once__names_end(q->names, rc == ONCE_OK);
    return rc;
}
