/* once_handle and the bare verbs, through the public headers. Threads share a store here, so this runs under
 * ThreadSanitizer too (pthread). Stores are opened inside where a test needs a clock in its hand or a store that fails.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/lib.h"
#include "once/once.h"
#include "store/history.h"
#include "testenv.h"

#define CONSUMERS 5

typedef struct fixture {
    char dir[64], url[100];
    test_env world;
    once_store *store;
    once_scope scope;
    once_terms terms;
    once_error err;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-handle.XXXXXX", 24);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->url, sizeof f->url, "sqlite:%s/s.db", f->dir);
    f->scope = (once_scope){.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")};
    f->terms = (once_terms){.size = sizeof f->terms, .backoff_min_ms = 1, .backoff_max_ms = 1};
    test_env_init(&f->world, 7);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"s.db", "s.db-wal", "s.db-shm", "effects"};
    once_store_close(f->store);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[120];
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

static void good(fixture *f, int rc)
{
    if (rc != ONCE_OK) fail_msg("%s: %s", once_status_name(rc), f->err.text);
}

static void open_real(fixture *f) { good(f, once_store_open(f->url, NULL, &f->store, &f->err)); }

/* With time that passes only when told. */
static void open_timed(fixture *f)
{
    once_backend *inner;
    const once_store_options options = {.size = sizeof options, .create = true, .env = &f->world.env};
    good(f, once__store_open(f->url, &options, &inner, &f->err));
    good(f, once__store_guard(inner, &f->store, &f->err));
}

static once_bytes text(const char *s) { return (once_bytes){s, strlen(s)}; }

static once_delivery delivery(fixture *f, const char *key, const char *body)
{
    return (once_delivery){.size = sizeof(once_delivery),
                           .key = text(key),
                           .body = text(body),
                           .terms = &f->terms,
                           .place = ONCE_BYTES("queue"),
                           .point = text(key)};
}

/* ---- a gateway that counts ---- */

typedef struct gateway {
    atomic_int charges, calls;
    int fail_first; /* calls that end as `failure` */
    once_outcome failure;
    uint32_t attempt, failures;
    bool maybe_done;
    char idempotency_key[33];
} gateway;

static once_outcome charge(void *user, const once_call *call, once_reply *reply)
{
    gateway *g = user;
    const int n = atomic_fetch_add(&g->calls, 1);
    g->attempt = call->attempt;
    g->failures = call->failures;
    g->maybe_done = call->maybe_done;
    assert_null(call->db);
    if (g->idempotency_key[0]) assert_string_equal(g->idempotency_key, call->idempotency_key);
    memcpy(g->idempotency_key, call->idempotency_key, sizeof g->idempotency_key);
    if (n < g->fail_first) {
        once_reply_reason(reply, "declined for now (%d)", n);
        return g->failure;
    }
    char receipt[40];
    const int len = snprintf(receipt, sizeof receipt, "receipt %d", 1 + atomic_fetch_add(&g->charges, 1));
    assert_int_equal(once_reply_result(reply, (once_bytes){receipt, (size_t)len}), ONCE_OK);
    return ONCE_DONE;
}

static once_verdict handle(fixture *f, const once_delivery *d, gateway *g)
{
    once_verdict verdict;
    good(f, once_handle(f->store, &f->scope, d, charge, g, &verdict, &f->err));
    return verdict;
}

#define assert_result(verdict, expected)                                                                               \
    do {                                                                                                               \
        assert_int_equal((verdict).result.len, strlen(expected));                                                      \
        assert_memory_equal((verdict).result.data, expected, strlen(expected));                                        \
    } while (0)

/* ---- the same message again ---- */

static void deliver_times(fixture *f, const char *key, int times)
{
    gateway g = {0};
    const once_delivery d = delivery(f, key, "{\"amount\": 12, \"to\": \"ann\"}");
    for (int i = 0; i < times; i++) {
        once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.answer, i == 0 ? ONCE_ANSWER_RUN : ONCE_ANSWER_DUPLICATE);
        assert_int_equal(v.outcome, ONCE_DONE);
        assert_int_equal(v.was_duplicate, i > 0);
        assert_true(v.ack);
        assert_result(v, "receipt 1");
        once_verdict_release(&v);
        assert_null(v.result.data);
    }
    assert_int_equal(g.charges, 1);
}

static void f07_once_twice_and_ten_times_is_one_effect_with_the_same_result(void **state)
{
    fixture *f = *state;
    open_real(f);
    deliver_times(f, "once", 1);
    deliver_times(f, "twice", 2);
    deliver_times(f, "ten times", 10);
    once_store_close(f->store); /* and after a restart */
    open_real(f);
    gateway g = {0};
    const once_delivery d =
        delivery(f, "twice", "{\"to\": \"ann\", \"amount\": 12.0}"); /* the same, written otherwise */
    once_verdict v = handle(f, &d, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_DUPLICATE);
    assert_result(v, "receipt 1");
    once_verdict_release(&v);
    assert_int_equal(g.calls, 0);
}

static void f27_different_messages_and_scopes_are_not_confused(void **state)
{
    fixture *f = *state;
    open_real(f);
    static const char *const keys[] = {"a", "b", "a:b", "ab", "a\n", "A"};
    static const char *const tenants[] = {"", "t", "a"};
    static const char *const consumers[] = {"payments", "payment", "mails"};
    static const char *const operations[] = {"charge", "refund"};
    gateway g = {0};
    int n = 0;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < 6 * 3 * 3 * 2; i++) {
            const once_delivery d = delivery(f, keys[i % 6], "x");
            f->scope = (once_scope){text(tenants[i / 6 % 3]), text(consumers[i / 18 % 3]), text(operations[i / 54])};
            g.idempotency_key[0] = 0;
            once_verdict v = handle(f, &d, &g);
            assert_int_equal(v.answer, round ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_RUN);
            char expected[40];
            snprintf(expected, sizeof expected, "receipt %d", round ? (int)i + 1 : ++n);
            assert_result(v, expected);
            once_verdict_release(&v);
        }
    assert_int_equal(g.charges, n);
}

static void f26_same_key_with_other_content_is_a_conflict_with_a_letter(void **state)
{
    fixture *f = *state;
    open_real(f);
    gateway g = {0};
    once_delivery d = delivery(f, "p1", "{\"cents\": 100}");
    once_verdict v = handle(f, &d, &g);
    once_verdict_release(&v);
    d.body = ONCE_BYTES("{\"cents\": 999}");
    for (int i = 0; i < 2; i++) {
        v = handle(f, &d, &g);
        assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
        assert_true(v.ack);
        assert_false(v.was_duplicate);
        assert_int_equal(v.result.len, 0);
    }
    assert_int_equal(g.calls, 1);
    once_backend *inner = f->store->inner;
    once_stats stats;
    good(f, inner->ops->stats(inner, f->scope.consumer, &stats, &f->err));
    assert_int_equal(stats.dead, 1); /* the second delivery made no second letter */

    d.any_content = true;
    v = handle(f, &d, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_DUPLICATE);
    once_verdict_release(&v);
    d.any_content = false;
    d.content = ONCE_BYTES("{\"cents\":1e2}"); /* what counts was the body of the first: the same number */
    v = handle(f, &d, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_DUPLICATE);
    once_verdict_release(&v);
}

/* Nothing was done, so what comes with other content is the message now; what was wrong is a conflict when its broker
 * brings it again. */
static void f26_a_corrected_delivery_runs_where_nothing_was_done(void **state)
{
    fixture *f = *state;
    static const once_outcome outcomes[] = {ONCE_RETRY, ONCE_RELEASE};
    static const char *const keys[] = {"retried", "released"};
    open_timed(f);
    once_backend *inner = f->store->inner;
    for (int i = 0; i < 2; i++) {
        gateway g = {.fail_first = 1, .failure = outcomes[i]};
        const once_delivery wrong = delivery(f, keys[i], "{\"cents\": 100}"),
                            right = delivery(f, keys[i], "{\"cents\": 999}"),
                            third = delivery(f, keys[i], "{\"cents\": 1}");
        once_verdict v = handle(f, &wrong, &g);
        assert_int_equal(v.outcome, outcomes[i]);
        assert_false(v.ack);
        v = handle(f, &right, &g); /* it need not wait for the backoff of the other one */
        assert_int_equal(v.answer, ONCE_ANSWER_RUN);
        assert_int_equal(v.outcome, ONCE_DONE);
        assert_true(v.ack);
        assert_int_equal(g.attempt, 2);
        assert_int_equal(g.failures, 0);
        assert_false(g.maybe_done);
        once_verdict_release(&v);
        for (int again = 0; again < 2; again++) {
            v = handle(f, &wrong, &g);
            assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
            assert_true(v.ack);
        }
        v = handle(f, &third, &g);
        assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
        v = handle(f, &right, &g);
        assert_true(v.was_duplicate);
        once_verdict_release(&v);
        assert_int_equal(g.calls, 2);
        once_stats stats;
        good(f, inner->ops->stats(inner, f->scope.consumer, &stats, &f->err));
        assert_int_equal(stats.dead, 2 * (i + 1)); /* the wrong one and the third */
        assert_int_equal(stats.waiting, 0);
    }
}

static void f26_other_content_conflicts_where_something_may_have_been_done(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.retry_unknown = true;
    gateway g = {.fail_first = 1, .failure = ONCE_UNKNOWN};
    const once_delivery wrong = delivery(f, "p", "{\"cents\": 100}"), right = delivery(f, "p", "{\"cents\": 999}");
    once_verdict v = handle(f, &wrong, &g);
    assert_int_equal(v.outcome, ONCE_RETRY);
    v = handle(f, &right, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_CONFLICT);
    assert_true(v.ack);
    assert_int_equal(g.calls, 1);
}

static void f63_keys_of_any_bytes_and_an_empty_one(void **state)
{
    fixture *f = *state;
    open_real(f);
    gateway g = {0};
    once_delivery d = delivery(f, "", "x");
    once_verdict v;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_MESSAGE);
    const size_t size = 10 << 20;
    char *huge = malloc(size);
    memset(huge, 0xff, size);
    for (int i = 0; i < 2; i++) {
        d.key = (once_bytes){huge, size - (size_t)i};
        g.idempotency_key[0] = 0;
        v = handle(f, &d, &g);
        assert_int_equal(v.answer, ONCE_ANSWER_RUN);
        once_verdict_release(&v);
    }
    d.key = (once_bytes){"a\0b", 3};
    g.idempotency_key[0] = 0;
    v = handle(f, &d, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_RUN);
    once_verdict_release(&v);
    free(huge);
}

/* ---- failures ---- */

static void failure_then_retry_then_done(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.backoff_min_ms = f->terms.backoff_max_ms = 1000;
    gateway g = {.fail_first = 2, .failure = ONCE_RETRY};
    const once_delivery d = delivery(f, "p1", "x");
    for (uint32_t n = 1; n <= 2; n++) {
        once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.answer, ONCE_ANSWER_RUN);
        assert_int_equal(v.outcome, ONCE_RETRY);
        assert_int_equal(v.attempt, n);
        assert_int_equal(v.failures, n - 1);
        assert_false(v.ack);
        assert_in_range(v.wait_ms, 1, 1000);
        const int64_t wait_ms = v.wait_ms;
        v = handle(f, &d, &g); /* too early */
        if (wait_ms > 1) assert_int_equal(v.answer, ONCE_ANSWER_LATER);
        assert_false(v.ack);
        assert_in_range(v.wait_ms, 1, wait_ms);
        test_env_pass(&f->world, 2000);
    }
    once_verdict v = handle(f, &d, &g);
    assert_int_equal(v.outcome, ONCE_DONE);
    assert_int_equal(v.attempt, 3);
    assert_result(v, "receipt 1");
    once_verdict_release(&v);
    v = handle(f, &d, &g);
    assert_true(v.was_duplicate);
    once_verdict_release(&v);
    assert_int_equal(g.calls, 3);
}

/* The real environment knows who we are, and the entry keeps it. */
static void who_handled_it_and_how_each_attempt_ended(void **state)
{
    fixture *f = *state;
    char expected[ONCE_WHO_MAX + 1], pid[20];
    once_entry entry;
    once_attempt told[ONCE_HISTORY_ATTEMPTS];
    once_arena arena = {0};
    once_backend *inner;
    gateway g = {.fail_first = 1, .failure = ONCE_RETRY};
    const once_delivery d = delivery(f, "k", "{}");
    f->terms.backoff_min_ms = f->terms.backoff_max_ms = 1;
    open_real(f);
    for (int i = 0; i < 1000 && g.charges == 0; i++) { /* until the backoff is over */
        once_verdict v = handle(f, &d, &g);
        once_verdict_release(&v);
        once_env_sleep_ms(once_env_real(), 1);
    }
    once_env_who(once_env_real(), expected);
    snprintf(pid, sizeof pid, ":%ld", (long)getpid());
    assert_non_null(strchr(expected, '@'));
    assert_string_equal(strrchr(expected, ':'), pid);
    good(f, once__guard_enter(f->store, &inner, &f->err));
    good(f, inner->ops->get(inner, once_key_id(inner->secret, &f->scope, d.key), &entry, &arena, &f->err));
    once__guard_leave(f->store);
    assert_int_equal(entry.state, ONCE_STATE_DONE);
    assert_int_equal(entry.who.len, strlen(expected));
    assert_memory_equal(entry.who.data, expected, entry.who.len);
    assert_int_equal(once__history_of(&entry, told), 2);
    assert_string_equal(told[0].outcome, "retry");
    assert_string_equal(told[1].outcome, "done");
    assert_int_equal(told[0].reason.len, strlen("declined for now (0)"));
    assert_memory_equal(told[0].reason.data, "declined for now (0)", told[0].reason.len);
    assert_memory_equal(told[0].who.data, expected, told[0].who.len);
    once_arena_release(&arena);
}

static bool has_three_of_each(void *user, const once_letter *letter)
{
    ++*(int *)user;
    assert_int_equal(letter->failures, 3); /* the last one, too */
    assert_int_equal(letter->attempt, 3);
    assert_true(letter->message.body.len == 1 && letter->message.body.data[0] == 'x');
    return true;
}

/* Nobody brings them again: what is not finished does not stay for ever. */
static void what_was_released_is_forgotten_after_remember(void **state)
{
    enum { N = 500 };
    fixture *f = *state;
    open_timed(f);
    f->terms.remember_ms = 1000;
    once_store *guard = f->store;
    once_stats stats;
    for (int i = 0; i < N; i++) {
        char key[16];
        gateway g = {.fail_first = 1, .failure = i % 2 ? ONCE_RELEASE : ONCE_RETRY};
        snprintf(key, sizeof key, "k%d", i);
        const once_delivery d = delivery(f, key, "{}");
        once_verdict v = handle(f, &d, &g);
        once_verdict_release(&v);
    }
    good(f, guard->inner->ops->stats(guard->inner, f->scope.consumer, &stats, &f->err));
    assert_int_equal(stats.waiting, N);
    test_env_pass(&f->world, 2000);
    good(f, guard->inner->ops->stats(guard->inner, f->scope.consumer, &stats, &f->err));
    assert_int_equal(stats.waiting, 0);
    uint64_t dropped = 0;
    for (once_sweep_result step = {.more = true}; step.more; dropped += step.dropped)
        good(f, guard->inner->ops->sweep(guard->inner, 64, &step, &f->err));
    assert_int_equal(dropped, N);
}

static void f31_a_spent_budget_is_one_dead_letter(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.attempts = 3;
    gateway g = {.fail_first = 100, .failure = ONCE_RETRY};
    const once_delivery d = delivery(f, "p1", "x");
    for (int i = 1; i <= 6; i++) {
        const once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.answer, i <= 3 ? ONCE_ANSWER_RUN : ONCE_ANSWER_DEAD);
        assert_int_equal(v.outcome, i < 3 ? ONCE_RETRY : ONCE_DEAD);
        assert_int_equal(v.ack, i >= 3);
        test_env_pass(&f->world, 10);
    }
    assert_int_equal(g.calls, 3);
    once_backend *inner = f->store->inner;
    once_stats stats;
    good(f, inner->ops->stats(inner, f->scope.consumer, &stats, &f->err));
    assert_int_equal(stats.dead, 1);
    int letters = 0;
    good(f, inner->ops->letters(inner, f->scope.consumer, 0, has_three_of_each, &letters, &f->err));
    assert_int_equal(letters, 1);
}

static void f77_release_counts_no_failure(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.attempts = 2;
    gateway g = {.fail_first = 10, .failure = ONCE_RELEASE};
    const once_delivery d = delivery(f, "p1", "x");
    for (int i = 0; i < 11; i++) {
        once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.failures, 0);
        assert_int_equal(v.outcome, i < 10 ? ONCE_RELEASE : ONCE_DONE);
        once_verdict_release(&v);
        test_env_pass(&f->world, 1);
    }
}

static void final_outcomes_suppress(void **state)
{
    fixture *f = *state;
    open_timed(f);
    static const once_outcome outcomes[] = {ONCE_ALREADY, ONCE_REJECTED, ONCE_STALE, ONCE_DEAD};
    for (size_t i = 0; i < 4; i++) {
        gateway g = {.fail_first = 1, .failure = outcomes[i]};
        const once_delivery d = delivery(f, once_outcome_name(outcomes[i]), "x");
        once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.outcome, outcomes[i]);
        assert_true(v.ack);
        v = handle(f, &d, &g);
        assert_int_equal(v.answer, outcomes[i] == ONCE_DEAD ? ONCE_ANSWER_DEAD : ONCE_ANSWER_DUPLICATE);
        assert_int_equal(v.outcome, outcomes[i]);
        assert_int_equal(g.calls, 1);
    }
}

static once_outcome too_long(void *user, const once_call *call, once_reply *reply)
{
    (void)user;
    (void)call;
    char result[101] = {0};
    assert_int_equal(once_reply_result(reply, (once_bytes){result, 101}), ONCE_E_MESSAGE);
    assert_int_equal(once_reply_result(reply, (once_bytes){result, 100}), ONCE_OK);
    assert_int_equal(once_reply_result(reply, ONCE_BYTES("short")), ONCE_OK);
    assert_int_equal(once_reply_result(reply, (once_bytes){result, 101}), ONCE_E_MESSAGE);
    return ONCE_DONE;
}

static void a_result_has_a_limit(void **state)
{
    fixture *f = *state;
    open_real(f);
    f->terms.result_max = 100;
    const once_delivery d = delivery(f, "p1", "x");
    for (int i = 0; i < 2; i++) {
        once_verdict v;
        good(f, once_handle(f->store, &f->scope, &d, too_long, NULL, &v, &f->err));
        assert_result(v, "short");
        once_verdict_release(&v);
    }
}

static void f71_older_than_what_is_remembered(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.remember_ms = 1000;
    gateway g = {0};
    once_delivery d = delivery(f, "p1", "x");
    d.sent_ms = TEST_EPOCH_MS;
    once_verdict v = handle(f, &d, &g);
    once_verdict_release(&v);
    test_env_pass(&f->world, 5000);
    v = handle(f, &d, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_TOO_OLD);
    assert_true(v.ack);
    assert_int_equal(g.calls, 1);
}

static void f71_times_that_are_none_are_refused(void **state)
{
    fixture *f = *state;
    open_timed(f);
    gateway g = {0};
    static const int64_t bad[] = {INT64_MIN + 1, INT64_MAX, INT64_C(-62135596800001), INT64_C(253402300800000)};
    static const int64_t fine[] = {ONCE_NO_TIME, 0, INT64_C(253402300799999)};
    once_verdict v;
    for (size_t i = 0; i < 4; i++) {
        once_delivery d = delivery(f, "bad", "x");
        char number[24];
        d.sent_ms = bad[i];
        assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_MESSAGE);
        snprintf(number, sizeof number, "%lld", (long long)bad[i]);
        assert_non_null(strstr(f->err.text, number));
    }
    assert_int_equal(g.calls, 0);
    for (size_t i = 0; i < 3; i++) {
        char key[10];
        snprintf(key, sizeof key, "p%zu", i);
        once_delivery d = delivery(f, key, "x");
        gateway one = {0};
        d.sent_ms = fine[i];
        v = handle(f, &d, &one);
        assert_int_equal(v.answer, ONCE_ANSWER_RUN);
        once_verdict_release(&v);
    }
}

/* ---- unknowns ---- */

static bool keep_letter_id(void *user, const once_letter *letter)
{
    *(uint64_t *)user = letter->id;
    return true;
}

static bool has_its_body(void *user, const once_entry *entry)
{
    ++*(int *)user;
    assert_true(entry->has_message && entry->message.body.len == 1 && entry->message.body.data[0] == 'x');
    return true;
}

static void an_unknown_is_held_unless_it_may_be_repeated(void **state)
{
    fixture *f = *state;
    open_timed(f);
    gateway g = {.fail_first = 1, .failure = ONCE_UNKNOWN};
    once_delivery d = delivery(f, "held", "x");
    for (int i = 0; i < 3; i++) {
        const once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.answer, i ? ONCE_ANSWER_UNKNOWN : ONCE_ANSWER_RUN);
        assert_int_equal(v.outcome, ONCE_UNKNOWN);
        assert_false(v.ack);
        assert_int_equal(v.wait_ms, -1);
        test_env_pass(&f->world, 100000);
        int unknown = 0; /* a person may have it tried again from the first moment on */
        once_backend *inner = f->store->inner;
        good(f, inner->ops->list(inner, f->scope.consumer, ONCE_STATE_UNKNOWN, has_its_body, &unknown, &f->err));
        assert_int_equal(unknown, 1);
    }
    assert_int_equal(g.calls, 1);

    gateway again = {.fail_first = 1, .failure = ONCE_UNKNOWN};
    f->terms.retry_unknown = true;
    d = delivery(f, "repeated", "x");
    once_verdict v = handle(f, &d, &again);
    assert_int_equal(v.outcome, ONCE_RETRY);
    test_env_pass(&f->world, 10);
    v = handle(f, &d, &again);
    assert_int_equal(v.outcome, ONCE_DONE);
    assert_int_equal(again.failures, 1);
    assert_true(again.maybe_done);
    once_verdict_release(&v);
}

static void f81_a_value_that_is_no_outcome_is_unknown(void **state)
{
    fixture *f = *state;
    open_timed(f);
    static const once_outcome odd[] = {ONCE_OUTCOMES, (once_outcome)77, (once_outcome)-1};
    for (int i = 0; i < 3; i++) {
        char key[10];
        snprintf(key, sizeof key, "p%d", i);
        const once_delivery d = delivery(f, key, "x");
        gateway g = {.fail_first = 1, .failure = odd[i]};
        const once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.outcome, ONCE_UNKNOWN);
        assert_false(v.ack);
        assert_int_equal(handle(f, &d, &g).answer, ONCE_ANSWER_UNKNOWN);
        assert_int_equal(g.calls, 1);
    }
}

static void f81_a_release_is_not_asked_again_at_once(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.attempts = 1;
    f->terms.backoff_min_ms = f->terms.backoff_max_ms = 0;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 100, .failure = ONCE_RELEASE};
    int64_t longest = 0;
    for (int i = 0; i < 100; i++) {
        const once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.outcome, ONCE_RELEASE);
        assert_int_equal(g.failures, 0);
        assert_true(v.wait_ms > 0);
        if (v.wait_ms > longest) longest = v.wait_ms;
        test_env_pass(&f->world, v.wait_ms);
    }
    assert_in_range(longest, 10000, 60000); /* the pauses have grown up to the longest backoff */
    once_verdict v = handle(f, &d, &g);
    assert_int_equal(v.outcome, ONCE_DONE);
    once_verdict_release(&v);
}

/* As many failures as there is time for, and none more. */
static void f95_a_budget_by_time(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.attempts = 0;
    f->terms.retry_for_ms = 60000;
    f->terms.backoff_min_ms = f->terms.backoff_max_ms = 100;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 1000, .failure = ONCE_RETRY};
    int64_t passed_ms = 0;
    once_verdict v;
    for (;;) {
        v = handle(f, &d, &g);
        if (v.outcome != ONCE_RETRY) break;
        test_env_pass(&f->world, 1000);
        passed_ms += 1000;
        assert_true(passed_ms <= 60000);
    }
    assert_int_equal(v.outcome, ONCE_DEAD);
    assert_int_equal(passed_ms, 60000);
    assert_int_equal(g.calls, 61);
    f->terms.retry_for_ms = -1;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
}

static void f95_twelve_attempts_without_a_word_about_it(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.attempts = 0;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 1000, .failure = ONCE_RETRY};
    for (int i = 1; i <= 12; i++) {
        assert_int_equal(handle(f, &d, &g).outcome, i < 12 ? ONCE_RETRY : ONCE_DEAD);
        test_env_pass(&f->world, 60000);
    }
}

static uint64_t the_letter(fixture *f)
{
    uint64_t id = 0;
    once_backend *inner = f->store->inner;
    good(f, inner->ops->letters(inner, f->scope.consumer, 0, keep_letter_id, &id, &f->err));
    assert_int_not_equal(id, 0);
    return id;
}

static void replay(fixture *f)
{
    bool found;
    once_backend *inner = f->store->inner;
    good(f, inner->ops->replay_letter(inner, the_letter(f), &found, &f->err));
    assert_true(found);
}

/* Nothing that later attempts say of themselves takes back what an earlier one may have done. */
static void f05_what_may_have_happened_is_told_to_every_later_attempt(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.retry_unknown = true;
    f->terms.attempts = 3;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 3};
    static const once_outcome answers[] = {ONCE_RETRY, ONCE_UNKNOWN, ONCE_RETRY};
    for (int i = 0; i < 3; i++) {
        g.failure = answers[i];
        const once_verdict v = handle(f, &d, &g);
        assert_int_equal(v.outcome, i < 2 ? ONCE_RETRY : ONCE_DEAD);
        assert_int_equal(g.maybe_done, i == 2);
        test_env_pass(&f->world, 100000);
    }
    replay(f);
    once_verdict v = handle(f, &d, &g);
    assert_int_equal(v.outcome, ONCE_DONE);
    assert_true(g.maybe_done);
    assert_int_equal(g.attempt, 4);
    once_verdict_release(&v);
}

static int64_t repeats(fixture *f)
{
    once_arena arena = {0};
    once_backend *inner;
    int64_t n;
    good(f, once__guard_enter(f->store, &inner, &f->err));
    good(f, once_repeats_read(inner, f->scope.consumer, &arena, &n, &f->err));
    once__guard_leave(f->store);
    once_arena_release(&arena);
    return n;
}

static void f04_f05_an_attempt_after_one_that_may_have_happened_is_counted(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.retry_unknown = true;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 4};
    static const once_outcome answers[] = {ONCE_RETRY, ONCE_UNKNOWN, ONCE_RELEASE, ONCE_UNKNOWN, ONCE_DONE};
    static const int64_t counted[] = {0, 0, 0, 1, 2}; /* what was released had not begun */
    for (int i = 0; i < 5; i++) {
        g.failure = answers[i];
        once_verdict v = handle(f, &d, &g);
        assert_int_equal(g.maybe_done, i > 1);
        assert_int_equal(repeats(f), counted[i]);
        once_verdict_release(&v);
        test_env_pass(&f->world, 100000);
    }
    assert_int_equal(g.calls, 5);
}

static void f05_a_death_by_unknowns_is_told_to_the_replay(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.retry_unknown = true;
    f->terms.attempts = 1;
    const once_delivery d = delivery(f, "p1", "x");
    gateway g = {.fail_first = 1, .failure = ONCE_UNKNOWN};
    assert_int_equal(handle(f, &d, &g).outcome, ONCE_DEAD);
    replay(f);
    once_verdict v = handle(f, &d, &g);
    assert_true(g.maybe_done);
    once_verdict_release(&v);
}

static void die_in_handler(fixture *f, const once_delivery *d)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        once_ticket ticket = {0};
        if (once_store_open(f->url, NULL, &f->store, &f->err) != ONCE_OK) _exit(1);
        if (once_claim(f->store, &f->scope, d, 1, &ticket, &f->err) != ONCE_OK || ticket.answer != ONCE_ANSWER_RUN)
            _exit(2);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void f02_f04_f05_killed_in_the_handler_is_held(void **state)
{
    fixture *f = *state;
    gateway g = {0};
    f->terms.lease_ms = 100;
    const once_delivery d = delivery(f, "p1", "x");
    die_in_handler(f, &d);
    open_real(f);
    once_verdict v = handle(f, &d, &g);
    if (v.answer == ONCE_ANSWER_BUSY) {
        assert_in_range(v.wait_ms, 1, 100);
        usleep(200000);
        v = handle(f, &d, &g);
    }
    assert_int_equal(v.answer, ONCE_ANSWER_UNKNOWN);
    assert_int_equal(g.calls, 0);

    once_backend *inner = f->store->inner; /* the person who decides has the body */
    once_arena arena = {0};
    once_entry entry;
    good(f, inner->ops->get(inner, once_key_id(inner->secret, &f->scope, d.key), &entry, &arena, &f->err));
    assert_int_equal(entry.state, ONCE_STATE_UNKNOWN);
    assert_true(entry.has_message);
    assert_int_equal(entry.message.body.len, 1);
    once_arena_release(&arena);
}

static void f02_f04_f05_killed_in_the_handler_is_repeated_when_told(void **state)
{
    fixture *f = *state;
    gateway g = {0};
    f->terms.lease_ms = 1;
    f->terms.retry_unknown = true;
    f->terms.attempts = 3;
    const once_delivery d = delivery(f, "p1", "x");
    die_in_handler(f, &d);
    usleep(50000);
    open_real(f);
    f->terms.lease_ms = 30000;
    once_verdict v = handle(f, &d, &g);
    assert_int_equal(v.outcome, ONCE_DONE);
    assert_true(g.maybe_done);
    assert_int_equal(g.attempt, 2);
    assert_int_equal(g.failures, 1);
    once_verdict_release(&v);
    once_store_close(f->store);
    f->store = NULL;

    f->terms.lease_ms = 1;
    const once_delivery poison = delivery(f, "poison", "x");
    for (int i = 0; i < 3; i++) {
        die_in_handler(f, &poison);
        usleep(50000);
    }
    open_real(f);
    g.idempotency_key[0] = 0;
    v = handle(f, &poison, &g);
    assert_int_equal(v.answer, ONCE_ANSWER_DEAD); /* three attempts ended without reporting an outcome */
    assert_true(v.ack);
    assert_int_equal(g.calls, 1);

    once_arena arena = {0};
    once_entry entry;
    once_backend *inner = f->store->inner;
    good(f, inner->ops->get(inner, once_key_id(inner->secret, &f->scope, poison.key), &entry, &arena, &f->err));
    assert_true(entry.state == ONCE_STATE_DEAD && entry.unreported &&
                entry.maybe_done); /* so that a replay counts as a repeat */
    once_arena_release(&arena);
    replay(f);
    f->terms.lease_ms = 30000;
    v = handle(f, &poison, &g);
    assert_int_equal(v.outcome, ONCE_DONE);
    assert_true(g.maybe_done);
    once_verdict_release(&v);
}

/* ---- leases ---- */

typedef struct slow {
    fixture *f;
    gateway *other;
    bool extends, taken_over;
} slow;

static once_outcome outlive_the_lease(void *user, const once_call *call, once_reply *reply)
{
    slow *s = user;
    (void)reply;
    test_env_pass(&s->f->world, 20000);
    if (s->extends) assert_int_equal(once_call_extend(call, 0, NULL), ONCE_OK);
    test_env_pass(&s->f->world, 20000);
    once_verdict v = handle(s->f, call->delivery, s->other); /* somebody else, meanwhile */
    s->taken_over = v.answer == ONCE_ANSWER_RUN;
    if (s->taken_over) assert_int_equal(once_call_extend(call, 0, NULL), ONCE_E_FENCED);
    once_verdict_release(&v);
    return ONCE_DONE;
}

static void f14_a_handler_that_outlives_its_lease_is_fenced(void **state)
{
    fixture *f = *state;
    open_timed(f);
    gateway other = {0};
    once_verdict v;
    slow s = {.f = f, .other = &other, .extends = true};
    f->terms.retry_unknown = true;
    once_delivery d = delivery(f, "extended", "x");
    good(f, once_handle(f->store, &f->scope, &d, outlive_the_lease, &s, &v, &f->err));
    assert_false(s.taken_over);
    assert_int_equal(other.calls, 0);

    s.extends = false;
    d = delivery(f, "not extended", "x");
    v.answer = ONCE_ANSWERS;
    assert_int_equal(once_handle(f->store, &f->scope, &d, outlive_the_lease, &s, &v, &f->err), ONCE_E_FENCED);
    assert_true(s.taken_over);
    assert_int_equal(v.answer, ONCE_ANSWERS); /* untouched */
    assert_int_equal(other.charges, 1);
    v = handle(f, &d, &other);
    assert_result(v, "receipt 1"); /* of the one that took over */
    once_verdict_release(&v);
}

static void f14_f76_bare_verbs(void **state)
{
    fixture *f = *state;
    open_timed(f);
    f->terms.retry_unknown = true;
    once_delivery three[3];
    once_ticket tickets[3] = {0}, others[3] = {0};
    bool flags[3];
    static const char *const keys[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) three[i] = delivery(f, keys[i], "x");
    good(f, once_claim(f->store, &f->scope, three, 3, tickets, &f->err));
    good(f, once_claim(f->store, &f->scope, three, 3, tickets, &f->err)); /* as if the reply had been lost */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tickets[i].answer, ONCE_ANSWER_RUN);
        assert_int_equal(tickets[i].attempt, 1);
        assert_int_equal(strlen(tickets[i].idempotency_key), 32);
    }
    good(f, once_claim(f->store, &f->scope, three, 3, others, &f->err));
    assert_int_equal(others[0].answer, ONCE_ANSWER_BUSY);
    assert_int_equal(others[0].wait_ms, 30000);
    assert_int_equal(once_settle(f->store, others, &(once_ending){.outcome = ONCE_DONE}, 1, flags, &f->err),
                     ONCE_E_USAGE);
    good(f, once_extend(f->store, others, 3, 1000, flags, &f->err));
    assert_false(flags[0]);

    test_env_pass(&f->world, 20000);
    good(f, once_extend(f->store, tickets, 2, 30000, flags, &f->err)); /* not the third */
    assert_true(flags[0] && flags[1]);
    test_env_pass(&f->world, 20000);
    once_ticket_release(others, 3);
    good(f, once_claim(f->store, &f->scope, three, 3, others, &f->err));
    assert_int_equal(others[1].answer, ONCE_ANSWER_BUSY);
    assert_int_equal(others[2].answer, ONCE_ANSWER_RUN);
    assert_true(others[2].maybe_done);
    assert_int_equal(others[2].attempt, 2);

    const once_ending endings[3] = {{.outcome = ONCE_DONE, .result = ONCE_BYTES("A")},
                                    {.outcome = ONCE_DEAD, .reason = ONCE_BYTES("no"), .message = &three[1]},
                                    {.outcome = ONCE_DONE, .result = ONCE_BYTES("zombie")}};
    for (int i = 0; i < 2; i++) { /* repeated, as after a lost reply */
        good(f, once_settle(f->store, tickets, endings, 3, flags, &f->err));
        assert_true(flags[0] && flags[1]);
        assert_false(flags[2]);
    }
    good(f, once_settle(f->store, &others[2], &(once_ending){.outcome = ONCE_DONE, .result = ONCE_BYTES("C")}, 1, flags,
                        &f->err));
    assert_true(flags[0]);
    once_ticket_release(others, 3);
    good(f, once_claim(f->store, &f->scope, three, 3, others, &f->err));
    assert_int_equal(others[0].answer, ONCE_ANSWER_DUPLICATE);
    assert_result(others[0], "A");
    assert_int_equal(others[1].answer, ONCE_ANSWER_DEAD);
    assert_result(others[2], "C");
    once_ticket_release(others, 3);
    once_ticket_release(tickets, 3);
}

/* ---- five consumers at once ---- */

typedef struct consumer {
    fixture *f;
    gateway *gateways; /* one for each key */
    int done, duplicates;
} consumer;

enum { KEYS = 40 };

/* Delivers every message until it may be acked, as a broker would. */
static void *consume(void *user)
{
    consumer *c = user;
    for (int i = 0; i < KEYS; i++) {
        char key[20];
        snprintf(key, sizeof key, "p%d", i);
        const once_delivery d = delivery(c->f, key, "x");
        for (bool acked = false; !acked;) {
            once_verdict v;
            once_error err;
            if (once_handle(c->f->store, &c->f->scope, &d, charge, &c->gateways[i], &v, &err) != ONCE_OK) abort();
            acked = v.ack;
            if (v.answer == ONCE_ANSWER_RUN) c->done++;
            if (v.was_duplicate) c->duplicates++;
            if (v.ack && (v.result.len != 9 || memcmp(v.result.data, "receipt 1", 9) != 0)) abort();
            if (!acked) usleep(500);
            once_verdict_release(&v);
        }
    }
    return NULL;
}

static void five_threads(fixture *f)
{
    pthread_t threads[CONSUMERS];
    consumer consumers[CONSUMERS];
    gateway *gateways = calloc(KEYS, sizeof *gateways);
    int done = 0, duplicates = 0;
    for (int i = 0; i < CONSUMERS; i++) {
        consumers[i] = (consumer){f, gateways, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, consume, &consumers[i]), 0);
    }
    for (int i = 0; i < CONSUMERS; i++) {
        pthread_join(threads[i], NULL);
        done += consumers[i].done;
        duplicates += consumers[i].duplicates;
    }
    for (int i = 0; i < KEYS; i++) assert_int_equal(gateways[i].charges, 1);
    assert_int_equal(done, KEYS);
    assert_int_equal(duplicates, (CONSUMERS - 1) * KEYS);
    free(gateways);
}

static void f25_five_threads_on_one_store_have_one_effect_each(void **state)
{
    fixture *f = *state;
    open_real(f);
    five_threads(f);
}

static void f25_five_threads_on_a_memory_store(void **state)
{
    fixture *f = *state;
    good(f, once_store_open("memory:", NULL, &f->store, &f->err));
    five_threads(f);
}

static once_outcome write_line(void *user, const once_call *call, once_reply *reply)
{
    char line[40];
    const int len = snprintf(line, sizeof line, "%.*s\n", (int)call->delivery->key.len, call->delivery->key.data);
    if (write(*(int *)user, line, (size_t)len) != len) return ONCE_DEAD;
    once_reply_result(reply, ONCE_BYTES("written"));
    return ONCE_DONE;
}

static void consume_as_process(fixture *f)
{
    char path[120];
    snprintf(path, sizeof path, "%s/effects", f->dir);
    FILE *effects = fopen(path, "a");
    if (!effects || once_store_open(f->url, NULL, &f->store, &f->err) != ONCE_OK) _exit(1);
    int fd = fileno(effects);
    for (int i = 0; i < KEYS; i++) {
        char key[20];
        snprintf(key, sizeof key, "p%d", i);
        const once_delivery d = delivery(f, key, "x");
        for (bool acked = false; !acked;) {
            once_verdict v;
            if (once_handle(f->store, &f->scope, &d, write_line, &fd, &v, &f->err) != ONCE_OK) _exit(2);
            acked = v.ack;
            if (acked && v.result.len != 7) _exit(3);
            if (!acked) usleep(500);
            once_verdict_release(&v);
        }
    }
    once_store_close(f->store);
    _exit(0);
}

static void f25_f57_five_processes_have_one_effect_each(void **state)
{
    fixture *f = *state;
    pid_t children[CONSUMERS];
    fflush(NULL);
    for (int i = 0; i < CONSUMERS; i++) {
        children[i] = fork();
        if (children[i] == 0) consume_as_process(f);
    }
    for (int i = 0; i < CONSUMERS; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    char path[120], line[40];
    int seen[KEYS] = {0}, lines = 0, key;
    snprintf(path, sizeof path, "%s/effects", f->dir);
    FILE *effects = fopen(path, "r");
    assert_non_null(effects);
    for (; fgets(line, sizeof line, effects); lines++)
        if (sscanf(line, "p%d", &key) == 1 && key >= 0 && key < KEYS) seen[key]++;
    fclose(effects);
    assert_int_equal(lines, KEYS);
    for (int i = 0; i < KEYS; i++) assert_int_equal(seen[i], 1);
}

static void no_store_survives_fork(void **state)
{
    fixture *f = *state;
    open_real(f);
    const once_delivery d = delivery(f, "p1", "x");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        once_ticket ticket = {0};
        const int rc = once_claim(f->store, &f->scope, &d, 1, &ticket, &f->err);
        once_store_close(f->store);
        _exit(rc == ONCE_E_USAGE ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    deliver_times(f, "p1", 2);
}

/* A process of its own says which token it would claim with; `deeper`: its child says it. */
static void say_a_token(int to, int deeper)
{
    const pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child) return;
    if (deeper) {
        say_a_token(to, deeper - 1);
        int status;
        _exit(wait(&status) > 0 && status == 0 ? 0 : 1);
    }
    const once_token mine = once__token_new(once_env_real());
    _exit(write(to, &mine, sizeof mine) == sizeof mine ? 0 : 1);
}

static void f25_no_two_processes_of_a_family_claim_with_one_token(void **state)
{
    (void)state;
    enum { CHILDREN = 4 };
    int pipes[2];
    once_token tokens[CHILDREN + 1];
    once__token_new(once_env_real()); /* whatever is fetched in bulk has been fetched */
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    for (int i = 0; i < CHILDREN; i++) say_a_token(pipes[1], i == CHILDREN - 1);
    tokens[CHILDREN] = once__token_new(once_env_real());
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[0], &tokens[i], sizeof tokens[i]), sizeof tokens[i]);
    }
    for (int i = 0; i <= CHILDREN; i++)
        for (int k = 0; k < i; k++) assert_false(once_hash_equal(tokens[i], tokens[k]));
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- chaos: a store that fails, an effect that fails ---- */

typedef struct bad_store {
    once_backend store;
    once_store_ops ops;
    once_backend *inner;
    uint64_t random;
    int failures;
} bad_store;

/* Three in ten calls fail: half of them before anything happened, half after it, so that only the reply is lost. */
static int roll(bad_store *b, bool *after)
{
    const uint64_t n = test_random(&b->random) % 100;
    *after = n % 2;
    b->failures += n < 30;
    return n < 30;
}

#define FAILING(call)                                                                                                  \
    bad_store *b = (bad_store *)store;                                                                                 \
    bool after;                                                                                                        \
    const int bad = roll(b, &after);                                                                                   \
    if (bad && !after) return once_fail(err, ONCE_E_UNAVAILABLE, "not sent");                                          \
    const int rc = call;                                                                                               \
    return bad && rc == ONCE_OK ? once_fail(err, ONCE_E_UNAVAILABLE, "reply lost") : rc

static int bad_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                     once_arena *arena, once_error *err)
{
    FAILING(b->inner->ops->claim(b->inner, requests, n, out, arena, err));
}

static int bad_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied, once_error *err)
{
    FAILING(b->inner->ops->settle(b->inner, settlements, n, applied, err));
}

static void bad_close(once_backend *store)
{
    bad_store *b = (bad_store *)store;
    once__store_close(b->inner);
    free(b);
}

typedef struct flaky {
    uint64_t random;
    int calls, successes;
} flaky;

static once_outcome fail_sometimes(void *user, const once_call *call, once_reply *reply)
{
    flaky *e = user;
    (void)call;
    e->calls++;
    if (test_random(&e->random) % 100 < 20) return ONCE_RETRY;
    e->successes++;
    once_reply_result(reply, ONCE_BYTES("the one result"));
    return ONCE_DONE;
}

static void chaos(fixture *f, uint64_t seed, int *failures, int *retries)
{
    bad_store *b = calloc(1, sizeof *b);
    const once_store_options options = {.size = sizeof options, .create = true, .env = &f->world.env};
    once_store *store;
    good(f, once__store_open("memory:", &options, &b->inner, &f->err));
    b->store = *b->inner;
    b->ops = (once_store_ops){.claim = bad_claim, .settle = bad_settle, .close = bad_close};
    b->store.ops = &b->ops;
    b->random = seed;
    good(f, once__store_guard(&b->store, &store, &f->err));

    flaky effect = {.random = seed * 31};
    f->terms.attempts = 1000;
    const once_delivery d = delivery(f, "the message", "x");
    int ran = 0, duplicates = 0;
    for (int i = 0; i < 100; i++) {
        once_verdict v;
        test_env_pass(&f->world, 5);
        if (once_handle(store, &f->scope, &d, fail_sometimes, &effect, &v, &f->err) != ONCE_OK) continue;
        if (v.answer == ONCE_ANSWER_RUN && v.outcome == ONCE_DONE) ran++;
        if (v.was_duplicate) duplicates++;
        if (v.ack) assert_result(v, "the one result");
        once_verdict_release(&v);
    }
    assert_int_equal(effect.successes, 1);
    assert_in_range(ran, 0, 1);
    assert_in_range(duplicates, 50, 99);
    *failures += b->failures;
    *retries += effect.calls - 1;
    once_store_close(store);
}

static void f76_chaos_of_a_failing_store_and_a_failing_effect_is_one_success(void **state)
{
    int failures = 0, retries = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) chaos(*state, seed, &failures, &retries);
    assert_in_range(failures, 500, 2500); /* the test itself did what it says */
    assert_in_range(retries, 2, 30);
}

/* ---- wrong use ---- */

/* The same in every store, and with a salt another one. */
static void f82_the_idempotency_key_is_not_the_stores(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 4; i++) {
        f->terms.idempotency_salt = i < 2 ? (once_bytes){0} : ONCE_BYTES("0123456789abcdef");
        snprintf(f->url, sizeof f->url, i % 2 ? "memory:" : "sqlite:%s/%d.db", f->dir, i);
        const char *wanted = i < 2 ? "70a7980f54efad9718e6246b1aaa93d8" : "33852752637b3b14f69a40b91c17d78c";
        gateway g = {0};
        once_ticket ticket = {0};
        good(f, once_store_open(f->url, NULL, &f->store, &f->err));
        const once_delivery d = delivery(f, "p-1", "x"), other = delivery(f, "p-2", "x");
        once_verdict v = handle(f, &d, &g);
        once_verdict_release(&v);
        assert_string_equal(g.idempotency_key, wanted);
        good(f, once_claim(f->store, &f->scope, &d, 1, &ticket, &f->err)); /* a duplicate by now */
        assert_string_equal(ticket.idempotency_key, wanted);
        once_ticket_release(&ticket, 1);
        good(f, once_claim(f->store, &f->scope, &other, 1, &ticket, &f->err));
        assert_string_equal(ticket.idempotency_key,
                            i < 2 ? "8cb076449ceddb6b636e8e881f38a994" : "0b00722e44f40acb620fa57bbaaa180c");
        once_ticket_release(&ticket, 1);
        f->terms.idempotency_salt = ONCE_BYTES("fifteen bytes..");
        assert_int_equal(once_handle(f->store, &f->scope, &other, charge, &g, &v, &f->err), ONCE_E_USAGE);
        f->terms.idempotency_salt = (once_bytes){0};
        f->terms.size = offsetof(once_terms, idempotency_salt); /* a program that was built before there was one */
        good(f, once_claim(f->store, &f->scope, &d, 1, &ticket, &f->err));
        assert_string_equal(ticket.idempotency_key, "70a7980f54efad9718e6246b1aaa93d8");
        once_ticket_release(&ticket, 1);
        f->terms.size = sizeof f->terms;
        once_store_close(f->store);
        f->store = NULL;
    }
}

static void f21_wrong_use_is_refused(void **state)
{
    fixture *f = *state;
    once_verdict v;
    gateway g = {0};
    once_open_options options = {0};
    assert_int_equal(once_store_open(f->url, &options, &f->store, &f->err), ONCE_E_USAGE);
    options = (once_open_options){.size = sizeof options, .must_exist = true};
    assert_int_equal(once_store_open(f->url, &options, &f->store, &f->err), ONCE_E_NO_STORE);
    assert_int_equal(once_store_open("dynamodb://region/table", NULL, &f->store, &f->err), ONCE_E_UNSUPPORTED);
    assert_null(f->store);
    once_store_close(NULL);
    open_real(f);
    once_delivery d = delivery(f, "p1", "x");
    d.size = 0;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
    d.size = sizeof d + 8;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
    d.size = sizeof d;
    f->terms.lease_ms = -1;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
    f->terms.lease_ms = 0;
    f->terms.result_max = SIZE_MAX;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
    f->terms.result_max = 0;
    once_bytes *const places[] = {&d.key,   &d.body,          &d.content,         &d.type, &d.headers, &d.place,
                                  &d.point, &f->scope.tenant, &f->scope.operation};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const once_bytes was = *places[i];
        *places[i] = (once_bytes){NULL, 5};
        assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
        *places[i] = was;
    }
    assert_int_equal(once_handle(f->store, NULL, &d, charge, &g, &v, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_handle(f->store, &f->scope, NULL, charge, &g, &v, &f->err), ONCE_E_USAGE);
    f->scope.consumer.len = 0;
    assert_int_equal(once_handle(f->store, &f->scope, &d, charge, &g, &v, NULL), ONCE_E_USAGE);
    assert_int_equal(g.calls, 0);
}

/* Nothing to do is fine, whatever the addresses are; something to do at no address is not. */
static void f21_no_items_at_no_address(void **state)
{
    fixture *f = *state;
    bool flag = false;
    open_real(f);
    once_delivery d = delivery(f, "p1", "x");
    once_ticket ticket = {0};
    assert_int_equal(once_extend(f->store, NULL, 0, 1000, NULL, &f->err), ONCE_OK);
    assert_int_equal(once_settle(f->store, NULL, NULL, 0, NULL, &f->err), ONCE_OK);
    assert_int_equal(once_claim(f->store, &f->scope, NULL, 0, NULL, &f->err), ONCE_OK);
    assert_int_equal(once_extend(f->store, NULL, 1, 1000, &flag, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_settle(f->store, NULL, NULL, 1, &flag, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_claim(f->store, &f->scope, &d, 1, NULL, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_claim(f->store, NULL, &d, 1, &ticket, &f->err), ONCE_E_USAGE);
    assert_int_equal(once_claim(f->store, &f->scope, &d, 1, &ticket, &f->err), ONCE_OK);
    assert_int_equal(
        once_settle(f->store, &ticket, &(once_ending){.outcome = ONCE_DONE, .result = {NULL, 3}}, 1, &flag, &f->err),
        ONCE_E_USAGE);
    assert_int_equal(once_settle(f->store, &ticket, &(once_ending){.outcome = ONCE_DONE}, 1, &flag, &f->err), ONCE_OK);
    assert_true(flag);
    once_ticket_release(&ticket, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(f07_once_twice_and_ten_times_is_one_effect_with_the_same_result),
        TEST(f27_different_messages_and_scopes_are_not_confused),
        TEST(f26_same_key_with_other_content_is_a_conflict_with_a_letter),
        TEST(f26_a_corrected_delivery_runs_where_nothing_was_done),
        TEST(f26_other_content_conflicts_where_something_may_have_been_done),
        TEST(f63_keys_of_any_bytes_and_an_empty_one),
        TEST(failure_then_retry_then_done),
        TEST(who_handled_it_and_how_each_attempt_ended),
        TEST(what_was_released_is_forgotten_after_remember),
        TEST(f31_a_spent_budget_is_one_dead_letter),
        TEST(f77_release_counts_no_failure),
        TEST(final_outcomes_suppress),
        TEST(a_result_has_a_limit),
        TEST(f71_older_than_what_is_remembered),
        TEST(f71_times_that_are_none_are_refused),
        TEST(an_unknown_is_held_unless_it_may_be_repeated),
        TEST(f05_what_may_have_happened_is_told_to_every_later_attempt),
        TEST(f04_f05_an_attempt_after_one_that_may_have_happened_is_counted),
        TEST(f05_a_death_by_unknowns_is_told_to_the_replay),
        TEST(f81_a_value_that_is_no_outcome_is_unknown),
        TEST(f95_a_budget_by_time),
        TEST(f95_twelve_attempts_without_a_word_about_it),
        TEST(f81_a_release_is_not_asked_again_at_once),
        TEST(f02_f04_f05_killed_in_the_handler_is_held),
        TEST(f02_f04_f05_killed_in_the_handler_is_repeated_when_told),
        TEST(f14_a_handler_that_outlives_its_lease_is_fenced),
        TEST(f14_f76_bare_verbs),
        TEST(f25_five_threads_on_one_store_have_one_effect_each),
        TEST(f25_five_threads_on_a_memory_store),
        TEST(f25_f57_five_processes_have_one_effect_each),
        TEST(no_store_survives_fork),
        TEST(f25_no_two_processes_of_a_family_claim_with_one_token),
        TEST(f76_chaos_of_a_failing_store_and_a_failing_effect_is_one_success),
        TEST(f82_the_idempotency_key_is_not_the_stores),
        TEST(f21_wrong_use_is_refused),
        TEST(f21_no_items_at_no_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
