/* What the end of an attempt means, for the pipeline and the library alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/policy.h"
#include "testenv.h"

#include "base/banned.h"

static test_env world;
static const once_retry twice = {.attempts = 2, .min_ms = 100, .max_ms = 400};
static const once_decision first = {.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1};

static int setup(void **state)
{
    (void)state;
    test_env_init(&world, 1);
    return 0;
}

static once_policy outside(bool hold)
{
    return (once_policy){.retry = &twice, .hold = hold, .outside = true, .env = &world.env};
}

static once_settlement judged(once_policy policy, once_decision decision, once_outcome outcome, int64_t delay_ms)
{
    once_settlement s = {.outcome = outcome, .delay_ms = delay_ms};
    once_policy_judge(&policy, &decision, &s);
    return s;
}

static void text_is(once_bytes got, const char *want)
{
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.data, want, got.len);
}

static void final_outcomes_stay_as_they_are(void **state)
{
    (void)state;
    const once_outcome final[] = {ONCE_DONE, ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE, ONCE_DEAD};
    for (size_t i = 0; i < sizeof final / sizeof *final; i++) {
        const once_settlement s = judged(outside(true), first, final[i], 5000);
        assert_int_equal(s.outcome, final[i]);
        assert_int_equal(s.delay_ms, 0);
        assert_false(s.maybe_done);
        assert_true(once_outcome_is_decided(final[i]));
        assert_int_equal(once_outcome_is_final(final[i]), final[i] != ONCE_DEAD);
    }
    assert_false(once_outcome_is_decided(ONCE_RETRY));
    assert_false(once_outcome_is_decided(ONCE_RELEASE));
    assert_false(once_outcome_is_decided(ONCE_UNKNOWN));
}

static void an_unknown_is_held_or_tried_again_and_never_forgotten(void **state)
{
    (void)state;
    once_settlement s = judged(outside(true), first, ONCE_UNKNOWN, -1);
    assert_int_equal(s.outcome, ONCE_UNKNOWN);
    assert_int_equal(s.delay_ms, 0);
    assert_true(s.maybe_done);
    assert_int_equal(judged(outside(true), first, ONCE_UNKNOWN, 5000).delay_ms, 0);
    /* What was said about time is the least: it is no reason to hurry. */
    static const int64_t said_ms[] = {-1, 0, 1};
    for (int i = 0; i < 300; i++) {
        s = judged(outside(false), first, ONCE_UNKNOWN, said_ms[i % 3]);
        assert_int_equal(s.outcome, ONCE_RETRY);
        assert_true(s.maybe_done);
        assert_in_range(s.delay_ms, 1, 100);
    }
    s = judged(outside(false), first, ONCE_UNKNOWN, 5000);
    assert_int_equal(s.outcome, ONCE_RETRY);
    assert_int_equal(s.delay_ms, 5000);
    once_decision last = first;
    last.failures = 1;
    s = judged(outside(false), last, ONCE_UNKNOWN, 5000);
    assert_int_equal(s.outcome, ONCE_DEAD);
    assert_int_equal(s.delay_ms, 0);
    assert_true(s.maybe_done);
}

static void a_failure_spends_the_budget(void **state)
{
    (void)state;
    once_settlement s = judged(outside(true), first, ONCE_RETRY, -1);
    assert_int_equal(s.outcome, ONCE_RETRY);
    assert_in_range(s.delay_ms, 1, 100);
    assert_false(s.maybe_done);
    assert_int_equal(judged(outside(true), first, ONCE_RETRY, 7000).delay_ms, 7000);
    assert_int_equal(judged(outside(true), first, ONCE_RETRY, 0).delay_ms, 0);
    once_decision last = first;
    last.failures = 1;
    const once_policy policy = outside(true);
    assert_false(once_policy_is_last(&policy, &first));
    assert_true(once_policy_is_last(&policy, &last));
    s = judged(policy, last, ONCE_RETRY, 7000);
    assert_int_equal(s.outcome, ONCE_DEAD);
    assert_int_equal(s.delay_ms, 0);
}

/* The bound of the pause doubles with each failure that the claim knows of; the first one has none. */
static void pauses_grow_with_the_failures(void **state)
{
    (void)state;
    static const once_retry often = {.attempts = 20, .min_ms = 100, .max_ms = 400};
    static const int64_t bounds[] = {100, 200, 400, 400};
    const once_policy policy = {.retry = &often, .outside = true, .env = &world.env};
    for (uint32_t failures = 0; failures < sizeof bounds / sizeof *bounds; failures++) {
        once_decision decision = first;
        int64_t longest_ms = 0;
        decision.failures = failures;
        decision.attempt = 1; /* the number of the attempt has nothing to do with it */
        for (int i = 0; i < 300; i++) {
            const int64_t delay_ms = judged(policy, decision, ONCE_RETRY, -1).delay_ms;
            if (delay_ms > longest_ms) longest_ms = delay_ms;
        }
        assert_in_range(longest_ms, bounds[failures] * 9 / 10, bounds[failures]);
    }
}

static void a_release_costs_nothing_and_waits_longer_each_time(void **state)
{
    (void)state;
    once_decision tenth = first;
    tenth.attempt = 10;
    tenth.failures = 1;
    int64_t longest_ms = 0;
    for (int i = 0; i < 200; i++) {
        const once_settlement s = judged(outside(true), tenth, ONCE_RELEASE, -1);
        assert_int_equal(s.outcome, ONCE_RELEASE);
        if (s.delay_ms > longest_ms) longest_ms = s.delay_ms;
        assert_in_range(judged(outside(true), first, ONCE_RELEASE, -1).delay_ms, 1, 100);
    }
    assert_in_range(longest_ms, 101, 400);
    assert_int_equal(judged(outside(true), tenth, ONCE_RELEASE, 0).delay_ms, 0);
}

/* Of attempts that never settle, the claim that has counted one judges; another one leaves it a try. */
static void f95_attempts_that_end_without_a_word_spend_the_budget_too(void **state)
{
    (void)state;
    const once_retry hour = {.attempts = ONCE_ANY_ATTEMPTS, .for_ms = 3600000, .min_ms = 200, .max_ms = 60000};
    const once_policy by_time = {.retry = &hour, .outside = true}, by_number = outside(true);
    const once_decision orphan = {
        .answer = ONCE_ANSWER_RUN, .unreported = true, .orphan = true, .failures = 2, .failing_for_ms = 3600000};
    once_decision waited = orphan, young = orphan, said = orphan;
    waited.orphan = false;
    young.failing_for_ms = 3599999;
    said.unreported = false;
    assert_true(once_policy_is_spent(&by_time, &orphan));
    assert_false(once_policy_is_spent(&by_time, &waited));
    assert_false(once_policy_is_spent(&by_time, &young));
    assert_true(once_policy_is_spent(&by_number, &waited));
    assert_false(once_policy_is_spent(&by_number, &said));
}

static void what_is_not_run_again_says_why(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_policy policy = outside(true);
    once_decision d = {
        .answer = ONCE_ANSWER_RUN, .unreported = true, .orphan = true, .failures = 2, .failing_for_ms = 5};
    once_settlement s = once_policy_spend(&policy, &d, &arena);
    assert_int_equal(s.outcome, ONCE_DEAD);
    assert_true(s.maybe_done);
    assert_false(s.failed);
    text_is(s.reason, "every attempt ended without reporting an outcome: the process or its handler was killed");
    d.before = ONCE_BYTES("gateway away");
    text_is(once_policy_spend(&policy, &d, &arena).reason,
            "not run again: its last attempt ended without reporting an outcome, the process or its handler was "
            "killed; said before: "
            "gateway away");
    d.orphan = false;
    text_is(once_policy_spend(&policy, &d, &arena).reason,
            "not run again: its attempts are spent; said before: gateway away");
    once_arena_release(&arena);
}

/* Fail closed: whoever replays it is told that it may have had its effect, unless its effect was inside of the store.
 */
static void a_handler_that_is_gone_may_have_had_its_effect(void **state)
{
    (void)state;
    once_handler_spec sql = {.bits = ONCE_EFFECT_RUNS, .retry = twice};
    once_handler_spec command = {.bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE, .retry = twice};
    once_decision d = first;
    d.unreported = true;
    const once_policy gone = once_policy_of(NULL, NULL), in = once_policy_of(&sql, NULL),
                      out = once_policy_of(&command, NULL);
    const once_bytes why = ONCE_BYTES("operation 'charge' no longer has a handler");
    assert_true(once_policy_refuse(&gone, &d, why).maybe_done);
    assert_true(once_policy_refuse(&out, &d, why).maybe_done);
    assert_false(once_policy_refuse(&in, &d, why).maybe_done);
    assert_false(once_policy_refuse(&gone, &first, why).maybe_done);
    /* Inside, an unknown is never tried again by itself. */
    assert_true(in.hold);
    assert_false(out.hold);
    command.hold = true;
    assert_true(once_policy_of(&command, NULL).hold);
}

static void a_refused_message_is_told_in_one_voice(void **state)
{
    (void)state;
    once_arena arena = {0};
    const once_request request = {.sent_ms = 1700000000000, .remember_ms = 7 * 86400000};
    const once_refused what = {.request = &request, .content = ONCE_BYTES("{\"amount\":2}")};
    const once_decision old = {.answer = ONCE_ANSWER_TOO_OLD};
    const once_first met = {.body = ONCE_BYTES("{\"amount\":1}")};
    const once_decision other = {.answer = ONCE_ANSWER_CONFLICT, .first = &met};
    const once_decision lane = {
        .answer = ONCE_ANSWER_CONFLICT, .lane = true, .reason = ONCE_BYTES("version 3 is another one")};
    const once_secret secret = {1, 2};
    text_is(once_policy_refusal(&old, &what, secret, &arena),
            "too old: sent 2023-11-14T22:13:20.000Z, and messages are remembered for 7d");
    const once_bytes reason = once_policy_refusal(&other, &what, secret, &arena);
    const char *begin = "conflict: the key was used before with other content";
    assert_true(reason.len > strlen(begin));
    assert_memory_equal(reason.data, begin, strlen(begin));
    text_is(once_policy_refusal(&lane, &what, secret, &arena), "version 3 is another one");
    assert_false(once_answer_is_refusal(ONCE_ANSWER_DEAD));
    once_arena_release(&arena);
    text_is(once_policy_words(ONCE_RETRY), "the handler failed");
    text_is(once_policy_words(ONCE_DEAD), "the handler failed");
    text_is(once_policy_words(ONCE_UNKNOWN), "the effect may have happened");
    assert_int_equal(once_policy_words(ONCE_RELEASE).len, 0);
}

/* --- an unknown that the other side can be asked about --- */

static const once_lookup asks = {.after_ms = 1000, .for_ms = 60000};

static once_policy asking(void)
{
    once_policy policy = outside(true);
    policy.lookup = &asks;
    return policy;
}

static once_decision question(int64_t unknown_for_ms)
{
    return (once_decision){.answer = ONCE_ANSWER_UNKNOWN,
                           .asks = true,
                           .attempt = 1,
                           .failing_for_ms = -1,
                           .unknown_for_ms = unknown_for_ms};
}

static void an_unknown_is_asked_about_after_a_while(void **state)
{
    (void)state;
    const once_settlement s = judged(asking(), first, ONCE_UNKNOWN, -1);
    assert_int_equal(s.outcome, ONCE_UNKNOWN);
    assert_true(s.maybe_done);
    assert_int_equal(s.delay_ms, asks.after_ms);
    const once_policy policy = asking(), none = outside(true);
    once_decision d = question(0);
    assert_int_equal(once_policy_question_ms(&policy, &d), 1000);
    d = question(999);
    assert_int_equal(once_policy_question_ms(&policy, &d), 1);
    d = question(1000);
    assert_int_equal(once_policy_question_ms(&policy, &d), 0);
    d = question(1000000); /* nobody was there; it is asked, once at least */
    assert_int_equal(once_policy_question_ms(&policy, &d), 0);
    assert_int_equal(once_policy_question_ms(&none, &d), ONCE_NEVER);
}

static once_settlement answered(const once_policy *policy, const once_decision *d, bool asked, once_outcome outcome)
{
    return once_policy_answered(policy, d, (once_found){.asked = asked, .outcome = outcome, .delay_ms = -1});
}

static void an_answer_is_what_it_says_and_no_more(void **state)
{
    (void)state;
    const once_policy policy = asking();
    once_decision d = question(2000);
    static const once_outcome final[] = {ONCE_DONE, ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE, ONCE_DEAD};
    once_settlement s;
    for (size_t i = 0; i < sizeof final / sizeof *final; i++) {
        s = answered(&policy, &d, true, final[i]);
        assert_int_equal(s.outcome, final[i]);
        assert_int_equal(s.maybe_done, final[i] == ONCE_DEAD);
    }
    s = answered(&policy, &d, true, ONCE_RETRY);
    assert_int_equal(s.outcome, ONCE_RETRY);
    assert_true(s.maybe_done);
    assert_in_range(s.delay_ms, 1, 100);
    d.failures = 1;
    s = answered(&policy, &d, true, ONCE_RETRY); /* the second failure is the last one */
    assert_int_equal(s.outcome, ONCE_DEAD);
    assert_true(s.maybe_done);
    s = answered(&policy, &d, true, ONCE_RELEASE); /* the other side is away */
    assert_int_equal(s.outcome, ONCE_UNKNOWN);
    for (once_outcome outcome = 0; outcome < ONCE_OUTCOMES; outcome++) {
        s = answered(&policy, &d, false, outcome); /* nobody was asked */
        assert_int_equal(s.outcome, ONCE_UNKNOWN);
        assert_true(s.maybe_done);
    }
}

static void an_unknown_is_asked_about_before_it_is_tried_again(void **state)
{
    (void)state;
    once_policy policy = asking();
    policy.hold = false;
    assert_int_equal(judged(policy, first, ONCE_UNKNOWN, -1).outcome, ONCE_UNKNOWN);
    assert_int_equal(judged(policy, first, ONCE_UNKNOWN, -1).delay_ms, asks.after_ms);
    assert_int_equal(judged(policy, first, ONCE_UNKNOWN, 5000).delay_ms, asks.after_ms); /* a question is no attempt */
    once_decision d = question(asks.for_ms - 1);
    assert_int_equal(answered(&policy, &d, true, ONCE_UNKNOWN).outcome, ONCE_UNKNOWN);
    d = question(asks.for_ms);
    assert_int_equal(answered(&policy, &d, false, ONCE_UNKNOWN).outcome, ONCE_UNKNOWN); /* not in vain */
    once_settlement s = answered(&policy, &d, true, ONCE_UNKNOWN);
    assert_int_equal(s.outcome, ONCE_RETRY);
    assert_true(s.maybe_done);
    assert_in_range(s.delay_ms, 1, 100);
    d.failures = 1;
    s = answered(&policy, &d, true, ONCE_UNKNOWN);
    assert_int_equal(s.outcome, ONCE_DEAD);
    assert_true(s.maybe_done);
}

static void the_other_side_says_when_within_bounds(void **state)
{
    (void)state;
    const once_policy policy = asking();
    const once_found busy = {.asked = true, .outcome = ONCE_UNKNOWN, .delay_ms = 20000};
    once_decision d = question(1000);
    assert_int_equal(once_policy_answered(&policy, &d, busy).delay_ms, 20000);
    d = question(asks.for_ms - 300);
    assert_int_equal(once_policy_answered(&policy, &d, busy).delay_ms, 300);
    d = question(asks.for_ms);
    assert_int_equal(once_policy_answered(&policy, &d, busy).delay_ms, ONCE_NEVER);
    d = question(1000);
    const once_found absent = {.asked = true, .outcome = ONCE_RETRY, .delay_ms = 20000};
    assert_int_equal(once_policy_answered(&policy, &d, absent).delay_ms, 20000);
    const once_found hasty = {.asked = true, .outcome = ONCE_UNKNOWN, .delay_ms = 0};
    assert_in_range(once_policy_answered(&policy, &d, hasty).delay_ms, 1, 20000);
    const once_found nobody = {.asked = false, .outcome = ONCE_UNKNOWN, .delay_ms = 20000}; /* nobody said that */
    assert_in_range(once_policy_answered(&policy, &d, nobody).delay_ms, 1, 1000);
}

static void no_answer_is_asked_for_again_for_a_bounded_time(void **state)
{
    (void)state;
    const once_policy policy = asking();
    once_decision d = question(1000);
    unsigned questions = 0;
    for (; questions < 1000; questions++) {
        const once_settlement s = answered(&policy, &d, true, ONCE_UNKNOWN);
        assert_int_equal(s.outcome, ONCE_UNKNOWN);
        if (s.delay_ms == ONCE_NEVER) break;
        assert_in_range(s.delay_ms, 1, twice.max_ms + 1);
        d.unknown_for_ms += s.delay_ms;
        assert_in_range(d.unknown_for_ms, 0, asks.for_ms);
    }
    assert_int_equal(d.unknown_for_ms, asks.for_ms); /* the last one is at the end */
    assert_in_range(questions, 100, 400);
    d = question(asks.for_ms + 5);
    assert_int_not_equal(answered(&policy, &d, false, ONCE_UNKNOWN).delay_ms, ONCE_NEVER);
    assert_int_equal(answered(&policy, &d, true, ONCE_UNKNOWN).delay_ms, ONCE_NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(final_outcomes_stay_as_they_are),
        cmocka_unit_test(an_unknown_is_held_or_tried_again_and_never_forgotten),
        cmocka_unit_test(a_failure_spends_the_budget),
        cmocka_unit_test(pauses_grow_with_the_failures),
        cmocka_unit_test(a_release_costs_nothing_and_waits_longer_each_time),
        cmocka_unit_test(f95_attempts_that_end_without_a_word_spend_the_budget_too),
        cmocka_unit_test(what_is_not_run_again_says_why),
        cmocka_unit_test(a_handler_that_is_gone_may_have_had_its_effect),
        cmocka_unit_test(a_refused_message_is_told_in_one_voice),
        cmocka_unit_test(an_unknown_is_asked_about_after_a_while),
        cmocka_unit_test(an_answer_is_what_it_says_and_no_more),
        cmocka_unit_test(an_unknown_is_asked_about_before_it_is_tried_again),
        cmocka_unit_test(the_other_side_says_when_within_bounds),
        cmocka_unit_test(no_answer_is_asked_for_again_for_a_bounded_time),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
