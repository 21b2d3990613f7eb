/* What a server answers. A command says what its reply must be, and the link looks at every reply before anybody reads
 * it: a reply of another type, an error inside of it, a string where a number should be is an error that names the
 * command. It is never taken for "not there" or 0, because what is not there is new, and runs.
 *
 * Nobody else looks into a reply of hiredis: the accessors here are for replies that are as they were asked for. */
#ifndef ONCE_STORE_REDIS_REPLY_H
#define ONCE_STORE_REDIS_REPLY_H

#include "once/types.h"

typedef struct redisReply redisReply;

typedef enum once_reply_kind {
    ONCE_REPLY_DONE,        /* a status, "OK" */
    ONCE_REPLY_DONE_OR_NOT, /* or nil */
    ONCE_REPLY_COUNT,       /* an integer, 0 or more */
    ONCE_REPLY_LEFT,        /* of PTTL: an integer, -2 or more */
    ONCE_REPLY_TEXT,        /* a string */
    ONCE_REPLY_VALUE,       /* one that is not empty, or nil: not there. No value of ours is empty */
    ONCE_REPLY_VALUES,      /* so many of these */
    ONCE_REPLY_STRINGS,     /* so many strings, or nil; for who looks for damage, empty ones, too */
    ONCE_REPLY_TEXTS,       /* strings */
    ONCE_REPLY_PAIRS,       /* an even number of them */
    ONCE_REPLY_TIME,        /* two whole numbers, as strings */
    ONCE_REPLY_PAGE,        /* of SCAN: a whole number, as a string, and strings */
    ONCE_REPLY_SLOTS,       /* of CLUSTER SLOTS: ranges, each with its nodes */
    ONCE_REPLY_COMMIT,      /* of the commit's script: an integer, 1 or more, or one string in an array */
    ONCE_REPLY_ANY
} once_reply_kind;

enum { ONCE_REPLY_WORDS = 80 };
bool once__reply_is(const redisReply *reply, once_reply_kind kind, size_t n); /* n: of VALUES and STRINGS */
bool once__reply_has_empty(const redisReply *reply, once_reply_kind kind,
                           size_t *which); /* VALUE or VALUES: damage of a key, of the server's answer not */
/* What it is, for people: "an integer", "an array of 3". */
const char *once__reply_words(const redisReply *reply, char out[ONCE_REPLY_WORDS]);
const char *once__reply_error(const redisReply *reply); /* what the server refuses with; NULL: it does not */

uint64_t once__reply_count(const redisReply *reply);   /* of COUNT, and of COMMIT */
int64_t once__reply_left(const redisReply *reply);     /* of LEFT: milliseconds; -1: for ever, -2: not there */
once_bytes once__reply_bytes(const redisReply *reply); /* of DONE, TEXT and VALUE; empty: not there */
size_t once__reply_n(const redisReply *reply); /* of VALUES, STRINGS, TEXTS, PAIRS; of COMMIT: 0, or 1 that is a key */
once_bytes once__reply_at(const redisReply *reply, size_t i);
int64_t once__reply_time_ms(const redisReply *reply);
void once__reply_cursor(const redisReply *page, char out[24]);
const redisReply *once__reply_keys(const redisReply *page); /* TEXTS */

/* Of SLOTS: each node that is told, with the host empty where the server does not know it. */
typedef void once_reply_node_visit(void *user, once_bytes host, int64_t port);
size_t once__reply_nodes(const redisReply *slots, once_reply_node_visit *visit,
                         void *user); /* how many ranges there are */

/* A whole number of digits alone, and a score of a sorted set, which may be "inf"; false: it is neither. */
bool once__reply_read_number(once_bytes text, uint64_t *out);
bool once__reply_read_score(once_bytes text, double *out);

#endif
