/* What a verb of the store has ended by itself, outside of the machine's transactions, in a commit of which no answer
 * came: claims that are unknown now, and letters of a conflict. Whether it did is asked for as soon as the store
 * answers, and then it is said, once: nobody finds these again. */
#ifndef ONCE_RUNTIME_UNCONFIRMED_H
#define ONCE_RUNTIME_UNCONFIRMED_H

#include "core/item.h"
#include "core/outward.h"
#include "store/store.h"

typedef struct once_unconfirmed {
    once_arena arena;
    once_item *items;
    size_t n, room;
} once_unconfirmed;

/* The event that is said of what became of it; NULL: none. */
const char *once_unconfirmed_event(const once_decision *decision);

/* Copies what a line needs. What there is no room for is said at once: rather twice than not at all. */
void once_unconfirmed_add(once_unconfirmed *unconfirmed, const once_item *item, const once_keying *keying);
/* Outside of a transaction. Says what was written; what was not is found again by whoever looks next. On failure all of
 * it stays. */
int once_unconfirmed_check(once_unconfirmed *unconfirmed, once_backend *store, const once_keying *keying,
                           once_error *err);
/* Nobody asks any more: what is left is said. */
void once_unconfirmed_end(once_unconfirmed *unconfirmed, const once_keying *keying);

#endif
