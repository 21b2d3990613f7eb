/* Credentials and the proxy of a handler `http`. A secret is a reference or comes from a command; it never stands in
 * the file. */
#include <stdio.h>
#include <string.h>

#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

/* A secret is a reference: what stands in the file is in backups and in version control. */
bool once__http_config_secret(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes text;
    char what[40];
    if (!once_config_scalar(config, field, node, &text)) return false;
    (void)snprintf(what, sizeof what, "'%s'", field->name);
    if (!once_is_reference(text)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be a reference, not the secret itself; write '%s: env:NAME' or '%s: file:PATH'",
                          field->name, field->name, field->name);
        return false;
    }
    const once_written written = {.name = once_bytes_of(field->name), .value = text, .line = node->line};
    once__config_put(field, out, &written, sizeof written);
    return once__config_reference(config, what, node);
}

/* A command and its arguments, the same for every message. */
static bool read_token_command(once_config *config, const once_node *list, once_http_spec *http)
{
    once_bytes *argv = once_arena_new(config->arena, once_bytes, list->count);
    if (!argv) return once__http_no_memory(config);
    bool ok = list->kind == ONCE_NODE_LIST && list->count > 0;
    size_t n = 0;
    for (const once_node *item = list->first; item && ok; item = item->next) {
        ok = item->kind == ONCE_NODE_SCALAR && !item->none && item->text.len > 0 &&
             !memmem(item->text.data, item->text.len, "${", 2);
        argv[n++] = item->text;
    }
    http->token_command = argv;
    http->n_token_command = n;
    http->bearer.line = list->line;
    if (ok) return true;
    once_config_wrong(config, ONCE_E_CONFIG, list->line,
                      "'bearer': 'exec' must be a list of a command and its arguments, without placeholders; write "
                      "'bearer: {exec: [./token]}'");
    return false;
}

bool once__http_config_bearer(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_node *command = node->kind == ONCE_NODE_MAP && node->count == 1 ? once_node_member(node, "exec") : NULL;
    if (command) return read_token_command(config, command, out);
    if (node->kind == ONCE_NODE_SCALAR) return once__http_config_secret(config, field, node, out);
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'bearer' must be a reference or a command; write 'bearer: env:NAME' or 'bearer: {exec: "
                      "[./token]}'");
    return false;
}

bool once__http_config_proxy(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_spec *http = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    http->proxy = (once_written){.name = ONCE_BYTES("proxy"), .value = text, .line = node->line};
    if (once_is_reference(text)) return once__config_reference(config, "'proxy'", node);
    if ((once__http_starts_with(text, "http://") || once__http_starts_with(text, "https://")) &&
        !memchr(text.data, '@', text.len) && !once__http_has_control(text))
        return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'proxy' must be a URL that begins with http:// or https://, and one with a password must be a "
                      "reference; write 'proxy: %s'",
                      field->example);
    return false;
}
