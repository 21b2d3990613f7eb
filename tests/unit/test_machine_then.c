/* The machine step by step: what is written with the outcome of an effect outside (ONCE_EFFECT_THEN). */
#include "machine_fixture.h"

/* Its effect has happened, and the transaction that settles it has begun. */
static once_item *is_back_as(fixture *f, once_outcome outcome)
{
    once_item *item;
    f->handler.bits |= ONCE_EFFECT_THEN;
    f->handler.hold = true;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    item->result = ONCE_BYTES("charged");
    if (outcome == ONCE_ALREADY) item->failure = ONCE_BYTES("charged by the attempt before");
    finishes(f, item, outcome);
    store_does(f, ONCE_ACT_BEGIN);
    return item;
}

static once_item *is_back(fixture *f) { return is_back_as(f, ONCE_DONE); }

static void extends(fixture *f, bool ours)
{
    once_action *action = asks_store(f, ONCE_ACT_EXTEND);
    assert_int_equal(action->n, 1);
    action->items[0]->granted = ours;
    answer(f, action, ONCE_OK);
}

static void what_is_written_with_an_effect_runs_under_its_claim(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item = is_back(f);
    extends(f, true);
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    assert_int_equal(run->n, 1);
    run->items[0]->outcome = ONCE_DONE;
    run->items[0]->result = ONCE_BYTES("1 row");
    answer(f, run, ONCE_OK);
    assert_int_equal(item->result.len, 7); /* the effect's own */
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

static void settles_in_vain(fixture *f)
{
    once_action *settle = asks_store(f, ONCE_ACT_SETTLE); /* nothing has run */
    assert_int_equal(settle->n, 1);
    assert_int_equal(settle->items[0]->outcome, ONCE_UNKNOWN); /* should it be nobody's, it is not done either */
    settle->items[0]->granted = false;
    answer(f, settle, ONCE_OK);
}

static void what_is_written_with_an_effect_needs_its_claim(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    extends(f, false);
    settles_in_vain(f);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
}

/* A claim that ran out, and nobody has taken it: it is unknown, and stays so. */
static void an_effect_whose_claim_ran_out_is_not_done_without_what_is_written_with_it(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    extends(f, false);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
}

/* After a commit whose fate is not known its claim is asked for again, and with it the right to write. */
static void what_is_written_with_an_effect_is_written_once(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    extends(f, true);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    f->now_ms += 200;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false); /* it has happened */
    settles_in_vain(f);
    settles(f, 1, ONCE_DONE); /* its own settlement, which is there */
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 0);
}

/* Nobody delivers it to this worker again, so this is the last chance to count it. */
static void what_was_settled_is_counted_although_its_stream_is_revoked(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    (void)is_back(f);
    extends(f, true);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 0);
    f->now_ms += 200;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    settles_in_vain(f);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
}

/* The commit did not happen, and meanwhile another worker has it. */
static void what_another_worker_has_is_not_counted_as_settled(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    extends(f, true);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    f->now_ms += 200;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    settles_in_vain(f);
    once_action *settle = asks_store(f, ONCE_ACT_SETTLE);
    assert_int_equal(settle->items[0]->outcome, ONCE_DONE);
    settle->items[0]->granted = false;
    answer(f, settle, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 1);
}

/* Its lease could not be extended, and its effect ended nevertheless. Without what belongs to it, it is not done. */
static void an_effect_that_lost_its_claim_is_not_done_without_what_is_written_with_it(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item;
    f->handler.bits |= ONCE_EFFECT_THEN;
    f->handler.hold = true;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    f->now_ms += LEASE_MS / 2;
    f->machine->due.at_ms = f->machine->store.sweep_at_ms = f->now_ms + 1000000; /* they are not what is tested */
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    store_does(f, ONCE_ACT_COMMIT);
    finishes(f, item, ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
}

static void what_is_written_with_an_effect_is_written_anew_when_nothing_was_committed(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    for (int i = 0; i < 2; i++) {
        extends(f, true);
        runs(f, 1, false, ONCE_DONE);
        settles(f, 1, ONCE_DONE);
        if (i) break;
        answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_ABORTED);
        f->now_ms += 200;
        store_does(f, ONCE_ACT_BEGIN);
    }
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
}

/* The effect has happened, and what belongs to it has not: that is no success, and no reason to do it again. */
static void what_is_written_with_an_effect_and_fails_leaves_an_unknown(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back(f);
    extends(f, true);
    runs(f, 1, false, ONCE_RETRY);
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, true);
    runs(f, 1, true, ONCE_RETRY);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* The effect is done, what is written with it fails, and the outcome is about to be settled. */
static once_item *fails_to_write(fixture *f, bool hold)
{
    once_item *item = is_back(f);
    f->handler.hold = hold;
    item->request.lookup = once_handler_asks(&f->handler);
    extends(f, true);
    runs(f, 1, false, ONCE_RETRY);
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, true);
    runs(f, 1, true, ONCE_RETRY);
    return item;
}

/* `unknown: retry` is for effects whose outcome is unknown. This one is done, and only its statements are missing. */
static void an_effect_that_is_done_is_not_repeated_because_of_what_is_written_with_it(void **state)
{
    fixture *f = open_pipe(state, true);
    const once_item *item = fails_to_write(f, false);
    settles(f, 1, ONCE_UNKNOWN);
    assert_true(item->maybe_done);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->retries, 0);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

static void settles_with_lookup(void **state, bool hold, int64_t delay_ms)
{
    fixture *f = open_pipe(state, true);
    f->handler.bits |= ONCE_EFFECT_ASKS;
    f->handler.lookup = (once_lookup){.after_ms = 700, .for_ms = 60000};
    const once_item *item = fails_to_write(f, hold);
    settles(f, 1, ONCE_UNKNOWN);
    assert_true(item->delay_ms == delay_ms);
    store_does(f, ONCE_ACT_COMMIT);
}

/* The other side will say that it is done, and then it is written again. */
static void an_effect_that_is_done_is_asked_about_until_what_belongs_to_it_is_written(void **state)
{
    settles_with_lookup(state, true, 700);
}

/* With `unknown: retry` the end of a lookup would run it again: it is held for a person at once. */
static void an_effect_that_is_done_is_not_repeated_by_the_end_of_a_lookup(void **state)
{
    settles_with_lookup(state, false, ONCE_NEVER);
}

/* A timeout of SQLite, RAISE(ROLLBACK): it would end the next transaction, too. */
static void what_ends_the_transaction_is_not_tried_again(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item = is_back(f);
    extends(f, true);
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    item->ended_tx = run->failed = true;
    item->outcome = ONCE_RETRY;
    item->reason = ONCE_BYTES("it took too long");
    answer(f, run, ONCE_OK);
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, true);
    assert_int_equal(item->failure.len, 16);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
}

/* A deadlock is tried again, more often than that of an effect; but not for ever, because others wait behind it. */
static void f48_what_the_database_rolls_back_again_and_again_is_left_unknown(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item = is_back(f);
    int tries = 0;
    for (; tries < 20; tries++) {
        extends(f, true);
        once_action *action = once_machine_store_action(f->machine, f->now_ms);
        assert_non_null(action);
        if (action->kind != ONCE_ACT_RUN) {
            assert_int_equal(action->kind, ONCE_ACT_SETTLE);
            assert_int_equal(item->outcome, ONCE_UNKNOWN);
            item->granted = true;
            answer(f, action, ONCE_OK);
            break;
        }
        item->suspect = action->careful;
        answer(f, action, ONCE_E_ABORTED);
        store_does(f, ONCE_ACT_ROLLBACK);
        f->now_ms += 1000;
        store_does(f, ONCE_ACT_BEGIN);
    }
    assert_in_range(tries, 5, 19);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* Its table is gone, in a careful pass. The message is left as it is. */
static void cannot_be_written(fixture *f, bool careful)
{
    extends(f, true);
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    assert_int_equal(run->careful, careful);
    run->items[0]->outcome = ONCE_RELEASE;
    run->items[0]->run_failure = ONCE_E_SCHEMA;
    run->items[0]->failure = ONCE_BYTES("no such table");
    run->failed = !careful;
    answer(f, run, ONCE_OK);
    if (careful) return;
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    cannot_be_written(f, true);
}

static once_item *waits_to_be_written(fixture *f)
{
    f->machine->due.at_ms = f->machine->store.sweep_at_ms = f->now_ms + 1000000; /* they are not what is tested */
    once_item *item = is_back(f);
    cannot_be_written(f, false);
    store_does(f, ONCE_ACT_COMMIT);
    f->machine->due.at_ms = f->now_ms + 1000000;
    assert_places(f, 0, 0, 0, 0, 1);
    assert_int_equal(f->machine->gate.gates.at[0].hold, ONCE_GATE_PAUSED);
    asks_nothing(f);
    return item;
}

/* It concerns its handler alone, and nothing but that write tries it again: another effect would be one more without
 * its write. */
static void what_cannot_be_written_for_now_pauses_its_handler_and_is_written_later(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *next;
    (void)waits_to_be_written(f);
    fetch(f, 1, 0, &next);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *accept = asks_store(f, ONCE_ACT_ACCEPT);
    assert_int_equal(accept->n, 1);
    accept->items[0]->decision = (once_decision){.answer = ONCE_ANSWER_WAITING};
    answer(f, accept, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    for (int i = 0; i < 3; i++) {
        f->now_ms += 5000;
        f->machine->store.renew_at_ms = f->now_ms + 1000000;
        f->machine->due.at_ms = f->now_ms;
        assert_int_equal(once__machine_take_max(f->machine, f->now_ms), 0);
        store_does(f, ONCE_ACT_BEGIN);
        cannot_be_written(f, true);
        store_does(f, ONCE_ACT_COMMIT);
        assert_places(f, 0, 0, 0, 0, 1);
    }
    f->now_ms += 5000;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, true);
    runs(f, 1, true, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(f->machine->gate.gates.at[0].hold, ONCE_GATE_OPEN);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->waiting, 1);
    assert_int_equal(once_machine_counts(f->machine)->attempts, 1);
}

/* Nobody will write it: it is unknown, and not done. */
static void what_cannot_be_written_until_the_run_ends_is_left_unknown(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)waits_to_be_written(f);
    once_machine_stop(f->machine);
    store_does(f, ONCE_ACT_BEGIN);
    cannot_be_written(f, true);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
}

/* It is claimed, but by nobody who could settle it. Another worker's claim is waited for. */
static void what_cannot_be_written_ends_a_finite_run_when_its_patience_is_over(void **state)
{
    fixture *f = open_source(state, true, ONCE_SOURCE_FINITE);
    (void)waits_to_be_written(f);
    assert_false(once__machine_waits_in_vain(f->machine, &(once_action){.claimed = 1}, f->now_ms));
    f->now_ms += f->spec.patience_ms;
    assert_false(once__machine_waits_in_vain(f->machine, &(once_action){.claimed = 2}, f->now_ms));
    assert_true(once__machine_waits_in_vain(f->machine, &(once_action){.claimed = 1}, f->now_ms));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_PAUSED);
}

/* Another worker has its claim by then, and its handler can be tried again. */
static void what_cannot_be_written_and_loses_its_claim_is_no_longer_ours(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)waits_to_be_written(f);
    f->now_ms += 5000;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    settles_in_vain(f);
    store_does(f, ONCE_ACT_COMMIT);
    assert_null(f->machine->gate.gates.at[0].probe);
    assert_int_equal(once_machine_counts(f->machine)->fenced, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
}

/* The reply of the attempt before was lost, and this one was told that it had happened: nobody else writes it. */
static void f04_an_effect_that_had_happened_before_is_followed_by_what_belongs_to_it(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item = is_back_as(f, ONCE_ALREADY);
    extends(f, true);
    runs(f, 1, false, ONCE_RETRY); /* another message of the batch, perhaps */
    item->failure = ONCE_BYTES("failed");
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, true);
    assert_int_equal(item->failure.len, 29); /* its own again */
    runs(f, 1, true, ONCE_DONE);
    assert_int_equal(item->result.len, 7);
    assert_int_equal(item->failure.len, 29);
    settles(f, 1, ONCE_ALREADY);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 1);
    assert_int_equal(once_machine_counts(f->machine)->already, 1);
}

static void an_effect_that_had_happened_before_is_unknown_without_what_belongs_to_it(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back_as(f, ONCE_ALREADY);
    extends(f, false);
    settles(f, 1, ONCE_UNKNOWN);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(f->machine)->already, 0);
}

/* Its own settlement, whose commit was not answered, is recognised. */
static void what_had_happened_before_is_written_once(void **state)
{
    fixture *f = open_pipe(state, true);
    (void)is_back_as(f, ONCE_ALREADY);
    extends(f, true);
    runs(f, 1, false, ONCE_DONE);
    settles(f, 1, ONCE_ALREADY);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    f->now_ms += 200;
    store_does(f, ONCE_ACT_BEGIN);
    extends(f, false);
    settles_in_vain(f);
    settles(f, 1, ONCE_ALREADY);
    store_does(f, ONCE_ACT_COMMIT);
    assert_int_equal(once_machine_counts(f->machine)->already, 1);
}

/* What did not succeed has nothing to write. */
static void an_effect_that_failed_writes_nothing(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *item;
    f->handler.bits |= ONCE_EFFECT_THEN;
    fetch(f, 1, 0, &item);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, 1);
    finishes(f, item, ONCE_REJECTED);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_REJECTED);
    store_does(f, ONCE_ACT_COMMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_with_an_effect_runs_under_its_claim),
        TEST(what_is_written_with_an_effect_needs_its_claim),
        TEST(an_effect_whose_claim_ran_out_is_not_done_without_what_is_written_with_it),
        TEST(what_is_written_with_an_effect_is_written_once),
        TEST(what_was_settled_is_counted_although_its_stream_is_revoked),
        TEST(what_another_worker_has_is_not_counted_as_settled),
        TEST(an_effect_that_lost_its_claim_is_not_done_without_what_is_written_with_it),
        TEST(what_is_written_with_an_effect_is_written_anew_when_nothing_was_committed),
        TEST(what_is_written_with_an_effect_and_fails_leaves_an_unknown),
        TEST(an_effect_that_is_done_is_not_repeated_because_of_what_is_written_with_it),
        TEST(an_effect_that_is_done_is_asked_about_until_what_belongs_to_it_is_written),
        TEST(an_effect_that_is_done_is_not_repeated_by_the_end_of_a_lookup),
        TEST(what_ends_the_transaction_is_not_tried_again),
        TEST(f48_what_the_database_rolls_back_again_and_again_is_left_unknown),
        TEST(what_cannot_be_written_for_now_pauses_its_handler_and_is_written_later),
        TEST(what_cannot_be_written_until_the_run_ends_is_left_unknown),
        TEST(what_cannot_be_written_ends_a_finite_run_when_its_patience_is_over),
        TEST(what_cannot_be_written_and_loses_its_claim_is_no_longer_ours),
        TEST(f04_an_effect_that_had_happened_before_is_followed_by_what_belongs_to_it),
        TEST(an_effect_that_had_happened_before_is_unknown_without_what_belongs_to_it),
        TEST(what_had_happened_before_is_written_once),
        TEST(an_effect_that_failed_writes_nothing),
    };
    return cmocka_run_group_tests_name("machine_then", tests, NULL, NULL);
}
