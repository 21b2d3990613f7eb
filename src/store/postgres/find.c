/* Finding entries: by id, by due time, by token, in lanes. */
#include <assert.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "store/states.h"

#include "base/banned.h"

/* ---- by id ---- */

/* A lane is locked before its entries. With ids alone, the lanes must be looked up first. An entry that is in another
 * lane when it is locked has its lane locked late. */
static int want_lanes_of(once_postgres *q, const once_hash *ids, size_t n, once_pg_round *round, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[PG_BEGIN_RESULTS + 2];
    size_t sent = 0;
    int rc = once__pg_begin_send(q, &sent, err);
    const size_t begin = sent;
    if (rc == ONCE_OK) rc = once__pg_guard_send(q, &sent, err);
    const size_t lanes = sent;
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (size_t i = 0; i < n; i++) once__pg_put_id(&q->columns[0], ids[i]);
    once__pg_param_array(&params, &q->columns[0]);
    SEND(once__pg_send(q->pg, PG_LIVE_LANES, &params, err));
    if (rc == ONCE_OK) rc = once__pg_guarded_round(q, results, sent, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_begin_read(q, results, begin, err);
    for (int i = 0; i < PQntuples(results[lanes]) && rc == ONCE_OK; i++) {
        once_pg_lane *lane = once__pg_lane_of(q, once__pg_id(results[lanes], i, 0));
        if (!lane) rc = once_no_memory(err, "for a batch");
        else if (!lane->asked && !(lane->known && lane->locked)) {
            lane->asked = true;
            round->lanes[round->n_lanes++] = lane;
        }
    }
    once__pg_clear(results, sent);
    return rc;
}

int once__pg_load_by_id(once_postgres *q, const once_hash *ids, size_t n, once_error *err)
{
    assert(q->open);
    once_pg_round round;
    int rc = once__pg_round_begin(q, n, &round, err);
    if (rc == ONCE_OK && q->write && n) rc = want_lanes_of(q, ids, n, &round, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_request at = {.id = ids[i]};
        rc = once__pg_want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    return rc == ONCE_OK && (round.n || round.n_lanes) ? once__pg_load_round(q, &round, err) : rc;
}

/* Loads the next entry of a lane that is locked. */
static int load_head(once_postgres *q, once_hash id, once_error *err)
{
    assert(q->begun); /* the lane was loaded */
    once_pg_round round;
    const once_request at = {.id = id};
    int rc = once__pg_round_begin(q, 1, &round, err);
    if (rc == ONCE_OK) rc = once__pg_want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    return rc == ONCE_OK ? once__pg_load_round(q, &round, err) : rc;
}

int once__pg_load(once_storage *storage, once_hash id, once_entry **out, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->open);
    if (!once_table_get(&q->slots, id)) {
        const int rc = once_hash_equal(id, q->head) ? load_head(q, id, err) : once__pg_load_by_id(q, &id, 1, err);
        if (rc != ONCE_OK) return rc;
    }
    *out = &((once_pg_slot *)once_table_get(&q->slots, id))->entry;
    return ONCE_OK;
}

/* ---- entries that a statement has found ---- */

int once__pg_lock_free_lanes(once_postgres *q, once_pg_round *round, once_error *err)
{
    assert(q->write && round->n_lanes > 0);
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_lanes(q, round, &params);
    const int rc = once__pg_answer(q, PG_LANE_LOCK_FREE, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    once__pg_mark_locked(q, result);
    PQclear(result);
    size_t left = 0;
    for (size_t i = 0; i < round->n_lanes; i++)
        if (round->lanes[i]->locked) round->lanes[left++] = round->lanes[i];
    round->n_lanes = left;
    return ONCE_OK;
}

/* Locks the lanes of entries that have moved to another lane since they were found. */
static int load_other_lanes(once_postgres *q, size_t n, once_error *err)
{
    once_pg_round lanes = {.lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *lanes.lanes)};
    if (!lanes.lanes) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < q->n_lanes && lanes.n_lanes < n; i++)
        if (!q->lane_list[i]->locked) lanes.lanes[lanes.n_lanes++] = q->lane_list[i];
    const int rc = lanes.n_lanes ? once__pg_lock_free_lanes(q, &lanes, err) : ONCE_OK;
    return rc == ONCE_OK && lanes.n_lanes ? once__pg_load_round(q, &lanes, err) : rc;
}

int once__pg_load_found(once_postgres *q, const PGresult *found, bool locked, once_hash *ids, size_t *n,
                        once_error *err)
{
    assert(q->begun);
    const size_t rows = (size_t)PQntuples(found);
    once_pg_round round;
    int rc = once__pg_round_begin(q, rows, &round, err);
    round.locked = locked;
    for (size_t i = 0; i < rows && rc == ONCE_OK; i++) {
        const once_request at = {.id = once__pg_id(found, (int)i, 0), .lane.id = once__pg_id(found, (int)i, 1)};
        const size_t lanes = round.n_lanes;
        ids[i] = at.id;
        rc = once__pg_want_lane(q, &round, &at, err);
        if (rc == ONCE_OK && round.n_lanes > lanes) round.lanes[lanes]->locked = locked;
        if (rc == ONCE_OK) rc = once__pg_want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    if (rc == ONCE_OK && round.n) rc = once__pg_load_round(q, &round, err);
    if (rc == ONCE_OK) rc = load_other_lanes(q, rows, err);
    size_t left = 0;
    for (size_t i = 0; i < rows && rc == ONCE_OK; i++) {
        const once_pg_slot *slot = once_table_get(&q->slots, ids[i]);
        if (!slot->lane || slot->lane->locked) ids[left++] = ids[i];
    }
    *n = left;
    return rc;
}

/* Fails when a statement that locks lanes has found an entry whose lane has no row. */
static int note_lanes_gone(once_postgres *q, const PGresult *found, once_error *err)
{
    int rc = ONCE_OK;
    for (int i = 0; i < PQntuples(found) && rc == ONCE_OK; i++)
        if (once__pg_int(found, i, 2)) rc = once__pg_lane_gone(q, once__pg_id(found, i, 1), err);
    return rc;
}

int once__pg_collect_ids(once_postgres *q, unsigned statement, const once_pg_params *params, bool locked, size_t max,
                         once_hash *out, size_t *n, once_error *err)
{
    assert(q->begun && q->write && max > 0);
    PGresult *found;
    *n = 0;
    int rc = once__pg_answer_by_index(q, statement, params, max, &found, err);
    if (rc != ONCE_OK) return rc;
    if (statement == PG_DUE) rc = note_lanes_gone(q, found, err);
    if (rc == ONCE_OK) rc = once__pg_load_found(q, found, locked, out, n, err);
    PQclear(found);
    return rc;
}

int once__pg_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                 once_error *err)
{
    assert(once__pg_of(storage)->open && max > 0);
    once_pg_params params = {0};
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, now_ms);
    once__pg_param_int8(&params, (int64_t)max);
    return once__pg_collect_ids(once__pg_of(storage), PG_DUE, &params, true, max, out, n, err);
}

static void search_params(once_pg_params *params, once_bytes consumer, int64_t now_ms, const once_due_search *search)
{
    once__pg_param_bytes(params, consumer);
    once__pg_param_int8(params, now_ms);
    once__pg_param_int8(params, search->from.due_ms);
    once__pg_param_id(params, search->from.id);
    once__pg_param_int8(params, (int64_t)search->read_max);
}

static void operation_params(once_postgres *q, once_pg_params *params, const once_due_search *search)
{
    once_pg_array *operations = &q->columns[0];
    once__pg_array_begin(operations, PG_BYTEA);
    if (!search->others) once__pg_put_bytes(operations, search->operation);
    for (size_t i = 0; search->others && i < search->n_named; i++) once__pg_put_bytes(operations, search->named[i]);
    once__pg_param_array(params, operations);
    once__pg_param_int8(params, !search->others);
    once__pg_param_int8(params, (int64_t)search->max);
}

/* Where the search stopped: behind the last one that it found, at the end of its window, or at the end of all. */
static void search_stopped(const PGresult *window, const PGresult *found, int64_t now_ms, once_due_search *search)
{
    const int n = PQntuples(found);
    search->read = PQntuples(window) ? search->read_max : (size_t)n;
    search->end = false;
    if ((size_t)n == search->max)
        search->from = (once_due_mark){once__pg_int(found, n - 1, 3), once__pg_id(found, n - 1, 0)};
    else if (PQntuples(window)) search->from = (once_due_mark){once__pg_int(window, 0, 0), once__pg_id(window, 0, 1)};
    else {
        search->from = (once_due_mark){.due_ms = now_ms};
        search->end = true;
    }
}

int once__pg_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                               once_hash *out, size_t *n, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun && q->write && search->max > 0 && search->read_max > 0);
    once_pg_params window = {0}, params = {0};
    PGresult *results[5];
    size_t sent = 0;
    *n = 0;
    search_params(&window, consumer, now_ms, search);
    search_params(&params, consumer, now_ms, search);
    operation_params(q, &params, search);
    int rc = once__pg_guard_send(q, &sent, err);
    const size_t guard = sent;
    SEND(once__pg_send(q->pg, PG_PLAN, NULL, err));
    SEND(once__pg_send(q->pg, PG_DUE_WINDOW, &window, err));
    SEND(once__pg_send(q->pg, PG_DUE_AFTER, &params, err));
    if (rc == ONCE_OK) once__pg_must(q->pg, q->pg->sql[PG_DUE_AFTER].sql, q->pg->sql[PG_DUE_AFTER].shape, search->max);
    SEND(once__pg_send(q->pg, PG_UNPLAN, NULL, err));
    if (rc == ONCE_OK) rc = once__pg_guarded_round(q, results, sent, err);
    if (rc != ONCE_OK) return rc;
    const PGresult *window_result = results[guard + 1];
    PGresult *found = results[guard + 2];
    search_stopped(window_result, found, now_ms, search);
    rc = note_lanes_gone(q, found, err);
    if (rc == ONCE_OK) rc = once__pg_load_found(q, found, true, out, n, err);
    once__pg_clear(results, sent);
    return rc;
}

int once__pg_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                      size_t *n, once_error *err)
{
    assert(once__pg_of(storage)->open && max > 0);
    once_pg_params params = {0};
    once__pg_param_id(&params, (once_hash){token_a, 0});
    once__pg_param_id(&params, (once_hash){token_a, UINT64_MAX});
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, (int64_t)max);
    const int rc = once__pg_collect_ids(once__pg_of(storage), PG_BY_TOKEN, &params, false, max, out, n, err);
    size_t left = 0;
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) { /* it was found without a lock, and may have changed */
        const once_pg_slot *slot = once_table_get(&once__pg_of(storage)->slots, out[i]);
        const bool claimed = slot->entry.state == ONCE_STATE_CLAIMED || once__is_asked(&slot->entry);
        if (claimed && slot->entry.token.a == token_a) out[left++] = out[i];
    }
    *n = left;
    return rc;
}

int once__pg_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err)
{
    assert(once__pg_of(storage)->open && max > 0);
    once_pg_params params = {0};
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, now_ms);
    once__pg_param_int8(&params, (int64_t)max);
    return once__pg_collect_ids(once__pg_of(storage), PG_LAPSED, &params, true, max, out, n, err);
}

/* ---- in lanes ---- */

/* The lanes that have entries and that no other worker occupies, without duplicates. */
static int waiting_lanes(once_postgres *q, const once_hash *lanes, size_t n, once_pg_round *round, once_error *err)
{
    round->lanes = once_arena_alloc(&q->arena, (n + 1) * sizeof *round->lanes);
    if (!round->lanes) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) {
        once_pg_lane *lane = once_table_get(&q->lanes, lanes[i]);
        if (!lane || !lane->locked || !lane->known || lane->asked || lane->claimed || (!lane->others && !lane->first))
            continue;
        lane->asked = true;
        round->lanes[round->n_lanes++] = lane;
    }
    return ONCE_OK;
}

int once__pg_lanes_waiting(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                           once_hash *out, size_t *n, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->write && each > 0 && max > 0);
    once_pg_params params = {0};
    PGresult *found;
    once_pg_round round = {0};
    *n = 0;
    int rc = waiting_lanes(q, lanes, n_lanes, &round, err);
    if (rc != ONCE_OK || round.n_lanes == 0) return rc;
    once__pg_param_lanes(q, &round, &params);
    once__pg_param_int8(&params, (int64_t)each);
    once__pg_param_int8(&params, (int64_t)max);
    once__pg_param_int8(&params, storage->now_ms);
    rc = once__pg_answer_by_index(q, PG_LANE_WAITING, &params, max, &found, err);
    if (rc != ONCE_OK) return rc;
    *n = (size_t)PQntuples(found);
    round.slots = once_arena_alloc(&q->arena, (*n + 1) * sizeof *round.slots);
    if (!round.slots) rc = once_no_memory(err, "for a batch");
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        const once_request at = {.id = out[i] = once__pg_id(found, (int)i, 0)};
        rc = once__pg_want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    PQclear(found);
    return rc == ONCE_OK ? once__pg_load_round(q, &round, err) : rc;
}

int once__pg_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                         uint64_t *count, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun && max > 0 && !once_hash_is_zero(entry->lane));
    once_pg_params params = {0};
    PGresult *found;
    once_pg_round round;
    once__pg_param_id(&params, entry->lane);
    once__pg_param_int8(&params, entry->order);
    once__pg_param_int8(&params, entry->seen_ms);
    once__pg_param_id(&params, entry->id);
    once__pg_param_int8(&params, (int64_t)max);
    once__pg_param_int8(&params, ONCE_BEFORE_COUNTED);
    int rc = once__pg_answer_by_index(q, PG_LANE_BEFORE, &params, 2 * max, &found, err);
    if (rc != ONCE_OK) return rc;
    *n = (size_t)PQntuples(found);
    *count = *n ? (uint64_t)once__pg_int(found, 0, 1) : 0;
    if (*n > 2 * max) *n = 2 * max; /* the size of `out` */
    rc = once__pg_round_begin(q, *n, &round, err);
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        const once_request at = {.id = out[i] = once__pg_id(found, (int)i, 0)};
        rc = once__pg_want_entry(q, &round, &at, ONCE_FOR_OTHERS, err);
    }
    PQclear(found);
    return rc == ONCE_OK && round.n ? once__pg_load_round(q, &round, err) : rc;
}
