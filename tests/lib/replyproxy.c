#include "replyproxy.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PAIRS = 8, DEPTH = 8 };

typedef struct pair {
    int client, server; /* -1: free */
    char *data;         /* of the server, no whole reply */
    size_t len, room;
} pair;

static void give_up(const char *what)
{
    fprintf(stderr, "proxy: %s: %s\n", what, strerror(errno));
    abort();
}

static size_t reply_len(const char *data, size_t len, int depth)
{
    const char *end = len ? memmem(data, len, "\r\n", 2) : NULL;
    if (!end) return 0;
    size_t at = (size_t)(end - data) + 2;
    if (data[0] != '$' && data[0] != '*') return at;
    const long n = strtol(data + 1, NULL, 10);
    if (n < 0) return at;
    if (data[0] == '$') return (size_t)n <= len - at && len - at - (size_t)n >= 2 ? at + (size_t)n + 2 : 0;
    for (long i = 0; i < n; i++) {
        const size_t one = depth < DEPTH ? reply_len(data + at, len - at, depth + 1) : 0;
        if (one == 0) return 0;
        at += one;
    }
    return at;
}

size_t redis_reply_len(const char *data, size_t len) { return reply_len(data, len, 0); }

/* A letter, and four bytes that say how long it is without the letter. */
size_t postgres_reply_len(const char *data, size_t len)
{
    uint32_t n;
    if (len < 5) return 0;
    memcpy(&n, data + 1, 4);
    return len > be32toh(n) ? be32toh(n) + 1 : 0;
}

static void send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        const ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) return; /* the client is gone, which the next read tells */
        if (n > 0) data += n, len -= (size_t)n;
    }
}

static int call(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) < 0) give_up(path);
    return fd;
}

static void end_pair(pair *p)
{
    close(p->client);
    close(p->server);
    free(p->data);
    *p = (pair){.client = -1, .server = -1};
}

static void admit(reply_proxy *proxy, pair *pairs)
{
    const int client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
    if (client < 0) return;
    for (int i = 0; i < PAIRS; i++) {
        if (pairs[i].client >= 0) continue;
        pairs[i] = (pair){.client = client, .server = call(proxy->server)};
        return;
    }
    close(client);
}

static bool forward(pair *p)
{
    static char chunk[65536];
    const ssize_t n = read(p->client, chunk, sizeof chunk);
    if (n > 0) send_all(p->server, chunk, (size_t)n);
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Whole replies, each through the hook. */
static bool answer(reply_proxy *proxy, pair *p)
{
    if (p->room - p->len < 65536) {
        p->data = realloc(p->data, p->room = p->len + 131072);
        if (!p->data) give_up("realloc");
    }
    const ssize_t n = read(p->server, p->data + p->len, p->room - p->len);
    if (n <= 0) return n < 0 && errno == EINTR;
    p->len += (size_t)n;
    for (size_t one; p->len && (one = proxy->reply_len(p->data, p->len)) > 0;) {
        proxy_reply reply = {p->data, one};
        const bool goes_on = proxy->hook(proxy->user, &reply);
        send_all(p->client, reply.data, reply.len);
        if (!goes_on) return false;
        memmove(p->data, p->data + one, p->len - one);
        p->len -= one;
    }
    return true;
}

static void *serve(void *user)
{
    reply_proxy *proxy = user;
    pair pairs[PAIRS];
    struct pollfd polls[2 + 2 * PAIRS];
    for (int i = 0; i < PAIRS; i++) pairs[i] = (pair){.client = -1, .server = -1};
    for (;;) {
        polls[0] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = proxy->wake[0], .events = POLLIN};
        for (int i = 0; i < PAIRS; i++) {
            polls[2 + 2 * i] = (struct pollfd){.fd = pairs[i].client, .events = POLLIN};
            polls[3 + 2 * i] = (struct pollfd){.fd = pairs[i].server, .events = POLLIN};
        }
        const int ready = poll(polls, 2 + 2 * PAIRS, atomic_load(&proxy->idle_ms));
        if (ready < 0 && errno != EINTR) give_up("poll");
        for (int i = 0; i < PAIRS && ready == 0; i++)
            if (pairs[i].client >= 0) end_pair(&pairs[i]);
        if (ready <= 0) continue;
        if (polls[1].revents) break;
        for (int i = 0; i < PAIRS; i++) {
            if (pairs[i].client < 0) continue;
            bool alive = !polls[3 + 2 * i].revents || answer(proxy, &pairs[i]);
            alive = alive && (!polls[2 + 2 * i].revents || forward(&pairs[i]));
            if (!alive) end_pair(&pairs[i]);
        }
        if (polls[0].revents) admit(proxy, pairs);
    }
    for (int i = 0; i < PAIRS; i++)
        if (pairs[i].client >= 0) end_pair(&pairs[i]);
    return NULL;
}

void reply_proxy_start(reply_proxy *proxy)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", proxy->path);
    proxy->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (proxy->listener < 0 || bind(proxy->listener, (const struct sockaddr *)&at, sizeof at) < 0 ||
        listen(proxy->listener, 16) < 0)
        give_up("listen");
    if (pipe2(proxy->wake, O_CLOEXEC) < 0) give_up("pipe");
    if (pthread_create(&proxy->thread, NULL, serve, proxy) != 0) give_up("thread");
}

void redis_proxy_start(reply_proxy *proxy, const redis_server *server, proxy_hook *hook, void *user)
{
    *proxy = (reply_proxy){.reply_len = redis_reply_len, .hook = hook, .user = user, .idle_ms = -1};
    snprintf(proxy->path, sizeof proxy->path, "%s/p", server->folder);
    snprintf(proxy->server, sizeof proxy->server, "%s/s", server->folder);
    snprintf(proxy->url, sizeof proxy->url, "%.*sp", (int)strlen(server->url) - 1, server->url);
    reply_proxy_start(proxy);
}

void reply_proxy_stop(reply_proxy *proxy)
{
    close(proxy->wake[1]);
    pthread_join(proxy->thread, NULL);
    close(proxy->wake[0]);
    close(proxy->listener);
    unlink(proxy->path);
}
