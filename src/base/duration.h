/* Durations and points in time as people write them.
 *
 * A duration is a whole number and a unit: 200ms, 10s, 5m, 1h, 7d; or the word forever (ONCE_FOREVER).
 * A time is RFC 3339 (2026-01-31T12:00:00.5+01:00) or a whole number of milliseconds since 1970 UTC. Digits below the
 * millisecond are cut, and a leap second counts as the first second of the next minute.
 *
 * Thread rule: plain functions, no state. */
#ifndef ONCE_BASE_DURATION_H
#define ONCE_BASE_DURATION_H

#include <stdint.h>

#include "once/types.h"

#define ONCE_DURATION_TEXT 24 /* bytes for the text of a duration, its NUL included */
#define ONCE_TIME_TEXT 32     /* bytes for the text of a time, its NUL included */

/* ONCE_OK, or ONCE_E_USAGE with the reason in `err`; `ret_ms` is then untouched. */
int once_duration_parse(once_bytes text, int64_t *ret_ms, once_error *err);
int once_time_parse(once_bytes text, int64_t *ret_ms, once_error *err);

/* Written with the largest unit that divides `ms` (>= 0) exactly; "forever" for ONCE_FOREVER. Returns `out`. */
const char *once_duration_format(int64_t ms, char out[ONCE_DURATION_TEXT]);
/* For people: whole seconds, in two units at most, as in "4s", "1m05s", "2h00m". Less than nothing is "0s". */
const char *once_duration_about(int64_t ms, char out[ONCE_DURATION_TEXT]);

/* 2026-01-31T12:00:00.000Z. A time outside the years 0000 to 9999 is written as its number, ONCE_NO_TIME as "-".
 * Both forms, "-" aside, are read back by once_time_parse. Returns `out`. */
const char *once_time_format(int64_t ms, char out[ONCE_TIME_TEXT]);

/* In the years 1 to 9999. No message is sent outside of them. ONCE_NO_TIME is outside, too. */
static inline bool once_time_is_sane(int64_t ms)
{
    return ms >= INT64_C(-62135596800000) && ms < INT64_C(253402300800000);
}

#endif
