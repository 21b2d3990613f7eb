/* The scanner: one pass over the text that validates it and writes the tape.
 *
 * The tape holds one token per value and per member name, in the order of the text; a container's token comes before
 * its contents, and its `next` (written when it closes) is the token behind them. A name needs no `next`, because its
 * value follows it, so it keeps the hash of the unescaped name there.
 *
 * Duplicate names. Each open object has 256 bits, one of which is set by the hash of each name: most new names find
 * their bit clear and are done. Otherwise the names so far are searched. From the 33rd name on nothing is searched;
 * when such an object closes its names are sorted by (hash, text). Names crafted to have equal hashes therefore cost
 * n log n comparisons, not n^2.
 *
 * Nesting lives in json->frames, never on the C stack. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/json_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__SSE2__) && !defined(ONCE_JSON_PORTABLE)
#include <emmintrin.h>
#define HAVE_SSE2 1
#endif

#include "base/banned.h"

#define NAMES_SEARCHED 32u /* of one object; more are sorted */
#define TOKENS_FIRST 64u
#define TOKENS_KEPT (64u * 1024) /* 1 MiB: what a document may keep after a large message */

/* The hot functions are inlined into two versions of scan_value(); see there. */
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define COLD static __attribute__((noinline, cold))

struct scanner {
    once_json *json;
    const char *start, *end;
    uint32_t depth, max_depth;
    uint64_t seed;
    once_json_fault fault;
    const char *fault_at;
};

/* Most texts are an object or an array, so they end in a closing bracket, and outside of strings nothing runs past a
 * bracket: it is no space, no digit, and where it is unexpected the scanner stops. Only behind a closing bracket can
 * the text be over. For such texts the functions below are called with `end` NULL, a constant, and what asks for the
 * end disappears. */
#define NOT_END(p, end) (!(end) || (p) < (end))

/* Every scan_ function returns where it stopped, or NULL after fail(). */
static const char *fail(struct scanner *s, once_json_fault fault, const char *at)
{
    s->fault = fault;
    s->fault_at = at;
    return NULL;
}

/* `at` is not what the grammar wants there. */
COLD const char *fail_unexpected(struct scanner *s, once_json_fault fault, const char *at)
{
    if (at >= s->end) return fail(s, ONCE_JSON_FAULT_END, s->end);
    if (*at == '\0') return fail(s, ONCE_JSON_FAULT_NUL, at);
    return fail(s, fault, at);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Doubles an array; false when memory is out or a count would not fit. */
static bool grow(void **array, uint32_t *capacity, size_t item, uint32_t first)
{
    const uint64_t wanted = *capacity ? (uint64_t)*capacity * 2 : first;
    if (wanted > UINT32_MAX) return false;
    void *larger = realloc(*array, (size_t)wanted * item);
    if (!larger) return false;
    *array = larger;
    *capacity = (uint32_t)wanted;
    return true;
}

NOINLINE bool grow_tokens(once_json *json)
{
    void *tokens = json->tokens;
    const bool grown = grow(&tokens, &json->capacity, sizeof(*json->tokens), TOKENS_FIRST);
    json->tokens = tokens;
    return grown;
}

NOINLINE bool grow_frames(once_json *json)
{
    void *frames = json->frames;
    const bool grown = grow(&frames, &json->frames_capacity, sizeof(*json->frames), 16);
    json->frames = frames;
    return grown;
}

INLINE bool push(struct scanner *s, once_json_type type, const char *from, const char *to, bool escaped)
{
    once_json *json = s->json;
    const uint32_t at = json->count;
    if (UNLIKELY(at == json->capacity) && !grow_tokens(json)) {
        fail(s, ONCE_JSON_FAULT_MEMORY, from);
        return false;
    }
    once_json_token *token = &json->tokens[at];
    json->count = at + 1;
    token->offset = (uint32_t)(from - s->start);
    token->len = (uint32_t)(to - from);
    token->next = at + 1;
    token->type = (uint8_t)type;
    token->escaped = escaped;
    return true;
}

void once_json_init(once_json *json) { *json = (once_json){0}; }

void once_json_release(once_json *json)
{
    free(json->tokens);
    free(json->frames);
    free(json->names);
    once_json_init(json);
}

/* The memory of one large message must not be kept for good. */
static void give_back(once_json *json, size_t text_len)
{
    if (json->capacity > TOKENS_KEPT && text_len < json->capacity / 4) {
        free(json->tokens);
        json->tokens = NULL;
        json->capacity = 0;
    }
    if (json->names_capacity > TOKENS_KEPT && text_len < json->names_capacity / 4) {
        free(json->names);
        json->names = NULL;
        json->names_capacity = 0;
    }
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

/* 1: an ASCII character that stands for itself inside a string */
static const uint8_t PLAIN[256] = {
    [0x20] = 1,
    [0x21] = 1,
    [0x23 ... 0x5B] = 1,
    [0x5D ... 0x7F] = 1,
};

/* The first byte that is a quote, a backslash, a control character or not ASCII. */
static inline const char *skip_plain(const char *p, const char *end)
{
#ifdef HAVE_SSE2
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    while (end - p >= 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
        /* bytes from 0x80 are negative, so one signed comparison finds them and the control characters */
        const __m128i special = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash)),
                                             _mm_cmplt_epi8(v, space));
        const unsigned mask = (unsigned)_mm_movemask_epi8(special);
        if (mask) return p + __builtin_ctz(mask);
        p += 16;
    }
#else
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    while (end - p >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        const uint64_t quote = v ^ ones * '"', backslash = v ^ ones * '\\';
        /* may also mark a plain byte behind a special one, never miss one: the loop below looks closely */
        const uint64_t special = v | (v - ones * ' ') | (quote - ones) | (backslash - ones);
        if (special & tops) break;
        p += 8;
    }
#endif
    while (p < end && PLAIN[(unsigned char)*p]) p++;
    return p;
}

/* p stands on a byte >= 0x80. Returns the byte behind the character. No overlong forms, no surrogates, nothing beyond
 * U+10FFFF (RFC 3629). */
static const char *scan_utf8(struct scanner *s, const char *p)
{
    const unsigned char *c = (const unsigned char *)p;
    const ptrdiff_t left = s->end - p;
    const unsigned lead = c[0];
#define CONTINUES(i) ((c[i] & 0xC0) == 0x80)
    if (lead >= 0xC2 && lead <= 0xDF) {
        if (left >= 2 && CONTINUES(1)) return p + 2;
    } else if ((lead & 0xF0) == 0xE0) {
        if (left >= 3 && CONTINUES(1) && CONTINUES(2) && (lead != 0xE0 || c[1] >= 0xA0) &&
            (lead != 0xED || c[1] <= 0x9F)) {
            return p + 3;
        }
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        if (left >= 4 && CONTINUES(1) && CONTINUES(2) && CONTINUES(3) && (lead != 0xF0 || c[1] >= 0x90) &&
            (lead != 0xF4 || c[1] <= 0x8F)) {
            return p + 4;
        }
    }
#undef CONTINUES
    return fail(s, ONCE_JSON_FAULT_UTF8, p);
}

/* The four digits of a \u escape; -1 when they are not. */
static int32_t hex4(const char *p, const char *end)
{
    if (end - p < 4) return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        const int c = (unsigned char)p[i], letter = c | 0x20;
        if (c >= '0' && c <= '9') code = code * 16 + (c - '0');
        else if (letter >= 'a' && letter <= 'f') code = code * 16 + (letter - 'a' + 10);
        else return -1;
    }
    return code;
}

/* p stands on a backslash. */
static const char *scan_escape(struct scanner *s, const char *p)
{
    if (s->end - p < 2) return fail(s, ONCE_JSON_FAULT_END, s->end);
    switch (p[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return p + 2;
    case 'u': break;
    default: return fail(s, ONCE_JSON_FAULT_ESCAPE, p);
    }
    const int32_t code = hex4(p + 2, s->end);
    if (code < 0) return fail(s, ONCE_JSON_FAULT_ESCAPE, p);
    if (code < 0xD800 || code > 0xDFFF) return p + 6;
    /* a high surrogate, and a low one behind it */
    if (code > 0xDBFF || s->end - p < 8 || p[6] != '\\' || p[7] != 'u') return fail(s, ONCE_JSON_FAULT_SURROGATE, p);
    const int32_t low = hex4(p + 8, s->end);
    if (low < 0) return fail(s, ONCE_JSON_FAULT_ESCAPE, p + 6);
    if (low < 0xDC00 || low > 0xDFFF) return fail(s, ONCE_JSON_FAULT_SURROGATE, p);
    return p + 12;
}

/* p stands behind the opening quote; returns the closing one. */
INLINE const char *scan_string(struct scanner *s, const char *p, bool *escaped)
{
    *escaped = false;
    for (;;) {
        p = skip_plain(p, s->end);
        if (UNLIKELY(p == s->end)) return fail(s, ONCE_JSON_FAULT_END, p);
        if (LIKELY(*p == '"')) return p;
        if (*p == '\\') {
            *escaped = true;
            p = scan_escape(s, p);
        } else if ((unsigned char)*p >= 0x80) {
            do p = scan_utf8(s, p);
            while (p && p < s->end && (unsigned char)*p >= 0x80);
        } else {
            return fail(s, *p == '\0' ? ONCE_JSON_FAULT_NUL : ONCE_JSON_FAULT_CONTROL, p);
        }
        if (!p) return NULL;
    }
}

/* --- member names ------------------------------------------------------------------------------------------------- */

/* Only ever compared with hashes of the same parse. `limit` as in once__json_block(). */
static inline uint32_t hash_plain(uint64_t seed, const char *p, size_t len, const char *limit)
{
    if (UNLIKELY(len > 16)) return (uint32_t)XXH3_64bits_withSeed(p, len, seed);
    uint64_t x, y;
    once__json_block(p, len, limit, &x, &y);
    x = (x ^ seed) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(((x ^ x >> 32 ^ y) * 0xD6E8FEB86659FD93u + len) >> 32);
}

NOINLINE uint32_t hash_escaped(uint64_t seed, const char *p, size_t len)
{
    char chunk[256];
    const char *end = p + len;
    size_t n = once__json_unescape(&p, end, chunk, sizeof(chunk));
    if (p == end) return hash_plain(seed, chunk, n, chunk + n);
    XXH3_state_t state;
    XXH3_INITSTATE(&state); /* the reset reads it */
    XXH3_64bits_reset_withSeed(&state, seed);
    for (;;) {
        XXH3_64bits_update(&state, chunk, n);
        if (p == end) return (uint32_t)XXH3_64bits_digest(&state);
        n = once__json_unescape(&p, end, chunk, sizeof(chunk));
    }
}

/* Is there a name equal to the last token among those of the open object? */
NOINLINE bool is_repeated(const once_json *json, const struct once_json_frame *frame)
{
    const uint32_t last = json->count - 1;
    const uint32_t hash = json->tokens[last].next;
    for (uint32_t name = frame->token + 1; name < last; name = json->tokens[name + 1].next) {
        if (json->tokens[name].next != hash) continue;
        if (once__json_text_compare(once__json_at(json, name), once__json_at(json, last)) == 0) return true;
    }
    return false;
}

/* names: hash << 32 | token */
static int compare_names(const void *a, const void *b, void *arg)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    if (x >> 32 == y >> 32 && x != y) {
        const once_json *json = arg;
        const int order = once__json_text_compare(once__json_at(json, (uint32_t)x), once__json_at(json, (uint32_t)y));
        if (order) return order;
    }
    return x == y ? 0 : x < y ? -1 : 1;
}

/* Sorts the names of a large object that has just been closed; false on a duplicate or lack of memory. */
NOINLINE bool check_names(struct scanner *s, const struct once_json_frame *frame)
{
    once_json *json = s->json;
    void *names = json->names;
    while (json->names_capacity < frame->count) {
        const bool grown = grow(&names, &json->names_capacity, sizeof(*json->names), 256);
        json->names = names;
        if (!grown) return fail(s, ONCE_JSON_FAULT_MEMORY, s->start) != NULL;
    }
    uint32_t count = 0;
    for (uint32_t name = frame->token + 1; name < json->count; name = json->tokens[name + 1].next) {
        json->names[count++] = (uint64_t)json->tokens[name].next << 32 | name;
    }
    assert(count == frame->count);
    qsort_r(json->names, count, sizeof(*json->names), compare_names, json);
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 1; i < count; i++) {
        if (json->names[i - 1] >> 32 != json->names[i] >> 32) continue;
        const once_json_value before = once__json_at(json, (uint32_t)json->names[i - 1]);
        const once_json_value name = once__json_at(json, (uint32_t)json->names[i]);
        if (name.token < first && once__json_text_compare(before, name) == 0) first = name.token;
    }
    if (first == UINT32_MAX) return true;
    return fail(s, ONCE_JSON_FAULT_DUPLICATE, s->start + json->tokens[first].offset - 1) != NULL;
}

static inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

INLINE const char *skip_space(const char *p, const char *end)
{
    while (NOT_END(p, end) && (unsigned char)*p <= ' ' && is_space(*p)) p++;
    return p;
}

/* "name" : and returns what stands behind the colon */
INLINE const char *scan_name(struct scanner *s, struct once_json_frame *frame, const char *p, const char *end)
{
    p = skip_space(p, end);
    if (UNLIKELY(!NOT_END(p, end) || *p != '"')) return fail_unexpected(s, ONCE_JSON_FAULT_KEY, p);
    bool escaped;
    const char *name = p + 1;
    p = scan_string(s, name, &escaped);
    if (UNLIKELY(!p) || !push(s, ONCE_JSON_STRING, name, p, escaped)) return NULL;

    const size_t len = (size_t)(p - name);
    const uint32_t hash = UNLIKELY(escaped) ? hash_escaped(s->seed, name, len) : hash_plain(s->seed, name, len, s->end);
    s->json->tokens[s->json->count - 1].next = hash;
    if (frame->count++ < NAMES_SEARCHED) {
        const uint64_t bit = (uint64_t)1 << (hash & 63);
        uint64_t *seen = &frame->seen[hash >> 6 & 3];
        if (UNLIKELY(*seen & bit) && is_repeated(s->json, frame)) return fail(s, ONCE_JSON_FAULT_DUPLICATE, name - 1);
        *seen |= bit;
    }

    p = skip_space(p + 1, end);
    if (UNLIKELY(!NOT_END(p, end) || *p != ':')) return fail_unexpected(s, ONCE_JSON_FAULT_COLON, p);
    return p + 1;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static inline bool is_digit(char c) { return (unsigned char)(c - '0') < 10; }

INLINE const char *skip_digits(const char *p, const char *end)
{
    while (NOT_END(p, end) && is_digit(*p)) p++;
    return p;
}

INLINE const char *scan_number(struct scanner *s, const char *from, const char *end)
{
    const char *p = from;
    once_json_type type = ONCE_JSON_INTEGER;
    if (*p == '-') p++;
    if (!NOT_END(p, end) || !is_digit(*p)) return fail_unexpected(s, ONCE_JSON_FAULT_NUMBER, p);
    if (*p == '0' && NOT_END(p + 1, end) && is_digit(p[1])) return fail(s, ONCE_JSON_FAULT_ZERO, p);
    p = skip_digits(p + 1, end);
    if (NOT_END(p, end) && *p == '.') {
        type = ONCE_JSON_REAL;
        p++;
        if (!NOT_END(p, end) || !is_digit(*p)) return fail_unexpected(s, ONCE_JSON_FAULT_NUMBER, p);
        p = skip_digits(p, end);
    }
    if (NOT_END(p, end) && (*p == 'e' || *p == 'E')) {
        type = ONCE_JSON_REAL;
        p++;
        if (NOT_END(p, end) && (*p == '+' || *p == '-')) p++;
        if (!NOT_END(p, end) || !is_digit(*p)) return fail_unexpected(s, ONCE_JSON_FAULT_NUMBER, p);
        p = skip_digits(p, end);
    }
    return push(s, type, from, p, false) ? p : NULL;
}

COLD const char *fail_word(struct scanner *s, const char *p, const char *word)
{
    const char *from = p;
    for (; p < s->end; p++, word++) {
        if (*p != *word) return fail(s, ONCE_JSON_FAULT_WORD, from);
    }
    return fail(s, ONCE_JSON_FAULT_END, p);
}

/* Inlined, so that comparing a constant number of bytes is one or two loads. */
INLINE const char *scan_word(struct scanner *s, const char *p, once_json_type type, const char *word, size_t len)
{
    if (UNLIKELY((size_t)(s->end - p) < len || memcmp(p, word, len) != 0)) return fail_word(s, p, word);
    return push(s, type, p, p + len, false) ? p + len : NULL;
}

COLD const char *scan_nonsense(struct scanner *s, const char *p)
{
    const unsigned char letter = (unsigned char)*p | 0x20;
    if (p == s->start && s->end - p >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0) return fail(s, ONCE_JSON_FAULT_BOM, p);
    return fail_unexpected(s, letter >= 'a' && letter <= 'z' ? ONCE_JSON_FAULT_WORD : ONCE_JSON_FAULT_VALUE, p);
}

INLINE const char *scan_scalar(struct scanner *s, const char *p, const char *end)
{
    switch (*p) {
    case '"': {
        bool escaped;
        const char *close = scan_string(s, p + 1, &escaped);
        return close && push(s, ONCE_JSON_STRING, p + 1, close, escaped) ? close + 1 : NULL;
    }
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': return scan_number(s, p, end);
    case 't': return scan_word(s, p, ONCE_JSON_TRUE, "true", 4);
    case 'f': return scan_word(s, p, ONCE_JSON_FALSE, "false", 5);
    case 'n': return scan_word(s, p, ONCE_JSON_NULL, "null", 4);
    default: return scan_nonsense(s, p);
    }
}

/* p stands on { or [. NULL after fail(). */
static struct once_json_frame *open_container(struct scanner *s, const char *p)
{
    once_json *json = s->json;
    if (UNLIKELY(s->depth == s->max_depth)) {
        fail(s, ONCE_JSON_FAULT_DEPTH, p);
        return NULL;
    }
    if (UNLIKELY(s->depth == json->frames_capacity) && !grow_frames(json)) {
        fail(s, ONCE_JSON_FAULT_MEMORY, p);
        return NULL;
    }
    struct once_json_frame *frame = &json->frames[s->depth++];
    frame->token = json->count;
    frame->count = 0;
    memset(frame->seen, 0, sizeof(frame->seen));
    frame->object = *p == '{';
    return push(s, frame->object ? ONCE_JSON_OBJECT : ONCE_JSON_ARRAY, p, p, false) ? frame : NULL;
}

/* p stands on the closing bracket. */
static inline bool close_container(struct scanner *s, const struct once_json_frame *frame, const char *p)
{
    once_json *json = s->json;
    once_json_token *token = &json->tokens[frame->token];
    token->len = (uint32_t)(p + 1 - s->start) - token->offset;
    token->next = json->count;
    s->depth--;
    return LIKELY(frame->count <= NAMES_SEARCHED) || !frame->object || check_names(s, frame);
}

/* One value and everything in it; returns what stands behind it. `end` is s->end, or NULL when the text ends in a
 * closing bracket. */
INLINE const char *scan_value(struct scanner *s, const char *p, const char *end)
{
    struct once_json_frame *frame = NULL; /* the innermost open container */
    bool object = false;                  /* it is an object */
    for (;;) {
        if (object && UNLIKELY(!(p = scan_name(s, frame, p, end)))) return NULL;
        p = skip_space(p, end);
        if (UNLIKELY(!NOT_END(p, end))) return fail(s, s->json->count ? ONCE_JSON_FAULT_END : ONCE_JSON_FAULT_EMPTY, p);
        if (*p == '{' || *p == '[') {
            frame = open_container(s, p);
            if (UNLIKELY(!frame)) return NULL;
            object = frame->object;
            p = skip_space(p + 1, end);
            if (!NOT_END(p, end) || *p != (object ? '}' : ']')) continue;
        } else {
            p = scan_scalar(s, p, end);
            if (UNLIKELY(!p)) return NULL;
            if (UNLIKELY(!frame)) return p;
        }
        /* a value is complete, or a container closes at once */
        while (p = skip_space(p, end), !NOT_END(p, end) || *p != ',') {
            if (UNLIKELY(!NOT_END(p, end) || *p != (object ? '}' : ']'))) {
                return fail_unexpected(s, object ? ONCE_JSON_FAULT_OBJECT_NEXT : ONCE_JSON_FAULT_ARRAY_NEXT, p);
            }
            if (!close_container(s, frame, p++)) return NULL;
            if (s->depth == 0) return p;
            if (p == s->end) return fail(s, ONCE_JSON_FAULT_END, p);
            frame--;
            object = frame->object;
        }
        p++;
    }
}

static const char *scan_bracketed(struct scanner *s) { return scan_value(s, s->start, NULL); }

static const char *scan_any(struct scanner *s) { return scan_value(s, s->start, s->end); }

/* The whole text. */
static const char *scan_text(struct scanner *s)
{
    const char *text_end = s->end, *p = NULL;
    while (s->end > s->start && is_space(s->end[-1])) s->end--;
    const bool bracketed = s->end > s->start && (s->end[-1] == '}' || s->end[-1] == ']');
    if (bracketed) p = scan_bracketed(s);
    if (!bracketed || s->fault == ONCE_JSON_FAULT_END) { /* the white space that was cut off may tell more */
        s->end = text_end;
        s->depth = 0;
        s->json->count = 0;
        p = scan_any(s);
    }
    if (!p) return NULL;
    p = skip_space(p, s->end);
    return p < s->end ? fail_unexpected(s, ONCE_JSON_FAULT_TRAILING, p) : p;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static const char *const FAULTS[] = {
#define FAULT_TEXT(name, text) text,
    ONCE_JSON_FAULT_MAP(FAULT_TEXT)
#undef FAULT_TEXT
};

COLD int report(struct scanner *s, size_t max_bytes, once_json_error *err)
{
    s->json->count = 0;
    s->json->text = (once_bytes){0};
    if (err) {
        err->offset = (size_t)(s->fault_at - s->start);
        err->fault = s->fault;
        const size_t room = sizeof(err->reason);
        const char *text = FAULTS[s->fault];
        if (s->fault == ONCE_JSON_FAULT_DEPTH) snprintf(err->reason, room, "%s %u", text, s->max_depth);
        else if (s->fault == ONCE_JSON_FAULT_SIZE) snprintf(err->reason, room, "%s %zu bytes", text, max_bytes);
        else snprintf(err->reason, room, "%s", text);
    }
    return s->fault == ONCE_JSON_FAULT_MEMORY ? ONCE_E_NOMEM : ONCE_E_MESSAGE;
}

int once_json_parse(once_json *json, once_bytes text, const once_json_options *options, once_json_error *err)
{
    static const once_json_options defaults = {0};
    if (!options) options = &defaults;
    size_t max_bytes = ONCE_JSON_MAX_BYTES;
    if (options->max_bytes && options->max_bytes < max_bytes) max_bytes = options->max_bytes;
    if (!text.len) text.data = ""; /* so that no arithmetic happens on NULL */
    struct scanner s = {
        .json = json,
        .start = text.data,
        .end = text.data + text.len,
        .max_depth = options->max_depth ? options->max_depth : ONCE_JSON_MAX_DEPTH,
        .seed = options->seed,
    };
    json->count = 0;
    json->text = text;
    give_back(json, text.len);

    if (text.len > max_bytes) {
        fail(&s, ONCE_JSON_FAULT_SIZE, s.start + max_bytes);
        return report(&s, max_bytes, err);
    }
    if (!scan_text(&s)) return report(&s, max_bytes, err);
    const once_json_token *root = &json->tokens[0];
    if (options->object && root->type != ONCE_JSON_OBJECT) {
        fail(&s, ONCE_JSON_FAULT_NOT_OBJECT, s.start + root->offset - (root->type == ONCE_JSON_STRING));
        return report(&s, max_bytes, err);
    }
    return ONCE_OK;
}
