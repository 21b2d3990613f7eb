/* The words that every part shares: bytes, scope, outcome, decision. Plain data, no functions that allocate. */
#ifndef ONCE_TYPES_H
#define ONCE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "once/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of bytes that somebody else owns. Binary safe, not terminated; data may be NULL when len is 0. */
typedef struct once_bytes {
    const char *data;
    size_t len;
} once_bytes;

#define ONCE_BYTES(literal) ((once_bytes){(literal), sizeof(literal) - 1})

/* Whose key it is. Two scopes never see each other's keys. */
typedef struct once_scope {
    once_bytes tenant; /* may be empty */
    once_bytes consumer;
    once_bytes operation;
} once_scope;

/* How an attempt ended. The first four are final and suppress duplicates until they expire; so does dead, which never
 * expires. */
#define ONCE_OUTCOME_MAP(X)                                                                                           \
    X(DONE, "done")         /* the effect happened */                                                                 \
    X(ALREADY, "already")   /* the business itself said that it had happened */                                      \
    X(REJECTED, "rejected") /* the business said no */                                                               \
    X(STALE, "stale")       /* superseded by a newer version, or an update that met nothing */                       \
    X(RETRY, "retry")       /* a passing failure: failures + 1, wait, again */                                       \
    X(RELEASE, "release")   /* put back without blame */                                                             \
    X(UNKNOWN, "unknown")   /* the effect may have happened */                                                       \
    X(DEAD, "dead")         /* will never work, or the budget is spent */

typedef enum once_outcome {
#define ONCE_OUTCOME_ENUM(name, text) ONCE_##name,
    ONCE_OUTCOME_MAP(ONCE_OUTCOME_ENUM)
#undef ONCE_OUTCOME_ENUM
    ONCE_OUTCOMES
} once_outcome;

ONCE_API const char *once_outcome_name(once_outcome outcome);

#define ONCE_FOREVER INT64_MAX  /* a `remember` without end */
#define ONCE_NO_TIME INT64_MIN  /* a time that is not known */

#ifdef __cplusplus
}
#endif
#endif
