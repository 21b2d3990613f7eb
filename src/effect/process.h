/* A child process with pipes and a process group of its own. It inherits nothing else: no descriptor, no signal
 * mask, no environment. It is killed when the thread that started it ends, and so when our process dies. Processes
 * that it has forked are killed with it as long as they are in its group; only one that left the group (setsid) can
 * outlive it. */
#ifndef ONCE_EFFECT_PROCESS_H
#define ONCE_EFFECT_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "once/types.h"

typedef struct once_child {
    pid_t pid;        /* 0: none; also its process group */
    int pidfd;        /* readable when it ended */
    int in, out, err; /* our ends of its stdin, stdout, stderr; non-blocking; -1 when closed */
} once_child;

/* The file that a command name stands for: itself when it has a '/', otherwise looked up in `path` (a PATH). A status
 * of class PAUSE when it is not there or not executable. `out` is malloc'd. */
int once_process_find(const char *command, const char *path, char **out, once_error *err);

/* Starts `file` with argv and envp. When exec fails (no such file, no permission) the status is of class PAUSE; when
 * processes or descriptors are used up, of class RETRY; when arguments and environment are too long together,
 * ONCE_E_MESSAGE. In each case nothing was started. `input`: the whole stdin of the child, also when our process
 * dies meanwhile; NULL: a pipe, whose other end is out->in. */
int once_process_start(const char *file, char *const *argv, char *const *envp, const once_bytes *input, once_child *out,
                       once_error *err);

void once_process_kill(once_child *child); /* SIGKILL to the whole group; harmless when it is over */
/* After it ended (pidfd readable, or `wait`): its wait status. False: still running. Kills what is left of its
 * group. The status is -1, neither exited nor signaled, when another part of the program took it (it ignores
 * SIGCHLD, or waits for every child). */
bool once_process_reap(once_child *child, bool wait, int *status);
/* As write(2). Without a reader it fails with EPIPE, and there is no SIGPIPE, whatever the program does with
 * signals. */
ssize_t once_process_write(int fd, const void *data, size_t len);
void once_process_close(once_child *child); /* closes our ends and the pidfd */

/* The last bytes of a child's standard error: the reason when it fails. */
typedef struct once_tail {
    char text[400];
    size_t len;
} once_tail;

void once_tail_keep(once_tail *tail, const char *data, size_t len);
once_bytes once_tail_last_line(const once_tail *tail); /* without white space at its end */

#endif
