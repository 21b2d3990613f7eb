/* Saves reads. Two things are assumed instead of read: a claim that this handle wrote itself is unchanged; and after
 * some batches in which every claimed key was new, the next ones are new as well.
 *
 * Neither is trusted. A slot that was filled from an assumption is marked `assumed`, and the commit compares it with
 * the server, even when it is not written. After a difference the cache is cleared, and the entries are read. */
#include <assert.h>

#include "store/redis/redis.h"

#include "base/banned.h"

enum { CACHED_MAX = 16384, VALUE_MAX = 1024, ASSUME_AFTER = 4 };

static once_redis_cached_claim *find(once_redis *r, once_hash id)
{
    size_t at;
    return r->cached_live && once_table_position(&r->cached_map, id, &at) && r->cached.at[at].value.len
               ? &r->cached.at[at]
               : NULL;
}

void once__redis_claim_cache_clear(once_redis *r)
{
    r->cached.n = r->cached_live = 0;
    r->new_batches = 0;
    once_table_clear(&r->cached_map, ONCE_TABLE_KEPT);
    once_arena_reset(&r->cached_arena);
}

static void drop_cached(once_redis *r, once_hash id)
{
    once_redis_cached_claim *kept = find(r, id);
    if (!kept) return;
    assert(r->cached_live > 0);
    kept->value = (once_bytes){0};
    if (--r->cached_live > 0) return;
    r->cached.n = 0;
    once_table_clear(&r->cached_map, ONCE_TABLE_KEPT);
    once_arena_reset(&r->cached_arena);
}

static void keep(once_redis *r, const once_entry *entry, once_bytes value)
{
    drop_cached(r, entry->id);
    if (value.len > VALUE_MAX || r->cached.n >= CACHED_MAX) return;
    once_redis_cached_claim kept = {.id = entry->id, .token = entry->token};
    if (!ONCE_REDIS_ROOM(r->cached) || !once_arena_copy(&r->cached_arena, value, &kept.value)) return;
    size_t at = r->cached.n;
    if (!once_table_position(&r->cached_map, kept.id, &at) && !once_table_put_position(&r->cached_map, kept.id, at))
        return;
    r->cached.n += at == r->cached.n;
    r->cached.at[at] = kept;
    r->cached_live++;
}

void once__redis_claim_cache_note(once_redis *r, const once_entry *entry, once_bytes value)
{
    if (entry->state == ONCE_STATE_CLAIMED && !entry->has_message) keep(r, entry, value);
    else drop_cached(r, entry->id);
}

once_bytes once__redis_claim_cache_value(once_redis *r, once_hash id, once_token token)
{
    const once_redis_cached_claim *kept = find(r, id);
    return kept && once_hash_equal(kept->token, token) ? kept->value : (once_bytes){0};
}

/* --- new keys --- */

bool once__redis_claim_cache_new(const once_redis *r) { return r->new_batches >= ASSUME_AFTER; }

void once__redis_claim_cache_count(once_redis *r)
{
    assert(r->new_batches <= ASSUME_AFTER);
    bool all_new = true;
    for (size_t i = 0; i < r->slots.n && all_new; i++) all_new = r->slots.at[i]->stored.len == 0;
    r->new_batches = !all_new ? 0 : r->new_batches < ASSUME_AFTER ? r->new_batches + 1 : r->new_batches;
}
