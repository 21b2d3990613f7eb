/* The ids of keys and lanes (core/key_id.h).
 *
 * What is hashed: one byte for the kind ('K' key, 'H' long key, 'L' lane; other case if the parts are hashed first),
 * then for each part its length (4 bytes, in the order of this host) and its bytes. Stores keep these ids, so this
 * layout never changes. */
#include "core/key_id.h"

#include <assert.h>

#include "base/banned.h"

/* The length before each part makes two different lists different inputs, whatever bytes they contain. Small inputs are
 * hashed at once from the stack. Of larger ones (only the C API has such keys) each part is hashed, and then the hashes
 * together. */
static once_hash identity(once_secret secret, char what, const once_bytes *parts, size_t n)
{
    __attribute__((uninitialized)) unsigned char text[1600]; /* zeroing it would cost more than the hash */
    size_t at = 0, total = 1;
    for (size_t i = 0; i < n; i++) total += 4 + parts[i].len;

    once_hash hashes[4];
    assert(n <= sizeof hashes / sizeof *hashes);
    const bool direct = total <= sizeof text;
    text[at++] = (unsigned char)(direct ? what : what ^ 0x20);
    for (size_t i = 0; i < n; i++) {
        const uint32_t len = (uint32_t)parts[i].len;
        const void *data = parts[i].data;
        size_t size = len;
        if (!direct) {
            hashes[i] = once_siphash128(secret, data, parts[i].len);
            data = &hashes[i];
            size = sizeof hashes[i];
        }
        memcpy(text + at, &len, 4);
        if (size) memcpy(text + at + 4, data, size);
        at += 4 + size;
    }
    assert(at <= sizeof text);
    return once_siphash128(secret, text, at);
}

enum { SHOWN_LONG = 71 }; /* "sha256:" and 64 digits */

static void show_long(once_bytes key, char out[SHOWN_LONG])
{
    assert(key.len > ONCE_KEY_MAX);
    static const char hex[] = "0123456789abcdef";
    unsigned char digest[32];
    once_sha256(key.data, key.len, digest);
    memcpy(out, "sha256:", 7);
    for (size_t i = 0; i < sizeof digest; i++) {
        out[7 + 2 * i] = hex[digest[i] >> 4];
        out[8 + 2 * i] = hex[digest[i] & 15];
    }
}

bool once_key_looks_long(once_bytes shown)
{
    if (shown.len != SHOWN_LONG || memcmp(shown.data, "sha256:", 7) != 0) return false;
    for (size_t i = 7; i < shown.len; i++)
        if (!((shown.data[i] >= '0' && shown.data[i] <= '9') || (shown.data[i] >= 'a' && shown.data[i] <= 'f')))
            return false;
    return true;
}

once_hash once_long_key_id(once_secret secret, const once_scope *scope, once_bytes shown)
{
    return identity(secret, 'H', (const once_bytes[]){scope->tenant, scope->consumer, scope->operation, shown}, 4);
}

once_hash once_key_id(once_secret secret, const once_scope *scope, once_bytes key)
{
    if (key.len > ONCE_KEY_MAX) {
        char shown[SHOWN_LONG];
        show_long(key, shown);
        return once_long_key_id(secret, scope, (once_bytes){shown, sizeof shown});
    }
    return identity(secret, 'K', (const once_bytes[]){scope->tenant, scope->consumer, scope->operation, key}, 4);
}

bool once_key_show(once_arena *arena, once_bytes key, once_bytes *out)
{
    if (key.len <= ONCE_KEY_MAX) {
        *out = key;
        return true;
    }
    char shown[SHOWN_LONG];
    show_long(key, shown);
    return once_arena_copy(arena, (once_bytes){shown, sizeof shown}, out);
}

once_hash once_lane_id(once_secret secret, const once_scope *scope, once_bytes lane)
{
    return identity(secret, 'L', (const once_bytes[]){scope->tenant, scope->consumer, lane}, 3);
}
