/* Lanes of the open transaction: what the tables say, combined with the entries in memory, which are newer. */
#include <assert.h>

#include "base/no_memory.h"
#include "store/lane_record.h"
#include "store/postgres/live.h"

#include "base/banned.h"

int once__pg_know_lane(once_postgres *q, once_hash id, once_pg_lane **out, once_error *err)
{
    assert(q->open && !once_hash_is_zero(id));
    once_pg_lane *lane = once__pg_lane_of(q, id);
    if (!lane) return once_no_memory(err, "for a batch");
    *out = lane;
    if (lane->known && lane->locked) return ONCE_OK;
    once_pg_round round = {.lanes = out, .n_lanes = 1};
    return once__pg_load_round(q, &round, err);
}

int once__pg_lane(once_storage *storage, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    once_pg_lane *lane;
    const int rc = once__pg_know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    assert(once_table_get(&q->slots, except)); /* so that no row is its own */
    if (!once__lane_read(lane->version, lane->expires_ms, lane->record, storage->now_ms, out))
        return once__pg_damaged(q, "once_lane", err);
    if (lane->others) {
        out->head = lane->head;
        out->tail = lane->tail;
        out->claimed = lane->claimed;
    }
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) ||
            once_hash_equal(other->id, except))
            continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    return ONCE_OK;
}

int once__pg_save_lane(once_storage *storage, once_hash id, const once_lane *kept, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->write);
    unsigned char record[ONCE_LANE_RECORD];
    once_pg_lane *lane;
    const int rc = once__pg_know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    lane->dirty = true;
    lane->version = once__lane_version(kept);
    lane->expires_ms = kept->expires_ms;
    return once_arena_copy(&q->arena, once__lane_write(kept, record), &lane->record)
               ? ONCE_OK
               : once_no_memory(err, "for a batch");
}

int once__pg_lane_head(once_storage *storage, once_hash id, once_hash *out, once_error *err)
{
    assert(once__pg_of(storage)->open && !once_hash_is_zero(id));
    once_pg_lane *lane;
    const int rc = once__pg_know_lane(once__pg_of(storage), id, &lane, err);
    if (rc != ONCE_OK) return rc;
    once_hash best = lane->others ? lane->head_id : (once_hash){0};
    int64_t order = lane->head, seen_ms = lane->head_ms;
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id)) continue;
        if (!once_hash_is_zero(best) && once__lane_before(order, seen_ms, best, other)) continue;
        best = other->id;
        order = other->order;
        seen_ms = other->seen_ms;
    }
    *out = once__pg_of(storage)->head = best;
    return ONCE_OK;
}

static int ask_equals(once_postgres *q, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_id(&params, id);
    once__pg_param_int8(&params, order);
    once__pg_param_int8(&params, ONCE_LANE_EQUALS);
    const int rc = once__pg_answer_by_index(q, PG_LANE_EQUALS, &params, 1, &result, err);
    if (rc != ONCE_OK) return rc;
    const int64_t found_ms = once__pg_int(result, 0, 0);
    if (found_ms > *seen_ms) *seen_ms = found_ms;
    PQclear(result);
    return ONCE_OK;
}

int once__pg_lane_equals(once_storage *storage, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    assert(once__pg_of(storage)->open && !once_hash_is_zero(id));
    once_postgres *q = once__pg_of(storage);
    once_pg_lane *lane;
    const int rc = once__pg_know_lane(q, id, &lane, err);
    if (rc != ONCE_OK) return rc;
    *seen_ms = 0;
    for (const once_pg_slot *slot = lane->first; slot; slot = slot->lane_next) {
        const once_entry *other = &slot->entry;
        if (!once_state_unfinished(other->state) || !once_hash_equal(other->lane, id) || other->order != order)
            continue;
        if (other->seen_ms > *seen_ms) *seen_ms = other->seen_ms;
    }
    return lane->others && lane->head <= order && order <= lane->tail ? ask_equals(q, id, order, seen_ms, err)
                                                                      : ONCE_OK;
}
