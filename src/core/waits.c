#include "core/waits.h"

#include <assert.h>

#include "base/banned.h"

bool once_waits_init(once_waits *waits, size_t items)
{
    *waits = (once_waits){0};
    return once_table_reserve(&waits->last, 2 * items); /* each has a key and a lane */
}

void once_waits_release(once_waits *waits) { once_table_release(&waits->last); }

/* The last one with this id becomes `item`; returns the one before, or NULL. */
static once_item *stand_behind(once_waits *waits, once_hash id, once_item *item)
{
    once_item *before = once_table_get(&waits->last, id);
    const bool put = once_table_put(&waits->last, id, item);
    assert(put); /* there is room for all items */
    (void)put;
    return before;
}

bool once_waits_in_use(const once_waits *waits, const once_item *item)
{
    const once_hash lane = item->request.lane.id;
    return once_table_get(&waits->last, item->request.id) ||
           (!once_hash_is_zero(lane) && once_table_get(&waits->last, lane));
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

static void leave_queue(once_waits *waits, once_hash id, const once_item *item, once_item *behind, once_item *out[2],
                        size_t *n)
{
    if (behind) {
        if (--behind->waits_for == 0) out[(*n)++] = behind;
        return;
    }
    assert(once_table_get(&waits->last, id) == item);
    (void)item;
    once_table_remove(&waits->last, id);
}

size_t once_waits_leave(once_waits *waits, once_item *item, once_item *out[2])
{
    size_t n = 0;
    assert(item->joined && item->waits_for == 0);
    item->joined = false;
    leave_queue(waits, item->request.id, item, item->behind_key, out, &n);
    if (!once_hash_is_zero(item->request.lane.id))
        leave_queue(waits, item->request.lane.id, item, item->behind_lane, out, &n);
    return n;
}
