/* The machine step by step: when the stages of a message began and ended. */
#include "machine_fixture.h"

static void assert_timing(const once_timing *timing, uint64_t count, uint64_t sum_ms, uint64_t max_ms)
{
    uint64_t all = 0;
    for (size_t i = 0; i < ONCE_TIMING_BUCKETS; i++) all += timing->bucket[i];
    assert_int_equal(timing->count, count);
    assert_int_equal(timing->sum_ms, sum_ms);
    assert_int_equal(timing->max_ms, max_ms);
    assert_int_equal(all, count);
}

static void messages_of_a_batch_share_the_times_of_their_stages(void **state)
{
    fixture *f = open_pipe(state, false);
    once_item *items[3];
    f->now_ms = 1000;
    fetch(f, 3, 0, items);
    f->now_ms = 1004;
    store_does(f, ONCE_ACT_BEGIN);
    f->now_ms = 1010;
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    for (size_t i = 0; i < 3; i++)
        claim->items[i]->decision =
            (once_decision){.answer = i ? ONCE_ANSWER_RUN : ONCE_ANSWER_DUPLICATE, .failing_for_ms = -1};
    answer(f, claim, ONCE_OK);
    f->now_ms = 1013;
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(items[i]->times.received_ms, 1000);
        assert_int_equal(items[i]->times.claimed_ms, 1010);
        assert_int_equal(items[i]->times.started_ms, i ? 1013 : ONCE_NO_TIME);
        assert_int_equal(items[i]->times.settled_ms, ONCE_NO_TIME);
    }
    for (size_t i = 0; i < run->n; i++) run->items[i]->outcome = ONCE_DONE;
    f->now_ms = 1020;
    answer(f, run, ONCE_OK);
    settles(f, 2, ONCE_DONE);
    f->now_ms = 1043;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 1044;
    acks(f, 3);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 3, 30, 10);
    assert_timing(&timings->start, 2, 6, 3); /* not of the duplicate */
    assert_timing(&timings->settle, 2, 60, 30);
    assert_timing(&timings->ack, 3, 3, 1);
    assert_int_equal(timings->settle.bucket[5], 2); /* 16 ms and more, less than 32 */
    assert_int_equal(timings->ack.bucket[1], 3);
}

/* It counts once, with the claim and the start of the pass that was committed. */
static void a_pass_that_was_rolled_back_leaves_no_times(void **state)
{
    fixture *f = open_pipe(state, false);
    f->now_ms = 100;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_RETRY);
    f->now_ms = 150;
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    const once_item_times begun = f->machine->work.items[0]->times;
    assert_int_equal(begun.received_ms, 100);
    assert_int_equal(begun.claimed_ms, ONCE_NO_TIME);
    assert_int_equal(begun.started_ms, ONCE_NO_TIME);
    claims(f, 1);
    runs(f, 1, true, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 157;
    store_does(f, ONCE_ACT_COMMIT);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 1, 50, 50);
    assert_timing(&timings->start, 1, 0, 0);
    assert_timing(&timings->settle, 1, 7, 7);
    assert_timing(&timings->ack, 0, 0, 0);
}

static void effects_outside_have_times_of_their_own(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    f->now_ms = 10;
    fetch(f, 2, 0, items);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    f->now_ms = 20;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 21;
    starts(f, 2);
    f->now_ms = 60;
    finishes(f, items[1], ONCE_DONE); /* the second one first: its ack waits for the other one */
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 61;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 100;
    finishes(f, items[0], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 101;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 103;
    acks(f, 2);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 2, 0, 0);
    assert_timing(&timings->start, 2, 22, 11);
    assert_timing(&timings->settle, 2, 40 + 80, 80);
    assert_timing(&timings->ack, 2, 42 + 2, 42);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(messages_of_a_batch_share_the_times_of_their_stages),
        TEST(a_pass_that_was_rolled_back_leaves_no_times),
        TEST(effects_outside_have_times_of_their_own),
    };
    return cmocka_run_group_tests_name("machine_times", tests, NULL, NULL);
}
