/* The machine step by step: natural effects outside of the store, which begin without a claim (core/entry.h). */
#include "machine_fixture.h"

static fixture *open_natural(void **state)
{
    fixture *f = open_pipe(state, true);
    f->handler.natural = true;
    return f;
}

/* The store is asked for `n` keys, and knows none of them. `unclaimed`: they may run without a claim. */
static void looks(fixture *f, size_t n, bool unclaimed)
{
    once_action *action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(action->items[i]->request.unclaimed, unclaimed);
        action->items[i]->decision =
            (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1, .unclaimed = unclaimed};
    }
    answer(f, action, ONCE_OK);
}

static void goes_out(fixture *f, size_t n, bool unclaimed)
{
    store_does(f, ONCE_ACT_BEGIN);
    looks(f, n, unclaimed);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, n);
}

/* What failed is claimed, with the token that it had, to record that. */
static void claims_to_settle(fixture *f, once_token token, once_decision decision)
{
    store_does(f, ONCE_ACT_BEGIN);
    once_action *action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, 1);
    assert_false(action->items[0]->request.unclaimed);
    assert_true(once_hash_equal(action->items[0]->request.token, token));
    action->items[0]->decision = decision;
    answer(f, action, ONCE_OK);
}

/* The store need not hear of its end. */
static void a_natural_effect_needs_no_claim(void **state)
{
    fixture *f = open_natural(state);
    once_item *items[SLOTS];
    fetch(f, SLOTS, 0, items);
    goes_out(f, SLOTS, true);
    for (int i = 0; i < SLOTS; i++) finishes(f, items[i], ONCE_DONE);
    assert_int_equal(f->machine->at[ONCE_AT_RETURNED], 0);
    acks(f, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->done, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->attempts, SLOTS);
}

/* Only what is claimed, and what the store takes, needs its fingerprint. */
static void what_failed_is_claimed_with_its_fingerprint(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    item->request.late = &item->message;
    item->request.fingerprint = (once_hash){0, 0};
    goes_out(f, 1, true);
    assert_non_null(item->request.late);
    finishes(f, item, ONCE_RETRY);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *action = asks_store(f, ONCE_ACT_CLAIM);
    assert_ptr_equal(action->items[0], item);
    assert_null(item->request.late);
    assert_false(once_hash_is_zero(item->request.fingerprint));
}

/* It has no lease that could be extended, or end. */
static void an_effect_without_a_claim_may_take_any_time(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    goes_out(f, 1, true);
    for (int i = 0; i < 10; i++) {
        f->now_ms += LEASE_MS / 2;
        for (once_action *action; (action = once_machine_store_action(f->machine, f->now_ms));) {
            assert_true(action->kind == ONCE_ACT_TAKE || action->kind == ONCE_ACT_SWEEP); /* not about the item */
            answer(f, action, ONCE_OK);
        }
        assert_null(once_machine_effect_action(f->machine, f->now_ms));
    }
    finishes(f, item, ONCE_DONE);
    acks(f, 1);
}

static void a_failure_without_a_claim_is_claimed_and_settled_at_once(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    goes_out(f, 1, true);
    const once_token token = item->request.token;
    finishes(f, item, ONCE_RETRY);
    claims_to_settle(f, token, (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1});
    settles(f, 1, ONCE_RETRY);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1); /* the store has it */
    assert_int_equal(once_machine_counts(f->machine)->waiting, 1);
    assert_int_equal(once_machine_counts(f->machine)->retries, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* Another worker has tried the same key meanwhile, and left it waiting: its failures count. */
static void the_budget_is_that_of_the_entry(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    goes_out(f, 1, true);
    const once_token token = item->request.token;
    finishes(f, item, ONCE_RETRY);
    claims_to_settle(f, token,
                     (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 3, .failures = 2, .failing_for_ms = 100});
    settles(f, 1, ONCE_DEAD); /* of 3 attempts */
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->dead, 1);
}

/* Another worker has claimed it meanwhile: the store keeps the body, and that worker decides. */
static void a_failure_of_what_another_worker_has_is_left_to_it(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    goes_out(f, 1, true);
    const once_token token = item->request.token;
    finishes(f, item, ONCE_RETRY);
    claims_to_settle(f, token, (once_decision){.answer = ONCE_ANSWER_BUSY, .wait_ms = 1000});
    once_action *accept = asks_store(f, ONCE_ACT_ACCEPT);
    accept->items[0]->decision = (once_decision){.answer = ONCE_ANSWER_BUSY, .wait_ms = 1000};
    answer(f, accept, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 0);
}

/* The commit that settled the failure is in doubt: asked again, the entry tells. */
static void a_failure_is_recorded_once(void **state)
{
    fixture *f = open_natural(state);
    once_item *item;
    fetch(f, 1, 0, &item);
    goes_out(f, 1, true);
    const once_token token = item->request.token;
    finishes(f, item, ONCE_DEAD);
    claims_to_settle(f, token, (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1});
    settles(f, 1, ONCE_DEAD);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    f->now_ms += 200;
    claims_to_settle(f, token, (once_decision){.answer = ONCE_ANSWER_DEAD, .own = true});
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->dead, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* All slots are in use. A message without a key needs none, and goes before those that wait for one. */
static void who_waits_for_a_slot_is_passed_by_who_needs_none(void **state)
{
    fixture *f = open_natural(state);
    once_item *out[SLOTS];
    fetch(f, SLOTS, 0, out);
    goes_out(f, SLOTS, true);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    (void)fill(f, action->batch, 100, 0);
    once_item *keyless = fill(f, action->batch, 101, 0);
    keyless->request.id = (once_hash){0, 0};
    keyless->reason = ONCE_BYTES("no key");
    (void)fill(f, action->batch, 102, 0);
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    action = asks_store(f, ONCE_ACT_BURY);
    assert_int_equal(action->n, 1);
    assert_ptr_equal(action->items[0], keyless);
    keyless->granted = true;
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    assert_null(once_machine_store_action(f->machine, f->now_ms)); /* and does not ask again and again */
    assert_true(once_machine_wait_ms(f->machine, f->now_ms) > 1);
    for (int i = 0; i < SLOTS; i++) finishes(f, out[i], ONCE_DONE);
    goes_out(f, 2, true);
}

static void looks_claimed(fixture *f)
{
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    looks(f, 1, false);
    store_does(f, ONCE_ACT_COMMIT);
}

static void what_is_not_natural_is_claimed(void **state)
{
    fixture *f = open_pipe(state, true);
    looks_claimed(f);
}

static void what_holds_unknowns_is_claimed(void **state)
{
    fixture *f = open_natural(state);
    f->handler.hold = true;
    looks_claimed(f);
}

static void what_may_live_on_is_claimed(void **state)
{
    fixture *f = open_natural(state);
    f->handler.bits |= ONCE_EFFECT_OUTLIVES;
    looks_claimed(f);
}

static void what_writes_with_its_outcome_is_claimed(void **state)
{
    fixture *f = open_natural(state);
    f->handler.bits |= ONCE_EFFECT_THEN;
    looks_claimed(f);
}

/* Only a claim tells the next run that an attempt has killed this one. */
static void f80_after_an_unclean_end_natural_effects_are_claimed(void **state)
{
    ((fixture *)*state)->unclean = true;
    fixture *f = open_natural(state);
    for (int i = 0; i < CLAIMED_LEAST * BATCH; i++) {
        once_item *item;
        fetch(f, 1, 0, &item);
        goes_out(f, 1, false);
        settle_back(f, item);
        acks(f, (uint64_t)i + 1);
    }
    fetch(f, 1, 0, NULL);
    goes_out(f, 1, true);
}

/* Nothing was written for it, so it goes with its stream. */
static void a_commit_in_doubt_holds_nothing_back(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    f->handler.natural = true;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    looks(f, 1, true);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 0, 0, 0, 0);
}

/* It has not begun, and the store has nothing of it: its source delivers it again. */
static void a_stop_before_it_begins_leaves_nothing(void **state)
{
    fixture *f = open_natural(state);
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    looks(f, 1, true);
    once_machine_stop(f->machine);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 1, 0, 0, 0, 0);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_unfinished(f->machine), 1);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_natural_effect_needs_no_claim),
        TEST(what_failed_is_claimed_with_its_fingerprint),
        TEST(an_effect_without_a_claim_may_take_any_time),
        TEST(a_failure_without_a_claim_is_claimed_and_settled_at_once),
        TEST(the_budget_is_that_of_the_entry),
        TEST(a_failure_of_what_another_worker_has_is_left_to_it),
        TEST(a_failure_is_recorded_once),
        TEST(who_waits_for_a_slot_is_passed_by_who_needs_none),
        TEST(what_is_not_natural_is_claimed),
        TEST(what_holds_unknowns_is_claimed),
        TEST(what_may_live_on_is_claimed),
        TEST(what_writes_with_its_outcome_is_claimed),
        TEST(f80_after_an_unclean_end_natural_effects_are_claimed),
        TEST(a_commit_in_doubt_holds_nothing_back),
        TEST(a_stop_before_it_begins_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
