#include "core/placeholder.h"

#include <assert.h>
#include <string.h>

#include "base/duration.h"
#include "base/no_memory.h"
#include "core/body_hash.h"
#include "core/event.h"

#include "base/banned.h"

#define SHOWN(bytes) ((bytes).len > 100 ? 100 : (int)(bytes).len), ((bytes).data ? (bytes).data : "")

/* --- parsing ------------------------------------------------------------------------------------------------------ */

static bool starts_with(once_bytes text, const char *start)
{
    const size_t len = strlen(start);
    return text.len >= len && memcmp(text.data, start, len) == 0;
}

static bool is_word(once_bytes text, const char *word) { return text.len == strlen(word) && starts_with(text, word); }

static once_bytes slice(once_bytes text, size_t from, size_t to)
{
    assert(from <= to && to <= text.len);
    return (once_bytes){text.data + from, to - from};
}

static bool is_path(once_bytes text) { return starts_with(text, "/") || starts_with(text, "json:"); }

static int parse_path(once_arena *arena, once_bytes path, char mark, once_placeholder *p, once_error *err)
{
    once_error why = {0};
    const int rc = once_path_parse(arena, path, &p->path, &why);
    if (rc == ONCE_OK) return ONCE_OK;
    return once_fail(err, rc, "'%c{%.*s}' is not a %s: %s", mark, SHOWN(p->text),
                     path.data[0] == '/' ? "JSON pointer" : "path", why.text);
}

/* "time:/ts:5m": the window stands behind the last colon. */
static int parse_time(once_arena *arena, char mark, once_placeholder *p, once_error *err)
{
    const once_bytes rest = slice(p->text, strlen("time:"), p->text.len);
    const char *colon = rest.len > 0 ? memrchr(rest.data, ':', rest.len) : NULL;
    const size_t at = colon ? (size_t)(colon - rest.data) : 0;
    if (!colon || !is_path(slice(rest, 0, at)))
        return once_fail(err, ONCE_E_USAGE,
                         "'%c{%.*s}' is incomplete; write a field and a window, as in '%c{time:/ts:5m}'", mark,
                         SHOWN(p->text), mark);
    once_error why = {0};
    if (once_duration_parse(slice(rest, at + 1, rest.len), &p->window_ms, &why) != ONCE_OK)
        return once_fail(err, ONCE_E_USAGE, "'%c{%.*s}' has no window: %s", mark, SHOWN(p->text), why.text);
    if (p->window_ms == 0 || p->window_ms == ONCE_FOREVER)
        return once_fail(err, ONCE_E_USAGE, "'%c{%.*s}' has a window of %s; write a length, as in '%c{time:/ts:5m}'",
                         mark, SHOWN(p->text), p->window_ms == 0 ? "0" : "forever", mark);
    return parse_path(arena, slice(rest, 0, at), mark, p, err);
}

static int parse_name(const char *kind, const char *example, char mark, once_placeholder *p, once_error *err)
{
    p->name = slice(p->text, strlen(kind), p->text.len);
    if (p->name.len > 0) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE, "'%c{%s}' names nothing; write a name, as in '%c{%s%s}'", mark, kind, mark,
                     kind, example);
}

/* CloudEvents allows lower-case letters and digits. */
static int parse_attribute(char mark, once_placeholder *p, once_error *err)
{
    p->name = slice(p->text, strlen("event:"), p->text.len);
    bool good = p->name.len > 0 && p->name.len <= ONCE_EVENT_NAME_MAX;
    for (size_t i = 0; i < p->name.len && good; i++) {
        const char c = p->name.data[i];
        good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    }
    if (good) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE,
                     "'%c{%.*s}' names no attribute of an event; write lower-case letters and digits, as in "
                     "'%c{event:subject}'",
                     mark, SHOWN(p->text), mark);
}

static int parse_kind(once_arena *arena, char mark, once_placeholder *p, once_error *err)
{
    const once_bytes text = p->text;
    if (is_path(text)) {
        p->kind = ONCE_PLACE_FIELD;
        return parse_path(arena, text, mark, p, err);
    }
    if (starts_with(text, "header:")) {
        p->kind = ONCE_PLACE_HEADER;
        return parse_name("header:", "tenant", mark, p, err);
    }
    if (starts_with(text, "source:")) {
        p->kind = ONCE_PLACE_SOURCE;
        return parse_name("source:", "key", mark, p, err);
    }
    if (starts_with(text, "event:")) {
        p->kind = ONCE_PLACE_EVENT;
        return parse_attribute(mark, p, err);
    }
    if (starts_with(text, "time:")) {
        p->kind = ONCE_PLACE_TIME;
        return parse_time(arena, mark, p, err);
    }
    p->kind = is_word(text, "hash") ? ONCE_PLACE_HASH : ONCE_PLACE_COORDINATES;
    if (p->kind == ONCE_PLACE_HASH || is_word(text, "coordinates")) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE,
                     "'%c{%.*s}' is not understood; a field of the body is '%c{/%.*s}', else there are "
                     "%c{json:/text:/field}, %c{header:NAME}, %c{coordinates}, %c{hash} and %c{time:/field:5m}",
                     mark, SHOWN(text), mark, SHOWN(text), mark, mark, mark, mark, mark);
}

int once_placeholder_parse(once_arena *arena, once_bytes text, char mark, once_placeholder *out, once_error *err)
{
    assert(arena && out && (mark == '$' || mark == ':'));
    once_placeholder made = {.text = text};
    if (text.len == 0)
        return once_fail(err, ONCE_E_USAGE, "'%c{}' is empty; name a field, as in '%c{/id}'", mark, mark);
    const int rc = parse_kind(arena, mark, &made, err);
    if (rc == ONCE_OK) *out = made;
    return rc;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static once_json_value source_value(const once_parsed *from, once_bytes name)
{
    if (!from->headers) return (once_json_value){0};
    const once_json_value known =
        once_json_member(from->headers, once_json_root(from->headers), ONCE_BYTES(ONCE_SOURCE_MEMBER));
    return once_json_member(from->headers, known, name);
}

static once_json_value header_value(const once_parsed *from, once_bytes name)
{
    return from->headers ? once_json_member(from->headers, once_json_root(from->headers), name) : (once_json_value){0};
}

int once_placeholder_value(const once_placeholder *p, const once_parsed *from, once_json_value *out, once_error *err)
{
    if (p->path.n == 1) { /* a field of the body: most are */
        *out = from->body ? once_json_find(from->body, p->path.pointers) : (once_json_value){0};
        return ONCE_OK;
    }
    once_path_value found = {0};
    int rc = ONCE_OK;
    switch (p->kind) {
    case ONCE_PLACE_FIELD:
    case ONCE_PLACE_TIME: rc = once_path_find(&p->path, from->body, from->texts, &found, err); break;
    case ONCE_PLACE_HEADER: found.value = header_value(from, p->name); break;
    case ONCE_PLACE_SOURCE: found.value = source_value(from, p->name); break;
    case ONCE_PLACE_EVENT: found.value = once_event_attribute(from, p->name); break;
    case ONCE_PLACE_COORDINATES:
    case ONCE_PLACE_HASH: break;
    }
    if (rc == ONCE_OK) *out = found.value;
    return rc;
}

static bool has_coordinates(const once_message *message)
{
    return message && (message->at.place.len > 0 || message->at.point.len > 0);
}

bool once_placeholder_is_absent(const once_placeholder *p, const once_parsed *from)
{
    once_json_value value;
    if (p->kind == ONCE_PLACE_COORDINATES) return !has_coordinates(from->message);
    if (p->kind == ONCE_PLACE_HASH) return !from->body && (!from->message || from->message->no_body);
    return once_placeholder_value(p, from, &value, NULL) == ONCE_OK && value.type == ONCE_JSON_ABSENT;
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* What a value is called in messages, and its name. The value itself is never shown. */
typedef struct named {
    const char *what;
    once_bytes name;
} named;

static named named_by(const once_placeholder *p)
{
    switch (p->kind) {
    case ONCE_PLACE_HEADER: return (named){"header", p->name};
    case ONCE_PLACE_SOURCE: return (named){"source", p->name};
    case ONCE_PLACE_EVENT: return (named){"attribute", p->name};
    case ONCE_PLACE_FIELD:
    case ONCE_PLACE_TIME:
    case ONCE_PLACE_COORDINATES:
    case ONCE_PLACE_HASH: break;
    }
    return (named){"field", p->path.text};
}

static int number_text(once_json_value value, named by, once_arena *arena, once_bytes *out, once_error *err)
{
    if (value.type == ONCE_JSON_INTEGER && value.raw.len <= 18 && value.raw.data[0] != '-') {
        *out = value.raw; /* a short integer has only one spelling */
        return ONCE_OK;
    }
    once_decimal decimal;
    if (!once_json_decimal(value, &decimal))
        return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is a number out of range", by.what, SHOWN(by.name));
    if (!once_decimal_text(&decimal, arena, out)) return once_no_memory(err, "for a template");
    return ONCE_OK;
}

static int value_text(once_json_value value, named by, once_arena *arena, once_bytes *out, once_error *err)
{
    switch (value.type) {
    case ONCE_JSON_STRING:
        if (!value.escaped) *out = value.raw;
        else if (!once_json_string(value, arena, out)) return once_no_memory(err, "for a template");
        return ONCE_OK;
    case ONCE_JSON_INTEGER:
    case ONCE_JSON_REAL: return number_text(value, by, arena, out, err);
    case ONCE_JSON_TRUE: *out = ONCE_BYTES("true"); return ONCE_OK;
    case ONCE_JSON_FALSE: *out = ONCE_BYTES("false"); return ONCE_OK;
    case ONCE_JSON_NULL: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is null", by.what, SHOWN(by.name));
    case ONCE_JSON_OBJECT: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is an object", by.what, SHOWN(by.name));
    case ONCE_JSON_ARRAY: return once_fail(err, ONCE_E_MESSAGE, "%s '%.*s' is an array", by.what, SHOWN(by.name));
    case ONCE_JSON_ABSENT: break;
    }
    return once_fail(err, ONCE_E_MESSAGE, "missing %s '%.*s'", by.what, SHOWN(by.name));
}

static int coordinates_text(const once_message *message, once_arena *arena, once_bytes *out, once_error *err)
{
    if (!has_coordinates(message)) return once_fail(err, ONCE_E_MESSAGE, "the message has no coordinates");
    const once_bytes place = message->at.place, point = message->at.point;
    char *text = once_arena_alloc(arena, place.len + point.len + 1);
    if (!text) return once_no_memory(err, "for a template");
    if (place.len > 0) memcpy(text, place.data, place.len);
    text[place.len] = ':';
    if (point.len > 0) memcpy(text + place.len + 1, point.data, point.len);
    *out = (once_bytes){text, place.len + point.len + 1};
    return ONCE_OK;
}

static int window_text(const once_placeholder *p, once_json_value value, once_arena *arena, once_bytes *out,
                       once_error *err)
{
    assert(p->kind == ONCE_PLACE_TIME && p->window_ms > 0);
    int64_t time_ms;
    if (value.type == ONCE_JSON_ABSENT) return value_text(value, named_by(p), arena, out, err);
    bool known = once_json_int64(value, &time_ms);
    if (!known && value.type == ONCE_JSON_STRING) {
        once_bytes text;
        if (!once_json_string(value, arena, &text)) return once_no_memory(err, "for a template");
        known = once_time_parse(text, &time_ms, NULL) == ONCE_OK;
    }
    if (!known)
        return once_fail(err, ONCE_E_MESSAGE, "field '%.*s' is not a time (RFC 3339 or milliseconds since 1970)",
                         SHOWN(p->path.text));
    int64_t into = time_ms % p->window_ms, start_ms;
    if (into < 0) into += p->window_ms;
    if (__builtin_sub_overflow(time_ms, into, &start_ms) || start_ms == ONCE_NO_TIME)
        return once_fail(err, ONCE_E_MESSAGE, "field '%.*s' is a time out of range", SHOWN(p->path.text));
    char *text = once_arena_alloc(arena, ONCE_TIME_TEXT);
    if (!text) return once_no_memory(err, "for a template");
    *out = (once_bytes){once_time_format(start_ms, text), 0};
    out->len = strlen(text);
    return ONCE_OK;
}

int once_placeholder_text(const once_placeholder *p, const once_parsed *from, once_arena *arena, once_bytes *out,
                          once_error *err)
{
    if (p->kind == ONCE_PLACE_COORDINATES) return coordinates_text(from->message, arena, out, err);
    if (p->kind == ONCE_PLACE_HASH) return once_body_hash(from, arena, out, err);
    once_json_value value;
    const int rc = once_placeholder_value(p, from, &value, err);
    if (rc != ONCE_OK) return rc;
    if (p->kind == ONCE_PLACE_TIME) return window_text(p, value, arena, out, err);
    return value_text(value, named_by(p), arena, out, err);
}
