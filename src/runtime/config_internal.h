/* Between config.c (loading, rules of the pipeline), config_handler.c (handlers, rules of each), config_exec.c (commands) and
 * config_tables.c (the tables, readers of single fields). */
#ifndef ONCE_RUNTIME_CONFIG_INTERNAL_H
#define ONCE_RUNTIME_CONFIG_INTERNAL_H

#include <string.h>

#include "base/config.h"
#include "core/spec.h"

/* What a handler's map is read into. */
typedef struct once__handler {
    once_handler_spec spec;
    int mode, unknown; /* positions in their words */
} once__handler;

/* What the pipeline's map is read into. */
typedef struct once__pipeline {
    once_spec spec;
    once__handler common; /* what handlers inherit */
    int ack, gap_then, on_dead, time_unit; /* positions in their words */
    const once_node *handler, *handlers;
} once__pipeline;

enum { ONCE__ACK_EFFECT, ONCE__ACK_ACCEPTED };
enum { ONCE__GAP_DEAD, ONCE__GAP_RUN };
enum { ONCE__DEAD_CONTINUE, ONCE__DEAD_BLOCK };
enum { ONCE__MODE_MESSAGE, ONCE__MODE_STREAM };
enum { ONCE__UNKNOWN_HOLD, ONCE__UNKNOWN_RETRY };

extern const once_config_scope once__pipeline_scope;
extern const once_config_scope once__handler_scope;

/* A printable name of 1..200 bytes; a mistake and false otherwise. */
bool once__config_name(once_config *config, const char *what, int line, once_bytes text);

/* NULL after a mistake. */
const once_template *once__config_template(once_config *config, const once_config_field *field, const once_node *node);

/* Whether a reference (env:NAME, file:PATH) is complete; otherwise a mistake that does not show it, about `what`. */
bool once__config_reference(once_config *config, const char *what, const once_node *node);

/* Readers of `exec`, `env` and `exit`, into a once__handler. */
once_config_reader once__config_exec, once__config_env, once__config_exit;

/* `exec` where one process serves many messages. */
bool once__config_check_arguments(once_config *config, const once_node *exec, const once_exec_spec *spec); /* config_arguments.c */
void once__config_check_stream(once_config *config, const once_node *exec, const once_exec_spec *spec);

/* The section of the reference about commands. */
extern const char once__config_commands[];

/* Fills spec.handlers from `handler` or `handlers`. */
void once__config_handlers(once_config *config, const once_node *root, once__pipeline *pipeline);

static inline bool once__is_text(once_bytes text, const char *word) { return once_bytes_equal(text, (once_bytes){word, strlen(word)}); }

static inline int once__line_of(const once_node *map, const char *name)
{
    const once_node *node = once_node_member(map, name);
    return node ? node->line : map->line;
}

#endif
