#include "store/redis/record.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "core/fields.h"
#include "store/states.h"

#include "base/banned.h"

enum { TIME_BYTES = 6 };
enum { HAS_FINGERPRINT = 1, HAS_TEXT = 2, HAS_HISTORY = 4, FINISHED_NEW_KEY = 8 };
enum { VERSIONED = 1, GAP = 2, HOLD = 4, NATURAL = 8, UNREPORTED = 16, HAS_MESSAGE = 32, MAYBE = 64, FIXED = 128 };
/* In the byte of the state, so that programs which do not support it refuse the value. They would give the message an
 * old idempotency key. */
enum { OPEN_NEW_KEY = 0x10 };
/* Above the failures, which have 32 bits. Older programs ignore the bit and write the entry without it. An unknown is
 * then held for an operator, whatever its due time. */
#define LOOKUP (UINT64_C(1) << 32)
enum { LANE = 'N', LANE_WITH_RECORD = 'M' }; /* two kinds: older programs would read a record as ids */
enum { BLOCK = 0x80 };                       /* in the byte of the state */

#define TIME_FOREVER ((INT64_C(1) << 48) - 1)

void once__redis_id_write(once_hash id, unsigned char out[16])
{
    const uint64_t words[2] = {htobe64(id.a), htobe64(id.b)};
    memcpy(out, words, 16);
}

once_hash once__redis_id_read(const void *in)
{
    uint64_t words[2];
    memcpy(words, in, 16);
    return (once_hash){be64toh(words[0]), be64toh(words[1])};
}

void once__redis_group_write(int64_t due_ms, uint64_t stamp, unsigned char out[16])
{
    const uint64_t words[2] = {htobe64((uint64_t)due_ms), htole64(stamp)};
    memcpy(out, words, 16);
}

int64_t once__redis_group_due(const void *group)
{
    uint64_t word;
    memcpy(&word, group, sizeof word);
    return (int64_t)be64toh(word);
}

uint64_t once__redis_group_stamp(const void *group)
{
    uint64_t word;
    memcpy(&word, (const char *)group + 8, sizeof word);
    return le64toh(word);
}

/* --- writing --- */

static void put_byte(once_buf *to, unsigned value)
{
    const unsigned char byte = (unsigned char)value;
    once_buf_append(to, &byte, 1);
}

static void put_word(once_buf *to, uint64_t value)
{
    value = htole64(value);
    once_buf_append(to, &value, 8);
}

static void put_signed(once_buf *to, int64_t value) { put_word(to, (uint64_t)value); }

static void put_id(once_buf *to, once_hash id)
{
    unsigned char bytes[16];
    once__redis_id_write(id, bytes);
    once_buf_append(to, bytes, 16);
}

static void put_time(once_buf *to, int64_t ms)
{
    assert(ms >= 0);
    const uint64_t word = htole64((uint64_t)(ms < TIME_FOREVER ? ms : TIME_FOREVER));
    once_buf_append(to, &word, TIME_BYTES);
}

static void put_varint(once_buf *to, uint64_t value)
{
    unsigned char bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) bytes[n++] = (unsigned char)(value | 0x80);
    bytes[n++] = (unsigned char)value;
    once_buf_append(to, bytes, n);
}

static uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static void put_bytes(once_buf *to, once_bytes bytes)
{
    put_varint(to, bytes.len);
    if (bytes.len) once_buf_append(to, bytes.data, bytes.len);
}

static void put_scope(once_buf *to, const once_scope *scope)
{
    put_bytes(to, scope->tenant);
    put_bytes(to, scope->consumer);
    put_bytes(to, scope->operation);
}

static void put_message(once_buf *to, const once_message *message)
{
    put_bytes(to, message->body);
    put_bytes(to, message->headers);
    put_bytes(to, message->type);
    put_bytes(to, message->at.place);
    put_bytes(to, message->at.point);
    put_signed(to, message->sent_ms);
}

static void put_fields(once_buf *to, const once_fields *fields)
{
    unsigned char bytes[ONCE_FIELDS_BYTES];
    once_buf_append(to, bytes, once_fields_write(fields, bytes));
}

void once__redis_write_finished(once_buf *to, const once_entry *e, once_redis_finished names)
{
    assert(once_state_finished(e->state));
    const bool print = !once_hash_is_zero(e->fingerprint), text = e->result.len || e->reason.len;
    put_byte(to, 'F');
    put_byte(to, e->state);
    put_time(to, e->expires_ms);
    put_id(to, e->token);
    put_time(to, e->changed_ms);
    put_byte(to, (print ? HAS_FINGERPRINT : 0u) | (text ? HAS_TEXT : 0u) | (e->history.len ? HAS_HISTORY : 0u) |
                     (e->old_key ? 0u : FINISHED_NEW_KEY));
    if (print) put_id(to, e->fingerprint);
    put_varint(to, zigzag(e->changed_ms - e->seen_ms));
    put_varint(to, e->attempt);
    put_varint(to, e->failures);
    put_word(to, names.scope);
    put_word(to, names.origin);
    put_bytes(to, e->at.point);
    if (text) put_bytes(to, e->result);
    if (text) put_bytes(to, e->reason);
    if (e->history.len) put_bytes(to, e->history);
    if (print) put_fields(to, &e->fields);
}

enum { OPEN_TIMES = 7 }; /* numbers of 8 bytes between the run and the scope */

void once__redis_write_open(once_buf *to, const once_entry *e, uint64_t stamp)
{
    assert(e->state != ONCE_STATE_ABSENT && !once_state_finished(e->state));
    put_byte(to, 'O');
    put_word(to, stamp);
    put_byte(to, (unsigned)e->state | (e->block ? BLOCK : 0u) | (e->old_key ? 0u : OPEN_NEW_KEY));
    put_byte(to, (e->versioned ? VERSIONED : 0u) | (e->gap ? GAP : 0u) | (e->hold ? HOLD : 0u) |
                     (e->natural ? NATURAL : 0u) | (e->unreported ? UNREPORTED : 0u) |
                     (e->has_message ? HAS_MESSAGE : 0u) | (e->maybe_done ? MAYBE : 0u) | (e->fixed ? FIXED : 0u));
    put_id(to, e->token);
    put_id(to, e->fingerprint);
    put_id(to, e->lane);
    put_varint(to, e->attempt);
    put_varint(to, e->failures | (e->lookup ? LOOKUP : 0));
    put_word(to, e->run);
    const int64_t times[OPEN_TIMES] = {e->order,      e->gap_ms, e->remember_ms, e->seen_ms,
                                       e->changed_ms, e->due_ms, e->expires_ms};
    for (size_t i = 0; i < OPEN_TIMES; i++) put_signed(to, times[i]);
    put_scope(to, &e->scope);
    put_bytes(to, e->key);
    put_bytes(to, e->at.place);
    put_bytes(to, e->at.point);
    put_bytes(to, e->result);
    put_bytes(to, e->reason);
    put_bytes(to, e->who);
    put_bytes(to, e->worker);
    put_bytes(to, e->history);
    if (e->has_message) put_message(to, &e->message);
    put_signed(to, e->failing_ms);
    put_fields(to, &e->fields);
}

void once__redis_write_lane(once_buf *to, const once_redis_lane_record *lane)
{
    assert(lane->n_claimed == 0 || lane->claimed);
    put_byte(to, lane->kept.len ? LANE_WITH_RECORD : LANE);
    put_word(to, lane->stamp);
    put_byte(to, lane->has_version);
    put_signed(to, lane->version);
    put_signed(to, lane->expires_ms);
    if (lane->kept.len) put_bytes(to, lane->kept);
    once_buf_append(to, lane->claimed, lane->n_claimed * 16);
}

void once__redis_write_letter(once_buf *to, const once_letter *l, once_hash unique)
{
    put_byte(to, 'M');
    put_id(to, unique);
    put_word(to, l->count);
    put_signed(to, l->last_ms); /* until here: ONCE_REDIS_LETTER_HEAD */
    put_id(to, l->entry);
    put_byte(to, once__letter_kind_write(l));
    put_varint(to, l->attempt);
    put_varint(to, l->failures);
    put_signed(to, l->seen_ms);
    put_signed(to, l->buried_ms);
    put_scope(to, &l->scope);
    put_bytes(to, l->key);
    put_bytes(to, l->reason);
    put_bytes(to, l->history);
    put_message(to, &l->message);
}

void once__redis_write_audit(once_buf *to, const once_audit *a)
{
    put_byte(to, 'A');
    put_signed(to, a->time_ms);
    put_word(to, a->letter);
    put_bytes(to, a->consumer);
    put_bytes(to, a->who);
    put_bytes(to, a->what);
    put_bytes(to, a->key);
    put_bytes(to, a->note);
    put_bytes(to, a->body);
}

void once__redis_write_scope(once_buf *to, const once_scope *scope)
{
    put_byte(to, 'S');
    put_scope(to, scope);
}

void once__redis_write_origin(once_buf *to, once_bytes place, uint64_t run, once_bytes who)
{
    put_byte(to, 'P');
    put_word(to, run);
    put_bytes(to, place);
    put_bytes(to, who);
}

/* --- reading --- */

/* The bytes left to read. `ok` turns false at the first read past the end, and stays false. */
typedef struct reader {
    const unsigned char *at, *end;
    bool ok;
} reader;

static reader open_value(once_bytes value, char kind)
{
    const unsigned char *at = (const unsigned char *)value.data;
    const bool ok = value.len > 0 && at[0] == (unsigned char)kind;
    return ok ? (reader){at + 1, at + value.len, true} : (reader){0};
}

static bool take(reader *in, void *out, size_t len)
{
    if (!in->ok || (size_t)(in->end - in->at) < len) {
        in->ok = false;
        memset(out, 0, len);
        return false;
    }
    memcpy(out, in->at, len);
    in->at += len;
    return true;
}

static unsigned get_byte(reader *in)
{
    unsigned char byte;
    take(in, &byte, 1);
    return byte;
}

static uint64_t get_word(reader *in)
{
    uint64_t word;
    take(in, &word, 8);
    return le64toh(word);
}

static int64_t get_signed(reader *in) { return (int64_t)get_word(in); }

static once_hash get_id(reader *in)
{
    unsigned char bytes[16];
    take(in, bytes, 16);
    return once__redis_id_read(bytes);
}

static int64_t get_time(reader *in)
{
    uint64_t word = 0;
    take(in, &word, TIME_BYTES);
    const int64_t ms = (int64_t)le64toh(word);
    return ms == TIME_FOREVER ? ONCE_FOREVER : ms;
}

static uint64_t get_varint(reader *in)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->ok; shift += 7) {
        const unsigned byte = get_byte(in);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    in->ok = false;
    return 0;
}

static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static once_bytes get_bytes(reader *in)
{
    const uint64_t len = get_varint(in);
    if (!in->ok || len > (uint64_t)(in->end - in->at)) {
        in->ok = false;
        return (once_bytes){0};
    }
    const once_bytes bytes = {(const char *)in->at, (size_t)len};
    in->at += len;
    return len ? bytes : (once_bytes){0};
}

static once_scope get_scope(reader *in)
{
    once_scope scope;
    scope.tenant = get_bytes(in);
    scope.consumer = get_bytes(in);
    scope.operation = get_bytes(in);
    return scope;
}

static once_message get_message(reader *in)
{
    once_message message = {0};
    message.body = get_bytes(in);
    message.headers = get_bytes(in);
    message.type = get_bytes(in);
    message.at.place = get_bytes(in);
    message.at.point = get_bytes(in);
    message.sent_ms = get_signed(in);
    return message;
}

static bool at_end(const reader *in) { return in->ok && in->at == in->end; }

/* Fields take the rest of a value. */
static bool get_fields(reader *in, once_fields *out)
{
    if (!in->ok) return false;
    const once_bytes rest = {(const char *)in->at, (size_t)(in->end - in->at)};
    in->at = in->end;
    return once_fields_read(rest, out);
}

bool once__redis_is_finished(once_bytes value) { return value.len > 0 && value.data[0] == 'F'; }

static bool read_finished(once_bytes value, once_entry *e, once_redis_finished *names)
{
    reader in = open_value(value, 'F');
    e->state = (once_state)get_byte(&in);
    e->expires_ms = get_time(&in);
    e->token = get_id(&in);
    e->changed_ms = get_time(&in);
    const unsigned flags = get_byte(&in);
    e->old_key = !(flags & FINISHED_NEW_KEY);
    if (flags & HAS_FINGERPRINT) e->fingerprint = get_id(&in);
    e->seen_ms = e->changed_ms - unzigzag(get_varint(&in));
    e->attempt = (uint32_t)get_varint(&in);
    e->failures = (uint32_t)get_varint(&in);
    names->scope = get_word(&in);
    names->origin = get_word(&in);
    e->at.point = get_bytes(&in);
    if (flags & HAS_TEXT) {
        e->result = get_bytes(&in);
        e->reason = get_bytes(&in);
    }
    if (flags & HAS_HISTORY) e->history = get_bytes(&in);
    e->due_ms = ONCE_NEVER;
    if (flags & HAS_FINGERPRINT && !get_fields(&in, &e->fields)) return false;
    return at_end(&in) && once_state_finished(e->state) && e->state < ONCE_STATES;
}

static bool read_open(once_bytes value, once_entry *e)
{
    reader in = open_value(value, 'O');
    get_word(&in); /* the stamp */
    const unsigned state = get_byte(&in);
    e->state = (once_state)(state & ~(unsigned)(BLOCK | OPEN_NEW_KEY));
    e->old_key = !(state & OPEN_NEW_KEY);
    e->block = state & BLOCK;
    const unsigned flags = get_byte(&in);
    e->versioned = flags & VERSIONED;
    e->gap = flags & GAP;
    e->hold = flags & HOLD;
    e->natural = flags & NATURAL;
    e->unreported = flags & UNREPORTED;
    e->maybe_done = flags & (MAYBE | UNREPORTED); /* older values say it of the last attempt only */
    e->fixed = flags & FIXED;
    e->has_message = flags & HAS_MESSAGE;
    e->token = get_id(&in);
    e->fingerprint = get_id(&in);
    e->lane = get_id(&in);
    e->attempt = (uint32_t)get_varint(&in);
    const uint64_t failures = get_varint(&in);
    e->failures = (uint32_t)failures;
    e->lookup = failures & LOOKUP;
    e->run = get_word(&in);
    int64_t *const times[] = {&e->order,      &e->gap_ms, &e->remember_ms, &e->seen_ms,
                              &e->changed_ms, &e->due_ms, &e->expires_ms};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) *times[i] = get_signed(&in);
    e->scope = get_scope(&in);
    e->key = get_bytes(&in);
    e->at.place = get_bytes(&in);
    e->at.point = get_bytes(&in);
    e->result = get_bytes(&in);
    e->reason = get_bytes(&in);
    e->who = get_bytes(&in);
    e->worker = get_bytes(&in);
    e->history = get_bytes(&in);
    if (e->has_message) e->message = get_message(&in);
    if (!at_end(&in)) e->failing_ms = get_signed(&in); /* values of format 1 end before it */
    if (once_entry_expires(e) && e->expires_ms == 0)   /* format 1 did not store it */
        e->expires_ms = e->remember_ms < INT64_MAX - e->changed_ms ? e->changed_ms + e->remember_ms : INT64_MAX;
    return get_fields(&in, &e->fields) && e->state > ONCE_STATE_ABSENT && e->state < ONCE_STATE_DONE;
}

bool once__redis_read_entry(once_bytes value, once_hash id, once_entry *out, once_redis_finished *names)
{
    *out = (once_entry){.id = id};
    *names = (once_redis_finished){0};
    return once__redis_is_finished(value) ? read_finished(value, out, names) : read_open(value, out);
}

static reader begin_open(once_bytes value, once_redis_open_head *out)
{
    reader in = open_value(value, 'O');
    out->stamp = get_word(&in);
    out->state = (once_state)(get_byte(&in) & ~(unsigned)(BLOCK | OPEN_NEW_KEY));
    const unsigned flags = get_byte(&in);
    out->hold = flags & HOLD;
    out->has_message = flags & HAS_MESSAGE;
    for (int i = 0; i < 3; i++) (void)get_id(&in);
    (void)get_varint(&in);
    out->lookup = get_varint(&in) & LOOKUP;
    return in;
}

bool once__redis_read_head(once_bytes value, once_redis_open_head *out) { return begin_open(value, out).ok; }

bool once__redis_read_open_scope(once_bytes begin, once_scope *out)
{
    once_redis_open_head head;
    reader in = begin_open(begin, &head);
    (void)get_word(&in); /* run */
    for (int i = 0; i < OPEN_TIMES; i++) (void)get_signed(&in);
    *out = get_scope(&in);
    return in.ok;
}

bool once__redis_read_lane(once_bytes value, once_redis_lane_record *out)
{
    const bool with_record = value.len > 0 && value.data[0] == LANE_WITH_RECORD;
    reader in = open_value(value, with_record ? LANE_WITH_RECORD : LANE);
    out->stamp = get_word(&in);
    const unsigned has_version = get_byte(&in);
    out->has_version = has_version;
    out->version = get_signed(&in);
    out->expires_ms = get_signed(&in);
    out->kept = with_record ? get_bytes(&in) : (once_bytes){0};
    out->claimed = in.at;
    out->n_claimed = in.ok ? (size_t)(in.end - in.at) / 16 : 0;
    return in.ok && has_version <= 1 && (size_t)(in.end - in.at) % 16 == 0;
}

/* Reads a letter up to its scope. */
static reader begin_letter(once_bytes value, uint64_t id, once_letter *out, once_hash *unique)
{
    const bool counted = value.len > 0 && value.data[0] == 'M'; /* 'L': of format 1 */
    reader in = open_value(value, counted ? 'M' : 'L');
    *out = (once_letter){.id = id, .count = 1};
    *unique = get_id(&in);
    if (counted) out->count = get_word(&in);
    if (counted) out->last_ms = get_signed(&in);
    out->entry = get_id(&in);
    const bool kind = once__letter_kind_read(get_byte(&in), out);
    out->attempt = (uint32_t)get_varint(&in);
    out->failures = (uint32_t)get_varint(&in);
    out->seen_ms = get_signed(&in);
    out->buried_ms = get_signed(&in);
    if (!counted) out->last_ms = out->buried_ms;
    out->scope = get_scope(&in);
    in.ok &= kind;
    return in;
}

bool once__redis_read_letter_scope(once_bytes begin, once_scope *out)
{
    once_letter letter;
    once_hash unique;
    const reader in = begin_letter(begin, 0, &letter, &unique);
    *out = letter.scope;
    return in.ok;
}

bool once__redis_read_letter(once_bytes value, uint64_t id, once_letter *out, once_hash *unique)
{
    reader in = begin_letter(value, id, out, unique);
    out->key = get_bytes(&in);
    out->reason = get_bytes(&in);
    out->history = get_bytes(&in);
    out->message = get_message(&in);
    return at_end(&in);
}

bool once__redis_read_audit(once_bytes value, once_audit *out)
{
    reader in = open_value(value, 'A');
    out->time_ms = get_signed(&in);
    out->letter = get_word(&in);
    out->consumer = get_bytes(&in);
    out->who = get_bytes(&in);
    out->what = get_bytes(&in);
    out->key = get_bytes(&in);
    out->note = get_bytes(&in);
    out->body = at_end(&in) ? (once_bytes){0} : get_bytes(&in); /* format 1 had none */
    return at_end(&in);
}

bool once__redis_read_scope(once_bytes value, once_scope *out)
{
    reader in = open_value(value, 'S');
    *out = get_scope(&in);
    return at_end(&in);
}

bool once__redis_read_origin(once_bytes value, once_bytes *place, uint64_t *run, once_bytes *who)
{
    reader in = open_value(value, 'P');
    *run = get_word(&in);
    *place = get_bytes(&in);
    *who = get_bytes(&in);
    return at_end(&in);
}
