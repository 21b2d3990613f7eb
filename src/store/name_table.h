/* Names that very many finished entries share (scopes, places, runs, processes), as one process holds them in memory.
 * sqlite and postgres keep each name once, as a row of once_name, and store only its number in an entry.
 *
 * Stored text of a name, by its first letter
 *   'S'   scope: the lengths of tenant, consumer and operation (4 bytes each), then these
 *   'P'   place: its bytes
 *   'R'   run: 8 bytes
 *   'W'   who: the name of a process
 *
 * A zeroed table is empty. A name keeps its address until once__names_clear. Thread rule: as the store. */
#ifndef ONCE_STORE_NAME_TABLE_H
#define ONCE_STORE_NAME_TABLE_H

#include "base/table.h"
#include "once/types.h"

typedef struct once_name {
    struct once_name *same_hash; /* the next one of a chain */
    int64_t number;              /* its number in once_name; 0: not known yet */
    once_scope scope;            /* of a scope */
    once_bytes bytes;            /* of a place or a process */
    uint64_t run;                /* of a run */
    bool used, wanted;           /* for the driver */
    size_t len;
    char text[];
} once_name;

typedef struct once_name_table {
    once_table by_text, by_number; /* by the hash of the text: the first of a chain */
    size_t n;
    once_name *last_scope, *last_place, *last_run, *last_who; /* the last ones used: the next is mostly the same */
} once_name_table;

enum { ONCE_NAMES_KEPT = 4096 }; /* how many names may stay in memory between transactions */

/* Finds the name, or makes it. NULL: out of memory. */
once_name *once__name_scope(once_name_table *names, const once_scope *scope);
once_name *once__name_place(once_name_table *names, once_bytes place);
once_name *once__name_who(once_name_table *names, once_bytes who);
once_name *once__name_run(once_name_table *names, uint64_t run);

/* The same for a stored text. NULL with *damaged: the text is not that of a name. */
once_name *once__name_read(once_name_table *names, once_bytes text, bool *damaged);

once_name *once__name_numbered(const once_name_table *names, int64_t number); /* NULL: not known */
/* Gives the name this number. false: out of memory, and the name has none. */
bool once__name_set_number(once_name_table *names, once_name *name, int64_t number);

void once__names_clear(once_name_table *names);

#endif
