/* The tables of the pipeline file: every field is a row, with its type, limits, default, example and text. A new field
 * is a new row in the file of its map; parsing, checks, help and docs/configuration.md follow.
 *
 *   config_table_pipeline.c  the fields at the top
 *   config_table_handler.c   a handler, and where the fields of effects come in (effect/effect.h)
 *   config_table_retry.c     retry
 *   config_table_lane.c      version, gap, on_dead
 *   config_table_time.c      time
 *   config_table_batch.c     batch, waiting_max
 *   config_table_gate.c      breaker, dead_limit, rate
 * Sources and effects have tables of their own. */
#ifndef ONCE_RUNTIME_CONFIG_TABLES_H
#define ONCE_RUNTIME_CONFIG_TABLES_H

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "runtime/config_internal.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define DAY_MS INT64_C(86400000)

/* A field that is announced but not built yet: it is refused by name, with what to do instead. */
#define LATER_FIELD(field, what)                                                                                       \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .instead = what                                                      \
    }
#define LATER_EFFECT(field)                                                                                            \
    {                                                                                                                  \
        .name = field, .type = ONCE_CONFIG_LATER, .plural = "effects", .instead = "use 'exec' or 'sql'"                \
    }

extern const once_config_section once__retry_section, once__version_section, once__time_section, once__gap_section,
    once__batch_section, once__waiting_max_section, once__breaker_section;
extern const once_config_word once__on_dead_words[], once__unknown_words[];

/* Readers, as once_config_field has them. config_readers.c: */
bool once__read_template(once_config *config, const once_config_field *field, const once_node *node, void *out);
/* a template that differs from message to message */
bool once__read_varying(once_config *config, const once_config_field *field, const once_node *node, void *out);
/* a template of one placeholder, because its value is read as a number or a time */
bool once__read_single(once_config *config, const once_config_field *field, const once_node *node, void *out);
/* the node itself, to be read later */
bool once__read_node(once_config *config, const once_config_field *field, const once_node *node, void *out);
/* of the maps above, which may also be written in a short form */
bool once__read_version(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_time(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_waiting_max(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_breaker(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_dead_limit(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_rate(once_config *config, const once_config_field *field, const once_node *node, void *out);

#endif
