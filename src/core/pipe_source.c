/* The source side: how much is fetched, which tickets are over, and what may be acked. A ticket is over when the
 * transaction that ended its message is committed; acks go up to the first one that is not. */
#include "core/pipe.h"

#include <assert.h>

#include "base/no_memory.h"
#include "core/plant.h"

#include "base/banned.h"

#define READY_BYTES (16u << 20) /* of bodies that wait for their transaction; then nothing more is fetched */
#define HELD_BYTES (64u << 20)  /* the same of all batches whose messages are not over */

uint64_t once__pipe_may_ack(const once_pipe *pipe)
{
    if (ONCE_PLANTED(ack_past_gap)) return pipe->source.watermark.next - 1;
    return pipe->source.watermark.upto;
}

/* Of what was fetched there is enough in memory. When none of it is left to be worked on, it is held for another reason
 * (the cursor's), and waiting would not help. */
static bool holds_enough(const once_pipe *pipe)
{
    if (pipe->ready.n >= pipe->batch_max || pipe->ready.bytes >= READY_BYTES ||
        pipe->at[ONCE_AT_PARKED] >= PARKED * pipe->batch_max)
        return true;
    return pipe->batches.held_bytes >= HELD_BYTES &&
           pipe->ready.n + pipe->at[ONCE_AT_PARKED] + pipe->outside.flight.n > 0;
}

/* Told to stop, and the source may have read what it cannot give to anybody else. */
bool once__pipe_rest_to_fetch(const once_pipe *pipe)
{
    return pipe->o.gives_once && !pipe->source.rested && !pipe->source.at_end && !pipe->store.gone;
}

once_action *once__pipe_source_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->source.out || pipe->end.ended) return NULL;
    const bool store_away = pipe->store.tries > 0; /* then nothing is fetched */
    if (pipe->end.stopping ? !once__pipe_rest_to_fetch(pipe)
                           : pipe->source.at_end || store_away || now_ms < pipe->source.at_ms)
        return NULL;
    if (holds_enough(pipe)) return NULL;
    /* One is very slow. */
    if (pipe->source.watermark.next - pipe->source.watermark.kept > (OUTSTANDING - 1) * pipe->batch_max) return NULL;
    once_batch *batch = once__pipe_batch_get(pipe);
    if (!batch) return NULL;
    pipe->source.action = (once_action){.kind = ONCE_ACT_FETCH,
                                        .max = pipe->batch_max,
                                        .batch = batch,
                                        .intake = &pipe->fetch_intake,
                                        .rest = pipe->end.stopping};
    pipe->source.out = true;
    return &pipe->source.action;
}

once_action *once__pipe_ack_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->acks.out || pipe->end.ended || now_ms < pipe->acks.at_ms) return NULL;
    const uint64_t upto = once__pipe_may_ack(pipe);
    if (upto <= pipe->source.acked) return NULL;
    pipe->acks.ticket = upto;
    pipe->acks.list[0] = (once_receipt){.delivery = once_watermark_at(&pipe->source.watermark, upto)->delivery};
    pipe->acks.action = (once_action){.kind = ONCE_ACT_ACK, .receipts = pipe->acks.list, .n = 1};
    pipe->acks.out = true;
    return &pipe->acks.action;
}

static void source_failed(once_pipe *pipe, const once_action *action, int64_t now_ms)
{
    if (pipe->source.tries == 0) pipe->source.failing_since_ms = now_ms;
    once__pipe_worth_another_try(pipe, action->status, &action->error, &pipe->source.tries, &pipe->source.at_ms,
                                 pipe->source.failing_since_ms, now_ms, ONCE_NEVER);
}

void once__pipe_fetched(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    once_batch *batch = action->batch;
    batch->open = batch->n;
    pipe->source.rested = action->rest && (batch->n == 0 || action->status != ONCE_OK);
    if (action->status != ONCE_OK) {
        assert(batch->n == 0);
        once__pipe_batch_put(pipe, batch);
        source_failed(pipe, action, now_ms);
        return;
    }
    pipe->source.tries = 0;
    pipe->source.at_end = action->at_end;
    if (batch->n == 0 || (pipe->end.stopping && (!pipe->o.gives_once || pipe->store.gone))) {
        pipe->source.dropped += batch->n;
        once__pipe_batch_put(pipe, batch);
        return;
    }
    once_error err;
    int rc = batch->taken_in ? ONCE_OK : once_intake_batch(&pipe->fetch_intake, batch, &err);
    if (rc == ONCE_OK && !once_watermark_reserve(&pipe->source.watermark, batch->n))
        rc = once_no_memory(&err, "for a batch");
    if (rc != ONCE_OK) { /* what was read cannot be read again by this run */
        pipe->source.dropped += batch->n;
        once__pipe_batch_put(pipe, batch);
        once__pipe_give_up(pipe, rc, &err);
        return;
    }
    for (size_t i = 0; i < batch->n; i++) {
        batch->bytes += batch->items[i].message.body.len;
        batch->items[i].ticket =
            once_watermark_begin(&pipe->source.watermark, batch->items[i].delivery, &batch->items[i]);
        once__pipe_move(pipe, &batch->items[i], ONCE_AT_READY);
    }
    pipe->batches.held_bytes += batch->bytes;
}

void once__pipe_acked(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    pipe_acks *acks = &pipe->acks;
    if (action->status != ONCE_OK && action->receipts[0].answer == ONCE_RECEIPT_OPEN) {
        if (acks->tries == 0) acks->failing_since_ms = now_ms;
        once__pipe_worth_another_try(pipe, action->status, &action->error, &acks->tries, &acks->at_ms,
                                     acks->failing_since_ms, now_ms, ONCE_NEVER);
        return;
    }
    acks->tries = 0;
    once__pipe_note_acked(pipe, pipe->source.acked + 1, acks->ticket);
    pipe->counts.acked += acks->ticket - pipe->source.acked;
    pipe->source.acked = acks->ticket;
    if (!ONCE_PLANTED(ack_past_gap)) once_watermark_forget(&pipe->source.watermark, acks->ticket);
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
        once_watermark_end(&pipe->source.watermark, item->ticket, pipe->now_ms);
        item->acked = true;
        pipe->source.over++;
    }
}

/* A cursor is kept at the last one that is over, and that may be one whose transaction was long ago. */
void once__pipe_remember_farthest(once_pipe *pipe, once_item *item)
{
    once_item *before = pipe->source.farthest;
    if (!once_spec_keeps_cursor(pipe->spec) || !item->ticket || (before && before->ticket > item->ticket)) return;
    item->batch->open++;
    pipe->source.farthest = item;
    if (before) once__pipe_batch_let_go(pipe, before->batch);
}

/* The message up to which everything will be over when the work is committed; NULL: there is none. Only a cursor
 * asks. */
const once_item *once__pipe_last_without_gap(once_pipe *pipe)
{
    if (!once_spec_keeps_cursor(pipe->spec)) return NULL;
    for (size_t i = 0; i < pipe->work.n; i++)
        if (pipe->work.items[i]->ticket && ends_here(pipe->work.items[i]))
            once_watermark_peek(&pipe->source.watermark, pipe->work.items[i]->ticket, true);
    const uint64_t upto = once_watermark_peeked(&pipe->source.watermark);
    for (size_t i = 0; i < pipe->work.n; i++)
        if (pipe->work.items[i]->ticket && ends_here(pipe->work.items[i]))
            once_watermark_peek(&pipe->source.watermark, pipe->work.items[i]->ticket, false);

    const once_item *last =
        pipe->source.farthest && pipe->source.farthest->ticket <= upto ? pipe->source.farthest : NULL;
    for (size_t i = 0; i < pipe->work.n; i++) {
        const once_item *item = pipe->work.items[i];
        if (item->ticket && item->ticket <= upto && ends_here(item) && (!last || item->ticket > last->ticket))
            last = item;
    }
    return last;
}
