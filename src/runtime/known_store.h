/* Which store a pipeline uses, remembered outside of that store: otherwise a store that was lost, emptied or moved
 * would silently be replaced by a new one, and every message would run again.
 *
 * It is remembered in small files in $STATE_DIRECTORY (systemd sets it), else $XDG_STATE_HOME/once, else
 * ~/.local/state/once. A pipeline has two: one named by its consumer and the path of its file, one by its consumer and
 * the location of the store. So a release that moves the file is still recognized by its store, a URL that changes is
 * still recognized by its file, and another store is refused when either file contradicts it. Earlier versions had one
 * file, named by the path without links; it counts too. Where no such folder survives (containers), `store_id` in the
 * pipeline file pins the store, and the files are not used.
 *
 * Thread rule: plain functions; once_known is the caller's. */
#ifndef ONCE_RUNTIME_KNOWN_STORE_H
#define ONCE_RUNTIME_KNOWN_STORE_H

#include <limits.h>
#include <string.h>

#include "runtime/runtime.h"

enum {
    ONCE_KNOWN_BY_FILE,
    ONCE_KNOWN_BY_URL,
    ONCE_KNOWN_BY_LINK, /* by the path without links; only read, and kept up to date where it exists */
    ONCE_KNOWN_WAYS
};

/* What one file says. */
typedef struct once_known_by {
    char name[80];          /* of the file in the folder; empty: this way does not apply */
    char id[ONCE_STORE_ID]; /* empty: there is no file */
    bool damaged;           /* there is a file, and it names no store */
    bool accepts_any;       /* --new-store: the next store is accepted and remembered */
} once_known_by;

typedef struct once_known {
    char pinned[ONCE_STORE_ID]; /* by `store_id`; then nothing else counts */
    char folder[4000];          /* empty: there is none */
    once_known_by by[ONCE_KNOWN_WAYS];
} once_known;

/* Whether a store outlives the process: a store in memory is new every time, and not remembered. */
static inline bool once__store_lasts(const once_backend *store)
{
    return !(once__store_driver_bits(once_bytes_of(store->ops->scheme)) & ONCE_DRIVER_NEW);
}

/* Reads `store_id` and the files. ONCE_E_NOMEM, also for a path that is too long. */
int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err);
bool once__known_requires(const once_known *known); /* this pipeline used a store, so it must not create one */
void once__known_allow(once_known *known);          /* --new-store: accept any store; a pinned one still counts */
/* Audits, in the new store, that it replaces another one. Nothing when it does not. */
int once__known_audit(const once_pipeline *pipeline, const once_known *known, once_backend *store, once_error *err);

/* ONCE_E_OTHER_STORE: this is not the store that the pipeline used before. */
int once__known_compare(const once_pipeline *pipeline, const once_known *known, const once_backend *store,
                        once_error *err);
/* ONCE_E_OTHER_STORE: the store is missing. `why`: the error of opening it. */
int once__known_missing(const once_pipeline *pipeline, const once_known *known, const once_error *why, once_error *err);
/* After a run failed with `rc`: ONCE_E_OTHER_STORE when its store was replaced or removed meanwhile, else `rc`, with
 * `err` untouched. */
int once__known_lost(const once_pipeline *pipeline, int rc, once_error *err);

/* Opens the store for verbs that only look or operate: never creates one, and refuses another one. */
int once__known_open_store(once_pipeline *pipeline, once_backend **out, once_error *err);

/* --- known_store_files.c --- */

/* Remembers this store. False: it cannot, and `why` says so in words. */
bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_backend *store, char *why,
                      size_t size);
/* The same for the next store that a run creates or finds, because there is none now. */
bool once__known_keep_any(const once_pipeline *pipeline, const once_known *known, char *why, size_t size);
bool once__known_try(const once_known *known, char *why, size_t size); /* whether anything could be remembered */
bool once__known_no_folder(char *why, size_t size);                    /* false, and `why` says that there is none */
void once__known_path(const once_known *known, const once_known_by *by, char out[PATH_MAX]);
/* A path from the root, as it was given: without "." and doubled slashes, but with its links ("current"). */
bool once__known_absolute(once_bytes path, char *out, size_t size);

#endif
