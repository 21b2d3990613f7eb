/* The headers of a request. Those that frame it, or that once sends itself, are not for the file. A value may be a
 * secret. */
#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

static bool is_token(once_bytes name)
{
    for (size_t i = 0; i < name.len; i++) {
        const char c = name.data[i];
        if (!once_ascii_is_letter(c) && !(c >= '0' && c <= '9') && !(c && strchr("!#$%&'*+-.^_`|~", c))) return false;
    }
    return name.len > 0 && name.len <= ONCE_NAME_MAX;
}

/* Those that frame the message, decide where it goes, or are sent by once itself. */
static bool is_ours(once_bytes name)
{
    static const char *const ours[] = {
        "host",    "content-length", "transfer-encoding", "connection", "expect",         "te",
        "trailer", "upgrade",        "once-attempt",      "keep-alive", "idempotency-key"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (once_ascii_is(name.data, name.len, ours[i])) return true;
    return once_ascii_begins(name.data, name.len, "proxy-");
}

/* Those whose value is a credential, whatever the service is. */
static bool is_credential(once_bytes name)
{
    static const char *const credentials[] = {"authorization", "cookie", "x-api-key", "x-auth-token"};
    for (size_t i = 0; i < sizeof credentials / sizeof *credentials; i++)
        if (once_ascii_is(name.data, name.len, credentials[i])) return true;
    return false;
}

bool once__http_same_header(once_bytes x, once_bytes y)
{
    if (x.len != y.len) return false;
    for (size_t i = 0; i < x.len; i++)
        if (once_ascii_lower(x.data[i]) != once_ascii_lower(y.data[i])) return false;
    return true;
}

static bool check_header(once_config *config, const once_config_field *field, const once_node *node,
                         const once_node *item)
{
    const once_config_shown name = once_config_show(item->name);
    const char *wrong = NULL;
    if (!is_token(item->name)) wrong = "is no name of a header; use letters, digits and '-'";
    else if (once_ascii_is(item->name.data, item->name.len, "proxy-authorization"))
        wrong =
            "is set by once itself; remove it, and write the proxy with its login as a reference: 'proxy: env:NAME'";
    else if (is_ours(item->name)) wrong = "is set by once itself; remove it";
    for (const once_node *before = node->first; before != item && !wrong; before = before->next)
        if (once__http_same_header(before->name, item->name)) wrong = "is there twice; keep one";
    if (wrong) {
        once_config_wrong(config, ONCE_E_CONFIG, item->name_line, "'%s': '%s' %s", field->name, name.text, wrong);
        return false;
    }
    if (!once__http_is_member_text(config, field, item)) return false;
    if (!once__http_has_control(item->text)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, item->line, "'%s': '%s' has a control character; a header is one line",
                      field->name, name.text);
    return false;
}

/* What stands in the file is in backups and in version control, and is not taken out of what is shown. A value from the
 * message is none of the file's secrets. */
static bool check_credential(once_config *config, const once_config_field *field, const once_node *item,
                             const once_http_text *value)
{
    const once_config_shown name = once_config_show(item->name);
    if (!is_credential(item->name) || !once_http_text_is_literal(value) || once_http_blank(item->text)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, item->line,
                      "'%s': '%s' must be a reference, not the secret itself; write '%s: env:NAME' or '%s: file:PATH', "
                      "with the whole value there%s",
                      field->name, name.text, name.text, name.text,
                      once_ascii_is(item->name.data, item->name.len, "authorization")
                          ? ", or 'bearer: env:NAME' beside 'headers'"
                          : "");
    return false;
}

static bool read_header(once_config *config, const once_config_field *field, const once_node *item,
                        once_http_header *header)
{
    char what[100];
    header->name = item->name;
    if (!once_is_reference(item->text))
        return once__http_read_text(config, field->name, item, ONCE_HTTP_HEADER, &header->value) &&
               check_credential(config, field, item, &header->value);
    header->secret = (once_written){.name = item->name, .value = item->text, .line = item->line};
    (void)snprintf(what, sizeof what, "'%s': '%s'", field->name, once_config_show(item->name).text);
    return once__config_reference(config, what, item);
}

bool once__http_config_headers(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_headers *headers = &((once_http_request *)out)->headers;
    if (!once__http_read_map(config, field, node, ONCE_HTTP_HEADERS_MAX)) return false;
    once_http_header *list = once_arena_new(config->arena, once_http_header, node->count);
    if (!list) return once__http_no_memory(config);
    bool ok = true;
    size_t n = 0;
    for (const once_node *item = node->first; item; item = item->next) {
        ok = check_header(config, field, node, item) && read_header(config, field, item, &list[n++]) && ok;
        headers->typed = headers->typed || once_ascii_is(item->name.data, item->name.len, "content-type");
    }
    *headers = (once_http_headers){list, n, headers->typed};
    return ok;
}

bool once__http_config_key_header(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_spec *http = out;
    if (!once_config_scalar(config, field, node, &http->key_header)) return false;
    const bool usual = once_ascii_is(http->key_header.data, http->key_header.len, "idempotency-key");
    if (is_token(http->key_header) && (usual || !is_ours(http->key_header))) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'key_header': '%s' cannot carry the idempotency key; write '%s'",
                      once_config_show(http->key_header).text, field->example);
    return false;
}
