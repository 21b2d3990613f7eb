/* Streams that come and go, and deliveries that are lost to another consumer: what happens to their items.
 *
 * When a stream is revoked, or a delivery is no longer ours, an item that was not begun is dropped: the store has no
 * record of it, and the broker delivers it to the consumer that has it now. An item in a transaction stays until that
 * is committed or rolled back. An item that was begun (claimed durably, or its effect is running) goes on under its
 * fence; it is acked if the stream was not let go before. */
#include "core/machine_impl.h"

#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/plant.h"

#include "base/banned.h"

#define STREAMS_MAX (1u << 20) /* sources must use small numbers (core/receipt.h) */

once_stream *once__machine_stream(once_machine *machine, uint32_t number)
{
    machine_streams *streams = &machine->streams;
    if (streams->last && streams->last->number == number) return streams->last;
    return streams->last = number < streams->n ? streams->at[number] : NULL;
}

static bool make_room(machine_streams *streams, uint32_t number)
{
    if (number < streams->n) return true;
    uint32_t n = streams->n ? streams->n : 1;
    while (n <= number) n *= 2;
    once_stream **at = realloc(streams->at, n * sizeof *at);
    if (at) streams->at = at;
    uint32_t *paused = at ? realloc(streams->paused, n * sizeof *paused) : NULL;
    if (!paused) return false;
    streams->paused = paused;
    while (streams->n < n) streams->at[streams->n++] = NULL;
    return true;
}

once_stream *once__machine_stream_add(once_machine *machine, uint32_t number)
{
    machine_streams *streams = &machine->streams;
    assert(number < STREAMS_MAX);
    if (!make_room(streams, number)) return NULL;
    once_stream *stream = once_stream_new(number, machine->o.source & ONCE_SOURCE_SINGLE_ACKS);
    if (!stream) return NULL;
    stream->full = calloc(machine->spec->n_handlers + 1, sizeof *stream->full);
    if (!stream->full) {
        once_stream_free(stream);
        return NULL;
    }
    streams->at[number] = streams->last = stream;
    streams->live++;
    return stream;
}

/* --- items --- */

/* Forgets an item that the broker will deliver again. */
static void drop(once_machine *machine, once_item *item)
{
    assert(item->tag && machine->source.open > 0);
    once__machine_leave_key_queue(machine, item);
    machine->source.open--;
    once__machine_move(machine, item, ONCE_AT_OVER);
}

/* The item goes on, but its end will not be acked. */
static void detach(once_machine *machine, once_item *item)
{
    assert(item->from && item->from->at[item->place] > 0);
    const bool queued = item->place == ONCE_AT_READY;
    if (queued) once__machine_ready_take(machine, item);
    item->from->at[item->place]--;
    once_stream_forget(item->from, item);
    item->from = NULL;
    if (queued) once__machine_ready_put(machine, item, true);
}

/* Its transaction is over without it: it goes back to the queue, or is dropped. */
void once__machine_requeue(once_machine *machine, once_item *item)
{
    if (!once__item_is_unwanted(item)) {
        once__machine_move(machine, item, ONCE_AT_READY);
    } else if (once__item_is_begun(item)) {
        if (item->from) detach(machine, item);
        once__machine_move(machine, item, ONCE_AT_READY);
    } else {
        drop(machine, item);
    }
}

/* Drops items from the work that are no longer ours and were not begun. Only outside of a transaction. */
void once__machine_drop_unwanted(once_machine *machine)
{
    assert(!machine->work.in_tx);
    size_t kept = 0;
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (once__item_is_unwanted(item) && !once__item_is_begun(item) && !item->returned) drop(machine, item);
        else machine->work.items[kept++] = item;
    }
    if (kept == machine->work.n) return;
    machine->work.n = kept;
    machine->work.runs_alone = NULL;
}

static void drop_from_idle_work(once_machine *machine)
{
    if (machine->work.in_tx || machine->store.out || machine->work.next == NEXT_CHOOSE) return;
    once__machine_drop_unwanted(machine);
    if (!once__machine_has_work(machine) && !machine->due.finding) machine->work.next = NEXT_CHOOSE;
    else if (machine->work.n == 0) machine->work.next = NEXT_BEGIN; /* there is nothing left to preclaim */
}

/* Another consumer has its delivery. */
void once__machine_lose_delivery(once_machine *machine, once_item *item, int64_t now_ms)
{
    assert(item->from && item->tag);
    once_stream_end(item->from, item->tag, !ONCE_PLANTED(gone_acked), now_ms);
    const bool waits = item->place == ONCE_AT_READY || item->place == ONCE_AT_PARKED;
    if (waits && !once__item_is_begun(item)) {
        drop(machine, item);
        return;
    }
    detach(machine, item);
    if (item->place == ONCE_AT_WORK) drop_from_idle_work(machine);
}

/* Its delivery cannot be extended again: unless it was begun, the next transaction gives it to the store. */
void once__machine_give_to_store(once_machine *machine, once_item *item)
{
    item->to_store = true;
    if (once__item_is_begun(item)) return;
    if (item->place == ONCE_AT_READY) { /* to the front: before those that wait for a slot */
        once__machine_ready_take(machine, item);
        once__machine_ready_put(machine, item, false);
    } else if (item->place == ONCE_AT_PARKED) {
        once__machine_leave_key_queue(machine, item);
        once__machine_move(machine, item, ONCE_AT_READY);
    }
}

/* --- streams --- */

/* There is no list of parked items, so all batches are searched. This happens seldom. */
static void drop_parked(once_machine *machine, const once_stream *stream)
{
    for (once_batch *batch = machine->batches.all, *next; batch && stream->at[ONCE_AT_PARKED]; batch = next) {
        next = batch->all;
        if (!batch->open) continue; /* it is spare, or an executor fills it */
        batch->open++;              /* keeps it while we walk over it */
        for (size_t i = 0; i < batch->n; i++) {
            once_item *item = &batch->items[i];
            if (item->from != stream || item->place != ONCE_AT_PARKED) continue;
            if (once__item_is_begun(item)) detach(machine, item);
            else drop(machine, item);
        }
        once__machine_batch_let_go(machine, batch);
    }
}

static void drop_queue(once_machine *machine, const once_queue *queue)
{
    for (once_item *item; (item = queue->first);) {
        if (once__item_is_begun(item)) detach(machine, item);
        else drop(machine, item);
    }
}

static void drop_waiting(once_machine *machine, once_stream *stream)
{
    if (ONCE_PLANTED(revoked_kept)) return;
    drop_parked(machine, stream); /* first, because dropping items of the queue would free them */
    drop_queue(machine, &stream->ready);
    for (size_t h = 0; h < machine->spec->n_handlers; h++) drop_queue(machine, &stream->full[h]);
    drop_from_idle_work(machine);
}

static void detach_list(once_machine *machine, const once_stream *stream, once_item *first)
{
    for (once_item *item = first; item; item = item->next)
        if (item->from == stream) detach(machine, item);
}

/* --- the position of a stream --- */

/* The next stream that needs a SEEK; NULL: none. */
static once_stream *next_to_seek(const once_machine *machine)
{
    const machine_streams *streams = &machine->streams;
    once_stream *next = NULL;
    for (uint32_t i = 0; streams->to_seek && i < streams->n; i++) {
        once_stream *stream = streams->at[i];
        if (stream && stream->to_seek && (!next || stream->seek_at_ms < next->seek_at_ms)) next = stream;
    }
    assert(next || !streams->to_seek);
    return next;
}

int64_t once__machine_seek_at_ms(const once_machine *machine)
{
    const once_stream *stream = next_to_seek(machine);
    return stream ? stream->seek_at_ms : ONCE_NEVER;
}

once_action *once__machine_begin_seek(once_machine *machine, int64_t now_ms)
{
    once_stream *stream = next_to_seek(machine);
    assert(!machine->streams.seeking);
    if (!stream || now_ms < stream->seek_at_ms) return NULL;
    machine->streams.seeking = stream;
    once_action *action = once__machine_emit(machine, ONCE_ACT_SEEK, 0);
    action->stream = stream->number;
    return action;
}

/* The stream needs no SEEK now. */
static void no_seek(once_machine *machine, once_stream *stream)
{
    if (machine->streams.seeking == stream) machine->streams.seeking = NULL;
    machine->streams.to_seek -= stream->to_seek;
    stream->to_seek = false;
}

/* A failed SEEK says nothing about the store, so only this stream waits. If the store is away, its own next action will
 * show that. */
static void seek_failed(once_machine *machine, once_stream *stream, const once_action *action, int64_t now_ms)
{
    const once_class class = once_status_class(action->status);
    machine->streams.seek_failed = true;
    if (class != ONCE_CLASS_RETRY && class != ONCE_CLASS_PAUSE) {
        once__machine_give_up(machine, action->status, &action->error);
        return;
    }
    if (!stream || machine->end.stopping) return; /* it will be released without a SEEK */
    if (ONCE_PLANTED(seek_once)) no_seek(machine, stream);
    if (stream->seek_tries == 0) stream->seek_failing_since_ms = now_ms;
    once__machine_worth_another_try(machine, action->status, &action->error, &stream->seek_tries, &stream->seek_at_ms,
                                    stream->seek_failing_since_ms, now_ms, ONCE_NEVER);
}

/* The result does not count if the stream was released meanwhile; another one may have its number. */
void once__machine_sought(once_machine *machine, const once_action *action, int64_t now_ms)
{
    once_stream *stream = machine->streams.seeking;
    machine->streams.seeking = NULL;
    if (action->status != ONCE_OK) seek_failed(machine, stream, action, now_ms);
    else if (stream) no_seek(machine, stream);
}

/* --- the end of a stream --- */

/* From now on nothing of it is acked; items that are under way end without it. */
void once__machine_let_stream_go(once_machine *machine, once_stream *stream)
{
    assert(!stream->let_go);
    stream->let_go = true;
    detach_list(machine, stream, machine->outside.flight.first);
    detach_list(machine, stream, machine->outside.returned);
    detach_list(machine, stream, machine->outside.unwritten.first);
    for (size_t i = 0; i < machine->work.n; i++)
        if (machine->work.items[i]->from == stream) detach(machine, machine->work.items[i]);
    if (stream->farthest) once__machine_batch_let_go(machine, stream->farthest->batch);
    stream->farthest = NULL;
}

void once__machine_stream_released(once_machine *machine, once_stream *stream)
{
    machine_streams *streams = &machine->streams;
    streams->live--;
    no_seek(machine, stream);
    if (stream->state != ONCE_STREAM_ASSIGNED) streams->leaving--;
    stream->released = true;
    if (!stream->let_go) return; /* at the end of the run: items still belong to it */
    if (streams->last == stream) streams->last = NULL;
    if (streams->at[stream->number] == stream) streams->at[stream->number] = NULL;
    once_stream_free(stream);
}

static int broken(const once_stream_news *news, once_error *err)
{
    static const char *const names[] = {"assigned", "revoked", "lost"};
    return once_fail(err, ONCE_E_BUG, "the source reported that stream %u is %s, which is not possible now",
                     (unsigned)news->stream, names[news->change]);
}

/* Open deliveries may have less time left than before: then they are extended at once. */
static void set_expires_ms(once_stream *stream, int64_t expires_ms, int64_t now_ms)
{
    const bool sooner = expires_ms > 0 && (stream->expires_ms == 0 || expires_ms < stream->expires_ms);
    stream->expires_ms = expires_ms;
    if (sooner && !once_stream_all_over(stream)) stream->extend_at_ms = now_ms;
}

static int assigned(once_machine *machine, const once_stream_news *news, int64_t now_ms, once_error *err)
{
    once_stream *stream = once__machine_stream(machine, news->stream);
    /* The number is free as soon as the source has released it; the result of that RELEASE may come later. */
    if (stream && stream == machine->acks.releasing) stream = NULL;
    if (stream && stream->state != ONCE_STREAM_ASSIGNED) return broken(news, err);
    if (!stream && (news->stream >= STREAMS_MAX || !(machine->o.source & ONCE_SOURCE_ASSIGNS)))
        return broken(news, err);
    if (!stream) {
        stream = once__machine_stream_add(machine, news->stream);
        if (!stream) return once_no_memory(err, "for a stream");
        stream->to_seek = once_spec_keeps_cursor(machine->spec);
        machine->streams.to_seek += stream->to_seek;
    }
    const bool expires = machine->o.source & ONCE_SOURCE_EXPIRES;
    /* Nothing else of a stream can change while it is assigned. */
    set_expires_ms(stream, expires ? news->expires_ms : 0, now_ms);
    return ONCE_OK;
}

static int revoked(once_machine *machine, const once_stream_news *news, int64_t now_ms, once_error *err)
{
    once_stream *stream = once__machine_stream(machine, news->stream);
    const bool lost = news->change == ONCE_STREAM_LOST && !ONCE_PLANTED(lost_acked);
    /* It was revoked before, and released while the fetch that reports this was out. */
    if (!stream && news->change == ONCE_STREAM_LOST && (machine->o.source & ONCE_SOURCE_ASSIGNS)) return ONCE_OK;
    if (!(machine->o.source & ONCE_SOURCE_ASSIGNS) || !stream ||
        (stream->state != ONCE_STREAM_ASSIGNED && !(lost && stream->state == ONCE_STREAM_REVOKED)))
        return broken(news, err);
    if (stream->state == ONCE_STREAM_ASSIGNED) machine->streams.leaving++;
    stream->state = lost ? ONCE_STREAM_LOST : ONCE_STREAM_REVOKED;
    no_seek(machine, stream);
    stream->release_by_ms = news->change == ONCE_STREAM_REVOKED ? now_ms + news->within_ms : lost ? now_ms : ONCE_NEVER;
    drop_waiting(machine, stream);
    if (!lost || stream->let_go) return ONCE_OK;
    once__machine_let_stream_go(machine, stream);
    drop_from_idle_work(machine);
    return ONCE_OK;
}

/* At the end of the run a released stream keeps its number, because items still belong to it. News of that number is
 * then about a new stream of which nothing was delivered, and which ends when the source is closed. */
static bool is_over(once_machine *machine, uint32_t number)
{
    const once_stream *stream = once__machine_stream(machine, number);
    return machine->acks.release_all && stream && !stream->let_go &&
           (stream->released || stream == machine->acks.releasing);
}

int once__machine_heed(once_machine *machine, const once_stream_news *news, int64_t now_ms, once_error *err)
{
    if (is_over(machine, news->stream)) return ONCE_OK;
    return news->change == ONCE_STREAM_ASSIGNED ? assigned(machine, news, now_ms, err)
                                                : revoked(machine, news, now_ms, err);
}
