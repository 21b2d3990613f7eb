/* Names: scopes, places, runs and workers have numbers, which finished entries refer to (name_table.h).
 *
 * A number is never used again. A name that was inserted by a transaction that is rolled back never existed; then all
 * names are dropped and asked for again. The same happens with a new connection. But a store can be restored while the
 * connection stays: its tables are loaded again, or a pooler switches to another server. So every transaction compares
 * the names that it uses with the server. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

static bool list_room(void *list_at, size_t n, size_t *size, size_t each)
{
    assert(n <= *size && each > 0);
    if (n < *size) return true;
    const size_t more = *size ? *size * 2 : 16;
    void **at = list_at, *grown = realloc(*at, more * each);
    if (!grown) return false;
    *at = grown;
    *size = more;
    return true;
}

/* Notes the first use of a name in this transaction. NULL: memory is out. */
static once_name *use_first(once_pg_names *names, once_name *name)
{
    if (!list_room(&names->used, names->n_used, &names->used_size, sizeof *names->used)) return NULL;
    if (!name->number && !name->wanted) {
        if (!list_room(&names->unknown, names->n_unknown, &names->unknown_size, sizeof *names->unknown)) return NULL;
        names->unknown[names->n_unknown++] = name;
        name->wanted = true;
    }
    names->used[names->n_used++] = name;
    name->used = true;
    return name;
}

/* NULL stays NULL. */
static inline once_name *use(once_pg_names *names, once_name *name)
{
    return !name || name->used ? name : use_first(names, name);
}

once_name *once__pg_name_scope(once_pg_names *names, const once_scope *scope)
{
    return use(names, once__name_scope(&names->known, scope));
}
once_name *once__pg_name_place(once_pg_names *names, once_bytes place)
{
    return use(names, once__name_place(&names->known, place));
}
once_name *once__pg_name_who(once_pg_names *names, once_bytes who)
{
    return use(names, once__name_who(&names->known, who));
}
once_name *once__pg_name_run(once_pg_names *names, uint64_t run)
{
    return use(names, once__name_run(&names->known, run));
}

/* ---- numbers ---- */

const once_name *once__pg_names_get(const once_pg_names *names, int32_t number)
{
    return once__name_numbered(&names->known, number);
}

/* Reads a row (id, name). */
static int learn(once_pg_names *names, const PGresult *result, int row, once_error *err)
{
    const int32_t number = (int32_t)once__pg_int(result, row, 0);
    bool bad;
    if (once__pg_names_get(names, number)) return ONCE_OK;
    once_name *name = once__name_read(&names->known, once__pg_bytes(result, row, 1), &bad);
    if (bad) return once_fail(err, ONCE_E_CORRUPT, "table once_name is damaged; restore it from a backup");
    if (!name || !once__name_set_number(&names->known, name, number)) return once_no_memory(err, "for names");
    if (!names->newest || names->newest->number < number) names->newest = name;
    return ONCE_OK;
}

static int learn_all(once_pg_names *names, const PGresult *result, once_error *err)
{
    int rc = ONCE_OK;
    for (int i = 0; i < PQntuples(result) && rc == ONCE_OK; i++) rc = learn(names, result, i, err);
    return rc;
}

static void drop_known(once_pg_names *names)
{
    size_t left = 0;
    for (size_t i = 0; i < names->n_unknown; i++) {
        names->unknown[i]->wanted = !names->unknown[i]->number;
        if (names->unknown[i]->wanted) names->unknown[left++] = names->unknown[i];
    }
    names->n_unknown = left;
}

static int find_unknown(once_postgres *q, const once_pg_params *params, once_error *err)
{
    PGresult *result;
    int rc = once__pg_answer(q, PG_NAME_FIND, params, &result, err);
    if (rc != ONCE_OK) return rc;
    rc = learn_all(&q->names, result, err);
    PQclear(result);
    return rc;
}

/* Outside of a transaction this is one of its own. It says READ WRITE, because the default may be READ ONLY. */
static int make_unknown(once_postgres *q, const once_pg_params *params, once_error *err)
{
    assert(q->write);
    const bool alone = !q->begun && !q->nested;
    PGresult *results[5];
    size_t sent = 0;
    q->names.fresh = q->begun;
    int rc = alone ? once__pg_begin_sql(q->pg, PG_BEGIN_WRITE, &sent, err) : ONCE_OK;
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_NAME_MAKE, params, err);
    sent += rc == ONCE_OK;
    const size_t found = sent;
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_NAME_FIND, params, err);
    sent += rc == ONCE_OK;
    if (rc == ONCE_OK && alone) {
        rc = once__pg_send_text(q->pg, "COMMIT", err);
        sent += rc == ONCE_OK;
    }
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, sent, err);
    if (rc == ONCE_OK) {
        rc = learn_all(&q->names, results[found], err);
        once__pg_clear(results, sent);
    } else if (alone && once__pg_alive(q->pg) && PQtransactionStatus(q->pg->conn) == PQTRANS_INERROR) {
        (void)once__pg_exec(q->pg, "ROLLBACK", NULL, NULL);
    }
    return rc;
}

int once__pg_names_resolve(once_postgres *q, once_error *err)
{
    assert(q->open);
    once_pg_names *names = &q->names;
    for (int make_them = 0; make_them < 2 && names->n_unknown; make_them++) {
        once_pg_array *texts = &q->columns[PG_COLUMNS - 1]; /* the other columns may be in use */
        once_pg_params params = {0};
        once__pg_array_begin(texts, PG_BYTEA);
        for (size_t i = 0; i < names->n_unknown; i++)
            once__pg_put_bytes(texts, (once_bytes){names->unknown[i]->text, names->unknown[i]->len});
        once__pg_param_array(&params, texts);
        const int rc = make_them ? make_unknown(q, &params, err) : find_unknown(q, &params, err);
        if (rc != ONCE_OK) return rc;
        drop_known(names);
    }
    return names->n_unknown ? once_fail(err, ONCE_E_ABORTED, "a name was deleted from once_name") : ONCE_OK;
}

static int changed(once_postgres *q, once_error *err)
{
    q->names.doubted = true;
    return once_fail(err, ONCE_E_ABORTED,
                     "%s: names in once_name have changed, as after a restore; they are read again", q->pg->where);
}

int once__pg_names_confirm(once_postgres *q, once_bytes newest, once_error *err)
{
    const once_name *asked = q->names.asked;
    return !asked || (newest.len == asked->len && memcmp(newest.data, asked->text, asked->len) == 0) ? ONCE_OK
                                                                                                     : changed(q, err);
}

int once__pg_names_check_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_names *names = &q->names;
    once_pg_array *numbers = &q->columns[PG_COLUMNS - 2], *texts = &q->columns[PG_COLUMNS - 1];
    once_pg_params params = {0};
    int64_t n = 0;
    names->check_at = SIZE_MAX;
    if (!q->pg->shared || names->n_checked == names->n_used) return ONCE_OK;
    once__pg_array_begin(numbers, PG_INT4);
    once__pg_array_begin(texts, PG_BYTEA);
    for (; names->n_checked < names->n_used; names->n_checked++) {
        const once_name *name = names->used[names->n_checked];
        if (!name->number) continue;
        once__pg_put_int4(numbers, (int32_t)name->number);
        once__pg_put_bytes(texts, (once_bytes){name->text, name->len});
        n++;
    }
    if (n == 0) return ONCE_OK;
    once__pg_param_array(&params, numbers);
    once__pg_param_array(&params, texts);
    once__pg_param_int8(&params, n);
    names->check_at = *sent;
    const int rc = once__pg_send(q->pg, PG_NAME_CHECK, &params, err);
    *sent += rc == ONCE_OK;
    return rc;
}

int once__pg_names_failed(once_postgres *q, int rc, once_error *err)
{
    const bool by_check = q->pg->failed_at == q->names.check_at && strcmp(q->pg->failed_state, "22012") == 0;
    return by_check ? changed(q, err) : rc;
}

bool once__pg_names_want(once_pg_names *names, int32_t number)
{
    if (once__pg_names_get(names, number)) return true;
    if (!list_room(&names->missing, names->n_missing, &names->missing_size, sizeof *names->missing)) return false;
    names->missing[names->n_missing++] = number;
    return true;
}

int once__pg_names_fetch(once_postgres *q, once_error *err)
{
    once_pg_names *names = &q->names;
    if (!names->n_missing) return ONCE_OK;
    once_pg_array *numbers = &q->columns[PG_COLUMNS - 1];
    once_pg_params params = {0};
    PGresult *result;
    once__pg_array_begin(numbers, PG_INT4);
    for (size_t i = 0; i < names->n_missing; i++) once__pg_put_int4(numbers, names->missing[i]);
    names->n_missing = 0;
    once__pg_param_array(&params, numbers);
    int rc = once__pg_answer(q, PG_NAME_GET, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    rc = learn_all(names, result, err);
    PQclear(result);
    return rc;
}

void once__pg_names_clear(once_pg_names *names)
{
    once__names_clear(&names->known);
    free(names->unknown);
    free(names->missing);
    free(names->used);
    *names = (once_pg_names){0};
}

void once__pg_names_end(once_pg_names *names, bool committed)
{
    for (size_t i = 0; i < names->n_used; i++) names->used[i]->used = false;
    names->n_used = names->n_checked = 0;
    /* After a rollback the names that were about to be asked for are not needed. The next transaction may only read,
     * and must not insert them. */
    const bool taken_back = !committed && (names->fresh || names->n_unknown);
    if (taken_back || names->doubted || names->known.n > ONCE_NAMES_KEPT) once__pg_names_clear(names);
    names->fresh = false;
}
