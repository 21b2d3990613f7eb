/* The keys that a dry run of a replay would have put back so far, so that it can judge a later letter of the same key.
 * There may be millions, so they are in a temporary file and not in memory: an open-addressing hash table of
 * once_preview records, with a power of two of slots and room for `most`. */
#ifndef ONCE_RUNTIME_REPLAY_PREVIEW_H
#define ONCE_RUNTIME_REPLAY_PREVIEW_H

#include "once/error.h"
#include "once/types.h"

typedef struct once_preview { /* a key that would be waiting */
    uint64_t id;              /* half of the entry's id, a keyed hash, so that half is enough; 0: an empty slot */
    uint64_t print;           /* half of the fingerprint; 0: it has none */
} once_preview;

typedef struct once_preview_table {
    int fd;
    uint64_t n, size; /* used slots, and all slots */
} once_preview_table;

/* Creates the file in TMPDIR or /var/tmp, without a name, so that it ends with the process. */
int once__preview_open(once_preview_table *table, uint64_t most, once_error *err);
void once__preview_close(once_preview_table *table);
/* *out has id 0 when the table does not have this key. */
int once__preview_find(const once_preview_table *table, uint64_t id, once_preview *out, once_error *err);
/* Adds or replaces. */
int once__preview_put(once_preview_table *table, const once_preview *what, once_error *err);

#endif
