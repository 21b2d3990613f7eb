/* Operator actions on entries and letters. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

int once__verb_replay(once_backend *store, uint64_t id, bool *found, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = storage->ops->letter_get(storage, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found && once_hash_is_zero(letter.entry))
        rc = once_fail(err, ONCE_E_USAGE, "letter %llu has no entry of its own; it can only be delivered again",
                       (unsigned long long)id);
    if (rc == ONCE_OK && *found) {
        once_entry_pair at;
        rc = once__pair_take(storage, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && (at.entry->state == ONCE_STATE_ABSENT || once_entry_expired(at.entry, storage->now_ms)))
            rc = once_fail(err, ONCE_E_USAGE,
                           "letter %llu stays: its key was forgotten, so there is nothing to go on with",
                           (unsigned long long)id);
        if (rc == ONCE_OK) {
            const int changed = once_entry_replay(at.entry, at.lane, storage->now_ms, &letter.message);
            if (changed) rc = once__pair_keep(storage, &at, changed, err);
        }
        if (rc == ONCE_OK) rc = storage->ops->letter_drop(storage, id, err);
    }
    rc = once__verb_end(storage, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__verb_forget(once_backend *store, once_hash id, bool *found, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(id));
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK) {
        *found = at.entry->state != ONCE_STATE_ABSENT && !once_entry_expired(at.entry, storage->now_ms);
        if (*found) rc = once__pair_keep(storage, &at, once_entry_forget(at.entry, at.lane), err);
    }
    return once__verb_end(storage, rc, err);
}

/* Remembers a discarded letter, so that the same message at the same place does not become this letter again. */
static int remember_discarded(once_storage *storage, const once_letter *letter, int64_t remember_ms, once_error *err)
{
    const once_request what = {.scope = &letter->scope,
                               .key = letter->key,
                               .id = letter->identity,
                               .remember_ms = remember_ms,
                               .lane = {.gap_ms = -1},
                               .sent_ms = ONCE_NO_TIME,
                               .at = letter->message.at};
    once_entry_pair at;
    const int rc = once__pair_load(storage, letter->identity, &at, err);
    if (rc != ONCE_OK) return rc;
    const int changed = once_entry_give_up(at.entry, &what, storage->now_ms);
    return changed ? once__pair_keep(storage, &at, changed, err) : ONCE_OK;
}

int once__verb_discard(once_backend *store, uint64_t id, int64_t remember_ms, bool *found, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = storage->ops->letter_get(storage, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found && !once_hash_is_zero(letter.entry)) {
        once_entry_pair at;
        rc = once__pair_take(storage, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && once__letter_is_of(&letter, at.entry))
            rc = once__pair_keep(storage, &at,
                                 once_entry_discard(at.entry, at.lane, letter.message.sent_ms, storage->now_ms), err);
    } else if (rc == ONCE_OK && *found) {
        rc = remember_discarded(storage, &letter, remember_ms, err);
    }
    if (rc == ONCE_OK && *found) rc = storage->ops->letter_drop(storage, id, err);
    rc = once__verb_end(storage, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__engine_replay_with_body(once_backend *store, uint64_t id, const once_request *request,
                                  const once_message *message, bool *done, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(request->id) && message);
    once_arena arena = {0};
    once_letter letter;
    once_entry_pair at;
    bool found = false;
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    *done = false;
    rc = storage->ops->letter_get(storage, id, &letter, &found, &arena, err);
    if (rc == ONCE_OK && found && once_hash_equal(letter.entry, request->id)) {
        rc = once__pair_take(storage, letter.entry, (once_hash){0}, &at, err);
        if (rc == ONCE_OK && once__letter_is_of(&letter, at.entry)) {
            const int changed = once_entry_replay_with_body(at.entry, at.lane, request, message, storage->now_ms);
            *done = changed != ONCE_UNCHANGED;
            if (changed) rc = once__pair_keep(storage, &at, changed, err);
        }
        if (rc == ONCE_OK && *done) rc = storage->ops->letter_drop(storage, id, err);
    }
    rc = once__verb_end(storage, rc, err);
    once_arena_release(&arena);
    return rc;
}

int once__verb_resolve(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                       once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(id) && outcome < ONCE_OUTCOMES);
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    rc = once__pair_take(storage, id, (once_hash){0}, &at, err);
    if (rc == ONCE_OK) {
        const int changed = once_entry_resolve(at.entry, at.lane, outcome, reason, storage->now_ms);
        *done = changed != ONCE_UNCHANGED;
        if (changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__verb_revive(once_backend *store, const once_request *request, const once_message *message, bool *done,
                      once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(!once_hash_is_zero(request->id) && message);
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    once_entry_pair at;
    rc = once__pair_load(storage, request->id, &at, err);
    if (rc == ONCE_OK)
        rc = once__pair_load_lane(storage, request->id, request->lane.id, &at,
                                  err); /* a finished entry may not have its lane stored */
    if (rc == ONCE_OK) {
        const int changed = once_entry_revive(at.entry, at.lane, request, message, storage->now_ms);
        *done = changed != ONCE_UNCHANGED;
        if (changed) rc = once__pair_keep(storage, &at, changed, err);
    }
    return once__verb_end(storage, rc, err);
}

int once__engine_audit(once_backend *store, const once_audit *audit, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(audit->what.len > 0 && audit->consumer.len > 0);
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    once_audit stamped = *audit;
    stamped.time_ms = storage->now_ms;
    rc = storage->ops->audit_put(storage, &stamped, err);
    return once__verb_end(storage, rc, err);
}
