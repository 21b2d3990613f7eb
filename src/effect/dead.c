/* The effect `dead`: every message becomes a dead letter, with the reason in the pipeline file. */
#include "effect/effect.h"

#include "base/banned.h"

typedef struct dead {
    once_bytes reason;
} dead;

static const once_config_field fields[] = {
    {.name = "dead",
     .type = ONCE_CONFIG_STRING,
     ONCE_CONFIG_AT(dead, reason),
     .max = 400,
     .example = "unknown type",
     .text = "Effect: a dead letter with this reason."},
};

static const once_effect_misfit misfits[] = {
    {"already", "has no meaning with 'dead'"},
    {"rejected", "has no meaning with 'dead'"},
    {NULL, NULL},
};

static void conclude(once_handler_spec *handler) { handler->dead_reason = ((const dead *)handler->own)->reason; }

const once_effect_ops once__effect_dead = {
    .name = "dead",
    .summary = "no effect: every message becomes a dead letter",
    .fields = fields,
    .n_fields = sizeof fields / sizeof *fields,
    .size = sizeof(dead),
    .misfits = misfits,
    .conclude = conclude,
};
