/* Bytes of a store's file that changed on the disk: a verb fails or answers right, and never says "not seen".
 *
 * A sample of all bytes, with a seed; ONCE_BIT_ROT=N takes every N-th byte of the file instead (1: all of them, in
 * hours). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/sqlite/sqlite.h"
#include "testenv.h"

enum { KEYS = 5000, LIVE = 40, LANES = 40, LETTERS = 20, BATCH = 250, SAMPLES = 250 };

static const once_settled_limits small = {
    .recent_records = 300, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 1 << 20};
static const once_settled_limits small_filters = {
    .recent_records = 300, .recent_bytes = 1 << 20, .level0_bits = 6, .filter_bytes = 4096};
static const once_scope scope = {.consumer = {"c", 1}, .operation = {"op", 2}};

static char folder[100], path[150], flipped[150];
static test_env world;
static uint64_t tokens;

static int setup(void **state)
{
    (void)state;
    test_env_init(&world, 3);
    snprintf(folder, sizeof folder, "/tmp/once-rot-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/once.db", folder);
    snprintf(flipped, sizeof flipped, "%s/flipped.db", folder);
    return 0;
}

static int teardown(void **state)
{
    char command[200];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : -1;
}

static int open_at(const char *file, const once_settled_limits *limits, once_backend **out, once_error *err)
{
    const once_store_options options = {.size = sizeof options, .env = &world.env, .create = true};
    return once__sqlite_store_open(file, &options, limits, out, err);
}

static once_hash id_of(uint64_t i)
{
    const uint64_t a = test_random(&i);
    return (once_hash){a, test_random(&i)};
}

static once_request ask(uint64_t i)
{
    return (once_request){.scope = &scope,
                          .key = {"k", 1},
                          .id = id_of(i),
                          .token = {++tokens, 1},
                          .lane.gap_ms = -1,
                          .lease_ms = 1000000,
                          .remember_ms = ONCE_FOREVER,
                          .sent_ms = ONCE_NO_TIME,
                          .run = 1 + i % 3,
                          .at = {{"place", 5}, {"1234", 4}}};
}

/* Keys from KEYS on are live; lanes from LANE_FIRST on have had version 5. */
enum { LANE_FIRST = 100000 };

static once_request ask_lane(uint64_t i, int64_t version)
{
    once_request r = ask(LANE_FIRST + i * 10 + (uint64_t)version);
    r.lane = (once_lane_request){.id = id_of(900000 + i), .versioned = true, .version = version, .gap_ms = -1};
    return r;
}

static void good(int rc, const once_error *err)
{
    if (rc != ONCE_OK) fail_msg("%s", err->text);
}

static void settle_one(once_backend *store, const once_request *r, once_arena *arena)
{
    static const char result[] =
        "a result that is long enough to be kept apart from its record, because it has more than 64 bytes";
    once_error err = {0};
    once_decision decision;
    bool applied;
    good(store->ops->claim(store, &r, 1, &decision, arena, &err), &err);
    assert_int_equal(decision.answer, ONCE_ANSWER_RUN);
    const once_settlement s = {.request = r, .outcome = ONCE_DONE, .result = {result, r->id.a % 9 ? 0 : sizeof result}};
    good(store->ops->settle(store, &s, 1, &applied, &err), &err);
    assert_true(applied);
}

static void fill(once_backend *store)
{
    once_arena arena = {0};
    once_error err = {0};
    for (uint64_t i = 0; i < KEYS; i += 50) {
        good(store->ops->begin(store, &err), &err);
        for (uint64_t k = i; k < i + 50; k++) {
            const once_request r = ask(k);
            settle_one(store, &r, &arena);
        }
        good(store->ops->commit(store, &err), &err);
        once_arena_reset(&arena);
    }
    good(store->ops->begin(store, &err), &err);
    for (uint64_t i = 0; i < LANES; i++) {
        const once_request r = ask_lane(i, 5);
        settle_one(store, &r, &arena);
    }
    for (uint64_t i = 0; i < LIVE; i++) {
        const once_request r = ask(KEYS + i), *one = &r;
        const once_message message = {.body = {"{\"a\":1}", 7}, .type = {"t", 1}, .sent_ms = ONCE_NO_TIME, .at = r.at},
                           *body = &message;
        once_decision decision;
        good(i % 2 ? store->ops->claim(store, &one, 1, &decision, &arena, &err)
                   : store->ops->accept(store, &one, &body, 1, &decision, &arena, &err),
             &err);
    }
    for (uint64_t i = 0; i < LETTERS; i++) {
        char point[20];
        snprintf(point, sizeof point, "%d", (int)i);
        const once_letter letter = {
            .scope = scope,
            .message = {.body = {"not json", 8}, .sent_ms = ONCE_NO_TIME, .at = {{"p", 1}, {point, strlen(point)}}},
            .reason = {"malformed", 9},
            .kind = ONCE_ANSWER_DEAD};
        bool fresh;
        good(store->ops->bury(store, &letter, 1, &fresh, &err), &err);
    }
    good(store->ops->fact_set(store, "scope/x", ONCE_BYTES("the key of x"), &err), &err);
    const once_audit act = {.consumer = scope.consumer,
                            .who = ONCE_BYTES("me"),
                            .what = ONCE_BYTES("correct"),
                            .body = ONCE_BYTES("not json")};
    good(store->ops->audit(store, &act, &err), &err);
    good(store->ops->commit(store, &err), &err);
    once_arena_release(&arena);
}

typedef struct found {
    size_t errors, right, again;
    char first[300];
} found;

/* Asks as a run would, without writing: how many keys would run. */
static int ask_batch(once_backend *store, uint64_t first, size_t n, bool lanes, size_t *runs, once_error *err)
{
    once_request requests[BATCH];
    const once_request *pointers[BATCH];
    once_decision decisions[BATCH];
    once_arena arena = {0};
    int rc = store->ops->begin(store, err);
    if (rc != ONCE_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        requests[i] = lanes ? ask_lane(first + i, 4) : ask(first + i);
        pointers[i] = &requests[i];
    }
    rc = store->ops->claim(store, pointers, n, decisions, &arena, err);
    for (size_t i = 0; rc == ONCE_OK && i < n; i++)
        *runs += decisions[i].answer == ONCE_ANSWER_RUN && (lanes || first + i < KEYS || (first + i - KEYS) % 2);
    store->ops->rollback(store);
    once_arena_release(&arena);
    return rc;
}

static bool count_letter(void *user, const once_letter *letter)
{
    (void)letter;
    ++*(size_t *)user;
    return true;
}

static int ask_all(once_backend *store, size_t *runs, once_error *err)
{
    once_arena arena = {0};
    once_bytes fact;
    size_t letters = 0;
    int rc = store->ops->fact_get(store, "scope/x", &fact, &arena, err);
    if (rc == ONCE_OK && fact.len != 12) ++*runs; /* the key of an operation is not known any more */
    once_arena_release(&arena);
    for (uint64_t i = 0; i < KEYS && rc == ONCE_OK; i += BATCH) rc = ask_batch(store, i, BATCH, false, runs, err);
    if (rc == ONCE_OK) rc = ask_batch(store, KEYS, LIVE, false, runs, err);
    if (rc == ONCE_OK) rc = ask_batch(store, 0, LANES, true, runs, err);
    return rc == ONCE_OK ? store->ops->letters(store, scope.consumer, 0, count_letter, &letters, err) : rc;
}

static void write_file(const char *to, const unsigned char *bytes, size_t len)
{
    FILE *out = fopen(to, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, len, out), len);
    assert_int_equal(fclose(out), 0);
}

static void try_flip(const unsigned char *bytes, size_t len, size_t at, const once_settled_limits *limits, found *f)
{
    char side[200];
    once_backend *store = NULL;
    once_error err = {0};
    size_t runs = 0;
    static const char *const ends[] = {"-wal", "-shm", "-journal"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(side, sizeof side, "%s%s", flipped, ends[i]);
        unlink(side);
    }
    write_file(flipped, bytes, len);
    int rc = open_at(flipped, limits, &store, &err);
    if (rc == ONCE_OK) rc = ask_all(store, &runs, &err);
    once__store_close(store);
    if (rc != ONCE_OK) {
        f->errors++;
        assert_non_null(strstr(err.text, flipped)); /* it says which file, and what in it */
    } else if (runs) {
        if (!f->again++)
            snprintf(f->first, sizeof f->first, "byte %zu (page %zu, %zu in it): %zu would run", at, at / 4096 + 1,
                     at % 4096, runs);
    } else {
        f->right++;
    }
}

static unsigned char *make(size_t *len)
{
    once_backend *store;
    once_error err = {0};
    good(open_at(path, &small, &store, &err), &err);
    fill(store);
    good(once__sqlite_exec(((once_sqlite *)store)->db, "PRAGMA wal_checkpoint(TRUNCATE)", &err), &err);
    once__store_close(store);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    *len = (size_t)ftell(in);
    rewind(in);
    unsigned char *bytes = malloc(*len);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *len, in), *len);
    fclose(in);
    return bytes;
}

static void f55_flipped_bytes_never_make_a_key_new(void **state)
{
    (void)state;
    const char *every = getenv("ONCE_BIT_ROT");
    const size_t step = every ? strtoul(every, NULL, 10) : 0;
    size_t len;
    unsigned char *bytes = make(&len);
    uint64_t random = 55;
    found f = {0};
    for (size_t i = 0; step ? i * step < len : i < SAMPLES; i++) {
        const size_t at = step ? i * step : test_random(&random) % len;
        const unsigned char was = bytes[at];
        const unsigned choice = (unsigned)test_random(&random);
        bytes[at] =
            (unsigned char)(i % 2 ? was ^ 1u << choice % 8 : was + 1 + choice % 255); /* a bit, or any other byte */
        try_flip(bytes, len, at, i % 3 ? &small : &small_filters, &f);
        bytes[at] = was;
    }
    print_message("%zu bytes: %zu errors, %zu without effect, %zu times a key would run again\n",
                  f.errors + f.right + f.again, f.errors, f.right, f.again);
    free(bytes);
    if (f.again) fail_msg("%s", f.first);
    assert_true(f.errors > 50); /* they were looked at */
}

/* ---- check --deep ---- */

static void count_damage(void *user, const char *text)
{
    (void)text;
    ++*(size_t *)user;
}

/* Changes a copy of the file, and asks whether that is noticed. False: the change was refused, or changed nothing. */
static bool try_change(const unsigned char *bytes, size_t len, const char *sql, bool *noticed)
{
    sqlite3 *db;
    once_backend *store = NULL;
    once_error err = {0};
    size_t n = 0;
    write_file(flipped, bytes, len);
    assert_int_equal(sqlite3_open(flipped, &db), SQLITE_OK);
    const bool changed = sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK && sqlite3_changes(db) > 0;
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* and with it the write-ahead log */
    const int rc = open_at(flipped, &small, &store, &err);
    if (rc == ONCE_OK) good(store->ops->verify(store, count_damage, &n, &err), &err);
    else assert_int_not_equal(rc, ONCE_E_BUSY);
    once__store_close(store);
    *noticed = rc != ONCE_OK || n > 0;
    return changed;
}

/* Whatever row of ours is lost, whatever column of one changes. Only where the row of an entry without a body is,
 * nobody minds. */
static void f55_check_deep_notices_every_row_and_column(void **state)
{
    (void)state;
    size_t len, tried = 0;
    unsigned char *bytes = make(&len);
    char sql[1000];
    bool noticed;
    assert_false(try_change(bytes, len, "SELECT 1", &noticed));
    assert_false(noticed);
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT t.name, c.name, (SELECT name FROM pragma_table_info(t.name) WHERE pk = "
                                        "1), c.pk FROM sqlite_schema t,"
                                        " pragma_table_info(t.name) c WHERE t.type = 'table' AND t.name LIKE 'once_%'",
                                        -1, &stmt, NULL),
                     SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *table = (const char *)sqlite3_column_text(stmt, 0),
                   *column = (const char *)sqlite3_column_text(stmt, 1);
        const char *key = (const char *)sqlite3_column_text(stmt, 2);
        if (sqlite3_column_int(stmt, 3)) {
            snprintf(sql, sizeof sql, "DELETE FROM %s WHERE %s = (SELECT %s FROM %s LIMIT 1)", table, key, key, table);
            if (!try_change(bytes, len, sql, &noticed)) fail_msg("there was nothing: %s", sql);
            if (!noticed) fail_msg("not noticed: %s", sql);
        }
        if (strcmp(table, "once_entry") == 0 && strcmp(column, "n") == 0) continue;
        snprintf(sql, sizeof sql,
                 "UPDATE %s SET %s = CASE typeof(%s) WHEN 'integer' THEN %s + CASE WHEN %s > 0 THEN -1 ELSE 1 END WHEN "
                 "'text' THEN %s || 'x' WHEN 'null' THEN 1 ELSE CAST(%s || x'01' AS"
                 " BLOB) END WHERE %s = (SELECT %s FROM %s LIMIT 1)",
                 table, column, column, column, column, column, column, key, key, table);
        const bool changed = try_change(bytes, len, sql, &noticed);
        if (changed && !noticed) fail_msg("not noticed: %s", sql);
        tried += changed;
    }
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    free(bytes);
    print_message("%zu columns\n", tried);
    assert_true(tried > 80);
}

static bool count_fact(void *user, once_bytes name, once_bytes value)
{
    (void)name, (void)value;
    ++*(size_t *)user;
    return true;
}

/* Whether other workers are alive is read from all facts of a kind at once. */
static void f55_f100_a_damaged_record_of_a_worker_is_noticed(void **state)
{
    (void)state;
    size_t n = 0;
    once_backend *store = NULL;
    once_error err = {0};
    sqlite3 *db;
    good(open_at(path, &small, &store, &err), &err);
    good(store->ops->fact_set(store, "worker/1/2", ONCE_BYTES("a record"), &err), &err);
    good(store->ops->fact_set(store, "worker/1/3", ONCE_BYTES("a record"), &err), &err);
    good(store->ops->facts(store, "worker/1/", count_fact, &n, &err), &err);
    assert_int_equal(n, 2);
    once__store_close(store);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "UPDATE once_fact SET value = CAST('b record' AS BLOB) WHERE name = 'worker/1/3'",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    store = NULL;
    good(open_at(path, &small, &store, &err), &err);
    assert_int_equal(store->ops->facts(store, "worker/1/", count_fact, &n, &err), ONCE_E_CORRUPT);
    assert_non_null(strstr(err.text, "worker/1/3"));
    once__store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(f55_flipped_bytes_never_make_a_key_new, setup, teardown),
        cmocka_unit_test_setup_teardown(f55_check_deep_notices_every_row_and_column, setup, teardown),
        cmocka_unit_test_setup_teardown(f55_f100_a_damaged_record_of_a_worker_is_noticed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
