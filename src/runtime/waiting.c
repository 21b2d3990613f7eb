/* A run that waits for the claims of others says so: for whom, and how long. After a kill -9 it would look as if it hung. */
#include <inttypes.h>
#include <stdio.h>

#include "base/duration.h"
#include "base/log.h"
#include "runtime/executor.h"

#include "base/banned.h"

enum { WORTH_SAYING_MS = 1000 };
static const int64_t again_ns = 10 * INT64_C(1000000000);

typedef struct claim {
    bool found, known; /* known: its worker has a record */
    int64_t due_ms;
    uint64_t run;
    once_worker_state state;
    char key[120], who[120];
} claim;

static void copy(char out[120], once_bytes text) { (void)snprintf(out, 120, "%.*s", text.len < 119 ? (int)text.len : 119, text.data ? text.data : ""); }

static bool look_at_claim(void *user, const once_entry *entry)
{
    claim *next = user;
    if (next->found && entry->due_ms >= next->due_ms) return true;
    *next = (claim){.found = true, .due_ms = entry->due_ms, .run = entry->run};
    copy(next->key, entry->key);
    copy(next->who, entry->worker.len ? entry->worker : entry->who);
    return true;
}

static bool look_at_worker(void *user, const once_worker *worker, once_worker_state state)
{
    claim *next = user;
    if (worker->run != next->run) return true;
    next->known = true;
    next->state = state;
    return false;
}

static const char *state_of(const claim *next)
{
    if (!next->known) return ", which has ended or is gone";
    return next->state == ONCE_WORKER_GONE ? ", which is gone" : next->state == ONCE_WORKER_LATE ? ", which has not been heard of for a while" : ", which is alive";
}

void once__say_waiting(once_executor *x, const once_stats *stats)
{
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    char left[ONCE_DURATION_TEXT];
    claim next = {0};
    if (stats->claimed == 0 || stats->wait_ms == ONCE_NEVER || stats->wait_ms < WORTH_SAYING_MS || !once_log_wants(ONCE_LOG_WARN)) return;
    if (x->waiting_said_ns && now_ns - x->waiting_said_ns < again_ns) return;
    if (x->store->ops->list(x->store, x->consumer, ONCE_STATE_CLAIMED, look_at_claim, &next, NULL) != ONCE_OK || !next.found) return;
    (void)once_workers_each(x->store, x->consumer, look_at_worker, &next, NULL);
    x->waiting_said_ns = now_ns;
    const bool routine = next.known && next.state == ONCE_WORKER_ALIVE; /* an ordinary second worker */
    once_log(routine ? ONCE_LOG_INFO : ONCE_LOG_WARN, "waiting",
             "waiting for %" PRIu64 " message%s that other workers have claimed; the next is key '%s' of %s%s: its claim ends in %s", stats->claimed,
             stats->claimed == 1 ? "" : "s", next.key, next.who[0] ? next.who : "a worker", state_of(&next),
             once_duration_format(stats->wait_ms / 1000 * 1000, left));
}
