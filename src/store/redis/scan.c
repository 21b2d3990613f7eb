/* SCAN over the keys of a store. Finished entries are in no index, so this is the only way to find them. The server may
 * return a key twice. */
#include <assert.h>
#include <string.h>

#include "store/redis/index.h"

#include "base/banned.h"

static void pattern_of(const once_redis *r, const char *kind, char out[2 * ONCE_REDIS_NAME + 40])
{
    size_t n = 0;
    for (const char *c = r->prefix; *c; c++) {
        if (strchr("[]*?\\^-", *c)) out[n++] = '\\';
        out[n++] = *c;
    }
    memcpy(out + n, kind, strlen(kind));
    memcpy(out + n + strlen(kind), "*", 2);
}

void once__redis_ask_scan(once_redis *r, const char *kind, const char cursor[24], size_t count)
{
    assert(count > 0);
    char pattern[2 * ONCE_REDIS_NAME + 40];
    pattern_of(r, kind, pattern);
    once__redis_pipe_clear(&r->pipe);
    once__redis_command(&r->pipe, ONCE_REPLY_PAGE, 6);
    once__redis_text(&r->pipe, "SCAN");
    once__redis_text(&r->pipe, cursor);
    once__redis_text(&r->pipe, "MATCH");
    once__redis_text(&r->pipe, pattern);
    once__redis_text(&r->pipe, "COUNT");
    once__redis_number(&r->pipe, (int64_t)count);
}

int once__redis_scan_keys(once_redis *r, const char *kind, char cursor[24], const redisReply **keys, once_error *err)
{
    once__redis_ask_scan(r, kind, cursor, ONCE_REDIS_PAGE);
    const int rc = once__redis_ask(r, err);
    if (rc != ONCE_OK) return rc;
    once__reply_cursor(r->pipe.replies[0], cursor);
    *keys = once__reply_keys(r->pipe.replies[0]);
    return ONCE_OK;
}

int once__redis_scan_entries(once_redis *r, char cursor[24], once_hash *ids, size_t max, size_t *n, once_error *err)
{
    assert(max > 0);
    const redisReply *keys;
    const int rc = once__redis_scan_keys(r, "e", cursor, &keys, err);
    if (rc != ONCE_OK) return rc;
    const size_t prefix = strlen(r->prefix) + 1;
    *n = 0;
    for (size_t i = 0; i < once__reply_n(keys) && *n < max; i++) {
        const once_bytes key = once__reply_at(keys, i);
        if (key.len == prefix + 16) ids[(*n)++] = once__redis_id_read(key.data + prefix);
    }
    return ONCE_OK;
}
