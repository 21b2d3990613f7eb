/* A chain of blocks, filled from the front. A new block has twice the size of all blocks before it together, so the
 * chain stays short, the newest block is always the largest, and a loop whose batches fit into it settles on one.
 *
 * Under AddressSanitizer the bytes that no allocation covers are poisoned: reading an allocation after the reset, or
 * past its end, is reported as with malloc. */
#include "base/arena.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define POISONED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONED 1
#endif
#endif

#ifdef POISONED
#include <sanitizer/asan_interface.h>
#define GAP 16
#else
#define ASAN_POISON_MEMORY_REGION(start, len) ((void)(start), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(start, len) ((void)(start), (void)(len))
#define GAP 0
#endif

#include "base/banned.h"

#define ALIGN 16
#define FIRST_BLOCK 4096
#define SIZE_LIMIT (SIZE_MAX / 8)

struct once_arena_block {
    once_arena_block *older;
    size_t size; /* of `data` */
    _Alignas(ALIGN) char data[];
};

void once_arena_init(once_arena *arena)
{
    assert(arena);
    *arena = (once_arena){0};
}

static void free_chain(once_arena_block *block)
{
    while (block) {
        once_arena_block *older = block->older;
        free(block);
        block = older;
    }
}

void once_arena_reset(once_arena *arena)
{
    assert(arena);
    if (!arena->block) return;
    free_chain(arena->block->older);
    arena->block->older = NULL;
    arena->used = 0;
    arena->total = arena->block->size;
    ASAN_POISON_MEMORY_REGION(arena->block->data, arena->block->size);
}

void once_arena_release(once_arena *arena)
{
    assert(arena);
    free_chain(arena->block);
    *arena = (once_arena){0};
}

static bool add_block(once_arena *arena, size_t need)
{
    if (arena->total > SIZE_LIMIT) return false;
    size_t size = arena->total == 0 ? FIRST_BLOCK : 2 * arena->total;
    if (size < need) size = need;
    once_arena_block *block = malloc(sizeof *block + size);
    if (!block && size > need) { /* try again with only what is needed */
        size = need;
        block = malloc(sizeof *block + size);
    }
    if (!block) return false;
    block->older = arena->block;
    block->size = size;
    ASAN_POISON_MEMORY_REGION(block->data, block->size);
    arena->block = block;
    arena->used = 0;
    arena->total += size;
    assert(!block->older || block->size >= block->older->size || size == need); /* the newest is the largest */
    return true;
}

void *once_arena_alloc(once_arena *arena, size_t size)
{
    assert(arena);
    if (size > SIZE_LIMIT) return NULL;
    size_t slot = (size + GAP + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (slot == 0) slot = ALIGN;
    if (!arena->block || arena->block->size - arena->used < slot)
        if (!add_block(arena, slot)) return NULL;
    assert(arena->used % ALIGN == 0);
    char *start = arena->block->data + arena->used;
    arena->used += slot;
    ASAN_UNPOISON_MEMORY_REGION(start, size);
    return start;
}

void *once_arena_zero(once_arena *arena, size_t size)
{
    void *start = once_arena_alloc(arena, size);
    if (start) memset(start, 0, size);
    return start;
}

bool once_arena_copy(once_arena *arena, once_bytes from, once_bytes *out)
{
    assert(from.data || from.len == 0);
    assert(out);
    if (from.len > SIZE_LIMIT) return false;
    char *to = once_arena_alloc(arena, from.len + 1);
    if (!to) return false;
    if (from.len > 0) memcpy(to, from.data, from.len);
    to[from.len] = '\0';
    *out = (once_bytes){to, from.len};
    return true;
}
