/* Texts of an HTTP request (http_text.h). */
#include "effect/http_text.h"

#include <assert.h>
#include <string.h>

#include "base/no_memory.h"

#include "base/banned.h"

#define MAX_TEXT 4096
#define MAX_PARTS 1000
#define SHOWN(bytes) ((bytes).len > 100 ? 100 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

typedef enum part_kind { LITERAL, FIELD, KEY, IDEMPOTENCY_KEY, ATTEMPT } part_kind;

struct once_http_part {
    part_kind kind;
    once_http_encoding encoding;
    bool piece; /* JSON: a piece of a string; otherwise a whole value */
    once_bytes literal;
    once_placeholder place;
};

/* --- encodings ---------------------------------------------------------------------------------------------------- */

static bool is_unreserved(unsigned char c)
{
    const unsigned char lower = c | 0x20;
    return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || (c && strchr("-._~", c));
}

static void percent(once_buf *out, once_bytes value)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < value.len; i++) {
        const unsigned char c = (unsigned char)value.data[i];
        const char escaped[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (is_unreserved(c)) once_buf_append(out, &value.data[i], 1);
        else once_buf_append(out, escaped, sizeof escaped);
    }
}

/* A JSON string without its quotes. */
static void json_piece(once_buf *out, once_bytes value)
{
    const size_t at = out->len;
    once_buf_json(out, value);
    if (out->failed) return;
    assert(out->len >= at + 2);
    memmove(out->data + at, out->data + at + 1, out->len - at - 2);
    out->len -= 2;
    out->data[out->len] = '\0';
}

static bool has_control(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f) return true;
    return false;
}

/* `name`: of the placeholder. */
static int encode(const once_http_part *part, once_bytes value, once_bytes name, once_buf *out, once_error *err)
{
    switch (part->encoding) {
    case ONCE_HTTP_PLAIN: once_buf_append(out, value.data, value.len); break;
    case ONCE_HTTP_PATH:
        if (value.len == 0)
            return once_fail(err, ONCE_E_MESSAGE, "'%.*s' is empty, and would change the path of the URL", SHOWN(name));
        percent(out, value);
        break;
    case ONCE_HTTP_QUERY:
    case ONCE_HTTP_FORM: percent(out, value); break;
    case ONCE_HTTP_HEADER:
        if (has_control(value))
            return once_fail(err, ONCE_E_MESSAGE, "'%.*s' has a control character, which no header can carry",
                             SHOWN(name));
        once_buf_append(out, value.data, value.len);
        break;
    case ONCE_HTTP_JSON:
        if (part->piece) json_piece(out, value);
        else once_buf_json(out, value);
        break;
    }
    return ONCE_OK;
}

/* --- compiling ---------------------------------------------------------------------------------------------------- */

void once_http_write(once_http_writer *writer, once_arena *arena)
{
    *writer = (once_http_writer){.arena = arena};
    once_buf_init(&writer->literal, 1 << 20);
}

static bool add_part(once_http_writer *w, const once_http_part *part)
{
    if (w->n == w->capacity && !w->failed) {
        const size_t capacity = w->capacity ? 2 * w->capacity : 8;
        once_http_part *more = once_arena_new(w->arena, once_http_part, capacity);
        if (more && w->n) memcpy(more, w->parts, w->n * sizeof *more);
        w->parts = more;
        w->capacity = capacity;
        w->failed = !more;
    }
    if (w->failed) return false;
    w->parts[w->n++] = *part;
    w->fields += part->kind == FIELD;
    return true;
}

static bool end_literal(once_http_writer *w)
{
    once_http_part part = {.kind = LITERAL};
    if (w->literal.failed || !once_arena_copy(w->arena, once_buf_bytes(&w->literal), &part.literal)) w->failed = true;
    const bool any = w->literal.len > 0;
    once_buf_clear(&w->literal);
    return !w->failed && (!any || add_part(w, &part));
}

void once_http_write_literal(once_http_writer *writer, once_bytes literal)
{
    once_buf_append(&writer->literal, literal.data, literal.len);
}

static void write_piece(once_http_writer *w, once_bytes literal, once_http_encoding encoding)
{
    if (encoding == ONCE_HTTP_FORM) percent(&w->literal, literal);
    else if (encoding == ONCE_HTTP_JSON) json_piece(&w->literal, literal);
    else once_http_write_literal(w, literal);
}

static bool is_word(once_bytes text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* A placeholder of messages. If the name is of no kind at all, those of attempts may have been meant. */
static int parse_place(once_http_writer *w, once_bytes inside, once_placeholder *place, once_error *err)
{
    once_error why = {0};
    const int rc = once_placeholder_parse(w->arena, inside, '$', place, &why);
    if (rc == ONCE_OK) return rc;
    const bool of_a_kind = inside.len == 0 || memchr(inside.data, ':', inside.len) || inside.data[0] == '/';
    return once_fail(err, rc, "%s%s", why.text,
                     of_a_kind ? "" : "; of the attempt there are ${key}, ${idempotency_key} and ${attempt}");
}

static int write_placeholder(once_http_writer *w, once_bytes inside, once_http_encoding encoding, bool piece,
                             once_error *err)
{
    once_http_part part = {.kind = FIELD, .encoding = encoding, .piece = piece};
    int rc = ONCE_OK;
    if (w->n >= MAX_PARTS) return once_fail(err, ONCE_E_USAGE, "more than %d placeholders", MAX_PARTS / 2);
    if (is_word(inside, "key")) part.kind = KEY;
    else if (is_word(inside, "idempotency_key")) part.kind = IDEMPOTENCY_KEY;
    else if (is_word(inside, "attempt")) part.kind = ATTEMPT;
    else rc = parse_place(w, inside, &part.place, err);
    if (rc != ONCE_OK) return rc;
    return end_literal(w) && add_part(w, &part) ? ONCE_OK : once_no_memory(err, "for a template");
}

/* The length of the literal that `text` begins with, up to a placeholder, the end, or an escaped "${". */
static size_t literal_length(once_bytes text)
{
    size_t n = 0;
    while (n < text.len &&
           !(text.data[n] == '$' && n + 1 < text.len &&
             (text.data[n + 1] == '{' || (text.data[n + 1] == '$' && n + 2 < text.len && text.data[n + 2] == '{'))))
        n++;
    return n;
}

static int write_parts(once_http_writer *w, once_bytes text, once_http_encoding encoding, bool piece, once_error *err)
{
    for (size_t i = 0; i < text.len;) {
        const once_bytes rest = {text.data + i, text.len - i};
        const size_t plain = literal_length(rest);
        if (plain) {
            if (encoding == ONCE_HTTP_PATH && memchr(rest.data, '?', plain)) encoding = ONCE_HTTP_QUERY;
            write_piece(w, (once_bytes){rest.data, plain}, encoding);
            i += plain;
        } else if (rest.data[1] == '$') {
            write_piece(w, ONCE_BYTES("${"), encoding);
            i += 3;
        } else {
            const char *end = memchr(rest.data, '}', rest.len);
            if (!end)
                return once_fail(err, ONCE_E_USAGE, "'%.*s' has no closing '}'; a literal '${' is written '$${'",
                                 SHOWN(rest));
            const size_t len = (size_t)(end - rest.data);
            const int rc = write_placeholder(w, (once_bytes){rest.data + 2, len - 2}, encoding, piece, err);
            if (rc != ONCE_OK) return rc;
            i += len + 1;
        }
    }
    return ONCE_OK;
}

/* Whether it is "${...}" and nothing else. */
static bool is_single(once_bytes text)
{
    return text.len > 3 && literal_length(text) == 0 && text.data[1] == '{' &&
           memchr(text.data, '}', text.len) == text.data + text.len - 1;
}

int once_http_write_template(once_http_writer *writer, once_bytes text, once_http_encoding encoding, once_error *err)
{
    if (text.len > MAX_TEXT) return once_fail(err, ONCE_E_USAGE, "a template cannot be longer than %d bytes", MAX_TEXT);
    const bool quoted = encoding == ONCE_HTTP_JSON && !is_single(text);
    if (quoted) once_http_write_literal(writer, ONCE_BYTES("\""));
    const int rc = write_parts(writer, text, encoding, quoted, err);
    if (quoted) once_http_write_literal(writer, ONCE_BYTES("\""));
    return rc;
}

bool once_http_written(once_http_writer *writer, once_http_text *out)
{
    const bool fine = end_literal(writer);
    once_buf_release(&writer->literal);
    if (fine) *out = (once_http_text){writer->parts, writer->n, writer->fields};
    return fine;
}

int once_http_text_parse(once_arena *arena, once_bytes text, once_http_encoding encoding, once_http_text *out,
                         once_error *err)
{
    once_http_writer writer;
    once_http_text made = {0};
    once_http_write(&writer, arena);
    int rc = once_http_write_template(&writer, text, encoding, err);
    if (!once_http_written(&writer, &made) && rc == ONCE_OK) rc = once_no_memory(err, "for a template");
    if (rc == ONCE_OK) *out = made;
    return rc;
}

/* --- what it names ------------------------------------------------------------------------------------------------ */

const once_placeholder *once_http_text_next(const once_http_text *text, size_t *at)
{
    while (*at < text->n) {
        const once_http_part *part = &text->parts[(*at)++];
        if (part->kind == FIELD) return &part->place;
    }
    return NULL;
}

bool once_http_text_is_literal(const once_http_text *text)
{
    for (size_t i = 0; i < text->n; i++)
        if (text->parts[i].kind != LITERAL) return false;
    return true;
}

/* --- rendering ---------------------------------------------------------------------------------------------------- */

/* A field as a whole JSON value is what stands in the message: numbers keep their spelling. */
static int json_value(const once_http_part *part, const once_parsed *from, once_buf *out, once_error *err)
{
    once_json_value value;
    const int rc = once_placeholder_value(&part->place, from, &value, err);
    if (rc != ONCE_OK) return rc;
    if (value.type == ONCE_JSON_ABSENT)
        return once_fail(err, ONCE_E_MESSAGE, "missing '%.*s'", SHOWN(part->place.text));
    const char *quote = value.type == ONCE_JSON_STRING ? "\"" : "";
    once_buf_puts(out, quote);
    once_buf_append(out, value.raw.data, value.raw.len);
    once_buf_puts(out, quote);
    return ONCE_OK;
}

/* A time, the coordinates and a hash are texts that stand in no document. */
static bool is_json_value(const once_http_part *part)
{
    const once_placeholder_kind kind = part->place.kind;
    return part->encoding == ONCE_HTTP_JSON && !part->piece && kind != ONCE_PLACE_COORDINATES &&
           kind != ONCE_PLACE_HASH && kind != ONCE_PLACE_TIME;
}

static int field_value(const once_http_part *part, const once_parsed *from, once_arena *arena, once_buf *out,
                       once_error *err)
{
    once_bytes text;
    if (is_json_value(part)) return json_value(part, from, out, err);
    const int rc = once_placeholder_text(&part->place, from, arena, &text, err);
    return rc == ONCE_OK ? encode(part, text, part->place.text, out, err) : rc;
}

int once_http_text_values(const once_http_text *text, const once_parsed *from, once_arena *arena,
                          const once_bytes **values, once_error *err)
{
    once_bytes *list = once_arena_new(arena, once_bytes, text->fields);
    once_buf encoded;
    int rc = list ? ONCE_OK : once_no_memory(err, "for a message");
    size_t n = 0;
    once_buf_init(&encoded, SIZE_MAX / 4);
    for (size_t i = 0; i < text->n && rc == ONCE_OK; i++) {
        if (text->parts[i].kind != FIELD) continue;
        once_buf_clear(&encoded);
        rc = field_value(&text->parts[i], from, arena, &encoded, err);
        if (rc == ONCE_OK && (encoded.failed || !once_arena_copy(arena, once_buf_bytes(&encoded), &list[n++])))
            rc = once_no_memory(err, "for a message");
    }
    once_buf_release(&encoded);
    if (rc == ONCE_OK) *values = list;
    return rc;
}

int once_http_text_render(const once_http_text *text, const once_bytes *values, const once_http_facts *facts,
                          once_buf *out, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < text->n && rc == ONCE_OK; i++) {
        const once_http_part *part = &text->parts[i];
        switch (part->kind) {
        case LITERAL: once_buf_append(out, part->literal.data, part->literal.len); break;
        case FIELD:
            once_buf_append(out, values->data, values->len);
            values++;
            break;
        case KEY: rc = encode(part, facts->key, ONCE_BYTES("key"), out, err); break;
        case IDEMPOTENCY_KEY: rc = encode(part, facts->idempotency_key, ONCE_BYTES("idempotency_key"), out, err); break;
        case ATTEMPT:
            if (part->encoding == ONCE_HTTP_JSON) once_buf_append(out, facts->attempt.data, facts->attempt.len);
            else rc = encode(part, facts->attempt, ONCE_BYTES("attempt"), out, err);
            break;
        }
    }
    return rc;
}

/* The length of `c` at `at`, as it is or as the escape "%2X"; 0: it is not there. */
static size_t written(const char *at, const char *end, char c, const char *escape)
{
    if (at < end && *at == c) return 1;
    return end - at >= 3 && at[0] == '%' && at[1] == escape[0] && (at[2] | 0x20) == escape[1] ? 3 : 0;
}

static size_t separator(const char *at, const char *end)
{
    const size_t slash = written(at, end, '/', "2f");
    return slash ? slash : written(at, end, '\\', "5c");
}

bool once_http_blank(once_bytes value)
{
    size_t n = 0;
    while (n < value.len && (value.data[n] == ' ' || value.data[n] == '\t')) n++;
    return n == value.len;
}

/* Servers exist that decode a path before they look for steps in it. So escaped separators count, too. */
bool once_http_path_steps(once_bytes url)
{
    const char *at = url.data, *end = url.data + url.len;
    const char *query = url.len ? memchr(url.data, '?', url.len) : NULL;
    if (query) end = query;
    while (at < end) {
        size_t dots = 0, len;
        while ((len = written(at, end, '.', "2e")) > 0) at += len, dots++;
        if (dots > 0 && dots <= 2 && (at == end || separator(at, end))) return true;
        while (at < end && !separator(at, end)) at++;
        at += separator(at, end);
    }
    return false;
}
