/* What goes with a batch, in its transaction: the files and the place of the source, the newest time that was seen,
 * what is counted for ever, and that this worker is alive. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "runtime/executor_impl.h"
#include "source/place.h"

#include "base/banned.h"

#define NEWEST_STEP_MS (INT64_C(3600) * 1000)

void once__note_times(once_executor *x, const once_request *const *requests, size_t n)
{
    static const int64_t sane_ms = INT64_C(1) << 50; /* 35,000 years: whatever is compared with it does not overflow */
    for (size_t i = 0; i < n; i++) {
        const int64_t sent_ms = requests[i]->sent_ms;
        if (sent_ms > -sane_ms && sent_ms < sane_ms && (x->newest_ms == ONCE_NO_TIME || sent_ms > x->newest_ms))
            x->newest_ms = sent_ms;
    }
}

static int keep_places(once_executor *x, const char *name, const once_places *places, once_error *err)
{
    assert(name);
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_write(places, &text);
    const int rc = text.failed ? once_no_memory(err, "for a batch")
                               : x->store->ops->fact_set(x->store, name, once_buf_bytes(&text), err);
    if (name == x->files) x->files_seen = once_xxh128(0, text.data, text.len);
    once_buf_release(&text);
    return rc;
}

/* The files of a source have numbers, which are part of coordinates. They are kept before, or with, the first message
 * that has them. Another process that follows the same path counts as we do, or one of us has missed a file. After the
 * verb: a store may have things to do before its transaction begins on the server. */
int once__keep_files(once_executor *x, once_item *const *items, size_t n, once_error *err)
{
    const once_origin *newest = NULL;
    for (size_t i = 0; i < n && x->files; i++) {
        const once_origin *origin = items[i]->batch->origin;
        if (origin && origin->version > x->files_written && (!newest || origin->version > newest->version))
            newest = origin;
    }
    if (!newest) return ONCE_OK;
    once_bytes text;
    once_places stored, all = newest->places;
    int rc = x->store->ops->fact_get(x->store, x->files, &text, &x->scratch, err);
    if (rc != ONCE_OK) return rc;
    assert(newest->version > x->files_written);
    const bool others = !x->cursor && text.len && !once_hash_equal(once_xxh128(0, text.data, text.len), x->files_seen);
    const bool readable = text.len && once_places_read(text, &stored);
    const bool disagree = others && readable && !once_places_agree(&stored, &newest->places);
    if (disagree && x->by_coordinates)
        return once_fail(
            err, ONCE_E_CORRUPT,
            "another process reads the same source and numbers its files otherwise; start again, with one process, "
            "or with another consumer for each machine that has a file of this path");
    if (readable) once_places_add_known(&all, &stored);
    if (disagree || (readable && once_places_same_files(&stored, &all))) { /* and others are not held up by it */
        x->files_written = newest->version;
        return ONCE_OK;
    }
    rc = keep_places(x, x->files, &all, err);
    if (rc == ONCE_OK) x->files_written = newest->version;
    return rc;
}

/* In the transaction that settles the messages before it, so it is never ahead of them. */
static int keep_place(once_executor *x, const once_item *last, once_error *err)
{
    once_places places;
    assert(x->in_tx && last->ticket > 0); /* what the store handed out has no place in the source */
    once_places_behind(last, &places);
    return keep_places(x, x->cursor, &places, err);
}

static const char *newest_name(once_bytes consumer, char out[ONCE_FACT_NAME])
{
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

/* Seldom enough to cost nothing, often enough that a wrong clock shows. Never to an older time: old messages come after
 * new ones when a file from before is read, or another process is behind. */
static int keep_newest(once_executor *x, once_error *err)
{
    const int64_t newest_ms = x->newest_ms;
    if (newest_ms == ONCE_NO_TIME ||
        (x->newest_kept_ms != ONCE_NO_TIME && newest_ms - x->newest_kept_ms < NEWEST_STEP_MS))
        return ONCE_OK;
    int64_t stored_ms;
    int rc = once_newest_read(x->store, x->consumer, &stored_ms, err);
    if (rc != ONCE_OK) return rc;
    const bool possible = x->newest_kept_ms != ONCE_NO_TIME || stored_ms <= x->newest_most_ms;
    if (stored_ms != ONCE_NO_TIME && possible && newest_ms <= stored_ms) {
        x->newest_kept_ms = stored_ms;
        return ONCE_OK;
    }
    char name[ONCE_FACT_NAME], text[24];
    const int len = snprintf(text, sizeof text, "%" PRId64, newest_ms);
    assert(len > 0 && (size_t)len < sizeof text);
    rc = x->store->ops->fact_set(x->store, newest_name(x->consumer, name), (once_bytes){text, (size_t)len}, err);
    if (rc == ONCE_OK)
        x->newest_kept_ms = newest_ms; /* should the commit fail, the next hour's message says it again */
    return rc;
}

static void take_rate(once_executor *x)
{
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    const double seconds = (double)(now_ns - x->rate_at_ns) / 1e9;
    if (x->rate_at_ns && seconds < 1) return;
    const uint64_t more = x->worker->done > x->rate_done ? x->worker->done - x->rate_done
                                                         : 0; /* a commit that failed takes its part back */
    if (x->rate_at_ns) x->worker->rate = (uint64_t)((double)more / seconds + 0.5);
    x->rate_at_ns = now_ns;
    x->rate_done = x->worker->done;
}

static int renew(once_executor *x, once_error *err)
{
    take_rate(x);
    return once_worker_renew(x->worker, x->store, err);
}

int once__do_renew(once_executor *x, once_error *err)
{
    assert(!x->in_tx);
    if (!x->worker) return ONCE_OK;
    int rc = x->store->ops->begin(x->store, err);
    if (rc != ONCE_OK) return rc;
    rc = renew(x, err);
    if (rc == ONCE_OK) rc = x->store->ops->commit(x->store, err);
    else x->store->ops->rollback(x->store);
    if (rc == ONCE_OK) once_worker_kept(x->worker);
    return rc;
}

/* What goes with the batch: the place in the source, what is counted for ever, and that we are alive. */
int once__keep_beside(once_executor *x, const once_action *a, bool renews, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && x->cursor && i < a->n_last; i++)
        if (a->last[i]->batch->origin) rc = keep_place(x, a->last[i], err);
    /* For ever, in the transaction of the claims that repeat: a run that is killed cannot hide them. */
    if (rc == ONCE_OK && a->repeats) rc = once_repeats_add(x->store, x->consumer, a->repeats, &x->scratch, err);
    if (rc == ONCE_OK && a->given_up) rc = once_given_up_add(x->store, x->consumer, a->given_up, &x->scratch, err);
    if (rc == ONCE_OK) rc = keep_newest(x, err);
    return rc == ONCE_OK && renews ? renew(x, err) : rc;
}
