/* The machine with a store in memory: handlers that are held up (core/gate.h), and how long a run waits for them. */
#include <limits.h>

#include "machine_store_fixture.h"

enum { PATIENCE_MS = 60000, RETRIES_MS = 29 * 10000, FOREVER_MS = 10000000 };

static bool is_second(const fixture *f, const once_item *item) { return item->handler == &f->both[1]; }

/* Until the run ends, or for so long. */
static int64_t lasts(fixture *f, int64_t most_ms)
{
    const int64_t since_ms = f->now_ms;
    while (f->now_ms - since_ms < most_ms && !once_machine_ended(f->machine)) work(f, 1);
    return f->now_ms - since_ms;
}

static void is_paused(once_item *item)
{
    item->started = false;
    item->outcome = ONCE_RELEASE;
    item->run_failure = ONCE_E_DENIED;
    item->failure = ONCE_BYTES("permission denied");
    item->delay_ms = -1;
}

static void fails(once_item *item, once_outcome outcome)
{
    item->outcome = outcome;
    item->failure = ONCE_BYTES("no answer");
    item->delay_ms = -1;
}

static once_gate *gate(const fixture *f, size_t handler) { return &f->machine->gate.gates.at[handler]; }

static once_held_view view_of(const fixture *f, size_t handler)
{
    once_held_view held = {0};
    size_t at = handler;
    assert_true(once_machine_next_held(f->machine, &at, &held));
    assert_ptr_equal(held.handler, &f->both[handler]);
    return held;
}

/* Messages of two handlers in turn, from a source that ends. */
static void open_two(fixture *f, size_t n, void (*effect)(fixture *, once_item *))
{
    f->bounded = f->source_ends = f->turns = f->quick = true;
    f->left = n;
    f->both[1].slots = SLOTS;
    f->effect = effect;
    open_pipe(f, true);
    f->spec.patience_ms = PATIENCE_MS;
    for (int i = 0; i < 2; i++) {
        f->both[i].retry = (once_retry){.attempts = 30, .min_ms = 10000, .max_ms = 10000};
        f->both[i].gate.breaker = (once_breaker){.share = 50, .of = 4, .within_ms = 60000};
    }
}

static void the_first_is_paused_and_the_second_is_away_for_a_while(fixture *f, once_item *item)
{
    if (!is_second(f, item)) is_paused(item);
    else if (f->now_ms < 2 * PATIENCE_MS) fails(item, ONCE_RETRY);
}

/* The breaker has longer than the pause: at least as long as the retries behind it. */
static void a_run_waits_as_long_as_one_of_its_handlers_may_go_on(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    open_two(f, 8 * SLOTS, the_first_is_paused_and_the_second_is_away_for_a_while);
    assert_in_range(lasts(f, FOREVER_MS), 3 * PATIENCE_MS, 3 * PATIENCE_MS + 70000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_PAUSED);
    assert_non_null(strstr(err.text, "handler 'op' is paused: permission denied; gave up"));
    assert_int_equal(once_machine_counts(f->machine)->done, 4 * SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->waiting, 4 * SLOTS);
}

static void the_first_probe_of_the_second_wants_its_next_try_late(fixture *f, once_item *item)
{
    if (!is_second(f, item)) {
        is_paused(item);
    } else if (gate(f, 1)->probes == 0 && f->now_ms < 5000) {
        fails(item, ONCE_RETRY);
        item->delay_ms = gate(f, 1)->probe == item ? 3 * PATIENCE_MS : 100;
    }
}

/* Also those that were left while their handler was held. */
static void retries_that_are_due_late_are_waited_for_beside_a_paused_handler(void **state)
{
    fixture *f = *state;
    open_two(f, 8 * SLOTS, the_first_probe_of_the_second_wants_its_next_try_late);
    assert_in_range(lasts(f, FOREVER_MS), 4 * PATIENCE_MS, 4 * PATIENCE_MS + 10000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
    assert_int_equal(once_machine_counts(f->machine)->done, 4 * SLOTS);
}

/* The latest of them counts, in whichever order they were left; what an operator must decide about is not due. */
static void the_last_retry_of_a_handler_is_waited_for(void **state)
{
    fixture *f = *state;
    open_two(f, 0, NULL);
    once_item item = {.handler = &f->both[1], .stage = ONCE_STAGE_SETTLE, .outcome = ONCE_RETRY, .delay_ms = 5000};
    once__machine_note_progress(f->machine, &item, f->now_ms);
    const int64_t due_ms = gate(f, 1)->due_ms;
    assert_true(due_ms >= f->now_ms + 5000);
    item.delay_ms = 100;
    once__machine_note_progress(f->machine, &item, f->now_ms);
    item.outcome = ONCE_UNKNOWN;
    item.delay_ms = ONCE_NEVER;
    once__machine_note_progress(f->machine, &item, f->now_ms);
    item.outcome = ONCE_DONE;
    item.delay_ms = 100000;
    once__machine_note_progress(f->machine, &item, f->now_ms);
    assert_int_equal(gate(f, 1)->due_ms, due_ms);
    assert_int_equal(gate(f, 0)->due_ms, 0);
}

static void the_second_fails_once_and_wants_its_next_try_late(fixture *f, once_item *item)
{
    if (!is_second(f, item)) {
        is_paused(item);
    } else if (f->now_ms < PATIENCE_MS) {
        fails(item, ONCE_RETRY);
        item->delay_ms = 3 * PATIENCE_MS;
    }
}

/* All of its messages wait for their time: nothing can try it before, but it is not left out for that. */
static void a_handler_whose_messages_are_due_late_is_waited_for(void **state)
{
    fixture *f = *state;
    open_two(f, 8, the_second_fails_once_and_wants_its_next_try_late);
    (void)lasts(f, 2 * PATIENCE_MS);
    assert_int_equal(gate(f, 1)->hold, ONCE_GATE_BREAKER);
    assert_int_equal(gate(f, 1)->probes, 0);
    assert_false(view_of(f, 1).unmet);
    assert_in_range(lasts(f, FOREVER_MS), 2 * PATIENCE_MS, 2 * PATIENCE_MS + 10000);
    assert_int_equal(once_machine_counts(f->machine)->done, 4);
}

static void the_first_is_paused_and_the_second_dies(fixture *f, once_item *item)
{
    if (!is_second(f, item)) is_paused(item);
    else fails(item, ONCE_DEAD);
}

/* The second one is held, and nothing of it is left: it is not waited for. */
static void a_handler_without_messages_is_not_waited_for(void **state)
{
    fixture *f = *state;
    open_two(f, 8 * SLOTS, the_first_is_paused_and_the_second_dies);
    while (once_machine_counts(f->machine)->dead < 4 * SLOTS) work(f, 1);
    once_gate *second = gate(f, 1);
    second->hold = ONCE_GATE_BREAKER;
    second->since_ms = f->now_ms;
    second->at_ms = f->now_ms + 5000;
    work(f, 10);
    assert_false(view_of(f, 1).unmet);
    (void)lasts(f, 10000);
    assert_true(view_of(f, 1).unmet); /* which is shown */
    assert_false(view_of(f, 0).unmet);
    f->both[1].gate.rate = (once_rate){.n = 1, .per_ms = 3600000}; /* it may wait for that instead */
    second->credit = 0;
    second->credit_ms = f->now_ms;
    assert_false(view_of(f, 1).unmet);
    f->both[1].gate.rate.n = 0;
    assert_in_range(lasts(f, FOREVER_MS), PATIENCE_MS - 20000, PATIENCE_MS);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
}

static void all_are_paused(fixture *f, once_item *item)
{
    (void)f;
    is_paused(item);
}

static void open_paused(fixture *f)
{
    f->bounded = true;
    f->effect = all_are_paused;
    open_pipe(f, true);
    f->spec.patience_ms = PATIENCE_MS;
}

/* Nothing had gone on before, and not for a long time. */
static void patience_begins_with_the_pause(void **state)
{
    fixture *f = *state;
    open_paused(f);
    assert_int_equal(lasts(f, 3 * PATIENCE_MS) / 1000, 3 * PATIENCE_MS / 1000);
    f->source_ends = true;
    f->left = SLOTS;
    assert_in_range(lasts(f, FOREVER_MS), PATIENCE_MS, PATIENCE_MS + 5000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
    assert_in_range(f->stats, 100, 5 * PATIENCE_MS / 1000); /* a message is due all the time */
}

/* No more is fetched then, so the source does not end. */
static void a_store_that_is_full_of_a_paused_handler_ends_a_finite_run(void **state)
{
    fixture *f = *state;
    f->most.messages = 2 * BATCH;
    f->left = 20 * BATCH;
    open_paused(f);
    assert_in_range(lasts(f, FOREVER_MS), PATIENCE_MS, PATIENCE_MS + 5000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
    assert_true(once_machine_ended_at_bound(f->machine));
    assert_true(f->left > 0);
}

/* It may settle the message, or leave it to us. */
static void a_message_that_another_worker_has_is_waited_for(void **state)
{
    fixture *f = *state;
    once_batch other = {0};
    once_decision decision;
    bool found;
    open_paused(f);
    fill(f, &other, 1);
    other.items[0].request.token = once_token_of_run(2, 7, 1);
    const once_request *request = &other.items[0].request;
    assert_int_equal(f->store->ops->claim(f->store, &request, 1, &decision, &other.arena, NULL), ONCE_OK);
    f->source_ends = true;
    f->left = SLOTS;
    assert_true(lasts(f, 3 * PATIENCE_MS) >= 3 * PATIENCE_MS);
    assert_int_equal(f->store->ops->begin(f->store, NULL), ONCE_OK);
    assert_int_equal(f->store->ops->forget(f->store, request->id, &found, NULL), ONCE_OK);
    assert_int_equal(f->store->ops->commit(f->store, NULL), ONCE_OK);
    once_arena_release(&other.arena);
    assert_true(lasts(f, FOREVER_MS) < 5000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
}

/* What is found in a transaction runs in it, whoever's it is: those of a held handler would be put back each time, and
 * the others would not be found behind them. */
static void nothing_is_found_while_a_handler_is_held_up(void **state)
{
    fixture *f = *state;
    f->bounded = f->atomic = f->lanes_are_found = true;
    open_pipe(f, false);
    assert_true(once__machine_may_find(f->machine));
    gate(f, 0)->hold = ONCE_GATE_PAUSED;
    assert_false(once__machine_may_find(f->machine));
    gate(f, 0)->hold = ONCE_GATE_OPEN;
    assert_true(once__machine_may_find(f->machine));
}

/* A take is under way when the effect that is in flight finds that the handler cannot work. */
static void what_is_taken_while_its_handler_is_held_up_does_not_begin(void **state)
{
    fixture *f = *state;
    once_action *take = NULL;
    f->bounded = true;
    f->left = f->slow = SLOTS;
    f->failing = SLOTS - 1;
    open_pipe(f, false);
    work(f, 20);
    assert_int_equal(f->held_n, 1);
    for (int i = 0; i < 1000 && !take; i++) {
        once_action *action = once_machine_store_action(f->machine, f->now_ms);
        if (action) carry_out(f, action);
        if (action && action->kind == ONCE_ACT_TAKE && action->batch->n) take = action;
        else if (action) once_machine_step(f->machine, action, f->now_ms);
        else f->now_ms += 10, test_env_pass(&f->world, 10);
    }
    assert_non_null(take);
    is_paused(f->held[0]);
    end_held(f);
    assert_int_equal(gate(f, 0)->hold, ONCE_GATE_PAUSED);
    once_machine_step(f->machine, take, f->now_ms);
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
    work(f, 1000);
    assert_int_equal(once_machine_counts(f->machine)->done, SLOTS); /* the probe opened it */
}

static void all_are_unknown(fixture *f, once_item *item)
{
    (void)f;
    fails(item, ONCE_UNKNOWN);
}

static void open_unknown(fixture *f)
{
    f->bounded = f->source_ends = true;
    f->left = 100;
    f->effect = all_are_unknown;
    open_pipe(f, true);
    f->spec.patience_ms = PATIENCE_MS;
    f->handler.retry = (once_retry){.attempts = 30, .min_ms = 10000, .max_ms = 10000};
    f->handler.gate.breaker = (once_breaker){.share = 50, .of = 4, .within_ms = 60000};
}

/* Each of them waits for an operator, and none for a retry: the time of the retries says nothing. */
static void f95_a_breaker_over_unknowns_that_are_held_does_not_outlast_patience(void **state)
{
    fixture *f = *state;
    open_unknown(f);
    f->handler.hold = true;
    assert_in_range(lasts(f, FOREVER_MS), PATIENCE_MS, PATIENCE_MS + 10000);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
    assert_in_range(once_machine_counts(f->machine)->unknown, 4, 4 + SLOTS + 8);
    assert_int_equal(once_machine_counts(f->machine)->waiting + once_machine_counts(f->machine)->unknown, 100);
}

/* These are tried again. */
static void f95_a_breaker_over_unknowns_that_are_tried_again_has_the_time_of_its_retries(void **state)
{
    fixture *f = *state;
    open_unknown(f);
    assert_in_range(lasts(f, FOREVER_MS), RETRIES_MS, RETRIES_MS + 100000);
    assert_int_equal(once_machine_counts(f->machine)->waiting, 100);
}

/* Those without a claim always are: no operator is asked. */
static void f95_only_unknowns_that_are_held_make_probes_costly(void **state)
{
    fixture *f = *state;
    f->natural = true;
    open_unknown(f);
    while (gate(f, 0)->hold != ONCE_GATE_BREAKER) work(f, 1);
    assert_false(gate(f, 0)->costly);
}

static void f95_unknowns_that_are_held_make_probes_costly(void **state)
{
    fixture *f = *state;
    open_unknown(f);
    f->handler.hold = true;
    while (gate(f, 0)->hold != ONCE_GATE_BREAKER) work(f, 1);
    assert_true(gate(f, 0)->costly);
}

static void all_fail(fixture *f, once_item *item)
{
    (void)f;
    fails(item, ONCE_RETRY);
}

/* It runs without a claim, so that it was its last attempt is known when its failure is written. One time that cannot
 * be done. */
static void f96_natural_effects_that_all_die_of_one_reason_pause_their_handler(void **state)
{
    enum { ALL = 400, LIMIT = ONCE_DEAD_OUTCOMES * 80 / 100 };
    fixture *f = *state;
    once_error err = {0};
    f->bounded = f->source_ends = f->natural = true;
    f->left = ALL;
    f->effect = all_fail;
    open_pipe(f, true);
    f->spec.patience_ms = PATIENCE_MS;
    f->handler.retry.attempts = 1;
    f->handler.gate.dead_share = 80;
    while (once_machine_counts(f->machine)->dead + SLOTS < LIMIT) work(f, 1);
    f->fail_at = ONCE_ACT_COMMIT;
    f->fail_status = ONCE_E_ABORTED;
    f->fails = 1;
    assert_in_range(lasts(f, FOREVER_MS), PATIENCE_MS - 1000, PATIENCE_MS + 30000);
    assert_int_equal(f->fails, 0);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_PAUSED);
    assert_non_null(strstr(err.text, "would be dead letters for one reason: no answer; gave up"));
    assert_int_equal(once_machine_counts(f->machine)->dead, LIMIT - 1);
    assert_int_equal(once_machine_counts(f->machine)->waiting, ALL - LIMIT + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_run_waits_as_long_as_one_of_its_handlers_may_go_on),
        TEST(retries_that_are_due_late_are_waited_for_beside_a_paused_handler),
        TEST(the_last_retry_of_a_handler_is_waited_for),
        TEST(a_handler_whose_messages_are_due_late_is_waited_for),
        TEST(a_handler_without_messages_is_not_waited_for),
        TEST(patience_begins_with_the_pause),
        TEST(a_store_that_is_full_of_a_paused_handler_ends_a_finite_run),
        TEST(a_message_that_another_worker_has_is_waited_for),
        TEST(nothing_is_found_while_a_handler_is_held_up),
        TEST(what_is_taken_while_its_handler_is_held_up_does_not_begin),
        TEST(f95_only_unknowns_that_are_held_make_probes_costly),
        TEST(f95_unknowns_that_are_held_make_probes_costly),
        TEST(f95_a_breaker_over_unknowns_that_are_held_does_not_outlast_patience),
        TEST(f95_a_breaker_over_unknowns_that_are_tried_again_has_the_time_of_its_retries),
        TEST(f96_natural_effects_that_all_die_of_one_reason_pause_their_handler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
