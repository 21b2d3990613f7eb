/* SipHash-2-4 with 128 bits (Aumasson and Bernstein), SHA-256 (FIPS 180-4) and its HMAC, XXH3-128 (libxxhash). The
 * numbers are the same on every machine: they are stored. */
#include "base/hash.h"

#include <assert.h>
#include <stdatomic.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#define XXH_INLINE_ALL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <xxhash.h>
#pragma GCC diagnostic pop

#include "base/hash_block.h"

#include "base/banned.h"

static uint64_t load_le64(const unsigned char *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint64_t rotate_left(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

typedef struct sip_state {
    uint64_t v0, v1, v2, v3;
} sip_state;

static inline __attribute__((always_inline)) void sip_rounds(sip_state *s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v1 = rotate_left(s->v1, 13) ^ s->v0;
        s->v0 = rotate_left(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotate_left(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotate_left(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotate_left(s->v1, 17) ^ s->v2;
        s->v2 = rotate_left(s->v2, 32);
    }
}

static inline __attribute__((always_inline)) void sip_word(sip_state *s, uint64_t word)
{
    s->v3 ^= word;
    sip_rounds(s, 2);
    s->v0 ^= word;
}

once_hash once_siphash128(once_secret secret, const void *data, size_t len)
{
    assert(data || len == 0);
    sip_state s = {
        .v0 = secret.k0 ^ UINT64_C(0x736f6d6570736575),
        .v1 = secret.k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
        .v2 = secret.k0 ^ UINT64_C(0x6c7967656e657261),
        .v3 = secret.k1 ^ UINT64_C(0x7465646279746573),
    };
    const unsigned char *at = data;
    size_t left = len;
    for (; left >= 8; at += 8, left -= 8) sip_word(&s, load_le64(at));

    uint64_t last = (uint64_t)(len & 0xff) << 56;
    for (size_t i = 0; i < left; i++) last |= (uint64_t)at[i] << (8 * i);
    sip_word(&s, last);

    once_hash hash;
    s.v2 ^= 0xee;
    sip_rounds(&s, 4);
    hash.a = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    sip_rounds(&s, 4);
    hash.b = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return hash;
}

once_hash once_xxh128(uint64_t seed, const void *data, size_t len)
{
    assert(data || len == 0);
    XXH128_hash_t hash = XXH3_128bits_withSeed(data ? data : "", len, seed);
    return (once_hash){hash.high64, hash.low64}; /* high first, as the canonical text form */
}

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static uint32_t load_be32(const unsigned char *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

void once__sha256_block_plain(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++) w[i] = load_be32(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + sha_k[i] + w[i];
        uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

#ifdef __x86_64__
/* The same with the SHA instructions of the CPU. They keep the state as (a, b, e, f) and (c, d, g, h), from the highest
 * word down, and do two rounds each. */
__attribute__((target("sha,sse4.1,ssse3"))) static void sha_block_x86(uint32_t state[8], const unsigned char *block)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i *from = (const __m128i *)(const void *)block, *k = (const __m128i *)(const void *)sha_k;
    __m128i w[4];
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    const __m128i abef_before = abef, cdgh_before = cdgh;
    for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128(from + i), big_endian);
#pragma GCC unroll 16 /* so that the words stay in registers: each step would wait for memory otherwise */
    for (int i = 0; i < 16; i++) {
        const __m128i now = w[i % 4], last = w[(i + 3) % 4], add = _mm_add_epi32(now, _mm_loadu_si128(k + i));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, add);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(add, 0x0e));
        const __m128i sum =
            _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        w[i % 4] = _mm_sha256msg2_epu32(sum, last);
    }
    uint32_t high[4], low[4];
    _mm_storeu_si128((__m128i *)(void *)high, _mm_add_epi32(abef, abef_before));
    _mm_storeu_si128((__m128i *)(void *)low, _mm_add_epi32(cdgh, cdgh_before));
    const uint32_t out[8] = {high[3], high[2], low[3], low[2], high[1], high[0], low[1], low[0]};
    memcpy(state, out, sizeof out);
}

/* Asked once: the instruction that tells is slow in a virtual machine. */
static bool has_sha_instructions(void)
{
    static _Atomic(int) known; /* 0: not asked yet; 1: no; 2: yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        unsigned a, b, c, d, sse;
        const bool sse41 = __get_cpuid(1, &a, &b, &sse, &d) && sse & bit_SSE4_1 && sse & bit_SSSE3;
        answer = sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA ? 2 : 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

void once__sha256_block(uint32_t state[8], const unsigned char *block)
{
    if (has_sha_instructions()) sha_block_x86(state, block);
    else once__sha256_block_plain(state, block);
}
#else
void once__sha256_block(uint32_t state[8], const unsigned char *block) { once__sha256_block_plain(state, block); }
#endif

#define SHA_START                                                                                                      \
    {                                                                                                                  \
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19                 \
    }

void once_sha256_begin(once_sha256_state *s) { *s = (once_sha256_state){.h = SHA_START}; }

void once_sha256_add(once_sha256_state *s, const void *data, size_t len)
{
    assert(data || len == 0);
    if (len == 0) return;
    const unsigned char *at = data;
    const size_t kept = s->len % 64;
    s->len += len;
    if (kept) {
        const size_t fits = 64 - kept < len ? 64 - kept : len;
        memcpy(s->rest + kept, at, fits);
        if (kept + fits < 64) return;
        once__sha256_block(s->h, s->rest);
        at += fits;
        len -= fits;
    }
    for (; len >= 64; at += 64, len -= 64) once__sha256_block(s->h, at);
    if (len) memcpy(s->rest, at, len);
}

void once_sha256_end(once_sha256_state *s, unsigned char out[32])
{
    assert(out);
    const size_t left = s->len % 64;
    unsigned char tail[128] = {0}; /* the rest, a 1 bit, zeros, the length in bits */
    const size_t tail_len = left < 56 ? 64 : 128;
    memcpy(tail, s->rest, left);
    tail[left] = 0x80;
    const uint64_t bits = s->len * 8;
    for (size_t i = 0; i < 8; i++) tail[tail_len - 1 - i] = (unsigned char)(bits >> (8 * i));
    once__sha256_block(s->h, tail);
    if (tail_len == 128) once__sha256_block(s->h, tail + 64);

    for (int i = 0; i < 8; i++) {
        out[4 * i] = (unsigned char)(s->h[i] >> 24);
        out[4 * i + 1] = (unsigned char)(s->h[i] >> 16);
        out[4 * i + 2] = (unsigned char)(s->h[i] >> 8);
        out[4 * i + 3] = (unsigned char)s->h[i];
    }
}

void once_sha256_short(unsigned char text[128], size_t len, uint32_t out[8])
{
    assert(len <= ONCE_SHA256_SHORT);
    static const uint32_t start[8] = SHA_START;
    const size_t padded = len < 56 ? 64 : 128;
    text[len] = 0x80;
    memset(text + len + 1, 0, padded - 3 - len);
    text[padded - 2] = (unsigned char)(len >> 5); /* the length in bits */
    text[padded - 1] = (unsigned char)(len << 3);
    memcpy(out, start, sizeof start);
    once__sha256_block(out, text);
    if (padded == 128) once__sha256_block(out, text + 64);
}

void once_sha256(const void *data, size_t len, unsigned char out[32])
{
    once_sha256_state state;
    once_sha256_begin(&state);
    once_sha256_add(&state, data, len);
    once_sha256_end(&state, out);
}

/* --- HMAC (RFC 2104) --- */

static void hmac_pad(once_sha256_state *s, const unsigned char key[64], unsigned char with)
{
    unsigned char block[64];
    for (size_t i = 0; i < sizeof block; i++) block[i] = key[i] ^ with;
    once_sha256_begin(s);
    once_sha256_add(s, block, sizeof block);
    explicit_bzero(block, sizeof block);
}

void once_hmac_begin(once_hmac_state *s, const void *key, size_t len)
{
    unsigned char block[64] = {0};
    if (len > sizeof block) once_sha256(key, len, block);
    else if (len) memcpy(block, key, len);
    hmac_pad(&s->inner, block, 0x36);
    hmac_pad(&s->outer, block, 0x5c);
    explicit_bzero(block, sizeof block);
}

void once_hmac_add(once_hmac_state *s, const void *data, size_t len) { once_sha256_add(&s->inner, data, len); }

void once_hmac_end(once_hmac_state *s, unsigned char out[32])
{
    once_sha256_end(&s->inner, out);
    once_sha256_add(&s->outer, out, 32);
    once_sha256_end(&s->outer, out);
}
