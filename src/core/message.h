/* A message as it came from a source. Its bytes belong to the arena of its batch, or, in an entry, to the store. */
#ifndef ONCE_CORE_MESSAGE_H
#define ONCE_CORE_MESSAGE_H

#include <stdint.h>
#include <string.h>

#include "once/types.h"

/* Where it was in the source; the same on every redelivery (unless the source is not ONCE_SOURCE_STABLE). Examples:
 * "payments.ndjson" "17", "orders/3" "88123". As text: place ':' point. */
typedef struct once_coordinates {
    once_bytes place; /* the same for very many messages; stores keep each place once */
    once_bytes point;
} once_coordinates;

/* The names of headers that begin with this are ours: a source drops those that the message itself has. */
#define ONCE_OUR_HEADERS "once:"
static inline bool once_header_is_ours(once_bytes name)
{
    return name.len >= strlen(ONCE_OUR_HEADERS) && memcmp(name.data, ONCE_OUR_HEADERS, strlen(ONCE_OUR_HEADERS)) == 0;
}

/* The member of the headers that has the source's own facts about a message, an object, for ${source:NAME}. It is kept
 * with the message, in the store while it waits and in a dead letter, so that a retry finds the same. */
#define ONCE_SOURCE_MEMBER "once:source"

/* The member of the headers of a message without a body. Stores keep a body and headers, so this is how they keep that
 * there was none. The intake writes it, and reads it where the body is empty; a source need not know it. */
#define ONCE_NO_BODY_MEMBER "once:no_body"

typedef struct once_message {
    once_bytes body;
    bool no_body;      /* a broker can deliver a message without a body, which is not the same as an empty one */
    uint64_t cut_from; /* 0: `body` is whole. Otherwise the message had so many bytes, more than message_max, and `body`
                        * is its beginning: it becomes a dead letter */
    once_bytes fault;  /* why the source cannot give it as it was sent: it becomes a dead letter; empty: it can */
    once_bytes headers; /* a JSON object as text, or empty; ONCE_SOURCE_MEMBER is in it */
    once_bytes type;    /* chose the handler; may be empty */
    once_coordinates at;
    int64_t sent_ms; /* when it was sent, from the message or the broker; ONCE_NO_TIME if neither says */
} once_message;

#endif
