/* The machine with a store in memory: a stop gives what the source does not deliver again to the store. */
#include "machine_store_fixture.h"

/* In flight, behind it, in the queue, in the source: all of it is over or in the store. */
static void f59_a_stop_gives_what_comes_once_to_the_store(void **state)
{
    fixture *f = *state;
    for (int lane = 0; lane < 2; lane++) {
        *f = (fixture){
            .accepts_at_stop = true, .bounded = true, .left = 10 * BATCH, .slow = 1, .lane = lane ? "one" : NULL};
        open_pipe(f, false);
        while (!f->held_n) work(f, 1);
        const uint64_t before = f->fetched;
        assert_true(before < 10 * BATCH);
        stop(f);
        const once_counts *counts = once_machine_counts(f->machine);
        assert_int_equal(once_machine_unfinished(f->machine), 0);
        assert_int_equal(f->left, 0);
        assert_int_equal(f->acked, 10 * BATCH);
        assert_int_equal(counts->received, 10 * BATCH);
        assert_int_equal(counts->done + counts->waiting, 10 * BATCH);
        assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
        if (lane) continue;
        close_pipe(f);
    }
}

/* What has begun is brought to an end as what it is: put back, found to be done, or failed. Only what has not is given
 * to the store. */
static void f59_a_stop_gives_who_waits_for_a_slot_to_the_store(void **state)
{
    fixture *f = *state;
    f->turns = f->accepts_at_stop = f->bounded = true;
    f->both[1].slots = SLOTS;
    f->left = 5 * BATCH;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 1000);
    assert_int_equal(counts->done, 5 * BATCH / 2);
    assert_int_equal(f->held_n, SLOTS);
    once_machine_stop(f->machine);
    work(f, 100);
    end_held(f);
    for (int i = 0; i < 1000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(counts->done, 5 * BATCH / 2 + SLOTS);
    assert_int_equal(counts->waiting, 5 * BATCH / 2 - SLOTS);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

static void f59_a_stop_does_not_accept_what_has_begun(void **state)
{
    fixture *f = *state;
    enum { NEW, HELD, COMMIT_UNKNOWN, ENDED_TX, CASES };
    for (int what = 0; what < CASES; what++) {
        *f = (fixture){.accepts_at_stop = true, .bounded = true, .left = 1, .atomic = true, .unclean = what == HELD};
        if (what == COMMIT_UNKNOWN)
            f->fail_at = ONCE_ACT_COMMIT, f->fails = 1, f->fail_status = ONCE_E_UNAVAILABLE, f->happens = true;
        if (what == ENDED_TX) f->poison = f->hangs = 1, f->ends = true;
        open_pipe(f, false);
        static const once_action_kind lasts[] = {ONCE_ACT_NONE, ONCE_ACT_CLAIM, ONCE_ACT_COMMIT, ONCE_ACT_ROLLBACK};
        const once_action_kind last = lasts[what];
        while (f->left) step_source(f);
        for (int i = 0; i < 1000 && f->done_last != last; i++) step_store(f);
        assert_int_equal(f->done_last, last);
        stop(f);
        const once_counts *counts = once_machine_counts(f->machine);
        once_stats stats;
        assert_int_equal(f->store->ops->stats(f->store, f->spec.consumer, &stats, NULL), ONCE_OK);
        assert_int_equal(stats.claimed, 0);
        assert_int_equal(counts->received, 1);
        assert_int_equal(counts->done, what == COMMIT_UNKNOWN);
        assert_int_equal(counts->retries, what == ENDED_TX);
        assert_int_equal(counts->waiting, what != COMMIT_UNKNOWN);
        if (what == CASES - 1) break;
        close_pipe(f);
    }
}

static void f59_a_stop_counts_what_comes_once_and_could_not_be_kept(void **state)
{
    fixture *f = *state;
    *f = (fixture){.accepts_at_stop = true, .bounded = true, .left = 2 * BATCH, .slow = 1};
    open_pipe(f, false);
    while (!f->held_n || f->left) work(f, 1);
    f->store_status = ONCE_E_UNAVAILABLE;
    stop(f);
    assert_int_equal(once_machine_unfinished(f->machine) + once_machine_counts(f->machine)->received, 2 * BATCH);
    assert_true(once_machine_unfinished(f->machine) > 0);
    assert_in_range(once_machine_unsettled(f->machine), 1, SLOTS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(f59_a_stop_gives_who_waits_for_a_slot_to_the_store),
        TEST(f59_a_stop_gives_what_comes_once_to_the_store),
        TEST(f59_a_stop_does_not_accept_what_has_begun),
        TEST(f59_a_stop_counts_what_comes_once_and_could_not_be_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
