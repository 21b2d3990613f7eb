#include "redisserver.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void give_up(const char *what)
{
    fprintf(stderr, "redis-server: %s: %s\n", what, strerror(errno));
    exit(1);
}

int redis_is_missing(void)
{
    printf("1..1\nok 1 - redis # SKIP built without hiredis\n");
    return 0;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

static bool installed(void)
{
    const char *path = getenv("PATH");
    char place[512];
    while (path && *path) {
        const size_t len = strcspn(path, ":");
        snprintf(place, sizeof place, "%.*s/redis-server", (int)len, path);
        if (access(place, X_OK) == 0) return true;
        path += len + (path[len] == ':');
    }
    return false;
}

/* It answers when it has read its data. */
static bool answers(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char reply[8] = "";
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) give_up("socket");
    const bool ok = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 && write(fd, "PING\r\n", 6) == 6 &&
                    read(fd, reply, sizeof reply - 1) > 0 && strncmp(reply, "+PONG", 5) == 0;
    close(fd);
    return ok;
}

static void launch(redis_server *server)
{
    char path[80];
    snprintf(path, sizeof path, "%s/s", server->folder);
    unlink(path);
    const pid_t parent = getpid();
    server->pid = fork();
    if (server->pid < 0) give_up("fork");
    if (server->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        /* Whoever waits for the end of a pipe of ours must not wait for this server, too. */
        for (int fd = 3; fd < 64; fd++) close(fd);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--dir", server->folder,
               "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", "log", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; !answers(path); i++) {
        if (i == 5000 || waitpid(server->pid, NULL, WNOHANG) == server->pid) give_up("it does not start");
        nap();
    }
}

bool redis_server_start(redis_server *server)
{
#ifndef ONCE_WITH_REDIS
    (void)server;
    return false;
#endif
    if (!installed()) return false;
    const char *tmp = getenv("TMPDIR");
    *server = (redis_server){0};
    snprintf(server->folder, sizeof server->folder, "%s/once-redis-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (!mkdtemp(server->folder)) give_up(server->folder);
    size_t at = (size_t)snprintf(server->url, sizeof server->url, "redis://");
    for (const char *c = server->folder; *c; c++)
        at += (size_t)snprintf(server->url + at, sizeof server->url - at, *c == '/' ? "%%2F" : "%c", *c);
    snprintf(server->url + at, sizeof server->url - at, "%%2Fs");
    launch(server);
    return true;
}

static void end(redis_server *server)
{
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
}

void redis_server_crash(redis_server *server)
{
    end(server);
    launch(server);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

void redis_server_stop(redis_server *server)
{
    end(server);
    nftw(server->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
