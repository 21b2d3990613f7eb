/* The watermark of a stream (core/watermark.h). The ring has a power of two places; a tag is at the place of its low
 * bits. */
#include "core/watermark.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

enum { SMALLEST = 16 };

void once_watermark_init(once_watermark *mark) { *mark = (once_watermark){.next = 1}; }

void once_watermark_release(once_watermark *mark)
{
    free(mark->ring);
    *mark = (once_watermark){.next = 1};
}

once_delivery_state *once_watermark_at(const once_watermark *mark, uint64_t tag)
{
    assert(tag > mark->kept && tag < mark->next);
    return &mark->ring[tag & (mark->size - 1)];
}

bool once_watermark_reserve(once_watermark *mark, size_t n)
{
    const size_t used = (size_t)(mark->next - 1 - mark->kept);
    size_t size = mark->size ? mark->size : SMALLEST;
    while (size < used + n) size *= 2;
    if (size == mark->size) return true;
    once_delivery_state *ring = calloc(size, sizeof *ring);
    if (!ring) return false;
    for (uint64_t tag = mark->kept + 1; tag < mark->next; tag++) ring[tag & (size - 1)] = *once_watermark_at(mark, tag);
    free(mark->ring);
    mark->ring = ring;
    mark->size = size;
    return true;
}

uint64_t once_watermark_begin(once_watermark *mark, uint64_t delivery, once_item *item)
{
    assert(mark->next - mark->kept <= mark->size);
    const uint64_t tag = mark->next++;
    *once_watermark_at(mark, tag) = (once_delivery_state){.delivery = delivery, .item = item};
    return tag;
}

/* The last tag, from `upto` on, before the first one that is not over. */
static uint64_t before_gap(const once_watermark *mark, uint64_t upto)
{
    while (upto + 1 < mark->next && once_watermark_at(mark, upto + 1)->over) upto++;
    return upto;
}

void once_watermark_end(once_watermark *mark, uint64_t tag, int64_t now_ms)
{
    once_delivery_state *t = once_watermark_at(mark, tag);
    assert(!t->over);
    t->over = true;
    t->ended_ms = now_ms;
    mark->upto = before_gap(mark, mark->upto);
}

int64_t once_delivery_age_ms(const once_delivery_state *tag, int64_t now_ms)
{
    assert(tag->over);
    return now_ms - tag->ended_ms;
}

void once_watermark_forget(once_watermark *mark, uint64_t upto)
{
    assert(upto >= mark->kept && upto <= mark->upto && mark->upto < mark->next);
    mark->kept = upto;
}

void once_watermark_peek(once_watermark *mark, uint64_t tag, bool over)
{
    once_delivery_state *t = once_watermark_at(mark, tag);
    assert(t->over != over);
    t->over = over;
}

uint64_t once_watermark_peeked(const once_watermark *mark) { return before_gap(mark, mark->upto); }
