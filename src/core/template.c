/* Templates (core/template.h): compiled into parts once, rendered for every message.
 *
 * Why a rendering is unambiguous, for templates that are more than one placeholder. Read it from the left: "%%" is a
 * '%' of a literal; '%' and two hex digits are one byte of a value; any other byte belongs to a literal if it occurs in
 * the literals, and to a value otherwise. So each byte is known to be literal or value by itself. There is a literal
 * that is not empty between any two placeholders, so the values can be read back. */
#include "core/template.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/duration.h"
#include "base/hash.h"
#include "base/no_memory.h"
#include "core/event.h"

#include "base/banned.h"

#define MAX_PLACEHOLDERS 64
#define MAX_TEXT 4096
#define MAX_CANONICAL_DEPTH 1000
#define SHOWN(bytes) ((bytes).len > 100 ? 100 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

typedef enum part_kind {
    PART_LITERAL,
    PART_POINTER,
    PART_HEADER,
    PART_SOURCE,
    PART_EVENT,
    PART_COORDINATES,
    PART_HASH,
    PART_TIME
} part_kind;

typedef struct part {
    part_kind kind;
    once_bytes text;      /* LITERAL: as it is rendered; HEADER, SOURCE, EVENT: the name */
    once_bytes plain;     /* LITERAL: as it was written */
    once_pointer pointer; /* POINTER, TIME */
    int64_t window_ms;    /* TIME */
} part;

struct once_template {
    once_bytes text;
    part *parts;
    size_t n, placeholders;
    bool coordinates;
    bool escape[256]; /* bytes that are escaped in values; all false if the template is one placeholder alone */
};

/* --- parsing ------------------------------------------------------------------------------------------------------ */

static bool starts_with(once_bytes text, const char *start)
{
    size_t len = strlen(start);
    return text.len >= len && memcmp(text.data, start, len) == 0;
}

static bool is_word(once_bytes text, const char *word) { return text.len == strlen(word) && starts_with(text, word); }

static once_bytes slice(once_bytes text, size_t from, size_t to)
{
    assert(from <= to && to <= text.len);
    return (once_bytes){text.data + from, to - from};
}

static int parse_pointer(once_arena *arena, once_bytes inside, once_bytes text, once_pointer *out, once_error *err)
{
    once_error why = {0};
    int rc = once_pointer_parse(arena, text, out, &why);
    if (rc == ONCE_OK) return ONCE_OK;
    return once_fail(err, rc, "'${%.*s}' is not a JSON pointer: %s", SHOWN(inside), why.text);
}

/* "time:/ts:5m": the window stands behind the last colon. */
static int parse_time(once_arena *arena, once_bytes inside, part *out, once_error *err)
{
    once_bytes rest = slice(inside, strlen("time:"), inside.len);
    const char *colon = rest.len > 0 ? memrchr(rest.data, ':', rest.len) : NULL;
    if (!colon || rest.data[0] != '/')
        return once_fail(err, ONCE_E_USAGE,
                         "'${%.*s}' is incomplete; write a field and a window, as in '${time:/ts:5m}'", SHOWN(inside));
    size_t at = (size_t)(colon - rest.data);
    once_error why = {0};
    if (once_duration_parse(slice(rest, at + 1, rest.len), &out->window_ms, &why) != ONCE_OK)
        return once_fail(err, ONCE_E_USAGE, "window of '${%.*s}': %s", SHOWN(inside), why.text);
    if (out->window_ms == 0 || out->window_ms == ONCE_FOREVER)
        return once_fail(err, ONCE_E_USAGE, "window of '${%.*s}' is %s; write a length, as in '${time:/ts:5m}'",
                         SHOWN(inside), out->window_ms == 0 ? "0" : "forever");
    return parse_pointer(arena, inside, slice(rest, 0, at), &out->pointer, err);
}

/* CloudEvents allows lower-case letters and digits. */
static int parse_attribute(once_bytes inside, part *out, once_error *err)
{
    out->kind = PART_EVENT;
    out->text = slice(inside, strlen("event:"), inside.len);
    bool good = out->text.len > 0 && out->text.len <= ONCE_EVENT_NAME_MAX;
    for (size_t i = 0; i < out->text.len && good; i++) {
        const char c = out->text.data[i];
        good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    }
    if (good) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE,
                     "'${%.*s}' names no attribute of an event; write lower-case letters and digits, as in "
                     "'${event:subject}'",
                     SHOWN(inside));
}

static int parse_placeholder(once_arena *arena, once_bytes inside, part *out, once_error *err)
{
    *out = (part){.kind = PART_POINTER, .text = inside};
    if (inside.len == 0) return once_fail(err, ONCE_E_USAGE, "'${}' is empty; name a field, as in '${/id}'");
    if (inside.data[0] == '/') return parse_pointer(arena, inside, inside, &out->pointer, err);
    if (starts_with(inside, "header:")) {
        out->kind = PART_HEADER;
        out->text = slice(inside, strlen("header:"), inside.len);
        if (out->text.len == 0)
            return once_fail(err, ONCE_E_USAGE,
                             "'${header:}' names no header; write its name, as in '${header:tenant}'");
        return ONCE_OK;
    }
    if (starts_with(inside, "source:")) {
        out->kind = PART_SOURCE;
        out->text = slice(inside, strlen("source:"), inside.len);
        if (out->text.len == 0)
            return once_fail(err, ONCE_E_USAGE, "'${source:}' names nothing; write a name, as in '${source:key}'");
        return ONCE_OK;
    }
    if (starts_with(inside, "event:")) return parse_attribute(inside, out, err);
    if (is_word(inside, "coordinates")) {
        out->kind = PART_COORDINATES;
        return ONCE_OK;
    }
    if (is_word(inside, "hash")) {
        out->kind = PART_HASH;
        return ONCE_OK;
    }
    if (starts_with(inside, "time:")) {
        out->kind = PART_TIME;
        return parse_time(arena, inside, out, err);
    }
    return once_fail(err, ONCE_E_USAGE,
                     "'${%.*s}' is not understood; a field of the body is '${/%.*s}', else there are ${header:NAME}, "
                     "${coordinates}, ${hash} and ${time:/field:5m}",
                     SHOWN(inside), SHOWN(inside));
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
    c->t->parts[c->t->n++] = (part){.kind = PART_LITERAL, .text = text, .plain = text};
    c->literal_len = 0;
    return ONCE_OK;
}

static int add_placeholder(compiler *c, once_bytes inside, once_error *err)
{
    if (c->t->placeholders == MAX_PLACEHOLDERS)
        return once_fail(err, ONCE_E_USAGE, "more than %d placeholders", MAX_PLACEHOLDERS);
    bool touches = c->t->n > 0 && c->literal_len == 0;
    assert(!touches || c->t->parts[c->t->n - 1].kind != PART_LITERAL);
    if (touches) c->literal[c->literal_len++] = ',';
    int rc = end_literal(c, err);
    if (rc != ONCE_OK) return rc;
    if (touches) c->t->parts[c->t->n - 1].plain.len = 0; /* it is not in the text */
    part *p = &c->t->parts[c->t->n];
    rc = parse_placeholder(c->arena, inside, p, err);
    if (rc != ONCE_OK) return rc;
    c->t->n++;
    c->t->placeholders++;
    if (p->kind == PART_COORDINATES) c->t->coordinates = true;
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
        if (p->kind != PART_LITERAL) continue;
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

bool once_template_uses_coordinates(const once_template *t) { return t->coordinates; }

unsigned once_template_parts(const once_template *t)
{
    static const unsigned bits[] = {[PART_LITERAL] = 0,
                                    [PART_POINTER] = ONCE_PART_POINTER,
                                    [PART_HEADER] = ONCE_PART_HEADER,
                                    [PART_SOURCE] = ONCE_PART_SOURCE,
                                    [PART_COORDINATES] = ONCE_PART_COORDINATES,
                                    [PART_HASH] = ONCE_PART_HASH,
                                    [PART_EVENT] = ONCE_PART_EVENT,
                                    [PART_TIME] = ONCE_PART_POINTER};
    unsigned all = 0;
    for (size_t i = 0; i < t->n; i++) all |= bits[t->parts[i].kind];
    return all;
}

bool once_template_uses_headers(const once_template *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->parts[i].kind == PART_HEADER || t->parts[i].kind == PART_SOURCE || t->parts[i].kind == PART_EVENT)
            return true;
    return false;
}

bool once_template_uses_event(const once_template *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->parts[i].kind == PART_EVENT) return true;
    return false;
}

bool once_template_source_name(const once_template *t, size_t *at, once_bytes *out)
{
    while (*at < t->n) {
        const part *p = &t->parts[(*at)++];
        if (p->kind != PART_SOURCE) continue;
        *out = p->text;
        return true;
    }
    return false;
}

bool once_template_field(const once_template *t, once_bytes *out)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->parts[i].kind != PART_POINTER && t->parts[i].kind != PART_TIME) continue;
        *out = t->parts[i].pointer.text;
        return true;
    }
    return false;
}

bool once_template_begins_literal(const once_template *t) { return t->parts[0].kind == PART_LITERAL; }
bool once_template_is_literal(const once_template *t) { return t->placeholders == 0; }
bool once_template_is_single(const once_template *t) { return t->n == 1 && t->placeholders == 1; }
once_bytes once_template_text(const once_template *t) { return t->text; }

const once_pointer *once_template_pointer(const once_template *t)
{
    return once_template_is_single(t) && t->parts[0].kind == PART_POINTER ? &t->parts[0].pointer : NULL;
}

/* --- the hash of a body ------------------------------------------------------------------------------------------- */

/* The canonical text has its members sorted by name, one spelling for strings and numbers, and no white space. The hash
 * is SHA-256, because it becomes a key: nobody must be able to make two bodies with the same one. Stores keep these
 * keys, so this never changes. */
typedef struct canon {
    const once_json *json;
    once_buf *out;
    once_arena *arena;
} canon;

typedef struct member {
    once_bytes name;
    once_json_value value;
} member;

static int member_compare(const void *a, const void *b)
{
    const member *x = a, *y = b;
    size_t len = x->name.len < y->name.len ? x->name.len : y->name.len;
    int order = len > 0 ? memcmp(x->name.data, y->name.data, len) : 0;
    if (order != 0) return order;
    return x->name.len == y->name.len ? 0 : x->name.len < y->name.len ? -1 : 1;
}

static bool canon_value(canon *c, once_json_value value, int depth);

static bool canon_string(canon *c, once_json_value value)
{
    once_bytes text;
    return once_json_string(value, c->arena, &text) && once_buf_json(c->out, text);
}

static bool canon_number(canon *c, once_json_value value)
{
    once_decimal decimal;
    once_bytes text = value.raw; /* a number with an exponent out of range counts as it is written */
    if (once_json_decimal(value, &decimal) && !once_decimal_text(&decimal, c->arena, &text)) return false;
    return once_buf_append(c->out, text.data, text.len);
}

static bool canon_object(canon *c, once_json_value value, int depth)
{
    size_t n = 0, i = 0;
    for (once_json_iter it = once_json_each(c->json, value); once_json_next(&it);) n++;
    member *members = once_arena_new(c->arena, member, n);
    if (!members) return false;
    for (once_json_iter it = once_json_each(c->json, value); once_json_next(&it); i++) {
        members[i].value = it.value;
        if (!once_json_string(it.key, c->arena, &members[i].name)) return false;
    }
    if (n > 1) qsort(members, n, sizeof *members, member_compare);
    once_buf_append(c->out, "{", 1);
    for (i = 0; i < n; i++) {
        if (i > 0) once_buf_append(c->out, ",", 1);
        once_buf_json(c->out, members[i].name);
        once_buf_append(c->out, ":", 1);
        if (!canon_value(c, members[i].value, depth + 1)) return false;
    }
    return once_buf_append(c->out, "}", 1);
}

static bool canon_array(canon *c, once_json_value value, int depth)
{
    bool first = true;
    once_buf_append(c->out, "[", 1);
    for (once_json_iter it = once_json_each(c->json, value); once_json_next(&it); first = false) {
        if (!first) once_buf_append(c->out, ",", 1);
        if (!canon_value(c, it.value, depth + 1)) return false;
    }
    return once_buf_append(c->out, "]", 1);
}

static bool canon_value(canon *c, once_json_value value, int depth)
{
    if (depth > MAX_CANONICAL_DEPTH) return false; /* deeper than once_json allows by default */
    switch (value.type) {
    case ONCE_JSON_OBJECT: return canon_object(c, value, depth);
    case ONCE_JSON_ARRAY: return canon_array(c, value, depth);
    case ONCE_JSON_STRING: return canon_string(c, value);
    case ONCE_JSON_INTEGER:
    case ONCE_JSON_REAL: return canon_number(c, value);
    case ONCE_JSON_NULL: return once_buf_puts(c->out, "null");
    case ONCE_JSON_TRUE: return once_buf_puts(c->out, "true");
    case ONCE_JSON_FALSE: return once_buf_puts(c->out, "false");
    case ONCE_JSON_ABSENT: break;
    }
    return false;
}

static const char hex_lower[] = "0123456789abcdef";
static const char hex_upper[] = "0123456789ABCDEF";

static bool bytes_hash(once_bytes bytes, once_arena *arena, once_bytes *out)
{
    unsigned char digest[32];
    char *text = once_arena_alloc(arena, 33);
    if (!text) return false;
    once_sha256(bytes.len ? bytes.data : "", bytes.len, digest);
    for (size_t i = 0; i < 16; i++) {
        text[2 * i] = hex_lower[digest[i] >> 4];
        text[2 * i + 1] = hex_lower[digest[i] & 15];
    }
    text[32] = '\0';
    *out = (once_bytes){text, 32};
    return true;
}

static bool json_hash(const once_json *body, once_arena *arena, once_bytes *out)
{
    once_arena scratch = {0};
    once_buf canonical;
    once_buf_init(&canonical, SIZE_MAX / 4);
    canon c = {.json = body, .out = &canonical, .arena = &scratch};
    const bool ok = canon_value(&c, once_json_root(body), 0) && !canonical.failed &&
                    bytes_hash(once_buf_bytes(&canonical), arena, out);
    once_buf_release(&canonical);
    once_arena_release(&scratch);
    return ok;
}

static int body_hash(const once_template_input *input, once_arena *arena, once_bytes *out, once_error *err)
{
    const once_json *body = input->body;
    if (!body && (!input->message || input->message->no_body))
        return once_fail(err, ONCE_E_MESSAGE, "the message has no body, so it has no '${hash}'");
    if (body && once_json_root(body).type == ONCE_JSON_ABSENT)
        return once_fail(err, ONCE_E_MESSAGE, "the body is not JSON, so it has no '${hash}'");
    const bool ok = body ? json_hash(body, arena, out) : bytes_hash(input->message->body, arena, out);
    return ok ? ONCE_OK : once_no_memory(err, "for a template");
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* `what` is "field" or "header"; the reason names it, never its value. */
static int missing(const char *what, once_bytes name, once_error *err)
{
    return once_fail(err, ONCE_E_MESSAGE, "missing %s '%.*s'", what, SHOWN(name));
}

static int number_text(once_json_value value, const char *what, once_bytes name, once_arena *arena, once_bytes *out,
                       once_error *err)
{
    if (value.type == ONCE_JSON_INTEGER && value.raw.len <= 18 && value.raw.data[0] != '-') {
        *out = value.raw; /* a short integer has only one spelling */
        return ONCE_OK;
    }
    once_decimal decimal;
    if (!once_json_decimal(value, &decimal))
        return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is a number out of range", what, SHOWN(name));
    if (!once_decimal_text(&decimal, arena, out)) return once_no_memory(err, "for a template");
    return ONCE_OK;
}

static int value_text(once_json_value value, const char *what, once_bytes name, once_arena *arena, once_bytes *out,
                      once_error *err)
{
    switch (value.type) {
    case ONCE_JSON_STRING:
        if (!value.escaped) *out = value.raw;
        else if (!once_json_string(value, arena, out)) return once_no_memory(err, "for a template");
        return ONCE_OK;
    case ONCE_JSON_INTEGER:
    case ONCE_JSON_REAL: return number_text(value, what, name, arena, out, err);
    case ONCE_JSON_TRUE: *out = ONCE_BYTES("true"); return ONCE_OK;
    case ONCE_JSON_FALSE: *out = ONCE_BYTES("false"); return ONCE_OK;
    case ONCE_JSON_NULL: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is null", what, SHOWN(name));
    case ONCE_JSON_OBJECT: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is an object", what, SHOWN(name));
    case ONCE_JSON_ARRAY: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is an array", what, SHOWN(name));
    case ONCE_JSON_ABSENT: break;
    }
    return missing(what, name, err);
}

static int coordinates_text(const once_message *message, once_arena *arena, once_bytes *out, once_error *err)
{
    once_bytes place = message ? message->at.place : (once_bytes){0},
               point = message ? message->at.point : (once_bytes){0};
    if (place.len == 0 && point.len == 0) return once_fail(err, ONCE_E_MESSAGE, "the message has no coordinates");
    char *text = once_arena_alloc(arena, place.len + point.len + 1);
    if (!text) return once_no_memory(err, "for a template");
    if (place.len > 0) memcpy(text, place.data, place.len);
    text[place.len] = ':';
    if (point.len > 0) memcpy(text + place.len + 1, point.data, point.len);
    *out = (once_bytes){text, place.len + point.len + 1};
    return ONCE_OK;
}

static int window_text(const part *p, once_json_value value, once_arena *arena, once_bytes *out, once_error *err)
{
    assert(p->kind == PART_TIME && p->window_ms > 0);
    int64_t time_ms;
    if (value.type == ONCE_JSON_ABSENT) return missing("field", p->pointer.text, err);
    bool known = once_json_int64(value, &time_ms);
    if (!known && value.type == ONCE_JSON_STRING) {
        once_bytes text;
        if (!once_json_string(value, arena, &text)) return once_no_memory(err, "for a template");
        known = once_time_parse(text, &time_ms, NULL) == ONCE_OK;
    }
    if (!known)
        return once_fail(err, ONCE_E_MESSAGE, "field '%.*s' is not a time (RFC 3339 or milliseconds since 1970)",
                         SHOWN(p->pointer.text));
    int64_t into = time_ms % p->window_ms, start_ms;
    if (into < 0) into += p->window_ms;
    if (__builtin_sub_overflow(time_ms, into, &start_ms) || start_ms == ONCE_NO_TIME)
        return once_fail(err, ONCE_E_MESSAGE, "field '%.*s' is a time out of range", SHOWN(p->pointer.text));
    char *text = once_arena_alloc(arena, ONCE_TIME_TEXT);
    if (!text) return once_no_memory(err, "for a template");
    *out = (once_bytes){once_time_format(start_ms, text), 0};
    out->len = strlen(text);
    return ONCE_OK;
}

static once_json_value source_value(const once_template_input *input, once_bytes name)
{
    if (!input->headers) return (once_json_value){0};
    const once_json_value known =
        once_json_member(input->headers, once_json_root(input->headers), ONCE_BYTES(ONCE_SOURCE_MEMBER));
    return once_json_member(input->headers, known, name);
}

/* The value that a placeholder names; ABSENT for those that name none. */
static once_json_value part_value(const part *p, const once_template_input *input)
{
    switch (p->kind) {
    case PART_POINTER:
    case PART_TIME: return input->body ? once_json_find(input->body, &p->pointer) : (once_json_value){0};
    case PART_HEADER:
        return input->headers ? once_json_member(input->headers, once_json_root(input->headers), p->text)
                              : (once_json_value){0};
    case PART_SOURCE: return source_value(input, p->text);
    case PART_EVENT: return once_event_attribute(input->body, input->headers, p->text);
    case PART_LITERAL:
    case PART_COORDINATES:
    case PART_HASH: break;
    }
    return (once_json_value){0};
}

static int part_text(const part *p, const once_template_input *input, once_arena *arena, once_bytes *out,
                     once_error *err)
{
    switch (p->kind) {
    case PART_LITERAL: *out = p->text; return ONCE_OK;
    case PART_POINTER: return value_text(part_value(p, input), "field", p->pointer.text, arena, out, err);
    case PART_HEADER: return value_text(part_value(p, input), "header", p->text, arena, out, err);
    case PART_SOURCE: return value_text(part_value(p, input), "source", p->text, arena, out, err);
    case PART_EVENT: return value_text(part_value(p, input), "attribute", p->text, arena, out, err);
    case PART_COORDINATES: return coordinates_text(input->message, arena, out, err);
    case PART_HASH: return body_hash(input, arena, out, err);
    case PART_TIME: return window_text(p, part_value(p, input), arena, out, err);
    }
    return once_fail(err, ONCE_E_BUG, "a template part of kind %d", (int)p->kind);
}

bool once_template_is_absent(const once_template *t, const once_template_input *input)
{
    assert(once_template_is_single(t));
    const part *p = &t->parts[0];
    const bool names = p->kind != PART_COORDINATES && p->kind != PART_HASH;
    return names && part_value(p, input).type == ONCE_JSON_ABSENT;
}

/* --- rendering ---------------------------------------------------------------------------------------------------- */

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

int once_template_render(const once_template *t, const once_template_input *input, once_arena *arena, once_bytes *out,
                         once_error *err)
{
    assert(t && input && arena && out);
    if (t->n == 1) return part_text(&t->parts[0], input, arena, out, err);

    once_bytes texts[2 * MAX_PLACEHOLDERS + 1];
    size_t total = 0;
    for (size_t i = 0; i < t->n; i++) {
        int rc = part_text(&t->parts[i], input, arena, &texts[i], err);
        if (rc != ONCE_OK) return rc;
        total += t->parts[i].kind == PART_LITERAL ? texts[i].len : escaped_len(t, texts[i]);
    }
    char *text = once_arena_alloc(arena, total + 1), *to = text;
    if (!text) return once_no_memory(err, "for a template");
    for (size_t i = 0; i < t->n; i++) {
        if (t->parts[i].kind != PART_LITERAL) {
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

int once_template_render_plain(const once_template *t, const once_template_input *input, once_arena *arena,
                               once_bytes *out, once_error *err)
{
    assert(t && input && arena && out);
    once_bytes texts[2 * MAX_PLACEHOLDERS + 1];
    size_t total = 0;
    for (size_t i = 0; i < t->n; i++) {
        const part *p = &t->parts[i];
        texts[i] = p->plain;
        int rc = p->kind == PART_LITERAL ? ONCE_OK : part_text(p, input, arena, &texts[i], err);
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
