/* A lane: messages that keep their order, and the versions that it has seen. */
#ifndef ONCE_CORE_LANE_H
#define ONCE_CORE_LANE_H

#include "base/hash.h"
#include "once/types.h"

typedef struct once_entry once_entry; /* core/entry.h */

/* A message's place in its lane; lane ids are scoped by tenant and consumer. */
typedef struct once_lane_request {
    once_hash id; /* zero: no lane */
    bool versioned;
    int64_t version; /* when versioned; >= 0 */
    int64_t gap_ms;  /* when versioned: how long to wait for a missing version; -1: a jump runs at once */
    bool has_first;  /* when versioned: the lane begins with this version */
    int64_t first;
    bool block; /* when this one dies, the lane waits for its letter */
} once_lane_request;

#define ONCE_LANE_NAME 200   /* bytes that a lane keeps of an operation or a key */
#define ONCE_LANE_BLOCKERS 8 /* dead entries that it keeps */

/* A dead entry that a lane waits for. */
typedef struct once_blocker {
    once_hash id;
    int64_t order;
} once_blocker;

/* A lane: what is kept of it, and what a rule needs to know of its other entries. */
typedef struct once_lane {
    /* Kept by the store until expires_ms. */
    bool has_version;
    int64_t version;   /* the highest that settled done, already or rejected */
    once_hash by;      /* the entry that settled it; zero: an older once wrote this, and nothing of that is known */
    once_hash content; /* its fingerprint; zero: none, or not known */
    once_bytes operation, key; /* its names, cut to ONCE_LANE_NAME */
    bool has_next;
    int64_t next; /* gap: versions below are not waited for, although they did not settle */
    bool has_lost;
    int64_t lost_from, lost_to; /* gap: the versions that were given up last */
    bool waits;                 /* gap: somebody does */
    int64_t waited_ms;          /* how much of the wait is over ... */
    int64_t counted_ms;         /* ... at this moment */
    unsigned n_blockers;
    once_blocker blockers[ONCE_LANE_BLOCKERS]; /* the dead that it waits for: more than one where older versions came
                                                  late and died, too */
    int64_t expires_ms;                        /* ONCE_FOREVER while somebody waits in it, or for a dead one */
    int64_t until_ms; /* not forgotten before, when nobody does any more; what those who settled in it were promised */

    /* Seen by one entry: the others. */
    bool claimed;       /* another entry occupies it */
    int64_t head, tail; /* lowest and highest order among the other unfinished entries; head NEVER, tail -1 if none */
    int64_t equal_ms;   /* for a new one: when the last of those with its order was seen; 0: there is none */

    char words[ONCE_LANE_NAME + 300]; /* where a rule says what it has to say about this lane */
} once_lane;

/* The last entry of a lane has left it: what was kept because others waited is kept as long as the entry is. */
int once_lane_rest(once_lane *lane, const once_entry *entry, int64_t now_ms);
/* How many versions were given up for an entry that has not been settled since, because this is its first claim;
 * otherwise 0. Of one gap ONCE_GAP_COUNTED at most: more are missing only before a wrong version, which would drown all
 * others in what is counted for ever. */
#define ONCE_GAP_COUNTED 1000
int64_t once_lane_given_up(const once_lane *lane, const once_entry *entry);
/* The same for one that is claimed, to whoever has not heard of that. */
int64_t once_lane_given_up_again(const once_lane *lane, const once_entry *entry);
/* In words, why an entry of the lane waits, or what waits for it; empty when it is only its time. */
once_bytes once_lane_says(once_lane *lane, const once_entry *entry);

/* Whether it waits for versions of its lane that have not come, and for which. */
bool once_lane_missing(const once_lane *lane, const once_entry *entry, int64_t *from, int64_t *to);

#endif
