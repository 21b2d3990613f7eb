/* The identities of keys and lanes. */
#ifndef ONCE_CORE_KEY_ID_H
#define ONCE_CORE_KEY_ID_H

#include "base/arena.h"
#include "base/hash.h"
#include "once/types.h"

#define ONCE_KEY_MAX 1024u

/* The identity of a key: keyed hash over scope and key, unambiguous whatever they contain, of any length. */
once_hash once_key_id(once_secret secret, const once_scope *scope, once_bytes key);
/* Of a long key, given as it is shown. */
once_hash once_long_key_id(once_secret secret, const once_scope *scope, once_bytes shown);
/* Whether the text is one that long keys are shown as: "sha256:" and 64 digits. A short key may look like that, too. */
bool once_key_looks_long(once_bytes shown);
/* The key as it is kept and shown: itself up to 1024 bytes, else "sha256:" and its SHA-256. The identity of a long key
 * is never that of the short key it is shown as. False: out of memory. */
bool once_key_show(once_arena *arena, once_bytes key, once_bytes *out);
once_hash once_lane_id(once_secret secret, const once_scope *scope, once_bytes lane); /* operation does not count */

#endif
