/* What a run with a finite source waits for when it has nothing else to do. It logs this, because otherwise it would
 * look as if it hung.
 *   - Claims of other workers. If the worker is gone, its claims are ended; if not, they may end with their leases.
 *   - A lookup that is not due yet. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/duration.h"
#include "base/log.h"
#include "base/plain.h"
#include "runtime/executor.h"

#include "base/banned.h"

enum { WORTH_SAYING_MS = 1000 };
static const int64_t second_ns = INT64_C(1000000000);
#define SAID_AGAIN_NS (10 * second_ns)
#define GONE_SOON_NS second_ns          /* how often to look for workers that are gone, while a claim is in the way */
#define GONE_ANYWAY_NS (10 * second_ns) /* and otherwise: their messages may never be delivered again */

/* --- workers that are gone --- */

static size_t log_taken_over(const once_gone *gone)
{
    size_t all = 0;
    for (size_t i = 0; i < once_gone_count(gone); i++) {
        const once_gone_worker *w = &gone->at[i];
        all += w->ended;
        if (w->ended)
            once_log(ONCE_LOG_WARN, "taken_over",
                     "%s is gone: its claims of %zu message%s end now, not when their leases expire", w->who, w->ended,
                     w->ended == 1 ? "" : "s");
    }
    return all;
}

int once__take_over(once_backend *store, once_bytes consumer, const once_worker *self, once_gone *gone, size_t *ended,
                    once_error *err)
{
    size_t from = 0;
    int rc;
    *ended = 0;
    do {
        rc = once_take_over(store, consumer, self, gone, &from, err);
        *ended += log_taken_over(gone); /* also if it failed half-way */
    } while (rc == ONCE_OK && from);
    return rc;
}

/* A failure shows in the next action on the store; until then leases decide. */
bool once__look_for_gone(once_executor *x, bool in_the_way)
{
    assert(!x->in_tx);
    const int64_t now_ns = once_env_mono_ns(x->store->env), passed_ns = now_ns - x->gone_at_ns;
    size_t ended = 0;
    if (!x->worker || (x->gone_at_ns && passed_ns < (in_the_way ? GONE_SOON_NS : GONE_ANYWAY_NS))) return false;
    x->gone_at_ns = now_ns;
    x->met_busy = false;
    (void)once__take_over(x->store, x->consumer, x->worker, &x->gone, &ended, NULL);
    return ended > 0;
}

/* --- workers that are not gone --- */

typedef struct claim {
    const once_executor *x;
    bool found;
    int64_t due_ms;
    once_token token;
    bool known; /* its worker has a record */
    once_worker_state state;
    once_waiting_for *out;
} claim;

static void copy(char out[ONCE_WAITING_NAME], once_bytes text)
{
    (void)snprintf(out, ONCE_WAITING_NAME, "%.*s", text.len < ONCE_WAITING_NAME ? (int)text.len : ONCE_WAITING_NAME - 1,
                   text.data ? text.data : "");
    (void)once_make_plain(out, strlen(out), '?'); /* another process wrote it, and it goes to a terminal */
}

static bool look_at_claim(void *user, const once_entry *entry)
{
    assert(entry->state == ONCE_STATE_CLAIMED);
    claim *next = user;
    if (next->found && entry->due_ms >= next->due_ms) return true;
    next->found = true;
    next->due_ms = entry->due_ms;
    next->token = entry->token;
    copy(next->out->key, entry->key);
    copy(next->out->who, entry->worker.len ? entry->worker : entry->who.len ? entry->who : ONCE_BYTES("a worker"));
    return true;
}

static bool look_at_worker(void *user, const once_worker *worker, once_worker_state state)
{
    claim *next = user;
    if (!once_token_is_of_run(next->token, worker->run)) return true;
    next->known = true;
    next->state = state;
    return false;
}

static const char *state_of(const claim *next)
{
    const once_entry entry = {.token = next->token};
    const once_gone_worker *gone = once_gone_holder(&next->x->gone, &entry);
    if (gone) return gone->contained ? "which is gone" : "which is gone, but its commands may still run";
    if (!next->known) return "which has ended or is gone";
    if (next->state == ONCE_WORKER_GONE) return "which is gone";
    return next->state == ONCE_WORKER_LATE ? "which has not reported for a while" : "which is alive";
}

/* Finds the claim that ends first. */
static bool find_next(once_executor *x, int64_t now_ns)
{
    once_waiting_for *w = &x->waiting;
    claim next = {.x = x, .out = w};
    once_store_time time;
    if (x->store->ops->list(x->store, x->consumer, ONCE_STATE_CLAIMED, look_at_claim, &next, NULL) != ONCE_OK ||
        !next.found)
        return false;
    if (once_workers_each(x->store, x->consumer, look_at_worker, &next, NULL) != ONCE_OK) return false;
    if (x->store->ops->time(x->store, &time, NULL) != ONCE_OK) return false;
    assert(w->who[0]); /* at least "a worker" */
    w->state = state_of(&next);
    w->worker_alive = next.known && next.state == ONCE_WORKER_ALIVE; /* a second worker, as usual */
    w->until_ns = now_ns + (next.due_ms > time.now_ms ? next.due_ms - time.now_ms : 0) * 1000000;
    w->found_ns = now_ns;
    return true;
}

static const char *format_left(int64_t until_ns, int64_t now_ns, char out[ONCE_DURATION_TEXT])
{
    return once_duration_about((until_ns - now_ns) / 1000000, out);
}

void once__waiting_text(const once_waiting_for *w, int64_t now_ns, char out[ONCE_WAITING_TEXT])
{
    assert(w->n == 0 || w->state);
    char left[ONCE_DURATION_TEXT];
    if (w->n == 0) out[0] = 0;
    else
        (void)snprintf(out, ONCE_WAITING_TEXT, "waits %s for %s, %s", format_left(w->until_ns, now_ns, left), w->who,
                       w->state);
}

/* Only unknown messages are left. One line is enough for each wait, because it says until when; the first one is seen
 * without a setting. */
static void log_lookup(once_executor *x, const once_stats *stats, int64_t now_ns)
{
    char left[ONCE_DURATION_TEXT];
    if (now_ns < x->lookup_until_ns || stats->wait_ms < WORTH_SAYING_MS) return;
    const once_log_level level = x->lookup_until_ns ? ONCE_LOG_INFO : ONCE_LOG_WARN;
    x->lookup_until_ns = now_ns + stats->wait_ms * 1000000;
    once_log(level, "waiting",
             "waiting for a lookup, which asks in %s what became of a message whose outcome is unknown; 'once list "
             "--unknown' shows such messages, and 'once resolve' settles them without a lookup",
             format_left(x->lookup_until_ns, now_ns, left));
}

void once__log_waiting(once_executor *x, const once_stats *stats)
{
    once_waiting_for *w = &x->waiting;
    const int64_t now_ns = once_env_mono_ns(x->store->env);
    char left[ONCE_DURATION_TEXT];
    w->n = 0;
    if (stats->wait_ms == ONCE_NEVER) return;
    if (stats->unknown && stats->waiting == 0 && stats->claimed == 0) log_lookup(x, stats, now_ns);
    if (stats->claimed == 0 || stats->wait_ms < WORTH_SAYING_MS) return;
    const bool says =
        once_log_wants(ONCE_LOG_WARN) && (!x->waiting_said_ns || now_ns - x->waiting_said_ns >= SAID_AGAIN_NS);
    const bool shows = x->shows_waiting && (!w->found_ns || now_ns - w->found_ns >= second_ns);
    if ((says || shows) && !find_next(x, now_ns)) return;
    w->n = x->shows_waiting ? stats->claimed : 0;
    if (!says) return;
    x->waiting_said_ns = now_ns;
    once_log(w->worker_alive ? ONCE_LOG_INFO : ONCE_LOG_WARN, "waiting",
             "waiting for %" PRIu64
             " message%s that other workers have claimed; the next is key '%s' of %s, %s: its claim ends in %s",
             stats->claimed, stats->claimed == 1 ? "" : "s", w->key, w->who, w->state,
             format_left(w->until_ns, now_ns, left));
}
