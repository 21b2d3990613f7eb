/* Dead letters without an entry: one per message, and a discarded one does not come back. */
#include "conform.h"

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

const conform_test conform_buried[] = {
    CONFORM(bury_twice_is_one_letter),
    CONFORM_WITH(a_letter_without_an_entry_stays_discarded, ONCE_STORE_LIST),
    CONFORM(what_was_discarded_is_that_message_only),
    CONFORM(a_conflict_stays_discarded_and_others_of_its_key_do_not),
    CONFORM(letters_without_a_place_are_apart_by_their_keys),
    CONFORM_WITH(discarded_and_taken_back_in_one_transaction, ONCE_STORE_TX | ONCE_STORE_LIST),
    CONFORM(bury_without_a_body_or_place),
    CONFORM(f27_letters_of_two_consumers_are_two),
    {0},
};
