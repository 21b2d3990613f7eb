/* What `take` looks for: entries that are due, claims by their token, and claims whose lease has ended. */
#include <assert.h>
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

int once__redis_due(once_storage *storage, once_bytes consumer, int64_t now_ms, size_t max, once_hash *out, size_t *n,
                    once_error *err)
{
    once_redis *r = once__redis_of(storage);
    assert(r->open && max > 0);
    *n = 0;
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < DUE_INDEXES; i++) once__redis_ask_due(r, due_indexes[i], consumer, now_ms, max);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    const size_t room = DUE_INDEXES * max;
    ranked *all = once_arena_alloc(&r->arena, (room + 1) * sizeof *all);
    if (!all) return once__redis_nomem(err);
    size_t count = 0;
    for (size_t i = 0; i < DUE_INDEXES; i++) {
        const redisReply *reply = r->pipe.replies[i];
        for (size_t k = 0; k < once__reply_n(reply) && count < room; k += 2) {
            const once_bytes id = once__reply_at(reply, k);
            double when;
            if (id.len != 16 || !once__reply_read_score(once__reply_at(reply, k + 1), &when))
                return once__redis_damaged_list(r, (const char[]){'i', due_indexes[i], 0}, consumer, err);
            all[count++] = (ranked){when, once__redis_id_read(id.data), due_indexes[i]};
        }
    }
    if (count) qsort(all, count, sizeof *all, by_rank);
    *n = count < max ? count : max;
    for (size_t i = 0; i < *n; i++) out[i] = all[i].id;
    rc = once__redis_prefetch(r, out, *n, NULL, 0, false, err);
    for (size_t i = 0; i < *n && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, all[i].id, &slot, err);
        if (rc == ONCE_OK && !slot->dirty && slot->index != all[i].index)
            rc = once__redis_misplaced_in_index(r, all[i].index, consumer, all[i].id, err);
    }
    return rc;
}

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
