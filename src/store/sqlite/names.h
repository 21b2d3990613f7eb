/* Names that very many finished entries share (scopes, places, runs, processes), kept once as rows of once_name and in
 * memory.
 *
 * A name is never changed or deleted, so its number may be remembered for ever; only numbers that were given inside a
 * transaction that was then rolled back must be forgotten.
 *
 * Thread rule: as the store. */
#ifndef ONCE_STORE_SQLITE_NAMES_H
#define ONCE_STORE_SQLITE_NAMES_H

#include "db/sqlite/sqlite.h"
#include "store/name_table.h"

typedef struct once_names once_names;

int once__names_open(once_sqlite_db *db, once_names **out, once_error *err);
void once__names_close(once_names *names);

/* Called when no transaction is open: keeps memory bounded. Names given out before are gone. */
void once__names_trim(once_names *names);
/* The transaction is over. */
void once__names_end(once_names *names, bool committed);

/* The names as this process knows them; valid until once__names_trim. */
once_name_table *once__names_known(once_names *names);

/* Its number; gives it one if it has none. Needs a write transaction. */
int once__names_number(once_names *names, once_name *name, uint64_t *out, once_error *err);
/* The name with this number and this first letter. */
int once__names_find(once_names *names, uint64_t number, char kind, const once_name **out, once_error *err);

#endif
