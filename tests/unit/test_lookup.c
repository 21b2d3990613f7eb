/* External effects whose outcome is unknown, and whose other side can be asked: the machine, its executor and a store
 * in memory. The test plays the other side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/machine_impl.h"
#include "runtime/executor.h"
#include "testenv.h"

enum {
    SLOTS = 2,
    LEASE_MS = 900,
    AFTER_MS = 200,
    FOR_MS = 20000,
    WORKERS = 2,
    STEP_MS = 5,
    POLL_MS = 1100
}; /* so often a worker looks for what is due */

/* What the other side does with what it is given. */
typedef enum conduct {
    DOES,           /* it, and says so */
    LOSES,          /* the reply: nobody knows whether it has */
    KEEPS,          /* it, and nothing comes back until the test wants it */
    COULD_NOT_START /* nothing can be started */
} conduct;

typedef struct worker {
    once_executor executor;
    once_machine *machine;
    bool dead;
    once_item *out; /* KEEPS */
} worker;

typedef struct fixture {
    test_env world;
    once_handler_spec handler;
    once_spec spec;
    once_backend *store;
    worker workers[WORKERS];
    once_arena arena;
    once_error err;
    int64_t now_ms;

    conduct runs, asked;
    once_outcome says;    /* of what is asked about: RETRY is absent */
    int64_t says_wait_ms; /* when to ask or try again; 0: not said */
    bool at_end;          /* the source is */
    unsigned attempts, questions;
    int64_t asked_at_ms[200];
} fixture;

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

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

static void start_worker(fixture *f, size_t i)
{
    worker *w = &f->workers[i];
    const once_machine_options options = {.spec = &f->spec,
                                          .env = &f->world.env,
                                          .run = (i + 1) << 32,
                                          .prepare = prepare,
                                          .source = ONCE_SOURCE_FINITE,
                                          .finds = i == 0};
    once_executor_init(&w->executor, f->store, f->spec.consumer, run_nothing, f);
    assert_int_equal(once_machine_new(&options, &w->machine, &f->err), ONCE_OK);
}

static int set_up(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    if (!f) return -1;
    test_env_init(&f->world, 1);
    f->handler = (once_handler_spec){.operation = scope.operation,
                                     .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_OUTSIDE | ONCE_EFFECT_ASKS,
                                     .slots = SLOTS,
                                     .lease_ms = LEASE_MS,
                                     .remember_ms = 1000000000,
                                     .hold = true,
                                     .lookup = {.after_ms = AFTER_MS, .for_ms = FOR_MS},
                                     .retry = {.attempts = 3, .min_ms = 40, .max_ms = 3000}};
    f->spec = (once_spec){.consumer = scope.consumer,
                          .handlers = &f->handler,
                          .n_handlers = 1,
                          .batch_max = 4,
                          .gap_ms = -1,
                          .drain_ms = 1000,
                          .patience_ms = 1000000,
                          .message_max = 100};
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    assert_int_equal(once__store_open("memory:", &options, &f->store, &f->err), ONCE_OK);
    start_worker(f, 0);
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < WORKERS; i++) {
        if (!f->workers[i].machine) continue;
        once_machine_free(f->workers[i].machine);
        once_executor_release(&f->workers[i].executor);
    }
    once__store_close(f->store);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static once_request request_of(fixture *f, const char *key)
{
    const once_bytes bytes = {key, strlen(key)};
    return (once_request){.scope = &scope,
                          .key = bytes,
                          .id = once_key_id(f->store->secret, &scope, bytes),
                          .token = {5, 5},
                          .lane.gap_ms = -1,
                          .lease_ms = LEASE_MS,
                          .remember_ms = 1000000000,
                          .sent_ms = ONCE_NO_TIME,
                          .hold = true,
                          .lookup = once_handler_asks(&f->handler)};
}

static void accept(fixture *f, const char *key)
{
    const once_message message = {.body = ONCE_BYTES("{}"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    const once_request request = request_of(f, key), *requests = &request;
    once_decision decision;
    assert_int_equal(f->store->ops->accept(f->store, &requests, &messages, 1, &decision, &f->arena, &f->err), ONCE_OK);
}

static once_entry entry_of(fixture *f, const char *key)
{
    once_entry entry;
    assert_int_equal(f->store->ops->get(f->store, request_of(f, key).id, &entry, &f->arena, &f->err), ONCE_OK);
    return entry;
}

static void is(fixture *f, once_state state)
{
    assert_string_equal(once_state_name(entry_of(f, "k").state), once_state_name(state));
}

/* --- the other side --- */

static void give_back(fixture *f, worker *w, once_item *item)
{
    const bool asks = item->decision.asks;
    const conduct how = asks ? f->asked : f->runs;
    item->started = how != COULD_NOT_START;
    item->run_failure = how == COULD_NOT_START ? ONCE_E_UNAVAILABLE : ONCE_OK;
    item->outcome = how == COULD_NOT_START ? ONCE_RELEASE : how == DOES ? ONCE_DONE : ONCE_UNKNOWN;
    item->delay_ms = asks && f->says_wait_ms ? f->says_wait_ms : -1;
    if (asks && how == DOES) item->outcome = f->says;
    item->failure = asks ? ONCE_BYTES("asked") : ONCE_BYTES("the reply was lost");
    once_machine_finished(w->machine, &item, 1, f->now_ms);
}

static void begin(fixture *f, worker *w, once_item *item)
{
    const bool asks = item->decision.asks;
    const conduct how = asks ? f->asked : f->runs;
    if (asks) {
        assert_int_equal(item->decision.answer, ONCE_ANSWER_UNKNOWN);
        assert_in_range(f->questions, 0, sizeof f->asked_at_ms / sizeof *f->asked_at_ms - 1);
        f->asked_at_ms[f->questions] = f->now_ms;
    } else {
        assert_int_equal(item->decision.answer, ONCE_ANSWER_RUN);
    }
    f->attempts += !asks && how != COULD_NOT_START;
    f->questions += asks && how != COULD_NOT_START;
    if (how == KEEPS) w->out = item;
    else give_back(f, w, item);
}

/* --- the worker --- */

static bool step_effects(fixture *f, worker *w)
{
    once_action *action = once_machine_effect_action(w->machine, f->now_ms);
    if (!action) return false;
    once_item *items[SLOTS];
    const size_t n = action->n;
    const once_action_kind kind = action->kind;
    assert_in_range(n, 1, SLOTS);
    memcpy(items, action->items, n * sizeof *items);
    action->status = ONCE_OK;
    once_machine_step(w->machine, action, f->now_ms);
    for (size_t i = 0; i < n && kind == ONCE_ACT_START; i++) begin(f, w, items[i]);
    for (size_t i = 0; i < n && kind == ONCE_ACT_KILL; i++) {
        assert_ptr_equal(items[i], w->out);
        w->out = NULL;
        items[i]->started = true;
        items[i]->outcome = ONCE_UNKNOWN;
        items[i]->delay_ms = -1;
        once_machine_finished(w->machine, &items[i], 1, f->now_ms);
    }
    return true;
}

static bool step_worker(fixture *f, worker *w)
{
    if (!w->machine || w->dead) return false;
    once_action *fetch = once_machine_source_action(w->machine, f->now_ms);
    if (fetch) {
        fetch->status = ONCE_OK;
        fetch->at_end = f->at_end;
        once_machine_step(w->machine, fetch, f->now_ms);
    }
    bool any = false;
    do { /* they share a handle: a transaction is one worker's */
        once_action *action = once_machine_store_action(w->machine, f->now_ms);
        if (!action) break;
        any = true;
        once_execute_store(&w->executor, action);
        once_machine_step(w->machine, action, f->now_ms);
    } while (w->executor.in_tx);
    return step_effects(f, w) || any;
}

static void pass(fixture *f, int64_t ms)
{
    for (int64_t end_ms = f->now_ms + ms; f->now_ms < end_ms;) {
        bool any = true;
        for (int i = 0; any && i < 50; i++) {
            any = false;
            for (size_t k = 0; k < WORKERS; k++) any |= step_worker(f, &f->workers[k]);
        }
        f->now_ms += STEP_MS;
        test_env_pass(&f->world, STEP_MS);
    }
}

/* One that is unknown. */
static void leave_unknown(fixture *f)
{
    accept(f, "k");
    f->runs = LOSES;
    pass(f, AFTER_MS / 2);
    assert_int_equal(f->attempts, 1);
    is(f, ONCE_STATE_UNKNOWN);
}

/* --- tests --- */

static void an_unknown_that_is_done_is_settled_so(void **state)
{
    fixture *f = *state;
    f->says = ONCE_DONE;
    leave_unknown(f);
    const once_counts *counts = once_machine_counts(f->workers[0].machine);
    assert_int_equal(counts->unknown, 1);
    assert_int_equal(f->questions, 0); /* what was sent may still act */
    pass(f, AFTER_MS + POLL_MS);
    assert_int_equal(f->questions, 1);
    assert_in_range(f->asked_at_ms[0], AFTER_MS, AFTER_MS + POLL_MS);
    is(f, ONCE_STATE_DONE);
    pass(f, 10 * LEASE_MS);
    assert_int_equal(f->attempts, 1);
    assert_int_equal(f->questions, 1);
    assert_int_equal(entry_of(f, "k").attempt, 1);
    assert_int_equal(counts->done, 1);
    assert_int_equal(counts->unknown, 0);
    assert_int_equal(counts->attempts, 1); /* a question is none */
    assert_int_equal(counts->waiting + counts->dead + counts->repeats, 0);
    assert_int_equal(counts->resumed, 1);
}

/* An unknown does not count as waiting, so its end makes no room; but one that is tried again waits. */
static void a_question_makes_no_room_in_the_store(void **state)
{
    fixture *f = *state;
    f->spec.waiting_max.messages = 10;
    f->says = ONCE_RETRY;
    f->says_wait_ms = POLL_MS;
    leave_unknown(f);
    machine_room *room = &f->workers[0].machine->room;
    *room = (machine_room){.known = true, .there.messages = 5, .at_ms = ONCE_NEVER};
    for (int i = 0; i < 1000 && f->questions == 0; i++) pass(f, STEP_MS);
    pass(f, STEP_MS);
    is(f, ONCE_STATE_WAITING);
    assert_int_equal(room->there.messages, 6);
    f->says = ONCE_DONE;
    for (int i = 0; i < 1000 && f->attempts == 1; i++) pass(f, STEP_MS);
    pass(f, STEP_MS);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(room->there.messages, 5);
    pass(f, AFTER_MS + POLL_MS);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(room->there.messages, 5);
}

static void an_unknown_that_is_absent_runs_again(void **state)
{
    fixture *f = *state;
    f->says = ONCE_RETRY;
    leave_unknown(f);
    f->runs = DOES;
    pass(f, AFTER_MS + 2 * POLL_MS);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 2);
    assert_int_equal(f->questions, 1);
    const once_counts *counts = once_machine_counts(f->workers[0].machine);
    assert_int_equal(counts->attempts, 2);
    assert_int_equal(counts->done, 1);
    assert_int_equal(counts->unknown + counts->waiting, 0);
    assert_int_equal(counts->repeats, 1); /* perhaps: that it does not is the other side's word */
}

/* Each attempt that it was asked about has failed: there are no more of them than the budget has. */
static void what_is_absent_again_and_again_dies(void **state)
{
    fixture *f = *state;
    f->says = ONCE_RETRY;
    leave_unknown(f);
    pass(f, 20 * POLL_MS);
    is(f, ONCE_STATE_DEAD);
    assert_int_equal(f->attempts, 3);
    assert_int_equal(f->questions, 3);
    assert_int_equal(entry_of(f, "k").failures, 3);
    assert_true(entry_of(f, "k").unreported);
}

static void no_answer_is_asked_for_again_with_pauses_and_then_held(void **state)
{
    fixture *f = *state;
    f->says = ONCE_UNKNOWN;
    leave_unknown(f);
    pass(f, FOR_MS * 2);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
    assert_int_equal(f->attempts, 1);
    assert_in_range(f->questions, 5, 30); /* pauses of up to 3 s within 20 s, and shorter ones before */
    assert_in_range(f->asked_at_ms[f->questions - 1], FOR_MS, FOR_MS + POLL_MS);
    for (unsigned i = 1; i < f->questions; i++)
        assert_in_range(f->asked_at_ms[i] - f->asked_at_ms[i - 1], 20, 3000 + POLL_MS);
    assert_int_equal(entry_of(f, "k").failures, 0);
    assert_int_equal(entry_of(f, "k").attempt, 1);
    const once_counts *counts = once_machine_counts(f->workers[0].machine);
    assert_int_equal(counts->unknown, 1);
    assert_int_equal(counts->attempts, 1);
    bool done; /* and a person decides */
    assert_int_equal(
        f->store->ops->resolve(f->store, request_of(f, "k").id, ONCE_RETRY, ONCE_BYTES("seen"), &done, &f->err),
        ONCE_OK);
    assert_true(done);
    f->runs = DOES;
    pass(f, 2000);
    is(f, ONCE_STATE_DONE);
}

/* `unknown: retry`: what cannot be found out in its time runs again, with one failure more, and in the end dies. */
static void no_answer_is_tried_again_where_unknowns_are(void **state)
{
    fixture *f = *state;
    f->handler.hold = false;
    f->says = ONCE_UNKNOWN;
    leave_unknown(f);
    pass(f, FOR_MS - AFTER_MS);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(f->attempts, 1);
    const unsigned questions = f->questions;
    assert_in_range(questions, 5, 30);
    pass(f, 4 * POLL_MS);
    assert_int_equal(f->attempts, 2);
    assert_int_equal(entry_of(f, "k").failures, 1);
    assert_true(entry_of(f, "k").maybe_done);
    pass(f, 3 * FOR_MS);
    is(f, ONCE_STATE_DEAD);
    assert_int_equal(f->attempts, 3);
    assert_int_equal(entry_of(f, "k").failures, 3);
    assert_int_equal(once_machine_counts(f->workers[0].machine)->repeats, 2);
}

/* A worker that dies in its effect leaves an unknown there, too. */
static void a_lost_claim_is_asked_about_before_it_is_tried_again(void **state)
{
    fixture *f = *state;
    f->handler.hold = false;
    f->runs = KEEPS;
    f->says = ONCE_DONE;
    accept(f, "k");
    pass(f, 100);
    f->workers[0].dead = true;
    f->workers[0].out = NULL;
    start_worker(f, 1);
    pass(f, LEASE_MS + AFTER_MS + 3 * POLL_MS);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 1);
    assert_int_equal(f->questions, 1);
}

/* Idempotent by nature: nobody said `unknown`, so it may run again, after it was asked about. */
static void what_is_natural_is_asked_about_first(void **state)
{
    fixture *f = *state;
    f->handler.hold = false;
    f->handler.natural = true;
    f->says = ONCE_RETRY;
    leave_unknown(f);
    f->runs = DOES;
    pass(f, AFTER_MS + 2 * POLL_MS);
    assert_int_equal(f->questions, 1);
    assert_int_equal(f->attempts, 2);
    assert_int_equal(once_machine_counts(f->workers[0].machine)->done, 1);
}

/* A charge that was declined is found to be so. */
static void the_other_side_may_say_any_final_outcome(void **state)
{
    static const struct {
        once_outcome says;
        once_state becomes;
    } cases[] = {{ONCE_DONE, ONCE_STATE_DONE},
                 {ONCE_ALREADY, ONCE_STATE_ALREADY},
                 {ONCE_REJECTED, ONCE_STATE_REJECTED},
                 {ONCE_STALE, ONCE_STATE_STALE},
                 {ONCE_DEAD, ONCE_STATE_DEAD}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i > 0) {
            assert_int_equal(tear_down(state), 0);
            assert_int_equal(set_up(state), 0);
        }
        fixture *f = *state;
        f->says = cases[i].says;
        leave_unknown(f);
        pass(f, AFTER_MS + 5 * POLL_MS);
        is(f, cases[i].becomes);
        assert_int_equal(f->attempts, 1);
        assert_int_equal(f->questions, 1);
        const once_entry entry = entry_of(f, "k");
        assert_memory_equal(entry.reason.data, "asked", 5);
        const once_counts *counts = once_machine_counts(f->workers[0].machine);
        assert_int_equal(counts->unknown + counts->waiting, 0);
        assert_int_equal(counts->attempts, 1);
    }
}

/* The other side says when it may be asked again, or tried again; but not for ever. */
static void the_other_side_says_when_to_ask_again(void **state)
{
    fixture *f = *state;
    f->says = ONCE_UNKNOWN;
    f->says_wait_ms = 9000;
    leave_unknown(f);
    pass(f, 2 * FOR_MS);
    assert_int_equal(f->questions, 4);
    for (unsigned i = 1; i < 3; i++) assert_in_range(f->asked_at_ms[i] - f->asked_at_ms[i - 1], 9000, 9000 + POLL_MS);
    assert_in_range(f->asked_at_ms[3], FOR_MS, FOR_MS + POLL_MS);
    assert_int_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
}

static void the_other_side_says_when_to_try_again(void **state)
{
    fixture *f = *state;
    f->says = ONCE_RETRY;
    f->says_wait_ms = 9000;
    leave_unknown(f);
    f->runs = DOES;
    pass(f, AFTER_MS + 8000);
    is(f, ONCE_STATE_WAITING);
    pass(f, 2 * POLL_MS);
    is(f, ONCE_STATE_DONE);
}

/* A worker that dies while it asks: nothing has become worse, and another one asks. */
static void who_dies_while_asking_loses_nothing(void **state)
{
    fixture *f = *state;
    f->asked = KEEPS;
    f->says = ONCE_DONE;
    leave_unknown(f);
    pass(f, AFTER_MS + POLL_MS);
    assert_int_equal(f->questions, 1);
    assert_non_null(f->workers[0].out);
    pass(f, 3 * LEASE_MS); /* it takes its time, and its lease is extended */
    start_worker(f, 1);
    f->asked = DOES;
    pass(f, 3 * LEASE_MS);
    assert_int_equal(f->questions, 1); /* one asks at a time */
    f->workers[0].dead = true;
    pass(f, LEASE_MS / 2);
    assert_int_equal(f->questions, 1);
    pass(f, LEASE_MS + 1200);
    assert_int_equal(f->questions, 2);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 1);
    f->workers[0].dead = false; /* it was only stopped: what it says is not settled any more */
    f->says = ONCE_RETRY;
    once_item *late = f->workers[0].out;
    f->workers[0].out = NULL;
    if (late) give_back(f, &f->workers[0], late);
    pass(f, 2 * LEASE_MS);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 1);
}

/* A worker that dies in its effect: its lease ends, and only `after` that the other side is asked. */
static void who_dies_in_its_effect_is_asked_about(void **state)
{
    fixture *f = *state;
    f->runs = KEEPS;
    f->says = ONCE_DONE;
    f->handler.lookup.after_ms = 3000;
    accept(f, "k");
    pass(f, 100);
    assert_int_equal(f->attempts, 1);
    f->workers[0].dead = true;
    start_worker(f, 1);
    pass(f, LEASE_MS + 2800);
    assert_int_equal(f->questions, 0);
    is(f, ONCE_STATE_UNKNOWN);
    pass(f, 1500);
    assert_int_equal(f->questions, 1);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 1);
    const once_counts *counts = once_machine_counts(f->workers[1].machine);
    assert_int_equal(counts->done, 1);
    assert_int_equal(counts->attempts, 0);
    f->workers[0].out = NULL;
}

/* The file does not say how to ask any more, or has no such handler: a person decides. */
static void without_lookup_in_the_file_it_is_held(void **state)
{
    fixture *f = *state;
    leave_unknown(f);
    f->handler.bits &= ~(unsigned)ONCE_EFFECT_ASKS;
    pass(f, AFTER_MS + 2 * POLL_MS);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(f->questions, 0);
    assert_int_equal(f->attempts, 1);
    assert_int_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
    assert_false(entry_of(f, "k").lookup);
    assert_memory_equal(entry_of(f, "k").reason.data, "the reply was lost", 18);
}

static void a_handler_that_is_gone_leaves_it_held(void **state)
{
    fixture *f = *state;
    leave_unknown(f);
    f->handler.operation = ONCE_BYTES("another");
    pass(f, AFTER_MS + 2 * POLL_MS);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(f->questions + f->attempts, 1);
    assert_int_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
}

/* Nothing is found out while nobody can be asked, so nothing is given up by it either. */
static void questions_that_cannot_be_asked_are_not_given_up(void **state)
{
    fixture *f = *state;
    leave_unknown(f);
    f->asked = COULD_NOT_START;
    pass(f, 2 * FOR_MS);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_not_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
    f->asked = DOES;
    f->says = ONCE_DONE;
    pass(f, 20000);
    is(f, ONCE_STATE_DONE);
}

/* A finite run does not end before it knows, and a stop leaves the rest to the next one. */
static void a_finite_run_waits_for_its_answers(void **state)
{
    fixture *f = *state;
    f->says = ONCE_UNKNOWN;
    f->at_end = true;
    leave_unknown(f);
    pass(f, 10 * AFTER_MS);
    assert_false(once_machine_ended(f->workers[0].machine));
    f->says = ONCE_DONE;
    pass(f, 4000);
    assert_true(once_machine_ended(f->workers[0].machine));
    is(f, ONCE_STATE_DONE);
}

static void a_finite_run_ends_when_a_person_must_decide(void **state)
{
    fixture *f = *state;
    f->says = ONCE_UNKNOWN;
    f->at_end = true;
    leave_unknown(f);
    pass(f, 2 * FOR_MS);
    assert_true(once_machine_ended(f->workers[0].machine));
    is(f, ONCE_STATE_UNKNOWN);
}

static void a_stop_puts_a_question_back(void **state)
{
    fixture *f = *state;
    f->asked = KEEPS;
    leave_unknown(f);
    pass(f, AFTER_MS + POLL_MS);
    assert_int_equal(f->questions, 1);
    once_machine_stop(f->workers[0].machine);
    pass(f, 3000); /* it is ended when the drain is over */
    assert_true(once_machine_ended(f->workers[0].machine));
    assert_int_equal(once_machine_unsettled(f->workers[0].machine), 0);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_not_equal(entry_of(f, "k").due_ms, ONCE_NEVER);
    f->asked = DOES;
    f->says = ONCE_DONE;
    start_worker(f, 1);
    pass(f, 8000);
    is(f, ONCE_STATE_DONE);
    assert_int_equal(f->attempts, 1);
}

/* Until a take has handed out something, which has not begun then. */
static void take_only(fixture *f, worker *w)
{
    for (size_t n = 0; n == 0; f->now_ms += STEP_MS, test_env_pass(&f->world, STEP_MS)) {
        assert_true(f->now_ms < FOR_MS);
        for (once_action *action; n == 0 && (action = once_machine_store_action(w->machine, f->now_ms));) {
            once_execute_store(&w->executor, action);
            if (action->kind == ONCE_ACT_TAKE) n = action->batch->n;
            once_machine_step(w->machine, action, f->now_ms);
        }
    }
}

/* It was taken and has not begun. It is not released as an attempt would be: then it would run without a question. */
static void a_stop_before_a_question_begins_leaves_it_unknown(void **state)
{
    fixture *f = *state;
    worker *w = &f->workers[0];
    leave_unknown(f);
    take_only(f, w);
    assert_int_equal(w->machine->outside.flight.n, 1);
    once_machine_stop(w->machine);
    pass(f, 100);
    assert_true(once_machine_ended(w->machine));
    assert_int_equal(f->questions, 0);
    is(f, ONCE_STATE_UNKNOWN);
    const once_entry entry = entry_of(f, "k");
    assert_int_equal(entry.reason.len, strlen("the reply was lost")); /* as it was */
    assert_memory_equal(entry.reason.data, "the reply was lost", entry.reason.len);
    assert_int_not_equal(entry.due_ms, ONCE_NEVER);
    assert_int_equal(once_machine_counts(w->machine)->unknown, 1);
    assert_int_equal(once_machine_counts(w->machine)->waiting, 0);
}

/* While one is asked about, a delivery of its key does not run it, and others go on. */
static void others_go_on_while_one_is_asked_about(void **state)
{
    fixture *f = *state;
    f->asked = KEEPS;
    leave_unknown(f);
    pass(f, AFTER_MS + POLL_MS);
    accept(f, "k");
    accept(f, "other");
    f->runs = DOES;
    pass(f, LEASE_MS);
    assert_int_equal(entry_of(f, "other").state, ONCE_STATE_DONE);
    is(f, ONCE_STATE_UNKNOWN);
    assert_int_equal(f->attempts, 2);
    f->says = ONCE_DONE;
    f->asked = DOES;
    once_item *item = f->workers[0].out;
    f->workers[0].out = NULL;
    give_back(f, &f->workers[0], item);
    pass(f, 100);
    is(f, ONCE_STATE_DONE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_unknown_that_is_done_is_settled_so),
        TEST(an_unknown_that_is_absent_runs_again),
        TEST(a_question_makes_no_room_in_the_store),
        TEST(what_is_absent_again_and_again_dies),
        TEST(no_answer_is_asked_for_again_with_pauses_and_then_held),
        TEST(no_answer_is_tried_again_where_unknowns_are),
        TEST(a_lost_claim_is_asked_about_before_it_is_tried_again),
        TEST(what_is_natural_is_asked_about_first),
        TEST(the_other_side_may_say_any_final_outcome),
        TEST(the_other_side_says_when_to_ask_again),
        TEST(the_other_side_says_when_to_try_again),
        TEST(who_dies_while_asking_loses_nothing),
        TEST(who_dies_in_its_effect_is_asked_about),
        TEST(without_lookup_in_the_file_it_is_held),
        TEST(a_handler_that_is_gone_leaves_it_held),
        TEST(questions_that_cannot_be_asked_are_not_given_up),
        TEST(a_finite_run_waits_for_its_answers),
        TEST(a_finite_run_ends_when_a_person_must_decide),
        TEST(a_stop_puts_a_question_back),
        TEST(a_stop_before_a_question_begins_leaves_it_unknown),
        TEST(others_go_on_while_one_is_asked_about),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
