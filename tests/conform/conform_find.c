/* What waits, found by the transaction that runs it. */
#include "conform.h"

static once_request accept_in(fixture *f, const char *key, const char *lane, int64_t version)
{
    const once_request r = ask_lane(f, key, lane, version, -1);
    assert_answer(do_accept(f, &r), WAITING);
    return r;
}

/* In an open transaction: the keys, in order, as one string. `at`: whose lane is looked at; NULL: what is due. */
static const char *find(fixture *f, const once_request *at, size_t max, once_taken *out, bool *rest)
{
    static char keys[100];
    size_t n;
    const once_touch touched = {at, at && do_get(f, at->id).state == ONCE_STATE_CLAIMED ? ONCE_TOUCH_KEEP
                                                                                        : ONCE_TOUCH_LANE};
    do_begin(f);
    if (f->store->ops->expect)
        assert_ok(f, f->store->ops->expect(f->store, &touched, at ? 1 : 0, !at, NULL, 0, &f->err));
    assert_ok(f, f->store->ops->find(f->store, f->scope.consumer, &at, at ? 1 : 0, !at, max, out, &n, rest, &f->arena,
                                     &f->err));
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        keys[i] = out[i].request.key.data[0];
        out[i].request.token = new_token(f);
        out[i].request.lease_ms = LEASE;
        out[i].request.remember_ms = REMEMBER;
    }
    keys[n] = '\0';
    return keys;
}

static const char *look(fixture *f, const once_request *at)
{
    once_taken found[8];
    bool rest;
    const char *keys = find(f, at, 8, found, &rest);
    do_rollback(f);
    return keys;
}

static void f91_what_waits_in_a_lane_runs_in_one_transaction(fixture *f)
{
    once_taken found[8];
    bool rest;
    const once_request a = accept_in(f, "a", "lane", -1);
    accept_in(f, "b", "lane", -1);
    accept_in(f, "c", "lane", -1);
    accept_in(f, "x", "other", -1);
    const once_request next = ask_lane(f, "d", "lane", -1, -1);
    assert_string_equal(find(f, &next, 8, found, &rest), "abc");
    assert_false(rest);
    assert_int_equal(found[1].message.body.len, message_of(&found[1].request).body.len);
    for (int i = 0; i < 2; i++) {
        assert_answer(do_claim(f, &found[i].request), RUN);
        assert_true(do_settle(f, &found[i].request, i == 0 ? ONCE_DONE : ONCE_RETRY));
    }
    assert_answer(do_claim(f, &found[2].request), LATER); /* the one before it has failed */
    assert_answer(do_claim(f, &next), LATER);
    do_commit(f);
    assert_state(f, a, DONE);
    assert_string_equal(look(f, &next), ""); /* its time has not come */
    pass(f, DELAY);
    assert_string_equal(look(f, &next), "bc");
}

static void f91_nothing_is_claimed_by_looking(fixture *f)
{
    const once_request a = accept_in(f, "a", "lane", -1), next = ask_lane(f, "b", "lane", -1, -1);
    assert_string_equal(look(f, &next), "a");
    assert_state(f, a, WAITING);
    assert_int_equal(do_get(f, a.id).attempt, 0);
    const once_taken t = take_one(f);
    assert_string_equal(look(f, &next), ""); /* somebody else's */
    accept_in(f, "c", "lane", -1);
    assert_string_equal(look(f, &t.request), "c"); /* behind our own */
    do_settle(f, &t.request, ONCE_DONE);
    assert_string_equal(look(f, &next), "c");
}

static void f91_what_is_due_is_found_with_what_waits_behind_it(fixture *f)
{
    once_taken found[8];
    bool rest;
    accept_in(f, "a", "lane", -1);
    pass(f, 1);
    accept_in(f, "x", "other", -1);
    accept_in(f, "b", "lane", -1);
    assert_string_equal(find(f, NULL, 8, found, &rest), "axb");
    assert_false(rest);
    do_rollback(f);
    assert_string_equal(find(f, NULL, 1, found, &rest), "a");
    do_rollback(f);
    once_taken t[1];
    assert_int_equal(do_take(f, 1, t), 1);
    assert_bytes(t[0].request.key, "a");
    assert_string_equal(find(f, NULL, 8, found, &rest), "x");
    assert_false(rest);
    do_rollback(f);
    pass(f, LEASE);
    assert_string_equal(find(f, NULL, 8, found, &rest), "x");
    assert_true(rest); /* an orphan is taken */
    do_rollback(f);
}

static void f91_of_equal_versions_the_first_is_found_first(fixture *f)
{
    accept_in(f, "c", "lane", 1);
    accept_in(f, "b", "lane", 2);
    accept_in(f, "a", "lane", 2);
    accept_in(f, "z", "lane", 2);
    const once_request next = ask_lane(f, "d", "lane", 3, -1);
    assert_string_equal(look(f, &next), "cbaz");
}

const conform_test conform_find[] = {
    CONFORM_WITH(f91_what_waits_in_a_lane_runs_in_one_transaction, ONCE_STORE_LANES | ONCE_STORE_OWNS | CONFORM_FINDS),
    CONFORM_WITH(f91_nothing_is_claimed_by_looking, ONCE_STORE_LANES | ONCE_STORE_OWNS | CONFORM_FINDS),
    CONFORM_WITH(f91_what_is_due_is_found_with_what_waits_behind_it,
                 ONCE_STORE_LANES | ONCE_STORE_OWNS | CONFORM_FINDS),
    CONFORM_WITH(f91_of_equal_versions_the_first_is_found_first, ONCE_STORE_LANES | ONCE_STORE_OWNS | CONFORM_FINDS),
    {0},
};
