/* A connection to a Redis server. Commands are collected in a pipe; an exchange sends them together and reads all
 * replies, in one round trip.
 *
 *   once__redis_words(&pipe, ONCE_REPLY_DONE, "PING");
 *   rc = once__redis_exchange(link, &pipe, NULL, err);     replies are in pipe.replies, one for each command
 *   once__redis_pipe_clear(&pipe);
 *
 * The socket is ours; hiredis parses replies. A lost connection is made again by the next exchange. Whether the
 * commands that were under way have run is then unknown: their exchange returns ONCE_E_UNAVAILABLE.
 *
 * Clusters: all keys of a store are in one slot, so a store talks to one node. MOVED is followed and remembered; ASK is
 * followed for the commands that got it.
 *
 * Thread rule: one thread at a time. */
#ifndef ONCE_STORE_REDIS_LINK_H
#define ONCE_STORE_REDIS_LINK_H

#include "base/buf.h"
#include "base/env.h"
#include "store/redis/reply.h"
#include "store/redis/tls.h"

/* A command in a pipe: where its bytes begin, and what its reply must be. */
typedef struct once_redis_asked {
    size_t start;
    size_t n; /* how many values, for ONCE_REPLY_VALUES */
    once_reply_kind kind;
} once_redis_asked;

/* Commands that an exchange sends together, and then their replies. */
typedef struct once_redis_pipe {
    once_buf bytes;
    once_redis_asked *asked;
    size_t n, capacity;
    redisReply **replies; /* after a successful exchange: n replies, each of the kind that its command asked for */
    bool failed;          /* memory ran out: the exchange fails */
    bool stays;           /* never sent twice, nor to another node: MOVED or TRYAGAIN fails the exchange. Only the next
                           * pipe goes to the node that was named */
    bool guesses;         /* the pipe assumes what was not read: ASK fails the exchange as well */
} once_redis_pipe;

void once__redis_pipe_init(once_redis_pipe *pipe);
void once__redis_pipe_clear(once_redis_pipe *pipe);
void once__redis_pipe_release(once_redis_pipe *pipe);

/* Begins a command: `reply` is what the server must answer, `args` counts the arguments that follow, its name
 * included. */
void once__redis_command(once_redis_pipe *pipe, once_reply_kind reply, size_t args);
void once__redis_command_for(once_redis_pipe *pipe, size_t values, size_t args); /* answered with `values` values */
void once__redis_arg(once_redis_pipe *pipe, const void *data, size_t len);
void once__redis_text(once_redis_pipe *pipe, const char *text);
void once__redis_number(once_redis_pipe *pipe, int64_t number);
void once__redis_words(once_redis_pipe *pipe, once_reply_kind reply,
                       const char *words); /* a whole command, its arguments separated by one space */
/* Encodes an argument for the wire, and appends arguments that were encoded before. */
void once__redis_encode(once_buf *to, const void *data, size_t len);
void once__redis_raw(once_redis_pipe *pipe, const once_buf *encoded);

typedef struct once_redis_link once_redis_link;

int once__redis_link_open(const once_redis_url *url, const once_env *env, once_redis_waiting waiting,
                          once_redis_link **out, once_error *err);
void once__redis_link_close(once_redis_link *link); /* NULL is fine */

/* Sends the commands of the pipe and reads all replies. An error reply fails the exchange with the status that it
 * means; `refused` (may be NULL) then holds its first word, such as "NOSCRIPT". A reply of another kind than the
 * command asked for fails it as ONCE_E_CORRUPT, and ends the connection: the replies behind it cannot be trusted
 * either. */
int once__redis_exchange(once_redis_link *link, once_redis_pipe *pipe, char refused[24], once_error *err);

/* A key in the form that redis-cli prints and reads between quotes; a long key is cut. */
enum { ONCE_REDIS_QUOTED = 300 };
const char *once__redis_quote(once_bytes key, char out[ONCE_REDIS_QUOTED]);

bool once__redis_clustered(const once_redis_link *link);
const char *once__redis_host(const once_redis_link *link);
unsigned once__redis_port(const once_redis_link *link);
/* How often the link was connected. Whatever was read from an earlier connection may be outdated: it may have been
 * another server. `same`: the connection with this number is still open. */
unsigned once__redis_connections(const once_redis_link *link);
bool once__redis_same(const once_redis_link *link, unsigned connections);
/* `saw_move`: an exchange found that keys of the store were moving to another node. It stays set until move_is_over.
 * wait_while_it_moves pauses; false: the pauses together have lasted as long as the timeout. *waited_ms begins at 0. */
bool once__redis_wait_while_it_moves(once_redis_link *link, int64_t *waited_ms);
bool once__redis_saw_move(const once_redis_link *link);
void once__redis_move_is_over(once_redis_link *link);

/* The last failure was that the server did not answer in time. */
bool once__redis_silent(const once_redis_link *link);

#endif
