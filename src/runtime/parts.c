/* Opens the parts of a pipeline in order: the store, the effects in it, the runner for effects outside, the source. */
#include <assert.h>
#include <string.h>

#include "base/no_memory.h"
#include "runtime/known_store.h"
#include "runtime/runtime.h"

#include "base/banned.h"

int once__at_line(const once_pipeline *pipeline, int line, int rc, const once_error *why, once_error *err)
{
    const once_bytes file = pipeline->spec->file;
    /* A part may know a better line. */
    if (strncmp(why->text, file.data, file.len) == 0 && why->text[file.len] == ':')
        return once_fail(err, rc, "%s", why->text);
    return once_fail(err, rc, "%.*s:%d: %s", (int)file.len, file.data, line, why->text);
}

once_db *once__store_db(once_backend *store) { return store->ops->db ? store->ops->db(store) : NULL; }

/* The store has no database for SQL: does the pipeline need one? */
static int check_no_sql(const once_spec *spec, const char *scheme, once_error *err)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_handler_spec *h = &spec->handlers[i];
        if (once_handler_inside(h))
            return once_fail(err, ONCE_E_CONFIG,
                             "%.*s:%d: store '%s:' has no database for SQL effects; use 'sqlite:PATH', or name a "
                             "database in 'sql: {url: ...}'",
                             (int)spec->file.len, spec->file.data, spec->store_line, scheme);
        if (h->then)
            return once_fail(err, ONCE_E_CONFIG,
                             "%.*s:%d: 'then' runs in the database of the store, and store '%s:' has none for SQL; use "
                             "'sqlite:PATH' or 'postgres://...', or let the effect do it",
                             (int)spec->file.len, spec->file.data, h->then->line, scheme);
    }
    return ONCE_OK;
}

static int run_init(const once_spec *spec, once_db *db, once_error *err)
{
    once_error why;
    assert(db && spec->init.len > 0);
    once_db_limit(db, spec->timeout_ms);
    const int rc = once_db_script(db, spec->init, &why);
    once_db_limit(db, 0);
    return rc == ONCE_OK ? rc
                         : once_fail(err, rc == ONCE_E_SCHEMA ? ONCE_E_CONFIG : rc, "%.*s: init: %s",
                                     (int)spec->file.len, spec->file.data, why.text);
}

/* A run always runs `init`. `once check` runs it only if something is missing, because it would have to wait for
 * writers. */
static int needs_init(const once_pipeline *pipeline, once_db *db, bool runs, bool *needed, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_error why;
    *needed = db && spec->init.len;
    if (!*needed || runs) return ONCE_OK;
    const int rc = once_db_script_look(db, spec->init, needed, &why);
    return rc == ONCE_OK ? rc : once_fail(err, rc, "%.*s: init: %s", (int)spec->file.len, spec->file.data, why.text);
}

static int open_effects(once_pipeline *pipeline, bool runs, once_parts *parts, once_error *err)
{
    assert(parts->store);
    const once_spec *spec = pipeline->spec;
    once_db *db = once__store_db(parts->store);
    once_error why;
    const int fits = db ? ONCE_OK : check_no_sql(spec, parts->store->ops->scheme, err);
    if (fits != ONCE_OK) return fits;
    bool init = false;
    int rc = needs_init(pipeline, db, runs, &init, err);
    if (rc == ONCE_OK && init) rc = run_init(spec, db, err);
    if (rc != ONCE_OK) return rc;
    rc = once_effects_open(spec, &parts->keying, db, &parts->effects, &why);
    if (rc == ONCE_E_SCHEMA && !init && spec->init.len) {
        rc = run_init(spec, db, err);
        if (rc != ONCE_OK) return rc;
        rc = once_effects_open(spec, &parts->keying, db, &parts->effects, &why);
    }
    /* before the first message, a missing table is a mistake of the configuration */
    return rc == ONCE_OK ? rc : once_fail(err, rc == ONCE_E_SCHEMA ? ONCE_E_CONFIG : rc, "%s", why.text);
}

/* Waiting messages and dead letters exist only in the store, because they are acked to the source. So it must not lose
 * them. */
static int check_store(const once_pipeline *pipeline, once_backend *store, once_error *err)
{
    char kept[400] = "";
    if (store->ops->batch_max && pipeline->spec->batch_max > store->ops->batch_max)
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: store '%s:' takes at most %u messages at once; write 'batch: {max: %u}' or less",
                         (int)pipeline->spec->file.len, pipeline->spec->file.data, pipeline->spec->store_line,
                         store->ops->scheme, store->ops->batch_max, store->ops->batch_max);
    if (store->bits & ONCE_STORE_OWNS) return ONCE_OK;
    if (store->ops->describe) store->ops->describe(store, kept, sizeof kept);
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: store '%s:' could lose messages that it accepted (%s)",
                     (int)pipeline->spec->file.len, pipeline->spec->file.data, pipeline->spec->store_line,
                     store->ops->scheme, kept);
}

typedef struct opening {
    once_pipeline *pipeline;
    const once_run_options *run; /* or NULL */
    once_parts *parts;
} opening;

/* `once check` reports a store that it created: it may be in the place of a lost one. */
static int open_or_make(const opening *o, const once_known *known, once_error *err)
{
    assert(!o->parts->store && !o->parts->created);
    once_pipeline *pipeline = o->pipeline;
    const bool may_make = !once__known_requires(known);
    once_store_options options = {.size = sizeof options,
                                  .env = pipeline->env,
                                  .create = may_make && o->run,
                                  .consumer = pipeline->spec->consumer};
    if (o->run) options.cancel = (once_cancel){once__wait_is_cancelled, pipeline};
    int rc = once__store_open(pipeline->store_url, &options, &o->parts->store, err);
    if (rc != ONCE_E_NO_STORE || !may_make || o->run) return rc;
    options.create = true;
    rc = once__store_open(pipeline->store_url, &options, &o->parts->store, err);
    o->parts->created = rc == ONCE_OK;
    return rc;
}

/* Opens the store, checks that it is the known one, and prepares the effects in it. */
static int open_store(void *user, once_error *err)
{
    const opening *o = user;
    once_pipeline *pipeline = o->pipeline;
    once_error why;
    once_known known;
    int rc = once__known_read(pipeline, &known, err);
    if (rc != ONCE_OK) return rc;
    if (o->run && o->run->new_store) once__known_allow(&known);
    rc = open_or_make(o, &known, &why);
    if ((rc == ONCE_E_NO_STORE || rc == ONCE_E_NOT_OURS) && once__known_requires(&known))
        return once__known_missing(pipeline, &known, &why, err);
    if (rc != ONCE_OK) return once__at_line(pipeline, pipeline->spec->store_line, rc, &why, err);
    o->parts->keying = once__keying_of(pipeline, o->parts->store);
    rc = once__known_compare(pipeline, &known, o->parts->store, err);
    if (rc == ONCE_OK) rc = check_store(pipeline, o->parts->store, err);
    if (rc == ONCE_OK) rc = open_effects(pipeline, o->run != NULL, o->parts, err);
    if (rc == ONCE_OK) return rc;
    once__parts_close(o->parts);
    *o->parts = (once_parts){0};
    return rc;
}

/* Opens the runner. A run waits for a database there as it waits for the store. */
static int open_runner(void *user, once_error *err)
{
    const opening *o = user;
    once_pipeline *pipeline = o->pipeline;
    assert(o->parts->store && !o->parts->runner);
    once_runner_options runner = {.spec = pipeline->spec,
                                  .env = pipeline->env,
                                  .keying = o->parts->keying,
                                  .callbacks = pipeline->callbacks,
                                  .n_callbacks = pipeline->n_callbacks};
    if (o->run) runner.opening = (once_cancel){once__wait_is_cancelled, pipeline};
    return once_runner_open(&runner, &o->parts->runner, err);
}

int once__parts_open(once_pipeline *pipeline, const once_run_options *run, once_parts *out, once_error *err)
{
    once_parts parts = {0};
    once_error why;
    opening opened = {pipeline, run, &parts};
    int rc = once__salt_read(pipeline, err);
    if (rc != ONCE_OK) return rc;
    rc = run ? once__retry_unavailable(pipeline, open_store, &opened, err) : open_store(&opened, err);
    if (rc != ONCE_OK) return rc;
    if (once_runner_needed(pipeline->spec))
        rc = run ? once__retry_unavailable(pipeline, open_runner, &opened, err) : open_runner(&opened, err);
    if (rc == ONCE_OK) {
        const once_cancel cancel = {run ? once__wait_is_cancelled : NULL, pipeline};
        rc = once_source_open(pipeline->spec, pipeline->env, run ? ONCE_OPEN_RUN : ONCE_OPEN_CHECK, cancel,
                              &parts.source, &why);
        if (rc != ONCE_OK) once__at_line(pipeline, pipeline->spec->source.line, rc, &why, err);
    }
    if (rc != ONCE_OK) {
        once__parts_close(&parts);
        return rc;
    }
    assert(parts.store && parts.source && (parts.runner || !once_runner_needed(pipeline->spec)));
    *out = parts;
    return ONCE_OK;
}

void once__parts_close(once_parts *parts)
{
    if (parts->source) parts->source->ops->close(parts->source);
    once_runner_close(parts->runner);
    once_effects_close(parts->effects);
    once__store_close(parts->store);
}
