#include "store/id_table.h"

#include <stdlib.h>

#include "base/banned.h"

enum { FIRST_SIZE = 256, KEPT_SIZE = 16384 };

static once_hash item_id(const void *item)
{
    once_hash id;
    memcpy(&id, item, sizeof id);
    return id;
}

void *once__ids_get(const once_id_table *t, once_hash id)
{
    if (!t->size) return NULL;
    for (size_t at = id.b & (t->size - 1); t->at[at]; at = (at + 1) & (t->size - 1))
        if (once_hash_equal(item_id(t->at[at]), id)) return t->at[at];
    return NULL;
}

static void place(once_id_table *t, void *item)
{
    size_t at = item_id(item).b & (t->size - 1);
    while (t->at[at]) at = (at + 1) & (t->size - 1);
    t->at[at] = item;
}

bool once__ids_put(once_id_table *t, void *item)
{
    if (t->n * 2 >= t->size) {
        once_id_table grown = {.n = t->n, .size = t->size ? t->size * 2 : FIRST_SIZE};
        grown.at = calloc(grown.size, sizeof *grown.at);
        if (!grown.at) return false;
        for (size_t i = 0; i < t->size; i++)
            if (t->at[i]) place(&grown, t->at[i]);
        free(t->at);
        *t = grown;
    }
    place(t, item);
    t->n++;
    return true;
}

void once__ids_clear(once_id_table *t)
{
    if (t->size > KEPT_SIZE) once__ids_release(t);
    else if (t->n) memset(t->at, 0, t->size * sizeof *t->at);
    t->n = 0;
}

void once__ids_release(once_id_table *t)
{
    free(t->at);
    *t = (once_id_table){0};
}
