/* The file source under rotation, against a naive reader: a writer appends pieces of lines, renames, copies and
 * truncates; a reader with short and interrupted reads fetches, commits, is killed and starts again. What is committed
 * must be each line once, at its place. */
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

#include "source/file.h"
#include "source/place.h"

enum { SEEDS = 150, STEPS = 120, FILES = 40, LINES = 400, LINE = 96, MESSAGE_MAX = 64 };

/* A line as it was written, complete or not. */
typedef struct written {
    char text[LINE];
    size_t len;
    unsigned committed;
} written;

/* What was written under the path from one rotation to the next. */
typedef struct era {
    written lines[LINES];
    size_t n;  /* the last one may be open */
    bool open; /* the last one has no newline yet */
} era;

typedef struct world {
    uint64_t seed, random;
    char dir[64], path[80];
    era *eras; /* index 0 is the first file */
    size_t n_eras;
    unsigned rotations, counter;
    size_t copied; /* the newest file whose place was made free by truncating */
    int late;      /* the file that was renamed last, whose writer has not noticed; -1: none */
    bool gone;     /* for a moment no file has the path */

    once_env env;
    size_t at_most;
    bool interrupt;
    unsigned reads;
    int64_t now_ms;
    once_spec spec;
    once_source *source;
    once_batch batch;
    char cursor[ONCE_PLACES_TEXT + 1], files[ONCE_PLACES_TEXT + 1]; /* committed */
} world;

static uint64_t roll(world *w, uint64_t n)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (w->random >> 33) % n;
}

/* --- the environment --- */

static ssize_t short_read(void *self, int fd, void *out, size_t len)
{
    world *w = self;
    if (w->interrupt && ++w->reads % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return read(fd, out, w->at_most < len ? w->at_most : len);
}

static int plain_open(void *self, const char *path, int flags, int mode)
{
    (void)self;
    return open(path, flags, mode);
}

static int plain_close(void *self, int fd)
{
    (void)self;
    return close(fd);
}

static void pass_time(void *self, int64_t ms) { ((world *)self)->now_ms += ms; }
static int64_t clock_ns(void *self) { return ((world *)self)->now_ms * 1000000; }

/* --- the writer --- */

static void append_bytes(world *w, const char *path, era *e, const char *data, size_t len)
{
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, data, len) == (ssize_t)len);
    close(fd);
    for (size_t i = 0; i < len; i++) {
        if (!e->open && data[i] != '\n') e->n++, e->open = true;
        else if (!e->open) e->n++; /* a blank line */
        assert_true(e->n <= LINES);
        if (data[i] == '\n') {
            e->open = false;
            continue;
        }
        written *line = &e->lines[e->n - 1];
        assert_true(line->len < LINE);
        line->text[line->len++] = data[i];
    }
    (void)w;
}

/* A piece of text: whole lines, halves, blank ones, and some that are longer than message_max. */
static void write_some(world *w, const char *path, era *e)
{
    char text[LINE * 4];
    size_t len = 0;
    for (uint64_t n = 1 + roll(w, 3); n > 0; n--) {
        if (!e->open || len > 0)
            len += (size_t)sprintf(text + len, "%s%u%.*s", roll(w, 8) ? "" : "\n", ++w->counter,
                                   (int)(roll(w, 6) ? roll(w, 9) : 70),
                                   "----------------------------------------------------------------------");
        if (n > 1 || roll(w, 3)) text[len++] = '\n';
        else break;
    }
    if (e->open && len && text[0] != '\n' && roll(w, 2)) memmove(text + 1, text, len++), text[0] = '\n';
    if (e->n + 8 < LINES && (!e->open || e->lines[e->n - 1].len + len < LINE || text[0] == '\n'))
        append_bytes(w, path, e, text, len);
}

static era *now(world *w) { return &w->eras[w->n_eras - 1]; }

/* Whether the reader finds all files if it is killed now, although it may not have seen the newest ones. What a file
 * had that was truncated is known by its first bytes; what was never seen, by its name and its times. */
static bool may_rotate(const world *w, bool by_copy)
{
    once_places places;
    if (!once_places_read((once_bytes){w->cursor, strlen(w->cursor)}, &places) || places.n == 0) return false;
    const once_place *last = &places.at[places.n - 1];
    const size_t unseen = w->n_eras - last->number;
    if (places.n + unseen >= 8) return false;
    return by_copy ? unseen == 0 && last->head_len > 0 : w->copied <= last->number;
}

/* Each file that is rotated away was written to later than the one before, also when all of it happens in one tick of
 * the clock. */
static void set_time(const char *path, unsigned rotation)
{
    const struct timespec at = {.tv_sec = 4000000000 + rotation}, times[2] = {at, at};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void rotate_name(const world *w, char out[100]) { snprintf(out, 100, "%s.%u", w->path, w->rotations); }

static void rotate_by_rename(world *w)
{
    char to[100];
    if (w->gone || !may_rotate(w, false) || w->n_eras == FILES) return;
    w->rotations++;
    rotate_name(w, to);
    assert_int_equal(rename(w->path, to), 0);
    set_time(to, w->rotations);
    w->gone = true;
    w->now_ms += 5000;
    w->late = (int)w->n_eras - 1;
}

static void create_again(world *w)
{
    const int fd = open(w->path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
    w->gone = false;
    w->n_eras++;
}

static void rotate_by_copy(world *w)
{
    char to[100], data[65536];
    if (w->gone || !may_rotate(w, true) || w->n_eras == FILES || now(w)->n == 0) return;
    w->rotations++;
    rotate_name(w, to);
    const int from = open(w->path, O_RDONLY), copy = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    const ssize_t n = read(from, data, sizeof data);
    assert_true(n >= 0 && n < (ssize_t)sizeof data && write(copy, data, (size_t)n) == n);
    close(from);
    close(copy);
    set_time(to, w->rotations);
    assert_int_equal(truncate(w->path, 0), 0);
    w->late = -1;
    w->now_ms += 5000;
    w->copied = ++w->n_eras;
}

/* --- the reader --- */

static void keep(const once_places *places, char out[ONCE_PLACES_TEXT + 1])
{
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_write(places, &text);
    assert_false(text.failed);
    memcpy(out, text.data, text.len + 1);
    once_buf_release(&text);
}

/* As a run does: where it begins is kept before anything is read. */
static void start(world *w)
{
    static const once_hash lock = {1, 2};
    once_error err = {0};
    once_places places;
    assert_int_equal(once__file_ops.open(&w->spec, &w->env, ONCE_OPEN_RUN, (once_cancel){0}, &w->source, &err),
                     ONCE_OK);
    const once_kept_places kept = {
        .files = {w->files, strlen(w->files)}, .cursor = {w->cursor, strlen(w->cursor)}, .lock = &lock};
    if (once__file_start(w->source, &kept, &err) != ONCE_OK)
        fail_msg("seed %llu: %s", (unsigned long long)w->seed, err.text);
    once__file_places(w->source, &places);
    if (places.n) keep(&places, w->cursor);
}

/* And the numbers of files, with those from before. */
static void keep_files(world *w, once_places places)
{
    once_places before;
    if (once_places_read((once_bytes){w->files, strlen(w->files)}, &before)) once_places_add_known(&places, &before);
    keep(&places, w->files);
}

static void kill_reader(world *w)
{
    w->source->ops->close(w->source);
    w->source = NULL;
}

static void check_item(world *w, const once_item *item, bool commit)
{
    const once_coordinates *at = &item->message.at;
    const size_t path = strlen(w->path);
    const size_t number = at->place.len == path ? 1 : strtoul(at->place.data + path + 1, NULL, 10);
    const size_t line = strtoul(at->point.data, NULL, 10);
    if (number < 1 || number > w->n_eras || line < 1 || line > w->eras[number - 1].n)
        fail_msg("seed %llu: nothing was written at file %zu line %zu", (unsigned long long)w->seed, number, line);
    written *want = &w->eras[number - 1].lines[line - 1];
    const size_t kept = want->len < MESSAGE_MAX ? want->len : MESSAGE_MAX;
    if (item->message.body.len != kept || memcmp(item->message.body.data, want->text, kept) != 0 ||
        item->message.cut_from != (want->len > kept ? want->len : 0))
        fail_msg("seed %llu: file %zu line %zu is '%.*s', not '%.*s'", (unsigned long long)w->seed, number, line,
                 (int)item->message.body.len, item->message.body.data, (int)want->len, want->text);
    want->committed += commit;
}

/* One fetch; commits a first part of it, or all. Returns what it got. */
static size_t fetch(world *w, bool all)
{
    once_error err = {0};
    once_arena_reset(&w->batch.arena);
    once_fetch what = {.max = 1 + roll(w, 6), .batch = &w->batch};
    if (w->source->ops->fetch(w->source, &what, &err) != ONCE_OK)
        fail_msg("seed %llu: %s", (unsigned long long)w->seed, err.text);
    const size_t n = w->batch.n, commits = all ? n : roll(w, n + 1);
    for (size_t i = 0; i < n; i++) check_item(w, &w->batch.items[i], i < commits);
    if (commits) {
        once_places places;
        once_places_behind(&w->batch.items[commits - 1], &places);
        keep(&places, w->cursor);
        keep_files(w, ((const once_resume *)w->batch.items[0].resume)->origin->places);
    }
    if (commits < n) { /* what was not committed comes again */
        kill_reader(w);
        start(w);
    }
    return n;
}

static void step(world *w)
{
    w->at_most = 1 + roll(w, 200);
    w->interrupt = roll(w, 2);
    switch (roll(w, 12)) {
    case 0: rotate_by_rename(w); break;
    case 1: rotate_by_copy(w); break;
    case 2: /* it has not noticed, and writes on */
        if (w->late >= 0) {
            char name[100];
            rotate_name(w, name);
            write_some(w, name, &w->eras[w->late]);
            set_time(name, w->rotations);
        }
        break;
    case 3:
        kill_reader(w);
        start(w);
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        if (w->gone && roll(w, 2)) create_again(w);
        if (!w->gone) write_some(w, w->path, now(w));
        break;
    default: (void)fetch(w, roll(w, 4) > 0);
    }
}

/* Everything that was written has come, each line once. */
static void check_all(world *w)
{
    for (size_t i = 0; i < w->n_eras; i++)
        for (size_t k = 0; k < w->eras[i].n; k++) {
            const written *line = &w->eras[i].lines[k];
            if (line->committed != (line->len > 0))
                fail_msg("seed %llu: file %zu line %zu '%.*s' was committed %u times", (unsigned long long)w->seed,
                         i + 1, k + 1, (int)line->len, line->text, line->committed);
        }
}

static void run_seed(uint64_t seed)
{
    world w = {.seed = seed,
               .random = seed,
               .late = -1,
               .n_eras = 1,
               .spec = {.batch_wait_ms = 1, .message_max = MESSAGE_MAX}};
    char command[120];
    w.eras = calloc(FILES, sizeof *w.eras);
    memcpy(w.dir, "/tmp/once-rotate.XXXXXX", 24);
    assert_non_null(mkdtemp(w.dir));
    snprintf(w.path, sizeof w.path, "%s/in", w.dir);
    w.env = *once_env_real();
    w.env.self = &w, w.env.open = plain_open, w.env.read = short_read, w.env.close = plain_close;
    w.env.sleep_ms = pass_time, w.env.mono_ns = clock_ns;
    const once_file_spec file = {.path = {w.path, strlen(w.path)}, .follow = true, .cursor = true};
    w.spec.source.own = &file;
    once__file_conclude(&w.spec.source);
    append_bytes(&w, w.path, now(&w), "first\n", 6);
    start(&w);
    for (int i = 0; i < STEPS; i++) step(&w);
    if (w.gone) create_again(&w);
    if (now(&w)->open) append_bytes(&w, w.path, now(&w), "\n", 1);
    for (int quiet = 0; quiet < 5;) { /* files that lost the path are over after a while */
        quiet = fetch(&w, true) ? 0 : quiet + 1;
        w.now_ms += 20000;
    }
    check_all(&w);
    kill_reader(&w);
    once_arena_release(&w.batch.arena);
    free(w.eras);
    snprintf(command, sizeof command, "rm -r %s", w.dir);
    assert_int_equal(system(command), 0);
}

static void f84_rotation_against_a_naive_reader(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) run_seed(seed);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        run_seed(strtoull(argv[1], NULL, 10));
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(f84_rotation_against_a_naive_reader)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
