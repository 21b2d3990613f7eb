/* The first line is a template, the next four are the values of /a, /b, /c and /d. A template of these placeholders
 * must render so that the values can be read back from the text: then two different tuples never render equal. The
 * reader here follows the header's words, not the code. Templates with other placeholders must only behave.
 *
 * The rest is the text of /t, which may be JSON for ${json:/t:/...}. /u is the document of the values as a text, so
 * ${json:/u:/a} must be ${/a}. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/template.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

#define VALUES 4
#define MAX_SEGMENTS 200

/* A template as its user sees it: literals and values in turn. */
typedef struct segment {
    int value; /* -1: literal */
    char literal[4096];
    size_t len;
} segment;

static segment segments[MAX_SEGMENTS];

/* The number of segments, 0 when the template has other placeholders than ours. */
static size_t split(once_bytes text)
{
    size_t n = 0;
    bool in_literal = false;
    for (size_t i = 0; i < text.len;) {
        const char *at = text.data + i;
        size_t left = text.len - i;
        const char *add = at;
        size_t add_len = 1;
        if (left >= 3 && memcmp(at, "$${", 3) == 0) {
            add = "${";
            add_len = 2;
            i += 3;
        } else if (left >= 2 && memcmp(at, "${", 2) == 0) {
            if (left < 5 || at[2] != '/' || at[3] < 'a' || at[3] > 'd' || at[4] != '}') return 0;
            if (n > 0 && !in_literal) { /* two that touch: a comma stands between them */
                if (n == MAX_SEGMENTS) return 0;
                segments[n].value = -1;
                segments[n].literal[0] = ',';
                segments[n++].len = 1;
            }
            if (n == MAX_SEGMENTS) return 0;
            segments[n++].value = at[3] - 'a';
            in_literal = false;
            i += 5;
            continue;
        } else {
            i++;
        }
        if (!in_literal) {
            if (n == MAX_SEGMENTS) return 0;
            segments[n].value = -1;
            segments[n++].len = 0;
            in_literal = true;
        }
        CHECK(segments[n - 1].len + add_len <= sizeof segments[0].literal);
        memcpy(segments[n - 1].literal + segments[n - 1].len, add, add_len);
        segments[n - 1].len += add_len;
    }
    return n;
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

/* Reads one byte of the rendering: of a literal (true) or of a value (false). */
static bool read_byte(const bool special[256], once_bytes *rest, char *byte)
{
    CHECK(rest->len > 0);
    char c = rest->data[0];
    size_t used = 1;
    bool literal = special[(unsigned char)c];
    *byte = c;
    if (c == '%') {
        CHECK(rest->len >= 2);
        if (rest->data[1] == '%') {
            used = 2;
        } else {
            CHECK(rest->len >= 3 && hex(rest->data[1]) >= 0 && hex(rest->data[2]) >= 0);
            *byte = (char)(hex(rest->data[1]) * 16 + hex(rest->data[2]));
            literal = false;
            used = 3;
        }
    }
    rest->data += used;
    rest->len -= used;
    return literal;
}

static void read_back(once_bytes rendering, size_t n, const once_bytes values[VALUES])
{
    bool special[256] = {['%'] = true};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; segments[i].value < 0 && k < segments[i].len; k++)
            special[(unsigned char)segments[i].literal[k]] = true;
    once_bytes rest = rendering;
    char byte;
    for (size_t i = 0; i < n; i++) {
        if (segments[i].value < 0) {
            for (size_t k = 0; k < segments[i].len; k++)
                CHECK(read_byte(special, &rest, &byte) && byte == segments[i].literal[k]);
            continue;
        }
        once_bytes expected = values[segments[i].value];
        size_t len = 0;
        while (rest.len > 0) {
            once_bytes before = rest;
            if (read_byte(special, &rest, &byte)) {
                rest = before;
                break;
            }
            CHECK(len < expected.len && expected.data[len] == byte);
            len++;
        }
        CHECK(len == expected.len);
    }
    CHECK(rest.len == 0);
}

static once_bytes next_line(once_bytes *rest)
{
    const char *newline = rest->len > 0 ? memchr(rest->data, '\n', rest->len) : NULL;
    once_bytes line = {rest->data, newline ? (size_t)(newline - rest->data) : rest->len};
    size_t used = line.len + (newline ? 1 : 0);
    rest->data += used;
    rest->len -= used;
    return line;
}

/* A value is the same where the document is a text in another one. */
static void check_in_text(once_arena *arena, const once_parsed *from, char field, once_bytes expected)
{
    const char text[] = {'$', '{', 'j', 's', 'o', 'n', ':', '/', 'u', ':', '/', field, '}'};
    const once_template *t;
    once_bytes out;
    CHECK(once_template_parse(arena, (once_bytes){text, sizeof text}, &t, NULL) == ONCE_OK);
    CHECK(once_template_render(t, from, arena, &out, NULL) == ONCE_OK && once_bytes_equal(out, expected));
}

static void check(once_arena *arena, const once_template *t, once_bytes text, once_json *json)
{
    once_message message = {.at = {ONCE_BYTES("f"), ONCE_BYTES("1")}};
    once_texts texts = {0};
    once_texts_begin(&texts, arena, 0);
    const once_parsed input = {.body = json, .headers = json, .message = &message, .texts = &texts};
    once_bytes values[VALUES], out = {0};
    for (size_t i = 0; i < VALUES; i++) {
        char field = (char)('a' + i);
        CHECK(
            once_json_string(once_json_member(json, once_json_root(json), (once_bytes){&field, 1}), arena, &values[i]));
    }
    once_error err = {0};
    int rc = once_template_render(t, &input, arena, &out, &err);
    CHECK(rc == ONCE_OK ? err.text[0] == '\0' : rc == ONCE_E_MESSAGE && err.text[0] != '\0');
    for (size_t i = 0; i < VALUES; i++) check_in_text(arena, &input, (char)('a' + i), values[i]);
    once_texts_release(&texts);
    size_t n = split(text);
    if (n == 0) return;
    CHECK(rc == ONCE_OK);
    once_bytes only =
        segments[0].value < 0 ? (once_bytes){segments[0].literal, segments[0].len} : values[segments[0].value];
    if (n == 1) CHECK(out.len == only.len && (out.len == 0 || memcmp(out.data, only.data, out.len) == 0));
    else read_back(out, n, values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    once_bytes rest = {(const char *)data, size}, text = next_line(&rest);
    once_arena arena = {0};
    const once_template *t = NULL;
    once_error err = {0};
    int rc = once_template_parse(&arena, text, &t, &err);
    CHECK(rc == ONCE_OK ? t != NULL : rc == ONCE_E_USAGE && err.text[0] != '\0' && !t);
    if (rc == ONCE_OK) {
        once_buf body;
        once_json json;
        once_json_init(&json);
        once_buf_init(&body, (size_t)1 << 24);
        for (int i = 0; i < VALUES; i++) {
            once_buf_printf(&body, "%s\"%c\":", i == 0 ? "{" : ",", 'a' + i);
            once_buf_json(&body, next_line(&rest));
        }
        once_buf inner;
        once_buf_init(&inner, (size_t)1 << 24);
        once_buf_append(&inner, body.data, body.len);
        once_buf_puts(&inner, "}");
        once_buf_puts(&body, ",\"u\":");
        once_buf_json(&body, once_buf_bytes(&inner));
        once_buf_release(&inner);
        once_buf_puts(&body, ",\"t\":");
        once_buf_json(&body, rest);
        once_buf_puts(&body, ",\"n\":1e3,\"o\":{\"z\":[1,2.50]}}");
        CHECK(once_json_parse(&json, once_buf_bytes(&body), NULL, NULL) == ONCE_OK);
        check(&arena, t, text, &json);
        once_json_release(&json);
        once_buf_release(&body);
    }
    once_arena_release(&arena);
    return 0;
}
