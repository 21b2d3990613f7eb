#include "core/waits.h"

#include <assert.h>

#include "base/banned.h"

bool once_waits_init(once_waits *waits, size_t items)
{
    *waits = (once_waits){0};
    return once_waits_reserve(waits, items); /* each has a key and a lane */
}

bool once_waits_reserve(once_waits *waits, size_t items) { return once_table_reserve(&waits->last, 2 * items); }

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

enum { BY_KEY, BY_LANE }; /* the two queues of an item */

static void join_queue(once_waits *waits, once_hash id, once_item *item, int queue)
{
    once_item *before = stand_behind(waits, id, item);
    item->ahead[queue] = before;
    if (!before) return;
    before->behind[queue] = item;
    item->waits_for++;
}

void once_waits_join(once_waits *waits, once_item *item)
{
    assert(!item->joined);
    item->joined = true;
    item->waits_for = 0;
    item->ahead[BY_KEY] = item->ahead[BY_LANE] = item->behind[BY_KEY] = item->behind[BY_LANE] = NULL;
    join_queue(waits, item->request.id, item, BY_KEY);
    if (!once_hash_is_zero(item->request.lane.id)) join_queue(waits, item->request.lane.id, item, BY_LANE);
}

/* Whoever stood behind it stands behind the one before it now, or waits for nobody. */
static void leave_queue(once_waits *waits, once_hash id, const once_item *item, int queue, once_item *out[2], size_t *n)
{
    once_item *ahead = item->ahead[queue], *behind = item->behind[queue];
    if (ahead) ahead->behind[queue] = behind;
    if (behind) {
        behind->ahead[queue] = ahead;
        if (!ahead && --behind->waits_for == 0) out[(*n)++] = behind;
        return;
    }
    assert(once_table_get(&waits->last, id) == item);
    if (ahead) (void)once_table_put(&waits->last, id, ahead); /* in the place of the item */
    else once_table_remove(&waits->last, id);
}

size_t once_waits_leave(once_waits *waits, once_item *item, once_item *out[2])
{
    size_t n = 0;
    assert(item->joined);
    item->joined = false;
    item->waits_for = 0;
    leave_queue(waits, item->request.id, item, BY_KEY, out, &n);
    if (!once_hash_is_zero(item->request.lane.id)) leave_queue(waits, item->request.lane.id, item, BY_LANE, out, &n);
    return n;
}
