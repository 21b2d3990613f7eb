/* The deliveries of a stream that are not acked, where each delivery is acked for itself. They are a list in the order
 * in which they came, so that one that takes long delays no other. Those that are over are also in a second list, in
 * the order in which they ended, until they are acked.
 *
 * Here a tag is an index. It belongs to one delivery until the ack, and is then used again.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_DELIVERIES_H
#define ONCE_CORE_DELIVERIES_H

#include "core/watermark.h"

typedef struct once_open_delivery {
    once_delivery_state state;
    uint64_t before, after; /* tags of its neighbours; 0: none */
    uint64_t next;          /* the next one to be acked, or, of a free tag, the next free one; 0: none */
} once_open_delivery;

typedef struct once_deliveries {
    once_open_delivery *at; /* by tag - 1 */
    size_t size, used;      /* room; tags above `used` were never given out */
    uint64_t first, last;
    uint64_t first_over, last_over; /* over, and no ack was asked for yet */
    uint64_t free;                  /* the first tag that may be used again; 0: none */
    size_t n, over;                 /* not acked; those of them that are over */
} once_deliveries;

void once_deliveries_release(once_deliveries *open);
/* Room for n more deliveries. False: out of memory; nothing changed. */
bool once_deliveries_reserve(once_deliveries *open, size_t n);
/* A new delivery: returns its tag. There must be room. */
uint64_t once_deliveries_begin(once_deliveries *open, uint64_t delivery, once_item *item);
/* It is over. */
void once_deliveries_end(once_deliveries *open, uint64_t tag, int64_t now_ms);
/* One that is over goes to the end of the list of those to be acked; and the first leaves that list (0: none). */
void once_deliveries_list(once_deliveries *open, uint64_t tag);
uint64_t once_deliveries_unlist(once_deliveries *open);
/* It is over, not listed, and acked or gone: its tag is free. */
void once_deliveries_forget(once_deliveries *open, uint64_t tag);
once_open_delivery *once_deliveries_at(const once_deliveries *open, uint64_t tag);

#endif
