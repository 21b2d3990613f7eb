/* The deliveries of a stream that are not acked, where each is acked for itself: in the order in which they came,
 * whatever became of those between them. So one that takes long costs its own place, and nobody else's. Those that are
 * over wait to be acked in a second list, in the order in which they ended.
 *
 * Here a tag is a place, and is given out again after the ack; until then it is that delivery's alone.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_DELIVERIES_H
#define ONCE_CORE_DELIVERIES_H

#include "core/watermark.h"

typedef struct once_open_delivery {
    once_delivery_state state;
    uint64_t before, after; /* tags of its neighbours; 0: it has none */
    uint64_t next;          /* of those that wait to be acked, or of those that are free */
} once_open_delivery;

typedef struct once_deliveries {
    once_open_delivery *at; /* by tag - 1 */
    size_t size, used;      /* tags above `used` were never given out */
    uint64_t first, last;
    uint64_t first_over, last_over; /* to be acked, and not asked for */
    uint64_t free;                  /* the first of those that may be given out again */
    size_t n, over;                 /* not acked; of them, those that are over */
} once_deliveries;

void once_deliveries_release(once_deliveries *open);
bool once_deliveries_reserve(once_deliveries *open, size_t n); /* for n more; false: out of memory, nothing changed */
/* The tag of a delivery; there is room. */
uint64_t once_deliveries_begin(once_deliveries *open, uint64_t delivery, once_item *item);
void once_deliveries_end(once_deliveries *open, uint64_t tag, int64_t now_ms); /* it is over */
void once_deliveries_list(once_deliveries *open, uint64_t tag);   /* one that is over: to be acked, as the last */
uint64_t once_deliveries_unlist(once_deliveries *open);           /* the first of them; 0: there is none */
void once_deliveries_forget(once_deliveries *open, uint64_t tag); /* over, not listed, and acked */
once_open_delivery *once_deliveries_at(const once_deliveries *open, uint64_t tag);

#endif
