/* Reads `fingerprint` and `locks`. */
#include "runtime/config_internal.h"

#include "base/banned.h"

static const once_config_field fingerprint_item = {
    .name = "fingerprint",
    .type = ONCE_CONFIG_CUSTOM,
    .shape = "a JSON pointer",
    .example = "[/amount, /order_id]",
};

static bool read_path(once_config *config, const once_node *item, once_path *out)
{
    once_bytes text;
    once_error why = {0};
    if (!once_config_scalar(config, &fingerprint_item, item, &text)) return false;
    if (text.len == 0 || (text.data[0] != '/' && !memmem(text.data, text.len, ":/", 2))) {
        const once_config_shown shown = once_config_show(text);
        once_config_wrong(config, ONCE_E_CONFIG, item->line, "'fingerprint': '%s' is not a JSON pointer; write /%s",
                          shown.text, text.len == 0 ? "name" : shown.text);
        return false;
    }
    const int rc = once_path_parse(config->arena, text, out, &why);
    if (rc == ONCE_E_NOMEM) config->nomem = true;
    if (rc != ONCE_OK) once_config_wrong(config, ONCE_E_CONFIG, item->line, "'fingerprint': %s", why.text);
    return rc == ONCE_OK;
}

static bool read_fingerprint_fields(once_config *config, const once_node *list, once_fingerprint_spec *spec)
{
    once_path *fields = once_arena_new(config->arena, once_path, list->count);
    if (!fields) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = list->first; item; item = item->next) {
        if (!read_path(config, item, &fields[n])) {
            ok = false;
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            if (!once_bytes_equal(fields[i].text, item->text)) continue;
            once_config_wrong(config, ONCE_E_CONFIG, item->line, "'fingerprint' names '%s' twice; remove one",
                              once_config_show(item->text).text);
            ok = false;
            break;
        }
        n++;
    }
    *spec = (once_fingerprint_spec){.kind = ONCE_FINGERPRINT_FIELDS, .fields = fields, .n = n};
    return ok;
}

bool once__read_fingerprint(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_fingerprint_spec spec = {.kind = config->no_fields ? ONCE_FINGERPRINT_BYTES : ONCE_FINGERPRINT_BODY};
    bool ok = false;
    if (node->kind == ONCE_NODE_LIST && config->no_fields) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'fingerprint' names fields, and with 'body: bytes' a body has none; write body or none");
    } else if (node->kind == ONCE_NODE_LIST && node->count > 0 && node->count <= 100) {
        ok = read_fingerprint_fields(config, node, &spec);
    } else if (node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "body")) {
        ok = true;
    } else if (node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "none")) {
        spec.kind = ONCE_FINGERPRINT_NONE;
        ok = true;
    } else if (node->kind == ONCE_NODE_LIST) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'fingerprint' has %s; write body, none, or a list of up to 100 pointers",
                          node->count == 0 ? "an empty list" : "too many fields");
    } else if (node->kind == ONCE_NODE_SCALAR && !node->none && node->text.len > 0) {
        once_config_shown shown = once_config_show(node->text);
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'fingerprint' cannot be '%s'; write body, none, or a list as in [%s%s]", shown.text,
                          shown.text[0] == '/' ? "" : "/", shown.text);
    } else {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'fingerprint' must be body, none or a list of pointers, not %s; write 'fingerprint: body'",
                          once_node_kind_text(node));
    }
    if (ok) once__config_put(field, out, &spec, sizeof spec);
    return ok;
}

bool once__read_locks(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    if (node->kind != ONCE_NODE_LIST || node->count == 0 || node->count > ONCE_LOCKS_MAX) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'locks' must be a list of 1 to %d templates; write 'locks: %s'", ONCE_LOCKS_MAX,
                          field->example);
        return false;
    }
    const once_template **names = once_arena_alloc(config->arena, node->count * sizeof *names);
    once_locks_spec spec = {.names = names, .n = node->count};
    bool ok = names != NULL;
    size_t n = 0;
    config->nomem |= !names;
    for (const once_node *item = node->first; item && names; item = item->next)
        ok &= (names[n++] = once__config_template(config, field, item)) != NULL;
    if (ok) once__config_put(field, out, &spec, sizeof spec);
    return ok;
}
