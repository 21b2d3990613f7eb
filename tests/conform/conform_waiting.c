/* Messages that wait in the store: accept, take, delays, and the count of their failures. */
#include "conform.h"

static void accept_then_take_gives_the_whole_message(fixture *f)
{
    once_request r = ask(f, "k");
    r.sent_ms = TEST_EPOCH_MS - 5;
    const once_decision d = do_accept(f, &r);
    assert_answer(d, WAITING);
    assert_int_equal(d.wait_ms, 0);
    const once_taken t = take_one(f);
    assert_int_equal(t.decision.attempt, 1);
    assert_int_equal(t.message.body.len, 10);
    assert_memory_equal(t.message.body.data, "{\"a\":\"\0\xff\"}", 10);
    assert_bytes(t.message.headers, "{\"h\":1}");
    assert_bytes(t.message.type, "payment.received");
    assert_bytes(t.message.at.place, "payments.ndjson");
    assert_bytes(t.message.at.point, "17");
    assert_true(t.message.sent_ms == TEST_EPOCH_MS - 5);
    assert_true(once_hash_equal(t.request.id, r.id) && once_hash_equal(t.request.fingerprint, r.fingerprint));
    assert_bytes(t.request.key, "k");
    assert_bytes(t.scope.consumer, "payments");
    assert_bytes(t.scope.operation, "charge");
    assert_bytes(t.request.at.point, "17");
    assert_int_equal(t.request.run, 7);
    once_taken more;
    assert_int_equal(do_take(f, 1, &more), 0);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    const once_request again = ask(f, "k");
    assert_answer(do_claim(f, &again), DUPLICATE);
}

static void accept_attaches_the_body_to_a_busy_entry(fixture *f)
{
    const once_request worker = ask(f, "k"), delivery = ask(f, "k");
    do_claim(f, &worker);
    assert_answer(do_accept(f, &delivery), BUSY);
    once_taken t[1];
    assert_int_equal(do_take(f, 1, t), 0);
    pass(f, LEASE); /* f73: the worker died; the broker was acked; the store goes on */
    const once_taken orphan = take_one(f);
    assert_int_equal(orphan.decision.attempt, 2);
    assert_true(orphan.decision.unreported);
    assert_false(do_settle(f, &worker, ONCE_DONE));
    assert_true(do_settle(f, &orphan.request, ONCE_DONE));
}

static void f73_an_entry_taken_by_a_dead_worker_is_taken_again(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    for (uint32_t attempt = 1; attempt <= 5; attempt++) {
        const once_taken t = take_one(f);
        assert_int_equal(t.decision.attempt, attempt);
        assert_int_equal(t.decision.failures, attempt - 1); /* f80: counted, so it ends */
        once_taken none[1];
        assert_int_equal(do_take(f, 1, none), 0);
        pass(f, LEASE);
    }
}

static void retry_waits_for_its_delay(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask(f, "k");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_RETRY));
    once_stats stats = do_stats(f);
    assert_int_equal(stats.waiting, 1);
    assert_int_equal(stats.wait_ms, DELAY);
    pass(f, DELAY - 1);
    once_taken none[1];
    assert_int_equal(do_take(f, 1, none), 0);
    const once_decision d = do_claim(f, &other);
    assert_answer(d, LATER);
    assert_int_equal(d.wait_ms, 1);
    pass(f, 1);
    assert_int_equal(take_one(f).decision.failures, 1);
}

static void f77_release_does_not_count(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    for (uint32_t attempt = 1; attempt <= 20; attempt++) {
        const once_taken t = take_one(f);
        assert_int_equal(t.decision.attempt, attempt);
        assert_int_equal(t.decision.failures, 0);
        assert_false(t.decision.unreported);
        do_settle(f, &t.request, ONCE_RELEASE);
        pass(f, DELAY);
    }
}

/* Told to the next attempt, however that comes about, and counted once. A release says nothing about the attempt
 * before. */
static void what_may_have_happened_is_told_to_the_next(fixture *f)
{
    const once_request r = ask(f, "k"), claimed = ask(f, "k");
    bool done;
    once_decision d;
    once_letter letter;
    d = do_claim(f, &r);
    assert_false(d.unreported || d.maybe_done);
    assert_true(do_settle_maybe(f, &r, ONCE_RETRY));
    pass(f, DELAY);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    d = do_claim(f, &claimed);
    assert_true(d.unreported && d.maybe_done && d.failures == 1 && d.attempt == 2);
    for (int i = 0; i < 3; i++) { /* released, by whoever claimed or took it */
        assert_true(
            do_settle(f, i ? &(once_request){.scope = &f->scope, .id = r.id, .token = do_get(f, r.id).token} : &claimed,
                      ONCE_RELEASE));
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        pass(f, DELAY);
        d = take_one(f).decision;
        assert_true(d.unreported && d.failures == 1);
    }
    pass(f, LEASE); /* an orphan counts as a failure of its own */
    once_taken t = take_one(f);
    assert_true(t.decision.unreported && t.decision.failures == 2);
    assert_true(do_settle(f, &t.request, ONCE_RETRY)); /* for sure */
    pass(f, DELAY);
    t = take_one(f);
    assert_true(!t.decision.unreported && t.decision.maybe_done &&
                t.decision.failures == 3); /* not the last one, but one before it */
    assert_true(do_settle_maybe(f, &t.request, ONCE_DEAD));
    assert_true(do_get(f, r.id).unreported);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    t = take_one(f);
    assert_true(t.decision.unreported && t.decision.failures == 0); /* f77: replay begins a new budget */
    assert_true(do_settle(f, &t.request, ONCE_DEAD));
    list_letters(f, &letter, 1);
    assert_true(do_replay(f, letter.id));
    t = take_one(f);
    assert_true(!t.decision.unreported && t.decision.maybe_done);
    assert_true(do_settle(f, &t.request, ONCE_UNKNOWN));
    assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_RETRY, ONCE_BYTES("looked up"), &done, &f->err));
    t = take_one(f);
    assert_true(done && t.decision.unreported &&
                t.decision.failures == 0); /* and so does a person who has it tried again */
}

/* On the store's clock, kept with the entry, and begun anew by a replay. */
static void f95_the_time_since_the_first_failure_is_kept(fixture *f)
{
    const once_request r = ask(f, "k");
    once_letter letter;
    assert_int_equal(do_claim(f, &r).failing_for_ms, -1);
    do_settle(f, &r, ONCE_RETRY);
    for (int i = 1; i <= 3; i++) {
        pass(f, DELAY);
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        const once_taken t = take_one(f);
        assert_int_equal(t.decision.failing_for_ms, i * DELAY);
        assert_false(t.decision.orphan);
        do_settle(f, &t.request, i == 2 ? ONCE_RELEASE : i == 1 ? ONCE_RETRY : ONCE_DEAD);
    }
    list_letters(f, &letter, 1);
    pass(f, DELAY);
    assert_true(do_replay(f, letter.id));
    assert_int_equal(take_one(f).decision.failing_for_ms, -1);
    pass(f, LEASE);
    once_taken t = take_one(f); /* its worker died: a failure that is counted now */
    assert_true(t.decision.orphan && t.decision.failures == 1);
    assert_int_equal(t.decision.failing_for_ms, 0);
    pass(f, LEASE);
    t = take_one(f);
    assert_true(t.decision.orphan && t.decision.failures == 2);
    assert_int_equal(t.decision.failing_for_ms, LEASE);
}

static void take_is_bounded_and_oldest_first(fixture *f)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f", "g"};
    for (int i = 0; i < 7; i++) {
        const once_request r = ask(f, keys[i]);
        do_accept(f, &r);
        pass(f, 1);
    }
    once_taken taken[3];
    for (size_t at = 0; at < 7;) {
        const size_t n = do_take(f, 3, taken);
        assert_int_equal(n, at == 6 ? 1 : 3);
        for (size_t i = 0; i < n; i++) assert_bytes(taken[i].request.key, keys[at + i]);
        at += n;
    }
    assert_int_equal(do_take(f, 3, taken), 0);
    assert_int_equal(do_take(f, 0, taken), 0);
}

const conform_test conform_waiting[] = {
    CONFORM_WITH(accept_then_take_gives_the_whole_message, ONCE_STORE_OWNS),
    CONFORM_WITH(accept_attaches_the_body_to_a_busy_entry, ONCE_STORE_OWNS),
    CONFORM_WITH(f73_an_entry_taken_by_a_dead_worker_is_taken_again, ONCE_STORE_OWNS),
    CONFORM_WITH(retry_waits_for_its_delay, ONCE_STORE_OWNS),
    CONFORM_WITH(f77_release_does_not_count, ONCE_STORE_OWNS),
    CONFORM_WITH(what_may_have_happened_is_told_to_the_next, ONCE_STORE_OWNS),
    CONFORM_WITH(f95_the_time_since_the_first_failure_is_kept, ONCE_STORE_OWNS),
    CONFORM_WITH(take_is_bounded_and_oldest_first, ONCE_STORE_OWNS),
    {0},
};
