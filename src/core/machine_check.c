/* Checks the invariants of core/machine.h, by their numbers. Only test builds do; it costs a walk over all items. */
#include "core/machine_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/plant.h"

#include "base/banned.h"

/* A set of items in any order: their number and the sum of their hashed addresses. Two sets with equal numbers and sums
 * are taken to be equal. A check writes and allocates nothing, so that it disturbs neither executors nor tests that
 * count allocations. */
typedef struct item_sum {
    size_t n;
    uint64_t sum;
} item_sum;

static void item_sum_add(item_sum *to, const once_item *item)
{
    uint64_t x = (uint64_t)(uintptr_t)item;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    to->n++;
    to->sum += x ^ (x >> 31);
}

static void item_sum_add_queue(item_sum *to, const once_queue *queue)
{
    for (const once_item *item = queue->first; item; item = item->next) item_sum_add(to, item);
}

static void item_sum_add_stream(item_sum *to, const once_machine *machine, const once_stream *stream)
{
    item_sum_add_queue(to, &stream->ready);
    for (size_t h = 0; h < machine->spec->n_handlers; h++) item_sum_add_queue(to, &stream->full[h]);
}

static bool item_sum_equal(const item_sum *a, const item_sum *b) { return a->n == b->n && a->sum == b->sum; }

/* What follows from the items of all open batches. */
typedef struct tally {
    item_sum by_place[ONCE_AT_PLACES];
    size_t of_streams[ONCE_AT_PLACES];
    size_t not_given, ready_bytes, held_bytes;
} tally;

#define BROKEN(number, words) return #number ": " words

static bool was_given_out(const once_stream *stream, uint64_t tag)
{
    return tag > 0 && (stream->single ? tag <= stream->open.used : tag < stream->mark.next);
}

static bool is_over(const once_stream *stream, uint64_t tag)
{
    return (!stream->single && tag <= stream->mark.upto) || once_stream_at(stream, tag)->over;
}

static const char *check_tag(const once_item *item)
{
    const once_stream *stream = item->from;
    const bool waits = item->place == ONCE_AT_READY || item->place == ONCE_AT_PARKED;
    if (!stream) return NULL;
    if (item->place == ONCE_AT_OVER) BROKEN(3, "an item that is over belongs to a stream");
    if (!was_given_out(stream, item->tag)) BROKEN(3, "an item has a tag that was not given out");
    if (is_over(stream, item->tag)) BROKEN(3, "a tag is over, and its item is not");
    if (once_stream_at(stream, item->tag)->item != item) BROKEN(3, "a tag is another item's");
    if (stream->let_go) BROKEN(11, "an item belongs to a stream that was let go");
    if (waits && stream->state != ONCE_STREAM_ASSIGNED) BROKEN(11, "an item of a stream that was revoked waits");
    return NULL;
}

static const char *check_item(const once_item *item)
{
    const once_item_place place = item->place;
    const char *wrong = check_tag(item);
    if (wrong) return wrong;
    if (item->joined && (place == ONCE_AT_NEW || place == ONCE_AT_OVER))
        BROKEN(5, "an item that is over or new stands in a queue");
    if ((place == ONCE_AT_PARKED) != (item->joined && item->waits_for > 0))
        BROKEN(5, "an item is parked and waits for no other, or waits and is not parked");
    if (item->returned && place != ONCE_AT_RETURNED && place != ONCE_AT_WORK && place != ONCE_AT_OVER)
        BROKEN(8, "an item has an outcome from outside, and is neither back nor in a transaction");
    if (place == ONCE_AT_RETURNED && !item->returned) BROKEN(8, "an item is back without having been away");
    return NULL;
}

static const char *check_batch(const once_machine *machine, const once_batch *batch, tally *all)
{
    size_t open = 0;
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = machine->streams.at[i];
        open += stream && stream->farthest && stream->farthest->batch == batch;
    }
    for (size_t i = 0; i < machine->work.last_n; i++) open += machine->work.last[i]->batch == batch;
    for (size_t i = 0; i < batch->n; i++) {
        const once_item *item = &batch->items[i];
        const char *wrong = check_item(item);
        if (wrong) return wrong;
        item_sum_add(&all->by_place[item->place], item);
        all->of_streams[item->place] += item->from != NULL;
        open += item->place != ONCE_AT_OVER;
        all->not_given += item->place == ONCE_AT_FLIGHT && !item->given;
        if (item->place == ONCE_AT_READY) all->ready_bytes += item->message.body.len;
    }
    all->held_bytes += batch->bytes;
    if (open != batch->open) BROKEN(2, "a batch is not open for as many items as are not over");
    return NULL;
}

static const char *check_places(const once_machine *machine, const tally *all)
{
    item_sum lists[ONCE_AT_PLACES] = {0};
    item_sum_add_queue(&lists[ONCE_AT_READY], &machine->ready.taken);
    for (uint32_t i = 0; i < machine->streams.n; i++)
        if (machine->streams.at[i]) item_sum_add_stream(&lists[ONCE_AT_READY], machine, machine->streams.at[i]);
    for (size_t i = 0; i < machine->work.n; i++) item_sum_add(&lists[ONCE_AT_WORK], machine->work.items[i]);
    for (const once_item *item = machine->outside.flight.first; item; item = item->next)
        item_sum_add(&lists[ONCE_AT_FLIGHT], item);
    for (const once_item *item = machine->outside.returned; item; item = item->next)
        item_sum_add(&lists[ONCE_AT_RETURNED], item);
    item_sum_add_queue(&lists[ONCE_AT_RETURNED], &machine->outside.unwritten);
    lists[ONCE_AT_PARKED] = all->by_place[ONCE_AT_PARKED]; /* there is no list of parked items */
    if (all->by_place[ONCE_AT_NEW].n) BROKEN(1, "an item of an open batch is nowhere");
    for (once_item_place place = ONCE_AT_READY; place < ONCE_AT_OVER; place++) {
        if (!item_sum_equal(&lists[place], &all->by_place[place]))
            BROKEN(1, "a list is not made of the items whose place it is");
        if (machine->at[place] != lists[place].n) BROKEN(1, "a place has another count than items");
    }
    if (machine->outside.flight.n != lists[ONCE_AT_FLIGHT].n || machine->outside.flight.waiting != all->not_given)
        BROKEN(8, "the count of effects that are under way, or have not begun, is wrong");
    const once_item *given = machine->outside.flight.first;
    while (given != machine->outside.flight.to_give && given && given->given) given = given->next;
    if (given != machine->outside.flight.to_give) BROKEN(8, "an effect that has not begun is not looked for");
    return NULL;
}

static const char *check_slots(const once_machine *machine)
{
    for (size_t h = 0; machine->outside.flight.slots && h < machine->spec->n_handlers; h++) {
        const once_handler_spec *handler = &machine->spec->handlers[h];
        size_t used = 0;
        for (const once_item *item = machine->outside.flight.first; item; item = item->next)
            used += item->handler == handler;
        for (const once_item *item = machine->outside.returned; item; item = item->next)
            used += item->handler == handler;
        for (size_t i = 0; i < machine->work.n; i++)
            used += machine->work.items[i]->handler == handler && machine->work.items[i]->stage == ONCE_STAGE_OUTSIDE;
        if (used != machine->outside.flight.used[h])
            BROKEN(4, "slots are used that no item has, or the other way round");
        if (used > handler->slots) BROKEN(4, "a handler has more claims than slots");
    }
    return NULL;
}

static const char *check_transaction(const once_machine *machine)
{
    if (machine->work.next == NEXT_CHOOSE && (machine->work.n || machine->work.in_tx))
        BROKEN(6, "there is work, and no step is next for it");
    for (size_t i = 0; machine->work.next != NEXT_CHOOSE && i < machine->work.keeping_n; i++) {
        const once_item_place place = machine->work.keeping[i]->place;
        if (place != ONCE_AT_FLIGHT && place != ONCE_AT_RETURNED)
            BROKEN(6, "a lease is to be extended of an item that is not away");
    }
    return NULL;
}

static const char *check_stream(const once_machine *machine, const once_stream *stream)
{
    const once_watermark *mark = &stream->mark;
    if (stream->acked > mark->upto || mark->kept > mark->upto || mark->upto >= mark->next)
        BROKEN(3, "acks have passed what is over");
    if (once_stream_outstanding(stream) > OUTSTANDING * machine->batch_max) BROKEN(9, "too much is on its way");
    if (stream->ready.n + stream->full_n != stream->at[ONCE_AT_READY])
        BROKEN(1, "the queues of a stream have another count than items");
    for (size_t h = 0; h < machine->spec->n_handlers; h++)
        for (const once_item *item = stream->full[h].first; item; item = item->next)
            if (!item->full || !item->joined || item->handler != &machine->spec->handlers[h])
                BROKEN(12, "an item waits for a slot of another handler, or is not in the queues of its key and lane");
    return NULL;
}

static const char *check_streams(const once_machine *machine, const tally *all)
{
    size_t at[ONCE_AT_PLACES] = {0};
    size_t ready = machine->ready.taken.n;
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = machine->streams.at[i];
        const char *wrong = stream ? check_stream(machine, stream) : NULL;
        if (wrong) return wrong;
        for (int place = 0; stream && place < ONCE_AT_PLACES; place++) at[place] += stream->at[place];
        ready += stream ? stream->ready.n + stream->full_n : 0;
    }
    for (once_item_place place = ONCE_AT_READY; place < ONCE_AT_OVER; place++)
        if (at[place] != all->of_streams[place]) BROKEN(1, "a place has another count than items of streams");
    if (machine->ready.n != ready) BROKEN(1, "the queues have another count than items");
    if (machine->ready.bytes != all->ready_bytes || machine->batches.held_bytes != all->held_bytes)
        BROKEN(7, "the bytes that are held are counted wrong");
    return NULL;
}

static const char *check_end(const once_machine *machine)
{
    if (!machine->end.ended) return NULL;
    if (machine->at[ONCE_AT_WORK] || machine->at[ONCE_AT_FLIGHT] || machine->at[ONCE_AT_RETURNED])
        BROKEN(10, "it has ended, and something is not settled");
    if (machine->store.out || machine->source.out || machine->acks.out || machine->outside.out)
        BROKEN(10, "it has ended, and an action is out");
    return NULL;
}

const char *once__machine_check(const once_machine *machine)
{
    tally all = {0};
    const char *wrong = NULL;
    for (const once_batch *batch = machine->batches.all; batch && !wrong; batch = batch->all)
        if (batch->open) wrong = check_batch(machine, batch, &all); /* others are spare, or an executor fills them */
    if (!wrong) wrong = check_places(machine, &all);
    if (!wrong) wrong = check_slots(machine);
    if (!wrong) wrong = check_transaction(machine);
    if (!wrong) wrong = check_streams(machine, &all);
    return wrong ? wrong : check_end(machine);
}

#ifdef ONCE_TEST_BUILD
/* A planted bug may break an invariant; then the tests of the simulator must find it, not this check. */
void once__machine_checked(const once_machine *machine)
{
    const char *wrong = once_planted ? NULL : once__machine_check(machine);
    if (!wrong) return;
    (void)fprintf(stderr, "invariant of the pipeline %s\n", wrong);
    abort();
}
#endif
