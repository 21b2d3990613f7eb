/* Lanes: `version`, `gap` and `on_dead`. */
#include "runtime/config_tables.h"

#include "base/banned.h"

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
     .read = once__read_single,
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

const once_config_section once__version_section = {
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

bool once__read_version(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return node->kind == ONCE_NODE_MAP ? once_config_read(config, &once__version_section, node, out)
                                       : once__read_single(config, field, node, out);
}

const once_config_word once__on_dead_words[] = {
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

const once_config_section once__gap_section = {
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
