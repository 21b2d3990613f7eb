/* Which delivery was handed out to which worker. A delivery that runs out, or that its worker lost, is handed out again
 * under another number. The old number may no longer be acked, and no work begins because of it. */
#include <stdlib.h>

#include "core/machine_impl.h"
#include "sim.h"

void sim_handout_add(sim_worker *w, sim_delivery *d, const once_item *item, uint64_t assignment)
{
    sim_world *world = w->world;
    if (world->handouts_n == world->handouts_size) {
        world->handouts_size = world->handouts_size ? 2 * world->handouts_size : 64;
        world->handouts = realloc(world->handouts, world->handouts_size * sizeof *world->handouts);
        if (!world->handouts) abort();
    }
    d->handout = world->handouts_n;
    world->handouts[world->handouts_n++] = (sim_handout){.delivery = (size_t)(d - world->deliveries),
                                                         .holder = w->incarnation,
                                                         .stream = item->stream,
                                                         .assignment = assignment,
                                                         .number = item->delivery,
                                                         .out_ms = world->now_ms,
                                                         .extended_ms = world->now_ms};
}

sim_handout *sim_handout_find(const sim_worker *w, uint32_t stream, uint64_t number)
{
    const sim_world *world = w->world;
    for (size_t i = world->handouts_n; i > 0; i--) {
        sim_handout *h = &world->handouts[i - 1];
        if (h->holder == w->incarnation && h->stream == stream && h->number == number) return h;
    }
    return NULL;
}

sim_delivery *sim_handout_delivery(const sim_world *world, const sim_handout *h)
{
    sim_delivery *d = &world->deliveries[h->delivery];
    return d->state != PENDING && &world->handouts[d->handout] == h ? d : NULL;
}

static int message_of(const sim_world *world, const sim_handout *h) { return world->deliveries[h->delivery].message; }

/* --- acks --- */

void sim_handout_gone(sim_worker *w, sim_handout *h, once_receipt *receipt)
{
    sim_fired(w->world, SIM_gone);
    sim_trace(w->world, w->index, "  is told: gone, message", NULL, message_of(w->world, h), (int64_t)h->number,
              ONCE_OK);
    receipt->answer = ONCE_RECEIPT_GONE;
    h->told_gone = true;
}

/* What was over when its worker heard that it is gone may have been on the list of acks already, and the message is
 * finished or the store's, so such an ack does no harm. Everything else is never acked by this handing out, whatever
 * becomes of it. */
static void judge_ack(sim_worker *w, const sim_handout *h)
{
    if (h->heard_gone && h->gone_turn < w->asked_turn && !h->safe)
        sim_violation(w->world, "worker %d acks message %d by a delivery that it was told is gone", w->index,
                      message_of(w->world, h));
}

void sim_handouts_ack(sim_worker *w, once_receipt *receipt)
{
    sim_world *world = w->world;
    sim_handout *h = sim_handout_find(w, receipt->stream, receipt->delivery);
    if (!h) {
        sim_violation(world, "worker %d acks delivery %llu of stream %u, which it never got", w->index,
                      (unsigned long long)receipt->delivery, receipt->stream);
        return;
    }
    judge_ack(w, h);
    sim_delivery *d = sim_handout_delivery(world, h);
    if (d && d->state == IN_FLIGHT) {
        sim_delivery_acked(w, d);
        return;
    }
    if (d) return; /* the reply to that was lost */
    if (!sim_judge_safe(world, message_of(world, h)))
        sim_violation(world, "worker %d acks message %d, which is gone, and neither finished nor kept by the store",
                      w->index, message_of(world, h));
    sim_handout_gone(w, h, receipt);
}

/* --- deliveries that run out --- */

void sim_handouts_extend(sim_worker *w, once_receipt *receipt)
{
    sim_world *world = w->world;
    sim_handout *h = sim_handout_find(w, receipt->stream, receipt->delivery);
    if (!h) {
        sim_violation(world, "worker %d extends delivery %llu of stream %u, which it never got", w->index,
                      (unsigned long long)receipt->delivery, receipt->stream);
        return;
    }
    sim_delivery *d = sim_handout_delivery(world, h);
    if (!d) sim_handout_gone(w, h, receipt);
    if (!d || d->state == ACKED) return; /* acked: it was on its way */
    const int64_t last_ms = world->held_max_ms ? h->out_ms + world->held_max_ms : ONCE_NEVER;
    d->at_ms = world->now_ms + world->visible_ms;
    if (!h->last) h->extended_ms = world->now_ms;
    if (d->at_ms < last_ms) return;
    d->at_ms = last_ms;
    h->last = true;
    receipt->answer = ONCE_RECEIPT_LAST;
    sim_fired(world, SIM_last);
}

bool sim_handouts_last(const sim_worker *w, int key)
{
    const sim_world *world = w->world;
    for (size_t i = 0; i < world->handouts_n; i++) {
        const sim_handout *h = &world->handouts[i];
        if (h->last && h->holder == w->incarnation && world->messages[message_of(world, h)].key == key) return true;
    }
    return false;
}

static sim_worker *holder_of(sim_world *world, const sim_delivery *d)
{
    for (int i = 0; i < world->workers_n; i++)
        if (world->workers[i].incarnation == d->holder && world->workers[i].state != DOWN) return &world->workers[i];
    return NULL;
}

/* Its effect is under way, or its claim is the worker's: it is acked when it is settled, or not at all. */
static bool is_begun(const sim_world *world, const sim_delivery *d)
{
    const int key = world->messages[d->message].key;
    if (key >= 0 && world->keys[key].open && world->keys[key].holder == d->holder) return true;
    for (size_t i = 0; i < world->flights_n; i++) { /* without a claim */
        const sim_flight *f = &world->flights[i];
        if (f->unclaimed && f->message == d->message && f->incarnation == d->holder &&
            f->began_ms >= world->handouts[d->handout].out_ms)
            return true;
    }
    return false;
}

/* What can be extended is, also by a worker that was told to stop; but who has given up the store drops what it has.
 * What cannot goes to the store, or is begun; but who is told to stop begins nothing, and nobody can while the store is
 * away, or waits for it after it was. */
static void judge_run_out(sim_world *world, const sim_worker *w, const sim_delivery *d)
{
    const sim_handout *h = &world->handouts[d->handout];
    if (h->dropped) return;
    if (!h->last && w->state == UP && !w->failing && w->paused_until_ms < h->extended_ms &&
        w->source_failing_ms < h->extended_ms)
        sim_violation(world, "message %d ran out after %lld ms, and nothing kept worker %d from extending it",
                      d->message, (long long)world->visible_ms, w->index);
    if (h->last && sim_source_calm(w, h->out_ms - SIM_PAUSES_MS) && !is_begun(world, d))
        sim_violation(
            world,
            "message %d ran out: worker %d had extended it for the last time, and neither began it nor gave it "
            "to the store",
            d->message, w->index);
}

void sim_handouts_tick(sim_world *world)
{
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->state != IN_FLIGHT || d->at_ms > world->now_ms) continue;
        const sim_worker *w = holder_of(world, d);
        if (w) judge_run_out(world, w, d);
        sim_trace(world, -1, "ran out: message", NULL, d->message, -1, ONCE_OK);
        sim_fired(world, w ? SIM_ran_out : SIM_redelivered);
        sim_delivery_back(world, d);
    }
}

void sim_handouts_heard(sim_worker *w)
{
    sim_world *world = w->world;
    world->turns++;
    for (size_t i = 0; i < world->handouts_n; i++) {
        sim_handout *h = &world->handouts[i];
        if (!h->told_gone || h->heard_gone || h->holder != w->incarnation) continue;
        h->heard_gone = true;
        h->gone_turn = world->turns;
        h->safe = sim_judge_safe(world, message_of(world, h));
    }
}

void sim_handouts_come(sim_worker *w)
{
    for (size_t i = w->world->handouts_n; i > 0; i--) {
        sim_handout *h = &w->world->handouts[i - 1];
        if (h->holder != w->incarnation) continue;
        if (h->heard) return;
        h->heard = true;
        h->dropped = w->stopping || w->failing;
    }
}

/* The answer was lost. */
void sim_handouts_unheard(sim_worker *w)
{
    for (size_t i = 0; i < w->world->handouts_n; i++) {
        sim_handout *h = &w->world->handouts[i];
        if (h->holder == w->incarnation && !h->heard_gone) h->told_gone = false;
    }
}

/* --- transactions --- */

/* It is the broker's to deliver again, as far as the worker knows. */
static bool has_left(const sim_worker *w, const once_item *item)
{
    const sim_handout *h = sim_handout_find(w, item->stream, item->delivery);
    const sim_assignment *assignment = &w->assignments[item->stream];
    if (!h || h->heard_gone) return true;
    return h->assignment &&
           (assignment->state == FREE || assignment->assignment != h->assignment || sim_assignment_is_left(assignment));
}

/* Begun ones are left out: they may be of an earlier assignment of the same stream. */
static void note_tx(sim_worker *w, const once_action *begin)
{
    for (size_t i = 0; i < w->world->handouts_n; i++)
        if (w->world->handouts[i].holder == w->incarnation) w->world->handouts[i].in_tx = false;
    for (size_t i = 0; i + begin->n_extend < begin->n; i++) {
        const once_item *item = begin->items[i];
        if (!item->tag || item->returned || once__item_is_begun(item)) continue;
        sim_handout *h = sim_handout_find(w, item->stream, item->delivery);
        if (h) h->in_tx = true;
    }
}

/* What has left a worker must not begin there. Whatever the store may know of has begun: it goes on under its claim. */
void sim_handouts_begin(sim_worker *w, const once_action *action)
{
    if (w->world->kind == BROKER_PLAIN || action->kind != ONCE_ACT_BEGIN) return;
    note_tx(w, action);
    for (size_t i = 0; i + action->n_extend < action->n; i++) {
        const once_item *item = action->items[i];
        if (!item->tag || item->returned || once__item_is_begun(item) || !has_left(w, item)) continue;
        sim_violation(w->world, "worker %d begins message %d, which it no longer has", w->index,
                      sim_message_of(w->world, &item->message));
    }
}
