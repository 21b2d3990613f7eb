/* What answers mean where the file says so: lists of statuses, and conditions on the body. */
#include <string.h>

#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

#define MAX_CONDITIONS 16

static const struct {
    const char *name;
    int meaning;
} meanings[] = {
    {"done", ONCE_DONE},   {"already", ONCE_ALREADY},  {"rejected", ONCE_REJECTED},
    {"stale", ONCE_STALE}, {"retry", ONCE_RETRY},      {"unknown", ONCE_UNKNOWN},
    {"dead", ONCE_DEAD},   {"pause", ONCE_HTTP_PAUSE}, {"absent", ONCE_HTTP_ABSENT},
};

static int meaning_of(const char *name)
{
    size_t i = 0;
    while (strcmp(meanings[i].name, name) != 0) i++;
    return meanings[i].meaning;
}

/* Where the meaning of "404" or of "4xx" is kept; NULL: it is neither. */
static uint8_t *place_of(once_http_statuses *statuses, once_bytes text)
{
    if (text.len != 3 || text.data[0] < '2' || text.data[0] > '5') return NULL;
    const int hundreds = text.data[0] - '0', tens = text.data[1] - '0', ones = text.data[2] - '0';
    if (text.data[1] == 'x' && text.data[2] == 'x') return &statuses->classes[hundreds];
    if (tens < 0 || tens > 9 || ones < 0 || ones > 9) return NULL;
    return &statuses->exact[100 * hundreds + 10 * tens + ones];
}

static bool read_status(once_config *config, const once_config_field *field, const once_node *item,
                        once_http_statuses *statuses)
{
    once_bytes text;
    const int meaning = meaning_of(field->name);
    if (!once_config_scalar(config, field, item, &text)) return false;
    uint8_t *place = place_of(statuses, text);
    if (!place) {
        once_config_wrong(config, ONCE_E_CONFIG, item->line,
                          "'%s': '%s' is no status; write a number from 200 to 599, or a class such as 5xx",
                          field->name, once_config_show(text).text);
        return false;
    }
    if (*place && *place != meaning + 1) {
        once_config_wrong(config, ONCE_E_CONFIG, item->line, "'%s': %s is in another list, too; keep it in one",
                          field->name, once_config_show(text).text);
        return false;
    }
    *place = (uint8_t)(meaning + 1);
    return true;
}

bool once__http_config_statuses(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_statuses *statuses = &((once_http_request *)out)->statuses;
    if (node->kind == ONCE_NODE_SCALAR && !node->none) return read_status(config, field, node, statuses);
    if (node->kind != ONCE_NODE_LIST) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be a list of statuses, not %s; write '%s: %s'",
                          field->name, once_node_kind_text(node), field->name, field->example);
        return false;
    }
    bool ok = true;
    for (const once_node *item = node->first; item; item = item->next)
        ok = read_status(config, field, item, statuses) && ok;
    return ok;
}

static bool read_condition(once_config *config, const once_config_field *field, const once_node *item,
                           once_http_condition *condition)
{
    once_error why = {0};
    const once_node *first = item->kind == ONCE_NODE_LIST ? item->first : item;
    const size_t count = item->kind == ONCE_NODE_LIST ? item->count : 1;
    const int rc = once_pointer_parse(config->arena, item->name, &condition->at, &why);
    if (rc != ONCE_OK) return once__http_template_wrong(config, field->name, item->name_line, rc, &why);
    once_bytes *values = once_arena_new(config->arena, once_bytes, count);
    if (!values) return once__http_no_memory(config);
    bool ok = count > 0;
    for (const once_node *value = first; value && condition->n < count; value = value->next) {
        ok = value->kind == ONCE_NODE_SCALAR && ok;
        values[condition->n++] = value->none ? ONCE_BYTES("null") : value->text;
    }
    condition->values = values;
    if (ok) return true;
    once_config_wrong(config, ONCE_E_CONFIG, item->line, "'%s': '%s' must be a list of values; write '%s: %s'",
                      field->name, once_config_show(item->name).text, field->name, field->example);
    return false;
}

bool once__http_config_conditions(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    if (!once__http_read_map(config, field, node, MAX_CONDITIONS)) return false;
    once_http_condition *list = once_arena_new(config->arena, once_http_condition, node->count);
    if (!list) return once__http_no_memory(config);
    const once_http_conditions conditions = {list, node->count};
    bool ok = true;
    for (const once_node *item = node->first; item; item = item->next)
        ok = read_condition(config, field, item, list++) && ok;
    once__config_put(field, out, &conditions, sizeof conditions);
    return ok;
}
