/* The machine step by step: where the store can tell that it has no entry of a key, natural effects begin without a
 * transaction. */
#include "machine_fixture.h"

static fixture *open_natural(void **state, uint32_t streams)
{
    fixture *f = streams ? open_streams(state, true, 0, streams) : open_pipe(state, true);
    f->handler.natural = true;
    f->machine->o.tells_absent = true;
    return f;
}

/* The store is asked about `n` keys, and has entries of none but `known`. */
static void tells_absent(fixture *f, size_t n, const once_item *known)
{
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    assert_int_equal(action->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_true(action->items[i]->request.unclaimed);
        action->items[i]->granted = action->items[i] != known;
    }
    answer(f, action, ONCE_OK);
}

static void what_has_no_entry_needs_no_transaction(void **state)
{
    fixture *f = open_natural(state, 0);
    once_item *items[SLOTS];
    fetch(f, SLOTS, 0, items);
    tells_absent(f, SLOTS, NULL);
    assert_places(f, 0, 0, 0, SLOTS, 0);
    starts(f, SLOTS);
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(items[i]->decision.attempt, 1);
        finishes(f, items[i], ONCE_DONE);
    }
    acks(f, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->done, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->attempts, SLOTS);
}

/* It may be dead, or wait for its next try: only a claim knows. */
static void f31_what_has_an_entry_is_claimed(void **state)
{
    fixture *f = open_natural(state, 0);
    once_item *items[2];
    fetch(f, 2, 0, items);
    tells_absent(f, 2, items[0]);
    assert_places(f, 0, 0, 1, 1, 0);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(claim->n, 1);
    assert_ptr_equal(claim->items[0], items[0]);
    claim->items[0]->decision = (once_decision){.answer = ONCE_ANSWER_DEAD};
    answer(f, claim, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 0, 0, 0, 1, 0);
    assert_int_equal(once_machine_counts(f->machine)->duplicates, 1);
}

static void who_finds_no_slot_goes_back_in_order(void **state)
{
    fixture *f = open_natural(state, 0);
    once_item *items[SLOTS + 2];
    fetch(f, SLOTS + 2, 0, items);
    tells_absent(f, SLOTS + 2, NULL);
    assert_places(f, 2, 0, 0, SLOTS, 0);
    asks_nothing(f);
    starts(f, SLOTS);
    finishes(f, items[0], ONCE_DONE);
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    assert_int_equal(action->n, 2);
    assert_ptr_equal(action->items[0], items[SLOTS]);
    assert_ptr_equal(action->items[1], items[SLOTS + 1]);
}

static void f25_one_of_equal_keys_begins(void **state)
{
    fixture *f = open_natural(state, 0);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    once_item *first = fill(f, action->batch, 7, 0), *second = fill(f, action->batch, 7, 0);
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    tells_absent(f, 2, NULL);
    assert_places(f, 1, 0, 0, 1, 0);
    asks_nothing(f); /* the other one is parked now */
    assert_places(f, 0, 1, 0, 1, 0);
    starts(f, 1);
    finishes(f, first, ONCE_DONE);
    tells_absent(f, 1, NULL);
    starts(f, 1);
    finishes(f, second, ONCE_DONE);
    acks(f, 2);
}

/* The first one goes to the store, or cannot run: what becomes of it decides about the second. */
static void f25_nobody_passes_an_equal_one_that_is_not_asked_about(void **state)
{
    for (int i = 0; i < 2; i++) {
        if (i) {
            assert_int_equal(tear_down(state), 0);
            assert_int_equal(set_up(state), 0);
        }
        ((fixture *)*state)->slots = 4;
        fixture *f = open_natural(state, 0);
        once_action *action = asks_source(f, ONCE_ACT_FETCH);
        once_item *first = fill(f, action->batch, 7, 0), *second = fill(f, action->batch, 7, 0);
        once_item *other = fill(f, action->batch, 8, 0), *more = fill(f, action->batch, 9, 0);
        if (i) first->input = NULL;
        else first->to_store = true;
        action->batch->taken_in = true;
        answer(f, action, ONCE_OK);
        action = asks_store(f, ONCE_ACT_ABSENT);
        assert_int_equal(action->n, 2);
        assert_ptr_equal(action->items[0], other);
        assert_ptr_equal(action->items[1], more);
        for (int k = 0; k < 2; k++) action->items[k]->granted = true;
        answer(f, action, ONCE_OK);
        assert_int_equal(second->place, ONCE_AT_WORK);
        store_does(f, ONCE_ACT_BEGIN);
        action = asks_store(f, i ? ONCE_ACT_CLAIM : ONCE_ACT_ACCEPT);
        assert_int_equal(action->n, 1);
        assert_ptr_equal(action->items[0], first);
    }
}

/* The second one cannot run. If it were decided while the first is under way, the first would be a duplicate of it. */
static void f25_nobody_is_decided_while_an_equal_one_is_under_way(void **state)
{
    ((fixture *)*state)->slots = 4;
    fixture *f = open_natural(state, 0);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    once_item *first = fill(f, action->batch, 7, 0), *second = fill(f, action->batch, 7, 0);
    once_item *other = fill(f, action->batch, 8, 0), *more = fill(f, action->batch, 9, 0);
    second->input = NULL;
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    action = asks_store(f, ONCE_ACT_ABSENT);
    assert_int_equal(action->n, 2);
    assert_ptr_equal(action->items[0], other);
    assert_ptr_equal(action->items[1], more);
    for (int k = 0; k < 2; k++) action->items[k]->granted = true;
    answer(f, action, ONCE_OK);
    assert_int_equal(first->place, ONCE_AT_WORK);
    store_does(f, ONCE_ACT_BEGIN);
    action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, 1);
    assert_ptr_equal(action->items[0], first);
}

/* Which of the work are asked about. */
static void who_may_have_an_entry_is_not_asked_about(void **state)
{
    fixture *f = open_natural(state, 0);
    once_item *items[4];
    fetch(f, 4, 0, items);
    items[0]->commit_unknown = true; /* its own commit may have made one */
    items[1]->granted = true;        /* left from an earlier question */
    items[1]->input = NULL;
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    assert_int_equal(action->n, 2);
    assert_ptr_equal(action->items[0], items[2]);
    for (int i = 0; i < 2; i++) action->items[i]->granted = true;
    answer(f, action, ONCE_OK);
    assert_places(f, 0, 0, 2, 2, 0);
    store_does(f, ONCE_ACT_BEGIN);
}

/* After a crash messages are looked at one by one. */
static void f80_while_a_message_is_suspected_there_is_a_transaction(void **state)
{
    fixture *f = open_natural(state, 0);
    f->machine->caution.left = 5;
    f->machine->caution.window = 1;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
}

/* It is not known whether there are entries: a claim finds out. */
static void without_an_answer_there_is_a_transaction(void **state)
{
    fixture *f = open_natural(state, 0);
    fetch(f, SLOTS, 0, NULL);
    answer(f, asks_store(f, ONCE_ACT_ABSENT), ONCE_E_UNAVAILABLE);
    assert_places(f, 0, 0, SLOTS, 0, 0);
    f->now_ms += 100000;
    store_does(f, ONCE_ACT_BEGIN);
    assert_int_equal(asks_store(f, ONCE_ACT_CLAIM)->n, SLOTS);
}

/* What came back and must be recorded waits for the same turn. The question must not give its slot away twice. */
static void a_question_without_an_answer_leaves_outcomes_alone(void **state)
{
    fixture *f = open_natural(state, 0);
    once_item *items[2];
    fetch(f, 2, 0, items);
    tells_absent(f, 2, NULL);
    starts(f, 2);
    finishes(f, items[0], ONCE_RETRY);
    fetch(f, 1, 0, NULL);
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    assert_int_equal(action->n, 1);
    answer(f, action, ONCE_E_UNAVAILABLE);
    assert_places(f, 0, 0, 2, 1, 0);
    f->now_ms += 100000;
    store_does(f, ONCE_ACT_BEGIN);
    assert_int_equal(asks_store(f, ONCE_ACT_CLAIM)->n, 2);
}

/* A few that need no claim are in the transaction of the others. */
static void it_is_not_asked_for_a_few(void **state)
{
    once_item *items[3];
    ((fixture *)*state)->slots = 3;
    fixture *f = open_natural(state, 0);
    fetch(f, 3, 0, items);
    items[0]->request.natural = items[1]->request.natural = false;
    store_does(f, ONCE_ACT_BEGIN);
    assert_int_equal(asks_store(f, ONCE_ACT_CLAIM)->n, 3);
}

static void a_stop_before_it_begins_leaves_nothing(void **state)
{
    fixture *f = open_natural(state, 0);
    fetch(f, 1, 0, NULL);
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    once_machine_stop(f->machine);
    action->items[0]->granted = true;
    answer(f, action, ONCE_OK);
    assert_places(f, 1, 0, 0, 0, 0);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void f29_what_was_revoked_meanwhile_does_not_begin(void **state)
{
    fixture *f = open_natural(state, 1);
    fetch(f, 1, 0, NULL);
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    action->items[0]->granted = true;
    answer(f, action, ONCE_OK);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
    releases(f, 0);
}

/* Nothing is left for a transaction but the lease. */
static void f15_leases_are_extended_beside_messages_that_need_no_transaction(void **state)
{
    ((fixture *)*state)->slots = 4;
    fixture *f = open_natural(state, 0);
    once_item *items[2];
    fetch(f, 1, 0, items);
    items[0]->request.natural = false;
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    f->now_ms += LEASE_MS / 2;
    fetch(f, 1, 0, items + 1);
    tells_absent(f, 1, NULL);
    once_action *action = asks_store(f, ONCE_ACT_BEGIN);
    assert_int_equal(action->n_extend, 1);
    assert_ptr_equal(action->items[0], items[0]);
}

/* It costs a transaction, and the store may have entries of another handler for a long time. */
static void a_store_that_cannot_tell_is_asked_now_and_then(void **state)
{
    fixture *f = open_natural(state, 0);
    unsigned asked = 0;
    for (int i = 0; i < 35; i++) {
        once_item *item;
        fetch(f, 1, 0, &item);
        once_action *action = once_machine_store_action(f->machine, f->now_ms);
        assert_non_null(action);
        if (action->kind == ONCE_ACT_ABSENT) {
            asked++;
            item->granted = false;
            answer(f, action, ONCE_OK);
            action = asks_store(f, ONCE_ACT_BEGIN);
        }
        assert_int_equal(action->kind, ONCE_ACT_BEGIN);
        answer(f, action, ONCE_OK);
        claims(f, 1);
        store_does(f, ONCE_ACT_COMMIT);
        starts(f, 1);
        finishes(f, item, ONCE_DONE);
        store_does(f, ONCE_ACT_BEGIN);
        settles(f, 1, ONCE_DONE);
        store_does(f, ONCE_ACT_COMMIT);
        acks(f, (uint64_t)i + 1);
    }
    assert_in_range(asked, 2, 6);
}

/* It has an entry, so it would be claimed. */
static void f29_what_was_revoked_meanwhile_is_not_claimed(void **state)
{
    fixture *f = open_natural(state, 1);
    fetch(f, 2, 0, NULL);
    once_action *action = asks_store(f, ONCE_ACT_ABSENT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    action->items[0]->granted = true;
    answer(f, action, ONCE_OK);
    assert_places(f, 0, 0, 0, 0, 0);
    asks_nothing(f);
    releases(f, 0);
}

/* A message that killed the last run would not be counted. */
static void f80_after_an_unclean_end_it_is_claimed(void **state)
{
    fixture *f = open_natural(state, 0);
    f->machine->outside.claims_left = 5;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    assert_false(asks_store(f, ONCE_ACT_CLAIM)->items[0]->request.unclaimed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_has_no_entry_needs_no_transaction),
        TEST(f31_what_has_an_entry_is_claimed),
        TEST(who_finds_no_slot_goes_back_in_order),
        TEST(f25_one_of_equal_keys_begins),
        TEST(f25_nobody_passes_an_equal_one_that_is_not_asked_about),
        TEST(f25_nobody_is_decided_while_an_equal_one_is_under_way),
        TEST(who_may_have_an_entry_is_not_asked_about),
        TEST(f80_while_a_message_is_suspected_there_is_a_transaction),
        TEST(without_an_answer_there_is_a_transaction),
        TEST(a_question_without_an_answer_leaves_outcomes_alone),
        TEST(it_is_not_asked_for_a_few),
        TEST(a_stop_before_it_begins_leaves_nothing),
        TEST(f29_what_was_revoked_meanwhile_does_not_begin),
        TEST(f15_leases_are_extended_beside_messages_that_need_no_transaction),
        TEST(a_store_that_cannot_tell_is_asked_now_and_then),
        TEST(f29_what_was_revoked_meanwhile_is_not_claimed),
        TEST(f80_after_an_unclean_end_it_is_claimed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
