/* Between config.c (loading, rules between fields) and config_tables.c (the tables, readers of single fields). */
#ifndef ONCE_RUNTIME_CONFIG_INTERNAL_H
#define ONCE_RUNTIME_CONFIG_INTERNAL_H

#include "base/config.h"
#include "core/spec.h"

/* What the pipeline's map is read into. */
typedef struct once__pipeline {
    once_spec spec;
    once_handler_spec common; /* what handlers inherit */
    int ack, gap_then;        /* positions in their words */
    const once_node *handler, *handlers;
} once__pipeline;

enum { ONCE__ACK_EFFECT, ONCE__ACK_ACCEPTED };
enum { ONCE__GAP_DEAD, ONCE__GAP_RUN };

extern const once_config_scope once__pipeline_scope;
extern const once_config_scope once__handler_scope;

/* A printable name of 1..200 bytes; a mistake and false otherwise. */
bool once__config_name(once_config *config, const char *what, int line, once_bytes text);

#endif
