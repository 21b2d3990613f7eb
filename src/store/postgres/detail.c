#include "store/postgres/detail.h"

#include <assert.h>

#include "core/fields.h"

#include "base/banned.h"

enum { STATE_BITS = 0x0f, NEW_KEY = 4, /* added to the state */ FIRST = 0x10, AT_ONCE = 0x20, TEXT = 0x40, MS = 0x80 };
enum { FIELDS_SHIFT = 4 };

#define FOR_EVER (INT64_C(1) << 62)

static size_t put_varint(unsigned char *to, uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) to[n++] = (unsigned char)(value | 0x80);
    to[n++] = (unsigned char)value;
    return n;
}

static uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }
static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static void append_text(once_buf *out, once_bytes text)
{
    unsigned char size[10];
    once_buf_append(out, size, put_varint(size, text.len));
    once_buf_append(out, text.data, text.len);
}

bool once__pg_detail_write(const once_entry *e, once_pg_names_of names, once_buf *out, int64_t *kept_ms)
{
    assert(once_state_finished(e->state) && e->expires_ms > e->changed_ms);
    const bool forever = e->expires_ms == ONCE_FOREVER, first = e->attempt == 1 && e->failures == 0,
               at_once = e->seen_ms == e->changed_ms, text = e->result.len || e->reason.len || e->history.len;
    const int64_t kept = forever ? 0 : e->expires_ms - e->changed_ms;
    const bool ms = kept % 1000 != 0;
    *kept_ms = forever ? FOR_EVER : kept;

    unsigned char bytes[1 + ONCE_FIELDS_BYTES + 1 + 9 * 10];
    size_t n = 0;
    if (e->fields.n) {
        bytes[n++] = (unsigned char)((e->fields.n - 1u) << FIELDS_SHIFT);
        n += once_fields_write(&e->fields, bytes + n);
    }
    bytes[n++] = (unsigned char)(((unsigned)e->state + (e->old_key ? 0 : NEW_KEY)) | (first ? FIRST : 0) |
                                 (at_once ? AT_ONCE : 0) | (text ? TEXT : 0) | (ms ? MS : 0));
    n += put_varint(bytes + n, (uint64_t)(ms ? kept : kept / 1000));
    if (!at_once) n += put_varint(bytes + n, zigzag(e->changed_ms - e->seen_ms));
    if (!first) {
        n += put_varint(bytes + n, e->attempt);
        n += put_varint(bytes + n, e->failures);
    }
    n += put_varint(bytes + n, (uint32_t)names.scope);
    n += put_varint(bytes + n, (uint32_t)names.place);
    n += put_varint(bytes + n, (uint32_t)names.run);
    n += put_varint(bytes + n, (uint32_t)names.who);
    if (text) n += put_varint(bytes + n, e->at.point.len);
    once_buf_append(out, bytes, n);
    once_buf_append(out, e->at.point.data, e->at.point.len);
    if (text) {
        append_text(out, e->result);
        append_text(out, e->reason);
        once_buf_append(out, e->history.data, e->history.len);
    }
    return !out->failed;
}

typedef struct reader {
    const unsigned char *at, *end;
    bool ok;
} reader;

static uint64_t get_varint(reader *in)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && in->ok && in->at < in->end; shift += 7) {
        const unsigned char byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    in->ok = false;
    return 0;
}

static once_bytes get_bytes(reader *in, uint64_t len)
{
    if (!in->ok || len > (uint64_t)(in->end - in->at)) {
        in->ok = false;
        return (once_bytes){0};
    }
    const once_bytes bytes = {(const char *)in->at, (size_t)len};
    in->at += len;
    return bytes;
}

static once_bytes get_rest(reader *in) { return get_bytes(in, in->ok ? (uint64_t)(in->end - in->at) : 0); }

static uint32_t get_count(reader *in)
{
    const uint64_t count = get_varint(in);
    if (count > UINT32_MAX) in->ok = false;
    return (uint32_t)count;
}

static int32_t get_number(reader *in)
{
    const uint64_t number = get_varint(in);
    if (number > INT32_MAX) in->ok = false;
    return (int32_t)number;
}

bool once__pg_detail_read(once_bytes detail, int64_t expires_ms, once_entry *e, once_pg_names_of *names)
{
    reader in = {(const unsigned char *)detail.data, (const unsigned char *)detail.data + detail.len, true};
    e->fields = (once_fields){0};
    if (detail.len == 0) return false;
    if (!(*in.at & STATE_BITS)) {
        const unsigned n = (*in.at++ >> FIELDS_SHIFT) + 1u;
        if (!once_fields_read(get_bytes(&in, 2 * n), &e->fields) || in.at == in.end || !in.ok) return false;
    }
    const unsigned head = *in.at++;
    const uint64_t kept = get_varint(&in);
    const unsigned kept_state = head & STATE_BITS;
    e->old_key = kept_state < ONCE_STATES;
    e->state = (once_state)(e->old_key ? kept_state : kept_state - NEW_KEY);
    if (e->state >= ONCE_STATES || !once_state_finished(e->state) ||
        kept > (uint64_t)INT64_MAX / (head & MS ? 1 : 1000))
        return false;
    const int64_t kept_ms = head & MS ? (int64_t)kept : (int64_t)kept * 1000;
    if (__builtin_sub_overflow(expires_ms, kept_ms ? kept_ms : FOR_EVER, &e->changed_ms)) return false;
    e->expires_ms = kept_ms ? expires_ms : ONCE_FOREVER;
    e->due_ms = ONCE_NEVER;
    if (__builtin_sub_overflow(e->changed_ms, head & AT_ONCE ? 0 : unzigzag(get_varint(&in)), &e->seen_ms))
        return false;
    e->attempt = head & FIRST ? 1 : get_count(&in);
    e->failures = head & FIRST ? 0 : get_count(&in);
    names->scope = get_number(&in);
    names->place = get_number(&in);
    names->run = get_number(&in);
    names->who = get_number(&in);
    e->at.point = head & TEXT ? get_bytes(&in, get_varint(&in)) : get_rest(&in);
    e->result = e->reason = e->history = (once_bytes){0};
    if (head & TEXT) {
        e->result = get_bytes(&in, get_varint(&in));
        e->reason = get_bytes(&in, get_varint(&in));
        e->history = get_rest(&in);
    }
    return in.ok;
}
