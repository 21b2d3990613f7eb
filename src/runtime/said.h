/* What a dry run of a replay has said of the keys so far, so that a later letter of the same key hears what it would
 * meet then. As many as there are letters, so they are kept in a temporary file and not in memory: a hash table with
 * room for `most`. */
#ifndef ONCE_RUNTIME_SAID_H
#define ONCE_RUNTIME_SAID_H

#include "once/error.h"
#include "once/types.h"

typedef struct once_said { /* a key that would be waiting */
    uint64_t id;           /* half of the entry's, which is a keyed hash, so half is enough; 0: nothing was said */
    uint64_t print;        /* half of the fingerprint; 0: it has none */
} once_said;

typedef struct once_said_table {
    int fd;
    uint64_t n, size; /* slots that are used; all of them, a power of two */
} once_said_table;

/* In TMPDIR, or in /var/tmp; it has no name there and ends with the process. */
int once__said_open(once_said_table *table, uint64_t most, once_error *err);
void once__said_close(once_said_table *table);
/* *out with id 0: nothing was said. */
int once__said_find(const once_said_table *table, uint64_t id, once_said *out, once_error *err);
/* Replaces what was said of this id before. */
int once__said_put(once_said_table *table, const once_said *what, once_error *err);

#endif
