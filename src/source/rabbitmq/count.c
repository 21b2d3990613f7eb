/* Asks the broker now and then how many messages there are, in the channel of the consumer: a passive queue.declare,
 * whose answer comes among the deliveries.
 *
 * The answer also shows that the channel works. Heartbeats do not: the broker sends them for the whole connection,
 * while the channel may wait for a queue. RabbitMQ itself gives up waiting for a quorum queue after 65 s, and closes
 * the channel then; we wait for longer (join.c says why). */
#include <inttypes.h>
#include <stdio.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define EVERY_MS 2000
#define HUNG_MS 90000 /* a channel in which nothing came for so long, although an answer is due */

/* With messages in the machine, nothing is gained: they would come again, and there is work to do. With the lock. */
static bool is_hung(const rabbitmq_source *r, int64_t now_ms)
{
    const rabbitmq_question *q = &r->question;
    const int64_t since_ms = q->asked_ms > q->heard_ms ? q->asked_ms : q->heard_ms;
    return q->asked_ms && r->tags.open == r->n_waiting && now_ms - since_ms >= HUNG_MS;
}

/* With the lock. */
static void give_up(rabbitmq_source *r)
{
    once_error why;
    (void)once_fail(&why, ONCE_E_UNAVAILABLE,
                    "queue '%s': the broker sends heartbeats, but for %d s it has neither sent a message nor said how "
                    "many there are",
                    r->queue, HUNG_MS / 1000);
    once__rabbitmq_note(r, &why);
}

/* With the lock. */
static void ask(rabbitmq_source *r, int64_t now_ms)
{
    amqp_queue_declare_t question = {.queue = amqp_cstring_bytes(r->queue), .passive = 1};
    if (once__rabbitmq_send(r, AMQP_QUEUE_DECLARE_METHOD, &question)) r->question.asked_ms = now_ms;
}

void once__rabbitmq_count(rabbitmq_source *r)
{
    const int64_t now_ms = once__rabbitmq_now_ms(r);
    pthread_mutex_lock(&r->lock);
    if (!r->broken && !r->question.asked_ms && now_ms >= r->question.next_ms) ask(r, now_ms);
    if (!r->broken && is_hung(r, now_ms)) give_up(r);
    pthread_mutex_unlock(&r->lock);
}

/* Without a consumer there may be none at all; then only a queue that has messages shows that it was counted. */
void once__rabbitmq_counted(rabbitmq_source *r, rabbitmq_counts counts)
{
    const bool consumes = r->consumer.state == RABBITMQ_CONSUMES;
    const bool known = counts.consumers || (!consumes && counts.ready);
    r->question.next_ms = once__rabbitmq_now_ms(r) + EVERY_MS;
    r->question.asked_ms = 0;
    if (consumes) {
        r->question.answered = true;
        r->question.counts = counts;
    }
    atomic_store(&r->here, (int64_t)r->tags.open);
    atomic_store(&r->ready, known ? (int64_t)counts.ready : -1);
}

int64_t once__rabbitmq_lag(once_source *source, uint32_t stream)
{
    rabbitmq_source *r = once__rabbitmq(source);
    const int64_t ready = stream == 0 ? atomic_load(&r->ready) : -1;
    return ready < 0 ? -1 : ready + atomic_load(&r->here);
}

void once__rabbitmq_lag_parts(once_source *source, uint32_t stream, char out[ONCE_LAG_PARTS])
{
    rabbitmq_source *r = once__rabbitmq(source);
    const int64_t ready = stream == 0 ? atomic_load(&r->ready) : -1;
    *out = '\0';
    if (ready >= 0)
        (void)snprintf(out, ONCE_LAG_PARTS, "%" PRId64 " ready, %" PRId64 " of this worker not acked", ready,
                       atomic_load(&r->here));
}
