/* Where items are: their batches, their queues and lists, and the one function that moves an item from one place to
 * another. */
#include "core/machine_impl.h"

#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

once_batch *once__machine_batch_get(once_machine *machine)
{
    once_batch *batch = machine->batches.spare;
    if (batch) {
        machine->batches.spare = batch->next;
        batch->next = NULL;
    } else {
        batch = calloc(1, sizeof *batch);
        if (!batch) return NULL;
        batch->all = machine->batches.all;
        machine->batches.all = batch;
    }
    return batch;
}

void once__machine_batch_put(once_machine *machine, once_batch *batch)
{
    assert(batch->open == 0 || batch->n == 0 || batch->items[0].place == ONCE_AT_NEW);
    once_arena_reset(&batch->arena);
    assert(machine->batches.held_bytes >= batch->bytes);
    machine->batches.held_bytes -= batch->bytes;
    batch->items = NULL;
    batch->n = batch->open = batch->bytes = 0;
    batch->taken_in = false;
    batch->next = machine->batches.spare;
    machine->batches.spare = batch;
}

void once__machine_batch_let_go(once_machine *machine, once_batch *batch)
{
    assert(batch->open > 0);
    if (--batch->open == 0) once__machine_batch_put(machine, batch);
}

void once__item_forget_output(once_item *item)
{
    free(item->output);
    item->output = NULL;
    item->result = item->failure = (once_bytes){0};
}

static once_queue *queue_of(once_machine *machine, const once_item *item)
{
    if (!item->from) return &machine->ready.taken;
    return item->full ? &item->from->full[item->handler - machine->spec->handlers] : &item->from->ready;
}

/* A new item goes to the end of its queue. One that goes back was before all that are there, so it goes to the front.
 * */
void once__machine_ready_put(once_machine *machine, once_item *item, bool last)
{
    const size_t bytes = item->message.body.len;
    assert(!item->full || item->from);
    once_queue_put(queue_of(machine, item), item, last);
    if (item->full) item->from->full_n++;
    if (item->from) {
        item->from->ready_bytes += bytes;
        item->from->ready_keyless += once_hash_is_zero(item->request.id);
    }
    machine->ready.n++;
    machine->ready.bytes += bytes;
}

void once__machine_ready_take(once_machine *machine, once_item *item)
{
    const size_t bytes = item->message.body.len;
    assert(item->place == ONCE_AT_READY && machine->ready.n > 0 && machine->ready.bytes >= bytes);
    once_queue_remove(queue_of(machine, item), item);
    if (item->full) item->from->full_n--;
    item->full = false;
    if (item->from) {
        item->from->ready_bytes -= bytes;
        item->from->ready_keyless -= once_hash_is_zero(item->request.id);
    }
    machine->ready.n--;
    machine->ready.bytes -= bytes;
}

static void back_put(once_machine *machine, once_item *item)
{
    assert(item->returned);
    if (item->unwritten) {
        once_queue_put(&machine->outside.unwritten, item, true);
        return;
    }
    item->next = NULL;
    if (machine->outside.returned) machine->outside.returned_last->next = item;
    else machine->outside.returned = item;
    machine->outside.returned_last = item;
}

/* Its slot is free for a message that the same transaction claims. */
static void back_take(once_machine *machine, once_item *item)
{
    if (item->unwritten) {
        item->unwritten = false;
        once_queue_remove(&machine->outside.unwritten, item);
        return;
    }
    assert(machine->outside.returned == item);
    machine->outside.returned = item->next;
    once_flight_unreserve(&machine->outside.flight, item);
}

static void work_put(once_machine *machine, once_item *item)
{
    assert(machine->work.n < machine->work.size);
    machine->work.items[machine->work.n++] = item;
}

/* It has waited for room of its handler. If there is none again, it stays before those that came later. */
static bool has_waited(const once_item *item)
{
    const bool bounded = item->handler && (once_handler_external(item->handler) || item->handler->gate.rate.n);
    return item->from && item->joined && bounded && !item->held;
}

#define TO(place) (1u << ONCE_AT_##place)

/* What may follow what. */
static const unsigned may_follow[ONCE_AT_PLACES] = {
    [ONCE_AT_NEW] = TO(READY) | TO(WORK) | TO(FLIGHT) | TO(OVER),
    [ONCE_AT_READY] = TO(PARKED) | TO(WORK) | TO(OVER),
    [ONCE_AT_PARKED] = TO(READY) | TO(OVER),
    [ONCE_AT_WORK] = TO(READY) | TO(FLIGHT) | TO(RETURNED) | TO(OVER),
    [ONCE_AT_FLIGHT] = TO(RETURNED) | TO(OVER),
    [ONCE_AT_RETURNED] = TO(WORK) | TO(OVER),
    [ONCE_AT_OVER] = 0,
};

static bool is_counted(once_item_place place) { return place != ONCE_AT_NEW && place != ONCE_AT_OVER; }

/* The one function that changes the place of an item, and with it the list that it is in. Exception: the code that ends
 * or shortens the work takes items out of that list itself. Do not read an item after it moved to OVER: its memory is
 * freed with the last item of its batch. */
void once__machine_move(once_machine *machine, once_item *item, once_item_place to)
{
    const once_item_place from = item->place;
    assert(may_follow[from] & (1u << to));
    assert(from != ONCE_AT_WORK || to != ONCE_AT_RETURNED || item->unwritten);
    if (is_counted(from) && !(ONCE_PLANTED(parked_kept) && from == ONCE_AT_PARKED)) machine->at[from]--;
    if (is_counted(to)) machine->at[to]++;
    if (item->from && is_counted(from)) item->from->at[from]--;
    if (item->from && is_counted(to)) item->from->at[to]++;
    if (from == ONCE_AT_NEW) once__machine_note_received(machine, item);
    if (from == ONCE_AT_READY) once__machine_ready_take(machine, item);
    if (from == ONCE_AT_FLIGHT) once_flight_remove(&machine->outside.flight, item);
    if (from == ONCE_AT_RETURNED) back_take(machine, item);
    item->place = to;
    switch (to) {
    case ONCE_AT_READY:
        item->full = from == ONCE_AT_WORK && has_waited(item);
        once__machine_ready_put(machine, item, from == ONCE_AT_NEW);
        break;
    case ONCE_AT_PARKED: once_key_queue_join(&machine->key_queue, item); break;
    case ONCE_AT_WORK: work_put(machine, item); break;
    case ONCE_AT_FLIGHT: once_flight_add(&machine->outside.flight, item, item->claimed_at_ms); break;
    case ONCE_AT_RETURNED: back_put(machine, item); break;
    default:
        assert(to == ONCE_AT_OVER && !item->joined);
        if (item->from) once_stream_forget(item->from, item);
        item->from = NULL;
        once__item_forget_output(item);
        once__machine_batch_let_go(machine, item->batch);
    }
}

/* It is over, or no longer ours: those that stood behind it are next. */
void once__machine_leave_key_queue(once_machine *machine, once_item *item)
{
    if (!item->joined) return;
    once_item *freed[2];
    const size_t n = once_key_queue_leave(&machine->key_queue, item, freed);
    for (size_t i = n; i > 0; i--) once__machine_move(machine, freed[i - 1], ONCE_AT_READY);
}

void once__batch_free(once_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) free(batch->items[i].output);
    once_arena_release(&batch->arena);
    free(batch);
}
