/* The reason of a conflict letter: which fields differ from the message that came first, and where that one came from.
 *
 * Thread rule: the functions share no state. */
#ifndef ONCE_CORE_CONFLICT_H
#define ONCE_CORE_CONFLICT_H

#include "core/entry.h"
#include "core/spec.h"

/* The reason of the dead letter for a message with this body that was answered CONFLICT. It names the fields that
 * differ: found with the body of the first message while the store has it, else with the hashes of its fields
 * (core/fields.h), if it had few enough. `spec`: what is compared; NULL: the whole body. False: out of memory. */
bool once_conflict_reason(const once_decision *decision, const once_fingerprint_spec *spec, once_bytes body,
                          once_secret secret, once_arena *arena, once_bytes *out);

/* The reason of the dead letter for a message that other content replaced; `by`: where that came from. False: out of
 * memory. */
bool once_conflict_replaced(const once_coordinates *by, once_arena *arena, once_bytes *out);

#endif
