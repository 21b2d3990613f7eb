/* Somebody who waits for a server asks now and then whether to go on. */
#ifndef ONCE_BASE_PATIENCE_H
#define ONCE_BASE_PATIENCE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct once_patience {
    bool (*over)(void *user); /* asked several times a second by the thread that waits; NULL: never */
    void *user;
} once_patience;

static inline bool once_patience_over(const once_patience *patience)
{
    return patience->over && patience->over(patience->user);
}

#endif
