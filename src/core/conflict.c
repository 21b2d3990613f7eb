/* The reason of a conflict letter (core/conflict.h).
 *
 * Cost: a store may be locked while this runs, and anyone may send an object with very many members. So the number of
 * members that are compared by searching is bounded (LOOKUPS_COST_MAX), and so is the text. */
#include "core/conflict.h"

#include <assert.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/duration.h"
#include "core/fields.h"

#include "base/banned.h"

enum { FIELDS_MAX = 8, NAME_MAX_BYTES = 64, REASON_MAX_BYTES = 4096 };
enum { LOOKUPS_COST_MAX = 1000000 }; /* members that a search may pass, in all */

/* The names of fields that differ. */
typedef struct differing {
    once_bytes names[FIELDS_MAX];
    size_t n;    /* may be more than there is room for */
    bool cut;    /* not everything was compared: there may be others */
    size_t gone; /* so many more fields of the first message are missing here; their names are not known */
} differing;

static void note(differing *to, once_bytes name)
{
    if (to->n < FIELDS_MAX) to->names[to->n] = name;
    to->n++;
}

/* A message, parsed. */
typedef struct side {
    once_json json;
    once_texts texts;
} side;

static int open_side(side *s, once_bytes body, once_secret secret, once_arena *arena)
{
    const once_json_options options = {.seed = secret.k1};
    *s = (side){0};
    once_json_init(&s->json);
    once_texts_begin(&s->texts, arena, secret.k1);
    return once_json_parse(&s->json, body, &options, NULL);
}

static void close_side(side *s)
{
    once_json_release(&s->json);
    once_texts_release(&s->texts);
}

/* The value at the path; a text that is no JSON has none. False: out of memory. */
static bool find(side *s, const once_path *path, once_path_value *out)
{
    const int rc = once_path_find(path, &s->json, &s->texts, out, NULL);
    if (rc == ONCE_E_MESSAGE) *out = (once_path_value){.json = &s->json};
    return rc == ONCE_OK || rc == ONCE_E_MESSAGE;
}

static bool same_value(once_json *x, once_json_value in_x, once_json *y, once_json_value in_y)
{
    if ((in_x.type == ONCE_JSON_ABSENT) != (in_y.type == ONCE_JSON_ABSENT)) return false;
    return in_x.type == ONCE_JSON_ABSENT ||
           once_hash_equal(once_json_fingerprint(x, in_x, 0), once_json_fingerprint(y, in_y, 0));
}

static size_t count_members(const once_json *json)
{
    size_t n = 0;
    for (once_json_iter it = once_json_each(json, once_json_root(json)); once_json_next(&it);) n++;
    return n;
}

/* The member of `y` with that name. Mostly it is at the same place as in the other object. A search costs as many steps
 * as `y` has members. False: the steps are used up. */
static bool find_member(once_json *y, once_json_iter *beside, size_t members, size_t *steps, once_bytes name,
                        once_json_value *out)
{
    if (once_json_next(beside) && once_json_string_is(beside->key, name)) {
        *out = beside->value;
        return true;
    }
    if (*steps < members) return false;
    *steps -= members;
    *out = once_json_member(y, once_json_root(y), name);
    return true;
}

/* Members of `x` that differ in `y`; with `missing` only those that `y` does not have. Stops when there are more than
 * can be named. False: out of memory. */
static bool compare_members(once_json *x, once_json *y, bool missing, once_arena *arena, differing *out)
{
    const size_t members = count_members(y);
    size_t steps = LOOKUPS_COST_MAX / 2;
    once_json_iter it = once_json_each(x, once_json_root(x)), beside = once_json_each(y, once_json_root(y));
    while (out->n <= FIELDS_MAX && once_json_next(&it)) {
        once_bytes name;
        once_json_value other;
        if (!once_json_string(it.key, arena, &name)) return false;
        if (!find_member(y, &beside, members, &steps, name, &other)) {
            out->cut = true;
            return true;
        }
        if (missing ? other.type == ONCE_JSON_ABSENT : !same_value(x, it.value, y, other)) note(out, name);
    }
    return true;
}

static bool compare_chosen(side *first, side *now, const once_fingerprint_spec *spec, differing *out)
{
    for (size_t i = 0; i < spec->n; i++) {
        once_path_value x, y;
        if (!find(first, &spec->fields[i], &x) || !find(now, &spec->fields[i], &y)) return false;
        if (!same_value(x.json, x.value, y.json, y.value)) note(out, spec->fields[i].text);
    }
    return true;
}

static bool compare(side *first, side *now, const once_fingerprint_spec *spec, once_arena *arena, differing *out)
{
    once_json *x = &first->json, *y = &now->json;
    if (spec && spec->kind == ONCE_FINGERPRINT_FIELDS) return compare_chosen(first, now, spec, out);
    if (once_json_root(x).type != ONCE_JSON_OBJECT || once_json_root(y).type != ONCE_JSON_OBJECT) return true;
    return compare_members(y, x, false, arena, out) && compare_members(x, y, true, arena, out);
}

/* The same if only the prints of the first message's fields are left (core/fields.h). */
static bool compare_chosen_prints(once_fields first, side *now, const once_fingerprint_spec *spec, uint64_t seed,
                                  differing *out)
{
    for (size_t i = 0; i < spec->n; i++) {
        once_path_value found;
        uint16_t print;
        once_json_chosen one = {.seed = seed, .prints = {.at = &print, .capacity = 1}};
        if (!find(now, &spec->fields[i], &found)) return false;
        once_json_choose(&one, spec->fields[i].text, found.json, found.value);
        if (!once_fields_take(&first, print)) note(out, spec->fields[i].text);
    }
    return true;
}

static bool compare_member_prints(once_fields first, once_json *now, uint64_t seed, once_arena *arena, differing *out)
{
    once_json_prints prints = {.capacity = count_members(now)};
    if (once_json_root(now).type != ONCE_JSON_OBJECT) return true;
    if (prints.capacity && !(prints.at = once_arena_new(arena, uint16_t, prints.capacity))) return false;
    once_json_fingerprint_fields(now, once_json_root(now), seed, &prints);
    assert(prints.capacity == prints.n); /* so each print is there */
    once_json_iter it = once_json_each(now, once_json_root(now));
    for (size_t i = 0; i < prints.n; i++) {
        once_bytes name;
        if (!once_json_next(&it) || !once_json_string(it.key, arena, &name)) return false;
        if (!once_fields_take(&first, prints.at[i])) note(out, name);
    }
    out->gone = first.n > out->n ? first.n - out->n : 0; /* each field that differs leaves one print, too */
    return true;
}

static bool compare_prints(const once_fields *first, side *now, const once_fingerprint_spec *spec, uint64_t seed,
                           once_arena *arena, differing *out)
{
    if (spec && spec->kind == ONCE_FINGERPRINT_FIELDS) return compare_chosen_prints(*first, now, spec, seed, out);
    return compare_member_prints(*first, &now->json, seed, arena, out);
}

static bool find_fields_by_print(const once_fields *first, once_bytes now, const once_fingerprint_spec *spec,
                                 once_secret secret, once_arena *arena, differing *out)
{
    side s;
    const int rc = open_side(&s, now, secret, arena);
    const bool fine = rc == ONCE_OK ? compare_prints(first, &s, spec, secret.k0, arena, out) : rc == ONCE_E_MESSAGE;
    close_side(&s);
    return fine;
}

/* False: out of memory. A body that is not JSON has no fields. */
static bool find_fields(once_bytes first, once_bytes now, const once_fingerprint_spec *spec, once_secret secret,
                        once_arena *arena, differing *out)
{
    side x, y;
    const int of_x = open_side(&x, first, secret, arena), of_y = open_side(&y, now, secret, arena);
    bool fine = of_x != ONCE_E_NOMEM && of_y != ONCE_E_NOMEM;
    if (of_x == ONCE_OK && of_y == ONCE_OK) fine = compare(&x, &y, spec, arena, out);
    close_side(&x);
    close_side(&y);
    return fine;
}

/* Whole characters only, and control characters as '?'. */
static void put_plain(once_buf *to, once_bytes text, size_t max)
{
    size_t at = 0;
    while (at < text.len) {
        const once_character c = once_character_first((once_bytes){text.data + at, text.len - at});
        if (at + c.len > max) break;
        if (c.fit) once_buf_append(to, text.data + at, c.len);
        else once_buf_puts(to, "?");
        at += c.len;
    }
    if (at < text.len) once_buf_puts(to, "...");
}

static void put_name(once_buf *to, once_bytes name)
{
    once_buf_puts(to, "'");
    put_plain(to, name, NAME_MAX_BYTES);
    once_buf_puts(to, "'");
}

static void put_fields(once_buf *to, const differing *fields)
{
    if (fields->n == 0 && fields->gone == 0) return;
    once_buf_puts(to, ": ");
    for (size_t i = 0; i < fields->n && i < FIELDS_MAX; i++) {
        if (i) once_buf_puts(to, ", ");
        put_name(to, fields->names[i]);
    }
    if (fields->n > FIELDS_MAX) once_buf_puts(to, " and others");
    else if (fields->cut) once_buf_puts(to, " and perhaps others");
    if (fields->n) once_buf_puts(to, fields->n == 1 && !fields->cut ? " differs" : " differ");
    if (fields->gone == 0) return;
    char text[80];
    snprintf(text, sizeof text, "%s%zu field%s of the first one %s missing here", fields->n ? ", and " : "",
             fields->gone, fields->gone == 1 ? "" : "s", fields->gone == 1 ? "is" : "are");
    once_buf_puts(to, text);
}

static void put_place(once_buf *to, const once_coordinates *at)
{
    if (at->place.len == 0) return;
    once_buf_puts(to, "from ");
    put_plain(to, at->place, 400);
    once_buf_puts(to, ":");
    put_plain(to, at->point, 100);
    once_buf_puts(to, " ");
}

static void put_origin(once_buf *to, const once_first *first)
{
    char time[ONCE_TIME_TEXT];
    once_buf_puts(to, "; the first one came ");
    put_place(to, &first->at);
    once_buf_puts(to, "at ");
    once_buf_puts(to, once_time_format(first->seen_ms, time));
    if (first->who.len) {
        once_buf_puts(to, ", seen by ");
        once_buf_append(to, first->who.data, first->who.len);
    }
}

bool once_conflict_reason(const once_decision *decision, const once_fingerprint_spec *spec, once_bytes body,
                          once_secret secret, once_arena *arena, once_bytes *out)
{
    differing fields = {.n = 0};
    once_buf text;
    const bool bytes = spec && spec->kind == ONCE_FINGERPRINT_BYTES; /* it has no fields, even if it is JSON */
    const once_first *first = decision->first;
    assert(first);
    const bool fine = bytes             ? true
                      : first->body.len ? find_fields(first->body, body, spec, secret, arena, &fields)
                      : first->fields.n ? find_fields_by_print(&first->fields, body, spec, secret, arena, &fields)
                                        : true;
    if (!fine) return false;
    once_buf_init(&text, REASON_MAX_BYTES);
    once_buf_puts(&text, "conflict: the key was used before with other content");
    put_fields(&text, &fields);
    put_origin(&text, first);
    const bool made = !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return made;
}

bool once_conflict_replaced(const once_coordinates *by, once_arena *arena, once_bytes *out)
{
    once_buf text;
    once_buf_init(&text, REASON_MAX_BYTES);
    once_buf_puts(&text, "conflict: replaced by other content ");
    put_place(&text, by);
    once_buf_puts(&text, "before it had any effect");
    const bool made = !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return made;
}
