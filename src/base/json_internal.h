/* What the json*.c files share. Only they include this. */
#ifndef ONCE_BASE_JSON_INTERNAL_H
#define ONCE_BASE_JSON_INTERNAL_H

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/json.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* A container that is open, on an explicit stack so that nesting costs no C stack. The parser reserves one frame per
 * level that a document has, which is why fingerprinting it later cannot run out of memory. */
struct once_json_frame {
    uint32_t count; /* members or elements so far */
    bool object;
    /* while parsing */
    uint32_t token;   /* of the container */
    uint64_t seen[4]; /* one bit per hash of a name, to skip the search for a duplicate */
    /* while fingerprinting */
    uint32_t end; /* the token behind the container */
    uint32_t name_len;
    once_hash sum, name; /* of the items so far; what the container's own name left in the state */
};

static inline once_json_value once__json_at(const once_json *json, uint32_t token)
{
    assert(token < json->count);
    const once_json_token *t = &json->tokens[token];
    return (once_json_value){
        .type = (once_json_type)t->type,
        .escaped = t->escaped,
        .raw = {json->text.data + t->offset, t->len},
        .token = token,
    };
}

static inline uint64_t once__json_load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

/* n (0..16) bytes as two words, padded with zeros, without a branch on n. Memory may be read up to `limit`, which is
 * the end of the text for everything inside it, so that only its last bytes take the slow way. */
static inline void once__json_block(const char *p, size_t n, const char *limit, uint64_t *x, uint64_t *y)
{
    static const unsigned char window[32] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    };
    if (LIKELY(limit - p >= 16)) {
        const char *mask = (const char *)window + 16 - n;
        *x = once__json_load64(p) & once__json_load64(mask);
        *y = once__json_load64(p + 8) & once__json_load64(mask + 8);
        return;
    }
    char block[16] = {0};
    for (size_t i = 0; i < n; i++) block[i] = p[i];
    *x = once__json_load64(block);
    *y = once__json_load64(block + 8);
}

/* Unescapes from *at until `end` or until fewer than 4 bytes of `out` are free; moves *at and returns the bytes
 * written. The text was validated. With capacity >= end - *at everything fits. */
size_t once__json_unescape(const char **at, const char *end, char *out, size_t capacity);

/* -1, 0, 1 by the bytes of the unescaped texts. Both are strings or names. */
int once__json_text_compare(once_json_value x, once_json_value y);

#endif
