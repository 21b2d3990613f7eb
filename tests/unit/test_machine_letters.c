/* The machine with a store in memory: letters that would be too many, which wait instead (core/gate.h), and which of
 * the things that happen to messages their gate is told. */
#include "machine_store_fixture.h"

enum { LIMIT = ONCE_DEAD_OUTCOMES / 2, BIG = 600 };

static once_gate *gate(const fixture *f) { return &f->machine->gate.gates.at[0]; }
static const once_counts *counts(const fixture *f) { return once_machine_counts(f->machine); }

static void open_limited(fixture *f, bool atomic, size_t n, void (*effect)(fixture *, once_item *))
{
    f->bounded = true;
    f->atomic = atomic;
    f->left = n;
    f->effect = effect;
    open_pipe(f, false);
    f->handler.gate.dead_share = 50;
    f->handler.retry.attempts = 1;
}

static void settle_all(fixture *f, uint64_t n)
{
    for (int i = 0; i < 20000 && f->acked < n; i++) work(f, 1);
    assert_int_equal(f->acked, n);
}

static void one_in_three_dies(fixture *f, once_item *item)
{
    (void)f;
    if (number_of(item) % 3) return;
    item->outcome = ONCE_DEAD;
    item->failure = ONCE_BYTES("no such row");
}

/* In one transaction there are more of these than the limit, but among all of its outcomes they are few. */
static void letters_among_many_that_are_done_in_one_transaction_are_not_spared(void **state)
{
    fixture *f = *state;
    f->batch = BIG;
    open_limited(f, true, BIG, one_in_three_dies);
    settle_all(f, BIG);
    assert_int_equal(counts(f)->dead, BIG / 3);
    assert_int_equal(counts(f)->waiting, 0);
    assert_false(once_gate_is_held(gate(f)));
}

/* The same where they are refused before the others run. */
static void refusals_among_many_that_run_in_one_transaction_are_not_spared(void **state)
{
    fixture *f = *state;
    f->batch = BIG;
    f->refused_every = 3;
    open_limited(f, true, BIG, NULL);
    settle_all(f, BIG);
    assert_int_equal(counts(f)->dead, BIG / 3);
    assert_int_equal(counts(f)->waiting, 0);
    assert_false(once_gate_is_held(gate(f)));
}

/* In each transaction there are few of them. */
static void f96_refusals_count_from_one_transaction_to_the_next(void **state)
{
    for (int outside = 0; outside < 2; outside++) {
        fixture *f = *state;
        f->refused_every = 1;
        open_limited(f, !outside, BIG, NULL);
        settle_all(f, BIG);
        assert_int_equal(counts(f)->dead, LIMIT - 1);
        assert_int_equal(counts(f)->waiting, BIG - LIMIT + 1);
        assert_int_equal(gate(f)->hold, ONCE_GATE_DEAD);
        close_pipe(f);
        *f = (fixture){0};
    }
}

static void is_unknown(fixture *f, once_item *item)
{
    (void)f;
    item->outcome = ONCE_UNKNOWN;
    item->failure = ONCE_BYTES("no answer");
    item->delay_ms = -1;
}

/* Its effect may have happened: it does not run again as if nothing had. */
static void what_may_have_happened_is_not_spared(void **state)
{
    fixture *f = *state;
    open_limited(f, false, BIG, is_unknown);
    settle_all(f, BIG);
    assert_int_equal(gate(f)->hold, ONCE_GATE_DEAD);
    const uint64_t dead = counts(f)->dead;
    const uint32_t probes = gate(f)->probes;
    assert_true(dead >= LIMIT);
    work(f, 3000);
    assert_true(gate(f)->probes > probes);
    assert_int_equal(counts(f)->dead - dead, gate(f)->probes - probes); /* each probe */
    assert_int_equal(counts(f)->dead + counts(f)->waiting, BIG);
}

static void dies(fixture *f, once_item *item)
{
    (void)f;
    item->outcome = ONCE_DEAD;
    item->failure = ONCE_BYTES("no such row");
}

/* Nothing has: it waits, and so does each probe. */
static void what_has_not_happened_is_spared(void **state)
{
    fixture *f = *state;
    open_limited(f, false, BIG, dies);
    settle_all(f, BIG);
    assert_int_equal(gate(f)->hold, ONCE_GATE_DEAD);
    const uint32_t probes = gate(f)->probes;
    work(f, 3000);
    assert_true(gate(f)->probes > probes);
    assert_int_equal(counts(f)->dead, LIMIT - 1);
    assert_int_equal(counts(f)->waiting, BIG - LIMIT + 1);
}

static void has_no_table_once(fixture *f, once_item *item)
{
    if (f->fails == 0) return;
    item->outcome = ONCE_RELEASE;
    item->run_failure = ONCE_E_MISSING;
    item->failure = ONCE_BYTES("no such table");
}

/* What was found out in it is not true any more when it is made again. */
static void a_transaction_that_is_rolled_back_pauses_nobody(void **state)
{
    fixture *f = *state;
    open_limited(f, true, BATCH, has_no_table_once);
    f->fail_at = ONCE_ACT_COMMIT;
    f->fail_status = ONCE_E_ABORTED;
    f->fails = 1;
    settle_all(f, BATCH);
    assert_int_equal(f->fails, 0);
    assert_int_equal(counts(f)->done, BATCH);
    assert_false(once_gate_is_held(gate(f)));
}

/* That the other side has no record of an effect is an answer. */
static void questions_that_are_answered_do_not_open_the_breaker(void **state)
{
    fixture *f = *state;
    open_limited(f, false, 0, NULL);
    f->handler.gate.breaker = (once_breaker){.share = 50, .of = 4, .within_ms = 60000};
    once_item item = {.handler = &f->handler, .started = true, .decision = {.asks = true}};
    for (int i = 0; i < 10; i++) {
        once__machine_ended_outside(f->machine, &item, ONCE_RETRY, f->now_ms);
        once__machine_ended_outside(f->machine, &item, ONCE_DONE, f->now_ms);
        assert_false(once_gate_is_held(gate(f)));
    }
    for (int i = 0; i < 3; i++) once__machine_ended_outside(f->machine, &item, ONCE_UNKNOWN, f->now_ms);
    assert_false(once_gate_is_held(gate(f)));
    once__machine_ended_outside(f->machine, &item, ONCE_UNKNOWN, f->now_ms); /* it is not answered */
    assert_int_equal(gate(f)->hold, ONCE_GATE_BREAKER);
}

/* What it found is the end of the message, and no letter of this attempt. */
static void questions_that_find_a_letter_are_no_storm(void **state)
{
    fixture *f = *state;
    open_limited(f, false, 0, NULL);
    once_item item = {.handler = &f->handler, .started = true, .outcome = ONCE_DEAD, .decision = {.asks = true}};
    for (int i = 0; i < ONCE_DEAD_OUTCOMES; i++) once__machine_ended_outside(f->machine, &item, ONCE_DEAD, f->now_ms);
    assert_false(once_gate_is_held(gate(f)));
    assert_int_equal(item.outcome, ONCE_DEAD);
    item.decision.asks = false;
    for (int i = 1; i < LIMIT; i++) once__machine_ended_outside(f->machine, &item, ONCE_DEAD, f->now_ms);
    assert_int_equal(item.outcome, ONCE_DEAD);
    once__machine_ended_outside(f->machine, &item, ONCE_DEAD, f->now_ms);
    assert_int_equal(gate(f)->hold, ONCE_GATE_DEAD);
    assert_int_equal(item.outcome, ONCE_RELEASE);
    item.decision.asks = true;
    item.outcome = ONCE_DEAD;
    once__machine_ended_outside(f->machine, &item, ONCE_DEAD, f->now_ms);
    assert_int_equal(item.outcome, ONCE_DEAD);
}

/* It was put back in its transaction: that is no outcome. */
static void what_did_not_run_inside_does_not_count(void **state)
{
    fixture *f = *state;
    open_limited(f, true, 0, NULL);
    once_item item = {.handler = &f->handler, .input = f, .outcome = ONCE_RELEASE};
    once__machine_ended_inside(f->machine, &item, f->now_ms);
    assert_int_equal(gate(f)->dead.at, 0);
    item.started = true;
    once__machine_ended_inside(f->machine, &item, f->now_ms);
    assert_int_equal(gate(f)->dead.at, 1);
}

static void the_first_is_refused(fixture *f, once_item *item)
{
    item->outcome = ONCE_DONE;
    if (number_of(item) != 1) return;
    item->started = !f->atomic; /* as a server does that answers 403 */
    item->outcome = ONCE_RELEASE;
    item->run_failure = f->fail_status;
    item->failure = ONCE_BYTES("not this one");
    item->delay_ms = -1;
}

/* A message that alone is refused, again and again, has failed. One that misses a table has not, however often. */
static void f96_only_who_is_refused_is_blamed(void **state)
{
    for (int i = 0; i < 4; i++) {
        fixture *f = *state;
        open_limited(f, i % 2, 0, the_first_is_refused);
        f->fail_status = i < 2 ? ONCE_E_DENIED : ONCE_E_MISSING;
        for (int round = 0; round < 20; round++) {
            f->left = 1;
            work(f, 300);
        }
        assert_int_equal(counts(f)->dead, i < 2);
        assert_int_equal(counts(f)->done + counts(f)->waiting, i < 2 ? 19 : 20);
        if (i < 2) assert_int_equal(counts(f)->waiting, 0);
        if (i == 3) assert_int_equal(counts(f)->attempts, counts(f)->done); /* it never ran */
        close_pipe(f);
        *f = (fixture){0};
    }
}

/* A question is none of its attempts. */
static void a_refused_question_is_nobodys_failure(void **state)
{
    fixture *f = *state;
    open_limited(f, false, 0, NULL);
    gate(f)->pausers[0] = (struct once_pauser){.id = 7, .cleared = true};
    gate(f)->n_pausers = 1;
    once_item item = {.handler = &f->handler,
                      .request = {.id = {7, 1}},
                      .outcome = ONCE_RELEASE,
                      .run_failure = ONCE_E_DENIED,
                      .decision = {.asks = true}};
    once__machine_blame(f->machine, &item);
    assert_int_equal(item.outcome, ONCE_RELEASE);
    item.decision.asks = false;
    once__machine_blame(f->machine, &item);
    assert_int_equal(item.outcome, ONCE_RETRY);
}

static void is_refused(fixture *f, once_item *item)
{
    item->outcome = ONCE_RELEASE;
    item->run_failure = f->fail_status;
    item->failure = ONCE_BYTES("status 401");
    item->delay_ms = -1;
}

/* Its gate says when it is tried again, and not the backoff of its message. */
static void a_paused_message_does_not_wait_for_its_backoff(void **state)
{
    fixture *f = *state;
    open_limited(f, false, 1, is_refused);
    f->handler.retry = (once_retry){.attempts = 3, .min_ms = 3600000, .max_ms = 3600000};
    f->fail_status = ONCE_E_MISSING;
    work(f, 50);
    assert_int_equal(gate(f)->hold, ONCE_GATE_PAUSED);
    f->effect = NULL;
    for (const int64_t since_ms = f->now_ms; f->now_ms - since_ms < 5000;) work(f, 1);
    assert_int_equal(counts(f)->done, 1);
}

/* Inside of transactions, too: what is committed has begun. */
static void a_rate_is_kept_from_one_transaction_to_the_next(void **state)
{
    fixture *f = *state;
    open_limited(f, true, 100, NULL);
    f->handler.gate.rate = (once_rate){.n = 10, .per_ms = 1000};
    f->machine->gate.gates.has_rates = f->machine->gate.has_queues = true;
    for (const int64_t since_ms = f->now_ms; f->now_ms - since_ms < 3000;) work(f, 1);
    assert_in_range(counts(f)->done, 20, 45);
}

/* An effect that was told to end, or was put back, tells nothing. */
static void what_says_nothing_does_not_count(void **state)
{
    fixture *f = *state;
    open_limited(f, false, 0, NULL);
    f->handler.gate.breaker = (once_breaker){.share = 50, .of = 4, .within_ms = 60000};
    once_item told = {.handler = &f->handler, .started = true, .told_to_end = true, .outcome = ONCE_UNKNOWN};
    once_item unbegun = {.handler = &f->handler, .outcome = ONCE_RETRY};
    for (int i = 0; i < 10; i++) once__machine_ended_outside(f->machine, &told, ONCE_UNKNOWN, f->now_ms);
    assert_int_equal(gate(f)->ended, 0);
    for (int i = 0; i < 3; i++) once__machine_ended_outside(f->machine, &unbegun, ONCE_RETRY, f->now_ms);
    assert_int_equal(gate(f)->ended, 3); /* nobody was there: that is a failure */
    unbegun.outcome = ONCE_RELEASE;
    once__machine_ended_outside(f->machine, &unbegun, ONCE_RELEASE, f->now_ms);
    assert_int_equal(gate(f)->ended, 3);
    assert_false(once_gate_is_held(gate(f)));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(letters_among_many_that_are_done_in_one_transaction_are_not_spared),
        TEST(refusals_among_many_that_run_in_one_transaction_are_not_spared),
        TEST(f96_refusals_count_from_one_transaction_to_the_next),
        TEST(what_may_have_happened_is_not_spared),
        TEST(what_has_not_happened_is_spared),
        TEST(a_transaction_that_is_rolled_back_pauses_nobody),
        TEST(questions_that_are_answered_do_not_open_the_breaker),
        TEST(questions_that_find_a_letter_are_no_storm),
        TEST(what_did_not_run_inside_does_not_count),
        TEST(f96_only_who_is_refused_is_blamed),
        TEST(a_refused_question_is_nobodys_failure),
        TEST(a_paused_message_does_not_wait_for_its_backoff),
        TEST(a_rate_is_kept_from_one_transaction_to_the_next),
        TEST(what_says_nothing_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
