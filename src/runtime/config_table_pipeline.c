/* The fields at the top of a pipeline file. */
#include "runtime/config.h"
#include "runtime/config_preset.h"
#include "runtime/config_tables.h"
#include "source/source.h"
#include "store/store.h"

#include "base/banned.h"

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
     .read = once__read_template,
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
     .section = &once_source_section,
     .example = "{file: {path: payments.ndjson}}",
     .text = "Where messages come from."},
    {.name = "preset",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, preset),
     .words = once__preset_words,
     .example = "cloudevents",
     .standard_text = "none",
     .text = "Defaults for messages of a known form; see [Presets](#presets). A field that the file has counts instead "
             "of the preset's. `once check` prints what the preset sets."},
    {.name = "key",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_varying,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.key),
     .shape = "template",
     .example = "\"${/payment_id}\"",
     .standard_text = "required here or in every handler",
     .text =
         "What makes two messages the same. A message in which one of its fields is missing becomes a dead letter."},
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
             "spelling of numbers do not matter. A pointer may go into a text: `json:/Message:/amount`."},
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
     .text = "When the message is acked to the source. `after_effect`: when it has been handled. `after_accept`: as "
             "soon as the store has the message (an inbox). Messages then run from the store, in no particular order"
             " unless `order` is set."},
    {.name = "time",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_time,
     ONCE_CONFIG_AT(once_config_pipeline, spec.time),
     .shape = "template, one placeholder",
     .example = "\"${/sent_at}\"",
     .standard_text = "the source's, if it has one",
     .section = &once__time_section,
     .text = "When the message was sent: RFC 3339, or milliseconds since 1970; for other units write a map."},
    {.name = "type",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_varying,
     ONCE_CONFIG_AT(once_config_pipeline, spec.type),
     .shape = "template",
     .example = "\"${/type}\"",
     .standard_text = "none",
     .text = "The type that selects one of `handlers`."},
    {.name = "handlers",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_node,
     ONCE_CONFIG_AT(once_config_pipeline, handlers),
     .shape = "map by type",
     .section = &once__handler_section,
     .example = "{payment.received: {sql: [...]}}",
     .text =
         "A handler for each type; `\"*\"` handles all others (without it they become dead letters). Needs `type`."},
    {.name = "handler",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_node,
     ONCE_CONFIG_AT(once_config_pipeline, handler),
     .shape = "map",
     .section = &once__handler_section,
     .example = "{sql: [...]}",
     .text = "One handler for every message; instead of `handlers`."},
    {.name = "operation",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__config_read_name,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.operation),
     .shape = "name, 1 to 200 bytes",
     .example = "payment",
     .standard_text = "each handler's own",
     .text = "One operation for all handlers, which then share their keys, and wait for each other when messages come "
             "from the "
             "store: while one of them has no free slot, none of them gets a message that waits there."},
    {.name = "lease",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.lease_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "30s",
     .text = "How long a claim lasts unless its worker extends it, which it does while an effect runs. Effects "
             "outside of the store need at least 200ms, or 1s if the store is a server, because a shorter lease "
             "cannot be extended in time. If a worker is killed and another one starts on the same host, the claims "
             "of the first end at once, unless its pipeline runs commands."},
    {.name = "timeout",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.timeout_ms),
     .min = 1,
     .max = DAY_MS,
     .standard = "10s",
     .text = "How long the effect of a message may take. After that a command is killed, and its outcome is unknown."
             " SQL is rolled back; this counts as a failure of that message, which is retried. In a `postgres:` "
             "store only the server's own `statement_timeout` does that. `init` has the same limit."},
    {.name = "natural",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.natural),
     .standard = "false",
     .text = "The effects are idempotent by nature, so nothing is remembered after success, and every delivery runs. "
             "With `version` the version of the lane is remembered: an older one is stale, an equal one runs again. "
             "Without `order`, the effect of a `callback` or of `sql` with `url` runs without a claim, unless unknowns "
             "are held (`unknown`): nothing is written while it runs, and if its partition or queue goes to another "
             "worker meanwhile, both may run it at the same time."},
    {.name = "unknown",
     .type = ONCE_CONFIG_WORD,
     ONCE_CONFIG_AT(once_config_pipeline, common.unknown),
     .words = once__unknown_words,
     .standard = "hold",
     .text = "What happens to an attempt of `exec`, `http`, `callback` or `sql` with `url` whose outcome is unknown "
             "(killed, "
             "no answer, lease lost). `hold`: it waits for `once resolve`. `retry`: it runs again with the same "
             "idempotency key and counts as a failure. The default is `retry` for `natural` handlers."},
    {.name = "drain",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.drain_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "10s",
     .text = "After a stop: how long effects in flight may continue before they are killed or rolled back, and how "
             "long the run waits for a server that does not answer. 0s: neither is waited for."},
    {.name = "patience",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_config_pipeline, spec.patience_ms),
     .min = 0,
     .max = DAY_MS,
     .standard = "30s",
     .text = "How long a run with a finite source keeps trying before it gives up, if the server of the store is "
             "away, its disk is full, or only messages of paused handlers are left; handlers that are paused by their "
             "`breaker` have at least as long as all their retries would take (`retry`). Runs with other sources try "
             "without limit, and fetch nothing while the store is away or full."},
    {.name = "retry",
     .type = ONCE_CONFIG_SECTION,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.retry),
     .section = &once__retry_section,
     .example = "{attempts: 12, backoff: 200ms..1m}",
     .text = "What happens after a failure that may pass."},
    {.name = "breaker",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_breaker,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.gate.breaker),
     .shape = "map, `on` or `off`",
     .section = &once__breaker_section,
     .example = "off",
     .standard = "on",
     .text = "When so many effects outside of the store fail, their handler is held up and probed."},
    {.name = "dead_limit",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_dead_limit,
     ONCE_CONFIG_AT(once_config_pipeline, common.spec.gate.dead_share),
     .shape = "1% to 100%, or `off`",
     .example = "off",
     .standard = "50%",
     .text = "When so many of the last 200 messages of a handler become dead letters for one reason (a misspelt field, "
             "a missing column), the handler is at fault, and not the messages: it is held up and probed, as with "
             "`breaker`, and no more of them are buried for that reason. Conflicts, messages that are too old or have "
             "no key, and unknowns (also those of a `then` that fails) do not count. Reasons are compared without "
             "numbers and quoted values."},
    {.name = "order",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_template,
     ONCE_CONFIG_AT(once_config_pipeline, spec.order),
     .shape = "template",
     .example = "\"${/order_id}\"",
     .standard_text = "none; for a FIFO queue of SQS its group",
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
     .words = once__on_dead_words,
     .standard = "continue",
     .text =
         "What a lane does after a dead letter. `continue`: it goes on with the next message. `block`: it waits until "
         "the letter is replayed or discarded, or its key forgotten. Letters of messages without a place in the lane "
         "(malformed, conflict, too old) block nothing. A letter of a message that waited in vain for a missing "
         "version (`gap`, `then: dead`) blocks the messages behind it, but not the missing ones. Needs `order`."},
    {.name = "version",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_version,
     ONCE_CONFIG_AT(once_config_pipeline, spec.version),
     .shape = "template, one placeholder",
     .example = "\"${/version}\"",
     .standard_text = "none",
     .section = &once__version_section,
     .text = "The version of a message in its lane: an older version is stale, an equal one is a duplicate or a "
             "conflict, the next one runs. Needs `order`."},
    {.name = "gap",
     .type = ONCE_CONFIG_SECTION,
     .offset = 0,
     .section = &once__gap_section,
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
     .section = &once__batch_section,
     .example = "{max: 1024, wait: 20ms}",
     .text = "How many messages share a transaction."},
    {.name = "workers",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_config_pipeline, spec.workers),
     .min = 1,
     .max = 1024,
     .standard = "4",
     .text = "How many effects of one handler one run may have at a time: processes of `exec`, threads of "
             "`callback`, connections of `sql` with `url` (not the number of workers that share a store). With "
             "`mode: stream`, `window` and `processes` decide instead."},
    {.name = "waiting_max",
     .type = ONCE_CONFIG_CUSTOM,
     .read = once__read_waiting_max,
     .shape = "integer, map or `none`",
     .example = "100000",
     .standard = "1000000",
     .section = &once__waiting_max_section,
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
