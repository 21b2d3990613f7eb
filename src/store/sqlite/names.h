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
#include "once/types.h"

typedef struct once_names once_names;

typedef struct once_name {
    uint64_t number;             /* 0: not known yet */
    struct once_name *same_hash; /* the next one of a chain */
    once_scope scope;            /* of a scope */
    once_bytes bytes;            /* of a place, or of who it was */
    uint64_t run;                /* of a run */
    size_t len;
    char text[]; /* as stored: 'S', three lengths of four bytes, three texts; 'P' or 'W', text; 'R', eight bytes */
} once_name;

int once__names_open(once_sqlite_db *db, once_names **out, once_error *err);
void once__names_close(once_names *names);

/* Called when no transaction is open: keeps memory bounded. Names given out before are gone. */
void once__names_trim(once_names *names);
/* The transaction is over. */
void once__names_end(once_names *names, bool committed);

/* The name as this process knows it; no statement runs. NULL: out of memory. Valid until once__names_trim. */
once_name *once__names_scope(once_names *names, const once_scope *scope);
once_name *once__names_place(once_names *names, once_bytes place);
once_name *once__names_who(once_names *names, once_bytes who);
once_name *once__names_run(once_names *names, uint64_t run);

/* Its number; gives it one if it has none. Needs a write transaction. */
int once__names_number(once_names *names, once_name *name, uint64_t *out, once_error *err);
/* The name with this number and this first letter. */
int once__names_find(once_names *names, uint64_t number, char kind, const once_name **out, once_error *err);

#endif
