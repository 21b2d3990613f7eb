/* What the tests of the machine share. The test plays the executors, there is no store, and each action is checked. */
#ifndef ONCE_TESTS_MACHINE_FIXTURE_H
#define ONCE_TESTS_MACHINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/machine_impl.h"
#include "testenv.h"

enum { BATCH = 4, SLOTS = 2, LEASE_MS = 30000, DRAIN_MS = 1000, BEAT_MS = 700, RUN = 7 };

typedef struct fixture {
    bool unclean;   /* the last run did not end cleanly */
    unsigned batch; /* messages of a batch; 0: BATCH */
    unsigned slots; /* of a handler outside; 0: SLOTS */
    int64_t ack_pause_ms;
    test_env world;
    once_handler_spec handler;
    once_spec spec;
    once_machine *machine;
    int64_t now_ms;
    uint64_t made; /* messages */
} fixture;

static inline int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                          once_error *err)
{
    (void)handler, (void)from, (void)err;
    *input = arena; /* it can run */
    return ONCE_OK;
}

static inline void answer(fixture *f, once_action *action, int status)
{
    action->status = status;
    if (status != ONCE_OK) once_fail(&action->error, status, "as the test wants it");
    once_machine_step(f->machine, action, f->now_ms);
}

static inline once_action *asks_store(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_store_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static inline once_action *asks_source(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static inline once_action *asks_acks(fixture *f, once_action_kind kind)
{
    once_action *action = once_machine_ack_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_string_equal(once_action_name(action->kind), once_action_name(kind));
    return action;
}

static inline void store_does(fixture *f, once_action_kind kind) { answer(f, asks_store(f, kind), ONCE_OK); }
static inline void asks_nothing(fixture *f) { assert_null(once_machine_store_action(f->machine, f->now_ms)); }

/* One more item of a batch; `lane` 0: none. */
static inline once_item *fill(fixture *f, once_batch *batch, uint64_t key, uint64_t lane)
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
                                   .hold = f->handler.hold,
                                   .natural = f->handler.natural,
                                   .sent_ms = ONCE_NO_TIME,
                                   .lane.gap_ms = -1,
                                   .run = RUN};
    if (lane) item->request.lane.id = (once_hash){lane, 2};
    item->delivery = 10 * ++f->made; /* with holes between them */
    return item;
}

/* The source has `n` messages with new keys, all of one stream. */
static inline void fetch_of(fixture *f, uint32_t stream, size_t n, uint64_t lane, once_item **out)
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

static inline void fetch(fixture *f, size_t n, uint64_t lane, once_item **out) { fetch_of(f, 0, n, lane, out); }

/* The store answers all claims with RUN. */
static inline void claims(fixture *f, size_t n)
{
    once_action *action = asks_store(f, ONCE_ACT_CLAIM);
    assert_int_equal(action->n, n);
    for (size_t i = 0; i < n; i++)
        action->items[i]->decision = (once_decision){.answer = ONCE_ANSWER_RUN, .attempt = 1, .failing_for_ms = -1};
    answer(f, action, ONCE_OK);
}

static inline void runs(fixture *f, size_t n, bool careful, once_outcome outcome)
{
    once_action *action = asks_store(f, ONCE_ACT_RUN);
    assert_int_equal(action->n, n);
    assert_int_equal(action->careful, careful);
    for (size_t i = 0; i < n; i++) action->items[i]->outcome = outcome;
    action->failed = !careful && outcome != ONCE_DONE;
    answer(f, action, ONCE_OK);
}

static inline void settles(fixture *f, size_t n, once_outcome outcome)
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
static inline void acks(fixture *f, uint64_t upto)
{
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 1);
    assert_int_equal(action->receipts[0].delivery, 10 * upto);
    answer(f, action, ONCE_OK);
}

/* All that waits to be started begins. */
static inline void starts(fixture *f, size_t n)
{
    once_action *action = once_machine_effect_action(f->machine, f->now_ms);
    assert_non_null(action);
    assert_int_equal(action->kind, ONCE_ACT_START);
    assert_int_equal(action->n, n);
    answer(f, action, ONCE_OK);
}

static inline void finishes(fixture *f, once_item *item, once_outcome outcome)
{
    item->started = true;
    item->outcome = outcome;
    once_machine_finished(f->machine, &item, 1, f->now_ms);
}

static inline void assert_places(const fixture *f, size_t ready, size_t parked, size_t work, size_t flight,
                                 size_t returned)
{
    const size_t *at = f->machine->at;
    assert_int_equal(at[ONCE_AT_READY], ready);
    assert_int_equal(at[ONCE_AT_PARKED], parked);
    assert_int_equal(at[ONCE_AT_WORK], work);
    assert_int_equal(at[ONCE_AT_FLIGHT], flight);
    assert_int_equal(at[ONCE_AT_RETURNED], returned);
    assert_null(once__machine_check(f->machine));
}

static inline fixture *open_source(void **state, bool outside, unsigned bits)
{
    fixture *f = *state;
    once_error err;
    test_env_init(&f->world, 1);
    f->handler = (once_handler_spec){.operation = ONCE_BYTES("op"),
                                     .bits = ONCE_EFFECT_RUNS | (outside ? ONCE_EFFECT_OUTSIDE : 0),
                                     .slots = !outside   ? 0
                                              : f->slots ? f->slots
                                                         : SLOTS,
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
                                          .ack_pause_ms = f->ack_pause_ms,
                                          .unclean = f->unclean};
    assert_int_equal(once_machine_new(&options, &f->machine, &err), ONCE_OK);
    store_does(f, ONCE_ACT_TAKE); /* nothing waits */
    store_does(f, ONCE_ACT_SWEEP);
    asks_nothing(f);
    return f;
}

static inline fixture *open_pipe(void **state, bool outside) { return open_source(state, outside, 0); }

static inline int set_up(void **state)
{
    *state = calloc(1, sizeof(fixture));
    return *state ? 0 : 1;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;
    once_machine_free(f->machine);
    free(f);
    return 0;
}

/* Claimed, committed, started: `n` of them. */
static inline void send_out(fixture *f, size_t n)
{
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, n);
    store_does(f, ONCE_ACT_COMMIT);
    starts(f, n);
}

enum { ASSIGNS = ONCE_SOURCE_ASSIGNS, SINGLE = ONCE_SOURCE_SINGLE_ACKS, EXPIRES = ONCE_SOURCE_EXPIRES };
enum { WITHIN_MS = 5000, EXPIRES_MS = 3000 };

static inline void tells(fixture *f, once_action *fetch, once_stream_change change, uint32_t stream)
{
    once_stream_news news = {.change = change, .stream = stream, .within_ms = WITHIN_MS, .expires_ms = EXPIRES_MS};
    fetch->news = &news;
    fetch->n_news = 1;
    answer(f, fetch, ONCE_OK);
}

static inline void hears(fixture *f, once_stream_change change, uint32_t stream)
{
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    while (!action) action = once_machine_source_action(f->machine, f->now_ms += BEAT_MS);
    tells(f, action, change, stream);
}

static inline fixture *open_streams(void **state, bool outside, unsigned bits, uint32_t streams)
{
    fixture *f = open_source(state, outside, bits | ASSIGNS);
    for (uint32_t i = 0; i < streams; i++) hears(f, ONCE_STREAM_ASSIGNED, i);
    return f;
}

static inline void asks_no_acks(fixture *f) { assert_null(once_machine_ack_action(f->machine, f->now_ms)); }

static inline void acks_of(fixture *f, uint32_t stream, const once_item *item)
{
    const uint64_t delivery = item->delivery;
    once_action *action = asks_acks(f, ONCE_ACT_ACK);
    assert_int_equal(action->n, 1);
    assert_int_equal(action->receipts[0].stream, stream);
    assert_int_equal(action->receipts[0].delivery, delivery);
    answer(f, action, ONCE_OK);
}

static inline void releases(fixture *f, uint32_t stream)
{
    once_action *action = asks_acks(f, ONCE_ACT_RELEASE);
    assert_int_equal(action->stream, stream);
    answer(f, action, ONCE_OK);
}

/* The work of the store's own effects, up to before its commit. */
static inline void works_on(fixture *f, size_t n)
{
    store_does(f, ONCE_ACT_BEGIN);
    claims(f, n);
    runs(f, n, false, ONCE_DONE);
    settles(f, n, ONCE_DONE);
}

static inline void settle_back(fixture *f, once_item *item)
{
    finishes(f, item, ONCE_DONE);
    store_does(f, ONCE_ACT_BEGIN);
    settles(f, 1, ONCE_DONE);
    store_does(f, ONCE_ACT_COMMIT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
