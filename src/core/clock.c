#include "core/clock.h"

#include "core/plant.h"

#include "base/banned.h"

#define TENTHS 10

int64_t once_clock_step(once_clock *clock, const once_env *env)
{
    const int64_t wall = once_env_wall_ms(env) * TENTHS;
    if (ONCE_PLANTED(wall_clock)) return wall / TENTHS;
    const int64_t boot_ms = once_env_boot_ms(env);
    const uint64_t boot_id = once_env_boot_id(env);

    if (clock->boot_id != boot_id || boot_ms < clock->boot_ms) {
        if (clock->boot_id == 0 || wall > clock->tenths) clock->tenths = wall;
    } else {
        const int64_t elapsed_ms = boot_ms - clock->boot_ms;
        const int64_t slowest = elapsed_ms * 9, fastest = elapsed_ms * 11;
        int64_t step = wall - clock->tenths;
        if (step < slowest) step = slowest;
        if (step > fastest) step = fastest;
        clock->tenths += step;
    }
    clock->boot_ms = boot_ms;
    clock->boot_id = boot_id;
    return clock->tenths / TENTHS;
}
