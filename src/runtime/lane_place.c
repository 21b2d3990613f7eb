/* Stores identify a lane by a hash. Its value is computed from the message, if the store has it, and shown if it gives
 * that hash. */
#include "runtime/lane_place.h"

#include <assert.h>
#include <stdio.h>

#include "base/no_memory.h"
#include "runtime/operate.h"

#include "base/banned.h"

void once__lane_reader_init(once_lane_reader *reader, const once_pipeline *pipeline, once_backend *store)
{
    assert(store && pipeline->spec);
    *reader = (once_lane_reader){.spec = pipeline->spec, .store = store};
    once_intake_init(&reader->intake, pipeline->spec, store->secret, 0, once_effect_prepare);
}

void once__lane_reader_release(once_lane_reader *reader)
{
    if (!reader->spec) return;
    once_intake_release(&reader->intake);
    once_arena_release(&reader->batch.arena);
}

static bool note_letter(void *user, const once_letter *letter)
{
    once_lane_reader *reader = user;
    if (once_hash_equal(letter->entry, reader->dead))
        reader->letter = letter->id; /* the last one belongs to the current state */
    return true;
}

/* Caches the last answer, because many messages may wait for one letter. */
int once__lane_dead_letter(once_lane_reader *reader, const once_entry *dead, uint64_t *out, once_error *err)
{
    assert(dead->state == ONCE_STATE_DEAD);
    once_backend *store = reader->store;
    int rc = ONCE_OK;
    if (!once_hash_equal(reader->dead, dead->id)) {
        reader->dead = dead->id;
        reader->letter = 0;
        if (store->ops->letters_of_key)
            rc = store->ops->letters_of_key(store, reader->spec->consumer, dead->key, note_letter, reader, err);
        else if (store->ops->letter_heads)
            rc = store->ops->letter_heads(store, reader->spec->consumer, 0, false, note_letter, reader, err);
        else rc = store->ops->letters(store, reader->spec->consumer, 0, note_letter, reader, err);
    }
    *out = reader->letter;
    return rc;
}

static int show_before(once_lane_reader *reader, const once_in_lane *at, once_lane_place *out, once_error *err)
{
    assert(at->n <= ONCE_BEFORE_SHOWN && at->n <= at->count);
    int rc = ONCE_OK;
    for (size_t i = 0; i < at->n && rc == ONCE_OK; i++) {
        const once_entry *e = &at->before[i];
        reader->before[i] = (once_before){
            .operation = e->scope.operation,
            .key = e->key,
            .state = e->state == ONCE_STATE_CLAIMED ? "busy" : once_state_name(e->state),
            .versioned = e->versioned,
            .version = e->order,
            .changed_ms = e->changed_ms,
            .due_ms = once__due_shown_ms(reader->spec, e),
            .worker = e->worker,
        };
        if (e->state == ONCE_STATE_DEAD) rc = once__lane_dead_letter(reader, e, &reader->before[i].letter, err);
    }
    out->before = reader->before;
    out->n_before = at->n;
    out->all_before = at->count;
    return rc;
}

static void show_id(once_hash id, char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)id.a, (unsigned long long)id.b);
}

int once__lane_place_read(once_lane_reader *reader, once_hash entry, const once_scope *scope,
                          const once_message *message, once_lane_place *out, once_error *err)
{
    once_in_lane at = {0};
    once_bytes value = {0};
    once_hash id = {0};
    *out = (once_lane_place){0};
    if (!reader->spec->order) return ONCE_OK;
    once_arena_reset(&reader->batch.arena);
    int rc = once_hash_is_zero(entry)
                 ? ONCE_OK
                 : reader->store->ops->in_lane(reader->store, entry, ONCE_BEFORE_SHOWN, &at, &reader->batch.arena, err);
    if (rc == ONCE_OK && message)
        rc = once_intake_lane(&reader->intake, &reader->batch, message, scope, &value, &id, err);
    if (rc != ONCE_OK) return rc;
    const bool stands = !once_hash_is_zero(at.lane);
    out->known = !once_hash_is_zero(id) && (!stands || once_hash_equal(id, at.lane));
    if (!stands && !out->known) return ONCE_OK;
    show_id(stands ? at.lane : id, out->id);
    if (out->known && !once_arena_copy(&reader->batch.arena, value, &out->value))
        return once_no_memory(err, "for a lane");
    out->versioned = at.versioned;
    out->version = at.version;
    out->gap = at.gap;
    out->missing_from = at.missing_from;
    out->missing_to = at.missing_to;
    return show_before(reader, &at, out, err);
}
