/* The real environment (base/env.h). */
#include "base/env.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"

#include "base/banned.h"

static struct timespec now(clockid_t clock)
{
    struct timespec at;
    int failed = clock_gettime(clock, &at);
    assert(!failed);
    (void)failed;
    return at;
}

static int64_t now_ms(clockid_t clock)
{
    struct timespec at = now(clock);
    return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

static int64_t real_wall_ms(void *self)
{
    (void)self;
    return now_ms(CLOCK_REALTIME);
}

static int64_t real_boot_ms(void *self)
{
    (void)self;
    return now_ms(CLOCK_BOOTTIME);
}

static int64_t real_mono_ns(void *self)
{
    (void)self;
    struct timespec at = now(CLOCK_MONOTONIC);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

/* Random bytes from the kernel. Without them secrets and claim tokens could be guessed, so the process ends. */
static void kernel_random(void *out, size_t len)
{
    unsigned char *at = out;
    while (len > 0) {
        ssize_t got = getrandom(at, len, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) abort();
        at += got;
        len -= (size_t)got;
    }
}

static uint64_t boot_id;
static pthread_once_t boot_id_once = PTHREAD_ONCE_INIT;

static void read_boot_id(void)
{
    char text[64];
    ssize_t len = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        len = read(fd, text, sizeof text);
        close(fd);
    }
    if (len <= 0) /* unknown: a random id, so that no other or later process seems to share our boot */
        kernel_random(&boot_id, sizeof boot_id);
    else boot_id = once_siphash128((once_secret){0}, text, (size_t)len).a;
}

static uint64_t real_boot_id(void *self)
{
    (void)self;
    pthread_once(&boot_id_once, read_boot_id);
    return boot_id;
}

/* Each thread gets random bytes in bulk; bytes that were handed out are wiped from the pool. */
#define POOL_SIZE 512

static _Thread_local struct {
    unsigned char bytes[POOL_SIZE];
    size_t left; /* unused bytes, at the end of `bytes` */
} pool;

/* After fork a child must not hand out the same bytes as its parent: two processes would claim with one token. This
 * runs in the child, in the thread that forked, which is the only one there. */
static void forget_pool(void)
{
    explicit_bzero(pool.bytes, sizeof pool.bytes);
    pool.left = 0;
}

static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void guard_pool(void)
{
    if (pthread_atfork(NULL, NULL, forget_pool) != 0) abort();
}

static void real_random(void *self, void *out, size_t len)
{
    (void)self;
    assert(out || len == 0);
    if (len > POOL_SIZE / 4) {
        kernel_random(out, len);
        return;
    }
    if (len > pool.left) {
        pthread_once(&pool_once, guard_pool);
        kernel_random(pool.bytes, sizeof pool.bytes);
        pool.left = sizeof pool.bytes;
    }
    assert(len <= pool.left && pool.left <= sizeof pool.bytes);
    unsigned char *from = pool.bytes + sizeof pool.bytes - pool.left;
    if (len > 0) memcpy(out, from, len);
    explicit_bzero(from, len);
    pool.left -= len;
}

static void real_sleep_ms(void *self, int64_t ms)
{
    (void)self;
    if (ms <= 0) return;
    struct timespec until = now(CLOCK_MONOTONIC);
    if (ms > INT32_MAX * INT64_C(1000)) ms = INT32_MAX * INT64_C(1000); /* 68 years */
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
}

static int real_open(void *self, const char *path, int flags, int mode)
{
    (void)self;
    return open(path, flags | O_CLOEXEC, mode);
}

static ssize_t real_read(void *self, int fd, void *out, size_t len)
{
    (void)self;
    return read(fd, out, len);
}

static ssize_t real_write(void *self, int fd, const void *data, size_t len)
{
    (void)self;
    return write(fd, data, len);
}

static int real_close(void *self, int fd)
{
    (void)self;
    return close(fd);
}

static void real_who(void *self, char out[ONCE_WHO_MAX + 1])
{
    (void)self;
    char host[80] = "", buffer[2000];
    struct passwd entry, *found = NULL;
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found);
    if (found) snprintf(out, ONCE_WHO_MAX + 1, "%.32s@%.54s:%ld", found->pw_name, host, (long)getpid());
    else snprintf(out, ONCE_WHO_MAX + 1, "%lu@%.54s:%ld", (unsigned long)geteuid(), host, (long)getpid());
}

/* --- processes --- */

static size_t read_small(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    const size_t n = file ? fread(out, 1, size - 1, file) : 0;
    if (file) fclose(file);
    out[n] = 0;
    return n;
}

typedef struct process_stat {
    char state; /* 'Z': its first thread has ended */
    uint64_t threads;
    uint64_t started; /* in ticks since the boot */
} process_stat;

/* False: there is no such process, or it is hidden from us. */
static bool read_stat(uint64_t pid, process_stat *out)
{
    enum { STATE = 3, THREADS = 20, STARTED = 22 }; /* proc(5) counts from 1 */
    char path[64], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    if (!read_small(path, text, sizeof text)) return false;
    const char *at = strrchr(text, ')'); /* the name before it may have blanks */
    *out = (process_stat){0};
    for (int field = STATE; field <= STARTED && at; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == STATE) out->state = at[1];
        if (at && field == THREADS) out->threads = strtoull(at + 1, NULL, 10);
        if (at && field == STARTED) out->started = strtoull(at + 1, NULL, 10);
    }
    return at != NULL;
}

/* Whether /proc shows our own pid namespace; it may be that of another one. */
static bool proc_is_ours(void)
{
    char text[32];
    const ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return strtoull(text, NULL, 10) == (uint64_t)getpid();
}

/* Identifies where process numbers and start times mean the same: one boot, one pid namespace, one time namespace. 0:
 * not known. */
static uint64_t machine(void)
{
    char text[256];
    size_t n = proc_is_ours() ? read_small("/proc/sys/kernel/random/boot_id", text, 64) : 0;
    const ssize_t space = n ? readlink("/proc/self/ns/pid", text + n, 64) : 0;
    if (space <= 0) return 0;
    n += (size_t)space;
    const ssize_t time = readlink("/proc/self/ns/time", text + n, 64);
    return once_xxh128(0, text, n + (size_t)(time > 0 ? time : 0)).a;
}

static void real_process(void *self, once_process *out)
{
    (void)self;
    process_stat stat;
    *out = (once_process){.machine = machine(), .pid = (uint64_t)getpid()};
    if (read_stat(out->pid, &stat)) out->started = stat.started;
}

/* It is gone if no process has its number, if another one has it (by the start time), or if it is a zombie without
 * other threads. In a process that still runs, the first thread can be a zombie, too. */
static bool real_is_gone(void *self, const once_process *process)
{
    (void)self;
    process_stat stat;
    if (!process->machine || !process->started || process->pid - 1 >= INT32_MAX || process->machine != machine())
        return false;
    if (kill((pid_t)process->pid, 0) != 0 && errno == ESRCH) return true;
    if (!read_stat(process->pid, &stat) || !stat.started) return false;
    return stat.started != process->started || (stat.state == 'Z' && stat.threads == 1);
}

const once_env *once_env_real(void)
{
    static const once_env real = {
        .wall_ms = real_wall_ms,
        .boot_ms = real_boot_ms,
        .boot_id = real_boot_id,
        .mono_ns = real_mono_ns,
        .random = real_random,
        .sleep_ms = real_sleep_ms,
        .open = real_open,
        .read = real_read,
        .write = real_write,
        .close = real_close,
        .who = real_who,
        .process = real_process,
        .is_gone = real_is_gone,
    };
    return &real;
}

uint64_t once_env_random_u64(const once_env *env)
{
    uint64_t number;
    once_env_random(env, &number, sizeof number);
    return number;
}
