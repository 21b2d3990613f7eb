/* The RabbitMQ source's part of the pipeline file. Always linked in; the source itself (source/rabbitmq/) is a module.
 */
#ifndef ONCE_SOURCE_RABBITMQ_SPEC_H
#define ONCE_SOURCE_RABBITMQ_SPEC_H

#include "base/arena.h"
#include "core/spec.h"

typedef struct once_rabbitmq_tls {
    once_bytes ca; /* a file; empty: those of the system */
    once_bytes certificate, key;
} once_rabbitmq_tls;

/* How the user is proven; positions in the words of `login`. */
enum { ONCE_RABBITMQ_BY_PASSWORD, ONCE_RABBITMQ_BY_CERTIFICATE };

typedef struct once_rabbitmq_spec {
    once_written url;      /* amqp:// or amqps://, or a reference */
    once_written password; /* a reference; an empty value: none is given */
    int login;
    once_bytes queue;
    uint32_t prefetch;           /* 0: it follows from the batch and the handlers */
    int64_t heartbeat_ms;        /* AMQP counts seconds */
    int64_t consumer_timeout_ms; /* or ONCE_FOREVER */
    once_rabbitmq_tls tls;
    once_written management; /* http:// or https://, or a reference; an empty value: none is given */
} once_rabbitmq_spec;

static inline const once_rabbitmq_spec *once_rabbitmq_of(const once_source_spec *source) { return source->own; }

/* A URL, taken apart; texts are decoded, have a NUL behind them, and live in the arena. */
typedef struct once_rabbitmq_url {
    once_bytes scheme;
    once_bytes user, password; /* data NULL: it has none */
    once_bytes host;           /* without the brackets of IPv6 */
    int port;                  /* 0: it has none */
    once_bytes path;           /* behind the '/'; data NULL: it has none */
} once_rabbitmq_url;

/* False: `*why` says what is wrong with it, without a part of it; NULL: out of memory. */
bool once__rabbitmq_url(once_bytes text, once_arena *arena, once_rabbitmq_url *out, const char **why);

/* What is wrong with a URL of this scheme or the same with an 's' behind it ("amqp", "http"); NULL: nothing. */
const char *once__rabbitmq_url_fault(const once_rabbitmq_url *url, const char *scheme);

#endif
