/* The file source: a file that is read to its end, one that is followed, and standard input. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "source/file.h"
#include "source_conform.h"

typedef struct file_world {
    char folder[64], path[80];
    once_env env;
    bool fails, is_stdin;
    int old_stdin;
    pid_t cat;
    once_file_spec file;
    once_spec spec;
} file_world;

static ssize_t read_or_fail(void *self, int fd, void *out, size_t len)
{
    const file_world *w = self;
    if (w->fails) {
        errno = EIO;
        return -1;
    }
    return once_env_real()->read(once_env_real()->self, fd, out, len);
}

typedef struct how {
    bool follow, is_stdin, cursor;
} how;

static void *make(const source_driver *driver)
{
    const how *own = driver->own;
    file_world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    memcpy(w->folder, "/tmp/once-file.XXXXXX", 22);
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->path, sizeof w->path, "%s/in", w->folder);
    FILE *empty = fopen(w->path, "w");
    assert_non_null(empty);
    fclose(empty);
    assert_null(once_env_real()->self); /* the other functions do without it */
    w->env = *once_env_real();
    w->env.self = w;
    w->env.read = read_or_fail;
    w->is_stdin = own->is_stdin;
    w->old_stdin = -1;
    w->file.follow = own->follow;
    w->file.cursor = own->cursor;
    w->file.path = w->is_stdin ? ONCE_BYTES("-") : (once_bytes){w->path, strlen(w->path)};
    w->spec = (once_spec){.batch_wait_ms = 5, .message_max = SRC_MESSAGE_MAX};
    w->spec.source = (once_source_spec){.kind = &once__source_file, .own = &w->file};
    once__file_conclude(&w->spec.source);
    return w;
}

static void unmake(void *world)
{
    file_world *w = world;
    if (w->old_stdin >= 0) {
        (void)dup2(w->old_stdin, STDIN_FILENO); /* and `cat` ends, if it has not */
        (void)close(w->old_stdin);
        (void)waitpid(w->cat, NULL, 0);
    }
    unlink(w->path);
    rmdir(w->folder);
    free(w);
}

static void put(void *world, unsigned stream, once_bytes body, once_bytes headers)
{
    file_world *w = world;
    assert_true(stream == 0 && headers.len == 0);
    FILE *out = fopen(w->path, "a");
    assert_non_null(out);
    assert_int_equal(fwrite(body.data, 1, body.len, out), body.len);
    assert_int_equal(fputc('\n', out), '\n');
    assert_int_equal(fclose(out), 0);
}

/* A pipe that `cat` fills, as a shell would make it. */
static void make_stdin(file_world *w)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    w->cat = fork();
    assert_true(w->cat >= 0);
    if (w->cat == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)execlp("cat", "cat", w->path, (char *)NULL);
        _exit(127);
    }
    w->old_stdin = dup(STDIN_FILENO);
    assert_true(dup2(ends[0], STDIN_FILENO) == STDIN_FILENO);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static int open_file(void *world, once_source_purpose purpose, once_source **out, once_error *err)
{
    file_world *w = world;
    if (w->is_stdin) make_stdin(w);
    return once_source_open(&w->spec, &w->env, purpose, (once_cancel){0}, out, err);
}

/* A file that is followed may come later; a folder never is one. */
static int open_missing(void *world, once_source **out, once_error *err)
{
    file_world *w = world;
    w->spec.source.name = w->file.follow ? (once_bytes){w->folder, strlen(w->folder)} : ONCE_BYTES("/nowhere/in");
    return once__file_ops.open(&w->spec, &w->env, ONCE_OPEN_RUN, (once_cancel){0}, out, err);
}

static void fail_reads(void *world, bool fails) { ((file_world *)world)->fails = fails; }

#define FILE_DRIVER(title, bits_, missing, ...)                                                                        \
    {                                                                                                                  \
        .name = title, .bits = (bits_), .own = &(const how){__VA_ARGS__}, .make = make, .unmake = unmake, .put = put,  \
        .open = open_file, .fail_fetch = fail_reads, .open_missing = missing                                           \
    }

int main(void)
{
    const source_driver drivers[] = {
        FILE_DRIVER("file", ONCE_SOURCE_FINITE | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, open_missing, 0),
        FILE_DRIVER("file, followed", ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, open_missing, .follow = true),
        FILE_DRIVER("file with a cursor",
                    ONCE_SOURCE_FINITE | ONCE_SOURCE_CURSOR | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE, open_missing,
                    .cursor = true),
        FILE_DRIVER("file with a cursor, followed", ONCE_SOURCE_CURSOR | ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE,
                    open_missing, .cursor = true, .follow = true),
        FILE_DRIVER("standard input", ONCE_SOURCE_FINITE, NULL, .is_stdin = true),
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) failed += source_conform_run(&drivers[i]);
    return failed;
}
