/* A PostgreSQL connection: its URL, a borrowed one, reconnecting, and the store's prepared statements. */
#include "db/postgres/postgres.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

enum { ANSWER_MS_DEFAULT = 10000 };

/* libpq refuses options that it does not know, so our own options are cut out of the URL. False: there is none;
 * otherwise `out` is its value, empty when it is too long. */
static bool cut_word(char *url, const char *word, char *out, size_t size)
{
    char *at = strchr(url, '?');
    while (at && !(once__pg_begins(at + 1, word) && at[1 + strlen(word)] == '=')) at = strchr(at + 1, '&');
    if (!at) return false;
    const char *value = at + strlen(word) + 2;
    const size_t len = strcspn(value, "&");
    snprintf(out, size, "%.*s", len < size ? (int)len : 0, value);
    if (value[len]) memmove(at + 1, value + len + 1, strlen(value + len + 1) + 1);
    else *at = '\0';
    return true;
}

/* ?answer_timeout=SECONDS */
static bool cut_answer_timeout(char *url, int64_t *answer_ms)
{
    char text[12], *end;
    if (!cut_word(url, "answer_timeout", text, sizeof text)) return true;
    const long seconds = strtol(text, &end, 10);
    if (end == text || *end || seconds < 0 || seconds > 86400) return false;
    *answer_ms = seconds * 1000;
    return true;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* ?schema=NAME, with characters that need no quoting in a URL. */
static bool cut_schema(char *url, char out[ONCE_PG_NAME])
{
    if (!cut_word(url, "schema", out, ONCE_PG_NAME)) return true;
    size_t n = 0;
    while (out[n] != '.' && (is_word(out[n]) || out[n] == '-')) n++;
    return n > 0 && out[n] == '\0';
}

/* A password with an unescaped '@' or '/' ends up in the host, the port or the database, and errors of libpq would show
 * it. */
static bool is_misread(const PQconninfoOption *options)
{
    bool misread = false;
    for (; options->keyword; options++) {
        const char *value = options->val ? options->val : "";
        if (strcmp(options->keyword, "port") == 0) misread |= value[strspn(value, "0123456789,")] != '\0';
        if (strcmp(options->keyword, "host") == 0 || strcmp(options->keyword, "dbname") == 0)
            misread |= strchr(value, '@') != NULL;
    }
    return misread;
}

int once__pg_new(const char *rest, const once_env *env, once_bytes consumer, once_cancel cancel, once_pg **out,
                 once_error *err)
{
    once_pg *pg = calloc(1, sizeof *pg);
    if (!pg) return once_no_memory(err, "for PostgreSQL");
    pg->db.ops = &once__pg_ops;
    pg->env = env;
    pg->cancel = cancel;
    pg->answer_ms = ANSWER_MS_DEFAULT;
    snprintf(pg->application, sizeof pg->application, "once%s%.*s", consumer.len ? ":" : "",
             consumer.len < 58 ? (int)consumer.len : 58, consumer.len ? consumer.data : "");
    once_buf_init(&pg->values, (size_t)1 << 30);
    once_buf_init(&pg->begun, 1 << 20);
    const size_t size = strlen(rest) + sizeof "postgresql:";
    pg->conninfo = malloc(size);
    if (!pg->conninfo) {
        free(pg);
        return once_no_memory(err, "for PostgreSQL");
    }
    snprintf(pg->conninfo, size, "postgresql:%s", rest);
    snprintf(pg->where, sizeof pg->where, "postgres");
    if (!cut_answer_timeout(pg->conninfo, &pg->answer_ms)) {
        once__pg_free(pg);
        return once_fail(
            err, ONCE_E_CONFIG,
            "store 'postgres:...': answer_timeout is a number of seconds, 0 to 86400; 0 waits without limit");
    }
    if (!cut_schema(pg->conninfo, pg->tables_in)) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_CONFIG,
                         "store 'postgres:...': schema=NAME has letters, digits, '_' and '-'; others can be named with "
                         "?options=-csearch_path%%3Dname");
    }
    char *why = NULL;
    PQconninfoOption *options = PQconninfoParse(pg->conninfo, &why);
    if (!options) {
        once_fail(err, ONCE_E_CONFIG, "'postgres:...' cannot be read; write postgres://user@host:port/database");
        PQfreemem(why); /* may show the password */
        once__pg_free(pg);
        return ONCE_E_CONFIG;
    }
    const bool misread = is_misread(options);
    PQconninfoFree(options);
    if (misread) {
        once__pg_free(pg);
        return once_fail(err, ONCE_E_CONFIG,
                         "'postgres:...' cannot be read; write '@', ':' and '/' in a user or password as %%40, %%3A "
                         "and %%2F, and a number as port");
    }
    *out = pg;
    return ONCE_OK;
}

void once__pg_say_where(once_pg *pg, PGconn *conn)
{
    const char *host = PQhost(conn), *database = PQdb(conn);
    snprintf(pg->where, sizeof pg->where, "postgres '%.80s/%.60s'", host ? host : "", database ? database : "");
}

int once__pg_borrow(PGconn *conn, const once_env *env, once_pg **out, once_error *err)
{
    once_pg *pg = calloc(1, sizeof *pg);
    if (!pg) return once_no_memory(err, "for PostgreSQL");
    *pg = (once_pg){.db.ops = &once__pg_ops, .env = env, .conn = conn, .borrowed = true, .connections = 1};
    once_buf_init(&pg->values, (size_t)1 << 30);
    once_buf_init(&pg->begun, 1 << 20);
    once__pg_say_where(pg, conn);
    *out = pg;
    return ONCE_OK;
}

int once__pg_enter(once_pg *pg, once_error *err)
{
    if (!once__pg_alive(pg)) return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where);
    if (!pg->borrowed) return ONCE_OK;
    switch (PQtransactionStatus(pg->conn)) {
    case PQTRANS_IDLE:
    case PQTRANS_INTRANS: break;
    case PQTRANS_INERROR:
        return once_fail(err, ONCE_E_ABORTED, "%s: the transaction has failed; roll it back", pg->where);
    default: return once_fail(err, ONCE_E_USAGE, "%s: a statement is still running on the connection", pg->where);
    }
    if (!PQenterPipelineMode(pg->conn))
        return once_fail(err, ONCE_E_USAGE, "%s: results are still to be read on the connection", pg->where);
    return ONCE_OK;
}

void once__pg_leave(once_pg *pg)
{
    if (pg->borrowed && once__pg_alive(pg)) PQexitPipelineMode(pg->conn);
}

void once__pg_drop(once_pg *pg)
{
    if (pg->conn && !pg->borrowed) PQfinish(pg->conn);
    pg->conn = NULL;
    pg->pending = pg->unsent = pg->presumed_groups = pg->head.n = pg->later.n = 0;
    pg->synced = false;
    pg->savepoints = 0;
    pg->local_at = 0;
    pg->session_lock = false;
}

void once__pg_free(once_pg *pg)
{
    if (!pg) return;
    assert(!pg->users);
    once__pg_drop(pg);
    once_buf_release(&pg->values);
    once_buf_release(&pg->begun);
    for (size_t i = 0; i < pg->n_sql; i++) free(pg->sql[i].sql);
    free(pg->sql);
    free(pg->local);
    free(pg->schema);
    free(pg->texts);
    free(pg->lengths);
    free(pg->formats);
    free(pg->conninfo);
    free(pg);
}

bool once__pg_alive(const once_pg *pg) { return pg->conn && PQstatus(pg->conn) == CONNECTION_OK; }

/* One notice of the server matters: a COMMIT has returned although its standby does not have it, because an operator
 * cancelled the wait. Texts are translated; the name of the function in the server is not. */
static void hear_notice(void *user, const PGresult *result)
{
    once_pg *pg = user;
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
    if (function && strcmp(function, "SyncRepWaitForLSN") == 0) pg->unreplicated = true;
}

/* ---- statements by name ---- */

void once__pg_name(char out[PG_NAME_SIZE], const char *what, const char *sql)
{
    const once_hash hash = once_xxh128(0, sql, strlen(sql));
    snprintf(out, PG_NAME_SIZE, "once_%s_%016llx%016llx", what, (unsigned long long)hash.a, (unsigned long long)hash.b);
}

/* Puts the schema before every once_...; our statements have no such word in quotes. */
static char *qualified(const char *sql, const char *schema)
{
    once_buf text;
    once_buf_init(&text, 1 << 20);
    for (const char *at = sql; *at; at++) {
        if (once__pg_begins(at, "once_") && (at == sql || !is_word(at[-1]))) once_buf_printf(&text, "%s.", schema);
        once_buf_append(&text, at, 1);
    }
    char *copy = text.failed ? NULL : strdup(text.data);
    once_buf_release(&text);
    return copy;
}

int once__pg_statements(once_pg *pg, const char *const *sql, const char *const *shapes, size_t n, once_error *err)
{
    assert(n > 0);
    assert(pg->schema && !pg->sql);
    pg->sql = calloc(n, sizeof *pg->sql);
    if (!pg->sql) return once_no_memory(err, "for PostgreSQL");
    for (size_t i = 0; i < n; i++) {
        assert(shapes[i]);
        pg->sql[i].shape = shapes[i];
        pg->sql[i].sql = qualified(sql[i], pg->schema);
        pg->n_sql = i + 1;
        if (!pg->sql[i].sql) return once_no_memory(err, "for PostgreSQL");
        once__pg_name(pg->sql[i].name, "s", pg->sql[i].sql);
    }
    return ONCE_OK;
}

/* On a borrowed connection our statements may have been prepared before, by an earlier store of the caller. */
static int look_for_ours(once_pg *pg, PGresult **out, once_error *err)
{
    *out = NULL;
    if (!pg->borrowed) return ONCE_OK;
    return once__pg_ask(pg, "SELECT name FROM pg_catalog.pg_prepared_statements WHERE left(name, 5) = 'once_'", "*t",
                        out, err);
}

static bool has_name(const PGresult *names, const char *name)
{
    for (int i = 0; names && i < PQntuples(names); i++)
        if (strcmp(once__pg_text(names, i, 0), name) == 0) return true;
    return false;
}

static int send_prepares(once_pg *pg, const PGresult *there, once_error *err)
{
    for (size_t i = 0; i < pg->n_sql; i++) {
        if (has_name(there, pg->sql[i].name)) continue;
        if (!PQsendPrepare(pg->conn, pg->sql[i].name, pg->sql[i].sql, 0, NULL)) return once__pg_fail(pg, NULL, err);
        pg->pending++;
    }
    for (once_pg_stmt *user = pg->users; user; user = user->next) {
        if (!PQsendPrepare(pg->conn, user->name, user->sql, 0, NULL)) return once__pg_fail(pg, NULL, err);
        pg->pending++;
    }
    return ONCE_OK;
}

int once__pg_prepare(once_pg *pg, once_error *err)
{
    assert(!pg->pending && !pg->synced);
    PGresult *there;
    if (pg->shared) return ONCE_OK;
    int rc = look_for_ours(pg, &there, err);
    if (rc == ONCE_OK) rc = send_prepares(pg, there, err);
    PQclear(there);
    if (rc != ONCE_OK || !pg->pending) return rc;
    rc = once__pg_sync(pg, err);
    while (rc == ONCE_OK && pg->pending) {
        PGresult *result = NULL;
        rc = once__pg_next(pg, &result, err);
        if (rc == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK) rc = once__pg_fail(pg, result, err);
        PQclear(result);
    }
    const int end = pg->conn ? once__pg_synced(pg, rc == ONCE_OK ? err : NULL) : rc;
    return rc == ONCE_OK ? end : rc;
}

static int connect_once(once_pg *pg, once_error *err)
{
    const bool known = pg->found_out;
    once__pg_drop(pg);
    pg->silence[0] = '\0';
    int rc = once__pg_dial(pg, &pg->conn, err);
    if (rc != ONCE_OK) return rc;
    pg->connections++;
    PQsetNoticeReceiver(pg->conn, hear_notice, pg);
    if (PQserverVersion(pg->conn) < 130000) {
        const int version = PQserverVersion(pg->conn) / 10000;
        once__pg_drop(pg);
        return once_fail(err, ONCE_E_CONFIG, "%s: PostgreSQL %d is too old; 13 is the oldest that works", pg->where,
                         version);
    }
    pg->stale = false;
    if (PQsetnonblocking(pg->conn, 1) != 0 || !PQenterPipelineMode(pg->conn)) return once__pg_fail(pg, NULL, err);
    rc = once__pg_greet(pg, err);
    if (rc == ONCE_OK) rc = once__pg_prepare(pg, err);
    if (rc != ONCE_OK) once__pg_drop(pg);
    return rc != ONCE_OK && pg->found_out && !known ? connect_once(pg, err) : rc;
}

int once__pg_connect(once_pg *pg, int64_t wait_ms, once_error *err)
{
    assert(wait_ms >= 0);
    if (once__pg_alive(pg) && (!pg->stale || pg->borrowed)) return ONCE_OK;
    if (pg->borrowed) return once_fail(err, ONCE_E_UNAVAILABLE, "%s: the connection was lost", pg->where);
    int64_t pause_ms = 20, waited_ms = 0;
    for (;;) {
        const int rc = connect_once(pg, err);
        if (once_status_class(rc) != ONCE_CLASS_RETRY || waited_ms >= wait_ms) return rc;
        const int64_t nap_ms = pause_ms / 2 + (int64_t)(once_env_random_u64(pg->env) % (uint64_t)pause_ms);
        if (once_cancelled(&pg->cancel)) return rc;
        once_env_sleep_ms(pg->env, nap_ms);
        waited_ms += nap_ms;
        if (pause_ms < 1000) pause_ms *= 2;
    }
}

enum { ARRAY_HEAD = 20 };
