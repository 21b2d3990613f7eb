/* The source side: how much is fetched and of which streams, and which deliveries are over.
 *
 * A stream of which enough is here is paused, and others go on. What bounds all of them together is memory: where there
 * is too little, whoever has messages here waits until they are over. */
#include "core/pipe.h"

#include <assert.h>

#include "base/no_memory.h"
#include "core/plant.h"

#include "base/banned.h"

#define READY_BYTES (16u << 20) /* of bodies that wait for their transaction; then nothing more is fetched */
#define HELD_BYTES (64u << 20)  /* the same of all batches whose messages are not over */
#define FULL 8                  /* batches of a stream that may wait for handlers that have no slot free */
#define BEAT_MS 1000            /* how often a source that assigns streams is asked for news, when it does not say */

/* Of this stream there is enough in memory. When none of it is left to be worked on, it is held for another reason (the
 * cursor's), and waiting would not help. */
static bool has_enough(const once_pipe *pipe, const once_stream *stream)
{
    const size_t *at = stream->at;
    if (stream->ready.n >= pipe->batch_max || at[ONCE_AT_PARKED] >= PARKED * pipe->batch_max) return true;
    if (stream->full_n >= FULL * pipe->batch_max) return true;
    /* One is very slow, and holds up acks; or acks fail. */
    if (once_stream_outstanding(stream) + 1 > (OUTSTANDING - 1) * pipe->batch_max) return true;
    if (pipe->ready.bytes >= READY_BYTES && at[ONCE_AT_READY]) return true;
    return pipe->batches.held_bytes >= HELD_BYTES && at[ONCE_AT_READY] + at[ONCE_AT_PARKED] + at[ONCE_AT_FLIGHT] > 0;
}

/* A batch waits that can go, or far too much that cannot. */
static bool is_full(const once_pipe *pipe, int64_t now_ms)
{
    size_t n = pipe->ready.taken.n;
    for (uint32_t i = 0; i < pipe->streams.n && n < pipe->batch_max; i++) {
        if (pipe->streams.at[i]) n += once__pipe_can_go(pipe, pipe->streams.at[i], now_ms);
    }
    return n >= pipe->batch_max || pipe->ready.n + pipe->at[ONCE_AT_PARKED] >= OUTSTANDING * pipe->batch_max;
}

/* Which streams nothing may come of now. False: there is none that it may come of. */
static bool pause_streams(once_pipe *pipe, int64_t now_ms, size_t *n_paused)
{
    size_t paused = 0, others = 0;
    for (uint32_t i = 0; i < pipe->streams.n; i++) {
        once_stream *stream = pipe->streams.at[i];
        if (!stream || stream->state != ONCE_STREAM_ASSIGNED) continue;
        const bool enough = has_enough(pipe, stream);
        if (enough) pipe->streams.paused[paused++] = i;
        else others++;
        if (enough && stream->paused_at_ms == ONCE_NO_TIME) stream->paused_at_ms = now_ms;
    }
    *n_paused = paused;
    return others > 0 || paused == 0;
}

/* Also while nothing is fetched for another reason: one that goes on meanwhile does not stand still. */
static void note_not_paused(once_pipe *pipe)
{
    for (uint32_t i = 0; i < pipe->streams.n; i++) {
        once_stream *stream = pipe->streams.at[i];
        if (stream && stream->paused_at_ms != ONCE_NO_TIME && !has_enough(pipe, stream))
            stream->paused_at_ms = ONCE_NO_TIME;
    }
}

bool once_pipe_next_stream(const once_pipe *pipe, uint32_t *at, int64_t now_ms, once_stream_view *out)
{
    const once_stream *stream = NULL;
    while (*at < pipe->streams.n && (!stream || stream->released)) stream = pipe->streams.at[(*at)++];
    if (!stream || stream->released) return false;
    const bool paused =
        stream->state == ONCE_STREAM_ASSIGNED && stream->paused_at_ms != ONCE_NO_TIME && has_enough(pipe, stream);
    *out = (once_stream_view){.number = stream->number,
                              .state = stream->state,
                              .open = once_stream_outstanding(stream),
                              .paused_ms = paused ? now_ms - stream->paused_at_ms : 0};
    return true;
}

/* Told to stop, and the source may have read what it cannot give to anybody else. */
bool once__pipe_rest_to_fetch(const once_pipe *pipe)
{
    return pipe->o.gives_once && !pipe->source.rested && !pipe->source.at_end && !pipe->store.gone;
}

static bool may_fetch(once_pipe *pipe, int64_t now_ms, size_t *n_paused)
{
    const bool store_away = pipe->store.tries > 0; /* then nothing is fetched */
    if (pipe->end.stopping ? !once__pipe_rest_to_fetch(pipe) : pipe->source.at_end || store_away) return false;
    return !is_full(pipe, now_ms) && pause_streams(pipe, now_ms, n_paused);
}

static int64_t beat_ms(const once_pipe *pipe)
{
    if (pipe->o.beat_ms > 0) return pipe->o.beat_ms;
    return pipe->o.source & ONCE_SOURCE_ASSIGNS ? BEAT_MS : ONCE_NEVER;
}

/* When it is asked for a sign of life, should nothing be fetched until then. After half of the time: a thread that is
 * woken is late, and the call must come before the time is over. */
static int64_t beat_at_ms(const once_pipe *pipe)
{
    const int64_t every_ms = beat_ms(pipe);
    if (every_ms == ONCE_NEVER || pipe->end.ended || ONCE_PLANTED(no_beat)) return ONCE_NEVER;
    return pipe->source.asked_ms + (every_ms + 1) / 2;
}

int64_t once__pipe_source_at_ms(const once_pipe *pipe, int64_t now_ms)
{
    const int64_t at_ms = beat_at_ms(pipe);
    if (pipe->source.out) return ONCE_NEVER;
    return pipe->source.at_ms > now_ms ? pipe->source.at_ms : at_ms;
}

once_action *once__pipe_source_action(once_pipe *pipe, int64_t now_ms)
{
    note_not_paused(pipe);
    if (pipe->source.out || pipe->end.ended || (now_ms < pipe->source.at_ms && !pipe->end.stopping)) return NULL;
    size_t n_paused = 0;
    const size_t max =
        pipe->end.stopping ? pipe->batch_max : once__pipe_room_to_fetch(pipe); /* what was read is not lost */
    const bool fetch = max && may_fetch(pipe, now_ms, &n_paused);
    if (!fetch && now_ms < beat_at_ms(pipe)) return NULL;
    once_batch *batch = once__pipe_batch_get(pipe);
    if (!batch) return NULL;
    pipe->source.action = (once_action){.kind = ONCE_ACT_FETCH,
                                        .max = fetch ? max : 0,
                                        .paused = pipe->streams.paused,
                                        .n_paused = n_paused,
                                        .batch = batch,
                                        .intake = &pipe->fetch_intake,
                                        .rest = fetch && pipe->end.stopping};
    pipe->source.asked_ms = now_ms;
    pipe->source.out = true;
    return &pipe->source.action;
}

/* The longest pause after a failure: one that wants to be asked that often is. */
static int64_t longest_pause_ms(const once_pipe *pipe)
{
    return pipe->o.beat_ms > 0 ? (pipe->o.beat_ms + 1) / 2 : ONCE_NEVER;
}

static void source_failed(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    if (pipe->source.tries == 0) pipe->source.failing_since_ms = now_ms;
    once__pipe_worth_another_try(pipe, action->status, &action->error, &pipe->source.tries, &pipe->source.at_ms,
                                 pipe->source.failing_since_ms, now_ms, longest_pause_ms(pipe));
}

/* How many are there of each stream. */
static int count_coming(once_pipe *pipe, const once_batch *batch, once_error *err)
{
    for (size_t i = 0; i < batch->n; i++) {
        once_stream *stream = once__pipe_stream(pipe, batch->items[i].stream);
        if (!stream || stream->state != ONCE_STREAM_ASSIGNED)
            return once_fail(err, ONCE_E_BUG, "the source hands out a message of stream %u, which it has not assigned",
                             (unsigned)batch->items[i].stream);
        stream->coming++;
    }
    return ONCE_OK;
}

/* Room for the tickets of the batch, and for all that may wait for each other. */
static int make_room(once_pipe *pipe, const once_batch *batch, once_error *err)
{
    size_t here = batch->n + pipe->outside.flight.slots;
    for (int place = 0; place < ONCE_AT_PLACES; place++) here += pipe->at[place];
    int rc = count_coming(pipe, batch, err);
    for (size_t i = 0; i < batch->n; i++) {
        once_stream *stream = once__pipe_stream(pipe, batch->items[i].stream);
        if (!stream || !stream->coming) continue;
        if (rc == ONCE_OK && !once_stream_reserve(stream, stream->coming)) rc = once_no_memory(err, "for a batch");
        stream->coming = 0;
    }
    if (rc == ONCE_OK && pipe->outside.flight.slots && !once_key_queue_reserve(&pipe->key_queue, here))
        rc = once_no_memory(err, "for a batch");
    return rc;
}

static int heed_news(once_pipe *pipe, const once_action *action, int64_t now_ms, once_error *err)
{
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < action->n_news; i++)
        rc = once__pipe_heed(pipe, &action->news[i], now_ms, err);
    return rc;
}

static void queue_batch(once_pipe *pipe, once_batch *batch, int64_t now_ms)
{
    for (size_t i = 0; i < batch->n; i++) {
        once_item *item = &batch->items[i];
        once_stream *stream = item->from = once__pipe_stream(pipe, item->stream);
        batch->bytes += item->message.body.len;
        item->ticket = once_stream_begin(stream, item->delivery, item);
        if (stream->prolong_at_ms == ONCE_NEVER && stream->expires_ms > 0)
            stream->prolong_at_ms = now_ms + once_stream_extends_after_ms(stream);
        once__pipe_move(pipe, item, ONCE_AT_READY);
    }
    pipe->source.open += batch->n;
    pipe->batches.held_bytes += batch->bytes;
}

static int take_in(once_pipe *pipe, once_batch *batch, int64_t now_ms, once_error *err)
{
    int rc = batch->taken_in ? ONCE_OK : once_intake_batch(&pipe->fetch_intake, batch, err);
    if (rc == ONCE_OK) rc = make_room(pipe, batch, err);
    if (rc == ONCE_OK) queue_batch(pipe, batch, now_ms);
    return rc;
}

void once__pipe_fetched(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    once_error err;
    pipe->source.rested = action->rest && (batch->n == 0 || action->status != ONCE_OK);
    if (action->status != ONCE_OK) {
        assert(batch->n == 0);
        once__pipe_batch_put(pipe, batch);
        source_failed(pipe, action, now_ms);
        return;
    }
    assert(batch->n <= action->max);
    pipe->source.tries = 0;
    pipe->source.asked_ms = now_ms;
    if (action->max) pipe->source.at_end = action->at_end;
    int rc = heed_news(pipe, action, now_ms, &err);
    const bool wanted = !pipe->end.stopping || (pipe->o.gives_once && !pipe->store.gone);
    if (rc == ONCE_OK && batch->n && wanted) {
        batch->open = batch->n;
        rc = take_in(pipe, batch, now_ms, &err);
        if (rc == ONCE_OK) return;
    }
    pipe->source.dropped += batch->n; /* what was read cannot be read again by this run */
    once__pipe_batch_put(pipe, batch);
    if (rc != ONCE_OK) once__pipe_give_up(pipe, rc, &err);
}

/* Whether the item ends with the transaction that it is in. */
static bool ends_here(const once_item *item)
{
    return !once__item_is_left(item) && item->stage != ONCE_STAGE_FLY && !item->lost;
}

void once__pipe_ack_work(once_pipe *pipe)
{
    for (size_t i = 0; i < pipe->work.n; i++) {
        once_item *item = pipe->work.items[i];
        if (!item->ticket || item->acked || !ends_here(item)) continue;
        if (item->from) once_stream_end(item->from, item->ticket, false, pipe->now_ms);
        item->acked = true;
        pipe->source.open--;
    }
}

/* --- cursors --- */

/* A cursor is kept at the last one that is over, and that may be one whose transaction was long ago. */
void once__pipe_remember_farthest(once_pipe *pipe, once_item *item)
{
    if (!once_spec_keeps_cursor(pipe->spec) || !item->from) return;
    once_item *before = item->from->farthest;
    if (before && before->ticket > item->ticket) return;
    item->batch->open++;
    item->from->farthest = item;
    if (before) once__pipe_batch_let_go(pipe, before->batch);
}

static void peek(once_pipe *pipe, bool over)
{
    for (size_t i = 0; i < pipe->work.n; i++) {
        const once_item *item = pipe->work.items[i];
        if (item->from && !item->acked && ends_here(item)) once_watermark_peek(&item->from->mark, item->ticket, over);
    }
}

static uint64_t peeked(once_stream *stream)
{
    if (!stream->peeked) stream->peeked = once_watermark_peeked(&stream->mark) + 1;
    return stream->peeked - 1;
}

/* For each stream, the message up to which everything will be over when the work is committed. Only a cursor asks. */
void once__pipe_find_last(once_pipe *pipe)
{
    pipe->work.last_n = 0;
    if (!once_spec_keeps_cursor(pipe->spec)) return;
    peek(pipe, true);
    for (size_t i = 0; i < pipe->work.n; i++) {
        const once_item *item = pipe->work.items[i];
        once_stream *stream = item->from;
        if (!stream || !ends_here(item)) continue;
        const once_item *last = stream->next_farthest ? stream->next_farthest : stream->farthest;
        if (item->ticket <= peeked(stream) && (!last || item->ticket > last->ticket)) last = item;
        if (last && last->ticket <= peeked(stream)) stream->next_farthest = last;
    }
    peek(pipe, false);
    for (size_t i = 0; i < pipe->work.n; i++) {
        once_stream *stream = pipe->work.items[i]->from;
        if (!stream) continue;
        if (stream->next_farthest) {
            stream->next_farthest->batch->open++; /* its stream may be lost before the commit is answered */
            pipe->work.last[pipe->work.last_n++] = stream->next_farthest;
        }
        stream->next_farthest = NULL;
        stream->peeked = 0;
    }
}

/* The commit was answered. */
void once__pipe_let_last_go(once_pipe *pipe)
{
    while (pipe->work.last_n) once__pipe_batch_let_go(pipe, pipe->work.last[--pipe->work.last_n]->batch);
}
