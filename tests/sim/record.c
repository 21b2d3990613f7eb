/* The record of what was committed, and the judgement on it. Reads the script and the record, never an entry or the
 * machine. */
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
    note.at_ms = worker->in_tx ? worker->tx_ms : worker->world->now_ms;
    note.paused_ms = worker->in_tx ? worker->tx_paused_ms : worker->paused_ms;
    worker->notes[worker->notes_n++] = note;
}

void sim_notes_drop(sim_worker *worker) { worker->notes_n = 0; }

/* --- what the script says about a key --- */

static const sim_handler *handler_of(const sim_world *world, const sim_key *k) { return &world->handlers[k->handler]; }

/* The attempt of the claim that the key is in, or was in last; NULL: it has not started. */
static const sim_flight *flight_of(const sim_world *world, const sim_key *k)
{
    return k->flight < 0 ? NULL : &world->flights[k->flight];
}

/* By this attempt or before it. */
static bool has_happened(once_outcome outcome) { return outcome == ONCE_DONE || outcome == ONCE_ALREADY; }

/* What the effect said, or what it counts as. */
static once_outcome said_by(const sim_flight *f)
{
    return f->unwritten && has_happened(f->said) ? ONCE_UNKNOWN : f->said;
}

/* What may have happened stays unknown until a person, or the other side, says more. */
static bool keeps_unknowns(const sim_handler *h) { return h->hold || h->asks; }

bool sim_record_differs(const sim_world *world, const sim_key *k)
{
    if (k->twin < 0 || world->keys[k->twin].shift == k->shift) return false;
    const sim_lane *lane = &world->lanes[k->lane];
    return lane->has_top && lane->top == k->version && lane->by == k->twin;
}

bool sim_record_blocks(const sim_world *world, const sim_key *k)
{
    return world->block && k->lane >= 0 && k->final && k->outcome == ONCE_DEAD && !k->judged;
}

bool sim_record_superseded(const sim_world *world, const sim_key *k)
{
    if (!world->versioned) return false;
    const sim_lane *lane = &world->lanes[k->lane];
    return lane->has_top && lane->top >= k->version && !sim_record_differs(world, k);
}

/* The time since its first failure when it was claimed last, as a store measures it whose clock runs a tenth faster, or
 * slower. */
static bool may_be_for_long(const sim_world *world, const sim_key *k)
{
    return world->retry_for_ms && k->failing_ms && (k->asked_ms - k->failing_ms + 2) * 11 >= world->retry_for_ms * 10;
}

static bool must_be_for_long(const sim_world *world, const sim_key *k)
{
    return world->retry_for_ms && k->failing_ms && (k->asked_ms - k->failing_ms - 2) * 9 > world->retry_for_ms * 10;
}

static void count_failure(sim_key *k, int64_t at_ms)
{
    if (!k->failing_ms) k->failing_ms = at_ms;
}

/* Its message may have died: by its own fault, or because claims on it ended without an outcome too often. */
static bool may_die(const sim_world *world, const sim_key *k)
{
    const uint32_t spent = k->failures + k->unreported;
    const sim_flight *f = flight_of(world, k);
    const bool over = may_be_for_long(world, k), last = spent + 1 >= world->attempts || over;
    if (f && (f->said == ONCE_RETRY || f->said == ONCE_UNKNOWN)) return last;
    if (f) return f->said == ONCE_DEAD;
    switch (handler_of(world, k)->external ? FATE_FINE : k->fate) {
    case FATE_DEAD: return true;
    case FATE_POISON:
        if (last) return true;
        break;
    case FATE_FAILS:
        if (k->failures < k->fails && last) return true;
        break;
    default: break;
    }
    if ((k->unreported > 0 || k->maybe_done) && (spent >= world->attempts || over)) return true;
    return world->gap_dead && k->behind_gap;
}

/* An earlier version is missing. */
static bool has_hole(const sim_world *world, const sim_key *k)
{
    if (!world->gap || !world->lanes[k->lane].has_reach) return false;
    const sim_lane *lane = &world->lanes[k->lane];
    return (lane->reach > lane->lost ? lane->reach : lane->lost) + 1 < k->version;
}

/* The same for one that waits for it. */
static bool has_gap(const sim_world *world, const sim_key *k) { return !k->let_in && has_hole(world, k); }

static void reach(sim_world *world, const sim_key *k)
{
    if (!world->versioned) return;
    sim_lane *lane = &world->lanes[k->lane];
    if (!lane->has_reach || k->version > lane->reach) lane->reach = k->version;
    lane->has_reach = true;
}

/* It was given up, and settled before any newer one: those behind it are waited for again. */
static void go_back(sim_world *world, const sim_key *k)
{
    sim_lane *lane = &world->lanes[k->lane];
    if (k->version > lane->lost || (lane->has_top && lane->top >= k->version)) return;
    lane->reach = k->version;
    lane->lost = k->version - 1;
}

static void came(sim_world *world, sim_key *k)
{
    if (!k->came) k->came = ++world->arrivals;
}

/* Of two with the same version the first one that the store heard of runs, or dies. The other one may then. */
static void check_twin(sim_world *world, const sim_key *k, int key)
{
    if (k->twin < 0 || k->granted) return;
    const sim_key *twin = &world->keys[k->twin];
    if (twin->came && twin->came < k->came && !twin->final && !twin->replayed)
        sim_violation(world, "lane %d: key %d was claimed before key %d, which has the same version and came first",
                      k->lane, key, k->twin);
}

/* The store has its body now. */
static void own(sim_world *world, sim_key *k)
{
    came(world, k);
    if (k->owned) return;
    k->owned = true;
    k->owned_alive_ms = world->alive_ms;
    k->owned_downs = world->downs;
}

/* It died: it has come, unless versions before it are still waited for. */
static void reach_dead(sim_world *world, const sim_key *k)
{
    if (!has_hole(world, k) || k->behind_gap) reach(world, k);
}

/* --- what became fact --- */

static bool same_claim(const sim_key *k, const sim_note *note) { return once_hash_equal(k->token, note->token); }

/* A store's clock may run a tenth faster than the world's. */
static bool may_be_over(const sim_world *world, const sim_key *k, int64_t now_ms)
{
    return k->lapsed || (now_ms - k->granted_ms) * 11 >= (world->lease_ms - 2) * 10;
}

/* A claim of an external effect is told whether the one before may have had its effect. No more and no less: so repeats
 * are counted, and what is counted is at most what crashes, lost leases, retried unknowns and persons gave cause for.
 */
static void told(sim_world *world, sim_key *k, bool in_hand, bool silent, int key)
{
    k->maybe_done = k->maybe_done || in_hand;
    if (silent != k->maybe_done)
        sim_violation(world, "key %d: its claim was %s, and an effect %s have happened before", key,
                      silent ? "told of an unreported attempt" : "told of none", k->maybe_done ? "may" : "cannot");
    if (silent) sim_trace(world, -1, "may be a repeat: key", NULL, key, -1, ONCE_OK);
    world->told += silent;
    k->told += silent;
    k->told_now = silent;
}

/* Versions before this one are given up now: somebody must have waited for them, while somebody ran. Of the time when
 * nobody did, two steps of the wait may count each time. The store's clock may run a tenth faster. */
static void gap_is_over(sim_world *world, sim_key *k, int key)
{
    const int64_t step_ms = world->gap_ms / 16 < 250 ? 250 : world->gap_ms / 16;
    int64_t waited_ms = -1;
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *other = &world->keys[i];
        if (other->lane != k->lane || !other->owned || (other->final && other != k) ||
            other->version <= world->lanes[k->lane].reach)
            continue;
        const int64_t most_ms =
            world->alive_ms - other->owned_alive_ms + (int64_t)(world->downs - other->owned_downs + 1) * 2 * step_ms;
        if (most_ms > waited_ms) waited_ms = most_ms;
    }
    sim_lane *lane = &world->lanes[k->lane];
    const int64_t missing = k->version - 1 - (lane->reach > lane->lost ? lane->reach : lane->lost);
    k->missing = (uint64_t)missing;
    lane->lost = k->version - 1;
    sim_fired(world, SIM_gap_over);
    if (world->phase < PHASE_LATE && waited_ms * 11 < world->gap_ms * 10)
        sim_violation(world, "lane %d: version %lld (key %d) was waited for %lld ms of %lld", k->lane,
                      (long long)k->version, key, (long long)waited_ms, (long long)world->gap_ms);
}

static void grant(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const sim_handler *h = handler_of(world, k);
    w->holds = !w->in_tx;
    const bool again = k->open && same_claim(k, note), in_hand = k->open && !again;
    if (in_hand) {
        if (k->orphaned)
            world->given_up_hidden += k->missing; /* the second one that was told so did not settle it either */
        k->orphaned = k->ever_maybe = true;
        count_failure(k, note->at_ms);
        if (!may_be_over(world, k, note->at_ms))
            sim_violation(world, "key %d: a claim of %lld ms went to another worker after %lld ms", note->key,
                          (long long)world->lease_ms, (long long)(note->at_ms - k->granted_ms));
        if (!k->excused && world->mild)
            sim_violation(world,
                          "key %d: its worker lived, but did not settle or extend its claim, and the lease ran out",
                          note->key);
        if (!k->excused) k->unreported++;
        if (keeps_unknowns(h))
            sim_violation(world, "key %d: its lease ran out, and it was claimed again instead of held", note->key);
    }
    if (k->unknown) sim_violation(world, "key %d: claimed while it is held for a person", note->key);
    k->unknown_ms = 0;
    k->asking = false;
    if (k->final && !h->natural)
        sim_violation(world, "key %d: claimed again after it was %s", note->key, once_outcome_name(k->outcome));
    if (h->external && !again) told(world, k, in_hand, note->unreported, note->key);
    came(world, k);
    check_twin(world, k, note->key);
    if (!again) k->flight = sim_flights_landed(world, note->token);
    if (!again && k->flight >= 0) sim_fired(world, SIM_unclaimed_failed);
    /* It was put back before it ran, and the version before it has come and settled since: nothing is missing any more.
     */
    if (!again && !in_hand && k->lane >= 0 && world->lanes[k->lane].has_top &&
        world->lanes[k->lane].top == k->version - 1)
        k->behind_gap = false;
    if (!again) k->let_in = k->granted && !k->behind_gap;
    k->granted = true;
    k->open = true;
    k->asked_ms = note->at_ms;
    k->excused = k->dropped = k->lapsed = false;
    k->taken = note->taken;
    if (has_gap(world, k) && !k->behind_gap) {
        if (!again) gap_is_over(world, k, note->key);
        k->behind_gap = true;
    }
    k->persons = k->lane < 0 ? 0 : world->lanes[k->lane].persons;
    k->known = note->known || (again && k->known);
    k->holder = w->incarnation;
    k->token = note->token;
    k->granted_ms = note->at_ms;
    k->paused_ms = note->paused_ms;
}

/* Its lease is over, so it is unknown, whether or not somebody has written that down. */
static void ran_out(sim_key *k)
{
    if (!k->excused) k->unreported++;
    k->unknown = k->maybe_done = k->ever_maybe = k->orphaned = true;
    if (!k->unknown_ms) k->unknown_ms = k->granted_ms;
    k->missing = 0; /* nobody counts it */
    k->pardons++;   /* whoever had it may have been stopped, and act when it goes on */
}

/* It stays what it is while somebody asks. */
static void asked(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const bool again = k->open && same_claim(k, note);
    const bool over = k->open && !again && may_be_over(world, k, note->at_ms);
    if (!handler_of(world, k)->asks)
        sim_violation(world, "key %d: asked about, and its handler has no lookup", note->key);
    if (k->open && !again && !over)
        sim_violation(world, "key %d: asked about while another worker has its claim", note->key);
    if (over && !k->asking) ran_out(k);
    if (!k->unknown || k->final) sim_violation(world, "key %d: asked about, and it is known", note->key);
    if (!again) k->flight = -1;
    w->holds = true;
    k->open = k->asking = k->taken = true;
    k->excused = k->dropped = k->lapsed = k->told_now = k->given_up = false;
    k->known = note->known || (again && k->known);
    k->holder = w->incarnation;
    k->token = note->token;
    k->asked_ms = k->granted_ms = note->at_ms;
    k->paused_ms = note->paused_ms;
}

static void extended(sim_world *world, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    if (!k->open && k->unknown && same_claim(k, note)) return; /* it was put back, and nobody had heard of that */
    if (!k->open || !same_claim(k, note)) {
        sim_violation(world, "key %d: a worker extended a claim that it has lost", note->key);
        return;
    }
    if (k->unknown_ms && !k->asking)
        sim_violation(world, "key %d: its claim was extended after it had become unknown", note->key);
    k->excused = k->lapsed = false;
    k->granted_ms = note->at_ms;
    k->paused_ms = note->paused_ms;
}

/* Under way, and nothing excuses another one beside it. */
static bool is_exclusive(const sim_world *world, const sim_flight *f)
{
    const sim_key *k = &world->keys[f->key];
    const bool ours = k->open && once_hash_equal(k->token, f->token);
    return f->air && !f->excused && ours && !may_be_over(world, k, world->now_ms);
}

static void check_lane(sim_world *world, int key)
{
    const sim_key *k = &world->keys[key];
    sim_lane *lane = &world->lanes[k->lane];
    const bool natural = handler_of(world, k)->natural;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *f = &world->flights[i];
        if (f->key != key && world->keys[f->key].lane == k->lane && is_exclusive(world, f))
            sim_violation(world, "lane %d: key %d went ahead while the effect of key %d was under way", k->lane, key,
                          f->key);
    }
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *other = &world->keys[i];
        if (i == key || other->lane != k->lane || other->final || other->failures == 0) continue;
        if (!world->versioned && (k->replayed || other->replayed))
            continue; /* goes back to its old place, before others */
        if (!world->versioned || (other->version < k->version && !sim_record_superseded(world, other)))
            sim_violation(world, "lane %d: the effect of key %d came before key %d, which had failed, was finished",
                          k->lane, key, i);
    }
    if (natural && lane->has_top && lane->top == k->version) return; /* again */
    if (k->persons != lane->persons) return;                         /* somebody moved it since it was claimed */
    if (world->versioned && lane->has_top && lane->top >= k->version)
        sim_violation(world, "lane %d: version %lld (key %d) took effect after version %lld", k->lane,
                      (long long)k->version, key, (long long)lane->top);
    if (world->gap_dead && (has_gap(world, k) || k->behind_gap))
        sim_violation(world, "lane %d: version %lld (key %d) took effect behind version %lld: a gap", k->lane,
                      (long long)k->version, key, (long long)lane->reach);
    for (int i = 0; i < world->keys_n; i++)
        if (i != key && world->keys[i].lane == k->lane && sim_record_blocks(world, &world->keys[i]) &&
            (!world->versioned || world->keys[i].version <= k->version))
            sim_violation(world, "lane %d: key %d took effect behind key %d, which is dead", k->lane, key, i);
    if (k->replayed || natural) return;
    if (!world->versioned && world->fifo && world->workers_n == 1 && k->first < lane->last_first)
        sim_violation(world, "lane %d: key %d took effect behind one that was delivered after it", k->lane, key);
    lane->last_first = k->first;
}

/* What holds for every effect, wherever it happens. */
static void took_effect(sim_world *world, int worker, int key, int message)
{
    sim_key *k = &world->keys[key];
    const sim_message *m = &world->messages[message];
    sim_trace(world, worker, "EFFECT of key", NULL, key, message, ONCE_OK);
    world->result->effects++;
    if (m->too_old) sim_violation(world, "key %d: a message that was too old took effect", key);
    if (k->winner >= 0 && k->winner != m->variant)
        sim_violation(world, "key %d: a conflicting message took effect", key);
    k->winner = m->variant;
    k->effects++;
    world->ops[k->op]++;
    world->op_keys[k->op] = key;
}

static void effect(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const bool natural = handler_of(world, k)->natural;
    if (natural && k->effects) sim_fired(world, SIM_rerun);
    if (!natural && k->effects) sim_violation(world, "key %d: took effect twice", note->key);
    else if (!natural && k->final)
        sim_violation(world, "key %d: took effect after it was %s", note->key, once_outcome_name(k->outcome));
    if (!k->open || k->holder != w->incarnation)
        sim_violation(world, "key %d: took effect, and another worker had its claim", note->key);
    if (k->fate != FATE_FINE && k->fate != FATE_FAILS)
        sim_violation(world, "key %d: took effect, and should never have", note->key);
    if (!natural && world->ops[k->op])
        sim_violation(world, "key %d: its business operation took effect twice", note->key);
    if (k->lane >= 0) check_lane(world, note->key);
    took_effect(world, w->index, note->key, note->message);
}

/* --- external effects --- */

void sim_record_start(sim_world *world, sim_flight *f)
{
    const sim_key *k = &world->keys[f->key];
    const sim_worker *w = &world->workers[f->worker];
    const bool zombie =
        w->paused_until_ms + world->lease_ms >= world->now_ms; /* it cannot know that its claim is gone */
    if (!k->open || k->dropped || !once_hash_equal(k->token, f->token)) {
        if (!zombie)
            sim_violation(world, "key %d: started before its claim was committed, or after it was lost", f->key);
        f->excused = true;
        return;
    }
    if (zombie && may_be_over(world, k, world->now_ms))
        f->excused = true; /* it slept between looking at the clock and this */
    if (!k->known) sim_violation(world, "key %d: started before its worker knew that its claim was committed", f->key);
    if (k->flight >= 0) sim_violation(world, "key %d: started twice with one claim", f->key);
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *other = &world->flights[i];
        if (other != f && other->key == f->key && is_exclusive(world, other))
            sim_violation(world, "key %d: started while its effect was already running", f->key);
    }
    if (k->lane >= 0) check_lane(world, f->key);
}

/* Only where nothing depends on a claim; and never beside another one in the same worker. */
void sim_record_start_unclaimed(sim_world *world, const sim_flight *f)
{
    const sim_key *k = &world->keys[f->key];
    const sim_handler *h = handler_of(world, k);
    sim_fired(world, SIM_unclaimed);
    if (!h->natural || h->killable || keeps_unknowns(h) || h->then || k->lane >= 0)
        sim_violation(world, "key %d: started without a claim, and needs one", f->key);
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *other = &world->flights[i];
        if (other != f && other->key == f->key && other->air && other->incarnation == f->incarnation)
            sim_violation(world, "key %d: started while its effect was already running in this worker", f->key);
    }
}

/* It ended well without a claim: nothing is kept of it, so that is all. An entry that another worker made stays. */
void sim_record_passed(sim_world *world, const sim_flight *f)
{
    sim_key *k = &world->keys[f->key];
    if (k->final) return;
    k->final = true;
    k->outcome = f->said;
}

void sim_record_ask(sim_world *world, sim_flight *f)
{
    const sim_key *k = &world->keys[f->key];
    const sim_worker *w = &world->workers[f->worker];
    const int64_t after_ms = world->spec->handlers[k->handler].lookup.after_ms;
    if (!k->open || k->dropped || !once_hash_equal(k->token, f->token)) {
        const bool decided = k->resolved_ms && k->resolved_ms + world->lease_ms >= world->now_ms; /* by a person */
        if (!decided && w->paused_until_ms + world->lease_ms < world->now_ms)
            sim_violation(world, "key %d: asked about by a worker that has lost its claim", f->key);
        f->excused = true;
        return;
    }
    if (!k->asking) sim_violation(world, "key %d: asked about, and it was to be run", f->key);
    if (k->flight >= 0) sim_violation(world, "key %d: asked about twice with one claim", f->key);
    if ((world->now_ms - k->unknown_ms + 2) * 11 < after_ms * 10)
        sim_violation(world, "key %d: asked about after %lld ms, and it may still act for %lld ms", f->key,
                      (long long)(world->now_ms - k->unknown_ms), (long long)after_ms);
}

void sim_record_effect(sim_world *world, sim_flight *f)
{
    sim_key *k = &world->keys[f->key];
    const sim_handler *h = handler_of(world, k);
    const sim_worker *w = &world->workers[f->worker];
    const bool repeat = k->effects > 0;
    took_effect(world, f->excused ? -1 : f->worker, f->key, f->message);
    if (h->natural) {
        if (repeat) sim_fired(world, SIM_rerun);
        return;
    }
    if (repeat) {
        sim_fired(world, SIM_repeated);
        world->repeats++;
    }
    if (h->hold && k->effects > 1 + k->pardons)
        sim_violation(world, "key %d: held, but its effect happened %u times; a person let it go %u times", f->key,
                      k->effects, k->pardons);
    if (k->effects > 1 + k->told)
        sim_violation(world,
                      "key %d: its effect happened %u times, but only %u claims were told that they may repeat it",
                      f->key, k->effects, k->told);
    const bool ours = once_hash_equal(k->token, f->token);
    const int64_t pauses_ms = w->paused_ms - k->paused_ms;
    if (!f->excused && h->killable && (!ours || world->now_ms - k->granted_ms > world->lease_ms * 11 / 10 + pauses_ms))
        sim_violation(world, "key %d: its effect went on past the end of its lease", f->key);
}

/* The effect is done, and cannot be taken back. When what belongs to it is not written, it counts as unknown. */
void sim_record_then(sim_worker *w, int key, bool written)
{
    sim_key *k = &w->world->keys[key];
    sim_flight *f = k->flight < 0 ? NULL : &w->world->flights[k->flight];
    if (f && !f->air && f->incarnation == w->incarnation && handler_of(w->world, k)->then) f->unwritten = !written;
}

static void then(sim_world *world, const sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const sim_flight *f = flight_of(world, k);
    sim_trace(world, w->index, "THEN of key", NULL, note->key, note->message, ONCE_OK);
    sim_fired(world, SIM_then_written);
    if (!k->open || k->holder != w->incarnation || !same_claim(k, note))
        sim_violation(world, "key %d: its `then` was written under a claim that its worker has lost", note->key);
    if (!f || f->air || !has_happened(f->question ? f->answer : f->said))
        sim_violation(world, "key %d: its `then` was written, and its effect is not done", note->key);
    if (++k->thens > 1) sim_violation(world, "key %d: its `then` was written twice", note->key);
}

/* What the settlement of an external effect must be, from what the effect said. */
static bool follows(const sim_world *world, const sim_key *k, const sim_note *note)
{
    const sim_flight *f = flight_of(world, k);
    if (!f) return note->outcome == ONCE_RELEASE || note->outcome == ONCE_DEAD;
    if (f->air) return false;                                                        /* it has not said anything */
    if (f->unwritten && has_happened(f->said)) return note->outcome == ONCE_UNKNOWN; /* never tried again by itself */
    switch (f->said) {
    case ONCE_UNKNOWN:
        if (keeps_unknowns(handler_of(world, k))) return note->outcome == ONCE_UNKNOWN;
        return note->maybe_done && (note->outcome == ONCE_RETRY || note->outcome == ONCE_DEAD);
    case ONCE_RETRY: return note->outcome == ONCE_RETRY || note->outcome == ONCE_DEAD;
    case ONCE_DEAD: return f->storm && note->outcome == ONCE_RELEASE ? true : note->outcome == ONCE_DEAD && !f->spared;
    default: return note->outcome == f->said;
    }
}

/* It was asked about in vain for as long as it may be, and is not for a person. */
static bool is_tried_again(const sim_world *world, const sim_key *k, const sim_note *note)
{
    const int64_t for_ms = world->spec->handlers[k->handler].lookup.for_ms;
    return !handler_of(world, k)->hold && note->maybe_done && (world->now_ms - k->unknown_ms + 2) * 11 >= for_ms * 10;
}

static bool answers(const sim_world *world, const sim_key *k, const sim_flight *f, const sim_note *note)
{
    const bool again = note->outcome == ONCE_RETRY || note->outcome == ONCE_DEAD;
    if (!f) return note->outcome == ONCE_UNKNOWN; /* nobody was asked */
    if (f->air) return false;
    if (f->unwritten && has_happened(f->answer)) return note->outcome == ONCE_UNKNOWN;
    switch (f->answer) {
    case ONCE_RETRY: return again;
    case ONCE_UNKNOWN: return note->outcome == ONCE_UNKNOWN || (again && is_tried_again(world, k, note));
    default: return note->outcome == f->answer;
    }
}

/* Absent is the other side's word, and whoever runs it again is told that it may repeat something. */
static void question_outcome(sim_world *world, sim_key *k, const sim_note *note)
{
    const sim_flight *f = flight_of(world, k);
    if (!answers(world, k, f, note))
        sim_violation(world, "key %d: settled %s, and the other side said %s", note->key,
                      once_outcome_name(note->outcome), f ? once_outcome_name(f->answer) : "nothing");
    k->asking = false;
    k->unknown = note->outcome == ONCE_UNKNOWN;
    k->given_up = k->unknown && note->delay_ms == ONCE_NEVER;
    if (k->given_up && !handler_of(world, k)->hold && !(f && f->unwritten))
        sim_violation(world, "key %d: held, and its handler does not hold unknowns", note->key);
    if (f && f->answer == ONCE_UNKNOWN && note->outcome == ONCE_RETRY) sim_fired(world, SIM_unknown_retried);
}

static void external_outcome(sim_world *world, sim_worker *w, sim_key *k, const sim_note *note)
{
    const sim_flight *f = flight_of(world, k);
    if (k->asking) {
        question_outcome(world, k, note);
        return;
    }
    const char *said = !f ? "was not started" : f->air ? "is under way" : once_outcome_name(f->said);
    if (!follows(world, k, note))
        sim_violation(world, "key %d: settled %s%s, but its effect: %s", note->key, once_outcome_name(note->outcome),
                      note->maybe_done ? " (maybe)" : "", said);
    if (f && f->away && !f->told && note->outcome == ONCE_RELEASE && note->delay_ms == 0)
        sim_violation(world, "key %d: its effect asked to be put back, and is to be asked again at once", note->key);
    k->given_up = note->outcome == ONCE_UNKNOWN && note->delay_ms == ONCE_NEVER;
    if (f && f->said == ONCE_UNKNOWN && note->outcome == ONCE_RETRY) sim_fired(world, SIM_unknown_retried);
    const bool spared = f && f->storm && note->outcome == ONCE_RELEASE; /* what was known before still is */
    if (spared) sim_held_spared(w, k->handler);
    if (f && f->said != ONCE_RELEASE && !spared) k->maybe_done = said_by(f) == ONCE_UNKNOWN;
    k->ever_maybe |= k->maybe_done;
    if (note->outcome == ONCE_RELEASE && k->told_now) {
        world->told--;
        k->told--;
    }
}

static void advance(sim_world *world, const sim_key *k)
{
    if (!world->versioned) return;
    sim_lane *lane = &world->lanes[k->lane];
    go_back(world, k);
    if (!lane->has_top || k->version > lane->top) {
        lane->top = k->version;
        lane->by = (int)(k - world->keys);
    }
    lane->has_top = true;
    reach(world, k);
}

static void advance_by_hand(sim_world *world, const sim_key *k)
{
    if (!world->versioned) return;
    world->lanes[k->lane].persons++;
    advance(world, k);
}

static void died(sim_world *world, sim_key *k, int key, bool accused)
{
    k->failures += accused;
    world->letters++;
    if (++k->letters > 1) sim_violation(world, "key %d: a second dead letter", key);
    if (may_be_for_long(world, k) && k->failures + k->unreported + 1 < world->attempts) sim_fired(world, SIM_retry_for);
    if (accused ? k->failures + k->unreported < world->attempts && !may_be_for_long(world, k) : !may_die(world, k))
        sim_violation(world, "key %d: became a dead letter after %u failures and %u lost claims of %u", key,
                      k->failures, k->unreported, world->attempts);
}

static void failed(sim_world *world, sim_key *k, const sim_note *note)
{
    k->failures++;
    count_failure(k, note->at_ms);
    own(world, k);
    if (must_be_for_long(world, k))
        sim_violation(world, "key %d: tried again %lld ms after its first failure, and %lld ms are allowed", note->key,
                      (long long)(k->asked_ms - k->failing_ms), (long long)world->retry_for_ms);
    if (!handler_of(world, k)->external && k->fate != FATE_FAILS && k->fate != FATE_POISON && !note->hung_up)
        sim_violation(world, "key %d: a retry without a failure", note->key);
    if (k->failures >= world->attempts)
        sim_violation(world, "key %d: failed %u times of %u and is tried again", note->key, k->failures,
                      world->attempts);
}

/* Nothing is remembered of a natural effect that is over, of its troubles neither. */
static void forgotten(sim_key *k)
{
    k->failures = k->unreported = k->letters = 0;
    k->failing_ms = 0;
    k->maybe_done = k->orphaned = k->granted = false;
}

static void finished(sim_world *world, sim_key *k, const sim_note *note)
{
    const bool external = handler_of(world, k)->external, natural = handler_of(world, k)->natural;
    if (has_happened(note->outcome) && handler_of(world, k)->then && k->thens == 0)
        sim_violation(world, "key %d: %s, and its `then` was not written", note->key, once_outcome_name(note->outcome));
    switch (note->outcome) {
    case ONCE_DONE:
        if (!external && (natural ? k->effects == 0 : k->effects != 1))
            sim_violation(world, "key %d: done without an effect", note->key);
        world->done++;
        advance(world, k);
        break;
    case ONCE_ALREADY:
        if (!world->ops[k->op]) sim_violation(world, "key %d: already, but its operation has no effect", note->key);
        advance(world, k);
        break;
    case ONCE_REJECTED:
        if (k->fate != FATE_REJECTED)
            sim_violation(world, "key %d: rejected, and its handler did not say so", note->key);
        advance(world, k);
        break;
    case ONCE_STALE:
        if (k->fate != FATE_STALE) sim_violation(world, "key %d: stale, and its handler did not say so", note->key);
        break;
    case ONCE_DEAD:
        died(world, k, note->key, note->hung_up);
        reach_dead(world, k);
        break;
    default:
        sim_violation(world, "key %d: outcome %s of an atomic effect", note->key, once_outcome_name(note->outcome));
    }
    k->final = true;
    k->starved = note->outcome == ONCE_DEAD && world->gap_dead && k->behind_gap && !k->orphaned && !k->maybe_done &&
                 k->failures == 0 && k->flight < 0;
    k->behind_gap = false;
    k->outcome = note->outcome;
    if (sim_record_blocks(world, k)) sim_fired(world, SIM_blocked);
    if (natural && note->outcome != ONCE_DEAD) forgotten(k);
}

static void outcome(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const sim_handler *h = handler_of(world, k);
    sim_trace(world, w->index, "FACT:", once_outcome_name(note->outcome), note->key, note->message, ONCE_OK);
    if (!k->open && same_claim(k, note) && k->settled == note->outcome) { /* the reply to that had been lost */
        world->given_up_twice += k->told_missing;
        return;
    }
    if (!k->open && h->natural && note->outcome <= ONCE_STALE) return; /* there is nothing that it could have changed */
    world->given_up += k->missing;
    k->told_missing = k->missing;
    k->missing = 0;
    if (k->final && !h->natural)
        sim_violation(world, "key %d: %s after it was %s", note->key, once_outcome_name(note->outcome),
                      once_outcome_name(k->outcome));
    if (!k->open || k->holder != w->incarnation || !same_claim(k, note))
        sim_violation(world, "key %d: settled by a worker that had lost its claim", note->key);
    if (note->message >= 0) {
        const int variant = world->messages[note->message].variant;
        if (k->winner >= 0 && k->winner != variant) sim_violation(world, "key %d: two contents were let in", note->key);
        k->winner = variant;
    }
    if (h->external) external_outcome(world, w, k, note);
    k->open = false;
    k->settled = note->outcome;
    switch (note->outcome) {
    case ONCE_RETRY: failed(world, k, note); break;
    case ONCE_RELEASE: own(world, k); break;
    case ONCE_UNKNOWN:
        if (!keeps_unknowns(h) && !(flight_of(world, k) && flight_of(world, k)->unwritten))
            sim_violation(world, "key %d: held, and its handler does not hold unknowns", note->key);
        sim_fired(world, SIM_held);
        if (!k->unknown_ms) k->unknown_ms = note->at_ms;
        k->unknown = k->owned = true;
        break;
    default: finished(world, k, note);
    }
}

bool sim_record_conflicts(const sim_world *world, const sim_message *m)
{
    return m->key >= 0 && world->keys[m->key].winner >= 0 && world->keys[m->key].winner != m->variant;
}

/* Its version was settled with other content; by now the lane may be further. */
static bool twin_came_first(const sim_world *world, const sim_key *k)
{
    if (k->twin < 0 || world->keys[k->twin].shift == k->shift) return false;
    const sim_key *twin = &world->keys[k->twin];
    return twin->final &&
           (twin->outcome == ONCE_DONE || twin->outcome == ONCE_ALREADY || twin->outcome == ONCE_REJECTED);
}

bool sim_record_same_conflict(const sim_message *m, const sim_message *other)
{
    return other->conflict && m->key >= 0 && other->key == m->key && other->variant == m->variant;
}

static void letter(sim_world *world, sim_worker *w, const sim_note *note)
{
    sim_message *m = &world->messages[note->message];
    sim_trace(world, w->index, "FACT: a letter,", once_answer_name(note->answer), note->message, m->key, ONCE_OK);
    world->letters++;
    m->letters++;
    const bool conflict = note->answer == ONCE_ANSWER_CONFLICT;
    for (int i = 0; conflict && i < world->messages_n; i++)
        if (sim_record_same_conflict(m, &world->messages[i]))
            sim_violation(world, "messages %d and %d: two letters of one conflict", i, note->message);
    /* Without a key it is known by its coordinates alone. */
    if (!conflict && m->other_letter && world->kind != BROKER_CHANNEL)
        sim_violation(world, "message %d: a second dead letter", note->message);
    *(conflict ? &m->conflict : &m->other_letter) = true;
    if (m->key < 0) return;
    const bool expired = world->timed && world->phase >= PHASE_LATE;
    if (note->answer == ONCE_ANSWER_TOO_OLD && (m->too_old || expired)) return;
    if (note->answer == ONCE_ANSWER_CONFLICT && twin_came_first(world, &world->keys[m->key])) return;
    if (note->answer == ONCE_ANSWER_CONFLICT) { /* the other content was let in, even if nothing of it is fact yet */
        sim_key *k = &world->keys[m->key];
        for (int i = 0; i < world->messages_n; i++)
            if (world->messages[i].key == m->key && world->messages[i].variant != m->variant && k->winner < 0)
                k->winner = world->messages[i].variant;
        if (sim_record_conflicts(world, m)) return;
    }
    sim_violation(world, "message %d: a dead letter (%s) without a reason", note->message,
                  once_answer_name(note->answer));
}

/* It waited behind its twin, and the store ended it when that had settled their version. */
static void judged(sim_world *world, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const bool differs = k->twin >= 0 && world->keys[k->twin].shift != k->shift;
    sim_trace(world, -1, "FACT: settled by its lane,", once_answer_name(note->answer), note->key, -1, ONCE_OK);
    if (k->final) sim_violation(world, "key %d: judged after it was %s", note->key, once_outcome_name(k->outcome));
    if (k->twin < 0 || world->lanes[k->lane].top != k->version || differs != (note->answer == ONCE_ANSWER_CONFLICT))
        sim_violation(world, "key %d: %s by its lane, and is not", note->key, once_answer_name(note->answer));
    k->final = k->judged = true;
    k->outcome = differs ? ONCE_DEAD : ONCE_ALREADY;
    k->letters += differs;
    world->letters += differs;
}

/* The letter of what was replaced: of all messages with that content. */
static void bury_replaced(sim_world *world, const sim_key *k, const sim_note *note)
{
    int first = -1;
    bool buried = false;
    for (int i = world->messages_n - 1; i >= 0; i--) {
        if (world->messages[i].key != note->key || world->messages[i].variant != k->winner) continue;
        first = i;
        buried |= world->messages[i].conflict;
    }
    if (note->fresh == (buried || !k->owned))
        sim_violation(world, "key %d: replaced, %s", note->key,
                      note->fresh ? "and a second letter was written" : "and what the store had of it is gone");
    if (!note->fresh || first < 0) return;
    world->letters++;
    world->messages[first].letters++;
    world->messages[first].conflict = true;
}

/* Other content took its place: nothing may have been done, and nobody may be doing anything. */
static void replaced(sim_world *world, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const int variant = world->messages[note->message].variant;
    sim_trace(world, -1, "FACT: other content takes the place of key", NULL, note->key, note->message, ONCE_OK);
    sim_fired(world, SIM_replaced);
    const char *why = k->winner < 0 || !k->granted  ? "it had not been tried"
                      : k->winner == variant        ? "its content was the same"
                      : k->replaced                 ? "it had been before"
                      : k->replayed                 ? "a person had chosen its content"
                      : k->open || k->unknown       ? "a worker had its claim, or it was unknown"
                      : k->final                    ? "it was over"
                      : k->ever_maybe || k->effects ? "it may have had its effect"
                                                    : NULL;
    if (why) sim_violation(world, "key %d: replaced by message %d, but %s", note->key, note->message, why);
    bury_replaced(world, k, note);
    /* It had become a letter itself, in a commit whose reply was lost: asked again, it ends otherwise, and nobody
     * counts that letter. */
    world->unheard += world->messages[note->message].letters > 0;
    k->winner = variant;
    k->replaced = true;
    k->owned = false; /* with accept, it is in a moment */
    k->failures = k->unreported = 0;
    k->failing_ms = 0;
}

static void owned(sim_world *world, const sim_note *note)
{
    sim_key *k = &world->keys[note->key];
    const int variant = world->messages[note->message].variant;
    if (k->winner >= 0 && k->winner != variant) sim_violation(world, "key %d: two contents were let in", note->key);
    k->winner = variant;
    own(world, k);
}

uint64_t sim_record_waiting(const sim_world *world)
{
    uint64_t n = 0;
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *k = &world->keys[i];
        n += k->owned && !k->final && !k->open && !k->unknown && !sim_record_superseded(world, k);
    }
    return n;
}

void sim_record_moved(sim_world *world, const sim_worker *by)
{
    for (int i = 0; i < world->workers_n; i++)
        if (&world->workers[i] != by) world->workers[i].counted = false;
}

/* Only its source can bring the body of a message that waits without one. */
static bool has_waiting_without_body(const sim_world *world)
{
    for (int i = 0; i < world->keys_n; i++)
        if (world->keys[i].came && !world->keys[i].owned && !world->keys[i].final) return true;
    return false;
}

/* A worker that has asked how much waits in the store, and from then on has itself added all that came, fetches nothing
 * above the bound. */
void sim_record_fetch(sim_worker *w, const once_action *fetch)
{
    const sim_world *world = w->world;
    const uint64_t most = world->spec->waiting_max.messages, waiting = sim_record_waiting(world);
    if (!most || waiting < most || w->store_done) return; /* done: the machine does not know yet what it has added */
    if (fetch->max == 0) sim_fired(w->world, SIM_full);
    else if (w->counted && !fetch->rest && !has_waiting_without_body(world))
        sim_violation(w->world, "worker %d fetches, and knows that %llu messages wait in the store; %llu may", w->index,
                      (unsigned long long)waiting, (unsigned long long)most);
}

void sim_notes_commit(sim_worker *worker)
{
    sim_world *world = worker->world;
    if (worker->notes_n) sim_record_moved(world, worker);
    for (size_t i = 0; i < worker->notes_n; i++) {
        const sim_note *note = &worker->notes[i];
        switch (note->what) {
        case NOTE_GRANT: grant(world, worker, note); break;
        case NOTE_ASKED: asked(world, worker, note); break;
        case NOTE_EXTENDED: extended(world, note); break;
        case NOTE_EFFECT: effect(world, worker, note); break;
        case NOTE_THEN: then(world, worker, note); break;
        case NOTE_OUTCOME: outcome(world, worker, note); break;
        case NOTE_OWNED: owned(world, note); break;
        case NOTE_LETTER: letter(world, worker, note); break;
        case NOTE_JUDGED: judged(world, note); break;
        case NOTE_REPLACED: replaced(world, note); break;
        }
    }
    worker->notes_n = 0;
}

/* --- persons --- */

/* A person decided: everything begins anew, but for the effects that there were. */
void sim_record_replay(sim_world *world, int key)
{
    sim_record_moved(world, NULL);
    sim_key *k = &world->keys[key];
    sim_trace(world, -1, "an operator replays key", NULL, key, -1, ONCE_OK);
    if (!k->final || k->outcome != ONCE_DEAD)
        sim_violation(world, "key %d: a dead letter of a key that is not dead", key);
    k->final = k->judged = k->starved = false;
    k->owned = k->replayed = true;
    k->failures = k->unreported = k->letters = k->kills = 0;
    k->failing_ms = 0;
    k->pardons += k->maybe_done;
    k->token = (once_token){0};
}

void sim_record_discard(sim_world *world, int key)
{
    sim_record_moved(world, NULL);
    sim_key *k = &world->keys[key];
    sim_trace(world, -1, "an operator discards key", NULL, key, -1, ONCE_OK);
    if (!k->final || k->outcome != ONCE_DEAD)
        sim_violation(world, "key %d: a dead letter of a key that is not dead", key);
    k->outcome = ONCE_REJECTED;
    k->token = (once_token){0};
    if (handler_of(world, k)->natural) forgotten(k);
    if (!k->starved) advance_by_hand(world, k);
}

/* Settled as unknown, or claimed by somebody whose lease is over. */
bool sim_record_is_held(const sim_world *world, const sim_key *k)
{
    if (k->unknown) return true;
    return keeps_unknowns(handler_of(world, k)) && k->open && may_be_over(world, k, world->now_ms);
}

bool sim_record_is_left(const sim_world *world, const sim_key *k)
{
    return sim_record_is_held(world, k) && (!handler_of(world, k)->asks || (k->unknown && k->given_up && !k->asking));
}

void sim_record_resolve(sim_world *world, int key, once_outcome verdict)
{
    sim_record_moved(world, NULL);
    sim_key *k = &world->keys[key];
    sim_trace(world, -1, "an operator resolves:", once_outcome_name(verdict), key, -1, ONCE_OK);
    if (!sim_record_is_held(world, k))
        sim_violation(world, "key %d: the store holds it as unknown, and it is not", key);
    if (k->final) sim_violation(world, "key %d: unknown after it was %s", key, once_outcome_name(k->outcome));
    for (size_t i = world->flights_from; i < world->flights_n;
         i++) /* whoever was late with it cannot know that a person has decided */
        if (world->flights[i].key == key && world->flights[i].air) world->flights[i].excused = true;
    k->unknown = k->open = k->asking = false;
    k->resolved_ms = world->now_ms;
    k->maybe_done = k->ever_maybe = true;
    k->final = verdict != ONCE_RETRY;
    k->outcome = verdict;
    k->settled = verdict;
    k->missing = 0;             /* a person has settled it, and does not count */
    if (verdict == ONCE_DEAD) { /* the token stays: whoever had the claim and says the same is right */
        k->letters++;
        reach_dead(world, k);
        return;
    }
    k->token = (once_token){0};
    if (verdict == ONCE_DONE) {
        advance_by_hand(world, k);
    } else {
        k->failures = k->unreported = 0;
        k->failing_ms = 0;
        k->pardons++;
    }
}

bool sim_record_busy(const sim_world *world)
{
    for (int i = 0; i < world->keys_n; i++)
        if (world->keys[i].open && !world->keys[i].excused && !world->keys[i].dropped) return true;
    return false;
}

bool sim_record_held(const sim_world *world)
{
    for (int i = 0; i < world->keys_n; i++)
        if (sim_record_is_held(world, &world->keys[i])) return true;
    return false;
}

/* --- workers --- */

size_t sim_record_claimed(const sim_worker *w, int handler, int but)
{
    const sim_world *world = w->world;
    size_t n = 0;
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *k = &world->keys[i];
        if (i == but || k->handler != handler) continue;
        bool has = sim_record_own(w, i) && k->flight < 0;
        for (size_t j = 0; j < w->notes_n; j++) {
            if (w->notes[j].key != i) continue;
            if (w->notes[j].what == NOTE_GRANT) has = sim_flights_landed(world, w->notes[j].token) < 0;
            if (w->notes[j].what == NOTE_OUTCOME) has = false;
        }
        n += has;
    }
    return n;
}

/* What was taken is counted in the transaction that comes after it, and what is put back unbegun is counted back. Where
 * it is not known whether that happened before, the machine rather counts twice. */
void sim_record_commit_failed(sim_worker *w)
{
    sim_world *world = w->world;
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *k = &world->keys[i];
        world->counted_twice += k->holder == w->incarnation && k->told_now;
    }
}

bool sim_record_own(const sim_worker *w, int key)
{
    const sim_key *k = &w->world->keys[key];
    return k->open && k->holder == w->incarnation && k->known && !k->dropped;
}

void sim_record_dropped(sim_worker *w, const once_request *request)
{
    sim_key *k = &w->world->keys[sim_key_of(w->world, request)];
    if (once_hash_equal(k->token, request->token)) k->dropped = true;
}

void sim_record_ended(sim_worker *w, const once_request *request)
{
    sim_world *world = w->world;
    const int key = sim_key_of(world, request);
    sim_key *k = &world->keys[key];
    if (!k->open || !once_hash_equal(k->token, request->token)) {
        sim_violation(world, "key %d: a claim was ended that does not exist", key);
        return;
    }
    if (!sim_worker_gone(world, k->holder))
        sim_violation(world, "key %d: the claim of a worker that lives was ended by another", key);
    if (!world->contained) sim_violation(world, "key %d: its claim was ended, but its effect may still run", key);
    k->lapsed = true;
    sim_fired(world, SIM_taken_over);
}

void sim_record_lapsed(sim_worker *w, const once_request *request)
{
    sim_world *world = w->world;
    const int key = sim_key_of(world, request);
    const sim_key *k = &world->keys[key];
    if (!k->open || !once_hash_equal(k->token, request->token))
        sim_violation(world, "key %d: a claim ran out that does not exist", key);
    if (!keeps_unknowns(handler_of(world, k)))
        sim_violation(world, "key %d: became unknown, and its handler does not hold unknowns", key);
    if (!may_be_over(world, k, world->now_ms))
        sim_violation(world, "key %d: became unknown before its lease was over", key);
    world->keys[key].unknown_ms = world->now_ms;
}

void sim_record_excuse(sim_worker *worker)
{
    sim_world *world = worker->world;
    for (int i = 0; i < world->keys_n; i++) {
        sim_key *k = &world->keys[i];
        if (!k->open || k->excused || k->holder != worker->incarnation) continue;
        k->excused = true;
        k->unreported += !k->asking;
    }
}
