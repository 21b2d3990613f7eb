/* The verbs of the engine, as stores export them. A verb that is its own transaction is repeated when the driver's
 * `again` says so: another transaction was quicker, and nothing of this one has happened. The repeated verb has the
 * same tokens, so repeating is harmless. */
#include <assert.h>

#include "store/engine/parts.h"

#include "base/banned.h"

static bool once_more(once_backend *store, int rc, unsigned *tries)
{
    once_storage *storage = once__storage_of(store);
    if (rc == ONCE_OK || storage->in_tx || !storage->ops->again) return false;
    return storage->ops->again(storage, rc, ++*tries);
}

int once__engine_claim(once_backend *store, const once_request *const *requests, size_t n, once_decision *out,
                       once_arena *arena, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_claim(store, requests, n, out, arena, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_settle(once_backend *store, const once_settlement *settlements, size_t n, bool *applied,
                        once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_settle(store, settlements, n, applied, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_extend(once_backend *store, const once_request *const *requests, size_t n, bool *ours, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_extend(store, requests, n, ours, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_accept(once_backend *store, const once_request *const *requests, const once_message *const *messages,
                        size_t n, once_decision *out, once_arena *arena, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_accept(store, requests, messages, n, out, arena, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_take(once_backend *store, once_bytes consumer, once_token token, bool again, int64_t lease_ms,
                      size_t max, once_due_filter *filter, once_taken *out, size_t *n, once_arena *arena,
                      once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_take(store, consumer, token, again, lease_ms, max, filter, out, n, arena, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_lapse(once_backend *store, once_bytes consumer, uint64_t except_run, size_t max, once_taken *out,
                       size_t *n, once_arena *arena, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_lapse(store, consumer, except_run, max, out, n, arena, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_bury(once_backend *store, const once_letter *letters, size_t n, bool *fresh, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_bury(store, letters, n, fresh, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_replay(once_backend *store, uint64_t letter, bool *found, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_replay(store, letter, found, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_forget(once_backend *store, once_hash id, bool *found, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_forget(store, id, found, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_letter_drop(once_backend *store, uint64_t letter, bool *found, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_letter_drop(store, letter, found, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_discard(once_backend *store, uint64_t letter, int64_t remember_ms, bool *found, once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_discard(store, letter, remember_ms, found, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_resolve(once_backend *store, once_hash id, once_outcome outcome, once_bytes reason, bool *done,
                         once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_resolve(store, id, outcome, reason, done, err);
    while (once_more(store, rc, &tries));
    return rc;
}

int once__engine_revive(once_backend *store, const once_request *request, const once_message *message, bool *done,
                        once_error *err)
{
    unsigned tries = 0;
    int rc;
    do rc = once__verb_revive(store, request, message, done, err);
    while (once_more(store, rc, &tries));
    return rc;
}
