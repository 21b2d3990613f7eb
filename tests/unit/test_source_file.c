/* The file source: lines, coordinates, and a file system that misbehaves. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "source/source.h"

/* An environment whose reads are short, interrupted, or fail at call n. */
typedef struct bad_files {
    const once_env *real;
    size_t at_most;   /* bytes per read; 0: as asked */
    int interrupt;    /* every second read answers EINTR */
    int fail_at, fail_errno, calls;
} bad_files;

static int bad_open(void *self, const char *path, int flags, int mode)
{
    bad_files *b = self;
    if (b->fail_errno == EMFILE) {
        errno = EMFILE;
        return -1;
    }
    return b->real->open(b->real->self, path, flags, mode);
}

static ssize_t bad_read(void *self, int fd, void *out, size_t len)
{
    bad_files *b = self;
    b->calls++;
    if (b->fail_at && b->calls == b->fail_at) {
        errno = b->fail_errno;
        return -1;
    }
    if (b->interrupt && b->calls % 2) {
        errno = EINTR;
        return -1;
    }
    return b->real->read(b->real->self, fd, out, b->at_most && b->at_most < len ? b->at_most : len);
}

static int real_close(void *self, int fd)
{
    bad_files *b = self;
    return b->real->close(b->real->self, fd);
}

static void no_sleep(void *self, int64_t ms)
{
    (void)self, (void)ms;
}

typedef struct fixture {
    char dir[64], path[80];
    bad_files files;
    once_env env;
    once_spec spec;
    once_source *source;
    once_batch batch;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    memcpy(f->dir, "/tmp/once-file.XXXXXX", 22);
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/in", f->dir);
    f->files.real = once_env_real();
    f->env = *once_env_real();
    f->env.self = &f->files;
    f->env.open = bad_open;
    f->env.read = bad_read;
    f->env.close = real_close;
    f->env.sleep_ms = no_sleep;
    f->spec = (once_spec){.source = {.path = {f->path, strlen(f->path)}}, .batch_wait_ms = 5, .message_max = 1 << 20};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    if (f->source) f->source->ops->close(f->source);
    once_arena_release(&f->batch.arena);
    unlink(f->path);
    rmdir(f->dir);
    free(f);
    return 0;
}

static void write_file(fixture *f, const char *mode, const char *text, size_t len)
{
    FILE *out = fopen(f->path, mode);
    assert_non_null(out);
    assert_int_equal(fwrite(text, 1, len, out), len);
    fclose(out);
}

static int open_source(fixture *f)
{
    once_error err;
    return once_source_file.open(&f->spec, &f->env, &f->source, &err);
}

static int fetch(fixture *f, size_t max, bool *at_end)
{
    once_error err;
    once_arena_reset(&f->batch.arena);
    return f->source->ops->fetch(f->source, max, &f->batch, at_end, &err);
}

static void expect_item(fixture *f, size_t i, const char *body, const char *line)
{
    const once_message *m = &f->batch.items[i].message;
    assert_int_equal(m->body.len, strlen(body));
    assert_memory_equal(m->body.data, body, m->body.len);
    assert_int_equal(m->at.point.len, strlen(line));
    assert_memory_equal(m->at.point.data, line, m->at.point.len);
    assert_ptr_equal(f->batch.items[i].batch, &f->batch);
    assert_true(m->sent_ms == ONCE_NO_TIME);
}

static void lines_have_their_numbers_and_blank_ones_count(void **state)
{
    fixture *f = *state;
    bool at_end;
    write_file(f, "w", "one\n\n  \ntwo\r\nthree", 18);
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 3);
    assert_true(at_end);
    expect_item(f, 0, "one", "1");
    expect_item(f, 1, "two\r", "4"); /* white space to JSON */
    expect_item(f, 2, "three", "5");
    assert_true(f->source->ops->bits(f->source) == (ONCE_SOURCE_FINITE | ONCE_SOURCE_REDELIVERS));
}

static void batches_of_one_give_the_same_lines(void **state)
{
    fixture *f = *state;
    static const char *const points[] = {"1", "2", "3", "4"};
    static const char *const bodies[] = {"a", "bb", "ccc", "dddd"};
    write_file(f, "w", "a\nbb\nccc\ndddd\n", 14);
    assert_int_equal(open_source(f), ONCE_OK);
    for (size_t i = 0; i < 4; i++) {
        bool at_end;
        assert_int_equal(fetch(f, 1, &at_end), ONCE_OK);
        assert_int_equal(f->batch.n, 1);
        expect_item(f, 0, bodies[i], points[i]);
        if (at_end) assert_int_equal(i, 3);
    }
}

static void f56_short_and_interrupted_reads_lose_nothing(void **state)
{
    fixture *f = *state;
    char text[4000], body[20], line[20];
    size_t len = 0, seen = 0;
    for (int i = 0; i < 300; i++) len += (size_t)snprintf(text + len, sizeof text - len, "message %d\n", i);
    write_file(f, "w", text, len);
    f->files.at_most = 1;
    f->files.interrupt = 1;
    assert_int_equal(open_source(f), ONCE_OK);
    for (bool at_end = false; !at_end;) {
        assert_int_equal(fetch(f, 64, &at_end), ONCE_OK);
        for (size_t i = 0; i < f->batch.n; i++, seen++) {
            snprintf(body, sizeof body, "message %zu", seen);
            snprintf(line, sizeof line, "%zu", seen + 1);
            expect_item(f, i, body, line);
        }
    }
    assert_int_equal(seen, 300);
}

static void f56_a_read_that_fails_is_an_error_and_not_the_end(void **state)
{
    fixture *f = *state;
    bool at_end = false;
    write_file(f, "w", "a\nb\n", 4);
    f->files.fail_at = 2;
    f->files.fail_errno = EIO;
    f->files.at_most = 2;
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK); /* what was read before it comes first */
    assert_int_equal(f->batch.n, 1);
    assert_false(at_end);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_E_IO);
    assert_int_equal(f->batch.n, 0);
    assert_false(at_end);
}

static void f56_no_descriptor_left_is_said(void **state)
{
    fixture *f = *state;
    once_error err;
    write_file(f, "w", "a\n", 2);
    f->files.fail_errno = EMFILE;
    assert_int_equal(once_source_file.open(&f->spec, &f->env, &f->source, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "Too many open files"));
    assert_null(f->source);
}

static void a_long_line_comes_whole(void **state)
{
    fixture *f = *state;
    bool at_end;
    const size_t len = 10u << 20;
    f->spec.message_max = len;
    char *text = malloc(len + 3);
    memset(text, 'x', len);
    memcpy(text + len, "\ny\n", 3);
    write_file(f, "w", text, len + 3);
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 1); /* it fills a batch */
    assert_int_equal(f->batch.items[0].message.body.len, len);
    assert_int_equal(f->batch.items[0].message.cut_from, 0);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 1);
    expect_item(f, 0, "y", "2");
    free(text);
}

static void f84_a_line_longer_than_message_max_is_cut_and_says_so(void **state)
{
    fixture *f = *state;
    bool at_end = false;
    size_t n = 0, cut = 0;
    enum { MAX = 1000 };
    f->spec.message_max = MAX;
    const size_t lens[] = {MAX - 1, MAX, MAX + 1, 700000, 1, 3 * MAX, 262144, 262145, 5};
    char *text = malloc(2000000);
    size_t len = 0;
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        memset(text + len, 'a' + (int)i, lens[i]);
        text[len + lens[i]] = '\n';
        len += lens[i] + 1;
    }
    write_file(f, "w", text, len - 1); /* the last one without its newline */
    assert_int_equal(open_source(f), ONCE_OK);
    while (!at_end) {
        assert_int_equal(fetch(f, 4, &at_end), ONCE_OK);
        for (size_t i = 0; i < f->batch.n; i++, n++) {
            const once_message *m = &f->batch.items[i].message;
            assert_int_equal(m->body.len, lens[n] < MAX ? lens[n] : MAX);
            assert_int_equal(m->body.data[0], 'a' + (int)n);
            assert_int_equal(m->body.data[m->body.len - 1], 'a' + (int)n);
            assert_int_equal(m->cut_from, lens[n] > MAX ? lens[n] : 0);
            cut += m->cut_from > 0;
        }
    }
    assert_int_equal(n, sizeof lens / sizeof *lens);
    assert_int_equal(cut, 5);
    free(text);
}

static void f84_a_batch_is_bounded_in_bytes(void **state)
{
    fixture *f = *state;
    bool at_end = false;
    size_t n = 0, fetches = 0;
    enum { LINE = 100000, LINES = 300 };
    char *text = malloc(LINE);
    memset(text, 'x', LINE);
    text[LINE - 1] = '\n';
    for (int i = 0; i < LINES; i++) write_file(f, "a", text, LINE);
    assert_int_equal(open_source(f), ONCE_OK);
    while (!at_end) {
        assert_int_equal(fetch(f, 1024, &at_end), ONCE_OK);
        n += f->batch.n;
        fetches++;
        assert_in_range(f->batch.n, 0, 45);
    }
    assert_int_equal(n, LINES);
    assert_in_range(fetches, 7, 12);
    free(text);
}

static void following_waits_for_the_end_of_a_line(void **state)
{
    fixture *f = *state;
    bool at_end;
    f->spec.source.follow = true;
    write_file(f, "w", "a\nhal", 5);
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(f->source->ops->bits(f->source), ONCE_SOURCE_REDELIVERS);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 1);
    assert_false(at_end);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 0);
    write_file(f, "a", "f\n", 2);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, 1);
    expect_item(f, 0, "half", "2");
}

static void a_followed_file_that_shrinks_or_is_replaced_stops_the_source(void **state)
{
    fixture *f = *state;
    bool at_end;
    once_error err;
    f->spec.source.follow = true;
    write_file(f, "w", "a\nb\n", 4);
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(truncate(f->path, 1), 0);
    once_arena_reset(&f->batch.arena);
    assert_int_equal(f->source->ops->fetch(f->source, 10, &f->batch, &at_end, &err), ONCE_E_CORRUPT);
    assert_non_null(strstr(err.text, "truncated"));
    assert_int_equal(unlink(f->path), 0);
    write_file(f, "w", "a\nb\nc\n", 6);
    once_arena_reset(&f->batch.arena);
    assert_int_equal(f->source->ops->fetch(f->source, 10, &f->batch, &at_end, &err), ONCE_E_CORRUPT);
}

static void a_directory_is_refused(void **state)
{
    fixture *f = *state;
    once_error err;
    f->spec.source.path = (once_bytes){f->dir, strlen(f->dir)};
    assert_int_equal(once_source_file.open(&f->spec, &f->env, &f->source, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "is a directory"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(lines_have_their_numbers_and_blank_ones_count),
        TEST(batches_of_one_give_the_same_lines),
        TEST(f56_short_and_interrupted_reads_lose_nothing),
        TEST(f56_a_read_that_fails_is_an_error_and_not_the_end),
        TEST(f56_no_descriptor_left_is_said),
        TEST(a_long_line_comes_whole),
        TEST(f84_a_line_longer_than_message_max_is_cut_and_says_so),
        TEST(f84_a_batch_is_bounded_in_bytes),
        TEST(following_waits_for_the_end_of_a_line),
        TEST(a_followed_file_that_shrinks_or_is_replaced_stops_the_source),
        TEST(a_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
