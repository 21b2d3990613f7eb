/* Runs the pipeline machine with threads. One worker carries out the actions on the store, one fetches from the source,
 * one tells the source what is over, and where effects are outside of the store, another one looks after them. The
 * machine is behind a lock: a worker asks it for an action, carries that out without the lock, and reports back, so
 * nothing is handed from thread to thread inside a transaction. The calling thread only looks around: stop, progress,
 * the end. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "core/pipeline.h"
#include "runtime/executor.h"
#include "runtime/known.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define TICK_MS 50 /* how soon a stop is noticed */
#define PROGRESS_MS 200
#define IDLE_MS 1000 /* how long a worker sleeps at most */
#define RENEW_MS (ONCE_WORKER_LEASE_MS / 3)
#define RETURNS_MAX 1024
#define DAY_MS INT64_C(86400000)

typedef struct running running;

enum {
    STORE,
    ACKS,
    SOURCE,
    WORKERS
}; /* of a run, in the order in which they begin: nothing is fetched before all are there */

typedef struct worker {
    running *r;
    pthread_t thread;
    pthread_cond_t news; /* there may be something to do for this one; with `lock` */
    once_action *(*next)(once_pipe *pipe, int64_t now_ms);
    void (*execute)(void *on, once_action *action);
    void *on;
    const char *trouble; /* the event that is logged when an action fails; NULL: once__store_event says it ... */
    const char *works;   /* ... and when that is over */
    once_saying saying;  /* of its failures in a row */
    bool warned;         /* of these */
} worker;

/* What comes of a handler's effects. */
typedef struct handler_state {
    unsigned refused;   /* in a row: it gave them back, and will for as long as what it needs is away */
    int64_t worked_ms;  /* when it last did anything else; 0: never */
    bool said;          /* that it is down */
    once_saying saying; /* kept when it works: one that comes and goes does not fill the log */
} handler_state;

struct running {
    once_pipeline *pipeline;
    pthread_mutex_t lock; /* of the machine and everything below */
    once_pipe *pipe;
    worker workers[WORKERS];
    pthread_t effects;
    once_hands *hands;          /* NULL: no effect is outside of the store */
    once_saying effects_saying; /* of times in a row that they could not be started */
    handler_state *handlers;    /* as spec->handlers */
    pthread_cond_t over;
    once_source *from;
    const once_run_options *options;
    int64_t begun_ns, progress_ns;
    bool stop_seen;
    once_waiting_for waiting; /* as the store's worker found it last */
};

static int64_t now_ms(const running *r) { return once_env_mono_ns(r->pipeline->env) / 1000000; }
static double seconds(const running *r) { return (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9; }

static void wait_for(pthread_cond_t *news, running *r, int64_t ms) /* @locks: lock */
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(news, &r->lock, &until);
}

/* Tells the machine once that it should stop. Whoever comes by first does it. */
static void heed_stop(running *r) /* @locks: lock */
{
    if (r->stop_seen || !atomic_load(&r->pipeline->stop)) return;
    r->stop_seen = true;
    (void)ONCE_FAIL_AT(drain_before);
    once_log(ONCE_LOG_INFO, "drain", "told to stop; finishing what is in flight");
    once_pipe_stop(r->pipe);
    r->from->ops->wake(r->from);
    for (int i = 0; i < WORKERS; i++) pthread_cond_signal(&r->workers[i].news);
    if (r->hands) once_hands_wake(r->hands);
}

/* --- workers --- */

/* Whether an event can mean work for another worker: inside a transaction it cannot. */
static bool concerns_others(once_action_kind kind)
{
    switch (kind) {
    case ONCE_ACT_CLAIM:
    case ONCE_ACT_EXTEND:
    case ONCE_ACT_RUN:
    case ONCE_ACT_SETTLE:
    case ONCE_ACT_ACCEPT:
    case ONCE_ACT_BURY: return false;
    default: return true;
    }
}

/* So many lost races in a row, less one, are what workers beside each other do to each other. */
enum { ROUTINE_RACES = 8 };

/* What failed, when it goes on; otherwise the caller is told. A server may be away for days. A message's fault is in
 * its own outcome, not here: a commit may be where it shows first. */
static void report(worker *w, const once_action *done) /* @locks: lock */
{
    if (once_status_class(done->status) == ONCE_CLASS_MESSAGE && once_pipe_status(w->r->pipe, NULL) == ONCE_OK) return;
    if (done->status == ONCE_OK) {
        if (!concerns_others(done->kind) || done->kind == ONCE_ACT_BEGIN || done->kind == ONCE_ACT_ROLLBACK) return;
        if (w->saying.times > 0) /* who was warned is told the end of it */
            once_log(w->warned ? ONCE_LOG_WARN : ONCE_LOG_DEBUG, w->works, "%s: works again, after %u failure%s",
                     once_action_name(done->kind), w->saying.times, w->saying.times == 1 ? "" : "s");
        w->saying = (once_saying){0};
        w->warned = false;
    } else if (once__worth_saying(&w->saying, done->error.text, now_ms(w->r)) &&
               once_pipe_status(w->r->pipe, NULL) == ONCE_OK) {
        const bool routine = (done->status == ONCE_E_ABORTED || done->status == ONCE_E_BUSY) &&
                             w->saying.times < ROUTINE_RACES && !w->warned;
        const char *event = w->trouble ? w->trouble : once__store_event(done->status);
        w->warned |= !routine;
        once_log(routine ? ONCE_LOG_DEBUG : ONCE_LOG_WARN, event, "%s: %s%s; trying again",
                 once_action_name(done->kind), done->error.text,
                 done->status == ONCE_E_FULL ? "; nothing is fetched or acked until there is space" : "");
    }
}

static void tell_others(const worker *w) /* @locks: lock */
{
    running *r = w->r;
    for (int i = 0; i < WORKERS; i++)
        if (w != &r->workers[i]) pthread_cond_signal(&r->workers[i].news);
}

static void *work(void *arg) /* @locality: a worker's own thread */
{
    worker *w = arg;
    running *r = w->r;
    pthread_mutex_lock(&r->lock);
    while (!once_pipe_ended(r->pipe)) {
        heed_stop(r);
        once_action *action = w->next(r->pipe, now_ms(r));
        if (!action) {
            if (once_pipe_ended(r->pipe)) break;
            const int64_t wait_ms = w == &r->workers[STORE] ? once_pipe_wait_ms(r->pipe, now_ms(r)) : TICK_MS;
            wait_for(&w->news, r, wait_ms < 1 ? 1 : wait_ms < IDLE_MS ? wait_ms : IDLE_MS);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        w->execute(w->on, action);
        pthread_mutex_lock(&r->lock);
        const once_action done = *action; /* the machine uses it again */
        if (w == &r->workers[STORE] && r->options->waiting) r->waiting = ((const once_executor *)w->on)->waiting;
        once_pipe_step(r->pipe, action, now_ms(r));
        report(w, &done);
        if (!concerns_others(done.kind)) continue;
        tell_others(w);
        if (r->hands && w == &r->workers[STORE]) once_hands_wake(r->hands);
    }
    tell_others(w);
    pthread_cond_signal(&r->over);
    if (r->hands) once_hands_wake(r->hands);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* @locks: lock, but not while the hands work */
static void start_or_kill(running *r, once_action *action)
{
    pthread_mutex_unlock(&r->lock);
    if (action->kind == ONCE_ACT_START) once_hands_start(r->hands, action->items, action->n);
    else once_hands_kill(r->hands, action->items, action->n);
    pthread_mutex_lock(&r->lock);
    action->status = ONCE_OK;
    once_pipe_step(r->pipe, action, now_ms(r));
}

static void report_trouble(running *r, const once_item *item) /* @locks: lock */
{
    char why[sizeof((once_error *)0)->text];
    snprintf(why, sizeof why, "%.*s", (int)item->failure.len, item->failure.data ? item->failure.data : "");
    if (once__worth_saying(&r->effects_saying, why, now_ms(r)))
        once_log(ONCE_LOG_WARN, "effect_failed", "nothing external is started for a while: %s", why);
}

static void report_no_trouble(running *r) /* @locks: lock */
{
    if (r->effects_saying.times)
        once_log(ONCE_LOG_WARN, "effect_works", "works again, after %u failure%s", r->effects_saying.times,
                 r->effects_saying.times == 1 ? "" : "s");
    r->effects_saying = (once_saying){0};
}

/* It has not had its effect, and no number of tries ends that: for long nobody else would say it. */
static bool is_refused(const once_item *item)
{
    if (item->outcome == ONCE_RELEASE) return item->started && !item->told_to_end;
    return item->outcome == ONCE_RETRY && item->handler->retry.attempts == ONCE_ANY_ATTEMPTS;
}

/* One refusal among many successes is the handler's business. */
static bool is_down(const handler_state *h, int64_t now_ms)
{
    return h->refused >= 3 || h->worked_ms == 0 || now_ms - h->worked_ms >= 5000;
}

static void report_handler(running *r, const once_item *item) /* @locks: lock */
{
    handler_state *h = &r->handlers[item->handler - r->pipeline->spec->handlers];
    const once_bytes name = item->handler->type.len ? item->handler->type : item->handler->operation;
    const int64_t at_ms = now_ms(r);
    char why[sizeof((once_error *)0)->text];
    if (is_refused(item)) {
        h->refused++;
        snprintf(why, sizeof why, "%.*s", item->failure.len < 300 ? (int)item->failure.len : 300,
                 item->failure.data ? item->failure.data : "");
        if (!is_down(h, at_ms) || !once__worth_saying(&h->saying, why, at_ms)) return;
        h->said = true;
        once_log(ONCE_LOG_WARN, "handler_down",
                 "handler '%.*s' gives back what it is given, %u in a row, and its messages wait: %s", (int)name.len,
                 name.data, h->refused, why);
    } else if (item->started && item->outcome != ONCE_RETRY && item->outcome != ONCE_UNKNOWN &&
               item->outcome != ONCE_RELEASE) {
        if (h->said)
            once_log(ONCE_LOG_WARN, "handler_works", "handler '%.*s' works again, after %u in a row", (int)name.len,
                     name.data, h->refused);
        h->said = false;
        h->refused = 0;
        h->worked_ms = at_ms;
    }
}

static void take_back(running *r, once_item *const *items, size_t n) /* @locks: lock */
{
    const once_item *troubled = NULL;
    bool started = false;
    for (size_t i = 0; i < n; i++) {
        if (items[i]->trouble != ONCE_OK) troubled = items[i];
        started |= items[i]->started;
        if (items[i]->trouble == ONCE_OK && items[i]->handler) report_handler(r, items[i]);
    }
    if (troubled) report_trouble(r, troubled);
    else if (started) report_no_trouble(r);
    once_pipe_finished(r->pipe, items, n, now_ms(r));
    pthread_cond_signal(&r->workers[STORE].news);
}

static void *work_on_effects(void *arg) /* @locality: a thread of its own */
{
    running *r = arg;
    once_item *items[RETURNS_MAX];
    pthread_mutex_lock(&r->lock);
    while (!once_pipe_ended(r->pipe)) {
        heed_stop(r);
        once_action *action = once_pipe_effect_action(r->pipe, now_ms(r));
        if (action) {
            start_or_kill(r, action);
            continue;
        }
        const int64_t wait_ms = once_pipe_effect_wait_ms(r->pipe, now_ms(r));
        pthread_mutex_unlock(&r->lock);
        const size_t n = once_hands_wait(r->hands, wait_ms < IDLE_MS ? wait_ms : IDLE_MS, items, RETURNS_MAX);
        pthread_mutex_lock(&r->lock);
        if (n) take_back(r, items, n);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void on_store(void *on, once_action *action) { once_execute_store(on, action); }
static void on_source(void *on, once_action *action) { once_execute_source(on, action); }
static void on_acks(void *on, once_action *action) { once_execute_ack(on, action); }

/* --- the calling thread --- */

static void look_around(running *r) /* @locks: lock */
{
    heed_stop(r);
    const int64_t now_ns = once_env_mono_ns(r->pipeline->env);
    if (r->options->progress && now_ns - r->progress_ns >= (int64_t)PROGRESS_MS * 1000000) {
        const once_counts counts = *once_pipe_counts(r->pipe);
        char waiting[ONCE_WAITING_TEXT];
        once__waiting_text(&r->waiting, now_ns, waiting);
        r->progress_ns = now_ns;
        pthread_mutex_unlock(&r->lock); /* a slow terminal must not hold up the work */
        if (r->options->waiting) r->options->waiting(r->options->user, waiting);
        r->options->progress(r->options->user, &counts, r->from->ops->lag(r->from, 0), seconds(r));
        pthread_mutex_lock(&r->lock);
    }
}

/* Waits for the end; then nobody works any more. */
static void watch(running *r, bool stop)
{
    pthread_mutex_lock(&r->lock);
    if (stop) once_pipe_stop(r->pipe); /* the store's worker ends by itself */
    while (!once_pipe_ended(r->pipe)) {
        look_around(r);
        if (!once_pipe_ended(r->pipe)) wait_for(&r->over, r, TICK_MS);
    }
    pthread_mutex_unlock(&r->lock);
}

static int run_loop(running *r, once_executor *executor, once_error *err)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    r->workers[STORE] =
        (worker){.next = once_pipe_store_action, .execute = on_store, .on = executor, .works = "store_works"};
    r->workers[SOURCE] = (worker){.next = once_pipe_source_action,
                                  .execute = on_source,
                                  .on = r->from,
                                  .trouble = "source_failed",
                                  .works = "source_works"};
    r->workers[ACKS] = r->workers[SOURCE];
    r->workers[ACKS].next = once_pipe_ack_action;
    r->workers[ACKS].execute = on_acks;
    pthread_cond_init(&r->over, &monotonic);
    for (int i = 0; i < WORKERS; i++) {
        r->workers[i].r = r;
        pthread_cond_init(&r->workers[i].news, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);

    int begun = 0, rc = 0;
    while (begun < WORKERS && (rc = pthread_create(&r->workers[begun].thread, NULL, work, &r->workers[begun])) == 0)
        begun++;
    if (begun) {
        const int no_effects = r->hands ? pthread_create(&r->effects, NULL, work_on_effects, r) : 0;
        if (rc == 0) rc = no_effects;
        watch(r, rc != 0);
        if (r->hands && no_effects == 0) pthread_join(r->effects, NULL);
        while (begun > 0) pthread_join(r->workers[--begun].thread, NULL);
    }
    for (int i = 0; i < WORKERS; i++) pthread_cond_destroy(&r->workers[i].news);
    pthread_cond_destroy(&r->over);
    pthread_mutex_destroy(&r->lock);
    return rc == 0 ? once_pipe_status(r->pipe, err)
                   : once_fail(err, ONCE_E_NOMEM, "cannot start a thread: %s", once_errno_text(rc));
}

static int run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                       bool *failed, once_error *err)
{
    return once_effects_run(user, items, n, careful, blame, arena, failed, err);
}

/* What the store has to know before the first message and after the last. */
typedef struct around {
    once_pipeline *pipeline;
    once_parts *parts;
    const once_run_options *options;
    once_worker worker;
    once_gone gone;
    bool unclean;
    once_kept_names names;
    once_stats stats;
    once_store_time time;
} around;

/* Not to know it later is no reason not to run now. */
static void keep_known(const once_pipeline *pipeline, const once_known *before, const once_backend *store)
{
    char why[500];
    if (once__known_keep(pipeline, before, store, why, sizeof why)) return;
    once_log(ONCE_LOG_WARN, "store",
             "%s: when it is lost, a new one would be made without a word, and every message would run again; make "
             "that folder"
             " writable, or put 'store_id: \"%s\"' into the pipeline file",
             why, pipeline->met);
}

static int meet_store(around *b, once_error *err)
{
    once_known before;
    int rc = once__known_read(b->pipeline, &before, err);
    if (rc == ONCE_OK) rc = once__known_audit(b->pipeline, &before, b->parts->store, err);
    if (rc != ONCE_OK) return rc;
    if (b->pipeline->new_store) once__known_allow(&before);
    once__store_id(b->parts->store, b->pipeline->met);
    keep_known(b->pipeline, &before, b->parts->store);
    return ONCE_OK;
}

static int begin(void *user, once_error *err)
{
    around *b = user;
    size_t ended;
    const once_scope_check how = b->options->confirm_scope_change ? ONCE_SCOPE_CONFIRM : ONCE_SCOPE_KEEP;
    int rc = once__memory_check_scope(b->pipeline, b->parts->store, how, err);
    if (rc == ONCE_OK && b->parts->source->ops->seek)
        rc = once__memory_take_places(b->pipeline, b->parts, &b->names, err);
    if (rc == ONCE_OK && once__keeps(b->parts->store)) rc = meet_store(b, err);
    /* Before the records of those that are gone are dropped. */
    if (rc == ONCE_OK)
        rc = once__take_over(b->parts->store, b->pipeline->spec->consumer, &b->worker, &b->gone, &ended, err);
    if (rc == ONCE_OK) rc = once__memory_run_begins(b->pipeline, b->parts->store, &b->worker, &b->unclean, err);
    return rc == ONCE_OK ? b->parts->store->ops->time(b->parts->store, &b->time, err) : rc;
}

static int end(void *user, once_error *err)
{
    around *b = user;
    once_backend *store = b->parts->store;
    const int rc = store->ops->stats(store, b->pipeline->spec->consumer, &b->stats, err);
    if (rc != ONCE_OK) return rc;
    (void)ONCE_FAIL_AT(close_before);
    return once_worker_end(&b->worker, store, err);
}

static void warn_of_doubt(const around *b)
{
    char text[400];
    if (!b->time.doubted) return;
    once__clock_doubt(b->time.now_ms, once_env_wall_ms(b->pipeline->env), text, sizeof text);
    once_log(ONCE_LOG_WARN, "clock", "%s", text);
}

static int64_t longest_lease_ms(const once_spec *spec)
{
    int64_t longest_ms = 0;
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].lease_ms > longest_ms) longest_ms = spec->handlers[i].lease_ms;
    return longest_ms;
}

/* Whether what a worker has begun for its messages ends with its process. A command is made to die with it, but what
 * that has started is not; a transaction in another database is over when its connection is, or has committed already,
 * which is for its keys to tell. */
static bool is_contained(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (spec->handlers[i].bits & ONCE_EFFECT_OUTLIVES) return false;
    return true;
}

/* How a run ended that did not end well. */
typedef struct ending {
    uint64_t
        lost; /* messages that were read and are not known to be settled, and that the source does not deliver again */
    uint64_t unsettled; /* once_pipe_unsettled */
    uint64_t open;      /* messages that were read, are not settled, and that the source delivers again */
} ending;

/* Sent again they do no harm: what was settled after all is a duplicate then. */
static int tell_lost(const ending *end, int rc, once_error *why)
{
    if (!end->lost) return rc;
    const once_error before = *why;
    once_fail(
        why, rc == ONCE_OK ? ONCE_E_IO : rc,
        "%" PRIu64
        " message%s read from a source that cannot deliver again, and not known to be settled; send %s again%s%.300s",
        end->lost, end->lost == 1 ? " was" : "s were", end->lost == 1 ? "it" : "them", rc == ONCE_OK ? "" : ": ",
        rc == ONCE_OK ? "" : before.text);
    once_log(ONCE_LOG_ERROR, "lost", "%s", why->text);
    return why->status;
}

/* Whatever it is that does not work: nothing is damaged, and going on later is possible. */
static bool can_wait(int rc)
{
    const once_class class = once_status_class(rc);
    return class == ONCE_CLASS_RETRY || class == ONCE_CLASS_PAUSE;
}

/* Which messages are over when there was no space to go on, and which are not; and of which effects nobody will know,
 * whatever it was that ended it. */
static void tell_rest(const ending *end, int rc, const once_summary *summary, once_error *why)
{
    once_error before = *why;
    const uint64_t acked = summary->counts.acked, open = end->open, unsettled = end->unsettled;
    if (rc == ONCE_E_FULL && !end->lost)
        once_fail(why, rc, "%.*s; %" PRIu64 " message%s acked, %" PRIu64 " that %s read %s not%s",
                  unsettled ? 240 : 300, before.text, acked, acked == 1 ? " is" : "s are", open,
                  open == 1 ? "was" : "were", open == 1 ? "is" : "are",
                  open == 0   ? ""
                  : open == 1 ? " and comes again"
                              : " and come again");
    if (!unsettled) return;
    before = *why;
    once_fail(why, rc, "%.400s; of %" PRIu64 " effect%s begun the outcome could not be kept", before.text, unsettled,
              unsettled == 1 ? " that was" : "s that were");
}

/* Told to stop, and the server is away or refuses: what was not settled is the broker's or the store's, and comes
 * again. */
static int end_all_the_same(once_pipeline *pipeline, const ending *end, int rc, once_summary *summary,
                            const once_error *why)
{
    if (!can_wait(rc) || !atomic_load(&pipeline->stop) || end->lost) return rc;
    if (end->unsettled)
        once_log(ONCE_LOG_WARN, "stopped",
                 "%s; what was not acked comes again, but of %" PRIu64 " effect%s begun the outcome could not be kept",
                 why->text, end->unsettled, end->unsettled == 1 ? " that was" : "s that were");
    else once_log(ONCE_LOG_WARN, "stopped", "%s; nothing was lost: what was not acked comes again", why->text);
    summary->stopped = true;
    return ONCE_OK;
}

/* What was read, and whether anybody delivers it again. */
static ending how_it_ended(const once_pipe *pipe, const once_source *source)
{
    const uint64_t open = once_pipe_dropped(pipe);
    ending end = {.unsettled = once_pipe_unsettled(pipe)};
    if (source->ops->bits(source) & ONCE_SOURCE_REDELIVERS) end.open = open;
    else end.lost = open + (source->ops->held ? source->ops->held(source) : 0);
    return end;
}

/* The same sentence as that of `once check`. */
static int explain_denied(once_backend *store, int rc, once_error *err)
{
    once_error why;
    if (rc != ONCE_E_DENIED || !store->ops->inspect || store->ops->inspect(store, &why) != ONCE_E_DENIED) return rc;
    return once_fail(err, rc, "%s", why.text);
}

static int run_parts(once_pipeline *pipeline, once_parts *parts, const once_run_options *options, once_summary *summary,
                     ending *how, once_error *err)
{
    around b = {.pipeline = pipeline, .parts = parts, .options = options};
    once_worker_init(&b.worker, parts->store, pipeline->spec->consumer, once_env_random_u64(pipeline->env),
                     longest_lease_ms(pipeline->spec));
    b.worker.contained = is_contained(pipeline->spec);
    int rc = once__persist(pipeline, begin, &b, err);
    if (rc != ONCE_OK) return explain_denied(parts->store, rc, err);
    summary->clock_doubted = b.time.doubted;
    warn_of_doubt(&b);
    if (b.unclean)
        once_log(ONCE_LOG_WARN, "unclean", "the last run did not end cleanly; the first messages run one by one");

    running r = {.pipeline = pipeline,
                 .from = parts->source,
                 .hands = parts->hands,
                 .options = options,
                 .begun_ns = once_env_mono_ns(pipeline->env)};
    const unsigned bits = parts->source->ops->bits(parts->source);
    const once_pipe_options pipe_options = {
        .spec = pipeline->spec,
        .env = pipeline->env,
        .secret = parts->store->secret,
        .run = b.worker.run,
        .prepare = once_effect_prepare,
        .unclean = b.unclean,
        .renew_ms = RENEW_MS,
        .finds = parts->store->ops->find != NULL,
        .finite = (bits & ONCE_SOURCE_FINITE) != 0,
        .gives_once = !(bits & ONCE_SOURCE_REDELIVERS) && once__keeps(parts->store),
    };
    r.handlers = calloc(pipeline->spec->n_handlers + 1, sizeof *r.handlers);
    rc = r.handlers ? once_pipe_new(&pipe_options, &r.pipe, err) : once_no_memory(err, "for a pipeline");
    if (rc != ONCE_OK) {
        free(r.handlers);
        return rc;
    }

    once_executor executor;
    once_executor_init(&executor, parts->store, pipeline->spec->consumer, run_effects, parts->effects);
    executor.keying = parts->keying;
    executor.worker = &b.worker;
    executor.gone = b.gone;
    executor.gone_at_ns = once_env_mono_ns(pipeline->env);
    executor.shows_waiting = options->waiting != NULL;
    executor.newest_most_ms = b.time.now_ms + DAY_MS;
    executor.cursor = once_spec_keeps_cursor(pipeline->spec) ? b.names.cursor : NULL;
    executor.files = b.names.files;
    executor.by_coordinates = once__uses_coordinates(pipeline->spec);
    executor.files_seen = b.names.files_seen;
    (void)ONCE_FAIL_AT(open_after);
    pipeline->working = true;
    if (options->progress) once_log_clears_line();
    rc = run_loop(&r, &executor, err);
    summary->counts = *once_pipe_counts(r.pipe);
    summary->seconds = seconds(&r);
    summary->stopped = r.stop_seen;
    *how = how_it_ended(r.pipe, parts->source);
    summary->lost = how->lost;
    summary->store_dead = summary->counts.dead; /* of this run, as long as the store was not asked */
    summary->store_unknown = summary->counts.unknown + how->unsettled;
    once_executor_release(&executor);
    once_pipe_free(r.pipe);
    free(r.handlers);

    if (rc == ONCE_OK) rc = once__persist(pipeline, end, &b, err);
    if (rc != ONCE_OK) return rc;
    summary->store_dead = b.stats.dead;
    summary->store_unknown = b.stats.unknown;
    return ONCE_OK;
}

int once_pipeline_run(once_pipeline *pipeline, const once_run_options *options, once_summary *summary, once_error *err)
{
    once_run_options asked;
    once_parts parts;
    once_error why = {0};
    if (summary) *summary = (once_summary){0};
    if (!pipeline || !summary)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_run needs a pipeline and a place for the summary");
    int rc = once_sized_read("once_run_options", options, &asked, sizeof asked, err);
    if (rc != ONCE_OK) return rc;
    (void)ONCE_FAIL_AT(open_before);
    pipeline->running = true;
    pipeline->working = false;
    pipeline->met[0] = 0;
    pipeline->new_store = asked.new_store;
    ending how = {0};
    rc = once__parts_open(pipeline, true, &parts, &why);
    if (rc == ONCE_OK) {
        rc = run_parts(pipeline, &parts, &asked, summary, &how, &why);
        once__parts_close(&parts);
        rc = once__known_lost(pipeline, rc, &why);
        rc = tell_lost(&how, rc, &why);
    }
    rc = end_all_the_same(pipeline, &how, rc, summary, &why);
    pipeline->running = pipeline->working = false;
    if (rc == ONCE_OK) return rc;
    summary->stopped |= atomic_load(&pipeline->stop);
    tell_rest(&how, rc, summary, &why);
    if (err) *err = why;
    return rc;
}

void once_pipeline_stop(once_pipeline *pipeline)
{
    if (pipeline) atomic_store(&pipeline->stop, true);
}
