/* Lanes: one at a time, in order, by version, with gaps, and nothing parked for ever. */
#include <stdio.h>

#include "conform.h"
#include "store/engine.h"

/* What a worker does: takes what is due, settles it, until nothing is due. Returns the keys in order, as one string. A
 * take may hand out nothing because it parked what it found, so one empty hand is not yet the end. */
static const char *work(fixture *f, once_outcome outcome)
{
    static char keys[200];
    size_t len = 0;
    once_taken taken[1];
    for (int idle = 0; idle < 4;) {
        if (do_take(f, 1, taken) == 0) {
            idle++;
            continue;
        }
        idle = 0;
        assert_true(len + 2 < sizeof keys);
        keys[len++] = taken[0].request.key.data[0];
        if (taken[0].decision.answer == ONCE_ANSWER_STALE) keys[len++] = '-';
        else if (taken[0].decision.answer == ONCE_ANSWER_DUPLICATE) keys[len++] = '=';
        else if (taken[0].decision.answer == ONCE_ANSWER_CONFLICT) keys[len++] = '!';
        else assert_true(do_settle(f, &taken[0].request, outcome));
    }
    keys[len] = '\0';
    return keys;
}

static once_request accept_lane(fixture *f, const char *key, int64_t version, int64_t gap_ms)
{
    const once_request r = ask_lane(f, key, "lane", version, gap_ms);
    assert_answer(do_accept(f, &r), WAITING);
    return r;
}

static void a_lane_runs_in_order_of_arrival(fixture *f)
{
    accept_lane(f, "a", -1, -1);
    accept_lane(f, "b", -1, -1);
    pass(f, 1);
    accept_lane(f, "c", -1, -1);
    once_taken taken[3];
    assert_int_equal(do_take(f, 3, taken), 1); /* one at a time */
    assert_bytes(taken[0].request.key, "a");
    assert_int_equal(do_take(f, 3, &taken[1]), 0);
    const once_request other_lane = ask_lane(f, "z", "another", -1, -1), late = ask_lane(f, "d", "lane", -1, -1);
    assert_answer(do_claim(f, &other_lane), RUN);
    const once_decision d = do_claim(f, &late);
    assert_answer(d, LATER);
    assert_true(d.wait_ms == ONCE_NEVER);
    assert_state(f, late, ABSENT);
    do_settle(f, &taken[0].request, ONCE_DONE);
    assert_string_equal(work(f, ONCE_DONE), "bc");
    assert_answer(do_claim(f, &late), RUN);
}

static void f27_lanes_are_scoped_by_tenant_and_consumer(fixture *f)
{
    const once_scope scopes[] = {{{0}, ONCE_BYTES("payments"), ONCE_BYTES("charge")},
                                 {ONCE_BYTES("t"), ONCE_BYTES("payments"), ONCE_BYTES("charge")},
                                 {{0}, ONCE_BYTES("shipping"), ONCE_BYTES("charge")},
                                 {{0}, ONCE_BYTES("payments"), ONCE_BYTES("refund")}};
    for (int i = 0; i < 4; i++) {
        f->scope = scopes[i];
        const once_request r = ask_lane(f, "k", "lane", -1, -1);
        if (i < 3) assert_answer(do_claim(f, &r), RUN);
        else assert_answer(do_claim(f, &r), LATER); /* an operation of the same consumer shares the lane */
    }
}

static void f33_followers_park_behind_a_failed_one(fixture *f)
{
    accept_lane(f, "a", -1, -1);
    accept_lane(f, "b", -1, -1);
    accept_lane(f, "c", -1, -1);
    for (int failure = 0; failure < 3; failure++) {
        const once_taken t = take_one(f);
        assert_bytes(t.request.key, "a");
        assert_int_equal(t.decision.failures, failure);
        do_settle(f, &t.request, ONCE_RETRY);
        once_taken none[1];
        assert_int_equal(do_take(f, 1, none), 0);
        pass(f, DELAY);
    }
    const once_taken t = take_one(f);
    do_settle(f, &t.request, ONCE_DEAD); /* f31: the stream moves on */
    assert_string_equal(work(f, ONCE_DONE), "bc");
    const once_request b = ask_lane(f, "b", "lane", -1, -1);
    assert_int_equal(do_get(f, b.id).attempt, 1); /* f77: parking was no attempt */
}

static void f33_unknown_and_held_hold_their_lane(fixture *f)
{
    once_request a = ask_lane(f, "a", "lane", -1, -1);
    a.hold = true;
    assert_answer(do_claim(f, &a), RUN);
    do_accept(f, &a);
    accept_lane(f, "b", -1, -1);
    pass(f, LEASE);
    once_taken none[1];
    assert_int_equal(do_take(f, 1, none), 1); /* only told */
    assert_true(none[0].decision.answer == ONCE_ANSWER_UNKNOWN && none[0].decision.lapsed);
    assert_state(f, a, UNKNOWN);
    assert_string_equal(work(f, ONCE_DONE), "");
    assert_true(do_settle(f, &a, ONCE_DONE));
    assert_string_equal(work(f, ONCE_DONE), "b");
}

/* It may have had its effect, so a lower version must not come after it: neither by what is stored, nor by what an open
 * transaction knows. */
static void f28_an_unknown_version_holds_back_older_ones(fixture *f)
{
    const once_request nine = ask_lane(f, "9", "lane", 9, -1), five = ask_lane(f, "5", "lane", 5, -1);
    assert_answer(do_claim(f, &nine), RUN);
    do_settle(f, &nine, ONCE_UNKNOWN);
    assert_state(f, nine, UNKNOWN);
    assert_answer(do_claim(f, &five), LATER);
    accept_lane(f, "6", 6, -1);
    assert_string_equal(work(f, ONCE_DONE), "");

    if (!(f->store->bits & ONCE_STORE_TX)) return;
    const once_request other = ask_lane(f, "8", "other", 8, -1), older = ask_lane(f, "4", "other", 4, -1);
    do_begin(f);
    assert_answer(do_claim(f, &other), RUN);
    do_settle(f, &other, ONCE_UNKNOWN);
    assert_answer(do_claim(f, &older), LATER);
    do_commit(f);
    assert_answer(do_claim(f, &older), LATER);
}

static void forgetting_the_first_frees_the_next(fixture *f)
{
    const once_request a = ask_lane(f, "a", "lane", -1, -1);
    do_claim(f, &a);
    accept_lane(f, "b", -1, -1);
    assert_string_equal(work(f, ONCE_DONE), "");
    assert_true(do_forget(f, a.id));
    assert_string_equal(work(f, ONCE_DONE), "b");
}

static void f28_versions_run_in_order_and_older_ones_are_stale(fixture *f)
{
    accept_lane(f, "3", 3, -1); /* nothing is known: the lower one goes first */
    accept_lane(f, "2", 2, -1);
    assert_string_equal(work(f, ONCE_DONE), "23");
    const once_request equal = ask_lane(f, "other 3", "lane", 3, -1), older = ask_lane(f, "1", "lane", 1, -1);
    assert_answer(do_claim(f, &equal), DUPLICATE);
    assert_answer(do_accept(f, &equal), DUPLICATE);
    assert_answer(do_claim(f, &older), STALE);
    assert_answer(do_claim(f, &older), STALE); /* f76 */
    assert_state(f, older, STALE);
    const once_request again = ask_lane(f, "1", "lane", 1, -1);
    const once_decision d = do_claim(f, &again);
    assert_answer(d, DUPLICATE);
    assert_int_equal(d.outcome, ONCE_STALE);
    const once_request jump = ask_lane(f, "9", "lane", 9, -1);
    assert_answer(do_claim(f, &jump), RUN); /* without gap */
    do_settle(f, &jump, ONCE_REJECTED);
    const once_request eight = ask_lane(f, "8", "lane", 8, -1);
    assert_answer(do_accept(f, &eight), STALE); /* a rejected version was one too */
}

static void f28_superseded_while_waiting_is_handed_out_as_stale(fixture *f)
{
    const once_request nine = ask_lane(f, "9", "lane", 9, -1);
    do_claim(f, &nine);
    accept_lane(f, "5", 5, -1);
    accept_lane(f, "7", 7, -1);
    do_settle(f, &nine, ONCE_DONE);
    assert_string_equal(work(f, ONCE_DONE), "5-7-");
    const once_request five = ask_lane(f, "5", "lane", 5, -1);
    assert_state(f, five, STALE);
    assert_false(do_get(f, five.id).has_message);
}

static void f28_a_gap_waits_for_the_missing_version(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    const once_request four = ask_lane(f, "4", "lane", 4, 500);
    const once_decision d = do_claim(f, &four);
    assert_answer(d, GAP);
    assert_int_equal(d.wait_ms, 500);
    assert_int_equal(do_accept(f, &four).wait_ms, 250); /* when to look */
    accept_lane(f, "3", 3, 500);
    assert_string_equal(work(f, ONCE_DONE), "");
    pass(f, 400);
    accept_lane(f, "2", 2, 500);
    assert_string_equal(work(f, ONCE_DONE), "234");
    assert_int_equal(do_get(f, four.id).failures, 0);
}

static void f28_a_gap_that_stays_is_said_to_be_over(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    accept_lane(f, "3", 3, 500);
    assert_int_equal(do_stats(f).wait_ms, 250);
    pass(f, 250);
    assert_string_equal(work(f, ONCE_DONE), "");
    pass(f, 250);
    const once_taken t = take_one(f);
    assert_true(t.decision.gap_over);
    assert_int_equal(t.decision.given_up, 1);
    once_taken same[1]; /* the reply was lost */
    size_t n;
    assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, t.request.token, true, LEASE, 1, NULL, same, &n,
                                     &f->arena, &f->err));
    assert_true(n == 1 && same[0].decision.gap_over);
    assert_int_equal(same[0].decision.given_up, 1);
    assert_bytes(t.decision.reason, "version 2 did not come within 500ms");
    assert_int_equal(t.decision.failures, 0);
    const once_settlement done = {.request = &t.request, .outcome = ONCE_DONE};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &done, 1, &applied, &f->err));
    const once_request three = ask_lane(f, "3", "lane", 3, 500);
    assert_bytes(do_get(f, three.id).reason,
                 "version 2 did not come within 500ms"); /* it ran, and says what was missing */
    const once_request two = ask_lane(f, "2", "lane", 2, 500);
    assert_answer(do_claim(f, &two), STALE);
    assert_bytes(do_get(f, two.id).reason, "version 2 was given up before it came");
}

/* The wait is kept by the store: what passes while nobody looks does not count, and a restart does not begin anew. */
static void f28_a_gap_waits_only_while_somebody_runs(fixture *f)
{
    accept_lane(f, "1", 1, 4000);
    work(f, ONCE_DONE);
    accept_lane(f, "3", 3, 4000);
    for (int i = 0; i < 10; i++) {
        pass(f, 250);
        assert_string_equal(work(f, ONCE_DONE), "");
    }
    reopen(f);
    pass(f, REMEMBER * 3); /* longer than anything is remembered */
    sweep_all(f, 100);
    assert_string_equal(work(f, ONCE_DONE), ""); /* 2500 of 4000, and 500 of that */
    const once_request two = ask_lane(f, "2", "lane", 2, 4000), three = ask_lane(f, "3", "lane", 3, 4000);
    once_bytes why;
    assert_ok(f, f->store->ops->explain_lane(f->store, three.id, &why, &f->arena, &f->err));
    assert_bytes(why, "version 2 is missing; 3s of 4s have passed");
    for (int i = 0; i < 3; i++) {
        pass(f, 250);
        assert_string_equal(work(f, ONCE_DONE), "");
    }
    assert_answer(do_claim(f, &two), RUN); /* it comes just in time */
    do_settle(f, &two, ONCE_DONE);
    assert_string_equal(work(f, ONCE_DONE), "3");
}

/* Dead because of the gap, and those behind it run on; a further hole is another wait. */
/* Whoever waited in vain died before it settled that; the reply to the one that took over was lost. */
static void f28_what_was_given_up_is_told_again_with_a_lost_reply(fixture *f)
{
    const once_request one = ask_lane(f, "a", "lane", 1, 1000);
    assert_answer(do_claim(f, &one), RUN);
    do_settle(f, &one, ONCE_DONE);
    accept_lane(f, "c", 3, 1000);
    once_taken taken[1];
    while (do_take(f, 1, taken) == 0) pass(f, 250);
    assert_true(taken[0].decision.gap_over && taken[0].decision.given_up == 1);
    pass(f, LEASE);
    const once_token token = new_token(f);
    for (int again = 0; again < 2; again++) {
        size_t n;
        assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, again, LEASE, 1, NULL, taken, &n,
                                         &f->arena, &f->err));
        assert_int_equal(n, 1);
        assert_int_equal(taken[0].decision.attempt, 2);
        assert_true(taken[0].decision.given_up == 1);
    }
}

static void f28_followers_of_a_version_that_was_given_up_run_on(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    accept_lane(f, "4", 4, 500);
    accept_lane(f, "5", 5, 500);
    accept_lane(f, "6", 6, 500);
    accept_lane(f, "8", 8, 500);
    pass(f, 500);
    const once_taken t = take_one(f);
    assert_true(t.decision.gap_over);
    assert_bytes(t.decision.reason, "versions 2 to 3 did not come within 500ms");
    do_settle(f, &t.request, ONCE_DEAD);
    assert_string_equal(work(f, ONCE_DONE), "56");
    pass(f, 250);
    assert_string_equal(work(f, ONCE_DONE), "");
    pass(f, 250);
    assert_string_equal(work(f, ONCE_DONE), "8");
}

/* They were given up for one that died or is still at it: whoever of them comes runs, until a newer one has settled. */
static void f28_a_version_that_was_given_up_runs_while_nothing_newer_settled(fixture *f)
{
    for (int way = 0; way < 3; way++) {
        static const char *const names[] = {"2", "3", "4", "9"};
        once_letter letter;
        bool found;
        accept_lane(f, "1", 1, 500);
        work(f, ONCE_DONE);
        accept_lane(f, "9", INT64_MAX, 500);
        pass(f, 500);
        const once_taken wrong = take_one(f);
        assert_true(wrong.decision.gap_over);
        accept_lane(f, "2", 2, 500);
        assert_string_equal(work(f, ONCE_DONE), ""); /* that one is at work: the order of the lane decides */
        do_settle(f, &wrong.request, ONCE_DEAD);
        assert_int_equal(list_letters(f, &letter, 1), 1);
        if (way == 1) assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
        assert_string_equal(work(f, ONCE_DONE), "2");
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        accept_lane(f, "4", 4, 500);
        assert_string_equal(work(f, ONCE_DONE), ""); /* the lane waits as before */
        accept_lane(f, "3", 3, 500);
        assert_string_equal(work(f, ONCE_DONE), "34");
        if (way == 0) assert_true(do_replay(f, letter.id));
        if (way == 0) assert_string_equal(work(f, ONCE_DONE), "9");
        const once_request five = ask_lane(f, "5", "lane", 5, 500);
        if (way == 0) assert_answer(do_claim(f, &five), STALE);
        if (way == 2) assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            do_forget(f, ask_lane(f, names[i], "lane", 1, 500).id);
        pass(f, REMEMBER * 3);
    }
}

/* With `block`, too: those behind the one that died wait for its letter, those that it waited for do not. */
static void f33_a_gap_that_ends_in_a_letter_blocks_those_behind_it(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    once_request r = ask_lane(f, "4", "lane", 4, 500);
    r.lane.block = true;
    assert_answer(do_accept(f, &r), WAITING);
    accept_lane(f, "5", 5, 500);
    pass(f, 500);
    const once_taken t = take_one(f);
    assert_true(t.decision.gap_over);
    do_settle(f, &t.request, ONCE_DEAD);
    assert_string_equal(work(f, ONCE_DONE), "");
    accept_lane(f, "2", 2, 500);
    accept_lane(f, "3", 3, 500);
    assert_string_equal(work(f, ONCE_DONE), "23");
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_string_equal(work(f, ONCE_DONE), "45");
}

static void f28_nobody_waits_for_a_version_that_died(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    accept_lane(f, "2", 2, 500);
    accept_lane(f, "3", 3, 500);
    once_taken t = take_one(f);
    do_settle(f, &t.request, ONCE_DONE);
    t = take_one(f);
    do_settle(f, &t.request, ONCE_DEAD);
    assert_string_equal(work(f, ONCE_DONE), "3");
}

/* --- f86: where a lane begins, and equal versions --- */

static once_request accept_first(fixture *f, const char *key, int64_t version)
{
    once_request r = ask_lane(f, key, "lane", version, 500);
    r.lane.has_first = true;
    r.lane.first = 1;
    assert_answer(do_accept(f, &r), WAITING);
    return r;
}

static void f86_a_lane_waits_for_its_first_version(fixture *f)
{
    accept_first(f, "3", 3);
    assert_string_equal(work(f, ONCE_DONE), "");
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    pass(f, 250);
    assert_string_equal(work(f, ONCE_DONE), "");
    accept_first(f, "1", 1);
    accept_first(f, "2", 2);
    assert_string_equal(work(f, ONCE_DONE), "123");
}

static void f86_a_first_version_that_does_not_come_is_given_up(fixture *f)
{
    accept_first(f, "3", 3);
    pass(f, 500);
    const once_taken t = take_one(f);
    assert_bytes(t.decision.reason, "versions 1 to 2 did not come within 500ms");
    do_settle(f, &t.request, ONCE_DEAD);
    accept_first(f, "4", 4);
    assert_string_equal(work(f, ONCE_DONE), "4");
    const once_request one = ask_lane(f, "1", "lane", 1, 500);
    assert_answer(do_claim(f, &one), STALE);
}

static void f86_an_equal_version_under_another_key_is_recorded(fixture *f)
{
    accept_lane(f, "first", 3, -1);
    work(f, ONCE_DONE);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    const once_request same = ask_lane(f, "second", "lane", 3, -1), third = ask_lane(f, "third", "lane", 3, -1);
    once_request other = ask_lane(f, "other", "lane", 3, -1), fourth = ask_lane(f, "fourth", "lane", 3, -1);
    other.fingerprint = (once_hash){3, 4};
    fourth.fingerprint = (once_hash){0};
    once_decision d;
    assert_ok(f, f->store->ops->look(f->store, &same, &d, &f->arena, &f->err));
    assert_answer(d, DUPLICATE);
    assert_bytes(d.reason, "version 3 of this lane was settled by key 'first'");
    assert_state(f, same, ABSENT); /* nothing was written */
    d = do_claim(f, &same);
    assert_answer(d, DUPLICATE);
    assert_int_equal(d.outcome, ONCE_ALREADY);
    assert_false(d.own);
    assert_false(do_claim(f, &same).own); /* f76 */
    assert_answer(do_accept(f, &third), DUPLICATE);
    assert_state(f, same, ALREADY);
    assert_state(f, third, ALREADY);
    assert_bytes(do_get(f, same.id).reason, "version 3 of this lane was settled by key 'first'");
    assert_answer(do_accept(f, &fourth), DUPLICATE); /* whoever has no fingerprint asks for no comparison */
    d = do_claim(f, &other);
    assert_answer(d, CONFLICT);
    assert_bytes(d.reason, "version 3 of this lane was settled by key 'first' with other content");
    assert_answer(do_accept(f, &other), CONFLICT);
    assert_state(f, other, ABSENT);
    pass(f, REMEMBER);
    assert_state(f, same, ABSENT); /* kept as long as others */
}

static void f86_an_equal_version_waits_for_the_first_and_is_judged_then(fixture *f)
{
    const once_request first = ask_lane(f, "a", "lane", 5, -1);
    once_request other = ask_lane(f, "c", "lane", 5, -1);
    other.fingerprint = (once_hash){3, 4};
    assert_answer(do_claim(f, &first), RUN);
    const once_request same = accept_lane(f, "b", 5, -1);
    assert_answer(do_accept(f, &other), WAITING);
    accept_lane(f, "6", 6, -1);
    assert_string_equal(work(f, ONCE_DONE), "");
    do_settle(f, &first, ONCE_DONE);
    assert_string_equal(work(f, ONCE_DONE), "b=c!6");
    assert_state(f, same, ALREADY);
    assert_state(f, other, DEAD);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_int_equal(letter.kind, ONCE_ANSWER_CONFLICT);
    assert_bytes(letter.reason, "version 5 of this lane was settled by key 'a' with other content");
    assert_true(letter.message.body.len > 0); /* nothing of it is lost */
}

static once_decision do_outlook(fixture *f, const once_request *r)
{
    once_decision d;
    assert_ok(f, f->store->ops->outlook(f->store, r, &d, &f->arena, &f->err));
    return d;
}

/* Before a message comes back from its letter, whatever became of its key. */
static void f34_a_lane_says_what_it_would_make_of_a_letter(fixture *f)
{
    const once_request one = accept_lane(f, "1", 1, -1), two = accept_lane(f, "2", 2, -1),
                       three = accept_lane(f, "3", 3, -1);
    assert_string_equal(work(f, ONCE_DEAD), "123");
    assert_answer(do_outlook(f, &one), RUN);
    once_letter letters[3];
    assert_int_equal(list_letters(f, letters, 3), 3);
    assert_true(do_replay(f, letters[2].id));
    assert_answer(do_outlook(f, &one), RUN); /* the newer one waits, and would go behind it */
    const once_taken t = take_one(f);
    assert_bytes(t.request.key, "3");
    once_decision d = do_outlook(f, &one);
    assert_answer(d, STALE);
    assert_bytes(d.reason,
                 "a newer version of its lane is running, or its end is unknown; ask again when it has settled");
    do_settle(f, &t.request, ONCE_DONE);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    once_request elsewhere = ask_lane(f, "1", "other", 9, -1);
    d = do_outlook(f, &elsewhere); /* a dead one keeps its place */
    assert_answer(d, STALE);
    assert_bytes(d.reason, "version 3 of this lane was settled by key '3'");
    assert_answer(do_outlook(f, &two), STALE);
    assert_state(f, two, DEAD); /* nothing was written */
    assert_answer(do_outlook(f, &three),
                  RUN); /* the one that settled the version runs once more when it is forced to */
    const once_request equal = ask_lane(f, "4", "lane", 3, -1), newer = ask_lane(f, "5", "lane", 4, -1),
                       free = ask_lane(f, "6", "other", -1, -1);
    once_request other = ask_lane(f, "7", "lane", 3, -1);
    other.fingerprint = (once_hash){3, 4};
    d = do_outlook(f, &equal);
    assert_answer(d, DUPLICATE);
    assert_true(d.lane);
    d = do_outlook(f, &other);
    assert_answer(d, CONFLICT);
    assert_bytes(d.reason, "version 3 of this lane was settled by key '3' with other content");
    assert_answer(do_outlook(f, &newer), RUN);
    assert_answer(do_outlook(f, &free), RUN);
    assert_state(f, equal, ABSENT);
}

/* --- f33: a dead one that blocks --- */

static once_request accept_blocking_version(fixture *f, const char *key, int64_t version)
{
    once_request r = ask_lane(f, key, "lane", version, -1);
    r.lane.block = true;
    assert_answer(do_accept(f, &r), WAITING);
    return r;
}

static once_request accept_blocking(fixture *f, const char *key) { return accept_blocking_version(f, key, -1); }

static void f33_a_dead_one_that_blocks_holds_its_lane(fixture *f)
{
    for (int way = 0; way < 3; way++) {
        const once_request a = accept_blocking(f, "a"), b = accept_blocking(f, "b");
        const once_taken t = take_one(f);
        assert_bytes(t.request.key, "a");
        assert_true(t.request.lane.block);
        do_settle(f, &t.request, ONCE_DEAD);
        assert_string_equal(work(f, ONCE_DONE), "");
        assert_true(do_stats(f).wait_ms == ONCE_NEVER); /* nothing will be due by itself */
        const once_request c = accept_blocking(f, "c");
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        pass(f, REMEMBER * 3);
        sweep_all(f, 100);
        assert_string_equal(work(f, ONCE_DONE), "");
        once_bytes why;
        assert_ok(f, f->store->ops->explain_lane(f->store, b.id, &why, &f->arena, &f->err));
        assert_bytes(why, "it waits for a dead letter of its lane to be replayed or discarded");
        once_letter letter;
        bool found;
        assert_int_equal(list_letters(f, &letter, 1), 1);
        if (way == 0) assert_true(do_replay(f, letter.id));
        else if (way == 1) assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
        else assert_true(do_forget(f, a.id));
        assert_string_equal(work(f, ONCE_DONE), way == 0 ? "abc" : "bc");
        assert_state(f, c, DONE);
        if (way == 2) assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
        pass(f, REMEMBER);
    }
}

/* A lane that is blocked stays so, also when an older version finishes and nobody waits meanwhile. */
static void f33_a_blocked_lane_does_not_expire(fixture *f)
{
    once_request five = ask_lane(f, "5", "lane", 5, -1), six = ask_lane(f, "6", "lane", 6, -1);
    five.lane.block = six.lane.block = true;
    assert_answer(do_accept(f, &five), WAITING);
    assert_string_equal(work(f, ONCE_DEAD), "5");
    accept_lane(f, "4", 4, -1);
    assert_string_equal(work(f, ONCE_DONE), "4");
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    pass(f, REMEMBER * 3);
    sweep_all(f, 100);
    assert_answer(do_claim(f, &six), LATER);
    assert_answer(do_accept(f, &six), WAITING);
    assert_string_equal(work(f, ONCE_DONE), "");
    once_letter letter;
    bool found;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
    assert_string_equal(work(f, ONCE_DONE), "6");
}

/* Older versions come late, in front of a dead one: some die, too, one is done. The lane waits for every letter. */
static void f33_a_lane_waits_for_all_its_dead_that_block(fixture *f)
{
    once_letter letters[4];
    bool found;
    for (int way = 0; way < 2; way++) {
        accept_blocking_version(f, "6", 6);
        assert_string_equal(work(f, ONCE_DEAD), "6");
        accept_blocking_version(f, "5", 5);
        assert_string_equal(work(f, ONCE_DEAD), "5");
        accept_blocking_version(f, "4", 4);
        assert_string_equal(work(f, ONCE_DEAD), "4");
        accept_blocking_version(f, "3", 3);
        assert_string_equal(work(f, ONCE_DONE), "3");
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        pass(f, REMEMBER * 3);
        sweep_all(f, 100);
        accept_blocking_version(f, "7", 7);
        assert_int_equal(list_letters(f, letters, 4), 3);
        for (int i = 0; i < 3; i++) {
            assert_string_equal(work(f, ONCE_DONE), "");
            assert_ok(f, f->store->ops->discard(f->store, letters[way ? 2 - i : i].id, REMEMBER, &found, &f->err));
            assert_true(found);
        }
        assert_string_equal(work(f, ONCE_DONE), "7");
        pass(f, REMEMBER);
        sweep_all(f, 100);
    }
}

/* Two gaps end at once; the higher one is parked, and there is a gap again when the lower one is settled. */
static void f28_two_gaps_that_end_together(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    accept_lane(f, "5", 5, 500);
    accept_lane(f, "3", 3, 500);
    pass(f, 500);
    assert_string_equal(work(f, ONCE_DONE), "3");
    assert_true(do_stats(f).wait_ms <= 500);
    pass(f, 500);
    assert_string_equal(work(f, ONCE_DONE), "5");
}

static void equals_in_a_lane_do_not_wait_for_each_other(fixture *f)
{
    accept_lane(f, "a", 5, -1); /* the same version under two keys */
    accept_lane(f, "b", 5, -1);
    assert_string_equal(work(f, ONCE_DONE), "ab=");
}

static void accept_at_once(fixture *f, const once_request *requests, size_t n)
{
    enum { MOST = 8 };
    assert_true(n <= MOST);
    once_message messages[MOST];
    const once_request *asked[MOST];
    const once_message *bodies[MOST];
    once_decision decisions[MOST];
    for (size_t i = 0; i < n; i++) {
        messages[i] = message_of(&requests[i]);
        asked[i] = &requests[i];
        bodies[i] = &messages[i];
    }
    assert_ok(f, f->store->ops->accept(f->store, asked, bodies, n, decisions, &f->arena, &f->err));
    for (size_t i = 0; i < n; i++) assert_answer(decisions[i], WAITING);
}

/* Ids are hashes: with so many rounds an order that follows them is found out. */
static void f86_of_equals_behind_a_gap_the_first_runs(fixture *f)
{
    static const int64_t versions[] = {3, 2, 1, 2, 3};
    static const char names[] = "cbaBC"; /* which are what `work` says */
    for (int round = 0; round < 15; round++) {
        char lane[16], keys[5][16];
        once_request requests[5];
        snprintf(lane, sizeof lane, "lane-%d", round);
        for (int i = 0; i < 5; i++) {
            snprintf(keys[i], sizeof keys[i], "%c-%d", names[i], round);
            requests[i] = ask_lane(f, keys[i], lane, versions[i], 500);
            requests[i].lane.has_first = true;
            requests[i].lane.first = 1;
            if (names[i] == 'C') requests[i].fingerprint = (once_hash){3, 4};
            if (round % 3) assert_answer(do_accept(f, &requests[i]), WAITING);
            if (round % 3 == 1 && f->store->bits & ONCE_STORE_DURABLE) reopen(f);
            if (round % 3 == 2) pass(f, 1);
        }
        if (round % 3 == 0) accept_at_once(f, requests, 5);
        assert_string_equal(work(f, ONCE_DONE), "abB=cC!");
        assert_state(f, requests[3], ALREADY);
        assert_state(f, requests[4], DEAD);
    }
}

/* The first one is tried again later: its equal waits for that, too. */
static void f86_an_equal_version_waits_while_the_first_one_fails(fixture *f)
{
    for (int round = 0; round < 12; round++) {
        char lane[16], first[16], second[16];
        snprintf(lane, sizeof lane, "lane-%d", round);
        snprintf(first, sizeof first, "a-%d", round);
        snprintf(second, sizeof second, "b-%d", round);
        const once_request a = ask_lane(f, first, lane, 5, -1), b = ask_lane(f, second, lane, 5, -1);
        assert_answer(do_claim(f, &a), RUN);
        assert_answer(do_accept(f, &a), BUSY);
        assert_answer(do_accept(f, &b), WAITING);
        do_settle(f, &a, ONCE_RETRY);
        assert_string_equal(work(f, ONCE_DONE), "");
        if (round % 2 && f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        pass(f, DELAY);
        assert_string_equal(work(f, ONCE_DONE), "ab=");
    }
}

/* So far from both ends of the lane that a store need not have read them. */
static void f86_the_first_of_many_equals_runs(fixture *f)
{
    enum { OTHERS = 20, MANY = 20 };
    once_request requests[MANY];
    char key[16], keys[MANY][16];
    for (int64_t i = 0; i < 2 * OTHERS; i++) {
        snprintf(key, sizeof key, "%c%d", i < OTHERS ? '<' : '>', (int)i);
        accept_lane(f, key, i < OTHERS ? i : 100 + i, -1);
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "%c%d", i ? 'x' : 'f', i);
        requests[i] = ask_lane(f, keys[i], "lane", 50, -1);
        assert_answer(do_accept(f, &requests[i]), WAITING);
        if (i % 5 < 2 && f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    }
    int64_t seen_ms = 0;
    for (int i = 0; i < MANY; i++) {
        const once_entry e = do_get(f, requests[i].id);
        assert_true(e.seen_ms > seen_ms);
        seen_ms = e.seen_ms;
    }
    const char *const order = work(f, ONCE_DONE);
    assert_memory_equal(order, "<<<<<<<<<<<<<<<<<<<<fx=x=", OTHERS + 5);
    assert_memory_equal(order + OTHERS + 2 * MANY - 1, ">>>>>>>>>>>>>>>>>>>>", OTHERS + 1);
    assert_state(f, requests[0], DONE);
    for (int i = 1; i < MANY; i++) assert_state(f, requests[i], ALREADY);
}

/* Equal versions that begin at the end of the lane that a store has read, and go on where it has not. */
static void f86_equals_at_the_border_of_what_is_known(fixture *f)
{
    enum { OTHERS = 20, MANY = 20 };
    for (int lower = 0; lower < 12; lower++) {
        char lane[16], key[16], keys[MANY][16];
        int64_t seen_ms = 0;
        snprintf(lane, sizeof lane, "lane-%d", lower);
        for (int i = 0; i < lower + OTHERS; i++) {
            snprintf(key, sizeof key, "o%d-%d", lower, i);
            const once_request other = ask_lane(f, key, lane, i < lower ? i : 100 + i, -1);
            assert_answer(do_accept(f, &other), WAITING);
        }
        for (int i = 0; i < MANY; i++) {
            snprintf(keys[i], sizeof keys[i], "e%d-%d", lower, i);
            const once_request equal = ask_lane(f, keys[i], lane, 50, -1);
            assert_answer(do_accept(f, &equal), WAITING);
            const once_entry e = do_get(f, equal.id);
            assert_true(e.seen_ms > seen_ms);
            seen_ms = e.seen_ms;
        }
    }
}

/* More of them than are looked at where their version is settled. It is not, so the first one goes first, although its
 * id is the last. */
static void f86_the_first_of_a_thousand_equals_runs(fixture *f)
{
    enum { MANY = ONCE_LANE_EQUALS + 100, BATCH = 100 };
    static once_request requests[MANY];
    static char keys[MANY][16];
    static once_message messages[BATCH];
    const once_request *asked[BATCH];
    const once_message *bodies[BATCH];
    once_decision decisions[BATCH];
    accept_lane(f, "before", 49, -1);
    for (size_t i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "k%zu", i);
        requests[i] = ask_lane(f, keys[i], "lane", 50, -1);
        if (once_hash_compare(requests[i].id, requests[0].id) <= 0) continue;
        const once_request first = requests[0];
        requests[0] = requests[i];
        requests[i] = first;
    }
    for (size_t at = 0; at < MANY; at += BATCH) {
        for (size_t i = 0; i < BATCH; i++) {
            messages[i] = message_of(&requests[at + i]);
            asked[i] = &requests[at + i];
            bodies[i] = &messages[i];
        }
        assert_ok(f, f->store->ops->accept(f->store, asked, bodies, BATCH, decisions, &f->arena, &f->err));
    }
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    const once_taken before = take_one(f);
    const once_settlement done = {.request = &before.request, .outcome = ONCE_DONE};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &done, 1, &applied, &f->err));
    assert_true(applied);
    assert_true(once_hash_equal(take_one(f).request.id, requests[0].id));
}

static void what_comes_back_from_the_dead_does_not_block_its_lane(fixture *f)
{
    accept_lane(f, "a", -1, -1);
    assert_string_equal(work(f, ONCE_DEAD), "a");
    accept_lane(f, "b", -1, -1);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_int_equal(strlen(work(f, ONCE_DONE)), 2);
    assert_int_equal(do_stats(f).waiting, 0);
}

/* v5 was claimed, its worker died; v3 came meanwhile. v5 goes on, then v3 is stale. Neither waits for the other. */
static void f24_an_orphan_and_what_came_in_front_of_it(fixture *f)
{
    const once_request five = ask_lane(f, "5", "lane", 5, -1);
    do_claim(f, &five);
    do_accept(f, &five);
    accept_lane(f, "3", 3, -1);
    assert_string_equal(work(f, ONCE_DONE), "");
    pass(f, LEASE);
    assert_string_equal(work(f, ONCE_DONE), "53-");
}

static void the_highest_version_there_is(fixture *f)
{
    accept_lane(f, "m", INT64_MAX, 500);
    accept_lane(f, "n", -1, -1); /* without a version, behind it */
    assert_string_equal(work(f, ONCE_DONE), "mn");
    const once_request zero = ask_lane(f, "0", "lane", 0, 500);
    assert_answer(do_claim(f, &zero), STALE);
}

/* Somebody waited in the lane and left it. What it remembers was promised by another one, whose clock is ahead. */
static void f71_a_lane_remembers_its_version_until_older_ones_are_too_old(fixture *f)
{
    once_request five = ask_lane(f, "5", "lane", 5, 500), four = ask_lane(f, "4", "lane", 4, 500);
    five.sent_ms = four.sent_ms = TEST_EPOCH_MS + REMEMBER / 2;
    four.natural = true; /* nothing but its lane says that it is stale */
    assert_answer(do_claim(f, &five), RUN);
    do_settle(f, &five, ONCE_DONE);
    const once_request seven = accept_lane(f, "7", 7, 500);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    assert_true(do_forget(f, seven.id));
    pass(f, REMEMBER);
    sweep_all(f, 10);
    assert_answer(do_claim(f, &four), STALE);
    pass(f, REMEMBER);
    sweep_all(f, 10);
    four.sent_ms = ONCE_NO_TIME;
    assert_answer(do_claim(f, &four), RUN); /* it has rested */
}

static void a_lane_forgets_its_version_with_its_entries(fixture *f)
{
    accept_lane(f, "5", 5, 500);
    work(f, ONCE_DONE);
    pass(f, REMEMBER - 1);
    const once_request four = ask_lane(f, "4", "lane", 4, 500);
    assert_answer(do_claim(f, &four), STALE);
    pass(f, 1);
    sweep_all(f, 1);
    const once_request three = ask_lane(f, "3", "lane", 3, 500);
    assert_answer(do_claim(f, &three), RUN);
}

static void a_lane_in_a_transaction_sees_its_own_claims(fixture *f)
{
    const once_request one = ask_lane(f, "1", "lane", 1, 500), two = ask_lane(f, "2", "lane", 2, 500),
                       four = ask_lane(f, "4", "lane", 4, 500);
    for (int committed = 0; committed < 2; committed++) {
        do_begin(f);
        assert_answer(do_claim(f, &one), RUN);
        assert_answer(do_claim(f, &two), LATER);
        assert_true(do_settle(f, &one, ONCE_DONE));
        assert_answer(do_claim(f, &four), GAP);
        assert_answer(do_claim(f, &two), RUN); /* a second round */
        assert_true(do_settle(f, &two, ONCE_DONE));
        if (committed) do_commit(f);
        else do_rollback(f);
    }
    const once_request old = ask_lane(f, "0", "lane", 0, 500);
    assert_answer(do_claim(f, &old), STALE);
}

static void a_rollback_takes_the_version_of_a_lane_back(fixture *f)
{
    accept_lane(f, "1", 1, -1);
    const once_taken t = take_one(f);
    accept_lane(f, "2", 2, -1);
    do_begin(f);
    do_settle(f, &t.request, ONCE_DONE);
    do_rollback(f);
    assert_string_equal(work(f, ONCE_DONE), ""); /* the follower is parked again */
    const once_request zero = ask_lane(f, "0", "lane", 0, -1);
    assert_answer(do_claim(f, &zero), LATER); /* nothing has settled yet */
    do_settle(f, &t.request, ONCE_DONE);
    assert_string_equal(work(f, ONCE_DONE), "2");
}

static void f33_lanes_survive_a_restart(fixture *f)
{
    accept_lane(f, "1", 1, 500);
    work(f, ONCE_DONE);
    accept_lane(f, "2", 2, 500);
    accept_lane(f, "3", 3, 500);
    accept_lane(f, "9", 9, 500);
    reopen(f);
    assert_string_equal(work(f, ONCE_DONE), "23");
    reopen(f);
    pass(f, 500);
    assert_string_equal(work(f, ONCE_DONE), "9");
    reopen(f);
    const once_request old = ask_lane(f, "8", "lane", 8, 500);
    assert_answer(do_claim(f, &old), STALE);
}

/* --- what stands before an entry --- */

/* "a:waiting b:claimed 2", with how many there are at the end. */
static const char *before(fixture *f, once_hash id, size_t max, once_in_lane *out)
{
    static char shown[400];
    size_t len = 0;
    assert_ok(f, f->store->ops->in_lane(f->store, id, max, out, &f->arena, &f->err));
    for (size_t i = 0; i < out->n; i++)
        len += (size_t)snprintf(shown + len, sizeof shown - len, "%.*s:%s ", (int)out->before[i].key.len,
                                out->before[i].key.data, once_state_name(out->before[i].state));
    snprintf(shown + len, sizeof shown - len, "%llu", (unsigned long long)out->count);
    return shown;
}

static void what_stands_before_in_a_lane(fixture *f)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    once_request r[5];
    once_in_lane at;
    for (int i = 0; i < 5; i++) r[i] = accept_lane(f, keys[i], -1, -1);
    const once_request other = ask_lane(f, "z", "another", -1, -1), alone = ask(f, "alone");
    assert_answer(do_accept(f, &other), WAITING);
    assert_answer(do_accept(f, &alone), WAITING);
    assert_string_equal(before(f, r[0].id, 8, &at), "0");
    assert_true(once_hash_equal(at.lane, r[0].lane.id) && !at.versioned && !at.gap);
    assert_string_equal(before(f, r[4].id, 8, &at), "a:waiting b:waiting c:waiting d:waiting 4");
    assert_string_equal(before(f, r[4].id, 2, &at), "a:waiting b:waiting 4");
    assert_string_equal(before(f, r[2].id, 8, &at), "a:waiting b:waiting 2");
    assert_string_equal(before(f, other.id, 8, &at), "0");
    assert_string_equal(before(f, alone.id, 8, &at), "0");
    assert_true(once_hash_is_zero(at.lane));

    once_taken taken[3];
    const size_t n = do_take(f, 3, taken);
    const once_taken *t = NULL;
    for (size_t i = 0; i < n; i++)
        if (taken[i].request.key.data[0] == 'a' && taken[i].request.key.len == 1) t = &taken[i];
    assert_non_null(t);
    assert_string_equal(before(f, r[1].id, 8, &at), "a:claimed 1");
    assert_true(at.before[0].due_ms > TEST_EPOCH_MS && at.before[0].worker.len > 0);
    assert_string_equal(before(f, r[0].id, 8, &at), "0"); /* it is at work */
    assert_true(do_settle(f, &t->request, ONCE_RETRY));
    assert_string_equal(before(f, r[1].id, 8, &at), "a:waiting 1");
    assert_true(at.before[0].due_ms == TEST_EPOCH_MS + DELAY);
    pass(f, DELAY);
    while (do_take(f, 1, taken) == 1 && taken[0].request.key.data[0] != 'a') continue;
    assert_true(do_settle(f, &taken[0].request, ONCE_UNKNOWN));
    assert_string_equal(before(f, r[1].id, 8, &at), "a:unknown 1");
    assert_string_equal(before(f, r[4].id, 1, &at), "a:unknown 4");
}

static void versions_and_gaps_before_in_a_lane(fixture *f)
{
    once_in_lane at;
    accept_lane(f, "1", 1, 60000);
    assert_string_equal(work(f, ONCE_DONE), "1");
    const once_request five = accept_lane(f, "5", 5, 60000), four = accept_lane(f, "4", 4, 60000),
                       equal = accept_lane(f, "x", 5, 60000);
    assert_string_equal(before(f, four.id, 8, &at), "0");
    assert_true(at.versioned && at.version == 4 && at.gap && at.missing_from == 2 && at.missing_to == 3);
    assert_string_equal(before(f, five.id, 8, &at), "4:waiting 1");
    assert_true(at.before[0].order == 4 && !at.gap);
    assert_string_equal(before(f, equal.id, 8, &at), "4:waiting 5:waiting 2"); /* it came behind its equal */
    const once_request done = ask_lane(f, "1", "lane", 1, 60000);
    assert_string_equal(before(f, done.id, 8, &at), "0");
    assert_true(once_hash_is_zero(at.lane)); /* what has finished stands nowhere */
}

static void a_dead_one_and_one_at_work_before_in_a_lane(fixture *f)
{
    once_in_lane at;
    accept_blocking_version(f, "a", 5);
    const once_taken t = take_one(f);
    do_settle(f, &t.request, ONCE_DEAD);
    const once_request b = accept_blocking_version(f, "b", 7), c = accept_blocking_version(f, "c", 8);
    assert_string_equal(before(f, b.id, 8, &at), "a:dead 1");
    assert_string_equal(before(f, c.id, 8, &at), "a:dead b:waiting 2");
    assert_string_equal(before(f, t.request.id, 8, &at), "0");
    assert_true(once_hash_equal(at.lane, c.lane.id)); /* a dead one still has its place */
    const once_request late = ask_lane(f, "late", "lane", 3, -1), older = ask_lane(f, "older", "lane", 2, -1);
    assert_answer(do_claim(f, &late), RUN); /* an older version may pass */
    assert_answer(do_accept(f, &older), WAITING);
    assert_string_equal(before(f, older.id, 8, &at), "late:claimed 1"); /* and holds up what is in front of it */
    assert_string_equal(before(f, c.id, 2, &at), "older:waiting late:claimed 4");
}

/* Which of them are shown goes by their places, as the order of those that are shown. */
static void the_first_of_many_equals_are_shown(fixture *f)
{
    enum { EQUALS = 9 };
    once_in_lane at;
    once_request last = {0};
    char key[16];
    for (int i = 0; i < EQUALS; i++) {
        snprintf(key, sizeof key, "e%d", i);
        last = accept_lane(f, key, 5, 60000);
    }
    assert_string_equal(before(f, last.id, 3, &at), "e0:waiting e1:waiting e2:waiting 8");
}

/* More than are counted one by one. */
static void many_before_in_a_lane(fixture *f)
{
    enum { MANY = 1005 };
    once_in_lane at;
    once_request last = {0};
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "%d", i);
        last = ask_lane(f, key, "lane", -1, -1);
        assert_answer(do_accept(f, &last), WAITING);
    }
    assert_string_equal(before(f, last.id, 2, &at), "0:waiting 1:waiting 1000");
}

const conform_test conform_lanes[] = {
    CONFORM_WITH(what_stands_before_in_a_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(versions_and_gaps_before_in_a_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(a_dead_one_and_one_at_work_before_in_a_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(the_first_of_many_equals_are_shown, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(many_before_in_a_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(a_lane_runs_in_order_of_arrival, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f27_lanes_are_scoped_by_tenant_and_consumer, ONCE_STORE_LANES),
    CONFORM_WITH(f33_followers_park_behind_a_failed_one, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_unknown_and_held_hold_their_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_an_unknown_version_holds_back_older_ones, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(forgetting_the_first_frees_the_next, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_versions_run_in_order_and_older_ones_are_stale, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_superseded_while_waiting_is_handed_out_as_stale, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_a_gap_waits_for_the_missing_version, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_a_gap_that_stays_is_said_to_be_over, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_a_gap_waits_only_while_somebody_runs, ONCE_STORE_LANES | ONCE_STORE_OWNS | ONCE_STORE_DURABLE),
    CONFORM_WITH(f28_what_was_given_up_is_told_again_with_a_lost_reply, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_followers_of_a_version_that_was_given_up_run_on, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_nobody_waits_for_a_version_that_died, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_a_version_that_was_given_up_runs_while_nothing_newer_settled, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_a_gap_that_ends_in_a_letter_blocks_those_behind_it, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_a_lane_waits_for_its_first_version, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_a_first_version_that_does_not_come_is_given_up, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_an_equal_version_under_another_key_is_recorded, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_an_equal_version_waits_for_the_first_and_is_judged_then, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f34_a_lane_says_what_it_would_make_of_a_letter, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_a_dead_one_that_blocks_holds_its_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_a_blocked_lane_does_not_expire, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_a_lane_waits_for_all_its_dead_that_block, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f28_two_gaps_that_end_together, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(equals_in_a_lane_do_not_wait_for_each_other, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_of_equals_behind_a_gap_the_first_runs, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_an_equal_version_waits_while_the_first_one_fails, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_the_first_of_many_equals_runs, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_equals_at_the_border_of_what_is_known, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f86_the_first_of_a_thousand_equals_runs, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f71_a_lane_remembers_its_version_until_older_ones_are_too_old, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(what_comes_back_from_the_dead_does_not_block_its_lane, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(f24_an_orphan_and_what_came_in_front_of_it, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(the_highest_version_there_is, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(a_lane_forgets_its_version_with_its_entries, ONCE_STORE_LANES | ONCE_STORE_OWNS),
    CONFORM_WITH(a_lane_in_a_transaction_sees_its_own_claims, ONCE_STORE_LANES | ONCE_STORE_TX),
    CONFORM_WITH(a_rollback_takes_the_version_of_a_lane_back, ONCE_STORE_LANES | ONCE_STORE_TX | ONCE_STORE_OWNS),
    CONFORM_WITH(f33_lanes_survive_a_restart, ONCE_STORE_LANES | ONCE_STORE_OWNS | ONCE_STORE_DURABLE),
    {0},
};
