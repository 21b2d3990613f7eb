/* Small named facts, in the caller's transaction or in one of their own. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

int once__engine_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(name && *name);
    const int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_bytes){0};
    return once__verb_end(storage, storage->ops->fact_get(storage, name, out, arena, err), err);
}

int once__engine_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(name && *name);
    const int rc = once__verb_begin(storage, true, err);
    return rc == ONCE_OK ? once__verb_end(storage, storage->ops->fact_set(storage, name, value, err), err) : rc;
}

/* Reads the stored fact and compares its number with `least`. */
static int check_count(once_storage *storage, const char *name, uint64_t least, once_error *err)
{
    once_arena arena = {0};
    once_bytes there = {0};
    if (!least) return ONCE_OK;
    int rc = storage->ops->fact_get(storage, name, &there, &arena, err);
    if (rc == ONCE_OK && !once__fact_may_follow(there, least)) rc = once__store_forgot(err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(storage->in_tx && value.len >= ONCE_NUMBER_SIZE);
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    if (storage->ops->fact_count) {
        rc = storage->ops->fact_count(storage, name, least, value, err);
    } else {
        rc = check_count(storage, name, least, err);
        if (rc == ONCE_OK) rc = storage->ops->fact_set(storage, name, value, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__engine_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(visit && !storage->in_tx);
    const int rc = once__verb_begin(storage, false, err);
    return rc == ONCE_OK ? once__verb_end(storage, storage->ops->facts(storage, prefix, visit, user, err), err) : rc;
}
