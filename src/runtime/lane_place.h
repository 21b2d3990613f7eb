/* Where messages are in their lanes, for verbs that show them. */
#ifndef ONCE_RUNTIME_LANE_PLACE_H
#define ONCE_RUNTIME_LANE_PLACE_H

#include "core/intake.h"
#include "runtime/runtime.h"

enum { ONCE_BEFORE_SHOWN = 8 };

typedef struct once_lane_reader {
    const once_spec *spec;
    once_backend *store; /* a handle that is not listing at the same time */
    once_intake intake;  /* computes the lane of a message */
    once_batch batch;    /* owns what was read last */
    once_before before[ONCE_BEFORE_SHOWN];
    once_hash dead;  /* the entry whose letter was looked up last ... */
    uint64_t letter; /* ... and that letter */
} once_lane_reader;

void once__lane_reader_init(once_lane_reader *reader, const once_pipeline *pipeline, once_backend *store);
void once__lane_reader_release(once_lane_reader *reader);

/* `entry`: zero for a letter without an entry. `message`: NULL when only the source has it. What `out` points to lives
 * until the next read. */
int once__lane_place_read(once_lane_reader *reader, once_hash entry, const once_scope *scope,
                          const once_message *message, once_lane_place *out, once_error *err);

/* The letter of a dead entry, not other letters of its key; 0: there is none. */
int once__lane_dead_letter(once_lane_reader *reader, const once_entry *dead, uint64_t *out, once_error *err);

#endif
