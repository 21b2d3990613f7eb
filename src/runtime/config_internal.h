/* What the files of the configuration share: config.c loads a pipeline file and checks rules between its fields,
 * config_handler.c does the same for handlers, config_table_*.c are the tables (config_tables.h), config_store.c and
 * config_fingerprint.c read single fields. Fields of one effect are in the effect's own file (effect/effect.h). */
#ifndef ONCE_RUNTIME_CONFIG_INTERNAL_H
#define ONCE_RUNTIME_CONFIG_INTERNAL_H

#include "core/config_values.h"
#include "source/source.h"

/* What a handler's map is read into. */
typedef struct once__handler {
    once_handler_spec spec;
    void *own;   /* what the fields of its effect, spec.effect, are read into; NULL: it has none */
    int unknown; /* position in its words */
} once__handler;

/* What the pipeline's map is read into. */
typedef struct once_config_pipeline {
    once_spec spec;
    once_source_fields source;
    once__handler common;                          /* what handlers inherit */
    int ack, gap_then, on_dead, time_unit, preset; /* positions in their words */
    const once_node *handler, *handlers;
} once_config_pipeline;

enum { ONCE__ACK_EFFECT, ONCE__ACK_ACCEPTED };
enum { ONCE__GAP_DEAD, ONCE__GAP_RUN };
enum { ONCE__DEAD_CONTINUE, ONCE__DEAD_BLOCK };
enum { ONCE__UNKNOWN_HOLD, ONCE__UNKNOWN_RETRY };

extern const once_config_section once__pipeline_section;
extern const once_config_section once__handler_section;

/* Readers of fields, as once_config_field has them: config_store.c, config_fingerprint.c. */
bool once__read_store(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_salt(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_store_id(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_fingerprint(once_config *config, const once_config_field *field, const once_node *node, void *out);
bool once__read_locks(once_config *config, const once_config_field *field, const once_node *node, void *out);

/* Fills spec.handlers from `handler` or `handlers`. */
void once__config_handlers(once_config *config, const once_node *root, once_config_pipeline *pipeline);

static inline int once__line_of(const once_node *map, const char *name)
{
    const once_node *node = once_node_member(map, name);
    return node ? node->line : map->line;
}

#endif
