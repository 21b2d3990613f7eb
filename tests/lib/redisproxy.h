/* Stands between a store and a redis-server, on a unix socket of its own, and may change every reply. */
#ifndef ONCE_TESTS_REDISPROXY_H
#define ONCE_TESTS_REDISPROXY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "redisserver.h"

/* A reply as it is on the wire. */
typedef struct redis_reply {
    const char *data;
    size_t len;
} redis_reply;

/* Called on the proxy's thread with each whole reply of the server; what `reply` is afterwards goes to the client. False: and then the
 * connection ends. */
typedef bool redis_proxy_hook(void *user, redis_reply *reply);

typedef struct redis_proxy {
    char url[160], path[100], server[100];
    redis_proxy_hook *hook;
    void *user;
    int listener, wake[2];
    pthread_t thread;
} redis_proxy;

void redis_proxy_start(redis_proxy *proxy, const redis_server *server, redis_proxy_hook *hook, void *user);
void redis_proxy_stop(redis_proxy *proxy);

/* How long the first reply is; 0: it is not whole. */
size_t redis_reply_len(const char *data, size_t len);

#endif
