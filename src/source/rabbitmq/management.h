/* What the HTTP API of the management plugin tells about the queue. */
#ifndef ONCE_SOURCE_RABBITMQ_MANAGEMENT_H
#define ONCE_SOURCE_RABBITMQ_MANAGEMENT_H

#include "source/rabbitmq/rabbitmq.h"

/* Numbers: -1: not set, or not told. Limits of the queue's arguments and of its policies together. */
typedef struct rabbitmq_queue {
    char type[16]; /* "classic", "quorum", "stream" */
    bool durable, auto_delete, single_active;
    bool dead_letters; /* it has a dead-letter exchange */
    bool drops;        /* a queue that is full drops its oldest messages */
    int64_t ready, unacked, consumers;
    int64_t ttl_ms, expires_ms, max_messages, max_bytes, delivery_limit, consumer_timeout_ms;
} rabbitmq_queue;

/* ONCE_E_DENIED: the user may not. ONCE_E_MISSING: there is no such queue. ONCE_E_UNAVAILABLE: no answer within `ms`.
 */
int once__rabbitmq_queue(const rabbitmq_source *r, int64_t ms, rabbitmq_queue *out, once_error *err);

#endif
