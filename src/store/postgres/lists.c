/* Lists and counts of the postgres store. A list is asked for in steps. */
#include "store/postgres/live.h"

#include "base/banned.h"

enum { LIST_STEP = 200 };

int once__pg_list_step(once_postgres *q, unsigned statement, const once_pg_params *params, once_pg_row_visit *show,
                       void *user, bool *go_on, int *rows, once_error *err)
{
    PGresult *result = NULL;
    once_arena arena = {0};
    int rc = once__pg_ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_answer(q, statement, params, &result, err);
    *rows = rc == ONCE_OK ? PQntuples(result) : 0;
    rc = once__pg_ask_end(q, rc, err);
    for (int i = 0; i < *rows && rc == ONCE_OK && *go_on; i++) {
        once_arena_reset(&arena);
        rc = show(q, result, i, &arena, user, go_on, err);
    }
    PQclear(result);
    once_arena_release(&arena);
    return rc;
}

typedef struct entry_list {
    once_bytes consumer;
    once_state state;
    once_entry_visit *visit;
    void *user;
    once_hash last;
    int64_t now_ms;
} entry_list;

static int show_live(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                     once_error *err)
{
    entry_list *list = user;
    once_entry entry;
    const int rc = once__pg_read_live(q, result, row, arena, &entry, err);
    if (rc != ONCE_OK) return rc;
    list->last = entry.id;
    once_entry_look(&entry, list->now_ms);
    *go_on = list->visit(list->user, &entry);
    return ONCE_OK;
}

/* Names are asked for entry by entry, but they are few and stay known. */
static int show_finished(once_postgres *q, const PGresult *result, int row, once_arena *arena, void *user, bool *go_on,
                         once_error *err)
{
    entry_list *list = user;
    once_entry entry;
    once_pg_names_of names;
    int rc = once__pg_read_finished(q, result, row, arena, &entry, &names, err);
    if (rc == ONCE_OK) rc = once__pg_names_fetch(q, err);
    if (rc == ONCE_OK) rc = once__pg_name_finished(q, &names, &entry, err);
    if (rc != ONCE_OK) return rc;
    list->last = entry.id;
    if (entry.state == list->state && once_bytes_equal(entry.scope.consumer, list->consumer))
        *go_on = list->visit(list->user, &entry);
    return ONCE_OK;
}

int once__pg_list(once_backend *store, once_bytes consumer, once_state state, once_entry_visit *visit, void *user,
                  once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    entry_list list = {consumer, state, visit, user, {0}, 0};
    const bool finished = once_state_finished(state);
    int rc = once__pg_ask_begin(q, false, err); /* for the time */
    rc = rc == ONCE_OK ? once__pg_ask_end(q, rc, err) : rc;
    list.now_ms = q->shelf.now_ms;
    bool go_on = true;
    for (int rows = LIST_STEP; rc == ONCE_OK && rows == LIST_STEP && go_on;) {
        once_pg_params params = {0};
        if (!finished) {
            once__pg_param_bytes(&params, consumer);
            once__pg_param_int8(&params, (int64_t)state);
        }
        once__pg_param_id(&params, list.last);
        if (finished) once__pg_param_int8(&params, list.now_ms);
        once__pg_param_int8(&params, LIST_STEP);
        if (!finished) once__pg_param_int8(&params, list.now_ms);
        rc = once__pg_list_step(q, finished ? PG_LIST_FINISHED : PG_LIST_LIVE, &params,
                                finished ? show_finished : show_live, &list, &go_on, &rows, err);
    }
    return rc;
}

static int count_rows(once_postgres *q, once_bytes consumer, once_stats *out, once_error *err)
{
    once_pg_params params = {0};
    PGresult *results[2];
    int64_t next_ms = ONCE_NEVER;
    once__pg_param_bytes(&params, consumer);
    int rc = once__pg_send(q->pg, PG_STATS_LETTERS, &params, err);
    once__pg_param_int8(&params, q->shelf.now_ms);
    if (rc == ONCE_OK) rc = once__pg_send(q->pg, PG_STATS, &params, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, results, 2, err);
    if (rc != ONCE_OK) return rc;
    out->dead = (uint64_t)once__pg_int(results[0], 0, 0);
    for (int i = 0; i < PQntuples(results[1]); i++) {
        const int64_t state = once__pg_int(results[1], i, 0);
        const uint64_t n = (uint64_t)once__pg_int(results[1], i, 1);
        if (state == ONCE_STATE_UNKNOWN) out->unknown = n;
        if (state == ONCE_STATE_WAITING) out->waiting = n;
        if (state == ONCE_STATE_CLAIMED) out->claimed = n;
        if (state == ONCE_STATE_UNKNOWN || once__pg_null(results[1], i, 2)) continue;
        if (once__pg_int(results[1], i, 2) < next_ms) next_ms = once__pg_int(results[1], i, 2);
    }
    once__pg_clear(results, 2);
    if (next_ms != ONCE_NEVER) out->wait_ms = next_ms > q->shelf.now_ms ? next_ms - q->shelf.now_ms : 0;
    return ONCE_OK;
}

int once__pg_stats(once_backend *store, once_bytes consumer, once_stats *out, once_error *err)
{
    once_postgres *q = (once_postgres *)store;
    int rc = once__pg_ask_begin(q, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_stats){.wait_ms = ONCE_NEVER};
    rc = count_rows(q, consumer, out, err);
    return once__pg_ask_end(q, rc, err);
}
