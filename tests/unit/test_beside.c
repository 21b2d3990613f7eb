/* Which files of a folder may be opened and closed in passing. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "source/beside.h"

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
    } cases[] = {{O_RDONLY, false}, {O_WRONLY, false}, {O_WRONLY | O_APPEND, false}, {O_RDWR, true}, {O_RDWR | O_APPEND, true}};
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
    } cases[] = {{"a.db-wal", true}, {"a.db-shm", true}, {"a.db-journal", true}, {"x-wal", true}, {"-wal", false}, {"-journal", false}, {"a-wall", false}, {"wal", false}};
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
    } cases[] = {{"SQLite format 3\0and more", 24, true}, {"SQLite format 3\0", 16, true}, {"SQLite format 3", 15, false}, {"SQLite format 3 it said\n", 24, false}, {"", 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int fd = make(O_RDONLY, cases[i].text, cases[i].len);
        assert_int_equal(once_is_database(fd), cases[i].is);
        close(fd);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
