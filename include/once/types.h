/* The types that every part of the library shares: bytes, scope, outcome, answer.
 *
 * Everything here is plain data. No function here allocates, fails or keeps a pointer.
 *
 * Ownership: a once_bytes does not own what it points to. A function that takes one reads it during the call and
 * copies what it keeps. A function or callback that gives one says until when it is valid. Names that functions return
 * are static.
 *
 * Thread rule: all of it may be used from any thread.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/types.h>
 *
 *     int main(void)
 *     {
 *         const once_bytes key = ONCE_BYTES("p1");
 *         const once_scope scope = {.consumer = ONCE_BYTES("payments"), .operation = ONCE_BYTES("charge")};
 *         printf("%.*s of %.*s: %s\n", (int)key.len, key.data, (int)scope.consumer.len, scope.consumer.data,
 *                once_outcome_name(ONCE_DONE));
 *         return 0;
 *     }
 */
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

/* A sequence of bytes. Any byte may occur in it, and no zero byte ends it. `data` may be NULL when `len` is 0. */
typedef struct once_bytes {
    const char *data;
    size_t len;
} once_bytes;

/* True when both have the same length and the same bytes. */
static inline bool once_bytes_equal(once_bytes x, once_bytes y)
{
    return x.len == y.len && (x.len == 0 || x.data == y.data || memcmp(x.data, y.data, x.len) == 0);
}

/* The bytes of a string literal, without the zero byte at its end. */
#define ONCE_BYTES(literal) ((once_bytes){(literal), sizeof(literal) - 1})

/* One character of a text from an untrusted source. */
typedef struct once_character {
    size_t len;    /* its bytes in the text */
    uint32_t code; /* its code point; U+FFFD where the bytes are not UTF-8 */
    bool fit;      /* it may be printed. False for control characters, characters that change the direction of a line,
                      and bytes that are not UTF-8 */
} once_character;

/* The first character of `text`. `len` is 0 for an empty text. */
ONCE_API once_character once_character_first(once_bytes text);

/* Where a key belongs. The same key in two scopes is two keys. */
typedef struct once_scope {
    once_bytes tenant;    /* may be empty */
    once_bytes consumer;  /* the service that handles the messages */
    once_bytes operation; /* what it does with them; a consumer may do several things with one key */
} once_scope;

/* How an attempt ended. done, already, rejected and stale are final: they suppress duplicates until they expire. dead
 * is final until an operator replays or discards the letter, and does not expire. */
#define ONCE_OUTCOME_MAP(X)                                                                                            \
    X(DONE, "done")         /* the effect happened */                                                                  \
    X(ALREADY, "already")   /* the effect had happened before: the handler or a constraint found it */                 \
    X(REJECTED, "rejected") /* a business rule refused it */                                                           \
    X(STALE, "stale")       /* superseded by a newer version, or an update that matched no row */                      \
    X(RETRY, "retry")       /* a passing failure: counted, and tried again after a pause */                            \
    X(RELEASE, "release")   /* nothing happened: tried again, and no failure counted */                                \
    X(UNKNOWN, "unknown")   /* the effect may have happened */                                                         \
    X(DEAD, "dead")         /* it will never work, or the retry budget is spent: a dead letter */

/* ONCE_DONE, ONCE_ALREADY... */
typedef enum once_outcome {
#define ONCE_OUTCOME_ENUM(name, text) ONCE_##name,
    ONCE_OUTCOME_MAP(ONCE_OUTCOME_ENUM)
#undef ONCE_OUTCOME_ENUM
        ONCE_OUTCOMES
} once_outcome;

/* "done"; "?" for a number that is not an outcome. */
ONCE_API const char *once_outcome_name(once_outcome outcome);

/* What the store answers to a delivery. RUN: run the effect now. All others: do not run it. */
#define ONCE_ANSWER_MAP(X)                                                                                             \
    X(RUN, "run")             /* claimed for the caller */                                                             \
    X(WAITING, "waiting")     /* inbox only: the store keeps the message and will hand it out */                       \
    X(DUPLICATE, "duplicate") /* finished before; the stored result comes with it */                                   \
    X(DEAD, "dead")           /* it became a dead letter before */                                                     \
    X(BUSY, "busy")           /* another worker is processing it */                                                    \
    X(LATER, "later")         /* not now: it is not due, or another message of its lane comes first */                 \
    X(GAP, "gap")             /* an earlier version is missing */                                                      \
    X(UNKNOWN, "unknown")     /* an attempt may have had its effect; an operator decides */                            \
    X(CONFLICT, "conflict")   /* the key was used before with other content */                                         \
    X(TOO_OLD, "too_old")     /* older than what is remembered */                                                      \
    X(STALE, "stale")         /* a newer version of its lane is settled */                                             \
    X(CUT, "cut")             /* dead letters only: longer than message_max, and only its beginning is kept */

/* ONCE_ANSWER_RUN, ONCE_ANSWER_WAITING... */
typedef enum once_answer {
#define ONCE_ANSWER_ENUM(name, text) ONCE_ANSWER_##name,
    ONCE_ANSWER_MAP(ONCE_ANSWER_ENUM)
#undef ONCE_ANSWER_ENUM
        ONCE_ANSWERS
} once_answer;

/* "duplicate"; "?" for a number that is not an answer. */
ONCE_API const char *once_answer_name(once_answer answer);

/* One attempt of the history of a key: how it ended, or what happened after it. */
typedef struct once_attempt {
    uint32_t attempt; /* its number, from 1 */
    int64_t ended_ms; /* milliseconds UTC. If it ended without reporting ("silent"): when that was noticed, or when its
                       * lease ended */
    /* The name of a once_outcome, or
     *   "silent"    it ended without reporting an outcome
     *   "replaced"  it had no effect, and then other content under the same key took its place */
    const char *outcome;
    once_bytes who;    /* the worker, "user@host:pid"; may be empty */
    once_bytes reason; /* why it ended so; may be cut, or empty */
} once_attempt;

#define ONCE_FOREVER INT64_MAX /* a `remember` without end */
#define ONCE_NO_TIME INT64_MIN /* a time that is not known */

#ifdef __cplusplus
}
#endif
#endif
