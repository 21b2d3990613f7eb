/* Finds things by their id: open addressing over pointers to items that begin with their once_hash. A zeroed one is empty. */
#ifndef ONCE_STORE_ID_TABLE_H
#define ONCE_STORE_ID_TABLE_H

#include "base/hash.h"

typedef struct once_id_table {
    void **at;
    size_t n, size;
} once_id_table;

void *once__ids_get(const once_id_table *table, once_hash id); /* NULL: not there */
bool once__ids_put(once_id_table *table, void *item);          /* that is not there yet; false: out of memory */
void once__ids_clear(once_id_table *table);                    /* empty again; memory of usual size is kept */
void once__ids_release(once_id_table *table);

#endif
