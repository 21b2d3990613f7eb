/* The ids of keys and lanes: unambiguous, binary safe, and for keys of any length. */
#include "entry_fixture.h"

/* --- identities --- */

/* A long key is shown, and looked for, by its hash; who sends that text as a key of its own has another one. */
static void f63_a_long_key_is_not_the_text_that_it_is_shown_as(void **state)
{
    (void)state;
    const once_secret secret = {1, 2};
    const once_scope s = {.consumer = ONCE_BYTES("c")};
    once_arena arena = {0};
    char large[ONCE_KEY_MAX + 1];
    once_bytes shown;
    memset(large, 'a', sizeof large);
    assert_true(once_key_show(&arena, (once_bytes){large, sizeof large}, &shown));
    assert_memory_equal(shown.data, "sha256:", 7);
    assert_false(
        once_hash_equal(once_key_id(secret, &s, (once_bytes){large, sizeof large}), once_key_id(secret, &s, shown)));
    assert_true(
        once_key_show(&arena, (once_bytes){large, ONCE_KEY_MAX}, &shown)); /* the longest that is kept as it is */
    assert_int_equal(shown.len, ONCE_KEY_MAX);
    once_arena_release(&arena);
}

static void f27_scopes_and_parts_are_never_confused(void **state)
{
    (void)state;
    const once_secret secret = {1, 2};
    static const char *const texts[] = {"", "a", "aa", "aaa", "b"};
    once_hash seen[700];
    size_t n = 0;
    char large[5000];
    memset(large, 'a', sizeof large);
    for (int t = 0; t < 5; t++)
        for (int c = 0; c < 5; c++)
            for (int o = 0; o < 5; o++)
                for (int k = 0; k < 5; k++) {
                    const once_scope s = {
                        {texts[t], strlen(texts[t])}, {texts[c], strlen(texts[c])}, {texts[o], strlen(texts[o])}};
                    seen[n++] = once_key_id(secret, &s, (once_bytes){texts[k], strlen(texts[k])});
                }
    for (size_t len = 1570; len < 1610; len++) seen[n++] = once_key_id(secret, &scope, (once_bytes){large, len});
    seen[n++] = once_key_id(secret, &scope, (once_bytes){large, sizeof large});
    seen[n++] = once_key_id((once_secret){1, 3}, &scope, (once_bytes){large, sizeof large});
    seen[n++] = once_lane_id(secret, &scope, ONCE_BYTES("a"));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_false(once_hash_equal(seen[i], seen[j]));

    once_scope other = scope;
    other.operation = ONCE_BYTES("another");
    assert_true(
        once_hash_equal(once_lane_id(secret, &scope, ONCE_BYTES("x")), once_lane_id(secret, &other, ONCE_BYTES("x"))));
}

static void f63_keys_are_binary_safe(void **state)
{
    (void)state;
    const once_secret secret = {3, 4};
    const once_hash a = once_key_id(secret, &scope, ONCE_BYTES("a\0b")),
                    b = once_key_id(secret, &scope, ONCE_BYTES("a\0c")),
                    c = once_key_id(secret, &scope, ONCE_BYTES("a")),
                    d = once_key_id(secret, &scope, ONCE_BYTES("a\0"));
    assert_false(once_hash_equal(a, b) || once_hash_equal(a, c) || once_hash_equal(c, d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f63_a_long_key_is_not_the_text_that_it_is_shown_as),
        cmocka_unit_test(f27_scopes_and_parts_are_never_confused),
        cmocka_unit_test(f63_keys_are_binary_safe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
