/* The machine with a store in memory: a source, a store or effects that fail for a while. */
#include <limits.h>

#include "machine_store_fixture.h"

static void a_source_that_fails_now_and_then_is_not_given_up(void **state)
{
    fixture *f = *state;
    f->slow = 1; /* nothing is acked: only what is fetched says that the source is well */
    open_pipe(f, true);
    for (int i = 0; i < 30; i++) {
        f->fetch_status = ONCE_E_UNAVAILABLE;
        while (!step_source(f)) work(f, 1);
        const uint64_t before = f->fetched;
        f->fetch_status = ONCE_OK;
        while (f->fetched == before && !once_machine_ended(f->machine)) work(f, 1);
        assert_false(once_machine_ended(f->machine));
    }
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    f->fetch_status = ONCE_E_UNAVAILABLE; /* and now it does not come back */
    for (int i = 0; i < 100000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_UNAVAILABLE);
}

static void f46_nothing_is_fetched_while_the_store_is_away(void **state)
{
    fixture *f = *state;
    open_pipe(f, false);
    work(f, 200);
    f->store_status = ONCE_E_UNAVAILABLE;
    while (!f->refused) work(f, 1);
    const uint64_t before = f->fetched, acked = f->acked;
    work(f, 2000);
    assert_int_equal(f->fetched, before);
    assert_int_equal(f->acked, acked);
    f->store_status = ONCE_OK;
    work(f, 4000);
    assert_true(f->fetched > before + 10 * BATCH && f->acked > before);
}

/* The executor says that nothing was tried, and leaves it to the machine to end the transaction. */
static void a_commit_that_was_not_tried_is_rolled_back_by_the_machine(void **state)
{
    fixture *f = *state;
    f->atomic = f->bounded = true;
    f->left = BATCH;
    open_pipe(f, false);
    assert_true(once_failpoints_arm("commit_before:error", NULL, 0));
    while (f->done_last != ONCE_ACT_COMMIT) work(f, 1);
    assert_true(f->executor.in_tx);
    assert_true(step_store(f));
    assert_int_equal(f->done_last, ONCE_ACT_ROLLBACK);
    assert_false(f->executor.in_tx);
    for (int i = 0; i < 1000 && f->acked < BATCH; i++) work(f, 1);
    assert_int_equal(f->acked, BATCH);
    assert_int_equal(once_machine_counts(f->machine)->done, BATCH);
    assert_true(once_failpoints_arm(NULL, NULL, 0));
}

/* A finite source, too: somebody may make room. When its patience is over, it says so. */
static void f52_a_full_store_is_waited_for(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    f->slow = 0;
    open_pipe(f, true);
    f->spec.patience_ms = 60000;
    work(f, 50);
    f->store_status = ONCE_E_FULL;
    while (!f->refused) work(f, 1);
    const uint64_t before = f->fetched, acked = f->acked;
    for (int64_t since_ms = f->now_ms; f->now_ms - since_ms < 50000;) work(f, 1);
    assert_false(once_machine_ended(f->machine));
    assert_int_equal(f->fetched, before);
    assert_int_equal(f->acked, acked);
    f->store_status = ONCE_OK;
    work(f, 20000);
    assert_false(once_machine_ended(f->machine));
    assert_true(f->acked > acked);
    f->store_status = ONCE_E_FULL;
    const int64_t since_ms = f->now_ms;
    while (!once_machine_ended(f->machine) && f->now_ms - since_ms < 1000000) work(f, 1);
    assert_in_range(f->now_ms - since_ms, 60000, 90000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_FULL);
    assert_non_null(strstr(err.text, "gave up: run again when there is space, or raise 'patience' (1m)"));
}

/* What the store has claimed for us by then is ours, whatever came from the source meanwhile. The leases are much
 * longer than this test. */
static void f76_a_take_whose_reply_was_lost_is_asked_for_as_a_whole(void **state)
{
    fixture *f = *state;
    f->bounded = true;
    f->left = f->failing = SLOTS;
    f->slow = SLOTS + 1;
    open_pipe(f, false);
    while (f->failing) work(f, 1);
    while (step_store(f) || step_source(f)) continue;
    f->now_ms += 2 * RETRY_MS; /* by our clock only: a take that finds nothing */
    assert_true(step_store(f));
    once_action *fetch =
        once_machine_source_action(f->machine, f->now_ms); /* it takes so long that the store has failed meanwhile */
    assert_true(fetch && fetch->kind == ONCE_ACT_FETCH);
    f->lose = SLOTS;
    test_env_pass(&f->world, RETRY_MS);
    f->now_ms += RETRY_MS;
    assert_true(step_store(f) && f->lose == 0);
    fill(f, fetch->batch, SLOTS);
    fetch->status = ONCE_OK;
    once_machine_step(f->machine, fetch, f->now_ms);
    work(f, 2000);
    assert_int_equal(f->held_n, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, SLOTS + SLOTS - 1);
}

static int64_t troubled_for(fixture *f, int64_t most_ms)
{
    const int64_t since_ms = f->now_ms;
    while (f->now_ms - since_ms < most_ms && !once_machine_ended(f->machine)) work(f, 1);
    return f->now_ms - since_ms;
}

/* Nothing is left but messages of a handler that cannot work. */
static void effects_that_cannot_be_started_end_a_finite_run_when_its_patience_is_over(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    f->bounded = f->source_ends = true;
    f->left = 5 * SLOTS;
    open_pipe(f, true);
    f->spec.patience_ms = 60000;
    f->run_failure = ONCE_E_UNAVAILABLE;
    assert_in_range(troubled_for(f, 1000000), 60000, 90000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_PAUSED);
    assert_non_null(strstr(err.text, "is paused: no process is left; gave up"));
    assert_non_null(strstr(err.text, "'patience' (1m)"));
    assert_true(once_machine_ended_at_bound(f->machine));
    assert_int_equal(once_machine_counts(f->machine)->waiting, 5 * SLOTS);
}

/* Behind a breaker one message a minute is tried: it would take days until the last of them is dead. */
static void f95_an_outage_without_end_ends_a_finite_run_after_the_time_of_its_retries(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    f->bounded = f->source_ends = true;
    f->left = 5 * SLOTS;
    f->failing = UINT_MAX;
    open_pipe(f, true);
    f->handler.retry = (once_retry){.attempts = 30, .min_ms = 10000, .max_ms = 10000};
    f->handler.gate.breaker = (once_breaker){.share = 50, .of = 4, .within_ms = 60000};
    assert_in_range(troubled_for(f, 10000000), 29 * 10000, 40 * 10000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_PAUSED);
    assert_non_null(strstr(err.text, "is paused by its breaker"));
    assert_int_equal(once_machine_counts(f->machine)->waiting, 5 * SLOTS);
}

static void effects_that_can_be_started_again_in_time_end_it_well(void **state)
{
    fixture *f = *state;
    f->bounded = f->source_ends = true;
    f->left = 5 * SLOTS;
    open_pipe(f, true);
    f->spec.patience_ms = 60000;
    f->run_failure = ONCE_E_UNAVAILABLE;
    assert_true(troubled_for(f, 50000) >= 50000);
    f->run_failure = ONCE_OK;
    assert_true(troubled_for(f, 30000) < 30000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(once_machine_counts(f->machine)->done, 5 * SLOTS);
}

/* Everything is settled and the source has ended; nothing is acked yet. */
static void settle_all_without_acks(fixture *f)
{
    f->bounded = f->source_ends = true;
    f->left = 5 * SLOTS;
    open_pipe(f, true);
    for (int i = 0; i < 10000 && !f->machine->end.stopping; i++) {
        const bool source = step_source(f), store = step_store(f), effects = step_effects(f);
        if (!source && !store && !effects) f->now_ms += 10, test_env_pass(&f->world, 10);
    }
    assert_true(f->machine->end.stopping && f->acked == 0);
}

static void f08_the_last_ack_of_a_finite_source_is_tried_again(void **state)
{
    fixture *f = *state;
    settle_all_without_acks(f);
    f->ack_fails = 3;
    work(f, 2000);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(f->acked, 5 * SLOTS);
}

static void acks_that_always_fail_end_it_with_an_error_when_its_patience_is_over(void **state)
{
    fixture *f = *state;
    settle_all_without_acks(f);
    f->spec.patience_ms = 60000;
    f->ack_fails = UINT_MAX;
    const int64_t before_ms = f->now_ms;
    for (int i = 0; i < 20000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_in_range(f->now_ms - before_ms, 60000, 80000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_UNAVAILABLE);
    assert_int_equal(f->acked, 0);
}

static void whoever_wants_a_stop_does_not_wait_for_acks_that_fail(void **state)
{
    fixture *f = *state;
    settle_all_without_acks(f);
    once_machine_stop(f->machine);
    f->ack_fails = 1;
    const int64_t before_ms = f->now_ms;
    work(f, 10);
    assert_true(once_machine_ended(f->machine) && f->now_ms - before_ms <= 100);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_UNAVAILABLE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_source_that_fails_now_and_then_is_not_given_up),
        TEST(f46_nothing_is_fetched_while_the_store_is_away),
        TEST(f76_a_take_whose_reply_was_lost_is_asked_for_as_a_whole),
        TEST(a_commit_that_was_not_tried_is_rolled_back_by_the_machine),
        TEST(f52_a_full_store_is_waited_for),
        TEST(effects_that_cannot_be_started_end_a_finite_run_when_its_patience_is_over),
        TEST(f95_an_outage_without_end_ends_a_finite_run_after_the_time_of_its_retries),
        TEST(effects_that_can_be_started_again_in_time_end_it_well),
        TEST(f08_the_last_ack_of_a_finite_source_is_tried_again),
        TEST(acks_that_always_fail_end_it_with_an_error_when_its_patience_is_over),
        TEST(whoever_wants_a_stop_does_not_wait_for_acks_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
