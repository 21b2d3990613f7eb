/* The machine as others see it; core/pipeline.h tells the story, core/pipe.h has its state. One idea each:
 * pipe_place.c, pipe_times.c, pipe_source.c, pipe_stream.c, pipe_ack.c, pipe_work.c, pipe_decide.c, pipe_count.c,
 * pipe_due.c, pipe_room.c, pipe_failure.c, pipe_outside.c, pipe_store.c, pipe_check.c. */
#include "core/pipeline.h"

#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"
#include "core/pipe.h"
#include "core/plant.h"

#include "base/banned.h"

const char *once_action_name(once_action_kind kind)
{
    static const char *const names[] = {"none", "begin",  "find",     "claim",   "extend",  "run",   "settle", "accept",
                                        "bury", "commit", "rollback", "take",    "stats",   "count", "renew",  "sweep",
                                        "seek", "fetch",  "ack",      "prolong", "release", "start", "kill"};
    assert((size_t)kind < sizeof names / sizeof *names);
    return names[kind];
}

void once_pipe_step(once_pipe *pipe, once_action *action, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    if (action == &pipe->source.action) {
        assert(pipe->source.out);
        pipe->source.out = false;
        once__pipe_fetched(pipe, action, now_ms);
    } else if (action == &pipe->acks.action) {
        assert(pipe->acks.out);
        pipe->acks.out = false;
        once__pipe_acked(pipe, action, now_ms);
    } else if (action == &pipe->outside.action) {
        assert(pipe->outside.out);
        pipe->outside.out = false;
    } else {
        assert(action == &pipe->store.action && pipe->store.out);
        pipe->store.out = false;
        once__pipe_store_step(pipe, action, now_ms);
    }
    once__pipe_checked(pipe);
}

once_action *once_pipe_store_action(once_pipe *pipe, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    once_action *action = once__pipe_store_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

once_action *once_pipe_source_action(once_pipe *pipe, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    once_action *action = once__pipe_source_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

once_action *once_pipe_ack_action(once_pipe *pipe, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    once_action *action = once__pipe_ack_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

once_action *once_pipe_effect_action(once_pipe *pipe, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    once_action *action = once__pipe_effect_action(pipe, now_ms);
    once__pipe_checked(pipe);
    return action;
}

void once_pipe_finished(once_pipe *pipe, once_item *const *items, size_t n, int64_t now_ms)
{
    pipe->now_ms = now_ms;
    once__pipe_finished(pipe, items, n, now_ms);
    once__pipe_checked(pipe);
}

void once_pipe_stop(once_pipe *pipe)
{
    pipe->end.stopping = true;
    pipe->store.at_ms = 0; /* what waits for the next try is tried now, for the last time */
}

bool once_pipe_ended(const once_pipe *pipe) { return pipe->end.ended; }

uint64_t once_pipe_unsettled(const once_pipe *pipe) { return pipe->end.unsettled; }

uint64_t once_pipe_dropped(const once_pipe *pipe) { return pipe->source.dropped + pipe->source.open; }

uint64_t once_pipe_gone(const once_pipe *pipe) { return pipe->source.gone; }

int once_pipe_status(const once_pipe *pipe, once_error *err)
{
    if (pipe->end.status != ONCE_OK && err) *err = pipe->end.error;
    return pipe->end.status;
}

const once_counts *once_pipe_counts(const once_pipe *pipe) { return &pipe->counts; }

const once_timings *once_pipe_timings(const once_pipe *pipe) { return &pipe->timings; }

size_t once_pipe_open(const once_pipe *pipe)
{
    size_t n = 0;
    for (int place = 0; place < ONCE_AT_PLACES; place++) n += pipe->at[place];
    return n;
}

int64_t once_pipe_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    int64_t at_ms = ONCE_NEVER;
    if (!pipe->end.stopping && once__pipe_take_max(pipe, now_ms)) at_ms = pipe->due.at_ms;
    if (!pipe->end.stopping && pipe->source.at_end && pipe->outside.flight.n == 0 && pipe->store.stats_at_ms < at_ms)
        at_ms = pipe->store.stats_at_ms;
    if (!pipe->end.stopping && once__pipe_count_at_ms(pipe) < at_ms) at_ms = once__pipe_count_at_ms(pipe);
    if (!pipe->end.stopping && once__pipe_seek_at_ms(pipe) < at_ms) at_ms = once__pipe_seek_at_ms(pipe);
    if (pipe->outside.at_ms > now_ms && pipe->outside.at_ms < at_ms) at_ms = pipe->outside.at_ms;
    if (pipe->outside.flight.extend_at_ms < at_ms) at_ms = pipe->outside.flight.extend_at_ms;
    if (pipe->store.renew_at_ms < at_ms) at_ms = pipe->store.renew_at_ms;
    if (pipe->store.at_ms > now_ms) at_ms = pipe->store.at_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

int64_t once_pipe_source_wait_ms(const once_pipe *pipe, int64_t now_ms)
{
    const int64_t source_ms = once__pipe_source_at_ms(pipe, now_ms), ack_ms = once__pipe_ack_at_ms(pipe, now_ms);
    const int64_t at_ms = source_ms < ack_ms ? source_ms : ack_ms;
    return at_ms == ONCE_NEVER ? ONCE_NEVER : at_ms > now_ms ? at_ms - now_ms : 0;
}

static bool flight_new(once_pipe *pipe)
{
    if (!once_flight_init(&pipe->outside.flight, pipe->spec)) return false;
    if (pipe->o.unclean && !ONCE_PLANTED(no_caution)) pipe->outside.flight.alone_left = CAUTIOUS_LEAST;
    if (!pipe->outside.flight.slots) return once_key_queue_init(&pipe->key_queue, 0);
    pipe->outside.list = calloc(pipe->outside.flight.slots, sizeof *pipe->outside.list);
    return pipe->outside.list &&
           once_key_queue_init(&pipe->key_queue, pipe->outside.flight.slots + (PARKED + 3) * pipe->batch_max);
}

/* Effects of the store's own database, without names that a transaction locks before all else. */
static bool may_run_here(const once_spec *spec)
{
    for (size_t i = 0; i < spec->n_handlers; i++)
        if (once_handler_external(&spec->handlers[i]) || spec->handlers[i].locks.n) return false;
    return true;
}

int once_pipe_new(const once_pipe_options *options, once_pipe **out, once_error *err)
{
    /* A cursor is of all before it, and where acks are single there is no such place. */
    assert(!(options->source & ONCE_SOURCE_SINGLE_ACKS && once_spec_keeps_cursor(options->spec)));
    once_pipe *pipe = calloc(1, sizeof *pipe);
    if (!pipe) return once_no_memory(err, "for a pipeline");
    pipe->o = *options;
    pipe->spec = options->spec;
    pipe->batch_max = options->spec->batch_max;
    pipe->end.stop_at_ms = ONCE_NEVER;
    if (!options->renew_ms) pipe->store.renew_at_ms = ONCE_NEVER;
    pipe->work.marks_size = 64;
    while (pipe->work.marks_size < 8 * pipe->batch_max) pipe->work.marks_size *= 2;
    pipe->due.finds = options->finds && options->spec->order && may_run_here(options->spec);
    if (options->unclean && !ONCE_PLANTED(no_caution)) once__pipe_be_cautious(pipe);
    pipe->caution.window = pipe->batch_max;
    once_intake_init(&pipe->intake, options->spec, options->secret, options->run, options->prepare);
    once_intake_init(&pipe->fetch_intake, options->spec, options->secret, options->run, options->prepare);

    const size_t pointer = sizeof(once_item *);
    const size_t most = pipe->work.size = 2 * pipe->batch_max; /* as many as there are may be found behind them */
    pipe->work.items = calloc(most, pointer);
    pipe->work.round = calloc(most, pointer);
    pipe->work.next_round = calloc(most, pointer);
    pipe->work.list = calloc(most, pointer);
    pipe->work.about = calloc(most + pipe->batch_max, pointer);
    pipe->work.last = calloc(most, pointer);
    pipe->work.keeping = calloc(pipe->batch_max, pointer);
    pipe->work.marks = calloc(pipe->work.marks_size, sizeof *pipe->work.marks);
    pipe->work.admitted = calloc(options->spec->n_handlers + 1, sizeof *pipe->work.admitted);
    const bool memory = pipe->work.items && pipe->work.last && pipe->work.round && pipe->work.next_round &&
                        pipe->work.list && pipe->work.about && pipe->work.keeping && pipe->work.marks &&
                        pipe->work.admitted;
    const bool assigns = options->source & ONCE_SOURCE_ASSIGNS;
    if (!memory || !flight_new(pipe) || (!assigns && !once__pipe_stream_add(pipe, 0))) {
        once_pipe_free(pipe);
        return once_no_memory(err, "for a pipeline");
    }
    *out = pipe;
    return ONCE_OK;
}

void once_pipe_free(once_pipe *pipe)
{
    if (!pipe) return;
    while (pipe->batches.all) {
        once_batch *batch = pipe->batches.all;
        pipe->batches.all = batch->all;
        once__batch_free(batch);
    }
    once_intake_release(&pipe->intake);
    once_intake_release(&pipe->fetch_intake);
    once_stream *releasing = pipe->acks.releasing; /* its number may be another one's by now */
    if (releasing && pipe->streams.at[releasing->number] != releasing) once_stream_free(releasing);
    for (uint32_t i = 0; i < pipe->streams.n; i++) once_stream_free(pipe->streams.at[i]);
    free(pipe->streams.at);
    free(pipe->streams.paused);
    once_flight_release(&pipe->outside.flight);
    once_key_queue_release(&pipe->key_queue);
    once_id_set_release(&pipe->unknown);
    free(pipe->work.items);
    free(pipe->work.round);
    free(pipe->work.next_round);
    free(pipe->work.list);
    free(pipe->work.about);
    free(pipe->work.last);
    free(pipe->work.keeping);
    free(pipe->work.marks);
    free(pipe->work.admitted);
    free(pipe->outside.list);
    free(pipe);
}
