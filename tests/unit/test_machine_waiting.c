/* The machine with a store in memory: no more waits in the store than waiting_max allows. */
#include "machine_store_fixture.h"

static once_waiting_size stored(fixture *f)
{
    once_waiting_size size;
    assert_int_equal(f->store->ops->waiting_size(f->store, f->spec.consumer, &size, NULL), ONCE_OK);
    return size;
}

static bool is_full(const fixture *f)
{
    once_waiting_size size;
    uint64_t without_slot;
    return once_machine_full(f->machine, &size, &without_slot);
}

/* With an inbox everything waits; the effects of what is taken do not end. */
static void no_more_is_fetched_than_may_wait_in_the_store(void **state)
{
    fixture *f = *state;
    enum { MOST = 20 };
    f->inbox = f->all_slow = true;
    f->most.messages = MOST;
    open_pipe(f, false);
    work(f, 3000);
    assert_int_equal(f->fetched, MOST);
    assert_int_equal(stored(f).messages, MOST);
    assert_int_equal(f->acked, MOST);   /* what was fetched is accepted all the same */
    assert_int_equal(f->held_n, SLOTS); /* and what waits is worked on */
    assert_true(is_full(f));
    /* It goes on when a tenth is free, not before. */
    once_machine_finished(f->machine, &f->held[--f->held_n], 1, f->now_ms);
    work(f, 3000);
    assert_int_equal(stored(f).messages, MOST - 1);
    assert_int_equal(f->fetched, MOST);
    f->all_slow = false;
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    for (int i = 0; i < 20000 && (f->fetched <= 10 * MOST || f->acked <= 9 * MOST); i++) {
        work(f, 1);
        assert_in_range(stored(f).messages, 0, MOST);
    }
    assert_true(f->fetched > 10 * MOST);
    assert_true(f->acked > 9 * MOST);
}

static void no_more_is_fetched_than_bytes_may_wait_in_the_store(void **state)
{
    fixture *f = *state;
    enum { MOST = 10 * BATCH };
    f->inbox = f->all_slow = true;
    f->most.bytes = MOST * strlen("{}");
    open_pipe(f, false);
    work(f, 3000);
    assert_in_range(stored(f).messages, MOST, MOST + 2 * BATCH); /* nobody knows the size of what comes */
    assert_true(is_full(f));
    const uint64_t before = f->fetched;
    work(f, 3000);
    assert_int_equal(f->fetched, before);
    f->all_slow = false;
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    work(f, 5000);
    assert_true(f->fetched > 3 * before);
}

/* Without an inbox only what fails comes to wait. */
static void a_handler_that_is_down_does_not_fill_the_store(void **state)
{
    fixture *f = *state;
    enum { MOST = 20 };
    f->most.messages = MOST;
    f->handler.retry.attempts = 1000;
    f->failing = 1000000;
    open_pipe(f, false);
    f->handler.retry.attempts = ONCE_ANY_ATTEMPTS;
    for (int i = 0; i < 5000; i++) {
        work(f, 1);
        assert_in_range(stored(f).messages, 0, MOST + 3 * BATCH);
    }
    assert_in_range(f->fetched, MOST, MOST + 3 * BATCH);
    assert_true(is_full(f));
    f->failing = 0;
    work(f, 5000);
    assert_true(f->fetched > 10 * MOST);
    assert_false(is_full(f));
}

/* Another worker accepts so many messages. */
static void others_leave(fixture *f, once_batch *others, size_t n)
{
    fill(f, others, n);
    for (size_t i = 0; i < n; i++) {
        others->items[i].request.token = once_token_of_run(2, 7, i);
        const once_request *request = &others->items[i].request;
        const once_message *message = &others->items[i].message;
        once_decision decision;
        assert_int_equal(f->store->ops->accept(f->store, &request, &message, 1, &decision, &others->arena, NULL),
                         ONCE_OK);
    }
}

/* Of what others leave there we hear in time, and it is theirs to work on, too. */
static void what_others_leave_in_the_store_counts(void **state)
{
    fixture *f = *state;
    enum { MOST = 8 };
    f->inbox = f->bounded = f->all_slow = true;
    f->left = 2;
    f->most.messages = MOST;
    open_pipe(f, false);
    work(f, 200);
    assert_false(is_full(f));
    once_batch others = {0};
    others_leave(f, &others, MOST);
    once_arena_release(&others.arena);
    const uint64_t before = f->fetched;
    f->left = 100;
    work(f, 2000);
    assert_true(is_full(f));
    assert_in_range(f->fetched, before, before + MOST);
}

/* Messages without a slot and those in the store reach the bound together. When another worker has finished the latter,
 * fetching goes on, although the slots are still in use and we have added nothing ourselves. */
static void what_others_finish_in_the_store_makes_room_beside_a_full_handler(void **state)
{
    enum { THEIRS = 2, FAST = 10, ALL_SLOW = 1000000 };
    fixture *f = *state;
    once_batch others = {0};
    bool found = false;
    f->turns = f->bounded = true;
    f->both[1].slots = SLOTS;
    f->most.messages = 2 * THEIRS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    f->slow_first = ALL_SLOW;
    f->left = SLOTS;
    work(f, 200);
    assert_int_equal(f->held_n, SLOTS);
    others_leave(f, &others, THEIRS);
    f->slow_first = 1;
    f->left = f->failing = 1; /* a fast one waits for its next try: so the store is asked how much is there */
    work(f, 500);
    assert_int_equal(counts->done, 1);
    assert_true(f->counted > 0);
    assert_int_equal(stored(f).messages, THEIRS);
    f->slow_first = ALL_SLOW;
    f->left = THEIRS;
    work(f, 200);
    assert_int_equal(f->left, 0);
    f->slow_first = 1;
    f->left = FAST;
    work(f, 2000);
    assert_int_equal(f->left, FAST);
    assert_int_equal(once__machine_count_at_ms(f->machine), f->machine->room.at_ms); /* it wakes up for that */
    once_waiting_size size;
    uint64_t without_slot;
    assert_true(once_machine_full(f->machine, &size, &without_slot)); /* so that the log can say why */
    assert_int_equal(size.messages, THEIRS);
    assert_int_equal(without_slot, THEIRS);

    assert_int_equal(f->store->ops->begin(f->store, NULL), ONCE_OK);
    for (size_t i = 0; i < THEIRS; i++)
        assert_int_equal(f->store->ops->forget(f->store, others.items[i].request.id, &found, NULL), ONCE_OK);
    assert_int_equal(f->store->ops->commit(f->store, NULL), ONCE_OK);
    assert_true(found);
    once_arena_release(&others.arena);
    work(f, 2000);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(f->left, 0);
    assert_int_equal(counts->done, 1 + FAST);
    assert_false(is_full(f));
}

static void who_leaves_nothing_in_the_store_does_not_ask_how_much_is_there(void **state)
{
    fixture *f = *state;
    f->most.messages = 1;
    open_pipe(f, false);
    work(f, 5000);
    assert_true(f->acked > 100 * BATCH);
    assert_int_equal(f->counted, 0);
    assert_false(is_full(f));
}

/* The longer the answer takes, the more seldom it is asked for. */
static void what_waits_is_not_counted_all_the_time(void **state)
{
    fixture *f = *state;
    enum { MOST = 10000 };
    f->inbox = f->all_slow = true;
    f->most.messages = MOST;
    open_pipe(f, false);
    while (!is_full(f)) work(f, 1);
    assert_in_range(f->counted, 2, 60);
    const unsigned before = f->counted;
    const int64_t since_ms = f->now_ms;
    while (f->now_ms - since_ms < 60000) work(f, 1);
    assert_in_range(f->counted - before, 1, 61);
}

/* We were stopped while it was asked: that says little about how long it takes. */
static void who_was_stopped_soon_asks_again_how_much_waits(void **state)
{
    fixture *f = *state;
    f->inbox = f->all_slow = true;
    f->most.messages = 20;
    open_pipe(f, false);
    while (!is_full(f)) work(f, 1);
    unsigned before = f->counted;
    f->counting_ms = 3600 * 1000;
    while (f->counted == before) work(f, 1);
    f->counting_ms = 0;
    before = f->counted;
    const int64_t since_ms = f->now_ms;
    while (f->counted == before && f->now_ms - since_ms < 60000) work(f, 1);
    assert_in_range(f->now_ms - since_ms, 1000, 31000);
}

static void a_stop_gives_what_comes_once_to_the_store_although_it_is_full(void **state)
{
    fixture *f = *state;
    f->inbox = f->all_slow = f->accepts_at_stop = f->bounded = true;
    f->left = 5 * BATCH;
    f->most.messages = BATCH;
    open_pipe(f, false);
    work(f, 500);
    assert_true(is_full(f));
    assert_true(f->left > 0);
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    f->held_n = 0;
    f->all_slow = false;
    stop(f);
    assert_int_equal(f->left, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
    assert_int_equal(once_machine_counts(f->machine)->received, 5 * BATCH);
}

static void a_finite_source_ends_although_little_may_wait(void **state)
{
    fixture *f = *state;
    f->inbox = f->bounded = true;
    f->left = 20 * BATCH;
    f->most.messages = 2;
    open_pipe(f, true);
    while (f->left) {
        work(f, 1);
        assert_in_range(stored(f).messages, 0, 2);
    }
    work(f, 500);
    assert_int_equal(once_machine_counts(f->machine)->done, 20 * BATCH);
}

/* What waits will not be worked on: it stands behind one that nobody settles. */
static void a_finite_source_gives_up_when_nothing_makes_room(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    f->most.messages = 2 * BATCH;
    f->lane = "one";
    f->lanes_are_found = f->bounded = true;
    f->left = 20 * BATCH;
    open_pipe(f, true);
    f->lanes_are_found = false;
    f->spec.patience_ms = 5000;
    once_batch first = {0}; /* an unknown at the head of the lane, which a person must look at */
    fill(f, &first, 1);
    once_request *request = &first.items[0].request;
    const once_request *requests = request;
    request->token = once_token_of_run(2, 7, 1);
    request->hold = true;
    once_decision decision;
    const once_settlement settlement = {
        .request = request, .outcome = ONCE_UNKNOWN, .message = &first.items[0].message};
    bool applied;
    assert_int_equal(f->store->ops->claim(f->store, &requests, 1, &decision, &first.arena, NULL), ONCE_OK);
    assert_int_equal(f->store->ops->settle(f->store, &settlement, 1, &applied, NULL), ONCE_OK);
    once_arena_release(&first.arena);
    work(f, 1000);
    assert_true(is_full(f));
    const int64_t since_ms = f->now_ms;
    while (!once_machine_ended(f->machine) && f->now_ms - since_ms < 100000) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_FULL);
    assert_non_null(strstr(err.text, "waiting_max"));
    assert_true(f->left > 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(no_more_is_fetched_than_may_wait_in_the_store),
        TEST(no_more_is_fetched_than_bytes_may_wait_in_the_store),
        TEST(a_handler_that_is_down_does_not_fill_the_store),
        TEST(what_others_leave_in_the_store_counts),
        TEST(what_others_finish_in_the_store_makes_room_beside_a_full_handler),
        TEST(who_leaves_nothing_in_the_store_does_not_ask_how_much_is_there),
        TEST(what_waits_is_not_counted_all_the_time),
        TEST(who_was_stopped_soon_asks_again_how_much_waits),
        TEST(a_stop_gives_what_comes_once_to_the_store_although_it_is_full),
        TEST(a_finite_source_ends_although_little_may_wait),
        TEST(a_finite_source_gives_up_when_nothing_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
