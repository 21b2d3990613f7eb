#include "core/watermark.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

bool once_watermark_init(once_watermark *mark, size_t outstanding)
{
    const size_t size = outstanding + 1;
    *mark = (once_watermark){
        .over = calloc(size, sizeof *mark->over), .ended_ms = calloc(size, sizeof *mark->ended_ms), .size = size};
    return mark->over && mark->ended_ms;
}

void once_watermark_release(once_watermark *mark)
{
    free(mark->over);
    free(mark->ended_ms);
    *mark = (once_watermark){0};
}

void once_watermark_end(once_watermark *mark, uint64_t ticket, int64_t now_ms)
{
    assert(ticket > mark->upto && ticket - mark->upto < mark->size);
    assert(!mark->over[ticket % mark->size]);
    mark->over[ticket % mark->size] = true;
    mark->ended_ms[ticket % mark->size] = (uint32_t)now_ms;
    while (mark->over[(mark->upto + 1) % mark->size]) mark->over[++mark->upto % mark->size] = false;
}

int64_t once_watermark_age_ms(const once_watermark *mark, uint64_t ticket, int64_t now_ms)
{
    assert(ticket > 0 && ticket <= mark->upto && mark->upto - ticket < mark->size);
    return (uint32_t)now_ms - mark->ended_ms[ticket % mark->size];
}

void once_watermark_peek(once_watermark *mark, uint64_t ticket, bool over)
{
    assert(ticket > mark->upto && ticket - mark->upto < mark->size);
    assert(mark->over[ticket % mark->size] != over);
    mark->over[ticket % mark->size] = over;
}

uint64_t once_watermark_peeked(const once_watermark *mark)
{
    uint64_t upto = mark->upto;
    while (mark->over[(upto + 1) % mark->size]) upto++;
    return upto;
}
