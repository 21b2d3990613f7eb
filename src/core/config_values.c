/* Readers for names, templates and references of a pipeline file (core/config_values.h). */
#include "core/config_values.h"

#include <assert.h>
#include <stdio.h>

#include "base/buf.h"

#include "base/banned.h"

void once__config_put(const once_config_field *field, void *out, const void *value, size_t size)
{
    assert(field->size == size);
    memcpy((char *)out + field->offset, value, size);
}

bool once__config_name(once_config *config, const char *what, int line, once_bytes text)
{
    if (text.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "%s is empty; write a name", what);
        return false;
    }
    if (text.len > ONCE_NAME_MAX) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "%s is longer than %d bytes; shorten it", what, ONCE_NAME_MAX);
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        if (byte >= 0x20 && byte != 0x7f) continue;
        once_config_wrong(config, ONCE_E_CONFIG, line, "%s has a control character in it; use printable characters",
                          what);
        return false;
    }
    return true;
}

bool once__config_read_name(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    char what[40];
    if (!once_config_scalar(config, field, node, &text)) return false;
    (void)snprintf(what, sizeof what, "'%s'", field->name);
    if (!once__config_name(config, what, node->line, text)) return false;
    once__config_put(field, out, &text, sizeof text);
    return true;
}

/* "a, b, c" */
static void put_names(once_buf *list, const char *const *names)
{
    once_buf_init(list, 1000);
    for (size_t i = 0; names && names[i]; i++) once_buf_printf(list, "%s%s", i ? ", " : "", names[i]);
}

static bool is_listed(once_bytes name, const char *const *names)
{
    while (names && *names && !once__is_text(name, *names)) names++;
    return names && *names;
}

/* What is checked: a placeholder of a field in a line of the file. */
typedef struct use {
    once_config *config;
    const char *field;
    int line;
    char mark;
    const once_placeholder *place;
} use;

/* Reports a ${source:NAME} that the source does not have, and what it has. A source that is not known is reported by
 * the reader of `source`. */
static bool check_source_name(const use *u)
{
    const char *const *names = u->config->source_names;
    const once_bytes wanted = u->place->name;
    const int len = wanted.len < 60 ? (int)wanted.len : 60;
    const char m = u->mark;
    u->config->names_source = true;
    if (is_listed(wanted, names)) return true;
    once_buf list;
    put_names(&list, names);
    if (!names || !*names)
        once_config_wrong(u->config, ONCE_E_CONFIG, u->line,
                          "'%s': this source has no %c{source:%.*s}%s; use %c{/field}, %c{header:NAME} or "
                          "%c{coordinates}",
                          u->field, m, len, wanted.data, names ? ", nor any other" : "", m, m, m);
    else
        once_config_wrong(u->config, ONCE_E_CONFIG, u->line,
                          "'%s': the source has no '%.*s' for %c{source:...}; it has %s", u->field, len, wanted.data, m,
                          list.data ? list.data : "others");
    once_buf_release(&list);
    return false;
}

static bool check_event_name(const use *u)
{
    const once_config *config = u->config;
    const once_bytes wanted = u->place->name;
    if (config->events && (!config->event_names || is_listed(wanted, config->event_names))) return true;
    once_buf list;
    put_names(&list, config->event_names);
    if (!config->events)
        once_config_wrong(u->config, ONCE_E_CONFIG, u->line,
                          "'%s': %c{event:...} is for messages that a preset describes; add 'preset: cloudevents', sns "
                          "or eventbridge, or use %c{/field}",
                          u->field, u->mark, u->mark);
    else
        once_config_wrong(u->config, ONCE_E_CONFIG, u->line,
                          "'%s': the preset has no '%.*s' for %c{event:...}; it has %s", u->field, (int)wanted.len,
                          wanted.data, u->mark, list.data ? list.data : "others");
    once_buf_release(&list);
    return false;
}

static bool check_field(const use *u)
{
    const once_bytes field = u->place->path.text;
    const char m = u->mark;
    if (!u->config->no_fields) return true;
    once_config_wrong(u->config, ONCE_E_CONFIG, u->line,
                      "'%s' names the field '%.*s', and with 'body: bytes' a body has no fields; use %c{header:NAME}, "
                      "%c{source:NAME}, %c{coordinates} or %c{hash}, or say 'body: json'",
                      u->field, field.len < 60 ? (int)field.len : 60, field.data, m, m, m, m);
    return false;
}

bool once__config_placeholder(once_config *config, const char *field, int line, char mark,
                              const once_placeholder *place)
{
    const use u = {.config = config, .field = field, .line = line, .mark = mark, .place = place};
    switch (place->kind) {
    case ONCE_PLACE_FIELD:
    case ONCE_PLACE_TIME: return check_field(&u);
    case ONCE_PLACE_SOURCE: return check_source_name(&u);
    case ONCE_PLACE_EVENT: return check_event_name(&u);
    case ONCE_PLACE_HEADER:
    case ONCE_PLACE_COORDINATES:
    case ONCE_PLACE_HASH: break;
    }
    return true;
}

const once_template *once__config_template(once_config *config, const once_config_field *field, const once_node *node)
{
    once_bytes text;
    once_error why = {0};
    const once_template *template;
    if (!once_config_scalar(config, field, node, &text)) return NULL;
    int rc = once_template_parse(config->arena, text, &template, &why);
    if (rc == ONCE_OK) {
        const once_placeholder *place;
        bool ok = true;
        for (size_t at = 0; (place = once_template_next(template, &at));)
            ok = once__config_placeholder(config, field->name, node->line, '$', place) && ok;
        return ok ? template : NULL;
    }
    if (rc == ONCE_E_NOMEM) config->nomem = true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s': %s", field->name, why.text);
    return NULL;
}

bool once__config_is_variable(once_bytes name)
{
    for (size_t i = 0; i < name.len; i++) {
        const char c = name.data[i];
        const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9')) return false;
    }
    return name.len > 0;
}

static bool starts_with(once_bytes text, const char *prefix, once_bytes *rest)
{
    const size_t len = strlen(prefix);
    if (text.len < len || memcmp(text.data, prefix, len) != 0) return false;
    *rest = (once_bytes){text.data + len, text.len - len};
    return true;
}

bool once__config_reference(once_config *config, const char *what, const once_node *node)
{
    once_bytes rest;
    if (starts_with(node->text, "env:", &rest) && !once__config_is_variable(rest)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "%s refers to a variable, but 'env:' is not followed by a name; write env:NAME", what);
        return false;
    }
    if (starts_with(node->text, "file:", &rest) && rest.len == 0) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "%s refers to a file, but 'file:' is not followed by a path; write file:PATH", what);
        return false;
    }
    return true;
}
