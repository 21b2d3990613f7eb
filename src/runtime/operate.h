/* What the verbs of operators share. */
#ifndef ONCE_RUNTIME_OPERATE_H
#define ONCE_RUNTIME_OPERATE_H

#include <string.h>

#include "once/operate.h"
#include "runtime/runtime.h"
#include "store/store.h"

static inline once_bytes once__text_of(const char *text) { return (once_bytes){text, strlen(text)}; }
static inline int once__shown_len(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* Whom the caller means. No letters with a count would be all of them. */
int once__check_choice(const once_choice *choice, const uint64_t *ids, size_t n_ids, once_error *err);
/* The store for an operator, whose turn it is from here on: that of the run, between two transactions of it, or one
 * that is opened for it, as it is known (once__known_open_store). ONCE_E_USAGE: this thread has its turn already, in a
 * callback of another one; or the pipeline was started before a fork, and the store of the run is the parent's. */
int once__operator_open(once_pipeline *pipeline, once_backend **out, once_error *err);
void once__operator_close(once_pipeline *pipeline, once_backend *store);
/* Between two steps, outside of transactions: lets others have their turn, the transactions of the run above all, and
 * sleeps that long, but not past a stop. The store may be another handle afterwards, because the run may have ended.
 * When it fails, there is none. */
int once__operator_pause(once_pipeline *pipeline, once_backend **store, int64_t ms, once_error *err);
/* Another handle, for reading in the midst of a list; a store in memory is read by the same one. */
int once__operator_beside(once_pipeline *pipeline, once_backend *store, once_backend **out, once_error *err);
/* once__operator_open for those who show or use idempotency keys. */
int once__open_keyed(once_pipeline *pipeline, once_backend **out, once_error *err);
/* Commits, or rolls back when `rc` says so. */
int once__finish_tx(once_backend *store, int rc, once_error *err);
/* The entry of a key in the operation that is meant. Inside a transaction. */
int once__find_entry(once_pipeline *pipeline, once_backend *store, once_bytes tenant, once_bytes operation,
                     once_bytes key, once_entry *out, once_arena *arena, once_error *err);
/* Where a body is no JSON any more, from 1; 0: it is. */
uint64_t once__json_column(once_json *json, once_bytes body);

/* --- letters.c --- */

/* Letters that are looked at one after the other in a transaction. */
typedef struct once_reading {
    size_t left;     /* read ahead, and not looked at yet */
    size_t n, bytes; /* letters so far, and the size of their messages */
} once_reading;

/* Before each of ids[0 .. n-1]: the store reads the next ones in one go, as many as are likely to fit by the size of
 * those before. */
int once__letters_ahead(once_reading *r, once_backend *store, const uint64_t *ids, size_t n, once_error *err);
void once__letters_note(once_reading *r, const once_letter *letter); /* it was looked at */
/* How long a letter that is given up is remembered: as its handler says, or, where it has none, as long as any message
 * is. */
int64_t once__letter_remember(const once_spec *spec, once_bytes operation);

#endif
