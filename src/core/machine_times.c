/* When items reached their stages, and how long they took from one to the next. The times are those of the machine's
 * calls, so no clock is read for them. They are only counted when an item is over, and decide nothing. */
#include "core/machine_impl.h"

#include <assert.h>

#include "core/timing.h"

#include "base/banned.h"

void once__machine_note_received(const once_machine *machine, once_item *item)
{
    item->times = (once_item_times){machine->now_ms, ONCE_NO_TIME, ONCE_NO_TIME, ONCE_NO_TIME};
}

/* What has returned is claimed only to settle it: the answer that let it begin counts. */
void once__machine_note_claimed(const once_machine *machine, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!items[i]->returned) items[i]->times.claimed_ms = machine->now_ms;
}

void once__machine_note_started(const once_machine *machine, once_item *const *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert(items[i]->times.claimed_ms != ONCE_NO_TIME);
        items[i]->times.started_ms = machine->now_ms;
    }
}

/* Its transaction begins anew. A claim from before the transaction stays. */
void once__item_forget_times(once_item *item)
{
    item->times.started_ms = ONCE_NO_TIME;
    if (!item->held) item->times.claimed_ms = ONCE_NO_TIME;
}

/* After the commit. Stages that the item did not reach add nothing. */
void once__machine_note_settled(once_machine *machine, once_item *item)
{
    once_item_times *t = &item->times;
    assert(t->received_ms != ONCE_NO_TIME && t->settled_ms == ONCE_NO_TIME);
    t->settled_ms = machine->now_ms;
    once_timing_between(&machine->timings.claim, t->received_ms, t->claimed_ms);
    once_timing_between(&machine->timings.start, t->claimed_ms, t->started_ms);
    once_timing_between(&machine->timings.settle, t->started_ms, t->settled_ms);
}

/* All deliveries that are acked are over, unless a planted bug acks more. */
void once__machine_note_acked(once_machine *machine, const once_stream *stream, uint64_t from, uint64_t upto)
{
    assert(from <= upto);
    for (uint64_t tag = from; tag <= upto && (stream->single || tag <= stream->mark.upto); tag++)
        once_timing_add(&machine->timings.ack, once_delivery_age_ms(once_stream_at(stream, tag), machine->now_ms));
}
