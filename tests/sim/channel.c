/* The broker as queues that all workers consume, as RabbitMQ: each delivery is acked for itself, by a tag that counts
 * on within a connection. When a connection breaks, all that is not acked comes again, to anybody, and the next one
 * begins with tag 1; a consumer may be cancelled, too. A message has other coordinates at each delivery. Of a consumer
 * only so much is out. In some worlds deliveries run out besides. */
#include <stdlib.h>

#include "sim.h"

/* --- fetching --- */

static uint64_t out_to(const sim_world *world, const sim_assignment *assignment)
{
    uint64_t n = 0;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        const sim_delivery *d = &world->deliveries[i];
        n += d->state == IN_FLIGHT && world->handouts[d->handout].assignment == assignment->assignment;
    }
    return n;
}

static bool is_paused(const uint32_t *paused, size_t n, uint32_t number)
{
    for (size_t i = 0; i < n; i++)
        if (paused[i] == number) return true;
    return false;
}

sim_delivery *sim_channel_next(const sim_worker *w, const uint32_t *paused, size_t n_paused, uint32_t *number)
{
    const sim_world *world = w->world;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (!sim_delivery_can_go(world, d)) continue;
        const sim_assignment *assignment = sim_assignment_of((sim_worker *)w, d->stream);
        *number = assignment ? (uint32_t)(assignment - w->assignments) : 0;
        if (assignment && assignment->state == OURS && !is_paused(paused, n_paused, *number) &&
            out_to(world, assignment) < world->prefetch)
            return d;
    }
    return NULL;
}

static bool may_consume(const sim_worker *w)
{
    bool free = false, missing = false;
    for (int i = 0; i < SIM_STREAMS; i++) free |= w->assignments[i].state == FREE;
    for (int i = 0; i < w->world->streams_n; i++) missing |= !sim_assignment_of((sim_worker *)w, i);
    return free && missing && !w->stopping;
}

bool sim_channel_has(const sim_worker *w, const once_action *fetch)
{
    uint32_t number;
    return may_consume(w) || sim_assignments_have_news(w) ||
           sim_channel_next(w, fetch->paused, fetch->n_paused, &number);
}

void sim_channel_tell(sim_worker *w, once_fetch *fetch)
{
    for (int i = 0; i < w->world->streams_n && may_consume(w); i++)
        if (!sim_assignment_of(w, i)) (void)sim_assignments_give(w, i);
    sim_assignments_tell(w, fetch);
}

/* --- what goes wrong --- */

static void disconnect(sim_worker *w)
{
    sim_trace(w->world, w->index, "loses its connection", NULL, -1, -1, ONCE_OK);
    w->tags = 0;
    for (int i = 0; i < SIM_STREAMS; i++)
        if (w->assignments[i].state == NEW || sim_assignment_is_ours(&w->assignments[i]))
            sim_assignment_take(w, &w->assignments[i]);
}

/* More likely while there is a transaction. */
static void misfortune(sim_world *world, sim_worker *w)
{
    sim_assignment *assignment = &w->assignments[sim_random(world, SIM_STREAMS)];
    if (w->state == DOWN || assignment->state != OURS || world->phase != PHASE_FAULTS || world->faults_left == 0)
        return;
    const uint32_t times = w->in_tx ? 10 : 1;
    if (sim_random(world, 10000) < times * world->rate[SIM_cancelled]) {
        world->faults_left--;
        sim_assignment_ask(w, assignment);
    } else if (sim_random(world, 10000) < times * world->rate[SIM_reconnected]) {
        world->faults_left--;
        sim_fired(world, SIM_reconnected);
        disconnect(w);
    }
}

void sim_channel_tick(sim_world *world)
{
    sim_assignments_tick(world);
    if (world->expires) sim_handouts_tick(world);
    misfortune(world, &world->workers[sim_random(world, (uint64_t)world->workers_n)]);
}

void sim_channel_left(sim_worker *w) { disconnect(w); }
