/* Entries of the open transaction, live rows (once_entry, once_body) and lanes (once_lane).
 *
 * Where an entry is: a row of once_entry while it is claimed, waiting, unknown or dead; a record (settled.c)
 * once it is finished. When both exist, the row is the truth: the record is what an earlier life of the id left behind.
 *
 * keep_ms of a slot or a row says until when such a leftover may exist, so that a new record, or the tombstone of a
 * forgotten entry, is kept at least as long as what it hides. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/lane_record.h"
#include "store/sqlite/sqlite.h"
#include "store/states.h"

#include "base/banned.h"

enum { LIVE_KNOWN_MAX = 4096 };

static int damaged(once_sqlite *q, const char *what, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "file '%s': %s is damaged; restore it from a backup", q->db->path, what);
}

/* ---- binding and reading ---- */

void once__bind_bytes(sqlite3_stmt *stmt, int at, once_bytes bytes)
{
    if (bytes.len) sqlite3_bind_blob64(stmt, at, bytes.data, bytes.len, SQLITE_STATIC);
    else sqlite3_bind_zeroblob(stmt, at, 0);
}

void once__bind_id(sqlite3_stmt *stmt, int at, const unsigned char id[16])
{
    sqlite3_bind_blob(stmt, at, id, 16, SQLITE_STATIC);
}

bool once__column_copy(sqlite3_stmt *stmt, int at, once_arena *arena, once_bytes *out)
{
    const void *data = sqlite3_column_blob(stmt, at);
    const once_bytes bytes = {data, (size_t)sqlite3_column_bytes(stmt, at)};
    *out = (once_bytes){0};
    return bytes.len == 0 || once_arena_copy(arena, bytes, out);
}

bool once__column_id(sqlite3_stmt *stmt, int at, once_hash *out)
{
    *out = (once_hash){0};
    if (sqlite3_column_type(stmt, at) == SQLITE_NULL) return true;
    const void *data = sqlite3_column_blob(stmt, at);
    if (!data || sqlite3_column_bytes(stmt, at) != 16) return false;
    *out = once__id_read(data);
    return true;
}

/* One byte longer in the row of an entry with a new idempotency key; behind it are the fields (core/fields.h). Programs
 * before version 5 that still run then refuse the row: they would give its message an old one. */
enum { PRINT = 16, NEW_PRINT = 17 };

static bool column_print(sqlite3_stmt *stmt, int at, bool old_key, once_entry *e)
{
    const void *data = sqlite3_column_blob(stmt, at);
    const int len = sqlite3_column_bytes(stmt, at), fixed = old_key ? PRINT : NEW_PRINT;
    if (!data || len < fixed) return false;
    e->fingerprint = once__id_read(data);
    return once_fields_read((once_bytes){(const char *)data + fixed, (size_t)(len - fixed)}, &e->fields);
}

_Static_assert(offsetof(once_slot, entry) == 0, "load gives out the entry of a slot, and save gets the slot back");

void once__live_clear(once_sqlite *q)
{
    once_table_clear(&q->slots, ONCE_TABLE_KEPT);
    once_table_clear(&q->lanes, ONCE_TABLE_KEPT);
    q->n_dirty = 0;
    if (q->arena.total > 8u << 20) once_arena_release(&q->arena);
    else once_arena_reset(&q->arena);
}

/* ---- lanes: the slots in them ---- */

static int lane_slot(once_sqlite *q, once_hash id, once_lane_slot **out, once_error *err)
{
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
        rc = damaged(q, "table once_lane", err);
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

/* A slot knows its entry better than the table does, so its lane must know the slot. The lane is another one when the
 * id began a new life in this transaction. */
static int join_lane(once_sqlite *q, once_slot *slot, once_error *err)
{
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

/* ---- which rows there are ---- */

static const char *const present_tables[PRESENTS] = {"once_entry", "once_lane", "once_fact", "once_letter",
                                                     "once_audit"};

static uint64_t present_sum(enum once_present which, once_bytes id) { return once__sum('p', which, 0, id) | 1; }

void once__present_change(once_sqlite *q, enum once_present which, once_bytes id, bool gone)
{
    const uint64_t sum = present_sum(which, id);
    q->present[which] += gone ? -sum : sum;
}

void once__present_change_row(once_sqlite *q, enum once_present which, int64_t id, bool gone)
{
    once__present_change(q, which, (once_bytes){(const char *)&id, sizeof id}, gone);
}

/* What a row is known by: a number, an id or a text, which is UTF-8 in a user's file of UTF-16, too. */
static once_bytes column_name(sqlite3_stmt *stmt, int64_t *row)
{
    const int type = sqlite3_column_type(stmt, 0);
    *row = type == SQLITE_INTEGER ? sqlite3_column_int64(stmt, 0) : 0;
    if (type == SQLITE_INTEGER) return (once_bytes){(const char *)row, sizeof *row};
    const void *name = type == SQLITE_TEXT ? (const void *)sqlite3_column_text(stmt, 0) : sqlite3_column_blob(stmt, 0);
    return (once_bytes){name, (size_t)sqlite3_column_bytes(stmt, 0)};
}

/* By the index that they are looked up by, because that is what must find them. */
int once__present_count(once_sqlite *q, enum once_present which, int64_t limit, uint64_t *out, bool *all,
                        once_error *err)
{
    static const char *const sql[PRESENTS] = {
        "SELECT id FROM once_entry ORDER BY id LIMIT ?1", "SELECT id FROM once_lane LIMIT ?1",
        "SELECT name FROM once_fact LIMIT ?1", "SELECT id FROM once_letter ORDER BY consumer, id LIMIT ?1",
        "SELECT id FROM once_audit LIMIT ?1"};
    sqlite3_stmt *stmt;
    int code, rc = once__sqlite_prepare(q->db, sql[which], &stmt, err);
    if (rc != ONCE_OK) return rc;
    int64_t n = 0, row;
    *out = 0;
    sqlite3_bind_int64(stmt, 1, limit + 1);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW && ++n <= limit) {
        *out += present_sum(which, column_name(stmt, &row));
    }
    *all = code == SQLITE_DONE;
    if (code != SQLITE_DONE && code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_finalize(stmt);
    return rc;
}

int once__present_check(once_sqlite *q, enum once_present which, int64_t limit, once_error *err)
{
    uint64_t sum;
    bool all;
    if (q->present_checked[which]) return ONCE_OK;
    const int rc = once__present_count(q, which, limit, &sum, &all, err);
    if (rc != ONCE_OK) return rc;
    if (all && sum != q->present[which])
        return once_fail(err, ONCE_E_CORRUPT,
                         "file '%s': table %s is damaged: rows are missing or have changed; restore it from a backup",
                         q->db->path, present_tables[which]);
    q->present_checked[which] = true;
    return ONCE_OK;
}

/* ---- which ids may have a row ---- */

static int filter_build(once_sqlite *q, once_error *err)
{
    once_live_filter *live = &q->live;
    const int checked = once__present_check(q, PRESENT_ENTRIES, PRESENT_LIMIT, err);
    if (checked != ONCE_OK) return checked;
    memset(live, 0, sizeof *live);
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_IDS];
    int code;
    sqlite3_bind_int(stmt, 1, LIVE_KNOWN_MAX + 1);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        once_hash id;
        if (!once__column_id(stmt, 0, &id)) {
            sqlite3_reset(stmt);
            return damaged(q, "table once_entry", err);
        }
        const unsigned bit = id.b & (8 * sizeof live->bits - 1);
        live->bits[bit / 8] = (unsigned char)(live->bits[bit / 8] | 1u << bit % 8);
        live->rows++;
    }
    const int rc = code == SQLITE_DONE ? ONCE_OK : once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    live->many = live->rows > LIVE_KNOWN_MAX;
    live->known = rc == ONCE_OK;
    return rc;
}

static bool filter_may_have(const once_live_filter *live, once_hash id)
{
    const unsigned bit = id.b & (8 * sizeof live->bits - 1);
    return live->many || (live->bits[bit / 8] >> bit % 8 & 1);
}

static void filter_add(once_live_filter *live, once_hash id)
{
    const unsigned bit = id.b & (8 * sizeof live->bits - 1);
    live->bits[bit / 8] = (unsigned char)(live->bits[bit / 8] | 1u << bit % 8);
    live->rows++;
    if (++live->added > LIVE_KNOWN_MAX) live->known = false; /* mostly of rows that are gone: build it anew */
}

static void filter_remove(once_live_filter *live)
{
    if (live->many) {
        live->known = false;
    } else if (--live->rows == 0) {
        memset(live->bits, 0, sizeof live->bits);
        live->added = 0;
    }
}

/* The table is known to be empty. */
static bool no_rows(const once_sqlite *q) { return q->live.known && !q->live.many && q->live.rows == 0; }

/* ---- loading ---- */

int once__live_read_row(once_sqlite *q, sqlite3_stmt *stmt, once_arena *arena, once_entry *e, int64_t *row,
                        int64_t *keep_ms, once_error *err)
{
    *e = (once_entry){0};
    *row = sqlite3_column_int64(stmt, 0);
    const int state = sqlite3_column_int(stmt, 2), flags = sqlite3_column_int(stmt, 12);
    if (!sqlite3_column_int(stmt, 31)) return damaged(q, "table once_entry", err);
    if (!once__column_id(stmt, 1, &e->id) || !once__column_id(stmt, 4, &e->token) ||
        !column_print(stmt, 7, !(flags & ONCE_FLAG_NEW_KEY), e) || !once__column_id(stmt, 8, &e->lane) ||
        state <= ONCE_STATE_ABSENT || state >= ONCE_STATES)
        return damaged(q, "table once_entry", err);
    e->state = (once_state)state;
    e->has_message = sqlite3_column_int(stmt, 3) != 0;
    e->attempt = (uint32_t)sqlite3_column_int64(stmt, 5);
    e->failures = (uint32_t)sqlite3_column_int64(stmt, 6);
    e->order = sqlite3_column_int64(stmt, 9);
    e->gap_ms = sqlite3_column_int64(stmt, 10);
    e->remember_ms = sqlite3_column_int64(stmt, 11);
    e->versioned = flags & ONCE_FLAG_VERSIONED;
    e->gap = flags & ONCE_FLAG_GAP;
    e->hold = flags & ONCE_FLAG_HOLD;
    e->silent = flags & ONCE_FLAG_SILENT;
    e->maybe = flags & (ONCE_FLAG_MAYBE | ONCE_FLAG_SILENT); /* older tables have only the last attempt's */
    e->natural = flags & ONCE_FLAG_NATURAL;
    e->old_key = !(flags & ONCE_FLAG_NEW_KEY);
    e->block = flags & ONCE_FLAG_BLOCK;
    e->fixed = flags & ONCE_FLAG_FIXED;
    e->run = (uint64_t)sqlite3_column_int64(stmt, 13);
    e->seen_ms = sqlite3_column_int64(stmt, 14);
    e->changed_ms = sqlite3_column_int64(stmt, 15);
    e->due_ms = sqlite3_column_int64(stmt, 16);
    e->expires_ms = sqlite3_column_int64(stmt, 17);
    *keep_ms = sqlite3_column_int64(stmt, 18);
    once_bytes *const texts[] = {&e->scope.tenant, &e->scope.consumer, &e->scope.operation, &e->key,
                                 &e->at.place,     &e->at.point,       &e->result,          &e->reason,
                                 &e->who,          &e->worker,         &e->history};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++)
        if (!once__column_copy(stmt, 19 + i, arena, texts[i])) return once_no_memory(err, "for a batch");
    e->failing_ms = sqlite3_column_int64(stmt, 30);
    if (!e->has_message) return ONCE_OK;

    sqlite3_stmt *body = q->sql[SQL_BODY_GET];
    sqlite3_bind_int64(body, 1, *row);
    const int code = sqlite3_step(body);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW && !sqlite3_column_int(body, 6)) {
        rc = damaged(q, "table once_body", err);
    } else if (code == SQLITE_ROW) {
        once_message *m = &e->message;
        m->sent_ms = sqlite3_column_type(body, 3) == SQLITE_NULL ? ONCE_NO_TIME : sqlite3_column_int64(body, 3);
        if (!once__column_copy(body, 0, arena, &m->type) || !once__column_copy(body, 1, arena, &m->headers) ||
            !once__column_copy(body, 2, arena, &m->body) || !once__column_copy(body, 4, arena, &m->at.place) ||
            !once__column_copy(body, 5, arena, &m->at.point))
            rc = once_no_memory(err, "for a batch");
    } else {
        rc = code == SQLITE_DONE ? damaged(q, "table once_body", err) : once__sqlite_fail(q->db, code, err);
    }
    sqlite3_reset(body);
    return rc;
}

static void note_own(once_slot *slot)
{
    const once_entry *e = &slot->entry;
    const char *const own[OWNS] = {[OWN_KEY] = e->key.data,
                                   [OWN_POINT] = e->at.point.data,
                                   [OWN_RESULT] = e->result.data,
                                   [OWN_REASON] = e->reason.data,
                                   [OWN_HISTORY] = e->history.data,
                                   [OWN_TYPE] = e->message.type.data,
                                   [OWN_HEADERS] = e->message.headers.data,
                                   [OWN_BODY] = e->message.body.data,
                                   [OWN_BODY_POINT] = e->message.at.point.data};
    memcpy(slot->own, own, sizeof own);
}

/* Reads the row of the slot's id, if it has one. */
static int load_row(once_sqlite *q, once_slot *slot, once_error *err)
{
    if (!filter_may_have(&q->live, slot->entry.id)) return ONCE_OK;
    unsigned char key[16];
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_GET];
    const once_hash id = slot->entry.id;
    once__id_write(id, key);
    once__bind_id(stmt, 1, key);
    const int code = sqlite3_step(stmt);
    int rc = ONCE_OK;
    if (code == SQLITE_ROW) {
        rc = once__live_read_row(q, stmt, &q->arena, &slot->entry, &slot->row, &slot->keep_ms, err);
        if (rc == ONCE_OK && !once_hash_equal(slot->entry.id, id))
            rc = damaged(q, "the index of once_entry", err); /* another entry's row */
        slot->body_stored = slot->body_same = slot->entry.has_message;
        if (rc == ONCE_OK) note_own(slot);
        if (rc == ONCE_OK) rc = join_lane(q, slot, err);
    } else if (code != SQLITE_DONE) {
        rc = once__sqlite_fail(q->db, code, err);
    }
    sqlite3_reset(stmt);
    return rc;
}

int once__live_is_newer(once_sqlite *q, once_hash id, bool *out, once_error *err)
{
    const once_slot *slot = once_table_get(&q->slots, id);
    int rc = q->live.known ? ONCE_OK : filter_build(q, err);
    *out = slot && (slot->row_dirty || slot->settle_dirty || slot->row);
    if (rc != ONCE_OK || *out || !filter_may_have(&q->live, id)) return rc;
    unsigned char key[16];
    sqlite3_stmt *stmt = q->sql[SQL_ENTRY_GET];
    once__id_write(id, key);
    once__bind_id(stmt, 1, key);
    const int code = sqlite3_step(stmt);
    *out = code == SQLITE_ROW;
    if (code != SQLITE_ROW && code != SQLITE_DONE) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}

int once__live_from_record(once_sqlite *q, const once_record *r, once_entry *out, once_error *err)
{
    const once_name *scope, *place, *run, *who = NULL;
    int rc = once__names_find(q->names, r->scope, 'S', &scope, err);
    if (rc == ONCE_OK) rc = once__names_find(q->names, r->place, 'P', &place, err);
    if (rc == ONCE_OK) rc = once__names_find(q->names, r->run, 'R', &run, err);
    if (rc == ONCE_OK && r->who) rc = once__names_find(q->names, r->who, 'W', &who, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_entry){
        .id = r->id,
        .state = r->state,
        .token = r->token,
        .attempt = r->attempt,
        .failures = r->failures,
        .fingerprint = r->fingerprint,
        .fields = r->fields,
        .old_key = r->old_key,
        .run = run->run,
        .seen_ms = r->seen_ms,
        .changed_ms = r->changed_ms,
        .due_ms = ONCE_NEVER,
        .expires_ms = r->expires_ms,
        .scope = scope->scope,
        .at = {place->bytes, r->point},
        .result = r->result,
        .reason = r->reason,
        .who = who ? who->bytes : (once_bytes){0},
        .history = r->history,
    };
    return ONCE_OK;
}

static int compare_slots(const void *left, const void *right)
{
    return once_hash_compare((*(once_slot *const *)left)->entry.id, (*(once_slot *const *)right)->entry.id);
}

/* Fills the slots, which are new, from rows and records. */
static int load_slots(once_sqlite *q, once_slot **slots, size_t n, once_error *err)
{
    int rc = ONCE_OK;
    if (!q->live.known) rc = filter_build(q, err);
    size_t left = 0;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = load_row(q, slots[i], err);
        if (!slots[i]->row) slots[left++] = slots[i];
    }
    if (rc != ONCE_OK || left == 0) return rc;
    qsort(slots, left, sizeof *slots, compare_slots);

    once_hash one, *ids = left == 1 ? &one : once_arena_alloc(&q->arena, left * sizeof *ids);
    once_record single, *records = left == 1 ? &single : once_arena_alloc(&q->arena, left * sizeof *records);
    if (!ids || !records) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < left; i++) ids[i] = slots[i]->entry.id;
    rc = once__settled_find(q->settled, ids, left, q->shelf.now_ms, records, &q->arena, err);
    for (size_t i = 0; i < left && rc == ONCE_OK; i++) {
        slots[i]->keep_ms = records[i].keep_ms;
        if (records[i].state == ONCE_STATE_ABSENT) continue;
        rc = once__live_from_record(q, &records[i], &slots[i]->entry, err);
        note_own(slots[i]);
    }
    return rc;
}

static once_slot *slot_new(once_sqlite *q, once_hash id)
{
    once_slot *slot = once_arena_new(&q->arena, once_slot, 1);
    if (!slot) return NULL;
    slot->entry.id = id;
    return once_table_put(&q->slots, slot->entry.id, slot) ? slot : NULL;
}

int once__live_prefetch(once_shelf *shelf, const once_request *const *requests, size_t n, once_purpose purpose,
                        once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    if (n < 2 || (purpose != ONCE_FOR_CLAIM && purpose != ONCE_FOR_ACCEPT))
        return ONCE_OK; /* the others have loaded theirs */
    once_slot **fresh = once_arena_alloc(&q->arena, n * sizeof *fresh);
    if (!fresh) return once_no_memory(err, "for a batch");
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (once_table_get(&q->slots, requests[i]->id)) continue;
        if (!(fresh[count++] = slot_new(q, requests[i]->id))) return once_no_memory(err, "for a batch");
    }
    return load_slots(q, fresh, count, err);
}

int once__live_load(once_shelf *shelf, once_hash id, once_entry **out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    once_slot *slot = once_table_get(&q->slots, id);
    if (!slot) {
        slot = slot_new(q, id);
        if (!slot) return once_no_memory(err, "for a batch");
        once_slot *one[1] = {slot};
        const int rc = load_slots(q, one, 1, err);
        if (rc != ONCE_OK) return rc;
    }
    *out = &slot->entry;
    return ONCE_OK;
}

/* ---- saving ---- */

static bool own(once_sqlite *q, once_slot *slot, int which, once_bytes *bytes)
{
    if (bytes->len == 0) *bytes = (once_bytes){0};
    else if (bytes->data != slot->own[which] && !once_arena_copy(&q->arena, *bytes, bytes)) return false;
    slot->own[which] = bytes->data;
    return true;
}

/* Copies what the entry points to, as far as it is not ours already. */
static bool own_all(once_sqlite *q, once_slot *slot)
{
    once_entry *e = &slot->entry;
    const once_name *scope = once__names_scope(q->names, &e->scope);
    const once_name *place = once__names_place(q->names, e->at.place);
    const once_name *who = once__names_who(q->names, e->who);
    const once_name *worker = e->worker.len ? once__names_who(q->names, e->worker) : who;
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
    const once_name *body_place = once__names_place(q->names, e->message.at.place);
    if (!body_place) return false;
    e->message.at.place = body_place->bytes;
    const bool bare =
        e->message.body.len == 0 && e->message.at.point.len == 0; /* then nothing tells it from the one before */
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

int once__live_save(once_shelf *shelf, once_entry *entry, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    once_slot *slot = (once_slot *)entry;
    assert(once_table_get(&q->slots, entry->id) == slot);
    if (!q->write) return once_fail(err, ONCE_E_BUG, "a change inside a transaction that only reads");
    if (q->db->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    if (!mark_dirty(q, slot) || !own_all(q, slot)) return once_no_memory(err, "for a batch");
    slot->row_dirty = true;
    slot->settle_dirty =
        once_state_finished(entry->state) || (entry->state == ONCE_STATE_ABSENT && slot->keep_ms > shelf->now_ms);
    return join_lane(q, slot, err);
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

static int write_row(once_sqlite *q, once_slot *slot, once_error *err)
{
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
    sqlite3_bind_int(stmt, 3, (int)e->state);
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
    sqlite3_bind_int(stmt, 13,
                     (e->versioned ? ONCE_FLAG_VERSIONED : 0) | (e->gap ? ONCE_FLAG_GAP : 0) |
                         (e->hold ? ONCE_FLAG_HOLD : 0) | (e->silent ? ONCE_FLAG_SILENT : 0) |
                         (e->natural ? ONCE_FLAG_NATURAL : 0) | (e->maybe ? ONCE_FLAG_MAYBE : 0) |
                         (e->old_key ? 0 : ONCE_FLAG_NEW_KEY) | (e->block ? ONCE_FLAG_BLOCK : 0) |
                         (e->fixed ? ONCE_FLAG_FIXED : 0));
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
    if (rc != ONCE_OK) return rc;
    if (!slot->row) {
        slot->row = sqlite3_last_insert_rowid(q->db->handle);
        once__present_change(q, PRESENT_ENTRIES, (once_bytes){(const char *)id, 16}, false);
        filter_add(&q->live, e->id);
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
    if (rc == ONCE_OK && slot->body_stored) rc = delete_body(q, slot->row, err);
    filter_remove(&q->live);
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
    once_name *scope = once__names_scope(q->names, &e->scope), *place = once__names_place(q->names, e->at.place);
    once_name *run = once__names_run(q->names, e->run), *who = once__names_who(q->names, e->who);
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
    if (rc == ONCE_OK && q->settled_touched) rc = once__settled_commit(q->settled, q->shelf.now_ms, err);
    return rc;
}

/* ---- lanes ---- */

/* What is asked of a row in a lane. */
typedef struct lane_row {
    once_hash id;
    int64_t order, seen_ms;
    bool found;
} lane_row;

/* The first row that `stmt` finds whose entry is not held as a slot: slots are looked at by themselves. */
static int first_row(once_sqlite *q, sqlite3_stmt *stmt, once_hash lane, lane_row *out, once_error *err)
{
    unsigned char key[16];
    int code = SQLITE_DONE, rc = ONCE_OK;
    once__id_write(lane, key);
    once__bind_id(stmt, 1, key);
    *out = (lane_row){0};
    while (!out->found && rc == ONCE_OK && (code = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (!once__column_id(stmt, 0, &out->id)) rc = damaged(q, "table once_entry", err);
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

static int rows_known(once_sqlite *q, once_error *err) { return q->live.known ? ONCE_OK : filter_build(q, err); }

int once__live_lane(once_shelf *shelf, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
    once_lane_slot *lane;
    int rc = rows_known(q, err);
    if (rc == ONCE_OK) rc = lane_slot(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    assert(once_table_get(&q->slots, except)); /* so that no row below is its own */
    if (!once__lane_read(lane->version, lane->expires_ms, lane->record, shelf->now_ms, out))
        return damaged(q, "table once_lane", err);
    for (const once_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) ||
            once_hash_equal(other->id, except))
            continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    if (no_rows(q)) return ONCE_OK;
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

int once__live_save_lane(once_shelf *shelf, once_hash id, const once_lane *kept, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
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

/* Among the rows with the same order the one that was seen first. What is settled is only judged: there some of them
 * will do. */
static int first_of_equals(once_sqlite *q, const once_lane_slot *lane, lane_row *row, once_error *err)
{
    const bool settled = row->order <= lane->version && lane->expires_ms > q->shelf.now_ms;
    lane_row first;
    sqlite3_bind_int64(q->sql[SQL_LANE_FIRST], 2, row->order);
    sqlite3_bind_int64(q->sql[SQL_LANE_FIRST], 3, settled ? ONCE_LANE_EQUALS : -1);
    const int rc = first_row(q, q->sql[SQL_LANE_FIRST], lane->id, &first, err);
    if (rc == ONCE_OK && first.found) *row = first;
    return rc;
}

int once__live_lane_head(once_shelf *shelf, once_hash id, once_hash *out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
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
    if (no_rows(q)) return ONCE_OK;
    lane_row row;
    rc = first_row(q, q->sql[SQL_LANE_HEAD], id, &row, err);
    if (rc != ONCE_OK || !row.found || (head && head->order < row.order)) return rc;
    rc = first_of_equals(q, lane, &row, err);
    if (rc == ONCE_OK && (!head || once__lane_before(row.order, row.seen_ms, row.id, head))) *out = row.id;
    return rc;
}

int once__live_lane_equals(once_shelf *shelf, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
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
    if (no_rows(q)) return ONCE_OK;
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

int once__live_lane_before(once_shelf *shelf, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                           uint64_t *count, once_error *err)
{
    once_sqlite *q = once__sqlite_of(shelf);
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
        if (!once__column_id(stmt, 0, &out[(*n)++])) rc = damaged(q, "table once_entry", err);
    if (rc == ONCE_OK && code != SQLITE_DONE && code != SQLITE_ROW) rc = once__sqlite_fail(q->db, code, err);
    sqlite3_reset(stmt);
    return rc;
}
