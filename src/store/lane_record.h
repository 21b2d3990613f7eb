/* What drivers keep of a lane beside its version and its end: one value, the same in all of them.
 *
 *   flags (1): 1 settled, 2 next, 4 lost, 8 waited, 16 blocked, 32 until; then what the flags announce, in this order
 *   settled    id of the entry (16), its fingerprint (16), length (1) and bytes of its operation, of its key
 *   next       the version (8)
 *   lost       the first and the last version (8 each)
 *   waited     how long, and until when that was counted (8 each)
 *   blocked    how many (1), and of each the id of the entry (16), its order (8)
 *   until      when it may be forgotten, if nobody waits any more (8); otherwise that is when it ends
 *
 * Numbers are little-endian. An empty value says nothing, as in stores of older versions. */
#ifndef ONCE_STORE_LANE_RECORD_H
#define ONCE_STORE_LANE_RECORD_H

#include "core/entry.h"

enum {
    ONCE_LANE_RECORD = 1 + 32 + 2 * (1 + ONCE_LANE_NAME) + 8 + 16 + 16 + 1 + 24 * ONCE_LANE_BLOCKERS + 8,
    ONCE_LANE_NO_VERSION = -1
};

/* Returns what it wrote to `out`. */
once_bytes once__lane_write(const once_lane *lane, unsigned char out[ONCE_LANE_RECORD]);
/* A lane without other entries, as kept: nothing, when it has expired. Bytes point into `record`. False: damaged. */
bool once__lane_read(int64_t version, int64_t expires_ms, once_bytes record, int64_t now_ms, once_lane *out);
/* As a column: ONCE_LANE_NO_VERSION when there is none. */
static inline int64_t once__lane_version(const once_lane *lane)
{
    return lane->has_version ? lane->version : ONCE_LANE_NO_VERSION;
}

#endif
