/* The sweep of the postgres store: deletes expired rows in bounded steps. One worker sweeps at a time. */
#include <assert.h>
#include <stdlib.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

enum { SWEEP_LOCK_KEY = 1869505382, SWEEP_PAUSE = 4 }; /* the pause after a step, as a multiple of its duration */

/* Finds finished entries that have expired, oldest first, without locks. They are then deleted by ctid, step by step.
 * The old end of the index is full of deleted rows until a vacuum removes them, and passing over them for every step
 * makes sweeping slow. So one search serves many steps, and the next search begins where the last one ended. When it
 * finds nothing more, the next sweep begins at the front again: a row may have been locked, or inserted late. */
static int sweep_look(once_postgres *q, size_t step, once_error *err)
{
    assert(step > 0);
    once_pg_sweep *sweep = &q->sweep;
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, sweep->from);
    once__pg_param_int8(&params, q->storage.now_ms);
    once__pg_param_int8(&params, (int64_t)(step * PG_SWEEP_LOOKS));
    int rc = once__pg_tell(q, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_answer(q, PG_SWEEP_LOOK, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    const int n = PQntuples(result);
    once_buf_clear(&sweep->found);
    for (int i = 0; i < n; i++) once_buf_append(&sweep->found, once__pg_bytes(result, i, 0).data, PG_TID_SIZE);
    sweep->at = 0;
    sweep->full = (size_t)n == step * PG_SWEEP_LOOKS;
    sweep->useful = false;
    sweep->from = sweep->full ? once__pg_int(result, n - 1, 1) : INT64_MIN;
    PQclear(result);
    return sweep->found.failed ? once_no_memory(err, "in the postgres store") : ONCE_OK;
}

/* Deletes lanes whose version has expired and that have no entries. Each step looks at the next lanes, and starts over
 * at the end. An expired lane is locked before its entries are looked for: an entry enters a lane only under its
 * lock. */
static int sweep_lanes(once_postgres *q, size_t step, const PGresult *seen, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    const int rows = PQntuples(seen);
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (int i = 0; i < rows; i++)
        if (once__pg_int(seen, i, 1)) once__pg_put_id(&q->columns[0], once__pg_id(seen, i, 0));
    q->sweep.lane = (size_t)rows < step ? (once_hash){0} : once__pg_id(seen, rows - 1, 0);
    if (q->columns[0].n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->columns[0]);
    once__pg_param_int8(&params, q->storage.now_ms);
    const int rc = once__pg_answer(q, PG_SWEEP_LANES_LOCK, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    once__pg_array_begin(&q->columns[0], PG_UUID);
    for (int i = 0; i < PQntuples(result); i++) once__pg_put_id(&q->columns[0], once__pg_id(result, i, 0));
    PQclear(result);
    params = (once_pg_params){0};
    once__pg_param_array(&params, &q->columns[0]);
    return once__pg_tell(q, PG_SWEEP_LANES, &params, err);
}

/* Deletes entries and looks at lanes, in one round trip. */
static int sweep_step(once_postgres *q, size_t step, uint64_t *dropped, once_error *err)
{
    once_pg_sweep *sweep = &q->sweep;
    assert(step > 0 && sweep->at <= sweep->found.len && sweep->found.len % PG_TID_SIZE == 0);
    once_pg_params lanes = {0}, rows = {0};
    PGresult *results[3];
    once__pg_param_id(&lanes, sweep->lane);
    once__pg_param_int8(&lanes, (int64_t)step);
    once__pg_param_int8(&lanes, q->storage.now_ms);
    once__pg_array_begin(&q->columns[0], PG_TID);
    for (size_t i = 0; i < step && sweep->at < sweep->found.len; i++, sweep->at += PG_TID_SIZE)
        once__pg_put_tid(&q->columns[0], (const unsigned char *)sweep->found.data + sweep->at);
    once__pg_param_array(&rows, &q->columns[0]);
    once__pg_param_int8(&rows, q->storage.now_ms);
    int rc = once__pg_send(q->pg, PG_PLAN, NULL, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_SWEEP, &rows, err);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_SWEEP_LANES_LOOK, &lanes, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 3, err);
    if (rc != ONCE_OK) return rc;
    *dropped = strtoull(PQcmdTuples(results[1]), NULL, 10);
    sweep->useful |= *dropped > 0;
    rc = sweep_lanes(q, step, results[2], err);
    once__pg_clear(results, 3);
    return rc;
}

/* Entries that wait without a body and have expired. They are few, so each is locked and loaded like in a verb. */
static int sweep_waiting(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    assert(step > 0);
    once_pg_params params = {0};
    once_hash *ids = once_arena_alloc(&q->arena, step * sizeof *ids);
    size_t n;
    if (!ids) return once_no_memory(err, "in the postgres store");
    once__pg_param_int8(&params, q->storage.now_ms);
    once__pg_param_int8(&params, (int64_t)step);
    const uint64_t before = out->dropped;
    int rc = once__pg_collect_ids(q, PG_SWEEP_WAITING, &params, true, step, ids, &n, err);
    if (rc == ONCE_OK) rc = once__engine_drop(&q->storage, ids, n, &out->dropped, err);
    if (n == step && out->dropped > before) out->more = true;
    return rc;
}

static int sweep_some(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    assert(step > 0);
    once_pg_sweep *sweep = &q->sweep;
    int rc = ONCE_OK;
    if (sweep->at == sweep->found.len) {
        const bool at_front = sweep->from == INT64_MIN;
        rc = sweep_look(q, step, err);
        if (rc == ONCE_OK && !sweep->found.len && !at_front) rc = sweep_look(q, step, err);
    }
    if (rc == ONCE_OK) rc = sweep_step(q, step, &out->dropped, err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    /* When other transactions have locked all rows that were found, there is nothing to do now. */
    out->more = sweep->at < sweep->found.len || (sweep->full && sweep->useful);
    if (rc == ONCE_OK) rc = sweep_waiting(q, step, out, err);
    return rc;
}

static void sweep_anew(once_pg_sweep *sweep)
{
    once_buf_clear(&sweep->found);
    sweep->at = 0;
    sweep->from = INT64_MIN;
}

static int sweep_try_lock(once_postgres *q, unsigned statement, bool *alone, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, SWEEP_LOCK_KEY);
    const int rc = once__pg_answer(q, statement, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    *alone = once__pg_int(result, 0, 0) != 0;
    PQclear(result);
    return ONCE_OK;
}

/* One worker sweeps, from the first step to the last. The others find that out in one round trip. The lock belongs to
 * the session, so it ends with a worker that dies. Behind a pooler sessions are shared: there the lock is taken for
 * each step, and another worker may sweep in between. */
static int sweep_lock(once_postgres *q, bool *alone, once_error *err)
{
    int rc = once__pg_connect(q->pg, q->wait_ms, err);
    *alone = rc == ONCE_OK && (q->pg->session_lock || q->pg->shared);
    if (rc != ONCE_OK || *alone) return rc;
    rc = sweep_try_lock(q, PG_SWEEP_LOCK, alone, err);
    q->pg->session_lock = rc == ONCE_OK && *alone;
    sweep_anew(&q->sweep); /* clears what is left of the last sweep */
    return rc;
}

void once__pg_sweep_unlock(once_postgres *q)
{
    once_pg_params params = {0};
    if (!q->pg || !q->pg->session_lock) return;
    once__pg_param_int8(&params, SWEEP_LOCK_KEY);
    if (q->pg->pending || q->pg->synced || once__pg_tell(q, PG_SWEEP_UNLOCK, &params, NULL) != ONCE_OK)
        once__pg_drop(q->pg);
    q->pg->session_lock = false;
}

static int sweep_alone(once_postgres *q, size_t step, once_sweep_result *out, once_error *err)
{
    bool alone = true;
    const int rc = q->pg->shared ? sweep_try_lock(q, PG_SWEEP_LOCK_TX, &alone, err) : ONCE_OK;
    out->busy = rc == ONCE_OK && !alone;
    return rc == ONCE_OK && alone ? sweep_some(q, step, out, err) : rc;
}

int once__pg_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    assert(limit > 0);
    const size_t step = limit < PG_SWEEP_STEP ? limit : PG_SWEEP_STEP;
    bool alone;
    assert(!q->pg->borrowed);
    if (q->storage.in_tx) return once_fail(err, ONCE_E_USAGE, "sweep runs in a transaction of its own");
    *out = (once_sweep_result){0};
    int rc = sweep_lock(q, &alone, err);
    out->busy = rc == ONCE_OK && !alone;
    if (!alone) return rc;
    const int64_t begun_ns = once_env_mono_ns(store->env);
    rc = once__verb_begin(&q->storage, true, err);
    if (rc == ONCE_OK) rc = once__verb_end(&q->storage, sweep_alone(q, step, out, err), err);
    if (rc == ONCE_OK && ONCE_FAIL_AT(sweep_between)) rc = once_fail(err, ONCE_E_IO, "failpoint sweep_between");
    if (out->more) out->pause_ms = 1 + SWEEP_PAUSE * (once_env_mono_ns(store->env) - begun_ns) / 1000000;
    if (rc != ONCE_OK || !out->more) {
        once__pg_sweep_unlock(q);
        sweep_anew(&q->sweep);
    }
    return rc;
}
