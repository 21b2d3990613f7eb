/* The machine step by step: streams whose position the store keeps. */
#include "machine_fixture.h"

static void seeks(fixture *f, uint32_t stream)
{
    once_action *action = asks_store(f, ONCE_ACT_SEEK);
    assert_int_equal(action->stream, stream);
    answer(f, action, ONCE_OK);
}

static void a_stream_that_is_assigned_is_told_where_it_goes_on(void **state)
{
    fixture *f = open_streams(state, false, ONCE_SOURCE_CURSOR, 2);
    seeks(f, 0);
    seeks(f, 1);
    asks_nothing(f);
    hears(f, ONCE_STREAM_ASSIGNED, 1); /* it has not changed */
    asks_nothing(f);
    hears(f, ONCE_STREAM_ASSIGNED, 2);
    answer(f, asks_store(f, ONCE_ACT_SEEK), ONCE_E_UNAVAILABLE);
    asks_nothing(f);
    f->now_ms += 1000;
    seeks(f, 2); /* it is asked for until it is done */
    assert_int_equal(f->machine->streams.to_seek, 0);
}

/* Told to stop, what is under way is settled: the answer was the source's, and the store is there. */
static void a_seek_that_fails_at_a_stop_costs_nothing(void **state)
{
    fixture *f = open_streams(state, true, ONCE_SOURCE_CURSOR, 1);
    once_item *flying;
    seeks(f, 0);
    fetch_of(f, 0, 1, 0, &flying);
    send_out(f, 1);
    hears(f, ONCE_STREAM_ASSIGNED, 1);
    once_action *seek = asks_store(f, ONCE_ACT_SEEK);
    once_machine_stop(f->machine);
    answer(f, seek, ONCE_E_BUSY);
    asks_nothing(f); /* it is not repeated */
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
    const once_item copy = *flying;
    settle_back(f, flying);
    acks_of(f, 0, &copy);
    asks_nothing(f);
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(once_machine_unsettled(f->machine), 0);
}

/* Neither the other streams nor what the store has to do besides. */
static void a_stream_that_cannot_be_gone_on_with_holds_up_nobody(void **state)
{
    fixture *f = open_streams(state, false, ONCE_SOURCE_CURSOR, 3);
    once_item *item;
    answer(f, asks_store(f, ONCE_ACT_SEEK), ONCE_E_BUSY);
    seeks(f, 1);
    seeks(f, 2);
    for (int i = 0; i < 30; i++) {
        fetch_of(f, 1, 1, 0, &item);
        const once_item copy = *item;
        works_on(f, 1);
        store_does(f, ONCE_ACT_COMMIT);
        acks_of(f, 1, &copy);
        f->machine->due.at_ms = f->machine->store.sweep_at_ms = f->now_ms + 1000000; /* they are not what is tested */
        assert_in_range(once_machine_wait_ms(f->machine, f->now_ms), 0, 10000);
        f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
        answer(f, asks_store(f, ONCE_ACT_SEEK), ONCE_E_UNAVAILABLE);
        f->now_ms += 10000; /* it is due again, and waits for one transaction */
    }
    assert_int_equal(f->machine->streams.at[0]->seek_tries, 31);
    assert_int_equal(f->machine->store.tries, 0);
    seeks(f, 0);
    asks_nothing(f);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
}

static void a_seek_that_cannot_succeed_ends_the_run(void **state)
{
    static const int why[] = {ONCE_E_CORRUPT, ONCE_E_CONFIG, ONCE_E_MESSAGE};
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        fixture *f = open_streams(state, true, ONCE_SOURCE_CURSOR, 1);
        once_item *flying;
        seeks(f, 0);
        fetch_of(f, 0, 1, 0, &flying);
        send_out(f, 1);
        hears(f, ONCE_STREAM_ASSIGNED, 1);
        answer(f, asks_store(f, ONCE_ACT_SEEK), why[i]);
        assert_int_equal(once_machine_status(f->machine, NULL), why[i]);
        const once_item copy = *flying;
        settle_back(f, flying); /* the store is there */
        acks_of(f, 0, &copy);
        asks_nothing(f);
        answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
        answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
        asks_nothing(f);
        assert_true(once_machine_ended(f->machine));
        assert_int_equal(once_machine_unsettled(f->machine), 0);
        once_machine_free(f->machine);
        *f = (fixture){0};
    }
}

static void a_stream_that_left_is_told_nothing(void **state)
{
    fixture *f = open_streams(state, false, ONCE_SOURCE_CURSOR, 1);
    hears(f, ONCE_STREAM_REVOKED, 0);
    asks_nothing(f);
    releases(f, 0);
    hears(f, ONCE_STREAM_ASSIGNED, 0);
    once_action *action = asks_store(f, ONCE_ACT_SEEK);
    hears(f, ONCE_STREAM_LOST, 0);
    releases(f, 0);
    hears(f, ONCE_STREAM_ASSIGNED, 0); /* another one under its number: the answer is not about it */
    answer(f, action, ONCE_OK);
    seeks(f, 0);
    asks_nothing(f);
}

/* Of the batch nothing else is left, and its stream is lost while the commit is out: what the source keeps with it is
 * still there to be read. */
static void what_a_cursor_is_kept_at_stays_until_the_commit_is_answered(void **state)
{
    fixture *f = open_streams(state, true, ONCE_SOURCE_CURSOR, 1);
    once_item *first[1], *others[2];
    seeks(f, 0);
    fetch_of(f, 0, 1, 0, first);
    send_out(f, 1);
    settle_back(f, first[0]);
    assert_int_equal(first[0]->batch->open, 1); /* for the cursor */
    fetch_of(f, 0, 2, 0, others);
    send_out(f, 2);
    finishes(f, others[1], ONCE_DONE); /* the one before it is still away */
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_int_equal(commit->n, 1);
    assert_int_equal(commit->n_last, 1);
    assert_ptr_equal(commit->last[0], first[0]);
    hears(f, ONCE_STREAM_LOST, 0);
    assert_int_equal(first[0]->batch->open, 1);
    assert_null(once__machine_check(f->machine));
    once_batch *batch = first[0]->batch;
    answer(f, commit, ONCE_OK);
    assert_int_equal(batch->open, 0);
}

/* Effects end in any order. The cursor follows those that are over without a gap, whatever is over behind them. */
static void a_cursor_moves_although_later_messages_ended_first(void **state)
{
    fixture *f = open_streams(state, true, ONCE_SOURCE_CURSOR, 1);
    once_item *items[3];
    seeks(f, 0);
    fetch_of(f, 0, 2, 0, items);
    send_out(f, 2);
    fetch_of(f, 0, 1, 0, &items[2]);
    items[2]->request.id = (once_hash){0}; /* it has no key: a letter, at once */
    store_does(f, ONCE_ACT_BEGIN);
    store_does(f, ONCE_ACT_BURY);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_int_equal(commit->n_last, 0);
    answer(f, commit, ONCE_OK);
    finishes(f, items[0], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_int_equal(commit->n_last, 1);
    assert_ptr_equal(commit->last[0], items[0]);
    answer(f, commit, ONCE_OK);
    finishes(f, items[1], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_int_equal(commit->n_last, 1);
    assert_ptr_equal(commit->last[0], items[2]);
    answer(f, commit, ONCE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stream_that_is_assigned_is_told_where_it_goes_on),
        TEST(a_seek_that_fails_at_a_stop_costs_nothing),
        TEST(a_stream_that_cannot_be_gone_on_with_holds_up_nobody),
        TEST(a_seek_that_cannot_succeed_ends_the_run),
        TEST(a_stream_that_left_is_told_nothing),
        TEST(what_a_cursor_is_kept_at_stays_until_the_commit_is_answered),
        TEST(a_cursor_moves_although_later_messages_ended_first),
    };
    return cmocka_run_group_tests_name("machine_cursors", tests, NULL, NULL);
}
