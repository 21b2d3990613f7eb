/* The postgres store: opening and closing it. It is a storage of the engine, in tables of a PostgreSQL schema. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"
#include "store/postgres/schema.h"

#include "base/banned.h"

enum { WAIT_MS_DEFAULT = 10000, TRIES = 10 };

/* Repeats what the server has rolled back: a deadlock, or two transactions inserted the same row. */
static bool pg_again(once_storage *storage, int rc, unsigned tries)
{
    assert(rc != ONCE_OK && !once__pg_of(storage)->open);
    const once_env *env = storage->store.env;
    if (rc != ONCE_E_ABORTED || tries >= TRIES) return false;
    once_env_sleep_ms(env, (int64_t)(once_env_random_u64(env) % (UINT64_C(1) << (tries < 6 ? tries : 6))));
    return true;
}

/* ---- open, close ---- */

static const once_storage_ops postgres_storage = {
    .begin = once__pg_begin,
    .commit = once__pg_commit,
    .rollback = once__pg_rollback,
    .again = pg_again,
    .prefetch = once__pg_prefetch,
    .load = once__pg_load,
    .save = once__pg_save,
    .lane = once__pg_lane,
    .save_lane = once__pg_save_lane,
    .lane_head = once__pg_lane_head,
    .lane_equals = once__pg_lane_equals,
    .due = once__pg_due,
    .due_of_operations = once__pg_due_of_operations,
    .by_token = once__pg_by_token,
    .lapsed = once__pg_lapsed,
    .lanes_waiting = once__pg_lanes_waiting,
    .lane_before = once__pg_lane_before,
    .letters_put = once__pg_letters_put,
    .letters_ahead = once__pg_letters_ahead,
    .letter_get = once__pg_letter_get,
    .letter_drop = once__pg_letter_drop,
    .audit_put = once__pg_audit_put,
    .list = once__pg_list,
    .letters = once__pg_letters,
    .audits = once__pg_audits,
    .stats = once__pg_stats,
    .waiting_size = once__pg_waiting_size,
    .fact_get = once__pg_fact_get,
    .fact_set = once__pg_fact_set,
    .fact_count = once__pg_fact_count,
    .facts = once__pg_facts,
};

static void pg_close(once_backend *store)
{
    once_postgres *q = (once_postgres *)store;
    once__pg_sweep_unlock(q);
    once__pg_names_clear(&q->names);
    once__pg_free(q->pg);
    once_buf_release(&q->sweep.found);
    once_table_release(&q->slots);
    once_table_release(&q->lanes);
    once__pg_seen_release(&q->seen);
    once_arena_release(&q->arena);
    for (size_t i = 0; i < PG_COLUMNS; i++) once__pg_array_release(&q->columns[i]);
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_array_release(&q->letters[i]);
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_array_release(&q->audits[i]);
    once__pg_array_release(&q->dropped);
    once_buf_release(&q->detail);
    free(q->all);
    free(q->lane_list);
    free(q->turns.name);
    free(q);
}

static once_postgres *new_store(const once_store_options *options)
{
    once_postgres *q = calloc(1, sizeof *q);
    if (!q) return NULL;
    q->storage.store.ops = &once__store_postgres;
    q->storage.store.bits = ONCE_STORE_DURABLE | ONCE_STORE_SHARED | ONCE_STORE_TX | ONCE_STORE_OWNS |
                            ONCE_STORE_LANES | ONCE_STORE_LIST | ONCE_STORE_CLOCK | ONCE_STORE_PARALLEL;
    q->storage.store.env = options->env ? options->env : once_env_real();
    q->storage.ops = &postgres_storage;
    q->storage.own_clock = true;
    once__store_sign(&q->storage.store);
    once_buf_init(&q->sweep.found, PG_SWEEP_STEP * PG_SWEEP_LOOKS * PG_TID_SIZE);
    q->wait_ms = options->cancel.asked ? 0 : options->busy_ms ? options->busy_ms : WAIT_MS_DEFAULT;
    for (size_t i = 0; i < PG_COLUMNS; i++) once__pg_array_init(&q->columns[i]);
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_array_init(&q->letters[i]);
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_array_init(&q->audits[i]);
    once__pg_array_init(&q->dropped);
    once_buf_init(&q->detail, (size_t)1 << 30);
    return q;
}

/* Prepares the tables and statements on an open connection. */
static int make_ready(once_postgres *q, const once_store_options *options, once_error *err)
{
    assert(q->pg && !q->open);
    int rc = once__pg_ready(q->pg, options->create && !options->readonly, &q->storage.store.secret, err);
    if (rc == ONCE_OK && !q->pg->sql)
        rc = once__pg_statements(q->pg, once__pg_sql, once__pg_shapes, PG_STATEMENTS, err);
    if (rc == ONCE_OK) rc = once__pg_prepare(q->pg, err);
    q->connection = q->pg->connections;
    return rc;
}

/* A pooler may be recognised only now; then everything is done again, without relying on the session. */
static int open_on(once_postgres *q, const once_store_options *options, once_error *err)
{
    const bool known = q->pg->found_out;
    int rc = make_ready(q, options, err);
    if (rc == ONCE_OK || known || !q->pg->found_out) return rc;
    rc = once__pg_connect(q->pg, 0, err);
    return rc == ONCE_OK ? make_ready(q, options, err) : rc;
}

static int pg_open(const char *rest, const once_store_options *options, once_backend **out, once_error *err)
{
    const once_store_options none = {.size = sizeof none};
    if (!options) options = &none;
    once_postgres *q = new_store(options);
    if (!q) return once_no_memory(err, "in the postgres store");
    int rc = once__pg_new(rest, q->storage.store.env, options->consumer, options->cancel, &q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_connect(q->pg, 0, err);
    if (rc == ONCE_OK) rc = open_on(q, options, err);
    if (rc == ONCE_OK && q->pg->shared) q->storage.store.bits &= ~(unsigned)ONCE_STORE_PARALLEL;
    if (rc == ONCE_OK && options->consumer.len) rc = once__pg_turns_init(q, options->consumer, err);
    if (rc != ONCE_OK) {
        pg_close(&q->storage.store);
        return rc;
    }
    *out = &q->storage.store;
    return ONCE_OK;
}

int once__pg_store_borrow(PGconn *conn, const once_store_options *options, once_backend **out, once_error *err)
{
    assert(PQtransactionStatus(conn) == PQTRANS_IDLE);
    once_postgres *q = new_store(options);
    if (!q) return once_no_memory(err, "in the postgres store");
    int rc = once__pg_borrow(conn, q->storage.store.env, &q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_enter(q->pg, err);
    if (rc == ONCE_OK) rc = once__pg_greet(q->pg, err);
    if (rc == ONCE_OK) rc = open_on(q, options, err);
    if (q->pg) once__pg_leave(q->pg);
    if (rc != ONCE_OK) {
        pg_close(&q->storage.store);
        return rc;
    }
    *out = &q->storage.store;
    return ONCE_OK;
}

void once__pg_pause(once_backend *store) { once__pg_leave(((once_postgres *)store)->pg); }

int once__pg_resume(once_backend *store, once_error *err)
{
    once_pg *pg = ((once_postgres *)store)->pg;
    assert(pg->borrowed && !pg->pending);
    if (once__pg_alive(pg) && PQenterPipelineMode(pg->conn)) return ONCE_OK;
    return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost, or has results that were not read",
                     pg->where);
}

void once__pg_abandon(once_backend *store) { ((once_postgres *)store)->begun = false; }

static once_db *pg_db(once_backend *store) { return &((once_postgres *)store)->pg->db; }

/* Whether replicas have what was acknowledged depends on a setting of the server. */
static void pg_describe(once_backend *store, char *out, size_t size)
{
    PGresult *result;
    const int rc = once__pg_ask(once__pg_of((once_storage *)store)->pg,
                                "SELECT current_setting('synchronous_standby_names') <> ''", "1t", &result, NULL);
    const bool waits = rc == ONCE_OK && strcmp(once__pg_text(result, 0, 0), "t") == 0;
    if (rc == ONCE_OK) PQclear(result);
    snprintf(out, size, "%s",
             waits ? "commits wait for the replicas in synchronous_standby_names: a failover to one of them loses "
                     "nothing that was acknowledged"
                   : "commits do not wait for replicas: a failover to one loses what it had not received, outcomes "
                     "together with their atomic"
                     " effects; synchronous_standby_names prevents that");
}

static int pg_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    int rc = once__verb_begin(&q->storage, false, err);
    if (rc != ONCE_OK) return rc;
    return once__verb_end(&q->storage, once__pg_verify(q, damage, user, err), err);
}

static int pg_inspect(once_backend *store, once_error *err)
{
    return once__pg_inspect(((once_postgres *)store)->pg, err);
}

const once_store_ops once__store_postgres = {
    .scheme = "postgres",
    .schema = once__pg_schema,
    .open = pg_open,
    .close = pg_close,
    .find = once__engine_find,
    .expect = once__pg_expect,
    .db = pg_db,
    .describe = pg_describe,
    .inspect = pg_inspect,
    .letters_ahead = once__engine_letters_ahead,
    .sweep = once__pg_sweep,
    .letter_heads = once__engine_letter_heads,
    .letters_of_key = once__engine_letters_of_key,
    .verify = pg_verify,
    .verified = "every row was read and fits to the others; there are no checksums of ours, so a value that was "
                "changed into another valid one is not noticed;"
                " the server checks its own pages",
    .repair = once__pg_repair,
    .fact_set = once__engine_fact_set,
    ONCE_ENGINE_OPS,
};
