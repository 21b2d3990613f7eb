/* Which files may be opened and closed in passing, and that no locks are lost by it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/beside.h"
#include "db/sqlite/sqlite.h"
#include "runtime/config.h"
#include "source/file.h"
#include "store/redis/url.h"

static char folder[32], path[64];

static int set_up(void **state)
{
    (void)state;
    memcpy(folder, "/tmp/once-beside.XXXXXX", 24);
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int make(int flags, const char *text, size_t len)
{
    const int made = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_int_equal(write(made, text, len), len);
    close(made);
    const int fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static struct stat looked_at(void)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st;
}

/* Whoever has a database open reads and writes; whoever has a log open does one of them. */
static void f84_a_file_that_is_open_for_both_may_be_locked(void **state)
{
    (void)state;
    static const struct {
        int flags;
        bool locked;
    } cases[] = {
        {O_RDONLY, false}, {O_WRONLY, false}, {O_WRONLY | O_APPEND, false}, {O_RDWR, true}, {O_RDWR | O_APPEND, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int fd = make(cases[i].flags, "", 0), reads = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st = looked_at();
        assert_int_equal(once_may_be_locked("file", &st), cases[i].locked);
        st.st_dev++; /* the same number in another file system is another file */
        assert_false(once_may_be_locked("file", &st));
        close(reads);
        close(fd);
        st = looked_at();
        assert_false(once_may_be_locked("file", &st));
    }
}

static void f84_files_of_sqlite_beside_a_database_may_be_locked(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool locked;
    } cases[] = {{"a.db-wal", true}, {"a.db-shm", true},  {"a.db-journal", true}, {"x-wal", true},
                 {"-wal", false},    {"-journal", false}, {"a-wall", false},      {"wal", false}};
    close(make(O_RDONLY, "", 0));
    const struct stat st = looked_at();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (once_may_be_locked(cases[i].name, &st) != cases[i].locked) fail_msg("%s", cases[i].name);
}

static void f84_what_cannot_be_found_out_may_be_locked(void **state)
{
    (void)state;
    close(make(O_RDONLY, "", 0));
    const struct stat st = looked_at();
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0; /* no file can be opened */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const bool locked = once_may_be_locked("file", &st);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(locked);
}

static void f84_a_database_is_known_by_its_first_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
        bool is;
    } cases[] = {{"SQLite format 3\0and more", 24, true},
                 {"SQLite format 3\0", 16, true},
                 {"SQLite format 3", 15, false},
                 {"SQLite format 3 it said\n", 24, false},
                 {"", 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int fd = make(O_RDONLY, cases[i].text, cases[i].len);
        assert_int_equal(once_is_database(fd), cases[i].is);
        close(fd);
    }
}

static void f84_a_database_that_is_open_for_reading_may_be_locked(void **state)
{
    (void)state;
    const int fd = make(O_RDONLY, "SQLite format 3\0and more", 24);
    const struct stat st = looked_at();
    assert_true(once_may_be_locked("file", &st));
    close(fd);
    assert_false(once_may_be_locked("file", &st));
}

/* ---- closing ---- */

/* As SQLite has it. */
static int lock_whole(void)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_SETLK, &whole), 0);
    return fd;
}

/* Told by another process, because one's own locks are in nobody's way. */
static bool is_locked(void)
{
    const pid_t child = fork();
    if (child == 0) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(open(path, O_RDWR | O_CLOEXEC), F_SETLK, &whole) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) == 1;
}

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static void close_something(void)
{
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    once_close_beside(NULL, fd);
    assert_false(is_open(fd));
}

/* It was opened before the database was. It is closed when that is, and holds nobody up until then. */
static void f84_what_would_drop_locks_is_closed_later(void **state)
{
    (void)state;
    const int fd = make(O_RDONLY, "text", 4);
    struct flock ours = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 1000, .l_len = 1},
                 theirs = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1000, .l_len = 1};
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &ours), 0);
    const int database = open(path, O_RDWR | O_CLOEXEC);
    struct flock held = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    assert_int_equal(fcntl(database, F_SETLK, &held), 0);
    once_close_beside(NULL, fd);
    assert_true(is_locked());
    assert_int_equal(fcntl(database, F_OFD_GETLK, &theirs), 0);
    assert_int_equal(theirs.l_type, F_UNLCK);
    close_something();
    assert_true(is_locked());
    assert_true(is_open(fd));
    close(database);
    close_something();
    assert_false(is_open(fd));
}

static void f84_what_is_no_database_is_closed_where_nothing_can_be_found_out(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
        bool stays;
    } cases[] = {{"one\n", 4, false}, {"", 0, true}, {"SQLite format 3\0and more", 24, true}};
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int fd = make(O_RDONLY, cases[i].text, cases[i].len);
        none = before;
        none.rlim_cur = 0;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        once_close_beside(NULL, fd);
        const bool open = is_open(fd);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(open, cases[i].stays);
        close_something();
        assert_false(is_open(fd));
    }
}

/* ---- a database that is opened at that moment ---- */

typedef struct opener {
    once_env env;
    pthread_t thread;
    int done[2]; /* a pipe: something comes when the database is open and locked */
    once_sqlite_db *db;
    int closed; /* the descriptor that was; its number may be that of the database now */
} opener;

static void *open_database(void *user)
{
    opener *o = user;
    once_error err;
    assert_int_equal(once__sqlite_open(path, &(once_sqlite_options){.busy_ms = 1000}, &o->db, &err), ONCE_OK);
    assert_int_equal(once__sqlite_exec(o->db, "BEGIN EXCLUSIVE", &err), ONCE_OK);
    assert_int_equal(write(o->done[1], "", 1), 1);
    return NULL;
}

/* The file was found to be nobody's, and is about to be closed. Whoever could open it now has half a second for it. */
static int close_slowly(void *self, int fd)
{
    opener *o = self;
    struct pollfd done = {.fd = o->done[0], .events = POLLIN};
    assert_int_equal(pthread_create(&o->thread, NULL, open_database, o), 0);
    (void)poll(&done, 1, 500);
    o->closed = fd;
    return close(fd);
}

static void f84_no_database_is_opened_between_the_look_and_the_close(void **state)
{
    (void)state;
    opener o = {.env = *once_env_real(), .closed = -1};
    o.env.self = &o;
    o.env.close = close_slowly;
    assert_int_equal(pipe(o.done), 0);
    const int fd = make(O_RDONLY, "", 0);
    once_close_beside(&o.env, fd);
    assert_int_equal(o.closed, fd);
    assert_int_equal(pthread_join(o.thread, NULL), 0);
    assert_true(is_locked());
    once__sqlite_close(o.db);
    close(o.done[0]);
    close(o.done[1]);
}

/* ---- whatever a user may name ---- */

static void load_configuration(void)
{
    once_arena arena = {0};
    once_spec *spec;
    once_error err;
    assert_int_not_equal(once_config_load(path, &arena, &spec, &err), ONCE_OK);
    once_arena_release(&arena);
}

static void read_secret(void)
{
    char written[80];
    (void)snprintf(written, sizeof written, "file:%s", path);
    const once_written secret = {.name = ONCE_BYTES("TOKEN"), .value = {written, strlen(written)}, .line = 1};
    once_arena arena = {0};
    const once_spec spec = {.file = ONCE_BYTES("once.yaml")};
    once_bytes value;
    once_error err;
    assert_int_equal(once_value_read(spec.file, once_env_real(), &secret, &arena, &value, &err), ONCE_OK);
    assert_int_equal(value.len, 8);
    once_arena_release(&arena);
}

static void read_password(void)
{
    char url[120];
    once_redis_url out;
    once_error err;
    (void)snprintf(url, sizeof url, "//host/0?password=file:%s", path);
    assert_int_equal(once__redis_url_read(url, false, &out, &err), ONCE_OK);
    assert_string_equal(out.password, "password");
}

static void follow_source(void)
{
    const once_file_spec file = {.path = {path, strlen(path)}, .follow = true};
    once_spec spec = {.source.own = &file, .message_max = 1000};
    once__file_conclude(&spec.source);
    once_source *source;
    once_error err;
    assert_int_equal(once__file_ops.open(&spec, once_env_real(), ONCE_OPEN_RUN, (once_cancel){0}, &source, &err),
                     ONCE_OK);
    once__file_ops.close(source);
}

static void f84_whatever_is_named_keeps_its_locks(void **state)
{
    (void)state;
    static void (*const uses[])(void) = {load_configuration, read_secret, read_password, follow_source};
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        close(make(O_RDONLY, "password\n", 9));
        const int fd = lock_whole();
        uses[i]();
        if (!is_locked()) fail_msg("use %zu", i);
        close(fd);
        close_something();
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(f84_a_file_that_is_open_for_both_may_be_locked),
        TEST(f84_files_of_sqlite_beside_a_database_may_be_locked),
        TEST(f84_what_cannot_be_found_out_may_be_locked),
        TEST(f84_a_database_is_known_by_its_first_bytes),
        TEST(f84_a_database_that_is_open_for_reading_may_be_locked),
        TEST(f84_what_would_drop_locks_is_closed_later),
        TEST(f84_what_is_no_database_is_closed_where_nothing_can_be_found_out),
        TEST(f84_no_database_is_opened_between_the_look_and_the_close),
        TEST(f84_whatever_is_named_keeps_its_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
