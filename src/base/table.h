/* A hash table from ids to values. Ids are usually hashes already; small numbers work, too. A zeroed table is empty.
 *
 * A value is a pointer that is not NULL, or a position in a list of the caller; one table has only one of the two.
 *
 * Invariants: open addressing; the size is a power of two or 0; never more than half full.
 *
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
    size_t n, size; /* slots in use; all slots */
} once_table;

enum { ONCE_TABLE_KEPT = 16384 }; /* slots that usually stay allocated after a transaction */

void *once_table_get(const once_table *table, once_hash id); /* NULL: not there */
/* Adds or replaces. False: out of memory; nothing changed. */
bool once_table_put(once_table *table, once_hash id, void *value);
/* The same where there is room (once_table_reserve). Returns the value that was there, or NULL. */
void *once_table_swap(once_table *table, once_hash id, void *value);
/* The same, but a value that is there stays. */
void *once_table_add(once_table *table, once_hash id, void *value);
/* It will be looked up soon: a large table is not in the caches of the CPU. */
void once_table_expect(const once_table *table, once_hash id);
/* Returns the value that was there, or NULL. */
void *once_table_remove(once_table *table, once_hash id);
/* From now on puts cannot fail until there are n values. False: out of memory. */
bool once_table_reserve(once_table *table, size_t n);
/* Empties it; frees the memory if it has more than `kept` slots. */
void once_table_clear(once_table *table, size_t kept);
/* Frees the memory; the table is empty and may be used again. */
void once_table_release(once_table *table);
/* Walks over the values, in no order: begin with *at = 0. NULL: there are no more. */
void *once_table_next(const once_table *table, size_t *at);

/* Positions instead of pointers, for lists that move when they grow. False: not there, and *out is untouched. */
bool once_table_position(const once_table *table, once_hash id, size_t *out);
bool once_table_put_position(once_table *table, once_hash id, size_t position);

#endif
