/* Idempotency keys that go outward. The expected ones were computed with Python's hashlib and hmac. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/outward.h"

static const once_keying plain = {.secret = {1, 2}};
static const once_keying salted = {.secret = {1, 2}, .salt = ONCE_BYTES("0123456789abcdef0123456789abcdef")};

static const char *key_of(const once_keying *keying, const char *tenant, const char *consumer, const char *operation,
                          once_bytes key)
{
    static once_outward out;
    const once_scope scope = {{tenant, strlen(tenant)}, {consumer, strlen(consumer)}, {operation, strlen(operation)}};
    once_arena arena = {0};
    once_bytes shown;
    assert_true(once_key_show(&arena, key, &shown));
    memset(out, 'x', sizeof out);
    once_outward_key(keying, &scope, shown, once_key_id(keying->secret, &scope, key), false, out);
    once_arena_release(&arena);
    return out;
}

static void f82_it_is_what_the_documentation_says(void **state)
{
    (void)state;
    assert_string_equal(key_of(&plain, "", "payments", "charge", ONCE_BYTES("p-1")),
                        "70a7980f54efad9718e6246b1aaa93d8");
    assert_string_equal(key_of(&plain, "acme", "payments", "charge", ONCE_BYTES("p-1")),
                        "54d1735943fd61016dc15568d93ca037");
    assert_string_equal(key_of(&plain, "", "payments", "charge", ONCE_BYTES("a\0b\xff")),
                        "d09c9295e44e60d3be8f40990fe147f2");
    assert_string_equal(key_of(&salted, "", "payments", "charge", ONCE_BYTES("p-1")),
                        "ca94a134812597f4ac7b9c1086d71c6a");
}

/* Short ones are hashed in another way than long ones. */
static void f82_it_is_the_same_formula_for_every_length(void **state)
{
    (void)state;
    for (size_t len = 1; len <= 300; len++) {
        char key[300], expected[33];
        unsigned char text[400], sum[32];
        size_t at = 0;
        for (size_t i = 0; i < len; i++) key[i] = (char)(i * 91 + len);
        const once_bytes parts[4] = {ONCE_BYTES("acme"), ONCE_BYTES("payments"), ONCE_BYTES(""), {key, len}};
        for (size_t i = 0; i < 4; i++) {
            const size_t n = parts[i].len;
            text[at++] = 0, text[at++] = 0, text[at++] = (unsigned char)(n >> 8), text[at++] = (unsigned char)n;
            memcpy(text + at, parts[i].data, n);
            at += n;
        }
        once_sha256(text, at, sum);
        for (size_t i = 0; i < 16; i++) snprintf(expected + 2 * i, 3, "%02x", sum[i]);
        assert_string_equal(key_of(&plain, "acme", "payments", "", parts[3]), expected);
    }
}

static void f82_the_secret_of_the_store_does_not_matter(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 50; i++) {
        const once_keying other = {.secret = {i * 77, ~i}};
        assert_string_equal(key_of(&other, "", "payments", "charge", ONCE_BYTES("p-1")),
                            "70a7980f54efad9718e6246b1aaa93d8");
    }
}

static void f82_no_choice_of_bytes_makes_two_scopes_equal(void **state)
{
    (void)state;
    char first[33];
    strcpy(first, key_of(&plain, "a", "b", "c", ONCE_BYTES("d")));
    assert_string_not_equal(first, key_of(&plain, "ab", "", "c", ONCE_BYTES("d")));
    assert_string_not_equal(first, key_of(&plain, "", "ab", "c", ONCE_BYTES("d")));
    assert_string_not_equal(first, key_of(&plain, "a", "b", "cd", ONCE_BYTES("\0")));
    assert_string_not_equal(first, key_of(&plain, "a", "b", "c", ONCE_BYTES("e")));
}

static void f63_f82_a_long_key_is_not_the_short_one_it_is_shown_as(void **state)
{
    (void)state;
    char bytes[1025], first[33];
    memset(bytes, 'x', sizeof bytes);
    const once_bytes shown = ONCE_BYTES("sha256:c6d8e9905300876046729949cc95c2385221270d389176f7234fe7ac00c4e430");
    strcpy(first, key_of(&plain, "", "payments", "charge", (once_bytes){bytes, sizeof bytes}));
    assert_string_equal(first, "d94b2330a899d9792e7d4d6a162b6550");
    assert_string_equal(key_of(&plain, "", "payments", "charge", shown), "5ee1c4916d7acbfb163a7d3c8f6fc871");
    bytes[7] = 'y';
    assert_string_not_equal(first, key_of(&plain, "", "payments", "charge", (once_bytes){bytes, sizeof bytes}));
}

static void f82_an_old_key_is_the_id(void **state)
{
    (void)state;
    once_outward out;
    const once_scope scope = {ONCE_BYTES(""), ONCE_BYTES("payments"), ONCE_BYTES("charge")};
    const once_hash id = once_key_id(plain.secret, &scope, ONCE_BYTES("p-1"));
    once_outward_key(&salted, &scope, ONCE_BYTES("p-1"), (once_hash){UINT64_C(0x0123456789abcdef), 0xf}, true, out);
    assert_string_equal(out, "0123456789abcdef000000000000000f");
    once_outward_key(&plain, &scope, ONCE_BYTES("p-1"), (once_hash){0, 0}, true, out); /* a letter without an entry */
    assert_int_equal(strtoull(out + 16, NULL, 16), id.b);
    out[16] = 0;
    assert_int_equal(strtoull(out, NULL, 16), id.a);
}

static void the_digest_of_a_salt_tells_salts_and_stores_apart(void **state)
{
    (void)state;
    once_outward one, two;
    const once_keying other_salt = {.secret = {1, 2}, .salt = ONCE_BYTES("0123456789abcdef0123456789abcdeg")};
    const once_keying other_store = {.secret = {1, 3}, .salt = salted.salt};
    once_salt_digest(&plain, one);
    assert_string_equal(one, "none");
    once_salt_digest(&salted, one);
    once_salt_digest(&salted, two);
    assert_string_equal(one, two);
    once_salt_digest(&other_salt, two);
    assert_string_not_equal(one, two);
    once_salt_digest(&other_store, two);
    assert_string_not_equal(one, two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f82_it_is_what_the_documentation_says),
        cmocka_unit_test(f82_it_is_the_same_formula_for_every_length),
        cmocka_unit_test(f82_the_secret_of_the_store_does_not_matter),
        cmocka_unit_test(f82_no_choice_of_bytes_makes_two_scopes_equal),
        cmocka_unit_test(f63_f82_a_long_key_is_not_the_short_one_it_is_shown_as),
        cmocka_unit_test(f82_an_old_key_is_the_id),
        cmocka_unit_test(the_digest_of_a_salt_tells_salts_and_stores_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
