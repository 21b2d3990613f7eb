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
    GROUP = 256, /* so many effects at most are handed over together */
    BACK = 256   /* when so many have ended, the loop is told at once */
};

struct once_thread {
    once_threads *of;
    uint32_t number;
    pthread_t id;
    once_reply reply; /* to the effect that it runs */

    /* With the lock. */
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

/* Tells the loop that effects have ended. Not at once while others wait for a thread: functions that return at once
 * would wake it for each of them, and a few would pass through all other threads at a time. This does not wait for an
 * effect: while another one is queued, a thread is on its way to it. If none is, because no more can be made, the loop
 * is told. @locks: lock */
static void tell(once_threads *threads)
{
    const uint64_t one = 1;
    if (threads->n_done == 0 || threads->told) return;
    if (threads->n_done < BACK && threads->queued.first && threads->calling) return;
    threads->told = true;
    while (write(threads->done_watch.fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* @locks: lock */
static once_job *wait_for_job(once_threads *threads, struct once_thread *thread)
{
    once_job *j;
    if (thread->called) threads->calling = thread->called = false; /* it was just made */
    while (!(j = pop(&threads->queued)) && !threads->ending) {
        tell(threads);
        add_idle(threads, thread);
        while (!thread->called && !threads->ending) pthread_cond_wait(&thread->call, &threads->lock);
        if (thread->called) threads->calling = thread->called = false;
    }
    if (j && threads->queued.first) call_one(threads);
    tell(threads);
    return j;
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
    once__reply_init(&thread->reply, once_runner_options_of(threads->driver.runner)->spec->result_max);
    j->reply = &thread->reply;
    threads->ops->run(threads, j);
    conclude(threads, j);
    once__reply_release(&thread->reply);
}

static void *thread_main(void *arg)
{
    struct once_thread *thread = arg;
    once_threads *threads = thread->of;
    pthread_mutex_lock(&threads->lock);
    for (;;) {
        once_job *j = wait_for_job(threads, thread);
        if (!j) break;
        j->thread = thread->number;
        j->running = true;
        pthread_mutex_unlock(&threads->lock);
        run(threads, thread, j);
        pthread_mutex_lock(&threads->lock);
        j->running = false;
        thread->failed = j->run_failure != ONCE_OK;
        push(&threads->done, j);
        threads->n_done++;
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* ---- on the loop ---- */

static void finish(once_threads *threads, once_job *j)
{
    assert(j->item->driver == j && !j->running);
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
    call_one(threads);
    if (threads->n == 0) append(&threads->starting, &threads->queued);
    tell(threads);
    pthread_mutex_unlock(&threads->lock);
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
    if (!waits && j->running) j->deadline_ms = threads->ops->end(threads, j, once_runner_now_ms(base->runner));
    pthread_mutex_unlock(&threads->lock);
    if (j->deadline_ms < threads->look_at_ms) threads->look_at_ms = j->deadline_ms;
    if (waits) finish(threads, j);
}

static int64_t threads_tick(once_effect_driver *base, int64_t now_ms)
{
    once_threads *threads = (once_threads *)base;
    int64_t next_ms = ONCE_NEVER;
    hand_over(threads);
    if (now_ms < threads->look_at_ms) return threads->look_at_ms;
    for (once_job *j = threads->all; j; j = j->next_of_all) { /* no more than there are slots */
        if (!j->item) continue;
        if (j->deadline_ms <= now_ms) {
            pthread_mutex_lock(&threads->lock);
            j->deadline_ms =
                /* it has not begun to run, or has ended */
                j->running ? threads->ops->end(threads, j, now_ms) : now_ms + 10;
            pthread_mutex_unlock(&threads->lock);
        }
        if (j->deadline_ms < next_ms) next_ms = j->deadline_ms;
    }
    threads->look_at_ms = next_ms;
    return next_ms;
}

/* Waits for the effects that run: after the close, what they use may be gone. */
static void threads_close(once_effect_driver *base)
{
    once_threads *threads = (once_threads *)base;
    const int64_t now_ms = once_runner_now_ms(base->runner);
    pthread_mutex_lock(&threads->lock);
    for (once_job *j = threads->all; j; j = j->next_of_all) {
        atomic_store(&j->killed, true);
        if (j->running) (void)threads->ops->end(threads, j, now_ms);
    }
    threads->queued.first = NULL;
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
    threads->look_at_ms = ONCE_NEVER;
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
