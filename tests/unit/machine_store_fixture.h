/* What the tests of the machine with a store in memory share. The test plays source, acks and effects. */
#ifndef ONCE_TESTS_MACHINE_STORE_FIXTURE_H
#define ONCE_TESTS_MACHINE_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/failpoint.h"
#include "core/machine_impl.h"
#include "runtime/executor.h"
#include "testenv.h"

enum { BATCH = 4, SLOTS = 2, HELD_MAX = 8, ENDED_MAX = 4000, RETRY_MS = 300, RENEW_MS = 1000 };

typedef struct fixture fixture;
struct fixture {
    test_env world;
    once_handler_spec handler;
    once_spec spec;
    once_backend *store;
    once_executor executor;
    once_machine *machine;
    int64_t now_ms;
    uint64_t fetched, acked;
    int fetch_status, store_status;
    unsigned refused;                 /* transactions, by store_status */
    unsigned ack_fails;               /* so many acks fail */
    const char *lane;                 /* of all messages; NULL: none */
    uint64_t slow;                    /* the effect of this message does not end; 0: none */
    bool all_slow, keyless, same_key; /* of all messages */
    bool turns;                       /* messages are of `both` handlers in turn, the second of which is slow */
    bool quick;                       /* or is not */
    uint64_t slow_first;              /* or, instead: so many of the slow one come first, then those of the other */
    bool in_pairs;                    /* and two and two of them have a lane: one of the slow, then one of the other */
    bool ended[ENDED_MAX];            /* effects of so many numbers: they have */
    bool accepts_at_stop;             /* the source does not deliver again */
    bool bounded;                     /* the source has `left` messages for now */
    size_t left;
    bool source_ends;                            /* with these it is at its end */
    unsigned failing;                            /* so many effects ask for another try */
    int run_failure;                             /* not ONCE_OK: effects cannot be started, for this reason */
    void (*effect)(fixture *f, once_item *item); /* or, instead: what an effect comes to */
    size_t lose;                                 /* the reply to the first take of so many is lost; 0: to none */
    unsigned renewed;                            /* by themselves, not with a batch */
    once_action_kind done_last;                  /* of the store's */
    bool unclean;                                /* the last run did not end cleanly */
    once_action_kind fail_at;                    /* so many actions of this kind fail */
    unsigned fails;
    int fail_status;
    bool happens; /* and were carried out nevertheless */
    bool inbox, lanes_are_found, natural;
    unsigned batch;            /* messages of a batch; 0: BATCH */
    uint64_t refused_every;    /* of so many messages one can be made nothing of; 0: of none */
    once_waiting_size most;    /* that may wait in the store */
    unsigned stats;            /* so often the end of the run was asked for */
    unsigned counted;          /* so often the store was asked for it ... */
    int64_t counting_ms;       /* ... and so long that takes */
    once_handler_spec both[2]; /* in the store's database, and outside */
    once_item *held[HELD_MAX];
    size_t held_n;

    /* atomic effects */
    bool atomic;
    uint64_t poison; /* the server hangs up while the effect of this message runs, `hangs` times; 0: of none */
    unsigned hangs;
    bool at_commit;  /* it does so at the COMMIT */
    int hang_status; /* or rolls back instead; ONCE_OK: it hangs up */
    bool ends;       /* or a statement of the message is ended, and with it the transaction */
    bool hangs_now;
    unsigned blamed;                       /* so often a rollback was made the failure of who was alone */
    uint64_t wants_retry;                  /* the effect of this message asks for another try, once; 0: of none */
    unsigned asking;                       /* so many effects do, whichever */
    unsigned hung_alone, hung_with_others; /* so often it ran by itself, or beside others */
    unsigned ran_alone;                    /* runs of one effect since it hung up last */
    size_t least_run;                      /* effects of the smallest run */
};

static inline int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                          once_error *err)
{
    (void)handler, (void)from, (void)err;
    *input = arena; /* it can run */
    return ONCE_OK;
}

static inline int run_nothing(void *user, once_item *const *items, size_t n, bool careful, bool blame,
                              once_arena *arena, bool *failed, once_error *err)
{
    (void)user, (void)items, (void)n, (void)careful, (void)blame, (void)arena, (void)failed, (void)err;
    return ONCE_OK;
}

static inline uint64_t number_of(const once_item *item)
{
    char digits[24] = "";
    memcpy(digits, item->request.key.data, item->request.key.len);
    return strtoull(digits, NULL, 10);
}

static inline int hang_up(fixture *f, once_error *err)
{
    f->hangs_now = false;
    f->ran_alone = 0;
    if (f->hang_status) return once_fail(err, f->hang_status, "rolled back");
    return once_fail(err, ONCE_E_UNAVAILABLE, "the server closed the connection");
}

static inline int run_atomic(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                             bool *failed, once_error *err)
{
    fixture *f = user;
    (void)arena;
    f->ran_alone += n == 1;
    if (!f->least_run || n < f->least_run) f->least_run = n;
    for (size_t i = 0; i < n; i++) {
        const uint64_t number = number_of(items[i]);
        items[i]->outcome = ONCE_DONE;
        if (number == f->wants_retry || f->asking) {
            if (!careful) *failed = true;
            items[i]->outcome = ONCE_RETRY;
            if (careful && f->asking) f->asking--;
            else if (careful) f->wants_retry = 0;
        }
        if (f->effect) f->effect(f, items[i]);
        if (f->effect && !careful && items[i]->outcome != ONCE_DONE) *failed = true;
        if (number != f->poison || f->hangs == 0) continue;
        f->hangs--;
        if (n == 1) f->hung_alone++;
        else f->hung_with_others++;
        if (f->ends) {
            items[i]->ended_tx = *failed = true;
            items[i]->reason = ONCE_BYTES("too slow");
        }
        if (f->ends || blame) items[i]->outcome = ONCE_RETRY;
        f->blamed += blame;
        f->hangs_now = !f->ends && !blame;
    }
    return f->hangs_now && !f->at_commit ? hang_up(f, err) : ONCE_OK;
}

static inline void open_pipe(fixture *f, bool finite)
{
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    const once_machine_options pipe_options = {.spec = &f->spec,
                                               .env = &f->world.env,
                                               .run = 1,
                                               .prepare = prepare,
                                               .source = finite ? ONCE_SOURCE_FINITE : 0u,
                                               .renew_ms = RENEW_MS,
                                               .accepts_at_stop = f->accepts_at_stop,
                                               .unclean = f->unclean,
                                               .finds = true};
    once_error err;
    test_env_init(&f->world, 1);
    f->handler = (once_handler_spec){.operation = ONCE_BYTES("op"),
                                     .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE,
                                     .slots = SLOTS,
                                     .lease_ms = 1000000000,
                                     .remember_ms = 1000000000,
                                     .retry = {.attempts = 3, .min_ms = 1, .max_ms = 2}};
    f->spec = (once_spec){.consumer = ONCE_BYTES("c"),
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .batch_max = f->batch ? f->batch : BATCH,
                          .gap_ms = -1,
                          .drain_ms = 1000,
                          .patience_ms = 1,
                          .message_max = 100};
    f->handler.natural = f->natural;
    if (f->atomic) f->handler.bits = ONCE_EFFECT_RUNS;
    f->spec.inbox = f->inbox;
    f->spec.waiting_max = f->most;
    if (f->lanes_are_found) f->spec.order = (const void *)f; /* nobody reads it here */
    if (f->both[1].slots) {
        f->both[0] = f->both[1] = f->handler;
        f->both[1].operation = ONCE_BYTES("out");
        f->both[1].bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE;
        f->spec.handlers = f->both;
        f->spec.n_handlers = 2;
    }
    assert_int_equal(once__store_open("memory:", &options, &f->store, &err), ONCE_OK);
    once_executor_init(&f->executor, f->store, f->spec.consumer, f->atomic ? run_atomic : run_nothing, f);
    assert_int_equal(once_machine_new(&pipe_options, &f->machine, &err), ONCE_OK);
}

static inline int set_up(void **state)
{
    *state = calloc(1, sizeof(fixture));
    return *state ? 0 : 1;
}

static inline void close_pipe(fixture *f)
{
    once_machine_free(f->machine);
    once_executor_release(&f->executor);
    if (f->store) once__store_close(f->store);
}

static inline int tear_down(void **state)
{
    close_pipe(*state);
    free(*state);
    return 0;
}

static inline void fill(fixture *f, once_batch *batch, size_t n)
{
    batch->items = once_arena_new(&batch->arena, once_item, n);
    batch->n = n;
    batch->taken_in = true;
    for (size_t i = 0; i < n; i++) {
        once_item *item = &batch->items[i];
        char *key = once_arena_alloc(&batch->arena, 24);
        f->fetched++;
        const once_bytes bytes = {
            key, (size_t)snprintf(key, 24, "%llu", (unsigned long long)(f->same_key ? 1 : f->fetched))};
        item->batch = batch;
        item->delivery = f->fetched;
        item->handler = &f->handler;
        item->input = f; /* it can run */
        item->scope = (once_scope){.consumer = f->spec.consumer, .operation = f->handler.operation};
        item->message = (once_message){.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME};
        item->request = (once_request){.scope = &item->scope,
                                       .key = bytes,
                                       .id = once_key_id(f->store->secret, &item->scope, bytes),
                                       .lease_ms = f->handler.lease_ms,
                                       .remember_ms = f->handler.remember_ms,
                                       .sent_ms = ONCE_NO_TIME,
                                       .lane.gap_ms = -1,
                                       .natural = f->natural,
                                       .run = 1};
        if (f->turns) {
            item->handler = &f->both[f->slow_first ? f->fetched <= f->slow_first : f->fetched % 2];
            item->scope.operation = item->handler->operation;
        }
        if (f->in_pairs) {
            const uint64_t lane = (f->fetched + 1) / 2;
            item->request.lane.id = once_lane_id(f->store->secret, &item->scope, (once_bytes){(const char *)&lane, 8});
        }
        if (f->refused_every && f->fetched % f->refused_every == 0) {
            item->input = NULL;
            item->reason = ONCE_BYTES("missing field");
        }
        if (f->keyless) item->request.id = (once_hash){0};
        if (f->lane)
            item->request.lane.id =
                once_lane_id(f->store->secret, &item->scope, (once_bytes){f->lane, strlen(f->lane)});
        if (f->lanes_are_found)
            item->request.lane.id = once_lane_id(f->store->secret, &item->scope, bytes); /* one for each */
    }
}

/* One action of each kind; false: nobody has anything to do now. */
static inline bool step_source(fixture *f)
{
    once_action *action = once_machine_source_action(f->machine, f->now_ms);
    if (!action) return false;
    action->status = ONCE_OK;
    if (f->fetch_status) action->status = once_fail(&action->error, f->fetch_status, "not now");
    else if (!f->bounded && !action->rest) fill(f, action->batch, action->max);
    else if (f->left) {
        const size_t n = f->left < action->max ? f->left : action->max;
        f->left -= n;
        fill(f, action->batch, n);
    }
    action->at_end = f->bounded && f->source_ends && f->left == 0;
    const bool nothing = action->batch->n == 0;
    once_machine_step(f->machine, action, f->now_ms);
    return !nothing || f->fetch_status;
}

static inline bool step_acks(fixture *f)
{
    once_action *action = once_machine_ack_action(f->machine, f->now_ms);
    if (!action) return false;
    action->status = ONCE_OK;
    if (f->ack_fails) {
        f->ack_fails--;
        action->status = once_fail(&action->error, ONCE_E_UNAVAILABLE, "not now");
    } else {
        f->acked = action->receipts[0].delivery;
    }
    once_machine_step(f->machine, action, f->now_ms);
    return true;
}

static inline void carry_out(fixture *f, once_action *action)
{
    const bool fails = f->fails && action->kind == f->fail_at, hangs = action->kind == ONCE_ACT_COMMIT && f->hangs_now;
    if (!hangs && (!fails || f->happens)) once_execute_store(&f->executor, action);
    else if (action->kind == ONCE_ACT_COMMIT) {
        f->store->ops->rollback(f->store);
        f->executor.in_tx = false; /* as after a commit that it carried out itself */
    }
    if (hangs) action->status = hang_up(f, &action->error);
    if (!fails) return;
    f->fails--;
    action->status = once_fail(&action->error, f->fail_status, "not now");
}

static inline bool step_store(fixture *f)
{
    once_action *action = once_machine_store_action(f->machine, f->now_ms);
    if (!action) return false;
    f->renewed += action->kind == ONCE_ACT_RENEW;
    f->counted += action->kind == ONCE_ACT_COUNT;
    f->stats += action->kind == ONCE_ACT_STATS;
    if (action->kind == ONCE_ACT_COUNT) f->now_ms += f->counting_ms;
    const bool refuse = f->store_status && action->kind == ONCE_ACT_BEGIN;
    f->refused += refuse;
    if (action->kind == ONCE_ACT_BEGIN) f->hangs_now = false;
    if (refuse) action->status = once_fail(&action->error, f->store_status, "not now");
    else carry_out(f, action);
    if (action->kind == ONCE_ACT_TAKE && action->status == ONCE_OK && f->lose && action->batch->n == f->lose) {
        action->status = once_fail(&action->error, ONCE_E_UNAVAILABLE, "the reply was lost");
        action->batch->n = f->lose = 0;
    }
    f->done_last = action->kind;
    once_machine_step(f->machine, action, f->now_ms);
    return true;
}

static inline bool step_effects(fixture *f)
{
    once_action *action = once_machine_effect_action(f->machine, f->now_ms);
    if (!action) return false;
    once_item *items[BATCH];
    const size_t n = action->n;
    assert_in_range(n, 1, BATCH);
    if (action->kind == ONCE_ACT_KILL) { /* nobody heeds it here */
        action->status = ONCE_OK;
        once_machine_step(f->machine, action, f->now_ms);
        return true;
    }
    assert_int_equal(action->kind, ONCE_ACT_START);
    memcpy(items, action->items, n * sizeof *items);
    action->status = ONCE_OK;
    once_machine_step(f->machine, action, f->now_ms);
    for (size_t i = 0; i < n; i++) {
        items[i]->started = f->run_failure == ONCE_OK;
        items[i]->outcome = f->run_failure ? ONCE_RELEASE : f->failing ? ONCE_RETRY : ONCE_DONE;
        items[i]->run_failure = f->run_failure;
        items[i]->failure = ONCE_BYTES("no process is left");
        if (items[i]->outcome == ONCE_RETRY) items[i]->delay_ms = RETRY_MS, f->failing--;
        if (f->effect) f->effect(f, items[i]);
        const bool slow_handler = f->turns && items[i]->handler == &f->both[1] && !f->quick;
        const uint64_t number = number_of(items[i]);
        if (f->in_pairs && !slow_handler && number > 1)
            assert_true(f->ended[number - 1]); /* in its lane it is behind */
        if (f->all_slow || slow_handler || (f->slow && items[i]->tag == f->slow)) f->held[f->held_n++] = items[i];
        else once_machine_finished(f->machine, &items[i], 1, f->now_ms);
    }
    return true;
}

static inline void work(fixture *f, int steps)
{
    for (int i = 0; i < steps; i++) {
        const bool source = step_source(f), acks = step_acks(f), store = step_store(f), effects = step_effects(f);
        if (!source && !acks && !store && !effects) f->now_ms += 10, test_env_pass(&f->world, 10);
    }
}

/* Effects that are slow end now. */
static inline void end_held(fixture *f)
{
    for (size_t i = 0; i < f->held_n; i++) f->ended[number_of(f->held[i])] = true;
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    f->held_n = 0;
}

enum { FEW = 10 * BATCH, MANY = 100 * BATCH }; /* after few all is still done one by one */

/* Until the end, or for ever. */
static inline void stop(fixture *f)
{
    once_machine_stop(f->machine);
    for (int i = 0; i < 20000 && !once_machine_ended(f->machine); i++) {
        work(f, 1);
        if (f->held_n) once_machine_finished(f->machine, f->held, 1, f->now_ms), f->held_n = 0;
    }
    assert_true(once_machine_ended(f->machine));
}

#endif
