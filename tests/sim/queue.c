/* The broker as a queue, as SQS: all workers take from one stream, each delivery is acked for itself, and one that is
 * neither acked nor extended in time goes to another worker. With groups, nothing of a group is delivered while
 * something before it in the group is out, but what comes in the same answer. */
#include <stdlib.h>

#include "sim.h"

void sim_queue_tell(sim_worker *worker, once_fetch *fetch)
{
    worker->world->fetch_from = worker->world->handouts_n;
    if (worker->told) return;
    fetch->news = once_arena_new(&fetch->batch->arena, once_stream_news, 1);
    if (!fetch->news) abort();
    fetch->news[fetch->n_news++] =
        (once_stream_news){.change = ONCE_STREAM_ASSIGNED, .expires_ms = worker->world->visible_ms};
    worker->told = true;
}

static bool waits_for_group(const sim_world *world, const sim_delivery *d)
{
    for (const sim_delivery *before = world->deliveries; world->groups && before < d; before++) {
        if (before->stream != d->stream || before->state == ACKED) continue;
        if (before->state == PENDING || before->handout < world->fetch_from) return true;
    }
    return false;
}

static bool can_go(const sim_world *world, const sim_delivery *d)
{
    return sim_delivery_can_go(world, d) && !waits_for_group(world, d);
}

bool sim_queue_has(const sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (can_go(world, &world->deliveries[i])) return true;
    return false;
}

/* In any order, but within a group. */
sim_delivery *sim_queue_next(sim_world *world)
{
    sim_delivery *chosen = NULL;
    size_t ready = 0, waiting = 0;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (!sim_delivery_can_go(world, d)) continue;
        if (waits_for_group(world, d)) waiting++;
        else if (sim_random(world, ++ready) == 0 || world->fifo) chosen = chosen && world->fifo ? chosen : d;
    }
    if (waiting) sim_fired(world, SIM_group_waits);
    return chosen;
}
