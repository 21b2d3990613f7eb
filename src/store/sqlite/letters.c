/* Dead letters of the sqlite store: rows of once_letter. */
#include <assert.h>

#include "base/no_memory.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

static int read_letter(once_sqlite *q, sqlite3_stmt *stmt, once_arena *arena, once_letter *l, once_error *err)
{
    *l = (once_letter){.id = (uint64_t)sqlite3_column_int64(stmt, 0)};
    if (!sqlite3_column_int(stmt, 19) || !once__column_id(stmt, 1, &l->entry) ||
        !once__column_id(stmt, 22, &l->identity) || !once__letter_kind_read(sqlite3_column_int64(stmt, 6), l))
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

/* Counts a letter once more. Reads the row first: a damaged row must not get a sum that fits. */
static int letter_again(once_sqlite *q, const unsigned char same[16], const once_letter *again, once_error *err)
{
    assert(q->write && once_hash_is_zero(again->entry));
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

int once__sqlite_store_letter_put(once_storage *storage, const once_letter *l, once_hash unique, bool *fresh,
                                  once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && q->write);
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

int once__sqlite_store_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                                  once_error *err)
{
    assert(once__sqlite_of(storage)->open);
    once_sqlite *q = once__sqlite_of(storage);
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

int once__sqlite_store_letter_drop(once_storage *storage, uint64_t id, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && q->write);
    sqlite3_bind_int64(q->sql[SQL_LETTER_DROP], 1, (int64_t)id);
    q->wrote = true;
    const int rc = once__sqlite_step(q->db, q->sql[SQL_LETTER_DROP], err);
    if (rc == ONCE_OK && sqlite3_changes64(q->db->handle) > 0)
        once__present_change_row(q, PRESENT_LETTERS, (int64_t)id, true);
    return rc;
}

/* Shows the letters that the statement finds; inside a transaction. */
static int show_letters(once_sqlite *q, sqlite3_stmt *stmt, once_letter_visit *visit, void *user, once_error *err)
{
    assert(q->open);
    const bool only_ids = stmt == q->sql[SQL_LETTER_IDS];
    int rc = ONCE_OK, code = SQLITE_DONE;
    once_arena arena = {0};
    bool go_on = true;
    while (go_on && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_letter letter = {.id = (uint64_t)sqlite3_column_int64(stmt, 0)};
        once_arena_reset(&arena);
        if (!only_ids) rc = read_letter(q, stmt, &arena, &letter, err);
        if (rc == ONCE_OK) go_on = visit(user, &letter);
    }
    if (rc == ONCE_OK && go_on && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    once_arena_release(&arena);
    return rc == ONCE_OK && go_on ? once__present_check(q, PRESENT_LETTERS, PRESENT_LIMIT, err)
                                  : rc; /* the readable letters were shown */
}

int once__sqlite_store_letters(once_storage *storage, const once_letter_query *what, once_page *page,
                               once_letter_visit *visit, void *user, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && page->max > 0);
    /* A caller that selects by content gets whole letters: the sum covers the body, too. */
    sqlite3_stmt *stmt = q->sql[what->by_key ? SQL_LETTERS_OF_KEY : what->only_ids ? SQL_LETTER_IDS : SQL_LETTERS];
    once__bind_bytes(stmt, 1, what->consumer);
    if (what->by_key) once__bind_bytes(stmt, 2, what->key);
    else sqlite3_bind_int64(stmt, 2, (int64_t)page->number);
    return show_letters(q, stmt, visit, user, err);
}
