#include "core/watermark.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

bool once_watermark_init(once_watermark *mark, size_t outstanding)
{
    *mark = (once_watermark){.over = calloc(outstanding + 1, sizeof *mark->over), .size = outstanding + 1};
    return mark->over != NULL;
}

void once_watermark_release(once_watermark *mark)
{
    free(mark->over);
    *mark = (once_watermark){0};
}

void once_watermark_end(once_watermark *mark, uint64_t ticket)
{
    assert(ticket > mark->upto && ticket - mark->upto < mark->size);
    assert(!mark->over[ticket % mark->size]);
    mark->over[ticket % mark->size] = true;
    while (mark->over[(mark->upto + 1) % mark->size]) mark->over[++mark->upto % mark->size] = false;
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
