/* Poolers: whether the session behind a connection is ours alone.
 *
 * A pooler (PgBouncer) in transaction mode gives each transaction any session that is free, and a session keeps what
 * its last user left there: prepared statements, settings, locks. So behind a pooler nothing of ours is kept in a
 * session, and nothing there is relied upon:
 *   - statements have no names; their text is sent each time;
 *   - settings are set for a transaction (`local`). The search path is one of them, with pg_temp at its end: where it
 *     is not named, temporary tables that another client left in the session would be found before all others;
 *   - our tables are named with their schema (also without a pooler);
 *   - locks are those of a transaction.
 *
 * How a pooler is recognised. At the start of a connection the server says which process serves it. A pooler has none
 * yet, and says a number of its own. So that number is compared with pg_backend_pid(). A pooler that passes on the
 * number of its first session, or matches by chance, is found by the first transaction that another process answers
 * (once__pg_same_session): nothing was done in it yet, so it is given up, and the connection is made again. A session
 * that does not have our prepared statements, or has them before we prepared them, is also behind a pooler. Names of
 * statements contain a hash of their texts, so a statement that another client prepared under our name is ours.
 *
 * A pooler in session mode looks the same, and is treated the same. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

/* A worker whose machine is gone, that was stopped in the middle of a batch, or that has disconnected while its
 * statement runs, must not keep its keys locked for hours: with these settings the server ends its transaction.
 * Settings of the role, the database or the URL take precedence. */
#define WANTED                                                                                                         \
    "(VALUES ('idle_in_transaction_session_timeout', '30s'), ('tcp_keepalives_idle', '30'), "                          \
    "('tcp_keepalives_interval', '10'),"                                                                               \
    " ('tcp_keepalives_count', '3'), ('client_connection_check_interval', '5s')) AS s(name, value)"

static void found_out(once_pg *pg)
{
    if (pg->shared) return;
    pg->shared = pg->found_out = true;
    pg->stale = true; /* reconnects, and no longer relies on the session */
}

void once__pg_heed_state(once_pg *pg, const char *state)
{
    if (!state) return;
    if (strcmp(state, "0A000") == 0) pg->stale = true;
    if (strncmp(state, "40", 2) == 0 || strcmp(state, "55P03") == 0) pg->collided = true;
    if (strncmp(state, "26", 2) == 0 || strcmp(state, "42P05") == 0) found_out(pg);
}

int once__pg_same_session(once_pg *pg, int64_t backend, once_error *err)
{
    if (pg->shared || backend == pg->backend) return ONCE_OK;
    found_out(pg);
    return once_fail(
        err, ONCE_E_ABORTED,
        "%s: another process of the server answers than before, so there is a pooler in between; the transaction is "
        "repeated",
        pg->where);
}

const char *once__pg_pooler_refuses(const char *text)
{
    if (strstr(text, "unsupported startup parameter"))
        return "let the pooler ignore it (ignore_startup_parameters), or remove it from the URL; once sets the "
               "'options' in each transaction";
    if (strstr(text, "statement pooling mode"))
        return "with pool_mode = statement there are no transactions; use transaction or session";
    return NULL;
}

/* ---- settings of a transaction behind a pooler ---- */

static bool add_setting(const once_pg *pg, once_buf *sql, const char *name, const char *value)
{
    char *quoted_name = PQescapeLiteral(pg->conn, name, strlen(name)),
         *quoted = PQescapeLiteral(pg->conn, value, strlen(value));
    if (quoted_name && quoted) once_buf_printf(sql, ", pg_catalog.set_config(%s, %s, true)", quoted_name, quoted);
    const bool fine = quoted_name && quoted && !sql->failed;
    PQfreemem(quoted_name);
    PQfreemem(quoted);
    return fine;
}

/* The next word of `options`, split as the server does: white space ends a word, a backslash quotes the next
 * character. */
static bool next_word(const char **at, char *out, size_t size)
{
    size_t n = 0;
    while (once_ascii_is_space(**at)) ++*at;
    if (!**at) return false;
    for (; **at && !once_ascii_is_space(**at); ++*at) {
        if (**at == '\\' && (*at)[1]) ++*at;
        if (n + 1 < size) out[n++] = **at;
    }
    out[n] = '\0';
    return true;
}

/* Reads "-c name=value", "-cname=value", "--name=value". NULL: another option, which a transaction cannot use. */
static char *setting_of(char *word, const char **at, char *next, size_t size)
{
    char *setting = NULL;
    if (strcmp(word, "-c") == 0) setting = next_word(at, next, size) ? next : NULL;
    else if (strncmp(word, "-c", 2) == 0 || strncmp(word, "--", 2) == 0) setting = word + 2;
    return setting && strchr(setting, '=') ? setting : NULL;
}

typedef bool each_option(void *user, const char *name, const char *value);

/* Visits the options of the URL, the service file or PGOPTIONS, which a pooler does not pass on. False: `each` has
 * failed. */
static bool options_of(const once_pg *pg, each_option *each, void *user)
{
    char options[1000], word[400], next[400];
    once__pg_option(pg->conn, "options", options, sizeof options);
    for (const char *at = options; next_word(&at, word, sizeof word);) {
        char *setting = setting_of(word, &at, next, sizeof next);
        if (!setting) continue;
        char *value = strchr(setting, '=');
        *value++ = '\0';
        for (char *c = setting; *c; c++)
            if (*c == '-') *c = '_'; /* as the server reads --some-name */
        if (!each(user, setting, value)) return false;
    }
    return true;
}

static bool is_not(void *name, const char *given, const char *value)
{
    (void)value;
    return strcmp(name, given) != 0;
}

/* The next name of a search path, as it is written there. */
static once_bytes next_name(const char **at)
{
    while (once_ascii_is_space(**at) || **at == ',') ++*at;
    const char *from = *at;
    for (bool quoted = false; **at && (quoted || **at != ','); ++*at)
        if (**at == '"') quoted = !quoted;
    const char *end = *at;
    while (end > from && once_ascii_is_space(end[-1])) end--;
    return (once_bytes){from, (size_t)(end - from)};
}

static bool is_temp(once_bytes name)
{
    return once_ascii_is(name.data, name.len, "pg_temp") || (name.len == 9 && memcmp(name.data, "\"pg_temp\"", 9) == 0);
}

static void put_path(once_buf *out, const char *path)
{
    once_bytes name;
    for (bool first = true; (name = next_name(&path)).len;) {
        if (is_temp(name)) continue;
        if (!first) once_buf_puts(out, ", ");
        once_buf_append(out, name.data, name.len);
        first = false;
    }
    once_buf_append(out, "", 1);
}

/* Sets the path with pg_temp at its end. If no other schema of the path exists, CREATE TABLE would create temporary
 * tables; with pg_catalog in front it is refused, as it is without pg_temp. */
static bool add_path(const once_pg *pg, once_buf *sql, const char *path)
{
    once_buf names;
    once_buf_init(&names, 1 << 16);
    put_path(&names, path);
    char *quoted = names.failed ? NULL : PQescapeLiteral(pg->conn, names.data, strlen(names.data));
    if (quoted)
        once_buf_printf(sql,
                        ", pg_catalog.set_config('search_path', %s, true), pg_catalog.set_config('search_path', CASE "
                        "WHEN pg_catalog.current_schema()"
                        " IS NULL THEN 'pg_catalog, pg_temp' ELSE pg_catalog.concat(%s, ', pg_temp') END, true)",
                        quoted, quoted);
    const bool fine = quoted && !sql->failed;
    PQfreemem(quoted);
    once_buf_release(&names);
    return fine;
}

static bool add(const once_pg *pg, once_buf *sql, const char *name, const char *value)
{
    return once_ascii_is(name, strlen(name), "search_path") ? add_path(pg, sql, value)
                                                            : add_setting(pg, sql, name, value);
}

/* A table that is missing in the schemas of the path may be found at its end, as a temporary table that another client
 * left in the session. So every transaction asks whether a word of the user's statements is one. Nearly always the
 * session has no temporary tables, which is cheap to check. */
static bool add_left(const once_pg *pg, once_buf *sql)
{
    once_buf words;
    once_buf_init(&words, 1 << 24);
    for (const once_pg_stmt *user = pg->users; user; user = user->next) {
        if (words.len) once_buf_puts(&words, ", ");
        once__pg_put_words(pg, user->sql, &words);
    }
    bool fine = !words.failed;
    if (fine && words.len) {
        once_buf_printf(sql,
                        ", CASE WHEN pg_catalog.oideq(pg_catalog.pg_my_temp_schema(), 0) THEN NULL ELSE (SELECT "
                        "c.relname FROM pg_catalog.pg_class c"
                        " WHERE c.relname OPERATOR(pg_catalog.=) ANY (ARRAY[%s",
                        words.data);
        for (size_t i = 0; i < words.len; i++) words.data[i] = once_ascii_lower(words.data[i]);
        once_buf_printf(
            sql,
            ", %s]::pg_catalog.name[]) AND pg_catalog.oideq(c.relnamespace, pg_catalog.pg_my_temp_schema()) AND"
            " pg_catalog.pg_table_is_visible(c.oid) LIMIT 1) END AS left_there",
            words.data);
    }
    fine = fine && !sql->failed;
    once_buf_release(&words);
    return fine;
}

typedef struct adding {
    const once_pg *pg;
    once_buf *sql;
} adding;

static bool add_option(void *user, const char *name, const char *value)
{
    const adding *a = user;
    return add(a->pg, a->sql, name, value);
}

/* Settings that another client made in the session must not be used: above all the search path, which decides whose
 * tables are meant. So a transaction begins with the settings that a new session of this role would have. (Not in
 * transactions of a caller who lends us the connection: there the settings are the caller's.) */
static const char defaults[] =
    "SELECT p.name, CASE WHEN p.reset_val IS NOT DISTINCT FROM p.boot_val THEN coalesce(s.value, p.reset_val) ELSE "
    "p.reset_val END"
    " FROM pg_catalog.pg_settings p LEFT JOIN " WANTED
    " ON s.name = p.name WHERE p.name IN ('search_path', 'statement_timeout',"
    " 'lock_timeout', 'idle_in_transaction_session_timeout', 'client_connection_check_interval')";

static bool write_local(const once_pg *pg, const PGresult *settings, once_buf *sql)
{
    bool fine = true;
    /* The server process and the start of the transaction find it in pg_stat_activity. */
    once_buf_puts(sql, "SELECT pg_catalog.format('pid = %s AND extract(epoch FROM xact_start)::text = %L', "
                       "pg_catalog.pg_backend_pid(),"
                       " extract(epoch FROM pg_catalog.now())), pg_catalog.pg_backend_pid()");
    for (int i = 0; i < PQntuples(settings) && fine; i++) {
        const char *name = once__pg_text(settings, i, 0);
        if (options_of(pg, is_not, (void *)name)) fine = add(pg, sql, name, once__pg_text(settings, i, 1));
    }
    adding a = {pg, sql};
    return fine && options_of(pg, add_option, &a) && add_left(pg, sql) && !sql->failed;
}

int once__pg_learn_local(once_pg *pg, once_error *err)
{
    PGresult *settings;
    once_buf sql;
    int rc = once__pg_ask(pg, defaults, "*tT", &settings, err);
    if (rc != ONCE_OK) return rc;
    once_buf_init(&sql, 1 << 24);
    free(pg->local);
    pg->local = write_local(pg, settings, &sql) ? strdup(sql.data) : NULL;
    if (!pg->local) rc = once_no_memory(err, "for PostgreSQL");
    once_buf_release(&sql);
    PQclear(settings);
    return rc;
}

int once__pg_told_local(once_pg *pg, const PGresult *result, once_error *err)
{
    pg->local_at = 0;
    if (PQresultStatus(result) != PGRES_TUPLES_OK) return ONCE_OK;
    snprintf(pg->session, sizeof pg->session, "%.*s", (int)once__pg_bytes(result, 0, 0).len,
             once__pg_text(result, 0, 0));
    const int left = PQfnumber(result, "left_there");
    if (left < 0 || once__pg_null(result, 0, left)) return ONCE_OK;
    return once_fail(err, ONCE_E_SCHEMA,
                     "%s: the only '%.*s' here is a temporary table that another client left in a session of the "
                     "pooler; create it in the"
                     " database, or write its schema before its name",
                     pg->where, (int)once__pg_bytes(result, 0, left).len, once__pg_text(result, 0, left));
}

void once__pg_forget_session(once_pg *pg)
{
    if (pg->shared) pg->session[0] = '\0';
}

/* ---- a new connection, a new transaction ---- */

/* Sent as one message, so that one process answers all of it. Settings are made only in a session of our own. */
int once__pg_greet(once_pg *pg, once_error *err)
{
    assert(!pg->pending && !pg->synced && !pg->presumed_groups);
    char sql[1000];
    PGresult *result;
    const int said = PQbackendPID(pg->conn);
    snprintf(sql, sizeof sql,
             "SELECT pg_catalog.set_config(s.name, s.value, false) FROM " WANTED
             " JOIN pg_catalog.pg_settings p ON p.name = s.name"
             " WHERE p.source = 'default' AND pg_catalog.pg_backend_pid() = %d AND %s;"
             "SELECT pid, format('pid = %%s AND extract(epoch FROM backend_start)::text = %%L', pid, extract(epoch "
             "FROM backend_start))"
             " FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()",
             said, pg->borrowed || pg->found_out ? "false" : "true");
    int rc = once__pg_ask(pg, sql, "?tt", &result, err);
    if (rc != ONCE_OK) return rc;
    const bool known = PQntuples(result) == 1;
    pg->backend = known ? (int)strtol(once__pg_text(result, 0, 0), NULL, 10) : 0;
    pg->shared = pg->found_out || !known || pg->backend != said;
    snprintf(pg->session, sizeof pg->session, "%s", pg->shared ? "" : once__pg_text(result, 0, 1));
    PQclear(result);
    free(pg->local);
    pg->local = NULL;
    if (!pg->shared) return ONCE_OK;
    rc = once__pg_learn_local(pg, err);
    if (rc == ONCE_OK) rc = once__pg_exec_begin(pg, false, err); /* statement pooling has no transactions: fail now */
    return rc == ONCE_OK ? once__pg_exec_end(pg, rc, err) : rc;
}

int once__pg_begin_sql(once_pg *pg, const char *sql, size_t *sent, once_error *err)
{
    assert(pg->pending == 0 && !pg->synced);
    int rc = once__pg_send_text(pg, sql, err);
    *sent += rc == ONCE_OK;
    if (rc != ONCE_OK || !pg->local || pg->borrowed) return rc;
    once__pg_forget_session(pg);
    rc = once__pg_send_text(pg, pg->local, err);
    *sent += rc == ONCE_OK;
    if (rc != ONCE_OK) return rc;
    once__pg_must(pg, pg->local, "1tt+", 0);
    pg->local_at = pg->pending;
    /* The next statements may wait for a lock; the server process must be known before. */
    return PQsendFlushRequest(pg->conn) ? ONCE_OK : once__pg_fail(pg, NULL, err);
}
