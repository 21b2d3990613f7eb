/* Entries of the open transaction and their lanes in memory, and reading entries from rows. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/fields.h"
#include "store/postgres/live.h"
#include "store/states.h"

#include "base/banned.h"

_Static_assert(offsetof(once_pg_slot, entry) == 0, "`load` returns the entry of a slot, and `save` casts it back");

int once__pg_damaged(const once_postgres *q, const char *table, once_error *err)
{
    return once_fail(err, ONCE_E_CORRUPT, "%s: table %s is damaged; restore it from a backup", q->pg->where, table);
}

int once__pg_bad_lane(once_postgres *q, once_hash lane, const char *flaw, once_error *err)
{
    char key[ONCE_SHOWN_KEY] = "";
    once_pg_params params = {0};
    PGresult *rows;
    once__pg_param_id(&params, lane);
    const int rc = once__pg_answer(q, PG_LANE_KEY, &params, &rows, err);
    if (rc != ONCE_OK) return rc;
    if (PQntuples(rows)) once__shown_key(once__pg_bytes(rows, 0, 0), key);
    PQclear(rows);
    return once_fail(err, ONCE_E_CORRUPT,
                     "%s: table once_lane, id %016llx%016llx, the lane of key '%s': %s; another program wrote there, "
                     "or it is damaged:"
                     " restore it from a backup, or run 'once check --repair'",
                     q->pg->where, (unsigned long long)lane.a, (unsigned long long)lane.b, key, flaw);
}

int once__pg_lane_gone(once_postgres *q, once_hash lane, once_error *err)
{
    return once__pg_bad_lane(q, lane, "its row is gone, and with it the number of its last version", err);
}

static bool list_room(void *list_at, size_t n, size_t *size, size_t each)
{
    assert(n <= *size && each > 0);
    if (n < *size) return true;
    const size_t more = *size ? *size * 2 : 1024;
    void **at = list_at, *grown = realloc(*at, more * each);
    if (!grown) return false;
    *at = grown;
    *size = more;
    return true;
}

void once__pg_live_clear(once_postgres *q)
{
    once_table_clear(&q->slots, ONCE_TABLE_KEPT);
    once_table_clear(&q->lanes, ONCE_TABLE_KEPT);
    q->n_all = q->n_lanes = 0;
    q->head = (once_hash){0};
    if (q->arena.total > 8u << 20) once_arena_release(&q->arena);
    else once_arena_reset(&q->arena);
}

/* ---- slots and lanes in memory ---- */

once_pg_slot *once__pg_slot_new(once_postgres *q, once_hash id)
{
    assert(!once_table_get(&q->slots, id));
    if (!list_room(&q->all, q->n_all, &q->all_size, sizeof *q->all)) return NULL;
    once_pg_slot *slot = once_arena_new(&q->arena, once_pg_slot, 1);
    if (!slot) return NULL;
    slot->entry.id = id;
    if (!once_table_put(&q->slots, slot->entry.id, slot)) return NULL;
    q->all[q->n_all++] = slot;
    return slot;
}

once_pg_lane *once__pg_lane_of(once_postgres *q, once_hash id)
{
    assert(q->open && !once_hash_is_zero(id));
    once_pg_lane *lane = once_table_get(&q->lanes, id);
    if (lane) return lane;
    if (!list_room(&q->lane_list, q->n_lanes, &q->lanes_size, sizeof *q->lane_list)) return NULL;
    lane = once_arena_new(&q->arena, once_pg_lane, 1);
    if (!lane) return NULL;
    lane->id = id;
    if (!once_table_put(&q->lanes, lane->id, lane)) return NULL;
    q->lane_list[q->n_lanes++] = lane;
    return lane;
}

/* Adds the slot to the list of its lane: the slot is newer than the row. The lane may be another one than before, when
 * the id was removed and used again in this transaction. */
bool once__pg_join_lane(once_postgres *q, once_pg_slot *slot)
{
    assert(once_table_get(&q->slots, slot->entry.id) == slot);
    once_pg_lane *lane = slot->lane;
    if (once_hash_is_zero(slot->entry.lane) || (lane && once_hash_equal(lane->id, slot->entry.lane))) return true;
    if (lane) {
        once_pg_slot **at = &lane->first;
        while (*at != slot) at = &(*at)->lane_next;
        *at = slot->lane_next;
        slot->lane = NULL;
    }
    lane = once__pg_lane_of(q, slot->entry.lane);
    if (!lane) return false;
    slot->lane_next = lane->first;
    lane->first = slot;
    slot->lane = lane;
    return true;
}

void once__pg_note_own(once_pg_slot *slot)
{
    const once_entry *e = &slot->entry;
    const char *const own[PG_OWNS] = {[PG_OWN_KEY] = e->key.data,
                                      [PG_OWN_POINT] = e->at.point.data,
                                      [PG_OWN_RESULT] = e->result.data,
                                      [PG_OWN_REASON] = e->reason.data,
                                      [PG_OWN_HISTORY] = e->history.data,
                                      [PG_OWN_TYPE] = e->message.type.data,
                                      [PG_OWN_HEADERS] = e->message.headers.data,
                                      [PG_OWN_BODY] = e->message.body.data,
                                      [PG_OWN_BODY_POINT] = e->message.at.point.data};
    memcpy(slot->own, own, sizeof own);
}

/* ---- rows to entries ---- */

bool once__pg_copy_column(const PGresult *result, int row, int column, once_arena *arena, once_bytes *out)
{
    const once_bytes bytes = once__pg_bytes(result, row, column);
    *out = (once_bytes){0};
    return bytes.len == 0 || once_arena_copy(arena, bytes, out);
}

int once__pg_read_live(once_postgres *q, const PGresult *r, int row, once_arena *arena, once_entry *e, once_error *err)
{
    const int64_t state = once__pg_int(r, row, 14), flags = once__pg_int(r, row, 15);
    if (state <= ONCE_STATE_ABSENT || state > ONCE_STATE_DEAD) return once__pg_damaged(q, "once_live", err);
    *e = (once_entry){
        .id = once__pg_id(r, row, 0),
        .token = once__pg_id(r, row, 1),
        .fingerprint = once__pg_id(r, row, 2),
        .lane = once__pg_id(r, row, 3),
        .order = once__pg_int(r, row, 4),
        .gap_ms = once__pg_int(r, row, 5),
        .remember_ms = once__pg_int(r, row, 6),
        .run = (uint64_t)once__pg_int(r, row, 7),
        .seen_ms = once__pg_int(r, row, 8),
        .changed_ms = once__pg_int(r, row, 9),
        .due_ms = once__pg_int(r, row, 10),
        .expires_ms = once__pg_int(r, row, 11),
        .attempt = (uint32_t)once__pg_int(r, row, 12),
        .failures = (uint32_t)once__pg_int(r, row, 13),
        .has_message = once__pg_int(r, row, 16) != 0,
    };
    once__state_read(e, (int)state, (int)flags);
    once_bytes *const texts[] = {&e->scope.tenant, &e->scope.consumer, &e->scope.operation, &e->key,
                                 &e->at.place,     &e->at.point,       &e->reason,          &e->who,
                                 &e->worker,       &e->history};
    for (int i = 0; i < 10; i++)
        if (!once__pg_copy_column(r, row, 17 + i, arena, texts[i])) return once_no_memory(err, "for a batch");
    e->failing_ms = once__pg_int(r, row, 27);
    if (!once_fields_read(once__pg_bytes(r, row, 28), &e->fields)) return once__pg_damaged(q, "once_live", err);
    if (!e->has_message) return ONCE_OK;
    if (once__pg_null(r, row, 32)) return once__pg_damaged(q, "once_body", err);
    once_message *m = &e->message;
    m->sent_ms = once__pg_null(r, row, 29) ? ONCE_NO_TIME : once__pg_int(r, row, 29);
    once_bytes *const parts[] = {&m->type, &m->headers, &m->body, &m->at.place, &m->at.point};
    for (int i = 0; i < 5; i++)
        if (!once__pg_copy_column(r, row, 30 + i, arena, parts[i])) return once_no_memory(err, "for a batch");
    return ONCE_OK;
}

int once__pg_read_finished(once_postgres *q, const PGresult *r, int row, once_arena *arena, once_entry *e,
                           once_pg_names_of *names, once_error *err)
{
    once_bytes detail;
    *e = (once_entry){
        .id = once__pg_id(r, row, 0), .token = once__pg_id(r, row, 2), .fingerprint = once__pg_id(r, row, 3)};
    if (!once__pg_copy_column(r, row, 4, arena, &detail)) return once_no_memory(err, "for a batch");
    if (!once__pg_detail_read(detail, once__pg_int(r, row, 1), e, names)) return once__pg_damaged(q, "once_entry", err);
    if (!once__pg_names_want(&q->names, names->scope) || !once__pg_names_want(&q->names, names->place) ||
        !once__pg_names_want(&q->names, names->run) || !once__pg_names_want(&q->names, names->who))
        return once_no_memory(err, "for a batch");
    return ONCE_OK;
}

int once__pg_name_finished(once_postgres *q, const once_pg_names_of *names, once_entry *e, once_error *err)
{
    if (!once__pg_names_whole(q, names))
        return once_fail(err, ONCE_E_CORRUPT,
                         "%s: an entry refers to names that table once_name does not have, as after a restore under a "
                         "running worker;"
                         " 'once check --repair' repairs that",
                         q->pg->where);
    e->scope = once__pg_names_get(&q->names, names->scope)->scope;
    e->at.place = once__pg_names_get(&q->names, names->place)->bytes;
    e->run = once__pg_names_get(&q->names, names->run)->run;
    e->who = once__pg_names_get(&q->names, names->who)->bytes;
    return ONCE_OK;
}
