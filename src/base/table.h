/* The hash table: finds what has an id. Open addressing over (id, value), where the ids are hashes already, so that
 * whatever half of their bits may serve as the place; small numbers serve, too. A zeroed one is empty. Never more than
 * half full.
 *
 * A value is a pointer that is not NULL, or a position in a list of the caller's; one table has one kind.
 * Thread rule: one thread. */
#ifndef ONCE_BASE_TABLE_H
#define ONCE_BASE_TABLE_H

#include "base/hash.h"

typedef struct once_table_slot {
    once_hash id;
    void *value; /* NULL: free */
} once_table_slot;

typedef struct once_table {
    once_table_slot *at;
    size_t n, size; /* slots that are used; all of them, a power of two */
} once_table;

enum { ONCE_TABLE_KEPT = 16384 }; /* slots: what usually stays after a transaction */

void *once_table_get(const once_table *table, once_hash id); /* NULL: not there */
bool once_table_put(once_table *table, once_hash id,
                    void *value); /* replaces what was there; false: out of memory, nothing changed */
bool once_table_remove(once_table *table, once_hash id); /* whether it was there */
bool once_table_reserve(once_table *table,
                        size_t n); /* up to n are put without fail from now on; false: out of memory */
void once_table_clear(once_table *table, size_t kept); /* empty again; of more slots than `kept` the memory is freed */
void once_table_release(once_table *table);            /* the memory; it may be used again */
void *once_table_next(const once_table *table,
                      size_t *at); /* from *at == 0 on each value once, in no order; NULL: that was all */

/* Positions instead of pointers, for lists that move when they grow. */
bool once_table_position(const once_table *table, once_hash id, size_t *out); /* false: not there, *out is as it was */
bool once_table_put_position(once_table *table, once_hash id, size_t position);

#endif
