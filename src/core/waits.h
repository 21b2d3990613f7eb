/* Who waits for whom across transactions: an item whose key or lane is in use by another one stands behind it and is
 * not even asked for until that one is over. Inside one transaction the pipeline arranges the same by itself.
 *
 * An item joins as the last of its key and of its lane, and leaves when it is over, or is dropped while it waits.
 * Thread rule: one thread. */
#ifndef ONCE_CORE_WAITS_H
#define ONCE_CORE_WAITS_H

#include "base/table.h"
#include "core/item.h"

typedef struct once_waits {
    once_table last; /* of a key or a lane: the item that stands last */
} once_waits;

bool once_waits_init(once_waits *waits, size_t items);    /* room for so many items; false: out of memory */
bool once_waits_reserve(once_waits *waits, size_t items); /* for so many in all; false: out of memory */
void once_waits_release(once_waits *waits);

/* Its key or its lane is in use by an item that has joined. */
bool once_waits_in_use(const once_waits *waits, const once_item *item);
/* item->waits_for says how many it waits for now: 0, 1 (key or lane) or 2. */
void once_waits_join(once_waits *waits, once_item *item);
/* `out` (room for two) gets those that wait for nobody any more. Returns how many. */
size_t once_waits_leave(once_waits *waits, once_item *item, once_item *out[2]);

#endif
