/* What a conflict letter says: in what its content differs from the one that came first, and where that one came from.
 */
#ifndef ONCE_CORE_CONFLICT_H
#define ONCE_CORE_CONFLICT_H

#include "core/entry.h"
#include "core/spec.h"

/* The reason of a letter for a message with this body that was answered CONFLICT. The fields that differ are named:
 * from the body of the first one while the store has it, else from what it keeps of its fields (core/fields.h); more
 * than that many have no names. `spec`: what is compared; NULL: the whole body. False: out of memory. */
bool once_conflict_reason(const once_decision *decision, const once_fingerprint_spec *spec, once_bytes body,
                          once_secret secret, once_arena *arena, once_bytes *out);

/* The reason of the letter for one whose place other content took, which came from there. False: out of memory. */
bool once_conflict_replaced(const once_coordinates *by, once_arena *arena, once_bytes *out);

#endif
