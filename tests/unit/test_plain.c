/* What may be shown on a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/plain.h"

static int encode(uint32_t c, unsigned char out[4])
{
    if (c < 0x80) return out[0] = (unsigned char)c, 1;
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
    out[0] = (unsigned char)((0xf00 >> n & 0xff) | c);
    return n;
}

static bool steers(uint32_t c)
{
    static const uint32_t ranges[][2] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                                         {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

static void these_characters_steer_and_no_others(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        unsigned char text[4] = "xxx";
        const int n = encode(c, text);
        const once_character first = once_character_first((once_bytes){(const char *)text, sizeof text});
        if (first.fit == steers(c) || first.code != c || first.len != (size_t)n) fail_msg("U+%04X", (unsigned)c);
    }
}

static void what_is_no_text_is_one_strange_character(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } cases[] = {{"\xff", 1},         {"\x80x", 1},    {"\xe2\x82", 2},         {"\xe2\x82x", 2},
                 {"\xed\xa0\x80", 1}, {"\xc0\x80", 1}, {"\xf4\x90\x80\x80", 1}, {"\xf0\x9f\x98", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const once_character c = once_character_first((once_bytes){cases[i].text, strlen(cases[i].text)});
        assert_false(c.fit);
        assert_int_equal(c.code, 0xfffd);
        assert_int_equal(c.len, cases[i].len);
    }
}

static void what_steers_or_is_no_text_is_replaced(void **state)
{
    (void)state;
    static const struct {
        const char *text, *plain;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"a\x1b[2Jb", "a?[2Jb"},
        {"\xc2\x9b"
         "1m",
         "?1m"},
        {"\xe2\x80\xae\xe2\x81\xa6", "??"},
        {"\xff\xfe", "??"},
        {"x\xe2\x82", "x?"},
        {"\xe2\x82\xac", "\xe2\x82\xac"},
        {"\xf0\x9f\x98\x80\x7f!", "\xf0\x9f\x98\x80?!"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        const size_t len = strlen(cases[i].text);
        memcpy(text, cases[i].text, len + 1);
        text[once_make_plain(text, len, '?')] = '\0';
        assert_string_equal(text, cases[i].plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(these_characters_steer_and_no_others),
        cmocka_unit_test(what_is_no_text_is_one_strange_character),
        cmocka_unit_test(what_steers_or_is_no_text_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
