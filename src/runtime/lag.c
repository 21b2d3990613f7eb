/* Asks the broker how much of the source is left, for `once status`: of all workers together, whether one runs or
 * not. */
#include <assert.h>

#include "runtime/runtime.h"

#include "base/banned.h"

#define ANSWER_MS 2000

typedef struct visiting {
    once_lag_visit *visit;
    void *user;
} visiting;

static void on_left(void *user, const char *stream, int64_t left)
{
    const visiting *v = user;
    v->visit(v->user, stream, left);
}

int once_pipeline_lag(once_pipeline *pipeline, once_lag_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_lag needs a pipeline and a function for its streams");
    const once_source_kind *kind = pipeline->spec->source.kind;
    visiting v = {visit, user};
    once_source *source = NULL;
    if (kind->ops && !kind->ops->backlog)
        return once_fail(err, ONCE_E_UNSUPPORTED, "source '%s' has no broker that knows what is left", kind->name);
    int rc = once_source_open(pipeline->spec, pipeline->env, ONCE_OPEN_CHECK, (once_cancel){0}, &source, err);
    if (rc != ONCE_OK) return rc;
    if (source->ops->backlog) rc = source->ops->backlog(source, ANSWER_MS, on_left, &v, err);
    else rc = once_fail(err, ONCE_E_UNSUPPORTED, "source '%s' does not tell what is left", kind->name);
    source->ops->close(source);
    return rc;
}
