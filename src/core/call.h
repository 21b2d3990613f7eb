/* What a handler written in C is called with and answers, for all who call one: once_handle, once_sqlite_handle, and
 * pipelines with a callback. */
#ifndef ONCE_CORE_CALL_H
#define ONCE_CORE_CALL_H

#include "base/buf.h"
#include "base/hash.h"
#include "once/handle.h"

struct once_reply {
    once_buf result;
    char reason[401];
    int64_t delay_ms; /* -1: the backoff decides */
};

void once__reply_init(once_reply *reply, size_t result_max);
void once__reply_release(once_reply *reply);
/* What it returned, or unknown when that is no outcome. */
once_outcome once__reply_outcome(once_reply *reply, once_outcome returned);
/* Why, in words: its own, or what can be said without it. */
once_bytes once__reply_why(const once_reply *reply, once_outcome outcome);

/* Who keeps the lease while a handler runs. once_call.internal points to one; NULL: there is no lease, and nothing can
 * be lost. */
typedef struct once_keeper {
    int (*extend)(struct once_keeper *keeper, int64_t lease_ms,
                  once_error *err); /* lease_ms >= 0; on the handler's thread */
} once_keeper;

/* The answer of a keeper whose claim is somebody else's. */
int once__keeper_lost(once_error *err);

#endif
