/* Stands between a client and a server, on a unix socket of its own, and may change every reply. */
#ifndef ONCE_TESTS_REPLYPROXY_H
#define ONCE_TESTS_REPLYPROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "redisserver.h"

/* A reply as it is on the wire. */
typedef struct proxy_reply {
    const char *data;
    size_t len;
} proxy_reply;

/* How long the first reply is; 0: it is not whole. */
typedef size_t proxy_reply_len(const char *data, size_t len);

/* Called on the proxy's thread with each whole reply of the server; what `reply` is afterwards goes to the client.
 * False: and then the connection ends. */
typedef bool proxy_hook(void *user, proxy_reply *reply);

typedef struct reply_proxy {
    char url[160], path[108], server[108]; /* url: of Redis only */
    proxy_reply_len *reply_len;
    proxy_hook *hook;
    void *user;
    atomic_int idle_ms; /* when nobody says anything for so long, all connections end; -1: never. May be changed */
    int listener, wake[2];
    pthread_t thread;
} reply_proxy;

/* With path, server, reply_len, hook, user and idle_ms as they should be. */
void reply_proxy_start(reply_proxy *proxy);
void reply_proxy_stop(reply_proxy *proxy);

void redis_proxy_start(reply_proxy *proxy, const redis_server *server, proxy_hook *hook, void *user);
size_t redis_reply_len(const char *data, size_t len);
size_t postgres_reply_len(const char *data, size_t len);

#endif
