/* The text of strings: unescaping and comparing. Everything here reads text that the scanner has validated, so it
 * asserts instead of checking. */
#include "base/json_internal.h"

#include <string.h>

#include "base/banned.h"

static uint32_t hex4(const char *p)
{
    uint32_t code = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t c = (unsigned char)p[i];
        code = code << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
}

static size_t put_utf8(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* *at stands on a backslash. Returns how many bytes (1..4) the character takes in UTF-8. */
static size_t unescape_one(const char **at, const char *end, char out[4])
{
    const char *p = *at;
    assert(end - p >= 2 && *p == '\\');
    (void)end;
    *at = p + 2;
    switch (p[1]) {
    case 'b': out[0] = '\b'; return 1;
    case 'f': out[0] = '\f'; return 1;
    case 'n': out[0] = '\n'; return 1;
    case 'r': out[0] = '\r'; return 1;
    case 't': out[0] = '\t'; return 1;
    case 'u': break;
    default: out[0] = p[1]; return 1; /* " \ and / stand for themselves */
    }
    assert(end - p >= 6);
    uint32_t code = hex4(p + 2);
    *at = p + 6;
    if (code >= 0xD800 && code <= 0xDBFF) {
        assert(end - p >= 12);
        code = 0x10000 + ((code - 0xD800) << 10) + (hex4(p + 8) - 0xDC00);
        *at = p + 12;
    }
    return put_utf8(code, out);
}

size_t once__json_unescape(const char **at, const char *end, char *out, size_t capacity)
{
    const char *p = *at;
    size_t len = 0;
    while (p < end) {
        if (*p != '\\') { /* copy up to the next escape */
            const size_t room = capacity - len, left = (size_t)(end - p);
            const size_t most = left < room ? left : room;
            const char *escape = memchr(p, '\\', most);
            const size_t run = escape ? (size_t)(escape - p) : most;
            if (run == 0) break;
            memcpy(out + len, p, run);
            len += run;
            p += run;
            continue;
        }
        if (capacity - len >= 4) {
            len += unescape_one(&p, end, out + len);
            continue;
        }
        /* The last bytes of a buffer as large as the raw text: an escape is never shorter than what it stands for. */
        char one[4];
        const char *next = p;
        const size_t n = unescape_one(&next, end, one);
        if (n > capacity - len) break;
        memcpy(out + len, one, n);
        len += n;
        p = next;
    }
    *at = p;
    return len;
}

/* One byte after the other of an unescaped text. */
struct reader {
    const char *at, *end;
    bool escaped;
    char pending[4];
    size_t have, used;
};

static struct reader reader_of(once_json_value value)
{
    assert(value.type == ONCE_JSON_STRING);
    return (struct reader){.at = value.raw.data, .end = value.raw.data + value.raw.len, .escaped = value.escaped};
}

static int reader_next(struct reader *r)
{
    if (r->used < r->have) return (unsigned char)r->pending[r->used++];
    if (r->at == r->end) return -1;
    if (!r->escaped || *r->at != '\\') return (unsigned char)*r->at++;
    r->have = unescape_one(&r->at, r->end, r->pending);
    r->used = 1;
    return (unsigned char)r->pending[0];
}

static int compare_plain(once_bytes x, once_bytes y)
{
    const size_t len = x.len < y.len ? x.len : y.len;
    const int order = len ? memcmp(x.data, y.data, len) : 0;
    if (order) return order < 0 ? -1 : 1;
    return x.len == y.len ? 0 : x.len < y.len ? -1 : 1;
}

int once__json_text_compare(once_json_value x, once_json_value y)
{
    if (!x.escaped && !y.escaped) return compare_plain(x.raw, y.raw);
    struct reader a = reader_of(x), b = reader_of(y);
    for (;;) {
        const int c = reader_next(&a), d = reader_next(&b);
        if (c != d) return c < d ? -1 : 1;
        if (c < 0) return 0;
    }
}

bool once_json_string_is(once_json_value value, once_bytes text)
{
    if (value.type != ONCE_JSON_STRING) return false;
    if (!value.escaped) return value.raw.len == text.len && (!text.len || !memcmp(value.raw.data, text.data, text.len));
    if (value.raw.len < text.len) return false;
    const once_json_value other = {.type = ONCE_JSON_STRING, .raw = text};
    return once__json_text_compare(value, other) == 0;
}

bool once_json_string(once_json_value value, once_arena *arena, once_bytes *out)
{
    if (value.type != ONCE_JSON_STRING) return false;
    if (!value.escaped) {
        *out = value.raw;
        return true;
    }
    char *text = once_arena_alloc(arena, value.raw.len + 1);
    if (!text) return false;
    const char *at = value.raw.data, *end = at + value.raw.len;
    const size_t len = once__json_unescape(&at, end, text, value.raw.len);
    assert(at == end);
    text[len] = '\0';
    *out = (once_bytes){text, len};
    return true;
}
