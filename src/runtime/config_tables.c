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
     .text = "How many failures make a dead letter. 1: no second try. With `for` and without `attempts` their number "
             "does not matter."},
    {.name = "for",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_retry, for_ms),
     .min = 1,
     .max = ONCE_CONFIG_LONGEST_MS,
     .example = "1h",
     .standard_text = "any time",
     .text =
         "A failure also makes a dead letter when the first one is older than this; whichever of the two comes first."},
    {.name = "backoff",
     .type = ONCE_CONFIG_RANGE,
     ONCE_CONFIG_AT(once_retry, min_ms),
     .min = 1,
     .max = 30 * DAY_MS,
     .standard = "200ms..1m",
     .text = "The wait before the next try: random, below a limit that begins with the first duration and doubles up "
             "to the second. The last"
             " two waits make up for short ones before them."},
    {.name = "on",
     .type = ONCE_CONFIG_STRINGS,
     ONCE_CONFIG_AT(once_retry, on),
     .count = offsetof(once_retry, n_on),
     .max = 400,
     .example = "[SQLITE_CONSTRAINT_FOREIGNKEY]",
     .standard_text = "none",
     .text = "Faults of a statement that may pass: names of constraints, extended result codes of SQLite, SQLSTATEs of "
             "PostgreSQL."},
};

static const once_config_section retry_section = {
    .name = "'retry'",
    .title = "retry",
    .text = "What happens after a passing failure. Failures are counted across restarts, and their time is measured by "
            "the store's clock.\n"
            "With the defaults the twelfth failure comes about two minutes after the first, and never within 74 "
            "seconds: an outage of a minute\n"
            "makes no dead letter. A replayed dead letter begins anew.",
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
     .standard_text = "the version that is seen first",
     .text =
         "The version that every lane begins with. With `gap` a lane waits for it; a lower version is a dead letter."},
};

static const once_config_section version_section = {
    .name = "'version'",
    .title = "version",
    .text = "The version of a message in its lane: a template, or a map with that template in `from`. The lane keeps "
            "the highest version that\n"
            "settled, who settled it and with which content.\n"
            "\n"
            "An older version is stale: recorded, not run. A higher version runs; with `gap` only the next one does, "
            "and those further ahead\n"
            "wait for the missing ones.\n"
            "\n"
            "An equal version under another key waits until the one that came first has ended. With the same operation "
            "and the same content it is a\n"
            "duplicate, recorded as `already` under its own key; `once explain` names the key that settled the "
            "version. With another\n"
            "operation or other content it is a conflict: a dead letter that names the version and that key. What the "
            "content is,\n"
            "`fingerprint` says: with `none` the operation alone is compared. Where the content of the first one is "
            "not known, because its\n"
            "handler has `fingerprint: none` and this one's has not, or because an older once wrote it, that is a "
            "conflict too.",
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
     .text = "What a number counts. It may have a fraction; what is below a millisecond is cut."},
};

static const once_config_section time_section = {
    .name = "'time'",
    .title = "time",
    .text = "When the message was sent: a template, or a map with that template in `from`. In the years 1 to 9999; "
            "anything else is a dead letter.\n"
            "\n"
            "A message that was sent before the time that is remembered is a dead letter, too (`too_old`). Its reason "
            "shows the time that was read, and\n"
            "what it was read from; where the number would be a likely date in another unit, it says so.",
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
     .text = "How long a lane waits for the versions that are missing before its next message. Only time in which a "
             "run of this consumer is"
             " alive counts, to within a few seconds for each stop; what was waited is kept in the store."},
    {.name = "then",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, gap_then),
     .words = gap_words,
     .standard = "dead",
     .text = "When they did not come: the message is a dead letter that names the missing versions, or it runs all the "
             "same. A dead letter"
             " that is replayed does not wait again."},
};

static const once_config_section gap_scope = {
    .name = "'gap'",
    .title = "gap",
    .text = "What to do when a version is missing. Without `gap` a jump runs at once. Needs `version`.\n"
            "\n"
            "The wait belongs to the lane, not to each message in it. When it is over, the missing versions are given "
            "up once: the messages\n"
            "that follow each other run on, and a further hole is waited for anew. A version that was given up and "
            "comes after all is stale\n"
            "when a newer one has settled; until then it runs, and the lane goes on from there: those further ahead "
            "wait again. So a message\n"
            "with a wrong, high version does not end its lane: it becomes a dead letter, and when that is discarded "
            "its version does not\n"
            "count. A version that became a dead letter has come, and is not waited for. The summary of a run and "
            "`once status` count the\n"
            "versions that were given up (`given_up`), of one gap 1000 at most.",
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
     .text = "Messages that share one transaction, at most."},
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
    .text = "Durability is paid per batch: one transaction, one sync.",
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
     .text = "Of their bodies; in a `redis:` store of all that is kept of a message, because that is its memory."},
};

static const once_config_section waiting_max_section = {
    .name = "'waiting_max'",
    .title = "waiting_max",
    .text = "How much may wait in the store for this consumer: messages that it keeps with their bodies, because they "
            "are in the inbox, behind\n"
            "others in their lane, or to be tried again. Above it nothing more is fetched, and the source keeps the "
            "rest, until a tenth of it is\n"
            "free again; what waits is worked on meanwhile. The log says so (`fetch_paused`, `fetch_resumed`), and so "
            "does the line of a run. What was\n"
            "fetched before is still accepted: up to three batches of each worker may come on top.\n"
            "\n"
            "A number alone is that of messages. The defaults are meant never to be met by who has not set them. "
            "`none`: no bound; a handler that is down for days, or a lane that is "
            "blocked, then fills the\n"
            "disk of the store, which stops everybody who uses it. Where lanes wait for a missing version (`gap`), the "
            "missing one may be\n"
            "behind the bound; then the lanes go on when `gap.wait` is over, and a bound should be larger than what "
            "comes in that time.",
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
     .text = "The name under which its keys are remembered. Handlers that all say the same one share their keys."},
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
     .text = "Of `sql` in the store's database: names for what a message will touch."},
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
     .text = "The effect is idempotent by nature: nothing is remembered after success."},
    {.name = "unknown",
     .type = ONCE_CONFIG_WORD,
     INHERITED(once__handler, unknown),
     .words = unknown_words,
     .example = "retry",
     .text = "Of `exec`, `callback` and `sql` with `url`: what happens to a try whose end is not known."},
    {.name = "lease",
     .type = ONCE_CONFIG_DURATION,
     INHERITED(once__handler, spec.lease_ms),
     .min = 1,
     .max = DAY_MS,
     .example = "30s",
     .text = "How long a claim holds without news of its worker; see the pipeline's."},
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
     .text = "What happens after a passing failure; a part that is not said is the pipeline's."},
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
    .text = "What happens to a message: exactly one effect (`sql`, `exec`, `callback` or `dead`), and what differs "
            "from the pipeline.\n"
            "`sql` is atomic: effect and record are one transaction. `exec`, `callback` and `sql` with `url` are "
            "outside of the store, between\n"
            "two transactions, and therefore fenced: a message is never lost, every try has the same idempotency key "
            "and a higher attempt\n"
            "number, and a try whose end is not known is held or tried again, as `unknown` says. `once check` prints "
            "which it is.",
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
     .text = "Who consumes. Every key is remembered under this name; consumers do not see each other's, and may read "
             "one source into one store."},
    {.name = "tenant",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_template,
     ONCE_CONFIG_AT(once_config_pipeline, spec.tenant),
     .shape = "template",
     .example = "\"${header:tenant}\"",
     .standard_text = "none",
     .text = "Separates keys further: tenants do not see each other's."},
    {.name = "store",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = once__read_store,
     ONCE_CONFIG_AT(once_config_pipeline, spec.store_url),
     .shape = "`sqlite:PATH`, `postgres://...`, `redis://...` or `memory`",
     .example = "sqlite:payments.db",
     .text = "Where handled messages are remembered. The path is relative to the current directory. "
             "`postgres://host/database` is a "
             "URL as libpq knows it; the tables are in the schema that `?schema=NAME` names, else in the first one of "
             "search_path that has them, else they are made in its "
             "first. `redis://HOST:PORT/DB?password=env:NAME` "
             "must be durable (`appendonly yes`, `appendfsync always`), see redis.md. `memory` keeps nothing."},
    {.name = "store_id",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_store_id,
     .shape = "16 hex digits, as `once check` prints them",
     .example = "\"0123456789abcdef\"",
     .standard_text = "remembered in a state folder",
     .text = "Which store this must be. An empty or another one where one was known is refused (exit status 4): every "
             "message would be new there. "
             "What a pipeline has met is remembered in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/once` or "
             "`~/.local/state/once`, by its consumer with the name of "
             "this file, and by its consumer with the place of the store; say it here where no such folder is kept, as "
             "in a container. `once check "
             "--new-store` takes another store, see guarantees.md."},
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
     .standard_text = "said here or in every handler",
     .text = "What makes two messages the same. A missing field makes a dead letter."},
    {.name = "fingerprint",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_fingerprint,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.fingerprint),
     .shape = "`body`, `none` or list of pointers",
     .standard = "body",
     .text = "What must not change under one key: the same key with another fingerprint is a conflict and becomes a "
             "dead letter, "
             "which names the fields that differ (of up to 16). "
             "Only while every attempt at the key was released or retried, so that nothing was done, a corrected "
             "message takes its place, once, and "
             "the one before is the dead letter. "
             "White space, the order of members and the spelling of numbers do not matter."},
    {.name = "idempotency_salt",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_salt,
     .shape = "`env:NAME` or `file:PATH`",
     .example = "env:ONCE_SALT",
     .standard_text = "none",
     .text = "Where idempotency keys must not be guessable: at least 16 bytes that nobody else knows, read at the "
             "start and never shown. "
             "Another salt makes other keys for everything, so a change is refused until it is confirmed; see "
             "idempotency-keys.md."},
    {.name = "remember",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.remember_ms),
     .min = 1,
     .max = ONCE_FOREVER,
     .standard = "7d",
     .text = "How long a handled message is remembered. An older message is a dead letter instead of a second effect."},
    {.name = "ack",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, ack),
     .words = ack_words,
     .standard = "after_effect",
     .text = "When the source is told: after_effect, or after_accept: as soon as the store has the message (an inbox). "
             "The work is then done"
             " from the store, in no particular order unless `order` says one."},
    {.name = "time",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_time,
     ONCE_CONFIG_AT(once_config_pipeline, spec.time),
     .shape = "template, one placeholder",
     .example = "\"${/sent_at}\"",
     .standard_text = "the source's, if it has one",
     .scope = &time_section,
     .text = "When the message was sent: RFC 3339, or milliseconds since 1970; another unit is said in a map."},
    {.name = "type",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_varying,
     ONCE_CONFIG_AT(once_config_pipeline, spec.type),
     .shape = "template",
     .example = "\"${/type}\"",
     .standard_text = "none",
     .text = "What chooses among `handlers`."},
    {.name = "handlers",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_node,
     ONCE_CONFIG_AT(once_config_pipeline, handlers),
     .shape = "map by type",
     .scope = &once__handler_section,
     .example = "{payment.received: {sql: [...]}}",
     .text = "A handler for each type; `\"*\"` is for all others (without it they are dead letters). Needs `type`."},
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
     .text = "One name for the keys of all handlers: they then share their keys."},
    {.name = "lease",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.lease_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "30s",
     .text = "How long a claim holds without news of its worker. It is extended while an effect runs. For effects "
             "outside of the store"
             " at least 200ms, and 1s where the store is a server: in a shorter one there is no time to extend it."
             " A worker that was killed on the same machine is not waited for, unless its pipeline runs commands."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.timeout_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "10s",
     .text = "How long the effect of a message may take. Then a command is killed, and its end is not known. SQL is "
             "rolled back, which counts as"
             " a failure of that message, and it is tried again; in a `postgres:` store only the server's own "
             "`statement_timeout` does that."
             " `init` has the same time."},
    {.name = "natural",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.natural),
     .standard = "false",
     .text = "The effects are idempotent by nature: nothing is remembered after success, and every delivery runs. With "
             "`version` the lane's"
             " version is kept: an older one is stale, an equal one runs again."},
    {.name = "unknown",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, common.unknown),
     .words = unknown_words,
     .standard = "hold",
     .text = "What happens to a try of `exec` or `callback` whose end is not known (killed, no answer, lease lost): it "
             "is held for"
             " `once resolve`, or runs again with the same idempotency key, as a failure more. Where it is not said, "
             "`natural` ones run again."},
    {.name = "drain",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.drain_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "10s",
     .text = "Told to stop: how long effects in flight may go on before they are killed or rolled back, and how long a "
             "server that does not answer"
             " is waited for. 0s: not at all."},
    {.name = "patience",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.patience_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "30s",
     .text = "A store whose server is away or whose disk is full, or external effects that cannot be started: for how "
             "long a source that has an"
             " end tries again before it gives up. Others try for ever, and fetch nothing while the store is away or "
             "full."},
    {.name = "retry",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.retry),
     .scope = &retry_section,
     .example = "{attempts: 12, backoff: 200ms..1m}",
     .text = "What happens after a passing failure."},
    {.name = "order",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_template,
     ONCE_CONFIG_AT(once_config_pipeline, spec.order),
     .shape = "template",
     .example = "\"${/order_id}\"",
     .standard_text = "none",
     .text = "A lane: messages with the same value run one at a time, and wait behind one that failed."},
    {.name = "locks",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_locks,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.locks),
     .shape = "list of templates",
     .example = "[\"account/${/from}\", \"account/${/to}\"]",
     .standard_text = "none",
     .text = "Names for the rows that a message will update, where many workers update the same ones. A batch locks "
             "all names of its messages first, in"
             " one order, so that workers wait for each other and do not deadlock; effects stay in their order. For "
             "`sql` in a `postgres:` store; in"
             " `sqlite:` there is one writer at a time, so nothing needs to be locked. Equal names are equal for all "
             "consumers of a store. A field that"
             " a message does not have locks nothing. A batch ends before it has more than 256 names."},
    {.name = "on_dead",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, on_dead),
     .words = on_dead_words,
     .standard = "continue",
     .text = "What a lane does behind a dead letter: go on with the next message, or wait until the letter is replayed "
             "or discarded, or its"
             " key forgotten. Letters of messages that have no place in the lane (malformed, conflict, too old) hold "
             "nothing up; one that waited in vain for"
             " a missing version (`gap`, `then: dead`) has a place, and holds up those behind it, not those that were "
             "missing. Needs `order`."},
    {.name = "version",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_version,
     ONCE_CONFIG_AT(once_config_pipeline, spec.version),
     .shape = "template, one placeholder",
     .example = "\"${/version}\"",
     .standard_text = "none",
     .scope = &version_section,
     .text = "In the lane: an older version is stale, an equal one a duplicate or a conflict, the next one runs. Needs "
             "`order`."},
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
     .text = "SQL to run at the start of each run, for demonstrations and tests: several statements, in a transaction "
             "of its own."
             " `once check` runs it only when something that it makes is missing."},
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
     .text = "Processes of `exec`, threads of `callback`, or connections of `sql` with `url` that one handler may have "
             "at a time."},
    {.name = "waiting_max",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_waiting_max,
     .shape = "integer, map or `none`",
     .example = "100000",
     .standard = "1000000",
     .scope = &waiting_max_section,
     .text = "How much may wait in the store; above it nothing is fetched."},
    {.name = "message_max",
     .type = ONCE_CONFIG_SIZE,
     ONCE_CONFIG_AT(once_config_pipeline, spec.message_max),
     .min = 1,
     .max = INT64_C(1) << 30,
     .standard = "1MiB",
     .text = "The largest message; a larger one is a dead letter that keeps its first `message_max` bytes and cannot "
             "be replayed."},
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
