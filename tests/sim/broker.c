/* The broker: at least once, in some order, until it is acked. What is common to all kinds, and the plain one: an ack
 * means everything that was delivered to that worker up to one delivery, as with a file. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

/* Those that must keep their order are in one stream. */
static int stream_of(const sim_world *world, int message)
{
    const int key = world->messages[message].key;
    const int by = key < 0 ? message : world->keys[key].lane >= 0 ? world->keys[key].lane : key;
    return by % world->streams_n;
}

void sim_broker_add(sim_world *world, int message, int64_t at_ms)
{
    if (world->deliveries_n == world->deliveries_size) {
        world->deliveries_size = world->deliveries_size ? 2 * world->deliveries_size : 64;
        world->deliveries = realloc(world->deliveries, world->deliveries_size * sizeof *world->deliveries);
        if (!world->deliveries) abort();
    }
    sim_delivery *d = &world->deliveries[world->deliveries_n++];
    *d = (sim_delivery){.state = PENDING, .message = message, .at_ms = at_ms, .stream = stream_of(world, message)};
    if (world->kind != BROKER_LOG) return;
    sim_stream *stream = &world->streams[d->stream];
    if (sim_chance(world, 10)) {
        stream->next_offset += 1 + sim_random(world, 3);
        sim_fired(world, SIM_hole);
    }
    d->offset = stream->next_offset++;
}

bool sim_delivery_can_go(const sim_world *world, const sim_delivery *d)
{
    return d->state == PENDING && d->at_ms <= world->now_ms;
}

static bool has_any(const sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (sim_delivery_can_go(world, &world->deliveries[i])) return true;
    return false;
}

bool sim_broker_has(const sim_worker *worker, const once_action *fetch)
{
    if (fetch->max == 0) return true; /* it does not wait */
    switch (worker->world->kind) {
    case BROKER_LOG: return sim_group_has(worker, fetch);
    case BROKER_CHANNEL: return sim_channel_has(worker, fetch);
    case BROKER_QUEUE: return !worker->told || (fetch->n_paused == 0 && sim_queue_has(worker->world));
    default: return fetch->n_paused == 0 && has_any(worker->world);
    }
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

/* Who took it has not acked it. */
void sim_delivery_back(sim_world *world, sim_delivery *d)
{
    assert(d->state == IN_FLIGHT);
    d->state = PENDING;
    d->at_ms = world->now_ms;
}

static void plain_tick(sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || d->at_ms > world->now_ms) continue;
        if (sim_fires(world, SIM_invisible)) {
            d->state = PENDING;
            sim_trace(world, -1, "visible again: message", NULL, d->message, -1, ONCE_OK);
        } else {
            d->at_ms = world->now_ms + world->visible_ms;
        }
    }
}

void sim_broker_tick(sim_world *world)
{
    switch (world->kind) {
    case BROKER_LOG: sim_group_tick(world); break;
    case BROKER_CHANNEL: sim_channel_tick(world); break;
    case BROKER_QUEUE: sim_handouts_tick(world); break;
    default: plain_tick(world);
    }
}

static void plain_died(sim_worker *worker)
{
    sim_world *world = worker->world;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || d->holder != worker->incarnation) continue;
        sim_delivery_back(world, d);
        sim_fired(world, SIM_redelivered);
    }
}

void sim_broker_died(sim_worker *worker)
{
    switch (worker->world->kind) {
    case BROKER_LOG: sim_group_left(worker); break;
    case BROKER_CHANNEL: sim_channel_left(worker); break;
    case BROKER_QUEUE: break; /* it does not know */
    default: plain_died(worker);
    }
}

bool sim_source_calm(const sim_worker *w, int64_t since_ms)
{
    return w->state == UP && !w->stopping && !w->failing && w->paused_until_ms < since_ms &&
           w->source_failing_ms < since_ms && w->trouble_ms < since_ms;
}

/* --- the source of one worker --- */

static size_t pick(sim_world *world)
{
    size_t ready = 0, chosen = 0, reordered;
    for (size_t i = world->deliveries_n; i > 0; i--) {
        if (!sim_delivery_can_go(world, &world->deliveries[i - 1])) continue;
        chosen = i - 1;
        ready++;
    }
    if (ready < 2 || world->fifo || !sim_fires(world, SIM_reordered)) return chosen;
    reordered = sim_random(world, ready);
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (sim_delivery_can_go(world, &world->deliveries[i]) && reordered-- == 0) chosen = i;
    return chosen;
}

static void number_plain(sim_worker *worker, size_t delivery, once_item *item)
{
    if (worker->delivered_n == worker->delivered_size) {
        worker->delivered_size = worker->delivered_size ? 2 * worker->delivered_size : 64;
        worker->delivered = realloc(worker->delivered, worker->delivered_size * sizeof *worker->delivered);
        if (!worker->delivered) abort();
    }
    worker->delivered[worker->delivered_n++] = (uint32_t)delivery;
    item->delivery = worker->delivered_n;
}

static void hand_over(sim_worker *worker, sim_delivery *d, uint32_t stream, once_batch *batch)
{
    sim_world *world = worker->world;
    const sim_message *m = &world->messages[d->message];
    once_item *item = &batch->items[batch->n++];
    d->state = IN_FLIGHT;
    d->holder = worker->incarnation;
    d->at_ms = world->now_ms + world->visible_ms;
    world->delivered++;
    if (m->key >= 0 && world->keys[m->key].first == 0) world->keys[m->key].first = world->delivered;

    char point[32];
    int len = snprintf(point, sizeof point, "%d", d->message);
    *item = (once_item){
        .batch = batch, .stream = stream, .message = {.at.place = ONCE_BYTES("sim"), .sent_ms = ONCE_NO_TIME}};
    switch (world->kind) {
    case BROKER_LOG:
        item->delivery = d->offset;
        sim_cursor_note(d, item);
        sim_handout_add(worker, d, item, worker->assignments[stream].assignment);
        sim_group_read(worker, stream, d);
        break;
    case BROKER_QUEUE:
        item->delivery = world->handouts_n + 1;
        sim_handout_add(worker, d, item, 0);
        break;
    case BROKER_CHANNEL:
        item->delivery = ++worker->tags;
        sim_handout_add(worker, d, item, worker->assignments[stream].assignment);
        len = snprintf(point, sizeof point, "%d/%zu", d->message, world->handouts_n);
        break;
    default: number_plain(worker, (size_t)(d - world->deliveries), item);
    }
    if (!once_arena_copy(&batch->arena, m->body, &item->message.body) ||
        !once_arena_copy(&batch->arena, (once_bytes){point, (size_t)len}, &item->message.at.point))
        abort();
    sim_trace(world, worker->index, "gets message", NULL, d->message, m->key, ONCE_OK);
    if (sim_fires(world, SIM_duplicate_now)) sim_broker_add(world, d->message, world->now_ms); /* moves d */
}

static sim_delivery *next(sim_worker *worker, const once_fetch *fetch, uint32_t *stream)
{
    sim_world *world = worker->world;
    *stream = 0;
    switch (world->kind) {
    case BROKER_LOG: return sim_group_next(worker, fetch->paused, fetch->n_paused, stream);
    case BROKER_CHANNEL: return sim_channel_next(worker, fetch->paused, fetch->n_paused, stream);
    case BROKER_QUEUE: return fetch->n_paused == 0 ? sim_queue_next(world) : NULL;
    default: return fetch->n_paused == 0 && has_any(world) ? &world->deliveries[pick(world)] : NULL;
    }
}

static int fails(sim_worker *worker, const char *text, once_error *err)
{
    worker->source_failing_ms = worker->world->now_ms;
    return once_fail(err, ONCE_E_UNAVAILABLE, "simulated%s", text);
}

static int sim_fetch(once_source *source, once_fetch *fetch, once_error *err)
{
    once_batch *batch = fetch->batch;
    sim_worker *worker = ((sim_source *)source)->worker;
    sim_world *world = worker->world;
    sim_delivery *d;
    uint32_t stream;
    batch->n = 0;
    if (sim_fires(world, SIM_fetch_fails)) return fails(worker, "", err);
    const size_t want = fetch->max ? 1 + sim_random(world, fetch->max) : 0;
    batch->items = once_arena_new(&batch->arena, once_item, want ? want : 1);
    if (!batch->items) abort();
    if (world->kind == BROKER_LOG) sim_group_tell(worker, fetch);
    if (world->kind == BROKER_QUEUE) sim_queue_tell(worker, fetch);
    if (world->kind == BROKER_CHANNEL) sim_channel_tell(worker, fetch);
    while (batch->n < want && (d = next(worker, fetch, &stream))) hand_over(worker, d, stream, batch);
    fetch->at_end = world->finite && at_end(world);
    return ONCE_OK;
}

void sim_delivery_acked(sim_worker *worker, sim_delivery *d)
{
    sim_world *world = worker->world;
    sim_judge_ack(world, worker, d->message);
    d->state = ACKED; /* even when somebody else has it by now */
    if (sim_fires(world, SIM_duplicate_late))
        sim_broker_add(world, d->message, world->now_ms + (int64_t)sim_random(world, 20000)); /* moves d */
}

static void plain_ack(sim_worker *worker, const once_receipt *receipt)
{
    assert(receipt->stream == 0 && receipt->delivery <= worker->delivered_n);
    for (; worker->acked < receipt->delivery; worker->acked++)
        sim_delivery_acked(worker, &worker->world->deliveries[worker->delivered[worker->acked]]);
}

static void ack_one(sim_worker *worker, once_receipt *receipt)
{
    assert(receipt->answer == ONCE_RECEIPT_OPEN && receipt->stream < SIM_STREAMS);
    switch (worker->world->kind) {
    case BROKER_LOG: sim_group_ack(worker, receipt); break;
    case BROKER_QUEUE: sim_handouts_ack(worker, receipt); break;
    case BROKER_CHANNEL:
        if (sim_assignments_ack(worker, receipt)) sim_handouts_ack(worker, receipt);
        break;
    default: plain_ack(worker, receipt);
    }
}

/* Each of the list, or with `part` only some: those are told apart from the others. */
static void each(sim_worker *worker, once_receipt *list, size_t n, bool part, void (*one)(sim_worker *, once_receipt *))
{
    for (size_t i = 0; i < n && !worker->world->result->failed; i++) {
        if (part && sim_chance(worker->world, 50)) continue;
        one(worker, &list[i]);
        if (part && list[i].answer == ONCE_RECEIPT_OPEN) list[i].answer = ONCE_RECEIPT_DONE;
    }
}

static int reply_lost(sim_worker *worker, once_receipt *list, size_t n, once_error *err)
{
    for (size_t i = 0; i < n; i++) list[i].answer = ONCE_RECEIPT_OPEN;
    sim_handouts_unheard(worker);
    return fails(worker, ": the reply was lost", err);
}

static int sim_ack(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    sim_worker *worker = ((sim_source *)source)->worker;
    sim_world *world = worker->world;
    assert(n > 0);
    if (sim_fires(world, SIM_ack_fails)) return fails(worker, "", err);
    const bool part = n > 1 && sim_fires(world, SIM_acked_in_part);
    each(worker, list, n, part, ack_one);
    if (part) return fails(worker, ": some were acked", err);
    return sim_fires(world, SIM_ack_reply_lost) ? reply_lost(worker, list, n, err) : ONCE_OK;
}

static void extend_one(sim_worker *worker, once_receipt *receipt)
{
    const sim_assignment *assignment = &worker->assignments[receipt->stream];
    sim_handout *h = sim_handout_find(worker, receipt->stream, receipt->delivery);
    const bool ours =
        !h || !h->assignment || (sim_assignment_is_ours(assignment) && assignment->assignment == h->assignment);
    if (ours) sim_handouts_extend(worker, receipt);
    else sim_handout_gone(worker, h, receipt);
}

static int sim_extend(once_source *source, once_receipt *list, size_t n, once_error *err)
{
    sim_worker *worker = ((sim_source *)source)->worker;
    assert(n > 0 && worker->world->expires);
    if (!sim_fires(worker->world, SIM_extend_fails)) {
        each(worker, list, n, false, extend_one);
        return ONCE_OK;
    }
    if (sim_chance(worker->world, 30)) return fails(worker, "", err);
    const bool part = sim_chance(worker->world, 50);
    each(worker, list, n, part, extend_one);
    return part ? fails(worker, ": some were extended", err) : reply_lost(worker, list, n, err);
}

static int sim_release(once_source *source, uint32_t stream, once_error *err)
{
    sim_worker *worker = ((sim_source *)source)->worker;
    assert(stream < SIM_STREAMS && sim_source_bits(worker->world) & ONCE_SOURCE_ASSIGNS);
    if (worker->world->kind == BROKER_LOG) sim_group_release(worker, stream);
    worker->assignments[stream].tried = true;
    worker->left[stream] |= worker->stopping;
    if (sim_fires(worker->world, SIM_release_fails)) return fails(worker, "", err);
    sim_assignments_release(worker, stream);
    if (worker->world->kind == BROKER_LOG) sim_group_released(worker);
    return ONCE_OK;
}

static int64_t sim_beat_ms(const once_source *source) { return ((const sim_source *)source)->worker->world->beat_ms; }

void sim_source_asked(sim_worker *worker) { worker->asked_turn = ++worker->world->turns; }

void sim_source_stepped(sim_worker *worker)
{
    sim_assignments_heard(worker);
    sim_handouts_come(worker);
}

void sim_source_answered(sim_worker *worker) { sim_handouts_heard(worker); }

unsigned sim_source_bits(const sim_world *world)
{
    static const unsigned bits[] = {
        [BROKER_PLAIN] = ONCE_SOURCE_STABLE,
        [BROKER_LOG] = ONCE_SOURCE_STABLE | ONCE_SOURCE_ASSIGNS,
        [BROKER_QUEUE] = ONCE_SOURCE_STABLE | ONCE_SOURCE_SINGLE_ACKS,
        [BROKER_CHANNEL] = ONCE_SOURCE_SINGLE_ACKS | ONCE_SOURCE_ASSIGNS,
    };
    return ONCE_SOURCE_REDELIVERS | (world->finite ? ONCE_SOURCE_FINITE : 0u) |
           (world->expires ? ONCE_SOURCE_EXPIRES : 0u) | (world->cursor ? ONCE_SOURCE_CURSOR : 0u) | bits[world->kind];
}

static const once_source_ops source_ops = {
    .fetch = sim_fetch, .ack = sim_ack, .extend = sim_extend, .release = sim_release, .beat_ms = sim_beat_ms};

static const once_source_ops source_ops_with_cursor = {.fetch = sim_fetch,
                                                       .ack = sim_ack,
                                                       .extend = sim_extend,
                                                       .release = sim_release,
                                                       .beat_ms = sim_beat_ms,
                                                       .seek = sim_cursor_seek,
                                                       .keep = sim_cursor_keep};

void sim_source_init(sim_worker *worker)
{
    const once_source_ops *ops = worker->world->cursor ? &source_ops_with_cursor : &source_ops;
    worker->source =
        (sim_source){.source = {.ops = ops, .spec = worker->world->spec, .env = &worker->env.env}, .worker = worker};
}
