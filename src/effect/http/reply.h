/* An answer in HTTP/1.1 or HTTP/1.0, as its bytes come (RFC 9112). For calls without libcurl (direct.c).
 *
 * All of it is from the other side. What does not say for certain where it ends is broken, never guessed: an answer
 * that is taken for whole by mistake would be a lost effect or a second one.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_EFFECT_HTTP_REPLY_H
#define ONCE_EFFECT_HTTP_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum http_reply_state {
    HTTP_REPLY_STATUS, /* the line with the status is next; also after an interim answer */
    HTTP_REPLY_HEADERS,
    HTTP_REPLY_LENGTH, /* a body of `left` bytes */
    HTTP_REPLY_CLOSE,  /* a body up to the end of the connection */
    HTTP_REPLY_CHUNK,  /* the line with the size of a chunk */
    HTTP_REPLY_DATA,   /* a chunk, `left` bytes */
    HTTP_REPLY_BEHIND, /* the end of the line behind a chunk */
    HTTP_REPLY_TRAILERS,
    HTTP_REPLY_WHOLE,
    HTTP_REPLY_TOO_LARGE, /* the headers are whole, and the body does not fit into its buffer */
    HTTP_REPLY_BROKEN
} http_reply_state;

typedef struct http_reply {
    http_reply_state state;
    long status;
    bool any;   /* some byte of it came */
    bool keeps; /* the connection may be used again */
    bool sized, chunked, framing;
    uint64_t left;
    size_t head; /* bytes of lines */
    char retry_after[64];
    const char *wrong; /* BROKEN: what */
} http_reply;

void once__http_reply_begin(http_reply *reply);
/* Reads what is there, and appends the body to `body`. Returns how many bytes it took; the rest is a line that is not
 * whole, or behind the answer. */
size_t once__http_reply_read(http_reply *reply, const char *data, size_t len, once_buf *body);
/* The connection was closed by the server, in order. */
void once__http_reply_close(http_reply *reply);

static inline bool once__http_reply_ended(const http_reply *reply) { return reply->state >= HTTP_REPLY_WHOLE; }

#endif
