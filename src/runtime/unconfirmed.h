/* Decisions that a verb of the store committed by itself, outside of the machine's transactions, and to whose commit no
 * answer came: claims that are unknown now, and letters of a conflict. Nobody finds these again, so they are kept here
 * until the store answers; those that were written are then logged, once. */
#ifndef ONCE_RUNTIME_UNCONFIRMED_H
#define ONCE_RUNTIME_UNCONFIRMED_H

#include "core/item.h"
#include "core/outward.h"
#include "store/store.h"

typedef struct once_unconfirmed {
    once_arena arena; /* owns the texts of the items */
    once_item *items;
    size_t n, room;
} once_unconfirmed;

/* The event that logs such a decision; NULL: it is not logged. */
const char *once_unconfirmed_event(const once_decision *decision);

/* Copies what a log line needs. Without room for it the line is logged at once: rather twice than never. */
void once_unconfirmed_add(once_unconfirmed *unconfirmed, const once_item *item, const once_keying *keying);
/* Outside of a transaction. Logs what was written and drops all; what was not written is found again by the next look.
 * On failure everything stays. */
int once_unconfirmed_check(once_unconfirmed *unconfirmed, once_backend *store, const once_keying *keying,
                           once_error *err);
/* The run ends: logs what is left. */
void once_unconfirmed_end(once_unconfirmed *unconfirmed, const once_keying *keying);

#endif
