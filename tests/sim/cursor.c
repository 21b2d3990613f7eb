/* A log whose cursors the store keeps. `keep` writes the offset up to which every message is over, in the transaction
 * that settles it; `seek` reads it before the first message of a stream comes. Messages before the cursor are not
 * delivered again, so each is judged as if it were acked. A seek may fail for a while; the other streams of that worker
 * go on. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define SEEK_MS 15000 /* a worker tries again within that */

static once_bytes name_of(int stream, char out[16])
{
    const int len = snprintf(out, 16, "%d", stream);
    return (once_bytes){out, (size_t)len};
}

/* Offsets count from 0 on, and the cursor is behind the last one that is over. */
static int read_cursor(const once_facts *facts, int stream, uint64_t *out, once_error *err)
{
    char name[16], digits[24] = "";
    once_arena arena = {0};
    once_bytes value = {0};
    const int rc = facts->get(facts, "cursor", name_of(stream, name), &value, &arena, err);
    if (rc == ONCE_OK && value.len && value.len < sizeof digits) memcpy(digits, value.data, value.len);
    *out = strtoull(digits, NULL, 10);
    once_arena_release(&arena);
    return rc;
}

void sim_cursor_note(const sim_delivery *d, once_item *item)
{
    int *stream = once_arena_alloc(&item->batch->arena, sizeof *stream);
    if (!stream) abort();
    *stream = d->stream; /* its number may be another one's when the transaction is committed */
    item->resume = stream;
}

int sim_cursor_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                    const once_item *const *last, size_t n_last, once_error *err)
{
    const sim_worker *w = ((sim_source *)source)->worker;
    (void)items, (void)n;
    for (size_t i = 0; i < n_last; i++) {
        const int stream = *(const int *)last[i]->resume;
        char name[16], value[24];
        uint64_t before;
        int rc = read_cursor(facts, stream, &before, err);
        const int len = snprintf(value, sizeof value, "%llu", (unsigned long long)last[i]->delivery + 1);
        /* Another worker, which has the stream by now, may be further. */
        if (rc == ONCE_OK && last[i]->delivery >= before)
            rc = facts->set(facts, "cursor", name_of(stream, name), (once_bytes){value, (size_t)len}, err);
        if (rc != ONCE_OK) return rc;
        sim_trace(w->world, w->index, "  keeps the cursor of stream", NULL, stream, (int64_t)last[i]->delivery + 1,
                  ONCE_OK);
    }
    return ONCE_OK;
}

/* The cursor may be behind the acks, because only messages that are there can be kept as the last one. But the first
 * message of a stream moves it. */
static void pass(sim_worker *w, int stream, uint64_t cursor)
{
    sim_world *world = w->world;
    bool first = true;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->stream != stream) continue;
        if (d->offset < cursor && d->state != ACKED) sim_delivery_acked(w, d);
        else if (first && d->offset >= cursor && d->state == ACKED)
            sim_violation(world, "stream %d: message %d, its first, was acked, and the cursor is before it", stream,
                          d->message);
        first = false;
    }
}

int sim_cursor_seek(once_source *source, uint32_t number, const once_facts *facts, once_error *err)
{
    sim_worker *w = ((sim_source *)source)->worker;
    sim_world *world = w->world;
    sim_assignment *assignment = &w->assignments[number];
    uint64_t cursor;
    if (assignment->state == FREE || assignment->state == NEW) return ONCE_OK; /* it was released meanwhile */
    assignment->seek_ms = world->now_ms;
    if (assignment->no_seek_until_ms <= world->now_ms && sim_fires(world, SIM_seek_fails))
        assignment->no_seek_until_ms = world->now_ms + 1 + (int64_t)sim_random(world, 6000);
    if (assignment->no_seek_until_ms > world->now_ms)
        return once_fail(err, number % 2 ? ONCE_E_BUSY : ONCE_E_UNAVAILABLE, "simulated: no place for this stream");
    const int rc = read_cursor(facts, assignment->stream, &cursor, err);
    if (rc != ONCE_OK) return rc;
    sim_trace(world, w->index, "  goes on in stream", NULL, assignment->stream, (int64_t)cursor, ONCE_OK);
    sim_fired(world, SIM_sought);
    if (!sim_assignment_is_ours(assignment)) return ONCE_OK;
    assignment->sought = true;
    assignment->next = cursor;
    if (world->streams[assignment->stream].owner == w) pass(w, assignment->stream, cursor);
    return ONCE_OK;
}

void sim_cursor_tick(sim_world *world)
{
    for (int i = 0; i < world->workers_n * SIM_STREAMS; i++) {
        const sim_worker *w = &world->workers[i / SIM_STREAMS];
        const sim_assignment *assignment = &w->assignments[i % SIM_STREAMS];
        const int64_t told_ms = assignment->news[ONCE_STREAM_ASSIGNED].ms;
        const int64_t since_ms = assignment->seek_ms > told_ms ? assignment->seek_ms : told_ms;
        if (assignment->state != OURS || assignment->sought || !assignment->news[ONCE_STREAM_ASSIGNED].turn) continue;
        if (world->now_ms - since_ms > SEEK_MS && sim_source_calm(w, since_ms))
            sim_violation(world, "worker %d has stream %d for %lld ms and does not look where it goes on", w->index,
                          assignment->stream, (long long)(world->now_ms - since_ms));
    }
}
