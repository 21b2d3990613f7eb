/* The idempotency key that an effect gives to the other side.
 *
 * It is made of tenant, consumer, operation and key alone, so that a store which is lost, flushed or moved does not
 * change it: the first 128 bits, as 32 hexadecimal digits, of
 *
 *     SHA-256 ( part(tenant) part(consumer) part(operation) part(key) )           or, with a salt,
 *     HMAC-SHA-256 ( salt, the same )
 *
 * where part(x) is the length of x in bytes as four bytes, big-endian, and x itself. A key of more than 1024 bytes, of
 * which stores keep the SHA-256 only, stands there as ff ff ff ff and the 32 bytes of its SHA-256.
 *
 * Entries and letters of stores from before this rule (`old_key`) keep for life the key that they had: the hexadecimal
 * digits of their id, which depends on the secret of the store. once_outward_key is the one function that decides which
 * it is. */
#ifndef ONCE_CORE_OUTWARD_H
#define ONCE_CORE_OUTWARD_H

#include "base/ascii.h"
#include "core/item.h"

#define ONCE_SALT_MIN 16u /* bytes */

/* What keys are made with; the bytes of the salt are the owner's. Zero: no salt. */
typedef struct once_keying {
    once_secret secret; /* of the store */
    once_bytes salt;    /* empty: none */
} once_keying;

/* Enough bytes, and not only white space: that would be a file which nobody has filled. */
static inline bool once_salt_fits(once_bytes salt)
{
    size_t blank = 0;
    while (blank < salt.len && once_ascii_is_space(salt.data[blank])) blank++;
    return salt.len >= ONCE_SALT_MIN && blank < salt.len;
}

typedef char once_outward[33]; /* with the NUL */

/* `key` as it is kept and shown (once_key_show). `id` of the entry, or zero for a letter without one. */
void once_outward_key(const once_keying *keying, const once_scope *scope, once_bytes key, once_hash id, bool old_key,
                      once_outward out);
/* Of an item that runs. */
void once_item_outward_key(const once_keying *keying, const once_item *item, once_outward out);

/* What a store may know of a salt, to notice another one: 32 digits that are of no use without the salt. "none" without
 * one. */
void once_salt_digest(const once_keying *keying, once_outward out);

#endif
