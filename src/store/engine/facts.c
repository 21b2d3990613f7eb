/* Small named facts, in the caller's transaction or in one by themselves. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

int once__engine_fact_get(once_backend *store, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(name && *name);
    const int rc = once__verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_bytes){0};
    return once__verb_end(shelf, shelf->shelf->fact_get(shelf, name, out, arena, err), err);
}

int once__engine_fact_set(once_backend *store, const char *name, once_bytes value, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(name && *name);
    const int rc = once__verb_begin(shelf, true, err);
    return rc == ONCE_OK ? once__verb_end(shelf, shelf->shelf->fact_set(shelf, name, value, err), err) : rc;
}

/* Reads it, and compares. */
static int check_count(once_shelf *shelf, const char *name, uint64_t least, once_error *err)
{
    once_arena arena = {0};
    once_bytes there = {0};
    if (!least) return ONCE_OK;
    int rc = shelf->shelf->fact_get(shelf, name, &there, &arena, err);
    if (rc == ONCE_OK && !once__fact_may_follow(there, least)) rc = once__store_forgot(err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_fact_count(once_backend *store, const char *name, uint64_t least, once_bytes value, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(shelf->in_tx && value.len >= ONCE_NUMBER_SIZE);
    int rc = once__verb_begin(shelf, true, err);
    if (rc != ONCE_OK) return rc;
    if (shelf->shelf->fact_count) {
        rc = shelf->shelf->fact_count(shelf, name, least, value, err);
    } else {
        rc = check_count(shelf, name, least, err);
        if (rc == ONCE_OK) rc = shelf->shelf->fact_set(shelf, name, value, err);
    }
    return once__verb_end(shelf, rc, err);
}

int once__engine_facts(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(visit && !shelf->in_tx);
    const int rc = once__verb_begin(shelf, false, err);
    return rc == ONCE_OK ? once__verb_end(shelf, shelf->shelf->facts(shelf, prefix, visit, user, err), err) : rc;
}
