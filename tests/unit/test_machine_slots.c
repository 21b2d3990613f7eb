/* The machine with a store in memory: handlers with and without a free slot, and what is taken for them. */
#include "machine_store_fixture.h"

static void no_more_is_on_its_way_behind_a_slow_one_than_can_be_kept_track_of(void **state)
{
    fixture *f = *state;
    f->slow = 1;
    open_pipe(f, false);
    work(f, 20000);
    assert_int_equal(f->held_n, 1);
    assert_int_equal(f->acked, 0);
    assert_in_range(f->fetched, 10 * BATCH, 64 * BATCH);
    const uint64_t before = f->fetched;
    work(f, 1000);
    assert_int_equal(f->fetched, before);
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 2000);
    assert_true(f->fetched > before + 10 * BATCH && f->acked > before);
}

static void a_handler_without_a_free_slot_holds_up_no_other(void **state)
{
    fixture *f = *state;
    f->turns = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 5000);
    assert_int_equal(f->held_n, SLOTS);
    assert_in_range(counts->done, 8 * BATCH - 2, 10 * BATCH);
    assert_in_range(f->acked, 0, 2); /* not beyond the first that is not over */
    const uint64_t fetched = f->fetched, done = counts->done;
    work(f, 1000);
    assert_int_equal(f->fetched, fetched); /* what waits is bounded */
    for (int i = 0; i < 20; i++) {
        end_held(f);
        work(f, 100);
    }
    assert_true(counts->done >= done + 20 * 2 * SLOTS - 2 * SLOTS); /* of both, as many */
    assert_true(f->acked > 2 && f->fetched > fetched);
}

/* What waits for long waits in the store, so that neither fetching nor acks stop for the other one. */
static void a_handler_that_waits_for_its_rate_holds_up_no_other(void **state)
{
    fixture *f = *state;
    f->turns = f->quick = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    f->both[1].gate.rate = (once_rate){1, 3600000};
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 5000);
    assert_true(counts->done > MANY && counts->waiting > MANY);
    assert_true(f->acked + 64 * BATCH > f->fetched);
    f->both[1].gate.rate = (once_rate){1000, 1000}; /* and they go on from there */
    f->bounded = true;
    for (int i = 0; i < 100000 && counts->waiting; i++) work(f, 1);
    assert_int_equal(counts->done, f->fetched);
    assert_int_equal(counts->attempts, f->fetched);
}

/* The same of what is in the store: a long backlog of a handler that is full is passed over. */
static void a_handler_without_a_free_slot_holds_up_nobody_in_the_inbox(void **state)
{
    enum { SLOW = 2500, FAST = 20 }; /* more than one search reads */
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = SLOW;
    f->left = SLOW + FAST;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    for (int i = 0; i < 10000 && f->left; i++) work(f, 1);
    work(f, 1000);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(counts->done, FAST);
    for (int i = 1; i <= 20;
         i++) { /* who was full goes on as soon as it has a slot, and not when the next look is due */
        const int64_t before_ms = f->now_ms;
        end_held(f);
        for (int steps = 0; steps < 30 && f->held_n < SLOTS; steps++) work(f, 1);
        assert_int_equal(f->held_n, SLOTS);
        assert_in_range(f->now_ms, before_ms, before_ms + 30);
        assert_int_equal(counts->done, FAST + i * SLOTS);
    }
}

/* Only the handler that got a slot is looked for, at once; the look at all of them comes when it was due before. */
static void a_take_for_who_was_full_is_due_at_once_and_postpones_no_other(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = f->left = 100;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    work(f, 300);
    assert_int_equal(f->held_n, SLOTS);
    unsigned at_once = 0, partial = 0;
    for (int i = 0; i < 20; i++) {
        for (int steps = 0; steps < 100 && m->due.at_ms <= f->now_ms + 7; steps++) work(f, 1); /* it is full: a look */
        f->now_ms += 7, test_env_pass(&f->world, 7);
        assert_true(m->due.at_ms > f->now_ms);
        end_held(f);
        for (int steps = 0; steps < 30 && f->held_n < SLOTS; steps++) {
            const int64_t look_ms = m->due.at_ms;
            if (once__machine_take_max(m, f->now_ms)) {
                assert_int_equal(once_machine_wait_ms(m, f->now_ms), 0);
                at_once++;
            }
            f->done_last = ONCE_ACT_NONE;
            step_store(f);
            if (f->done_last == ONCE_ACT_TAKE) {
                assert_false(m->due.all);
                assert_int_equal(m->due.at_ms, look_ms);
                partial++;
            }
            step_effects(f);
        }
        assert_int_equal(f->held_n, SLOTS);
    }
    assert_true(at_once >= 20 && partial >= 20);
}

static void go_to(fixture *f, int64_t at_ms)
{
    assert_true(at_ms >= f->now_ms);
    test_env_pass(&f->world, at_ms - f->now_ms);
    f->now_ms = at_ms;
}

/* Neither before its moment nor later, and not at all while nothing of it could start. */
static void what_is_due_is_looked_for_at_its_moment(void **state)
{
    fixture *f = *state;
    f->bounded = f->all_slow = true;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    for (int i = 0; i < 1000 && m->due.at_ms <= f->now_ms + 1; i++) work(f, 1);
    const int64_t at_ms = m->due.at_ms;
    assert_int_equal(once__machine_take_max(m, at_ms - 1), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms - 1), at_ms);
    assert_int_equal(once__machine_take_max(m, at_ms), SLOTS);
    once_gate *gate = &f->machine->gate.gates.at[0]; /* effects could not be started */
    gate->hold = ONCE_GATE_UNABLE;
    gate->at_ms = at_ms + 10;
    assert_int_equal(once__machine_take_max(m, at_ms + 9), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms + 9), ONCE_NEVER);
    assert_int_equal(once__machine_take_max(m, at_ms + 10), 1);
    assert_int_equal(once__machine_take_at_ms(m, at_ms + 10), at_ms);
    gate->hold = ONCE_GATE_OPEN;
    f->left = SLOTS;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(once__machine_take_max(m, m->due.at_ms), 0);
    assert_int_equal(once__machine_take_at_ms(m, m->due.at_ms), ONCE_NEVER);
}

/* The same while one of two handlers is full. */
static void what_is_due_beside_a_full_handler_is_looked_for_at_its_moment(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = f->left = 10;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    work(f, 300);
    assert_int_equal(f->held_n, SLOTS);
    for (int i = 0; i < 1000 && m->due.at_ms <= f->now_ms + 1; i++) work(f, 1);
    const int64_t at_ms = m->due.at_ms;
    assert_int_equal(once__machine_take_max(m, at_ms - 1), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms - 1), at_ms);
    assert_int_equal(once__machine_take_max(m, at_ms), BATCH); /* operations without a handler need no slot */
    go_to(f, at_ms);
    f->done_last = ONCE_ACT_NONE;
    for (int i = 0; i < 10 && f->done_last != ONCE_ACT_TAKE; i++) assert_true(step_store(f));
    assert_int_equal(f->done_last, ONCE_ACT_TAKE);
    assert_true(m->due.all && m->due.filtered);
    assert_true(m->due.at_ms > at_ms);
    f->all_slow = true;
    f->left = SLOTS; /* of the other one, which is full now, too */
    work(f, 500);
    assert_int_equal(f->held_n, 2 * SLOTS);
    assert_int_equal(once__machine_take_max(m, m->due.at_ms), 0);
    assert_int_equal(once__machine_take_at_ms(m, m->due.at_ms), ONCE_NEVER);
}

static void a_take_with_a_filter_whose_reply_was_lost_is_repeated(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = 10;
    f->left = 20;
    f->both[1].slots = SLOTS;
    f->lose = SLOTS; /* first of the slow ones ... */
    open_pipe(f, false);
    work(f, 200);
    assert_int_equal(f->held_n, SLOTS);
    f->lose = 1; /* ... then of one, while the other slot is in use */
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    f->held[0] = f->held[--f->held_n];
    work(f, 200);
    assert_int_equal(f->lose, 0);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->done, 10 + 1);
}

/* They come to wait in the store when the other side is down, so they need room there. */
static void who_waits_for_a_slot_counts_against_what_may_wait(void **state)
{
    fixture *f = *state;
    f->turns = true;
    f->both[1].slots = SLOTS;
    f->most.messages = BATCH;
    open_pipe(f, false);
    work(f, 2000);
    assert_int_equal(f->held_n, SLOTS);
    assert_in_range(f->fetched, 2 * BATCH, 6 * BATCH);
    const uint64_t fetched = f->fetched;
    for (int i = 0; i < 20; i++) {
        end_held(f);
        work(f, 100);
    }
    assert_true(f->fetched > fetched);
}

/* Nobody of a lane passes who waits for a slot: step_effects looks. */
static void who_waits_for_a_slot_is_not_passed_in_its_lane(void **state)
{
    fixture *f = *state;
    f->turns = f->in_pairs = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 2000);
    assert_int_equal(counts->done, 0);
    for (int i = 0; i < 100; i++) {
        end_held(f);
        work(f, 50);
    }
    assert_true(counts->done > 300);
    assert_int_equal(counts->waiting, 0); /* and none was parked in the store because of another */
}

/* One of its lane came with it and has a slot: it is behind that one, and not before it. */
static void who_has_no_slot_stands_behind_its_lane(void **state)
{
    fixture *f = *state;
    f->turns = f->bounded = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    f->left = 3;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS); /* 1 and 3 */
    f->lane = "one";
    f->slow = 4;
    f->left = 2;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 1); /* and 4, but not 5 */
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 1);
    assert_int_equal(counts->waiting, 0); /* nor is it put into the store */
    once_machine_finished(f->machine, &f->held[SLOTS], 1, f->now_ms);
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 2);
    once_machine_finished(f->machine, &f->held[SLOTS + 1], 1, f->now_ms);
    once_machine_finished(f->machine, &f->held[1], 1, f->now_ms);
    work(f, 100);
    assert_int_equal(counts->done, 5);
    assert_int_equal(f->acked, 5);
}

static void no_more_waits_behind_a_lane_than_two_batches(void **state)
{
    fixture *f = *state;
    f->slow = 1;
    f->lane = "one";
    open_pipe(f, false);
    work(f, 5000);
    assert_int_equal(f->held_n, 1);
    assert_in_range(f->fetched, 2 * BATCH, 5 * BATCH);
    const uint64_t before = f->fetched;
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 2000);
    assert_true(f->acked > before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_more_is_on_its_way_behind_a_slow_one_than_can_be_kept_track_of),
        TEST(a_handler_without_a_free_slot_holds_up_no_other),
        TEST(a_handler_that_waits_for_its_rate_holds_up_no_other),
        TEST(a_handler_without_a_free_slot_holds_up_nobody_in_the_inbox),
        TEST(a_take_for_who_was_full_is_due_at_once_and_postpones_no_other),
        TEST(what_is_due_is_looked_for_at_its_moment),
        TEST(what_is_due_beside_a_full_handler_is_looked_for_at_its_moment),
        TEST(a_take_with_a_filter_whose_reply_was_lost_is_repeated),
        TEST(who_waits_for_a_slot_counts_against_what_may_wait),
        TEST(who_waits_for_a_slot_is_not_passed_in_its_lane),
        TEST(who_has_no_slot_stands_behind_its_lane),
        TEST(no_more_waits_behind_a_lane_than_two_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
