#include "effect/then.h"

#include <assert.h>

#include "base/no_memory.h"
#include "effect/effect.h"
#include "effect/sql_statements.h"

#include "base/banned.h"

/* --- its part of the pipeline file -------------------------------------------------------------------------------- */

static bool read_sql(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sql_then *then = out;
    const once_node *url = node->kind == ONCE_NODE_MAP ? once_node_member(node, "url") : NULL;
    if (url) {
        once_config_wrong(
            config, ONCE_E_CONFIG, url->name_line,
            "'then' runs in the store's own database, in the transaction that records the outcome; remove "
            "'url', and write its statements as a list");
        return false;
    }
    return once_sql_read(config, field, node, true, &then->does);
}

static const once_config_field fields[] = {
    {.name = "sql",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_sql,
     .shape = "a list of statements",
     .example = "[STATEMENT, ...]",
     .section = &once_sql_statement_section,
     .text = "The statements, in the store's own database."},
};

const once_config_section once_then_section = {
    .name = "'then'",
    .title = "then",
    .text =
        "SQL that follows an effect outside of the store. It runs in the store's own database, in the transaction\n"
        "that records the outcome, when the effect is done, and also when it is `already`: it had happened before,\n"
        "perhaps by an attempt whose reply was lost. So it commits exactly once, together with the outcome. If the\n"
        "claim was lost meanwhile, nothing of it commits.\n"
        "\n"
        "The result of the effect can be bound: `:{result}` is all of it, as text, `:{result:/charge_id}` a field\n"
        "of a result that is JSON. `:{result:/charge_id?}` is NULL if the result is empty or lacks the field, and\n"
        "`as text` means what it means for other parameters. An effect that is `already` often has another\n"
        "result, or none. Fields of the message are bound as in `sql`; a message that lacks one becomes a dead\n"
        "letter before its effect.\n"
        "\n"
        "If a statement fails, or changes another number of rows than `rows` says, or the result lacks what a\n"
        "parameter names, all of `then` is rolled back. The effect has happened, so it is not repeated, not even\n"
        "with `unknown: retry`: the message is held as unknown, with the reason, for `once resolve`. With `lookup`\n"
        "and `unknown: hold` the other side is asked, and `then` is tried again when it says done. There is no\n"
        "`else`. A table that is missing, or a permission, concerns every message: the run pauses, and goes on\n"
        "when it is there.\n"
        "\n"
        "The store must be a database: `sqlite:` or `postgres:`.",
    .example = "exec: [./charge]                 # prints {\"charge_id\": \"ch_7\"}\n"
               "then:\n"
               "  sql:\n"
               "    - UPDATE orders SET charge = :{result:/charge_id} WHERE id = :order_id\n",
    .fields = fields,
    .n = sizeof fields / sizeof *fields,
};

static int prepare(const once_then *base, const once_parsed *from, once_arena *arena, void **input, once_error *err)
{
    const once_sql_list *does = &((const once_sql_then *)base)->does;
    once_value *values = once_arena_alloc(arena, (once_sql_count(does) + 1) * sizeof *values);
    if (!values) return once_no_memory(err, "for a message");
    *input = values;
    return once_sql_values(does, from, arena, values, err);
}

bool once_then_read(once_config *config, const once_config_field *field, const once_node *node, const once_then **out)
{
    once_sql_then *then = once_arena_new(config->arena, once_sql_then, 1);
    if (!then) {
        config->nomem = true;
        return false;
    }
    *then = (once_sql_then){.then = {.prepare = prepare, .line = node->name_line}};
    if (node->kind != ONCE_NODE_MAP) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' must be a map, not %s; write '%s: %s'", field->name,
                          once_node_kind_text(node), field->name, field->example);
        return false;
    }
    if (!once_config_read(config, &once_then_section, node, then)) return false;
    *out = &then->then;
    return true;
}

bool once_then_uses_result(const once_then *base)
{
    const once_sql_list *does = &((const once_sql_then *)base)->does;
    for (size_t i = 0; i < does->n; i++)
        for (size_t k = 0; k < does->at[i].n; k++)
            if (does->at[i].params[k].source == ONCE_SQL_RESULT) return true;
    return false;
}

/* --- the result --------------------------------------------------------------------------------------------------- */

void once_result_reader_release(once_result_reader *reader)
{
    once_json_release(&reader->json);
    once_texts_release(&reader->texts);
}

/* All of the result. Bytes that are no text cannot be bound as text. */
static int bind_whole(once_bytes result, const once_sql_param *param, once_value *out, once_error *err)
{
    const unsigned char *at = (const unsigned char *)result.data;
    *out = (once_value){.type = ONCE_VALUE_TEXT, .text = {result.len ? result.data : "", result.len}};
    if (result.len == 0 && param->optional) out->type = ONCE_VALUE_NULL;
    for (size_t left = result.len; left > 0;) {
        const int len = once_utf8_sequence(at, left);
        if (len <= 0 || *at == 0) return once_fail(err, ONCE_E_MESSAGE, "the result of the effect is not text");
        at += len;
        left -= (size_t)len;
    }
    return ONCE_OK;
}

/* A field of it: read like a field of a body. */
static int bind_field(once_result_reader *reader, const once_item *item, const once_sql_param *param, once_arena *arena,
                      once_value *out, once_error *err)
{
    const once_parsed parsed = {.message = &item->message, .body = &reader->json, .texts = &reader->texts};
    once_error why;
    const int rc = once_sql_value(&parsed, param, arena, out, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc, "in the result of the effect: %s", why.text);
}

/* An empty result is a document without fields. */
static int parse(once_result_reader *reader, once_bytes result, once_arena *arena, once_error *err)
{
    once_json_error why;
    once_texts_begin(&reader->texts, arena, 0);
    if (result.len == 0) result = ONCE_BYTES("null");
    const int rc = once_json_parse(&reader->json, result, NULL, &why);
    if (rc == ONCE_OK || rc == ONCE_E_NOMEM) return rc == ONCE_OK ? rc : once_no_memory(err, "for a result");
    return once_fail(err, rc, "the result of the effect is not JSON: %s at byte %zu", why.reason, why.offset);
}

/* The result, or the part of it that counts. A text in that part is a text, without quotes. */
static int read_part(once_result_reader *reader, const once_item *item, once_arena *arena, once_bytes *part,
                     once_bytes *whole, once_error *err)
{
    *part = *whole = item->came_with;
    if (item->result_lost) /* an empty value would say that there was none */
        return once_fail(err, ONCE_E_MESSAGE, "the result of the effect was not kept: it is too long");
    if (!item->handler->effect->result || part->len == 0) return ONCE_OK;
    *part = *whole = item->handler->effect->result(item->came_with);
    if (!part->data)
        return once_fail(err, ONCE_E_MESSAGE, "the result of the effect was not kept: it is no text, or too long");
    if (part->len == 0 || part->data[0] != '"') return ONCE_OK;
    const int rc = parse(reader, *part, arena, err);
    if (rc == ONCE_OK && !once_json_string(once_json_root(&reader->json), arena, whole))
        return once_no_memory(err, "for a result");
    return rc;
}

int once_then_bind(once_result_reader *reader, const once_item *item, once_arena *arena, once_error *err)
{
    assert(item->returned && item->then_input && item->handler->then);
    const once_sql_list *does = once_then_list(item->handler);
    once_value *value = item->then_input;
    once_bytes part, whole;
    bool parsed = false;
    if (!once_then_uses_result(item->handler->then)) return ONCE_OK;
    int rc = read_part(reader, item, arena, &part, &whole, err);
    for (size_t i = 0; i < does->n; i++) {
        for (size_t k = 0; k < does->at[i].n && rc == ONCE_OK; k++, value++) {
            const once_sql_param *param = &does->at[i].params[k];
            if (param->source != ONCE_SQL_RESULT) continue;
            const bool field = param->place.path.n > 0;
            if (field && !parsed) rc = parse(reader, part, arena, err);
            parsed |= field;
            if (rc == ONCE_OK)
                rc = field ? bind_field(reader, item, param, arena, value, err) : bind_whole(whole, param, value, err);
        }
    }
    return rc;
}
