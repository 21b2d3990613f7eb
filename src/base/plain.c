/* Which characters are safe to show (base/plain.h). Not safe: bytes that are not UTF-8, control characters, and those
 * that change the direction of text. */
#include "base/plain.h"

#include <assert.h>
#include <string.h>

#include "base/buf.h"

#include "base/banned.h"

/* U+0000 to U+001F, U+007F to U+009F, U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069. This is the only list
 * of them. */
static bool is_control(const unsigned char *at, int n)
{
    if (n == 1) return *at < 0x20 || *at == 0x7f;
    if (n == 2) return (at[0] == 0xc2 && at[1] < 0xa0) || (at[0] == 0xd8 && at[1] == 0x9c);
    if (n != 3 || at[0] != 0xe2) return false;
    return (at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xa8 && at[2] <= 0xae))) ||
           (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9);
}

/* The code point of a well-formed sequence. */
static uint32_t code_of(const unsigned char *at, int n)
{
    uint32_t code = n == 1 ? at[0] : at[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) code = code << 6 | (at[i] & 0x3fu);
    return code;
}

once_character once_character_first(once_bytes text)
{
    if (text.len == 0 || !text.data) return (once_character){.len = text.len, .code = 0xfffd};
    const unsigned char *at = (const unsigned char *)text.data;
    const int n = once_utf8_sequence(at, text.len);
    if (n < 0) return (once_character){.len = (size_t)-n, .code = 0xfffd};
    assert(n > 0 && (size_t)n <= text.len);
    return (once_character){.len = (size_t)n, .code = code_of(at, n), .fit = !is_control(at, n)};
}

size_t once_make_plain(char *text, size_t len, char instead)
{
    size_t out = 0;
    for (size_t at = 0; at < len;) {
        const once_character c = once_character_first((once_bytes){text + at, len - at});
        if (c.fit) memmove(text + out, text + at, c.len);
        else text[out] = instead;
        out += c.fit ? c.len : 1;
        at += c.len;
        assert(c.len > 0 && out <= at);
    }
    return out;
}
