/* A server that only answers: 200 and a few bytes of JSON to every request, on connections that are kept. What is left
 * is the cost of the way to it and back. It reads as much of a request as it must to find its end, in one thread with
 * epoll.
 *
 *     http_answer [N]     prints its port, and ends with its standard input; every Nth request gets no answer at all */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 65536, IN_MAX = 65536, EVENTS = 512 };

static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n"
                             "{\"charge_id\":\"ch_1\",\"paid\":true}";

typedef struct connection {
    size_t len;
    char in[IN_MAX];
} connection;

static connection *connections[CONNECTIONS]; /* by descriptor */
static unsigned long requests, silent_every;
static int loop;

static void die(const char *what)
{
    perror(what);
    exit(3);
}

/* The bytes of the first request; 0: it is not whole. */
static size_t request_length(const char *in, size_t len)
{
    static const char name[] = "\r\ncontent-length:";
    const char *end = memmem(in, len, "\r\n\r\n", 4);
    if (!end) return 0;
    const size_t head = (size_t)(end - in) + 4;
    size_t body = 0;
    for (const char *at = in; at < end; at++) {
        at = memchr(at, '\r', (size_t)(end - at));
        if (!at) break;
        if (strncasecmp(at, name, sizeof name - 1) == 0) body = strtoul(at + sizeof name - 1, NULL, 10);
    }
    return head + body <= len ? head + body : 0;
}

static void end(int fd)
{
    free(connections[fd]);
    connections[fd] = NULL;
    close(fd);
}

static void serve(int fd)
{
    connection *c = connections[fd];
    const ssize_t got = read(fd, c->in + c->len, sizeof c->in - c->len);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        end(fd);
        return;
    }
    c->len += (size_t)got;
    for (size_t n; (n = request_length(c->in, c->len)) > 0;) {
        memmove(c->in, c->in + n, c->len - n);
        c->len -= n;
        if (silent_every && ++requests % silent_every == 0) continue;
        if (write(fd, answer, sizeof answer - 1) !=
            sizeof answer - 1) { /* so small that it fits, or the client has gone */
            end(fd);
            return;
        }
    }
    if (c->len == sizeof c->in) end(fd);
}

static void watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
}

static void greet(int listener)
{
    const int on = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        if (fd >= CONNECTIONS || !(connections[fd] = malloc(sizeof(connection)))) die("too many connections");
        connections[fd]->len = 0; /* the rest of it is not touched: a new connection should cost little */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(fd);
    }
}

static int listen_on_loopback(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || listen(fd, 4096) != 0) die("listen");
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0) die("getsockname");
    printf("%u\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    silent_every = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    loop = epoll_create1(EPOLL_CLOEXEC);
    const int listener = listen_on_loopback();
    watch(listener);
    watch(STDIN_FILENO);
    for (;;) {
        const int n = epoll_wait(loop, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            const int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) return 0; /* the one who started us has gone */
            if (fd == listener) greet(listener);
            else serve(fd);
        }
    }
}
