/* Bodies for people and for programs. A body may be any bytes. For people what is not text is escaped; JSON has no
 * bytes, so there a body that is not text is base64, under a name that says so. */
#include "cli.h"

static once_character first(once_bytes bytes, size_t from)
{
    return once_character_first((once_bytes){bytes.data + from, bytes.len - from});
}

static bool is_utf8(once_bytes bytes)
{
    once_character c;
    for (size_t i = 0; i < bytes.len; i += c.len) {
        c = first(bytes, i);
        if (c.code == 0xfffd && !c.fit) return false;
    }
    return true;
}

static void print_base64(once_bytes bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = (const unsigned char *)bytes.data;
    for (size_t i = 0; i < bytes.len; i += 3) {
        const size_t n = bytes.len - i < 3 ? bytes.len - i : 3;
        const unsigned bits = (unsigned)in[i] << 16 | (n > 1 ? (unsigned)in[i + 1] << 8 : 0) | (n > 2 ? in[i + 2] : 0u);
        const char text[4] = {digits[bits >> 18], digits[bits >> 12 & 63], n > 1 ? digits[bits >> 6 & 63] : '=',
                              n > 2 ? digits[bits & 63] : '='};
        fwrite(text, 1, 4, stdout);
    }
}

void cli_json_body(once_bytes body, bool bytes)
{
    if (!bytes && is_utf8(body)) {
        printf(",\"body\":");
        cli_json_string(stdout, body);
        return;
    }
    printf(",\"body_base64\":\"");
    print_base64(body);
    putchar('"');
}

void cli_print_body(once_bytes body, bool bytes)
{
    once_character c;
    if (!bytes) cli_print_safe(body);
    for (size_t i = 0; bytes && i < body.len; i += c.len) {
        c = first(body, i);
        if (c.fit && c.code != '\\') fwrite(body.data + i, 1, c.len, stdout);
        else if (c.fit) fputs("\\\\", stdout);
        else
            for (size_t k = 0; k < c.len; k++) printf("\\x%02x", (unsigned char)body.data[i + k]);
    }
}
