/* The tables of the postgres store: making them, knowing them again, and bringing old ones up to date. */
#ifndef ONCE_STORE_POSTGRES_SCHEMA_H
#define ONCE_STORE_POSTGRES_SCHEMA_H

#include "db/postgres/postgres.h"

#define ONCE_POSTGRES_VERSION 2
#define ONCE_POSTGRES_VERSION_TEXT "2" /* the same */

/* What `once schema postgres:` prints. */
const char *once__pg_schema(void);

/* Finds the tables in the schema that search_path names first, or makes them when `create`. Old ones are brought up to
 * date. */
int once__pg_ready(once_pg *pg, bool create, once_secret *secret, once_error *err);

/* Whether work could be done here: ONCE_E_READONLY on a standby, ONCE_E_DENIED with the GRANTs that are missing. */
int once__pg_inspect(once_pg *pg, once_error *err);

#endif
