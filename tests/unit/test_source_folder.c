/* The folder of a file source while files are renamed in it: at each entry that is read of it, one rotation. No file
 * may be missed, and none come before those that are older. */
#include <dirent.h>
#include <dlfcn.h>
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

enum { ENTRIES = 60, NUMBERS = 12 }; /* entries read: more than there are in all readings of one look */

typedef struct world {
    char dir[40], path[60];
    unsigned written; /* files: the first has the line A, and so on */
    int64_t now_ms;
    once_env env;
    once_spec spec;
    once_file_spec file;
    once_source *source;
    char cursor[ONCE_PLACES_TEXT + 1];
    char got[NUMBERS * 2]; /* the lines, in their order */
} world;

/* --- in the middle of reading a folder --- */

static struct {
    world *w;
    void (*act)(world *w);
    int at; /* before this entry; -1: behind the last one of each reading */
    int entries, acted;
} hook;

static bool is_its_folder(DIR *dir)
{
    struct stat a, b;
    return hook.w && fstat(dirfd(dir), &a) == 0 && stat(hook.w->dir, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

struct dirent *readdir(DIR *dir)
{
    static struct dirent *(*real)(DIR *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    struct dirent *entry = real(dir);
    const int error = errno;
    if (is_its_folder(dir) && (hook.at < 0 ? !entry : hook.entries++ == hook.at)) {
        hook.acted++;
        hook.act(hook.w);
    }
    errno = error;
    return entry;
}

static void act_at(world *w, void (*act)(world *w), int at)
{
    hook.w = w, hook.act = act, hook.at = at, hook.entries = hook.acted = 0;
}

/* --- the writer --- */

static void name_of(const world *w, int number, char out[80])
{
    snprintf(out, 80, number ? "%s.%d" : "%s", w->path, number);
}

static void write_next(world *w)
{
    const struct timespec at = {.tv_sec = 4000000000 + w->written}, times[2] = {at, at};
    const char line[2] = {(char)('A' + w->written++), '\n'};
    const int fd = open(w->path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    assert_true(fd >= 0 && write(fd, line, 2) == 2);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static void shift(world *w, int from)
{
    for (int i = NUMBERS; i >= from; i--) {
        char a[80], b[80];
        name_of(w, i, a);
        name_of(w, i + 1, b);
        if (access(a, F_OK) == 0) assert_int_equal(rename(a, b), 0);
    }
}

static void rotate(world *w)
{
    shift(w, 0);
    write_next(w);
}

static void rotate_twice(world *w)
{
    rotate(w);
    rotate(w);
}

static void rotate_copies(world *w) { shift(w, 1); }

static void copy_and_truncate(world *w)
{
    char to[80], data[100];
    shift(w, 1);
    name_of(w, 1, to);
    const int from = open(w->path, O_RDWR), copy = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    const ssize_t n = read(from, data, sizeof data);
    assert_true(n > 0 && write(copy, data, (size_t)n) == n);
    assert_int_equal(ftruncate(from, 0), 0);
    close(from);
    close(copy);
}

/* Another name, and back. */
static void toggle(world *w)
{
    char a[80], b[80];
    name_of(w, 2, a);
    name_of(w, NUMBERS, b);
    if (rename(a, b) != 0) assert_int_equal(rename(b, a), 0);
}

/* --- the reader --- */

static void pass_time(void *self, int64_t ms) { ((world *)self)->now_ms += ms; }
static int64_t clock_ns(void *self) { return ((world *)self)->now_ms * 1000000; }

static int plain_open(void *self, const char *path, int flags, int mode)
{
    (void)self;
    return open(path, flags, mode);
}

static ssize_t plain_read(void *self, int fd, void *out, size_t len)
{
    (void)self;
    return read(fd, out, len);
}

static int plain_close(void *self, int fd)
{
    (void)self;
    return close(fd);
}

static int try_start(world *w, once_error *err)
{
    static const once_hash lock = {1, 2};
    const once_bytes cursor = {w->cursor, strlen(w->cursor)};
    const once_kept_places kept = {.files = cursor, .cursor = cursor, .lock = &lock};
    return once__file_start(w->source, &kept, err);
}

static void open_source(world *w)
{
    once_error err = {0};
    assert_int_equal(once__file_ops.open(&w->spec, &w->env, ONCE_OPEN_RUN, (once_cancel){0}, &w->source, &err),
                     ONCE_OK);
}

static void start(world *w)
{
    once_error err = {0};
    open_source(w);
    if (try_start(w, &err) != ONCE_OK) fail_msg("%s", err.text);
}

static void stop(world *w) { w->source->ops->close(w->source); }

static void keep(world *w, const once_places *places)
{
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_write(places, &text);
    memcpy(w->cursor, text.data, text.len + 1);
    once_buf_release(&text);
}

/* All that there is, one line at a time. */
static void read_all(world *w)
{
    for (int quiet = 0; quiet < 4;) {
        once_error err = {0};
        once_batch batch = {0};
        once_fetch what = {.max = 1, .batch = &batch};
        if (w->source->ops->fetch(w->source, &what, &err) != ONCE_OK) fail_msg("%s", err.text);
        quiet = batch.n ? 0 : quiet + 1;
        if (batch.n) {
            once_places places;
            const once_bytes body = batch.items[0].message.body;
            assert_true(body.len == 1 && strlen(w->got) + 1 < sizeof w->got);
            w->got[strlen(w->got)] = body.data[0];
            once_places_behind(&batch.items[0], &places);
            keep(w, &places);
        }
        once_arena_release(&batch.arena);
    }
}

static void setup(world *w)
{
    *w = (world){.spec = {.batch_wait_ms = 1, .message_max = 64}};
    memcpy(w->dir, "/tmp/once-folder.XXXXXX", 24);
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->path, sizeof w->path, "%s/in", w->dir);
    w->env = *once_env_real();
    w->env.self = w, w->env.open = plain_open, w->env.read = plain_read, w->env.close = plain_close;
    w->env.sleep_ms = pass_time, w->env.mono_ns = clock_ns;
    w->file = (once_file_spec){.path = {w->path, strlen(w->path)}, .follow = true, .cursor = true};
    w->spec.source.own = &w->file;
    once__file_conclude(&w->spec.source);
    write_next(w);
    start(w);
    read_all(w);
    assert_string_equal(w->got, "A");
}

static void teardown(world *w)
{
    char command[80];
    hook.w = NULL;
    stop(w);
    snprintf(command, sizeof command, "rm -r %s", w->dir);
    assert_int_equal(system(command), 0);
}

static void expect(const world *w, int at, const char *what)
{
    char want[NUMBERS * 2] = "";
    for (unsigned i = 0; i < w->written; i++) want[i] = (char)('A' + i);
    if (strcmp(w->got, want) != 0) fail_msg("%s, renamed at entry %d: got %s, not %s", what, at, w->got, want);
}

/* A start after four rotations, of which the run before has seen none. */
static void start_while(void (*act)(world *w), int at)
{
    world w;
    setup(&w);
    stop(&w);
    for (int i = 0; i < 4; i++) rotate(&w);
    act_at(&w, act, at);
    start(&w);
    read_all(&w);
    expect(&w, at, "a start");
    teardown(&w);
}

static void f84_a_start_while_files_are_renamed(void **state)
{
    (void)state;
    int acted = 0;
    for (int at = 0; at < ENTRIES; at++) {
        start_while(rotate, at);
        acted += hook.acted;
        start_while(rotate_twice, at);
    }
    assert_true(acted > 20 && acted < ENTRIES); /* each entry had its turn */
}

/* Two rotations between two looks at the path, and one more in the middle of the second look. */
static void f84_followed_while_files_are_renamed(void **state)
{
    (void)state;
    int acted = 0;
    for (int at = 0; at < ENTRIES; at++) {
        world w;
        setup(&w);
        rotate_twice(&w);
        rotate(&w);
        act_at(&w, at % 2 ? rotate : rotate_twice, at / 2);
        read_all(&w);
        expect(&w, at, "followed");
        acted += hook.acted;
        teardown(&w);
    }
    assert_true(acted > 10 && acted < ENTRIES);
}

/* The rest of a truncated file is in a copy, which gets another name while it is looked for. */
static void f84_a_copy_that_is_renamed_is_found(void **state)
{
    (void)state;
    int acted = 0;
    for (int at = 0; at < ENTRIES; at++) {
        world w;
        setup(&w);
        write_next(&w);
        copy_and_truncate(&w);
        write_next(&w);
        act_at(&w, rotate_copies, at);
        read_all(&w);
        expect(&w, at, "truncated");
        acted += hook.acted;
        teardown(&w);
    }
    assert_true(acted > 5 && acted < ENTRIES);
}

/* It is not known what is there: nothing is taken for lost, and the start is repeated. */
static void f84_files_that_are_renamed_all_the_time_are_no_lost_ones(void **state)
{
    (void)state;
    world w;
    once_error err = {0};
    setup(&w);
    stop(&w);
    for (int i = 0; i < 4; i++) rotate(&w);
    open_source(&w);
    act_at(&w, toggle, -1);
    assert_int_equal(try_start(&w, &err), ONCE_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "renamed all the time"));
    assert_int_equal(once_status_class(ONCE_E_UNAVAILABLE), ONCE_CLASS_RETRY);
    hook.w = NULL;
    assert_int_equal(try_start(&w, &err), ONCE_OK);
    read_all(&w);
    expect(&w, -1, "a start again");
    teardown(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f84_a_start_while_files_are_renamed),
        cmocka_unit_test(f84_followed_while_files_are_renamed),
        cmocka_unit_test(f84_a_copy_that_is_renamed_is_found),
        cmocka_unit_test(f84_files_that_are_renamed_all_the_time_are_no_lost_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
