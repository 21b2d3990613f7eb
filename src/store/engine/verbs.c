/* claim, accept, settle and extend: core/entry.h decides, the storage saves. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/plant.h"
#include "core/print.h"
#include "store/engine/parts.h"

#include "base/banned.h"

/* A message that runs without a claim leaves its entry absent, so there need not be one in memory. */
static bool claims_nothing(const once_storage *storage, const once_request *request)
{
    return request->unclaimed && storage->ops->has_none && storage->ops->has_none(storage, request->id);
}

int once__verb_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                     once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin_for(storage, true, requests, n, ONCE_FOR_CLAIM, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at; /* shared by all entries, because it is large */
    once_entry absent = {0};
    once_replacements gone = {0};
    once_request printed;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        const once_request *request = requests[i];
        assert(!once_hash_is_zero(requests[i]->id) &&
               !once_hash_is_zero(requests[i]->token)); /* a message without a key is buried, not claimed */
        if (claims_nothing(storage, requests[i])) {
            const int unchanged = once_entry_claim(&absent, NULL, requests[i], storage->now_ms, &out[i]);
            assert(unchanged == ONCE_UNCHANGED);
            (void)unchanged;
            continue;
        }
        rc = once__pair_take(storage, request->id, request->lane.id, &at, err);
        if (rc != ONCE_OK) break;
        /* what runs without a claim and finds no entry is compared with nothing, and leaves nothing */
        if (request->late && (!request->unclaimed || at.entry->state != ONCE_STATE_ABSENT)) {
            printed = *request;
            once_request_print(&printed, store->secret);
            request = &printed;
        }
        const int changed = once_entry_claim(at.entry, at.lane, request, storage->now_ms, &out[i]);
        rc = once__own_words(at.entry, &out[i], arena, err);
        if (rc == ONCE_OK) rc = once__say_lapsed(&at, &out[i], arena, err);
        if (rc == ONCE_OK && (changed & ONCE_REPLACED))
            rc = once__replaced_note(storage, &at.waited, requests, n, i, &gone, err);
        if (rc == ONCE_OK && changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    rc = once__replaced_bury(storage, &gone, out, rc, err);
    return once__verb_end(storage, rc, err);
}

int once__engine_absent(once_backend *store, const once_request *const *requests, size_t n, bool *out, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(storage->ops->has_none);
    const int rc = once__verb_begin_for(storage, true, requests, n, ONCE_FOR_ABSENT, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        assert(requests[i]->unclaimed && !once_hash_is_zero(requests[i]->id));
        out[i] = claims_nothing(storage, requests[i]) || ONCE_PLANTED(absence_assumed);
    }
    return once__verb_end(storage, rc, err);
}

/* A new entry whose version other entries of the lane may have: it goes behind them. */
static int stand_behind(once_storage *storage, once_entry_pair *at, const once_request *r, once_error *err)
{
    once_lane *lane = at->lane;
    assert(!lane || !once_hash_is_zero(at->lane_id));
    if (!lane || at->state != ONCE_STATE_ABSENT || !r->lane.versioned || r->lane.version < lane->head ||
        r->lane.version > lane->tail)
        return ONCE_OK;
    return storage->ops->lane_equals(storage, at->lane_id, r->lane.version, &lane->equal_ms, err);
}

int once__verb_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                      size_t n, once_decision *out, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin_for(storage, true, requests, n, ONCE_FOR_ACCEPT, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at; /* shared by all entries, because it is large */
    once_replacements gone = {0};
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(requests[i]->id) && messages[i]);
        rc = once__pair_take(storage, requests[i]->id, requests[i]->lane.id, &at, err);
        if (rc == ONCE_OK) rc = stand_behind(storage, &at, requests[i], err);
        if (rc != ONCE_OK) break;
        const int changed = once_entry_accept(at.entry, at.lane, requests[i], messages[i], storage->now_ms, &out[i]);
        rc = once__own_words(at.entry, &out[i], arena, err);
        if (rc == ONCE_OK) rc = once__say_lapsed(&at, &out[i], arena, err);
        if (rc == ONCE_OK && (changed & ONCE_REPLACED))
            rc = once__replaced_note(storage, &at.waited, requests, n, i, &gone, err);
        if (rc == ONCE_OK && changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    rc = once__replaced_bury(storage, &gone, out, rc, err);
    return once__verb_end(storage, rc, err);
}

static int settle_begin(once_storage *storage, const once_settlement *settlements, size_t n, once_error *err)
{
    const once_request **requests = malloc((n + 1) * sizeof *requests);
    if (!requests) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) requests[i] = settlements[i].request;
    const int rc = once__verb_begin_for(storage, true, requests, n, ONCE_FOR_SETTLE, err);
    free(requests);
    return rc;
}

int once__verb_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = settle_begin(storage, settlements, n, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at; /* shared by all entries, because it is large */
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(settlements[i].request->token) && settlements[i].outcome < ONCE_OUTCOMES);
        rc = once__pair_take(storage, settlements[i].request->id, settlements[i].request->lane.id, &at, err);
        if (rc != ONCE_OK) break;
        const int changed = once_entry_settle(at.entry, at.lane, &settlements[i], storage->now_ms, &applied[i]);
        if (settlements[i].was_unknown) *settlements[i].was_unknown = at.state == ONCE_STATE_UNKNOWN;
        at.settlement = &settlements[i];
        if (changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__verb_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin_for(storage, true, requests, n, ONCE_FOR_EXTEND, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        assert(!once_hash_is_zero(requests[i]->id));
        once_entry *entry;
        rc = once__pair_load_entry(storage, requests[i]->id, &entry, err);
        if (rc == ONCE_OK && once_entry_extend(entry, requests[i], storage->now_ms, &ours[i]))
            rc = storage->ops->save(storage, entry, err);
    }
    return once__verb_end(storage, rc, err);
}
