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

/* Reports a ${source:NAME} that the source does not have, and what it has. A source that is not known is reported by
 * the reader of `source`. */
static void report_source_name(once_config *config, const once_config_field *field, int line, once_bytes wanted)
{
    const char *const *names = config->source_names;
    const int len = wanted.len < 60 ? (int)wanted.len : 60;
    once_buf list;
    once_buf_init(&list, 1000);
    for (size_t i = 0; names && names[i]; i++) once_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    if (!names)
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'%s': this source has no ${source:%.*s}; use ${/field}, ${header:NAME} or ${coordinates}",
                          field->name, len, wanted.data);
    else if (!*names)
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'%s': this source has no ${source:%.*s}, nor any other ${source:...}; use ${/field}, "
                          "${header:NAME} or ${coordinates}",
                          field->name, len, wanted.data);
    else
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s': the source has no '%.*s' for ${source:...}; it has %s",
                          field->name, len, wanted.data, list.data ? list.data : "others");
    once_buf_release(&list);
}

/* Whether the source has all the names that the template uses. */
static bool check_source_names(once_config *config, const once_config_field *field, const once_node *node,
                               const once_template *template)
{
    once_bytes name;
    for (size_t at = 0; once_template_source_name(template, &at, &name);) {
        const char *const *known = config->source_names;
        while (known && *known && !once__is_text(name, *known)) known++;
        config->names_source = true;
        if (known && *known) continue;
        report_source_name(config, field, node->line, name);
        return false;
    }
    return true;
}

bool once__config_field_allowed(once_config *config, const char *what, int line, once_bytes field)
{
    if (!config->no_fields) return true;
    once_config_wrong(config, ONCE_E_CONFIG, line,
                      "%s names the field '%.*s', and with 'body: bytes' a body has no fields; use ${header:NAME}, "
                      "${source:NAME}, ${coordinates} or ${hash}, or say 'body: json'",
                      what, field.len < 60 ? (int)field.len : 60, field.data);
    return false;
}

static bool check_event(once_config *config, const once_config_field *field, const once_node *node,
                        const once_template *template)
{
    if (config->events || !once_template_uses_event(template)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'%s': ${event:...} is for CloudEvents; add 'preset: cloudevents', or use ${/field}",
                      field->name);
    return false;
}

static bool check_fields(once_config *config, const once_config_field *field, const once_node *node,
                         const once_template *template)
{
    once_bytes name;
    char what[40];
    if (!once_template_field(template, &name)) return true;
    (void)snprintf(what, sizeof what, "'%s'", field->name);
    return once__config_field_allowed(config, what, node->line, name);
}

const once_template *once__config_template(once_config *config, const once_config_field *field, const once_node *node)
{
    once_bytes text;
    once_error why = {0};
    const once_template *template;
    if (!once_config_scalar(config, field, node, &text)) return NULL;
    int rc = once_template_parse(config->arena, text, &template, &why);
    if (rc == ONCE_OK) {
        bool ok = check_source_names(config, field, node, template);
        ok = check_event(config, field, node, template) && ok;
        return check_fields(config, field, node, template) && ok ? template : NULL;
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
