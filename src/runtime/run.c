/* Runs the pipeline machine with threads: one carries out the actions on the store, one those on the source, and the calling
 * thread owns the machine. Each worker has at most one action, so the mailboxes are single slots. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "core/pipeline.h"
#include "runtime/executor.h"
#include "runtime/runtime.h"

#include "base/banned.h"

#define TICK_MS 50      /* how soon a stop is noticed when nothing else happens */
#define PROGRESS_MS 200

/* --- workers --- */

typedef struct shop shop;

typedef struct worker {
    shop *shop;
    pthread_t thread;
    pthread_cond_t has_work;
    once_action *todo;   /* given, not begun; under shop->lock */
    once_action *doing;  /* begun */
    once_action *done;   /* finished, not collected */
    bool quit;
    void (*execute)(void *on, once_action *action);
    void *on;
} worker;

struct shop {
    pthread_mutex_t lock;
    pthread_cond_t has_news; /* a worker finished something */
    worker store, source;
};

static void *work(void *arg) /* @locality: a worker's own thread */
{
    worker *w = arg;
    pthread_mutex_lock(&w->shop->lock);
    for (;;) {
        while (!w->todo && !w->quit) pthread_cond_wait(&w->has_work, &w->shop->lock);
        if (!w->todo) break;
        w->doing = w->todo;
        w->todo = NULL;
        pthread_mutex_unlock(&w->shop->lock);
        w->execute(w->on, w->doing);
        pthread_mutex_lock(&w->shop->lock);
        w->done = w->doing;
        w->doing = NULL;
        pthread_cond_signal(&w->shop->has_news);
    }
    pthread_mutex_unlock(&w->shop->lock);
    return NULL;
}

static void on_store(void *on, once_action *action) { once_execute_store(on, action); }
static void on_source(void *on, once_action *action) { once_execute_source(on, action); }

static int worker_start(worker *w, shop *s, void (*execute)(void *, once_action *), void *on)
{
    w->shop = s;
    w->execute = execute;
    w->on = on;
    pthread_cond_init(&w->has_work, NULL);
    return pthread_create(&w->thread, NULL, work, w);
}

static void worker_end(worker *w)
{
    pthread_mutex_lock(&w->shop->lock);
    w->quit = true;
    pthread_cond_signal(&w->has_work);
    pthread_mutex_unlock(&w->shop->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->has_work);
}

static bool worker_idle(const worker *w) { return !w->todo && !w->doing && !w->done; } /* @locks: shop->lock */

/* --- the loop --- */

typedef struct running {
    once_pipeline *pipeline;
    once_pipe *pipe;
    shop shop;
    once_source *source;
    const once_run_options *options;
    int64_t begun_ns, progress_ns;
    bool stop_seen;
} running;

static int64_t now_ms(const running *r) { return once_env_mono_ns(r->pipeline->env) / 1000000; }
static double seconds(const running *r) { return (double)(once_env_mono_ns(r->pipeline->env) - r->begun_ns) / 1e9; }

/* Hands finished actions to the machine and new ones to the workers. True: something happened. @locks: shop->lock */
static bool turn(running *r)
{
    bool moved = false;
    for (worker *w = &r->shop.store; w; w = w == &r->shop.store ? &r->shop.source : NULL) {
        if (!w->done) continue;
        once_action *action = w->done;
        w->done = NULL;
        pthread_mutex_unlock(&r->shop.lock); /* intake of a batch takes a millisecond; the workers need not wait */
        if (action->status != ONCE_OK)
            once_log(ONCE_LOG_WARN, w == &r->shop.store ? "store_failed" : "source_failed", "%s: %s", once_action_name(action->kind), action->error.text);
        once_pipe_step(r->pipe, action, now_ms(r));
        pthread_mutex_lock(&r->shop.lock);
        moved = true;
    }
    once_action *action;
    if (worker_idle(&r->shop.store) && (action = once_pipe_store_action(r->pipe, now_ms(r)))) {
        r->shop.store.todo = action;
        pthread_cond_signal(&r->shop.store.has_work);
        moved = true;
    }
    if (worker_idle(&r->shop.source) && (action = once_pipe_source_action(r->pipe, now_ms(r)))) {
        r->shop.source.todo = action;
        pthread_cond_signal(&r->shop.source.has_work);
        moved = true;
    }
    return moved;
}

static void wait_for_news(running *r) /* @locks: shop->lock */
{
    int64_t ms = TICK_MS;
    if (worker_idle(&r->shop.store)) {
        const int64_t wait_ms = once_pipe_wait_ms(r->pipe, now_ms(r));
        if (wait_ms < ms) ms = wait_ms > 0 ? wait_ms : 1;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&r->shop.has_news, &r->shop.lock, &until);
}

static void look_around(running *r)
{
    if (!r->stop_seen && atomic_load(&r->pipeline->stop)) {
        r->stop_seen = true;
        (void)ONCE_FAIL_AT(drain_before);
        once_log(ONCE_LOG_INFO, "drain", "told to stop; finishing what is in flight");
        once_pipe_stop(r->pipe);
        r->source->ops->wake(r->source);
    }
    const int64_t now_ns = once_env_mono_ns(r->pipeline->env);
    if (r->options->progress && now_ns - r->progress_ns >= (int64_t)PROGRESS_MS * 1000000) {
        r->progress_ns = now_ns;
        r->options->progress(r->options->user, once_pipe_counts(r->pipe), r->source->ops->left(r->source), seconds(r));
    }
}

static int run_loop(running *r, once_executor *executor, once_error *err)
{
    shop *s = &r->shop;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->has_news, &monotonic);
    pthread_condattr_destroy(&monotonic);

    int rc = worker_start(&s->store, s, on_store, executor);
    if (rc == 0 && (rc = worker_start(&s->source, s, on_source, r->source)) != 0) worker_end(&s->store);
    if (rc == 0) {
        pthread_mutex_lock(&s->lock);
        while (!once_pipe_ended(r->pipe)) {
            if (!turn(r)) wait_for_news(r);
            pthread_mutex_unlock(&s->lock);
            look_around(r);
            pthread_mutex_lock(&s->lock);
        }
        pthread_mutex_unlock(&s->lock);
        worker_end(&s->source);
        worker_end(&s->store);
    }
    pthread_cond_destroy(&s->has_news);
    pthread_mutex_destroy(&s->lock);
    return rc == 0 ? once_pipe_status(r->pipe, err) : once_fail(err, ONCE_E_NOMEM, "cannot start a thread: %s", strerror(rc));
}

static int run_effects(void *user, once_item *const *items, size_t n, bool careful, once_arena *arena, bool *failed, once_error *err)
{
    return once_effects_run(user, items, n, careful, arena, failed, err);
}

static int run_parts(once_pipeline *pipeline, once_parts *parts, const once_run_options *options, once_summary *summary, once_error *err)
{
    uint64_t run = once_env_random_u64(pipeline->env);
    bool unclean = false;
    int rc = once__memory_check_scope(pipeline, parts->store, options->confirm_scope_change ? ONCE_SCOPE_CONFIRM : ONCE_SCOPE_KEEP, err);
    if (rc == ONCE_OK) rc = once__memory_run_begins(pipeline, parts->store, run, &unclean, err);
    if (rc != ONCE_OK) return rc;
    if (unclean) once_log(ONCE_LOG_WARN, "unclean", "the last run did not end cleanly; the first messages run one by one");

    running r = {.pipeline = pipeline, .source = parts->source, .options = options, .begun_ns = once_env_mono_ns(pipeline->env)};
    const once_pipe_options pipe_options = {
        .spec = pipeline->spec,
        .env = pipeline->env,
        .secret = parts->store->secret,
        .run = run,
        .prepare = once_effect_prepare,
        .unclean = unclean,
        .finite = (parts->source->ops->bits(parts->source) & ONCE_SOURCE_FINITE) != 0,
    };
    rc = once_pipe_new(&pipe_options, &r.pipe, err);
    if (rc != ONCE_OK) return rc;

    once_executor executor;
    once_executor_init(&executor, parts->store, pipeline->spec->consumer, run_effects, parts->effects);
    (void)ONCE_FAIL_AT(open_after);
    rc = run_loop(&r, &executor, err);
    summary->counts = *once_pipe_counts(r.pipe);
    summary->seconds = seconds(&r);
    summary->stopped = r.stop_seen;
    once_executor_release(&executor);
    once_pipe_free(r.pipe);

    once_stats stats;
    if (rc == ONCE_OK) rc = parts->store->ops->stats(parts->store, pipeline->spec->consumer, &stats, err);
    if (rc != ONCE_OK) return rc;
    summary->store_dead = stats.dead;
    summary->store_unknown = stats.unknown;
    (void)ONCE_FAIL_AT(close_before);
    return once__memory_run_ended(pipeline, parts->store, run, err);
}

int once_pipeline_run(once_pipeline *pipeline, const once_run_options *options, once_summary *summary, once_error *err)
{
    const once_run_options none = {.size = sizeof none};
    once_parts parts;
    *summary = (once_summary){0};
    (void)ONCE_FAIL_AT(open_before);
    int rc = once__parts_open(pipeline, true, &parts, err);
    if (rc != ONCE_OK) return rc;
    rc = run_parts(pipeline, &parts, options ? options : &none, summary, err);
    once__parts_close(&parts);
    return rc;
}

void once_pipeline_stop(once_pipeline *pipeline) { atomic_store(&pipeline->stop, true); }
