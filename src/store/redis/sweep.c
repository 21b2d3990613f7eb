/* The sweep. The server expires keys; the sweep removes what is left of them in indexes. */
#include <assert.h>
#include <string.h>

#include "store/redis/index.h"

#include "base/banned.h"

static int now_of(once_redis *r, int64_t *out, once_error *err)
{
    const bool inside = r->storage.in_tx;
    if (!inside) {
        const int rc = r->storage.ops->begin(&r->storage, false, err);
        if (rc != ONCE_OK) return rc;
        r->storage.ops->rollback(&r->storage);
    }
    *out = r->storage.now_ms;
    return ONCE_OK;
}

#ifdef ONCE_TEST_BUILD
/* With a test's clock the server expires nothing, so the sweep deletes what the server would have expired. */
static int sweep_by_hand(once_redis *r, size_t limit, once_sweep_result *out, once_error *err)
{
    enum { SCAN_MAX = ONCE_REDIS_PAGE * 16 };
    static once_hash ids[SCAN_MAX];
    size_t n;
    char cursor[24] = "0";
    int rc = ONCE_OK;
    do {
        rc = once__redis_scan_entries(r, cursor, ids, SCAN_MAX, &n, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            if (out->dropped == limit) {
                out->more = true;
                return ONCE_OK;
            }
            once_redis_slot *slot;
            rc = r->storage.ops->begin(&r->storage, true, err);
            if (rc != ONCE_OK) break;
            rc = once__redis_slot(r, ids[i], &slot, err);
            const bool over = rc == ONCE_OK && once_entry_expired(&slot->entry, r->storage.now_ms);
            if (over) {
                slot->entry.state = ONCE_STATE_ABSENT;
                rc = r->storage.ops->save(&r->storage, &slot->entry, err);
            }
            if (rc == ONCE_OK) rc = r->storage.ops->commit(&r->storage, err);
            else r->storage.ops->rollback(&r->storage);
            if (rc == ONCE_OK && over) out->dropped++;
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    return rc;
}
#endif

/* Removes members whose time has passed from a sorted set, up to a limit. One script, because a worker may add such an
 * entry again between two commands. */
static void trim(once_redis *r, once_bytes consumer, int64_t now_ms, size_t max)
{
    assert(max > 0);
    static const char script[] =
        "local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])\n"
        "if #over > 0 then redis.call('ZREM', KEYS[1], unpack(over)) end\n"
        "return #over\n";
    once__redis_command(&r->pipe, ONCE_REPLY_COUNT, 6);
    once__redis_text(&r->pipe, "EVAL");
    once__redis_text(&r->pipe, script);
    once__redis_text(&r->pipe, "1");
    once__redis_put_key(r, "iw", consumer.data, consumer.len);
    once__redis_number(&r->pipe, now_ms);
    once__redis_number(&r->pipe, (int64_t)max);
}

/* The server has expired entries that waited without a body; their places in the index are removed here. */
static int sweep_index(once_redis *r, size_t limit, once_sweep_result *out, once_error *err)
{
    enum { MOST = 1000 };
    const size_t max = limit < MOST ? limit : MOST;
    int64_t now_ms;
    once_arena arena = {0};
    int rc = now_of(r, &now_ms, err);
    if (rc != ONCE_OK) return rc;
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_TEXTS, 2);
    once__redis_text(&r->pipe, "SMEMBERS");
    once__redis_put_key(r, "w", NULL, 0);
    rc = once__redis_ask(r, err);
    const size_t n = rc == ONCE_OK ? once__reply_n(r->pipe.replies[0]) : 0;
    once_bytes *consumers = once_arena_new(&arena, once_bytes, n + 1);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        if (!consumers || !once_arena_copy(&arena, once__reply_at(r->pipe.replies[0], i), &consumers[i]))
            rc = once__redis_nomem(err);
    if (rc == ONCE_OK && n) {
        once__redis_pipe_clear(&r->pipe);
        for (size_t i = 0; i < n; i++) trim(r, consumers[i], now_ms, max);
        rc = once__redis_ask(r, err);
        for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
            out->dropped += once__reply_count(r->pipe.replies[i]);
            out->more |= once__reply_count(r->pipe.replies[i]) == max;
        }
    }
    once_arena_release(&arena);
    return rc;
}

int once__redis_sweep(once_backend *store, size_t limit, once_sweep_result *out, once_error *err)
{
    assert(limit > 0);
    once_redis *r = (once_redis *)store;
    *out = (once_sweep_result){0};
#ifdef ONCE_TEST_BUILD
    if (r->test_clock) return sweep_by_hand(r, limit, out, err);
#endif
    return sweep_index(r, limit, out, err);
}
