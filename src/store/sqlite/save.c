/* Saving the entries of the open transaction: marks changed slots, and writes them as rows and records.
 *
 * Invariant: the record of an open claim (settled.h) is all that the store has of its id. So whatever becomes of it,
 * the same transaction writes a record that ends it: that of its outcome, that of the claim with another lease, or,
 * where it becomes a row or is forgotten, a tombstone. */
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
    slot->settle_dirty = once_state_finished(entry->state) ||
                         (entry->state == ONCE_STATE_ABSENT && (slot->keep_ms > storage->now_ms || slot->recorded));
    return once__live_join_lane(q, slot, err);
}

static bool is_live(const once_entry *entry)
{
    return entry->state != ONCE_STATE_ABSENT && !once_state_finished(entry->state);
}

/* A claim that has nothing but its terms, as most have: it may be a record. One that already is a row stays one. */
static bool may_be_record(const once_slot *slot)
{
    const once_entry *e = &slot->entry;
    return !slot->row && e->state == ONCE_STATE_CLAIMED && !e->has_message && once_hash_is_zero(e->lane) &&
           !e->result.len && !e->reason.len && !e->history.len && !e->failing_ms;
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

/* Runs the statement on these rows. What memory has of a row is compared with the file only here: it must be there. */
static int change_rows(once_sqlite *q, enum once_sqlite_statement which, const once_rows *rows, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[which];
    unsigned char id[16];
    if (which != SQL_ENTRY_DELETE_ONE) once__rows_bind(stmt, rows);
    if (which == SQL_ENTRY_UPDATE || which == SQL_ENTRY_DELETE_ONE) {
        assert(rows->n == 1);
        once__id_write(rows->slots[0]->entry.id, id);
        sqlite3_bind_int64(stmt, 2, rows->slots[0]->row);
        once__bind_id(stmt, 3, id);
    }
    const int rc = once__sqlite_step(q->db, stmt, err);
    sqlite3_bind_null(stmt, 1); /* `rows` belongs to the caller */
    if (rc != ONCE_OK) return rc;
    return sqlite3_changes64(q->db->handle) == (int64_t)rows->n ? ONCE_OK
                                                                : once__live_damaged(q, "table once_entry", err);
}

static void note_presence(once_sqlite *q, const once_slot *slot, bool gone)
{
    unsigned char id[16];
    once__id_write(slot->entry.id, id);
    once__present_change(q, PRESENT_ENTRIES, (once_bytes){(const char *)id, 16}, gone);
}

static int delete_rows(once_sqlite *q, const once_rows *rows, once_error *err)
{
    int rc = change_rows(q, rows->n == 1 ? SQL_ENTRY_DELETE_ONE : SQL_ENTRY_DELETE, rows, err);
    for (size_t i = 0; i < rows->n && rc == ONCE_OK; i++) {
        once_slot *slot = rows->slots[i];
        if (slot->body_stored) rc = delete_body(q, slot->row, err);
        once__live_filter_remove(&q->live);
        note_presence(q, slot, true);
        slot->row = 0;
        slot->body_stored = slot->body_same = false;
    }
    return rc;
}

static int last_row(once_sqlite *q, int64_t *out, once_error *err)
{
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_LAST];
    const int code = sqlite3_step(stmt);
    *out = code == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
    sqlite3_reset(stmt);
    return code == SQLITE_ROW ? ONCE_OK : once__sqlite_fail(q->db, code, err);
}

static int insert_rows(once_sqlite *q, const once_rows *rows, once_error *err)
{
    int64_t last;
    int rc = last_row(q, &last, err);
    if (rc == ONCE_OK && last > INT64_MAX - (int64_t)rows->n) rc = once__live_damaged(q, "table once_entry", err);
    if (rc != ONCE_OK) return rc;
    if (last < 0) last = 0; /* 0 means that there is no row */
    for (size_t i = 0; i < rows->n; i++) rows->slots[i]->row = ++last;
    rc = change_rows(q, SQL_ENTRY_INSERT, rows, err);
    for (size_t i = 0; i < rows->n; i++) {
        once_slot *slot = rows->slots[i];
        if (rc != ONCE_OK) {
            slot->row = 0;
            continue;
        }
        note_presence(q, slot, false);
        once__live_filter_add(&q->live, slot->entry.id);
    }
    return rc;
}

static int update_rows(once_sqlite *q, const once_rows *rows, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < rows->n && rc == ONCE_OK; i++) {
        const once_rows one = {rows->slots + i, 1};
        rc = change_rows(q, SQL_ENTRY_UPDATE, &one, err);
    }
    return rc;
}

static int write_bodies(once_sqlite *q, const once_rows *rows, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < rows->n && rc == ONCE_OK; i++) {
        once_slot *slot = rows->slots[i];
        const bool has = slot->entry.has_message;
        if (has && !slot->body_same) rc = write_body(q, slot, err);
        if (!has && slot->body_stored) rc = delete_body(q, slot->row, err);
        slot->body_stored = slot->body_same = has;
    }
    return rc;
}

typedef enum row_change { CHANGE_NONE, CHANGE_GONE, CHANGE_SET, CHANGE_NEW, CHANGES } row_change;

static row_change change_of(const once_slot *slot, bool without_claims)
{
    if (!slot->row_dirty || (without_claims && may_be_record(slot))) return CHANGE_NONE;
    if (is_live(&slot->entry)) return slot->row ? CHANGE_SET : CHANGE_NEW;
    return slot->row ? CHANGE_GONE : CHANGE_NONE;
}

/* Collects the slots by what is to happen to their rows; those from `from` on may have changed. */
static bool find_rows(once_sqlite *q, size_t from, bool without_claims, once_rows rows[CHANGES])
{
    size_t n[CHANGES] = {0};
    once_slot **at[CHANGES];
    for (size_t i = from; i < q->n_dirty; i++) n[change_of(q->dirty[i], without_claims)]++;
    once_slot **all = once_arena_alloc(&q->arena, (q->n_dirty - from) * sizeof *all);
    if (!all) return false;
    for (int k = 0; k < CHANGES; all += n[k++]) {
        at[k] = all;
        rows[k] = (once_rows){all, n[k]};
    }
    for (size_t i = from; i < q->n_dirty; i++) *at[change_of(q->dirty[i], without_claims)]++ = q->dirty[i];
    return true;
}

/* `without_claims`: those that may be records are left out. */
static int write_rows(once_sqlite *q, bool without_claims, once_error *err)
{
    once_rows rows[CHANGES];
    size_t from = 0;
    while (from < q->n_dirty && !q->dirty[from]->row_dirty) from++;
    if (from == q->n_dirty) return ONCE_OK;
    if (!find_rows(q, from, without_claims, rows)) return once_no_memory(err, "for a batch");
    const once_rows live = {rows[CHANGE_SET].slots, rows[CHANGE_SET].n + rows[CHANGE_NEW].n};
    int rc = ONCE_OK;
    if (rows[CHANGE_GONE].n + live.n) q->rows_written = true;
    if (rows[CHANGE_GONE].n) rc = delete_rows(q, &rows[CHANGE_GONE], err);
    if (rows[CHANGE_SET].n && rc == ONCE_OK) rc = update_rows(q, &rows[CHANGE_SET], err);
    if (rows[CHANGE_NEW].n && rc == ONCE_OK) rc = insert_rows(q, &rows[CHANGE_NEW], err);
    if (rc == ONCE_OK) rc = write_bodies(q, &live, err);
    for (size_t i = from; i < q->n_dirty && rc == ONCE_OK; i++) q->dirty[i]->row_dirty = false;
    return rc;
}

int once__live_write_rows(once_sqlite *q, once_error *err) { return write_rows(q, false, err); }

/* ---- records ---- */

/* What only the record of a claim has. */
static int claim_to_record(once_sqlite *q, const once_entry *e, once_record *out, once_error *err)
{
    out->due_ms = e->due_ms;
    out->remember_ms = e->remember_ms;
    out->order = e->order;
    out->gap_ms = e->gap_ms;
    out->flags = (unsigned)once__flags_write(e);
    out->key = e->key;
    if (!e->worker.len) return ONCE_OK;
    once_name *worker = once__name_who(once__names_known(q->names), e->worker);
    return worker ? once__names_number(q->names, worker, &out->worker, err) : once_no_memory(err, "for a batch");
}

int once__live_to_record(once_sqlite *q, const once_entry *e, int64_t keep_ms, once_record *out, once_error *err)
{
    if (keep_ms < 1) keep_ms = 1; /* 0 means that there is no record */
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
    if (out->keep_ms < out->expires_ms && e->state != ONCE_STATE_CLAIMED) out->keep_ms = out->expires_ms;
    out->point = e->at.point;
    out->result = e->result;
    out->reason = e->reason;
    out->history = e->history;
    return rc == ONCE_OK && e->state == ONCE_STATE_CLAIMED ? claim_to_record(q, e, out, err) : rc;
}

/* Adds the record that this slot needs, if any. */
static int add_record(once_sqlite *q, once_slot *slot, once_error *err)
{
    const once_entry gone = {.id = slot->entry.id};
    const bool live = is_live(&slot->entry), moved = live && slot->row && slot->recorded;
    if (!slot->settle_dirty && !(live && !slot->row) && !moved) return ONCE_OK;
    assert(!live || slot->row || may_be_record(slot));
    once_record record;
    const int rc = once__live_to_record(q, moved ? &gone : &slot->entry, slot->keep_ms, &record, err);
    q->settled_touched = true;
    return rc == ONCE_OK ? once__settled_add(q->settled, &record, err) : rc;
}

typedef struct claims_left {
    once_sqlite *q;
    once_slot **slots;
    size_t n;
    bool failed;
} claims_left;

static bool leave_claim(void *user, const once_entry *entry, int64_t keep_ms)
{
    claims_left *left = user;
    once_slot *slot = once_arena_new(&left->q->arena, once_slot, 1);
    left->failed = !slot;
    if (!slot) return false;
    slot->entry = *entry;
    slot->keep_ms = keep_ms;
    left->slots[left->n++] = slot;
    return true;
}

/* The records of claims are about to be dropped: those that are open become rows. */
static int claims_to_rows(once_sqlite *q, once_error *err)
{
    claims_left left = {.q = q};
    left.slots = once_arena_alloc(&q->arena, (once__settled_claims(q->settled) + q->n_dirty + 1) * sizeof *left.slots);
    if (!left.slots) return once_no_memory(err, "for a batch");
    const int rc = once__live_each_claim(q, leave_claim, &left, err);
    if (rc != ONCE_OK || left.failed) return rc != ONCE_OK ? rc : once_no_memory(err, "for a batch");
    for (size_t i = 0; i < q->n_dirty; i++)
        if (is_live(&q->dirty[i]->entry) && !q->dirty[i]->row) left.slots[left.n++] = q->dirty[i];
    const once_rows rows = {left.slots, left.n};
    if (left.n) q->rows_written = true;
    return left.n ? insert_rows(q, &rows, err) : ONCE_OK;
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
    int rc = write_rows(q, true, err);
    if (rc == ONCE_OK) rc = write_lanes(q, err);
    for (size_t i = 0; i < q->n_dirty && rc == ONCE_OK; i++) rc = add_record(q, q->dirty[i], err);
    if (rc == ONCE_OK && q->settled_touched && once__settled_will_flush(q->settled)) rc = claims_to_rows(q, err);
    if (rc == ONCE_OK && q->settled_touched) rc = once__settled_commit(q->settled, q->storage.now_ms, err);
    return rc;
}
