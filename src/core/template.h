/* Templates: "${/payment_id}", "order:${/order_id}:${header:region}", "${time:/ts:5m}". Used for key, tenant, type,
 * time, order and version, and for the arguments of commands.
 *
 *   ${/a/b}        JSON pointer into the body: a string as it is (unescaped), a number in canonical decimal form, true
 *                  or false; a missing value, null, an object or an array is the message's fault
 *   ${header:NAME} a header of the message
 *   ${source:NAME} a fact of the source about the message (ONCE_SOURCE_MEMBER); each source has its own names
 *   ${event:NAME}  an attribute of a CloudEvent, in the body or in a header (core/event.h)
 *   ${coordinates} place ':' point
 *   ${hash}        hash of the whole body (SHA-256 cut to 128 bits), 32 hex digits: of JSON in canonical form, of other
 *                  bodies the bytes
 *   ${time:/p:5m}  the time at /p (RFC 3339 or epoch milliseconds), cut down to windows of 5m, as RFC 3339
 *   literals       everything else; "$${" is a literal "${"
 *
 * A template that is one placeholder and nothing else renders the value as it is. In every other template the rendering
 * is unambiguous: in each value, '%' and every byte that occurs in the template's literals is written %XX, a '%' of a
 * literal is written %%, and a ',' (which then counts as a literal) stands between two placeholders that touch. So
 * "a:${/x}:${/y}" gives readable keys and never the same key for two different pairs of values. Values count as their
 * text: the number 1 and the string "1" are the same. Stores keep rendered keys, so this never changes.
 *
 * Thread rule: a compiled template may be shared; each rendering needs an arena of its own. */
#ifndef ONCE_CORE_TEMPLATE_H
#define ONCE_CORE_TEMPLATE_H

#include "base/arena.h"
#include "base/json.h"
#include "core/message.h"

typedef struct once_template once_template; /* compiled; immutable; lives in the arena it was parsed into */

typedef struct once_template_input {
    const once_json *body;    /* parsed; NULL: the body is bytes or there is none, so pointers have no value */
    const once_json *headers; /* parsed header object, or NULL */
    const once_message *message;
} once_template_input;

/* ONCE_OK, ONCE_E_USAGE with the mistake in `err`, or ONCE_E_NOMEM; on failure `out` is untouched. */
int once_template_parse(once_arena *arena, once_bytes text, const once_template **out, once_error *err);
bool once_template_uses_coordinates(const once_template *t);
/* The kinds of its placeholders, as bits. */
enum {
    ONCE_PART_POINTER = 1u << 0, /* also ${time:...} */
    ONCE_PART_HEADER = 1u << 1,
    ONCE_PART_SOURCE = 1u << 2,
    ONCE_PART_COORDINATES = 1u << 3,
    ONCE_PART_HASH = 1u << 4,
    ONCE_PART_EVENT = 1u << 5,
};
unsigned once_template_parts(const once_template *t);
bool once_template_uses_headers(const once_template *t); /* ${header:NAME}, ${source:NAME} or ${event:NAME} */
bool once_template_uses_event(const once_template *t);
/* Walks over the names of all ${source:NAME}: begin with *at = 0. False: there are no more. */
bool once_template_source_name(const once_template *t, size_t *at, once_bytes *out);
/* Whether it names a field of the body; `out` is the first one. */
bool once_template_field(const once_template *t, once_bytes *out);
bool once_template_begins_literal(const once_template *t);
bool once_template_is_literal(const once_template *t); /* no placeholder */
bool once_template_is_single(const once_template *t);  /* one placeholder and nothing else */
once_bytes once_template_text(const once_template *t); /* as it was written */

/* ONCE_OK, ONCE_E_MESSAGE with the reason in `err` ("missing field '/payment_id'"), or ONCE_E_NOMEM. The result is in
 * the arena or points into the message. It may be empty; the caller decides what that means. */
int once_template_render(const once_template *t, const once_template_input *input, once_arena *arena, once_bytes *out,
                         once_error *err);

/* The same for texts that are not compared, such as the arguments of a command: values and literals one after the
 * other, nothing escaped and nothing between. Always in the arena, with a NUL behind it that does not count. */
int once_template_render_plain(const once_template *t, const once_template_input *input, once_arena *arena,
                               once_bytes *out, once_error *err);

/* Whether a template of one placeholder names something that the message does not have at all. */
bool once_template_is_absent(const once_template *t, const once_template_input *input);

/* The pointer of a template that is one pointer and nothing else, for values with a type (time, version); else NULL. */
const once_pointer *once_template_pointer(const once_template *t);

#endif
