/* The time of a store, for stores that have no server whose clock decides (memory, sqlite, ledger).
 *
 * Wall clocks jump: an hour back when NTP corrects them, a year forward when somebody mistypes a date. Leases and expiry
 * must neither end early nor never. So store time is carried by the machine's boot clock, which does not jump and is the
 * same for all processes, and only leans towards the wall clock: it runs at 0.9 to 1.1 of real speed until both agree.
 * It never goes back. The anchor is kept in the store with every write; after a reboot the boot clock starts anew and the
 * wall clock is believed once, unless it lies before the anchor. */
#ifndef ONCE_CORE_CLOCK_H
#define ONCE_CORE_CLOCK_H

#include "base/env.h"

typedef struct once_clock {
    int64_t tenths;   /* the time of the store in tenths of a millisecond, so that 0.9 and 1.1 are exact, at ... */
    int64_t boot_ms;  /* ... this moment of the boot clock ... */
    uint64_t boot_id; /* ... of this boot; 0: never set */
} once_clock;

/* Moves the anchor to now and returns the time of the store in milliseconds. */
int64_t once_clock_step(once_clock *clock, const once_env *env);

#endif
