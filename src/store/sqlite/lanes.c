/* Lanes of the sqlite store: rows of once_lane, corrected by the slots of the open transaction. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/lane_record.h"
#include "store/sqlite/parts.h"

#include "base/banned.h"

static int lane_slot(once_sqlite *q, once_hash id, once_lane_slot **out, once_error *err)
{
    assert(!once_hash_is_zero(id));
    *out = once_table_get(&q->lanes, id);
    if (*out) return ONCE_OK;
    once_lane_slot *lane = once_arena_new(&q->arena, once_lane_slot, 1);
    if (!lane) return once_no_memory(err, "for a batch");
    lane->id = id;
    lane->version = ONCE_LANE_NO_VERSION;
    const int checked = once__present_check(q, PRESENT_LANES, PRESENT_LIMIT, err);
    if (checked != ONCE_OK) return checked;

    unsigned char key[16];
    sqlite3_stmt *stmt = q->sql[SQL_LANE_GET];
    once__id_write(id, key);
    once__bind_id(stmt, 1, key);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW && !sqlite3_column_int(stmt, 3)) {
        rc = once__live_damaged(q, "table once_lane", err);
    } else if (code == SQLITE_ROW) {
        lane->stored = true;
        lane->version = sqlite3_column_int64(stmt, 0);
        lane->expires_ms = sqlite3_column_int64(stmt, 1);
        if (!once__column_copy(stmt, 2, &q->arena, &lane->record)) rc = once_no_memory(err, "for a batch");
    } else if (code != SQLITE_DONE) {
        rc = once__sqlite_fail(q->db, code, err);
    }
    sqlite3_reset(stmt);
    if (rc == ONCE_OK && !once_table_put(&q->lanes, lane->id, lane)) rc = once_no_memory(err, "for a batch");
    if (rc == ONCE_OK) *out = lane;
    return rc;
}

/* Adds a slot to its lane: a slot is newer than the row of its entry, so the lane must see the slot. The lane changes
 * when the id began a new life in this transaction. */
int once__live_join_lane(once_sqlite *q, once_slot *slot, once_error *err)
{
    assert(once_table_get(&q->slots, slot->entry.id) == slot);
    once_lane_slot *lane = slot->lane;
    if (once_hash_is_zero(slot->entry.lane) || (lane && once_hash_equal(lane->id, slot->entry.lane))) return ONCE_OK;
    if (lane) {
        once_slot **at = &lane->first;
        while (*at != slot) at = &(*at)->lane_next;
        *at = slot->lane_next;
        slot->lane = NULL;
    }
    const int rc = lane_slot(q, slot->entry.lane, &lane, err);
    if (rc != ONCE_OK) return rc;
    slot->lane_next = lane->first;
    lane->first = slot;
    slot->lane = lane;
    return ONCE_OK;
}

/* The columns that are read from a row of a lane. */
typedef struct lane_row {
    once_hash id;
    int64_t order, seen_ms;
    bool found;
} lane_row;

/* The first row of `stmt` whose entry has no slot: slots are searched separately. */
static int first_row(once_sqlite *q, sqlite3_stmt *stmt, once_hash lane, lane_row *out, once_error *err)
{
    assert(!once_hash_is_zero(lane));
    unsigned char key[16];
    int code = SQLITE_DONE, rc = ONCE_OK;
    once__id_write(lane, key);
    once__bind_id(stmt, 1, key);
    *out = (lane_row){0};
    while (!out->found && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (!once__column_id(stmt, 0, &out->id)) rc = once__live_damaged(q, "table once_entry", err);
        out->found = rc == ONCE_OK && !once_table_get(&q->slots, out->id);
    }
    if (out->found) {
        out->order = sqlite3_column_int64(stmt, 1);
        out->seen_ms = sqlite3_column_int64(stmt, 2);
    }
    if (rc == ONCE_OK && !out->found && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

static int rows_known(once_sqlite *q, once_error *err)
{
    return q->live.known ? ONCE_OK : once__live_filter_build(q, err);
}

int once__live_lane(once_storage *storage, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && !once_hash_is_zero(id));
    once_lane_slot *lane;
    int rc = rows_known(q, err);
    if (rc == ONCE_OK) rc = lane_slot(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    assert(once_table_get(&q->slots, except)); /* so that no row below is the row of `except` */
    if (!once__lane_read(lane->version, lane->expires_ms, lane->record, storage->now_ms, out))
        return once__live_damaged(q, "table once_lane", err);
    for (const once_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) ||
            once_hash_equal(other->id, except))
            continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    if (once__live_no_rows(q)) return ONCE_OK;
    lane_row row;
    rc = first_row(q, q->sql[SQL_LANE_UP], id, &row, err);
    if (rc != ONCE_OK || !row.found) return rc;
    if (row.order < out->head) out->head = row.order;
    rc = first_row(q, q->sql[SQL_LANE_DOWN], id, &row, err);
    if (rc != ONCE_OK) return rc;
    if (row.found && row.order > out->tail) out->tail = row.order;
    if (out->claimed) return ONCE_OK;
    rc = first_row(q, q->sql[SQL_LANE_RUNNING], id, &row, err);
    if (row.found) out->claimed = true;
    return rc;
}

int once__live_save_lane(once_storage *storage, once_hash id, const once_lane *kept, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && q->write && !once_hash_is_zero(id));
    unsigned char record[ONCE_LANE_RECORD];
    once_lane_slot *lane;
    const int rc = lane_slot(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    lane->version = once__lane_version(kept);
    lane->expires_ms = kept->expires_ms;
    return once_arena_copy(&q->arena, once__lane_write(kept, record), &lane->record)
               ? ONCE_OK
               : once_no_memory(err, "for a batch");
}

/* Of the rows with the same order, the one that was seen first. Entries of a settled version are only judged: for them
 * reading some rows is enough. */
static int first_of_equals(once_sqlite *q, const once_lane_slot *lane, lane_row *row, once_error *err)
{
    assert(row->found);
    const bool settled = row->order <= lane->version && lane->expires_ms > q->storage.now_ms;
    lane_row first;
    sqlite3_bind_int64(q->sql[SQL_LANE_FIRST], 2, row->order);
    sqlite3_bind_int64(q->sql[SQL_LANE_FIRST], 3, settled ? ONCE_LANE_EQUALS : -1);
    const int rc = first_row(q, q->sql[SQL_LANE_FIRST], lane->id, &first, err);
    if (rc == ONCE_OK && first.found) *row = first;
    return rc;
}

int once__live_lane_head(once_storage *storage, once_hash id, once_hash *out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && !once_hash_is_zero(id));
    once_lane_slot *lane;
    int rc = rows_known(q, err);
    if (rc == ONCE_OK) rc = lane_slot(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    const once_entry *head = NULL;
    for (const once_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id)) continue;
        if (!head || once__lane_before(other->order, other->seen_ms, other->id, head)) head = other;
    }
    *out = head ? head->id : (once_hash){0};
    if (once__live_no_rows(q)) return ONCE_OK;
    lane_row row;
    rc = first_row(q, q->sql[SQL_LANE_HEAD], id, &row, err);
    if (rc != ONCE_OK || !row.found || (head && head->order < row.order)) return rc;
    rc = first_of_equals(q, lane, &row, err);
    if (rc == ONCE_OK && (!head || once__lane_before(row.order, row.seen_ms, row.id, head))) *out = row.id;
    return rc;
}

int once__live_lane_equals(once_storage *storage, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && !once_hash_is_zero(id));
    once_lane_slot *lane;
    unsigned char key[16];
    int rc = rows_known(q, err);
    if (rc == ONCE_OK) rc = lane_slot(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    *seen_ms = 0;
    for (const once_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) || other->order != order)
            continue;
        if (other->seen_ms > *seen_ms) *seen_ms = other->seen_ms;
    }
    if (once__live_no_rows(q)) return ONCE_OK;
    sqlite3_stmt *stmt = q->sql[SQL_LANE_EQUALS];
    once__id_write(id, key);
    once__bind_id(stmt, 1, key);
    sqlite3_bind_int64(stmt, 2, order);
    sqlite3_bind_int64(stmt, 3, ONCE_LANE_EQUALS);
    const int code = sqlite3_step(stmt);
    if (code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    else if (sqlite3_column_int64(stmt, 0) > *seen_ms) *seen_ms = sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    return rc;
}

static sqlite3_stmt *ask_before(once_sqlite *q, int which, const once_entry *entry, size_t most, unsigned char ids[32])
{
    assert(most > 0 && !once_hash_is_zero(entry->lane));
    sqlite3_stmt *stmt = q->sql[which];
    once__id_write(entry->lane, ids);
    once__id_write(entry->id, ids + 16);
    once__bind_id(stmt, 1, ids);
    sqlite3_bind_int64(stmt, 2, entry->order);
    sqlite3_bind_int64(stmt, 3, entry->seen_ms);
    once__bind_id(stmt, 4, ids + 16);
    sqlite3_bind_int64(stmt, 5, (int64_t)most);
    return stmt;
}

int once__live_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                           uint64_t *count, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open && max > 0 && !once_hash_is_zero(entry->lane));
    unsigned char ids[32];
    int rc = ONCE_OK;
    sqlite3_stmt *stmt = ask_before(q, SQL_LANE_BEFORE_COUNT, entry, ONCE_BEFORE_COUNTED, ids);
    int code = sqlite3_step(stmt);
    if (code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    else *count = (uint64_t)sqlite3_column_int64(stmt, 0);
    sqlite3_reset(stmt);
    if (rc != ONCE_OK) return rc;
    *n = 0;
    stmt = ask_before(q, SQL_LANE_BEFORE, entry, max, ids);
    while (rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW && *n < 2 * max)
        if (!once__column_id(stmt, 0, &out[(*n)++])) rc = once__live_damaged(q, "table once_entry", err);
    if (rc == ONCE_OK && code != SQLITE_DONE && code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}
