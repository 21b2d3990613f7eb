/* Which streams a worker has, and behind which number. A stream comes by news of a fetch; it is asked back, and then it
 * must be released in time, or it is taken away at once. What a worker's machine knows is what it was told in an answer
 * that it has heard: between the two, acks of a stream that is somebody else's are no fault. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

#define SLACK_MS 250 /* actions take their time */

bool sim_assignment_is_ours(const sim_assignment *assignment)
{
    return assignment->state >= OURS && assignment->state <= LEAVING;
}

static bool is_heard(const sim_assignment *assignment, once_stream_change change)
{
    return assignment->news[change].turn != 0;
}

bool sim_assignment_is_left(const sim_assignment *assignment)
{
    return is_heard(assignment, ONCE_STREAM_REVOKED) || is_heard(assignment, ONCE_STREAM_LOST);
}

sim_assignment *sim_assignment_of(sim_worker *w, int stream)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        sim_assignment *assignment = &w->assignments[i];
        if ((assignment->state == NEW || sim_assignment_is_ours(assignment)) && assignment->stream == stream)
            return assignment;
    }
    return NULL;
}

/* --- coming and going --- */

sim_assignment *sim_assignments_give(sim_worker *w, int stream)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        if (w->assignments[i].state != FREE) continue;
        w->assignments[i] = (sim_assignment){.state = NEW, .stream = stream, .assignment = ++w->world->assignments};
        return &w->assignments[i];
    }
    return NULL;
}

void sim_assignment_ask(sim_worker *w, sim_assignment *assignment)
{
    if (assignment->state == NEW) sim_assignment_take(w, assignment); /* it was not told of it */
    if (assignment->state != OURS) return;
    assignment->state = ASKED;
    assignment->until_ms = w->world->now_ms + w->world->within_ms;
    sim_trace(w->world, w->index, "must leave stream", NULL, assignment->stream, -1, ONCE_OK);
}

static void put_back(sim_worker *w, const sim_assignment *assignment)
{
    sim_world *world = w->world;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || world->handouts[d->handout].assignment != assignment->assignment) continue;
        sim_delivery_back(world, d);
        sim_fired(world, SIM_redelivered);
    }
}

/* Who was told to leave it need not be told that it is lost. */
void sim_assignment_take(sim_worker *w, sim_assignment *assignment)
{
    sim_world *world = w->world;
    assert(assignment->state == NEW || sim_assignment_is_ours(assignment));
    put_back(w, assignment);
    const bool quietly = assignment->state == LEAVING && sim_chance(world, 50);
    if (assignment->state == LEAVING && !quietly) sim_fired(world, SIM_lost_late);
    assignment->state = assignment->state == NEW ? FREE : quietly ? GONE : TAKEN;
    sim_stream *s = &world->streams[assignment->stream];
    if (s->owner != w) return;
    s->owner = NULL;
    s->waits_since_ms = 0;
}

void sim_assignments_release(sim_worker *w, uint32_t number)
{
    sim_world *world = w->world;
    sim_assignment *assignment = &w->assignments[number];
    sim_trace(world, w->index, "releases stream", NULL, assignment->stream, number, ONCE_OK);
    if (assignment->state == FREE || assignment->state == NEW)
        sim_violation(world, "worker %d releases stream number %u, which it does not have", w->index, number);
    if (sim_assignment_is_ours(assignment)) sim_assignment_take(w, assignment);
    *assignment = (sim_assignment){.state = FREE};
}

/* --- news --- */

bool sim_assignments_have_news(const sim_worker *w)
{
    for (int i = 0; i < SIM_STREAMS; i++)
        if (w->assignments[i].state == NEW || w->assignments[i].state == ASKED || w->assignments[i].state == TAKEN)
            return true;
    return false;
}

static void tell(sim_worker *w, uint32_t number, once_stream_change change, once_fetch *fetch)
{
    static const char *const words[] = {"gets stream", "is told to leave stream", "is told that it lost stream"};
    sim_assignment *assignment = &w->assignments[number];
    const sim_world *world = w->world;
    assignment->news[change].told = true;
    sim_trace(w->world, w->index, words[change], NULL, assignment->stream, number, ONCE_OK);
    if (change == ONCE_STREAM_REVOKED) {
        assignment->within_ms = assignment->until_ms > world->now_ms ? assignment->until_ms - world->now_ms : 0;
        sim_fired(w->world, world->kind == BROKER_LOG ? SIM_rebalanced : SIM_cancelled);
    }
    fetch->news[fetch->n_news++] = (once_stream_news){.change = change,
                                                      .stream = number,
                                                      .within_ms = assignment->within_ms,
                                                      .expires_ms = world->expires ? world->visible_ms : 0};
}

void sim_assignments_tell(sim_worker *w, once_fetch *fetch)
{
    fetch->news = once_arena_new(&fetch->batch->arena, once_stream_news, SIM_STREAMS);
    if (!fetch->news) abort();
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        sim_assignment *assignment = &w->assignments[i];
        switch (assignment->state) {
        case NEW:
            assignment->state = OURS;
            tell(w, i, ONCE_STREAM_ASSIGNED, fetch);
            break;
        case ASKED:
            assignment->state = LEAVING;
            tell(w, i, ONCE_STREAM_REVOKED, fetch);
            break;
        case TAKEN:
            assignment->state = GONE;
            tell(w, i, ONCE_STREAM_LOST, fetch);
            break;
        default: break;
        }
    }
}

void sim_assignments_heard(sim_worker *w)
{
    sim_world *world = w->world;
    world->turns++;
    for (int i = 0; i < SIM_STREAMS; i++)
        for (int change = 0; change < 3; change++) {
            sim_assignment *assignment = &w->assignments[i];
            if (!assignment->news[change].told || assignment->news[change].turn) continue;
            assignment->news[change].turn = world->turns;
            assignment->news[change].ms = world->now_ms;
        }
}

/* --- judgement --- */

/* Whether the worker is late with leaving it: it knows, it was given its time, and nothing kept it from acting. */
static bool is_late(const sim_worker *w, const sim_assignment *assignment)
{
    const bool lost = is_heard(assignment, ONCE_STREAM_LOST);
    if (!sim_assignment_is_left(assignment) || w->state != UP) return false;
    const int64_t heard_ms = assignment->news[lost ? ONCE_STREAM_LOST : ONCE_STREAM_REVOKED].ms;
    return w->paused_until_ms < heard_ms &&
           w->world->now_ms >= heard_ms + (lost ? 0 : assignment->within_ms) + SLACK_MS;
}

sim_assignment *sim_assignments_ack(sim_worker *w, once_receipt *receipt)
{
    sim_world *world = w->world;
    sim_assignment *assignment = &w->assignments[receipt->stream];
    const sim_handout *h = sim_handout_find(w, receipt->stream, receipt->delivery);
    const unsigned long long delivery = (unsigned long long)receipt->delivery;
    if (!h || assignment->state == FREE || assignment->state == NEW || h->assignment != assignment->assignment)
        sim_violation(world,
                      "worker %d acks delivery %llu of stream number %u, which it was not given, or has released",
                      w->index, delivery, receipt->stream);
    if (assignment->tried || is_late(w, assignment))
        sim_violation(world, "worker %d acks delivery %llu of stream %d, which it has released, or had to", w->index,
                      delivery, assignment->stream);
    const uint64_t lost_turn = assignment->news[ONCE_STREAM_LOST].turn;
    if (lost_turn && lost_turn < w->asked_turn)
        sim_violation(world, "worker %d acks delivery %llu of stream %d, which it was told is lost", w->index, delivery,
                      assignment->stream);
    if (sim_assignment_is_ours(assignment)) return assignment;
    receipt->answer = ONCE_RECEIPT_GONE;
    sim_fired(world, SIM_gone);
    return NULL;
}

void sim_assignments_tick(sim_world *world)
{
    for (int i = 0; i < world->workers_n * SIM_STREAMS; i++) {
        sim_worker *w = &world->workers[i / SIM_STREAMS];
        sim_assignment *assignment = &w->assignments[i % SIM_STREAMS];
        if (assignment->state == FREE) continue;
        if (!assignment->tried && is_late(w, assignment))
            sim_violation(world, "worker %d did not release stream %d within %lld ms", w->index, assignment->stream,
                          (long long)assignment->within_ms);
        if ((assignment->state != ASKED && assignment->state != LEAVING) ||
            assignment->until_ms + SLACK_MS > world->now_ms)
            continue;
        sim_fired(world, SIM_overdue);
        sim_assignment_take(w, assignment);
    }
}

/* Of a number that was released since it was told to stop nothing is asked any more: should the broker have given it
 * another stream meanwhile, that one goes with the connection. */
void sim_assignments_ended(sim_worker *w)
{
    for (int i = 0; i < SIM_STREAMS; i++) {
        const sim_assignment *assignment = &w->assignments[i];
        if (assignment->state != FREE && is_heard(assignment, ONCE_STREAM_ASSIGNED) && !assignment->tried &&
            !w->left[i])
            sim_violation(w->world, "worker %d ended well, and has not released stream %d", w->index,
                          assignment->stream);
    }
}

int64_t sim_assignments_next_ms(const sim_world *world)
{
    int64_t next_ms = ONCE_NEVER;
    for (int i = 0; i < world->workers_n * SIM_STREAMS; i++) {
        const sim_assignment *assignment = &world->workers[i / SIM_STREAMS].assignments[i % SIM_STREAMS];
        const bool leaves = assignment->state == ASKED || assignment->state == LEAVING;
        if (leaves && assignment->until_ms + SLACK_MS < next_ms) next_ms = assignment->until_ms + SLACK_MS;
    }
    return next_ms;
}
