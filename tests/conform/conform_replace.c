/* Other content under a key: a conflict, unless all attempts so far were released or retried. Then it takes the place
 * of the first one, once, and the body of that one is kept as the letter of the conflict. */
#include <stdio.h>

#include "conform.h"
#include "store/history.h"

#define FIRST "{\"amount\":100}"
#define OTHER "{\"amount\":120}"
#define THIRD "{\"amount\":130}"

/* `which` 1 is the first content, 2 and 3 are others; each came from a place of its own. */
static once_request ask_content(fixture *f, const char *key, unsigned which)
{
    static const char *const points[] = {"", "17", "18", "19"};
    once_request r = ask(f, key);
    r.fingerprint = (once_hash){10 + which, 20};
    r.fields = (once_fields){.n = 2, .prints = {(uint16_t)which, 5000}};
    r.at.point = text(points[which]);
    r.run = 70 + which;
    return r;
}

static once_message message_for(const once_request *r)
{
    static const char *const bodies[] = {"", FIRST, OTHER, THIRD};
    once_message m = message_of(r);
    m.body = text(bodies[r->fingerprint.a - 10]);
    return m;
}

static once_decision accept_content(fixture *f, const once_request *r)
{
    const once_message message = message_for(r), *messages = &message;
    once_decision d;
    assert_ok(f, f->store->ops->accept(f->store, &r, &messages, 1, &d, &f->arena, &f->err));
    return d;
}

/* As do_settle, with the body that belongs to the content; `kept` false: the store gets none. */
static void settle_content(fixture *f, const once_request *r, once_outcome outcome, bool kept, bool maybe)
{
    const once_message message = message_for(r);
    const once_settlement s = {.request = r,
                               .outcome = outcome,
                               .reason = ONCE_BYTES("reason"),
                               .delay_ms = DELAY,
                               .message = kept ? &message : NULL,
                               .maybe_done = maybe};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
    assert_true(applied);
}

/* An entry that was tried, with nothing done. */
static once_request tried(fixture *f, const char *key, once_outcome outcome)
{
    const once_request r = ask_content(f, key, 1);
    assert_answer(do_claim(f, &r), RUN);
    settle_content(f, &r, outcome, true, false);
    return r;
}

static void assert_conflict(fixture *f, const once_request *other)
{
    const once_entry before = do_get(f, other->id);
    once_decision d = do_claim(f, other);
    assert_answer(d, CONFLICT);
    assert_false(d.replaced);
    d = accept_content(f, other);
    assert_answer(d, CONFLICT);
    assert_false(d.replaced);
    const once_entry after = do_get(f, other->id);
    assert_int_equal(after.state, before.state);
    assert_true(once_hash_equal(after.fingerprint, before.fingerprint));
    assert_true(once_hash_equal(after.token, before.token));
}

static void assert_letter_of_first(const once_letter *l, uint64_t count)
{
    assert_int_equal(l->kind, ONCE_ANSWER_CONFLICT);
    assert_true(once_hash_is_zero(l->entry));
    assert_bytes(l->key, "k");
    assert_bytes(l->message.body, FIRST);
    assert_bytes(l->reason, "conflict: replaced by other content from payments.ndjson:18 before it had any effect");
    assert_int_equal(l->count, count);
    assert_int_equal(l->attempt, 1);
}

static void assert_is_other(fixture *f, const once_request *other)
{
    const once_entry e = do_get(f, other->id);
    assert_true(once_hash_equal(e.fingerprint, other->fingerprint));
    assert_int_equal(e.fields.prints[0], 2);
    assert_bytes(e.at.point, "18");
    assert_bytes(e.who, f->store->who);
    assert_int_equal(e.failures, 0);
    assert_int_equal(e.failing_ms, 0);
    assert_int_equal(e.run, other->run);
    assert_true(e.fixed);
    once_attempt lines[ONCE_HISTORY_ATTEMPTS];
    const size_t n = once__history_read(e.history, lines);
    assert_true(n >= 2);
    assert_string_equal(lines[1].outcome, "replaced");
    assert_int_equal(lines[1].attempt, 1);
}

static void f26_a_claim_with_other_content_replaces_what_had_no_effect(fixture *f)
{
    static const once_outcome outcomes[] = {ONCE_RETRY, ONCE_RELEASE};
    for (int i = 0; i < 2; i++) {
        const once_request first = tried(f, "k", outcomes[i]), other = ask_content(f, "k", 2);
        pass(f, 10); /* not yet due: the corrected one need not wait for that */
        const once_decision d = do_claim(f, &other);
        assert_answer(d, RUN);
        assert_true(d.replaced && d.letter);
        assert_int_equal(d.left_by, first.run);
        assert_int_equal(d.attempt, 2);
        assert_int_equal(d.failures, 0);
        assert_true(d.failing_for_ms == -1);
        assert_is_other(f, &other);
        assert_false(do_get(f, other.id).has_message);
        once_letter letter;
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_letter_of_first(&letter, 1);
        assert_int_equal(letter.failures, outcomes[i] == ONCE_RETRY);
        assert_false(do_settle(f, &first, ONCE_DONE)); /* whoever had the first one has nothing to say any more */
        const once_entry e = do_get(f, other.id);
        settle_content(f, &other, ONCE_DONE, false, false);
        assert_true(do_get(f, other.id).seen_ms == e.seen_ms);
        assert_answer(do_claim(f, &other), DUPLICATE);
        assert_conflict(f, &first);
        assert_true(do_forget(f, first.id));
        bool found;
        assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    }
}

/* Of all letters: when their message came first, not when they were written. */
static void a_letter_says_when_its_message_was_seen(fixture *f)
{
    once_letter letters[3];
    const once_request first = tried(f, "k", ONCE_RETRY), dies = ask(f, "dies");
    assert_answer(do_accept(f, &dies), WAITING);
    pass(f, 700);
    const once_request other = ask_content(f, "k", 2);
    assert_answer(do_claim(f, &other), RUN);
    const once_taken t = take_one(f);
    assert_true(once_hash_equal(t.request.id, dies.id));
    const once_settlement dead = {
        .request = &t.request, .outcome = ONCE_DEAD, .reason = ONCE_BYTES("no"), .message = &t.message};
    const once_letter found = {
        .scope = f->scope, .kind = ONCE_ANSWER_DEAD, .message = {.body = ONCE_BYTES("{"), .sent_ms = ONCE_NO_TIME}};
    bool applied, fresh;
    assert_ok(f, f->store->ops->settle(f->store, &dead, 1, &applied, &f->err));
    assert_ok(f, f->store->ops->bury(f->store, &found, 1, &fresh, &f->err));
    assert_true(applied && fresh);
    assert_int_equal(list_letters(f, letters, 3), 3);
    assert_bytes(letters[0].key, "k");
    assert_bytes(letters[1].key, "dies");
    for (int i = 0; i < 3; i++) {
        assert_true(letters[i].buried_ms == TEST_EPOCH_MS + 700);
        assert_true(letters[i].seen_ms ==
                    TEST_EPOCH_MS + (i == 2 ? 700 : 0)); /* without an entry it was seen just now */
    }
    (void)first;
}

static void f26_accepting_other_content_replaces_what_had_no_effect(fixture *f)
{
    const once_request first = tried(f, "k", ONCE_RETRY), other = ask_content(f, "k", 2);
    const once_decision d = accept_content(f, &other);
    assert_answer(d, WAITING);
    assert_true(d.replaced && d.letter);
    assert_int_equal(d.left_by, first.run);
    assert_int_equal(d.wait_ms, 0); /* it need not wait until the first one would have been tried again */
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    assert_is_other(f, &other);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_letter_of_first(&letter, 1);
    const once_taken t = take_one(f);
    assert_bytes(t.message.body, OTHER);
    assert_bytes(t.message.at.point, "18");
    assert_int_equal(t.decision.attempt, 2);
    assert_int_equal(t.decision.failures, 0);
    assert_true(once_hash_equal(t.request.fingerprint, other.fingerprint));
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_answer(do_claim(f, &other), DUPLICATE);
}

/* A broker brings both again: they do not take turns, and each delivery of the first one is counted on its letter. */
static void f26_once_replaced_other_content_is_a_conflict(fixture *f)
{
    const once_request first = tried(f, "k", ONCE_RETRY), other = ask_content(f, "k", 2),
                       third = ask_content(f, "k", 3);
    assert_answer(accept_content(f, &other), WAITING);
    for (int i = 0; i < 2; i++) {
        const once_request again = ask_content(f, "k", 1);
        assert_conflict(f, &again);
        assert_conflict(f, &third);
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        const once_taken t = take_one(f);
        assert_bytes(t.message.body, OTHER);
        assert_true(do_settle(f, &t.request, ONCE_RETRY)); /* also when the corrected one had no effect either */
        pass(f, DELAY);
    }
    const once_letter again = {.scope = f->scope,
                               .key = text("k"),
                               .kind = ONCE_ANSWER_CONFLICT,
                               .reason = ONCE_BYTES("again"),
                               .message = message_for(&first),
                               .key_id = first.id,
                               .fingerprint = first.fingerprint};
    bool fresh = true;
    assert_ok(f, f->store->ops->bury(f->store, &again, 1, &fresh, &f->err));
    assert_false(fresh);
    once_letter letters[2];
    assert_int_equal(list_letters(f, letters, 2), 1);
    assert_letter_of_first(&letters[0], 2);
}

static void f26_what_was_not_tried_or_may_have_happened_is_not_replaced(fixture *f)
{
    once_request first = ask_content(f, "accepted", 1), other = ask_content(f, "accepted", 2);
    assert_answer(accept_content(f, &first), WAITING);
    assert_conflict(f, &other);

    first = ask_content(f, "claimed", 1);
    other = ask_content(f, "claimed", 2);
    do_claim(f, &first);
    assert_conflict(f, &other);
    pass(f, LEASE); /* its worker is gone, and nobody knows what it did */
    assert_conflict(f, &other);

    first = ask_content(f, "maybe", 1);
    other = ask_content(f, "maybe", 2);
    do_claim(f, &first);
    settle_content(f, &first, ONCE_RETRY, true, true);
    assert_conflict(f, &other);
    pass(f, DELAY);
    once_taken taken[4];
    bool found = false;
    for (size_t i = 0, n = do_take(f, 4, taken); i < n;
         i++) { /* an attempt that says that it did nothing does not change that */
        if (!once_hash_equal(taken[i].request.id, first.id)) continue;
        found = true;
        assert_true(do_settle(f, &taken[i].request, ONCE_RETRY));
    }
    assert_true(found);
    assert_conflict(f, &other);

    static const once_outcome outcomes[] = {ONCE_UNKNOWN, ONCE_DEAD,     ONCE_DONE,
                                            ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        first = ask_content(f, once_outcome_name(outcomes[i]), 1);
        other = ask_content(f, once_outcome_name(outcomes[i]), 2);
        do_claim(f, &first);
        settle_content(f, &first, outcomes[i], outcomes[i] == ONCE_UNKNOWN || outcomes[i] == ONCE_DEAD, false);
        assert_conflict(f, &other);
    }
}

/* A lease that ran out: the next claim is told so, and whatever that one says of itself, the one before may have had
 * its effect. */
static void f26_what_followed_an_attempt_without_an_end_is_not_replaced(fixture *f)
{
    const once_request first = ask_content(f, "k", 1), again = ask_content(f, "k", 1), other = ask_content(f, "k", 2);
    do_claim(f, &first);
    pass(f, LEASE);
    assert_answer(do_claim(f, &again), RUN);
    settle_content(f, &again, ONCE_RELEASE, true, false);
    assert_conflict(f, &other);
    assert_int_equal(list_letters(f, NULL, 0), 0);
}

/* Whoever decided about a message by hand chose its content. */
static void f26_a_replayed_message_is_not_replaced(fixture *f)
{
    once_letter letter;
    const once_request first = ask_content(f, "replayed", 1), other = ask_content(f, "replayed", 2),
                       third = ask_content(f, "replayed", 3);
    do_claim(f, &first);
    settle_content(f, &first, ONCE_DEAD, true, false);
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_true(do_replay(f, letter.id));
    assert_conflict(f, &other);
    once_taken t = take_one(f);
    settle_content(f, &t.request, ONCE_DEAD, true, false);
    assert_int_equal(list_letters(f, &letter, 1), 1);
    const once_message corrected = message_for(&other);
    bool done;
    assert_ok(f, f->store->ops->replay_with_body(f->store, letter.id, &other, &corrected, &done, &f->err));
    assert_true(done);
    assert_conflict(f, &first); /* the broker brings the wrong one again */
    assert_conflict(f, &third);
    t = take_one(f);
    assert_bytes(t.message.body, OTHER);
    assert_true(do_settle(f, &t.request, ONCE_RETRY));
    assert_conflict(f, &first);

    const once_request ended = ask_content(f, "forced", 1), late = ask_content(f, "forced", 2);
    do_claim(f, &ended);
    settle_content(f, &ended, ONCE_DONE, false, false);
    const once_message message = message_for(&ended);
    assert_ok(f, f->store->ops->revive(f->store, &ended, &message, &done, &f->err));
    assert_true(done);
    assert_conflict(f, &late); /* it has had its effect once */
}

/* It may have been done, and forgotten since: then it would run twice. */
static void f26_f71_a_message_that_is_too_old_replaces_nothing(fixture *f)
{
    const once_request first = tried(f, "k", ONCE_RETRY);
    once_request old = ask_content(f, "k", 2), young = ask_content(f, "k", 2);
    old.sent_ms = TEST_EPOCH_MS - REMEMBER;
    young.sent_ms = TEST_EPOCH_MS - REMEMBER / 2;
    assert_conflict(f, &old);
    assert_true(once_hash_equal(do_get(f, first.id).fingerprint, first.fingerprint));
    assert_answer(do_claim(f, &young), RUN);
}

/* Before there were new idempotency keys an entry only knew whether its last attempt may have had its effect. */
static void f26_what_is_from_before_is_not_replaced(fixture *f)
{
    once_request first = ask_content(f, "k", 1);
    first.old_key = true;
    const once_request other = ask_content(f, "k", 2);
    do_claim(f, &first);
    settle_content(f, &first, ONCE_RETRY, true, false);
    assert_conflict(f, &other);
}

static void f26_without_a_body_in_the_store_there_is_no_letter(fixture *f)
{
    const once_request first = ask_content(f, "k", 1), other = ask_content(f, "k", 2);
    do_claim(f, &first);
    settle_content(f, &first, ONCE_RETRY, false, false); /* its broker has it, and brings it again */
    const once_decision d = do_claim(f, &other);
    assert_answer(d, RUN);
    assert_true(d.replaced);
    assert_false(d.letter);
    assert_int_equal(list_letters(f, NULL, 0), 0);
    settle_content(f, &other, ONCE_DONE, false, false);
    assert_conflict(f, &first);
}

static void f26_f76_replacing_may_be_repeated(fixture *f)
{
    tried(f, "k", ONCE_RETRY);
    const once_request other = ask_content(f, "k", 2);
    assert_answer(do_claim(f, &other), RUN);
    const once_decision d = do_claim(f, &other); /* the reply was lost */
    assert_answer(d, RUN);
    assert_true(d.own);
    assert_int_equal(d.attempt, 2);
    assert_int_equal(list_letters(f, NULL, 0), 1);

    const once_request waits = tried(f, "l", ONCE_RETRY), accepted = ask_content(f, "l", 2);
    for (int i = 0; i < 2; i++) assert_answer(accept_content(f, &accepted), WAITING);
    assert_int_equal(list_letters(f, NULL, 0), 2);
    assert_true(once_hash_equal(do_get(f, waits.id).fingerprint, accepted.fingerprint));
}

static void f26_replacing_and_its_letter_are_one_step(fixture *f)
{
    const once_request first = tried(f, "k", ONCE_RETRY), other = ask_content(f, "k", 2),
                       accepted = ask_content(f, "k", 2);
    do_begin(f);
    assert_answer(do_claim(f, &other), RUN);
    settle_content(f, &other, ONCE_DONE, false, false);
    do_rollback(f);
    assert_int_equal(list_letters(f, NULL, 0), 0);
    assert_true(once_hash_equal(do_get(f, first.id).fingerprint, first.fingerprint));
    assert_int_equal(do_get(f, first.id).failures, 1);

    do_begin(f); /* in one transaction: claimed, failed, replaced, failed again */
    assert_answer(do_claim(f, &other), RUN);
    settle_content(f, &other, ONCE_RETRY, true, false);
    assert_conflict(f, &first);
    assert_answer(accept_content(f, &accepted), LATER);
    do_commit(f);
    once_letter letter;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_letter_of_first(&letter, 1);
    pass(f, DELAY);
    const once_taken t = take_one(f);
    assert_bytes(t.message.body, OTHER);
    assert_int_equal(t.decision.attempt, 3);
    assert_int_equal(t.decision.failures, 1);
}

static once_request place(once_request r, fixture *f, int64_t version)
{
    const once_request in = ask_lane(f, "any", "lane", version, -1);
    r.lane = in.lane;
    return r;
}

/* Others are ordered by it. */
static void f26_another_place_of_the_lane_is_a_conflict(fixture *f)
{
    const once_request first = place(ask_content(f, "k", 1), f, 5);
    assert_answer(do_claim(f, &first), RUN);
    settle_content(f, &first, ONCE_RETRY, true, false);
    const once_request newer = place(ask_content(f, "k", 2), f, 6), older = place(ask_content(f, "k", 2), f, 4),
                       unversioned = place(ask_content(f, "k", 2), f, -1), without = ask_content(f, "k", 2),
                       same = place(ask_content(f, "k", 2), f, 5);
    assert_conflict(f, &newer);
    assert_conflict(f, &older);
    assert_conflict(f, &unversioned);
    assert_conflict(f, &without);
    assert_answer(do_claim(f, &same), RUN);
    settle_content(f, &same, ONCE_DONE, false, false);
    const once_request next = place(ask_content(f, "next", 1), f, 6);
    assert_answer(do_claim(f, &next), RUN);
}

/* One that waits for others of its lane gives way, too, and the corrected one waits in its stead. */
static void f26_in_a_lane_the_place_stays(fixture *f)
{
    const once_request late = place(ask_content(f, "late", 1), f, 1), first = place(ask_content(f, "k", 1), f, 2),
                       other = place(ask_content(f, "k", 2), f, 2), behind = place(ask_content(f, "behind", 1), f, 3);
    assert_answer(do_claim(f, &first), RUN);
    settle_content(f, &first, ONCE_RETRY, true, false);
    assert_answer(accept_content(f, &behind), WAITING);
    assert_answer(do_claim(f, &late), RUN);
    pass(f, DELAY);
    once_taken taken[3];
    assert_int_equal(do_take(f, 3, taken), 0); /* parked behind the late one */
    once_decision d = do_claim(f, &other);
    assert_answer(d, LATER);
    assert_false(d.replaced);
    assert_int_equal(list_letters(f, NULL, 0), 0); /* a claim that may not run changes nothing */
    d = accept_content(f, &other);
    assert_answer(d, WAITING);
    assert_true(d.replaced && d.letter);
    assert_true(d.wait_ms == ONCE_NEVER);
    assert_int_equal(do_take(f, 3, taken), 0);
    settle_content(f, &late, ONCE_DONE, false, false);
    once_taken t = take_one(f);
    assert_bytes(t.message.body, OTHER);
    settle_content(f, &t.request, ONCE_DONE, false, false);
    t = take_one(f);
    assert_true(once_hash_equal(t.request.id, behind.id));
}

/* Of equal versions the one that came first goes first, and that is the one under this key, whatever its content is
 * now. */
static void f26_f86_among_equal_versions_the_place_stays(fixture *f)
{
    static const char *const keys[] = {"k", "a", "z"}; /* ids are hashes: whichever is the lowest */
    for (int i = 0; i < 3; i++) {
        const int64_t version = 10 * i + 5;
        const once_request first = place(ask_content(f, keys[i], 1), f, version),
                           other = place(ask_content(f, keys[i], 2), f, version),
                           equal = place(ask_content(f, "equal", 2), f, version),
                           late = place(ask_content(f, "late", 1), f, version - 1);
        assert_answer(do_claim(f, &first), RUN);
        settle_content(f, &first, ONCE_RETRY, true, false);
        pass(f, 1);
        assert_answer(accept_content(f, &equal), WAITING);
        assert_answer(do_claim(f, &late), RUN);
        pass(f, DELAY);
        once_taken taken[2];
        assert_int_equal(do_take(f, 2, taken), 0); /* both wait for the late one now */
        assert_answer(accept_content(f, &other), WAITING);
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        settle_content(f, &late, ONCE_DONE, false, false);
        const once_taken t = take_one(f);
        assert_true(once_hash_equal(t.request.id, first.id));
        assert_bytes(t.message.body, OTHER);
        settle_content(f, &t.request, ONCE_DONE, false, false);
        assert_int_equal(do_take(f, 2, taken), 1); /* the same version with the same content: it has happened */
        assert_answer(taken[0].decision, DUPLICATE);
        assert_true(once_hash_equal(taken[0].request.id, equal.id));
        assert_true(do_forget(f, equal.id));
        assert_true(do_forget(f, late.id));
    }
}

/* Nobody has parked it yet: only the lane tells that another one is before it. */
static void f26_behind_an_older_one_it_does_not_run(fixture *f)
{
    const once_request late = place(ask_content(f, "late", 1), f, 1), first = place(ask_content(f, "k", 1), f, 2),
                       other = place(ask_content(f, "k", 2), f, 2);
    assert_answer(do_claim(f, &first), RUN);
    settle_content(f, &first, ONCE_RETRY, true, false);
    assert_answer(do_claim(f, &late), RUN);
    once_decision d = do_claim(f, &other);
    assert_answer(d, LATER);
    assert_false(d.replaced);
    assert_int_equal(list_letters(f, NULL, 0), 0);
    settle_content(f, &late, ONCE_DONE, false, false);
    d = do_claim(f, &other);
    assert_answer(d, RUN);
    assert_true(d.replaced);
}

static void assert_settings_of(fixture *f, const once_request *r)
{
    const once_entry e = do_get(f, r->id);
    assert_int_equal(e.hold, r->hold);
    assert_int_equal(e.natural, r->natural);
    assert_int_equal(e.block, r->lane.block);
    assert_true(e.gap_ms == r->lane.gap_ms);
    assert_true(e.remember_ms == r->remember_ms);
}

/* The corrected one may have come under another configuration. */
static void f26_the_settings_are_those_of_the_corrected_one(fixture *f)
{
    for (int claims = 0; claims < 2; claims++) {
        const char *key = claims ? "claimed" : "accepted";
        const once_request first = place(ask_content(f, key, 1), f, 1 + claims);
        once_request other = place(ask_content(f, key, 2), f, 1 + claims);
        other.hold = !first.hold;
        other.natural = !first.natural;
        other.lane.block = !first.lane.block;
        other.lane.gap_ms = 700;
        other.remember_ms = 3 * first.remember_ms;
        assert_answer(do_claim(f, &first), RUN);
        settle_content(f, &first, ONCE_RETRY, true, false);
        assert_settings_of(f, &first);
        const once_decision d = claims ? do_claim(f, &other) : accept_content(f, &other);
        assert_true(d.replaced);
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        assert_settings_of(f, &other);
        if (!claims) other = take_one(f).request;
        settle_content(f, &other, ONCE_DONE, false, false);
    }
}

static void replace_without_body(fixture *f, const char *key, const char *from, const char *to)
{
    once_request first = ask_content(f, key, 1), other = ask_content(f, key, 2);
    first.at.point = from ? text(from) : (once_bytes){0};
    other.at.point = to ? text(to) : (once_bytes){0};
    once_message was = message_of(&first), is = message_of(&other);
    was.body = is.body = (once_bytes){0};
    was.headers = text("{\"h\":1}");
    is.headers = text("{\"h\":2}");
    was.type = text("first");
    is.type = text("other");
    was.sent_ms = TEST_EPOCH_MS;
    is.sent_ms = TEST_EPOCH_MS + 1;
    assert_answer(do_claim(f, &first), RUN);
    const once_settlement s = {
        .request = &first, .outcome = ONCE_RETRY, .reason = ONCE_BYTES("reason"), .delay_ms = DELAY, .message = &was};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &s, 1, &applied, &f->err));
    const once_request *request = &other;
    const once_message *message = &is;
    once_decision d;
    assert_ok(f, f->store->ops->accept(f->store, &request, &message, 1, &d, &f->arena, &f->err));
    assert_true(d.replaced && d.letter);
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    const once_taken t = take_one(f);
    assert_int_equal(t.message.body.len, 0);
    assert_bytes(t.message.headers, "{\"h\":2}");
    assert_bytes(t.message.type, "other");
    assert_bytes(t.message.at.point, to ? to : "");
    assert_true(t.message.sent_ms == TEST_EPOCH_MS + 1);
    settle_content(f, &t.request, ONCE_DONE, false, false);
}

/* All that there is of a message may be its headers. */
static void f26_what_has_no_body_is_replaced_with_its_headers(fixture *f)
{
    replace_without_body(f, "points", "17", "18");
    replace_without_body(f, "none", NULL, NULL);
    replace_without_body(f, "one", "17", NULL);
    replace_without_body(f, "other", NULL, "18");
}

/* The key begins anew, is tried, and gives way to the other content once more. */
static once_decision replaced_anew(fixture *f, const char *key, bool claims)
{
    assert_true(do_forget(f, ask_content(f, key, 1).id));
    tried(f, key, ONCE_RETRY);
    const once_request other = ask_content(f, key, 2);
    const once_decision d = claims ? do_claim(f, &other) : accept_content(f, &other);
    assert_true(d.replaced);
    return d;
}

static void f26_what_was_discarded_is_no_letter_again(fixture *f)
{
    for (int claims = 0; claims < 2; claims++) {
        const char *key = claims ? "claimed" : "accepted";
        once_letter letter;
        bool found;
        tried(f, key, ONCE_RETRY);
        const once_request other = ask_content(f, key, 2);
        assert_true(accept_content(f, &other).letter);
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_bytes(letter.message.body, FIRST);
        assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
        assert_true(found);
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        for (int i = 0; i < 2; i++) {
            assert_false(replaced_anew(f, key, claims).letter);
            assert_int_equal(list_letters(f, NULL, 0), 0);
        }
        pass(f, REMEMBER + 1); /* as long as that is remembered */
        assert_true(replaced_anew(f, key, claims).letter);
        assert_int_equal(list_letters(f, &letter, 1), 1);
        assert_ok(f, f->store->ops->letter_drop(f->store, letter.id, &found, &f->err));
    }
}

/* Of a batch each is asked for: one was discarded, one had no body here, one is a letter already, one is new. */
static void f26_of_a_batch_only_what_was_discarded_is_left_out(fixture *f)
{
    static const char *const keys[] = {"discarded", "without a body", "a letter", "new"};
    enum { N = sizeof keys / sizeof *keys };
    once_letter letter;
    once_request others[N];
    once_message bodies[N];
    const once_request *requests[N];
    const once_message *messages[N];
    once_decision d[N];
    bool found;
    tried(f, keys[0], ONCE_RETRY);
    others[0] = ask_content(f, keys[0], 2);
    assert_true(accept_content(f, &others[0]).letter);
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_ok(f, f->store->ops->discard(f->store, letter.id, REMEMBER, &found, &f->err));
    tried(f, keys[2], ONCE_RETRY);
    others[2] = ask_content(f, keys[2], 2);
    assert_true(accept_content(f, &others[2]).letter);
    for (size_t i = 0; i < N; i++) {
        const once_request first = ask_content(f, keys[i], 1);
        assert_int_equal(do_forget(f, first.id), i % 2 == 0);
        assert_answer(do_claim(f, &first), RUN);
        settle_content(f, &first, ONCE_RETRY, i != 1, false);
        others[i] = ask_content(f, keys[i], 2);
        bodies[i] = message_for(&others[i]);
        requests[i] = &others[i];
        messages[i] = &bodies[i];
    }
    assert_ok(f, f->store->ops->accept(f->store, requests, messages, N, d, &f->arena, &f->err));
    for (size_t i = 0; i < N; i++) {
        assert_true(d[i].replaced);
        assert_int_equal(d[i].letter, i == 3);
        assert_true(once_hash_equal(do_get(f, others[i].id).fingerprint, others[i].fingerprint));
    }
    once_letter letters[3];
    assert_int_equal(list_letters(f, letters, 3), 2);
    assert_bytes(letters[0].key, "a letter");
    assert_int_equal(letters[0].count, 2);
    assert_bytes(letters[1].key, "new");
    assert_bytes(letters[1].message.body, FIRST);
}

#define KEEPS (ONCE_STORE_OWNS | ONCE_STORE_LIST)
const conform_test conform_replace[] = {
    CONFORM_WITH(f26_a_claim_with_other_content_replaces_what_had_no_effect, KEEPS),
    CONFORM_WITH(a_letter_says_when_its_message_was_seen, KEEPS),
    CONFORM_WITH(f26_accepting_other_content_replaces_what_had_no_effect, KEEPS),
    CONFORM_WITH(f26_once_replaced_other_content_is_a_conflict, KEEPS),
    CONFORM_WITH(f26_what_was_not_tried_or_may_have_happened_is_not_replaced, KEEPS),
    CONFORM_WITH(f26_what_followed_an_attempt_without_an_end_is_not_replaced, KEEPS),
    CONFORM_WITH(f26_a_replayed_message_is_not_replaced, KEEPS),
    CONFORM_WITH(f26_f71_a_message_that_is_too_old_replaces_nothing, KEEPS),
    CONFORM_WITH(f26_what_is_from_before_is_not_replaced, KEEPS),
    CONFORM_WITH(f26_without_a_body_in_the_store_there_is_no_letter, KEEPS),
    CONFORM_WITH(f26_f76_replacing_may_be_repeated, KEEPS),
    CONFORM_WITH(f26_replacing_and_its_letter_are_one_step, KEEPS | ONCE_STORE_TX),
    CONFORM_WITH(f26_another_place_of_the_lane_is_a_conflict, KEEPS | ONCE_STORE_LANES),
    CONFORM_WITH(f26_in_a_lane_the_place_stays, KEEPS | ONCE_STORE_LANES),
    CONFORM_WITH(f26_f86_among_equal_versions_the_place_stays, KEEPS | ONCE_STORE_LANES),
    CONFORM_WITH(f26_behind_an_older_one_it_does_not_run, KEEPS | ONCE_STORE_LANES),
    CONFORM_WITH(f26_the_settings_are_those_of_the_corrected_one, KEEPS | ONCE_STORE_LANES),
    CONFORM_WITH(f26_what_has_no_body_is_replaced_with_its_headers, KEEPS),
    CONFORM_WITH(f26_what_was_discarded_is_no_letter_again, KEEPS),
    CONFORM_WITH(f26_of_a_batch_only_what_was_discarded_is_left_out, KEEPS),
    {0},
};
