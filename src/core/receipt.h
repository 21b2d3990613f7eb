/* What a source and the machine exchange about streams and deliveries.
 *
 * A source has streams: a file, a partition, a queue, a group of a queue. Messages of one stream come in order, and a
 * slow or stuck stream holds up no other. A delivery is one handing out of a message. The source chooses its number (an
 * offset, a delivery tag, the index of a receipt handle); numbers may have holes. source/source.h says when a number
 * may be used again. */
#ifndef ONCE_CORE_RECEIPT_H
#define ONCE_CORE_RECEIPT_H

#include "once/types.h"

/* A change of a stream, as a FETCH reports it. */
typedef enum once_stream_change {
    ONCE_STREAM_ASSIGNED, /* messages of it may come */
    ONCE_STREAM_REVOKED,  /* no more messages of it; it must be released within `within_ms`, and until then finished
                           * messages may be acked */
    ONCE_STREAM_LOST      /* another consumer already has it: nothing of it may be acked. It is released, too, so that
                           * the source can drop its state */
} once_stream_change;

typedef struct once_stream_news {
    once_stream_change change;
    uint32_t stream;   /* a small number, chosen by the source; free for another stream once it was released */
    int64_t within_ms; /* REVOKED */
    /* ASSIGNED: how long a delivery stays ours (ONCE_SOURCE_EXPIRES); 0: it does not expire. A source without
     * ONCE_SOURCE_ASSIGNS reports this by ASSIGNED news of stream 0, which exists from the start. */
    int64_t expires_ms;
} once_stream_news;

/* The source's answer about a delivery that is acked or extended. */
typedef enum once_receipt_answer {
    ONCE_RECEIPT_OPEN, /* no answer of its own: the status of the call counts. ONCE_OK: done; otherwise tried again */
    ONCE_RECEIPT_DONE, /* done, even if the call failed: it is not repeated */
    ONCE_RECEIPT_GONE, /* no longer ours: another consumer has it or will get it */
    ONCE_RECEIPT_LAST  /* extended for the last time: the store must take the message, then it is acked */
} once_receipt_answer;

/* A delivery that is to be acked or extended. */
typedef struct once_receipt {
    uint32_t stream;
    uint64_t delivery;
    once_receipt_answer answer;
} once_receipt;

#endif
