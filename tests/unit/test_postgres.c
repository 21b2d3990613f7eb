/* The parts of the postgres store that need no server: words of the user's SQL, the detail of a finished entry,
 * SQLSTATEs. And with one: what only several connections show. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
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

#include "db/postgres/postgres.h"
#include "store/postgres/detail.h"
#include "store/postgres/postgres.h"

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
        "COMMIT",
        "  rollback",
        "/* a /* nested */ comment */ END",
        "-- x\nBEGIN",
        "Set x = 1",
        "reset all",
        "SAVEPOINT a",
        "release a",
        "abort",
        "PREPARE TRANSACTION 'x'",
        "COPY t FROM STDIN",
        "vacuum t",
        "DELETE FROM once_entry",
        "SELECT * FROM a JOIN ONCE_meta ON true",
        "DELETE FROM public.\"once_live\"",
        "UPDATE t SET a = 1; COMMIT",
        "",
        " ; ",
        "-- nothing",
        "SELECT 1; SELECT 2",
        "DISCARD ALL",
        "DELETE FROM U&\"\\006fnce_entry\"",
        "SELECT set_config('role', 'x', false)",
        "SELECT pg_catalog.\"set_config\"('a.b', 'c', true)",
        "\xef\xbb\xbf\x43OMMIT",
        "-- a\rCOMMIT /*\nSELECT 1 */",
        "-- a\rSAVEPOINT x",
        "--\r\rset role a",
        "SELECT 1 -- a\r FROM once_entry /*\n*/",
        "SELECT E'a'\n'\\'', (SELECT max(id) FROM once_entry), ''",
    };
    static const char *const good[] = {
        "INSERT INTO t VALUES (?1, 'COMMIT; once_entry')",
        "SELECT \"a;b\", 'it''s; ', E'\\'; COMMIT', $$; COMMIT $$, $x$ ; once_meta $x$ FROM t",
        "UPDATE t SET begin = 1 /* once_entry; COMMIT */ -- COMMIT\n;",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x;",
        "SELECT nonce_x, a.once FROM t",
        "SELECT 1e5, x'0f', ?1::bigint",
        "SELECT U&'\\0061', u, u & 1, 'set_config'",
        "-- COMMIT\r\nSELECT 1",
        "-- COMMIT\rSELECT 1 -- once_entry",
        "SELECT E'a'\r\n'\\' once_entry ', 'b'\n'once_entry'",
        "SELECT E'a' 'once_entry\\'",
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
        {NULL, ONCE_CLASS_RETRY},      {"08006", ONCE_CLASS_RETRY},   {"57P01", ONCE_CLASS_RETRY},
        {"57P03", ONCE_CLASS_RETRY},   {"40001", ONCE_CLASS_RETRY},   {"40P01", ONCE_CLASS_RETRY},
        {"55P03", ONCE_CLASS_RETRY},   {"53300", ONCE_CLASS_RETRY},   {"53100", ONCE_CLASS_PAUSE},
        {"42P01", ONCE_CLASS_PAUSE},   {"42501", ONCE_CLASS_PAUSE},   {"28P01", ONCE_CLASS_PAUSE},
        {"25006", ONCE_CLASS_PAUSE},   {"23505", ONCE_CLASS_MESSAGE}, {"22P02", ONCE_CLASS_MESSAGE},
        {"P0001", ONCE_CLASS_MESSAGE}, {"XX001", ONCE_CLASS_FATAL},   {"58030", ONCE_CLASS_FATAL},
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
    assert_true(back.state == e->state && back.attempt == e->attempt && back.failures == e->failures &&
                back.seen_ms == e->seen_ms);
    assert_true(back.changed_ms == e->changed_ms && back.expires_ms == e->expires_ms);
    assert_true(numbers.scope == names.scope && numbers.place == names.place && numbers.run == names.run &&
                numbers.who == names.who);
    const once_bytes *const pairs[][2] = {{&e->at.point, &back.at.point},
                                          {&e->result, &back.result},
                                          {&e->reason, &back.reason},
                                          {&e->history, &back.history}};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pairs[i][0]->len, pairs[i][1]->len);
        if (pairs[i][0]->len) assert_memory_equal(pairs[i][0]->data, pairs[i][1]->data, pairs[i][0]->len);
    }
    assert_memory_equal(&e->fields, &back.fields, sizeof back.fields);
    for (size_t len = 0; len < buf.len && e->history.len;
         len++) { /* what is cut is not taken for whole, or is shorter */
        once_entry cut;
        if (once__pg_detail_read((once_bytes){buf.data, len}, e->expires_ms, &cut, &numbers))
            assert_true(cut.history.len < e->history.len);
    }
    once_buf_release(&buf);
}

static void a_finished_entry_comes_back_from_its_detail(void **state)
{
    (void)state;
    const int64_t now = TEST_EPOCH_MS, week = INT64_C(7) * 24 * 3600 * 1000;
    once_entry e = {.state = ONCE_STATE_DONE,
                    .attempt = 1,
                    .seen_ms = now,
                    .changed_ms = now,
                    .expires_ms = now + week,
                    .at.point = ONCE_BYTES("123456")};
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 14);
    e.fields = (once_fields){.n = 5, .prints = {1, 1, 300, 40000, 65535}};
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 25);
    e.fields.n = ONCE_FIELDS_MAX;
    for (uint16_t i = 0; i < ONCE_FIELDS_MAX; i++) e.fields.prints[i] = i;
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 47);
    e.fields = (once_fields){0};
    e.expires_ms = ONCE_FOREVER;
    read_back(&e, (once_pg_names_of){1, 2, 3, 4}, 14);
    e = (once_entry){.state = ONCE_STATE_STALE,
                     .attempt = UINT32_MAX,
                     .failures = 300,
                     .seen_ms = now + 5,
                     .changed_ms = now,
                     .expires_ms = now + 1,
                     .reason = ONCE_BYTES("why not")};
    read_back(&e, (once_pg_names_of){INT32_MAX, 200, 70000, 4}, 60);
    e.result = ONCE_BYTES("a\0b");
    e.at.point = ONCE_BYTES("17");
    e.seen_ms = 0;
    e.expires_ms = INT64_MAX - 1;
    read_back(&e, (once_pg_names_of){1, 1, 1, INT32_MAX}, 80);
    e.fields = (once_fields){.n = 1, .prints = {7}};
    e.history = ONCE_BYTES("1 5 retry me@here:1 why not\n");
    read_back(&e, (once_pg_names_of){1, 1, 1, 1}, 120);
    e.result = e.reason = (once_bytes){0};
    read_back(&e, (once_pg_names_of){1, 1, 1, 1}, 120);
    once_entry out;
    once_pg_names_of numbers;
    assert_false(once__pg_detail_read((once_bytes){0}, 5, &out, &numbers));
    assert_false(once__pg_detail_read((once_bytes){"\x10\x01\x01\x01\x01", 5}, 5, &out,
                                      &numbers)); /* fields, and nothing behind them */
    assert_false(once__pg_detail_read((once_bytes){"\x10\x02\x01\x01\x01\x35\x01\x01\x01\x01\x01", 11}, 5, &out,
                                      &numbers)); /* in the wrong order */
    assert_false(
        once__pg_detail_read((once_bytes){"\x01\x01\x01\x01\x01", 5}, 5, &out, &numbers)); /* claimed is not finished */
    assert_false(once__pg_detail_read((once_bytes){"\x35\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 13}, 5, &out,
                                      &numbers));
}

/* ---- with a server ---- */

static test_env world;
static char url[400], schema[40];

static int with_schema(void **state)
{
    const char *why;
    if (!test_postgres_url(&why)) return 0;
    (void)state;
    test_env_init(&world, 7);
    test_postgres_set_clock();
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

static once_backend *open_one(void)
{
    const once_store_options options = {
        .size = sizeof options, .env = &world.env, .create = true, .consumer = {schema, strlen(schema)}};
    once_backend *store = NULL;
    once_error err;
    if (once__store_open(url, &options, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    return store;
}

static const once_scope scope = {{"", 0}, {"c", 1}, {"op", 2}};

static once_request ask(const once_backend *store, const char *key, uint64_t token)
{
    const once_bytes bytes = {key, strlen(key)};
    return (once_request){.scope = &scope,
                          .key = bytes,
                          .id = once_key_id(store->secret, &scope, bytes),
                          .token = {token, 1},
                          .lane = {.gap_ms = -1},
                          .lease_ms = 1000,
                          .remember_ms = 5000,
                          .sent_ms = ONCE_NO_TIME};
}

static once_answer claim(once_backend *store, const once_request *r)
{
    once_decision d;
    once_arena arena = {0};
    once_error err;
    if (store->ops->claim(store, &r, 1, &d, &arena, &err) != ONCE_OK) fail_msg("%s", err.text);
    once_arena_release(&arena);
    return d.answer;
}

static void settle(once_backend *store, const once_request *r)
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
    once_backend *store = open_one();
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

/* ---- a store that is restored under its workers ---- */

static void run_in_schema(const char *sql)
{
    char text[900];
    snprintf(text, sizeof text, "SET search_path = %s; %s", schema, sql);
    test_postgres_run(text);
}

/* The connections of our stores end; it may be another server that answers the next one. */
static void end_sessions(void)
{
    char sql[200];
    snprintf(sql, sizeof sql,
             "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'once:%s'",
             schema);
    test_postgres_run(sql);
}

static int in_transaction(once_backend *store, const char *key, uint64_t token)
{
    const once_request r = ask(store, key, token), *requests = &r;
    const once_settlement done = {.request = &r, .outcome = ONCE_DONE};
    once_decision d;
    once_arena arena = {0};
    bool applied;
    int rc = store->ops->begin(store, NULL);
    if (rc != ONCE_OK) return rc;
    rc = store->ops->claim(store, &requests, 1, &d, &arena, NULL);
    if (rc == ONCE_OK) rc = store->ops->settle(store, &done, 1, &applied, NULL);
    if (rc == ONCE_OK) rc = store->ops->commit(store, NULL);
    else store->ops->rollback(store);
    once_arena_release(&arena);
    return rc;
}

/* The backup is from before all names, or from a time when other ones had the numbers. */
static const char *const restored[] = {
    "DELETE FROM once_name",
    ("TRUNCATE once_name RESTART IDENTITY; INSERT INTO once_name(name)"
     " SELECT ('\\x50'::bytea || n::text::bytea) FROM generate_series(1, 40) AS n"),
    "UPDATE once_name SET name = name || random()::text::bytea WHERE get_byte(name, 0) = 87",
};

static void write_behind_restores(bool between_verbs)
{
    once_backend *store = open_one();
    once_arena arena = {0};
    once_error err;
    once_entry entry;
    for (uint64_t i = 0; i < 2 * sizeof restored / sizeof *restored; i++) {
        char before[16], behind[16], direct[16];
        snprintf(before, sizeof before, "before%d%d", between_verbs, (int)i);
        snprintf(behind, sizeof behind, "behind%d%d", between_verbs, (int)i);
        snprintf(direct, sizeof direct, "verbs%d%d", between_verbs, (int)i);
        assert_int_equal(in_transaction(store, before, 10 * i + 1), ONCE_OK); /* so that names are known */
        const once_request r = ask(store, direct, 10 * i + 2);
        if (between_verbs) assert_int_equal(claim(store, &r), ONCE_ANSWER_RUN);
        run_in_schema(restored[i / 2]);
        if (i % 2) end_sessions();
        int rc = ONCE_E_ABORTED;
        for (int tries = 0; tries < 4 && once_status_class(rc) == ONCE_CLASS_RETRY; tries++)
            rc = in_transaction(store, behind, 10 * i + 3);
        assert_int_equal(rc, ONCE_OK);
        if (between_verbs) settle(store, &r);
        once_backend *other = open_one(); /* which knows no names */
        if (other->ops->get(other, ask(store, behind, 1).id, &entry, &arena, &err) != ONCE_OK)
            fail_msg("%s: %s", restored[i / 2], err.text);
        assert_int_equal(entry.state, ONCE_STATE_DONE);
        assert_true(entry.scope.consumer.len == 1 && entry.scope.consumer.data[0] == 'c' &&
                    entry.who.len == strlen(store->who));
        assert_memory_equal(entry.who.data, store->who, entry.who.len);
        if (between_verbs && other->ops->get(other, r.id, &entry, &arena, &err) != ONCE_OK)
            fail_msg("%s: %s", restored[i / 2], err.text);
        assert_int_equal(entry.state, ONCE_STATE_DONE);
        once__store_close(other);
    }
    once_arena_release(&arena);
    once__store_close(store);
}

static void f82_numbers_that_a_restored_store_does_not_have_are_not_written(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    write_behind_restores(false);
    write_behind_restores(true);
}

static void f82_a_store_that_is_restored_behind_a_pooler(void **state)
{
    (void)state;
    if (!test_pooler_make(schema, url, sizeof url)) fail_msg("no PgBouncer could be started");
    write_behind_restores(false);
    write_behind_restores(true);
}

/* A name that a transaction made goes with it when it is rolled back, although the newest name that it has seen is
 * somebody else's, and stays. */
static void f03_names_of_a_transaction_that_is_rolled_back_are_not_used(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    const once_scope own = {{"", 0}, {"c", 1}, {"of its own", 10}}, others = {{"", 0}, {"c", 1}, {"of others", 9}};
    once_backend *store = open_one(), *other = open_one();
    once_arena arena = {0};
    once_error err;
    once_entry entry;
    once_request first = ask(store, "first", 1), second = ask(store, "second", 2), theirs = ask(store, "theirs", 3);
    second.scope = &own;
    theirs.scope = &others;
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_equal(claim(store, &first), ONCE_ANSWER_RUN);
    assert_int_equal(claim(store, &second), ONCE_ANSWER_RUN); /* its name is made here */
    settle(store, &second);
    assert_int_equal(other->ops->begin(other, &err), ONCE_OK);
    assert_int_equal(claim(other, &theirs), ONCE_ANSWER_RUN);
    settle(other, &theirs);
    assert_int_equal(other->ops->commit(other, &err), ONCE_OK);
    assert_int_equal(claim(store, &theirs),
                     ONCE_ANSWER_DUPLICATE); /* and here it learns that of others, which is newer */
    store->ops->rollback(store);

    second.token.a = 4;
    assert_int_equal(store->ops->begin(store, &err), ONCE_OK);
    assert_int_equal(claim(store, &second), ONCE_ANSWER_RUN);
    settle(store, &second);
    assert_int_equal(store->ops->commit(store, &err), ONCE_OK);
    once_backend *reader = open_one(); /* which knows no names */
    if (reader->ops->get(reader, second.id, &entry, &arena, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_int_equal(entry.state, ONCE_STATE_DONE);
    assert_int_equal(entry.scope.operation.len, own.operation.len);
    once_arena_release(&arena);
    once__store_close(reader);
    once__store_close(other);
    once__store_close(store);
}

typedef struct rival {
    once_backend *store;
    once_answer answer;
    once_state state;
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

static bool somebody_waits_for(const char *query)
{
    char conninfo[420], sql[200];
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    snprintf(sql, sizeof sql, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%s%%'",
             query);
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *result = PQexec(conn, sql);
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
    once_backend *one = open_one();
    rival other = {.store = open_one()};
    once_error err;
    pthread_t thread;
    const once_request r = ask(one, "a", 1);
    assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
    assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
    assert_int_equal(pthread_create(&thread, NULL, claim_second, &other), 0);
    bool waited = false;
    for (int i = 0; i < 2000 && !waited; i++) {
        waited = somebody_waits_for("INSERT INTO %.once_entry");
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

/* ---- batches in which every key is new ---- */

enum { TRIO = 3 };

typedef struct trio {
    char names[TRIO][24];
    once_request requests[TRIO];
} trio;

/* `new_ones` counts keys. */
static void make_trio(const once_backend *store, const char *known, unsigned *new_ones, trio *out)
{
    for (size_t i = 0; i < TRIO; i++) {
        snprintf(out->names[i], sizeof out->names[i], "new %u", ++*new_ones);
        out->requests[i] = ask(store, known && i == 1 ? known : out->names[i], 1000 + *new_ones);
    }
}

static int claim_trio(once_backend *store, const trio *t, const uint64_t *locks, size_t n_locks,
                      once_answer answers[TRIO], once_error *err)
{
    const once_request *list[TRIO];
    once_touch touched[TRIO];
    once_decision decisions[TRIO];
    once_arena arena = {0};
    for (size_t i = 0; i < TRIO; i++) {
        list[i] = &t->requests[i];
        touched[i] = (once_touch){list[i], ONCE_TOUCH_CLAIM};
    }
    int rc = store->ops->begin(store, err);
    if (rc == ONCE_OK) rc = store->ops->expect(store, touched, TRIO, false, locks, n_locks, err);
    if (rc == ONCE_OK) rc = store->ops->claim(store, list, TRIO, decisions, &arena, err);
    for (size_t i = 0; rc == ONCE_OK && i < TRIO; i++) answers[i] = decisions[i].answer;
    once_arena_release(&arena);
    return rc;
}

static int settle_trio(once_backend *store, const trio *t, const once_answer answers[TRIO], once_error *err)
{
    once_settlement done[TRIO];
    bool applied[TRIO];
    size_t n = 0;
    for (size_t i = 0; i < TRIO; i++)
        if (answers[i] == ONCE_ANSWER_RUN)
            done[n++] = (once_settlement){.request = &t->requests[i], .outcome = ONCE_DONE};
    const int rc = n ? store->ops->settle(store, done, n, applied, err) : ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < n; i++) assert_true(applied[i]);
    return rc;
}

/* A batch as the executor makes it: it says what it is about, claims, settles what it may run, and commits; and does so
 * again when the store has guessed wrong. */
static void run_trio_with(once_backend *store, const char *known, const uint64_t *locks, size_t n_locks,
                          unsigned *new_ones, once_answer answers[TRIO])
{
    trio t;
    once_error err;
    int rc = ONCE_E_ABORTED;
    make_trio(store, known, new_ones, &t);
    for (int pass = 0; pass < 2 && rc == ONCE_E_ABORTED; pass++) {
        rc = claim_trio(store, &t, locks, n_locks, answers, &err);
        if (rc == ONCE_OK) rc = settle_trio(store, &t, answers, &err);
        if (rc == ONCE_OK) rc = store->ops->commit(store, &err);
        else store->ops->rollback(store);
    }
    if (rc != ONCE_OK) fail_msg("%s", err.text);
}

static void run_trio(once_backend *store, const char *known, unsigned *new_ones, once_answer answers[TRIO])
{
    run_trio_with(store, known, NULL, 0, new_ones, answers);
}

static const once_pg_guess *guess_of(const once_backend *store) { return &((const once_postgres *)store)->guess; }

/* Batches of new keys, until the next one is expected to be of new keys, too. */
static void run_until_new_keys_are_expected(once_backend *store, unsigned *new_ones)
{
    once_answer answers[TRIO];
    for (int i = 0; i < 100 && !(guess_of(store)->needed && guess_of(store)->streak >= guess_of(store)->needed); i++)
        run_trio(store, NULL, new_ones, answers);
    run_trio(store, NULL, new_ones, answers);
    assert_true(guess_of(store)->expected);
    for (size_t i = 0; i < TRIO; i++) assert_int_equal(answers[i], ONCE_ANSWER_RUN);
}

static int64_t rows_in(const char *table)
{
    char conninfo[420], sql[200];
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s.%s", schema, table);
    PGconn *conn = PQconnectdb(conninfo);
    PGresult *result = PQexec(conn, sql);
    const int64_t n = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    PQfinish(conn);
    return n;
}

/* Whatever is known of it: it is found, its neighbours run, and it is not tried again so soon. */
static void f14_a_known_key_among_new_ones_is_found(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one(), *other = open_one();
    const once_request done = ask(other, "done", 1), claimed = ask(other, "claimed", 2);
    assert_int_equal(claim(other, &done), ONCE_ANSWER_RUN);
    settle(other, &done);
    assert_int_equal(claim(other, &claimed), ONCE_ANSWER_RUN);
    static const struct {
        const char *key;
        once_answer answer;
    } known[] = {{"done", ONCE_ANSWER_DUPLICATE}, {"claimed", ONCE_ANSWER_BUSY}};
    unsigned new_ones = 0, runs = 0;
    once_answer answers[TRIO];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const unsigned before = new_ones;
        run_until_new_keys_are_expected(store, &new_ones);
        runs += new_ones - before;
        const unsigned needed = guess_of(store)->needed;
        assert_true(new_ones - before > TRIO * needed);
        run_trio(store, known[i].key, &new_ones, answers);
        runs += 2;
        assert_int_equal(answers[0], ONCE_ANSWER_RUN);
        assert_int_equal(answers[1], known[i].answer);
        assert_int_equal(answers[2], ONCE_ANSWER_RUN);
        assert_false(guess_of(store)->expected);
        assert_int_equal(guess_of(store)->streak, 0);
        assert_int_equal(guess_of(store)->needed, 2 * needed);
    }
    assert_int_equal(rows_in("once_entry"), runs + 2);
    once__store_close(store);
    once__store_close(other);
}

static void exec_on(PGconn *conn, const char *sql)
{
    PGresult *result = PQexec(conn, sql);
    const bool fine = PQresultStatus(result) == PGRES_COMMAND_OK;
    PQclear(result);
    if (!fine) fail_msg("%s: %s", sql, PQerrorMessage(conn));
}

/* What was presumed of new keys is known before anything is committed: by the settlements, by effects that are waited
 * for, or by the commit itself. */
static void f25_what_is_presumed_of_keys_is_known_before_the_commit(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    static const char *const keys[] = {"x", "y", "z"};
    unsigned new_ones = 0;
    for (int step = 0; step < 3; step++) {
        once_backend *store = open_one(), *other = open_one();
        const once_request done = ask(other, keys[step], 1);
        once_answer answers[TRIO];
        once_error err;
        trio t;
        assert_int_equal(claim(other, &done), ONCE_ANSWER_RUN);
        settle(other, &done);
        run_until_new_keys_are_expected(store, &new_ones);
        const int64_t rows = rows_in("once_entry");
        make_trio(store, keys[step], &new_ones, &t);
        assert_int_equal(claim_trio(store, &t, NULL, 0, answers, &err), ONCE_OK);
        assert_true(guess_of(store)->expected);
        const int rc = step == 0   ? store->ops->commit(store, &err)
                       : step == 1 ? settle_trio(store, &t, answers, &err)
                                   : once_db_confirm(&((once_postgres *)store)->pg->db, &err);
        assert_int_equal(rc, ONCE_E_ABORTED);
        assert_non_null(strstr(err.text, "seemed new"));
        store->ops->rollback(store);
        assert_int_equal(rows_in("once_entry"), rows);
        assert_int_equal(guess_of(store)->streak, 0);
        once__store_close(store);
        once__store_close(other);
    }
}

/* Somebody's trigger swallows what is inserted: then nothing is committed. */
static void f25_a_key_that_was_not_inserted_is_not_presumed(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one();
    once_answer answers[TRIO];
    unsigned new_ones = 0;
    once_error err;
    trio t;
    run_until_new_keys_are_expected(store, &new_ones);
    run_in_schema("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
                  " CREATE TRIGGER swallow BEFORE INSERT ON once_entry FOR EACH ROW EXECUTE FUNCTION swallow()");
    make_trio(store, NULL, &new_ones, &t);
    assert_int_equal(claim_trio(store, &t, NULL, 0, answers, &err), ONCE_OK);
    assert_true(guess_of(store)->expected);
    const int64_t facts = rows_in("once_fact");
    assert_int_equal(store->ops->fact_set(store, "beside", ONCE_BYTES("1"), &err), ONCE_OK);
    assert_int_equal(store->ops->commit(store, &err), ONCE_E_CORRUPT);
    assert_int_equal(rows_in("once_fact"), facts);
    once__store_close(store);
}

/* A duplicate of what is finished waits for nobody who has a lock on it; what is not finished is locked and read. */
static void f25_a_key_that_was_met_is_locked_unless_it_is_finished(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one(), *other = open_one();
    const once_request claimed = ask(other, "claimed", 2);
    char conninfo[420], sql[200];
    once_answer answers[TRIO];
    unsigned new_ones = 0;
    assert_int_equal(claim(other, &claimed), ONCE_ANSWER_RUN);
    run_trio(store, "done", &new_ones, answers);
    run_trio(store, "claimed", &new_ones, answers);
    assert_int_equal(answers[1], ONCE_ANSWER_BUSY);
    run_until_new_keys_are_expected(store, &new_ones);
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    snprintf(sql, sizeof sql, "SET search_path = %s; BEGIN; UPDATE once_entry SET detail = detail", schema);
    PGconn *conn = PQconnectdb(conninfo);
    exec_on(conn, sql);
    run_trio(store, "done", &new_ones, answers);
    assert_int_equal(answers[1], ONCE_ANSWER_DUPLICATE);
    assert_true(guess_of(store)->expected);
    PQfinish(conn); /* and with it its locks */
    run_trio(store, "claimed", &new_ones, answers);
    assert_int_equal(answers[1], ONCE_ANSWER_BUSY);
    assert_true(guess_of(store)->expected);
    once__store_close(store);
    once__store_close(other);
}

/* It is looked for instead of inserted, and found in any state; new ones beside it go on being expected. */
static void a_key_that_was_met_before_is_looked_for(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one();
    unsigned new_ones = 0;
    once_answer answers[TRIO];
    run_trio(store, "met", &new_ones, answers);
    assert_int_equal(answers[1], ONCE_ANSWER_RUN);
    run_until_new_keys_are_expected(store, &new_ones);
    const unsigned streak = guess_of(store)->streak, needed = guess_of(store)->needed, before = new_ones;
    for (unsigned i = 1; i <= 3; i++) {
        run_trio(store, "met", &new_ones, answers);
        assert_int_equal(answers[0], ONCE_ANSWER_RUN);
        assert_int_equal(answers[1], ONCE_ANSWER_DUPLICATE);
        assert_int_equal(answers[2], ONCE_ANSWER_RUN);
        assert_true(guess_of(store)->expected);
        assert_int_equal(guess_of(store)->streak, streak + i);
        assert_int_equal(guess_of(store)->needed, needed);
    }
    assert_int_equal(rows_in("once_entry"), before + 3 * 2);
    once__store_close(store);
}

/* Forgotten, or expired and swept: then it is new, and the batch begins anew. */
static void a_key_that_was_met_and_is_gone_is_new(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one();
    unsigned new_ones = 0;
    once_answer answers[TRIO];
    run_trio(store, "met", &new_ones, answers);
    run_until_new_keys_are_expected(store, &new_ones);
    const unsigned needed = guess_of(store)->needed;
    run_in_schema("DELETE FROM once_entry");
    run_trio(store, "met", &new_ones, answers);
    for (size_t i = 0; i < TRIO; i++) assert_int_equal(answers[i], ONCE_ANSWER_RUN);
    assert_false(guess_of(store)->expected);
    assert_int_equal(guess_of(store)->needed, 2 * needed);
    assert_int_equal(rows_in("once_entry"), TRIO);
    run_trio(store, "met", &new_ones, answers);
    assert_int_equal(answers[1], ONCE_ANSWER_DUPLICATE);
    once__store_close(store);
}

static once_hash nth_id(uint64_t n) { return once_xxh128(0, &n, sizeof n); }

static void keys_that_were_met_are_known_in_bounded_memory(void **state)
{
    enum { MANY = 200000, TOO_MANY = 3000000, LATELY = 100000 };
    (void)state;
    once_pg_seen seen = {0};
    size_t unknown = 0;
    assert_false(once__pg_seen_has(&seen, nth_id(1)));
    for (uint64_t i = 0; i < MANY; i++) once__pg_seen_add(&seen, nth_id(i));
    for (uint64_t i = 0; i < MANY; i++) unknown += !once__pg_seen_has(&seen, nth_id(i));
    assert_int_equal(unknown, 0);
    for (uint64_t i = MANY; i < 2 * MANY; i++) unknown += !once__pg_seen_has(&seen, nth_id(i));
    assert_int_equal(unknown, MANY);
    const size_t n = seen.n;
    once__pg_seen_add(&seen, nth_id(7));
    assert_int_equal(seen.n, n);
    for (uint64_t i = MANY; i < TOO_MANY; i++) once__pg_seen_add(&seen, nth_id(i));
    assert_true(seen.n <= 1 << 20);
    unknown = 0;
    for (uint64_t i = TOO_MANY - LATELY; i < TOO_MANY; i++) unknown += !once__pg_seen_has(&seen, nth_id(i));
    assert_true(unknown < LATELY / 100);
    once__pg_seen_release(&seen);
}

static void *run_trio_with_a(void *user)
{
    rival *s = user;
    once_answer answers[TRIO];
    unsigned new_ones = 1000;
    run_trio(s->store, "a", &new_ones, answers);
    s->answer = answers[1];
    return NULL;
}

static void f25_a_key_that_is_expected_to_be_new_is_waited_for(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    const size_t len = strlen(url); /* it ends with the options: whoever waits does so until it has been seen */
    snprintf(url + len, sizeof url - len, "%s", "%20-clock_timeout%3D60s");
    for (int commits = 0; commits < 2; commits++) {
        once_backend *one = open_one();
        rival other = {.store = open_one()};
        unsigned new_ones = commits ? 100 : 0;
        run_until_new_keys_are_expected(other.store, &new_ones);
        once_error err;
        pthread_t thread;
        const once_request r = ask(one, "a", 1);
        assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
        assert_int_equal(pthread_create(&thread, NULL, run_trio_with_a, &other), 0);
        bool waited = false;
        for (int i = 0; i < 2000 && !waited; i++) {
            waited = somebody_waits_for("INSERT INTO %.once_entry");
            if (!waited) usleep(5000);
        }
        settle(one, &r);
        if (commits) assert_int_equal(one->ops->commit(one, &err), ONCE_OK);
        else one->ops->rollback(one);
        pthread_join(thread, NULL);
        assert_true(waited);
        assert_int_equal(other.answer, commits ? ONCE_ANSWER_DUPLICATE : ONCE_ANSWER_RUN);
        once__store_close(one);
        once__store_close(other.store);
        if (!commits) run_in_schema("DELETE FROM once_entry");
    }
}

enum { NAMED = 4711 };

static void *run_named_trio(void *user)
{
    rival *s = user;
    const uint64_t name = NAMED;
    once_answer answers[TRIO];
    unsigned new_ones = 1000;
    run_trio_with(s->store, "done", &name, 1, &new_ones, answers);
    s->answer = answers[1];
    return NULL;
}

/* A wrong guess costs a batch that has queued its turn, or what it names. It queues again, and somebody else may have
 * it then. */
static void f91_a_wrong_guess_in_the_queue_is_corrected(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    rival other = {.store = open_one()};
    const once_request done = ask(other.store, "done", 1);
    assert_int_equal(claim(other.store, &done), ONCE_ANSWER_RUN);
    settle(other.store, &done);
    unsigned new_ones = 0;
    run_until_new_keys_are_expected(other.store, &new_ones);
    const unsigned needed = guess_of(other.store)->needed;
    char conninfo[420], sql[100];
    pthread_t thread;
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    snprintf(sql, sizeof sql, "BEGIN; SELECT pg_advisory_xact_lock(%d)", NAMED);
    PGconn *conn = PQconnectdb(conninfo);
    PQclear(PQexec(conn, sql));
    assert_int_equal(pthread_create(&thread, NULL, run_named_trio, &other), 0);
    usleep(300000);
    PQclear(PQexec(conn, "COMMIT"));
    PQfinish(conn);
    pthread_join(thread, NULL);
    assert_int_equal(other.answer, ONCE_ANSWER_DUPLICATE);
    assert_int_equal(guess_of(other.store)->needed, 2 * needed);
    once__store_close(other.store);
}

static void accept_in(once_backend *store, const once_request *r)
{
    const once_message message = {.body = ONCE_BYTES("x"), .sent_ms = ONCE_NO_TIME}, *messages = &message;
    once_decision d;
    once_arena arena = {0};
    assert_int_equal(store->ops->accept(store, &r, &messages, 1, &d, &arena, NULL), ONCE_OK);
    once_arena_release(&arena);
}

static void *get_it(void *user)
{
    rival *s = user;
    const once_request r = ask(s->store, "a", 1);
    once_entry entry = {0};
    once_arena arena = {0};
    s->rc = s->store->ops->get(s->store, r.id, &entry, &arena, NULL);
    s->state = entry.state;
    once_arena_release(&arena);
    return NULL;
}

/* An entry has rows in two tables, which are read by two statements. One that is written between these is not damage.
 */
static void who_looks_sees_one_moment(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    rival one = {.store = open_one()};
    const once_request r = ask(one.store, "a", 1);
    char conninfo[420], sql[200];
    pthread_t thread;
    accept_in(one.store, &r);
    get_it(&one); /* prepares its statements */
    assert_int_equal(one.state, ONCE_STATE_WAITING);
    run_in_schema("CREATE TABLE entry AS SELECT * FROM once_entry; CREATE TABLE live AS SELECT * FROM once_live;"
                  " DELETE FROM once_live; DELETE FROM once_entry");
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    PGconn *conn = PQconnectdb(conninfo);
    snprintf(sql, sizeof sql, "SET search_path = %s; BEGIN; LOCK TABLE once_live IN ACCESS EXCLUSIVE MODE", schema);
    exec_on(conn, sql);
    assert_int_equal(pthread_create(&thread, NULL, get_it, &one), 0);
    bool waited = false;
    for (int i = 0; i < 2000 && !waited; i++) {
        waited = somebody_waits_for("%once_live");
        if (!waited) usleep(5000);
    }
    exec_on(conn, "INSERT INTO once_entry SELECT * FROM entry; INSERT INTO once_live SELECT * FROM live; COMMIT");
    pthread_join(thread, NULL);
    PQfinish(conn);
    assert_true(waited);
    assert_int_equal(one.rc, ONCE_OK);
    assert_int_equal(one.state, ONCE_STATE_ABSENT); /* as it was when it began to look */
    get_it(&one);
    assert_int_equal(one.state, ONCE_STATE_WAITING);
    once__store_close(one.store);
}

/* Two workers get the same new keys and lanes in different orders. Both lock the lowest first, so neither waits for the
 * other in a ring. Without that the server would end one of them as a deadlock. */
typedef struct pair {
    once_backend *store;
    once_request requests[2];
    once_decision decisions[2];
    int rc;
    once_error err;
} pair;

static void *claim_pair(void *user)
{
    pair *p = user;
    const once_request *requests[] = {&p->requests[0], &p->requests[1]};
    once_arena arena = {0};
    p->rc = p->store->ops->begin(p->store, &p->err);
    if (p->rc == ONCE_OK) p->rc = p->store->ops->claim(p->store, requests, 2, p->decisions, &arena, &p->err);
    p->store->ops->rollback(p->store);
    once_arena_release(&arena);
    return NULL;
}

static bool is_lower(once_hash x, once_hash y) { return x.a != y.a ? x.a < y.a : x.b < y.b; }

static void claim_in_different_orders(bool lanes)
{
    once_backend *one = open_one();
    pair other = {.store = open_one()};
    once_error err;
    pthread_t thread;
    once_request low = ask(one, "a", 1), high = ask(one, "b", 1);
    if (lanes)
        low.lane.id = once_lane_id(one->secret, &scope, ONCE_BYTES("a")),
        high.lane.id = once_lane_id(one->secret, &scope, ONCE_BYTES("b"));
    if (lanes ? is_lower(high.lane.id, low.lane.id) : is_lower(high.id, low.id)) {
        const once_request swap = low;
        low = high;
        high = swap;
    }
    other.requests[0] = high;
    other.requests[1] = low;
    if (lanes) { /* other keys of the same lanes */
        other.requests[0].id = ask(one, "c", 1).id;
        other.requests[1].id = ask(one, "d", 1).id;
    }
    other.requests[0].token.a = other.requests[1].token.a = 2;
    assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
    assert_int_equal(claim(one, &low), ONCE_ANSWER_RUN);
    assert_int_equal(pthread_create(&thread, NULL, claim_pair, &other), 0);
    bool waited = false;
    for (int i = 0; i < 4000 && !waited; i++) {
        waited = somebody_waits_for(lanes ? "INSERT INTO %.once_lane" : "INSERT INTO %.once_entry");
        if (!waited) usleep(5000);
    }
    assert_int_equal(claim(one, &high), ONCE_ANSWER_RUN); /* the other one has not touched it yet */
    one->ops->rollback(one);
    pthread_join(thread, NULL);
    once__store_close(one);
    once__store_close(other.store);
    assert_true(waited);
    if (other.rc != ONCE_OK) fail_msg("%s", other.err.text);
    assert_int_equal(other.decisions[0].answer, ONCE_ANSWER_RUN);
    assert_int_equal(other.decisions[1].answer, ONCE_ANSWER_RUN);
}

static void f91_new_keys_are_inserted_in_one_order(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    claim_in_different_orders(false);
}

static void f91_new_lanes_are_inserted_in_one_order(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    claim_in_different_orders(true);
}

/* Sweeping takes what has expired and passes over what another transaction holds. */
static void f12_sweep_passes_over_what_is_locked(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *one = open_one(), *two = open_one();
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

/* Rows are looked for once and dropped in several steps. Where an expired one was, another may be by then. */
static void f12_what_took_the_place_of_an_expired_row_stays(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *one = open_one();
    once_error err;
    char key[8], sql[200];
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "a%d", i);
        const once_request r = ask(one, key, 100 + (uint64_t)i);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
        settle(one, &r);
    }
    test_env_pass(&world, 5000);
    once_sweep_result swept;
    assert_int_equal(one->ops->sweep(one, 2, &swept, &err), ONCE_OK);
    assert_true(swept.dropped == 2 && swept.more);
    snprintf(sql, sizeof sql, "TRUNCATE %s.once_entry", schema);
    test_postgres_run(sql);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "b%d", i);
        const once_request r = ask(one, key, 200 + (uint64_t)i);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
        settle(one, &r);
    }
    while (swept.more) {
        assert_int_equal(one->ops->sweep(one, 2, &swept, &err), ONCE_OK);
        assert_int_equal(swept.dropped, 0);
    }
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "b%d", i);
        const once_request r = ask(one, key, 300 + (uint64_t)i);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_DUPLICATE);
    }
    once__store_close(one);
}

/* From its first step to its last there is one sweeper, also in the pauses between them; a closed one leaves the field
 * at once. */
static void f12_one_sweeps_and_the_others_know(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *one = open_one(), *two = open_one();
    once_error err;
    for (int i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof key, "o%d", i);
        const once_request r = ask(one, key, 100 + (uint64_t)i);
        assert_int_equal(claim(one, &r), ONCE_ANSWER_RUN);
        settle(one, &r);
    }
    test_env_pass(&world, 5000);
    once_sweep_result swept;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(one->ops->sweep(one, 2, &swept, &err), ONCE_OK);
        assert_true(swept.dropped == 2 && swept.more && swept.pause_ms > 0 && !swept.busy);
        assert_int_equal(two->ops->sweep(two, 2, &swept, &err), ONCE_OK);
        assert_true(swept.dropped == 0 && !swept.more && swept.busy);
    }
    once__store_close(one);
    uint64_t dropped = 0;
    do {
        assert_int_equal(two->ops->sweep(two, 3, &swept, &err), ONCE_OK);
        assert_false(swept.busy);
        dropped += swept.dropped;
    } while (swept.more);
    assert_int_equal(dropped, 94);
    one = open_one();
    assert_int_equal(one->ops->sweep(one, 2, &swept, &err),
                     ONCE_OK); /* two is through, and does not stand in the way */
    assert_true(swept.dropped == 0 && !swept.more && !swept.busy);
    once__store_close(one);
    once__store_close(two);
}

/* A worker that has a lane keeps others out of it until it commits; take does not wait for it. */
static void f28_a_lane_is_held_by_one_transaction(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *one = open_one(), *two = open_one();
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
    assert_int_equal(
        two->ops->take(two, scope.consumer, (once_token){50, 1}, false, 1000, 2, NULL, taken, &n, &arena, &err),
        ONCE_OK);
    assert_int_equal(n, 0);
    one->ops->rollback(one);
    assert_int_equal(
        two->ops->take(two, scope.consumer, (once_token){51, 1}, false, 1000, 2, NULL, taken, &n, &arena, &err),
        ONCE_OK);
    assert_int_equal(n, 1);
    once_arena_release(&arena);
    once__store_close(one);
    once__store_close(two);
}

typedef struct taker {
    once_backend *store;
    size_t n;
    int rc;
    atomic_bool over;
} taker;

static void *take_again(void *user)
{
    taker *t = user;
    once_taken taken[2];
    once_arena arena = {0};
    t->rc = t->store->ops->take(t->store, scope.consumer, (once_token){50, 1}, true, 1000, 2, NULL, taken, &t->n,
                                &arena, NULL);
    once_arena_release(&arena);
    atomic_store(&t->over, true);
    return NULL;
}

static bool waits_for_a_lane(const taker *t)
{
    char query[80];
    snprintf(query, sizeof query, "%%%s.once_lane", schema);
    for (int i = 0; i < 2000 && !atomic_load(&t->over); i++) {
        if (somebody_waits_for(query)) return true;
        usleep(5000);
    }
    return false;
}

/* A message that has come to another lane while take waited for the one that it was seen in: should somebody have that
 * one, it is left alone. Whoever waited for it would have locked an entry before its lane. */
static void f91_take_does_not_wait_for_a_second_lane(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *one = open_one(), *two = open_one();
    taker t = {.store = open_one(), .n = 9};
    once_error err;
    pthread_t thread;
    once_request requests[] = {ask(one, "a", 1), ask(one, "b", 2), ask(one, "behind a", 3), ask(one, "behind b", 4)};
    for (int i = 0; i < 4; i++)
        requests[i].lane.id = once_lane_id(one->secret, &scope, i % 2 ? ONCE_BYTES("second") : ONCE_BYTES("first"));
    accept_in(one, &requests[0]);
    once_taken taken[2];
    once_arena arena = {0};
    assert_int_equal(t.store->ops->take(t.store, scope.consumer, (once_token){50, 1}, false, 1000, 2, NULL, taken, &t.n,
                                        &arena, &err),
                     ONCE_OK);
    assert_int_equal(t.n, 1);
    accept_in(one, &requests[1]);
    assert_int_equal(one->ops->begin(one, &err), ONCE_OK);
    assert_int_equal(claim(one, &requests[2]), ONCE_ANSWER_LATER); /* holds the first lane */
    assert_int_equal(pthread_create(&thread, NULL, take_again, &t), 0);
    const bool waited = waits_for_a_lane(&t);
    run_in_schema("UPDATE once_live l SET lane = (SELECT a.id FROM once_lane a WHERE a.id <> l.lane) WHERE state = 1");
    assert_int_equal(two->ops->begin(two, &err), ONCE_OK);
    assert_int_equal(claim(two, &requests[3]), ONCE_ANSWER_LATER); /* holds the second one */
    one->ops->rollback(one);
    const bool waits_again = waits_for_a_lane(&t);
    two->ops->rollback(two);
    pthread_join(thread, NULL);
    once_arena_release(&arena);
    once__store_close(one);
    once__store_close(two);
    once__store_close(t.store);
    assert_true(waited && !waits_again);
    assert_int_equal(t.rc, ONCE_OK);
    assert_int_equal(t.n, 0);
}

/* ---- round trips ---- */

enum { BATCH = 1000 };

static struct {
    once_backend *store;
    once_pg *pg;
    once_stmt *insert;
    once_arena arena;
    once_request requests[BATCH];
    uint64_t trips, tokens;
} many;

static uint64_t trips_since(void)
{
    const uint64_t before = many.trips;
    many.trips = many.pg->trips;
    return many.trips - before;
}

static int with_many(void **state)
{
    const char *why;
    with_schema(state);
    if (!test_postgres_url(&why)) return 0;
    many.store = open_one();
    many.pg = ((once_postgres *)many.store)->pg;
    once_error err;
    assert_int_equal(once_db_script(&many.pg->db, ONCE_BYTES("CREATE TABLE t(n bigint CONSTRAINT t_n UNIQUE)"), &err),
                     ONCE_OK);
    assert_int_equal(once_db_prepare(&many.pg->db, ONCE_BYTES("INSERT INTO t VALUES (?1)"), &many.insert, &err),
                     ONCE_OK);
    return 0;
}

static int without_many(void **state)
{
    const char *why;
    if (test_postgres_url(&why)) {
        once_stmt_free(many.insert);
        once_arena_release(&many.arena);
        once__store_close(many.store);
    }
    return without_schema(state);
}

/* A batch of new keys, claimed. */
static int claim_batch(const char *prefix)
{
    static once_decision decisions[BATCH];
    const once_request *list[BATCH];
    once_error err;
    if (many.store->ops->begin(many.store, &err) != ONCE_OK) fail_msg("%s", err.text);
    trips_since();
    many.tokens++;
    for (size_t i = 0; i < BATCH; i++) {
        char *key = once_arena_alloc(&many.arena, 24);
        snprintf(key, 24, "%s%zu", prefix, i);
        many.requests[i] = ask(many.store, key, many.tokens);
        many.requests[i].token.b = i;
        list[i] = &many.requests[i];
    }
    const int rc = many.store->ops->claim(many.store, list, BATCH, decisions, &many.arena, &err);
    for (size_t i = 0; rc == ONCE_OK && i < BATCH; i++) assert_int_equal(decisions[i].answer, ONCE_ANSWER_RUN);
    return rc;
}

/* Its effects, sent and presumed; the one at `bad` repeats the one before. */
static void send_batch(int64_t from, size_t bad)
{
    once_fault fault;
    once_error err;
    for (size_t i = 0; i < BATCH; i++) {
        const once_value value = {.type = ONCE_VALUE_INTEGER, .integer = from + (int64_t)(i == bad ? i - 1 : i)};
        assert_int_equal(once_stmt_send(many.insert, &value, 1, &fault), ONCE_OK);
    }
    if (once_db_presume(&many.pg->db, &err) != ONCE_OK) fail_msg("%s", err.text);
}

static void settle_batch(once_outcome outcome)
{
    static once_settlement settlements[BATCH];
    static const once_message message = {.body = {"x", 1}, .sent_ms = ONCE_NO_TIME};
    bool applied[BATCH];
    once_error err;
    for (size_t i = 0; i < BATCH; i++)
        settlements[i] = (once_settlement){
            .request = &many.requests[i], .outcome = outcome, .message = outcome == ONCE_DEAD ? &message : NULL};
    if (many.store->ops->settle(many.store, settlements, BATCH, applied, &err) != ONCE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < BATCH; i++) assert_true(applied[i]);
}

static int64_t rows_of(const char *table)
{
    char sql[200];
    PGresult *result;
    once_error err;
    snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", table);
    if (once__pg_exec(many.pg, sql, &result, &err) != ONCE_OK) fail_msg("%s", err.text);
    const int64_t n = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return n;
}

/* The locks, and then effects, settlements, facts and COMMIT: two. Dead letters need none of their own. */
static void a_batch_costs_two_round_trips(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_error err;
    assert_int_equal(claim_batch("first"), ONCE_OK);
    settle_batch(ONCE_DONE);
    assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_OK); /* names are known now */

    assert_int_equal(claim_batch("a"), ONCE_OK);
    assert_int_equal(trips_since(), 1);
    send_batch(0, BATCH);
    settle_batch(ONCE_DONE);
    assert_int_equal(many.store->ops->fact_set(many.store, "cursor", ONCE_BYTES("17"), &err), ONCE_OK);
    assert_int_equal(trips_since(), 0);
    assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_OK);
    assert_int_equal(trips_since(), 1);
    assert_int_equal(rows_of("t"), BATCH);

    assert_int_equal(claim_batch("b"), ONCE_OK);
    settle_batch(ONCE_DEAD);
    assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_OK);
    assert_int_equal(trips_since(), 2);
    assert_int_equal(rows_of("once_letter"), BATCH);

    once_bytes value;
    assert_int_equal(many.store->ops->fact_get(many.store, "cursor", &value, &many.arena, &err), ONCE_OK);
    assert_true(value.len == 2 && memcmp(value.data, "17", 2) == 0);
}

/* Whoever asks next, or the commit, is told that a message is at fault; nothing is there; and the connection goes on.
 */
static void f10_what_was_presumed_and_failed_is_not_committed(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_error err;
    for (int step = 0; step < 6; step++) {
        assert_int_equal(claim_batch("a"), ONCE_OK);
        const PGconn *conn = many.pg->conn;
        send_batch(0, 500);
        settle_batch(step == 5 ? ONCE_DEAD : ONCE_DONE); /* with 5 the COMMIT is not alone in its round */
        const once_request other = ask(many.store, "other", 9), *list = &other;
        once_decision decision;
        int rc = ONCE_E_BUG;
        switch (step) {
        case 0:
        case 5: rc = many.store->ops->commit(many.store, &err); break;
        case 1: rc = many.store->ops->claim(many.store, &list, 1, &decision, &many.arena, &err); break;
        case 2: rc = once_db_confirm(&many.pg->db, &err); break;
        case 3:
            send_batch(BATCH, BATCH); /* a second group */
            rc = many.store->ops->commit(many.store, &err);
            break;
        default: rc = ONCE_E_MESSAGE; /* a rollback that nobody was told the reason for */
        }
        assert_int_equal(rc, ONCE_E_MESSAGE);
        many.store->ops->rollback(many.store);
        assert_ptr_equal(many.pg->conn, conn);
        assert_int_equal(rows_of("t"), 0);
        assert_int_equal(rows_of("once_entry"), 0);
        assert_int_equal(rows_of("once_letter"), 0);
    }
}

/* What is only checked at commit is the message's fault, too; also when that was made after the statements were
 * prepared. */
static void f03_what_is_owed_to_the_commit_is_found_by_it(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_error err;
    char sql[200];
    snprintf(sql, sizeof sql,
             "ALTER TABLE %s.t DROP CONSTRAINT t_n; ALTER TABLE %s.t ADD CONSTRAINT t_n UNIQUE (n) DEFERRABLE "
             "INITIALLY DEFERRED",
             schema, schema);
    test_postgres_run(sql);
    many.pg->deferrable = false; /* as it was when we looked, unless another test had one in this database */
    assert_int_equal(claim_batch("a"), ONCE_OK);
    send_batch(0, 500);
    settle_batch(ONCE_DONE);
    assert_int_equal(once_db_confirm(&many.pg->db, &err), ONCE_OK);
    assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_E_MESSAGE);
    assert_true(once_db_may_defer(&many.pg->db));
    assert_int_equal(rows_of("t"), 0);
    assert_int_equal(rows_of("once_entry"), 0);
}

/* Somebody has ended the transaction in between, and begun another one: what was claimed in the first is not settled by
 * the second. */
static void f78_effects_that_are_in_another_transaction_are_not_committed(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_error err;
    assert_int_equal(claim_batch("a"), ONCE_OK);
    assert_int_equal(once__pg_exec(many.pg, "ROLLBACK; BEGIN", NULL, &err), ONCE_OK);
    send_batch(0, BATCH);
    settle_batch(ONCE_DONE);
    assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_E_COMMIT_UNKNOWN);
    assert_non_null(strstr(err.text, "it is another transaction"));
    assert_non_null(strstr(err.text, "it is not known what of it was committed"));
    assert_null(strstr(err.text, "nothing was committed"));
    assert_null(many.pg->conn); /* nobody knows what that session is */
    assert_int_equal(once__pg_connect(many.pg, 0, &err), ONCE_OK);
    assert_int_equal(rows_of("t"), 0);
}

/* Whatever a statement of the store returns, its shape says so. */
static void f93_shapes_are_what_the_server_says(void **state)
{
    (void)state;
    static const struct {
        char letter;
        unsigned type;
    } types[] = {{'q', PG_INT8}, {'i', PG_INT4}, {'h', PG_INT2},  {'b', PG_BOOL},
                 {'u', PG_UUID}, {'d', PG_TID},  {'y', PG_BYTEA}, {'t', PG_TEXT}};
    const char *why;
    if (!test_postgres_url(&why)) skip();
    assert_true(PQexitPipelineMode(many.pg->conn));
    for (size_t i = 0; i < many.pg->n_sql; i++) {
        const once_pg_text *text = &many.pg->sql[i];
        PGresult *said = PQdescribePrepared(many.pg->conn, text->name);
        char letters[64] = "";
        for (int k = 0; k < PQnfields(said); k++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                if (types[t].type == PQftype(said, k)) letters[k] = types[t].letter;
        char shape[64];
        snprintf(shape, sizeof shape, "%s", text->shape[0] ? text->shape + 1 : "");
        for (char *c = shape; *c; c++) *c = (char)(*c | 0x20);
        if (strcmp(shape, letters) != 0) fail_msg("'%s' returns '%s', and not '%s'", text->sql, letters, shape);
        PQclear(said);
    }
    assert_true(PQenterPipelineMode(many.pg->conn));
}

/* A thousand letters in one statement; of equal ones the first is new. */
static void letters_of_a_batch_share_a_round_trip(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    static once_letter letters[BATCH];
    static char points[BATCH][24];
    bool fresh[BATCH];
    once_error err;
    for (size_t i = 0; i < BATCH; i++) {
        snprintf(points[i], sizeof points[i], "%zu", i % 900);
        letters[i] = (once_letter){.scope = scope,
                                   .reason = ONCE_BYTES("no JSON"),
                                   .kind = ONCE_ANSWER_DEAD,
                                   .message = {.body = ONCE_BYTES("{"),
                                               .sent_ms = ONCE_NO_TIME,
                                               .at = {ONCE_BYTES("in"), {points[i], strlen(points[i])}}}};
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(many.store->ops->begin(many.store, &err), ONCE_OK);
        trips_since();
        if (many.store->ops->bury(many.store, letters, BATCH, fresh, &err) != ONCE_OK) fail_msg("%s", err.text);
        assert_int_equal(many.store->ops->commit(many.store, &err), ONCE_OK);
        assert_int_equal(trips_since(), 4); /* BEGIN, whether some were discarded, letters, COMMIT */
        for (size_t i = 0; i < BATCH; i++) assert_int_equal(fresh[i], !again && i < 900);
        assert_int_equal(rows_of("once_letter"), 900);
    }
    static char large[1 << 20]; /* of these not all fit into one statement */
    memset(large, 'x', sizeof large);
    for (size_t i = 0; i < 40; i++) letters[i].message.body = (once_bytes){large, sizeof large};
    if (many.store->ops->bury(many.store, letters, 40, fresh, &err) != ONCE_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < 40; i++) assert_true(fresh[i]);
    assert_int_equal(rows_of("once_letter"), 940);
    assert_int_equal(rows_of("(SELECT FROM once_letter WHERE id - (SELECT min(id) FROM once_letter) = encode(point, "
                             "'escape')::int AND length(body) = 1) AS ordered"),
                     900);
}

/* How the server would run a statement of the store, in a plan for any parameters. */
static void plan_of(once_postgres *q, unsigned statement, const char *parameters, char *out, size_t size)
{
    char sql[6000], explain[100];
    once_error err;
    PGresult *plan;
    snprintf(sql, sizeof sql,
             "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; PREPARE looked_at AS %s",
             q->pg->sql[statement].sql);
    snprintf(explain, sizeof explain, "EXPLAIN (COSTS OFF) EXECUTE looked_at(%s)", parameters);
    if (once__pg_exec(q->pg, sql, NULL, &err) != ONCE_OK || once__pg_exec(q->pg, explain, &plan, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    size_t at = 0;
    for (int i = 0; i < PQntuples(plan); i++)
        at += (size_t)snprintf(out + at, size - at, "%s\n", PQgetvalue(plan, i, 0));
    PQclear(plan);
    if (once__pg_exec(q->pg, "DEALLOCATE looked_at", NULL, &err) != ONCE_OK) fail_msg("%s", err.text);
}

/* Plans are kept: one that is made while a table is empty must not read all of it, once for each id, when it is full.
 */
static void plans_of_empty_tables_find_rows_by_their_ids(void **state)
{
    (void)state;
    static const struct {
        unsigned statement;
        const char *table, *index;
    } table[] = {
        {PG_LIVE_READ, "once_live", "once_live_pkey"},    {PG_LIVE_READ, "once_body", "once_body_pkey"},
        {PG_LIVE_DELETE, "once_live", "once_live_pkey"},  {PG_LIVE_LANES, "once_live", "once_live_pkey"},
        {PG_ENTRY_LOCK, "once_entry", "once_entry_pkey"}, {PG_LETTERS_GET, "once_letter", "once_letter_pkey"},
    };
    const char *why;
    char plan[4000], scan[100];
    once_error err;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one();
    once_postgres *q = (once_postgres *)store;
    if (once__pg_exec(q->pg, "VACUUM (ANALYZE) once_live, once_body, once_entry, once_letter", NULL, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        plan_of(q, table[i].statement, "NULL", plan, sizeof plan);
        snprintf(scan, sizeof scan, "using %s on %s", table[i].index, table[i].table);
        const char *at = strstr(plan, scan);
        if (!at || !strstr(at, "Index Cond: (id = ") || strstr(plan, "Filter: (id") || strstr(plan, "Join Filter"))
            fail_msg("%s\n%s", table[i].table, plan);
    }
    once__store_close(store);
}

/* Also in a store of before: whoever may make the index makes it. */
static void letters_of_a_key_are_found_without_reading_all(void **state)
{
    (void)state;
    const char *why;
    char plan[4000];
    once_error err;
    if (!test_postgres_url(&why)) skip();
    for (int before = 0; before < 2; before++) {
        once_backend *store = open_one();
        once_postgres *q = (once_postgres *)store;
        if (once__pg_exec(q->pg, "VACUUM (ANALYZE) once_letter", NULL, &err) != ONCE_OK) fail_msg("%s", err.text);
        plan_of(q, PG_LETTERS_OF_KEY, "NULL, NULL, NULL, NULL", plan, sizeof plan);
        if (!strstr(plan, "once_letter_key") || strstr(plan, "once_letter_consumer") ||
            strstr(plan, "once_letter_pkey"))
            fail_msg("%s", plan);
        if (once__pg_exec(q->pg, "DROP INDEX once_letter_key", NULL, &err) != ONCE_OK) fail_msg("%s", err.text);
        once__store_close(store);
    }
}

/* Tables as version 1 had them, with an entry that waits without a body. */
static void f58_version_1_is_brought_up_to_date(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) skip();
    once_backend *store = open_one();
    once_error err;
    once_arena arena = {0};
    once_entry entry;
    once_request r = ask(store, "waits", 1);
    assert_int_equal(claim(store, &r), ONCE_ANSWER_RUN);
    const once_settlement release = {.request = &r, .outcome = ONCE_RELEASE};
    bool applied;
    assert_int_equal(store->ops->settle(store, &release, 1, &applied, &err), ONCE_OK);
    if (once__pg_exec(((once_postgres *)store)->pg,
                      "DROP INDEX once_live_expires; ALTER TABLE once_live RENAME COLUMN marks TO flags; ALTER TABLE "
                      "once_live DROP COLUMN failing_ms, DROP COLUMN fields; ALTER TABLE once_lane DROP COLUMN record; "
                      "ALTER TABLE once_audit DROP COLUMN body;"
                      " ALTER TABLE once_letter DROP COLUMN count, DROP COLUMN last_ms;"
                      " UPDATE once_live SET expires_ms = 0; UPDATE once_meta SET value = '1' WHERE name = 'version'",
                      NULL, &err) != ONCE_OK)
        fail_msg("%s", err.text);
    once__store_close(store);
    store = open_one();
    assert_int_equal(store->ops->get(store, r.id, &entry, &arena, &err), ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_WAITING);
    assert_true(entry.expires_ms == entry.changed_ms + r.remember_ms);
    const once_audit act = {.consumer = scope.consumer, .who = ONCE_BYTES("me"), .what = ONCE_BYTES("forget")};
    assert_int_equal(store->ops->audit(store, &act, &err), ONCE_OK);
    once__store_close(store);
    once__store_close(open_one()); /* it is what it says that it is */
    once_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f78_words_of_others_are_refused),
        cmocka_unit_test(f48_classes_of_sqlstates),
        cmocka_unit_test(a_finished_entry_comes_back_from_its_detail),
        cmocka_unit_test_setup_teardown(keys_that_are_inserted_ahead_go_with_the_transaction, with_schema,
                                        without_schema),
        cmocka_unit_test_setup_teardown(plans_of_empty_tables_find_rows_by_their_ids, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(letters_of_a_key_are_found_without_reading_all, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f58_version_1_is_brought_up_to_date, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f25_a_new_key_is_locked_before_its_effect_runs, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f14_a_known_key_among_new_ones_is_found, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(a_key_that_was_met_before_is_looked_for, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(a_key_that_was_met_and_is_gone_is_new, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f25_what_is_presumed_of_keys_is_known_before_the_commit, with_schema,
                                        without_schema),
        cmocka_unit_test_setup_teardown(f25_a_key_that_was_not_inserted_is_not_presumed, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f25_a_key_that_was_met_is_locked_unless_it_is_finished, with_schema,
                                        without_schema),
        cmocka_unit_test(keys_that_were_met_are_known_in_bounded_memory),
        cmocka_unit_test_setup_teardown(f25_a_key_that_is_expected_to_be_new_is_waited_for, with_schema,
                                        without_schema),
        cmocka_unit_test_setup_teardown(f91_a_wrong_guess_in_the_queue_is_corrected, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(who_looks_sees_one_moment, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f91_new_keys_are_inserted_in_one_order, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f91_new_lanes_are_inserted_in_one_order, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f12_sweep_passes_over_what_is_locked, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f12_what_took_the_place_of_an_expired_row_stays, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f12_one_sweeps_and_the_others_know, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f82_numbers_that_a_restored_store_does_not_have_are_not_written, with_schema,
                                        without_schema),
        cmocka_unit_test_setup_teardown(f82_a_store_that_is_restored_behind_a_pooler, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f03_names_of_a_transaction_that_is_rolled_back_are_not_used, with_schema,
                                        without_schema),
        cmocka_unit_test_setup_teardown(f28_a_lane_is_held_by_one_transaction, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(f91_take_does_not_wait_for_a_second_lane, with_schema, without_schema),
        cmocka_unit_test_setup_teardown(a_batch_costs_two_round_trips, with_many, without_many),
        cmocka_unit_test_setup_teardown(f10_what_was_presumed_and_failed_is_not_committed, with_many, without_many),
        cmocka_unit_test_setup_teardown(f03_what_is_owed_to_the_commit_is_found_by_it, with_many, without_many),
        cmocka_unit_test_setup_teardown(f78_effects_that_are_in_another_transaction_are_not_committed, with_many,
                                        without_many),
        cmocka_unit_test_setup_teardown(f93_shapes_are_what_the_server_says, with_many, without_many),
        cmocka_unit_test_setup_teardown(letters_of_a_batch_share_a_round_trip, with_many, without_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
