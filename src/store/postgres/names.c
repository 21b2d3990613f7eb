/* Scopes, places, runs and people in few bytes: a finished entry has their numbers. Two hash tables (by text, by
 * number) over the
 * same names.
 *
 * Text: 'S', the lengths of tenant, consumer and operation (4 bytes each), and these; 'P' and the place; 'R' and the
 * run; 'W'
 * and who it was.
 * Numbers are never taken back. One that was made in a transaction that is rolled back was never there, so then
 * everything is forgotten and asked for again. So it is with a new connection. Under one that lives on a store may be
 * restored,
 * too: its tables are loaded anew, or a pooler goes on to another server. So what is known from earlier transactions is
 * compared with
 * the server by each one that uses it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/postgres.h"

#include "base/banned.h"

enum { KEEP_MAX = 4096 }; /* names that may stay in memory between transactions */

static bool parse(once_pg_name *name)
{
    if (name->len < 1) return false;
    uint32_t lens[3];
    const size_t head = 1 + sizeof lens;
    switch (name->text[0]) {
    case 'S':
        if (name->len < head) return false;
        memcpy(lens, name->text + 1, sizeof lens);
        if ((uint64_t)lens[0] + lens[1] + lens[2] != name->len - head) return false;
        const char *at = name->text + head;
        name->scope = (once_scope){{at, lens[0]}, {at + lens[0], lens[1]}, {at + lens[0] + lens[1], lens[2]}};
        return true;
    case 'P':
    case 'W': name->bytes = (once_bytes){name->text + 1, name->len - 1}; return true;
    case 'R':
        if (name->len != 9) return false;
        memcpy(&name->run, name->text + 1, 8);
        return true;
    default: return false;
    }
}

static once_pg_name *make(const char *text, size_t len)
{
    once_pg_name *name = calloc(1, sizeof *name + len);
    if (!name) return NULL;
    name->len = len;
    memcpy(name->text, text, len);
    if (parse(name)) return name;
    free(name);
    return NULL;
}

static bool list_room(void *list_at, size_t n, size_t *size, size_t each)
{
    if (n < *size) return true;
    const size_t more = *size ? *size * 2 : 16;
    void **at = list_at, *grown = realloc(*at, more * each);
    if (!grown) return false;
    *at = grown;
    *size = more;
    return true;
}

static once_pg_name *by_text(const once_pg_names *names, once_hash hash, const char *text, size_t len)
{
    once_pg_name *name = once_table_get(&names->by_text, hash);
    while (name && (name->len != len || memcmp(name->text, text, len) != 0)) name = name->same_hash;
    return name;
}

static bool add(once_pg_names *names, once_hash hash, once_pg_name *name)
{
    name->same_hash = once_table_get(&names->by_text, hash);
    const bool added = once_table_put(&names->by_text, hash, name);
    names->n += added;
    return added;
}

static once_pg_name *find(once_pg_names *names, const char *text, size_t len)
{
    const once_hash hash = once_xxh128(0, text, len);
    once_pg_name *name = by_text(names, hash, text, len);
    if (name) return name;
    if (!list_room(&names->unknown, names->n_unknown, &names->unknown_size, sizeof *names->unknown)) return NULL;
    name = make(text, len);
    if (!name || !add(names, hash, name)) {
        free(name);
        return NULL;
    }
    names->unknown[names->n_unknown++] = name;
    return name;
}

/* NULL stays NULL; so it is also without memory. */
static once_pg_name *use_first(once_pg_names *names, once_pg_name *name)
{
    if (!list_room(&names->used, names->n_used, &names->used_size, sizeof *names->used)) return NULL;
    names->used[names->n_used++] = name;
    name->used = true;
    return name;
}

static inline once_pg_name *use(once_pg_names *names, once_pg_name *name)
{
    return !name || name->used ? name : use_first(names, name);
}

once_pg_name *once__pg_name_scope(once_pg_names *names, const once_scope *scope)
{
    once_pg_name *last = names->last_scope;
    if (last && once_bytes_equal(last->scope.tenant, scope->tenant) &&
        once_bytes_equal(last->scope.consumer, scope->consumer) &&
        once_bytes_equal(last->scope.operation, scope->operation))
        return use(names, last);
    const once_bytes parts[] = {scope->tenant, scope->consumer, scope->operation};
    const uint32_t lens[] = {(uint32_t)parts[0].len, (uint32_t)parts[1].len, (uint32_t)parts[2].len};
    once_buf text;
    once_buf_init(&text, 1 << 20);
    once_buf_append(&text, "S", 1);
    once_buf_append(&text, lens, sizeof lens);
    for (size_t i = 0; i < 3; i++) once_buf_append(&text, parts[i].data, parts[i].len);
    once_pg_name *name = text.failed ? NULL : find(names, text.data, text.len);
    once_buf_release(&text);
    if (name) names->last_scope = name;
    return use(names, name);
}

static once_pg_name *name_of(once_pg_names *names, char kind, once_bytes bytes, once_pg_name **last)
{
    if (*last && once_bytes_equal((*last)->bytes, bytes)) return use(names, *last);
    once_buf text;
    once_buf_init(&text, 1 << 20);
    once_buf_append(&text, &kind, 1);
    once_buf_append(&text, bytes.data, bytes.len);
    once_pg_name *name = text.failed ? NULL : find(names, text.data, text.len);
    once_buf_release(&text);
    if (name) *last = name;
    return use(names, name);
}

once_pg_name *once__pg_name_place(once_pg_names *names, once_bytes place)
{
    return name_of(names, 'P', place, &names->last_place);
}
once_pg_name *once__pg_name_who(once_pg_names *names, once_bytes who)
{
    return name_of(names, 'W', who, &names->last_who);
}

once_pg_name *once__pg_name_run(once_pg_names *names, uint64_t run)
{
    once_pg_name *last = names->last_run;
    if (last && last->run == run) return use(names, last);
    char text[9] = {'R'};
    memcpy(text + 1, &run, 8);
    once_pg_name *name = find(names, text, sizeof text);
    if (name) names->last_run = name;
    return use(names, name);
}

/* ---- numbers ---- */

static once_hash number_key(int32_t number) { return (once_hash){0, (uint64_t)(uint32_t)number}; }

const once_pg_name *once__pg_names_get(const once_pg_names *names, int32_t number)
{
    return once_table_get(&names->by_number, number_key(number));
}

/* A row (id, name). */
static int learn(once_pg_names *names, const PGresult *result, int row, once_error *err)
{
    const int32_t number = (int32_t)once__pg_int(result, row, 0);
    const once_bytes text = once__pg_bytes(result, row, 1);
    if (once_table_get(&names->by_number, number_key(number))) return ONCE_OK;
    const once_hash hash = once_xxh128(0, text.data, text.len);
    once_pg_name *name = by_text(names, hash, text.data, text.len);
    if (!name) {
        name = make(text.data, text.len);
        if (!name) return once_fail(err, ONCE_E_CORRUPT, "table once_name is damaged; restore it from a backup");
        if (!add(names, hash, name)) {
            free(name);
            return once_no_memory(err, "for names");
        }
    }
    if (!once_table_put(&names->by_number, number_key(number), name)) return once_no_memory(err, "for names");
    name->number = number;
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
    for (size_t i = 0; i < names->n_unknown; i++)
        if (!names->unknown[i]->number) names->unknown[left++] = names->unknown[i];
    names->n_unknown = left;
}

static int find_unknown(once_postgres *q, const once_pg_params *params, once_error *err)
{
    PGresult *result;
    int rc = once__pg_send(q->pg, PG_NAME_FIND, params, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &result, 1, err);
    if (rc != ONCE_OK) return rc;
    rc = learn_all(&q->names, result, err);
    PQclear(result);
    return rc;
}

/* Outside of a transaction it is one by itself, which says what it is: the default may be to read only. */
static int make_unknown(once_postgres *q, const once_pg_params *params, once_error *err)
{
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
    once_pg_names *names = &q->names;
    for (int make_them = 0; make_them < 2 && names->n_unknown; make_them++) {
        once_pg_array *texts = &q->columns[PG_COLUMNS - 1]; /* the others may be filled already */
        once_pg_params params = {0};
        once__pg_array_begin(texts, PG_BYTEA);
        for (size_t i = 0; i < names->n_unknown; i++)
            once__pg_put_bytes(texts, (once_bytes){names->unknown[i]->text, names->unknown[i]->len});
        once__pg_param_array(&params, texts);
        const int rc = make_them ? make_unknown(q, &params, err) : find_unknown(q, &params, err);
        if (rc != ONCE_OK) return rc;
        drop_known(names);
    }
    return names->n_unknown ? once_fail(err, ONCE_E_ABORTED, "a name vanished from once_name") : ONCE_OK;
}

static int changed(once_postgres *q, once_error *err)
{
    q->names.doubted = true;
    return once_fail(err, ONCE_E_ABORTED,
                     "%s: names in once_name are not what they were, as after a restore; they are read anew",
                     q->pg->where);
}

int once__pg_names_confirm(once_postgres *q, once_bytes newest, once_error *err)
{
    const once_pg_name *asked = q->names.asked;
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
        const once_pg_name *name = names->used[names->n_checked];
        if (!name->number) continue;
        once__pg_put_int4(numbers, name->number);
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
    if (once_table_get(&names->by_number, number_key(number))) return true;
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
    int rc = once__pg_send(q->pg, PG_NAME_GET, &params, err);
    if (rc == ONCE_OK) rc = once__pg_round(q->pg, &result, 1, err);
    if (rc != ONCE_OK) return rc;
    rc = learn_all(names, result, err);
    PQclear(result);
    return rc;
}

void once__pg_names_clear(once_pg_names *names)
{
    once_pg_name *name;
    for (size_t at = 0; (name = once_table_next(&names->by_text, &at));)
        for (once_pg_name *next; name; name = next) {
            next = name->same_hash;
            free(name);
        }
    once_table_release(&names->by_number);
    once_table_release(&names->by_text);
    free(names->unknown);
    free(names->missing);
    free(names->used);
    *names = (once_pg_names){0};
}

void once__pg_names_end(once_pg_names *names, bool committed)
{
    for (size_t i = 0; i < names->n_used; i++) names->used[i]->used = false;
    names->n_used = names->n_checked = 0;
    /* Whoever rolled back wants none of the names that he would have asked for, and who only looks next may not make
     * them. */
    const bool taken_back = !committed && (names->fresh || names->n_unknown);
    if (taken_back || names->doubted || names->n > KEEP_MAX) once__pg_names_clear(names);
    names->fresh = false;
}
