/* An HTTP server that does what a test tells it: it reads whole requests, keeps them, and answers each with the bytes
 * that the test gave. It never repeats and never guesses, so that what a client sends can be counted. */
#ifndef ONCE_TESTS_TESTHTTP_H
#define ONCE_TESTS_TESTHTTP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define TEST_HTTP_REQUESTS 600

/* What happens to a connection after an answer. */
typedef enum test_http_then { TEST_HTTP_KEEP, TEST_HTTP_CLOSE, TEST_HTTP_RESET } test_http_then;

typedef struct test_http_answer {
    const char *bytes; /* as they are; NULL: none */
    size_t len;        /* 0: up to the NUL */
    test_http_then then;
} test_http_answer;

typedef struct test_http {
    int port;
    int listener, wake[2];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    test_http_answer answers[TEST_HTTP_REQUESTS]; /* of the requests, in the order in which they come; then `usual` */
    size_t n_answers;
    test_http_answer usual;
    const char *greeting;               /* what each connection gets at once, before anything was read; NULL: nothing */
    bool is_early;                      /* `early` is the answer to a head whose body is not whole ... */
    test_http_answer early;             /* ... which is never read then */
    size_t n_early;                     /* requests that were answered so */
    const char *unasked;                /* what is about to be sent on every connection */
    char *requests[TEST_HTTP_REQUESTS]; /* whole, in the order in which they came */
    size_t n_requests, n_connections;
} test_http;

void test_http_start(test_http *server);
void test_http_stop(test_http *server);

/* The next answer that has none yet. `bytes` must live as long as the server. */
void test_http_will(test_http *server, const char *bytes, test_http_then then);
/* What each connection gets from now on, before anything was read. */
void test_http_greet(test_http *server, const char *bytes);
/* Answers so as soon as there is the head of a request, and reads no more of its connection. */
void test_http_answer_early(test_http *server, const char *bytes);
/* The same without an answer: it keeps the connection, closes it or resets it while the request is being sent. */
void test_http_cut(test_http *server, test_http_then then);
/* From now on requests are read whole again. Returns how many were not, since the start. */
size_t test_http_read_whole(test_http *server);
/* Sends this on every connection, now; it is sent when the call returns. */
void test_http_say(test_http *server, const char *bytes);
/* Waits until there are so many. */
void test_http_wait(test_http *server, size_t requests);
size_t test_http_count(test_http *server);
size_t test_http_connections(test_http *server);
/* The i-th; it lives as long as the server. */
const char *test_http_request(test_http *server, size_t i);

#endif
