/* Replies of a Redis server. A command says what kind its reply must be, and the link checks every reply before it is
 * read (link.h). A reply of another type, an error inside it, or a text where a number should be is an error that names
 * the command. It is never read as "not there" or 0: a key that is not there is new, and its message would run.
 *
 * No other file looks into a reply of hiredis. The accessors here are for replies that the link has checked. */
#ifndef ONCE_STORE_REDIS_REPLY_H
#define ONCE_STORE_REDIS_REPLY_H

#include "once/types.h"

typedef struct redisReply redisReply;

typedef enum once_reply_kind {
    ONCE_REPLY_DONE,        /* a status, "OK" */
    ONCE_REPLY_DONE_OR_NOT, /* a status, or nil */
    ONCE_REPLY_COUNT,       /* an integer, 0 or more */
    ONCE_REPLY_LEFT,        /* of PTTL: an integer, -2 or more */
    ONCE_REPLY_TEXT,        /* a string */
    ONCE_REPLY_VALUE,       /* a string that is not empty, or nil: not there. No value of ours is empty */
    ONCE_REPLY_VALUES,      /* an array of n values */
    ONCE_REPLY_STRINGS,     /* an array of n strings or nils; for checks, which must see empty strings, too */
    ONCE_REPLY_TEXTS,       /* an array of strings */
    ONCE_REPLY_PAIRS,       /* an array of an even number of strings */
    ONCE_REPLY_TIME,        /* two whole numbers, as strings */
    ONCE_REPLY_PAGE,        /* of SCAN: a whole number, as a string, and strings */
    ONCE_REPLY_SLOTS,       /* of CLUSTER SLOTS: ranges, each with its nodes */
    ONCE_REPLY_COMMIT,      /* of the commit script: an integer, 1 or more, or an array of one string */
    ONCE_REPLY_ANY
} once_reply_kind;

enum { ONCE_REPLY_WORDS = 80 };
bool once__reply_is(const redisReply *reply, once_reply_kind kind, size_t n); /* n: for VALUES and STRINGS */
bool once__reply_has_empty(const redisReply *reply, once_reply_kind kind,
                           size_t *which); /* VALUE, VALUES: the key holds an empty string, which is damage */
/* Describes a reply for error texts: "an integer", "an array of 3". */
const char *once__reply_words(const redisReply *reply, char out[ONCE_REPLY_WORDS]);
const char *once__reply_error(const redisReply *reply); /* the text of an error; NULL: it is none */

uint64_t once__reply_count(const redisReply *reply);   /* of COUNT, and of COMMIT */
int64_t once__reply_left(const redisReply *reply);     /* of LEFT: milliseconds; -1: no expiry, -2: no such key */
once_bytes once__reply_bytes(const redisReply *reply); /* of DONE, TEXT and VALUE; empty: not there */
size_t once__reply_n(const redisReply *reply);         /* elements of an array; of COMMIT: 0, or 1, which is a key */
once_bytes once__reply_at(const redisReply *reply, size_t i);
int64_t once__reply_time_ms(const redisReply *reply);
void once__reply_cursor(const redisReply *page, char out[24]);
const redisReply *once__reply_keys(const redisReply *page); /* TEXTS */

/* Of SLOTS: visits each node; the host is empty where the server does not name it. */
typedef void once_reply_node_visit(void *user, once_bytes host, int64_t port);
size_t once__reply_nodes(const redisReply *slots, once_reply_node_visit *visit,
                         void *user); /* returns the number of slot ranges */

/* Read a whole number (digits only) and a score of a sorted set (may be "inf"). False: the text is something else. */
bool once__reply_read_number(once_bytes text, uint64_t *out);
bool once__reply_read_score(once_bytes text, double *out);

#endif
