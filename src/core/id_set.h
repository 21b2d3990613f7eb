/* A set of ids in memory. A zeroed one is empty. Thread rule: one thread. */
#ifndef ONCE_CORE_ID_SET_H
#define ONCE_CORE_ID_SET_H

#include "base/table.h"

typedef struct once_id_set {
    once_table ids;
} once_id_set;

/* Adds an id; true: it is new. If memory is out it is not kept, and is new the next time. The zero id is never kept. */
static inline bool once_id_set_add(once_id_set *set, once_hash id)
{
    if (once_hash_is_zero(id)) return true;
    if (once_table_get(&set->ids, id)) return false;
    (void)once_table_put(&set->ids, id, set);
    return true;
}

/* Removes an id; false: it was not there. */
static inline bool once_id_set_remove(once_id_set *set, once_hash id) { return once_table_remove(&set->ids, id); }
static inline void once_id_set_release(once_id_set *set) { once_table_release(&set->ids); }

#endif
