/* Who saw an entry first, whose claim it is, and how its attempts ended: kept through every state. */
#include <stdio.h>

#include "conform.h"
#include "store/history.h"

#define FIRST "tester@world:1"
#define OTHER "other@elsewhere:2"

/* The handle goes on as another process would. */
static void become(fixture *f, const char *who)
{
    f->worlds[0].who = who;
    once__store_sign(f->store);
}

/* Written by a handle of its own where that can be: so it is the store that remembers. */
static once_entry entry_of(fixture *f, const once_request *r)
{
    if (f->store->bits & ONCE_STORE_DURABLE) reopen(f);
    return do_get(f, r->id);
}

/* "1 retry FIRST reason|2 silent OTHER |": without the times, which rise. */
static void assert_attempts(once_bytes history, const char *expected)
{
    once_attempt read[ONCE_HISTORY_ATTEMPTS];
    char shown[ONCE_HISTORY_MAX + 100];
    size_t at = 0;
    const size_t n = once__history_read(history, read);
    for (size_t i = 0; i < n; i++) {
        const once_attempt *a = &read[i];
        at += (size_t)snprintf(shown + at, sizeof shown - at, "%u %s %.*s %.*s|", a->attempt, a->outcome,
                               (int)a->who.len, a->who.data, (int)a->reason.len, a->reason.data);
        assert_true(a->ended_ms >= (i ? a[-1].ended_ms : TEST_EPOCH_MS));
    }
    shown[at] = 0;
    assert_string_equal(shown, expected);
}

static void who_saw_it_first_is_kept_in_every_state(fixture *f)
{
    static const char *const names[] = {"done", "already", "rejected", "stale", "retry", "release", "unknown", "dead"};
    for (int i = 0; i < ONCE_OUTCOMES; i++) {
        become(f, FIRST);
        const once_request r = ask(f, names[i]);
        do_claim(f, &r);
        become(f, OTHER);
        once_entry e = entry_of(f, &r);
        assert_bytes(e.who, FIRST);
        assert_bytes(e.worker, FIRST);
        assert_true(do_settle(f, &r, (once_outcome)i));
        e = entry_of(f, &r);
        assert_bytes(e.who, FIRST);
        assert_bytes(e.worker, "");
    }
    become(f, OTHER);
    const once_request r = ask(f, "waits");
    do_accept(f, &r);
    become(f, FIRST);
    assert_bytes(entry_of(f, &r).who, OTHER);
    take_one(f);
    const once_entry taken = entry_of(f, &r);
    assert_bytes(taken.who, OTHER);
    assert_bytes(taken.worker, FIRST);
}

/* A life that has ended says nothing about the next one. */
static void a_new_life_is_seen_by_another(fixture *f)
{
    const once_request first = ask(f, "k"), second = ask(f, "k"), third = ask(f, "k");
    do_claim(f, &first);
    assert_true(do_settle(f, &first, ONCE_RETRY));
    assert_true(do_forget(f, first.id));
    become(f, OTHER);
    do_claim(f, &second);
    assert_true(do_settle(f, &second, ONCE_DONE));
    once_entry e = entry_of(f, &second);
    assert_bytes(e.who, OTHER);
    assert_bytes(e.history, "");
    pass(f, REMEMBER);
    become(f, FIRST);
    do_claim(f, &third);
    e = entry_of(f, &third);
    assert_bytes(e.who, FIRST);
    assert_bytes(e.worker, FIRST);
}

/* The common case costs nothing; and what has no line can still be told. */
static void one_that_its_first_attempt_finishes_has_no_line(fixture *f)
{
    static const char *const names[] = {"done", "already", "rejected", "stale"};
    for (int i = 0; i < 4; i++) {
        const once_request r = ask(f, names[i]);
        do_claim(f, &r);
        pass(f, 5);
        assert_true(do_settle(f, &r, (once_outcome)i));
        const once_entry e = entry_of(f, &r);
        assert_bytes(e.history, "");
        once_attempt told[ONCE_HISTORY_ATTEMPTS];
        assert_int_equal(once__history_of(&e, told), 1);
        assert_string_equal(told[0].outcome, names[i]);
        assert_bytes(told[0].who, FIRST);
        assert_int_equal(told[0].ended_ms, e.changed_ms);
    }
    const once_request r = ask(f, "by another"); /* then it is worth one, because nothing else tells by whom */
    do_claim(f, &r);
    become(f, OTHER);
    assert_true(do_settle(f, &r, ONCE_DONE));
    assert_attempts(entry_of(f, &r).history, "1 done " OTHER " reason|");
}

static void every_attempt_has_a_line(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    assert_bytes(entry_of(f, &r).history, "");
    once_taken t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_RETRY));
    assert_attempts(entry_of(f, &r).history, "1 retry " FIRST " reason|");
    pass(f, DELAY);
    become(f, OTHER);
    take_one(f);
    assert_attempts(entry_of(f, &r).history, "1 retry " FIRST " reason|");
    pass(f, LEASE);
    become(f, FIRST);
    t = take_one(f); /* found here, but it was the other one's */
    assert_attempts(entry_of(f, &r).history, "1 retry " FIRST " reason|2 silent " OTHER " |");
    assert_true(do_settle(f, &t.request, ONCE_RELEASE));
    pass(f, DELAY);
    t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    assert_true(do_settle(f, &t.request, ONCE_DONE)); /* a lost reply adds nothing */
    const once_entry e = entry_of(f, &r);
    assert_int_equal(e.attempt, 4);
    assert_attempts(e.history,
                    "1 retry " FIRST " reason|2 silent " OTHER " |3 release " FIRST " reason|4 done " FIRST " reason|");
    const once_request again = ask(f, "k");
    assert_answer(do_claim(f, &again), DUPLICATE);
    assert_memory_equal(do_get(f, r.id).history.data, e.history.data, e.history.len);
}

/* Also what only a redelivery finds: the store does not own the body. */
static void an_orphan_that_a_delivery_finds(fixture *f)
{
    const once_request r = ask(f, "k"), heir = ask(f, "k");
    do_claim(f, &r);
    pass(f, LEASE);
    become(f, OTHER);
    assert_answer(do_claim(f, &heir), RUN);
    assert_answer(do_claim(f, &heir), RUN); /* a lost reply adds nothing */
    once_entry e = entry_of(f, &r);
    assert_attempts(e.history, "1 silent " FIRST " |");
    assert_bytes(e.worker, OTHER);
    assert_false(do_settle(f, &r, ONCE_DONE)); /* a zombie's words are not written */
    assert_true(do_extend(f, &heir));
    assert_attempts(entry_of(f, &r).history, "1 silent " FIRST " |");
}

static void unknown_and_what_a_person_made_of_it(fixture *f)
{
    bool done;
    once_request r = ask(f, "settled"), held = ask(f, "held"), finds = ask(f, "held");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_UNKNOWN));
    assert_attempts(entry_of(f, &r).history, "1 unknown " FIRST " reason|");
    become(f, OTHER);
    assert_ok(f, f->store->ops->resolve(f->store, r.id, ONCE_DONE, ONCE_BYTES("looked"), &done, &f->err));
    once_entry e = entry_of(f, &r);
    assert_attempts(e.history, "1 unknown " FIRST " reason|"); /* a person's word is no attempt */
    assert_bytes(e.reason, "looked");
    assert_bytes(e.who, FIRST);

    become(f, FIRST);
    held.hold = finds.hold = true;
    do_claim(f, &held);
    pass(f, LEASE);
    become(f, OTHER);
    assert_answer(do_accept(f, &finds), UNKNOWN);
    assert_attempts(entry_of(f, &held).history, "1 silent " FIRST " |");
    become(f, FIRST);
    assert_true(do_settle(f, &held, ONCE_DONE)); /* it spoke after all */
    assert_attempts(entry_of(f, &held).history, "1 silent " FIRST " |1 done " FIRST " reason|");
}

static void a_letter_has_the_history_of_its_entry(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_RETRY));
    pass(f, DELAY);
    once_taken t = take_one(f);
    become(f, OTHER);
    assert_true(do_settle(f, &t.request, ONCE_DEAD));
    const char *const expected = "1 retry " FIRST " reason|2 dead " OTHER " reason|";
    assert_attempts(entry_of(f, &r).history, expected);
    once_letter letter, got;
    bool found;
    assert_int_equal(list_letters(f, &letter, 1), 1);
    assert_ok(f, f->store->ops->letter_get(f->store, letter.id, &got, &found, &f->arena, &f->err));
    assert_true(found);
    assert_attempts(got.history, expected);

    assert_true(do_replay(f, letter.id)); /* and goes on with it */
    assert_attempts(entry_of(f, &r).history, expected);
    t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    const once_entry e = entry_of(f, &r);
    assert_bytes(e.who, FIRST);
    assert_attempts(e.history, "1 retry " FIRST " reason|2 dead " OTHER " reason|3 done " OTHER " reason|");
}

/* A first attempt without a line gets one when the entry goes on. */
static void a_finished_one_that_is_revived_goes_on_with_its_history(fixture *f)
{
    const once_request r = ask(f, "k");
    const once_message message = message_of(&r);
    bool done;
    do_claim(f, &r);
    assert_true(do_settle(f, &r, ONCE_REJECTED));
    const int64_t ended_ms = do_get(f, r.id).changed_ms;
    become(f, OTHER);
    pass(f, 1000);
    assert_ok(f, f->store->ops->revive(f->store, &r, &message, &done, &f->err));
    const once_taken t = take_one(f);
    assert_true(do_settle(f, &t.request, ONCE_DONE));
    const once_entry e = entry_of(f, &r);
    assert_attempts(e.history, "1 rejected " FIRST " reason|2 done " OTHER " reason|");
    once_attempt told[ONCE_HISTORY_ATTEMPTS];
    assert_int_equal(once__history_of(&e, told), 2);
    assert_int_equal(told[0].ended_ms, ended_ms);
    assert_bytes(e.who, FIRST);
}

static void history_is_bounded(fixture *f)
{
    const once_request r = ask(f, "k");
    do_accept(f, &r);
    for (uint32_t n = 1; n <= 25; n++) {
        const once_taken t = take_one(f);
        assert_true(do_settle(f, &t.request, ONCE_RETRY));
        pass(f, DELAY);
        once_attempt told[ONCE_HISTORY_ATTEMPTS];
        const once_entry e = n % 6 ? do_get(f, r.id) : entry_of(f, &r);
        const size_t kept = once__history_of(&e, told);
        assert_int_equal(kept, n < 10 ? n : 10);
        assert_int_equal(told[0].attempt, n - kept + 1);
        assert_int_equal(told[kept - 1].attempt, n);
    }
}

static void history_belongs_to_the_transaction(fixture *f)
{
    const once_request r = ask(f, "k");
    do_claim(f, &r);
    for (int committed = 0; committed < 2; committed++) {
        do_begin(f);
        assert_true(do_settle(f, &r, ONCE_RETRY));
        assert_attempts(do_get(f, r.id).history, "1 retry " FIRST " reason|");
        if (committed) do_commit(f);
        else do_rollback(f);
        assert_attempts(entry_of(f, &r).history, committed ? "1 retry " FIRST " reason|" : "");
    }
    pass(f, DELAY);
    const once_request failing = ask(f, "k"), heir = ask(f, "k");
    do_begin(f); /* two attempts in one transaction */
    do_claim(f, &failing);
    assert_true(do_settle(f, &failing, ONCE_UNKNOWN));
    assert_answer(do_claim(f, &heir), UNKNOWN);
    assert_true(do_settle(f, &failing, ONCE_REJECTED));
    do_commit(f);
    assert_attempts(entry_of(f, &r).history,
                    "1 retry " FIRST " reason|2 unknown " FIRST " reason|2 rejected " FIRST " reason|");
}

const conform_test conform_history[] = {
    CONFORM_WITH(who_saw_it_first_is_kept_in_every_state, ONCE_STORE_OWNS),
    CONFORM(a_new_life_is_seen_by_another),
    CONFORM(one_that_its_first_attempt_finishes_has_no_line),
    CONFORM_WITH(every_attempt_has_a_line, ONCE_STORE_OWNS),
    CONFORM(an_orphan_that_a_delivery_finds),
    CONFORM_WITH(unknown_and_what_a_person_made_of_it, ONCE_STORE_OWNS),
    CONFORM_WITH(a_letter_has_the_history_of_its_entry, ONCE_STORE_OWNS | ONCE_STORE_LIST),
    CONFORM_WITH(a_finished_one_that_is_revived_goes_on_with_its_history, ONCE_STORE_OWNS),
    CONFORM_WITH(history_is_bounded, ONCE_STORE_OWNS),
    CONFORM_WITH(history_belongs_to_the_transaction, ONCE_STORE_TX),
    {0},
};
