/* What is built in: schemas, the reference of the pipeline file, the version and the features. */
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "base/module.h"
#include "once/version.h"
#include "runtime/config.h"
#include "runtime/runtime.h"

#include "base/banned.h"

int once_store_schema(const char *url, const char **out, once_error *err)
{
    if (!url || !out) return once_fail(err, ONCE_E_USAGE, "once_store_schema needs a URL and a place for the text");
    const once_store_driver *driver = once__store_find(url, strcspn(url, ":"));
    if (!driver) /* the argument may contain a password, so it is not shown */
        return once_fail(err, ONCE_E_UNSUPPORTED,
                         "this build has no schema for such a store; use 'sqlite:' or a postgres:// URL");
    const once_store_ops *ops;
    const int rc = once__store_load(driver, &ops, err);
    if (rc != ONCE_OK) return rc;
    if (!ops->schema) return once_fail(err, ONCE_E_USAGE, "store '%s:' needs no schema", driver->scheme);
    *out = ops->schema();
    return ONCE_OK;
}

char *once_config_reference_text(bool markdown)
{
    once_buf text;
    once_buf_init(&text, 1 << 20);
    if (markdown ? once_config_reference(&text) : once_config_help(&text)) return text.data;
    once_buf_release(&text);
    return NULL;
}

const char *once_version(void) { return ONCE_VERSION; }

void once_features(once_feature_visit *visit, void *user)
{
    if (!visit) return;
    size_t n;
    const once_store_driver *stores = once__store_drivers(&n);
    for (size_t i = 0; i < n; i++) visit(user, "store", stores[i].scheme, stores[i].summary);
    const once_source_kind *const *sources = once_source_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "source", sources[i]->name, sources[i]->summary);
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "effect", effects[i]->name, effects[i]->summary);
    for (int i = 0; i < ONCE_FAILPOINTS; i++)
        visit(user, "failpoint", once_failpoint_name((once_failpoint)i), once_failpoint_where((once_failpoint)i));
}

/* A driver that may be in a module. */
typedef struct driver {
    const char *kind, *name;
    const char *module; /* NULL: it is linked in */
} driver;

/* The i-th of all drivers; false: no more. */
static bool driver_at(size_t i, driver *out)
{
    size_t n;
    const once_store_driver *stores = once__store_drivers(&n);
    if (i < n) {
        *out = (driver){"store", stores[i].scheme, stores[i].module};
        return true;
    }
    i -= n;
    const once_source_kind *const *sources = once_source_list(&n);
    if (i < n) {
        *out = (driver){"source", sources[i]->name, sources[i]->module};
        return true;
    }
    i -= n;
    const once_effect_ops *const *effects = once_effect_list(&n);
    if (i < n) *out = (driver){"effect", effects[i]->name, effects[i]->module};
    return i < n;
}

void once_modules(once_module_visit *visit, void *user)
{
    driver d;
    for (size_t i = 0; visit && driver_at(i, &d); i++) {
        char path[PATH_MAX];
        bool there;
        if (d.module && once_module_where(d.module, path, &there)) visit(user, d.kind, d.name, path, there);
    }
}

int once_module_check(const char *kind, const char *name, once_error *err)
{
    const void *part;
    driver d;
    if (!kind || !name) return once_fail(err, ONCE_E_USAGE, "once_module_check needs a kind and a name");
    for (size_t i = 0; driver_at(i, &d); i++)
        if (strcmp(kind, d.kind) == 0 && strcmp(name, d.name) == 0)
            return d.module ? once_module_part_get(d.module, kind, name, &part, err) : ONCE_OK;
    return once_fail(err, ONCE_E_USAGE, "this build has no %s '%s'", kind, name);
}
