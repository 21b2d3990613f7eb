/* A set of ids, in memory. */
#ifndef ONCE_CORE_ID_SET_H
#define ONCE_CORE_ID_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"

typedef struct once_id_set {
    once_hash *at; /* zero: empty */
    size_t n, size;
} once_id_set;

/* Whether it was not there before. Without memory it is not kept, and new each time. The zero id is never kept. */
bool once_id_set_add(once_id_set *set, once_hash id);
bool once_id_set_remove(once_id_set *set, once_hash id); /* whether it was there */
void once_id_set_release(once_id_set *set);

#endif
