/* The judgement on acks, on the counts of a worker that ended, and at the end of a seed. */
#include "sim.h"

/* --- acks --- */

/* Whether the broker may forget this message: its outcome is final, or the store has it. */
static bool is_safe(const sim_world *world, const sim_message *m)
{
    if (m->letters) return true;
    for (int i = 0; m->key >= 0 && i < world->messages_n;
         i++) /* the letter of a version under a second key stands for all of that key */
        if (sim_record_same_conflict(m, &world->messages[i]) ||
            (world->messages[i].key == m->key && world->messages[i].letters &&
             sim_record_differs(world, &world->keys[m->key])))
            return true;
    if (m->key < 0 || sim_record_conflicts(world, m)) return false;
    const sim_key *k = &world->keys[m->key];
    return k->final || k->owned || sim_record_superseded(world, k);
}

bool sim_judge_safe(const sim_world *world, int message) { return is_safe(world, &world->messages[message]); }

void sim_judge_ack(sim_world *world, sim_worker *worker, int message)
{
    sim_message *m = &world->messages[message];
    m->acks++;
    sim_trace(world, worker->index, "acks message", NULL, message, m->key, ONCE_OK);
    if (!is_safe(world, m))
        sim_violation(world, "message %d (key %d): acked, and neither finished nor kept by the store", message, m->key);
}

/* --- workers --- */

void sim_judge_end(sim_worker *worker, const once_counts *c)
{
    sim_world *world = worker->world;
    const uint64_t sum =
        c->done + c->already + c->rejected + c->stale + c->skipped + c->duplicates + c->waiting + c->unknown + c->dead;
    if (c->received + c->resumed != sum)
        sim_violation(world, "worker %d: received %llu + resumed %llu, but the outcomes add up to %llu", worker->index,
                      (unsigned long long)c->received, (unsigned long long)c->resumed, (unsigned long long)sum);
    const uint64_t limit = 1000000;
    if (c->waiting > limit || c->done > limit || c->duplicates > limit)
        sim_violation(world, "worker %d: a count fell below zero (waiting %lld)", worker->index, (long long)c->waiting);
    if (c->conflicts + c->too_old > c->dead)
        sim_violation(world, "worker %d: more conflicts and too old messages than dead ones", worker->index);
    if (c->acked > c->received) sim_violation(world, "worker %d: acked more than it received", worker->index);
    world->counted_done += c->done;
    world->counted_dead += c->dead;
    world->counted_repeats += c->repeats;
    for (int i = 0; i < world->keys_n; i++) {
        sim_key *k = &world->keys[i];
        if (!k->open || k->holder != worker->incarnation || k->dropped) continue;
        if (k->known) sim_violation(world, "key %d: its worker ended well and did not put it back", i);
        k->excused = true; /* it never knew that it had it */
        k->unreported += !k->asking;
    }
}

/* --- the end --- */

static bool through(const sim_world *world, int key)
{
    const sim_key *k = &world->keys[key];
    if (k->final || sim_record_superseded(world, k) || sim_record_is_left(world, k)) return true;
    /* A finite run does not wait for what stands behind an unknown, or a dead one that blocks. */
    for (int i = 0; world->finite && k->lane >= 0 && i < world->keys_n; i++)
        if (world->keys[i].lane == k->lane &&
            (sim_record_is_left(world, &world->keys[i]) || sim_record_blocks(world, &world->keys[i])))
            return true;
    if (sim_record_differs(world, k)) return true; /* is_safe knows whether it has its letter */
    for (int i = 0; i < world->messages_n; i++)
        if (world->messages[i].key == key && !world->messages[i].too_old) return false;
    return true; /* only messages that were too old had this key */
}

bool sim_judge_over(sim_world *world, char *why, size_t size)
{
    for (int i = 0; i < world->messages_n; i++) {
        const sim_message *m = &world->messages[i];
        if (m->acks == 0) {
            if (why) (void)snprintf(why, size, "message %d (key %d) was never acked", i, m->key);
            return false;
        }
    }
    for (int i = 0; i < world->keys_n; i++) {
        if (through(world, i)) continue;
        if (why) (void)snprintf(why, size, "key %d was acked and never came to an end: lost", i);
        return false;
    }
    if (!sim_broker_empty(world)) {
        if (why) (void)snprintf(why, size, "the broker still has unacked deliveries");
        return false;
    }
    return true;
}

void sim_judge_close(sim_world *world)
{
    sim_flights_finish(world);
    for (int i = 0; i < world->messages_n; i++)
        if (!is_safe(world, &world->messages[i]))
            sim_violation(world, "message %d (key %d): lost", i, world->messages[i].key);
    sim_operator_conflicts(world);
    uint64_t repeats, given_up;
    sim_operator_counters(world, &repeats, &given_up);
    /* Without `first` an older version may come after a newer one ran; then the record knows of fewer that are waited
     * for. */
    if (given_up + world->given_up_hidden < world->given_up ||
        (world->first && given_up > world->given_up + world->given_up_twice))
        sim_violation(world, "%llu versions were given up, and %llu are counted", (unsigned long long)world->given_up,
                      (unsigned long long)given_up);
    if (world->repeats > repeats || repeats > world->told + world->counted_twice)
        sim_violation(world, "%llu effects were repeated, the store counted %llu, and %llu claims were told so",
                      (unsigned long long)world->repeats, (unsigned long long)repeats, (unsigned long long)world->told);
    if (!world->counts_known) return;
    if (world->counted_repeats > repeats || world->counted_repeats + world->counted_twice < repeats)
        sim_violation(world, "the workers counted %llu repeats, the store %llu",
                      (unsigned long long)world->counted_repeats, (unsigned long long)repeats);
    if (world->counted_done != world->done)
        sim_violation(world, "the workers counted %llu done, but there were %llu",
                      (unsigned long long)world->counted_done, (unsigned long long)world->done);
    /* A letter that was written, rolled back and then written by another worker may be counted by both; one that was
     * replayed or discarded before its worker knew that it had been written is counted as something else. What a person
     * gave up may be counted by the worker that comes to the same end. */
    const uint64_t once = world->result->fired[SIM_replayed] + world->result->fired[SIM_discarded] + world->unheard;
    const uint64_t twice = world->result->fired[SIM_commit_fails] + world->result->fired[SIM_store_fails] +
                           world->result->fired[SIM_store_crash] + world->result->fired[SIM_resolved_dead];
    if (world->counted_dead + once < world->letters || world->counted_dead > world->letters + twice)
        sim_violation(world, "the workers counted %llu dead, but there were %llu letters",
                      (unsigned long long)world->counted_dead, (unsigned long long)world->letters);
}
