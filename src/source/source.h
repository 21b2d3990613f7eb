/* The source interface: where messages come from.
 *
 *   fetch  up to n messages into a batch, in order; may return none; says when the source is at its end
 *   ack    everything up to a ticket (a file, a Kafka partition), after it is settled or the store owns it
 *
 * A source never loses what was not acked: it delivers it again, now or after a restart, at the same coordinates.
 *
 * Thread rule: one thread at a time, the source executor; `wake` and `left` may be called from any thread. */
#ifndef ONCE_SOURCE_SOURCE_H
#define ONCE_SOURCE_SOURCE_H

#include "base/env.h"
#include "core/item.h"
#include "core/spec.h"

typedef struct once_source once_source;
struct once_places; /* source/place.h */

enum once_source_bits {
    ONCE_SOURCE_FINITE = 1,    /* it ends */
    ONCE_SOURCE_REDELIVERS = 2 /* what was not acked comes again; stdin cannot */
};

/* What the store keeps of a source that has files (source/place.h), as text; empty: nothing yet. */
typedef struct once_kept_places {
    once_bytes files;      /* which files it has had */
    once_bytes cursor;     /* where to go on; empty: at the beginning */
    const once_hash *lock; /* with a cursor: what stands for it, since each consumer has its own; NULL: without */
} once_kept_places;

/* Holds the cursor `which` of an open file for as long as the descriptor lives (source/cursor_lock.c). ONCE_E_BUSY:
 * another has it. */
int once_cursor_lock(const once_env *env, int fd, once_hash which, once_error *err);

typedef struct once_source_ops {
    const char *name;    /* "file" */
    const char *summary; /* one line for `once version` and the docs */

    int (*open)(const once_spec *spec, const once_env *env, once_source **out, once_error *err);
    void (*close)(once_source *source);
    unsigned (*bits)(const once_source *source);

    /* Before the first fetch: tells the source what the store keeps of it. With a lock, makes this process the one that
     * moves the cursor: ONCE_E_BUSY when another one does. May be repeated until it succeeds. NULL: the source has no
     * files. */
    int (*seek)(once_source *source, const once_kept_places *kept, once_error *err);
    /* Where it begins after that, for the cursor. With seek. */
    void (*places)(once_source *source, struct once_places *out);

    /* Blocks until there is a message (then at most spec->batch_wait_ms for more), the end, wake(), or about 100 ms.
     * Fills batch->items (message and batch set) and batch->n; bodies live in the batch's arena. */
    int (*fetch)(once_source *source, size_t max, once_batch *batch, bool *at_end, once_error *err);
    int (*ack)(once_source *source, uint64_t upto, once_error *err);
    /* A fetch that waits returns, with what has been read; so does the next one if none does. */
    void (*wake)(once_source *source);
    /* Messages, or parts of one, that were read and not handed out. NULL: there are none, or they are delivered again.
     */
    uint64_t (*held)(const once_source *source);
    /* How much is left: bytes of a file, messages of a queue; -1: not known. For the progress line only. */
    int64_t (*left)(once_source *source);
} once_source_ops;

/* Drivers embed this as their first member. */
struct once_source {
    const once_source_ops *ops;
    const once_spec *spec;
    const once_env *env;
};

const once_source_ops *const *once_source_list(size_t *n);
extern const once_source_ops once_source_file;

#endif
