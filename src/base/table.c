/* The hash table (base/table.h): linear probing; a removal moves later values back, so there are no tombstones. */
#include "base/table.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

enum { FIRST_SIZE = 64 };

/* All 128 bits take part, because not every id is a hash. */
static size_t home_of(const once_table *t, once_hash id)
{
    const uint64_t mixed = id.a ^ id.b;
    return (mixed ^ mixed >> 32) & (t->size - 1);
}

static size_t after(const once_table *t, size_t at) { return (at + 1) & (t->size - 1); }

/* The slot of the id, or the free slot where it would be. */
static size_t find(const once_table *t, once_hash id)
{
    assert(t->size > 0 && t->n <= t->size / 2); /* so there is a free slot, and the search ends */
    size_t at = home_of(t, id);
    while (t->at[at].value && !once_hash_equal(t->at[at].id, id)) at = after(t, at);
    return at;
}

void *once_table_get(const once_table *t, once_hash id) { return t->n ? t->at[find(t, id)].value : NULL; }

static bool resize(once_table *t, size_t size)
{
    assert(size >= 2 * t->n && (size & (size - 1)) == 0);
    once_table more = {.n = t->n, .size = size};
    more.at = calloc(size, sizeof *more.at);
    if (!more.at) return false;
    for (size_t i = 0; i < t->size; i++)
        if (t->at[i].value) more.at[find(&more, t->at[i].id)] = t->at[i];
    free(t->at);
    *t = more;
    return true;
}

bool once_table_reserve(once_table *t, size_t n)
{
    size_t size = t->size ? t->size : FIRST_SIZE;
    while (size / 2 < n) size *= 2;
    return size == t->size || resize(t, size);
}

bool once_table_put(once_table *t, once_hash id, void *value)
{
    assert(value);
    size_t at = t->size ? find(t, id) : 0;
    if (t->size == 0 || (!t->at[at].value && 2 * t->n >= t->size)) {
        if (!once_table_reserve(t, t->n + 1)) return false;
        at = find(t, id);
    }
    t->n += !t->at[at].value;
    t->at[at] = (once_table_slot){id, value};
    return true;
}

void *once_table_swap(once_table *t, once_hash id, void *value)
{
    const size_t at = find(t, id);
    void *before = t->at[at].value;
    assert(value && (before || 2 * t->n < t->size));
    t->n += !before;
    t->at[at] = (once_table_slot){id, value};
    return before;
}

void *once_table_add(once_table *t, once_hash id, void *value)
{
    const size_t at = find(t, id);
    assert(value && (t->at[at].value || 2 * t->n < t->size));
    if (t->at[at].value) return t->at[at].value;
    t->n++;
    t->at[at] = (once_table_slot){id, value};
    return NULL;
}

void once_table_expect(const once_table *t, once_hash id)
{
    if (t->size) __builtin_prefetch(&t->at[home_of(t, id)]);
}

/* The next value behind the hole that must move into it, because a search for it would end at the hole; if there is
 * none, the next free slot. */
static size_t follower(const once_table *t, size_t hole)
{
    for (size_t at = after(t, hole);; at = after(t, at)) {
        if (!t->at[at].value) return at;
        const size_t home = home_of(t, t->at[at].id);
        const bool between = hole <= at ? hole < home && home <= at : hole < home || home <= at;
        if (!between) return at;
    }
}

void *once_table_remove(once_table *t, once_hash id)
{
    assert(t->n <= t->size / 2);
    if (t->n == 0) return NULL;
    size_t hole = find(t, id);
    void *removed = t->at[hole].value;
    if (!removed) return NULL;
    while (t->at[hole].value) {
        const size_t next = follower(t, hole);
        t->at[hole] = t->at[next];
        hole = next;
    }
    t->n--;
    return removed;
}

void once_table_clear(once_table *t, size_t kept)
{
    if (t->size > kept) once_table_release(t);
    else if (t->n) memset(t->at, 0, t->size * sizeof *t->at);
    t->n = 0;
}

void once_table_release(once_table *t)
{
    free(t->at);
    *t = (once_table){0};
}

void *once_table_next(const once_table *t, size_t *at)
{
    assert(at && *at <= t->size);
    while (*at < t->size) {
        void *value = t->at[(*at)++].value;
        if (value) return value;
    }
    return NULL;
}

bool once_table_position(const once_table *t, once_hash id, size_t *out)
{
    const void *value = once_table_get(t, id);
    if (value) *out = (size_t)(uintptr_t)value - 1;
    return value != NULL;
}

bool once_table_put_position(once_table *t, once_hash id, size_t position)
{
    assert(position < SIZE_MAX);
    return once_table_put(t, id, (void *)(uintptr_t)(position + 1));
}
