/* Saving entries, and the statements by which the commit writes them: one per table, only for rows that differ. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/lane_record.h"
#include "store/postgres/live.h"
#include "store/states.h"

#include "base/banned.h"

/* ---- saving ---- */

static bool own(once_postgres *q, once_pg_slot *slot, int which, once_bytes *bytes)
{
    if (bytes->len == 0) *bytes = (once_bytes){0};
    else if (bytes->data != slot->own[which] && !once_arena_copy(&q->arena, *bytes, bytes)) return false;
    slot->own[which] = bytes->data;
    return true;
}

/* Copies the bytes of the entry into the arena, unless they are there already. */
static bool own_all(once_postgres *q, once_pg_slot *slot)
{
    once_entry *e = &slot->entry;
    const once_name *scope = once__pg_name_scope(&q->names, &e->scope),
                    *place = once__pg_name_place(&q->names, e->at.place);
    const once_name *who = once__pg_name_who(&q->names, e->who);
    const once_name *worker = e->worker.len ? once__pg_name_who(&q->names, e->worker) : who;
    if (!scope || !place || !who || !worker) return false;
    e->scope = scope->scope;
    e->at.place = place->bytes;
    e->who = who->bytes;
    if (e->worker.len) e->worker = worker->bytes;
    if (!own(q, slot, PG_OWN_KEY, &e->key) || !own(q, slot, PG_OWN_POINT, &e->at.point) ||
        !own(q, slot, PG_OWN_RESULT, &e->result) || !own(q, slot, PG_OWN_REASON, &e->reason) ||
        !own(q, slot, PG_OWN_HISTORY, &e->history))
        return false;
    if (!e->has_message) return true;
    const once_name *body_place = once__pg_name_place(&q->names, e->message.at.place);
    if (!body_place) return false;
    e->message.at.place = body_place->bytes;
    return own(q, slot, PG_OWN_TYPE, &e->message.type) && own(q, slot, PG_OWN_HEADERS, &e->message.headers) &&
           own(q, slot, PG_OWN_BODY, &e->message.body) && own(q, slot, PG_OWN_BODY_POINT, &e->message.at.point);
}

int once__pg_save(once_storage *storage, once_entry *entry, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun);
    once_pg_slot *slot = (once_pg_slot *)entry;
    assert(once_table_get(&q->slots, entry->id) == slot);
    if (!q->write) return once_fail(err, ONCE_E_BUG, "a change inside a transaction that only reads");
    if (q->pg->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    if (slot->unlocked) { /* no rule changes a finished entry; if one will, the transaction repeats with a lock */
        once__pg_guess_wrong(q);
        return once_fail(err, ONCE_E_ABORTED, "%s: an entry that was read without a lock was changed", q->pg->where);
    }
    const char *body = slot->own[PG_OWN_BODY], *point = slot->own[PG_OWN_BODY_POINT];
    if (!own_all(q, slot)) return once_no_memory(err, "for a batch");
    const bool bare =
        entry->message.body.len == 0 && entry->message.at.point.len == 0; /* equal to the message before */
    if (!entry->has_message || bare || body != slot->own[PG_OWN_BODY] || point != slot->own[PG_OWN_BODY_POINT])
        slot->body_same = false;
    slot->dirty = true;
    return once__pg_join_lane(q, slot) ? ONCE_OK : once_no_memory(err, "for a batch");
}

/* ---- writing ---- */

typedef struct written {
    once_pg_slot *slot;
    enum { ENTRY_KEEP, ENTRY_INSERT, ENTRY_UPDATE, ENTRY_DELETE } entry;
    bool live_put, live_delete, body_put, body_delete;
    int64_t expires_ms; /* valid with a detail */
    once_bytes detail;  /* empty: the entry is not finished */
} written;

static int encode(once_postgres *q, written *w, int64_t *kept_ms, once_error *err)
{
    const once_entry *e = &w->slot->entry;
    const once_name *scope = once__pg_name_scope(&q->names, &e->scope),
                    *place = once__pg_name_place(&q->names, e->at.place), *run = once__pg_name_run(&q->names, e->run),
                    *who = once__pg_name_who(&q->names, e->who);
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a batch");
    assert(scope->number && place->number && run->number && who->number); /* behind name_slots */
    const once_pg_names_of names = {(int32_t)scope->number, (int32_t)place->number, (int32_t)run->number,
                                    (int32_t)who->number};
    once_buf_clear(&q->detail);
    if (!once__pg_detail_write(e, names, &q->detail, kept_ms) ||
        !once_arena_copy(&q->arena, once_buf_bytes(&q->detail), &w->detail))
        return once_no_memory(err, "for a batch");
    w->expires_ms = e->changed_ms + *kept_ms;
    return ONCE_OK;
}

static bool as_guessed(const written *w, int64_t kept_ms, int64_t now_ms)
{
    const once_pg_slot *slot = w->slot;
    return slot->ahead && slot->row == PG_ROW_FINISHED && once_hash_equal(slot->ahead_token, slot->entry.token) &&
           once_hash_equal(slot->ahead_fingerprint, slot->entry.fingerprint) && slot->ahead_kept_ms == kept_ms &&
           slot->entry.changed_ms == now_ms && once_bytes_equal(slot->ahead_detail, w->detail);
}

/* Decides which rows must change so that the tables agree with the slot. */
static int plan(once_postgres *q, written *w, once_error *err)
{
    once_pg_slot *slot = w->slot;
    const once_entry *e = &slot->entry;
    const bool finished = once_state_finished(e->state), live = !finished && e->state != ONCE_STATE_ABSENT;
    int64_t kept_ms = 0;
    int rc = ONCE_OK;
    w->live_put = live;
    w->live_delete = slot->live && !live;
    w->body_put = live && e->has_message && !slot->body_same;
    w->body_delete = slot->body && !(live && e->has_message);
    if (finished) {
        rc = encode(q, w, &kept_ms, err);
        w->entry = slot->row == PG_ROW_NONE                    ? ENTRY_INSERT
                   : as_guessed(w, kept_ms, q->storage.now_ms) ? ENTRY_KEEP
                                                               : ENTRY_UPDATE;
    } else if (live) {
        w->entry = slot->row == PG_ROW_NONE ? ENTRY_INSERT : slot->row == PG_ROW_LIVE ? ENTRY_KEEP : ENTRY_UPDATE;
    } else {
        w->entry = slot->row == PG_ROW_NONE ? ENTRY_KEEP : ENTRY_DELETE;
    }
    return rc;
}

static void param_columns(once_postgres *q, size_t n, once_pg_params *params)
{
    for (size_t i = 0; i < n; i++) once__pg_param_array(params, &q->columns[i]);
}

static int send_entries(once_postgres *q, unsigned statement, const written *list, size_t n, int which, once_error *err)
{
    assert(n > 0);
    static const uint32_t types[] = {PG_UUID, PG_INT8, PG_UUID, PG_UUID, PG_BYTEA};
    once_pg_params params = {0};
    const size_t columns = statement == PG_ENTRY_DELETE ? 1 : 5;
    for (size_t i = 0; i < columns; i++) once__pg_array_begin(&q->columns[i], types[i]);
    for (size_t i = 0; i < n; i++) {
        const once_entry *e = &list[i].slot->entry;
        if ((int)list[i].entry != which) continue;
        once__pg_put_id(&q->columns[0], e->id);
        if (columns == 1) continue;
        if (list[i].detail.len) {
            once__pg_put_int8(&q->columns[1], list[i].expires_ms);
            once__pg_put_id_or_null(&q->columns[2], e->token);
            once__pg_put_id_or_null(&q->columns[3], e->fingerprint);
            once__pg_put_bytes(&q->columns[4], list[i].detail);
        } else {
            for (size_t k = 1; k < 5; k++) once__pg_put_null(&q->columns[k]);
        }
    }
    param_columns(q, columns, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

static void put_live(once_postgres *q, const once_entry *e)
{
    assert(!once_state_finished(e->state) && e->state != ONCE_STATE_ABSENT);
    once_pg_array *c = q->columns;
    once__pg_put_id(&c[0], e->id);
    once__pg_put_id(&c[1], e->token);
    once__pg_put_id_or_null(&c[2], e->fingerprint);
    once__pg_put_id_or_null(&c[3], e->lane);
    const int64_t numbers[] = {e->order,      e->gap_ms, e->remember_ms, (int64_t)e->run, e->seen_ms,
                               e->changed_ms, e->due_ms, e->expires_ms,  e->attempt,      e->failures};
    for (size_t i = 0; i < 10; i++) once__pg_put_int8(&c[4 + i], numbers[i]);
    once__pg_put_int2(&c[14], (int16_t)once__state_write(e));
    once__pg_put_int2(&c[15], (int16_t)once__flags_write(e));
    once__pg_put_bool(&c[16], e->has_message);
    const once_bytes texts[] = {e->scope.tenant, e->scope.consumer, e->scope.operation, e->key,
                                e->at.place,     e->at.point,       e->reason,          e->who,
                                e->worker,       e->history};
    for (size_t i = 0; i < 10; i++) once__pg_put_bytes(&c[17 + i], texts[i]);
    once__pg_put_int8(&c[27], e->failing_ms);
    unsigned char fields[ONCE_FIELDS_BYTES];
    once__pg_put_bytes(&c[28], (once_bytes){(const char *)fields, once_fields_write(&e->fields, fields)});
}

static int send_live(once_postgres *q, const written *list, size_t n, once_error *err)
{
    assert(n > 0);
    once_pg_params params = {0};
    for (size_t i = 0; i < 29; i++)
        once__pg_array_begin(&q->columns[i], i < 4               ? PG_UUID
                                             : i < 14 || i == 27 ? PG_INT8
                                             : i < 16            ? PG_INT2
                                             : i == 16           ? PG_BOOL
                                                                 : PG_BYTEA);
    for (size_t i = 0; i < n; i++)
        if (list[i].live_put) put_live(q, &list[i].slot->entry);
    param_columns(q, 29, &params);
    return once__pg_send(q->pg, PG_LIVE_PUT, &params, err);
}

static int send_bodies(once_postgres *q, const written *list, size_t n, once_error *err)
{
    assert(n > 0);
    once_pg_params params = {0};
    for (size_t i = 0; i < 7; i++) once__pg_array_begin(&q->columns[i], i == 0 ? PG_UUID : i == 1 ? PG_INT8 : PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        const once_message *m = &list[i].slot->entry.message;
        if (!list[i].body_put) continue;
        once__pg_put_id(&q->columns[0], list[i].slot->entry.id);
        if (m->sent_ms == ONCE_NO_TIME) once__pg_put_null(&q->columns[1]);
        else once__pg_put_int8(&q->columns[1], m->sent_ms);
        const once_bytes texts[] = {m->type, m->headers, m->body, m->at.place, m->at.point};
        for (size_t k = 0; k < 5; k++) once__pg_put_bytes(&q->columns[2 + k], texts[k]);
    }
    param_columns(q, 7, &params);
    return once__pg_send(q->pg, PG_BODY_PUT, &params, err);
}

static int send_deleted(once_postgres *q, unsigned statement, const written *list, size_t n, once_error *err)
{
    assert(n > 0 && (statement == PG_LIVE_DELETE || statement == PG_BODY_DELETE));
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < n; i++)
        if (statement == PG_LIVE_DELETE ? list[i].live_delete : list[i].body_delete)
            once__pg_put_id(&q->columns[0], list[i].slot->entry.id);
    param_columns(q, 1, &params);
    return once__pg_send(q->pg, statement, &params, err);
}

static int send_lanes(once_postgres *q, once_error *err)
{
    assert(q->n_lanes > 0);
    once_pg_params params = {0};
    for (size_t i = 0; i < 4; i++) once__pg_array_begin(&q->columns[i], i == 0 ? PG_UUID : i == 3 ? PG_BYTEA : PG_INT8);
    for (size_t i = 0; i < q->n_lanes; i++) {
        const once_pg_lane *lane = q->lane_list[i];
        if (!lane->dirty) continue;
        once__pg_put_id(&q->columns[0], lane->id);
        if (lane->version == ONCE_LANE_NO_VERSION) once__pg_put_null(&q->columns[1]);
        else once__pg_put_int8(&q->columns[1], lane->version);
        once__pg_put_int8(&q->columns[2], lane->expires_ms);
        once__pg_put_bytes(&q->columns[3], lane->record);
    }
    param_columns(q, 4, &params);
    return once__pg_send(q->pg, PG_LANE_PUT, &params, err);
}

/* Resolves the names that finished entries refer to. */
static int name_slots(once_postgres *q, once_error *err)
{
    for (size_t i = 0; i < q->n_all; i++) {
        const once_entry *e = &q->all[i]->entry;
        if (!q->all[i]->dirty || !once_state_finished(e->state)) continue;
        if (!once__pg_name_scope(&q->names, &e->scope) || !once__pg_name_place(&q->names, e->at.place) ||
            !once__pg_name_run(&q->names, e->run) || !once__pg_name_who(&q->names, e->who))
            return once_no_memory(err, "for a batch");
    }
    return once__pg_names_resolve(q, err);
}

/* The order of the index, so that neighbours hit the same pages. */
static int by_entry_id(const void *x, const void *y)
{
    return once_hash_compare(((const written *)x)->slot->entry.id, ((const written *)y)->slot->entry.id);
}

int once__pg_write_send(once_postgres *q, size_t *sent_out, once_error *err)
{
    assert(q->begun);
    written *list = once_arena_new(&q->arena, written, q->n_all + 1);
    if (!list) return once_no_memory(err, "for a batch");
    size_t n = 0, counts[4] = {0}, sent = 0;
    bool live_put = false, live_delete = false, body_put = false, body_delete = false, lanes = false;
    int rc = name_slots(q, err);
    for (size_t i = 0; i < q->n_all && rc == ONCE_OK; i++) {
        if (!q->all[i]->dirty && !(q->all[i]->ahead && q->all[i]->row != PG_ROW_NONE)) continue;
        written *w = &list[n++];
        w->slot = q->all[i];
        rc = plan(q, w, err);
        counts[w->entry]++;
        live_put |= w->live_put;
        live_delete |= w->live_delete;
        body_put |= w->body_put;
        body_delete |= w->body_delete;
    }
    for (size_t i = 0; i < q->n_lanes; i++) lanes |= q->lane_list[i]->dirty;
    assert(q->write || (n == 0 && !lanes));
    const bool rows = counts[ENTRY_INSERT] + counts[ENTRY_UPDATE] + counts[ENTRY_DELETE] || live_put || live_delete,
               plans = rows || lanes;
    if (rc == ONCE_OK) rc = once__pg_guard_send(q, &sent, err);
    if (rows) qsort(list, n, sizeof *list, by_entry_id); /* mostly no row differs from what was inserted ahead */
    if (plans) SEND(once__pg_send(q->pg, PG_PLAN, NULL, err));
    if (rc == ONCE_OK) rc = once__pg_names_check_send(q, &sent, err);
    if (counts[ENTRY_INSERT]) SEND(send_entries(q, PG_ENTRY_INSERT, list, n, ENTRY_INSERT, err));
    if (counts[ENTRY_UPDATE]) SEND(send_entries(q, PG_ENTRY_UPDATE, list, n, ENTRY_UPDATE, err));
    if (counts[ENTRY_DELETE]) SEND(send_entries(q, PG_ENTRY_DELETE, list, n, ENTRY_DELETE, err));
    if (live_put) SEND(send_live(q, list, n, err));
    if (live_delete) SEND(send_deleted(q, PG_LIVE_DELETE, list, n, err));
    if (body_put) SEND(send_bodies(q, list, n, err));
    if (body_delete) SEND(send_deleted(q, PG_BODY_DELETE, list, n, err));
    if (lanes) SEND(send_lanes(q, err));
    if (plans && q->nested) SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err)); /* otherwise the commit ends it */
    *sent_out = sent;
    return rc;
}
