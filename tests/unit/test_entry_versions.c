/* An equal version under another key: a duplicate or a conflict, and the reason in words. */
#include "entry_fixture.h"

#include "base/buf.h"

/* --- an equal version under another key --- */

static void f86_an_equal_version_is_judged(void **state)
{
    (void)state;
    static const once_hash none = {0};
    const struct {
        once_hash by, content, fingerprint;
        const char *operation;
        once_answer answer;
        const char *words;
    } cases[] = {
        {other_id, print_a, print_a, "op", A(DUPLICATE), "version 7 of this lane was settled by key 'the first'"},
        {other_id, print_a, print_b, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' with other content"},
        {other_id, print_a, print_a, "other", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' of another operation"},
        {other_id, none, print_a, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first'; with which content is not known"},
        {other_id, none, none, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'; contents are not compared"},
        {other_id, print_a, none, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'; contents are not compared"},
        {other_id, none, none, "other", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' of another operation"},
        {none, none, print_a, "op", A(CONFLICT),
         "version 7 of this lane was settled before; by which key and with which content is not known"},
        {none, none, none, "op", A(CONFLICT),
         "version 7 of this lane was settled before; by which key and with which content is not known"},
        {id, print_a, print_a, "op", A(DUPLICATE),
         "version 7 of this lane was settled by key 'the first'"}, /* its own key, forgotten */
        {id, print_a, print_b, "op", A(CONFLICT),
         "version 7 of this lane was settled by key 'the first' with other content"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int way = 0; way < 3; way++) {
            const once_scope mine_is = {scope.tenant, scope.consumer, ONCE_BYTES("op")};
            once_lane lane = lane_at(-1);
            once_entry e = absent();
            once_request q = lane_request(mine, 7, -1);
            q.scope = &mine_is;
            q.fingerprint = cases[i].fingerprint;
            const bool taken = way == 2;
            if (taken) { /* it waited behind the first one */
                if (once_hash_equal(cases[i].by, id)) continue;
                lane.claimed = true;
                lane.head = lane.tail = 7;
                accept(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
                assert_true(e.due_ms == ONCE_NEVER);
                lane = lane_at(-1);
            }
            settled_by(&lane, 7, cases[i].by, cases[i].content,
                       (once_bytes){cases[i].operation, strlen(cases[i].operation)});
            const bool duplicate = cases[i].answer == ONCE_ANSWER_DUPLICATE;
            const int left = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED, changes = duplicate ? left
                                                                             : taken   ? left | ONCE_LETTER_NEEDED
                                                                                       : ONCE_UNCHANGED;
            if (taken) assert_int_equal(once_entry_wake(&e, &lane, NOW), ONCE_ENTRY_CHANGED);
            const once_decision d = taken      ? take(&e, &lane, yours, NOW, changes)
                                    : way == 0 ? claim(&e, &lane, q, NOW, changes)
                                               : accept(&e, &lane, q, NOW, changes);
            assert_int_equal(d.answer, cases[i].answer);
            assert_true(d.lane);
            assert_string_equal(d.reason.data, cases[i].words);
            assert_int_equal(e.state, duplicate ? S(ALREADY)
                                      : taken   ? S(DEAD)
                                                : S(ABSENT)); /* the trace; a letter is one, too */
            if (!duplicate) continue;
            assert_int_equal(d.outcome, ONCE_ALREADY);
            assert_int_equal(e.expires_ms, NOW + REMEMBER);
            assert_string_equal(e.reason.data, cases[i].words);
            if (!taken)
                assert_false(claim(&e, &lane, q, NOW, ONCE_UNCHANGED).own); /* f76: asked again, and it did not run */
        }
}

/* A key is any bytes. */
static void a_reason_is_plain_text(void **state)
{
    (void)state;
    static const struct {
        const char *key, *shown;
    } cases[] = {
        {"a\x1b[2J\n\x7f", "a?[2J??"},
        {"\xc2\x80"
         "b\xc2\x9f",
         "?b?"}, /* U+0080 and U+009F move a terminal as well */
        {"\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
         "\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}, /* what is text stays */
        {"\xff"
         "a\xe2\x82"
         "b\xc3",
         "?a?b?"},               /* not UTF-8 */
        {"\xed\xa0\x80", "???"}, /* a surrogate */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        once_lane lane = lane_at(-1);
        once_entry e = absent();
        settled_by(&lane, 7, other_id, print_b, scope.operation);
        lane.key = (once_bytes){cases[i].key, strlen(cases[i].key)};
        const once_decision d = claim(&e, &lane, lane_request(mine, 7, -1), NOW, ONCE_UNCHANGED);
        char expected[200];
        snprintf(expected, sizeof expected, "version 7 of this lane was settled by key '%s' with other content",
                 cases[i].shown);
        assert_string_equal(d.reason.data, expected);
        assert_int_equal(d.reason.len, strlen(expected));
    }
}

/* What a lane keeps of a long name ends with a whole character, and the reason with it. */
static void a_long_key_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t before = ONCE_LANE_NAME - 5; before <= ONCE_LANE_NAME; before++) {
        char key[ONCE_LANE_NAME + 40];
        memset(key, 'k', before);
        memcpy(key + before, "\xf0\x9f\x98\x80tail", 8); /* one character of four bytes */
        const size_t whole = before + 4 <= ONCE_LANE_NAME ? before + 4 : before;
        once_lane lane = lane_at(-1);
        once_entry e = absent(), second = absent();
        once_request q = lane_request(mine, 7, -1);
        q.key = (once_bytes){key, before + 8};
        claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
        settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
        assert_true(lane.key.len <= ONCE_LANE_NAME && lane.key.len >= whole && lane.key.len <= whole + 4);
        second.id = other_id;
        q.id = other_id;
        q.fingerprint = print_b;
        const once_decision d = claim(&second, &lane, q, NOW, ONCE_UNCHANGED);
        for (size_t at = 0; at < d.reason.len;) {
            const int n = once_utf8_sequence((const unsigned char *)d.reason.data + at, d.reason.len - at);
            assert_true(n > 0);
            at += (size_t)n;
        }
        assert_null(memchr(d.reason.data, '?', d.reason.len));
    }
    /* Bytes that are no text are cut where the room ends. */
    char bytes[ONCE_LANE_NAME + 10];
    memset(bytes, 0x80, sizeof bytes);
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    once_request q = lane_request(mine, 7, -1);
    q.key = (once_bytes){bytes, sizeof bytes};
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_int_equal(lane.key.len, ONCE_LANE_NAME);
}

/* A lane keeps so much of an operation; both who judges and who says why compare that. */
static void f86_a_long_operation_is_the_same_one(void **state)
{
    (void)state;
    char name[ONCE_LANE_NAME + 50];
    memset(name, 'o', sizeof name);
    const once_scope long_scope = {scope.tenant, scope.consumer, {name, sizeof name}};
    once_lane lane = lane_at(-1);
    once_entry e = absent(), second = absent();
    once_request q = lane_request(mine, 7, -1);
    q.scope = &long_scope;
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    q.id = second.id = other_id;
    q.fingerprint = print_b;
    const once_decision d = claim(&second, &lane, q, NOW, ONCE_UNCHANGED);
    assert_int_equal(d.answer, ONCE_ANSWER_CONFLICT);
    assert_non_null(strstr(d.reason.data, "' with other content"));
}

/* It ran, failed and waited; then its version settled under another key. No claim settled it, whoever asks how often.
 */
static void f76_what_its_lane_settled_is_nobodys_own(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    const once_request first = lane_request(mine, 7, -1), later = lane_request(yours, 7, -1);
    claim(&e, &lane, first, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, first, ONCE_RETRY, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
    settled_by(&lane, 7, other_id, print_a, scope.operation);
    for (int i = 0; i < 3; i++) {
        const once_decision d =
            claim(&e, &lane, later, NOW + 10000, i ? ONCE_UNCHANGED : ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
        assert_int_equal(d.answer, ONCE_ANSWER_DUPLICATE);
        assert_int_equal(d.outcome, ONCE_ALREADY);
        assert_false(d.own);
    }
    assert_int_equal(e.attempt, 1);
    assert_false(
        settle(&e, &lane, later, ONCE_ALREADY, NOW + 10000, ONCE_UNCHANGED)); /* nor can it be settled as one's own */
}

/* v3 died and nobody waited for it; then v4 was given up. Each is told what happened to it. */
static void f28_a_version_that_died_was_not_given_up(void **state)
{
    (void)state;
    once_lane lane = lane_at(2);
    lane.has_next = lane.has_lost = true;
    lane.next = 5;
    lane.lost_from = lane.lost_to = 4;
    settled_by(&lane, 5, other_id, print_a, scope.operation);
    const int changes = ONCE_ENTRY_CHANGED | ONCE_LANE_FREED;
    once_entry e = absent();
    once_decision d = claim(&e, &lane, lane_request(mine, 4, 500), NOW, changes);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    assert_string_equal(d.reason.data, "version 4 was given up before it came");
    e = absent();
    d = claim(&e, &lane, lane_request(mine, 3, 500), NOW, changes);
    assert_int_equal(d.answer, ONCE_ANSWER_STALE);
    assert_string_equal(d.reason.data, "a newer version came first");
}

/* v5 died and blocks its lane; v4 comes and finishes. The lane must not end with it. */
static void f33_a_blocked_lane_does_not_expire(void **state)
{
    (void)state;
    for (int gap = 0; gap < 2; gap++)
        for (int waits = 0; waits < 2; waits++) {
            once_lane lane = lane_at(3);
            once_entry five = absent(), four = absent();
            once_request q5 = lane_request(mine, 5, -1), q4 = lane_request(yours, 4, gap ? 500 : -1);
            q5.lane.block = q4.lane.block = true;
            four.id = q4.id = other_id;
            claim(&five, &lane, q5, NOW, ONCE_ENTRY_CHANGED);
            settle(&five, &lane, q5, ONCE_DEAD, NOW,
                   ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED | ONCE_LETTER_NEEDED);
            if (waits) lane.head = lane.tail = 6;
            claim(&four, &lane, q4, NOW, ONCE_ENTRY_CHANGED);
            settle(&four, &lane, q4, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
            assert_int_equal(lane.version, 4);
            assert_true(lane.expires_ms == ONCE_FOREVER);
            assert_int_equal(once_lane_rest(&lane, &four, NOW), ONCE_UNCHANGED);
            once_entry_discard(&five, &lane, ONCE_NO_TIME, NOW);
            lane.head = ONCE_NEVER;
            lane.tail = -1;
            once_lane_rest(&lane, &five, NOW);
            assert_int_equal(lane.expires_ms, NOW + REMEMBER); /* and ends like others when the letter is gone */
        }
}

/* Forced to run once more, the one that settled the version is not its own duplicate. */
static void f86_a_forced_one_runs_although_its_version_is_settled(void **state)
{
    (void)state;
    once_lane lane = lane_at(-1);
    once_entry e = absent();
    const once_request q = lane_request(mine, 7, 500);
    claim(&e, &lane, q, NOW, ONCE_ENTRY_CHANGED);
    settle(&e, &lane, q, ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED | ONCE_LANE_CHANGED);
    assert_true(once_hash_equal(lane.by, id) && once_hash_equal(lane.content, print_a));
    once_entry_revive(&e, &lane, &q, &body, NOW);
    assert_int_equal(take(&e, &lane, yours, NOW, ONCE_ENTRY_CHANGED).answer, ONCE_ANSWER_RUN);
    settle(&e, &lane, lane_request(yours, 7, 500), ONCE_DONE, NOW, ONCE_ENTRY_CHANGED | ONCE_LANE_FREED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f86_an_equal_version_is_judged),
        cmocka_unit_test(a_reason_is_plain_text),
        cmocka_unit_test(a_long_key_is_cut_between_characters),
        cmocka_unit_test(f86_a_long_operation_is_the_same_one),
        cmocka_unit_test(f76_what_its_lane_settled_is_nobodys_own),
        cmocka_unit_test(f28_a_version_that_died_was_not_given_up),
        cmocka_unit_test(f33_a_blocked_lane_does_not_expire),
        cmocka_unit_test(f86_a_forced_one_runs_although_its_version_is_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
