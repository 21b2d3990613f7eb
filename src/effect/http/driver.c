/* The event loop of the effect `http` (client.h).
 *
 * libcurl says which sockets it waits for and when it wants to be called. It leaves a socket between two calls on one
 * connection; such a socket stays watched, so that a call costs no system call for that, and is only dropped when
 * something arrives on it meanwhile, or when it is closed. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "effect/http/client.h"

#include "base/banned.h"

enum { READ_AT_ONCE = 8 << 10, WRITE_AT_ONCE = 16 << 10 };

static pthread_once_t started = PTHREAD_ONCE_INIT;
static CURLcode start_result;

static void start_curl(void) { start_result = curl_global_init(CURL_GLOBAL_DEFAULT); }

/* ---- ends ---- */

static void give_back(http_call *call)
{
    call->item = NULL;
    call->next = call->driver->spare;
    call->driver->spare = call;
}

static void finish(http_call *call)
{
    once_item *item = call->item;
    give_back(call);
    once_runner_finished(call->driver->driver.runner, item);
}

void once__http_fail(http_call *call, int status, const char *why)
{
    once__http_call_unsent(call, status, why);
    finish(call);
}

void once__http_end(http_call *call, CURLcode code, bool killed)
{
    assert(call->item && call->item->driver == call);
    if (call->in_multi) (void)curl_multi_remove_handle(call->driver->multi, call->easy);
    else once__http_direct_leave(call);
    call->in_multi = false;
    switch (once__http_call_judge(call, code, killed)) {
    case HTTP_ENDED: finish(call); break;
    case HTTP_FOLLOWS:
    case HTTP_RECONNECTS: once__http_hand_over(call); break;
    case HTTP_RENEWS:
        if (once__http_token_ready(call, true)) once__http_begin(call);
        break;
    }
}

static void take_ends(http_driver *driver)
{
    int left;
    for (CURLMsg *message; (message = curl_multi_info_read(driver->multi, &left)) != NULL;) {
        char *user = NULL;
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result; /* the message is gone when its handle is removed */
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &user);
        http_call *call = (http_call *)(void *)user;
        if (call->fixed->direct && code == CURLE_OK) {
            once__http_direct_take_socket(call);
            continue;
        }
        if (call->fixed->direct) once__http_peer_none(call);
        once__http_end(call, code, false);
    }
}

/* ---- sockets and time ---- */

static void act(http_driver *driver, curl_socket_t fd, int what)
{
    int running;
    (void)curl_multi_socket_action(driver->multi, fd, what, &running);
    take_ends(driver);
}

static void socket_ready(once_watch *watch, uint32_t events)
{
    http_socket *s = (http_socket *)((char *)watch - offsetof(http_socket, watch));
    const int fd = watch->fd;
    if (s->direct) {
        once__http_direct_ready(s->direct, events);
        return;
    }
    if (s->events == CURL_POLL_NONE) { /* no call uses it: the server has closed it */
        once_runner_unwatch(s->driver->driver.runner, watch);
        watch->fd = fd;
        return;
    }
    const int what = (events & EPOLLIN ? CURL_CSELECT_IN : 0) | (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                     (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
    act(s->driver, fd, what);
}

http_socket *once__http_socket(http_driver *driver, int fd)
{
    if ((size_t)fd >= driver->n_sockets) {
        const size_t n = (size_t)fd + 64;
        http_socket **more = realloc(driver->sockets, n * sizeof(http_socket *));
        if (!more) return NULL;
        memset(more + driver->n_sockets, 0, (n - driver->n_sockets) * sizeof(http_socket *));
        driver->sockets = more;
        driver->n_sockets = n;
    }
    http_socket *s = driver->sockets[fd];
    if (!s) {
        s = calloc(1, sizeof *s);
        if (s) *s = (http_socket){.watch = {.fd = fd, .ready = socket_ready}, .driver = driver};
        driver->sockets[fd] = s;
    }
    return s;
}

/* libcurl says what it waits for. A failure is not reported, because libcurl would give up all calls, now and later.
 * The call of this socket then runs into its time limit. */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *of_socket)
{
    http_driver *driver = user;
    (void)easy;
    (void)of_socket;
    http_socket *s = once__http_socket(driver, fd);
    if (!s || s->direct) return 0;
    if (what == CURL_POLL_REMOVE) {
        if ((!s->ours || s->events != CURL_POLL_IN) && s->watch.on) {
            once_runner_unwatch(driver->driver.runner, &s->watch);
            s->watch.fd = fd;
        }
        s->events = CURL_POLL_NONE;
        return 0;
    }
    const bool as_it_is = s->watch.on && (s->events == what || (s->events == CURL_POLL_NONE && what == CURL_POLL_IN));
    s->events = what;
    if (as_it_is) return 0;
    const uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
    (void)once_runner_watch(driver->driver.runner, &s->watch, events, NULL);
    return 0;
}

void once__http_socket_close(http_driver *driver, int fd)
{
    http_socket *s = (size_t)fd < driver->n_sockets ? driver->sockets[fd] : NULL;
    if (s) {
        once_runner_unwatch(driver->driver.runner, &s->watch);
        driver->sockets[fd] = NULL;
        free(s);
    }
    (void)close(fd);
}

static int close_socket(void *user, curl_socket_t fd)
{
    http_driver *driver = user;
    http_socket *s = (size_t)fd < driver->n_sockets ? driver->sockets[fd] : NULL;
    if (s && s->direct) s->left = true; /* it goes on without libcurl */
    else once__http_socket_close(driver, fd);
    return 0;
}

static int set_timer(CURLM *multi, long ms, void *user)
{
    http_driver *driver = user;
    (void)multi;
    driver->timer_ms = ms < 0 ? ONCE_NEVER : once_runner_now_ms(driver->driver.runner) + ms;
    return 0;
}

static int64_t http_tick(once_effect_driver *base, int64_t now_ms)
{
    http_driver *driver = (http_driver *)base;
    once__http_direct_send(driver);
    if (driver->timer_ms <= now_ms) {
        driver->timer_ms = ONCE_NEVER;
        act(driver, CURL_SOCKET_TIMEOUT, 0);
    }
    const int64_t token_ms = once__http_token_tick(driver, now_ms), direct_ms = once__http_direct_tick(driver, now_ms);
    const int64_t next_ms = token_ms < direct_ms ? token_ms : direct_ms;
    return next_ms < driver->timer_ms ? next_ms : driver->timer_ms;
}

/* ---- addresses ---- */

/* Addresses of this link alone: the metadata servers of clouds have such, and give credentials to whoever asks. */
static bool is_link_local(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 16 == 0xa9fe;
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(six)) return six->s6_addr[12] == 169 && six->s6_addr[13] == 254;
    return IN6_IS_ADDR_LINKLOCAL(six);
}

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    http_call *call = user;
    (void)purpose;
    if (is_link_local(&address->addr) && !call->fixed->request->link_local && !call->driver->proxy) {
        call->unfit_address = true;
        return CURL_SOCKET_BAD;
    }
    const int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    call->no_socket = fd < 0 ? errno : 0;
    if (fd >= 0) once__http_set_up_socket(call, fd);
    http_socket *s = fd >= 0 ? once__http_socket(call->driver, fd) : NULL;
    if (s) s->ours = true;
    return fd;
}

/* ---- calls ---- */

/* The next connection of libcurl that has this port of ours, from `*fd` on; NULL: there is none. Two connections may
 * have one port, if they lead elsewhere. */
static http_socket *next_on_port(http_driver *driver, int port, size_t *fd)
{
    for (; *fd < driver->n_sockets; ++*fd) {
        http_socket *s = driver->sockets[*fd];
        if (!s || !s->ours || s->direct) continue;
        if (s->port == 0) {
            struct sockaddr_storage at = {0};
            socklen_t len = sizeof at;
            if (getsockname((int)*fd, (struct sockaddr *)&at, &len) != 0) continue;
            s->port = ntohs(at.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&at)->sin6_port
                                                     : ((const struct sockaddr_in *)(const void *)&at)->sin_port);
        }
        if (s->port == port) return s;
    }
    return NULL;
}

void once__http_note_version(http_call *call)
{
    long version = 0, port = 0;
    (void)curl_easy_getinfo(call->easy, CURLINFO_HTTP_VERSION, &version);
    (void)curl_easy_getinfo(call->easy, CURLINFO_LOCAL_PORT, &port);
    if (version != CURL_HTTP_VERSION_1_0 && version != CURL_HTTP_VERSION_1_1) return;
    size_t fd = 0;
    for (http_socket *s; (s = next_on_port(call->driver, (int)port, &fd)); fd++) s->spoke_http1 = true;
}

/* Streams of HTTP/2 have numbers, so nothing is mistaken there, and other streams make a connection readable. A new
 * connection with TLS may have tickets for the next session. One of HTTP/1 is used again only after a whole answer. */
static bool must_be_silent(const http_call *call, const http_socket *s)
{
    long connects = 0;
    if (!call->fixed->request->tls) return true;
    (void)curl_easy_getinfo(call->easy, CURLINFO_NUM_CONNECTS, &connects);
    return connects == 0 && (!call->driver->http->http2 || s->spoke_http1);
}

/* Whether something waits on a connection before the request is sent on it, or it was closed. libcurl 7.88 would take
 * what a server says unasked, such as a 408 after a pause, for the answer to the next request. `port` is ours; if two
 * connections have it, and the other one is readable, the call only gets a connection that it did not need. */
static bool is_stale(const http_call *call, int port)
{
    size_t fd = 0;
    for (const http_socket *s; (s = next_on_port(call->driver, port, &fd)); fd++) {
        struct pollfd polled = {.fd = (int)fd, .events = POLLIN};
        if (must_be_silent(call, s) && poll(&polled, 1, 0) > 0) return true;
    }
    return false;
}

/* Before each request that libcurl is about to send. For a repetition it only opens a connection. */
static int may_send(void *user, char *server, char *here, int server_port, int port)
{
    http_call *call = user;
    (void)server, (void)here, (void)server_port;
    if (call->fixed->direct) return CURL_PREREQFUNC_OK; /* it only connects */
    call->stale = !call->begun && is_stale(call, port);
    if (call->stale || call->begun || ONCE_FAIL_AT(http_before)) return CURL_PREREQFUNC_ABORT;
    call->begun = true;
    return CURL_PREREQFUNC_OK;
}

#define SET(option, value)                                                                                             \
    if (rc == CURLE_OK) rc = curl_easy_setopt(easy, option, value)

/* Everything that is the same for all calls of the handler. */
static CURLcode set_up(const http_driver *driver, http_call *call)
{
    const once_http_spec *http = driver->http;
    CURL *easy = call->easy;
    CURLcode rc = CURLE_OK;
    SET(CURLOPT_PRIVATE, call);
    SET(CURLOPT_ERRORBUFFER, call->error);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* a name server that hangs must not block the loop */
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PREREQFUNCTION, may_send);
    SET(CURLOPT_PREREQDATA, call);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, call);
    SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, driver);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_PROXY_SSL_VERIFYPEER, 1L); /* the same for a proxy of https:// */
    SET(CURLOPT_PROXY_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_PROXY_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_BUFFERSIZE, (long)READ_AT_ONCE);         /* libcurl allocates both for each call */
    SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)WRITE_AT_ONCE); /* its least */
    SET(CURLOPT_USERAGENT, "once/" ONCE_BUILD_VERSION);
    SET(CURLOPT_MAXAGE_CONN, (long)(http->idle_ms / 1000));
    SET(CURLOPT_PROXY, driver->proxy ? driver->proxy : ""); /* "": none, whatever the environment says */
    SET(CURLOPT_NOPROXY, "");
    if (driver->ca) {
        SET(CURLOPT_CAINFO, driver->ca);
        SET(CURLOPT_CAPATH, NULL);
        SET(CURLOPT_PROXY_CAINFO, driver->ca);
        SET(CURLOPT_PROXY_CAPATH, NULL);
    }
    if (driver->certificate) {
        SET(CURLOPT_SSLCERT, driver->certificate);
        SET(CURLOPT_SSLKEY, driver->key ? driver->key : driver->certificate);
    }
    return rc;
}

static http_call *take_call(http_driver *driver)
{
    http_call *call = driver->spare;
    if (call) {
        driver->spare = call->next;
        return call;
    }
    call = once__http_call_new(driver);
    if (!call) return NULL;
    if (set_up(driver, call) != CURLE_OK) {
        once__http_call_free(call);
        return NULL;
    }
    call->next_of_all = driver->all;
    driver->all = call;
    return call;
}

void once__http_hand_over(http_call *call)
{
    assert(!call->in_multi);
    if ((call->fixed->direct && once__http_call_connects(call) != CURLE_OK) ||
        curl_multi_add_handle(call->driver->multi, call->easy) != CURLM_OK)
        once__http_fail(call, ONCE_E_NOMEM, "out of memory for a request");
    else call->in_multi = true; /* it is begun in the next tick */
}

void once__http_begin(http_call *call)
{
    once_error why = {0};
    const int rc = once__http_call_make(call, &why);
    if (rc != ONCE_OK) once__http_fail(call, rc, why.text);
    else if (call->fixed->direct) once__http_direct_begin(call);
    else once__http_hand_over(call);
}

static void http_start(once_effect_driver *base, once_item *item)
{
    http_driver *driver = (http_driver *)base;
    http_call *call = take_call(driver);
    if (!call) {
        item->run_failure = ONCE_E_NOMEM;
        once_runner_output(driver->driver.runner, item, (once_bytes){0}, ONCE_BYTES("out of memory for a request"));
        once_runner_finished(driver->driver.runner, item);
        return;
    }
    item->driver = call;
    once__http_call_take(call, item);
    const bool needs_token = driver->token.file && once__http_authorized(driver, call->fixed);
    if (!needs_token || once__http_token_ready(call, false)) once__http_begin(call);
}

static void http_kill(once_effect_driver *base, once_item *item)
{
    http_call *call = item->driver;
    assert(call->item == item);
    (void)base;
    if (!call->waits) {
        once__http_end(call, CURLE_ABORTED_BY_CALLBACK, true);
        return;
    }
    once__http_token_forget(call);
    once__http_fail(call, ONCE_OK, "ended before it was sent");
}

/* ---- open, close ---- */

static void http_close(once_effect_driver *base)
{
    http_driver *driver = (http_driver *)base;
    for (http_call *call = driver->all; call; call = call->next_of_all) {
        if (call->in_multi) (void)curl_multi_remove_handle(driver->multi, call->easy);
        once__http_direct_close(call);
    }
    if (driver->multi) (void)curl_multi_cleanup(driver->multi); /* closes the sockets */
    for (http_call *call = driver->all, *next; call; call = next) {
        next = call->next_of_all;
        once__http_call_free(call);
    }
    for (size_t i = 0; i < driver->n_sockets; i++) free(driver->sockets[i]);
    free(driver->sockets);
    once__http_token_close(driver);
    once_json_release(&driver->json);
    once_buf_release(&driver->result);
    once_arena_release(&driver->arena);
    free(driver);
}

static const once_effect_driver_ops http_ops = {
    .start = http_start, .ask = http_start, .kill = http_kill, .tick = http_tick, .close = http_close};

static int open_multi(http_driver *driver, once_error *err)
{
    driver->multi = curl_multi_init();
    if (!driver->multi) return once_no_memory(err, "for the handlers");
    CURLMcode rc = curl_multi_setopt(driver->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    if (!rc) rc = curl_multi_setopt(driver->multi, CURLMOPT_SOCKETDATA, driver);
    if (!rc) rc = curl_multi_setopt(driver->multi, CURLMOPT_TIMERFUNCTION, set_timer);
    if (!rc) rc = curl_multi_setopt(driver->multi, CURLMOPT_TIMERDATA, driver);
    if (!rc) rc = curl_multi_setopt(driver->multi, CURLMOPT_MAXCONNECTS, (long)driver->http->window);
    if (!rc) rc = curl_multi_setopt(driver->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_MULTIPLEX);
    return rc == CURLM_OK ? ONCE_OK : once_no_memory(err, "for the handlers");
}

int once__http_open(once_runner *runner, const once_handler_spec *handler, once_effect_driver **out, once_error *err)
{
    (void)pthread_once(&started, start_curl);
    if (start_result != CURLE_OK)
        return once_fail(err, ONCE_E_UNAVAILABLE, "libcurl does not start: %s", curl_easy_strerror(start_result));
    http_driver *driver = calloc(1, sizeof *driver);
    if (!driver) return once_no_memory(err, "for the handlers");
    driver->driver = (once_effect_driver){.ops = &http_ops, .handler = handler, .runner = runner};
    driver->http = once_http_of(handler);
    driver->timer_ms = driver->direct_due_ms = ONCE_NEVER;
    driver->last_to_send = &driver->to_send;
    once_buf_init(&driver->result, SIZE_MAX / 4);
    int rc = once__http_token_open(driver, err);
    if (rc == ONCE_OK) rc = once__http_read_secrets(driver, err);
    if (rc == ONCE_OK) rc = open_multi(driver, err);
    if (rc == ONCE_OK) *out = &driver->driver;
    else http_close(&driver->driver);
    return rc;
}
