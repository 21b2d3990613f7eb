/* When a message says that it was sent: reading that, and the words about a time that cannot be right or is too old.
 *
 * A number counts a unit since 1970, with a fraction or an exponent if it likes; what is below a millisecond is cut.
 * Anything else is RFC 3339, whatever the unit is. */
#ifndef ONCE_CORE_SENT_H
#define ONCE_CORE_SENT_H

#include "base/arena.h"
#include "once/types.h"

typedef enum once_time_unit { ONCE_UNIT_MS, ONCE_UNIT_S, ONCE_UNIT_US, ONCE_UNIT_NS, ONCE_UNITS } once_time_unit;

/* ONCE_OK, or ONCE_E_MESSAGE with words: no time, or one outside of the years 1 to 9999; then perhaps with the unit
 * that was meant. */
int once_sent_read(once_bytes text, once_time_unit unit, int64_t *ret_ms, once_error *why);
/* The same for a whole number. */
int once_sent_read_number(int64_t number, once_time_unit unit, int64_t *ret_ms, once_error *why);

/* The reason of a letter for a message that is too old: the time that was read, what it was read from (`text`; empty:
 * the source says it), how long is remembered, and the unit that was meant, where the number has an impossible date in
 * its own and a likely one in another. False: out of memory. */
bool once_sent_too_old(int64_t sent_ms, once_bytes text, once_time_unit unit, int64_t remember_ms, once_arena *arena,
                       once_bytes *out);

#endif
