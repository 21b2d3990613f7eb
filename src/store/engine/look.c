/* Reads one entry, its lane and the entries before it, for operators. Writes nothing. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/engine/parts.h"

#include "base/banned.h"

int once__engine_get(once_backend *store, once_hash id, once_entry *out, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry *entry;
    rc = once__pair_load_entry(storage, id, &entry, err);
    if (rc == ONCE_OK) {
        once_entry seen = *entry;
        once_entry_look(&seen, storage->now_ms);
        if (!once__entry_copy(arena, &seen, out)) rc = once_no_memory(err, "for an entry");
    }
    return once__verb_end(storage, rc, err);
}

int once__engine_look(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                      once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(request->id));
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    rc = once__pair_take(storage, request->id, request->lane.id, &at, err);
    if (rc == ONCE_OK) {
        once_entry copy = *at.entry;
        once_entry_claim(&copy, at.lane, request, storage->now_ms, out);
        rc = once__own_words(at.entry, out, arena, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__engine_outlook(once_backend *store, const once_request *request, once_decision *out, once_arena *arena,
                         once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(request->id));
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    rc = once__pair_load(storage, request->id, &at, err);
    if (rc == ONCE_OK)
        rc = once__pair_load_lane(storage, request->id, at.state == ONCE_STATE_DEAD ? at.entry->lane : request->lane.id,
                                  &at, err);
    if (rc == ONCE_OK) {
        once_entry seen = *at.entry;
        seen.state = at.state;
        once_entry_outlook(&seen, at.lane, request, out);
        rc = once__own_words(&seen, out, arena, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__engine_explain_lane(once_backend *store, once_hash id, once_bytes *out, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    *out = (once_bytes){0};
    rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK && at.lane) {
        const once_bytes words = once_lane_explain(at.lane, at.entry);
        if (words.len && !once_arena_copy(arena, words, out)) rc = once_no_memory(err, "for words");
    }
    return once__verb_end(storage, rc, err);
}

/* --- the entries before an entry --- */

typedef struct befores {
    once_entry *at;
    size_t n, max;
    uint64_t others; /* of these: entries that are not before it by their order */
} befores;

static int add_before(once_storage *storage, const once_entry *entry, once_hash id, befores *all, once_arena *arena,
                      once_error *err)
{
    once_entry *loaded;
    const int rc = once__pair_load_entry(storage, id, &loaded, err);
    if (rc != ONCE_OK) return rc;
    once_entry other = *loaded;
    once_entry_look(&other, storage->now_ms);
    if (other.state == ONCE_STATE_ABSENT || once_state_finished(other.state)) return ONCE_OK;
    other.message = (once_message){0};
    other.history = (once_bytes){0};
    if (!once__entry_copy(arena, &other, &all->at[all->n])) return once_no_memory(err, "for an entry");
    all->n++;
    all->others += !once__lane_before(other.order, other.seen_ms, other.id, entry) || other.state == ONCE_STATE_DEAD;
    return ONCE_OK;
}

static int compare_places(const void *x, const void *y)
{
    const once_entry *a = x, *b = y;
    return once__lane_before(a->order, a->seen_ms, a->id, b) ? -1 : 1;
}

static int find_before(once_storage *storage, const once_entry_pair *at, size_t max, once_in_lane *out,
                       once_arena *arena, once_error *err)
{
    assert(max > 0 && at->lane);
    const size_t most = 2 * max + ONCE_LANE_BLOCKERS;
    once_hash *ids = once_arena_new(arena, once_hash, most);
    befores all = {.at = once_arena_new(arena, once_entry, most)};
    size_t n = 0;
    if (!ids || !all.at) return once_no_memory(err, "for entries");
    int rc = storage->ops->lane_before(storage, at->entry, max, ids, &n, &out->count, err);
    assert(n <= 2 * max); /* blockers are appended */
    for (unsigned i = 0; i < at->lane->n_blockers; i++)
        if (at->lane->blockers[i].order < at->entry->order) ids[n++] = at->lane->blockers[i].id;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) rc = add_before(storage, at->entry, ids[i], &all, arena, err);
    if (rc != ONCE_OK) return rc;
    qsort(all.at, all.n, sizeof *all.at, compare_places);
    out->before = all.at;
    out->n = all.n < max ? all.n : max;
    out->count += all.others;
    return ONCE_OK;
}

int once__engine_in_lane(once_backend *store, once_hash id, size_t max, once_in_lane *out, once_arena *arena,
                         once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!storage->in_tx);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    *out = (once_in_lane){0};
    rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK && at.lane) {
        out->lane = at.lane_id;
        out->versioned = at.entry->versioned;
        out->version = at.entry->order;
        out->gap = once_lane_missing(at.lane, at.entry, &out->missing_from, &out->missing_to);
        if (at.entry->state == ONCE_STATE_WAITING) rc = find_before(storage, &at, max, out, arena, err);
    }
    return once__verb_end(storage, rc, err);
}
