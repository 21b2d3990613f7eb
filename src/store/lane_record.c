/* Reading and writing the record of a lane; lane_record.h has the layout. */
#include "store/lane_record.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/banned.h"

enum { SETTLED = 1, NEXT = 2, LOST = 4, WAITED = 8, BLOCKED = 16, UNTIL = 32, ALL = 63 };

/* --- writing --- */

static unsigned char *put_number(unsigned char *at, uint64_t number)
{
    number = htole64(number);
    memcpy(at, &number, 8);
    return at + 8;
}

static unsigned char *put_id(unsigned char *at, once_hash id) { return put_number(put_number(at, id.a), id.b); }

static unsigned char *put_name(unsigned char *at, once_bytes name)
{
    assert(name.len <= ONCE_LANE_NAME);
    *at++ = (unsigned char)name.len;
    if (name.len) memcpy(at, name.data, name.len);
    return at + name.len;
}

once_bytes once__lane_write(const once_lane *lane, unsigned char out[ONCE_LANE_RECORD])
{
    assert(lane->n_blockers <= ONCE_LANE_BLOCKERS);
    unsigned char *at = out + 1;
    const bool settled = lane->has_version && !once_hash_is_zero(lane->by), until = lane->until_ms != lane->expires_ms;
    out[0] = (unsigned char)((settled ? SETTLED : 0) | (lane->has_next ? NEXT : 0) | (lane->has_lost ? LOST : 0) |
                             (lane->waits ? WAITED : 0) | (lane->n_blockers ? BLOCKED : 0) | (until ? UNTIL : 0));
    if (!out[0]) return (once_bytes){0};
    if (settled) at = put_name(put_name(put_id(put_id(at, lane->by), lane->content), lane->operation), lane->key);
    if (lane->has_next) at = put_number(at, (uint64_t)lane->next);
    if (lane->has_lost) at = put_number(put_number(at, (uint64_t)lane->lost_from), (uint64_t)lane->lost_to);
    if (lane->waits) at = put_number(put_number(at, (uint64_t)lane->waited_ms), (uint64_t)lane->counted_ms);
    if (lane->n_blockers) *at++ = (unsigned char)lane->n_blockers;
    for (unsigned i = 0; i < lane->n_blockers; i++)
        at = put_number(put_id(at, lane->blockers[i].id), (uint64_t)lane->blockers[i].order);
    if (until) at = put_number(at, (uint64_t)lane->until_ms);
    assert(at <= out + ONCE_LANE_RECORD);
    return (once_bytes){(const char *)out, (size_t)(at - out)};
}

/* --- reading --- */

typedef struct reader {
    const char *at, *end;
    bool ok;
} reader;

static const char *get(reader *in, size_t n)
{
    if (!in->ok || (size_t)(in->end - in->at) < n) {
        in->ok = false;
        return NULL;
    }
    in->at += n;
    return in->at - n;
}

static uint64_t get_number(reader *in)
{
    uint64_t number = 0;
    const char *at = get(in, 8);
    if (at) memcpy(&number, at, 8);
    return le64toh(number);
}

static once_hash get_id(reader *in)
{
    const uint64_t a = get_number(in);
    return (once_hash){a, get_number(in)};
}

static once_bytes get_name(reader *in)
{
    const char *len = get(in, 1);
    const size_t n = len ? (unsigned char)*len : 0;
    if (n > ONCE_LANE_NAME) in->ok = false;
    const char *at = get(in, n);
    return at ? (once_bytes){at, n} : (once_bytes){0};
}

static void get_blockers(reader *in, once_lane *out)
{
    const char *count = get(in, 1);
    const unsigned n = count ? (unsigned char)*count : 0;
    if (n == 0 || n > ONCE_LANE_BLOCKERS) {
        in->ok = false;
        return;
    }
    out->n_blockers = n;
    for (unsigned i = 0; i < n; i++) {
        out->blockers[i].id = get_id(in);
        out->blockers[i].order = (int64_t)get_number(in);
    }
}

bool once__lane_read(int64_t version, int64_t expires_ms, once_bytes record, int64_t now_ms, once_lane *out)
{
    assert(record.len == 0 || record.data);
    *out = (once_lane){.head = ONCE_NEVER, .tail = -1};
    if (expires_ms <= now_ms) return true;
    out->expires_ms = out->until_ms = expires_ms;
    out->has_version = version >= 0;
    out->version = version >= 0 ? version : 0;
    if (record.len == 0) return true;

    reader in = {record.data, record.data + record.len, true};
    const int flags = *get(&in, 1);
    if (flags & ~ALL) return false;
    if (flags & SETTLED) {
        out->by = get_id(&in);
        out->content = get_id(&in);
        out->operation = get_name(&in);
        out->key = get_name(&in);
    }
    if (flags & NEXT) out->next = (int64_t)get_number(&in);
    out->has_next = flags & NEXT;
    if (flags & LOST) out->lost_from = (int64_t)get_number(&in);
    if (flags & LOST) out->lost_to = (int64_t)get_number(&in);
    out->has_lost = flags & LOST;
    out->waits = flags & WAITED;
    if (flags & WAITED) out->waited_ms = (int64_t)get_number(&in);
    if (flags & WAITED) out->counted_ms = (int64_t)get_number(&in);
    if (flags & BLOCKED) get_blockers(&in, out);
    if (flags & UNTIL) out->until_ms = (int64_t)get_number(&in);
    if (out->waited_ms < 0 || out->waited_ms > INT64_MAX / 2 || out->counted_ms < 0 || out->until_ms < 0)
        return false; /* not valid times */
    return in.ok && in.at == in.end;
}
