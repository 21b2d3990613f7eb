/* The machine with a store in memory: a server that hangs up or rolls back while effects run. */
#include "machine_store_fixture.h"

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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
