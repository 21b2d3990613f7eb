/* Callbacks: C functions of the program that links us, in threads of their own. A thread cannot be killed: what runs is told by
 * once_call_extend that it should stop, and what it says in the end counts. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/log.h"
#include "effect/call.h"
#include "effect/hand.h"

#include "base/banned.h"

typedef struct job {
    once_keeper keeper;
    atomic_bool fenced;
    once_item *item;
    once_outcome outcome; /* as the function returned it */
    once_reply reply;
    int64_t deadline_ms;      /* ONCE_NEVER: passed, and said so */
    struct job *next;         /* queued, done or spare */
    struct job *next_of_all;
} job;

typedef struct queue {
    job *first, *last;
} queue;

typedef struct callback_hand {
    once_hand hand;
    const once_hands_callback *callback;
    job *spare, *all;  /* the loop's */
    once_watch done_watch;
    pthread_t *threads;
    uint32_t n_threads;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t work;
    queue queued, done;
    uint32_t free_threads; /* threads without a job, less the jobs that wait for one */
    bool ending;
} callback_hand;

static void push(queue *q, job *j)
{
    j->next = NULL;
    *(q->first ? &q->last->next : &q->first) = j;
    q->last = j;
}

static job *pop(queue *q)
{
    job *j = q->first;
    if (j) q->first = j->next;
    return j;
}

static bool take_out(queue *q, const job *which)
{
    for (job **at = &q->first, *before = NULL; *at; before = *at, at = &(*at)->next) {
        if (*at != which) continue;
        if (q->last == which) q->last = before;
        *at = which->next;
        return true;
    }
    return false;
}

/* ---- in its own thread ---- */

static int keep(once_keeper *keeper, int64_t lease_ms, once_error *err)
{
    job *j = (job *)keeper;
    (void)lease_ms; /* the pipeline extends the lease for as long as we run */
    return atomic_load(&j->fenced) ? once__keeper_lost(err) : ONCE_OK;
}

static void call(const callback_hand *hand, job *j)
{
    const once_item *item = j->item;
    const once_message *m = &item->message;
    char idempotency_key[33];
    once__idempotency_key(item->request.id, idempotency_key);
    const once_delivery delivery = {.size = sizeof delivery,
                                    .key = item->request.key,
                                    .body = m->body,
                                    .sent_ms = m->sent_ms,
                                    .type = m->type,
                                    .headers = m->headers,
                                    .place = m->at.place,
                                    .point = m->at.point};
    const once_call told = {.scope = &item->scope,
                            .delivery = &delivery,
                            .idempotency_key = idempotency_key,
                            .attempt = item->decision.attempt,
                            .failures = item->decision.failures,
                            .maybe_done = item->decision.silent,
                            .internal = &j->keeper};
    j->outcome = hand->callback->function(hand->callback->user, &told, &j->reply);
}

static void *thread_main(void *arg)
{
    callback_hand *hand = arg;
    const uint64_t one = 1;
    pthread_mutex_lock(&hand->lock);
    for (;;) {
        job *j;
        while (!(j = pop(&hand->queued)) && !hand->ending) pthread_cond_wait(&hand->work, &hand->lock);
        if (!j) break;
        pthread_mutex_unlock(&hand->lock);
        call(hand, j);
        pthread_mutex_lock(&hand->lock);
        push(&hand->done, j);
        hand->free_threads++;
        while (write(hand->done_watch.fd, &one, sizeof one) < 0 && errno == EINTR) continue;
    }
    pthread_mutex_unlock(&hand->lock);
    return NULL;
}

/* ---- on the loop ---- */

static void give_back(callback_hand *hand, job *j)
{
    once__reply_release(&j->reply);
    j->item = NULL;
    j->next = hand->spare;
    hand->spare = j;
}

static void finish(callback_hand *hand, job *j)
{
    once_item *item = j->item;
    once_hands *hands = hand->hand.hands;
    item->outcome = once__reply_outcome(&j->reply, j->outcome);
    item->maybe = item->outcome == ONCE_UNKNOWN;
    item->delay_ms = j->reply.delay_ms;
    once_hands_output(hands, item, once_buf_bytes(&j->reply.result), once__reply_why(&j->reply, item->outcome));
    once_hands_finished(hands, item);
    give_back(hand, j);
}

static void done_ready(once_watch *watch, uint32_t events)
{
    callback_hand *hand = (callback_hand *)((char *)watch - offsetof(callback_hand, done_watch));
    uint64_t times;
    (void)events;
    if (read(watch->fd, &times, sizeof times) != sizeof times) return;
    pthread_mutex_lock(&hand->lock);
    job *j = hand->done.first, *next;
    hand->done.first = NULL;
    pthread_mutex_unlock(&hand->lock);
    for (; j; j = next) {
        next = j->next;
        finish(hand, j);
    }
}

static job *new_job(callback_hand *hand, once_item *item)
{
    job *j = hand->spare;
    if (j) {
        hand->spare = j->next;
    } else {
        j = calloc(1, sizeof *j);
        if (!j) return NULL;
        j->next_of_all = hand->all;
        hand->all = j;
    }
    const once_hands *hands = hand->hand.hands;
    j->keeper.extend = keep;
    atomic_store(&j->fenced, false);
    j->item = item;
    j->deadline_ms = once_hands_now_ms(hands) + hand->hand.handler->timeout_ms;
    once__reply_init(&j->reply, once_hands_options_of(hands)->spec->result_max);
    return j;
}

/* False: no thread has time for one more, and none could be started. */
static bool find_thread(callback_hand *hand)
{
    pthread_mutex_lock(&hand->lock);
    bool found = hand->free_threads > 0;
    if (found) hand->free_threads--;
    pthread_mutex_unlock(&hand->lock);
    if (found || hand->n_threads == hand->hand.handler->slots) return found;
    if (pthread_create(&hand->threads[hand->n_threads], NULL, thread_main, hand) != 0) return false;
    hand->n_threads++;
    return true;
}

static void callback_start(once_hand *base, once_item *item)
{
    callback_hand *hand = (callback_hand *)base;
    job *j = new_job(hand, item);
    if (!j || !find_thread(hand)) {
        if (j) give_back(hand, j);
        item->trouble = ONCE_E_UNAVAILABLE;
        once_hands_output(base->hands, item, (once_bytes){0}, ONCE_BYTES("no thread for the callback"));
        once_hands_finished(base->hands, item);
        return;
    }
    item->hand = j;
    item->started = true;
    pthread_mutex_lock(&hand->lock);
    push(&hand->queued, j);
    pthread_cond_signal(&hand->work);
    pthread_mutex_unlock(&hand->lock);
}

static void callback_kill(once_hand *base, once_item *item)
{
    callback_hand *hand = (callback_hand *)base;
    job *j = item->hand;
    atomic_store(&j->fenced, true);
    pthread_mutex_lock(&hand->lock);
    const bool waits = take_out(&hand->queued, j);
    if (waits) hand->free_threads++;
    pthread_mutex_unlock(&hand->lock);
    if (!waits) return;
    item->started = false;
    once_hands_finished(base->hands, item);
    give_back(hand, j);
}

static int64_t callback_tick(once_hand *base, int64_t now_ms)
{
    callback_hand *hand = (callback_hand *)base;
    int64_t next_ms = ONCE_NEVER;
    for (job *j = hand->all; j; j = j->next_of_all) { /* no more than there are slots */
        char limit[ONCE_DURATION_TEXT];
        if (j->item && j->deadline_ms <= now_ms) {
            j->deadline_ms = ONCE_NEVER;
            once_log(ONCE_LOG_WARN, "callback_late",
                     "callback '%s' runs longer than its timeout of %s; a thread cannot be killed, it goes on", hand->callback->name, once_duration_format(base->handler->timeout_ms, limit));
        }
        if (j->item && j->deadline_ms < next_ms) next_ms = j->deadline_ms;
    }
    return next_ms;
}

/* Waits for the functions that run: what they use is the program's, and may be gone after us. */
static void callback_close(once_hand *base)
{
    callback_hand *hand = (callback_hand *)base;
    for (job *j = hand->all; j; j = j->next_of_all) atomic_store(&j->fenced, true);
    pthread_mutex_lock(&hand->lock);
    hand->queued.first = NULL;
    hand->ending = true;
    pthread_cond_broadcast(&hand->work);
    pthread_mutex_unlock(&hand->lock);
    for (uint32_t i = 0; i < hand->n_threads; i++) pthread_join(hand->threads[i], NULL);
    for (job *j = hand->all, *next; j; j = next) {
        next = j->next_of_all;
        once__reply_release(&j->reply);
        free(j);
    }
    const int fd = hand->done_watch.fd;
    once_hands_unwatch(base->hands, &hand->done_watch);
    if (fd >= 0) close(fd);
    pthread_mutex_destroy(&hand->lock);
    pthread_cond_destroy(&hand->work);
    free(hand->threads);
    free(hand);
}

static const once_hand_ops callback_ops = {
    .start = callback_start, .kill = callback_kill, .tick = callback_tick, .close = callback_close};

int once_hand_open_callback(once_hands *hands, const once_handler_spec *handler, const once_hands_callback *callback, once_hand **out,
                            once_error *err)
{
    callback_hand *hand = calloc(1, sizeof *hand);
    if (!hand) return once_fail(err, ONCE_E_NOMEM, "out of memory for the handlers");
    hand->hand = (once_hand){.ops = &callback_ops, .handler = handler, .hands = hands};
    hand->callback = callback;
    pthread_mutex_init(&hand->lock, NULL); /* neither can fail here */
    pthread_cond_init(&hand->work, NULL);
    hand->threads = calloc(handler->slots, sizeof *hand->threads);
    hand->done_watch = (once_watch){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = done_ready};
    int rc = hand->threads ? ONCE_OK : once_fail(err, ONCE_E_NOMEM, "out of memory for the handlers");
    if (rc == ONCE_OK && hand->done_watch.fd < 0)
        rc = once_fail(err, ONCE_E_UNAVAILABLE, "cannot make an event descriptor: %s", strerror(errno));
    if (rc == ONCE_OK) rc = once_hands_watch(hands, &hand->done_watch, EPOLLIN, err);
    if (rc == ONCE_OK) *out = &hand->hand;
    else callback_close(&hand->hand);
    return rc;
}
