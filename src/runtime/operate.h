/* What the verbs of operators share: list, explain, status, replay, discard, resolve, forget, sweep, check --repair.
 *
 * A verb opens the store with once__operator_open and closes it with once__operator_close. In between it holds the
 * pipeline's store_lock, because the run of this process uses the same handle; once__operator_pause lets others in.
 *
 *     once_backend *store;
 *     int rc = once__operator_open(pipeline, &store, err);
 *     if (rc != ONCE_OK) return rc;
 *     rc = store->ops->begin(store, err);
 *     if (rc == ONCE_OK) rc = once__finish_tx(store, work(store), err);
 *     once__operator_close(pipeline, store);
 *
 * No verb decides about an entry: core/entry.h does, through the verbs of the store. The change, the end of a letter
 * and the audit record are one transaction. A dry run does all of it and rolls back.
 *
 * Thread rule: any thread. A verb called from a callback of another verb of the same pipeline is refused. */
#ifndef ONCE_RUNTIME_OPERATE_H
#define ONCE_RUNTIME_OPERATE_H

#include <string.h>

#include "once/operate.h"
#include "runtime/runtime.h"
#include "store/store.h"

static inline once_bytes once__text_of(const char *text) { return (once_bytes){text, strlen(text)}; }
/* For "%.*s": long texts are cut in error messages. */
static inline int once__shown_len(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* ONCE_E_USAGE: a choice or a list of ids without an address. A NULL list with a count must not come to mean every
 * letter. */
int once__check_choice(const once_choice *choice, const uint64_t *ids, size_t n_ids, once_error *err);

/* Takes store_lock and returns the store: the run's, between two of its transactions, or, when there is no run, one
 * that is opened here and must be the known one (runtime/known_store.h). ONCE_E_USAGE: this thread already holds the
 * lock, or the pipeline was started before a fork, and the run's store belongs to the parent. */
int once__operator_open(once_pipeline *pipeline, once_backend **out, once_error *err);
/* The same for verbs that show or use idempotency keys: reads and checks the salt first. */
int once__open_keyed(once_pipeline *pipeline, once_backend **out, once_error *err);
/* Gives the store and the lock back; rolls back what the verb left open. NULL: once__operator_pause lost the store. */
void once__operator_close(once_pipeline *pipeline, once_backend *store);
/* Between two steps, outside of transactions: releases the lock, sleeps for `ms` or until a stop, and takes it again.
 * The run may have ended meanwhile: then *store is another handle of the same store. On failure *store is NULL, and the
 * lock is not held. */
int once__operator_pause(once_pipeline *pipeline, once_backend **store, int64_t ms, once_error *err);
/* A second handle, to read while `store` lists; a store in memory has only the one. */
int once__operator_beside(once_pipeline *pipeline, once_backend *store, once_backend **out, once_error *err);

/* Commits when `rc` is ONCE_OK, otherwise rolls back and returns `rc`. */
int once__finish_tx(once_backend *store, int rc, once_error *err);
/* The entry of a key, in `operation` or, if that is empty, in the only operation that has it. Absent is no failure.
 * ONCE_E_USAGE: several operations have it. Inside a transaction. */
int once__find_entry(once_pipeline *pipeline, once_backend *store, once_bytes tenant, once_bytes operation,
                     once_bytes key, once_entry *out, once_arena *arena, once_error *err);
/* When the entry is due, as it is shown; ONCE_NO_TIME: it never is. An unknown is due only while its handler has a
 * `lookup`; without one it waits for an operator. */
int64_t once__due_shown_ms(const once_spec *spec, const once_entry *entry);
/* The column, from 1, at which a body stops being JSON; 0: it is JSON. */
uint64_t once__json_column(once_json *json, once_bytes body);

/* --- letters.c --- */

/* Letters that a verb reads one after the other in a transaction. All zero: none yet. */
typedef struct once_reading {
    size_t left;     /* prefetched by the store and not yet read */
    size_t n, bytes; /* read so far, and the size of their messages */
} once_reading;

/* Call it before reading ids[0], with the n ids that are left: it has the store prefetch the next letters in one go, as
 * many as fit into a megabyte by the size of those before. */
int once__letters_ahead(once_reading *r, once_backend *store, const uint64_t *ids, size_t n, once_error *err);
void once__letters_note(once_reading *r, const once_letter *letter); /* call it after reading one */
/* How long a discarded letter is remembered: as its handler has it or, if it has none, as long as any message. */
int64_t once__letter_remember(const once_spec *spec, once_bytes operation);

#endif
