/* Starts processes as posix_spawn does, with a child that shares our memory until it execs, so that the cost does not
 * grow with the size of our process. posix_spawn itself cannot make the child die with us.
 *
 * Until exec the child runs on our memory while our thread is suspended. So it makes bare system calls only, and no
 * signal may be delivered to it before our handlers are gone from its table: all signals are blocked around the
 * start. */
#include "effect/process.h"

#include "base/errno_text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/banned.h"

/* Sanitizers keep state for each thread and descriptor; the child must not write into ours. */
#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
#define BARE __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#ifndef BARE
#define BARE __attribute__((no_sanitize("address", "undefined", "thread")))
#endif

/* The thread sanitizer takes every clone for a fork and runs its own work in the child; the C library's other name it
 * leaves alone. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
extern int __clone(int (*run)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif
#endif

enum { STACK = 32 << 10, SIGNALS = 64, FIRST_FREE_FD = 3 };
typedef uint64_t signal_mask; /* as the kernel has it */

typedef struct plan {
    const char *file;
    char *const *argv, *const *envp;
    int fds[3]; /* what become its 0, 1, 2; all above 2 */
    pid_t parent;
    const char *failed_at; /* set by the child when it does not get as far as exec */
    int failed;
} plan;

static const signal_mask every_signal = ~(signal_mask)0, no_signal = 0;
static const struct timespec no_time;
static const char default_action[64]; /* zeros are SIG_DFL in the kernel's struct sigaction, in every layout of it */

#define TRY(what, call)                                                                                                \
    if ((call) < 0) {                                                                                                  \
        p->failed_at = (what);                                                                                         \
        p->failed = errno;                                                                                             \
        break;                                                                                                         \
    }

BARE static int child_main(void *arg)
{
    plan *p = arg;
    do {
        TRY("setpgid", syscall(SYS_setpgid, 0, 0));
        TRY("prctl", syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
        if (syscall(SYS_getppid) != p->parent) break; /* the parent died before the death signal was set */
        /* A signal to our group, sent before the child had its own (timeout, Ctrl-C), must not end the child: its
         * effect would be unknown. */
        while (syscall(SYS_rt_sigtimedwait, &every_signal, NULL, &no_time, sizeof(signal_mask)) > 0) {
        }
        for (int i = 1; i <= SIGNALS; i++) syscall(SYS_rt_sigaction, i, default_action, NULL, sizeof(signal_mask));
        TRY("dup3", syscall(SYS_dup3, p->fds[0], 0, 0));
        TRY("dup3", syscall(SYS_dup3, p->fds[1], 1, 0));
        TRY("dup3", syscall(SYS_dup3, p->fds[2], 2, 0));
        TRY("close_range", syscall(SYS_close_range, FIRST_FREE_FD, ~0u, 0));
        TRY("sigprocmask", syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signal, NULL, sizeof(signal_mask)));
        TRY("exec", syscall(SYS_execve, p->file, p->argv, p->envp));
    } while (0);
    syscall(SYS_exit_group, 127);
    return 127;
}

/* Moves descriptors above 2: a program whose stderr is closed must not write its log into a child's stdin. False:
 * they are as before */
static bool raise_fd(int *fd)
{
    if (*fd >= FIRST_FREE_FD) return true;
    const int higher = fcntl(*fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    if (higher < 0) return false;
    close(*fd);
    *fd = higher;
    return true;
}

static bool make_pipe(int ends[2], int ours)
{
    return pipe2(ends, O_CLOEXEC) == 0 && raise_fd(&ends[0]) && raise_fd(&ends[1]) &&
           fcntl(ends[ours], F_SETFL, O_NONBLOCK) == 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* A sealed file in memory with the whole input. If our process dies, a child that reads it gets all of it or is
 * killed, and never takes the beginning of a message for a message; a pipe would end where we had stopped writing. */
static bool make_input(int ends[2], once_bytes input)
{
    size_t at = 0;
    ends[0] = memfd_create("once-message", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ends[0] < 0) return false;
    while (at < input.len) {
        const ssize_t n = write(ends[0], input.data + at, input.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    (void)fcntl(ends[0], F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return lseek(ends[0], 0, SEEK_SET) == 0 && raise_fd(&ends[0]);
}

/* Ours: in[1], out[0], err[0]. */
static bool make_pipes(int pipes[3][2], const once_bytes *input)
{
    for (int i = 0; i < 3; i++) pipes[i][0] = pipes[i][1] = -1;
    for (int i = 0; i < 3; i++) {
        if (i == 0 && input ? make_input(pipes[0], *input) : make_pipe(pipes[i], i == 0 ? 1 : 0)) continue;
        const int why = errno;
        for (int k = 0; k <= i; k++) {
            close_fd(&pipes[k][0]);
            close_fd(&pipes[k][1]);
        }
        errno = why;
        return false;
    }
    return true;
}

static int status_of(int why)
{
    switch (why) {
    case EAGAIN:
    case EMFILE:
    case ENFILE: return ONCE_E_UNAVAILABLE;
    case ENOMEM: return ONCE_E_NOMEM;
    case ETXTBSY: return ONCE_E_BUSY; /* being written right now */
    case E2BIG: return ONCE_E_MESSAGE;
    case EACCES:
    case EPERM: return ONCE_E_DENIED;
    default: return ONCE_E_MISSING; /* not there, or not a program */
    }
}

static pid_t clone_child(plan *p, int *pidfd)
{
    __attribute__((uninitialized, aligned(16))) char stack[STACK];
    signal_mask before;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &every_signal, &before, sizeof before);
    const pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, p, pidfd);
    const int why = errno;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    errno = why;
    return pid;
}

int once_process_start(const char *file, char *const *argv, char *const *envp, const once_bytes *input, once_child *out,
                       once_error *err)
{
    assert(file && argv && argv[0] && envp);
    int pipes[3][2];
    *out = (once_child){.pidfd = -1, .in = -1, .out = -1, .err = -1};
    if (!make_pipes(pipes, input))
        return once_fail(err, status_of(errno), "cannot make pipes for '%s': %s", file, once_errno_text(errno));
    plan p = {
        .file = file, .argv = argv, .envp = envp, .fds = {pipes[0][0], pipes[1][1], pipes[2][1]}, .parent = getpid()};
    once_child child = {.pidfd = -1, .in = pipes[0][1], .out = pipes[1][0], .err = pipes[2][0]};
    child.pid = clone_child(&p, &child.pidfd);
    const int why = child.pid < 0 ? errno : p.failed;
    for (int i = 0; i < 3; i++) close(p.fds[i]);
    if (child.pid > 0 && why == 0) {
        raise_fd(&child.pidfd); /* only ever read: no harm where it is */
        *out = child;
        return ONCE_OK;
    }
    int ignored;
    if (child.pid > 0) once_process_reap(&child, true, &ignored);
    once_process_close(&child);
    if (child.pid < 0)
        return once_fail(err, status_of(why), "cannot start a process for '%s': %s", file, once_errno_text(why));
    if (strcmp(p.failed_at, "exec") == 0)
        return once_fail(err, status_of(why), "cannot run '%s': %s", file, once_errno_text(why));
    return once_fail(err, status_of(why), "cannot start '%s': %s: %s", file, p.failed_at, once_errno_text(why));
}

void once_process_kill(once_child *child)
{
    if (child->pid > 0) kill(-child->pid, SIGKILL);
}

bool once_process_reap(once_child *child, bool wait, int *status)
{
    assert(child->pid > 0);
    siginfo_t info;
    int rc;
    /* It is looked at first (WNOWAIT) and reaped last: until it is reaped, its pid cannot be used for another group. */
    do {
        info.si_pid = 0;
        rc = waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOWAIT | __WALL | (wait ? 0 : WNOHANG));
    } while (rc != 0 && errno == EINTR);
    if (rc == 0 && info.si_pid == 0) return false;
    /* Another part of the program waited for it; or SIGCHLD is ignored, and then waitid fails while the child runs,
     * too. */
    if (rc != 0) {
        struct pollfd ended = {.fd = child->pidfd, .events = POLLIN};
        while (poll(&ended, 1, wait ? -1 : 0) < 0 && errno == EINTR) continue;
        if (!(ended.revents & POLLIN)) return false;
    }
    once_process_kill(child);
    child->pid = 0;
    if (rc != 0) *status = -1;
    else {
        *status = info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0) : W_EXITCODE(0, info.si_status);
        while (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | __WALL) != 0 && errno == EINTR) continue;
    }
    return true;
}

void once_process_close(once_child *child)
{
    close_fd(&child->in);
    close_fd(&child->out);
    close_fd(&child->err);
    close_fd(&child->pidfd);
}

ssize_t once_process_write(int fd, const void *data, size_t len)
{
    assert(fd >= 0 && data && len > 0);
    sigset_t pipe_signal, before, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigemptyset(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    if (sigismember(&before, SIGPIPE)) sigpending(&pending); /* one that was pending before stays */
    const ssize_t written = write(fd, data, len);
    const int why = errno;
    if (written < 0 && why == EPIPE && !sigismember(&pending, SIGPIPE)) {
        const struct timespec at_once = {0};
        while (sigtimedwait(&pipe_signal, NULL, &at_once) < 0 && errno == EINTR) continue;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return written;
}

/* ---- which file a command is ---- */

static int look(const char *file)
{
    struct stat what;
    if (stat(file, &what) != 0) return errno;
    if (S_ISDIR(what.st_mode)) return EISDIR;
    return access(file, X_OK) == 0 ? 0 : errno;
}

static int find_in(const char *command, const char *path, char **out)
{
    int why = ENOENT;
    const size_t len = strlen(command);
    for (const char *at = path, *end; at; at = *end ? end + 1 : NULL) {
        end = strchrnul(at, ':');
        const size_t folder = (size_t)(end - at);
        if (folder == 0) continue; /* an empty entry would mean the current folder: never by accident */
        char *file = malloc(folder + len + 2);
        if (!file) return ENOMEM;
        memcpy(file, at, folder);
        file[folder] = '/';
        memcpy(file + folder + 1, command, len + 1);
        const int bad = look(file);
        if (bad == 0) {
            *out = file;
            return 0;
        }
        if (bad == EACCES) why = bad; /* more helpful than "not found" in the other folders */
        free(file);
    }
    return why;
}

int once_process_find(const char *command, const char *path, char **out, once_error *err)
{
    assert(command && command[0] && path);
    int why;
    if (!strchr(command, '/')) {
        why = find_in(command, path, out);
        if (why == 0) return ONCE_OK;
        if (why == ENOENT)
            return once_fail(err, status_of(why), "command '%s' is not in %s; install it, or write its path", command,
                             path);
    } else {
        why = look(command);
        char *file = why == 0 ? strdup(command) : NULL;
        if (file) {
            *out = file;
            return ONCE_OK;
        }
        if (why == 0) why = ENOMEM;
    }
    return once_fail(err, status_of(why), "cannot run command '%s': %s", command, once_errno_text(why));
}

/* ---- what it said last ---- */

void once_tail_keep(once_tail *tail, const char *data, size_t len)
{
    assert(tail->len <= sizeof tail->text && (data || len == 0));
    const size_t fresh = len < sizeof tail->text ? len : sizeof tail->text, room = sizeof tail->text - fresh;
    const size_t kept = tail->len < room ? tail->len : room;
    memmove(tail->text, tail->text + tail->len - kept, kept);
    memcpy(tail->text + kept, data + len - fresh, fresh);
    tail->len = kept + fresh;
}

once_bytes once_tail_last_line(const once_tail *tail)
{
    assert(tail->len <= sizeof tail->text);
    size_t end = tail->len;
    while (end > 0 && strchr(" \t\r\n", tail->text[end - 1]) && tail->text[end - 1]) end--;
    size_t begin = end;
    while (begin > 0 && tail->text[begin - 1] != '\n') begin--;
    return (once_bytes){tail->text + begin, end - begin};
}
