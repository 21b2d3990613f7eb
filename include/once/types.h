/* The words that every part shares: bytes, scope, outcome, decision. Plain data, no functions that allocate. */
#ifndef ONCE_TYPES_H
#define ONCE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "once/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of bytes that somebody else owns. Binary safe, not terminated; data may be NULL when len is 0. */
typedef struct once_bytes {
    const char *data;
    size_t len;
} once_bytes;

static inline bool once_bytes_equal(once_bytes x, once_bytes y)
{
    return x.len == y.len && (x.len == 0 || x.data == y.data || memcmp(x.data, y.data, x.len) == 0);
}

#define ONCE_BYTES(literal) ((once_bytes){(literal), sizeof(literal) - 1})

/* A character of a text that may come from anybody. Not fit to be shown is what moves a terminal or turns the direction
 * of a line, and what is no UTF-8: of that the code is U+FFFD. */
typedef struct once_character {
    size_t len; /* in bytes */
    uint32_t code;
    bool fit;
} once_character;

ONCE_API once_character once_character_first(once_bytes text); /* of an empty text nothing: len is 0 */

/* Whose key it is. Two scopes never see each other's keys. */
typedef struct once_scope {
    once_bytes tenant; /* may be empty */
    once_bytes consumer;
    once_bytes operation;
} once_scope;

/* How an attempt ended. The first four are final and suppress duplicates until they expire; so does dead, which never
 * expires. */
#define ONCE_OUTCOME_MAP(X)                                                                                            \
    X(DONE, "done")         /* the effect happened */                                                                  \
    X(ALREADY, "already")   /* the business itself said that it had happened */                                        \
    X(REJECTED, "rejected") /* the business said no */                                                                 \
    X(STALE, "stale")       /* superseded by a newer version, or an update that met nothing */                         \
    X(RETRY, "retry")       /* a passing failure: failures + 1, wait, again */                                         \
    X(RELEASE, "release")   /* put back without blame */                                                               \
    X(UNKNOWN, "unknown")   /* the effect may have happened */                                                         \
    X(DEAD, "dead")         /* will never work, or the budget is spent */

typedef enum once_outcome {
#define ONCE_OUTCOME_ENUM(name, text) ONCE_##name,
    ONCE_OUTCOME_MAP(ONCE_OUTCOME_ENUM)
#undef ONCE_OUTCOME_ENUM
        ONCE_OUTCOMES
} once_outcome;

ONCE_API const char *once_outcome_name(once_outcome outcome);

/* What a delivery gets. RUN: the effect is the caller's to run now; everything else: it is not. */
#define ONCE_ANSWER_MAP(X)                                                                                             \
    X(RUN, "run")             /* claimed for the caller */                                                             \
    X(WAITING, "waiting")     /* accept only: the store owns it now */                                                 \
    X(DUPLICATE, "duplicate") /* finished before; the stored result comes with it */                                   \
    X(DEAD, "dead")           /* a dead letter */                                                                      \
    X(BUSY, "busy")           /* claimed by somebody else */                                                           \
    X(LATER, "later")         /* waiting for its time, or parked behind another of its lane */                         \
    X(GAP, "gap")             /* an earlier version is missing */                                                      \
    X(UNKNOWN, "unknown")     /* an attempt may have had its effect */                                                 \
    X(CONFLICT, "conflict")   /* same key, other fingerprint */                                                        \
    X(TOO_OLD, "too_old")     /* older than what is remembered */                                                      \
    X(STALE, "stale")         /* an older version than the lane's */                                                   \
    X(CUT, "cut")             /* of dead letters only: longer than message_max, and only its beginning is kept */

typedef enum once_answer {
#define ONCE_ANSWER_ENUM(name, text) ONCE_ANSWER_##name,
    ONCE_ANSWER_MAP(ONCE_ANSWER_ENUM)
#undef ONCE_ANSWER_ENUM
        ONCE_ANSWERS
} once_answer;

ONCE_API const char *once_answer_name(once_answer answer); /* "duplicate" */

/* An attempt that ended, or what happened after it. */
typedef struct once_attempt {
    uint32_t attempt; /* which one, from 1 */
    int64_t ended_ms; /* UTC; silent: when that was noticed, or when its lease was over */
    const char
        *outcome;   /* a name of once_outcome; "silent": it ended without an outcome; "replaced": after it, and before
                          * it had any effect, other content under the same key took its place */
    once_bytes who; /* "user@host:pid", or empty */
    once_bytes reason; /* may be cut, or empty */
} once_attempt;

#define ONCE_FOREVER INT64_MAX /* a `remember` without end */
#define ONCE_NO_TIME INT64_MIN /* a time that is not known */

#ifdef __cplusplus
}
#endif
#endif
