/* Audits of the sqlite store: rows of once_audit, one for each operator action. */
#include <assert.h>

#include "base/no_memory.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

static void bind_text(sqlite3_stmt *stmt, int at, once_bytes text)
{
    sqlite3_bind_text(stmt, at, text.len ? text.data : "", (int)text.len, SQLITE_STATIC);
}

int once__sqlite_store_audit_put(once_storage *storage, const once_audit *audit, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && q->write);
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

int once__sqlite_store_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit,
                              void *user, once_error *err)
{
    (void)page;
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && page->max > 0);
    int rc = ONCE_OK, code = SQLITE_DONE;
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
    return rc == ONCE_OK && go_on ? once__present_check(q, PRESENT_AUDITS, PRESENT_LIMIT, err) : rc;
}
