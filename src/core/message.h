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

/* The member of the headers that has what the source knows of a message beside its body: an object, for ${source:NAME}.
 * It is kept with the message wherever that is kept, in the store while it waits and in a dead letter, so that a retry
 * finds the same. Who fetches leaves out a header of this name that a message brings itself. */
#define ONCE_SOURCE_MEMBER "once:source"

typedef struct once_message {
    once_bytes body;
    bool no_body;      /* a broker can have messages without one, which means something else than an empty one */
    uint64_t cut_from; /* 0: `body` is whole. Otherwise it is the beginning of so many bytes, longer than message_max: a
                          dead letter */
    once_bytes headers; /* a JSON object as text, or empty; what the source knows is in it, too (below) */
    once_bytes type;    /* what chose the handler, or empty */
    once_coordinates at;
    int64_t sent_ms; /* when it was sent, by the broker or the message itself; ONCE_NO_TIME when neither says */
} once_message;

#endif
