#include "core/waits.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

bool once_waits_init(once_waits *waits, size_t items)
{
    *waits = (once_waits){.size = 64};
    while (waits->size < 4 * items) waits->size *= 2; /* two ids each, and half of it empty */
    waits->slots = calloc(waits->size, sizeof *waits->slots);
    return waits->slots != NULL;
}

void once_waits_release(once_waits *waits)
{
    free(waits->slots);
    *waits = (once_waits){0};
}

static size_t home_of(const once_waits *waits, once_hash id) { return id.a & (waits->size - 1); }

/* Where it is, or where it would be. */
static size_t find(const once_waits *waits, once_hash id)
{
    size_t at = home_of(waits, id);
    while (waits->slots[at].last && !once_hash_equal(waits->slots[at].id, id)) at = (at + 1) & (waits->size - 1);
    return at;
}

static void erase(once_waits *waits, size_t hole)
{
    waits->n--;
    for (size_t at = hole;;) {
        waits->slots[hole] = (once_waits_slot){0};
        for (;;) { /* the next one that may move into the hole without being lost to its own search */
            at = (at + 1) & (waits->size - 1);
            if (!waits->slots[at].last) return;
            const size_t home = home_of(waits, waits->slots[at].id);
            const bool between = hole <= at ? hole < home && home <= at : hole < home || home <= at;
            if (!between) break;
        }
        waits->slots[hole] = waits->slots[at];
        hole = at;
    }
}

/* The last one with this id becomes `item`; returns the one before, or NULL. */
static once_item *stand_behind(once_waits *waits, once_hash id, once_item *item)
{
    const size_t at = find(waits, id);
    once_item *before = waits->slots[at].last;
    if (!before) waits->n++;
    assert(waits->n < waits->size);
    waits->slots[at] = (once_waits_slot){id, item};
    return before;
}

bool once_waits_in_use(const once_waits *waits, const once_item *item)
{
    if (waits->n == 0) return false;
    if (waits->slots[find(waits, item->request.id)].last) return true;
    const once_hash lane = item->request.lane.id;
    return !once_hash_is_zero(lane) && waits->slots[find(waits, lane)].last;
}

void once_waits_join(once_waits *waits, once_item *item)
{
    assert(!item->joined);
    item->joined = true;
    item->waits_for = 0;
    item->behind_key = item->behind_lane = NULL;
    once_item *before = stand_behind(waits, item->request.id, item);
    if (before) {
        before->behind_key = item;
        item->waits_for++;
    }
    if (once_hash_is_zero(item->request.lane.id)) return;
    before = stand_behind(waits, item->request.lane.id, item);
    if (before) {
        before->behind_lane = item;
        item->waits_for++;
    }
}

static void leave_queue(once_waits *waits, once_hash id, const once_item *item, once_item *behind, once_item *out[2], size_t *n)
{
    if (behind) {
        if (--behind->waits_for == 0) out[(*n)++] = behind;
        return;
    }
    const size_t at = find(waits, id);
    assert(waits->slots[at].last == item);
    erase(waits, at);
}

size_t once_waits_leave(once_waits *waits, once_item *item, once_item *out[2])
{
    size_t n = 0;
    assert(item->joined && item->waits_for == 0);
    item->joined = false;
    leave_queue(waits, item->request.id, item, item->behind_key, out, &n);
    if (!once_hash_is_zero(item->request.lane.id)) leave_queue(waits, item->request.lane.id, item, item->behind_lane, out, &n);
    return n;
}
