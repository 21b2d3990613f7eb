/* Claims: who may run a key, for how long, and how its outcome is written. */
#include "conform.h"

static void a_claim_is_recorded_in_full(fixture *f)
{
    once_request r = ask(f, "order-1");
    r.hold = true;
    const once_decision d = do_claim(f, &r);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 1);
    assert_int_equal(d.failures, 0);
    assert_false(d.unreported || d.gap_over);
    const once_entry e = do_get(f, r.id);
    assert_int_equal(e.state, ONCE_STATE_CLAIMED);
    assert_true(once_hash_equal(e.token, r.token) && once_hash_equal(e.fingerprint, r.fingerprint));
    assert_int_equal(e.attempt, 1);
    assert_int_equal(e.failures, 0);
    assert_true(e.hold);
    assert_false(e.has_message);
    assert_int_equal(e.run, 7);
    assert_true(e.seen_ms == TEST_EPOCH_MS && e.changed_ms == TEST_EPOCH_MS && e.due_ms == TEST_EPOCH_MS + LEASE);
    assert_bytes(e.scope.consumer, "payments");
    assert_bytes(e.scope.operation, "charge");
    assert_int_equal(e.scope.tenant.len, 0);
    assert_bytes(e.key, "order-1");
    assert_bytes(e.at.place, "payments.ndjson");
    assert_bytes(e.at.point, "17");
}

static void f07_every_final_outcome_suppresses_with_its_result(fixture *f)
{
    static const char *const keys[] = {"done", "already", "rejected", "stale"};
    for (int outcome = ONCE_DONE; outcome <= ONCE_STALE; outcome++) {
        const once_request r = ask(f, keys[outcome]);
        assert_answer(do_claim(f, &r), RUN);
        assert_true(do_settle(f, &r, (once_outcome)outcome));
        const once_request again = ask(f, keys[outcome]);
        once_decision d = do_claim(f, &again);
        assert_answer(d, DUPLICATE);
        assert_int_equal(d.outcome, outcome);
        assert_bytes(d.result, "result");
        d = do_accept(f, &again);
        assert_answer(d, DUPLICATE);
        assert_int_equal(d.outcome, outcome);
        const once_entry e = do_get(f, r.id);
        assert_string_equal(once_state_name(e.state), keys[outcome]);
        assert_true(e.expires_ms == TEST_EPOCH_MS + REMEMBER);
        assert_bytes(e.reason, "reason");
        assert_false(e.has_message);
    }
}

static void a_live_claim_is_busy_and_an_orphan_runs_again(fixture *f)
{
    const once_request first = ask(f, "k"), second = ask(f, "k");
    assert_answer(do_claim(f, &first), RUN);
    pass(f, LEASE - 1);
    once_decision d = do_claim(f, &second);
    assert_answer(d, BUSY);
    assert_int_equal(d.wait_ms, 1);
    pass(f, 1);
    d = do_claim(f, &second);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 2);
    assert_int_equal(d.failures, 1);
    assert_true(d.unreported);
}

static void an_orphan_that_is_held_becomes_unknown(fixture *f)
{
    once_request r = ask(f, "k"), second = ask(f, "k");
    r.hold = true;
    assert_answer(do_claim(f, &r), RUN);
    pass(f, LEASE);
    assert_answer(do_claim(f, &second), UNKNOWN);
    assert_state(f, r, UNKNOWN);
    assert_answer(do_accept(f, &second), UNKNOWN);
    assert_true(do_get(f, r.id).has_message);
    assert_true(do_settle(f, &r, ONCE_ALREADY)); /* looked up under the old token */
    assert_state(f, r, ALREADY);
}

static void f04_unknown_stays_until_it_is_resolved(fixture *f)
{
    static const once_outcome ends[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    static const char *const keys[] = {"done", "waiting", "dead"};
    for (int i = 0; i < 3; i++) {
        const once_request r = ask(f, keys[i]), second = ask(f, keys[i]);
        do_claim(f, &r);
        assert_true(do_settle(f, &r, ONCE_UNKNOWN));
        pass(f, 10 * REMEMBER); /* never dropped by time */
        sweep_all(f, 100);
        assert_answer(do_claim(f, &second), UNKNOWN);
        assert_true(do_settle(f, &r, ends[i]));
        assert_string_equal(once_state_name(do_get(f, r.id).state), keys[i]);
    }
}

static void f14_a_zombie_neither_settles_nor_extends(fixture *f)
{
    const once_request zombie = ask(f, "k"), heir = ask(f, "k");
    do_claim(f, &zombie);
    pass(f, LEASE);
    do_claim(f, &heir);
    for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++)
        assert_false(do_settle(f, &zombie, (once_outcome)outcome));
    assert_false(do_extend(f, &zombie));
    assert_answer(do_claim(f, &zombie), BUSY);
    assert_true(do_extend(f, &heir));
    assert_true(do_settle(f, &heir, ONCE_DONE));
    assert_false(do_settle(f, &zombie, ONCE_DONE));
    assert_int_equal(list_letters(f, NULL, 0), 0);
}

static void f74_a_zombie_of_an_entry_made_anew_is_refused(fixture *f)
{
    const once_request zombie = ask(f, "forgotten"), heir = ask(f, "forgotten");
    do_claim(f, &zombie);
    assert_true(do_forget(f, zombie.id));
    assert_false(do_settle(f, &zombie, ONCE_DONE));
    assert_false(do_extend(f, &zombie));
    const once_decision d = do_claim(f, &heir);
    assert_answer(d, RUN);
    assert_int_equal(d.attempt, 1); /* the fence is the token: the attempt begins anew */
    assert_false(do_settle(f, &zombie, ONCE_DONE));
    assert_false(do_extend(f, &zombie));
    assert_true(do_settle(f, &heir, ONCE_REJECTED));

    const once_request old = ask(f, "expired"), fresh = ask(f, "expired");
    do_claim(f, &old);
    do_settle(f, &old, ONCE_DONE);
    pass(f, REMEMBER);
    assert_false(do_settle(f, &old, ONCE_DONE));
    do_claim(f, &fresh);
    assert_false(do_settle(f, &old, ONCE_DONE));
    assert_true(do_settle(f, &fresh, ONCE_DONE));
}

/* Their leases end in the same millisecond, but they were claimed by two transactions, and so may be kept apart; one
 * settles both. */
static void claims_of_one_moment_are_settled_together(fixture *f)
{
    const once_request first = ask(f, "1"), second = ask(f, "2"), third = ask(f, "3"), fourth = ask(f, "4");
    const once_request *const pairs[][2] = {{&first, &second}, {&third, &fourth}};
    for (int i = 0; i < 2; i++) {
        once_decision d[2];
        assert_ok(f, f->store->ops->claim(f->store, pairs[i], 2, d, &f->arena, &f->err));
        assert_answer(d[0], RUN);
        assert_answer(d[1], RUN);
    }
    assert_int_equal(do_get(f, first.id).due_ms, do_get(f, fourth.id).due_ms);
    const once_settlement both[] = {{.request = &first, .outcome = ONCE_DONE},
                                    {.request = &third, .outcome = ONCE_DONE}};
    bool applied[2];
    assert_ok(f, f->store->ops->settle(f->store, both, 2, applied, &f->err));
    assert_true(applied[0] && applied[1]);
    assert_int_equal(do_stats(f).claimed, 2);
    if (f->store->bits & ONCE_STORE_LIST) assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 2);
    assert_true(do_settle(f, &second, ONCE_DONE));
    assert_int_equal(do_stats(f).claimed, 1);
    assert_true(do_settle(f, &fourth, ONCE_DONE));
    assert_int_equal(do_stats(f).claimed, 0);
}

static void extend_moves_the_end_of_the_lease(fixture *f)
{
    once_request r = ask(f, "k");
    const once_request other = ask(f, "k");
    do_claim(f, &r);
    for (int i = 0; i < 5; i++) {
        pass(f, LEASE - 1);
        assert_true(do_extend(f, &r));
        assert_answer(do_claim(f, &other), BUSY);
    }
    r.lease_ms = 5;
    assert_true(do_extend(f, &r)); /* also to an earlier end */
    pass(f, 5);
    assert_answer(do_claim(f, &other), RUN);
    assert_false(do_extend(f, &r));
    const once_request nobody = ask(f, "never seen");
    assert_false(do_extend(f, &nobody));
    assert_false(do_settle(f, &nobody, ONCE_DONE));
    assert_state(f, nobody, ABSENT);
}

static void f79_one_key_twice_in_one_batch(fixture *f)
{
    const once_request a = ask(f, "k"), b = ask(f, "k"), c = ask(f, "other"), d = ask(f, "k");
    const once_request *const requests[] = {&a, &b, &c, &d};
    once_decision out[4];
    assert_ok(f, f->store->ops->claim(f->store, requests, 4, out, &f->arena, &f->err));
    assert_answer(out[0], RUN); /* the caller's order is kept */
    assert_answer(out[1], BUSY);
    assert_answer(out[2], RUN);
    assert_answer(out[3], BUSY);
    const once_settlement settlements[] = {{.request = &a, .outcome = ONCE_DONE},
                                           {.request = &b, .outcome = ONCE_DONE},
                                           {.request = &a, .outcome = ONCE_DONE},
                                           {.request = &c, .outcome = ONCE_RETRY}};
    bool applied[4];
    assert_ok(f, f->store->ops->settle(f->store, settlements, 4, applied, &f->err));
    assert_true(applied[0] && !applied[1] && applied[2] && applied[3]);
    assert_ok(f, f->store->ops->claim(f->store, &requests[1], 1, out, &f->arena, &f->err));
    assert_answer(out[0], DUPLICATE);

    const once_request e = ask(f, "e"), g = ask(f, "e");
    const once_request *const accepted[] = {&e, &g};
    const once_message message = message_of(&e), *const messages[] = {&message, &message};
    assert_ok(f, f->store->ops->accept(f->store, accepted, messages, 2, out, &f->arena, &f->err));
    assert_answer(out[0], WAITING);
    assert_answer(out[1], LATER);
    assert_int_equal(do_stats(f).waiting, 2);
}

static void batches_of_a_thousand(fixture *f)
{
    enum { N = 1000 };
    static char keys[N][8];
    static once_request r[N];
    static const once_request *requests[N];
    static const once_message *messages[N];
    static once_decision decisions[N];
    static once_settlement settlements[N];
    static bool flags[N];
    for (int i = 0; i < N; i++) {
        const int number = i == 700 ? 300 : i; /* one key twice, far apart */
        keys[i][0] = (char)('a' + number / 100);
        keys[i][1] = (char)('a' + number / 10 % 10);
        keys[i][2] = (char)('a' + number % 10);
        r[i] = ask(f, keys[i]);
        requests[i] = &r[i];
        settlements[i] =
            (once_settlement){.request = &r[i], .outcome = i % 3 ? ONCE_DONE : ONCE_RELEASE, .result = text(keys[i])};
    }
    const once_message message = message_of(&r[0]);
    for (int i = 0; i < N; i++) messages[i] = &message;
    assert_ok(f, f->store->ops->claim(f->store, requests, N, decisions, &f->arena, &f->err));
    for (int i = 0; i < N; i++)
        if (i == 700) assert_answer(decisions[i], BUSY);
        else assert_answer(decisions[i], RUN);
    assert_ok(f, f->store->ops->extend(f->store, requests, N, flags, &f->err));
    for (int i = 0; i < N; i++) assert_int_equal(flags[i], i != 700);
    for (int i = 0; i < N; i++)
        if (settlements[i].outcome == ONCE_RELEASE) settlements[i].message = &message;
    assert_ok(f, f->store->ops->settle(f->store, settlements, N, flags, &f->err));
    for (int i = 0; i < N; i++) assert_int_equal(flags[i], i != 700);
    for (int i = 0; i < N; i++) r[i].token = new_token(f);
    assert_ok(f, f->store->ops->accept(f->store, requests, messages, N, decisions, &f->arena, &f->err));
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0 || i == 700) {
            assert_answer(decisions[i], LATER); /* 300 was released */
        } else {
            assert_answer(decisions[i], DUPLICATE);
            assert_bytes(decisions[i].result, keys[i]);
        }
    }
    static once_taken taken[N];
    assert_int_equal(do_take(f, N, taken), 334);
    assert_int_equal(do_stats(f).claimed, 334);
    pass(f, REMEMBER);
    assert_true(sweep_all(f, 100) >= 665);
    assert_int_equal(sweep_all(f, 100), 0);
    once_decision none;
    assert_ok(f, f->store->ops->claim(f->store, requests, 0, &none, &f->arena, &f->err));
}

static void get_of_nothing_is_absent(fixture *f)
{
    const once_entry e = do_get(f, (once_hash){1, 2});
    assert_int_equal(e.state, ONCE_STATE_ABSENT);
    assert_false(do_forget(f, (once_hash){1, 2}));
    assert_false(do_replay(f, 12345));
}

const conform_test conform_claims[] = {
    CONFORM(a_claim_is_recorded_in_full),
    CONFORM(f07_every_final_outcome_suppresses_with_its_result),
    CONFORM(a_live_claim_is_busy_and_an_orphan_runs_again),
    CONFORM(an_orphan_that_is_held_becomes_unknown),
    CONFORM(f04_unknown_stays_until_it_is_resolved),
    CONFORM(f14_a_zombie_neither_settles_nor_extends),
    CONFORM(f74_a_zombie_of_an_entry_made_anew_is_refused),
    CONFORM(claims_of_one_moment_are_settled_together),
    CONFORM(extend_moves_the_end_of_the_lease),
    CONFORM_WITH(f79_one_key_twice_in_one_batch, ONCE_STORE_OWNS),
    CONFORM_WITH(batches_of_a_thousand, ONCE_STORE_OWNS),
    CONFORM(get_of_nothing_is_absent),
    {0},
};
