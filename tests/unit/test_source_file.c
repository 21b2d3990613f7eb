/* The file source: lines, coordinates, and a file system that misbehaves. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "source/file.h"
#include "source/place.h"

/* An environment whose reads are short, interrupted, or fail at call n. */
typedef struct bad_files {
    const once_env *real;
    size_t at_most; /* bytes per read; 0: as asked */
    int interrupt;  /* every second read answers EINTR */
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

static void no_sleep(void *self, int64_t ms) { (void)self, (void)ms; }

typedef struct fixture {
    char dir[64], path[80];
    bad_files files;
    once_env env;
    once_file_spec file;
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
    f->file = (once_file_spec){.path = {f->path, strlen(f->path)}};
    f->spec = (once_spec){.source = {.own = &f->file}, .batch_wait_ms = 5, .message_max = 1 << 20};
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

static int open_file_source(fixture *f, once_error *err)
{
    once__file_conclude(&f->spec.source);
    return once__file_ops.open(&f->spec, &f->env, ONCE_OPEN_RUN, (once_cancel){0}, &f->source, err);
}

static int open_source(fixture *f)
{
    once_error err;
    return open_file_source(f, &err);
}

static int fetch(fixture *f, size_t max, bool *at_end)
{
    once_error err;
    once_arena_reset(&f->batch.arena);
    once_fetch what = {.max = max, .batch = &f->batch};
    const int rc = f->source->ops->fetch(f->source, &what, &err);
    *at_end = what.at_end;
    return rc;
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
    assert_true(f->source->ops->bits(f->source) == (ONCE_SOURCE_FINITE | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE));
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
    assert_int_equal(open_file_source(f, &err), ONCE_E_CONFIG);
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
    f->file.follow = true;
    write_file(f, "w", "a\nhal", 5);
    assert_int_equal(open_source(f), ONCE_OK);
    assert_int_equal(f->source->ops->bits(f->source), ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE);
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

/* --- places --- */

static void expect_place(const fixture *f, size_t i, const char *more)
{
    char place[100];
    snprintf(place, sizeof place, "%s%s", f->path, more);
    const once_bytes at = f->batch.items[i].message.at.place;
    assert_int_equal(at.len, strlen(place));
    assert_memory_equal(at.data, place, at.len);
}

/* The cursor behind the i-th message of the last fetch, as text. */
static void cursor_behind(const fixture *f, size_t i, char out[ONCE_PLACES_TEXT + 1])
{
    once_places places;
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_behind(&f->batch.items[i], &places);
    once_places_write(&places, &text);
    assert_false(text.failed);
    memcpy(out, text.data, text.len + 1);
    once_buf_release(&text);
}

static int start_at(fixture *f, const char *files, const char *cursor, once_error *err)
{
    if (f->source) f->source->ops->close(f->source);
    f->source = NULL;
    const int rc = open_source(f);
    if (rc != ONCE_OK) return rc;
    const once_kept_places kept = {.files = {files, strlen(files)}, .cursor = {cursor, strlen(cursor)}};
    return once__file_start(f->source, &kept, err);
}

/* A store with one fact of each of these kinds. */
typedef struct fake_facts {
    once_facts base;
    char files[ONCE_PLACES_TEXT + 1], cursor[ONCE_PLACES_TEXT + 1];
    unsigned gets, sets;
} fake_facts;

static char *fake_value(const once_facts *base, const char *kind)
{
    fake_facts *facts = (fake_facts *)base;
    assert_true(strcmp(kind, "files") == 0 || strcmp(kind, "cursor") == 0);
    return kind[0] == 'f' ? facts->files : facts->cursor;
}

static int fake_get(const once_facts *base, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
                    once_error *err)
{
    (void)name, (void)arena, (void)err;
    ((fake_facts *)base)->gets++;
    const char *value = fake_value(base, kind);
    *out = (once_bytes){value, strlen(value)};
    return ONCE_OK;
}

static int fake_set(const once_facts *base, const char *kind, once_bytes name, once_bytes value, once_error *err)
{
    (void)name, (void)err;
    assert_true(value.len > 0 && value.len <= ONCE_PLACES_TEXT);
    ((fake_facts *)base)->sets++;
    char *to = fake_value(base, kind);
    memcpy(to, value.data, value.len);
    to[value.len] = '\0';
    return ONCE_OK;
}

static void fetch_all(fixture *f, size_t want)
{
    bool at_end;
    assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
    assert_int_equal(f->batch.n, want);
}

/* Whether a transaction was committed the source finds in the next one; then it does not even ask. */
static void numbers_of_files_are_kept_again_until_they_are_in_the_store(void **state)
{
    fixture *f = *state;
    once_error err;
    fake_facts facts = {.base = {.get = fake_get, .set = fake_set}};
    write_file(f, "w", "one\ntwo\n", 8);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    once_item *items[] = {&f->batch.items[0], &f->batch.items[1], &(once_item){0}}; /* one from the store */
    for (unsigned i = 1; i <= 3; i++) {
        facts.files[0] = '\0'; /* rolled back */
        facts.base.transaction++;
        for (int k = 0; k < 3; k++) { /* what is found in the same one is our own */
            assert_int_equal(once__file_keep(f->source, &facts.base, items, 3, NULL, 0, &err), ONCE_OK);
            assert_int_equal(facts.sets, i);
            assert_int_equal(facts.gets, i);
        }
        assert_true(facts.files[0] != '\0');
    }
    for (int i = 0; i < 3; i++) {
        facts.base.transaction++;
        assert_int_equal(once__file_keep(f->source, &facts.base, items, 3, NULL, 0, &err), ONCE_OK);
    }
    assert_int_equal(facts.sets, 3);
    assert_int_equal(facts.gets, 4);
    assert_int_equal(facts.cursor[0], '\0');
}

static void f84_a_last_line_without_newline_shifts_nothing(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1];
    write_file(f, "w", "one\ntwo", 7);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    expect_item(f, 1, "two", "2");
    cursor_behind(f, 1, cursor);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK); /* the same again: it was handed out */
    fetch_all(f, 0);
    write_file(f, "a", "\nthree\n", 7);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "three", "3");
}

static void f84_a_half_written_last_line_is_not_passed_by_the_cursor(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1];
    write_file(f, "w", "one\n{\"id\"", 9);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    expect_item(f, 1, "{\"id\"", "2");
    cursor_behind(f, 1, cursor);
    write_file(f, "a", ": 2}\nthree", 10);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 2);
    expect_item(f, 0, "{\"id\": 2}", "2"); /* whole, at the same coordinates */
    expect_item(f, 1, "three", "3");
    f->file.follow = true; /* a follower waits for its end */
    cursor_behind(f, 0, cursor);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 0);
}

static void f84_a_long_last_line_that_was_rewritten_comes_again(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1], text[5001];
    memset(text, 'x', sizeof text);
    text[3] = '\n';
    write_file(f, "w", text, 5000);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    cursor_behind(f, 1, cursor);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK); /* as it was */
    fetch_all(f, 0);
    text[4999] = 'y';
    write_file(f, "r+", text, 5000);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK); /* what is not as it was is another file */
    fetch_all(f, 2);
    text[5000] = 0;
    expect_item(f, 1, text + 4, "2");
    expect_place(f, 1, "/2");
    cursor_behind(f, 1, cursor);
    write_file(f, "a", "\nz\n", 3);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "z", "3");
}

static void f84_a_cursor_behind_a_cut_line_is_found_again(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1], *text = malloc(700004);
    memset(text, 'x', 700000);
    memcpy(text + 700000, "\nb\n", 3);
    f->spec.message_max = 1000;
    write_file(f, "w", text, 700003);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    cursor_behind(f, 0, cursor);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "b", "2");
    expect_place(f, 0, "");
    write_file(f, "w", text, 650000); /* and as the last one, without its newline */
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 1);
    cursor_behind(f, 0, cursor);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 0);
    write_file(f, "a", "y\n", 2);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    assert_int_equal(f->batch.items[0].message.cut_from, 650001);
    free(text);
}

static void f84_cursors_of_before_are_understood(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[200];
    write_file(f, "w", "one\ntwo\nthree", 13);
    once_hash hash = once_xxh128(0, "two", 3);
    snprintf(cursor, sizeof cursor, "8 2 3 %016llx%016llx", (unsigned long long)hash.a, (unsigned long long)hash.b);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "three", "3");
    hash = once_xxh128(0, "three", 5); /* behind a line without its newline */
    snprintf(cursor, sizeof cursor, "13 3 5 %016llx%016llx", (unsigned long long)hash.a, (unsigned long long)hash.b);
    write_file(f, "a", "\nfour\n", 6);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "four", "4");
    write_file(f, "w", "another file\nof the same name\n", 30); /* nothing but the hash was kept of it */
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_E_CORRUPT);
    assert_non_null(strstr(err.text, "not the file that its cursor belongs to"));
    assert_int_equal(start_at(f, "", "v2 1", &err), ONCE_E_CORRUPT);
    assert_int_equal(start_at(f, "v2 1 2 3", "", &err), ONCE_E_CORRUPT);
}

static void f84_another_file_begins_at_its_beginning_under_its_own_number(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1], other[100];
    write_file(f, "w", "one\ntwo\n", 8);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    cursor_behind(f, 1, cursor);
    write_file(f, "w", "uno\ndue\ntre\n", 12); /* written over it */
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
    fetch_all(f, 3);
    expect_item(f, 0, "uno", "1");
    expect_place(f, 0, "/2");
    cursor_behind(f, 2, cursor);
    snprintf(other, sizeof other, "%s.new", f->path); /* written anew as a whole: the same file */
    FILE *out = fopen(other, "w");
    fputs("uno\ndue\ntre\nquattro\n", out);
    fclose(out);
    assert_int_equal(rename(other, f->path), 0);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
    fetch_all(f, 1);
    expect_item(f, 0, "quattro", "4");
    expect_place(f, 0, "/2");
    write_file(f, "w", "UNO\ndue\n", 8); /* who reads it whole each time has corrected it */
    assert_int_equal(start_at(f, cursor, "", &err), ONCE_OK);
    fetch_all(f, 2);
    expect_place(f, 0, "/2");
    fetch_all(f, 0);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK); /* with a cursor it is another one */
    fetch_all(f, 2);
    expect_place(f, 0, "/3");
}

static void f84_a_finite_run_reads_the_rest_of_the_rotated_file_first(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1], old[100];
    snprintf(old, sizeof old, "%s.1", f->path);
    write_file(f, "w", "one\ntwo\nthree", 13);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 3);
    cursor_behind(f, 0, cursor);
    assert_int_equal(rename(f->path, old), 0);
    write_file(f, "w", "one\n", 4);
    assert_int_equal(start_at(f, "", cursor, &err), ONCE_OK);
    fetch_all(f, 2);
    expect_item(f, 0, "two", "2");
    expect_item(f, 1, "three", "3");
    expect_place(f, 0, "");
    fetch_all(f, 1);
    expect_item(f, 0, "one", "1");
    expect_place(f, 0, "/2");
    unlink(old);
}

/* Beside the file of the path. */
static const char *other_name(const fixture *f, const char *more)
{
    static char name[2][100];
    static unsigned turn;
    char *out = name[turn++ % 2];
    snprintf(out, sizeof *name, "%s%s", f->path, more);
    return out;
}

/* All of them begin with the same line, so that each may look like a copy of another. */
static void f84_a_rotated_file_is_found_by_its_inode_before_copies(void **state)
{
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1];
    for (int renamed = 0; renamed < 4; renamed++) { /* in whichever order the folder lists them */
        const char *const first = renamed & 1 ? ".1" : ".2", *const second = renamed & 1 ? ".2" : ".1";
        write_file(f, "w", "H\nA1\nA2\n", 8);
        assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
        fetch_all(f, 3);
        cursor_behind(f, 2, cursor);
        assert_int_equal(rename(f->path, other_name(f, ".first")), 0);
        write_file(f, "w", "H\n", 2);
        assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
        for (f->batch.n = 0; f->batch.n == 0;) { /* the rest of the first one is nothing */
            bool at_end;
            assert_int_equal(fetch(f, 10, &at_end), ONCE_OK);
        }
        expect_place(f, 0, "/2");
        cursor_behind(f, 0, cursor);
        write_file(f, "a", "B1\nB2\n", 6);
        if (renamed & 2) assert_int_equal(rename(other_name(f, ".first"), other_name(f, first)), 0);
        assert_int_equal(rename(f->path, other_name(f, second)), 0);
        if (!(renamed & 2)) assert_int_equal(rename(other_name(f, ".first"), other_name(f, first)), 0);
        write_file(f, "w", "H\nC1\n", 5);
        assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
        fetch_all(f, 2);
        expect_item(f, 0, "B1", "2");
        expect_item(f, 1, "B2", "3");
        expect_place(f, 0, "/2");
        fetch_all(f, 2);
        expect_item(f, 1, "C1", "2");
        expect_place(f, 1, "/3");
        unlink(other_name(f, ".1"));
        unlink(other_name(f, ".2"));
        unlink(f->path);
    }
}

static void replace_file(const fixture *f, const char *text)
{
    const char *other = other_name(f, ".new");
    FILE *out = fopen(other, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
    assert_int_equal(rename(other, f->path), 0);
}

static void f84_what_a_replaced_file_had_and_was_not_read_comes_first(void **state)
{
    fixture *f = *state;
    once_error err;
    f->file.follow = true;
    write_file(f, "w", "H\n", 2);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 1);
    write_file(f, "a", "B1\nB2\n", 6);
    replace_file(f, "H\nC1\nC2\nC3\n"); /* begins as the old one did, as far as that was read */
    fetch_all(f, 2);
    expect_item(f, 0, "B1", "2");
    expect_item(f, 1, "B2", "3");
    expect_place(f, 0, "");
    fetch_all(f, 4);
    expect_item(f, 0, "H", "1");
    expect_item(f, 3, "C3", "4");
    expect_place(f, 0, "/2");
    write_file(f, "a", "C4\n", 3);
    replace_file(f, "H\nC1\nC2\nC3\nC4\nC5\n"); /* written anew with all that it had: the same file */
    fetch_all(f, 2);
    expect_item(f, 0, "C4", "5");
    expect_item(f, 1, "C5", "6");
    expect_place(f, 0, "/2");
}

/* As SQLite has it; told by another process, because one's own locks are in nobody's way. */
static int lock_whole(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT, 0600);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_SETLK, &whole), 0);
    return fd;
}

static bool is_locked(const char *path)
{
    const pid_t child = fork();
    if (child == 0) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &whole) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) == 1;
}

/* By name, by inode, and by what is in them, files of the folder are looked at; a store among them keeps its locks. */
static void f84_a_store_beside_the_source_keeps_its_locks(void **state)
{
    static const char *const names[] = {".db", ".1", ".db-shm", ".db-wal"};
    fixture *f = *state;
    once_error err;
    char cursor[ONCE_PLACES_TEXT + 1];
    int fds[4];
    f->file.follow = true;
    write_file(f, "w", "H\nA1\n", 5);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 2);
    cursor_behind(f, 1, cursor);
    for (size_t i = 0; i < 4; i++) fds[i] = lock_whole(other_name(f, names[i]));
    assert_int_equal(rename(f->path, other_name(f, ".gone")), 0); /* its inode is looked for in the folder */
    write_file(f, "w", "C1\n", 3);
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
    unlink(other_name(f, ".gone"));
    fetch_all(f, 1);
    unlink(f->path); /* and now the copies are looked at */
    assert_int_equal(start_at(f, cursor, cursor, &err), ONCE_OK);
    for (size_t i = 0; i < 4; i++) {
        assert_true(is_locked(other_name(f, names[i])));
        close(fds[i]);
        unlink(other_name(f, names[i]));
    }
}

static void f84_a_database_is_no_source(void **state)
{
    fixture *f = *state;
    once_error err;
    write_file(f, "w", "SQLite format 3\0rest", 20);
    assert_int_equal(open_file_source(f, &err), ONCE_E_CONFIG);
    assert_non_null(strstr(err.text, "is an SQLite database"));
}

static void f84_a_followed_file_is_waited_for(void **state)
{
    fixture *f = *state;
    once_error err;
    f->file.follow = true;
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 0);
    write_file(f, "w", "one\n", 4);
    fetch_all(f, 1);
    expect_item(f, 0, "one", "1");
    expect_place(f, 0, "");
    assert_int_equal(unlink(f->path), 0);
    fetch_all(f, 0);
    write_file(f, "w", "two\n", 4);
    fetch_all(f, 1);
    expect_item(f, 0, "two", "1");
    expect_place(f, 0, "/2");
}

/* How often the log has these words. */
static size_t times_said(int log, const char *words)
{
    static char text[20000];
    size_t n = 0;
    const ssize_t len = pread(log, text, sizeof text - 1, 0);
    assert_true(len >= 0);
    text[len] = 0;
    for (const char *at = text; (at = strstr(at, words)); at++) n++;
    return n;
}

static void f84_a_path_that_cannot_be_read_is_said_once(void **state)
{
    fixture *f = *state;
    once_error err;
    FILE *log = tmpfile();
    assert_non_null(log);
    assert_true(once_log_open_fd(fileno(log), ONCE_LOG_LOGFMT, ONCE_LOG_WARN));
    f->file.follow = true;
    write_file(f, "w", "one\n", 4);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    fetch_all(f, 1);
    assert_int_equal(unlink(f->path), 0);
    fetch_all(f, 0); /* none for a while is nothing to say */
    assert_int_equal(mkdir(f->path, 0700), 0);
    for (int i = 0; i < 3; i++) fetch_all(f, 0);
    assert_int_equal(rmdir(f->path), 0);
    assert_int_equal(mkfifo(f->path, 0600), 0);
    for (int i = 0; i < 3; i++) fetch_all(f, 0);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(symlink("in", f->path), 0);
    for (int i = 0; i < 3; i++) fetch_all(f, 0);
    assert_int_equal(unlink(f->path), 0);
    write_file(f, "w", "two\n", 4);
    f->files.fail_errno = EMFILE;
    for (int i = 0; i < 3; i++) fetch_all(f, 0);
    f->files.fail_errno = 0;
    fetch_all(f, 1);
    expect_item(f, 0, "two", "1");
    once_log_close();
    assert_int_equal(times_said(fileno(log), "event=source_unreadable"), 4);
    assert_int_equal(times_said(fileno(log), "Is a directory"), 1);
    assert_int_equal(times_said(fileno(log), "no longer a regular file"), 1);
    assert_int_equal(times_said(fileno(log), "symbolic links"), 1);
    assert_int_equal(times_said(fileno(log), "Too many open files"), 1);
    fclose(log);
}

static void f84_a_followed_pipe_without_a_writer_is_not_waited_for_in_open(void **state)
{
    fixture *f = *state;
    f->file.follow = true;
    assert_int_equal(mkfifo(f->path, 0600), 0);
    alarm(60); /* it would wait for ever */
    assert_int_equal(open_source(f), ONCE_OK);
    alarm(0);
    fetch_all(f, 0);
    const int fd = open(f->path, O_WRONLY | O_NONBLOCK);
    assert_true(fd >= 0 && write(fd, "one\n", 4) == 4);
    fetch_all(f, 1);
    expect_item(f, 0, "one", "1");
    close(fd);
}

static void f84_a_file_that_shrinks_while_it_is_read_is_an_error(void **state)
{
    fixture *f = *state;
    once_error err;
    bool at_end;
    write_file(f, "w", "one\ntwo\n", 8);
    assert_int_equal(start_at(f, "", "", &err), ONCE_OK);
    assert_int_equal(fetch(f, 1, &at_end), ONCE_OK);
    assert_int_equal(truncate(f->path, 2), 0);
    assert_int_equal(fetch(f, 1, &at_end), ONCE_OK);
    once_arena_reset(&f->batch.arena);
    once_fetch what = {.max = 10, .batch = &f->batch};
    assert_int_equal(f->source->ops->fetch(f->source, &what, &err), ONCE_E_CORRUPT);
    assert_false(what.at_end);
    assert_non_null(strstr(err.text, "truncated"));
}

static void a_directory_is_refused(void **state)
{
    fixture *f = *state;
    once_error err;
    f->file.path = (once_bytes){f->dir, strlen(f->dir)};
    assert_int_equal(open_file_source(f, &err), ONCE_E_CONFIG);
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
        TEST(numbers_of_files_are_kept_again_until_they_are_in_the_store),
        TEST(f84_a_last_line_without_newline_shifts_nothing),
        TEST(f84_a_half_written_last_line_is_not_passed_by_the_cursor),
        TEST(f84_a_long_last_line_that_was_rewritten_comes_again),
        TEST(f84_a_cursor_behind_a_cut_line_is_found_again),
        TEST(f84_cursors_of_before_are_understood),
        TEST(f84_another_file_begins_at_its_beginning_under_its_own_number),
        TEST(f84_a_finite_run_reads_the_rest_of_the_rotated_file_first),
        TEST(f84_a_rotated_file_is_found_by_its_inode_before_copies),
        TEST(f84_what_a_replaced_file_had_and_was_not_read_comes_first),
        TEST(f84_a_store_beside_the_source_keeps_its_locks),
        TEST(f84_a_database_is_no_source),
        TEST(f84_a_followed_file_is_waited_for),
        TEST(f84_a_path_that_cannot_be_read_is_said_once),
        TEST(f84_a_followed_pipe_without_a_writer_is_not_waited_for_in_open),
        TEST(f84_a_file_that_shrinks_while_it_is_read_is_an_error),
        TEST(a_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
