/* find: due entries, and the entries behind them in their lanes, for a transaction that runs them without claiming them
 * first. */
#include <assert.h>

#include "base/no_memory.h"
#include "base/table.h"
#include "core/plant.h"
#include "store/engine/parts.h"

#include "base/banned.h"

enum { FOUND_IN_LANE = 64 }; /* of one lane at most: a lane with more gets another round */

typedef struct findings {
    once_taken *out;
    size_t n, max;
    once_hash *lanes; /* the lanes to search */
    size_t n_lanes;
    once_table known; /* the entries that were found */
    once_arena *arena;
} findings;

static int find_one(findings *f, const once_entry *entry, once_error *err)
{
    assert(f->n < f->max);
    const once_decision waits = {.answer = ONCE_ANSWER_WAITING};
    once_taken *at = &f->out[f->n];
    if (!once__fill_taken(f->arena, entry, &waits, at)) return once_no_memory(err, "for a batch");
    if (!once_table_put_position(&f->known, entry->id, f->n)) return once_no_memory(err, "for a batch");
    f->n++;
    return ONCE_OK;
}

/* Finds the entries that take would hand out to run, and no others: orphans, and entries that their lane must judge,
 * change in ways that an effect's rollback must not undo. */
static int find_due(once_storage *storage, once_bytes consumer, findings *f, bool *rest, once_error *err)
{
    size_t found = 0;
    once_hash *ids = once_arena_new(f->arena, once_hash, f->max);
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = storage->ops->due(storage, consumer, storage->now_ms, f->max, ids, &found, err);
    assert(found <= f->max);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        once_entry_pair at;
        once_decision decision;
        rc = once__pair_take(storage, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK || !once_entry_may_be_taken(at.entry, storage->now_ms)) continue;
        once_entry tried = *at.entry;
        once_lane lane = at.lane_view;
        (void)once_entry_take(&tried, at.lane ? &lane : NULL, (once_token){1, 1}, 1, storage->now_ms, &decision);
        if (at.entry->state != ONCE_STATE_WAITING || decision.answer != ONCE_ANSWER_RUN || decision.gap_over) {
            *rest = true;
            continue;
        }
        rc = find_one(f, at.entry, err);
        if (at.lane) f->lanes[f->n_lanes++] = at.lane_id;
    }
    return rc;
}

/* Whether the lane may go on with the entry. `first`: the entry is at the head; otherwise it is behind one that the
 * caller has claimed or found. */
static bool may_follow(const once_storage *storage, const once_entry *entry, bool first)
{
    if (entry->state != ONCE_STATE_WAITING || !entry->has_message || entry->gap) return false;
    return entry->due_ms <= storage->now_ms || (!first && entry->due_ms == ONCE_NEVER);
}

static bool is_held(const once_entry *entry, const once_request *const *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (once_hash_equal(requests[i]->id, entry->id)) return once_hash_equal(requests[i]->token, entry->token);
    return false;
}

bool once__lane_before(int64_t order, int64_t seen_ms, once_hash id, const once_entry *other)
{
    if (order != other->order) return order < other->order;
    return seen_ms != other->seen_ms && !ONCE_PLANTED(equals_by_hash) ? seen_ms < other->seen_ms
                                                                      : once_hash_compare(id, other->id) < 0;
}

/* The storage gives entries of equal versions by id; this sorts them by once__lane_before. */
static void sort_equals(once_entry **entries, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = i;
             k > 0 && once__lane_before(entries[k]->order, entries[k]->seen_ms, entries[k]->id, entries[k - 1]); k--) {
            once_entry *swap = entries[k];
            entries[k] = entries[k - 1];
            entries[k - 1] = swap;
        }
}

/* Searches one lane. When the storage did not return the whole lane (`whole`), entries with the last version are left
 * out: one that was not read might be the first of them. */
static int find_in_lane(once_storage *storage, once_entry **entries, size_t n, bool whole,
                        const once_request *const *requests, size_t n_requests, findings *f, once_error *err)
{
    bool first = true;
    int rc = ONCE_OK;
    sort_equals(entries, n);
    for (size_t i = 0; i < n && rc == ONCE_OK && f->n < f->max; i++) {
        const once_entry *entry = entries[i];
        const bool claimed = entry->state == ONCE_STATE_CLAIMED && is_held(entry, requests, n_requests);
        if (!whole && entry->versioned && entry->order == entries[n - 1]->order) break;
        if (!claimed && !once_table_get(&f->known, entry->id)) {
            if (!may_follow(storage, entry, first)) break;
            rc = find_one(f, entry, err);
        }
        first = false;
    }
    return rc;
}

static int find_behind(once_storage *storage, const once_request *const *requests, size_t n, findings *f,
                       once_error *err)
{
    const size_t most = f->max + FOUND_IN_LANE;
    once_hash *ids = once_arena_new(f->arena, once_hash, most);
    once_entry **entries = once_arena_new(f->arena, once_entry *, most);
    size_t found = 0;
    if (!ids || !entries) return once_no_memory(err, "for a batch");
    int rc = storage->ops->lanes_waiting(storage, f->lanes, f->n_lanes, FOUND_IN_LANE, most, ids, &found, err);
    assert(found <= most);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) rc = once__pair_load_entry(storage, ids[i], &entries[i], err);
    for (size_t from = 0, to; from < found && rc == ONCE_OK; from = to) {
        for (to = from + 1; to < found && once_hash_equal(entries[to]->lane, entries[from]->lane);) to++;
        const bool whole = to - from < FOUND_IN_LANE && (to < found || found < most);
        rc = find_in_lane(storage, entries + from, to - from, whole, requests, n, f, err);
    }
    return rc;
}

int once__engine_find(once_backend *store, once_bytes consumer, const once_request *const *requests, size_t n, bool due,
                      size_t max, once_taken *out, size_t *n_out, bool *rest, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(n == 0 || requests);
    assert(storage->in_tx);
    findings f = {.out = out, .max = max, .arena = arena, .lanes = once_arena_new(arena, once_hash, n + max + 1)};
    *n_out = 0;
    *rest = false;
    if (!f.lanes) return once_no_memory(err, "for a batch");
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    if (due) rc = find_due(storage, consumer, &f, rest, err);
    for (size_t i = 0; i < n; i++)
        if (!once_hash_is_zero(requests[i]->lane.id)) f.lanes[f.n_lanes++] = requests[i]->lane.id;
    if (rc == ONCE_OK && f.n_lanes && f.n < max) rc = find_behind(storage, requests, n, &f, err);
    once_table_release(&f.known);
    *n_out = f.n;
    return once__verb_end(storage, rc, err);
}
