/* Base64: the examples of RFC 4648, every length around its groups, and every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base64.h"

static void gives(once_bytes bytes, const char *expected)
{
    once_buf buf;
    once_buf_init(&buf, 1 << 20);
    once_buf_puts(&buf, ">");
    assert_true(once_buf_base64(&buf, bytes));
    assert_string_equal(buf.data + 1, expected);
    once_buf_release(&buf);
}

static void the_examples_of_the_standard(void **state)
{
    (void)state;
    gives((once_bytes){0}, "");
    gives(ONCE_BYTES("f"), "Zg==");
    gives(ONCE_BYTES("fo"), "Zm8=");
    gives(ONCE_BYTES("foo"), "Zm9v");
    gives(ONCE_BYTES("foob"), "Zm9vYg==");
    gives(ONCE_BYTES("fooba"), "Zm9vYmE=");
    gives(ONCE_BYTES("foobar"), "Zm9vYmFy");
    gives(ONCE_BYTES("\0\xff\xfb"), "AP/7");
}

static int value_of(char digit)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = digit ? strchr(digits, digit) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Reads it back, bit by bit. */
static void every_length_can_be_read_back(void **state)
{
    (void)state;
    unsigned char bytes[600];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7 + 3);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        once_buf buf;
        once_buf_init(&buf, 1 << 20);
        assert_true(once_buf_base64(&buf, (once_bytes){(const char *)bytes, n}));
        assert_int_equal(buf.len, (n + 2) / 3 * 4);
        for (size_t i = 0; i < n; i++) {
            unsigned byte = 0;
            for (size_t bit = 8 * i; bit < 8 * i + 8; bit++)
                byte = byte << 1 | ((unsigned)value_of(buf.data[bit / 6]) >> (5 - bit % 6) & 1);
            assert_int_equal(byte, bytes[i]);
        }
        once_buf_release(&buf);
    }
}

static void a_full_buffer_is_said(void **state)
{
    (void)state;
    once_buf buf;
    once_buf_init(&buf, 7);
    assert_false(once_buf_base64(&buf, ONCE_BYTES("foobar")));
    assert_true(buf.failed);
    once_buf_release(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_the_standard),
        cmocka_unit_test(every_length_can_be_read_back),
        cmocka_unit_test(a_full_buffer_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
