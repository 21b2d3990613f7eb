#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/banned.h"

#define POLL_MS 20
#define SHOW_EVERY 10 /* polls */
#define POINT_MESSAGES 1000000

void bench_die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(3);
}

void bench_die_errno(const char *what)
{
    fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(3);
}

static double time_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double bench_now_s(void) { return time_of(CLOCK_MONOTONIC); }
int64_t bench_wall_ms(void) { return (int64_t)(time_of(CLOCK_REALTIME) * 1e3); }

void *process_share(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) bench_die_errno("cannot share memory");
    return at;
}

double process_resident_mib(int pid)
{
    char name[40], line[200];
    long kib = 0;
    snprintf(name, sizeof name, "/proc/%d/status", pid);
    FILE *from = fopen(name, "re");
    while (from && fgets(line, sizeof line, from))
        if (strncmp(line, "VmRSS:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    if (from) fclose(from);
    return (double)kib / 1024;
}

/* ---- being stopped ---- */

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
    (void)signal;
    stopped = 1;
}

void process_prepare(void)
{
    const struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

void process_pause(int ms)
{
    poll(NULL, 0, ms);
    if (stopped) bench_die("stopped");
}

/* In a child: signals as they are by default. */
static void forget_signals(void)
{
    const struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* ---- watching ---- */

typedef struct watch {
    const char *label;
    const volatile uint64_t *done; /* counted by the child */
    const char *path;              /* or read by it */
    uint64_t unit, total;
    pid_t pid;
    int fdinfo; /* of `path` in the child; -1: not found yet */
    double start;
} watch;

/* Finds which descriptor of the child is the watched file. */
static void find_descriptor(watch *w)
{
    char name[64], target[64];
    struct stat wanted, st;
    snprintf(name, sizeof name, "/proc/%d/fd", (int)w->pid);
    DIR *dir = stat(w->path, &wanted) == 0 ? opendir(name) : NULL;
    if (!dir) return;
    const struct dirent *entry;
    while (w->fdinfo < 0 && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.') continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0 || st.st_ino != wanted.st_ino || st.st_dev != wanted.st_dev)
            continue;
        snprintf(target, sizeof target, "/proc/%d/fdinfo/%.10s", (int)w->pid, entry->d_name);
        w->fdinfo = open(target, O_RDONLY | O_CLOEXEC);
    }
    closedir(dir);
}

static uint64_t messages_read(watch *w)
{
    char text[64];
    if (w->fdinfo < 0) find_descriptor(w);
    if (w->fdinfo < 0) return 0;
    const ssize_t len = pread(w->fdinfo, text, sizeof text - 1, 0);
    if (len <= 0) return 0;
    text[len] = '\0';
    return strncmp(text, "pos:", 4) == 0 ? strtoull(text + 4, NULL, 10) / w->unit : 0;
}

static void show(const watch *w, uint64_t done)
{
    const double s = bench_now_s() - w->start;
    fprintf(stderr, "\r\033[K%s  %.0f %%  %.0f/s", w->label, w->total ? 100.0 * (double)done / (double)w->total : 0,
            s > 0 ? (double)done / s : 0);
    fflush(stderr);
}

/* Waits for the child, watching it. */
static void attend(watch *w, process_result *result)
{
    const bool terminal = isatty(STDERR_FILENO);
    struct pollfd exits = {.fd = (int)syscall(SYS_pidfd_open, w->pid, 0), .events = POLLIN};
    int status;
    struct rusage usage;
    pid_t ended;
    if (exits.fd < 0) bench_die_errno("cannot watch a child");
    for (unsigned polls = 0; (ended = wait4(w->pid, &status, WNOHANG, &usage)) == 0; polls++) {
        const uint64_t done = w->done ? *w->done : w->path ? messages_read(w) : 0;
        while (result->points < GROWTH_POINTS && done >= (uint64_t)(result->points + 1) * POINT_MESSAGES)
            result->point_s[result->points++] = bench_now_s() - w->start;
        if (terminal && polls % SHOW_EVERY == 0) show(w, done);
        poll(&exits, 1, POLL_MS);
        if (stopped) kill(w->pid, SIGKILL);
    }
    close(exits.fd);
    if (ended != w->pid) bench_die_errno("cannot wait for a child");
    result->seconds = bench_now_s() - w->start;
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result->user_s = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6;
    result->system_s = (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
    result->peak_kib = usage.ru_maxrss;
    if (terminal) fputs("\r\033[K", stderr);
    if (w->fdinfo >= 0) close(w->fdinfo);
    if (stopped) bench_die("stopped");
}

/* ---- starting ---- */

void process_run(const char *label, void (*work)(void *arg), void *arg, const volatile uint64_t *done, uint64_t total,
                 process_result *result)
{
    watch w = {.label = label, .done = done, .total = total, .fdinfo = -1, .start = bench_now_s()};
    *result = (process_result){0};
    fflush(NULL);
    w.pid = fork();
    if (w.pid < 0) bench_die_errno("cannot fork");
    if (w.pid == 0) {
        forget_signals();
        work(arg);
        _exit(0);
    }
    attend(&w, result);
    if (result->status != 0) bench_die("a part of the measurement failed");
}

static const char *log_of(const char *stdout_path)
{
    static char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s.log", stdout_path);
    return path;
}

static bool redirect(int from, const char *path)
{
    const int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return to >= 0 && dup2(to, from) >= 0;
}

void process_exec(const char *label, char *const argv[], const char *stdout_path, const char *watched, uint64_t unit,
                  uint64_t total, process_result *result)
{
    watch w = {.label = label, .path = watched, .unit = unit, .total = total, .fdinfo = -1, .start = bench_now_s()};
    *result = (process_result){0};
    fflush(NULL);
    w.pid = fork();
    if (w.pid < 0) bench_die_errno("cannot fork");
    if (w.pid == 0) {
        forget_signals();
        if (!redirect(STDOUT_FILENO, stdout_path) || !redirect(STDERR_FILENO, log_of(stdout_path))) _exit(126);
        execvp(argv[0], argv);
        _exit(127);
    }
    attend(&w, result);
}

void process_show_log(const char *stdout_path)
{
    enum { END = 2000 };
    char text[END];
    FILE *log = fopen(log_of(stdout_path), "re");
    if (!log) return;
    if (fseek(log, -END, SEEK_END) != 0) rewind(log);
    fwrite(text, 1, fread(text, 1, sizeof text, log), stderr);
    fclose(log);
}
