/* Unknown entries that the other side is asked about (`lookup`): they have a due time, and `take` hands them out then
 * as ones that ask. */
#include "conform.h"

enum { ASK = 500 };

static once_request ask_with_lookup(fixture *f, const char *key)
{
    once_request r = ask(f, key);
    r.hold = r.lookup = true;
    return r;
}

/* Of an attempt, or of whoever asked; the entry has its body already, or gets it now. */
static bool settle_unknown(fixture *f, const once_request *request, int64_t delay_ms, bool body)
{
    const once_message message = message_of(request);
    const once_settlement s = {.request = request,
                               .outcome = ONCE_UNKNOWN,
                               .reason = ONCE_BYTES("the reply was lost"),
                               .delay_ms = delay_ms,
                               .message = body ? &message : NULL,
                               .asked = !body,
                               .maybe_done = true};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
    return applied;
}

/* One that is unknown, to be asked about after ASK. */
static once_request leave_unknown(fixture *f, const char *key)
{
    const once_request r = ask_with_lookup(f, key);
    assert_answer(do_claim(f, &r), RUN);
    assert_true(settle_unknown(f, &r, ASK, true));
    assert_state(f, r, UNKNOWN);
    return r;
}

/* What is taken is that question, and nothing else is due. */
static once_taken take_question(fixture *f)
{
    once_taken t[2];
    assert_int_equal(do_take(f, 2, t), 1);
    assert_answer(t[0].decision, UNKNOWN);
    assert_true(t[0].decision.asks && !t[0].decision.lapsed);
    t[0].request.scope = &f->scope;
    t[0].request.lease_ms = LEASE;
    t[0].request.remember_ms = REMEMBER;
    assert_true(t[0].request.lookup && t[0].request.hold);
    return t[0];
}

static void nothing_to_take(fixture *f)
{
    once_taken t[2];
    assert_int_equal(do_take(f, 2, t), 0);
}

static void an_unknown_is_asked_about_when_it_is_due(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    nothing_to_take(f);
    pass(f, ASK - 1);
    nothing_to_take(f);
    const once_request delivered = ask_with_lookup(f, "k");
    assert_answer(do_claim(f, &delivered), UNKNOWN); /* who brings it again does not run it */
    pass(f, 1);
    const once_taken t = take_question(f);
    assert_int_equal(t.decision.attempt, 1); /* nothing is tried */
    assert_int_equal(t.decision.failures, 0);
    assert_int_equal(t.decision.failing_for_ms, -1);
    assert_int_equal(t.decision.unknown_for_ms, ASK);
    assert_bytes(t.decision.before, "the reply was lost");
    assert_int_equal(t.message.body.len, message_of(&r).body.len);
    assert_state(f, r, UNKNOWN);
    assert_false(do_settle(f, &r, ONCE_DONE)); /* who had it before has no say any more */
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_state(f, r, DONE);
    nothing_to_take(f);
}

static void a_question_is_one_workers_at_a_time(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    pass(f, ASK);
    const once_taken first = take_question(f);
    nothing_to_take(f);
    assert_true(do_extend(f, &first.request));
    pass(f, LEASE - 1);
    nothing_to_take(f);
    pass(f, 1); /* who asked did not come back: somebody else asks, and nothing has become worse */
    const once_taken second = take_question(f);
    assert_int_equal(second.decision.attempt, 1);
    assert_int_equal(second.decision.failures, 0);
    assert_int_equal(second.decision.unknown_for_ms, ASK + LEASE);
    assert_false(do_extend(f, &first.request));
    assert_false(settle_unknown(f, &first.request, ONCE_NEVER, false));
    assert_false(do_settle(f, &first.request, ONCE_DONE));
    assert_state(f, r, UNKNOWN);
    assert_true(do_extend(f, &second.request));
}

/* The budget of attempts goes on, so whoever asks is told what was spent of it. */
static void what_was_tried_before_is_told_with_the_question(fixture *f)
{
    once_request r = ask_with_lookup(f, "k");
    assert_answer(do_claim(f, &r), RUN);
    assert_true(do_settle(f, &r, ONCE_RETRY));
    pass(f, DELAY);
    once_taken t = take_one(f);
    t.request.scope = &f->scope;
    t.request.remember_ms = REMEMBER;
    pass(f, 7);
    assert_true(settle_unknown(f, &t.request, ASK, true));
    pass(f, ASK);
    t = take_question(f);
    assert_int_equal(t.decision.attempt, 2);
    assert_int_equal(t.decision.failures, 1);
    assert_int_equal(t.decision.failing_for_ms, DELAY + 7 + ASK);
    assert_int_equal(t.decision.unknown_for_ms, ASK);
}

/* It is tried again, as a failed attempt is. */
static void what_is_absent_runs_again(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    pass(f, ASK);
    once_taken t = take_question(f);
    assert_true(do_settle(f, &t.request, ONCE_RETRY));
    assert_state(f, r, WAITING);
    nothing_to_take(f);
    pass(f, DELAY);
    t = take_one(f);
    assert_answer(t.decision, RUN);
    assert_false(t.decision.asks || t.decision.unreported || t.decision.orphan);
    assert_int_equal(t.decision.attempt, 2);
    assert_int_equal(t.decision.failures, 1);
    assert_true(t.request.lookup);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
}

static void no_answer_is_asked_for_again_until_a_person_decides(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    const int64_t since_ms = do_get(f, r.id).changed_ms;
    pass(f, ASK);
    once_taken t = take_question(f);
    assert_true(settle_unknown(f, &t.request, ASK, false));
    nothing_to_take(f);
    pass(f, ASK);
    reopen(f);
    t = take_question(f);
    assert_int_equal(t.decision.unknown_for_ms, 2 * ASK);
    assert_true(settle_unknown(f, &t.request, ONCE_NEVER, false));
    pass(f, 100 * LEASE);
    nothing_to_take(f);
    assert_int_equal(do_get(f, r.id).changed_ms, since_ms);
    assert_int_equal(do_get(f, r.id).due_ms, ONCE_NEVER);
    assert_int_equal(do_stats(f).unknown, 1);
    assert_int_equal(do_stats(f).wait_ms, ONCE_NEVER);
    assert_false(do_extend(f, &t.request));
}

/* For everybody who looks it is unknown, not claimed, before it is due and after. */
static void a_question_is_counted_and_listed_as_unknown(fixture *f)
{
    const once_request held = ask(f, "held");
    do_claim(f, &held), do_settle(f, &held, ONCE_UNKNOWN);
    const once_request r = leave_unknown(f, "k");
    for (int asked = 0; asked < 2; asked++) {
        const once_stats stats = do_stats(f);
        assert_int_equal(stats.unknown, 2);
        assert_int_equal(stats.claimed + stats.waiting, 0);
        assert_int_equal(stats.wait_ms, asked ? LEASE : ASK); /* a finite run waits for it */
        assert_int_equal(count_listed(f, ONCE_STATE_UNKNOWN), 2);
        assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 0);
        assert_int_equal(count_listed(f, ONCE_STATE_WAITING), 0);
        const once_entry e = do_get(f, r.id);
        assert_int_equal(e.state, ONCE_STATE_UNKNOWN);
        assert_true(e.lookup && e.hold && e.has_message && e.due_ms != ONCE_NEVER);
        once_waiting_size size;
        assert_ok(f, f->store->ops->waiting_size(f->store, f->scope.consumer, &size, &f->err));
        assert_int_equal(size.messages, 0);
        if (asked) break;
        pass(f, ASK - 1);
        assert_int_equal(do_stats(f).wait_ms, 1);
        pass(f, 1);
        assert_int_equal(do_stats(f).wait_ms, 0);
        assert_int_equal(do_stats(f).unknown, 2);
        assert_int_equal(count_listed(f, ONCE_STATE_UNKNOWN), 2);
        (void)take_question(f);
    }
}

/* A worker that died in its effect: its lease is over, that is written down, and then it is asked about. */
static void a_lease_that_ran_out_is_asked_about(fixture *f)
{
    const once_request r = ask_with_lookup(f, "k");
    once_taken t[2];
    do_claim(f, &r), do_accept(f, &r);
    pass(f, LEASE);
    assert_int_equal(do_stats(f).wait_ms, 0);
    assert_int_equal(do_take(f, 2, t), 1);
    assert_true(t[0].decision.lapsed && !t[0].decision.asks);
    assert_false(do_extend(f, &r)); /* it was stopped, and must not begin now */
    const once_taken asks = take_question(f);
    assert_int_equal(asks.decision.unknown_for_ms, 0); /* from when it was written down */
    assert_true(do_settle(f, &asks.request, ONCE_ALREADY));
    assert_state(f, r, ALREADY);
}

/* Nobody can ask without the message. When the source brings it again, somebody can. */
static void without_a_body_it_waits_for_one(fixture *f)
{
    const once_request r = ask_with_lookup(f, "k"), again = ask_with_lookup(f, "k");
    do_claim(f, &r);
    pass(f, LEASE);
    assert_int_equal(do_stats(f).wait_ms, ONCE_NEVER);
    assert_answer(do_claim(f, &again), UNKNOWN);
    nothing_to_take(f);
    assert_int_equal(do_stats(f).wait_ms, ONCE_NEVER);
    assert_answer(do_accept(f, &again), UNKNOWN);
    assert_int_equal(do_stats(f).wait_ms, 0);
    const once_taken t = take_question(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
}

static void the_handler_need_not_ask_any_more(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    pass(f, ASK);
    once_taken t = take_question(f);
    t.request.lookup = false; /* its pipeline does not say how, from now on */
    assert_true(settle_unknown(f, &t.request, ASK, false));
    pass(f, 10 * ASK);
    nothing_to_take(f);
    assert_false(do_get(f, r.id).lookup);
    assert_int_equal(do_get(f, r.id).due_ms, ONCE_NEVER);
}

/* f76: the reply to the take was lost: the same questions once more, and nothing is run. */
static void f76_a_take_repeated_asks_the_same(fixture *f)
{
    const once_token token = new_token(f);
    once_taken t[3];
    size_t n;
    (void)leave_unknown(f, "k");
    pass(f, ASK);
    const once_request waits = ask(f, "w");
    assert_answer(do_accept(f, &waits), WAITING);
    for (int i = 0; i < 2; i++) {
        assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, token, i > 0, LEASE, 3, NULL, t, &n, &f->arena,
                                         &f->err));
        assert_int_equal(n, 2);
        const size_t question = t[0].decision.asks ? 0 : 1;
        assert_answer(t[question].decision, UNKNOWN);
        assert_true(t[question].decision.asks);
        assert_int_equal(t[question].decision.unknown_for_ms, ASK);
        assert_answer(t[1 - question].decision, RUN);
        assert_false(t[1 - question].decision.asks);
        assert_int_equal(t[question].request.token.a, token.a);
    }
    assert_int_equal(do_get(f, t[0].request.id).attempt, 1);
    assert_int_equal(do_get(f, t[1].request.id).attempt, 1);
}

/* The lane goes on when it is known. */
static void a_question_occupies_its_lane(fixture *f)
{
    once_request first = ask_lane(f, "first", "lane", -1, -1), second = ask_lane(f, "second", "lane", -1, -1);
    first.hold = first.lookup = second.hold = second.lookup = true;
    do_claim(f, &first);
    assert_true(settle_unknown(f, &first, ASK, true));
    assert_answer(do_accept(f, &second), WAITING);
    nothing_to_take(f);
    pass(f, ASK);
    once_taken t = take_question(f);
    assert_true(once_hash_equal(t.request.id, first.id));
    nothing_to_take(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    t = take_one(f);
    assert_answer(t.decision, RUN);
    assert_true(once_hash_equal(t.request.id, second.id));
}

static void a_person_need_not_wait_for_the_answer(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    pass(f, ASK);
    const once_taken t = take_question(f);
    bool changed;
    assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_DONE, text("seen"), &changed, &f->err));
    assert_true(changed);
    assert_false(do_settle(f, &t.request, ONCE_RETRY));
    assert_state(f, r, DONE);
}

/* Asked in vain for long, the attempts are still known. */
static void questions_do_not_push_attempts_out_of_the_history(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    for (int i = 0; i < 20; i++) {
        pass(f, ASK);
        const once_taken t = take_question(f);
        assert_true(settle_unknown(f, &t.request, ASK, false));
    }
    const once_entry e = do_get(f, r.id);
    size_t lines = 0;
    for (size_t i = 0; i < e.history.len; i++) lines += e.history.data[i] == '\n';
    assert_int_equal(lines, 1);
    assert_int_equal(e.attempt, 1);
}

static void what_is_committed_with_the_answer(fixture *f)
{
    const once_request r = leave_unknown(f, "k");
    pass(f, ASK);
    const once_taken t = take_question(f);
    do_begin(f);
    assert_true(do_extend(f, &t.request));
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    do_rollback(f);
    assert_state(f, r, UNKNOWN);
    do_begin(f);
    assert_true(do_extend(f, &t.request));
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    do_commit(f);
    assert_state(f, r, DONE);
}

static void a_question_needs_room_of_its_operation(fixture *f)
{
    once_due_share shares[] = {{.operation = f->scope.operation}, {.others = true, .room = 2}};
    once_due_filter filter = {.shares = shares, .n = 2, .read_max = 2};
    once_taken t[2];
    size_t n;
    (void)leave_unknown(f, "k");
    pass(f, ASK);
    for (size_t room = 0; room < 2; room++) {
        shares[0].room = room;
        assert_ok(f, f->store->ops->take(f->store, f->scope.consumer, new_token(f), false, LEASE, 2, &filter, t, &n,
                                         &f->arena, &f->err));
        assert_int_equal(n, room);
    }
    assert_true(t[0].decision.asks);
}

const conform_test conform_lookup[] = {
    CONFORM(an_unknown_is_asked_about_when_it_is_due),
    CONFORM(a_question_is_one_workers_at_a_time),
    CONFORM(what_was_tried_before_is_told_with_the_question),
    CONFORM(what_is_absent_runs_again),
    CONFORM_WITH(no_answer_is_asked_for_again_until_a_person_decides, ONCE_STORE_DURABLE),
    CONFORM(a_question_is_counted_and_listed_as_unknown),
    CONFORM(a_lease_that_ran_out_is_asked_about),
    CONFORM(without_a_body_it_waits_for_one),
    CONFORM(the_handler_need_not_ask_any_more),
    CONFORM(f76_a_take_repeated_asks_the_same),
    CONFORM_WITH(a_question_occupies_its_lane, ONCE_STORE_LANES),
    CONFORM(a_person_need_not_wait_for_the_answer),
    CONFORM(questions_do_not_push_attempts_out_of_the_history),
    CONFORM(a_question_needs_room_of_its_operation),
    CONFORM_WITH(what_is_committed_with_the_answer, ONCE_STORE_TX),
    {0},
};
