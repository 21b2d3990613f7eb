/* take claims due entries; lapse turns held claims whose lease is over into unknown entries. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/plant.h"
#include "store/engine/parts.h"

#include "base/banned.h"

bool once__fill_taken(once_arena *arena, const once_entry *entry, const once_decision *decision, once_taken *out)
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

/* The decision that a take whose reply was lost made about an entry. */
static once_decision decided_before(const once_storage *storage, const once_entry_pair *at)
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
                           .maybe_done = entry->maybe_done,
                           .old_key = entry->old_key,
                           .gap_over = entry->gap,
                           .reason = entry->gap ? entry->reason : (once_bytes){0},
                           .before = entry->unreported && !entry->gap ? entry->reason : (once_bytes){0},
                           .given_up = entry->gap ? once_lane_given_up_again(at->lane, entry) : 0};
}

/* One call of take, while it runs. */
typedef struct taking {
    once_storage *storage;
    once_bytes consumer;
    once_token next; /* of the next entry */
    int64_t lease_ms;
    once_hash *ids; /* room for max */
    once_taken *out;
    size_t n, max;
    once_due_share *shares; /* copies: the caller's shares change only when the take has succeeded; NULL: no filter */
    size_t n_shares;
    uint64_t read;
    once_arena *arena;
} taking;

static int add_taken(taking *t, const once_entry *entry, const once_decision *decision, once_error *err)
{
    assert(t->n < t->max);
    if (!once__fill_taken(t->arena, entry, decision, &t->out[t->n])) return once_no_memory(err, "for a batch");
    t->n++;
    return ONCE_OK;
}

/* --- repeating a take whose reply was lost --- */

/* An entry that the first take claimed uses room of its share. */
static void use_room(taking *t, once_bytes operation)
{
    once_due_share *others = NULL;
    for (size_t i = 0; i < t->n_shares; i++) {
        once_due_share *share = &t->shares[i];
        if (share->others) others = share;
        else if (once_bytes_equal(share->operation, operation)) {
            if (share->room) share->room--;
            return;
        }
    }
    if (others && others->room) others->room--;
}

/* The lease of the entry begins now, as for a claim whose reply was lost. */
static int repeat_one(taking *t, once_hash id, once_error *err)
{
    once_storage *storage = t->storage;
    once_entry_pair at;
    bool ours;
    int rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    if (rc != ONCE_OK) return rc;
    once_entry *entry = at.entry;
    const once_request renewal = {
        .token = entry->token, .lease_ms = t->lease_ms, .asks = entry->state == ONCE_STATE_UNKNOWN};
    if (once_entry_extend(entry, &renewal, storage->now_ms, &ours)) rc = storage->ops->save(storage, entry, err);
    if (rc != ONCE_OK) return rc;
    const once_decision decision = decided_before(storage, &at);
    if (entry->token.b >= t->next.b) t->next.b = entry->token.b + 1;
    use_room(t, entry->scope.operation);
    return add_taken(t, entry, &decision, err);
}

static int repeat(taking *t, once_error *err)
{
    size_t found = 0;
    int rc = t->storage->ops->by_token(t->storage, t->consumer, t->next.a, t->max, t->ids, &found, err);
    assert(found <= t->max);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) rc = repeat_one(t, t->ids[i], err);
    return rc;
}

/* --- what is due --- */

bool once__due_search_matches(const once_due_search *search, once_bytes operation)
{
    if (!search->others) return once_bytes_equal(search->operation, operation);
    for (size_t i = 0; i < search->n_named; i++)
        if (once_bytes_equal(search->named[i], operation)) return false;
    return true;
}

/* Whether the caller gets the entry: to run it, to look it up, or to count how it ended. */
static bool is_handed_out(const once_decision *decision)
{
    switch (decision->answer) {
    case ONCE_ANSWER_RUN:
    case ONCE_ANSWER_STALE:
    case ONCE_ANSWER_DUPLICATE:
    case ONCE_ANSWER_CONFLICT: return true;
    default: return decision->lapsed || decision->asks;
    }
}

static int take_one(taking *t, once_hash id, once_error *err)
{
    once_storage *storage = t->storage;
    once_entry_pair at;
    once_decision decision;
    int rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    /* It was repeated just now, or another worker took it first. */
    if (rc != ONCE_OK || !once_entry_may_be_taken(at.entry, storage->now_ms)) return rc;
    if (ONCE_PLANTED(orphan_lost) && at.entry->state == ONCE_STATE_CLAIMED) return ONCE_OK;
    const once_message message = at.entry->message; /* an entry that becomes stale drops it; the caller counts it */
    const int changed = once_entry_take(at.entry, at.lane, t->next, t->lease_ms, storage->now_ms, &decision);
    if (decision.answer == ONCE_ANSWER_CONFLICT) at.letter = ONCE_ANSWER_CONFLICT;
    if (is_handed_out(&decision)) {
        once_entry shown = *at.entry;
        shown.message = message;
        rc = add_taken(t, &shown, &decision, err);
        if (rc == ONCE_OK) rc = once__say_lapsed(&at, &t->out[t->n - 1].decision, t->arena, err);
        t->next.b++;
    }
    return rc == ONCE_OK && changed ? once__pair_keep(storage, &at, changed, err) : rc;
}

static int take_found(taking *t, size_t found, once_error *err)
{
    int rc = ONCE_OK;
    assert(found <= t->max - t->n);
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) rc = take_one(t, t->ids[i], err);
    return rc;
}

static int take_any(taking *t, once_error *err)
{
    size_t found = 0;
    const int rc =
        t->storage->ops->due(t->storage, t->consumer, t->storage->now_ms, t->max - t->n, t->ids, &found, err);
    return rc == ONCE_OK ? take_found(t, found, err) : rc;
}

/* A transaction that began a moment ago may still commit an entry that was due before: the next search meets it. */
static once_due_mark step_back(once_due_mark from, int64_t now_ms)
{
    const once_due_mark late = {.due_ms = now_ms - ONCE_DUE_OVERLAP_MS};
    return from.due_ms < late.due_ms ? from : late;
}

static int take_share(taking *t, once_due_share *share, once_due_search *search, once_error *err)
{
    size_t found = 0;
    search->others = share->others;
    search->operation = share->operation;
    search->max = share->room < t->max - t->n ? share->room : t->max - t->n;
    search->from = share->from;
    search->end = false;
    search->read = 0;
    int rc =
        t->storage->ops->due_of_operations(t->storage, t->consumer, t->storage->now_ms, search, t->ids, &found, err);
    if (rc == ONCE_OK) rc = take_found(t, found, err);
    share->more = !search->end;
    share->from = search->end ? step_back(search->from, t->storage->now_ms) : search->from;
    t->read += search->read;
    return rc;
}

static int take_shares(taking *t, const once_due_filter *filter, once_error *err)
{
    int rc = ONCE_OK;
    once_due_search search = {.named = once_arena_new(t->arena, once_bytes, t->n_shares + 1),
                              .read_max = filter->read_max};
    if (!search.named) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < t->n_shares; i++)
        if (!t->shares[i].others) search.named[search.n_named++] = t->shares[i].operation;
    for (size_t i = 0; i < t->n_shares && rc == ONCE_OK && t->n < t->max; i++)
        if (t->shares[i].room) rc = take_share(t, &t->shares[i], &search, err);
    return rc;
}

static int taking_begin(taking *t, const once_due_filter *filter, once_error *err)
{
    t->ids = once_arena_new(t->arena, once_hash, t->max);
    if (!t->ids) return once_no_memory(err, "for a batch");
    if (!filter || ONCE_PLANTED(room_ignored)) return ONCE_OK;
    assert(filter->n > 0 && filter->read_max > 0);
    t->n_shares = filter->n;
    t->shares = once_arena_new(t->arena, once_due_share, filter->n);
    if (!t->shares) return once_no_memory(err, "for a batch");
    memcpy(t->shares, filter->shares, filter->n * sizeof *t->shares);
    for (size_t i = 0; i < t->n_shares; i++) t->shares[i].more = t->shares[i].room > 0; /* until it was searched */
    return ONCE_OK;
}

/* Sets where the caller's next searches begin. */
static void give_shares(const taking *t, once_due_filter *filter)
{
    if (!t->shares) return;
    for (size_t i = 0; i < t->n_shares; i++) {
        filter->shares[i].from = t->shares[i].from;
        filter->shares[i].more = t->shares[i].more;
    }
    filter->read += t->read;
}

int once__verb_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                    size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(token.a != 0);
    assert(!storage->in_tx && lease_ms > 0);
    *n = 0;
    if (max == 0) return ONCE_OK;
    taking t = {.storage = storage,
                .consumer = consumer,
                .next = token,
                .lease_ms = lease_ms,
                .out = out,
                .max = max,
                .arena = arena};
    int rc = taking_begin(&t, filter, err);
    if (rc == ONCE_OK) rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    if (again) rc = repeat(&t, err);
    if (rc == ONCE_OK && t.n < max) rc = t.shares ? take_shares(&t, filter, err) : take_any(&t, err);
    if (rc == ONCE_OK) *n = t.n; /* also when the commit fails: the commit may have happened */
    rc = once__verb_end(storage, rc, err);
    if (rc == ONCE_OK) give_shares(&t, filter);
    return rc;
}

int once__verb_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                     size_t *n, once_arena *arena, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!storage->in_tx && max > 0);
    size_t found = 0, count = 0;
    once_hash *ids = once_arena_alloc(arena, max * sizeof *ids);
    *n = 0;
    if (!ids) return once_no_memory(err, "for a batch");
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    rc = storage->ops->lapsed(storage, consumer, storage->now_ms, max, ids, &found, err);
    assert(found <= max);
    once_entry_pair at; /* shared by all entries, because it is large */
    for (size_t i = 0; i < found && rc == ONCE_OK; i++) {
        once_decision decision;
        rc = once__pair_take(storage, ids[i], (once_hash){0}, &at, err);
        if (rc != ONCE_OK) break;
        if (once_token_is_of_run(at.entry->token, except_run)) continue;
        const int changed = once_entry_lapse(at.entry, storage->now_ms, &decision);
        if (!changed) continue;
        if (!once__fill_taken(arena, at.entry, &decision, &out[count])) rc = once_no_memory(err, "for a batch");
        else rc = once__say_lapsed(&at, &out[count++].decision, arena, err);
        if (rc == ONCE_OK) rc = once__pair_keep(storage, &at, changed, err);
    }
    if (rc == ONCE_OK) *n = count; /* also when the commit fails: the commit may have happened */
    return once__verb_end(storage, rc, err);
}
