/* The broker as a log with streams, which are shared out among the workers, as the partitions of Kafka. A worker that
 * comes, goes or is unlucky makes streams move: they are revoked, and given to another when they were released or the
 * time for that is over; or they are lost at once. A stream may come later than the others. Within a stream messages
 * come in order, and between their offsets are holes. Whoever is given a stream goes on behind the last ack of it, or
 * begins with its first message. */
#include <assert.h>
#include <stdlib.h>

#include "core/plant.h"
#include "sim.h"

#define SLACK_MS 250     /* actions take their time */
#define STARVED_MS 45000 /* a stream that has messages is not fetched for so long */
#define WAITS_MS 1500    /* a message that could go on is not settled for so long */

/* --- who has which --- */

static bool leaves(const sim_world *world, int stream)
{
    const sim_assignment *assignment = sim_assignment_of(world->streams[stream].owner, stream);
    return assignment->state == ASKED || assignment->state == LEAVING;
}

static int has(const sim_world *world, const sim_worker *w)
{
    int n = 0;
    for (int i = 0; i < world->streams_n; i++) n += world->streams[i].owner == w && !leaves(world, i);
    return n;
}

/* The offset behind the messages that are there now. */
static uint64_t end_of(const sim_world *world, int stream)
{
    for (size_t i = 0; i < world->deliveries_n; i++) {
        const sim_delivery *d = &world->deliveries[i];
        if (d->stream == stream && d->at_ms > world->now_ms) return d->offset;
    }
    return world->streams[stream].next_offset;
}

/* Where a worker that is given the stream goes on. It may not know better: what it has read before and not acked comes
 * again. With a cursor the store says so instead (cursor.c). */
static uint64_t place_for(const sim_world *world, const sim_worker *w, int stream)
{
    const sim_stream *s = &world->streams[stream];
    if (ONCE_PLANTED(stale_place) && w->read[stream]) return w->read[stream];
    if (ONCE_PLANTED(begins_at_end) && !s->has_place) return end_of(world, stream);
    return s->has_place ? s->place : 0;
}

static void give(sim_world *world, sim_worker *w, int stream)
{
    sim_stream *s = &world->streams[stream];
    sim_assignment *assignment = sim_assignments_give(w, stream);
    if (!assignment) return; /* when it has released one */
    assignment->next = place_for(world, w, stream);
    s->owner = w;
    if (w->read[stream]) sim_fired(world, SIM_came_back);
    if (s->appears_ms && !s->has_place && end_of(world, stream) > 1000 * (uint64_t)stream)
        sim_fired(world, SIM_late_stream);
}

static void spread(sim_world *world)
{
    int members = 0;
    for (int i = 0; i < world->workers_n; i++) members += world->workers[i].member;
    if (members == 0) return;
    const int most = (world->streams_n + members - 1) / members;
    for (int i = 0; i < world->streams_n; i++) {
        sim_stream *s = &world->streams[i];
        if (s->owner && !leaves(world, i) && has(world, s->owner) > most)
            sim_assignment_ask(s->owner, sim_assignment_of(s->owner, i));
        if (s->owner || s->appears_ms > world->now_ms) continue;
        sim_worker *to = NULL;
        for (int k = 0; k < world->workers_n; k++) {
            sim_worker *w = &world->workers[k];
            if (w->member && (!to || has(world, w) < has(world, to))) to = w;
        }
        give(world, to, i);
    }
}

/* --- fetching --- */

static bool is_paused(const uint32_t *paused, size_t n, uint32_t number)
{
    for (size_t i = 0; i < n; i++)
        if (paused[i] == number) return true;
    return false;
}

static sim_delivery *head_of(const sim_world *world, const sim_assignment *assignment)
{
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->stream == assignment->stream && d->state == PENDING && d->offset >= assignment->next)
            return d->at_ms <= world->now_ms ? d : NULL;
    }
    return NULL;
}

sim_delivery *sim_group_next(const sim_worker *w, const uint32_t *paused, size_t n_paused, uint32_t *number)
{
    const uint32_t from = (uint32_t)w->world->delivered;
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        *number = (from + i) % SIM_STREAMS;
        const sim_assignment *assignment = &w->assignments[*number];
        if (assignment->state != OURS || is_paused(paused, n_paused, *number)) continue;
        if (w->world->cursor && !assignment->sought) continue;
        sim_delivery *d = head_of(w->world, assignment);
        if (d) return d;
    }
    return NULL;
}

bool sim_group_has(const sim_worker *w, const once_action *fetch)
{
    uint32_t number;
    return !w->member || sim_assignments_have_news(w) || sim_group_next(w, fetch->paused, fetch->n_paused, &number);
}

/* Nobody reads past a message that is not over, or is not at this worker under this assignment. */
void sim_group_read(sim_worker *w, uint32_t number, const sim_delivery *d)
{
    sim_world *world = w->world;
    sim_assignment *assignment = &w->assignments[number];
    for (size_t i = 0; i < world->deliveries_n; i++) {
        const sim_delivery *before = &world->deliveries[i];
        if (before->stream == d->stream && before->offset < d->offset && before->state == PENDING)
            sim_violation(world, "worker %d reads message %d of stream %d, and has passed message %d", w->index,
                          d->message, d->stream, before->message);
    }
    assignment->next = w->read[d->stream] = d->offset + 1;
}

void sim_group_tell(sim_worker *w, once_fetch *fetch)
{
    w->member = true;
    w->fetched_ms = w->world->now_ms;
    spread(w->world);
    sim_assignments_tell(w, fetch);
}

/* --- acks --- */

void sim_group_ack(sim_worker *w, once_receipt *receipt)
{
    sim_world *world = w->world;
    sim_assignment *assignment = sim_assignments_ack(w, receipt);
    if (!assignment) return;
    if (receipt->delivery + 1 < assignment->acked)
        sim_violation(world, "worker %d acks offset %llu of stream %d, and has acked more before", w->index,
                      (unsigned long long)receipt->delivery, assignment->stream);
    sim_stream *s = &world->streams[assignment->stream];
    s->has_place = true;
    s->place = assignment->acked = receipt->delivery + 1;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        sim_delivery *d = &world->deliveries[i];
        if (d->stream != assignment->stream || d->offset > receipt->delivery || d->state == ACKED) continue;
        if (d->state != IN_FLIGHT || world->handouts[d->handout].assignment != assignment->assignment)
            sim_violation(world, "worker %d acks message %d of stream %d, which it was not given", w->index, d->message,
                          assignment->stream);
        sim_delivery_acked(w, d);
    }
}

/* A stream that was revoked is released before its deadline only when no transaction has messages of it: it would be
 * committed after another worker has begun with them. At a stop, and when a release is repeated, there is no choice. */
void sim_group_release(sim_worker *w, uint32_t number)
{
    sim_world *world = w->world;
    const sim_assignment *assignment = &w->assignments[number];
    const int64_t heard_ms = assignment->news[ONCE_STREAM_REVOKED].ms;
    if (!w->in_tx || w->stopping || w->failing || assignment->tried || !assignment->news[ONCE_STREAM_REVOKED].turn ||
        assignment->news[ONCE_STREAM_LOST].turn || world->now_ms >= heard_ms + assignment->within_ms)
        return;
    for (size_t i = 0; i < world->handouts_n; i++) {
        const sim_handout *h = &world->handouts[i];
        if (h->in_tx && h->holder == w->incarnation && h->assignment == assignment->assignment)
            sim_violation(world, "worker %d releases stream %d, and message %d of it is in its transaction", w->index,
                          assignment->stream, world->deliveries[h->delivery].message);
    }
}

/* Who is told to stop leaves one after the other, and gets none. */
void sim_group_released(sim_worker *w)
{
    if (w->stopping) w->member = has(w->world, w) > 0;
    else spread(w->world);
}

/* --- judgement --- */

static bool is_out(const sim_world *world, int stream)
{
    for (size_t i = 0; i < world->deliveries_n; i++)
        if (world->deliveries[i].stream == stream && world->deliveries[i].state == IN_FLIGHT) return true;
    return false;
}

/* Messages that the store has, also those that somebody works on. */
static uint64_t kept(const sim_world *world)
{
    uint64_t n = 0;
    for (int i = 0; i < world->keys_n; i++) n += world->keys[i].owned && !world->keys[i].final;
    return n;
}

/* As much is in the store as may be, or nearly: then nothing is fetched until a part of it is gone. */
static bool is_full(const sim_world *world)
{
    const uint64_t most = world->spec->waiting_max.messages;
    return most && kept(world) > most - most / 10 - (most < 10);
}

/* Messages that this worker was given, and cannot begin because effects are under way in all slots of their handler. */
static uint64_t without_slot(const sim_worker *w)
{
    const sim_world *world = w->world;
    uint64_t n = 0;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        const sim_delivery *d = &world->deliveries[i];
        const int key = world->messages[d->message].key;
        if (d->state != IN_FLIGHT || d->holder != w->incarnation || key < 0 || world->keys[key].open) continue;
        const sim_handler *h = &world->handlers[world->keys[key].handler];
        n += h->external && sim_flights_air(w, world->keys[key].handler) >= h->slots;
    }
    return n;
}

/* If their handler fails, they come to wait in the store. So they count against the bound until a slot is free. */
static bool is_full_with_slots(const sim_worker *w)
{
    const uint64_t most = w->world->spec->waiting_max.messages;
    return most && kept(w->world) + without_slot(w) >= most;
}

/* Something is there for a worker that has nothing of this stream, and it does not take it. */
static void judge_starving(sim_world *world, int stream)
{
    sim_stream *s = &world->streams[stream];
    const sim_assignment *assignment = s->owner ? sim_assignment_of(s->owner, stream) : NULL;
    if (!assignment || assignment->state != OURS || !head_of(world, assignment) || is_out(world, stream) ||
        is_full(world) || is_full_with_slots(s->owner) || (world->cursor && !assignment->sought)) {
        s->waits_since_ms = 0;
        return;
    }
    if (s->waits_since_ms == 0 || !sim_source_calm(s->owner, s->waits_since_ms)) s->waits_since_ms = world->now_ms;
    if (world->now_ms - s->waits_since_ms > STARVED_MS)
        sim_violation(world, "stream %d has messages for worker %d, which does not fetch them for %lld ms", stream,
                      s->owner->index, (long long)(world->now_ms - s->waits_since_ms));
}

/* Whether a message needs no slot, and waits for nobody: one of a lane may be behind an effect that is under way. */
static bool can_go_on(const sim_world *world, const sim_message *m)
{
    if (m->key < 0) return true;
    const sim_key *k = &world->keys[m->key];
    return k->lane < 0 && !world->handlers[k->handler].external && !k->rolls_back;
}

/* The first one of a stream goes on, whatever the others do. */
static void judge_waiting(sim_world *world, int stream)
{
    sim_stream *s = &world->streams[stream];
    const sim_worker *w = s->owner;
    if (!w || leaves(world, stream)) return;
    for (size_t i = 0; i < world->deliveries_n; i++) {
        const sim_delivery *d = &world->deliveries[i];
        if (d->stream != stream || d->state != IN_FLIGHT) continue;
        if (s->first != d->handout + 1) s->first_ms = world->now_ms;
        s->first = d->handout + 1;
        if (can_go_on(world, &world->messages[d->message]) && world->now_ms - s->first_ms > WAITS_MS &&
            sim_source_calm(w, s->first_ms - SIM_PAUSES_MS))
            sim_violation(world, "message %d is the first of stream %d, and waits at worker %d for %lld ms", d->message,
                          stream, w->index, (long long)(world->now_ms - s->first_ms));
        return;
    }
}

/* A stream stands still, and another one of this worker does not. */
static void note_stuck(sim_world *world)
{
    for (int i = 0; i < world->workers_n; i++) {
        const once_action *fetch = world->workers[i].source_action;
        if (world->workers[i].state == UP && fetch && fetch->n_paused && fetch->max) sim_fired(world, SIM_stuck);
    }
}

static void judge_beat(sim_world *world, sim_worker *w)
{
    if (w->state == UP && w->source_action && !w->source_done) w->fetched_ms = world->now_ms; /* it blocks */
    const int64_t late_ms = world->now_ms - w->fetched_ms - world->beat_ms;
    if (!w->member || late_ms <= SLACK_MS) return;
    if (w->state == UP && w->paused_until_ms < w->fetched_ms && w->source_failing_ms < w->fetched_ms)
        sim_violation(world, "worker %d did not fetch for %lld ms, and had to every %lld", w->index,
                      (long long)(world->now_ms - w->fetched_ms), (long long)world->beat_ms);
    sim_trace(world, w->index, "did not fetch for too long", NULL, -1, -1, ONCE_OK);
    sim_fired(world, SIM_beat_missed);
    w->member = false;
    for (int i = 0; i < world->streams_n; i++)
        if (world->streams[i].owner == w) sim_assignment_take(w, sim_assignment_of(w, i));
}

/* More likely where it matters: while there is a transaction with messages of the stream, or one that failed waits for
 * its next try. */
static void misfortune(sim_world *world)
{
    const int stream = (int)sim_random(world, (uint64_t)world->streams_n);
    sim_worker *w = world->streams[stream].owner;
    if (!w || leaves(world, stream) || world->phase != PHASE_FAULTS || world->faults_left == 0) return;
    const bool tries = w->trouble_ms && world->now_ms - w->trouble_ms < 100;
    const uint32_t times = tries ? 50 : w->in_tx ? 10 : 1;
    if (sim_random(world, 10000) < times * world->rate[SIM_rebalanced]) {
        world->faults_left--;
        sim_assignment_ask(w, sim_assignment_of(w, stream));
    } else if (sim_random(world, 10000) < times * world->rate[SIM_stream_lost]) {
        world->faults_left--;
        sim_fired(world, SIM_stream_lost);
        sim_assignment_take(w, sim_assignment_of(w, stream));
    }
}

void sim_group_tick(sim_world *world)
{
    sim_assignments_tick(world);
    if (world->cursor) sim_cursor_tick(world);
    for (int i = 0; i < world->streams_n; i++) {
        judge_starving(world, i);
        judge_waiting(world, i);
    }
    for (int i = 0; i < world->workers_n && world->beat_ms; i++) judge_beat(world, &world->workers[i]);
    misfortune(world);
    note_stuck(world);
    spread(world);
}

/* The store is away, and for some workers so is the broker. */
void sim_group_shaken(sim_world *world)
{
    for (int i = 0; i < world->streams_n; i++) {
        sim_worker *w = world->streams[i].owner;
        if (w && !leaves(world, i) && (w->in_tx || sim_chance(world, 50)))
            sim_assignment_ask(w, sim_assignment_of(w, i));
    }
}

void sim_group_left(sim_worker *w)
{
    for (int i = 0; i < w->world->streams_n; i++)
        if (w->world->streams[i].owner == w) sim_assignment_take(w, sim_assignment_of(w, i));
    w->member = false;
    spread(w->world);
}
