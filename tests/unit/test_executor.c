/* The executor by itself: each action of the machine on a store in memory, without the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "runtime/executor.h"
#include "store/engine.h"
#include "testenv.h"

enum { ITEMS = 3, LEASE_MS = 1000 };

typedef struct fixture {
    test_env world;
    once_backend *store;
    once_executor x;
    once_batch batch;
    once_handler_spec handler;
    once_item items[ITEMS], *list[ITEMS];
    once_action action;
    unsigned runs;
    bool ran_carefully;
    int run_status;
} fixture;

static int run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                       bool *failed, once_error *err)
{
    fixture *f = user;
    (void)blame, (void)arena;
    f->runs++;
    f->ran_carefully = careful;
    for (size_t i = 0; i < n; i++) items[i]->outcome = ONCE_DONE;
    *failed = false;
    return f->run_status == ONCE_OK ? ONCE_OK : once_fail(err, f->run_status, "the server is away");
}

static int setup(void **state)
{
    fixture *f = *state = calloc(1, sizeof *f);
    const once_store_options options = {.size = sizeof options, .env = &f->world.env, .create = true};
    once_error err;
    static const char *const keys[ITEMS] = {"a", "b", "c"};
    test_env_init(&f->world, 1);
    if (once__store_open("memory:", &options, &f->store, &err) != ONCE_OK) return -1;
    once_executor_init(&f->x, f->store, ONCE_BYTES("c"), run_effects, f);
    f->handler = (once_handler_spec){.operation = ONCE_BYTES("op"), .bits = ONCE_EFFECT_RUNS};
    for (size_t i = 0; i < ITEMS; i++) {
        once_item *item = f->list[i] = &f->items[i];
        *item = (once_item){.batch = &f->batch,
                            .handler = &f->handler,
                            .scope = {.consumer = ONCE_BYTES("c"), .operation = ONCE_BYTES("op")},
                            .message = {.body = ONCE_BYTES("{\"n\":1}"), .sent_ms = ONCE_NO_TIME}};
        item->request = (once_request){.scope = &item->scope,
                                       .key = {keys[i], 1},
                                       .id = once_key_id(f->store->secret, &item->scope, (once_bytes){keys[i], 1}),
                                       .token = {i + 1, i + 1},
                                       .lane.gap_ms = -1,
                                       .lease_ms = LEASE_MS,
                                       .remember_ms = 1000000,
                                       .sent_ms = ONCE_NO_TIME};
    }
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    (void)once_failpoints_arm("", NULL, 0);
    once_executor_release(&f->x);
    once__store_close(f->store);
    once_arena_release(&f->batch.arena);
    free(f);
    return 0;
}

static int act(fixture *f, once_action_kind kind, size_t n)
{
    f->action.kind = kind;
    f->action.items = f->list;
    f->action.n = n;
    f->action.failed = false;
    once_execute_store(&f->x, &f->action);
    return f->action.status;
}

static once_entry entry_of(fixture *f, size_t i)
{
    once_entry entry;
    once_error err;
    assert_int_equal(f->store->ops->get(f->store, f->items[i].request.id, &entry, &f->batch.arena, &err), ONCE_OK);
    return entry;
}

static void claimed(fixture *f, size_t n)
{
    assert_int_equal(act(f, ONCE_ACT_BEGIN, n), ONCE_OK);
    assert_true(f->action.tx_open && f->x.in_tx);
    assert_int_equal(act(f, ONCE_ACT_CLAIM, n), ONCE_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(f->items[i].decision.answer, ONCE_ANSWER_RUN);
}

static void a_transaction_step_by_step(void **state)
{
    fixture *f = *state;
    claimed(f, ITEMS);
    f->action.careful = true;
    assert_int_equal(act(f, ONCE_ACT_RUN, ITEMS), ONCE_OK);
    assert_true(f->runs == 1 && f->ran_carefully);
    f->items[1].outcome = ONCE_RETRY;
    f->items[1].failure = ONCE_BYTES("away");
    f->items[1].delay_ms = 500;
    f->items[1].started = true;
    assert_int_equal(act(f, ONCE_ACT_SETTLE, ITEMS), ONCE_OK);
    for (size_t i = 0; i < ITEMS; i++) assert_true(f->items[i].granted);
    assert_int_equal(f->x.settled, 2); /* one comes again */
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    assert_false(f->action.tx_open || f->x.in_tx);
    assert_int_equal(entry_of(f, 0).state, ONCE_STATE_DONE);
    const once_entry waits = entry_of(f, 1);
    assert_int_equal(waits.state, ONCE_STATE_WAITING);
    assert_int_equal(waits.failures, 1);
    assert_true(waits.has_message && waits.due_ms == f->world.wall_ms + 500);
}

static void a_rollback_leaves_nothing(void **state)
{
    fixture *f = *state;
    claimed(f, 1);
    f->items[0].outcome = ONCE_DONE;
    assert_int_equal(act(f, ONCE_ACT_SETTLE, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
    assert_false(f->x.in_tx);
    assert_int_equal(entry_of(f, 0).state, ONCE_STATE_ABSENT);
}

static void what_the_effects_say_is_the_status(void **state)
{
    fixture *f = *state;
    claimed(f, 1);
    f->run_status = ONCE_E_UNAVAILABLE;
    assert_int_equal(act(f, ONCE_ACT_RUN, 1), ONCE_E_UNAVAILABLE);
    assert_string_equal(f->action.error.text, "the server is away");
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
}

/* A claim that somebody else has by now: extend and settle say no, and nothing of it changes. */
static void a_claim_that_was_lost_is_told(void **state)
{
    fixture *f = *state;
    assert_int_equal(act(f, ONCE_ACT_CLAIM, 1), ONCE_OK); /* durably, outside of a transaction */
    const once_token late = f->items[0].request.token;
    test_env_pass(&f->world, LEASE_MS);
    f->items[0].request.token = (once_token){50, 50};
    assert_int_equal(act(f, ONCE_ACT_CLAIM, 1), ONCE_OK);
    assert_int_equal(f->items[0].decision.attempt, 2);
    f->items[0].request.token = late;
    assert_int_equal(act(f, ONCE_ACT_BEGIN, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_EXTEND, 1), ONCE_OK);
    assert_false(f->items[0].granted);
    f->items[0].outcome = ONCE_DONE;
    assert_int_equal(act(f, ONCE_ACT_SETTLE, 1), ONCE_OK);
    assert_false(f->items[0].granted);
    assert_int_equal(f->x.settled, 0);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    assert_int_equal(entry_of(f, 0).state, ONCE_STATE_CLAIMED);
}

static bool first_letter(void *user, const once_letter *letter)
{
    return once__letter_copy(&((fixture *)user)->batch.arena, letter, (once_letter *)((fixture *)user)->x.user);
}

static once_letter letter_of(fixture *f)
{
    once_letter letter = {0};
    once_error err;
    f->x.user = &letter;
    assert_int_equal(f->store->ops->letters(f->store, f->x.consumer, 0, first_letter, f, &err), ONCE_OK);
    f->x.user = f;
    return letter;
}

/* Letters without an entry: the reason is the item's own, or is made of what the store says. */
static void a_message_without_a_key_is_buried_with_its_reason(void **state)
{
    fixture *f = *state;
    f->items[0].request.id = (once_hash){0};
    f->items[0].request.key = (once_bytes){0};
    f->items[0].reason = ONCE_BYTES("the key is empty");
    f->items[0].decision.answer = ONCE_ANSWER_DEAD;
    assert_int_equal(act(f, ONCE_ACT_BEGIN, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_BURY, 1), ONCE_OK);
    assert_true(f->items[0].granted);
    assert_int_equal(act(f, ONCE_ACT_BURY, 1), ONCE_OK);
    assert_false(f->items[0].granted); /* it is there */
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    const once_letter letter = letter_of(f);
    assert_int_equal(letter.kind, ONCE_ANSWER_DEAD);
    assert_true(once_bytes_equal(letter.reason, ONCE_BYTES("the key is empty")));
}

static void a_conflict_is_buried_with_what_differs(void **state)
{
    fixture *f = *state;
    f->items[0].request.fingerprint = (once_hash){1, 1};
    f->items[1].request = f->items[0].request;
    f->items[1].request.fingerprint = (once_hash){2, 2};
    f->items[1].request.token = (once_token){9, 9};
    claimed(f, 1);
    f->items[0].outcome = ONCE_DONE;
    assert_int_equal(act(f, ONCE_ACT_SETTLE, 1), ONCE_OK);
    f->list[0] = &f->items[1];
    assert_int_equal(act(f, ONCE_ACT_CLAIM, 1), ONCE_OK);
    assert_int_equal(f->items[1].decision.answer, ONCE_ANSWER_CONFLICT);
    assert_int_equal(act(f, ONCE_ACT_BURY, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    const once_letter letter = letter_of(f);
    assert_int_equal(letter.kind, ONCE_ANSWER_CONFLICT);
    const char *begin = "conflict: the key was used before with other content";
    assert_true(letter.reason.len > strlen(begin) && memcmp(letter.reason.data, begin, strlen(begin)) == 0);
}

/* What is taken becomes items of the batch, with the lease that was asked for. */
static void what_is_taken_fills_the_batch(void **state)
{
    fixture *f = *state;
    assert_int_equal(act(f, ONCE_ACT_BEGIN, 2), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_ACCEPT, 2), ONCE_OK);
    assert_int_equal(f->items[0].decision.answer, ONCE_ANSWER_WAITING);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    once_batch batch = {0};
    f->action.batch = &batch;
    f->action.max = 8;
    f->action.token = (once_token){70, 70};
    f->action.lease_ms = 4321;
    assert_int_equal(act(f, ONCE_ACT_TAKE, 0), ONCE_OK);
    assert_int_equal(batch.n, 2);
    for (size_t i = 0; i < batch.n; i++) {
        assert_ptr_equal(batch.items[i].batch, &batch);
        assert_int_equal(batch.items[i].request.lease_ms, 4321);
        assert_int_equal(batch.items[i].decision.answer, ONCE_ANSWER_RUN);
        assert_int_equal(batch.items[i].message.body.len, 7);
    }
    assert_int_equal(act(f, ONCE_ACT_STATS, 0), ONCE_OK);
    assert_true(f->action.claimed == 2 && f->action.waiting == 0);
    once_arena_release(&batch.arena);
}

static int64_t repeats_of(fixture *f)
{
    int64_t n = -1;
    once_error err;
    assert_int_equal(once_repeats_read(f->store, f->x.consumer, &f->batch.arena, &n, &err), ONCE_OK);
    return n;
}

/* What is counted for ever goes with the transaction, or not at all. */
static void counters_are_part_of_the_commit(void **state)
{
    fixture *f = *state;
    claimed(f, 1);
    f->action.repeats = 2;
    assert_true(once_failpoints_arm("commit_before:error", NULL, 0));
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_E_UNAVAILABLE);
    assert_true(f->action.tx_open && f->x.in_tx); /* nothing was tried: the machine ends it */
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
    assert_int_equal(repeats_of(f), 0);
    assert_true(once_failpoints_arm("", NULL, 0));
    claimed(f, 1);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    assert_int_equal(repeats_of(f), 2);
}

/* --- a store that is watched --- */

static once_store_ops watched;
static const once_store_ops *inner;
static int commit_status;
static unsigned rollbacks;

/* It is committed, and the reply is another one. */
static int commit_and_say(once_backend *store, once_error *err)
{
    const int rc = inner->commit(store, err);
    return rc == ONCE_OK && commit_status != ONCE_OK ? once_fail(err, commit_status, "no reply") : rc;
}

static void rollback_counted(once_backend *store)
{
    rollbacks++;
    inner->rollback(store);
}

static void watch(fixture *f)
{
    inner = f->store->ops;
    watched = *inner;
    watched.commit = commit_and_say;
    watched.rollback = rollback_counted;
    f->store->ops = &watched;
    commit_status = ONCE_OK;
    rollbacks = 0;
}

/* --- which keys have no entry --- */

static void f31_only_keys_without_an_entry_are_absent(void **state)
{
    fixture *f = *state;
    int64_t newest_ms;
    once_error err;
    claimed(f, 1);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    for (size_t i = 0; i < ITEMS; i++) f->items[i].request.unclaimed = f->items[i].request.natural = true;
    f->items[1].request.sent_ms = 1234567;
    assert_int_equal(act(f, ONCE_ACT_ABSENT, ITEMS), ONCE_OK);
    assert_false(f->items[0].granted);
    assert_true(f->items[1].granted && f->items[2].granted);
    assert_false(f->x.in_tx || f->action.tx_open);
    assert_int_equal(once_newest_read(f->store, ONCE_BYTES("c"), &newest_ms, &err), ONCE_OK);
    assert_int_equal(newest_ms, 1234567); /* a wrong clock is noticed by it */
}

static void a_question_that_fails_leaves_no_transaction(void **state)
{
    fixture *f = *state;
    watch(f);
    for (size_t i = 0; i < ITEMS; i++) f->items[i].request.unclaimed = f->items[i].request.natural = true;
    assert_true(once_failpoints_arm("claim_after:error", NULL, 0));
    assert_int_equal(act(f, ONCE_ACT_ABSENT, ITEMS), ONCE_E_UNAVAILABLE);
    assert_int_equal(rollbacks, 1);
    assert_false(f->x.in_tx || f->action.tx_open);
    assert_true(once_failpoints_arm("", NULL, 0));
    assert_int_equal(act(f, ONCE_ACT_ABSENT, ITEMS), ONCE_OK);
    f->store->ops = inner;
}

/* --- what is said --- */

static FILE *log_file;

static void open_log(void)
{
    log_file = tmpfile();
    assert_non_null(log_file);
    assert_true(once_log_open_fd(fileno(log_file), ONCE_LOG_LOGFMT, ONCE_LOG_INFO));
}

/* How many lines have these words. */
static unsigned close_log(const char *words)
{
    char line[4096];
    unsigned n = 0;
    once_log_close();
    rewind(log_file);
    while (fgets(line, sizeof line, log_file)) n += strstr(line, words) != NULL;
    fclose(log_file);
    return n;
}

static void settle_as_failed(fixture *f)
{
    claimed(f, 1);
    f->items[0].outcome = ONCE_RETRY;
    f->items[0].failure = ONCE_BYTES("away");
    assert_int_equal(act(f, ONCE_ACT_SETTLE, 1), ONCE_OK);
}

static void what_was_rolled_back_is_not_said(void **state)
{
    fixture *f = *state;
    open_log();
    settle_as_failed(f);
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
    claimed(f, 1);
    f->items[0].outcome = ONCE_DONE;
    assert_int_equal(act(f, ONCE_ACT_SETTLE, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    assert_int_equal(close_log("event=retry"), 0);
}

static void what_was_committed_is_said_once(void **state)
{
    fixture *f = *state;
    open_log();
    settle_as_failed(f);
    assert_int_equal(f->x.log.n, 1);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    once_executor_release(&f->x);
    once_executor_init(&f->x, f->store, ONCE_BYTES("c"), run_effects, f);
    assert_int_equal(close_log("event=retry"), 1);
}

/* Nobody asks again: it may have been committed, so it is said at the end. */
static void what_was_perhaps_committed_is_said_in_the_end(void **state)
{
    fixture *f = *state;
    watch(f);
    commit_status = ONCE_E_COMMIT_UNKNOWN;
    open_log();
    settle_as_failed(f);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_E_COMMIT_UNKNOWN);
    assert_true(f->x.log.n == 0 && f->x.log_in_doubt.n == 1);
    once_executor_release(&f->x);
    once_executor_init(&f->x, f->store, ONCE_BYTES("c"), run_effects, f);
    assert_int_equal(close_log("event=retry"), 1);
}

/* --- the source --- */

static int fetch_half(once_source *source, once_fetch *fetch, once_error *err)
{
    (void)source;
    fetch->batch->items = once_arena_new(&fetch->batch->arena, once_item, 2);
    fetch->batch->n = 2;
    fetch->at_end = true;
    return once_fail(err, ONCE_E_UNAVAILABLE, "the broker is away");
}

static void a_fetch_that_fails_brings_nothing(void **state)
{
    fixture *f = *state;
    static const once_source_ops ops = {.fetch = fetch_half};
    once_source source = {.ops = &ops};
    f->action = (once_action){.kind = ONCE_ACT_FETCH, .batch = &f->batch, .max = 8};
    once_execute_source(&source, &f->action);
    assert_int_equal(f->action.status, ONCE_E_UNAVAILABLE);
    assert_string_equal(f->action.error.text, "the broker is away");
    assert_int_equal(f->batch.n, 0);
    assert_false(f->action.at_end);
    assert_int_equal(f->action.n_news, 0);
}

/* --- that we are alive --- */

static void a_record_is_renewed_by_itself(void **state)
{
    fixture *f = *state;
    once_worker worker;
    once_error err;
    bool died = false;
    assert_int_equal(act(f, ONCE_ACT_RENEW, 0), ONCE_OK); /* who has none has nothing to renew */
    once_worker_init(&worker, f->store, f->x.consumer, 7, ONCE_WORKER_LEASE_MS);
    assert_int_equal(once_worker_begin(&worker, f->store, &died, &err), ONCE_OK);
    f->x.worker = &worker;
    watch(f);
    const uint64_t before = worker.number;
    test_env_pass(&f->world, 5000);
    assert_int_equal(act(f, ONCE_ACT_RENEW, 0), ONCE_OK);
    assert_int_equal(worker.number, before + 1);
    assert_int_equal(worker.seen_ms, f->world.wall_ms);
    commit_status = ONCE_E_COMMIT_UNKNOWN;
    assert_int_equal(act(f, ONCE_ACT_RENEW, 0), ONCE_E_COMMIT_UNKNOWN);
    assert_true(worker.number == before + 1 && worker.tried > worker.number); /* it is not known to be kept */
    commit_status = ONCE_OK;
    assert_int_equal(act(f, ONCE_ACT_RENEW, 0), ONCE_OK); /* either one may be there */
    /* A store that has lost the record: nothing of the renewal is left open. */
    assert_int_equal(once_worker_end(&worker, f->store, &err), ONCE_OK);
    rollbacks = 0;
    assert_int_not_equal(act(f, ONCE_ACT_RENEW, 0), ONCE_OK);
    assert_int_equal(rollbacks, 1);
    f->x.worker = NULL;
    assert_int_equal(act(f, ONCE_ACT_BEGIN, 0), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
}

/* Whose claim is in the way may be dead: that is looked for soon. */
static void a_busy_key_is_noticed_by_a_claim_and_by_an_accept(void **state)
{
    fixture *f = *state;
    claimed(f, 1);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, 0), ONCE_OK);
    assert_false(f->x.met_busy);
    f->items[0].request.token = (once_token){50, 50};
    assert_int_equal(act(f, ONCE_ACT_BEGIN, 1), ONCE_OK);
    assert_int_equal(act(f, ONCE_ACT_ACCEPT, 1), ONCE_OK);
    assert_int_equal(f->items[0].decision.answer, ONCE_ANSWER_BUSY);
    assert_true(f->x.met_busy);
    f->x.met_busy = false;
    assert_int_equal(act(f, ONCE_ACT_CLAIM, 1), ONCE_OK);
    assert_true(f->x.met_busy);
    assert_int_equal(act(f, ONCE_ACT_ROLLBACK, 0), ONCE_OK);
}

/* What is said of waiting_max, and how loud. */
static void only_a_pause_that_lasts_is_a_warning(void **state)
{
    (void)state;
    once_fetch_pause said = {0};
    bool warn;
    int64_t at_ms = 1000;
    assert_false(once__fetch_pause_news(&said, false, at_ms, &warn));
    for (int i = 0; i < 100; i++) {
        assert_true(once__fetch_pause_news(&said, true, at_ms, &warn));
        assert_false(warn);
        assert_false(once__fetch_pause_news(&said, true, at_ms + 150, &warn));
        assert_true(once__fetch_pause_news(&said, false, at_ms += 200, &warn));
        assert_false(warn);
        assert_false(once__fetch_pause_news(&said, false, at_ms, &warn));
    }
    /* Each one that lasts is said once, and the next must last twice as long. */
    for (int64_t long_ms = 10000; long_ms < 300000; long_ms *= 2) {
        assert_true(once__fetch_pause_news(&said, true, at_ms, &warn));
        assert_false(warn);
        assert_false(once__fetch_pause_news(&said, true, at_ms + long_ms - 1, &warn));
        assert_true(once__fetch_pause_news(&said, true, at_ms + long_ms, &warn));
        assert_true(warn);
        assert_false(once__fetch_pause_news(&said, true, at_ms + 5 * long_ms, &warn));
        assert_true(once__fetch_pause_news(&said, false, at_ms += 5 * long_ms, &warn));
        assert_true(warn);
    }
    for (int i = 0; i < 3; i++) { /* but one without an end is said within minutes */
        assert_true(once__fetch_pause_news(&said, true, at_ms, &warn));
        assert_true(once__fetch_pause_news(&said, true, at_ms += 300000, &warn));
        assert_true(warn);
        assert_true(once__fetch_pause_news(&said, false, at_ms, &warn));
    }
    at_ms += 300000; /* it went well for as long: as in the beginning */
    assert_true(once__fetch_pause_news(&said, true, at_ms, &warn));
    assert_true(once__fetch_pause_news(&said, true, at_ms + 10000, &warn));
    assert_true(warn);
}

/* Natural effects that ran without a claim: the store hears only of those that failed, and writes nothing else. */
static void what_leaves_nothing_is_settled_without_the_store(void **state)
{
    fixture *f = *state;
    once_worker worker;
    once_error err;
    bool died = false;
    once_worker_init(&worker, f->store, f->x.consumer, 7, ONCE_WORKER_LEASE_MS);
    assert_int_equal(once_worker_begin(&worker, f->store, &died, &err), ONCE_OK);
    f->x.worker = &worker;
    for (size_t i = 0; i < ITEMS; i++) f->items[i].request.natural = f->items[i].request.unclaimed = true;
    claimed(f, ITEMS);
    const uint64_t before = worker.number;
    assert_int_equal(act(f, ONCE_ACT_COMMIT, ITEMS), ONCE_OK);
    assert_false(f->action.renewed); /* nothing was written */
    for (size_t i = 0; i < ITEMS; i++) {
        assert_true(f->items[i].decision.unclaimed);
        assert_int_equal(entry_of(f, i).state, ONCE_STATE_ABSENT);
        f->items[i].returned = f->items[i].unclaimed = f->items[i].started = true;
        f->items[i].outcome = f->items[i].came_to = i == 1 ? ONCE_RETRY : ONCE_DONE;
        f->items[i].delay_ms = i == 1 ? 500 : -1;
    }
    once_item *const failed = &f->items[1];
    failed->request.unclaimed = false;
    failed->request.late = &failed->message;
    assert_int_equal(act(f, ONCE_ACT_BEGIN, ITEMS), ONCE_OK);
    f->list[0] = failed;
    assert_int_equal(act(f, ONCE_ACT_CLAIM, 1), ONCE_OK);
    assert_null(failed->request.late); /* it has an entry now */
    f->list[0] = &f->items[0];
    assert_int_equal(act(f, ONCE_ACT_SETTLE, ITEMS), ONCE_OK);
    for (size_t i = 0; i < ITEMS; i++) assert_true(f->items[i].granted);
    assert_int_equal(act(f, ONCE_ACT_COMMIT, ITEMS), ONCE_OK);
    assert_true(f->action.renewed && worker.number == before + 1);
    assert_int_equal(worker.done, ITEMS - 1);
    assert_int_equal(entry_of(f, 0).state, ONCE_STATE_ABSENT);
    assert_int_equal(entry_of(f, 1).state, ONCE_STATE_WAITING);
    f->x.worker = NULL;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_transaction_step_by_step),
        TEST(a_rollback_leaves_nothing),
        TEST(what_the_effects_say_is_the_status),
        TEST(a_claim_that_was_lost_is_told),
        TEST(a_message_without_a_key_is_buried_with_its_reason),
        TEST(a_conflict_is_buried_with_what_differs),
        TEST(what_is_taken_fills_the_batch),
        TEST(counters_are_part_of_the_commit),
        TEST(f31_only_keys_without_an_entry_are_absent),
        TEST(a_question_that_fails_leaves_no_transaction),
        TEST(what_was_rolled_back_is_not_said),
        TEST(what_was_committed_is_said_once),
        TEST(what_was_perhaps_committed_is_said_in_the_end),
        TEST(a_fetch_that_fails_brings_nothing),
        TEST(a_record_is_renewed_by_itself),
        TEST(a_busy_key_is_noticed_by_a_claim_and_by_an_accept),
        TEST(what_leaves_nothing_is_settled_without_the_store),
        cmocka_unit_test(only_a_pause_that_lasts_is_a_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
