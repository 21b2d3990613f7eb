/* How a finished entry looks in a blob of the sqlite store. Made small, because there are millions of them.
 *
 *   size     varint    bytes that follow
 *   id       16        big-endian, so that bytes sort as hashes do
 *   head     1         low four bits: 0 for a tombstone, else the state - 4, or, when it keeps an old idempotency key,
 *            the
 *                      state + 4; then HAS_FINGERPRINT, EARLY, HAS_TEXT, TEXT_APART
 *   keep     6         until when the record must be kept, in ms; all ones: for ever. A tombstone ends here.
 *   expires  6         only with EARLY: the entry expires before the record may go
 *   token    16
 *   print    16        only with HAS_FINGERPRINT
 *   changed  6
 *   lived    varint    zigzag(changed - seen)
 *   attempt, failures, scope, place, run, who     varints; the last four are numbers of once_name
 *   point    varint + bytes
 *   text     varint + bytes, only with HAS_TEXT: size of the result (varint), result, size of the reason (varint),
 *            reason, history. With TEXT_APART only the size stands here and the bytes are in the blob of tails, in the
 *            order of the records.
 *   fields   the rest, only with HAS_FINGERPRINT: two bytes for each field that it covers (core/fields.h)
 *
 * Records of version 4 of the tables say the state + 4. Those of versions 2 and 3 say the state alone, and have no who,
 * no size of the reason and no history. None of these has fields. All of them keep old idempotency keys. They are read,
 * and disappear by merging with time.
 *
 * A typical record of a file source takes 77 bytes, and two for each field of its content. Why tails: a lookup reads
 * the records of its bucket, and must not read sixteen results of 64 KiB with them. */
#ifndef ONCE_STORE_SQLITE_RECORD_H
#define ONCE_STORE_SQLITE_RECORD_H

#include "base/buf.h"
#include "core/entry.h"

typedef struct once_record {
    once_hash id;
    once_state state; /* finished, or ABSENT for a tombstone: "forgotten; older records of this id do not count" */
    once_token token;
    once_hash fingerprint;
    once_fields fields; /* none without a fingerprint */
    uint32_t attempt, failures;
    bool old_key;
    int64_t seen_ms, changed_ms, expires_ms;
    int64_t keep_ms; /* >= expires_ms, and >= that of every older record of this id that may still be around */
    uint64_t scope, place, run;
    uint64_t who; /* 0: not known */
    once_bytes point, result, reason, history;
} once_record;

/* Where a record is, without reading all of it. Offsets, because buffers move. */
typedef struct once_record_ref {
    once_hash id;
    int64_t keep_ms;
    size_t at, len;           /* in the records, the size in front included */
    size_t tail_at, tail_len; /* in the tails */
    bool tombstone;
} once_record_ref;

/* Appends; false when memory is out. `ref` says where it went. */
bool once__record_write(const once_record *record, once_buf *records, once_buf *tails, once_record_ref *ref);

/* Looks at the record at records[at]; tail_at must be the sum of the tail lengths before it. False: damaged. */
bool once__record_look(once_bytes records, size_t at, size_t tail_at, once_record_ref *ref);

/* Reads one record whose tail (if it has one) is `tail`. Bytes point into the blobs. False: damaged. */
bool once__record_read(once_bytes records, const once_record_ref *ref, once_bytes tail, once_record *out);

void once__id_write(once_hash id, unsigned char out[16]);
once_hash once__id_read(const unsigned char in[16]);

#endif
