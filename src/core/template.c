/* Templates (core/template.h): compiled into parts once, rendered for every message.
 *
 * Why a rendering is unambiguous, for templates that are more than one placeholder. Read it from the left: "%%" is a
 * '%' of a literal; '%' and two hex digits are one byte of a value; any other byte belongs to a literal if it occurs in
 * the literals, and to a value otherwise. So each byte is known to be literal or value by itself. There is a literal
 * that is not empty between any two placeholders, so the values can be read back. */
#include "core/template.h"

#include <assert.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

#define MAX_PLACEHOLDERS 64
#define MAX_TEXT 4096
#define SHOWN(bytes) ((bytes).len > 100 ? 100 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

typedef struct part {
    bool literal;
    once_bytes text;        /* of a literal: as it is rendered */
    once_bytes plain;       /* of a literal: as it was written */
    once_placeholder place; /* of everything else */
} part;

struct once_template {
    once_bytes text;
    part *parts;
    size_t n, placeholders;
    bool escape[256]; /* bytes that are escaped in values; all false if the template is one placeholder alone */
};

/* --- parsing ------------------------------------------------------------------------------------------------------ */

static bool starts_with(once_bytes text, const char *start)
{
    size_t len = strlen(start);
    return text.len >= len && memcmp(text.data, start, len) == 0;
}

static once_bytes slice(once_bytes text, size_t from, size_t to)
{
    assert(from <= to && to <= text.len);
    return (once_bytes){text.data + from, to - from};
}

/* The state while compiling: literal bytes are collected until a placeholder or the end makes a part of them. */
typedef struct compiler {
    once_arena *arena;
    once_template *t;
    char *literal; /* room for the whole text */
    size_t literal_len;
} compiler;

static int end_literal(compiler *c, once_error *err)
{
    if (c->literal_len == 0) return ONCE_OK;
    once_bytes text;
    if (!once_arena_copy(c->arena, (once_bytes){c->literal, c->literal_len}, &text))
        return once_no_memory(err, "for a template");
    c->t->parts[c->t->n++] = (part){.literal = true, .text = text, .plain = text};
    c->literal_len = 0;
    return ONCE_OK;
}

static int add_placeholder(compiler *c, once_bytes inside, once_error *err)
{
    if (c->t->placeholders == MAX_PLACEHOLDERS)
        return once_fail(err, ONCE_E_USAGE, "more than %d placeholders", MAX_PLACEHOLDERS);
    bool touches = c->t->n > 0 && c->literal_len == 0;
    assert(!touches || !c->t->parts[c->t->n - 1].literal);
    if (touches) c->literal[c->literal_len++] = ',';
    int rc = end_literal(c, err);
    if (rc != ONCE_OK) return rc;
    if (touches) c->t->parts[c->t->n - 1].plain.len = 0; /* it is not in the text */
    rc = once_placeholder_parse(c->arena, inside, '$', &c->t->parts[c->t->n].place, err);
    if (rc != ONCE_OK) return rc;
    c->t->n++;
    c->t->placeholders++;
    return ONCE_OK;
}

static int compile(compiler *c, once_bytes text, once_error *err)
{
    for (size_t i = 0; i < text.len;) {
        once_bytes rest = slice(text, i, text.len);
        if (starts_with(rest, "$${")) {
            c->literal[c->literal_len++] = '$';
            c->literal[c->literal_len++] = '{';
            i += 3;
        } else if (starts_with(rest, "${")) {
            const char *end = memchr(rest.data, '}', rest.len);
            if (!end)
                return once_fail(err, ONCE_E_USAGE, "'%.*s' has no closing '}'; a literal '${' is written '$${'",
                                 SHOWN(rest));
            size_t len = (size_t)(end - rest.data);
            int rc = add_placeholder(c, slice(rest, 2, len), err);
            if (rc != ONCE_OK) return rc;
            i += len + 1;
        } else {
            c->literal[c->literal_len++] = text.data[i++];
        }
    }
    return end_literal(c, err);
}

/* Writes a '%' of a literal as "%%", and marks the bytes of literals to be escaped in values. */
static int make_unambiguous(once_arena *arena, once_template *t, once_error *err)
{
    t->escape['%'] = true;
    for (size_t i = 0; i < t->n; i++) {
        part *p = &t->parts[i];
        if (!p->literal) continue;
        char *to = once_arena_alloc(arena, 2 * p->text.len);
        if (!to) return once_no_memory(err, "for a template");
        size_t len = 0;
        for (size_t k = 0; k < p->text.len; k++) {
            char byte = p->text.data[k];
            t->escape[(unsigned char)byte] = true;
            to[len++] = byte;
            if (byte == '%') to[len++] = byte;
        }
        p->text = (once_bytes){to, len};
    }
    return ONCE_OK;
}

/* A literal can stand before, between and behind placeholders. */
static size_t max_parts(once_bytes text)
{
    size_t n = 0;
    for (size_t i = 0; i + 1 < text.len; i++) n += text.data[i] == '$' && text.data[i + 1] == '{';
    return 2 * n + 1;
}

int once_template_parse(once_arena *arena, once_bytes text, const once_template **out, once_error *err)
{
    assert(arena);
    assert(text.data || text.len == 0);
    assert(out);
    if (text.len == 0) return once_fail(err, ONCE_E_USAGE, "a template cannot be empty; name a field, as in '${/id}'");
    if (text.len > MAX_TEXT) return once_fail(err, ONCE_E_USAGE, "a template cannot be longer than %d bytes", MAX_TEXT);

    once_template *t = once_arena_new(arena, once_template, 1);
    compiler c = {.arena = arena, .t = t, .literal = once_arena_alloc(arena, text.len + 1)};
    if (!t || !c.literal || !once_arena_copy(arena, text, &t->text)) return once_no_memory(err, "for a template");
    t->parts = once_arena_new(arena, part, max_parts(text));
    if (!t->parts) return once_no_memory(err, "for a template");

    int rc = compile(&c, t->text, err);
    if (rc != ONCE_OK) return rc;
    assert(t->n > 0 && t->n <= 2 * MAX_PLACEHOLDERS + 1);
    if (t->n > 1) {
        rc = make_unambiguous(arena, t, err);
        if (rc != ONCE_OK) return rc;
    }
    *out = t;
    return ONCE_OK;
}

/* --- what it names ------------------------------------------------------------------------------------------------ */

const once_placeholder *once_template_next(const once_template *t, size_t *at)
{
    while (*at < t->n) {
        const part *p = &t->parts[(*at)++];
        if (!p->literal) return &p->place;
    }
    return NULL;
}

bool once_template_uses(const once_template *t, once_placeholder_kind kind)
{
    const once_placeholder *place;
    for (size_t at = 0; (place = once_template_next(t, &at));)
        if (place->kind == kind) return true;
    return false;
}

bool once_template_begins_literal(const once_template *t) { return t->parts[0].literal; }
bool once_template_is_literal(const once_template *t) { return t->placeholders == 0; }
once_bytes once_template_text(const once_template *t) { return t->text; }

const once_placeholder *once_template_single(const once_template *t)
{
    return t->n == 1 && t->placeholders == 1 ? &t->parts[0].place : NULL;
}

/* --- rendering ---------------------------------------------------------------------------------------------------- */

static const char hex_upper[] = "0123456789ABCDEF";

static int part_text(const part *p, const once_parsed *from, once_arena *arena, once_bytes *out, once_error *err)
{
    if (!p->literal) return once_placeholder_text(&p->place, from, arena, out, err);
    *out = p->text;
    return ONCE_OK;
}

static size_t escaped_len(const once_template *t, once_bytes value)
{
    size_t len = value.len;
    for (size_t i = 0; i < value.len; i++) len += t->escape[(unsigned char)value.data[i]] ? 2 : 0;
    return len;
}

static char *append_escaped(const once_template *t, once_bytes value, char *to)
{
    for (size_t i = 0; i < value.len; i++) {
        unsigned char byte = (unsigned char)value.data[i];
        if (!t->escape[byte]) {
            *to++ = value.data[i];
            continue;
        }
        *to++ = '%';
        *to++ = hex_upper[byte >> 4];
        *to++ = hex_upper[byte & 15];
    }
    return to;
}

int once_template_render(const once_template *t, const once_parsed *from, once_arena *arena, once_bytes *out,
                         once_error *err)
{
    assert(t && from && arena && out);
    if (t->n == 1) return part_text(&t->parts[0], from, arena, out, err);

    once_bytes texts[2 * MAX_PLACEHOLDERS + 1];
    size_t total = 0;
    for (size_t i = 0; i < t->n; i++) {
        int rc = part_text(&t->parts[i], from, arena, &texts[i], err);
        if (rc != ONCE_OK) return rc;
        total += t->parts[i].literal ? texts[i].len : escaped_len(t, texts[i]);
    }
    char *text = once_arena_alloc(arena, total + 1), *to = text;
    if (!text) return once_no_memory(err, "for a template");
    for (size_t i = 0; i < t->n; i++) {
        if (!t->parts[i].literal) {
            to = append_escaped(t, texts[i], to);
            continue;
        }
        memcpy(to, texts[i].data, texts[i].len);
        to += texts[i].len;
    }
    assert((size_t)(to - text) == total);
    *to = '\0';
    *out = (once_bytes){text, total};
    return ONCE_OK;
}

int once_template_render_plain(const once_template *t, const once_parsed *from, once_arena *arena, once_bytes *out,
                               once_error *err)
{
    assert(t && from && arena && out);
    once_bytes texts[2 * MAX_PLACEHOLDERS + 1];
    size_t total = 0;
    for (size_t i = 0; i < t->n; i++) {
        const part *p = &t->parts[i];
        texts[i] = p->plain;
        int rc = p->literal ? ONCE_OK : part_text(p, from, arena, &texts[i], err);
        if (rc != ONCE_OK) return rc;
        total += texts[i].len;
    }
    char *text = once_arena_alloc(arena, total + 1), *to = text;
    if (!text) return once_no_memory(err, "for a template");
    for (size_t i = 0; i < t->n; i++)
        if (texts[i].len > 0) to = mempcpy(to, texts[i].data, texts[i].len);
    *to = '\0';
    *out = (once_bytes){text, total};
    return ONCE_OK;
}
