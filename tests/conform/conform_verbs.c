/* The verbs, one key at a time and in batches: answers, fences, counts, times, bytes. */
#include <stdlib.h>

#include "conform.h"

#include <stdio.h>

/* --- claim and settle --- */

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

static void f26_same_key_other_fingerprint_is_a_conflict(fixture *f)
{
    const once_request r = ask(f, "k");
    once_request other = ask(f, "k");
    other.fingerprint = (once_hash){3, 4};
    do_claim(f, &r);
    assert_answer(do_claim(f, &other), CONFLICT);
    assert_answer(do_accept(f, &other), CONFLICT);
    do_settle(f, &r, ONCE_DONE);
    const once_decision d = do_claim(f, &other);
    assert_answer(d, CONFLICT);
    assert_int_equal(d.result.len, 0);
    other.fingerprint = (once_hash){0};
    assert_answer(do_claim(f, &other), DUPLICATE);
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

/* --- lost replies: every verb once more --- */

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
    assert_ok(f,
              f->store->ops->take(f->store, f->scope.consumer, token, false, LEASE, 3, first, &n, &f->arena, &f->err));
    assert_int_equal(n, 3);
    pass(f, 10);
    assert_ok(f,
              f->store->ops->take(f->store, f->scope.consumer, token, true, LEASE, 5, again, &n, &f->arena, &f->err));
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
    assert_ok(f,
              f->store->ops->take(f->store, f->scope.consumer, token, false, LEASE, 4, taken, &n, &f->arena, &f->err));
    assert_int_equal(n, 2);
    pass(f, 2 * LEASE);
    assert_ok(f,
              f->store->ops->take(f->store, f->scope.consumer, token, true, LEASE, 4, taken, &n, &f->arena, &f->err));
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

/* --- the store owns bodies --- */

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
    assert_false(d.unreported || d.maybe);
    assert_true(do_settle_maybe(f, &r, ONCE_RETRY));
    pass(f, DELAY);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    d = do_claim(f, &claimed);
    assert_true(d.unreported && d.maybe && d.failures == 1 && d.attempt == 2);
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
    assert_true(!t.decision.unreported && t.decision.maybe &&
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
    assert_true(!t.decision.unreported && t.decision.maybe);
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

/* --- dead letters --- */

static void f31_poison_is_bounded_and_leaves_one_letter(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_DEAD));
    for (int i = 0; i < 5; i++) {
        const once_request again = ask(f, "k");
        assert_answer(do_claim(f, &again), DEAD);
        assert_answer(do_accept(f, &again), DEAD);
        pass(f, REMEMBER);
        sweep_all(f, 10);
    }
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_int_equal(do_stats(f).dead, 1);
    assert_true(once_hash_equal(letter.entry, r.id));
    assert_int_equal(letter.kind, ONCE_ANSWER_DEAD);
    assert_int_equal(letter.attempt, 1);
    assert_bytes(letter.key, "k");
    assert_bytes(letter.reason, "reason");
    assert_int_equal(letter.message.body.len, 10);
    assert_bytes(letter.message.at.point, "17");
    assert_true(letter.seen_ms == TEST_EPOCH_MS && letter.buried_ms == TEST_EPOCH_MS);
    assert_false(do_get(f, r.id).has_message);
}

static void the_body_in_the_store_goes_into_the_letter(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    const once_taken t = take_one(f);
    const once_settlement dead = {.request = &t.request, .outcome = ONCE_DEAD, .reason = ONCE_BYTES("broken")};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &dead, 1, &applied, &f->err));
    assert_true(applied);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_int_equal(letter.message.body.len, 10);
    assert_bytes(letter.reason, "broken");
}

static void replayed_goes_on_with_its_attempt_and_a_new_budget(fixture *f)
{
    const once_request r = ask(f, "k"), again = ask(f, "k");
    do_claim(f, &r);
    do_settle(f, &r, ONCE_RETRY);
    pass(f, DELAY);
    do_claim(f, &again);
    do_settle(f, &again, ONCE_DEAD);
    once_letter letter;
    list_letters(f, &letter, 1);
    assert_true(do_replay(f, letter.id));
    assert_int_equal(list_letters(f, NULL, 0), 0);
    assert_int_equal(do_stats(f).dead, 0);
    const once_taken t = take_one(f);
    assert_int_equal(t.decision.attempt, 3);
    assert_int_equal(t.decision.failures, 0);
    assert_int_equal(t.message.body.len, 10);
    do_settle(f, &t.request, ONCE_DEAD); /* and may die again, with one letter again */
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_false(do_replay(f, letter.id + 1000));
}

static void f34_replaying_a_completed_key_is_suppressed(fixture *f)
{
    const once_request r = ask(f, "k"), again = ask(f, "k");
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DEAD);
    do_forget(f, r.id);
    do_claim(f, &again);
    do_settle(f, &again, ONCE_DONE);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_state(f, r, DONE);
    assert_int_equal(do_stats(f).waiting, 0);
}

static void a_letter_whose_key_was_forgotten_is_not_lost_by_replaying_it(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DEAD);
    assert_true(do_forget(f, r.id));
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    bool found;
    assert_int_equal(once_status_class(f->store->ops->replay_letter(f->store, letter.id, &found, &f->err)),
                     ONCE_CLASS_USAGE);
    assert_int_equal(list_letters(f, NULL, 0), 1);
}

static void forgotten_and_dead_anew_keeps_both_bodies(fixture *f)
{
    for (int i = 0; i < 2; i++) {
        const once_request r = ask(f, "k");
        assert_answer(do_claim(f, &r), RUN);
        do_settle(f, &r, ONCE_DEAD);
        do_forget(f, r.id);
    }
    assert_int_equal(list_letters(f, NULL, 0), 2);
}

static void die(fixture *f, const once_request *r)
{
    assert_answer(do_claim(f, r), RUN);
    assert_true(do_settle(f, r, ONCE_DEAD));
}

static void a_discarded_letter_is_gone_and_its_key_rejected(fixture *f)
{
    const once_request r = ask(f, "k"), again = ask(f, "k");
    die(f, &r);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    bool found;
    assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
    assert_true(found);
    assert_int_equal(list_letters(f, NULL, 0), 0);
    assert_state(f, r, REJECTED);
    assert_answer(do_claim(f, &again), DUPLICATE);
    assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
    assert_false(found);
    pass(f, REMEMBER);
    assert_state(f, r, ABSENT); /* it is remembered as long as others */
}

static void discarding_an_old_letter_leaves_the_newer_death_alone(fixture *f)
{
    const once_request r = ask(f, "k"), anew = ask(f, "k");
    die(f, &r);
    do_forget(f, r.id);
    pass(f, 5);
    die(f, &anew);
    once_letter letters[2];
    assert_int_equal(list_letters(f, letters, 2), 2);
    bool found;
    assert_ok(f, f->store->ops->discard(f->store, letters[0].id, REMEMBER, &found, &f->err));
    assert_true(found);
    assert_state(f, r, DEAD);
    assert_int_equal(list_letters(f, NULL, 0), 1);
}

static void a_letter_is_read_and_dropped_by_its_id(fixture *f)
{
    const once_request r = ask(f, "k");
    die(f, &r);
    once_letter letter, read;
    list_letters(f, &letter, 1);
    bool found;
    assert_ok(f, f->store->ops->letter_get(f->store, letter.id, &read, &found, &f->arena, &f->err));
    assert_true(found && read.id == letter.id && read.message.body.len == 10 && once_hash_equal(read.entry, r.id));
    const once_entry entry = do_get(f, r.id);
    assert_true(once__letter_is_of(&read, &entry));
    do_begin(f);
    assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    assert_true(found);
    do_rollback(f);
    assert_int_equal(list_letters(f, NULL, 0), 1);
    assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    assert_true(found);
    assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    assert_false(found);
    assert_ok(f, f->store->ops->letter_get(f->store, letter.id, &read, &found, &f->arena, &f->err));
    assert_false(found);
}

static bool first_id(void *user, const once_letter *letter)
{
    *(uint64_t *)user = letter->id;
    return false;
}

static void letters_go_on_after_an_id(fixture *f)
{
    const char *const keys[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        const once_request r = ask(f, keys[i]);
        die(f, &r);
    }
    once_letter letters[3];
    assert_int_equal(list_letters(f, letters, 3), 3);
    for (int i = 0; i < 3; i++) {
        uint64_t next = 0;
        assert_ok(f, f->store->ops->letters(f->store, f->scope.consumer, letters[i].id, first_id, &next, &f->err));
        assert_int_equal(next, i < 2 ? letters[i + 1].id : 0);
    }
}

static void an_unknown_one_is_resolved(fixture *f)
{
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_RETRY, ONCE_DEAD};
    static const once_state states[] = {ONCE_STATE_DONE, ONCE_STATE_WAITING, ONCE_STATE_DEAD};
    const char *const keys[] = {"done", "retry", "dead"};
    for (int i = 0; i < 3; i++) {
        const once_request r = ask(f, keys[i]);
        bool done;
        assert_ok(f, f->store->ops->resolve(f->store, r.id, outcomes[i], ONCE_BYTES("seen"), &done, &f->err));
        assert_false(done); /* nothing is known of it */
        do_claim(f, &r);
        do_settle(f, &r, ONCE_UNKNOWN);
        assert_ok(f, f->store->ops->resolve(f->store, r.id, outcomes[i], ONCE_BYTES("seen"), &done, &f->err));
        assert_true(done);
        assert_int_equal(do_get(f, r.id).state, states[i]);
        assert_bytes(do_get(f, r.id).reason, "seen");
        assert_ok(f, f->store->ops->resolve(f->store, r.id, outcomes[i], ONCE_BYTES("seen"), &done, &f->err));
        assert_false(done);
    }
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_bytes(letter.key, "dead");
    assert_int_equal(letter.message.body.len, 10);
    const once_taken t = take_one(f);
    assert_int_equal(t.decision.attempt, 2);
    assert_int_equal(t.decision.failures, 0);
}

/* Kept with the letter, whatever the last attempt said of itself. */
static void f81_a_letter_says_whether_its_effect_may_have_happened(fixture *f)
{
    for (int maybe = 0; maybe < 2; maybe++) {
        const once_request r = ask(f, maybe ? "maybe" : "sure");
        const once_message message = message_of(&r);
        once_letter letters[2];
        bool applied;
        do_claim(f, &r);
        const once_settlement dies = {.request = &r,
                                      .outcome = ONCE_DEAD,
                                      .reason = ONCE_BYTES("no"),
                                      .message = &message,
                                      .failed = true,
                                      .maybe = maybe};
        assert_ok(f, f->store->ops->settle(f->store, &dies, 1, &applied, &f->err));
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        assert_int_equal(list_letters(f, letters, 2), maybe + 1);
        assert_int_equal(letters[maybe].maybe, maybe);
        assert_int_equal(letters[maybe].kind, ONCE_ANSWER_DEAD);
        assert_false(letters[maybe].old_key);
    }
}

static void f34_a_finished_key_runs_again_only_when_forced(fixture *f)
{
    once_request r = ask(f, "k"), force = ask(f, "k");
    const once_message message = message_of(&force);
    bool done;
    assert_ok(f, f->store->ops->revive(f->store, &force, &message, &done, &f->err));
    assert_false(done); /* there is nothing to force */
    do_claim(f, &r);
    assert_ok(f, f->store->ops->revive(f->store, &force, &message, &done, &f->err));
    assert_false(done); /* somebody works on it */
    do_settle(f, &r, ONCE_DONE);
    assert_answer(do_accept(f, &force), DUPLICATE);
    force.fingerprint = (once_hash){9, 9};
    assert_ok(f, f->store->ops->revive(f->store, &force, &message, &done, &f->err));
    assert_true(done);
    assert_state(f, r, WAITING);
    assert_int_equal(count_listed(f, ONCE_STATE_DONE), 0);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    const once_taken t = take_one(f);
    assert_int_equal(t.decision.attempt, 2);
    assert_bytes(t.request.key, "k");
    assert_int_equal(t.message.body.len, 10);
    do_settle(f, &t.request, ONCE_DONE);
    assert_state(f, r, DONE);
    assert_int_equal(count_listed(f, ONCE_STATE_DONE), 1);
    const once_request old = ask(f, "k");
    assert_answer(do_claim(f, &old), CONFLICT); /* the content that ran last counts */
}

static void a_forced_key_that_is_forgotten_does_not_show_its_old_record(fixture *f)
{
    const once_request r = ask(f, "k"), force = ask(f, "k"), next = ask(f, "k");
    const once_message message = message_of(&force);
    bool done;
    do_claim(f, &r);
    do_settle(f, &r, ONCE_DONE);
    assert_ok(f, f->store->ops->revive(f->store, &force, &message, &done, &f->err));
    assert_true(do_forget(f, r.id));
    assert_state(f, r, ABSENT);
    assert_answer(do_claim(f, &next), RUN);
}

typedef struct audit_list {
    size_t n;
    int64_t time_ms;
    uint64_t letter;
    char text[100];
} audit_list;

static bool note_audit(void *user, const once_audit *audit)
{
    audit_list *list = user;
    list->n++;
    list->time_ms = audit->time_ms;
    list->letter = audit->letter;
    snprintf(list->text, sizeof list->text, "%.*s %.*s %.*s %.*s", (int)audit->who.len, audit->who.data,
             (int)audit->what.len, audit->what.data, (int)audit->key.len, audit->key.data, (int)audit->note.len,
             audit->note.data);
    return true;
}

static void f34_audit_and_act_are_one_transaction(fixture *f)
{
    once_audit act = {.consumer = f->scope.consumer,
                      .who = ONCE_BYTES("ann@here:1"),
                      .what = ONCE_BYTES("replay"),
                      .key = ONCE_BYTES("k"),
                      .letter = 3,
                      .note = ONCE_BYTES("why")};
    audit_list list = {0};
    do_begin(f);
    assert_ok(f, f->store->ops->audit(f->store, &act, &f->err));
    do_rollback(f);
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, note_audit, &list, &f->err));
    assert_int_equal(list.n, 0);
    do_begin(f);
    assert_ok(f, f->store->ops->audit(f->store, &act, &f->err));
    do_commit(f);
    act.consumer = ONCE_BYTES("another");
    assert_ok(f, f->store->ops->audit(f->store, &act, &f->err));
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, note_audit, &list, &f->err));
    assert_int_equal(list.n, 1);
    assert_int_equal(list.letter, 3);
    assert_true(list.time_ms == TEST_EPOCH_MS);
    assert_string_equal(list.text, "ann@here:1 replay k why");
}

static once_letter letter_at(fixture *f, const char *point, const char *body)
{
    return (once_letter){
        .scope = f->scope,
        .message = {.body = text(body), .at = {ONCE_BYTES("file"), text(point)}, .sent_ms = ONCE_NO_TIME},
        .reason = ONCE_BYTES("not JSON"),
        .kind = ONCE_ANSWER_DEAD,
    };
}

static void bury_twice_is_one_letter(fixture *f)
{
    once_letter letters[4] = {letter_at(f, "1", "x"), letter_at(f, "2", "x"), letter_at(f, "1", "y"),
                              letter_at(f, "1", "x")};
    letters[1].kind = ONCE_ANSWER_CONFLICT;
    letters[2].kind = ONCE_ANSWER_TOO_OLD;
    bool fresh[4];
    assert_ok(f, f->store->ops->bury(f->store, letters, 4, fresh, &f->err));
    assert_true(fresh[0] && fresh[1] && fresh[2]);
    assert_false(fresh[3]);
    assert_ok(f, f->store->ops->bury(f->store, letters, 4, fresh, &f->err));
    assert_false(fresh[0] || fresh[1] || fresh[2] || fresh[3]);
    once_letter listed[4];
    assert_int_equal(list_letters(f, listed, 4), 3);
    assert_int_equal(do_stats(f).dead, 3);
    assert_true(listed[0].id != listed[1].id && listed[1].id != listed[2].id && listed[0].id != 0);
    assert_int_equal(listed[1].kind, ONCE_ANSWER_CONFLICT);
    assert_true(listed[0].buried_ms == TEST_EPOCH_MS && listed[0].seen_ms == TEST_EPOCH_MS);
    bool found;
    assert_int_equal(once_status_class(f->store->ops->replay_letter(f->store, listed[0].id, &found, &f->err)),
                     ONCE_CLASS_USAGE);
    assert_int_equal(list_letters(f, NULL, 0), 3);
}

static bool do_discard(fixture *f, uint64_t letter)
{
    bool found;
    assert_ok(f, f->store->ops->discard(f->store, letter, REMEMBER, &found, &f->err));
    return found;
}

static void a_letter_without_an_entry_stays_discarded(fixture *f)
{
    once_letter letters[5] = {letter_at(f, "1", "x"), letter_at(f, "2", "x"), letter_at(f, "1", "y"),
                              letter_at(f, "3", "z"), letter_at(f, "3", "z")};
    letters[2].kind = ONCE_ANSWER_TOO_OLD;
    bool fresh[5];
    once_letter listed[4];
    assert_ok(f, f->store->ops->bury(f->store, letters, 5, fresh, &f->err));
    assert_int_equal(list_letters(f, listed, 4), 4);
    assert_true(do_discard(f, listed[0].id));
    assert_false(do_discard(f, listed[0].id));
    assert_true(do_discard(f, listed[2].id));
    pass(f, REMEMBER - 1);
    assert_ok(f, f->store->ops->bury(f->store, letters, 5, fresh,
                                     &f->err)); /* the others are counted, and these are not there */
    for (size_t i = 0; i < 5; i++) assert_false(fresh[i]);
    assert_int_equal(list_letters(f, listed, 4), 2);
    assert_bytes(listed[0].message.at.point, "2");
    assert_int_equal(listed[0].count, 2);
    assert_int_equal(listed[1].count, 4);
    assert_int_equal(do_stats(f).dead, 2);
    assert_int_equal(count_listed(f, ONCE_STATE_REJECTED), 2);

    pass(f, 1); /* remembered as long as others are */
    assert_ok(f, f->store->ops->bury(f->store, letters, 5, fresh, &f->err));
    assert_true(fresh[0] && !fresh[1] && fresh[2] && !fresh[3] && !fresh[4]);
    assert_int_equal(list_letters(f, listed, 4), 4);
    assert_true(do_discard(f, listed[2].id)); /* and once more */
    assert_ok(f, f->store->ops->bury(f->store, letters, 1, fresh, &f->err));
    assert_false(fresh[0]);
}

/* The same bytes elsewhere, for another consumer or tenant, or as what is left of a longer message, are another
 * message. */
static void what_was_discarded_is_that_message_only(fixture *f)
{
    once_letter letters[6];
    bool fresh[6];
    once_letter listed[1];
    for (size_t i = 0; i < 6; i++) letters[i] = letter_at(f, "1", "x");
    letters[1].message.at.point = ONCE_BYTES("2");
    letters[2].message.at.place = ONCE_BYTES("other");
    letters[3].scope.consumer = ONCE_BYTES("another");
    letters[4].scope.tenant = ONCE_BYTES("another");
    letters[5].message.cut_from = 100;
    assert_ok(f, f->store->ops->bury(f->store, letters, 1, fresh, &f->err));
    list_letters(f, listed, 1);
    assert_true(do_discard(f, listed[0].id));
    assert_ok(f, f->store->ops->bury(f->store, letters, 6, fresh, &f->err));
    assert_false(fresh[0]);
    for (size_t i = 1; i < 6; i++) assert_true(fresh[i]);
}

/* A conflict is one letter wherever it comes from; so it stays discarded wherever it comes from. */
static void a_conflict_stays_discarded_and_others_of_its_key_do_not(fixture *f)
{
    once_letter letters[2] = {letter_at(f, "1", "x"), letter_at(f, "2", "x")};
    bool fresh[2];
    once_letter listed[1];
    for (size_t i = 0; i < 2; i++) {
        letters[i].kind = ONCE_ANSWER_CONFLICT;
        letters[i].key = ONCE_BYTES("k");
        letters[i].fingerprint = (once_hash){7, 7};
    }
    assert_ok(f, f->store->ops->bury(f->store, letters, 1, fresh, &f->err));
    list_letters(f, listed, 1);
    assert_true(do_discard(f, listed[0].id));
    assert_ok(f, f->store->ops->bury(f->store, letters, 2, fresh, &f->err));
    assert_false(fresh[0] || fresh[1]);
    letters[1].fingerprint.a = 8;
    assert_ok(f, f->store->ops->bury(f->store, letters, 2, fresh, &f->err));
    assert_true(!fresh[0] && fresh[1]);
}

/* What a delivery of the C API has for a place is nothing: its key tells it apart. */
static void letters_without_a_place_are_apart_by_their_keys(fixture *f)
{
    once_letter letters[3];
    bool fresh[3];
    once_letter listed[2];
    for (size_t i = 0; i < 3; i++)
        letters[i] = (once_letter){.scope = f->scope,
                                   .key = i ? ONCE_BYTES("b") : ONCE_BYTES("a"),
                                   .message = {.sent_ms = ONCE_NO_TIME},
                                   .kind = ONCE_ANSWER_TOO_OLD};
    assert_ok(f, f->store->ops->bury(f->store, letters, 3, fresh, &f->err));
    assert_true(fresh[0] && fresh[1] && !fresh[2]);
    assert_int_equal(list_letters(f, listed, 2), 2);
    assert_true(do_discard(f, listed[0].id));
    assert_ok(f, f->store->ops->bury(f->store, letters, 3, fresh, &f->err));
    assert_int_equal(list_letters(f, listed, 1), 1);
    assert_bytes(listed[0].key, "b");
}

static void discarded_and_taken_back_in_one_transaction(fixture *f)
{
    const once_letter letter = letter_at(f, "1", "x");
    once_letter listed[1];
    bool fresh;
    assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
    list_letters(f, listed, 1);
    for (int committed = 0; committed < 2; committed++) {
        do_begin(f);
        assert_true(do_discard(f, listed[0].id));
        assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
        assert_false(fresh);
        if (committed) do_commit(f);
        else do_rollback(f);
        assert_int_equal(list_letters(f, NULL, 0), !committed);
        assert_int_equal(count_listed(f, ONCE_STATE_REJECTED), committed);
    }
}

static void bury_without_a_body_or_place(fixture *f)
{
    const once_letter letter = {.scope = f->scope, .message = {.sent_ms = ONCE_NO_TIME}, .kind = ONCE_ANSWER_DEAD};
    bool fresh;
    assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
    assert_true(fresh);
    assert_int_equal(list_letters(f, NULL, 0), 1);
}

/* --- scopes and bytes --- */

static void f27_tenants_consumers_and_operations_are_isolated(fixture *f)
{
    static const once_scope scopes[] = {
        {{"", 0}, {"payments", 8}, {"charge", 6}}, {{"t", 1}, {"payments", 8}, {"charge", 6}},
        {{"", 0}, {"shipping", 8}, {"charge", 6}}, {{"", 0}, {"payments", 8}, {"refund", 6}},
        {{"p", 1}, {"ayments", 7}, {"charge", 6}},
    };
    enum { N = sizeof scopes / sizeof *scopes };
    once_request r[N];
    for (int i = 0; i < N; i++) {
        f->scope = scopes[i];
        r[i] = ask(f, "same");
        r[i].scope = &scopes[i];
        r[i].fingerprint = (once_hash){(uint64_t)i + 1, 1};
        assert_answer(do_claim(f, &r[i]), RUN);
    }
    assert_true(do_settle(f, &r[0], ONCE_DONE));
    assert_true(do_settle(f, &r[1], ONCE_DEAD));
    assert_true(do_settle(f, &r[2], ONCE_RETRY));
    assert_state(f, r[0], DONE);
    assert_state(f, r[3], CLAIMED);
    assert_state(f, r[4], CLAIMED);
    for (int i = 0; i < N; i++)
        assert_false(do_settle(f,
                               &(once_request){.scope = &scopes[i],
                                               .id = r[i].id,
                                               .key = r[i].key,
                                               .token = r[(i + 1) % N].token,
                                               .remember_ms = 1,
                                               .lease_ms = 1},
                               ONCE_DONE));

    f->scope = scopes[0]; /* what is asked by consumer shows that consumer's */
    once_stats stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 0 && stats.dead == 1);
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 1);
    assert_int_equal(list_letters(f, NULL, 0), 1);
    pass(f, DELAY);
    once_taken taken[2];
    assert_int_equal(do_take(f, 2, taken), 0);
    f->scope = scopes[2];
    stats = do_stats(f);
    assert_true(stats.claimed == 0 && stats.waiting == 1 && stats.dead == 0);
    assert_int_equal(do_take(f, 2, taken), 1);
}

/* Two consumers read the same topic: a message that neither can use leaves a letter for each. */
static void f27_letters_of_two_consumers_are_two(fixture *f)
{
    bool fresh;
    for (int i = 0; i < 3; i++) {
        f->scope.consumer = i == 0 ? ONCE_BYTES("payments") : ONCE_BYTES("shipping");
        f->scope.tenant = i == 2 ? ONCE_BYTES("acme") : ONCE_BYTES("");
        const once_letter letter = letter_at(f, "1", "broken");
        assert_ok(f, f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err));
        assert_true(fresh);
    }
    assert_int_equal(list_letters(f, NULL, 0), 2);
}

static void f63_keys_of_any_bytes(fixture *f)
{
    char long_key[1024];
    memset(long_key, 'k', sizeof long_key);
    const once_bytes keys[] = {ONCE_BYTES("a"),    ONCE_BYTES("a\0"),      ONCE_BYTES("a\0b"),     ONCE_BYTES("\0"),
                               ONCE_BYTES("\0\0"), ONCE_BYTES("\xff\xfe"), ONCE_BYTES("\xc3\x28"), {long_key, 1024},
                               {long_key, 1023},   ONCE_BYTES("'; --"),    ONCE_BYTES("A")};
    enum { N = sizeof keys / sizeof *keys };
    once_request r[N];
    for (int i = 0; i < N; i++) {
        r[i] = ask_bytes(f, keys[i]);
        assert_answer(do_claim(f, &r[i]), RUN);
    }
    for (int i = 0; i < N; i++) {
        const once_entry e = do_get(f, r[i].id);
        assert_int_equal(e.key.len, keys[i].len);
        assert_memory_equal(e.key.data, keys[i].data, keys[i].len);
        assert_true(do_settle(f, &r[i], i % 2 ? ONCE_RETRY : ONCE_DEAD));
    }
    for (int i = 0; i < N; i++)
        assert_string_equal(once_state_name(do_get(f, r[i].id).state), i % 2 ? "waiting" : "dead");
    pass(f, DELAY);
    once_taken taken[N];
    assert_int_equal(do_take(f, N, taken), N / 2);
    for (int i = 0; i < N / 2; i++)
        assert_true(
            once_hash_equal(taken[i].request.id, once_key_id(f->store->secret, &f->scope, taken[i].request.key)));
}

static void f07_results_are_binary_and_up_to_64_kib(fixture *f)
{
    static char result[65536];
    for (size_t i = 0; i < sizeof result; i++) result[i] = (char)(i * 7 % 256);
    static const size_t sizes[] = {0, 1, 255, 256, 65535, 65536};
    static const char *const keys[] = {"0", "1", "255", "256", "65535", "65536"};
    for (int i = 0; i < 6; i++) {
        const once_request r = ask(f, keys[i]), again = ask(f, keys[i]);
        do_claim(f, &r);
        const once_settlement s = {.request = &r, .outcome = ONCE_DONE, .result = {result, sizes[i]}};
        bool applied;
        assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
        assert_true(applied);
        const once_decision d = do_claim(f, &again);
        assert_answer(d, DUPLICATE);
        assert_int_equal(d.result.len, sizes[i]);
        if (sizes[i]) assert_memory_equal(d.result.data, result, sizes[i]);
    }
}

static void large_bodies_come_back_whole(fixture *f)
{
    enum { SIZE = 3 << 20 };
    char *body = malloc(SIZE);
    assert_non_null(body);
    for (size_t i = 0; i < SIZE; i++) body[i] = (char)(i * 31 % 253);
    const once_request r = ask(f, "k"), *requests = &r;
    const once_message message = {.body = {body, SIZE}, .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    assert_ok(f, f->store->ops->accept(f->store, &requests, &messages, 1, &d, &f->arena, &f->err));
    const once_taken t = take_one(f);
    const bool same = t.message.body.len == SIZE && memcmp(t.message.body.data, body, SIZE) == 0;
    free(body);
    assert_true(same);
    assert_true(t.message.sent_ms == ONCE_NO_TIME && t.message.at.place.len == 0);
}

/* --- batches --- */

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

/* --- time --- */

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

/* --- looking --- */

static bool stop_at_once(void *user, const once_entry *entry)
{
    (void)entry;
    ++*(int *)user;
    return false;
}

static void list_and_stats_show_each_state(fixture *f)
{
    assert_true(do_stats(f).wait_ms == ONCE_NEVER);
    static const struct {
        const char *keys[3];
        once_outcome outcome;
        once_state state;
    } kinds[] = {
        {{"d1", "d2", "d3"}, ONCE_DONE, ONCE_STATE_DONE},
        {{"a1", NULL, NULL}, ONCE_ALREADY, ONCE_STATE_ALREADY},
        {{"r1", "r2", NULL}, ONCE_REJECTED, ONCE_STATE_REJECTED},
        {{"s1", NULL, NULL}, ONCE_STALE, ONCE_STATE_STALE},
        {{"w1", "w2", NULL}, ONCE_RETRY, ONCE_STATE_WAITING},
        {{"u1", "u2", "u3"}, ONCE_UNKNOWN, ONCE_STATE_UNKNOWN},
        {{"x1", "x2", NULL}, ONCE_DEAD, ONCE_STATE_DEAD},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int k = 0; k < 3 && kinds[i].keys[k]; k++) {
            const once_request r = ask(f, kinds[i].keys[k]);
            do_claim(f, &r);
            assert_true(do_settle(f, &r, kinds[i].outcome));
        }
    const once_request claimed = ask(f, "c1");
    do_claim(f, &claimed);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t wanted = 0;
        while (wanted < 3 && kinds[i].keys[wanted]) wanted++;
        assert_int_equal(count_listed(f, kinds[i].state), wanted);
    }
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 1);
    const once_stats stats = do_stats(f);
    assert_true(stats.waiting == 2 && stats.claimed == 1 && stats.unknown == 3 && stats.dead == 2);
    assert_int_equal(stats.wait_ms, DELAY);
    pass(f, DELAY + 5);
    assert_int_equal(do_stats(f).wait_ms, 0);
    int visits = 0;
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, ONCE_STATE_DONE, stop_at_once, &visits, &f->err));
    assert_int_equal(visits, 1);
}

/* A worker died and only its source can bring the message again: it is shown, and nobody waits for it. */
static void stats_do_not_wait_for_what_has_no_body(fixture *f)
{
    const once_request claimed = ask(f, "claimed"), owned = ask(f, "owned"), bare = ask(f, "bare"),
                       other = ask(f, "other");
    do_claim(f, &claimed);
    do_claim(f, &bare);
    const once_settlement retry = {.request = &bare, .outcome = ONCE_RETRY, .delay_ms = DELAY};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &retry, 1, &applied, &f->err));
    once_stats stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 1);
    assert_int_equal(stats.wait_ms, LEASE);
    pass(f, LEASE);
    stats = do_stats(f);
    assert_true(stats.claimed == 0 && stats.waiting == 2);
    assert_true(stats.wait_ms == ONCE_NEVER);
    do_claim(f, &owned);
    do_accept(f, &owned);
    pass(f, LEASE);
    do_claim(f, &other);
    stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 3);
    assert_int_equal(stats.wait_ms, 0);
}

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

static size_t do_lapse(fixture *f, uint64_t but, size_t max, once_taken *out)
{
    size_t n;
    assert_ok(f, f->store->ops->lapse(f->store, f->scope.consumer, but, max, out, &n, &f->arena, &f->err));
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

/* --- corrected messages --- */

static once_request ask_other(fixture *f, const char *key)
{
    once_request r = ask(f, key);
    r.fingerprint = (once_hash){3, 4};
    r.at.point = ONCE_BYTES("18");
    return r;
}

/* What a conflict met is told: where it came from, by whose hand, and its body while the store has it. */
static void f26_a_conflict_tells_what_it_met(fixture *f)
{
    const once_request first = ask(f, "k"), other = ask_other(f, "k"), accepted = ask_other(f, "k");
    do_claim(f, &first);
    assert_true(do_settle_maybe(f, &first, ONCE_RETRY));
    once_decision d = do_claim(f, &other);
    assert_answer(d, CONFLICT);
    assert_bytes(d.first.at.place, "payments.ndjson");
    assert_bytes(d.first.at.point, "17");
    assert_bytes(d.first.who, f->store->who);
    assert_true(d.first.seen_ms == TEST_EPOCH_MS);
    assert_int_equal(d.first.body.len, message_of(&first).body.len);
    assert_answer(d = do_accept(f, &accepted), CONFLICT);
    assert_bytes(d.first.at.point, "17");
    pass(f, DELAY);
    once_taken t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_answer(d = do_claim(f, &other), CONFLICT);
    assert_bytes(d.first.at.point, "17");
    assert_int_equal(d.first.body.len, 0); /* nobody has it any more */
}

static once_fields some_fields(unsigned n)
{
    once_fields fields = {.n = (uint16_t)n};
    for (unsigned i = 0; i < n; i++) fields.prints[i] = (uint16_t)(UINT16_MAX - 1000 * (n - 1 - i));
    return fields;
}

static void assert_meets(fixture *f, const char *key, unsigned n)
{
    const once_request other = ask_other(f, key);
    const once_fields expected = some_fields(n);
    const once_decision d = do_claim(f, &other);
    assert_answer(d, CONFLICT);
    assert_int_equal(d.fields.n, n);
    assert_memory_equal(d.fields.prints, expected.prints, n * sizeof *expected.prints);
}

/* Whatever became of the first one, and however many of its fields are kept. */
static void f26_a_conflict_brings_the_fields_of_the_first_one(fixture *f)
{
    static const once_outcome outcomes[] = {ONCE_DONE, ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE,
                                            ONCE_DEAD, ONCE_UNKNOWN, ONCE_RETRY};
    enum { STATES = sizeof outcomes / sizeof *outcomes, COUNTS = 4 };
    static const unsigned counts[COUNTS] = {0, 1, 5, ONCE_FIELDS_MAX};
    static const char *const results[] = {
        "", "ok",
        "a result that is long enough to be kept apart from the record that it belongs to, if a store does that"};
    char key[40];
    for (int reopened = 0; reopened < 2; reopened++) {
        if (reopened && f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        for (unsigned i = 0; i < STATES * COUNTS; i++) {
            snprintf(key, sizeof key, "key %u", i);
            if (!reopened) {
                once_request r = ask(f, key);
                r.fields = some_fields(counts[i % COUNTS]);
                do_claim(f, &r);
                assert_meets(f, key, counts[i % COUNTS]);
                const once_message message = message_of(&r);
                const once_outcome outcome = outcomes[i / COUNTS];
                const once_settlement s = {.request = &r,
                                           .outcome = outcome,
                                           .message = &message,
                                           .delay_ms = outcome == ONCE_RETRY ? DELAY : 0,
                                           .maybe = outcome == ONCE_RETRY,
                                           .result = outcome <= ONCE_REJECTED ? text(results[i % 3]) : (once_bytes){0}};
                bool applied = false;
                assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
                assert_true(applied);
            }
            assert_meets(f, key, counts[i % COUNTS]);
        }
    }
    /* What was told of another content is told of that one. */
    once_request forced = ask_other(f, "key 0");
    const once_message message = message_of(&forced);
    bool done;
    forced.fields = some_fields(3);
    assert_ok(f, f->store->ops->revive(f->store, &forced, &message, &done, &f->err));
    assert_true(done);
    const once_request late = ask(f, "key 0");
    const once_decision d = do_claim(f, &late);
    assert_answer(d, CONFLICT);
    assert_int_equal(d.fields.n, 3);
}

static bool do_correct(fixture *f, uint64_t letter, const once_request *r, once_bytes body)
{
    once_message message = message_of(r);
    bool done;
    message.body = body;
    assert_ok(f, f->store->ops->correct(f->store, letter, r, &message, &done, &f->err));
    return done;
}

static bool keep_audit(void *user, const once_audit *audit)
{
    fixture *f = user;
    assert_bytes(audit->what, "replay --body");
    assert_bytes(audit->body, "wrong");
    f->tokens += 1000;
    return true;
}

static void a_dead_one_goes_back_to_work_with_another_message(fixture *f)
{
    const once_request r = ask(f, "k"), other = ask_other(f, "other key");
    once_request placed = ask_other(f, "k"), right = ask_other(f, "k");
    right.fields = some_fields(2);
    once_letter letter;
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_DEAD));
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_false(do_correct(f, letter.id, &other, ONCE_BYTES("right")));
    placed.lane.id = once_lane_id(f->store->secret, &f->scope, text("lane"));
    assert_false(do_correct(f, letter.id, &placed, ONCE_BYTES("right")));
    assert_false(do_correct(f, 12345, &right, ONCE_BYTES("right")));
    assert_int_equal(list_letters(f, NULL, 0), 1);
    assert_true(do_correct(f, letter.id, &right, ONCE_BYTES("right")));
    assert_int_equal(list_letters(f, NULL, 0), 0);
    const once_taken t = take_one(f);
    assert_bytes(t.message.body, "right");
    assert_int_equal(t.decision.attempt, 2);
    assert_int_equal(t.decision.failures, 0);
    assert_true(once_hash_equal(t.request.fingerprint, right.fingerprint));
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    const once_request late = ask(f, "k");
    const once_decision d = do_claim(f, &late);
    assert_answer(d, CONFLICT);
    assert_int_equal(d.fields.n, 2);
    const once_audit act = {.consumer = f->scope.consumer,
                            .who = ONCE_BYTES("me"),
                            .what = ONCE_BYTES("replay --body"),
                            .body = ONCE_BYTES("wrong")};
    assert_ok(f, f->store->ops->audit(f->store, &act, &f->err));
    const uint64_t before = f->tokens;
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, keep_audit, f, &f->err));
    assert_int_equal(f->tokens, before + 1000);
}

static void get_of_nothing_is_absent(fixture *f)
{
    const once_entry e = do_get(f, (once_hash){1, 2});
    assert_int_equal(e.state, ONCE_STATE_ABSENT);
    assert_false(do_forget(f, (once_hash){1, 2}));
    assert_false(do_replay(f, 12345));
}

static void facts_are_kept_replaced_and_deleted(fixture *f)
{
    once_bytes value = {"x", 1};
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 0);
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", ONCE_BYTES("first"), &f->err));
    assert_ok(f, f->store->ops->fact_set(f->store, "spec2", ONCE_BYTES("other"), &f->err));
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", ONCE_BYTES("a\0\xff"), &f->err));
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 3);
    assert_memory_equal(value.data, "a\0\xff", 3);
    assert_ok(f, f->store->ops->fact_set(f->store, "spec", (once_bytes){0}, &f->err));
    assert_ok(f, f->store->ops->fact_get(f->store, "spec", &value, &f->arena, &f->err));
    assert_int_equal(value.len, 0);
    assert_ok(f, f->store->ops->fact_get(f->store, "spec2", &value, &f->arena, &f->err));
    assert_bytes(value, "other");
}

/* A consumer may have 200 bytes, and its counters have a word before that. */
static void facts_may_have_long_names(fixture *f)
{
    char name[ONCE_FACT_NAME];
    once_bytes value = {0};
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_ok(f, f->store->ops->fact_set(f->store, name, ONCE_BYTES("kept"), &f->err));
    assert_ok(f, f->store->ops->fact_get(f->store, name, &value, &f->arena, &f->err));
    assert_bytes(value, "kept");
}

const conform_test conform_verbs[] = {
    CONFORM(a_claim_is_recorded_in_full),
    CONFORM(f07_every_final_outcome_suppresses_with_its_result),
    CONFORM(a_live_claim_is_busy_and_an_orphan_runs_again),
    CONFORM(an_orphan_that_is_held_becomes_unknown),
    CONFORM(f04_unknown_stays_until_it_is_resolved),
    CONFORM(f26_same_key_other_fingerprint_is_a_conflict),
    CONFORM(f14_a_zombie_neither_settles_nor_extends),
    CONFORM(f74_a_zombie_of_an_entry_made_anew_is_refused),
    CONFORM(claims_of_one_moment_are_settled_together),
    CONFORM(extend_moves_the_end_of_the_lease),
    CONFORM(f76_claim_and_settle_repeated),
    CONFORM_WITH(f76_accept_repeated, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_take_repeated_returns_what_it_had_claimed, ONCE_STORE_OWNS),
    CONFORM_WITH(f76_take_repeated_after_its_leases_ended, ONCE_STORE_OWNS),
    CONFORM(f76_bury_replay_and_forget_repeated),
    CONFORM_WITH(accept_then_take_gives_the_whole_message, ONCE_STORE_OWNS),
    CONFORM_WITH(accept_attaches_the_body_to_a_busy_entry, ONCE_STORE_OWNS),
    CONFORM_WITH(f73_an_entry_taken_by_a_dead_worker_is_taken_again, ONCE_STORE_OWNS),
    CONFORM_WITH(retry_waits_for_its_delay, ONCE_STORE_OWNS),
    CONFORM_WITH(f77_release_does_not_count, ONCE_STORE_OWNS),
    CONFORM_WITH(what_may_have_happened_is_told_to_the_next, ONCE_STORE_OWNS),
    CONFORM_WITH(f95_the_time_since_the_first_failure_is_kept, ONCE_STORE_OWNS),
    CONFORM_WITH(take_is_bounded_and_oldest_first, ONCE_STORE_OWNS),
    CONFORM(f31_poison_is_bounded_and_leaves_one_letter),
    CONFORM_WITH(the_body_in_the_store_goes_into_the_letter, ONCE_STORE_OWNS),
    CONFORM_WITH(a_discarded_letter_is_gone_and_its_key_rejected, ONCE_STORE_OWNS),
    CONFORM_WITH(discarding_an_old_letter_leaves_the_newer_death_alone, ONCE_STORE_OWNS),
    CONFORM_WITH(a_letter_is_read_and_dropped_by_its_id, ONCE_STORE_OWNS | ONCE_STORE_TX),
    CONFORM_WITH(letters_go_on_after_an_id, ONCE_STORE_OWNS),
    CONFORM_WITH(an_unknown_one_is_resolved, ONCE_STORE_OWNS),
    CONFORM_WITH(f81_a_letter_says_whether_its_effect_may_have_happened, ONCE_STORE_OWNS),
    CONFORM_WITH(f34_a_finished_key_runs_again_only_when_forced, ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(a_forced_key_that_is_forgotten_does_not_show_its_old_record, ONCE_STORE_OWNS),
    CONFORM_WITH(f34_audit_and_act_are_one_transaction, ONCE_STORE_TX),
    CONFORM_WITH(replayed_goes_on_with_its_attempt_and_a_new_budget, ONCE_STORE_OWNS),
    CONFORM(f34_replaying_a_completed_key_is_suppressed),
    CONFORM(a_letter_whose_key_was_forgotten_is_not_lost_by_replaying_it),
    CONFORM(forgotten_and_dead_anew_keeps_both_bodies),
    CONFORM(bury_twice_is_one_letter),
    CONFORM(bury_without_a_body_or_place),
    CONFORM_WITH(a_letter_without_an_entry_stays_discarded, ONCE_STORE_LIST),
    CONFORM(what_was_discarded_is_that_message_only),
    CONFORM(a_conflict_stays_discarded_and_others_of_its_key_do_not),
    CONFORM(letters_without_a_place_are_apart_by_their_keys),
    CONFORM_WITH(discarded_and_taken_back_in_one_transaction, ONCE_STORE_TX | ONCE_STORE_LIST),
    CONFORM(f27_tenants_consumers_and_operations_are_isolated),
    CONFORM(f27_letters_of_two_consumers_are_two),
    CONFORM(f63_keys_of_any_bytes),
    CONFORM(f07_results_are_binary_and_up_to_64_kib),
    CONFORM_WITH(large_bodies_come_back_whole, ONCE_STORE_OWNS),
    CONFORM_WITH(f79_one_key_twice_in_one_batch, ONCE_STORE_OWNS),
    CONFORM_WITH(batches_of_a_thousand, ONCE_STORE_OWNS),
    CONFORM_WITH(f16_a_claim_always_has_a_deadline, ONCE_STORE_OWNS),
    CONFORM_WITH(f17_nothing_left_is_not_unset, ONCE_STORE_OWNS),
    CONFORM_WITH(f19_wall_clock_jumps_neither_end_nor_lengthen_leases, ONCE_STORE_CLOCK),
    CONFORM_WITH(f20_workers_skewed_by_ten_minutes, ONCE_STORE_CLOCK | ONCE_STORE_SHARED),
    CONFORM(f21_extreme_leases_and_horizons),
    CONFORM(f23_expired_but_not_yet_deleted_is_absent),
    CONFORM(f71_a_message_that_comes_back_after_expiry_is_too_old),
    CONFORM(f71_an_unknown_one_from_the_future_is_remembered_until_it_is_too_old),
    CONFORM(f12_sweep_in_bounded_steps_drops_only_what_expired),
    CONFORM_WITH(list_and_stats_show_each_state, ONCE_STORE_LIST),
    CONFORM_WITH(stats_do_not_wait_for_what_has_no_body, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_an_attempt_that_died_is_seen_from_that_moment, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_whoever_comes_late_and_finds_nobody_goes_on, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_an_attempt_that_died_is_resolved, ONCE_STORE_OWNS),
    CONFORM_WITH(f99_an_attempt_that_died_is_written_down_once, ONCE_STORE_OWNS | ONCE_STORE_LANES),
    CONFORM_WITH(f99_a_delivery_that_finds_a_dead_attempt_is_told_once, ONCE_STORE_OWNS),
    CONFORM_WITH(f26_a_conflict_tells_what_it_met, ONCE_STORE_OWNS),
    CONFORM_WITH(f26_a_conflict_brings_the_fields_of_the_first_one, ONCE_STORE_OWNS),
    CONFORM_WITH(a_dead_one_goes_back_to_work_with_another_message, ONCE_STORE_OWNS),
    CONFORM(get_of_nothing_is_absent),
    CONFORM(facts_are_kept_replaced_and_deleted),
    CONFORM(facts_may_have_long_names),
    {0},
};
