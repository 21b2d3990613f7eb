/* Which store a pipeline has met, remembered outside of that store: otherwise one that was lost, emptied or moved would
 * silently be replaced by a new one, and every message would be new.
 *
 * Small files in $STATE_DIRECTORY (systemd sets it), else $XDG_STATE_HOME/once, else ~/.local/state/once, two for a
 * pipeline: one is named by the consumer and the pipeline file as it was said, one by the consumer and where the store
 * is. So a release that moves the file is still known by its store, a URL that changes is still known by its file, and
 * another store is refused when either of them says so. Before, there was one, by the file without links: it counts,
 * too. Where no such folder is kept (containers), `store_id` in the pipeline file says it. */
#ifndef ONCE_RUNTIME_KNOWN_H
#define ONCE_RUNTIME_KNOWN_H

#include <string.h>

#include "runtime/runtime.h"

enum {
    ONCE_KNOWN_BY_FILE,
    ONCE_KNOWN_BY_URL,
    ONCE_KNOWN_BY_LINK,
    ONCE_KNOWN_WAYS
}; /* the last: by the file without links */

typedef struct once_known_by {
    char name[80];          /* of the file in the folder; empty: not looked for */
    char id[ONCE_STORE_ID]; /* empty: none is known */
    bool damaged;           /* there is a file, and it does not say which */
    bool any;               /* another one was allowed: the next that is met is taken */
} once_known_by;

typedef struct once_known {
    char said[ONCE_STORE_ID]; /* by `store_id`; then nothing else counts */
    char folder[4000];        /* empty: there is nowhere to keep one */
    once_known_by by[ONCE_KNOWN_WAYS];
} once_known;

/* Whether there is anything to know: a store in memory is a new one every time. */
static inline bool once__store_lasts(const once_backend *store)
{
    return !(once__store_driver_bits(once_bytes_of(store->ops->scheme)) & ONCE_DRIVER_NEW);
}

/* ONCE_E_NOMEM, or a path that is too long. Nothing is known of a store in memory. */
int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err);
bool once__known_requires(const once_known *known); /* a store that is known must be there */
void once__known_allow(once_known *known);          /* --new-store; what `store_id` says counts all the same */
int once__known_audit(const once_pipeline *pipeline, const once_known *known, once_backend *store,
                      once_error *err); /* where it replaces one */

/* Whether this is the store that is known. ONCE_E_OTHER_STORE otherwise. */
int once__known_compare(const once_pipeline *pipeline, const once_known *known, const once_backend *store,
                        once_error *err);
/* ONCE_E_OTHER_STORE: there is none. `why`: what opening it said. */
int once__known_missing(const once_pipeline *pipeline, const once_known *known, const once_error *why, once_error *err);
/* A run has lost its store in the middle of its work: ONCE_E_OTHER_STORE when another one or none is in its place, else
 * `rc` and `err` as they are. */
int once__known_lost(const once_pipeline *pipeline, int rc, once_error *err);

/* The store for those who only look or operate: it is not made, and not another one than the one that is known. */
int once__known_open_store(once_pipeline *pipeline, once_backend **out, once_error *err);

/* Remembers this one; false: that is not possible, `why` says it, with the folder. */
bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_backend *store, char *why,
                      size_t size);
bool once__known_try(const once_known *known, char *why, size_t size); /* whether something could be kept */

#endif
