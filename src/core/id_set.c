#include "core/id_set.h"

#include <stdlib.h>

#include "base/banned.h"

static size_t home_of(const once_id_set *set, once_hash id) { return id.a & (set->size - 1); }

/* Where it is, or where it would be. */
static size_t find(const once_id_set *set, once_hash id)
{
    size_t at = home_of(set, id);
    while (!once_hash_is_zero(set->at[at]) && !once_hash_equal(set->at[at], id)) at = (at + 1) & (set->size - 1);
    return at;
}

static bool grow(once_id_set *set)
{
    once_id_set more = {.size = set->size ? 2 * set->size : 64};
    more.at = calloc(more.size, sizeof *more.at);
    if (!more.at) return false;
    for (size_t i = 0; i < set->size; i++)
        if (!once_hash_is_zero(set->at[i])) more.at[find(&more, set->at[i])] = set->at[i];
    more.n = set->n;
    free(set->at);
    *set = more;
    return true;
}

bool once_id_set_add(once_id_set *set, once_hash id)
{
    if (once_hash_is_zero(id) || (2 * set->n >= set->size && !grow(set))) return true;
    const size_t at = find(set, id);
    if (!once_hash_is_zero(set->at[at])) return false;
    set->at[at] = id;
    set->n++;
    return true;
}

/* Those behind the hole move up, where their own search would end at it. */
static void close_hole(once_id_set *set, size_t hole)
{
    for (size_t at = hole;;) {
        set->at[hole] = (once_hash){0};
        for (;;) {
            at = (at + 1) & (set->size - 1);
            if (once_hash_is_zero(set->at[at])) return;
            const size_t home = home_of(set, set->at[at]);
            const bool between = hole <= at ? hole < home && home <= at : hole < home || home <= at;
            if (!between) break;
        }
        set->at[hole] = set->at[at];
        hole = at;
    }
}

bool once_id_set_remove(once_id_set *set, once_hash id)
{
    if (set->n == 0 || once_hash_is_zero(id)) return false;
    const size_t at = find(set, id);
    if (once_hash_is_zero(set->at[at])) return false;
    close_hole(set, at);
    set->n--;
    return true;
}

void once_id_set_release(once_id_set *set)
{
    free(set->at);
    *set = (once_id_set){0};
}
