/* A redis-server for one test program: on a unix socket in a folder of its own, every reply synced (appendonly yes,
 * appendfsync always). It ends with the program. */
#ifndef ONCE_TESTS_REDISSERVER_H
#define ONCE_TESTS_REDISSERVER_H

#include <stdbool.h>

typedef struct redis_server {
    char folder[64], url[128]; /* url: "redis://..." without a database */
    int pid;
} redis_server;

/* False: there is no redis-server on this machine, or the build has no redis store. Anything else that fails ends the
 * program. */
bool redis_server_start(redis_server *server);
void redis_server_stop(redis_server *server); /* and its folder is gone */
/* What a test program without a redis store says; its exit status. */
int redis_is_missing(void);
/* SIGKILL, and the same data served again. */
void redis_server_crash(redis_server *server);

#endif
