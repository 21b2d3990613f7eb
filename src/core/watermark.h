/* Which deliveries are over. Messages end in any order; a source whose ack means "everything up to here" (a file, a
 * Kafka partition) may only be told of the part before the first gap.
 *
 * Thread rule: one thread. */
#ifndef ONCE_CORE_WATERMARK_H
#define ONCE_CORE_WATERMARK_H

#include "once/types.h"

typedef struct once_watermark {
    uint64_t upto;      /* every ticket up to here is over */
    bool *over;         /* ring: ticket % size */
    uint32_t *ended_ms; /* the same: when it ended, without what is above 49 days */
    size_t size;
} once_watermark;

bool once_watermark_init(once_watermark *mark, size_t outstanding); /* false: out of memory */
void once_watermark_release(once_watermark *mark);
/* Tickets are 1, 2, 3... and each ends once, at a time of a clock that only moves forward. */
void once_watermark_end(once_watermark *mark, uint64_t ticket, int64_t now_ms);
/* How long ago one of those up to `upto` ended: not so many are looked back at as may be outstanding. */
int64_t once_watermark_age_ms(const once_watermark *mark, uint64_t ticket, int64_t now_ms);

/* What would be if these had ended: peek at each, ask, and take each back. */
void once_watermark_peek(once_watermark *mark, uint64_t ticket, bool over);
uint64_t once_watermark_peeked(const once_watermark *mark);

#endif
