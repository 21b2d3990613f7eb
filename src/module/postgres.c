/* The module `postgres`: a store, a database for SQL effects, and handlers in the caller's transaction. With libpq. */
#include "base/module.h"
#include "db/db.h"
#include "db/postgres/postgres.h"
#include "lib/postgres/handle.h"
#include "store/store.h"

#include "base/banned.h"

static const once_db_driver db = {.open = once__pg_open};

static const once_module_part parts[] = {
    {"store", "postgres", &once__store_postgres},
    {"db", "postgres", &db},
    {"handle", "postgres", &once__pg_handle},
    {NULL, NULL, NULL},
};

ONCE_MODULE(postgres, parts);
