/* Which deliveries of a stream are over. Messages end in any order; a source whose ack means "everything up to here" (a
 * file, a Kafka partition) may only be told of the part before the first gap. A gap is what was delivered and is not
 * over: tags count deliveries, so that holes between the numbers that the source gives them do not matter.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_WATERMARK_H
#define ONCE_CORE_WATERMARK_H

#include "core/item.h"

typedef struct once_delivery_state {
    uint64_t delivery;
    bool over;
    bool last;     /* it was extended for the last time */
    uint8_t round; /* of extending, in which it was */
    union {
        once_item *item;  /* while it is not over; NULL: it has left the stream */
        int64_t ended_ms; /* when it is */
    };
} once_delivery_state;

/* How long ago it ended. */
int64_t once_delivery_age_ms(const once_delivery_state *tag, int64_t now_ms);

typedef struct once_watermark {
    uint64_t next; /* tags are 1, 2, 3...; this is that of the next delivery */
    uint64_t upto; /* every tag up to here is over */
    uint64_t kept; /* of tags up to here nothing is known any more */
    once_delivery_state *ring;
    size_t size; /* a power of two, or 0 */
} once_watermark;

void once_watermark_init(once_watermark *mark);
void once_watermark_release(once_watermark *mark);
bool once_watermark_reserve(once_watermark *mark, size_t n); /* for n more; false: out of memory, nothing changed */
/* The tag of a delivery; there is room. */
uint64_t once_watermark_begin(once_watermark *mark, uint64_t delivery, once_item *item);
/* Each ends once, at a time of a clock that only moves forward. */
void once_watermark_end(once_watermark *mark, uint64_t tag, int64_t now_ms);
void once_watermark_forget(once_watermark *mark, uint64_t upto);                  /* they are over, and acked */
once_delivery_state *once_watermark_at(const once_watermark *mark, uint64_t tag); /* one that is not forgotten */

/* What would be if these had ended: peek at each, ask, and take each back. */
void once_watermark_peek(once_watermark *mark, uint64_t tag, bool over);
uint64_t once_watermark_peeked(const once_watermark *mark);

#endif
