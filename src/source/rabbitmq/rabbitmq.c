/* The RabbitMQ source: its life, and what an open one does. rabbitmq.h has the overview. */
#include "source/rabbitmq/rabbitmq.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/log.h"
#include "base/no_memory.h"

#include "base/banned.h"

#define IDLE_MS 100
#define BEAT_MAX_MS 2000
#define HEADERS_MAX ((size_t)1 << 30) /* bytes of their JSON text: more than a frame can have */
#define PREFETCH_MAX 4096             /* without `prefetch` */
#define PREFETCH_MIN 16

/* --- open and close ----------------------------------------------------------------------------------------------- */

static void rabbitmq_close(once_source *source)
{
    rabbitmq_source *r = once__rabbitmq(source);
    if (r->connection) once__rabbitmq_disconnect(r->connection, !r->broken);
    once__rabbitmq_forget(r);
    once__rabbitmq_tags_free(&r->tags);
    once_buf_release(&r->text);
    if (r->wake_fd >= 0) close(r->wake_fd);
    once_arena_release(&r->arena);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Enough for the transaction under way and the next one. If every effect is outside, those that can run and as many
 * more: what one worker holds, no other one gets. */
static uint16_t prefetch_of(const once_spec *spec, uint32_t written)
{
    uint64_t slots = 0, all;
    bool outside = true;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        slots += spec->handlers[i].slots;
        outside = outside && (once_handler_external(&spec->handlers[i]) || !once_handler_runs(&spec->handlers[i]));
    }
    all = outside && slots ? 2 * slots : 2 * (uint64_t)spec->batch_max;
    if (all > PREFETCH_MAX) all = PREFETCH_MAX;
    if (all < PREFETCH_MIN) all = PREFETCH_MIN;
    assert(written <= UINT16_MAX);
    return (uint16_t)(written ? written : all);
}

static int rabbitmq_open(const once_spec *spec, const once_env *env, once_source_purpose purpose, once_cancel cancel,
                         once_source **out, once_error *err)
{
    (void)cancel; /* only fetch waits for the broker */
    assert(spec->source.own && spec->message_max > 0 && purpose != ONCE_OPEN_LOOK);
    rabbitmq_source *r = calloc(1, sizeof *r);
    if (!r) return once_no_memory(err, "for the source");
    r->base = (once_source){.ops = &once__rabbitmq_ops, .spec = spec, .env = env};
    r->rabbitmq = once_rabbitmq_of(&spec->source);
    r->purpose = purpose;
    r->prefetch = prefetch_of(spec, r->rabbitmq->prefetch);
    r->hold_ms = r->rabbitmq->consumer_timeout_ms;
    r->fd = -1;
    atomic_init(&r->ready, -1);
    r->waiting_end = &r->waiting;
    once_buf_init(&r->text, HEADERS_MAX);
    pthread_mutex_init(&r->lock, NULL);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int rc = r->wake_fd < 0 ? once_fail(err, ONCE_E_IO, "cannot make an eventfd: %s", once_errno_text(errno))
                                  : once__rabbitmq_address(r, err);
    if (rc == ONCE_OK) *out = &r->base;
    else rabbitmq_close(&r->base);
    return rc;
}

/* --- fetch -------------------------------------------------------------------------------------------------------- */

bool once__rabbitmq_wait(rabbitmq_source *r, int64_t ms)
{
    struct pollfd fds[2] = {{.fd = r->wake_fd, .events = POLLIN}, {.fd = r->fd, .events = POLLIN}};
    uint64_t count;
    const int ready = poll(fds, 2, (int)ms);
    const bool woken = ready > 0 && fds[0].revents && read(r->wake_fd, &count, sizeof count) > 0;
    return ready > 0 && !woken && fds[1].revents;
}

static rabbitmq_state state_of(rabbitmq_source *r)
{
    pthread_mutex_lock(&r->lock);
    const rabbitmq_state state = r->state;
    pthread_mutex_unlock(&r->lock);
    return state;
}

bool once__rabbitmq_is_broken(rabbitmq_source *r)
{
    pthread_mutex_lock(&r->lock);
    const bool broken = r->broken;
    pthread_mutex_unlock(&r->lock);
    return broken;
}

/* The broker sends a consumer no more than it may have without an ack. */
static bool can_come(rabbitmq_source *r)
{
    pthread_mutex_lock(&r->lock);
    const bool more = !r->broken && r->tags.open < r->consumer.most;
    pthread_mutex_unlock(&r->lock);
    return more;
}

static void wait_for_batch(rabbitmq_source *r, const once_fetch *fetch)
{
    const int64_t until_ms = once__rabbitmq_now_ms(r) + r->base.spec->batch_wait_ms;
    while (r->n_waiting > 0 && r->n_waiting < fetch->max && can_come(r)) {
        const int64_t left_ms = until_ms - once__rabbitmq_now_ms(r);
        if (left_ms <= 0 || !once__rabbitmq_wait(r, left_ms)) return;
        once__rabbitmq_receive(r);
    }
}

static bool make_item(rabbitmq_source *r, const rabbitmq_message *m, once_batch *batch, once_item *out)
{
    once_message *to = &out->message;
    char *point = once_arena_alloc(&batch->arena, 24);
    if (!point || !once_arena_copy(&batch->arena, (once_bytes){m->bytes + m->headers_len, m->body_len}, &to->body) ||
        (m->headers_len && !once_arena_copy(&batch->arena, (once_bytes){m->bytes, m->headers_len}, &to->headers)))
        return false;
    out->delivery = r->before + m->tag;
    out->batch = batch;
    to->cut_from = m->size > m->body_len ? m->size : 0;
    to->sent_ms = m->sent_ms;
    to->at.point = (once_bytes){point, (size_t)snprintf(point, 24, "%llu", (unsigned long long)out->delivery)};
    return true;
}

/* Hands out those that wait; all of them stay if memory is out. */
static int hand_out(rabbitmq_source *r, size_t max, once_batch *batch, once_error *err)
{
    const size_t n = r->n_waiting < max ? r->n_waiting : max;
    const rabbitmq_message *m = r->waiting;
    once_bytes place;
    if (n == 0) return ONCE_OK;
    batch->items = once_arena_new(&batch->arena, once_item, n);
    bool ok = batch->items && once_arena_copy(&batch->arena, once_bytes_of(r->queue), &place);
    for (size_t i = 0; i < n && ok; i++, m = m->next) {
        batch->items[i].message.at.place = place;
        ok = make_item(r, m, batch, &batch->items[i]);
    }
    if (!ok) return once_no_memory(err, "for a batch");
    for (size_t i = 0; i < n; i++) {
        rabbitmq_message *given = r->waiting;
        r->waiting = given->next;
        free(given);
    }
    r->n_waiting -= n;
    if (!r->waiting) r->waiting_end = &r->waiting;
    batch->n = n;
    return ONCE_OK;
}

static bool is_paused(const once_fetch *fetch) { return fetch->n_paused > 0 && fetch->paused[0] == 0; }

bool once__rabbitmq_can_give(const rabbitmq_source *r) { return r->question.answered || !r->offset_seen; }

static int rabbitmq_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    rabbitmq_source *r = once__rabbitmq(source);
    const bool may_give = fetch->max > 0 && !is_paused(fetch), may_wait = fetch->max > 0 && !fetch->rest;
    fetch->at_end = false;
    fetch->n_news = 0;
    fetch->batch->n = 0;
    if (r->ended.status != ONCE_OK) return once_fail(err, r->ended.status, "%s", r->ended.text);
    const rabbitmq_state state = state_of(r);
    if (state == RABBITMQ_APART && !fetch->rest) return once__rabbitmq_join(r, fetch, err);
    if (state != RABBITMQ_OURS) {
        if (may_wait) (void)once__rabbitmq_wait(r, IDLE_MS);
        return ONCE_OK;
    }
    once__rabbitmq_receive(r);
    once__rabbitmq_count(r);
    if (!fetch->rest) once__rabbitmq_tend(r, may_give ? fetch->max : 0);
    if (may_wait && !(may_give && r->n_waiting > 0 && once__rabbitmq_can_give(r)) && !once__rabbitmq_is_broken(r) &&
        once__rabbitmq_wait(r, IDLE_MS))
        once__rabbitmq_receive(r);
    if (may_give && may_wait) wait_for_batch(r, fetch);
    if (once__rabbitmq_is_broken(r)) return once__rabbitmq_lose(r, fetch, err);
    return may_give && once__rabbitmq_can_give(r) ? hand_out(r, fetch->max, fetch->batch, err) : ONCE_OK;
}

static void rabbitmq_wake(once_source *source)
{
    const uint64_t one = 1;
    if (write(once__rabbitmq(source)->wake_fd, &one, sizeof one) < 0) return; /* it is full: a fetch is woken anyway */
}

/* --- what is known without the network ---------------------------------------------------------------------------- */

static unsigned rabbitmq_bits(const once_source *source) { return source->spec->source.bits | ONCE_SOURCE_REDELIVERS; }

static const char *rabbitmq_stream_name(once_source *source, uint32_t stream)
{
    return stream == 0 ? once__rabbitmq(source)->queue : NULL;
}

/* The broker may have asked for more heartbeats than we did. */
static int64_t rabbitmq_beat_ms(const once_source *source)
{
    const int64_t half_ms = once_rabbitmq_of(&source->spec->source)->heartbeat_ms / 2;
    return half_ms < BEAT_MAX_MS ? half_ms : BEAT_MAX_MS;
}

const once_source_ops once__rabbitmq_ops = {
    .open = rabbitmq_open,
    .close = rabbitmq_close,
    .bits = rabbitmq_bits,
    .ask = once__rabbitmq_ask,
    .backlog = once__rabbitmq_backlog,
    .fetch = rabbitmq_fetch,
    .ack = once__rabbitmq_ack,
    .extend = once__rabbitmq_extend,
    .release = once__rabbitmq_release,
    .wake = rabbitmq_wake,
    .lag = once__rabbitmq_lag,
    .lag_parts = once__rabbitmq_lag_parts,
    .stream_name = rabbitmq_stream_name,
    .beat_ms = rabbitmq_beat_ms,
};
