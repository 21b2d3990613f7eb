/* What list and stats show. */
#include "conform.h"

static bool stop_at_once(void *user, const once_entry *entry)
{
    (void)entry;
    ++*(int *)user;
    return false;
}

static void list_and_stats_show_each_state(fixture *f)
{
    assert_true(do_stats(f).wait_ms == ONCE_NEVER);
    static const struct {
        const char *keys[3];
        once_outcome outcome;
        once_state state;
    } kinds[] = {
        {{"d1", "d2", "d3"}, ONCE_DONE, ONCE_STATE_DONE},
        {{"a1", NULL, NULL}, ONCE_ALREADY, ONCE_STATE_ALREADY},
        {{"r1", "r2", NULL}, ONCE_REJECTED, ONCE_STATE_REJECTED},
        {{"s1", NULL, NULL}, ONCE_STALE, ONCE_STATE_STALE},
        {{"w1", "w2", NULL}, ONCE_RETRY, ONCE_STATE_WAITING},
        {{"u1", "u2", "u3"}, ONCE_UNKNOWN, ONCE_STATE_UNKNOWN},
        {{"x1", "x2", NULL}, ONCE_DEAD, ONCE_STATE_DEAD},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int k = 0; k < 3 && kinds[i].keys[k]; k++) {
            const once_request r = ask(f, kinds[i].keys[k]);
            do_claim(f, &r);
            assert_true(do_settle(f, &r, kinds[i].outcome));
        }
    const once_request claimed = ask(f, "c1");
    do_claim(f, &claimed);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t wanted = 0;
        while (wanted < 3 && kinds[i].keys[wanted]) wanted++;
        assert_int_equal(count_listed(f, kinds[i].state), wanted);
    }
    assert_int_equal(count_listed(f, ONCE_STATE_CLAIMED), 1);
    const once_stats stats = do_stats(f);
    assert_true(stats.waiting == 2 && stats.claimed == 1 && stats.unknown == 3 && stats.dead == 2);
    assert_int_equal(stats.wait_ms, DELAY);
    pass(f, DELAY + 5);
    assert_int_equal(do_stats(f).wait_ms, 0);
    int visits = 0;
    assert_ok(f, f->store->ops->list(f->store, f->scope.consumer, ONCE_STATE_DONE, stop_at_once, &visits, &f->err));
    assert_int_equal(visits, 1);
}

/* A worker died and only its source can bring the message again: it is shown, and nobody waits for it. */
static void stats_do_not_wait_for_what_has_no_body(fixture *f)
{
    const once_request claimed = ask(f, "claimed"), owned = ask(f, "owned"), bare = ask(f, "bare"),
                       other = ask(f, "other");
    do_claim(f, &claimed);
    do_claim(f, &bare);
    const once_settlement retry = {.request = &bare, .outcome = ONCE_RETRY, .delay_ms = DELAY};
    bool applied;
    assert_ok(f, f->store->ops->settle(f->store, &retry, 1, &applied, &f->err));
    once_stats stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 1);
    assert_int_equal(stats.wait_ms, LEASE);
    pass(f, LEASE);
    stats = do_stats(f);
    assert_true(stats.claimed == 0 && stats.waiting == 2);
    assert_true(stats.wait_ms == ONCE_NEVER);
    do_claim(f, &owned);
    do_accept(f, &owned);
    pass(f, LEASE);
    do_claim(f, &other);
    stats = do_stats(f);
    assert_true(stats.claimed == 1 && stats.waiting == 3);
    assert_int_equal(stats.wait_ms, 0);
}

const conform_test conform_lists[] = {
    CONFORM_WITH(list_and_stats_show_each_state, ONCE_STORE_LIST),
    CONFORM_WITH(stats_do_not_wait_for_what_has_no_body, ONCE_STORE_OWNS),
    {0},
};
