/* Direct calls (client.h): requests over http:// without proxy and redirects, the cheapest and commonest kind.
 *
 * libcurl resolves the name and connects, with all of its limits and our checks of the address. For a while the next
 * connections are made to that address without it (peer.c). The socket is ours: a request is one write, and its answer
 * usually one read. That takes less than half of the CPU time of a request through libcurl. Nothing is ever sent again.
 * `begun` becomes true when the kernel has taken the first byte.
 *
 * A call keeps its connection for the next one. Before a request is sent on it, the connection must be silent: what a
 * server says unasked is the answer to nothing. Calls that are started together are made first and sent then, one
 * behind the other, so that a server that sleeps is woken once. The loop looks at all connections together, instead of
 * a question to the system for each. It looks again after the time of a few sends, because a server may close what is
 * idle, or speak, at any moment. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/errno_text.h"
#include "base/failpoint.h"
#include "effect/http/client.h"

#include "base/banned.h"

enum { SILENT_NS = 20000 }; /* so long after a look connections count as silent: the time of a few sends */
#define LONG_AGO (INT64_MIN / 2)

/* ---- the request ---- */

/* Lines as libcurl wants them: "Name:" means that it is not sent, and "Name;" that it has no value. */
static void put_line(once_buf *out, const char *line)
{
    const size_t len = strlen(line);
    const char *colon = memchr(line, ':', len); /* the first one: a value may have others */
    if (colon && !colon[1]) return;
    if (!colon && line[len - 1] == ';') {
        once_buf_append(out, line, len - 1);
        once_buf_puts(out, ":");
    } else {
        once_buf_append(out, line, len);
    }
    once_buf_append(out, "\r\n", 2);
}

bool once__http_direct_make(http_call *call)
{
    const http_fixed *fixed = call->fixed;
    const char *target = call->text.data + fixed->request->origin; /* the URL is the first of the texts */
    once_buf *out = &call->out;
    if (out->capacity > HTTP_KEPT) once_buf_release(out);
    once_buf_clear(out);
    once_buf_puts(out, fixed->request->method);
    once_buf_puts(out, target[0] == '/' ? " " : " /");
    once_buf_puts(out, target);
    once_buf_puts(out, " HTTP/1.1\r\n");
    once_buf_append(out, fixed->usual_lines.data, fixed->usual_lines.len);
    for (const struct curl_slist *line = call->first_line; line; line = line->next) put_line(out, line->data);
    if (once__http_has_body(call)) {
        once_buf_puts(out, "Content-Length: ");
        once_buf_number(out, call->body.len);
        once_buf_append(out, "\r\n", 2);
    }
    once_buf_append(out, "\r\n", 2);
    return !out->failed;
}

/* ---- the connection ---- */

void once__http_direct_close(http_call *call)
{
    call->connects = false;
    if (call->fd < 0) return;
    once__http_socket(call->driver, call->fd)->direct = NULL;
    once__http_socket_close(call->driver, call->fd);
    call->fd = -1;
}

static bool is_fresh(const http_call *call)
{
    const int64_t idle_ms = once__http_boot_ms(call->driver) - call->idle_since_boot_ms;
    return idle_ms / 1000 <= call->driver->http->idle_ms / 1000;
}

/* What has come on a connection on which nothing was sent; NULL: nothing. */
static const char *unasked(int fd)
{
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return "the server spoke before it was asked";
    if (n == 0) return "the server closed the connection before it was asked";
    return errno == EAGAIN || errno == EWOULDBLOCK ? NULL : once_errno_text(errno);
}

/* False: errno says why not. Where something was sent, the call ends at its time limit then. */
static bool wait_for(http_call *call, uint32_t events)
{
    once_watch *watch = &once__http_socket(call->driver, call->fd)->watch;
    return once_runner_watch(call->driver->driver.runner, watch, events, NULL) == ONCE_OK;
}

/* Nothing was sent, or no whole answer came: `begun` tells. */
static void fail(http_call *call, CURLcode code, const char *why)
{
    (void)snprintf(call->error, sizeof call->error, "%s", why);
    once__http_end(call, code, false);
}

static void connect_anew(http_call *call)
{
    once__http_direct_close(call);
    call->used = false;
    call->connect_by_ms = once_runner_now_ms(call->driver->driver.runner) + call->driver->http->connect_timeout_ms;
    if (!once__http_peer_connect(call)) once__http_hand_over(call);
}

/* ---- sending ---- */

/* True: all of it is on its way. Otherwise errno says why not; EAGAIN: not yet. */
static bool send_some(http_call *call)
{
    const size_t head = call->out.len, whole = head + call->body.len;
    while (call->sent < whole) {
        const size_t in_head = call->sent < head ? call->sent : head, in_body = call->sent - in_head;
        struct iovec parts[2] = {{call->out.data + in_head, head - in_head},
                                 {(char *)(uintptr_t)call->body.data + in_body, call->body.len - in_body}};
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = parts[1].iov_len ? 2 : 1};
        const ssize_t n = sendmsg(call->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        call->begun = call->begun || n > 0;
        call->sent += (size_t)n;
    }
    return true;
}

static void send_request(http_call *call)
{
    call->sent = 0;
    call->reset = false;
    once__http_reply_begin(&call->reply);
    if (call->rest.capacity > HTTP_KEPT) once_buf_release(&call->rest);
    once_buf_clear(&call->rest);
    const char *said = call->used ? NULL : unasked(call->fd);
    if (said) {
        fail(call, CURLE_WEIRD_SERVER_REPLY, said);
        return;
    }
    if (ONCE_FAIL_AT(http_before)) {
        fail(call, CURLE_SEND_ERROR, "failpoint 'http_before'");
        return;
    }
    if (send_some(call)) return; /* it is watched for the answer */
    if (errno == EAGAIN || errno == EWOULDBLOCK) (void)wait_for(call, EPOLLIN | EPOLLOUT);
    else if (!call->begun && call->used) connect_anew(call); /* it was closed just now */
    else fail(call, CURLE_SEND_ERROR, once_errno_text(errno));
}

void once__http_direct_begin(http_call *call)
{
    http_driver *driver = call->driver;
    if (call->deadline_ms < driver->direct_due_ms) driver->direct_due_ms = call->deadline_ms;
    const bool leads_there = call->fd >= 0 && (call->connection == call->fixed ||
                                               once_http_same_origin(call->connection->request, call->fixed->request));
    if (!leads_there || !is_fresh(call)) {
        connect_anew(call);
        return;
    }
    call->used = call->queued = true;
    call->next = NULL;
    driver->silent_ns = LONG_AGO; /* nobody has looked at this one */
    *driver->last_to_send = call;
    driver->last_to_send = &call->next;
}

static void take_out(http_call *call)
{
    http_driver *driver = call->driver;
    http_call **at = &driver->to_send;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (!*at) driver->last_to_send = at;
    call->queued = false;
}

/* Whether the connections of all queued calls are silent, but for those that this closes. */
static bool are_silent(http_driver *driver)
{
    once_runner *runner = driver->driver.runner;
    const once_env *env = once_runner_options_of(runner)->env;
    if (once_env_mono_ns(env) - driver->silent_ns <= SILENT_NS) return true;
    if (!once_runner_look(runner, &driver->silent_ns)) driver->silent_ns = LONG_AGO;
    return once_env_mono_ns(env) - driver->silent_ns <= SILENT_NS; /* what had come may have taken longer than that */
}

void once__http_direct_send(http_driver *driver)
{
    while (driver->to_send) {
        const bool silent = are_silent(driver);
        http_call *call = driver->to_send;
        take_out(call);
        if (call->fd < 0 || (!silent && unasked(call->fd))) connect_anew(call);
        else send_request(call);
    }
}

void once__http_direct_take_socket(http_call *call)
{
    http_driver *driver = call->driver;
    curl_socket_t fd = CURL_SOCKET_BAD;
    (void)curl_easy_getinfo(call->easy, CURLINFO_ACTIVESOCKET, &fd);
    http_socket *s = fd == CURL_SOCKET_BAD ? NULL : once__http_socket(driver, fd);
    if (s) s->direct = call;
    (void)curl_multi_remove_handle(driver->multi, call->easy); /* which would close it; close_socket lets it go */
    call->in_multi = false;
    if (!s || !s->left) {
        fail(call, CURLE_OUT_OF_MEMORY, "");
        return;
    }
    call->fd = fd;
    call->connection = call->fixed;
    once__http_peer_note(call);
    if (!wait_for(call, EPOLLIN)) { /* its answer would not be noticed */
        call->no_socket = errno;
        fail(call, CURLE_COULDNT_CONNECT, "");
        return;
    }
    /* A tick that came while it was connecting has left it out. */
    if (call->deadline_ms < driver->direct_due_ms) driver->direct_due_ms = call->deadline_ms;
    send_request(call);
}

bool once__http_direct_cut(const http_call *call) { return call->sent < call->out.len + call->body.len; }

void once__http_direct_leave(http_call *call)
{
    if (call->queued) { /* its connection is as it was */
        take_out(call);
        return;
    }
    const bool whole = !call->connects && call->reply.state == HTTP_REPLY_WHOLE && !once__http_direct_cut(call);
    call->idle_since_boot_ms = once__http_boot_ms(call->driver);
    if (!whole || !call->reply.keeps || call->rest.len) once__http_direct_close(call);
}

/* ---- the answer ---- */

static void end_answered(http_call *call)
{
    const http_reply *reply = &call->reply;
    call->headed = reply->state != HTTP_REPLY_BROKEN;
    call->too_large = reply->state == HTTP_REPLY_TOO_LARGE;
    memcpy(call->retry_after, reply->retry_after, sizeof call->retry_after);
    static_assert(sizeof call->retry_after == sizeof reply->retry_after, "a header of one size");
    if (reply->state == HTTP_REPLY_BROKEN) fail(call, CURLE_WEIRD_SERVER_REPLY, reply->wrong);
    else once__http_end(call, call->too_large ? CURLE_WRITE_ERROR : CURLE_OK, false);
}

/* Bytes of the answer. What is left of them is a line that is not whole, or was not asked for. */
static void take_bytes(http_call *call, const char *data, size_t len)
{
    const bool more = call->rest.len > 0;
    if (more && !once_buf_append(&call->rest, data, len)) {
        fail(call, CURLE_OUT_OF_MEMORY, "memory is out");
        return;
    }
    const once_bytes in = more ? once_buf_bytes(&call->rest) : (once_bytes){data, len};
    const size_t n = once__http_reply_read(&call->reply, in.data, in.len, &call->answer);
    if (!more) {
        if (n < len && !once_buf_append(&call->rest, data + n, len - n)) {
            call->reply.keeps = false;
            if (!once__http_reply_ended(&call->reply)) { /* a hole in a line would make another one of it */
                fail(call, CURLE_OUT_OF_MEMORY, "memory is out");
                return;
            }
        }
    } else {
        memmove(call->rest.data, call->rest.data + n, call->rest.len - n);
        call->rest.len -= n;
    }
    if (once__http_reply_ended(&call->reply)) end_answered(call);
}

static void read_some(http_call *call)
{
    char *data =
        call->driver->read; /* not on the stack: what is there is zeroed first, which costs more than reading */
    ssize_t n;
    do n = recv(call->fd, data, sizeof call->driver->read, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        take_bytes(call, data, (size_t)n);
    } else if (n == 0 && call->reply.any && !call->reset) {
        once__http_reply_close(&call->reply);
        end_answered(call);
    } else if (n == 0) {
        fail(call, CURLE_GOT_NOTHING, "");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        fail(call, CURLE_RECV_ERROR, once_errno_text(errno));
    }
}

/* We have connected, or could not, in time. */
static void end_connecting(http_call *call)
{
    if (once__http_peer_works(call) && wait_for(call, EPOLLIN)) {
        send_request(call);
        return;
    }
    once__http_peer_forget(call);
    once__http_direct_close(call);
    once__http_hand_over(call); /* the name may have other addresses */
}

void once__http_direct_ready(http_call *call, uint32_t events)
{
    /* It is idle: the server closes it, or speaks unasked. */
    if (!call->item || call->waits || call->in_multi || call->queued) {
        once__http_direct_close(call);
        return;
    }
    if (call->connects) {
        end_connecting(call);
        return;
    }
    if (events & EPOLLOUT) {
        if (send_some(call)) (void)wait_for(call, EPOLLIN);
        else if (errno != EAGAIN && errno != EWOULDBLOCK && !(events & EPOLLIN)) {
            fail(call, CURLE_SEND_ERROR, once_errno_text(errno));
            return;
        } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
            call->reset = true; /* this has taken the error from the socket: reading will only find an end */
        }
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_some(call); /* also the answer to a part of the request */
}

int64_t once__http_direct_tick(http_driver *driver, int64_t now_ms)
{
    if (now_ms < driver->direct_due_ms) return driver->direct_due_ms;
    int64_t next_ms = ONCE_NEVER;
    for (http_call *call = driver->all; call; call = call->next_of_all) {
        if (!call->item || !call->fixed->direct || call->in_multi || call->waits) continue;
        const int64_t end_ms = call->connects ? call->head_start_ms : call->deadline_ms; /* which is later */
        if (end_ms < next_ms && end_ms > now_ms) next_ms = end_ms;
        if (end_ms > now_ms) continue;
        if (call->connects && call->deadline_ms > now_ms) {
            end_connecting(call);
            continue;
        }
        if (call->connects) once__http_peer_forget(call);
        fail(call, CURLE_OPERATION_TIMEDOUT, "");
    }
    return driver->direct_due_ms = next_ms;
}
