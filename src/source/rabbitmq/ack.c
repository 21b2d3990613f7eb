/* Acks, extensions and the release of the stream. None of them waits for an answer: AMQP has none for an ack. An ack
 * that was sent on a connection that breaks may be lost; then the message comes again, and is a duplicate of its entry.
 */
#include <assert.h>
#include <poll.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define SEND_MS 1000 /* how long an ack waits for a socket that takes no bytes */
#define CORK_FROM 4  /* so many acks go out together */

/* The stream is ours, and the connection not known to be broken. With the lock. */
static bool is_ours(const rabbitmq_source *r) { return r->state == RABBITMQ_OURS && !r->broken; }

static rabbitmq_tag *find(rabbitmq_source *r, const once_receipt *receipt)
{
    return receipt->delivery > r->before ? once__rabbitmq_tags_find(&r->tags, receipt->delivery - r->before) : NULL;
}

/* Those that are not ours are answered, the others are settled. False: none is to be acked. With the lock. */
static bool collect(rabbitmq_source *r, once_receipt *list, size_t n)
{
    size_t settled = 0;
    for (size_t i = 0; i < n; i++) {
        if (list[i].answer != ONCE_RECEIPT_OPEN) continue;
        rabbitmq_tag *tag = is_ours(r) ? find(r, &list[i]) : NULL;
        if (!is_ours(r) || list[i].delivery <= r->before) list[i].answer = ONCE_RECEIPT_GONE;
        else if (!tag) list[i].answer = ONCE_RECEIPT_DONE; /* it was acked before */
        else tag->state = RABBITMQ_TAG_SETTLED, settled++;
    }
    return settled > 0;
}

/* With the lock. */
static int send_acks(rabbitmq_source *r, size_t n)
{
    size_t at = 0;
    uint64_t tag;
    bool multiple;
    int status = AMQP_STATUS_OK;
    if (n >= CORK_FROM) once__rabbitmq_cork(r, 1);
    while (status == AMQP_STATUS_OK && once__rabbitmq_tags_next(&r->tags, &at, &tag, &multiple))
        status = amqp_basic_ack(r->connection, ONCE_RABBITMQ_CHANNEL, tag, multiple);
    if (n >= CORK_FROM) once__rabbitmq_cork(r, 0);
    return status;
}

/* Whether the socket takes bytes: enough for all acks of one call. */
static bool can_send(rabbitmq_source *r)
{
    pthread_mutex_lock(&r->lock);
    struct pollfd fd = {.fd = is_ours(r) ? r->fd : -1, .events = POLLOUT};
    pthread_mutex_unlock(&r->lock);
    return fd.fd < 0 || poll(&fd, 1, SEND_MS) > 0;
}

int once__rabbitmq_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    rabbitmq_source *r = once__rabbitmq(source);
    if (!can_send(r))
        return once_fail(err, ONCE_E_UNAVAILABLE, "queue '%s': the broker takes no acks for %d ms", r->queue, SEND_MS);
    pthread_mutex_lock(&r->lock);
    int status = AMQP_STATUS_OK;
    if (collect(r, list, n)) status = send_acks(r, n);
    if (status != AMQP_STATUS_OK) {
        once_error why;
        (void)once__rabbitmq_broke(&why, status, "the connection of queue '%s' broke", r->queue);
        once__rabbitmq_note(r, &why);
    }
    for (size_t i = 0; i < n; i++) /* with the connection, whatever was not acked goes to any consumer */
        if (list[i].answer == ONCE_RECEIPT_OPEN) list[i].answer = r->broken ? ONCE_RECEIPT_GONE : ONCE_RECEIPT_DONE;
    const bool broke = status != AMQP_STATUS_OK;
    pthread_mutex_unlock(&r->lock);
    if (broke) source->ops->wake(source);
    return ONCE_OK;
}

/* The broker cannot extend: it closes the channel when a delivery is older than consumer_timeout. So a delivery is
 * extended until half of that time is over; then it is the last time. */
int once__rabbitmq_extend(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    rabbitmq_source *r = once__rabbitmq(source);
    const int64_t now_ms = once__rabbitmq_now_ms(r);
    (void)err;
    pthread_mutex_lock(&r->lock);
    const int64_t half_ms = r->hold_ms / 2;
    for (size_t i = 0; i < n; i++) {
        const rabbitmq_tag *tag = is_ours(r) ? find(r, &list[i]) : NULL;
        if (!tag) list[i].answer = ONCE_RECEIPT_GONE;
        else list[i].answer = now_ms - tag->came_ms < half_ms ? ONCE_RECEIPT_DONE : ONCE_RECEIPT_LAST;
    }
    pthread_mutex_unlock(&r->lock);
    return ONCE_OK;
}

int once__rabbitmq_release(once_source *source, uint32_t stream, once_error *err)
{
    rabbitmq_source *r = once__rabbitmq(source);
    (void)err;
    assert(stream == 0);
    (void)stream;
    pthread_mutex_lock(&r->lock);
    assert(r->state == RABBITMQ_OURS || r->state == RABBITMQ_LOST);
    r->state = r->state == RABBITMQ_LOST ? RABBITMQ_APART : RABBITMQ_OVER;
    pthread_mutex_unlock(&r->lock);
    source->ops->wake(source);
    return ONCE_OK;
}
