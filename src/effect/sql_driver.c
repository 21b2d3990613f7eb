/* SQL in a database that is not the store's. Each thread has a connection of its own, and the statements of a message
 * are one transaction on it:
 *
 *   the claim is durable -> BEGIN, statements, COMMIT -> the outcome is settled
 *
 * Until COMMIT is sent, a failure means that nothing has happened. From then until its answer, the outcome is
 * unknown.
 *
 * A question about such an unknown (`lookup`) is a SELECT in a transaction that is rolled back: a row means done, none
 * that there was no effect. */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/failpoint.h"
#include "base/no_memory.h"
#include "effect/sql_statements.h"
#include "effect/threads.h"

#include "base/banned.h"

enum {
    TRIES = 5,
    PAUSE_MS = 20
}; /* of what collides with others: the longest pause behind the first try, doubled behind each */

/* Of one thread. */
typedef struct connection {
    atomic_bool stop; /* what runs on the connection must end */
    once_db *db;      /* NULL: not connected yet. Another thread may look with the lock */
    once_stmt **statements;
    once_stmt **lookup; /* NULL: there is none */
    bool committing;    /* with the lock: COMMIT is sent */
    bool waited;        /* with the lock: it was past its deadline while COMMIT was out, and was waited for */
} connection;

typedef struct sql_driver {
    once_threads threads;
    once_arena arena;
    const char *url;
    connection *connections;
} sql_driver;

/* ---- connections ---- */

static const once_spec *spec_of(const sql_driver *driver)
{
    return once_runner_options_of(driver->threads.driver.runner)->spec;
}

static int at_url(const sql_driver *driver, int rc, const char *why, once_error *err)
{
    const once_spec *spec = spec_of(driver);
    return once_fail(err, rc, "%.*s:%d: %s", (int)spec->file.len, spec->file.data,
                     once_sql_of(driver->threads.driver.handler)->url_line, why);
}

static void publish(sql_driver *driver, connection *s, once_db *db)
{
    pthread_mutex_lock(&driver->threads.lock);
    s->db = db;
    pthread_mutex_unlock(&driver->threads.lock);
}

/* Connects and prepares, where that was not done yet. */
static int open_connection(sql_driver *driver, connection *s, once_cancel opening, once_error *err)
{
    const once_handler_spec *handler = driver->threads.driver.handler;
    if (s->db) return ONCE_OK;
    const once_db_options options = {.env = once_runner_options_of(driver->threads.driver.runner)->env,
                                     .consumer = spec_of(driver)->consumer,
                                     .busy_ms = handler->timeout_ms < INT_MAX ? (int)handler->timeout_ms : INT_MAX,
                                     .stop = &s->stop,
                                     .opening = opening};
    once_error why;
    once_db *db;
    int rc = once_db_open(driver->url, &options, &db, &why);
    if (rc != ONCE_OK) return at_url(driver, rc, why.text, err);
    publish(driver, s, db); /* preparing may have to wait, too */
    const once_sql_spec *sql = once_sql_of(handler);
    rc = once_sql_open(spec_of(driver), &sql->does, db, &s->statements, err);
    if (rc == ONCE_OK && once_handler_asks(handler))
        rc = once_sql_open(spec_of(driver), &sql->lookup.select, db, &s->lookup, err);
    if (rc == ONCE_OK) return rc;
    once_sql_close(&sql->does, s->statements);
    s->statements = NULL;
    publish(driver, s, NULL);
    once_db_close(db);
    return rc;
}

/* ---- one message, in its thread ---- */

/* No message is to blame: nothing is started until it may work again, and this message goes back as one that did not
 * run. */
static void could_not_start(once_job *job, int rc, const char *why)
{
    job->outcome = ONCE_RELEASE;
    job->started = false;
    job->run_failure = rc;
    once_reply_reason(job->reply, "%s", why);
}

static void answer(once_job *job, once_outcome outcome, const char *why)
{
    job->outcome = outcome;
    once_reply_reason(job->reply, "%s", why);
}

/* It was ended before COMMIT, and nothing that it did remains. */
static void was_ended(once_job *job)
{
    char limit[ONCE_DURATION_TEXT];
    if (atomic_load(&job->killed)) {
        answer(job, ONCE_RELEASE, "rolled back before it had ended");
        return;
    }
    job->outcome = ONCE_RETRY;
    once_reply_reason(job->reply, "rolled back at its timeout of %s",
                      once_duration_format(job->item->handler->timeout_ms, limit));
}

static bool has_begun(sql_driver *driver, connection *s, once_job *job)
{
    once_error why;
    int rc = open_connection(driver, s, (once_cancel){0}, &why);
    if (rc == ONCE_OK) {
        once_error begun;
        rc = once_db_begin(s->db, &begun);
        if (rc != ONCE_OK) at_url(driver, rc, begun.text, &why);
    }
    if (rc == ONCE_OK) return true;
    could_not_start(job, rc, why.text);
    if (atomic_load(&job->killed)) job->run_failure = ONCE_OK; /* whether it could have started is not known */
    return false;
}

/* A privilege is missing: says which one, and what its owner can do. Nothing of the transaction remains in any case. */
static void explain_denied(connection *s, int rc, once_fault *fault)
{
    once_error why;
    if (rc != ONCE_E_DENIED) return;
    once_db_rollback(s->db);
    if (once_db_rights(s->db, &why) == ONCE_E_DENIED) snprintf(fault->text, sizeof fault->text, "%.299s", why.text);
}

/* A statement failed, and nothing of the message remains. True: another try may work at once. */
static bool judge(sql_driver *driver, connection *s, once_job *job, const once_sql_statement *statement, int rc,
                  once_fault *fault)
{
    const once_spec *spec = spec_of(driver);
    once_outcome outcome;
    if (atomic_load(&s->stop)) {
        was_ended(job);
    } else if (once_sql_judge(job->item->handler, fault, &outcome)) {
        answer(job, outcome, fault->text);
    } else if (fault->kind == ONCE_FAULT_RETRY) {
        answer(job, ONCE_RETRY, fault->text);
        return !fault->aborted; /* a connection that was lost may have been lost because of it: that is counted */
    } else {
        could_not_start(job, rc, "");
        explain_denied(s, rc, fault);
        once_reply_reason(job->reply, "%.*s:%d: %s", (int)spec->file.len, spec->file.data, statement->line,
                          fault->text);
    }
    return false;
}

/* False: it has an outcome, or *again. */
static bool run_statements(sql_driver *driver, connection *s, once_job *job, bool *again)
{
    const once_handler_spec *handler = job->item->handler;
    const once_sql_spec *sql = once_sql_of(handler);
    const once_value *values = job->item->input;
    assert(s->db && s->statements && sql->does.n > 0);
    char why[300];
    if (!once_sql_fits(s->db, &sql->does, values, why, sizeof why)) {
        answer(job, ONCE_DEAD, why);
        return false;
    }
    for (size_t i = 0; i < sql->does.n; i++) {
        const once_sql_statement *statement = &sql->does.at[i];
        once_fault fault;
        int64_t rows = 0;
        const int rc = once_stmt_run(s->statements[i], values, statement->n, &rows, &fault);
        values += statement->n;
        if (rc != ONCE_OK) {
            *again = judge(driver, s, job, statement, rc, &fault);
            return false;
        }
        if (!once_sql_met(statement, i, rows, why, sizeof why)) {
            answer(job, statement->unmet, why);
            return false;
        }
        if (ONCE_FAIL_AT(effect_between)) {
            answer(job, ONCE_RETRY, "failpoint 'effect_between'");
            return false;
        }
    }
    return true;
}

/* False: it must end, so COMMIT is not sent. */
static bool may_commit(sql_driver *driver, connection *s)
{
    pthread_mutex_lock(&driver->threads.lock);
    assert(!s->committing);
    s->committing = !atomic_load(&s->stop);
    s->waited = false;
    const bool may = s->committing;
    pthread_mutex_unlock(&driver->threads.lock);
    return may;
}

static bool has_committed(sql_driver *driver, connection *s, once_job *job, bool *again)
{
    const once_handler_spec *handler = job->item->handler;
    const once_sql_spec *sql = once_sql_of(handler);
    once_fault fault;
    bool maybe;
    if (!may_commit(driver, s)) {
        was_ended(job);
        return false;
    }
    const int rc = once_db_commit(s->db, &maybe, &fault);
    pthread_mutex_lock(&driver->threads.lock);
    s->committing = false;
    pthread_mutex_unlock(&driver->threads.lock);
    if (rc == ONCE_OK) return true;
    if (!maybe ||
        once_sql_lists(handler, &fault)) { /* a state that the user's own trigger raises, and the handler names */
        *again = judge(driver, s, job, &sql->does.at[sql->does.n - 1], rc, &fault);
    } else {
        job->outcome = ONCE_UNKNOWN;
        if (rc == ONCE_E_COMMIT_UNKNOWN) job->run_failure = rc; /* and the next one would end the same way */
        once_reply_reason(
            job->reply, "%s%s",
            rc == ONCE_E_COMMIT_UNKNOWN ? "" : "COMMIT was sent, and its outcome is not known: ", fault.text);
    }
    return false;
}

/* True: it collided with others, and may work at once. */
static bool try_once(sql_driver *driver, connection *s, once_job *job)
{
    bool again = false;
    if (!has_begun(driver, s, job)) return false;
    if (run_statements(driver, s, job, &again) && has_committed(driver, s, job, &again)) {
        answer(job, ONCE_DONE, "");
        return false;
    }
    once_db_rollback(s->db);
    return again && !atomic_load(&s->stop);
}

/* ---- a question about one, in its thread ---- */

/* Nothing was found out. */
static void without_answer(sql_driver *driver, connection *s, once_job *job, int rc, once_fault *fault)
{
    const once_spec *spec = spec_of(driver);
    const int line = once_sql_of(job->item->handler)->lookup.select.at[0].line;
    char limit[ONCE_DURATION_TEXT];
    job->outcome = ONCE_UNKNOWN;
    if (atomic_load(&job->killed)) {
        could_not_start(job, ONCE_OK, "");
    } else if (atomic_load(&s->stop)) {
        once_reply_reason(job->reply, "lookup: ended at its timeout of %s",
                          once_duration_format(job->item->handler->timeout_ms, limit));
    } else {
        if (!once_sql_is_answer(fault) && fault->kind != ONCE_FAULT_RETRY) could_not_start(job, rc, "");
        explain_denied(s, rc, fault);
        once_reply_reason(job->reply, "%.*s:%d: lookup: %s", (int)spec->file.len, spec->file.data, line, fault->text);
    }
}

/* The same question about nothing: every parameter is NULL. A SELECT that returns a row then, such as one of count(*),
 * returns it for messages without an effect, too. */
static int ask_about_nothing(const connection *s, const once_sql_spec *sql, int64_t *rows, once_fault *fault)
{
    const size_t n = sql->lookup.select.at[0].n;
    once_value *values = calloc(n + 1, sizeof *values);
    if (!values) {
        *fault = (once_fault){.kind = ONCE_FAULT_RETRY, .text = "out of memory"};
        return ONCE_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) values[i].type = ONCE_VALUE_NULL;
    const int rc = once_stmt_run(s->lookup[0], values, n, rows, fault);
    free(values);
    return rc;
}

static void ask(sql_driver *driver, connection *s, once_job *job)
{
    const once_sql_spec *sql = once_sql_of(job->item->handler);
    const once_value *values = (const once_value *)job->item->input + once_sql_count(&sql->does);
    once_fault fault = {.kind = ONCE_FAULT_DATA};
    int64_t rows = 0, always = 0;
    if (!has_begun(driver, s, job)) return;
    assert(s->lookup && sql->lookup.select.n == 1);
    int rc = ONCE_E_MESSAGE;
    if (once_sql_fits(s->db, &sql->lookup.select, values, fault.text, sizeof fault.text))
        rc = once_stmt_run(s->lookup[0], values, sql->lookup.select.at[0].n, &rows, &fault);
    if (rc == ONCE_OK && rows > 0) rc = ask_about_nothing(s, sql, &always, &fault);
    if (rc != ONCE_OK) without_answer(driver, s, job, rc, &fault);
    else if (always > 0)
        answer(job, ONCE_UNKNOWN,
               "lookup: 'select' returns a row for no message, too, and so says nothing about this "
               "one; write 'SELECT 1 FROM ... WHERE ... = :once_idempotency_key'");
    else if (rows > 0) answer(job, ONCE_DONE, "");
    else answer(job, ONCE_RETRY, "lookup: the other database has no trace of it");
    once_db_rollback(s->db);
}

static void sql_run(once_threads *threads, once_job *job)
{
    sql_driver *driver = (sql_driver *)threads;
    connection *s = &driver->connections[job->thread];
    const once_env *env = once_runner_options_of(threads->driver.runner)->env;
    pthread_mutex_lock(&threads->lock);
    atomic_store(&s->stop, job->ended); /* a stop was for the message before */
    pthread_mutex_unlock(&threads->lock);
    const once_sql_spec *sql = once_sql_of(job->item->handler);
    const once_keying *keying = &once_runner_options_of(threads->driver.runner)->keying;
    once_value *values = job->item->input;
    once_sql_fill(&sql->does, values, job->item, keying);
    once_sql_fill(&sql->lookup.select, values + once_sql_count(&sql->does), job->item, keying);
    if (job->item->decision.asks) {
        ask(driver, s, job);
        return;
    }
    for (unsigned tries = 0; try_once(driver, s, job) && tries + 1 < TRIES; tries++)
        once_env_sleep_ms(env, (int64_t)(once_env_random_u64(env) % ((uint64_t)PAUSE_MS << tries)));
}

/* ---- on the loop ---- */

static int64_t sql_end(once_threads *threads, once_job *job, int64_t now_ms)
{
    assert(job->running && job->thread < threads->driver.handler->slots);
    connection *s = &((sql_driver *)threads)->connections[job->thread];
    if (s->committing && !s->waited && !atomic_load(&job->killed)) { /* waiting once more is better than an unknown */
        s->waited = true;
        return now_ms + threads->driver.handler->timeout_ms;
    }
    job->ended = true;
    atomic_store(&s->stop, true);
    return ONCE_NEVER;
}

static void sql_close(once_threads *threads)
{
    sql_driver *driver = (sql_driver *)threads;
    for (uint32_t i = 0; driver->connections && i < threads->driver.handler->slots; i++) {
        const once_sql_spec *sql = once_sql_of(threads->driver.handler);
        once_sql_close(&sql->does, driver->connections[i].statements);
        once_sql_close(&sql->lookup.select, driver->connections[i].lookup);
        once_db_close(driver->connections[i].db);
    }
    free(driver->connections);
    once_arena_release(&driver->arena);
    free(driver);
}

static const once_threads_ops sql_ops = {.what = "the statements", .run = sql_run, .end = sql_end, .close = sql_close};

/* The URL itself, where the file has only a reference to it. */
static int read_url(sql_driver *driver, once_error *err)
{
    const once_sql_spec *sql = once_sql_of(driver->threads.driver.handler);
    const once_written said = {.name = ONCE_BYTES("url"), .value = sql->url, .line = sql->url_line};
    const once_runner_options *options = once_runner_options_of(driver->threads.driver.runner);
    once_bytes url, copy;
    once_error why;
    int rc = once_value_read(options->spec->file, options->env, &said, &driver->arena, &url, err);
    if (rc != ONCE_OK) return rc;
    rc = once_db_check_url(url, &why);
    if (rc != ONCE_OK) return at_url(driver, rc, why.text, err);
    if (!once_arena_copy(&driver->arena, url, &copy)) return once_no_memory(err, "for the handlers");
    driver->url = copy.data;
    return ONCE_OK;
}

/* For the first thread, which finds it there. Before the first message, a missing table is a mistake of the
 * configuration. */
static int open_first_connection(sql_driver *driver, once_error *err)
{
    once_error why;
    const int rc = open_connection(driver, &driver->connections[0],
                                   once_runner_options_of(driver->threads.driver.runner)->opening, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc == ONCE_E_SCHEMA ? ONCE_E_CONFIG : rc, "%s", why.text);
}

int once_effect_driver_open_sql(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out,
                                once_error *err)
{
    sql_driver *driver = calloc(1, sizeof *driver);
    if (!driver) return once_no_memory(err, "for the handlers");
    int rc = once_threads_open(&driver->threads, &sql_ops, runner, handler, err);
    if (rc != ONCE_OK) return rc;
    driver->connections = calloc(handler->slots, sizeof *driver->connections);
    rc = driver->connections ? read_url(driver, err) : once_no_memory(err, "for the handlers");
    if (rc == ONCE_OK) rc = open_first_connection(driver, err);
    if (rc == ONCE_OK) *out = &driver->threads.driver;
    else driver->threads.driver.ops->close(&driver->threads.driver);
    return rc;
}

once_db *once_effect_driver_sql_db(once_effect_driver *driver) { return ((sql_driver *)driver)->connections[0].db; }
