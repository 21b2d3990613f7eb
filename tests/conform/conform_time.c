/* Time: leases, clocks that are off or jump, expiry, sweeping. */
#include "conform.h"

static void f16_a_claim_always_has_a_deadline(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    assert_true(do_get(f, r.id).due_ms == TEST_EPOCH_MS + LEASE);
    assert_int_equal(do_stats(f).wait_ms, LEASE);
    do_settle(f, &r, ONCE_RELEASE);
    pass(f, DELAY);
    const once_taken t = take_one(f);
    assert_true(do_get(f, t.request.id).due_ms == TEST_EPOCH_MS + DELAY + LEASE);
}

/* No time left is no time left, and not "none was given": a lease that ends now has ended, a delay of 0 is over at
 * once. */
static void f17_nothing_left_is_not_unset(fixture *f)
{
    once_request r = ask(f, "k");
    const once_request other = ask(f, "k"), third = ask(f, "k");
    r.lease_ms = 1;
    do_claim(f, &r);
    pass(f, 1);
    assert_answer(do_claim(f, &other), RUN);
    const once_message message = message_of(&other);
    const once_settlement now = {.request = &other, .outcome = ONCE_RETRY, .message = &message, .delay_ms = 0};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &now, 1, &applied, &f->err));
    assert_true(applied);
    assert_int_equal(do_stats(f).wait_ms, 0);
    const once_decision d = do_accept(f, &third);
    assert_answer(d, LATER);
    assert_int_equal(d.wait_ms, 0);
    take_one(f);
    once_request sent = ask(f, "sent at 0");
    for (sent.sent_ms = 0; sent.sent_ms >= -1; sent.sent_ms--) assert_answer(do_claim(f, &sent), TOO_OLD);
}

/* The lease of a claim made before the wall clock jumped: neither early nor eternal. */
static void check_lease_over_a_jump(fixture *f, const char *key, int64_t jump_ms)
{
    const once_request r = ask(f, key), other = ask(f, key);
    assert_answer(do_claim(f, &r), RUN);
    test_env_jump(&f->worlds[0], jump_ms);
    assert_answer(do_claim(f, &other), BUSY);
    pass(f, LEASE * 9 / 10);
    assert_answer(do_claim(f, &other), BUSY);
    pass(f, LEASE / 4);
    assert_answer(do_claim(f, &other), RUN);
    assert_true(do_settle(f, &other, ONCE_DONE));
}

static void f19_wall_clock_jumps_neither_end_nor_lengthen_leases(fixture *f)
{
    const int64_t hour = 3600 * 1000, year = 365 * 24 * hour;
    check_lease_over_a_jump(f, "a year ahead", year);
    check_lease_over_a_jump(f, "and back", -year);
    check_lease_over_a_jump(f, "an hour back", -hour);
    check_lease_over_a_jump(f, "a year back", -year);
    const once_request r = ask(f, "a year ahead"); /* and what was settled is remembered */
    assert_answer(do_claim(f, &r), DUPLICATE);
    assert_int_equal(sweep_all(f, 10), 0);
    if (!(f->store->bits & ONCE_STORE_DURABLE)) return;
    const once_request before = ask(f, "over a restart"), after = ask(f, "over a restart");
    do_claim(f, &before);
    test_env_jump(&f->worlds[0], 3 * year);
    reopen(f);
    assert_answer(do_claim(f, &after), BUSY);
    test_env_jump(&f->worlds[0], -5 * year);
    reopen(f);
    pass(f, LEASE * 9 / 8);
    assert_answer(do_claim(f, &after), RUN);
}

static void f20_workers_skewed_by_ten_minutes(fixture *f)
{
    test_env_jump(&f->worlds[1], 600 * 1000);
    const once_request first = ask(f, "k"), second = ask(f, "k"), third = ask(f, "k");
    do_claim(f, &first);
    use(f, 1);
    assert_answer(do_claim(f, &second), BUSY); /* not ten minutes later */
    pass(f, LEASE * 9 / 8);
    assert_answer(do_claim(f, &second), RUN);
    use(f, 0);
    assert_answer(do_claim(f, &third), BUSY);
    assert_false(do_settle(f, &first, ONCE_DONE));
    pass(f, LEASE * 9 / 8);
    assert_answer(do_claim(f, &third), RUN); /* not ten minutes earlier */
}

static void f21_extreme_leases_and_horizons(fixture *f)
{
    static const int64_t extremes[] = {
        INT64_MAX, INT64_MAX - 1, INT64_MAX - TEST_EPOCH_MS, INT64_MAX - TEST_EPOCH_MS + 1, INT64_MAX / 10, 1};
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < 6; i++) {
        once_request r = ask(f, keys[i]);
        const once_request other = ask(f, keys[i]);
        r.lease_ms = r.remember_ms = extremes[i];
        assert_answer(do_claim(f, &r), RUN);
        assert_answer(do_claim(f, &other), BUSY);
        assert_true(do_extend(f, &r));
        assert_true(do_get(f, r.id).due_ms > TEST_EPOCH_MS);
        assert_true(do_stats(f).wait_ms > 0);
        assert_true(do_settle(f, &r, ONCE_DONE));
        assert_true(do_get(f, r.id).expires_ms > TEST_EPOCH_MS);
        assert_answer(do_claim(f, &other), DUPLICATE);
    }
    assert_int_equal(sweep_all(f, 10), 0);
    pass(f, INT64_C(100) * 365 * 24 * 3600 * 1000);
    assert_int_equal(sweep_all(f, 10), 1);
}

static void f23_expired_but_not_yet_deleted_is_absent(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask(f, "k");
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DONE);
    pass(f, REMEMBER - 1);
    assert_answer(do_claim(f, &other), DUPLICATE);
    pass(f, 1);
    assert_state(f, r, ABSENT);
    assert_int_equal(do_get(f, r.id).result.len, 0);
    if (f->store->bits & ONCE_STORE_LIST) assert_int_equal(count_listed(f, ONCE_STATE_DONE), 0);
    assert_false(do_forget(f, r.id));
    assert_false(do_settle(f, &r, ONCE_DONE));
    const once_decision d = do_claim(f, &other);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 1);
    assert_true(do_settle(f, &other, ONCE_DONE));
    sweep_all(f, 10); /* the new life is not the old one */
    const once_request third = ask(f, "k");
    assert_answer(do_claim(f, &third), DUPLICATE);
}

static void f71_a_message_that_comes_back_after_expiry_is_too_old(fixture *f)
{
    once_request r = ask(f, "k");
    r.sent_ms = TEST_EPOCH_MS;
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DONE);
    for (int swept = 0; swept < 2; swept++) {
        pass(f, REMEMBER); /* at first the very moment of its expiry */
        r.token = new_token(f);
        assert_answer(do_claim(f, &r), TOO_OLD);
        assert_answer(do_accept(f, &r), TOO_OLD);
        assert_state(f, r, ABSENT);
        sweep_all(f, 10);
    }
    r.remember_ms = ONCE_FOREVER;
    assert_answer(do_claim(f, &r), RUN);
}

/* The sender's clock is ahead. Whoever resolves it has no body that would say so. */
static void f71_an_unknown_one_from_the_future_is_remembered_until_it_is_too_old(fixture *f)
{
    bool done = false;
    once_request r = ask(f, "k");
    r.sent_ms = TEST_EPOCH_MS + REMEMBER / 2;
    r.hold = true;
    assert_answer(do_claim(f, &r), RUN);
    pass(f, LEASE);
    assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_DONE, ONCE_BYTES("seen"), &done, &f->err));
    assert_true(done);
    pass(f, REMEMBER);
    sweep_all(f, 10);
    r.token = new_token(f);
    assert_answer(do_claim(f, &r), DUPLICATE);
    pass(f, REMEMBER / 2);
    r.token = new_token(f);
    assert_answer(do_claim(f, &r), TOO_OLD);
}

static void f12_sweep_in_bounded_steps_drops_only_what_expired(fixture *f)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    once_request r[10];
    for (int i = 0; i < 10; i++) {
        r[i] = ask(f, keys[i]);
        r[i].remember_ms = i < 7 ? 1000 : i == 7 ? ONCE_FOREVER : 5000;
        do_claim(f, &r[i]);
        do_settle(f, &r[i], ONCE_DONE);
    }
    const once_request waiting = ask(f, "waiting"), unknown = ask(f, "unknown"), dead = ask(f, "dead"),
                       claimed = ask(f, "claimed");
    do_claim(f, &waiting), do_settle(f, &waiting, ONCE_RETRY);
    do_claim(f, &unknown), do_settle(f, &unknown, ONCE_UNKNOWN);
    do_claim(f, &dead), do_settle(f, &dead, ONCE_DEAD);
    do_claim(f, &claimed);
    pass(f, 999);
    assert_int_equal(sweep_all(f, 3), 0);
    pass(f, 1);
    assert_true(sweep_all(f, 3) >= 7); /* how many fit into one step is the driver's */
    assert_int_equal(sweep_all(f, 3), 0);
    pass(f, INT64_C(50) * 365 * 24 * 3600 * 1000);
    assert_true(sweep_all(f, 1) >= 2);
    assert_state(f, r[7], DONE);
    assert_state(f, waiting, WAITING);
    assert_state(f, unknown, UNKNOWN);
    assert_state(f, dead, DEAD);
    assert_state(f, claimed, WAITING); /* its lease is over */
}

const conform_test conform_time[] = {
    CONFORM_WITH(f16_a_claim_always_has_a_deadline, ONCE_STORE_OWNS),
    CONFORM_WITH(f17_nothing_left_is_not_unset, ONCE_STORE_OWNS),
    CONFORM_WITH(f19_wall_clock_jumps_neither_end_nor_lengthen_leases, ONCE_STORE_CLOCK),
    CONFORM_WITH(f20_workers_skewed_by_ten_minutes, ONCE_STORE_CLOCK | ONCE_STORE_SHARED),
    CONFORM(f21_extreme_leases_and_horizons),
    CONFORM(f23_expired_but_not_yet_deleted_is_absent),
    CONFORM(f71_a_message_that_comes_back_after_expiry_is_too_old),
    CONFORM(f71_an_unknown_one_from_the_future_is_remembered_until_it_is_too_old),
    CONFORM(f12_sweep_in_bounded_steps_drops_only_what_expired),
    {0},
};
