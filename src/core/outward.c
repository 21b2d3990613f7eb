/* Idempotency keys (core/outward.h has the formula). The other side remembers these keys, so what this file computes
 * never changes. */
#include "core/outward.h"

#include <assert.h>
#include <stdio.h>

#include "base/banned.h"

/* Eight digits at a time: each callback gets such a key. */
static void put_word(uint32_t word, char *out)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t x = word; /* a digit in each byte, the first one in the highest */
    x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
    x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
    x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    x += '0' * ones + ((x + 6 * ones) >> 4 & ones) * ('a' - '0' - 10);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    memcpy(out, &x, sizeof x);
}

static void put_words(const uint32_t words[4], once_outward out)
{
    for (size_t i = 0; i < 4; i++) put_word(words[i], out + 8 * i);
    out[32] = 0;
}

static void put_hex(const unsigned char *bytes, once_outward out)
{
    uint32_t words[4];
    for (size_t i = 0; i < 4; i++)
        words[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 | (uint32_t)bytes[4 * i + 2] << 8 |
                   bytes[4 * i + 3];
    put_words(words, out);
}

static unsigned digit(char c) { return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* The digest of a key that looks like a long one as it is shown; false: it does not. */
static bool read_digest(once_bytes key, unsigned char out[32])
{
    if (!once_key_looks_long(key)) return false;
    for (size_t i = 0; i < 32; i++)
        out[i] = (unsigned char)(digit(key.data[7 + 2 * i]) << 4 | digit(key.data[8 + 2 * i]));
    return true;
}

/* Whether it was a long key. A short key may look like the text that a long one is shown as, but their ids differ.
 * Without an id it counts as long. */
static bool was_long(const once_keying *keying, const once_scope *scope, once_bytes key, once_hash id,
                     unsigned char digest[32])
{
    if (!read_digest(key, digest)) return false;
    return once_hash_is_zero(id) || once_hash_equal(id, once_long_key_id(keying->secret, scope, key));
}

static void old_outward_key(const once_keying *keying, const once_scope *scope, once_bytes key, once_hash id,
                            once_outward out)
{
    unsigned char digest[32];
    if (once_hash_is_zero(id))
        id = was_long(keying, scope, key, id, digest) ? once_long_key_id(keying->secret, scope, key)
                                                      : once_key_id(keying->secret, scope, key);
    snprintf(out, sizeof(once_outward), "%016llx%016llx", (unsigned long long)id.a, (unsigned long long)id.b);
}

static void add_length(once_sha256_state *to, uint32_t len)
{
    const unsigned char bytes[4] = {(unsigned char)(len >> 24), (unsigned char)(len >> 16), (unsigned char)(len >> 8),
                                    (unsigned char)len};
    once_sha256_add(to, bytes, sizeof bytes);
}

static void add_part(once_sha256_state *to, once_bytes part)
{
    assert(part.len < UINT32_MAX); /* that length marks a long key */
    add_length(to, (uint32_t)part.len);
    once_sha256_add(to, part.data, part.len);
}

static void add_all(once_sha256_state *to, const once_keying *keying, const once_scope *scope, once_bytes key,
                    once_hash id)
{
    unsigned char digest[32];
    add_part(to, scope->tenant);
    add_part(to, scope->consumer);
    add_part(to, scope->operation);
    if (was_long(keying, scope, key, id, digest)) {
        add_length(to, UINT32_MAX);
        once_sha256_add(to, digest, sizeof digest);
    } else {
        add_part(to, key);
    }
}

static size_t put_part(unsigned char *to, once_bytes part)
{
    const uint32_t len = (uint32_t)part.len;
    to[0] = to[1] = to[2] = 0;
    to[3] = (unsigned char)len;
    if (len) memcpy(to + 4, part.data, len);
    return 4 + part.len;
}

/* The usual case, without a salt and in one or two blocks, is put together where it is hashed. False: it is another. */
static bool short_outward_key(const once_scope *scope, once_bytes key, once_outward out)
{
    __attribute__((uninitialized)) unsigned char text[128];
    uint32_t sum[8];
    const size_t len = 16 + scope->tenant.len + scope->consumer.len + scope->operation.len + key.len;
    if (len > ONCE_SHA256_SHORT || once_key_looks_long(key)) return false;
    size_t at = put_part(text, scope->tenant);
    at += put_part(text + at, scope->consumer);
    at += put_part(text + at, scope->operation);
    at += put_part(text + at, key);
    assert(at == len);
    once_sha256_short(text, len, sum);
    put_words(sum, out);
    return true;
}

void once_outward_key(const once_keying *keying, const once_scope *scope, once_bytes key, once_hash id, bool old_key,
                      once_outward out)
{
    unsigned char sum[32];
    if (old_key) {
        old_outward_key(keying, scope, key, id, out);
        return;
    }
    if (keying->salt.len == 0 && short_outward_key(scope, key, out)) return;
    if (keying->salt.len) {
        once_hmac_state hmac;
        once_hmac_begin(&hmac, keying->salt.data, keying->salt.len);
        add_all(&hmac.inner, keying, scope, key, id);
        once_hmac_end(&hmac, sum);
    } else {
        once_sha256_state sha;
        once_sha256_begin(&sha);
        add_all(&sha, keying, scope, key, id);
        once_sha256_end(&sha, sum);
    }
    put_hex(sum, out);
}

void once_item_outward_key(const once_keying *keying, const once_item *item, once_outward out)
{
    once_outward_key(keying, &item->scope, item->request.key, item->request.id, item->decision.old_key, out);
}

void once_salt_digest(const once_keying *keying, once_outward out)
{
    unsigned char sum[32];
    once_hmac_state hmac;
    if (keying->salt.len == 0) {
        snprintf(out, sizeof(once_outward), "none");
        return;
    }
    once_hmac_begin(&hmac, &keying->secret, sizeof keying->secret);
    once_hmac_add(&hmac, "idempotency_salt", 16);
    once_hmac_add(&hmac, keying->salt.data, keying->salt.len);
    once_hmac_end(&hmac, sum);
    put_hex(sum, out);
}
