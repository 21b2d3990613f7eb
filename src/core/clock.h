/* The time of a store, for stores that have no server whose clock decides (memory, sqlite, ledger).
 *
 * Wall clocks jump: an hour back when NTP corrects them, a year forward when an administrator mistypes a date. Leases
 * and expiry must neither end early nor never. So store time follows the machine's boot clock, which does not jump and
 * is the same for all processes. It only leans towards the wall clock: it runs at 0.9 to 1.1 of real speed until both
 * agree. It never goes back, except when an operator confirms the wall clock.
 *
 * The anchor (this struct) is kept in the store with every write. After a reboot the boot clock starts at zero, and
 * store time takes the wall clock once. It does not if the wall clock is before the anchor, or more than 30 days ahead
 * of it: with an empty battery or a mistyped date everything would expire at once. Then store time goes on from where
 * it was, at the pace of the boot clock, and is in doubt until the wall clock is at most 30 days ahead of it, or an
 * operator confirms the wall clock.
 *
 * Thread rule: a clock belongs to one thread at a time. */
#ifndef ONCE_CORE_CLOCK_H
#define ONCE_CORE_CLOCK_H

#include "base/env.h"

typedef struct once_clock {
    int64_t tenths;   /* the time of the store in tenths of a millisecond, so that 0.9 and 1.1 are exact, at ... */
    int64_t boot_ms;  /* ... this time of the boot clock ... */
    uint64_t boot_id; /* ... of this boot; 0: never set */
    bool doubted;     /* after a reboot the wall clock was too far ahead to be used */
} once_clock;

#define ONCE_CLOCK_LEAP_MS (INT64_C(30) * 24 * 3600 * 1000) /* how far a wall clock may be ahead after a reboot */

/* Moves the anchor to now and returns the time of the store in milliseconds. */
int64_t once_clock_step(once_clock *clock, const once_env *env);

/* An operator confirms the wall clock, ahead or behind: it is the time of the store from now on. */
int64_t once_clock_confirm(once_clock *clock, const once_env *env);

#endif
