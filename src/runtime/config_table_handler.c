/* The fields of a handler: those that every handler has, then those of the effects. */
#include <assert.h>

#include "effect/effect.h"
#include "effect/then.h"
#include "runtime/config_tables.h"

#include "base/banned.h"

static const char as_pipeline[] = "as the pipeline's";

const once_config_word once__unknown_words[] = {
    [ONCE__UNKNOWN_HOLD] = {"hold", NULL}, [ONCE__UNKNOWN_RETRY] = {"retry", NULL}, {NULL, NULL}};

static bool read_then(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return once_then_read(config, field, node, &((once__handler *)out)->spec.then);
}

#define INHERITED(type, member) ONCE_CONFIG_AT(type, member), .standard_text = as_pipeline

static const once_config_field handler_fields[] = {
    {.name = "operation",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once__handler, spec.operation),
     .shape = "name, 1 to 200 bytes",
     .example = "payment",
     .standard_text = "the pipeline's, else the type, `*`, or `handler`",
     .text =
         "The name under which its keys are remembered. Handlers that set the same name share their keys. They also "
         "wait for each other when messages come from the store: while one of them has no free slot, none of them gets "
         "a message that waits there."},
    {.name = "key",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_varying,
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
     .words = once__unknown_words,
     .example = "retry",
     .text = "Only for `exec`, `http`, `callback` and `sql` with `url`: what happens to an attempt with an unknown "
             "outcome."},
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
     .section = &once__retry_section,
     .example = "{attempts: 3}",
     .text = "What happens after a failure that may pass; parts that are not set are the pipeline's."},
    {.name = "then",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_then,
     .shape = "a map with `sql`",
     .example = "{sql: [STATEMENT, ...]}",
     .standard_text = "nothing",
     .section = &once_then_section,
     .text =
         "For effects outside of the store: SQL in the store's own database that commits together with the outcome, "
         "when the effect is done."},
    {.name = "breaker",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_breaker,
     INHERITED(once__handler, spec.gate.breaker),
     .shape = "map, `on` or `off`",
     .section = &once__breaker_section,
     .example = "off",
     .text = "Only for effects outside of the store: when so many of them fail, the handler is held up and probed."},
    {.name = "dead_limit",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_dead_limit,
     INHERITED(once__handler, spec.gate.dead_share),
     .shape = "1% to 100%, or `off`",
     .example = "50%",
     .text = "When so many of its last 200 messages become dead letters for one reason, the handler is held up and "
             "probed."},
    {.name = "rate",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_rate,
     ONCE_CONFIG_AT(once__handler, spec.gate.rate),
     .shape = "number/s, number/m or number/h",
     .example = "100/s",
     .standard_text = "any",
     .text = "How many of its messages may begin, in each process that runs the pipeline. After a quiet time up to a "
             "second's worth begins at once. Replayed messages count, too."},
    {.name = "workers",
     .type = ONCE_CONFIG_INTEGER,
     INHERITED(once__handler, spec.slots),
     .min = 1,
     .max = 1024,
     .example = "8",
     .text = "How many effects of this handler one run may have under way at a time. Only for effects outside of the "
             "store, and not for those that have a `window` (`http`, `mode: stream`)."},
    LATER_EFFECT("forward"),
    LATER_FIELD("emit", "write to a table of your own in 'sql'"),
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
    assert(at < of->n_fields);
    if (handler) *place = of == chosen ? handler->own : NULL;
    return &of->fields[at];
}

const once_config_section once__handler_section = {
    .name = "a handler",
    .title = "Handler",
    .text =
        "What happens to a message: exactly one effect (`sql`, `exec`, `http`, `callback` or `dead`), and the settings "
        "that differ from the pipeline.\n"
        "`sql` is atomic: effect and outcome commit in one transaction. `exec`, `http`, `callback` and `sql` with "
        "`url` "
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
