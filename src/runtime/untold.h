/* What a verb of the store has ended by itself, outside of the machine's transactions, in a commit of which no answer
 * came: claims that are unknown now, and letters of a conflict. Whether it did is asked for as soon as the store
 * answers, and then it is said, once: nobody finds these again. */
#ifndef ONCE_RUNTIME_UNTOLD_H
#define ONCE_RUNTIME_UNTOLD_H

#include "core/item.h"
#include "core/outward.h"
#include "store/store.h"

typedef struct once_untold {
    once_arena arena;
    once_item *items;
    size_t n, room;
} once_untold;

/* The event that is said of what became of it; NULL: none. */
const char *once_untold_event(const once_decision *decision);

/* Copies what a line needs. What there is no room for is said at once: rather twice than not at all. */
void once_untold_add(once_untold *untold, const once_item *item, const once_keying *keying);
/* Outside of a transaction. Says what was written; what was not is found again by whoever looks next. On failure all of
 * it stays. */
int once_untold_ask(once_untold *untold, once_backend *store, const once_keying *keying, once_error *err);
/* Nobody asks any more: what is left is said. */
void once_untold_end(once_untold *untold, const once_keying *keying);

#endif
