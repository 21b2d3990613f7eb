/* Effects that are idempotent by nature: nothing is remembered of what finished, but the version of a lane. */
#include "conform.h"
#include "core/print.h"

static once_request natural(once_request request)
{
    request.natural = true;
    return request;
}

static once_request ask_natural(fixture *f, const char *key) { return natural(ask(f, key)); }

static once_request ask_version(fixture *f, const char *key, int64_t version)
{
    return natural(ask_lane(f, key, "lane", version, 500));
}

static void maybe_reopen(fixture *f)
{
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
}

static void nothing_is_kept_of_what_finished(fixture *f)
{
    static const once_outcome finished[] = {ONCE_DONE, ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE};
    for (int i = 0; i < 8; i++) {
        once_request r = ask_natural(f, "k");
        r.fingerprint = (once_hash){5, 5 + (uint64_t)i}; /* other content is no conflict with what is not there */
        const once_decision d = do_claim(f, &r);
        assert_answer(d, RUN);
        assert_int_equal(d.attempt, 1);
        assert_true(do_settle(f, &r, finished[i % 4]));
        assert_state(f, r, ABSENT);
        assert_true(do_settle(f, &r, finished[i % 4])); /* f76: the reply was lost */
        if (i == 3) maybe_reopen(f);
        assert_state(f, r, ABSENT);
    }
    const once_stats stats = do_stats(f);
    assert_true(stats.waiting + stats.claimed + stats.unknown + stats.dead == 0);
    assert_int_equal(sweep_all(f, 10), 0);
}

static void f26_a_natural_one_that_is_not_finished_conflicts(fixture *f)
{
    const once_request r = ask_natural(f, "k");
    once_request other = ask_natural(f, "k");
    other.fingerprint = (once_hash){7, 7};
    do_claim(f, &r);
    assert_answer(do_claim(f, &other), CONFLICT);
    assert_true(do_settle_maybe(f, &r, ONCE_RETRY));
    assert_answer(do_claim(f, &other), CONFLICT);
}

/* One that runs without a claim brings its fingerprint only if an entry is there. */
static void f26_a_late_fingerprint_is_compared_too(fixture *f)
{
    const once_message first = {.body = ONCE_BYTES("one"), .sent_ms = ONCE_NO_TIME};
    const once_message second = {.body = ONCE_BYTES("two"), .sent_ms = ONCE_NO_TIME};
    once_request r = ask_natural(f, "k"), same = ask_natural(f, "k"), other = ask_natural(f, "k");
    r.fingerprint = once_print_of_bytes(f->store->secret, &first);
    same.unclaimed = other.unclaimed = true;
    same.fingerprint = other.fingerprint = (once_hash){0, 0};
    same.late = &first;
    other.late = &second;
    assert_true(do_claim(f, &other).unclaimed);
    do_claim(f, &r);
    assert_answer(do_claim(f, &same), BUSY);
    assert_answer(do_claim(f, &other), CONFLICT);
}

static void failures_of_natural_ones_are_entries(fixture *f)
{
    const once_request r = ask_natural(f, "k");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_RETRY));
    maybe_reopen(f);
    assert_true(do_get(f, r.id).natural);
    pass(f, DELAY);
    once_taken t = take_one(f);
    assert_true(t.request.natural);
    assert_int_equal(t.decision.failures, 1);
    do_settle(f, &t.request, ONCE_DEAD);
    const once_request again = ask_natural(f, "k");
    assert_answer(do_claim(f, &again), DEAD); /* f31: no new try */
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    t = take_one(f);
    assert_true(t.request.natural);
    assert_int_equal(t.decision.attempt, 3);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_state(f, r, ABSENT);
    maybe_reopen(f);
    assert_state(f, r, ABSENT);
    once_taken none[1];
    assert_int_equal(do_take(f, 1, none), 0);
}

static void f14_a_zombie_of_a_natural_one_keeps_no_body(fixture *f)
{
    const once_request zombie = ask_natural(f, "k"), heir = ask_natural(f, "k"), third = ask_natural(f, "k");
    do_claim(f, &zombie);
    pass(f, LEASE);
    const once_decision d = do_claim(f, &heir);
    assert_true(d.unreported && d.failures == 1);
    for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++)
        assert_false(do_settle(f, &zombie, (once_outcome)outcome));
    assert_true(do_settle(f, &heir, ONCE_DONE));
    assert_false(do_extend(f, &zombie));
    /* It finished too, as it may. But a body that it thinks it left would be nobody's. */
    for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++)
        assert_int_equal(do_settle(f, &zombie, (once_outcome)outcome), outcome <= ONCE_STALE);
    assert_state(f, heir, ABSENT);
    assert_answer(do_claim(f, &third), RUN); /* f74: made anew */
    for (int outcome = 0; outcome < ONCE_OUTCOMES; outcome++)
        assert_false(do_settle(f, &zombie, (once_outcome)outcome));
    assert_false(do_settle(f, &heir, ONCE_DONE));
}

static void what_operators_end_is_gone(fixture *f)
{
    once_request r = ask_natural(f, "unknown");
    bool done;
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_UNKNOWN));
    assert_state(f, r, UNKNOWN);
    assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_DONE, ONCE_BYTES("seen"), &done, &f->err));
    assert_true(done);
    assert_state(f, r, ABSENT);

    r = ask_natural(f, "dead");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_DEAD));
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &done, &f->err));
    assert_true(done);
    assert_state(f, r, ABSENT);
    assert_int_equal(list_letters(f, NULL, 0), 0);
}

/* A handler that is natural since today meets what it remembered until yesterday. */
static void what_was_promised_before_is_kept(fixture *f)
{
    const once_request old = ask(f, "k"), now = ask_natural(f, "k"), force = ask_natural(f, "k"),
                       late = ask_natural(f, "k");
    const once_message message = message_of(&force);
    bool done;
    do_claim(f, &old);
    do_settle(f, &old, ONCE_DONE);
    assert_answer(do_claim(f, &now), DUPLICATE);
    assert_ok(f, f->store->ops->revive(f->store, &force, &message, &done, &f->err));
    assert_true(done);
    const once_taken t = take_one(f);
    assert_true(t.request.natural);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_state(f, old, ABSENT); /* and not what the key had been before */
    maybe_reopen(f);
    assert_state(f, old, ABSENT);
    assert_answer(do_claim(f, &late), RUN);
    assert_true(do_settle(f, &late, ONCE_DONE));
    assert_state(f, old, ABSENT);
}

static void f71_natural_ones_are_never_too_old_but_in_a_lane_with_versions(fixture *f)
{
    once_request r = ask_natural(f, "k");
    r.sent_ms = TEST_EPOCH_MS - 100 * REMEMBER;
    assert_answer(do_claim(f, &r), RUN);
    do_settle(f, &r, ONCE_DONE);
    if (!(f->store->bits & ONCE_STORE_LANES)) return;
    once_request five = ask_version(f, "5", 5), four = ask_version(f, "4", 4);
    five.sent_ms = four.sent_ms = TEST_EPOCH_MS;
    assert_answer(do_claim(f, &five), RUN);
    do_settle(f, &five, ONCE_DONE);
    pass(f, REMEMBER - 1);
    assert_answer(do_claim(f, &four), STALE);
    pass(f, 1);
    assert_answer(do_claim(f, &four), TOO_OLD); /* nobody knows any more that it was superseded */
}

static void f28_older_is_stale_equal_runs_again(fixture *f)
{
    const once_request first = ask_version(f, "a", 5);
    assert_answer(do_claim(f, &first), RUN);
    assert_true(do_settle(f, &first, ONCE_DONE));
    for (int i = 0; i < 3; i++) {
        const once_request equal = ask_version(f, i % 2 ? "a" : "b", 5), older = ask_version(f, "c", 4),
                           ahead = ask_version(f, "d", 7);
        assert_answer(do_claim(f, &equal), RUN);
        assert_answer(do_claim(f, &equal), RUN); /* f76 */
        assert_true(do_settle(f, &equal, ONCE_DONE));
        for (int again = 0; again < 2; again++) {
            assert_answer(do_claim(f, &older), STALE);
            assert_answer(do_accept(f, &older), STALE);
            assert_state(f, older, ABSENT);
        }
        assert_answer(do_claim(f, &ahead), GAP);
        maybe_reopen(f);
    }
    const once_request stale = ask_version(f, "e", 6), five = ask_version(f, "f", 5);
    do_claim(f, &stale);
    assert_true(do_settle(f, &stale, ONCE_STALE)); /* which moves no version */
    assert_answer(do_claim(f, &five), RUN);
}

static void f28_waiting_ones_of_the_lanes_version_run(fixture *f)
{
    const once_request leader = ask_version(f, "a", 5);
    do_claim(f, &leader);
    const once_request four = ask_version(f, "4", 4), five = ask_version(f, "5", 5), eight = ask_version(f, "8", 8);
    assert_answer(do_accept(f, &four), WAITING);
    assert_answer(do_accept(f, &five), WAITING);
    assert_answer(do_accept(f, &eight), WAITING);
    assert_true(do_settle(f, &leader, ONCE_DONE)); /* frees its lane */
    maybe_reopen(f);
    once_taken taken[1];
    assert_int_equal(do_take(f, 1, taken), 1);
    assert_bytes(taken[0].request.key, "4");
    assert_answer(taken[0].decision, STALE);
    assert_state(f, four, ABSENT);
    once_taken t = take_one(f);
    assert_bytes(t.request.key, "5");
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_int_equal(do_take(f, 1, taken), 0);
    pass(f, 500); /* the gap is over */
    t = take_one(f);
    assert_bytes(t.request.key, "8");
}

/* Lives of one key in one transaction, in two lanes: each sees what the other left, and nothing more. */
static void several_lives_in_one_transaction(fixture *f)
{
    do_begin(f);
    const once_request one = natural(ask_lane(f, "k", "first", -1, -1)),
                       two = natural(ask_lane(f, "k", "second", -1, -1)),
                       three = natural(ask_lane(f, "k", "third", -1, -1)), behind = ask_lane(f, "x", "second", -1, -1),
                       free = ask_lane(f, "y", "first", -1, -1), last = ask_lane(f, "z", "third", -1, -1);
    assert_answer(do_claim(f, &one), RUN);
    assert_answer(do_claim(f, &free), LATER);
    assert_true(do_settle(f, &one, ONCE_DONE));
    assert_answer(do_claim(f, &two), RUN);
    assert_answer(do_claim(f, &behind), LATER);
    assert_answer(do_claim(f, &free), RUN);
    assert_true(do_settle(f, &two, ONCE_DONE));
    assert_answer(do_claim(f, &behind), RUN);
    assert_answer(do_claim(f, &three), RUN);
    assert_true(do_settle(f, &three, ONCE_RETRY));
    assert_answer(do_claim(f, &last), LATER);
    do_commit(f);
    assert_state(f, one, WAITING);
    assert_answer(do_claim(f, &last), LATER);
    assert_true(do_forget(f, one.id));
    assert_answer(do_claim(f, &last), RUN);
}

static void a_rollback_brings_back_what_was_waiting(fixture *f)
{
    const once_request r = ask_natural(f, "k");
    do_accept(f, &r);
    const once_taken t = take_one(f);
    do_begin(f);
    assert_true(do_extend(f, &t.request));
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_state(f, r, ABSENT);
    do_rollback(f);
    assert_state(f, r, CLAIMED);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_state(f, r, ABSENT);
}

/* Nothing is written while it runs. A failure is claimed and settled in one transaction, and is then known. */
static void a_new_key_may_run_without_a_claim(fixture *f)
{
    once_request r = ask_natural(f, "k");
    r.unclaimed = true;
    do_begin(f);
    const once_decision d = do_claim(f, &r);
    assert_answer(d, RUN);
    assert_true(d.unclaimed && d.attempt == 1 && d.failures == 0);
    do_commit(f);
    assert_state(f, r, ABSENT);
    maybe_reopen(f);

    once_request other = ask_natural(f, "k"); /* another worker has it, too, and fails */
    other.unclaimed = false;
    do_begin(f);
    assert_answer(do_claim(f, &other), RUN);
    assert_true(do_settle(f, &other, ONCE_RETRY));
    do_commit(f);
    assert_state(f, r, WAITING);

    r.unclaimed = false; /* this one fails later */
    do_begin(f);
    assert_answer(do_claim(f, &r), LATER);
    do_commit(f);
    pass(f, DELAY);
    r = ask_natural(f, "k"); /* what waits is claimed by whoever comes, as always */
    r.unclaimed = true;
    const once_decision again = do_claim(f, &r);
    assert_answer(again, RUN);
    assert_true(!again.unclaimed && again.failures == 1);
    assert_state(f, r, CLAIMED);
    assert_true(do_settle(f, &r, ONCE_DONE));
    assert_state(f, r, ABSENT);
}

/* Stores that never know are not asked. */
static bool is_absent(fixture *f, once_request r)
{
    once_request second = ask_natural(f, "another"); /* for one alone a store may not look */
    const once_request *const requests[] = {&r, &second};
    bool absent[2] = {true, true};
    once_error err;
    r.unclaimed = second.unclaimed = true;
    assert_int_equal(f->store->ops->absent(f->store, requests, 2, absent, &err), ONCE_OK);
    return absent[0];
}

/* What waits, is claimed or is dead is never taken for absent. A store need not know it of a key without an entry. */
static void f31_a_key_with_an_entry_is_not_absent(fixture *f)
{
    if (!f->store->ops->absent) return;
    const once_request r = ask_natural(f, "k"), new = ask_natural(f, "new");
    assert_true(is_absent(f, new));
    assert_state(f, new, ABSENT);
    do_begin(f);
    assert_true(is_absent(f, r));
    do_claim(f, &r);
    assert_false(is_absent(f, r)); /* in the transaction that makes it, too */
    do_commit(f);
    assert_false(is_absent(f, r));
    assert_true(do_settle(f, &r, ONCE_RETRY));
    maybe_reopen(f);
    assert_false(is_absent(f, r));
    pass(f, DELAY);
    once_taken t = take_one(f);
    do_settle(f, &t.request, ONCE_DEAD);
    maybe_reopen(f);
    assert_false(is_absent(f, r));
    const once_request other = ask(f, "k2"); /* what is remembered has an entry, too */
    do_claim(f, &other);
    assert_true(do_settle(f, &other, ONCE_DONE));
    assert_false(is_absent(f, other));
}

const conform_test conform_natural[] = {
    CONFORM(nothing_is_kept_of_what_finished),
    CONFORM(f26_a_natural_one_that_is_not_finished_conflicts),
    CONFORM(f26_a_late_fingerprint_is_compared_too),
    CONFORM_WITH(failures_of_natural_ones_are_entries, ONCE_STORE_OWNS),
    CONFORM(f14_a_zombie_of_a_natural_one_keeps_no_body),
    CONFORM(what_operators_end_is_gone),
    CONFORM_WITH(what_was_promised_before_is_kept, ONCE_STORE_OWNS),
    CONFORM(f71_natural_ones_are_never_too_old_but_in_a_lane_with_versions),
    CONFORM_WITH(f28_older_is_stale_equal_runs_again, ONCE_STORE_LANES),
    CONFORM_WITH(f28_waiting_ones_of_the_lanes_version_run, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(several_lives_in_one_transaction, ONCE_STORE_LANES | ONCE_STORE_TX),
    CONFORM_WITH(a_rollback_brings_back_what_was_waiting, ONCE_STORE_TX | ONCE_STORE_OWNS),
    CONFORM_WITH(a_new_key_may_run_without_a_claim, ONCE_STORE_TX | ONCE_STORE_OWNS),
    CONFORM_WITH(f31_a_key_with_an_entry_is_not_absent, ONCE_STORE_TX | ONCE_STORE_OWNS),
    {0},
};
