/* The history of an entry: how its attempts ended, as text. One line each, newest last.
 *
 *   attempt SP ended_ms SP outcome SP who SP reason LF         who is "-" when it is unknown; the reason may be empty
 *
 * The history is bounded: the oldest lines go first, and the number of the first line left tells how many are gone. An
 * entry that its first attempt finished, in the process that first saw it, has no line: the entry itself contains all
 * that the line would say. */
#ifndef ONCE_STORE_HISTORY_H
#define ONCE_STORE_HISTORY_H

#include "core/entry.h"

enum { ONCE_HISTORY_ATTEMPTS = 10, ONCE_HISTORY_MAX = 2048, ONCE_HISTORY_REASON_MAX = 150 };

#define ONCE_UNREPORTED "silent" /* outcome of an attempt that was never settled */
/* Not an attempt: after the attempt of this number other content replaced the content that had been tried until
 * then. */
#define ONCE_REPLACED_LINE "replaced"

/* Writes `past` and one more line to `out`. `past` must not point into `out`. */
once_bytes once__history_add(once_bytes past, const once_attempt *attempt, char out[ONCE_HISTORY_MAX]);

/* Reads the attempts of a history, and returns how many. Their bytes point into it. Lines that cannot be parsed are
 * left out. */
size_t once__history_read(once_bytes history, once_attempt out[ONCE_HISTORY_ATTEMPTS]);
/* The same for an entry. Adds a first attempt that has no line, and the last attempt when its lease is over
 * (once_entry_look). */
size_t once__history_of(const once_entry *entry, once_attempt out[ONCE_HISTORY_ATTEMPTS]);

#endif
