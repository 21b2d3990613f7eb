/* Takes frames from the connection, and makes messages of them: a method, a header with the properties, and bodies.
 *
 * librabbitmq's own function for that waits until a message is whole, and would hold the lock for that long. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

void once__rabbitmq_note(rabbitmq_source *r, const once_error *why)
{
    assert(why->status != ONCE_OK);
    if (r->broken) return; /* the first reason counts */
    r->broken = true;
    r->why = *why;
}

void once__rabbitmq_forget(rabbitmq_source *r)
{
    for (rabbitmq_message *next; r->waiting; r->waiting = next) {
        next = r->waiting->next;
        free(r->waiting);
    }
    free(r->part);
    r->part = NULL;
    r->deliver = NULL;
    r->in_message = false;
    r->waiting_end = &r->waiting;
    r->n_waiting = 0;
}

#define SECONDS_MAX 100000000000 /* in the year 5138 */
#define TAG_MAX ((uint64_t)1 << 48)
#define OUT_OF_TURN "the broker sent a frame out of turn"

/* --- messages ----------------------------------------------------------------------------------------------------- */

static bool fail(rabbitmq_source *r, int status, const char *text)
{
    once_error why;
    (void)once_fail(&why, status, "queue '%s': %s", r->queue, text);
    once__rabbitmq_note(r, &why);
    return false;
}

/* All of its frames came. */
static bool finish(rabbitmq_source *r)
{
    rabbitmq_message *m = r->part;
    if (!once__rabbitmq_tags_add(&r->tags, m->tag, once__rabbitmq_now_ms(r)))
        return fail(r, ONCE_E_NOMEM, "out of memory for a message");
    r->last_tag = m->tag;
    m->next = NULL;
    *r->waiting_end = m;
    r->waiting_end = &m->next;
    r->n_waiting++;
    r->consumer.came++;
    r->part = NULL;
    r->deliver = NULL;
    r->in_message = false;
    return true;
}

/* AMQP's timestamp is in seconds. Many producers write milliseconds; as seconds they would be thousands of years ahead,
 * and the message would be remembered for that long. One that is out of range is none. */
static int64_t sent_ms(const amqp_basic_properties_t *p)
{
    if (!(p->_flags & AMQP_BASIC_TIMESTAMP_FLAG) || p->timestamp > SECONDS_MAX * 1000) return ONCE_NO_TIME;
    return (int64_t)p->timestamp * (p->timestamp > SECONDS_MAX ? 1 : 1000);
}

/* Tags grow. One that is out of range would be that of a later connection (rabbitmq.h). */
static bool on_deliver(rabbitmq_source *r, amqp_basic_deliver_t *deliver)
{
    if (r->in_message || deliver->delivery_tag <= r->last_tag || deliver->delivery_tag > TAG_MAX)
        return fail(r, ONCE_E_UNAVAILABLE, OUT_OF_TURN);
    r->in_message = true;
    r->deliver = deliver;
    return true;
}

/* A message has the header of a stream. It may have kept it on its way from a stream to this queue, but a stream counts
 * no consumers, although we are one. Neither does a quorum queue without a leader, which counts no messages then: the
 * next connection asks it again. False: it is no queue. */
static bool is_queue(rabbitmq_source *r)
{
    const rabbitmq_counts *counts = &r->question.counts;
    if (counts->consumers > 0) return true;
    if (counts->ready == 0) return fail(r, ONCE_E_UNAVAILABLE, "it may be a stream, and must be asked again");
    return fail(r, ONCE_E_CONFIG, "it is a stream, from which an ack removes nothing; use a classic or quorum queue");
}

static bool on_header(rabbitmq_source *r, const amqp_frame_t *frame)
{
    const amqp_basic_properties_t *p = frame->payload.properties.decoded;
    const uint64_t size = frame->payload.properties.body_size;
    if (!r->in_message || r->part || frame->payload.properties.class_id != AMQP_BASIC_CLASS)
        return fail(r, ONCE_E_UNAVAILABLE, OUT_OF_TURN);
    const bool has_table = p->_flags & AMQP_BASIC_HEADERS_FLAG;
    if (has_table && once__rabbitmq_header(&p->headers, "x-stream-offset")) {
        r->offset_seen = true;
        if (r->question.answered && !is_queue(r)) return false;
    }
    if (!once__rabbitmq_headers(r, r->deliver, p)) return fail(r, ONCE_E_NOMEM, "out of memory for a message");
    const size_t max = r->base.spec->message_max, room = size < max ? (size_t)size : max;
    rabbitmq_message *m = malloc(sizeof *m + r->text.len + room);
    if (!m) return fail(r, ONCE_E_NOMEM, "out of memory for a message");
    *m = (rabbitmq_message){
        .tag = r->deliver->delivery_tag, .sent_ms = sent_ms(p), .size = size, .headers_len = r->text.len};
    if (r->text.len) memcpy(m->bytes, r->text.data, r->text.len);
    r->part = m;
    r->left = size;
    return size > 0 || finish(r);
}

static bool on_body(rabbitmq_source *r, amqp_bytes_t bytes)
{
    rabbitmq_message *m = r->part;
    if (!m || bytes.len > r->left) return fail(r, ONCE_E_UNAVAILABLE, OUT_OF_TURN);
    const size_t max = r->base.spec->message_max, room = max - m->body_len;
    const size_t len = bytes.len < room ? bytes.len : room;
    if (len) memcpy(m->bytes + m->headers_len + m->body_len, bytes.bytes, len);
    m->body_len += len;
    r->left -= bytes.len;
    return r->left > 0 || finish(r);
}

/* --- what else the broker says ------------------------------------------------------------------------------------ */

static bool on_close(rabbitmq_source *r, uint16_t code, amqp_bytes_t text, const char *what)
{
    once_error why;
    (void)once__rabbitmq_closed(&why, code, text, "%s of queue '%s' was closed", what, r->queue);
    once__rabbitmq_note(r, &why);
    return false;
}

static bool on_counts(rabbitmq_source *r, const amqp_queue_declare_ok_t *ok)
{
    const bool before = r->question.answered;
    once__rabbitmq_counted(r, (rabbitmq_counts){.ready = ok->message_count, .consumers = ok->consumer_count});
    return before || !r->question.answered || !r->offset_seen || is_queue(r);
}

static bool on_consumes(rabbitmq_source *r)
{
    if (r->consumer.state != RABBITMQ_ASKED) return fail(r, ONCE_E_UNAVAILABLE, OUT_OF_TURN);
    r->consumer.state = RABBITMQ_CONSUMES;
    if (r->consumer.n == 1)
        once_log(ONCE_LOG_INFO, "rabbitmq_connected", "consumes queue '%s' at '%s:%d'", r->queue,
                 r->address.url.host.data, r->address.url.port);
    return true;
}

/* Every message of the consumer came before. */
static bool on_left(rabbitmq_source *r) { return once__rabbitmq_left(r) || fail(r, ONCE_E_UNAVAILABLE, OUT_OF_TURN); }

static bool on_method(rabbitmq_source *r, const amqp_method_t *m)
{
    switch (m->id) {
    case AMQP_BASIC_DELIVER_METHOD: return on_deliver(r, m->decoded);
    case AMQP_BASIC_CONSUME_OK_METHOD: return on_consumes(r);
    case AMQP_BASIC_CANCEL_OK_METHOD: return on_left(r);
    case AMQP_QUEUE_DECLARE_OK_METHOD: return on_counts(r, m->decoded);
    case AMQP_BASIC_CANCEL_METHOD:
        return fail(r, ONCE_E_UNAVAILABLE,
                    "the broker cancelled the consumer; the queue was deleted, or its node or leader went away");
    case AMQP_CHANNEL_CLOSE_METHOD: {
        const amqp_channel_close_t *close = m->decoded;
        return on_close(r, close->reply_code, close->reply_text, "the channel");
    }
    case AMQP_CONNECTION_CLOSE_METHOD: {
        const amqp_connection_close_t *close = m->decoded;
        return on_close(r, close->reply_code, close->reply_text, "the connection");
    }
    case AMQP_CONNECTION_BLOCKED_METHOD:
        once_log(ONCE_LOG_WARN, "rabbitmq_blocked",
                 "the broker is short of memory or disk and takes no messages from producers; messages of queue '%s' "
                 "are read and acked as before",
                 r->queue);
        return true;
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        once_log(ONCE_LOG_INFO, "rabbitmq_unblocked", "the broker takes messages from producers again");
        return true;
    default: return true;
    }
}

/* False: the connection is broken. */
static bool on_frame(rabbitmq_source *r, const amqp_frame_t *frame)
{
    switch (frame->frame_type) {
    case AMQP_FRAME_METHOD: return on_method(r, &frame->payload.method);
    case AMQP_FRAME_HEADER: return on_header(r, frame);
    case AMQP_FRAME_BODY: return on_body(r, frame->payload.body_fragment);
    default: return true;
    }
}

/* Takes one frame, if one is there. With the lock. */
static bool take_frame(rabbitmq_source *r)
{
    static const struct timeval at_once = {0};
    amqp_frame_t frame;
    if (r->broken) return false;
    const int status = amqp_simple_wait_frame_noblock(r->connection, &frame, &at_once); /* sends heartbeats, too */
    if (status == AMQP_STATUS_TIMEOUT) return false;
    if (status != AMQP_STATUS_OK) {
        once_error why;
        (void)once__rabbitmq_broke(&why, status, "the connection of queue '%s' broke", r->queue);
        once__rabbitmq_note(r, &why);
        return false;
    }
    const bool goes_on = on_frame(r, &frame);
    if (!r->in_message) amqp_maybe_release_buffers_on_channel(r->connection, ONCE_RABBITMQ_CHANNEL);
    return goes_on;
}

void once__rabbitmq_receive(rabbitmq_source *r)
{
    size_t n = 0;
    for (bool more = true; more; n += more) {
        pthread_mutex_lock(&r->lock);
        more = take_frame(r);
        pthread_mutex_unlock(&r->lock);
    }
    if (n) r->question.heard_ms = once__rabbitmq_now_ms(r);
}
