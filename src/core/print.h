/* The fingerprint of a body that is no JSON: that of its bytes. For messages that run without a claim it is computed
 * only when something asks for it (once_request.late).
 *
 * Stores keep these values: they never change. */
#ifndef ONCE_CORE_PRINT_H
#define ONCE_CORE_PRINT_H

#include "core/entry.h"

/* By the same rule as content that is no JSON in libonce (lib/store.c). No body differs from an empty one. */
static inline once_hash once_print_of_bytes(once_secret secret, const once_message *message)
{
    const once_bytes body = message->body;
    once_hash print = message->no_body ? once_xxh128(~secret.k0, ONCE_NO_BODY_MEMBER, sizeof ONCE_NO_BODY_MEMBER - 1)
                                       : once_xxh128(secret.k0, body.len ? body.data : "", body.len);
    if (once_hash_is_zero(print)) print.b = 1; /* zero means none */
    return print;
}

/* The request has its fingerprint from now on. */
static inline void once_request_print(once_request *request, once_secret secret)
{
    if (!request->late) return;
    request->fingerprint = once_print_of_bytes(secret, request->late);
    request->late = NULL;
}

#endif
