/* The machine with a store in memory: what is fetched, how much may be in flight, and what failures lead to. */
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

typedef struct fixture {
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
    const char *lane;                 /* of all messages; NULL: none */
    uint64_t slow;                    /* the effect of this message does not end; 0: none */
    bool all_slow, keyless, same_key; /* of all messages */
    bool turns;                       /* messages are of `both` handlers in turn, the second of which is slow */
    uint64_t slow_first;              /* or, instead: so many of the slow one come first, then those of the other */
    bool in_pairs;                    /* and two and two of them have a lane: one of the slow, then one of the other */
    bool ended[ENDED_MAX];            /* effects of so many numbers: they have */
    bool accepts_at_stop;             /* the source does not deliver again */
    bool bounded;                     /* the source has `left` messages for now */
    size_t left;
    unsigned failing;           /* so many effects ask for another try */
    int run_failure;            /* not ONCE_OK: effects cannot be started, for this reason */
    size_t lose;                /* the reply to the first take of so many is lost; 0: to none */
    unsigned renewed;           /* by themselves, not with a batch */
    once_action_kind done_last; /* of the store's */
    bool unclean;               /* the last run did not end cleanly */
    once_action_kind fail_at;   /* so many actions of this kind fail */
    unsigned fails;
    int fail_status;
    bool happens; /* and were carried out nevertheless */
    bool inbox, lanes_are_found;
    once_waiting_size most;    /* that may wait in the store */
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
} fixture;

static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    (void)handler, (void)from, (void)err;
    *input = arena; /* it can run */
    return ONCE_OK;
}

static int run_nothing(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                       bool *failed, once_error *err)
{
    (void)user, (void)items, (void)n, (void)careful, (void)blame, (void)arena, (void)failed, (void)err;
    return ONCE_OK;
}

static uint64_t number_of(const once_item *item)
{
    char digits[24] = "";
    memcpy(digits, item->request.key.data, item->request.key.len);
    return strtoull(digits, NULL, 10);
}

static int hang_up(fixture *f, once_error *err)
{
    f->hangs_now = false;
    f->ran_alone = 0;
    if (f->hang_status) return once_fail(err, f->hang_status, "rolled back");
    return once_fail(err, ONCE_E_UNAVAILABLE, "the server closed the connection");
}

static int run_atomic(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
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

static void open_pipe(fixture *f, bool finite)
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
                          .batch_max = BATCH,
                          .gap_ms = -1,
                          .drain_ms = 1000,
                          .patience_ms = 1,
                          .message_max = 100};
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

static int set_up(void **state)
{
    *state = calloc(1, sizeof(fixture));
    return *state ? 0 : 1;
}

static void close_pipe(fixture *f)
{
    once_machine_free(f->machine);
    once_executor_release(&f->executor);
    if (f->store) once__store_close(f->store);
}

static int tear_down(void **state)
{
    close_pipe(*state);
    free(*state);
    return 0;
}

static void fill(fixture *f, once_batch *batch, size_t n)
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
                                       .run = 1};
        if (f->turns) {
            item->handler = &f->both[f->slow_first ? f->fetched <= f->slow_first : f->fetched % 2];
            item->scope.operation = item->handler->operation;
        }
        if (f->in_pairs) {
            const uint64_t lane = (f->fetched + 1) / 2;
            item->request.lane.id = once_lane_id(f->store->secret, &item->scope, (once_bytes){(const char *)&lane, 8});
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
static bool step_source(fixture *f)
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
    const bool nothing = action->batch->n == 0;
    once_machine_step(f->machine, action, f->now_ms);
    return !nothing || f->fetch_status;
}

static bool step_acks(fixture *f)
{
    once_action *action = once_machine_ack_action(f->machine, f->now_ms);
    if (!action) return false;
    action->status = ONCE_OK;
    f->acked = action->receipts[0].delivery;
    once_machine_step(f->machine, action, f->now_ms);
    return true;
}

static void carry_out(fixture *f, once_action *action)
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

static bool step_store(fixture *f)
{
    once_action *action = once_machine_store_action(f->machine, f->now_ms);
    if (!action) return false;
    f->renewed += action->kind == ONCE_ACT_RENEW;
    f->counted += action->kind == ONCE_ACT_COUNT;
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

static bool step_effects(fixture *f)
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
        const bool slow_handler = f->turns && items[i]->handler == &f->both[1];
        const uint64_t number = number_of(items[i]);
        if (f->in_pairs && !slow_handler && number > 1)
            assert_true(f->ended[number - 1]); /* in its lane it is behind */
        if (f->all_slow || slow_handler || (f->slow && items[i]->tag == f->slow)) f->held[f->held_n++] = items[i];
        else once_machine_finished(f->machine, &items[i], 1, f->now_ms);
    }
    return true;
}

static void work(fixture *f, int steps)
{
    for (int i = 0; i < steps; i++) {
        const bool source = step_source(f), acks = step_acks(f), store = step_store(f), effects = step_effects(f);
        if (!source && !acks && !store && !effects) f->now_ms += 10, test_env_pass(&f->world, 10);
    }
}

static void no_more_is_on_its_way_behind_a_slow_one_than_can_be_kept_track_of(void **state)
{
    fixture *f = *state;
    f->slow = 1;
    open_pipe(f, false);
    work(f, 20000);
    assert_int_equal(f->held_n, 1);
    assert_int_equal(f->acked, 0);
    assert_in_range(f->fetched, 10 * BATCH, 64 * BATCH);
    const uint64_t before = f->fetched;
    work(f, 1000);
    assert_int_equal(f->fetched, before);
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 2000);
    assert_true(f->fetched > before + 10 * BATCH && f->acked > before);
}

/* Effects that are slow end now. */
static void end_held(fixture *f)
{
    for (size_t i = 0; i < f->held_n; i++) f->ended[number_of(f->held[i])] = true;
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    f->held_n = 0;
}

static void a_handler_without_a_free_slot_holds_up_no_other(void **state)
{
    fixture *f = *state;
    f->turns = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 5000);
    assert_int_equal(f->held_n, SLOTS);
    assert_in_range(counts->done, 8 * BATCH - 2, 10 * BATCH);
    assert_in_range(f->acked, 0, 2); /* not beyond the first that is not over */
    const uint64_t fetched = f->fetched, done = counts->done;
    work(f, 1000);
    assert_int_equal(f->fetched, fetched); /* what waits is bounded */
    for (int i = 0; i < 20; i++) {
        end_held(f);
        work(f, 100);
    }
    assert_true(counts->done >= done + 20 * 2 * SLOTS - 2 * SLOTS); /* of both, as many */
    assert_true(f->acked > 2 && f->fetched > fetched);
}

/* The same of what is in the store: a long backlog of a handler that is full is passed over. */
static void a_handler_without_a_free_slot_holds_up_nobody_in_the_inbox(void **state)
{
    enum { SLOW = 2500, FAST = 20 }; /* more than one search reads */
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = SLOW;
    f->left = SLOW + FAST;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    for (int i = 0; i < 10000 && f->left; i++) work(f, 1);
    work(f, 1000);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(counts->done, FAST);
    for (int i = 1; i <= 20;
         i++) { /* who was full goes on as soon as it has a slot, and not when the next look is due */
        const int64_t before_ms = f->now_ms;
        end_held(f);
        for (int steps = 0; steps < 30 && f->held_n < SLOTS; steps++) work(f, 1);
        assert_int_equal(f->held_n, SLOTS);
        assert_in_range(f->now_ms, before_ms, before_ms + 30);
        assert_int_equal(counts->done, FAST + i * SLOTS);
    }
}

/* Only the handler that got a slot is looked for, at once; the look at all of them comes when it was due before. */
static void a_take_for_who_was_full_is_due_at_once_and_postpones_no_other(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = f->left = 100;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    work(f, 300);
    assert_int_equal(f->held_n, SLOTS);
    unsigned at_once = 0, partial = 0;
    for (int i = 0; i < 20; i++) {
        for (int steps = 0; steps < 100 && m->due.at_ms <= f->now_ms + 7; steps++) work(f, 1); /* it is full: a look */
        f->now_ms += 7, test_env_pass(&f->world, 7);
        assert_true(m->due.at_ms > f->now_ms);
        end_held(f);
        for (int steps = 0; steps < 30 && f->held_n < SLOTS; steps++) {
            const int64_t look_ms = m->due.at_ms;
            if (once__machine_take_max(m, f->now_ms)) {
                assert_int_equal(once_machine_wait_ms(m, f->now_ms), 0);
                at_once++;
            }
            f->done_last = ONCE_ACT_NONE;
            step_store(f);
            if (f->done_last == ONCE_ACT_TAKE) {
                assert_false(m->due.all);
                assert_int_equal(m->due.at_ms, look_ms);
                partial++;
            }
            step_effects(f);
        }
        assert_int_equal(f->held_n, SLOTS);
    }
    assert_true(at_once >= 20 && partial >= 20);
}

static void go_to(fixture *f, int64_t at_ms)
{
    assert_true(at_ms >= f->now_ms);
    test_env_pass(&f->world, at_ms - f->now_ms);
    f->now_ms = at_ms;
}

/* Neither before its moment nor later, and not at all while nothing of it could start. */
static void what_is_due_is_looked_for_at_its_moment(void **state)
{
    fixture *f = *state;
    f->bounded = f->all_slow = true;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    for (int i = 0; i < 1000 && m->due.at_ms <= f->now_ms + 1; i++) work(f, 1);
    const int64_t at_ms = m->due.at_ms;
    assert_int_equal(once__machine_take_max(m, at_ms - 1), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms - 1), at_ms);
    assert_int_equal(once__machine_take_max(m, at_ms), SLOTS);
    f->machine->outside.at_ms = at_ms + 10; /* effects could not be started */
    assert_int_equal(once__machine_take_max(m, at_ms + 9), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms + 9), ONCE_NEVER);
    assert_int_equal(once__machine_take_max(m, at_ms + 10), SLOTS);
    assert_int_equal(once__machine_take_at_ms(m, at_ms + 10), at_ms);
    f->machine->outside.at_ms = 0;
    f->left = SLOTS;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(once__machine_take_max(m, m->due.at_ms), 0);
    assert_int_equal(once__machine_take_at_ms(m, m->due.at_ms), ONCE_NEVER);
}

/* The same while one of two handlers is full. */
static void what_is_due_beside_a_full_handler_is_looked_for_at_its_moment(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = f->left = 10;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_machine *m = f->machine;
    work(f, 300);
    assert_int_equal(f->held_n, SLOTS);
    for (int i = 0; i < 1000 && m->due.at_ms <= f->now_ms + 1; i++) work(f, 1);
    const int64_t at_ms = m->due.at_ms;
    assert_int_equal(once__machine_take_max(m, at_ms - 1), 0);
    assert_int_equal(once__machine_take_at_ms(m, at_ms - 1), at_ms);
    assert_int_equal(once__machine_take_max(m, at_ms), BATCH); /* operations without a handler need no slot */
    go_to(f, at_ms);
    f->done_last = ONCE_ACT_NONE;
    for (int i = 0; i < 10 && f->done_last != ONCE_ACT_TAKE; i++) assert_true(step_store(f));
    assert_int_equal(f->done_last, ONCE_ACT_TAKE);
    assert_true(m->due.all && m->due.filtered);
    assert_true(m->due.at_ms > at_ms);
    f->all_slow = true;
    f->left = SLOTS; /* of the other one, which is full now, too */
    work(f, 500);
    assert_int_equal(f->held_n, 2 * SLOTS);
    assert_int_equal(once__machine_take_max(m, m->due.at_ms), 0);
    assert_int_equal(once__machine_take_at_ms(m, m->due.at_ms), ONCE_NEVER);
}

static void a_take_with_a_filter_whose_reply_was_lost_is_repeated(void **state)
{
    fixture *f = *state;
    f->turns = f->inbox = f->bounded = true;
    f->slow_first = 10;
    f->left = 20;
    f->both[1].slots = SLOTS;
    f->lose = SLOTS; /* first of the slow ones ... */
    open_pipe(f, false);
    work(f, 200);
    assert_int_equal(f->held_n, SLOTS);
    f->lose = 1; /* ... then of one, while the other slot is in use */
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    f->held[0] = f->held[--f->held_n];
    work(f, 200);
    assert_int_equal(f->lose, 0);
    assert_int_equal(f->held_n, SLOTS);
    assert_int_equal(once_machine_counts(f->machine)->done, 10 + 1);
}

/* They come to wait in the store when the other side is down, so they need room there. */
static void who_waits_for_a_slot_counts_against_what_may_wait(void **state)
{
    fixture *f = *state;
    f->turns = true;
    f->both[1].slots = SLOTS;
    f->most.messages = BATCH;
    open_pipe(f, false);
    work(f, 2000);
    assert_int_equal(f->held_n, SLOTS);
    assert_in_range(f->fetched, 2 * BATCH, 6 * BATCH);
    const uint64_t fetched = f->fetched;
    for (int i = 0; i < 20; i++) {
        end_held(f);
        work(f, 100);
    }
    assert_true(f->fetched > fetched);
}

/* Nobody of a lane passes who waits for a slot: step_effects looks. */
static void who_waits_for_a_slot_is_not_passed_in_its_lane(void **state)
{
    fixture *f = *state;
    f->turns = f->in_pairs = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 2000);
    assert_int_equal(counts->done, 0);
    for (int i = 0; i < 100; i++) {
        end_held(f);
        work(f, 50);
    }
    assert_true(counts->done > 300);
    assert_int_equal(counts->waiting, 0); /* and none was parked in the store because of another */
}

/* One of its lane came with it and has a slot: it is behind that one, and not before it. */
static void who_has_no_slot_stands_behind_its_lane(void **state)
{
    fixture *f = *state;
    f->turns = f->bounded = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    f->left = 3;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS); /* 1 and 3 */
    f->lane = "one";
    f->slow = 4;
    f->left = 2;
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 1); /* and 4, but not 5 */
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 1);
    assert_int_equal(counts->waiting, 0); /* nor is it put into the store */
    once_machine_finished(f->machine, &f->held[SLOTS], 1, f->now_ms);
    work(f, 100);
    assert_int_equal(f->held_n, SLOTS + 2);
    once_machine_finished(f->machine, &f->held[SLOTS + 1], 1, f->now_ms);
    once_machine_finished(f->machine, &f->held[1], 1, f->now_ms);
    work(f, 100);
    assert_int_equal(counts->done, 5);
    assert_int_equal(f->acked, 5);
}

static void no_more_waits_behind_a_lane_than_two_batches(void **state)
{
    fixture *f = *state;
    f->slow = 1;
    f->lane = "one";
    open_pipe(f, false);
    work(f, 5000);
    assert_int_equal(f->held_n, 1);
    assert_in_range(f->fetched, 2 * BATCH, 5 * BATCH);
    const uint64_t before = f->fetched;
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 2000);
    assert_true(f->acked > before);
}

static void a_source_that_fails_now_and_then_is_not_given_up(void **state)
{
    fixture *f = *state;
    f->slow = 1; /* nothing is acked: only what is fetched says that the source is well */
    open_pipe(f, true);
    for (int i = 0; i < 30; i++) {
        f->fetch_status = ONCE_E_UNAVAILABLE;
        while (!step_source(f)) work(f, 1);
        const uint64_t before = f->fetched;
        f->fetch_status = ONCE_OK;
        while (f->fetched == before && !once_machine_ended(f->machine)) work(f, 1);
        assert_false(once_machine_ended(f->machine));
    }
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
    f->fetch_status = ONCE_E_UNAVAILABLE; /* and now it does not come back */
    for (int i = 0; i < 100000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, NULL), ONCE_E_UNAVAILABLE);
}

static void f46_nothing_is_fetched_while_the_store_is_away(void **state)
{
    fixture *f = *state;
    open_pipe(f, false);
    work(f, 200);
    f->store_status = ONCE_E_UNAVAILABLE;
    while (!f->refused) work(f, 1);
    const uint64_t before = f->fetched, acked = f->acked;
    work(f, 2000);
    assert_int_equal(f->fetched, before);
    assert_int_equal(f->acked, acked);
    f->store_status = ONCE_OK;
    work(f, 4000);
    assert_true(f->fetched > before + 10 * BATCH && f->acked > before);
}

/* The executor says that nothing was tried, and leaves it to the machine to end the transaction. */
static void a_commit_that_was_not_tried_is_rolled_back_by_the_machine(void **state)
{
    fixture *f = *state;
    f->atomic = f->bounded = true;
    f->left = BATCH;
    open_pipe(f, false);
    assert_true(once_failpoints_arm("commit_before:error", NULL, 0));
    while (f->done_last != ONCE_ACT_COMMIT) work(f, 1);
    assert_true(f->executor.in_tx);
    assert_true(step_store(f));
    assert_int_equal(f->done_last, ONCE_ACT_ROLLBACK);
    assert_false(f->executor.in_tx);
    for (int i = 0; i < 1000 && f->acked < BATCH; i++) work(f, 1);
    assert_int_equal(f->acked, BATCH);
    assert_int_equal(once_machine_counts(f->machine)->done, BATCH);
    assert_true(once_failpoints_arm(NULL, NULL, 0));
}

/* A finite source, too: somebody may make room. When its patience is over, it says so. */
static void f52_a_full_store_is_waited_for(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    f->slow = 0;
    open_pipe(f, true);
    f->spec.patience_ms = 60000;
    work(f, 50);
    f->store_status = ONCE_E_FULL;
    while (!f->refused) work(f, 1);
    const uint64_t before = f->fetched, acked = f->acked;
    for (int64_t since_ms = f->now_ms; f->now_ms - since_ms < 50000;) work(f, 1);
    assert_false(once_machine_ended(f->machine));
    assert_int_equal(f->fetched, before);
    assert_int_equal(f->acked, acked);
    f->store_status = ONCE_OK;
    work(f, 20000);
    assert_false(once_machine_ended(f->machine));
    assert_true(f->acked > acked);
    f->store_status = ONCE_E_FULL;
    const int64_t since_ms = f->now_ms;
    while (!once_machine_ended(f->machine) && f->now_ms - since_ms < 1000000) work(f, 1);
    assert_in_range(f->now_ms - since_ms, 60000, 90000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_FULL);
    assert_non_null(strstr(err.text, "gave up: run again when there is space, or raise 'patience' (1m)"));
}

/* What the store has claimed for us by then is ours, whatever came from the source meanwhile. The leases are much
 * longer than this test. */
static void f76_a_take_whose_reply_was_lost_is_asked_for_as_a_whole(void **state)
{
    fixture *f = *state;
    f->bounded = true;
    f->left = f->failing = SLOTS;
    f->slow = SLOTS + 1;
    open_pipe(f, false);
    while (f->failing) work(f, 1);
    while (step_store(f) || step_source(f)) continue;
    f->now_ms += 2 * RETRY_MS; /* by our clock only: a take that finds nothing */
    assert_true(step_store(f));
    once_action *fetch =
        once_machine_source_action(f->machine, f->now_ms); /* it takes so long that the store has failed meanwhile */
    assert_true(fetch && fetch->kind == ONCE_ACT_FETCH);
    f->lose = SLOTS;
    test_env_pass(&f->world, RETRY_MS);
    f->now_ms += RETRY_MS;
    assert_true(step_store(f) && f->lose == 0);
    fill(f, fetch->batch, SLOTS);
    fetch->status = ONCE_OK;
    once_machine_step(f->machine, fetch, f->now_ms);
    work(f, 2000);
    assert_int_equal(f->held_n, 1);
    assert_int_equal(once_machine_counts(f->machine)->done, SLOTS + SLOTS - 1);
}

static void f100_a_worker_says_that_it_is_alive_with_its_batches_or_by_itself(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = true;
    open_pipe(f, false);
    once_worker_init(&worker, f->store, f->spec.consumer, 1, 0);
    f->executor.worker = &worker;
    while (f->now_ms < 10 * RENEW_MS) work(f, 1); /* nothing to do */
    assert_in_range(f->renewed, 8, 10);
    assert_int_equal(worker.number, f->renewed);

    const unsigned before = f->renewed;
    const int64_t end_ms = f->now_ms + 10 * RENEW_MS;
    while (f->now_ms < end_ms) {
        f->left = 1;
        work(f, 1);
        f->now_ms += 10;
        test_env_pass(&f->world, 10);
    }
    assert_in_range(f->renewed, before, before + 1);
    assert_true(worker.number > before + 10 && worker.done > 10);

    /* Told to stop, and something does not end yet: it is alive as long. */
    f->slow = f->fetched + 1;
    f->left = 1;
    while (!f->held_n) work(f, 1);
    f->spec.drain_ms = 100 * RENEW_MS;
    once_machine_stop(f->machine);
    const uint64_t number = worker.number;
    const int64_t stopped_ms = f->now_ms;
    while (f->now_ms < stopped_ms + 10 * RENEW_MS) work(f, 1);
    assert_in_range(worker.number, number + 8, number + 11);
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    work(f, 100);
    assert_true(once_machine_ended(f->machine));
}

/* What is put back, and what nobody knows, is not decided yet. */
static void f100_a_worker_counts_what_it_decided(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = true;
    f->left = 3 * BATCH;
    f->failing = 5;
    open_pipe(f, false);
    once_worker_init(&worker, f->store, f->spec.consumer, 1, 0);
    f->executor.worker = &worker;
    work(f, 5000);
    assert_int_equal(once_machine_counts(f->machine)->done, 3 * BATCH);
    assert_int_equal(once_machine_counts(f->machine)->retries, 5);
    assert_int_equal(worker.done, 3 * BATCH);
}

static void f89_a_worker_stops_when_its_store_has_forgotten_it(void **state)
{
    fixture *f = *state;
    once_worker worker;
    once_error err = {0};
    open_pipe(f, false);
    once_worker_init(&worker, f->store, f->spec.consumer, 1, 0);
    f->executor.worker = &worker;
    work(f, 500);
    assert_true(worker.number > 3 && f->acked > 0);
    assert_int_equal(f->store->ops->fact_set(f->store, worker.name, (once_bytes){0}, &err), ONCE_OK);
    const uint64_t acked = once_machine_counts(f->machine)->acked;
    for (int i = 0; i < 1000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_FORGOTTEN);
    assert_in_range(once_machine_counts(f->machine)->acked, acked,
                    acked + BATCH); /* those of the last batch that was committed */
}

/* --- the number of the worker's record is compared by every commit that writes --- */

static void begin_worker(fixture *f, once_worker *worker)
{
    once_error err = {0};
    bool died = false;
    once_worker_init(worker, f->store, f->spec.consumer, 1, 0);
    assert_int_equal(once_worker_begin(worker, f->store, &died, &err), ONCE_OK);
    f->executor.worker = worker;
}

/* --- claims of others that are in the way --- */

static uint64_t count_claimed(fixture *f)
{
    once_stats stats;
    assert_int_equal(f->store->ops->stats(f->store, f->spec.consumer, &stats, NULL), ONCE_OK);
    return stats.claimed;
}

static void keep_record(fixture *f, once_worker *worker)
{
    once_error err = {0};
    assert_int_equal(f->store->ops->begin(f->store, &err), ONCE_OK);
    assert_int_equal(once_worker_renew(worker, f->store, &err), ONCE_OK);
    assert_int_equal(f->store->ops->commit(f->store, &err), ONCE_OK);
    once_worker_kept(worker);
}

static once_action ask_store(fixture *f, once_action_kind kind)
{
    once_action action = {.kind = kind};
    once_execute_store(&f->executor, &action);
    assert_int_equal(action.status, ONCE_OK);
    return action;
}

/* One that waits for claims looks each second whether their worker is still there; one that does not, now and then. */
static void f99_workers_that_are_gone_are_looked_for(void **state)
{
    fixture *f = *state;
    enum { LEASE_MS = 600000 };
    const uint64_t run = UINT64_C(1) << 40;
    once_worker self, other;
    once_error err = {0};
    once_decision decision;
    const once_scope scope = {.consumer = ONCE_BYTES("c"), .operation = ONCE_BYTES("o")};
    open_pipe(f, true);
    begin_worker(f, &self);
    once_worker_init(&other, f->store, f->spec.consumer, run, LEASE_MS);
    other.contained = true;
    keep_record(f, &other);
    for (int round = 0; round < 2; round++) {
        const once_bytes key = round ? ONCE_BYTES("second") : ONCE_BYTES("first");
        const once_request r = {.scope = &scope,
                                .key = key,
                                .id = once_key_id(f->store->secret, &scope, key),
                                .lane = {.gap_ms = -1},
                                .token = once_token_of_run(run, 5, 0),
                                .lease_ms = LEASE_MS,
                                .remember_ms = 1000,
                                .sent_ms = ONCE_NO_TIME,
                                .hold = true};
        const once_request *requests = &r;
        assert_int_equal(f->store->ops->claim(f->store, &requests, 1, &decision, &f->executor.arena, &err), ONCE_OK);
        if (round == 0) { /* it lives */
            assert_int_equal(ask_store(f, ONCE_ACT_STATS).claimed, 1);
            other.started++;
            keep_record(f, &other);
            assert_int_equal(ask_store(f, ONCE_ACT_STATS).claimed, 1); /* looked at a moment ago */
            test_env_pass(&f->world, 1000);
            assert_int_equal(ask_store(f, ONCE_ACT_STATS).claimed, 0);
        } else {
            test_env_pass(&f->world, 9999);
            (void)ask_store(f, ONCE_ACT_RENEW);
            assert_int_equal(count_claimed(f), 1);
            test_env_pass(&f->world, 1);
            (void)ask_store(f, ONCE_ACT_RENEW);
            assert_int_equal(count_claimed(f), 0);
        }
    }
}

static void forget_worker(fixture *f, const once_worker *worker)
{
    once_error err = {0};
    assert_int_equal(f->store->ops->fact_set(f->store, worker->name, (once_bytes){0}, &err), ONCE_OK);
}

/* Before the next renewal by itself is due. */
static void assert_stops_at_its_next_commit(fixture *f)
{
    const unsigned renewed = f->renewed;
    once_error err = {0};
    for (int i = 0; i < 1000 && once_machine_status(f->machine, &err) == ONCE_OK; i++) work(f, 1);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_FORGOTTEN);
    assert_int_equal(f->renewed, renewed);
}

static void f89_an_inbox_stops_when_its_store_has_forgotten_it(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->all_slow = true; /* nothing is settled, and only what comes is accepted */
    open_pipe(f, false);
    f->spec.inbox = true;
    begin_worker(f, &worker);
    for (int i = 0; i < 1000 && f->held_n < SLOTS; i++) {
        work(f, 1);
        f->now_ms += 10; /* it is never idle */
        test_env_pass(&f->world, 10);
    }
    assert_int_equal(f->held_n, SLOTS);
    work(f, 100);
    const uint64_t acked = f->acked;
    assert_true(acked > 0);
    forget_worker(f, &worker);
    assert_stops_at_its_next_commit(f);
    assert_in_range(f->acked, acked, acked + BATCH);
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
}

static void f89_dead_letters_stop_when_the_store_has_forgotten_the_worker(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->keyless = true;
    open_pipe(f, false);
    begin_worker(f, &worker);
    work(f, 100);
    assert_true(once_machine_counts(f->machine)->dead > 0);
    forget_worker(f, &worker);
    assert_stops_at_its_next_commit(f);
}

static void f89_an_outcome_is_not_kept_by_a_store_that_has_forgotten_the_worker(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = true;
    f->left = f->slow = 1;
    open_pipe(f, false);
    begin_worker(f, &worker);
    while (!f->held_n) work(f, 1);
    forget_worker(f, &worker);
    once_machine_finished(f->machine, f->held, 1, f->now_ms);
    assert_stops_at_its_next_commit(f);
    assert_int_equal(once_machine_counts(f->machine)->done, 0);
    assert_int_equal(worker.done, 0); /* nor does its record say so, should it ever be written */
}

static void f89_nothing_starts_by_a_claim_in_a_store_that_has_forgotten_the_worker(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = f->all_slow = true;
    open_pipe(f, false);
    begin_worker(f, &worker);
    work(f, 5);
    forget_worker(f, &worker);
    f->left = 1;
    assert_stops_at_its_next_commit(f);
    assert_int_equal(f->held_n, 0);
}

static void deliver_until(fixture *f, int64_t end_ms)
{
    while (f->now_ms < end_ms) {
        f->left = 1;
        work(f, 1);
        f->now_ms += 10;
        test_env_pass(&f->world, 10);
    }
}

static void f100_duplicates_alone_do_not_renew(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = f->same_key = true;
    open_pipe(f, false);
    begin_worker(f, &worker);
    deliver_until(f, 10 * RENEW_MS);
    assert_in_range(f->renewed, 8, 10);
    assert_true(once_machine_counts(f->machine)->duplicates > 100);

    /* Nor is a renewal slept over when there is nothing else to wait for. */
    f->same_key = false;
    f->all_slow = true;
    f->left = SLOTS;
    while (f->held_n < SLOTS) work(f, 1);
    work(f, 20);
    assert_in_range(once_machine_wait_ms(f->machine, f->now_ms), 0, RENEW_MS);
    once_machine_finished(f->machine, f->held, f->held_n, f->now_ms);
}

static void f100_a_rate_is_that_of_a_second_at_least(void **state)
{
    fixture *f = *state;
    once_worker worker;
    f->bounded = true;
    open_pipe(f, false);
    begin_worker(f, &worker);
    deliver_until(f, 900);
    assert_true(worker.done > 5);
    assert_int_equal(worker.rate, 0);
    deliver_until(f, 5000);
    assert_in_range(worker.rate, worker.done / 10, worker.done / 3);
}

/* --- a server that hangs up while effects run --- */

enum { FEW = 10 * BATCH, MANY = 100 * BATCH }; /* after few all is still done one by one */

static const once_counts *work_off(fixture *f, size_t n)
{
    const once_counts *counts = once_machine_counts(f->machine);
    const uint64_t before = counts->done + counts->dead;
    f->bounded = true;
    f->left = n;
    for (int i = 0; i < 100000 && counts->done + counts->dead < before + n; i++) work(f, 1);
    assert_int_equal(counts->done + counts->dead, before + n);
    return counts;
}

/* Twice with the others; each time alone costs it an attempt, but the last one: that is given twice. Nobody else pays
 * for it. */
static void who_makes_the_server_hang_up_spends_its_attempts(fixture *f, uint32_t attempts, bool at_commit)
{
    f->atomic = true;
    f->poison = 3;
    f->hangs = 1000;
    f->at_commit = at_commit;
    open_pipe(f, false);
    f->handler.retry.attempts = attempts;
    const once_counts *counts = work_off(f, FEW);
    assert_int_equal(counts->done, FEW - 1);
    assert_int_equal(counts->dead, 1);
    assert_int_equal(counts->retries, attempts - 1);
    assert_int_equal(f->hung_with_others, 2);
    assert_int_equal(f->hung_alone, attempts + 1);
}

static void one_attempt_of_who_makes_the_server_hang_up(void **state)
{
    who_makes_the_server_hang_up_spends_its_attempts(*state, 1, false);
}
static void two_attempts_of_who_makes_the_server_hang_up(void **state)
{
    who_makes_the_server_hang_up_spends_its_attempts(*state, 2, false);
}
static void attempts_of_who_makes_the_server_hang_up_at_commit(void **state)
{
    who_makes_the_server_hang_up_spends_its_attempts(*state, 2, true);
}

static void a_server_that_is_stopped_costs_no_message_its_only_attempt(void **state)
{
    fixture *f = *state;
    f->atomic = true;
    f->poison = 3;
    f->hangs = 3; /* twice with the others, once alone */
    open_pipe(f, false);
    f->handler.retry.attempts = 1;
    const once_counts *counts = work_off(f, MANY);
    assert_int_equal(counts->done, MANY);
    assert_int_equal(counts->retries, 0);
    assert_int_equal(f->hung_alone, 1);
}

static void a_server_that_hangs_up_now_and_then_makes_nobody_a_suspect(void **state)
{
    fixture *f = *state;
    f->atomic = true;
    open_pipe(f, false);
    for (unsigned i = 0; i < 5; i++) {
        f->poison = f->fetched + 3;
        f->hangs = 1;
        const once_counts *counts = work_off(f, MANY);
        assert_int_equal(counts->retries, 0);
        assert_int_equal(f->hung_with_others, i + 1);
    }
    assert_int_equal(f->least_run, BATCH);
}

/* Alone by chance, and not claimed durably because of a suspicion: a first time is forgiven. */
static void who_is_taken_alone_is_not_blamed_at_once(void **state)
{
    fixture *f = *state;
    f->atomic = true;
    f->wants_retry = f->poison = 3;
    open_pipe(f, false);
    f->bounded = true;
    f->left = BATCH;
    while (f->wants_retry) work(f, 1);
    f->hangs = 1;
    const once_counts *counts = once_machine_counts(f->machine);
    for (int i = 0; i < 10000 && counts->done < BATCH; i++) work(f, 1);
    assert_int_equal(counts->done, BATCH);
    assert_int_equal(f->hung_alone, 1);
    assert_int_equal(counts->retries, 1); /* its own */
}

static void who_is_put_back_does_not_wait(void **state)
{
    fixture *f = *state;
    const once_counts *counts;
    f->atomic = f->bounded = true;
    f->left = f->asking = 2;
    open_pipe(f, false);
    counts = once_machine_counts(f->machine);
    f->handler.retry = (once_retry){.attempts = 9, .min_ms = 1000000, .max_ms = 1000000};
    for (int i = 0; i < 1000 && counts->waiting < 2; i++) work(f, 1);
    assert_int_equal(counts->waiting, 2);
    f->now_ms += 1000000; /* both are due, and ask again in a transaction that is not committed, twice */
    test_env_pass(&f->world, 1000000);
    f->asking = 4;
    f->poison = 1;
    f->hangs = 2;
    f->at_commit = true;
    for (int i = 0; i < 10000 && f->hangs; i++) work(f, 1);
    assert_int_equal(f->hung_with_others, 2);
    const int64_t since_ms = f->now_ms;
    for (int i = 0; i < 100000 && counts->done < 2; i++) work(f, 1);
    assert_int_equal(counts->done, 2);
    assert_int_equal(counts->retries, 2);
    assert_in_range(f->now_ms - since_ms, 0, 20000);
}

static void after_an_accusation_effects_run_one_by_one_and_one_hang_up_is_enough(void **state)
{
    fixture *f = *state;
    f->atomic = true;
    f->poison = BATCH;
    f->hangs = 1000;
    open_pipe(f, false);
    f->handler.retry.attempts = 1;
    work_off(f, MANY);
    assert_in_range(f->ran_alone, 62, 64);
    f->poison = f->fetched + 2;
    f->hung_with_others = f->hung_alone = 0;
    assert_int_equal(work_off(f, MANY)->dead, 2);
    assert_int_equal(f->hung_with_others, 1);
    assert_int_equal(f->hung_alone, 2);
}

/* A rollback is the database's own decision: whoever is alone because of a suspicion is not the one that made it hang
 * up. */
static void f92_a_rollback_at_commit_is_no_hang_up(void **state)
{
    fixture *f = *state;
    f->atomic = f->at_commit = true;
    f->poison = 1;
    f->hangs = 1000;
    open_pipe(f, false);
    f->handler.retry.attempts = 2;
    assert_int_equal(work_off(f, FEW)->dead, 1);
    const uint64_t retries = once_machine_counts(f->machine)->retries;
    f->hang_status = ONCE_E_ABORTED;
    f->poison = f->fetched + 2;
    f->hangs = 2; /* fewer than it takes to blame one */
    f->hung_with_others = f->hung_alone = 0;
    const once_counts *counts = work_off(f, FEW);
    assert_int_equal(f->hung_alone, 2);
    assert_int_equal(counts->dead, 1);
    assert_int_equal(counts->retries, retries);
}

/* Before effects have run, and outside of transactions, a connection that is lost says nothing about them. */
static void f92_a_server_that_hangs_up_before_effects_ran_makes_nobody_a_suspect(void **state)
{
    fixture *f = *state;
    static const once_action_kind kinds[] = {ONCE_ACT_BEGIN, ONCE_ACT_CLAIM, ONCE_ACT_TAKE, ONCE_ACT_RENEW};
    f->atomic = true;
    f->fail_status = ONCE_E_UNAVAILABLE;
    open_pipe(f, false);
    work_off(f, BATCH); /* effects ran in the last transaction */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        f->fail_at = kinds[i];
        f->fails = 3;
        f->left = BATCH;
        for (int k = 0; k < 10000 && f->fails; k++) work(f, 1);
        assert_int_equal(f->fails, 0);
        while (once_machine_counts(f->machine)->done < f->fetched) work(f, 1);
        f->least_run = 0;
        work_off(f, FEW);
        assert_int_equal(f->least_run, BATCH);
    }
}

/* A rollback is made the failure of who is alone when it has happened to its effect three times in a row, and not
 * before. */
static void f91_who_is_alone_is_blamed_for_the_fourth_rollback(void **state)
{
    fixture *f = *state;
    static const struct {
        unsigned before, of_effect; /* rollbacks: before the effect ran, and of it */
        unsigned dead;
    } cases[] = {{0, 1, 0}, {0, 3, 0}, {4, 1, 0}, {4, 3, 0}, {0, 4, 1}};
    f->atomic = true;
    f->hang_status = f->fail_status = ONCE_E_ABORTED;
    f->fail_at = ONCE_ACT_CLAIM;
    f->wants_retry = 1; /* savepoints from now on, as after every failure */
    open_pipe(f, false);
    work_off(f, 1);
    f->handler.retry.attempts = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t dead = once_machine_counts(f->machine)->dead;
        f->poison = f->fetched + 1;
        f->hangs = cases[i].of_effect;
        f->fails = cases[i].before;
        f->blamed = 0;
        assert_int_equal(work_off(f, 1)->dead - dead, cases[i].dead);
        assert_int_equal(f->blamed, cases[i].dead);
    }
}

/* Those that were found in their lanes, and of whose commit nothing is known, run one by one as all others do. */
static void f92_who_was_found_in_a_lane_and_makes_the_server_hang_up_at_commit(void **state)
{
    fixture *f = *state;
    for (uint64_t poison = 1; poison <= BATCH; poison++) {
        *f = (fixture){
            .atomic = true, .at_commit = true, .inbox = true, .lanes_are_found = true, .poison = poison, .hangs = 1000};
        open_pipe(f, false);
        f->handler.retry.attempts = 2;
        const once_counts *counts = work_off(f, FEW);
        assert_int_equal(counts->dead, 1);
        assert_int_equal(counts->retries, 1);
        assert_int_equal(f->hung_with_others, 2);
        if (poison < BATCH) close_pipe(f);
    }
}

static once_request request_for(fixture *f, const once_handler_spec *handler, const char *key, once_scope *scope)
{
    const once_bytes bytes = {key, strlen(key)};
    *scope = (once_scope){.consumer = f->spec.consumer, .operation = handler->operation};
    return (once_request){.scope = scope,
                          .key = bytes,
                          .id = once_key_id(f->store->secret, scope, bytes),
                          .lease_ms = handler->lease_ms,
                          .remember_ms = handler->remember_ms,
                          .sent_ms = ONCE_NO_TIME,
                          .lane.gap_ms = -1,
                          .run = 1,
                          .token = {5, 5}};
}

static void accept_in_store(fixture *f, const once_handler_spec *handler, const char *key)
{
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_arena arena = {0};
    once_scope scope;
    once_decision decision;
    once_error err = {0};
    const once_request request = request_for(f, handler, key, &scope), *requests = &request;
    assert_int_equal(f->store->ops->accept(f->store, &requests, &messages, 1, &decision, &arena, &err), ONCE_OK);
    once_arena_release(&arena);
}

/* Of those that were taken together only effects in the database are put back: an effect outside has not begun, and was
 * not there. */
static void f92_an_effect_outside_is_not_put_back_for_a_hang_up(void **state)
{
    fixture *f = *state;
    once_taken taken[1];
    once_arena arena = {0};
    once_error err = {0};
    size_t n = 0;
    f->atomic = f->bounded = true;
    f->both[1].slots = SLOTS;
    open_pipe(f, false);
    accept_in_store(f, &f->both[1], "9");
    assert_int_equal(f->store->ops->take(f->store, f->spec.consumer, (once_token){7, 7}, false, 10, 1, NULL, taken, &n,
                                         &arena, &err),
                     ONCE_OK);
    assert_int_equal(n, 1);
    once_arena_release(&arena);
    test_env_pass(
        &f->world,
        20); /* it ended without reporting an outcome: the next attempt is a repeat, which a transaction counts */
    accept_in_store(f, &f->both[0], "1");
    f->poison = 1;
    f->hangs = 2;
    const once_counts *counts = once_machine_counts(f->machine);
    for (int i = 0; i < 10000 && counts->done < 2; i++) work(f, 1);
    assert_int_equal(f->hangs, 0);
    assert_int_equal(counts->done, 2);
    assert_int_equal(counts->attempts, 2); /* who is put back has made one */
    assert_int_equal(counts->repeats, 1);
}

/* Its handler was taken out of the file while its effect ran, and nobody knows where that was: the entry goes on
 * saying that it may have happened, so that a replay counts as a repeat. */
static void f04_a_silent_attempt_stays_a_possible_repeat_without_its_handler(void **state)
{
    fixture *f = *state;
    once_taken taken[1];
    once_arena arena = {0};
    once_scope scope;
    once_entry entry;
    once_error err = {0};
    size_t n = 0;
    f->bounded = true;
    open_pipe(f, false);
    once_handler_spec gone = f->handler;
    gone.operation = ONCE_BYTES("gone");
    accept_in_store(f, &gone, "9");
    assert_int_equal(f->store->ops->take(f->store, f->spec.consumer, (once_token){7, 7}, false, 10, 1, NULL, taken, &n,
                                         &arena, &err),
                     ONCE_OK);
    assert_int_equal(n, 1);
    test_env_pass(&f->world, 20);
    const once_counts *counts = once_machine_counts(f->machine);
    for (int i = 0; i < 10000 && counts->dead < 1; i++) work(f, 1);
    assert_int_equal(counts->dead, 1);
    const once_request request = request_for(f, &gone, "9", &scope);
    assert_int_equal(f->store->ops->get(f->store, request.id, &entry, &arena, &err), ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_DEAD);
    assert_true(entry.unreported && entry.maybe_done);
    once_arena_release(&arena);
}

static int64_t troubled_for(fixture *f, int64_t most_ms)
{
    const int64_t since_ms = f->now_ms;
    while (f->now_ms - since_ms < most_ms && !once_machine_ended(f->machine)) work(f, 1);
    return f->now_ms - since_ms;
}

static void effects_that_cannot_be_started_end_a_finite_run_when_its_patience_is_over(void **state)
{
    fixture *f = *state;
    once_error err = {0};
    open_pipe(f, true);
    f->spec.patience_ms = 60000;
    for (int i = 0; i < 3; i++) { /* it counts from the last time that they could */
        f->run_failure = ONCE_E_UNAVAILABLE;
        assert_true(troubled_for(f, 40000) >= 40000);
        f->run_failure = ONCE_OK;
        work(f, 5000);
        assert_false(once_machine_ended(f->machine));
    }
    f->run_failure = ONCE_E_UNAVAILABLE;
    assert_in_range(troubled_for(f, 1000000), 60000, 90000);
    assert_int_equal(once_machine_status(f->machine, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "no process is left; gave up"));
    assert_non_null(strstr(err.text, "'patience' (1m)"));
}

/* Until the end, or for ever. */
static void stop(fixture *f)
{
    once_machine_stop(f->machine);
    for (int i = 0; i < 20000 && !once_machine_ended(f->machine); i++) {
        work(f, 1);
        if (f->held_n) once_machine_finished(f->machine, f->held, 1, f->now_ms), f->held_n = 0;
    }
    assert_true(once_machine_ended(f->machine));
}

/* In flight, behind it, in the queue, in the source: all of it is over or in the store. */
static void f59_a_stop_gives_what_comes_once_to_the_store(void **state)
{
    fixture *f = *state;
    for (int lane = 0; lane < 2; lane++) {
        *f = (fixture){
            .accepts_at_stop = true, .bounded = true, .left = 10 * BATCH, .slow = 1, .lane = lane ? "one" : NULL};
        open_pipe(f, false);
        while (!f->held_n) work(f, 1);
        const uint64_t before = f->fetched;
        assert_true(before < 10 * BATCH);
        stop(f);
        const once_counts *counts = once_machine_counts(f->machine);
        assert_int_equal(once_machine_unfinished(f->machine), 0);
        assert_int_equal(f->left, 0);
        assert_int_equal(f->acked, 10 * BATCH);
        assert_int_equal(counts->received, 10 * BATCH);
        assert_int_equal(counts->done + counts->waiting, 10 * BATCH);
        assert_int_equal(once_machine_status(f->machine, NULL), ONCE_OK);
        if (lane) continue;
        close_pipe(f);
    }
}

/* What has begun is brought to an end as what it is: put back, found to be done, or failed. Only what has not is given
 * to the store. */
static void f59_a_stop_gives_who_waits_for_a_slot_to_the_store(void **state)
{
    fixture *f = *state;
    f->turns = f->accepts_at_stop = f->bounded = true;
    f->both[1].slots = SLOTS;
    f->left = 5 * BATCH;
    open_pipe(f, false);
    const once_counts *counts = once_machine_counts(f->machine);
    work(f, 1000);
    assert_int_equal(counts->done, 5 * BATCH / 2);
    assert_int_equal(f->held_n, SLOTS);
    once_machine_stop(f->machine);
    work(f, 100);
    end_held(f);
    for (int i = 0; i < 1000 && !once_machine_ended(f->machine); i++) work(f, 1);
    assert_true(once_machine_ended(f->machine));
    assert_int_equal(counts->done, 5 * BATCH / 2 + SLOTS);
    assert_int_equal(counts->waiting, 5 * BATCH / 2 - SLOTS);
    assert_int_equal(once_machine_unfinished(f->machine), 0);
}

static void f59_a_stop_does_not_accept_what_has_begun(void **state)
{
    fixture *f = *state;
    enum { NEW, HELD, COMMIT_UNKNOWN, ENDED_TX, CASES };
    for (int what = 0; what < CASES; what++) {
        *f = (fixture){.accepts_at_stop = true, .bounded = true, .left = 1, .atomic = true, .unclean = what == HELD};
        if (what == COMMIT_UNKNOWN)
            f->fail_at = ONCE_ACT_COMMIT, f->fails = 1, f->fail_status = ONCE_E_UNAVAILABLE, f->happens = true;
        if (what == ENDED_TX) f->poison = f->hangs = 1, f->ends = true;
        open_pipe(f, false);
        static const once_action_kind lasts[] = {ONCE_ACT_NONE, ONCE_ACT_CLAIM, ONCE_ACT_COMMIT, ONCE_ACT_ROLLBACK};
        const once_action_kind last = lasts[what];
        while (f->left) step_source(f);
        for (int i = 0; i < 1000 && f->done_last != last; i++) step_store(f);
        assert_int_equal(f->done_last, last);
        stop(f);
        const once_counts *counts = once_machine_counts(f->machine);
        once_stats stats;
        assert_int_equal(f->store->ops->stats(f->store, f->spec.consumer, &stats, NULL), ONCE_OK);
        assert_int_equal(stats.claimed, 0);
        assert_int_equal(counts->received, 1);
        assert_int_equal(counts->done, what == COMMIT_UNKNOWN);
        assert_int_equal(counts->retries, what == ENDED_TX);
        assert_int_equal(counts->waiting, what != COMMIT_UNKNOWN);
        if (what == CASES - 1) break;
        close_pipe(f);
    }
}

static void f59_a_stop_counts_what_comes_once_and_could_not_be_kept(void **state)
{
    fixture *f = *state;
    *f = (fixture){.accepts_at_stop = true, .bounded = true, .left = 2 * BATCH, .slow = 1};
    open_pipe(f, false);
    while (!f->held_n || f->left) work(f, 1);
    f->store_status = ONCE_E_UNAVAILABLE;
    stop(f);
    assert_int_equal(once_machine_unfinished(f->machine) + once_machine_counts(f->machine)->received, 2 * BATCH);
    assert_true(once_machine_unfinished(f->machine) > 0);
    assert_in_range(once_machine_unsettled(f->machine), 1, SLOTS);
}

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
    for (int i = 0; i < 20000; i++) {
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
        TEST(no_more_is_on_its_way_behind_a_slow_one_than_can_be_kept_track_of),
        TEST(a_handler_without_a_free_slot_holds_up_no_other),
        TEST(a_handler_without_a_free_slot_holds_up_nobody_in_the_inbox),
        TEST(a_take_for_who_was_full_is_due_at_once_and_postpones_no_other),
        TEST(what_is_due_is_looked_for_at_its_moment),
        TEST(what_is_due_beside_a_full_handler_is_looked_for_at_its_moment),
        TEST(a_take_with_a_filter_whose_reply_was_lost_is_repeated),
        TEST(who_waits_for_a_slot_counts_against_what_may_wait),
        TEST(who_waits_for_a_slot_is_not_passed_in_its_lane),
        TEST(who_has_no_slot_stands_behind_its_lane),
        TEST(f59_a_stop_gives_who_waits_for_a_slot_to_the_store),
        TEST(no_more_waits_behind_a_lane_than_two_batches),
        TEST(f100_a_worker_says_that_it_is_alive_with_its_batches_or_by_itself),
        TEST(f100_a_worker_counts_what_it_decided),
        TEST(f89_a_worker_stops_when_its_store_has_forgotten_it),
        TEST(f99_workers_that_are_gone_are_looked_for),
        TEST(f89_an_inbox_stops_when_its_store_has_forgotten_it),
        TEST(f89_dead_letters_stop_when_the_store_has_forgotten_the_worker),
        TEST(f89_an_outcome_is_not_kept_by_a_store_that_has_forgotten_the_worker),
        TEST(f89_nothing_starts_by_a_claim_in_a_store_that_has_forgotten_the_worker),
        TEST(f100_duplicates_alone_do_not_renew),
        TEST(f100_a_rate_is_that_of_a_second_at_least),
        TEST(one_attempt_of_who_makes_the_server_hang_up),
        TEST(two_attempts_of_who_makes_the_server_hang_up),
        TEST(attempts_of_who_makes_the_server_hang_up_at_commit),
        TEST(f92_a_rollback_at_commit_is_no_hang_up),
        TEST(f92_a_server_that_hangs_up_before_effects_ran_makes_nobody_a_suspect),
        TEST(f92_who_was_found_in_a_lane_and_makes_the_server_hang_up_at_commit),
        TEST(f92_an_effect_outside_is_not_put_back_for_a_hang_up),
        TEST(f04_a_silent_attempt_stays_a_possible_repeat_without_its_handler),
        TEST(f91_who_is_alone_is_blamed_for_the_fourth_rollback),
        TEST(a_server_that_is_stopped_costs_no_message_its_only_attempt),
        TEST(a_server_that_hangs_up_now_and_then_makes_nobody_a_suspect),
        TEST(who_is_taken_alone_is_not_blamed_at_once),
        TEST(who_is_put_back_does_not_wait),
        TEST(after_an_accusation_effects_run_one_by_one_and_one_hang_up_is_enough),
        TEST(a_source_that_fails_now_and_then_is_not_given_up),
        TEST(f46_nothing_is_fetched_while_the_store_is_away),
        TEST(f59_a_stop_gives_what_comes_once_to_the_store),
        TEST(f59_a_stop_does_not_accept_what_has_begun),
        TEST(f59_a_stop_counts_what_comes_once_and_could_not_be_kept),
        TEST(f76_a_take_whose_reply_was_lost_is_asked_for_as_a_whole),
        TEST(a_commit_that_was_not_tried_is_rolled_back_by_the_machine),
        TEST(f52_a_full_store_is_waited_for),
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
        TEST(effects_that_cannot_be_started_end_a_finite_run_when_its_patience_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
