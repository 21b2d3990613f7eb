/* Names: what very many finished entries share is stored once, under 8 bytes of a keyed hash of itself (record.h). */
#include <assert.h>
#include <stdlib.h>

#include "store/redis/redis.h"

#include "base/banned.h"

#define NAMES_MAX 65536 /* with so many the copy in memory is cleared */

static once_hash key_of(uint64_t id) { return (once_hash){0, id}; }

const once_redis_name *once__redis_name_find(once_redis *r, uint64_t id)
{
    size_t at;
    return once_table_position(&r->name_map, key_of(id), &at) ? &r->names.at[at] : NULL;
}

bool once__redis_name_add(once_redis *r, uint64_t id, once_bytes value, bool written)
{
    assert(value.len > 0);
    size_t at;
    if (once_table_position(&r->name_map, key_of(id), &at)) {
        r->names.at[at].written |= written;
        return true;
    }
    once_redis_name name = {.id = id, .written = written};
    if (!ONCE_REDIS_ROOM(r->names) || !once_arena_copy(&r->name_arena, value, &name.value)) return false;
    if (!once_table_put_position(&r->name_map, key_of(id), r->names.n)) return false;
    r->names.at[r->names.n++] = name;
    return true;
}

uint64_t once__redis_name_of(once_redis *r, once_bytes value)
{
    assert(value.len > 0);
    const uint64_t id = once_siphash128(r->storage.store.secret, value.data, value.len).a | 1;
    return once__redis_name_add(r, id, value, false) ? id : 0;
}

void once__redis_names_forget(once_redis *r)
{
    for (size_t i = 0; i < r->names.n; i++) r->names.at[i].written = false;
    r->connections = once__redis_connections(r->link);
    if (r->names.n < NAMES_MAX || r->slots.n) return; /* entries of the transaction point into the copy */
    r->names.n = 0;
    once_table_clear(&r->name_map, ONCE_TABLE_KEPT);
    once_arena_reset(&r->name_arena);
}
