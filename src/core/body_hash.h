/* ${hash}: the hash of the whole body, SHA-256 cut to 128 bits, as 32 hex digits: of JSON in canonical form, of other
 * bodies the bytes. */
#ifndef ONCE_CORE_BODY_HASH_H
#define ONCE_CORE_BODY_HASH_H

#include "core/parsed.h"

/* In the arena. ONCE_OK, ONCE_E_MESSAGE with the reason in `err`: there is no body; or ONCE_E_NOMEM. */
int once_body_hash(const once_parsed *from, once_arena *arena, once_bytes *out, once_error *err);

#endif
