/* once_postgres_handle and the functions beside it: from the public functions to the module that has them. A caller
 * with a connection has libpq, so the module is loaded when the first connection is prepared. */
#include "base/module.h"
#include "lib/postgres/handle.h"

#include "base/banned.h"

#ifdef ONCE_WITH_POSTGRES

static int get(const once_pg_handle **out, once_error *err)
{
    const void *part;
    const int rc = once_module_part_get("postgres", "handle", "postgres", &part, err);
    if (rc == ONCE_OK) *out = part;
    return rc;
}

#else

static int get(const once_pg_handle **out, once_error *err)
{
    (void)out;
    return once_fail(err, ONCE_E_UNSUPPORTED, "PostgreSQL is not in this build");
}

#endif

int once_postgres_prepare(struct pg_conn *pg, once_error *err)
{
    const once_pg_handle *to = NULL;
    const int rc = get(&to, err);
    return rc == ONCE_OK ? to->prepare(pg, err) : rc;
}

void once_postgres_release(struct pg_conn *pg)
{
    const once_pg_handle *to = NULL;
    if (get(&to, NULL) == ONCE_OK) to->release(pg);
}

int once_postgres_handle(struct pg_conn *pg, const once_scope *scope, const once_delivery *delivery,
                         once_callback *callback, void *user, once_verdict *out, once_error *err)
{
    const once_pg_handle *to = NULL;
    const int rc = get(&to, err);
    return rc == ONCE_OK ? to->handle(pg, scope, delivery, callback, user, out, err) : rc;
}
