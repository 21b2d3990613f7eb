#include "effect/threads.h"

#include "base/errno_text.h"
#include "base/no_memory.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/banned.h"

enum {
    GROUP = 256,       /* so many effects at most are handed over together */
    BACK = 128,        /* when so many have ended, the loop is told at once */
    HAND = 64,         /* so many effects at most are taken by a thread at a time ... */
    HAND_NS = 100000,  /* ... if they take about so long in all */
    QUEUE_NS = 200000, /* another thread is called when what is queued takes longer */
    LONG_NS = 1000000, /* how long an effect takes is not known: as if it took this */
    RESCUE_MS = 1      /* so soon it is noticed that effects wait behind one that takes long */
};

struct once_thread {
    once_threads *of;
    uint32_t number;
    pthread_t id;
    once_reply reply; /* to the effect that it runs */
    /* What it has taken; changed with the lock. Whoever raises `next` has that one, so this thread runs the one before
     * `next`, and those before that have ended. While it runs one that takes long, others can take the rest and bring
     * back what has ended. */
    once_job *hand[HAND];
    size_t n_hand, n_back; /* n_back: so many were brought back */
    atomic_size_t next;

    /* With the lock. */
    size_t next_then; /* `next` when the loop last looked; SIZE_MAX: it has taken others since */
    pthread_cond_t call;
    bool called;              /* it should look for a job */
    bool failed;              /* it could not run its last effect */
    struct once_thread *idle; /* the next one that waits for a job */
};

static void push(once_job_queue *q, once_job *j)
{
    assert(j && (!q->first || q->last));
    j->next = NULL;
    *(q->first ? &q->last->next : &q->first) = j;
    q->last = j;
}

static once_job *pop(once_job_queue *q)
{
    once_job *j = q->first;
    if (j) q->first = j->next;
    return j;
}

/* All of `from` become the last of `q`. */
static void append(once_job_queue *q, once_job_queue *from)
{
    if (!from->first) return;
    *(q->first ? &q->last->next : &q->first) = from->first;
    q->last = from->last;
    from->first = NULL;
}

static void push_first(once_job_queue *q, once_job *j)
{
    if (!q->first) q->last = j;
    j->next = q->first;
    q->first = j;
}

static bool take_out(once_job_queue *q, const once_job *which)
{
    for (once_job **at = &q->first, *before = NULL; *at; before = *at, at = &(*at)->next) {
        if (*at != which) continue;
        if (q->last == which) q->last = before;
        *at = which->next;
        return true;
    }
    return false;
}

/* ---- threads are made and called, with the lock ---- */

static void *thread_main(void *arg);

static bool add_thread(once_threads *threads)
{
    if (threads->n == threads->driver.handler->slots) return false;
    struct once_thread *thread = &threads->list[threads->n];
    *thread = (struct once_thread){.of = threads, .number = threads->n, .called = true};
    pthread_cond_init(&thread->call, NULL);
    if (pthread_create(&thread->id, NULL, thread_main, thread) == 0) {
        threads->n++;
        return true;
    }
    pthread_cond_destroy(&thread->call);
    return false;
}

/* Calls one thread: the one that has waited for the shortest time, whose memory is most likely in the caches, or a new
 * one. One that could not run its last effect is called last: it may have no connection while others have theirs. When
 * a thread has come and more is queued, it calls the next one before it runs its effect. So no effect waits behind one
 * that takes long, and functions that return at once are run by a few threads, instead of each one waking another. If
 * no more threads can be made, effects wait for those that there are. */
static void call_one(once_threads *threads)
{
    struct once_thread *thread = threads->idle;
    if (threads->calling || threads->ending) return;
    if (thread) {
        threads->idle = thread->idle;
        thread->called = true;
        pthread_cond_signal(&thread->call);
    }
    threads->calling = thread || add_thread(threads);
}

/* ---- in its own thread ---- */

/* @locks: lock */
static void add_idle(once_threads *threads, struct once_thread *thread)
{
    struct once_thread **at = &threads->idle;
    while (thread->failed && *at) at = &(*at)->idle;
    thread->idle = *at;
    *at = thread;
}

/* Whether a thread takes what is queued without waiting for an effect that takes long: one is on its way, or they are
 * short. @locks: lock */
static bool are_taken_soon(const once_threads *threads)
{
    return threads->calling || (threads->ops->groups && threads->each_ns <= HAND_NS / 2);
}

/* Tells the loop that effects have ended. Not at once while others wait for a thread: functions that return at once
 * would wake it for each of them, and a few would pass through all other threads at a time. This does not wait for an
 * effect that takes long: those that are queued are taken soon, and if they are not, the loop looks (rescue). If no
 * thread is on its way, because no more can be made, the loop is told. @locks: lock */
static void tell(once_threads *threads)
{
    const uint64_t one = 1;
    if (threads->n_done == 0 || threads->told) return;
    if (threads->n_done < BACK && threads->queued.first && are_taken_soon(threads)) return;
    threads->told = true;
    while (write(threads->done_watch.fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* How many effects a thread takes at a time. Several only while they are short, so that none waits for long behind
 * another one while there are threads. @locks: lock */
static size_t hand_size(const once_threads *threads)
{
    if (!threads->ops->groups || threads->each_ns > HAND_NS / 2) return 1;
    const int64_t n = HAND_NS / (threads->each_ns + 1);
    return n < HAND ? (size_t)n : HAND;
}

/* @locks: lock */
static void take_hand(once_threads *threads, struct once_thread *thread)
{
    size_t n = 0, most = hand_size(threads);
    while (n < most && threads->queued.first) {
        once_job *j = pop(&threads->queued);
        j->thread = thread->number;
        thread->hand[n++] = j;
    }
    assert(n > 0 && n <= threads->n_queued);
    threads->n_queued -= (uint32_t)n;
    threads->taken += n;
    if (!threads->ops->groups) atomic_store(&thread->hand[0]->running, true);
    thread->n_hand = n;
    thread->n_back = 0;
    thread->next_then = SIZE_MAX;
    atomic_store(&thread->next, 0);
}

/* Waits until it has jobs. False: there are no more. @locks: lock */
static bool wait_for_jobs(once_threads *threads, struct once_thread *thread)
{
    if (thread->called) threads->calling = thread->called = false; /* it was just made */
    while (!threads->queued.first && !threads->ending) {
        tell(threads);
        add_idle(threads, thread);
        while (!thread->called && !threads->ending) pthread_cond_wait(&thread->call, &threads->lock);
        if (thread->called) threads->calling = thread->called = false;
    }
    if (!threads->queued.first) return false;
    take_hand(threads, thread);
    if (threads->n_queued && threads->n_queued * threads->each_ns > QUEUE_NS) call_one(threads);
    tell(threads);
    return true;
}

/* What the effect came to. The item is ours until the loop has it back. */
static void conclude(const once_threads *threads, const once_job *j)
{
    once_item *item = j->item;
    assert(item->driver == j);
    item->outcome = once__reply_outcome(j->reply, j->outcome);
    item->maybe_done = item->outcome == ONCE_UNKNOWN;
    item->delay_ms = j->reply->delay_ms;
    item->started = j->started;
    item->run_failure = j->run_failure;
    once_runner_output(threads->driver.runner, item, once_buf_bytes(&j->reply->result),
                       once__reply_why(j->reply, item->outcome));
}

static void run(once_threads *threads, struct once_thread *thread, once_job *j)
{
    if (threads->ops->groups && atomic_load(&j->killed)) return; /* it was ended before it began: it is as it was */
    atomic_store(&j->running, true);
    once__reply_init(&thread->reply, once_runner_options_of(threads->driver.runner)->spec->result_max);
    j->reply = &thread->reply;
    threads->ops->run(threads, j);
    conclude(threads, j);
    once__reply_release(&thread->reply);
}

/* Runs what it has taken, up to where others have taken the rest. Returns how many. */
static size_t run_hand(once_threads *threads, struct once_thread *thread)
{
    size_t n = 0;
    for (size_t i; (i = atomic_fetch_add(&thread->next, 1)) < thread->n_hand; n++) {
        once_job *j = thread->hand[i];
        run(threads, thread, j);
        if (threads->ops->groups) atomic_store(&j->running, false);
    }
    return n;
}

/* The first `n` of its effects have ended. @locks: lock */
static void bring_back(once_threads *threads, struct once_thread *thread, size_t n)
{
    assert(n <= thread->n_hand);
    for (; thread->n_back < n; thread->n_back++) {
        push(&threads->done, thread->hand[thread->n_back]);
        threads->n_done++;
    }
}

/* One that took longer than those before counts at once, one that took less by and by. @locks: lock */
static void note_time(once_threads *threads, int64_t took_ns, size_t n)
{
    const int64_t each_ns = n ? took_ns / (int64_t)n : LONG_NS;
    threads->each_ns = each_ns > threads->each_ns ? each_ns : (3 * threads->each_ns + each_ns) / 4;
}

static void *thread_main(void *arg)
{
    struct once_thread *thread = arg;
    once_threads *threads = thread->of;
    const once_env *env = once_runner_options_of(threads->driver.runner)->env;
    pthread_mutex_lock(&threads->lock);
    while (wait_for_jobs(threads, thread)) {
        pthread_mutex_unlock(&threads->lock);
        const int64_t began_ns = threads->ops->groups ? once_env_mono_ns(env) : 0;
        const size_t n = run_hand(threads, thread);
        const int64_t took_ns = threads->ops->groups ? once_env_mono_ns(env) - began_ns : 0;
        pthread_mutex_lock(&threads->lock);
        if (threads->ops->groups) note_time(threads, took_ns, n);
        else atomic_store(&thread->hand[0]->running, false);
        if (thread->n_back < n) thread->failed = thread->hand[n - 1]->run_failure != ONCE_OK;
        bring_back(threads, thread, n);
        thread->n_hand = 0;
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* ---- on the loop ---- */

static void finish(once_threads *threads, once_job *j)
{
    assert(j->item->driver == j && !atomic_load(&j->running));
    once_runner_finished(threads->driver.runner, j->item);
    j->item = NULL;
    j->next = threads->spare;
    threads->spare = j;
}

static void done_ready(once_watch *watch, uint32_t events)
{
    once_threads *threads = (once_threads *)((char *)watch - offsetof(once_threads, done_watch));
    uint64_t times;
    (void)events;
    if (read(watch->fd, &times, sizeof times) != sizeof times) return;
    pthread_mutex_lock(&threads->lock);
    once_job *j = threads->done.first, *next;
    threads->done.first = NULL;
    threads->n_done = 0;
    threads->told = false;
    pthread_mutex_unlock(&threads->lock);
    for (; j; j = next) {
        next = j->next;
        finish(threads, j);
    }
}

static once_job *new_job(once_threads *threads, once_item *item)
{
    once_job *j = threads->spare;
    if (j) {
        threads->spare = j->next;
    } else {
        j = calloc(1, sizeof *j);
        if (!j) return NULL;
        j->next_of_all = threads->all;
        threads->all = j;
    }
    atomic_store(&j->killed, false);
    j->item = item;
    j->outcome = ONCE_UNKNOWN;
    j->started = true;
    j->ended = false;
    j->run_failure = ONCE_OK;
    return j;
}

static void refuse(once_threads *threads, once_item *item)
{
    char why[80];
    const int len = snprintf(why, sizeof why, "no thread for %s", threads->ops->what);
    item->run_failure = ONCE_E_UNAVAILABLE;
    once_runner_output(threads->driver.runner, item, (once_bytes){0}, (once_bytes){why, (size_t)len});
}

static void hand_over(once_threads *threads)
{
    if (threads->n_starting == 0) return;
    const int64_t deadline_ms = once_runner_now_ms(threads->driver.runner) + threads->driver.handler->timeout_ms;
    if (deadline_ms < threads->look_at_ms) threads->look_at_ms = deadline_ms;
    once_job *j;
    for (j = threads->starting.first; j; j = j->next) j->deadline_ms = deadline_ms;
    pthread_mutex_lock(&threads->lock);
    append(&threads->queued, &threads->starting);
    threads->n_queued += threads->n_starting;
    call_one(threads);
    if (threads->n == 0) {
        append(&threads->starting, &threads->queued);
        threads->n_queued = 0;
    }
    tell(threads);
    pthread_mutex_unlock(&threads->lock);
    if (threads->ops->groups && threads->rescue_at_ms == ONCE_NEVER)
        threads->rescue_at_ms = deadline_ms - threads->driver.handler->timeout_ms + RESCUE_MS;
    while ((j = pop(&threads->starting))) {
        refuse(threads, j->item);
        finish(threads, j);
    }
    threads->n_starting = 0;
}

static void threads_start(once_effect_driver *base, once_item *item)
{
    assert(item->handler == base->handler);
    once_threads *threads = (once_threads *)base;
    once_job *j = new_job(threads, item);
    if (!j) {
        refuse(threads, item);
        once_runner_finished(base->runner, item);
        return;
    }
    item->driver = j;
    push(&threads->starting, j);
    if (++threads->n_starting == GROUP) hand_over(threads); /* the others with the tick */
}

static void threads_kill(once_effect_driver *base, once_item *item)
{
    assert(((once_job *)item->driver)->item == item);
    once_threads *threads = (once_threads *)base;
    once_job *j = item->driver;
    hand_over(threads); /* it may be among those */
    if (item->driver != j) return;
    atomic_store(&j->killed, true);
    pthread_mutex_lock(&threads->lock);
    const bool waits = take_out(&threads->queued, j);
    threads->n_queued -= waits;
    if (!waits && atomic_load(&j->running))
        j->deadline_ms = threads->ops->end(threads, j, once_runner_now_ms(base->runner));
    pthread_mutex_unlock(&threads->lock);
    if (j->deadline_ms < threads->look_at_ms) threads->look_at_ms = j->deadline_ms;
    if (waits) finish(threads, j);
}

/* If the thread runs the same effect as at the last look, what has ended before it is brought back, and the rest of
 * what it has taken is queued again, before all others. Returns whether to look again. @locks: lock */
static bool take_rest(once_threads *threads, struct once_thread *thread)
{
    const size_t next = atomic_load(&thread->next);
    if (thread->n_hand < 2 || next > thread->n_hand) return false; /* it waits, or its last effects were looked at */
    const bool same = thread->next_then == next;
    thread->next_then = next;
    if (!same) return true;
    const size_t from = atomic_exchange(&thread->next, HAND + 1);
    if (from > 0) bring_back(threads, thread, from > thread->n_hand ? thread->n_hand : from - 1);
    for (size_t i = thread->n_hand; i > from; i--) {
        push_first(&threads->queued, thread->hand[i - 1]);
        threads->n_queued++;
    }
    return false;
}

/* Effects that were short may take long now. Then others do not wait behind them. Returns when to look again. */
static int64_t rescue(once_threads *threads, int64_t now_ms)
{
    bool more = false;
    pthread_mutex_lock(&threads->lock);
    for (uint32_t i = 0; i < threads->n; i++) more |= take_rest(threads, &threads->list[i]);
    if (threads->n_queued && threads->taken == threads->taken_then) {
        threads->each_ns = LONG_NS;
        call_one(threads);
    }
    tell(threads);
    more |= threads->n_queued > 0;
    threads->taken_then = threads->taken;
    pthread_mutex_unlock(&threads->lock);
    return more ? now_ms + RESCUE_MS : ONCE_NEVER;
}

static int64_t threads_tick(once_effect_driver *base, int64_t now_ms)
{
    once_threads *threads = (once_threads *)base;
    int64_t next_ms = ONCE_NEVER;
    hand_over(threads);
    if (now_ms >= threads->rescue_at_ms) threads->rescue_at_ms = rescue(threads, now_ms);
    if (now_ms < threads->look_at_ms)
        return threads->look_at_ms < threads->rescue_at_ms ? threads->look_at_ms : threads->rescue_at_ms;
    for (once_job *j = threads->all; j; j = j->next_of_all) { /* no more than there are slots */
        if (!j->item) continue;
        if (j->deadline_ms <= now_ms) {
            pthread_mutex_lock(&threads->lock);
            j->deadline_ms =
                /* it has not begun to run, or has ended */
                atomic_load(&j->running) ? threads->ops->end(threads, j, now_ms) : now_ms + 10;
            pthread_mutex_unlock(&threads->lock);
        }
        if (j->deadline_ms < next_ms) next_ms = j->deadline_ms;
    }
    threads->look_at_ms = next_ms;
    return next_ms < threads->rescue_at_ms ? next_ms : threads->rescue_at_ms;
}

/* Waits for the effects that run: after the close, what they use may be gone. */
static void threads_close(once_effect_driver *base)
{
    once_threads *threads = (once_threads *)base;
    const int64_t now_ms = once_runner_now_ms(base->runner);
    pthread_mutex_lock(&threads->lock);
    for (once_job *j = threads->all; j; j = j->next_of_all) {
        atomic_store(&j->killed, true);
        if (atomic_load(&j->running)) (void)threads->ops->end(threads, j, now_ms);
    }
    threads->queued.first = NULL;
    threads->n_queued = 0;
    threads->ending = true;
    for (uint32_t i = 0; i < threads->n; i++) pthread_cond_signal(&threads->list[i].call);
    pthread_mutex_unlock(&threads->lock);
    for (uint32_t i = 0; i < threads->n; i++) {
        pthread_join(threads->list[i].id, NULL);
        pthread_cond_destroy(&threads->list[i].call);
    }
    for (once_job *j = threads->all, *next; j; j = next) {
        next = j->next_of_all;
        free(j);
    }
    const int fd = threads->done_watch.fd;
    once_runner_unwatch(base->runner, &threads->done_watch);
    if (fd >= 0) close(fd);
    pthread_mutex_destroy(&threads->lock);
    free(threads->list);
    threads->ops->close(threads);
}

static const once_effect_driver_ops threads_ops = {
    .start = threads_start, .ask = threads_start, .kill = threads_kill, .tick = threads_tick, .close = threads_close};

int once_threads_open(once_threads *threads, const once_threads_ops *ops, once_runner *runner,
                      const once_handler_spec *handler, once_error *err)
{
    assert(ops->what && ops->run && ops->end && ops->close);
    assert(handler->slots > 0 && !threads->list);
    threads->driver = (once_effect_driver){.ops = &threads_ops, .handler = handler, .runner = runner};
    threads->ops = ops;
    threads->look_at_ms = threads->rescue_at_ms = ONCE_NEVER;
    threads->each_ns = LONG_NS;
    pthread_mutex_init(&threads->lock, NULL); /* cannot fail here */
    threads->list = calloc(handler->slots, sizeof *threads->list);
    threads->done_watch = (once_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = done_ready};
    int rc = threads->list ? ONCE_OK : once_no_memory(err, "for the handlers");
    if (rc == ONCE_OK && threads->done_watch.fd < 0)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "cannot make an event descriptor: %s", once_errno_text(errno));
    if (rc == ONCE_OK) rc = once_runner_watch(runner, &threads->done_watch, EPOLLIN, err);
    if (rc != ONCE_OK) threads_close(&threads->driver);
    return rc;
}
