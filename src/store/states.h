/* The numbers that a state and a kind of letter have in what is stored. The texts of statements name states by them
 * ("state < 4"), and so do conditions of indexes, which must be spelled as in the statements; records have them as
 * bytes. Included by whoever has such a text, which tools/check-tree sees to. */
#ifndef ONCE_STORE_STATES_H
#define ONCE_STORE_STATES_H

#include "core/entry.h"

_Static_assert(ONCE_STATE_CLAIMED == 1 && ONCE_STATE_WAITING == 2 && ONCE_STATE_UNKNOWN == 3 && ONCE_STATE_DEAD == 4,
               "as in the texts of statements");
_Static_assert(ONCE_STATE_DONE == 5 && ONCE_STATE_ALREADY == 6 && ONCE_STATE_REJECTED == 7 && ONCE_STATE_STALE == 8 &&
                   ONCE_STATES == 9,
               "as they are stored");
_Static_assert(ONCE_STATE_ABSENT == 0, "no row and no record; nothing is stored of it");

/* Flags of an entry that is not finished, as the SQL stores keep them (columns flags and marks). */
enum {
    ONCE_FLAG_VERSIONED = 1,
    ONCE_FLAG_GAP = 2,
    ONCE_FLAG_HOLD = 4,
    ONCE_FLAG_SILENT = 8,
    ONCE_FLAG_NATURAL = 16,
    ONCE_FLAG_MAYBE = 32,
    ONCE_FLAG_NEW_KEY = 64,
    ONCE_FLAG_BLOCK = 128,
    ONCE_FLAG_FIXED = 256
};
_Static_assert(ONCE_FLAG_HOLD == 4 && (ONCE_FLAG_SILENT | ONCE_FLAG_MAYBE) == 40, "as in the texts of statements");

_Static_assert(ONCE_ANSWER_DEAD == 3 && ONCE_ANSWER_CONFLICT == 8 && ONCE_ANSWER_TOO_OLD == 9 && ONCE_ANSWER_CUT == 11,
               "kinds of letters, as they are stored");

#endif
