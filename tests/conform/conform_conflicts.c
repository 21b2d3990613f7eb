/* The same key with other content: a conflict, and a dead letter that is corrected. */
#include "conform.h"

#include <stdio.h>

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
    assert_bytes(d.first->at.place, "payments.ndjson");
    assert_bytes(d.first->at.point, "17");
    assert_bytes(d.first->who, f->store->who);
    assert_true(d.first->seen_ms == TEST_EPOCH_MS);
    assert_int_equal(d.first->body.len, message_of(&first).body.len);
    assert_answer(d = do_accept(f, &accepted), CONFLICT);
    assert_bytes(d.first->at.point, "17");
    pass(f, DELAY);
    once_taken t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_answer(d = do_claim(f, &other), CONFLICT);
    assert_bytes(d.first->at.point, "17");
    assert_int_equal(d.first->body.len, 0); /* nobody has it any more */
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
    assert_int_equal(d.first->fields.n, n);
    assert_memory_equal(d.first->fields.prints, expected.prints, n * sizeof *expected.prints);
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
                                           .maybe_done = outcome == ONCE_RETRY,
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
    assert_int_equal(d.first->fields.n, 3);
}

static bool do_replay_with_body(fixture *f, uint64_t letter, const once_request *r, once_bytes body)
{
    once_message message = message_of(r);
    bool done;
    message.body = body;
    assert_ok(f, f->store->ops->replay_with_body(f->store, letter, r, &message, &done, &f->err));
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
    assert_false(do_replay_with_body(f, letter.id, &other, ONCE_BYTES("right")));
    placed.lane.id = once_lane_id(f->store->secret, &f->scope, text("lane"));
    assert_false(do_replay_with_body(f, letter.id, &placed, ONCE_BYTES("right")));
    assert_false(do_replay_with_body(f, 12345, &right, ONCE_BYTES("right")));
    assert_int_equal(list_letters(f, NULL, 0), 1);
    assert_true(do_replay_with_body(f, letter.id, &right, ONCE_BYTES("right")));
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
    assert_int_equal(d.first->fields.n, 2);
    const once_audit act = {.consumer = f->scope.consumer,
                            .who = ONCE_BYTES("me"),
                            .what = ONCE_BYTES("replay --body"),
                            .body = ONCE_BYTES("wrong")};
    assert_ok(f, f->store->ops->audit(f->store, &act, &f->err));
    const uint64_t before = f->tokens;
    assert_ok(f, f->store->ops->audits(f->store, f->scope.consumer, keep_audit, f, &f->err));
    assert_int_equal(f->tokens, before + 1000);
}

const conform_test conform_conflicts[] = {
    CONFORM(f26_same_key_other_fingerprint_is_a_conflict),
    CONFORM_WITH(f26_a_conflict_tells_what_it_met, ONCE_STORE_OWNS),
    CONFORM_WITH(f26_a_conflict_brings_the_fields_of_the_first_one, ONCE_STORE_OWNS),
    CONFORM_WITH(a_dead_one_goes_back_to_work_with_another_message, ONCE_STORE_OWNS),
    {0},
};
