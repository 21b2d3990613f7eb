/* Which of the due entries a take may claim, and how many of each operation.
 *
 * The due entries of a consumer have one order: due time, then id. A handler without a free slot must not hold up the
 * others, so a take with a filter searches that order once for each share that has room, and skips what belongs to
 * other shares. Skipping is bounded: a search reads at most `read_max` entries, and the next one goes on where it
 * stopped (`from`). So a backlog of one operation is skipped once, and not by each take.
 *
 * An entry may become visible in front of `from`: another worker had locked it, or its transaction was committed late.
 * A search that reaches the end of what is due goes back by ONCE_DUE_OVERLAP_MS for the late ones; for all others the
 * caller must set `from` back to zero from time to time. */
#ifndef ONCE_CORE_DUE_FILTER_H
#define ONCE_CORE_DUE_FILTER_H

#include "base/hash.h"
#include "once/types.h"

enum { ONCE_DUE_OVERLAP_MS = 1000 };

/* A position in the order of due entries: behind the entry with this time and id. Zero: before all of them. */
typedef struct once_due_mark {
    int64_t due_ms;
    once_hash id;
} once_due_mark;

typedef struct once_due_share {
    once_bytes operation;
    bool others; /* instead: every operation that no other share of the filter names */
    size_t room; /* claim at most so many; 0: none, and it is not searched */
    /* A take that succeeds sets these of the shares that it has searched. */
    once_due_mark from; /* the next search begins here */
    bool more;          /* it stopped because the room or its bound was used up: there may be more behind `from` */
} once_due_share;

typedef struct once_due_filter {
    once_due_share *shares;
    size_t n;
    size_t read_max; /* entries that one search may read */
    uint64_t read;   /* entries that successful takes have read in their searches; added to */
} once_due_filter;

#endif
