/* Dead letters of the postgres store. A transaction collects them column by column. They are written by the commit, or
 * when the engine asks whether they are new. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/postgres/live.h"

#include "base/banned.h"

enum { LETTERS_KEPT = 16 << 20 };

static void letter_keep(once_postgres *q, const once_letter *l, once_hash unique)
{
    assert(q->write && l->count >= 1);
    once_pg_array *c = q->letters;
    for (size_t i = 0; i < PG_LETTER_COLUMNS && c[0].n == 0; i++)
        once__pg_array_begin(&c[i], i < 2 ? PG_UUID : i < 10 ? PG_INT8 : PG_BYTEA);
    once__pg_put_id(&c[0], unique);
    if (once_hash_is_zero(l->entry)) once__pg_put_null(&c[1]);
    else once__pg_put_id(&c[1], l->entry);
    once__pg_put_int8(&c[2], l->attempt);
    once__pg_put_int8(&c[3], l->failures);
    once__pg_put_int8(&c[4], l->seen_ms);
    once__pg_put_int8(&c[5], l->buried_ms);
    if (l->message.sent_ms == ONCE_NO_TIME) once__pg_put_null(&c[6]);
    else once__pg_put_int8(&c[6], l->message.sent_ms);
    once__pg_put_int8(&c[7], once__letter_kind_write(l));
    once__pg_put_int8(&c[8], (int64_t)l->count);
    once__pg_put_int8(&c[9], l->last_ms);
    const once_bytes texts[] = {l->scope.tenant,     l->scope.consumer,   l->scope.operation, l->key,
                                l->reason,           l->message.type,     l->message.headers, l->message.body,
                                l->message.at.place, l->message.at.point, l->history};
    for (size_t i = 0; i < 11; i++) once__pg_put_bytes(&c[10 + i], texts[i]);
}

static size_t letters_size(const once_postgres *q)
{
    size_t size = 0;
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) size += q->letters[i].buf.len;
    return size;
}

int once__pg_letters_send(once_postgres *q, unsigned statement, once_error *err)
{
    assert(q->letters[0].n > 0);
    once_pg_params params = {0};
    for (size_t i = 0; i < PG_LETTER_COLUMNS; i++) once__pg_param_array(&params, &q->letters[i]);
    q->letters[0].n = 0;
    return once__pg_send(q->pg, statement, &params, err);
}

/* Deletes come before inserts: a new letter may have the same unique as the one that it replaces. */
int once__pg_dropped_send(once_postgres *q, size_t *sent, once_error *err)
{
    once_pg_params params = {0};
    if (q->dropped.n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->dropped);
    q->dropped.n = 0;
    ++*sent;
    return once__pg_send(q->pg, PG_LETTERS_DROP, &params, err);
}

typedef struct asked_letter {
    int64_t count;
    bool *fresh;
} asked_letter;

/* Writes the letters collected so far, and sets *fresh of those that were asked about: a letter that existed has a
 * higher count than was given. */
static int letters_write(once_postgres *q, unsigned statement, const once_table *asked, once_error *err)
{
    assert(q->write);
    PGresult *results[3], *result;
    size_t sent = 0;
    if (q->letters[0].n == 0) return ONCE_OK;
    int rc = once__pg_guard_send(q, &sent, err);
    if (rc == ONCE_OK) rc = once__pg_dropped_send(q, &sent, err);
    if (rc == ONCE_OK) rc = once__pg_letters_send(q, statement, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_guarded_round(q, results, sent + 1, err);
    if (rc != ONCE_OK) return rc;
    result = results[sent];
    once__pg_clear(results, sent);
    for (int i = 0; i < PQntuples(result); i++) {
        const asked_letter *letter = once_table_get(asked, once__pg_id(result, i, 0));
        if (letter) *letter->fresh = once__pg_int(result, i, 1) == letter->count;
    }
    PQclear(result);
    return ONCE_OK;
}

static int letters_count(once_postgres *q, const once_letter *letters, const once_hash *uniques, size_t n, bool *fresh,
                         once_table *asked, once_error *err)
{
    asked_letter *list = once_arena_new(&q->arena, asked_letter, n + 1);
    if (!list) return once_no_memory(err, "in the postgres store");
    int rc = letters_write(q, PG_LETTERS_PUT, asked, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        fresh[i] = false;
        list[i] = (asked_letter){(int64_t)letters[i].count, &fresh[i]};
        if (!once_table_put(asked, uniques[i], &list[i])) return once_no_memory(err, "in the postgres store");
        letter_keep(q, &letters[i], uniques[i]);
        if (letters_size(q) > LETTERS_KEPT) rc = letters_write(q, PG_LETTERS_COUNT, asked, err);
    }
    return rc == ONCE_OK ? letters_write(q, PG_LETTERS_COUNT, asked, err) : rc;
}

int once__pg_letters_put(once_storage *storage, const once_letter *letters, const once_hash *uniques, size_t n,
                         bool *fresh, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->write && n > 0);
    if (q->pg->savepoints) return once_fail(err, ONCE_E_BUG, "a store verb between a savepoint and its end");
    once_table asked = {0};
    int rc = ONCE_OK;
    for (size_t i = 0; i < n && !fresh && rc == ONCE_OK; i++) {
        letter_keep(q, &letters[i], uniques[i]);
        if (letters_size(q) > LETTERS_KEPT) rc = letters_write(q, PG_LETTERS_PUT, &asked, err);
    }
    if (fresh) rc = letters_count(q, letters, uniques, n, fresh, &asked, err);
    once_table_release(&asked);
    return rc;
}

static int read_letter(const PGresult *r, int row, once_arena *arena, once_letter *l, once_error *err)
{
    *l = (once_letter){
        .id = (uint64_t)once__pg_int(r, row, 0),
        .entry = once__pg_id(r, row, 1),
        .attempt = (uint32_t)once__pg_int(r, row, 2),
        .failures = (uint32_t)once__pg_int(r, row, 3),
        .seen_ms = once__pg_int(r, row, 4),
        .buried_ms = once__pg_int(r, row, 5),
        .message.sent_ms = once__pg_null(r, row, 6) ? ONCE_NO_TIME : once__pg_int(r, row, 6),
    };
    if (!once__letter_kind_read(once__pg_int(r, row, 7), l))
        return once_fail(err, ONCE_E_CORRUPT, "table once_letter is damaged; restore it from a backup");
    once_bytes *const texts[] = {&l->scope.tenant,     &l->scope.consumer,   &l->scope.operation, &l->key,
                                 &l->reason,           &l->message.type,     &l->message.headers, &l->message.body,
                                 &l->message.at.place, &l->message.at.point, &l->history};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++)
        if (!once__pg_copy_column(r, row, 8 + i, arena, texts[i])) return once_no_memory(err, "in the postgres store");
    l->count = (uint64_t)once__pg_int(r, row, 19);
    l->last_ms = once__pg_int(r, row, 20) ? once__pg_int(r, row, 20) : l->buried_ms;
    l->identity = once__pg_id(r, row, 21);
    return ONCE_OK;
}

static once_pg_ahead *find_ahead(once_postgres *q, uint64_t id)
{
    for (size_t i = 0; i < q->n_ahead; i++) { /* the engine mostly asks in the order of reading */
        once_pg_ahead *ahead = &q->ahead[(q->ahead_at + i) % q->n_ahead];
        if (ahead->id != id) continue;
        q->ahead_at = (size_t)(ahead - q->ahead);
        return ahead;
    }
    return NULL;
}

/* The entry that the letter belongs to; for a letter without one, the entry of its key. */
static once_hash entry_of(const once_postgres *q, const once_letter *letter)
{
    if (!once_hash_is_zero(letter->entry) || letter->key.len == 0) return letter->entry;
    return once_key_id(q->storage.store.secret, &letter->scope, letter->key);
}

static int load_ahead(once_postgres *q, once_error *err)
{
    once_hash *ids = once_arena_new(&q->arena, once_hash, 2 * q->n_ahead + 2);
    size_t n = 0;
    if (!ids) return once_no_memory(err, "in the postgres store");
    for (size_t i = 0; i < q->n_ahead; i++) {
        const once_letter *letter = &q->ahead[i].letter;
        ids[n] = letter->id ? entry_of(q, letter) : (once_hash){0};
        n += !once_hash_is_zero(ids[n]);
        ids[n] = letter->id && once_hash_is_zero(letter->entry) ? letter->identity
                                                                : (once_hash){0}; /* the entry that notes the discard */
        n += !once_hash_is_zero(ids[n]);
    }
    return once__pg_load_by_id(q, ids, n, err);
}

/* Nobody else can remove the letter, because whoever does has the lock of its entry, which is ours. */
static bool is_guarded(once_postgres *q, const once_letter *letter)
{
    const once_hash id = entry_of(q, letter);
    const once_pg_slot *slot = once_hash_is_zero(id) ? NULL : once_table_get(&q->slots, id);
    return slot && slot->row != PG_ROW_NONE && !slot->unlocked;
}

/* Asks for those that are guarded by their entries, or locks the others; sets `left` of those that are there. */
static int ask_left(once_postgres *q, bool guarded, once_error *err)
{
    once_pg_params params = {0};
    PGresult *result;
    size_t n = 0;
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < q->n_ahead; i++) {
        const once_letter *letter = &q->ahead[i].letter;
        if (!letter->id || is_guarded(q, letter) != guarded) continue;
        once__pg_put_int8(&q->columns[0], (int64_t)letter->id);
        n++;
    }
    if (n == 0) return ONCE_OK;
    once__pg_param_array(&params, &q->columns[0]);
    const int rc = once__pg_answer(q, guarded ? PG_LETTERS_LEFT : PG_LETTERS_LOCK, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    size_t at = 0;
    for (int i = 0; i < PQntuples(result); i++) { /* mostly in the order of reading */
        const uint64_t id = (uint64_t)once__pg_int(result, i, 0);
        for (size_t k = 0; k < q->n_ahead; k++, at = (at + 1) % q->n_ahead) {
            if (q->ahead[at].letter.id != id) continue;
            q->ahead[at].left = true;
            break;
        }
    }
    PQclear(result);
    return ONCE_OK;
}

/* Loading the entries may have waited for a transaction that removed letters, and their messages may have run since:
 * what was read of such a letter before says nothing any more. From now on nobody else removes one. */
static int look_again(once_postgres *q, once_error *err)
{
    int rc = ask_left(q, true, err);
    if (rc == ONCE_OK) rc = ask_left(q, false, err);
    for (size_t i = 0; i < q->n_ahead; i++)
        if (!q->ahead[i].left) q->ahead[i].letter.id = 0;
    return rc;
}

/* So that they are not read again in this transaction. */
static int delete_dropped(once_postgres *q, once_error *err)
{
    if (q->dropped.n == 0) return ONCE_OK;
    once_pg_params params = {0};
    once__pg_param_array(&params, &q->dropped);
    const int rc = once__pg_tell(q, PG_LETTERS_DROP, &params, err);
    q->dropped.n = 0;
    return rc;
}

int once__pg_letters_ahead(once_storage *storage, const uint64_t *ids, size_t n, once_error *err)
{
    assert(once__pg_of(storage)->open);
    once_postgres *q = once__pg_of(storage);
    once_pg_params params = {0};
    PGresult *result;
    q->n_ahead = q->ahead_at = 0;
    if (n == 0) return ONCE_OK;
    int rc = delete_dropped(q, err);
    if (rc != ONCE_OK) return rc;
    q->ahead = once_arena_new(&q->arena, once_pg_ahead, n);
    if (!q->ahead) return once_no_memory(err, "in the postgres store");
    once__pg_array_begin(&q->columns[0], PG_INT8);
    for (size_t i = 0; i < n; i++) {
        q->ahead[i].id = ids[i];
        once__pg_put_int8(&q->columns[0], (int64_t)ids[i]);
    }
    once__pg_param_array(&params, &q->columns[0]);
    rc = once__pg_answer(q, PG_LETTERS_GET, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    q->n_ahead = n;
    for (int i = 0; i < PQntuples(result) && rc == ONCE_OK; i++) {
        once_letter letter;
        rc = read_letter(result, i, &q->arena, &letter, err);
        once_pg_ahead *ahead = rc == ONCE_OK ? find_ahead(q, letter.id) : NULL;
        if (ahead) ahead->letter = letter;
    }
    q->ahead_at = 0; /* of two with one id the first one counts */
    PQclear(result);
    if (rc == ONCE_OK) rc = load_ahead(q, err);
    return rc == ONCE_OK ? look_again(q, err) : rc;
}

int once__pg_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                        once_error *err)
{
    assert(once__pg_of(storage)->open);
    once_postgres *q = once__pg_of(storage);
    const once_pg_ahead *ahead = find_ahead(q, id);
    if (ahead) {
        *found = ahead->letter.id != 0;
        return !*found || once__letter_copy(arena, &ahead->letter, out) ? ONCE_OK
                                                                        : once_no_memory(err, "in the postgres store");
    }
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_int8(&params, (int64_t)id);
    int rc = once__pg_answer(q, PG_LETTER_GET, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    *found = PQntuples(result) > 0;
    if (*found) rc = read_letter(result, 0, arena, out, err);
    PQclear(result);
    return rc;
}

/* A letter that was read ahead is deleted by the commit, together with others. */
int once__pg_letter_drop(once_storage *storage, uint64_t id, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->write);
    once_pg_ahead *ahead = find_ahead(q, id);
    once_pg_array alone = {0};
    once_pg_array *list = ahead ? &q->dropped : &alone;
    if (!ahead) once__pg_array_init(&alone);
    if (list->n == 0) once__pg_array_begin(list, PG_INT8);
    once__pg_put_int8(list, (int64_t)id);
    if (ahead) {
        ahead->letter.id = 0;
        return ONCE_OK;
    }
    once_pg_params params = {0};
    once__pg_param_array(&params, &alone);
    const int rc = once__pg_tell(q, PG_LETTERS_DROP, &params, err);
    once__pg_array_release(&alone);
    return rc;
}

int once__pg_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                     void *user, once_error *err)
{
    once_postgres *q = once__pg_of(storage);
    assert(q->begun && page->max > 0);
    once_pg_params params = {0};
    PGresult *result;
    once__pg_param_bytes(&params, what->consumer);
    once__pg_param_int8(&params, (int64_t)page->number);
    once__pg_param_int8(&params, (int64_t)page->max);
    if (what->by_key) once__pg_param_bytes(&params, what->key);
    const unsigned statement = what->by_key     ? PG_LETTERS_OF_KEY
                               : what->only_ids ? PG_LETTER_IDS
                               : what->heads    ? PG_LETTER_HEADS
                                                : PG_LETTERS;
    int rc = once__pg_answer(q, statement, &params, &result, err);
    if (rc != ONCE_OK) return rc;
    bool go_on = true;
    for (int i = 0; i < PQntuples(result) && rc == ONCE_OK && go_on; i++) {
        once_letter letter = {.id = (uint64_t)once__pg_int(result, i, 0)};
        if (statement != PG_LETTER_IDS) rc = read_letter(result, i, &q->arena, &letter, err);
        if (rc != ONCE_OK) break;
        page->number = letter.id;
        go_on = visit(user, &letter);
    }
    page->more = rc == ONCE_OK && (size_t)PQntuples(result) >= page->max;
    PQclear(result);
    return rc;
}
