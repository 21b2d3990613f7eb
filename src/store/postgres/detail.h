/* The layout of a finished entry in a row of once_entry. It is small, because there are millions of them.
 *
 *   expires_ms           when it is forgotten; never: changed_ms + 2^62
 *   token, fingerprint   NULL: none
 *   detail, in this order; numbers are varints (7 bits in a byte, lowest first), "zigzag" is a signed one
 *     fields    only with fields: 1 byte, the number of fields that the fingerprint covers less 1 in the upper four
 *               bits, 0 in the lower ones (a head never has 0 there); then two bytes for each (core/fields.h)
 *     head      1 byte: the state in four bits, plus 4 unless the entry keeps an old idempotency key; then flags:
 *               16 FIRST (attempt 1, no failures), 32 AT_ONCE (changed when it was seen), 64 TEXT (there is a result, a
 *               reason or a history), 128 MS
 *     kept      expires_ms - changed_ms in seconds, with MS in milliseconds; 0: never expires
 *     lived     without AT_ONCE: changed_ms - seen_ms (zigzag)
 *     attempt, failures        without FIRST
 *     scope, place, run, who   numbers of rows of once_name
 *     point     with TEXT a length and bytes, else the rest of the detail
 *     result, reason           with TEXT: a length and bytes each
 *     history   with TEXT: the rest of the detail
 *
 * The detail does not depend on the time of writing, so a row can be sent before the server has said what time it is. A
 * typical detail has 13 bytes, and 11 more for the fields of a message that has five. */
#ifndef ONCE_STORE_POSTGRES_DETAIL_H
#define ONCE_STORE_POSTGRES_DETAIL_H

#include "base/buf.h"
#include "core/entry.h"

typedef struct once_pg_names_of {
    int32_t scope, place, run, who;
} once_pg_names_of;

/* Writes the detail. The column expires_ms is changed_ms + *kept_ms. False: memory is out. */
bool once__pg_detail_write(const once_entry *entry, once_pg_names_of names, once_buf *out, int64_t *kept_ms);
/* Reads fields, state, times, counts, point, result, reason and history from the detail and from the column expires_ms.
 * Bytes point into `detail`. False: it is damaged. */
bool once__pg_detail_read(once_bytes detail, int64_t expires_ms, once_entry *entry, once_pg_names_of *names);

#endif
