/* The machine step by step: streams that share a transaction, wait for each other or not, and their acks. */
#include "machine_fixture.h"

static void a_stuck_stream_holds_up_no_other(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *slow[1], *other[1];
    fetch_of(f, 0, 1, 9, slow);
    send_out(f, 1);
    for (int i = 0; i < PARKED; i++) { /* all behind the slow one of their lane */
        fetch_of(f, 0, BATCH, 9, NULL);
        asks_nothing(f);
    }
    assert_places(f, 0, PARKED * BATCH, 0, 1, 0);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    assert_int_equal(action->max, BATCH);
    assert_int_equal(action->n_paused, 1);
    assert_int_equal(action->paused[0], 0);
    other[0] = fill(f, action->batch, f->made + 1, 0);
    other[0]->stream = 1;
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    send_out(f, 1);
    once_item copy = *other[0];
    settle_back(f, other[0]);
    acks_of(f, 1, &copy); /* and nothing of the first one */
    asks_no_acks(f);
}

/* Its handler has no slot left; a stream whose head needs none goes past it. */
static void a_stream_that_waits_for_a_slot_is_passed_over(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *items[4];
    fetch_of(f, 0, SLOTS + 1, 0, items);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, SLOTS);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, SLOTS);
    asks_nothing(f);
    assert_places(f, 1, 0, 0, SLOTS, 0);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    once_item *keyless = fill(f, action->batch, 99, 0);
    keyless->request.id = (once_hash){0}; /* a letter, which needs no slot */
    keyless->stream = 1;
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    assert_int_equal(asks_store(f, ONCE_ACT_BEGIN)->n, 1);
    assert_int_equal(keyless->place, ONCE_AT_WORK);
}

static void streams_share_a_transaction(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    once_item *first[BATCH], *second[BATCH];
    once_action *waits = asks_source(f, ONCE_ACT_FETCH);
    for (size_t i = 0; i < BATCH; i++) {
        once_batch *batch = waits->batch;
        once_item *item = fill(f, batch, f->made + 1, 0);
        item->stream = i >= BATCH / 2;
        if (item->stream) second[i - BATCH / 2] = item;
        else first[i] = item;
    }
    waits->batch->taken_in = true;
    answer(f, waits, ONCE_OK);
    once_action *begin = asks_store(f, ONCE_ACT_BEGIN);
    assert_int_equal(begin->n, BATCH);
    assert_ptr_equal(begin->items[0], first[0]);
    assert_ptr_equal(begin->items[BATCH / 2], second[0]);
}

/* A stream with much to do, and another one with one message: that one is in the next transaction. */
static void each_stream_has_its_turn(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    once_item *one;
    fetch_of(f, 0, BATCH - 1, 0, NULL);
    fetch_of(f, 0, BATCH, 0, NULL);
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    assert_null(action); /* enough is there that can go */
    works_on(f, BATCH);
    fetch_of(f, 1, 1, 0, &one);
    store_does(f, ONCE_ACT_COMMIT);
    (void)asks_store(f, ONCE_ACT_BEGIN);
    assert_int_equal(one->place, ONCE_AT_WORK);
}

static void single_acks_pass_what_is_not_over(void **state)
{
    fixture *f = open_streams(state, true, SINGLE, 1);
    once_item *items[2];
    fetch_of(f, 0, 2, 0, items);
    send_out(f, 2);
    once_item second = *items[1];
    settle_back(f, items[1]);
    acks_of(f, 0, &second);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->acked, 1);
    settle_back(f, items[0]);
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->receipts[0].delivery, 10);
    answer(f, action, ONCE_OK);
    assert_int_equal(once_stream_outstanding(f->machine->streams.at[0]), 0);
}

/* Only what is not acked counts: neither for the pause, nor for memory, nor for who looks. */
static void of_single_acks_a_slow_one_holds_up_nobody(void **state)
{
    fixture *f = open_streams(state, true, SINGLE, 1);
    const once_stream *stream = f->machine->streams.at[0];
    once_item *slow, *item;
    fetch_of(f, 0, 1, 0, &slow);
    send_out(f, 1);
    for (size_t i = 0; i < 2 * OUTSTANDING * BATCH; i++) {
        fetch_of(f, 0, 1, 0, &item);
        assert_false(f->machine->source.action.n_paused);
        send_out(f, 1);
        once_item copy = *item;
        settle_back(f, item);
        acks_of(f, 0, &copy);
        assert_int_equal(once_stream_outstanding(stream), 1);
    }
    once_stream_view view;
    uint32_t at = 0;
    assert_true(once_machine_next_stream(f->machine, &at, f->now_ms, &view));
    assert_int_equal(view.open, 1);
    assert_int_equal(view.paused_ms, 0);
    assert_in_range(stream->open.size, 2, 16);
    once_item copy = *slow;
    settle_back(f, slow);
    acks_of(f, 0, &copy);
    assert_int_equal(once_stream_outstanding(stream), 0);
}

/* Without an ack it goes on for as long as there is room. */
static void of_single_acks_too_many_that_wait_pause_the_stream(void **state)
{
    fixture *f = open_streams(state, false, SINGLE, 1);
    for (size_t i = 0; i < OUTSTANDING - 1; i++) {
        fetch_of(f, 0, BATCH, 0, NULL);
        works_on(f, BATCH);
        store_does(f, ONCE_ACT_COMMIT);
    }
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, (OUTSTANDING - 1) * BATCH);
    answer(f, action, ONCE_OK);
    (void)asks_source(f, ONCE_ACT_FETCH);
}

static void of_an_ack_that_failed_in_part_the_rest_is_repeated(void **state)
{
    fixture *f = open_streams(state, false, SINGLE, 1);
    fetch_of(f, 0, 3, 0, NULL);
    works_on(f, 3);
    store_does(f, ONCE_ACT_COMMIT);
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 3);
    action->receipts[0].answer = ONCE_RECEIPT_DONE;
    action->receipts[2].answer = ONCE_RECEIPT_GONE;
    answer(f, action, ONCE_E_UNAVAILABLE);
    asks_no_acks(f);
    f->now_ms += once_machine_source_wait_ms(f->machine, f->now_ms);
    while (!(action = once_machine_ack_action(f->machine, f->now_ms))) f->now_ms += 10;
    assert_int_equal(action->n, 1);
    assert_int_equal(action->receipts[0].delivery, 20);
    answer(f, action, ONCE_OK);
    assert_int_equal(once_machine_counts(f->machine)->acked, 2);
    assert_int_equal(once_machine_gone(f->machine), 1);
}

static void a_source_is_asked_for_news_while_nothing_may_be_fetched(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    fetch_of(f, 0, BATCH, 9, NULL);
    send_out(f, 1);
    for (int i = 0; i < PARKED; i++) {
        asks_nothing(f);
        fetch_of(f, 0, BATCH, 9, NULL);
    }
    asks_nothing(f);
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    assert_in_range(once_machine_source_wait_ms(f->machine, f->now_ms), 1, BEAT_MS / 2);
    f->now_ms += BEAT_MS / 2; /* whoever carries it out may be late */
    once_action *beat = asks_source(f, ONCE_ACT_FETCH);
    assert_int_equal(beat->max, 0);
    answer(f, beat, ONCE_OK);
    assert_null(once_machine_source_action(f->machine, f->now_ms));
}

static void a_source_that_fails_is_asked_as_often_as_it_wants(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    for (int i = 0; i < 30; i++) { /* the pauses would grow to seconds */
        answer(f, asks_source(f, ONCE_ACT_FETCH), ONCE_E_UNAVAILABLE);
        const int64_t failed_ms = f->now_ms;
        while (f->now_ms < f->machine->source.at_ms) f->now_ms++;
        assert_in_range(f->now_ms - failed_ms, 1, BEAT_MS / 2);
    }
}

/* It has had too much, went on, and nothing is fetched because the store is away: it does not stand still since then.
 */
static void a_stream_that_went_on_is_not_paused_since_before(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *items[BATCH];
    fetch_of(f, 0, BATCH, 9, items);
    send_out(f, 1);
    for (int i = 0; i < PARKED; i++) {
        asks_nothing(f);
        fetch_of(f, 0, BATCH, 9, NULL);
    }
    asks_nothing(f);
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    const once_stream *stream = f->machine->streams.at[0];
    assert_int_equal(stream->paused_at_ms, f->now_ms);
    for (int i = 0; i < BATCH; i++) {
        settle_back(f, items[i]);
        if (i + 1 < BATCH) send_out(f, 1);
    }
    answer(f, asks_store(f, ONCE_ACT_BEGIN), ONCE_E_UNAVAILABLE);
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    assert_int_equal(stream->paused_at_ms, ONCE_NO_TIME);
}

/* More would only wait, too. */
static void with_one_handler_all_streams_together_wait_for_its_slots(void **state)
{
    fixture *f = open_streams(state, true, 0, 4);
    fetch_of(f, 0, SLOTS, 0, NULL);
    send_out(f, SLOTS);
    for (uint32_t stream = 0; stream < 2; stream++) {
        fetch_of(f, stream, BATCH, 0, NULL);
        asks_nothing(f);
    }
    assert_null(once_machine_source_action(f->machine, f->now_ms));
    f->now_ms += BEAT_MS;
    once_action *beat = asks_source(f, ONCE_ACT_FETCH);
    assert_int_equal(beat->max, 0);
    answer(f, beat, ONCE_OK);
}

static void a_fetch_is_woken_when_a_paused_stream_can_be_fetched_again(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *items[BATCH + 1];
    fetch_of(f, 0, SLOTS, 0, items);
    send_out(f, SLOTS);
    fetch_of(f, 0, BATCH, 0, items + SLOTS - 1); /* they wait for a slot */
    once_action *fetch = asks_source(f, ONCE_ACT_FETCH);
    assert_true(fetch->n_paused == 1 && fetch->paused[0] == 0);
    asks_nothing(f);
    assert_false(once_machine_wakes_fetch(f->machine, f->now_ms));
    finishes(f, items[0], ONCE_DONE);
    (void)asks_store(f, ONCE_ACT_BEGIN);
    assert_true(once_machine_wakes_fetch(f->machine, f->now_ms));
    assert_false(once_machine_wakes_fetch(f->machine, f->now_ms)); /* once is enough */
    answer(f, fetch, ONCE_OK);
    assert_false(once_machine_wakes_fetch(f->machine, f->now_ms));
}

enum { PAUSE_MS = 50 };

/* Two of three messages are over: the first one is acked, the second one waits for the pause after that ack. */
static fixture *open_pausing(void **state, once_item *items[3], once_item *second)
{
    ((fixture *)*state)->ack_pause_ms = PAUSE_MS;
    fixture *f = open_streams(state, false, 0, 2);
    once_item first;
    for (int i = 0; i < 2; i++) {
        fetch_of(f, 0, 1, 0, &items[i]);
        *(i ? second : &first) = *items[i];
        works_on(f, 1);
        if (i) fetch_of(f, 0, 1, 0, &items[2]);
        store_does(f, ONCE_ACT_COMMIT);
        if (!i) acks_of(f, 0, &first); /* at once: nothing else is here */
    }
    return f;
}

static void acks_wait_while_more_is_worked_on(void **state)
{
    once_item *items[3], second;
    fixture *f = open_pausing(state, items, &second);
    asks_no_acks(f);
    assert_int_equal(once_machine_source_wait_ms(f->machine, f->now_ms), PAUSE_MS);
    assert_int_equal(once_machine_acks_at_ms(f->machine, f->now_ms), f->now_ms + PAUSE_MS); /* nobody is woken before */
    f->now_ms += PAUSE_MS;
    assert_int_equal(once_machine_acks_at_ms(f->machine, f->now_ms), f->now_ms);
    acks_of(f, 0, &second);
    asks_no_acks(f);
}

static void acks_do_not_wait_for_nothing(void **state)
{
    once_item *items[3], second;
    fixture *f = open_pausing(state, items, &second);
    asks_no_acks(f);
    const once_item third = *items[2];
    works_on(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    acks_of(f, 0, &third);
}

static void a_revoked_stream_and_a_stop_do_not_wait_for_acks(void **state)
{
    once_item *items[3], second;
    fixture *f = open_pausing(state, items, &second);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_int_equal(once_machine_acks_at_ms(f->machine, f->now_ms), f->now_ms);
    acks_of(f, 0, &second);
    releases(f, 0);
    f->now_ms += PAUSE_MS;
    for (int i = 0; i < 2; i++) {
        fetch_of(f, 1, 1, 0, &items[0]);
        second = *items[0];
        works_on(f, 1);
        if (i) fetch_of(f, 1, 1, 0, NULL);
        store_does(f, ONCE_ACT_COMMIT);
        if (!i) acks_of(f, 1, &second);
    }
    asks_no_acks(f);
    once_machine_stop(f->machine);
    assert_int_equal(once_machine_acks_at_ms(f->machine, f->now_ms), f->now_ms);
    acks_of(f, 1, &second);
}

/* The store's thread finds that nothing is left to do; that of the acks sleeps meanwhile. */
static void acks_are_woken_to_release_streams_at_a_stop(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    asks_nothing(f);
    assert_false(once_machine_wakes_acks(f->machine));
    once_machine_stop(f->machine);
    asks_nothing(f);
    assert_true(once_machine_wakes_acks(f->machine));
    assert_false(once_machine_wakes_acks(f->machine));
    releases(f, 0);
    releases(f, 1);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
}

/* The store fails for good after a commit: what was committed is acked all the same. */
static void f59_what_is_committed_is_acked_before_a_failed_run_ends(void **state)
{
    once_item *items[3], second;
    fixture *f = open_pausing(state, items, &second);
    once_error why;
    (void)once_fail(&why, ONCE_E_FULL, "the disk is full");
    asks_no_acks(f);
    once__machine_give_up(f->machine, ONCE_E_FULL, &why);
    (void)once_machine_store_action(f->machine, f->now_ms);
    assert_false(once_machine_ended(f->machine));
    acks_of(f, 0, &second);
}

static void acks_do_not_wait_until_their_stream_is_paused(void **state)
{
    once_item *items[3], second;
    fixture *f = open_pausing(state, items, &second);
    for (int i = 0; i < OUTSTANDING / 2; i++) {
        asks_no_acks(f);
        fetch_of(f, 0, BATCH, 0, NULL);
        works_on(f, BATCH);
        store_does(f, ONCE_ACT_COMMIT);
    }
    (void)asks_acks(f, ONCE_ACT_ACK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stuck_stream_holds_up_no_other),
        TEST(a_stream_that_waits_for_a_slot_is_passed_over),
        TEST(streams_share_a_transaction),
        TEST(each_stream_has_its_turn),
        TEST(single_acks_pass_what_is_not_over),
        TEST(of_single_acks_a_slow_one_holds_up_nobody),
        TEST(of_single_acks_too_many_that_wait_pause_the_stream),
        TEST(of_an_ack_that_failed_in_part_the_rest_is_repeated),
        TEST(a_source_is_asked_for_news_while_nothing_may_be_fetched),
        TEST(a_source_that_fails_is_asked_as_often_as_it_wants),
        TEST(a_stream_that_went_on_is_not_paused_since_before),
        TEST(with_one_handler_all_streams_together_wait_for_its_slots),
        TEST(a_fetch_is_woken_when_a_paused_stream_can_be_fetched_again),
        TEST(acks_wait_while_more_is_worked_on),
        TEST(acks_do_not_wait_for_nothing),
        TEST(a_revoked_stream_and_a_stop_do_not_wait_for_acks),
        TEST(acks_are_woken_to_release_streams_at_a_stop),
        TEST(f59_what_is_committed_is_acked_before_a_failed_run_ends),
        TEST(acks_do_not_wait_until_their_stream_is_paused),
    };
    return cmocka_run_group_tests_name("machine_streams", tests, NULL, NULL);
}
