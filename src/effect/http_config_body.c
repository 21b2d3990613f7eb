/* What a request carries of a message: its query, and its body as a form, JSON or text. */
#include <string.h>

#include "core/config_values.h"
#include "effect/http_config.h"

#include "base/banned.h"

/* NAME=VALUE, with what stands between two of them. */
static bool write_pair(once_config *config, const once_config_field *field, const once_node *item, const char *before,
                       once_http_writer *writer)
{
    once_error why = {0};
    if (!once__http_is_member_text(config, field, item)) return false;
    once_http_write_literal(writer, once_bytes_of(before));
    once_http_text name = {0};
    int rc = once_http_text_parse(config->arena, item->name, ONCE_HTTP_FORM, &name, &why);
    if (rc == ONCE_OK && !once_http_text_is_literal(&name))
        rc = once_fail(&why, ONCE_E_USAGE, "a name cannot be a template; only its value can");
    if (rc == ONCE_OK) rc = once_http_write_template(writer, item->name, ONCE_HTTP_FORM, &why);
    once_http_write_literal(writer, ONCE_BYTES("="));
    if (rc == ONCE_OK) rc = once_http_write_template(writer, item->text, ONCE_HTTP_FORM, &why);
    return rc == ONCE_OK || once__http_template_wrong(config, field->name, item->line, rc, &why);
}

static bool read_pairs(once_config *config, const once_config_field *field, const once_node *node, const char *first,
                       once_http_text *out)
{
    once_http_writer writer;
    bool ok = true;
    if (!once__http_read_map(config, field, node, ONCE_HTTP_HEADERS_MAX)) return false;
    once_http_write(&writer, config->arena);
    for (const once_node *item = node->first; item; item = item->next)
        ok = write_pair(config, field, item, item == node->first ? first : "&", &writer) && ok;
    if (!once_http_written(&writer, out)) return once__http_no_memory(config);
    return ok && once__http_check_places(config, field->name, node->line, out);
}

bool once__http_config_query(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return read_pairs(config, field, node, "?", &((once_http_request *)out)->query); /* '&' where the URL has a '?' */
}

/* Whether an unquoted value of YAML is JSON as it stands: a number, true or false. */
static bool is_json_literal(once_bytes text)
{
    once_json json = {0};
    const bool fine = once_json_parse(&json, text, NULL, NULL) == ONCE_OK;
    const once_json_type type = fine ? once_json_root(&json).type : ONCE_JSON_ABSENT;
    once_json_release(&json);
    return type == ONCE_JSON_INTEGER || type == ONCE_JSON_REAL || type == ONCE_JSON_TRUE || type == ONCE_JSON_FALSE;
}

static bool write_json(once_config *config, const once_node *node, once_http_writer *writer);

static bool write_scalar(once_config *config, const once_node *node, once_http_writer *writer)
{
    once_error why = {0};
    if (node->none) {
        once_http_write_literal(writer, ONCE_BYTES("null"));
        return true;
    }
    if (!node->quoted && is_json_literal(node->text)) {
        once_http_write_literal(writer, node->text);
        return true;
    }
    const int rc = once_http_write_template(writer, node->text, ONCE_HTTP_JSON, &why);
    return rc == ONCE_OK || once__http_template_wrong(config, "body", node->line, rc, &why);
}

static bool is_plain_name(once_config *config, const once_node *item)
{
    if (!memmem(item->name.data, item->name.len, "${", 2)) return true;
    once_config_wrong(config, ONCE_E_CONFIG, item->name_line, "'body': '%s' cannot be a template; only its value can",
                      once_config_show(item->name).text);
    return false;
}

static bool write_container(once_config *config, const once_node *node, once_http_writer *writer)
{
    const bool map = node->kind == ONCE_NODE_MAP;
    bool ok = true;
    once_http_write_literal(writer, map ? ONCE_BYTES("{") : ONCE_BYTES("["));
    for (const once_node *item = node->first; item; item = item->next) {
        if (item != node->first) once_http_write_literal(writer, ONCE_BYTES(","));
        if (map) {
            ok = is_plain_name(config, item) && ok;
            once_buf_json(&writer->literal, item->name);
            once_http_write_literal(writer, ONCE_BYTES(":"));
        }
        ok = write_json(config, item, writer) && ok;
    }
    once_http_write_literal(writer, map ? ONCE_BYTES("}") : ONCE_BYTES("]"));
    return ok;
}

static bool write_json(once_config *config, const once_node *node, once_http_writer *writer)
{
    return (node->kind == ONCE_NODE_SCALAR ? write_scalar : write_container)(config, node, writer);
}

static bool read_json_body(once_config *config, const once_node *node, once_http_spec *http)
{
    once_http_writer writer;
    once_http_write(&writer, config->arena);
    const bool ok = write_json(config, node, &writer);
    if (!once_http_written(&writer, &http->body)) return once__http_no_memory(config);
    http->body_kind = ONCE_HTTP_BODY_JSON;
    return ok && once__http_check_places(config, "body", node->line, &http->body);
}

bool once__http_config_body(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_spec *http = out;
    once_bytes text;
    if (node->kind != ONCE_NODE_SCALAR) return read_json_body(config, node, http);
    if (!once_config_scalar(config, field, node, &text)) return false;
    http->body_kind = !node->quoted && once__is_text(text, "none") ? ONCE_HTTP_BODY_NONE : ONCE_HTTP_BODY_TEXT;
    return http->body_kind == ONCE_HTTP_BODY_NONE ||
           once__http_read_text(config, "body", node, ONCE_HTTP_PLAIN, &http->body);
}

bool once__http_config_form(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_http_spec *http = out;
    http->body_kind = ONCE_HTTP_BODY_FORM;
    return read_pairs(config, field, node, "", &http->body);
}
