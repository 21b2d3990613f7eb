#include "base/base64.h"

#include <assert.h>

#include "base/banned.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Up to three bytes as four digits. */
static void encode(const unsigned char *in, size_t n, char out[4])
{
    assert(n >= 1 && n <= 3);
    const unsigned bits = (unsigned)in[0] << 16 | (n > 1 ? (unsigned)in[1] << 8 : 0) | (n > 2 ? in[2] : 0u);
    out[0] = digits[bits >> 18];
    out[1] = digits[bits >> 12 & 63];
    out[2] = n > 1 ? digits[bits >> 6 & 63] : '=';
    out[3] = n > 2 ? digits[bits & 63] : '=';
}

bool once_buf_base64(once_buf *buf, once_bytes bytes)
{
    const unsigned char *in = (const unsigned char *)bytes.data;
    enum { GROUPS = 64 };
    char text[4 * GROUPS];
    size_t len = 0;
    for (size_t i = 0; i < bytes.len; i += 3) {
        encode(in + i, bytes.len - i < 3 ? bytes.len - i : 3, text + len);
        len += 4;
        if (len < sizeof text && i + 3 < bytes.len) continue;
        if (!once_buf_append(buf, text, len)) return false;
        len = 0;
    }
    return !buf->failed;
}
