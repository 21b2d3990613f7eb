/* The numbers that states, flags and kinds of letters have in stored data.
 *
 * Texts of SQL statements name states by number ("state < 4"), and so do the conditions of indexes, which must be
 * spelled as in the statements. Records hold a state as a byte. Every file with such a text includes this header;
 * tools/check-tree checks that.
 *
 * Stored states: 1 claimed, 2 waiting, 3 unknown, 4 dead, 5 done, 6 already, 7 rejected, 8 stale. Absent (0) is never
 * stored. Kinds of letters: 3 dead, 8 conflict, 9 too old, 11 cut; plus the marks of store.h. */
#ifndef ONCE_STORE_STATES_H
#define ONCE_STORE_STATES_H

#include "core/entry.h"

_Static_assert(ONCE_STATE_CLAIMED == 1 && ONCE_STATE_WAITING == 2 && ONCE_STATE_UNKNOWN == 3 && ONCE_STATE_DEAD == 4,
               "as in the texts of statements");
_Static_assert(ONCE_STATE_DONE == 5 && ONCE_STATE_ALREADY == 6 && ONCE_STATE_REJECTED == 7 && ONCE_STATE_STALE == 8 &&
                   ONCE_STATES == 9,
               "as they are stored");
_Static_assert(ONCE_STATE_ABSENT == 0, "no row and no record; nothing is stored of it");

/* Flag bits of an unfinished entry, as the SQL stores keep them (columns flags and marks). */
enum {
    ONCE_FLAG_VERSIONED = 1,
    ONCE_FLAG_GAP = 2,
    ONCE_FLAG_HOLD = 4,
    ONCE_FLAG_UNREPORTED = 8,
    ONCE_FLAG_NATURAL = 16,
    ONCE_FLAG_MAYBE = 32,
    ONCE_FLAG_NEW_KEY = 64,
    ONCE_FLAG_BLOCK = 128,
    ONCE_FLAG_FIXED = 256,
    ONCE_FLAG_LOOKUP = 512,
    ONCE_FLAG_ASKED = 1024 /* the entry is unknown, and stored as claimed; see below */
};
_Static_assert(ONCE_FLAG_HOLD == 4 && (ONCE_FLAG_UNREPORTED | ONCE_FLAG_MAYBE) == 40 && ONCE_FLAG_LOOKUP == 512 &&
                   ONCE_FLAG_ASKED == 1024,
               "as in the texts of statements");

/* An unknown entry with a due time will be looked up at that time. It is stored as a claim with `hold` whose lease ends
 * then. So the indexes of due entries, of claims by token and of entries that occupy a lane contain it. Programs from
 * before `lookup` ignore the two flags, and neither run the entry nor forget it: until it is due they find it claimed,
 * and then they hold it for an operator. */
static inline bool once__is_asked(const once_entry *e)
{
    return e->state == ONCE_STATE_UNKNOWN && e->due_ms != ONCE_NEVER;
}

static inline int once__state_write(const once_entry *e)
{
    return once__is_asked(e) ? (int)ONCE_STATE_CLAIMED : (int)e->state;
}

static inline int once__flags_write(const once_entry *e)
{
    const bool asked = once__is_asked(e);
    return (e->versioned ? ONCE_FLAG_VERSIONED : 0) | (e->gap ? ONCE_FLAG_GAP : 0) |
           (e->hold || asked ? ONCE_FLAG_HOLD : 0) | (e->unreported ? ONCE_FLAG_UNREPORTED : 0) |
           (e->natural ? ONCE_FLAG_NATURAL : 0) | (e->maybe_done ? ONCE_FLAG_MAYBE : 0) |
           (e->old_key ? 0 : ONCE_FLAG_NEW_KEY) | (e->block ? ONCE_FLAG_BLOCK : 0) | (e->fixed ? ONCE_FLAG_FIXED : 0) |
           (e->lookup ? ONCE_FLAG_LOOKUP : 0) | (asked ? ONCE_FLAG_ASKED : 0);
}

static inline void once__state_read(once_entry *e, int state, int flags)
{
    e->state = state == ONCE_STATE_CLAIMED && flags & ONCE_FLAG_ASKED ? ONCE_STATE_UNKNOWN : (once_state)state;
    e->versioned = flags & ONCE_FLAG_VERSIONED;
    e->gap = flags & ONCE_FLAG_GAP;
    e->hold = flags & ONCE_FLAG_HOLD;
    e->unreported = flags & ONCE_FLAG_UNREPORTED;
    e->maybe_done = flags & (ONCE_FLAG_MAYBE | ONCE_FLAG_UNREPORTED); /* older tables have this flag only for the last
                                                                  * attempt */
    e->natural = flags & ONCE_FLAG_NATURAL;
    e->old_key = !(flags & ONCE_FLAG_NEW_KEY);
    e->block = flags & ONCE_FLAG_BLOCK;
    e->fixed = flags & ONCE_FLAG_FIXED;
    e->lookup = flags & ONCE_FLAG_LOOKUP;
}

_Static_assert(ONCE_ANSWER_DEAD == 3 && ONCE_ANSWER_CONFLICT == 8 && ONCE_ANSWER_TOO_OLD == 9 && ONCE_ANSWER_CUT == 11,
               "kinds of letters, as they are stored");

#endif
