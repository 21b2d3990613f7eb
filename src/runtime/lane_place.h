/* Where messages stand in their lanes, for those who show them. */
#ifndef ONCE_RUNTIME_LANE_PLACE_H
#define ONCE_RUNTIME_LANE_PLACE_H

#include "core/intake.h"
#include "runtime/runtime.h"

enum { ONCE_BEFORE_SHOWN = 8 };

typedef struct once_lane_reader {
    const once_spec *spec;
    once_backend *store; /* a handle that nobody lists with meanwhile */
    once_intake intake;
    once_batch batch; /* owns what was read last */
    once_before before[ONCE_BEFORE_SHOWN];
    once_hash dead;  /* whose letter was looked for last ... */
    uint64_t letter; /* ... and which that is */
} once_lane_reader;

void once__lane_reader_init(once_lane_reader *reader, const once_pipeline *pipeline, once_backend *store);
void once__lane_reader_release(once_lane_reader *reader);

/* `entry`: zero for a letter without one; `message`: NULL when it is not known. What `out` points to is the reader's
 * until it reads again. */
int once__lane_place_read(once_lane_reader *reader, once_hash entry, const once_scope *scope,
                          const once_message *message, once_lane_place *out, once_error *err);

/* The letter of an entry that is dead; 0: there is none. Other letters of its key are not meant. */
int once__lane_dead_letter(once_lane_reader *reader, const once_entry *dead, uint64_t *out, once_error *err);

#endif
