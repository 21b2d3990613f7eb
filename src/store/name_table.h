/* Names that very many finished entries share (scopes, places, runs, processes) as a process knows them: sqlite and
 * postgres keep each of them once, as a row of once_name, and have only its number in an entry.
 *
 * Text, as stored: 'S', the lengths of tenant, consumer and operation (4 bytes each), and these; 'P' and the place; 'R'
 * and the run (8 bytes); 'W' and who it was.
 *
 * A zeroed table is empty. Names stay where they are until once__names_clear. Thread rule: as the store. */
#ifndef ONCE_STORE_NAME_TABLE_H
#define ONCE_STORE_NAME_TABLE_H

#include "base/table.h"
#include "once/types.h"

typedef struct once_name {
    struct once_name *same_hash; /* the next one of a chain */
    int64_t number;              /* in the tables; 0: not known yet */
    once_scope scope;            /* of a scope */
    once_bytes bytes;            /* of a place, or of who it was */
    uint64_t run;                /* of a run */
    bool used, wanted;           /* the driver's */
    size_t len;
    char text[];
} once_name;

typedef struct once_name_table {
    once_table by_text, by_number; /* by the hash of the text: the first of a chain */
    size_t n;
    once_name *last_scope, *last_place, *last_run, *last_who; /* mostly the same again */
} once_name_table;

enum { ONCE_NAMES_KEPT = 4096 }; /* so many may stay in memory between transactions */

/* The name, which is made when there is none. NULL: out of memory. */
once_name *once__name_scope(once_name_table *names, const once_scope *scope);
once_name *once__name_place(once_name_table *names, once_bytes place);
once_name *once__name_who(once_name_table *names, once_bytes who);
once_name *once__name_run(once_name_table *names, uint64_t run);

/* The same for a text as it is stored. NULL with *damaged: it is the text of no name. */
once_name *once__name_read(once_name_table *names, once_bytes text, bool *damaged);

once_name *once__name_numbered(const once_name_table *names, int64_t number); /* NULL: not known */
/* The name has this number. false: out of memory, and it has none. */
bool once__name_set_number(once_name_table *names, once_name *name, int64_t number);

void once__names_clear(once_name_table *names);

#endif
