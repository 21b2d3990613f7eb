/* once_postgres_handle in the caller's transaction: what it commits, what it rolls back, and what a failing statement
 * costs. */
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

#include "once/once.h"
#include "postgres.h"

#ifndef ONCE_WITH_POSTGRES

int main(void)
{
    printf("1..1\nok 1 - postgres_handle # SKIP built without libpq\n");
    return 0;
}

#else

#include <libpq-fe.h>

#include "store/postgres/postgres.h"

static char url[400], schema[40];
static PGconn *pg;
static once_error err;
static const once_scope scope = {.consumer = ONCE_BYTES("payments")};
static const once_terms terms = {.size = sizeof terms, .backoff_min_ms = 1, .backoff_max_ms = 1, .attempts = 3};

static void sql(PGconn *conn, const char *text)
{
    PGresult *result = PQexec(conn, text);
    const ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) fail_msg("%s: %s", text, PQerrorMessage(conn));
    PQclear(result);
}

static int64_t ask(PGconn *conn, const char *text)
{
    PGresult *result = PQexec(conn, text);
    if (PQresultStatus(result) != PGRES_TUPLES_OK) fail_msg("%s: %s", text, PQerrorMessage(conn));
    const int64_t value = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return value;
}

static PGconn *connect_to(void)
{
    char conninfo[420];
    snprintf(conninfo, sizeof conninfo, "postgresql%s", url + strlen("postgres"));
    PGconn *conn = PQconnectdb(conninfo);
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    sql(conn, "SET client_min_messages = error");
    return conn;
}

static int setup(void **state)
{
    (void)state;
    const char *why;
    if (!test_postgres_url(&why)) return 0;
    once__pg_test_clock = NULL;
    snprintf(schema, sizeof schema, "once_handle_%d", (int)getpid());
    test_postgres_make(schema, url, sizeof url);
    pg = connect_to();
    sql(pg, "CREATE TABLE payment(n bigint GENERATED ALWAYS AS IDENTITY, id text UNIQUE, cents int CHECK (cents > 0))");
    if (once_postgres_prepare(pg, &err) != ONCE_OK) fail_msg("%s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (!pg) return 0;
    once_postgres_release(pg);
    PQfinish(pg);
    pg = NULL;
    test_postgres_unmake(schema);
    return 0;
}

typedef struct app {
    once_outcome outcome, on_error;
    const char *instead; /* SQL to run instead */
    int calls;
} app;

static once_outcome record_payment(void *user, const once_call *call, once_reply *reply)
{
    app *a = user;
    a->calls++;
    assert_true(call->pg && !call->db);
    char id[40];
    snprintf(id, sizeof id, "%.*s", (int)call->delivery->key.len, call->delivery->key.data);
    PGresult *result = a->instead ? PQexec(call->pg, a->instead)
                                  : PQexecParams(call->pg, "INSERT INTO payment(id, cents) VALUES ($1, 5)", 1, NULL,
                                                 (const char *const[]){id}, NULL, NULL, 0);
    const bool fine = PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK;
    PQclear(result);
    once_reply_result(reply, call->delivery->key);
    return fine ? a->outcome : a->on_error;
}

static int try_handle(PGconn *conn, const char *key, app *a, once_verdict *v)
{
    const once_delivery d = {.size = sizeof d, .key = {key, strlen(key)}, .body = ONCE_BYTES("{}"), .terms = &terms};
    return once_postgres_handle(conn, &scope, &d, record_payment, a, v, &err);
}

static once_verdict handle(PGconn *conn, const char *key, app *a)
{
    once_verdict v;
    const int rc = try_handle(conn, key, a, &v);
    if (rc != ONCE_OK) fail_msg("%s: %s", once_status_name(rc), err.text);
    return v;
}

static once_answer answer(PGconn *conn, const char *key, app *a)
{
    once_verdict v = handle(conn, key, a);
    const once_answer got = v.answer;
    if (got == ONCE_ANSWER_DUPLICATE && v.outcome == ONCE_DONE) {
        assert_true(v.was_duplicate && v.ack && v.result.len == strlen(key));
        assert_memory_equal(v.result.data, key, v.result.len);
    }
    once_verdict_release(&v);
    return got;
}

static void need_server(void)
{
    if (!pg) skip();
}

static void f03_it_stands_and_falls_with_the_callers_transaction(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_DONE};
    for (int round = 0; round < 3; round++) { /* rolled back it never was; also to a savepoint */
        sql(pg, "BEGIN");
        sql(pg, "SAVEPOINT mine");
        assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_RUN);
        assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_DUPLICATE);
        sql(pg, round == 1 ? "ROLLBACK TO mine; COMMIT" : round == 0 ? "ROLLBACK" : "COMMIT");
        assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), round == 2);
    }
    assert_int_equal(a.calls, 3);
    assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(answer(pg, "by itself", &a), ONCE_ANSWER_RUN); /* without a transaction */
    assert_int_equal(PQtransactionStatus(pg), PQTRANS_IDLE);
    assert_int_equal(PQpipelineStatus(pg), PQ_PIPELINE_OFF);
    assert_int_equal(ask(pg, "SELECT count(*) FROM once_entry"), 2);
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), 2);
}

/* What was given a number in a transaction that the caller rolled back has none. */
static void f03_names_are_rolled_back_with_the_callers_transaction(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_DONE}, dead = {.outcome = ONCE_DEAD};
    static const char *const endings[] = {"ROLLBACK", "ROLLBACK TO mine; COMMIT"};
    for (size_t i = 0; i < 2; i++) {
        sql(pg, "BEGIN");
        sql(pg, "SAVEPOINT mine");
        assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_RUN);
        assert_int_equal(answer(pg, "bad", &dead), ONCE_ANSWER_RUN);
        sql(pg, endings[i]);
        assert_int_equal(ask(pg, "SELECT count(*) FROM once_name"), 0);
    }
    assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(pg, "bad", &dead), ONCE_ANSWER_RUN);
    PGconn *other = connect_to(); /* which has kept nothing */
    if (once_postgres_prepare(other, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_int_equal(answer(other, "k", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(answer(other, "bad", &dead), ONCE_ANSWER_DEAD);
    once_postgres_release(other);
    PQfinish(other);
    once_store *store;
    if (once_store_open(url, NULL, &store, &err) != ONCE_OK) fail_msg("%s", err.text);
    once_ticket ticket = {0};
    const once_delivery d = {.size = sizeof d, .key = ONCE_BYTES("k"), .body = ONCE_BYTES("{}"), .terms = &terms};
    if (once_claim(store, &scope, &d, 1, &ticket, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_int_equal(ticket.answer, ONCE_ANSWER_DUPLICATE);
    once_ticket_release(&ticket, 1);
    once_store_close(store);
}

static void a_copy_that_the_handler_leaves_in_the_middle_ends(void **state)
{
    (void)state;
    need_server();
    once_verdict v;
    sql(pg, "INSERT INTO payment(id, cents) VALUES ('there', 1)");
    app in = {.outcome = ONCE_DONE, .on_error = ONCE_DONE, .instead = "COPY payment(id) FROM STDIN"},
        out = {.outcome = ONCE_DONE, .on_error = ONCE_DONE, .instead = "COPY payment TO STDOUT"};
    assert_int_equal(try_handle(pg, "in", &in, &v), ONCE_E_MESSAGE);
    assert_int_equal(PQtransactionStatus(pg), PQTRANS_IDLE);
    v = handle(pg, "out", &out);
    assert_int_equal(v.outcome, ONCE_DONE);
    once_verdict_release(&v);
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), 1);
}

static void a_failing_statement_does_not_cost_the_callers_transaction(void **state)
{
    (void)state;
    need_server();
    sql(pg, "INSERT INTO payment(id, cents) VALUES ('there', 1)");
    app already = {.outcome = ONCE_DONE, .on_error = ONCE_ALREADY},
        liar = {.outcome = ONCE_DONE, .on_error = ONCE_DONE},
        dead = {
            .outcome = ONCE_DONE, .on_error = ONCE_DEAD, .instead = "INSERT INTO payment(id, cents) VALUES ('x', -1)"};
    sql(pg, "BEGIN");
    sql(pg, "INSERT INTO payment(id, cents) VALUES ('callers own', 1)");
    once_verdict v = handle(pg, "there", &already);
    assert_true(v.answer == ONCE_ANSWER_RUN && v.outcome == ONCE_ALREADY && v.ack);
    once_verdict_release(&v);
    assert_int_equal(
        try_handle(pg, "there too", &(app){.outcome = ONCE_DONE, .on_error = ONCE_DONE, .instead = "SELECT 1/0"}, &v),
        ONCE_E_MESSAGE);
    assert_int_equal(PQtransactionStatus(pg), PQTRANS_INTRANS);
    v = handle(pg, "bad", &dead);
    assert_int_equal(v.outcome, ONCE_DEAD);
    once_verdict_release(&v);
    sql(pg, "COMMIT");
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), 2);
    assert_int_equal(ask(pg, "SELECT count(*) FROM once_letter"), 1);
    assert_int_equal(answer(pg, "there", &already), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(answer(pg, "there too", &liar), ONCE_ANSWER_RUN); /* nothing had been written of it */
}

static void retries_are_counted_with_the_commit(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_RETRY};
    for (int i = 0; i < 3; i++) {
        once_verdict v;
        do {
            usleep(2000);
            sql(pg, "BEGIN");
            v = handle(pg, "k", &a);
            sql(pg, "COMMIT");
        } while (v.answer == ONCE_ANSWER_LATER);
        assert_int_equal(v.outcome, i < 2 ? ONCE_RETRY : ONCE_DEAD);
        once_verdict_release(&v);
    }
    assert_int_equal(a.calls, 3);
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), 0);
    assert_int_equal(ask(pg, "SELECT count(*) FROM once_letter"), 1);
}

static void wrong_use_is_refused(void **state)
{
    (void)state;
    need_server();
    once_verdict v;
    app a = {.outcome = ONCE_DONE}, ends = {.outcome = ONCE_DONE, .instead = "COMMIT"};
    PGconn *other = connect_to();
    assert_int_equal(try_handle(other, "k", &a, &v), ONCE_E_USAGE);
    sql(other, "BEGIN");
    assert_int_equal(once_postgres_prepare(other, &err), ONCE_E_USAGE);
    PQfinish(other);
    sql(pg, "BEGIN");
    PQclear(PQexec(pg, "SELECT 1/0"));
    assert_int_equal(try_handle(pg, "k", &a, &v), ONCE_E_ABORTED);
    sql(pg, "ROLLBACK");
    sql(pg, "BEGIN");
    assert_int_equal(try_handle(pg, "k", &ends, &v), ONCE_E_ABORTED);
    if (PQtransactionStatus(pg) != PQTRANS_IDLE) sql(pg, "ROLLBACK");
    assert_int_equal(a.calls, 0);
    assert_int_equal(once_postgres_prepare(pg, &err), ONCE_OK); /* a second time: nothing */
    sql(pg, "BEGIN");
    assert_int_equal(answer(pg, "after all", &a), ONCE_ANSWER_RUN); /* and the connection still works */
    sql(pg, "COMMIT");
    once_postgres_release(NULL);
}

enum { KEYS = 60, WORKERS = 4 };
typedef struct worker {
    pthread_t thread;
    PGconn *conn;
    int ran, failed;
} worker;

static void *work(void *user)
{
    worker *w = user;
    for (int i = 0; i < KEYS; i++) {
        char key[16];
        once_verdict v;
        once_error why;
        app a = {.outcome = ONCE_DONE};
        snprintf(key, sizeof key, "k%d", i);
        const once_delivery d = {.size = sizeof d, .key = {key, strlen(key)}, .terms = &terms};
        PQclear(PQexec(w->conn, "BEGIN"));
        const int rc = once_postgres_handle(w->conn, &scope, &d, record_payment, &a, &v, &why);
        PQclear(PQexec(w->conn, rc == ONCE_OK ? "COMMIT" : "ROLLBACK"));
        if (rc == ONCE_OK) {
            w->ran += v.answer == ONCE_ANSWER_RUN;
            w->failed += v.answer != ONCE_ANSWER_RUN && v.answer != ONCE_ANSWER_DUPLICATE;
            once_verdict_release(&v);
        } else if (once_status_class(rc) == ONCE_CLASS_RETRY) {
            i--;
        } else {
            w->failed++;
        }
    }
    return NULL;
}

static void f25_four_workers_on_the_same_keys(void **state)
{
    (void)state;
    need_server();
    worker workers[WORKERS] = {{0}};
    for (int i = 0; i < WORKERS; i++) {
        workers[i].conn = connect_to();
        if (once_postgres_prepare(workers[i].conn, &err) != ONCE_OK) fail_msg("%s", err.text);
    }
    for (int i = 0; i < WORKERS; i++) assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    int ran = 0, failed = 0;
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        ran += workers[i].ran;
        failed += workers[i].failed;
        once_postgres_release(workers[i].conn);
        PQfinish(workers[i].conn);
    }
    assert_int_equal(failed, 0);
    assert_int_equal(ran, KEYS);
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), KEYS);
}

/* What we prepared is there under names that say what it is; the second store on the connection uses it. */
static void a_connection_is_prepared_again_after_its_release(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_DONE};
    for (int i = 0; i < 3; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        once_postgres_release(pg);
        if (once_postgres_prepare(pg, &err) != ONCE_OK) fail_msg("%s", err.text);
        assert_int_equal(answer(pg, key, &a), ONCE_ANSWER_RUN);
    }
    const int64_t ours = ask(pg, "SELECT count(*) FROM pg_prepared_statements");
    once_postgres_release(pg);
    assert_int_equal(once_postgres_prepare(pg, &err), ONCE_OK);
    assert_int_equal(ask(pg, "SELECT count(*) FROM pg_prepared_statements"), ours);
}

/* What is set in the session. */
static void settings(char out[4000])
{
    PGresult *result = PQexec(pg, "SELECT coalesce(string_agg(name || '=' || setting, ' ' ORDER BY name), '') FROM "
                                  "pg_settings WHERE source = 'session'");
    assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
    snprintf(out, 4000, "%s", PQgetvalue(result, 0, 0));
    PQclear(result);
}

/* The connection is lent: timeouts and the like are for its owner to set. */
static void the_settings_of_a_session_that_is_lent_stay(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_DONE};
    char before[4000], after[4000];
    once_postgres_release(pg);
    sql(pg, "RESET ALL; SET statement_timeout = '7min'");
    settings(before);
    assert_non_null(strstr(before, "statement_timeout="));
    if (once_postgres_prepare(pg, &err) != ONCE_OK) fail_msg("%s", err.text);
    assert_int_equal(answer(pg, "k", &a), ONCE_ANSWER_RUN);
    sql(pg, "BEGIN");
    assert_int_equal(answer(pg, "in a transaction", &a), ONCE_ANSWER_RUN);
    sql(pg, "COMMIT");
    settings(after);
    assert_string_equal(after, before);
}

/* Whoever empties the session takes our statements with it. That is noticed, and from then on none are prepared. */
static void f88_a_session_that_was_emptied(void **state)
{
    (void)state;
    need_server();
    app a = {.outcome = ONCE_DONE};
    once_verdict v;
    assert_int_equal(answer(pg, "before", &a), ONCE_ANSWER_RUN);
    sql(pg, "DEALLOCATE ALL");
    assert_int_equal(try_handle(pg, "behind", &a, &v), ONCE_E_ABORTED);
    assert_int_equal(a.calls, 1);
    assert_int_equal(answer(pg, "behind", &a), ONCE_ANSWER_RUN);
    assert_int_equal(answer(pg, "behind", &a), ONCE_ANSWER_DUPLICATE);
    assert_int_equal(ask(pg, "SELECT count(*) FROM payment"), 2);
}

enum { POOLED = 3, EACH = 40 };

/* Programs of several schemas in two sessions of a pooler, each transaction in whichever is free. */
static void f88_several_callers_in_the_sessions_of_a_pooler(void **state)
{
    (void)state;
    char names[POOLED][40], insert[POOLED][160], text[200];
    PGconn *conns[POOLED];
    app apps[POOLED];
    for (int i = 0; i < POOLED; i++) {
        snprintf(names[i], sizeof names[i], "once_pooled_%d_%d", (int)getpid(), i);
        if (!test_pooler_make(names[i], url, sizeof url)) skip(); /* and there connect_to goes */
        snprintf(text, sizeof text, "CREATE TABLE %s.payment(id text)", names[i]);
        test_postgres_run(text);
        snprintf(insert[i], sizeof insert[i], "INSERT INTO %s.payment VALUES ('x')", names[i]);
        conns[i] = connect_to();
        if (once_postgres_prepare(conns[i], &err) != ONCE_OK) fail_msg("%s", err.text);
        apps[i] = (app){.outcome = ONCE_DONE, .instead = insert[i]};
    }
    for (int k = 0; k < EACH; k++) {
        for (int i = 0; i < POOLED; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", k % (EACH / 2 + i)); /* some twice */
            if (k % 2) sql(conns[i], "BEGIN");
            answer(conns[i], key, &apps[i]);
            if (k % 2) sql(conns[i], k % 8 == 7 ? "ROLLBACK" : "COMMIT");
        }
    }
    for (int i = 0; i < POOLED; i++) {
        char count[200];
        PGconn *direct = conns[i];
        snprintf(count, sizeof count, "SELECT count(*) FROM %s.once_entry WHERE expires_ms IS NOT NULL", names[i]);
        const int64_t entries = ask(direct, count);
        snprintf(count, sizeof count, "SELECT count(*) FROM %s.payment", names[i]);
        assert_int_equal(ask(direct, count), entries);
        assert_in_range(entries, EACH / 2 - 6, EACH / 2 + i);
        assert_int_equal(ask(direct, "SELECT count(*) FROM pg_prepared_statements"), 0);
        once_postgres_release(conns[i]);
        PQfinish(conns[i]);
        test_postgres_unmake(names[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_copy_that_the_handler_leaves_in_the_middle_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(a_connection_is_prepared_again_after_its_release, setup, teardown),
        cmocka_unit_test_setup_teardown(the_settings_of_a_session_that_is_lent_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(f88_a_session_that_was_emptied, setup, teardown),
        cmocka_unit_test(f88_several_callers_in_the_sessions_of_a_pooler),
        cmocka_unit_test_setup_teardown(f03_it_stands_and_falls_with_the_callers_transaction, setup, teardown),
        cmocka_unit_test_setup_teardown(f03_names_are_rolled_back_with_the_callers_transaction, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failing_statement_does_not_cost_the_callers_transaction, setup, teardown),
        cmocka_unit_test_setup_teardown(retries_are_counted_with_the_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_use_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(f25_four_workers_on_the_same_keys, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
