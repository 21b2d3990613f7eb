/* The record of a finished entry, or of a claim, in a blob of the sqlite store. It is small, because there are millions
 * of them.
 *
 *   size     varint    bytes that follow
 *   id       16        big-endian, so that bytes sort as hashes do
 *   head     1         low four bits: 0 for a tombstone; 13 for a claim; state - 4; or state + 4 when the entry keeps
 *                      an old idempotency key. High bits: 0x10 HAS_FINGERPRINT, 0x20 EARLY, 0x40 HAS_TEXT, 0x80
 *                      TEXT_APART
 *   keep     6         until when the record must be kept, in ms; all ones: without end. A tombstone ends here.
 *   expires  6         only with EARLY: the entry expires before the record may go
 *   token    16
 *   print    16        only with HAS_FINGERPRINT
 *   changed  6
 *   lived    varint    zigzag(changed - seen)
 *   attempt, failures, scope, place, run, who     varints; the last four are numbers of once_name
 *   point    varint + bytes
 *   claim    only of a claim: due (6), expires (6), remember, order and gap (varints, the last two zigzag), flags
 *            (varint; store/states.h), worker (varint, a number of once_name), key (varint + bytes)
 *   text     varint + bytes, only with HAS_TEXT: size of the result (varint), result, size of the reason (varint),
 *            reason, history. With TEXT_APART only the size is here, and the bytes are in the blob of tails, in the
 *            order of the records.
 *   fields   the rest, only with HAS_FINGERPRINT: two bytes for each field that it covers (core/fields.h)
 *
 * Claims exist since version 6 of the tables. Records of older versions are still read, and disappear by merging with
 * time. In version 4 the head has state + 4. In versions 2 and 3 it has the state alone, and the record has no who, no
 * size of the reason and no history. None of the records up to version 4 has fields, and all of them keep old
 * idempotency keys.
 *
 * A typical record of a file source takes 77 bytes, and two for each field of its content. Tails are apart because a
 * lookup reads all records of its bucket, and must not read sixteen results of 64 KiB with them. */
#ifndef ONCE_STORE_SQLITE_RECORD_H
#define ONCE_STORE_SQLITE_RECORD_H

#include "base/buf.h"
#include "core/entry.h"

typedef struct once_record {
    once_hash id;
    once_state state; /* finished; CLAIMED; or ABSENT for a tombstone: "older records of this id do not count" */
    once_token token;
    once_hash fingerprint;
    once_fields fields; /* empty without a fingerprint */
    uint32_t attempt, failures;
    bool old_key;
    int64_t seen_ms, changed_ms, expires_ms;
    /* > 0. >= that of every older record of this id that may still be around, and, unless it is a claim, >= expires_ms.
     * A claim is kept until another record of its id comes, whatever the time. */
    int64_t keep_ms;
    uint64_t scope, place, run;
    uint64_t who; /* 0: unknown */
    once_bytes point, result, reason, history;

    /* Of a claim; zero otherwise. It has no message, lane, result, reason and history. */
    int64_t due_ms, remember_ms, order, gap_ms;
    unsigned flags;
    uint64_t worker; /* 0: unknown */
    once_bytes key;
} once_record;

/* The position of a record, found without reading all of it. Offsets, because buffers move. */
typedef struct once_record_ref {
    once_hash id;
    int64_t keep_ms;
    size_t at, len;           /* in the blob of records, its size field included */
    size_t tail_at, tail_len; /* in the blob of tails */
    bool tombstone, claim;
} once_record_ref;

/* Appends a record and sets `ref` to its position; false: out of memory. */
bool once__record_write(const once_record *record, once_buf *records, once_buf *tails, once_record_ref *ref);

/* Finds the position of the record at records[at]; tail_at must be the sum of the tail lengths before it. False: the
 * record is damaged. */
bool once__record_look(once_bytes records, size_t at, size_t tail_at, once_record_ref *ref);

/* Reads one record whose tail (if it has one) is `tail`. Bytes point into the blobs. False: the record is damaged. */
bool once__record_read(once_bytes records, const once_record_ref *ref, once_bytes tail, once_record *out);

void once__id_write(once_hash id, unsigned char out[16]);
once_hash once__id_read(const unsigned char in[16]);

#endif
