/* Memory that is freed all at once: a batch's messages, keys, parameters and decisions live in one arena and end with
 * it. Allocations are 16-byte aligned and never move. An arena that was reset keeps its largest block, so a loop over
 * batches of similar size allocates nothing. A zeroed struct is an empty arena.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_BASE_ARENA_H
#define ONCE_BASE_ARENA_H

#include <stddef.h>

#include "once/types.h"

typedef struct once_arena_block once_arena_block;

typedef struct once_arena {
    once_arena_block *block; /* the one being filled; older ones hang behind it */
    size_t used;             /* bytes used of `block` */
    size_t total;            /* bytes of all blocks */
} once_arena;

void once_arena_init(once_arena *arena);
void once_arena_reset(once_arena *arena);   /* frees everything that was allocated; the arena can be used again */
void once_arena_release(once_arena *arena); /* the same, and gives the memory back to the system */

/* 16-byte aligned; once_arena_zero zeroes it. NULL only when memory is out. `size` 0 gives a valid pointer. */
void *once_arena_alloc(once_arena *arena, size_t size) __attribute__((malloc, alloc_size(2)));
void *once_arena_zero(once_arena *arena, size_t size) __attribute__((malloc, alloc_size(2)));

/* Copies bytes; a NUL behind them does not count. False: out of memory, and `out` is untouched. */
bool once_arena_copy(once_arena *arena, once_bytes from, once_bytes *out);

#define once_arena_new(arena, type, count) ((type *)once_arena_zero((arena), sizeof(type) * (size_t)(count)))

#endif
