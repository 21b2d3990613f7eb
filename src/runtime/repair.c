/* `once check --repair`: repairs a store step by step; each step and its audit record are one transaction. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "once/operate.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "runtime/runtime.h"

#include "base/banned.h"

enum { LOST_RACES_MAX = 50 };

static int note_repair(once_pipeline *pipeline, once_backend *store, uint64_t n, once_error *err)
{
    char note[120];
    snprintf(note, sizeof note, "%" PRIu64 " entries, lanes or letters: what they had lost", n);
    const once_audit record = {.consumer = pipeline->spec->consumer,
                               .who = {store->who, strlen(store->who)},
                               .what = ONCE_BYTES("repair"),
                               .note = {note, strlen(note)}};
    return store->ops->audit(store, &record, err);
}

static int repair_step(once_pipeline *pipeline, once_backend *store, once_hash *after, uint64_t *repaired, bool *more,
                       once_error *err)
{
    assert(store->ops->repair && *more);
    uint64_t n = 0;
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->repair(store, after, &n, more, err);
    if (rc == ONCE_OK && n) rc = note_repair(pipeline, store, n, err);
    if (rc == ONCE_OK) rc = store->ops->commit(store, err);
    else store->ops->rollback(store);
    if (rc == ONCE_OK) *repaired += n;
    return rc;
}

static int repair(once_pipeline *pipeline, once_backend **at, uint64_t *repaired, once_error *err)
{
    const once_backend *store = *at;
    if (!store->ops->repair)
        return once_fail(err, ONCE_E_USAGE, "a '%s:' store cannot be repaired; restore it from a backup",
                         store->ops->scheme);
    once_hash after = {0};
    bool more = true;
    int rc = ONCE_OK;
    for (int lost_races = 0; rc == ONCE_OK && more;) {
        const once_hash from = after;
        rc = repair_step(pipeline, *at, &after, repaired, &more, err);
        if (rc != ONCE_E_ABORTED) lost_races = 0;
        else if (++lost_races < LOST_RACES_MAX) {
            /* A worker was faster: repeat this step. */
            after = from;
            more = true;
            rc = ONCE_OK;
        }
        if (rc == ONCE_OK) rc = once__operator_pause(pipeline, at, 0, err);
    }
    return rc;
}

int once_pipeline_repair(once_pipeline *pipeline, uint64_t *repaired, once_error *err)
{
    if (!pipeline || !repaired)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_repair needs a pipeline and a place for the count");
    once_backend *store;
    *repaired = 0;
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = repair(pipeline, &store, repaired, err);
    once__operator_close(pipeline, store);
    return rc;
}
