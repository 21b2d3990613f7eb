/* How much at a time: `batch` for a transaction, `waiting_max` for the store. */
#include <assert.h>

#include "runtime/config_tables.h"

#include "base/banned.h"

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

const once_config_section once__batch_section = {
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

const once_config_section once__waiting_max_section = {
    .name = "'waiting_max'",
    .title = "waiting_max",
    .text = "How much may wait in the store for this consumer: messages that the store keeps with their bodies, "
            "because they are in the inbox,\n"
            "behind others in their lane, or waiting for a retry. At the limit fetching pauses, and the source keeps "
            "the rest; the run goes on\n"
            "processing, and fetching resumes when a tenth of the limit is free. The log (`fetch_paused`, "
            "`fetch_resumed`) and the progress line\n"
            "of a run show it. Messages that a worker has fetched and whose handlers have no free slot count, too, "
            "because they may have to wait in\n"
            "the store. Messages fetched before are still accepted: up to three batches of each worker can "
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

bool once__read_waiting_max(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_waiting_size *most = &((once_config_pipeline *)out)->spec.waiting_max;
    if (node->kind == ONCE_NODE_MAP) return once_config_read(config, &once__waiting_max_section, node, most);
    if (node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "none")) {
        *most = (once_waiting_size){0};
        return true;
    }
    assert(strcmp(waiting_max_fields[0].name, "messages") == 0);
    const once_node nothing = {.kind = ONCE_NODE_MAP, .line = node->line};
    once_config_field messages = waiting_max_fields[0];
    messages.name = field->name;
    messages.example = field->example;
    return once_config_read(config, &once__waiting_max_section, &nothing, most) &&
           once_config_read_field(config, &messages, node, most);
}
