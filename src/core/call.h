/* The call of a handler written in C, and its reply. Shared by once_handle, once_sqlite_handle, and pipelines with a
 * callback.
 *
 * Thread rule: a reply belongs to the thread that runs the handler. */
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
/* What the handler returned, or ONCE_UNKNOWN if that is not an outcome. */
once_outcome once__reply_outcome(once_reply *reply, once_outcome returned);
/* The reason: the handler's own, or the general one for this outcome. */
once_bytes once__reply_why(const once_reply *reply, once_outcome outcome);

/* Extends the lease while a handler runs. once_call.internal points to one; NULL: there is no lease to lose. */
typedef struct once_keeper {
    int (*extend)(struct once_keeper *keeper, int64_t lease_ms,
                  once_error *err); /* lease_ms >= 0; on the handler's thread */
} once_keeper;

/* The error of a keeper whose claim was lost to another worker. */
int once__keeper_lost(once_error *err);

#endif
