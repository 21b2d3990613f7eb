/* Templates: "${/payment_id}", "order:${/order_id}:${header:region}", "${time:/ts:5m}". Used for key, tenant, type,
 * time, order and version, and for the arguments of commands.
 *
 *   ${...}         a placeholder (core/placeholder.h)
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

#include "core/placeholder.h"

typedef struct once_template once_template; /* compiled; immutable; lives in the arena it was parsed into */

/* ONCE_OK, ONCE_E_USAGE with the mistake in `err`, or ONCE_E_NOMEM; on failure `out` is untouched. */
int once_template_parse(once_arena *arena, once_bytes text, const once_template **out, once_error *err);

/* Walks over its placeholders: begin with *at = 0. NULL: there are no more. */
const once_placeholder *once_template_next(const once_template *t, size_t *at);
bool once_template_uses(const once_template *t, once_placeholder_kind kind);
bool once_template_begins_literal(const once_template *t);
bool once_template_is_literal(const once_template *t);                /* no placeholder */
const once_placeholder *once_template_single(const once_template *t); /* one and nothing else; or NULL */
once_bytes once_template_text(const once_template *t);                /* as it was written */

/* ONCE_OK, ONCE_E_MESSAGE with the reason in `err` ("missing field '/payment_id'"), or ONCE_E_NOMEM. The result is in
 * the arena or points into the message. It may be empty; the caller decides what that means. */
int once_template_render(const once_template *t, const once_parsed *from, once_arena *arena, once_bytes *out,
                         once_error *err);

/* The same for texts that are not compared, such as the arguments of a command: values and literals one after the
 * other, nothing escaped and nothing between. Always in the arena, with a NUL behind it that does not count. */
int once_template_render_plain(const once_template *t, const once_parsed *from, once_arena *arena, once_bytes *out,
                               once_error *err);

#endif
