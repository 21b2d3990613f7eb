/* Letters: of entries that die, of messages without an entry, and of messages that other content replaced.
 *
 * Invariant: a letter has an identity and is written once, however often its message arrives. */
#include <assert.h>

#include "base/no_memory.h"
#include "base/table.h"
#include "core/conflict.h"
#include "core/plant.h"
#include "store/engine/parts.h"

#include "base/banned.h"

/* `fresh` NULL: the caller does not need it. */
static int put_letters(once_storage *storage, const once_letter *letters, const once_hash *uniques, size_t n,
                       bool *fresh, once_error *err)
{
    assert(n > 0);
    if (storage->ops->letters_put) return storage->ops->letters_put(storage, letters, uniques, n, fresh, err);
    int rc = ONCE_OK;
    bool ignored;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++)
        rc = storage->ops->letter_put(storage, &letters[i], uniques[i], fresh ? &fresh[i] : &ignored, err);
    return rc;
}

int once__write_letter(once_storage *storage, const once_entry *entry, once_answer kind, const once_message *message,
                       once_error *err)
{
    assert(kind == ONCE_ANSWER_DEAD || kind == ONCE_ANSWER_CONFLICT);
    const once_letter letter = {
        .entry = entry->id,
        .scope = entry->scope,
        .key = entry->key,
        .message = message ? *message : (once_message){.at = entry->at, .sent_ms = ONCE_NO_TIME},
        .reason = entry->reason,
        .kind = kind,
        .attempt = entry->attempt,
        .failures = entry->failures,
        .seen_ms = entry->seen_ms,
        .buried_ms = storage->now_ms,
        .count = 1,
        .last_ms = storage->now_ms,
        .history = entry->history,
        .old_key = entry->old_key,
        .maybe_done = entry->maybe_done,
    };
    /* Each death has its own letter: an entry that was forgotten and died again must not lose its second body. */
    const once_hash unique = {entry->id.a ^ entry->token.a, entry->id.b ^ entry->token.b};
    return put_letters(storage, &letter, &unique, 1, NULL, err);
}

/* Other content under a key is one letter, wherever and however often it arrives. */
static once_hash conflict_identity(const once_backend *store, const once_letter *letter)
{
    assert(letter->kind == ONCE_ANSWER_CONFLICT && letter->key.len > 0);
    const bool printed = !once_hash_is_zero(letter->fingerprint);
    const once_hash key =
        once_hash_is_zero(letter->key_id) ? once_key_id(store->secret, &letter->scope, letter->key) : letter->key_id;
    const once_bytes content = {(const char *)&letter->fingerprint, sizeof letter->fingerprint};
    const once_scope owner = {{(const char *)&key, sizeof key},
                              printed ? ONCE_BYTES("fingerprint") : ONCE_BYTES("body"),
                              ONCE_BYTES("conflict")};
    return once_key_id(store->secret, &owner, printed ? content : letter->message.body);
}

/* Any other letter without an entry is identified by its consumer, its place and its body. For a message that was cut,
 * its length stands for the rest of the body. A letter without a place is identified by its key, if it has one. */
once_hash once__letter_identity(const once_backend *store, const once_letter *letter)
{
    if (letter->kind == ONCE_ANSWER_CONFLICT && letter->key.len) return conflict_identity(store, letter);
    const uint64_t whole = letter->message.cut_from;
    const once_scope source = {letter->message.at.place, letter->message.at.point, ONCE_BYTES("letter")};
    const once_scope cut = {letter->message.at.place, letter->message.at.point, {(const char *)&whole, sizeof whole}};
    const once_hash message = once_key_id(store->secret, whole ? &cut : &source, letter->message.body);
    const bool by_key = letter->key.len && !letter->message.at.place.len && !letter->message.at.point.len;
    const once_scope owner = {letter->scope.tenant, letter->scope.consumer,
                              by_key ? letter->key : ONCE_BYTES("letter")};
    return once_key_id(store->secret, &owner, (once_bytes){(const char *)&message, sizeof message});
}

bool once__letter_is_of(const once_letter *letter, const once_entry *entry)
{
    return entry->state == ONCE_STATE_DEAD && once_hash_equal(letter->entry, entry->id) &&
           letter->seen_ms == entry->seen_ms && letter->attempt == entry->attempt;
}

void once__letter_again(once_letter *kept, const once_letter *again)
{
    assert(once_hash_is_zero(again->entry) && again->count > 0);
    kept->count += again->count;
    kept->last_ms = again->last_ms;
    kept->message.at = again->message.at;
}

/* --- letters without an entry --- */

/* A batch of letters; each is written once, even if the batch contains it several times. */
typedef struct burial {
    once_hash *uniques;
    once_letter *letters;
    size_t *of; /* the position in `letters` that the i-th letter of the caller is the first to fill; n: an earlier one
                 * of the batch is the same letter, or it was discarded */
    bool *fresh;
    size_t n;
} burial;

static bool gather(const once_storage *storage, const once_letter *letters, size_t n, once_table *known, burial *out)
{
    for (size_t i = 0; i < n; i++) {
        assert(once_hash_is_zero(letters[i].entry)); /* the letter of an entry is written together with the entry */
        once_letter letter = letters[i];
        letter.buried_ms = letter.last_ms = storage->now_ms;
        if (letter.seen_ms == 0) letter.seen_ms = storage->now_ms;
        if (letter.count == 0) letter.count = 1;
        const once_hash unique = once__letter_identity(&storage->store, &letter);
        size_t first;
        const bool again = once_table_position(known, unique, &first);
        out->of[i] = again ? n : out->n;
        if (again) {
            once__letter_again(&out->letters[first], &letter);
            continue;
        }
        if (!once_table_put_position(known, unique, out->n)) return false;
        out->uniques[out->n] = unique;
        out->letters[out->n++] = letter;
    }
    return true;
}

/* Finds the letters that an operator discarded and that are still remembered as discarded. */
static int find_discarded(once_storage *storage, const burial *all, bool *discarded, once_arena *arena, once_error *err)
{
    once_request *requests = once_arena_new(arena, once_request, all->n + 1);
    const once_request **asked = once_arena_alloc(arena, (all->n + 1) * sizeof *asked);
    if (!requests || !asked) return once_no_memory(err, "for letters");
    for (size_t i = 0; i < all->n; i++) {
        requests[i].id = all->uniques[i];
        asked[i] = &requests[i];
    }
    int rc = storage->ops->prefetch ? storage->ops->prefetch(storage, asked, all->n, ONCE_FOR_EXTEND, err) : ONCE_OK;
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) {
        once_entry *entry;
        rc = once__pair_load_entry(storage, all->uniques[i], &entry, err);
        discarded[i] =
            rc == ONCE_OK && entry->state == ONCE_STATE_REJECTED && !once_entry_expired(entry, storage->now_ms);
    }
    return rc;
}

/* Takes the discarded letters out of the batch. */
static int leave_out_discarded(once_storage *storage, burial *all, size_t n, once_arena *arena, once_error *err)
{
    assert(all->n <= n);
    bool *discarded = once_arena_new(arena, bool, all->n + 1);
    size_t *moved = once_arena_new(arena, size_t, all->n + 1), left = 0;
    if (!discarded || !moved) return once_no_memory(err, "for letters");
    const int rc = find_discarded(storage, all, discarded, arena, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < all->n; i++) {
        moved[i] = discarded[i] ? n : left;
        all->uniques[left] = all->uniques[i];
        all->letters[left] = all->letters[i];
        left += !discarded[i];
    }
    for (size_t i = 0; i < n; i++)
        if (all->of[i] < n) all->of[i] = moved[all->of[i]];
    all->n = left;
    return ONCE_OK;
}

int once__bury_all(once_storage *storage, const once_letter *letters, size_t n, bool *fresh, once_arena *arena,
                   once_error *err)
{
    once_table known = {0};
    burial all = {
        .uniques = once_arena_new(arena, once_hash, n + 1),
        .letters = once_arena_new(arena, once_letter, n + 1),
        .of = once_arena_new(arena, size_t, n + 1),
        .fresh = once_arena_new(arena, bool, n + 1),
    };
    const bool room = all.uniques && all.letters && all.of && all.fresh && gather(storage, letters, n, &known, &all);
    once_table_release(&known);
    if (!room) return once_no_memory(err, "for letters");
    int rc = leave_out_discarded(storage, &all, n, arena, err);
    if (rc == ONCE_OK && all.n) rc = put_letters(storage, all.letters, all.uniques, all.n, all.fresh, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) fresh[i] = all.of[i] < n && all.fresh[all.of[i]];
    return rc;
}

int once__verb_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    once_arena arena = {0};
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    rc = once__bury_all(storage, letters, n, fresh, &arena, err);
    once_arena_release(&arena);
    return once__verb_end(storage, rc, err);
}

int once__replaced_note(const once_storage *storage, const once_entry *entry, const once_request *const *requests,
                        size_t n, size_t by, once_replacements *all, once_error *err)
{
    assert(by < n && all->n < n);
    once_entry was;
    once_bytes reason;
    if (!entry->has_message || ONCE_PLANTED(replaced_lost)) return ONCE_OK; /* its source delivers it again */
    if (!all->n) {
        all->letters = once_arena_new(&all->arena, once_letter, n);
        all->by = once_arena_new(&all->arena, size_t, n);
    }
    if (!all->letters || !all->by || !once__entry_copy(&all->arena, entry, &was) ||
        !once_conflict_replaced(&requests[by]->at, &all->arena, &reason))
        return once_no_memory(err, "for a letter");
    all->by[all->n] = by;
    all->letters[all->n++] = (once_letter){
        .scope = was.scope,
        .key = was.key,
        .message = was.message,
        .reason = reason,
        .kind = ONCE_ANSWER_CONFLICT,
        .attempt = was.attempt,
        .failures = was.failures,
        .seen_ms = was.seen_ms,
        .buried_ms = storage->now_ms,
        .count = 1,
        .last_ms = storage->now_ms,
        .history = was.history,
        .old_key = was.old_key,
        .key_id = was.id,
        .fingerprint = was.fingerprint,
    };
    return ONCE_OK;
}

/* Buries all replaced messages of a batch at once: one query tells which were discarded before. */
int once__replaced_bury(once_storage *storage, once_replacements *all, once_decision *out, int rc, once_error *err)
{
    assert(all->n == 0 || (all->letters && all->by));
    bool *fresh = rc == ONCE_OK && all->n ? once_arena_new(&all->arena, bool, all->n) : NULL;
    if (rc == ONCE_OK && all->n)
        rc = fresh ? once__bury_all(storage, all->letters, all->n, fresh, &all->arena, err)
                   : once_no_memory(err, "for letters");
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) out[all->by[i]].letter = fresh[i];
    once_arena_release(&all->arena);
    return rc;
}

/* --- letters by their number --- */

int once__engine_letters_ahead(once_backend *store, const uint64_t *ids, size_t n, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    assert(n == 0 || ids);
    assert(storage->in_tx);
    const int rc = once__verb_begin(storage, false, err);
    return rc == ONCE_OK ? once__verb_end(storage, storage->ops->letters_ahead(storage, ids, n, err), err) : rc;
}

int once__engine_letter_get(once_backend *store, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                            once_error *err)
{
    once_storage *storage = once__storage_of(store);
    int rc = once__verb_begin(storage, false, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = storage->ops->letter_get(storage, id, out, found, arena, err);
    return once__verb_end(storage, rc, err);
}

int once__verb_letter_drop(once_backend *store, uint64_t id, bool *found, once_error *err)
{
    once_storage *storage = once__storage_of(store);
    once_arena arena = {0};
    once_letter letter;
    int rc = once__verb_begin(storage, true, err);
    if (rc != ONCE_OK) return rc;
    *found = false;
    rc = storage->ops->letter_get(storage, id, &letter, found, &arena, err);
    if (rc == ONCE_OK && *found) rc = storage->ops->letter_drop(storage, id, err);
    once_arena_release(&arena);
    return once__verb_end(storage, rc, err);
}
