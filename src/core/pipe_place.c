/* Where items are: the batches that they live in, the queue, the lists, and the one function that moves an item from
 * one place to another. */
#include "core/pipe.h"

#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

once_batch *once__pipe_batch_get(once_pipe *pipe)
{
    once_batch *batch = pipe->batches.spare;
    if (batch) {
        pipe->batches.spare = batch->next;
        batch->next = NULL;
    } else {
        batch = calloc(1, sizeof *batch);
        if (!batch) return NULL;
        batch->all = pipe->batches.all;
        pipe->batches.all = batch;
    }
    return batch;
}

void once__pipe_batch_put(once_pipe *pipe, once_batch *batch)
{
    once_arena_reset(&batch->arena);
    assert(pipe->batches.held_bytes >= batch->bytes);
    pipe->batches.held_bytes -= batch->bytes;
    batch->items = NULL;
    batch->n = batch->open = batch->bytes = 0;
    batch->taken_in = false;
    batch->next = pipe->batches.spare;
    pipe->batches.spare = batch;
}

void once__pipe_batch_let_go(once_pipe *pipe, once_batch *batch)
{
    assert(batch->open > 0);
    if (--batch->open == 0) once__pipe_batch_put(pipe, batch);
}

void once__item_forget_output(once_item *item)
{
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
}

static once_queue *queue_of(once_pipe *pipe, const once_item *item)
{
    if (!item->from) return &pipe->ready.taken;
    return item->full ? &item->from->full[item->handler - pipe->spec->handlers] : &item->from->ready;
}

/* What comes from the source is the last of its queue; what goes back to it was before all that is there. */
void once__pipe_ready_put(once_pipe *pipe, once_item *item, bool last)
{
    const size_t bytes = item->message.body.len;
    assert(!item->full || item->from);
    once_queue_put(queue_of(pipe, item), item, last);
    if (item->full) item->from->full_n++;
    if (item->from) item->from->ready_bytes += bytes;
    pipe->ready.n++;
    pipe->ready.bytes += bytes;
}

void once__pipe_ready_take(once_pipe *pipe, once_item *item)
{
    const size_t bytes = item->message.body.len;
    once_queue_remove(queue_of(pipe, item), item);
    if (item->full) item->from->full_n--;
    item->full = false;
    if (item->from) item->from->ready_bytes -= bytes;
    pipe->ready.n--;
    pipe->ready.bytes -= bytes;
}

static void back_put(once_pipe *pipe, once_item *item)
{
    item->returned = true;
    item->came_to = item->outcome;
    item->came_with = item->result;
    item->next = NULL;
    if (pipe->outside.back) pipe->outside.back_last->next = item;
    else pipe->outside.back = item;
    pipe->outside.back_last = item;
}

/* Who is claimed in the transaction that settles it may have its slot. */
static void back_take(once_pipe *pipe, const once_item *item)
{
    assert(pipe->outside.back == item);
    pipe->outside.back = item->next;
    once_flight_unreserve(&pipe->outside.flight, item);
}

static void work_put(once_pipe *pipe, once_item *item)
{
    assert(pipe->work.n < pipe->work.size);
    pipe->work.items[pipe->work.n++] = item;
}

/* For a slot of its handler; where there is none for it again, it is before those that came later. */
static bool has_waited(const once_item *item)
{
    return item->from && item->joined && once__item_is_external(item) && !item->held;
}

#define TO(place) (1u << ONCE_AT_##place)

/* What may follow what. */
static const unsigned may_follow[ONCE_AT_PLACES] = {
    [ONCE_AT_NEW] = TO(READY) | TO(WORK) | TO(FLIGHT) | TO(OVER),
    [ONCE_AT_READY] = TO(PARKED) | TO(WORK) | TO(OVER),
    [ONCE_AT_PARKED] = TO(READY) | TO(OVER),
    [ONCE_AT_WORK] = TO(READY) | TO(FLIGHT) | TO(OVER),
    [ONCE_AT_FLIGHT] = TO(RETURNED),
    [ONCE_AT_RETURNED] = TO(WORK) | TO(OVER),
    [ONCE_AT_OVER] = 0,
};

static bool is_counted(once_item_place place) { return place != ONCE_AT_NEW && place != ONCE_AT_OVER; }

/* The one function that changes where an item is, and with it the list that it is in. Only the work is left by whoever
 * ends or shortens it, all at once. An item that is over must not be looked at any more: its memory goes with the last
 * one of its batch. */
void once__pipe_move(once_pipe *pipe, once_item *item, once_item_place to)
{
    const once_item_place from = item->place;
    assert(may_follow[from] & (1u << to));
    if (is_counted(from) && !(ONCE_PLANTED(parked_kept) && from == ONCE_AT_PARKED)) pipe->at[from]--;
    if (is_counted(to)) pipe->at[to]++;
    if (item->from && is_counted(from)) item->from->at[from]--;
    if (item->from && is_counted(to)) item->from->at[to]++;
    if (from == ONCE_AT_NEW) once__pipe_note_received(pipe, item);
    if (from == ONCE_AT_READY) once__pipe_ready_take(pipe, item);
    if (from == ONCE_AT_FLIGHT) once_flight_back(&pipe->outside.flight, item);
    if (from == ONCE_AT_RETURNED) back_take(pipe, item);
    item->place = to;
    switch (to) {
    case ONCE_AT_READY:
        item->full = from == ONCE_AT_WORK && has_waited(item);
        once__pipe_ready_put(pipe, item, from == ONCE_AT_NEW);
        break;
    case ONCE_AT_PARKED: once_key_queue_join(&pipe->key_queue, item); break;
    case ONCE_AT_WORK: work_put(pipe, item); break;
    case ONCE_AT_FLIGHT: once_flight_depart(&pipe->outside.flight, item, item->claimed_at_ms); break;
    case ONCE_AT_RETURNED: back_put(pipe, item); break;
    default:
        assert(to == ONCE_AT_OVER && !item->joined);
        if (item->from) once_stream_forget(item->from, item);
        item->from = NULL;
        once__item_forget_output(item);
        once__pipe_batch_let_go(pipe, item->batch);
    }
}

/* It is over, or out of our hands: those that stood behind it are next. */
void once__pipe_leave_key_queue(once_pipe *pipe, once_item *item)
{
    if (!item->joined) return;
    once_item *freed[2];
    const size_t n = once_key_queue_leave(&pipe->key_queue, item, freed);
    for (size_t i = n; i > 0; i--) once__pipe_move(pipe, freed[i - 1], ONCE_AT_READY);
}

void once__batch_free(once_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) free(batch->items[i].output);
    once_arena_release(&batch->arena);
    free(batch);
}
