/* Which store a pipeline has met, remembered outside of that store: otherwise one that was lost, emptied or moved would be made anew without a
 * word, and every message would be new.
 *
 * A small file in $STATE_DIRECTORY (systemd sets it), else $XDG_STATE_HOME/once, else ~/.local/state/once; one for each pipeline file and
 * consumer. Where no such folder is kept (containers), `store_id` in the pipeline file says it. */
#ifndef ONCE_RUNTIME_KNOWN_H
#define ONCE_RUNTIME_KNOWN_H

#include <string.h>

#include "runtime/runtime.h"

typedef struct once_known {
    char id[ONCE_STORE_ID]; /* empty: none is known */
    bool said;              /* by `store_id` */
    char path[4200];        /* of the file; empty: there is nowhere to keep one */
} once_known;

/* Whether there is anything to know: a store in memory is a new one every time. */
static inline bool once__keeps(const once_store *store) { return strcmp(store->ops->scheme, "memory") != 0; }

/* ONCE_E_CORRUPT: the file is there and says nothing that can be understood. */
int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err);
/* Whether this is the store that is known. ONCE_E_OTHER_STORE otherwise. */
int once__known_compare(const once_pipeline *pipeline, const once_known *known, const once_store *store, once_error *err);
int once__known_missing(const once_pipeline *pipeline, const once_known *known, once_error *err); /* ONCE_E_OTHER_STORE: there is none */
/* Remembers this one; false: that is not possible, `why` says it. */
bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_store *store, char *why, size_t size);

#endif
