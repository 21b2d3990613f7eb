/* Which streams a worker has, and behind which number. A stream comes by news of a fetch; it is asked back, and then it
 * must be released in time, or it is taken away at once. What a worker's machine knows is what it was told in an answer
 * that it has heard: between the two, acks of a stream that is somebody else's are no fault. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

#define SLACK_MS 250 /* actions take their time */

bool sim_seat_is_ours(const sim_seat *seat) { return seat->state >= OURS && seat->state <= LEAVING; }

static bool is_heard(const sim_seat *seat, once_stream_change change) { return seat->news[change].turn != 0; }

bool sim_seat_is_left(const sim_seat *seat)
{
    return is_heard(seat, ONCE_STREAM_REVOKED) || is_heard(seat, ONCE_STREAM_LOST);
}

sim_seat *sim_seat_of(sim_worker *w, int stream)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        sim_seat *seat = &w->seats[i];
        if ((seat->state == NEW || sim_seat_is_ours(seat)) && seat->stream == stream) return seat;
    }
    return NULL;
}

/* --- coming and going --- */

sim_seat *sim_seats_give(sim_worker *w, int stream)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        if (w->seats[i].state != FREE) continue;
        w->seats[i] = (sim_seat){.state = NEW, .stream = stream, .assignment = ++w->world->assignments};
        return &w->seats[i];
    }
    return NULL;
}

void sim_seat_ask(sim_worker *w, sim_seat *seat)
{
    if (seat->state == NEW) sim_seat_take(w, seat); /* it was not told of it */
    if (seat->state != OURS) return;
    seat->state = ASKED;
    seat->until_ms = w->world->now_ms + w->world->within_ms;
    sim_trace(w->world, w->index, "must leave stream", NULL, seat->stream, -1, ONCE_OK);
}

static void put_back(sim_worker *w, const sim_seat *seat)
{
    sim_world *world = w->world;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || world->handouts[d->handout].assignment != seat->assignment) continue;
        sim_delivery_back(world, d);
        sim_fired(world, SIM_redelivered);
    }
}

/* Who was told to leave it need not be told that it is lost. */
void sim_seat_take(sim_worker *w, sim_seat *seat)
{
    sim_world *world = w->world;
    assert(seat->state == NEW || sim_seat_is_ours(seat));
    put_back(w, seat);
    const bool quietly = seat->state == LEAVING && sim_chance(world, 50);
    if (seat->state == LEAVING && !quietly) sim_fired(world, SIM_lost_late);
    seat->state = seat->state == NEW ? FREE : quietly ? GONE : TAKEN;
    sim_stream *s = &world->streams[seat->stream];
    if (s->owner != w) return;
    s->owner = NULL;
    s->waits_since_ms = 0;
}

void sim_seats_release(sim_worker *w, uint32_t number)
{
    sim_world *world = w->world;
    sim_seat *seat = &w->seats[number];
    sim_trace(world, w->index, "releases stream", NULL, seat->stream, number, ONCE_OK);
    if (seat->state == FREE || seat->state == NEW)
        sim_violation(world, "worker %d releases stream number %u, which it does not have", w->index, number);
    if (sim_seat_is_ours(seat)) sim_seat_take(w, seat);
    *seat = (sim_seat){.state = FREE};
}

/* --- news --- */

bool sim_seats_have_news(const sim_worker *w)
{
    for (int i = 0; i < SIM_STREAMS; i++)
        if (w->seats[i].state == NEW || w->seats[i].state == ASKED || w->seats[i].state == TAKEN) return true;
    return false;
}

static void tell(sim_worker *w, uint32_t number, once_stream_change change, once_fetch *fetch)
{
    static const char *const words[] = {"gets stream", "is told to leave stream", "is told that it has lost stream"};
    sim_seat *seat = &w->seats[number];
    const sim_world *world = w->world;
    seat->news[change].told = true;
    sim_trace(w->world, w->index, words[change], NULL, seat->stream, number, ONCE_OK);
    if (change == ONCE_STREAM_REVOKED) {
        seat->within_ms = seat->until_ms > world->now_ms ? seat->until_ms - world->now_ms : 0;
        sim_fired(w->world, world->kind == BROKER_LOG ? SIM_rebalanced : SIM_cancelled);
    }
    fetch->news[fetch->n_news++] = (once_stream_news){.change = change,
                                                      .stream = number,
                                                      .within_ms = seat->within_ms,
                                                      .expires_ms = world->expires ? world->visible_ms : 0};
}

void sim_seats_tell(sim_worker *w, once_fetch *fetch)
{
    fetch->news = once_arena_new(&fetch->batch->arena, once_stream_news, SIM_STREAMS);
    if (!fetch->news) abort();
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        sim_seat *seat = &w->seats[i];
        switch (seat->state) {
        case NEW:
            seat->state = OURS;
            tell(w, i, ONCE_STREAM_ASSIGNED, fetch);
            break;
        case ASKED:
            seat->state = LEAVING;
            tell(w, i, ONCE_STREAM_REVOKED, fetch);
            break;
        case TAKEN:
            seat->state = GONE;
            tell(w, i, ONCE_STREAM_LOST, fetch);
            break;
        default: break;
        }
    }
}

void sim_seats_heard(sim_worker *w)
{
    sim_world *world = w->world;
    world->turns++;
    for (int i = 0; i < SIM_STREAMS; i++)
        for (int change = 0; change < 3; change++) {
            sim_seat *seat = &w->seats[i];
            if (!seat->news[change].told || seat->news[change].turn) continue;
            seat->news[change].turn = world->turns;
            seat->news[change].ms = world->now_ms;
        }
}

/* --- judgement --- */

/* Whether the worker is late with leaving it: it knows, it was given its time, and nothing kept it from acting. */
static bool is_late(const sim_worker *w, const sim_seat *seat)
{
    const bool lost = is_heard(seat, ONCE_STREAM_LOST);
    if (!sim_seat_is_left(seat) || w->state != UP) return false;
    const int64_t heard_ms = seat->news[lost ? ONCE_STREAM_LOST : ONCE_STREAM_REVOKED].ms;
    return w->paused_until_ms < heard_ms && w->world->now_ms >= heard_ms + (lost ? 0 : seat->within_ms) + SLACK_MS;
}

sim_seat *sim_seats_ack(sim_worker *w, once_receipt *receipt)
{
    sim_world *world = w->world;
    sim_seat *seat = &w->seats[receipt->stream];
    const sim_handout *h = sim_handout_find(w, receipt->stream, receipt->delivery);
    const unsigned long long delivery = (unsigned long long)receipt->delivery;
    if (!h || seat->state == FREE || seat->state == NEW || h->assignment != seat->assignment)
        sim_violation(world,
                      "worker %d acks delivery %llu of stream number %u, which it was not given, or has released",
                      w->index, delivery, receipt->stream);
    if (seat->tried || is_late(w, seat))
        sim_violation(world, "worker %d acks delivery %llu of stream %d, which it has released, or had to", w->index,
                      delivery, seat->stream);
    const uint64_t lost_turn = seat->news[ONCE_STREAM_LOST].turn;
    if (lost_turn && lost_turn < w->asked_turn)
        sim_violation(world, "worker %d acks delivery %llu of stream %d, which it knows to be lost", w->index, delivery,
                      seat->stream);
    if (sim_seat_is_ours(seat)) return seat;
    receipt->answer = ONCE_RECEIPT_GONE;
    sim_fired(world, SIM_gone);
    return NULL;
}

void sim_seats_tick(sim_world *world)
{
    for (int i = 0; i < world->workers_n * SIM_STREAMS; i++) {
        sim_worker *w = &world->workers[i / SIM_STREAMS];
        sim_seat *seat = &w->seats[i % SIM_STREAMS];
        if (seat->state == FREE) continue;
        if (!seat->tried && is_late(w, seat))
            sim_violation(world, "worker %d did not release stream %d within %lld ms", w->index, seat->stream,
                          (long long)seat->within_ms);
        if ((seat->state != ASKED && seat->state != LEAVING) || seat->until_ms + SLACK_MS > world->now_ms) continue;
        sim_fired(world, SIM_overdue);
        sim_seat_take(w, seat);
    }
}

/* Of a number that was released since it was told to stop nothing is asked any more: should the broker have given it
 * another stream meanwhile, that one goes with the connection. */
void sim_seats_ended(sim_worker *w)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        const sim_seat *seat = &w->seats[i];
        if (seat->state != FREE && is_heard(seat, ONCE_STREAM_ASSIGNED) && !seat->tried && !w->left[i])
            sim_violation(w->world, "worker %d ended well, and has not released stream %d", w->index, seat->stream);
    }
}

int64_t sim_seats_next_ms(const sim_world *world)
{
    int64_t next_ms = ONCE_NEVER;
    for (int i = 0; i < world->workers_n * SIM_STREAMS; i++) {
        const sim_seat *seat = &world->workers[i / SIM_STREAMS].seats[i % SIM_STREAMS];
        const bool leaves = seat->state == ASKED || seat->state == LEAVING;
        if (leaves && seat->until_ms + SLACK_MS < next_ms) next_ms = seat->until_ms + SLACK_MS;
    }
    return next_ms;
}
