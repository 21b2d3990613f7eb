#include "base/plain.h"

#include <string.h>

#include "base/buf.h"

#include "base/banned.h"

bool once_steers(const unsigned char *at, int n)
{
    if (n == 1) return *at < 0x20 || *at == 0x7f;
    if (n == 2) return (at[0] == 0xc2 && at[1] < 0xa0) || (at[0] == 0xd8 && at[1] == 0x9c);
    if (n != 3 || at[0] != 0xe2) return false;
    return (at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xa8 && at[2] <= 0xae))) || (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9);
}

size_t once_make_plain(char *text, size_t len, char instead)
{
    size_t out = 0;
    for (size_t at = 0; at < len;) {
        const unsigned char *in = (const unsigned char *)text + at;
        const int n = once_utf8_sequence(in, len - at);
        const size_t size = (size_t)(n < 0 ? -n : n);
        if (n < 0 || once_steers(in, n)) {
            text[out++] = instead;
        } else {
            memmove(text + out, in, size);
            out += size;
        }
        at += size;
    }
    return out;
}
