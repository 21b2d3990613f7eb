/* `once forget`: removes a key; its next message runs again. */
#include <assert.h>
#include <stdio.h>

#include "base/usage.h"
#include "runtime/audit.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

int once_pipeline_forget(once_pipeline *pipeline, once_bytes tenant, once_bytes operation, once_bytes key,
                         const char **was, once_error *err)
{
    if (!pipeline || !was || once_bytes_lie(tenant) || once_bytes_lie(operation) || once_bytes_lie(key))
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_forget needs a pipeline, a key and a place for its state");
    once_backend *store;
    once_arena arena = {0};
    once_entry entry = {0};
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->begin(store, err);
    if (rc == ONCE_OK) {
        rc = once__find_entry(pipeline, store, tenant, operation, key, &entry, &arena, err);
        if (rc == ONCE_OK && entry.state != ONCE_STATE_ABSENT) {
            char note[60];
            bool found;
            snprintf(note, sizeof note, "it was %s", once_state_name(entry.state));
            rc = store->ops->forget(store, entry.id, &found, err);
            assert(rc != ONCE_OK || found); /* it was read in this transaction */
            const once_act act = {.what = "forget", .note = note, .scope = entry.scope, .key = key};
            if (rc == ONCE_OK) rc = once__audit(pipeline, store, &act, err);
        }
        rc = once__finish_tx(store, rc, err);
    }
    if (rc == ONCE_OK) *was = once_state_name(entry.state);
    once_arena_release(&arena);
    once__operator_close(pipeline, store);
    return rc;
}
