/* The machine step by step. The test plays the executors, there is no store, and each action is checked. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/machine_impl.h"
#include "testenv.h"

enum { BATCH = 4, SLOTS = 2, LEASE_MS = 30000, DRAIN_MS = 1000, BEAT_MS = 700, RUN = 7 };

typedef struct fixture {
    bool unclean;   /* the last run did not end cleanly */
    unsigned batch; /* messages of a batch; 0: BATCH */
    test_env world;
    once_handler_spec handler;
    once_spec spec;
    once_machine *machine;
    int64_t now_ms;
    uint64_t made; /* messages */
} fixture;

static int prepare(const once_handler_spec *handler, const once_json *body, const once_message *message,
                   once_arena *arena, void **input, once_error *err)
{
    (void)handler, (void)body, (void)message, (void)err;
    *input = arena; /* it can run */
    return ONCE_OK;
}

/* --- the executors --- */

static void answer(fixture *f, once_action *action, int status)
{
    action->status = status;
    if (status != ONCE_OK) once_fail(&action->error, status, "as the test wants it");
    once_machine_step(f->machine, action, f->now_ms);
}

static once_action *asks_store(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_store_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static once_action *asks_source(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static once_action *asks_acks(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_ack_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static void store_does(fixture *f, once_action_kind kind) { answer(f, asks_store(f, kind), ONCE_OK); }
static void asks_nothing(fixture *f) { assert_null(once_machine_store_action(f->machine, f->now_ms)); }

/* One more item of a batch; `lane` 0: none. */
static once_item *fill(fixture *f, once_batch *batch, uint64_t key, uint64_t lane)
{
    if (!batch->items) batch->items = once_arena_new(&batch->arena, once_item, f->spec.batch_max);
    once_item *item = &batch->items[batch->n++];
    item->batch = batch;
    item->handler = &f->handler;
    item->input = f;
    item->scope = (once_scope){.consumer = f->spec.consumer, .operation = f->handler.operation};
    item->message = (once_message){.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
    item->request = (once_request){.scope = &item->scope,
                                   .id = {key, 1},
                                   .lease_ms = LEASE_MS,
                                   .sent_ms = ONCE_NO_TIME,
                                   .lane.gap_ms = -1,
                                   .run = RUN};
    if (lane) item->request.lane.id = (once_hash){lane, 2};
    item->delivery = 10 * ++f->made; /* with holes between them */
    return item;
}

/* The source has `n` messages with new keys, all of one stream. */
static void fetch_of(fixture *f, uint32_t stream, size_t n, uint64_t lane, once_item **out)
{
    once_action *action = asks_source(f, ONCE_ACT_FETCH);
    once_batch *batch = action->batch;
    for (size_t i = 0; i < n; i++) {
        once_item *item = fill(f, batch, f->made + 1, lane);
        item->stream = stream;
        if (out) out[i] = item;
    }
    batch->taken_in = true;
    answer(f, action, ONCE_OK);
}

static void fetch(fixture *f, size_t n, uint64_t lane, once_item **out) { fetch_of(f, 0, n, lane, out); }

/* The store answers all claims with RUN. */
static void claims(fixture *f, size_t n)
{
    once_action *action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, n);
    for (size_t i = 0; i < n; i++)
        action->items[i]->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1};
    answer(f, action, ONCE_OK);
}

static void runs(fixture *f, size_t n, bool careful, once_outcome outcome)
{
    once_action *action = asks_store(f, ONCE_ACT_RUN);
    assert_int_equal(action->n, n);
    assert_int_equal(action->careful, careful);
    for (size_t i = 0; i < n; i++) action->items[i]->outcome = outcome;
    action->failed = !careful && outcome != ONCE_DONE;
    answer(f, action, ONCE_OK);
}

static void settles(fixture *f, size_t n, once_outcome outcome)
{
    once_action *action = asks_store(f, ONCE_ACT_SETTLE);
    assert_int_equal(action->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(once_outcome_name(action->items[i]->outcome), once_outcome_name(outcome));
        action->items[i]->granted = true;
    }
    answer(f, action, ONCE_OK);
}

/* All up to the message that was delivered as this one. */
static void acks(fixture *f, uint64_t upto)
{
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 1);
    assert_int_equal(action->receipts[0].delivery, 10 * upto);
    answer(f, action, ONCE_OK);
}

/* All that waits to be started begins. */
static void starts(fixture *f, size_t n)
{
    once_action *action = once_machine_effect_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_int_equal(action->kind, ONCE_ACT_START);
    assert_int_equal(action->n, n);
    answer(f, action, ONCE_OK);
}

static void finishes(fixture *f, once_item *item, once_outcome outcome)
{
    item->started = true;
    item->outcome = outcome;
    once_machine_finished(f->machine, &item, 1, f->now_ms);
}

static void assert_places(const fixture *f, size_t ready, size_t parked, size_t work, size_t flight, size_t returned)
{
    const size_t *at = f->machine->at;
    assert_int_equal(at[ONCE_AT_READY], ready);
    assert_int_equal(at[ONCE_AT_PARKED], parked);
    assert_int_equal(at[ONCE_AT_WORK], work);
    assert_int_equal(at[ONCE_AT_FLIGHT], flight);
    assert_int_equal(at[ONCE_AT_RETURNED], returned);
    assert_null(once__machine_check(f->machine));
}

/* --- a pipeline --- */

static fixture *open_source(void **state, bool outside, unsigned bits)
{
    fixture *f = *state;
    once_error err;
    test_env_init(&f->world, 1);
    f->handler = (once_handler_spec){.operation = ONCE_BYTES("op"),
                                     .bits = ONCE_EFFECT_RUNS | (outside ? ONCE_EFFECT_OUTSIDE : 0),
                                     .slots = outside ? SLOTS : 0,
                                     .lease_ms = LEASE_MS,
                                     .remember_ms = 1000000,
                                     .retry = {.attempts = 3, .min_ms = 100, .max_ms = 100}};
    f->spec = (once_spec){.consumer = ONCE_BYTES("c"),
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .batch_max = f->batch ? f->batch : BATCH,
                          .gap_ms = -1,
                          .drain_ms = DRAIN_MS,
                          .patience_ms = 1000,
                          .message_max = 100};
    f->spec.source.bits = bits;
    const once_machine_options options = {.spec = &f->spec,
                                          .env = &f->world.env,
                                          .run = RUN,
                                          .prepare = prepare,
                                          .source = bits,
                                          .beat_ms = BEAT_MS,
                                          .unclean = f->unclean};
    assert_int_equal(once_machine_new(&options, &f->machine, &err), ONCE_OK);
    store_does(f, ONCE_ACT_TAKE); /* nothing waits */
    store_does(f, ONCE_ACT_SWEEP);
    asks_nothing(f);
    return f;
}

static fixture *open_pipe(void **state, bool outside) { return open_source(state, outside, 0); }

static int set_up(void **state)
{
    *state = calloc(1, sizeof(fixture));
    return *state ? 0 : 1;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    once_machine_free(f->machine);
    free(f);
    return 0;
}

/* --- the tests --- */

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
    commit->open = true;
    answer(f, commit, ONCE_E_UNAVAILABLE);
    assert_false(item->commit_unknown);
    store_does(f, ONCE_ACT_ROLLBACK); /* at once: nobody pauses with an open transaction */
    asks_nothing(f);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    once_action *begin = asks_store(f, ONCE_ACT_BEGIN);
    begin->open = true;
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

/* Claimed, committed, started: `n` of them. */
static void send_out(fixture *f, size_t n)
{
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, n);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, n);
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
static void a_stop_in_a_cautious_pass_leaves_to_the_source_what_was_not_committed(void **state)
{
    fixture *f = open_pipe(state, false);
    fetch(f, 2, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    runs(f, 2, false, ONCE_DONE);
    settles(f, 2, ONCE_DONE);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    once__machine_be_cautious(f->machine);
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
    items[0]->maybe = true;
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
    assert_true(items[0]->maybe);
    assert_int_equal(items[1]->outcome, ONCE_DONE);
    answer(f, settle, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks(f, 2);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_unfinished(f->machine), 0);
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

/* --- streams --- */

enum { ASSIGNS = ONCE_SOURCE_ASSIGNS, SINGLE = ONCE_SOURCE_SINGLE_ACKS, EXPIRES = ONCE_SOURCE_EXPIRES };
enum { WITHIN_MS = 5000, EXPIRES_MS = 3000 };

static void tells(fixture *f, once_action *fetch, once_stream_change change, uint32_t stream)
{
    once_stream_news news = {.change = change, .stream = stream, .within_ms = WITHIN_MS, .expires_ms = EXPIRES_MS};
    fetch->news = &news;
    fetch->n_news = 1;
    answer(f, fetch, ONCE_OK);
}

static void hears(fixture *f, once_stream_change change, uint32_t stream)
{
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    while (!action) action = once_machine_source_action(f->machine, f->now_ms += BEAT_MS);
    tells(f, action, change, stream);
}

static fixture *open_streams(void **state, bool outside, unsigned bits, uint32_t streams)
{
    fixture *f = open_source(state, outside, bits | ASSIGNS);
    for (uint32_t i = 0; i < streams; i++) hears(f, ONCE_STREAM_ASSIGNED, i);
    return f;
}

static void asks_no_acks(fixture *f) { assert_null(once_machine_ack_action(f->machine, f->now_ms)); }

static void acks_of(fixture *f, uint32_t stream, const once_item *item)
{
    const uint64_t delivery = item->delivery;
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 1);
    assert_int_equal(action->receipts[0].stream, stream);
    assert_int_equal(action->receipts[0].delivery, delivery);
    answer(f, action, ONCE_OK);
}

static void releases(fixture *f, uint32_t stream)
{
    once_action *action = asks_acks(f, ONCE_ACT_RELEASE);
    assert_int_equal(action->stream, stream);
    answer(f, action, ONCE_OK);
}

/* The work of the store's own effects, up to before its commit. */
static void works_on(fixture *f, size_t n)
{
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, n);
    runs(f, n, false, ONCE_DONE);
    settles(f, n, ONCE_DONE);
}

static void settle_back(fixture *f, once_item *item)
{
    finishes(f, item, ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
}

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

static void a_revoked_stream_leaves_queue_and_parking_at_once(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *flying, *behind, *other;
    fetch_of(f, 0, 1, 9, &flying);
    send_out(f, 1);
    fetch_of(f, 0, 1, 9, &behind); /* parked behind the first ... */
    fetch_of(f, 1, 1, 9, &other);  /* ... and one of another stream behind it */
    asks_nothing(f);
    assert_places(f, 0, 2, 0, 1, 0);
    fetch_of(f, 0, 1, 0, NULL);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 1, 0, 1, 0);
    assert_int_equal(other->place, ONCE_AT_PARKED);
    assert_int_equal(once_machine_unfinished(f->machine), 2); /* what flies, and the other stream's */
    releases(f, 0);
    settle_back(f, flying); /* under its fence, and nobody is told */
    asks_no_acks(f);
    assert_int_equal(other->place, ONCE_AT_READY);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void a_revoked_stream_is_acked_after_the_commit_and_released_then(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    const once_item copy = *item;
    works_on(f, 1);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    asks_no_acks(f); /* nor is it released */
    answer(f, commit, ONCE_OK);
    acks_of(f, 0, &copy);
    releases(f, 0);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->acked, 1);
}

static void what_is_rolled_back_of_a_revoked_stream_is_dropped(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    once_item *kept;
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    (void)fill(f, fetched->batch, 1, 0);
    kept = fill(f, fetched->batch, 2, 0);
    kept->stream = 1;
    fetched->batch->taken_in = true;
    answer(f, fetched, ONCE_OK);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 0, 2, 0, 0);
    asks_no_acks(f);
    run->failed = true;
    answer(f, run, ONCE_OK);
    store_does(f, ONCE_ACT_ROLLBACK);
    assert_places(f, 0, 0, 1, 0, 0);
    releases(f, 0);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    assert_int_equal(kept->place, ONCE_AT_WORK);
}

static void at_the_deadline_a_stream_is_released_and_nothing_of_it_is_acked(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 0, 1, 0, NULL);
    works_on(f, 1);
    once_action *commit = asks_store(f, ONCE_ACT_COMMIT);
    hears(f, ONCE_STREAM_REVOKED, 0);
    asks_no_acks(f);
    assert_in_range(once_machine_source_wait_ms(f->machine, f->now_ms), 1, WITHIN_MS);
    f->now_ms += WITHIN_MS;
    releases(f, 0);
    answer(f, commit, ONCE_OK);
    asks_no_acks(f);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_int_equal(once_machine_counts(f->machine)->done, 1);
    assert_int_equal(once_machine_counts(f->machine)->acked, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

static void a_commit_in_doubt_of_a_revoked_stream_is_asked_for(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    const once_item copy = *item;
    works_on(f, 1);
    answer(f, asks_store(f, ONCE_ACT_COMMIT), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_places(f, 0, 0, 1, 0, 0);
    f->now_ms += once_machine_wait_ms(f->machine, f->now_ms);
    store_does(f, ONCE_ACT_BEGIN);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    item->decision = (once_decision){.answer = ONCE_ANSWER_DUPLICATE, .outcome = ONCE_DONE, .own = true};
    answer(f, claim, ONCE_OK);
    store_does(f, ONCE_ACT_COMMIT);
    acks_of(f, 0, &copy);
    releases(f, 0);
}

/* After an unclean end it is claimed before its transaction, and its stream is revoked meanwhile. */
static void what_could_not_be_claimed_of_a_revoked_stream_does_not_begin(void **state)
{
    fixture *f = *state;
    f->unclean = true;
    open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    hears(f, ONCE_STREAM_REVOKED, 0);
    item->decision = (once_decision){.answer = ONCE_ANSWER_BUSY, .wait_ms = 1000};
    answer(f, claim, ONCE_OK);
    assert_places(f, 0, 0, 0, 0, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
    releases(f, 0);
}

static void nothing_of_a_lost_stream_is_acked(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *items[2];
    fetch_of(f, 0, 2, 0, items);
    send_out(f, 2);
    settle_back(f, items[0]); /* it would be acked now */
    hears(f, ONCE_STREAM_LOST, 0);
    releases(f, 0);
    settle_back(f, items[1]);
    asks_no_acks(f);
    assert_int_equal(once_machine_counts(f->machine)->done, 2);
    assert_int_equal(once_machine_counts(f->machine)->acked, 0);
}

static void work_of_a_lost_stream_is_dropped_when_its_transaction_does_not_begin(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 0, 2, 0, NULL);
    answer(f, asks_store(f, ONCE_ACT_BEGIN), ONCE_E_UNAVAILABLE);
    assert_places(f, 0, 0, 2, 0, 0);
    hears(f, ONCE_STREAM_LOST, 0);
    assert_places(f, 0, 0, 0, 0, 0);
    releases(f, 0);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

/* The source has released it, and gives its number away before the machine knows. */
static void a_number_is_free_as_soon_as_its_stream_is_released(void **state)
{
    fixture *f = open_streams(state, true, 0, 1);
    once_item *old, *young;
    fetch_of(f, 0, 1, 0, &old);
    send_out(f, 1);
    hears(f, ONCE_STREAM_REVOKED, 0);
    once_action *release = asks_acks(f, ONCE_ACT_RELEASE);
    hears(f, ONCE_STREAM_ASSIGNED, 0);
    fetch_of(f, 0, 1, 0, &young);
    answer(f, release, ONCE_OK);
    send_out(f, 1);
    settle_back(f, old);
    asks_no_acks(f);
    const once_item copy = *young;
    settle_back(f, young);
    acks_of(f, 0, &copy);
}

/* A claim outside of a transaction may have happened. Forgotten, it would run until its lease is over, and its message
 * would have one failure more. */
static void a_claim_without_an_answer_is_repeated_although_its_stream_is_lost(void **state)
{
    ((fixture *)*state)->unclean = true;
    fixture *f = open_streams(state, false, 0, 1);
    once_item *item;
    fetch_of(f, 0, 1, 0, &item);
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    const once_token token = item->request.token;
    answer(f, claim, ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_LOST, 0);
    f->now_ms += 1000;
    claim = asks_store(f, ONCE_ACT_CLAIM);
    assert_true(once_hash_equal(claim->items[0]->request.token, token));
}

/* --- cursors --- */

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
        settle_back(f, flying); /* the store is there */
        asks_nothing(f);
        releases(f, 0);
        releases(f, 1);
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

static void a_release_that_fails_delays_no_other(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    hears(f, ONCE_STREAM_LOST, 0);
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_E_UNAVAILABLE);
    hears(f, ONCE_STREAM_REVOKED, 1);
    releases(f, 1);
    const int64_t wait_ms = once_machine_source_wait_ms(f->machine, f->now_ms);
    asks_no_acks(f);
    f->now_ms += wait_ms;
    releases(f, 0);
    asks_no_acks(f);
}

/* The source says that it is lost before it is asked to release it, and the machine hears of both the other way round.
 */
static void a_stream_may_be_lost_while_it_is_released(void **state)
{
    fixture *f = open_streams(state, false, 0, 2);
    hears(f, ONCE_STREAM_REVOKED, 0);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    releases(f, 0);
    tells(f, fetched, ONCE_STREAM_LOST, 0);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    asks_no_acks(f);
    fetch_of(f, 1, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
}

static void news_that_cannot_be_end_the_run(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    hears(f, ONCE_STREAM_REVOKED, 7);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
}

/* Its one stream is there from the start, and stays. */
static void a_source_without_assignments_cannot_revoke(void **state)
{
    fixture *f = open_pipe(state, false);
    hears(f, ONCE_STREAM_ASSIGNED, 0); /* for how long deliveries are ours; here they do not run out */
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(f->machine->streams.at[0]->expires_ms, 0);
    hears(f, ONCE_STREAM_REVOKED, 0);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
}

static void a_message_of_no_stream_ends_the_run(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    fetch_of(f, 3, 1, 0, NULL);
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_BUG);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void a_stop_releases_all_streams_after_the_last_acks(void **state)
{
    fixture *f = open_streams(state, true, 0, 2);
    once_item *flying;
    fetch_of(f, 1, 1, 0, &flying);
    send_out(f, 1);
    fetch_of(f, 0, 1, 0, NULL);
    once_machine_stop(f->machine);
    asks_nothing(f);
    asks_no_acks(f);
    const once_item copy = *flying;
    settle_back(f, flying);
    acks_of(f, 1, &copy);
    asks_nothing(f);
    assert_false(once_machine_ended(f->machine));
    once_action *first = asks_acks(f, ONCE_ACT_RELEASE);
    answer(f, first, ONCE_E_UNAVAILABLE); /* it finds out by itself */
    answer(f, asks_acks(f, ONCE_ACT_RELEASE), ONCE_OK);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    assert_int_equal(once_machine_unfinished(f->machine), 1);
}

static void a_stream_that_comes_while_the_run_ends_is_released(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    once_machine_stop(f->machine);
    asks_nothing(f);
    once_action *first = asks_acks(f, ONCE_ACT_RELEASE);
    tells(f, fetched, ONCE_STREAM_ASSIGNED, 1);
    answer(f, first, ONCE_OK);
    asks_nothing(f);
    assert_false(once_machine_ended(f->machine));
    releases(f, 1);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
}

/* Its number was another one's, which was released: it goes with the source, which is closed then. */
static void a_stream_that_comes_with_the_number_of_one_that_was_released_at_the_end_is_not_asked_for(void **state)
{
    fixture *f = open_streams(state, false, 0, 1);
    once_action *fetched = asks_source(f, ONCE_ACT_FETCH);
    once_machine_stop(f->machine);
    asks_nothing(f);
    releases(f, 0);
    tells(f, fetched, ONCE_STREAM_ASSIGNED, 0);
    asks_no_acks(f);
    asks_nothing(f);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
}

/* --- deliveries that run out --- */

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

/* --- places and invariants --- */

/* The function ends the process before it changes anything. */
static bool is_refused(once_item_place from, once_item_place to)
{
    (void)fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        once_item item = {.place = from};
        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        once__machine_move(NULL, &item, to);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void no_item_moves_where_it_may_not(void **state)
{
    (void)state;
    static const once_item_place not_after[][2] = {
        {ONCE_AT_OVER, ONCE_AT_READY},   {ONCE_AT_OVER, ONCE_AT_WORK},      {ONCE_AT_OVER, ONCE_AT_OVER},
        {ONCE_AT_READY, ONCE_AT_FLIGHT}, {ONCE_AT_READY, ONCE_AT_READY},    {ONCE_AT_PARKED, ONCE_AT_WORK},
        {ONCE_AT_WORK, ONCE_AT_PARKED},  {ONCE_AT_WORK, ONCE_AT_RETURNED},  {ONCE_AT_FLIGHT, ONCE_AT_OVER},
        {ONCE_AT_FLIGHT, ONCE_AT_WORK},  {ONCE_AT_RETURNED, ONCE_AT_READY}, {ONCE_AT_RETURNED, ONCE_AT_FLIGHT},
        {ONCE_AT_WORK, ONCE_AT_NEW},     {ONCE_AT_NEW, ONCE_AT_PARKED},
    };
    for (size_t i = 0; i < sizeof not_after / sizeof *not_after; i++)
        assert_true(is_refused(not_after[i][0], not_after[i][1]));
}

static void assert_broken(const fixture *f, const char *number)
{
    const char *wrong = once__machine_check(f->machine);
    assert_non_null(wrong);
    char begin[8];
    (void)snprintf(begin, sizeof begin, "%s: ", number);
    assert_memory_equal(wrong, begin, strlen(begin));
}

/* Something is changed, an invariant with that number is broken, and it is changed back. */
#define BREAK(number, field, value)                                                                                    \
    do {                                                                                                               \
        __typeof__(field) kept = (field);                                                                              \
        (field) = (value);                                                                                             \
        assert_broken(f, number);                                                                                      \
        (field) = kept;                                                                                                \
        assert_null(once__machine_check(f->machine));                                                                  \
    } while (0)

static void each_invariant_is_found_broken(void **state)
{
    fixture *f = open_pipe(state, true);
    once_machine *machine = f->machine;
    once_item *items[4];
    fetch(f, 4, 9, items);
    send_out(f, 1); /* the others wait for their lane */
    asks_nothing(f);
    assert_places(f, 0, 3, 0, 1, 0);
    BREAK("1", machine->at[ONCE_AT_PARKED], (size_t)2);
    BREAK("1", items[0]->place, ONCE_AT_WORK);
    BREAK("2", items[0]->batch->open, (size_t)3);
    BREAK("3", items[1]->tag, UINT64_C(99));
    BREAK("3", machine->streams.at[0]->mark.upto, UINT64_C(1));
    BREAK("3", machine->streams.at[0]->acked, UINT64_C(1));
    BREAK("4", machine->outside.flight.used[0], (uint32_t)0);
    BREAK("4", f->handler.slots, (uint32_t)0);
    BREAK("5", items[1]->waits_for, 0u);
    BREAK("6", machine->work.in_tx, true);
    BREAK("7", machine->ready.bytes, (size_t)1);
    BREAK("7", machine->batches.held_bytes, (size_t)1);
    BREAK("8", items[0]->returned, true);
    BREAK("8", items[0]->given, false);
    BREAK("9", machine->streams.at[0]->mark.next, (uint64_t)(OUTSTANDING * BATCH + 2));
    BREAK("10", machine->end.ended, true);
    finishes(f, items[0], ONCE_DONE);
    BREAK("8", items[0]->returned, false);
    BREAK("1", machine->outside.back, NULL);
}

/* --- the times of stages --- */

static void assert_timing(const once_timing *timing, uint64_t count, uint64_t sum_ms, uint64_t max_ms)
{
    uint64_t all = 0;
    for (size_t i = 0; i < ONCE_TIMING_BUCKETS; i++) all += timing->bucket[i];
    assert_int_equal(timing->count, count);
    assert_int_equal(timing->sum_ms, sum_ms);
    assert_int_equal(timing->max_ms, max_ms);
    assert_int_equal(all, count);
}

static void messages_of_a_batch_share_the_times_of_their_stages(void **state)
{
    fixture *f = open_pipe(state, false);
    once_item *items[3];
    f->now_ms = 1000;
    fetch(f, 3, 0, items);
    f->now_ms = 1004;
    store_does(f, ONCE_ACT_BEGIN);
    f->now_ms = 1010;
    once_action *claim = asks_store(f, ONCE_ACT_CLAIM);
    for (size_t i = 0; i < 3; i++)
        claim->items[i]->decision =
            (once_decision){.answer = i ? ONCE_ANSWER_RUN : ONCE_ANSWER_DUPLICATE, .failing_for_ms = -1};
    answer(f, claim, ONCE_OK);
    f->now_ms = 1013;
    once_action *run = asks_store(f, ONCE_ACT_RUN);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(items[i]->times.received_ms, 1000);
        assert_int_equal(items[i]->times.claimed_ms, 1010);
        assert_int_equal(items[i]->times.started_ms, i ? 1013 : ONCE_NO_TIME);
        assert_int_equal(items[i]->times.settled_ms, ONCE_NO_TIME);
    }
    for (size_t i = 0; i < run->n; i++) run->items[i]->outcome = ONCE_DONE;
    f->now_ms = 1020;
    answer(f, run, ONCE_OK);
    settles(f, 2, ONCE_DONE);
    f->now_ms = 1043;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 1044;
    acks(f, 3);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 3, 30, 10);
    assert_timing(&timings->start, 2, 6, 3); /* not of the duplicate */
    assert_timing(&timings->settle, 2, 60, 30);
    assert_timing(&timings->ack, 3, 3, 1);
    assert_int_equal(timings->settle.bucket[5], 2); /* 16 ms and more, less than 32 */
    assert_int_equal(timings->ack.bucket[1], 3);
}

/* It counts once, with the claim and the start of the pass that was committed. */
static void a_pass_that_was_rolled_back_leaves_no_times(void **state)
{
    fixture *f = open_pipe(state, false);
    f->now_ms = 100;
    fetch(f, 1, 0, NULL);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 1);
    runs(f, 1, false, ONCE_RETRY);
    f->now_ms = 150;
    store_does(f, ONCE_ACT_ROLLBACK);
    store_does(f, ONCE_ACT_BEGIN);
    const once_item_times begun = f->machine->work.items[0]->times;
    assert_int_equal(begun.received_ms, 100);
    assert_int_equal(begun.claimed_ms, ONCE_NO_TIME);
    assert_int_equal(begun.started_ms, ONCE_NO_TIME);
    claims(f, 1);
    runs(f, 1, true, ONCE_DONE);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 157;
    store_does(f, ONCE_ACT_COMMIT);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 1, 50, 50);
    assert_timing(&timings->start, 1, 0, 0);
    assert_timing(&timings->settle, 1, 7, 7);
    assert_timing(&timings->ack, 0, 0, 0);
}

static void effects_outside_have_times_of_their_own(void **state)
{
    fixture *f = open_pipe(state, true);
    once_item *items[2];
    f->now_ms = 10;
    fetch(f, 2, 0, items);
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, 2);
    f->now_ms = 20;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 21;
    starts(f, 2);
    f->now_ms = 60;
    finishes(f, items[1], ONCE_DONE); /* the second one first: its ack waits for the other one */
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 61;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 100;
    finishes(f, items[0], ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    f->now_ms = 101;
    store_does(f, ONCE_ACT_COMMIT);
    f->now_ms = 103;
    acks(f, 2);
    const once_timings *timings = once_machine_timings(f->machine);
    assert_timing(&timings->claim, 2, 0, 0);
    assert_timing(&timings->start, 2, 22, 11);
    assert_timing(&timings->settle, 2, 40 + 80, 80);
    assert_timing(&timings->ack, 2, 42 + 2, 42);
}

/* --- what is written with the outcome of an effect outside (ONCE_EFFECT_THEN) --- */

/* Its effect is done, and the transaction that settles it has begun. */
static once_item *is_back(fixture *f)
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
    finishes(f, item, ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    return item;
}

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

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_one_transaction_and_is_acked_after_its_commit),
        TEST(equal_keys_of_a_batch_are_claimed_in_rounds),
        TEST(a_failure_is_run_again_carefully_and_waits_for_its_next_try_in_the_store),
        TEST(what_is_repeated_after_a_commit_without_an_answer_has_its_token),
        TEST(a_claim_without_an_answer_is_repeated_although_its_stream_is_lost),
        TEST(a_commit_that_was_not_tried_is_rolled_back_and_leaves_no_doubt),
        TEST(a_message_is_parked_behind_an_effect_of_its_lane),
        TEST(f91_nobody_is_looked_for_before_the_third_rollback),
        TEST(acks_stop_at_the_first_effect_that_is_not_over),
        TEST(a_stop_settles_what_is_under_way_and_leaves_the_rest_to_the_source),
        TEST(what_was_claimed_and_has_not_begun_is_put_back_at_a_stop),
        TEST(a_store_that_is_gone_leaves_outcomes_unsettled),
        TEST(what_hinders_the_run_may_show_after_an_effect_began),
        TEST(of_two_failures_the_one_that_does_not_pass_counts),
        TEST(a_stop_in_a_cautious_pass_leaves_to_the_source_what_was_not_committed),
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
        TEST(a_revoked_stream_leaves_queue_and_parking_at_once),
        TEST(a_revoked_stream_is_acked_after_the_commit_and_released_then),
        TEST(what_is_rolled_back_of_a_revoked_stream_is_dropped),
        TEST(at_the_deadline_a_stream_is_released_and_nothing_of_it_is_acked),
        TEST(a_commit_in_doubt_of_a_revoked_stream_is_asked_for),
        TEST(what_could_not_be_claimed_of_a_revoked_stream_does_not_begin),
        TEST(nothing_of_a_lost_stream_is_acked),
        TEST(work_of_a_lost_stream_is_dropped_when_its_transaction_does_not_begin),
        TEST(a_number_is_free_as_soon_as_its_stream_is_released),
        TEST(a_stream_that_is_assigned_is_told_where_it_goes_on),
        TEST(a_seek_that_fails_at_a_stop_costs_nothing),
        TEST(a_stream_that_cannot_be_gone_on_with_holds_up_nobody),
        TEST(a_seek_that_cannot_succeed_ends_the_run),
        TEST(a_stream_that_left_is_told_nothing),
        TEST(what_a_cursor_is_kept_at_stays_until_the_commit_is_answered),
        TEST(a_cursor_moves_although_later_messages_ended_first),
        TEST(news_that_cannot_be_end_the_run),
        TEST(a_source_without_assignments_cannot_revoke),
        TEST(a_message_of_no_stream_ends_the_run),
        TEST(a_stop_releases_all_streams_after_the_last_acks),
        TEST(a_release_that_fails_delays_no_other),
        TEST(a_stream_may_be_lost_while_it_is_released),
        TEST(a_stream_that_comes_while_the_run_ends_is_released),
        TEST(a_stream_that_comes_with_the_number_of_one_that_was_released_at_the_end_is_not_asked_for),
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
        cmocka_unit_test(no_item_moves_where_it_may_not),
        TEST(each_invariant_is_found_broken),
        TEST(messages_of_a_batch_share_the_times_of_their_stages),
        TEST(a_pass_that_was_rolled_back_leaves_no_times),
        TEST(effects_outside_have_times_of_their_own),
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
        TEST(an_effect_that_failed_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
