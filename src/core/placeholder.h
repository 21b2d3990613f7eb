/* Placeholders: what of a message a template or a parameter of a statement names, without the braces around it.
 *
 *   /a/b           a field of the body, by JSON pointer
 *   json:/a:/b     a field of JSON that is a text in the body (core/path.h)
 *   header:NAME    a header of the message
 *   source:NAME    a fact of the source about the message (ONCE_SOURCE_MEMBER); each source has its own names
 *   event:NAME     an attribute of an event (core/event.h)
 *   coordinates    place ':' point
 *   hash           hash of the whole body (core/body_hash.h)
 *   time:/p:5m     the time at /p (RFC 3339 or epoch milliseconds), cut down to windows of 5m, as RFC 3339
 *
 * A name cannot have a '}', which ends the placeholder; in a pointer it is written ~3.
 *
 * Thread rule: a compiled placeholder may be shared. */
#ifndef ONCE_CORE_PLACEHOLDER_H
#define ONCE_CORE_PLACEHOLDER_H

#include "core/parsed.h"

typedef enum once_placeholder_kind {
    ONCE_PLACE_FIELD,
    ONCE_PLACE_HEADER,
    ONCE_PLACE_SOURCE,
    ONCE_PLACE_EVENT,
    ONCE_PLACE_COORDINATES,
    ONCE_PLACE_HASH,
    ONCE_PLACE_TIME
} once_placeholder_kind;

typedef struct once_placeholder {
    once_placeholder_kind kind;
    once_bytes text;   /* as written */
    once_bytes name;   /* HEADER, SOURCE, EVENT */
    once_path path;    /* FIELD, TIME */
    int64_t window_ms; /* TIME */
} once_placeholder;

/* `mark` is the character before the brace, '$' or ':', for messages. ONCE_OK, ONCE_E_USAGE with the mistake in `err`,
 * or ONCE_E_NOMEM; on failure `out` is untouched. `text` must live as long as `out`. */
int once_placeholder_parse(once_arena *arena, once_bytes text, char mark, once_placeholder *out, once_error *err);

/* The value in its document; ABSENT for COORDINATES and HASH, which have only a text, and for TIME the time itself.
 * ONCE_OK, ONCE_E_MESSAGE with the reason in `err`, or ONCE_E_NOMEM. */
int once_placeholder_value(const once_placeholder *p, const once_parsed *from, once_json_value *out, once_error *err);

/* The text: a string as it is (unescaped), a number in canonical decimal form, true or false. A missing value, null, an
 * object or an array is the message's fault. In the arena, or it points into the message. */
int once_placeholder_text(const once_placeholder *p, const once_parsed *from, once_arena *arena, once_bytes *out,
                          once_error *err);

/* Whether the message does not have it at all. False, too, where that cannot be known: a text that is no JSON. */
bool once_placeholder_is_absent(const once_placeholder *p, const once_parsed *from);

#endif
