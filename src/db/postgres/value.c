/* Decides whose fault an error is that looks like that of a wrong statement: the statement's, so that nothing works
 * until an operator acts, or that of the message whose value it got.
 *
 * Some types and functions have a grammar of their own, or name things. When they cannot read a value, the SQLSTATE is
 * that of a wrong statement: nextval(:x) says "relation ... does not exist", like a table that was dropped. Texts are
 * translated, so they are not compared with words. The message is at fault when the server could not read a parameter,
 * or when the error is about exactly what the message contains:
 *
 *   - A statement of the user that no longer fits its tables has a position in the error. A name in a value has none.
 *   - The name in the error, between quotes, is a value of the message, and no literal of the statement is the same.
 *   - In a statement that a function builds (EXECUTE), the word at the position of the error is the value, or in it.
 *     The function's own statements are the function's fault.
 *
 * A value that occurs somewhere inside a word is a coincidence: a function with a typo would bury all messages that
 * contain an "a". In all other cases the message is not blamed; but the text of the server may contain values, and is
 * not shown. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "db/postgres/postgres.h"

#include "base/banned.h"

enum { NAME_BYTES = 63, PARTS_MAX = 4, NO_CHANCE = 5, FIRST_USER_OID = 16384 };

typedef struct complaint {
    const char *state, *text, *query; /* NULL: the error has none */
    once_buf context;                 /* its lines, the innermost first */
    bool at_statement;
    long at; /* the position in `query`, from 1 on; 0: the error has none */
} complaint;

/* The length without the line that some servers add to every error (log_parameter_max_length_on_error): it has all
 * values of the statement. */
static size_t context_len(const char *context)
{
    for (const char *listed = context; (listed = strstr(listed, ": $1 = ")); listed++) {
        const char *line = listed;
        while (line > context && line[-1] != '\n') line--;
        if (!memchr(line, '"', (size_t)(listed - line)))
            return line > context ? (size_t)(line - context) - 1 : 0; /* the line begins there */
    }
    return strlen(context);
}

static complaint read_complaint(const PGresult *result)
{
    const char *at = PQresultErrorField(result, PG_DIAG_INTERNAL_POSITION),
               *context = PQresultErrorField(result, PG_DIAG_CONTEXT);
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

static bool ends(const char *text, const char *with)
{
    const size_t len = strlen(text), tail = strlen(with);
    return len >= tail && strcmp(text + len - tail, with) == 0;
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* ---- values in the text of an error ---- */

/* The length to which the server cuts a name. */
static size_t cut(const char *name, size_t len)
{
    if (len <= NAME_BYTES) return len;
    for (len = NAME_BYTES; len && ((unsigned char)name[len] & 0xc0) == 0x80;) len--;
    return len;
}

/* The next part of a name like a."B c", in the form that the server stores. */
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

/* Writes texts with their NULs: the value, the name that it may be, and the parts of the name. */
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

static bool is_word(char c)
{
    return once_ascii_is_letter(c) || (c >= '0' && c <= '9') || c == '_' || (unsigned char)c >= 0x80;
}

static bool is_some_word(const char *text)
{
    while (*text && !is_word(*text)) text++;
    return *text;
}

/* Whether the text at `at` is a whole word. */
static bool is_whole(const char *text, const char *at, size_t len)
{
    return (at == text || !is_word(at[-1]) || !is_word(*at)) && (!is_word(at[len]) || !is_word(at[len - 1]));
}

/* The length of a quotation mark at `at`. Other languages have other marks, with a space inside them. */
static size_t mark_len(const char *at)
{
    static const char *const marks[] = {"\"",     "\u00ab", "\u00bb", "\u2018", "\u2019", "\u201a",
                                        "\u201c", "\u201d", "\u201e", "\u300c", "\u300d"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (starts(at, marks[i])) return strlen(marks[i]);
    return 0;
}

static size_t gap_len(const char *at) { return *at == ' ' ? 1 : starts(at, "\u00a0") ? strlen("\u00a0") : 0; }

/* The text behind the first quotation mark: what the error is about. NULL: it quotes nothing. */
static const char *quoted(const char *text)
{
    while (*text && !mark_len(text)) text++;
    if (!*text) return NULL;
    const bool spaced = *text != '"';
    text += mark_len(text);
    return text + (spaced ? gap_len(text) : 0);
}

/* The end of the name at `at`, with its closing mark; NULL: another text is there. */
static const char *behind_name(const char *at, const char *name)
{
    if (!at || !*name || !starts(at, name)) return NULL;
    at += strlen(name);
    if (!mark_len(at)) at += gap_len(at);
    return mark_len(at) ? at + mark_len(at) : NULL;
}

/* Whether the text of the statement has that name, in any case. */
static bool has_word(const char *sql, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = sql; *at; at++) {
        size_t same = 0;
        while (same < len && once_ascii_lower(at[same]) == once_ascii_lower(name[same])) same++;
        if (len && same == len && is_whole(sql, at, len)) return true;
    }
    return false;
}

/* The same for a literal in a statement that a function runs. */
static bool has_literal(const char *sql, const char *name)
{
    const char *quote = strchr(sql, '\'');
    return quote && is_some_word(name) && has_word(quote, name);
}

/* Whether the error is about that name. The whole name of a type is at the end of the context. */
static bool names_value(const void *user, const char *sql, const char *name)
{
    const complaint *c = user;
    const char *context = c->context.data, *type = quoted(context), *line = strchr(context, '\n'),
               *behind = behind_name(type, name);
    const bool is_type = behind && !*behind && (!line || line > type);
    return (behind_name(quoted(c->text), name) || is_type) && !has_word(sql, name) && !has_literal(context, name);
}

/* ---- statements that a function builds ---- */

/* The part of the innermost line behind the name of a PL/pgSQL function: in which of its statements the error is. */
static const char *place_in_function(const char *context, char *line, size_t size)
{
    const size_t len = strcspn(context, "\n");
    if (len >= size) return "";
    memcpy(line, context, len);
    line[len] = '\0';
    const char *behind = strrchr(line, ')');
    return behind ? behind : "";
}

/* EXECUTE is not translated. */
static bool is_built(const char *context)
{
    char line[400];
    return strstr(place_in_function(context, line, sizeof line), "EXECUTE");
}

/* The function's own text is wrong. Its values were not used yet, so they are not in the error. */
static bool is_own(const complaint *c)
{
    static const char *const places[] = {" at PERFORM", " at SQL statement", " at assignment",
                                         " at IF",      " at RETURN",        " at CALL"};
    char line[400];
    const char *place = place_in_function(c->context.data, line, sizeof line);
    if (!c->query || !c->at || !*place || strchr(line, '"')) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (ends(place, places[i])) return true;
    return false;
}

static const char *character(const char *text, long number)
{
    for (; number > 1 && *text; number--) do
            text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return text;
}

/* What is at the position of the error: a name or a literal, without its quotes, or another character. */
static once_bytes piece_at(const char *at)
{
    const char quote = *at == '"' || *at == '\'' ? *at : '\0';
    const char *end = at += quote != '\0';
    while (quote ? *end && (*end != quote || end[1] == quote) : is_word(*end)) end += quote && *end == quote ? 2 : 1;
    if (!quote && end == at && *end) end++;
    return (once_bytes){at, (size_t)(end - at)};
}

/* Whether all of the piece comes from the value, which is in the statement as a whole, and is more than punctuation. */
static bool stands_at(const char *query, once_bytes piece, const char *value)
{
    const size_t len = strlen(value);
    if (!is_some_word(value)) return false;
    for (const char *found = query; (found = strstr(found, value)); found++) {
        const char *end = found + len;
        if (is_whole(query, found, len) && found <= piece.data && end >= piece.data + piece.len) return true;
    }
    return false;
}

/* The value may be in the statement as it is, as a literal, or as a quoted name. */
static bool is_built_of(const complaint *c, const char *value)
{
    const once_bytes piece = piece_at(character(c->query, c->at));
    if (stands_at(c->query, piece, value)) return true;
    for (const char *quote = "'\""; *quote; quote++) {
        once_buf escaped;
        once_buf_init(&escaped, 2 * strlen(value) + 1);
        for (const char *v = value; *v; v++) once_buf_append(&escaped, &(char[2]){*v, *v}, *v == *quote ? 2 : 1);
        const bool found = escaped.data && !escaped.failed && stands_at(c->query, piece, escaped.data);
        once_buf_release(&escaped);
        if (found) return true;
    }
    return false;
}

/* ---- whose fault ---- */

static bool is_ambiguous(const char *state)
{
    if (!state || strcmp(state, "42501") == 0 || strcmp(state, "42P05") == 0) return false;
    return starts(state, "42") || starts(state, "3F") || starts(state, "0A");
}

/* The number of the parameter that could not be read; 0: the error is about something else. The context is
 * "... parameter $1" or "... parameter $1 = '...'", in any language, with no line before it: a function that a domain
 * calls has lines of its own. */
static size_t parameter_of(const complaint *c, size_t n)
{
    const char *at = strstr(c->context.data, " $");
    if (c->at_statement || c->query || !at || at == c->context.data || !once_ascii_is_letter(at[-1])) return 0;
    const char *line = memchr(c->context.data, '\n', (size_t)(at - c->context.data)),
               *name = memchr(c->context.data, '"', (size_t)(at - c->context.data));
    char *end;
    const unsigned long number = strtoul(at + 2, &end, 10);
    return !line && !name && number <= n && (*end == '\0' || starts(end, " = ")) ? number : 0;
}

static void put_value(const once_value *value, once_buf *out)
{
    once_buf_clear(out);
    if (value->type == ONCE_VALUE_INTEGER) once_buf_printf(out, "%lld", (long long)value->integer);
    else if (value->type == ONCE_VALUE_NUMBER) once_buf_append(out, value->number.text.data, value->number.text.len);
    else if (value->type == ONCE_VALUE_TEXT || (value->type == ONCE_VALUE_BYTES && value->is_text))
        once_buf_append(out, value->text.data, value->text.len);
    once_buf_append(out, "", 1);
}

/* Values of these types name something: regproc to regtype, regconfig, regdictionary, regnamespace, regrole,
 * regcollation. */
static bool is_name_type(unsigned type)
{
    return type == 24 || (type >= 2202 && type <= 2206) || type == 3734 || type == 3769 || type == 4089 ||
           type == 4096 || type == 4191;
}

/* Whether `is` holds for a name in one of the values. */
static bool any_name(const once_pg_given *given, bool (*is)(const void *user, const char *sql, const char *name),
                     const void *user)
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
        const char *sql = is_name_type(given->types[i])
                              ? ""
                              : given->sql; /* then it does not matter that the statement has the same name */
        for (const char *name = names.data; name < names.data + names.len && !found; name += strlen(name) + 1)
            found = is(user, sql, name);
    }
    once_buf_release(&value);
    once_buf_release(&names);
    return found;
}

static bool is_named(const complaint *c, const once_pg_given *given) { return any_name(given, names_value, c); }

/* As a whole word, or as text that is no word. */
static bool has_whole(const char *text, const char *name)
{
    const size_t len = strlen(name);
    for (const char *at = text; len && (at = strstr(at, name)); at++)
        if (is_whole(text, at, len)) return true;
    return false;
}

static bool is_shown(const void *user, const char *sql, const char *name)
{
    (void)sql;
    return has_whole(user, name);
}

/* The first name that the text quotes, in lower case. */
static void put_quoted(const char *text, once_buf *out)
{
    for (const char *at = quoted(text); at && *at && !mark_len(at); at++)
        once_buf_append(out, &(char){once_ascii_lower(*at)}, 1);
    once_buf_append(out, "", 1);
}

/* Whether the value contains all of the name, or the name contains the value, which is too long for that to be
 * chance. */
static bool is_related(const void *user, const char *sql, const char *name)
{
    const char *piece = user;
    bool related = false;
    once_buf lower;
    (void)sql;
    once_buf_init(&lower, (size_t)1 << 30);
    for (const char *at = name; *at; at++) once_buf_append(&lower, &(char){once_ascii_lower(*at)}, 1);
    once_buf_append(&lower, "", 1);
    if (!lower.failed && *name)
        related = has_whole(lower.data, piece) || (strlen(name) >= NO_CHANCE && strstr(piece, lower.data));
    once_buf_release(&lower);
    return related;
}

static bool quotes_related(const complaint *c, const once_pg_given *given)
{
    once_buf piece;
    once_buf_init(&piece, (size_t)1 << 30);
    put_quoted(c->text, &piece);
    const bool related = !piece.failed && piece.len > 1 && !has_literal(given->sql, piece.data) &&
                         any_name(given, is_related, piece.data);
    once_buf_release(&piece);
    return related;
}

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

/* A built-in type only reads its value. A domain calls functions, which may fail for any value; they can be part of its
 * check, and then the context does not show them. */
static once_pg_blame blame_parameter(const complaint *c, const once_pg_given *given, size_t number, bool grammar)
{
    assert(number > 0 && number <= given->n);
    const once_pg_given that = {given->sql, given->values + number - 1, given->types + number - 1, 1};
    if (given->types[number - 1] < FIRST_USER_OID) return grammar ? ONCE_PG_BLAME_VALUE : ONCE_PG_BLAME_NAME;
    return quotes_related(c, &that) || (grammar && !quoted(c->text)) ? ONCE_PG_BLAME_NAME : ONCE_PG_BLAME_UNKNOWN;
}

/* Input functions of types do not always quote the whole value. The names of functions are not translated. */
static bool is_of(const PGresult *result, const char *const *readers)
{
    const char *function = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
    for (; function && *readers; readers++)
        if (strcmp(function, *readers) == 0) return true;
    return false;
}

static once_pg_blame blame_reader(const PGresult *result, const complaint *c, const once_pg_given *given)
{
    static const char *const of_values[] = {"makepol", "jsonpath_yyerror", NULL};
    static const char *const of_names[] = {"makeRangeVarFromNameList",
                                           "stringToQualifiedNameList",
                                           "parseTypeString",
                                           "regprocin",
                                           "regprocedurein",
                                           "regoperin",
                                           "regoperatorin",
                                           "regtypein",
                                           "regnamespacein",
                                           "regrolein",
                                           "regconfigin",
                                           "regdictionaryin",
                                           "regcollationin",
                                           NULL};
    if (c->at_statement || c->query || c->context.len || !starts(c->state, "42")) return ONCE_PG_BLAME_UNKNOWN;
    if (is_of(result, of_values) && quotes_related(c, given)) return ONCE_PG_BLAME_VALUE;
    if (is_of(result, of_names) && quotes_related(c, given)) return ONCE_PG_BLAME_NAME;
    return (is_of(result, of_values) || is_of(result, of_names)) && !quoted(c->text) ? ONCE_PG_BLAME_NAME
                                                                                     : ONCE_PG_BLAME_UNKNOWN;
}

/* The text contains no value of the message. */
static bool is_plain(const complaint *c, const once_pg_given *given)
{
    for (const char *at = c->text; *at; at++)
        if ((unsigned char)*at >= 0x80 || strchr("\":('", *at)) return false;
    return !c->context.len && !c->query && !any_name(given, is_shown, c->text);
}

static once_pg_blame blame(const PGresult *result, const complaint *c, const once_pg_given *given)
{
    const bool grammar =
        starts(c->state, "4260") || starts(c->state, "0A"); /* does not depend on what exists in the database */
    const size_t parameter = parameter_of(c, given->n);
    if ((c->at_statement && !c->context.len) || is_own(c)) return ONCE_PG_BLAME_NOBODY;
    if (parameter) return blame_parameter(c, given, parameter, grammar);
    const once_pg_blame of_reader = blame_reader(result, c, given);
    if (of_reader != ONCE_PG_BLAME_UNKNOWN) return of_reader;
    if (c->query ? is_put_in(c, given) : is_named(c, given)) return ONCE_PG_BLAME_NAME;
    return is_plain(c, given) ? ONCE_PG_BLAME_NOBODY : ONCE_PG_BLAME_UNKNOWN;
}

once_pg_blame once__pg_blame(const PGresult *result, const once_pg_given *given)
{
    assert(result && given->sql && (given->n == 0 || (given->values && given->types)));
    complaint c = read_complaint(result);
    once_pg_blame whose = ONCE_PG_BLAME_NOBODY;
    if (!c.state || !c.text || !given->n) whose = ONCE_PG_BLAME_NOBODY;
    else if (c.context.failed) whose = ONCE_PG_BLAME_UNKNOWN;
    else if (strcmp(c.state, "42501") == 0)
        whose = any_name(given, is_shown, c.text) ? ONCE_PG_BLAME_UNKNOWN : ONCE_PG_BLAME_NOBODY;
    else if (is_ambiguous(c.state)) whose = blame(result, &c, given);
    once_buf_release(&c.context);
    return whose;
}

void once__pg_say_blame(const char *state, bool of_message, char *out, size_t size)
{
    assert(state && size > 0);
    static const char *const says[][2] = {
        {"42P01", "a table, a view or a sequence does not exist"},
        {"42703", "a column does not exist"},
        {"42883", "a function or an operator does not exist"},
        {"42704", "a type or another object does not exist"},
        {"3F", "a schema does not exist"},
        {"42501", "a right is missing"},
        {"4260", "a name or the syntax is wrong"},
        {"", "something does not fit"},
    };
    size_t i = 0;
    while (!starts(state, says[i][0])) i++;
    if (of_message) snprintf(out, size, "a value does not fit: %s (SQLSTATE %s)", says[i][1], state);
    else
        snprintf(
            out, size,
            "%s (SQLSTATE %s; what the server says of it may show a value of a message: it is in the server's log)",
            says[i][1], state);
}
