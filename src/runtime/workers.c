/* The workers of a pipeline, and the claims that they hold. */
#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "runtime/executor.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"
#include "store/takeover.h"

#include "base/banned.h"

typedef struct holder {
    once_worker worker;
    once_worker_state state;
    uint64_t holds, lapsed;
    once_paused paused;
} holder;

typedef struct holders {
    holder *at;
    size_t n;
    bool no_memory;
} holders;

static bool add_holder(void *user, const once_worker *worker, once_worker_state state)
{
    holders *all = user;
    holder *more = realloc(all->at, (all->n + 1) * sizeof *more);
    all->no_memory = !more;
    if (!more) return false;
    all->at = more;
    all->at[all->n++] = (holder){.worker = *worker, .state = state};
    return true;
}

static bool count_held(void *user, const once_entry *entry)
{
    holders *all = user;
    assert(entry->state == ONCE_STATE_CLAIMED);
    for (size_t i = 0; i < all->n; i++) all->at[i].holds += once_token_is_of_run(entry->token, all->at[i].worker.run);
    return true;
}

/* The lease of the claim has expired: a waiting or unknown entry still names its worker (once_entry_look), or another
 * worker has recorded it since. */
static bool count_lapsed(void *user, const once_entry *entry)
{
    holders *all = user;
    for (size_t i = 0; i < all->n; i++) {
        holder *h = &all->at[i];
        const bool left =
            entry->worker.len || (entry->state == ONCE_STATE_UNKNOWN && entry->changed_ms > h->worker.seen_ms);
        if (left && once_token_is_of_run(entry->token, h->worker.run)) h->lapsed++;
    }
    return true;
}

/* A claim may have a shorter lease than the record of its worker; if it has expired, the worker is late. This reads all
 * waiting entries, so only if a worker was not seen for longer than the shortest lease. */
static int find_lapsed(once_pipeline *pipeline, once_backend *store, holders *all, once_error *err)
{
    static const once_state states[] = {ONCE_STATE_WAITING, ONCE_STATE_UNKNOWN};
    once_store_time time;
    int64_t shortest_ms = ONCE_NEVER;
    bool any = false;
    int rc = store->ops->time(store, &time, err);
    for (size_t i = 0; i < pipeline->spec->n_handlers; i++)
        if (pipeline->spec->handlers[i].lease_ms < shortest_ms) shortest_ms = pipeline->spec->handlers[i].lease_ms;
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++) any |= time.now_ms - all->at[i].worker.seen_ms >= shortest_ms;
    for (size_t i = 0; i < 2 && any && rc == ONCE_OK; i++)
        rc = store->ops->list(store, pipeline->spec->consumer, states[i], count_lapsed, all, err);
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++)
        if (all->at[i].lapsed && all->at[i].state == ONCE_WORKER_ALIVE) all->at[i].state = ONCE_WORKER_LATE;
    return rc;
}

static int read_paused(once_backend *store, holders *all, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; i < all->n && rc == ONCE_OK; i++)
        rc = once_worker_paused(&all->at[i].worker, store, &all->at[i].paused, err);
    return rc;
}

enum { PAUSED_SHOWN = 16 };

static size_t list_paused(const once_paused *paused, once_paused_handler out[PAUSED_SHOWN])
{
    const char *text = paused->text;
    once_paused_line line;
    size_t n = 0;
    while (n < PAUSED_SHOWN && once__paused_next(&text, &line))
        out[n++] = (once_paused_handler){.handler = line.handler,
                                         .cause = line.cause,
                                         .reason = line.reason,
                                         .since_ms = line.since_ms,
                                         .next_ms = line.next_ms,
                                         .tries = line.probes};
    return n;
}

static void visit_holders(const holders *all, once_running_visit *visit, void *user)
{
    assert(all->n == 0 || all->at);
    static const char *const states[] = {
        [ONCE_WORKER_ALIVE] = "alive", [ONCE_WORKER_LATE] = "late", [ONCE_WORKER_GONE] = "gone"};
    for (size_t i = 0; i < all->n; i++) {
        const holder *h = &all->at[i];
        once_paused_handler paused[PAUSED_SHOWN];
        const size_t n_paused = list_paused(&h->paused, paused);
        const once_running running = {
            .who = h->worker.who,
            .state = states[h->state],
            .begun_ms = h->worker.begun_ms,
            .seen_ms = h->worker.seen_ms,
            .done = h->worker.done,
            .rate = h->worker.rate,
            .holds = h->holds,
            .lapsed = h->lapsed,
            .paused = paused,
            .n_paused = n_paused,
        };
        if (!visit(user, &running)) return;
    }
}

int once_pipeline_workers(once_pipeline *pipeline, once_running_visit *visit, void *user, once_error *err)
{
    if (!pipeline || !visit)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_workers needs a pipeline and a function for its workers");
    once_backend *store;
    holders all = {0};
    int rc = once__operator_open(pipeline, &store, err);
    if (rc != ONCE_OK) return rc;
    rc = once_workers_each(store, pipeline->spec->consumer, add_holder, &all, err);
    if (rc == ONCE_OK && all.no_memory) rc = once_no_memory(err, "for a list of workers");
    if (rc == ONCE_OK && all.n)
        rc = store->ops->list(store, pipeline->spec->consumer, ONCE_STATE_CLAIMED, count_held, &all, err);
    if (rc == ONCE_OK && all.n) rc = find_lapsed(pipeline, store, &all, err);
    if (rc == ONCE_OK) rc = read_paused(store, &all, err);
    once__operator_close(pipeline, store);
    if (rc == ONCE_OK) visit_holders(&all, visit, user);
    free(all.at);
    return rc;
}
