/* The tables of the postgres store: creating them, recognising them, and upgrading older ones. */
#ifndef ONCE_STORE_POSTGRES_SCHEMA_H
#define ONCE_STORE_POSTGRES_SCHEMA_H

#include "db/postgres/postgres.h"

#define ONCE_POSTGRES_VERSION 2
#define ONCE_POSTGRES_VERSION_TEXT "2" /* the same */

/* What `once schema postgres:` prints. */
const char *once__pg_schema(void);

/* Finds the tables (schema.c says in which schema), or creates them when `create`, and upgrades older ones. Reads the
 * secret. ONCE_E_NO_STORE: there are none. */
int once__pg_ready(once_pg *pg, bool create, once_secret *secret, once_error *err);

/* Whether a worker could work here: ONCE_E_READONLY on a standby, ONCE_E_DENIED with the GRANTs that are missing. */
int once__pg_inspect(once_pg *pg, once_error *err);

#endif
