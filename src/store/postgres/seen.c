/* The keys that this worker has met recently, in little memory: 8 bytes for each, in one of two sets of 8. When both
 * sets are full, the oldest key is dropped. Ids are keyed hashes, so one half of an id is the mark and gives both sets.
 *
 * It is only a guess. A mark says that the row of a key probably exists, so it is looked for instead of inserted. When
 * that is wrong, the batch begins again and looks at all keys (expect_new_keys in expect.c). */
#include <stdlib.h>
#include <string.h>

#include "store/postgres/postgres.h"

#include "base/banned.h"

enum { WAYS = 8, SETS_FIRST = 1 << 8, SETS_MAX = 1 << 17 }; /* 8 MiB at most, for a million keys */

static uint64_t mark_of(once_hash id) { return id.a ? id.a : 1; }

static uint64_t *set_at(const once_pg_seen *seen, uint64_t place)
{
    return seen->marks + (place & (seen->sets - 1)) * WAYS;
}

static bool has(const uint64_t *set, uint64_t mark)
{
    for (size_t i = 0; i < WAYS; i++)
        if (set[i] == mark) return true;
    return false;
}

static size_t free_in(const uint64_t *set)
{
    size_t n = 0;
    while (n < WAYS && set[WAYS - 1 - n] == 0) n++;
    return n;
}

/* Puts the mark in front of the set that has fewer marks. */
static void put(once_pg_seen *seen, uint64_t mark)
{
    uint64_t *one = set_at(seen, mark), *other = set_at(seen, mark >> 32);
    uint64_t *set = free_in(other) > free_in(one) ? other : one;
    seen->n += set[WAYS - 1] == 0;
    memmove(set + 1, set, (WAYS - 1) * sizeof *set);
    set[0] = mark;
}

static bool is_there(const once_pg_seen *seen, uint64_t mark)
{
    return has(set_at(seen, mark), mark) || has(set_at(seen, mark >> 32), mark);
}

/* Doubles the number of sets, up to the maximum, if there is memory. */
static bool grow(once_pg_seen *seen)
{
    once_pg_seen more = {.sets = seen->sets ? 2 * seen->sets : SETS_FIRST};
    more.marks = more.sets <= SETS_MAX ? calloc(more.sets * WAYS, sizeof *more.marks) : NULL;
    if (!more.marks) return false;
    for (size_t age = WAYS; age-- > 0;) /* the oldest first, so that they stay the oldest */
        for (size_t i = 0; i < seen->sets; i++)
            if (seen->marks[i * WAYS + age]) put(&more, seen->marks[i * WAYS + age]);
    free(seen->marks);
    *seen = more;
    return true;
}

bool once__pg_seen_has(const once_pg_seen *seen, once_hash id) { return seen->sets && is_there(seen, mark_of(id)); }

void once__pg_seen_soon(const once_pg_seen *seen, once_hash id)
{
    const uint64_t mark = mark_of(id);
    if (!seen->sets) return;
    __builtin_prefetch(set_at(seen, mark));
    __builtin_prefetch(set_at(seen, mark >> 32));
}

void once__pg_seen_add(once_pg_seen *seen, once_hash id)
{
    const uint64_t mark = mark_of(id);
    if (2 * seen->n >= seen->sets * WAYS && !grow(seen) && !seen->sets) return;
    if (!is_there(seen, mark)) put(seen, mark);
}

void once__pg_seen_release(once_pg_seen *seen)
{
    free(seen->marks);
    *seen = (once_pg_seen){0};
}
