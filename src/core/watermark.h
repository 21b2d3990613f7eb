/* Which deliveries of a stream are over. Messages end in any order. A source whose ack means "everything up to here" (a
 * file, a Kafka partition) must only get an ack for the part before the first delivery that is not over: the watermark.
 * Tags are 1, 2, 3... in the order of delivery, so that holes between the numbers of the source do not matter.
 *
 * Invariant: kept <= upto < next. The ring has the states of the tags above `kept`.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_WATERMARK_H
#define ONCE_CORE_WATERMARK_H

#include "core/item.h"

typedef struct once_delivery_state {
    uint64_t delivery; /* the number that the source gave it (core/receipt.h) */
    bool over;
    bool last;     /* it was extended for the last time */
    uint8_t round; /* the last round of extending that it was part of; 0: none */
    union {
        once_item *item;  /* while it is not over; NULL: the item has left the stream */
        int64_t ended_ms; /* when it is over: since when */
    };
} once_delivery_state;

/* How long ago it ended; it must be over. */
int64_t once_delivery_age_ms(const once_delivery_state *tag, int64_t now_ms);

typedef struct once_watermark {
    uint64_t next; /* the tag of the next delivery */
    uint64_t upto; /* the watermark: every tag up to this one is over */
    uint64_t kept; /* tags up to this one are forgotten */
    once_delivery_state *ring;
    size_t size; /* a power of two, or 0 */
} once_watermark;

void once_watermark_init(once_watermark *mark);
void once_watermark_release(once_watermark *mark);
/* Room for n more deliveries. False: out of memory; nothing changed. */
bool once_watermark_reserve(once_watermark *mark, size_t n);
/* A new delivery: returns its tag. There must be room. */
uint64_t once_watermark_begin(once_watermark *mark, uint64_t delivery, once_item *item);
/* Each delivery ends once. `now_ms` is of a clock that only moves forward. */
void once_watermark_end(once_watermark *mark, uint64_t tag, int64_t now_ms);
/* Tags up to this one are over and acked. */
void once_watermark_forget(once_watermark *mark, uint64_t upto);
/* The state of a tag that is not forgotten. */
once_delivery_state *once_watermark_at(const once_watermark *mark, uint64_t tag);

/* Where the watermark would be if some deliveries had ended: peek (true) at each of them, ask for `peeked`, then peek
 * (false) at each again. */
void once_watermark_peek(once_watermark *mark, uint64_t tag, bool over);
uint64_t once_watermark_peeked(const once_watermark *mark);

#endif
