/* External effects. Each happens at a moment of its own, while everything else goes on; its worker receives the outcome
 * later, or never. The other side ignores idempotency keys: an effect that is started twice may happen twice. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const sim_handler *handler_of(const sim_world *world, const sim_flight *f)
{
    return &world->handlers[world->keys[f->key].handler];
}

size_t sim_flights_air(const sim_worker *w, int handler)
{
    const sim_world *world = w->world;
    size_t n = 0;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *f = &world->flights[i];
        n += f->air && f->incarnation == w->incarnation && (handler < 0 || world->keys[f->key].handler == handler);
    }
    return n;
}

int sim_flights_landed(const sim_world *world, once_token token)
{
    for (size_t i = world->flights_n; i > 0; i--) {
        const sim_flight *f = &world->flights[i - 1];
        if (f->unclaimed && !f->air && once_hash_equal(f->token, token)) return (int)i - 1;
    }
    return -1;
}

/* --- what happens by itself --- */

static void happen(sim_world *world, sim_flight *f)
{
    const sim_key *k = &world->keys[f->key];
    f->happens_ms = ONCE_NEVER;
    if (world->ops[k->op] && world->op_keys[k->op] != f->key) { /* the business knows its own duplicates */
        if (f->said == ONCE_DONE) f->said = ONCE_ALREADY;
        return;
    }
    sim_record_effect(world, f);
}

void sim_flights_tick(sim_world *world)
{
    while (world->flights_from < world->flights_n && !world->flights[world->flights_from].air &&
           world->flights[world->flights_from].happens_ms == ONCE_NEVER)
        world->flights_from++;
    for (size_t i = world->flights_from; i < world->flights_n; i++)
        if (world->flights[i].happens_ms <= world->now_ms) happen(world, &world->flights[i]);
}

void sim_flights_finish(sim_world *world)
{
    for (size_t i = world->flights_from; i < world->flights_n; i++)
        if (world->flights[i].happens_ms != ONCE_NEVER) happen(world, &world->flights[i]);
}

int64_t sim_flights_next_ms(const sim_world *world)
{
    int64_t next_ms = ONCE_NEVER;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        const sim_flight *f = &world->flights[i];
        if (f->happens_ms < next_ms) next_ms = f->happens_ms;
        if (f->air && world->workers[f->worker].state == UP && f->ends_ms < next_ms) next_ms = f->ends_ms;
    }
    return next_ms;
}

/* --- start --- */

static once_outcome answer_of(const sim_key *k)
{
    switch (k->fate) {
    case FATE_FAILS: return k->failures < k->fails ? ONCE_RETRY : ONCE_DONE;
    case FATE_POISON: return ONCE_RETRY;
    case FATE_REJECTED: return ONCE_REJECTED;
    case FATE_STALE: return ONCE_STALE;
    case FATE_DEAD: return ONCE_DEAD;
    case FATE_KILLER: return ONCE_UNKNOWN;
    default: return ONCE_DONE;
    }
}

static int64_t choose_length(sim_world *world)
{
    const uint64_t lease_ms = (uint64_t)world->lease_ms, kind = sim_random(world, 100);
    if (kind < 60) return (int64_t)sim_random(world, 30);
    if (kind < 94) return (int64_t)sim_random(world, lease_ms / 3);
    sim_fired(world, SIM_long_effect);
    return world->lease_ms + (int64_t)sim_random(world, 2 * lease_ms);
}

static void plan(sim_worker *w, sim_flight *f)
{
    sim_world *world = w->world;
    const sim_key *k = &world->keys[f->key];
    const int64_t now_ms = world->now_ms, length_ms = choose_length(world);
    f->began_ms = now_ms + (sim_chance(world, 10) ? 1 + (int64_t)sim_random(world, 30) : 0);
    f->ends_ms = f->began_ms + length_ms;
    f->happens_ms = ONCE_NEVER;
    f->said = answer_of(k);
    if (w->no_start_until_ms > now_ms || sim_fires(world, SIM_no_start)) {
        if (w->no_start_until_ms <= now_ms) w->no_start_until_ms = now_ms + (int64_t)sim_random(world, 2000);
        f->began_ms = ONCE_NEVER; /* it never does */
        f->ends_ms = now_ms;
        f->said = ONCE_RELEASE;
        return;
    }
    const int trouble = sim_trouble_of(world, k->handler);
    if (trouble) {
        f->no_use = trouble == SIM_no_use;
        f->storm = trouble == SIM_storm;
        f->said = f->no_use ? ONCE_RELEASE : f->storm ? ONCE_DEAD : ONCE_RETRY;
        return;
    }
    if (sim_fires(world, SIM_outage)) {
        f->away = true;
        f->said = ONCE_RELEASE;
        return;
    }
    const bool works = f->said == ONCE_DONE || (f->said == ONCE_UNKNOWN && sim_chance(world, 50));
    if (works) f->happens_ms = f->began_ms + (int64_t)sim_random(world, (uint64_t)length_ms + 1);
    if (!sim_fires(world, SIM_reply_lost)) return;
    f->said = ONCE_UNKNOWN;
    if (sim_chance(world, 40)) f->happens_ms = ONCE_NEVER;
    else if (works && sim_chance(world, 20)) { /* the other side got it and takes its time */
        f->happens_ms = f->ends_ms + (int64_t)sim_random(world, 5000);
        f->excused = true;
    }
}

/* It asks, and nothing else. */
static void plan_question(sim_worker *w, sim_flight *f)
{
    const int64_t now_ms = w->world->now_ms;
    f->began_ms = now_ms;
    f->happens_ms = ONCE_NEVER;
    f->ends_ms = now_ms + choose_length(w->world);
    f->said = ONCE_UNKNOWN;
    if (w->no_start_until_ms <= now_ms) return;
    f->began_ms = ONCE_NEVER;
    f->ends_ms = now_ms;
    f->said = ONCE_RELEASE;
}

/* What the other side knows of the key. It does not know of what has not reached it, but of what it is at it says so.
 */
static once_outcome know(sim_world *world, const sim_flight *f)
{
    if (f->said == ONCE_RELEASE || f->kill || f->told || sim_chance(world, 25)) return ONCE_UNKNOWN;
    if (world->keys[f->key].effects) return f->key % 5 ? ONCE_DONE : ONCE_ALREADY;
    for (size_t i = world->flights_from; i < world->flights_n; i++)
        if (world->flights[i].key == f->key && world->flights[i].happens_ms != ONCE_NEVER) return ONCE_UNKNOWN;
    return ONCE_RETRY;
}

static void report_answer(sim_worker *w, sim_flight *f)
{
    f->answer = know(w->world, f);
    if (f->item->started) f->item->outcome = f->answer;
    if (f->key % 3 == 0) f->item->delay_ms = 3000; /* it says when to come again; the draws are left as they are */
    sim_fired(w->world, f->answer == ONCE_UNKNOWN ? SIM_asked_in_vain
                        : f->answer == ONCE_RETRY ? SIM_asked_absent
                                                  : SIM_asked_done);
    sim_trace(w->world, w->index, "  asked about key, it says", once_outcome_name(f->answer), f->key, f->message,
              ONCE_OK);
}

static void start(sim_worker *w, once_item *item)
{
    sim_world *world = w->world;
    if (world->flights_n == world->flights_size) {
        world->flights_size = world->flights_size ? 2 * world->flights_size : 64;
        world->flights = realloc(world->flights, world->flights_size * sizeof *world->flights);
        if (!world->flights) abort();
    }
    const int key = sim_key_of(world, &item->request), message = sim_message_of(world, &item->message);
    const sim_message *m = &world->messages[message];
    const once_bytes body = item->message.body;
    if (m->key != key || body.len != m->body.len || memcmp(body.data, m->body.data, body.len) != 0)
        sim_violation(world, "message %d: its effect got other content or another key (key %d)", message, key);
    const sim_handler *handler = &world->handlers[world->keys[key].handler];
    const size_t air = sim_flights_air(w, world->keys[key].handler);
    if (!handler->external)
        sim_violation(world, "key %d: an atomic effect was started outside of its transaction", key);
    if (air >= handler->slots)
        sim_violation(world, "worker %d: %zu effects under way, and another one is started", w->index, air);

    sim_held_start(w, key);
    sim_flight *f = &world->flights[world->flights_n++];
    *f = (sim_flight){.key = key,
                      .message = message,
                      .worker = w->index,
                      .incarnation = w->incarnation,
                      .started_ms = world->now_ms,
                      .item = item,
                      .token = item->request.token,
                      .question = item->decision.asks,
                      .unclaimed = item->unclaimed,
                      .air = true};
    if (handler->processes) f->process = (uint32_t)sim_random(world, handler->processes);
    f->then_fails = handler->then && sim_fires(world, SIM_then_fails);
    f->then_rolls_back = handler->then && world->result->seed % 4 == 1 && key % 4 == 1; /* draws are left as they are */
    if (f->question) plan_question(w, f);
    else plan(w, f);
    sim_trace(world, w->index, f->question ? "  asks about key" : "  starts key", NULL, key, message, ONCE_OK);
    if (f->question) sim_record_ask(world, f);
    else if (f->unclaimed) sim_record_start_unclaimed(world, f);
    else sim_record_start(world, f);
    if (once_hash_equal(world->keys[key].token, f->token)) world->keys[key].flight = (int)(f - world->flights);
}

/* --- the end --- */

static void report(sim_worker *w, sim_flight *f)
{
    sim_world *world = w->world;
    static const int troubles[] = {ONCE_E_UNAVAILABLE, ONCE_E_NOMEM, ONCE_E_DENIED};
    once_item *item = f->item;
    const bool trouble = f->said == ONCE_RELEASE && !f->kill && !f->away && !f->no_use;
    sim_trace(world, w->index, "  effect of key says", once_outcome_name(f->said), f->key, f->message, ONCE_OK);
    item->output = strdup(f->storm ? "storm" : f->no_use ? "nothing works" : sim_reason_of(f->key));
    if (!item->output) abort();
    const once_bytes text = {item->output, strlen(item->output)};
    item->outcome = f->said;
    item->result = f->said <= ONCE_STALE ? text : (once_bytes){0};
    item->failure = f->said == ONCE_DONE ? (once_bytes){0} : text;
    item->delay_ms = f->said == ONCE_RETRY && sim_chance(world, 20) ? (int64_t)sim_random(world, 3000) : -1;
    item->maybe_done = f->said == ONCE_UNKNOWN;
    item->started = f->said != ONCE_RELEASE || f->away;
    if (f->question) report_answer(w, f);
    item->run_failure = trouble ? troubles[sim_random(world, world->finite ? 2 : 3)] : ONCE_OK;
    if (f->no_use && f->said == ONCE_RELEASE && !f->kill) item->run_failure = ONCE_E_MISSING;
    sim_held_told(w, f, item);
    if (f->unclaimed && f->said <= ONCE_STALE) sim_record_passed(world, f);
    f->item = NULL;
    f->air = false;
}

/* A stop waits for a while, then whoever can be ended is. */
static void check_drained(sim_worker *w, const sim_flight *f)
{
    sim_world *world = w->world;
    const int64_t latest_ms = w->stop_ms + world->spec->drain_ms + world->lease_ms / 4;
    const bool late = world->now_ms > latest_ms && f->began_ms < latest_ms && w->trouble_ms < w->stop_ms;
    if (w->stopping && late && handler_of(world, f)->killable && !f->kill)
        sim_violation(world, "key %d: its effect goes on %lld ms after its worker was told to stop", f->key,
                      (long long)(world->now_ms - w->stop_ms));
}

/* True: something was reported. */
static bool report_ended(sim_worker *w)
{
    sim_world *world = w->world;
    once_item *items[64];
    size_t n = 0;
    for (size_t i = world->flights_from; i < world->flights_n && n < sizeof items / sizeof *items; i++) {
        sim_flight *f = &world->flights[i];
        if (!f->air || f->incarnation != w->incarnation || f->ends_ms > world->now_ms) continue;
        check_drained(w, f);
        if (n > 0 && sim_chance(world, 30)) continue; /* in any order */
        if (f->happens_ms <= world->now_ms) happen(world, f);
        items[n++] = f->item;
        report(w, f);
    }
    if (n == 0) return false;
    once_machine_finished(w->machine, items, n, world->now_ms);
    sim_worker_watch(w);
    return true;
}

/* Dies with what it has begun. */
static void handler_dies(sim_worker *w, const sim_flight *with)
{
    sim_world *world = w->world;
    const int handler = world->keys[with->key].handler;
    sim_trace(world, w->index, "a handler's process dies:", NULL, handler, with->process, ONCE_OK);
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        sim_flight *f = &world->flights[i];
        if (!f->air || f->incarnation != w->incarnation || f->process != with->process) continue;
        if (world->keys[f->key].handler != handler || f->began_ms > world->now_ms || f->ends_ms <= world->now_ms)
            continue;
        f->said = ONCE_UNKNOWN;
        f->ends_ms = world->now_ms;
        f->happens_ms = f->happens_ms != ONCE_NEVER && sim_chance(world, 50) ? world->now_ms : ONCE_NEVER;
    }
}

static void kill_flight(sim_worker *w, const once_item *item)
{
    sim_world *world = w->world;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        sim_flight *f = &world->flights[i];
        if (!f->air || f->incarnation != w->incarnation || f->item != item) continue;
        const sim_key *k = &world->keys[f->key];
        const bool own = once_hash_equal(k->token, f->token) && !k->dropped;
        const bool healthy =
            once_machine_status(w->machine, NULL) == ONCE_OK && w->trouble_ms + world->lease_ms < world->now_ms;
        sim_trace(world, w->index, "  must end: key", NULL, f->key, f->message, ONCE_OK);
        sim_fired(world, SIM_killed);
        if (own && healthy && !w->stopping)
            sim_violation(world,
                          "key %d: its effect was told to end, and nothing kept its worker from extending the lease",
                          f->key);
        f->told = true;
        if (!handler_of(world, f)->killable || f->ends_ms <= world->now_ms) return;
        f->kill = true;
        if (f->began_ms > world->now_ms) {
            f->said = ONCE_RELEASE;
            f->away = false;
            f->ends_ms = world->now_ms;
            f->happens_ms = ONCE_NEVER;
            return;
        }
        const int64_t dead_ms = world->now_ms + (int64_t)sim_random(world, 20);
        f->said = ONCE_UNKNOWN;
        if (dead_ms < f->ends_ms) f->ends_ms = dead_ms;
        if (f->happens_ms > dead_ms) f->happens_ms = ONCE_NEVER;
        return;
    }
    sim_violation(world, "worker %d: an effect was told to end that is not running", w->index);
}

static void carry_out(sim_worker *w, once_action *action)
{
    for (size_t i = 0; i < action->n; i++) {
        if (action->kind == ONCE_ACT_START) start(w, action->items[i]);
        else kill_flight(w, action->items[i]);
    }
    action->status = ONCE_OK;
}

/* Whoever waits for an effect gives the world a chance to do something to it. */
static bool misfortune_in_flight(sim_worker *w)
{
    sim_world *world = w->world;
    if (sim_flights_air(w, -1) == 0) return false;
    if (sim_fires(world, SIM_crash_in_flight)) {
        sim_worker_die(w);
        return true;
    }
    size_t which = sim_random(world, world->flights_n);
    const sim_flight *f = &world->flights[which];
    if (f->air && f->incarnation == w->incarnation && handler_of(world, f)->processes && f->began_ms <= world->now_ms &&
        sim_fires(world, SIM_handler_dies))
        handler_dies(w, f);
    return false;
}

bool sim_flights_act(sim_worker *w)
{
    sim_world *world = w->world;
    if (!w->effect_action) {
        w->effect_action = once_machine_effect_action(w->machine, world->now_ms);
        if (!w->effect_action) return misfortune_in_flight(w) || report_ended(w);
        for (size_t i = 0; w->effect_action->kind == ONCE_ACT_START && i < w->effect_action->n; i++) {
            const once_item *item = w->effect_action->items[i];
            const sim_key *k = &world->keys[sim_key_of(world, &item->request)];
            if (once_hash_equal(k->token, item->request.token) && k->granted_ms + world->lease_ms < world->now_ms)
                sim_violation(world, "key %d: is to be started, and its lease is over", (int)(k - world->keys));
        }
    }
    if (sim_worker_misfortune(w)) return true;
    once_action *action = w->effect_action;
    if (!w->effect_done) {
        carry_out(w, action);
        w->effect_done = true;
        if (sim_worker_carried_out(w, action)) return true;
    }
    w->effect_action = NULL;
    w->effect_done = false;
    sim_worker_step(w, action);
    return true;
}

/* --- their worker --- */

void sim_flights_paused(sim_worker *w, int64_t ms)
{
    sim_world *world = w->world;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        sim_flight *f = &world->flights[i];
        if (!f->air || f->incarnation != w->incarnation) continue;
        if (f->ends_ms <= world->now_ms || sim_chance(world, 50)) continue; /* it goes on alone */
        f->ends_ms += ms;
        if (f->began_ms != ONCE_NEVER && f->began_ms > world->now_ms) f->began_ms += ms;
        if (f->happens_ms != ONCE_NEVER) f->happens_ms += ms;
    }
}

void sim_flights_excuse(sim_worker *w)
{
    for (size_t i = w->world->flights_from; i < w->world->flights_n; i++) {
        sim_flight *f = &w->world->flights[i];
        if (f->air && f->incarnation == w->incarnation) f->excused = true;
    }
}

void sim_flights_gone(sim_worker *w)
{
    sim_world *world = w->world;
    for (size_t i = world->flights_from; i < world->flights_n; i++) {
        sim_flight *f = &world->flights[i];
        if (!f->air || f->incarnation != w->incarnation) continue;
        f->air = false;
        f->item = NULL;
        f->excused = true;
        if (f->happens_ms == ONCE_NEVER) continue;
        if (sim_chance(world, 50)) {
            f->happens_ms = ONCE_NEVER;
        } else {
            f->happens_ms = world->now_ms + (int64_t)sim_random(world, 3 * (uint64_t)world->lease_ms);
            sim_fired(world, SIM_late_effect);
        }
    }
}
