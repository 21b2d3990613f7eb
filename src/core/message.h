/* A message as it came from a source, before anything is known about it. All bytes belong to the batch (its arena). */
#ifndef ONCE_CORE_MESSAGE_H
#define ONCE_CORE_MESSAGE_H

#include <stdint.h>

#include "once/types.h"

/* Where the source had it; the same on every redelivery. "payments.ndjson" "17", "orders/3" "88123". As text: place ':'
 * point. */
typedef struct once_coordinates {
    once_bytes place; /* the same for very many messages; stores keep it once */
    once_bytes point;
} once_coordinates;

typedef struct once_message {
    once_bytes body;
    bool no_body;      /* a broker can have messages without one, which means something else than an empty one */
    uint64_t cut_from; /* 0: `body` is whole. Otherwise it is the beginning of so many bytes, longer than message_max: a
                          dead letter */
    once_bytes headers; /* a JSON object as text, or empty */
    once_bytes type;    /* what chose the handler, or empty */
    once_coordinates at;
    int64_t sent_ms; /* when it was sent, by the broker or the message itself; ONCE_NO_TIME when neither says */
} once_message;

#endif
