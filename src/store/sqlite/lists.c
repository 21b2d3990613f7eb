/* Lists and counts of the sqlite store: from rows, and from records of finished entries and of claims. */
#include <assert.h>

#include "store/sqlite/parts.h"

#include "base/banned.h"

/* A walk over all finished entries, from front to back; it cannot start in the middle. */
typedef struct finished_list {
    once_sqlite *q;
    once_state state;
    once_entry_visit *visit;
    void *user;
    int rc;
    once_error *err;
    bool over;
} finished_list;

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
    list->over = !list->visit(list->user, &entry);
    return !list->over;
}

static int list_finished(once_sqlite *q, finished_list *list)
{
    assert(once_state_finished(list->state));
    for (size_t i = 0; i < q->n_dirty && !list->over; i++) /* entries that this transaction settled */
        list->over = !list->visit(list->user, &q->dirty[i]->entry);
    if (list->over) return ONCE_OK;
    const int rc = once__settled_each(q->settled, q->storage.now_ms, show_finished, list, list->err);
    return rc == ONCE_OK ? list->rc : rc;
}

/* The claims that are records; a lease that is over makes an entry of another state of them. */
typedef struct claim_list {
    once_sqlite *q;
    once_bytes consumer;
    once_state state;
    once_entry_visit *visit;
    void *user;
    once_stats *stats;
} claim_list;

static bool show_claim(void *user, const once_entry *entry, int64_t keep_ms)
{
    const claim_list *list = user;
    (void)keep_ms;
    const bool listed = once_bytes_equal(entry->scope.consumer, list->consumer) &&
                        once_entry_state_at(entry, list->q->storage.now_ms) == list->state;
    return !listed || list->visit(list->user, entry);
}

static bool count_claim(void *user, const once_entry *entry, int64_t keep_ms)
{
    const claim_list *list = user;
    (void)keep_ms;
    if (!once_bytes_equal(entry->scope.consumer, list->consumer)) return true;
    const once_state state = once_entry_state_at(entry, list->q->storage.now_ms);
    once__stats_add(list->stats, state, 1, state == ONCE_STATE_CLAIMED ? entry->due_ms : ONCE_NEVER);
    return true;
}

static int list_rows(once_sqlite *q, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                     once_error *err)
{
    assert(!once_state_finished(state));
    once_arena arena = {0};
    sqlite3_stmt *stmt = q->sql[SQL_LIST];
    int rc = ONCE_OK, code = SQLITE_DONE;
    bool go_on = true;
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int(stmt, 2, (int)state);
    sqlite3_bind_int64(stmt, 3, q->storage.now_ms);
    while (go_on && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_entry entry;
        int64_t row, keep_ms;
        once_arena_reset(&arena);
        rc = once__live_read_row(q, stmt, &arena, &entry, &row, &keep_ms, err);
        if (rc == ONCE_OK) go_on = visit(user, &entry);
    }
    if (rc == ONCE_OK && go_on && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    once_arena_release(&arena);
    claim_list claims = {.q = q, .consumer = consumer, .state = state, .visit = visit, .user = user};
    return rc == ONCE_OK && go_on ? once__live_each_claim(q, show_claim, &claims, err) : rc;
}

int once__sqlite_store_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                            once_entry_visit *visit, void *user, once_error *err)
{
    (void)page;
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && page->max > 0);
    const int rc = once__live_write_rows(q, err); /* the query must see what was saved */
    if (rc != ONCE_OK) return rc;
    finished_list list = {.q = q, .state = state, .visit = visit, .user = user, .err = err};
    return once_state_finished(state) ? list_finished(q, &list) : list_rows(q, consumer, state, visit, user, err);
}

int once__sqlite_store_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open);
    const int rc = once__live_write_rows(q, err);
    if (rc != ONCE_OK) return rc;
    sqlite3_stmt *stmt = q->sql[SQL_STATS];
    int code;
    once__bind_bytes(stmt, 1, consumer);
    sqlite3_bind_int64(stmt, 2, q->storage.now_ms);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        const once_state state = (once_state)sqlite3_column_int(stmt, 0);
        const bool due = sqlite3_column_type(stmt, 2) != SQLITE_NULL;
        once__stats_add(out, state, (uint64_t)sqlite3_column_int64(stmt, 1),
                        due ? sqlite3_column_int64(stmt, 2) : ONCE_NEVER);
    }
    sqlite3_reset(stmt);
    if (code != SQLITE_DONE) return once__sqlite_fail(q->db, code, err);
    claim_list claims = {.q = q, .consumer = consumer, .stats = out};
    const int counted = once__live_each_claim(q, count_claim, &claims, err);
    if (counted != ONCE_OK) return counted;

    stmt = q->sql[SQL_STATS_LETTERS];
    once__bind_bytes(stmt, 1, consumer);
    code = sqlite3_step(stmt);
    if (code == SQLITE_ROW) out->dead = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return code == SQLITE_ROW ? ONCE_OK : once__sqlite_fail(q->db, code, err);
}

int once__sqlite_store_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    assert(once__sqlite_of(storage)->open);
    once_sqlite *q = (once_sqlite *)storage;
    sqlite3_stmt *stmt = q->sql[SQL_WAITING_SIZE];
    once__bind_bytes(stmt, 1, consumer);
    const int code = sqlite3_step(stmt);
    if (code == SQLITE_ROW)
        *out = (once_waiting_size){(uint64_t)sqlite3_column_int64(stmt, 0), (uint64_t)sqlite3_column_int64(stmt, 1)};
    sqlite3_reset(stmt);
    return code == SQLITE_ROW ? ONCE_OK : once__sqlite_fail(q->db, code, err);
}
