/* The threads of a run (runtime/run.h lists them). The machine is guarded by the lock: a thread takes an action,
 * carries it out without the lock, and reports back. One thread carries out a whole transaction, so that nothing passes
 * between threads inside of it. */
#include <assert.h>
#include <pthread.h>
#include <time.h>

#include "base/errno_text.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "runtime/run.h"

#include "base/banned.h"

#define TICK_MS 50   /* how soon a stop is noticed */
#define IDLE_MS 1000 /* how long a thread sleeps at most */
#define RETURNS_MAX 1024

/* Who is to be woken is noted, and woken when the lock is free: a thread that is woken while it is held would only wait
 * for it, and where there are few processors, the holder would be interrupted for that. */
static void unlock(once_run *r) /* @locks: lock, released */
{
    const unsigned threads = r->wake_threads;
    const bool runner = r->wake_runner && r->parts.runner;
    r->wake_threads = 0;
    r->wake_runner = false;
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < ONCE_RUN_THREADS; i++)
        if (threads & (1u << i)) pthread_cond_signal(&r->threads[i].wakeup);
    if (runner) once_runner_wake(r->parts.runner);
}

/* Sleeps; not when somebody is to be woken, because that may have made something to do. */
static void wait_for(pthread_cond_t *wakeup, once_run *r, int64_t ms) /* @locks: lock, released meanwhile */
{
    if (r->wake_threads || r->wake_runner) {
        unlock(r);
        pthread_mutex_lock(&r->lock);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(wakeup, &r->lock, &until);
}

/* Passes a stop on to the machine, once. The first thread that notices it does so. */
static void notice_stop(once_run *r) /* @locks: lock */
{
    if (r->stop_seen || !atomic_load(&r->pipeline->stop)) return;
    assert(r->machine && r->source && r->state == ONCE_RUN_WORKING);
    r->stop_seen = true;
    r->state = ONCE_RUN_DRAINING;
    (void)ONCE_FAIL_AT(drain_before);
    once_log(ONCE_LOG_INFO, "drain", "stopping; finishing what is in flight");
    once_machine_stop(r->machine);
    atomic_store(&r->source->drained_ms, once_env_boot_ms(r->pipeline->env) + r->pipeline->spec->drain_ms);
    r->source->ops->wake(r->source);
    r->wake_threads = (1u << ONCE_RUN_THREADS) - 1;
    r->wake_runner = true;
}

/* A source that waits for messages of some streams does not know that it may give those of others again. */
static void wake_fetch(once_run *r) /* @locks: lock */
{
    if (once_machine_wakes_fetch(r->machine, once__run_now_ms(r))) r->source->ops->wake(r->source);
}

/* There may be something for this thread. While acks wait for more that they can cover, theirs sleeps on: it would be
 * woken for every few messages, and find nothing. */
static void wake(once_run *r, int i) /* @locks: lock */
{
    const int64_t until_ms = r->threads[i].until_ms;
    if (i == ONCE_THREAD_ACKS && once_machine_acks_at_ms(r->machine, once__run_now_ms(r)) >= until_ms) return;
    r->wake_threads |= 1u << i;
}

static void wake_others(const once_run_thread *w) /* @locks: lock */
{
    for (int i = 0; i < ONCE_RUN_THREADS; i++)
        if (w != &w->r->threads[i]) wake(w->r, i);
}

/* How long this thread has nothing to do. The source's thread looks often, to notice a stop. */
static int64_t wait_ms_of(const once_run_thread *w) /* @locks: lock */
{
    const once_run *r = w->r;
    if (w == &r->threads[ONCE_THREAD_STORE]) return once_machine_wait_ms(r->machine, once__run_now_ms(r));
    return w == &r->threads[ONCE_THREAD_ACKS] ? once_machine_source_wait_ms(r->machine, once__run_now_ms(r)) : TICK_MS;
}

static void *thread_main(void *arg) /* @locality: each thread of threads[] */
{
    once_run_thread *w = arg;
    once_run *r = w->r;
    const bool on_store = w == &r->threads[ONCE_THREAD_STORE];
    pthread_mutex_lock(&r->lock);
    while (!once_machine_ended(r->machine)) {
        notice_stop(r);
        once_action *action = w->next(r->machine, once__run_now_ms(r));
        wake_fetch(r);
        if (once_machine_wakes_acks(r->machine)) r->wake_threads |= 1u << ONCE_THREAD_ACKS;
        if (!action) {
            if (once_machine_ended(r->machine)) break;
            const int64_t wait_ms = wait_ms_of(w);
            const int64_t sleep_ms = wait_ms < 1 ? 1 : wait_ms < IDLE_MS ? wait_ms : IDLE_MS;
            w->until_ms = once__run_now_ms(r) + sleep_ms;
            wait_for(&w->wakeup, r, sleep_ms);
            continue;
        }
        if (on_store) r->executor.shows_waiting = r->snapshot_wanted;
        if (on_store && r->executor.paused.version != r->paused.version) r->executor.paused = r->paused;
        unlock(r);
        w->execute(r, action);
        pthread_mutex_lock(&r->lock);
        const once_action done = *action; /* the machine reuses the action */
        if (on_store && r->snapshot_wanted) r->waiting = r->executor.waiting;
        once__run_report_news(r, &done);
        once_machine_step(r->machine, action, once__run_now_ms(r));
        once__run_report(w, &done);
        once__run_report_held(r);
        once__log_fetch_pause(&r->fetch_pause, r->machine, r->pipeline->spec, once__run_now_ms(r));
        if (!once__run_concerns_others(done.kind)) continue;
        if (done.kind == ONCE_ACT_BEGIN && done.status == ONCE_OK) { /* what is in the work makes room to fetch */
            wake(r, ONCE_THREAD_SOURCE);
            continue;
        }
        wake_others(w);
        r->wake_runner |= on_store;
    }
    wake_others(w);
    r->wake_runner = true;
    pthread_cond_signal(&r->machine_ended);
    unlock(r);
    return NULL;
}

/* @locks: lock, released while the runner works */
static void start_or_kill(once_run *r, once_action *action)
{
    assert(r->parts.runner && action->n > 0);
    unlock(r);
    if (action->kind == ONCE_ACT_START) once_runner_start(r->parts.runner, action->items, action->n);
    else once_runner_kill(r->parts.runner, action->items, action->n);
    pthread_mutex_lock(&r->lock);
    action->status = ONCE_OK;
    once_machine_step(r->machine, action, once__run_now_ms(r));
}

/* Whether all of them only wait to be settled. Otherwise there may be something to ack or to fetch, too. */
static bool only_settled(once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (items[i]->unclaimed || items[i]->run_failure != ONCE_OK) return false;
    return true;
}

static void collect_outcomes(once_run *r, once_item *const *items, size_t n) /* @locks: lock */
{
    assert(n > 0 && n <= RETURNS_MAX);
    const bool for_store = only_settled(items, n);
    once__run_report_effects(r, items, n);
    once_machine_finished(r->machine, items, n, once__run_now_ms(r));
    once__run_report_held(r);
    wake_fetch(r);
    for (int i = 0; i < ONCE_RUN_THREADS; i++)
        if (!for_store || i == ONCE_THREAD_STORE) wake(r, i);
}

static void *effects_main(void *arg) /* @locality: the effects' thread */
{
    once_run *r = arg;
    once_item *items[RETURNS_MAX];
    pthread_mutex_lock(&r->lock);
    while (!once_machine_ended(r->machine)) {
        notice_stop(r);
        once_action *action = once_machine_effect_action(r->machine, once__run_now_ms(r));
        if (action) start_or_kill(r, action);
        /* There may be more to start. What has ended meanwhile goes to the store first. */
        const int64_t wait_ms = action ? 0 : once_machine_effect_wait_ms(r->machine, once__run_now_ms(r));
        unlock(r);
        const size_t n = once_runner_wait(r->parts.runner, wait_ms < IDLE_MS ? wait_ms : IDLE_MS, items, RETURNS_MAX);
        pthread_mutex_lock(&r->lock);
        if (n) collect_outcomes(r, items, n);
    }
    unlock(r);
    return NULL;
}

/* Holds store_lock for a whole transaction, or for one action outside of one. Operators that use the same store come in
 * between. */
static void work_on_store(once_run *r, once_action *action) /* @locality: the store's thread */
{
    assert(r->has_store_lock == r->executor.in_tx); /* R2 */
    if (!r->has_store_lock) {
        once_fair_lock_take(&r->pipeline->store_lock);
        r->has_store_lock = true;
    }
    once_execute_store(&r->executor, action);
    if (r->executor.in_tx) return;
    r->has_store_lock = false;
    once_fair_lock_leave(&r->pipeline->store_lock);
}

static void work_on_source(once_run *r, once_action *action) { once_execute_source(r->parts.source, action); }

static void work_on_acks(once_run *r, once_action *action)
{
    const bool release = action->kind == ONCE_ACT_RELEASE;
    char name[ONCE_STREAM_NAME];
    if (release)
        once__stream_name(r->parts.source, action->stream, name); /* not afterwards: it may be another worker's */
    once_execute_ack(r->parts.source, action);
    if (release) once__run_report_release(name, action->status);
}

/* --- the run's own thread --- */

/* Waits until the machine has ended. */
static void wait_for_end(once_run *r, bool stop)
{
    pthread_mutex_lock(&r->lock);
    if (stop) once_machine_stop(r->machine); /* the threads that did start then end */
    while (!once_machine_ended(r->machine)) {
        notice_stop(r);
        if (!once_machine_ended(r->machine)) wait_for(&r->machine_ended, r, TICK_MS);
        once__run_report_stuck(r);
    }
    unlock(r);
}

static void init_threads(once_run *r)
{
    static const once_run_thread threads[ONCE_RUN_THREADS] = {
        [ONCE_THREAD_STORE] = {.next = once_machine_store_action,
                               .execute = work_on_store,
                               .failure = {.works = "store_works"}},
        [ONCE_THREAD_ACKS] = {.next = once_machine_ack_action,
                              .execute = work_on_acks,
                              .failure = {.event = "source_failed", .works = "source_works"}},
        [ONCE_THREAD_SOURCE] = {.next = once_machine_source_action,
                                .execute = work_on_source,
                                .failure = {.event = "source_failed", .works = "source_works"}},
    };
    r->seeks = (once_run_failure){.event = "source_failed", .works = "source_works"};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->machine_ended, &monotonic);
    for (int i = 0; i < ONCE_RUN_THREADS; i++) {
        r->threads[i] = threads[i];
        r->threads[i].r = r;
        pthread_cond_init(&r->threads[i].wakeup, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
}

int once__run_threads(once_run *r, once_error *err)
{
    assert(r->machine && r->parts.store && r->parts.source);
    init_threads(r);
    int begun = 0, rc = 0;
    while (begun < ONCE_RUN_THREADS &&
           (rc = pthread_create(&r->threads[begun].thread, NULL, thread_main, &r->threads[begun])) == 0)
        begun++;
    if (begun) {
        const int no_effects = r->parts.runner ? pthread_create(&r->effects, NULL, effects_main, r) : 0;
        if (rc == 0) rc = no_effects;
        wait_for_end(r, rc != 0);
        if (r->parts.runner && no_effects == 0) pthread_join(r->effects, NULL);
        while (begun > 0) pthread_join(r->threads[--begun].thread, NULL);
    }
    for (int i = 0; i < ONCE_RUN_THREADS; i++) pthread_cond_destroy(&r->threads[i].wakeup);
    pthread_cond_destroy(&r->machine_ended);
    assert(!r->has_store_lock); /* the machine ends with no transaction open */
    return rc == 0 ? once_machine_status(r->machine, err)
                   : once_fail(err, ONCE_E_NOMEM, "cannot start a thread: %s", once_errno_text(rc));
}
