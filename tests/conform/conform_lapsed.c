/* Attempts whose lease ended without an outcome: visible at once, recorded once, resolved. */
#include "conform.h"

static void assert_counts(fixture *f, uint64_t claimed, uint64_t waiting, uint64_t unknown)
{
    const once_stats stats = do_stats(f);
    assert_int_equal(stats.claimed, claimed);
    assert_int_equal(stats.waiting, waiting);
    assert_int_equal(stats.unknown, unknown);
    if (!(f->store->bits & ONCE_STORE_LIST)) return;
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), claimed);
    assert_int_equal(count_listed(f, ONCE_STATE_WAITING), waiting);
    assert_int_equal(count_listed(f, ONCE_STATE_UNKNOWN), unknown);
}

/* Nobody has come since their leases ended: they are what the next one to come would find. */
static void f99_an_attempt_that_died_is_seen_from_that_moment(fixture *f)
{
    once_request held = ask(f, "held"), held_body = ask(f, "held, with a body"), free = ask(f, "free"),
                 free_body = ask(f, "free, with a body");
    held.hold = held_body.hold = true;
    const once_request *all[] = {&held, &held_body, &free, &free_body};
    for (int i = 0; i < 4; i++) do_claim(f, all[i]);
    do_accept(f, &held_body);
    do_accept(f, &free_body);
    pass(f, LEASE - 1);
    assert_counts(f, 4, 0, 0);
    pass(f, 1);
    assert_counts(f, 0, 2, 2);
    assert_int_equal(do_stats(f).wait_ms, 0);
    for (int i = 0; i < 4; i++) {
        const once_entry e = do_get(f, all[i]->id);
        assert_int_equal(e.state, i < 2 ? ONCE_STATE_UNKNOWN : ONCE_STATE_WAITING);
        assert_true(e.changed_ms == TEST_EPOCH_MS + LEASE);
        assert_bytes(e.worker, f->store->who);
        assert_int_equal(e.attempt, 1);
        assert_int_equal(e.failures, 0);
    }
}

static size_t do_lapse(fixture *f, uint64_t except_run, size_t max, once_taken *out)
{
    size_t n;
    assert_ok(f, f->store->ops->lapse(f->store, f->scope.consumer, except_run, max, out, &n, &f->arena, &f->err));
    return n;
}

/* Somebody writes it down, whether or not the message comes again, and is told each once. */
static void f99_an_attempt_that_died_is_written_down_once(fixture *f)
{
    once_request held = ask(f, "held"), held_body = ask(f, "held, with a body"), own = ask(f, "own"),
                 free = ask(f, "free"), late = ask(f, "late");
    once_request lane = ask_lane(f, "in a lane", "lane", -1, -1);
    held.hold = held_body.hold = own.hold = late.hold = lane.hold = true;
    own.token = once_token_of_run(77000000, 5, 3);
    const once_request *all[] = {&held, &held_body, &own, &free, &lane};
    once_taken told[8];
    for (int i = 0; i < 5; i++) assert_answer(do_claim(f, all[i]), RUN);
    do_accept(f, &held_body);
    const once_request behind = ask_lane(f, "behind", "lane", -1, -1);
    do_accept(f, &behind);
    pass(f, 1);
    do_claim(f, &late);
    pass(f, LEASE - 2);
    assert_int_equal(do_lapse(f, 77000000, 8, told), 0);
    pass(f, 1);
    const size_t first = do_lapse(f, 77000000, 2, told), n = first + do_lapse(f, 77000000, 4, told + first);
    assert_true(first <= 2 &&
                n == 3); /* not its own, not the one that goes on by itself, not the one whose lease is not over */
    for (size_t i = 0; i < n; i++) {
        const once_request *r = &told[i].request;
        assert_true(once_hash_equal(r->id, held.id) || once_hash_equal(r->id, held_body.id) ||
                    once_hash_equal(r->id, lane.id));
        assert_true(told[i].decision.answer == ONCE_ANSWER_UNKNOWN && told[i].decision.lapsed &&
                    told[i].decision.attempt == 1);
        assert_non_null(
            memmem(told[i].decision.reason.data, told[i].decision.reason.len, f->store->who, strlen(f->store->who)));
        const once_entry e = do_get(f, r->id);
        assert_int_equal(e.state, ONCE_STATE_UNKNOWN);
        assert_int_equal(e.worker.len, 0);
        assert_non_null(memmem(e.history.data, e.history.len, "silent", 6));
        assert_int_equal(e.has_message, once_hash_equal(r->id, held_body.id));
    }
    assert_int_equal(do_lapse(f, 77000000, 8, told), 0);
    assert_counts(f, 1, 2, 4);
    assert_int_equal(do_take(f, 8, told), 0);    /* nothing comes before it in its lane */
    assert_true(do_settle(f, &held, ONCE_DONE)); /* whoever was late and comes says how it ended */
    assert_int_equal(do_lapse(f, 0, 8, told), 1);
    assert_true(once_hash_equal(told[0].request.id, own.id));
    pass(f, 1);
    assert_int_equal(do_lapse(f, 0, 8, told), 1);
    assert_true(once_hash_equal(told[0].request.id, late.id));
}

/* The same when its message comes again: the delivery that finds it is told, and no other. */
static void f99_a_delivery_that_finds_a_dead_attempt_is_told_once(fixture *f)
{
    for (int accepted = 0; accepted < 2; accepted++) {
        once_request r = ask(f, accepted ? "accepted" : "claimed"), second = r, third = r;
        once_taken none[1];
        r.hold = true;
        second.token = new_token(f);
        third.token = new_token(f);
        do_claim(f, &r);
        pass(f, LEASE);
        const once_decision d = accepted ? do_accept(f, &second) : do_claim(f, &second);
        assert_true(d.answer == ONCE_ANSWER_UNKNOWN && d.lapsed && d.attempt == 1 && d.reason.len > 0);
        const once_decision again = accepted ? do_accept(f, &third) : do_claim(f, &third);
        assert_true(again.answer == ONCE_ANSWER_UNKNOWN && !again.lapsed);
        assert_int_equal(do_lapse(f, 0, 1, none), 0);
    }
}

/* Its worker was only late: while nobody came, the claim is still its own. */
static void f99_whoever_comes_late_and_finds_nobody_goes_on(fixture *f)
{
    once_request r = ask(f, "k"), other = ask(f, "other");
    r.hold = other.hold = true;
    do_claim(f, &r);
    do_claim(f, &other);
    pass(f, LEASE + 5);
    assert_counts(f, 0, 0, 2);
    assert_true(do_extend(f, &r));
    assert_counts(f, 1, 0, 1);
    assert_true(do_settle(f, &r, ONCE_DONE));
    assert_true(do_settle(f, &other, ONCE_RETRY));
    assert_counts(f, 0, 1, 0);
}

static bool do_resolve(fixture *f, once_hash id, once_outcome outcome)
{
    bool done;
    assert_ok(f, f->store->ops->resolve(f->store, id, outcome, ONCE_BYTES("looked up"), &done, &f->err));
    return done;
}

static void f99_an_attempt_that_died_is_resolved(fixture *f)
{
    static const struct {
        const char *key;
        once_outcome outcome;
        once_state state;
    } rows[] = {{"done", ONCE_DONE, ONCE_STATE_DONE},
                {"retry", ONCE_RETRY, ONCE_STATE_WAITING},
                {"dead", ONCE_DEAD, ONCE_STATE_DEAD}};
    once_request early = ask(f, "early"), free = ask(f, "free");
    early.hold = true;
    do_claim(f, &early);
    assert_false(do_resolve(f, early.id, ONCE_DONE)); /* its worker is at it */
    do_claim(f, &free);
    for (int i = 0; i < 3; i++) {
        once_request r = ask(f, rows[i].key);
        r.hold = true;
        do_claim(f, &r);
        do_accept(f, &r);
        pass(f, LEASE);
        assert_true(do_resolve(f, r.id, rows[i].outcome));
        const once_entry e = do_get(f, r.id);
        assert_int_equal(e.state, rows[i].state);
        assert_int_equal(e.worker.len, 0);
        assert_true(e.history.len > 0); /* attempt 1 ended without reporting an outcome */
        assert_non_null(memmem(e.history.data, e.history.len, "silent", 6));
        if (rows[i].outcome != ONCE_DEAD) assert_false(do_settle(f, &r, ONCE_REJECTED));
    }
    assert_false(do_resolve(f, free.id, ONCE_DONE)); /* it waits, and is not unknown */
    assert_true(do_resolve(f, early.id, ONCE_DONE));
}

const conform_test conform_lapsed[] = {
    CONFORM_WITH(f99_an_attempt_that_died_is_seen_from_that_moment, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_an_attempt_that_died_is_written_down_once, ONCE_STORE_OWNS | ONCE_STORE_LANES),
    CONFORM_WITH(f99_a_delivery_that_finds_a_dead_attempt_is_told_once, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_whoever_comes_late_and_finds_nobody_goes_on, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_an_attempt_that_died_is_resolved, ONCE_STORE_OWNS),
    {0},
};
