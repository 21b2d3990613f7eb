/* What an operator decides: unknowns are resolved, finished keys run again, and each act has its audit record. */
#include "conform.h"

#include <stdio.h>

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

const conform_test conform_operators[] = {
    CONFORM_WITH(an_unknown_one_is_resolved, ONCE_STORE_OWNS),
    CONFORM_WITH(f34_a_finished_key_runs_again_only_when_forced, ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(a_forced_key_that_is_forgotten_does_not_show_its_old_record, ONCE_STORE_OWNS),
    CONFORM_WITH(f34_audit_and_act_are_one_transaction, ONCE_STORE_TX),
    {0},
};
