/* Reads nodes into structs by tables, and collects mistakes (base/config.h). */
#include "base/config.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/duration.h"
#include "base/json.h"
#include "base/no_memory.h"
#include "base/plain.h"

#include "base/banned.h"

#define MAX_NAME 40 /* longer names are not compared with known ones */

/* --- mistakes ----------------------------------------------------------------------------------------------------- */

void once_config_init(once_config *config, once_arena *arena, const char *file)
{
    assert(config && arena && file);
    *config = (once_config){.arena = arena, .file = file};
}

/* The list is in the order of the file; when it is full, the last ones are dropped. */
static void keep(once_config *config, once_config_mistake mistake)
{
    config->total++;
    size_t at = config->n;
    while (at > 0 && config->mistakes[at - 1].line > mistake.line) at--;
    if (at == ONCE_CONFIG_MISTAKES) return;
    if (config->n < ONCE_CONFIG_MISTAKES) config->n++;
    for (size_t i = config->n - 1; i > at; i--) config->mistakes[i] = config->mistakes[i - 1];
    config->mistakes[at] = mistake;
    assert(config->n <= config->total);
}

void once_config_wrong(once_config *config, int status, int line, const char *format, ...)
{
    assert(status != ONCE_OK && line >= 0);
    char what[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);

    once_error err = {0}; /* makes it one line, cut between characters */
    once_config_shown file = once_config_show((once_bytes){config->file, strlen(config->file)});
    if (line > 0) (void)once_fail(&err, status, "%s:%d: %s", file.text, line, what);
    else (void)once_fail(&err, status, "%s: %s", file.text, what);
    once_bytes text;
    if (!once_arena_copy(config->arena, (once_bytes){err.text, strlen(err.text)}, &text)) {
        config->nomem = true;
        return;
    }
    keep(config, (once_config_mistake){.status = status, .line = line, .text = text.data});
}

int once_config_finish(once_config *config, once_config_report *report, void *user, once_error *err)
{
    if (config->nomem) return once_no_memory(err, "while reading '%s'", config->file);
    if (config->total == 0) return ONCE_OK;
    assert(config->n > 0);
    for (size_t i = 0; report && i < config->n; i++) report(user, config->mistakes[i].text);
    if (report && config->total > config->n) {
        char more[40];
        (void)snprintf(more, sizeof more, "and %zu more", config->total - config->n);
        report(user, more);
    }
    return once_fail(err, config->mistakes[0].status, "%s", config->mistakes[0].text);
}

once_config_shown once_config_show(once_bytes text)
{
    once_config_shown shown;
    size_t len = text.len < 60 ? text.len : 60;
    while (len > 0 && len < text.len && ((unsigned char)text.data[len] & 0xc0) == 0x80) len--; /* whole characters */
    if (len) memcpy(shown.text, text.data, len);
    const bool whole = len == text.len;
    len = once_make_plain(shown.text, len, ' ');
    (void)snprintf(shown.text + len, sizeof shown.text - len, "%s", whole ? "" : "...");
    return shown;
}

/* --- the nearest name --------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* How many insertions, deletions, substitutions and swaps of neighbours turn one into the other. */
static size_t edits(once_bytes a, once_bytes b)
{
    assert(a.len <= MAX_NAME && b.len <= MAX_NAME);
    size_t rows[3][MAX_NAME + 1];
    size_t *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t k = 0; k <= b.len; k++) above[k] = k;
    for (size_t i = 1; i <= a.len; i++) {
        row[0] = i;
        for (size_t k = 1; k <= b.len; k++) {
            char x = lower(a.data[i - 1]), y = lower(b.data[k - 1]);
            row[k] = least(least(above[k], row[k - 1]) + 1, above[k - 1] + (x == y ? 0 : 1));
            if (i > 1 && k > 1 && x == lower(b.data[k - 2]) && lower(a.data[i - 2]) == y)
                row[k] = least(row[k], before[k - 2] + 1);
        }
        size_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b.len];
}

const char *once_config_nearest(once_bytes name, const char *(*next)(void *user, size_t i), void *user)
{
    if (name.len == 0 || name.len > MAX_NAME) return NULL;
    const char *best = NULL;
    size_t limit = name.len < 4 ? 1 : name.len < 8 ? 2 : 3;
    for (size_t i = 0;; i++) {
        const char *known = next(user, i);
        if (!known) return best;
        once_bytes other = {known, strlen(known)};
        if (other.len > MAX_NAME) continue;
        size_t distance = edits(name, other);
        if (distance > limit || distance >= other.len) continue;
        best = known;
        limit = distance == 0 ? 0 : distance - 1; /* only nearer ones count from here on */
        if (distance == 0) return best;
    }
}

const once_config_field *once_config_field_at(const once_config_section *section, size_t i, void *out, void **place)
{
    size_t n = 0;
    for (; section->brought; n++) {
        const once_config_field *field = section->brought(n, out, place);
        if (!field) break;
        if (n == i) return field;
    }
    if (i - n >= section->n) return NULL;
    if (place) *place = out;
    return &section->fields[i - n];
}

static const char *field_name(void *user, size_t i)
{
    const once_config_field *field = once_config_field_at(user, i, NULL, NULL);
    return field ? field->name : NULL;
}

static const char *word_name(void *user, size_t i)
{
    const once_config_word *words = user;
    return words[i].name;
}

/* --- scalars ------------------------------------------------------------------------------------------------------ */

static const char *example_of(const once_config_field *field)
{
    return field->example ? field->example : field->standard ? field->standard : "...";
}

static const char *wanted(const once_config_field *field)
{
    switch (field->type) {
    case ONCE_CONFIG_STRING: return "text";
    case ONCE_CONFIG_BOOL: return "true or false";
    case ONCE_CONFIG_INTEGER: return "a whole number";
    case ONCE_CONFIG_DURATION: return "a duration";
    case ONCE_CONFIG_RANGE: return "a range of durations";
    case ONCE_CONFIG_SIZE: return "a size";
    case ONCE_CONFIG_WORD: return "a word";
    case ONCE_CONFIG_POINTER: return "a JSON pointer";
    case ONCE_CONFIG_STRINGS: return "a list of texts";
    case ONCE_CONFIG_SECTION: return "a map";
    case ONCE_CONFIG_CUSTOM: return field->shape;
    case ONCE_CONFIG_LATER: break;
    }
    return "?";
}

static bool wrong_kind(once_config *config, const once_config_field *field, const once_node *node)
{
    once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be %s, not %s; write '%s: %s'", field->name,
                      wanted(field), once_node_kind_text(node), field->name, example_of(field));
    return false;
}

bool once_config_scalar(once_config *config, const once_config_field *field, const once_node *node, once_bytes *out)
{
    if (node->kind != ONCE_NODE_SCALAR) return wrong_kind(config, field, node);
    if (node->none) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' has no value; write '%s: %s'", field->name,
                          field->name, example_of(field));
        return false;
    }
    *out = node->text;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t leading_digits(once_bytes text)
{
    size_t n = 0;
    while (n < text.len && is_digit(text.data[n])) n++;
    return n;
}

static bool is_text(once_bytes text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* `digits` has digits only. False: it does not fit. */
static bool to_int64(once_bytes digits, int64_t *out)
{
    int64_t number = 0;
    for (size_t i = 0; i < digits.len; i++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, digits.data[i] - '0', &number))
            return false;
    *out = number;
    return true;
}

static void put_integer(const once_config_field *field, void *out, int64_t number)
{
    char *place = (char *)out + field->offset;
    uint32_t small = (uint32_t)number;
    assert(field->size == sizeof number || (number >= 0 && number <= INT32_MAX));
    assert(field->size == sizeof number || field->size == sizeof small);
    if (field->size == sizeof small) memcpy(place, &small, sizeof small);
    else memcpy(place, &number, sizeof number);
}

static bool read_integer(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    bool negative = text.len > 0 && text.data[0] == '-';
    once_bytes digits = {text.data + negative, text.len - negative};
    int64_t number = 0;
    if (digits.len == 0 || leading_digits(digits) != digits.len) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be a whole number, not '%s'; write '%s: %s'",
                          field->name, once_config_show(text).text, field->name, example_of(field));
        return false;
    }
    bool fits = to_int64(digits, &number);
    if (negative) number = -number;
    if (!fits || number < field->min || number > field->max) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is %s; write a number from %" PRId64 " to %" PRId64,
                          field->name, once_config_show(text).text, field->min, field->max);
        return false;
    }
    put_integer(field, out, number);
    return true;
}

static bool read_bool(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    bool yes = is_text(text, "true");
    if (!yes && !is_text(text, "false")) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be true or false, not '%s'", field->name,
                          once_config_show(text).text);
        return false;
    }
    memcpy((char *)out + field->offset, &yes, sizeof yes);
    return true;
}

static bool read_string(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    if (text.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is empty; write '%s: %s'", field->name, field->name,
                          example_of(field));
        return false;
    }
    if (field->max > 0 && (int64_t)text.len > field->max) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is longer than %" PRId64 " bytes; shorten it",
                          field->name, field->max);
        return false;
    }
    memcpy((char *)out + field->offset, &text, sizeof text);
    return true;
}

static bool read_strings(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_config_field one = *field;
    one.type = ONCE_CONFIG_STRING;
    if (node->kind == ONCE_NODE_MAP || (node->kind == ONCE_NODE_SCALAR && node->none))
        return wrong_kind(config, field, node);
    size_t n = node->kind == ONCE_NODE_LIST ? node->count : 1, i = 0;
    if (n == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is an empty list; write '%s: %s', or remove it",
                          field->name, field->name, example_of(field));
        return false;
    }
    once_bytes *list = once_arena_new(config->arena, once_bytes, n);
    if (!list) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    one.offset = 0;
    for (const once_node *item = node->kind == ONCE_NODE_LIST ? node->first : node; i < n; item = item->next, i++)
        ok = read_string(config, &one, item, &list[i]) && ok;
    memcpy((char *)out + field->offset, &list, sizeof list);
    memcpy((char *)out + field->count, &n, sizeof n);
    return ok;
}

/* --- durations and sizes ------------------------------------------------------------------------------------------ */

static bool duration(once_config *config, const once_config_field *field, int line, once_bytes text, int64_t *ret_ms)
{
    once_error why = {0};
    char low[ONCE_DURATION_TEXT], high[ONCE_DURATION_TEXT];
    once_config_shown shown = once_config_show(text);
    if (text.len > 0 && leading_digits(text) == text.len) {
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'%s' is '%s' without a unit; write %ss for seconds (ms, s, m, h, d)", field->name,
                          shown.text, shown.text);
        return false;
    }
    if (once_duration_parse(text, ret_ms, &why) != ONCE_OK) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s': %s%s%s", field->name, why.text,
                          strchr(why.text, ';') ? "" : "; write ", strchr(why.text, ';') ? "" : example_of(field));
        return false;
    }
    if (*ret_ms == ONCE_FOREVER && field->max != ONCE_FOREVER) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s' cannot be forever; the longest is %s", field->name,
                          once_duration_format(field->max, high));
        return false;
    }
    if (*ret_ms == 0 && field->min > 0) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s' cannot be 0; write a duration such as %s", field->name,
                          example_of(field));
        return false;
    }
    int64_t max = field->max == ONCE_FOREVER ? ONCE_CONFIG_LONGEST_MS : field->max;
    if (*ret_ms != ONCE_FOREVER && (*ret_ms < field->min || *ret_ms > max)) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s' is %s; write a duration from %s to %s%s", field->name,
                          shown.text, once_duration_format(field->min, low), once_duration_format(max, high),
                          field->max == ONCE_FOREVER ? ", or forever" : "");
        return false;
    }
    return true;
}

static bool read_duration(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    int64_t ms;
    if (!once_config_scalar(config, field, node, &text) || !duration(config, field, node->line, text, &ms))
        return false;
    memcpy((char *)out + field->offset, &ms, sizeof ms);
    return true;
}

static bool read_range(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    int64_t ends[2];
    if (!once_config_scalar(config, field, node, &text)) return false;
    const char *dots = memmem(text.data, text.len, "..", 2);
    if (!dots) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be a range of durations, not '%s'; write the shortest and the longest, as in %s",
                          field->name, once_config_show(text).text, example_of(field));
        return false;
    }
    once_bytes low = {text.data, (size_t)(dots - text.data)}, high = {dots + 2, text.len - low.len - 2};
    if (!duration(config, field, node->line, low, &ends[0]) || !duration(config, field, node->line, high, &ends[1]))
        return false;
    if (ends[0] > ends[1]) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' runs backwards; write '%s: %s..%s'", field->name,
                          field->name, once_config_show(high).text, once_config_show(low).text);
        return false;
    }
    memcpy((char *)out + field->offset, ends, sizeof ends);
    return true;
}

typedef struct size_unit {
    const char *name;
    int64_t bytes;
} size_unit;

static const size_unit size_units[] = {
    {"GiB", INT64_C(1) << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1000000000},
    {"MB", 1000000},           {"KB", 1000},     {"B", 1},
};
#define SIZE_UNITS (sizeof size_units / sizeof size_units[0])

static void format_size(int64_t bytes, char out[ONCE_DURATION_TEXT])
{
    size_t i = 0;
    while (i + 1 < SIZE_UNITS && (bytes == 0 || bytes % size_units[i].bytes != 0)) i++;
    (void)snprintf(out, ONCE_DURATION_TEXT, "%" PRId64 "%s", bytes / size_units[i].bytes, size_units[i].name);
}

static bool read_size(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    size_t digits = leading_digits(text), i = 0;
    once_bytes unit = {text.data + digits, text.len - digits};
    once_config_shown shown = once_config_show(text);
    if (digits > 0 && unit.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' is '%s' without a unit; write %sB for bytes (B, KiB, MiB, GiB)", field->name,
                          shown.text, shown.text);
        return false;
    }
    while (i < SIZE_UNITS && !is_text(unit, size_units[i].name)) i++;
    if (digits == 0 || i == SIZE_UNITS) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be a size, not '%s'; write a whole number and a unit (B, KiB, MiB, GiB), as in %s",
                          field->name, shown.text, example_of(field));
        return false;
    }
    int64_t bytes = 0;
    bool fits = to_int64((once_bytes){text.data, digits}, &bytes) &&
                !__builtin_mul_overflow(bytes, size_units[i].bytes, &bytes);
    if (!fits || bytes < field->min || bytes > field->max) {
        char low[ONCE_DURATION_TEXT], high[ONCE_DURATION_TEXT];
        format_size(field->min, low);
        format_size(field->max, high);
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is %s; write a size from %s to %s", field->name,
                          shown.text, low, high);
        return false;
    }
    put_integer(field, out, bytes);
    return true;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static bool read_word(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    char all[200] = "";
    size_t len = 0;
    for (int i = 0; field->words[i].name; i++) {
        const once_config_word *word = &field->words[i];
        if (is_text(text, word->name)) {
            if (word->instead) {
                once_config_wrong(config, ONCE_E_UNSUPPORTED, node->line, "'%s: %s' is not in this build; %s",
                                  field->name, word->name, word->instead);
                return false;
            }
            memcpy((char *)out + field->offset, &i, sizeof i);
            return true;
        }
        if (!word->instead && len < sizeof all)
            len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", len > 0 ? ", " : "", word->name);
    }
    const char *near = once_config_nearest(text, word_name, (void *)(uintptr_t)field->words);
    if (near)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' cannot be '%s'; did you mean '%s'?", field->name,
                          once_config_show(text).text, near);
    else
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' cannot be '%s'; it is one of: %s", field->name,
                          once_config_show(text).text, all);
    return false;
}

static bool read_pointer(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    once_error why = {0};
    if (!once_config_scalar(config, field, node, &text)) return false;
    if (text.len == 0 || text.data[0] != '/') {
        once_config_shown shown = once_config_show(text);
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s': '%s' is not a JSON pointer; write /%s", field->name,
                          shown.text, text.len == 0 ? "name" : shown.text);
        return false;
    }
    once_pointer pointer;
    int rc = once_pointer_parse(config->arena, text, &pointer, &why);
    if (rc == ONCE_E_NOMEM) config->nomem = true;
    if (rc != ONCE_OK) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s': %s", field->name, why.text);
        return false;
    }
    memcpy((char *)out + field->offset, &pointer, sizeof pointer);
    return true;
}

static bool refuse_later(once_config *config, const once_config_field *field, const once_node *node)
{
    once_config_wrong(config, ONCE_E_UNSUPPORTED, node->name_line, "'%s' %s%s not in this build; %s", field->name,
                      field->plural ? field->plural : "", field->plural ? " are" : "is", field->instead);
    return false;
}

bool once_config_read_field(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    assert(field->type != ONCE_CONFIG_SECTION || field->section);
    assert(field->type != ONCE_CONFIG_CUSTOM || field->read);
    assert(field->type != ONCE_CONFIG_WORD || field->words);
    switch (field->type) {
    case ONCE_CONFIG_STRING: return read_string(config, field, node, out);
    case ONCE_CONFIG_BOOL: return read_bool(config, field, node, out);
    case ONCE_CONFIG_INTEGER: return read_integer(config, field, node, out);
    case ONCE_CONFIG_DURATION: return read_duration(config, field, node, out);
    case ONCE_CONFIG_RANGE: return read_range(config, field, node, out);
    case ONCE_CONFIG_SIZE: return read_size(config, field, node, out);
    case ONCE_CONFIG_WORD: return read_word(config, field, node, out);
    case ONCE_CONFIG_POINTER: return read_pointer(config, field, node, out);
    case ONCE_CONFIG_STRINGS: return read_strings(config, field, node, out);
    case ONCE_CONFIG_SECTION:
        if (node->kind != ONCE_NODE_MAP) return wrong_kind(config, field, node);
        return once_config_read(config, field->section, node, (char *)out + field->offset);
    case ONCE_CONFIG_CUSTOM: return field->read(config, field, node, out);
    case ONCE_CONFIG_LATER: return refuse_later(config, field, node);
    }
    return false;
}

/* --- sections -------------------------------------------------------------------------------------------------------
 * */

static const once_config_field *find_field(const once_config_section *section, once_bytes name, void *out, void **place)
{
    const once_config_field *field = NULL;
    for (size_t i = 0;
         section && (field = once_config_field_at(section, i, out, place)) && !is_text(name, field->name);)
        i++;
    return field;
}

/* The inner sections that have a field of that name: "'retry' or 'lookup'". */
static void inner_homes(const once_config_section *section, once_bytes name, char *out, size_t size)
{
    size_t len = 0;
    const once_config_field *field;
    out[0] = '\0';
    for (size_t i = 0; len < size && (field = once_config_field_at(section, i, NULL, NULL)); i++)
        if (field->type == ONCE_CONFIG_SECTION && find_field(field->section, name, NULL, NULL))
            len += (size_t)snprintf(out + len, size - len, "%s'%s'", len > 0 ? " or " : "", field->name);
}

static void list_fields(const once_config_section *section, char *out, size_t size)
{
    size_t len = 0;
    const once_config_field *field;
    out[0] = '\0';
    for (size_t i = 0; len < size && (field = once_config_field_at(section, i, NULL, NULL)); i++) {
        if (field->type == ONCE_CONFIG_LATER) continue;
        len += (size_t)snprintf(out + len, size - len, "%s%s", len > 0 ? ", " : "", field->name);
    }
}

static void unknown_field(once_config *config, const once_config_section *section, const once_node *node)
{
    once_config_shown shown = once_config_show(node->name);
    char homes[100];
    inner_homes(section, node->name, homes, sizeof homes);
    const char *near = once_config_nearest(node->name, field_name, (void *)(uintptr_t)section);
    char known[360];
    if (homes[0])
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "unknown field '%s'; it belongs inside %s",
                          shown.text, homes);
    else if (find_field(section->outer, node->name, NULL, NULL))
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "unknown field '%s' in %s; it belongs in %s",
                          shown.text, section->name, section->outer->name);
    else if (near)
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "unknown field '%s'; did you mean '%s'?", shown.text,
                          near);
    else {
        list_fields(section, known, sizeof known);
        once_config_wrong(config, ONCE_E_CONFIG, node->name_line, "unknown field '%s' in %s; it has: %s", shown.text,
                          section->name, known);
    }
}

/* A default is read as if it were in the file. A wrong one is a mistake of the table, which the first test finds. */
static bool read_standard(once_config *config, const once_config_field *field, void *out)
{
    once_node node = {.kind = ONCE_NODE_SCALAR, .text = {field->standard, strlen(field->standard)}};
    bool ok = once_config_read_field(config, field, &node, out);
    assert(ok || config->nomem);
    return ok;
}

/* A field that is not in the file: its default, or the defaults of its section. */
static bool read_absent(once_config *config, const once_config_field *field, void *out)
{
    bool ok = true;
    if (config->inherit) return true;
    if (field->standard) return read_standard(config, field, out);
    if (field->type != ONCE_CONFIG_SECTION || field->required) return true;
    const once_config_field *inner;
    void *place;
    for (size_t i = 0; (inner = once_config_field_at(field->section, i, (char *)out + field->offset, &place)); i++)
        ok = read_absent(config, inner, place) && ok;
    return ok;
}

bool once_config_read(once_config *config, const once_config_section *section, const once_node *map, void *out)
{
    assert(map->kind == ONCE_NODE_MAP);
    const once_config_field *field;
    void *place;
    bool ok = true;
    for (const once_node *node = map->first; node; node = node->next) {
        field = find_field(section, node->name, out, &place);
        if (!field) unknown_field(config, section, node);
        if (field && !place) continue; /* a field of a driver that is not chosen: the driver's rules refuse it */
        ok = field && once_config_read_field(config, field, node, place) && ok;
    }
    for (size_t i = 0; (field = once_config_field_at(section, i, out, &place)); i++) {
        if (!place || once_node_member(map, field->name)) continue;
        if (field->required) {
            once_config_wrong(config, ONCE_E_CONFIG, map->line, "missing field '%s' in %s; add '%s: %s'", field->name,
                              section->name, field->name, example_of(field));
            ok = false;
        } else if (!read_absent(config, field, place)) {
            ok = false;
        }
    }
    return ok;
}

/* --- ranges in words, for config_text.c --------------------------------------------------------------------------- */

void once__config_shape(const once_config_field *field, once_buf *out)
{
    char low[ONCE_DURATION_TEXT], high[ONCE_DURATION_TEXT];
    switch (field->type) {
    case ONCE_CONFIG_INTEGER: once_buf_printf(out, "%" PRId64 " to %" PRId64, field->min, field->max); return;
    case ONCE_CONFIG_DURATION:
    case ONCE_CONFIG_RANGE:
        once_buf_puts(out, field->type == ONCE_CONFIG_RANGE ? "two durations, " : "duration, ");
        once_buf_printf(out, "%s to %s", once_duration_format(field->min, low),
                        once_duration_format(field->max == ONCE_FOREVER ? ONCE_CONFIG_LONGEST_MS : field->max, high));
        if (field->max == ONCE_FOREVER) once_buf_puts(out, ", or `forever`");
        return;
    case ONCE_CONFIG_SIZE:
        format_size(field->min, low);
        format_size(field->max, high);
        once_buf_printf(out, "size, %s to %s", low, high);
        return;
    case ONCE_CONFIG_WORD:
        for (const once_config_word *word = field->words; word->name; word++)
            if (!word->instead) once_buf_printf(out, "%s`%s`", word == field->words ? "" : " or ", word->name);
        return;
    case ONCE_CONFIG_BOOL: once_buf_puts(out, "`true` or `false`"); return;
    case ONCE_CONFIG_STRINGS: once_buf_puts(out, "list of texts, or one"); return;
    case ONCE_CONFIG_POINTER: once_buf_puts(out, "JSON pointer"); return;
    case ONCE_CONFIG_SECTION: once_buf_puts(out, "map"); return;
    default: once_buf_puts(out, wanted(field)); return;
    }
}
