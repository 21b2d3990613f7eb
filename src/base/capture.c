/* Runs a command and reads its output (base/capture.h). */
#include "base/capture.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errno_text.h"

#include "base/banned.h"

extern char **environ;

typedef struct capture {
    const once_env *env;
    int64_t until_ns;
    const once_cancel *cancel;
} capture;

static bool must_end(const capture *c) { return once_env_mono_ns(c->env) >= c->until_ns || once_cancelled(c->cancel); }

/* Its output goes to `out`. It has no input, and a process group of its own, so that it can be ended as a whole. */
static int start(char *const argv[], int out, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    if (posix_spawnattr_init(&how) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    (void)sigemptyset(&none);
    int rc = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    if (rc == 0) rc = posix_spawnattr_setsigmask(&how, &none);
    if (rc == 0) rc = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (rc == 0) rc = posix_spawnp(pid, argv[0], &files, &how, argv, environ);
    (void)posix_spawnattr_destroy(&how);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* Until it has ended, or must end. */
static void wait_for_end(const capture *c, pid_t pid, bool whole, int *status)
{
    bool killed = false;
    for (;;) {
        if (!killed && (!whole || must_end(c))) killed = kill(-pid, SIGKILL) == 0;
        const pid_t ended = waitpid(pid, status, killed ? 0 : WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR)) return;
        if (ended == 0) once_env_sleep_ms(c->env, 5);
    }
}

/* All of its output. False: it took too long, or wrote too much, or the wait was cancelled. */
static bool read_all(const capture *c, int fd, once_buf *out)
{
    for (;;) {
        char part[4096];
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (must_end(c)) return false;
        if (poll(&ready, 1, 100) <= 0) continue;
        const ssize_t got = read(fd, part, sizeof part);
        if (got == 0) return true;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 || !once_buf_append(out, part, (size_t)got)) return false;
    }
}

int once_capture(char *const argv[], const once_env *env, int64_t timeout_ms, const once_cancel *cancel, once_buf *out,
                 once_error *err)
{
    assert(argv && argv[0] && env && timeout_ms > 0 && cancel && out);
    const capture c = {env, once_env_mono_ns(env) + timeout_ms * INT64_C(1000000), cancel};
    int fds[2], status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0) return once_fail(err, ONCE_E_UNAVAILABLE, "no pipe: %s", once_errno_text(errno));
    const int failed = start(argv, fds[1], &pid);
    (void)close(fds[1]);
    bool whole = false;
    if (!failed) {
        whole = read_all(&c, fds[0], out);
        wait_for_end(&c, pid, whole, &status);
    }
    (void)close(fds[0]);
    if (failed) return once_fail(err, ONCE_E_UNAVAILABLE, "cannot run '%s': %s", argv[0], once_errno_text(failed));
    if (!whole)
        return once_fail(err, ONCE_E_UNAVAILABLE, "'%s' took longer than %lld s, or wrote more than %zu KiB", argv[0],
                         (long long)timeout_ms / 1000, out->max >> 10);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ONCE_OK;
    return once_fail(err, ONCE_E_UNAVAILABLE, "'%s' ended with %s %d; run it by hand to see why", argv[0],
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}
