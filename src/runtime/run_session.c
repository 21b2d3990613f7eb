/* What a run writes to the store before its first message and after its last one. */
#include <assert.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "runtime/known_store.h"
#include "runtime/run.h"

#include "base/banned.h"

/* A run goes on if the store cannot be remembered. */
static void keep_known(const once_pipeline *pipeline, const once_known *before, const once_backend *store)
{
    char why[500];
    if (once__known_keep(pipeline, before, store, why, sizeof why)) return;
    once_log(ONCE_LOG_WARN, "store",
             "%s: if the store is lost, a new one would silently replace it, and every message would run again; make "
             "that folder writable, or put 'store_id: \"%s\"' into the pipeline file",
             why, pipeline->store_id);
}

static int remember_store(once_run *r, once_error *err)
{
    assert(once__store_lasts(r->parts.store));
    once_known before;
    int rc = once__known_read(r->pipeline, &before, err);
    if (rc == ONCE_OK) rc = once__known_audit(r->pipeline, &before, r->parts.store, err);
    if (rc != ONCE_OK) return rc;
    if (r->options.new_store) once__known_allow(&before);
    once__store_id(r->parts.store, r->pipeline->store_id);
    keep_known(r->pipeline, &before, r->parts.store);
    return ONCE_OK;
}

/* Streams that the broker assigns are sought when they are assigned. */
static int seek(once_run *r, once_error *err)
{
    once_source *source = r->parts.source;
    if (!source->ops->seek || (source->ops->bits(source) & ONCE_SOURCE_ASSIGNS)) return ONCE_OK;
    return source->ops->seek(source, 0, &r->session.facts.base, err);
}

static int begin(void *user, once_error *err)
{
    once_run *r = user;
    size_t ended;
    const once_keys_check how = r->options.confirm_scope_change ? ONCE_KEYS_CONFIRM : ONCE_KEYS_KEEP;
    int rc = once__consumer_check_keys(r->pipeline, r->parts.store, how, err);
    if (rc == ONCE_OK) rc = seek(r, err);
    if (rc == ONCE_OK && once__store_lasts(r->parts.store)) rc = remember_store(r, err);
    /* before the records of workers that are gone are dropped */
    if (rc == ONCE_OK)
        rc = once__take_over(r->parts.store, r->pipeline->spec->consumer, &r->session.worker, &r->session.gone, &ended,
                             err);
    if (rc == ONCE_OK)
        rc = once__consumer_run_begins(r->pipeline, r->parts.store, &r->session.worker, &r->session.unclean, err);
    return rc == ONCE_OK ? r->parts.store->ops->time(r->parts.store, &r->session.time, err) : rc;
}

static int end(void *user, once_error *err)
{
    once_run *r = user;
    once_backend *store = r->parts.store;
    assert(store && !r->executor.in_tx);
    const int rc = store->ops->stats(store, r->pipeline->spec->consumer, &r->session.stats, err);
    if (rc != ONCE_OK) return rc;
    (void)ONCE_FAIL_AT(close_before);
    return once_worker_end(&r->session.worker, store, err);
}

static void log_doubt(const once_run *r)
{
    char text[400];
    if (!r->session.time.doubted) return;
    once__clock_doubt(r->session.time.now_ms, once_env_wall_ms(r->pipeline->env), text, sizeof text);
    once_log(ONCE_LOG_WARN, "clock", "%s", text);
}

static int64_t longest_lease_ms(const once_spec *spec)
{
    int64_t longest_ms = 0;
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].lease_ms > longest_ms) longest_ms = spec->handlers[i].lease_ms;
    assert(longest_ms > 0);
    return longest_ms;
}

/* Whether everything that a worker has started ends with its process. A command is killed with it, but not what the
 * command has started. A transaction in another database ends with its connection, or has committed, which its
 * idempotency key shows. */
static bool is_contained(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].bits & ONCE_EFFECT_OUTLIVES) return false;
    return true;
}

/* The same error as `once check` gives. */
static int explain_denied(once_backend *store, int rc, once_error *err)
{
    once_error why;
    if (rc != ONCE_E_DENIED || !store->ops->inspect || store->ops->inspect(store, &why) != ONCE_E_DENIED) return rc;
    return once_fail(err, rc, "%s", why.text);
}

int once__run_begins(once_run *r, once_error *err)
{
    const once_spec *spec = r->pipeline->spec;
    assert(r->parts.store && r->parts.source && !r->session.unclean);
    once_worker_init(&r->session.worker, r->parts.store, spec->consumer, once_env_random_u64(r->pipeline->env),
                     longest_lease_ms(spec));
    once__store_facts_init(&r->session.facts, r->parts.store, spec->consumer);
    r->session.worker.contained = is_contained(spec);
    const int rc = once__retry_unavailable(r->pipeline, begin, r, err);
    if (rc != ONCE_OK) return explain_denied(r->parts.store, rc, err);
    log_doubt(r);
    if (r->session.unclean)
        once_log(ONCE_LOG_WARN, "unclean",
                 "the last run did not end cleanly; the first messages are claimed and run one by one");
    return ONCE_OK;
}

int once__run_ends(once_run *r, once_error *err) { return once__retry_unavailable(r->pipeline, end, r, err); }
