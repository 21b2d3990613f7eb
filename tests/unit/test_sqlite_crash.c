/* A workload of verbs over a file system that loses power, tears writes and fails calls: whatever happens, what was
 * acknowledged is there, what was in flight is there as a whole or not at all, and nothing leaks. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "store/sqlite/sqlite.h"
#include "testenv.h"
#include "vfs.h"

enum { IDS = 700, BATCH = 16, ROUNDS = 14, REMEMBER_MS = 3600000 };

/* So small that a few batches flush, and a few flushes merge. */
static const once_settled_limits tiny = {
    .recent_records = 24, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 1 << 16};

static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

/* What should be in the store: before the call that is in flight, and after it. */
typedef struct model {
    once_state before[IDS], after[IDS];
    size_t used;
} model;

typedef struct run {
    test_env world;
    once_backend *store;
    model m;
    uint64_t tokens;
    bool again; /* a failed call is repeated on the same handle after the fault was taken away */
} run;

static once_hash id_of(size_t i)
{
    uint64_t state = i + 1;
    const uint64_t a = test_random(&state);
    return (once_hash){a, test_random(&state)};
}

static once_token token_of(size_t i) { return (once_token){i + 1, 77}; }

static once_request request_of(size_t i)
{
    return (once_request){.scope = &scope,
                          .key = {"k", 1},
                          .id = id_of(i),
                          .fingerprint = {i + 1, 5},
                          .token = token_of(i),
                          .lease_ms = INT64_C(1) << 50, /* longer than the test */
                          .remember_ms = i % 3 ? REMEMBER_MS : REMEMBER_MS / 4,
                          .sent_ms = ONCE_NO_TIME,
                          .run = 9,
                          .at = {{"file", 4}, {"12", 2}}};
}

static int open_store(run *r, once_error *err)
{
    const once_store_options options = {
        .size = sizeof options, .env = &r->world.env, .create = true, .sqlite_vfs = TEST_VFS_NAME};
    const int rc = once__sqlite_store_open("crash.db", &options, &tiny, &r->store, err);
    if (rc != ONCE_OK) r->store = NULL;
    else sqlite3_wal_autocheckpoint(((once_sqlite *)r->store)->db->handle, 40); /* checkpoints happen in the workload */
    return rc;
}

/* ---- the steps ---- */

/* Claim and settle in one transaction. */
static int step_batch(run *r, size_t first, size_t n, bool act, once_error *err)
{
    for (size_t i = 0; i < n; i++) r->m.after[first + i] = ONCE_STATE_DONE;
    if (!act) return ONCE_OK;
    once_request requests[BATCH];
    const once_request *list[BATCH];
    once_settlement settlements[BATCH];
    once_decision decisions[BATCH];
    bool applied[BATCH];
    once_arena arena = {0};
    static const char long_result[300] = "a result that is kept apart from its record";
    for (size_t i = 0; i < n; i++) {
        requests[i] = request_of(first + i);
        list[i] = &requests[i];
        settlements[i] = (once_settlement){.request = &requests[i], .outcome = ONCE_DONE};
        settlements[i].result = i % 5 ? (once_bytes){0} : (once_bytes){long_result, i % 2 ? 20 : sizeof long_result};
    }
    int rc = r->store->ops->begin(r->store, err);
    if (rc != ONCE_OK) return rc;
    rc = r->store->ops->claim(r->store, list, n, decisions, &arena, err);
    if (rc == ONCE_OK) {
        size_t runs = 0;
        for (size_t i = 0; i < n; i++) runs += decisions[i].answer == ONCE_ANSWER_RUN;
        assert_true(runs == n || (r->again && runs == 0)); /* a repeated batch may have been committed the first time */
        if (runs) rc = r->store->ops->settle(r->store, settlements, n, applied, err);
    }
    if (rc == ONCE_OK) rc = r->store->ops->commit(r->store, err);
    else r->store->ops->rollback(r->store);
    once_arena_release(&arena);
    return rc;
}

static int step_claim(run *r, size_t first, bool act, once_error *err)
{
    r->m.after[first] = r->m.after[first + 1] = ONCE_STATE_CLAIMED;
    if (!act) return ONCE_OK;
    const once_request requests[2] = {request_of(first), request_of(first + 1)};
    const once_request *list[2] = {&requests[0], &requests[1]};
    once_decision decisions[2];
    once_arena arena = {0};
    const int rc = r->store->ops->claim(r->store, list, 2, decisions, &arena, err);
    once_arena_release(&arena);
    if (rc == ONCE_OK) assert_int_equal(decisions[1].answer, ONCE_ANSWER_RUN);
    return rc;
}

static const once_message body = {
    .body = {"{\"a\":1}", 7}, .type = {"t", 1}, .at = {{"file", 4}, {"12", 2}}, .sent_ms = 5};

/* One done, one waiting with its body. */
static int step_settle(run *r, size_t first, bool act, once_error *err)
{
    r->m.after[first] = ONCE_STATE_DONE;
    r->m.after[first + 1] = ONCE_STATE_WAITING;
    if (!act) return ONCE_OK;
    const once_request requests[2] = {request_of(first), request_of(first + 1)};
    const once_settlement settlements[2] = {
        {.request = &requests[0], .outcome = ONCE_DONE},
        {.request = &requests[1], .outcome = ONCE_RETRY, .delay_ms = 5, .message = &body, .reason = {"why", 3}}};
    bool applied[2];
    const int rc = r->store->ops->settle(r->store, settlements, 2, applied, err);
    if (rc == ONCE_OK) assert_true(applied[0] && applied[1]);
    return rc;
}

static int step_dead(run *r, size_t i, bool act, once_error *err)
{
    r->m.after[i] = ONCE_STATE_DEAD;
    if (!act) return ONCE_OK;
    const once_request request = request_of(i);
    const once_settlement settlement = {
        .request = &request, .outcome = ONCE_DEAD, .message = &body, .reason = {"why", 3}};
    bool applied;
    const int rc = r->store->ops->settle(r->store, &settlement, 1, &applied, err);
    if (rc == ONCE_OK) assert_true(applied);
    return rc;
}

static int step_forget(run *r, size_t i, bool act, once_error *err)
{
    bool found;
    r->m.after[i] = ONCE_STATE_ABSENT;
    return act ? r->store->ops->forget(r->store, id_of(i), &found, err) : ONCE_OK;
}

static int step_sweep(run *r, bool act, once_error *err)
{
    once_sweep_result result;
    if (!act) return ONCE_OK;
    int rc;
    do rc = r->store->ops->sweep(r->store, 10, &result, err);
    while (rc == ONCE_OK && result.more);
    return rc;
}

static int step_fact(run *r, bool act, once_error *err)
{
    return act ? r->store->ops->fact_set(r->store, "fact", ONCE_BYTES("value"), err) : ONCE_OK;
}

/* Step number `s` of the workload; false when there is none. With act false only the model moves. */
static bool step(run *r, size_t s, bool act, int *rc, once_error *err)
{
    const size_t round = s / 8, base = round * (BATCH + 4);
    if (round >= ROUNDS) return false;
    switch (s % 8) {
    case 0: *rc = step_batch(r, base, BATCH, act, err); break;
    case 1: *rc = step_claim(r, base + BATCH, act, err); break;
    case 2: *rc = step_settle(r, base + BATCH, act, err); break;
    case 3: *rc = step_forget(r, base + 1, act, err); break;
    case 4: *rc = step_claim(r, base + BATCH + 2, act, err); break;
    case 5: *rc = step_dead(r, base + BATCH + 2, act, err); break;
    case 6: *rc = round == 9 || round == 12 ? step_sweep(r, act, err) : step_fact(r, act, err); break;
    default: *rc = round % 2 ? step_forget(r, base + BATCH, act, err) : step_batch(r, base + 1, 1, act, err); break;
    }
    return true;
}

/* ---- checking ---- */

static bool expired_by_now(size_t i, int64_t now_ms) { return i % 3 == 0 && now_ms > TEST_EPOCH_MS + REMEMBER_MS / 4; }

/* Every entry is as before the call in flight, or every entry is as after it. */
static void check(run *r, const char *what, uint64_t n)
{
    bool before = true, after = true;
    size_t odd = 0;
    once_arena arena = {0};
    once_error err = {0};
    for (size_t i = 0; i < IDS; i++) {
        once_entry entry;
        assert_int_equal(r->store->ops->get(r->store, id_of(i), &entry, &arena, &err), ONCE_OK);
        if (once_state_finished(entry.state)) {
            assert_true(once_hash_equal(entry.token, token_of(i)));
            assert_int_equal(entry.fingerprint.a, i + 1);
            assert_int_equal(entry.run, 9);
        }
        if (entry.state == ONCE_STATE_WAITING) assert_int_equal(entry.message.body.len, 7);
        if (expired_by_now(i, r->world.wall_ms) && entry.state == ONCE_STATE_ABSENT) continue;
        if (entry.state != r->m.before[i] || entry.state != r->m.after[i]) odd = i;
        if (entry.state != r->m.before[i]) before = false;
        if (entry.state != r->m.after[i]) after = false;
    }
    once_arena_release(&arena);
    if (!before && !after)
        fail_msg("%s at call %llu: entry %zu is neither as before nor as after", what, (unsigned long long)n, odd);
}

/* Runs the workload until a call fails, or to its end. */
static bool workload(run *r, once_error *err)
{
    int rc = r->store ? ONCE_OK : open_store(r, err);
    for (size_t s = 0; rc == ONCE_OK; s++) {
        memcpy(r->m.after, r->m.before, sizeof r->m.after);
        if (s == 8 * 8) test_env_pass(&r->world, REMEMBER_MS / 2); /* some of it expires */
        if (!step(r, s, true, &rc, err)) return true;
        if (rc != ONCE_OK && r->again) {
            test_vfs_fail(TEST_VFS_NONE, 0);
            once_error second = {0};
            int again = ONCE_OK;
            step(r, s, true, &again, &second);
            if (again != ONCE_OK) fail_msg("after the fault was gone: %s", second.text);
            rc = ONCE_OK;
        }
        if (rc == ONCE_OK) memcpy(r->m.before, r->m.after, sizeof r->m.before);
    }
    return false;
}

static void start(run *r, bool again)
{
    *r = (run){.again = again};
    test_env_init(&r->world, 1);
    test_vfs_reset();
}

static void stop(run *r)
{
    once__store_close(r->store);
    r->store = NULL;
}

static long stride(long usual) { return getenv("ONCE_TEST_DEEP") ? 1 : usual; }

/* Rows 12, 53: power cut at every k-th call, with all, none or some of the unsynced writes on the disk. */
static void f53_power_cut_at_every_call(void **state)
{
    (void)state;
    bool over = false;
    long n = 1;
    for (; !over; n += stride(23)) {
        run r;
        once_error err = {0};
        start(&r, false);
        test_vfs_fail(TEST_VFS_CUT, n);
        over = workload(&r, &err);
        if (!test_vfs_hit()) assert_true(over);
        stop(&r);
        over = !test_vfs_hit();
        test_vfs_power_cut((uint64_t)n % 5);
        if (open_store(&r, &err) != ONCE_OK) fail_msg("reopen after a cut at call %ld: %s", n, err.text);
        check(&r, "power cut", (uint64_t)n);
        stop(&r);
    }
    assert_true(n > 500); /* the workload is worth something */
    test_vfs_reset();
}

static void fail_nth(test_vfs_fault fault, bool again, const char *what, long usual)
{
    bool over = false;
    for (long n = 1; !over; n += stride(usual)) {
        run r;
        once_error err = {0};
        start(&r, again);
        test_vfs_fail(TEST_VFS_NONE, 0);
        if (again) assert_int_equal(open_store(&r, &err), ONCE_OK);
        test_vfs_fail(fault, n);
        over = workload(&r, &err) && !test_vfs_hit();
        if (!again && test_vfs_hit() && err.status == ONCE_OK)
            over = false; /* a failed call that SQLite could do without */
        test_vfs_fail(TEST_VFS_NONE, 0);
        stop(&r);
        if (open_store(&r, &err) != ONCE_OK) fail_msg("%s at call %ld: reopen: %s", what, n, err.text);
        check(&r, what, (uint64_t)n);
        stop(&r);
        if (n > 100000) fail_msg("%s: the workload never passes", what);
    }
    test_vfs_reset();
}

static void f56_io_error_at_every_call(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_IOERR, false, "I/O error", 31);
}
static void f56_short_write_at_every_call(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_SHORT, false, "short write", 37);
}
static void f56_no_memory_at_every_call(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_NOMEM, false, "no memory", 41);
}
static void f52_disk_full_and_space_again(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_FULL, true, "disk full", 29);
}
static void f52_quota_used_up_and_raised(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_QUOTA, true, "quota", 29);
}
static void f56_io_error_and_go_on(void **state)
{
    (void)state;
    fail_nth(TEST_VFS_IOERR, true, "I/O error, again", 43);
}

/* Row 52: what the caller is told. */
static void told(test_vfs_fault fault, const char *what)
{
    run r;
    once_error err = {0};
    start(&r, false);
    assert_int_equal(open_store(&r, &err), ONCE_OK);
    test_vfs_fail(fault, 1);
    assert_false(workload(&r, &err));
    assert_int_equal(err.status, ONCE_E_FULL);
    assert_int_equal(once_status_class(err.status), ONCE_CLASS_PAUSE);
    assert_non_null(strstr(err.text, "crash.db"));
    assert_non_null(strstr(err.text, what));
    assert_null(strstr(err.text, "acknowledged")); /* what was is not known here */
    test_vfs_fail(TEST_VFS_NONE, 0);
    stop(&r);
    test_vfs_reset();
}

static void f52_disk_full_is_said_clearly(void **state)
{
    (void)state;
    told(TEST_VFS_FULL, "no space left; free some space");
    told(TEST_VFS_QUOTA, "no space left (its disk quota is used up)");
}

/* The files keep the reason of their last failure, also when there is space again. */
static void f52_what_was_full_once_is_not_full_for_ever(void **state)
{
    (void)state;
    run r;
    once_error err = {0};
    start(&r, false);
    assert_int_equal(open_store(&r, &err), ONCE_OK);
    once_sqlite_db *db = ((once_sqlite *)r.store)->db;
    test_vfs_fail(TEST_VFS_QUOTA, 1);
    assert_false(workload(&r, &err));
    assert_int_equal(err.status, ONCE_E_FULL);
    test_vfs_fail(TEST_VFS_IOERR, 1); /* of another file, which cannot be opened */
    errno = EMFILE;
    assert_int_equal(sqlite3_exec(db->handle, "ATTACH 'other.db' AS other", NULL, NULL, NULL), SQLITE_CANTOPEN);
    errno = EMFILE;
    assert_int_equal(once__sqlite_fail(db, SQLITE_CANTOPEN, &err), ONCE_E_UNAVAILABLE);
    assert_null(strstr(err.text, "no space"));
    test_vfs_fail(TEST_VFS_NONE, 0);
    stop(&r);
    test_vfs_reset();
}

/* SQLite's own bound, which needs no disk at all. */
static void f52_as_many_pages_as_it_may_have(void **state)
{
    (void)state;
    run r;
    once_error err = {0};
    start(&r, false);
    assert_int_equal(open_store(&r, &err), ONCE_OK);
    sqlite3 *handle = ((once_sqlite *)r.store)->db->handle;
    assert_int_equal(sqlite3_exec(handle, "PRAGMA max_page_count = 1", NULL, NULL, NULL),
                     SQLITE_OK); /* no less than there are */
    assert_false(workload(&r, &err));
    assert_int_equal(err.status, ONCE_E_FULL);
    assert_int_equal(sqlite3_exec(handle, "PRAGMA max_page_count = 1000000", NULL, NULL, NULL), SQLITE_OK);
    for (size_t i = 0; i < 8; i++) { /* the last round of the workload, of which nothing has happened yet */
        int rc = ONCE_E_BUG;
        assert_true(step(&r, 8 * (ROUNDS - 1) + i, true, &rc, &err));
        if (rc != ONCE_OK) fail_msg("step %zu: %s", i, err.text);
    }
    stop(&r);
    test_vfs_reset();
}

/* Row 51: a failed sync is fatal and is not taken for success later. */
static void f51_failed_sync_is_fatal(void **state)
{
    (void)state;
    run r;
    once_error err = {0};
    start(&r, false);
    assert_int_equal(open_store(&r, &err), ONCE_OK);
    for (long n = 1; n < 400; n++) {
        once_error here = {0};
        int rc = ONCE_OK;
        test_vfs_fail(TEST_VFS_IOERR, n);
        if (!step(&r, (size_t)n % 2 ? 6 : 14, true, &rc, &here)) break;
        if (rc != ONCE_OK) assert_int_equal(once_status_class(rc), ONCE_CLASS_FATAL);
        if (!test_vfs_hit()) break;
    }
    test_vfs_fail(TEST_VFS_NONE, 0);
    stop(&r);
    test_vfs_reset();
}

int main(void)
{
    test_vfs_register();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f53_power_cut_at_every_call),
        cmocka_unit_test(f56_io_error_at_every_call),
        cmocka_unit_test(f56_short_write_at_every_call),
        cmocka_unit_test(f56_no_memory_at_every_call),
        cmocka_unit_test(f52_disk_full_and_space_again),
        cmocka_unit_test(f52_quota_used_up_and_raised),
        cmocka_unit_test(f56_io_error_and_go_on),
        cmocka_unit_test(f52_disk_full_is_said_clearly),
        cmocka_unit_test(f52_what_was_full_once_is_not_full_for_ever),
        cmocka_unit_test(f52_as_many_pages_as_it_may_have),
        cmocka_unit_test(f51_failed_sync_is_fatal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
