/* Between the files of a connection: pipe.c (commands), socket.c (bytes), connect.c (a usable connection), exchange.c
 * (commands and their replies), reply_errors.c (replies that are errors) and link.c (the handle). The rest of the store
 * includes link.h. */
#ifndef ONCE_STORE_REDIS_LINK_PARTS_H
#define ONCE_STORE_REDIS_LINK_PARTS_H

#include "store/redis/link.h"

struct redisReader;

enum { ONCE_REDIS_READ_STEP = 64 * 1024, ONCE_REDIS_LINK_NODES = 32 };

struct once_redis_link {
    once_redis_url url;
    const once_env *env;
    once_redis_waiting waiting;
    int fd; /* -1: not connected */
    once_redis_tls *tls;
    bool clustered;
    bool saw_move; /* keys of the store were moving to another node */
    bool
        silent; /* the last failure was that the server did not answer in time: an immediate retry would wait as long */
    struct redisReader *reader;
    unsigned connections;
    once_redis_node at;                           /* the node that has the store's slot; at first one of the URL */
    once_redis_node nodes[ONCE_REDIS_LINK_NODES]; /* those of the URL, then those that the cluster named. Any of them
                                                   * can say which node has the slot */
    size_t n_nodes, next_node;
    char chunk[ONCE_REDIS_READ_STEP]; /* the bytes that were received last */
};

/* ---- pipe.c ---- */

void once__redis_pipe_free_replies(once_redis_pipe *pipe);
/* An argument of a command in the pipe; 0 is the command's name. Empty: there is none. */
once_bytes once__redis_pipe_argument(const once_redis_pipe *pipe, size_t command, size_t number);
bool once__redis_pipe_is(once_bytes name, const char *text); /* the name of a command is that text */

/* ---- socket.c ---- */

int once__redis_dial(once_redis_link *link, once_error *err); /* connects the socket, without TLS or authentication */
void once__redis_hang_up(once_redis_link *link);              /* closes the socket; the link stays usable */
/* Closes the socket and returns ONCE_E_UNAVAILABLE with the text "WHAT redis at 'HOST:PORT' failed: WHY". */
int once__redis_link_lost(once_redis_link *link, once_error *err, const char *what, const char *why);
int once__redis_link_lost_by(once_redis_link *link, once_error *err, const char *what, int why); /* an errno */
int once__redis_send(once_redis_link *link, once_bytes bytes, once_error *err);
int once__redis_receive(once_redis_link *link, redisReply **out, once_error *err); /* one reply, to be freed */

/* ---- connect.c ---- */

/* Connects unless there is a connection: a few tries with growing, jittered pauses, then the other nodes. */
int once__redis_connect(once_redis_link *link, once_error *err);
void once__redis_next_node(once_redis_link *link); /* the next connection goes to another node, if there is one */

/* ---- exchange.c ---- */

/* Sends the pipe to the connected node and reads all replies, errors included. */
int once__redis_talk(once_redis_link *link, once_redis_pipe *pipe, once_error *err);

/* ---- reply_errors.c ---- */

bool once__redis_reply_says(const redisReply *reply, const char *word); /* it is an error that begins with the word */
/* The error says that the slot is moving to another node. Nothing of the command has happened. */
bool once__redis_says_moving(const redisReply *error);
const redisReply *once__redis_first_error(const once_redis_pipe *pipe, size_t n); /* of the first n; NULL: none */
/* The status of an error reply, and a text that says what to do; `refused` (may be NULL) gets its first word. */
int once__redis_refused(once_redis_link *link, const once_redis_pipe *pipe, const redisReply *error, char refused[24],
                        once_error *err);
/* Compares each reply with the kind that its command asked for; a reply of another kind ends the connection. */
int once__redis_check_replies(once_redis_link *link, const once_redis_pipe *pipe, once_error *err);
int once__redis_wrong_reply(once_redis_link *link, once_bytes command, const redisReply *reply, once_error *err);

#endif
