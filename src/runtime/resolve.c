/* `once resolve`: an operator decides about unknown messages. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "base/usage.h"
#include "runtime/audit.h"
#include "runtime/choice.h"
#include "runtime/operate.h"

#include "base/banned.h"

/* what->key: as the operator wrote it, or as the store has it. */
static int resolve_entry(once_pipeline *pipeline, once_backend *store, const once_entry *entry,
                         const once_resolved *what, once_outcome outcome, once_error *err)
{
    const once_bytes key = what->key;
    if (entry->state != ONCE_STATE_UNKNOWN)
        return once_fail(err, ONCE_E_USAGE, "key '%.*s' is %s, not unknown; there is nothing to resolve",
                         once__shown_len(key), key.data, once_state_name(entry->state));
    if (outcome != ONCE_DONE && !entry->has_message)
        return once_fail(err, ONCE_E_USAGE,
                         "key '%.*s' has no message in the store to %s; only its source has it: resolve it after the "
                         "source has delivered it again, or 'forget' the key, and its next delivery runs",
                         once__shown_len(key), key.data, outcome == ONCE_RETRY ? "try again with" : "keep as a letter");
    char note[60], reason[700];
    bool done;
    snprintf(note, sizeof note, "resolved as %s by an operator", once_outcome_name(outcome));
    const int said = outcome == ONCE_DONE      ? 0
                     : entry->reason.len < 600 ? (int)entry->reason.len
                                               : 600; /* keep why it was unknown */
    snprintf(reason, sizeof reason, "%s%s%.*s", note, said ? "; said before: " : "", said,
             said ? entry->reason.data : "");
    const int rc = store->ops->resolve(store, entry->id, outcome, once__text_of(reason), &done, err);
    assert(rc != ONCE_OK || done);
    const once_act act = {
        .what = "resolve", .note = note, .scope = entry->scope, .key = key, .idempotency_key = what->idempotency_key};
    return rc == ONCE_OK ? once__audit(pipeline, store, &act, err) : rc;
}

typedef struct resolving {
    once_pipeline *pipeline;
    once_backend *store;
    once_keying keying;
    const once_resolve_options *options;
    once_arena arena;
    once_hash *ids; /* of the entries that match */
    size_t n, room;
    bool failed;
} resolving;

static bool want_entry(void *user, const once_entry *entry)
{
    resolving *r = user;
    if (!once__choice_has_entry(&r->options->choice, entry)) return true;
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        once_hash *ids = reallocarray(r->ids, room, sizeof *ids);
        r->failed = !ids;
        if (!ids) return false;
        r->ids = ids;
        r->room = room;
    }
    r->ids[r->n++] = entry->id;
    return true;
}

/* Whether a handler of the entry's operation has a `then`. */
static bool has_then(const once_spec *spec, once_bytes operation)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].then && once_bytes_equal(spec->handlers[i].operation, operation)) return true;
    return false;
}

static int describe(resolving *r, const once_entry *entry, once_bytes key, once_resolved *out, once_error *err)
{
    once_bytes shown;
    *out = (once_resolved){.scope = entry->scope,
                           .key = key,
                           .type = entry->message.type,
                           .place = entry->at.place,
                           .point = entry->at.point,
                           .reason = once__reason_shown(entry),
                           .then =
                               r->options->outcome == ONCE_DONE && has_then(r->pipeline->spec, entry->scope.operation)};
    if (!r->options->key) shown = entry->key;
    else if (!once_key_show(&r->arena, key, &shown)) return once_no_memory(err, "for a key");
    if (entry->state != ONCE_STATE_ABSENT)
        once_outward_key(&r->keying, &entry->scope, shown, entry->id, entry->old_key, out->idempotency_key);
    return ONCE_OK;
}

/* One transaction: for the named key, or for the entry with this id. A dry run does the same and rolls back. */
static int resolve_in_tx(resolving *r, const once_hash *id, once_resolved *out, once_error *err)
{
    assert((id == NULL) == (r->options->key != NULL));
    const once_resolve_options *o = r->options;
    once_entry entry;
    once_arena_reset(&r->arena);
    int rc = r->store->ops->begin(r->store, err);
    if (rc != ONCE_OK) return rc;
    if (id) rc = r->store->ops->get(r->store, *id, &entry, &r->arena, err);
    else
        rc = once__find_entry(r->pipeline, r->store, o->choice.tenant, o->choice.operation, *o->key, &entry, &r->arena,
                              err);
    if (rc == ONCE_OK) rc = describe(r, &entry, id ? entry.key : *o->key, out, err);
    if (rc == ONCE_OK) rc = resolve_entry(r->pipeline, r->store, &entry, out, o->outcome, err);
    if (rc != ONCE_OK || !o->dry_run) return once__finish_tx(r->store, rc, err);
    r->store->ops->rollback(r->store);
    return rc;
}

/* Messages that were decided meanwhile, or have no body to retry with, are skipped and reported. */
static int resolve_fitting(resolving *r, uint64_t *resolved, once_error *err)
{
    assert(!r->options->key && r->n == 0);
    const once_resolve_options *o = r->options;
    int rc = r->store->ops->list(r->store, r->pipeline->spec->consumer, ONCE_STATE_UNKNOWN, want_entry, r, err);
    if (rc == ONCE_OK && r->failed) rc = once_no_memory(err, "for the messages");
    for (size_t i = 0; i < r->n && rc == ONCE_OK; i++) {
        once_resolved told = {0};
        once_error refused = {0};
        rc = resolve_in_tx(r, &r->ids[i], &told, &refused);
        if (rc == ONCE_E_USAGE) told.refused = refused.text;
        else if (rc != ONCE_OK) return once_fail(err, rc, "%s", refused.text);
        *resolved += !told.refused;
        if (o->visit) o->visit(o->user, &told);
        rc = once__operator_pause(r->pipeline, &r->store, 0, err);
    }
    return rc;
}

int once_pipeline_resolve(once_pipeline *pipeline, const once_resolve_options *options, uint64_t *resolved,
                          once_error *err)
{
    once_resolve_options asked;
    if (!pipeline || !options || !resolved)
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_resolve needs a pipeline, options and a place for the count");
    int rc = once_sized_read("once_resolve_options", options, &asked, sizeof asked, err);
    if (rc == ONCE_OK) rc = once__check_choice(&asked.choice, NULL, 0, err);
    if (rc != ONCE_OK) return rc;
    *resolved = 0;
    if (asked.key && once_bytes_lie(*asked.key))
        return once_fail(err, ONCE_E_USAGE, "the key has a length and no address");
    if (asked.outcome != ONCE_DONE && asked.outcome != ONCE_RETRY && asked.outcome != ONCE_DEAD)
        return once_fail(err, ONCE_E_USAGE, "an unknown message can be resolved as done, retry or dead");
    resolving r = {.pipeline = pipeline, .options = &asked};
    rc = once__open_keyed(pipeline, &r.store, err);
    if (rc != ONCE_OK) return rc;
    r.keying = once__keying_of(pipeline, r.store);
    if (asked.key) {
        once_resolved told = {0};
        rc = resolve_in_tx(&r, NULL, &told, err);
        *resolved = rc == ONCE_OK;
        if (rc == ONCE_OK && asked.visit) asked.visit(asked.user, &told);
    } else {
        rc = resolve_fitting(&r, resolved, err);
    }
    once_arena_release(&r.arena);
    free(r.ids);
    once__operator_close(pipeline, r.store);
    return rc;
}
