/* Hashes, by what they are for.
 *
 *   ids (entries, lanes)   SipHash-2-4 with 128 bits under a secret of the store. Without the secret nobody can make
 *                          two keys that collide, and by chance it takes about 2^64 keys; so an id stands for its key
 *   change detection       XXH3-128 with the store's seed (fingerprints) long keys              SHA-256 without a
 *   secret, because users see the result instead of the key idempotency keys       SHA-256, or HMAC-SHA-256 under a
 *   salt of the user; never under the secret of the store, which
 *                          can be lost
 *
 * Stores keep these values: they are the same on every machine and never change.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_BASE_HASH_H
#define ONCE_BASE_HASH_H

#include <stdint.h>
#include <string.h>

#include "once/types.h"

typedef struct once_hash {
    uint64_t a, b; /* a sorts first */
} once_hash;

typedef struct once_secret {
    uint64_t k0, k1;
} once_secret;

static inline bool once_hash_equal(once_hash x, once_hash y) { return x.a == y.a && x.b == y.b; }
static inline bool once_hash_is_zero(once_hash x) { return (x.a | x.b) == 0; }
static inline int once_hash_compare(once_hash x, once_hash y)
{
    if (x.a != y.a) return x.a < y.a ? -1 : 1;
    return x.b == y.b ? 0 : x.b < y.b ? -1 : 1;
}

once_hash once_siphash128(once_secret secret, const void *data, size_t len);
once_hash once_xxh128(uint64_t seed, const void *data, size_t len);
void once_sha256(const void *data, size_t len, unsigned char out[32]);

/* The same for a text in memory that may be changed: its padding is written behind it. `out`: the words of the hash. */
#define ONCE_SHA256_SHORT 119u /* bytes at most: with the padding they are two blocks */
void once_sha256_short(unsigned char text[128], size_t len, uint32_t out[8]);

/* SHA-256 in pieces: begin, add any number of times, end. */
typedef struct once_sha256_state {
    uint32_t h[8];
    uint64_t len; /* bytes so far */
    unsigned char rest[64];
} once_sha256_state;

void once_sha256_begin(once_sha256_state *state);
void once_sha256_add(once_sha256_state *state, const void *data, size_t len);
void once_sha256_end(once_sha256_state *state, unsigned char out[32]);

/* HMAC-SHA-256 in pieces. */
typedef struct once_hmac_state {
    once_sha256_state inner, outer;
} once_hmac_state;

void once_hmac_begin(once_hmac_state *state, const void *key, size_t len);
void once_hmac_add(once_hmac_state *state, const void *data, size_t len);
void once_hmac_end(once_hmac_state *state, unsigned char out[32]);

#endif
