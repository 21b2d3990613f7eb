/* Cancelling a wait. Code that waits for a server asks several times a second whether to give up.
 *
 * Thread rule: `asked` is called by the thread that waits. */
#ifndef ONCE_BASE_CANCEL_H
#define ONCE_BASE_CANCEL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct once_cancel {
    bool (*asked)(void *user); /* true: give up. NULL: the wait is never cancelled */
    void *user;
} once_cancel;

static inline bool once_cancelled(const once_cancel *cancel) { return cancel->asked && cancel->asked(cancel->user); }

#endif
