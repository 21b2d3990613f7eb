/* Connections come and go: with one, the stream is ours; without it, it is lost (rabbitmq.h). */
#include <assert.h>

#include "base/duration.h"
#include "base/log.h"
#include "base/no_memory.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

#define CLOSE_MS 2000
#define JOIN_MS 10000    /* a run that stops waits for it */
#define PAUSE_MIN_MS 100 /* after a connection that failed */
#define PAUSE_MAX_MS 5000
#define PAUSE_LOST_MS 1000 /* the longest after one that did not last */
#define PAUSE_NOT_CONFIRMED_MS 300000

void once__rabbitmq_disconnect(amqp_connection_state_t connection, bool in_order)
{
    const struct timeval limit = {.tv_sec = CLOSE_MS / 1000};
    if (in_order) {
        (void)amqp_set_rpc_timeout(connection, &limit);
        (void)amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    }
    (void)amqp_destroy_connection(connection);
}

/* --- begin -------------------------------------------------------------------------------------------------------- */

/* False: out of memory. */
static bool report(once_fetch *fetch, once_stream_change change, int64_t expires_ms)
{
    assert(fetch->n_news == 0);
    fetch->news = once_arena_new(&fetch->batch->arena, once_stream_news, 1);
    if (!fetch->news) return false;
    fetch->news[0] = (once_stream_news){.change = change, .expires_ms = expires_ms};
    fetch->n_news = 1;
    return true;
}

/* Deliveries are extended often enough that each is asked for between half and three quarters of its time. */
static int64_t expires_ms(const rabbitmq_source *r) { return r->hold_ms == ONCE_FOREVER ? 0 : r->hold_ms / 4; }

static void begin(rabbitmq_source *r, amqp_connection_state_t connection)
{
    pthread_mutex_lock(&r->lock);
    assert(r->state == RABBITMQ_APART && !r->connection && r->tags.open == 0);
    r->connection = connection;
    r->fd = amqp_get_sockfd(connection);
    r->before += r->last_tag;
    r->last_tag = 0;
    pthread_mutex_unlock(&r->lock);
    r->joined_ms = once__rabbitmq_now_ms(r);
    r->question = (rabbitmq_question){0};
    r->consumer = (rabbitmq_consumer){.wanted_ms = r->joined_ms};
    r->offset_seen = false;
}

/* Ends the use of the connection, and returns why it was broken. */
static once_error end(rabbitmq_source *r, bool *ours, size_t *open)
{
    pthread_mutex_lock(&r->lock);
    const once_error why = r->why;
    const amqp_connection_state_t connection = r->connection;
    *ours = r->state == RABBITMQ_OURS;
    *open = r->tags.open;
    if (*ours) r->state = RABBITMQ_LOST;
    r->connection = NULL;
    r->fd = -1;
    r->broken = false;
    once__rabbitmq_tags_clear(&r->tags);
    atomic_store(&r->ready, -1);
    pthread_mutex_unlock(&r->lock);
    once__rabbitmq_disconnect(connection, false);
    once__rabbitmq_forget(r);
    return why;
}

/* Becomes a consumer, if messages are wanted. It is one when the broker confirms that.
 *
 * A quorum queue without a majority of its nodes confirms nothing, but keeps the request, and carries it out when it
 * can. If we were gone then, it would deliver to a consumer that is not there, and count that as a delivery of these
 * messages, for each request: at its delivery limit they would be lost. So a request is not given up soon. */
static int consume(rabbitmq_source *r, bool wanted, once_error *err)
{
    const int64_t until_ms = once__rabbitmq_now_ms(r) + ONCE_RABBITMQ_CONFIRM_MS;
    int64_t left_ms = ONCE_RABBITMQ_CONFIRM_MS;
    if (wanted) once__rabbitmq_consume(r, r->prefetch);
    while (left_ms > 0 && r->consumer.state == RABBITMQ_ASKED && !once__rabbitmq_is_broken(r)) {
        (void)once__rabbitmq_wait(r, left_ms);
        once__rabbitmq_receive(r);
        left_ms = until_ms - once__rabbitmq_now_ms(r);
    }
    if (!once__rabbitmq_is_broken(r)) return ONCE_OK;
    bool ours;
    size_t open;
    const once_error why = end(r, &ours, &open);
    assert(!ours);
    return once_fail(err, why.status, "%s", why.text);
}

static int try_join(rabbitmq_source *r, once_fetch *fetch, once_error *err)
{
    amqp_connection_state_t connection;
    rabbitmq_counts counts;
    int rc = once__rabbitmq_connect(r, JOIN_MS - ONCE_RABBITMQ_CONFIRM_MS, &connection, &counts, err);
    if (rc != ONCE_OK) return rc;
    rc = once__rabbitmq_ask_hold(r, err);
    if (rc == ONCE_OK && !report(fetch, ONCE_STREAM_ASSIGNED, expires_ms(r))) rc = once_no_memory(err, "for a batch");
    if (rc != ONCE_OK) {
        once__rabbitmq_disconnect(connection, true);
        return rc;
    }
    begin(r, connection);
    rc = consume(r, fetch->max > 0, err);
    if (rc != ONCE_OK) {
        fetch->n_news = 0;
        return rc;
    }
    pthread_mutex_lock(&r->lock);
    r->state = RABBITMQ_OURS;
    pthread_mutex_unlock(&r->lock);
    return ONCE_OK;
}

/* Nothing is tried before the pause is over, which grows from try to try. */
static void pause_tries(rabbitmq_source *r, int64_t max_ms)
{
    r->pause_ms = r->pause_ms == 0 ? PAUSE_MIN_MS : 2 * r->pause_ms;
    if (r->pause_ms > max_ms) r->pause_ms = max_ms;
    r->again_ms = once__rabbitmq_now_ms(r) + r->pause_ms;
}

/* A try may block for seconds. Between two of them fetches return at once, so that a run can stop. */
int once__rabbitmq_join(rabbitmq_source *r, once_fetch *fetch, once_error *err)
{
    if (once__rabbitmq_now_ms(r) >= r->again_ms) {
        const int rc = try_join(r, fetch, &r->apart);
        if (rc == ONCE_OK) return rc;
        pause_tries(r, PAUSE_MAX_MS);
    }
    if (r->apart.status != ONCE_OK) return once_fail(err, r->apart.status, "%s", r->apart.text);
    if (fetch->max > 0) (void)once__rabbitmq_wait(r, PAUSE_MIN_MS);
    return ONCE_OK;
}

/* A broker that takes every connection and soon closes it must not be called all the time: each time messages may be
 * delivered in vain, and a queue may count that. */
static void pause_after_loss(rabbitmq_source *r)
{
    r->apart.status = ONCE_OK;
    const int64_t asked_ms = once__rabbitmq_now_ms(r) - r->consumer.asked_ms;
    if (r->consumer.state == RABBITMQ_ASKED && asked_ms >= ONCE_RABBITMQ_CONFIRM_MS) {
        /* Each request may count as a delivery later (consume). */
        if (r->pause_ms < PAUSE_MAX_MS) r->pause_ms = PAUSE_MAX_MS;
        pause_tries(r, PAUSE_NOT_CONFIRMED_MS);
    } else if (once__rabbitmq_now_ms(r) - r->joined_ms < PAUSE_MAX_MS) {
        pause_tries(r, PAUSE_LOST_MS);
    } else {
        r->pause_ms = 0;
        r->again_ms = once__rabbitmq_now_ms(r);
    }
}

/* --- end ---------------------------------------------------------------------------------------------------------- */

int once__rabbitmq_lose(rabbitmq_source *r, once_fetch *fetch, once_error *err)
{
    bool ours;
    size_t open;
    if (!report(fetch, ONCE_STREAM_LOST, 0)) return once_no_memory(err, "for a batch");
    const once_error why = end(r, &ours, &open);
    if (!ours) fetch->n_news = 0;                                          /* it was released meanwhile */
    if (once_status_class(why.status) == ONCE_CLASS_USAGE) r->ended = why; /* of no use to try again */
    r->asked = false; /* its limit may be another one now, and the reason */
    pause_after_loss(r);
    char pause[ONCE_DURATION_TEXT];
    once_log(ONCE_LOG_WARN, "rabbitmq_lost",
             "%s; %zu message%s not acked and will be delivered again; it connects again %s%s", why.text, open,
             open == 1 ? " was" : "s were", r->pause_ms ? "in " : "now",
             r->pause_ms ? once_duration_format(r->pause_ms, pause) : "");
    return ONCE_OK;
}
