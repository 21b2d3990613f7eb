/* A redis-server for a measurement: on a socket in a temporary folder, every reply synced (appendonly yes, appendfsync
 * always), and stopped at the end. */
#ifndef BENCH_REDIS_SERVER_H
#define BENCH_REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>

bool redis_start(void);      /* false: none is available here */
const char *redis_url(void); /* "redis://...", without a database */

/* What fails ends the program. */
redisContext *redis_connect(void);

#endif
