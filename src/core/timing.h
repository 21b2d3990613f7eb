/* How long messages took from one stage to the next: a histogram by powers of two of milliseconds, cheap enough to fill
 * for each message. Thread rule: one thread. */
#ifndef ONCE_CORE_TIMING_H
#define ONCE_CORE_TIMING_H

#include <assert.h>

#include "once/pipeline.h"

static inline void once_timing_add(once_timing *timing, int64_t ms)
{
    assert(ms >= 0);
    const size_t bits = ms ? 64u - (size_t)__builtin_clzll((unsigned long long)ms) : 0;
    timing->count++;
    timing->sum_ms += (uint64_t)ms;
    if ((uint64_t)ms > timing->max_ms) timing->max_ms = (uint64_t)ms;
    timing->bucket[bits < ONCE_TIMING_BUCKETS ? bits : ONCE_TIMING_BUCKETS - 1]++;
}

/* The time between two stages; adds nothing if the message did not reach one of them. */
static inline void once_timing_between(once_timing *timing, int64_t from_ms, int64_t to_ms)
{
    if (from_ms != ONCE_NO_TIME && to_ms != ONCE_NO_TIME) once_timing_add(timing, to_ms - from_ms);
}

#endif
