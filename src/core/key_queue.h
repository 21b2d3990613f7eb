/* The order of items with equal keys or lanes across transactions. An item whose key or lane is in use by another one
 * waits behind it, and is not claimed until that one is over. (Inside one transaction machine_work.c does the same.)
 *
 * An item joins as the last of its key and of its lane, and leaves when it is over or dropped.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_KEY_QUEUE_H
#define ONCE_CORE_KEY_QUEUE_H

#include "base/table.h"
#include "core/item.h"

typedef struct once_key_queue {
    once_table last; /* by the id of a key or a lane: the last item of its queue */
} once_key_queue;

/* Room for so many keys and lanes in all. False: out of memory. It should not be much larger than needed: each message
 * is looked up in it, and what does not fit into the caches is slow. */
bool once_key_queue_init(once_key_queue *keys, size_t ids);
bool once_key_queue_reserve(once_key_queue *keys, size_t ids);
void once_key_queue_release(once_key_queue *keys);

/* Whether an item that has joined uses the key or the lane of this one. */
bool once_key_queue_in_use(const once_key_queue *keys, const once_item *item);
/* Sets item->waits_for: how many it waits for now, 0, 1 (key or lane) or 2. There must be room. */
void once_key_queue_join(once_key_queue *keys, once_item *item);
/* The same if no item uses its key or lane; otherwise false, and it does not join. */
bool once_key_queue_join_first(once_key_queue *keys, once_item *item);
/* One of these functions will be called for the item soon. */
static inline void once_key_queue_expect(const once_key_queue *keys, const once_item *item)
{
    once_table_expect(&keys->last, item->request.id);
}
/* `out` gets the items, at most two, that wait for no other now. Returns how many. */
size_t once_key_queue_leave(once_key_queue *keys, once_item *item, once_item *out[2]);

#endif
