/* A connection to a Redis server: commands go out together, replies come back together, one round trip.
 *
 * The socket is ours, hiredis reads the replies. A connection that was lost is made anew by the next exchange; what was
 * on its way then has an unknown fate, which the caller is told as ONCE_E_UNAVAILABLE. MOVED is followed and remembered
 * (all keys of a store live in one slot, so a store has one node), ASK is followed once.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_STORE_REDIS_LINK_H
#define ONCE_STORE_REDIS_LINK_H

#include "base/buf.h"
#include "base/env.h"
#include "store/redis/reply.h"
#include "store/redis/tls.h"

/* A command: where it begins, and what its reply must be. */
typedef struct once_redis_asked {
    size_t start;
    size_t n; /* of values */
    once_reply_kind kind;
} once_redis_asked;

/* Commands that will go out together. */
typedef struct once_redis_pipe {
    once_buf bytes;
    once_redis_asked *asked;
    size_t n, capacity;
    redisReply **replies; /* after an exchange: n of them, each as its command said */
    bool failed;
    bool stays; /* it is not sent to another node that the first one names, nor again: MOVED or TRYAGAIN is the answer,
                   and the next pipe goes there */
    bool guesses; /* it assumes what was not read: keys that are on their way are the answer, too (ASK, TRYAGAIN) */
} once_redis_pipe;

void once__redis_pipe_init(once_redis_pipe *pipe);
void once__redis_pipe_clear(once_redis_pipe *pipe);
void once__redis_pipe_release(once_redis_pipe *pipe);

/* What it must be answered with; so many arguments follow, the command's name included. */
void once__redis_command(once_redis_pipe *pipe, once_reply_kind reply, size_t args);
void once__redis_command_for(once_redis_pipe *pipe, size_t values, size_t args); /* ONCE_REPLY_VALUES of so many */
void once__redis_arg(once_redis_pipe *pipe, const void *data, size_t len);
void once__redis_text(once_redis_pipe *pipe, const char *text);
void once__redis_number(once_redis_pipe *pipe, int64_t number);
void once__redis_words(once_redis_pipe *pipe, once_reply_kind reply,
                       const char *words); /* a whole command without odd characters */
/* One argument, or several that were encoded before, in the form they have on the wire. */
void once__redis_encode(once_buf *to, const void *data, size_t len);
void once__redis_raw(once_redis_pipe *pipe, const once_buf *encoded);

typedef struct once_redis_link once_redis_link;

int once__redis_link_open(const once_redis_url *url, const once_env *env, once_redis_waiting waiting,
                          once_redis_link **out, once_error *err);
void once__redis_link_close(once_redis_link *link); /* NULL is fine */

/* Sends the pipe's commands and waits for all replies. An error reply makes the exchange fail with its meaning;
 * `refused` (may be NULL) then holds the server's first word, "NOSCRIPT". So does a reply that is not what the command
 * said: nobody can tell what else is wrong on that connection, so it ends. */
int once__redis_exchange(once_redis_link *link, once_redis_pipe *pipe, char refused[24], once_error *err);

/* A key as redis-cli writes and reads it between quotes; a long one in part. */
enum { ONCE_REDIS_QUOTED = 300 };
const char *once__redis_quote(once_bytes key, char out[ONCE_REDIS_QUOTED]);

/* It is a node of a cluster. */
bool once__redis_clustered(const once_redis_link *link);
const char *once__redis_host(const once_redis_link *link);
unsigned once__redis_port(const once_redis_link *link);
/* The very connection of that number is open. */
bool once__redis_same(const once_redis_link *link, unsigned connections);
/* Keys were found to be moving, until somebody finds that they are not. */
/* A pause, while our slot moves; false: that was as long as we would wait for an answer. *waited_ms begins with 0. */
bool once__redis_wait_while_it_moves(once_redis_link *link, int64_t *waited_ms);
bool once__redis_saw_move(const once_redis_link *link);
void once__redis_move_is_over(once_redis_link *link);

/* How often it was connected: what was known about the server before another connection may be old. */
unsigned once__redis_connections(const once_redis_link *link);
/* The last failure was that nobody answered in time. */
bool once__redis_silent(const once_redis_link *link);

#endif
