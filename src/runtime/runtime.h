/* What the files of the runtime share: a loaded pipeline, and its parts when they are open. */
#ifndef ONCE_RUNTIME_RUNTIME_H
#define ONCE_RUNTIME_RUNTIME_H

#include <stdatomic.h>

#include "base/arena.h"
#include "core/spec.h"
#include "effect/effect.h"
#include "effect/hands.h"
#include "once/pipeline.h"
#include "source/source.h"
#include "store/store.h"

struct once_pipeline {
    once_arena arena; /* the spec lives in it */
    once_spec *spec;
    char *store_url;
    const once_env *env;
    once_hands_callback *callbacks; /* registered by the program; names are malloc'd */
    size_t n_callbacks;
    atomic_bool stop;
};

/* The parts of a pipeline that is about to run or to be checked. */
typedef struct once_parts {
    once_store *store;
    once_effects *effects;
    once_hands *hands; /* NULL: no effect is outside of the store */
    once_source *source;
} once_parts;

/* Opens store, effects, hands and source in this order; on failure nothing is left open. `create`: make a store that is missing, and run
 * the `init` script. */
int once__parts_open(once_pipeline *pipeline, bool create, once_parts *out, once_error *err);
void once__parts_close(once_parts *parts);

/* What the store remembers of the consumer between runs: how keys are made, and whether the last run ended cleanly. */
typedef enum once_scope_check {
    ONCE_SCOPE_LOOK,   /* a change is refused, nothing is written */
    ONCE_SCOPE_KEEP,   /* a change is refused, what is new is remembered */
    ONCE_SCOPE_CONFIRM /* a change is remembered */
} once_scope_check;

int once__memory_check_scope(once_pipeline *pipeline, once_store *store, once_scope_check how, once_error *err);
int once__memory_run_begins(once_pipeline *pipeline, once_store *store, uint64_t run, bool *unclean, once_error *err);
/* Takes the cursor of the source, where the pipeline keeps one: `name` is the fact that holds it. */
int once__memory_take_cursor(once_pipeline *pipeline, const once_parts *parts, char name[64], once_error *err);
int once__memory_run_ended(once_pipeline *pipeline, once_store *store, uint64_t run, once_error *err);

#endif
