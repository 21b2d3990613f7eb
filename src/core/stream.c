/* Queues, tags and acks of one stream (core/stream.h). */
#include "core/stream.h"

#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

void once_queue_put(once_queue *queue, once_item *item, bool last)
{
    once_item *const next = last ? NULL : queue->first, *const prev = last ? queue->last : NULL;
    assert((queue->n == 0) == (queue->first == NULL) && (queue->n == 0) == (queue->last == NULL));
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
    stream->release_by_ms = stream->extend_at_ms = ONCE_NEVER;
    stream->paused_at_ms = ONCE_NO_TIME;
    once_watermark_init(&stream->mark);
    return stream;
}

void once_stream_free(once_stream *stream)
{
    if (!stream) return;
    once_deliveries_release(&stream->open);
    once_watermark_release(&stream->mark);
    free(stream->full);
    free(stream);
}

/* --- tags --- */

bool once_stream_reserve(once_stream *stream, size_t n)
{
    return stream->single ? once_deliveries_reserve(&stream->open, n) : once_watermark_reserve(&stream->mark, n);
}

uint64_t once_stream_begin(once_stream *stream, uint64_t delivery, once_item *item)
{
    return stream->single ? once_deliveries_begin(&stream->open, delivery, item)
                          : once_watermark_begin(&stream->mark, delivery, item);
}

once_delivery_state *once_stream_at(const once_stream *stream, uint64_t tag)
{
    return stream->single ? &once_deliveries_at(&stream->open, tag)->state : once_watermark_at(&stream->mark, tag);
}

uint64_t once_stream_first(const once_stream *stream)
{
    if (!stream->single) return once_stream_after(stream, stream->mark.kept);
    return stream->open.first ? stream->open.first : ONCE_ROUND_END;
}

uint64_t once_stream_after(const once_stream *stream, uint64_t tag)
{
    if (!stream->single) return tag + 1 < stream->mark.next ? tag + 1 : ONCE_ROUND_END;
    const uint64_t after = once_deliveries_at(&stream->open, tag)->after;
    return after ? after : ONCE_ROUND_END;
}

bool once_stream_all_over(const once_stream *stream)
{
    return stream->single ? stream->open.over == stream->open.n : stream->mark.upto + 1 == stream->mark.next;
}

/* --- acks --- */

/* From now on another delivery may get its tag. */
static void forget_single(once_stream *stream, uint64_t tag)
{
    if (stream->extend_from == tag) stream->extend_from = once_stream_after(stream, tag);
    once_deliveries_forget(&stream->open, tag);
}

void once_stream_end(once_stream *stream, uint64_t tag, bool gone, int64_t now_ms)
{
    if (!stream->single) {
        once_watermark_end(&stream->mark, tag, now_ms);
        return;
    }
    once_deliveries_end(&stream->open, tag, now_ms);
    if (gone) forget_single(stream, tag);
    else once_deliveries_list(&stream->open, tag);
}

void once_stream_forget(once_stream *stream, const once_item *item)
{
    if (!stream->single && item->tag <= stream->mark.kept) return;
    once_delivery_state *t = once_stream_at(stream, item->tag);
    if (!t->over && t->item == item) t->item = NULL;
}

/* Planted: with numbers instead of tags one would take the hole behind a message for the message. */
static uint64_t past_hole(const once_watermark *mark)
{
    uint64_t upto = mark->upto;
    while (upto + 2 < mark->next &&
           once_watermark_at(mark, upto + 2)->delivery > once_watermark_at(mark, upto + 1)->delivery + 1)
        upto++;
    return upto;
}

static uint64_t may_ack(const once_stream *stream)
{
    if (ONCE_PLANTED(hole_passed)) return past_hole(&stream->mark);
    return ONCE_PLANTED(ack_past_gap) ? stream->mark.next - 1 : stream->mark.upto;
}

bool once_stream_has_acks(const once_stream *stream)
{
    return stream->single ? stream->open.first_over != 0 : may_ack(stream) > stream->acked;
}

uint64_t once_stream_next_ack(once_stream *stream)
{
    if (stream->single) return once_deliveries_unlist(&stream->open);
    return may_ack(stream) > stream->acked ? may_ack(stream) : 0;
}

void once_stream_acked(once_stream *stream, uint64_t tag)
{
    if (stream->single) {
        forget_single(stream, tag);
        return;
    }
    assert(tag > stream->acked);
    stream->acked = tag;
    once_watermark_forget(&stream->mark, tag < stream->mark.upto ? tag : stream->mark.upto);
    if (stream->extend_from && stream->extend_from <= stream->mark.kept)
        stream->extend_from = once_stream_first(stream);
}

void once_stream_not_acked(once_stream *stream, uint64_t tag)
{
    if (stream->single) once_deliveries_list(&stream->open, tag);
}
