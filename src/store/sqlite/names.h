/* Names that very many finished entries share (scopes, places, runs, processes). Each is kept once, as a row of
 * once_name(id, name, sum), and in memory; store/name_table.h has the layout of a name.
 *
 * Invariant: a name is never changed or deleted, so memory may keep its number. Only numbers that a transaction
 * assigned and then rolled back must be forgotten.
 *
 * Thread rule: as the store. */
#ifndef ONCE_STORE_SQLITE_NAMES_H
#define ONCE_STORE_SQLITE_NAMES_H

#include "db/sqlite/sqlite.h"
#include "store/name_table.h"

typedef struct once_names once_names;

int once__names_open(once_sqlite_db *db, once_names **out, once_error *err);
void once__names_close(once_names *names);

/* Called when no transaction is open: bounds the memory. True: the names returned before were freed. */
bool once__names_trim(once_names *names);
/* The transaction has ended. */
void once__names_end(once_names *names, bool committed);

/* The names in memory; valid until once__names_trim. */
once_name_table *once__names_known(once_names *names);

/* The number of the name; assigns one if it has none. Needs a write transaction. */
int once__names_number(once_names *names, once_name *name, uint64_t *out, once_error *err);
/* The name with this number and this kind (its first letter). */
int once__names_find(once_names *names, uint64_t number, char kind, const once_name **out, once_error *err);

#endif
