/* How a pipeline with several handlers shares out what is due in the store, while not all of them have room: free
 * slots, and an open gate (once_room_of).
 *
 * Each operation whose handler runs has a share of the filter (core/due_filter.h), and all other operations have
 * one together. A share is `wanted` while more of it may be due: its last search stopped early, or it was left out
 * because its handler had no room. It is searched as soon as there is room. The others were searched to the end; they
 * are looked at again with everything else, when it is time to look for what is due. */
#ifndef ONCE_CORE_DUE_SHARES_H
#define ONCE_CORE_DUE_SHARES_H

#include "core/due_filter.h"
#include "core/flight.h"

typedef struct once_due_shares {
    once_due_filter filter; /* filter.n is 0: one handler; nothing has to be shared out */
    bool *wanted;           /* by share */
    bool free_others;       /* there are handlers that do not run, and always have room */
    int64_t front_at_ms;    /* when searches begin at the front again */
} once_due_shares;

bool once_due_shares_init(once_due_shares *shares, const once_spec *spec); /* false: out of memory */
void once_due_shares_release(once_due_shares *shares);

/* Entries that may be taken without a filter: so many can start whatever their operations are. 0: a handler has no
 * room, or much less than another one. SIZE_MAX: all of them have room for any number. */
size_t once_due_shares_any(const once_room *room);

/* How many entries a take may claim, `most` at most; of the wanted shares only, or of all. */
size_t once_due_shares_room(const once_due_shares *shares, const once_room *room, bool all, size_t most);

/* The filter of such a take. It belongs to the executor until once_due_shares_took. */
once_due_filter *once_due_shares_filter(once_due_shares *shares, const once_room *room, bool all, size_t most);
/* Whether the filter of the last take let it search for entries of this operation. */
bool once_due_shares_searched(const once_due_shares *shares, once_bytes operation);
/* The take has succeeded; without a filter: it found so many. */
void once_due_shares_took(once_due_shares *shares);
void once_due_shares_took_any(once_due_shares *shares, size_t n);

#endif
