/* Facts written in the transaction of a batch: what the source keeps, the newest message time, the counters of repeats
 * and given-up versions, and the record of this worker. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/executor_impl.h"

#include "base/banned.h"

#define NEWEST_STEP_MS (INT64_C(3600) * 1000)

void once__note_times(once_executor *x, const once_request *const *requests, size_t n)
{
    static const int64_t sane_ms = INT64_C(1) << 50; /* 35,000 years: comparisons with it do not overflow */
    for (size_t i = 0; i < n; i++) {
        const int64_t sent_ms = requests[i]->sent_ms;
        if (sent_ms > -sane_ms && sent_ms < sane_ms && (x->newest_ms == ONCE_NO_TIME || sent_ms > x->newest_ms))
            x->newest_ms = sent_ms;
    }
}

static bool source_keeps(const once_executor *x) { return x->source && x->source->ops->keep; }

/* Called after the verb, because a store may have work to do before its transaction begins on the server. */
int once__keep_items(once_executor *x, const once_action *a, once_error *err)
{
    assert(a->n > 0 && a->n_last == 0);
    if (!source_keeps(x)) return ONCE_OK;
    if (!x->in_tx) x->facts->transaction++; /* the verb was a transaction of its own */
    return x->source->ops->keep(x->source, x->facts, a->items, a->n, NULL, 0, err);
}

static int keep_last(once_executor *x, const once_action *a, once_error *err)
{
    assert(x->in_tx && (a->n_last == 0 || a->last));
    if (!source_keeps(x) || a->n_last == 0) return ONCE_OK;
    return x->source->ops->keep(x->source, x->facts, NULL, 0, a->last, a->n_last, err);
}

static const char *newest_name(once_bytes consumer, char out[ONCE_FACT_NAME])
{
    assert(consumer.len > 0);
    (void)snprintf(out, ONCE_FACT_NAME, "newest/%.*s", (int)consumer.len, consumer.data);
    return out;
}

int once_newest_read(once_backend *store, once_bytes consumer, int64_t *out, once_error *err)
{
    char name[ONCE_FACT_NAME], digits[24] = "";
    once_arena arena = {0};
    once_bytes text = {0};
    const int rc = store->ops->fact_get(store, newest_name(consumer, name), &text, &arena, err);
    if (rc == ONCE_OK && text.len < sizeof digits && text.len) memcpy(digits, text.data, text.len);
    *out = digits[0] ? strtoll(digits, NULL, 10) : ONCE_NO_TIME;
    once_arena_release(&arena);
    return rc;
}

/* Writes the newest time at most once an hour, which costs nothing and still shows a wrong clock. Never goes back: old
 * messages come after new ones when an older file is read, or another process is behind. */
static int keep_newest(once_executor *x, once_error *err)
{
    const int64_t newest_ms = x->newest_ms;
    if (newest_ms == ONCE_NO_TIME ||
        (x->newest_kept_ms != ONCE_NO_TIME && newest_ms - x->newest_kept_ms < NEWEST_STEP_MS))
        return ONCE_OK;
    int64_t stored_ms;
    int rc = once_newest_read(x->store, x->consumer, &stored_ms, err);
    if (rc != ONCE_OK) return rc;
    const bool possible = x->newest_kept_ms != ONCE_NO_TIME || stored_ms <= x->newest_limit_ms;
    if (stored_ms != ONCE_NO_TIME && possible && newest_ms <= stored_ms) {
        x->newest_kept_ms = stored_ms;
        return ONCE_OK;
    }
    char name[ONCE_FACT_NAME], text[24];
    const int len = snprintf(text, sizeof text, "%" PRId64, newest_ms);
    assert(len > 0 && (size_t)len < sizeof text);
    rc = x->store->ops->fact_set(x->store, newest_name(x->consumer, name), (once_bytes){text, (size_t)len}, err);
    if (rc == ONCE_OK) x->newest_kept_ms = newest_ms; /* if the commit fails, a message of the next hour writes it */
    return rc;
}

static void take_rate(once_executor *x)
{
    assert(x->worker);
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    const double seconds = (double)(now_ns - x->rate_at_ns) / 1e9;
    if (x->rate_at_ns && seconds < 1) return;
    const uint64_t more = x->worker->done > x->rate_done ? x->worker->done - x->rate_done
                                                         : 0; /* a failed commit subtracts what it had added */
    if (x->rate_at_ns) x->worker->rate = (uint64_t)((double)more / seconds + 0.5);
    x->rate_at_ns = now_ns;
    x->rate_done = x->worker->done;
}

static int renew(once_executor *x, once_error *err)
{
    take_rate(x);
    const int rc = once_worker_renew(x->worker, x->store, err);
    if (rc != ONCE_OK || x->paused.version == x->paused_version) return rc;
    return once_worker_pauses(x->worker, x->store, &x->paused, err);
}

void once__renewed(once_executor *x)
{
    once_worker_kept(x->worker);
    x->paused_version = x->paused.version;
}

int once__do_renew(once_executor *x, const once_action *a, once_error *err)
{
    assert(!x->in_tx);
    if (!x->worker) return ONCE_OK;
    int rc = x->store->ops->begin(x->store, err);
    if (rc != ONCE_OK) return rc;
    x->worker->done += a->ended;
    rc = renew(x, err);
    if (rc == ONCE_OK) rc = x->store->ops->commit(x->store, err);
    else x->store->ops->rollback(x->store);
    if (rc == ONCE_OK) once__renewed(x);
    else x->worker->done -= a->ended;
    return rc;
}

int once__keep_facts(once_executor *x, const once_action *a, bool renews, once_error *err)
{
    assert(x->in_tx);
    int rc = keep_last(x, a, err);
    /* In the transaction of the claims that repeat, so that a killed run cannot hide them. */
    if (rc == ONCE_OK && a->repeats) rc = once_repeats_add(x->store, x->consumer, a->repeats, &x->scratch, err);
    if (rc == ONCE_OK && a->given_up) rc = once_given_up_add(x->store, x->consumer, a->given_up, &x->scratch, err);
    if (rc == ONCE_OK) rc = keep_newest(x, err);
    return rc == ONCE_OK && renews ? renew(x, err) : rc;
}
