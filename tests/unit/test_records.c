/* What the stores keep, read without a store: records that nobody writes are refused. tests/fuzz/fuzz_record.c tries
 * all others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/sqlite/record.h"
#include "store/worker.h"

#ifdef ONCE_WITH_POSTGRES
#include "store/postgres/detail.h"
#endif

/* Flag, then two times of six bytes: it expires after it may be gone, which the writer asserts never happens. */
static void f93_a_record_that_outlives_itself_is_refused(void **state)
{
    (void)state;
    unsigned char record[128] = {0}, *at = record + 1;
    at[16] = 0x20 | 1;                /* EARLY, and done */
    at[17] = 1;                       /* kept until 1 */
    at[23] = 2;                       /* expires at 2 */
    at[16 + 1 + 12 + 16 + 6 + 1] = 1; /* the first attempt */
    const size_t len = 16 + 1 + 12 + 16 + 6 + 8;
    record[0] = (unsigned char)len;
    const once_bytes bytes = {(const char *)record, len + 1};
    once_record_ref ref;
    once_record out;
    assert_true(once__record_look(bytes, 0, 0, &ref));
    assert_false(once__record_read(bytes, &ref, (once_bytes){0}, &out));
    at[17] = 2;
    assert_true(once__record_look(bytes, 0, 0, &ref) && once__record_read(bytes, &ref, (once_bytes){0}, &out));
    assert_true(out.keep_ms == 2 && out.expires_ms == 2 && out.attempt == 1);
}

#ifdef ONCE_WITH_POSTGRES
/* head, kept (a second), lived (varint), attempt, failures, four names */
static void f93_a_detail_with_impossible_numbers_is_refused(void **state)
{
    (void)state;
    static const char fine[] = {0x05, 1, 2, 3, 1, 1, 1, 1, 1};
    static const char many[] = {0x05, 1, 2, (char)0xff, (char)0xff, (char)0xff, (char)0xff, 0x7f, 1, 1, 1, 1, 1};
    static const char old[] = {0x05,       1,          (char)0xff, (char)0xff, (char)0xff, (char)0xff,
                               (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, 1,
                               3,          1,          1,          1,          1,          1};
    once_entry entry = {0};
    once_pg_names_of names;
    assert_true(once__pg_detail_read((once_bytes){fine, sizeof fine}, 5000, &entry, &names));
    assert_true(entry.attempt == 3 && entry.changed_ms == 4000 && entry.seen_ms == 3999);
    assert_false(once__pg_detail_read((once_bytes){many, sizeof many}, 5000, &entry, &names));
    assert_false(once__pg_detail_read((once_bytes){old, sizeof old}, 5000, &entry, &names));
    assert_false(once__pg_detail_read((once_bytes){fine, sizeof fine}, INT64_MIN, &entry, &names));
}
#endif

/* --- workers --- */

static unsigned char fact[10 * ONCE_NUMBER_SIZE + 1];

static int one_fact(once_backend *store, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    (void)store, (void)prefix, (void)err;
    (void)visit(user, ONCE_BYTES("worker/1/2"), (once_bytes){(const char *)fact, sizeof fact});
    return ONCE_OK;
}

static int what_time(once_backend *store, once_store_time *out, once_error *err)
{
    (void)store, (void)err;
    *out = (once_store_time){.now_ms = 1000};
    return ONCE_OK;
}

static bool count(void *user, const once_worker *worker, once_worker_state state)
{
    return (void)worker, (void)state, ++*(int *)user, true;
}

static int workers_seen_at(int64_t seen_ms)
{
    static const once_store_ops ops = {.facts = one_fact, .time = what_time};
    once_backend store = {.ops = &ops, .env = once_env_real()};
    once_error err = {0};
    int seen = 0;
    once__number_put(fact + 2 * ONCE_NUMBER_SIZE, 30000); /* the lease */
    once__number_put(fact + 4 * ONCE_NUMBER_SIZE, (uint64_t)seen_ms);
    assert_int_equal(once_workers_each(&store, ONCE_BYTES("c"), count, &seen, &err), ONCE_OK);
    return seen;
}

static void f93_a_worker_of_an_impossible_time_is_none(void **state)
{
    (void)state;
    assert_int_equal(workers_seen_at(500), 1);
    assert_int_equal(workers_seen_at(INT64_MAX), 0); /* its lease would end before it began */
    assert_int_equal(workers_seen_at(-1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f93_a_record_that_outlives_itself_is_refused),
#ifdef ONCE_WITH_POSTGRES
        cmocka_unit_test(f93_a_detail_with_impossible_numbers_is_refused),
#endif
        cmocka_unit_test(f93_a_worker_of_an_impossible_time_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
