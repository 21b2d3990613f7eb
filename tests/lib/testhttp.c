/* An HTTP server for tests (testhttp.h): one thread that polls all connections. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "testhttp.h"

enum { CONNECTIONS = 600, REQUEST_USUAL = 1 << 16, REQUEST_MAX = 8 << 20 };

typedef struct connection {
    int fd;
    char *in;
    size_t len, capacity;
    bool deaf; /* nothing is read from it any more */
} connection;

static void end_connection(connection *c, test_http_then how)
{
    const struct linger at_once = {.l_onoff = 1};
    if (how == TEST_HTTP_RESET) (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(c->fd);
    free(c->in);
    *c = (connection){.fd = -1};
}

/* The length of the request that is there; 0: it is not whole. */
static size_t request_length(const connection *c)
{
    const char *end = memmem(c->in, c->len, "\r\n\r\n", 4);
    if (!end) return 0;
    const size_t head = (size_t)(end + 4 - c->in);
    const char *length = memmem(c->in, head, "Content-Length: ", 16);
    const size_t body = length ? strtoul(length + 16, NULL, 10) : 0;
    return c->len >= head + body ? head + body : 0;
}

static void send_answer(connection *c, const test_http_answer *answer)
{
    size_t left = answer->len ? answer->len : answer->bytes ? strlen(answer->bytes) : 0;
    for (const char *at = answer->bytes; left > 0;) {
        const ssize_t n = send(c->fd, at, left, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += n;
        left -= (size_t)n;
    }
    if (answer->then != TEST_HTTP_KEEP) end_connection(c, answer->then);
}

static void take_request(test_http *server, connection *c, size_t len)
{
    pthread_mutex_lock(&server->lock);
    const size_t i = server->n_requests;
    if (i < TEST_HTTP_REQUESTS) {
        server->requests[i] = strndup(c->in, len);
        server->n_requests++;
    }
    const test_http_answer answer = i < server->n_answers ? server->answers[i] : server->usual;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    memmove(c->in, c->in + len, c->len - len);
    c->len -= len;
    send_answer(c, &answer);
}

/* Answers a request of which only the head is there, if the test wants that. */
static void answer_early(test_http *server, connection *c)
{
    pthread_mutex_lock(&server->lock);
    const test_http_answer answer = server->early;
    const bool wanted = server->is_early && memmem(c->in, c->len, "\r\n\r\n", 4);
    server->n_early += wanted;
    pthread_mutex_unlock(&server->lock);
    if (!wanted) return;
    c->deaf = true;
    send_answer(c, &answer);
}

static void read_some(test_http *server, connection *c)
{
    if (c->len == c->capacity && c->capacity < REQUEST_MAX) {
        c->capacity *= 2;
        c->in = realloc(c->in, c->capacity + 1);
        assert_non_null(c->in);
    }
    const ssize_t n = recv(c->fd, c->in + c->len, c->capacity - c->len, 0);
    if (n <= 0) {
        end_connection(c, TEST_HTTP_CLOSE);
        return;
    }
    c->len += (size_t)n;
    for (size_t len; c->fd >= 0 && (len = request_length(c)) > 0;) take_request(server, c, len);
    if (c->fd >= 0) answer_early(server, c);
}

static void take_connection(test_http *server, connection *list)
{
    const int fd = accept(server->listener, NULL, NULL);
    size_t i = 0;
    while (i < CONNECTIONS && list[i].fd >= 0) i++;
    if (fd < 0 || i == CONNECTIONS) {
        if (fd >= 0) close(fd);
        return;
    }
    list[i] = (connection){.fd = fd, .in = malloc(REQUEST_USUAL + 1), .capacity = REQUEST_USUAL};
    pthread_mutex_lock(&server->lock);
    server->n_connections++;
    const test_http_answer greeting = {.bytes = server->greeting};
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    if (greeting.bytes) send_answer(&list[i], &greeting);
}

static void say_unasked(test_http *server, connection *list)
{
    pthread_mutex_lock(&server->lock);
    const test_http_answer answer = {.bytes = server->unasked};
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (list[i].fd >= 0) send_answer(&list[i], &answer);
    server->unasked = NULL;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void *serve(void *user)
{
    test_http *server = user;
    connection *list = malloc(CONNECTIONS * sizeof *list);
    struct pollfd *polled = malloc((CONNECTIONS + 2) * sizeof *polled);
    for (size_t i = 0; i < CONNECTIONS; i++) list[i] = (connection){.fd = -1};
    for (;;) {
        polled[0] = (struct pollfd){.fd = server->listener, .events = POLLIN};
        polled[1] = (struct pollfd){.fd = server->wake[0], .events = POLLIN};
        for (size_t i = 0; i < CONNECTIONS; i++)
            polled[i + 2] = (struct pollfd){.fd = list[i].fd, .events = list[i].deaf ? 0 : POLLIN};
        if (poll(polled, CONNECTIONS + 2, -1) < 0) continue;
        if (polled[1].revents) {
            char told = 0;
            if (read(server->wake[0], &told, 1) != 1 || told != 's') break;
            say_unasked(server, list);
            continue;
        }
        for (size_t i = 0; i < CONNECTIONS; i++)
            if (list[i].fd >= 0 && polled[i + 2].fd == list[i].fd && polled[i + 2].revents) read_some(server, &list[i]);
        if (polled[0].revents) take_connection(server, list);
    }
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (list[i].fd >= 0) end_connection(&list[i], TEST_HTTP_CLOSE);
    free(list);
    free(polled);
    return NULL;
}

void test_http_start(test_http *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    *server = (test_http){.usual = {.bytes = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}};
    const int room = 16 << 10; /* little, so that a large request is not taken at once */
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(server->listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server->listener, 600), 0);
    assert_int_equal(getsockname(server->listener, (struct sockaddr *)&address, &len), 0);
    server->port = ntohs(address.sin_port);
    assert_int_equal(pipe(server->wake), 0);
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->changed, NULL);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

void test_http_stop(test_http *server)
{
    assert_int_equal(write(server->wake[1], "", 1), 1);
    pthread_join(server->thread, NULL);
    close(server->listener);
    close(server->wake[0]);
    close(server->wake[1]);
    for (size_t i = 0; i < server->n_requests; i++) free(server->requests[i]);
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->changed);
}

void test_http_will(test_http *server, const char *bytes, test_http_then then)
{
    pthread_mutex_lock(&server->lock);
    if (server->n_answers < server->n_requests) { /* those that had none were answered as usual */
        for (size_t i = server->n_answers; i < server->n_requests; i++) server->answers[i] = server->usual;
        server->n_answers = server->n_requests;
    }
    assert_in_range(server->n_answers, 0, TEST_HTTP_REQUESTS - 1);
    server->answers[server->n_answers++] = (test_http_answer){.bytes = bytes, .then = then};
    pthread_mutex_unlock(&server->lock);
}

void test_http_greet(test_http *server, const char *bytes)
{
    pthread_mutex_lock(&server->lock);
    server->greeting = bytes;
    pthread_mutex_unlock(&server->lock);
}

static void be_early(test_http *server, test_http_answer answer)
{
    pthread_mutex_lock(&server->lock);
    server->early = answer;
    server->is_early = true;
    pthread_mutex_unlock(&server->lock);
}

void test_http_answer_early(test_http *server, const char *bytes)
{
    be_early(server, (test_http_answer){.bytes = bytes});
}

void test_http_cut(test_http *server, test_http_then then) { be_early(server, (test_http_answer){.then = then}); }

size_t test_http_read_whole(test_http *server)
{
    pthread_mutex_lock(&server->lock);
    const size_t n = server->n_early;
    server->is_early = false;
    pthread_mutex_unlock(&server->lock);
    return n;
}

void test_http_say(test_http *server, const char *bytes)
{
    pthread_mutex_lock(&server->lock);
    server->unasked = bytes;
    assert_int_equal(write(server->wake[1], "s", 1), 1);
    while (server->unasked) pthread_cond_wait(&server->changed, &server->lock);
    pthread_mutex_unlock(&server->lock);
}

void test_http_wait(test_http *server, size_t requests)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    pthread_mutex_lock(&server->lock);
    int rc = 0;
    while (server->n_requests < requests && rc == 0)
        rc = pthread_cond_timedwait(&server->changed, &server->lock, &until);
    const size_t n = server->n_requests;
    pthread_mutex_unlock(&server->lock);
    assert_true(n >= requests);
}

size_t test_http_count(test_http *server)
{
    pthread_mutex_lock(&server->lock);
    const size_t n = server->n_requests;
    pthread_mutex_unlock(&server->lock);
    return n;
}

size_t test_http_connections(test_http *server)
{
    pthread_mutex_lock(&server->lock);
    const size_t n = server->n_connections;
    pthread_mutex_unlock(&server->lock);
    return n;
}

const char *test_http_request(test_http *server, size_t i)
{
    pthread_mutex_lock(&server->lock);
    assert_in_range(i + 1, 1, server->n_requests);
    const char *request = server->requests[i];
    pthread_mutex_unlock(&server->lock);
    return request;
}
