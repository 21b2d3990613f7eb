/* Fetching: how much, from which streams, and what happens to the messages; and cursors.
 *
 * A stream of which enough is in memory is paused, and others go on. Memory bounds all of them together: if there is
 * too little, every stream with messages in memory waits until they are over. */
#include "core/machine_impl.h"

#include <assert.h>

#include "base/no_memory.h"
#include "core/plant.h"

#include "base/banned.h"

#define READY_BYTES (16u << 20) /* nothing is fetched while so many bytes of bodies wait for their transaction */
#define HELD_BYTES (64u << 20)  /* the same for all batches with messages that are not over */
#define AHEAD 2                 /* batches that may wait for the slots of the only handler */
#define FULL 8                  /* batches of a stream that may wait for handlers without a free slot */
#define BEAT_MS 1000            /* how often a source that assigns streams is asked for news, if it does not say */

/* Enough of this stream is in memory. If none of it is left to work on, its memory is held for another reason (the
 * cursor), and waiting would not help. */
static bool has_enough(const once_machine *machine, const once_stream *stream)
{
    const size_t *at = stream->at;
    if (stream->ready.n >= machine->batch_max || at[ONCE_AT_PARKED] >= PARKED * machine->batch_max) return true;
    if (stream->full_n >= FULL * machine->batch_max) return true;
    /* One message is very slow and holds up the acks, or acks fail. */
    if (once_stream_outstanding(stream) + 1 > (OUTSTANDING - 1) * machine->batch_max) return true;
    if (machine->ready.bytes >= READY_BYTES && at[ONCE_AT_READY]) return true;
    return machine->batches.held_bytes >= HELD_BYTES && at[ONCE_AT_READY] + at[ONCE_AT_PARKED] + at[ONCE_AT_FLIGHT] > 0;
}

/* Enough for a batch is ready to go, or far too much waits that cannot go. */
static bool is_full(const once_machine *machine, int64_t now_ms)
{
    size_t n = machine->ready.taken.n;
    /* With one handler all wait for the same slots. More of them than the next work needs would not be in the caches of
     * the CPU any more when their turn comes. */
    if (machine->spec->n_handlers == 1 && machine->ready.n >= AHEAD * machine->batch_max) return true;
    for (uint32_t i = 0; i < machine->streams.n && n < machine->batch_max; i++) {
        if (machine->streams.at[i]) n += once__machine_can_go(machine, machine->streams.at[i], now_ms);
    }
    return n >= machine->batch_max ||
           machine->ready.n + machine->at[ONCE_AT_PARKED] >= OUTSTANDING * machine->batch_max;
}

/* Lists the streams that are paused now. False: all are, so nothing can be fetched. */
static bool pause_streams(once_machine *machine, int64_t now_ms, size_t *n_paused)
{
    size_t paused = 0, others = 0;
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        once_stream *stream = machine->streams.at[i];
        if (!stream || stream->state != ONCE_STREAM_ASSIGNED) continue;
        const bool enough = has_enough(machine, stream);
        if (enough) machine->streams.paused[paused++] = i;
        else others++;
        if (enough && stream->paused_at_ms == ONCE_NO_TIME) stream->paused_at_ms = now_ms;
    }
    *n_paused = paused;
    return others > 0 || paused == 0;
}

/* Also called while nothing is fetched for another reason, so that a stream that went on is not shown as paused. */
static void note_not_paused(once_machine *machine)
{
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        once_stream *stream = machine->streams.at[i];
        if (stream && stream->paused_at_ms != ONCE_NO_TIME && !has_enough(machine, stream))
            stream->paused_at_ms = ONCE_NO_TIME;
    }
}

bool once_machine_next_stream(const once_machine *machine, uint32_t *at, int64_t now_ms, once_stream_view *out)
{
    const once_stream *stream = NULL;
    while (*at < machine->streams.n && (!stream || stream->released)) stream = machine->streams.at[(*at)++];
    if (!stream || stream->released) return false;
    const bool paused =
        stream->state == ONCE_STREAM_ASSIGNED && stream->paused_at_ms != ONCE_NO_TIME && has_enough(machine, stream);
    *out = (once_stream_view){.number = stream->number,
                              .state = stream->state,
                              .open = once_stream_outstanding(stream),
                              .paused_ms = paused ? now_ms - stream->paused_at_ms : 0};
    return true;
}

/* After a stop: the source may have read messages that it will not deliver to another consumer. */
bool once__machine_rest_to_fetch(const once_machine *machine)
{
    return machine->o.accepts_at_stop && !machine->source.rested && !machine->source.at_end && !machine->store.gone;
}

static bool may_fetch(once_machine *machine, int64_t now_ms, size_t *n_paused)
{
    const bool store_away = machine->store.tries > 0; /* nothing is fetched while the store fails */
    if (machine->end.stopping ? !once__machine_rest_to_fetch(machine) : machine->source.at_end || store_away)
        return false;
    return !is_full(machine, now_ms) && pause_streams(machine, now_ms, n_paused);
}

static int64_t beat_ms(const once_machine *machine)
{
    if (machine->o.beat_ms > 0) return machine->o.beat_ms;
    return machine->o.source & ONCE_SOURCE_ASSIGNS ? BEAT_MS : ONCE_NEVER;
}

/* When the source is called even if nothing may be fetched, because it wants to be called regularly. After half of its
 * time, because a thread wakes late and the call must come before the time is over. */
static int64_t beat_at_ms(const once_machine *machine)
{
    const int64_t every_ms = beat_ms(machine);
    if (every_ms == ONCE_NEVER || machine->end.ended || ONCE_PLANTED(no_beat)) return ONCE_NEVER;
    /* A run that stops has nothing to keep alive without a stream, and need not wait for a broker that is away. */
    if (machine->end.stopping && (machine->o.source & ONCE_SOURCE_ASSIGNS) && machine->streams.live == 0)
        return ONCE_NEVER;
    return machine->source.asked_ms + (every_ms + 1) / 2;
}

int64_t once__machine_source_at_ms(const once_machine *machine, int64_t now_ms)
{
    const int64_t at_ms = beat_at_ms(machine);
    if (machine->source.out) return ONCE_NEVER;
    return machine->source.at_ms > now_ms ? machine->source.at_ms : at_ms;
}

once_action *once__machine_source_action(once_machine *machine, int64_t now_ms)
{
    note_not_paused(machine);
    if (machine->source.out || machine->end.ended || (now_ms < machine->source.at_ms && !machine->end.stopping))
        return NULL;
    size_t n_paused = 0;
    /* After a stop, room does not matter: messages that the source has read must not be lost. */
    const size_t max = machine->end.stopping ? machine->batch_max : once__machine_room_to_fetch(machine);
    const bool fetch = max && may_fetch(machine, now_ms, &n_paused);
    if (!fetch && now_ms < beat_at_ms(machine)) return NULL;
    once_batch *batch = once__machine_batch_get(machine);
    if (!batch) return NULL;
    machine->source.action = (once_action){.kind = ONCE_ACT_FETCH,
                                           .max = fetch ? max : 0,
                                           .paused = machine->streams.paused,
                                           .n_paused = n_paused,
                                           .batch = batch,
                                           .intake = &machine->fetch_intake,
                                           .rest = fetch && machine->end.stopping};
    machine->source.asked_ms = now_ms;
    machine->source.out = true;
    machine->source.woken = false;
    return &machine->source.action;
}

bool once_machine_wakes_fetch(once_machine *machine, int64_t now_ms)
{
    machine_source *source = &machine->source;
    if (!source->out || source->woken || source->action.max == 0) return false;
    for (size_t i = 0; i < source->action.n_paused && !source->woken; i++) {
        const once_stream *stream = machine->streams.at[source->action.paused[i]];
        source->woken = stream && stream->state == ONCE_STREAM_ASSIGNED && !has_enough(machine, stream) &&
                        !is_full(machine, now_ms);
    }
    return source->woken;
}

/* The longest pause after a failure: a source that wants to be called regularly still is. */
static int64_t longest_pause_ms(const once_machine *machine)
{
    return machine->o.beat_ms > 0 ? (machine->o.beat_ms + 1) / 2 : ONCE_NEVER;
}

static void source_failed(once_machine *machine, const once_action *action, int64_t now_ms)
{
    if (machine->source.tries == 0) machine->source.failing_since_ms = now_ms;
    once__machine_worth_another_try(machine, action->status, &action->error, &machine->source.tries,
                                    &machine->source.at_ms, machine->source.failing_since_ms, now_ms,
                                    longest_pause_ms(machine));
}

/* Counts the messages of each stream in the batch. */
static int count_coming(once_machine *machine, const once_batch *batch, once_error *err)
{
    for (size_t i = 0; i < batch->n; i++) {
        once_stream *stream = once__machine_stream(machine, batch->items[i].stream);
        if (!stream || stream->state != ONCE_STREAM_ASSIGNED)
            return once_fail(err, ONCE_E_BUG, "the source delivered a message of stream %u, which it has not assigned",
                             (unsigned)batch->items[i].stream);
        stream->coming++;
    }
    return ONCE_OK;
}

/* How many keys and lanes the items may have that are here, or are taken from the store before the next fetch. Those
 * from the store may have a lane although the pipeline no longer has any. */
size_t once__machine_ids(const once_machine *machine)
{
    size_t here = machine->outside.flight.slots + 2 * machine->batch_max;
    for (int place = 0; place < ONCE_AT_PLACES; place++) here += machine->at[place];
    const size_t with_key_only = machine->spec->order || machine->source.open > here ? 0 : (size_t)machine->source.open;
    return 2 * here - with_key_only;
}

/* Reserves room for the tags of the batch, and for all items that may wait for each other. */
static int make_room(once_machine *machine, const once_batch *batch, once_error *err)
{
    const size_t ids = once__machine_ids(machine) + (machine->spec->order ? 2 : 1) * batch->n;
    int rc = count_coming(machine, batch, err);
    for (size_t i = 0; i < batch->n; i++) {
        once_stream *stream = once__machine_stream(machine, batch->items[i].stream);
        if (!stream || !stream->coming) continue;
        if (rc == ONCE_OK && !once_stream_reserve(stream, stream->coming)) rc = once_no_memory(err, "for a batch");
        stream->coming = 0;
    }
    if (rc == ONCE_OK && machine->gate.has_queues && !once_key_queue_reserve(&machine->key_queue, ids))
        rc = once_no_memory(err, "for a batch");
    return rc;
}

static int heed_news(once_machine *machine, const once_action *action, int64_t now_ms, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < action->n_news; i++)
        rc = once__machine_heed(machine, &action->news[i], now_ms, err);
    return rc;
}

static void queue_batch(once_machine *machine, once_batch *batch, int64_t now_ms)
{
    for (size_t i = 0; i < batch->n; i++) {
        once_item *item = &batch->items[i];
        once_stream *stream = item->from = once__machine_stream(machine, item->stream);
        batch->bytes += item->message.body.len;
        item->tag = once_stream_begin(stream, item->delivery, item);
        if (stream->extend_at_ms == ONCE_NEVER && stream->expires_ms > 0)
            stream->extend_at_ms = now_ms + once_stream_extends_after_ms(stream);
        once__machine_move(machine, item, ONCE_AT_READY);
    }
    machine->source.open += batch->n;
    machine->batches.held_bytes += batch->bytes;
}

static int take_in(once_machine *machine, once_batch *batch, int64_t now_ms, once_error *err)
{
    int rc = batch->taken_in ? ONCE_OK : once_intake_batch(&machine->fetch_intake, batch, err);
    if (rc == ONCE_OK) rc = make_room(machine, batch, err);
    if (rc == ONCE_OK) queue_batch(machine, batch, now_ms);
    return rc;
}

void once__machine_fetched(once_machine *machine, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    once_error err;
    machine->source.rested = action->rest && (batch->n == 0 || action->status != ONCE_OK);
    if (action->status != ONCE_OK) {
        assert(batch->n == 0);
        once__machine_batch_put(machine, batch);
        source_failed(machine, action, now_ms);
        return;
    }
    assert(batch->n <= action->max);
    machine->source.tries = 0;
    machine->source.asked_ms = now_ms;
    if (action->max) machine->source.at_end = action->at_end;
    int rc = heed_news(machine, action, now_ms, &err);
    const bool wanted = !machine->end.stopping || (machine->o.accepts_at_stop && !machine->store.gone);
    if (rc == ONCE_OK && batch->n && wanted) {
        batch->open = batch->n;
        rc = take_in(machine, batch, now_ms, &err);
        if (rc == ONCE_OK) return;
    }
    machine->source.dropped += batch->n; /* this run cannot fetch them again */
    once__machine_batch_put(machine, batch);
    if (rc != ONCE_OK) once__machine_give_up(machine, rc, &err);
}

/* Whether the item ends with its transaction. */
static bool ends_here(const once_item *item)
{
    return !once__item_is_left(item) && item->stage != ONCE_STAGE_OUTSIDE && !item->lost;
}

/* The stream that the delivery belongs to; NULL: it was let go. Planted: whoever has its number now. */
static once_stream *stream_of(once_machine *machine, const once_item *item)
{
    if (!ONCE_PLANTED(old_assignment_acked)) return item->from;
    once_stream *stream = once__machine_stream(machine, item->stream);
    if (!stream || stream->single || once_spec_keeps_cursor(machine->spec)) return item->from;
    const bool open = item->tag > stream->mark.kept && item->tag < stream->mark.next;
    return open && !stream->let_go && !once_stream_at(stream, item->tag)->over ? stream : NULL;
}

/* Its delivery is over, and may be acked. */
void once__machine_end_delivery(once_machine *machine, once_item *item)
{
    assert(item->tag && !item->acked);
    once_stream *stream = stream_of(machine, item);
    if (stream) once_stream_end(stream, item->tag, false, machine->now_ms);
    item->acked = true;
    machine->source.open--;
}

void once__machine_ack_work(once_machine *machine)
{
    for (size_t i = 0; i < machine->work.n; i++) {
        once_item *item = machine->work.items[i];
        if (item->tag && !item->acked && ends_here(item)) once__machine_end_delivery(machine, item);
    }
}

/* --- cursors --- */

/* The cursor is at the last message that is over, which may be one of a much earlier transaction. */
void once__machine_remember_farthest(once_machine *machine, once_item *item)
{
    if (!once_spec_keeps_cursor(machine->spec) || !item->from) return;
    once_item *before = item->from->farthest;
    if (before && before->tag > item->tag) return;
    item->batch->open++;
    item->from->farthest = item;
    if (before) once__machine_batch_let_go(machine, before->batch);
}

static void peek(once_machine *machine, bool over)
{
    for (size_t i = 0; i < machine->work.n; i++) {
        const once_item *item = machine->work.items[i];
        if (item->from && !item->acked && ends_here(item)) once_watermark_peek(&item->from->mark, item->tag, over);
    }
}

static uint64_t peeked(once_stream *stream)
{
    if (ONCE_PLANTED(cursor_ahead)) return UINT64_MAX;
    if (!stream->peeked) stream->peeked = once_watermark_peeked(&stream->mark) + 1;
    return stream->peeked - 1;
}

/* For each stream: the message up to which everything is over once the work is committed. Only needed for cursors. */
void once__machine_find_last(once_machine *machine)
{
    machine->work.last_n = 0;
    if (!once_spec_keeps_cursor(machine->spec)) return;
    peek(machine, true);
    for (size_t i = 0; i < machine->work.n; i++) {
        const once_item *item = machine->work.items[i];
        once_stream *stream = item->from;
        if (!stream || !ends_here(item)) continue;
        const once_item *last = stream->next_farthest ? stream->next_farthest : stream->farthest;
        if (last && last->tag > peeked(stream)) last = NULL; /* others before it are not over */
        if (item->tag <= peeked(stream) && (!last || item->tag > last->tag)) last = item;
        if (last) stream->next_farthest = last;
    }
    peek(machine, false);
    for (size_t i = 0; i < machine->work.n; i++) {
        once_stream *stream = machine->work.items[i]->from;
        if (!stream) continue;
        if (stream->next_farthest) {
            stream->next_farthest->batch
                ->open++; /* keeps it, because its stream may be lost before the commit returns */
            machine->work.last[machine->work.last_n++] = stream->next_farthest;
        }
        stream->next_farthest = NULL;
        stream->peeked = 0;
    }
}

/* The commit has returned. */
void once__machine_let_last_go(once_machine *machine)
{
    while (machine->work.last_n) once__machine_batch_let_go(machine, machine->work.last[--machine->work.last_n]->batch);
}
