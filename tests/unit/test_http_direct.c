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

typedef struct hand hand;

static struct hook {
    int looks;                                        /* so many of the next ones ... */
    int (*look)(struct epoll_event *events, int max); /* ... give this instead */
    void (*sent)(hand *h);                            /* after the next request */
    void (*looked)(hand *h);                          /* after the next look */
    hand *h;
} hook;

/* The loop waits, or only looks: then there is no time for a wait. */
int epoll_wait(int fd, struct epoll_event *events, int max, int wait_ms)
{
    if (hook.look && wait_ms == 0 && hook.looks > 0) {
        hook.looks--;
        return hook.look(events, max);
    }
    const int n = epoll_pwait(fd, events, max, wait_ms, NULL);
    if (hook.looked && wait_ms == 0) {
        void (*looked)(hand *) = hook.looked;
        hook.looked = NULL;
        looked(hook.h);
    }
    return n;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    const ssize_t n = real(fd, message, flags);
    if (hook.sent) {
        void (*sent)(hand *) = hook.sent;
        hook.sent = NULL;
        sent(hook.h);
    }
    return n;
}

static int is_interrupted(struct epoll_event *events, int max)
{
    (void)events, (void)max;
    errno = EINTR;
    return -1;
}

/* As if more had come than the loop takes at once, and nothing of ours. */
static int is_too_much(struct epoll_event *events, int max)
{
    memset(events, 0, (size_t)max * sizeof *events);
    return max;
}

static int tear_down_hooks(void **state)
{
    hook = (struct hook){0};
    asleep_ms = passed_ns = stands_ns = 0;
    return tear_down(state);
}

/* --- a server that is played by the test, between two turns of the loop --- */

enum { HAND_MAX = 64 };

struct hand {
    int listener, port;
    int fds[HAND_MAX];
    size_t n, requests; /* connections, also those that were closed (-1), and requests that were answered */
    const char *says;   /* the answer to each */
    const char *words;  /* what it says unasked; NULL: nothing */
};

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

/* On every connection on which no request has come, it says what it has to say, and is gone. */
static void end_idle(hand *h)
{
    char byte;
    for (size_t i = 0; i < h->n; i++) {
        if (h->fds[i] < 0 || recv(h->fds[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0) continue;
        if (h->words) assert_int_equal(send(h->fds[i], h->words, strlen(h->words), MSG_NOSIGNAL), strlen(h->words));
        close(h->fds[i]);
        h->fds[i] = -1;
    }
}

static void start_group(fixture *f, once_item **items, int n)
{
    for (int i = 0; i < n; i++) {
        items[i] = &f->items[i];
        assert_int_equal(prepare(f, items[i], "{\"id\":1}"), ONCE_OK);
    }
    once_runner_start(f->runner, items, (size_t)n);
}

/* Plays the server until all of them have ended. */
static void wait_group(fixture *f, hand *h, once_item **items, int n, once_outcome outcome, const char *reason)
{
    once_item *item;
    for (int left = n, i = 0; left > 0 && i < PATIENCE_MS; i++) {
        serve(h);
        if (stands_ns) (void)usleep(1000);
        if (once_runner_wait(f->runner, stands_ns ? 0 : 1, &item, 1) == 0) continue;
        says(item, outcome, reason);
        left--;
    }
    for (int i = 0; i < n; i++) assert_null(items[i]->driver); /* it has ended */
}

static void run_group(fixture *f, hand *h, int n, once_outcome outcome, const char *reason)
{
    once_item *items[HAND_MAX];
    start_group(f, items, n);
    wait_group(f, h, items, n, outcome, reason);
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
    end_idle(h);
    hook = (struct hook){.looks = 1, .look = is_interrupted};
    run_group(f, h, 8, ONCE_DONE, "");
    assert_int_equal(hook.looks, 0);
    assert_int_equal(h->requests, 16);
    close_hand(h);
}

/* --- silence --- */

#define UNASKED "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
#define BUSY "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"

enum { TOGETHER = 16, LONG_NS = 25000 }; /* longer than a look is believed */

/* The server ends the connections that are idle, and a moment passes. */
static void end_idle_and_take_time(hand *h)
{
    end_idle(h);
    passed_ns += LONG_NS;
}

/* A group is sent on connections that are kept, and the server acts meanwhile. Each request must reach it, and get the
 * answer that is its own. */
static void disturb(fixture *f, const char *words, void (*sent)(hand *), void (*looked)(hand *))
{
    hand *h = open_hand(f, "window: 32");
    run_group(f, h, TOGETHER, ONCE_DONE, "");
    assert_int_equal(h->n, TOGETHER);
    h->words = words;
    h->says = BUSY;
    hook = (struct hook){.sent = sent, .looked = looked, .h = h};
    run_group(f, h, TOGETHER, ONCE_RETRY, "status 503");
    assert_true(!hook.sent && !hook.looked);
    assert_int_equal(h->requests, 2 * TOGETHER);
    assert_in_range(h->n, 2 * TOGETHER - 1, 2 * TOGETHER); /* those that were ended had to be made anew */
    close_hand(h);
}

/* The first request of a group wakes the server, which ends the connections that are idle. */
static void f69_a_connection_may_end_while_others_are_sent_on(void **state)
{
    disturb(*state, NULL, end_idle_and_take_time, NULL);
}

static void f81_what_comes_while_others_are_sent_is_no_answer(void **state)
{
    disturb(*state, UNASKED, end_idle_and_take_time, NULL);
}

/* The loop has looked, and handles what it has seen, which takes long. */
static void f69_a_connection_may_end_behind_a_look(void **state)
{
    disturb(*state, NULL, NULL, end_idle_and_take_time);
    disturb(*state, UNASKED, NULL, end_idle_and_take_time);
}

/* A look says nothing of connections that were not kept yet, however short ago it was. */
static void f81_every_group_is_looked_at(void **state)
{
    fixture *f = *state;
    hand *h = open_hand(f, "");
    stands_ns = once_env_mono_ns(once_env_real());
    for (int i = 0; i < 3; i++) {
        h->says = OK;
        run_group(f, h, 1, ONCE_DONE, "");
        h->words = UNASKED;
        end_idle(h);
        h->says = BUSY;
        run_group(f, h, 1, ONCE_RETRY, "status 503");
    }
    close_hand(h);
}

/* Other descriptors are ready again and again, and the loop does not get as far as to these connections. */
static void f69_a_look_that_has_not_seen_all_is_not_believed(void **state)
{
    fixture *f = *state;
    hand *h = open_hand(f, "window: 32");
    run_group(f, h, TOGETHER, ONCE_DONE, "");
    h->words = UNASKED;
    end_idle(h);
    h->says = BUSY;
    hook = (struct hook){.looks = 1000, .look = is_too_much};
    once_item *items[TOGETHER];
    start_group(f, items, TOGETHER);
    assert_in_range(hook.looks, 0, 998);
    hook.looks = 0;
    wait_group(f, h, items, TOGETHER, ONCE_RETRY, "status 503");
    assert_int_equal(h->requests, 2 * TOGETHER);
    close_hand(h);
}

/* More connections than the loop takes events at once. */
static void f81_many_connections_may_speak_at_once(void **state)
{
    enum { CALLS = 200 };
    fixture *f = *state;
    once_item *items[CALLS];
    open_handler(f, "{post: \"http://@/\", window: 256}");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CALLS && round; i++) test_http_will(&f->server, BUSY, TEST_HTTP_KEEP);
        start_group(f, items, CALLS);
        for (int i = 0; i < CALLS; i++) says(ended(f), round ? ONCE_RETRY : ONCE_DONE, round ? "status 503" : "");
        if (round) break;
        test_http_say(&f->server, UNASKED);
        stands_ns = once_env_mono_ns(once_env_real()); /* nobody looks a second time */
    }
    assert_int_equal(test_http_count(&f->server), 2 * CALLS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down_hooks)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_to_wake_is_heard_when_requests_are_sent),
        TEST(f69_a_look_that_a_signal_ends_has_seen_nothing),
        TEST(f69_a_connection_may_end_while_others_are_sent_on),
        TEST(f81_what_comes_while_others_are_sent_is_no_answer),
        TEST(f69_a_connection_may_end_behind_a_look),
        TEST(f81_every_group_is_looked_at),
        TEST(f69_a_look_that_has_not_seen_all_is_not_believed),
        TEST(f81_many_connections_may_speak_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
