#include "core/conflict.h"

#include "base/buf.h"
#include "base/duration.h"
#include "base/json.h"

#include "base/banned.h"

enum { FIELDS_MAX = 8, NAME_MAX_BYTES = 64, REASON_MAX_BYTES = 4096 };

/* Names that differ, up to some. */
typedef struct differing {
    once_bytes names[FIELDS_MAX];
    size_t n; /* may be more than there is room for */
} differing;

static void note(differing *to, once_bytes name)
{
    if (to->n < FIELDS_MAX) to->names[to->n] = name;
    to->n++;
}

static bool same_value(once_json *x, once_json_value in_x, once_json *y, once_json_value in_y)
{
    if ((in_x.type == ONCE_JSON_ABSENT) != (in_y.type == ONCE_JSON_ABSENT)) return false;
    return in_x.type == ONCE_JSON_ABSENT || once_hash_equal(once_json_fingerprint(x, in_x, 0), once_json_fingerprint(y, in_y, 0));
}

/* Members of `x` that `y` does not have so; with `missing` only those that it does not have at all. */
static bool compare_members(once_json *x, once_json *y, bool missing, once_arena *arena, differing *out)
{
    once_json_iter it = once_json_each(x, once_json_root(x));
    while (once_json_next(&it)) {
        once_bytes name;
        if (!once_json_string(it.key, arena, &name)) return false;
        const once_json_value other = once_json_member(y, once_json_root(y), name);
        if (missing ? other.type == ONCE_JSON_ABSENT : !same_value(x, it.value, y, other)) note(out, name);
    }
    return true;
}

static bool compare(once_json *first, once_json *now, const once_fingerprint_spec *spec, once_arena *arena, differing *out)
{
    if (spec && spec->kind == ONCE_FINGERPRINT_FIELDS) {
        for (size_t i = 0; i < spec->n; i++)
            if (!same_value(first, once_json_find(first, &spec->fields[i]), now, once_json_find(now, &spec->fields[i]))) note(out, spec->fields[i].text);
        return true;
    }
    if (once_json_root(first).type != ONCE_JSON_OBJECT || once_json_root(now).type != ONCE_JSON_OBJECT) return true;
    return compare_members(now, first, false, arena, out) && compare_members(first, now, true, arena, out);
}

/* False: out of memory. What is no JSON has no fields. */
static bool find_fields(once_bytes first, once_bytes now, const once_fingerprint_spec *spec, once_secret secret, once_arena *arena, differing *out)
{
    once_json x, y;
    const once_json_options options = {.seed = secret.k1};
    once_json_init(&x);
    once_json_init(&y);
    int rc = once_json_parse(&x, first, &options, NULL);
    if (rc == ONCE_OK) rc = once_json_parse(&y, now, &options, NULL);
    const bool fine = rc == ONCE_OK ? compare(&x, &y, spec, arena, out) : rc == ONCE_E_MESSAGE;
    once_json_release(&x);
    once_json_release(&y);
    return fine;
}

/* Control characters do not get into a reason. */
static void put_name(once_buf *to, once_bytes name)
{
    once_buf_puts(to, "'");
    const size_t len = name.len < NAME_MAX_BYTES ? name.len : NAME_MAX_BYTES;
    for (size_t i = 0; i < len; i++) {
        const char c = (unsigned char)name.data[i] < 0x20 || name.data[i] == 0x7f ? '?' : name.data[i];
        once_buf_append(to, &c, 1);
    }
    once_buf_puts(to, len < name.len ? "...'" : "'");
}

static void put_fields(once_buf *to, const differing *fields)
{
    if (fields->n == 0) return;
    once_buf_puts(to, ": ");
    for (size_t i = 0; i < fields->n && i < FIELDS_MAX; i++) {
        if (i) once_buf_puts(to, ", ");
        put_name(to, fields->names[i]);
    }
    if (fields->n > FIELDS_MAX) once_buf_puts(to, " and others");
    once_buf_puts(to, fields->n == 1 ? " differs" : " differ");
}

static void put_origin(once_buf *to, const once_first *first)
{
    char time[ONCE_TIME_TEXT];
    once_buf_puts(to, "; the first one came ");
    if (first->at.place.len) {
        once_buf_puts(to, "from ");
        once_buf_append(to, first->at.place.data, first->at.place.len < 400 ? first->at.place.len : 400);
        once_buf_puts(to, ":");
        once_buf_append(to, first->at.point.data, first->at.point.len < 100 ? first->at.point.len : 100);
        once_buf_puts(to, " ");
    }
    once_buf_puts(to, "at ");
    once_buf_puts(to, once_time_format(first->seen_ms, time));
    if (first->who.len) {
        once_buf_puts(to, ", seen by ");
        once_buf_append(to, first->who.data, first->who.len);
    }
}

bool once_conflict_reason(const once_decision *decision, const once_fingerprint_spec *spec, once_bytes body, once_secret secret, once_arena *arena,
                          once_bytes *out)
{
    differing fields = {.n = 0};
    once_buf text;
    if (decision->first.body.len && !find_fields(decision->first.body, body, spec, secret, arena, &fields)) return false;
    once_buf_init(&text, REASON_MAX_BYTES);
    once_buf_puts(&text, "conflict: the key was used before with other content");
    put_fields(&text, &fields);
    put_origin(&text, &decision->first);
    const bool fine = !text.failed && once_arena_copy(arena, once_buf_bytes(&text), out);
    once_buf_release(&text);
    return fine;
}
