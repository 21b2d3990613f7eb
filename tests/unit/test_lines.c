/* Lines out of bytes, against a naive splitter, over random texts, chunks and bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "source/lines.h"

enum { TEXT = 4000, SEEDS = 3000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Short lines, empty ones, and some that are longer than everything. */
static size_t make_text(uint64_t *random, char *out)
{
    size_t len = 0;
    const size_t want = next_random(random) % TEXT;
    while (len < want) {
        size_t line = next_random(random) % 8 == 0 ? next_random(random) % 900 : next_random(random) % 20;
        for (; line > 0 && len < want; line--) out[len++] = (char)('a' + next_random(random) % 26);
        if (len < want) out[len++] = '\n';
    }
    return len;
}

typedef struct naive {
    const char *at, *end;
    size_t keep;
} naive;

static bool naive_next(naive *n, once_line *out)
{
    if (n->at == n->end) return false;
    const char *newline = memchr(n->at, '\n', (size_t)(n->end - n->at));
    const size_t len = (size_t)((newline ? newline : n->end) - n->at);
    *out = (once_line){.data = n->at, .kept = len < n->keep ? len : n->keep, .len = len, .ended = newline != NULL};
    n->at += len + (newline != NULL);
    return true;
}

static void same_line(const once_line *got, const once_line *want, uint64_t seed)
{
    if (got->len != want->len || got->kept != want->kept || got->ended != want->ended ||
        memcmp(got->data, want->data, got->kept) != 0)
        fail_msg("seed %llu: a line of %llu bytes differs", (unsigned long long)seed, (unsigned long long)want->len);
}

static void split_one(uint64_t seed)
{
    static char text[TEXT];
    uint64_t random = seed * 2 + 1;
    const size_t len = make_text(&random, text), keep = 1 + next_random(&random) % 300,
                 chunk = 1 + next_random(&random) % 200;
    naive reference = {text, text + len, keep};
    once_lines lines;
    once_line got, want;
    size_t fed = 0;
    once_lines_init(&lines, keep);
    for (bool last = false; !last;) {
        size_t n = 1 + next_random(&random) % chunk;
        if (n > len - fed) n = len - fed;
        last = n == 0;
        char *room = once_lines_room(&lines, chunk);
        assert_non_null(room);
        memcpy(room, text + fed, n);
        once_lines_fed(&lines, n);
        fed += n;
        assert_in_range(lines.capacity, chunk, keep + chunk);
        while (once_lines_next(&lines, last, &got)) {
            assert_true(naive_next(&reference, &want));
            same_line(&got, &want, seed);
        }
        assert_int_equal(once_lines_held(&lines), (uint64_t)(text + fed - reference.at));
    }
    assert_false(naive_next(&reference, &want));
    once_lines_release(&lines);
}

static void f84_lines_are_those_of_a_naive_splitter(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) split_one(seed);
}

static void f84_a_line_without_end_needs_no_more_memory(void **state)
{
    (void)state;
    enum { KEEP = 10000, CHUNK = 4096, CHUNKS = 300000 }; /* more than a gigabyte */
    once_lines lines;
    once_line line;
    once_lines_init(&lines, KEEP);
    for (int i = 0; i < CHUNKS; i++) {
        char *room = once_lines_room(&lines, CHUNK);
        assert_non_null(room);
        if (i < 4) memset(room, 'x', CHUNK);
        if (i == CHUNKS - 1) room[CHUNK - 1] = '\n';
        once_lines_fed(&lines, CHUNK);
        assert_int_equal(once_lines_next(&lines, false, &line), i == CHUNKS - 1);
        assert_in_range(lines.capacity, CHUNK, KEEP + CHUNK);
    }
    assert_int_equal(line.len, (uint64_t)CHUNK * CHUNKS - 1);
    assert_int_equal(line.kept, KEEP);
    assert_true(line.ended);
    assert_int_equal(once_lines_held(&lines), 0);
    once_lines_release(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f84_lines_are_those_of_a_naive_splitter),
        cmocka_unit_test(f84_a_line_without_end_needs_no_more_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
