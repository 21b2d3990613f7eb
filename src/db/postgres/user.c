/* Statements of the user on a PostgreSQL connection: looking at them, preparing, running, and what their faults mean.
 *
 * PostgreSQL has no authorizer, so the words of a statement are looked at: its first word must not be one of
 * transaction control or of the connection's settings, and no name may begin with once_. That keeps honest people from
 * mistakes. Functions may do more; what matters of that is compared before COMMIT (guard.c).
 *
 * Values travel as text without a type, so that the server infers it from where they stand: 12 fits into an integer, a
 * numeric and a text column alike. A number is the text that the message has where the type keeps that, as numeric and
 * text do. For others, and those are integers above all, 1.0 and 1e3 are written as 1 and 1000. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

enum { INTEGER_DIGITS = 40, VALUES_KEPT = 4 << 20, NAMES_IN_A_ROW = 10 };

static once_pg *of(once_db *db) { return (once_pg *)db; }

/* ---- looking at the words ---- */

typedef struct scanner {
    const char *at, *end;
    once_buf *out; /* with ?1 as $1; NULL: only looking */
} scanner;

static bool is_word_start(char c) { return once_ascii_is_letter(c) || c == '_' || (unsigned char)c >= 0x80; }
static bool is_word(char c) { return is_word_start(c) || (c >= '0' && c <= '9') || c == '$'; }

static void copy(scanner *s, const char *to)
{
    if (s->out) once_buf_append(s->out, s->at, (size_t)(to - s->at));
    s->at = to;
}

/* Behind the closing quote; quotes inside are doubled, and with `escapes` a backslash takes the next one with it. */
static const char *quoted_end(const scanner *s, bool escapes)
{
    const char quote = *s->at;
    for (const char *at = s->at + 1; at < s->end; at++) {
        if (escapes && *at == '\\' && at + 1 < s->end) at++;
        else if (*at == quote && at + 1 < s->end && at[1] == quote) at++;
        else if (*at == quote) return at + 1;
    }
    return s->end;
}

/* Where a string goes on behind a line end, with escapes if it began with them; NULL: it does not. */
static const char *continued(const scanner *s)
{
    const char *at = s->at;
    bool line = false;
    for (; at < s->end && once_ascii_is_space(*at); at++) line |= *at == '\n' || *at == '\r';
    return line && at < s->end && *at == '\'' ? at : NULL;
}

/* Behind $tag$ ... $tag$, or NULL when it is none. */
static const char *dollar_end(const scanner *s)
{
    const char *tag_end = s->at + 1;
    while (tag_end < s->end && is_word(*tag_end) && *tag_end != '$') tag_end++;
    if (tag_end == s->end || *tag_end != '$' || (tag_end > s->at + 1 && s->at[1] >= '0' && s->at[1] <= '9'))
        return NULL;
    const size_t tag = (size_t)(tag_end + 1 - s->at);
    const char *close = memmem(tag_end + 1, (size_t)(s->end - tag_end - 1), s->at, tag);
    return close ? close + tag : s->end;
}

/* Behind a comment that a line ends; to PostgreSQL a carriage return is such an end, too. */
static const char *line_end(const scanner *s)
{
    const char *at = s->at;
    while (at < s->end && *at != '\n' && *at != '\r') at++;
    return at < s->end ? at + 1 : at;
}

/* Behind a comment; PostgreSQL's nest. */
static const char *comment_end(const scanner *s)
{
    int depth = 0;
    for (const char *at = s->at; at + 1 < s->end; at++) {
        if (at[0] == '/' && at[1] == '*') depth++, at++;
        else if (at[0] == '*' && at[1] == '/' && (at++, --depth == 0)) return at + 1;
    }
    return s->end;
}

static bool is_ours(const char *word, size_t len) { return once_ascii_begins(word, len, "once_"); }

static int refuse_word(const char *word, size_t len, once_error *err)
{
    static const char *const refused[] = {
        "abort",   "begin", "checkpoint", "close",     "cluster", "commit", "copy",     "deallocate", "declare",
        "discard", "end",   "execute",    "fetch",     "listen",  "load",   "move",     "prepare",    "reindex",
        "release", "reset", "rollback",   "savepoint", "set",     "start",  "unlisten", "vacuum",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (once_ascii_is(word, len, refused[i]))
            return once_fail(err, ONCE_E_CONFIG,
                             "'%.*s' is not allowed in an effect: transaction and connection are once's", (int)len,
                             word);
    return ONCE_OK;
}

/* Settings of the session by way of a function. */
static int refuse_setting(once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG,
                     "'set_config' is not allowed in an effect: the connection's settings are once's; give a function "
                     "of your own what it needs (ALTER FUNCTION ... SET ...)");
}

/* U&"\006fnce_entry" would be a name of ours that nobody sees. */
static int refuse_escaped_name(once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG,
                     "names with escapes (U&\"...\") are not allowed in an effect; write the name as it is");
}

static bool is_set_config(const char *word, size_t len) { return once_ascii_is(word, len, "set_config"); }

/* It ends with the session, and so would what is written into it; and it hides a table of its name. */
static int refuse_temporary(once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG,
                     "temporary tables are not allowed in an effect: they end with the connection, and hide others of "
                     "their name; use a table of the database");
}

/* CREATE OR REPLACE LOCAL TEMPORARY ... */
static bool may_be_behind_create(const char *word, size_t len)
{
    static const char *const words[] = {"or", "replace", "global", "local"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (once_ascii_is(word, len, words[i])) return true;
    return false;
}

static bool is_temporary(const char *word, size_t len)
{
    return once_ascii_is(word, len, "temp") || once_ascii_is(word, len, "temporary");
}

static int refuse_ours(const char *word, size_t len, once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG, "'%.*s' belongs to once; use other names than 'once_...'",
                     (int)(len < 60 ? len : 60), word);
}

/* Walks over all of it. *statements counts those that are not empty. */
static int scan(scanner *s, size_t *statements, once_error *err)
{
    bool begun = false, creates = false;
    *statements = 0;
    while (s->at < s->end) {
        const char c = *s->at;
        const size_t left = (size_t)(s->end - s->at);
        if (once_ascii_is_space(c)) {
            copy(s, s->at + 1);
            continue;
        }
        if (!begun && left >= 3 && memcmp(s->at, ONCE_BOM, 3) == 0) {
            copy(s, s->at + 3);
            continue;
        }
        if (c == ';') {
            begun = false;
            copy(s, s->at + 1);
            continue;
        }
        if (left > 1 && c == '-' && s->at[1] == '-') {
            copy(s, line_end(s));
            continue;
        }
        if (left > 1 && c == '/' && s->at[1] == '*') {
            copy(s, comment_end(s));
            continue;
        }
        const bool first = !begun;
        begun = true;
        *statements += first;
        if (is_word_start(c)) {
            const char *end = s->at;
            while (end < s->end && is_word(*end)) end++;
            const size_t len = (size_t)(end - s->at);
            const int rc = first ? refuse_word(s->at, len, err) : ONCE_OK;
            if (rc != ONCE_OK) return rc;
            if (is_ours(s->at, len)) return refuse_ours(s->at, len, err);
            if (is_set_config(s->at, len)) return refuse_setting(err);
            if ((creates && is_temporary(s->at, len)) || once_ascii_is(s->at, len, "pg_temp"))
                return refuse_temporary(err);
            creates = (first && once_ascii_is(s->at, len, "create")) || (creates && may_be_behind_create(s->at, len));
            if (len == 1 && (c == 'u' || c == 'U') && s->end - end >= 2 && end[0] == '&' && end[1] == '"')
                return refuse_escaped_name(err);
            bool escapes = len == 1 && (c == 'e' || c == 'E') && end < s->end && *end == '\'';
            copy(s, end);
            while (escapes) {
                copy(s, quoted_end(s, true));
                const char *next = continued(s);
                escapes = next != NULL;
                if (next) copy(s, next);
            }
        } else if (c == '\'') {
            copy(s, quoted_end(s, false));
        } else if (c == '"') {
            const char *end = quoted_end(s, false);
            if (end - s->at > 2 && is_set_config(s->at + 1, (size_t)(end - s->at - 2))) return refuse_setting(err);
            if (end - s->at == sizeof "\"pg_temp\"" - 1 && memcmp(s->at, "\"pg_temp\"", sizeof "\"pg_temp\"" - 1) == 0)
                return refuse_temporary(err);
            if (is_ours(s->at + 1, (size_t)(end - s->at - 1)))
                return refuse_ours(s->at + 1, (size_t)(end - s->at - 2), err);
            copy(s, end);
        } else if (c == '$' && dollar_end(s)) {
            copy(s, dollar_end(s));
        } else if (c == '?' && left > 1 && s->at[1] >= '1' && s->at[1] <= '9') {
            if (s->out) once_buf_append(s->out, "$", 1);
            s->at++;
            const char *end = s->at;
            while (end < s->end && *end >= '0' && *end <= '9') end++;
            copy(s, end);
        } else {
            const char *end = s->at + 1;
            if (c >= '0' && c <= '9')
                while (end < s->end && is_word(*end)) end++;
            copy(s, end);
        }
    }
    return ONCE_OK;
}

int once__pg_look(once_bytes sql, bool whole, once_error *err)
{
    scanner s = {.at = sql.data, .end = sql.data + sql.len};
    size_t statements;
    if (sql.len && memchr(sql.data, '\0', sql.len))
        return once_fail(err, ONCE_E_CONFIG, "the statement contains a NUL byte");
    const int rc = scan(&s, &statements, err);
    if (rc != ONCE_OK || whole) return rc;
    if (statements == 0) return once_fail(err, ONCE_E_CONFIG, "the statement is empty");
    if (statements > 1)
        return once_fail(err, ONCE_E_CONFIG, "more than one statement; write each as an item of its own");
    return ONCE_OK;
}

/* ---- faults ---- */

static once_fault_kind fault_kind(const char *state, int status)
{
    if (strncmp(state, "23", 2) == 0 || strncmp(state, "P0", 2) == 0 || strncmp(state, "44", 2) == 0)
        return ONCE_FAULT_CONSTRAINT;
    switch (once_status_class(status)) {
    case ONCE_CLASS_RETRY: return ONCE_FAULT_RETRY;
    case ONCE_CLASS_PAUSE: return ONCE_FAULT_PAUSE;
    case ONCE_CLASS_FATAL: return ONCE_FAULT_FATAL;
    default: return ONCE_FAULT_DATA;
    }
}

/* Messages about values quote them; reasons and logs must not. A value may have quotes itself, so all from the first to
 * the last one is left out, of the whole text, before it is cut. In other languages there are other quotes: then only
 * the state is said. */
static void without_values(const char *state, const char *text, char *out, size_t size)
{
    const char *first = strchr(text, '"'), *last = strrchr(text, '"');
    if (!first) first = last = text + strlen(text);
    const char *behind = last > first ? last : "";
    bool plain = true;
    for (const char *at = text; at < first; at++) plain &= (unsigned char)*at < 0x80;
    for (const char *at = behind; *at; at++) plain &= (unsigned char)*at < 0x80;
    if (plain) snprintf(out, size, "%.*s%s%s", (int)(first - text), text, *first ? "\"" : "", behind);
    else snprintf(out, size, "a value does not fit (SQLSTATE %s)", state);
}

/* Errors of the server (its disk, its memory, its connections) that a statement has raised by itself, or that only it
 * has met: the server says ERROR and goes on. Damage and a full disk are everybody's. */
static bool is_internal(const once_pg *pg, const PGresult *result, const char *state)
{
    static const char *const states[] = {"XX", "58", "53", "08", "57P"};
    const char *severity = result ? PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED) : NULL;
    if (!state || !severity || strcmp(severity, "ERROR") != 0 || !once__pg_alive(pg)) return false;
    if (strcmp(state, "XX001") == 0 || strcmp(state, "XX002") == 0 || strcmp(state, "53100") == 0) return false;
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strncmp(state, states[i], strlen(states[i])) == 0) return true;
    return false;
}

/* A name that is not there may have been dropped, and then all messages that give it fail: so many in a row are not a
 * message's fault. */
static bool is_of_message(once_pg_stmt *stmt, once_pg_blame blame)
{
    if (blame == ONCE_PG_BLAME_NAME && stmt->names < NAMES_IN_A_ROW) return ++stmt->names;
    return blame == ONCE_PG_BLAME_VALUE;
}

static void say_fault(once_pg *pg, const char *state, const char *text, once_pg_blame blame, once_fault *fault)
{
    snprintf(fault->state, sizeof fault->state, "%s", state ? state : "");
    const char *why = text             ? text
                      : pg->silence[0] ? pg->silence
                      : pg->conn       ? PQerrorMessage(pg->conn)
                                       : "the connection was lost";
    snprintf(fault->text, sizeof fault->text, "%s", why[0] ? why : "the answer is none that a statement has");
    if (blame != ONCE_PG_BLAME_NOBODY)
        once__pg_say_blame(state, fault->kind == ONCE_FAULT_DATA, fault->text, sizeof fault->text);
    else if (text && fault->kind == ONCE_FAULT_DATA) without_values(state, text, fault->text, sizeof fault->text);
    fault->text[strcspn(fault->text, "\n")] = '\0';
}

/* Of a statement with its values; stmt NULL: of something else. */
static int fault_given(once_pg *pg, const PGresult *result, once_pg_stmt *stmt, const once_value *values, size_t n,
                       once_fault *fault)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *text = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *name = result ? PQresultErrorField(result, PG_DIAG_CONSTRAINT_NAME) : NULL;
    const once_pg_given given = {stmt ? stmt->sql : NULL, values, stmt ? stmt->types : NULL, n};
    const once_pg_blame blame = result && stmt ? once__pg_blame(result, &given) : ONCE_PG_BLAME_NOBODY;
    int status = is_of_message(stmt, blame) ? ONCE_E_MESSAGE : once__pg_status(state);
    once__pg_heed_state(pg, state);
    const once_fault_kind kind =
        is_internal(pg, result, state) ? ONCE_FAULT_INTERNAL : fault_kind(state ? state : "", status);
    if (kind == ONCE_FAULT_CONSTRAINT || kind == ONCE_FAULT_DATA || kind == ONCE_FAULT_INTERNAL)
        status = ONCE_E_MESSAGE;
    if (!fault) return status;
    *fault = (once_fault){.kind = kind, .changed = true, .aborted = status == ONCE_E_UNAVAILABLE};
    snprintf(fault->constraint, sizeof fault->constraint, "%s", name ? name : "");
    say_fault(pg, state, text, blame, fault);
    return status;
}

static int fault_of(once_pg *pg, const PGresult *result, once_fault *fault)
{
    return fault_given(pg, result, NULL, NULL, 0, fault);
}

int once__pg_fault(once_pg *pg, const PGresult *result, once_fault *fault) { return fault_of(pg, result, fault); }

static int bad_value(once_fault *fault, const char *text)
{
    if (fault) {
        *fault = (once_fault){.kind = ONCE_FAULT_DATA};
        snprintf(fault->state, sizeof fault->state, "22021");
        snprintf(fault->text, sizeof fault->text, "%s", text);
    }
    return ONCE_E_MESSAGE;
}

/* ---- preparing ---- */

static int prepare_failed(once_pg *pg, const PGresult *result, once_error *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE),
               *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    if (!state || !text) return once__pg_fail(pg, result, err);
    if (strcmp(state, "42P01") == 0 || strcmp(state, "42703") == 0 || strcmp(state, "42883") == 0 ||
        strncmp(state, "3F", 2) == 0)
        return once_fail(err, ONCE_E_SCHEMA, "%s; create it in the database first", text);
    if (strcmp(state, "42501") == 0 || strcmp(state, "42P05") == 0) return once__pg_fail(pg, result, err);
    if (strncmp(state, "42", 2) == 0 || strncmp(state, "22", 2) == 0) return once_fail(err, ONCE_E_CONFIG, "%s", text);
    return once__pg_fail(pg, result, err);
}

/* Whether anything in the database may be checked only at commit. */
static int look_for_deferrable(once_pg *pg, once_error *err)
{
    PGresult *result;
    const int rc = once__pg_ask(pg,
                                "SELECT EXISTS(SELECT FROM pg_catalog.pg_constraint WHERE condeferrable)"
                                " OR EXISTS(SELECT FROM pg_catalog.pg_trigger WHERE tgdeferrable)",
                                "1t", &result, err);
    if (rc != ONCE_OK) return rc;
    pg->deferrable = once__pg_text(result, 0, 0)[0] == 't';
    PQclear(result);
    return ONCE_OK;
}

static int keep_types(once_pg_stmt *stmt, const PGresult *described, once_error *err)
{
    const int n = PQnparams(described);
    if (stmt->types &&
        n != stmt->stmt.params) /* the server reads strings differently now (standard_conforming_strings) */
        return once_fail(
            err, ONCE_E_CONFIG,
            "the database found %d parameters in a statement, and finds %d since it was connected to again",
            stmt->stmt.params, n);
    unsigned *types = calloc((size_t)n + 1, sizeof *types);
    if (!types) return once_no_memory(err, "for a statement");
    for (int i = 0; i < n; i++) types[i] = PQparamtype(described, i);
    free(stmt->types);
    stmt->types = types;
    stmt->stmt.params = n;
    return ONCE_OK;
}

static int prepare_as(once_pg *pg, const char *name, once_pg_stmt *stmt, once_error *err)
{
    PGresult *results[2] = {0};
    if (!once__pg_alive(pg) || !PQsendPrepare(pg->conn, name, stmt->sql, 0, NULL) ||
        !PQsendDescribePrepared(pg->conn, name))
        return once__pg_fail(pg, NULL, err);
    pg->pending += 2;
    int rc = once__pg_sync(pg, err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &results[0], err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &results[1], err);
    if (rc == ONCE_OK) rc = once__pg_synced(pg, err);
    if (rc == ONCE_OK && PQresultStatus(results[0]) != PGRES_COMMAND_OK) rc = prepare_failed(pg, results[0], err);
    else if (rc == ONCE_OK && PQresultStatus(results[1]) != PGRES_COMMAND_OK) rc = prepare_failed(pg, results[1], err);
    if (rc == ONCE_OK) rc = keep_types(stmt, results[1], err);
    once__pg_clear(results, 2);
    return rc;
}

/* In a shared session it is only looked at, without a name, as a transaction of ours would see it. */
static int prepare_on_server(once_pg *pg, once_pg_stmt *stmt, once_error *err)
{
    if (!pg->shared) return prepare_as(pg, stmt->name, stmt, err);
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = prepare_as(pg, "", stmt, err);
    return once__pg_exec_end(pg, rc, err);
}

/* ---- rights ---- */

void once__pg_put_words(const once_pg *pg, const char *sql, once_buf *out)
{
    bool first = true;
    for (const char *at = sql; *at;) {
        const char *end = at;
        while (is_word(*end) || (*end == '.' && end > at)) end++;
        if (end == at || !is_word_start(*at)) {
            at = end > at ? end : at + 1;
            continue;
        }
        char *word = PQescapeLiteral(pg->conn, at, (size_t)(end - at));
        if (word) once_buf_printf(out, "%s%s", first ? "" : ", ", word);
        first = false;
        PQfreemem(word);
        at = end;
    }
}

/* Of the tables that the statement may mean and of what it may do there, what this role may not: as GRANTs. A guess,
 * and only for people. */
static void guess_grants(once_pg *pg, const char *sql, char *out, size_t size)
{
    once_buf ask;
    PGresult *result = NULL;
    out[0] = '\0';
    once_buf_init(&ask, 1 << 20);
    once_buf_puts(&ask, "WITH word AS (SELECT DISTINCT w, to_regclass(w) AS oid FROM unnest(ARRAY[");
    once__pg_put_words(pg, sql, &ask);
    once_buf_puts(
        &ask,
        "]::text[]) AS w), verb AS (SELECT v FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS v WHERE"
        " EXISTS (SELECT FROM word WHERE upper(w) = v OR (v = 'SELECT' AND upper(w) IN ('WHERE', 'FROM', 'RETURNING', "
        "'CONFLICT')))),"
        " missing AS (SELECT oid, string_agg(v, ', ' ORDER BY v) AS what FROM word, verb WHERE oid IS NOT NULL"
        " AND NOT has_table_privilege(oid, v) GROUP BY oid)"
        " SELECT string_agg(format('GRANT %s ON %I.%I TO %I', what, n.nspname, c.relname, current_user), '; ') FROM "
        "missing JOIN pg_class c USING (oid)"
        " JOIN pg_namespace n ON n.oid = c.relnamespace");
    if (!ask.failed && once__pg_exec_begin(pg, false, NULL) == ONCE_OK) {
        const int rc = once__pg_ask(pg, ask.data, "1T", &result, NULL);
        if (rc == ONCE_OK) snprintf(out, size, "; let the owner say: %s", once__pg_text(result, 0, 0));
        if (rc == ONCE_OK && once__pg_null(result, 0, 0)) out[0] = '\0';
        (void)once__pg_exec_end(pg, rc, NULL);
    }
    PQclear(result);
    once_buf_release(&ask);
}

/* What the server would do, without doing it: it tells nobody who may not do it. Statements that cannot be asked about
 * are not. */
static int explain(once_pg *pg, const once_pg_stmt *stmt, PGresult **out, once_error *err)
{
    once_buf sql;
    const char **nothing = calloc((size_t)stmt->stmt.params + 1, sizeof *nothing);
    once_buf_init(&sql, strlen(stmt->sql) + 32);
    once_buf_printf(&sql, "EXPLAIN (COSTS off) %s",
                    stmt->sql); /* in brackets: no word of the statement can be taken for ANALYZE, which would run it */
    int rc = sql.failed || !nothing ? once_no_memory(err, "for a statement") : ONCE_OK;
    if (rc == ONCE_OK && !PQsendQueryParams(pg->conn, sql.data, stmt->stmt.params, NULL, nothing, NULL, NULL, 0))
        rc = once__pg_fail(pg, NULL, err);
    if (rc == ONCE_OK) {
        pg->pending++;
        rc = once__pg_sync(pg, err);
    }
    if (rc == ONCE_OK) rc = once__pg_next(pg, out, err);
    if (rc == ONCE_OK) rc = once__pg_synced(pg, err);
    once_buf_release(&sql);
    free(nothing);
    return rc;
}

/* The GRANTs that the statement lacks. */
static int look_for_rights(once_pg *pg, const once_pg_stmt *stmt, once_error *err)
{
    char grants[300], text[200];
    PGresult *result = NULL;
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = explain(pg, stmt, &result, err);
    const char *state = rc == ONCE_OK ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const bool denied = state && strcmp(state, "42501") == 0;
    snprintf(text, sizeof text, "%s", denied ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : "");
    PQclear(result);
    (void)once__pg_exec_end(pg, denied ? ONCE_E_DENIED : ONCE_E_ABORTED, NULL); /* rolled back either way */
    if (!denied) return rc;
    guess_grants(pg, stmt->sql, grants, sizeof grants);
    return once_fail(err, ONCE_E_DENIED, "%s%s", text, grants);
}

int once__pg_user_rights(once_pg *pg, once_error *err)
{
    int rc = ONCE_OK;
    for (const once_pg_stmt *stmt = pg->users; stmt && rc == ONCE_OK; stmt = stmt->next)
        rc = look_for_rights(pg, stmt, err);
    return rc;
}

static int user_rights(once_db *db, once_error *err) { return once__pg_user_rights(of(db), err); }

static void user_free(once_stmt *stmt)
{
    once_pg_stmt *mine = (once_pg_stmt *)stmt;
    once_pg_stmt **at = &of(stmt->db)->users;
    while (*at && *at != mine) at = &(*at)->next;
    if (*at) *at = mine->next;
    free(mine->types);
    free(mine->sql);
    free(mine);
}

/* Whether it means what somebody else left in a shared session; each transaction asks that from now on. */
static int look_for_left(once_pg *pg, once_error *err)
{
    int rc = once__pg_learn_local(pg, err);
    if (rc == ONCE_OK) rc = once__pg_exec_begin(pg, false, err);
    return rc == ONCE_OK ? once__pg_exec_end(pg, rc, err) : rc;
}

static int user_prepare(once_db *db, once_bytes sql, once_stmt **out, once_error *err)
{
    once_pg *pg = of(db);
    int rc = once__pg_look(sql, false, err);
    if (rc == ONCE_OK) rc = once__pg_connect(pg, 0, err);
    if (rc == ONCE_OK && !pg->users) rc = look_for_deferrable(pg, err);
    if (rc != ONCE_OK) return rc;
    once_buf text;
    once_buf_init(&text, 4 * sql.len + 64);
    scanner s = {.at = sql.data, .end = sql.data + sql.len, .out = &text};
    size_t statements;
    once_pg_stmt *stmt = calloc(1, sizeof *stmt);
    if (!stmt || scan(&s, &statements, err) != ONCE_OK || text.failed ||
        !(stmt->sql = strdup(text.data ? text.data : ""))) {
        once_buf_release(&text);
        free(stmt);
        return once_no_memory(err, "for a statement");
    }
    once_buf_release(&text);
    stmt->stmt.db = db;
    char number[16];
    snprintf(number, sizeof number, "u%u", pg->next_user++); /* two may be equal */
    once__pg_name(stmt->name, number, stmt->sql);
    const bool known = pg->found_out;
    rc = prepare_on_server(pg, stmt, err);
    if (rc != ONCE_OK && pg->found_out && !known) {
        rc = once__pg_connect(pg, 0, err);
        if (rc == ONCE_OK) rc = prepare_on_server(pg, stmt, err);
    }
    if (rc == ONCE_OK) rc = look_for_rights(pg, stmt, err);
    stmt->next = pg->users;
    pg->users = stmt;
    if (rc == ONCE_OK && pg->shared) rc = look_for_left(pg, err);
    if (rc == ONCE_OK) *out = &stmt->stmt;
    else user_free(&stmt->stmt);
    return rc;
}

/* ---- running ---- */

/* Types that read any number, and differ in what they keep of its spelling. Not those of integers, nor domains, which
 * may be of them. */
static bool reads_any_number(unsigned type)
{
    static const unsigned types[] = {PG_NUMERIC, PG_FLOAT4, PG_FLOAT8, PG_TEXT,
                                     PG_VARCHAR, PG_BPCHAR, PG_JSON,   PG_JSONB};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i] == type) return true;
    return false;
}

/* Where the server may want an integer, one is written without point and exponent. */
static void put_number(once_buf *to, once_bytes text, unsigned type)
{
    once_decimal d;
    const bool whole = !reads_any_number(type) &&
                       once_json_decimal((once_json_value){.type = ONCE_JSON_REAL, .raw = text}, &d) &&
                       d.exponent >= 0 && d.exponent < INTEGER_DIGITS;
    if (!whole) {
        once_buf_append(to, text.data, text.len);
        return;
    }
    if (d.negative) once_buf_puts(to, "-");
    if (d.head.len + d.tail.len == 0) once_buf_puts(to, "0");
    once_buf_append(to, d.head.data, d.head.len);
    once_buf_append(to, d.tail.data, d.tail.len);
    for (int64_t i = 0; i < d.exponent; i++) once_buf_puts(to, "0");
}

static int no_room(once_fault *fault)
{
    if (fault) *fault = (once_fault){.kind = ONCE_FAULT_RETRY, .text = "out of memory for the values of a statement"};
    return ONCE_E_NOMEM;
}

static int put_value(once_buf *to, const once_value *value, unsigned type, once_fault *fault)
{
    switch (value->type) {
    case ONCE_VALUE_NULL: return ONCE_OK;
    case ONCE_VALUE_INTEGER: once_buf_printf(to, "%lld", (long long)value->integer); break;
    case ONCE_VALUE_NUMBER: put_number(to, value->number.text, type); break;
    case ONCE_VALUE_TEXT:
        if (value->text.len && memchr(value->text.data, '\0', value->text.len))
            return bad_value(fault, "a text with a NUL character, which PostgreSQL cannot keep");
        once_buf_append(to, value->text.data, value->text.len);
    }
    once_buf_append(to, "", 1);
    return ONCE_OK;
}

/* Fills pg->texts, as libpq wants it: each ends with a NUL. */
static int put_values(once_pg *pg, const once_value *values, const unsigned *types, size_t n, once_fault *fault)
{
    if (pg->values.capacity > VALUES_KEPT) once_buf_release(&pg->values);
    once_buf_clear(&pg->values);
    if (n > pg->texts_size) {
        void *grown = realloc(pg->texts, n * sizeof *pg->texts);
        if (!grown) return no_room(fault);
        pg->texts = grown;
        pg->texts_size = n;
    }
    for (size_t i = 0; i < n; i++) {
        const int rc = put_value(&pg->values, &values[i], types[i], fault);
        if (rc != ONCE_OK) return rc;
    }
    if (pg->values.failed) return no_room(fault);
    const char *at = pg->values.data;
    for (size_t i = 0; i < n; i++) {
        pg->texts[i] = values[i].type == ONCE_VALUE_NULL ? NULL : at;
        if (pg->texts[i]) at += strlen(at) + 1;
    }
    return ONCE_OK;
}

static int user_send(once_stmt *base, const once_value *values, size_t n, once_fault *fault)
{
    once_pg_stmt *stmt = (once_pg_stmt *)base;
    once_pg *pg = of(base->db);
    int rc = put_values(pg, values, stmt->types, n, fault);
    if (rc != ONCE_OK) return rc;
    pg->effects = stmt->rides = true;
    const bool sent = once__pg_alive(pg) &&
                      (pg->shared ? PQsendQueryParams(pg->conn, stmt->sql, (int)n, NULL, pg->texts, NULL, NULL, 1)
                                  : PQsendQueryPrepared(pg->conn, stmt->name, (int)n, pg->texts, NULL, NULL, 1));
    if (sent && once__pg_sent(pg, pg->values.len + (pg->shared ? strlen(stmt->sql) : 0), NULL) == ONCE_OK)
        return ONCE_OK;
    rc = fault_of(pg, NULL, fault);
    once__pg_drop(pg);
    return rc;
}

static int64_t rows_of(PGresult *result)
{
    const char *text = PQcmdTuples(result);
    return text[0] ? strtoll(text, NULL, 10) : 0;
}

/* Of the statements whose answers nobody has looked at for themselves it is known now whether all of them succeeded. */
static void end_ride(once_pg *pg, bool succeeded)
{
    for (once_pg_stmt *stmt = pg->users; stmt; stmt = stmt->next) {
        if (stmt->rides && succeeded) stmt->names = 0;
        stmt->rides = false;
    }
}

static int user_gather(once_stmt *base, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    once_pg_stmt *stmt = (once_pg_stmt *)base;
    once_pg *pg = of(base->db);
    PGresult *result = NULL;
    int rc = ONCE_OK;
    if (!pg->synced) rc = once__pg_sync(pg, NULL);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, NULL);
    if (rc != ONCE_OK) return fault_of(pg, NULL, fault);
    stmt->rides = false;
    const ExecStatusType status = PQresultStatus(result);
    const bool answered = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
    if (answered) *rows = rows_of(result);
    else rc = fault_given(pg, result, stmt, values, n, fault);
    if (answered) stmt->names = 0;
    else if (!PQresultErrorField(result, PG_DIAG_SQLSTATE)) once__pg_drop(pg); /* who knows what it says next */
    PQclear(result);
    if (rc == ONCE_OK && pg->pending == 0 && once__pg_synced(pg, NULL) != ONCE_OK) rc = fault_of(pg, NULL, fault);
    return rc;
}

static void user_drop(once_db *db)
{
    once_pg *pg = of(db);
    end_ride(pg, false);
    if (!once__pg_alive(pg) || (!pg->pending && !pg->synced)) return;
    if (!pg->synced && once__pg_sync(pg, NULL) != ONCE_OK) return;
    (void)once__pg_confirm(pg, NULL);
    (void)once__pg_synced(pg, NULL);
}

static int user_presume(once_db *db, once_error *err)
{
    once_pg *pg = of(db);
    if (!pg->pending) return ONCE_OK;
    const int rc = once__pg_sync(pg, err);
    if (rc != ONCE_OK) return rc;
    pg->pending = 0;
    pg->synced = false;
    pg->rides++;
    pg->presumed = true;
    return ONCE_OK;
}

/* A statement that was presumed to succeed did not. What passes, or stops everything, is said as it is. The rest a run
 * with savepoints will find again, and say whose it is. */
static int disproved(once_pg *pg, const PGresult *result, once_error *err)
{
    once_fault fault;
    const int rc = fault_of(pg, result, &fault);
    const bool found_again = fault.kind == ONCE_FAULT_CONSTRAINT || fault.kind == ONCE_FAULT_DATA ||
                             fault.kind == ONCE_FAULT_INTERNAL || fault.kind == ONCE_FAULT_PAUSE;
    return once_fail(err, found_again ? ONCE_E_MESSAGE : rc, "%s: %s", pg->where, fault.text);
}

static int read_rides(once_pg *pg, once_error *err)
{
    int rc = ONCE_OK;
    while (pg->rides) {
        PGresult *result = once__pg_read(pg);
        if (!result || !once__pg_alive(pg)) {
            PQclear(result);
            const int lost = once__pg_lost(pg, rc == ONCE_OK ? err : NULL);
            return rc == ONCE_OK ? lost : rc;
        }
        const ExecStatusType status = PQresultStatus(result);
        if (status == PGRES_PIPELINE_SYNC) {
            pg->rides--;
        } else {
            if (rc == ONCE_OK && status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
                rc = disproved(pg, result, err);
            for (PGresult *rest; (rest = once__pg_read(pg));) PQclear(rest);
        }
        PQclear(result);
    }
    return rc;
}

int once__pg_confirm(once_pg *pg, once_error *err)
{
    if (!pg->rides) return ONCE_OK;
    const int rc = read_rides(pg, err);
    end_ride(pg, rc == ONCE_OK);
    return rc;
}

static int user_confirm(once_db *db, once_error *err) { return once__pg_confirm(of(db), err); }

static int user_run(once_stmt *stmt, const once_value *values, size_t n, int64_t *rows, once_fault *fault)
{
    int64_t ignored;
    int rc = user_send(stmt, values, n, fault);
    if (rc == ONCE_OK) rc = user_gather(stmt, values, n, rows ? rows : &ignored, fault);
    user_drop(stmt->db);
    return rc;
}

/* ---- around them ---- */

/* Statements without results, in one round. */
static int say(once_pg *pg, const char *const *sql, size_t n, once_error *err)
{
    PGresult *results[4];
    int rc = ONCE_OK;
    assert(n <= 4);
    for (size_t i = 0; i < n && rc == ONCE_OK; i++) rc = once__pg_send_text(pg, sql[i], err);
    if (rc == ONCE_OK) rc = once__pg_round(pg, results, n, err);
    if (rc == ONCE_OK) once__pg_clear(results, n);
    return rc;
}

/* Asks the server to check now what it would check at commit, and takes back that it was asked: what is deferred stays
 * so. */
static int user_owes(once_db *db, once_fault *fault)
{
    static const char *const sql[] = {"SAVEPOINT once_owes", "SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK TO once_owes",
                                      "RELEASE once_owes"};
    once_pg *pg = of(db);
    PGresult *result = NULL;
    if (!pg->deferrable) return ONCE_OK;
    int rc = ONCE_OK, owes = ONCE_OK;
    for (size_t i = 0; i < 4 && rc == ONCE_OK; i++) rc = once__pg_send_text(pg, sql[i], NULL);
    if (rc == ONCE_OK) rc = once__pg_sync(pg, NULL);
    for (size_t i = 0; i < 4 && rc == ONCE_OK; i++) {
        rc = once__pg_next(pg, &result, NULL);
        if (rc == ONCE_OK && owes == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
            owes = fault_of(pg, result, fault);
        PQclear(rc == ONCE_OK ? result : NULL);
    }
    if (rc == ONCE_OK) rc = once__pg_synced(pg, NULL);
    return owes == ONCE_OK && rc != ONCE_OK ? fault_of(pg, NULL, fault) : owes;
}

static int user_savepoint(once_db *db, once_error *err)
{
    static const char *const sql[] = {"SAVEPOINT once_message"};
    const int rc = say(of(db), sql, 1, err);
    if (rc == ONCE_OK) of(db)->savepoints++;
    return rc;
}

static int user_savepoint_release(once_db *db, once_error *err)
{
    static const char *const sql[] = {"RELEASE once_message"};
    assert(of(db)->savepoints > 0 || !once__pg_alive(of(db)));
    if (of(db)->savepoints) of(db)->savepoints--;
    return say(of(db), sql, 1, err);
}

static int user_savepoint_undo(once_db *db, once_error *err)
{
    static const char *const sql[] = {"ROLLBACK TO once_message", "RELEASE once_message"};
    if (of(db)->savepoints) of(db)->savepoints--;
    return say(of(db), sql, 2, err);
}

static int user_mark_send(once_db *db, bool release, once_error *err)
{
    return once__pg_send_text(of(db), release ? "RELEASE once_message" : "SAVEPOINT once_message", err);
}

static int user_mark_gather(once_db *db, once_error *err)
{
    once_pg *pg = of(db);
    PGresult *result = NULL;
    int rc = pg->synced ? ONCE_OK : once__pg_sync(pg, err);
    if (rc == ONCE_OK) rc = once__pg_next(pg, &result, err);
    if (rc == ONCE_OK && PQresultStatus(result) != PGRES_COMMAND_OK) rc = once__pg_fail(pg, result, err);
    PQclear(result);
    return rc == ONCE_OK && pg->pending == 0 ? once__pg_synced(pg, err) : rc;
}

static bool user_defers(once_db *db) { return of(db)->deferrable; }

/* Several processes may run the same script at the same moment; "IF NOT EXISTS" alone does not help against that. */
static int user_script(once_db *db, once_bytes sql, once_error *err)
{
    once_pg *pg = of(db);
    int rc = once__pg_look(sql, true, err);
    if (rc == ONCE_OK) rc = once__pg_connect(pg, 0, err);
    if (rc != ONCE_OK) return rc;
    if (PQtransactionStatus(pg->conn) != PQTRANS_IDLE)
        return once_fail(err, ONCE_E_USAGE, "a script runs in a transaction of its own");
    char *text = strndup(sql.len ? sql.data : "", sql.len);
    if (!text) return once_no_memory(err, "for a statement");
    PGresult *result = NULL;
    rc = once__pg_exec_begin(pg, true, err);
    if (rc == ONCE_OK)
        rc = once__pg_exec(pg,
                           "SELECT pg_advisory_xact_lock(1869505383, (SELECT oid FROM pg_namespace WHERE nspname = "
                           "current_schema())::integer)",
                           NULL, err);
    if (rc == ONCE_OK && !PQexitPipelineMode(pg->conn)) rc = once__pg_fail(pg, NULL, err);
    if (rc == ONCE_OK) {
        result = once__pg_simple(pg, text);
        const ExecStatusType status = PQresultStatus(result);
        if (!result) {
            rc = once__pg_fail(pg, NULL, err);
            once__pg_drop(pg);
        } else if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_EMPTY_QUERY)
            rc = prepare_failed(pg, result, err);
        if (rc != ONCE_OK && once_status_class(rc) == ONCE_CLASS_RETRY &&
            PQresultErrorField(result, PG_DIAG_SQLSTATE) &&
            strncmp(PQresultErrorField(result, PG_DIAG_SQLSTATE), "23", 2) == 0)
            rc = once_fail(err, ONCE_E_CONFIG, "%s", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
        PQclear(result);
        if (once__pg_alive(pg)) PQenterPipelineMode(pg->conn);
    }
    free(text);
    return once__pg_exec_end(pg, rc, err);
}

static int user_describe(once_db *db, char *out, size_t len, once_error *err)
{
    once_pg *pg = of(db);
    PGresult *result = NULL;
    int rc = once__pg_exec_begin(pg, false, err);
    if (rc != ONCE_OK) return rc;
    rc = once__pg_ask(pg,
                      "SELECT split_part(current_setting('server_version'), ' ', 1), current_schema(), current_user,"
                      " current_setting('fsync'), pg_is_in_recovery()",
                      "1tTttt", &result, err);
    const char *current = rc == ONCE_OK ? once__pg_text(result, 0, 1) : "",
               *tables = pg->tables_in[0] ? pg->tables_in : current;
    const bool other = strcmp(current, tables) != 0; /* the store's tables are not where statements look first */
    if (rc == ONCE_OK)
        snprintf(out, len, "PostgreSQL %.20s schema=%.40s%s%.40s role=%.40s fsync=%s%s%s", once__pg_text(result, 0, 0),
                 tables, other ? " current_schema=" : "", other ? current : "", once__pg_text(result, 0, 2),
                 once__pg_text(result, 0, 3), once__pg_text(result, 0, 4)[0] == 't' ? " standby=yes" : "",
                 pg->shared ? " pooler=yes" : "");
    PQclear(result);
    return once__pg_exec_end(pg, rc, err);
}

const once_db_ops once__pg_ops = {
    .reads_numbers = true,
    .prepare = user_prepare,
    .stmt_free = user_free,
    .stmt_run = user_run,
    .stmt_send = user_send,
    .stmt_gather = user_gather,
    .mark_send = user_mark_send,
    .mark_gather = user_mark_gather,
    .drop = user_drop,
    .presume = user_presume,
    .confirm = user_confirm,
    .defers = user_defers,
    .owes = user_owes,
    .savepoint = user_savepoint,
    .savepoint_release = user_savepoint_release,
    .savepoint_undo = user_savepoint_undo,
    .script = user_script,
    .describe = user_describe,
    .identity = once__pg_identity,
    .rights = user_rights,
    .begin = once__pg_tx_begin,
    .commit = once__pg_tx_commit,
    .rollback = once__pg_tx_rollback,
    .close = once__pg_close_own,
};
