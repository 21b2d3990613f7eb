/* Loading the entries of the open transaction from rows (once_entry, once_body) and records.
 *
 * Where an entry is: a row of once_entry while it is claimed, waiting, unknown or dead; a record (settled.c) once it is
 * finished. A claim that has nothing but its terms is a record, too, at first. When both exist, the row is valid: the
 * record is left from an earlier life of the id. It is never an open claim (save.c).
 *
 * Invariant: keep_ms of a slot or a row is the time until which such an old record may exist. A new record, or the
 * tombstone of a forgotten entry, is kept at least as long as the record that it hides. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/sqlite/parts.h"
#include "store/states.h"

#include "base/banned.h"

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

int once__live_read_row(once_sqlite *q, sqlite3_stmt *stmt, once_arena *arena, once_entry *e, int64_t *row,
                        int64_t *keep_ms, once_error *err)
{
    *e = (once_entry){0};
    *row = sqlite3_column_int64(stmt, 0);
    const int state = sqlite3_column_int(stmt, 2), flags = sqlite3_column_int(stmt, 12);
    if (!sqlite3_column_int(stmt, 31)) return once__live_damaged(q, "table once_entry", err);
    if (!once__column_id(stmt, 1, &e->id) || !once__column_id(stmt, 4, &e->token) ||
        !column_print(stmt, 7, !(flags & ONCE_FLAG_NEW_KEY), e) || !once__column_id(stmt, 8, &e->lane) ||
        state <= ONCE_STATE_ABSENT || state >= ONCE_STATES)
        return once__live_damaged(q, "table once_entry", err);
    once__state_read(e, state, flags);
    e->has_message = sqlite3_column_int(stmt, 3) != 0;
    e->attempt = (uint32_t)sqlite3_column_int64(stmt, 5);
    e->failures = (uint32_t)sqlite3_column_int64(stmt, 6);
    e->order = sqlite3_column_int64(stmt, 9);
    e->gap_ms = sqlite3_column_int64(stmt, 10);
    e->remember_ms = sqlite3_column_int64(stmt, 11);
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
        rc = once__live_damaged(q, "table once_body", err);
    } else if (code == SQLITE_ROW) {
        once_message *m = &e->message;
        m->sent_ms = sqlite3_column_type(body, 3) == SQLITE_NULL ? ONCE_NO_TIME : sqlite3_column_int64(body, 3);
        if (!once__column_copy(body, 0, arena, &m->type) || !once__column_copy(body, 1, arena, &m->headers) ||
            !once__column_copy(body, 2, arena, &m->body) || !once__column_copy(body, 4, arena, &m->at.place) ||
            !once__column_copy(body, 5, arena, &m->at.point))
            rc = once_no_memory(err, "for a batch");
    } else {
        rc = code == SQLITE_DONE ? once__live_damaged(q, "table once_body", err) : once__sqlite_fail(q->db, code, err);
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

/* Reads the row of the slot's id, if there is one. */
static int load_row(once_sqlite *q, once_slot *slot, once_error *err)
{
    if (once__kept_take(q, slot)) {
        note_own(slot);
        return once__live_join_lane(q, slot, err);
    }
    const int built = q->live.known ? ONCE_OK : once__live_filter_build(q, err);
    if (built != ONCE_OK || !once__live_filter_may_have(&q->live, slot->entry.id)) return built;
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
            rc = once__live_damaged(q, "the index of once_entry", err); /* the index led to the row of another entry */
        slot->body_stored = slot->body_same = slot->entry.has_message;
        if (rc == ONCE_OK) note_own(slot);
        if (rc == ONCE_OK) rc = once__live_join_lane(q, slot, err);
    } else if (code != SQLITE_DONE) {
        rc = once__sqlite_fail(q->db, code, err);
    }
    sqlite3_reset(stmt);
    return rc;
}

int once__live_is_newer(once_sqlite *q, once_hash id, bool *out, once_error *err)
{
    const once_slot *slot = once_table_get(&q->slots, id);
    int rc = q->live.known ? ONCE_OK : once__live_filter_build(q, err);
    *out = slot && (slot->row_dirty || slot->settle_dirty || slot->row);
    if (rc != ONCE_OK || *out || !once__live_filter_may_have(&q->live, id)) return rc;
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
    const once_name *worker = NULL;
    if (r->worker) rc = once__names_find(q->names, r->worker, 'W', &worker, err);
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
    if (r->state != ONCE_STATE_CLAIMED) return ONCE_OK;
    once__state_read(out, ONCE_STATE_CLAIMED, (int)r->flags);
    out->due_ms = r->due_ms;
    out->remember_ms = r->remember_ms;
    out->order = r->order;
    out->gap_ms = r->gap_ms;
    out->key = r->key;
    out->worker = worker ? worker->bytes : (once_bytes){0};
    return out->state == ONCE_STATE_CLAIMED ? ONCE_OK : once__live_damaged(q, "table once_recent", err);
}

static int compare_slots(const void *left, const void *right)
{
    return once_hash_compare((*(once_slot *const *)left)->entry.id, (*(once_slot *const *)right)->entry.id);
}

/* Fills the slots, which are new, from rows and records. */
static int load_slots(once_sqlite *q, once_slot **slots, size_t n, once_error *err)
{
    int rc = ONCE_OK;
    size_t left = 0;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = load_row(q, slots[i], err);
        if (!slots[i]->row) slots[left++] = slots[i];
    }
    if (rc != ONCE_OK || left == 0 || once__settled_has_none(q->settled)) return rc;
    qsort(slots, left, sizeof *slots, compare_slots);

    once_hash one, *ids = left == 1 ? &one : once_arena_alloc(&q->arena, left * sizeof *ids);
    once_record single, *records = left == 1 ? &single : once_arena_alloc(&q->arena, left * sizeof *records);
    if (!ids || !records) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < left; i++) ids[i] = slots[i]->entry.id;
    rc = once__settled_find(q->settled, ids, left, q->storage.now_ms, records, &q->arena, err);
    for (size_t i = 0; i < left && rc == ONCE_OK; i++) {
        slots[i]->keep_ms = records[i].keep_ms;
        if (records[i].state == ONCE_STATE_ABSENT) continue;
        rc = once__live_from_record(q, &records[i], &slots[i]->entry, err);
        slots[i]->recorded = records[i].state == ONCE_STATE_CLAIMED;
        note_own(slots[i]);
    }
    return rc;
}

/* ---- claims ---- */

typedef struct claim_walk {
    once_sqlite *q;
    once_claim_visit *visit;
    void *user;
    int rc;
    once_error *err;
} claim_walk;

static bool show_claim(void *user, const once_record *record)
{
    claim_walk *walk = user;
    once_entry entry;
    const once_slot *slot = once_table_get(&walk->q->slots, record->id);
    if (slot && slot->listed) return true;
    walk->rc = once__live_from_record(walk->q, record, &entry, walk->err);
    return walk->rc == ONCE_OK && walk->visit(walk->user, &entry, record->keep_ms);
}

int once__live_each_claim(once_sqlite *q, once_claim_visit *visit, void *user, once_error *err)
{
    assert(q->open);
    claim_walk walk = {.q = q, .visit = visit, .user = user, .err = err};
    const int rc = once__settled_each_claim(q->settled, show_claim, &walk, err);
    return rc == ONCE_OK ? walk.rc : rc;
}

/* ---- slots ---- */

static once_slot *slot_new(once_sqlite *q, once_hash id)
{
    assert(!once_table_get(&q->slots, id));
    once_slot *slot = once_arena_new(&q->arena, once_slot, 1);
    if (!slot) return NULL;
    slot->entry.id = id;
    return once_table_put(&q->slots, slot->entry.id, slot) ? slot : NULL;
}

bool once__live_has_none(const once_storage *storage, once_hash id)
{
    const once_sqlite *q = (const once_sqlite *)storage;
    return q->live.known && !once__live_filter_may_have(&q->live, id) && once__settled_has_none(q->settled) &&
           !once_table_get(&q->slots, id);
}

int once__live_prefetch(once_storage *storage, const once_request *const *requests, size_t n, once_purpose purpose,
                        once_error *err)
{
    assert(once__sqlite_of(storage)->open);
    once_sqlite *q = once__sqlite_of(storage);
    if (n < 2 || (purpose != ONCE_FOR_CLAIM && purpose != ONCE_FOR_ACCEPT && purpose != ONCE_FOR_ABSENT))
        return ONCE_OK; /* the other slots are loaded */
    if (purpose == ONCE_FOR_ABSENT) return q->live.known ? ONCE_OK : once__live_filter_build(q, err);
    once_slot **fresh = once_arena_alloc(&q->arena, n * sizeof *fresh);
    if (!fresh) return once_no_memory(err, "for a batch");
    size_t count = 0;
    const int rc = q->live.known ? ONCE_OK : once__live_filter_build(q, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        if (once_table_get(&q->slots, requests[i]->id)) continue;
        if (requests[i]->unclaimed && once__live_has_none(storage, requests[i]->id)) continue;
        if (!(fresh[count++] = slot_new(q, requests[i]->id))) return once_no_memory(err, "for a batch");
    }
    return load_slots(q, fresh, count, err);
}

int once__live_load(once_storage *storage, once_hash id, once_entry **out, once_error *err)
{
    once_sqlite *q = once__sqlite_of(storage);
    assert(q->open);
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
