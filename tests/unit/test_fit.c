/* What rules, stores and transactions must be able to carry beyond what every effect has: `lookup`, which asks the
 * other side about an unknown, and `then`, SQL that is committed together with an outcome, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "db/db.h"
#include "store/store.h"
#include "testenv.h"

enum { LEASE_MS = 1000, ASK_MS = 300 };

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"charge", 6}};
static const once_message message = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME};

typedef struct fixture {
    test_env world;
    once_backend *store;
    once_arena arena;
    once_error err;
    once_request request;
} fixture;

static void open_store(fixture *f, const char *url)
{
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    test_env_init(&f->world, 1);
    if (once__store_open(url, &options, &f->store, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    f->request = (once_request){.scope = &scope,
                                .key = {"k", 1},
                                .id = {7, 7},
                                .token = {1, 1},
                                .lane.gap_ms = -1,
                                .lease_ms = LEASE_MS,
                                .remember_ms = 1000000,
                                .sent_ms = ONCE_NO_TIME,
                                .hold = true,
                                .lookup = true};
}

static int setup(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    if (!f) return -1;
    open_store(f, "memory:");
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    once__store_close(f->store);
    once_arena_release(&f->arena);
    free(f);
    return 0;
}

static once_answer claim(fixture *f)
{
    const once_request *request = &f->request;
    once_decision decision;
    assert_int_equal(f->store->ops->claim(f->store, &request, 1, &decision, &f->arena, &f->err), ONCE_OK);
    return decision.answer;
}

static bool settle(fixture *f, once_token token, once_outcome outcome, int64_t delay_ms)
{
    once_request request = f->request;
    request.token = token;
    const once_settlement s = {.request = &request,
                               .outcome = outcome,
                               .reason = ONCE_BYTES("the reply was lost"),
                               .delay_ms = delay_ms,
                               .message = &message,
                               .maybe_done = outcome == ONCE_UNKNOWN};
    bool applied;
    assert_int_equal(f->store->ops->settle(f->store, &s, 1, &applied, &f->err), ONCE_OK);
    return applied;
}

static bool extend(fixture *f, once_token token, int64_t lease_ms)
{
    once_request request = f->request;
    const once_request *pointer = &request;
    bool ours;
    request.token = token;
    request.lease_ms = lease_ms;
    request.asks = !once_hash_equal(token, f->request.token) && f->request.lookup;
    assert_int_equal(f->store->ops->extend(f->store, &pointer, 1, &ours, &f->err), ONCE_OK);
    return ours;
}

static size_t take(fixture *f, once_token token, once_taken *out)
{
    size_t n = 0;
    once_taken taken[2];
    assert_int_equal(
        f->store->ops->take(f->store, scope.consumer, token, false, LEASE_MS, 2, NULL, taken, &n, &f->arena, &f->err),
        ONCE_OK);
    assert_in_range(n, 0, 1);
    if (n) *out = taken[0];
    return n;
}

static once_entry entry_of(fixture *f)
{
    once_entry entry;
    assert_int_equal(f->store->ops->get(f->store, f->request.id, &entry, &f->arena, &f->err), ONCE_OK);
    return entry;
}

static int64_t wait_ms(fixture *f)
{
    once_stats stats;
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    assert_int_equal(stats.unknown, 1);
    return stats.wait_ms;
}

static const once_token asker = {20, 20}, other = {30, 30};

/* Its item goes to the other side as one that asks, and the answer is an outcome. */
static void an_unknown_with_a_due_time_is_handed_out_to_be_asked_about(void **state)
{
    fixture *f = *state;
    once_taken taken;
    assert_int_equal(claim(f), ONCE_ANSWER_RUN);
    assert_true(settle(f, f->request.token, ONCE_UNKNOWN, ASK_MS));
    assert_int_equal(take(f, asker, &taken), 0);
    assert_int_equal(wait_ms(f), ASK_MS); /* a finite run waits for it */
    test_env_pass(&f->world, ASK_MS);
    assert_int_equal(claim(f), ONCE_ANSWER_UNKNOWN); /* a delivery does not run it */
    assert_int_equal(take(f, asker, &taken), 1);
    assert_int_equal(taken.decision.answer, ONCE_ANSWER_UNKNOWN);
    assert_true(taken.decision.asks && !taken.decision.lapsed && taken.request.lookup);
    assert_int_equal(taken.decision.attempt, 1); /* nothing is tried */
    assert_int_equal(taken.message.body.len, 2);
    assert_int_equal(entry_of(f).state, ONCE_STATE_UNKNOWN);
    assert_int_equal(take(f, other, &taken), 0); /* one asks at a time */
    assert_false(settle(f, f->request.token, ONCE_DONE, 0));
    assert_true(extend(f, asker, 2 * LEASE_MS));
    test_env_pass(&f->world, LEASE_MS + 1);
    assert_int_equal(take(f, other, &taken), 0);
    assert_true(settle(f, asker, ONCE_DONE, 0));
    assert_int_equal(entry_of(f).state, ONCE_STATE_DONE);
    assert_int_equal(claim(f), ONCE_ANSWER_DUPLICATE);
}

/* Whoever asks and does not come back has had no effect: it is asked about again, and never run. */
static void who_asks_and_dies_leaves_an_unknown(void **state)
{
    fixture *f = *state;
    once_taken taken;
    (void)claim(f);
    (void)settle(f, f->request.token, ONCE_UNKNOWN, 0);
    assert_int_equal(take(f, asker, &taken), 1);
    test_env_pass(&f->world, LEASE_MS);
    assert_int_equal(take(f, other, &taken), 1);
    assert_true(taken.decision.asks);
    assert_int_equal(taken.decision.failures, 0);
    assert_false(settle(f, asker, ONCE_DONE, 0));
    assert_false(extend(f, asker, LEASE_MS));
    /* The other side knows nothing of it: it is tried again, and told that it may have happened. */
    assert_true(settle(f, other, ONCE_RETRY, 0));
    assert_int_equal(take(f, (once_token){40, 40}, &taken), 1);
    assert_int_equal(taken.decision.answer, ONCE_ANSWER_RUN);
    assert_int_equal(taken.decision.attempt, 2);
    assert_int_equal(taken.decision.failures, 1);
}

/* No answer: asked again later, or held for a person. */
static void an_unknown_that_nobody_answers_can_be_held(void **state)
{
    fixture *f = *state;
    once_taken taken;
    (void)claim(f);
    (void)settle(f, f->request.token, ONCE_UNKNOWN, 0);
    assert_int_equal(take(f, asker, &taken), 1);
    assert_true(settle(f, asker, ONCE_UNKNOWN, ASK_MS));
    assert_int_equal(take(f, other, &taken), 0);
    test_env_pass(&f->world, ASK_MS);
    assert_int_equal(take(f, other, &taken), 1);
    assert_true(settle(f, other, ONCE_UNKNOWN, ONCE_NEVER));
    test_env_pass(&f->world, 100000000);
    assert_int_equal(take(f, asker, &taken), 0);
    assert_int_equal(wait_ms(f), ONCE_NEVER);
    assert_int_equal(entry_of(f).state, ONCE_STATE_UNKNOWN);
    assert_false(extend(f, other, LEASE_MS));
}

/* A worker that died in its effect: the lease is over, somebody writes that down, and then it is asked about. */
static void a_lease_that_ran_out_is_asked_about_at_once(void **state)
{
    fixture *f = *state;
    once_taken taken;
    once_decision ignored;
    const once_request *request = &f->request;
    const once_message *body = &message;
    (void)claim(f);
    assert_int_equal(f->store->ops->accept(f->store, &request, &body, 1, &ignored, &f->arena, &f->err), ONCE_OK);
    test_env_pass(&f->world, LEASE_MS);
    assert_int_equal(wait_ms(f), 0);
    assert_int_equal(take(f, asker, &taken), 1);
    assert_true(taken.decision.lapsed && !taken.decision.asks);
    assert_int_equal(take(f, asker, &taken), 1);
    assert_true(taken.decision.asks);
}

/* As today, and as in a store that does not keep `lookup`. */
static void without_lookup_an_unknown_is_held(void **state)
{
    fixture *f = *state;
    once_taken taken;
    f->request.lookup = false;
    (void)claim(f);
    assert_true(settle(f, f->request.token, ONCE_UNKNOWN, 0));
    assert_int_equal(entry_of(f).due_ms, ONCE_NEVER);
    assert_int_equal(take(f, asker, &taken), 0);
    assert_int_equal(wait_ms(f), ONCE_NEVER);
    assert_false(extend(f, f->request.token, LEASE_MS));
}

/* --- then --- */

static char path[] = "/tmp/once-fit-XXXXXX";

static int setup_sqlite(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    if (!f || !mkdtemp(path)) return -1;
    char url[100];
    snprintf(url, sizeof url, "sqlite:%s/once.db", path);
    open_store(f, url);
    return 0;
}

static int teardown_sqlite(void **state)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    return teardown(state) == 0 && system(command) == 0 ? 0 : -1;
}

static void insert(fixture *f)
{
    once_stmt *stmt;
    once_fault fault;
    int64_t rows = 0;
    const once_bytes sql = ONCE_BYTES("INSERT INTO charged VALUES (1)");
    if (once_db_prepare(f->store->ops->db(f->store), sql, &stmt, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    assert_int_equal(once_stmt_run(stmt, NULL, 0, &rows, &fault), ONCE_OK);
    assert_int_equal(rows, 1);
    once_stmt_free(stmt);
}

/* What a transaction does for an effect outside that came back: it extends the claim, which is the fence, and holds it
 * until the commit; runs the SQL of those that are still ours, each in a savepoint; and settles what came of it. */
static void settles_with(fixture *f, once_token token, bool sql_works, bool *ours, bool *applied)
{
    once_backend *store = f->store;
    once_db *db = store->ops->db(store);
    assert_int_equal(store->ops->begin(store, &f->err), ONCE_OK);
    *ours = extend(f, token, LEASE_MS);
    *applied = false;
    if (*ours) {
        assert_int_equal(once_db_savepoint(db, &f->err), ONCE_OK);
        insert(f);
        assert_int_equal(sql_works ? once_db_savepoint_release(db, &f->err) : once_db_savepoint_undo(db, &f->err),
                         ONCE_OK);
        *applied = settle(f, token, sql_works ? ONCE_DONE : ONCE_UNKNOWN, 0);
    }
    assert_int_equal(store->ops->commit(store, &f->err), ONCE_OK);
}

static int charged(fixture *f)
{
    char file[100];
    sqlite3 *db;
    sqlite3_stmt *stmt;
    snprintf(file, sizeof file, "%s/once.db", path);
    assert_int_equal(sqlite3_open(file, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM charged", -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const int n = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    (void)f;
    return n;
}

static void begin_charge(fixture *f, bool hold)
{
    f->request.hold = hold;
    f->request.lookup = false;
    const once_bytes table = ONCE_BYTES("CREATE TABLE charged(n INTEGER)");
    if (once_db_script(f->store->ops->db(f->store), table, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    assert_int_equal(claim(f), ONCE_ANSWER_RUN);
}

static void what_settles_with_an_effect_commits_with_it(void **state)
{
    fixture *f = *state;
    bool ours, applied;
    begin_charge(f, true);
    settles_with(f, f->request.token, true, &ours, &applied);
    assert_true(ours && applied);
    assert_int_equal(charged(f), 1);
    assert_int_equal(entry_of(f).state, ONCE_STATE_DONE);
    settles_with(f, f->request.token, true, &ours, &applied); /* no answer came, and it is repeated: not once more */
    assert_false(ours);
    assert_int_equal(charged(f), 1);
}

static void what_settles_with_an_effect_needs_its_claim(void **state)
{
    fixture *f = *state;
    bool ours, applied;
    begin_charge(f, false);
    const once_token late = f->request.token;
    test_env_pass(&f->world, LEASE_MS);
    f->request.token = other;
    assert_int_equal(claim(f), ONCE_ANSWER_RUN); /* somebody else goes on with it */
    settles_with(f, late, true, &ours, &applied);
    assert_false(ours || applied);
    assert_int_equal(charged(f), 0);
    settles_with(f, other, true, &ours, &applied);
    assert_true(ours && applied);
    assert_int_equal(charged(f), 1);
}

/* It has had its effect outside, and what should have been written with it was not: that is no success. */
static void what_settles_with_an_effect_and_fails_leaves_nothing(void **state)
{
    fixture *f = *state;
    bool ours, applied;
    begin_charge(f, true);
    settles_with(f, f->request.token, false, &ours, &applied);
    assert_true(ours && applied);
    assert_int_equal(charged(f), 0);
    assert_int_equal(entry_of(f).state, ONCE_STATE_UNKNOWN);
}

#define LOOKUP(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define THEN(name) cmocka_unit_test_setup_teardown(name, setup_sqlite, teardown_sqlite)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOOKUP(an_unknown_with_a_due_time_is_handed_out_to_be_asked_about),
        LOOKUP(who_asks_and_dies_leaves_an_unknown),
        LOOKUP(an_unknown_that_nobody_answers_can_be_held),
        LOOKUP(a_lease_that_ran_out_is_asked_about_at_once),
        LOOKUP(without_lookup_an_unknown_is_held),
        THEN(what_settles_with_an_effect_commits_with_it),
        THEN(what_settles_with_an_effect_needs_its_claim),
        THEN(what_settles_with_an_effect_and_fails_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
