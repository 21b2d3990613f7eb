/* Maps and templates in the section `http` of a pipeline file (http_config.h). */
#include <string.h>

#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

bool once__http_no_memory(once_config *config)
{
    config->nomem = true;
    return false;
}

bool once__http_starts_with(once_bytes text, const char *prefix)
{
    const size_t len = strlen(prefix);
    return text.len >= len && memcmp(text.data, prefix, len) == 0;
}

bool once__http_has_control(once_bytes text)
{
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f) return true;
    return false;
}

bool once__http_check_places(once_config *config, const char *field, int line, const once_http_text *text)
{
    const once_placeholder *place;
    bool ok = true;
    for (size_t at = 0; (place = once_http_text_next(text, &at));)
        ok = once__config_placeholder(config, field, line, '$', place) && ok;
    return ok;
}

bool once__http_template_wrong(once_config *config, const char *field, int line, int rc, const once_error *why)
{
    if (rc == ONCE_E_NOMEM) return once__http_no_memory(config);
    once_config_wrong(config, ONCE_E_CONFIG, line, "'%s': %s", field, why->text);
    return false;
}

bool once__http_read_text(once_config *config, const char *field, const once_node *node, once_http_encoding encoding,
                          once_http_text *out)
{
    once_error why = {0};
    const int rc = once_http_text_parse(config->arena, node->text, encoding, out, &why);
    if (rc != ONCE_OK) return once__http_template_wrong(config, field, node->line, rc, &why);
    return once__http_check_places(config, field, node->line, out);
}

bool once__http_read_map(once_config *config, const once_config_field *field, const once_node *node, size_t max)
{
    if (node->kind == ONCE_NODE_MAP && node->count > 0 && node->count <= max) return true;
    if (node->kind == ONCE_NODE_MAP && node->count > max)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' has %zu members, and %zu are the most", field->name,
                          node->count, max);
    else
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be a map, not %s; write '%s: %s'", field->name,
                          node->kind == ONCE_NODE_MAP ? "an empty one" : once_node_kind_text(node), field->name,
                          field->example);
    return false;
}

bool once__http_is_member_text(once_config *config, const once_config_field *field, const once_node *item)
{
    if (item->kind == ONCE_NODE_SCALAR && !item->none) return true;
    once_config_wrong(config, ONCE_E_CONFIG, item->line, "'%s': '%s' must be a text, not %s", field->name,
                      once_config_show(item->name).text, once_node_kind_text(item));
    return false;
}
