/* What is built in: schemas, the reference of the pipeline file, the version and the features. */
#include <string.h>

#include "base/buf.h"
#include "base/failpoint.h"
#include "once/version.h"
#include "runtime/config.h"
#include "runtime/runtime.h"

#include "base/banned.h"

const char *once__sqlite_schema(void);
#ifdef ONCE_WITH_POSTGRES
const char *once__pg_schema(void);
#endif

int once_store_schema(const char *url, const char **out, once_error *err)
{
    if (!url || !out) return once_fail(err, ONCE_E_USAGE, "once_store_schema needs a URL and a place for the text");
    const size_t len = strcspn(url, ":");
    if (len == 6 && memcmp(url, "sqlite", 6) == 0) {
        *out = once__sqlite_schema();
        return ONCE_OK;
    }
#ifdef ONCE_WITH_POSTGRES
    if (once__store_find(url, len) == &once__store_postgres) {
        *out = once__pg_schema();
        return ONCE_OK;
    }
#endif
    if (len == 6 && memcmp(url, "memory", 6) == 0)
        return once_fail(err, ONCE_E_USAGE, "store 'memory:' needs no schema");
    if ((len == 5 || len == 6) && memcmp(url, "rediss", len) == 0)
        return once_fail(err, ONCE_E_USAGE, "store 'redis:' needs no schema");
    return once_fail(
        err, ONCE_E_UNSUPPORTED,
        "no schema for such a store in this build; it is 'sqlite:' or a postgres:// URL"); /* what was given may be a
                                                                                              password */
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
    const once_store_ops *const *stores = once__store_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "store", stores[i]->scheme, stores[i]->summary);
    const once_source_ops *const *sources = once_source_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "source", sources[i]->name, sources[i]->summary);
    const once_effect_ops *const *effects = once_effect_list(&n);
    for (size_t i = 0; i < n; i++) visit(user, "effect", effects[i]->name, effects[i]->summary);
    for (int i = 0; i < ONCE_FAILPOINTS; i++)
        visit(user, "failpoint", once_failpoint_name((once_failpoint)i), once_failpoint_where((once_failpoint)i));
}
