/* Lanes of the memory store: the stored part of each lane, and its unfinished entries. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "store/memory/memory.h"

#include "base/banned.h"

static once_mem_lane *find_lane(once_mem *m, once_hash id)
{
    for (size_t i = 0; i < m->lanes.n; i++)
        if (once_hash_equal(m->lanes.at[i].id, id)) return &m->lanes.at[i];
    return NULL;
}

int once__mem_lane(once_storage *storage, once_hash id, once_hash except, once_lane *out, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(m->open && !once_hash_is_zero(id));
    const once_mem_lane *known = find_lane(m, id);
    const once_mem_lane lane = known ? *known : (once_mem_lane){0};
    if (!once__lane_read(lane.version, lane.expires_ms, (once_bytes){(const char *)lane.record, lane.len},
                         storage->now_ms, out) ||
        !once_arena_copy(&m->tx_arena, out->operation, &out->operation) ||
        !once_arena_copy(&m->tx_arena, out->key, &out->key))
        return once_no_memory(err, "in the memory store");
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state)) continue;
        if (once_hash_equal(other->id, except)) continue;
        if (once_state_occupies(other->state)) out->claimed = true;
        if (other->order < out->head) out->head = other->order;
        if (other->order > out->tail) out->tail = other->order;
    }
    return ONCE_OK;
}

int once__mem_save_lane(once_storage *storage, once_hash id, const once_lane *kept, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(m->write && !once_hash_is_zero(id));
    once_mem_lane *known = find_lane(m, id);
    if (!known) {
        if (!ONCE_MEM_ROOM(m->lanes)) return once_no_memory(err, "in the memory store");
        known = &m->lanes.at[m->lanes.n++];
        *known = (once_mem_lane){.id = id};
    }
    if (!ONCE_MEM_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    m->undos.at[m->undos.n++] =
        (once_mem_undo){.what = UNDO_LANE, .index = (size_t)(known - m->lanes.at), .lane = *known};
    known->version = once__lane_version(kept);
    known->expires_ms = kept->expires_ms;
    known->len = once__lane_write(kept, known->record).len;
    return ONCE_OK;
}

int once__mem_lane_head(once_storage *storage, once_hash id, once_hash *out, once_error *err)
{
    (void)err;
    once_mem *m = once__mem_of(storage);
    assert(m->open && !once_hash_is_zero(id));
    const once_entry *head = NULL;
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state)) continue;
        if (!head || once__lane_before(other->order, other->seen_ms, other->id, head)) head = other;
    }
    *out = head ? head->id : (once_hash){0};
    return ONCE_OK;
}

int once__mem_lane_equals(once_storage *storage, once_hash id, int64_t order, int64_t *seen_ms, once_error *err)
{
    assert(once__mem_of(storage)->open && !once_hash_is_zero(id));
    (void)err;
    const once_mem *m = once__mem_of(storage);
    *seen_ms = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        if (!m->slots.at[i].record) continue;
        const once_entry *other = &m->slots.at[i].record->entry;
        if (!once_hash_equal(other->lane, id) || !once_state_unfinished(other->state) || other->order != order)
            continue;
        if (other->seen_ms > *seen_ms) *seen_ms = other->seen_ms;
    }
    return ONCE_OK;
}

static int compare_places(const void *a, const void *b)
{
    const once_entry *const *x = a, *const *y = b;
    if ((*x)->order != (*y)->order) return (*x)->order < (*y)->order ? -1 : 1;
    return once_hash_compare((*x)->id, (*y)->id);
}

static int compare_turns(const void *a, const void *b)
{
    const once_entry *const *x = a, *const *y = b;
    if (*x == *y) return 0;
    return once__lane_before((*x)->order, (*x)->seen_ms, (*x)->id, *y) ? -1 : 1;
}

int once__mem_lane_before(once_storage *storage, const once_entry *entry, size_t max, once_hash *out, size_t *n,
                          uint64_t *count, once_error *err)
{
    const once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->open && max > 0 && !once_hash_is_zero(entry->lane));
    const once_entry **found = calloc(m->slots.n + 1, sizeof *found);
    size_t before = 0;
    if (!found) return once_no_memory(err, "in the memory store");
    *n = 0;
    for (size_t i = 0; i < m->slots.n; i++) {
        const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
        if (!e || !once_hash_equal(e->lane, entry->lane) || !once_state_unfinished(e->state) ||
            once_hash_equal(e->id, entry->id))
            continue;
        if (once__lane_before(e->order, e->seen_ms, e->id, entry)) found[before++] = e;
        else if (once_state_occupies(e->state) && *n < max) out[(*n)++] = e->id;
    }
    qsort(found, before, sizeof *found, compare_turns);
    for (size_t i = 0; i < before && i < max; i++) out[(*n)++] = found[i]->id;
    *count = before < ONCE_BEFORE_COUNTED ? before : ONCE_BEFORE_COUNTED;
    free(found);
    return ONCE_OK;
}

static bool is_new(const once_hash *lanes, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (once_hash_equal(lanes[i], lanes[at])) return false;
    return true;
}

int once__mem_lanes_waiting(once_storage *storage, const once_hash *lanes, size_t n_lanes, size_t each, size_t max,
                            once_hash *out, size_t *n, once_error *err)
{
    const once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->open && each > 0 && max > 0);
    const once_entry **found = calloc(m->slots.n + 1, sizeof *found);
    if (!found) return once_no_memory(err, "in the memory store");
    *n = 0;
    for (size_t lane = 0; lane < n_lanes; lane++) {
        size_t count = 0;
        for (size_t i = 0; i < m->slots.n && is_new(lanes, lane); i++) {
            const once_entry *e = m->slots.at[i].record ? &m->slots.at[i].record->entry : NULL;
            if (e && once_hash_equal(e->lane, lanes[lane]) && once_state_unfinished(e->state)) found[count++] = e;
        }
        qsort(found, count, sizeof *found, compare_places);
        for (size_t i = 0; i < count && i < each && *n < max; i++) out[(*n)++] = found[i]->id;
    }
    free(found);
    return ONCE_OK;
}
