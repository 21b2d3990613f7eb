/* Who waits for whom across transactions: an item whose key or lane is in use by another one stands behind it and is
 * not even asked for until that one is over. Inside one transaction the pipeline arranges the same by itself.
 *
 * An item joins as the last of its key and of its lane, and leaves when it is over, or is dropped while it waits.
 * Thread rule: one thread. */
#ifndef ONCE_CORE_KEY_QUEUE_H
#define ONCE_CORE_KEY_QUEUE_H

#include "base/table.h"
#include "core/item.h"

typedef struct once_key_queue {
    once_table last; /* of a key or a lane: the item that stands last */
} once_key_queue;

bool once_key_queue_init(once_key_queue *keys, size_t items);    /* room for so many items; false: out of memory */
bool once_key_queue_reserve(once_key_queue *keys, size_t items); /* for so many in all; false: out of memory */
void once_key_queue_release(once_key_queue *keys);

/* Its key or its lane is in use by an item that has joined. */
bool once_key_queue_in_use(const once_key_queue *keys, const once_item *item);
/* item->waits_for says how many it waits for now: 0, 1 (key or lane) or 2. */
void once_key_queue_join(once_key_queue *keys, once_item *item);
/* `out` (room for two) gets those that wait for nobody any more. Returns how many. */
size_t once_key_queue_leave(once_key_queue *keys, once_item *item, once_item *out[2]);

#endif
