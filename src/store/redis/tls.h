/* TLS over a non-blocking socket, for rediss://. The server's certificate must name the host, and be signed by an
 * authority of the system or of `cacert`. */
#ifndef ONCE_STORE_REDIS_TLS_H
#define ONCE_STORE_REDIS_TLS_H

#include <sys/types.h>

#include "base/cancel.h"
#include "store/redis/url.h"

/* How long to wait for a server: until no byte has moved for the timeout, or the caller cancels. */
typedef struct once_redis_waiting {
    int timeout_ms;
    once_cancel cancel;
} once_redis_waiting;

/* Waits until the socket is ready: 0, or an errno such as ETIMEDOUT or ECANCELED. */
int once__redis_wait_for(const once_redis_waiting *waiting, int fd, short events); /* socket.c */

typedef struct once_redis_tls once_redis_tls;

/* `fd` is connected, and stays the caller's. `host` is the name that the certificate must have. NULL: `err` says what
 * failed: ONCE_E_DENIED where an operator must act (certificates), else ONCE_E_UNAVAILABLE. */
once_redis_tls *once__redis_tls_start(int fd, const once_redis_url *url, const char *host,
                                      const once_redis_waiting *waiting, once_error *err);
void once__redis_tls_free(once_redis_tls *tls); /* NULL is fine */

/* As send and recv: bytes, 0 at the end, or -1 with errno; they wait for as long as the timeout. */
ssize_t once__redis_tls_send(once_redis_tls *tls, const void *data, size_t len);
ssize_t once__redis_tls_receive(once_redis_tls *tls, void *out, size_t len);

#endif
