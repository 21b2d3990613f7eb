/* The idempotency key that an effect sends to the other side.
 *
 * It depends only on tenant, consumer, operation and key, so that it stays the same when a store is lost, flushed or
 * moved. It is the first 128 bits, as 32 hexadecimal digits, of
 *
 *     SHA-256 ( part(tenant) part(consumer) part(operation) part(key) )           or, with a salt,
 *     HMAC-SHA-256 ( salt, the same )
 *
 * where part(x) is the length of x in bytes as four bytes, big-endian, and then x itself. A key of more than 1024
 * bytes, of which stores keep only the SHA-256, is replaced by ff ff ff ff and the 32 bytes of its SHA-256.
 *
 * Entries and dead letters from before this rule (`old_key`) keep their old key for life: the hexadecimal digits of the
 * id, which depends on the secret of the store. once_outward_key is the one function that decides between the two.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_OUTWARD_H
#define ONCE_CORE_OUTWARD_H

#include "base/ascii.h"
#include "core/item.h"

#define ONCE_SALT_MIN 16u /* bytes of the shortest salt */

/* What keys are made with. The bytes of the salt belong to the owner of this struct. */
typedef struct once_keying {
    once_secret secret; /* of the store */
    once_bytes salt;    /* empty: none */
} once_keying;

/* Long enough, and not only white space, as in a file that was never filled in. */
static inline bool once_salt_fits(once_bytes salt)
{
    size_t blank = 0;
    while (blank < salt.len && once_ascii_is_space(salt.data[blank])) blank++;
    return salt.len >= ONCE_SALT_MIN && blank < salt.len;
}

typedef char once_outward[33]; /* with the NUL */

/* `key` as it is stored and shown (once_key_show). `id` of the entry, or zero for a dead letter without one. */
void once_outward_key(const once_keying *keying, const once_scope *scope, once_bytes key, once_hash id, bool old_key,
                      once_outward out);
/* The same for an item that runs. */
void once_item_outward_key(const once_keying *keying, const once_item *item, once_outward out);

/* What a store keeps of the salt, to notice when it changes: 32 digits that do not reveal it; "none" without one. */
void once_salt_digest(const once_keying *keying, once_outward out);

#endif
