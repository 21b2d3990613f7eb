/* The parts of the postgres store that need no server: words of the user's SQL, the detail of a finished entry, SQLSTATEs. And with
 * one: what only several connections show. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "postgres.h"
#include "store/store.h"
#include "testenv.h"

#ifndef ONCE_WITH_POSTGRES

int main(void)
{
    printf("1..1\nok 1 - postgres # SKIP built without libpq\n");
    return 0;
}

#else

#include "db/postgres.h"
#include "store/postgres_detail.h"
#include "store/postgres_store.h"

/* ---- words ---- */

static int look(const char *sql, bool whole)
{
    once_error err = {0};
    return once__pg_look((once_bytes){sql, strlen(sql)}, whole, &err);
}

static void f78_words_of_others_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "COMMIT", "  rollback", "/* a /* nested */ comment */ END", "-- x\nBEGIN", "Set x = 1", "reset all", "SAVEPOINT a", "release a", "abort",
        "PREPARE TRANSACTION 'x'", "COPY t FROM STDIN", "vacuum t", "DELETE FROM once_entry", "SELECT * FROM a JOIN ONCE_meta ON true",
        "DELETE FROM public.\"once_live\"", "UPDATE t SET a = 1; COMMIT", "", " ; ", "-- nothing", "SELECT 1; SELECT 2", "DISCARD ALL",
    };
    static const char *const good[] = {
        "INSERT INTO t VALUES (?1, 'COMMIT; once_entry')", "SELECT \"a;b\", 'it''s; ', E'\\'; COMMIT', $$; COMMIT $$, $x$ ; once_meta $x$ FROM t",
        "UPDATE t SET begin = 1 /* once_entry; COMMIT */ -- COMMIT\n;", "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x;", "SELECT nonce_x, a.once FROM t",
        "SELECT 1e5, x'0f', ?1::bigint",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (look(bad[i], false) != ONCE_E_CONFIG) fail_msg("allowed: %s", bad[i]);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (look(good[i], false) != ONCE_OK) fail_msg("refused: %s", good[i]);
    assert_int_equal(look("CREATE TABLE a(n int); CREATE TABLE b(n int);", true), ONCE_OK);
    assert_int_equal(look("", true), ONCE_OK);
    assert_int_equal(look("CREATE TABLE a(n int); COMMIT", true), ONCE_E_CONFIG);
    assert_int_equal(once__pg_look((once_bytes){"SELECT\0 1", 9}, false, NULL), ONCE_E_CONFIG);
}

static void f48_classes_of_sqlstates(void **state)
{
    (void)state;
    static const struct {
        const char *state;
        once_class class;
    } table[] = {
        {NULL, ONCE_CLASS_RETRY},      {"08006", ONCE_CLASS_RETRY}, {"57P01", ONCE_CLASS_RETRY}, {"57P03", ONCE_CLASS_RETRY}, {"40001", ONCE_CLASS_RETRY},
        {"40P01", ONCE_CLASS_RETRY},   {"55P03", ONCE_CLASS_RETRY}, {"53300", ONCE_CLASS_RETRY}, {"53100", ONCE_CLASS_PAUSE}, {"42P01", ONCE_CLASS_PAUSE},
        {"42501", ONCE_CLASS_PAUSE},   {"28P01", ONCE_CLASS_PAUSE}, {"25006", ONCE_CLASS_PAUSE}, {"23505", ONCE_CLASS_MESSAGE}, {"22P02", ONCE_CLASS_MESSAGE},
        {"P0001", ONCE_CLASS_MESSAGE}, {"XX001", ONCE_CLASS_FATAL}, {"58030", ONCE_CLASS_FATAL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (once_status_class(once__pg_status(table[i].state)) != table[i].class) fail_msg("%s", table[i].state);
}

/* ---- the detail ---- */

static void read_back(const once_entry *e, once_pg_names_of names, size_t at_most)
{
    once_buf buf;
    once_buf_init(&buf, 1 << 20);
    int64_t kept_ms;
    assert_true(once__pg_detail_write(e, names, &buf, &kept_ms));
    assert_true(buf.len <= at_most);
    once_entry back = {0};
    once_pg_names_of numbers;
    assert_true(once__pg_detail_read(once_buf_bytes(&buf), e->changed_ms + kept_ms, &back, &numbers));
    assert_true(back.state == e->state && back.attempt == e->attempt && back.failures == e->failures && back.seen_ms == e->seen_ms);
    assert_true(back.changed_ms == e->changed_ms && back.expires_ms == e->expires_ms);
    assert_true(numbers.scope == names.scope && numbers.place == names.place && numbers.run == names.run && numbers.who == names.who);
    const once_bytes *const pairs[][2] = {{&e->at.point, &back.at.point}, {&e->result, &back.result}, {&e->reason, &back.reason},
                                         {&e->history, &back.history}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pairs[i][0]->len, pairs[i][1]->len);
        if (pairs[i][0]->len) assert_memory_equal(pairs[i][0]->data, pairs[i][1]->data, pairs[i][0]->len);
    }
    for (size_t len = 0; len < buf.len && e->history.len; len++) { /* what is cut is not taken for whole, or is shorter */
        once_entry cut;
        if (once__pg_detail_read((once_bytes){buf.data, len}, e->expires_ms, &cut, &numbers)) assert_true(cut.history.len < e->history.len);
    }
    once_buf_release(&buf);
}

static void a_finished_entry_comes_back_from_its_detail(void **state)
{
    (void)state;
    const int64_t now = TEST_EPOCH_MS, week = INT64_C(7) * 24 * 3600 * 1000;
    once_entry e = {.state = ONCE_STATE_DONE, .attempt = 1, .seen_ms = now, .changed_ms = now, .expires_ms = now + week, .at.point = ONCE_BYTES("123456")};
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 14);
    e.expires_ms = ONCE_FOREVER;
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 14);
    e = (once_entry){.state = ONCE_STATE_STALE, .attempt = UINT32_MAX, .failures = 300, .seen_ms = now + 5, .changed_ms = now, .expires_ms = now + 1, .reason = ONCE_BYTES("why not")};
    read_back(&e, (once_pg_names_of){INT32_MAX, 200, 70000, 4}, 60);
    e.result = ONCE_BYTES("a\0b");
    e.at.point = ONCE_BYTES("17");
    e.seen_ms = 0;
    e.expires_ms = INT64_MAX - 1;
    read_back(&e, (once_pg_names_of){1, 1, 1, INT32_MAX}, 80);
    e.history = ONCE_BYTES("1 5 retry me@here:1 why not\n");
    read_back(&e, (once_pg_names_of){1, 1, 1, 1}, 120);
    e.result = e.reason = (once_bytes){0};
    read_back(&e, (once_pg_names_of){1, 1, 1, 1}, 120);
    once_entry out;
    once_pg_names_of numbers;
    assert_false(once__pg_detail_read((once_bytes){0}, 5, &out, &numbers));
    assert_false(once__pg_detail_read((once_bytes){"\x01\x01\x01\x01\x01", 5}, 5, &out, &numbers)); /* claimed is not finished */
    assert_false(once__pg_detail_read((once_bytes){"\x35\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 13}, 5, &out, &numbers));
}

/* ---- with a server ---- */

static test_env world;
static char url[240], schema[40];
static int64_t passed(const once_env *env) { return TEST_EPOCH_MS + once_env_boot_ms(env) - TEST_BOOT_MS; }

static int with_schema(void **state)
{
    const char *why;
    if (!test_postgres_url(&why)) return 0;
    (void)state;
    test_env_init(&world, 7);
    once__pg_test_clock = passed;
    snprintf(schema, sizeof schema, "once_unit_%d", (int)getpid());
    test_postgres_make(schema, url, sizeof url);
    return 0;
}

static int without_schema(void **state)
{
    const char *why;
    (void)state;
    if (test_postgres_url(&why)) test_postgres_unmake(schema);
    return 0;
}

static once_store *open_one(void)
{
    const once_store_options options = {.size = sizeof options, .env = &world.env, .create = true};
    once_store *store = NULL;
    once_error err;
    if (once__store_open(url, &options, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    return store;
}

static const once_scope scope = {{"", 0}, {"c", 1}, {"op", 2}};

static once_request ask(const once_store *store, const char *key, uint64_t token)
{
    const once_bytes bytes = {key, strlen(key)};
    return (once_request){.scope = &scope, .key = bytes, .id = once_key_id(store->secret, &scope, bytes), .token = {token, 1}, .lane = {.gap_ms = -1},
                          .lease_ms = 1000, .remember_ms = 5000, .sent_ms = ONCE_NO_TIME};
}

static once_answer claim(once_store *store, const once_request *r)
{
    once_decision d;
    once_arena arena = {0};
    once_error err;
    if (store->ops->claim(store, &r, 1, &d, &arena, &err) != ONCE_OK) fail_msg("%s", err.text);
    once_arena_release(&arena);
    return d.answer;
}

static void settle(once_store *store, const once_request *r)
{
    const once_settlement done = {.request = r, .outcome = ONCE_DONE};
    bool applied;
    once_error err;
    if (store->ops->settle(store, &done, 1, &applied, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_true(applied);
}

/* What is settled in a transaction that its caller rolls back was never there; what is committed was written once. */
static void keys_that_are_inserted_ahead_go_with_the_transaction(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_store *store = open_one();
    once_error err;
    once_entry entry;
    once_arena arena = {0};
    once_request r = ask(store, "a", 1);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
        assert_int_equal(claim(store, &r), ONCE_ANSWER_RUN);
        if (round > 0) settle(store, &r);
        if (round < 2) store->ops->rollback(store);
        else assert_int_equal(store->ops->commit(store, &err), ONCE_OK);
        assert_int_equal(store->ops->get(store, r.id, &entry, &arena, &err), ONCE_OK);
        assert_int_equal(entry.state, round < 2 ? ONCE_STATE_ABSENT : ONCE_STATE_DONE);
    }
    /* Too old: it was inserted ahead, and must be gone. */
    r = ask(store, "old", 2);
    r.sent_ms = 5;
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_equal(claim(store, &r), ONCE_ANSWER_TOO_OLD);
    assert_int_equal(store->ops->commit(store, &err), ONCE_OK);
    assert_int_equal(store->ops->get(store, r.id, &entry, &arena, &err), ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_ABSENT);
    r.sent_ms = ONCE_NO_TIME;
    r.token.a = 3;
    assert_int_equal(claim(store, &r), ONCE_ANSWER_RUN);
    once_arena_release(&arena);
    once__store_close(store);
}

typedef struct rival {
    once_store *store;
    once_answer answer;
    int rc;
} rival;

static void *claim_second(void *user)
{
    rival *s = user;
    const once_request r = ask(s->store, "a", 2), *requests = &r;
    once_decision d = {0};
    once_arena arena = {0};
    s->rc = s->store->ops->begin(s->store, NULL);
    if (s->rc == ONCE_OK) s->rc = s->store->ops->claim(s->store, &requests, 1, &d, &arena, NULL);
    s->store->ops->rollback(s->store);
    s->answer = d.answer;
    once_arena_release(&arena);
    return NULL;
}

static bool somebody_waits(void)
{
    char conninfo[300];
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *result = PQexec(conn, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO once_entry%'");
    const bool waits = PQntuples(result) > 0;
    PQclear(result);
    PQfinish(conn);
    return waits;
}

/* Two workers and one new key: the second one waits for the first, and then has a duplicate. Its effect never began. */
static void f25_a_new_key_is_locked_before_its_effect_runs(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_store *one = open_one();
    rival other = {.store = open_one()};
    once_error err;
    pthread_t thread;
    const once_request r = ask(one, "a", 1);
    assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
    assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
    assert_int_equal(pthread_create(&thread, NULL, claim_second, &other), 0);
    bool waited = false;
    for (int i = 0; i < 2000 && !waited; i++) {
        waited = somebody_waits();
        if (!waited) usleep(5000);
    }
    settle(one, &r);
    assert_int_equal(one->ops->commit(one, &err), ONCE_OK);
    pthread_join(thread, NULL);
    once__store_close(one);
    once__store_close(other.store);
    assert_true(waited);
    assert_int_equal(other.rc, ONCE_OK);
    assert_int_equal(other.answer, ONCE_ANSWER_DUPLICATE);
}

/* Sweeping takes what has expired and passes over what another transaction holds; while one sweeps, another has nothing to do. */
static void f12_sweep_passes_over_what_is_locked(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_store *one = open_one(), *two = open_one();
    once_error err;
    char keys[20][8];
    for (int i = 0; i < 20; i++) {
        snprintf(keys[i], sizeof keys[i], "s%d", i);
        const once_request r = ask(one, keys[i], 100 + (uint64_t)i);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
        settle(one, &r);
    }
    test_env_pass(&world, 5000);
    once_request held = ask(two, keys[3], 500);
    assert_int_equal(two->ops->begin(two, &err), ONCE_OK);
    assert_int_equal(claim(two, &held), ONCE_ANSWER_RUN); /* expired, so it begins anew */
    once_sweep_result swept = {.more = true};
    uint64_t dropped = 0;
    while (swept.more) {
        assert_int_equal(one->ops->sweep(one, 7, &swept, &err), ONCE_OK);
        dropped += swept.dropped;
    }
    assert_int_equal(dropped, 19);
    settle(two, &held);
    assert_int_equal(two->ops->commit(two, &err), ONCE_OK);
    assert_int_equal(one->ops->sweep(one, 7, &swept, &err), ONCE_OK);
    assert_int_equal(swept.dropped, 0);
    held.token.a = 501;
    assert_int_equal(claim(one, &held), ONCE_ANSWER_DUPLICATE);
    once__store_close(one);
    once__store_close(two);
}

/* A worker that has a lane keeps others out of it until it commits; take does not wait for it. */
static void f28_a_lane_is_held_by_one_transaction(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_store *one = open_one(), *two = open_one();
    once_error err;
    once_arena arena = {0};
    once_request first = ask(one, "first", 1), second = ask(one, "second", 2);
    first.lane.id = second.lane.id = once_lane_id(one->secret, &scope, ONCE_BYTES("lane"));
    const once_request *requests = &second;
    const once_message message = {.body = ONCE_BYTES("x"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    assert_int_equal(two->ops->accept(two, &requests, &messages, 1, &d, &arena, &err), ONCE_OK);
    assert_int_equal(d.answer, ONCE_ANSWER_WAITING);
    assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
    assert_int_equal(claim(one, &first), ONCE_ANSWER_LATER); /* behind it; and the lane is locked now */
    once_taken taken[2];
    size_t n = 9;
    assert_int_equal(two->ops->take(two, scope.consumer, (once_token){50, 1}, false, 1000, 2, taken, &n, &arena, &err), ONCE_OK);
    assert_int_equal(n, 0);
    one->ops->rollback(one);
    assert_int_equal(two->ops->take(two, scope.consumer, (once_token){51, 1}, false, 1000, 2, taken, &n, &arena, &err), ONCE_OK);
    assert_int_equal(n, 1);
    once_arena_release(&arena);
    once__store_close(one);
    once__store_close(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f78_words_of_others_are_refused),
        cmocka_unit_test(f48_classes_of_sqlstates),
        cmocka_unit_test(a_finished_entry_comes_back_from_its_detail),
        cmocka_unit_test_setup_teardown(keys_that_are_inserted_ahead_go_with_the_transaction, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f25_a_new_key_is_locked_before_its_effect_runs, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f12_sweep_passes_over_what_is_locked, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f28_a_lane_is_held_by_one_transaction, with_schema, without_schema),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
