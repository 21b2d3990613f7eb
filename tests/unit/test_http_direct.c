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
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>

#include "http_fixture.h"

/* --- system calls --- */

typedef struct hand hand;

static struct hook {
    int looks;                                        /* so many of the next ones ... */
    int (*look)(struct epoll_event *events, int max); /* ... give this instead */
    void (*sent)(hand *h);                            /* after the next request */
    void (*looked)(hand *h);                          /* after the next look */
    hand *h;
    atomic_int asked;    /* how many times the name was looked up */
    atomic_int refusing; /* connecting to 127.0.0.x fails at once ... */
    atomic_int spared;   /* ... after so many times */
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

int connect(int fd, const struct sockaddr *address, socklen_t len)
{
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "connect");
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)address;
    if (hook.refusing && address->sa_family == AF_INET &&
        ntohl(four->sin_addr.s_addr) == INADDR_LOOPBACK - 1 + (in_addr_t)hook.refusing && hook.spared-- <= 0) {
        errno = ENETUNREACH;
        return -1;
    }
    return real(fd, address, len);
}

#define NAME "pay.test"

static const char *_Atomic addresses[3]; /* of the name */

/* libcurl asks in a thread of its own. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, NAME) != 0) return real(name, service, hints, out);
    int rc = EAI_NONAME;
    hook.asked++;
    *out = NULL;
    for (size_t i = 0; addresses[i] && (rc == 0 || i == 0); i++) {
        rc = real(addresses[i], service, hints, out);
        while (rc == 0 && *out) out = &(*out)->ai_next;
    }
    return rc;
}

/* libcurl counts how long it knows a name. */
time_t time(time_t *out)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const time_t seconds = now.tv_sec + asleep_ms / 1000;
    if (out) *out = seconds;
    return seconds;
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

static http_call *call_of(const once_item *item)
{
    assert_non_null(item->driver);
    return item->driver;
}

static int64_t since_ms(int64_t began_ns) { return (once_env_mono_ns(once_env_real()) - began_ns) / 1000000; }

static int tear_down_hooks(void **state)
{
    memset(&hook, 0, sizeof hook);
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
    hook.looks = 1;
    hook.look = is_interrupted;
    run_group(f, h, 8, ONCE_DONE, "");
    assert_int_equal(hook.looks, 0);
    assert_int_equal(h->requests, 16);
    close_hand(h);
}

/* There is a token each time that the test says so. */
#define WHEN_TOLD "while [ ! -e go ]; do sleep 0.01; done; rm go; echo token"

static void tell(const token_command *c)
{
    char path[120];
    (void)snprintf(path, sizeof path, "%s/go", c->folder);
    write_file(path, "");
}

/* The calls wait for another token, which comes: then they are queued, and the loop has not sent them. */
static void queue_with_new_token(fixture *f, const token_command *c, once_item *const *items, int n)
{
    once_item *none;
    for (int waits = 0; waits < n;) {
        assert_int_equal(once_runner_wait(f->runner, 5, &none, 1), 0);
        waits = 0;
        for (int i = 0; i < n; i++) waits += call_of(items[i])->refreshed && call_of(items[i])->waits;
    }
    tell(c);
    for (int queued = 0; queued < n;) {
        (void)usleep(1000);
        assert_int_equal(once_runner_wait(f->runner, 0, &none, 1), 0);
        queued = 0;
        for (int i = 0; i < n; i++) queued += call_of(items[i])->queued;
    }
}

static void a_call_that_is_queued_can_be_ended(void **state)
{
    enum { CALLS = 3 };
    fixture *f = *state;
    once_item *items[CALLS];
    token_command c;
    make_command(&c, WHEN_TOLD, ", idle: 30s");
    tell(&c);
    open_handler(f, c.http);
    for (int i = 0; i < CALLS; i++) test_http_will(&f->server, answer(&f->arena, "401 No", ""), TEST_HTTP_KEEP);
    start_group(f, items, CALLS);
    queue_with_new_token(f, &c, items, CALLS);
    once_item *ended_ones[] = {items[2], items[0]};
    once_runner_kill(f->runner, ended_ones, 2);
    for (int i = 0; i < 2; i++) says(ended(f), ONCE_RELEASE, "ended before it was sent");
    says(ended(f), ONCE_DONE, "");
    assert_null(items[1]->driver);
    says(run(f, "{\"id\":1}"), ONCE_DONE, "");
    assert_int_equal(test_http_count(&f->server), CALLS + 2);
    remove_command(&c);
}

/* The first handler must follow a redirect. The loop gets to know that when it looks before the second one sends, which
 * is behind the turn of the first. */
static void what_a_look_has_seen_does_not_wait(void **state)
{
    fixture *f = *state;
    test_http other;
    token_command c;
    char text[1000];
    once_item *items[2] = {&f->items[0], &f->items[1]}, *none;
    test_http_start(&other);
    make_command(&c, WHEN_TOLD, "");
    tell(&c);
    (void)snprintf(
        text, sizeof text,
        "type: \"${/type}\"\nhandlers:\n"
        "  first: {http: {post: \"http://@/\", redirects: 1, connect_timeout: 1s, timeout: 20s}}\n"
        "  second: {http: {post: \"http://127.0.0.1:%d/\", timeout: 20s, idle: 30s, bearer: {exec: [%s]}}}\n",
        other.port, c.script);
    assert_int_equal(try_open_pipeline(f, text), ONCE_OK);
    test_http_will(&f->server, NULL, TEST_HTTP_KEEP);
    test_http_will(&other, answer(&f->arena, "401 No", ""), TEST_HTTP_KEEP);
    test_http_will(&other, NULL, TEST_HTTP_KEEP);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(prepare_for(f, &f->spec->handlers[i], items[i], "{\"id\":1}"), ONCE_OK);
        once_runner_start(f->runner, &items[i], 1);
    }
    while (test_http_count(&f->server) < 1 || /* then nothing but the timeout makes libcurl act */
           call_of(items[0])->driver->timer_ms < once_runner_now_ms(f->runner) + 11000)
        assert_int_equal(once_runner_wait(f->runner, 1, &none, 1), 0);
    queue_with_new_token(f, &c, &items[1], 1);
    (void)snprintf(text, sizeof text,
                   "HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:%d/there\r\nContent-Length: 0\r\n\r\n",
                   f->server.port);
    test_http_say(&f->server, text);
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    assert_ptr_equal(ended(f), items[0]);
    says(items[0], ONCE_DONE, "");
    assert_in_range(since_ms(began_ns), 0, 10000);
    once_runner_close(f->runner);
    f->runner = NULL;
    test_http_stop(&other);
    remove_command(&c);
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
    hook.sent = sent;
    hook.looked = looked;
    hook.h = h;
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
    hook.looks = 1000;
    hook.look = is_too_much;
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

/* --- addresses --- */

/* Two servers at one port, 127.0.0.1 and 127.0.0.2, and a name that has both of these addresses, in this order. */
typedef struct two {
    struct sockaddr_in address[2];
    int listener[2], filler[3];
} two;

static void open_two(fixture *f, two *t, const char *more)
{
    char text[300];
    *t = (two){.listener = {-1, -1}, .filler = {-1, -1, -1}};
    for (int tries = 0; t->listener[1] < 0; tries++) { /* somebody may have the port at the second one */
        assert_in_range(tries, 0, 20);
        if (t->listener[0] >= 0) close(t->listener[0]);
        t->address[0] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        t->listener[0] = listen_at(&t->address[0], 16);
        t->address[1] = t->address[0];
        t->address[1].sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
        const int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
        if (bind(fd, (struct sockaddr *)&t->address[1], sizeof t->address[1]) == 0 && listen(fd, 16) == 0)
            t->listener[1] = fd;
        else close(fd);
    }
    addresses[0] = "127.0.0.1";
    addresses[1] = "127.0.0.2";
    (void)snprintf(text, sizeof text, "{post: \"http://" NAME ":%d/\"%s%s}", ntohs(t->address[0].sin_port),
                   more[0] ? ", " : "", more);
    open_handler(f, text);
}

static void close_two(two *t)
{
    for (size_t i = 0; i < 3; i++)
        if (t->filler[i] >= 0) close(t->filler[i]);
    for (size_t i = 0; i < 2; i++)
        if (t->listener[i] >= 0) close(t->listener[i]);
}

/* The first one takes no more connections, and does not refuse them: its queue is full. */
static void silence_first(two *t)
{
    assert_int_equal(listen(t->listener[0], 0), 0);
    for (size_t i = 0; i < 3; i++) {
        t->filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(t->filler[i], (struct sockaddr *)&t->address[0], sizeof t->address[0]);
    }
}

/* The last byte of the address that is known; 0: none is. */
static int known(const http_driver *driver)
{
    const http_peer *peer = &driver->peers[HTTP_EFFECT];
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)&peer->address;
    return peer->len ? (int)(ntohl(four->sin_addr.s_addr) & 0xff) : 0;
}

/* The address of the first connection is used for the next ones, by ourselves. */
static void an_address_that_is_known_may_be_gone(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "connect_timeout: 100ms, timeout: 20s");
    addresses[1] = NULL;
    for (int i = 0; i < 3; i++) answer_one(f, t.listener[0]);
    once_item *item = start(f, 0, "{\"id\":1}");
    const http_driver *driver = call_of(item)->driver;
    assert_true(call_of(item)->connects);
    once_runner_kill(f->runner, &item, 1);
    says(ended(f), ONCE_RELEASE, "ended before it was sent");
    close(t.listener[0]);
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent"); /* it is refused there, and libcurl says so */
    assert_false(f->items[0].started);
    assert_int_equal(known(driver), 0);
    t.listener[0] = listen_at(&t.address[0], 16);
    for (int i = 0; i < 2; i++) answer_one(f, t.listener[0]);
    assert_int_equal(known(driver), 1);
    silence_first(&t);
    item = start(f, 0, "{\"id\":1}");
    once_runner_kill(f->runner, &item, 1); /* while we connect */
    says(ended(f), ONCE_RELEASE, "ended before it was sent");
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "no connection within 100ms");
    assert_int_equal(known(driver), 0);
    assert_true(call_of(start(f, 0, "{\"id\":1}"))->in_multi); /* libcurl is asked at once */
    says(ended(f), ONCE_RETRY, "no connection within 100ms");
    assert_in_range(since_ms(began_ns), 150, 15000); /* before the timeout */
    start(f, 0, "{\"id\":1}");                       /* one that connects when all ends */
    close_two(&t);
}

/* A known address that has become silent, and a timeout that is shorter than that of connecting: the call has time for
 * the other address, and the next ones go there. */
static void a_silent_address_does_not_hold_up_its_handler(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "timeout: 2s");
    answer_one(f, t.listener[0]);
    silence_first(&t);
    hook.spared = 1;
    hook.refusing = 1; /* then libcurl need not wait: version 7.88 does so for all of the time */
    for (int i = 0; i < 3; i++) answer_one(f, t.listener[1]);
    once_item *item = start(f, 0, "{\"id\":1}");
    assert_true(call_of(item)->connects);
    assert_int_equal(known(call_of(item)->driver), 2);
    once_runner_kill(f->runner, &item, 1);
    close_two(&t);
}

/* At the known address and by libcurl together. */
static void connecting_takes_no_longer_than_its_limit(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "timeout: 60s, connect_timeout: 10s");
    addresses[1] = NULL;
    answer_one(f, t.listener[0]);
    silence_first(&t);
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    once_item *item = start(f, 0, "{\"id\":1}");
    assert_true(call_of(item)->connects);
    passed_ns += 9500000000; /* libcurl gets the last half of a second */
    says(ended(f), ONCE_RETRY, "no connection within 10s");
    assert_in_range(since_ms(began_ns), 400, 5000);
    close_two(&t);
}

/* What is left of the time to libcurl for one call is not the limit of the next one, which libcurl carries out. */
static void a_limit_of_connecting_is_that_of_its_call(void **state)
{
    fixture *f = *state;
    two t;
    char lookup[200];
    open_two(f, &t, "");
    const int port = ntohs(t.address[0].sin_port);
    (void)snprintf(
        lookup, sizeof lookup,
        "{post: \"http://127.0.0.1:%d/\", connect_timeout: 1s, lookup: {get: \"https://127.0.0.1:%d/${key}\"}}", port,
        port);
    open_handler(f, lookup);
    answer_one(f, t.listener[0]);
    silence_first(&t);
    once_item *item = start(f, 0, "{\"id\":1}");
    assert_true(call_of(item)->connects);
    passed_ns += 900000000;
    says(ended(f), ONCE_RETRY, "no connection within 1s");
    const int64_t began_ns = once_env_mono_ns(once_env_real());
    says(ask(f), ONCE_UNKNOWN, "no connection within 1s");
    assert_in_range(since_ms(began_ns), 700, 20000);
    close_two(&t);
}

/* Refused, also at once: libcurl connects to the other address. */
static void an_address_that_refuses_is_left(void **state)
{
    fixture *f = *state;
    for (int at_once = 0; at_once < 2; at_once++) {
        two t;
        open_two(f, &t, "");
        answer_one(f, t.listener[0]);
        once_item *item = start(f, 0, "{\"id\":1}");
        const http_driver *driver = call_of(item)->driver;
        assert_int_equal(known(driver), 1);
        once_runner_kill(f->runner, &item, 1);
        says(ended(f), ONCE_RELEASE, "");
        if (at_once) {
            hook.refusing = 1;
        } else {
            close(t.listener[0]);
            t.listener[0] = -1;
        }
        answer_one(f, t.listener[1]);
        assert_int_equal(known(driver), 2);
        hook.refusing = 2;
        if (at_once) {
            item = start(f, 0, "{\"id\":1}");
            assert_true(call_of(item)->in_multi);
            assert_int_equal(known(driver), 0);
            once_runner_kill(f->runner, &item, 1);
            says(ended(f), ONCE_RELEASE, "");
        }
        hook.refusing = 0;
        close_two(&t);
    }
}

/* One call waits at the first address when another one finds the second: that one stays known. */
static void a_late_failure_forgets_no_newer_address(void **state)
{
    fixture *f = *state;
    two t;
    once_item *none;
    open_two(f, &t, "timeout: 60s, connect_timeout: 30s");
    answer_one(f, t.listener[0]);
    silence_first(&t);
    once_item *late = start(f, 0, "{\"id\":1}");
    const http_driver *driver = call_of(late)->driver;
    assert_true(call_of(late)->connects);
    call_of(late)->head_start_ms += 10000;
    asleep_ms = 61000; /* what is known is over: libcurl is asked */
    hook.refusing = 1;
    once_item *other = start(f, 1, "{\"id\":1}");
    assert_true(call_of(other)->in_multi);
    while (call_of(other)->in_multi) assert_int_equal(once_runner_wait(f->runner, 1, &none, 1), 0);
    assert_int_equal(known(driver), 2);
    hook.refusing = 2; /* it is not found a second time */
    assert_true(call_of(late)->connects);
    passed_ns += 11000000000;
    while (call_of(late)->connects) assert_int_equal(once_runner_wait(f->runner, 1, &none, 1), 0);
    assert_int_equal(known(driver), 2);
    once_runner_kill(f->runner, &late, 1);
    once_runner_kill(f->runner, &other, 1);
    close_two(&t);
}

/* Also when nobody has looked at the call before its time was over. */
static void an_address_at_which_a_call_ends_is_forgotten(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "timeout: 2s");
    answer_one(f, t.listener[0]);
    silence_first(&t);
    once_item *item = start(f, 0, "{\"id\":1}");
    const http_driver *driver = call_of(item)->driver;
    assert_true(call_of(item)->connects);
    passed_ns += 3000000000;
    says(ended(f), ONCE_RETRY, "no connection within 2s");
    assert_int_equal(known(driver), 0);
    close_two(&t);
}

/* What libcurl knows of the name and what we know of the address may add up to a minute. */
static void an_address_is_known_for_a_while(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "");
    answer_one(f, t.listener[0]);
    assert_int_equal(hook.asked, 1);
    addresses[0] = addresses[1];
    addresses[1] = NULL;
    for (asleep_ms = 0; asleep_ms < 30000; asleep_ms += 29000) {
        once_item *item = start(f, 0, "{\"id\":1}");
        assert_true(call_of(item)->connects);
        once_runner_kill(f->runner, &item, 1);
        says(ended(f), ONCE_RELEASE, "");
    }
    asleep_ms = 31000;
    answer_one(f, t.listener[1]);
    assert_int_equal(hook.asked, 2);
    close_two(&t);
}

/* The name has another address by now. */
static void a_name_is_looked_up_again_when_no_address_works(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "");
    addresses[1] = NULL;
    answer_one(f, t.listener[0]);
    once_item *item = start(f, 0, "{\"id\":1}");
    http_driver *driver = call_of(item)->driver;
    once_runner_kill(f->runner, &item, 1);
    says(ended(f), ONCE_RELEASE, "");
    close(t.listener[0]);
    t.listener[0] = -1;
    addresses[0] = "127.0.0.2";
    says(run(f, "{\"id\":1}"), ONCE_RETRY, "nothing was sent"); /* as libcurl knows it */
    assert_int_equal(hook.asked, 1);
    asleep_ms = 2000;
    for (int i = 0; i < 2; i++) answer_one(f, t.listener[1]);
    assert_int_equal(hook.asked, 2);
    asleep_ms = 12000; /* it works, and the name is believed again */
    driver->peers[HTTP_EFFECT].len = 0;
    answer_one(f, t.listener[1]);
    assert_int_equal(hook.asked, 2);
    close_two(&t);
}

/* What is left of a call that is ended while it connects is not a connection, though its last answer was whole. */
static void a_connection_that_was_not_made_is_not_kept(void **state)
{
    fixture *f = *state;
    hand *h = open_hand(f, "");
    run_group(f, h, 1, ONCE_DONE, "");
    end_idle(h);
    once_item *item = start(f, 0, "{\"id\":1}");
    const http_call *call = call_of(item);
    assert_true(call->connects);
    once_runner_kill(f->runner, &item, 1);
    assert_int_equal(call->fd, -1);
    says(ended(f), ONCE_RELEASE, "ended before it was sent");
    run_group(f, h, 1, ONCE_DONE, "");
    close_hand(h);
}

/* Also one that we have made ourselves: otherwise it takes in one call after the other. */
static void a_connection_whose_other_end_is_gone_ends(void **state)
{
    fixture *f = *state;
    hand *h = open_hand(f, "timeout: 7s");
    unsigned silent_ms = 0;
    socklen_t len = sizeof silent_ms;
    run_group(f, h, 1, ONCE_DONE, "");
    end_idle(h);
    once_item *item = start(f, 0, "{\"id\":1}");
    assert_true(call_of(item)->connects);
    assert_int_equal(getsockopt(call_of(item)->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, &len), 0);
    assert_int_equal(silent_ms, 7000);
    close_hand(h);
}

/* A server that takes connections and closes them at once has not said a word. */
static void a_connection_that_is_closed_at_once_has_that_reason(void **state)
{
    fixture *f = *state;
    two t;
    open_two(f, &t, "");
    answer_one(f, t.listener[0]);
    once_item *item = start(f, 0, "{\"id\":1}"); /* it connects, and the loop has not seen that */
    assert_true(call_of(item)->connects);
    struct pollfd polled = {.fd = t.listener[0], .events = POLLIN};
    assert_int_equal(poll(&polled, 1, PATIENCE_MS), 1);
    close(accept4(t.listener[0], NULL, NULL, 0));
    says(ended(f), ONCE_RETRY, "nothing was sent: the server closed the connection before it was asked");
    close_two(&t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down_hooks)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_to_wake_is_heard_when_requests_are_sent),
        TEST(f69_a_look_that_a_signal_ends_has_seen_nothing),
        TEST(a_call_that_is_queued_can_be_ended),
        TEST(what_a_look_has_seen_does_not_wait),
        TEST(f69_a_connection_may_end_while_others_are_sent_on),
        TEST(f81_what_comes_while_others_are_sent_is_no_answer),
        TEST(f69_a_connection_may_end_behind_a_look),
        TEST(f81_every_group_is_looked_at),
        TEST(f69_a_look_that_has_not_seen_all_is_not_believed),
        TEST(f81_many_connections_may_speak_at_once),
        TEST(an_address_that_is_known_may_be_gone),
        TEST(a_silent_address_does_not_hold_up_its_handler),
        TEST(connecting_takes_no_longer_than_its_limit),
        TEST(a_limit_of_connecting_is_that_of_its_call),
        TEST(an_address_that_refuses_is_left),
        TEST(a_late_failure_forgets_no_newer_address),
        TEST(an_address_at_which_a_call_ends_is_forgotten),
        TEST(an_address_is_known_for_a_while),
        TEST(a_name_is_looked_up_again_when_no_address_works),
        TEST(a_connection_that_was_not_made_is_not_kept),
        TEST(a_connection_whose_other_end_is_gone_ends),
        TEST(a_connection_that_is_closed_at_once_has_that_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) { return 0; }
#endif
