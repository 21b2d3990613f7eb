/* What happened, and whether it should have. Reads the script and the record; asks neither a store nor the machine. */
#include <assert.h>
#include <stdlib.h>

#include "sim.h"

/* --- notes: what is not yet committed --- */

void sim_note_add(sim_worker *worker, sim_note note)
{
    if (worker->notes_n == worker->notes_size) {
        worker->notes_size = worker->notes_size ? 2 * worker->notes_size : 32;
        worker->notes = realloc(worker->notes, worker->notes_size * sizeof *worker->notes);
        if (!worker->notes) abort();
    }
    worker->notes[worker->notes_n++] = note;
}

void sim_notes_drop(sim_worker *worker) { worker->notes_n = 0; }

/* --- what the script says about a key --- */

static bool superseded(const sim_world *world, const sim_key *k)
{
    return world->versioned && world->lanes[k->lane].has_top && world->lanes[k->lane].top >= k->version;
}

/* Its message may have died: by its own fault, or because claims on it ended without a word too often. */
static bool may_die(const sim_world *world, const sim_key *k)
{
    const uint32_t spent = k->failures + k->silent;
    switch (k->fate) {
    case FATE_DEAD: return true;
    case FATE_POISON:
        if (spent + 1 >= world->attempts) return true;
        break;
    case FATE_FAILS:
        if (k->failures < k->fails && spent + 1 >= world->attempts) return true;
        break;
    default: break;
    }
    if (k->silent > 0 && spent >= world->attempts) return true;
    if (!world->gap || !world->gap_dead || superseded(world, k)) return false;
    const sim_lane *lane = &world->lanes[k->lane];
    return lane->has_top && lane->top + 1 < k->version; /* an earlier version is still missing */
}

/* --- what became fact --- */

static void grant(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    w->holds = !w->in_tx;
    const bool again = k->open && once_hash_equal(k->token, note->token);
    if (k->open && !again) {
        const int64_t held_ms = world->now_ms - k->granted_ms;
        if (held_ms * 11 < (world->lease_ms - 2) * 10)
            sim_violation(world, "key %d: a claim of %lld ms was given to another after %lld ms", note->key,
                          (long long)world->lease_ms, (long long)held_ms);
        if (!k->excused && world->mild)
            sim_violation(world, "key %d: its claim was forgotten by a worker that lived, and ran out", note->key);
        if (!k->excused) k->silent++;
    }
    if (k->final) sim_violation(world, "key %d: claimed again after it was %s", note->key, once_outcome_name(k->outcome));
    k->open = true;
    k->excused = false;
    k->known = note->known || (again && k->known);
    k->holder = w->incarnation;
    k->token = note->token;
    k->granted_ms = world->now_ms;
}

static void check_lane(sim_world *world, int key)
{
    const sim_key *k = &world->keys[key];
    sim_lane *lane = &world->lanes[k->lane];
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *other = &world->keys[i];
        if (i == key || other->lane != k->lane || other->final || other->failures == 0) continue;
        if (!world->versioned && (k->replayed || other->replayed))
            continue; /* goes back to its old place, before others */
        if (!world->versioned || (other->version < k->version && !superseded(world, other)))
            sim_violation(world, "lane %d: the effect of key %d came before key %d, which had failed, was finished",
                          k->lane, key, i);
    }
    if (world->versioned && lane->has_top && lane->top >= k->version)
        sim_violation(world, "lane %d: version %lld (key %d) took effect after version %lld", k->lane,
                      (long long)k->version, key, (long long)lane->top);
    if (world->gap && world->gap_dead && lane->has_top && lane->top + 1 != k->version)
        sim_violation(world, "lane %d: version %lld (key %d) took effect behind version %lld: a gap", k->lane,
                      (long long)k->version, key, (long long)lane->top);
    if (k->replayed) return;
    if (!world->versioned && world->fifo && world->workers_n == 1 && k->first < lane->last_first)
        sim_violation(world, "lane %d: key %d took effect behind one that was delivered after it", k->lane, key);
    lane->last_first = k->first;
}

static void effect(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const sim_message *m = &world->messages[note->message];
    sim_trace(world, w->index, "EFFECT of key", NULL, note->key, note->message, ONCE_OK);
    world->result->effects++;
    if (k->effects) sim_violation(world, "key %d: took effect twice", note->key);
    else if (k->final)
        sim_violation(world, "key %d: took effect after it was %s", note->key, once_outcome_name(k->outcome));
    if (!k->open || k->holder != w->incarnation)
        sim_violation(world, "key %d: took effect in the hands of a worker whose claim was somebody else's", note->key);
    if (m->too_old) sim_violation(world, "key %d: a message that was too old took effect", note->key);
    if (k->winner >= 0 && k->winner != m->variant)
        sim_violation(world, "key %d: a conflicting message took effect", note->key);
    if (k->fate != FATE_FINE && k->fate != FATE_FAILS)
        sim_violation(world, "key %d: took effect, and should never have", note->key);
    if (world->ops[k->op]++) sim_violation(world, "key %d: its business operation took effect twice", note->key);
    if (k->lane >= 0) check_lane(world, note->key);
    k->winner = m->variant;
    k->effects++;
}

static void advance(sim_world *world, const sim_key *k)
{
    if (!world->versioned) return;
    sim_lane *lane = &world->lanes[k->lane];
    if (!lane->has_top || k->version > lane->top) lane->top = k->version;
    lane->has_top = true;
}

static void died(sim_world *world, sim_key *k, int key)
{
    world->letters++;
    if (++k->letters > 1) sim_violation(world, "key %d: a second dead letter", key);
    if (!may_die(world, k))
        sim_violation(world, "key %d: became a dead letter after %u failures and %u lost claims of %u", key,
                      k->failures, k->silent, world->attempts);
}

static void outcome(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    sim_trace(world, w->index, "FACT:", once_outcome_name(note->outcome), note->key, note->message, ONCE_OK);
    if (k->final)
        sim_violation(world, "key %d: %s after it was %s", note->key, once_outcome_name(note->outcome),
                      once_outcome_name(k->outcome));
    if (!k->open || k->holder != w->incarnation)
        sim_violation(world, "key %d: settled by a worker whose claim was somebody else's", note->key);
    if (note->message >= 0) {
        const int variant = world->messages[note->message].variant;
        if (k->winner >= 0 && k->winner != variant) sim_violation(world, "key %d: two contents were let in", note->key);
        k->winner = variant;
    }
    k->open = false;
    switch (note->outcome) {
    case ONCE_RETRY:
        k->failures++;
        k->owned = true;
        if (k->fate != FATE_FAILS && k->fate != FATE_POISON)
            sim_violation(world, "key %d: a retry without a failure", note->key);
        if (k->failures >= world->attempts)
            sim_violation(world, "key %d: failed %u times of %u and is tried again", note->key, k->failures,
                          world->attempts);
        return;
    case ONCE_RELEASE: k->owned = true; return;
    case ONCE_DONE:
        if (k->effects != 1) sim_violation(world, "key %d: done without an effect", note->key);
        advance(world, k);
        break;
    case ONCE_ALREADY:
        if (world->ops[k->op] != 1) sim_violation(world, "key %d: already, but its operation has no effect", note->key);
        advance(world, k);
        break;
    case ONCE_REJECTED:
        if (k->fate != FATE_REJECTED) sim_violation(world, "key %d: rejected by nobody", note->key);
        advance(world, k);
        break;
    case ONCE_STALE:
        if (k->fate != FATE_STALE) sim_violation(world, "key %d: stale by nobody's word", note->key);
        break;
    case ONCE_DEAD: died(world, k, note->key); break;
    default: sim_violation(world, "key %d: outcome %s of an atomic effect", note->key, once_outcome_name(note->outcome));
    }
    k->final = true;
    k->outcome = note->outcome;
}

static bool conflicts(const sim_world *world, const sim_message *m)
{
    return m->key >= 0 && world->keys[m->key].winner >= 0 && world->keys[m->key].winner != m->variant;
}

static void letter(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_message *m = &world->messages[note->message];
    sim_trace(world, w->index, "FACT: a letter,", once_answer_name(note->answer), note->message, m->key, ONCE_OK);
    world->letters++;
    if (++m->letters > 1) sim_violation(world, "message %d: a second dead letter", note->message);
    if (m->key < 0) return;
    const bool expired = world->timed && world->phase >= PHASE_LATE;
    if (note->answer == ONCE_ANSWER_TOO_OLD && (m->too_old || expired)) return;
    if (note->answer == ONCE_ANSWER_CONFLICT) { /* the other content was let in, even if nothing of it is fact yet */
        sim_key *k = &world->keys[m->key];
        for (int i = 0; i < world->messages_n; i++)
            if (world->messages[i].key == m->key && world->messages[i].variant != m->variant && k->winner < 0)
                k->winner = world->messages[i].variant;
        if (conflicts(world, m)) return;
    }
    sim_violation(world, "message %d: buried as %s without a reason", note->message, once_answer_name(note->answer));
}

static void owned(sim_world *world, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const int variant = world->messages[note->message].variant;
    if (k->winner >= 0 && k->winner != variant) sim_violation(world, "key %d: two contents were let in", note->key);
    k->winner = variant;
    k->owned = true;
}

void sim_notes_commit(sim_worker *worker)
{
    sim_world *world = worker->world;
    for (size_t i = 0; i < worker->notes_n; i++) {
        const sim_note *note = &worker->notes[i];
        switch (note->what) {
        case NOTE_GRANT: grant(world, worker, note); break;
        case NOTE_EFFECT: effect(world, worker, note); break;
        case NOTE_OUTCOME: outcome(world, worker, note); break;
        case NOTE_OWNED: owned(world, note); break;
        case NOTE_LETTER: letter(world, worker, note); break;
        }
    }
    worker->notes_n = 0;
}

/* --- acks --- */

/* Whether the broker may forget this message: its outcome is final, or the store has it. */
static bool is_safe(const sim_world *world, const sim_message *m)
{
    if (m->letters) return true;
    if (m->key < 0 || conflicts(world, m)) return false;
    const sim_key *k = &world->keys[m->key];
    return k->final || k->owned || superseded(world, k);
}

void sim_record_ack(sim_world *world, sim_worker *worker, int message)
{
    sim_message *m = &world->messages[message];
    m->acks++;
    sim_trace(world, worker->index, "acks message", NULL, message, m->key, ONCE_OK);
    if (!is_safe(world, m))
        sim_violation(world, "message %d (key %d): acked, and neither finished nor kept by the store", message, m->key);
}

/* A person decided: everything begins anew, but for the effects that there were. */
void sim_record_replay(sim_world *world, int key)
{
    sim_key *k = &world->keys[key];
    sim_trace(world, -1, "an operator replays key", NULL, key, -1, ONCE_OK);
    if (!k->final || k->outcome != ONCE_DEAD)
        sim_violation(world, "key %d: a dead letter of a key that is not dead", key);
    k->final = false;
    k->owned = k->replayed = true;
    k->failures = k->silent = k->letters = k->kills = 0;
}

/* --- workers --- */

void sim_record_excuse(sim_worker *worker)
{
    sim_world *world = worker->world;
    for (int i = 0; i < world->keys_n; i++) {
        sim_key *k = &world->keys[i];
        if (!k->open || k->excused || k->holder != worker->incarnation) continue;
        k->excused = true;
        k->silent++;
    }
}

void sim_record_end(sim_worker *worker, const once_counts *c)
{
    sim_world *world = worker->world;
    const uint64_t sum = c->done + c->already + c->rejected + c->stale + c->duplicates + c->waiting + c->unknown + c->dead;
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
    for (int i = 0; i < world->keys_n; i++) {
        sim_key *k = &world->keys[i];
        if (!k->open || k->holder != worker->incarnation) continue;
        if (k->known) sim_violation(world, "key %d: its worker ended well and did not put it back", i);
        k->excused = true; /* it never knew that it had it */
        k->silent++;
    }
}

/* --- the end --- */

static bool through(const sim_world *world, int key)
{
    const sim_key *k = &world->keys[key];
    if (k->final || superseded(world, k)) return true;
    for (int i = 0; i < world->messages_n; i++)
        if (world->messages[i].key == key && !world->messages[i].too_old) return false;
    return true; /* only messages that were too old had this key */
}

bool sim_record_over(sim_world *world, char *why, size_t size)
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

void sim_record_final(sim_world *world)
{
    for (int i = 0; i < world->messages_n; i++)
        if (!is_safe(world, &world->messages[i]))
            sim_violation(world, "message %d (key %d): lost", i, world->messages[i].key);
    if (!world->counts_known) return;
    if (world->counted_done != world->result->effects)
        sim_violation(world, "the workers counted %llu done, but there were %llu effects",
                      (unsigned long long)world->counted_done, (unsigned long long)world->result->effects);
    /* A letter that was written, rolled back and then written by another worker may be counted by both; one that was
     * replayed before its worker knew that it had been written is counted once for two. */
    const uint64_t once = world->result->fired[SIM_replayed];
    const uint64_t twice = world->result->fired[SIM_commit_fails] + world->result->fired[SIM_store_fails] +
                           world->result->fired[SIM_store_crash];
    if (world->counted_dead + once < world->letters || world->counted_dead > world->letters + twice)
        sim_violation(world, "the workers counted %llu dead, but there were %llu letters",
                      (unsigned long long)world->counted_dead, (unsigned long long)world->letters);
}
