/* The broker: at least once, in some order, until it is acked. An ack means everything that was delivered to that
 * worker up to one delivery, as with a file or a Kafka partition. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

void sim_broker_add(sim_world *world, int message, int64_t at_ms)
{
    if (world->deliveries_n == world->deliveries_size) {
        world->deliveries_size = world->deliveries_size ? 2 * world->deliveries_size : 64;
        world->deliveries = realloc(world->deliveries, world->deliveries_size * sizeof *world->deliveries);
        if (!world->deliveries) abort();
    }
    world->deliveries[world->deliveries_n++] = (sim_delivery){.state = PENDING, .message = message, .at_ms = at_ms};
}

static bool can_go(const sim_world *world, const sim_delivery *d)
{
    return d->state == PENDING && d->at_ms <= world->now_ms;
}

bool sim_broker_has(sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (can_go(world, &world->deliveries[i])) return true;
    return false;
}

bool sim_broker_empty(const sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (world->deliveries[i].state != ACKED) return false;
    return true;
}

static bool at_end(const sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (world->deliveries[i].state == PENDING) return false;
    return true;
}

int64_t sim_broker_next_ms(const sim_world *world)
{
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (world->deliveries[i].state != ACKED && world->deliveries[i].at_ms < next_ms)
            next_ms = world->deliveries[i].at_ms;
    return next_ms;
}

void sim_broker_tick(sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || d->at_ms > world->now_ms) continue;
        if (sim_fires(world, SIM_invisible)) {
            sim_trace(world, -1, "visible again: message", NULL, d->message, -1, ONCE_OK);
            d->state = PENDING;
        } else {
            d->at_ms = ONCE_NEVER; /* the holder keeps it alive */
        }
    }
}

void sim_broker_died(sim_worker *worker)
{
    sim_world *world = worker->world;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || d->holder != worker->incarnation) continue;
        d->state = PENDING;
        d->at_ms = world->now_ms;
        sim_fired(world, SIM_redelivered);
    }
}

/* --- the source of one worker --- */

static size_t pick(sim_world *world)
{
    size_t ready = 0, chosen = 0, reordered;
    for (size_t i = world->deliveries_n; i > 0; i--) {
        if (!can_go(world, &world->deliveries[i - 1])) continue;
        chosen = i - 1;
        ready++;
    }
    if (ready < 2 || world->fifo || !sim_fires(world, SIM_reordered)) return chosen;
    reordered = sim_random(world, ready);
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (can_go(world, &world->deliveries[i]) && reordered-- == 0) chosen = i;
    return chosen;
}

static void hand_over(sim_worker *worker, size_t delivery, once_batch *batch, once_item *item)
{
    sim_world *world = worker->world;
    sim_delivery *d = &world->deliveries[delivery];
    const sim_message *m = &world->messages[d->message];
    if (worker->delivered_n == worker->delivered_size) {
        worker->delivered_size = worker->delivered_size ? 2 * worker->delivered_size : 64;
        worker->delivered = realloc(worker->delivered, worker->delivered_size * sizeof *worker->delivered);
        if (!worker->delivered) abort();
    }
    worker->delivered[worker->delivered_n++] = (uint32_t)delivery;
    d->state = IN_FLIGHT;
    d->holder = worker->incarnation;
    d->at_ms = world->now_ms + world->visible_ms;
    world->delivered++;
    if (m->key >= 0 && world->keys[m->key].first == 0) world->keys[m->key].first = world->delivered;

    char point[16];
    const int len = snprintf(point, sizeof point, "%d", d->message);
    *item = (once_item){.batch = batch,
                        .delivery = worker->delivered_n,
                        .message = {.at.place = ONCE_BYTES("sim"), .sent_ms = ONCE_NO_TIME}};
    if (!once_arena_copy(&batch->arena, m->body, &item->message.body) ||
        !once_arena_copy(&batch->arena, (once_bytes){point, (size_t)len}, &item->message.at.point))
        abort();
    sim_trace(world, worker->index, "gets message", NULL, d->message, m->key, ONCE_OK);
    if (sim_fires(world, SIM_duplicate_now)) sim_broker_add(world, d->message, world->now_ms); /* moves d */
}

static int sim_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    once_batch *batch = fetch->batch;
    sim_worker *worker = ((sim_source *)source)->worker;
    sim_world *world = worker->world;
    batch->n = 0;
    if (sim_fires(world, SIM_fetch_fails)) return once_fail(err, ONCE_E_UNAVAILABLE, "simulated");
    const size_t want = 1 + sim_random(world, fetch->max);
    batch->items = once_arena_new(&batch->arena, once_item, want);
    if (!batch->items) abort();
    while (batch->n < want && sim_broker_has(world)) {
        hand_over(worker, pick(world), batch, &batch->items[batch->n]);
        batch->n++;
    }
    fetch->at_end = world->finite && at_end(world);
    return ONCE_OK;
}

static int sim_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    sim_worker *worker = ((sim_source *)source)->worker;
    sim_world *world = worker->world;
    if (sim_fires(world, SIM_ack_fails)) return once_fail(err, ONCE_E_UNAVAILABLE, "simulated");
    assert(n == 1);
    const uint64_t upto = list[0].delivery;
    assert(upto <= worker->delivered_n);
    for (; worker->acked < upto; worker->acked++) {
        sim_delivery *d = &world->deliveries[worker->delivered[worker->acked]];
        sim_books_ack(world, worker, d->message);
        d->state = ACKED; /* even when somebody else has it by now */
        if (sim_fires(world, SIM_duplicate_late))
            sim_broker_add(world, d->message, world->now_ms + (int64_t)sim_random(world, 20000));
    }
    if (sim_fires(world, SIM_ack_reply_lost))
        return once_fail(err, ONCE_E_UNAVAILABLE, "simulated: the reply was lost");
    return ONCE_OK;
}

static const once_source_ops source_ops = {.fetch = sim_fetch, .ack = sim_ack};

void sim_source_init(sim_worker *worker)
{
    worker->source = (sim_source){.source = {.ops = &source_ops, .spec = worker->world->spec, .env = &worker->env.env},
                                  .worker = worker};
}
