/* Connects direct calls to the address that libcurl has found.
 *
 * libcurl resolves the name, our checks look at each address, and libcurl tries them. That costs much more than a call.
 * So the address to which it has connected is kept for as long as libcurl keeps a name, and a call that needs another
 * connection meanwhile connects there by itself. Where that is refused or takes too long, libcurl is asked again: it
 * tries all addresses of the name, and says what is wrong. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "effect/http/client.h"

#include "base/banned.h"

enum { KEPT_MS = 60000 };

static http_peer *peer_of(const http_call *call)
{
    const ptrdiff_t kind = call->fixed - call->driver->fixed;
    assert(kind >= 0 && kind < HTTP_REQUESTS);
    return &call->driver->peers[kind];
}

static int64_t now_ms(const http_call *call)
{
    return once_env_boot_ms(once_runner_options_of(call->driver->driver.runner)->env);
}

void once__http_peer_note(const http_call *call)
{
    http_peer *peer = peer_of(call);
    peer->len = sizeof peer->address;
    if (getpeername(call->fd, (struct sockaddr *)&peer->address, &peer->len) != 0) peer->len = 0;
    peer->until_ms = now_ms(call) + KEPT_MS;
}

void once__http_set_up_socket(const http_call *call, int fd)
{
    const unsigned silent_ms = (unsigned)call->driver->driver.handler->timeout_ms;
    /* A connection whose other end is gone without a word must not take in one call after the other. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
}

static bool open_connection(http_call *call, const http_peer *peer)
{
    const int on = 1, fd = socket(peer->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    once__http_set_up_socket(call, fd);
    http_socket *s = NULL;
    if (connect(fd, (const struct sockaddr *)&peer->address, peer->len) == 0 || errno == EINPROGRESS)
        s = once__http_socket(call->driver, fd);
    if (!s) {
        (void)close(fd);
        return false;
    }
    s->direct = call;
    call->fd = fd;
    if (once_runner_watch(call->driver->driver.runner, &s->watch, EPOLLOUT, NULL) == ONCE_OK) return true;
    once__http_direct_close(call);
    return false;
}

bool once__http_peer_connect(http_call *call)
{
    assert(call->fd < 0 && !call->connects);
    const http_peer *peer = peer_of(call);
    if (peer->len == 0 || now_ms(call) >= peer->until_ms || !open_connection(call, peer)) return false;
    call->connects = true;
    call->connection = call->fixed;
    call->connect_by_ms = once_runner_now_ms(call->driver->driver.runner) + call->driver->http->connect_timeout_ms;
    if (call->connect_by_ms < call->driver->direct_due_ms) call->driver->direct_due_ms = call->connect_by_ms;
    return true;
}

bool once__http_peer_connected(http_call *call)
{
    int error = 0;
    socklen_t len = sizeof error;
    assert(call->connects);
    call->connects = false;
    if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0) return true;
    once__http_peer_forget(call);
    return false;
}

void once__http_peer_forget(const http_call *call) { peer_of(call)->len = 0; }
