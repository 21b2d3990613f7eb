/* Readers of fields that hold a template or a whole node, for the tables of the pipeline file. */
#include "runtime/config_tables.h"

#include "base/banned.h"

bool once__read_template(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_template *template = once__config_template(config, field, node);
    if (template) once__config_put(field, out, &template, sizeof template);
    return template != NULL;
}

bool once__read_varying(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_template *template = once__config_template(config, field, node);
    if (!template) return false;
    if (once_template_is_literal(template)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is the same for every message: '%s'; write '%s: %s'",
                          field->name, once_config_show(node->text).text, field->name, field->example);
        return false;
    }
    once__config_put(field, out, &template, sizeof template);
    return true;
}

bool once__read_single(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_template *template = once__config_template(config, field, node);
    if (!template) return false;
    if (!once_template_single(template) || once_template_uses(template, ONCE_PLACE_COORDINATES)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be one placeholder and nothing else; write '%s: %s'", field->name, field->name,
                          field->example);
        return false;
    }
    once__config_put(field, out, &template, sizeof template);
    return true;
}

bool once__read_node(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    (void)config;
    once__config_put(field, out, &node, sizeof node);
    return true;
}
