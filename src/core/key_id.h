/* The ids of keys and lanes: keyed hashes (the secret of the store) over a scope and a name.
 *
 * Invariants: every part is hashed with its length, so two different scopes or names never give the same input,
 * whatever bytes they contain. The id of a long key differs from that of the short key it is shown as.
 *
 * Thread rule: any thread; nothing is shared. */
#ifndef ONCE_CORE_KEY_ID_H
#define ONCE_CORE_KEY_ID_H

#include "base/arena.h"
#include "base/hash.h"
#include "once/types.h"

#define ONCE_KEY_MAX 1024u /* bytes of a key as it is stored; longer ones are shown as their hash */

/* The id of a key of any length. */
once_hash once_key_id(once_secret secret, const once_scope *scope, once_bytes key);
/* The id of a key longer than ONCE_KEY_MAX, given as it is shown. */
once_hash once_long_key_id(once_secret secret, const once_scope *scope, once_bytes shown);
/* Whether the text looks like a long key as it is shown: "sha256:" and 64 digits. A short key may look so, too. */
bool once_key_looks_long(once_bytes shown);
/* The key as it is stored and shown: itself up to ONCE_KEY_MAX bytes, else "sha256:" and its SHA-256. False: out of
 * memory; `out` is untouched. */
bool once_key_show(once_arena *arena, once_bytes key, once_bytes *out);
/* The id of a lane. The operation of the scope does not count: handlers of one consumer share lanes. */
once_hash once_lane_id(once_secret secret, const once_scope *scope, once_bytes lane);

#endif
