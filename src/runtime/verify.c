/* `once check --deep`: reads the whole store and compares it with its checksums. */
#include <stdio.h>
#include <string.h>

#include "runtime/known_store.h"
#include "runtime/runtime.h"

#include "base/banned.h"

enum { PROGRESS_NS = 1000000000, ALL_TOLD = 20 }; /* stores stop reporting after this many */

typedef struct verifying {
    once_finding *report;
    void *user;
    size_t n;
    const once_env *env;
    int64_t told_ns;
} verifying;

static void on_read(void *user, uint64_t n)
{
    verifying *v = user;
    char text[60];
    const int64_t now_ns = once_env_mono_ns(v->env);
    if (now_ns - v->told_ns < PROGRESS_NS) return;
    v->told_ns = now_ns;
    snprintf(text, sizeof text, "%llu keys read so far", (unsigned long long)n);
    v->report(v->user, "progress", text, false);
}

static void on_damage(void *user, const char *text)
{
    verifying *v = user;
    v->n++;
    v->report(v->user, "damage", text, true);
}

/* What can be promised if nothing was found. */
static const char *verified(const once_store_ops *ops)
{
    if (ops->verified) return ops->verified;
    if (ops->verify) return "the whole store was read and is intact";
    return "was not read: it has no checksums; its server checks its own pages";
}

int once_pipeline_verify(once_pipeline *pipeline, once_finding *report, void *user, once_error *err)
{
    if (!pipeline || !report)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_verify needs a pipeline and a function for its findings");
    verifying v = {.report = report, .user = user, .env = pipeline->env, .told_ns = once_env_mono_ns(pipeline->env)};
    once_backend *store;
    int rc = once__run_refuse_forked(pipeline->run, err);
    if (rc == ONCE_OK) rc = once__known_open_store(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    const once_store_ops *ops = store->ops;
    store->progress = on_read;
    store->progress_user = &v;
    if (ops->verify) rc = ops->verify(store, on_damage, &v, err);
    once__store_close(store);
    if (rc == ONCE_OK && v.n)
        return once_fail(err, ONCE_E_CORRUPT, "the store is damaged in %s%zu place%s; restore it from a backup%s",
                         v.n < ALL_TOLD ? "" : "at least ", v.n, v.n == 1 ? "" : "s",
                         ops->repair ? ", or let 'once check --repair' repair what it can" : "");
    if (rc == ONCE_OK) report(user, "store", verified(ops), false);
    return rc;
}
