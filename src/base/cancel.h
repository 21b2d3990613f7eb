/* Whoever waits for a server asks now and then whether that was cancelled. */
#ifndef ONCE_BASE_CANCEL_H
#define ONCE_BASE_CANCEL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct once_cancel {
    bool (*asked)(void *user); /* called several times a second by the thread that waits; true: give up. NULL: never */
    void *user;
} once_cancel;

static inline bool once_cancelled(const once_cancel *cancel) { return cancel->asked && cancel->asked(cancel->user); }

#endif
