/* All waiting for a PostgreSQL server: until it has accepted us, until it has read what we send, until it answers.
 *
 * libpq waits without limit when its peer is silent: the machine is gone, its processes are stopped, or something in
 * between has dropped the connection. So all waiting is here, in short naps, and ends in one of three ways: there is
 * something to read, the caller cancels, or the server is gone.
 *
 * Silence alone proves nothing: a statement of the user may take an hour, and a claim waits for the transaction of
 * another worker. After `answer_ms` without a byte we ask the server, over a second connection, what the session of the
 * first one is doing:
 *   - it works, or waits for a lock: we go on waiting;
 *   - it waits for us: its answer or our request was lost. We ask twice, because an answer may be under way; then the
 *     session is ended, so that it does not keep its locks;
 *   - the server does not have the session, or does not answer on the second connection either: it is gone.
 * A server that answers but refuses new connections (too many of them) is alive, and we go on waiting. Before the first
 * answer (behind a pooler: in each transaction), the session is not known. Then nothing was asked that takes long: when
 * the second connection gets an answer, the first answer was lost.
 *
 * A wait that is cancelled leaves nothing running: the server is asked to cancel the statement.
 *
 * On a borrowed connection (once__pg_borrow) libpq waits: deadlines are the caller's. */
#include <assert.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

enum { NAP_MS = 50, SUSPICION_MS = 1000, CANCEL_MS = 2000 };

/* One nap. 1: there is something to do; 0: not yet; -1: the caller has cancelled. */
static int nap(once_pg *pg, PGconn *conn, short events)
{
    struct pollfd fd = {.fd = PQsocket(conn), .events = events};
    if (poll(&fd, 1, NAP_MS) != 0) return 1; /* also after a signal: look again */
    return once_cancelled(&pg->cancel) ? -1 : 0;
}

/* ---- connecting ---- */

/* The URL can change the options before it, not those behind it. */
static const char *const names[] = {"fallback_application_name",
                                    "connect_timeout",
                                    "keepalives_idle",
                                    "keepalives_interval",
                                    "keepalives_count",
                                    "tcp_user_timeout",
                                    "dbname",
                                    "client_encoding",
                                    NULL};
#define VALUES(pg)                                                                                                     \
    {                                                                                                                  \
        (pg)->application, "10", "30", "10", "3", "60000", (pg)->conninfo, "UTF8", NULL                                \
    }

/* Whether from the URL, the environment, a service file or us. */
void once__pg_option(PGconn *conn, const char *name, char *out, size_t size)
{
    PQconninfoOption *options = PQconninfo(conn);
    out[0] = '\0';
    for (const PQconninfoOption *option = options; option && option->keyword; option++)
        if (strcmp(option->keyword, name) == 0 && option->val) snprintf(out, size, "%s", option->val);
    PQconninfoFree(options);
}

/* How long to wait for a connection; 0: without limit. The minimum of libpq is 2 s. */
static int64_t connect_ms(PGconn *conn)
{
    char text[32];
    once__pg_option(conn, "connect_timeout", text, sizeof text);
    const long seconds = strtol(text, NULL, 10);
    return seconds <= 0 ? 0 : seconds < 2 ? 2000 : seconds * 1000;
}

/* Several hosts, or a name that may have several addresses. */
static bool is_many(PGconn *conn)
{
    char host[400];
    once__pg_option(conn, "host", host, sizeof host);
    return host[0] && (strchr(host, ',') || (host[0] != '/' && strspn(host, "0123456789.:") != strlen(host)));
}

/* ONCE_OK: PQstatus says whether the connection was made or has failed. */
static int dial(once_pg *pg, PGconn *conn, bool *silent, once_error *err)
{
    const int64_t limit_ms = connect_ms(conn);
    int64_t napped_ms = 0;
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;
    *silent = false;
    while (PQstatus(conn) != CONNECTION_BAD && (want == PGRES_POLLING_READING || want == PGRES_POLLING_WRITING)) {
        const int ready = nap(pg, conn, want == PGRES_POLLING_READING ? POLLIN : POLLOUT);
        if (ready > 0) want = PQconnectPoll(conn);
        if (ready < 0) return once_fail(err, ONCE_E_UNAVAILABLE, "%s: stopped while connecting", pg->where);
        napped_ms += ready ? 0 : NAP_MS;
        *silent = limit_ms && napped_ms >= limit_ms;
        if (*silent) return ONCE_OK;
    }
    return ONCE_OK;
}

/* Reads "...FATAL:  28P01: password authentication failed...", the form of PQERRORS_VERBOSE. Several addresses have
 * several lines; the last server that answered counts. */
static void refusal(const char *text, char state[6], char *line, size_t size)
{
    const char *at = text, *shown = text;
    state[0] = '\0';
    for (const char *mark; (mark = strstr(at, ":  ")); at = mark + 3) {
        if (strspn(mark + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5 || mark[8] != ':') continue;
        snprintf(state, 6, "%.5s", mark + 3);
        for (shown = mark; shown > text && shown[-1] != '\n'; shown--) continue;
    }
    snprintf(line, size, "%.*s", (int)strcspn(shown, "\n"), shown);
}

/* Errors of libpq itself, without a SQLSTATE: those about certificates and passwords will not pass. */
static int verdict_of_libpq(const char *line)
{
    static const char *const lasting[] = {"certificate",          "SSL was required", "does not support SSL",
                                          "no password supplied", "private key",      "crypt"};
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++)
        if (strstr(line, lasting[i])) return ONCE_E_DENIED;
    return ONCE_E_UNAVAILABLE;
}

static int not_connected(once_pg *pg, PGconn *conn, bool at_once, once_error *err)
{
    const char *const values[] = VALUES(pg);
    char state[6], line[320];
    refusal(PQerrorMessage(conn), state, line, sizeof line);
    const char *refused = once__pg_pooler_refuses(line);
    if (refused) return once_fail(err, ONCE_E_CONFIG, "%s: %s; %s", pg->where, line, refused);
    if (state[0]) {
        const int status = once__pg_status(state);
        return once_fail(err, status == ONCE_E_MESSAGE ? ONCE_E_DENIED : status, "%s: %s", pg->where, line);
    }
    if (at_once && PQpingParams(names, values, 1) == PQPING_NO_ATTEMPT)
        return once_fail(err, ONCE_E_CONFIG, "%s: %s", pg->where, line);
    return once_fail(err, verdict_of_libpq(line), "%s: %s", pg->where, line);
}

static int connect_to(once_pg *pg, PGconn **out, once_error *err)
{
    const char *const values[] = VALUES(pg);
    _Static_assert(sizeof names == sizeof(const char *[9]), "names and values belong together");
    PGconn *conn = PQconnectStartParams(names, values, 1);
    if (!conn) return once_no_memory(err, "for PostgreSQL");
    PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    const bool at_once = PQstatus(conn) == CONNECTION_BAD;
    bool silent;
    once__pg_say_where(pg, conn);
    int rc = dial(pg, conn, &silent, err);
    if (rc == ONCE_OK && silent &&
        is_many(conn)) { /* PQconnectPoll cannot be told to try the next address; PQconnectdb does */
        PQfinish(conn);
        conn = PQconnectdbParams(names, values, 1);
        if (!conn) return once_no_memory(err, "for PostgreSQL");
        silent = false;
    }
    if (rc == ONCE_OK && silent)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "%s: no answer within connect_timeout", pg->where);
    else if (rc == ONCE_OK && PQstatus(conn) != CONNECTION_OK) rc = not_connected(pg, conn, at_once, err);
    if (rc != ONCE_OK) {
        PQfinish(conn);
        return rc;
    }
    PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
    once__pg_say_where(pg, conn);
    *out = conn;
    return ONCE_OK;
}

/* Sets the C locale meanwhile: libpq translates its messages, and we search for words in them. */
int once__pg_dial(once_pg *pg, PGconn **out, once_error *err)
{
    assert(pg->conninfo && !pg->borrowed);
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0) return once_no_memory(err, "for PostgreSQL");
    const locale_t before = uselocale(plain);
    const int rc = connect_to(pg, out, err);
    uselocale(before);
    freelocale(plain);
    return rc;
}

/* ---- asking about a connection ---- */

typedef enum whereabouts { AT_WORK, WAITS_FOR_US, GONE } whereabouts;

static bool answers_others(int rc, const once_error *why)
{
    char state[6], line[320];
    refusal(why->text, state, line, sizeof line);
    return rc != ONCE_OK && state[0] &&
           !(state[0] == '5' && state[1] == '7' && state[2] == 'P'); /* not shutting down or restarting */
}

/* Opens a second connection to the same server and asks one question. *out: the answer, or NULL. */
static int ask_second(const once_pg *pg, once_cancel cancel, int64_t answer_ms, const char *sql, PGresult **out,
                      once_error *why)
{
    assert(!pg->asking && sql[0]);
    once_pg second = {
        .env = pg->env, .conninfo = pg->conninfo, .cancel = cancel, .answer_ms = answer_ms, .asking = true};
    snprintf(second.where, sizeof second.where, "%s", pg->where);
    snprintf(second.application, sizeof second.application, "%s", pg->application);
    *out = NULL;
    int rc = once__pg_dial(&second, &second.conn, why);
    if (rc == ONCE_OK && PQsetnonblocking(second.conn, 1) != 0) rc = ONCE_E_UNAVAILABLE;
    if (rc == ONCE_OK) *out = once__pg_simple(&second, sql);
    PQfinish(second.conn);
    return rc;
}

static whereabouts ask_about(const once_pg *pg, bool suspected, once_error *why)
{
    char sql[500];
    PGresult *result;
    whereabouts found = GONE;
    snprintf(
        sql, sizeof sql,
        "SELECT CASE WHEN state = 'disabled' OR state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' THEN 1"
        " WHEN %s THEN 2 + pg_terminate_backend(pid)::int ELSE 2 END FROM pg_catalog.pg_stat_activity WHERE %s",
        suspected ? "true" : "false", pg->session);
    if (!pg->session[0]) snprintf(sql, sizeof sql, "SELECT 1");
    const int rc = ask_second(pg, pg->cancel, pg->answer_ms, sql, &result, why);
    if (answers_others(rc, why)) return AT_WORK;
    if (result && once__pg_fits(result, "1t", 0))
        found = pg->session[0] && once__pg_text(result, 0, 0)[0] == '1' ? AT_WORK : WAITS_FOR_US;
    PQclear(result);
    return found;
}

/* ---- cancelling ---- */

typedef struct short_while {
    const once_env *env;
    int64_t until_ns;
} short_while;

static bool is_over(void *user)
{
    const short_while *s = user;
    return once_env_mono_ns(s->env) >= s->until_ns;
}

/* Not by PQcancel, which would wait for a silent server. */
static void cancel(const once_pg *pg)
{
    char sql[300];
    once_error why;
    PGresult *result;
    short_while s = {pg->env, once_env_mono_ns(pg->env) + (int64_t)CANCEL_MS * 1000000};
    if (pg->asking || !pg->session[0]) return; /* nothing runs, or the session is not known */
    snprintf(sql, sizeof sql,
             "SELECT pg_cancel_backend(pid) FROM pg_catalog.pg_stat_activity WHERE state = 'active' AND %s",
             pg->session);
    (void)ask_second(pg, (once_cancel){is_over, &s}, CANCEL_MS, sql, &result, &why);
    PQclear(result);
}

/* ---- sending and reading ---- */

static bool give_up(once_pg *pg, const char *why)
{
    assert(why[0]); /* an empty text means that we have not given up */
    snprintf(pg->silence, sizeof pg->silence, "%s", why);
    return false;
}

/* After a silence: whether to go on waiting. *suspected: the session was found waiting for us. */
static bool still_there(once_pg *pg, bool *suspected)
{
    once_error why = {0};
    if (pg->asking) return give_up(pg, "no answer");
    switch (ask_about(pg, *suspected, &why)) {
    case AT_WORK: *suspected = false; return true;
    case WAITS_FOR_US:
        if (*suspected) return give_up(pg, "an answer was lost");
        *suspected = true;
        return true;
    case GONE: break;
    }
    return give_up(pg, "it no longer answers");
}

bool once__pg_wait(once_pg *pg, bool to_read)
{
    assert(pg->conn);
    int64_t silent_ms = 0;
    bool suspected = false;
    if (pg->borrowed) return true;
    for (;;) {
        if (to_read && !PQisBusy(pg->conn)) return true;
        const int unsent = PQflush(pg->conn); /* below 0: broken; the next use of libpq reports it */
        if (unsent < 0 || (!to_read && unsent == 0)) return true;
        const int ready = nap(pg, pg->conn, unsent ? POLLIN | POLLOUT : POLLIN);
        if (ready < 0) {
            cancel(pg);
            return give_up(pg, "stopped while waiting for it");
        }
        if (ready > 0) {
            silent_ms = 0;
            suspected = false;
            if (!PQconsumeInput(pg->conn)) return true;
            continue;
        }
        silent_ms += NAP_MS;
        if (pg->answer_ms == 0 || silent_ms < (suspected ? SUSPICION_MS : pg->answer_ms)) continue;
        if (!still_there(pg, &suspected)) return false;
        silent_ms = 0;
    }
}

/* No statement here copies. For a COPY libpq would return the same result without end. */
PGresult *once__pg_result(once_pg *pg)
{
    assert(pg->conn && !pg->silence[0]); /* nothing is read after we stopped waiting */
    PGresult *result = PQgetResult(pg->conn);
    switch (PQresultStatus(result)) {
    case PGRES_COPY_IN:
    case PGRES_COPY_OUT:
    case PGRES_COPY_BOTH:
        PQclear(result);
        give_up(pg, "it began a COPY that was not asked for");
        return NULL;
    default: return result;
    }
}

PGresult *once__pg_simple(once_pg *pg, const char *sql)
{
    assert(pg->conn);
    PGresult *last = NULL, *next;
    if (!PQsendQuery(pg->conn, sql)) return NULL;
    for (;;) {
        if (!once__pg_wait(pg, true)) break;
        next = once__pg_result(pg);
        if (!next && pg->silence[0]) break;
        if (!next) return last;
        if (last && PQresultStatus(last) == PGRES_FATAL_ERROR) { /* it says more than the lost connection behind it */
            PQclear(next);
            return last;
        }
        PQclear(last);
        last = next;
        if (PQresultStatus(last) == PGRES_FATAL_ERROR && PQstatus(pg->conn) != CONNECTION_OK) return last;
    }
    PQclear(last);
    return NULL;
}
