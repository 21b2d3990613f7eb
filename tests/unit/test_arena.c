/* Arenas: alignment, zeroes, large and impossible sizes, reuse, copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

static void allocations_are_aligned_apart_and_stay(void **state)
{
    (void)state;
    enum { N = 2000 };
    static unsigned char *at[N];
    once_arena arena = {0}; /* a zeroed struct is an arena */
    for (size_t i = 0; i < N; i++) {
        size_t size = i * 37 % 300;
        at[i] = once_arena_alloc(&arena, size);
        assert_non_null(at[i]);
        assert_int_equal((uintptr_t)at[i] % 16, 0);
        memset(at[i], (int)(i & 0xff), size);
    }
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < i * 37 % 300; k++) assert_int_equal(at[i][k], i & 0xff);
    once_arena_release(&arena);
    assert_null(arena.block);
    assert_int_equal(arena.total, 0);
}

static void size_zero_gives_distinct_pointers(void **state)
{
    (void)state;
    once_arena arena;
    once_arena_init(&arena);
    void *first = once_arena_alloc(&arena, 0), *second = once_arena_alloc(&arena, 0);
    assert_non_null(first);
    assert_ptr_not_equal(first, second);
    once_arena_release(&arena);
}

static void zeroed_also_after_reuse(void **state)
{
    (void)state;
    once_arena arena = {0};
    memset(once_arena_alloc(&arena, 1000), 0xff, 1000);
    once_arena_reset(&arena);
    uint64_t *numbers = once_arena_new(&arena, uint64_t, 100);
    for (int i = 0; i < 100; i++) assert_int_equal(numbers[i], 0);
    once_arena_release(&arena);
}

static void one_allocation_may_be_large(void **state)
{
    (void)state;
    once_arena arena = {0};
    char *small = once_arena_alloc(&arena, 10);
    memset(small, 'a', 10);
    char *large = once_arena_alloc(&arena, 10 << 20);
    assert_non_null(large);
    large[0] = large[(10 << 20) - 1] = 'x';
    assert_int_equal(small[9], 'a');
    once_arena_release(&arena);
}

static void a_size_that_cannot_be_is_refused(void **state)
{
    (void)state;
    once_arena arena = {0};
    volatile size_t huge = SIZE_MAX; /* or the compiler would warn */
    assert_null(once_arena_alloc(&arena, huge));
    assert_null(once_arena_alloc(&arena, huge - 15));
    once_bytes out = {"before", 6};
    assert_false(once_arena_copy(&arena, (once_bytes){"x", huge}, &out));
    assert_int_equal(out.len, 6);
    assert_non_null(once_arena_alloc(&arena, 1));
    once_arena_release(&arena);
}

static void a_loop_of_similar_batches_settles_on_one_block(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_arena_block *block = NULL;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 5000; i++) assert_non_null(once_arena_alloc(&arena, 100));
        if (round == 3) block = arena.block;
        if (round > 3) assert_ptr_equal(arena.block, block);
        once_arena_reset(&arena);
    }
    once_arena_release(&arena);
}

static void copy_is_terminated_and_binary_safe(void **state)
{
    (void)state;
    once_arena arena = {0};
    once_bytes copy;
    char source[] = {'a', '\0', 'b'};
    assert_true(once_arena_copy(&arena, (once_bytes){source, 3}, &copy));
    source[0] = 'z';
    assert_int_equal(copy.len, 3);
    assert_memory_equal(copy.data, "a\0b\0", 4);
    assert_true(once_arena_copy(&arena, (once_bytes){NULL, 0}, &copy));
    assert_int_equal(copy.len, 0);
    assert_string_equal(copy.data, "");
    once_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_aligned_apart_and_stay),
        cmocka_unit_test(size_zero_gives_distinct_pointers),
        cmocka_unit_test(zeroed_also_after_reuse),
        cmocka_unit_test(one_allocation_may_be_large),
        cmocka_unit_test(a_size_that_cannot_be_is_refused),
        cmocka_unit_test(a_loop_of_similar_batches_settles_on_one_block),
        cmocka_unit_test(copy_is_terminated_and_binary_safe),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
