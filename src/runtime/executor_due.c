/* Messages in the store: waiting ones that are due, and claims whose lease has expired. */
#include <assert.h>

#include "base/failpoint.h"
#include "base/no_memory.h"
#include "runtime/executor_impl.h"

#include "base/banned.h"

#define LAPSED_NS (INT64_C(2) * 1000000000) /* how often to look for expired claims */
enum { LAPSED_STEP = 256 };

static once_item item_of(const once_taken *taken)
{
    once_item item = {
        .message = taken->message, .scope = taken->scope, .request = taken->request, .decision = taken->decision};
    item.request.scope = &taken->scope;
    if (item.message.at.place.len == 0)
        item.message.at = taken->request.at; /* it has no body: name it by where it was first seen */
    return item;
}

/* Logs decisions that a verb of the store has committed by itself: at once or, when no answer came, as soon as the
 * store answers. */
static void log_found(once_executor *x, const once_taken *taken, size_t n, int rc)
{
    assert(n == 0 || taken);
    once_message_log now;
    once_message_log_init(&now);
    for (size_t i = 0; i < n; i++) {
        const once_item item = item_of(&taken[i]);
        const char *event = once_unconfirmed_event(&item.decision);
        if (rc != ONCE_OK) once_unconfirmed_add(&x->unconfirmed, &item, &x->keying);
        else if (event) once_message_log_add(&now, ONCE_LOG_WARN, event, &item, item.decision.reason, &x->keying);
    }
    once_message_log_write(&now);
    once_message_log_release(&now);
}

/* A claim whose lease has expired counts as unknown for every reader (once_entry_look). This writes it down and logs
 * it, whether or not the message is delivered again. Failures are left to the next action on the store. */
void once__look_for_lapsed(once_executor *x, bool now)
{
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    size_t n = LAPSED_STEP;
    if (once_unconfirmed_check(&x->unconfirmed, x->store, &x->keying, NULL) != ONCE_OK) return;
    if (!x->store->ops->lapse || (!now && x->lapsed_at_ns && now_ns - x->lapsed_at_ns < LAPSED_NS)) return;
    x->lapsed_at_ns = now_ns;
    while (n == LAPSED_STEP) {
        once_arena arena = {0};
        once_taken *lapsed = once_arena_new(&arena, once_taken, LAPSED_STEP);
        n = 0;
        const int rc = lapsed ? x->store->ops->lapse(x->store, x->consumer, x->worker ? x->worker->run : 0, LAPSED_STEP,
                                                     lapsed, &n, &arena, NULL)
                              : ONCE_E_NOMEM;
        assert(n <= LAPSED_STEP);
        log_found(x, lapsed, n, rc);
        if (rc != ONCE_OK) n = 0;
        once_arena_release(&arena);
    }
}

static int fill_batch(const once_action *a, const once_taken *taken, size_t n, once_error *err)
{
    assert(n <= a->max && a->batch->n == 0);
    once_batch *batch = a->batch;
    batch->items = once_arena_new(&batch->arena, once_item, n);
    if (!batch->items) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) {
        once_item *item = &batch->items[i];
        item->batch = batch;
        item->message = taken[i].message;
        item->scope = taken[i].scope;
        item->request = taken[i].request;
        item->request.lease_ms = a->lease_ms; /* its handler may be gone, so the default is used */
        item->decision = taken[i].decision;
    }
    batch->n = n;
    return ONCE_OK;
}

int once__do_find(once_executor *x, once_action *a, once_error *err)
{
    assert(x->in_tx && x->store->ops->find && a->max > 0);
    const once_request **requests = once__requests_of(x, a);
    once_taken *waiting = once_arena_new(&a->batch->arena, once_taken, a->max);
    size_t n = 0;
    if (!requests || !waiting) return once_no_memory(err, "for a batch");
    if (a->due) CHECK_POINT(take_before, err);
    const int rc = x->store->ops->find(x->store, x->consumer, requests, a->n, a->due, a->max, waiting, &n, &a->more,
                                       &a->batch->arena, err);
    if (rc != ONCE_OK) return rc;
    if (a->due) CHECK_POINT(take_after, err);
    return fill_batch(a, waiting, n, err);
}

int once__do_take(once_executor *x, once_action *a, once_error *err)
{
    once_batch *batch = a->batch;
    assert(!x->in_tx && a->max > 0 && a->lease_ms > 0);
    once_arena_reset(&batch->arena); /* a repeated take starts from scratch */
    batch->n = 0;
    once_taken *taken = once_arena_new(&batch->arena, once_taken, a->max);
    if (!taken) return once_no_memory(err, "for a batch");
    size_t n = 0;
    CHECK_POINT(take_before, err);
    const int rc = x->store->ops->take(x->store, x->consumer, a->token, a->again, a->lease_ms, a->max, a->filter, taken,
                                       &n, &batch->arena, err);
    log_found(x, taken, n, rc);
    if (rc != ONCE_OK) return rc;
    CHECK_POINT(take_after, err);
    return fill_batch(a, taken, n, err);
}

int once__do_stats(once_executor *x, once_action *a, once_error *err)
{
    once_stats stats;
    assert(!x->in_tx);
    int rc = x->store->ops->stats(x->store, x->consumer, &stats, err);
    if (rc == ONCE_OK && stats.claimed && once__look_for_gone(x, true))
        rc = x->store->ops->stats(x->store, x->consumer, &stats, err);
    if (rc != ONCE_OK) return rc;
    if (stats.unknown) once__look_for_lapsed(x, true); /* this may be the last question before the run ends */
    a->waiting = stats.waiting;
    a->claimed = stats.claimed;
    a->unknown = stats.unknown;
    a->wait_ms = stats.wait_ms;
    once__log_waiting(x, &stats);
    return ONCE_OK;
}
