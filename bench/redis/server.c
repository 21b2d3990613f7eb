#include "redis/server.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process.h"

#include "base/banned.h"

static char folder[] = "/tmp/once-bench-redis-XXXXXX", path[64], url[160];
static pid_t owner, server;

static int remove_one(const char *name, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(name);
}

static void clean_up(void)
{
    if (getpid() != owner) return;
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static bool installed(void)
{
    const char *at = getenv("PATH");
    char place[512];
    while (at && *at) {
        const size_t len = strcspn(at, ":");
        snprintf(place, sizeof place, "%.*s/redis-server", (int)len, at);
        if (access(place, X_OK) == 0) return true;
        at += len + (at[len] == ':');
    }
    return false;
}

/* NULL: not yet. */
static redisContext *try_connect(void)
{
    redisContext *to = redisConnectUnix(path);
    if (to && !to->err) return to;
    if (to) redisFree(to);
    return NULL;
}

static void wait_for_it(void)
{
    for (int i = 0; i < 1000; i++) {
        if (waitpid(server, NULL, WNOHANG) == server) {
            server = 0;
            bench_die("redis-server does not start");
        }
        redisContext *to = try_connect();
        if (to) {
            redisFree(to);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    bench_die("redis-server does not answer");
}

bool redis_start(void)
{
    if (!installed()) return false;
    if (!mkdtemp(folder)) bench_die_errno("cannot make a folder");
    snprintf(path, sizeof path, "%s/s", folder);
    owner = getpid();
    atexit(clean_up);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--appendonly",
               "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--save", "", "--logfile", "log",
               (char *)NULL);
        _exit(127);
    }
    wait_for_it();
    size_t at = (size_t)snprintf(url, sizeof url, "redis://");
    for (const char *c = path; *c; c++)
        at += (size_t)snprintf(url + at, sizeof url - at, *c == '/' ? "%%2F" : "%c", *c);
    return true;
}

const char *redis_url(void) { return url; }

redisContext *redis_connect(void)
{
    redisContext *to = try_connect();
    if (!to) bench_die("cannot connect to redis-server");
    return to;
}
