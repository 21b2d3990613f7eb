/* What a source and the machine say to each other about streams and deliveries.
 *
 * A source has streams: a file, a partition, a queue, a group of a queue. Messages of one stream come in order, and a
 * stream that is slow or stuck holds up no other one. A delivery is one handing out of a message; what number it has is
 * the source's business (an offset, a delivery tag, the index of a receipt handle), and there may be holes. When it may
 * be used again source/source.h says. */
#ifndef ONCE_CORE_RECEIPT_H
#define ONCE_CORE_RECEIPT_H

#include "once/types.h"

/* Something about a stream that a fetch has learnt. */
typedef enum once_stream_change {
    ONCE_STREAM_ASSIGNED, /* messages of it may come */
    ONCE_STREAM_REVOKED,  /* no more messages of it; it must be released within within_ms, and until then what is over
                             may be acked */
    ONCE_STREAM_LOST      /* somebody else has it already: nothing of it may be acked; it is released as well, for the
                             bookkeeping */
} once_stream_change;

typedef struct once_stream_news {
    once_stream_change change;
    uint32_t stream;   /* a small number, the source's choice; free for another stream once it was released */
    int64_t within_ms; /* REVOKED */
    /* ASSIGNED: for how long a delivery is ours (ONCE_SOURCE_EXPIRES); 0: it does not run out. A source without
     * ONCE_SOURCE_ASSIGNS says it by ASSIGNED news of stream 0, which is there already. */
    int64_t expires_ms;
} once_stream_news;

/* What the source says of a delivery that is acked or extended. */
typedef enum once_receipt_answer {
    ONCE_RECEIPT_OPEN, /* nothing: with ONCE_OK it is done, otherwise it is tried again */
    ONCE_RECEIPT_DONE, /* also when the call failed: it is not repeated */
    ONCE_RECEIPT_GONE, /* not ours any more: somebody else has it or will */
    ONCE_RECEIPT_LAST  /* extended, and for the last time: the store must take it, then it is acked */
} once_receipt_answer;

/* A delivery as the source knows it, to be acked or extended. */
typedef struct once_receipt {
    uint32_t stream;
    uint64_t delivery;
    once_receipt_answer answer;
} once_receipt;

#endif
