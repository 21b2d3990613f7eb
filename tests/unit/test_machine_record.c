/* The machine with a store in memory: the record of a worker, which its commits renew and compare. */
#include "machine_store_fixture.h"

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

static void begin_worker(fixture *f, once_worker *worker)
{
    once_error err = {0};
    bool died = false;
    once_worker_init(worker, f->store, f->spec.consumer, 1, 0);
    assert_int_equal(once_worker_begin(worker, f->store, &died, &err), ONCE_OK);
    f->executor.worker = worker;
}

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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
