/* Asks the broker how much of the source is left, for `once status`: of all workers together, whether one runs or
 * not. If the store keeps how far the source was read, that counts. */
#include <assert.h>

#include "runtime/operate.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define ANSWER_MS 2000

/* A run of this process uses the same store, and must not wait for a broker that is slow. So the store is opened when
 * the source reads the first fact, and given back before the first visit, in which a caller may use it. */
typedef struct visiting {
    once_facts facts;
    once_pipeline *pipeline;
    once_backend *store; /* NULL: not open */
    once_lag_visit *visit;
    void *user;
} visiting;

static int get(const once_facts *facts, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
               once_error *err)
{
    visiting *v = (visiting *)facts;
    once_store_facts stored;
    const int rc = v->store ? ONCE_OK : once__operator_open(v->pipeline, &v->store, err);
    if (rc != ONCE_OK) return rc;
    once__store_facts_init(&stored, v->store, v->pipeline->spec->consumer);
    return stored.base.get(&stored.base, kind, name, out, arena, err);
}

static void give_back(visiting *v)
{
    if (v->store) once__operator_close(v->pipeline, v->store);
    v->store = NULL;
}

static void on_left(void *user, const char *stream, int64_t left)
{
    visiting *v = user;
    give_back(v);
    v->visit(v->user, stream, left);
}

int once_pipeline_lag(once_pipeline *pipeline, once_lag_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_lag needs a pipeline and a function for its streams");
    const once_source_kind *kind = pipeline->spec->source.kind;
    visiting v = {.facts = {.get = get}, .pipeline = pipeline, .visit = visit, .user = user};
    once_source *source = NULL;
    if (kind->ops && !kind->ops->backlog)
        return once_fail(err, ONCE_E_UNSUPPORTED, "source '%s' has no broker that knows what is left", kind->name);
    int rc = once_source_open(pipeline->spec, pipeline->env, ONCE_OPEN_CHECK, (once_cancel){0}, &source, err);
    if (rc != ONCE_OK) return rc;
    if (source->ops->backlog) rc = source->ops->backlog(source, &v.facts, ANSWER_MS, on_left, &v, err);
    else rc = once_fail(err, ONCE_E_UNSUPPORTED, "source '%s' does not tell what is left", kind->name);
    give_back(&v);
    source->ops->close(source);
    return rc;
}
