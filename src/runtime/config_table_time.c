/* `time`: when a message was sent, and in which unit. */
#include "runtime/config_tables.h"

#include "base/banned.h"

static const once_config_word time_words[] = {[ONCE_UNIT_MS] = {"ms", NULL},
                                              [ONCE_UNIT_S] = {"s", NULL},
                                              [ONCE_UNIT_US] = {"us", NULL},
                                              [ONCE_UNIT_NS] = {"ns", NULL},
                                              {NULL, NULL}};

static const once_config_field time_fields[] = {
    {.name = "from",
     .type = ONCE_CONFIG_CUSTOM,
     .required = true,
     .read = once__read_single,
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
    {.name = "optional",
     .type = ONCE_CONFIG_BOOL,
     ONCE_CONFIG_AT(once_config_pipeline, spec.time_optional),
     .standard = "false",
     .text =
         "A message without it is no dead letter: it has the source's time, or none, and then it is never too old."},
};

const once_config_section once__time_section = {
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

bool once__read_time(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return node->kind == ONCE_NODE_MAP ? once_config_read(config, &once__time_section, node, out)
                                       : once__read_single(config, field, node, out);
}
