/* Everything a pipeline file may say. A new field is a new row here; docs/configuration.md is printed from these
 * tables. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "effect/effect.h"
#include "runtime/config.h"
#include "runtime/config_internal.h"
#include "source/source.h"
#include "store/store.h"

#include "base/banned.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define DAY_MS INT64_C(86400000)

static_assert(offsetof(once_retry, max_ms) == offsetof(once_retry, min_ms) + sizeof(int64_t),
              "backoff is read as a pair");

/* --- readers ------------------------------------------------------------------------------------------------------ */

static bool read_template(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_template *template = once__config_template(config, field, node);
    if (template) once__config_put(field, out, &template, sizeof template);
    return template != NULL;
}

/* A template that differs from message to message. */
static bool read_varying(once_config *config, const once_config_field *field, const once_node *node, void *out)
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

/* One value and nothing around it, because it is read as a number or a time. */
static bool read_single(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    const once_template *template = once__config_template(config, field, node);
    if (!template) return false;
    if (!once_template_is_single(template) || once_template_uses_coordinates(template)) {
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'%s' must be one placeholder and nothing else; write '%s: %s'", field->name, field->name,
                          field->example);
        return false;
    }
    once__config_put(field, out, &template, sizeof template);
    return true;
}

static bool read_node(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    (void)config;
    once__config_put(field, out, &node, sizeof node);
    return true;
}

/* --- small scopes ------------------------------------------------------------------------------------------------- */

#define LATER_FIELD(field, what)                                                                                       \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .instead = what                                                      \
    }
#define LATER_EFFECT(field)                                                                                            \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .plural = "effects", .instead = "use 'exec' or 'sql'"                \
    }

static const once_config_field retry_fields[] = {
    {.name = "attempts",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_retry, attempts),
     .min = 1,
     .max = 1000000,
     .standard = "12",
     .text = "After how many failures a message becomes a dead letter. 1: no second try. With `for` and without "
             "`attempts`, the number is unlimited."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_retry, for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "any time",
     .text = "A failure also makes a dead letter when the first failure is older than this. The limit that is reached "
             "first decides."},
    {.name = "backoff",
     .type = ONCE_CONFIG_RANGE,
     ONCE_CONFIG_AT(once_retry, min_ms),
     .min = 1,
     .max = 30 * DAY_MS,
     .standard = "200ms..1m",
     .text = "The wait before the next try: random, below a limit that starts at the first duration and doubles up to "
             "the second. If the earlier waits were short, the last two are longer."},
    {.name = "on",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_retry, on),
     .count = offsetof(once_retry, n_on),
     .max = 400,
     .example = "[SQLITE_CONSTRAINT_FOREIGNKEY]",
     .standard_text = "none",
     .text = "Errors of a statement that are worth a retry: names of constraints, extended result codes of SQLite, "
             "SQLSTATEs of PostgreSQL."},
};

static const once_config_section retry_section = {
    .name = "'retry'",
    .title = "retry",
    .text = "What happens after a failure that may pass. The store counts failures across restarts and measures their "
            "time with its own clock.\n"
            "With the defaults the twelfth failure comes about two minutes after the first, and never within 74 "
            "seconds: an outage of a minute\n"
            "makes no dead letter. A replayed dead letter starts again with no failures.",
    .fields = retry_fields,
    .n = COUNT(retry_fields),
};

static bool read_first(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_config_pipeline *pipeline = out;
    const once_config_field number = {.name = field->name,
                                      .type = ONCE_CONFIG_INTEGER,
                                      ONCE_CONFIG_AT(once_config_pipeline, spec.first),
                                      .min = 0,
                                      .max = INT64_MAX,
                                      .example = field->example};
    pipeline->spec.has_first = once_config_read_field(config, &number, node, out);
    return pipeline->spec.has_first;
}

static const once_config_field version_fields[] = {
    {.name = "from",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_single,
     ONCE_CONFIG_AT(once_config_pipeline, spec.version),
     .shape = "template, one placeholder",
     .example = "\"${/version}\"",
     .text = "Where the version is: a whole number from 0 to 2^63-1."},
    {.name = "first",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_first,
     .shape = "integer, from 0",
     .example = "1",
     .standard_text = "the first version seen",
     .text = "The first version of every lane. With `gap` a lane waits for it; a lower version becomes a dead letter."},
};

static const once_config_section version_section = {
    .name = "'version'",
    .title = "version",
    .text = "The version of a message in its lane: a template, or a map with that template in `from`. The lane records "
            "the highest version that\n"
            "settled, and the key and content of the message that settled it.\n"
            "\n"
            "An older version is stale: recorded, not run. A higher version runs; with `gap` only the next one runs, "
            "and versions further ahead\n"
            "wait for the missing ones.\n"
            "\n"
            "An equal version under another key waits until the first one has ended. With the same operation and the "
            "same content it is a\n"
            "duplicate, recorded as `already` under its own key; `once explain` names the key that settled the "
            "version. With another\n"
            "operation or other content it is a conflict: a dead letter that names the version and that key. "
            "`fingerprint` decides what counts\n"
            "as content; with `none` only the operation is compared. If the content of the first one is not known, "
            "because only its handler has\n"
            "`fingerprint: none`, or because an older version of once recorded it, that is a conflict too.",
    .example = "order: \"${/order_id}\"\n"
               "version: {from: \"${/version}\", first: 1}\n"
               "gap: {wait: 30s, then: dead}\n",
    .fields = version_fields,
    .n = COUNT(version_fields),
};

static bool read_version(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return node->kind == ONCE_NODE_MAP ? once_config_read(config, &version_section, node, out)
                                       : read_single(config, field, node, out);
}

static const once_config_word time_words[] = {[ONCE_UNIT_MS] = {"ms", NULL},
                                              [ONCE_UNIT_S] = {"s", NULL},
                                              [ONCE_UNIT_US] = {"us", NULL},
                                              [ONCE_UNIT_NS] = {"ns", NULL},
                                              {NULL, NULL}};

static const once_config_field time_fields[] = {
    {.name = "from",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = read_single,
     ONCE_CONFIG_AT(once_config_pipeline, spec.time),
     .shape = "template, one placeholder",
     .example = "\"${/sent_at}\"",
     .text = "Where the time is: RFC 3339, or a number since 1970."},
    {.name = "unit",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, time_unit),
     .words = time_words,
     .standard = "ms",
     .text = "The unit of a number. It may have a fraction; anything below a millisecond is cut off."},
};

static const once_config_section time_section = {
    .name = "'time'",
    .title = "time",
    .text = "When the message was sent: a template, or a map with that template in `from`. The year must be 1 to 9999; "
            "a message with any other\n"
            "time becomes a dead letter.\n"
            "\n"
            "A message older than `remember` becomes a dead letter too (`too_old`). Its reason shows the time and the "
            "text it was read from; if the\n"
            "number would be a likely date in another unit, the reason says so.",
    .example = "time: {from: \"${/created}\", unit: s}\n",
    .fields = time_fields,
    .n = COUNT(time_fields),
};

static bool read_time(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return node->kind == ONCE_NODE_MAP ? once_config_read(config, &time_section, node, out)
                                       : read_single(config, field, node, out);
}

static const once_config_word on_dead_words[] = {
    [ONCE__DEAD_CONTINUE] = {"continue", NULL}, [ONCE__DEAD_BLOCK] = {"block", NULL}, {NULL, NULL}};

static const once_config_word gap_words[] = {
    [ONCE__GAP_DEAD] = {"dead", NULL}, [ONCE__GAP_RUN] = {"run", NULL}, {NULL, NULL}};

static const once_config_field gap_fields[] = {
    {.name = "wait",
     .type = ONCE_CONFIG_DURATION,
     .required = true,
     ONCE_CONFIG_AT(once_config_pipeline, spec.gap_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "30s",
     .text = "How long a lane waits for the versions missing before its next message. Only time in which a run of this "
             "consumer is alive counts, to within a few seconds for each stop; the store records how long the lane has "
             "waited."},
    {.name = "then",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, gap_then),
     .words = gap_words,
     .standard = "dead",
     .text = "What happens if they do not arrive: `dead`: the message becomes a dead letter that names the missing "
             "versions; `run`: it runs without them. A replayed dead letter does not wait again."},
};

static const once_config_section gap_scope = {
    .name = "'gap'",
    .title = "gap",
    .text = "What happens when a version is missing. Without `gap` a message that skips versions runs at once. Needs "
            "`version`.\n"
            "\n"
            "The wait belongs to the lane, not to each message in it. When it ends, the lane gives up the missing "
            "versions: the messages that\n"
            "follow without a gap run, and the lane waits again for the next gap. If a given-up version arrives after "
            "all, it is stale when a newer\n"
            "one has settled; otherwise it runs, the lane continues from there, and versions further ahead wait again. "
            "So a message with a wrong,\n"
            "high version does not end its lane: it becomes a dead letter, and if that is discarded, its version does "
            "not count. A version that\n"
            "became a dead letter has arrived and is not waited for. The summary of a run and `once status` count the "
            "given-up versions\n"
            "(`given_up`), at most 1000 for one gap.",
    .fields = gap_fields,
    .n = COUNT(gap_fields),
};

static const once_config_field batch_fields[] = {
    {.name = "max",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_config_pipeline, spec.batch_max),
     .min = 1,
     .max = 65536,
     .standard = "1024",
     .text = "At most this many messages share one transaction."},
    {.name = "wait",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.batch_wait_ms),
     .min = 0,
     .max = 60000,
     .standard = "20ms",
     .text = "How long to wait for a batch to fill. 0ms: not at all."},
};

static const once_config_section batch_scope = {
    .name = "'batch'",
    .title = "batch",
    .text = "Each batch costs one transaction and one sync to disk; larger batches are faster.",
    .fields = batch_fields,
    .n = COUNT(batch_fields),
};

static const once_config_field waiting_max_fields[] = {
    {.name = "messages",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_waiting_size, messages),
     .min = 1,
     .max = INT64_C(1000000000000),
     .standard = "1000000",
     .text = "How many."},
    {.name = "bytes",
     .type = ONCE_CONFIG_SIZE,
     ONCE_CONFIG_AT(once_waiting_size, bytes),
     .min = 1,
     .max = INT64_C(1) << 50,
     .standard = "4GiB",
     .text = "The size of their bodies; in a `redis:` store of everything kept of a message, because that uses its "
             "memory."},
};

static const once_config_section waiting_max_section = {
    .name = "'waiting_max'",
    .title = "waiting_max",
    .text = "How much may wait in the store for this consumer: messages that the store keeps with their bodies, "
            "because they are in the inbox,\n"
            "behind others in their lane, or waiting for a retry. At the limit fetching pauses, and the source keeps "
            "the rest; the run goes on\n"
            "processing, and fetching resumes when a tenth of the limit is free. The log (`fetch_paused`, "
            "`fetch_resumed`) and the progress line\n"
            "of a run show it. Messages fetched before are still accepted: up to three batches of each worker can "
            "exceed the limit.\n"
            "\n"
            "A number alone counts messages. The defaults are large enough that most pipelines never reach them. "
            "`none`: no limit; if a handler\n"
            "is down for days, or a lane is blocked, the disk of the store fills up, which stops everyone who uses it. "
            "While lanes wait for a\n"
            "missing version (`gap`), that version may be among the messages not fetched; the lanes then go on when "
            "`gap.wait` has passed. So\n"
            "set the limit higher than the number of messages that arrive in that time.",
    .example = "waiting_max: {messages: 100000, bytes: 1GiB}\n",
    .fields = waiting_max_fields,
    .n = COUNT(waiting_max_fields),
};

static bool read_waiting_max(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_waiting_size *most = &((once_config_pipeline *)out)->spec.waiting_max;
    if (node->kind == ONCE_NODE_MAP) return once_config_read(config, &waiting_max_section, node, most);
    if (node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "none")) {
        *most = (once_waiting_size){0};
        return true;
    }
    const once_node nothing = {.kind = ONCE_NODE_MAP, .line = node->line};
    once_config_field messages = waiting_max_fields[0];
    messages.name = field->name;
    messages.example = field->example;
    return once_config_read(config, &waiting_max_section, &nothing, most) &&
           once_config_read_field(config, &messages, node, most);
}

/* --- handler ------------------------------------------------------------------------------------------------------ */

static const char as_pipeline[] = "as the pipeline's";

static const once_config_word unknown_words[] = {
    [ONCE__UNKNOWN_HOLD] = {"hold", NULL}, [ONCE__UNKNOWN_RETRY] = {"retry", NULL}, {NULL, NULL}};

#define INHERITED(type, member) ONCE_CONFIG_AT(type, member), .standard_text = as_pipeline

static const once_config_field handler_fields[] = {
    {.name = "operation",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once__handler, spec.operation),
     .shape = "name, 1 to 200 bytes",
     .example = "payment",
     .standard_text = "the pipeline's, else the type, `*`, or `handler`",
     .text = "The name under which its keys are remembered. Handlers that set the same name share their keys."},
    {.name = "key",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_varying,
     INHERITED(once__handler, spec.key),
     .shape = "template",
     .example = "\"${/payment_id}\"",
     .text = "What makes two messages the same."},
    {.name = "fingerprint",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_fingerprint,
     INHERITED(once__handler, spec.fingerprint),
     .shape = "`body`, `none` or list of pointers",
     .example = "body",
     .text = "What must not change under one key."},
    {.name = "locks",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_locks,
     INHERITED(once__handler, spec.locks),
     .shape = "list of templates",
     .example = "[\"account/${/from}\", \"account/${/to}\"]",
     .text = "Only for `sql` in the store's database: names for the rows that a message will update."},
    {.name = "remember",
     .type = ONCE_CONFIG_DURATION,
     INHERITED(once__handler, spec.remember_ms),
     .min = 1,
     .max = ONCE_FOREVER,
     .example = "7d",
     .text = "How long a handled message is remembered."},
    {.name = "natural",
     .type = ONCE_CONFIG_BOOL,
     INHERITED(once__handler, spec.natural),
     .example = "true",
     .text = "The effect is idempotent by nature, so nothing is remembered after success."},
    {.name = "unknown",
     .type = ONCE_CONFIG_WORD,
     INHERITED(once__handler, unknown),
     .words = unknown_words,
     .example = "retry",
     .text = "Only for `exec`, `callback` and `sql` with `url`: what happens to an attempt with an unknown outcome."},
    {.name = "lease",
     .type = ONCE_CONFIG_DURATION,
     INHERITED(once__handler, spec.lease_ms),
     .min = 1,
     .max = DAY_MS,
     .example = "30s",
     .text = "How long a claim lasts without an extension by its worker; see the pipeline's `lease`."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     INHERITED(once__handler, spec.timeout_ms),
     .min = 1,
     .max = DAY_MS,
     .example = "10s",
     .text = "How long the effect of a message may take."},
    {.name = "retry",
     .type = ONCE_CONFIG_SECTION,
     INHERITED(once__handler, spec.retry),
     .scope = &retry_section,
     .example = "{attempts: 3}",
     .text = "What happens after a failure that may pass; parts that are not set are the pipeline's."},
    LATER_EFFECT("http"),
    LATER_EFFECT("forward"),
    LATER_FIELD("emit", "write to a table of your own in 'sql'"),
    LATER_FIELD("then", "do it in the effect itself"),
    LATER_FIELD("stale", "use 'rows: 1, else: stale' in a statement, or exit code 67 of a command"),
    LATER_FIELD("saga", "remove it"),
};

/* The i-th field that effects bring: first those that choose an effect, then what else each effect has. Two effects may
 * have a field of the same name. So a handler that has chosen its effect sees the fields of that one first, and only
 * these are read. */
static const once_config_field *field_of_effect(size_t i, void *out, void **place)
{
    size_t n, at = i;
    const once_effect_ops *const *effects = once_effect_list(&n);
    once__handler *handler = out;
    const once_effect_ops *chosen = handler ? handler->spec.effect : NULL, *of = NULL;
    if (i < n) {
        of = effects[i];
        at = 0;
    } else {
        at = i - n + 1;
        if (chosen && at < chosen->n_fields) of = chosen;
        else if (chosen) at -= chosen->n_fields - 1;
        for (size_t k = 0; k < n && !of; k++) {
            if (effects[k] == chosen) continue;
            if (at < effects[k]->n_fields) of = effects[k];
            else at -= effects[k]->n_fields - 1;
        }
    }
    if (!of) return NULL;
    if (handler) *place = of == chosen ? handler->own : NULL;
    return &of->fields[at];
}

const once_config_section once__handler_section = {
    .name = "a handler",
    .title = "Handler",
    .text = "What happens to a message: exactly one effect (`sql`, `exec`, `callback` or `dead`), and the settings "
            "that differ from the pipeline.\n"
            "`sql` is atomic: effect and outcome commit in one transaction. `exec`, `callback` and `sql` with `url` "
            "run outside of the store,\n"
            "between two transactions, and are therefore fenced: no message is lost, every attempt has the same "
            "idempotency key and a higher\n"
            "attempt number, and an attempt with an unknown outcome is held or repeated, depending on `unknown`. `once "
            "check` prints the mode of\n"
            "each handler.",
    .example = "handlers:\n"
               "  payment.received:\n"
               "    sql:\n"
               "      - INSERT INTO payments(id, amount) VALUES (:payment_id, :amount)\n"
               "    already: [payments.id]\n"
               "    retry: {attempts: 3}\n"
               "  payment.requested:\n"
               "    exec: [./charge, \"--order=${/order_id}\"]\n"
               "    env: {API_TOKEN: \"env:API_TOKEN\", REGION: eu}\n"
               "    timeout: 30s\n"
               "    unknown: retry\n"
               "  payment.exported:\n"
               "    exec: [python3, export.py]\n"
               "    mode: stream\n"
               "    window: 256\n"
               "    natural: true\n"
               "  \"*\": {dead: unknown type}\n",
    .fields = handler_fields,
    .n = COUNT(handler_fields),
    .brought = field_of_effect,
    .outer = &once__pipeline_section,
};

/* --- pipeline ----------------------------------------------------------------------------------------------------- */

static const once_config_word ack_words[] = {{"after_effect", NULL}, {"after_accept", NULL}, {NULL, NULL}};

static const once_config_field pipeline_fields[] = {
    {.name = "consumer",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once_config_pipeline, spec.consumer),
     .shape = "name, 1 to 200 bytes",
     .example = "payments",
     .text = "The name of this consumer. Every key is remembered under it. Consumers do not see each other's keys, so "
             "several may read one source and share one store."},
    {.name = "tenant",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_template,
     ONCE_CONFIG_AT(once_config_pipeline, spec.tenant),
     .shape = "template",
     .example = "\"${header:tenant}\"",
     .standard_text = "none",
     .text = "Separates keys by tenant: tenants do not see each other's keys."},
    {.name = "store",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = once__read_store,
     ONCE_CONFIG_AT(once_config_pipeline, spec.store_url),
     .shape = "`sqlite:PATH`, `postgres://...`, `redis://...` or `memory`",
     .example = "sqlite:payments.db",
     .text = "Where handled messages are remembered. The path is relative to the current directory. "
             "`postgres://host/database` is a libpq URL; the tables are in the schema named by `?schema=NAME`, else in "
             "the first schema of search_path that has them, else they are created in its first schema. "
             "`redis://HOST:PORT/DB?password=env:NAME` must be durable (`appendonly yes`, `appendfsync always`), see "
             "redis.md. `memory` keeps nothing."},
    {.name = "store_id",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_store_id,
     .shape = "16 hex digits, as `once check` prints them",
     .example = "\"0123456789abcdef\"",
     .standard_text = "remembered in a state folder",
     .text = "The store that this pipeline must use. If it finds an empty or different store instead of the one it "
             "used before, it refuses to run (exit status 4), because every message would be new there. Without "
             "`store_id` the store is remembered in a file in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/once` or "
             "`~/.local/state/once`, under the consumer with the name of this file, and under the consumer with the "
             "location of the store. Set it where no such folder survives, as in a container. `once check --new-store` "
             "accepts another store, see guarantees.md."},
    {.name = "source",
     .type = ONCE_CONFIG_SECTION,
     .required = true,
     ONCE_CONFIG_AT(once_config_pipeline, source),
     .scope = &once_source_section,
     .example = "{file: {path: payments.ndjson}}",
     .text = "Where messages come from."},
    {.name = "key",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_varying,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.key),
     .shape = "template",
     .example = "\"${/payment_id}\"",
     .standard_text = "required here or in every handler",
     .text = "What makes two messages the same. A message without such a field becomes a dead letter."},
    {.name = "fingerprint",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_fingerprint,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.fingerprint),
     .shape = "`body`, `none` or list of pointers",
     .standard = "body",
     .text = "What must not change under one key. The same key with another fingerprint is a conflict and becomes a "
             "dead letter that names the fields that differ (of up to 16). There is one exception: while every attempt "
             "at the key was released or retried, so that it had no effect, a corrected message replaces the earlier "
             "one, once, and the earlier one becomes the dead letter. White space, the order of members and the "
             "spelling of numbers do not matter."},
    {.name = "idempotency_salt",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_salt,
     .shape = "`env:NAME` or `file:PATH`",
     .example = "env:ONCE_SALT",
     .standard_text = "none",
     .text =
         "A secret of at least 16 bytes that makes idempotency keys unguessable; read at the start and never shown. "
         "Another salt changes every key, so a change is refused until it is confirmed; see idempotency-keys.md."},
    {.name = "remember",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.remember_ms),
     .min = 1,
     .max = ONCE_FOREVER,
     .standard = "7d",
     .text = "How long a handled message is remembered. An older message becomes a dead letter instead of a second "
             "effect."},
    {.name = "ack",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, ack),
     .words = ack_words,
     .standard = "after_effect",
     .text = "When the message is acked to the source: `after_effect`, or `after_accept`: as soon as the store has the "
             "message (an inbox). Messages then run from the store, in no particular order unless `order` is set."},
    {.name = "time",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_time,
     ONCE_CONFIG_AT(once_config_pipeline, spec.time),
     .shape = "template, one placeholder",
     .example = "\"${/sent_at}\"",
     .standard_text = "the source's, if it has one",
     .scope = &time_section,
     .text = "When the message was sent: RFC 3339, or milliseconds since 1970; for other units write a map."},
    {.name = "type",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_varying,
     ONCE_CONFIG_AT(once_config_pipeline, spec.type),
     .shape = "template",
     .example = "\"${/type}\"",
     .standard_text = "none",
     .text = "The type that selects one of `handlers`."},
    {.name = "handlers",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_node,
     ONCE_CONFIG_AT(once_config_pipeline, handlers),
     .shape = "map by type",
     .scope = &once__handler_section,
     .example = "{payment.received: {sql: [...]}}",
     .text =
         "A handler for each type; `\"*\"` handles all others (without it they become dead letters). Needs `type`."},
    {.name = "handler",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_node,
     ONCE_CONFIG_AT(once_config_pipeline, handler),
     .shape = "map",
     .scope = &once__handler_section,
     .example = "{sql: [...]}",
     .text = "One handler for every message; instead of `handlers`."},
    {.name = "operation",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.operation),
     .shape = "name, 1 to 200 bytes",
     .example = "payment",
     .standard_text = "each handler's own",
     .text = "One operation for all handlers, which then share their keys."},
    {.name = "lease",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.lease_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "30s",
     .text = "How long a claim lasts without an extension by its worker, which extends it while an effect runs. "
             "Effects outside of the store need at least 200ms, or 1s if the store is a server, because a shorter "
             "lease cannot be extended in time. The claims of a worker that was killed on the same machine end at "
             "once, unless its pipeline runs commands."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.timeout_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "10s",
     .text = "How long the effect of a message may take. After that a command is killed, and its outcome is unknown. "
             "SQL is rolled back, which counts as a failure of that message, and it is retried; in a `postgres:` store "
             "only the server's own `statement_timeout` does that. `init` has the same limit."},
    {.name = "natural",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.natural),
     .standard = "false",
     .text = "The effects are idempotent by nature, so nothing is remembered after success, and every delivery runs. "
             "With `version` the version of the lane is remembered: an older one is stale, an equal one runs again."},
    {.name = "unknown",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, common.unknown),
     .words = unknown_words,
     .standard = "hold",
     .text = "What happens to an attempt of `exec`, `callback` or `sql` with `url` whose outcome is unknown (killed, "
             "no answer, lease lost). `hold`: it waits for `once resolve`. `retry`: it runs again with the same "
             "idempotency key and counts as a failure. The default is `retry` for `natural` handlers."},
    {.name = "drain",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.drain_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "10s",
     .text = "After a stop: how long effects in flight may continue before they are killed or rolled back, and how "
             "long to wait for a server that does not answer. 0s: not at all."},
    {.name = "patience",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.patience_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "30s",
     .text = "How long a run with a finite source retries before it gives up, if the server of the store is away, its "
             "disk is full, or effects outside of the store cannot be started. Runs with other sources retry without "
             "limit, and fetch nothing while the store is away or full."},
    {.name = "retry",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.retry),
     .scope = &retry_section,
     .example = "{attempts: 12, backoff: 200ms..1m}",
     .text = "What happens after a failure that may pass."},
    {.name = "order",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_template,
     ONCE_CONFIG_AT(once_config_pipeline, spec.order),
     .shape = "template",
     .example = "\"${/order_id}\"",
     .standard_text = "none",
     .text =
         "The lane of a message. Messages of one lane run one at a time, in order, and wait behind one that failed."},
    {.name = "locks",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_locks,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.locks),
     .shape = "list of templates",
     .example = "[\"account/${/from}\", \"account/${/to}\"]",
     .standard_text = "none",
     .text = "Names for the rows that a message will update, for workers that update the same rows. A batch first "
             "locks all names of its messages in one fixed order, so that workers wait for each other instead of "
             "deadlocking; effects keep their order. For `sql` in a `postgres:` store; `sqlite:` has one writer at a "
             "time and locks nothing. All consumers of a store share these names. A field that a message does not have "
             "locks nothing. A batch ends before it exceeds 256 names."},
    {.name = "on_dead",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, on_dead),
     .words = on_dead_words,
     .standard = "continue",
     .text =
         "What a lane does after a dead letter. `continue`: it goes on with the next message. `block`: it waits until "
         "the letter is replayed or discarded, or its key forgotten. Letters of messages without a place in the lane "
         "(malformed, conflict, too old) block nothing. A letter of a message that waited in vain for a missing "
         "version (`gap`, `then: dead`) blocks the messages behind it, but not the missing ones. Needs `order`."},
    {.name = "version",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_version,
     ONCE_CONFIG_AT(once_config_pipeline, spec.version),
     .shape = "template, one placeholder",
     .example = "\"${/version}\"",
     .standard_text = "none",
     .scope = &version_section,
     .text = "The version of a message in its lane: an older version is stale, an equal one is a duplicate or a "
             "conflict, the next one runs. Needs `order`."},
    {.name = "gap",
     .type = ONCE_CONFIG_SECTION,
     .offset = 0,
     .scope = &gap_scope,
     .example = "{wait: 30s, then: dead}",
     .standard_text = "a jump runs",
     .text = "What happens when a version is missing. Needs `version`."},
    {.name = "init",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(once_config_pipeline, spec.init),
     .example = "CREATE TABLE IF NOT EXISTS ...",
     .standard_text = "none",
     .text = "SQL that runs at the start of each run, for demonstrations and tests: several statements, in a "
             "transaction of their own. `once check` runs it only if something that it creates is missing."},
    {.name = "batch",
     .type = ONCE_CONFIG_SECTION,
     .offset = 0,
     .scope = &batch_scope,
     .example = "{max: 1024, wait: 20ms}",
     .text = "How many messages share a transaction."},
    {.name = "workers",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_config_pipeline, spec.workers),
     .min = 1,
     .max = 1024,
     .standard = "4",
     .text = "How many processes of `exec`, threads of `callback`, or connections of `sql` with `url` one handler may "
             "have at a time."},
    {.name = "waiting_max",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_waiting_max,
     .shape = "integer, map or `none`",
     .example = "100000",
     .standard = "1000000",
     .scope = &waiting_max_section,
     .text = "How much may wait in the store; at this limit fetching pauses."},
    {.name = "message_max",
     .type = ONCE_CONFIG_SIZE,
     ONCE_CONFIG_AT(once_config_pipeline, spec.message_max),
     .min = 1,
     .max = INT64_C(1) << 30,
     .standard = "1MiB",
     .text = "The largest message. A larger one becomes a dead letter that keeps only its first `message_max` bytes "
             "and cannot be replayed."},
    {.name = "result_max",
     .type = ONCE_CONFIG_SIZE,
     ONCE_CONFIG_AT(once_config_pipeline, spec.result_max),
     .min = 0,
     .max = 16 << 20,
     .standard = "64KiB",
     .text = "How much of an effect's result is kept for duplicates."},
    LATER_FIELD("sinks", "write to a table of your own in 'sql'"),
    LATER_FIELD("preset", "write 'key' and 'type' yourself"),
    LATER_FIELD("saga", "remove it"),
    LATER_FIELD("sagas", "remove it"),
    LATER_FIELD("admin", "remove it"),
};

const once_config_section once__pipeline_section = {
    .name = "a pipeline",
    .title = "Pipeline",
    .text = "The fields at the top of the file.",
    .example = "consumer: payments\n"
               "store: sqlite:payments.db\n"
               "source:\n"
               "  file: {path: payments.ndjson}\n"
               "key: \"${/payment_id}\"\n"
               "type: \"${/type}\"\n"
               "handlers:\n"
               "  payment.received:\n"
               "    sql:\n"
               "      - INSERT INTO payments(id, order_id, amount) VALUES (:payment_id, :order_id, :amount)\n"
               "      - UPDATE orders SET status = 'paid' WHERE id = :order_id\n"
               "  \"*\": {dead: unknown type}\n"
               "retry: {attempts: 12, backoff: 200ms..1m}\n",
    .fields = pipeline_fields,
    .n = COUNT(pipeline_fields),
};
