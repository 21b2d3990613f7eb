/* The effect `sql`: its part of the pipeline file. In the store's database it is carried out by sql.c, in another one
 * by sql_driver.c. */
#include <assert.h>

#include "core/config_values.h"
#include "effect/effect.h"
#include "effect/sql_params.h"
#include "effect/sql_statements.h"

#include "base/banned.h"

/* --- its fields --------------------------------------------------------------------------------------------------- */

typedef struct statement {
    once_bytes text;
    int64_t rows;
    int unmet; /* position in `unmet_words` */
} statement;

static const once_config_word unmet_words[] = {
    {"dead", NULL}, {"stale", NULL}, {"rejected", NULL}, {"retry", NULL}, {NULL, NULL}};
static const once_outcome unmet_outcomes[] = {ONCE_DEAD, ONCE_STALE, ONCE_REJECTED, ONCE_RETRY};

static const once_config_field statement_fields[] = {
    {.name = "do",
     .type = ONCE_CONFIG_STRING,
     .required = true,
     ONCE_CONFIG_AT(statement, text),
     .example = "UPDATE orders SET status = 'paid' WHERE id = :order_id",
     .text = "The statement."},
    {.name = "rows",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(statement, rows),
     .min = 0,
     .max = 1000000000,
     .example = "1",
     .standard_text = "any number",
     .text = "How many rows the statement must change (or return, for a SELECT), exactly."},
    {.name = "else",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(statement, unmet),
     .words = unmet_words,
     .example = "stale",
     .standard_text = "`dead`",
     .text = "The outcome if the number of rows is another; all statements of the message are rolled back. Needs "
             "`rows`."},
};

static const once_config_section statement_section = {
    .name = "a statement",
    .title = "Statement",
    .text = "An item of `sql` is a statement, or a map that also says how many rows the statement must change or\n"
            "return.\n"
            "\n"
            "Parameters are bound, never pasted: `:name` is a top-level field of the body, `:{/a/b}` any field by\n"
            "its JSON pointer, `:{/a?}` the same, and NULL if the field is absent. What else a template can name\n"
            "is bound in the same way: `:{json:/text:/field}`, `:{header:NAME}`, `:{source:NAME}`,\n"
            "`:{event:NAME}`, `:{coordinates}`, `:{hash}`, `:{time:/ts:5m}`. Numbers and texts are bound as\n"
            "such, true and false as 1 and 0, null as NULL, objects and arrays as JSON text. Without `?` a\n"
            "message without the field becomes a dead letter. Transactions, ATTACH, PRAGMA and VACUUM are\n"
            "refused: the transaction is once's own. So are temporary tables: they end with the connection, and\n"
            "hide other tables of the same name.\n"
            "\n"
            "Numbers are never rounded silently. PostgreSQL gets them as they are written, and a `numeric` keeps\n"
            "every digit; where it expects an integer, 1.0 and 1e3 are 1 and 1000. SQLite has integers of 64 bits\n"
            "and doubles: a decimal becomes a REAL only if that double, printed, is the same number again (12.75\n"
            "is, 12345678901234567.89 is not). Otherwise, and for larger integers, the message becomes a dead\n"
            "letter whose reason names the field. `:{/amount as text}` binds the exact text on both,\n"
            "`:{/amount? as text}` also if it may be absent; in SQLite keep it in a TEXT column, because a column\n"
            "of type NUMERIC or REAL turns it into a double again. A column of type REAL turns integers into\n"
            "doubles, too: beyond 2^53 that is another number.\n"
            "\n"
            "Names that begin with `once_` are not fields: `:once_key` is the key, as `once explain` expects it;\n"
            "`:once_idempotency_key` is 32 hexadecimal digits that are the same for every attempt at this key;\n"
            "`:once_attempt` is 1, 2, 3..., higher for each attempt. In another database (`url`) they make a\n"
            "repeat harmless: a unique column with the idempotency key, and `ON CONFLICT DO NOTHING` or\n"
            "`already`.\n"
            "\n"
            "`:once_body` is the whole body, byte for byte as it came. If bodies are JSON it is text, which fits\n"
            "`text`, `json`, `jsonb` and `bytea`, and a TEXT column of SQLite. With `body: bytes` it is bytes: a\n"
            "BLOB in SQLite, `bytea` in PostgreSQL (or `text`, if it is text in the database's encoding). It is\n"
            "NULL for a message without a body (`tombstones: run`).",
    .example = "sql:\n"
               "  - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
               "  - do: UPDATE orders SET status = 'paid', note = :{/meta/note?} WHERE id = :order_id\n"
               "    rows: 1\n"
               "    else: stale\n",
    .fields = statement_fields,
    .n = sizeof statement_fields / sizeof *statement_fields,
};

static bool read_statement(once_config *config, const once_node *node, once_sql_statement *out)
{
    statement raw = {.rows = -1};
    once_error why = {0};
    const once_node *place = node;
    if (node->kind == ONCE_NODE_MAP) {
        bool ok = once_config_read(config, &statement_section, node, &raw);
        const once_node *unmet = once_node_member(node, "else");
        if (unmet && !once_node_member(node, "rows")) {
            once_config_wrong(config, ONCE_E_CONFIG, unmet->name_line,
                              "'else' needs 'rows'; add 'rows: 1', or remove it");
            ok = false;
        }
        if (!ok) return false;
        place = once_node_member(node, "do");
    } else if (!once_config_scalar(config, &statement_fields[0], node, &raw.text)) {
        return false;
    }
    int rc = once_sql_parse(config->arena, raw.text, out, &why);
    if (rc == ONCE_E_NOMEM) config->nomem = true;
    if (rc != ONCE_OK) {
        once_config_wrong(config, ONCE_E_CONFIG, place->line, "'sql': %s", why.text);
        return false;
    }
    for (size_t i = 0; i < out->n; i++)
        if (out->params[i].source == ONCE_SQL_PLACE &&
            !once__config_placeholder(config, "sql", place->line, ':', &out->params[i].place))
            return false;
    out->rows = raw.rows;
    out->unmet = unmet_outcomes[raw.unmet];
    out->line = place->line;
    return true;
}

/* A list of statements, or one. */
static bool read_statements(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sql_spec *sql = out;
    bool list = node->kind == ONCE_NODE_LIST;
    size_t n = list ? node->count : 1;
    if (node->kind == ONCE_NODE_MAP || (list && n == 0)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be a list of statements, not %s; write '- STATEMENT' lines under it", field->name,
                          list ? "an empty list" : "a map");
        return false;
    }
    once_sql_statement *statements = once_arena_new(config->arena, once_sql_statement, n);
    if (!statements) {
        config->nomem = true;
        return false;
    }
    bool ok = true;
    size_t i = 0;
    for (const once_node *item = list ? node->first : node; i < n; item = item->next, i++)
        ok = read_statement(config, item, &statements[i]) && ok;
    sql->statements = statements;
    sql->n_statements = n;
    return ok;
}

/* A URL, or where it is to be read from. It may contain a password, so error texts do not show it. */
static bool read_sql_url(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sql_spec *sql = out;
    once_bytes url;
    once_error why;
    if (!once_config_scalar(config, field, node, &url)) return false;
    sql->url = url;
    sql->url_line = node->line;
    if (once_is_reference(url)) return once__config_reference(config, "'url'", node);
    const int rc = once_db_check_url(url, &why);
    if (rc != ONCE_OK) once_config_wrong(config, rc, node->line, "'url': %s", why.text);
    return rc == ONCE_OK;
}

static const once_config_field sql_fields[] = {
    {.name = "do",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_statements,
     .shape = "a list of statements",
     .example = "[STATEMENT, ...]",
     .section = &statement_section,
     .text = "The statements."},
    {.name = "url",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_sql_url,
     .shape = "URL of a database",
     .example = "\"env:LEDGER_URL\"",
     .standard_text = "the store's database",
     .text = "Another database: `postgres://...`, `sqlite:PATH`, or a reference to such a URL that is read at the "
             "start and never shown:"
             " `env:NAME`, `file:PATH`. Then the effect is fenced."},
};

static const once_config_section sql_section = {
    .name = "'sql'",
    .title = "sql",
    .text = "The statements of one message run in one transaction together with the record that it was handled,\n"
            "in the order of the list. `sql` is a list of statements, or a map with that list in `do`.\n"
            "\n"
            "With `url` they run in another database, which need not be of the store's kind, in a transaction of\n"
            "their own: up to `workers` messages at a time, each on its own connection. The claim of a message is\n"
            "durable before its transaction begins. An attempt that fails before COMMIT is sent had no effect,\n"
            "and is tried again. If the reply to COMMIT does not come, or the process is killed while COMMIT is\n"
            "under way, the outcome is unknown, and `unknown` decides. At `timeout` the statement is cancelled\n"
            "and the transaction rolled back. While the database is away nothing is started, and no failure is\n"
            "counted. once creates no tables of its own there.",
    .example = "sql:\n"
               "  url: \"env:LEDGER_URL\"          # postgres://ledger.example/books\n"
               "  do:\n"
               "    - INSERT INTO booked(id, account, cents) VALUES (:once_idempotency_key, :account, :cents)\n"
               "already: [booked_pkey]\n"
               "unknown: retry\n",
    .fields = sql_fields,
    .n = sizeof sql_fields / sizeof *sql_fields,
};

static bool read_sql(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    if (node->kind == ONCE_NODE_MAP) {
        if (once_node_member(node, "rows") && once_node_member(node, "do")) {
            once_config_wrong(config, ONCE_E_CONFIG, node->line,
                              "'rows' belongs to one statement; write the statement as an item: '- do: ...'");
            return false;
        }
        return once_config_read(config, &sql_section, node, out);
    }
    return read_statements(config, field, node, out);
}

static const once_config_field fields[] = {
    {.name = "sql",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_sql,
     .shape = "a list of statements",
     .example = "[STATEMENT, ...]",
     .section = &sql_section,
     .text = "Effect: statements in the store's database, in the transaction that records the message; with `url`, in "
             "another database."},
    {.name = "already",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_sql_spec, already),
     .count = offsetof(once_sql_spec, n_already),
     .max = 400,
     .example = "[payments.id]",
     .standard_text = "none",
     .text = "Unique constraints whose violation means that the effect had happened before: `table.column`, several "
             "columns joined by `,`."},
    {.name = "rejected",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_sql_spec, rejected),
     .count = offsetof(once_sql_spec, n_rejected),
     .max = 400,
     .example = "[balance_not_negative]",
     .standard_text = "none",
     .text = "Errors of a statement that mean that the business says no: names of constraints, extended result codes"
             " of SQLite, SQLSTATEs of PostgreSQL."},
};

static void conclude(once_handler_spec *handler)
{
    if (once_sql_of(handler)->url.len > 0) handler->bits |= ONCE_EFFECT_OUTSIDE;
}

static void check(once_config *config, const once_node *map, const once_handler_spec *handler)
{
    const once_node *locks = once_node_member(map, "locks");
    if (locks && once_handler_external(handler))
        once_config_wrong(config, ONCE_E_CONFIG, locks->name_line,
                          "'locks' is for 'sql' in the store's own database, and this one has a 'url'; remove it");
}

/* --- the effect --------------------------------------------------------------------------------------------------- */

static once_effect_shown describe(const once_handler_spec *handler)
{
    assert(once_sql_of(handler)->url.len > 0); /* otherwise it is inside */
    return (once_effect_shown){.what = "SQL in", .name = once_sql_of(handler)->url, .url = true};
}

static void secrets(const once_handler_spec *handler, once_secret_visit *visit, void *user)
{
    const once_bytes url = once_sql_of(handler)->url;
    if (url.len) visit(user, url, true);
}

const once_effect_ops once__effect_sql = {
    .name = "sql",
    .summary = "statements in the store's own database; atomic",
    .bits = ONCE_EFFECT_RUNS | ONCE_EFFECT_FAULTS,
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    .size = sizeof(once_sql_spec),
    .conclude = conclude,
    .check = check,
    .prepare = once_sql_prepare,
    .open = once_effect_driver_open_sql,
    .describe = describe,
    .secrets = secrets,
    .db = once_effect_driver_sql_db,
};
