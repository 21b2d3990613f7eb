/* Dead letters of entries: written once, replayed, discarded, read by their id. */
#include "conform.h"

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
                                      .maybe_done = maybe};
        assert_ok(f, f->store->ops->settle(f->store, &dies, 1, &applied, &f->err));
        if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
        assert_int_equal(list_letters(f, letters, 2), maybe + 1);
        assert_int_equal(letters[maybe].maybe_done, maybe);
        assert_int_equal(letters[maybe].kind, ONCE_ANSWER_DEAD);
        assert_false(letters[maybe].old_key);
    }
}

const conform_test conform_letters[] = {
    CONFORM(f31_poison_is_bounded_and_leaves_one_letter),
    CONFORM_WITH(the_body_in_the_store_goes_into_the_letter, ONCE_STORE_OWNS),
    CONFORM_WITH(replayed_goes_on_with_its_attempt_and_a_new_budget, ONCE_STORE_OWNS),
    CONFORM(f34_replaying_a_completed_key_is_suppressed),
    CONFORM(a_letter_whose_key_was_forgotten_is_not_lost_by_replaying_it),
    CONFORM(forgotten_and_dead_anew_keeps_both_bodies),
    CONFORM_WITH(a_discarded_letter_is_gone_and_its_key_rejected, ONCE_STORE_OWNS),
    CONFORM_WITH(discarding_an_old_letter_leaves_the_newer_death_alone, ONCE_STORE_OWNS),
    CONFORM_WITH(a_letter_is_read_and_dropped_by_its_id, ONCE_STORE_OWNS | ONCE_STORE_TX),
    CONFORM_WITH(letters_go_on_after_an_id, ONCE_STORE_OWNS),
    CONFORM_WITH(f81_a_letter_says_whether_its_effect_may_have_happened, ONCE_STORE_OWNS),
    {0},
};
