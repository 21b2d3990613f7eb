/* Loads a pipeline, adds what a program registers (callbacks, a salt), and finds out which secrets it has. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "runtime/config.h"
#include "runtime/run.h"

#include "base/banned.h"

static bool make_locks(once_pipeline *pipeline)
{
    if (!once_fair_lock_init(&pipeline->store_lock)) return false;
    if (pthread_mutex_init(&pipeline->salt_lock, NULL) == 0) return true;
    once_fair_lock_release(&pipeline->store_lock);
    return false;
}

int once_pipeline_load(const char *file, once_mistake *report, void *user, once_pipeline **out, once_error *err)
{
    if (!file || !out)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_load needs a file and a place for the pipeline");
    once_pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (!pipeline) return once_no_memory(err, "for a pipeline");
    pipeline->env = once_env_real();
    atomic_init(&pipeline->stop, false);
    if (!make_locks(pipeline)) {
        free(pipeline);
        return once_no_memory(err, "for a pipeline");
    }
    int rc = once_config_load_all(file, &pipeline->arena, report, user, &pipeline->spec, err);
    if (rc == ONCE_OK) {
        pipeline->store_url = strndup(pipeline->spec->store_url.data, pipeline->spec->store_url.len);
        pipeline->run = once__run_new(pipeline);
        if (!pipeline->store_url || !pipeline->run) rc = once_no_memory(err, "for a pipeline");
    }
    if (rc != ONCE_OK) {
        once_pipeline_free(pipeline);
        return rc;
    }
    assert(pipeline->spec->n_handlers > 0 && pipeline->store_url[0]);
    *out = pipeline;
    return ONCE_OK;
}

void once_pipeline_free(once_pipeline *pipeline)
{
    if (!pipeline || !once__run_release(pipeline->run)) return;
    assert(!pipeline->run_store); /* R1 */
    once_fair_lock_release(&pipeline->store_lock);
    pthread_mutex_destroy(&pipeline->salt_lock);
    once_arena_release(&pipeline->arena);
    for (size_t i = 0; i < pipeline->n_callbacks; i++) free((char *)pipeline->callbacks[i].name);
    free(pipeline->callbacks);
    free(pipeline->store_url);
    free(pipeline);
}

/* A URL has a password if it is shown differently from how it is written. */
static bool url_has_password(const char *url)
{
    once_buf shown;
    once_buf_init(&shown, SIZE_MAX / 4);
    const bool hidden = !once__store_show(url, &shown) || strcmp(shown.data, url) != 0;
    once_buf_release(&shown);
    return hidden;
}

/* A password in the URL, or in the variable that its library reads (PGPASSWORD). A password file is the library's own
 * business. */
static bool url_has_secret(const char *url)
{
    const once_store_driver *driver = once__store_find(url, strcspn(url, ":"));
    return url_has_password(url) || (driver && driver->password && getenv(driver->password));
}

/* What the fields of the source and the handlers contain. */
typedef struct found_secrets {
    bool password; /* written out */
    bool secret;
} found_secrets;

static void look_for_secret(void *user, once_bytes text, bool url)
{
    found_secrets *found = user;
    if (once_is_reference(text)) {
        found->secret = true;
        return;
    }
    if (!url) return;
    char *copy = strndup(text.data, text.len);
    found->password |= copy && url_has_password(copy);
    found->secret |= !copy || url_has_secret(copy);
    free(copy);
}

static found_secrets secrets_of(const once_spec *spec)
{
    found_secrets found = {0};
    once_source_secrets(&spec->source, look_for_secret, &found);
    for (size_t i = 0; i < spec->n_handlers; i++) once_effect_secrets(&spec->handlers[i], look_for_secret, &found);
    return found;
}

bool once__file_has_password(const once_pipeline *pipeline)
{
    return url_has_password(pipeline->store_url) || secrets_of(pipeline->spec).password;
}

bool once_pipeline_has_secrets(const once_pipeline *pipeline)
{
    if (!pipeline) return false;
    if (pipeline->spec->salt.len || pipeline->salt.len) return true;
    return url_has_secret(pipeline->store_url) || secrets_of(pipeline->spec).secret;
}

static bool names_callback(const once_spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->n_handlers; i++) {
        const once_bytes callback = once_effect_function(&spec->handlers[i]);
        if (callback.len == strlen(name) && memcmp(callback.data, name, callback.len) == 0) return true;
    }
    return false;
}

int once_pipeline_callback(once_pipeline *pipeline, const char *name, once_callback *function, void *user,
                           once_error *err)
{
    if (!pipeline || !name || !function)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_callback needs a pipeline, a name and a function");
    if (!names_callback(pipeline->spec, name))
        return once_fail(err, ONCE_E_USAGE, "no handler of '%.*s' has 'callback: %s'", (int)pipeline->spec->file.len,
                         pipeline->spec->file.data, name);
    for (size_t i = 0; i < pipeline->n_callbacks; i++)
        if (strcmp(pipeline->callbacks[i].name, name) == 0)
            return once_fail(err, ONCE_E_USAGE, "callback '%s' is already registered", name);
    once_runner_callback *callbacks = reallocarray(pipeline->callbacks, pipeline->n_callbacks + 1, sizeof *callbacks);
    if (callbacks) pipeline->callbacks = callbacks;
    char *copy = callbacks ? strdup(name) : NULL;
    if (!copy) return once_no_memory(err, "for a callback");
    callbacks[pipeline->n_callbacks++] = (once_runner_callback){.name = copy, .function = function, .user = user};
    return ONCE_OK;
}

/* --- the salt of idempotency keys --- */

int once_pipeline_idempotency_salt(once_pipeline *pipeline, once_bytes salt, once_error *err)
{
    if (!pipeline || once_bytes_lie(salt))
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_idempotency_salt needs a pipeline and a salt");
    if (!once_salt_fits(salt))
        return once_fail(err, ONCE_E_USAGE,
                         "a salt of idempotency keys must have at least %u bytes, and not only white space",
                         ONCE_SALT_MIN);
    if (pipeline->spec->salt.len)
        return once_fail(err, ONCE_E_USAGE, "'%.*s' has 'idempotency_salt'; change it there",
                         (int)pipeline->spec->file.len, pipeline->spec->file.data);
    return once_arena_copy(&pipeline->arena, salt, &pipeline->salt) ? ONCE_OK : once_no_memory(err, "for a salt");
}

static int read_salt(once_pipeline *pipeline, once_error *err) /* @locks: salt_lock */
{
    const once_spec *spec = pipeline->spec;
    const once_written said = {.name = ONCE_BYTES("idempotency_salt"), .value = spec->salt, .line = spec->salt_line};
    once_bytes salt;
    if (spec->salt.len == 0 || pipeline->salt.len) return ONCE_OK;
    int rc = once_value_read(spec->file, pipeline->env, &said, &pipeline->arena, &salt, err);
    if (rc != ONCE_OK) return rc;
    if (!once_salt_fits(salt))
        return once_fail(err, ONCE_E_CONFIG,
                         "%.*s:%d: 'idempotency_salt' has fewer than %u bytes, or only white space; use random bytes",
                         (int)spec->file.len, spec->file.data, spec->salt_line, ONCE_SALT_MIN);
    return once_arena_copy(&pipeline->arena, salt, &pipeline->salt) ? ONCE_OK : once_no_memory(err, "for a salt");
}

int once__salt_read(once_pipeline *pipeline, once_error *err)
{
    int rc = once__run_refuse_forked(pipeline->run, err); /* after a fork salt_lock may stay locked */
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&pipeline->salt_lock);
    rc = read_salt(pipeline, err);
    pthread_mutex_unlock(&pipeline->salt_lock);
    return rc;
}
