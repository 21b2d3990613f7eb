/* The consumers of the channel: asked for, left, and asked for again.
 *
 * A message that came, and that the machine does not want for now (the store has no room, or is away), is held by
 * nobody but this source. When the broker's consumer_timeout is over, it closes the channel, and everything that is not
 * acked comes again; a quorum queue counts that as a delivery of each, time after time, up to its delivery limit. So
 * when nothing was wanted for a quarter of that time, or too little for all that came, the consumer is left: nothing
 * more comes. What has waited for
 * half of that time is given back. A quorum queue counts this, too, but it happens once. All workers with the same
 * trouble should have left before the first of them gives back: otherwise they give it to each other.
 *
 * The queue is consumed again when the machine wants messages. After something was given back, no more are asked for
 * than it wants: what is taken at once is not given back again. If it has taken all of them and wants more, they become
 * twice as many, up to `prefetch`. A consumer keeps the limit that it was made with, so another one is added for that:
 * a queue whose only consumer leaves might be deleted (auto-delete), or go to another worker. */
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/duration.h"
#include "base/log.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define NACKS 512 /* sent in one go, if the socket takes bytes */

static void note_broken(rabbitmq_source *r, int status)
{
    once_error why;
    (void)once__rabbitmq_broke(&why, status, "the connection of queue '%s' broke", r->queue);
    once__rabbitmq_note(r, &why);
}

static bool can_send(const rabbitmq_source *r)
{
    struct pollfd fd = {.fd = r->fd, .events = POLLOUT};
    return !r->broken && poll(&fd, 1, 0) > 0;
}

bool once__rabbitmq_send(rabbitmq_source *r, amqp_method_number_t method, void *decoded)
{
    if (!can_send(r)) return false;
    const int status = amqp_send_method(r->connection, ONCE_RABBITMQ_CHANNEL, method, decoded);
    if (status != AMQP_STATUS_OK) note_broken(r, status);
    return status == AMQP_STATUS_OK;
}

void once__rabbitmq_cork(const rabbitmq_source *r, int on)
{
    (void)setsockopt(r->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on); /* without it, each frame is a packet */
}

#define NAME_MAX_LEN 24

/* Each consumer has a name of its own: the broker knows by it which messages are whose. */
static amqp_bytes_t name_of(unsigned number, char out[NAME_MAX_LEN])
{
    return (amqp_bytes_t){.len = (size_t)snprintf(out, NAME_MAX_LEN, "once-%u", number), .bytes = out};
}

/* Those that earlier consumers got, and that are not acked, count as well. */
static size_t room_of(rabbitmq_source *r)
{
    pthread_mutex_lock(&r->lock);
    const size_t open = r->tags.open;
    pthread_mutex_unlock(&r->lock);
    return open < r->prefetch ? r->prefetch - open : 0;
}

void once__rabbitmq_consume(rabbitmq_source *r, size_t wanted)
{
    rabbitmq_consumer *c = &r->consumer;
    const size_t room = room_of(r), most = wanted < room ? wanted : room;
    char name[NAME_MAX_LEN];
    assert(c->state == RABBITMQ_NO_CONSUMER || c->state == RABBITMQ_CONSUMES);
    if (most == 0) return;
    amqp_basic_qos_t limit = {.prefetch_count = (uint16_t)most};
    amqp_basic_consume_t request = {.queue = amqp_cstring_bytes(r->queue), /* not exclusive: workers share the queue */
                                    .consumer_tag = name_of(c->number + 1, name)};
    pthread_mutex_lock(&r->lock);
    const bool sent = once__rabbitmq_send(r, AMQP_BASIC_QOS_METHOD, &limit) &&
                      once__rabbitmq_send(r, AMQP_BASIC_CONSUME_METHOD, &request);
    pthread_mutex_unlock(&r->lock);
    if (!sent) return;
    c->state = RABBITMQ_ASKED;
    c->number++;
    c->n++;
    c->most += most;
    c->asked_ms = once__rabbitmq_now_ms(r);
    c->warned = false;
}

/* All of them. What the socket does not take now is sent the next time. */
static void leave(rabbitmq_source *r)
{
    rabbitmq_consumer *c = &r->consumer;
    char name[NAME_MAX_LEN];
    bool sent = true;
    pthread_mutex_lock(&r->lock);
    while (sent && c->cancelled < c->n) {
        amqp_basic_cancel_t request = {.consumer_tag = name_of(c->number - c->cancelled, name)};
        sent = once__rabbitmq_send(r, AMQP_BASIC_CANCEL_METHOD, &request);
        if (sent) c->cancelled++;
    }
    pthread_mutex_unlock(&r->lock);
    if (c->cancelled) c->state = RABBITMQ_LEAVES;
}

bool once__rabbitmq_left(rabbitmq_source *r)
{
    rabbitmq_consumer *c = &r->consumer;
    if (c->state != RABBITMQ_LEAVES || c->left == c->cancelled) return false;
    if (++c->left < c->n) return true;
    *c = (rabbitmq_consumer){.number = c->number, .wanted_ms = c->wanted_ms, .gave_back = c->gave_back};
    return true;
}

/* Whether more wait than can be handed out, the first of them for so long; it came before all others that wait. */
static bool waits_in_vain(rabbitmq_source *r, size_t wanted, int64_t ms)
{
    if (!r->waiting || (r->n_waiting <= wanted && once__rabbitmq_can_give(r))) return false;
    pthread_mutex_lock(&r->lock);
    const rabbitmq_tag *tag = once__rabbitmq_tags_find(&r->tags, r->waiting->tag);
    assert(tag);
    const bool long_ago = once__rabbitmq_now_ms(r) - tag->came_ms >= ms;
    pthread_mutex_unlock(&r->lock);
    return long_ago;
}

/* One by one: an answer for several would cover those that were handed out, whose tags are lower. With the lock. */
static size_t nack_some(rabbitmq_source *r)
{
    size_t n = 0;
    int status = AMQP_STATUS_OK;
    once__rabbitmq_cork(r, 1);
    for (; n < NACKS && r->waiting; n++) {
        rabbitmq_message *m = r->waiting;
        status = amqp_basic_nack(r->connection, ONCE_RABBITMQ_CHANNEL, m->tag, 0, 1);
        if (status != AMQP_STATUS_OK) break;
        once__rabbitmq_tags_drop(&r->tags, m->tag);
        r->waiting = m->next;
        free(m);
    }
    once__rabbitmq_cork(r, 0);
    if (status != AMQP_STATUS_OK) note_broken(r, status);
    r->n_waiting -= n;
    if (!r->waiting) r->waiting_end = &r->waiting;
    return n;
}

static void give_back(rabbitmq_source *r)
{
    size_t n = 0;
    char half[ONCE_DURATION_TEXT];
    pthread_mutex_lock(&r->lock);
    while (r->waiting && can_send(r)) n += nack_some(r);
    (void)once_duration_format(r->hold_ms / 2, half);
    pthread_mutex_unlock(&r->lock);
    if (n) r->consumer.gave_back = true;
    if (n)
        once_log(ONCE_LOG_WARN, "rabbitmq_given_back",
                 "%zu message%s of queue '%s' could not be worked on for %s, half of consumer_timeout, and %s given "
                 "back; the queue is consumed again when there is room",
                 n, n == 1 ? "" : "s", r->queue, half, n == 1 ? "was" : "were");
}

static void warn_not_confirmed(rabbitmq_source *r)
{
    rabbitmq_consumer *c = &r->consumer;
    if (c->warned || once__rabbitmq_now_ms(r) - c->asked_ms < ONCE_RABBITMQ_CONFIRM_MS) return;
    c->warned = true;
    once_log(ONCE_LOG_WARN, "rabbitmq_not_confirmed",
             "the broker does not confirm that queue '%s' is consumed: a quorum queue cannot while a majority of its "
             "nodes is missing; it is waited for",
             r->queue);
}

/* One more consumer, so that all of them together may have twice as many messages. */
static void consume_more(rabbitmq_source *r)
{
    rabbitmq_consumer *c = &r->consumer;
    const size_t left = r->prefetch - c->most, more = c->most < left ? c->most : left;
    if (more == 0) c->gave_back = false; /* that is over */
    else if (c->came >= c->most && more <= room_of(r)) once__rabbitmq_consume(r, more);
}

void once__rabbitmq_tend(rabbitmq_source *r, size_t wanted)
{
    rabbitmq_consumer *c = &r->consumer;
    const int64_t now_ms = once__rabbitmq_now_ms(r);
    if (wanted) c->wanted_ms = now_ms;
    switch (c->state) {
    case RABBITMQ_NO_CONSUMER:
        if (waits_in_vain(r, wanted, r->hold_ms / 2)) give_back(r);
        else if (wanted && (!r->waiting || !once__rabbitmq_can_give(r)))
            once__rabbitmq_consume(r, c->gave_back ? wanted : r->prefetch);
        return;
    case RABBITMQ_ASKED: warn_not_confirmed(r); return;
    case RABBITMQ_CONSUMES:
        if (now_ms - c->wanted_ms >= r->hold_ms / 4 || waits_in_vain(r, wanted, r->hold_ms / 4)) leave(r);
        else if (wanted && !r->waiting) consume_more(r);
        return;
    case RABBITMQ_LEAVES: leave(r); return;
    }
}
