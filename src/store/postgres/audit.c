/* What operators did, in the postgres store. */
#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

enum { LIST_STEP = 200 };

/* Kept column by column until commit. */
int once__pg_audit_put(once_shelf *shelf, const once_audit *audit, once_error *err)
{
    (void)err;
    once_pg_array *c = once__pg_of(shelf)->audits;
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

typedef struct audit_list {
    once_audit_visit *visit;
    void *user;
    int64_t last;
} audit_list;

static int show_audit(once_postgres *q, const PGresult *r, int row, once_arena *arena, void *user, bool *go_on,
                      once_error *err)
{
    (void)q;
    audit_list *list = user;
    once_audit audit = {.time_ms = once__pg_int(r, row, 1), .letter = (uint64_t)once__pg_int(r, row, 2)};
    once_bytes *const texts[] = {&audit.consumer, &audit.who, &audit.what, &audit.key, &audit.note, &audit.body};
    for (int i = 0; i < 6; i++)
        if (!once__pg_copy_column(r, row, 3 + i, arena, texts[i])) return once_no_memory(err, "in the postgres store");
    list->last = once__pg_int(r, row, 0);
    *go_on = list->visit(list->user, &audit);
    return ONCE_OK;
}

int once__pg_audits(once_backend *store, once_bytes consumer, once_audit_visit *visit, void *user, once_error *err)
{
    audit_list list = {visit, user, 0};
    bool go_on = true;
    for (int rows = LIST_STEP, rc; rows == LIST_STEP && go_on;) {
        once_pg_params params = {0};
        once__pg_param_bytes(&params, consumer);
        once__pg_param_int8(&params, list.last);
        once__pg_param_int8(&params, LIST_STEP);
        rc = once__pg_list_step((once_postgres *)store, PG_AUDITS, &params, show_audit, &list, &go_on, &rows, err);
        if (rc != ONCE_OK) return rc;
    }
    return ONCE_OK;
}
