/* The socket of a connection: connecting it, sending bytes, receiving replies, waiting for either. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "store/redis/link_parts.h"

#include "base/banned.h"

enum { NAP_MS = 50 };

void once__redis_hang_up(once_redis_link *link)
{
    once__redis_tls_free(link->tls);
    link->tls = NULL;
    if (link->fd >= 0) (void)close(link->fd);
    link->fd = -1;
}

int once__redis_link_lost(once_redis_link *link, once_error *err, const char *what, const char *why)
{
    once__redis_hang_up(link);
    return once_fail(err, ONCE_E_UNAVAILABLE, "%s redis at '%s:%u' failed: %s", what, link->at.host, link->at.port,
                     why);
}

int once__redis_link_lost_by(once_redis_link *link, once_error *err, const char *what, int why)
{
    link->silent = why == ETIMEDOUT || why == ECANCELED;
    return once__redis_link_lost(link, err, what,
                                 why == ECANCELED ? "stopped while waiting for it" : once_errno_text(why));
}

int once__redis_wait_for(const once_redis_waiting *waiting, int fd, short events)
{
    assert(fd >= 0);
    struct pollfd poller = {.fd = fd, .events = events};
    for (int waited_ms = 0; waited_ms < waiting->timeout_ms; waited_ms += NAP_MS) {
        const int left_ms = waiting->timeout_ms - waited_ms;
        const int n = poll(&poller, 1, left_ms < NAP_MS ? left_ms : NAP_MS);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return errno;
        if (once_cancelled(&waiting->cancel)) return ECANCELED;
    }
    return ETIMEDOUT;
}

static int connect_socket(const once_redis_link *link, int fd, const struct sockaddr *to, socklen_t len)
{
    assert(fd >= 0);
    if (connect(fd, to, len) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    int why = once__redis_wait_for(&link->waiting, fd, POLLOUT);
    socklen_t size = sizeof why;
    if (why == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) < 0) why = errno;
    return why;
}

static int dial_path(once_redis_link *link, int *why)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t len = strlen(link->at.host);
    if (len >= sizeof to.sun_path) return *why = ENAMETOOLONG, -1;
    memcpy(to.sun_path, link->at.host, len + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *why = fd < 0 ? errno : connect_socket(link, fd, (const struct sockaddr *)&to, sizeof to);
    if (*why == 0) return fd;
    if (fd >= 0) (void)close(fd);
    return -1;
}

int once__redis_dial(once_redis_link *link, once_error *err)
{
    assert(link->fd < 0 && !link->tls);
    if (link->at.host[0] == '/') {
        int why;
        link->fd = dial_path(link, &why);
        return link->fd >= 0 ? ONCE_OK : once__redis_link_lost_by(link, err, "connecting to", why);
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[8];
    (void)snprintf(port, sizeof port, "%u", link->at.port & 0xffffu);
    const int resolved = getaddrinfo(link->at.host, port, &hints, &found);
    if (resolved != 0) return once__redis_link_lost(link, err, "finding", gai_strerror(resolved));
    int why = EADDRNOTAVAIL;
    for (const struct addrinfo *to = found; to && link->fd < 0; to = to->ai_next) {
        const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        why = fd < 0 ? errno : connect_socket(link, fd, to->ai_addr, to->ai_addrlen);
        if (why == 0) link->fd = fd;
        else if (fd >= 0) (void)close(fd);
    }
    freeaddrinfo(found);
    if (link->fd < 0) return once__redis_link_lost_by(link, err, "connecting to", why);
    const int on = 1;
    (void)setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return ONCE_OK;
}

int once__redis_send(once_redis_link *link, once_bytes bytes, once_error *err)
{
    assert(link->fd >= 0);
    while (bytes.len > 0) {
        const ssize_t n = link->tls ? once__redis_tls_send(link->tls, bytes.data, bytes.len)
                                    : send(link->fd, bytes.data, bytes.len, MSG_NOSIGNAL);
        if (n >= 0) {
            bytes.data += n;
            bytes.len -= (size_t)n;
        } else if (errno == EAGAIN) {
            const int why = once__redis_wait_for(&link->waiting, link->fd, POLLOUT);
            if (why) return once__redis_link_lost_by(link, err, "talking to", why);
        } else if (errno != EINTR) {
            return once__redis_link_lost_by(link, err, "talking to", errno);
        }
    }
    return ONCE_OK;
}

int once__redis_receive(once_redis_link *link, redisReply **out, once_error *err)
{
    assert(link->fd >= 0 && link->reader);
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(link->reader, &reply) != REDIS_OK)
            return once__redis_link_lost(link, err, "listening to", link->reader->errstr);
        if (reply) {
            *out = reply;
            return ONCE_OK;
        }
        const ssize_t n = link->tls ? once__redis_tls_receive(link->tls, link->chunk, sizeof link->chunk)
                                    : recv(link->fd, link->chunk, sizeof link->chunk, 0);
        if (n > 0) {
            if (redisReaderFeed(link->reader, link->chunk, (size_t)n) != REDIS_OK)
                return once__redis_link_lost(link, err, "listening to", link->reader->errstr);
        } else if (n == 0) {
            return once__redis_link_lost(link, err, "listening to", "it closed the connection");
        } else if (errno == EAGAIN) {
            const int why = once__redis_wait_for(&link->waiting, link->fd, POLLIN);
            if (why) return once__redis_link_lost_by(link, err, "listening to", why);
        } else if (errno != EINTR) {
            return once__redis_link_lost_by(link, err, "listening to", errno);
        }
    }
}
