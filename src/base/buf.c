/* The byte buffer. Invariants: len <= max; while data is not NULL, len < capacity and data[len] is NUL. */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

#define FIRST_CAPACITY 64

void once_buf_init(once_buf *buf, size_t max)
{
    assert(buf);
    assert(max < SIZE_MAX / 2);
    *buf = (once_buf){.max = max};
}

void once_buf_clear(once_buf *buf)
{
    assert(buf);
    buf->len = 0;
    buf->failed = false;
    if (buf->data) buf->data[0] = '\0';
}

void once_buf_release(once_buf *buf)
{
    assert(buf);
    free(buf->data);
    *buf = (once_buf){.max = buf->max};
}

bool once_buf_reserve(once_buf *buf, size_t more)
{
    assert(buf);
    assert(buf->len <= buf->max);
    if (buf->failed) return false;
    if (more > buf->max - buf->len) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + more + 1;
    if (need <= buf->capacity) return true;

    size_t capacity = buf->capacity < FIRST_CAPACITY ? FIRST_CAPACITY : 2 * buf->capacity;
    if (capacity > buf->max + 1) capacity = buf->max + 1;
    if (capacity < need) capacity = need;
    char *data = realloc(buf->data, capacity);
    if (!data) {
        buf->failed = true;
        return false;
    }
    data[buf->len] = '\0';
    buf->data = data;
    buf->capacity = capacity;
    assert(buf->capacity <= buf->max + 1);
    return true;
}

bool once_buf_append(once_buf *buf, const void *data, size_t len)
{
    assert(data || len == 0);
    if (!once_buf_reserve(buf, len)) return false;
    if (len > 0) memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
    return true;
}

bool once_buf_puts(once_buf *buf, const char *text)
{
    assert(text);
    return once_buf_append(buf, text, strlen(text));
}

bool once_buf_printf(once_buf *buf, const char *format, ...)
{
    assert(buf);
    assert(format);
    if (buf->failed) return false;

    va_list args;
    va_start(args, format);
    size_t room = buf->data ? buf->capacity - buf->len : 0;
    int length = vsnprintf(buf->data ? buf->data + buf->len : NULL, room, format, args);
    va_end(args);
    assert(length >= 0);

    size_t len = (size_t)length;
    if (len >= room) { /* it did not fit: now the length is known */
        if (buf->data) buf->data[buf->len] = '\0';
        if (!once_buf_reserve(buf, len)) return false;
        va_start(args, format);
        (void)vsnprintf(buf->data + buf->len, len + 1, format, args);
        va_end(args);
    }
    buf->len += len;
    assert(buf->len < buf->capacity);
    return true;
}

once_bytes once_digits(uint64_t number, char room[ONCE_DIGITS])
{
    size_t at = ONCE_DIGITS - 1; /* as many digits as UINT64_MAX has */
    room[at] = '\0';
    do room[--at] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return (once_bytes){room + at, ONCE_DIGITS - 1 - at};
}

bool once_buf_number(once_buf *buf, uint64_t number)
{
    char room[ONCE_DIGITS];
    const once_bytes digits = once_digits(number, room);
    return once_buf_append(buf, digits.data, digits.len);
}

int once_utf8_sequence(const unsigned char *at, size_t left)
{
    assert(at && left > 0);
    unsigned char first = at[0];
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return -1;

    int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte: no overlong form, no surrogate, not past U+10FFFF */
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= left || at[i] < low || at[i] > high) return -i;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

static bool append_escape(once_buf *buf, uint32_t code)
{
    switch (code) {
    case '"': return once_buf_puts(buf, "\\\"");
    case '\\': return once_buf_puts(buf, "\\\\");
    case '\n': return once_buf_puts(buf, "\\n");
    case '\r': return once_buf_puts(buf, "\\r");
    case '\t': return once_buf_puts(buf, "\\t");
    case 0xfffd: return once_buf_puts(buf, "\xef\xbf\xbd"); /* it was not UTF-8 */
    default: return once_buf_printf(buf, "\\u%04x", code);
    }
}

bool once_buf_json(once_buf *buf, once_bytes text)
{
    assert(text.data || text.len == 0);
    once_buf_append(buf, "\"", 1);
    size_t at = 0, plain = 0; /* text[plain, at) can be copied as it is */
    while (at < text.len) {
        const once_character c = once_character_first((once_bytes){text.data + at, text.len - at});
        /* Characters that control a terminal are legal in JSON, but people read this on terminals: escape them, too. */
        if (!c.fit || c.code == '"' || c.code == '\\') {
            once_buf_append(buf, text.data + plain, at - plain);
            append_escape(buf, c.code);
            plain = at + c.len;
        }
        at += c.len;
    }
    if (at > plain) once_buf_append(buf, text.data + plain, at - plain);
    return once_buf_append(buf, "\"", 1);
}
