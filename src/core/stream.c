#include "core/stream.h"

#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

void once_queue_put(once_queue *queue, once_item *item, bool last)
{
    once_item *const next = last ? NULL : queue->first, *const prev = last ? queue->last : NULL;
    item->next = next;
    item->prev = prev;
    if (next) next->prev = item;
    else queue->last = item;
    if (prev) prev->next = item;
    else queue->first = item;
    queue->n++;
}

void once_queue_remove(once_queue *queue, once_item *item)
{
    assert(queue->n > 0 && (item->prev || queue->first == item) && (item->next || queue->last == item));
    if (item->prev) item->prev->next = item->next;
    else queue->first = item->next;
    if (item->next) item->next->prev = item->prev;
    else queue->last = item->prev;
    item->next = item->prev = NULL;
    queue->n--;
}

once_stream *once_stream_new(uint32_t number, bool single)
{
    once_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return NULL;
    stream->number = number;
    stream->single = single;
    stream->release_by_ms = stream->prolong_at_ms = ONCE_NEVER;
    stream->paused_at_ms = ONCE_NO_TIME;
    once_watermark_init(&stream->mark);
    return stream;
}

void once_stream_free(once_stream *stream)
{
    if (!stream) return;
    once_watermark_release(&stream->mark);
    free(stream->full);
    free(stream);
}

/* --- acks --- */

static void list_ack(once_stream *stream, uint64_t ticket)
{
    once_watermark_at(&stream->mark, ticket)->next = 0;
    if (stream->last) once_watermark_at(&stream->mark, stream->last)->next = ticket;
    else stream->first = ticket;
    stream->last = ticket;
}

/* Where acks are single, tickets are forgotten behind the first one that was not. */
static void forget_acked(once_stream *stream)
{
    uint64_t upto = stream->mark.kept;
    while (upto < stream->mark.upto && once_watermark_at(&stream->mark, upto + 1)->acked) upto++;
    once_watermark_forget(&stream->mark, upto);
}

void once_stream_end(once_stream *stream, uint64_t ticket, bool gone, int64_t now_ms)
{
    once_watermark_end(&stream->mark, ticket, now_ms);
    if (!stream->single) return;
    if (!gone) {
        list_ack(stream, ticket);
        return;
    }
    once_watermark_at(&stream->mark, ticket)->acked = true;
    forget_acked(stream);
}

void once_stream_forget(once_stream *stream, const once_item *item)
{
    if (item->ticket <= stream->mark.kept) return;
    once_ticket_state *t = once_watermark_at(&stream->mark, item->ticket);
    if (!t->over) t->item = NULL;
}

static uint64_t may_ack(const once_stream *stream)
{
    return ONCE_PLANTED(ack_past_gap) ? stream->mark.next - 1 : stream->mark.upto;
}

bool once_stream_has_acks(const once_stream *stream)
{
    return stream->single ? stream->first != 0 : may_ack(stream) > stream->acked;
}

uint64_t once_stream_next_ack(once_stream *stream)
{
    if (!stream->single) return may_ack(stream) > stream->acked ? may_ack(stream) : 0;
    const uint64_t ticket = stream->first;
    if (!ticket) return 0;
    stream->first = once_watermark_at(&stream->mark, ticket)->next;
    if (!stream->first) stream->last = 0;
    return ticket;
}

void once_stream_acked(once_stream *stream, uint64_t ticket)
{
    if (stream->single) {
        once_watermark_at(&stream->mark, ticket)->acked = true;
        forget_acked(stream);
        return;
    }
    assert(ticket > stream->acked);
    stream->acked = ticket;
    once_watermark_forget(&stream->mark, ticket < stream->mark.upto ? ticket : stream->mark.upto);
}

void once_stream_not_acked(once_stream *stream, uint64_t ticket)
{
    if (stream->single) list_ack(stream, ticket);
}
