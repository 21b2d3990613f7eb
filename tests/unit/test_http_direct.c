/* The connections of requests over http:// that are sent by ourselves: that each is silent when something is sent on it
 * (f69, f81), and which address it leads to. The test takes part in some system calls, so that what the other side does
 * falls into a moment that it could meet by chance alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef ONCE_WITH_HTTP
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "http_fixture.h"

/* --- system calls --- */

static struct hook {
    int looks; /* so many times the loop is disturbed while it looks */
    int (*look)(struct epoll_event *events, int max);
} hook;

/* The loop waits, or only looks: then there is no time for a wait. */
int epoll_wait(int fd, struct epoll_event *events, int max, int wait_ms)
{
    if (hook.look && wait_ms == 0 && hook.looks > 0) {
        hook.looks--;
        return hook.look(events, max);
    }
    return epoll_pwait(fd, events, max, wait_ms, NULL);
}

static int is_interrupted(struct epoll_event *events, int max)
{
    (void)events, (void)max;
    errno = EINTR;
    return -1;
}

static int tear_down_hooks(void **state)
{
    hook = (struct hook){0};
    asleep_ms = passed_ns = stands_ns = 0;
    return tear_down(state);
}

/* --- a server that is played by the test, between two turns of the loop --- */

enum { HAND_MAX = 64 };

typedef struct hand {
    int listener, port;
    int fds[HAND_MAX];
    size_t n, requests; /* connections, also those that were closed (-1), and requests that were answered */
    const char *says;   /* the answer to each */
} hand;

static struct hand *open_hand(fixture *f, const char *http)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[300], more[200];
    hand *h = once_arena_alloc(&f->arena, sizeof *h);
    *h = (hand){.listener = listen_at(&address, HAND_MAX), .says = OK};
    h->port = ntohs(address.sin_port);
    (void)snprintf(more, sizeof more, "%s%s", http[0] ? ", " : "", http);
    (void)snprintf(text, sizeof text, "{post: \"http://127.0.0.1:%d/\"%s}", h->port, more);
    open_handler(f, text);
    return h;
}

static void close_hand(hand *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->fds[i] >= 0) close(h->fds[i]);
    close(h->listener);
}

/* Takes connections, and answers what has come. Each request is small and comes at once. */
static void serve(hand *h)
{
    char request[2000];
    for (int fd; h->n < HAND_MAX && (fd = accept4(h->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) h->fds[h->n++] = fd;
    for (size_t i = 0; i < h->n; i++) {
        if (h->fds[i] < 0 || recv(h->fds[i], request, sizeof request, MSG_DONTWAIT) <= 0) continue;
        h->requests++;
        assert_int_equal(send(h->fds[i], h->says, strlen(h->says), MSG_NOSIGNAL), strlen(h->says));
    }
}

/* On every connection on which no request has come, it says this, if anything, and is gone. */
static void end_idle(hand *h, const char *words)
{
    char byte;
    for (size_t i = 0; i < h->n; i++) {
        if (h->fds[i] < 0 || recv(h->fds[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0) continue;
        if (words) assert_int_equal(send(h->fds[i], words, strlen(words), MSG_NOSIGNAL), strlen(words));
        close(h->fds[i]);
        h->fds[i] = -1;
    }
}

/* Starts so many calls together, and plays the server until all of them have ended. */
static void run_group(fixture *f, hand *h, int n, once_outcome outcome, const char *reason)
{
    once_item *items[HAND_MAX], *item;
    for (int i = 0; i < n; i++) {
        items[i] = &f->items[i];
        assert_int_equal(prepare(f, items[i], "{\"id\":1}"), ONCE_OK);
    }
    once_runner_start(f->runner, items, (size_t)n);
    for (int left = n, i = 0; left > 0 && i < PATIENCE_MS; i++) {
        serve(h);
        if (once_runner_wait(f->runner, 1, &item, 1) == 0) continue;
        says(item, outcome, reason);
        left--;
    }
    for (int i = 0; i < n; i++) assert_null(items[i]->driver); /* it has ended */
}

/* --- the loop --- */

/* To send requests the loop looks at everything, also at what wakes it. */
static void a_call_to_wake_is_heard_when_requests_are_sent(void **state)
{
    fixture *f = *state;
    once_item *none;
    open_handler(f, "{post: \"http://@/\", timeout: 20s}");
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    once_runner_wake(f->runner);
    (void)start(f, 0, "{\"id\":1}");
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    assert_int_equal(once_runner_wait(f->runner, 10000, &none, 1), 0);
    assert_in_range(once_env_mono_ns(once_env_real()) - began_ns, 0, 5000000000);
}

/* Then nobody has seen that the server has closed the connections. */
static void f69_a_look_that_a_signal_ends_has_seen_nothing(void **state)
{
    fixture *f = *state;
    hand *h = open_hand(f, "");
    run_group(f, h, 8, ONCE_DONE, "");
    end_idle(h, NULL);
    hook = (struct hook){.looks = 1, .look = is_interrupted};
    run_group(f, h, 8, ONCE_DONE, "");
    assert_int_equal(hook.looks, 0);
    assert_int_equal(h->requests, 16);
    close_hand(h);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down_hooks)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_to_wake_is_heard_when_requests_are_sent),
        TEST(f69_a_look_that_a_signal_ends_has_seen_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
