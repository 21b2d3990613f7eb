/* The machine step by step: transactions, failures, effects outside, and the end of a run. */
#include "machine_fixture.h"

static void a_batch_is_one_transaction_and_is_acked_after_its_commit(void **state)
{
    fixture *f = open_pipe(state, false);
    fetch(f, 3, 0, NULL);
    assert_places(f, 3, 0, 0, 0, 0);
    once_action *begin = asks_store(f, ONCE_ACT_BEGIN);
    assert_int_equal(begin->n, 3);
    assert_places(f, 0, 0, 3, 0, 0);
    answer(f, begin, ONCE_OK);
    claims(f, 3);
    runs(f, 3, false, ONCE_DONE);
    settles(f, 3, ONCE_DONE);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_null(once_machine_ack_action(f->machine, f->now_ms)); /* before that is answered */
    answer(f, commit, ONCE_OK);
    assert_places(f, 0, 0, 0, 0, 0);
    acks(f, 3);
    const once_counts *counts = once_machine_counts(f->machine);
    assert_int_equal(counts->received, 3);
    assert_int_equal(counts->done, 3);
    assert_int_equal(counts->attempts, 3);
    assert_int_equal(counts->acked, 3);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

/* A message without a body that is skipped is settled with its transaction: acked then, counted, and no letter. */
static void what_is_skipped_is_acked_after_the_commit_and_counted(void **state)
{
    fixture *f = open_pipe(state, false);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    fill(f, action->batch, 1, 0);
    once_item *skipped = fill(f, action->batch, 0, 0);
    skipped->request.id = (once_hash){0, 0};
    skipped->skipped = true;
    skipped->handler = NULL;
    skipped->input = NULL;
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT); /* nothing is buried */
    assert_null(once_machine_ack_action(f->machine, f->now_ms));
    answer(f, commit, ONCE_OK);
    acks(f, 2);
    const once_counts *counts = once_machine_counts(f->machine);
    assert_true(counts->received == 2 && counts->done == 1 && counts->skipped == 1 && counts->dead == 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

static void equal_keys_of_a_batch_are_claimed_in_rounds(void **state)
{
    fixture *f = open_pipe(state, false);
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    fill(f, action->batch, 1, 0);
    fill(f, action->batch, 1, 0);
    action->batch->taken_in = true;
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, 1);
    action->items[0]->decision = (once_decision){.answer = ONCE_ANSWER_DUPLICATE, .outcome = ONCE_DONE};
    answer(f, action, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 2);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->duplicates, 1);
}

static void a_failure_is_run_again_carefully_and_waits_for_its_next_try_in_the_store(void **state)
{
    fixture *f = open_pipe(state, false);
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_RETRY); /* without a savepoint nothing of it can be kept */
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, true, ONCE_RETRY);
    const once_item *item = f->machine->work.items[0];
    assert_in_range(item->delay_ms, 1, 100);
    const int64_t delay_ms = item->delay_ms;
    settles(f, 1, ONCE_RETRY);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1); /* the store has it now */
    assert_int_equal(once_machine_counts(f->machine)->waiting, 1);
    asks_nothing(f);

    f->now_ms += delay_ms + CLOCK_SLACK_MS;
    once_action *take = asks_store(f, ONCE_ACT_TAKE);
    once_item *taken = fill(f, take->batch, 1, 0);
    taken->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 2, .failures = 1, .failing_for_ms = 100};
    answer(f, take, ONCE_OK);
    assert_places(f, 0, 0, 1, 0, 0);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *extend = asks_store(f, ONCE_ACT_EXTEND); /* it was claimed by the take */
    extend->items[0]->granted = true;
    answer(f, extend, ONCE_OK);
    runs(f, 1, true, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_int_equal(once_machine_counts(f->machine)->waiting, 0);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->retries, 1);
}

static void what_is_repeated_after_a_commit_without_an_answer_has_its_token(void **state)
{
    fixture *f = open_pipe(state, false);
    once_item *item;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    const once_token token = item->request.token;
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    assert_places(f, 0, 0, 1, 0, 0);
    assert_null(once_machine_source_action(f->machine, f->now_ms)); /* nothing is fetched, and nothing acked */
    assert_null(once_machine_ack_action(f->machine, f->now_ms));
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    store_does(f, ONCE_ACT_BEGIN);
    assert_true(once_hash_equal(item->request.token, token));
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    item->decision = (once_decision){.answer = ONCE_ANSWER_DUPLICATE, .outcome = ONCE_DONE, .own = true};
    answer(f, claim, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* What goes with the batch could not be written: the executor says so and leaves the transaction to the machine. */
static void a_commit_that_was_not_tried_is_rolled_back_and_leaves_no_doubt(void **state)
{
    fixture *f = open_pipe(state, false);
    once_item *item;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    commit->tx_open = true;
    answer(f, commit, ONCE_E_UNAVAILABLE);
    assert_false(item->commit_unknown);
    store_does(f, ONCE_ACT_ROLLBACK); /* at once: nobody pauses with an open transaction */
    asks_nothing(f);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    once_action *begin = asks_store(f, ONCE_ACT_BEGIN);
    begin->tx_open = true;
    answer(f, begin, ONCE_E_UNAVAILABLE); /* begun, and what it is about could not be said */
    store_does(f, ONCE_ACT_ROLLBACK);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
}

static void a_message_is_parked_behind_an_effect_of_its_lane(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    fetch(f, 1, 9, &items[0]);
    send_out(f, 1);
    assert_places(f, 0, 0, 0, 1, 0);
    fetch(f, 1, 9, &items[1]);
    const int64_t received_ms = f->now_ms;
    f->now_ms += 5; /* the time that it waits is part of what its claim takes */
    assert_places(f, 1, 0, 0, 1, 0);
    asks_nothing(f);
    assert_places(f, 0, 1, 0, 1, 0); /* a slot is free, but its lane is not */
    finishes(f, items[0], ONCE_DONE);
    assert_places(f, 0, 1, 0, 0, 1);
    store_does(f, ONCE_ACT_BEGIN);
    assert_places(f, 0, 1, 1, 0, 0);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 1, 0, 0, 0, 0);
    send_out(f, 1);
    assert_int_equal(items[1]->place, ONCE_AT_FLIGHT);
    assert_int_equal(items[1]->times.received_ms, received_ms);
    assert_int_equal(items[1]->times.claimed_ms, f->now_ms);
}

/* A deadlock now and then is nobody's fault: until it has happened three times in a row, it is tried as it was. */
static void f91_nobody_is_looked_for_before_the_third_rollback(void **state)
{
    fixture *f = open_pipe(state, false);
    fetch(f, 2, 0, NULL);
    for (int i = 0; i < 4; i++) {
        store_does(f, ONCE_ACT_BEGIN);
        claims(f, 2);
        runs(f, 2, i == 3, ONCE_DONE);
        settles(f, 2, ONCE_DONE);
        answer(f, asks_store(f, ONCE_ACT_COMMIT), i < 3 ? ONCE_E_ABORTED : ONCE_OK);
        f->now_ms += 1000;
    }
    acks(f, 2);
}

static void acks_stop_at_the_first_effect_that_is_not_over(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    fetch(f, 2, 0, items);
    send_out(f, 2);
    finishes(f, items[1], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    assert_null(once_machine_ack_action(f->machine, f->now_ms)); /* 1 is a gap */
    assert_int_equal(f->machine->streams.at[0]->mark.upto, 0);
    finishes(f, items[0], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 2);
}

static void a_stop_settles_what_is_under_way_and_leaves_the_rest_to_the_source(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    fetch(f, 2, 9, items);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    once_machine_stop(f->machine);
    asks_nothing(f);
    assert_false(once_machine_ended(f->machine));
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
    f->now_ms += DRAIN_MS;
    once_action *kill = once_machine_effect_action(f->machine, f->now_ms);
    assert_true(kill && kill->kind == ONCE_ACT_KILL && kill->n == 1);
    answer(f, kill, ONCE_OK);
    items[0]->maybe_done = true;
    finishes(f, items[0], ONCE_RETRY);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_RETRY);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(once_machine_unsettled(f->machine), 0);
    assert_int_equal(once_machine_unfinished(f->machine), 1); /* never claimed, never acked: it comes again */
}

static void what_was_claimed_and_has_not_begun_is_put_back_at_a_stop(void **state)
{
    fixture *f = open_pipe(state, true);
    fetch(f, 2, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 0, 0, 0, 2, 0);
    once_machine_stop(f->machine);
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 2, ONCE_RELEASE);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 2);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_counts(f->machine)->attempts, 0);
}

static void a_store_that_is_gone_leaves_outcomes_unsettled(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item;
    fetch(f, 1, 0, &item);
    send_out(f, 1);
    once_machine_stop(f->machine);
    finishes(f, item, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_BEGIN), ONCE_E_UNAVAILABLE);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_UNAVAILABLE);
    assert_int_equal(once_machine_unsettled(f->machine), 1);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

/* What would run is not run while effects run one by one; it is not asked for again and again either. */
static void a_stop_while_messages_run_singly_leaves_to_the_source_what_was_not_committed(void **state)
{
    fixture *f = open_pipe(state, false);
    fetch(f, 2, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    runs(f, 2, false, ONCE_DONE);
    settles(f, 2, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    once__machine_run_singly(f->machine);
    f->machine->caution.look = true;
    once_machine_stop(f->machine);
    for (int i = 0; i < 2; i++) { /* what the work was, and what it left in doubt */
        once_action *begin = once_machine_store_action(f->machine, f->now_ms);
        if (!begin) break;
        answer(f, begin, ONCE_OK);
        claims(f, 2);
        store_does(f, ONCE_ACT_ROLLBACK);
    }
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_unfinished(f->machine), 2);
}

/* A COMMIT in another database whose outcome nobody can tell: the next one would end in the same way. What is known of
 * this one is settled before the run ends. */
static void what_hinders_the_run_may_show_after_an_effect_began(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    fetch(f, 2, 0, items);
    send_out(f, 2);
    items[0]->run_failure = ONCE_E_COMMIT_UNKNOWN;
    items[0]->maybe_done = true;
    items[0]->failure = ONCE_BYTES("who knows");
    finishes(f, items[0], ONCE_UNKNOWN);
    once_error err;
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_COMMIT_UNKNOWN);
    assert_string_equal(err.text, "who knows");
    finishes(f, items[1], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *settle = asks_store(f, ONCE_ACT_SETTLE);
    assert_int_equal(settle->n, 2);
    for (size_t i = 0; i < 2; i++) settle->items[i]->granted = true;
    assert_int_equal(items[0]->outcome, ONCE_RETRY); /* as `unknown: retry` wants it, and it may have happened */
    assert_true(items[0]->maybe_done);
    assert_int_equal(items[1]->outcome, ONCE_DONE);
    answer(f, settle, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 2);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

/* Who found the other side away waits for a while; who was told to end has found out nothing. */
static void an_effect_that_was_told_to_end_is_put_back_without_a_pause(void **state)
{
    for (int told = 0; told < 2; told++) {
        if (told) assert_true(tear_down(state) == 0 && set_up(state) == 0);
        fixture *f = open_pipe(state, true);
        once_item *item;
        fetch(f, 1, 0, &item);
        send_out(f, 1);
        if (told) {
            once_machine_stop(f->machine);
            assert_null(once_machine_effect_action(f->machine, f->now_ms));
            f->now_ms += DRAIN_MS;
            once_action *kill = once_machine_effect_action(f->machine, f->now_ms);
            assert_true(kill && kill->kind == ONCE_ACT_KILL);
            answer(f, kill, ONCE_OK);
        }
        finishes(f, item, ONCE_RELEASE);
        assert_int_equal(item->delay_ms == 0, told);
    }
}

/* Two fail at once, one of them because of something that may pass: the run ends because of the other. */
static void of_two_failures_the_one_that_does_not_pass_counts(void **state)
{
    for (int first = 0; first < 2; first++) {
        if (first) assert_true(tear_down(state) == 0 && set_up(state) == 0);
        fixture *f = open_pipe(state, true);
        once_item *items[2];
        fetch(f, 2, 0, items);
        send_out(f, 2);
        for (int i = 0; i < 2; i++) {
            items[i]->outcome = ONCE_RELEASE;
            items[i]->run_failure = i == first ? ONCE_E_COMMIT_UNKNOWN : ONCE_E_UNAVAILABLE;
        }
        once_machine_finished(f->machine, items, 2, f->now_ms);
        assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_COMMIT_UNKNOWN);
    }
}

/* Another one may try the handler then; otherwise it would be held up for ever. */
static void a_probe_that_loses_its_claim_before_it_begins_is_none(void **state)
{
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    once_item *item;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    gate->hold = ONCE_GATE_PAUSED; /* meanwhile, and it is the probe */
    gate->at_ms = f->now_ms;
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    assert_ptr_equal(gate->probe, item);
    f->now_ms += LEASE_MS / 2;
    f->machine->due.at_ms = f->machine->store.sweep_at_ms = f->machine->store.renew_at_ms = f->now_ms + 1000000;
    store_does(f, ONCE_ACT_BEGIN);
    once_action *extend = asks_store(f, ONCE_ACT_EXTEND);
    assert_int_equal(extend->n, 1);
    extend->items[0]->granted = false;
    answer(f, extend, ONCE_OK);
    assert_null(gate->probe);
    assert_int_equal(once_gate_room(gate, f->now_ms), 1);
}

/* It was put back before it began, by nobody's fault: that is neither a success nor a failure of its handler. */
static void a_probe_that_was_put_back_tells_nothing(void **state)
{
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    once_item *item;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    gate->hold = ONCE_GATE_PAUSED; /* meanwhile, and it is the probe */
    gate->at_ms = f->now_ms;
    gate->interval_ms = 1000;
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    assert_ptr_equal(gate->probe, item);
    item->outcome = ONCE_RELEASE;
    once_machine_finished(f->machine, &item, 1, f->now_ms);
    assert_int_equal(gate->hold, ONCE_GATE_PAUSED);
    assert_int_equal(gate->interval_ms, 1000);
    assert_int_equal(once_gate_room(gate, f->now_ms), 1);
}

static void a_probe_whose_claim_is_rolled_back_is_none(void **state)
{
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    gate->hold = ONCE_GATE_PAUSED; /* meanwhile, and it is the probe */
    gate->at_ms = f->now_ms;
    claims(f, 1);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    assert_non_null(gate->probe);
    answer(f, commit, ONCE_E_ABORTED);
    assert_null(gate->probe);
}

/* The same for an effect in the store's database, whose message is another worker's when it is settled. */
static void a_probe_inside_that_loses_its_claim_is_none(void **state)
{
    fixture *f = open_pipe(state, false);
    once_gate *gate = &f->machine->gate.gates.at[0];
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    gate->hold = ONCE_GATE_PAUSED; /* meanwhile, and it is the probe */
    gate->at_ms = f->now_ms;
    claims(f, 1);
    runs(f, 1, false, ONCE_DONE);
    assert_non_null(gate->probe);
    once_action *settle = asks_store(f, ONCE_ACT_SETTLE);
    settle->items[0]->granted = false;
    answer(f, settle, ONCE_OK);
    store_does(f, ONCE_ACT_ROLLBACK);
    assert_null(gate->probe);
    assert_int_equal(gate->hold, ONCE_GATE_PAUSED);
}

/* Its handler is held up after a commit whose result is unknown: its claim tells that, and it is not given to the store
 * as if it were new. */
static void what_was_in_a_commit_is_claimed_although_its_handler_is_held_up(void **state)
{
    fixture *f = open_pipe(state, false);
    once_gate *gate = &f->machine->gate.gates.at[0];
    fetch(f, 1, 0, NULL);
    works_on(f, 1);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    gate->hold = ONCE_GATE_PAUSED;
    gate->at_ms = f->now_ms + 100000;
    f->now_ms += 1000;
    store_does(f, ONCE_ACT_BEGIN);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    claim->items[0]->decision = (once_decision){.answer = ONCE_ANSWER_DUPLICATE, .own = true, .outcome = ONCE_DONE};
    answer(f, claim, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
}

/* Its handler is held up after the claims were asked for. */
static void what_is_claimed_for_a_handler_that_is_held_up_is_put_back(void **state)
{
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    fetch(f, 2, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    gate->hold = ONCE_GATE_PAUSED;
    gate->at_ms = f->now_ms + 1000;
    for (size_t i = 0; i < claim->n; i++)
        claim->items[i]->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1};
    answer(f, claim, ONCE_OK);
    settles(f, 2, ONCE_RELEASE);
}

/* The same after they were claimed, before or after that is committed: they do not begin. */
static void what_has_not_begun_when_its_handler_is_held_up_does_not_begin(void **state)
{
    for (int committed = 0; committed < 2; committed++) {
        if (committed) assert_true(tear_down(state) == 0 && set_up(state) == 0);
        fixture *f = open_pipe(state, true);
        once_item *item;
        fetch(f, 1, 0, &item);
        send_out(f, 1);
        fetch(f, 1, 0, NULL);
        store_does(f, ONCE_ACT_BEGIN);
        claims(f, 1);
        once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
        if (committed) answer(f, commit, ONCE_OK);
        item->outcome = ONCE_RELEASE;
        item->run_failure = ONCE_E_MISSING;
        once_machine_finished(f->machine, &item, 1, f->now_ms);
        if (!committed) answer(f, commit, ONCE_OK);
        assert_int_equal(f->machine->gate.gates.at[0].hold, ONCE_GATE_PAUSED);
        assert_places(f, 0, 0, 0, 0, 2);
        assert_null(once_machine_effect_action(f->machine, f->now_ms));
    }
}

/* What is under way goes on, and only what waits behind it is put back. */
static void what_has_begun_when_its_handler_is_held_up_goes_on(void **state)
{
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    fetch(f, 1, 0, NULL);
    send_out(f, 1);
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    assert_places(f, 0, 0, 0, 2, 0);
    gate->hold = ONCE_GATE_PAUSED;
    gate->at_ms = f->now_ms + 1000;
    once__machine_put_back_paused(f->machine);
    assert_places(f, 0, 0, 0, 1, 1);
}

/* A message that lacks a field dies without its effect. That is no answer of the other side. */
static void what_cannot_be_prepared_does_not_end_a_pause(void **state)
{
    static const once_gate_hold holds[] = {ONCE_GATE_BREAKER, ONCE_GATE_PAUSED, ONCE_GATE_UNABLE, ONCE_GATE_DEAD};
    fixture *f = open_pipe(state, true);
    once_gate *gate = &f->machine->gate.gates.at[0];
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
        once_item *item;
        gate->hold = ONCE_GATE_OPEN;
        fetch(f, 1, 0, &item);
        item->input = NULL;
        item->reason = ONCE_BYTES("no field");
        store_does(f, ONCE_ACT_BEGIN);
        gate->hold = holds[i]; /* meanwhile */
        gate->at_ms = f->now_ms;
        gate->interval_ms = 1000;
        claims(f, 1);
        settles(f, 1, ONCE_DEAD);
        store_does(f, ONCE_ACT_COMMIT);
        assert_int_equal(gate->hold, holds[i]);
        assert_int_equal(once_gate_room(gate, f->now_ms), holds[i] != ONCE_GATE_DEAD); /* of that it was the probe */
        acks(f, i + 1);
    }
}

/* The rest of what it claimed would be out of reach. Its leases began with the first one; what happens to effects
 * meanwhile changes nothing. */
static void f76_a_take_without_an_answer_is_repeated_as_it_was(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item;
    fetch(f, 1, 0, &item);
    send_out(f, 1);
    f->now_ms = f->machine->due.at_ms;
    once_action *take = asks_store(f, ONCE_ACT_TAKE);
    const once_token token = take->token;
    const int64_t asked_ms = f->now_ms;
    assert_int_equal(take->max, SLOTS - 1);
    assert_false(take->again);
    answer(f, take, ONCE_E_UNAVAILABLE);
    item->run_failure = ONCE_E_UNAVAILABLE;
    finishes(f, item, ONCE_RELEASE);
    f->now_ms = f->machine->store.at_ms;
    assert_true(f->now_ms > asked_ms);
    assert_int_equal(f->machine->gate.gates.at[0].hold, ONCE_GATE_UNABLE); /* nothing can be started now */
    take = asks_store(f, ONCE_ACT_TAKE);
    assert_true(take->again && once_hash_equal(take->token, token));
    assert_int_equal(take->max, SLOTS - 1);
    assert_int_equal(f->machine->due.asked_ms, asked_ms);
}

/* The store is full of messages that wait for one without its body. When one was added, it may have been that one. */
static void what_only_the_source_has_is_fetched_until_something_was_added(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item;
    f->spec.waiting_max.messages = 2;
    for (int i = 0; i < 2; i++) {
        f->machine->room = (machine_room){.known = true, .full = true, .there.messages = 2, .at_ms = f->now_ms};
        once_action *count = asks_store(f, ONCE_ACT_COUNT);
        assert_true(count->due);
        count->size.messages = 2;
        count->waiting = 3;
        count->wait_ms = ONCE_NEVER;
        answer(f, count, ONCE_OK);
        assert_int_equal(once__machine_room_to_fetch(f->machine), BATCH);
        fetch(f, 1, 0, &item);
        send_out(f, 1);
        assert_int_equal(once__machine_room_to_fetch(f->machine), BATCH);
        finishes(f, item, i ? ONCE_RETRY : ONCE_DONE);
        store_does(f, ONCE_ACT_BEGIN);
        settles(f, 1, i ? ONCE_RETRY : ONCE_DONE);
        store_does(f, ONCE_ACT_COMMIT);
        assert_int_equal(once__machine_room_to_fetch(f->machine), i ? 0 : BATCH);
    }
}

/* They only pass a queue: nobody waits for their begin. */
static void functions_of_this_process_begin_at_once(void **state)
{
    enum { MANY = 150 };
    fixture *f = *state;
    f->batch = f->slots = MANY;
    open_pipe(state, true);
    fetch(f, MANY, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, MANY);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, MANY);
}

/* So what has ended meanwhile is settled while the others are begun. */
static void effects_begin_a_few_at_a_time_and_in_their_order(void **state)
{
    enum { MANY = 150 };
    fixture *f = *state;
    once_item *items[MANY];
    f->batch = f->slots = MANY;
    open_pipe(state, true);
    f->handler.bits |= ONCE_EFFECT_ISOLATED;
    fetch(f, MANY, 0, items);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, MANY);
    store_does(f, ONCE_ACT_COMMIT);
    for (size_t begun = 0; begun < MANY;) {
        once_action *start = once_machine_effect_action(f->machine, f->now_ms);
        assert_true(start && start->kind == ONCE_ACT_START);
        assert_in_range(start->n, 1, 64);
        for (size_t i = 0; i < start->n; i++) assert_ptr_equal(start->items[i], items[begun + i]);
        begun += start->n;
        answer(f, start, ONCE_OK);
    }
    assert_null(once_machine_effect_action(f->machine, f->now_ms));
}

/* There may always be something to begin. What must end does not wait for that. */
static void an_effect_that_must_end_is_ended_before_others_begin(void **state)
{
    fixture *f = open_pipe(state, true);
    fetch(f, 1, 0, NULL);
    send_out(f, 1);
    f->now_ms += LEASE_MS / 3;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *extend = asks_store(f, ONCE_ACT_EXTEND);
    assert_int_equal(extend->n_extend, 1);
    extend->items[0]->granted = false; /* another worker has it */
    answer(f, extend, ONCE_OK);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    once_action *kill = once_machine_effect_action(f->machine, f->now_ms);
    assert_true(kill && kill->kind == ONCE_ACT_KILL && kill->n == 1);
    answer(f, kill, ONCE_OK);
    starts(f, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_one_transaction_and_is_acked_after_its_commit),
        TEST(what_is_skipped_is_acked_after_the_commit_and_counted),
        TEST(equal_keys_of_a_batch_are_claimed_in_rounds),
        TEST(a_failure_is_run_again_carefully_and_waits_for_its_next_try_in_the_store),
        TEST(what_is_repeated_after_a_commit_without_an_answer_has_its_token),
        TEST(a_commit_that_was_not_tried_is_rolled_back_and_leaves_no_doubt),
        TEST(a_message_is_parked_behind_an_effect_of_its_lane),
        TEST(f91_nobody_is_looked_for_before_the_third_rollback),
        TEST(acks_stop_at_the_first_effect_that_is_not_over),
        TEST(a_stop_settles_what_is_under_way_and_leaves_the_rest_to_the_source),
        TEST(what_was_claimed_and_has_not_begun_is_put_back_at_a_stop),
        TEST(a_store_that_is_gone_leaves_outcomes_unsettled),
        TEST(what_hinders_the_run_may_show_after_an_effect_began),
        TEST(functions_of_this_process_begin_at_once),
        TEST(effects_begin_a_few_at_a_time_and_in_their_order),
        TEST(an_effect_that_must_end_is_ended_before_others_begin),
        TEST(an_effect_that_was_told_to_end_is_put_back_without_a_pause),
        TEST(of_two_failures_the_one_that_does_not_pass_counts),
        TEST(what_only_the_source_has_is_fetched_until_something_was_added),
        TEST(a_probe_that_loses_its_claim_before_it_begins_is_none),
        TEST(a_probe_that_was_put_back_tells_nothing),
        TEST(a_probe_whose_claim_is_rolled_back_is_none),
        TEST(a_probe_inside_that_loses_its_claim_is_none),
        TEST(what_was_in_a_commit_is_claimed_although_its_handler_is_held_up),
        TEST(what_is_claimed_for_a_handler_that_is_held_up_is_put_back),
        TEST(what_has_not_begun_when_its_handler_is_held_up_does_not_begin),
        TEST(what_has_begun_when_its_handler_is_held_up_goes_on),
        TEST(what_cannot_be_prepared_does_not_end_a_pause),
        TEST(f76_a_take_without_an_answer_is_repeated_as_it_was),
        TEST(a_stop_while_messages_run_singly_leaves_to_the_source_what_was_not_committed),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
