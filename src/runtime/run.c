/* Starts, observes, stops and joins a run (runtime/run.h); opens and closes its parts. */
#include "runtime/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "base/usage.h"
#include "runtime/known_store.h"

#include "base/banned.h"

#define PROGRESS_MS 200
#define RENEW_MS (ONCE_WORKER_LEASE_MS / 3)
#define DAY_MS INT64_C(86400000)

_Static_assert(sizeof((once_snapshot *)0)->waiting == ONCE_WAITING_TEXT, "a snapshot has room for the whole text");

once_run *once__run_new(once_pipeline *pipeline)
{
    once_run *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->pipeline = pipeline;
    r->left = -1;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    const bool has_lock = pthread_mutex_init(&r->lock, NULL) == 0;
    const bool has_ended = has_lock && pthread_cond_init(&r->ended, &monotonic) == 0;
    pthread_condattr_destroy(&monotonic);
    if (has_ended) return r;
    if (has_lock) pthread_mutex_destroy(&r->lock);
    free(r);
    return NULL;
}

static bool is_forked(const once_run *r)
{
    const pid_t pid = atomic_load(&r->pid);
    return pid && pid != getpid();
}

int once__run_refuse_forked(const once_run *r, once_error *err)
{
    if (!is_forked(r)) return ONCE_OK;
    return once_fail(err, ONCE_E_USAGE, "the pipeline was started before a fork; load it again in this process");
}

/* --- begin --- */

static int run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                       bool *failed, once_error *err)
{
    return once_effects_run(user, items, n, careful, blame, arena, failed, err);
}

static void make_executor(once_run *r)
{
    const once_spec *spec = r->pipeline->spec;
    once_executor *x = &r->executor;
    once_executor_init(x, r->parts.store, spec->consumer, run_effects, r->parts.effects);
    x->keying = r->parts.keying;
    x->worker = &r->session.worker;
    x->gone = r->session.gone;
    x->gone_at_ns = once_env_mono_ns(r->pipeline->env);
    x->newest_limit_ms = r->session.time.now_ms + DAY_MS;
    x->source = r->parts.source;
    x->facts = &r->session.facts.base;
}

static int make_machine(once_run *r, once_machine **out, once_error *err)
{
    assert(!r->handlers);
    const unsigned bits = r->parts.source->ops->bits(r->parts.source);
    const once_machine_options options = {
        .spec = r->pipeline->spec,
        .env = r->pipeline->env,
        .secret = r->parts.store->secret,
        .run = r->session.worker.run,
        .prepare = once_effect_prepare,
        .unclean = r->session.unclean,
        .renew_ms = RENEW_MS,
        .tells_absent = r->parts.store->ops->absent != NULL,
        .finds = r->parts.store->ops->find != NULL,
        .source = bits,
        .beat_ms = r->parts.source->ops->beat_ms ? r->parts.source->ops->beat_ms(r->parts.source) : 0,
        .ack_pause_ms = r->parts.source->ops->ack_pause_ms,
        .accepts_at_stop = !(bits & ONCE_SOURCE_REDELIVERS) && once__store_lasts(r->parts.store),
    };
    r->handlers = calloc(r->pipeline->spec->n_handlers + 1, sizeof *r->handlers);
    const int rc = r->handlers ? once_machine_new(&options, out, err) : once_no_memory(err, "for a pipeline");
    if (rc == ONCE_OK) return rc;
    free(r->handlers);
    r->handlers = NULL;
    return rc;
}

/* Publishes the machine to snapshots, and the store to operators. */
static void publish(once_run *r, once_machine *machine)
{
    once_fair_lock_take(&r->pipeline->store_lock);
    assert(!r->pipeline->run_store);
    r->pipeline->run_store = r->parts.store;
    r->pipeline->store_generation++;
    once_fair_lock_leave(&r->pipeline->store_lock);
    pthread_mutex_lock(&r->lock);
    r->machine = machine;
    r->source = r->parts.source;
    r->begun_ns = once_env_mono_ns(r->pipeline->env);
    pthread_mutex_unlock(&r->lock);
}

static int open_parts(once_run *r, once_error *err)
{
    assert(r->state == ONCE_RUN_OPENING);
    once_machine *machine = NULL;
    int rc = once__parts_open(r->pipeline, &r->options, &r->parts, err);
    if (rc != ONCE_OK) return rc;
    rc = once__run_begins(r, err);
    if (rc == ONCE_OK) rc = make_machine(r, &machine, err);
    if (rc != ONCE_OK) {
        once__parts_close(&r->parts);
        return rc;
    }
    make_executor(r);
    (void)ONCE_FAIL_AT(open_after);
    r->pipeline->in_flight = true;
    publish(r, machine);
    return ONCE_OK;
}

/* --- end --- */

/* Takes machine, source and store back, and keeps the last counts. */
static once_machine *unpublish(once_run *r)
{
    uint64_t streams, paused;
    once_fair_lock_take(&r->pipeline->store_lock);
    assert(r->pipeline->run_store == r->parts.store);
    r->pipeline->run_store = NULL;
    once_fair_lock_leave(&r->pipeline->store_lock);
    pthread_mutex_lock(&r->lock);
    once_machine *machine = r->machine;
    assert(machine && r->source);
    r->summary.counts = *once_machine_counts(machine);
    r->summary.seconds = (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9;
    r->summary.stopped = r->stop_seen;
    r->timings = *once_machine_timings(machine);
    r->left = once__run_left(r, &streams, &paused);
    r->waiting.n = 0;
    r->machine = NULL;
    r->source = NULL;
    pthread_mutex_unlock(&r->lock);
    return machine;
}

/* Ends the run: its summary, its status, and the state ENDED. */
static int conclude(once_run *r, const once_run_ending *how, int rc, once_error *why)
{
    once_summary summary = r->summary;
    rc = once__run_conclude(r->pipeline, how, rc, &summary, why);
    r->pipeline->in_flight = false;
    pthread_mutex_lock(&r->lock);
    assert(r->state != ONCE_RUN_NONE && r->state != ONCE_RUN_ENDED);
    r->summary = summary;
    r->status = rc;
    if (rc != ONCE_OK) r->error = *why;
    /* The caller of start gets the error, so there is nothing to join, unless a thread has begun to. */
    if (rc != ONCE_OK && !r->has_thread && r->join == ONCE_JOIN_OPEN) r->join = ONCE_JOIN_OVER;
    r->state = ONCE_RUN_ENDED;
    pthread_cond_broadcast(&r->ended);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

/* All threads have ended. */
static int close_parts(once_run *r, int rc, once_error *why)
{
    assert(!r->has_store_lock && !r->executor.in_tx);
    once_machine *machine = unpublish(r);
    const once_run_ending how = once__run_ending(machine, r->parts.source);
    r->summary.lost = how.lost;
    r->summary.store_dead = r->summary.counts.dead; /* of this run, until the store is asked */
    r->summary.store_unknown = r->summary.counts.unknown + how.unsettled;
    once_executor_release(&r->executor);
    once_machine_free(machine);
    free(r->handlers);
    r->handlers = NULL;
    if (rc == ONCE_OK || how.clean) {
        once_error other; /* the first error counts */
        const int ended = once__run_ends(r, rc == ONCE_OK ? why : &other);
        if (ended == ONCE_OK) r->summary.store_dead = r->session.stats.dead;
        if (ended == ONCE_OK) r->summary.store_unknown = r->session.stats.unknown;
        if (rc == ONCE_OK) rc = ended;
    }
    once__parts_close(&r->parts);
    return conclude(r, &how, rc, why);
}

static void *run_main(void *arg) /* @locality: the run's own thread */
{
    once_run *r = arg;
    once_error why = {0};
    const int rc = once__run_threads(r, &why);
    (void)close_parts(r, rc, &why);
    return NULL;
}

/* --- start, join --- */

/* A thread that holds store_lock must not wait for a run, which needs the lock to begin and to end. */
static int refuse(once_run *r, once_error *err)
{
    const int rc = once__run_refuse_forked(r, err);
    if (rc != ONCE_OK || !once_fair_lock_is_mine(&r->pipeline->store_lock)) return rc;
    return once_fail(err, ONCE_E_USAGE,
                     "a run can be neither started nor joined from a callback of a function that is using its store");
}

/* Reserves the run for this caller. `join`: BEGUN if the caller joins it itself. */
static int reserve(once_run *r, const once_run_options *options, once_run_join join, once_error *err)
{
    const int rc = refuse(r, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&r->lock);
    const bool runs = r->state != ONCE_RUN_NONE && r->state != ONCE_RUN_ENDED;
    const once_run_join last = r->state == ONCE_RUN_NONE ? ONCE_JOIN_OVER : r->join;
    if (!runs && last == ONCE_JOIN_OVER) {
        r->state = ONCE_RUN_OPENING;
        r->join = join;
        r->stop_seen = r->snapshot_wanted = r->has_thread = false;
        r->options = *options;
        r->summary = (once_summary){0};
        r->timings = (once_timings){0};
        r->session = (once_run_session){0};
        r->paused = (once_paused){0};
        r->waiting = (once_waiting_for){0};
        r->fetch_pause = (once_fetch_pause){0};
        r->stuck_said = 0;
        r->stuck_look_ms = 0;
        r->left = -1;
        r->begun_ns = 0;
        r->status = ONCE_OK;
        atomic_store(&r->pid, getpid());
    }
    pthread_mutex_unlock(&r->lock);
    if (runs) return once_fail(err, ONCE_E_USAGE, "the pipeline is already running");
    if (last == ONCE_JOIN_OPEN) return once_fail(err, ONCE_E_USAGE, "the last run of the pipeline was not joined");
    if (last == ONCE_JOIN_BEGUN)
        return once_fail(err, ONCE_E_USAGE, "another thread is joining the last run of the pipeline");
    return ONCE_OK;
}

/* The new thread waits for the lock, so that has_thread is set before it works. */
static int begin_thread(once_run *r)
{
    assert(r->machine && !r->has_thread);
    pthread_mutex_lock(&r->lock);
    const int failed = pthread_create(&r->thread, NULL, run_main, r);
    r->has_thread = failed == 0;
    if (!failed) r->state = ONCE_RUN_WORKING;
    pthread_mutex_unlock(&r->lock);
    return failed;
}

/* After reserve(). If the run cannot begin, this is its end, and its status is returned: ONCE_OK, too, when it was
 * stopped while it waited for a server. */
static int begin(once_run *r, once_error *err)
{
    once_error why = {0};
    (void)ONCE_FAIL_AT(open_before);
    r->pipeline->in_flight = false;
    r->pipeline->store_id[0] = 0;
    int rc = open_parts(r, &why);
    r->summary.clock_doubted = r->session.time.doubted;
    if (rc != ONCE_OK) {
        rc = conclude(r, &(once_run_ending){0}, rc, &why);
    } else {
        const int failed = begin_thread(r);
        if (!failed) return ONCE_OK;
        once_fail(&why, ONCE_E_NOMEM, "cannot start a thread: %s", once_errno_text(failed));
        rc = close_parts(r, ONCE_E_NOMEM, &why);
    }
    if (rc != ONCE_OK && err) *err = why;
    return rc;
}

/* @locality: the thread that set ONCE_JOIN_BEGUN */
static int join(once_run *r, once_summary *summary, once_error *err)
{
    pthread_mutex_lock(&r->lock);
    assert(r->join == ONCE_JOIN_BEGUN && r->state != ONCE_RUN_NONE);
    while (r->state != ONCE_RUN_ENDED) pthread_cond_wait(&r->ended, &r->lock);
    const bool has_thread = r->has_thread;
    const pthread_t thread = r->thread;
    r->has_thread = false;
    if (summary) *summary = r->summary;
    if (r->status != ONCE_OK && err) *err = r->error;
    const int rc = r->status;
    pthread_mutex_unlock(&r->lock);
    if (has_thread) pthread_join(thread, NULL);
    pthread_mutex_lock(&r->lock);
    r->join = ONCE_JOIN_OVER;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

bool once__run_release(once_run *r)
{
    if (!r) return true;
    if (is_forked(r)) return false; /* the lock may stay locked, and the store is the parent's */
    pthread_mutex_lock(&r->lock);
    const bool mine = r->state != ONCE_RUN_NONE && r->join == ONCE_JOIN_OPEN;
    if (mine) r->join = ONCE_JOIN_BEGUN;
    pthread_mutex_unlock(&r->lock);
    if (mine) {
        once_pipeline_stop(r->pipeline);
        (void)join(r, NULL, NULL);
    }
    assert(!r->has_thread && !r->machine);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
    free(r);
    return true;
}

/* --- public functions --- */

int once_pipeline_start(once_pipeline *pipeline, const once_run_options *options, once_error *err)
{
    once_run_options asked;
    if (!pipeline) return once_fail(err, ONCE_E_USAGE, "once_pipeline_start needs a pipeline");
    int rc = once_sized_read("once_run_options", options, &asked, sizeof asked, err);
    if (rc != ONCE_OK) return rc;
    if (asked.progress || asked.waiting)
        return once_fail(err, ONCE_E_USAGE,
                         "once_pipeline_start does not call 'progress' and 'waiting'; use once_pipeline_snapshot, or "
                         "once_pipeline_run");
    once_run *r = pipeline->run;
    rc = reserve(r, &asked, ONCE_JOIN_OPEN, err);
    return rc == ONCE_OK ? begin(r, err) : rc;
}

static void fill(once_run *r, once_snapshot *out) /* @locks: lock */
{
    assert(!r->machine == !r->source && r->state <= ONCE_RUN_ENDED);
    const int64_t now_ns = once_env_mono_ns(r->pipeline->env);
    r->snapshot_wanted = true;
    *out = (once_snapshot){.state = r->state, .left = r->left, .seconds = r->summary.seconds, .status = r->status};
    out->paused = r->paused.n;
    once__paused_text(&r->paused, r->machine ? once_env_wall_ms(r->pipeline->env) : ONCE_NO_TIME, out->paused_text,
                      sizeof out->paused_text);
    once__waiting_text(&r->waiting, now_ns, out->waiting);
    if (!r->machine) {
        out->counts = r->summary.counts;
        out->timings = r->timings;
        return;
    }
    if (out->paused) memcpy(out->waiting, out->paused_text, sizeof out->waiting);
    if (!out->waiting[0]) once__fetch_pause_text(r->machine, out->waiting);
    out->counts = *once_machine_counts(r->machine);
    out->timings = *once_machine_timings(r->machine);
    out->open = once_machine_open(r->machine);
    out->left = once__run_left(r, &out->streams, &out->streams_paused);
    out->seconds = (double)(now_ns - r->begun_ns) / 1e9;
}

int once_pipeline_snapshot(once_pipeline *pipeline, once_snapshot *out, once_error *err)
{
    once_snapshot now;
    if (!pipeline || !out)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_snapshot needs a pipeline and a place for the snapshot");
    once_run *r = pipeline->run;
    const int rc = once__run_refuse_forked(r, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&r->lock);
    fill(r, &now);
    pthread_mutex_unlock(&r->lock);
    return once_sized_write("once_snapshot", &now, out, sizeof now, err);
}

void once_pipeline_stop(once_pipeline *pipeline)
{
    if (pipeline) atomic_store(&pipeline->stop, true);
}

int once_pipeline_join(once_pipeline *pipeline, once_summary *summary, once_error *err)
{
    if (summary) *summary = (once_summary){0};
    if (!pipeline) return once_fail(err, ONCE_E_USAGE, "once_pipeline_join needs a pipeline");
    once_run *r = pipeline->run;
    const int rc = refuse(r, err);
    if (rc != ONCE_OK) return rc;
    pthread_mutex_lock(&r->lock);
    const bool none = r->state == ONCE_RUN_NONE;
    const once_run_join join_was = r->join;
    if (!none && join_was == ONCE_JOIN_OPEN) r->join = ONCE_JOIN_BEGUN;
    pthread_mutex_unlock(&r->lock);
    if (none) return once_fail(err, ONCE_E_USAGE, "the pipeline was not started");
    if (join_was == ONCE_JOIN_BEGUN)
        return once_fail(err, ONCE_E_USAGE, "another thread is joining the run of the pipeline");
    if (join_was == ONCE_JOIN_OVER)
        return once_fail(err, ONCE_E_USAGE, "the run of the pipeline was already joined, or could not start");
    return join(r, summary, err);
}

/* Waits for its end, at most for this long. Returns whether it has ended. */
static bool wait_for_end(once_run *r, int64_t ms)
{
    assert(ms > 0);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&r->lock);
    int rc = 0;
    while (r->state != ONCE_RUN_ENDED && rc == 0) rc = pthread_cond_timedwait(&r->ended, &r->lock, &until);
    const bool ended = r->state == ONCE_RUN_ENDED;
    pthread_mutex_unlock(&r->lock);
    return ended;
}

/* Reports progress from snapshots, in the thread that waits for the run. */
static void show_progress(once_run *r, const once_run_options *options)
{
    assert(options->progress);
    once_log_clears_line();
    do {
        once_snapshot now = {.size = sizeof now};
        pthread_mutex_lock(&r->lock);
        fill(r, &now);
        pthread_mutex_unlock(&r->lock);
        if (now.state == ONCE_RUN_ENDED) return;
        if (options->waiting) options->waiting(options->user, now.waiting);
        options->progress(options->user, &now.counts, now.left, now.seconds);
    } while (!wait_for_end(r, PROGRESS_MS));
}

int once_pipeline_run(once_pipeline *pipeline, const once_run_options *options, once_summary *summary, once_error *err)
{
    once_run_options asked;
    if (summary) *summary = (once_summary){0};
    if (!pipeline || !summary)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_run needs a pipeline and a place for the summary");
    int rc = once_sized_read("once_run_options", options, &asked, sizeof asked, err);
    if (rc != ONCE_OK) return rc;
    once_run *r = pipeline->run;
    rc = reserve(r, &asked, ONCE_JOIN_BEGUN, err);
    if (rc != ONCE_OK) return rc;
    if (begin(r, NULL) == ONCE_OK && asked.progress) show_progress(r, &asked);
    return join(r, summary, err);
}
