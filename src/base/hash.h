/* Hashes, by what they are for.
 *
 * Identity (entries, lanes): SipHash-2-4 with 128 bits of output under a secret of the store. Nobody without the secret
 * can construct two keys that collide, and by chance it happens once in 2^64 keys, so an identity stands for its key.
 * Change detection (fingerprints): XXH3-128 with the store's seed.
 * Long keys: SHA-256, no secret, because the replaced key is what users see. */
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

#endif
