/* Fingerprints: one hash per value, built from the leaves upwards, so that no two structures can be confused by the
 * way their parts are strung together.
 *
 * Most leaves are a few bytes long and a message has dozens of them, so a general hash per leaf would cost more than
 * parsing. Instead every item (a member: name and value; an element: value) runs through a state of 128 bits that
 * starts from the seed and absorbs blocks of 16 bytes, each with one multiplication of 64 by 64 bits whose whole
 * result is kept (as in wyhash; the inputs stay in the state, so that a zero cannot erase what came before):
 *
 *   name       its unescaped bytes, padded with zeros to blocks
 *   string     its unescaped bytes in the same way
 *   number     (digits as an integer, exponent and sign); beyond 18 digits XXH3-128 of the digits, then the rest
 *   literal    nothing
 *   object     the sum of the hashes of its members, in two lanes modulo 2^64: their order does not matter
 *   array      a state that has absorbed the hashes of its elements: their order does
 *
 * Texts of more than 128 bytes enter as their XXH3-128. The item's hash is the state, multiplied out once more
 * together with a word that says what the blocks were: kind of value, length of the name, length of the value (or
 * how many members it has). Together with that word the blocks determine the item, so different items differ before
 * anything is hashed.
 *
 * Stores keep these values: nothing here may change what comes out. test_json.c holds a few of them. */
#include "base/json_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/banned.h"

#define MANTISSA_DIGITS 18 /* always fit 64 bits */
#define DIRECT_BYTES 128   /* longer texts enter as their XXH3-128 */
#define BLOCK 16

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline)) /* rare, or long enough not to matter */

/* What an item's value is. Part of what is hashed: never change a number. */
enum kind {
    KIND_ABSENT = 0,
    KIND_NULL = 1,
    KIND_FALSE = 2,
    KIND_TRUE = 3,
    KIND_NUMBER = 4,
    KIND_DIGITS = 5,
    KIND_WRITTEN = 6,
    KIND_STRING = 7,
    KIND_ARRAY = 8,
    KIND_OBJECT = 9,
    KIND_CHOSEN = 10,
};

#define LEN_BITS 30
#define NO_NAME ((1u << LEN_BITS) - 1) /* in place of a name's length: an element, or the whole document */
static_assert(ONCE_JSON_MAX_BYTES <= 1u << LEN_BITS, "lengths inside a text, quotes excluded, fit below NO_NAME");

/* --- the state ---------------------------------------------------------------------------------------------------- */

static inline uint64_t fold(uint64_t x, uint64_t y)
{
    const __uint128_t product = (__uint128_t)x * y;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline once_hash start(uint64_t seed)
{
    return (once_hash){
        fold(seed ^ 0xA0761D6478BD642Fu, 0xE7037ED1A0B428DBu),
        fold(seed ^ 0x8EBC6AF09C88C6E3u, 0x589965CC75374CC3u),
    };
}

/* Keeps gcc from gathering both lanes in one vector register, only to take them apart again for the multiplication. */
#define IN_REGISTER(x) __asm__("" : "+r"(x))

static inline once_hash absorb(once_hash state, uint64_t x, uint64_t y)
{
    state.a ^= x;
    state.b ^= y;
    IN_REGISTER(state.a);
    IN_REGISTER(state.b);
    const __uint128_t product = (__uint128_t)state.a * state.b;
    return (once_hash){state.a ^ (uint64_t)product, state.b ^ (uint64_t)(product >> 64)};
}

static inline once_hash finish(once_hash state, uint32_t name_len, enum kind kind, uint64_t len)
{
    const uint64_t word = (uint64_t)kind << (2 * LEN_BITS) | (uint64_t)name_len << LEN_BITS | len;
    const uint64_t x = state.a ^ word ^ 0x1D8E4E27C47D124Fu;
    const __uint128_t product = (__uint128_t)x * (state.b ^ 0xEB44ACCAB455D165u);
    const uint64_t low = (uint64_t)product, high = (uint64_t)(product >> 64);
    /* a small change of x shows in one half of the product only, so both lanes take from both */
    return (once_hash){low ^ high, x ^ (low + (high << 32 | high >> 32))};
}

/* --- text --------------------------------------------------------------------------------------------------------- */

NOINLINE once_hash absorb_long(once_hash state, const char *p, size_t len, uint64_t seed)
{
    const XXH128_hash_t hash = XXH3_128bits_withSeed(p, len, seed);
    return absorb(state, hash.high64, hash.low64);
}

static inline once_hash absorb_text(once_hash state, once_bytes text, const char *limit, uint64_t seed)
{
    const char *p = text.data;
    size_t left = text.len;
    if (UNLIKELY(left > DIRECT_BYTES)) return absorb_long(state, p, left, seed);
    for (; left > BLOCK; p += BLOCK, left -= BLOCK) {
        state = absorb(state, once__json_load64(p), once__json_load64(p + 8));
    }
    if (!left) return state; /* only an empty text */
    uint64_t x, y;
    once__json_block(p, left, limit, &x, &y);
    return absorb(state, x, y);
}

/* Sets *len to the unescaped length. */
NOINLINE once_hash absorb_escaped(once_hash state, once_bytes raw, uint64_t seed, uint32_t *len)
{
    char chunk[512];
    const char *at = raw.data, *end = at + raw.len;
    size_t n = once__json_unescape(&at, end, chunk, sizeof(chunk));
    if (at == end) {
        *len = (uint32_t)n;
        return absorb_text(state, (once_bytes){chunk, n}, chunk + n, seed);
    }
    XXH3_state_t stream;
    XXH3_INITSTATE(&stream); /* the reset reads it */
    XXH3_128bits_reset_withSeed(&stream, seed);
    for (*len = 0;;) {
        *len += (uint32_t)n;
        XXH3_128bits_update(&stream, chunk, n);
        if (at == end) break;
        n = once__json_unescape(&at, end, chunk, sizeof(chunk));
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(&stream);
    return absorb(state, hash.high64, hash.low64);
}

/* --- items -------------------------------------------------------------------------------------------------------- */

/* These work on tokens, not on values, and are inlined: structs that travel through memory cost more than hashing. */

INLINE once_bytes raw_of(once_bytes text, const once_json_token *token)
{
    return (once_bytes){text.data + token->offset, token->len};
}

/* Absorbs a string or a name; *len becomes its unescaped length. */
INLINE once_hash absorb_string(once_hash state, once_bytes text, const once_json_token *token, uint64_t seed,
                               uint32_t *len)
{
    *len = token->len;
    if (UNLIKELY(token->escaped)) return absorb_escaped(state, raw_of(text, token), seed, len);
    return absorb_text(state, raw_of(text, token), text.data + text.len, seed);
}

/* More digits than a mantissa holds. */
NOINLINE once_hash finish_digits(once_hash state, uint32_t name_len, const once_decimal *d, uint64_t seed)
{
    XXH3_state_t stream;
    XXH3_INITSTATE(&stream); /* the reset reads it */
    XXH3_128bits_reset_withSeed(&stream, seed);
    XXH3_128bits_update(&stream, d->head.data, d->head.len);
    XXH3_128bits_update(&stream, d->tail.data, d->tail.len);
    const XXH128_hash_t hash = XXH3_128bits_digest(&stream);
    state = absorb(state, hash.high64, hash.low64);
    state = absorb(state, (uint64_t)d->exponent, d->negative);
    return finish(state, name_len, KIND_DIGITS, d->head.len + d->tail.len);
}

static uint64_t append_digits(uint64_t mantissa, once_bytes digits)
{
    for (size_t i = 0; i < digits.len; i++) mantissa = mantissa * 10 + (uint64_t)(digits.data[i] - '0');
    return mantissa;
}

/* Any number. */
NOINLINE once_hash finish_decimal(once_hash state, uint32_t name_len, once_bytes raw, uint64_t seed)
{
    once_decimal d;
    if (!once_json_decimal((once_json_value){.type = ONCE_JSON_REAL, .raw = raw}, &d)) {
        return finish(absorb_long(state, raw.data, raw.len, seed), name_len, KIND_WRITTEN, raw.len);
    }
    if (d.head.len + d.tail.len > MANTISSA_DIGITS) return finish_digits(state, name_len, &d, seed);
    const uint64_t mantissa = append_digits(append_digits(0, d.head), d.tail);
    return finish(absorb(state, mantissa, (uint64_t)d.exponent << 1 | d.negative), name_len, KIND_NUMBER, 0);
}

/* The common numbers, short ones without an exponent, with the same result. */
INLINE once_hash finish_number(once_hash state, uint32_t name_len, once_bytes raw, uint64_t seed)
{
    if (UNLIKELY(raw.len > MANTISSA_DIGITS)) return finish_decimal(state, name_len, raw, seed);
    const bool negative = raw.data[0] == '-';
    uint64_t mantissa = 0;
    int64_t exponent = 0, step = 0; /* step: -1 behind the point */
    for (size_t i = negative; i < raw.len; i++) {
        const unsigned digit = (unsigned)raw.data[i] - '0';
        if (LIKELY(digit < 10)) {
            mantissa = mantissa * 10 + digit;
            exponent += step;
        } else if (raw.data[i] == '.') {
            step = -1;
        } else {
            return finish_decimal(state, name_len, raw, seed);
        }
    }
    if (mantissa == 0) return finish(absorb(state, 0, 0), name_len, KIND_NUMBER, 0);
    for (; mantissa % 10 == 0; mantissa /= 10) exponent++;
    return finish(absorb(state, mantissa, (uint64_t)exponent << 1 | negative), name_len, KIND_NUMBER, 0);
}

INLINE once_hash finish_scalar(once_bytes text, once_hash state, uint32_t name_len, const once_json_token *token,
                               uint64_t seed)
{
    if (token->type == ONCE_JSON_STRING) { /* most are */
        uint32_t len;
        state = absorb_string(state, text, token, seed, &len);
        return finish(state, name_len, KIND_STRING, len);
    }
    switch ((once_json_type)token->type) {
    case ONCE_JSON_INTEGER:
    case ONCE_JSON_REAL: return finish_number(state, name_len, raw_of(text, token), seed);
    case ONCE_JSON_NULL: return finish(state, name_len, KIND_NULL, 0);
    case ONCE_JSON_FALSE: return finish(state, name_len, KIND_FALSE, 0);
    case ONCE_JSON_TRUE: return finish(state, name_len, KIND_TRUE, 0);
    case ONCE_JSON_ABSENT:
    case ONCE_JSON_STRING:
    case ONCE_JSON_ARRAY:
    case ONCE_JSON_OBJECT: break;
    }
    assert(false); /* not a scalar */
    return state;
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

/* A container whose items are being hashed; those around it wait in json->frames. */
struct level {
    once_hash state; /* what the container's own name left behind */
    uint32_t name_len;
    once_hash sum; /* of the items so far */
    uint32_t end, count;
    bool object;
};

INLINE struct level enter(const once_json_token *container, once_hash state, uint32_t name_len)
{
    const bool object = container->type == ONCE_JSON_OBJECT;
    return (struct level){
        .state = state,
        .name_len = name_len,
        .sum = object ? (once_hash){0, 0} : (once_hash){0x4B33A62ED433D4A3u, 0x4D5A2DA51DE1AA47u},
        .end = container->next,
        .object = object,
    };
}

/* The next item of the container is complete. */
INLINE void deliver(struct level *level, once_hash hash)
{
    level->count++;
    if (level->object) {
        level->sum.a += hash.a;
        level->sum.b += hash.b;
        IN_REGISTER(level->sum.a);
        IN_REGISTER(level->sum.b);
    } else {
        level->sum = absorb(level->sum, hash.a, hash.b);
    }
}

INLINE once_hash leave(const struct level *level)
{
    const once_hash state = absorb(level->state, level->sum.a, level->sum.b);
    return finish(state, level->name_len, level->object ? KIND_OBJECT : KIND_ARRAY, level->count);
}

static void save(struct once_json_frame *frame, const struct level *level)
{
    frame->end = level->end;
    frame->count = level->count;
    frame->object = level->object;
    frame->sum = level->sum;
    frame->name = level->state;
    frame->name_len = level->name_len;
}

static struct level restore(const struct once_json_frame *frame)
{
    return (struct level){
        .state = frame->name,
        .name_len = frame->name_len,
        .sum = frame->sum,
        .end = frame->end,
        .count = frame->count,
        .object = frame->object,
    };
}

INLINE void note_field(once_json_prints *to, once_hash hash)
{
    if (to->n < to->capacity) to->at[to->n] = (uint16_t)hash.a;
    to->n++;
}

/* Walks the tokens of a container in order, with an explicit stack: the frames that the parser reserved. `fields`:
 * NULL, or where the prints of its members go. */
static once_hash hash_container(once_json *json, once_hash state, uint32_t name_len, uint32_t container, uint64_t seed,
                                once_json_prints *fields)
{
    const once_json_token *tokens = json->tokens;
    const once_bytes text = json->text;
    const once_hash initial = start(seed);
    uint32_t depth = 0, at = container + 1;
    struct level level = enter(&tokens[container], state, name_len);
    for (;;) {
        while (level.end == at) {
            const once_hash hash = leave(&level);
            if (depth == 0) return hash;
            level = restore(&json->frames[--depth]);
            deliver(&level, hash);
            if (depth == 0 && fields) note_field(fields, hash);
        }
        state = initial;
        name_len = NO_NAME;
        if (level.object) state = absorb_string(initial, text, &tokens[at++], seed, &name_len);
        const once_json_token *token = &tokens[at++];
        if (token->type < ONCE_JSON_ARRAY) {
            const once_hash hash = finish_scalar(text, state, name_len, token, seed);
            deliver(&level, hash);
            if (depth == 0 && fields) note_field(fields, hash);
        } else {
            assert(depth < json->frames_capacity);
            save(&json->frames[depth++], &level);
            level = enter(token, state, name_len);
        }
    }
}

static once_hash hash_item(once_json *json, once_hash state, uint32_t name_len, once_json_value value, uint64_t seed)
{
    if (value.type == ONCE_JSON_ABSENT) return finish(state, name_len, KIND_ABSENT, 0);
    assert(value.token < json->count);
    const once_json_token *token = &json->tokens[value.token];
    if (token->type >= ONCE_JSON_ARRAY) return hash_container(json, state, name_len, value.token, seed, NULL);
    return finish_scalar(json->text, state, name_len, token, seed);
}

once_hash once_json_fingerprint(once_json *json, once_json_value value, uint64_t seed)
{
    return hash_item(json, start(seed), NO_NAME, value, seed);
}

once_hash once_json_fingerprint_fields(once_json *json, once_json_value value, uint64_t seed, once_json_prints *out)
{
    out->n = 0;
    if (value.type != ONCE_JSON_OBJECT) return once_json_fingerprint(json, value, seed);
    return hash_container(json, start(seed), NO_NAME, value.token, seed, out);
}

void once_json_choose(once_json_chosen *chosen, once_bytes name, once_json *json, once_json_value value)
{
    assert(name.len < NO_NAME);
    const once_hash state = absorb_text(start(chosen->seed), name, name.data + name.len, chosen->seed);
    const once_hash hash = hash_item(json, state, (uint32_t)name.len, value, chosen->seed);
    note_field(&chosen->prints, hash);
    chosen->sum.a += hash.a;
    chosen->sum.b += hash.b;
}

once_hash once_json_chosen_fingerprint(const once_json_chosen *chosen)
{
    const once_hash state = absorb(start(chosen->seed), chosen->sum.a, chosen->sum.b);
    return finish(state, NO_NAME, KIND_CHOSEN, chosen->prints.n);
}
