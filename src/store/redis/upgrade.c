/* The change from format 1: entries that wait without a body are indexed by expiry, so each is written again. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "store/redis/index.h"

#include "base/banned.h"

/* Writes the entries again, in the form of today. */
static int rewrite(once_redis *r, const once_hash *ids, size_t n, once_error *err)
{
    assert(n > 0 && !r->open);
    int rc = r->storage.ops->begin(&r->storage, true, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        once_redis_slot *slot;
        rc = once__redis_slot(r, ids[i], &slot, err);
        if (rc == ONCE_OK && slot->index == ONCE_REDIS_WAITING_BARE)
            rc = r->storage.ops->save(&r->storage, &slot->entry, err);
    }
    if (rc == ONCE_OK) return r->storage.ops->commit(&r->storage, err);
    r->storage.ops->rollback(&r->storage);
    return rc;
}

static int rewrite_waiting(once_redis *r, once_bytes consumer, once_error *err)
{
    enum { TRIES = 20 };
    once_redis_ids list = {0};
    once__redis_pipe_clear(&r->pipe);
    once__redis_ask_index(r, ONCE_REDIS_WAITING_BARE, consumer, 0, -1);
    int rc = once__redis_ask(r, err);
    if (rc == ONCE_OK) rc = once__redis_add_ids(r, &list, r->pipe.replies[0], err);
    for (size_t at = 0; at < list.n && rc == ONCE_OK; at += ONCE_REDIS_PAGE)
        for (int i = 0; i < TRIES; i++) {
            rc = rewrite(r, list.at + at, list.n - at < ONCE_REDIS_PAGE ? list.n - at : ONCE_REDIS_PAGE, err);
            if (rc != ONCE_E_ABORTED) break;
        }
    free(list.at);
    return rc;
}

int once__redis_upgrade(once_redis *r, once_error *err)
{
    assert(!r->open);
    once_arena arena = {0};
    ONCE_REDIS_LIST(once_bytes) consumers = {0};
    const size_t prefix = strlen(r->prefix) + 2;
    char cursor[24] = "0";
    int rc = ONCE_OK;
    do {
        const redisReply *keys = NULL;
        rc = once__redis_scan_keys(r, "iw", cursor, &keys, err);
        for (size_t i = 0; rc == ONCE_OK && i < once__reply_n(keys); i++) {
            once_bytes key = once__reply_at(keys, i);
            if (key.len < prefix) continue; /* not a key of the store */
            key = (once_bytes){key.data + prefix, key.len - prefix};
            if (!ONCE_REDIS_ROOM(consumers) || !once_arena_copy(&arena, key, &key)) rc = once__redis_nomem(err);
            else consumers.at[consumers.n++] = key;
        }
    } while (rc == ONCE_OK && strcmp(cursor, "0") != 0);
    for (size_t i = 0; i < consumers.n && rc == ONCE_OK; i++) rc = rewrite_waiting(r, consumers.at[i], err);
    free(consumers.at);
    once_arena_release(&arena);
    return rc;
}
