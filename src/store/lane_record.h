/* The record of a lane: the stored part beside its version and its end. One value, the same in all drivers.
 *
 *   flags (1): 1 settled, 2 next, 4 lost, 8 waited, 16 blocked, 32 until; then the parts of the flags, in order
 *   settled    id of the entry (16), its fingerprint (16), length (1) and bytes of its operation, of its key
 *   next       the version (8)
 *   lost       the first and the last version (8 each)
 *   waited     how long, and until when that was counted (8 each)
 *   blocked    how many (1), and of each the id of the entry (16), its order (8)
 *   until      when the lane may be forgotten, if no entry waits in it (8); without it, the lane's end
 *
 * Numbers are little-endian. An empty value has no parts, as in stores of older versions. */
#ifndef ONCE_STORE_LANE_RECORD_H
#define ONCE_STORE_LANE_RECORD_H

#include "core/entry.h"

enum {
    ONCE_LANE_RECORD = 1 + 32 + 2 * (1 + ONCE_LANE_NAME) + 8 + 16 + 16 + 1 + 24 * ONCE_LANE_BLOCKERS + 8,
    ONCE_LANE_NO_VERSION = -1
};

/* Returns the bytes that it wrote to `out`. */
once_bytes once__lane_write(const once_lane *lane, unsigned char out[ONCE_LANE_RECORD]);
/* Reads the stored part of a lane, without its entries; an expired lane is empty. Bytes point into `record`. False: the
 * record is damaged. */
bool once__lane_read(int64_t version, int64_t expires_ms, once_bytes record, int64_t now_ms, once_lane *out);
/* The version as a column: ONCE_LANE_NO_VERSION when there is none. */
static inline int64_t once__lane_version(const once_lane *lane)
{
    return lane->has_version ? lane->version : ONCE_LANE_NO_VERSION;
}

#endif
