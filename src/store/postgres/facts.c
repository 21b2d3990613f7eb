/* Facts of the postgres store: small named values. They are read from the table and written by the commit. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

static int facts_send_some(once_postgres *q, bool set, size_t *sent, once_error *err)
{
    assert(q->write);
    once_pg_params params = {0};
    once__pg_array_begin(&q->columns[0], PG_BYTEA);
    once__pg_array_begin(&q->columns[1], PG_BYTEA);
    for (const once_pg_fact *fact = q->facts; fact; fact = fact->next) {
        if ((fact->value.len > 0) != set || fact->least) continue;
        once__pg_put_bytes(&q->columns[0], fact->name);
        once__pg_put_bytes(&q->columns[1], fact->value);
    }
    if (q->columns[0].n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->columns[0]);
    if (set) once__pg_param_array(&params, &q->columns[1]);
    ++*sent;
    return once__pg_send(q->pg, set ? PG_FACTS_SET : PG_FACTS_DELETE, &params, err);
}

int once__pg_facts_send(once_postgres *q, size_t *sent, once_error *err)
{
    q->count_at = SIZE_MAX;
    if (!q->facts) return ONCE_OK;
    int rc = facts_send_some(q, true, sent, err);
    if (rc == ONCE_OK) rc = facts_send_some(q, false, sent, err);
    for (const once_pg_fact *fact = q->facts; fact && rc == ONCE_OK; fact = fact->next) {
        unsigned char least[ONCE_NUMBER_SIZE];
        once_pg_params params = {0};
        if (!fact->least) continue;
        once__number_put(least, fact->least);
        once__pg_param_bytes(&params, fact->name);
        once__pg_param_bytes(&params, fact->value);
        once__pg_param_bytes(&params, (once_bytes){(const char *)least, sizeof least});
        assert(q->count_at == SIZE_MAX);
        q->count_at = (*sent)++;
        rc = once__pg_send(q->pg, PG_FACT_COUNT, &params, err);
    }
    return rc;
}

static once_pg_fact *fact_of(once_postgres *q, once_bytes name)
{
    once_pg_fact *fact = q->facts;
    while (fact && !once_bytes_equal(fact->name, name)) fact = fact->next;
    return fact;
}

static int fact_read(once_postgres *q, once_bytes name, once_bytes *out, once_arena *arena, once_error *err)
{
    assert(q->begun && name.len > 0);
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_bytes(&params, name);
    int rc = once__pg_answer(q, PG_FACT_GET, &params, &result, err);
    if (rc == ONCE_OK && PQntuples(result) > 0 && !once__pg_copy_column(result, 0, 0, arena, out))
        rc = once_no_memory(err, "in the postgres store");
    PQclear(result);
    return rc;
}

int once__pg_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    assert(once__pg_of(storage)->open && name[0]);
    once_postgres *q = once__pg_of(storage);
    const once_bytes bytes = {name, strlen(name)};
    const once_pg_fact *fact = fact_of(q, bytes);
    if (!fact) return fact_read(q, bytes, out, arena, err);
    if (!fact->value.len || once_arena_copy(arena, fact->value, out)) return ONCE_OK;
    return once_no_memory(err, "in the postgres store");
}

/* Notes what the commit writes. */
static int fact_keep(once_postgres *q, once_bytes name, uint64_t least, once_bytes value, once_error *err)
{
    assert(q->write && name.len > 0 && (!least || value.len >= ONCE_NUMBER_SIZE));
    once_pg_fact *fact = fact_of(q, name);
    if (!fact) {
        fact = once_arena_new(&q->arena, once_pg_fact, 1);
        if (!fact || !once_arena_copy(&q->arena, name, &fact->name))
            return once_no_memory(err, "in the postgres store");
        fact->next = q->facts;
        q->facts = fact;
    }
    fact->value = (once_bytes){0};
    fact->least = least;
    return value.len == 0 || once_arena_copy(&q->arena, value, &fact->value)
               ? ONCE_OK
               : once_no_memory(err, "in the postgres store");
}

int once__pg_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err)
{
    return fact_keep(once__pg_of(storage), (once_bytes){name, strlen(name)}, 0, value, err);
}

int once__pg_fact_count(once_storage *storage, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    return fact_keep(once__pg_of(storage), (once_bytes){name, strlen(name)}, least, value, err);
}

int once__pg_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    assert(once__pg_of(storage)->open);
    once_pg_params params = {0};
    PGresult *result = NULL;
    once__pg_param_bytes(&params, (once_bytes){prefix, strlen(prefix)});
    const int rc = once__pg_answer(once__pg_of(storage), PG_FACTS, &params, &result, err);
    for (int i = 0; rc == ONCE_OK && i < PQntuples(result); i++)
        if (!visit(user, once__pg_bytes(result, i, 0), once__pg_bytes(result, i, 1))) break;
    PQclear(result);
    return rc;
}
