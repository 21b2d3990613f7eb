/* Repairs of the postgres store.
 *
 * Entries that refer to missing names. A worker of an older version kept numbers of names across a reconnect, and wrote
 * them into a store that had been restored, or had lost its last commits in a failover. once_name then has no such
 * number, or uses it for another name. Lost is what an entry shows: tenant, consumer and operation, place, run, and the
 * worker that saw it first. Key, outcome, token and times are its own, so it suppresses duplicates as before. The
 * repair gives it names that say "(lost)". A number that is now used for another name of the same kind cannot be
 * recognised.
 *
 * Lanes that have entries and no row. They get a row, as if nothing had settled there yet. The last version is lost;
 * entries that have settled are still known by their keys.
 *
 * Times before 1970. They become times from now on: remembering for longer is never wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/postgres/postgres.h"
#include "store/states.h"

#include "base/banned.h"

enum { STEP = 1000 };

static const once_scope lost_scope = {.consumer = ONCE_BYTES("(lost)"), .operation = ONCE_BYTES("(lost)")};

typedef struct mending {
    once_entry entry;
    once_pg_names_of names;
    once_bytes detail; /* as it is stored */
    bool readable;
} mending;

static bool stands_for(const once_postgres *q, int32_t number, char kind)
{
    const once_name *name = once__pg_names_get(&q->names, number);
    return name && name->text[0] == kind;
}

bool once__pg_names_whole(const once_postgres *q, const once_pg_names_of *names)
{
    return stands_for(q, names->scope, 'S') && stands_for(q, names->place, 'P') && stands_for(q, names->run, 'R') &&
           stands_for(q, names->who, 'W');
}

static int read_rows(once_postgres *q, const PGresult *rows, mending *list, once_error *err)
{
    for (int i = 0; i < PQntuples(rows); i++) {
        mending *m = &list[i];
        m->entry = (once_entry){.id = once__pg_id(rows, i, 0)};
        m->detail = once__pg_bytes(rows, i, 2);
        m->readable = once__pg_detail_read(m->detail, once__pg_int(rows, i, 1), &m->entry, &m->names);
        if (!m->readable) continue; /* that is other damage */
        if (!once__pg_names_want(&q->names, m->names.scope) || !once__pg_names_want(&q->names, m->names.place) ||
            !once__pg_names_want(&q->names, m->names.run) || !once__pg_names_want(&q->names, m->names.who))
            return once_no_memory(err, "for a repair");
    }
    return once__pg_names_fetch(q, err);
}

static int32_t whole_or(const once_postgres *q, int32_t number, char kind, const once_name *lost)
{
    return stands_for(q, number, kind) ? number : (int32_t)lost->number;
}

/* Fills the columns of PG_REPAIR. */
static int put_mended(once_postgres *q, const mending *list, size_t n, once_error *err)
{
    const once_name *scope = once__pg_name_scope(&q->names, &lost_scope),
                    *place = once__pg_name_place(&q->names, ONCE_BYTES("(lost)")),
                    *run = once__pg_name_run(&q->names, 0), *who = once__pg_name_who(&q->names, ONCE_BYTES("(lost)"));
    if (!scope || !place || !run || !who) return once_no_memory(err, "for a repair");
    const int rc = once__pg_names_resolve(q, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < 3; i++) once__pg_array_begin(&q->columns[i], i == 0 ? PG_UUID : PG_BYTEA);
    for (size_t i = 0; i < n; i++) {
        const mending *m = &list[i];
        if (!m->readable || once__pg_names_whole(q, &m->names)) continue;
        const once_pg_names_of names = {whole_or(q, m->names.scope, 'S', scope),
                                        whole_or(q, m->names.place, 'P', place), whole_or(q, m->names.run, 'R', run),
                                        whole_or(q, m->names.who, 'W', who)};
        int64_t kept_ms;
        once_buf_clear(&q->detail);
        if (!once__pg_detail_write(&m->entry, names, &q->detail, &kept_ms)) return once_no_memory(err, "for a repair");
        once__pg_put_id(&q->columns[0], m->entry.id);
        once__pg_put_bytes(&q->columns[1], m->detail);
        once__pg_put_bytes(&q->columns[2], once_buf_bytes(&q->detail));
    }
    return ONCE_OK;
}

static int mend(once_postgres *q, const mending *list, size_t n, uint64_t *repaired, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    size_t torn = 0;
    for (size_t i = 0; i < n; i++) torn += list[i].readable && !once__pg_names_whole(q, &list[i].names);
    if (torn == 0) return ONCE_OK;
    int rc = put_mended(q, list, n, err);
    for (size_t i = 0; i < 3; i++) once__pg_param_array(&params, &q->columns[i]);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_REPAIR, &params, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &result, 1, err);
    if (rc != ONCE_OK) return rc;
    *repaired += strtoull(PQcmdTuples(result), NULL, 10);
    PQclear(result);
    return ONCE_OK;
}

static int change(once_postgres *q, const char *sql, uint64_t *repaired, once_error *err)
{
    PGresult *result;
    int rc = once__pg_send_text(q->pg, sql, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &result, 1, err);
    if (rc != ONCE_OK) return rc;
    *repaired += strtoull(PQcmdTuples(result), NULL, 10);
    PQclear(result);
    return ONCE_OK;
}

static int mend_lanes(once_postgres *q, uint64_t *repaired, once_error *err)
{
    static const int64_t hour_ms = 3600000, year_ms = INT64_C(365) * 86400000;
    char sql[500];
    snprintf(sql, sizeof sql,
             "INSERT INTO once_lane(id, expires_ms) SELECT DISTINCT l.lane, %" PRId64
             " FROM once_live l WHERE l.lane IS NOT NULL AND l.state < 4"
             " AND NOT EXISTS (SELECT FROM once_lane a WHERE a.id = l.lane) ORDER BY 1 ON CONFLICT (id) DO NOTHING",
             q->storage.now_ms + hour_ms);
    const int rc = change(q, sql, repaired, err);
    if (rc != ONCE_OK) return rc;
    snprintf(sql, sizeof sql, "UPDATE once_lane SET expires_ms = %" PRId64 " WHERE expires_ms < 0",
             q->storage.now_ms + year_ms);
    return change(q, sql, repaired, err);
}

/* A finished entry with a time before 1970 is remembered as if it had just finished. */
static int mend_times(once_postgres *q, const PGresult *rows, const mending *list, uint64_t *repaired, once_error *err)
{
    int rc = ONCE_OK;
    for (int i = 0; i < PQntuples(rows) && rc == ONCE_OK; i++) {
        const once_entry *e = &list[i].entry;
        const int64_t expires_ms = once__pg_int(rows, i, 1);
        int64_t kept_ms, until_ms;
        char sql[300];
        if (expires_ms >= 0 || !list[i].readable) continue;
        if (__builtin_sub_overflow(expires_ms, e->changed_ms, &kept_ms) ||
            __builtin_add_overflow(q->storage.now_ms, kept_ms, &until_ms))
            continue;
        snprintf(sql, sizeof sql,
                 "UPDATE once_entry SET expires_ms = %" PRId64
                 " WHERE id = '%016llx%016llx'::uuid AND expires_ms = %" PRId64,
                 until_ms, (unsigned long long)e->id.a, (unsigned long long)e->id.b, expires_ms);
        rc = change(q, sql, repaired, err);
    }
    return rc;
}

static int step(once_postgres *q, once_hash *after, uint64_t *repaired, bool *more, once_error *err)
{
    once_pg_params params = {0};
    PGresult *rows;
    mending *list = once_arena_new(&q->arena, mending, STEP);
    if (!list) return once_no_memory(err, "for a repair");
    once__pg_param_id(&params, *after);
    once__pg_param_int8(&params, STEP);
    int rc = once__pg_send(q->pg, PG_REPAIR_LOOK, &params, err);
    if (rc == ONCE_OK) once__pg_must(q->pg, q->pg->sql[PG_REPAIR_LOOK].sql, q->pg->sql[PG_REPAIR_LOOK].shape, STEP);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &rows, 1, err);
    if (rc != ONCE_OK) return rc;
    const int n = PQntuples(rows);
    rc = read_rows(q, rows, list, err);
    if (rc == ONCE_OK) rc = mend(q, list, (size_t)n, repaired, err);
    if (rc == ONCE_OK) rc = mend_times(q, rows, list, repaired, err);
    *more = n == STEP;
    if (n > 0) *after = once__pg_id(rows, n - 1, 0);
    PQclear(rows);
    return rc;
}

int once__pg_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    if (!q->storage.in_tx)
        return once_fail(err, ONCE_E_USAGE, "a repair is done in a transaction, together with its audit record");
    int rc = once__pg_prefetch(&q->storage, NULL, 0, ONCE_FOR_OTHERS, err); /* BEGIN */
    if (rc == ONCE_OK && once_hash_is_zero(*after)) rc = mend_lanes(q, repaired, err);
    if (rc == ONCE_OK) rc = step(q, after, repaired, more, err);
    if (rc != ONCE_OK) q->storage.broken = true;
    return rc;
}
