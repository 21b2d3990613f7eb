/* The values of a Redis store: how each is laid out in bytes, and functions that write and read them.
 *
 * A size in bytes stands in parentheses. Numbers with a size are little-endian, numbers without one are varints (7 bits
 * in a byte, lowest first), "zigzag" is a signed varint. Ids and tokens are 16 bytes, big-endian, so that their bytes
 * sort as the hashes do. A text is a varint, its length, and its bytes. What stands in [ ] may be missing. The first
 * byte is the kind of the value:
 *
 *   'F'  finished entry   state (1), expires_ms (6; all bits set: never), token, changed_ms (6), flags (1),
 *                         [fingerprint (16)], changed_ms - seen_ms (zigzag), attempt, failures, scope name (8), origin
 *                         name (8), point (text), [result, reason (texts)], [history (text)], [fields (2 each)]
 *                         flags: 1 fingerprint and fields, 2 result and reason, 4 history, 8 new idempotency key
 *   'O'  open entry       stamp (8), state (1), flags (1), token, fingerprint, lane (16 each), attempt, failures, run
 *                         (8), order, gap_ms, remember_ms, seen_ms, changed_ms, due_ms, expires_ms (8 each), tenant,
 *                         consumer, operation, key, place, point, result, reason, who, worker, history (texts),
 *                         [message], failing_ms (8), fields (2 each). Values of format 1 end before failing_ms
 *                         state: a once_state below DONE; +128 block, +16 new idempotency key
 *                         flags: 1 versioned, 2 gap, 4 hold, 8 natural, 16 unreported, 32 message, 64 maybe, 128 fixed
 *                         failures: +2^32 lookup
 *   'N'  lane             stamp (8), has a version (1), version (8), expires_ms (8), ids of the entries that occupy it
 *   'M'  lane             the same with a record (text; lane_record.h) before the ids
 *   'M'  dead letter      what makes it unique (16), count (8), last_ms (8), entry (16), kind (1), attempt, failures,
 *                         seen_ms, buried_ms (8 each), tenant, consumer, operation, key, reason, history (texts),
 *                         message
 *   'L'  dead letter      of format 1: the same without count and last_ms
 *   'A'  audit record     time_ms (8), letter (8), consumer, who, what, key, note (texts), [body (text)]
 *   'S'  name of a scope  tenant, consumer, operation (texts)
 *   'P'  name of an origin   run (8), place (text), who saw the message first (text)
 *
 *   message: body, headers, type, place, point (texts), sent_ms (8)
 *   fields:  two bytes for each field that the fingerprint covers (core/fields.h)
 *
 * A stamp is random, and new in every commit that writes the value: an equal stamp means that nobody has written it
 * since. Finished entries have no stamp, because there are millions of them. They are compared as a whole.
 *
 * A name keeps finished entries small: what very many entries share is stored once, in the hash {NAME}n, under 8 bytes
 * of a keyed hash of the name. Two processes that meet the same name write the same field, and need no common counter.
 *
 * Readers trust nothing: every length is checked, and a value that does not fit is damaged, never empty. */
#ifndef ONCE_STORE_REDIS_RECORD_H
#define ONCE_STORE_REDIS_RECORD_H

#include "base/buf.h"
#include "store/store.h"

typedef struct once_redis_finished {
    uint64_t scope, origin; /* the fields of their names in {NAME}n */
} once_redis_finished;

typedef struct once_redis_lane_record {
    uint64_t stamp;
    bool has_version;
    int64_t version, expires_ms;
    once_bytes kept;              /* lane_record.h */
    const unsigned char *claimed; /* n ids */
    size_t n_claimed;
} once_redis_lane_record;

enum { ONCE_REDIS_STAMPED = 9 };      /* the first bytes of a value: kind and stamp. A commit compares only these */
enum { ONCE_REDIS_LETTER_HEAD = 33 }; /* the first bytes of a dead letter: they differ whenever the letter does */
/* The first bytes of an open entry, up to its failures. Every open entry is longer. */
enum { ONCE_REDIS_HEAD = ONCE_REDIS_STAMPED + 2 + 3 * 16 + 2 * 10 };

/* What the first ONCE_REDIS_HEAD bytes of an open entry hold, in part. */
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

/* Writers append to `to`. When memory is out, to->failed is set. */
void once__redis_write_finished(once_buf *to, const once_entry *entry, once_redis_finished names);
void once__redis_write_open(once_buf *to, const once_entry *entry, uint64_t stamp);
void once__redis_write_lane(once_buf *to, const once_redis_lane_record *lane);
void once__redis_write_letter(once_buf *to, const once_letter *letter, once_hash unique);
void once__redis_write_audit(once_buf *to, const once_audit *audit);
void once__redis_write_scope(once_buf *to, const once_scope *scope);
void once__redis_write_origin(once_buf *to, once_bytes place, uint64_t run, once_bytes who);

/* Readers return false when the value is damaged. Bytes in `out` point into `value`. Scope, place, run and who of a
 * finished entry are not set: the caller fills them in from `names`. */
bool once__redis_is_finished(once_bytes value);
bool once__redis_read_entry(once_bytes value, once_hash id, once_entry *out, once_redis_finished *names);
bool once__redis_read_head(once_bytes value, once_redis_open_head *out); /* false also: it is no open entry */
/* From the first bytes of an open entry. False also: there are too few, or it is no open entry. */
bool once__redis_read_open_scope(once_bytes begin, once_scope *out);
bool once__redis_read_lane(once_bytes value, once_redis_lane_record *out);
bool once__redis_read_letter(once_bytes value, uint64_t id, once_letter *out, once_hash *unique);
bool once__redis_read_letter_scope(
    once_bytes begin, once_scope *out); /* from the first bytes of a letter; false also: too few were given */
bool once__redis_read_audit(once_bytes value, once_audit *out);
bool once__redis_read_scope(once_bytes value, once_scope *out);
bool once__redis_read_origin(once_bytes value, once_bytes *place, uint64_t *run, once_bytes *who);

#endif
