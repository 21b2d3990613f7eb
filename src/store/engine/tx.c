/* Transactions of the engine: the caller's, or one around each verb. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

static int open_tx(once_shelf *shelf, bool write, once_error *err)
{
    assert(!shelf->in_tx);
    const int rc = shelf->shelf->begin(shelf, write, err);
    if (rc == ONCE_OK && !shelf->own_clock) shelf->now_ms = once_clock_step(&shelf->clock, shelf->store.env);
    return rc;
}

int once__verb_begin_for(once_shelf *shelf, bool write, const once_request *const *requests, size_t n,
                         once_purpose purpose, once_error *err)
{
    assert(n == 0 || requests);
    assert(!shelf->listing || !write); /* whoever is shown a list changes nothing */
    int rc = ONCE_OK;
    if (shelf->listing) return rc;
    if (!shelf->in_tx) rc = open_tx(shelf, write, err);
    else if (shelf->broken)
        rc = once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; roll it back");
    if (rc != ONCE_OK || !shelf->shelf->prefetch) return rc;
    rc = shelf->shelf->prefetch(shelf, requests, n, purpose, err);
    if (rc == ONCE_OK) return rc;
    if (shelf->in_tx) shelf->broken = true;
    else shelf->shelf->rollback(shelf);
    return rc;
}

int once__verb_begin(once_shelf *shelf, bool write, once_error *err)
{
    return once__verb_begin_for(shelf, write, NULL, 0, ONCE_FOR_OTHERS, err);
}

int once__verb_end(once_shelf *shelf, int rc, once_error *err)
{
    assert(!shelf->broken || shelf->in_tx);
    if (shelf->listing) return rc;
    if (shelf->in_tx) {
        if (rc != ONCE_OK) shelf->broken = true;
        return rc;
    }
    if (rc == ONCE_OK) return shelf->shelf->commit(shelf, err);
    shelf->shelf->rollback(shelf);
    return rc;
}

int once__engine_begin(once_backend *store, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(!shelf->in_tx);
    const int rc = open_tx(shelf, true, err);
    shelf->in_tx = rc == ONCE_OK;
    shelf->broken = false;
    return rc;
}

int once__engine_commit(once_backend *store, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    assert(shelf->in_tx);
    if (shelf->broken) {
        once__engine_rollback(store);
        return once_fail(err, ONCE_E_ABORTED, "an earlier step of the transaction failed; it was rolled back");
    }
    shelf->in_tx = false;
    return shelf->shelf->commit(shelf, err);
}

void once__engine_rollback(once_backend *store)
{
    once_shelf *shelf = once__shelf_of(store);
    if (!shelf->in_tx) return;
    shelf->in_tx = shelf->broken = false;
    shelf->shelf->rollback(shelf);
}

/* Whoever is asked how things stand asks for the time first. */
int once__engine_time(once_backend *store, once_store_time *out, once_error *err)
{
    once_shelf *shelf = once__shelf_of(store);
    const int rc = once__verb_begin(shelf, false, err);
    if (rc != ONCE_OK) return rc;
    *out = (once_store_time){.now_ms = shelf->now_ms, .doubted = !shelf->own_clock && shelf->clock.doubted};
    return once__verb_end(shelf, rc, err);
}
