/* Discards dead letters. A message that died then counts as rejected, and its key is remembered as long as that of a
 * finished message. A letter without an entry of its own (conflict, malformed, too old) leaves a record, so that the
 * same message is not buried again. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "base/usage.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/operate.h"
#include "store/engine.h"

#include "base/banned.h"

enum { DISCARDS = 500 }; /* letters in a transaction: an interrupted discard can be repeated */

typedef struct discarding {
    once_pipeline *pipeline;
    once_backend *store;
    once_keying keying;
    const once_discard_options *options;
    once_arena arena; /* of one transaction */
    once_reading letters;
    once_discarded told[DISCARDS];
    uint64_t *ids;
    size_t n, room;
    bool failed;
} discarding;

static bool want_letter(void *user, const once_letter *letter)
{
    discarding *d = user;
    assert(letter->id > 0 && d->n <= d->room);
    if (!once__choice_has_letter(&d->options->choice, letter)) return true;
    if (d->n == d->room) {
        const size_t room = d->room ? 2 * d->room : 64;
        uint64_t *ids = reallocarray(d->ids, room, sizeof *ids);
        d->failed = !ids;
        if (!ids) return false;
        d->ids = ids;
        d->room = room;
    }
    d->ids[d->n++] = letter->id;
    return true;
}

static int find_letters(discarding *d, once_error *err)
{
    const once_store_ops *ops = d->store->ops;
    const once_bytes consumer = d->pipeline->spec->consumer;
    const int rc = ops->letter_heads ? ops->letter_heads(d->store, consumer, 0,
                                                         once__choice_is_all(&d->options->choice), want_letter, d, err)
                                     : ops->letters(d->store, consumer, 0, want_letter, d, err);
    return rc == ONCE_OK && d->failed ? once_no_memory(err, "for the letters") : rc;
}

static int discard_one(discarding *d, uint64_t id, once_discarded *out, once_error *err)
{
    once_letter letter;
    *out = (once_discarded){.letter = id};
    int rc = d->store->ops->letter_get(d->store, id, &letter, &out->found, &d->arena, err);
    if (rc != ONCE_OK) return rc;
    if (out->found && !once_bytes_equal(letter.scope.consumer, d->pipeline->spec->consumer)) out->found = false;
    if (!out->found) return ONCE_OK;
    once__letters_note(&d->letters, &letter);
    out->scope = letter.scope;
    out->kind = once__letter_kind(&letter);
    out->key = letter.key;
    out->type = letter.message.type;
    out->place = letter.message.at.place;
    out->point = letter.message.at.point;
    out->reason = letter.reason;
    once__letter_outward_key(&d->keying, &letter, out->idempotency_key);
    rc = d->store->ops->discard(d->store, id, once__letter_remember(d->pipeline->spec, letter.scope.operation),
                                &out->found, err);
    const once_act act = {.what = "discard",
                          .note = "",
                          .scope = letter.scope,
                          .key = letter.key,
                          .letter = id,
                          .idempotency_key = out->idempotency_key};
    return rc == ONCE_OK ? once__audit(d->pipeline, d->store, &act, err) : rc;
}

/* One transaction. A dry run does the same and rolls back. */
static int discard_some(discarding *d, const uint64_t *ids, size_t n, uint64_t *discarded, once_error *err)
{
    assert(n > 0 && n <= DISCARDS);
    once_backend *store = d->store;
    once_arena_reset(&d->arena);
    d->letters.left = 0;
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        rc = once__letters_ahead(&d->letters, store, ids + i, n - i, err);
        if (rc == ONCE_OK) rc = discard_one(d, ids[i], &d->told[i], err);
    }
    if (rc == ONCE_OK && d->options->dry_run) store->ops->rollback(store);
    else rc = once__finish_tx(store, rc, err);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) {
        *discarded += d->told[i].found;
        if (d->options->visit) d->options->visit(d->options->user, &d->told[i]);
    }
    return rc;
}

/* Lets a run that uses the same store work in between. */
static int discard_next(discarding *d, const uint64_t *ids, size_t n, uint64_t *discarded, once_error *err)
{
    assert(d->store && d->pipeline->store_lock.held);
    const int rc = discard_some(d, ids, n, discarded, err);
    return rc == ONCE_OK ? once__operator_pause(d->pipeline, &d->store, 0, err) : rc;
}

int once_pipeline_discard(once_pipeline *pipeline, const once_discard_options *options, uint64_t *discarded,
                          once_error *err)
{
    once_discard_options asked;
    if (!pipeline || !options || !discarded)
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_discard needs a pipeline, options and a place for the count");
    int rc = once_sized_read("once_discard_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = once__check_choice(&asked.choice, asked.ids, asked.n_ids, err);
    if (rc != ONCE_OK) return rc;
    *discarded = 0;
    discarding *d = calloc(1, sizeof *d);
    if (!d) return once_no_memory(err, "for letters");
    d->pipeline = pipeline;
    d->options = &asked;
    rc = once__open_keyed(pipeline, &d->store, err);
    if (rc == ONCE_OK) {
        d->keying = once__keying_of(pipeline, d->store);
        if (!asked.ids) rc = find_letters(d, err);
        const uint64_t *ids = asked.ids ? asked.ids : d->ids;
        const size_t n = asked.ids ? asked.n_ids : d->n;
        for (size_t at = 0; at < n && rc == ONCE_OK; at += DISCARDS)
            rc = discard_next(d, ids + at, n - at < DISCARDS ? n - at : DISCARDS, discarded, err);
        once__operator_close(pipeline, d->store);
    }
    once_arena_release(&d->arena);
    free(d->ids);
    free(d);
    return rc;
}
