/* What stands in the values of a Redis store. Readers trust nothing: every size is checked.
 *
 *   finished entry   F, state (1), expires (6), token (16), changed (6), flags (1), [fingerprint (16)], lived (zigzag
 *   varint),
 *                    attempt, failures (varints), scope name (8), origin name (8), point (varint + bytes),
 *                    [result (varint + bytes), reason (varint + bytes)], [history (varint + bytes)],
 *                    the rest, only with a fingerprint: two bytes for each field that it covers (core/fields.h)
 *   open entry       O, stamp (8), state (1; 128: block, 16: a new idempotency key), flags (1), then all fields of
 *   once_entry; claimed, waiting, unknown and dead. Bit 32 of its failures: lookup.
 *                    The rest: two bytes for each field that the fingerprint covers
 *   lane             N, or M when it has a record; stamp (8), whether it has a version (1), version (8), expires (8),
 *                    [record (varint + bytes; lane_record.h)], ids of those that occupy it (16 each)
 *   letter           L, unique (16), then all fields of once_letter but its id
 *   audit            A, then all fields of once_audit
 *   name             a scope (tenant, consumer, operation), or an origin (run, place, who saw it first), each text
 *                    varint + bytes
 *
 * Numbers are little-endian, ids big-endian so that bytes sort as hashes do. A stamp is random and new with every
 * commit that writes the value: an equal stamp means that nobody was there. A finished entry has none, because there
 * are millions of them; the whole value stands for it.
 *
 * Names keep a finished entry small: what very many entries share is kept once, in a hash of the store, under 8 bytes
 * of a keyed hash of itself. So two processes that meet the same name write the same thing and need not agree on a
 * number. */
#ifndef ONCE_STORE_REDIS_RECORD_H
#define ONCE_STORE_REDIS_RECORD_H

#include "base/buf.h"
#include "store/store.h"

typedef struct once_redis_finished {
    uint64_t scope, origin; /* names */
} once_redis_finished;

typedef struct once_redis_lane_record {
    uint64_t stamp;
    bool has_version;
    int64_t version, expires_ms;
    once_bytes kept;              /* lane_record.h */
    const unsigned char *claimed; /* n ids */
    size_t n_claimed;
} once_redis_lane_record;

enum { ONCE_REDIS_STAMPED = 9 };      /* bytes that hold kind and stamp */
enum { ONCE_REDIS_LETTER_HEAD = 33 }; /* bytes of a letter that change whenever it does */
/* And of an open entry state and flags (2), three ids, attempt and failures. Every open entry is longer. */
enum { ONCE_REDIS_HEAD = ONCE_REDIS_STAMPED + 2 + 3 * 16 + 2 * 10 };

/* The beginning of an open entry. */
typedef struct once_redis_open_head {
    uint64_t stamp;
    once_state state;
    bool hold, has_message, lookup;
} once_redis_open_head;

void once__redis_id_write(once_hash id, unsigned char out[16]);
once_hash once__redis_id_read(const void *in);

void once__redis_group_write(int64_t due_ms, uint64_t stamp, unsigned char out[16]);
int64_t once__redis_group_due(const void *group);
uint64_t once__redis_group_stamp(const void *group);

/* All writers append; a failure shows in the buffer. */
void once__redis_write_finished(once_buf *to, const once_entry *entry, once_redis_finished names);
void once__redis_write_open(once_buf *to, const once_entry *entry, uint64_t stamp);
void once__redis_write_lane(once_buf *to, const once_redis_lane_record *lane);
void once__redis_write_letter(once_buf *to, const once_letter *letter, once_hash unique);
void once__redis_write_audit(once_buf *to, const once_audit *audit);
void once__redis_write_scope(once_buf *to, const once_scope *scope);
void once__redis_write_origin(once_buf *to, once_bytes place, uint64_t run, once_bytes who);

/* False: damaged. Bytes point into `value`. Of a finished entry scope, place, run and who are set by whoever knows the
 * names. */
bool once__redis_is_finished(once_bytes value);
bool once__redis_read_entry(once_bytes value, once_hash id, once_entry *out, once_redis_finished *names);
bool once__redis_read_head(once_bytes value, once_redis_open_head *out); /* false: it is not that of an open entry */
bool once__redis_read_lane(once_bytes value, once_redis_lane_record *out);
bool once__redis_read_letter(once_bytes value, uint64_t id, once_letter *out, once_hash *unique);
bool once__redis_read_letter_scope(
    once_bytes begin, once_scope *out); /* of its first bytes; false: there are too few, or it is damaged */
bool once__redis_read_audit(once_bytes value, once_audit *out);
bool once__redis_read_scope(once_bytes value, once_scope *out);
bool once__redis_read_origin(once_bytes value, once_bytes *place, uint64_t *run, once_bytes *who);

#endif
