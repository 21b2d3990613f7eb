/* Handlers that do not work for a while: no effect of theirs can be used, all fail, or all messages die for one reason.
 * A worker that was told so must hold the handler up: one message at a time may try it, after a pause. */
#include <string.h>

#include "sim.h"

#define ANSWERED_MS 1000   /* so long an answer keeps a breaker shut */
#define PAUSE_LEAST_MS 450 /* before the first probe, which comes after half a second at the earliest */

const char *sim_reason_of(int key)
{
    static const char *const reasons[] = {"simulated a", "simulated b", "simulated c", "simulated d", "simulated e",
                                          "simulated f", "simulated g", "simulated h", "simulated i", "simulated j",
                                          "simulated k", "simulated l", "simulated m", "simulated n", "simulated o",
                                          "simulated p", "simulated q", "simulated r", "simulated s", "simulated t",
                                          "simulated u", "simulated v", "simulated w", "simulated x", "simulated y"};
    return reasons[(size_t)key % (sizeof reasons / sizeof *reasons)];
}

/* Troubles end with the other faults. */
int sim_trouble_of(sim_world *world, int handler)
{
    sim_handler *h = &world->handlers[handler];
    static const sim_fault troubles[] = {SIM_no_use, SIM_outage_of_handler, SIM_storm};
    if (world->now_ms < h->trouble_until_ms) return h->trouble;
    for (size_t i = 0; i < (h->external ? 3 : 1); i++) {
        if (!sim_fires(world, troubles[i])) continue;
        if (!h->external) sim_fired(world, SIM_no_use_inside);
        h->trouble = (int)troubles[i];
        h->trouble_until_ms = world->now_ms + 1000 + (int64_t)sim_random(world, 30000);
        return h->trouble;
    }
    return 0;
}

bool sim_no_then(sim_world *world, int handler)
{
    sim_handler *h = &world->handlers[handler];
    if (world->now_ms < h->no_then_until_ms) return true;
    if (!sim_fires(world, SIM_no_then)) return false;
    h->no_then_until_ms = world->now_ms + 1000 + (int64_t)sim_random(world, 30000);
    return true;
}

/* Effects that have happened in this worker, and whose `then` waits. */
static size_t unwritten_of(const sim_worker *w, int handler)
{
    size_t n = 0;
    for (size_t i = w->world->flights_from; i < w->world->flights_n; i++) {
        const sim_flight *f = &w->world->flights[i];
        const sim_key *k = &w->world->keys[f->key];
        n += f->then_waits && k->handler == handler && k->open && k->holder == w->incarnation && k->flight == (int)i;
    }
    return n;
}

static void hold(sim_worker *w, sim_told *told)
{
    if (told->held) return;
    sim_fired(w->world, SIM_held_up);
    told->held = true;
    told->held_ms = w->world->now_ms;
}

static void forget(sim_worker *w, sim_told *told)
{
    if (told->held) sim_fired(w->world, SIM_unheld);
    *told = (sim_told){.held_ms = told->held_ms, .answered_ms = told->answered_ms};
}

/* Enough failures in a row, close enough to each other, and no answer shortly before: a row may be of one moment. */
static bool fails_too_often(sim_told *told, int64_t now_ms)
{
    told->when[told->failures++ % SIM_HELD_AFTER] = now_ms;
    const int64_t oldest_ms = told->when[told->failures % SIM_HELD_AFTER];
    return told->failures >= SIM_HELD_AFTER && now_ms - oldest_ms <= SIM_HELD_WITHIN_MS &&
           now_ms - told->answered_ms > ANSWERED_MS;
}

static void told_failure(sim_worker *w, sim_told *told)
{
    told->letters = 0;
    if (fails_too_often(told, w->world->now_ms)) hold(w, told);
    else if (told->held && told->failures < SIM_HELD_AFTER) forget(w, told); /* it was held for another reason */
}

/* True: it must not be written. */
static bool told_letter(sim_worker *w, sim_told *told)
{
    told->failures = 0;
    if (++told->letters < SIM_HELD_AFTER) {
        if (told->held) forget(w, told);
        return false;
    }
    hold(w, told);
    return true;
}

/* It says less than the machine knows: after anything that may have opened the gate, the worker is free again. What was
 * under way when the handler was held up last tells nothing new. */
void sim_held_told(sim_worker *w, sim_flight *f, const once_item *item)
{
    sim_told *told = &w->heard[w->world->keys[f->key].handler];
    const once_outcome outcome = f->question && item->outcome == ONCE_RETRY ? ONCE_DONE : item->outcome;
    const bool old = f->started_ms < told->held_ms, failed = outcome == ONCE_RETRY || outcome == ONCE_UNKNOWN;
    if (item->run_failure != ONCE_OK) {
        const bool pause = once_status_class(item->run_failure) == ONCE_CLASS_PAUSE;
        told->failures = told->letters = 0;
        if (!pause) forget(w, told);
        if (!pause)
            told->held_ms = w->world->now_ms; /* the effects cannot be started: it is held up for another reason */
        else if (!old) hold(w, told);
        return;
    }
    if (!item->started || f->told) return;
    if (!failed) told->answered_ms = w->world->now_ms;
    if (outcome == ONCE_RELEASE) told->failures = 0;
    else if (failed && !old) told_failure(w, told);
    else if (f->storm && !f->question && !old) f->spared = told_letter(w, told);
    else if (!old || !failed) forget(w, told);
}

/* The machine knows of letters that were not in a row: it may have been held up for long. */
void sim_held_spared(sim_worker *w, int handler)
{
    sim_told *told = &w->heard[handler];
    if (!told->held) told->held_ms = w->world->now_ms;
}

void sim_held_start(sim_worker *w, int key)
{
    sim_world *world = w->world;
    const int handler = world->keys[key].handler;
    const sim_told *told = &w->heard[handler];
    if (unwritten_of(w, handler) >= world->handlers[handler].slots)
        sim_violation(world, "key %d: begins, and nothing can be written about the effects before it", key);
    if (!told->held) return;
    sim_fired(world, SIM_probed);
    if (world->now_ms - told->held_ms < PAUSE_LEAST_MS)
        sim_violation(world, "key %d: began %lld ms after its handler had to be held up", key,
                      (long long)(world->now_ms - told->held_ms));
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *f = &world->flights[i];
        if (f->air && f->incarnation == w->incarnation && world->keys[f->key].handler == handler &&
            f->started_ms >= told->held_ms)
            sim_violation(world, "key %d: began beside key %d, and their handler is held up", key, f->key);
    }
}
