/* One worker process: the machine, its executors, its atomic effects. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/machine_impl.h"
#include "core/plant.h"
#include "sim.h"

#define RENEW_MS 2000

/* --- effects --- */

static int prepare(const once_handler_spec *handler, const once_parsed *from, once_arena *arena, void **input,
                   once_error *err)
{
    (void)handler, (void)from, (void)arena, (void)err;
    static char something;
    *input = &something;
    return ONCE_OK;
}

static bool op_has_effect(const sim_worker *w, int op)
{
    if (w->world->ops[op]) return true;
    for (size_t i = 0; i < w->notes_n; i++)
        if (w->notes[i].what == NOTE_EFFECT && w->world->keys[w->notes[i].key].op == op) return true;
    return false;
}

static once_outcome outcome_of(const sim_worker *w, const sim_key *k)
{
    switch (k->fate) {
    case FATE_FAILS:
        if (k->failures < k->fails) return ONCE_RETRY;
        break;
    case FATE_POISON: return ONCE_RETRY;
    case FATE_REJECTED: return ONCE_REJECTED;
    case FATE_STALE: return ONCE_STALE;
    case FATE_DEAD: return ONCE_DEAD;
    default: break;
    }
    return op_has_effect(w, k->op) ? ONCE_ALREADY : ONCE_DONE;
}

/* The external effect that the item is back from; NULL: it is too long ago. */
static sim_flight *flight_of(const sim_world *world, int key, const once_item *item)
{
    for (size_t i = world->flights_n; i > 0; i--) {
        sim_flight *f = &world->flights[i - 1];
        if (f->key == key && once_hash_equal(f->token, item->request.token)) return f;
    }
    return NULL;
}

/* What is written with the outcome of an external effect, which is done. */
static once_outcome outcome_of_then(const sim_world *world, int key, const once_item *item)
{
    const sim_flight *f = flight_of(world, key, item);
    return f && f->then_fails ? ONCE_RETRY : ONCE_DONE;
}

static bool then_rolls_back(sim_worker *w, int key, once_item *item, bool careful)
{
    enum { MANY = 15 };
    sim_flight *f = item->returned ? flight_of(w->world, key, item) : NULL;
    if (!f || !f->then_rolls_back) return false;
    if (++f->rolled_back == MANY)
        sim_violation(w->world, "key %d: its `then` was rolled back %d times, and it is tried again", key, MANY);
    sim_fired(w->world, SIM_then_rolled_back);
    sim_record_then(w, key, false);
    item->suspect = careful;
    return true;
}

/* Nothing of its handler can be written. */
static bool then_waits(sim_worker *w, int key, once_item *item)
{
    sim_flight *f = flight_of(w->world, key, item);
    const bool waits = sim_no_then(w->world, w->world->keys[key].handler);
    if (f) f->then_waits = waits;
    if (!waits) return false;
    item->outcome = ONCE_RELEASE;
    item->run_failure = ONCE_E_SCHEMA;
    item->failure = ONCE_BYTES("cannot be written");
    sim_record_then(w, key, false);
    return true;
}

static int die_here(sim_worker *w, sim_fault fault)
{
    w->killed = true;
    if (fault == SIM_killer) sim_fired(w->world, fault);
    return ONCE_E_UNAVAILABLE; /* nobody is there to read it */
}

/* As once_effects_run. */
static int run_effects(void *user, once_item *const *items, size_t n, bool careful, bool blame, once_arena *arena,
                       bool *failed, once_error *err)
{
    (void)arena;
    sim_worker *w = user;
    sim_world *world = w->world;
    if (w->tx_lost) return once_fail(err, ONCE_E_UNAVAILABLE, "simulated: the store is down");
    for (size_t i = 0; i < n; i++) {
        once_item *item = items[i];
        const int message = sim_message_of(world, &item->message), key = sim_key_of(world, &item->request);
        const sim_message *m = &world->messages[message];
        sim_key *k = &world->keys[key];
        const once_bytes body = item->message.body;
        if (m->key != key || body.len != m->body.len || memcmp(body.data, m->body.data, body.len) != 0)
            sim_violation(world, "message %d: its effect got other content or another key (key %d)", message, key);
        if (sim_fires(world, SIM_crash_in_effects)) return die_here(w, SIM_crash_in_effects);
        if (k->fate == FATE_KILLER && !item->returned) {
            sim_trace(world, w->index, "is killed by key", NULL, key, message, ONCE_OK);
            if (++k->kills > world->attempts + world->clean_starts + 2 * (uint32_t)world->messages_n)
                sim_violation(world, "key %d: killed %u workers, and is still tried", key, k->kills);
            return die_here(w, SIM_killer);
        }
        if (sim_fires(world, SIM_effects_fail)) return once_fail(err, ONCE_E_ABORTED, "simulated");
        if (then_rolls_back(w, key, item, careful)) return once_fail(err, ONCE_E_ABORTED, "simulated: rolled back");
        if (item->returned && then_waits(w, key, item)) {
            sim_trace(world, w->index, "  cannot write:", NULL, key, message, ONCE_OK);
            if (careful) continue;
            *failed = true;
            return ONCE_OK;
        }
        if (!item->returned && sim_trouble_of(world, k->handler)) {
            item->outcome = ONCE_RELEASE;
            item->run_failure = ONCE_E_SCHEMA;
            item->failure = ONCE_BYTES("nothing works");
            sim_trace(world, w->index, "  no use:", NULL, key, message, ONCE_OK);
            if (careful) continue;
            *failed = true;
            return ONCE_OK;
        }
        item->run_failure = ONCE_OK;
        item->outcome = item->returned ? outcome_of_then(world, key, item) : outcome_of(w, k);
        if (blame && n > 1)
            sim_violation(world, "key %d: a rollback would count, and it is not alone in its transaction", key);
        if (k->rolls_back && !blame && item->outcome == ONCE_RETRY && !item->returned) {
            item->suspect = careful;
            return once_fail(err, ONCE_E_ABORTED, "simulated: rolled back");
        }
        item->result = ONCE_BYTES("fine");
        const char *reason = sim_reason_of(key);
        item->failure = item->outcome == ONCE_DONE ? (once_bytes){0} : (once_bytes){reason, strlen(reason)};
        sim_trace(world, w->index, careful ? "  runs carefully:" : "  runs:", once_outcome_name(item->outcome), key,
                  message, ONCE_OK);
        if (item->returned) sim_record_then(w, key, item->outcome == ONCE_DONE);
        if (item->outcome == ONCE_DONE) {
            sim_note_add(w, (sim_note){.what = item->returned ? NOTE_THEN : NOTE_EFFECT,
                                       .key = key,
                                       .message = message,
                                       .token = item->request.token});
        } else if (!careful && world->presumes) {
            item->outcome = ONCE_DONE;
            item->failure = (once_bytes){0};
            w->disproved = true;
        } else if (!careful) {
            *failed = true;
            return ONCE_OK;
        }
    }
    return ONCE_OK;
}

/* --- life --- */

static void tell_time(sim_worker *w)
{
    w->env.boot_ms = w->world->now_ms;
    w->env.wall_ms = TEST_EPOCH_MS + (w->world->now_ms - w->world->start_ms) + w->wall_off_ms;
}

/* Numbers of runs, each with room for the tokens that count on from it. */
static uint64_t run_of(uint64_t incarnation) { return incarnation << 32; }

bool sim_worker_gone(const sim_world *world, uint64_t incarnation)
{
    for (int i = 0; i < world->workers_n; i++)
        if (world->workers[i].incarnation == incarnation) return world->workers[i].state == DOWN;
    return true;
}

static sim_worker *worker_in(void *env) { return (sim_worker *)((char *)env - offsetof(sim_worker, env)); }

static void process(void *env, once_process *out)
{
    const sim_worker *w = worker_in(env);
    *out = (once_process){.machine = w->world->gone_known, .pid = (uint64_t)w->index + 1, .started = w->incarnation};
}

static bool is_gone(void *env, const once_process *process)
{
    return process->machine && sim_worker_gone(worker_in(env)->world, process->started);
}

void sim_worker_init(sim_worker *w, sim_world *world, int index)
{
    *w = (sim_worker){.world = world, .index = index, .state = DOWN, .until_ms = world->now_ms};
    test_env_init(&w->env, test_random(&world->random));
    w->env.env.process = process;
    w->env.env.is_gone = is_gone;
}

void sim_worker_start(sim_worker *w)
{
    sim_world *world = w->world;
    assert(w->state == DOWN && !w->machine);
    tell_time(w);
    if (world->store_down_until_ms > world->now_ms || (world->sqlite && world->tx_owner)) {
        w->until_ms = world->now_ms + 100;
        return;
    }
    if (sim_store_open(w) != ONCE_OK) {
        sim_violation(world, "worker %d cannot open the store", w->index);
        return;
    }
    sim_store_init(w);
    sim_source_init(w);
    w->incarnation = ++world->incarnations;
    w->stopping = w->killed = w->failing = false;
    w->delivered_n = 0;
    w->acked = 0;
    w->told = w->member = false;
    w->source_failing_ms = INT32_MIN;
    w->tags = 0;
    memset(w->assignments, 0, sizeof w->assignments);
    memset(w->left, 0, sizeof w->left);
    memset(w->read, 0, sizeof w->read);
    w->trouble_ms = w->no_start_until_ms = w->sweep_not_before_ms = 0;
    memset(w->heard, 0, sizeof w->heard);
    w->paused_until_ms = INT32_MIN;
    if (w->unclean) sim_fired(world, SIM_unclean);
    else world->clean_starts++;
    const once_machine_options options = {
        .spec = world->spec,
        .env = &w->env.env,
        .secret = w->real->secret,
        .run = run_of(w->incarnation),
        .prepare = prepare,
        .unclean = w->unclean,
        .source = sim_source_bits(world),
        .beat_ms = world->beat_ms,
        .ack_pause_ms = world->ack_pause_ms,
        .tells_absent = w->real->ops->absent != NULL,
        .finds = w->real->ops->find != NULL,
        .renew_ms = RENEW_MS,
    };
    once_error err = {0};
    if (once_machine_new(&options, &w->machine, &err) != ONCE_OK) abort();
    once_executor_init(&w->executor, &w->store.store, world->spec->consumer, run_effects, w);
    once_worker_init(&w->record, &w->store.store, world->spec->consumer, run_of(w->incarnation), 0);
    w->record.contained = world->contained;
    w->executor.source = &w->source.source;
    once__store_facts_init(&w->facts, &w->store.store, world->spec->consumer);
    w->executor.facts = &w->facts.base;
    w->counted = false;
    w->executor.worker = &w->record;
    w->state = UP;
    sim_trace(world, w->index, w->unclean ? "starts after an unclean end" : "starts", NULL, (int64_t)w->incarnation, -1,
              ONCE_OK);
}

/* The process is gone. */
static void gone(sim_worker *w)
{
    sim_world *world = w->world;
    sim_store_close(w);
    sim_broker_died(w);
    sim_flights_gone(w);
    once_machine_free(w->machine);
    once_executor_release(&w->executor);
    w->machine = NULL;
    w->store_action = w->source_action = w->ack_action = w->effect_action = NULL;
    w->store_done = w->source_done = w->ack_done = w->effect_done = false;
    w->state = DOWN;
    w->until_ms = world->now_ms + (int64_t)sim_random(world, sim_chance(world, 50) ? 200 : 8000);
}

void sim_worker_die(sim_worker *w)
{
    sim_trace(w->world, w->index, "DIES", NULL, -1, -1, ONCE_OK);
    sim_record_excuse(w);
    w->world->counts_known = false;
    w->unclean = true;
    gone(w);
}

void sim_worker_stop(sim_worker *w)
{
    w->stopping = true;
    w->stop_ms = w->world->now_ms;
    if (w->machine) once_machine_stop(w->machine);
}

static void ended(sim_worker *w)
{
    sim_world *world = w->world;
    once_error err = {0};
    const int status = once_machine_status(w->machine, &err);
    sim_trace(world, w->index, "ends", NULL, -1, -1, status);
    if (status == ONCE_E_FORGOTTEN)
        sim_violation(world, "worker %d: reports that its store is another one, and it is not", w->index);
    w->unclean = status != ONCE_OK && sim_chance(world, 50);
    if (status == ONCE_OK) {
        if (sim_flights_air(w, -1)) sim_violation(world, "worker %d: ended well while effects were running", w->index);
        sim_assignments_ended(w);
        sim_judge_end(w, once_machine_counts(w->machine));
        char why[200];
        if (world->finite && !w->stopping && !sim_judge_over(world, why, sizeof why))
            sim_violation(world, "a finite source was drained, but %s", why);
    } else {
        sim_fired(world, SIM_gave_up);
        world->counts_known = false;
        sim_record_excuse(w);
    }
    gone(w);
}

void sim_worker_free(sim_worker *w)
{
    if (w->machine) {
        sim_store_close(w);
        once_machine_free(w->machine);
        once_executor_release(&w->executor);
    }
    free(w->notes);
    free(w->delivered);
}

/* --- acting --- */

static void pause_for(sim_worker *w, int64_t ms)
{
    w->state = PAUSED;
    w->until_ms = w->world->now_ms + ms;
    w->paused_ms += ms;
    w->trouble_ms = w->paused_until_ms = w->until_ms;
    sim_flights_paused(w, ms);
}

bool sim_worker_misfortune(sim_worker *w)
{
    sim_world *world = w->world;
    if (sim_fires(world, SIM_crash_before)) {
        sim_worker_die(w);
        return true;
    }
    bool zombie = false;
    for (int chances = w->holds && !w->in_tx ? 10 : 1; chances > 0 && !zombie; chances--)
        zombie = sim_fires(world, SIM_zombie);
    if (zombie) {
        pause_for(w, world->lease_ms + (int64_t)sim_random(world, 6000));
        sim_record_excuse(w);
        sim_flights_excuse(w);
        sim_trace(world, w->index, "pauses past its lease", NULL, w->until_ms - world->now_ms, -1, ONCE_OK);
        return true;
    }
    if (sim_fires(world, SIM_pause)) {
        pause_for(w, (int64_t)sim_random(world, (uint64_t)world->lease_ms / 8));
        return true;
    }
    if (!w->stopping && sim_fires(world, SIM_stop)) {
        sim_trace(world, w->index, "is told to stop", NULL, -1, -1, ONCE_OK);
        sim_worker_stop(w);
    }
    if (sim_fires(world, SIM_store_crash)) sim_store_crash(world);
    if (sim_random(world, 10000) < world->rate[SIM_replayed] && world->phase == PHASE_FAULTS) sim_operator_act(world);
    if (sim_fires(world, SIM_year_forward)) w->wall_off_ms += INT64_C(365) * 24 * 3600 * 1000;
    if (sim_fires(world, SIM_hour_back)) w->wall_off_ms -= INT64_C(3600) * 1000;
    tell_time(w);
    return false;
}

bool sim_worker_carried_out(sim_worker *w, const once_action *action)
{
    sim_world *world = w->world;
    sim_trace(world, w->index, once_action_name(action->kind), NULL, (int64_t)action->n, -1, action->status);
    world->now_ms += (int64_t)sim_random(world, 4);
    const bool commit = action->kind == ONCE_ACT_COMMIT;
    if (!w->killed && !sim_fires(world, commit ? SIM_crash_after_commit : SIM_crash_after)) return false;
    sim_worker_die(w);
    return true;
}

void sim_worker_watch(sim_worker *w)
{
    const char *broken =
        ONCE_PLANTED(parked_kept) ? once__machine_check(w->machine) : NULL; /* otherwise the machine asks by itself */
    if (broken) sim_violation(w->world, "worker %d: invariant %s", w->index, broken);
    if (once_machine_ended(w->machine)) {
        ended(w);
    } else if (!w->failing && once_machine_status(w->machine, NULL) != ONCE_OK) {
        w->failing = true;
        sim_record_excuse(w);
        sim_flights_excuse(w);
    }
}

void sim_worker_step(sim_worker *w, once_action *action)
{
    once_machine_step(w->machine, action, w->world->now_ms);
    sim_worker_watch(w);
}

static bool act_on_store(sim_worker *w)
{
    if (!w->store_action) {
        w->store_action = once_machine_store_action(w->machine, w->world->now_ms);
        if (w->store_action) sim_handouts_begin(w, w->store_action);
    }
    if (!w->store_action) {
        if (!once_machine_ended(w->machine)) return false;
        ended(w);
        return true;
    }
    if (sim_worker_misfortune(w)) return true;
    once_action *action = w->store_action;
    if (!w->store_done) {
        once_execute_store(&w->executor, action);
        w->store_done = true;
        if (sim_worker_carried_out(w, action) || sim_chance(w->world, 40)) return true;
    }
    w->store_action = NULL;
    w->store_done = false;
    sim_worker_step(w, action);
    return true;
}

static bool nothing_to_fetch(const sim_worker *w)
{
    if (w->stopping || sim_broker_has(w, w->source_action)) return false;
    if (w->fetch_until_ms <= w->world->now_ms) return false; /* as a source that blocks for a while */
    if (!w->world->finite) return true;
    for (size_t i = 0; i < w->world->deliveries_n; i++)
        if (w->world->deliveries[i].state == PENDING) return true; /* it comes later */
    return false;
}

static bool act_on_source(sim_worker *w)
{
    if (!w->source_action) {
        w->source_action = once_machine_source_action(w->machine, w->world->now_ms);
        if (!w->source_action) return false;
        sim_record_fetch(w, w->source_action);
        w->fetch_until_ms = w->world->now_ms + 3000; /* it blocks for a while */
    }
    once_action *action = w->source_action;
    if (!w->source_done && nothing_to_fetch(w)) return false;
    if (sim_worker_misfortune(w)) return true;
    if (!w->source_done) {
        once_execute_source(&w->source.source, action);
        w->source_done = true;
        if (sim_worker_carried_out(w, action) || sim_chance(w->world, 40)) return true;
    }
    w->source_action = NULL;
    w->source_done = false;
    sim_source_stepped(w);
    sim_worker_step(w, action);
    return true;
}

static bool act_on_acks(sim_worker *w)
{
    if (!w->ack_action) {
        w->ack_action = once_machine_ack_action(w->machine, w->world->now_ms);
        if (!w->ack_action) return false;
        sim_source_asked(w);
    }
    once_action *action = w->ack_action;
    if (sim_worker_misfortune(w)) return true;
    if (!w->ack_done) {
        once_execute_ack(&w->source.source, action);
        w->ack_done = true;
        if (sim_worker_carried_out(w, action) || sim_chance(w->world, 40)) return true;
    }
    w->ack_action = NULL;
    w->ack_done = false;
    sim_source_answered(w);
    sim_worker_step(w, action);
    return true;
}

bool sim_worker_act(sim_worker *w, enum sim_side side)
{
    if (w->state != UP) return false;
    tell_time(w);
    switch (side) {
    case SIDE_STORE: return act_on_store(w);
    case SIDE_SOURCE: return act_on_source(w);
    case SIDE_ACKS: return act_on_acks(w);
    default: return sim_flights_act(w);
    }
}
