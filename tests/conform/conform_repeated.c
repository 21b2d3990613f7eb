/* A call whose reply was lost is made again: it changes nothing more, and answers the same. */
#include "conform.h"

static void f76_claim_and_settle_repeated(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask(f, "k");
    once_decision first = do_claim(f, &r);
    assert_false(first.own);
    const once_decision again = do_claim(f, &r);
    first.own = true;                                  /* all that differs: it is known to be a repeated one */
    assert_memory_equal(&first, &again, sizeof first); /* never busy against itself */
    assert_int_equal(do_get(f, r.id).attempt, 1);
    assert_true(do_settle(f, &r, ONCE_RETRY));
    assert_true(do_settle(f, &r, ONCE_RETRY));
    assert_int_equal(do_get(f, r.id).failures, 1);
    pass(f, DELAY);
    do_claim(f, &other);
    assert_true(do_settle(f, &other, ONCE_DEAD));
    assert_true(do_settle(f, &other, ONCE_DEAD));
    assert_int_equal(list_letters(f, NULL, 0), 1);
    const once_request third = ask(f, "another");
    do_claim(f, &third);
    assert_true(do_settle(f, &third, ONCE_UNKNOWN));
    assert_true(do_settle(f, &third, ONCE_UNKNOWN));
    assert_true(do_settle(f, &third, ONCE_DONE));
    assert_true(do_settle(f, &third, ONCE_DONE));
    assert_false(do_settle(f, &third, ONCE_REJECTED)); /* that is not the same settlement */
    assert_state(f, third, DONE);
}

static void f76_accept_repeated(fixture *f)
{
    const once_request r = ask(f, "k");
    assert_answer(do_accept(f, &r), WAITING);
    assert_answer(do_accept(f, &r), WAITING);
    assert_int_equal(do_stats(f).waiting, 1);
    take_one(f);
    assert_answer(do_accept(f, &r), BUSY);
}

static void f76_take_repeated_returns_what_it_had_claimed(fixture *f)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < 5; i++) {
        const once_request r = ask(f, keys[i]);
        do_accept(f, &r);
    }
    const once_token token = {99, UINT64_MAX / 2 - 1}; /* the numbers of the batch cross the sign */
    once_taken first[3], again[5];
    size_t n;
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, false, LEASE, 3, NULL, first, &n, &f->arena,
                                     &f->err));
    assert_int_equal(n, 3);
    pass(f, 10);
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, true, LEASE, 5, NULL, again, &n, &f->arena,
                                     &f->err));
    assert_int_equal(n, 5); /* first what it had, then more */
    for (size_t i = 0; i < 5; i++) {
        assert_true(again[i].request.token.a == 99 && again[i].request.token.b == token.b + i);
        if (i < 3) assert_true(once_hash_equal(first[i].request.id, again[i].request.id));
        assert_int_equal(again[i].decision.attempt, 1);
    }
}

/* The reply came so late that the leases are over: still the same entries, once each, and theirs for a whole lease. */
static void f76_take_repeated_after_its_leases_ended(fixture *f)
{
    const once_request a = ask(f, "a"), b = ask(f, "b"), stranger = ask(f, "a");
    do_accept(f, &a);
    do_accept(f, &b);
    once_taken taken[4];
    size_t n;
    const once_token token = {99, 1};
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, false, LEASE, 4, NULL, taken, &n, &f->arena,
                                     &f->err));
    assert_int_equal(n, 2);
    pass(f, 2 * LEASE);
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, true, LEASE, 4, NULL, taken, &n, &f->arena,
                                     &f->err));
    assert_int_equal(n, 2);
    for (size_t i = 0; i < n; i++) {
        taken[i].request.remember_ms = REMEMBER;
        assert_int_equal(taken[i].decision.attempt, 1);
    }
    assert_answer(do_claim(f, &stranger), BUSY);
    for (size_t i = 0; i < n; i++) assert_true(do_settle(f, &taken[i].request, ONCE_DONE));
}

static void f76_bury_replay_and_forget_repeated(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DEAD);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_false(do_replay(f, letter.id));
    assert_state(f, r, WAITING);
    assert_true(do_forget(f, r.id));
    assert_false(do_forget(f, r.id));
}

const conform_test conform_repeated[] = {
    CONFORM(f76_claim_and_settle_repeated),
    CONFORM_WITH(f76_accept_repeated, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_take_repeated_returns_what_it_had_claimed, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_take_repeated_after_its_leases_ended, ONCE_STORE_OWNS),
    CONFORM(f76_bury_replay_and_forget_repeated),
    {0},
};
