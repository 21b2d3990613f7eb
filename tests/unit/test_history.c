/* How attempts ended, as text: bounded, readable again whatever a reason contains, and nothing of it trusted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "store/history.h"

static void assert_text(once_bytes bytes, const char *text)
{
    assert_int_equal(bytes.len, strlen(text));
    if (bytes.len) assert_memory_equal(bytes.data, text, bytes.len);
}

static once_attempt attempt(uint32_t n, const char *outcome, const char *who, const char *reason)
{
    return (once_attempt){n, 1700000000000 + n, outcome, {who, strlen(who)}, {reason, strlen(reason)}};
}

static void test_what_is_added_is_read(void **state)
{
    (void)state;
    char first[ONCE_HISTORY_MAX], second[ONCE_HISTORY_MAX], third[ONCE_HISTORY_MAX];
    const once_attempt lines[] = {
        attempt(1, "retry", "root@host:1", "exit status 75: greylisted, try  later "),
        attempt(2, ONCE_UNREPORTED, "", ""),
        attempt(UINT32_MAX, "dead", "-", "two\nlines\n"),
    };
    const once_attempt replaced = attempt(2, ONCE_REPLACED_LINE, "root@host:2", "");
    once_bytes history = once__history_add((once_bytes){0}, &lines[0], first);
    history = once__history_add(history, &lines[1], second);
    history = once__history_add(history, &lines[2], third);
    once_attempt read[ONCE_HISTORY_ATTEMPTS];
    assert_int_equal(once__history_read(history, read), 3);
    assert_int_equal(read[0].attempt, 1);
    assert_int_equal(read[0].ended_ms, 1700000000001);
    assert_string_equal(read[0].outcome, "retry");
    assert_text(read[0].who, "root@host:1");
    assert_text(read[0].reason, "exit status 75: greylisted, try  later ");
    assert_string_equal(read[1].outcome, "silent");
    assert_text(read[1].who, "");
    assert_text(read[1].reason, "");
    assert_int_equal(read[2].attempt, UINT32_MAX);
    assert_text(read[2].reason, "two lines ");
    history = once__history_add(history, &replaced, first);
    assert_int_equal(once__history_read(history, read), 4);
    assert_string_equal(read[3].outcome, "replaced");
    assert_int_equal(once__history_read((once_bytes){0}, read), 0);
}

/* Many attempts, or long words: the oldest go, whole lines of them, and the numbers show it. */
static void test_it_is_bounded(void **state)
{
    (void)state;
    char reason[1000], who[101];
    memset(reason, 'r', sizeof reason);
    memset(who, 'w', 100);
    who[100] = 0;
    for (size_t length = 0; length < sizeof reason; length += 37) {
        char texts[2][ONCE_HISTORY_MAX];
        once_bytes history = {0};
        reason[length] = 0;
        for (uint32_t n = 1; n <= 40; n++) {
            const once_attempt line = attempt(n, "rejected", length % 2 ? who : "me", reason);
            history = once__history_add(history, &line, texts[n % 2]);
            assert_true(history.len <= ONCE_HISTORY_MAX);
            once_attempt read[ONCE_HISTORY_ATTEMPTS];
            const size_t kept = once__history_read(history, read);
            assert_true(kept >= (n < 6 ? n : 6)); /* however long the words are */
            if (length < 100 && !(length % 2)) assert_int_equal(kept, n < 10 ? n : 10);
            for (size_t i = 0; i < kept; i++) {
                assert_int_equal(read[i].attempt, n - kept + 1 + i);
                assert_int_equal(read[i].reason.len, length < 150 ? length : 150);
            }
        }
        reason[length] = 'r';
    }
}

static void test_a_reason_is_cut_between_characters(void **state)
{
    (void)state;
    char text[ONCE_HISTORY_MAX], reason[ONCE_HISTORY_REASON_MAX + 10];
    static const struct {
        const char *character;
        size_t before, kept;
    } cases[] = {
        {"\xc3\xa4", 149, 149}, {"\xc3\xa4", 148, 150}, {"\xe2\x82\xac", 148, 148}, {"\xf0\x9f\x99\x82", 147, 147}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(reason, 'x', sizeof reason);
        memcpy(reason + cases[i].before, cases[i].character, strlen(cases[i].character));
        const once_attempt line = {1, 5, "retry", {0}, {reason, sizeof reason}};
        once_attempt read[ONCE_HISTORY_ATTEMPTS];
        assert_int_equal(once__history_read(once__history_add((once_bytes){0}, &line, text), read), 1);
        assert_int_equal(read[0].reason.len, cases[i].kept);
    }
}

static void test_nonsense_is_left_out(void **state)
{
    (void)state;
    once_attempt read[ONCE_HISTORY_ATTEMPTS];
    static const char *const nonsense[] = {
        "\n",
        " ",
        "1",
        "1 2",
        "1 2 retry",
        "1 2 retry ",
        "x 2 retry me r\n",
        "1 x retry me r\n",
        "1 2 nonsense me r\n",
        "4294967296 2 retry me r\n",
        "1 9223372036854775808 retry me r\n",
        "-1 2 retry me r\n",
        "1  2 retry me r\n",
    };
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++)
        assert_int_equal(once__history_read((once_bytes){nonsense[i], strlen(nonsense[i])}, read), 0);
    const once_bytes mixed = ONCE_BYTES("nonsense\n7 8 done me and more"); /* no line feed at its end */
    assert_int_equal(once__history_read(mixed, read), 1);
    assert_int_equal(read[0].attempt, 7);
    assert_text(read[0].reason, "and more");
    char many[30 * 12 + 1] = "";
    for (int i = 0; i < 30; i++) memcpy(many + 12 * i, "1 2 done me\n", 12);
    assert_int_equal(once__history_read((once_bytes){many, 30 * 12}, read), ONCE_HISTORY_ATTEMPTS);
}

static void test_a_first_attempt_needs_no_line(void **state)
{
    (void)state;
    once_attempt read[ONCE_HISTORY_ATTEMPTS];
    once_entry entry = {.state = ONCE_STATE_REJECTED,
                        .attempt = 1,
                        .changed_ms = 77,
                        .who = ONCE_BYTES("me"),
                        .reason = ONCE_BYTES("no")};
    assert_int_equal(once__history_of(&entry, read), 1);
    assert_true(read[0].attempt == 1 && read[0].ended_ms == 77);
    assert_string_equal(read[0].outcome, "rejected");
    assert_text(read[0].who, "me");
    assert_text(read[0].reason, "no");
    entry.history = ONCE_BYTES("1 5 unknown you gone\n");
    assert_int_equal(once__history_of(&entry, read), 1);
    assert_string_equal(read[0].outcome, "unknown");
    entry.history = (once_bytes){0};
    for (int attempts = 0; attempts < 3;
         attempts++) { /* superseded before it ran, or of an older store: nothing can be said */
        entry.attempt = (uint32_t)attempts;
        assert_int_equal(once__history_of(&entry, read), attempts == 1);
    }
    entry.attempt = 1;
    entry.state = ONCE_STATE_CLAIMED;
    assert_int_equal(once__history_of(&entry, read), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_added_is_read),
        cmocka_unit_test(test_it_is_bounded),
        cmocka_unit_test(test_a_reason_is_cut_between_characters),
        cmocka_unit_test(test_nonsense_is_left_out),
        cmocka_unit_test(test_a_first_attempt_needs_no_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
