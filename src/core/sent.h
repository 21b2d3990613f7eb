/* The time at which a message says it was sent: how it is read, and the reason for a time that cannot be right or is
 * too old.
 *
 * A number counts a unit since 1970; it may have a fraction and an exponent, and anything below a millisecond is cut
 * off. Any other text must be RFC 3339, whatever the unit is.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_SENT_H
#define ONCE_CORE_SENT_H

#include "base/arena.h"
#include "once/types.h"

typedef enum once_time_unit { ONCE_UNIT_MS, ONCE_UNIT_S, ONCE_UNIT_US, ONCE_UNIT_NS, ONCE_UNITS } once_time_unit;

/* ONCE_OK; or ONCE_E_MESSAGE with the reason in `why`: not a time, or outside of the years 1 to 9999. The reason names
 * the unit that was probably meant, if there is one. */
int once_sent_read(once_bytes text, once_time_unit unit, int64_t *ret_ms, once_error *why);
/* The same for a whole number. */
int once_sent_read_number(int64_t number, once_time_unit unit, int64_t *ret_ms, once_error *why);

/* The reason of the dead letter for a message that is too old: the time that was read, the text that it was read from
 * (empty: the source gave the time), how long messages are remembered, and the unit that was probably meant, if the
 * number is an unlikely date in its own unit and a likely one in another. False: out of memory. */
bool once_sent_too_old(int64_t sent_ms, once_bytes text, once_time_unit unit, int64_t remember_ms, once_arena *arena,
                       once_bytes *out);

#endif
