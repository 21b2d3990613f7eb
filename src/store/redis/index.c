/* Ids of open entries, from the indexes and the groups of claims of a consumer. Entries change while the ids are read,
 * so callers read each entry itself as well. */
#include "store/redis/index.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

size_t once__redis_next_page(size_t page, size_t n, uint64_t bytes, size_t most)
{
    enum { FIT = 4 << 20 };
    assert(page > 0 && most > 0);
    const uint64_t fit = n && bytes ? (uint64_t)FIT * n / bytes : most, twice = 2 * page,
                   next = fit < twice ? fit : twice;
    return next < 1 ? 1 : next > most ? most : (size_t)next;
}

int once__redis_damaged_list(once_redis *r, const char *kind, once_bytes consumer, once_error *err)
{
    assert(kind[0]);
    once_buf_clear(&r->key);
    once_buf_puts(&r->key, r->prefix);
    once_buf_puts(&r->key, kind);
    if (consumer.len) once_buf_append(&r->key, consumer.data, consumer.len);
    return r->key.failed ? once__redis_nomem(err) : once__redis_damaged_key(r, once_buf_bytes(&r->key), err);
}

void once__redis_ask_index(once_redis *r, char index, once_bytes consumer, int64_t first, int64_t last)
{
    assert(index != ONCE_REDIS_NOWHERE && index != ONCE_REDIS_CLAIMED_BARE);
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    once__redis_number(&r->pipe, first);
    once__redis_number(&r->pipe, last);
}

int once__redis_ask_entries(once_redis *r, const once_hash *ids, size_t n, once_error *err)
{
    assert(n > 0);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command_for(&r->pipe, n, n + 1);
    once__redis_text(&r->pipe, "MGET");
    for (size_t i = 0; i < n; i++) once__redis_put_id_key(r, "e", ids[i]);
    return once__redis_ask(r, err);
}

void once__redis_ask_due(once_redis *r, char index, once_bytes consumer, int64_t from_ms, int64_t now_ms, size_t max)
{
    assert(max > 0 && index != ONCE_REDIS_WAITING_BARE); /* which is not sorted by due time */
    const char kind[] = {'i', index, 0};
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 8);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, kind, consumer.data, consumer.len);
    if (from_ms) once__redis_number(&r->pipe, from_ms);
    else once__redis_text(&r->pipe, "-inf");
    once__redis_number(&r->pipe, now_ms);
    once__redis_text(&r->pipe, "WITHSCORES");
    once__redis_text(&r->pipe, "LIMIT");
    once__redis_number(&r->pipe, 0);
    once__redis_number(&r->pipe, (int64_t)max);
}

static int by_id(const void *x, const void *y)
{
    return once_hash_compare(*(const once_hash *)x, *(const once_hash *)y);
}

size_t once__redis_sort_ids(once_hash *ids, size_t n)
{
    size_t unique = 0;
    if (n) qsort(ids, n, sizeof *ids, by_id);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !once_hash_equal(ids[i], ids[unique - 1])) ids[unique++] = ids[i];
    return unique;
}

/* Adds the ids in `some`, 16 bytes each. */
static int add_ids(once_redis *r, once_redis_ids *list, once_bytes some, once_error *err)
{
    if (some.len == 0 || some.len % 16) return once__redis_damaged(r, "an index", err);
    for (size_t at = 0; at < some.len; at += 16) {
        if (!ONCE_REDIS_ROOM(*list)) return once__redis_nomem(err);
        list->at[list->n++] = once__redis_id_read(some.data + at);
    }
    return ONCE_OK;
}

int once__redis_add_ids(once_redis *r, once_redis_ids *list, const redisReply *reply, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(reply) && rc == ONCE_OK; i++)
        rc = add_ids(r, list, once__reply_at(reply, i), err);
    return rc;
}

/* Adds the ids of the groups whose leases end in [from_ms, to_ms]. */
static int add_groups(once_redis *r, once_redis_ids *list, const redisReply *reply, int64_t from_ms, int64_t to_ms,
                      once_error *err)
{
    assert(from_ms <= to_ms);
    int rc = ONCE_OK;
    for (size_t i = 0; i < once__reply_n(reply) && rc == ONCE_OK; i += 2) {
        const once_bytes group = once__reply_at(reply, i);
        if (group.len != 16) return once__redis_damaged(r, "an index", err);
        const int64_t due_ms = once__redis_group_due(group.data);
        if (due_ms >= from_ms && due_ms <= to_ms) rc = add_ids(r, list, once__reply_at(reply, i + 1), err);
    }
    return rc;
}

static void ask_claims(once_redis *r, once_bytes consumer, int64_t from_ms, int64_t to_ms)
{
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 4);
    once__redis_text(&r->pipe, "ZRANGEBYSCORE");
    once__redis_put_key(r, "iC", consumer.data, consumer.len);
    once__redis_number(&r->pipe, from_ms);
    if (to_ms == ONCE_NEVER) once__redis_text(&r->pipe, "+inf");
    else once__redis_number(&r->pipe, to_ms);
    once__redis_command(&r->pipe, ONCE_REPLY_PAIRS, 2);
    once__redis_text(&r->pipe, "HGETALL");
    once__redis_put_key(r, "g", consumer.data, consumer.len);
}

int once__redis_open_ids(once_redis *r, once_bytes consumer, once_state state, int64_t now_ms, once_hash **out,
                         size_t *n, once_error *err)
{
    assert(!once_state_finished(state) && state != ONCE_STATE_ABSENT);
    static const struct {
        once_state state;
        const char indexes[3];
    } where[] = {{ONCE_STATE_WAITING, {ONCE_REDIS_WAITING, ONCE_REDIS_WAITING_BARE}},
                 {ONCE_STATE_UNKNOWN, {ONCE_REDIS_UNKNOWN}},
                 {ONCE_STATE_DEAD, {ONCE_REDIS_DEAD}}};
    const bool claimed = state == ONCE_STATE_CLAIMED,
               claims = claimed || state == ONCE_STATE_WAITING || state == ONCE_STATE_UNKNOWN;
    const int64_t from_ms = claimed && now_ms ? now_ms + 1 : 0, to_ms = claimed ? ONCE_NEVER : now_ms;
    once_redis_ids list = {0};
    once__redis_pipe_clear(&r->pipe);
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        for (const char *index = where[i].indexes; where[i].state == state && *index; index++)
            once__redis_ask_index(r, *index, consumer, 0, -1);
    const size_t indexes = r->pipe.n;
    if (claims) ask_claims(r, consumer, from_ms, to_ms);
    assert(r->pipe.n > 0);
    int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    redisReply *const *reply = r->pipe.replies;
    for (size_t i = 0; i < indexes + claims && rc == ONCE_OK; i++) rc = once__redis_add_ids(r, &list, reply[i], err);
    if (rc == ONCE_OK && claims) rc = add_groups(r, &list, reply[indexes + 1], from_ms, to_ms, err);
    if (rc != ONCE_OK) {
        free(list.at);
        return rc;
    }
    *out = list.at;
    *n = once__redis_sort_ids(list.at, list.n);
    return ONCE_OK;
}

int once__redis_lapsed_ids(once_redis *r, once_bytes consumer, int64_t now_ms, once_redis_ids *out, once_error *err)
{
    once__redis_pipe_clear(&r->pipe);
    ask_claims(r, consumer, 0, now_ms);
    int rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = once__redis_add_ids(r, out, r->pipe.replies[0], err);
    if (rc == ONCE_OK) rc = add_groups(r, out, r->pipe.replies[1], 0, now_ms, err);
    out->n = once__redis_sort_ids(out->at, out->n);
    return rc;
}
