/* Lanes: messages that must take effect in order, and the versions that a lane has seen.
 *
 * Messages of one lane (`order`) run one after the other. Without versions they run in the order of arrival. With
 * versions the lane keeps the highest version that settled, and which key settled it with which content. A message with
 * a version that is
 *
 *   older                        is stale, and recorded as such
 *   equal, under another key     waits while the first one is unfinished. After that, the same operation and content
 *                                make it a duplicate of that version: it is recorded as `already` under its own key,
 *                                with a reason that names the key that settled it. Anything else is a conflict: a dead
 *                                letter that names the version and that key. With `fingerprint: none` only the
 *                                operation is compared. Where the content of the first one is not known (its handler
 *                                has no fingerprint, or an older version of once wrote the lane), it is a conflict
 *   equal, under the same key    finds that its key was forgotten: a duplicate, or a conflict if the content differs
 *   next                         runs
 *   further ahead                runs, or with `gap` waits for the missing versions. A lane without a version begins
 *                                with `first`, or else with the first version that it sees
 *
 * Waiting for missing versions. A lane has one wait, for its lowest message, which is looked at in steps. The time
 * since the last look counts, but at most two steps of it: a live run looks after each step, so more time means that no
 * run was there. When the wait is over, the missing versions are given up: that message runs, or dies without running
 * (decision.gap_over; the caller decides), those behind it follow, and a further gap has a wait of its own. "Given up"
 * means only that nothing waits for these versions. If one comes after all, it is stale when a newer one has settled;
 * until then it runs, and the lane goes on from there. So a message with a wrong, high version that waits and dies
 * costs the lane nothing, and when its letter is discarded, its version does not count either. A message that died has
 * come: nothing waits for its version, but the lane's version is still the one before.
 *
 * Blocking. A message that dies leaves its lane, unless its request says `block`. Then nothing behind it runs until its
 * dead letter is replayed or discarded, or its key forgotten. Older versions that come late stand before it, so they
 * run, and may die and block as well; when ONCE_LANE_BLOCKERS have, they wait, too.
 *
 * Thread rule: the functions share no state; a lane belongs to one thread at a time. */
#ifndef ONCE_CORE_LANE_H
#define ONCE_CORE_LANE_H

#include "base/hash.h"
#include "once/types.h"

typedef struct once_entry once_entry; /* core/entry.h */

/* The place of a message in its lane. Lane ids are scoped by tenant and consumer. */
typedef struct once_lane_request {
    once_hash id;    /* zero: no lane; the other fields are not read */
    int64_t version; /* when versioned; >= 0 */
    int64_t gap_ms;  /* when versioned: how long to wait for a missing version; -1: run at once */
    int64_t first;
    bool versioned;
    bool has_first; /* when versioned: the lane begins with `first` */
    bool block;     /* when this message dies, the lane waits for its dead letter */
} once_lane_request;

#define ONCE_LANE_NAME 200   /* bytes that a lane keeps of an operation or a key */
#define ONCE_LANE_BLOCKERS 8 /* dead entries that may block a lane */

/* A dead entry that blocks a lane. */
typedef struct once_blocker {
    once_hash id;
    int64_t order;
} once_blocker;

/* A lane: what the store keeps of it, and what a rule needs to know about its other entries. */
typedef struct once_lane {
    /* Kept by the store until expires_ms. */
    bool has_version;
    int64_t version;           /* the highest that settled done, already or rejected */
    once_hash by;              /* the entry that settled it; zero: not known, an older version of once wrote it */
    once_hash content;         /* its fingerprint; zero: none, or not known */
    once_bytes operation, key; /* of that entry, cut to ONCE_LANE_NAME */
    bool has_next;
    int64_t next; /* gap: nothing waits for versions below this one, although they did not settle */
    bool has_lost;
    int64_t lost_from, lost_to; /* gap: the versions that were given up last */
    bool waits;                 /* gap: the lowest message waits for missing versions */
    int64_t waited_ms;          /* how much of that wait had passed ... */
    int64_t counted_ms;         /* ... at this time */
    unsigned n_blockers;        /* more than one when older versions came late and died, too */
    once_blocker blockers[ONCE_LANE_BLOCKERS];
    int64_t expires_ms; /* ONCE_FOREVER while a message waits in the lane, or a dead one blocks it */
    int64_t until_ms;   /* after that, not forgotten before this time, which the settled entries were promised */

    /* The other entries, seen from the one that a rule is about. */
    bool claimed;       /* another entry occupies the lane (once_state_occupies) */
    int64_t head, tail; /* lowest and highest order of the other unfinished entries; ONCE_NEVER and -1 if none */
    int64_t equal_ms;   /* for a new entry: when the last one with its order was first seen; 0: none */

    char words[ONCE_LANE_NAME + 300]; /* room for the reason that a rule gives */
} once_lane;

/* The last entry of a lane has left it: from now on the lane is kept as long as that entry. Returns once_change. */
int once_lane_rest(once_lane *lane, const once_entry *entry, int64_t now_ms);
/* How many versions were given up for an entry that is on its first attempt; otherwise 0. At most ONCE_GAP_COUNTED for
 * one gap: only a wrong version leaves more missing, and it would drown all others in a count that is kept for good. */
#define ONCE_GAP_COUNTED 1000
int64_t once_lane_given_up(const once_lane *lane, const once_entry *entry);
/* The same for a claimed entry, for a caller whose first reply was lost. */
int64_t once_lane_given_up_again(const once_lane *lane, const once_entry *entry);
/* Why an entry of the lane waits, or what waits for it, in words; empty when it only waits for its time. */
once_bytes once_lane_explain(once_lane *lane, const once_entry *entry);
/* Whether the entry waits for missing versions of its lane; *from and *to say which, and are valid only then. */
bool once_lane_missing(const once_lane *lane, const once_entry *entry, int64_t *from, int64_t *to);

#endif
