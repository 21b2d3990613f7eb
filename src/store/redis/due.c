/* What `take` looks for: entries that are due, claims by their token, and claims whose lease has ended. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "store/redis/index.h"

#include "base/banned.h"

typedef struct ranked {
    double when;
    once_hash id;
    char index;
} ranked;

static int by_rank(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->when != b->when) return a->when < b->when ? -1 : 1;
    return once_hash_compare(a->id, b->id);
}

enum { DUE_INDEXES = 3 };
static const char due_indexes[DUE_INDEXES] = {ONCE_REDIS_WAITING, ONCE_REDIS_CLAIMED, ONCE_REDIS_UNKNOWN};

/* Reads `limit` of each index, from `from` on, as one list in the order of due entries. *whole: that is all of them;
 * otherwise the list ends where one of the indexes was cut off. */
static int read_due(once_redis *r, once_bytes consumer, once_due_mark from, int64_t now_ms, size_t limit, ranked **out,
                    size_t *n, bool *whole, once_error *err)
{
    ranked cut = {.when = INFINITY};
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < DUE_INDEXES; i++)
        once__redis_ask_due(r, due_indexes[i], consumer, from.due_ms, now_ms, limit);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const ranked mark = {(double)from.due_ms, from.id, 0};
    ranked *all = once_arena_alloc(&r->arena, (DUE_INDEXES * limit + 1) * sizeof *all);
    if (!all) return once__redis_nomem(err);
    size_t count = 0;
    for (size_t i = 0; i < DUE_INDEXES; i++) {
        const redisReply *reply = r->pipe.replies[i];
        const size_t found = once__reply_n(reply) / 2;
        ranked one = {0};
        for (size_t k = 0; k < found && k < limit; k++) {
            const once_bytes id = once__reply_at(reply, 2 * k);
            one.index = due_indexes[i];
            if (id.len != 16 || !once__reply_read_score(once__reply_at(reply, 2 * k + 1), &one.when))
                return once__redis_damaged_list(r, (const char[]){'i', due_indexes[i], 0}, consumer, err);
            one.id = once__redis_id_read(id.data);
            if (by_rank(&mark, &one) < 0) all[count++] = one;
        }
        if (found >= limit && by_rank(&one, &cut) < 0) cut = one;
    }
    if (count) qsort(all, count, sizeof *all, by_rank);
    *whole = isinf(cut.when);
    while (count && by_rank(&cut, &all[count - 1]) < 0) count--;
    *out = all;
    *n = count;
    return ONCE_OK;
}

/* The entries, each of which must be where it was found. */
static int load_due(once_redis *r, once_bytes consumer, const ranked *list, size_t n, once_hash *ids, once_error *err)
{
    for (size_t i = 0; i < n; i++) ids[i] = list[i].id;
    int rc = once__redis_prefetch(r, ids, n, NULL, 0, false, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, list[i].id, &slot, err);
        if (rc == ONCE_OK && !slot->dirty && slot->index != list[i].index)
            rc = once__redis_misplaced_in_index(r, list[i].index, consumer, list[i].id, err);
    }
    return rc;
}

int once__redis_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && max > 0);
    ranked *all;
    size_t count;
    bool whole;
    *n = 0;
    const int rc = read_due(r, consumer, (once_due_mark){0}, now_ms, max, &all, &count, &whole, err);
    if (rc != ONCE_OK) return rc;
    *n = count < max ? count : max;
    return load_due(r, consumer, all, *n, out, err);
}

/* --- by operation --- */

/* The first bytes of an entry have its scope, unless its tenant has a very long name. */
enum { SCOPE_BYTES = ONCE_REDIS_HEAD + 8 * 8 + 3 * (ONCE_NAME_MAX + 2) };

static int ask_scopes(once_redis *r, const ranked *list, size_t n, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < n; i++) {
        once__redis_command(&r->pipe, ONCE_REPLY_TEXT, 4);
        once__redis_text(&r->pipe, "GETRANGE");
        once__redis_put_id_key(r, "e", list[i].id);
        once__redis_number(&r->pipe, 0);
        once__redis_number(&r->pipe, SCOPE_BYTES - 1);
    }
    return once__redis_ask(r, err);
}

/* Moves those that the search looks for to the front of the list, and the mark behind the last one that was read. */
static int choose(once_redis *r, once_due_search *search, ranked *list, size_t n, size_t *chosen, once_error *err)
{
    int rc = ONCE_OK;
    *chosen = 0;
    for (size_t at = 0, page; at < n && *chosen < search->max && rc == ONCE_OK; at += page) {
        page = n - at < ONCE_REDIS_PAGE ? n - at : ONCE_REDIS_PAGE;
        rc = ask_scopes(r, list + at, page, err);
        for (size_t i = 0; i < page && *chosen < search->max && rc == ONCE_OK; i++) {
            once_scope scope;
            const once_bytes begin = once__reply_bytes(r->pipe.replies[i]);
            search->from = (once_due_mark){(int64_t)list[at + i].when, list[at + i].id};
            search->read++;
            /* One that does not say it in its first bytes is read as a whole. */
            if (!once__redis_read_open_scope(begin, &scope) || once__due_search_matches(search, scope.operation))
                list[(*chosen)++] = list[at + i];
        }
    }
    return rc;
}

int once__redis_due_of_operations(once_storage *storage, once_bytes consumer, int64_t now_ms, once_due_search *search,
                                  once_hash *out, size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && search->max > 0 && search->read_max > 0);
    ranked *all = NULL;
    size_t count = 0, chosen = 0;
    bool whole = false;
    int rc = ONCE_OK;
    *n = 0;
    /* Entries that are due at the very time of the mark may be in front of it: all of them must fit into a page. */
    for (size_t limit = search->read_max; rc == ONCE_OK && !whole && count == 0; limit *= 2)
        rc = read_due(r, consumer, search->from, now_ms, limit, &all, &count, &whole, err);
    if (rc != ONCE_OK) return rc;
    if (count > search->read_max) {
        count = search->read_max;
        whole = false;
    }
    rc = choose(r, search, all, count, &chosen, err);
    search->end = whole && search->read == count;
    if (rc == ONCE_OK) rc = load_due(r, consumer, all, chosen, out, err);
    for (size_t i = 0; i < chosen && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, out[i], &slot, err);
        if (rc == ONCE_OK && once__due_search_matches(search, slot->entry.scope.operation)) out[(*n)++] = out[i];
    }
    return rc;
}

/* --- by token, and by the end of a lease --- */

typedef struct claim {
    uint64_t token_b;
    once_hash id;
} claim;

static int by_number(const void *x, const void *y)
{
    const claim *a = x, *b = y;
    return a->token_b < b->token_b ? -1 : a->token_b > b->token_b;
}

/* Ids of claims, whether or not their leases have ended, and of unknown entries that have a due time. Free *out. */
static int claimed_ids(once_redis *r, once_bytes consumer, once_hash **out, size_t *n, once_error *err)
{
    once_redis_ids list = {0};
    int rc = once__redis_open_ids(r, consumer, ONCE_STATE_CLAIMED, 0, &list.at, &list.n, err);
    if (rc != ONCE_OK) return rc;
    list.room = list.n;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, "iu", consumer.data, consumer.len);
    once__redis_text(&r->pipe, "-inf");
    once__redis_text(&r->pipe, "(+inf");
    rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = once__redis_add_ids(r, &list, r->pipe.replies[0], err);
    *out = list.at;
    *n = once__redis_sort_ids(list.at, list.n);
    return rc;
}

/* Needed only after the reply of a `take` was lost. That is rare, so all claims of the consumer are read. */
int once__redis_by_token(once_storage *storage, once_bytes consumer, uint64_t token_a, size_t max, once_hash *out,
                         size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && max > 0);
    ONCE_REDIS_LIST(claim) found = {0};
    once_hash *ids = NULL;
    size_t n_ids = 0;
    int rc = claimed_ids(r, consumer, &ids, &n_ids, err);
    *n = 0;
    for (size_t at = 0; at < n_ids && rc == ONCE_OK; at += ONCE_REDIS_PAGE) {
        const size_t count = n_ids - at < ONCE_REDIS_PAGE ? n_ids - at : ONCE_REDIS_PAGE;
        rc = once__redis_ask_entries(r, ids + at, count, err);
        for (size_t k = 0; k < count && rc == ONCE_OK; k++) {
            once_entry entry;
            once_redis_finished names;
            const once_bytes value = once__reply_at(r->pipe.replies[0], k);
            if (!value.len || !once__redis_read_entry(value, ids[at + k], &entry, &names)) continue; /* gone since */
            const bool asked = entry.state == ONCE_STATE_UNKNOWN && entry.due_ms != ONCE_NEVER;
            if ((entry.state != ONCE_STATE_CLAIMED && !asked) || entry.token.a != token_a) continue;
            if (!ONCE_REDIS_ROOM(found)) rc = once__redis_nomem(err);
            else found.at[found.n++] = (claim){entry.token.b, ids[at + k]};
        }
    }
    if (found.n) qsort(found.at, found.n, sizeof *found.at, by_number);
    for (size_t i = 0; i < found.n && *n < max; i++) out[(*n)++] = found.at[i].id;
    free(found.at);
    free(ids);
    return rc == ONCE_OK ? once__redis_prefetch(r, out, *n, NULL, 0, false, err) : rc;
}

int once__redis_lapsed(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out,
                       size_t *n, once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && max > 0);
    once_redis_ids ids = {0};
    int rc = once__redis_lapsed_ids(r, consumer, now_ms, &ids, err);
    *n = 0;
    for (size_t at = 0; at < ids.n && *n < max && rc == ONCE_OK; at += ONCE_REDIS_PAGE) {
        const size_t count = ids.n - at < ONCE_REDIS_PAGE ? ids.n - at : ONCE_REDIS_PAGE;
        rc = once__redis_ask_entries(r, ids.at + at, count, err);
        for (size_t k = 0; k < count && *n < max && rc == ONCE_OK; k++) {
            once_redis_open_head head;
            if (!once__redis_read_head(once__reply_at(r->pipe.replies[0], k), &head)) continue; /* gone since */
            if (head.state == ONCE_STATE_CLAIMED && head.hold) out[(*n)++] = ids.at[at + k];
        }
    }
    free(ids.at);
    return rc == ONCE_OK && *n ? once__redis_prefetch(r, out, *n, NULL, 0, false, err) : rc;
}
