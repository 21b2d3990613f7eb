/* Lists and statistics of the postgres store. */
#include <assert.h>

#include "store/postgres/live.h"

#include "base/banned.h"

/* Names are asked for entry by entry; they are few, and are asked for once. */
static int read_finished(once_postgres *q, const PGresult *result, int row, once_entry *out, once_error *err)
{
    once_pg_names_of names;
    int rc = once__pg_read_finished(q, result, row, &q->arena, out, &names, err);
    if (rc == ONCE_OK) rc = once__pg_names_fetch(q, err);
    return rc == ONCE_OK ? once__pg_name_finished(q, &names, out, err) : rc;
}

static int ask_entries(once_postgres *q, once_bytes consumer, once_state state, const once_page *page,
                       PGresult **result, once_error *err)
{
    assert(page->max > 0);
    once_pg_params params = {0};
    if (once_state_finished(state)) {
        once__pg_param_id(&params, page->id);
        once__pg_param_int8(&params, q->storage.now_ms);
        once__pg_param_int8(&params, (int64_t)page->max);
        return once__pg_answer(q, PG_LIST_FINISHED, &params, result, err);
    }
    once__pg_param_bytes(&params, consumer);
    once__pg_param_int8(&params, (int64_t)state);
    once__pg_param_id(&params, page->id);
    once__pg_param_int8(&params, (int64_t)page->max);
    once__pg_param_int8(&params, q->storage.now_ms);
    return once__pg_answer(q, PG_LIST_LIVE, &params, result, err);
}

int once__pg_list(once_storage *storage, once_bytes consumer, once_state state, once_page *page,
                  once_entry_visit *visit, void *user, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun && page->max > 0);
    PGresult *result;
    int rc = ask_entries(q, consumer, state, page, &result, err);
    if (rc != ONCE_OK) return rc;
    bool go_on = true;
    for (int i = 0; i < PQntuples(result) && rc == ONCE_OK && go_on; i++) {
        once_entry entry;
        rc = once_state_finished(state) ? read_finished(q, result, i, &entry, err)
                                        : once__pg_read_live(q, result, i, &q->arena, &entry, err);
        if (rc != ONCE_OK) break;
        page->id = entry.id;
        go_on = visit(user, &entry);
    }
    page->more = rc == ONCE_OK && (size_t)PQntuples(result) >= page->max;
    PQclear(result);
    return rc;
}

int once__pg_stats(once_storage *storage, once_bytes consumer, once_stats *out, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun);
    once_pg_params params = {0};
    PGresult *results[3];
    size_t sent = 0;
    int rc = once__pg_guard_send(q, &sent, err);
    once__pg_param_bytes(&params, consumer);
    SEND(once__pg_send(q->pg, PG_STATS_LETTERS, &params, err));
    once__pg_param_int8(&params, q->storage.now_ms);
    SEND(once__pg_send(q->pg, PG_STATS, &params, err));
    if (rc == ONCE_OK) rc = once__pg_guarded_round(q, results, sent, err);
    if (rc != ONCE_OK) return rc;
    const PGresult *letters = results[sent - 2], *states = results[sent - 1];
    out->dead = (uint64_t)once__pg_int(letters, 0, 0);
    for (int i = 0; i < PQntuples(states); i++) {
        const once_state state = (once_state)once__pg_int(states, i, 0);
        const bool due = !once__pg_null(states, i, 2);
        once__stats_add(out, state, (uint64_t)once__pg_int(states, i, 1),
                        due ? once__pg_int(states, i, 2) : ONCE_NEVER);
    }
    once__pg_clear(results, sent);
    return ONCE_OK;
}

int once__pg_waiting_size(once_storage *storage, once_bytes consumer, once_waiting_size *out, once_error *err)
{
    assert(once__pg_of(storage)->open);
    once_postgres *q = (once_postgres *)storage;
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_bytes(&params, consumer);
    const int rc = once__pg_answer(q, PG_WAITING_SIZE, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_waiting_size){(uint64_t)once__pg_int(result, 0, 0), (uint64_t)once__pg_int(result, 0, 1)};
    PQclear(result);
    return ONCE_OK;
}
