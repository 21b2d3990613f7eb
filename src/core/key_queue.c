/* Queues of items with equal keys and lanes (core/key_queue.h). Each is a doubly linked list whose last item is in the
 * table. */
#include "core/key_queue.h"

#include <assert.h>

#include "base/banned.h"

bool once_key_queue_init(once_key_queue *keys, size_t ids)
{
    *keys = (once_key_queue){0};
    return once_key_queue_reserve(keys, ids);
}

bool once_key_queue_reserve(once_key_queue *keys, size_t ids) { return once_table_reserve(&keys->last, ids); }

void once_key_queue_release(once_key_queue *keys) { once_table_release(&keys->last); }

bool once_key_queue_in_use(const once_key_queue *keys, const once_item *item)
{
    const once_hash lane = item->request.lane.id;
    return once_table_get(&keys->last, item->request.id) ||
           (!once_hash_is_zero(lane) && once_table_get(&keys->last, lane));
}

enum { BY_KEY, BY_LANE }; /* the two queues of an item */

static void join_queue(once_key_queue *keys, once_hash id, once_item *item, int queue)
{
    once_item *before = once_table_swap(&keys->last, id, item);
    item->ahead[queue] = before;
    if (!before) return;
    before->behind[queue] = item;
    item->waits_for++;
}

static void begin(once_item *item)
{
    assert(!item->joined && !once_hash_is_zero(item->request.id));
    item->joined = true;
    item->waits_for = 0;
    item->ahead[BY_KEY] = item->ahead[BY_LANE] = item->behind[BY_KEY] = item->behind[BY_LANE] = NULL;
}

bool once_key_queue_join_first(once_key_queue *keys, once_item *item)
{
    const once_hash lane = item->request.lane.id;
    if (!once_hash_is_zero(lane) && once_table_get(&keys->last, lane)) return false;
    if (once_table_add(&keys->last, item->request.id, item)) return false;
    begin(item);
    if (!once_hash_is_zero(lane)) join_queue(keys, lane, item, BY_LANE);
    return true;
}

void once_key_queue_join(once_key_queue *keys, once_item *item)
{
    begin(item);
    join_queue(keys, item->request.id, item, BY_KEY);
    if (!once_hash_is_zero(item->request.lane.id)) join_queue(keys, item->request.lane.id, item, BY_LANE);
}

/* The item behind it now stands behind the one before it, or waits for none. */
static void leave_queue(once_key_queue *keys, once_hash id, const once_item *item, int queue, once_item *out[2],
                        size_t *n)
{
    once_item *ahead = item->ahead[queue], *behind = item->behind[queue];
    assert((!ahead || ahead->behind[queue] == item) && (!behind || behind->ahead[queue] == item));
    if (ahead) ahead->behind[queue] = behind;
    if (behind) {
        behind->ahead[queue] = ahead;
        if (!ahead && --behind->waits_for == 0) out[(*n)++] = behind;
        return;
    }
    const once_item *last = ahead ? once_table_swap(&keys->last, id, ahead) : once_table_remove(&keys->last, id);
    assert(last == item);
    (void)last;
}

size_t once_key_queue_leave(once_key_queue *keys, once_item *item, once_item *out[2])
{
    size_t n = 0;
    assert(item->joined);
    item->joined = false;
    item->waits_for = 0;
    leave_queue(keys, item->request.id, item, BY_KEY, out, &n);
    if (!once_hash_is_zero(item->request.lane.id)) leave_queue(keys, item->request.lane.id, item, BY_LANE, out, &n);
    return n;
}
