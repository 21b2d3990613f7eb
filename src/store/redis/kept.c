/* What need not be read: claims that this handle wrote itself, and, for a while, that new keys are new.
 *
 * Neither is trusted. A slot that was filled from here is `assumed`: the commit compares it with what is there, written
 * or not, and after a difference everything is forgotten here and read there. */
#include <assert.h>

#include "store/redis/redis.h"

#include "base/banned.h"

enum { KEPT_MAX = 16384, VALUE_MAX = 1024, ASSUME_AFTER = 4 };

static once_redis_kept *find(once_redis *r, once_hash id)
{
    size_t at;
    return r->kept_live && once_table_position(&r->kept_map, id, &at) && r->kept.at[at].value.len ? &r->kept.at[at]
                                                                                                  : NULL;
}

void once__redis_kept_clear(once_redis *r)
{
    r->kept.n = r->kept_live = 0;
    r->new_batches = 0;
    once_table_clear(&r->kept_map, ONCE_TABLE_KEPT);
    once_arena_reset(&r->kept_arena);
}

static void unkeep(once_redis *r, once_hash id)
{
    once_redis_kept *kept = find(r, id);
    if (!kept) return;
    assert(r->kept_live > 0);
    kept->value = (once_bytes){0};
    if (--r->kept_live > 0) return;
    r->kept.n = 0;
    once_table_clear(&r->kept_map, ONCE_TABLE_KEPT);
    once_arena_reset(&r->kept_arena);
}

static void keep(once_redis *r, const once_entry *entry, once_bytes value)
{
    unkeep(r, entry->id);
    if (value.len > VALUE_MAX || r->kept.n >= KEPT_MAX) return;
    once_redis_kept kept = {.id = entry->id, .token = entry->token};
    if (!ONCE_REDIS_ROOM(r->kept) || !once_arena_copy(&r->kept_arena, value, &kept.value)) return;
    size_t at = r->kept.n;
    if (!once_table_position(&r->kept_map, kept.id, &at) && !once_table_put_position(&r->kept_map, kept.id, at)) return;
    r->kept.n += at == r->kept.n;
    r->kept.at[at] = kept;
    r->kept_live++;
}

void once__redis_kept_note(once_redis *r, const once_entry *entry, once_bytes value)
{
    if (entry->state == ONCE_STATE_CLAIMED && !entry->has_message) keep(r, entry, value);
    else unkeep(r, entry->id);
}

once_bytes once__redis_kept_value(once_redis *r, once_hash id, once_token token)
{
    const once_redis_kept *kept = find(r, id);
    return kept && once_hash_equal(kept->token, token) ? kept->value : (once_bytes){0};
}

/* --- new keys --- */

bool once__redis_kept_new(const once_redis *r) { return r->new_batches >= ASSUME_AFTER; }

void once__redis_kept_count(once_redis *r)
{
    assert(r->new_batches <= ASSUME_AFTER);
    bool all_new = true;
    for (size_t i = 0; i < r->slots.n && all_new; i++) all_new = r->slots.at[i]->stored.len == 0;
    r->new_batches = !all_new ? 0 : r->new_batches < ASSUME_AFTER ? r->new_batches + 1 : r->new_batches;
}
