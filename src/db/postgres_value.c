/* Whose fault an error is that reads like that of a faulty statement: the statement's, so that nothing will work until somebody acts, or that of the
 * message which gave it a value.
 *
 * Some types and functions have a grammar of their own or name things, and what they cannot read has the states of a statement that cannot be
 * read: nextval(:x) says "relation ... does not exist" as a table does that was dropped. Texts are translated, so they are not compared with words. It is
 * the message's fault where the server could not read a parameter at all, or where what it complains about is what the message has given:
 *
 *   - A statement of the user's that no longer fits its tables says at which of its own characters; what its values name has no such place.
 *   - The name is in the error, between quotes, as a value of the message has it, and no literal of the statement has the same.
 *   - In a statement that a function builds (EXECUTE), the name stands where the value was put in. A function's own statements are its own.
 *
 * Everything else is in doubt, and is not blamed on a message. */
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "db/postgres.h"

#include "base/banned.h"

enum { NAME_BYTES = 63, PARTS_MAX = 4 };

typedef struct complaint {
    const char *state, *text, *query; /* NULL: it does not say */
    once_buf context;                 /* the lines of it, from the innermost on */
    bool at_statement;
    long at; /* the character of `query`, from 1 on; 0: it does not say */
} complaint;

/* Without the line that some servers add to every error (log_parameter_max_length_on_error), which has all values of the statement. */
static size_t context_len(const char *context)
{
    const char *listed = strstr(context, ": $1 = ");
    if (!listed) return strlen(context);
    while (listed > context && listed[-1] != '\n') listed--;
    return listed > context ? (size_t)(listed - context) - 1 : 0;
}

static complaint read_complaint(const PGresult *result)
{
    const char *at = PQresultErrorField(result, PG_DIAG_INTERNAL_POSITION), *context = PQresultErrorField(result, PG_DIAG_CONTEXT);
    complaint c = {
        .state = PQresultErrorField(result, PG_DIAG_SQLSTATE),
        .text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
        .query = PQresultErrorField(result, PG_DIAG_INTERNAL_QUERY),
        .at_statement = PQresultErrorField(result, PG_DIAG_STATEMENT_POSITION) != NULL,
        .at = at ? strtol(at, NULL, 10) : 0,
    };
    once_buf_init(&c.context, (size_t)1 << 30);
    once_buf_append(&c.context, context ? context : "", context ? context_len(context) : 0);
    return c;
}

/* ---- what a value looks like in an error ---- */

/* Where a name ends that the server cuts. */
static size_t cut(const char *name, size_t len)
{
    if (len <= NAME_BYTES) return len;
    for (len = NAME_BYTES; len && ((unsigned char)name[len] & 0xc0) == 0x80;) len--;
    return len;
}

/* The next part of a name like a."B c", as the server keeps it. */
static const char *put_part(const char *at, once_buf *out)
{
    const size_t begun = out->len;
    while (once_ascii_is_space(*at)) at++;
    if (*at == '"') {
        for (at++; *at && (*at != '"' || at[1] == '"'); at++) {
            at += *at == '"';
            once_buf_append(out, at, 1);
        }
        at += *at == '"';
        while (*at && *at != '.') at++;
    } else {
        for (; *at && *at != '.'; at++) once_buf_append(out, &(char){once_ascii_lower(*at)}, 1);
        while (out->len > begun && once_ascii_is_space(out->data[out->len - 1])) out->len--;
    }
    if (!out->failed && out->len > begun) out->len = begun + cut(out->data + begun, out->len - begun);
    return at;
}

/* Each with its NUL: the value as it is, the name that it may be, and the parts of that. */
static void put_names(const char *value, once_buf *out)
{
    once_buf whole, part;
    once_buf_init(&whole, out->max);
    once_buf_init(&part, out->max);
    once_buf_append(out, value, strlen(value) + 1);
    const char *at = value;
    for (int parts = 0; parts < PARTS_MAX; parts++) {
        once_buf_clear(&part);
        at = put_part(at, &part);
        once_buf_append(out, part.data, part.len);
        once_buf_append(out, "", 1);
        if (parts) once_buf_puts(&whole, ".");
        once_buf_append(&whole, part.data, part.len);
        if (*at++ != '.') break;
    }
    once_buf_append(out, whole.data, whole.len);
    once_buf_append(out, "", 1);
    out->failed |= whole.failed || part.failed;
    once_buf_release(&whole);
    once_buf_release(&part);
}

static bool is_word(char c) { return once_ascii_is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '$' || (unsigned char)c >= 0x80; }
static bool is_quote(char c) { return c == '"' || (unsigned char)c >= 0x80; } /* those of other languages are no ASCII */

/* Whether a text has the name between quotes. */
static bool quotes(const char *text, const char *name)
{
    const size_t len = strlen(name);
    if (!len) return false;
    for (const char *at = text; (at = strstr(at, name)); at++)
        if (at > text && is_quote(at[-1]) && is_quote(at[len])) return true;
    return false;
}

/* Whether a literal of a statement is that name, or has it as a word. */
static bool has_literal(const char *sql, const char *name)
{
    const size_t len = strlen(name);
    bool inside = false;
    for (const char *at = sql; *at; at++) {
        inside ^= *at == '\'';
        size_t same = 0;
        while (inside && same < len && once_ascii_lower(at[same + 1]) == once_ascii_lower(name[same])) same++;
        if (!inside || same < len) continue;
        if (!is_word(at[0]) && !is_word(at[len + 1])) return true;
    }
    return false;
}

static bool names_value(const void *user, const char *sql, const char *name)
{
    const complaint *c = user;
    const char *context = c->context.data;
    if (!quotes(c->text, name) && (strchr(context, '\n') || !quotes(context, name))) return false;
    return !has_literal(sql, name) && !has_literal(context, name);
}

/* ---- statements that a function builds ---- */

/* The innermost line, behind the name of the function: what is said there is in every language EXECUTE, where it is. */
static bool is_built(const char *context)
{
    char line[400];
    const size_t len = strcspn(context, "\n");
    if (len >= sizeof line) return false;
    memcpy(line, context, len);
    line[len] = '\0';
    const char *behind = strrchr(line, ')');
    return behind && strstr(behind, "EXECUTE");
}

static const char *character(const char *text, long number)
{
    for (; number > 1 && *text; number--)
        do text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return text;
}

/* Whether the word at `at`, or what ends there, is made of `value`. */
static bool stands_at(const char *query, const char *at, const char *value)
{
    const char *end = at;
    const size_t len = strlen(value);
    if (*end == '"' || *end == '\'') end++;
    while (is_word(*end)) end++;
    if (!len) return false;
    for (const char *found = query; (found = strstr(found, value)); found++) {
        const char *behind = found + len;
        while (once_ascii_is_space(*behind)) behind++; /* an expression that breaks off is noticed at the next word */
        if (found <= at ? behind >= at : found < end) return true;
    }
    return false;
}

/* As it is, as a literal and as a name. */
static bool is_built_of(const complaint *c, const char *value)
{
    const char *at = character(c->query, c->at);
    if (stands_at(c->query, at, value)) return true;
    for (const char *quote = "'\""; *quote; quote++) {
        once_buf escaped;
        once_buf_init(&escaped, 2 * strlen(value) + 1);
        for (const char *v = value; *v; v++) once_buf_append(&escaped, &(char[2]){*v, *v}, *v == *quote ? 2 : 1);
        const bool found = escaped.data && !escaped.failed && stands_at(c->query, at, escaped.data);
        once_buf_release(&escaped);
        if (found) return true;
    }
    return false;
}

/* ---- whose fault ---- */

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static bool is_ambiguous(const char *state)
{
    if (!state || strcmp(state, "42501") == 0 || strcmp(state, "42P05") == 0) return false;
    return starts(state, "42") || starts(state, "3F") || starts(state, "0A");
}

/* Its line ends with "parameter $1", or "parameter $1 = '...'", in whatever language. */
static bool is_at_parameter(const complaint *c)
{
    const char *line = strrchr(c->context.data, '\n');
    line = line ? line + 1 : c->context.data;
    if (c->at_statement || c->query || strchr(line, '"')) return false; /* a statement that a function runs */
    const char *at = strstr(line, " $");
    const size_t digits = at ? strspn(at + 2, "0123456789") : 0;
    return digits && at > line && once_ascii_is_letter(at[-1]) && (at[2 + digits] == '\0' || starts(at + 2 + digits, " = "));
}

/* Readers that do not quote the whole of what they could not read. Names of functions are in no other language. */
static bool is_of_reader(const PGresult *result, const complaint *c)
{
    static const char *const readers[] = {"makepol", "jsonpath_yyerror", "makeRangeVarFromNameList", "stringToQualifiedNameList", "regoperin", "regoperatorin"};
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
    if (!function || c->at_statement || c->context.len || !starts(c->state, "42")) return false;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(function, readers[i]) == 0) return true;
    return false;
}

static void put_value(const once_value *value, once_buf *out)
{
    once_buf_clear(out);
    if (value->type == ONCE_VALUE_INTEGER) once_buf_printf(out, "%lld", (long long)value->integer);
    else if (value->type == ONCE_VALUE_NUMBER) once_buf_append(out, value->number.text.data, value->number.text.len);
    else if (value->type == ONCE_VALUE_TEXT) once_buf_append(out, value->text.data, value->text.len);
    once_buf_append(out, "", 1);
}

/* Whether one of the values has a name that is as asked for. */
static bool any_name(const once_pg_given *given, bool (*is)(const void *user, const char *sql, const char *name), const void *user)
{
    once_buf value, names;
    bool found = false;
    once_buf_init(&value, (size_t)1 << 30);
    once_buf_init(&names, (size_t)1 << 30);
    for (size_t i = 0; i < given->n && !found; i++) {
        put_value(&given->values[i], &value);
        once_buf_clear(&names);
        if (!value.failed) put_names(value.data, &names);
        if (value.failed || names.failed) continue;
        for (const char *name = names.data; name < names.data + names.len && !found; name += strlen(name) + 1) found = is(user, given->sql, name);
    }
    once_buf_release(&value);
    once_buf_release(&names);
    return found;
}

static bool is_named(const complaint *c, const once_pg_given *given) { return any_name(given, names_value, c); }

/* As a word, or as what is none. */
static bool is_shown(const void *user, const char *sql, const char *name)
{
    const char *text = user;
    const size_t len = strlen(name);
    (void)sql;
    if (!len) return false;
    for (const char *at = text; (at = strstr(at, name)); at++)
        if ((at == text || !is_word(at[-1]) || !is_word(*at)) && (!is_word(at[len]) || !is_word(at[len - 1]))) return true;
    return false;
}

bool once__pg_shows(const char *text, const once_pg_given *given) { return any_name(given, is_shown, text); }

static bool is_put_in(const complaint *c, const once_pg_given *given)
{
    const bool built = is_built(c->context.data);
    once_buf value;
    bool found = false;
    once_buf_init(&value, (size_t)1 << 30);
    for (size_t i = 0; i < given->n && !found; i++) {
        put_value(&given->values[i], &value);
        if (!value.failed) found = strcmp(value.data, c->query) == 0 || (built && c->at && is_built_of(c, value.data));
    }
    once_buf_release(&value);
    return found;
}

static once_pg_blame blame(const PGresult *result, const complaint *c, const once_pg_given *given)
{
    const bool grammar = starts(c->state, "4260") || starts(c->state, "0A"); /* whatever there is in the database */
    const once_pg_blame of_message = grammar ? ONCE_PG_BLAME_VALUE : ONCE_PG_BLAME_NAME;
    if (c->context.failed) return ONCE_PG_BLAME_NOBODY;
    if (is_at_parameter(c) || is_of_reader(result, c)) return of_message;
    if (c->query && is_put_in(c, given)) return of_message;
    if ((c->at_statement && !c->context.len) || !is_named(c, given)) return ONCE_PG_BLAME_NOBODY;
    return c->query ? ONCE_PG_BLAME_UNSURE : of_message;
}

once_pg_blame once__pg_blame(const PGresult *result, const once_pg_given *given)
{
    complaint c = read_complaint(result);
    const once_pg_blame whose = is_ambiguous(c.state) && c.text && given->n ? blame(result, &c, given) : ONCE_PG_BLAME_NOBODY;
    once_buf_release(&c.context);
    return whose;
}
