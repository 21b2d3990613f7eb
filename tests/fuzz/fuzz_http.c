/* What comes from outside into the effect `http`: values of messages that become parts of a request, and what a server
 * answers. A value is never more than a value: it adds no segment, no query, no line and no member. The first byte says
 * which of them the input is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "effect/http.h"
#include "effect/http/reply.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

static size_t count(once_bytes text, const char *bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += text.data[i] && strchr(bytes, text.data[i]);
    return n;
}

static bool has_control(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f) return true;
    return false;
}

static bool is_json(once_bytes text)
{
    once_json json = {0};
    const bool fine = once_json_parse(&json, text, NULL, NULL) == ONCE_OK;
    once_json_release(&json);
    return fine;
}

/* `value` in a text of this encoding, beside itself: "/a${/v}b${key}". */
static void check_value(once_http_encoding encoding, once_bytes literal, const once_parsed *from, once_bytes key)
{
    once_arena arena = {0};
    once_http_text text = {0};
    once_error err = {0};
    const once_bytes *values;
    const once_http_facts facts = {key, ONCE_BYTES("00112233"), ONCE_BYTES("7")};
    once_buf out, written;
    once_buf_init(&out, 1 << 20);
    once_buf_init(&written, 8000);
    once_buf_append(&written, literal.data, literal.len);
    once_buf_puts(&written, "${/v}x${key}");
    const int rc = once_http_text_parse(&arena, once_buf_bytes(&written), encoding, &text, &err);
    if (rc == ONCE_OK && once_http_text_values(&text, from, &arena, &values, &err) == ONCE_OK &&
        once_http_text_render(&text, values, &facts, &out, &err) == ONCE_OK) {
        const once_bytes made = once_buf_bytes(&out);
        if (encoding == ONCE_HTTP_PATH && literal.len == 1 && literal.data[0] == '/')
            CHECK(count(made, "/?#&=\\\r\n\t ") == 1);
        if (encoding == ONCE_HTTP_FORM) CHECK(count(made, "/?#&=+\\\r\n\t ") == 0);
        if (encoding == ONCE_HTTP_HEADER && !has_control(literal)) CHECK(!has_control(made));
        if (encoding == ONCE_HTTP_JSON) CHECK(is_json(made));
    }
    once_buf_release(&out);
    once_buf_release(&written);
    once_arena_release(&arena);
}

/* A line with a literal, then a message. */
static void check_values(once_bytes input)
{
    const char *end = input.len ? memchr(input.data, '\n', input.len) : NULL;
    if (!end) return;
    once_bytes literal = {input.data, (size_t)(end - input.data)};
    const once_bytes body = {end + 1, input.len - literal.len - 1};
    once_json json = {0};
    if (literal.len > 2000 || once_json_parse(&json, body, NULL, NULL) != ONCE_OK) {
        once_json_release(&json);
        return;
    }
    const once_message message = {.body = body};
    const once_parsed from = {.message = &message, .body = &json};
    check_value(ONCE_HTTP_PATH, ONCE_BYTES("/"), &from, body);
    for (int encoding = ONCE_HTTP_PLAIN; encoding <= ONCE_HTTP_JSON; encoding++)
        check_value((once_http_encoding)encoding, literal, &from, body);
    once_json_release(&json);
}

static void check_answer(once_bytes body, size_t max)
{
    static const once_bytes wanted[] = {{"ok", 2}, {"1", 1}};
    once_arena arena = {0};
    once_http_condition condition = {.values = wanted, .n = 2};
    once_json json = {0};
    once_buf out;
    once_buf_init(&out, 1 << 22);
    const bool parsed = once_json_parse(&json, body, NULL, NULL) == ONCE_OK;
    CHECK(once_pointer_parse(&arena, ONCE_BYTES("/status"), &condition.at, NULL) == ONCE_OK);
    const once_http_conditions conditions = {&condition, 1};
    CHECK(parsed || !once_http_meets(&conditions, NULL));
    if (parsed) (void)once_http_meets(&conditions, &json);
    once_http_result(&out, 200, body, parsed ? &json : NULL, true, 40 + max);
    CHECK(out.len <= 40 + max);
    CHECK(is_json(once_buf_bytes(&out)));
    const once_bytes stored = once_http_result_body(once_buf_bytes(&out));
    if (stored.len) CHECK(is_json(stored));
    (void)once_http_result_body(body); /* a result of another effect */
    once_buf_release(&out);
    once_json_release(&json);
    once_arena_release(&arena);
}

/* Feeds the bytes in pieces of this size, as a direct call does (effect/http/direct.c). Returns how many were taken. */
static size_t read_reply(once_bytes in, size_t piece, http_reply *reply, once_buf *body)
{
    size_t from = 0, to = 0;
    once__http_reply_begin(reply);
    while (!once__http_reply_ended(reply) && to < in.len) {
        to += in.len - to < piece ? in.len - to : piece;
        from += once__http_reply_read(reply, in.data + from, to - from, body);
        CHECK(from <= to);
    }
    return from;
}

/* However the bytes of an answer come, they mean the same. */
static void check_reply(once_bytes in)
{
    http_reply whole, pieces;
    once_buf body, other;
    once_buf_init(&body, 5000);
    once_buf_init(&other, 5000);
    const size_t n = read_reply(in, in.len + 1, &whole, &body), m = read_reply(in, 1, &pieces, &other);
    CHECK(whole.state == pieces.state && whole.status == pieces.status && whole.keeps == pieces.keeps);
    CHECK(strcmp(whole.retry_after, pieces.retry_after) == 0);
    CHECK(body.len <= body.max && (whole.state != HTTP_REPLY_BROKEN || whole.wrong));
    if (whole.state == HTTP_REPLY_WHOLE) {
        CHECK(n == m && whole.status >= 200 && body.len == other.len);
        CHECK(body.len == 0 || memcmp(body.data, other.data, body.len) == 0);
    }
    const bool up_to_close = whole.state == HTTP_REPLY_CLOSE;
    once__http_reply_close(&whole);
    CHECK(once__http_reply_ended(&whole) && (!up_to_close || (whole.state == HTTP_REPLY_WHOLE && !whole.keeps)));
    once_buf_release(&body);
    once_buf_release(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 20000) return 0;
    const once_bytes rest = {(const char *)data + 1, size - 1};
    switch (data[0] % 4) {
    case 0: check_values(rest); break;
    case 1: check_answer(rest, size % 3 * 100); break;
    case 3: check_reply(rest); break;
    default: {
        const int64_t ms = once_http_retry_after(rest, INT64_C(1700000000000));
        CHECK(ms >= -1 && ms <= ONCE_HTTP_RETRY_AFTER_MAX_MS);
        (void)once_http_path_steps(rest);
    }
    }
    return 0;
}
