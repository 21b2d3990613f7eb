/* Transactions of the engine: the caller's, or one around each verb.
 *
 * Invariant: after a verb fails inside the caller's transaction, commit rolls back and fails (`broken`). */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

static int open_tx(once_storage *storage, bool write, once_error *err)
{
    assert(!storage->in_tx);
    const int rc = storage->ops->begin(storage, write, err);
    if (rc == ONCE_OK && !storage->own_clock) storage->now_ms = once_clock_step(&storage->clock, storage->store.env);
    return rc;
}

int once__verb_begin_for(once_storage *storage, bool write, const once_request *const *requests, size_t n,
                         once_purpose purpose, once_error *err)
{
    assert(n == 0 || requests);
    assert(!storage->listing || !write); /* the visitor of a list changes nothing */
    int rc = ONCE_OK;
    if (storage->listing) return rc;
    if (!storage->in_tx) rc = open_tx(storage, write, err);
    else if (storage->broken)
        rc = once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; roll it back");
    if (rc != ONCE_OK || !storage->ops->prefetch) return rc;
    rc = storage->ops->prefetch(storage, requests, n, purpose, err);
    if (rc == ONCE_OK) return rc;
    if (storage->in_tx) storage->broken = true;
    else storage->ops->rollback(storage);
    return rc;
}

int once__verb_begin(once_storage *storage, bool write, once_error *err)
{
    return once__verb_begin_for(storage, write, NULL, 0, ONCE_FOR_OTHERS, err);
}

int once__verb_end(once_storage *storage, int rc, once_error *err)
{
    assert(!storage->broken || storage->in_tx);
    if (storage->listing) return rc;
    if (storage->in_tx) {
        if (rc != ONCE_OK) storage->broken = true;
        return rc;
    }
    if (rc == ONCE_OK) return storage->ops->commit(storage, err);
    storage->ops->rollback(storage);
    return rc;
}

int once__engine_begin(once_backend *store, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!storage->in_tx);
    const int rc = open_tx(storage, true, err);
    storage->in_tx = rc == ONCE_OK;
    storage->broken = false;
    return rc;
}

int once__engine_commit(once_backend *store, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(storage->in_tx);
    if (storage->broken) {
        once__engine_rollback(store);
        return once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; it was rolled back");
    }
    storage->in_tx = false;
    return storage->ops->commit(storage, err);
}

void once__engine_rollback(once_backend *store)
{
    once_storage *storage = once__storage_of(store);
    if (!storage->in_tx) return;
    storage->in_tx = storage->broken = false;
    storage->ops->rollback(storage);
}

/* A caller that shows states reads the time first. */
int once__engine_time(once_backend *store, once_store_time *out, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    const int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_store_time){.now_ms = storage->now_ms, .doubted = !storage->own_clock && storage->clock.doubted};
    return once__verb_end(storage, rc, err);
}
