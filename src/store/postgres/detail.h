/* How a finished entry looks in a row of once_entry. Made small, because there are millions of them.
 *
 *   expires_ms  when it is forgotten; for ever: changed_ms + 2^62
 *   token, fingerprint   NULL when there is none
 *   detail      fields    only when there are some: 1 byte, the number of fields that the fingerprint covers less 1 in
 *               the upper four bits, 0 in
 *                         the lower ones, where a head has none; two bytes for each (core/fields.h)
 *               head      1 byte: the state in four bits, 4 more unless it keeps an old idempotency key; then FIRST
 *                         (attempt 1, no failures), AT_ONCE (seen when changed), TEXT (there is a result, a reason or a
 *                         history), MS
 *               kept      varint: expires - changed in seconds, with MS in milliseconds; 0: for ever
 *               lived     varint, without AT_ONCE: zigzag(changed - seen)
 *               attempt, failures   varints, without FIRST
 *               scope, place, run, who   varints: numbers of once_name
 *               point     with TEXT a varint before it, else up to the end
 *               result    with TEXT: varint and bytes
 *               reason    with TEXT: varint and bytes
 *               history   with TEXT: up to the end
 *
 * So the detail does not depend on the time at which it is written, and a row can be sent before the server has said
 * what time it is. A typical one takes 13 bytes, and 11 more for the fields of a message that has five. */
#ifndef ONCE_STORE_POSTGRES_DETAIL_H
#define ONCE_STORE_POSTGRES_DETAIL_H

#include "base/buf.h"
#include "core/entry.h"

typedef struct once_pg_names_of {
    int32_t scope, place, run, who;
} once_pg_names_of;

/* Writes the detail; *kept_ms is what must be added to changed_ms for the column expires_ms. */
bool once__pg_detail_write(const once_entry *entry, once_pg_names_of names, once_buf *out, int64_t *kept_ms);
/* Fills fields, state, times, counts, point, result, reason, history and expires_ms, the column's value being in
 * `expires_ms`. Bytes point into `detail`. False: damaged. */
bool once__pg_detail_read(once_bytes detail, int64_t expires_ms, once_entry *entry, once_pg_names_of *names);

#endif
