/* Checks the words of a statement of the user.
 *
 * PostgreSQL has no authorizer, so words are checked: the first word must not control transactions or settings of the
 * connection, and no name may begin with once_. That prevents honest mistakes. Functions can do more; guard.c compares
 * what matters before COMMIT. */
#include <assert.h>
#include <string.h>

#include "base/ascii.h"
#include "base/json.h"
#include "db/postgres/user.h"

#include "base/banned.h"

typedef struct scanner {
    const char *at, *end;
    once_buf *out; /* gets the text with $1 for ?1; NULL: only checked */
} scanner;

static bool is_word_start(char c) { return once_ascii_is_letter(c) || c == '_' || (unsigned char)c >= 0x80; }
static bool is_word(char c) { return is_word_start(c) || (c >= '0' && c <= '9') || c == '$'; }

static void copy(scanner *s, const char *to)
{
    assert(to >= s->at && to <= s->end);
    if (s->out) once_buf_append(s->out, s->at, (size_t)(to - s->at));
    s->at = to;
}

/* The end behind the closing quote. Quotes inside are doubled; with `escapes` a backslash quotes the next character. */
static const char *quoted_end(const scanner *s, bool escapes)
{
    assert(*s->at == '\'' || *s->at == '"');
    const char quote = *s->at;
    for (const char *at = s->at + 1; at < s->end; at++) {
        if (escapes && *at == '\\' && at + 1 < s->end) at++;
        else if (*at == quote && at + 1 < s->end && at[1] == quote) at++;
        else if (*at == quote) return at + 1;
    }
    return s->end;
}

/* Where a string continues on a later line; NULL: it does not. */
static const char *continued(const scanner *s)
{
    const char *at = s->at;
    bool line = false;
    for (; at < s->end && once_ascii_is_space(*at); at++) line |= *at == '\n' || *at == '\r';
    return line && at < s->end && *at == '\'' ? at : NULL;
}

/* The end behind $tag$ ... $tag$; NULL: it is no dollar quote. */
static const char *dollar_end(const scanner *s)
{
    assert(*s->at == '$');
    const char *tag_end = s->at + 1;
    while (tag_end < s->end && is_word(*tag_end) && *tag_end != '$') tag_end++;
    if (tag_end == s->end || *tag_end != '$' || (tag_end > s->at + 1 && s->at[1] >= '0' && s->at[1] <= '9'))
        return NULL;
    const size_t tag = (size_t)(tag_end + 1 - s->at);
    const char *close = memmem(tag_end + 1, (size_t)(s->end - tag_end - 1), s->at, tag);
    return close ? close + tag : s->end;
}

/* The end of a -- comment; for PostgreSQL a carriage return ends it, too. */
static const char *line_end(const scanner *s)
{
    assert(s->at[0] == '-' && s->at[1] == '-');
    const char *at = s->at;
    while (at < s->end && *at != '\n' && *at != '\r') at++;
    return at < s->end ? at + 1 : at;
}

/* The end behind a comment; in PostgreSQL comments nest. */
static const char *comment_end(const scanner *s)
{
    assert(s->at[0] == '/' && s->at[1] == '*');
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
                             "'%.*s' is not allowed in an effect: once controls the transaction and the connection",
                             (int)len, word);
    return ONCE_OK;
}

/* set_config changes settings like SET does. */
static int refuse_setting(once_error *err)
{
    return once_fail(
        err, ONCE_E_CONFIG,
        "'set_config' is not allowed in an effect: once controls the settings of the connection; set them for a "
        "function of your own (ALTER FUNCTION ... SET ...)");
}

/* U&"\006fnce_entry" would be a hidden name of ours. */
static int refuse_escaped_name(once_error *err)
{
    return once_fail(err, ONCE_E_CONFIG,
                     "names with escapes (U&\"...\") are not allowed in an effect; write the name as it is");
}

static bool is_set_config(const char *word, size_t len) { return once_ascii_is(word, len, "set_config"); }

/* A temporary table ends with the session, and so do its rows; and it hides a table of the same name. */
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

/* Checks the whole text. *statements counts statements that are not empty. */
static int scan(scanner *s, size_t *statements, once_error *err)
{
    assert(s->at <= s->end);
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

int once__pg_number_params(once_bytes sql, once_buf *out, once_error *err)
{
    scanner s = {.at = sql.data, .end = sql.data + sql.len, .out = out};
    size_t statements;
    return scan(&s, &statements, err);
}

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
