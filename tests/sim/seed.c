/* The loop of one seed: who acts next, how time passes, the phases, and the end. */
#include <assert.h>
#include <string.h>

#include "sim.h"

#define SETTLE_MS 15000                   /* by then every worker knows that its last commit has happened */
#define CALM_MS (INT64_C(20) * 60 * 1000) /* so long after the last fault everything must be through */

static void phase_begin(sim_world *world, enum sim_phase phase)
{
    static const char *const names[] = {"", "no more faults", "late duplicates", "all workers are told to stop"};
    world->phase = phase;
    world->deadline_ms = world->now_ms + CALM_MS;
    sim_trace(world, -1, names[phase], NULL, -1, -1, ONCE_OK);
}

/* Who was acked comes once more, and when times are known, once more after everything has expired. */
static void late_duplicates(sim_world *world)
{
    const bool expired = world->timed && sim_chance(world, 50);
    if (expired)
        world->now_ms += SIM_REMEMBER_MS + ((int64_t)sim_random(world, 25) - 5) * 60 * 1000; /* around that moment */
    for (int i = 0; i < world->workers_n; i++) world->workers[i].fetched_ms = world->now_ms;
    phase_begin(world, PHASE_LATE);
    for (int i = 0; i < world->messages_n; i++) {
        if (!sim_chance(world, expired ? 50 : 25)) continue;
        sim_broker_add(world, i, world->now_ms + (int64_t)sim_random(world, 1000));
        sim_fired(world, expired ? SIM_duplicate_expired : SIM_duplicate_late);
    }
}

static bool all_down(const sim_world *world)
{
    for (int i = 0; i < world->workers_n; i++)
        if (world->workers[i].state != DOWN) return false;
    return true;
}

/* In the end somebody looks at what is held: one at a time, and in a finite world between two runs. */
static bool person_looks(sim_world *world)
{
    if (world->finite && !all_down(world)) return false;
    if (world->resolves && sim_record_held(world)) return sim_operator_resolve(world);
    for (int i = 0; i < world->keys_n; i++)
        if (sim_record_blocks(world, &world->keys[i])) return sim_operator_discard(world);
    return false;
}

/* For how long there was a run. */
static void count_alive(sim_world *world)
{
    bool alive = false;
    for (int i = 0; i < world->workers_n; i++) alive |= world->workers[i].state == UP;
    if (world->was_alive) world->alive_ms += world->now_ms - world->alive_at_ms;
    world->downs += world->was_alive && !alive;
    world->alive_at_ms = world->now_ms;
    world->was_alive = alive;
}

/* True: the seed is over. */
static bool next_phase(sim_world *world)
{
    switch (world->phase) {
    case PHASE_FAULTS:
        if (world->now_ms >= world->faults_until_ms || world->faults_left == 0) phase_begin(world, PHASE_CALM);
        return false;
    case PHASE_CALM:
        /* Others wait behind it, and with a bound of what may wait perhaps so many that the rest is not fetched. */
        if (world->ordered && (!world->finite || world->spec->waiting_max.messages)) person_looks(world);
        if (!sim_judge_over(world, NULL, 0)) return false;
        if (person_looks(world)) return false;
        if (world->over_ms == 0) world->over_ms = world->now_ms;
        if (world->timed && world->now_ms < world->over_ms + SETTLE_MS) return false;
        if (world->timed && sim_record_busy(world)) return false; /* nobody's lease may run out while hours pass */
        if (world->finite) {                                      /* it has an end of its own */
            if (!all_down(world)) return false;
            sim_judge_close(world);
            return true;
        }
        late_duplicates(world);
        return false;
    case PHASE_LATE:
        if (world->ordered) person_looks(world); /* as before */
        if (!sim_judge_over(world, NULL, 0)) return false;
        phase_begin(world, PHASE_STOP);
        for (int i = 0; i < world->workers_n; i++) sim_worker_stop(&world->workers[i]);
        return false;
    case PHASE_STOP:
        if (!all_down(world)) return false;
        sim_judge_close(world);
        return true;
    }
    return true;
}

static bool may_start(const sim_world *world)
{
    if (world->phase == PHASE_STOP) return false;
    return !(world->finite && world->phase == PHASE_CALM && sim_judge_over((sim_world *)world, NULL, 0));
}

static void wake_workers(sim_world *world)
{
    for (int i = 0; i < world->workers_n; i++) {
        sim_worker *w = &world->workers[i];
        if (w->state == UP || w->until_ms > world->now_ms) continue;
        if (w->state == PAUSED) {
            w->state = UP;
            sim_trace(world, i, "comes back", NULL, -1, -1, ONCE_OK);
        } else if (may_start(world)) {
            sim_worker_start(w);
        }
    }
}

/* Nobody can act: to the next moment at which something can happen. */
static void pass_time(sim_world *world)
{
    int64_t next_ms = world->phase == PHASE_FAULTS ? world->faults_until_ms : ONCE_NEVER;
    const int64_t flights_ms = sim_flights_next_ms(world);
    if (flights_ms < next_ms) next_ms = flights_ms;
    const int64_t assignments_ms = sim_assignments_next_ms(world);
    if (assignments_ms < next_ms) next_ms = assignments_ms;
    const int64_t broker_ms = sim_broker_next_ms(world);
    if (broker_ms > world->now_ms && broker_ms < next_ms) next_ms = broker_ms;
    for (int i = 0; i < world->workers_n; i++) {
        const sim_worker *w = &world->workers[i];
        int64_t at_ms = w->until_ms;
        if (w->state == UP) {
            if (w->in_tx) sim_violation(world, "worker %d waits with an open transaction", i);
            const int64_t store_ms = once_machine_wait_ms(w->machine, world->now_ms);
            const int64_t effects_ms = once_machine_effect_wait_ms(w->machine, world->now_ms);
            const int64_t source_ms = once_machine_source_wait_ms(w->machine, world->now_ms);
            int64_t wait_ms = store_ms < effects_ms ? store_ms : effects_ms;
            if (source_ms < wait_ms) wait_ms = source_ms;
            at_ms = wait_ms == ONCE_NEVER ? ONCE_NEVER : world->now_ms + wait_ms;
            if (w->source_action && w->fetch_until_ms < at_ms) at_ms = w->fetch_until_ms;
        } else if (w->state == DOWN && !may_start(world)) {
            continue;
        }
        if (at_ms < next_ms) next_ms = at_ms;
    }
    world->now_ms = next_ms > world->now_ms && next_ms != ONCE_NEVER ? next_ms : world->now_ms + 1;
}

static bool anybody_acts(sim_world *world)
{
    const int sides = SIDES * world->workers_n;
    const int from = (int)sim_random(world, (uint64_t)sides);
    for (int i = 0; i < sides; i++) {
        const int side = (from + i) % sides;
        if (sim_worker_act(&world->workers[side / SIDES], (enum sim_side)(side % SIDES))) return true;
    }
    return false;
}

static void begin_workers(sim_world *world)
{
    for (int i = 0; i < world->workers_n; i++) {
        sim_worker *w = &world->workers[i];
        sim_worker_init(w, world, i);
        w->until_ms += (int64_t)sim_random(world, 50);
        w->unclean = sim_chance(world, 15);
        if (!sim_chance(world, 30)) continue;
        w->wall_off_ms = (int64_t)sim_random(world, 1200000) - 600000;
        sim_fired(world, SIM_skewed);
    }
}

void sim_run(uint64_t seed, bool print, sim_result *result)
{
    sim_world world;
    if (sim_world_make(&world, seed, result, print)) {
        begin_workers(&world);
        for (uint64_t step = 0; !result->failed; step++) {
            count_alive(&world);
            wake_workers(&world);
            count_alive(&world);
            sim_broker_tick(&world);
            sim_flights_tick(&world);
            const bool acted = anybody_acts(&world);
            if (result->failed) break;
            const enum sim_phase phase = world.phase;
            if ((!acted || step % 16 == 0) && next_phase(&world)) break;
            if (!acted && world.phase == phase) pass_time(&world); /* who is told to stop notices it at once */
            if (step > world.step_limit || (world.phase != PHASE_FAULTS && world.now_ms > world.deadline_ms)) {
                char why[200] = "the workers did not end";
                (void)sim_judge_over(&world, why, sizeof why);
                sim_violation(&world, "no progress: %s", why);
            }
        }
    }
    sim_world_end(&world);
}
