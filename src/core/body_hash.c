/* The hash of a body (core/body_hash.h).
 *
 * The canonical text has its members sorted by name, one spelling for strings and numbers, and no white space. The hash
 * is SHA-256, because it becomes a key: nobody must be able to make two bodies with the same one. Stores keep these
 * keys, so this never changes. */
#include "core/body_hash.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define MAX_CANONICAL_DEPTH 1000

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

int once_body_hash(const once_parsed *from, once_arena *arena, once_bytes *out, once_error *err)
{
    const once_json *body = from->body;
    if (!body && (!from->message || from->message->no_body))
        return once_fail(err, ONCE_E_MESSAGE, "the message has no body, so it has no '${hash}'");
    if (body && once_json_root(body).type == ONCE_JSON_ABSENT)
        return once_fail(err, ONCE_E_MESSAGE, "the body is not JSON, so it has no '${hash}'");
    const bool ok = body ? json_hash(body, arena, out) : bytes_hash(from->message->body, arena, out);
    return ok ? ONCE_OK : once_no_memory(err, "for a template");
}
