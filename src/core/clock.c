/* The time of a store (core/clock.h). */
#include "core/clock.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

#define TENTHS 10

/* Takes the wall clock, unless it is behind or in doubt: at the first step, after a reboot, and while it is in doubt.
 * */
static void ask_wall(once_clock *clock, int64_t wall)
{
    const bool first = clock->boot_id == 0;
    clock->doubted = !first && wall - clock->tenths > ONCE_CLOCK_LEAP_MS * TENTHS;
    if (first || (wall > clock->tenths && !clock->doubted)) clock->tenths = wall;
}

/* Moves towards the wall clock, at 0.9 to 1.1 of real speed. */
static void lean(once_clock *clock, int64_t elapsed_ms, int64_t wall)
{
    assert(elapsed_ms >= 0);
    const int64_t slowest = elapsed_ms * 9, fastest = elapsed_ms * 11;
    int64_t step = wall - clock->tenths;
    if (step < slowest) step = slowest;
    if (step > fastest) step = fastest;
    clock->tenths += step;
}

int64_t once_clock_step(once_clock *clock, const once_env *env)
{
    const int64_t wall = once_env_wall_ms(env) * TENTHS;
    if (ONCE_PLANTED(wall_clock)) return wall / TENTHS;
    const int64_t boot_ms = once_env_boot_ms(env);
    const uint64_t boot_id = once_env_boot_id(env);

    if (clock->boot_id != boot_id || boot_ms < clock->boot_ms) {
        ask_wall(clock, wall);
    } else if (clock->doubted) {
        clock->tenths += (boot_ms - clock->boot_ms) * TENTHS;
        ask_wall(clock, wall);
    } else {
        lean(clock, boot_ms - clock->boot_ms, wall);
    }
    clock->boot_ms = boot_ms;
    clock->boot_id = boot_id;
    return clock->tenths / TENTHS;
}

int64_t once_clock_confirm(once_clock *clock, const once_env *env)
{
    *clock = (once_clock){
        .tenths = once_env_wall_ms(env) * TENTHS, .boot_ms = once_env_boot_ms(env), .boot_id = once_env_boot_id(env)};
    return clock->tenths / TENTHS;
}
