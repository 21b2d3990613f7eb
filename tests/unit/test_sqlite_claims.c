/* Claims that are records (store/sqlite/settled.h): every verb sees them as if they were rows, whatever ends them ends
 * them for good, and none is lost when the recent records are flushed or swept. */
#include "sqlite_fixture.h"

#define EACH(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static const once_message message = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME, .at = {{"p", 1}, {"q", 1}}};

static long long count(fixture *f, const char *sql)
{
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(handle(f), sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const long long n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static long long rows(fixture *f) { return count(f, "SELECT count(*) FROM once_entry"); }

/* After the next transaction has begun: what memory has read of the file. */
static size_t open_claims(fixture *f) { return once__settled_claims(((once_sqlite *)f->store)->settled); }

static once_request claim_new(fixture *f, uint64_t i)
{
    const once_request r = ask(f, i, 1000000);
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    return r;
}

static bool settle_as(fixture *f, const once_settlement *settlement)
{
    bool applied;
    if (f->store->ops->settle(f->store, settlement, 1, &applied, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    return applied;
}

static bool extend(fixture *f, const once_request *r)
{
    bool ours;
    if (f->store->ops->extend(f->store, &r, 1, &ours, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    return ours;
}

static void reopen(fixture *f, const once_settled_limits *limits)
{
    once__store_close(f->store);
    f->store = NULL;
    open_store(f, limits);
}

static once_stats stats_of(fixture *f)
{
    once_stats stats = {0};
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    return stats;
}

typedef struct listing {
    size_t n;
    uint32_t attempts;
} listing;

static bool list_one(void *user, const once_entry *entry)
{
    listing *l = user;
    l->n++;
    l->attempts += entry->attempt;
    assert_memory_equal(entry->key.data, "k", 1);
    assert_memory_equal(entry->at.point.data, "q", 1);
    return true;
}

static size_t listed(fixture *f, once_state state)
{
    listing l = {0};
    assert_int_equal(f->store->ops->list(f->store, scope.consumer, state, list_one, &l, &f->err), ONCE_OK);
    return l.n;
}

static void test_a_claim_costs_no_row(void **state)
{
    enum { N = 50 };
    fixture *f = *state;
    once_request asked[N];
    open_store(f, NULL);
    fill(f, 1000, 1, 1000); /* names are written now */
    const int64_t before = sqlite3_total_changes64(handle(f));
    begin(f);
    for (uint64_t i = 0; i < N; i++) asked[i] = claim_new(f, i);
    commit(f);
    begin(f);
    for (uint64_t i = 0; i < N; i++) settle(f, &asked[i], ONCE_DONE);
    commit(f);
    assert_int_equal(sqlite3_total_changes64(handle(f)) - before, 4); /* twice: one row of records, and the head */
    for (uint64_t i = 0; i < N; i++) assert_int_equal(state_of(f, i), ONCE_STATE_DONE);
    assert_int_equal(rows(f) + (long long)open_claims(f), 0);
}

/* Everything that the rules know of a claim survives in its record. */
static void test_a_claim_is_read_as_it_was_written(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    once_request r = ask(f, 1, ONCE_FOREVER);
    char key[300];
    memset(key, 'x', sizeof key);
    r.key = (once_bytes){key, sizeof key};
    r.hold = r.lookup = true;
    r.fingerprint = (once_hash){5, 6};
    r.fields = (once_fields){.n = 2, .prints = {7, 9}};
    r.lane.gap_ms = -1;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    once_entry first, again;
    assert_int_equal(f->store->ops->get(f->store, r.id, &first, &f->arena, &f->err), ONCE_OK);
    reopen(f, NULL);
    assert_int_equal(f->store->ops->get(f->store, r.id, &again, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(rows(f), 0);
    assert_int_equal(open_claims(f), 1);
    for (const once_entry *e = &first; e; e = e == &first ? &again : NULL) {
        assert_int_equal(e->state, ONCE_STATE_CLAIMED);
        assert_memory_equal(&e->token, &r.token, sizeof r.token);
        assert_int_equal(e->attempt, 1);
        assert_int_equal(e->failures, 0);
        assert_memory_equal(&e->fingerprint, &r.fingerprint, sizeof r.fingerprint);
        assert_int_equal(e->fields.n, 2);
        assert_int_equal(e->fields.prints[1], 9);
        assert_int_equal(e->gap_ms, -1);
        assert_true(e->remember_ms == ONCE_FOREVER && e->hold && e->lookup);
        assert_false(e->natural || e->old_key || e->unreported || e->maybe_done || e->has_message);
        assert_int_equal(e->run, first.run);
        assert_int_equal(e->seen_ms, first.seen_ms);
        assert_int_equal(e->changed_ms, first.changed_ms);
        assert_int_equal(e->due_ms, e->changed_ms + r.lease_ms);
        assert_true(e->expires_ms == first.expires_ms);
        assert_int_equal(e->key.len, sizeof key);
        assert_memory_equal(e->key.data, key, sizeof key);
        assert_true(e->who.len > 0 && once_bytes_equal(e->who, first.who));
        assert_true(e->worker.len > 0 && once_bytes_equal(e->worker, first.worker));
        assert_true(once_bytes_equal(e->scope.consumer, scope.consumer) && once_bytes_equal(e->at.place, r.at.place));
    }
}

/* Another process sees it: busy, then over. Its lease is extended without a row. */
static void f14_a_claim_fences_others(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    once_backend *mine = f->store;
    const once_request r = claim_new(f, 1);
    open_store(f, NULL);
    const once_request other = ask(f, 1, 1000000);
    assert_int_equal(claim(f, &other), ONCE_ANSWER_BUSY);
    once_backend *theirs = f->store;
    f->store = mine;
    test_env_pass(&f->world, 900);
    assert_true(extend(f, &r));
    test_env_pass(&f->world, 900);
    f->store = theirs;
    assert_int_equal(claim(f, &other), ONCE_ANSWER_BUSY);
    assert_int_equal(rows(f), 0);
    assert_int_equal(open_claims(f), 1);
    test_env_pass(&f->world, 200);
    assert_int_equal(claim(f, &other), ONCE_ANSWER_RUN);
    f->store = mine;
    assert_false(settle_as(f, &(once_settlement){.request = &r, .outcome = ONCE_DONE}));
    assert_false(extend(f, &r));
    f->store = theirs;
    settle(f, &other, ONCE_DONE);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DONE);
    once__store_close(mine);
}

static void test_lists_and_counts_have_it(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    once_request held = ask(f, 1, 1000000);
    held.hold = true;
    assert_int_equal(claim(f, &held), ONCE_ANSWER_RUN);
    (void)claim_new(f, 2);
    static const once_scope elsewhere = {.consumer = {"other", 5}, .operation = {"op", 2}};
    once_request foreign = ask(f, 3, 1000000);
    foreign.scope = &elsewhere;
    assert_int_equal(claim(f, &foreign), ONCE_ANSWER_RUN);
    once_stats stats = stats_of(f);
    assert_int_equal(stats.claimed, 2);
    assert_int_equal(stats.wait_ms, 1000);
    assert_int_equal(listed(f, ONCE_STATE_CLAIMED), 2);
    assert_int_equal(listed(f, ONCE_STATE_WAITING) + listed(f, ONCE_STATE_UNKNOWN) + listed(f, ONCE_STATE_DONE), 0);
    test_env_pass(&f->world, 1000);
    stats = stats_of(f);
    assert_int_equal(stats.claimed, 0);
    assert_int_equal(stats.unknown, 1);
    assert_int_equal(stats.waiting, 1);
    assert_true(stats.wait_ms == ONCE_NEVER); /* neither comes by itself: they have no message */
    assert_int_equal(listed(f, ONCE_STATE_UNKNOWN), 1);
    assert_int_equal(listed(f, ONCE_STATE_WAITING), 1);
    assert_int_equal(rows(f), 0);
}

/* In the transaction that claims, too; there they are rows. */
static void test_a_list_in_the_middle_sees_what_was_claimed(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    const once_request before = claim_new(f, 1);
    (void)claim_new(f, 2);
    begin(f);
    const once_request now = claim_new(f, 3);
    assert_true(extend(f, &before));
    assert_int_equal(listed(f, ONCE_STATE_CLAIMED), 3);
    assert_int_equal(stats_of(f).claimed, 3);
    commit(f);
    assert_int_equal(rows(f), 2);
    assert_int_equal(open_claims(f), 1);
    assert_int_equal(listed(f, ONCE_STATE_CLAIMED), 3);
    settle(f, &now, ONCE_DONE);
    settle(f, &before, ONCE_DONE);
    assert_int_equal(listed(f, ONCE_STATE_CLAIMED), 1);
    assert_int_equal(rows(f), 0);
}

static void f04_a_lost_claim_lapses_and_is_held(void **state)
{
    fixture *f = *state;
    once_taken taken[4];
    size_t n;
    open_store(f, NULL);
    for (uint64_t i = 0; i < 3; i++) {
        once_request r = ask(f, i, 1000000);
        r.hold = i < 2;
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    }
    assert_int_equal(f->store->ops->lapse(f->store, scope.consumer, 0, 4, taken, &n, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(n, 0);
    test_env_pass(&f->world, 1000);
    assert_int_equal(f->store->ops->lapse(f->store, scope.consumer, 0, 1, taken, &n, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(n, 1);
    assert_int_equal(f->store->ops->lapse(f->store, scope.consumer, 0, 4, taken, &n, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(n, 1);
    assert_int_equal(taken[0].decision.answer, ONCE_ANSWER_UNKNOWN);
    assert_int_equal(rows(f), 2);
    reopen(f, NULL);
    assert_int_equal(listed(f, ONCE_STATE_UNKNOWN), 2);
    assert_int_equal(listed(f, ONCE_STATE_WAITING), 1);
    assert_int_equal(open_claims(f), 1);
}

/* Each end but a finished one is a row. When that row is gone, its claim is not there again. */
static void f74_what_became_a_row_is_no_claim_again(void **state)
{
    fixture *f = *state;
    once_taken taken[2];
    size_t n;
    bool found;
    open_store(f, NULL);
    const once_request retried = claim_new(f, 1), unknown = claim_new(f, 2), dead = claim_new(f, 3);
    assert_true(settle_as(f, &(once_settlement){.request = &retried, .outcome = ONCE_RETRY, .message = &message}));
    assert_true(settle_as(
        f,
        &(once_settlement){.request = &unknown, .outcome = ONCE_UNKNOWN, .delay_ms = ONCE_NEVER, .message = &message}));
    assert_true(settle_as(
        f, &(once_settlement){.request = &dead, .outcome = ONCE_DEAD, .message = &message, .reason = {"no", 2}}));
    assert_int_equal(rows(f), 3);
    assert_int_equal(open_claims(f), 0);
    assert_int_equal(f->store->ops->take(f->store, scope.consumer, (once_token){7, 7}, false, 1000, 2, NULL, taken, &n,
                                         &f->arena, &f->err),
                     ONCE_OK);
    assert_int_equal(n, 1);
    assert_int_equal(taken[0].decision.attempt, 2);
    taken[0].request.remember_ms = 10;
    settle(f, &taken[0].request, ONCE_DONE);
    for (uint64_t i = 2; i < 4; i++) {
        begin(f);
        assert_int_equal(f->store->ops->forget(f->store, id_of(i), &found, &f->err), ONCE_OK);
        assert_true(found);
        commit(f);
    }
    assert_int_equal(rows(f), 0);
    test_env_pass(&f->world, 20);
    for (int i = 0; i < 2; i++) { /* before and after they are swept, and the file is opened again */
        once_sweep_result swept;
        for (uint64_t k = 1; k < 4; k++) assert_int_equal(state_of(f, k), ONCE_STATE_ABSENT);
        assert_int_equal(open_claims(f), 0);
        assert_int_equal(f->store->ops->sweep(f->store, 1000, &swept, &f->err), ONCE_OK);
        reopen(f, NULL);
    }
    assert_int_equal(claim_new(f, 1).id.a, id_of(1).a);
}

static void test_a_natural_claim_leaves_nothing(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    once_request r = ask(f, 1, 1000000);
    r.natural = true;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    assert_int_equal(open_claims(f), 1);
    settle(f, &r, ONCE_DONE);
    reopen(f, NULL);
    assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
    assert_int_equal(open_claims(f), 0);
}

/* The sweep drops the record that ended a claim, and with it the claim. */
static void f12_a_sweep_opens_no_claim_again(void **state)
{
    enum { N = 40 };
    fixture *f = *state;
    once_request asked[N];
    open_store(f, NULL);
    for (uint64_t i = 0; i < N; i++) {
        asked[i] = ask(f, i, 5000);
        asked[i].lease_ms = 100000;
        assert_int_equal(claim(f, &asked[i]), ONCE_ANSWER_RUN);
    }
    for (uint64_t i = 0; i < N; i += 2) settle(f, &asked[i], ONCE_DONE);
    test_env_pass(&f->world, 6000);
    once_sweep_result swept;
    assert_int_equal(f->store->ops->sweep(f->store, 1000, &swept, &f->err), ONCE_OK);
    assert_int_equal(swept.dropped, N / 2);
    for (int again = 0; again < 2; again++) {
        for (uint64_t i = 0; i < N; i++)
            assert_int_equal(state_of(f, i), i % 2 ? ONCE_STATE_CLAIMED : ONCE_STATE_ABSENT);
        assert_int_equal(open_claims(f), N / 2);
        assert_int_equal(count(f, "SELECT count(*) FROM once_recent"), 1);
        reopen(f, NULL);
    }
    for (uint64_t i = 1; i < N; i += 2) settle(f, &asked[i], ONCE_DONE);
    assert_int_equal(open_claims(f), 0);
}

/* Recent records are flushed while claims are open: of earlier transactions, of this one, and one that was extended in
 * it. They become rows and stay fenced by their tokens. */
static void f12_a_flush_loses_no_claim(void **state)
{
    enum { OLD = 6 };
    fixture *f = *state;
    once_request old[OLD];
    open_store(f, &tiny);
    for (uint64_t i = 0; i < OLD; i++) old[i] = claim_new(f, i);
    settle(f, &old[0], ONCE_DONE);
    assert_int_equal(rows(f), 0);
    begin(f);
    const once_request fresh = claim_new(f, 100);
    assert_true(extend(f, &old[1]));
    for (uint64_t i = 0; i < 20; i++) { /* these make it flush */
        const once_request r = claim_new(f, 1000 + i);
        settle(f, &r, ONCE_DONE);
    }
    settle(f, &old[2], ONCE_DONE);
    commit(f);
    assert_int_equal(rows(f), 4 + 1); /* of the old ones two are done */
    assert_int_equal(open_claims(f), 0);
    assert_int_equal(count(f, "SELECT count(*) FROM once_recent"), 0);
    reopen(f, &tiny);
    for (uint64_t i = 0; i < OLD; i++)
        assert_int_equal(state_of(f, i), i == 0 || i == 2 ? ONCE_STATE_DONE : ONCE_STATE_CLAIMED);
    const once_request other = ask(f, 3, 1000000);
    assert_int_equal(claim(f, &other), ONCE_ANSWER_BUSY);
    for (uint64_t i = 3; i < OLD; i++) settle(f, &old[i], ONCE_DONE);
    settle(f, &old[1], ONCE_DONE);
    settle(f, &fresh, ONCE_DONE);
    assert_int_equal(rows(f), 0);
    for (uint64_t i = 0; i < OLD; i++) assert_int_equal(state_of(f, i), ONCE_STATE_DONE);
}

/* A key that was done before and has expired, while its record may still be around in a run: the claim hides it, and
 * what comes after the claim does, too. */
static void f12_a_claim_hides_the_record_of_an_earlier_life(void **state)
{
    fixture *f = *state;
    bool found;
    open_store(f, &tiny);
    fill(f, 1, 1, 5000);
    fill(f, 1000, 40, 1000000); /* it is in a run now */
    begin(f);
    assert_int_equal(f->store->ops->forget(f->store, id_of(1), &found, &f->err), ONCE_OK);
    commit(f);
    for (uint64_t life = 0; life < 2; life++) { /* the claim of the second one becomes a row */
        once_request r = ask(f, 1, 1000000);
        r.natural = true;
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
        if (life) fill(f, 5000, 40, 1000000);
        assert_int_equal(rows(f), life);
        settle(f, &r, ONCE_DONE); /* which leaves nothing */
        for (uint64_t i = 0; i < 3; i++) {
            assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
            fill(f, 2000 + 1000 * life + 100 * i, 40, 1000000);
        }
        reopen(f, &tiny);
        assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
    }
}

/* The tombstone of the earlier life and the claim are flushed together: the row that the claim becomes hides it. */
static void f12_a_flushed_claim_hides_the_record_of_an_earlier_life(void **state)
{
    fixture *f = *state;
    bool found;
    open_store(f, &tiny);
    fill(f, 1, 1, 5000000);
    fill(f, 1000, 40, 1000000); /* it is in a run now */
    begin(f);
    assert_int_equal(f->store->ops->forget(f->store, id_of(1), &found, &f->err), ONCE_OK);
    commit(f);
    once_request r = ask(f, 1, 1000000);
    r.natural = true;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    fill(f, 5000, 40, 1000000);
    assert_int_equal(rows(f), 1);
    settle(f, &r, ONCE_DONE);
    assert_int_equal(state_of(f, 1), ONCE_STATE_ABSENT);
}

static once_settled_shape shape_of(fixture *f)
{
    once_settled_shape shape;
    once__settled_shape(((once_sqlite *)f->store)->settled, &shape);
    return shape;
}

/* Claims do not count: runs are as full as without them, from the first one on, and after a sweep. */
static void test_runs_are_as_full_as_without_claims(void **state)
{
    enum { FULL = 16 }; /* as in `tiny` */
    fixture *f = *state;
    open_store(f, &tiny);
    uint64_t i = 0;
    for (size_t run = 1; run < 4; run++) {
        for (int k = 0; k < FULL; k++) {
            assert_int_equal(shape_of(f).runs, run - 1);
            const once_request r = claim_new(f, i++);
            settle(f, &r, ONCE_DONE);
        }
        assert_int_equal(shape_of(f).runs, run);
        assert_int_equal(shape_of(f).records, FULL * run);
        once_sweep_result swept;
        for (int k = 0; k < 5; k++) { /* which end before they are flushed */
            const once_request r = ask(f, 1000 + i + (uint64_t)k, 10);
            assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
            settle(f, &r, ONCE_DONE);
        }
        test_env_pass(&f->world, 20);
        assert_int_equal(f->store->ops->sweep(f->store, 1000, &swept, &f->err), ONCE_OK);
        assert_int_equal(shape_of(f).recent, 0);
    }
}

/* Each time that its lease is extended leaves a record; they do not pile up. */
static void test_an_effect_that_takes_long_does_not_fill_the_file(void **state)
{
    fixture *f = *state;
    open_store(f, &tiny);
    const once_request r = claim_new(f, 1);
    for (int i = 0; i < 3000; i++) {
        once_sweep_result swept;
        test_env_pass(&f->world, 300);
        assert_true(extend(f, &r));
        if (i % 50 == 0) assert_int_equal(f->store->ops->sweep(f->store, 100000, &swept, &f->err), ONCE_OK);
    }
    assert_in_range(count(f, "SELECT count(*) FROM once_recent"), 1, 1100);
    assert_int_equal(open_claims(f), 1);
    settle(f, &r, ONCE_DONE);
}

static void test_a_lapse_is_of_one_consumer(void **state)
{
    fixture *f = *state;
    once_taken taken[4];
    size_t n;
    open_store(f, NULL);
    once_request r = ask(f, 1, 1000000);
    r.hold = true;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    test_env_pass(&f->world, 2000);
    assert_int_equal(f->store->ops->lapse(f->store, ONCE_BYTES("other"), 0, 4, taken, &n, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(n, 0);
}

/* A message from the future, whose claim an operator resolves. */
static void test_a_claim_keeps_its_expiry(void **state)
{
    fixture *f = *state;
    bool done;
    open_store(f, NULL);
    once_request r = ask(f, 1, 10000);
    r.hold = true;
    r.sent_ms = f->world.wall_ms + 50000;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    test_env_pass(&f->world, 2000);
    assert_int_equal(f->store->ops->resolve(f->store, r.id, ONCE_DONE, ONCE_BYTES("seen"), &done, &f->err), ONCE_OK);
    assert_true(done);
    test_env_pass(&f->world, 20000);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DONE);
}

static void f85_the_clock_goes_back_further_than_a_claim_is_old(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    (void)claim_new(f, 1);
    test_env_pass(&f->world, 86400000);
    f->world.wall_ms = 3600000; /* an hour after the beginning of time */
    begin(f);
    assert_int_equal(f->store->ops->confirm_time(f->store, &f->err), ONCE_OK);
    commit(f);
    assert_int_equal(stats_of(f).waiting, 1);
}

static void test_a_rollback_leaves_the_claim_as_it_was(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    const once_request r = claim_new(f, 1);
    begin(f);
    (void)claim_new(f, 2);
    settle(f, &r, ONCE_DONE);
    f->store->ops->rollback(f->store);
    assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
    assert_int_equal(state_of(f, 2), ONCE_STATE_ABSENT);
    begin(f);
    assert_true(settle_as(f, &(once_settlement){.request = &r, .outcome = ONCE_RETRY, .message = &message}));
    assert_int_equal(listed(f, ONCE_STATE_WAITING), 1); /* it is a row, in the middle */
    f->store->ops->rollback(f->store);
    assert_int_equal(rows(f), 0);
    assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
    settle(f, &r, ONCE_DONE);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DONE);
}

static void note_damage(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

static void f55_a_damaged_claim_is_noticed(void **state)
{
    fixture *f = *state;
    int damages = 0;
    open_store(f, NULL);
    (void)claim_new(f, 1);
    assert_int_equal(f->store->ops->verify(f->store, note_damage, &damages, &f->err), ONCE_OK);
    assert_int_equal(damages, 0);
    static const char *const harms[] = {"UPDATE once_recent SET records = substr(records, 1, length(records) - 9)"
                                        " || x'00' || substr(records, -8)",
                                        "DELETE FROM once_recent"};
    for (size_t i = 0; i < 2; i++) {
        once_backend *reader = f->store;
        assert_int_equal(sqlite3_exec(handle(f), harms[i], NULL, NULL, NULL), SQLITE_OK);
        open_store(f, NULL);
        const once_request r = ask(f, 1, 1000000), *asked = &r;
        once_decision decision;
        assert_int_equal(f->store->ops->claim(f->store, &asked, 1, &decision, &f->arena, &f->err), ONCE_E_CORRUPT);
        once__store_close(f->store);
        f->store = reader;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_a_claim_costs_no_row),
        EACH(test_a_claim_is_read_as_it_was_written),
        EACH(f14_a_claim_fences_others),
        EACH(test_lists_and_counts_have_it),
        EACH(test_a_list_in_the_middle_sees_what_was_claimed),
        EACH(f04_a_lost_claim_lapses_and_is_held),
        EACH(f74_what_became_a_row_is_no_claim_again),
        EACH(test_a_natural_claim_leaves_nothing),
        EACH(f12_a_sweep_opens_no_claim_again),
        EACH(f12_a_flush_loses_no_claim),
        EACH(f12_a_claim_hides_the_record_of_an_earlier_life),
        EACH(f12_a_flushed_claim_hides_the_record_of_an_earlier_life),
        EACH(test_runs_are_as_full_as_without_claims),
        EACH(test_an_effect_that_takes_long_does_not_fill_the_file),
        EACH(test_a_lapse_is_of_one_consumer),
        EACH(test_a_claim_keeps_its_expiry),
        EACH(f85_the_clock_goes_back_further_than_a_claim_is_old),
        EACH(test_a_rollback_leaves_the_claim_as_it_was),
        EACH(f55_a_damaged_claim_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
