/* Effects outside of the store: started when their claims are durable, told to end before their leases do, and back
 * with an outcome. */
#include "core/pipe.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* The claim is durable: the effect may begin. */
void once__pipe_depart(once_pipe *pipe, once_item *item, int64_t asked_at_ms)
{
    if (!item->joined && !once_key_queue_in_use(&pipe->key_queue, item)) once_key_queue_join(&pipe->key_queue, item);
    item->commit_unknown = false; /* its fate is known */
    item->claimed_at_ms = asked_at_ms;
    once__pipe_move(pipe, item, ONCE_AT_FLIGHT);
    pipe->counts.repeats += once__item_repeats(item) > 0;
}

/* It was claimed and has not begun: it goes back to the store without blame. */
static void recall_one(once_pipe *pipe, once_item *item)
{
    assert(!item->given);
    const bool asks = item->decision.asks; /* it was unknown before, and still is */
    item->outcome = asks ? ONCE_UNKNOWN : ONCE_RELEASE;
    item->maybe = asks;
    item->failure = asks ? item->decision.before : ONCE_BYTES("put back at shutdown");
    item->delay_ms = 0;
    once__pipe_move(pipe, item, ONCE_AT_RETURNED);
}

void once__pipe_recall(once_pipe *pipe)
{
    once_item *next;
    for (once_item *item = pipe->outside.flight.first; item; item = next) {
        next = item->next;
        if (!item->given) recall_one(pipe, item);
    }
}

void once__pipe_lose_flying(once_pipe *pipe, once_item *item)
{
    once_flight_lose(&pipe->outside.flight, item);
    if (!item->given) recall_one(pipe, item);
}

once_action *once__pipe_effect_action(once_pipe *pipe, int64_t now_ms)
{
    if (pipe->outside.out || pipe->end.ended || pipe->outside.flight.n == 0) return NULL;
    if (pipe->end.stopping && pipe->end.stop_at_ms == ONCE_NEVER) pipe->end.stop_at_ms = now_ms;
    once_action_kind kind = ONCE_ACT_START;
    size_t n = pipe->end.stopping
                   ? 0
                   : once_flight_starts(&pipe->outside.flight, now_ms, pipe->outside.list, pipe->outside.flight.slots);
    if (n == 0) {
        const bool drained =
            pipe->end.stopping && (pipe->store.gone || now_ms - pipe->end.stop_at_ms >= pipe->spec->drain_ms);
        kind = ONCE_ACT_KILL;
        n = ONCE_PLANTED(no_kill) ? 0
                                  : once_flight_ends(&pipe->outside.flight, drained, now_ms, pipe->outside.list,
                                                     pipe->outside.flight.slots);
    }
    if (n == 0) return NULL;
    if (kind == ONCE_ACT_START) once__pipe_note_started(pipe, pipe->outside.list, n);
    pipe->outside.action = (once_action){.kind = kind, .items = pipe->outside.list, .n = n};
    pipe->outside.out = true;
    return &pipe->outside.action;
}

int64_t once_pipe_effect_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t at_ms = pipe->outside.flight.end_at_ms;
    if (pipe->end.stopping && pipe->outside.flight.n) {
        const int64_t drained_ms =
            (pipe->end.stop_at_ms == ONCE_NEVER ? now_ms : pipe->end.stop_at_ms) + pipe->spec->drain_ms;
        if (drained_ms > now_ms && drained_ms < at_ms) at_ms = drained_ms;
    }
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

void once__pipe_finished(once_pipe *pipe, once_item *const *items, size_t n, int64_t now_ms)
{
    const once_item *failed = NULL;
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        /* Told to end, or never begun, it has not found out that the other side is away: it need not wait. */
        const bool found_out = item->started && !item->told_to_end;
        if (item->outcome == ONCE_RELEASE && item->delay_ms < 0 && !found_out) item->delay_ms = 0;
        once__pipe_judge(pipe, item);
        if (item->not_started != ONCE_OK) failed = item;
        else pipe->outside.tries = 0;
        once__pipe_move(pipe, item, ONCE_AT_RETURNED);
    }
    if (!failed) return;
    once_error error;
    once_fail(&error, failed->not_started, "%.*s", (int)failed->failure.len,
              failed->failure.data ? failed->failure.data : "");
    if (pipe->outside.tries == 0) pipe->outside.failing_since_ms = now_ms;
    once__pipe_worth_another_try(pipe, failed->not_started, &error, &pipe->outside.tries, &pipe->outside.at_ms,
                                 pipe->outside.failing_since_ms, now_ms, ONCE_NEVER);
}
