/* The machine step by step: deliveries that expire. */
#include "machine_fixture.h"

/* What is over while its extension is under way is acked, and counted then. */
static void what_is_gone_and_over_is_counted_once(void **state)
{
    fixture *f = open_streams(state, true, SINGLE | EXPIRES, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    send_out(f, 1);
    f->now_ms += EXPIRES_MS / 3;
    once_action *extend = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
    store_does(f, ONCE_ACT_TAKE);
    settle_back(f, item);
    extend->receipts[0].answer = ONCE_RECEIPT_GONE;
    answer(f, extend, ONCE_OK);
    once_action *ack = asks_acks(f, ONCE_ACT_ACK);
    ack->receipts[0].answer = ONCE_RECEIPT_GONE;
    answer(f, ack, ONCE_OK);
    assert_int_equal(once_machine_gone(f->machine), 1);
}

/* One that flies, one that is parked, one that is ready: the three of them, in this order. */
static fixture *three_wait(void **state, once_item *items[3])
{
    fixture *f = open_streams(state, true, SINGLE | EXPIRES, 1);
    fetch_of(f, 0, 2, 9, items);
    send_out(f, 1);
    asks_nothing(f);
    fetch_of(f, 0, 1, 0, &items[2]);
    assert_places(f, 1, 1, 0, 1, 0);
    return f;
}

static once_action *extends_deliveries(fixture *f)
{
    asks_no_acks(f);
    assert_in_range(once_machine_source_wait_ms(f->machine, f->now_ms), 0, EXPIRES_MS / 3);
    f->now_ms += EXPIRES_MS / 3;
    return asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
}

static void deliveries_are_extended_wherever_they_are(void **state)
{
    once_item *items[3];
    fixture *f = three_wait(state, items);
    for (int round = 0; round < 3; round++) {
        once_action *action = extends_deliveries(f);
        assert_int_equal(action->n, 3);
        for (size_t i = 0; i < 3; i++) assert_int_equal(action->receipts[i].delivery, items[i]->delivery);
        answer(f, action, ONCE_OK);
    }
    once_action *action = extends_deliveries(f);
    action->receipts[0].answer = ONCE_RECEIPT_DONE;
    answer(f, action, ONCE_E_UNAVAILABLE);
    f->now_ms += EXPIRES_MS / 20 + 1;
    action = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES); /* soon, and without the one that is done */
    assert_int_equal(action->n, 2);
    answer(f, action, ONCE_OK);
}

static void commits(fixture *f, size_t n)
{
    works_on(f, n);
    store_does(f, ONCE_ACT_COMMIT);
}

/* More than one call is about, in the order in which they came. */
static void extends_in_turn_with_acks(fixture *f, uint64_t first, uint64_t acked)
{
    once_action *action = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
    assert_int_equal(action->n, RECEIPTS_MAX);
    for (size_t i = 0; i < RECEIPTS_MAX; i++) assert_int_equal(action->receipts[i].delivery, 10 * (first + i));
    answer(f, action, ONCE_OK);
    action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->receipts[0].delivery, 10 * acked);
    answer(f, action, ONCE_OK);
    action = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
    assert_int_equal(action->n, 600 - RECEIPTS_MAX);
    for (size_t i = 0; i < action->n; i++)
        assert_int_equal(action->receipts[i].delivery, 10 * (first + RECEIPTS_MAX + i));
    answer(f, action, ONCE_OK);
}

static void an_ack_goes_between_extensions(void **state)
{
    fixture *f = *state;
    f->batch = 600;
    (void)open_streams(state, false, EXPIRES, 1);
    fetch_of(f, 0, 600, 0, NULL);
    commits(f, 600);
    fetch_of(f, 0, 600, 0, NULL);
    f->now_ms += EXPIRES_MS / 3;
    extends_in_turn_with_acks(f, 601, 600);
    asks_no_acks(f);
}

static void a_single_ack_goes_between_extensions(void **state)
{
    fixture *f = *state;
    f->batch = 600;
    (void)open_streams(state, false, EXPIRES | SINGLE, 1);
    fetch_of(f, 0, 600, 0, NULL);
    for (uint64_t before = 0; before < 1800; before += 600) { /* also where tags are given out again */
        if (before) store_does(f, ONCE_ACT_TAKE);
        commits(f, 600);
        fetch_of(f, 0, 600, 0, NULL);
        f->now_ms += EXPIRES_MS / 3;
        extends_in_turn_with_acks(f, before + 601, before + 1);
        once_action *rest = asks_acks(f, ONCE_ACT_ACK);
        assert_int_equal(rest->n, 600 - RECEIPTS_MAX);
        answer(f, rest, ONCE_OK);
        asks_no_acks(f);
    }
}

/* A stream whose extensions take long does not keep those of another one waiting, nor do acks. */
static void what_would_run_out_goes_before_acks(void **state)
{
    fixture *f = *state;
    f->batch = 600;
    (void)open_streams(state, false, EXPIRES | SINGLE, 2);
    fetch_of(f, 0, 10, 0, NULL);
    commits(f, 10);
    fetch_of(f, 0, 590, 0, NULL);
    fetch_of(f, 1, 9, 0, NULL);
    f->now_ms += EXPIRES_MS / 3;
    uint32_t streams = 0;
    for (int i = 0; i < 2; i++) { /* each call takes all the time there is until the next round */
        once_action *action = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
        streams |= 1u << action->receipts[0].stream;
        f->now_ms += EXPIRES_MS / 3;
        answer(f, action, ONCE_OK);
    }
    assert_int_equal(streams, 3);
}

/* The source says that deliveries run out sooner than it did: it is not too late for those that are here. */
static void deliveries_that_run_out_sooner_are_extended_at_once(void **state)
{
    enum { SOON_MS = 300 };
    once_item *items[3];
    fixture *f = three_wait(state, items);
    once_stream_news news = {.change = ONCE_STREAM_ASSIGNED, .stream = 0, .expires_ms = SOON_MS};
    f->now_ms++;
    asks_no_acks(f);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    action->news = &news;
    action->n_news = 1;
    answer(f, action, ONCE_OK);
    assert_int_equal(once_machine_source_wait_ms(f->machine, f->now_ms), 0);
    action = asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES);
    assert_int_equal(action->n, 3);
    answer(f, action, ONCE_OK);
    asks_no_acks(f);
    f->now_ms += SOON_MS / 3;
    answer(f, asks_acks(f, ONCE_ACT_EXTEND_DELIVERIES), ONCE_OK);
}

static void an_ack_that_fails_does_not_delay_extending_for_long(void **state)
{
    fixture *f = open_streams(state, true, SINGLE | EXPIRES, 1);
    once_item *items[2];
    fetch_of(f, 0, 2, 0, items);
    send_out(f, 2);
    settle_back(f, items[1]);
    for (int i = 0; i < 10; i++) { /* the pauses would grow to seconds */
        once_action *action = once_machine_ack_action(f->machine, f->now_ms);
        for (; !action; f->now_ms++) action = once_machine_ack_action(f->machine, f->now_ms);
        answer(f, action, action->kind == ONCE_ACT_ACK ? ONCE_E_UNAVAILABLE : ONCE_OK);
    }
    assert_in_range(f->machine->acks.at_ms - f->now_ms, 0, EXPIRES_MS / 20 + 1);
}

static void a_delivery_that_is_gone_is_dropped_or_goes_on_without_an_ack(void **state)
{
    once_item *items[3];
    fixture *f = three_wait(state, items);
    once_action *action = extends_deliveries(f);
    for (size_t i = 0; i < 3; i++) action->receipts[i].answer = ONCE_RECEIPT_GONE;
    answer(f, action, ONCE_OK);
    assert_places(f, 0, 0, 0, 1, 0);
    store_does(f, ONCE_ACT_TAKE); /* it is time to look; nothing is there */
    settle_back(f, items[0]);
    asks_no_acks(f);
    assert_int_equal(once_machine_gone(f->machine), 3);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
    assert_int_equal(once_stream_outstanding(f->machine->streams.at[0]), 0);
}

static void a_delivery_that_is_extended_for_the_last_time_goes_to_the_store(void **state)
{
    once_item *items[3];
    fixture *f = three_wait(state, items);
    once_action *action = extends_deliveries(f);
    for (size_t i = 0; i < 3; i++) action->receipts[i].answer = ONCE_RECEIPT_LAST;
    answer(f, action, ONCE_OK);
    assert_places(f, 2, 0, 0, 1, 0);
    store_does(f, ONCE_ACT_TAKE); /* it is time to look; nothing is there */
    store_does(f, ONCE_ACT_BEGIN);
    action = asks_store(f, ONCE_ACT_ACCEPT);
    assert_int_equal(action->n, 2);
    assert_ptr_equal(action->items[0], items[1]);
    for (size_t i = 0; i < 2; i++) action->items[i]->decision = (once_decision){.answer = ONCE_ANSWER_WAITING};
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 2);
    answer(f, action, ONCE_OK);
    f->now_ms += EXPIRES_MS / 3;
    asks_no_acks(f); /* of the first one no more time is asked for */
    store_does(f, ONCE_ACT_TAKE);
    const once_item copy = *items[0];
    settle_back(f, items[0]);
    acks_of(f, 0, &copy);
}

/* It may be in the store, so it is claimed now and needs a slot. But it stands behind the effect of its lane. */
static void what_may_be_in_the_store_stands_behind_its_lane_while_no_slot_is_free(void **state)
{
    fixture *f = open_streams(state, true, SINGLE | EXPIRES, 1);
    once_item *items[SLOTS], *behind;
    fetch_of(f, 0, 1, 9, &items[0]);
    send_out(f, 1);
    fetch_of(f, 0, 1, 0, &items[1]);
    send_out(f, 1);
    fetch_of(f, 0, 1, 9, &behind);
    asks_nothing(f);
    assert_places(f, 0, 1, 0, SLOTS, 0);
    once_action *action = extends_deliveries(f);
    action->receipts[2].answer = ONCE_RECEIPT_LAST;
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    action = asks_store(f, ONCE_ACT_ACCEPT);
    assert_ptr_equal(action->items[0], behind);
    behind->decision = (once_decision){.answer = ONCE_ANSWER_WAITING};
    answer(f, action, ONCE_OK);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    store_does(f, ONCE_ACT_BEGIN);
    store_does(f, ONCE_ACT_COMMIT); /* without it: there is no slot */
    asks_nothing(f);
    assert_places(f, 0, 1, 0, SLOTS, 0);
    settle_back(f, items[1]); /* a slot is free, its lane is not */
    store_does(f, ONCE_ACT_TAKE);
    asks_nothing(f);
    assert_places(f, 0, 1, 0, 1, 0);
    settle_back(f, items[0]);
    send_out(f, 1);
    assert_int_equal(behind->place, ONCE_AT_FLIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_gone_and_over_is_counted_once),
        TEST(deliveries_are_extended_wherever_they_are),
        TEST(an_ack_goes_between_extensions),
        TEST(a_single_ack_goes_between_extensions),
        TEST(what_would_run_out_goes_before_acks),
        TEST(deliveries_that_run_out_sooner_are_extended_at_once),
        TEST(an_ack_that_fails_does_not_delay_extending_for_long),
        TEST(a_delivery_that_is_gone_is_dropped_or_goes_on_without_an_ack),
        TEST(a_delivery_that_is_extended_for_the_last_time_goes_to_the_store),
        TEST(what_may_be_in_the_store_stands_behind_its_lane_while_no_slot_is_free),
    };
    return cmocka_run_group_tests_name("machine_deliveries", tests, NULL, NULL);
}
