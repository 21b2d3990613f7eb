/* Saving the entries of the open transaction: marks changed slots, and writes them as rows and records. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

static bool own(once_sqlite *q, once_slot *slot, int which, once_bytes *bytes)
{
    if (bytes->len == 0) *bytes = (once_bytes){0};
    else if (bytes->data != slot->own[which] && !once_arena_copy(&q->arena, *bytes, bytes)) return false;
    slot->own[which] = bytes->data;
    return true;
}

/* Copies the bytes that the entry points to, unless the slot owns them already. */
static bool own_all(once_sqlite *q, once_slot *slot)
{
    once_entry *e = &slot->entry;
    once_name_table *names = once__names_known(q->names);
    const once_name *scope = once__name_scope(names, &e->scope);
    const once_name *place = once__name_place(names, e->at.place);
    const once_name *who = once__name_who(names, e->who);
    const once_name *worker = e->worker.len ? once__name_who(names, e->worker) : who;
    if (!scope || !place || !who || !worker) return false;
    e->scope = scope->scope;
    e->at.place = place->bytes;
    e->who = who->bytes;
    if (e->worker.len) e->worker = worker->bytes;
    if (!own(q, slot, OWN_KEY, &e->key) || !own(q, slot, OWN_POINT, &e->at.point) ||
        !own(q, slot, OWN_RESULT, &e->result) || !own(q, slot, OWN_REASON, &e->reason) ||
        !own(q, slot, OWN_HISTORY, &e->history))
        return false;
    if (!e->has_message) {
        slot->body_same = false;
        return true;
    }
    const once_name *body_place = once__name_place(names, e->message.at.place);
    if (!body_place) return false;
    e->message.at.place = body_place->bytes;
    const bool bare =
        e->message.body.len == 0 && e->message.at.point.len == 0; /* then no pointer tells this message from the one
                                                                   * before */
    if (bare || slot->own[OWN_BODY] != e->message.body.data || slot->own[OWN_BODY_POINT] != e->message.at.point.data)
        slot->body_same = false;
    return own(q, slot, OWN_TYPE, &e->message.type) && own(q, slot, OWN_HEADERS, &e->message.headers) &&
           own(q, slot, OWN_BODY, &e->message.body) && own(q, slot, OWN_BODY_POINT, &e->message.at.point);
}

static bool mark_dirty(once_sqlite *q, once_slot *slot)
{
    if (slot->listed) return true;
    if (q->n_dirty == q->dirty_size) {
        const size_t more = q->dirty_size ? q->dirty_size * 2 : 1024;
        void *grown = realloc(q->dirty, more * sizeof *q->dirty);
        if (!grown) return false;
        q->dirty = grown;
        q->dirty_size = more;
    }
    q->dirty[q->n_dirty++] = slot;
    slot->listed = true;
    return true;
}

int once__live_save(once_storage *storage, once_entry *entry, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open);
    once_slot *slot = (once_slot *)entry;
    assert(once_table_get(&q->slots, entry->id) == slot);
    if (!q->write) return once_fail(err, ONCE_E_BUG, "a change was made inside a transaction that only reads");
    if (q->db->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb was called inside a savepoint");
    if (!mark_dirty(q, slot) || !own_all(q, slot)) return once_no_memory(err, "for a batch");
    slot->row_dirty = true;
    slot->settle_dirty =
        once_state_finished(entry->state) || (entry->state == ONCE_STATE_ABSENT && slot->keep_ms > storage->now_ms);
    return once__live_join_lane(q, slot, err);
}

static bool is_live(const once_entry *entry)
{
    return entry->state != ONCE_STATE_ABSENT && !once_state_finished(entry->state);
}

static int write_body(once_sqlite *q, once_slot *slot, once_error *err)
{
    const once_message *m = &slot->entry.message;
    sqlite3_stmt *stmt = q->sql[SQL_BODY_PUT];
    sqlite3_bind_int64(stmt, 1, slot->row);
    once__bind_bytes(stmt, 2, m->type);
    once__bind_bytes(stmt, 3, m->headers);
    once__bind_bytes(stmt, 4, m->body);
    if (m->sent_ms == ONCE_NO_TIME) sqlite3_bind_null(stmt, 5);
    else sqlite3_bind_int64(stmt, 5, m->sent_ms);
    once__bind_bytes(stmt, 6, m->at.place);
    once__bind_bytes(stmt, 7, m->at.point);
    return once__sqlite_step(q->db, stmt, err);
}

static int delete_body(once_sqlite *q, int64_t row, once_error *err)
{
    sqlite3_bind_int64(q->sql[SQL_BODY_DELETE], 1, row);
    return once__sqlite_step(q->db, q->sql[SQL_BODY_DELETE], err);
}

/* Whether the statement changed the row: what memory has of a row is compared with the file only here. */
static int one_row(once_sqlite *q, once_error *err)
{
    return sqlite3_changes64(q->db->handle) == 1 ? ONCE_OK : once__live_damaged(q, "table once_entry", err);
}

static int write_row(once_sqlite *q, once_slot *slot, once_error *err)
{
    assert(!once_state_finished(slot->entry.state) && slot->entry.state != ONCE_STATE_ABSENT);
    const once_entry *e = &slot->entry;
    sqlite3_stmt *stmt = q->sql[slot->row ? SQL_ENTRY_UPDATE : SQL_ENTRY_INSERT];
    unsigned char id[16], token[16], fingerprint[NEW_PRINT + ONCE_FIELDS_BYTES] = {0}, lane[16];
    const size_t fixed = e->old_key ? PRINT : NEW_PRINT,
                 print_len = fixed + once_fields_write(&e->fields, fingerprint + fixed);
    once__id_write(e->id, id);
    once__id_write(e->token, token);
    once__id_write(e->fingerprint, fingerprint);
    once__id_write(e->lane, lane);
    if (slot->row) sqlite3_bind_int64(stmt, 1, slot->row);
    else sqlite3_bind_null(stmt, 1);
    once__bind_id(stmt, 2, id);
    sqlite3_bind_int(stmt, 3, once__state_write(e));
    sqlite3_bind_int(stmt, 4, e->has_message);
    once__bind_id(stmt, 5, token);
    sqlite3_bind_int64(stmt, 6, e->attempt);
    sqlite3_bind_int64(stmt, 7, e->failures);
    sqlite3_bind_blob(stmt, 8, fingerprint, (int)print_len, SQLITE_STATIC);
    if (once_hash_is_zero(e->lane)) sqlite3_bind_null(stmt, 9);
    else once__bind_id(stmt, 9, lane);
    sqlite3_bind_int64(stmt, 10, e->order);
    sqlite3_bind_int64(stmt, 11, e->gap_ms);
    sqlite3_bind_int64(stmt, 12, e->remember_ms);
    sqlite3_bind_int(stmt, 13, once__flags_write(e));
    sqlite3_bind_int64(stmt, 14, (int64_t)e->run);
    sqlite3_bind_int64(stmt, 15, e->seen_ms);
    sqlite3_bind_int64(stmt, 16, e->changed_ms);
    sqlite3_bind_int64(stmt, 17, e->due_ms);
    sqlite3_bind_int64(stmt, 18, e->expires_ms);
    sqlite3_bind_int64(stmt, 19, slot->keep_ms);
    const once_bytes texts[] = {e->scope.tenant, e->scope.consumer, e->scope.operation, e->key,
                                e->at.place,     e->at.point,       e->result,          e->reason,
                                e->who,          e->worker,         e->history};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) once__bind_bytes(stmt, 20 + i, texts[i]);
    sqlite3_bind_int64(stmt, 31, e->failing_ms);

    int rc = once__sqlite_step(q->db, stmt, err);
    if (rc == ONCE_OK) rc = one_row(q, err);
    if (rc != ONCE_OK) return rc;
    if (!slot->row) {
        slot->row = sqlite3_last_insert_rowid(q->db->handle);
        once__present_change(q, PRESENT_ENTRIES, (once_bytes){(const char *)id, 16}, false);
        once__live_filter_add(&q->live, e->id);
    }
    if (e->has_message && !slot->body_same) rc = write_body(q, slot, err);
    if (!e->has_message && slot->body_stored) rc = delete_body(q, slot->row, err);
    slot->body_stored = slot->body_same = e->has_message;
    return rc;
}

static int delete_row(once_sqlite *q, once_slot *slot, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_DELETE];
    sqlite3_bind_int64(stmt, 1, slot->row);
    int rc = once__sqlite_step(q->db, stmt, err);
    if (rc == ONCE_OK) rc = one_row(q, err);
    if (rc == ONCE_OK && slot->body_stored) rc = delete_body(q, slot->row, err);
    once__live_filter_remove(&q->live);
    unsigned char id[16];
    once__id_write(slot->entry.id, id);
    once__present_change(q, PRESENT_ENTRIES, (once_bytes){(const char *)id, 16}, true);
    slot->row = 0;
    slot->body_stored = slot->body_same = false;
    return rc;
}

int once__live_write_rows(once_sqlite *q, once_error *err)
{
    for (size_t i = 0; i < q->n_dirty; i++) {
        once_slot *slot = q->dirty[i];
        if (!slot->row_dirty) continue;
        int rc = ONCE_OK;
        if (is_live(&slot->entry) || slot->row) {
            q->rows_written = true;
            rc = is_live(&slot->entry) ? write_row(q, slot, err) : delete_row(q, slot, err);
        }
        if (rc != ONCE_OK) return rc;
        slot->row_dirty = false;
    }
    return ONCE_OK;
}

int once__live_to_record(once_sqlite *q, const once_entry *e, int64_t keep_ms, once_record *out, once_error *err)
{
    *out = (once_record){.id = e->id, .state = e->state, .expires_ms = keep_ms, .keep_ms = keep_ms};
    if (e->state == ONCE_STATE_ABSENT) return ONCE_OK;
    once_name_table *names = once__names_known(q->names);
    once_name *scope = once__name_scope(names, &e->scope), *place = once__name_place(names, e->at.place);
    once_name *run = once__name_run(names, e->run), *who = once__name_who(names, e->who);
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a batch");
    int rc = once__names_number(q->names, scope, &out->scope, err);
    if (rc == ONCE_OK) rc = once__names_number(q->names, place, &out->place, err);
    if (rc == ONCE_OK) rc = once__names_number(q->names, run, &out->run, err);
    if (rc == ONCE_OK && e->who.len) rc = once__names_number(q->names, who, &out->who, err);
    out->token = e->token;
    out->fingerprint = e->fingerprint;
    out->fields = e->fields;
    out->attempt = e->attempt;
    out->failures = e->failures;
    out->old_key = e->old_key;
    out->seen_ms = e->seen_ms;
    out->changed_ms = e->changed_ms;
    out->expires_ms = e->expires_ms;
    if (out->keep_ms < out->expires_ms) out->keep_ms = out->expires_ms;
    out->point = e->at.point;
    out->result = e->result;
    out->reason = e->reason;
    out->history = e->history;
    return rc;
}

static int write_lanes(once_sqlite *q, once_error *err)
{
    once_lane_slot *lane;
    for (size_t at = 0; q->lanes.n && (lane = once_table_next(&q->lanes, &at));) {
        if (!lane->dirty) continue;
        unsigned char id[16];
        sqlite3_stmt *stmt = q->sql[SQL_LANE_PUT];
        once__id_write(lane->id, id);
        once__bind_id(stmt, 1, id);
        sqlite3_bind_int64(stmt, 2, lane->version);
        sqlite3_bind_int64(stmt, 3, lane->expires_ms);
        once__bind_bytes(stmt, 4, lane->record);
        const int rc = once__sqlite_step(q->db, stmt, err);
        if (rc != ONCE_OK) return rc;
        if (!lane->stored) once__present_change(q, PRESENT_LANES, (once_bytes){(const char *)id, 16}, false);
        lane->stored = true;
        lane->dirty = false;
        q->wrote = true;
    }
    return ONCE_OK;
}

int once__live_write_all(once_sqlite *q, once_error *err)
{
    assert(q->open && q->write);
    int rc = once__live_write_rows(q, err);
    if (rc == ONCE_OK) rc = write_lanes(q, err);
    for (size_t i = 0; i < q->n_dirty && rc == ONCE_OK; i++) {
        once_slot *slot = q->dirty[i];
        once_record record;
        if (!slot->settle_dirty) continue;
        rc = once__live_to_record(q, &slot->entry, slot->keep_ms, &record, err);
        q->settled_touched = true;
        if (rc == ONCE_OK) rc = once__settled_add(q->settled, &record, err);
    }
    if (rc == ONCE_OK && q->settled_touched) rc = once__settled_commit(q->settled, q->storage.now_ms, err);
    return rc;
}
