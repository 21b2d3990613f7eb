/* Audit records of the postgres store: actions of operators. */
#include <assert.h>

#include "store/postgres/live.h"

#include "base/banned.h"

/* Collected column by column; the commit writes them. */
int once__pg_audit_put(once_storage *storage, const once_audit *audit, once_error *err)
{
    (void)err;
    assert(once__pg_of(storage)->write);
    once_pg_array *c = once__pg_of(storage)->audits;
    for (size_t i = 0; i < PG_AUDIT_COLUMNS && c[0].n == 0; i++)
        once__pg_array_begin(&c[i], i < 2 ? PG_INT8 : PG_BYTEA);
    once__pg_put_int8(&c[0], audit->time_ms);
    if (audit->letter) once__pg_put_int8(&c[1], (int64_t)audit->letter);
    else once__pg_put_null(&c[1]);
    const once_bytes texts[] = {audit->consumer, audit->who, audit->what, audit->key, audit->note, audit->body};
    for (size_t i = 0; i < 6; i++) once__pg_put_bytes(&c[2 + i], texts[i]);
    return ONCE_OK;
}

int once__pg_audits_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    if (q->audits[0].n == 0) return ONCE_OK;
    for (size_t i = 0; i < PG_AUDIT_COLUMNS; i++) once__pg_param_array(&params, &q->audits[i]);
    q->audits[0].n = 0;
    ++*sent;
    return once__pg_send(q->pg, PG_AUDITS_PUT, &params, err);
}

int once__pg_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                    once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun && page->max > 0);
    once_pg_params params = {0};
    PGresult *r;
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, (int64_t)page->number);
    once__pg_param_int8(&params, (int64_t)page->max);
    const int rc = once__pg_answer(q, PG_AUDITS, &params, &r, err);
    if (rc != ONCE_OK) return rc;
    bool go_on = true;
    for (int row = 0; row < PQntuples(r) && go_on; row++) {
        const once_audit audit = {
            .time_ms = once__pg_int(r, row, 1),
            .letter = (uint64_t)once__pg_int(r, row, 2),
            .consumer = once__pg_bytes(r, row, 3),
            .who = once__pg_bytes(r, row, 4),
            .what = once__pg_bytes(r, row, 5),
            .key = once__pg_bytes(r, row, 6),
            .note = once__pg_bytes(r, row, 7),
            .body = once__pg_bytes(r, row, 8),
        };
        page->number = (uint64_t)once__pg_int(r, row, 0);
        go_on = visit(user, &audit);
    }
    page->more = (size_t)PQntuples(r) >= page->max;
    PQclear(r);
    return ONCE_OK;
}
