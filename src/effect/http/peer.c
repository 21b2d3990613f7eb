/* Connects direct calls to the address that libcurl has found.
 *
 * libcurl resolves the name, our checks look at each address, and libcurl tries them. That costs much more than a call.
 * So the address to which it has connected is kept, and a call that needs another connection meanwhile connects there
 * by itself. Where that is refused, or takes longer than a connection should, libcurl is asked again, in what is left
 * of the time: it tries all addresses of the name, and says what is wrong. While none of them takes a connection, the
 * name is looked up again every second. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "effect/http/client.h"

#include "base/banned.h"

enum {
    NAME_S = 30,     /* libcurl may connect to an address that it has known for so long ... */
    KEPT_MS = 30000, /* ... and then it is kept here: a minute in all */
    HEAD_START_MS = 200
};

static http_peer *peer_of(const http_call *call)
{
    const ptrdiff_t kind = call->fixed - call->driver->fixed;
    assert(kind >= 0 && kind < HTTP_REQUESTS);
    return &call->driver->peers[kind];
}

void once__http_peer_note(const http_call *call)
{
    http_peer *peer = peer_of(call);
    peer->len = sizeof peer->address;
    if (getpeername(call->fd, (struct sockaddr *)&peer->address, &peer->len) != 0) peer->len = 0;
    peer->until_boot_ms = once__http_boot_ms(call->driver) + KEPT_MS;
    peer->notes++;
    peer->away = false;
}

void once__http_peer_none(const http_call *call) { peer_of(call)->away = true; }

long once__http_peer_name_s(const http_call *call) { return peer_of(call)->away ? 1 : NAME_S; }

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
    const bool begins = connect(fd, (const struct sockaddr *)&peer->address, peer->len) == 0 || errno == EINPROGRESS;
    if (!begins) once__http_peer_forget(call);
    http_socket *s = begins ? once__http_socket(call->driver, fd) : NULL;
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
    http_driver *driver = call->driver;
    const http_peer *peer = peer_of(call);
    if (peer->len == 0 || once__http_boot_ms(driver) >= peer->until_boot_ms) return false;
    call->note = peer->notes;
    if (!open_connection(call, peer)) return false;
    const int64_t now_ms = once_runner_now_ms(driver->driver.runner);
    const int64_t by_ms = call->connect_by_ms < call->deadline_ms ? call->connect_by_ms : call->deadline_ms;
    const int64_t half_ms = (by_ms - now_ms) / 2; /* the other one is libcurl's */
    call->connects = true;
    call->connection = call->fixed;
    call->head_start_ms = now_ms + (half_ms < HEAD_START_MS ? half_ms : HEAD_START_MS);
    if (call->head_start_ms < driver->direct_due_ms) driver->direct_due_ms = call->head_start_ms;
    return true;
}

bool once__http_peer_works(http_call *call)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    assert(call->connects);
    call->connects = false;
    return getpeername(call->fd, (struct sockaddr *)&address, &len) == 0; /* of a socket that is connected */
}

void once__http_peer_forget(const http_call *call)
{
    http_peer *peer = peer_of(call);
    if (peer->notes == call->note) peer->len = 0;
}
