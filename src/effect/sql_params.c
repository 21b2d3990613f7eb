/* A small lexer for the user's SQL. It finds parameters, and the strings, names and comments in which they are none;
 * all other bytes it copies. */
#include "effect/sql_params.h"

#include <assert.h>
#include <string.h>

#include "base/ascii.h"
#include "base/buf.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define MAX_PARAMS 1000
#define SHOWN(bytes) ((bytes).len > 60 ? 60 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

typedef struct lexer {
    once_arena *arena;
    once_bytes text;
    size_t at;
    once_buf *sql;
    once_sql_param *params;
    size_t n, capacity;
    bool begun; /* a token of the statement was seen */
    bool ended; /* a ';' stood behind it */
} lexer;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_name(char c) { return is_name_start(c) || is_digit(c); }
static bool is_beyond_ascii(char c) { return (unsigned char)c >= 0x80; }
/* What the database takes for a part of a word; '$' too, so foo$1 is a name and not a parameter. */
static bool is_word(char c) { return is_name(c) || is_beyond_ascii(c) || c == '$'; }

static char peek(const lexer *lex, size_t ahead)
{
    return lex->at + ahead < lex->text.len ? lex->text.data[lex->at + ahead] : '\0';
}

static once_bytes slice(const lexer *lex, size_t from, size_t to)
{
    assert(from <= to && to <= lex->text.len);
    return (once_bytes){lex->text.data + from, to - from};
}

/* The text from here on, cut after the word that stands there: for messages. */
static once_bytes here(const lexer *lex, size_t from)
{
    size_t to = from + 1;
    while (to < lex->text.len && (is_word(lex->text.data[to]) || is_digit(lex->text.data[to]))) to++;
    return slice(lex, from, to);
}

static void copy_to(lexer *lex, size_t end)
{
    once_buf_append(lex->sql, lex->text.data + lex->at, end - lex->at);
    lex->at = end;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

static int grow(lexer *lex, once_error *err)
{
    if (lex->n == MAX_PARAMS) return once_fail(err, ONCE_E_USAGE, "more than %d parameters in a statement", MAX_PARAMS);
    if (lex->n < lex->capacity) return ONCE_OK;
    size_t capacity = lex->capacity == 0 ? 8 : 2 * lex->capacity;
    once_sql_param *params = once_arena_new(lex->arena, once_sql_param, capacity);
    if (!params) return once_no_memory(err, "for a statement");
    if (lex->n > 0) memcpy(params, lex->params, lex->n * sizeof *params);
    lex->params = params;
    lex->capacity = capacity;
    return ONCE_OK;
}

/* The number of the parameter, 1..n; new ones are added. */
static int number_of(lexer *lex, const once_sql_param *param, size_t *number, once_error *err)
{
    for (size_t i = 0; i < lex->n; i++) {
        const once_sql_param *other = &lex->params[i];
        if (other->source != param->source || other->optional != param->optional || other->as_text != param->as_text)
            continue;
        if (!once_bytes_equal(other->place.text, param->place.text)) continue;
        *number = i + 1;
        return ONCE_OK;
    }
    const int rc = grow(lex, err);
    if (rc != ONCE_OK) return rc;
    lex->params[lex->n++] = *param;
    *number = lex->n;
    return ONCE_OK;
}

static int write_param(lexer *lex, const once_sql_param *param, once_error *err)
{
    size_t number;
    const int rc = number_of(lex, param, &number, err);
    if (rc == ONCE_OK) once_buf_printf(lex->sql, "?%zu", number);
    return rc;
}

/* `text` lives in the arena. */
static int write_place(lexer *lex, once_bytes text, bool optional, bool as_text, once_error *err)
{
    once_error why = {0};
    once_sql_param param = {.optional = optional, .as_text = as_text};
    const int rc = once_placeholder_parse(lex->arena, text, ':', &param.place, &why);
    return rc == ONCE_OK ? write_param(lex, &param, err) : once_fail(err, rc, "parameter %s", why.text);
}

/* Cuts `word` off the beginning. */
static bool cut_start(once_bytes *text, const char *word)
{
    const size_t len = strlen(word);
    if (text->len < len || memcmp(text->data, word, len) != 0) return false;
    *text = (once_bytes){text->data + len, text->len - len};
    return true;
}

/* `inside`: "result" or "result:/a", without the mark and the type behind it. */
static int write_result(lexer *lex, once_bytes inside, bool optional, bool as_text, once_error *err)
{
    once_error why = {0};
    once_sql_param param = {.source = ONCE_SQL_RESULT, .optional = optional, .as_text = as_text};
    once_bytes path = inside;
    param.place.text = inside;
    if (!cut_start(&path, "result:")) return write_param(lex, &param, err);
    once_bytes rest = path;
    if (!cut_start(&rest, "/") && !cut_start(&rest, "json:"))
        return once_fail(err, ONCE_E_USAGE, "parameter ':{%.*s}' names no field of the result; write ':{result:/id}'",
                         SHOWN(inside));
    const int rc = once_placeholder_parse(lex->arena, path, ':', &param.place, &why);
    return rc == ONCE_OK ? write_param(lex, &param, err) : once_fail(err, rc, "parameter %s", why.text);
}

/* A name that begins with once_. */
static int write_ours(lexer *lex, once_bytes name, once_error *err)
{
    static const struct {
        const char *name;
        once_sql_source source;
    } ours[] = {
        {"once_key", ONCE_SQL_KEY},
        {"once_idempotency_key", ONCE_SQL_IDEMPOTENCY_KEY},
        {"once_attempt", ONCE_SQL_ATTEMPT},
        {"once_body", ONCE_SQL_BODY},
    };
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (once_bytes_equal((once_bytes){ours[i].name, strlen(ours[i].name)}, name))
            return write_param(lex, &(once_sql_param){.source = ours[i].source}, err);
    return once_fail(err, ONCE_E_USAGE,
                     "parameter ':%.*s': names that begin with once_ are reserved: there are once_key, "
                     "once_idempotency_key, once_attempt and once_body; "
                     "write ':{/%.*s}' for a field",
                     SHOWN(name), SHOWN(name));
}

/* ":name" */
static int read_name(lexer *lex, once_error *err)
{
    size_t end = lex->at + 1;
    while (end < lex->text.len && is_name(lex->text.data[end])) end++;
    once_bytes shown = here(lex, lex->at), rest = {shown.data + 1, shown.len - 1};
    if (end - lex->at != shown.len)
        return once_fail(err, ONCE_E_USAGE,
                         "parameter '%.*s' has other characters than letters, digits and _; write ':{/%.*s}'",
                         SHOWN(shown), SHOWN(rest));
    lex->at = end;
    if (rest.len >= 5 && memcmp(rest.data, "once_", 5) == 0) return write_ours(lex, rest, err);
    char *pointer = once_arena_alloc(lex->arena, shown.len);
    if (!pointer) return once_no_memory(err, "for a statement");
    pointer[0] = '/';
    memcpy(pointer + 1, rest.data, rest.len);
    return write_place(lex, (once_bytes){pointer, shown.len}, false, false, err);
}

static bool cut_mark(once_bytes *inside)
{
    const bool marked = inside->len > 0 && inside->data[inside->len - 1] == '?';
    if (marked) inside->len--;
    return marked;
}

/* The last word, and the white space before it, which must be there; otherwise nothing is cut. */
static once_bytes cut_word(once_bytes *inside)
{
    size_t from = inside->len;
    while (from > 0 && !once_ascii_is_space(inside->data[from - 1])) from--;
    size_t end = from;
    while (end > 0 && once_ascii_is_space(inside->data[end - 1])) end--;
    if (end == from) return (once_bytes){0};
    const once_bytes word = {inside->data + from, inside->len - from};
    inside->len = end;
    return word;
}

/* Cuts " as text" off. Another type is a mistake, and not a field whose name has spaces. */
static int cut_type(once_bytes *inside, bool *as_text, once_error *err)
{
    once_bytes before = *inside;
    while (before.len > 0 && once_ascii_is_space(before.data[before.len - 1])) before.len--;
    const once_bytes type = cut_word(&before), as = cut_word(&before);
    *as_text = once_ascii_is(as.data, as.len, "as");
    if (!*as_text && !once_ascii_is(type.data, type.len, "as")) return ONCE_OK;
    if (!once_ascii_is(type.data, type.len, "text"))
        return once_fail(err, ONCE_E_USAGE,
                         "parameter ':{%.*s}': a field can be bound 'as text' only; write ':{%.*s as text}'",
                         SHOWN(*inside), SHOWN(before));
    *inside = before;
    const once_bytes again = cut_word(&before), twice = cut_word(&before);
    if (once_ascii_is(twice.data, twice.len, "as") && once_ascii_is(again.data, again.len, "text"))
        return once_fail(err, ONCE_E_USAGE,
                         "parameter ':{%.*s as text}' is bound as text twice; write ':{%.*s as text}'", SHOWN(*inside),
                         SHOWN(before));
    return ONCE_OK;
}

/* ":{/a/b}", ":{/a?}", ":{/a as text}", ":{/a? as text}", ":{header:a}" */
static int read_braces(lexer *lex, once_error *err)
{
    size_t start = lex->at + 2;
    const char *brace = start < lex->text.len ? memchr(lex->text.data + start, '}', lex->text.len - start) : NULL;
    if (!brace) {
        once_bytes rest = slice(lex, lex->at, lex->text.len);
        return once_fail(err, ONCE_E_USAGE, "parameter '%.*s' has no closing '}'", SHOWN(rest));
    }
    size_t end = (size_t)(brace - lex->text.data);
    once_bytes pointer = slice(lex, start, end);
    bool as_text, optional = cut_mark(&pointer);
    const int rc = cut_type(&pointer, &as_text, err);
    if (rc != ONCE_OK) return rc;
    if (as_text && !optional) optional = cut_mark(&pointer);
    if (pointer.len == 0)
        return once_fail(err, ONCE_E_USAGE, "parameter ':{%s}' names no field; write a JSON pointer, as in ':{/id}'",
                         optional ? "?" : "");
    lex->at = end + 1;
    if (is_word(peek(lex, 0)))
        return once_fail(err, ONCE_E_USAGE, "text touches the parameter ':{%.*s}'; put a space behind it",
                         SHOWN(pointer));
    once_bytes rest = pointer;
    const bool result = cut_start(&rest, "result") && (rest.len == 0 || rest.data[0] == ':');
    return (result ? write_result : write_place)(lex, pointer, optional, as_text, err);
}

static int read_colon(lexer *lex, once_error *err)
{
    char next = peek(lex, 1);
    if (next == '{') return read_braces(lex, err);
    if (is_name_start(next) || is_beyond_ascii(next)) return read_name(lex, err);
    if (is_digit(next)) {
        once_bytes shown = here(lex, lex->at), rest = {shown.data + 1, shown.len - 1};
        return once_fail(err, ONCE_E_USAGE, "parameter '%.*s' begins with a digit; write ':{/%.*s}'", SHOWN(shown),
                         SHOWN(rest));
    }
    copy_to(lex, lex->at + (next == ':' ? 2 : 1)); /* a cast, or no parameter */
    return ONCE_OK;
}

static int refuse_foreign(const lexer *lex, once_error *err)
{
    once_bytes shown = here(lex, lex->at);
    return once_fail(err, ONCE_E_USAGE, "parameter '%.*s' is not bound by once; write ':name' or ':{/pointer}'",
                     SHOWN(shown));
}

/* --- everything else ---------------------------------------------------------------------------------------------- */

/* From an opening character to the closing one. A doubled closing character reads as two quoted runs that touch. */
static int read_quoted(lexer *lex, char close, const char *what, once_error *err)
{
    const char *end = memchr(lex->text.data + lex->at + 1, close, lex->text.len - lex->at - 1);
    if (!end) {
        once_bytes rest = slice(lex, lex->at, lex->text.len);
        if (rest.len > 20) rest.len = 20;
        return once_fail(err, ONCE_E_USAGE, "%s that begins with %.*s has no end; close it with %c", what, SHOWN(rest),
                         close);
    }
    copy_to(lex, (size_t)(end - lex->text.data) + 1);
    return ONCE_OK;
}

/* To SQLite a comment ends at a line feed, to PostgreSQL at a carriage return, too. Which of them will read it is
 * not known here, and what one takes for a comment would be a statement to the other. */
static int skip_line(lexer *lex, once_error *err)
{
    const char *from = lex->text.data + lex->at, *all = lex->text.data + lex->text.len;
    const char *end = memchr(from, '\n', (size_t)(all - from));
    if (!end) end = all;
    const char *turn = memchr(from, '\r', (size_t)(end - from));
    if (turn && turn + 1 != end)
        return once_fail(err, ONCE_E_USAGE,
                         "a comment (--) has a carriage return in it, where some databases end it and others do not; "
                         "write a line feed");
    copy_to(lex, (size_t)(end - lex->text.data) + (end < all));
    return ONCE_OK;
}

static int skip_comment(lexer *lex, once_error *err)
{
    size_t start = lex->at + 2;
    const char *end = memmem(lex->text.data + start, lex->text.len - start, "*/", 2);
    if (!end) return once_fail(err, ONCE_E_USAGE, "comment has no end; close it with */");
    copy_to(lex, (size_t)(end - lex->text.data) + 2);
    return ONCE_OK;
}

/* once controls the transaction and the settings of the connection. */
static int check_first_word(once_bytes word, once_error *err)
{
    static const char *const refused[] = {"begin", "commit", "end",    "rollback", "savepoint", "release",
                                          "start", "attach", "detach", "pragma",   "vacuum"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (!once_ascii_is(word.data, word.len, refused[i])) continue;
        return once_fail(err, ONCE_E_USAGE,
                         "statement cannot be '%.*s': transaction and connection belong to once; remove it",
                         SHOWN(word));
    }
    return ONCE_OK;
}

/* E'it\'s': PostgreSQL's string in which a backslash takes the next character with it. SQLite has none. */
static int read_escaped(lexer *lex, once_error *err)
{
    for (size_t at = lex->at + 1; at < lex->text.len; at++) {
        if (lex->text.data[at] == '\\') {
            at++;
        } else if (lex->text.data[at] == '\'') {
            copy_to(lex, at + 1);
            return ONCE_OK;
        }
    }
    return once_fail(err, ONCE_E_USAGE, "string that begins with E' has no end; close it with '");
}

static bool at_bom(const lexer *lex)
{
    return lex->text.len - lex->at >= 3 && memcmp(lex->text.data + lex->at, ONCE_BOM, 3) == 0;
}

static int read_word(lexer *lex, bool first, once_error *err)
{
    if (at_bom(lex)) /* white space to SQLite, the beginning of a name to PostgreSQL */
        return once_fail(err, ONCE_E_USAGE, "byte order mark (U+FEFF) inside a statement; remove it");
    size_t end = lex->at;
    while (end < lex->text.len && is_word(lex->text.data[end])) end++;
    const once_bytes word = slice(lex, lex->at, end);
    const int rc = first ? check_first_word(word, err) : ONCE_OK;
    copy_to(lex, end);
    return rc == ONCE_OK && once_ascii_is(word.data, word.len, "e") && peek(lex, 0) == '\'' ? read_escaped(lex, err)
                                                                                            : rc;
}

static int read_token(lexer *lex, once_error *err)
{
    bool first = !lex->begun;
    if (lex->ended)
        return once_fail(err, ONCE_E_USAGE, "more than one statement; make each an item of its own in the list");
    lex->begun = true;
    char c = peek(lex, 0);
    switch (c) {
    case '\'': return read_quoted(lex, '\'', "string", err);
    case '"': return read_quoted(lex, '"', "quoted name", err);
    case '`': return read_quoted(lex, '`', "quoted name", err);
    case '[': return read_quoted(lex, ']', "quoted name", err);
    case ':': return read_colon(lex, err);
    case '?':
    case '$': return refuse_foreign(lex, err);
    case '@':
    case '#':
        /* SQLite reads #::x as a parameter, too. No database has a cast behind these. */
        if (is_word(peek(lex, 1)) || (peek(lex, 1) == ':' && peek(lex, 2) == ':')) return refuse_foreign(lex, err);
        break;
    default:
        if (is_word(c)) return read_word(lex, first, err);
        break;
    }
    copy_to(lex, lex->at + 1);
    return ONCE_OK;
}

static int read_next(lexer *lex, once_error *err)
{
    char c = peek(lex, 0);
    if (!lex->begun && at_bom(lex)) {
        lex->at += 3;
    } else if (c == '-' && peek(lex, 1) == '-') {
        return skip_line(lex, err);
    } else if (c == '/' && peek(lex, 1) == '*') {
        return skip_comment(lex, err);
    } else if (once_ascii_is_space(c) || c == ';') {
        if (c == ';' && lex->begun) lex->ended = true;
        copy_to(lex, lex->at + 1);
    } else {
        return read_token(lex, err);
    }
    return ONCE_OK;
}

static int read_all(lexer *lex, once_error *err)
{
    while (lex->at < lex->text.len) {
        int rc = read_next(lex, err);
        if (rc != ONCE_OK) return rc;
    }
    if (!lex->begun) return once_fail(err, ONCE_E_USAGE, "empty statement; write one, or remove the item");
    return ONCE_OK;
}

int once_sql_parse(once_arena *arena, once_bytes text, once_sql_statement *out, once_error *err)
{
    assert(arena);
    assert(text.data || text.len == 0);
    assert(out);
    once_sql_statement made = {.rows = -1, .unmet = ONCE_DEAD};
    if (text.len > 0 && memchr(text.data, '\0', text.len))
        return once_fail(err, ONCE_E_USAGE, "NUL byte in a statement");
    if (!once_arena_copy(arena, text, &made.text)) return once_no_memory(err, "for a statement");

    once_buf sql;
    once_buf_init(&sql, 4 * text.len + 64);
    lexer lex = {.arena = arena, .text = made.text, .sql = &sql};
    int rc = read_all(&lex, err);
    if (rc == ONCE_OK && (sql.failed || !once_arena_copy(arena, once_buf_bytes(&sql), &made.sql)))
        rc = once_no_memory(err, "for a statement");
    once_buf_release(&sql);
    if (rc != ONCE_OK) return rc;
    made.params = lex.params;
    made.n = lex.n;
    *out = made;
    return ONCE_OK;
}
