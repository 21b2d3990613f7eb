/* Reads and writes the records of finished entries and of claims; record.h has the layout.
 *
 * Invariant: readers check every size, and reject a damaged record. */
#include "store/sqlite/record.h"

#include <assert.h>
#include <endian.h>

#include "core/fields.h"
#include "store/states.h"

#include "base/banned.h"

enum { STATE_BITS = 0x0f, STATE_SHIFT = 4, HAS_FINGERPRINT = 0x10, EARLY = 0x20, HAS_TEXT = 0x40, TEXT_APART = 0x80 };
enum { CLAIM = 13 };
enum { TIME_BYTES = 6, INLINE_TEXT_MAX = 64, FIXED_MAX = 16 + 1 + 6 + 6 + 16 + 16 + 6 + 8 * 10 };
enum { CLAIM_MAX = 6 + 6 + 6 * 10 };

#define TIME_FOREVER ((INT64_C(1) << 48) - 1)

void once__id_write(once_hash id, unsigned char out[16])
{
    const uint64_t words[2] = {htobe64(id.a), htobe64(id.b)};
    memcpy(out, words, 16);
}

once_hash once__id_read(const unsigned char in[16])
{
    uint64_t words[2];
    memcpy(words, in, 16);
    return (once_hash){be64toh(words[0]), be64toh(words[1])};
}

/* ---- writing ---- */

static unsigned char *put_time(unsigned char *to, int64_t ms)
{
    assert(ms >= 0);
    const uint64_t word = htole64((uint64_t)(ms < TIME_FOREVER ? ms : TIME_FOREVER));
    memcpy(to, &word, TIME_BYTES);
    return to + TIME_BYTES;
}

static unsigned char *put_id(unsigned char *to, once_hash id)
{
    once__id_write(id, to);
    return to + 16;
}

static unsigned char *put_varint(unsigned char *to, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) *to++ = (unsigned char)(value | 0x80);
    *to++ = (unsigned char)value;
    return to;
}

static size_t varint_len(uint64_t value)
{
    size_t len = 1;
    while (value >>= 7) len++;
    return len;
}

static uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static void append_text(once_buf *to, once_bytes text)
{
    unsigned char size[10];
    once_buf_append(to, size, (size_t)(put_varint(size, text.len) - size));
    once_buf_append(to, text.data, text.len);
}

static unsigned head_of(const once_record *r)
{
    if (r->state == ONCE_STATE_ABSENT) return 0;
    if (r->state == ONCE_STATE_CLAIMED) return CLAIM;
    return r->old_key ? (unsigned)r->state + STATE_SHIFT : (unsigned)r->state - STATE_SHIFT;
}

/* The part that only a claim has, without the bytes of the key. */
static size_t put_claim(const once_record *r, unsigned char out[CLAIM_MAX])
{
    unsigned char *to = put_time(put_time(out, r->due_ms), r->expires_ms);
    to = put_varint(to, (uint64_t)r->remember_ms);
    to = put_varint(to, zigzag(r->order));
    to = put_varint(to, zigzag(r->gap_ms));
    to = put_varint(to, r->flags);
    to = put_varint(to, r->worker);
    to = put_varint(to, r->key.len);
    assert(to <= out + CLAIM_MAX);
    return (size_t)(to - out);
}

bool once__record_write(const once_record *r, once_buf *records, once_buf *tails, once_record_ref *ref)
{
    const bool tombstone = r->state == ONCE_STATE_ABSENT, claim = r->state == ONCE_STATE_CLAIMED;
    assert(tombstone || claim || once_state_finished(r->state));
    assert(r->keep_ms > 0 && (claim || r->keep_ms >= r->expires_ms));
    assert(!claim || r->result.len + r->reason.len + r->history.len == 0);
    const size_t text_bytes = r->result.len + r->reason.len + r->history.len;
    const size_t text_len = text_bytes ? varint_len(r->result.len) + varint_len(r->reason.len) + text_bytes : 0;
    const bool apart = text_len > INLINE_TEXT_MAX;
    unsigned char fields[ONCE_FIELDS_BYTES];
    const size_t fields_len =
        tombstone || once_hash_is_zero(r->fingerprint) ? 0 : once_fields_write(&r->fields, fields);

    unsigned char fixed[FIXED_MAX], size[10], text_head[10];
    unsigned char *to = put_id(fixed, r->id), *head = to++;
    *head = (unsigned char)head_of(r);
    to = put_time(to, r->keep_ms);
    if (!tombstone) {
        if (!claim && r->expires_ms < r->keep_ms) {
            *head |= EARLY;
            to = put_time(to, r->expires_ms);
        }
        to = put_id(to, r->token);
        if (!once_hash_is_zero(r->fingerprint)) {
            *head |= HAS_FINGERPRINT;
            to = put_id(to, r->fingerprint);
        }
        to = put_time(to, r->changed_ms);
        to = put_varint(to, zigzag(r->changed_ms - r->seen_ms));
        to = put_varint(to, r->attempt);
        to = put_varint(to, r->failures);
        to = put_varint(to, r->scope);
        to = put_varint(to, r->place);
        to = put_varint(to, r->run);
        to = put_varint(to, r->who);
        to = put_varint(to, r->point.len);
        if (text_len) *head |= apart ? HAS_TEXT | TEXT_APART : HAS_TEXT;
    }
    assert(to <= fixed + sizeof fixed);

    const size_t fixed_len = (size_t)(to - fixed);
    unsigned char claimed[CLAIM_MAX];
    const size_t claimed_len = claim ? put_claim(r, claimed) : 0;
    size_t total = fixed_len, text_head_len = 0;
    if (!tombstone) {
        total += r->point.len + claimed_len + (claim ? r->key.len : 0) + fields_len;
        if (text_len) {
            text_head_len = (size_t)(put_varint(text_head, text_len) - text_head);
            total += text_head_len + (apart ? 0 : text_len);
        }
    }
    const size_t size_len = (size_t)(put_varint(size, total) - size);
    *ref = (once_record_ref){.id = r->id,
                             .keep_ms = r->keep_ms < TIME_FOREVER ? r->keep_ms : ONCE_FOREVER,
                             .at = records->len,
                             .len = size_len + total,
                             .tail_at = tails->len,
                             .tail_len = !tombstone && apart ? text_len : 0,
                             .tombstone = tombstone,
                             .claim = claim};
    if (!once_buf_reserve(records, size_len + total) || (apart && !once_buf_reserve(tails, text_len))) return false;
    once_buf_append(records, size, size_len);
    once_buf_append(records, fixed, fixed_len);
    if (tombstone) return !records->failed;
    once_buf_append(records, r->point.data, r->point.len);
    if (claim) {
        once_buf_append(records, claimed, claimed_len);
        once_buf_append(records, r->key.data, r->key.len);
    }
    once_buf_append(records, text_head, text_head_len);
    if (text_len) {
        once_buf *text = apart ? tails : records;
        append_text(text, r->result);
        append_text(text, r->reason);
        once_buf_append(text, r->history.data, r->history.len);
    }
    once_buf_append(records, fields, fields_len);
    return !records->failed && !tails->failed;
}

/* ---- reading ---- */

/* The bytes left to read; `ok` turns false at the first step over the end, and stays false. */
typedef struct reader {
    const unsigned char *at, *end;
    bool ok;
} reader;

static const unsigned char *get_bytes(reader *in, size_t len)
{
    static const unsigned char nothing[16];
    if (!in->ok || (size_t)(in->end - in->at) < len) {
        in->ok = false;
        return len <= sizeof nothing ? nothing : NULL;
    }
    const unsigned char *from = in->at;
    in->at += len;
    return from;
}

static uint64_t get_varint(reader *in)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (!in->ok || in->at == in->end) break;
        const unsigned char byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    in->ok = false;
    return 0;
}

static uint32_t get_count(reader *in)
{
    const uint64_t count = get_varint(in);
    if (count > UINT32_MAX) in->ok = false;
    return (uint32_t)count;
}

static int64_t get_time(reader *in)
{
    uint64_t word = 0;
    memcpy(&word, get_bytes(in, TIME_BYTES), TIME_BYTES);
    const int64_t ms = (int64_t)le64toh(word);
    return ms == TIME_FOREVER ? ONCE_FOREVER : ms;
}

static once_hash get_id(reader *in) { return once__id_read(get_bytes(in, 16)); }

static once_bytes get_text(reader *in, uint64_t len)
{
    if (!in->ok || len > (uint64_t)(in->end - in->at)) {
        in->ok = false;
        return (once_bytes){0};
    }
    return (once_bytes){(const char *)get_bytes(in, (size_t)len), (size_t)len};
}

static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

bool once__record_look(once_bytes records, size_t at, size_t tail_at, once_record_ref *ref)
{
    assert(at <= records.len);
    const unsigned char *base = (const unsigned char *)records.data;
    reader in = {base + at, base + records.len, true};
    const uint64_t size = get_varint(&in);
    if (!in.ok || size > (uint64_t)(in.end - in.at)) return false;
    in.end = in.at + size;
    const size_t len = (size_t)(in.end - (base + at));
    ref->id = get_id(&in);
    const unsigned head = *get_bytes(&in, 1);
    ref->keep_ms = get_time(&in);
    ref->at = at;
    ref->len = len;
    ref->tail_at = tail_at;
    ref->tail_len = 0;
    ref->tombstone = (head & STATE_BITS) == ONCE_STATE_ABSENT;
    ref->claim = (head & STATE_BITS) == CLAIM;
    if (head & TEXT_APART) { /* rare: the size of the tail is near the end of the record */
        once_record whole;
        once_record_ref here = *ref;
        here.tail_len = SIZE_MAX;
        if (!in.ok || !once__record_read(records, &here, (once_bytes){0}, &whole)) return false;
        ref->tail_len = whole.result.len;
    }
    return in.ok;
}

/* The rest of a record. */
static bool get_fields(reader *in, unsigned head, once_fields *out)
{
    if (!in->ok || (in->at != in->end && !(head & HAS_FINGERPRINT))) return false;
    return once_fields_read(get_text(in, (uint64_t)(in->end - in->at)), out);
}

static bool get_claim(reader *in, once_record *out)
{
    out->due_ms = get_time(in);
    out->expires_ms = get_time(in);
    const uint64_t remember_ms = get_varint(in);
    out->order = unzigzag(get_varint(in));
    out->gap_ms = unzigzag(get_varint(in));
    out->flags = get_count(in);
    out->worker = get_varint(in);
    out->key = get_text(in, get_varint(in));
    out->remember_ms = (int64_t)remember_ms;
    return in->ok && remember_ms > 0 && remember_ms <= INT64_MAX && out->key.len > 0;
}

/* With ref->tail_len SIZE_MAX the caller wants only the size of the tail; it is returned as the length of the
 * result. */
bool once__record_read(once_bytes records, const once_record_ref *ref, once_bytes tail, once_record *out)
{
    assert(ref->at + ref->len <= records.len);
    const unsigned char *base = (const unsigned char *)records.data + ref->at;
    reader in = {base, base + ref->len, true};
    get_varint(&in);
    *out = (once_record){.id = get_id(&in)};
    const unsigned head = *get_bytes(&in, 1);
    const int kept = head & STATE_BITS;
    const bool claim = kept == CLAIM, new_key = kept && kept <= STATE_SHIFT;
    const bool signed_by = new_key || kept > ONCE_STATE_STALE; /* otherwise the record is of an older version, see the
                                                                * header */
    out->state = claim ? ONCE_STATE_CLAIMED
                       : (once_state)(new_key     ? kept + STATE_SHIFT
                                      : signed_by ? kept - STATE_SHIFT
                                                  : kept);
    out->old_key = !new_key;
    out->keep_ms = out->expires_ms = get_time(&in);
    if (out->keep_ms == 0) return false; /* nobody writes that: it means that there is no record */
    if (out->state == ONCE_STATE_ABSENT) return in.ok && in.at == in.end;
    if (!claim && (!once_state_finished(out->state) || out->state >= ONCE_STATES)) return false;
    if (claim && (head & (EARLY | HAS_TEXT | TEXT_APART))) return false;
    if (head & EARLY) out->expires_ms = get_time(&in);
    if (out->expires_ms > out->keep_ms) return false; /* otherwise a tombstone would end before the entry */
    out->token = get_id(&in);
    if (head & HAS_FINGERPRINT) out->fingerprint = get_id(&in);
    out->changed_ms = get_time(&in);
    if (__builtin_sub_overflow(out->changed_ms, unzigzag(get_varint(&in)), &out->seen_ms)) return false;
    out->attempt = get_count(&in);
    out->failures = get_count(&in);
    out->scope = get_varint(&in);
    out->place = get_varint(&in);
    out->run = get_varint(&in);
    if (signed_by) out->who = get_varint(&in);
    out->point = get_text(&in, get_varint(&in));
    if (claim) {
        if (!get_claim(&in, out)) return false;
        out->old_key = !(out->flags & ONCE_FLAG_NEW_KEY);
    }
    if (head & HAS_TEXT) {
        const uint64_t len = get_varint(&in);
        reader text = in;
        if (head & TEXT_APART) {
            if (len == 0) return false; /* writers never write an empty tail */
            if (ref->tail_len == SIZE_MAX) {
                out->result.len = (size_t)len;
                return get_fields(&in, head, &out->fields) && len < SIZE_MAX;
            }
            if (tail.len != len) return false;
            text = (reader){(const unsigned char *)tail.data, (const unsigned char *)tail.data + tail.len, in.ok};
        } else {
            get_text(&in, len);
            text.end = in.at; /* the fields follow it */
        }
        out->result = get_text(&text, get_varint(&text));
        out->reason = get_text(&text, signed_by ? get_varint(&text) : (uint64_t)(text.end - text.at));
        out->history = get_text(&text, (uint64_t)(text.end - text.at));
        if (!text.ok) return false;
    }
    return get_fields(&in, head, &out->fields);
}
