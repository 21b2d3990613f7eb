/* What waits in the store: taken (claimed), lapsed, or found by whoever runs it in the same transaction. */
#include <assert.h>

#include "base/no_memory.h"
#include "base/table.h"
#include "core/plant.h"
#include "store/engine/parts.h"

#include "base/banned.h"

static bool fill_taken(once_arena *arena, const once_entry *entry, const once_decision *decision, once_taken *out)
{
    once_entry copy = *entry;
    once_decision said = *decision;
    copy.history = (once_bytes){0};
    if (!once__entry_copy(arena, &copy, &copy) || once__own_words(entry, &said, arena, NULL) != ONCE_OK) return false;
    *out = (once_taken){
        .scope = copy.scope,
        .message = copy.message,
        .decision = said,
        .request =
            {
                .key = copy.key,
                .id = copy.id,
                .fingerprint = copy.fingerprint,
                .fields = copy.fields,
                .token = copy.token,
                .lane = {.id = copy.lane,
                         .versioned = copy.versioned,
                         .version = copy.versioned ? copy.order : 0,
                         .gap_ms = copy.gap_ms,
                         .block = copy.block},
                .remember_ms = copy.remember_ms,
                .sent_ms = copy.message.sent_ms,
                .hold = copy.hold,
                .lookup = copy.lookup,
                .asks = said.asks,
                .natural = copy.natural,
                .old_key = copy.old_key,
                .run = copy.run,
                .at = copy.at,
            },
    };
    out->request.scope = &out->scope;
    return true;
}

/* What a take whose reply was lost has said of an entry that it handed out. */
static once_decision told_again(const once_storage *storage, const once_entry_pair *at)
{
    const once_entry *entry = at->entry;
    once_decision asks;
    if (once_entry_question(entry, storage->now_ms, &asks)) return asks;
    return (once_decision){.answer = ONCE_ANSWER_RUN,
                           .attempt = entry->attempt,
                           .failures = entry->failures,
                           .failing_for_ms =
                               entry->failures && entry->failing_ms ? storage->now_ms - entry->failing_ms : -1,
                           .unreported = entry->unreported,
                           .maybe = entry->maybe,
                           .old_key = entry->old_key,
                           .gap_over = entry->gap,
                           .reason = entry->gap ? entry->reason : (once_bytes){0},
                           .before = entry->unreported && !entry->gap ? entry->reason : (once_bytes){0},
                           .given_up = entry->gap ? once_lane_given_up_again(at->lane, entry) : 0};
}

int once__verb_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                    size_t max, once_taken *out, size_t *n, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(token.a != 0);
    assert(!storage->in_tx && lease_ms > 0);
    *n = 0;
    if (max == 0) return ONCE_OK;
    once_hash *ids = once_arena_alloc(arena, max * sizeof *ids);
    if (!ids) return once_no_memory(err, "for a batch");

    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    size_t found = 0, count = 0;
    uint64_t next = token.b;
    if (again) {
        rc = storage->storage->by_token(storage, consumer, token.a, max, ids, &found, err);
        assert(found <= max);
        for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
            once_entry_pair at;
            rc = once__pair_take(storage, ids[i], (once_hash){0}, &at, err);
            if (rc != ONCE_OK) break;
            once_entry *entry = at.entry;
            bool ours; /* the lease begins now, as for a claim whose reply was lost */
            const once_request renewal = {
                .token = entry->token, .lease_ms = lease_ms, .asks = entry->state == ONCE_STATE_UNKNOWN};
            if (once_entry_extend(entry, &renewal, storage->now_ms, &ours))
                rc = storage->storage->save(storage, entry, err);
            if (rc != ONCE_OK) break;
            const once_decision decision = told_again(storage, &at);
            if (entry->token.b >= next) next = entry->token.b + 1;
            if (!fill_taken(arena, entry, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
            count++;
        }
    }
    if (rc == ONCE_OK && count < max)
        rc = storage->storage->due(storage, consumer, storage->now_ms, max - count, ids, &found, err);
    else found = 0;
    assert(found <= max - count);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        once_entry_pair at;
        once_decision decision;
        rc = once__pair_take(storage, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK) break;
        if (!once_entry_may_be_taken(at.entry, storage->now_ms))
            continue; /* found by its token just now, or somebody was quicker */
        if (ONCE_PLANTED(orphan_lost) && at.entry->state == ONCE_STATE_CLAIMED) continue;
        const once_message message = at.entry->message; /* becoming stale drops it; the caller still counts it */
        const int changed =
            once_entry_take(at.entry, at.lane, (once_token){token.a, next}, lease_ms, storage->now_ms, &decision);
        if (decision.answer == ONCE_ANSWER_CONFLICT) at.letter = ONCE_ANSWER_CONFLICT;
        if (decision.answer == ONCE_ANSWER_RUN || decision.answer == ONCE_ANSWER_STALE ||
            decision.answer == ONCE_ANSWER_DUPLICATE || decision.answer == ONCE_ANSWER_CONFLICT || decision.lapsed ||
            decision.asks) {
            once_entry shown = *at.entry;
            shown.message = message;
            if (!fill_taken(arena, &shown, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
            else rc = once__say_lapsed(&at, &out[count].decision, arena, err);
            count++;
            next++;
        }
        if (rc == ONCE_OK && changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    if (rc == ONCE_OK) *n = count; /* also when the commit fails: it may have happened */
    return once__verb_end(storage, rc, err);
}

int once__verb_lapse(once_backend *store, once_bytes consumer, uint64_t but, size_t max, once_taken *out, size_t *n,
                     once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!storage->in_tx && max > 0);
    size_t found = 0, count = 0;
    once_hash *ids = once_arena_alloc(arena, max * sizeof *ids);
    *n = 0;
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    rc = storage->storage->lapsed(storage, consumer, storage->now_ms, max, ids, &found, err);
    assert(found <= max);
    once_entry_pair at; /* for all of them: it is large */
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        once_decision decision;
        rc = once__pair_take(storage, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK) break;
        if (once_token_is_of_run(at.entry->token, but)) continue;
        const int changed = once_entry_lapse(at.entry, storage->now_ms, &decision);
        if (!changed) continue;
        if (!fill_taken(arena, at.entry, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
        else rc = once__say_lapsed(&at, &out[count++].decision, arena, err);
        if (rc == ONCE_OK) rc = once__pair_keep(storage, &at, changed, err);
    }
    if (rc == ONCE_OK) *n = count; /* also when the commit fails: it may have happened */
    return once__verb_end(storage, rc, err);
}

/* --- what waits, for whoever runs it in the same transaction --- */

enum { FOUND_IN_LANE = 64 }; /* of one lane at most: each more is another round */

typedef struct findings {
    once_taken *out;
    size_t n, max;
    once_hash *lanes; /* that are looked at */
    size_t n_lanes;
    once_table known; /* what was found */
    once_arena *arena;
} findings;

static int find_one(findings *f, const once_entry *entry, once_error *err)
{
    assert(f->n < f->max);
    const once_decision waits = {.answer = ONCE_ANSWER_WAITING};
    once_taken *at = &f->out[f->n];
    if (!fill_taken(f->arena, entry, &waits, at)) return once_no_memory(err, "for a batch");
    if (!once_table_put_position(&f->known, entry->id, f->n)) return once_no_memory(err, "for a batch");
    f->n++;
    return ONCE_OK;
}

/* What take would hand out, and not more: to an orphan, or to what its lane has to judge, things happen that are not
 * undone with an effect. */
static int find_due(once_storage *storage, once_bytes consumer, findings *f, bool *rest, once_error *err)
{
    size_t found = 0;
    once_hash *ids = once_arena_new(f->arena, once_hash, f->max);
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = storage->storage->due(storage, consumer, storage->now_ms, f->max, ids, &found, err);
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

/* Whether the lane may go on with it. `first`: it is at the head, or behind one that the caller has claimed. */
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

/* Equal versions are in the order of their ids; the first one goes first. */
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

/* One lane: of equals that were not all read any one might be the first. */
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
    int rc = storage->storage->lanes_waiting(storage, f->lanes, f->n_lanes, FOUND_IN_LANE, most, ids, &found, err);
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
