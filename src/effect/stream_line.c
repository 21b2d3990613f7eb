#include "effect/stream_line.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "core/call.h"

#include "base/banned.h"

/* --- to the handler ----------------------------------------------------------------------------------------------- */

#define PUT(buf, literal) once_buf_append((buf), (literal), sizeof(literal) - 1)

static void put_number(once_buf *buf, uint64_t number)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    once_buf_append(buf, digits + at, sizeof digits - at);
}

static void put_signed(once_buf *buf, int64_t number)
{
    if (number < 0) PUT(buf, "-");
    put_number(buf, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

/* place ':' point, as one JSON string: the opening quote of the second becomes the colon. */
static void put_coordinates(once_buf *buf, const once_coordinates *at)
{
    if (!once_buf_json(buf, at->place)) return;
    const size_t seam = --buf->len;
    if (once_buf_json(buf, at->point)) buf->data[seam] = ':';
}

/* The body is valid JSON, so that line ends in it are white space between values. */
static void put_body(once_buf *buf, once_bytes body)
{
    const size_t start = buf->len;
    if (!once_buf_append(buf, body.data, body.len)) return;
    char *const end = buf->data + buf->len;
    for (char *at = buf->data + start; (at = memchr(at, '\n', (size_t)(end - at)));) *at++ = ' ';
    for (char *at = buf->data + start; (at = memchr(at, '\r', (size_t)(end - at)));) *at++ = ' ';
}

static void put_content(once_buf *buf, const once_item *item)
{
    switch (*(const once_stream_body *)item->input) {
    case ONCE_STREAM_JSON:
        PUT(buf, ",\"body\":");
        put_body(buf, item->message.body);
        break;
    case ONCE_STREAM_BYTES:
        PUT(buf, ",\"body_base64\":\"");
        once_buf_base64(buf, item->message.body);
        PUT(buf, "\"");
        break;
    case ONCE_STREAM_NO_BODY: PUT(buf, ",\"tombstone\":true"); break;
    }
}

bool once_stream_write(once_buf *buf, uint64_t id, const once_item *item, const once_keying *keying)
{
    assert(id > 0 && item->input && !buf->failed);
    const size_t start = buf->len;
    once_outward idempotency_key;
    once_item_outward_key(keying, item, idempotency_key);
    PUT(buf, "{\"id\":\"");
    put_number(buf, id);
    PUT(buf, "\",\"key\":");
    once_buf_json(buf, item->request.key);
    PUT(buf, ",\"idempotency_key\":\"");
    once_buf_append(buf, idempotency_key, 32);
    PUT(buf, "\",\"attempt\":");
    put_number(buf, item->decision.attempt);
    PUT(buf, ",\"failures\":");
    put_number(buf, item->decision.failures);
    if (item->decision.maybe_done) PUT(buf, ",\"maybe_done\":true,\"type\":");
    else PUT(buf, ",\"maybe_done\":false,\"type\":");
    once_buf_json(buf, item->message.type);
    PUT(buf, ",\"tenant\":");
    once_buf_json(buf, item->scope.tenant);
    PUT(buf, ",\"consumer\":");
    once_buf_json(buf, item->scope.consumer);
    PUT(buf, ",\"operation\":");
    once_buf_json(buf, item->scope.operation);
    PUT(buf, ",\"at\":");
    put_coordinates(buf, &item->message.at);
    PUT(buf, ",\"sent_ms\":");
    if (item->message.sent_ms == ONCE_NO_TIME) PUT(buf, "null");
    else put_signed(buf, item->message.sent_ms);
    put_content(buf, item);
    PUT(buf, "}\n");
    if (!buf->failed) return true;
    buf->len = start;
    buf->failed = false;
    return false;
}

/* --- from the handler --------------------------------------------------------------------------------------------- */

static bool read_id(once_json_value value, once_arena *arena, uint64_t *out)
{
    int64_t number;
    once_bytes text;
    if (once_json_int64(value, &number)) {
        if (number <= 0) return false;
        *out = (uint64_t)number;
        return true;
    }
    if (!once_json_string(value, arena, &text) || text.len == 0 || text.len > 18 || text.data[0] == '0') return false;
    uint64_t id = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        id = 10 * id + (uint64_t)(text.data[i] - '0');
    }
    *out = id;
    return true;
}

/* With a word that is no outcome the handler has finished the message without saying how: it is unknown. */
static bool read_outcome(once_json_value value, once_stream_reply *reply)
{
    reply->outcome = ONCE_UNKNOWN;
    reply->odd = true;
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        const char *name = once_outcome_name((once_outcome)i);
        if (once_json_string_is(value, (once_bytes){name, strlen(name)})) {
            reply->outcome = (once_outcome)i;
            reply->odd = false;
        }
    }
    return value.type == ONCE_JSON_STRING;
}

/* A string counts as its text, everything else as it is written. */
static bool read_result(once_json_value value, once_arena *arena, once_bytes *out)
{
    if (value.type == ONCE_JSON_STRING) return once_json_string(value, arena, out);
    *out = value.raw;
    return true;
}

static bool read_delay(once_json_value value, int64_t *out)
{
    if (!once_json_int64(value, out) || *out < 0) return false;
    if (*out > ONCE_STREAM_DELAY_MAX_MS) *out = ONCE_STREAM_DELAY_MAX_MS;
    return true;
}

/* Reads one member of the reply; false: its value cannot be used. Members that are not in the protocol are ignored, and
 * null counts as absent. */
static bool read_member(once_json_value key, once_json_value value, once_arena *arena, once_stream_reply *out)
{
    if (once_json_string_is(key, ONCE_BYTES("id"))) return read_id(value, arena, &out->id);
    if (once_json_string_is(key, ONCE_BYTES("outcome"))) return read_outcome(value, out);
    if (value.type == ONCE_JSON_NULL) return true;
    if (once_json_string_is(key, ONCE_BYTES("result"))) return read_result(value, arena, &out->result);
    if (once_json_string_is(key, ONCE_BYTES("reason"))) return once_json_string(value, arena, &out->reason);
    if (once_json_string_is(key, ONCE_BYTES("delay_ms"))) return read_delay(value, &out->delay_ms);
    return true;
}

bool once_stream_read(once_json *json, once_arena *arena, once_bytes line, once_stream_reply *out, char *why,
                      size_t why_size)
{
    assert(out && why && why_size > 0);
    const once_json_options options = {.object = true};
    once_json_error err;
    *out = (once_stream_reply){.outcome = ONCE_OUTCOMES, .delay_ms = -1};
    if (once_json_parse(json, line, &options, &err) != ONCE_OK) {
        snprintf(why, why_size, "a line that is not a JSON object: %s at byte %zu", err.reason, err.offset + 1);
        return false;
    }
    once_json_iter it = once_json_each(json, once_json_root(json));
    while (once_json_next(&it)) {
        if (read_member(it.key, it.value, arena, out)) continue;
        /* Only names that we know get here, and they are short. */
        snprintf(why, why_size, "a reply whose '%.*s' cannot be used", (int)it.key.raw.len, it.key.raw.data);
        return false;
    }
    if (out->id == 0 || out->outcome == ONCE_OUTCOMES) {
        snprintf(why, why_size, "a reply without '%s'", out->id == 0 ? "id" : "outcome");
        return false;
    }
    assert(!out->odd || out->outcome == ONCE_UNKNOWN);
    return true;
}
