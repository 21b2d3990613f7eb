/* The two lines of `mode: stream`, as docs/stream.md describes them: a message to the handler, and its reply. Pure. */
#ifndef ONCE_EFFECT_STREAM_LINE_H
#define ONCE_EFFECT_STREAM_LINE_H

#include "base/buf.h"
#include "base/json.h"
#include "core/item.h"
#include "core/outward.h"

#define ONCE_STREAM_DELAY_MAX_MS (INT64_C(365) * 24 * 3600 * 1000) /* a longer delay_ms counts as this */

typedef struct once_stream_reply {
    uint64_t id;
    once_outcome outcome;
    bool odd;                  /* its word is no outcome, and so `outcome` is unknown */
    once_bytes result, reason; /* into the line or the arena; empty: none */
    int64_t delay_ms;          /* -1: none */
} once_stream_reply;

/* What item->input says of the body, in this mode. */
typedef enum once_stream_body { ONCE_STREAM_JSON, ONCE_STREAM_BYTES, ONCE_STREAM_NO_BODY } once_stream_body;

/* Appends the line, with its end; item->input is a once_stream_body. False: memory is out, and the buffer is as
 * before. */
bool once_stream_write(once_buf *buf, uint64_t id, const once_item *item, const once_keying *keying);

/* `line` is without its end. False: the handler broke the protocol, and `why` says how; it never quotes the line. */
bool once_stream_read(once_json *json, once_arena *arena, once_bytes line, once_stream_reply *out, char *why,
                      size_t why_size);

#endif
