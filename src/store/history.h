/* How the attempts of an entry ended, as text: one line each, newest last.
 *
 *   attempt SP ended_ms SP outcome SP who SP reason LF         who is "-" when nobody knows; the reason may be empty
 *
 * It is bounded: the oldest lines go first, and the number of the first one left tells how many are gone. An entry that
 * its first attempt finished, by the hand that first saw it, has no line: what it would say is in the entry. */
#ifndef ONCE_STORE_HISTORY_H
#define ONCE_STORE_HISTORY_H

#include "core/entry.h"

enum { ONCE_HISTORY_ATTEMPTS = 10, ONCE_HISTORY_MAX = 2048, ONCE_HISTORY_REASON_MAX = 150 };

#define ONCE_UNREPORTED "silent" /* how an attempt ended that nobody settled */
/* No attempt, but what happened after the one of this number: other content took the place of that which had been tried
 * until then. */
#define ONCE_REPLACED_LINE "replaced"

/* `past` with one line more, written to `out`, which `past` must not be in. */
once_bytes once__history_add(once_bytes past, const once_attempt *attempt, char out[ONCE_HISTORY_MAX]);

/* The attempts in it, and how many. Their bytes point into it. Lines that make no sense are left out. */
size_t once__history_read(once_bytes history, once_attempt out[ONCE_HISTORY_ATTEMPTS]);
/* The same for an entry, which may have a first attempt without a line; and the last one when its lease is over
 * (once_entry_look). */
size_t once__history_of(const once_entry *entry, once_attempt out[ONCE_HISTORY_ATTEMPTS]);

#endif
