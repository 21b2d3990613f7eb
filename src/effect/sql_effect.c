/* The effect `sql`: its part of the pipeline file. In the store's database it is carried out by sql.c, in another one
 * by sql_driver.c. */
#include <assert.h>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "core/config_values.h"
#include "effect/effect.h"
#include "effect/sql_params.h"
#include "effect/sql_statements.h"
#include "effect/then.h"

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

const once_config_section once_sql_statement_section = {
    .name = "a statement",
    .title = "Statement",
    .text = "An item of a list of statements is a statement, or a map that also says how many rows the statement must "
            "change or\n"
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

/* Whether each parameter names something that there is. */
static bool check_params(once_config *config, const once_sql_statement *made, int line, bool then)
{
    for (size_t i = 0; i < made->n; i++) {
        const once_sql_param *param = &made->params[i];
        if (param->source == ONCE_SQL_RESULT && !then) {
            once_config_wrong(config, ONCE_E_CONFIG, line,
                              "'sql': a parameter names the result of the effect, which only 'then' has; move the "
                              "statement there, or name a field of the message, as in ':{/id}'");
            return false;
        }
        if (param->source == ONCE_SQL_PLACE && !once__config_placeholder(config, "sql", line, ':', &param->place))
            return false;
    }
    return true;
}

/* The map of a statement. */
static bool read_map(once_config *config, const once_node *node, bool then, statement *out)
{
    bool ok = once_config_read(config, &once_sql_statement_section, node, out);
    const once_node *unmet = once_node_member(node, "else");
    if (unmet && then)
        once_config_wrong(config, ONCE_E_CONFIG, unmet->name_line,
                          "'else' has no meaning in 'then': the effect has happened, so with another number of rows "
                          "the message is held as unknown; remove it");
    else if (unmet && !once_node_member(node, "rows"))
        once_config_wrong(config, ONCE_E_CONFIG, unmet->name_line, "'else' needs 'rows'; add 'rows: 1', or remove it");
    else return ok;
    return false;
}

static bool read_statement(once_config *config, const once_node *node, bool then, once_sql_statement *out)
{
    statement raw = {.rows = -1};
    once_error why = {0};
    const once_node *place = node;
    if (node->kind == ONCE_NODE_MAP) {
        if (!read_map(config, node, then, &raw)) return false;
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
    if (!check_params(config, out, place->line, then)) return false;
    out->rows = raw.rows;
    out->unmet = unmet_outcomes[raw.unmet];
    out->line = place->line;
    return true;
}

bool once_sql_read(once_config *config, const once_config_field *field, const once_node *node, bool then,
                   once_sql_list *out)
{
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
        ok = read_statement(config, item, then, &statements[i]) && ok;
    *out = (once_sql_list){statements, n};
    return ok;
}

/* A list of statements, or one. */
static bool read_statements(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return once_sql_read(config, field, node, false, &((once_sql_spec *)out)->does);
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

/* One SELECT. What it would change is rolled back, but a statement that changes something is a mistake. */
static bool read_select(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_sql_lookup *lookup = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text) || !once_sql_read(config, field, node, false, &lookup->select))
        return false;
    const once_bytes sql = lookup->select.at[0].sql;
    size_t at = 0, end;
    while (at < sql.len && once_ascii_is_space(sql.data[at])) at++;
    for (end = at; end < sql.len && !once_ascii_is_space(sql.data[end]); end++) continue;
    if (once_ascii_is(sql.data + at, end - at, "select") || once_ascii_is(sql.data + at, end - at, "with")) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'select' must be a SELECT, not '%s'; it asks whether the effect is there, and changes nothing",
                      once_config_show(text).text);
    return false;
}

static const once_config_field lookup_fields[] = {
    {.name = "select",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_select,
     .shape = "a SELECT",
     .example = "SELECT 1 FROM booked WHERE id = :once_idempotency_key",
     .text = "The statement. A row means done, none that the attempt had no effect. Parameters are those of other "
             "statements; `:once_idempotency_key` and `:once_key` are the same as in the attempt."},
    {.name = "after",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_sql_lookup, when.after_ms),
     .min = 0,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "10s",
     .standard_text = "the handler's `timeout`",
     .text = "How long to wait before the database is asked for the first time: a COMMIT that was sent may still be "
             "carried out."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_sql_lookup, when.for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "`1h`",
     .text = "How long the database is asked again while it does not answer. Then `unknown` decides."},
};

static const once_config_section lookup_section = {
    .name = "'lookup'",
    .title = "lookup of sql",
    .text = "A SELECT in the other database that is asked what became of an attempt whose outcome is unknown. A row\n"
            "means that it committed: the message is done. No row means that it did not, and never will: the attempt\n"
            "counts as failed, and the message is tried again under the same idempotency key. An error means that it\n"
            "is asked again, with growing pauses. The statement must find what this very attempt, or one before it,\n"
            "has written: keep `:once_idempotency_key` in a column. Times are counted by the store's clock, from the\n"
            "moment at which the unknown was recorded. The transaction of a worker that is cut off from the database\n"
            "ends when the server notices it: `after` must be longer than that.",
    .example = "sql:\n"
               "  url: \"env:LEDGER_URL\"\n"
               "  do: [\"INSERT INTO booked(id, cents) VALUES (:once_idempotency_key, :cents)\"]\n"
               "  lookup: {select: \"SELECT 1 FROM booked WHERE id = :once_idempotency_key\", after: 5s}\n",
    .fields = lookup_fields,
    .n = sizeof lookup_fields / sizeof *lookup_fields,
};

static const once_config_field sql_fields[] = {
    {.name = "do",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_statements,
     .shape = "a list of statements",
     .example = "[STATEMENT, ...]",
     .section = &once_sql_statement_section,
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
    {.name = "lookup",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_sql_spec, lookup),
     .section = &lookup_section,
     .example = "{select: \"SELECT 1 FROM booked WHERE id = :once_idempotency_key\"}",
     .standard_text = "none",
     .text = "With `url`: a SELECT that is asked what became of an attempt whose outcome is unknown, before `unknown` "
             "decides."},
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
            "under way, the outcome is unknown, and `lookup` or `unknown` decides. At `timeout` the statement is "
            "cancelled\n"
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

static const once_sql_spec standard = {.lookup.when = {.after_ms = ONCE_LOOKUP_TIMEOUT, .for_ms = 3600000}};

static void conclude(once_handler_spec *handler)
{
    const once_sql_spec *sql = once_sql_of(handler);
    if (sql->url.len == 0) return;
    handler->bits |= ONCE_EFFECT_OUTSIDE;
    if (sql->lookup.select.n == 0) return;
    handler->bits |= ONCE_EFFECT_ASKS;
    handler->lookup = sql->lookup.when;
}

static void check(once_config *config, const once_node *map, const once_handler_spec *handler)
{
    const once_node *locks = once_node_member(map, "locks"), *sql = once_node_member(map, "sql");
    const once_node *lookup = sql->kind == ONCE_NODE_MAP ? once_node_member(sql, "lookup") : NULL;
    if (locks && once_handler_external(handler))
        once_config_wrong(config, ONCE_E_CONFIG, locks->name_line,
                          "'locks' is for 'sql' in the store's own database, and this one has a 'url'; remove it");
    if (lookup && !once_handler_external(handler))
        once_config_wrong(config, ONCE_E_CONFIG, lookup->name_line,
                          "'lookup' needs 'url': in the store's own database the outcome is never unknown; remove it");
    if (once_handler_external(handler) && handler->then && once_then_uses_result(handler->then))
        once_config_wrong(config, ONCE_E_CONFIG, handler->then->line,
                          "'then' names the result of the effect, and 'sql' has none; bind a field of the message");
}

/* --- the effect --------------------------------------------------------------------------------------------------- */

/* The values of the statements, then those of the lookup. */
static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    const once_sql_spec *sql = once_sql_of(handler);
    const size_t n = once_sql_count(&sql->does);
    once_value *values = once_arena_alloc(arena, (n + once_sql_count(&sql->lookup.select)) * sizeof *values);
    if (!values) return once_no_memory(err, "for a message");
    const int rc = once_sql_values(&sql->does, from, arena, values, err);
    if (rc != ONCE_OK) return rc;
    *input = values;
    return once_sql_values(&sql->lookup.select, from, arena, values + n, err);
}

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
    .standard = &standard,
    .conclude = conclude,
    .check = check,
    .prepare = prepare,
    .open = once_effect_driver_open_sql,
    .describe = describe,
    .secrets = secrets,
    .db = once_effect_driver_sql_db,
};
