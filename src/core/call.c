/* The reply of a handler written in C, and the extension of its lease (core/call.h). The public functions here check
 * their arguments; a bad call is ONCE_E_USAGE, never an abort. */
#include "core/call.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/usage.h"
#include "core/policy.h"

#include "base/banned.h"

void once__reply_init(once_reply *reply, size_t result_max)
{
    reply->reason[0] = '\0';
    reply->delay_ms = -1;
    once_buf_init(&reply->result, result_max);
}

void once__reply_release(once_reply *reply) { once_buf_release(&reply->result); }

int once_reply_result(once_reply *reply, once_bytes result)
{
    if (!reply || once_bytes_lie(result)) return ONCE_E_USAGE;
    if (result.len > reply->result.max) return ONCE_E_MESSAGE;
    once_buf_clear(&reply->result);
    if (result.len == 0 || once_buf_append(&reply->result, result.data, result.len)) return ONCE_OK;
    once_buf_clear(&reply->result);
    return ONCE_E_NOMEM;
}

void once_reply_reason(once_reply *reply, const char *format, ...)
{
    if (!reply || !format) return;
    va_list args;
    va_start(args, format);
    vsnprintf(reply->reason, sizeof reply->reason, format, args);
    va_end(args);
}

void once_reply_delay(once_reply *reply, int64_t delay_ms)
{
    if (reply) reply->delay_ms = delay_ms < 0 ? 0 : delay_ms;
}

once_outcome once__reply_outcome(once_reply *reply, once_outcome returned)
{
    if ((unsigned)returned < ONCE_OUTCOMES) return returned;
    once_reply_reason(reply, "the handler returned %d, which is not an outcome", (int)returned);
    return ONCE_UNKNOWN;
}

once_bytes once__reply_why(const once_reply *reply, once_outcome outcome)
{
    assert((unsigned)outcome < ONCE_OUTCOMES);
    if (reply->reason[0]) return (once_bytes){reply->reason, strlen(reply->reason)};
    return once_policy_words(outcome);
}

int once_call_extend(const once_call *call, int64_t lease_ms, once_error *err)
{
    if (!call) return once_fail(err, ONCE_E_USAGE, "once_call_extend needs the call that the handler was given");
    once_keeper *keeper = call->internal;
    if (!keeper) return ONCE_OK;
    if (lease_ms < 0) return once_fail(err, ONCE_E_USAGE, "lease_ms must not be negative");
    assert(keeper->extend);
    return keeper->extend(keeper, lease_ms, err);
}

int once__keeper_lost(once_error *err)
{
    return once_fail(err, ONCE_E_FENCED,
                     "the lease ran out and another worker has the key; use a longer lease_ms, or once_call_extend");
}
